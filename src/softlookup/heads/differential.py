"""Differential attention: the weights of one head minus a fraction of those of its neighbor."""

from softlookup._arrays import Array, Score, cast, promote
from softlookup._checks import broadcast_batch, check_axes, check_broadcast, check_items, finite, group_size
from softlookup.lookup.attention import attention_weights, scaled_dot
from softlookup.lookup.weighted_average import weighted_average
from softlookup.scores.qk_norm import rms_norm

__all__ = ["differential_attention", "differential_lambda", "differential_norm", "differential_weights"]


def differential_attention(
    q: Array,
    k: Array,
    v: Array,
    /,
    *,
    lam: Array,
    mask: Array | None = None,
    bias: Array | None = None,
    score: Score = scaled_dot(),
) -> Array:
    r"""Look up with pairs of heads: blend with the weights of the first minus a fraction of those of the second.

    .. math:: \operatorname{out}_{hi} = \sum_j \big(w_{2h, ij} - \lambda_{hi} \, w_{2h+1, ij}\big) \, v_{hj}, \qquad
              w_{ci} = \operatorname{softmax}(\operatorname{score}(q_{ci}, k_c) + \text{bias}_{ci}, \ \text{mask}_{ci})

    Parameters
    ----------
    q : array of shape (..., 2 H, n, d)
        Queries. The heads 2 h and 2 h + 1 are the pair h.
    k : array of shape (..., H_k, m, d)
        Keys. H_k divides 2 H: query head c reads key head ``c // (2 H / H_k)``.
    v : array of shape (..., H_v, m, e)
        Values. H_v divides H: the pair h reads value head ``h // (H / H_v)``.
    lam : array that broadcasts to (..., H, n)
        The fraction lambda that is subtracted: one number for all, one for each pair in the shape (H, 1), or one for
        each pair and query.
    mask : boolean array that broadcasts to (..., 2 H, n, m), optional
        True where the query may read the key.
    bias : array that broadcasts to (..., 2 H, n, m), optional
        Numbers that are added to the scores.
    score : callable
        Compares: ``score(q, k) -> s``.

    Returns
    -------
    array of shape (..., H, n, e)
        One blend for each pair of heads and query.

    Raises
    ------
    ValueError
        If an axis is missing, if the number of heads of `q` is not even, if heads do not divide, if `k` and `v` do not
        have the same number of items, if the axes before the heads do not broadcast, if `lam`, `mask` or `bias` would
        enlarge what they act on, and where `score` raises it.
    TypeError
        If an argument is not an array of numbers, if `mask` is not boolean, or if two array libraries are mixed.

    See Also
    --------
    differential_weights : The weights that the values are blended with.
    differential_lambda : The fraction, from learned vectors.
    differential_norm : What follows, in the first version of the method.

    Notes
    -----
    Slot : between normalize and blend
    Changes : a fraction of what the second head of a pair reads is taken away, and weights can be negative.
    Cost : O(H n m (2 d + e)) time, O(H n m) memory.
    Empty row : a query that may read nothing gets zeros.
    Promises : shift invariant, prefix stable
    Equals : ``attention`` of the first heads when lambda is zero; the difference of two calls of ``attention``;
        ``talking_heads_attention`` with the identity and columns of 1 and -lambda.
    Year : 2024
    Source : Ye et al., 2024, Differential Transformer, arXiv 2410.05258, section 2.1 and released code.
    Other names : differential transformer, DIFF transformer, Diff attention, DiffAttn, differential attention V2,
        DIFF V2, difference of two softmaxes

    A row of weights sums to one minus lambda where both heads may read something. A key or a value that no query may
    read can hold NaN or infinity without effect on values and gradients. Where the masks of a pair differ, the pair
    may read what either head may read.

    References
    ----------
    T. Ye et al., Differential Transformer, ICLR 2025.

    Examples
    --------
    >>> import numpy as np
    >>> q, k = np.ones((2, 1, 1)), np.log(np.array([[[4.0], [1.0]], [[1.0], [1.0]]]))
    >>> differential_attention(q, k, np.array([[10.0], [20.0]]), lam=np.array(0.4)).round(3)
    array([[[6.]]])
    """
    xp, dtype, (q, k, v, lam, bias) = promote(q=q, k=k, v=v, lam=lam, bias=bias)
    check_items(k, v)
    w = differential_weights(q, k, lam=lam, mask=mask, bias=bias, score=score)
    pairs = w.shape[-3]
    if v.ndim > 2:
        v = xp.repeat(v, group_size("v", v, pairs, f"the {pairs} pairs of heads of q"), axis=-3)
    if mask is not None and mask.ndim > 2 and mask.shape[-3] > 1:
        mask = mask[..., 0::2, :, :] | mask[..., 1::2, :, :]
    return cast(xp, weighted_average(w, v, allowed=mask), dtype)


