"""A cache of keys and values: contiguous, in pages, or rolling; arrays in, arrays out, and nothing written in place."""

import math
from collections.abc import Callable
from typing import Any

from array_api_compat import device

from softlookup._arrays import Array, cast, integers, library, promote, table_rows
from softlookup._checks import check_axes, check_callable, check_equal, check_items, check_shape, positive_integer
from softlookup.lookup.attention import attention
from softlookup.masks.causal import positions
from softlookup.masks.window import sliding_window
from softlookup.schedules.online_softmax import _cuts

__all__ = [
    "chunked_prefill",
    "decode",
    "gather_pages",
    "paged_attention",
    "rolling_decode",
    "rolling_positions",
    "rolling_write",
    "write_pages",
]


def decode(
    q: Array,
    k_cache: Array,
    v_cache: Array,
    k: Array,
    v: Array,
    /,
    *,
    left: int | None = None,
    attend: Callable = attention,
) -> tuple[Array, Array, Array]:
    r"""Append new keys and values to a cache, and let the new queries read all that stands before them.

    .. math:: \bar k = [\text{k\_cache}; k], \qquad \bar v = [\text{v\_cache}; v], \qquad
              \operatorname{out}_i = \operatorname{attend}(q_i, \ \bar k_{\le c + i}, \ \bar v_{\le c + i})

    Parameters
    ----------
    q : array of shape (..., H, n, d)
        Queries of the n new positions; one of them in a step of decoding.
    k_cache : array of shape (..., H_kv, c, d)
        Keys of the c positions so far; zero of them at the beginning.
    v_cache : array of shape (..., H_kv, c, e)
        Their values.
    k : array of shape (..., H_kv, n, d)
        Keys of the new positions.
    v : array of shape (..., H_kv, n, e)
        Their values.
    left : int, optional
        How many positions before its own a query may read, as in `sliding_window`. None sets no limit.
    attend : callable
        The lookup: ``attend(q, k, v, mask=mask) -> out``; `attention` itself, one with other options, or a schedule.

    Returns
    -------
    out : array of shape (..., H, n, e)
        One blend for each new position.
    k_cache : array of shape (..., H_kv, c + n, d)
        The cache with the new keys at its end.
    v_cache : array of shape (..., H_kv, c + n, e)
        The cache with the new values at its end.

    Raises
    ------
    ValueError
        If an axis is missing, if the new keys and values do not fit the cache or the queries, if `left` is negative,
        and where `attend` raises it.
    TypeError
        If an argument is not an array of numbers, if `attend` cannot be called, and where `attend` raises it.

    See Also
    --------
    chunked_prefill : Many new positions, some at a time.
    paged_attention : The cache in pages.
    rolling_decode : A cache of the last keys only.

    Notes
    -----
    Slot : around all five: which keys are kept for later queries
    Changes : nothing but when a key is computed: once, and not again at each later position.
    Cost : O(H n (c + n) (d + e)) time, and O(H_kv (c + n) (d + e)) memory for the cache; here as a new array, in a
        program in place.
    Empty row : none; a query reads its own key.
    Promises : prefix stable
    Equals : the last n rows of ``attend`` over the whole text with a causal mask.
    Year : 2019
    Source : Shazeer, 2019, Fast Transformer Decoding: One Write-Head is All You Need, section 2.4, arXiv
        1911.02150.
    Other names : KV cache, key-value cache, incremental decoding, past_key_values, past_key, past_value, DynamicCache,
        StaticCache, autoregressive decoding, decode step

    Several new positions at once, as in prefill or when drafts are verified, are causal among themselves. What carries
    a position, such as `rotary`, is applied to q and k before; the cache keeps what it was given.

    References
    ----------
    N. Shazeer, Fast Transformer Decoding: One Write-Head is All You Need, 2019.

    Examples
    --------
    >>> import numpy as np
    >>> x = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    >>> cache = x[:2], x[:2]
    >>> out, k_cache, v_cache = decode(x[2:], *cache, x[2:], x[2:])
    >>> out.round(3), k_cache.shape
    (array([[0.752, 0.752]]), (3, 2))
    """
    _check_fits(k_cache, v_cache, k, v)
    check_axes("n d", q=q)
    check_equal("items", -2, q=q, k=k)
    check_callable("a function attend(q, k, v, mask=mask)", attend=attend)
    k_cache, v_cache = _append("k", k_cache, k), _append("v", v_cache, v)
    mask = sliding_window(*positions(q, k_cache), left=left, right=0)
    return attend(q, k_cache, v_cache, mask=mask), k_cache, v_cache


