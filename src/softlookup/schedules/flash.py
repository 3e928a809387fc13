"""Flash attention: tiles of queries against tiles of keys, forward and backward, and never a table of all pairs."""

import math
from collections.abc import Callable
from typing import Any

from softlookup._arrays import Array, Score, below_top, cast, hide, hide_unread, library, promote, sum_to_shape
from softlookup._checks import broadcast_batch, check_axes, check_broadcast, check_shape, positive_integer
from softlookup.lookup.attention import _gather_heads, _readable_keys, _spread_values, attention_scores, scaled_dot
from softlookup.schedules.merging import merge, partial_attention
from softlookup.schedules.online_softmax import _cuts, _output_and_lse, _start, online_update

__all__ = ["add_sink", "flash_attention", "flash_attention_by_keys", "flash_attention_vjp"]


def flash_attention(
    q: Array,
    k: Array,
    v: Array,
    /,
    *,
    tiles: tuple[int, int],
    mask: Array | None = None,
    bias: Array | None = None,
    score: Score = scaled_dot(),
) -> tuple[Array, Array]:
    r"""Compute attention tile by tile: for each tile of queries one pass over the tiles of keys.

    .. math:: \text{for}\ I: \quad (\mu, \ell, u)_I \leftarrow \operatorname{update}\bigl((\mu, \ell, u)_I, \,
              s_{IJ}, \, v_J\bigr) \ \text{for}\ J, \qquad
              \operatorname{out}_I = u_I / \ell_I, \qquad L_I = \mu_I + \log \ell_I

    Parameters
    ----------
    q : array of shape (..., H, n, d)
        Queries. With two axes there is no head axis.
    k : array of shape (..., H_kv, m, d)
        Keys. Their number of heads must divide that of `q`.
    v : array of shape (..., H_kv, m, e)
        Values, one for each key.
    tiles : pair of int
        How many queries and how many keys are read at once. They need not divide n and m.
    mask : boolean array that broadcasts to (..., H, n, m), optional
        True where the query may read the key.
    bias : array that broadcasts to (..., H, n, m), optional
        Numbers that are added to the scores.
    score : callable
        Compares: ``score(q, k) -> s``. It gets one tile of queries and one of keys, and the score of a pair must not
        depend on the others.

    Returns
    -------
    out : array of shape (..., H, n, e)
        One blend for each query.
    lse : array of shape (..., H, n)
        The natural log-sum-exp of the scores, without any sink, in at least float32: all that `flash_attention_vjp`
        needs of this pass, beside `out`.

    Raises
    ------
    ValueError
        If `tiles` are not two positive numbers, and where `attention` raises it.
    TypeError
        If `tiles` are not two integers, and where `attention` raises it.

    See Also
    --------
    flash_attention_by_keys : The other order of the two loops.
    flash_attention_vjp : The gradient, tile by tile too.
    online_attention : The same pass for all queries at once.

    Notes
    -----
    Slot : all five, with softmax for normalize
    Changes : nothing but the order of the sums: scores and weights exist for one tile at a time.
    Cost : O(H n m (d + e)) time as `attention`; memory O(H b_q b_k) for a tile of scores beside the results and the
        e + 2 numbers of state of b_q queries. With a fast memory of M numbers, at most d + e times the smaller of n and
        m, O(H n m (d + e)^2 / M) numbers travel.
    Empty row : a query that may read nothing gets zeros and minus infinity, in whichever tiles its keys are hidden.
    Promises : prefix stable
    Equals : ``attention`` with softmax, and its log-sum-exp, for all tiles; ``flash_attention_by_keys``;
        ``online_attention`` when one tile holds all queries.
    Year : 2023
    Source : Dao, 2023, FlashAttention-2: Faster Attention with Better Parallelism and Work Partitioning, section 3.1,
        arXiv 2307.08691.
    Other names : FlashAttention, FlashAttention-2, FA2, flash attention 2, tiled attention, fused attention,
        IO-aware attention, flash_attn_func

    What `attention` says of a hidden NaN or infinity holds here too, and so do its promises for the output. float16 and
    bfloat16 are computed in float32 from the first tile to the division, and the output is rounded once. The tiles are
    visited in a fixed order, so the same arrays and tiles give the same bits. A tile that the mask hides is computed,
    and left out of the sums: no value of an array decides what is run.

    References
    ----------
    T. Dao, FlashAttention-2: Faster Attention with Better Parallelism and Work Partitioning, ICLR 2024.

    Examples
    --------
    >>> import numpy as np
    >>> x = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    >>> out, lse = flash_attention(x, x, x, tiles=(2, 2))
    >>> out.round(3)
    array([[0.802, 0.599],
           [0.599, 0.802],
           [0.752, 0.752]])
    >>> lse.round(3)
    array([1.621, 1.621, 2.1  ])
    """
    xp, dtype, (q, k, v, bias) = promote(q=q, k=k, v=v, bias=bias)
    k, v, allowed, bias = _for_tiles(xp, q, k, v, mask, bias)
    rows, columns = _grid(q, k, tiles)
    results = []
    for i in rows:
        state = _start(xp, q[..., i, :], k, v)
        for j in columns:
            s = attention_scores(q[..., i, :], k[..., j, :], bias=_tile(bias, i, j), score=score)
            state = online_update(*state, s, v[..., j, :], _tile(allowed, i, j))
        results.append(_output_and_lse(xp, *state))
    outs, lses = zip(*results, strict=True)
    return cast(xp, xp.concat(outs, axis=-2), dtype), xp.concat(lses, axis=-1)


