"""Relative positions: scores and values that depend on how far the key stands from the query."""

from typing import Any

from array_api_compat import device

from softlookup._arrays import Array, Score, cast, hide, integers, inverse_root, library, promote, table_rows
from softlookup._checks import (
    broadcast_batch,
    check_axes,
    check_broadcast,
    check_equal,
    finite,
    integer_pairs,
    natural,
    pair_shape,
)

__all__ = ["clipped_distance", "disentangled", "read_distances", "shaw", "shaw_values", "skew", "transformer_xl"]


def clipped_distance(q_positions: Array, k_positions: Array, /, *, left: int, right: int) -> Array:
    r"""Number the distances from query to key from zero, the farthest left first, and clip what is farther.

    .. math:: c_{ij} = \min(\max(p_j - p_i, -\text{left}), \text{right}) + \text{left}

    Parameters
    ----------
    q_positions : integer array of shape (..., n)
        Position of each query.
    k_positions : integer array of shape (..., m)
        Position of each key.
    left, right : int
        The largest distances that are told apart, before and after the query. Zero is allowed.

    Returns
    -------
    integer array of shape (..., n, m)
        A row of a table with left + 1 + right rows; the query's own position is row `left`.

    Raises
    ------
    ValueError
        If `left` or `right` is negative, if an array has no axis, or if the leading axes do not broadcast.
    TypeError
        If an array does not hold signed integers, if `left` or `right` is no integer, or if two array libraries are
        mixed.

    See Also
    --------
    positions : Makes the arguments, with a cache too.
    shaw : A score that looks these numbers up.

    Notes
    -----
    Cost : O(n m) time and memory.
    Empty row : none; it hides nothing.

    Also called relative position index or relative_position_matrix.

    Examples
    --------
    >>> import numpy as np
    >>> clipped_distance(np.array([3, 4]), np.arange(5), left=2, right=2)
    array([[0, 0, 1, 2, 3],
           [0, 0, 0, 1, 2]])
    """
    left, right = natural("left", left), natural("right", right)
    query, key = integer_pairs(q_positions=q_positions, k_positions=k_positions)
    distance = key - query
    return library(distance=distance).clip(distance, -left, right) + left


def shaw(a: Array, index: Array, /, *, scale: float | None = None) -> Score:
    r"""Build the score in which each key is moved by a learned vector of its distance.

    .. math:: s_{ij} = \text{scale} \cdot q_i \cdot (k_j + a_{c_{ij}})

    Parameters
    ----------
    a : array of shape (..., H, r, d)
        The table: a vector for each distance. Two axes are one table for all heads.
    index : integer array of shape (..., n, m)
        The row c of each pair, as from `clipped_distance`. One that the table does not have gives NaN.
    scale : float, optional
        What the sum is multiplied by. None means :math:`1/\sqrt d`.

    Returns
    -------
    callable
        The function ``score(q, k)``, for the argument `score` of `attention`.

    Raises
    ------
    ValueError
        If `scale` is not finite. The score raises it if `a` has no row, if an axis is missing, or if `q`, `k`, `a` and
        `index` do not fit.
    TypeError
        If `scale` is no number. The score raises it if an argument is not an array of numbers, if `index` does not hold
        signed integers, or if two array libraries are mixed.

    See Also
    --------
    shaw_values : The same for the values.
    read_distances : The second term without a vector for each pair.

    Notes
    -----
    Slot : score
    Changes : the score also depends on the distance, and on what the query makes of it.
    Cost : O(n m d) time and memory as written; O(n (m + r) d) time and O(n (m + r)) memory by `read_distances`.
    Empty row : decided by the normalizer.
    Promises : prefix stable
    Equals : ``scaled_dot`` when the table is zero; ``scaled_dot`` plus the scaled ``read_distances`` of ``q @ a.T``;
        plus ``skew`` of it when nothing is clipped.
    Year : 2018
    Source : Shaw, Uszkoreit and Vaswani, 2018, Self-Attention with Relative Position Representations, sections 3.1
        and 3.2, arXiv 1803.02155.
    Other names : relative position representations, RPR, relation-aware self-attention, relative_key, Shaw relative
        attention

    References
    ----------
    P. Shaw, J. Uszkoreit and A. Vaswani, Self-Attention with Relative Position Representations, NAACL 2018.

    Examples
    --------
    >>> import numpy as np
    >>> index = clipped_distance(np.arange(2), np.arange(2), left=1, right=1)
    >>> score = shaw(np.array([[10.0], [20.0], [30.0]]), index)
    >>> score(np.array([[1.0], [2.0]]), np.array([[1.0], [1.0]]))
    array([[21., 31.],
           [22., 42.]])
    """
    scale = scale if scale is None else finite("scale", scale)

    def score(q: Array, k: Array, /) -> Array:
        xp, dtype, (q, k, table) = promote(q=q, k=k, a=a)
        moved = k[..., None, :, :] + _vectors(xp, "a", table, index, q, k)
        return cast(xp, _scale(scale, q, 1) * xp.sum(q[..., :, None, :] * moved, axis=-1), dtype)

    return score


