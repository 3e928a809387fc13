"""Scores become a budget: weights that are non-negative and sum to one."""

import math
from typing import Any

from softlookup._arrays import Array, below_top, cast, hide, promote, row_max
from softlookup._checks import check_axes, check_shape, positive, readable_scores

__all__ = ["effective_items", "entropy", "log_sum_exp", "softmax", "softmax_vjp"]


def softmax(s: Array, allowed: Array | None = None, /, *, temperature: float = 1.0) -> Array:
    r"""Turn each row of scores into weights that sum to one.

    .. math:: w_{ij} = \frac{\exp(s_{ij} / T)}{\sum_{l \,\text{allowed for}\, i} \exp(s_{il} / T)}
              \quad\text{for allowed}\ j, \qquad w_{ij} = 0 \quad\text{otherwise}

    Parameters
    ----------
    s : array of shape (..., n, m)
        Scores. One row alone, of shape (m,), is fine too.
    allowed : boolean array that broadcasts to the shape of `s`, optional
        True where the item may be read. Whatever score stands elsewhere has no effect.
    temperature : float
        The number T that the scores are divided by: small makes the weights sharp, large makes them even.

    Returns
    -------
    array of shape (..., n, m)
        Weights.

    Raises
    ------
    ValueError
        If `s` has no axis, if `allowed` would enlarge it, or if `temperature` is not positive and finite; the limit
        at zero is `hard_lookup`.
    TypeError
        If `s` is not an array of numbers, if `allowed` is not boolean, if two array libraries are mixed, or if
        `temperature` is not a number.

    See Also
    --------
    log_sum_exp : The logarithm of the total that softmax divides by.
    softmax_vjp : The gradient.
    hardmax_average : The limit of temperature zero.

    Notes
    -----
    Slot : normalize
    Changes : nothing; it is the default.
    Cost : O(n m) time and memory.
    Empty row : a row that may read nothing, or only scores of minus infinity, gets zeros.
    Promises : non-negative, sums to one, inside the hull, shift invariant, prefix stable
    Equals : ``hardmax_average`` in the limit of temperature zero; in the limit of infinity equal shares of the allowed
        items, when their scores are finite; the weights of kernel regression when the score is ``gaussian_score``.
    Year : 1868
    Source : Boltzmann, 1868, for energies; Bridle, 1990, Probabilistic Interpretation of Feedforward Classification
        Network Outputs, pp. 227-236, for the name and for networks.
    Other names : Boltzmann distribution, Gibbs distribution, normalized exponential

    The maximum of the row is subtracted before the exponential, so large scores do not overflow. A score of minus
    infinity gets the weight zero. Scores of plus infinity share the budget equally and leave nothing to finite ones.
    A NaN that may be read makes its whole row NaN. Integers become the library's default float. A temperature beyond
    the range of the dtype counts as the end of that range.

    References
    ----------
    J. S. Bridle, in Neurocomputing: Algorithms, Architectures and Applications, Springer, 1990, pp. 227-236.

    Examples
    --------
    >>> import numpy as np
    >>> s = np.array([[2.0, 1.0, 0.0]])
    >>> softmax(s).round(3)
    array([[0.665, 0.245, 0.09 ]])
    >>> softmax(s, np.array([False, True, True]), temperature=0.5).round(3)
    array([[0.   , 0.881, 0.119]])
    """
    temperature = positive("temperature", temperature, hint=" (the limit at zero is hard_lookup)")
    xp, dtype, (s,) = promote(s=s)
    shifted, _ = _subtract_max(xp, s, allowed)
    e = xp.exp(shifted / _in_range(xp, temperature, s.dtype))
    total = xp.sum(e, axis=-1, keepdims=True)
    return cast(xp, e / xp.where(total == 0, 1.0, total), dtype)


def log_sum_exp(s: Array, allowed: Array | None = None, /) -> Array:
    r"""Take the natural logarithm of the sum of the exponentials of each row.

    .. math:: L_i = \log \sum_{j \,\text{allowed for}\, i} \exp(s_{ij})

    Parameters
    ----------
    s : array of shape (..., n, m)
        Scores.
    allowed : boolean array that broadcasts to the shape of `s`, optional
        True where the item may be read.

    Returns
    -------
    array of shape (..., n)
        One number for each row, on the scale of the scores.

    Raises
    ------
    ValueError
        If `s` has no axis, or if `allowed` would enlarge it.
    TypeError
        If `s` is not an array of numbers, if `allowed` is not boolean, or if two array libraries are mixed.

    See Also
    --------
    softmax : Its weights are exp(s - L).

    Notes
    -----
    Cost : O(n m) time and memory.
    Empty row : a row that may read nothing, or only scores of minus infinity, gives minus infinity.

    An allowed score of plus infinity gives plus infinity, an allowed NaN gives NaN. Where the allowed scores
    are finite, the gradient is the softmax.

    Examples
    --------
    >>> import numpy as np
    >>> log_sum_exp(np.array([[1000.0, 999.0], [0.0, -np.inf]])).round(4)
    array([1000.3133,    0.    ])
    """
    xp, dtype, (s,) = promote(s=s)
    shifted, top = _subtract_max(xp, s, allowed)
    total = xp.sum(xp.exp(shifted), axis=-1)
    return cast(xp, top[..., 0] + xp.log(xp.where(total == 0, 1.0, total)), dtype)


