"""The limits of a soft lookup: read the best item alone, or the nearest few."""

import math
from typing import Any

from softlookup._arrays import Array, Score, cast, distance, hide, hide_unread, promote, row_max
from softlookup._checks import allowed_pairs, check_items, pair_shape, positive_integer, readable_scores
from softlookup.lookup.attention import attention, scaled_dot
from softlookup.lookup.softmax import softmax
from softlookup.lookup.weighted_average import weighted_average

__all__ = ["hard_lookup", "hardmax", "hardmax_average", "nearest_neighbors", "soft_nearest_neighbors"]


def hardmax(s: Array, allowed: Array | None = None, /) -> Array:
    r"""Give the whole budget to the first of the largest scores.

    .. math:: w_{ij} = 1 \ \text{for the smallest}\ j \ \text{with}\ s_{ij} = \max_{l \,\text{allowed for}\, i} s_{il},
              \qquad w_{ij} = 0 \ \text{otherwise}

    Parameters
    ----------
    s : array of shape (..., n, m)
        Scores.
    allowed : boolean array that broadcasts to the shape of `s`, optional
        True where the item may be read.

    Returns
    -------
    array of shape (..., n, m)
        Weights: one 1 in each row that reads something.

    Raises
    ------
    ValueError
        If `s` has no axis, or if `allowed` would enlarge it.
    TypeError
        If `s` is not an array of numbers, if `allowed` is not boolean, or if two array libraries are mixed.

    See Also
    --------
    hardmax_average : Shares the budget among equal scores.
    softmax : The soft form.

    Notes
    -----
    Slot : normalize
    Changes : keeps the largest score alone; of equal ones, the first.
    Cost : O(n m) time and memory.
    Empty row : a row that may read nothing, or only scores of minus infinity, gets zeros.
    Promises : non-negative, sums to one, inside the hull, shift invariant, prefix stable
    Equals : ``softmax`` in the limit of temperature zero when the largest score is single.
    Year : 2020
    Source : Hahn, 2020, Theoretical Limitations of Self-Attention in Neural Sequence Models, section 3, arXiv
        1906.06755; the name: Hao, Angluin and Frank, 2022, arXiv 2204.06618.
    Other names : argmax attention, unique hard attention

    An allowed NaN makes its whole row NaN. The gradient with respect to the scores is zero.

    References
    ----------
    Y. Hao, D. Angluin and R. Frank, Transactions of the Association for Computational Linguistics 10, 2022.

    Examples
    --------
    >>> import numpy as np
    >>> hardmax(np.array([[1.0, 3.0, 3.0]]))
    array([[0., 1., 0.]])
    """
    xp, dtype, (s,) = promote(s=s)
    best = _best(xp, s, allowed)
    return cast(xp, xp.where(xp.cumulative_sum(best, axis=-1) > 1, 0.0, best), dtype)


def hardmax_average(s: Array, allowed: Array | None = None, /) -> Array:
    r"""Share the budget equally among the largest scores.

    .. math:: w_{ij} = \frac{1}{|B_i|} \ \text{for}\ j \in B_i, \quad w_{ij} = 0 \ \text{otherwise}, \qquad
              B_i = \{\, j : s_{ij} = \max_{l \,\text{allowed for}\, i} s_{il} \,\}

    Parameters
    ----------
    s : array of shape (..., n, m)
        Scores.
    allowed : boolean array that broadcasts to the shape of `s`, optional
        True where the item may be read.

    Returns
    -------
    array of shape (..., n, m)
        Weights.

    Raises
    ------
    ValueError
        If `s` has no axis, or if `allowed` would enlarge it.
    TypeError
        If `s` is not an array of numbers, if `allowed` is not boolean, or if two array libraries are mixed.

    See Also
    --------
    hardmax : Takes the first of equal scores.
    softmax : The soft form.

    Notes
    -----
    Slot : normalize
    Changes : keeps the largest scores alone, with equal shares.
    Cost : O(n m) time and memory.
    Empty row : a row that may read nothing, or only scores of minus infinity, gets zeros.
    Promises : non-negative, sums to one, inside the hull, shift invariant, prefix stable
    Equals : ``softmax`` in the limit of temperature zero; ``hardmax`` when the largest score is single.
    Year : 2022
    Source : Hao, Angluin and Frank, 2022, Formal Language Recognition by Hard Attention Transformers, abstract,
        arXiv 2204.06618, who name it; the rule was in use before.
    Other names : averaging hard attention, saturated attention

    Only scores that are equal to the last digit share. An allowed NaN makes its whole row NaN. The gradient with
    respect to the scores is zero.

    References
    ----------
    Y. Hao, D. Angluin and R. Frank, Transactions of the Association for Computational Linguistics 10, 2022.

    Examples
    --------
    >>> import numpy as np
    >>> hardmax_average(np.array([[1.0, 3.0, 3.0]]))
    array([[0. , 0.5, 0.5]])
    """
    xp, dtype, (s,) = promote(s=s)
    best = _best(xp, s, allowed)
    total = xp.sum(best, axis=-1, keepdims=True)
    return cast(xp, best / xp.where(total == 0, 1.0, total), dtype)


