"""Rotary scaling: other frequencies for texts longer than those seen in training, and factors beside them."""

import math
from typing import Any

import numpy as np
from array_api_compat import device, is_array_api_obj

from softlookup._arrays import Array, cast, promote
from softlookup._checks import check_axes, check_broadcast, positive
from softlookup.positions.rotary import _pairing, _pairs, rotary_frequencies

__all__ = [
    "by_parts_frequencies",
    "dynamic_ntk_frequencies",
    "interpolated_frequencies",
    "longrope_frequencies",
    "longrope_stretch",
    "ntk_frequencies",
    "xpos_stretch",
    "yarn_frequencies",
    "yarn_stretch",
]


def interpolated_frequencies(frequencies: Array, /, *, factor: float) -> Array:
    r"""Divide all frequencies by one factor, as if positions stood closer together.

    .. math:: \theta'_r = \theta_r / s

    Parameters
    ----------
    frequencies : array of shape (..., R)
        Frequencies that the model was trained with.
    factor : float
        How many times longer s texts are to be.

    Returns
    -------
    array of shape (..., R)
        Frequencies for `rotary`.

    Raises
    ------
    ValueError
        If `frequencies` has no axis, or if `factor` is not positive and finite.
    TypeError
        If `frequencies` is not an array of numbers, or if `factor` is not a number.

    See Also
    --------
    ntk_frequencies : Spares the high frequencies.

    Notes
    -----
    Slot : score
    Changes : a distance looks as a distance s times shorter did.
    Cost : O(d) time and memory.
    Empty row : there are no rows.
    Promises : prefix stable
    Equals : ``rotary`` with positions divided by the factor; the frequencies themselves when it is one.
    Year : 2023
    Source : Chen et al., 2023, Positional Interpolation, arXiv 2306.15595, section 2.3.
    Other names : position interpolation, positional interpolation, PI, linear scaling, rope_type linear, linear RoPE
        scaling

    References
    ----------
    S. Chen et al., Extending Context Window of Large Language Models via Positional Interpolation, 2023.

    Examples
    --------
    >>> import numpy as np
    >>> interpolated_frequencies(np.array([1.0, 0.1]), factor=4)
    array([0.25 , 0.025])
    """
    factor = positive("factor", factor)
    xp, _, dtype, frequencies = _prepared(frequencies)
    return cast(xp, frequencies / factor, dtype)


def ntk_frequencies(frequencies: Array, /, *, factor: float) -> Array:
    r"""Divide the lowest frequency by the factor, the highest by one, and those between by powers between.

    .. math:: \theta'_r = \theta_r \, s^{-r/(R-1)}

    Parameters
    ----------
    frequencies : array of shape (..., R)
        Frequencies that the model was trained with, the highest first; at least two.
    factor : float
        How many times longer s texts are to be.

    Returns
    -------
    array of shape (..., R)
        Frequencies for `rotary`.

    Raises
    ------
    ValueError
        If `frequencies` has no axis or fewer than two numbers on it, or if `factor` is not positive and finite.
    TypeError
        If `frequencies` is not an array of numbers, or if `factor` is not a number.

    See Also
    --------
    dynamic_ntk_frequencies : With a factor that follows the length.

    Notes
    -----
    Slot : score
    Changes : slow pairs stretch as by interpolation, fast pairs stay.
    Cost : O(d) time and memory.
    Empty row : there are no rows.
    Promises : prefix stable
    Equals : ``rotary_frequencies`` with the base times s to the power d / (d - 2).
    Year : 2023
    Source : bloc97, 2023, NTK-Aware Scaled RoPE, as described by Peng et al., 2023, YaRN, arXiv 2309.00071.
    Other names : NTK-aware scaling, NTK-aware interpolation, NTK RoPE, base rescaling

    Adjusted base frequency (ABF) takes a larger base too, but one that is chosen by hand.

    References
    ----------
    B. Peng et al., YaRN: Efficient Context Window Extension of Large Language Models, 2023.

    Examples
    --------
    >>> import numpy as np
    >>> ntk_frequencies(np.array([1.0, 0.1, 0.01]), factor=4)
    array([1.    , 0.05  , 0.0025])
    """
    factor = positive("factor", factor)
    xp, pairs, dtype, frequencies = _prepared(frequencies)
    if pairs < 2:
        raise ValueError(f"frequencies has {pairs} numbers; it needs at least two, the first of which stays")
    powers = xp.arange(pairs, dtype=frequencies.dtype, device=device(frequencies)) / (pairs - 1)
    return cast(xp, frequencies * xp.exp(-math.log(factor) * powers), dtype)