def flash_attention_by_keys(
    q: Array,
    k: Array,
    v: Array,
    /,
    *,
    tiles: tuple[int, int],
    mask: Array | None = None,
    bias: Array | None = None,
    score: Score = scaled_dot(),
) -> tuple[Array, Array]:
    r"""Compute attention tile by tile: for each tile of keys all tiles of queries, whose outputs are always divided.

    .. math:: \text{for}\ J: \ \text{for}\ I: \quad (\operatorname{out}, L)_I \leftarrow
              \operatorname{merge}\bigl((\operatorname{out}, L)_I, \, \operatorname{partial}(q_I, k_J, v_J)\bigr)

    Parameters
    ----------
    q : array of shape (..., H, n, d)
        Queries.
    k : array of shape (..., H_kv, m, d)
        Keys.
    v : array of shape (..., H_kv, m, e)
        Values.
    tiles : pair of int
        How many queries and how many keys are read at once.
    mask : boolean array that broadcasts to (..., H, n, m), optional
        True where the query may read the key.
    bias : array that broadcasts to (..., H, n, m), optional
        Numbers that are added to the scores.
    score : callable
        Compares: ``score(q, k) -> s``, one tile with another.

    Returns
    -------
    out : array of shape (..., H, n, e)
        One blend for each query.
    lse : array of shape (..., H, n)
        The natural log-sum-exp of the scores, without any sink, in at least float32.

    Raises
    ------
    ValueError
        Where `flash_attention` raises it.
    TypeError
        Where `flash_attention` raises it.

    See Also
    --------
    flash_attention : The other order of the two loops, which describes the arguments.
    merge : The step.

    Notes
    -----
    Slot : all five, with softmax for normalize
    Changes : nothing but the order of the sums: a tile of keys is read once, and the outputs again for each of them.
    Cost : O(H n m (d + e)) time as `attention`, and O(H n e m / b_k) for the merges; memory O(H b_q b_k) for the
        scores.
    Empty row : a query that may read nothing gets zeros and minus infinity.
    Promises : prefix stable
    Equals : ``flash_attention`` for all tiles; ``split_attention`` with parts of b_k keys.
    Year : 2022
    Source : Dao, Fu, Ermon, Rudra and Ré, 2022, FlashAttention: Fast and Memory-Efficient Exact Attention with
        IO-Awareness, section 3.1, arXiv 2205.14135.
    Other names : FlashAttention-1, FA1, flash attention, key-outer loop, KV-outer loop

    The output of a query is a complete one after each tile, over the keys met so far. Several scores of plus infinity
    in different tiles of keys share by tiles, as in `merge`.

    References
    ----------
    T. Dao, D. Y. Fu, S. Ermon, A. Rudra and C. Ré, FlashAttention: Fast and Memory-Efficient Exact Attention with
    IO-Awareness, NeurIPS 2022.

    Examples
    --------
    >>> import numpy as np
    >>> x = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    >>> flash_attention_by_keys(x, x, x, tiles=(2, 1))[0].round(3)
    array([[0.802, 0.599],
           [0.599, 0.802],
           [0.752, 0.752]])
    """
    xp, dtype, (q, k, v, bias) = promote(q=q, k=k, v=v, bias=bias)
    k, v, allowed, bias = _for_tiles(xp, q, k, v, mask, bias)
    rows, columns = _grid(q, k, tiles)
    states = [None] * len(rows)
    for j in columns:
        for a, i in enumerate(rows):
            seen = {"mask": _tile(allowed, i, j), "bias": _tile(bias, i, j)}
            part = partial_attention(q[..., i, :], k[..., j, :], v[..., j, :], score=score, **seen)
            states[a] = part if states[a] is None else merge(*states[a], *part)
    outs, lses = zip(*states, strict=True)
    return cast(xp, xp.concat(outs, axis=-2), dtype), xp.concat(lses, axis=-1)


