"""Normalized queries and keys: their lengths are set before they are compared, so that scores are bounded."""

import math
from collections.abc import Callable
from typing import Any

from softlookup._arrays import Array, Score, cast, promote, unit
from softlookup._checks import check_axes, check_broadcast, check_callable, finite
from softlookup.lookup import scaled_dot

__all__ = ["layer_norm", "normalized", "rms_norm", "rms_norm_heads", "unit_norm"]


def unit_norm(x: Array, /) -> Array:
    r"""Give each vector the length one.

    .. math:: \operatorname{unit}(x) = x / \lVert x \rVert

    Parameters
    ----------
    x : array of shape (..., n, d)
        Queries or keys.

    Returns
    -------
    array of shape (..., n, d)
        The same directions; a vector of zeros stays.

    Raises
    ------
    ValueError
        If an axis is missing.
    TypeError
        If `x` is not an array of numbers.

    See Also
    --------
    rms_norm : Gives the length sqrt(d).

    Notes
    -----
    Cost : O(n d) time.

    There is no epsilon. The gradient at a vector of zeros is zero.

    References
    ----------
    A. Henry et al., Query-Key Normalization for Transformers, Findings of EMNLP 2020, arXiv 2010.04245.

    Examples
    --------
    >>> import numpy as np
    >>> unit_norm(np.array([[3.0, 4.0], [0.0, 0.0]]))
    array([[0.6, 0.8],
           [0. , 0. ]])
    """
    xp, dtype, (x,) = promote(x=x)
    check_axes("n d", x=x)
    return cast(xp, unit(xp, x), dtype)


def rms_norm(x: Array, /, *, weight: Array | None = None, epsilon: float = 0.0) -> Array:
    r"""Divide each vector by the root of the mean of its squares.

    .. math:: \operatorname{rms}(x)_c = \frac{x_c}{\sqrt{\tfrac1d \sum_b x_b^2 + \varepsilon}} \; w_c

    Parameters
    ----------
    x : array of shape (..., H, n, d)
        Queries or keys; each vector of each head is divided on its own.
    weight : array that broadcasts to (..., H, n, d), optional
        The numbers w, usually of shape (d,). Libraries that store a weight around zero mean one plus it.
    epsilon : float
        The number that is added to the mean of the squares.

    Returns
    -------
    array of shape (..., H, n, d)
        Without a weight and an epsilon, vectors of length sqrt(d); a vector of zeros stays.

    Raises
    ------
    ValueError
        If an axis is missing, if `weight` would enlarge `x`, or if `epsilon` is not finite.
    TypeError
        If `x` or `weight` is not an array of numbers, if two array libraries are mixed, or if `epsilon` is not a
        number.

    See Also
    --------
    rms_norm_heads : One mean for all heads.
    layer_norm : Takes the mean off first.

    Notes
    -----
    Cost : O(n d) time.

    Equals ``sqrt(d)`` times `unit_norm` without a weight and an epsilon. The squares must not overflow.

    References
    ----------
    B. Zhang and R. Sennrich, Root Mean Square Layer Normalization, NeurIPS 2019, arXiv 1910.07467.

    Examples
    --------
    >>> import numpy as np
    >>> rms_norm(np.array([[1.0, 7.0]]))  # the mean of the squares is 25
    array([[0.2, 1.4]])
    """
    xp, dtype, (x, weight) = promote(x=x, weight=weight)
    check_axes("n d", x=x)
    return cast(xp, _weighted(xp, _divide_by_rms(xp, x, (-1,), epsilon), weight), dtype)


def rms_norm_heads(x: Array, /, *, weight: Array | None = None, epsilon: float = 0.0) -> Array:
    r"""Divide the vectors of all heads at one position by the root of the mean of all their squares.

    .. math:: \operatorname{rms}(x)_{hc} = \frac{x_{hc}}{\sqrt{\tfrac1{Hd} \sum_{g, b} x_{gb}^2 + \varepsilon}} \;
              w_{hc}

    Parameters
    ----------
    x : array of shape (..., H, n, d)
        Queries or keys.
    weight : array that broadcasts to (..., H, n, d), optional
        The numbers w, usually of shape (H, 1, d).
    epsilon : float
        The number that is added to the mean of the squares.

    Returns
    -------
    array of shape (..., H, n, d)
        Vectors whose squared lengths, summed over the heads, are H d, without a weight and an epsilon.

    Raises
    ------
    ValueError
        If an axis is missing, if `weight` would enlarge `x`, or if `epsilon` is not finite.
    TypeError
        If `x` or `weight` is not an array of numbers, if two array libraries are mixed, or if `epsilon` is not a
        number.

    See Also
    --------
    rms_norm : One mean for each head.

    Notes
    -----
    Cost : O(H n d) time.

    Equals `rms_norm` when there is one head. Heads keep their lengths relative to one another, so one head alone is
    bounded only by ``sqrt(H d)``.

    References
    ----------
    Team OLMo, 2 OLMo 2 Furious, 2025, arXiv 2501.00656.

    Examples
    --------
    >>> import numpy as np
    >>> rms_norm_heads(np.array([[[1.0]], [[7.0]]]))  # two heads of width one
    array([[[0.2]],
    <BLANKLINE>
           [[1.4]]])
    """
    xp, dtype, (x, weight) = promote(x=x, weight=weight)
    check_axes("H n d", x=x)
    return cast(xp, _weighted(xp, _divide_by_rms(xp, x, (-3, -1), epsilon), weight), dtype)