def hard_lookup(
    q: Array,
    k: Array,
    v: Array,
    /,
    *,
    mask: Array | None = None,
    bias: Array | None = None,
    score: Score = scaled_dot(),
) -> Array:
    r"""Return the value of the best key.

    .. math:: \operatorname{out}_i = v_{j^*}, \qquad
              j^* = \operatorname*{arg\,max}_{j \,\text{allowed for}\, i} \bigl(\operatorname{score}(q_i, k_j)
              + \text{bias}_{ij}\bigr)

    Parameters
    ----------
    q : array of shape (..., H, n, d)
        Queries.
    k : array of shape (..., H_kv, m, d)
        Keys.
    v : array of shape (..., H_kv, m, e)
        Values, one for each key.
    mask : boolean array that broadcasts to (..., H, n, m), optional
        True where the query may read the key.
    bias : array that broadcasts to (..., H, n, m), optional
        Numbers that are added to the scores.
    score : callable
        Compares: ``score(q, k) -> s``.

    Returns
    -------
    array of shape (..., H, n, e)
        One stored value for each query.

    Raises
    ------
    ValueError
        Where `attention` raises it.
    TypeError
        Where `attention` raises it.

    See Also
    --------
    attention : The soft form, which describes the arguments.
    hardmax : The normalizer.
    nearest_neighbors : Reads more than one key.

    Notes
    -----
    Slot : normalize
    Changes : reads one item instead of blending all.
    Cost : O(H n m (d + e)) time, O(H n m) memory.
    Empty row : a query that may read nothing gets zeros.
    Promises : non-negative, sums to one, inside the hull, shift invariant, prefix stable
    Equals : ``attention`` with the normalizer ``hardmax``; ``nearest_neighbors`` of one when the score is
        ``gaussian_score``.
    Year : 2015
    Source : Xu et al., 2015, Show, Attend and Tell, section 4.1, arXiv 1502.03044, where the item is drawn at random.
    Other names : hard attention, argmax attention, dictionary lookup

    Of equal scores the first wins. The gradient reaches the value that was read, and neither queries nor keys.

    References
    ----------
    K. Xu et al., Show, Attend and Tell, ICML 2015.

    Examples
    --------
    >>> import numpy as np
    >>> k, v = np.array([[1.0, 0.0], [0.0, 1.0]]), np.array([[10.0], [20.0]])
    >>> hard_lookup(np.array([[0.3, 0.4]]), k, v)
    array([[20.]])
    """
    return attention(q, k, v, mask=mask, bias=bias, score=score, normalize=hardmax)


def nearest_neighbors(q: Array, k: Array, v: Array, /, *, neighbors: int, mask: Array | None = None) -> Array:
    r"""Average the values of the nearest keys.

    .. math:: \operatorname{out}_i = \frac{1}{|N_i|} \sum_{j \in N_i} v_j, \qquad
              N_i = \text{the allowed keys with the}\ \textit{neighbors}\ \text{smallest}\ \lVert q_i - k_j \rVert

    Parameters
    ----------
    q : array of shape (..., n, d)
        Queries.
    k : array of shape (..., m, d)
        Keys. The leading axes of the arrays broadcast.
    v : array of shape (..., m, e)
        Values, one for each key.
    neighbors : int
        How many keys a query reads. A query that may read fewer reads all of them.
    mask : boolean array that broadcasts to (..., n, m), optional
        True where the query may read the key.

    Returns
    -------
    array of shape (..., n, e)
        One mean for each query.

    Raises
    ------
    ValueError
        If an axis is missing, if the arrays do not agree in d or m, if their leading axes do not broadcast, if `mask`
        would enlarge (..., n, m), or if `neighbors` is not positive.
    TypeError
        If an argument is not an array of numbers, if `mask` is not boolean, if two array libraries are mixed, or if
        `neighbors` is not an integer.

    See Also
    --------
    soft_nearest_neighbors : Weighs the neighbors by their distance.
    kernel_regression : Reads all keys within a width.

    Notes
    -----
    Slot : score
    Changes : reads a fixed number of keys, all with the same weight.
    Cost : O(n m (d + e) + n m log m) time, O(n m d) memory.
    Empty row : a query that may read nothing gets zeros.
    Promises : non-negative, sums to one, inside the hull, prefix stable
    Equals : ``kernel_regression`` with the kernel ``gaussian`` or ``laplace`` in the limit of bandwidth zero, for one
        neighbor at a single smallest distance; the mean of all values when every key is a neighbor.
    Year : 1967
    Source : Cover and Hart, 1967, Nearest Neighbor Pattern Classification, pp. 21-27.
    Other names : k nearest neighbors, kNN regression

    Of keys at the same distance the first ones are read. A key at an infinite distance is no neighbor. A NaN distance
    that may be read makes the row NaN. The gradient reaches the values alone.

    References
    ----------
    T. M. Cover and P. E. Hart, IEEE Transactions on Information Theory 13, 1967, pp. 21-27.

    Examples
    --------
    >>> import numpy as np
    >>> k, v = np.array([[0.0], [1.0], [5.0]]), np.array([[10.0], [20.0], [90.0]])
    >>> nearest_neighbors(np.array([[2.0]]), k, v, neighbors=2)
    array([[15.]])
    """
    xp, dtype, (q, k, v) = promote(q=q, k=k, v=v)
    far, nearest = _nearest(xp, q, k, v, neighbors, mask)
    w = softmax(xp.where(xp.isnan(far), far, 0.0), nearest)
    return cast(xp, weighted_average(w, v, allowed=nearest), dtype)


