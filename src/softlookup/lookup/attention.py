"""Attention: score, bias, normalize what is allowed, blend."""

from typing import Any

from softlookup._arrays import Array, Normalizer, Score, cast, hide_unread, inverse_root, promote, sum_to_shape
from softlookup._checks import (
    allowed_pairs,
    broadcast_batch,
    check_axes,
    check_broadcast,
    check_items,
    check_shape,
    finite,
    group_size,
    pair_shape,
    positive,
)
from softlookup.lookup.softmax import softmax
from softlookup.lookup.weighted_average import weighted_average

__all__ = ["attention", "attention_scores", "attention_vjp", "attention_weights", "scaled_dot"]


def scaled_dot(*, scale: float | None = None, cap: float | None = None) -> Score:
    r"""Build the score that is a scaled dot product, softly capped on request.

    .. math:: s_{ij} = c \tanh(z_{ij} / c), \qquad z_{ij} = \text{scale} \cdot q_i \cdot k_j, \qquad
              s_{ij} = z_{ij} \ \text{without a cap}

    Parameters
    ----------
    scale : float, optional
        What the dot product is multiplied by. None means :math:`1/\sqrt d`; any number is taken as it is.
    cap : float, optional
        The number c that no score exceeds in absolute value. None means no cap.

    Returns
    -------
    callable
        The function ``score(q, k)``, for the argument `score` of `attention`. Its attribute ``vjp(g, q, k)`` pulls a
        gradient with respect to the scores back to the queries and the keys.

    Raises
    ------
    ValueError
        If `scale` is not finite, or `cap` not positive and finite. The score raises it if an axis is missing, if `q`
        and `k` do not agree in d, or if their leading axes do not broadcast.
    TypeError
        If `scale` or `cap` is not a number.

    See Also
    --------
    gaussian_score : Compares by distance.

    Notes
    -----
    Slot : score
    Changes : nothing; it is the default. With a cap, large scores are bent toward it, before bias and mask.
    Cost : O(n m d) time, O(n m) memory.
    Empty row : decided by the normalizer.
    Promises : prefix stable
    Equals : ``gaussian_score(bandwidth=h)`` when the scale is 1/h² and all keys have the same norm, once softmax has
        divided by the total.
    Year : 2017
    Source : Vaswani et al., 2017, Attention Is All You Need, section 3.2.1, arXiv 1706.03762; the cap: Gemma Team,
        2024, Gemma 2: Improving Open Language Models at a Practical Size, section 2, arXiv 2408.00118.
    Other names : scaled dot-product score; logit soft-capping

    The queries are scaled before the product. With d = 0 every score is zero.

    References
    ----------
    A. Vaswani et al., Attention Is All You Need, NeurIPS 2017.

    Examples
    --------
    >>> import numpy as np
    >>> q, k = np.array([[2.0, 0.0, 0.0, 0.0]]), np.array([[3.0, 0.0, 0.0, 0.0], [0.0, 1.0, 0.0, 0.0]])
    >>> scaled_dot()(q, k)
    array([[3., 0.]])
    >>> scaled_dot(scale=1.0, cap=2.0)(q, k).round(3)
    array([[1.99, 0.  ]])
    """
    scale = scale if scale is None else finite("scale", scale)
    cap = cap if cap is None else positive("cap", cap)

    def factor(d: int) -> float:
        return inverse_root(d) if scale is None else scale

    def score(q: Array, k: Array, /) -> Array:
        xp, dtype, (q, k) = promote(q=q, k=k)
        pair_shape(q, k)
        z = (factor(q.shape[-1]) * q) @ k.mT
        return cast(xp, z if cap is None else cap * xp.tanh(z / cap), dtype)

    def vjp(g: Array, q: Array, k: Array, /) -> tuple[Array, Array]:
        xp, dtype, (g, q, k) = promote(g=g, q=q, k=k)
        check_shape("g", g, pair_shape(q, k))
        dz = factor(q.shape[-1]) * (g if cap is None else g * (1 - (score(q, k) / cap) ** 2))
        dq, dk = sum_to_shape(xp, dz @ k, q.shape), sum_to_shape(xp, dz.mT @ q, k.shape)
        return cast(xp, dq, dtype), cast(xp, dk, dtype)

    score.vjp = vjp
    return score