def dynamic_ntk_frequencies(frequencies: Array, /, *, factor: float, length: float, trained: float) -> Array:
    r"""Scale by the length that the text has now; up to the trained length, change nothing.

    .. math:: \theta'_r = \theta_r \, s^{-r/(R-1)}, \qquad s = \max\bigl(1, \; 1 + f \, (L / L_0 - 1)\bigr)

    Parameters
    ----------
    frequencies : array of shape (..., R)
        Frequencies that the model was trained with, the highest first; at least two.
    factor : float
        How fast the scale grows with the length: the number f.
    length : float
        Number L of items so far, not the largest that may come.
    trained : float
        Longest length in training, the number before it was extended.

    Returns
    -------
    array of shape (..., R)
        Frequencies for `rotary`. They differ for different lengths, so keys that were turned before do not fit.

    Raises
    ------
    ValueError
        If `frequencies` has no axis or fewer than two numbers on it, or if a number is not positive and finite.
    TypeError
        If `frequencies` is not an array of numbers, or if an option is not a number.

    See Also
    --------
    ntk_frequencies : With a fixed factor.

    Notes
    -----
    Slot : score
    Changes : short texts are read as in training, longer ones with slower pairs.
    Cost : O(d) time and memory; a cache of turned keys must be turned again when the length grows.
    Empty row : there are no rows.
    Promises : prefix stable
    Equals : the frequencies themselves up to the trained length; ``ntk_frequencies`` with the factor s beyond it.
    Year : 2023
    Source : emozilla, 2023, Dynamically Scaled RoPE, as described by Peng et al., 2023, YaRN, arXiv 2309.00071.
    Other names : dynamic NTK, dynamic NTK scaling, rope_type dynamic, dynamically scaled RoPE

    The paper has the factor one; others are those of released code. Rows are prefix stable at one length only: a longer
    text turns its earlier items otherwise too.

    References
    ----------
    B. Peng et al., YaRN: Efficient Context Window Extension of Large Language Models, 2023.

    Examples
    --------
    >>> import numpy as np
    >>> dynamic_ntk_frequencies(np.array([1.0, 0.1]), factor=2, length=150, trained=100)
    array([1.  , 0.05])
    """
    factor, length, trained = (
        positive(name, x) for name, x in (("factor", factor), ("length", length), ("trained", trained))
    )
    return ntk_frequencies(frequencies, factor=max(1.0, 1 + factor * (length / trained - 1)))


