"""Positions that the text decides on: counting what a query wants counted, and turning past every item."""

import math
from typing import Any

from array_api_compat import device

from softlookup._arrays import Array, Score, cast, hide_unread, inverse_root, library, promote
from softlookup._checks import (
    allowed_pairs,
    broadcast_batch,
    check_axes,
    check_broadcast,
    check_equal,
    finite,
    pair_shape,
)
from softlookup.lookup.attention import scaled_dot
from softlookup.normalizers.pointwise import sigmoid
from softlookup.positions.relative import read_distances

__all__ = ["cope", "cope_positions", "path", "path_by_queries", "path_step", "path_transfer", "read_between"]


def cope_positions(s: Array, allowed: Array | None = None, /, *, largest: float | None = None) -> Array:
    r"""Count, from each key up to the query, the keys whose gates are open.

    .. math:: p_{ij} = \min\Big( \sum_{l \ge j,\ l \in A_i} g_{il}, \ P \Big), \qquad
              g_{il} = \frac{1}{1 + e^{-s_{il}}}

    Parameters
    ----------
    s : array of shape (..., n, m)
        Scores that open the gates; the keys stand in the order of the text.
    allowed : boolean array that broadcasts to (..., n, m), optional
        True where the query may read the key; the others are not counted. None means all.
    largest : float, optional
        The number P that no count exceeds. None means no bound.

    Returns
    -------
    array of shape (..., n, m)
        A count for each pair, in general no whole number.

    Raises
    ------
    ValueError
        If `s` has fewer than two axes, if `allowed` does not broadcast, or if `largest` is negative or not finite.
    TypeError
        If `s` is not an array of numbers, if `allowed` is not boolean, if `largest` is not a number, or if two array
        libraries are mixed.

    See Also
    --------
    cope : The score that is made from these counts.
    read_between : Looks them up in a table.

    Notes
    -----
    Cost : O(n m) time and memory.
    Empty row : zeros; nothing is counted.

    Both ends count: the count at the key is its own gate and those after it. Under a causal mask the last key that
    counts is the query's own item. A key that may not be read gets the count of those after it.

    References
    ----------
    O. Golovneva, T. Wang, J. Weston and S. Sukhbaatar, Contextual Position Encoding: Learning to Count What's
    Important, 2024.

    Examples
    --------
    >>> import numpy as np
    >>> cope_positions(np.zeros((1, 4)))  # every gate is half open
    array([[2. , 1.5, 1. , 0.5]])
    >>> cope_positions(np.array([[99.0, -99.0, 99.0, -99.0]]), largest=1.5).round(3)
    array([[1.5, 1. , 1. , 0. ]])
    """
    largest = largest if largest is None else finite("largest", largest)
    if largest is not None and largest < 0:
        raise ValueError(f"largest is {largest}; it must not be negative")
    xp, dtype, (s,) = promote(s=s)
    check_axes("n m", s=s)
    gates = sigmoid(s, allowed)
    count = xp.flip(xp.cumulative_sum(xp.flip(gates, axis=-1), axis=-1), axis=-1)
    return cast(xp, count if largest is None else xp.where(count > largest, largest, count), dtype)


