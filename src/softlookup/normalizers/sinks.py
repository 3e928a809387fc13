"""Sinks: a part of the budget that no item gets, so that a query can read less than one whole blend."""

import math
from typing import Any

from array_api_compat import device

from softlookup._arrays import Array, Normalizer, cast, promote, row_max, sum_to_shape
from softlookup._checks import (
    allowed_pairs,
    check_axes,
    check_broadcast,
    check_items,
    check_shape,
    positive,
    readable_scores,
)
from softlookup.lookup.softmax import softmax, softmax_vjp

__all__ = ["append_item", "sink_softmax", "sink_softmax_vjp", "softmax_plus_one", "softpick"]


def softmax_plus_one(s: Array, allowed: Array | None = None, /, *, extra: float = 1.0) -> Array:
    r"""Divide each exponential by one plus the sum of all of them.

    .. math:: w_{ij} = \frac{\exp(s_{ij})}{c + \sum_{l \,\text{allowed for}\, i} \exp(s_{il})}
              \quad\text{for allowed}\ j, \qquad w_{ij} = 0 \quad\text{otherwise}

    Parameters
    ----------
    s : array of shape (..., n, m)
        Scores. One row alone, of shape (m,), is fine too.
    allowed : boolean array that broadcasts to the shape of `s`, optional
        True where the item may be read.
    extra : float
        The number c; a whole number counts extra items with the score zero and the value zero.

    Returns
    -------
    array of shape (..., n, m)
        Weights; each row sums to less than one.

    Raises
    ------
    ValueError
        If `s` has no axis, if `allowed` would enlarge it, or if `extra` is not positive and finite.
    TypeError
        If `s` is not an array of numbers, if `allowed` is not boolean, if two array libraries are mixed, or if `extra`
        is not a number.

    See Also
    --------
    sink_softmax : The same with a learned number for each head or query.

    Notes
    -----
    Slot : normalize
    Changes : a row need not spend its whole budget; scores are compared with zero as well as with one another.
    Cost : O(n m) time and memory, as softmax.
    Empty row : a row that may read nothing gets zeros.
    Promises : non-negative, prefix stable
    Equals : ``sink_softmax`` with the sink log(extra); ``softmax`` in the limit of large scores; a sigmoid for a row of
        one key, when extra is one.
    Year : 2023
    Source : Miller, 2023, Attention Is Off By One.
    Other names : softmax1, softmax_1, softmax-off-by-one, quiet attention, quiet softmax, softmax_n, ghost softmax,
        zero sink, add_zero_attn

    References
    ----------
    E. Miller, Attention Is Off By One, 2023.

    Examples
    --------
    >>> import numpy as np
    >>> softmax_plus_one(np.zeros((1, 3)))
    array([[0.25, 0.25, 0.25]])
    """
    extra = positive("extra", extra)
    xp, dtype, (wide,) = promote(s=s)
    check_axes("m", s=s)
    sink = xp.zeros(s.shape[:-1], dtype=wide.dtype, device=device(s)) + math.log(extra)
    return cast(xp, softmax(*_with_sink(xp, wide, sink, allowed))[..., :-1], dtype)


def sink_softmax(sink: Array, /) -> Normalizer:
    r"""Build the softmax in which a sink competes for the budget and passes nothing on.

    .. math:: w_{ij} = \frac{\exp(s_{ij})}{\exp(z_i) + \sum_{l \,\text{allowed for}\, i} \exp(s_{il})}
              \quad\text{for allowed}\ j, \qquad w_{ij} = 0 \quad\text{otherwise}

    Parameters
    ----------
    sink : array that broadcasts to (..., n)
        The score z of the sink, on the scale of the scores and never hidden. One learned number for each of H heads has
        the shape (H, 1); a number for each query, computed from its data, has the shape (..., H, n).

    Returns
    -------
    callable
        The function ``normalize(s, allowed)``, for the argument `normalize` of `attention`. Its attribute
        ``vjp(g, s, allowed)`` pulls a gradient back to the scores.

    Raises
    ------
    ValueError
        The normalizer raises it if `s` has no axis, or if `allowed` or `sink` would enlarge it.
    TypeError
        The normalizer raises it if an argument is not an array of numbers, if `allowed` is not boolean, or if two array
        libraries are mixed.

    See Also
    --------
    sink_softmax_vjp : The gradient of the scores and of the sink.
    softmax_plus_one : The sink at zero.

    Notes
    -----
    Slot : normalize
    Changes : one more score, without an item, joins the competition of each row.
    Cost : O(n m) time and memory, as softmax.
    Empty row : a row that may read nothing gets zeros; the sink has the whole budget.
    Promises : non-negative, prefix stable
    Equals : ``softmax`` when the sink is minus infinity; ``softmax_plus_one`` when it is zero; softmax times the
        sigmoid of its log-sum-exp minus the sink; softmax over the keys and one more with the value zero.
    Year : 2025
    Source : OpenAI, 2025, gpt-oss model card, arXiv 2508.10925, for one number a head.
    Other names : learned attention sink, sink logit, attention bias in the denominator, head sink, gpt-oss sinks,
        data-dependent sink, dynamic sink

    The log-sum-exp of the scores does not contain the sink; ``logaddexp(log_sum_exp(s), sink)`` does.

    References
    ----------
    OpenAI, gpt-oss-120b and gpt-oss-20b Model Card, 2025.

    Examples
    --------
    >>> import numpy as np
    >>> sink_softmax(np.log(np.array([2.0])))(np.zeros((1, 2)))
    array([[0.25, 0.25]])
    """

    def normalize(s: Array, allowed: Array | None = None, /) -> Array:
        xp, dtype, (s, z) = promote(s=s, sink=sink)
        return cast(xp, softmax(*_with_sink(xp, s, z, allowed))[..., :-1], dtype)

    def vjp(g: Array, s: Array, allowed: Array | None = None, /) -> Array:
        return sink_softmax_vjp(g, s, sink, allowed)[0]

    normalize.vjp = vjp
    return normalize


