"""The blend: every output is a weighted average of the values."""

import math

from softlookup._arrays import Array, cast, hide, promote
from softlookup._checks import allowed_pairs, broadcast_batch, check_axes, positive

__all__ = ["budget", "is_distribution", "weighted_average"]


def weighted_average(w: Array, v: Array, /, *, allowed: Array | None = None) -> Array:
    r"""Blend the values with the weights of each row.

    .. math:: \operatorname{out}_i = \sum_{j \,\text{allowed for}\, i} w_{ij} \, v_j

    Parameters
    ----------
    w : array of shape (..., n, m)
        Weights. They may be any numbers; the output is an average, and lies in the convex hull of the values, when
        each row is non-negative and sums to one.
    v : array of shape (..., m, e)
        Values.
    allowed : boolean array that broadcasts to the shape of `w`, optional
        True where the pair of a row and a value counts. A pair that does not count is left out, not multiplied by
        zero: a NaN or an infinity there reaches neither the output of the row nor its gradients.

    Returns
    -------
    array of shape (..., n, e)
        One blend for each row of weights.

    Raises
    ------
    ValueError
        If an axis is missing, if `w` and `v` do not agree in m, if their leading axes do not broadcast, or if
        `allowed` would enlarge `w`.
    TypeError
        If an argument is not an array of numbers, if `allowed` is not boolean, or if two array libraries are mixed.

    See Also
    --------
    budget : What each row has to spend.
    attention : Finds the weights by comparing queries with keys.

    Notes
    -----
    Cost : O(n m e) time for one matrix product; with `allowed` three of them and O(n m) memory.
    Empty row : a row without an allowed pair, or without values, gives zeros.

    Integers become the library's default float. Without `allowed` this is ``w @ v``, where a weight of zero keeps a
    NaN or an infinity of its value. With `allowed` the same holds for the allowed pairs, but that an
    infinite weight on an infinite value gives NaN.

    Examples
    --------
    >>> import numpy as np
    >>> w = np.array([[0.1, 0.3, 0.6], [0.6, 0.3, 0.1]])
    >>> weighted_average(w, np.array([[10.0], [20.0], [30.0]]))
    array([[25.],
           [15.]])
    """
    xp, dtype, (w, v) = promote(w=w, v=v)
    check_axes("n m", w=w)
    check_axes("m e", v=v)
    if w.shape[-1] != v.shape[-2]:
        raise ValueError(f"w has {w.shape[-1]} weights in a row, v has {v.shape[-2]} items; they must be equal")
    broadcast_batch(2, w=w, v=v)
    if allowed is None:
        return cast(xp, w @ v, dtype)
    allowed = allowed_pairs(xp, "allowed", allowed, w.shape)
    w = hide(xp, w, allowed, 0.0)
    out = w @ xp.where(xp.isfinite(v), v, 0.0)
    # What is not finite comes back where it is allowed: infinite if all of it pulls one way, else NaN.
    pull = xp.sign(w) @ xp.where(xp.isinf(v), xp.sign(v), 0.0)
    count = cast(xp, allowed, w.dtype) @ cast(xp, ~xp.isfinite(v), w.dtype)
    rest = xp.where(pull == count, math.inf, xp.where(pull == -count, -math.inf, xp.full_like(out, math.nan)))
    return cast(xp, out + xp.where(count > 0, rest, 0.0), dtype)


def budget(w: Array, /) -> Array:
    r"""Sum the weights of each row.

    .. math:: b_i = \sum_j w_{ij}

    Parameters
    ----------
    w : array of shape (..., n, m)
        Weights.

    Returns
    -------
    array of shape (..., n)
        What each row spends; one for a distribution, and zero for an empty row.

    Raises
    ------
    ValueError
        If `w` has no axis.
    TypeError
        If `w` is not an array of numbers.

    See Also
    --------
    is_distribution : Also asks whether the weights are non-negative.

    Notes
    -----
    Cost : O(n m) time.
    Empty row : a row of zeros, or of no weights, has the budget zero.

    Examples
    --------
    >>> import numpy as np
    >>> budget(np.array([[0.1, 0.3, 0.6], [0.0, 0.0, 0.0]])).round(3)
    array([1., 0.])
    """
    xp, dtype, (w,) = promote(w=w)
    check_axes("m", w=w)
    return cast(xp, xp.sum(w, axis=-1), dtype)


def is_distribution(w: Array, /, *, tolerance: float | None = None) -> Array:
    r"""Tell of each row whether it is non-negative and sums to one.

    .. math:: w_{ij} \ge 0 \ \text{for all}\ j \quad\text{and}\quad \Bigl|\sum_j w_{ij} - 1\Bigr| \le \text{tolerance}

    Parameters
    ----------
    w : array of shape (..., n, m)
        Weights.
    tolerance : float, optional
        How far from one a sum may be; by default m times the distance from one to the next number of the dtype of
        `w`, which covers the rounding of m weights and of their sum.

    Returns
    -------
    boolean array of shape (..., n)
        True for each row that is a distribution.

    Raises
    ------
    ValueError
        If `w` has no axis, or if `tolerance` is not positive.
    TypeError
        If `w` is not an array of numbers, or `tolerance` not a number.

    See Also
    --------
    budget : The sums themselves.

    Notes
    -----
    Cost : O(n m) time.
    Empty row : a row of zeros, or of no weights, is not a distribution. Nor is a row with a NaN.

    Examples
    --------
    >>> import numpy as np
    >>> is_distribution(np.array([[0.1, 0.3, 0.6], [0.5, 0.7, -0.2], [0.0, 0.0, 0.0]]))
    array([ True, False, False])
    """
    xp, dtype, (w,) = promote(w=w)
    check_axes("m", w=w)
    tolerance = w.shape[-1] * float(xp.finfo(dtype).eps) if tolerance is None else positive("tolerance", tolerance)
    return xp.all(w >= 0, axis=-1) & (xp.abs(xp.sum(w, axis=-1) - 1) <= tolerance)
