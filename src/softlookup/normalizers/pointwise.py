"""Pointwise normalizers: each score alone decides its weight, and keys do not compete."""

import math
from typing import Any

from softlookup._arrays import Array, cast, hide, promote
from softlookup._checks import check_shape, positive, readable_scores

__all__ = ["relu", "sigmoid", "sigmoid_vjp", "silu", "squared_relu"]


def sigmoid(s: Array, allowed: Array | None = None, /, *, length: float = 1.0) -> Array:
    r"""Let each score open its own gate.

    .. math:: w_{ij} = \sigma(s_{ij} - \log L) = \frac{1}{1 + L e^{-s_{ij}}} \quad\text{for allowed}\ j,
              \qquad w_{ij} = 0 \quad\text{otherwise}

    Parameters
    ----------
    s : array of shape (..., n, m)
        Scores. One row alone, of shape (m,), is fine too.
    allowed : boolean array that broadcasts to the shape of `s`, optional
        True where the item may be read.
    length : float
        The number L, usually the length of the texts in training; it is not the number of keys that a query may read.

    Returns
    -------
    array of shape (..., n, m)
        Weights.

    Raises
    ------
    ValueError
        If `s` has no axis, if `allowed` would enlarge it, or if `length` is not positive and finite.
    TypeError
        If `s` is not an array of numbers, if `allowed` is not boolean, if two array libraries are mixed, or if
        `length` is not a number.

    See Also
    --------
    sigmoid_vjp : The gradient.
    softmax_plus_one : The same for a row of one key.

    Notes
    -----
    Slot : normalize
    Changes : a weight depends on its own score alone, and rows need not sum to one.
    Cost : O(n m) time and memory; no sum and no maximum along a row.
    Empty row : zeros, by the formula.
    Promises : non-negative, prefix stable
    Equals : ``softmax_plus_one`` for a row of one key; equal weights 1 / (1 + L) for scores of zero.
    Year : 2024
    Source : Ramapuram et al., 2024, Theory, Analysis, and Best Practices for Sigmoid Self-Attention, arXiv 2409.04431,
        abstract.
    Other names : sigmoid attention, sigmoid self-attention, FlashSigmoid, sigmoid with bias -log n

    A score of minus infinity gives zero, one of plus infinity gives one. A NaN that may be read stays alone.

    References
    ----------
    J. Ramapuram et al., Theory, Analysis, and Best Practices for Sigmoid Self-Attention, ICLR 2025.

    Examples
    --------
    >>> import numpy as np
    >>> sigmoid(np.zeros((1, 3)), length=3)
    array([[0.25, 0.25, 0.25]])
    """
    length = positive("length", length)
    xp, dtype, (s,) = promote(s=s)
    return cast(xp, _sigmoid(xp, readable_scores(xp, s, allowed, -math.inf) - math.log(length)), dtype)


def sigmoid_vjp(g: Array, s: Array, allowed: Array | None = None, /, *, length: float = 1.0) -> Array:
    r"""Pull a gradient with respect to the weights back to the scores.

    .. math:: ds_{ij} = w_{ij} (1 - w_{ij}) \, g_{ij}

    Parameters
    ----------
    g : array of shape (..., n, m)
        Gradient with respect to the weights. Where a pair is not allowed, it has no effect.
    s : array of shape (..., n, m)
        Scores, as they were given to `sigmoid`.
    allowed : boolean array that broadcasts to the shape of `s`, optional
        As it was given to `sigmoid`.
    length : float
        As it was given to `sigmoid`.

    Returns
    -------
    array of shape (..., n, m)
        Gradient with respect to the scores; zero where a pair is not allowed.

    Raises
    ------
    ValueError
        If `g` does not have the shape of `s`, and where `sigmoid` raises it.
    TypeError
        Where `sigmoid` raises it.

    See Also
    --------
    sigmoid : The function itself; it carries this one as its attribute ``vjp``.

    Notes
    -----
    Cost : O(n m) time and memory.
    Empty row : zeros.

    Examples
    --------
    >>> import numpy as np
    >>> sigmoid_vjp(np.array([[1.0, 2.0]]), np.zeros((1, 2)))
    array([[0.25, 0.5 ]])
    """
    xp, dtype, (g, s) = promote(g=g, s=s)
    w = sigmoid(s, allowed, length=length)
    check_shape("g", g, s.shape)
    return cast(xp, w * (1 - w) * hide(xp, g, allowed, 0.0), dtype)


