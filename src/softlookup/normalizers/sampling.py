"""Sampling: weights from scores and noise, so that a choice at random has a slope."""

import math
from typing import Any

from softlookup._arrays import Array, Normalizer, cast, promote
from softlookup._checks import check_axes, check_broadcast, positive, readable_scores
from softlookup.lookup import hardmax, softmax, softmax_vjp

__all__ = ["gumbel_noise", "gumbel_softmax", "straight_through"]


def gumbel_noise(u: Array, /) -> Array:
    r"""Turn uniform numbers into standard Gumbel noise.

    .. math:: G = -\log(-\log u)

    Parameters
    ----------
    u : array of shape (...)
        Uniform numbers from zero to one, drawn by the caller.

    Returns
    -------
    array of shape (...)
        Noise with the distribution function exp(-exp(-G)).

    Raises
    ------
    TypeError
        If `u` is not an array of numbers.

    See Also
    --------
    gumbel_softmax : Adds it to scores.

    Notes
    -----
    Cost : O(1) for each number.
    Empty row : does not ask for keys.

    Generators that draw exactly zero would give minus infinity, which `softmax` reads as a key without weight; exactly
    one would give plus infinity. Numbers outside the range give NaN.

    References
    ----------
    E. Jang, S. Gu, B. Poole, Categorical Reparameterization with Gumbel-Softmax, ICLR 2017, section 2.

    Examples
    --------
    >>> import numpy as np
    >>> gumbel_noise(np.array([0.0, 0.1, 0.5, 0.9, 1.0])).round(4)
    array([   -inf, -0.834 ,  0.3665,  2.2504,     inf])
    """
    xp, dtype, (u,) = promote(u=u)
    inside = (u > 0) & (u < 1)
    noise = -xp.log(-xp.log(xp.where(inside, u, 0.5)))
    edge = xp.where(u == 0, -math.inf, xp.where(u == 1, math.inf, u * math.nan))
    return cast(xp, xp.where(inside, noise, edge), dtype)


def gumbel_softmax(noise: Array, /, *, temperature: float = 1.0) -> Normalizer:
    r"""Build the softmax of scores with noise added.

    .. math:: w_i = \operatorname{softmax}\Bigl(\frac{s_i + G_i}{T}\Bigr)

    Parameters
    ----------
    noise : array of shape (..., n, m)
        The noise G, one number for each pair, of the shape of the scores or one that broadcasts to it.
    temperature : float
        The number T that the sum is divided by.

    Returns
    -------
    callable
        The function ``normalize(s, allowed)``, for the argument `normalize` of `attention`, with the attribute
        ``vjp(g, s, allowed)``.

    Raises
    ------
    ValueError
        If `temperature` is not positive and finite. The normalizer raises it if `s` has no axis, if `noise` would
        enlarge `s`, or if `allowed` would.
    TypeError
        If `temperature` is not a number. The normalizer raises it if `s` or `noise` is not an array of numbers, if
        `allowed` is not boolean, or if two array libraries are mixed.

    See Also
    --------
    gumbel_noise : The noise from uniform numbers.
    straight_through : The hard draw with this gradient.

    Notes
    -----
    Slot : normalize
    Changes : which keys are read varies with the noise; on average over it the best key is drawn with the probability
        that softmax gives it.
    Cost : O(n m) time and memory.
    Empty row : a row that may read nothing gets zeros.
    Promises : non-negative, sums to one, inside the hull, shift invariant, prefix stable
    Equals : ``softmax(temperature=t)`` when the noise is zero; a draw from softmax at temperature one, in the limit of
        temperature zero.
    Year : 2016
    Source : Jang, Gu and Poole, 2017, Categorical Reparameterization with Gumbel-Softmax, section 2, arXiv 1611.01144;
        Maddison, Mnih and Teh, 2017, The Concrete Distribution, section 3.2, arXiv 1611.00712.
    Other names : Gumbel softmax, Concrete distribution, relaxed categorical

    The noise is an argument, so the function is pure: the same noise gives the same weights.

    References
    ----------
    E. Jang, S. Gu, B. Poole, Categorical Reparameterization with Gumbel-Softmax, ICLR 2017.

    Examples
    --------
    >>> import numpy as np
    >>> gumbel_softmax(np.array([[0.0, 2.0, 0.0]]))(np.array([[1.0, 0.0, 0.0]])).round(3)
    array([[0.245, 0.665, 0.09 ]])
    """
    temperature = positive("temperature", temperature, hint=" (the limit at zero is straight_through)")

    def normalize(s: Array, allowed: Array | None = None, /) -> Array:
        xp, dtype, (s, g) = promote(s=s, noise=noise)
        return cast(xp, softmax(_noisy(xp, s, g, allowed), allowed, temperature=temperature), dtype)

    def vjp(g: Array, s: Array, allowed: Array | None = None, /) -> Array:
        xp, dtype, (g, s, drawn) = promote(g=g, s=s, noise=noise)
        return cast(xp, softmax_vjp(g, _noisy(xp, s, drawn, allowed), allowed, temperature=temperature), dtype)

    normalize.vjp = vjp
    return normalize