def flash_attention_vjp(
    q: Array,
    k: Array,
    v: Array,
    /,
    *,
    tiles: tuple[int, int],
    mask: Array | None = None,
    bias: Array | None = None,
    score: Score = scaled_dot(),
) -> Callable[..., tuple[Array | None, ...]]:
    r"""Build the function that pulls gradients of the output and of the log-sum-exp back, tile by tile.

    .. math:: p_{ij} = e^{s_{ij} - L_i}, \qquad D_i = g^o_i \cdot \operatorname{out}_i - g^L_i, \qquad
              ds_{ij} = p_{ij} \, (g^o_i \cdot v_j - D_i), \qquad dv_j = \sum_i p_{ij} \, g^o_i

    Parameters
    ----------
    q : array of shape (..., H, n, d)
        Queries, as they were given to `flash_attention`.
    k : array of shape (..., H_kv, m, d)
        Keys.
    v : array of shape (..., H_kv, m, e)
        Values.
    tiles : pair of int
        How many queries and how many keys are read at once; they may differ from those of the forward pass.
    mask : boolean array that broadcasts to (..., H, n, m), optional
        True where the query may read the key.
    bias : array that broadcasts to (..., H, n, m), optional
        Numbers that are added to the scores.
    score : callable
        A score with an attribute ``vjp(g, q, k) -> (dq, dk)``, such as those of `scaled_dot`.

    Returns
    -------
    callable
        The function ``pull(g_out, g_lse, out, lse, sink=None) -> (dq, dk, dv, dbias, dsink)``. It takes the gradients
        of `out` and of `lse`, these two as they came out, and the sink that is in them, if one was added by `add_sink`.
        The gradients have the shapes of the arguments; that of a missing bias or sink is None.

    Raises
    ------
    ValueError
        If `tiles` are not two positive numbers. The function built raises it if `g_out`, `g_lse`, `out` or `lse` has
        another shape than the results of `flash_attention`, and where that raises it.
    TypeError
        If `tiles` are not two integers, or if `score` has no ``vjp``. The function built raises it where
        `flash_attention` raises it.

    See Also
    --------
    flash_attention : Gives `out` and `lse`.
    attention_vjp : The same gradients from a table of all weights.

    Notes
    -----
    Cost : O(H n m (d + e)) time, two and a half times that of `flash_attention`, since the scores are computed again;
        memory O(H b_q b_k) beside the arguments and the gradients. Only the gradient of a bias that has a number for
        each pair is a table of all pairs.
    Empty row : a query that may read nothing adds nothing to any gradient.

    Also called FlashAttention backward, or recomputation backward. `k` and `v` may be a part of the keys that `out` and
    `lse` stand for: then the gradients of this part come out, and the part of `dq` that flows through it. The tiles are
    visited in a fixed order. All gradients have the common dtype of all arguments other than `g_lse` and `lse`.

    A row in which several scores are plus infinity cannot be differentiated from `lse`, which does not say how many.

    References
    ----------
    T. Dao, FlashAttention-2: Faster Attention with Better Parallelism and Work Partitioning, ICLR 2024.

    Examples
    --------
    >>> import numpy as np
    >>> q, k, v = np.array([[1.0]]), np.array([[1.0], [1.0]]), np.array([[0.0], [4.0]])
    >>> out, lse = flash_attention(q, k, v, tiles=(1, 1))
    >>> pull = flash_attention_vjp(q, k, v, tiles=(1, 1))
    >>> dq, dk, dv, dbias, dsink = pull(np.array([[1.0]]), np.array([0.0]), out, lse)
    >>> dk.round(6)
    array([[-1.],
           [ 1.]])
    """
    if not hasattr(score, "vjp"):
        raise TypeError("score has no attribute vjp; the autograd of PyTorch or JAX needs none")
    _sizes(tiles)

    def pull(
        g_out: Array, g_lse: Array, out: Array, lse: Array, sink: Array | None = None, /
    ) -> tuple[Array | None, ...]:
        dtype = promote(q=q, k=k, v=v, bias=bias, g_out=g_out, out=out, sink=sink)[1]
        xp, _, (g, gl, o, lse, z, wide_q, wide_k, wide_v, wide_bias) = promote(
            g_out=g_out, g_lse=g_lse, out=out, lse=lse, sink=sink, q=q, k=k, v=v, bias=bias
        )
        keys, values, allowed, added = _for_tiles(xp, wide_q, wide_k, wide_v, mask, wide_bias)
        values = hide_unread(xp, values, allowed)
        blended = (*broadcast_batch(2, q=wide_q, k=keys, v=values), wide_q.shape[-2])
        check_shape("g_out", g, (*blended, values.shape[-1]))
        check_shape("g_lse", gl, blended)
        check_shape("out", o, tuple(g.shape))
        check_shape("lse", lse, blended)
        if sink is not None:
            check_broadcast("sink", z, blended)
        level = xp.sum(g * o, axis=-1) - gl
        rows, columns = _grid(wide_q, keys, tiles)
        dq, dk, dv, dbias = [0.0] * len(rows), [], [], []
        for j in columns:
            dk_j, dv_j, dbias_j = 0.0, 0.0, []
            for a, i in enumerate(rows):
                q_i, g_i, k_j, v_j = wide_q[..., i, :], g[..., i, :], keys[..., j, :], values[..., j, :]
                readable, added_ij = _tile(allowed, i, j), _tile(added, i, j)
                s = attention_scores(q_i, k_j, bias=added_ij, score=score)
                p = xp.exp(below_top(xp, hide(xp, s, readable, -math.inf), lse[..., i, None]))
                ds = hide(xp, p * (g_i @ v_j.mT - level[..., i, None]), readable, 0.0)
                ds = sum_to_shape(xp, ds, s.shape)
                dq_ij, dk_ij = score.vjp(ds, q_i, k_j)
                dq[a] = dq[a] + dq_ij
                dk_j, dv_j = dk_j + dk_ij, dv_j + sum_to_shape(xp, p.mT @ g_i, v_j.shape)
                dbias_j.append(None if added is None else sum_to_shape(xp, ds, added_ij.shape))
            dk.append(dk_j)
            dv.append(dv_j)
            dbias.append(_joined(xp, dbias_j, added, -2))
        dk, dv = (_gather_heads(xp, xp.concat(d, axis=-2), x.shape) for d, x in ((dk, k), (dv, v)))
        dbias = None if bias is None else xp.reshape(_joined(xp, dbias, added, -1), bias.shape)
        dsink = None if sink is None else sum_to_shape(xp, -xp.exp(below_top(xp, z, lse)) * level, sink.shape)
        return tuple(x if x is None else cast(xp, x, dtype) for x in (xp.concat(dq, axis=-2), dk, dv, dbias, dsink))

    return pull