sigmoid.vjp = sigmoid_vjp


def relu(s: Array, allowed: Array | None = None, /, *, length: float = 1.0) -> Array:
    r"""Read each item in proportion to its score, if that is positive.

    .. math:: w_{ij} = \frac{\max(s_{ij}, 0)}{L} \quad\text{for allowed}\ j,
              \qquad w_{ij} = 0 \quad\text{otherwise}

    Parameters
    ----------
    s : array of shape (..., n, m)
        Scores. One row alone, of shape (m,), is fine too.
    allowed : boolean array that broadcasts to the shape of `s`, optional
        True where the item may be read.
    length : float
        The number L, usually the length of the texts in training; it is not the number of keys that a query may read.

    Returns
    -------
    array of shape (..., n, m)
        Weights.

    Raises
    ------
    ValueError
        If `s` has no axis, if `allowed` would enlarge it, or if `length` is not positive and finite.
    TypeError
        If `s` is not an array of numbers, if `allowed` is not boolean, if two array libraries are mixed, or if
        `length` is not a number.

    See Also
    --------
    squared_relu : Its square.
    sigmoid : Bounded weights.

    Notes
    -----
    Slot : normalize
    Changes : a weight grows in proportion to its own score; negative scores are not read.
    Cost : O(n m) time and memory; no sum and no maximum along a row.
    Empty row : zeros, by the formula.
    Promises : non-negative, prefix stable
    Equals : the square root of ``squared_relu`` when L is one.
    Year : 2021
    Source : Zhang, Titov and Sennrich, 2021, Sparse Attention with Linear Units, arXiv 2104.07012, abstract, without
        L; Wortsman et al., 2023, section 3, arXiv 2309.08586, with L.
    Other names : ReLU attention, rectified linear attention, ReLA, point-wise attention

    Without a bound on the weights a model needs something after it that keeps the output in range.

    References
    ----------
    B. Zhang, I. Titov and R. Sennrich, Sparse Attention with Linear Units, EMNLP 2021.

    Examples
    --------
    >>> import numpy as np
    >>> relu(np.array([[3.0, -1.0]]), length=2)
    array([[1.5, 0. ]])
    """
    length = positive("length", length)
    xp, dtype, (s,) = promote(s=s)
    s = readable_scores(xp, s, allowed, 0.0)
    return cast(xp, xp.where(s < 0, 0.0, s) / length, dtype)