def entropy(w: Array, /) -> Array:
    r"""Measure in bits how spread the weights of each row are.

    .. math:: H_i = -\sum_j w_{ij} \log_2 w_{ij}, \qquad 0 \log_2 0 = 0

    Parameters
    ----------
    w : array of shape (..., n, m)
        Non-negative weights, each row with the sum one.

    Returns
    -------
    array of shape (..., n)
        Bits: zero for one item alone, ``log2(m)`` for m equal shares.

    Raises
    ------
    ValueError
        If `w` has no axis.
    TypeError
        If `w` is not an array of numbers.

    See Also
    --------
    effective_items : The same on the scale of a count.

    Notes
    -----
    Cost : O(n m) time.
    Empty row : a row of zeros has the entropy zero, which alone does not tell it from a row that reads one item.

    References
    ----------
    C. E. Shannon, A Mathematical Theory of Communication, 1948, section 6.

    Examples
    --------
    >>> import numpy as np
    >>> entropy(np.array([[0.25, 0.25, 0.25, 0.25], [0.5, 0.5, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0]]))
    array([2., 1., 0.])
    """
    xp, dtype, (w,) = promote(w=w)
    check_axes("m", w=w)
    w = xp.where(w == 0, 1.0, w)
    return cast(xp, 0.0 - xp.sum(w * xp.log2(w), axis=-1), dtype)


def effective_items(w: Array, /) -> Array:
    r"""Count the items that each row consults.

    .. math:: 2^{H_i}, \qquad H_i = -\sum_j w_{ij} \log_2 w_{ij}

    Parameters
    ----------
    w : array of shape (..., n, m)
        Non-negative weights, each row with the sum one.

    Returns
    -------
    array of shape (..., n)
        From one, for one item alone, to m, for equal shares.

    Raises
    ------
    ValueError
        If `w` has no axis.
    TypeError
        If `w` is not an array of numbers.

    See Also
    --------
    entropy : The same in bits.

    Notes
    -----
    Cost : O(n m) time.
    Empty row : a row of zeros consults no item: 0.

    Also called perplexity, or the Hill number of order one.

    References
    ----------
    M. O. Hill, Diversity and Evenness, Ecology 54, 1973, pp. 427-432.

    Examples
    --------
    >>> import numpy as np
    >>> effective_items(np.array([[0.5, 0.5, 0.0], [0.8, 0.1, 0.1], [0.0, 0.0, 0.0]])).round(3)
    array([2.   , 1.895, 0.   ])
    """
    xp, dtype, (w,) = promote(w=w)
    bits = entropy(w)
    return cast(xp, xp.where(xp.all(w == 0, axis=-1), 0.0, 2.0**bits), dtype)


def softmax_vjp(g: Array, s: Array, allowed: Array | None = None, /, *, temperature: float = 1.0) -> Array:
    r"""Pull a gradient with respect to the weights back to the scores.

    .. math:: ds_{ij} = \frac{w_{ij}}{T} \Bigl(g_{ij} - \sum_l w_{il} \, g_{il}\Bigr),
              \qquad w = \operatorname{softmax}(s / T)

    Parameters
    ----------
    g : array of shape (..., n, m)
        Gradient with respect to the weights. Where a pair is not allowed, it has no effect.
    s : array of shape (..., n, m)
        Scores, as they were given to `softmax`.
    allowed : boolean array that broadcasts to the shape of `s`, optional
        As it was given to `softmax`.
    temperature : float
        As it was given to `softmax`.

    Returns
    -------
    array of shape (..., n, m)
        Gradient with respect to the scores; zero where a pair is not allowed. Each row sums to zero, up to rounding.

    Raises
    ------
    ValueError
        If `g` does not have the shape of `s`, and where `softmax` raises it.
    TypeError
        Where `softmax` raises it.

    See Also
    --------
    softmax : The function itself; it carries this one as its attribute ``vjp``.

    Notes
    -----
    Cost : O(n m) time and memory.
    Empty row : zeros.

    Examples
    --------
    >>> import numpy as np
    >>> softmax_vjp(np.array([[1.0, 0.0]]), np.array([[0.0, 0.0]]))
    array([[ 0.25, -0.25]])
    """
    xp, dtype, (g, s) = promote(g=g, s=s)
    w = softmax(s, allowed, temperature=temperature)
    check_shape("g", g, s.shape)
    g = hide(xp, g, allowed, 0.0)
    ds = w * (g - xp.sum(w * g, axis=-1, keepdims=True)) / _in_range(xp, float(temperature), s.dtype)
    return cast(xp, ds, dtype)


softmax.vjp = softmax_vjp


def _subtract_max(xp: Any, s: Array, allowed: Array | None) -> tuple[Array, Array]:
    s = readable_scores(xp, s, allowed, -math.inf)
    top = row_max(xp, s)
    return below_top(xp, s, top), top


def _in_range(xp: Any, temperature: float, dtype: Any) -> float:
    info = xp.finfo(dtype)
    return min(max(temperature, info.smallest_normal), info.max)
