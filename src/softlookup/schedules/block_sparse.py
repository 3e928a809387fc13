"""Attention that visits only the blocks of a mask in which a query may read something."""

import math
from typing import NamedTuple

from softlookup._arrays import Array, Score, cast, hide_unread, library, promote
from softlookup._checks import allowed_pairs, broadcast_batch, check_broadcast, natural
from softlookup.lookup.attention import _spread_heads, _spread_values, attention_scores, scaled_dot
from softlookup.masks.score_mods import block_summary
from softlookup.schedules.online_softmax import _cuts, _output_and_lse, _start, online_update

__all__ = ["block_layout", "block_sparse_attention", "visited_pairs"]

Lists = tuple[tuple[int, ...], ...]


class BlockLayout(NamedTuple):
    """Which blocks are visited, in plain numbers: a list of key blocks for each query block, counted from zero."""

    rows: int
    """Number of queries in a block."""

    columns: int
    """Number of keys in a block."""

    partial: Lists
    """For each query block, the key blocks in which the mask is asked."""

    full: Lists
    """For each query block, the key blocks in which every pair is allowed, and no mask is asked."""


def block_layout(mask: Array, /, *, rows: int, columns: int) -> BlockLayout:
    r"""List the key blocks that each block of queries has to visit.

    .. math:: \text{partial}_a = \{c : B_{ac} = 1\}, \qquad \text{full}_a = \{c : B_{ac} = 2\}

    Parameters
    ----------
    mask : boolean array of shape (..., n, m)
        True where the query may read the key. Its values are read, so the function cannot be traced.
    rows : int
        Number of queries in a block.
    columns : int
        Number of keys in a block.

    Returns
    -------
    BlockLayout
        The four plain values ``(rows, columns, partial, full)``. The lists are tuples of integers in increasing order.
        With leading axes, a block counts as empty if it is so in all masks, and as full if it is so in all.

    Raises
    ------
    ValueError
        If `mask` has fewer than two axes, or if `rows` or `columns` is not positive.
    TypeError
        If `mask` is not boolean, or if `rows` or `columns` is not an integer.

    See Also
    --------
    block_summary : The table B of zeros, ones and twos.
    block_sparse_attention : Visits the blocks.

    Notes
    -----
    Cost : O(n m) time for each mask; the lists have one number for each visited block.
    Empty row : a block of queries that may read nothing has two empty lists.

    A layout is made once and serves every call with the same mask. It can be hashed, so that it can be a static
    argument of a compiled function.

    References
    ----------
    J. Dong et al., Flex Attention: A Programming Model for Generating Optimized Attention Kernels, 2024.

    Examples
    --------
    >>> import numpy as np
    >>> block_layout(np.tri(6, dtype=bool), rows=2, columns=2)
    BlockLayout(rows=2, columns=2, partial=((0,), (1,), (2,)), full=((), (0,), (0, 1)))
    """
    xp = library(mask=mask)
    allowed = allowed_pairs(xp, "mask", mask, mask.shape)
    masks = xp.reshape(allowed, (math.prod(mask.shape[:-2]), *mask.shape[-2:]))
    some, every = (
        block_summary(table, rows=rows, columns=columns) for table in (xp.any(masks, axis=0), xp.all(masks, axis=0))
    )
    places = [[(a, c) for c in range(some.shape[1])] for a in range(some.shape[0])]
    full = tuple(tuple(c for a, c in row if every[a, c] == 2) for row in places)
    partial = tuple(tuple(c for a, c in row if some[a, c] > 0 and every[a, c] < 2) for row in places)
    return BlockLayout(int(rows), int(columns), partial, full)