def attention(
    q: Array,
    k: Array,
    v: Array,
    /,
    *,
    mask: Array | None = None,
    bias: Array | None = None,
    score: Score = scaled_dot(),
    normalize: Normalizer = softmax,
) -> Array:
    r"""Look up each query: blend the values by how well their keys fit it.

    .. math:: \operatorname{out}_i = \sum_j w_{ij} \, v_j, \qquad
              w_i = \operatorname{normalize}(\operatorname{score}(q_i, k) + \text{bias}_i, \ \text{mask}_i)

    Parameters
    ----------
    q : array of shape (..., H, n, d)
        Queries. With two axes there is no head axis; with three or more, axis -3 counts heads.
    k : array of shape (..., H_kv, m, d)
        Keys. Their number of heads must divide that of `q`: query head h reads key head ``h // (H / H_kv)``. A missing
        head axis is one head.
    v : array of shape (..., H_kv, m, e)
        Values, one for each key. Their number of heads, too, must divide that of `q`; it may differ from that of `k`.
    mask : boolean array that broadcasts to (..., H, n, m), optional
        True where the query may read the key. What it may not read is left out, not multiplied by zero.
    bias : array that broadcasts to (..., H, n, m), optional
        Numbers that are added to the scores.
    score : callable
        Compares: ``score(q, k) -> s``.
    normalize : callable
        Turns each row of scores into weights: ``normalize(s, allowed) -> w``.

    Returns
    -------
    array of shape (..., H, n, e)
        One blend for each query.

    Raises
    ------
    ValueError
        If an axis is missing, if heads do not divide, if `k` and `v` do not have the same number of items, if the axes
        before the heads do not broadcast, if `mask` or `bias` would enlarge the scores, and where `score` raises it.
    TypeError
        If an argument is not an array of numbers, if `mask` is not boolean, or if two array libraries are mixed.

    See Also
    --------
    attention_weights : The weights that the values are blended with.
    attention_vjp : The gradient.
    weighted_average : The blend.

    Notes
    -----
    Slot : all five: score, bias, mask, normalize, blend
    Changes : nothing; it is the definition.
    Cost : O(H n m (d + e)) time, O(H n m) memory.
    Empty row : a query that may read nothing gets zeros.
    Promises : non-negative, sums to one, inside the hull, shift invariant, prefix stable
    Equals : ``kernel_regression`` when the score is ``gaussian_score``; ``hard_lookup`` when the normalizer is
        ``hardmax``; the mean of the values that may be read when all scores are equal.
    Year : 2017
    Source : Vaswani et al., 2017, Attention Is All You Need, section 3.2, arXiv 1706.03762.
    Other names : scaled dot-product attention, SDPA, softmax attention

    The order is fixed: score (with its scale and cap), bias, mask, normalize, blend. The promises are those of softmax;
    another normalizer keeps its own. The axes before the heads broadcast by NumPy's rule. Integers become the library's
    default float, and at least float32 is computed in.

    A key or a value that no query may read can hold NaN or infinity without effect on values and gradients. Where some
    queries may read it, the outputs of the others stay what they are. A NaN that may be read shows in the output.

    References
    ----------
    A. Vaswani et al., Attention Is All You Need, NeurIPS 2017.

    Examples
    --------
    >>> import numpy as np
    >>> x = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    >>> attention(x, x, x).round(3)
    array([[0.802, 0.599],
           [0.599, 0.802],
           [0.752, 0.752]])
    >>> attention(x, x, x, mask=np.tri(3, dtype=bool)).round(3)
    array([[1.   , 0.   ],
           [0.33 , 0.67 ],
           [0.752, 0.752]])
    """
    xp, dtype, (q, k, v, bias) = promote(q=q, k=k, v=v, bias=bias)
    v = _spread_values(xp, q, k, v)
    w = attention_weights(q, k, mask=mask, bias=bias, score=score, normalize=normalize)
    return cast(xp, weighted_average(w, v, allowed=mask), dtype)


