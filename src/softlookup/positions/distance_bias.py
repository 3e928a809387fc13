"""Numbers added to the scores that depend on how far apart a query and a key stand."""

from typing import Any

import numpy as np
from array_api_compat import device, is_array_api_obj

from softlookup._arrays import Array, cast, library, promote
from softlookup._checks import broadcast_batch, check_axes, check_equal, integer_pairs, positive, positive_integer

__all__ = [
    "alibi",
    "alibi_slopes",
    "fire",
    "forgetting",
    "forgetting_by_totals",
    "kerple_log",
    "kerple_power",
    "sandwich",
]


def alibi_slopes(heads: int, /, *, octaves: float | Array = 8.0) -> Array:
    r"""List the slopes of ALiBi, one for each head.

    .. math:: m_h = 2^{-K (h + 1) / P} \ \text{for}\ h < P, \qquad
              m_h = 2^{-K (h - P + 1/2) / P} \ \text{for}\ P \le h < H,
              \qquad P = 2^{\lfloor \log_2 H \rfloor}

    Parameters
    ----------
    heads : int
        The number of heads H.
    octaves : float or array of shape (...)
        The number K: the smallest slope is one half to this power. A number gives a NumPy array of float64; an array
        gives an array of its library and dtype, with a row of slopes for each of its numbers.

    Returns
    -------
    array of shape (..., H)
        Slopes between zero and one.

    Raises
    ------
    ValueError
        If `heads` is not positive, or if a number `octaves` is not positive and finite.
    TypeError
        If `heads` is not an integer, or if `octaves` is neither a number nor an array of numbers.

    See Also
    --------
    alibi : The bias that is made from them.

    Notes
    -----
    Cost : O(H) time and memory.
    Empty row : there are no rows.

    This is the rule of the released code, which trained models follow. For a power of two it is the paper's, a
    geometric sequence that ends at 1/256. For other numbers it takes the slopes of the next smaller power of two, then
    every second one of twice that power, where the sentence in the paper has a geometric sequence again. A device that
    holds a part of the heads takes its part of these slopes, not the slopes of its own number of heads.

    References
    ----------
    O. Press, N. A. Smith and M. Lewis, Train Short, Test Long, ICLR 2022, section 3 and the released code.

    Examples
    --------
    >>> alibi_slopes(4)
    array([0.25      , 0.0625    , 0.015625  , 0.00390625])
    >>> alibi_slopes(6)[4:]
    array([0.5  , 0.125])
    """
    heads = positive_integer("heads", heads)
    if not is_array_api_obj(octaves):
        octaves = np.asarray(positive("octaves", octaves))
    xp, dtype, (octaves,) = promote(octaves=octaves)
    power = 2 ** (heads.bit_length() - 1)
    steps = [h / power for h in range(1, power + 1)] + [(h + 0.5) / power for h in range(heads - power)]
    steps = xp.asarray(steps, dtype=octaves.dtype, device=device(octaves))
    return cast(xp, 2.0 ** (-octaves[..., None] * steps), dtype)