def add_sink(out: Array, lse: Array, sink: Array, /) -> tuple[Array, Array]:
    r"""Let a sink compete with all keys of a finished result.

    .. math:: L' = \log (e^{L} + e^{z}), \qquad \operatorname{out}' = e^{L - L'} \operatorname{out}

    Parameters
    ----------
    out : array of shape (..., n, e)
        Output, such as that of `flash_attention`.
    lse : array of shape (..., n)
        Its natural log-sum-exp.
    sink : array that broadcasts to (..., n)
        The score z of the sink, never hidden; one number for each of H heads has the shape (H, 1).

    Returns
    -------
    out : array of shape (..., n, e)
        The output with the sink, in the dtype of `out`.
    lse : array of shape (..., n)
        The log-sum-exp with the sink in it, in the common dtype of `lse` and `sink`.

    Raises
    ------
    ValueError
        If an axis is missing, if `lse` does not have one number for each row of `out`, or if `sink` would enlarge it.
    TypeError
        If an argument is not an array of numbers, or if two array libraries are mixed.

    See Also
    --------
    sink_softmax : The sink inside the normalizer.
    flash_attention_vjp : Gives the gradient of the sink as well.

    Notes
    -----
    Cost : O(n e) time and memory.
    Empty row : zeros stay zeros, and the log-sum-exp becomes the sink.

    Examples
    --------
    >>> import numpy as np
    >>> out, lse = add_sink(np.array([[8.0]]), np.log([3.0]), np.array(0.0))
    >>> out, np.exp(lse).round(6)
    (array([[6.]]), array([4.]))
    """
    xp = library(out=out, lse=lse, sink=sink)
    check_axes("n e", out=out)
    check_shape("lse", lse, tuple(out.shape[:-1]))
    check_broadcast("sink", sink, tuple(lse.shape))
    return merge(out, lse, xp.zeros_like(out), xp.broadcast_to(sink, lse.shape))


