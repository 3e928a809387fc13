"""Talking heads: mix the heads' scores before they are normalized, and their weights after."""

from softlookup._arrays import Array, Score, cast, hide_unread, promote
from softlookup._checks import allowed_pairs, broadcast_batch, check_axes, check_broadcast, check_items
from softlookup.lookup.attention import attention_scores, scaled_dot
from softlookup.lookup.softmax import softmax
from softlookup.lookup.weighted_average import weighted_average

__all__ = ["mix_heads", "talking_heads_attention", "talking_heads_weights"]


def mix_heads(x: Array, mix: Array, /) -> Array:
    r"""Replace the heads by linear combinations of them, the same for every pair of a query and a key.

    .. math:: y_{bij} = \sum_a x_{aij} \, P_{ab}

    Parameters
    ----------
    x : array of shape (..., H, n, m)
        One number for each head and pair: scores or weights.
    mix : array of shape (..., H, H')
        The coefficients P: column b says what the new head b is made of. Old and new heads may differ in number.

    Returns
    -------
    array of shape (..., H', n, m)
        The new heads.

    Raises
    ------
    ValueError
        If an axis is missing, if `mix` does not have one row for each head of `x`, or if the axes before the heads do
        not broadcast.
    TypeError
        If an argument is not an array of numbers, or if two array libraries are mixed.

    See Also
    --------
    talking_heads_weights : Mixes scores and weights.

    Notes
    -----
    Cost : O(H H' n m) time, O((H + H') n m) memory.
    Empty row : a mask comes after mixed scores and before mixed weights; a row that is zero in all heads stays zero.

    Numbers of different pairs never meet, so a NaN stays at its pair, in all new heads. An infinite number times a
    coefficient of zero is NaN: mix first, then hide.

    Examples
    --------
    >>> import numpy as np
    >>> x = np.array([[[0.8, 0.2]], [[0.5, 0.5]]])
    >>> mix_heads(x, np.array([[0.5, 1.0], [0.5, -1.0]]))
    array([[[ 0.65,  0.35]],
    <BLANKLINE>
           [[ 0.3 , -0.3 ]]])
    """
    xp, dtype, (x, mix) = promote(x=x, mix=mix)
    check_axes("H n m", x=x)
    check_axes("H H'", mix=mix)
    heads, n, m = x.shape[-3:]
    if mix.shape[-2] != heads:
        raise ValueError(f"mix has {mix.shape[-2]} rows, x has {heads} heads; they must be equal")
    batch = broadcast_batch(3, x=x, mix=mix[..., None])
    y = mix.mT @ xp.reshape(x, (*x.shape[:-2], n * m))
    return cast(xp, xp.reshape(y, (*batch, mix.shape[-1], n, m)), dtype)


def talking_heads_attention(
    q: Array,
    k: Array,
    v: Array,
    mix_scores: Array,
    mix_weights: Array,
    /,
    *,
    mask: Array | None = None,
    bias: Array | None = None,
) -> Array:
    r"""Look up with heads that share their scores before the softmax and their weights after it.

    .. math:: \operatorname{out}_{ci} = \sum_j w'_{cij} \, v_{cj}, \qquad
              w'_{cij} = \sum_b w_{bij} \, P^w_{bc}, \qquad
              w_{bi} = \operatorname{softmax}\Big(\sum_a s_{ai} \, P^l_{ab} + \text{bias}_{bi}, \ \text{mask}_{bi}\Big),
              \qquad s_{aij} = q_{ai} \cdot k_{aj} / \sqrt d

    Parameters
    ----------
    q : array of shape (..., H_k, n, d)
        Queries.
    k : array of shape (..., H_k, m, d)
        Keys. With fewer heads than `q` they are shared, as in `attention`.
    v : array of shape (..., H_v, m, e)
        Values, one head for each column of `mix_weights`, or a single head for all of them.
    mix_scores : array of shape (..., H_k, H)
        The coefficients before the softmax.
    mix_weights : array of shape (..., H, H_v)
        The coefficients after the softmax.
    mask : boolean array that broadcasts to (..., H, n, m), optional
        True where the head may read the pair. It acts on the mixed scores.
    bias : array that broadcasts to (..., H, n, m), optional
        Numbers that are added to the mixed scores.

    Returns
    -------
    array of shape (..., H_v, n, e)
        One blend for each value head and query.

    Raises
    ------
    ValueError
        If an axis is missing, if a matrix does not have a row for each head before it, if the heads of `v` are not
        those of `mix_weights`, if `k` and `v` do not have the same number of items, if the axes before the heads do
        not broadcast, or if `mask` or `bias` would enlarge the mixed scores.
    TypeError
        If an argument is not an array of numbers, if `mask` is not boolean, or if two array libraries are mixed.

    See Also
    --------
    talking_heads_weights : The weights, with a choice of the score.
    attention : Heads that do not talk.

    Notes
    -----
    Slot : score, and between normalize and blend
    Changes : a head compares by what several heads see, and blends by what several heads chose.
    Cost : O(n m (H_k d + H_k H + H H_v + H_v e)) time, O((H_k + H + H_v) n m) memory.
    Empty row : a query that may read nothing in any head gets zeros.
    Promises : shift invariant, prefix stable
    Equals : ``attention`` when both matrices are the identity.
    Year : 2020
    Source : Shazeer et al., 2020, Talking-Heads Attention, arXiv 2003.02436.
    Other names : talking heads, cross-head projection, head mixing, pre-softmax and post-softmax projection

    The mixed weights may be negative, and a row need not sum to one, so an output can leave the hull of the values. A
    key that no query may read in any head can hold NaN or infinity without effect on values and gradients. Where the
    mask differs between heads, a value head may read a pair that any of the H heads may read.

    References
    ----------
    N. Shazeer, Z. Lan, Y. Cheng, N. Ding and L. Hou, Talking-Heads Attention, 2020.

    Examples
    --------
    >>> import numpy as np
    >>> q, k = np.ones((2, 1, 1)), np.log(np.array([[[4.0], [1.0]], [[1.0], [1.0]]]))
    >>> v = np.array([[[10.0], [20.0]], [[10.0], [20.0]]])
    >>> talking_heads_attention(q, k, v, np.eye(2), np.array([[0.5, 1.0], [0.5, -1.0]]))
    array([[[13.5]],
    <BLANKLINE>
           [[-3. ]]])
    """
    xp, dtype, (q, k, v, mix_scores, mix_weights, bias) = promote(
        q=q, k=k, v=v, mix_scores=mix_scores, mix_weights=mix_weights, bias=bias
    )
    check_items(k, v)
    w = talking_heads_weights(q, k, mix_scores, mix_weights, mask=mask, bias=bias)
    if v.ndim > 2 and v.shape[-3] not in (1, w.shape[-3]):
        raise ValueError(f"v has {v.shape[-3]} heads, mix_weights has {w.shape[-3]} columns; they must be equal")
    by_any = mask if mask is None or mask.ndim < 3 else xp.any(mask, axis=-3, keepdims=True)
    return cast(xp, weighted_average(w, v, allowed=by_any), dtype)