def alibi(q_positions: Array, k_positions: Array, slopes: Array, /) -> Array:
    r"""Lower a score in proportion to the distance.

    .. math:: \text{bias}_{hij} = -m_h \, |p_i - p_j|

    Parameters
    ----------
    q_positions : integer array of shape (..., n)
        Position of each query.
    k_positions : integer array of shape (..., m)
        Position of each key.
    slopes : array of shape (..., H)
        The slope m of each head.

    Returns
    -------
    array of shape (..., H, n, m)
        The bias, in the dtype of `slopes`.

    Raises
    ------
    ValueError
        If an argument has no axis, or if the leading axes do not broadcast.
    TypeError
        If positions are not arrays of signed integers, if `slopes` is not an array of numbers, or if two array
        libraries are mixed.

    See Also
    --------
    alibi_slopes : The slopes of the paper.
    kerple_power : Any power of the distance.
    forgetting : A slope that the text decides on.

    Notes
    -----
    Slot : bias
    Changes : weights fall exponentially with the distance.
    Cost : O(H n m) time and memory.
    Empty row : decided by mask and normalizer.
    Promises : prefix stable
    Equals : ``kerple_power`` when the power is one; ``forgetting`` when all gates are exp(-slope) and the positions are
        consecutive, under a causal mask; the slope times the position of the key, under a causal softmax.
    Year : 2021
    Source : Press, Smith and Lewis, 2021, Train Short, Test Long, section 3, arXiv 2108.12409.
    Other names : ALiBi, attention with linear biases, linear bias, alibi_bias

    The bias is added to the scaled score and not scaled with it. In a narrow dtype distant keys share one bias: float16
    tells distances apart up to 2048, bfloat16 up to 256.

    References
    ----------
    O. Press, N. A. Smith and M. Lewis, Train Short, Test Long: Attention with Linear Biases Enables Input Length
    Extrapolation, ICLR 2022.

    Examples
    --------
    >>> import numpy as np
    >>> alibi(np.array([2]), np.arange(3), np.array([0.5]))
    array([[[-1. , -0.5,  0. ]]])
    """
    xp, dtype, distance, (slopes,) = _distance(q_positions, k_positions, slopes=slopes)
    return cast(xp, 0.0 - slopes * distance, dtype)


def kerple_log(q_positions: Array, k_positions: Array, r1: Array, r2: Array, /) -> Array:
    r"""Lower a score by the logarithm of the distance.

    .. math:: \text{bias}_{hij} = -r_{1h} \log(1 + r_{2h} |p_i - p_j|)

    Parameters
    ----------
    q_positions : integer array of shape (..., n)
        Position of each query.
    k_positions : integer array of shape (..., m)
        Position of each key.
    r1 : array of shape (..., H)
        The power with which weights fall, positive.
    r2 : array of shape (..., H)
        How soon the fall begins, positive.

    Returns
    -------
    array of shape (..., H, n, m)
        The bias, in the dtype of `r1` and `r2`.

    Raises
    ------
    ValueError
        If an argument has no axis, if `r1` and `r2` do not have the same number of heads, or if the leading axes do not
        broadcast.
    TypeError
        If positions are not arrays of signed integers, if `r1` or `r2` is not an array of numbers, or if two array
        libraries are mixed.

    See Also
    --------
    kerple_power : A power of the distance.

    Notes
    -----
    Slot : bias
    Changes : weights fall as a power of the distance, so slowly that far keys still count.
    Cost : O(H n m) time and memory.
    Empty row : decided by mask and normalizer.
    Promises : prefix stable
    Equals : ``alibi`` with the slope r1 r2 in the limit of small r2, the product kept; weights times (1 + r2 distance)
        to the power -r1.
    Year : 2022
    Source : Chi et al., 2022, KERPLE, section 4, arXiv 2205.09921; the released code.
    Other names : KERPLE, kernelized relative positional embedding, KERPLE-log, logarithmic bias

    The released code clamps both numbers to at least 0.01.

    References
    ----------
    T.-C. Chi, T.-H. Fan, P. J. Ramadge and A. I. Rudnicky, KERPLE: Kernelized Relative Positional Embedding for Length
    Extrapolation, NeurIPS 2022.

    Examples
    --------
    >>> import numpy as np
    >>> kerple_log(np.array([3]), np.array([0, 2, 3]), np.array([2.0]), np.array([1.0])).round(3)
    array([[[-2.773, -1.386,  0.   ]]])
    """
    xp, dtype, distance, (r1, r2) = _distance(q_positions, k_positions, r1=r1, r2=r2)
    return cast(xp, 0.0 - r1 * xp.log1p(r2 * distance), dtype)