def chunked_prefill(
    q: Array, k: Array, v: Array, /, *, size: int, left: int | None = None, attend: Callable = attention
) -> Array:
    r"""Read a long text some queries at a time, each piece with the keys up to its own end.

    .. math:: \operatorname{out}_{a:b} = \operatorname{attend}(q_{a:b}, \ k_{:c+b}, \ v_{:c+b}), \qquad
              a = 0, \text{size}, 2\,\text{size}, \dots, \qquad c = m - n

    Parameters
    ----------
    q : array of shape (..., H, n, d)
        Queries of the last n of the m positions.
    k : array of shape (..., H_kv, m, d)
        Keys: those of the cache, if there is one, and those of the n positions.
    v : array of shape (..., H_kv, m, e)
        Values.
    size : int
        The number of queries of a piece; the last piece has what is left.
    left : int, optional
        How many positions before its own a query may read. None sets no limit.
    attend : callable
        The lookup: ``attend(q, k, v, mask=mask) -> out``.

    Returns
    -------
    array of shape (..., H, n, e)
        One blend for each query.

    Raises
    ------
    ValueError
        If an axis is missing, if `k` and `v` do not have the same number of items, if `size` is not positive or `left`
        negative, and where `attend` raises it.
    TypeError
        If an argument is of the wrong type, and where `attend` raises it.

    See Also
    --------
    decode : One piece, with the cache as a result.
    split_attention : Cuts the keys instead.

    Notes
    -----
    Slot : around all five: which queries are computed together
    Changes : nothing but the order of the work; between two pieces other texts can have their turn.
    Cost : O(H n m (d + e)) time, without the part of the table that causal order hides; O(H size m) memory for scores.
    Empty row : a query that stands before every key, when n is larger than m, gets what `attend` gives an empty row.
    Promises : prefix stable
    Equals : ``attend`` with a causal mask that lets the last query read the last key, for every size.
    Year : 2023
    Source : Agrawal et al., 2023, SARATHI: Efficient LLM Inference by Piggybacking Decodes with Chunked Prefills,
        abstract, arXiv 2308.16369; mixed without stalls: Agrawal et al., 2024, Sarathi-Serve, section 4.2,
        arXiv 2403.02310.
    Other names : chunked prefill, chunked-prefills, prefill chunking, piecewise prefill, Sarathi

    References
    ----------
    A. Agrawal et al., Taming Throughput-Latency Tradeoff in LLM Inference with Sarathi-Serve, OSDI 2024.

    Examples
    --------
    >>> import numpy as np
    >>> x = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    >>> chunked_prefill(x, x, x, size=2).round(3)
    array([[1.   , 0.   ],
           [0.33 , 0.67 ],
           [0.752, 0.752]])
    """
    xp = library(q=q, k=k, v=v)
    check_axes("n d", q=q)
    check_items(k, v)
    check_callable("a function attend(q, k, v, mask=mask)", attend=attend)
    n, m = q.shape[-2], k.shape[-2]
    pieces = []
    for cut in _cuts(n, size=size):
        seen = slice(0, max(m - n + cut.stop, 0))
        piece, keys = q[..., cut, :], k[..., seen, :]
        mask = sliding_window(*positions(piece, keys), left=left, right=0)
        pieces.append(attend(piece, keys, v[..., seen, :], mask=mask))
    return xp.concat(pieces, axis=-2)