def read_between(x: Array, p: Array, /) -> Array:
    r"""Read, for each pair, the number at a place between two columns, on the straight line between them.

    .. math:: y_{ij} = (1 - t) \, x_{i, \lfloor p_{ij} \rfloor} + t \, x_{i, \lceil p_{ij} \rceil}, \qquad
              t = p_{ij} - \lfloor p_{ij} \rfloor

    Parameters
    ----------
    x : array of shape (..., n, r)
        A number for each query and whole count, such as ``q @ e.mT`` for a table `e` with r rows.
    p : array of shape (..., n, m)
        The place of each pair, from zero to r - 1.

    Returns
    -------
    array of shape (..., n, m)
        A number for each pair; NaN where `x` has no such place.

    Raises
    ------
    ValueError
        If an axis is missing, if `x` has no column, or if `x` and `p` do not fit.
    TypeError
        If `x` or `p` is not an array of numbers, or if two array libraries are mixed.

    See Also
    --------
    read_distances : The same for whole places.
    cope_positions : Makes the places.

    Notes
    -----
    Cost : O(n m) time and memory; with the product before it O(n (m + r d)).
    Empty row : none; it hides nothing.

    At a whole place the gradient with respect to it is zero; beside it, it is the difference of the two neighbors.

    Examples
    --------
    >>> import numpy as np
    >>> read_between(np.array([[0.0, 10.0, 50.0]]), np.array([[0.0, 0.5, 1.0, 1.25]]))
    array([[ 0.,  5., 10., 20.]])
    """
    xp, dtype, (x, p) = promote(x=x, p=p)
    check_axes("n r", x=x)
    check_axes("n m", p=p)
    check_equal("queries", -2, x=x, p=p)
    broadcast_batch(2, x=x, p=p)
    exists = (p >= 0) & (p <= x.shape[-1] - 1)
    place = xp.where(exists, p, 0.0)
    below, above = (
        read_distances(x, cast(xp, whole, xp.arange(0).dtype)) for whole in (xp.floor(place), xp.ceil(place))
    )
    t = place - xp.floor(place)
    return cast(xp, xp.where(exists, (1 - t) * below + t * above, math.nan), dtype)


def cope(e: Array, mask: Array, /, *, scale: float | None = None) -> Score:
    r"""Build the score in which a query also asks for a count of the keys that fit it.

    .. math:: s_{ij} = z_{ij} + q_i \cdot e[p_{ij}], \qquad z_{ij} = \text{scale} \cdot q_i \cdot k_j, \qquad
              p_{ij} = \min\Big( \sum_{l \ge j,\ l \in A_i} \sigma(z_{il}), \ r - 1 \Big)

    Parameters
    ----------
    e : array of shape (..., H, r, d)
        The table: a vector for each whole count from zero. Two axes are one table for all heads.
    mask : boolean array that broadcasts to (..., n, m)
        True where the query may read the key: what it may not read is not counted. The keys stand in the order of the
        text.
    scale : float, optional
        What the dot product of query and key is multiplied by; that with the table is not. None means
        :math:`1/\sqrt d`.

    Returns
    -------
    callable
        The function ``score(q, k)``, for the argument `score` of `attention`.

    Raises
    ------
    ValueError
        If `scale` is not finite. The score raises it if `e` has no row, if an axis is missing, or if `q`, `k`, `e` and
        `mask` do not fit.
    TypeError
        If `scale` is no number. The score raises it if an argument is not an array of numbers, if `mask` is not
        boolean, or if two array libraries are mixed.

    See Also
    --------
    cope_positions : The counts.
    shaw : A vector for each distance instead.

    Notes
    -----
    Slot : score
    Changes : a place is counted in items that fit the query, not in tokens.
    Cost : O(n (m + r) d) time, O(n (m + r)) memory.
    Empty row : decided by the normalizer.
    Promises : prefix stable
    Equals : ``scaled_dot`` when the table is zero, or when its rows are equal, once softmax has divided; ``scaled_dot``
        plus the terms of ``shaw`` when every gate is open.
    Year : 2024
    Source : Golovneva et al., 2024, Contextual Position Encoding: Learning to Count What's Important, abstract, arXiv
        2405.18719; the released code.
    Other names : CoPE, contextual position encoding, contextual positional encoding

    The mask is needed here and again in `attention`: there it says what is read, here what is counted. The released
    code divides the second term by :math:`\sqrt d` too; divide the table for that.

    References
    ----------
    O. Golovneva, T. Wang, J. Weston and S. Sukhbaatar, Contextual Position Encoding: Learning to Count What's
    Important, 2024.

    Examples
    --------
    >>> import numpy as np
    >>> q, k = np.array([[1.0]]), np.array([[99.0], [-99.0], [99.0]])
    >>> score = cope(np.array([[0.0], [0.5], [7.0]]), np.ones((1, 3), dtype=bool))
    >>> score(q, k).round(3)
    array([[106. , -98.5,  99.5]])
    """
    scale = scale if scale is None else finite("scale", scale)

    def score(q: Array, k: Array, /) -> Array:
        xp, dtype, (q, k, table) = promote(q=q, k=k, e=e)
        shape = pair_shape(q, k)
        check_axes("r d", e=table)
        check_equal("columns", -1, q=q, e=table)
        check_broadcast("e", table, (*shape[:-2], *table.shape[-2:]))
        if table.shape[-2] == 0:
            raise ValueError("e has no row; it needs one for the count zero")
        library(q=q, mask=mask)
        allowed = allowed_pairs(xp, "mask", mask, shape)
        z = scaled_dot(scale=scale)(q, hide_unread(xp, k, allowed))
        p = cope_positions(z, allowed, largest=table.shape[-2] - 1)
        return cast(xp, z + read_between(q @ table.mT, p), dtype)

    return score