def layer_norm(x: Array, /, *, weight: Array | None = None, bias: Array | None = None, epsilon: float = 0.0) -> Array:
    r"""Take the mean off each vector, then divide it by the root of the mean of its squares.

    .. math:: \operatorname{ln}(x) = \operatorname{rms}(x - \bar x) + b, \qquad \bar x = \tfrac1d \sum_c x_c

    Parameters
    ----------
    x : array of shape (..., H, n, d)
        Queries or keys.
    weight : array that broadcasts to (..., H, n, d), optional
        The numbers that the result is multiplied by, usually of shape (d,).
    bias : array that broadcasts to (..., H, n, d), optional
        The numbers b that are added at the end.
    epsilon : float
        The number that is added to the variance.

    Returns
    -------
    array of shape (..., H, n, d)
        Vectors of mean zero and length sqrt(d), without the options; a vector of equal numbers gives zeros.

    Raises
    ------
    ValueError
        If an axis is missing, if `weight` or `bias` would enlarge `x`, or if `epsilon` is not finite.
    TypeError
        If `x`, `weight` or `bias` is not an array of numbers, if two array libraries are mixed, or if `epsilon` is not
        a number.

    See Also
    --------
    rms_norm : Leaves the mean where it is.

    Notes
    -----
    Cost : O(n d) time.

    References
    ----------
    J. L. Ba, J. R. Kiros and G. E. Hinton, Layer Normalization, 2016, arXiv 1607.06450.

    Examples
    --------
    >>> import numpy as np
    >>> layer_norm(np.array([[1.0, 3.0]]))
    array([[-1.,  1.]])
    """
    xp, dtype, (x, weight, bias) = promote(x=x, weight=weight, bias=bias)
    check_axes("n d", x=x)
    centered = x - xp.sum(x, axis=-1, keepdims=True) / max(x.shape[-1], 1)
    y = _weighted(xp, _divide_by_rms(xp, centered, (-1,), epsilon), weight)
    if bias is not None:
        check_broadcast("bias", bias, x.shape)
        y = y + bias
    return cast(xp, y, dtype)


def normalized(
    *,
    query: Callable[[Array], Array] = unit_norm,
    key: Callable[[Array], Array] = unit_norm,
    score: Score = scaled_dot(),
) -> Score:
    r"""Build a score of queries and keys that are normalized first.

    .. math:: s_{ij} = \operatorname{score}\bigl(\operatorname{query}(q_i), \operatorname{key}(k_j)\bigr)

    Parameters
    ----------
    query : callable
        What is done to the queries: `unit_norm`, `rms_norm`, ..., or one of them with its options filled in.
    key : callable
        What is done to the keys.
    score : callable
        The score ``score(q, k) -> s`` of the results, with its own scale.

    Returns
    -------
    callable
        The function ``score(q, k)``, for the argument `score` of `attention`.

    Raises
    ------
    ValueError
        The score raises what the functions given raise.
    TypeError
        If `query`, `key` or `score` cannot be called.

    See Also
    --------
    cosine : Unit vectors with a temperature.
    row_scaled : Multiplies by a learned number.

    Notes
    -----
    Slot : score
    Changes : the lengths of queries and keys no longer count; scores are bounded.
    Cost : that of the score, and O((n + m) d) time.
    Empty row : decided by the normalizer.
    Promises : prefix stable
    Equals : ``cosine(temperature=t)`` for unit vectors when the score is ``scaled_dot(scale=1/t)``; ``cosine()`` times
        the root of d for `rms_norm` without a weight, with the usual scale.
    Year : 2020
    Source : Henry et al., 2020, Query-Key Normalization for Transformers, abstract, arXiv 2010.04245; Dehghani et al.,
        2023, Scaling Vision Transformers to 22 Billion Parameters, section 2, arXiv 2302.05442, with layer norms.
    Other names : QK norm, QKNorm, qk-norm, query-key normalization, q_norm, k_norm, QK layernorm

    References
    ----------
    A. Henry et al., Query-Key Normalization for Transformers, Findings of EMNLP 2020.

    Examples
    --------
    >>> import numpy as np
    >>> q, k = np.array([[30.0, 40.0]]), np.array([[0.3, 0.4], [5.0, 0.0]])
    >>> normalized(score=scaled_dot(scale=10.0))(q, k).round(9)
    array([[10.,  6.]])
    """
    check_callable("a function", query=query, key=key, score=score)

    def compare(q: Array, k: Array, /) -> Array:
        xp, dtype, (q, k) = promote(q=q, k=k)
        return cast(xp, score(query(q), key(k)), dtype)

    return compare


def _divide_by_rms(xp: Any, x: Array, axes: tuple[int, ...], epsilon: float) -> Array:
    """Return `x` over the root of its mean square; where that is zero, `x`, which is zero."""
    count = max(math.prod(x.shape[axis] for axis in axes), 1)
    square = xp.sum(x**2, axis=axes, keepdims=True) / count + finite("epsilon", epsilon)
    return x / xp.sqrt(xp.where(square == 0, 1.0, square))


def _weighted(xp: Any, x: Array, weight: Array | None) -> Array:
    if weight is None:
        return x
    check_broadcast("weight", weight, x.shape)
    return x * weight