def gather_pages(pool: Array, block_table: Array, /) -> Array:
    r"""Put the pages of each sequence one after the other.

    .. math:: x_{b, t} = \text{pool}[\,\text{block\_table}[b, \lfloor t / s \rfloor],\ t \bmod s\,]

    Parameters
    ----------
    pool : array of shape (p, H_kv, s, d) or (p, s, d)
        All p pages, of s slots each, of all sequences.
    block_table : integer array of shape (..., B, t)
        The pages of each of B sequences, in the order of the text.

    Returns
    -------
    array of shape (..., B, H_kv, t s, d) or (..., B, t s, d)
        What the slots hold, in the dtype of `pool`; NaN where the table names a page that does not exist.

    Raises
    ------
    ValueError
        If an axis is missing, or if the pool has no page.
    TypeError
        If `pool` is not an array of numbers, or `block_table` not one of signed integers, or if two array libraries
        are mixed.

    See Also
    --------
    paged_attention : Reads the pages without what stands past the end.
    write_pages : The other direction.

    Notes
    -----
    Cost : O(B t s H_kv d) time and memory.
    Empty row : none; a table without columns gives no items.

    A program for speed does not gather: it reads each page where it lies. Integers become the library's default float.

    Examples
    --------
    >>> import numpy as np
    >>> pool = np.arange(6.0).reshape(3, 2, 1)
    >>> gather_pages(pool, np.array([[2, 0]]))[0, :, 0]
    array([4., 5., 0., 1.])
    """
    check_axes("p s d", pool=pool)
    library(pool=pool, block_table=block_table)
    xp, (table,) = integers(block_table=block_table)
    check_axes("t", block_table=table)
    _, dtype, (pool,) = promote(pool=pool)
    pages = table_rows(xp, "pool", xp.reshape(pool, (pool.shape[0], math.prod(pool.shape[1:]))), table)
    pages = xp.moveaxis(xp.reshape(pages, (*table.shape, *pool.shape[1:])), table.ndim - 1, -3)
    slots = pages.shape[-3] * pages.shape[-2]
    return cast(xp, xp.reshape(pages, (*pages.shape[:-3], slots, pages.shape[-1])), dtype)


