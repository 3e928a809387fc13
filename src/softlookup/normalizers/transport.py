"""Transport: keys have a budget too, so that a key that everyone wants costs more."""

import math
from typing import Any

from softlookup._arrays import Array, Normalizer, cast, promote, row_max, share_infinite
from softlookup._checks import check_axes, natural, readable_scores
from softlookup.lookup.softmax import log_sum_exp

__all__ = ["sinkhorn", "softmax_over_queries"]


def sinkhorn(*, steps: int) -> Normalizer:
    r"""Build the normalizer that makes the columns equal too: softmax, then alternately columns and rows.

    .. math:: w^{(0)}_{ij} = \frac{\exp(s_{ij})}{\sum_l \exp(s_{il})}, \qquad
              c_j = \sum_i w^{(t)}_{ij}, \qquad
              w^{(t+1)}_{ij} = \frac{w^{(t)}_{ij} / c_j}{\sum_l w^{(t)}_{il} / c_l}

    Parameters
    ----------
    steps : int
        How often all columns and then all rows are divided by their sums, after the softmax.

    Returns
    -------
    callable
        The function ``normalize(s, allowed)``, for the argument `normalize` of `attention`. It needs the axis of the
        queries: `s` has the shape (..., n, m).

    Raises
    ------
    ValueError
        If `steps` is negative. The normalizer raises it if `s` has fewer than two axes, or if `allowed` would enlarge
        it.
    TypeError
        If `steps` is not an integer. The normalizer raises it if `s` is not an array of numbers, if `allowed` is not
        boolean, or if two array libraries are mixed.

    See Also
    --------
    softmax_over_queries : One step that begins with the columns.

    Notes
    -----
    Slot : normalize
    Changes : queries compete for keys; with many steps all keys are read equally much, as far as the mask lets them.
    Cost : O(n m) time for each step, and O(n m) memory; a gradient keeps the tables of all steps.
    Empty row : a row that may read nothing gets zeros, and so does a column that nobody may read.
    Promises : non-negative, sums to one, inside the hull, shift invariant
    Equals : ``softmax`` without steps; softmax with a price for each key, in every step; the entropic optimal transport
        between equal budgets in the limit of many steps; in that limit, for a square table, the best assignment when
        the scores grow and only one is best.
    Year : 2022
    Source : Sander et al., 2022, Sinkformers, arXiv 2110.11773, for attention; Sinkhorn, 1964, and Sinkhorn and Knopp,
        1967, for matrices; Cuturi, 2013, arXiv 1306.0895, for transport.
    Other names : Sinkhorn normalization, Sinkhorn-Knopp, Sinkformer, doubly stochastic attention, optimal transport
        attention, matrix balancing, iterative proportional fitting, RAS

    Rows come last, so they sum to one at every number of steps; the columns of a square table only approach it. A row
    depends on all other rows: under a causal mask the future changes the past. Computed with logarithms, so large
    scores neither overflow nor lose a key. Scores of plus infinity share the budget of their row equally in the
    softmax, and leave nothing to finite ones. A NaN that may be read makes what its row reads NaN, and with each step
    also what the rows read that share a key with a row of NaN. A compiler sees every step, so hundreds of them take
    long to compile with a gradient. Gumbel-Sinkhorn adds noise to the scores; the hyper-connections mHC use it on the
    tables that mix their streams.

    References
    ----------
    M. E. Sander, P. Ablin, M. Blondel, G. Peyré, Sinkformers: Transformers with Doubly Stochastic Attention, AISTATS
    2022.

    Examples
    --------
    >>> import numpy as np
    >>> s = np.log(np.array([[4.0, 1.0], [1.0, 1.0]]))
    >>> sinkhorn(steps=0)(s).round(3)
    array([[0.8, 0.2],
           [0.5, 0.5]])
    >>> sinkhorn(steps=20)(s).round(3)
    array([[0.667, 0.333],
           [0.333, 0.667]])
    """
    steps = natural("steps", steps)

    def normalize(s: Array, allowed: Array | None = None, /) -> Array:
        xp, dtype, (s,) = promote(s=s)
        check_axes("n m", s=s)
        logs = _log_softmax(xp, readable_scores(xp, s, allowed, -math.inf))
        for _ in range(steps):
            logs = _log_softmax(xp, _log_softmax(xp, logs.mT).mT)
        return cast(xp, xp.exp(logs), dtype)

    return normalize


def softmax_over_queries(s: Array, allowed: Array | None = None, /) -> Array:
    r"""Let each key choose among the queries, then divide each row by its sum.

    .. math:: a_{ij} = \frac{\exp(s_{ij})}{\sum_{r \,\text{allowed to read}\, j} \exp(s_{rj})}, \qquad
              w_{ij} = \frac{a_{ij}}{\sum_{l \,\text{allowed for}\, i} a_{il}}

    Parameters
    ----------
    s : array of shape (..., n, m)
        Scores.
    allowed : boolean array that broadcasts to the shape of `s`, optional
        True where the item may be read. Whatever score stands elsewhere has no effect.

    Returns
    -------
    array of shape (..., n, m)
        Weights; each row sums to one. The choices a of the keys are ``softmax(s.mT).mT`` without a mask.

    Raises
    ------
    ValueError
        If `s` has fewer than two axes, or if `allowed` would enlarge it.
    TypeError
        If `s` is not an array of numbers, if `allowed` is not boolean, or if two array libraries are mixed.

    See Also
    --------
    sinkhorn : Goes on until rows and columns both have their sums.

    Notes
    -----
    Slot : normalize
    Changes : queries compete for each key, so that they specialize; then each reads an average, as usual.
    Cost : O(n m) time and memory, twice that of softmax.
    Empty row : a row that may read nothing gets zeros; a query that loses every key by an infinite score, too.
    Promises : non-negative, sums to one, inside the hull
    Equals : ``sinkhorn`` with one step, when the exponentials of each row sum to one; equal shares of the allowed keys
        for a single query with finite scores.
    Year : 2020
    Source : Locatello et al., 2020, Object-Centric Learning with Slot Attention, arXiv 2006.15055, and its released
        code.
    Other names : inverted attention, inverted softmax, slot attention normalization, query-axis softmax, soft k-means

    A constant on a column changes nothing, a constant on a row does. A row depends on all other rows: under a causal
    mask the future changes the past. Computed with logarithms, so a query that loses every key by far still reads the
    keys that it loses least. Scores of plus infinity share their column equally. A NaN that may be read makes its
    column NaN, and with it what the rows read that may read this key.

    References
    ----------
    F. Locatello et al., Object-Centric Learning with Slot Attention, NeurIPS 2020.

    Examples
    --------
    >>> import numpy as np
    >>> s = np.log(np.array([[4.0, 1.0], [1.0, 1.0]]))
    >>> softmax_over_queries(s).round(3)
    array([[0.615, 0.385],
           [0.286, 0.714]])
    """
    xp, dtype, (s,) = promote(s=s)
    check_axes("n m", s=s)
    s = readable_scores(xp, s, allowed, -math.inf)
    return cast(xp, xp.exp(_log_softmax(xp, _log_softmax(xp, s.mT).mT)), dtype)


def _log_softmax(xp: Any, s: Array) -> Array:
    """Return the logarithm of the softmax of each row; what is not read stays minus infinity, also beside a NaN."""
    s = share_infinite(xp, s, row_max(xp, s))
    total = log_sum_exp(s)[..., None]
    return xp.where(s == -math.inf, -math.inf, s - xp.where(total == -math.inf, 0.0, total))