def squared_relu(s: Array, allowed: Array | None = None, /, *, length: float = 1.0) -> Array:
    r"""Read each item in proportion to the square of its score, if that is positive.

    .. math:: w_{ij} = \left(\frac{\max(s_{ij}, 0)}{L}\right)^2 \quad\text{for allowed}\ j,
              \qquad w_{ij} = 0 \quad\text{otherwise}

    Parameters
    ----------
    s : array of shape (..., n, m)
        Scores. One row alone, of shape (m,), is fine too.
    allowed : boolean array that broadcasts to the shape of `s`, optional
        True where the item may be read.
    length : float
        The number L; it stands inside the square.

    Returns
    -------
    array of shape (..., n, m)
        Weights.

    Raises
    ------
    ValueError
        If `s` has no axis, if `allowed` would enlarge it, or if `length` is not positive and finite.
    TypeError
        If `s` is not an array of numbers, if `allowed` is not boolean, if two array libraries are mixed, or if
        `length` is not a number.

    See Also
    --------
    relu : Without the square.
    silu : Smooth, with negative weights.

    Notes
    -----
    Slot : normalize
    Changes : large scores count more than in proportion; negative scores are not read.
    Cost : O(n m) time and memory; no sum and no maximum along a row.
    Empty row : zeros, by the formula.
    Promises : non-negative, prefix stable
    Equals : the square of ``relu``.
    Year : 2022
    Source : Hua et al., 2022, Transformer Quality in Linear Time, arXiv 2202.10447, abstract; that it squares
        is told by Wortsman et al., 2023, section 2, arXiv 2309.08586.
    Other names : squared ReLU attention, relu^2, gated attention unit, GAU, FLASH-Quad

    Where L stands outside the square, as in other code, pass the root of that number.

    References
    ----------
    W. Hua et al., Transformer Quality in Linear Time, ICML 2022.

    Examples
    --------
    >>> import numpy as np
    >>> squared_relu(np.array([[3.0, -1.0]]), length=2)
    array([[2.25, 0.  ]])
    """
    xp, dtype, (s,) = promote(s=s)
    w = relu(s, allowed, length=length)
    return cast(xp, w * w, dtype)


def silu(s: Array, allowed: Array | None = None, /, *, length: float = 1.0) -> Array:
    r"""Read each item by its score times the sigmoid of the score; weights may be negative.

    .. math:: w_{ij} = \frac{s_{ij} \, \sigma(s_{ij})}{L} \quad\text{for allowed}\ j,
              \qquad w_{ij} = 0 \quad\text{otherwise}

    Parameters
    ----------
    s : array of shape (..., n, m)
        Scores. One row alone, of shape (m,), is fine too.
    allowed : boolean array that broadcasts to the shape of `s`, optional
        True where the item may be read.
    length : float
        The number L, usually the length of the texts in training; it is not the number of keys that a query may read.

    Returns
    -------
    array of shape (..., n, m)
        Weights.

    Raises
    ------
    ValueError
        If `s` has no axis, if `allowed` would enlarge it, or if `length` is not positive and finite.
    TypeError
        If `s` is not an array of numbers, if `allowed` is not boolean, if two array libraries are mixed, or if
        `length` is not a number.

    See Also
    --------
    relu : The same for large scores, without negative weights.

    Notes
    -----
    Slot : normalize
    Changes : weights may be a little negative, and rows need not sum to one.
    Cost : O(n m) time and memory; no sum and no maximum along a row.
    Empty row : zeros, by the formula.
    Promises : prefix stable
    Equals : ``relu`` in the limit of large scores of either sign.
    Year : 2024
    Source : Zhai et al., 2024, Actions Speak Louder than Words, section 3, arXiv 2402.17152, without L.
    Other names : SiLU attention, HSTU, pointwise aggregated attention, swish attention

    The smallest weight, near a score of -1.28, is about -0.278 / L. A score of minus infinity gives zero.

    References
    ----------
    J. Zhai et al., Actions Speak Louder than Words, ICML 2024.

    Examples
    --------
    >>> import numpy as np
    >>> silu(np.array([[2.0, 0.0, -2.0]])).round(3)
    array([[ 1.762,  0.   , -0.238]])
    """
    length = positive("length", length)
    xp, dtype, (s,) = promote(s=s)
    s = readable_scores(xp, s, allowed, 0.0)
    s = xp.where(s == -math.inf, 0.0, s)
    return cast(xp, s * _sigmoid(xp, s) / length, dtype)


def _sigmoid(xp: Any, x: Array) -> Array:
    """Return ``1 / (1 + exp(-x))`` without overflow, with its gradient also at zero, where that of abs is zero."""
    e = xp.exp(xp.where(x < 0, x, -x))
    return xp.where(x < 0, e, 1.0) / (1 + e)