def write_pages(pool: Array, block_table: Array, places: Array, x: Array, /) -> Array:
    r"""Put new keys or values into the pages where their positions belong.

    .. math:: \text{pool}[\,\text{block\_table}[b, \lfloor p_{bi} / s \rfloor],\ p_{bi} \bmod s\,] \leftarrow x_{b,i}

    Parameters
    ----------
    pool : array of shape (p, H_kv, s, d) or (p, s, d)
        All pages of all sequences.
    block_table : integer array of shape (..., B, t)
        The pages of each sequence.
    places : integer array of shape (..., B, n)
        The position in its sequence of each new item, counted from zero.
    x : array of shape (..., B, H_kv, n, d) or (..., B, n, d)
        The new items.

    Returns
    -------
    array of the shape of `pool`
        The pool with the new items, in the common dtype of `pool` and `x`. An item whose position has no page, or whose
        page does not exist, is left out. Of several items for one slot the last one stays.

    Raises
    ------
    ValueError
        If an axis is missing, if the pages have no slot, or if `places` or `x` does not fit.
    TypeError
        If `pool` or `x` is not an array of numbers, or another argument not one of signed integers, or if two array
        libraries are mixed.

    See Also
    --------
    gather_pages : The other direction.
    rolling_write : The same for a rolling cache.

    Notes
    -----
    Cost : O(p s (B n + H_kv d)) time and memory, since every slot asks which item it gets; a program that writes in
        place needs O(B n H_kv d).
    Empty row : none; without new items the pool stays as it is.

    Examples
    --------
    >>> import numpy as np
    >>> pool = write_pages(np.zeros((2, 2, 1)), np.array([[1, 0]]), np.array([[1, 2]]), np.array([[[5.0], [6.0]]]))
    >>> pool[..., 0]
    array([[6., 0.],
           [0., 5.]])
    """
    xp = library(pool=pool, block_table=block_table, places=places, x=x)
    check_axes("p s d", pool=pool)
    check_axes("t", block_table=block_table)
    check_axes("n", places=places)
    _, (table, places) = integers(block_table=block_table, places=places)
    check_shape("places", places, (*table.shape[:-1], places.shape[-1]))
    check_shape("x", x, (*table.shape[:-1], *pool.shape[1:-2], places.shape[-1], pool.shape[-1]))
    _, dtype, (pool, x) = promote(pool=pool, x=x)
    p, *middle, s, d = pool.shape
    column = xp.arange(table.shape[-1], dtype=table.dtype, device=device(table))
    place = places // positive_integer("the number of slots of a page of pool", s)
    page = xp.sum(xp.where(place[..., None] == column, table[..., None, :] + 1, 0), axis=-1) - 1
    slot = xp.where((page >= 0) & (page < p), page * s + places % s, -1)
    flat = xp.reshape(xp.moveaxis(pool, 0, -3), (*middle, p * s, d))
    batch = math.prod(table.shape[:-1])
    x = xp.moveaxis(xp.reshape(x, (batch, *middle, places.shape[-1], d)), 0, -3)
    x = xp.reshape(x, (*middle, batch * places.shape[-1], d))
    flat = _write(xp, flat, xp.reshape(slot, (-1,)), x)
    return cast(xp, xp.moveaxis(xp.reshape(flat, (*middle, p, s, d)), -3, 0), dtype)