def differential_weights(
    q: Array,
    k: Array,
    /,
    *,
    lam: Array,
    mask: Array | None = None,
    bias: Array | None = None,
    score: Score = scaled_dot(),
) -> Array:
    r"""Compute the differences of weights with which differential attention blends.

    .. math:: w_{hij} = w_{2h, ij} - \lambda_{hi} \, w_{2h+1, ij}

    Parameters
    ----------
    q : array of shape (..., 2 H, n, d)
        Queries. The heads 2 h and 2 h + 1 are the pair h.
    k : array of shape (..., H_k, m, d)
        Keys. H_k divides 2 H.
    lam : array that broadcasts to (..., H, n)
        The fraction lambda that is subtracted.
    mask : boolean array that broadcasts to (..., 2 H, n, m), optional
        True where the query may read the key.
    bias : array that broadcasts to (..., 2 H, n, m), optional
        Numbers that are added to the scores.
    score : callable
        Compares: ``score(q, k) -> s``.

    Returns
    -------
    array of shape (..., H, n, m)
        Numbers between minus lambda and one, for a lambda that is not negative; a row sums to one minus lambda
        where both heads may read something.

    Raises
    ------
    ValueError
        Where `differential_attention` raises it for these arguments.
    TypeError
        Where `differential_attention` raises it for these arguments.

    See Also
    --------
    differential_attention : Blends with these weights, and describes the arguments.

    Notes
    -----
    Cost : O(H n m d) time, O(H n m) memory.
    Empty row : a query that may read nothing has zeros.

    Examples
    --------
    >>> import numpy as np
    >>> q, k = np.ones((2, 1, 1)), np.log(np.array([[[4.0], [1.0]], [[1.0], [1.0]]]))
    >>> differential_weights(q, k, lam=np.array(0.5)).round(3)
    array([[[ 0.55, -0.05]]])
    """
    xp, dtype, (q, k, lam, bias) = promote(q=q, k=k, lam=lam, bias=bias)
    check_axes("H n d", q=q)
    if q.shape[-3] == 0 or q.shape[-3] % 2:
        raise ValueError(f"q has {q.shape[-3]} heads; pairs need an even number of them, at least two")
    w = attention_weights(q, k, mask=mask, bias=bias, score=score)
    first, second = w[..., 0::2, :, :], w[..., 1::2, :, :]
    check_broadcast("lam", lam, tuple(first.shape[:-1]))
    return cast(xp, first - lam[..., None] * second, dtype)


def differential_lambda(q1: Array, k1: Array, q2: Array, k2: Array, /, *, initial: float) -> Array:
    r"""Compute the fraction that is subtracted from four learned vectors.

    .. math:: \lambda = \exp(\lambda_{q_1} \cdot \lambda_{k_1}) - \exp(\lambda_{q_2} \cdot \lambda_{k_2})
              + \lambda_{\text{init}}

    Parameters
    ----------
    q1, k1, q2, k2 : array of shape (..., d)
        The learned vectors; they have nothing to do with the queries and keys of a text.
    initial : float
        The value when both products are equal, as they nearly are before training. Layer l, counted from one, has
        :math:`0.8 - 0.6 \exp(-0.3 (l - 1))` in the paper.

    Returns
    -------
    array of shape (...)
        One number for each four vectors, for the argument `lam` of `differential_attention`; it can be negative, and
        larger than one.

    Raises
    ------
    ValueError
        If an axis is missing, if the vectors do not have one width, if their leading axes do not broadcast, or if
        `initial` is not finite.
    TypeError
        If an argument is not an array of numbers, if two array libraries are mixed, or if `initial` is not a number.

    See Also
    --------
    differential_attention : Uses the fraction.

    Notes
    -----
    Cost : O(d) time.
    Empty row : none; it knows no keys.

    Examples
    --------
    >>> import numpy as np
    >>> zero, one = np.zeros(2), np.ones(2)
    >>> differential_lambda(one, np.log(np.array([3.0, 0.5])), one, zero, initial=0.2).round(3)
    np.float64(0.7)
    """
    initial = finite("initial", initial)
    xp, dtype, (q1, k1, q2, k2) = promote(q1=q1, k1=k1, q2=q2, k2=k2)
    check_axes("d", q1=q1, k1=k1, q2=q2, k2=k2)
    for name, x in (("k1", k1), ("q2", q2), ("k2", k2)):
        if x.shape[-1] != q1.shape[-1]:
            raise ValueError(f"{name} has {x.shape[-1]} columns, q1 has {q1.shape[-1]}; they must be equal")
    broadcast_batch(1, q1=q1, k1=k1, q2=q2, k2=k2)
    lam = xp.exp(xp.sum(q1 * k1, axis=-1)) - xp.exp(xp.sum(q2 * k2, axis=-1)) + initial
    return cast(xp, lam, dtype)


def differential_norm(x: Array, /, *, initial: float, weight: Array | None = None, epsilon: float = 0.0) -> Array:
    r"""Bring the output of each pair of heads to one size, and multiply it by one minus the initial lambda.

    .. math:: y_{hi} = (1 - \lambda_{\text{init}}) \, \frac{x_{hi}}{\sqrt{\tfrac1e \sum_c x_{hic}^2 + \varepsilon}} \; w

    Parameters
    ----------
    x : array of shape (..., H, n, e)
        The output of `differential_attention`.
    initial : float
        The number that was given to `differential_lambda`; a constant, not the learned lambda.
    weight : array that broadcasts to (..., H, n, e), optional
        The learned numbers w, usually of shape (e,) and shared by all pairs.
    epsilon : float
        The number that is added to the mean of the squares.

    Returns
    -------
    array of shape (..., H, n, e)
        Without a weight and an epsilon, vectors with the root mean square one minus `initial`; zeros stay.

    Raises
    ------
    ValueError
        If an axis is missing, if `weight` would enlarge `x`, or if `initial` or `epsilon` is not finite.
    TypeError
        If `x` or `weight` is not an array of numbers, if two array libraries are mixed, or if `initial` or `epsilon`
        is not a number.

    See Also
    --------
    rms_norm : The norm itself.

    Notes
    -----
    Cost : O(H n e) time.
    Empty row : zeros stay zeros.

    Examples
    --------
    >>> import numpy as np
    >>> differential_norm(np.array([[[1.0, 7.0]]]), initial=0.8).round(3)
    array([[[0.04, 0.28]]])
    """
    xp, dtype, (x, weight) = promote(x=x, weight=weight)
    check_axes("H n e", x=x)
    return cast(xp, (1 - finite("initial", initial)) * rms_norm(x, weight=weight, epsilon=epsilon), dtype)
