"""Merging: results over parts of the keys, put together to the result over all of them."""

import math
from typing import Any

from softlookup._arrays import Array, Score, cast, hide, library, promote
from softlookup._checks import check_axes, check_broadcast, check_items, check_shape
from softlookup.lookup.attention import attention, scaled_dot
from softlookup.lookup.softmax import log_sum_exp, softmax
from softlookup.schedules.online_softmax import _cuts

__all__ = ["merge", "merge_all", "merge_vjp", "partial_attention", "shared_prefix_attention", "split_attention"]


def partial_attention(
    q: Array,
    k: Array,
    v: Array,
    /,
    *,
    mask: Array | None = None,
    bias: Array | None = None,
    score: Score = scaled_dot(),
) -> tuple[Array, Array]:
    r"""Attend to a part of the keys, and say how much the part weighs.

    .. math:: o_i = \frac{1}{e^{L_i}} \sum_{j \in A_i} e^{s_{ij}} v_j, \qquad L_i = \log \sum_{j \in A_i} e^{s_{ij}},
              \qquad s_{ij} = \operatorname{score}(q_i, k_j) + \text{bias}_{ij}

    Parameters
    ----------
    q : array of shape (..., H, n, d)
        Queries.
    k : array of shape (..., H_kv, m, d)
        Keys of the part.
    v : array of shape (..., H_kv, m, e)
        Values of the part.
    mask : boolean array that broadcasts to (..., H, n, m), optional
        True where the query may read the key: the set A.
    bias : array that broadcasts to (..., H, n, m), optional
        Numbers that are added to the scores.
    score : callable
        Compares: ``score(q, k) -> s``.

    Returns
    -------
    out : array of shape (..., H, n, e)
        What `attention` gives for the part.
    lse : array of shape (..., H, n)
        The natural log-sum-exp of the scores of the part, without any sink. It has at least float32, also where `out`
        is narrower: it is compared with that of other parts, and an error in it is an error in their shares.

    Raises
    ------
    ValueError
        Where `attention` raises it.
    TypeError
        Where `attention` raises it.

    See Also
    --------
    merge : Puts two of these results together.
    split_attention : Cuts the keys, calls this for each part, and merges.

    Notes
    -----
    Cost : that of `attention`, and one number more for each query.
    Empty row : zeros and minus infinity, which change nothing when they are merged.

    Also called attention with log-sum-exp, or an attention state.

    Examples
    --------
    >>> import numpy as np
    >>> out, lse = partial_attention(np.zeros((1, 2)), np.zeros((3, 2)), np.array([[1.0], [2.0], [6.0]]))
    >>> out, lse.round(4)
    (array([[3.]]), array([1.0986]))
    """
    xp, dtype, (q, k, v, bias) = promote(q=q, k=k, v=v, bias=bias)
    found = []

    def normalize(s: Array, allowed: Array | None = None, /) -> Array:
        found.append(log_sum_exp(s, allowed))
        return softmax(s, allowed)

    out = attention(q, k, v, mask=mask, bias=bias, score=score, normalize=normalize)
    return cast(xp, out, dtype), xp.broadcast_to(found[0], out.shape[:-1])