def by_parts_frequencies(
    frequencies: Array, /, *, factor: float, trained: float, low: float = 1.0, high: float = 4.0
) -> Array:
    r"""Keep pairs that turned often in training, divide those that hardly turned, and blend in between.

    .. math:: \theta'_r = \gamma \, \theta_r + (1 - \gamma) \, \theta_r / s, \qquad
              \gamma = \min\Bigl(1, \max\Bigl(0, \frac{L_0 \theta_r / 2\pi - \text{low}}{\text{high} - \text{low}}
              \Bigr)\Bigr)

    Parameters
    ----------
    frequencies : array of shape (..., R)
        Frequencies that the model was trained with, in any order.
    factor : float
        How many times longer s texts are to be.
    trained : float
        Longest length in training, the number before it was extended.
    low : float
        Pairs with at most so many full turns in the trained length are divided by the factor.
    high : float
        Pairs with at least so many full turns stay; larger than `low`.

    Returns
    -------
    array of shape (..., R)
        Frequencies for `rotary`.

    Raises
    ------
    ValueError
        If `frequencies` has no axis, if a number is not positive and finite, or if `high` is not larger than `low`.
    TypeError
        If `frequencies` is not an array of numbers, or if an option is not a number.

    See Also
    --------
    yarn_frequencies : Blends by the index of the pair and not by its turns.

    Notes
    -----
    Slot : score
    Changes : pairs that have shown all their angles stay as they were.
    Cost : O(d) time and memory.
    Empty row : there are no rows.
    Promises : prefix stable
    Equals : ``interpolated_frequencies`` when no pair turns `low` times; the frequencies themselves when all turn
        `high` times.
    Year : 2023
    Source : Peng et al., 2023, YaRN, arXiv 2309.00071, section 3.2, with 1 and 32 turns; Grattafiori et al., 2024, The
        Llama 3 Herd of Models, arXiv 2407.21783, for 1 and 4 in released code.
    Other names : NTK-by-parts, Llama 3 RoPE scaling, rope_type llama3, low_freq_factor, high_freq_factor

    References
    ----------
    B. Peng et al., YaRN: Efficient Context Window Extension of Large Language Models, 2023.

    Examples
    --------
    >>> import numpy as np
    >>> turns = np.array([5.0, 2.5, 0.5])
    >>> by_parts_frequencies(2 * np.pi * turns / 100, factor=4, trained=100) / (2 * np.pi / 100)
    array([5.    , 1.5625, 0.125 ])
    """
    factor, trained = positive("factor", factor), positive("trained", trained)
    low, high = _ordered("low", low, "high", high)
    xp, _, dtype, frequencies = _prepared(frequencies)
    kept = xp.clip((frequencies * (trained / (2 * math.pi)) - low) / (high - low), 0.0, 1.0)
    return cast(xp, frequencies * (kept + (1 - kept) / factor), dtype)


