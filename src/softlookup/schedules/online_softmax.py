"""Softmax and attention in one pass over the keys, with a maximum that is corrected on the way."""

import math
from typing import Any

from array_api_compat import device

from softlookup._arrays import Array, Score, below_top, cast, promote, row_max
from softlookup._checks import (
    broadcast_batch,
    check_axes,
    check_broadcast,
    check_shape,
    positive_integer,
    readable_scores,
)
from softlookup.lookup.attention import _readable_keys, _spread_values, attention_scores, scaled_dot
from softlookup.lookup.softmax import softmax_vjp
from softlookup.lookup.weighted_average import weighted_average

__all__ = ["online_attention", "online_log_sum_exp", "online_softmax", "online_update"]


def online_softmax(s: Array, allowed: Array | None = None, /, *, block: int = 1) -> Array:
    r"""Compute softmax with one pass for the maximum and the total together, and one for the weights.

    .. math:: \mu' = \max(\mu, \max_j s_j), \qquad
              \ell' = \ell \, e^{\mu - \mu'} + \sum_j e^{s_j - \mu'} \quad\text{block by block}, \qquad
              w_j = e^{s_j - \mu} / \ell \quad\text{at the end}

    Parameters
    ----------
    s : array of shape (..., n, m)
        Scores. One row alone, of shape (m,), is fine too.
    allowed : boolean array that broadcasts to the shape of `s`, optional
        True where the item may be read.
    block : int
        How many keys are read at once. It need not divide their number.

    Returns
    -------
    array of shape (..., n, m)
        Weights.

    Raises
    ------
    ValueError
        If `s` has no axis, if `allowed` would enlarge it, or if `block` is not positive.
    TypeError
        If `s` is not an array of numbers, if `allowed` is not boolean, if two array libraries are mixed, or if `block`
        is not an integer.

    See Also
    --------
    online_attention : Blends on the way, and holds no weights at all.
    softmax : The definition.

    Notes
    -----
    Slot : normalize
    Changes : nothing but the order of the sums; scores are read twice, where the definition reads them three times.
    Cost : O(n m) time and memory; beside the result two numbers for each row.
    Empty row : a row that may read nothing, or only scores of minus infinity, gets zeros.
    Promises : non-negative, sums to one, inside the hull, shift invariant, prefix stable
    Equals : ``softmax``, for every block.
    Year : 2018
    Source : Milakov and Gimelshein, 2018, Online normalizer calculation for softmax, section 3, arXiv 1805.02867.
    Other names : online normalizer, safe softmax with online normalizer calculation, streaming softmax, two-pass
        softmax

    Infinite scores and NaN follow the rules of `softmax`, and so does the gradient, the attribute ``vjp``.

    References
    ----------
    M. Milakov and N. Gimelshein, Online normalizer calculation for softmax, 2018.

    Examples
    --------
    >>> import numpy as np
    >>> online_softmax(np.log(np.array([[1.0, 4.0, 2.0, 1.0]]))).round(3)
    array([[0.125, 0.5  , 0.25 , 0.125]])
    """
    xp, dtype, (s,) = promote(s=s)
    s = readable_scores(xp, s, allowed, -math.inf)
    top, total = _top_and_total(xp, s, block)
    return cast(xp, xp.exp(below_top(xp, s, top)) / xp.where(total == 0, 1.0, total), dtype)


online_softmax.vjp = softmax_vjp


def online_log_sum_exp(s: Array, allowed: Array | None = None, /, *, block: int = 1) -> Array:
    r"""Take the logarithm of the sum of the exponentials of each row in one pass.

    .. math:: L_i = \mu_i + \log \ell_i

    Parameters
    ----------
    s : array of shape (..., n, m)
        Scores.
    allowed : boolean array that broadcasts to the shape of `s`, optional
        True where the item may be read.
    block : int
        How many keys are read at once.

    Returns
    -------
    array of shape (..., n)
        One number for each row, on the scale of the scores; the logarithm is natural, and no sink is inside.

    Raises
    ------
    ValueError
        If `s` has no axis, if `allowed` would enlarge it, or if `block` is not positive.
    TypeError
        If `s` is not an array of numbers, if `allowed` is not boolean, if two array libraries are mixed, or if `block`
        is not an integer.

    See Also
    --------
    log_sum_exp : The definition.

    Notes
    -----
    Cost : O(n m) time; O(n) memory for the two numbers of each row, and one block.
    Empty row : a row that may read nothing, or only scores of minus infinity, gives minus infinity.

    Examples
    --------
    >>> import numpy as np
    >>> online_log_sum_exp(np.array([[1000.0, 999.0], [0.0, -np.inf]])).round(4)
    array([1000.3133,    0.    ])
    """
    xp, dtype, (s,) = promote(s=s)
    s = readable_scores(xp, s, allowed, -math.inf)
    top, total = _top_and_total(xp, s, block)
    return cast(xp, (top + xp.log(xp.where(total == 0, 1.0, total)))[..., 0], dtype)