def block_sparse_attention(
    q: Array,
    k: Array,
    v: Array,
    /,
    *,
    layout: BlockLayout,
    mask: Array | None = None,
    bias: Array | None = None,
    score: Score = scaled_dot(),
) -> tuple[Array, Array]:
    r"""Attend to the blocks of keys that a layout lists, and never touch the others.

    .. math:: o_i = \frac{1}{e^{L_i}} \sum_{j \in A_i} e^{s_{ij}} v_j, \qquad
              A_i = \{j : c \in \text{full}_a\} \cup \{j : c \in \text{partial}_a, \ \text{mask}_{ij}\}, \qquad
              a = \lfloor i / \text{rows} \rfloor, \ c = \lfloor j / \text{columns} \rfloor

    Parameters
    ----------
    q : array of shape (..., H, n, d)
        Queries.
    k : array of shape (..., H_kv, m, d)
        Keys.
    v : array of shape (..., H_kv, m, e)
        Values.
    layout : BlockLayout
        The plain values ``(rows, columns, partial, full)``, as from `block_layout`. Blocks are visited in the order in
        which they are listed, partial ones first. A layout may be for more queries or keys than there are: blocks
        past the end are left out.
    mask : boolean array that broadcasts to (..., H, n, m), optional
        True where the query may read the key. It is asked in partial blocks alone. None allows all their pairs.
    bias : array that broadcasts to (..., H, n, m), optional
        Numbers that are added to the scores.
    score : callable
        Compares: ``score(q, k) -> s``. The score of a pair must not depend on the other keys, nor on their number.

    Returns
    -------
    out : array of shape (..., H, n, e)
        One blend for each query.
    lse : array of shape (..., H, n)
        The natural log-sum-exp of the scores that were read, without any sink. It has at least float32, as that of
        `partial_attention`, and is merged like it.

    Raises
    ------
    ValueError
        If the layout has not four parts, if its sizes are not positive, if its lists are too few for the queries or of
        two lengths, if a block is negative or listed twice for the same queries, and where `attention` raises it.
    TypeError
        If a size or a block is not an integer, and where `attention` raises it.

    See Also
    --------
    block_layout : Makes the layout of a mask.
    online_update : The step from block to block.
    visited_pairs : What it costs.
    attention : The same from the mask alone.

    Notes
    -----
    Slot : around all five: which keys are read together
    Changes : nothing, if every pair that the mask allows is in a listed block; only the order of the sums.
    Cost : O(H p (d + e)) time for the p pairs of the listed blocks, against O(H n m (d + e)); memory
        O(H rows columns) for scores, and two numbers and a blend for each query.
    Empty row : a query that may read nothing, or whose block lists nothing, gets zeros and minus infinity.
    Promises : prefix stable
    Equals : ``attention`` with the mask, for the layout that ``block_layout`` makes of it.
    Year : 2022
    Source : Dao et al., 2022, FlashAttention, section 3.3, arXiv 2205.14135; with lists of partial and of full blocks:
        Dong et al., 2024, Flex Attention, section 4.2, arXiv 2412.05496.
    Other names : block-sparse FlashAttention, BlockMask, block mask, FlexAttention block sparsity, splash attention,
        sparse flash attention, tile skipping

    A key in a block that is not listed can hold NaN or infinity without effect, and so can one that no query of the
    block may read; where some may read it the outputs of the others stay what they are. The layout is plain Python,
    and nothing depends on the values of arrays: with a fixed layout the function traces.

    References
    ----------
    T. Dao et al., FlashAttention: Fast and Memory-Efficient Exact Attention with IO-Awareness, NeurIPS 2022.

    Examples
    --------
    >>> import numpy as np
    >>> q, k, v = np.zeros((4, 1)), np.zeros((4, 1)), np.array([[8.0], [4.0], [1.0], [3.0]])
    >>> layout = 2, 2, ((0,), (1,)), ((), ())  # two blocks on the diagonal
    >>> block_sparse_attention(q, k, v, layout=layout)[0].T
    array([[6., 6., 2., 2.]])
    """
    xp, dtype, (q, k, v, bias) = promote(q=q, k=k, v=v, bias=bias)
    v = _spread_values(xp, q, k, v)
    k = _spread_heads(xp, "k", k, q)
    n, m = q.shape[-2], k.shape[-2]
    batch = broadcast_batch(2, q=q, k=k)
    allowed = allowed_pairs(xp, "mask", mask, (*batch, n, m))
    if bias is not None:
        check_broadcast("bias", bias, (*batch, n, m))
        bias = xp.broadcast_to(bias, (*batch, n, m))
    results = []
    for rows, blocks in _visits(layout, n, m):
        state = _start(xp, q[..., rows, :], k, v)
        for cut, full in blocks:
            readable = None if full or allowed is None else allowed[..., rows, cut]
            added = None if bias is None else bias[..., rows, cut]
            s = attention_scores(q[..., rows, :], hide_unread(xp, k[..., cut, :], readable), bias=added, score=score)
            state = online_update(*state, s, v[..., cut, :], readable)
        results.append(_output_and_lse(xp, *state))
    outs, lses = zip(*results, strict=True)
    return cast(xp, xp.concat(outs, axis=-2), dtype), xp.concat(lses, axis=-1)