def merge(out_a: Array, lse_a: Array, out_b: Array, lse_b: Array, /) -> tuple[Array, Array]:
    r"""Put the results over two parts of the keys together.

    .. math:: L = \log (e^{L_a} + e^{L_b}), \qquad o = e^{L_a - L} o_a + e^{L_b - L} o_b

    Parameters
    ----------
    out_a : array of shape (..., n, e)
        Output over the first part.
    lse_a : array of shape (..., n)
        Its natural log-sum-exp; minus infinity where the query reads nothing of the part.
    out_b : array of shape (..., n, e)
        Output over the second part.
    lse_b : array of shape (..., n)
        Its natural log-sum-exp.

    Returns
    -------
    out : array of shape (..., n, e)
        The output over both parts, in the common dtype of `out_a` and `out_b`.
    lse : array of shape (..., n)
        Its log-sum-exp, in the common dtype of `lse_a` and `lse_b`.

    Raises
    ------
    ValueError
        If an axis is missing, if `out_b` does not have the shape of `out_a`, or a log-sum-exp not that of the rows.
    TypeError
        If an argument is not an array of numbers, or if two array libraries are mixed.

    See Also
    --------
    merge_all : Any number of parts at once.
    merge_vjp : The gradient.
    partial_attention : Makes these results.

    Notes
    -----
    Slot : around all five: which keys are read together
    Changes : nothing; the keys of the two parts are read as if they had been together.
    Cost : O(n e) time and memory, whatever the number of keys.
    Empty row : a part with minus infinity changes nothing, whatever its output holds; two of them give zeros and minus
        infinity.
    Promises : prefix stable
    Equals : ``merge_all`` of the two parts; ``partial_attention`` over the keys of both, if no key is in both.
    Year : 2021
    Source : Rabe and Staats, 2021, Self-attention Does Not Need O(n²) Memory, arXiv 2112.05682; as an operation with
        this name: Ye et al., 2025, FlashInfer, section 2.2, arXiv 2501.01005.
    Other names : merge_state, merge_attn_states, attention state, LSE merge, log-sum-exp merge, attention composition,
        combine, online softmax merge

    The operation is commutative and associative, up to rounding, and zeros with minus infinity are its identity. The
    rule for infinities is that of `softmax`: a part with plus infinity leaves nothing to a finite one, and two of them
    share equally, however many infinite scores each of them has; there merging differs from reading at once, and the
    grouping counts.

    References
    ----------
    Z. Ye et al., FlashInfer: Efficient and Customizable Attention Engine for LLM Inference Serving, MLSys 2025.

    Examples
    --------
    >>> import numpy as np
    >>> out, lse = merge(np.array([[5.0]]), np.log([4.0]), np.array([[7.0]]), np.log([12.0]))
    >>> out, np.exp(lse).round(6)
    (array([[6.5]]), array([16.]))
    """
    xp = _check_two(out_a, lse_a, out_b, lse_b)
    _, outs_dtype, outs = promote(out_a=out_a, out_b=out_b)
    _, lses_dtype, lses = promote(lse_a=lse_a, lse_b=lse_b)
    out, lse = merge_all(xp.stack(outs, axis=-3), xp.stack(lses, axis=-2))
    return cast(xp, out, outs_dtype), cast(xp, lse, lses_dtype)


def merge_all(outs: Array, lses: Array, /) -> tuple[Array, Array]:
    r"""Put the results over any number of parts together, in one step.

    .. math:: L = \log \sum_p e^{L_p}, \qquad o = \sum_p c_p \, o_p, \qquad c = \operatorname{softmax}(L_1, L_2, \dots)

    Parameters
    ----------
    outs : array of shape (..., p, n, e)
        Outputs over p parts of the keys.
    lses : array of shape (..., p, n)
        Their natural log-sum-exps.

    Returns
    -------
    out : array of shape (..., n, e)
        The output over all parts, in the dtype of `outs`.
    lse : array of shape (..., n)
        Its log-sum-exp, in the dtype of `lses`.

    Raises
    ------
    ValueError
        If an axis is missing, or if `lses` does not have one number for each row of `outs`.
    TypeError
        If an argument is not an array of numbers, or if two array libraries are mixed.

    See Also
    --------
    merge : Two parts.
    softmax : Makes the shares of the parts.

    Notes
    -----
    Cost : O(p n e) time and memory.
    Empty row : no parts, or only parts with minus infinity, give zeros and minus infinity.

    Also called merge_states. Parts may stand in any order. Integers become the library's default float.

    Examples
    --------
    >>> import numpy as np
    >>> out, lse = merge_all(np.array([[[1.0]], [[3.0]], [[10.0]]]), np.log([[2.0], [2.0], [4.0]]))
    >>> out, np.exp(lse).round(6)
    (array([[6.]]), array([8.]))
    """
    xp = library(outs=outs, lses=lses)
    check_axes("p n e", outs=outs)
    check_shape("lses", lses, outs.shape[:-1])
    _, outs_dtype, (outs,) = promote(outs=outs)
    _, lses_dtype, (lses,) = promote(lses=lses)
    alive = lses != -math.inf
    shares = softmax(lses.mT, alive.mT).mT[..., None]
    out = xp.sum(shares * hide(xp, outs, alive[..., None], 0.0), axis=-3)
    return cast(xp, out, outs_dtype), cast(xp, log_sum_exp(lses.mT, alive.mT), lses_dtype)