def straight_through(noise: Array, /, *, temperature: float = 1.0) -> Normalizer:
    r"""Build the hard draw whose gradient is that of the soft one.

    .. math:: w_i = \operatorname{hardmax}(s_i + G_i), \qquad
              ds = \operatorname{vjp}_{\text{gumbel softmax}}(dw)

    Parameters
    ----------
    noise : array of shape (..., n, m)
        The noise G, one number for each pair, of the shape of the scores or one that broadcasts to it.
    temperature : float
        The temperature of the soft draw that the gradient is taken from; it does not change the weights.

    Returns
    -------
    callable
        The function ``normalize(s, allowed)``, for the argument `normalize` of `attention`, with the attribute
        ``vjp(g, s, allowed)`` of the soft draw.

    Raises
    ------
    ValueError
        Where `gumbel_softmax` raises it.
    TypeError
        Where `gumbel_softmax` raises it.

    See Also
    --------
    gumbel_softmax : The soft draw.

    Notes
    -----
    Slot : normalize
    Changes : each query reads one key, drawn at random, and still has a slope.
    Cost : O(n m) time and memory.
    Empty row : a row that may read nothing gets zeros.
    Promises : non-negative, sums to one, inside the hull, shift invariant, prefix stable
    Equals : ``hardmax`` when the noise is zero.
    Year : 2016
    Source : Jang, Gu and Poole, 2017, Categorical Reparameterization with Gumbel-Softmax, section 2.2, arXiv
        1611.01144.
    Other names : straight-through Gumbel-softmax, ST Gumbel-Softmax, Gumbel-max trick, hard Gumbel softmax

    The weights are hard in every library. Automatic differentiation of them gives zero; the surrogate gradient is the
    attribute ``vjp``, which `attention_vjp` uses. The result of that function is not the derivative of anything.

    References
    ----------
    E. Jang, S. Gu, B. Poole, Categorical Reparameterization with Gumbel-Softmax, ICLR 2017.

    Examples
    --------
    >>> import numpy as np
    >>> draw = straight_through(np.array([[0.0, 2.0, 0.0]]))
    >>> draw(np.array([[1.0, 0.0, 0.0]]))
    array([[0., 1., 0.]])
    >>> draw.vjp(np.array([[0.0, 1.0, 0.0]]), np.array([[1.0, 0.0, 0.0]])).round(3)
    array([[-0.163,  0.223, -0.06 ]])
    """
    soft = gumbel_softmax(noise, temperature=temperature)

    def normalize(s: Array, allowed: Array | None = None, /) -> Array:
        xp, dtype, (s, g) = promote(s=s, noise=noise)
        return cast(xp, hardmax(_noisy(xp, s, g, allowed), allowed), dtype)

    normalize.vjp = soft.vjp
    return normalize


def _noisy(xp: Any, s: Array, noise: Array, allowed: Array | None) -> Array:
    """Return the scores with the noise added, and the noise alone where nothing may be read."""
    check_axes("m", s=s)
    check_broadcast("noise", noise, s.shape)
    return readable_scores(xp, s, allowed, 0.0) + noise