def visited_pairs(layout: BlockLayout, /, *, n: int, m: int) -> int:
    r"""Count the pairs of a query and a key in the blocks that a layout lists.

    .. math:: \sum_a \ \sum_{c \in \text{partial}_a \cup \text{full}_a} \text{height}_a \cdot \text{width}_c

    Parameters
    ----------
    layout : BlockLayout
        The plain values ``(rows, columns, partial, full)``.
    n : int
        Number of queries.
    m : int
        Number of keys.

    Returns
    -------
    int
        The number of scores that are computed. The last blocks may be smaller; only their pairs count.

    Raises
    ------
    ValueError
        If `n` or `m` is negative, and where `block_sparse_attention` raises it for the layout.
    TypeError
        If `n`, `m`, a size or a block is not an integer.

    See Also
    --------
    block_sparse_attention : Computes these pairs and no others.

    Notes
    -----
    Cost : O(1) for each listed block.

    Each pair costs d multiplications for its score and e for its value.

    Examples
    --------
    >>> import numpy as np
    >>> layout = block_layout(np.tri(6, dtype=bool), rows=2, columns=2)
    >>> visited_pairs(layout, n=6, m=6)
    24
    """
    n, m = natural("n", n), natural("m", m)
    blocks = [(rows, cut) for rows, row in _visits(layout, n, m) for cut, _ in row]
    return sum((rows.stop - rows.start) * (cut.stop - cut.start) for rows, cut in blocks)


def _visits(layout: BlockLayout, n: int, m: int) -> list[tuple[slice, list[tuple[slice, bool]]]]:
    """Return the queries of each block, and the keys that they visit, each with whether all of these are allowed."""
    if len(layout) != 4:
        raise ValueError(f"layout has {len(layout)} parts; it must have (rows, columns, partial, full)")
    rows, columns, partial, full = layout
    row_cuts, key_cuts = _cuts(n, rows=rows), _cuts(m, columns=columns)
    if len(partial) != len(full):
        raise ValueError(
            f"layout has {len(partial)} lists of partial blocks, {len(full)} of full ones; they must be equal"
        )
    needed = -(-n // rows)
    if len(partial) < needed:
        raise ValueError(f"layout lists key blocks for {len(partial)} query blocks; {n} queries need {needed}")
    visits = []
    for a, cut in enumerate(row_cuts):
        listed = [
            (natural("a block of layout", c), kind)
            for kind, lists in ((False, partial), (True, full))
            for c in (lists[a] if n else ())
        ]
        if len({c for c, _ in listed}) < len(listed):
            raise ValueError(f"layout lists a key block twice for query block {a}; each may be visited once")
        visits.append((cut, [(key_cuts[c], kind) for c, kind in listed if c < len(key_cuts)]))
    return visits