def attention_weights(
    q: Array,
    k: Array,
    /,
    *,
    mask: Array | None = None,
    bias: Array | None = None,
    score: Score = scaled_dot(),
    normalize: Normalizer = softmax,
) -> Array:
    r"""Compute the weights with which attention blends the values.

    .. math:: w_i = \operatorname{normalize}(\operatorname{score}(q_i, k) + \text{bias}_i, \ \text{mask}_i)

    Parameters
    ----------
    q : array of shape (..., H, n, d)
        Queries.
    k : array of shape (..., H_kv, m, d)
        Keys.
    mask : boolean array that broadcasts to (..., H, n, m), optional
        True where the query may read the key.
    bias : array that broadcasts to (..., H, n, m), optional
        Numbers that are added to the scores.
    score : callable
        Compares: ``score(q, k) -> s``.
    normalize : callable
        Turns each row of scores into weights: ``normalize(s, allowed) -> w``.

    Returns
    -------
    array of shape (..., H, n, m)
        One row of weights for each head and query; heads are not averaged.

    Raises
    ------
    ValueError
        Where `attention` raises it for these arguments.
    TypeError
        Where `attention` raises it for these arguments.

    See Also
    --------
    attention : Uses these weights, and describes the arguments.
    attention_scores : What the normalizer gets.

    Notes
    -----
    Cost : O(H n m d) time, O(H n m) memory.
    Empty row : a query that may read nothing has zeros.

    Examples
    --------
    >>> import numpy as np
    >>> x = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    >>> attention_weights(x, x).round(4)
    array([[0.4011, 0.1978, 0.4011],
           [0.1978, 0.4011, 0.4011],
           [0.2483, 0.2483, 0.5035]])
    """
    xp, dtype, (q, k, bias) = promote(q=q, k=k, bias=bias)
    k, allowed = _readable_keys(xp, q, k, mask)
    s = attention_scores(q, k, bias=bias, score=score)
    return cast(xp, normalize(s, allowed), dtype)


def attention_scores(q: Array, k: Array, /, *, bias: Array | None = None, score: Score = scaled_dot()) -> Array:
    r"""Compute the scores of attention, with the bias and before the mask.

    .. math:: s_{ij} = \operatorname{score}(q_i, k_j) + \text{bias}_{ij}

    Parameters
    ----------
    q : array of shape (..., H, n, d)
        Queries.
    k : array of shape (..., H_kv, m, d)
        Keys.
    bias : array that broadcasts to (..., H, n, m), optional
        Numbers that are added to the scores.
    score : callable
        Compares: ``score(q, k) -> s``.

    Returns
    -------
    array of shape (..., H, n, m)
        One score for each head, query and key.

    Raises
    ------
    ValueError
        Where `attention` raises it for these arguments.
    TypeError
        Where `attention` raises it for these arguments.

    See Also
    --------
    attention_weights : Normalizes these scores under a mask.

    Notes
    -----
    Cost : O(H n m d) time, O(H n m) memory.
    Empty row : none yet; a score knows no mask.

    Examples
    --------
    >>> import numpy as np
    >>> x = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    >>> attention_scores(x, x, score=scaled_dot(scale=1.0), bias=np.array([0.0, 0.0, 0.5]))
    array([[1. , 0. , 1.5],
           [0. , 1. , 1.5],
           [1. , 1. , 2.5]])
    """
    xp, dtype, (q, k, bias) = promote(q=q, k=k, bias=bias)
    k, _ = _readable_keys(xp, q, k, None)
    s = score(q, k)
    if bias is not None:
        check_broadcast("bias", bias, s.shape)
        s = s + bias
    return cast(xp, s, dtype)