def kerple_power(q_positions: Array, k_positions: Array, r1: Array, r2: Array, /) -> Array:
    r"""Lower a score by a power of the distance.

    .. math:: \text{bias}_{hij} = -r_{1h} \, |p_i - p_j|^{r_{2h}}

    Parameters
    ----------
    q_positions : integer array of shape (..., n)
        Position of each query.
    k_positions : integer array of shape (..., m)
        Position of each key.
    r1 : array of shape (..., H)
        The factor, positive.
    r2 : array of shape (..., H)
        The power, above zero and at most two.

    Returns
    -------
    array of shape (..., H, n, m)
        The bias, in the dtype of `r1` and `r2`.

    Raises
    ------
    ValueError
        Where `kerple_log` raises it.
    TypeError
        Where `kerple_log` raises it.

    See Also
    --------
    kerple_log : The logarithm of the distance.
    alibi : The power one.

    Notes
    -----
    Slot : bias
    Changes : weights fall faster than ALiBi's for a power above one, more slowly for one below.
    Cost : O(H n m) time and memory.
    Empty row : decided by mask and normalizer.
    Promises : prefix stable
    Equals : ``alibi`` when the power is one; a Gaussian of the distance, before the normalizer divides, when it is two.
    Year : 2022
    Source : Chi et al., 2022, KERPLE, section 4, arXiv 2205.09921; the released code.
    Other names : KERPLE-power, power-law bias, generalized ALiBi

    At distance zero the bias and its gradients are zero.

    References
    ----------
    T.-C. Chi, T.-H. Fan, P. J. Ramadge and A. I. Rudnicky, KERPLE: Kernelized Relative Positional Embedding for Length
    Extrapolation, NeurIPS 2022.

    Examples
    --------
    >>> import numpy as np
    >>> kerple_power(np.array([4]), np.array([0, 3, 4]), np.array([1.0]), np.array([0.5]))
    array([[[-2., -1.,  0.]]])
    """
    xp, dtype, distance, (r1, r2) = _distance(q_positions, k_positions, r1=r1, r2=r2)
    apart = distance > 0
    power = xp.exp(r2 * xp.log(xp.where(apart, distance, 1.0)))
    return cast(xp, 0.0 - r1 * xp.where(apart, power, 0.0), dtype)