def merge_vjp(
    g_out: Array, g_lse: Array, out_a: Array, lse_a: Array, out_b: Array, lse_b: Array, /
) -> tuple[Array, Array, Array, Array]:
    r"""Pull gradients with respect to the merged result back to the two parts.

    .. math:: do_p = c_p \, g^o, \qquad dL_p = c_p \bigl( g^o \cdot (o_p - o) + g^L \bigr), \qquad c_p = e^{L_p - L}

    Parameters
    ----------
    g_out : array of shape (..., n, e)
        Gradient with respect to the merged output.
    g_lse : array of shape (..., n)
        Gradient with respect to the merged log-sum-exp; zeros if nothing reads it.
    out_a : array of shape (..., n, e)
        The first output, as it was given to `merge`.
    lse_a : array of shape (..., n)
        Its log-sum-exp.
    out_b : array of shape (..., n, e)
        The second output.
    lse_b : array of shape (..., n)
        Its log-sum-exp.

    Returns
    -------
    dout_a : array of shape (..., n, e)
        Gradient with respect to the first output.
    dlse_a : array of shape (..., n)
        Gradient with respect to the first log-sum-exp; where that is infinite, the output has no slope.
    dout_b : array of shape (..., n, e)
        Gradient with respect to the second output.
    dlse_b : array of shape (..., n)
        Gradient with respect to the second log-sum-exp; where that is infinite, the output has no slope.

    Raises
    ------
    ValueError
        If a gradient does not have the shape of the result, and where `merge` raises it.
    TypeError
        Where `merge` raises it.

    See Also
    --------
    merge : The function itself.

    Notes
    -----
    Cost : O(n e) time and memory.
    Empty row : zeros.

    All results have the common dtype of the arguments.

    Examples
    --------
    >>> import numpy as np
    >>> a, b, one = np.array([[5.0]]), np.array([[7.0]]), np.array([[1.0]])
    >>> merge_vjp(one, np.array([0.0]), a, np.log([4.0]), b, np.log([12.0]))[1].round(4)
    array([-0.375])
    """
    _check_two(out_a, lse_a, out_b, lse_b)
    check_shape("g_out", g_out, out_a.shape)
    check_shape("g_lse", g_lse, lse_a.shape)
    xp, dtype, (g_out, g_lse, out_a, lse_a, out_b, lse_b) = promote(
        g_out=g_out, g_lse=g_lse, out_a=out_a, lse_a=lse_a, out_b=out_b, lse_b=lse_b
    )
    out, _ = merge(out_a, lse_a, out_b, lse_b)
    lses = xp.stack([lse_a, lse_b], axis=-1)
    shares = softmax(lses, lses != -math.inf)
    gradients = []
    for part, (out_p, lse_p) in enumerate(((out_a, lse_a), (out_b, lse_b))):
        share = shares[..., part]
        pull = xp.sum(g_out * hide(xp, out_p - out, ~xp.isinf(lse_p)[..., None], 0.0), axis=-1)
        gradients += [cast(xp, share[..., None] * g_out, dtype), cast(xp, share * (pull + g_lse), dtype)]
    return tuple(gradients)