def shaw_values(w: Array, a: Array, index: Array, /) -> Array:
    r"""Blend a learned vector of each distance by the weights; the result is added to the blend of the values.

    .. math:: o'_i = \sum_j w_{ij} \, a_{c_{ij}}

    Parameters
    ----------
    w : array of shape (..., H, n, m)
        Weights.
    a : array of shape (..., H, r, e)
        The table: a vector for each distance. Two axes are one table for all heads.
    index : integer array that broadcasts to (..., H, n, m)
        The row c of each pair, as from `clipped_distance`. One that the table does not have makes its row NaN.

    Returns
    -------
    array of shape (..., H, n, e)
        What the distances add to the output.

    Raises
    ------
    ValueError
        If an axis is missing, if `a` has no row, or if `index` does not broadcast.
    TypeError
        If `w` or `a` is not an array of numbers, if `index` does not hold signed integers, or if two array libraries
        are mixed.

    See Also
    --------
    shaw : The same for the scores.

    Notes
    -----
    Slot : none; it is added after the blend
    Changes : the output says not only what was read, but from how far.
    Cost : O(n m e) time and memory.
    Empty row : zeros.
    Promises : none
    Equals : zero when the table is zero; ``weighted_average`` of the table by the weight that each distance gets.
    Year : 2018
    Source : Shaw, Uszkoreit and Vaswani, 2018, Self-Attention with Relative Position Representations, sections 3.1
        and 3.2, arXiv 1803.02155.
    Other names : relative position values, relative value embeddings

    Later keys leave a row alone as far as its weights do, as under a causal mask.

    References
    ----------
    P. Shaw, J. Uszkoreit and A. Vaswani, Self-Attention with Relative Position Representations, NAACL 2018.

    Examples
    --------
    >>> import numpy as np
    >>> index = clipped_distance(np.arange(2), np.arange(2), left=1, right=1)
    >>> shaw_values(np.array([[0.5, 0.5], [0.0, 1.0]]), np.array([[10.0], [20.0], [30.0]]), index)
    array([[25.],
           [20.]])
    """
    library(w=w, index=index)
    xp, dtype, (w, a) = promote(w=w, a=a)
    check_axes("n m", w=w)
    _, (index,) = integers(index=index)
    check_broadcast("index", index, w.shape)
    broadcast_batch(2, w=w, a=a)
    check_axes("r e", a=a)
    rows = table_rows(xp, "a", a[..., None, :, :], index)
    return cast(xp, xp.sum(w[..., None] * rows, axis=-2), dtype)


def read_distances(x: Array, index: Array, /) -> Array:
    r"""Read, for each pair, the number that the query has for the distance of the key.

    .. math:: y_{ij} = x_{i, c_{ij}}

    Parameters
    ----------
    x : array of shape (..., n, r)
        A number for each query and distance, such as ``q @ a.mT`` for a table `a` of r distances.
    index : integer array of shape (..., n, m)
        The column c of each pair, as from `clipped_distance`. One that `x` does not have gives NaN.

    Returns
    -------
    array of shape (..., n, m)
        A number for each pair.

    Raises
    ------
    ValueError
        If an axis is missing, if `x` has no column, if the numbers of queries differ, or if the leading axes do not
        broadcast.
    TypeError
        If `x` is not an array of numbers, if `index` does not hold signed integers, or if two array libraries are
        mixed.

    See Also
    --------
    skew : The same without an index, when nothing is clipped.

    Notes
    -----
    Cost : O(n m) time and memory; with the product before it O(n r d).
    Empty row : none; it hides nothing.

    Also called the gather form.

    Examples
    --------
    >>> import numpy as np
    >>> read_distances(np.array([[1.0, 2.0, 3.0]]), np.array([[0, 0, 1, 2, 2]]))
    array([[1., 1., 2., 3., 3.]])
    """
    library(x=x, index=index)
    xp, dtype, (x,) = promote(x=x)
    _, (index,) = integers(index=index)
    check_axes("n r", x=x)
    check_axes("n m", index=index)
    check_equal("queries", -2, x=x, index=index)
    broadcast_batch(2, x=x, index=index)
    return cast(xp, table_rows(xp, "x", x[..., None], index)[..., 0], dtype)