def path_transfer(w: Array, beta: Array, mask: Array, /) -> Array:
    r"""Multiply, for each pair, the matrices of the items on the way from the key to the query.

    .. math:: T_{ij} = \prod_{l > j,\ l \in A_i} (I - \beta_l w_l w_l^\top), \qquad \text{the latest item leftmost}

    Parameters
    ----------
    w : array of shape (..., m, d)
        The direction of each item, of length one; the items stand in the order of the text.
    beta : array of shape (..., m)
        How much of the direction is taken away: one removes it, two reflects it.
    mask : boolean array of shape (..., n, m)
        True where the query may read the item; the others are passed without effect.

    Returns
    -------
    array of shape (..., n, m, d, d)
        A matrix for each pair; the identity where nothing lies between.

    Raises
    ------
    ValueError
        If an axis is missing, if the numbers of items differ, or if the leading axes do not broadcast.
    TypeError
        If `w` or `beta` is not an array of numbers, if `mask` is not a boolean array, or if two array libraries are
        mixed.

    See Also
    --------
    path : The score that is made from these matrices.

    Notes
    -----
    Cost : O(n m² d³) time, O(n m d²) memory.
    Empty row : identities.

    The item of the key is left out and the query's own is in. Directions are taken as they are: of another length than
    one, they change what beta means.

    References
    ----------
    S. Yang et al., PaTH Attention: Position Encoding via Accumulating Householder Transformations, NeurIPS 2025.

    Examples
    --------
    >>> import numpy as np
    >>> w, beta = np.array([[1.0, 0.0], [1.0, 0.0]]), np.array([2.0, 2.0])
    >>> path_transfer(w, beta, np.ones((1, 2), dtype=bool))[0, 0]
    array([[-1.,  0.],
           [ 0.,  1.]])
    """
    library(w=w, mask=mask)
    xp, dtype, (w, beta) = promote(w=w, beta=beta)
    check_axes("m d", w=w)
    check_axes("m", beta=beta)
    check_axes("n m", mask=mask)
    check_equal("items", -2, w=w, beta=beta[..., None])
    check_equal("items", -1, beta=beta, mask=mask)
    (n, m), d = mask.shape[-2:], w.shape[-1]
    batch = broadcast_batch(2, w=w, beta=beta[..., None], mask=mask)
    passed = allowed_pairs(xp, "mask", mask, (*batch, n, m))
    w, beta = hide_unread(xp, w, passed), hide_unread(xp, beta[..., None], passed)
    eye = xp.eye(d, dtype=w.dtype, device=device(w))
    turned = xp.broadcast_to(eye, (*batch, n, m, d, d))
    keys = xp.arange(m, device=device(w))
    for item in range(m):
        step = eye - beta[..., item, :, None] * w[..., item, :, None] * w[..., item, None, :]
        between = passed[..., :, item, None] & (keys < item)
        turned = xp.where(between[..., None, None], step[..., None, None, :, :] @ turned, turned)
    return cast(xp, turned, dtype)