def split_attention(
    q: Array,
    k: Array,
    v: Array,
    /,
    *,
    size: int,
    mask: Array | None = None,
    bias: Array | None = None,
    score: Score = scaled_dot(),
) -> Array:
    r"""Attend to the keys in parts of a fixed size, each for itself, and merge the results.

    .. math:: \operatorname{out} = \operatorname{merge}_p \bigl( \operatorname{partial}(q, \, k_p, \, v_p) \bigr),
              \qquad k_p = k_{p b}, \dots, k_{p b + b - 1}, \qquad b = \text{size}

    Parameters
    ----------
    q : array of shape (..., H, n, d)
        Queries.
    k : array of shape (..., H_kv, m, d)
        Keys.
    v : array of shape (..., H_kv, m, e)
        Values.
    size : int
        The number of keys of a part; the last part has what is left.
    mask : boolean array that broadcasts to (..., H, n, m), optional
        True where the query may read the key. A part in which it may read nothing adds nothing.
    bias : array that broadcasts to (..., H, n, m), optional
        Numbers that are added to the scores.
    score : callable
        Compares: ``score(q, k) -> s``.

    Returns
    -------
    array of shape (..., H, n, e)
        One blend for each query.

    Raises
    ------
    ValueError
        If `size` is not positive, and where `attention` raises it.
    TypeError
        If `size` is not an integer, and where `attention` raises it.

    See Also
    --------
    attention : All keys at once.
    partial_attention : One part.
    merge_all : Puts the parts together.

    Notes
    -----
    Slot : around all five: which keys are read together
    Changes : nothing but the order of the sums: each part can be computed at another place or at another time.
    Cost : O(H n m (d + e)) time, as attention, and O(H n e m / b) for the merge; O(H n b) memory for the scores of one
        part.
    Empty row : a query that may read nothing gets zeros.
    Promises : non-negative, sums to one, inside the hull, shift invariant, prefix stable
    Equals : ``attention`` for every size, up to rounding, unless several scores of a row are plus infinity.
    Year : 2023
    Source : Dao, Haziza, Massa and Sizov, 2023, Flash-Decoding for long-context inference.
    Other names : Flash-Decoding, split-KV, split-K attention, KV sequence parallelism, decode reduction,
        number of splits, num_splits

    What `attention` says of a NaN or an infinity that is hidden holds here too, also where only some queries may read
    it. float16 and bfloat16 are computed in float32 to the end, and rounded once.

    References
    ----------
    T. Dao, D. Haziza, F. Massa and G. Sizov, Flash-Decoding for long-context inference, 2023.

    Examples
    --------
    >>> import numpy as np
    >>> x = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    >>> split_attention(x, x, x, size=2).round(3)
    array([[0.802, 0.599],
           [0.599, 0.802],
           [0.752, 0.752]])
    """
    xp, dtype, (q, k, v, bias) = promote(q=q, k=k, v=v, bias=bias)
    check_items(k, v)
    mask, bias = (_columns(xp, name, x, k) for name, x in (("mask", mask), ("bias", bias)))
    parts = []
    for cut in _cuts(k.shape[-2], size=size):
        seen = {name: x if x is None else x[..., cut] for name, x in (("mask", mask), ("bias", bias))}
        parts.append(partial_attention(q, k[..., cut, :], v[..., cut, :], score=score, **seen))
    outs, lses = zip(*parts, strict=True)
    return cast(xp, merge_all(xp.stack(outs, axis=-3), xp.stack(lses, axis=-2))[0], dtype)