def skew(x: Array, /, *, keys: int) -> Array:
    r"""Read, for each pair, the number that the query has for the distance of the key, by shifting rows.

    .. math:: y_{ij} = x_{i, \, j - i + n - 1} \quad\text{and zero where there is no such column}

    Parameters
    ----------
    x : array of shape (..., n, r)
        A number for each query and distance. Distances ascend by one from the farthest left that the last query can
        read, which is 1 - m for m keys.
    keys : int
        The number m of keys; the last query stands at the last key. At most r.

    Returns
    -------
    array of shape (..., n, keys)
        A number for each pair.

    Raises
    ------
    ValueError
        If `x` has fewer than two axes, or if `keys` is negative or more than r.
    TypeError
        If `x` is not an array of numbers, or `keys` no integer.

    See Also
    --------
    read_distances : The same with an index.

    Notes
    -----
    Cost : O(n r) time and memory, and no index.
    Empty row : none; it hides nothing.

    With r = n + m - 1 every pair has a column. With r = m only pairs up to the query's own position have one, which is
    enough under a causal mask. Also called rel_shift, relative shift or skewing.

    Examples
    --------
    >>> import numpy as np
    >>> skew(np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]), keys=2)
    array([[2., 3.],
           [4., 5.]])
    """
    xp, dtype, (x,) = promote(x=x)
    check_axes("n r", x=x)
    n, r = x.shape[-2:]
    if natural("keys", keys) > r:
        raise ValueError(f"keys is {keys}; x has {r} columns, and it must not have fewer")
    # One column more moves each row of the flat array one place to the right of the row above.
    more = xp.zeros((*x.shape[:-1], 1), dtype=x.dtype, device=device(x))
    longer = xp.concat([more, x], axis=-1)
    flat = xp.reshape(longer, (*x.shape[:-2], n * (r + 1)))
    shifted = xp.reshape(flat[..., n:], x.shape)[..., :keys]
    rows, columns = xp.arange(n, device=device(x)), xp.arange(keys, device=device(x))
    known = columns[None, :] - rows[:, None] + n - 1 < r
    return cast(xp, hide(xp, shifted, known, 0.0), dtype)


def transformer_xl(u: Array, v: Array, a: Array, index: Array, /, *, scale: float | None = None) -> Score:
    r"""Build the score with two learned queries that belong to nobody: one for contents, one for distances.

    .. math:: s_{ij} = \text{scale} \cdot \bigl((q_i + u) \cdot k_j + (q_i + v) \cdot a_{c_{ij}}\bigr)

    Parameters
    ----------
    u : array of shape (..., H, d)
        What every query of a head asks of contents.
    v : array of shape (..., H, d)
        What every query of a head asks of distances.
    a : array of shape (..., H, r, d)
        A vector for each distance: sinusoids of the distance times a matrix. Two axes are one table for all heads.
    index : integer array of shape (..., n, m)
        The row c of each pair, as from `clipped_distance`. One that the table does not have gives NaN.
    scale : float, optional
        What the sum of both terms is multiplied by. None means :math:`1/\sqrt d`.

    Returns
    -------
    callable
        The function ``score(q, k)``, for the argument `score` of `attention`.

    Raises
    ------
    ValueError
        If `scale` is not finite. The score raises it if `a` has no row, if an axis is missing, or if the arguments do
        not fit.
    TypeError
        If `scale` is no number. The score raises it if an argument is not an array of numbers, if `index` does not hold
        signed integers, or if two array libraries are mixed.

    See Also
    --------
    shaw : The same without the two learned queries.
    sinusoidal : Makes the table before it is projected.

    Notes
    -----
    Slot : score
    Changes : the score depends on the distance through a table that is made from sinusoids, so no distance is unknown.
    Cost : as `shaw`.
    Empty row : decided by the normalizer.
    Promises : prefix stable
    Equals : ``shaw(a, index)`` when u and v are zero.
    Year : 2019
    Source : Dai et al., 2019, Transformer-XL, section 3.3, arXiv 1901.02860; the scale of the released code.
    Other names : Transformer-XL relative positional encoding, XLNet relative attention, rel_attn, r_w_bias, r_r_bias,
        pos_bias_u, pos_bias_v

    References
    ----------
    Z. Dai et al., Transformer-XL: Attentive Language Models Beyond a Fixed-Length Context, ACL 2019.

    Examples
    --------
    >>> import numpy as np
    >>> index = clipped_distance(np.arange(1), np.arange(2), left=0, right=1)
    >>> score = transformer_xl(np.array([1.0]), np.array([3.0]), np.array([[10.0], [20.0]]), index)
    >>> score(np.array([[1.0]]), np.array([[1.0], [1.0]]))
    array([[42., 82.]])
    """
    scale = scale if scale is None else finite("scale", scale)

    def score(q: Array, k: Array, /) -> Array:
        xp, dtype, (q, k, content, distance, table) = promote(q=q, k=k, u=u, v=v, a=a)
        vectors = _vectors(xp, "a", table, index, q, k)
        for name, bias in (("u", content), ("v", distance)):
            check_axes("d", **{name: bias})
            check_broadcast(name, bias, (*broadcast_batch(2, q=q, k=k), q.shape[-1]))
        by_content = (q + content[..., None, :]) @ k.mT
        by_distance = xp.sum((q + distance[..., None, :])[..., :, None, :] * vectors, axis=-1)
        return cast(xp, _scale(scale, q, 1) * (by_content + by_distance), dtype)

    return score