def sink_softmax_vjp(g: Array, s: Array, sink: Array, allowed: Array | None = None, /) -> tuple[Array, Array]:
    r"""Pull a gradient with respect to the weights back to the scores and to the sink.

    .. math:: ds_{ij} = w_{ij} (g_{ij} - c_i), \qquad dz_i = -w_{i0} \, c_i, \qquad c_i = \sum_l w_{il} \, g_{il},
              \qquad w_{i0} = 1 - \sum_l w_{il}

    Parameters
    ----------
    g : array of shape (..., n, m)
        Gradient with respect to the weights. Where a pair is not allowed, it has no effect.
    s : array of shape (..., n, m)
        Scores.
    sink : array that broadcasts to (..., n)
        As it was given to `sink_softmax`.
    allowed : boolean array that broadcasts to the shape of `s`, optional
        True where the item may be read.

    Returns
    -------
    ds : array of shape (..., n, m)
        Gradient with respect to the scores; zero where a pair is not allowed.
    dsink : array
        Gradient in the shape of `sink`: summed over axes that were broadcast.

    Raises
    ------
    ValueError
        If `g` does not have the shape of `s`, and where the normalizer raises it.
    TypeError
        Where the normalizer raises it.

    See Also
    --------
    sink_softmax : The function itself.

    Notes
    -----
    Cost : O(n m) time and memory.
    Empty row : zeros.

    Examples
    --------
    >>> import numpy as np
    >>> ds, dsink = sink_softmax_vjp(np.array([[1.0]]), np.array([[0.0]]), np.array([0.0]))
    >>> ds, dsink
    (array([[0.25]]), array([-0.25]))
    """
    xp, dtype, (g, s, sink) = promote(g=g, s=s, sink=sink)
    check_shape("g", g, s.shape)
    longer, both = _with_sink(xp, s, sink, allowed)
    no_value = xp.zeros((*s.shape[:-1], 1), dtype=s.dtype, device=device(s))
    ds = softmax_vjp(xp.concat([g, no_value], axis=-1), longer, both)
    return cast(xp, ds[..., :-1], dtype), cast(xp, sum_to_shape(xp, ds[..., -1], sink.shape), dtype)