def yarn_frequencies(
    width: int,
    *,
    base: float | Array = 10000.0,
    factor: float,
    trained: float,
    fast: float = 32.0,
    slow: float = 1.0,
    rounded: bool = True,
) -> Array:
    r"""Keep the first pairs, divide the last ones, and blend linearly in the index of the pair.

    .. math:: \theta'_r = (1 - \gamma_r) \, \theta_r + \gamma_r \, \theta_r / s, \qquad
              \gamma_r = \min\Bigl(1, \max\Bigl(0, \frac{r - a}{b - a}\Bigr)\Bigr)

    .. math:: a = \max(r(\text{fast}), 0), \qquad b = \min(r(\text{slow}), d - 1), \qquad
              r(t) = \frac{d \, \ln(L_0 / 2 \pi t)}{2 \ln \text{base}}

    Parameters
    ----------
    width : int
        How many numbers turn, an even number d.
    base : float or array of shape (...)
        As for `rotary_frequencies`: a number gives a NumPy array of float64.
    factor : float
        How many times longer s texts are to be.
    trained : float
        Longest length in training, the number before it was extended.
    fast : float
        Pairs with more full turns in the trained length stay.
    slow : float
        Pairs with fewer full turns are divided by the factor.
    rounded : bool
        True: a is rounded down and b up before they are limited, as in released code.

    Returns
    -------
    array of shape (..., d / 2)
        Frequencies for `rotary`. The scheme has a factor besides: `yarn_stretch`.

    Raises
    ------
    ValueError
        If `width` is not positive and even, if a number is not positive and finite, if a number `base` is not larger
        than one, or if `fast` is not larger than `slow`.
    TypeError
        If `width` is not an integer, if `base` is neither a number nor an array of numbers, or if an option is not a
        number.

    See Also
    --------
    yarn_stretch : The factor on queries and keys.

    Notes
    -----
    Slot : score
    Changes : pairs that turned often in training stay, slow pairs are interpolated.
    Cost : O(d) time and memory.
    Empty row : there are no rows.
    Promises : prefix stable
    Equals : ``rotary_frequencies`` when the factor is one; ``interpolated_frequencies`` for the last pairs.
    Year : 2023
    Source : Peng et al., 2023, YaRN, arXiv 2309.00071, and its released code.
    Other names : YaRN, rope_type yarn, beta_fast, beta_slow, find_correction_range

    Where a and b are equal, b grows by 0.001. The limit of b is d - 1, although there are only d / 2 pairs.

    References
    ----------
    B. Peng et al., YaRN: Efficient Context Window Extension of Large Language Models, 2023.

    Examples
    --------
    >>> yarn_frequencies(4, factor=4, trained=2048)
    array([1.     , 0.00625])
    """
    factor, trained = positive("factor", factor), positive("trained", trained)
    slow, fast = _ordered("slow", slow, "fast", fast)
    if not is_array_api_obj(base):
        base = np.asarray(_ordered("one", 1.0, "base", base)[1])
    xp, dtype, (base,) = promote(base=base)
    frequencies = rotary_frequencies(width, base=base)
    per_log = width / (2 * xp.log(base))
    first, last = (per_log * math.log(trained / (2 * math.pi * turns)) for turns in (fast, slow))
    if rounded:
        first, last = xp.floor(first), xp.ceil(last)
    first, last = xp.clip(first, 0.0, None)[..., None], xp.clip(last, None, width - 1.0)[..., None]
    last = xp.where(first == last, last + 0.001, last)
    index = xp.arange(width // 2, dtype=base.dtype, device=device(base))
    divided = xp.clip((index - first) / (last - first), 0.0, 1.0)
    return cast(xp, frequencies * (1 - divided + divided / factor), dtype)


def yarn_stretch(x: Array, /, *, factor: float) -> Array:
    r"""Stretch turned queries or keys, so that scores over a longer text are as sharp as before.

    .. math:: x' = x \, \bigl(0.1 \ln s + 1\bigr) \ \text{for}\ s > 1, \qquad x' = x \ \text{otherwise}

    Parameters
    ----------
    x : array of shape (..., n, d)
        Queries or keys; both are stretched. Where only some numbers turn, give those.
    factor : float
        As it was given to `yarn_frequencies`.

    Returns
    -------
    array of shape (..., n, d)
        Stretched numbers.

    Raises
    ------
    ValueError
        If `factor` is not positive and finite.
    TypeError
        If `x` is not an array of numbers, or if `factor` is not a number.

    See Also
    --------
    yarn_frequencies : The frequencies that belong to it.

    Notes
    -----
    Slot : score
    Changes : scores are multiplied by the square of the stretch.
    Cost : O(n d) time and memory; nothing where it is folded into tables of cosine and sine.
    Empty row : no items give no items.
    Promises : prefix stable
    Equals : a factor of the scale of the scores; nothing when the factor is at most one.
    Year : 2023
    Source : Peng et al., 2023, YaRN, arXiv 2309.00071, section 3.4.
    Other names : YaRN attention factor, mscale, attention_factor, attention_scaling, YaRN temperature

    References
    ----------
    B. Peng et al., YaRN: Efficient Context Window Extension of Large Language Models, 2023.

    Examples
    --------
    >>> import numpy as np
    >>> yarn_stretch(np.array([[1.0, 2.0]]), factor=np.exp(10))
    array([[2., 4.]])
    """
    xp, dtype, (x,) = promote(x=x)
    return cast(xp, x * (0.1 * math.log(max(1.0, positive("factor", factor))) + 1.0), dtype)


def longrope_frequencies(frequencies: Array, short: Array, long: Array, /, *, length: float, trained: float) -> Array:
    r"""Divide each frequency by a number of its own, from one list for short texts and another for long ones.

    .. math:: \theta'_r = \theta_r / \lambda_r, \qquad \lambda = \text{long if}\ L > L_0, \ \text{short otherwise}

    Parameters
    ----------
    frequencies : array of shape (..., R)
        Frequencies that the model was trained with.
    short : array that broadcasts to (..., R)
        Divisors up to the trained length; ones leave the frequencies alone.
    long : array that broadcasts to (..., R)
        Divisors beyond it, as a search has found them.
    length : float
        Number L of items.
    trained : float
        Longest length in training, the number before it was extended.

    Returns
    -------
    array of shape (..., R)
        Frequencies for `rotary`. They change when the length passes `trained`, so keys that were turned before do not
        fit.

    Raises
    ------
    ValueError
        If an axis is missing, if a list would enlarge `frequencies`, or if a number is not positive and finite.
    TypeError
        If an argument is not an array of numbers, if two array libraries are mixed, or if an option is not a number.

    See Also
    --------
    longrope_stretch : The factor on queries and keys.

    Notes
    -----
    Slot : score
    Changes : each pair has a divisor of its own.
    Cost : O(d) time and memory; a cache of turned keys must be turned again when the list changes.
    Empty row : there are no rows.
    Promises : prefix stable
    Equals : ``interpolated_frequencies`` when all divisors are the factor.
    Year : 2024
    Source : Ding et al., 2024, LongRoPE, arXiv 2402.13753, section 3.2.
    Other names : LongRoPE, rope_type longrope, su scaling, short_factor, long_factor, Phi-3 RoPE

    References
    ----------
    Y. Ding et al., LongRoPE: Extending LLM Context Window Beyond 2 Million Tokens, 2024.

    Examples
    --------
    >>> import numpy as np
    >>> f, short, long = np.array([1.0, 0.1]), np.array([1.0, 1.0]), np.array([1.0, 8.0])
    >>> longrope_frequencies(f, short, long, length=4097, trained=4096)
    array([1.    , 0.0125])
    """
    length, trained = positive("length", length), positive("trained", trained)
    xp, dtype, (frequencies, short, long) = promote(frequencies=frequencies, short=short, long=long)
    check_axes("r", frequencies=frequencies)
    check_broadcast("short", short, tuple(frequencies.shape))
    check_broadcast("long", long, tuple(frequencies.shape))
    return cast(xp, frequencies / (long if length > trained else short), dtype)


def longrope_stretch(x: Array, /, *, factor: float, trained: float) -> Array:
    r"""Stretch turned queries or keys by a number that grows with the factor.

    .. math:: x' = x \, \sqrt{1 + \ln s / \ln L_0} \ \text{for}\ s > 1, \qquad x' = x \ \text{otherwise}

    Parameters
    ----------
    x : array of shape (..., n, d)
        Queries or keys; both are stretched. Where only some numbers turn, give those.
    factor : float
        How many times longer s texts may be than in training.
    trained : float
        Longest length in training, more than one.

    Returns
    -------
    array of shape (..., n, d)
        Stretched numbers.

    Raises
    ------
    ValueError
        If `factor` is not positive and finite, or if `trained` is not finite and larger than one.
    TypeError
        If `x` is not an array of numbers, or if an option is not a number.

    See Also
    --------
    longrope_frequencies : The frequencies that belong to it.

    Notes
    -----
    Slot : score
    Changes : scores are multiplied by one plus the logarithm of the factor to the base of the trained length.
    Cost : O(n d) time and memory; nothing where it is folded into tables of cosine and sine.
    Empty row : no items give no items.
    Promises : prefix stable
    Equals : scores times the logarithm of the new length over that of the trained one, when the factor is their ratio.
    Year : 2024
    Source : Ding et al., 2024, LongRoPE, arXiv 2402.13753, as in transformers.
    Other names : LongRoPE attention factor, long_mscale, short_mscale

    References
    ----------
    Y. Ding et al., LongRoPE: Extending LLM Context Window Beyond 2 Million Tokens, 2024.

    Examples
    --------
    >>> import numpy as np
    >>> longrope_stretch(np.array([[1.0]]), factor=8, trained=2).round(3)
    array([[2.]])
    """
    factor, (_, trained) = positive("factor", factor), _ordered("one", 1.0, "trained", trained)
    xp, dtype, (x,) = promote(x=x)
    return cast(xp, x * math.sqrt(1 + math.log(max(1.0, factor)) / math.log(trained)), dtype)


def xpos_stretch(x: Array, positions: Array, /, *, pairing: str, span: float = 512.0, offset: float = 0.4) -> Array:
    r"""Stretch each pair of a turned query by a power of its position; keys take the negated positions.

    .. math:: x' = x \, \zeta_r^{p / \text{span}}, \qquad \zeta_r = \frac{2r/d + \text{offset}}{1 + \text{offset}}

    Parameters
    ----------
    x : array of shape (..., n, d)
        Turned queries, or turned keys; d is even.
    positions : array that broadcasts to (..., n)
        Positions of the queries, or the negated positions of the keys.
    pairing : {"interleaved", "half"}
        As it was given to `rotary`; both numbers of a pair are stretched alike.
    span : float
        Distance after which the pair r has lost the factor zeta.
    offset : float
        The larger, the slower all pairs decay.

    Returns
    -------
    array of shape (..., n, d)
        Stretched items, in the dtype of `x`.

    Raises
    ------
    ValueError
        If an axis is missing, if d is odd, if `positions` would enlarge `x`, if `pairing` is neither of the two, or if
        a number is not positive and finite.
    TypeError
        If an argument is not an array of numbers, if two array libraries are mixed, or if an option is not a number.

    See Also
    --------
    rotary : Turns; this only stretches.

    Notes
    -----
    Slot : score
    Changes : the part of each pair in the score falls with the distance of an earlier key, fast pairs first.
    Cost : O(n d) time and memory.
    Empty row : no items give no items.
    Promises : prefix stable
    Equals : the input at position zero; scores of ``rotary`` times zeta to the power distance over span, pair by pair.
    Year : 2022
    Source : Sun et al., 2022, A Length-Extrapolatable Transformer, arXiv 2212.10554, section 3.2, and its released
        code.
    Other names : xPos, XPOS, extrapolatable position embedding, LeX, length-extrapolatable transformer

    A later key grows as fast as an earlier one falls: the scheme is for causal attention. Count positions from the
    middle of a long text, or queries vanish and keys overflow.

    References
    ----------
    Y. Sun et al., A Length-Extrapolatable Transformer, 2022.

    Examples
    --------
    >>> import numpy as np
    >>> xpos_stretch(np.ones((1, 4)), np.array([512]), pairing="half").round(3)
    array([[0.286, 0.643, 0.286, 0.643]])
    """
    span, offset = positive("span", span), positive("offset", offset)
    interleaved = _pairing("pairing", pairing) == "interleaved"
    xp, dtype, _ = promote(x=x)
    _, _, (x, positions) = promote(x=x, positions=positions)
    check_axes("n d", x=x)
    check_axes("n", positions=positions)
    check_broadcast("positions", positions, x.shape[:-1])
    pairs = _pairs(x)
    zeta = [(r / max(pairs, 1) + offset) / (1 + offset) for r in range(pairs)]
    logs = [math.log(z) / span for z in zeta]
    logs = [w for w in logs for _ in range(2)] if interleaved else logs * 2
    powers = positions[..., None] * xp.asarray(logs, dtype=positions.dtype, device=device(x))
    return cast(xp, x * xp.exp(powers), dtype)


def _prepared(frequencies: Array) -> tuple[Any, int, Any, Array]:
    """Return the library, the number of frequencies, the dtype of the result, and the frequencies to compute with."""
    xp, dtype, (frequencies,) = promote(frequencies=frequencies)
    check_axes("r", frequencies=frequencies)
    return xp, frequencies.shape[-1], dtype, frequencies


def _ordered(below: str, small: float, above: str, large: float) -> tuple[float, float]:
    """Return two positive numbers as Python floats; the second must be larger."""
    small, large = positive(below, small), positive(above, large)
    if large <= small:
        raise ValueError(f"{above} is {large}; it must be larger than {below}, which is {small}")
    return small, large
