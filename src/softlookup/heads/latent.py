"""Latents: keys and values of many heads are made from a few numbers that are kept for each token."""

from typing import Any

from softlookup._arrays import Array, cast, hide_unread, inverse_root, promote
from softlookup._checks import (
    allowed_pairs,
    broadcast_batch,
    check_axes,
    check_broadcast,
    check_equal,
    check_projects,
    check_shape,
    group_size,
)
from softlookup.heads.grouped_query import _in_groups, _in_heads
from softlookup.lookup.attention import attention, scaled_dot

__all__ = [
    "absorb_queries",
    "absorbed_latent_attention",
    "expand_latent",
    "latent_attention",
    "latent_heads",
    "reused_values",
    "tensor_product_heads",
    "tied_heads",
]


def latent_attention(
    q: Array,
    c: Array,
    k_rot: Array,
    w_k: Array,
    w_v: Array,
    /,
    *,
    mask: Array | None = None,
    scale: float | None = None,
) -> Array:
    r"""Make the keys and values of every head from one latent, then attend.

    .. math:: \operatorname{out}_{hi} = \sum_j w_{hij} \, c_j W^V_h, \qquad
              w_{hi} = \operatorname{softmax}_j \frac{q_{hi} \cdot [c_j W^K_h \mid k^R_j]}{\sqrt{d + d_R}}

    Parameters
    ----------
    q : array of shape (..., H, n, d + d_R)
        Queries: d numbers for the content, then d_R for the position, which are already rotated.
    c : array of shape (..., G, m, r)
        Latents, as they are cached: after their norm. G = 1, or no such axis, is one latent for all heads; otherwise G
        must divide H, and head h reads latent ``h // (H / G)``.
    k_rot : array of shape (..., 1, m, d_R)
        The part of the keys that carries the position, already rotated; all heads share it. G such parts are fine, too.
    w_k : array of shape (..., H, r, d)
        Makes the content part of each head's keys.
    w_v : array of shape (..., H, r, e)
        Makes each head's values.
    mask : boolean array that broadcasts to (..., H, n, m), optional
        True where the query may read the item.
    scale : float, optional
        What the scores are multiplied by. None means one over the root of d + d_R, the width of a query.

    Returns
    -------
    array of shape (..., H, n, e)
        One blend for each head and query.

    Raises
    ------
    ValueError
        If an axis is missing, if widths, heads or items do not agree, if leading axes do not broadcast, if `mask` would
        enlarge the scores, or if `scale` is not finite.
    TypeError
        If an argument is not an array of numbers, if `mask` is not boolean, if two array libraries are mixed, or if
        `scale` is not a number.

    See Also
    --------
    absorbed_latent_attention : The same numbers without making keys and values.
    latent_heads : The keys and values, for a bias, a sink or another normalizer.

    Notes
    -----
    Slot : where the keys and values come from
    Changes : all heads share r + d_R numbers for each item; keys and values are linear in them.
    Cost : O(H m r (d + e) + H n m (d + d_R + e)) time; O(m (r + d_R)) numbers to keep, O(H n m + H m (d + d_R + e))
        memory.
    Empty row : a query that may read nothing gets zeros.
    Promises : prefix stable
    Equals : ``absorbed_latent_attention``; ``attention`` with the heads of ``latent_heads``; multi-query attention for
        one head of the queries' width, when both projections are the identity and nothing is rotated.
    Year : 2024
    Source : DeepSeek-AI, 2024, DeepSeek-V2, sections 2.1.2 and 2.1.3, arXiv 2405.04434; more than one latent: Zadouri
        et al., 2025, Hardware-Efficient Attention for Fast Decoding, section 3.3.2, arXiv 2505.21487.
    Other names : multi-head latent attention, MLA, naive MLA, decoupled rotary position, decoupled RoPE, grouped latent
        attention, GLA, GLA-2, latent KV cache, low-rank key-value joint compression

    A latent that no query may read can hold NaN or infinity without effect on values and gradients.

    References
    ----------
    DeepSeek-AI, DeepSeek-V2: A Strong, Economical, and Efficient Mixture-of-Experts Language Model, 2024.

    Examples
    --------
    >>> import numpy as np
    >>> c, k_rot = np.array([[1.0], [3.0]]), np.array([[0.0], [0.0]])
    >>> latent_attention(np.zeros((2, 1, 2)), c, k_rot, np.ones((2, 1, 1)), np.array([[[1.0]], [[10.0]]]))
    array([[[ 2.]],
    <BLANKLINE>
           [[20.]]])
    """
    xp, dtype, (q, c, k_rot, w_k, w_v) = promote(q=q, c=c, k_rot=k_rot, w_k=w_k, w_v=w_v)
    scale = _scale(q, c, k_rot, w_k, w_v, scale)
    c, k_rot = (_without_unread(xp, name, x, q, mask) for name, x in (("c", c), ("k_rot", k_rot)))
    k, v = latent_heads(c, k_rot, w_k, w_v)
    return cast(xp, attention(q, k, v, mask=mask, score=scaled_dot(scale=scale)), dtype)