def fire(
    q_positions: Array, k_positions: Array, c: Array, threshold: Array, w1: Array, b1: Array, w2: Array, /
) -> Array:
    r"""Let a small network turn the distance, as a part of the query's position, into a bias.

    .. math:: \text{bias}_{ij} = \max(x_{ij} w_1 + b_1, 0) \, w_2, \qquad
              x_{ij} = \frac{\log(1 + c \, |p_i - p_j|)}{\log(1 + c \max(L, p_i))}

    Parameters
    ----------
    q_positions : integer array of shape (..., n)
        Position of each query, counted from zero.
    k_positions : integer array of shape (..., m)
        Position of each key.
    c : array of shape (...)
        How much near distances are spread, positive. One number for all heads.
    threshold : array of shape (...)
        The number L, positive: a query up to it divides by the logarithm that belongs to L.
    w1 : array of shape (..., h)
        First layer of the network: the factors of its h units.
    b1 : array of shape (..., h)
        First layer: what is added.
    w2 : array of shape (..., h, H)
        Second layer, one column for each head.

    Returns
    -------
    array of shape (..., H, n, m)
        The bias, in the common dtype of the parameters.

    Raises
    ------
    ValueError
        If an axis is missing, if `w1`, `b1` and `w2` do not have the same number of units, or if the leading axes do
        not broadcast.
    TypeError
        If positions are not arrays of signed integers, if a parameter is not an array of numbers, or if two array
        libraries are mixed.

    See Also
    --------
    kerple_log : A fixed function of the distance itself.

    Notes
    -----
    Slot : bias
    Changes : the bias is a learned function of a number, between zero and one for keys up to the query at any length.
    Cost : O(n m h H) time, O(n m (h + H)) memory.
    Empty row : decided by mask and normalizer.
    Promises : prefix stable
    Equals : ``kerple_log`` for queries up to the threshold, when one unit passes x on and is multiplied by the head's
        power, negative, times the divisor.
    Year : 2023
    Source : Li et al., 2023, Functional Interpolation for Relative Positions Improves Long Context Transformers,
        abstract, arXiv 2310.04418; the published code.
    Other names : FIRE, functional interpolation for relative positions, progressive interpolation

    The divisor belongs to the query, not to the key and not to the length. A number added to the second layer would be
    the same for all keys of a row, so softmax would not see it; there is none. Where the divisor is zero, x is zero.

    References
    ----------
    S. Li et al., Functional Interpolation for Relative Positions Improves Long Context Transformers, ICLR 2024.

    Examples
    --------
    >>> import numpy as np
    >>> one = np.array(1.0)
    >>> fire(np.array([3]), np.array([0, 2, 3]), one, one, np.ones(1), np.zeros(1), -np.ones((1, 1)))
    array([[[-1. , -0.5,  0. ]]])
    """
    library(q_positions=q_positions, c=c)
    xp, dtype, (c, threshold, w1, b1, w2) = promote(c=c, threshold=threshold, w1=w1, b1=b1, w2=w2)
    query, key = integer_pairs(q_positions=q_positions, k_positions=k_positions)
    check_axes("h", w1=w1, b1=b1)
    check_axes("h H", w2=w2)
    check_equal("units", -1, w1=w1, b1=b1)
    check_equal("units", -1, w1=w1, w2=w2.mT)
    rows = {"q_positions": q_positions, "k_positions": k_positions, "w1": w1, "b1": b1}
    numbers = {"c": c[..., None, None], "threshold": threshold[..., None, None]}
    broadcast_batch(2, **{name: x[..., None] for name, x in rows.items()}, **numbers, w2=w2)
    distance, place = (cast(xp, a, c.dtype) for a in (xp.abs(key - query), query))
    c, threshold = c[..., None, None], threshold[..., None, None]
    whole = xp.log1p(c * xp.maximum(threshold, place))
    x = xp.where(whole == 0, 0.0, xp.log1p(c * distance) / xp.where(whole == 0, 1.0, whole))
    units = x[..., None] * w1[..., None, None, :] + b1[..., None, None, :]
    bias = xp.where(units > 0, units, 0.0) @ w2[..., None, :, :]
    return cast(xp, xp.moveaxis(bias, -1, -3), dtype)


def sandwich(q_positions: Array, k_positions: Array, ratios: Array, frequencies: Array, /) -> Array:
    r"""Add the inner product of two sinusoidal positions, which falls off with ripples.

    .. math:: \text{bias}_{hij} = \frac{1}{r_h} \sum_f \big( \cos(\omega_f (p_i - p_j)) - 1 \big)

    Parameters
    ----------
    q_positions : integer array of shape (..., n)
        Position of each query.
    k_positions : integer array of shape (..., m)
        Position of each key.
    ratios : array of shape (..., H)
        What the sum is divided by in each head; published are 8 (h + 1) / H for h from 0.
    frequencies : array of shape (..., F)
        The frequencies; published are 10000 to the power -2 f / d for f from 1 to d / 2, with d = 128.

    Returns
    -------
    array of shape (..., H, n, m)
        The bias, in the common dtype of `ratios` and `frequencies`.

    Raises
    ------
    ValueError
        If an argument has no axis, or if the leading axes do not broadcast.
    TypeError
        If positions are not arrays of signed integers, if `ratios` or `frequencies` is not an array of numbers, or if
        two array libraries are mixed.

    See Also
    --------
    kerple_log : Falls off without ripples.

    Notes
    -----
    Slot : bias
    Changes : weights fall with the logarithm of the distance, roughly, and nothing is learned.
    Cost : O(n m (F + H)) time and memory.
    Empty row : decided by mask and normalizer.
    Promises : prefix stable
    Equals : the inner product of sinusoidal positions, divided by the ratio, up to a constant.
    Year : 2022
    Source : Chi et al., 2022, Dissecting Transformer Length Extrapolation via the Lens of Receptive Field Analysis,
        abstract, arXiv 2212.10356; the grid of frequencies from the code of NeMo.
    Other names : Sandwich, sinusoidal bias

    Angles are computed from the exact difference of the positions, in the dtype of the frequencies and at least
    float32, in which an angle of a million radians is known to a sixteenth.

    References
    ----------
    T.-C. Chi, T.-H. Fan, A. I. Rudnicky and P. J. Ramadge, Dissecting Transformer Length Extrapolation via the Lens of
    Receptive Field Analysis, ACL 2023.

    Examples
    --------
    >>> import numpy as np
    >>> sandwich(np.array([2]), np.arange(3), np.array([1.0]), np.array([np.pi / 2])).round(3)
    array([[[-2., -1.,  0.]]])
    """
    xp, dtype, distance, (ratios, frequencies) = _distance(
        q_positions, k_positions, ratios=ratios, frequencies=frequencies
    )
    waves = xp.cos(frequencies * distance) - 1.0
    return cast(xp, xp.sum(waves, axis=-3, keepdims=True) / ratios, dtype)