def paged_attention(
    q: Array,
    k_pool: Array,
    v_pool: Array,
    block_table: Array,
    lengths: Array,
    /,
    *,
    left: int | None = None,
    attend: Callable = attention,
) -> Array:
    r"""Let the last queries of each sequence read a cache that lies in pages.

    .. math:: \operatorname{out}_{b,i} = \operatorname{attend}(q_{b,i}, \ k^{(b)}_{\le p}, \ v^{(b)}_{\le p}), \qquad
              p = \text{length}_b - n + i, \qquad
              k^{(b)}_t = \text{k\_pool}[\,\text{block\_table}[b, \lfloor t / s \rfloor],\ t \bmod s\,]

    Parameters
    ----------
    q : array of shape (..., B, H, n, d) or (..., B, n, d)
        Queries of the last n positions of each of B sequences; with heads if the pools have heads.
    k_pool : array of shape (p, H_kv, s, d) or (p, s, d)
        Keys: p pages of s slots. The keys of the n positions are already in them.
    v_pool : array of shape (p, H_kv, s, e) or (p, s, e)
        Values, at the same places.
    block_table : integer array of shape (..., B, t)
        The pages of each sequence. What stands in it past the end of a sequence is never read.
    lengths : integer array of shape (..., B)
        The number of positions of each sequence, at most t s.
    left : int, optional
        How many positions before its own a query may read. None sets no limit.
    attend : callable
        The lookup: ``attend(q, k, v, mask=mask) -> out``.

    Returns
    -------
    array of shape (..., B, H, n, e) or (..., B, n, e)
        One blend for each query.

    Raises
    ------
    ValueError
        If an axis is missing, if the pools, `q`, `lengths` and `block_table` do not fit one another, if the pools have
        no page, if `left` is negative, and where `attend` raises it.
    TypeError
        If an argument is of the wrong type, if two array libraries are mixed, and where `attend` raises it.

    See Also
    --------
    gather_pages : What is read.
    write_pages : Puts new keys and values into the pages.
    shared_prefix_attention : Also reads a shared prefix only once.

    Notes
    -----
    Slot : around all five: where the keys lie
    Changes : nothing but the place of each key in memory.
    Cost : O(B H n t s (d + e)) time and O(B H_kv t s (d + e)) memory, since the pages are gathered here.
    Empty row : a query that stands before the beginning, as all do when the length is zero, gets zeros.
    Promises : none
    Equals : ``attention`` on the keys of each sequence in one row, with a causal mask at the end.
    Year : 2023
    Source : Kwon et al., 2023, Efficient Memory Management for Large Language Model Serving with PagedAttention,
        sections 4.1 to 4.4, arXiv 2309.06180.
    Other names : paged KV cache, block table, page table, vLLM, PagedAttention, page size, block size, slot mapping,
        ragged paged attention

    Slots past the end may hold anything, NaN too, and so may the table, also pages that do not exist; the same is true
    of what stands before every window. A page that may be read and does not exist is NaN, which shows. The queries are
    the last ones of a sequence, so fewer queries of the same length are other queries; rows stay when the length grows
    with them.

    References
    ----------
    W. Kwon et al., Efficient Memory Management for Large Language Model Serving with PagedAttention, SOSP 2023.

    Examples
    --------
    >>> import numpy as np
    >>> k, v = np.zeros((3, 2, 1)), np.array([[[5.0], [7.0]], [[9.0], [np.nan]], [[0.0], [0.0]]])
    >>> paged_attention(np.zeros((1, 1, 1)), k, v, np.array([[0, 1, 99]]), np.array([3]))
    array([[[7.]]])
    """
    library(q=q, k_pool=k_pool, v_pool=v_pool, block_table=block_table, lengths=lengths)
    check_axes("p s d", k_pool=k_pool)
    check_axes("p s e", v_pool=v_pool)
    check_equal("pages", 0, k_pool=k_pool, v_pool=v_pool)
    check_equal("slots", -2, k_pool=k_pool, v_pool=v_pool)
    check_axes("t", block_table=block_table)
    check_shape("lengths", lengths, tuple(block_table.shape[:-1]))
    if q.ndim != lengths.ndim + k_pool.ndim - 1:
        raise ValueError(
            f"q has shape {tuple(q.shape)}; it needs the axes of lengths, the heads of the pools if they have any, "
            "and (n, d)"
        )
    check_callable("a function attend(q, k, v, mask=mask)", attend=attend)
    k, v = gather_pages(k_pool, block_table), gather_pages(v_pool, block_table)
    _, (lengths,) = integers(lengths=lengths)
    mask = sliding_window(*positions(q, k, offset=lengths - q.shape[-2]), left=left, right=0)
    return attend(q, k, v, mask=mask if k_pool.ndim == 3 else mask[..., None, :, :])


def rolling_positions(last: Array, /, *, window: int) -> Array:
    r"""Say which position each slot of a rolling cache holds.

    .. math:: p_s = \text{last} - (\text{last} - s) \bmod w

    Parameters
    ----------
    last : integer array of shape (...)
        The newest position that was written; -1 if there is none.
    window : int
        The number w of slots.

    Returns
    -------
    integer array of shape (..., w)
        The position in each slot; negative where nothing has been written yet.

    Raises
    ------
    ValueError
        If `window` is not positive.
    TypeError
        If `last` is not an array of signed integers, or `window` not an integer.

    See Also
    --------
    rolling_decode : Hides what is not there yet or too far.

    Notes
    -----
    Cost : O(w) time and memory.
    Empty row : none; an empty cache has negative positions only.

    Examples
    --------
    >>> import numpy as np
    >>> rolling_positions(np.array([-1, 2, 5]), window=4)
    array([[-4, -3, -2, -1],
           [ 0,  1,  2, -1],
           [ 4,  5,  2,  3]])
    """
    window = positive_integer("window", window)
    xp, (last,) = integers(last=last)
    last = last[..., None]
    return last - (last - xp.arange(window, dtype=last.dtype, device=device(last))) % window