def disentangled(a: Array, b: Array, index: Array, /, *, scale: float | None = None) -> Score:
    r"""Build the score in which the query asks of distances and the key is asked by distances.

    .. math:: s_{ij} = \text{scale} \cdot (q_i \cdot k_j + q_i \cdot a_{c_{ij}} + b_{c_{ij}} \cdot k_j)

    Parameters
    ----------
    a : array of shape (..., H, r, d)
        A key for each distance. Two axes are one table for all heads.
    b : array of shape (..., H, r, d)
        A query for each distance.
    index : integer array of shape (..., n, m)
        The row c of each pair, as from `clipped_distance`. One that a table does not have gives NaN.
    scale : float, optional
        What the sum of the three terms is multiplied by. None means :math:`1/\sqrt{3 d}`.

    Returns
    -------
    callable
        The function ``score(q, k)``, for the argument `score` of `attention`.

    Raises
    ------
    ValueError
        If `scale` is not finite. The score raises it if `a` or `b` has no row, if an axis is missing, or if the
        arguments do not fit.
    TypeError
        If `scale` is no number. The score raises it if an argument is not an array of numbers, if `index` does not hold
        signed integers, or if two array libraries are mixed.

    See Also
    --------
    shaw : The same without the third term.

    Notes
    -----
    Slot : score
    Changes : the score has a term for the distance and the key besides that for the query and the distance.
    Cost : as `shaw`, twice.
    Empty row : decided by the normalizer.
    Promises : prefix stable
    Equals : ``shaw(a, index, scale=scale)`` when b is zero.
    Year : 2020
    Source : He et al., 2021, DeBERTa, section 3.1, arXiv 2006.03654, as the released code computes it.
    Other names : disentangled attention, DeBERTa attention, c2p and p2c, content-to-position, position-to-content,
        relative_key_query

    The tables of DeBERTa are ordered by query minus key, and have no row for its largest distance on one side: reverse
    them, and take ``left=k - 1, right=k`` for its span k.

    References
    ----------
    P. He, X. Liu, J. Gao and W. Chen, DeBERTa: Decoding-enhanced BERT with Disentangled Attention, ICLR 2021.

    Examples
    --------
    >>> import numpy as np
    >>> index = clipped_distance(np.arange(1), np.arange(2), left=0, right=1)
    >>> score = disentangled(np.array([[1.0], [2.0]]), np.array([[10.0], [20.0]]), index, scale=1.0)
    >>> score(np.array([[3.0]]), np.array([[1.0], [1.0]]))
    array([[16., 29.]])
    """
    scale = scale if scale is None else finite("scale", scale)

    def score(q: Array, k: Array, /) -> Array:
        xp, dtype, (q, k, keys, queries) = promote(q=q, k=k, a=a, b=b)
        query, key = q[..., :, None, :], k[..., None, :, :]
        asked, asking = (_vectors(xp, name, x, index, q, k) for name, x in (("a", keys), ("b", queries)))
        return cast(xp, _scale(scale, q, 3) * xp.sum(query * (key + asked) + asking * key, axis=-1), dtype)

    return score


def _scale(scale: float | None, q: Array, terms: int) -> float:
    return inverse_root(terms * q.shape[-1]) if scale is None else scale


def _vectors(xp: Any, name: str, table: Array, index: Array, q: Array, k: Array) -> Array:
    """Return the row of the table for each pair, ``(..., n, m, d)``, once everything is found to fit."""
    library(q=q, index=index)
    shape = pair_shape(q, k)
    _, (index,) = integers(index=index)
    check_axes("n m", index=index)
    check_broadcast("index", index, shape)
    check_axes("r d", **{name: table})
    check_equal("columns", -1, q=q, **{name: table})
    check_broadcast(name, table, (*shape[:-2], *table.shape[-2:]))
    return table_rows(xp, name, table[..., None, :, :], index)