def absorbed_latent_attention(
    q: Array,
    c: Array,
    k_rot: Array,
    w_k: Array,
    w_v: Array,
    /,
    *,
    mask: Array | None = None,
    scale: float | None = None,
) -> Array:
    r"""Compare with the latents and blend the latents; make no keys and no values.

    .. math:: \operatorname{out}_{hi} = \Big( \sum_j w_{hij} \, c_j \Big) W^V_h, \qquad
              w_{hi} = \operatorname{softmax}_j
              \frac{[q^C_{hi} W_h^{K\top} \mid q^R_{hi}] \cdot [c_j \mid k^R_j]}{\sqrt{d + d_R}}

    Parameters
    ----------
    q : array of shape (..., H, n, d + d_R)
        Queries: d numbers for the content, then d_R for the position, which are already rotated.
    c : array of shape (..., G, m, r)
        Latents, as in `latent_attention`.
    k_rot : array of shape (..., 1, m, d_R)
        The part of the keys that carries the position, already rotated.
    w_k : array of shape (..., H, r, d)
        Makes the content part of each head's keys.
    w_v : array of shape (..., H, r, e)
        Makes each head's values.
    mask : boolean array that broadcasts to (..., H, n, m), optional
        True where the query may read the item.
    scale : float, optional
        What the scores are multiplied by. None means one over the root of d + d_R, the width of a query *before* it is
        absorbed.

    Returns
    -------
    array of shape (..., H, n, e)
        One blend for each head and query.

    Raises
    ------
    ValueError
        Where `latent_attention` raises it.
    TypeError
        Where `latent_attention` raises it.

    See Also
    --------
    latent_attention : The definition.
    absorb_queries : The queries that are compared with the latents.

    Notes
    -----
    Slot : where the keys and values come from
    Changes : nothing; the products are taken in another order. Seen from the cache it is multi-query attention with
        keys of width r + d_R and values of width r.
    Cost : O(H n r (d + e) + H n m (2 r + d_R)) time; O(m (r + d_R)) numbers to keep, O(H n m + H n r) memory.
    Empty row : a query that may read nothing gets zeros.
    Promises : prefix stable
    Equals : ``latent_attention``, to rounding.
    Year : 2024
    Source : DeepSeek-AI, 2024, DeepSeek-V2, section 2.1.2, arXiv 2405.04434.
    Other names : absorbed MLA, weight absorption, matrix absorption, MQA mode of MLA, latent decoding

    A latent that no query may read can hold NaN or infinity without effect on values and gradients.

    References
    ----------
    DeepSeek-AI, DeepSeek-V2: A Strong, Economical, and Efficient Mixture-of-Experts Language Model, 2024.

    Examples
    --------
    >>> import numpy as np
    >>> c, k_rot = np.array([[1.0], [3.0]]), np.array([[0.0], [0.0]])
    >>> absorbed_latent_attention(np.zeros((2, 1, 2)), c, k_rot, np.ones((2, 1, 1)), np.array([[[1.0]], [[10.0]]]))
    array([[[ 2.]],
    <BLANKLINE>
           [[20.]]])
    """
    xp, dtype, (q, c, k_rot, w_k, w_v) = promote(q=q, c=c, k_rot=k_rot, w_k=w_k, w_v=w_v)
    score = scaled_dot(scale=_scale(q, c, k_rot, w_k, w_v, scale))
    blend = attention(absorb_queries(q, w_k), _join(xp, c, k_rot, "c"), c, mask=mask, score=score)
    return cast(xp, blend @ w_v, dtype)