def path(w: Array, beta: Array, mask: Array, /, *, scale: float | None = None) -> Score:
    r"""Build the score in which every item between a key and the query turns what is compared.

    .. math:: s_{ij} = \text{scale} \cdot q_i^\top
              \Big( \prod_{l > j,\ l \in A_i} (I - \beta_l w_l w_l^\top) \Big) k_j

    Parameters
    ----------
    w : array of shape (..., H, m, d)
        The direction of each item, of length one; two axes are the same for all heads. The items stand in the order of
        the text.
    beta : array of shape (..., H, m)
        How much of the direction is taken away, between zero and two.
    mask : boolean array that broadcasts to (..., n, m)
        True where the query may read the item; the others are passed without effect.
    scale : float, optional
        What the product is multiplied by. None means :math:`1/\sqrt d`.

    Returns
    -------
    callable
        The function ``score(q, k)``, for the argument `score` of `attention`.

    Raises
    ------
    ValueError
        If `scale` is not finite. The score raises it if an axis is missing, or if `q`, `k`, `w`, `beta` and `mask` do
        not fit.
    TypeError
        If `scale` is no number. The score raises it if an argument is not an array of numbers, if `mask` is not a
        boolean array, or if two array libraries are mixed.

    See Also
    --------
    path_by_queries : The same without a matrix for each pair.
    path_step : The same one token at a time.
    rotary : Turns by the position, whatever the text says.

    Notes
    -----
    Slot : score
    Changes : what a key is compared with depends on the items after it, and on their order.
    Cost : O(n m² d³) time, O(n m d²) memory; see `path_by_queries`.
    Empty row : decided by the normalizer.
    Promises : prefix stable
    Equals : ``path_by_queries``; ``scaled_dot`` when beta is zero; ``scaled_dot`` of keys that went through
        ``path_step`` once for each later item; ``rotary`` at even distances when the width and beta are two and the
        directions turn by a constant angle from item to item.
    Year : 2025
    Source : Yang et al., 2025, PaTH Attention: Position Encoding via Accumulating Householder Transformations,
        section 2.2, arXiv 2505.16381; the released code.
    Other names : PaTH, PaTH attention, Householder position encoding, accumulated Householder transformations

    The latest item stands leftmost. The mask is needed here and again in `attention`: there it says what is read, here
    what turns.

    References
    ----------
    S. Yang et al., PaTH Attention: Position Encoding via Accumulating Householder Transformations, NeurIPS 2025.

    Examples
    --------
    >>> import numpy as np
    >>> k = np.array([[3.0, 4.0], [1.0, 0.0], [0.0, 1.0]])
    >>> score = path(k / 5, np.array([9.0, 0.0, 25.0]), np.ones((1, 3), dtype=bool), scale=1.0)
    >>> score(np.array([[1.0, 1.0]]), k)  # the last item removes the second column
    array([[3., 1., 1.]])
    """
    scale = scale if scale is None else finite("scale", scale)

    def score(q: Array, k: Array, /) -> Array:
        xp, dtype, q, k, turns = _on_the_way(q, k, w, beta, mask, scale)
        s = q[..., :, None, None, :] @ path_transfer(*turns) @ k[..., None, :, :, None]
        return cast(xp, s[..., 0, 0], dtype)

    return score


def path_by_queries(w: Array, beta: Array, mask: Array, /, *, scale: float | None = None) -> Score:
    r"""Build the score of `path` by letting each query walk back through the items.

    .. math:: s_{ij} = \text{scale} \cdot x_j \cdot k_j, \qquad
              x_{j - 1} = x_j - \beta_j (x_j \cdot w_j) \, w_j \ \text{if}\ j \in A_i, \qquad x_m = q_i

    Parameters
    ----------
    w : array of shape (..., H, m, d)
        The direction of each item, of length one; two axes are the same for all heads. The items stand in the order of
        the text.
    beta : array of shape (..., H, m)
        How much of the direction is taken away, between zero and two.
    mask : boolean array that broadcasts to (..., n, m)
        True where the query may read the item; the others are passed without effect.
    scale : float, optional
        What the product is multiplied by. None means :math:`1/\sqrt d`.

    Returns
    -------
    callable
        The function ``score(q, k)``, for the argument `score` of `attention`.

    Raises
    ------
    ValueError
        Where `path` raises it.
    TypeError
        Where `path` raises it.

    See Also
    --------
    path : The definition.

    Notes
    -----
    Slot : score
    Changes : nothing; it is the form without matrices.
    Cost : O(n m d) time, O(n (m + d)) memory; the m steps follow one another.
    Empty row : decided by the normalizer.
    Promises : prefix stable
    Equals : ``path``, up to rounding.
    Year : 2025
    Source : Yang et al., 2025, PaTH Attention: Position Encoding via Accumulating Householder Transformations,
        section 2.2, arXiv 2505.16381; the released code.
    Other names : rank-one form of PaTH, PaTH by recursion

    Each matrix is symmetric, so it may act on the query from the left instead of on the key.

    References
    ----------
    S. Yang et al., PaTH Attention: Position Encoding via Accumulating Householder Transformations, NeurIPS 2025.

    Examples
    --------
    >>> import numpy as np
    >>> k = np.array([[3.0, 4.0], [1.0, 0.0], [0.0, 1.0]])
    >>> score = path_by_queries(k / 5, np.array([9.0, 0.0, 25.0]), np.ones((1, 3), dtype=bool), scale=1.0)
    >>> score(np.array([[1.0, 1.0]]), k)
    array([[3., 1., 1.]])
    """
    scale = scale if scale is None else finite("scale", scale)

    def score(q: Array, k: Array, /) -> Array:
        xp, dtype, x, k, (directions, amounts, passed) = _on_the_way(q, k, w, beta, mask, scale)
        columns = [xp.zeros((*passed.shape[:-1], 0), dtype=x.dtype, device=device(x))]
        for item in reversed(range(passed.shape[-1])):
            columns.insert(1, x @ k[..., item, :, None])
            direction = directions[..., item, :, None]
            moved = x - amounts[..., item, None, None] * (x @ direction) * direction.mT
            x = xp.where(passed[..., :, item, None], moved, x)
        return cast(xp, xp.concat(columns, axis=-1), dtype)

    return score


