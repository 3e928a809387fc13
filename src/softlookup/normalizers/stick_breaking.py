"""Stick-breaking: each key in turn, from the nearest back, takes a share of what is left of the budget."""

import math
from typing import Any

from array_api_compat import device

from softlookup._arrays import Array, cast, promote
from softlookup._checks import readable_scores

__all__ = ["stick_breaking", "stick_remainder"]


def stick_breaking(s: Array, allowed: Array | None = None, /) -> Array:
    r"""Let each allowed key, from the last to the first, take its share of what is left of the row's budget.

    .. math:: w_{ij} = \beta_{ij} \prod_{l > j, \ l \,\text{allowed for}\, i} (1 - \beta_{il}), \qquad
              \beta_{ij} = \sigma(s_{ij}) = \frac{1}{1 + e^{-s_{ij}}}

    Parameters
    ----------
    s : array of shape (..., n, m)
        Scores; the keys stand in the order of their positions. One row alone, of shape (m,), is fine too.
    allowed : boolean array that broadcasts to the shape of `s`, optional
        True where the item may be read. As published the mask is strictly causal: a query reads what comes before it.

    Returns
    -------
    array of shape (..., n, m)
        Weights; each row sums to one minus its `stick_remainder`.

    Raises
    ------
    ValueError
        If `s` has no axis, or if `allowed` would enlarge it.
    TypeError
        If `s` is not an array of numbers, if `allowed` is not boolean, or if two array libraries are mixed.

    See Also
    --------
    stick_remainder : What is left when every key has taken its share.

    Notes
    -----
    Slot : normalize
    Changes : keys are asked in order, the nearest first, and the budget need not be spent.
    Cost : O(n m) time and memory; a cumulative sum along each row.
    Empty row : a row that may read nothing gets zeros, and its remainder is one.
    Promises : non-negative, prefix stable
    Equals : the lengths of a broken stick; softmax plus one for a row with one allowed key; hard lookup of the last
        allowed key when its score is plus infinity.
    Year : 2024
    Source : Tan et al., 2024, Stick-breaking Attention, arXiv 2410.17980, abstract.
    Other names : stick-breaking attention, geometric attention

    Computed from sums of logarithms, so that long rows do not underflow early. A score of minus infinity takes nothing,
    one of plus infinity takes all that is left. A NaN that may be read makes its own weight and all earlier ones NaN.

    References
    ----------
    S. Tan et al., Stick-breaking Attention, 2024.

    Examples
    --------
    >>> import numpy as np
    >>> stick_breaking(np.zeros((1, 3)))  # one half, of the rest one half, and so on, from the right
    array([[0.125, 0.25 , 0.5  ]])
    """
    xp, dtype, (s,) = promote(s=s)
    s, left = _log_left(xp, s, allowed)
    nothing = xp.zeros((*s.shape[:-1], 1), dtype=s.dtype, device=device(s))
    later = xp.concat([left, nothing], axis=-1)[..., 1:]
    return cast(xp, xp.exp(_log_sigmoid(xp, s) + later), dtype)


def stick_remainder(s: Array, allowed: Array | None = None, /) -> Array:
    r"""Measure what `stick_breaking` leaves of the budget of each row.

    .. math:: r_i = 1 - \sum_j w_{ij} = \prod_{j \,\text{allowed for}\, i} (1 - \beta_{ij})

    Parameters
    ----------
    s : array of shape (..., n, m)
        Scores.
    allowed : boolean array that broadcasts to the shape of `s`, optional
        True where the item may be read.

    Returns
    -------
    array of shape (..., n)
        A number from zero to one for each row.

    Raises
    ------
    ValueError
        Where `stick_breaking` raises it.
    TypeError
        Where `stick_breaking` raises it.

    See Also
    --------
    stick_breaking : The weights.

    Notes
    -----
    Cost : O(n m) time.
    Empty row : one; nothing was taken.

    Some models drop the remainder, others give it to the query's own value.

    Examples
    --------
    >>> import numpy as np
    >>> stick_remainder(np.zeros((1, 3)))
    array([0.125])
    """
    xp, dtype, (s,) = promote(s=s)
    s, _ = _log_left(xp, s, allowed)
    return cast(xp, xp.exp(xp.sum(_log_sigmoid(xp, -s), axis=-1)), dtype)


def _log_left(xp: Any, s: Array, allowed: Array | None) -> tuple[Array, Array]:
    """Return the scores with minus infinity where hidden, and log of what is left from each key on, to the last."""
    s = readable_scores(xp, s, allowed, -math.inf)
    return s, xp.flip(xp.cumulative_sum(xp.flip(_log_sigmoid(xp, -s), axis=-1), axis=-1), axis=-1)


def _log_sigmoid(xp: Any, x: Array) -> Array:
    """Return ``log(1 / (1 + exp(-x)))`` without overflow, with its gradient also at the infinities."""
    infinite = xp.isinf(x)
    finite = xp.where(infinite, 0.0, x)
    value = xp.where(finite < 0, finite, 0.0) - xp.log1p(xp.exp(xp.where(finite < 0, finite, -finite)))
    return xp.where(infinite, xp.where(x > 0, 0.0, x), value)
