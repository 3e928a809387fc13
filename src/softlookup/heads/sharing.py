"""Sharing: layers that read the keys and values of another layer, and values that are the keys."""

from collections.abc import Callable, Mapping, Sequence

from array_api_compat import device

from softlookup._arrays import Array, Normalizer, Score, cast, integers, promote
from softlookup._checks import check_axes, check_callable, integer, natural, positive_integer
from softlookup.lookup.attention import attention, scaled_dot
from softlookup.lookup.softmax import softmax

__all__ = ["adjacent_producers", "decoder_producers", "last_producers", "share_layers", "tied_attention"]


def share_layers(
    x: Array,
    reads: Sequence[Callable[[Array, Array, Array], Array]],
    projections: Mapping[int, Callable[[Array], tuple[Array, Array]]],
    /,
    *,
    producers: Sequence[int],
) -> Array:
    r"""Run a stack of layers, some of which read the keys and values that an earlier layer made.

    .. math:: x_{l+1} = \operatorname{read}_l(x_l, \, k_{p(l)}, \, v_{p(l)}), \qquad
              k_{p}, v_{p} = \operatorname{project}_{p}(x_{p}) \quad\text{where}\ p(p) = p

    Parameters
    ----------
    x : array of shape (..., n, D)
        What enters the first layer.
    reads : sequence of L callables
        ``reads[l](x, k, v) -> x`` is layer l: its queries, its lookup, its residual and all that follows.
    projections : mapping from layers to callables
        ``projections[l](x) -> (k, v)`` makes the keys and values of layer l. Exactly the producers have one.
    producers : sequence of L integers
        ``producers[l]`` is the layer whose keys and values layer l reads: itself, or an earlier one that reads itself.

    Returns
    -------
    array of shape (..., n, D)
        What leaves the last layer.

    Raises
    ------
    ValueError
        If the lengths differ, if a producer comes later or reads another layer itself, or if `projections` are not
        those of the producers.
    TypeError
        If `x` is not an array, if a producer is not an integer, or if a layer or a projection cannot be called.

    See Also
    --------
    adjacent_producers : Neighbors share.
    decoder_producers : The first half has its own, the rest shares one.
    last_producers : The last layers share the last of their kind.

    Notes
    -----
    Slot : where the keys and values come from
    Changes : a layer may have no keys and values of its own.
    Cost : the keys and values of the producers alone are made and kept; the time of the lookups stays.
    Empty row : decided by the layers.
    Promises : none
    Equals : the ordinary stack when each layer is its own producer; the ordinary stack with the same projection in all
        layers of a group, when no layer changes the columns that the projection reads.
    Year : 2024
    Source : Brandon et al., 2024, Reducing Transformer Key-Value Cache Size with Cross-Layer Attention,
        section 2.2, arXiv 2405.12981.
    Other names : cross-layer attention, CLA, KV sharing, cross-layer KV cache, MLKV, multi-layer key-value heads

    It keeps what all of its layers keep. The layers see at least float32; the result has the dtype of `x`.

    References
    ----------
    W. Brandon et al., Reducing Transformer Key-Value Cache Size with Cross-Layer Attention, NeurIPS 2024.

    Examples
    --------
    >>> import numpy as np
    >>> read = lambda x, k, v: x + v
    >>> x = np.array([[1.0]])
    >>> share_layers(x, [read, read, read], {0: lambda x: (x, 10 * x)}, producers=[0, 0, 0])
    array([[31.]])
    """
    xp, dtype, (x,) = promote(x=x)
    check_axes("n D", x=x)
    producers = [integer("producers", p) for p in producers]
    if len(producers) != len(reads):
        raise ValueError(f"producers has {len(producers)} layers, reads has {len(reads)}; they must be equal")
    for layer, p in enumerate(producers):
        if not 0 <= p <= layer or producers[p] != p:
            raise ValueError(f"layer {layer} reads layer {p}; it must be itself or an earlier one that reads itself")
    if set(projections) != set(producers):
        raise ValueError(f"projections has the layers {sorted(projections)}; it must have {sorted(set(producers))}")
    kept = {}
    for layer, p in enumerate(producers):
        if p == layer:
            check_callable("a function project(x)", projections=projections[p])
            kept[p] = projections[p](x)
        check_callable("a function read(x, k, v)", reads=reads[layer])
        x = reads[layer](x, *kept[p])
    return cast(xp, x, dtype)