def rolling_write(cache: Array, x: Array, start: int | Array, /) -> Array:
    r"""Put new keys or values into a rolling cache, each over the one that stood a window before it.

    .. math:: \text{cache}[(\text{start} + i) \bmod w] \leftarrow x_i

    Parameters
    ----------
    cache : array of shape (..., H_kv, w, d)
        The w slots.
    x : array of shape (..., H_kv, n, d)
        The new items; of more than w the last w stay.
    start : int or integer array of shape (...)
        The position of the first new item: how many came before. An array gives each sample its own.

    Returns
    -------
    array of shape (..., H_kv, w, d)
        The cache with the new items, in the common dtype of `cache` and `x`.

    Raises
    ------
    ValueError
        If an axis is missing, if there is no slot, or if `x` or `start` does not fit the cache.
    TypeError
        If an argument is of the wrong type, or if two array libraries are mixed.

    See Also
    --------
    rolling_positions : Which position each slot holds.
    rolling_decode : Reads before it writes.

    Notes
    -----
    Cost : O(w (n + H_kv d)) time and memory; a program that writes in place needs O(n H_kv d).
    Empty row : none; without new items the cache stays as it is.

    Examples
    --------
    >>> import numpy as np
    >>> rolling_write(np.array([[0.0], [1.0], [2.0], [3.0]]), np.array([[4.0], [5.0]]), 4)[:, 0]
    array([4., 5., 2., 3.])
    """
    check_axes("w d", cache=cache)
    check_axes("n d", x=x)
    check_shape("x", x, (*cache.shape[:-2], x.shape[-2], cache.shape[-1]))
    xp, dtype, (cache, x) = promote(cache=cache, x=x)
    new = _start(cache, start) + xp.arange(x.shape[-2], device=device(x))
    return cast(xp, _write(xp, cache, new % cache.shape[-2], x), dtype)


def rolling_decode(
    q: Array,
    k_cache: Array,
    v_cache: Array,
    k: Array,
    v: Array,
    start: int | Array,
    /,
    *,
    attend: Callable = attention,
) -> tuple[Array, Array, Array]:
    r"""Let new queries read a cache of the last keys, then put the new keys over the oldest.

    .. math:: \operatorname{out}_i = \operatorname{attend}(q_i, \ k_{p-w+1}, \dots, k_p), \qquad
              p = \text{start} + i, \qquad \text{slot of position}\ p = p \bmod w

    Parameters
    ----------
    q : array of shape (..., H, n, d)
        Queries of the n new positions.
    k_cache : array of shape (..., H_kv, w, d)
        Keys of the last w positions, each in the slot of its position; slots that were never written may hold anything.
    v_cache : array of shape (..., H_kv, w, e)
        Their values.
    k : array of shape (..., H_kv, n, d)
        Keys of the new positions.
    v : array of shape (..., H_kv, n, e)
        Their values.
    start : int or integer array of shape (...)
        The position of the first new query: how many came before, not how many are kept. An array gives each sample its
        own.
    attend : callable
        The lookup: ``attend(q, k, v, mask=mask) -> out``. It gets the w cached keys in the order of their slots and
        then the n new ones.

    Returns
    -------
    out : array of shape (..., H, n, e)
        One blend for each new position, of w keys with its own.
    k_cache : array of shape (..., H_kv, w, d)
        The cache with the new keys.
    v_cache : array of shape (..., H_kv, w, e)
        The cache with the new values.

    Raises
    ------
    ValueError
        If an axis is missing, if there is no slot, if arguments do not fit one another, and where `attend` raises it.
    TypeError
        If an argument is of the wrong type, and where `attend` raises it.

    See Also
    --------
    rolling_positions : Where the cached keys stand.
    sliding_window : The mask.

    Notes
    -----
    Slot : mask, and around all five: which keys are kept
    Changes : hides what is far, as `sliding_window` does, and forgets it.
    Cost : O(H n (w + n) (d + e)) time, and O(H_kv w (d + e)) memory for the cache, however long the text is.
    Empty row : none; a query reads its own key.
    Promises : prefix stable
    Equals : the rows of ``attention`` over the whole text under ``sliding_window(left=w - 1, right=0)``.
    Year : 2023
    Source : Jiang et al., 2023, Mistral 7B, section 2, arXiv 2310.06825.
    Other names : rolling buffer cache, ring buffer, circular cache, sliding window cache, SlidingWindowCache,
        TensorScatter

    The order of the slots is no matter, since positions say what may be read. New keys are written after all new
    queries have been answered: an early query may still need a key that a late one pushes out.

    References
    ----------
    A. Q. Jiang et al., Mistral 7B, 2023.

    Examples
    --------
    >>> import numpy as np
    >>> k, v = np.zeros((2, 1)), np.array([[2.0], [1.0]])  # positions 2 and 1
    >>> out, _, v = rolling_decode(np.zeros((1, 1)), k, v, np.zeros((1, 1)), np.array([[3.0]]), 3)
    >>> out, v[:, 0]
    (array([[2.5]]), array([2., 3.]))
    """
    _check_fits(k_cache, v_cache, k, v)
    check_axes("n d", q=q)
    check_equal("items", -2, q=q, k=k)
    check_callable("a function attend(q, k, v, mask=mask)", attend=attend)
    xp, window, first = library(q=q, k=k), k_cache.shape[-2], _start(k_cache, start)
    new = first + xp.arange(q.shape[-2], device=device(q))
    held = xp.concat([rolling_positions(first[..., 0] - 1, window=window), new], axis=-1)
    mask = sliding_window(new, held, left=window - 1, right=0) & (held >= 0)[..., None, :]
    keys, values = _append("k", k_cache, k), _append("v", v_cache, v)
    out = attend(q, keys, values, mask=mask if q.ndim == 2 else mask[..., None, :, :])
    return out, rolling_write(k_cache, k, start), rolling_write(v_cache, v, start)