def absorb_queries(q: Array, w_k: Array, /) -> Array:
    r"""Turn queries for the keys into queries for the latents that the keys are made of.

    .. math:: \tilde q_{hi} = [q^C_{hi} W_h^{K\top} \mid q^R_{hi}]

    Parameters
    ----------
    q : array of shape (..., H, n, d + d_R)
        Queries: d numbers for the content, then d_R for the position.
    w_k : array of shape (..., H, r, d)
        Makes the content part of each head's keys from the latent.

    Returns
    -------
    array of shape (..., H, n, r + d_R)
        Queries to compare with ``[c | k_rot]``. The scale stays that of the queries given.

    Raises
    ------
    ValueError
        If an axis is missing, if the keys are wider than the queries, or if the leading axes do not broadcast.
    TypeError
        If an argument is not an array of numbers, or if two array libraries are mixed.

    See Also
    --------
    absorbed_latent_attention : Uses these queries.

    Notes
    -----
    Cost : O(H n r d) time.
    Empty row : none; nothing is read.

    Examples
    --------
    >>> import numpy as np
    >>> absorb_queries(np.array([[[2.0, 7.0]]]), np.array([[[1.0], [10.0]]]))
    array([[[ 2., 20.,  7.]]])
    """
    xp, dtype, (q, w_k) = promote(q=q, w_k=w_k)
    check_axes("n d", q=q)
    check_axes("r d", w_k=w_k)
    d = w_k.shape[-1]
    if q.shape[-1] < d:
        raise ValueError(f"q has {q.shape[-1]} columns, w_k makes keys of {d}; a query must not be narrower")
    broadcast_batch(2, q=q, w_k=w_k)
    return cast(xp, _join(xp, q[..., :d] @ w_k.mT, q[..., d:], "q"), dtype)


def latent_heads(c: Array, k_rot: Array, w_k: Array, w_v: Array, /) -> tuple[Array, Array]:
    r"""Make the keys and values of every head from latents.

    .. math:: k_{hj} = [c_j W^K_h \mid k^R_j], \qquad v_{hj} = c_j W^V_h

    Parameters
    ----------
    c : array of shape (..., G, m, r)
        Latents, as in `latent_attention`.
    k_rot : array of shape (..., 1, m, d_R)
        The part of the keys that carries the position, already rotated. Its width may be zero.
    w_k : array of shape (..., H, r, d)
        Makes the content part of each head's keys.
    w_v : array of shape (..., H, r, e)
        Makes each head's values.

    Returns
    -------
    k : array of shape (..., H, m, d + d_R)
        Keys: the content, then the position.
    v : array of shape (..., H, m, e)
        Values.

    Raises
    ------
    ValueError
        If an axis is missing, if widths, heads or items do not agree, or if leading axes do not broadcast.
    TypeError
        If an argument is not an array of numbers, or if two array libraries are mixed.

    See Also
    --------
    latent_attention : Attends with these heads.
    expand_latent : One of the two products.

    Notes
    -----
    Cost : O(H m r (d + e)) time, O(H m (d + d_R + e)) memory.
    Empty row : none; nothing is read.

    Examples
    --------
    >>> import numpy as np
    >>> w_k, w_v = np.array([[[1.0]], [[2.0]]]), np.array([[[10.0]], [[20.0]]])
    >>> k, v = latent_heads(np.array([[3.0]]), np.array([[5.0]]), w_k, w_v)
    >>> k
    array([[[3., 5.]],
    <BLANKLINE>
           [[6., 5.]]])
    """
    xp, dtype, (c, k_rot, w_k, w_v) = promote(c=c, k_rot=k_rot, w_k=w_k, w_v=w_v)
    k = _join(xp, expand_latent(c, w_k), k_rot, "c")
    return cast(xp, k, dtype), cast(xp, expand_latent(c, w_v), dtype)