def attention_vjp(
    g: Array,
    q: Array,
    k: Array,
    v: Array,
    /,
    *,
    mask: Array | None = None,
    bias: Array | None = None,
    score: Score = scaled_dot(),
    normalize: Normalizer = softmax,
) -> tuple[Array, Array, Array, Array | None]:
    r"""Pull a gradient with respect to the output back to the arrays that attention read.

    .. math:: dv_j = \sum_i w_{ij} \, g_i, \qquad dw_{ij} = g_i \cdot v_j, \qquad
              ds = \operatorname{vjp}_{\text{normalize}}(dw), \qquad
              d\text{bias} = ds, \qquad (dq, dk) = \operatorname{vjp}_{\text{score}}(ds)

    Parameters
    ----------
    g : array of shape (..., H, n, e)
        Gradient with respect to the output of `attention`, in its shape.
    q : array of shape (..., H, n, d)
        Queries.
    k : array of shape (..., H_kv, m, d)
        Keys.
    v : array of shape (..., H_kv, m, e)
        Values.
    mask : boolean array that broadcasts to (..., H, n, m), optional
        True where the query may read the key.
    bias : array that broadcasts to (..., H, n, m), optional
        Numbers that are added to the scores.
    score : callable
        A score with an attribute ``vjp(g, q, k) -> (dq, dk)``, such as those of `scaled_dot`.
    normalize : callable
        A normalizer with an attribute ``vjp(g, s, allowed) -> ds``, such as `softmax`.

    Returns
    -------
    dq, dk, dv : array
        Gradients in the shapes of `q`, `k` and `v`: summed over grouped heads and over axes that were broadcast.
    dbias : array or None
        Gradient in the shape of `bias`; None if there is no bias.

    Raises
    ------
    ValueError
        If `g` does not have the shape of the output, and where `attention` raises it.
    TypeError
        If `score` or `normalize` has no ``vjp``, and where `attention` raises it.

    See Also
    --------
    attention : The function itself, which describes the arguments.
    softmax_vjp : The gradient of the default normalizer.

    Notes
    -----
    Cost : O(H n m (d + e)) time, two and a half times that of `attention` (the scores are computed
        again), and O(H n m) memory.
    Empty row : a query that may read nothing adds nothing to any gradient.

    Examples
    --------
    >>> import numpy as np
    >>> q, k, v = np.array([[1.0]]), np.array([[1.0], [1.0]]), np.array([[0.0], [4.0]])
    >>> dq, dk, dv, dbias = attention_vjp(np.array([[1.0]]), q, k, v)
    >>> dk
    array([[-1.],
           [ 1.]])
    """
    for name, function in (("score", score), ("normalize", normalize)):
        if not hasattr(function, "vjp"):
            raise TypeError(f"{name} has no attribute vjp; the autograd of PyTorch or JAX needs none")
    xp, dtype, (g, q, k, v, bias) = promote(g=g, q=q, k=k, v=v, bias=bias)
    values = _spread_values(xp, q, k, v)
    keys, allowed = _readable_keys(xp, q, k, mask)
    values = hide_unread(xp, values, allowed)
    s = attention_scores(q, keys, bias=bias, score=score)
    w = normalize(s, allowed)
    check_shape("g", g, (*broadcast_batch(2, w=w, v=values), w.shape[-2], values.shape[-1]))
    ds = normalize.vjp(sum_to_shape(xp, g @ values.mT, s.shape), s, allowed)
    dq, dk = score.vjp(ds, q, keys)
    dk, dv = _gather_heads(xp, dk, k.shape), _gather_heads(xp, w.mT @ g, v.shape)
    dbias = None if bias is None else cast(xp, sum_to_shape(xp, ds, bias.shape), dtype)
    return cast(xp, dq, dtype), cast(xp, dk, dtype), cast(xp, dv, dtype), dbias


def _readable_keys(xp: Any, q: Array, k: Array, mask: Array | None) -> tuple[Array, Array | None]:
    """Return the keys for every head of the queries, without those that nobody reads, and the mask of all pairs."""
    check_axes("n d", q=q)
    check_axes("m d", k=k)
    k = _spread_heads(xp, "k", k, q)
    mask = allowed_pairs(xp, "mask", mask, (*broadcast_batch(2, q=q, k=k), q.shape[-2], k.shape[-2]))
    return hide_unread(xp, k, mask), mask


def _spread_values(xp: Any, q: Array, k: Array, v: Array) -> Array:
    """Return the values for every head of the queries."""
    check_axes("n d", q=q)
    check_items(k, v)
    broadcast_batch(3, q=q, k=k, v=v)
    return _spread_heads(xp, "v", v, q)


def _spread_heads(xp: Any, name: str, x: Array, q: Array) -> Array:
    """Repeat each head of `x` for the heads of `q` that read it; a single head is left to broadcasting."""
    heads = q.shape[-3] if q.ndim > 2 else 1
    if x.ndim < 3 or x.shape[-3] in (1, heads):
        return x
    return xp.repeat(x, group_size(name, x, heads, f"q's {heads}"), axis=-3)


def _gather_heads(xp: Any, dx: Array, shape: tuple[int, ...]) -> Array:
    """Sum the gradient of an array of `shape` over the heads and the axes that the array was spread over."""
    if len(shape) > 2 and shape[-3] not in (1, dx.shape[-3]):
        grouped = (*dx.shape[:-3], shape[-3], dx.shape[-3] // shape[-3], *dx.shape[-2:])
        dx = xp.sum(xp.reshape(dx, grouped), axis=-3)
    return sum_to_shape(xp, dx, shape)