def _check_fits(k_cache: Array, v_cache: Array, k: Array, v: Array) -> None:
    """Raise unless there is a value for each key, and the new items differ from those of the cache in number alone."""
    library(k_cache=k_cache, v_cache=v_cache, k=k, v=v)
    for old, new in ((("k_cache", k_cache), ("k", k)), (("v_cache", v_cache), ("v", v))):
        check_axes("n d", **dict((old, new)))
        check_shape(new[0], new[1], (*old[1].shape[:-2], new[1].shape[-2], old[1].shape[-1]))
    check_equal("items", -2, k_cache=k_cache, v_cache=v_cache)
    check_equal("items", -2, k=k, v=v)


def _append(name: str, cache: Array, x: Array) -> Array:
    """Return the cache with the new items at its end, in their common dtype."""
    xp, dtype, (cache, x) = promote(**{f"{name}_cache": cache, name: x})
    return cast(xp, xp.concat([cache, x], axis=-2), dtype)


def _start(cache: Array, start: int | Array) -> Array:
    """Return the first position as an integer array (..., 1), of the cache's library and on its device."""
    positive_integer("the number of slots of the cache", cache.shape[-2])
    first = positions(cache, cache, offset=start)[0][..., :1]
    if first.ndim > 1:
        check_shape("start", first[..., 0], tuple(cache.shape[:-3]))
    return first


def _write(xp: Any, cache: Array, slots: Array, x: Array) -> Array:
    """Return ``cache (..., H, s, d)`` with ``x (..., H, n, d)`` in the slots ``(..., n)``; the last one stays."""
    if x.shape[-2] == 0:
        return cache
    order, every = (xp.arange(size, dtype=slots.dtype, device=device(slots)) for size in (x.shape[-2], cache.shape[-2]))
    writer = xp.max(xp.where(slots[..., None, :] == every[:, None], order, -1), axis=-1)
    writer = writer if cache.ndim == 2 else writer[..., None, :]
    return xp.where((writer >= 0)[..., None], table_rows(xp, "x", x, writer), cache)