def expand_latent(c: Array, w: Array, /) -> Array:
    r"""Make something of every head from a latent that the heads share.

    .. math:: x_{hj} = c_j W_h

    Parameters
    ----------
    c : array of shape (..., G, m, r)
        Latents. G = 1, or no such axis, is one for all heads; otherwise G must divide H, and head h is made from latent
        ``h // (H / G)``.
    w : array of shape (..., H, r, d)
        One matrix for each head.

    Returns
    -------
    array of shape (..., H, m, d)
        What each head has for each item.

    Raises
    ------
    ValueError
        If an axis is missing, if the widths do not agree, if G does not divide H, or if the axes before do not
        broadcast.
    TypeError
        If an argument is not an array of numbers, or if two array libraries are mixed.

    See Also
    --------
    latent_heads : Keys and values from one latent.

    Notes
    -----
    Slot : where the queries, keys or values come from
    Changes : the projection of each head is a product of two matrices, of which the first is shared by all heads.
    Cost : O(H m r d) time, O(H m d) memory.
    Empty row : none; nothing is read.
    Promises : prefix stable
    Equals : a projection of each head of its own when r is the width of the inputs and the first matrix the identity.
    Year : 2024
    Source : DeepSeek-AI, 2024, DeepSeek-V2, equations 10, 11 and 13, arXiv 2405.04434; with one wide key and value:
        Hu et al., 2024, Multi-matrix Factorization Attention, arXiv 2412.19255.
    Other names : up-projection, low-rank queries, query compression, q LoRA, multi-matrix factorization attention, MFA

    References
    ----------
    DeepSeek-AI, DeepSeek-V2: A Strong, Economical, and Efficient Mixture-of-Experts Language Model, 2024.

    Examples
    --------
    >>> import numpy as np
    >>> expand_latent(np.array([[1.0, 2.0]]), np.array([[[1.0], [0.0]], [[1.0], [1.0]]]))
    array([[[1.]],
    <BLANKLINE>
           [[3.]]])
    """
    xp, dtype, (c, w) = promote(c=c, w=w)
    if c.ndim < 3 or w.ndim < 3:
        check_projects(c=c, w=w)
        return cast(xp, c @ w, dtype)
    group_size("c", c, w.shape[-3], f"w's {w.shape[-3]}")
    c, w = c[..., None, :, :], _in_groups(xp, w, c)
    check_projects(c=c, w=w)
    return cast(xp, _in_heads(xp, c @ w), dtype)


def tensor_product_heads(a: Array, b: Array, /) -> Array:
    r"""Make the rows of all heads as a mean of products of a row over the heads and a row over the columns.

    .. math:: x_{hi} = \frac{1}{R} \sum_{r=1}^{R} a_{irh} \, b_{ir}

    Parameters
    ----------
    a : array of shape (..., n, R, H)
        How much of each term each head gets. Shape (R, H): the same for all positions.
    b : array of shape (..., n, R, d)
        The terms; for queries and keys they are already rotated.

    Returns
    -------
    array of shape (..., H, n, d)
        Queries, keys or values of all heads.

    Raises
    ------
    ValueError
        If an axis is missing, if there is no term or not as many in `a` as in `b`, or if the leading axes do not
        broadcast.
    TypeError
        If an argument is not an array of numbers, or if two array libraries are mixed.

    See Also
    --------
    latent_heads : Keys and values that are linear in what is kept.

    Notes
    -----
    Slot : where the queries, keys and values come from
    Changes : for each position, the matrix of all heads has a rank of at most R, and both of its factors depend on the
        input.
    Cost : O(n R H d) time; R (H + d) numbers to keep for each item, for keys and again for values.
    Empty row : none; nothing is read.
    Promises : prefix stable
    Equals : the heads themselves when `a` is R times the identity; grouped-query heads when `a` is R times a table that
        marks the heads of each group; one head for all when R is one and `a` is one.
    Year : 2025
    Source : Zhang et al., 2025, Tensor Product Attention Is All You Need, sections 3 and 4, arXiv 2501.06425.
    Other names : tensor product attention, TPA, T6, contextual factorization, CP decomposition of heads

    References
    ----------
    Y. Zhang et al., Tensor Product Attention Is All You Need, 2025.

    Examples
    --------
    >>> import numpy as np
    >>> tensor_product_heads(np.array([[[1.0, 10.0]]]), np.array([[[2.0, 3.0]]]))
    array([[[ 2.,  3.]],
    <BLANKLINE>
           [[20., 30.]]])
    """
    xp, dtype, (a, b) = promote(a=a, b=b)
    check_axes("R H", a=a)
    check_axes("n R d", b=b)
    check_equal("terms", -2, a=a, b=b)
    if b.shape[-2] == 0:
        raise ValueError(f"b has shape {tuple(b.shape)}; it needs at least one term")
    broadcast_batch(2, a=a, b=b)
    x = a.mT @ b / b.shape[-2]
    return cast(xp, xp.moveaxis(x, -3, -2), dtype)