def path_step(k: Array, w: Array, beta: Array, /) -> Array:
    r"""Turn all keys of a cache past one new item.

    .. math:: k'_j = k_j - \beta \, (k_j \cdot w) \, w

    Parameters
    ----------
    k : array of shape (..., m, d)
        The keys so far, each turned past the items after it.
    w : array of shape (..., d)
        The direction of the new item, of length one.
    beta : array of shape (...)
        How much of the direction is taken away.

    Returns
    -------
    array of shape (..., m, d)
        The keys as the new item's query is compared with them. Its own key joins them as it is.

    Raises
    ------
    ValueError
        If an axis is missing, if `k` and `w` do not agree in d, or if the leading axes do not broadcast.
    TypeError
        If an argument is not an array of numbers, or if two array libraries are mixed.

    See Also
    --------
    path : The score that a plain dot product with these keys gives.

    Notes
    -----
    Cost : O(m d) time and memory for each new item; the cache is written again.
    Empty row : there are no rows.

    With beta one this is what the delta rule does to a memory before it writes.

    References
    ----------
    S. Yang et al., PaTH Attention: Position Encoding via Accumulating Householder Transformations, NeurIPS 2025.

    Examples
    --------
    >>> import numpy as np
    >>> path_step(np.array([[3.0, 4.0], [1.0, 0.0]]), np.array([0.0, 1.0]), np.array(2.0))
    array([[ 3., -4.],
           [ 1.,  0.]])
    """
    xp, dtype, (k, w, beta) = promote(k=k, w=w, beta=beta)
    check_axes("m d", k=k)
    check_axes("d", w=w)
    check_equal("columns", -1, k=k, w=w)
    broadcast_batch(2, k=k, w=w[..., None, :], beta=beta[..., None, None])
    return cast(xp, k - beta[..., None, None] * (k @ w[..., :, None]) * w[..., None, :], dtype)


def _on_the_way(
    q: Array, k: Array, w: Array, beta: Array, mask: Array, scale: float | None
) -> tuple[Any, Any, Array, Array, tuple[Array, Array, Array]]:
    """Return library, dtype, scaled queries, keys, and what turns them, checked and free of what nobody reads."""
    xp, dtype, (q, k, w, beta) = promote(q=q, k=k, w=w, beta=beta)
    shape = pair_shape(q, k)
    check_axes("m d", w=w)
    check_axes("m", beta=beta)
    check_broadcast("w", w, (*shape[:-2], *k.shape[-2:]))
    check_broadcast("beta", beta, (*shape[:-2], shape[-1]))
    library(q=q, mask=mask)
    passed = allowed_pairs(xp, "mask", mask, shape)
    factor = inverse_root(q.shape[-1]) if scale is None else scale
    k, w, beta = (hide_unread(xp, x, passed) for x in (k, w, beta[..., None]))
    return xp, dtype, factor * q, k, (w, beta[..., 0], passed)