def online_attention(
    q: Array,
    k: Array,
    v: Array,
    /,
    *,
    block: int,
    mask: Array | None = None,
    bias: Array | None = None,
    score: Score = scaled_dot(),
) -> Array:
    r"""Compute attention in one pass over blocks of keys, without a table of all scores.

    .. math:: \operatorname{out}_i = u_i / \ell_i, \qquad
              (\mu, \ell, u) \leftarrow \operatorname{update}(\mu, \ell, u, s, v)
              \quad\text{for each block, from}\ (-\infty, 0, 0)

    Parameters
    ----------
    q : array of shape (..., H, n, d)
        Queries. With two axes there is no head axis.
    k : array of shape (..., H_kv, m, d)
        Keys. Their number of heads must divide that of `q`.
    v : array of shape (..., H_kv, m, e)
        Values, one for each key.
    block : int
        How many keys are read at once. It need not divide their number.
    mask : boolean array that broadcasts to (..., H, n, m), optional
        True where the query may read the key.
    bias : array that broadcasts to (..., H, n, m), optional
        Numbers that are added to the scores.
    score : callable
        Compares: ``score(q, k) -> s``. The score of a pair must not depend on the other keys, nor on their number.

    Returns
    -------
    array of shape (..., H, n, e)
        One blend for each query.

    Raises
    ------
    ValueError
        If `block` is not positive, and where `attention` raises it.
    TypeError
        If `block` is not an integer, and where `attention` raises it.

    See Also
    --------
    attention : The definition, which describes the arguments.
    online_update : The step.

    Notes
    -----
    Slot : all five, with softmax for normalize
    Changes : nothing but the order of the sums: no row of weights ever exists.
    Cost : O(H n m (d + e)) time as `attention`; memory O(H n block) for scores, and e + 2 numbers for each head and
        query that do not grow with m.
    Empty row : a query that may read nothing gets zeros, in whichever blocks its keys are hidden.
    Promises : non-negative, sums to one, inside the hull, shift invariant, prefix stable
    Equals : ``attention`` with softmax, for every block.
    Year : 2021
    Source : Rabe and Staats, 2021, Self-attention Does Not Need O(n^2) Memory, sections 2 and 3, arXiv 2112.05682;
        Dao et al., 2022, FlashAttention, section 3.1, arXiv 2205.14135.
    Other names : online softmax attention, memory-efficient attention, lazy softmax, streaming attention, blockwise
        attention

    What `attention` says of a NaN or an infinity that is hidden holds here too: at a key or value that no query may
    read it reaches neither values nor gradients, and where some may read it the outputs of the others stay what they
    are. float16 and bfloat16 are computed in float32 from the first block to the division, and rounded once.
    Queries are not cut; a call for some of them is a call of its own.

    References
    ----------
    M. N. Rabe and C. Staats, Self-attention Does Not Need O(n^2) Memory, 2021.

    Examples
    --------
    >>> import numpy as np
    >>> x = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    >>> online_attention(x, x, x, block=2).round(3)
    array([[0.802, 0.599],
           [0.599, 0.802],
           [0.752, 0.752]])
    """
    xp, dtype, (q, k, v, bias) = promote(q=q, k=k, v=v, bias=bias)
    v = _spread_values(xp, q, k, v)
    k, allowed = _readable_keys(xp, q, k, mask)
    m = k.shape[-2]
    if bias is not None:
        pairs = (*broadcast_batch(2, q=q, k=k), q.shape[-2], m)
        check_broadcast("bias", bias, pairs)
        bias = xp.broadcast_to(bias, pairs)
    state = _start(xp, q, k, v)
    for cut in _cuts(m, block=block):
        readable, added = (x if x is None else x[..., cut] for x in (allowed, bias))
        s = attention_scores(q, k[..., cut, :], bias=added, score=score)
        state = online_update(*state, s, v[..., cut, :], readable)
    _, total, blend = state
    return cast(xp, blend / xp.where(total == 0, 1.0, total)[..., None], dtype)