def adjacent_producers(layers: Array, /, *, group: int) -> Array:
    r"""Let groups of neighboring layers share: the first of a group makes the keys and values.

    .. math:: p(l) = l - (l \bmod g)

    Parameters
    ----------
    layers : integer array of shape (...)
        The numbers of the layers, from zero on.
    group : int
        The number g of layers in a group; one is no sharing.

    Returns
    -------
    integer array of shape (...)
        The layer whose keys and values each layer reads.

    Raises
    ------
    ValueError
        If `group` is not positive.
    TypeError
        If `layers` does not hold signed integers, or if `group` is not an integer.

    See Also
    --------
    share_layers : Runs the layers.

    Notes
    -----
    Cost : one of g caches is left.
    Empty row : none; nothing is read.

    Also called CLA2 for groups of two and CLA3 for groups of three.

    Examples
    --------
    >>> import numpy as np
    >>> adjacent_producers(np.arange(6), group=2)
    array([0, 0, 2, 2, 4, 4])
    """
    group = positive_integer("group", group)
    _, (layers,) = integers(layers=layers)
    return layers - layers % group


def decoder_producers(layers: Array, /, *, own: int) -> Array:
    r"""Let the first layers have keys and values of their own, and all others share one pair.

    .. math:: p(l) = \min(l, s)

    Parameters
    ----------
    layers : integer array of shape (...)
        The numbers of the layers, from zero on.
    own : int
        The number s of layers before the shared ones. Layer s makes what is shared, from what enters it.

    Returns
    -------
    integer array of shape (...)
        The layer whose keys and values each layer reads.

    Raises
    ------
    ValueError
        If `own` is negative.
    TypeError
        If `layers` does not hold signed integers, or if `own` is not an integer.

    See Also
    --------
    share_layers : Runs the layers.

    Notes
    -----
    Cost : s + 1 caches are left; where the first s layers read a window, only one of them grows with the text.
    Empty row : none; nothing is read.

    Also called YOCO, you only cache once, a decoder-decoder with a self-decoder and a cross-decoder.

    Examples
    --------
    >>> import numpy as np
    >>> decoder_producers(np.arange(6), own=3)
    array([0, 1, 2, 3, 3, 3])
    """
    own = natural("own", own)
    xp, (layers,) = integers(layers=layers)
    return xp.where(layers < own, layers, own)


def last_producers(kinds: Array, /, *, shared: int) -> Array:
    r"""Let the last layers read the last layer of their kind before them.

    .. math:: p(l) = l \ \text{for}\ l < L - N, \qquad
              p(l) = \max \{ j < L - N : \text{kind}_j = \text{kind}_l \} \ \text{otherwise}

    Parameters
    ----------
    kinds : integer array of shape (..., L)
        The kind of each layer, such as zero for a window and one for the whole text.
    shared : int
        The number N of layers at the end that have no keys and values.

    Returns
    -------
    integer array of shape (..., L)
        The layer whose keys and values each layer reads. A layer at the end of a kind that no earlier layer has is its
        own producer.

    Raises
    ------
    ValueError
        If `kinds` has no axis, or if `shared` is negative or greater than L.
    TypeError
        If `kinds` does not hold signed integers, or if `shared` is not an integer.

    See Also
    --------
    share_layers : Runs the layers.

    Notes
    -----
    Cost : L - N caches are left.
    Empty row : none; nothing is read.

    Also called the KV sharing of Gemma 3n and Gemma 4.

    Examples
    --------
    >>> import numpy as np
    >>> last_producers(np.array([0, 0, 1, 0, 1, 0, 1]), shared=3)
    array([0, 1, 2, 3, 2, 3, 2])
    """
    shared = natural("shared", shared)
    xp, (kinds,) = integers(kinds=kinds)
    check_axes("L", kinds=kinds)
    count = kinds.shape[-1]
    if shared > count:
        raise ValueError(f"shared is {shared}, kinds has {count} layers; it must not be more")
    layers = xp.arange(count, dtype=kinds.dtype, device=device(kinds))
    if shared in (0, count):
        return xp.broadcast_to(layers, kinds.shape)
    first = count - shared
    same = kinds[..., :, None] == kinds[..., None, :first]
    found = xp.max(xp.where(same, layers[:first], -1), axis=-1)
    return xp.where((layers < first) | (found < 0), layers, found)