def shared_prefix_attention(
    q: Array,
    k_prefix: Array,
    v_prefix: Array,
    k: Array,
    v: Array,
    /,
    *,
    mask: Array | None = None,
    score: Score = scaled_dot(),
) -> Array:
    r"""Let several sequences read one prefix, stored and read once, and each its own suffix.

    .. math:: \operatorname{out}^{(b)} = \operatorname{merge} \bigl( \operatorname{partial}(q^{(b)}, k', v'), \
              \operatorname{partial}(q^{(b)}, k^{(b)}, v^{(b)}) \bigr)

    Parameters
    ----------
    q : array of shape (..., B, H, n, d)
        Queries of B sequences.
    k_prefix : array of shape (..., H_kv, p, d)
        Keys of the prefix k', which every query of every sequence may read.
    v_prefix : array of shape (..., H_kv, p, e)
        Values of the prefix.
    k : array of shape (..., B, H_kv, m, d)
        Keys of the suffixes.
    v : array of shape (..., B, H_kv, m, e)
        Values of the suffixes.
    mask : boolean array that broadcasts to (..., B, H, n, m), optional
        True where the query may read the key of its suffix. Suffixes of several lengths are padded and masked.
    score : callable
        Compares: ``score(q, k) -> s``.

    Returns
    -------
    array of shape (..., B, H, n, e)
        One blend for each query.

    Raises
    ------
    ValueError
        If an axis is missing, and where `attention` raises it for the prefix or for the suffixes.
    TypeError
        Where `attention` raises it.

    See Also
    --------
    partial_attention : Computes each of the two parts.
    merge : Puts them together.

    Notes
    -----
    Slot : around all five: which keys are read together
    Changes : nothing but what is stored: the prefix once, instead of a copy for each sequence.
    Cost : O(B H n (p + m) (d + e)) time, as attention; O(H_kv (p + B m) (d + e)) memory for keys and values, against
        O(H_kv B (p + m) (d + e)).
    Empty row : a query with an empty prefix that may read nothing of its suffix gets zeros.
    Promises : prefix stable
    Equals : ``attention`` on the prefix and the suffix in one row of keys, for each sequence by itself, unless several
        scores of a row are plus infinity.
    Year : 2024
    Source : Juravsky et al., 2024, Hydragen, sections 3.1 and 3.2, arXiv 2402.05099; Ye et al., 2024, Cascade
        Inference.
    Other names : cascade attention, cascade inference, Hydragen, prefix-aware attention, common prefix attention,
        shared-prefix batch decoding

    The queries of all sequences are one table in front of the prefix, so that it is one matrix product. The weights are
    those of attention, and keep its promises.

    References
    ----------
    J. Juravsky et al., Hydragen: High-Throughput LLM Inference with Shared Prefixes, 2024.

    Examples
    --------
    >>> import numpy as np
    >>> q, k, v = np.zeros((2, 1, 1, 4)), np.zeros((2, 1, 1, 4)), np.array([[[[4.0]]], [[[7.0]]]])
    >>> shared_prefix_attention(q, np.zeros((1, 2, 4)), np.array([[[1.0], [1.0]]]), k, v)[:, 0, 0, 0]
    array([2., 3.])
    """
    xp, dtype, (q, k_prefix, v_prefix, k, v) = promote(q=q, k_prefix=k_prefix, v_prefix=v_prefix, k=k, v=v)
    check_axes("B H n d", q=q)
    check_axes("H p d", k_prefix=k_prefix)
    check_axes("H p e", v_prefix=v_prefix)
    check_axes("B H m d", k=k)
    check_axes("B H m e", v=v)
    *_, b, _, n, _ = q.shape
    by_head = xp.moveaxis(q, -4, -3)
    table = xp.reshape(by_head, (*by_head.shape[:-3], b * n, q.shape[-1]))
    out, lse = partial_attention(table, k_prefix, v_prefix, score=score)
    out = xp.moveaxis(xp.reshape(out, (*out.shape[:-2], b, n, out.shape[-1])), -3, -4)
    lse = xp.moveaxis(xp.reshape(lse, (*lse.shape[:-1], b, n)), -2, -3)
    return cast(xp, merge(out, lse, *partial_attention(q, k, v, mask=mask, score=score))[0], dtype)


def _check_two(out_a: Array, lse_a: Array, out_b: Array, lse_b: Array) -> Any:
    """Return the library of the results of two parts; outputs must have one shape, log-sum-exps that of the rows."""
    xp = library(out_a=out_a, lse_a=lse_a, out_b=out_b, lse_b=lse_b)
    check_axes("n e", out_a=out_a)
    check_shape("out_b", out_b, out_a.shape)
    check_shape("lse_a", lse_a, out_a.shape[:-1])
    check_shape("lse_b", lse_b, out_a.shape[:-1])
    return xp


def _columns(xp: Any, name: str, x: Array | None, k: Array) -> Array | None:
    """Return `x` with one column for each key, so that it can be cut where the keys are."""
    if x is None:
        return None
    library(**{name: x, "k": k})
    shape = (*x.shape[:-1], k.shape[-2])
    check_broadcast(name, x, shape)
    return xp.broadcast_to(x, shape)