def softpick(s: Array, allowed: Array | None = None, /) -> Array:
    r"""Give items with a positive score a share, and let those with a negative score only add to the divisor.

    .. math:: w_{ij} = \frac{\max(\exp(s_{ij}) - 1, \, 0)}{\sum_{l \,\text{allowed for}\, i} |\exp(s_{il}) - 1|}
              \quad\text{for allowed}\ j, \qquad w_{ij} = 0 \quad\text{otherwise}

    Parameters
    ----------
    s : array of shape (..., n, m)
        Scores. One row alone, of shape (m,), is fine too.
    allowed : boolean array that broadcasts to the shape of `s`, optional
        True where the item may be read; other items are not in the divisor either.

    Returns
    -------
    array of shape (..., n, m)
        Weights; each row sums to at most one.

    Raises
    ------
    ValueError
        If `s` has no axis, or if `allowed` would enlarge it.
    TypeError
        If `s` is not an array of numbers, if `allowed` is not boolean, or if two array libraries are mixed.

    See Also
    --------
    softmax_plus_one : Also leaves a part of the budget, but never gives an exact zero.

    Notes
    -----
    Slot : normalize
    Changes : exact zeros for scores that are not positive, and a budget that need not be spent.
    Cost : O(n m) time and memory, as softmax.
    Empty row : a row that may read nothing, or whose scores are all zero, gets zeros.
    Promises : non-negative, prefix stable
    Equals : ``softmax`` in the limit when all scores grow; equal shares for equal positive scores.
    Year : 2025
    Source : Zuhri et al., 2025, Softpick, section 3.1, arXiv 2504.20966.
    Other names : rectified softmax, softpick attention

    A score of minus infinity that may be read counts one in the divisor, so a mask of minus infinities is not a mask
    here. Scores of plus infinity share the budget equally. A NaN that may be read makes its whole row NaN.

    References
    ----------
    Z. Zuhri, E. H. Fuadi and A. F. Aji, Softpick: No Attention Sink, No Massive Activations with Rectified Softmax,
    2025.

    Examples
    --------
    >>> import numpy as np
    >>> softpick(np.log(np.array([[3.0, 2.0, 0.5]]))).round(3)
    array([[0.571, 0.286, 0.   ]])
    """
    xp, dtype, (s,) = promote(s=s)
    s = readable_scores(xp, s, allowed, 0.0)
    s = xp.where(row_max(xp, s) == math.inf, cast(xp, s == math.inf, s.dtype), s)
    positive_part = xp.where(s > 0, s, 0.0)
    top = row_max(xp, positive_part)
    size = -xp.expm1(-xp.abs(s)) * xp.exp(positive_part - xp.where(xp.isinf(top), 0.0, top))
    total = xp.sum(size, axis=-1, keepdims=True)
    return cast(xp, xp.where(s > 0, size, 0.0) / xp.where(total == 0, 1.0, total), dtype)


def append_item(k: Array, v: Array, key: Array, value: Array, /) -> tuple[Array, Array]:
    r"""Append one learned item, the same for every query, to the keys and values.

    .. math:: k_{m+1} = k', \qquad v_{m+1} = v'

    Parameters
    ----------
    k : array of shape (..., m, d)
        Keys.
    v : array of shape (..., m, e)
        Values.
    key : array that broadcasts to (..., d)
        The key k' of the new item.
    value : array that broadcasts to (..., e)
        The value v' of the new item.

    Returns
    -------
    k : array of shape (..., m + 1, d)
        Keys; a mask and a bias need a column more, True and zero.
    v : array of shape (..., m + 1, e)
        Values.

    Raises
    ------
    ValueError
        If an axis is missing, if there is not one value for each key, or if `key` or `value` do not broadcast.
    TypeError
        If an argument is not an array of numbers, or if two array libraries are mixed.

    See Also
    --------
    sink_softmax : The item with a score of its own and the value zero.

    Notes
    -----
    Cost : O(m (d + e)) time; one column more in every table of scores.
    Empty row : decided by the mask of the new column; usually every query may read it, and no row is empty.

    Also called bias_kv or add_bias_kv.

    Examples
    --------
    >>> import numpy as np
    >>> k, v = append_item(np.ones((1, 2)), np.ones((1, 1)), np.zeros(2), np.zeros(1))
    >>> k
    array([[1., 1.],
           [0., 0.]])
    """
    xp, dtype, (k, v, key, value) = promote(k=k, v=v, key=key, value=value)
    check_items(k, v)
    longer = []
    for items, name, item in ((k, "key", key), (v, "value", value)):
        check_broadcast(name, item, (*items.shape[:-2], items.shape[-1]))
        row = xp.broadcast_to(item, (*items.shape[:-2], items.shape[-1]))[..., None, :]
        longer.append(cast(xp, xp.concat([items, row], axis=-2), dtype))
    return longer[0], longer[1]


def _with_sink(xp: Any, s: Array, sink: Array, allowed: Array | None) -> tuple[Array, Array | None]:
    """Return the scores and the mask with one column more: the sink, which every query may read."""
    check_axes("m", s=s)
    check_broadcast("sink", sink, s.shape[:-1])
    allowed = allowed_pairs(xp, "allowed", allowed, s.shape)
    longer = xp.concat([s, xp.broadcast_to(sink, s.shape[:-1])[..., None]], axis=-1)
    if allowed is None:
        return longer, None
    always = xp.ones((*s.shape[:-1], 1), dtype=xp.bool, device=device(s))
    return longer, xp.concat([allowed, always], axis=-1)