def forgetting(q_positions: Array, k_positions: Array, log_f: Array, /) -> Array:
    r"""Lower a score by what the tokens after the key, up to the query, have decided to forget.

    .. math:: \text{bias}_{hij} = \sum_{l : \, p_j < p_l \le p_i} \log f_{hl}

    Parameters
    ----------
    q_positions : integer array of shape (..., n)
        Position of each query.
    k_positions : integer array of shape (..., m)
        Position of each key.
    log_f : array of shape (..., H, m)
        Logarithm of the gate of the token at each key, at most zero. Minus infinity, for a gate of zero, hides
        everything before that token.

    Returns
    -------
    array of shape (..., H, n, m)
        The bias; zero for keys that do not stand before the query.

    Raises
    ------
    ValueError
        If an axis is missing, if there is not one gate for each key, or if the leading axes do not broadcast.
    TypeError
        If positions are not arrays of signed integers, if `log_f` is not an array of numbers, or if two array libraries
        are mixed.

    See Also
    --------
    forgetting_by_totals : The same as a difference of two sums.
    alibi : The same gate everywhere.

    Notes
    -----
    Slot : bias
    Changes : how fast weights fall with the distance is decided by the text.
    Cost : O(H n m²) time and memory.
    Empty row : decided by mask and normalizer; a gate of zero never empties a row, since the query's own key stays.
    Promises : prefix stable
    Equals : ``forgetting_by_totals`` when no gate is zero, up to rounding; ``alibi`` when all gates are exp(-slope) and
        the positions are consecutive, under a causal mask; no bias when all gates are one.
    Year : 2025
    Source : Lin et al., 2025, Forgetting Transformer: Softmax Attention with a Forget Gate, abstract, arXiv 2503.02130.
    Other names : forgetting attention, FoX, Forgetting Transformer, forget gate, data-dependent ALiBi,
        data-dependent decay bias

    The key's own gate is left out and the query's is counted. The bias is added to the scaled score.

    References
    ----------
    Z. Lin, E. Nikishin, X. O. He and A. Courville, Forgetting Transformer: Softmax Attention with a Forget Gate,
    ICLR 2025.

    Examples
    --------
    >>> import numpy as np
    >>> forgetting(np.array([2]), np.arange(3), np.array([[-5.0, -2.0, -1.0]]))
    array([[[-3., -1.,  0.]]])
    """
    xp, dtype, query, key, log_f = _gates(q_positions, k_positions, log_f)
    later = key[..., None, :] > key[..., :, None]
    between = later[..., None, :, :] & (key[..., None, :] <= query[..., :, None])[..., None, :]
    steps = xp.where(between[..., None, :, :, :], log_f[..., :, None, None, :], 0.0)
    return cast(xp, xp.sum(steps, axis=-1), dtype)


