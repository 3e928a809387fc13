"""Attention with eight bits for each number: rounding, and exact changes of queries and keys that make it hurt less."""

import math
from collections.abc import Callable

from array_api_compat import device

from softlookup._arrays import Array, Score, below_top, cast, hide_unread, library, promote, row_max
from softlookup._checks import (
    check_axes,
    check_broadcast,
    check_callable,
    check_shape,
    positive_integer,
    readable_scores,
)
from softlookup.lookup.attention import _readable_keys, _spread_values, attention_scores, scaled_dot
from softlookup.lookup.weighted_average import weighted_average

__all__ = [
    "dequantize",
    "hadamard",
    "quantize_int8",
    "quantized_attention",
    "round_to_e4m3",
    "round_to_e5m2",
    "smooth_keys",
]

LARGEST = 127.0


def quantize_int8(x: Array, /, *, rows: int) -> tuple[Array, Array]:
    r"""Write each block of rows as whole numbers from -127 to 127 and one scale.

    .. math:: \Delta = \frac{1}{127} \max_{i \in \text{block}} \max_c |x_{ic}|, \qquad
              \text{codes}_{ic} = \operatorname{round}(x_{ic} / \Delta)

    Parameters
    ----------
    x : array of shape (..., n, d)
        Numbers, such as queries or keys.
    rows : int
        How many rows share a scale: 1 for a scale of each row, n for one of all. The last block may be smaller.

    Returns
    -------
    codes : int8 array of shape (..., n, d)
        The whole numbers. Ties go to the even one.
    scales : array of shape (..., n, 1)
        The scale of each row, in the dtype of `x`, but at least float32.

    Raises
    ------
    ValueError
        If `x` has fewer than two axes, or if `rows` is not positive.
    TypeError
        If `x` is not an array of numbers, or if `rows` is not an integer.

    See Also
    --------
    dequantize : The way back.
    round_to_e4m3 : Eight bits with an exponent, and no scale.

    Notes
    -----
    Cost : O(n d) time; d bytes for a row, and a scale for each block.
    Empty row : a block of zeros has the scale 0 and the codes 0.

    Also called symmetric absmax quantization, per-token, per-row, per-block or per-tensor quantization. A block that
    holds NaN or infinity has that as its scale, and comes back as NaN. Rounding has the derivative zero.

    Examples
    --------
    >>> import numpy as np
    >>> codes, scales = quantize_int8(np.array([[12.7, 5.02, -0.27]]), rows=1)
    >>> codes, scales
    (array([[127,  50,  -3]], dtype=int8), array([[0.1]]))
    """
    rows = positive_integer("rows", rows)
    xp, _, (x,) = promote(x=x)
    check_axes("n d", x=x)
    n = x.shape[-2]
    tops = xp.clip(row_max(xp, xp.abs(x)), 0.0, math.inf)  # zero without columns
    missing = xp.zeros((*x.shape[:-2], -n % rows, 1), dtype=x.dtype, device=device(x))
    blocks = xp.reshape(xp.concat([tops, missing], axis=-2), (*x.shape[:-2], -(-n // rows), rows))
    scales = xp.repeat(xp.max(blocks, axis=-1, keepdims=True) / LARGEST, rows, axis=-2)[..., :n, :]
    whole = (scales > 0) & (scales < math.inf)
    codes = xp.round(xp.where(whole, x, 0.0) / xp.where(whole, scales, 1.0))
    codes = xp.clip(codes, -LARGEST, LARGEST)  # the smallest numbers there are have a scale with hardly any digits
    return cast(xp, codes, xp.int8), scales


def dequantize(codes: Array, scales: Array, /) -> Array:
    r"""Turn whole numbers and their scales back into numbers.

    .. math:: \hat x_{ic} = \Delta_i \, \text{codes}_{ic}

    Parameters
    ----------
    codes : array of shape (..., n, d)
        Whole numbers, as from `quantize_int8`.
    scales : array of shape (..., n, 1)
        The scale of each row.

    Returns
    -------
    array of shape (..., n, d)
        The numbers, in the dtype of `scales`.

    Raises
    ------
    ValueError
        If `codes` has fewer than two axes, or if `scales` does not have one number for each row.
    TypeError
        If an argument is not an array of numbers, or if two array libraries are mixed.

    See Also
    --------
    quantize_int8 : Makes codes and scales.

    Notes
    -----
    Cost : O(n d) time.
    Empty row : zeros for the scale 0.

    The result differs from what was quantized by at most half a scale, and is its own rounding.

    Examples
    --------
    >>> import numpy as np
    >>> dequantize(np.array([[127, 50, -3]], dtype=np.int8), np.array([[0.1]])).round(6)
    array([[12.7,  5. , -0.3]])
    """
    xp = library(codes=codes, scales=scales)
    check_axes("n d", codes=codes)
    check_shape("scales", scales, (*codes.shape[:-1], 1))
    _, dtype, (scales,) = promote(scales=scales)
    return cast(xp, cast(xp, codes, scales.dtype) * scales, dtype)


def round_to_e4m3(x: Array, /) -> Array:
    r"""Round to the nearest number that has eight bits: a sign, four for the exponent, three for the fraction.

    .. math:: \hat x = u \operatorname{round}(x / u), \qquad
              u = 2^{\max(\lfloor \log_2 |x| \rfloor, \, -6) - 3}, \qquad |\hat x| \le 448

    Parameters
    ----------
    x : array of any shape
        Numbers.

    Returns
    -------
    array of the shape of `x`
        The nearest representable numbers, in the dtype of `x`; ties go to the even fraction.

    Raises
    ------
    TypeError
        If `x` is not an array of numbers.

    See Also
    --------
    round_to_e5m2 : One bit more for the exponent.
    quantize_int8 : Eight bits without an exponent.

    Notes
    -----
    Cost : O(1) for each number.
    Empty row : zero stays zero, with its sign.

    Also called E4M3, float8_e4m3fn, FP8. Numbers beyond 448 and infinities become 448 with their sign: the
    format has no infinity. NaN stays. The error is at most 1/16 of the number from 2**-6 on, and at most 2**-10 below.

    References
    ----------
    P. Micikevicius et al., FP8 Formats for Deep Learning, 2022.

    Examples
    --------
    >>> import numpy as np
    >>> round_to_e4m3(np.array([0.3, 1.0, 17.0, 19.0, 1000.0]))
    array([3.125e-01, 1.000e+00, 1.600e+01, 2.000e+01, 4.480e+02])
    """
    return _round_to(x, bits=3, lowest=-6, largest=448.0)


def round_to_e5m2(x: Array, /) -> Array:
    r"""Round to the nearest number that has eight bits: a sign, five for the exponent, two for the fraction.

    .. math:: \hat x = u \operatorname{round}(x / u), \qquad
              u = 2^{\max(\lfloor \log_2 |x| \rfloor, \, -14) - 2}, \qquad |\hat x| \le 57344

    Parameters
    ----------
    x : array of any shape
        Numbers.

    Returns
    -------
    array of the shape of `x`
        The nearest representable numbers, in the dtype of `x`; ties go to the even fraction.

    Raises
    ------
    TypeError
        If `x` is not an array of numbers.

    See Also
    --------
    round_to_e4m3 : One bit more for the fraction.

    Notes
    -----
    Cost : O(1) for each number.
    Empty row : zero stays zero, with its sign.

    Also called E5M2, float8_e5m2, FP8. Numbers beyond 57344 and infinities become 57344 with their sign, although the
    format has an infinity. NaN stays. The error is at most 1/8 of the number from 2**-14 on, and at most 2**-17 below.

    References
    ----------
    P. Micikevicius et al., FP8 Formats for Deep Learning, 2022.

    Examples
    --------
    >>> import numpy as np
    >>> round_to_e5m2(np.array([0.3, 1.0, 17.0, 19.0, 1000.0]))
    array([3.125e-01, 1.000e+00, 1.600e+01, 2.000e+01, 1.024e+03])
    """
    return _round_to(x, bits=2, lowest=-14, largest=57344.0)


def smooth_keys(k: Array, /) -> tuple[Array, Array]:
    r"""Subtract the mean key from each key, which moves all scores of a query by the same number.

    .. math:: k'_j = k_j - \bar k, \qquad \bar k = \frac{1}{m} \sum_j k_j, \qquad
              q_i \cdot k'_j = q_i \cdot k_j - q_i \cdot \bar k

    Parameters
    ----------
    k : array of shape (..., m, d)
        Keys.

    Returns
    -------
    smoothed : array of shape (..., m, d)
        The keys without their mean.
    mean : array of shape (..., 1, d)
        What was subtracted. A log-sum-exp over the smoothed keys becomes that of the keys by adding
        ``scale * q @ mean.T``.

    Raises
    ------
    ValueError
        If `k` has fewer than two axes.
    TypeError
        If `k` is not an array of numbers.

    See Also
    --------
    hadamard : Another exact change, of queries and keys.
    quantized_attention : What it is good for.

    Notes
    -----
    Cost : O(m d) time.
    Empty row : without keys the mean is zero.

    Also called K smoothing, smooth K. The weights stay what they are for every normalizer that does not mind a constant
    on a row. Any other vector in place of the mean would do as well: the mean of earlier keys, for example. The mean
    looks at all keys, so that under a causal mask the *rounding* of a key depends on later ones.

    References
    ----------
    J. Zhang et al., SageAttention: Accurate 8-Bit Attention for Plug-and-play Inference Acceleration, 2024.

    Examples
    --------
    >>> import numpy as np
    >>> smooth_keys(np.array([[101.0, 1.0], [99.0, 3.0], [100.0, -1.0]]))
    (array([[ 1.,  0.],
           [-1.,  2.],
           [ 0., -2.]]), array([[100.,   1.]]))
    """
    xp, dtype, (k,) = promote(k=k)
    check_axes("m d", k=k)
    mean = xp.sum(k, axis=-2, keepdims=True) / max(k.shape[-2], 1)
    return cast(xp, k - mean, dtype), cast(xp, mean, dtype)


def hadamard(x: Array, /, *, signs: Array | None = None) -> Array:
    r"""Rotate each row by a matrix all of whose entries are plus or minus one over the root of the width.

    .. math:: y = x \operatorname{diag}(\text{signs}) \, H, \qquad
              H_{ab} = \frac{(-1)^{|a \wedge b|}}{\sqrt d}, \qquad H H^\top = 1

    where :math:`|a \wedge b|` counts the binary digits that are one in both a and b.

    Parameters
    ----------
    x : array of shape (..., d)
        Rows, such as queries or keys. The width d is a power of two.
    signs : array of shape (d,), optional
        Plus or minus one for each column, or any array of them that broadcasts to `x`. They are drawn once, and the
        same for queries and keys. None means no change.

    Returns
    -------
    array of shape (..., d)
        The rotated rows: dot products and lengths stay.

    Raises
    ------
    ValueError
        If `x` has no axis, if d is not a power of two, or if `signs` does not broadcast to `x`.
    TypeError
        If an argument is not an array of numbers, or if two array libraries are mixed.

    See Also
    --------
    smooth_keys : Another exact change, of keys alone.

    Notes
    -----
    Cost : O(d log d) for each row, against O(d^2) for the matrix.
    Empty row : zeros stay zeros.

    Also called Walsh-Hadamard transform, randomized Hadamard transform, incoherent processing, rotation. Without signs
    it is its own inverse. Queries and keys must both be rotated, and positions applied before.

    References
    ----------
    J. Shah et al., FlashAttention-3: Fast and Accurate Attention with Asynchrony and Low-precision, 2024.

    Examples
    --------
    >>> import numpy as np
    >>> hadamard(np.array([8.0, 0.0, 0.0, 0.0]))
    array([4., 4., 4., 4.])
    """
    xp, dtype, (x, signs) = promote(x=x, signs=signs)
    check_axes("d", x=x)
    d = x.shape[-1]
    if d < 1 or d & (d - 1):
        raise ValueError(f"x has {d} columns; their number must be a power of two")
    if signs is not None:
        check_broadcast("signs", signs, tuple(x.shape))
        x = x * signs
    shape, half = x.shape, 1
    while half < d:
        pairs = xp.reshape(x, (*shape[:-1], d // (2 * half), 2, half))
        one, two = pairs[..., 0, :], pairs[..., 1, :]
        x = xp.reshape(xp.stack([one + two, one - two], axis=-2), shape)
        half *= 2
    return cast(xp, x / math.sqrt(d), dtype)


def quantized_attention(
    q: Array,
    k: Array,
    v: Array,
    /,
    *,
    rounding: Callable[[Array], Array],
    mask: Array | None = None,
    bias: Array | None = None,
    score: Score = scaled_dot(),
) -> tuple[Array, Array]:
    r"""Attend with rounded queries, keys, exponentials and values.

    .. math:: o_i = \frac{1}{\ell_i} \sum_j \hat e_{ij} \, \hat v_j, \qquad e_{ij} = e^{s_{ij} - \mu_i}, \qquad
              \ell_i = \sum_j e_{ij}, \qquad s_{ij} = \operatorname{score}(\hat q_i, \hat k_j) + \text{bias}_{ij}

    where a hat marks what went through `rounding`, and :math:`\mu_i` is the largest score of the row.

    Parameters
    ----------
    q : array of shape (..., H, n, d)
        Queries.
    k : array of shape (..., H_kv, m, d)
        Keys.
    v : array of shape (..., H_kv, m, e)
        Values.
    rounding : callable
        Gives for an array the numbers that stand for it, of the same shape, such as ``round_to_e4m3`` or
        ``lambda x: dequantize(*quantize_int8(x, rows=1))``.
    mask : boolean array that broadcasts to (..., H, n, m), optional
        True where the query may read the key.
    bias : array that broadcasts to (..., H, n, m), optional
        Numbers that are added to the scores; they are not rounded.
    score : callable
        Compares: ``score(q, k) -> s``.

    Returns
    -------
    out : array of shape (..., H, n, e)
        One blend for each query.
    lse : array of shape (..., H, n)
        The natural log-sum-exp of the scores of rounded queries and keys, in at least float32. With smoothed keys
        `smooth_keys` says what to add.

    Raises
    ------
    ValueError
        Where `attention` raises it.
    TypeError
        If `rounding` cannot be called, and where `attention` raises it.

    See Also
    --------
    attention : Without rounding.
    smooth_keys, hadamard : What to do before, so that rounding hurts less.

    Notes
    -----
    Slot : around all five: with how many digits
    Changes : queries, keys, exponentials and values are rounded before each of the two products; sums are not.
    Cost : O(H n m (d + e)) time, as attention, with eight bits for each factor; O(H n m) memory here.
    Empty row : a query that may read nothing gets zeros and minus infinity.
    Promises : prefix stable
    Equals : ``partial_attention`` when `rounding` gives back what it gets.
    Year : 2024
    Source : Shah et al., 2024, FlashAttention-3, section 3.3, arXiv 2407.08608; Zhang et al., 2024, SageAttention,
        sections 4.2 and 4.3, arXiv 2410.02367.
    Other names : SageAttention, INT8 attention, FP8 attention, FP8 FlashAttention, quantised attention, low-precision
        attention, 8-bit attention, fake quantization, QDQ

    The total is the sum of the exponentials before they are rounded, so that the weights need not sum to one. The
    promise holds for a rounding that looks at one row at a time. A key that no query may read can hold NaN or infinity
    without effect; where some may read it, others stay what they are if the rounding looks at one row at a time.

    References
    ----------
    J. Shah et al., FlashAttention-3: Fast and Accurate Attention with Asynchrony and Low-precision, 2024.

    Examples
    --------
    >>> import numpy as np
    >>> q, k, v = np.array([[1.03]]), np.array([[0.0], [2.1]]), np.array([[3.3], [5.1]])
    >>> out, lse = quantized_attention(q, k, v, rounding=round_to_e4m3)
    >>> out.round(3), lse.round(3)
    (array([[4.807]]), array([2.127]))
    """
    check_callable("a function", rounding=rounding)
    xp, dtype, (q, k, v, bias) = promote(q=q, k=k, v=v, bias=bias)
    v = _spread_values(xp, q, k, v)
    k, allowed = _readable_keys(xp, q, k, mask)
    s = attention_scores(rounding(q), rounding(k), bias=bias, score=score)
    s = readable_scores(xp, s, allowed, -math.inf)
    top = row_max(xp, s)
    e = xp.exp(below_top(xp, s, top))
    total = xp.sum(e, axis=-1, keepdims=True)
    total = xp.where(total == 0, 1.0, total)
    out = weighted_average(rounding(e), rounding(hide_unread(xp, v, allowed)), allowed=allowed) / total
    return cast(xp, out, dtype), (top + xp.log(total))[..., 0]


def _round_to(x: Array, *, bits: int, lowest: int, largest: float) -> Array:
    """Round to `bits` binary digits after the leading one, with steps that shrink no more below ``2**lowest``."""
    xp, dtype, (x,) = promote(x=x)
    x = xp.clip(x, -largest, largest)
    step = xp.zeros_like(x) + 2.0 ** (lowest - bits)
    for exponent in range(lowest + 1, math.frexp(largest)[1]):
        step = xp.where(xp.abs(x) >= 2.0**exponent, 2.0 ** (exponent - bits), step)
    return cast(xp, xp.round(x / step) * step, dtype)
