"""Ring: a text on several devices, and what travels between them; as loops over simulated devices."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from array_api_compat import device

from softlookup._arrays import Array, Score, below_top, cast, hide, hide_unread, promote, sum_to_shape
from softlookup._checks import check_axes, check_shape, natural, positive_integer
from softlookup.lookup.attention import (
    _gather_heads,
    _readable_keys,
    _spread_values,
    attention,
    attention_scores,
    scaled_dot,
)
from softlookup.masks.causal import causal
from softlookup.schedules.merging import merge, partial_attention

__all__ = [
    "all_to_all_attention",
    "live_pairs",
    "ring_attention",
    "ring_attention_vjp",
    "ring_step",
    "ring_step_vjp",
    "stripes",
    "tree_attention",
    "tree_step",
    "zigzag",
]

Mask = Callable[[Array, Array], Array]
Sent = list[list[int]]


def ring_step(
    out: Array,
    lse: Array,
    q: Array,
    k: Array,
    v: Array,
    /,
    *,
    mask: Array | None = None,
    score: Score = scaled_dot(),
) -> tuple[Array, Array]:
    r"""Read the block that has just arrived into the result of one device.

    .. math:: (o, L) \leftarrow \operatorname{merge} \bigl( (o, L), \ \operatorname{partial}(q, k_b, v_b) \bigr)

    Parameters
    ----------
    out : array of shape (..., H, n, e)
        Output of the device so far; zeros at the start.
    lse : array of shape (..., H, n)
        Log-sum-exp so far; minus infinity at the start.
    q : array of shape (..., H, n, d)
        Queries of the device, which stay where they are.
    k : array of shape (..., H_kv, m, d)
        Keys of the block.
    v : array of shape (..., H_kv, m, e)
        Values of the block.
    mask : boolean array that broadcasts to (..., H, n, m), optional
        True where the query may read the key.
    score : callable
        Compares: ``score(q, k) -> s``.

    Returns
    -------
    out : array of shape (..., H, n, e)
        Output with this block, in the dtype of `out`.
    lse : array of shape (..., H, n)
        Log-sum-exp with this block, in the dtype of `lse`.

    Raises
    ------
    ValueError
        If `out` or `lse` does not have the shape of the result, and where `attention` raises it.
    TypeError
        Where `attention` raises it.

    See Also
    --------
    ring_attention : Does this on every device, for every block.
    merge : Puts two results together.

    Notes
    -----
    Cost : that of `attention` for the queries of one device and the keys of one block.
    Empty row : a query that may read nothing of the block keeps its result.

    The block is read in the widest of the five dtypes, and at least float32: keep `out` and `lse` in float32 or wider.

    Examples
    --------
    >>> import numpy as np
    >>> q, k, v = np.array([[1.0]]), np.log([[4.0], [8.0]]), np.array([[3.0], [9.0]])
    >>> out, lse = ring_step(np.array([[5.0]]), np.log([4.0]), q, k, v)
    >>> out, np.exp(lse).round(6)
    (array([[6.5]]), array([16.]))
    """
    xp, _, (wide, q, k, v) = promote(out=out, q=q, k=k, v=v)
    _, out_dtype, _ = promote(out=out)
    _, lse_dtype, (lse,) = promote(lse=lse)
    new, total = merge(wide, lse, *partial_attention(q, k, v, mask=mask, score=score))
    return cast(xp, new, out_dtype), cast(xp, total, lse_dtype)


def ring_attention(
    qs: Sequence[Array],
    ks: Sequence[Array],
    vs: Sequence[Array],
    /,
    *,
    q_positions: Sequence[Array] | None = None,
    k_positions: Sequence[Array] | None = None,
    mask: Mask = causal,
    score: Score = scaled_dot(),
) -> tuple[list[Array], Sent]:
    r"""Let blocks of keys and values travel around a ring of devices, and each device read those that pass.

    .. math:: \operatorname{out}_p = \operatorname{merge}_{t = 0}^{P - 1}
              \operatorname{partial}(q_p, k_b, v_b), \qquad b = (p - t) \bmod P

    Parameters
    ----------
    qs : list of arrays of shape (..., H, n, d)
        Queries of each device. Their number n may differ from device to device, and be zero.
    ks : list of arrays of shape (..., H_kv, m, d)
        Keys of each device; m may differ too.
    vs : list of arrays of shape (..., H_kv, m, e)
        Values of each device.
    q_positions : list of integer arrays of shape (n,), optional
        Where the queries of each device stand in the text. Without positions every query reads every key.
    k_positions : list of integer arrays of shape (m,), optional
        Where the keys of each device stand.
    mask : callable
        Who may read whom: ``mask(q_positions, k_positions)`` for the queries of one device and one block of keys.
    score : callable
        Compares: ``score(q, k) -> s``.

    Returns
    -------
    outs : list of arrays of shape (..., H, n, e)
        Outputs of each device, for its own queries.
    sent : list of lists of int
        How many numbers each device sent to the next one after each step but the last: ``sent[step][device]``.

    Raises
    ------
    ValueError
        If the lists are empty or not of one length, if there are positions for queries but not for keys or not one for
        each row, and where `attention` raises it.
    TypeError
        If an argument is not a list, and where `attention` raises it.

    See Also
    --------
    ring_step : What one device does in one step.
    ring_attention_vjp : The gradient.
    zigzag : Positions that give all devices the same work under a causal mask.

    Notes
    -----
    Slot : around all five: which keys are read together, and where
    Changes : nothing but the order of the sums: each device holds one block of keys at a time.
    Cost : O(H n m (d + e)) time in all, a P-th of it on each device if the work is even; a device sends
        H_kv m (d + e) / P numbers after each of P - 1 steps, and holds as many of others at a time.
    Empty row : a query that may read nothing gets zeros.
    Promises : non-negative, sums to one, inside the hull, shift invariant, prefix stable
    Equals : ``attention`` on the parts put together, for every number of devices and every way to cut, up to rounding.
    Year : 2023
    Source : Liu, Zaharia and Abbeel, 2023, Ring Attention with Blockwise Transformers for Near-Infinite Context,
        section 3, arXiv 2310.01889; with permuted positions: Brandon et al., 2023, Striped Attention, arXiv 2311.09431.
    Other names : ring self-attention, ring flash attention, context parallelism, CP, sequence parallelism, striped
        attention, stripe attention, zigzag ring attention, head-tail load balancing, dual chunk swap, pass-KV

    A simulation: the devices are entries of lists, and all run in this process. Positions are not counted as sent,
    because every device knows which ones stand where. Blocks that are hidden as a whole are read too; their result
    changes nothing. The rule for plus-infinite scores is that of `merge`.

    References
    ----------
    H. Liu, M. Zaharia and P. Abbeel, Ring Attention with Blockwise Transformers for Near-Infinite Context, ICLR 2024.

    Examples
    --------
    >>> import numpy as np
    >>> x = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    >>> parts = [x[:1], x[1:]]
    >>> outs, sent = ring_attention(parts, parts, parts)
    >>> np.concatenate(outs).round(3)
    array([[0.802, 0.599],
           [0.599, 0.802],
           [0.752, 0.752]])
    >>> sent
    [[4, 8]]
    """
    xp, dtype, (qs, ks, vs) = _promote_lists(qs=qs, ks=ks, vs=vs)
    allowed = _block_masks(xp, qs, ks, q_positions, k_positions, mask)
    results, sent = _around(qs, ks, vs, allowed, score)
    return [cast(xp, out, dtype) for out, _ in results], sent


def ring_step_vjp(
    g: Array, q: Array, k: Array, v: Array, out: Array, lse: Array, /, *, mask: Array | None = None
) -> tuple[Array, Array, Array]:
    r"""Pull the gradient of one device back to its queries and to the block that has just arrived.

    .. math:: w_{ij} = e^{s_{ij} - L_i}, \qquad dv_j = \sum_i w_{ij} \, g_i, \qquad
              ds_{ij} = w_{ij} \, (g_i \cdot v_j - g_i \cdot o_i), \qquad
              (dq, dk) = \operatorname{vjp}_{\text{score}}(ds)

    Parameters
    ----------
    g : array of shape (..., H, n, e)
        Gradient with respect to the output of the device.
    q : array of shape (..., H, n, d)
        Queries of the device.
    k : array of shape (..., H_kv, m, d)
        Keys of the block.
    v : array of shape (..., H_kv, m, e)
        Values of the block.
    out : array of shape (..., H, n, e)
        Output o of the device after *all* blocks.
    lse : array of shape (..., H, n)
        Its log-sum-exp L, likewise after all blocks.
    mask : boolean array that broadcasts to (..., H, n, m), optional
        True where the query may read the key.

    Returns
    -------
    dq : array of shape (..., H, n, d)
        What this block adds to the gradient of the queries.
    dk : array of shape (..., H_kv, m, d)
        What this device adds to the gradient of the keys.
    dv : array of shape (..., H_kv, m, e)
        What this device adds to the gradient of the values.

    Raises
    ------
    ValueError
        If `g` or `lse` does not have the shape that follows from `out`, and where `attention` raises it.
    TypeError
        Where `attention` raises it.

    See Also
    --------
    ring_attention_vjp : Does this on every device, for every block.
    attention_vjp : The gradient when all keys are at one place.

    Notes
    -----
    Cost : two and a half times that of `ring_step`, which computes two products where this computes five.
    Empty row : a query that may read nothing adds nothing.

    The score is `scaled_dot` with its default scale. The weights are those among *all* keys, so no state is carried:
    the blocks can come in any order, and what they add is summed. Scores must be finite where they may be read.

    Examples
    --------
    >>> import numpy as np
    >>> g, q, k, v = np.array([[1.0]]), np.array([[1.0]]), np.array([[0.0]]), np.array([[4.0]])
    >>> out, lse = np.array([[2.0]]), np.log([2.0])  # another block has a key with the score 0 and the value 0
    >>> dq, dk, dv = ring_step_vjp(g, q, k, v, out, lse)
    >>> dk, dv
    (array([[1.]]), array([[0.5]]))
    """
    check_axes("n e", out=out)
    check_shape("g", g, tuple(out.shape))
    check_shape("lse", lse, tuple(out.shape[:-1]))
    xp, dtype, (g, q, k, v, out, lse) = promote(g=g, q=q, k=k, v=v, out=out, lse=lse)
    values = _spread_values(xp, q, k, v)
    keys, allowed = _readable_keys(xp, q, k, mask)
    values = hide_unread(xp, values, allowed)
    s = hide(xp, attention_scores(q, keys), allowed, -math.inf)
    w = xp.exp(below_top(xp, s, lse[..., None]))
    dw = hide(xp, g @ values.mT, allowed, 0.0)
    ds = sum_to_shape(xp, w * (dw - xp.sum(g * out, axis=-1, keepdims=True)), s.shape)
    dq, dk = scaled_dot().vjp(ds, q, keys)
    dk, dv = _gather_heads(xp, dk, k.shape), _gather_heads(xp, w.mT @ g, v.shape)
    return cast(xp, dq, dtype), cast(xp, dk, dtype), cast(xp, dv, dtype)


def ring_attention_vjp(
    gs: Sequence[Array],
    qs: Sequence[Array],
    ks: Sequence[Array],
    vs: Sequence[Array],
    /,
    *,
    q_positions: Sequence[Array] | None = None,
    k_positions: Sequence[Array] | None = None,
    mask: Mask = causal,
) -> tuple[list[Array], list[Array], list[Array], Sent]:
    r"""Pull gradients back around the ring: each block travels with the gradients of its keys and values.

    .. math:: dq_p = \sum_b dq_{pb}, \qquad dk_b = \sum_p dk_{pb}, \qquad dv_b = \sum_p dv_{pb}

    Parameters
    ----------
    gs : list of arrays of shape (..., H, n, e)
        Gradient with respect to the outputs of each device.
    qs : list of arrays of shape (..., H, n, d)
        Queries of each device.
    ks : list of arrays of shape (..., H_kv, m, d)
        Keys of each device.
    vs : list of arrays of shape (..., H_kv, m, e)
        Values of each device.
    q_positions : list of integer arrays of shape (n,), optional
        Where the queries of each device stand in the text. Without positions every query reads every key.
    k_positions : list of integer arrays of shape (m,), optional
        Where the keys of each device stand.
    mask : callable
        Who may read whom: ``mask(q_positions, k_positions)``.

    Returns
    -------
    dqs, dks, dvs : list of arrays
        Gradients of the queries, keys and values of each device, on that device.
    sent : list of lists of int
        How many numbers each device sent after each step of the way back. The forward pass, which is done again here
        for its outputs and log-sum-exps, is not counted.

    Raises
    ------
    ValueError
        Where `ring_attention` and `ring_step_vjp` raise it.
    TypeError
        Where `ring_attention` raises it.

    See Also
    --------
    ring_step_vjp : What one device does in one step.
    attention_vjp : The gradient when all is at one place.

    Notes
    -----
    Cost : three and a half times the time of `ring_attention`, of which one is the forward pass; a device sends 2 P - 1
        blocks on the way back, where the forward pass sends P - 1.
    Empty row : adds nothing to any gradient.

    The gradients of a block visit all devices and go home, which is one step more than the block itself travels. The
    score is `scaled_dot` with its default scale.

    Examples
    --------
    >>> import numpy as np
    >>> one, keys, values = np.ones((1, 1)), np.zeros((1, 1)), np.array([[4.0]])
    >>> none = np.zeros((0, 1))
    >>> dqs, dks, dvs, sent = ring_attention_vjp([one, none], [one, none], [keys, keys], [0 * values, values])
    >>> dks
    [array([[-1.]]), array([[1.]])]
    >>> sent
    [[4, 4], [2, 2]]
    """
    xp, dtype, (gs, qs, ks, vs) = _promote_lists(gs=gs, qs=qs, ks=ks, vs=vs)
    allowed = _block_masks(xp, qs, ks, q_positions, k_positions, mask)
    results, _ = _around(qs, ks, vs, allowed, scaled_dot())
    dqs, dks, dvs = ([xp.zeros_like(x) for x in xs] for xs in (qs, ks, vs))
    held, sent = list(range(len(qs))), []
    for step in range(len(qs)):
        for p, b in enumerate(held):
            adds = ring_step_vjp(gs[p], qs[p], ks[b], vs[b], *results[p], mask=allowed(p, b))
            dqs[p], dks[b], dvs[b] = (x + y for x, y in zip((dqs[p], dks[b], dvs[b]), adds, strict=True))
        if len(qs) > 1:
            last = step == len(qs) - 1
            sent.append([(1 if last else 2) * _numbers(ks[b], vs[b]) for b in held])
        held = held[-1:] + held[:-1]
    return *([cast(xp, x, dtype) for x in xs] for xs in (dqs, dks, dvs)), sent


def stripes(m: int, /, *, devices: int) -> list[np.ndarray]:
    r"""Deal positions to devices one by one, as cards are dealt.

    .. math:: \text{device}(j) = j \bmod P

    Parameters
    ----------
    m : int
        The number of positions.
    devices : int
        The number P of devices.

    Returns
    -------
    list of integer arrays
        The positions that stand on each device.

    Raises
    ------
    ValueError
        If `m` is negative, or if `devices` is not positive.
    TypeError
        If an argument is not an integer.

    See Also
    --------
    zigzag : The other way to even out the work.
    live_pairs : Counts the work.

    Notes
    -----
    Cost : O(m) time and memory.
    Empty row : a device beyond the last position has none.

    The layout of striped attention. ``np.argsort(np.concatenate(stripes(m, devices=P)))`` undoes it.

    Examples
    --------
    >>> stripes(7, devices=3)
    [array([0, 3, 6]), array([1, 4]), array([2, 5])]
    """
    m, devices = natural("m", m), positive_integer("devices", devices)
    return [np.arange(p, m, devices) for p in range(devices)]


def zigzag(m: int, /, *, devices: int) -> list[np.ndarray]:
    r"""Cut the text into two pieces for each device, and give each one an early piece and a late one.

    .. math:: \text{pieces of device } p: \quad p \ \text{ and } \ 2 P - 1 - p

    Parameters
    ----------
    m : int
        The number of positions. The pieces are equal if 2 P divides it; else the first ones have one position more.
    devices : int
        The number P of devices.

    Returns
    -------
    list of integer arrays
        The positions that stand on each device, in rising order.

    Raises
    ------
    ValueError
        If `m` is negative, or if `devices` is not positive.
    TypeError
        If an argument is not an integer.

    See Also
    --------
    stripes : The other way to even out the work.
    live_pairs : Counts the work.

    Notes
    -----
    Cost : O(m) time and memory.
    Empty row : with fewer than 2 P positions some pieces are empty.

    Also called head-tail load balancing. ``np.argsort(np.concatenate(zigzag(m, devices=P)))`` undoes it.

    Examples
    --------
    >>> zigzag(8, devices=2)
    [array([0, 1, 6, 7]), array([2, 3, 4, 5])]
    """
    m, devices = natural("m", m), positive_integer("devices", devices)
    pieces = np.array_split(np.arange(m), 2 * devices)
    return [np.concatenate([pieces[p], pieces[-1 - p]]) for p in range(devices)]


def live_pairs(q_positions: Sequence[Array], k_positions: Sequence[Array], /, *, mask: Mask = causal) -> np.ndarray:
    r"""Count the pairs that each device of a ring has to compute in each step.

    .. math:: \text{pairs}_{tp} = \bigl| \{ (i, j) : i \in q_p, \ j \in k_b, \ \text{allowed}_{ij} \} \bigr|,
              \qquad b = (p - t) \bmod P

    Parameters
    ----------
    q_positions : list of integer arrays of shape (n,)
        Where the queries of each device stand.
    k_positions : list of integer arrays of shape (m,)
        Where the keys of each device stand.
    mask : callable
        Who may read whom: ``mask(q_positions, k_positions)``.

    Returns
    -------
    integer array of shape (P, P)
        One row for each step, one column for each device.

    Raises
    ------
    ValueError
        If the lists are empty or not of one length.
    TypeError
        If an argument is not a list, and where `mask` raises it.

    See Also
    --------
    ring_attention : The work that is counted.

    Notes
    -----
    Cost : O(n m) time, and O(n m / P^2) memory.
    Empty row : a device without queries has no pairs.

    All devices wait for the slowest before the blocks move on, so the time is the sum of the largest number of each
    row. The smallest possible is the sum of all, divided by P.

    Examples
    --------
    >>> halves = [np.array([0, 1]), np.array([2, 3])]
    >>> live_pairs(halves, halves)
    array([[3, 3],
           [0, 4]])
    """
    _check_lists(q_positions=q_positions, k_positions=k_positions)
    queries, keys = ([np.asarray(x) for x in xs] for xs in (q_positions, k_positions))
    devices = range(len(queries))
    return np.asarray([[int(np.sum(mask(queries[p], keys[p - t]))) for p in devices] for t in devices])


def tree_step(out: Array, lse: Array, top: Array, /) -> tuple[Array, Array]:
    r"""Count the result of one device relative to the largest log-sum-exp of all devices.

    .. math:: \ell = e^{L - \mu}, \qquad u = e^{L - \mu} \, o, \qquad \mu = \max_p L_p

    Parameters
    ----------
    out : array of shape (..., n, e)
        Output o over the keys of the device.
    lse : array of shape (..., n)
        Its log-sum-exp L.
    top : array of shape (..., n)
        The largest log-sum-exp of any device.

    Returns
    -------
    blend : array of shape (..., n, e)
        What the device adds to the blend of all, which is not divided yet.
    total : array of shape (..., n)
        What it adds to their total.

    Raises
    ------
    ValueError
        If `lse` or `top` does not have one number for each row of `out`.
    TypeError
        If an argument is not an array of numbers, or if two array libraries are mixed.

    See Also
    --------
    tree_attention : Does this on every device, between the maximum and the sums.
    online_update : The same state, with one more block of keys.

    Notes
    -----
    Cost : O(n e) time and memory.
    Empty row : a device with minus infinity adds zeros, whatever its output holds.

    Examples
    --------
    >>> import numpy as np
    >>> blend, total = tree_step(np.array([[5.0]]), np.log([4.0]), np.log([16.0]))
    >>> blend.round(6), total.round(6)
    (array([[1.25]]), array([0.25]))
    """
    check_axes("n e", out=out)
    check_shape("lse", lse, tuple(out.shape[:-1]))
    check_shape("top", top, tuple(out.shape[:-1]))
    xp, dtype, (out, lse, top) = promote(out=out, lse=lse, top=top)
    total = xp.exp(below_top(xp, lse, top))
    blend = total[..., None] * hide(xp, out, (lse != -math.inf)[..., None], 0.0)
    return cast(xp, blend, dtype), cast(xp, total, dtype)


def tree_attention(
    q: Array,
    ks: Sequence[Array],
    vs: Sequence[Array],
    /,
    *,
    q_positions: Array | None = None,
    k_positions: Sequence[Array] | None = None,
    mask: Mask = causal,
    score: Score = scaled_dot(),
) -> tuple[Array, Sent]:
    r"""Send queries to all devices that hold keys, and sum what they found over a tree.

    .. math:: \mu = \max_p L_p, \qquad
              \operatorname{out} = \frac{\sum_p e^{L_p - \mu} \, o_p}{\sum_p e^{L_p - \mu}}, \qquad
              (o_p, L_p) = \operatorname{partial}(q, k_p, v_p)

    Parameters
    ----------
    q : array of shape (..., H, n, d)
        Queries, which every device has: one for each text that is continued.
    ks : list of arrays of shape (..., H_kv, m, d)
        Keys of each device.
    vs : list of arrays of shape (..., H_kv, m, e)
        Values of each device.
    q_positions : integer array of shape (n,), optional
        Where the queries stand. Without positions every query reads every key.
    k_positions : list of integer arrays of shape (m,), optional
        Where the keys of each device stand.
    mask : callable
        Who may read whom: ``mask(q_positions, k_positions)``.
    score : callable
        Compares: ``score(q, k) -> s``.

    Returns
    -------
    out : array of shape (..., H, n, e)
        One blend for each query; every device has it at the end.
    sent : list of lists of int
        How many numbers each device sent in each round: up the tree and down for the maximum, then for the sums.

    Raises
    ------
    ValueError
        Where `ring_attention` raises it.
    TypeError
        Where `ring_attention` raises it.

    See Also
    --------
    tree_step : What one device does between the two sums.
    merge_all : The same without devices.

    Notes
    -----
    Slot : around all five: which keys are read together, and where
    Changes : nothing but the order of the sums: queries and results travel, keys and values stay.
    Cost : O(H n m (d + e) / P) time on each device; 4 ceil(log2 P) rounds, in which all devices together send
        2 (P - 1) H n (e + 2) numbers, whatever the number of keys.
    Empty row : a query that may read nothing gets zeros.
    Promises : non-negative, sums to one, inside the hull, shift invariant, prefix stable
    Equals : ``attention`` on the parts put together; ``merge_all`` of the results of the devices; up to rounding.
    Year : 2024
    Source : Shyam et al., 2024, Tree Attention: Topology-aware Decoding for Long-Context Attention on GPU clusters,
        section 5, arXiv 2408.04093.
    Other names : tree decoding, tree reduction, decode context parallelism, DCP, distributed flash decoding

    Not the mask `tree`, which lets branches of guesses be read together. The distribution of the queries to the
    devices is not counted. The tree is used twice because collective libraries offer maximum and sum; with `merge` as
    the operation once would do.

    References
    ----------
    V. Shyam et al., Tree Attention: Topology-aware Decoding for Long-Context Attention on GPU clusters, 2024.

    Examples
    --------
    >>> import numpy as np
    >>> q, ks = np.array([[1.0]]), [np.log([[1.0], [3.0]]), np.log([[4.0], [8.0]])]
    >>> out, sent = tree_attention(q, ks, [np.array([[8.0], [4.0]]), np.array([[3.0], [9.0]])])
    >>> out.round(6)
    array([[6.5]])
    >>> sent
    [[0, 1], [1, 0], [0, 2], [2, 0]]
    """
    _check_lists(ks=ks, vs=vs)
    xp, dtype, (qs, ks, vs) = _promote_lists(q=[q] * len(ks), ks=ks, vs=vs)
    if q_positions is not None:
        q_positions = [q_positions] * len(ks)
    allowed = _block_masks(xp, qs, ks, q_positions, k_positions, mask)
    found = [
        partial_attention(q, k, v, mask=allowed(p, p), score=score)
        for p, (q, k, v) in enumerate(zip(qs, ks, vs, strict=True))
    ]
    (top,), up_and_down = _over_a_tree([(lse,) for _, lse in found], xp.maximum)
    (blend, total), again = _over_a_tree([tree_step(out, lse, top) for out, lse in found], lambda x, y: x + y)
    return cast(xp, blend / xp.where(total == 0, 1.0, total)[..., None], dtype), up_and_down + again


def all_to_all_attention(
    qs: Sequence[Array],
    ks: Sequence[Array],
    vs: Sequence[Array],
    /,
    *,
    q_positions: Sequence[Array] | None = None,
    k_positions: Sequence[Array] | None = None,
    mask: Mask = causal,
    score: Score = scaled_dot(),
) -> tuple[list[Array], Sent]:
    r"""Exchange parts of the text for heads: each device attends to the whole text, with a few heads.

    .. math:: \operatorname{out}^{(h)} = \operatorname{attention}(q^{(h)}, k^{(h)}, v^{(h)})
              \quad \text{on device } \lfloor h / (H / P) \rfloor

    Parameters
    ----------
    qs : list of arrays of shape (..., H, n, d)
        Queries of each device. The number of devices must divide H.
    ks : list of arrays of shape (..., H_kv, m, d)
        Keys of each device. The number of devices must divide H_kv, too.
    vs : list of arrays of shape (..., H_kv, m, e)
        Values of each device; likewise.
    q_positions : list of integer arrays of shape (n,), optional
        Where the queries of each device stand in the text. Without positions every query reads every key.
    k_positions : list of integer arrays of shape (m,), optional
        Where the keys of each device stand.
    mask : callable
        Who may read whom: ``mask(q_positions, k_positions)`` for all positions.
    score : callable
        Compares: ``score(q, k) -> s``.

    Returns
    -------
    outs : list of arrays of shape (..., H, n, e)
        Outputs of each device, for its own queries and all heads.
    sent : list of lists of int
        How many numbers each device sent to others in the two exchanges.

    Raises
    ------
    ValueError
        If there is no axis of heads, if the number of devices does not divide a number of heads, and where
        `ring_attention` raises it.
    TypeError
        Where `ring_attention` raises it.

    See Also
    --------
    ring_attention : Needs no heads, and P - 1 messages instead of two exchanges.

    Notes
    -----
    Slot : around all five: which keys are read together, and where
    Changes : nothing: each head is computed at one place, in one piece.
    Cost : O(H n m (d + e) / P) time on each device, under every mask; a device sends a share (P - 1) / P of its part of
        queries, keys and values, and as much of outputs.
    Empty row : a query that may read nothing gets zeros.
    Promises : non-negative, sums to one, inside the hull, shift invariant, prefix stable
    Equals : ``attention`` on the parts put together.
    Year : 2023
    Source : Jacobs et al., 2023, DeepSpeed Ulysses, arXiv 2309.14509.
    Other names : Ulysses, DeepSpeed-Ulysses, Ulysses sequence parallelism, head parallelism, head-sequence swap

    A group of query heads and the key head that it reads go to the same device. Where there are fewer key heads than
    devices, repeat them before: ``xp.repeat(k, times, axis=-3)``.

    References
    ----------
    S. A. Jacobs et al., DeepSpeed Ulysses: System Optimizations for Enabling Training of Extreme Long Sequence
    Transformer Models, 2023.

    Examples
    --------
    >>> import numpy as np
    >>> x = np.arange(8.0).reshape(2, 4, 1)  # two heads, four positions
    >>> parts = [x[:, :2], x[:, 2:]]
    >>> outs, sent = all_to_all_attention(parts, parts, parts)
    >>> outs[0].shape, sent
    ((2, 2, 1), [[6, 6], [2, 2]])
    """
    xp, dtype, (qs, ks, vs) = _promote_lists(qs=qs, ks=ks, vs=vs)
    allowed = _block_masks(xp, qs, ks, q_positions, k_positions, mask)
    devices = range(len(qs))
    rows = [[allowed(p, b) for b in devices] for p in devices]
    readable = None if q_positions is None else xp.concat([xp.concat(row, axis=-1) for row in rows], axis=-2)
    lists = {"qs": qs, "ks": ks, "vs": vs}
    whole = [[xp.concat(x, axis=-2) for x in _heads_of_each(name, xs)] for name, xs in lists.items()]
    outs = [attention(*arrays, mask=readable, score=score) for arrays in zip(*whole, strict=True)]
    ends = np.cumsum([q.shape[-2] for q in qs]).tolist()
    own = [[out[..., end - q.shape[-2] : end, :] for out in outs] for q, end in zip(qs, ends, strict=True)]
    there = [_numbers(*x) * (len(qs) - 1) // len(qs) for x in zip(qs, ks, vs, strict=True)]
    back = [sum(_numbers(own[p][r]) for p in devices if p != r) for r in devices]
    sent = [there, back] if len(qs) > 1 else []
    return [cast(xp, xp.concat(x, axis=-3), dtype) for x in own], sent


def _around(
    qs: list[Array], ks: list[Array], vs: list[Array], allowed: Callable, score: Score
) -> tuple[list[tuple[Array, Array]], Sent]:
    """Return output and log-sum-exp of each device after all blocks came by, and what was sent."""
    held, sent = list(range(len(qs))), []  # whose block each device holds
    results = [
        partial_attention(q, k[..., :0, :], v[..., :0, :], score=score) for q, k, v in zip(qs, ks, vs, strict=True)
    ]
    for step in range(len(qs)):
        for p, b in enumerate(held):
            results[p] = ring_step(*results[p], qs[p], ks[b], vs[b], mask=allowed(p, b), score=score)
        if step < len(qs) - 1:
            sent.append([_numbers(ks[b], vs[b]) for b in held])
            held = held[-1:] + held[:-1]
    return results, sent


def _over_a_tree(held: list[tuple[Array, ...]], combine: Callable) -> tuple[tuple[Array, ...], Sent]:
    """Combine what the devices hold in pairs, pairs of pairs and so on, and send the result back down."""
    held, strides, sent = list(held), [], []
    while 2 ** len(strides) < len(held):
        strides.append(2 ** len(strides))
    for stride in strides:
        sent.append([0] * len(held))
        for p in range(0, len(held) - stride, 2 * stride):
            held[p] = tuple(combine(x, y) for x, y in zip(held[p], held[p + stride], strict=True))
            sent[-1][p + stride] = _numbers(*held[p + stride])
    for stride in reversed(strides):
        sent.append([0] * len(held))
        for p in range(0, len(held) - stride, 2 * stride):
            held[p + stride] = held[p]
            sent[-1][p] = _numbers(*held[p])
    return held[-1], sent


def _heads_of_each(name: str, xs: list[Array]) -> list[list[Array]]:
    """Return what each device receives when every device cuts its heads into as many groups as there are devices."""
    for x in xs:
        check_axes("H n d", **{f"an array of {name}": x})
        if x.shape[-3] % len(xs):
            raise ValueError(f"{name} have {x.shape[-3]} heads, which {len(xs)} devices do not divide")
    share = xs[0].shape[-3] // len(xs)
    return [[x[..., r * share : (r + 1) * share, :, :] for x in xs] for r in range(len(xs))]


def _promote_lists(**lists: Sequence[Array]) -> tuple[Any, Any, list[list[Array]]]:
    """Do for lists of arrays, one for each device, what `promote` does for arrays."""
    _check_lists(**lists)
    xp, dtype, arrays = promote(**{f"{name}[{p}]": x for name, xs in lists.items() for p, x in enumerate(xs)})
    devices = len(arrays) // len(lists)
    return xp, dtype, [arrays[i : i + devices] for i in range(0, len(arrays), devices)]


def _check_lists(**lists: Sequence[Array]) -> None:
    """Raise unless each argument is a list with as many entries as the others, and at least one."""
    for name, xs in lists.items():
        if not isinstance(xs, list | tuple):
            raise TypeError(f"{name} must be a list with an array for each device, not {type(xs).__name__}")
    sizes = {name: len(xs) for name, xs in lists.items()}
    if len(set(sizes.values())) != 1 or 0 in sizes.values():
        raise ValueError(f"the lists must have one entry for each device, and at least one: {sizes}")


def _block_masks(
    xp: Any,
    qs: list[Array],
    ks: list[Array],
    q_positions: Sequence[Array] | None,
    k_positions: Sequence[Array] | None,
    mask: Mask,
) -> Callable[[int, int], Array | None]:
    """Return the function that gives the mask of the queries of one device and the keys of another."""
    if (q_positions is None) != (k_positions is None):
        raise ValueError("q_positions and k_positions must be given together")
    if q_positions is None:
        return lambda p, b: None
    _check_lists(qs=qs, q_positions=q_positions, k_positions=k_positions)
    where = []
    for name, positions, xs in (("q_positions", q_positions, qs), ("k_positions", k_positions, ks)):
        where.append([xp.asarray(x, device=device(y)) for x, y in zip(positions, xs, strict=True)])
        for p, (x, y) in enumerate(zip(where[-1], xs, strict=True)):
            check_shape(f"{name}[{p}]", x, (y.shape[-2],))
    return lambda p, b: mask(where[0][p], where[1][b])


def _numbers(*arrays: Array) -> int:
    """Return how many numbers the arrays hold together."""
    return sum(math.prod(x.shape) for x in arrays)