def tied_attention(
    q: Array,
    k: Array,
    /,
    *,
    mask: Array | None = None,
    score: Score = scaled_dot(),
    normalize: Normalizer = softmax,
    turn_back: Callable[[Array], Array] | None = None,
) -> Array:
    r"""Blend the keys themselves: one array is key and value.

    .. math:: \operatorname{out}_i = T_i^{-1} \Big( \sum_j w_{ij} \, k_j \Big), \qquad
              w_i = \operatorname{normalize}(\operatorname{score}(q_i, k), \ \text{mask}_i)

    Parameters
    ----------
    q : array of shape (..., H, n, d)
        Queries.
    k : array of shape (..., H_kv, m, d)
        Keys, which are the values, too; the number of their heads must divide that of `q`.
    mask : boolean array that broadcasts to (..., H, n, m), optional
        True where the query may read the item.
    score : callable
        Compares: ``score(q, k) -> s``.
    normalize : callable
        Turns each row of scores into weights: ``normalize(s, allowed) -> w``.
    turn_back : callable, optional
        Applied to the outputs. Where the keys were rotated by their positions, a rotation by minus the position of the
        query: what is blended then depends on distances alone.

    Returns
    -------
    array of shape (..., H, n, d)
        One blend for each query.

    Raises
    ------
    ValueError
        Where `attention` raises it.
    TypeError
        Where `attention` raises it, or if `turn_back` cannot be called.

    See Also
    --------
    attention : With values of their own.
    tied_heads : Only a part of the key is the value.

    Notes
    -----
    Slot : where the values come from
    Changes : no values are made or kept.
    Cost : that of attention; d numbers to keep for each item and head instead of 2 d.
    Empty row : a query that may read nothing gets zeros.
    Promises : prefix stable
    Equals : ``attention`` whose values are its keys; with keys that are turned by p and `turn_back`, a blend of keys
        that are turned by their distance.
    Year : 2015
    Source : Luong, Pham and Manning, 2015, Effective Approaches to Attention-based Neural Machine Translation, section
        3.1, arXiv 1508.04025; one head with the rotation turned back: transformers 5.24, DeepSeek-V4.
    Other names : shared key-value attention, shared KV, K=V, key-value tying, attention_k_eq_v

    The weights keep the promises of the normalizer. With softmax and nothing turned back, the outputs lie in the hull
    of the keys that may be read.

    References
    ----------
    T. Luong, H. Pham and C. Manning, Effective Approaches to Attention-based Neural Machine Translation, EMNLP 2015.

    The Hugging Face team, transformers, version 5.24.

    Examples
    --------
    >>> import numpy as np
    >>> tied_attention(np.zeros((1, 1)), np.array([[1.0], [3.0]]))
    array([[2.]])
    """
    out = attention(q, k, k, mask=mask, score=score, normalize=normalize)
    if turn_back is None:
        return out
    check_callable("a function of the outputs", turn_back=turn_back)
    return turn_back(out)