def tied_heads(kv: Array, k_rot: Array, /) -> tuple[Array, Array]:
    r"""Use one array as values, and its first columns as the part of the keys without a position.

    .. math:: k_{gj} = [x_{gj, \, 1 : d - d_R} \mid k^R_j], \qquad v_{gj} = x_{gj}

    Parameters
    ----------
    kv : array of shape (..., G, m, d)
        What keys and values share, for each group of heads.
    k_rot : array of shape (..., 1, m, d_R)
        The part of the keys that carries the position, already rotated; all groups share it.

    Returns
    -------
    k : array of shape (..., G, m, d)
        Keys.
    v : array of shape (..., G, m, d)
        Values.

    Raises
    ------
    ValueError
        If an axis is missing, if `k_rot` is wider than `kv`, if there is not one row for each item, or if the leading
        axes do not broadcast.
    TypeError
        If an argument is not an array of numbers, or if two array libraries are mixed.

    See Also
    --------
    latent_heads : Keys and values are made from what they share.

    Notes
    -----
    Slot : where the keys and values come from
    Changes : keys and values are one array; only a part of the key is rotated.
    Cost : G d + d_R numbers to keep for each item, instead of 2 G d.
    Empty row : none; nothing is read.
    Promises : prefix stable
    Equals : grouped-query attention whose value is its key when nothing is rotated.
    Year : 2025
    Source : Zadouri et al., 2025, Hardware-Efficient Attention for Fast Decoding, section 3.3.1, arXiv 2505.21487, and
        its released code.
    Other names : grouped-tied attention, GTA, tied KV

    References
    ----------
    T. Zadouri, H. Strauss and T. Dao, Hardware-Efficient Attention for Fast Decoding, 2025.

    Examples
    --------
    >>> import numpy as np
    >>> k, v = tied_heads(np.array([[1.0, 2.0]]), np.array([[9.0]]))
    >>> k, v
    (array([[1., 9.]]), array([[1., 2.]]))
    """
    xp, dtype, (kv, k_rot) = promote(kv=kv, k_rot=k_rot)
    check_axes("m d", kv=kv, k_rot=k_rot)
    plain = kv.shape[-1] - k_rot.shape[-1]
    if plain < 0:
        raise ValueError(f"k_rot has {k_rot.shape[-1]} columns, kv has {kv.shape[-1]}; it must not be wider")
    return cast(xp, _join(xp, kv[..., :plain], k_rot, "kv"), dtype), cast(xp, kv, dtype)


