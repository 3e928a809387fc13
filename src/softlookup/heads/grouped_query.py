"""Query heads that share key and value heads, and what they save."""

from typing import Any

from softlookup._arrays import Array, Normalizer, Score, cast, hide_unread, promote
from softlookup._checks import (
    allowed_pairs,
    broadcast_batch,
    check_axes,
    check_broadcast,
    check_items,
    group_size,
    natural,
    positive,
    positive_integer,
)
from softlookup.lookup.attention import attention_scores, scaled_dot
from softlookup.lookup.softmax import softmax
from softlookup.lookup.weighted_average import weighted_average

__all__ = ["cache_bytes", "grouped_query_attention", "pool_heads", "repeat_heads"]


def repeat_heads(x: Array, /, *, heads: int) -> Array:
    r"""Write each head out once for each query head that reads it; neighbors share.

    .. math:: y_h = x_{\lfloor h / G \rfloor}, \qquad G = H / H_{kv}

    Parameters
    ----------
    x : array of shape (..., H_kv, m, d)
        Keys or values.
    heads : int
        The number H of query heads, a multiple of the heads of `x`.

    Returns
    -------
    array of shape (..., H, m, d)
        One key head for each query head.

    Raises
    ------
    ValueError
        If an axis is missing, or if the heads of `x` do not divide `heads`.
    TypeError
        If `x` is not an array of numbers, or if `heads` is not an integer.

    See Also
    --------
    grouped_query_attention : Shares without copies.
    pool_heads : From many heads to few.

    Notes
    -----
    Cost : O(H m d) time and memory, for numbers that were there already.
    Empty row : none; nothing is read.

    Also called repeat_kv, repeat_interleave or expanding the key heads. Tiling, ``h % H_kv``, is another order.

    Examples
    --------
    >>> import numpy as np
    >>> repeat_heads(np.array([[[1.0]], [[2.0]]]), heads=4).ravel()
    array([1., 1., 2., 2.])
    """
    heads = positive_integer("heads", heads)
    xp, dtype, (x,) = promote(x=x)
    check_axes("H m d", x=x)
    return cast(xp, xp.repeat(x, group_size("x", x, heads, f"heads = {heads}"), axis=-3), dtype)


def grouped_query_attention(
    q: Array,
    k: Array,
    v: Array,
    /,
    *,
    mask: Array | None = None,
    bias: Array | None = None,
    score: Score = scaled_dot(),
    normalize: Normalizer = softmax,
) -> Array:
    r"""Let groups of query heads read one key head and one value head, without writing these out.

    .. math:: \operatorname{out}_{hi} = \sum_j w_{hij} \, v_{\lfloor h / G_v \rfloor j}, \qquad
              w_{hi} = \operatorname{normalize}(\operatorname{score}(q_{hi}, k_{\lfloor h / G_k \rfloor}) +
              \text{bias}_{hi}, \ \text{mask}_{hi})

    Parameters
    ----------
    q : array of shape (..., H, n, d)
        Queries.
    k : array of shape (..., H_k, m, d)
        Keys; their number of heads divides H, with the quotient :math:`G_k`.
    v : array of shape (..., H_v, m, e)
        Values; their number of heads, too, divides H. It may differ from that of `k`.
    mask : boolean array that broadcasts to (..., H, n, m), optional
        True where the query may read the key.
    bias : array that broadcasts to (..., H, n, m), optional
        Numbers that are added to the scores.
    score : callable
        Compares: ``score(q, k) -> s``, here with ``q (..., H_k, G, n, d)`` and ``k (..., H_k, 1, m, d)``.
    normalize : callable
        Turns each row of scores into weights: ``normalize(s, allowed) -> w`` with ``s (..., H, n, m)``.

    Returns
    -------
    array of shape (..., H, n, e)
        One blend for each query head and query.

    Raises
    ------
    ValueError
        If an axis is missing (the axis of heads is needed here), if heads do not divide, and where `attention` raises
        it.
    TypeError
        Where `attention` raises it.

    See Also
    --------
    attention : The definition, which repeats the heads.
    repeat_heads : What is saved here.

    Notes
    -----
    Slot : keys and values, which several query heads share
    Changes : fewer key and value heads than query heads; each query head keeps its own weights.
    Cost : O(H n m (d + e)) time, as with a key head for each query head; O((H_k d + H_v e) m) memory for keys and
        values, and O(H n m) for the weights.
    Empty row : a query that may read nothing gets zeros.
    Promises : non-negative, sums to one, inside the hull, shift invariant, prefix stable
    Equals : ``attention``, for the same arguments and for keys and values written out with ``repeat_heads``.
    Year : 2019
    Source : Shazeer, 2019, Fast Transformer Decoding, section 3, arXiv 1911.02150, for one key head; Ainslie et al.,
        2023, GQA, section 2.2, arXiv 2305.13245, for groups.
    Other names : grouped-query attention, GQA, multi-query attention, MQA, one write-head, grouped heads, shared key
        heads, enable_gqa, repeat_kv, num_key_value_heads

    A key or a value that no query may read can hold NaN or infinity without effect on values and gradients. Where some
    queries may read it, the outputs of the others stay what they are; their gradients may not.

    References
    ----------
    N. Shazeer, Fast Transformer Decoding: One Write-Head is All You Need, 2019.

    J. Ainslie et al., GQA: Training Generalized Multi-Query Transformer Models from Multi-Head Checkpoints, EMNLP 2023.

    Examples
    --------
    Two query heads, one key head; equal scores give each the mean.

    >>> import numpy as np
    >>> grouped_query_attention(np.zeros((2, 1, 1)), np.ones((1, 2, 1)), np.array([[[2.0], [4.0]]]))
    array([[[3.]],
    <BLANKLINE>
           [[3.]]])
    """
    xp, dtype, (q, k, v, bias) = promote(q=q, k=k, v=v, bias=bias)
    check_axes("H n d", q=q)
    check_axes("H m d", k=k)
    check_axes("H m e", v=v)
    check_items(k, v)
    for name, x in (("k", k), ("v", v)):
        group_size(name, x, q.shape[-3], f"q's {q.shape[-3]}")
    broadcast_batch(3, q=q, k=k, v=v)
    shape = (*broadcast_batch(3, q=q, k=k), q.shape[-3], q.shape[-2], k.shape[-2])
    mask = allowed_pairs(xp, "mask", mask, shape)
    if mask is not None:
        readers = _in_groups(xp, mask, k)
        rows = readers.shape[-3] * readers.shape[-2]
        k = hide_unread(xp, k, xp.reshape(readers, (*readers.shape[:-3], rows, readers.shape[-1])))
    s = _in_heads(xp, attention_scores(_in_groups(xp, q, k), k[..., None, :, :], score=score))
    if bias is not None:
        check_broadcast("bias", bias, s.shape)
        s = s + bias
    w = _in_groups(xp, normalize(s, mask), v)
    allowed = None if mask is None else _in_groups(xp, mask, v)
    return cast(xp, _in_heads(xp, weighted_average(w, v[..., None, :, :], allowed=allowed)), dtype)