def online_update(
    top: Array, total: Array, blend: Array, s: Array, v: Array, allowed: Array | None = None, /
) -> tuple[Array, Array, Array]:
    r"""Read one more block of keys into the state of a softmax average.

    .. math:: \mu_i' = \max(\mu_i, \max_j s_{ij}), \qquad
              \ell_i' = \ell_i \, e^{\mu_i - \mu_i'} + \sum_j e^{s_{ij} - \mu_i'}, \qquad
              u_i' = u_i \, e^{\mu_i - \mu_i'} + \sum_j e^{s_{ij} - \mu_i'} \, v_j

    Parameters
    ----------
    top : array of shape (..., n)
        The largest score :math:`\mu` that each query has met; minus infinity at the start.
    total : array of shape (..., n)
        The sum :math:`\ell` of the exponentials, counted relative to `top`; zero at the start.
    blend : array of shape (..., n, e)
        The sum u of the values, each times its exponential; zeros at the start. Divided by `total` it is the output.
    s : array of shape (..., n, m)
        Scores of this block.
    v : array of shape (..., m, e)
        Values of this block.
    allowed : boolean array that broadcasts to the shape of `s`, optional
        True where the item may be read.

    Returns
    -------
    top, total : array of shape (..., n)
        The new maximum and total.
    blend : array of shape (..., n, e)
        The new blend, not divided.

    Raises
    ------
    ValueError
        If an axis is missing, if `s` and `v` do not agree in m, if `top`, `total` or `blend` do not have the shape
        that follows from `s` and `v`, or if `allowed` would enlarge `s`.
    TypeError
        If an argument is not an array of numbers, if `allowed` is not boolean, or if two array libraries are mixed.

    See Also
    --------
    online_attention : Does this for block after block, and divides.

    Notes
    -----
    Cost : O(n m e) time; O(n m) memory, for m keys in this block.
    Empty row : a query that may read nothing in this block keeps its state.

    The results have the common dtype of all arguments: keep the state in float32 or wider. A sink of score z is
    the start (z, 1, 0).

    Examples
    --------
    >>> import numpy as np
    >>> start = np.array([0.0]), np.array([1.0]), np.array([[8.0]])  # a key with the score 0 and the value 8
    >>> online_update(*start, np.log(np.array([[4.0, 2.0]])), np.array([[4.0], [2.0]]))
    (array([1.38629436]), array([1.75]), array([[7.]]))
    """
    xp, dtype, (top, total, blend, s, v) = promote(top=top, total=total, blend=blend, s=s, v=v)
    check_axes("n m", s=s)
    s = readable_scores(xp, s, allowed, -math.inf)
    check_shape("top", top, s.shape[:-1])
    check_shape("total", total, s.shape[:-1])
    top, kept, e = _rise(xp, top[..., None], s)
    more = weighted_average(e, v, allowed=allowed)
    check_shape("blend", blend, more.shape)
    total = total * kept[..., 0] + xp.sum(e, axis=-1)
    return cast(xp, top[..., 0], dtype), cast(xp, total, dtype), cast(xp, blend * kept + more, dtype)


def _top_and_total(xp: Any, s: Array, block: int) -> tuple[Array, Array]:
    """Return the maximum and the total of each row as ``(..., 1)``, in one pass over blocks."""
    total = xp.zeros((*s.shape[:-1], 1), dtype=s.dtype, device=device(s))
    top = total - math.inf
    for cut in _cuts(s.shape[-1], block=block):
        top, kept, e = _rise(xp, top, s[..., cut])
        total = total * kept + xp.sum(e, axis=-1, keepdims=True)
    return top, total


def _rise(xp: Any, top: Array, s: Array) -> tuple[Array, Array, Array]:
    """Return the maximum with one more block, and what the old total and each new score count relative to it."""
    new = xp.maximum(top, row_max(xp, s))
    return new, _exp_below(xp, top, new), _exp_below(xp, s, new)


def _exp_below(xp: Any, s: Array, top: Array) -> Array:
    """Return the exponentials of `below_top`; infinities become the largest numbers first, which takes fewer passes."""
    largest = xp.asarray(xp.finfo(s.dtype).max, dtype=s.dtype, device=device(s))
    return xp.exp(xp.minimum(s, largest) - xp.maximum(xp.minimum(top, largest), -largest))


def _start(xp: Any, q: Array, k: Array, v: Array) -> tuple[Array, Array, Array]:
    """Return the maximum, the total and the blend of the queries `q` before any key is read."""
    scored, blended = broadcast_batch(2, q=q, k=k), broadcast_batch(2, q=q, k=k, v=v)
    total = xp.zeros((*scored, q.shape[-2]), dtype=q.dtype, device=device(q))
    return total - math.inf, total, xp.zeros((*blended, q.shape[-2], v.shape[-1]), dtype=q.dtype, device=device(q))


def _output_and_lse(xp: Any, top: Array, total: Array, blend: Array) -> tuple[Array, Array]:
    """Return the output and the log-sum-exp of a state after the last key, in the shape of the output's rows."""
    total = xp.where(total == 0, 1.0, total)
    out = blend / total[..., None]
    return out, xp.broadcast_to(top + xp.log(total), out.shape[:-1])


def _cuts(m: int, **block: int) -> list[slice]:
    """Return where to cut m keys; one empty block if there are none, so that all arguments are checked."""
    ((name, size),) = block.items()
    size = positive_integer(name, size)
    return [slice(start, min(start + size, m)) for start in range(0, max(m, 1), size)]