def reused_values(k: Array, w: Array, alpha: Array, /) -> Array:
    r"""Make the values from the keys that are kept anyway.

    .. math:: v_j = k_j + \alpha \odot (k_j W)

    Parameters
    ----------
    k : array of shape (..., m, d)
        Keys, before they are rotated.
    w : array of shape (..., d, d)
        A matrix.
    alpha : array of shape (..., d)
        How much of the product is added to each column. It may be learned from zero on.

    Returns
    -------
    array of shape (..., m, d)
        Values.

    Raises
    ------
    ValueError
        If an axis is missing, if `w` does not map keys to keys, or if `alpha` does not broadcast.
    TypeError
        If an argument is not an array of numbers, or if two array libraries are mixed.

    See Also
    --------
    tied_heads : The other way to keep one array.

    Notes
    -----
    Slot : where the values come from
    Changes : keys and values are one array up to a linear map, so that only the keys are kept.
    Cost : O(m d^2) time; d numbers to keep for each item and head.
    Empty row : none; nothing is read.
    Promises : prefix stable
    Equals : the keys themselves when `alpha` is zero.
    Year : 2024
    Source : Hu et al., 2024, Multi-matrix Factorization Attention, arXiv 2412.19255, abstract.
    Other names : MFA-Key-Reuse, MFA-KR, key reuse

    References
    ----------
    J. Hu et al., Multi-matrix Factorization Attention, 2024.

    Examples
    --------
    >>> import numpy as np
    >>> reused_values(np.array([[1.0, 2.0]]), np.array([[0.0, 1.0], [1.0, 0.0]]), np.array([0.0, 10.0]))
    array([[ 1., 12.]])
    """
    xp, dtype, (k, w, alpha) = promote(k=k, w=w, alpha=alpha)
    check_projects(k=k, w=w)
    check_shape("w", w, (*w.shape[:-1], w.shape[-2]))
    check_axes("d", alpha=alpha)
    check_broadcast("alpha", alpha, (*broadcast_batch(2, k=k, w=w), k.shape[-1]))
    return cast(xp, k + alpha[..., None, :] * (k @ w), dtype)


def _scale(q: Array, c: Array, k_rot: Array, w_k: Array, w_v: Array, scale: float | None) -> float:
    """Return the scale of the scores, that of the whole query, after a check that heads, items and widths agree."""
    check_axes("n d", q=q)
    check_axes("m r", c=c)
    check_axes("m d", k_rot=k_rot)
    check_equal("items", -2, c=c, k_rot=k_rot)
    heads = q.shape[-3] if q.ndim > 2 else 1
    for name, x in (("c", c), ("k_rot", k_rot)):
        if x.ndim > 2:
            group_size(name, x, heads, f"q's {heads}")
    for name, w in (("w_k", w_k), ("w_v", w_v)):
        check_axes("r d", **{name: w})
        if w.shape[-2] != c.shape[-1]:
            raise ValueError(f"{name} has {w.shape[-2]} rows, c has {c.shape[-1]} columns; they must be equal")
        if w.ndim > 2:
            check_axes("H n d", q=q)
            check_equal("heads", -3, **{name: w, "q": q})
    d, rotated = w_k.shape[-1], k_rot.shape[-1]
    if q.shape[-1] != d + rotated:
        raise ValueError(f"q has {q.shape[-1]} columns; it needs {d} for w_k and {rotated} for k_rot")
    return inverse_root(d + rotated) if scale is None else scale


def _join(xp: Any, x: Array, rotated: Array, name: str) -> Array:
    """Return ``[x | rotated]``, with the axes before the rows broadcast."""
    check_axes("m d", **{name: x, "k_rot": rotated})
    check_equal("items", -2, **{name: x, "k_rot": rotated})
    batch = broadcast_batch(2, **{name: x, "k_rot": rotated})
    return xp.concat([xp.broadcast_to(part, (*batch, *part.shape[-2:])) for part in (x, rotated)], axis=-1)


def _without_unread(xp: Any, name: str, x: Array, q: Array, mask: Array | None) -> Array:
    """Return what heads share, ``x (..., G, m, r)``, with zeros where no query of the heads that share it may read."""
    if mask is None:
        return x
    heads, groups = (a.shape[-3] if a.ndim > 2 else 1 for a in (q, x))
    n, m = q.shape[-2], x.shape[-2]
    some_heads = (heads,) if max(q.ndim, x.ndim) > 2 else ()
    mask = allowed_pairs(xp, "mask", mask, (*broadcast_batch(3, **{"q": q, name: x}), *some_heads, n, m))
    if some_heads:
        mask = xp.reshape(mask, (*mask.shape[:-3], groups, heads // groups * n, m))
    return hide_unread(xp, x, mask)