def pool_heads(w: Array, /, *, heads: int) -> Array:
    r"""Replace each group of neighboring heads by its mean.

    .. math:: y_g = \frac{1}{G} \sum_{h = gG}^{gG + G - 1} w_h, \qquad G = H / H_{kv}

    Parameters
    ----------
    w : array of shape (..., H, D, d)
        Projections of keys or of values, one for each head; or keys or values themselves.
    heads : int
        The number of heads that are to be left, a divisor of H.

    Returns
    -------
    array of shape (..., H_kv, D, d)
        One projection for each group.

    Raises
    ------
    ValueError
        If an axis is missing, or if `heads` does not divide the heads of `w`.
    TypeError
        If `w` is not an array of numbers, or if `heads` is not an integer.

    See Also
    --------
    repeat_heads : The way back, if the heads of each group were equal.

    Notes
    -----
    Cost : O(H D d) time.
    Empty row : none; nothing is read.

    Also called mean pooling of heads, checkpoint conversion. A projection is linear, so pooled projections give pooled
    keys and values.

    Examples
    --------
    >>> import numpy as np
    >>> pool_heads(np.array([[[1.0]], [[3.0]], [[10.0]], [[20.0]]]), heads=2).ravel()
    array([ 2., 15.])
    """
    heads = positive_integer("heads", heads)
    xp, dtype, (w,) = promote(w=w)
    check_axes("H D d", w=w)
    if w.shape[-3] % heads:
        raise ValueError(f"heads is {heads}, which does not divide the {w.shape[-3]} heads of w")
    groups = xp.reshape(w, (*w.shape[:-3], heads, w.shape[-3] // heads, *w.shape[-2:]))
    return cast(xp, xp.mean(groups, axis=-3), dtype)


def cache_bytes(n: Array, /, *, heads: int, d: int, e: int | None = None, layers: int = 1, size: float = 2) -> Array:
    r"""Compute how many bytes the keys and values of n tokens take while a model decodes.

    .. math:: \text{bytes} = \text{size} \cdot \text{layers} \cdot n \cdot \text{heads} \cdot (d + e)

    Parameters
    ----------
    n : array
        Numbers of tokens, those of all sequences together.
    heads : int
        The number of key heads that are stored.
    d : int
        Width of a key.
    e : int, optional
        Width of a value; None means that of a key. Zero where the values are computed from what is stored as keys.
    layers : int
        Layers that store keys and values of their own.
    size : float
        Bytes for each number: 2 for float16 and bfloat16, 1 for eight bits, 0.5 for four.

    Returns
    -------
    array
        Bytes, in the shape of `n`. They are floating point numbers, since 32-bit integers would overflow.

    Raises
    ------
    ValueError
        If `heads`, `layers` or `size` is not positive, or if a width is negative.
    TypeError
        If `n` is not an array of numbers, or if a number is of the wrong type.

    See Also
    --------
    grouped_query_attention : Stores fewer heads than it asks with.

    Notes
    -----
    Cost : one product for each number.
    Empty row : no tokens take no bytes.

    Examples
    --------
    >>> import numpy as np
    >>> cache_bytes(np.array([1.0, 1000.0]), heads=8, d=128)
    array([   4096., 4096000.])
    """
    heads, layers = positive_integer("heads", heads), positive_integer("layers", layers)
    d, size = natural("d", d), positive("size", size)
    e = d if e is None else natural("e", e)
    xp, dtype, (n,) = promote(n=n)
    return cast(xp, n * (size * layers * heads * (d + e)), dtype)


def _in_groups(xp: Any, x: Array, shared: Array) -> Array:
    """Return ``x (..., H, n, m)`` as ``(..., H_kv, G, n, m)``, with the heads of `shared`."""
    groups = shared.shape[-3]
    return xp.reshape(x, (*x.shape[:-3], groups, x.shape[-3] // groups, *x.shape[-2:]))


def _in_heads(xp: Any, x: Array) -> Array:
    """Return ``x (..., H_kv, G, n, m)`` as ``(..., H, n, m)``."""
    return xp.reshape(x, (*x.shape[:-4], x.shape[-4] * x.shape[-3], *x.shape[-2:]))