def _for_tiles(
    xp: Any, q: Array, k: Array, v: Array, mask: Array | None, bias: Array | None
) -> tuple[Array, Array, Array | None, Array | None]:
    """Return keys and values for all heads, the mask of all pairs, and the bias with an axis for queries and keys."""
    v = _spread_values(xp, q, k, v)
    k, allowed = _readable_keys(xp, q, k, mask)
    if bias is not None:
        check_broadcast("bias", bias, (*broadcast_batch(2, q=q, k=k), q.shape[-2], k.shape[-2]))
        bias = xp.reshape(bias, (*(1,) * (2 - bias.ndim), *bias.shape))
    return k, v, allowed, bias


def _sizes(tiles: tuple[int, int]) -> list[int]:
    """Return the two sizes of a tile."""
    if not isinstance(tiles, tuple | list):
        raise TypeError(f"tiles must be a pair of integers, not {type(tiles).__name__}")
    if len(tiles) != 2:
        raise ValueError(f"tiles has {len(tiles)} numbers; it must have two, for queries and for keys")
    return [positive_integer("tiles", size) for size in tiles]


def _grid(q: Array, k: Array, tiles: tuple[int, int]) -> list[list[slice]]:
    """Return where queries and keys are cut."""
    return [_cuts(x.shape[-2], tiles=size) for x, size in zip((q, k), _sizes(tiles), strict=True)]


def _tile(x: Array | None, i: slice, j: slice) -> Array | None:
    """Return rows i and columns j of a table; an axis of length one stands for all of them."""
    if x is None:
        return None
    i, j = (cut if size != 1 else slice(None) for cut, size in zip((i, j), x.shape[-2:], strict=True))
    return x[..., i, j]


def _joined(xp: Any, parts: list[Array | None], whole: Array | None, axis: int) -> Array | None:
    """Return gradients of tiles side by side along an axis, or their sum where the axis of `whole` has length one."""
    if whole is None:
        return None
    return xp.concat(parts, axis=axis) if whole.shape[axis] != 1 else sum(parts[1:], start=parts[0])