def forgetting_by_totals(q_positions: Array, k_positions: Array, log_f: Array, /) -> Array:
    r"""Compute the forgetting bias from one running total at the query and one at the key.

    .. math:: \text{bias}_{hij} = C_h(p_i) - C_h(p_j) \ \text{if}\ p_j \le p_i, \ \text{else}\ 0, \qquad
              C_h(p) = \sum_{l : \, p_l \le p} \log f_{hl}

    Parameters
    ----------
    q_positions : integer array of shape (..., n)
        Position of each query.
    k_positions : integer array of shape (..., m)
        Position of each key.
    log_f : array of shape (..., H, m)
        Logarithm of the gate of the token at each key; finite and at most zero.

    Returns
    -------
    array of shape (..., H, n, m)
        The bias; NaN between tokens that both stand after a gate of zero.

    Raises
    ------
    ValueError
        Where `forgetting` raises it.
    TypeError
        Where `forgetting` raises it.

    See Also
    --------
    forgetting : The definition.

    Notes
    -----
    Slot : bias
    Changes : nothing; it is the form that fast programs use, since it needs two numbers for each token.
    Cost : O(H m (n + m)) time and memory.
    Empty row : decided by mask and normalizer.
    Promises : prefix stable
    Equals : ``forgetting`` when no gate is zero, up to the rounding error of the totals.
    Year : 2025
    Source : Lin et al., 2025, Forgetting Transformer: Softmax Attention with a Forget Gate, abstract, arXiv 2503.02130.
    Other names : cumulative forget gate, cumulated log gates, cumsum of log gates

    The totals grow with the length and their difference need not: each result is off by about the last digit of the
    totals.

    References
    ----------
    Z. Lin, E. Nikishin, X. O. He and A. Courville, Forgetting Transformer: Softmax Attention with a Forget Gate,
    ICLR 2025.

    Examples
    --------
    >>> import numpy as np
    >>> forgetting_by_totals(np.array([2]), np.arange(3), np.array([[-5.0, -2.0, -1.0]]))
    array([[[-3., -1.,  0.]]])
    """
    xp, dtype, query, key, log_f = _gates(q_positions, k_positions, log_f)

    def total(p: Array) -> Array:
        reached = key[..., None, :] <= p[..., :, None]
        return xp.sum(xp.where(reached[..., None, :, :], log_f[..., None, :], 0.0), axis=-1)

    bias = total(query)[..., :, None] - total(key)[..., None, :]
    past = (key[..., None, :] <= query[..., :, None])[..., None, :, :]
    return cast(xp, xp.where(past, bias, 0.0), dtype)


def _distance(q_positions: Array, k_positions: Array, **heads: Array) -> tuple[Any, Any, Array, list[Array]]:
    """Return the library, the dtype of the result, ``|p_i - p_j| (..., 1, n, m)`` and arrays ``(..., H, 1, 1)``."""
    library(q_positions=q_positions, k_positions=k_positions, **heads)
    xp, dtype, arrays = promote(**heads)
    query, key = integer_pairs(q_positions=q_positions, k_positions=k_positions)
    check_axes("H", **heads)
    if "r1" in heads:
        check_equal("heads", -1, **heads)
    broadcast_batch(1, q_positions=q_positions, k_positions=k_positions, **heads)
    distance = cast(xp, xp.abs(key - query), arrays[0].dtype)[..., None, :, :]
    return xp, dtype, distance, [x[..., :, None, None] for x in arrays]


def _gates(q_positions: Array, k_positions: Array, log_f: Array) -> tuple[Any, Any, Array, Array, Array]:
    """Return the library, the dtype of the result, positions of one dtype, and the gates in the dtype to compute in."""
    library(q_positions=q_positions, k_positions=k_positions, log_f=log_f)
    xp, dtype, (log_f,) = promote(log_f=log_f)
    query, key = integer_pairs(q_positions=q_positions, k_positions=k_positions)
    check_axes("H m", log_f=log_f)
    check_equal("keys", -1, k_positions=k_positions, log_f=log_f)
    broadcast_batch(2, q_positions=q_positions[..., None], k_positions=k_positions[..., None], log_f=log_f)
    return xp, dtype, query[..., 0], key[..., 0, :], log_f