def talking_heads_weights(
    q: Array,
    k: Array,
    mix_scores: Array,
    mix_weights: Array,
    /,
    *,
    mask: Array | None = None,
    bias: Array | None = None,
    score: Score = scaled_dot(),
) -> Array:
    r"""Compute the mixed weights of talking heads.

    .. math:: w'_{cij} = \sum_b w_{bij} \, P^w_{bc}, \qquad
              w_{bi} = \operatorname{softmax}\Big(\sum_a s_{ai} \, P^l_{ab} + \text{bias}_{bi}, \ \text{mask}_{bi}\Big)

    Parameters
    ----------
    q : array of shape (..., H_k, n, d)
        Queries.
    k : array of shape (..., H_k, m, d)
        Keys. With fewer heads than `q` they are shared, as in `attention`.
    mix_scores : array of shape (..., H_k, H)
        The coefficients before the softmax.
    mix_weights : array of shape (..., H, H_v)
        The coefficients after the softmax.
    mask : boolean array that broadcasts to (..., H, n, m), optional
        True where the head may read the pair. It acts on the mixed scores.
    bias : array that broadcasts to (..., H, n, m), optional
        Numbers that are added to the mixed scores.
    score : callable
        Compares: ``score(q, k) -> s``. A bias or a cap of its own acts before the mixing.

    Returns
    -------
    array of shape (..., H_v, n, m)
        Numbers of either sign; a row sums to the sum of its column of `mix_weights`, unless it is empty in some head.

    Raises
    ------
    ValueError
        Where `talking_heads_attention` raises it for these arguments, and where `score` raises it.
    TypeError
        Where `talking_heads_attention` raises it for these arguments.

    See Also
    --------
    talking_heads_attention : Blends with these weights, and describes the arguments.
    mix_heads : Both mixing steps.

    Notes
    -----
    Cost : O(n m (H_k d + H_k H + H H_v)) time, O((H_k + H + H_v) n m) memory.
    Empty row : a query that may read nothing in any head has zeros.

    Examples
    --------
    >>> import numpy as np
    >>> q, k = np.ones((2, 1, 1)), np.log(np.array([[[4.0], [1.0]], [[2.0], [1.0]]]))
    >>> talking_heads_weights(q, k, np.array([[1.0], [1.0]]), np.array([[1.0]])).round(3)
    array([[[0.889, 0.111]]])
    """
    xp, dtype, (q, k, mix_scores, mix_weights, bias) = promote(
        q=q, k=k, mix_scores=mix_scores, mix_weights=mix_weights, bias=bias
    )
    check_axes("H n d", q=q)
    check_axes("m d", k=k)
    check_axes("H H'", mix_scores=mix_scores, mix_weights=mix_weights)
    if mix_scores.shape[-2] != q.shape[-3]:
        raise ValueError(f"mix_scores has {mix_scores.shape[-2]} rows, q has {q.shape[-3]} heads; they must be equal")
    if mix_weights.shape[-2] != mix_scores.shape[-1]:
        raise ValueError(
            f"mix_weights has {mix_weights.shape[-2]} rows, mix_scores has {mix_scores.shape[-1]} columns; "
            "they must be equal"
        )
    batch = broadcast_batch(3, q=q, k=k, mix_scores=mix_scores[..., None])
    shape = (*batch, mix_scores.shape[-1], q.shape[-2], k.shape[-2])
    allowed = allowed_pairs(xp, "mask", mask, shape)
    k = hide_unread(xp, k, None if allowed is None else xp.any(allowed, axis=-3, keepdims=True))
    s = mix_heads(attention_scores(q, k, score=score), mix_scores)
    if bias is not None:
        check_broadcast("bias", bias, shape)
        s = s + bias
    return cast(xp, mix_heads(softmax(s, allowed), mix_weights), dtype)