def soft_nearest_neighbors(
    q: Array, k: Array, v: Array, /, *, neighbors: int, temperature: float, mask: Array | None = None
) -> Array:
    r"""Blend the values of the nearest keys by a softmax of their distances.

    .. math:: \operatorname{out}_i = \sum_{j \in N_i} w_{ij} \, v_j, \qquad
              w_{ij} = \frac{\exp(-\lVert q_i - k_j \rVert / T)}{\sum_{l \in N_i} \exp(-\lVert q_i - k_l \rVert / T)}

    Parameters
    ----------
    q : array of shape (..., n, d)
        Queries.
    k : array of shape (..., m, d)
        Keys. The leading axes of the arrays broadcast.
    v : array of shape (..., m, e)
        Values, one for each key.
    neighbors : int
        How many keys a query reads. A query that may read fewer reads all of them.
    temperature : float
        The number T that the distances are divided by.
    mask : boolean array that broadcasts to (..., n, m), optional
        True where the query may read the key.

    Returns
    -------
    array of shape (..., n, e)
        One blend for each query.

    Raises
    ------
    ValueError
        If `temperature` is not positive and finite, and where `nearest_neighbors` raises it.
    TypeError
        If `temperature` is not a number, and where `nearest_neighbors` raises it.

    See Also
    --------
    nearest_neighbors : Weighs the neighbors equally, and says which keys they are.

    Notes
    -----
    Slot : score
    Changes : reads a fixed number of keys, the nearer the more.
    Cost : O(n m (d + e) + n m log m) time, O(n m d) memory.
    Empty row : a query that may read nothing gets zeros.
    Promises : non-negative, sums to one, inside the hull, prefix stable
    Equals : ``nearest_neighbors`` in the limit of infinite temperature; ``kernel_regression`` with the kernel
        ``laplace`` and the bandwidth T when every key is a neighbor.
    Year : 2018
    Source : Plötz and Roth, 2018, Neural Nearest Neighbors Networks, equations 8-10, arXiv 1810.12575, who choose the
        neighbors softly as well.
    Other names : distance-weighted kNN

    The gradient flows through the distances of the neighbors; at distance zero, where the distance has none, it is
    taken as zero.

    References
    ----------
    T. Plötz and S. Roth, Neural Nearest Neighbors Networks, NeurIPS 2018.

    Examples
    --------
    >>> import numpy as np
    >>> k, v = np.array([[0.0], [1.0], [5.0]]), np.array([[10.0], [20.0], [90.0]])
    >>> soft_nearest_neighbors(np.array([[2.0]]), k, v, neighbors=2, temperature=1.0).round(3)
    array([[17.311]])
    """
    xp, dtype, (q, k, v) = promote(q=q, k=k, v=v)
    far, nearest = _nearest(xp, q, k, v, neighbors, mask)
    w = softmax(-far, nearest, temperature=temperature)
    return cast(xp, weighted_average(w, v, allowed=nearest), dtype)


def _best(xp: Any, s: Array, allowed: Array | None) -> Array:
    """Return 1 at each largest score and 0 elsewhere; an empty row is all zeros, a row with a NaN all NaN."""
    s = readable_scores(xp, s, allowed, -math.inf)
    top = row_max(xp, s)
    return xp.where(xp.isnan(top), top, cast(xp, (s == top) & (s > -math.inf), s.dtype))


def _nearest(xp: Any, q: Array, k: Array, v: Array, neighbors: int, mask: Array | None) -> tuple[Array, Array]:
    """Return the distances of all pairs, and which keys are the neighbors."""
    neighbors = positive_integer("neighbors", neighbors)
    check_items(k, v)
    mask = allowed_pairs(xp, "mask", mask, pair_shape(q, k))
    far = distance(xp, q, hide_unread(xp, k, mask))
    # A NaN that may be read counts as nearest, so that it is seen; what may not be read comes last.
    order = hide(xp, xp.where(xp.isnan(far), -math.inf, far), mask, math.inf)
    rank = xp.argsort(xp.argsort(order))
    return far, (rank < neighbors) & (order < math.inf)
