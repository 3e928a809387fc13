"""Speed: the sum of attention in the order that suits a processor, with NumPy alone."""

import math
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from softlookup._arrays import Array, inverse_root
from softlookup._checks import (
    broadcast_batch,
    check_axes,
    check_equal,
    check_items,
    finite,
    group_size,
    natural,
    positive_integer,
)

__all__ = ["fast_attention"]

ROWS, COLUMNS = 2048, 256  # of the largest tile in float32: two megabytes, as in other dtypes
NARROW = 192  # columns of a tile on an edge of what may be read, so that less is computed in vain
FEW = 8  # queries: with fewer, their maxima cost less than the lengths of all keys


def fast_attention(
    q: Array,
    k: Array,
    v: Array,
    /,
    *,
    causal: bool = False,
    window: tuple[int | None, int | None] = (None, None),
    scale: float | None = None,
    workers: int = 1,
) -> Array:
    r"""Compute attention fast, on NumPy arrays alone, without a table of all scores.

    .. math:: \operatorname{out}_i = \frac{\sum_j 2^{s_{ij} - \mu_i} \, v_j}{\sum_j 2^{s_{ij} - \mu_i}}, \qquad
              s_{ij} = (\text{scale} \cdot \log_2 e) \; q_i \cdot k_j, \qquad
              -\text{left} \le j - (i + m - n) \le \text{right}

    Parameters
    ----------
    q : NumPy array of shape (..., H, n, d)
        Queries. With two axes there is no head axis.
    k : NumPy array of shape (..., H_kv, m, d)
        Keys. Their number of heads must divide that of `q`; a missing head axis is one head.
    v : NumPy array of shape (..., H_kv, m, e)
        Values, one for each key.
    causal : bool
        Whether right is zero: no query reads a key after its own position. The last query stands at the last key.
    window : pair of int or None
        left and right, as in `sliding_window`: how many keys before and after its own position a query may read. The
        own position is not counted, and None sets no limit.
    scale : float, optional
        What the dot products are multiplied by. None means :math:`1/\sqrt d`.
    workers : int
        How many threads share the work. Each holds one tile of scores, and their number changes no bit of the result.

    Returns
    -------
    NumPy array of shape (..., H, n, e)
        One blend for each query.

    Raises
    ------
    ValueError
        If an axis is missing, if numbers of columns, items or heads do not fit, if the axes before the heads do not
        broadcast, if `window` has a negative number, if `scale` is not finite, or if `workers` is not positive.
    TypeError
        If an array is not NumPy's or not of real numbers, if `window` is not a pair, or if another option is not of its
        type.

    See Also
    --------
    attention : The definition, for every array library, every score and every normalizer.
    online_attention : The same order for every array library.
    sliding_window : The window as a mask.

    Notes
    -----
    Slot : all five, with scaled_dot, positions and softmax
    Changes : nothing but the order of the sums, and the base of the exponentials.
    Cost : O(H n m (d + e)) time, as attention, and O(H n w (d + e)) with a window of w keys; beside the result O(m)
        memory, and one tile of fixed size, for each worker.
    Empty row : a query that may read nothing gets zeros.
    Promises : non-negative, sums to one, inside the hull, shift invariant
    Equals : ``attention`` under the mask ``sliding_window``, and under ``causal``, up to rounding.
    Year : 2021
    Source : Rabe and Staats, 2021, Self-attention Does Not Need O(n²) Memory, arXiv 2112.05682; with tiles that stay
        in fast memory: Dao et al., 2022, FlashAttention, arXiv 2205.14135.
    Other names : memory-efficient attention, tiled attention, chunked attention, fused attention on a CPU

    With causal=True it is prefix stable. Where the lengths of queries and keys exclude a large score, no maximum is
    subtracted; elsewhere each row keeps a running maximum, as in `online_attention`. Scores must not overflow: one of
    plus infinity gives NaN. Nor may the sum of the values, weighted by exponentials and not yet divided.

    A key or a value that no query may read can hold NaN without effect. Where some queries may read it, it can spoil
    the others as well, unlike in `attention`. Integers become float64, and at least float32 is computed in.

    Threads of the linear algebra library compete with `workers`; they are set by its own variables, such as
    ``OPENBLAS_NUM_THREADS``, and best kept at one.

    References
    ----------
    M. N. Rabe and C. Staats, Self-attention Does Not Need O(n²) Memory, 2021.

    Examples
    --------
    >>> import numpy as np
    >>> x = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    >>> fast_attention(x, x, x, causal=True).round(3)
    array([[1.   , 0.   ],
           [0.33 , 0.67 ],
           [0.752, 0.752]])
    """
    for name, x in {"q": q, "k": k, "v": v}.items():
        if not isinstance(x, np.ndarray):
            raise TypeError(f"{name} must be a NumPy array, not {type(x).__name__}")
        if x.dtype.kind not in "iuf":
            raise TypeError(f"{name} must hold real numbers, not {x.dtype}")
    if not isinstance(window, tuple) or len(window) != 2:
        raise TypeError(f"window must be a pair (left, right), not {window!r}")
    left, right = (math.inf if x is None else natural("window", x, "; None sets no limit") for x in window)
    right = 0 if causal else right
    workers = positive_integer("workers", workers)
    check_axes("n d", q=q)
    check_items(k, v)
    check_equal("columns", -1, q=q, k=k)
    scale = math.log2(math.e) * (inverse_root(q.shape[-1]) if scale is None else finite("scale", scale))
    dtype = np.result_type(*(x.dtype if x.dtype.kind == "f" else float for x in (q, k, v)))
    bare = max(q.ndim, k.ndim, v.ndim) < 3
    wide = dtype if dtype.itemsize > 2 else np.dtype(np.float32)
    q, k, v = (x.astype(wide, copy=False)[(None,) * (x.ndim < 3)] for x in (q, k, v))
    check_equal("heads", -3, k=k, v=v)
    batch = q.shape[:-3]
    if not batch == k.shape[:-3] == v.shape[:-3]:
        batch = broadcast_batch(3, q=q, k=k, v=v)
        q, k, v = (np.broadcast_to(x, batch + x.shape[-3:]) for x in (q, k, v))
    (n, m), heads = (q.shape[-2], k.shape[-2]), q.shape[-3]
    out = np.zeros((*q.shape[:-1], v.shape[-1]), dtype=wide)
    group = group_size("k", k, heads, f"q's {heads}")
    q, blends = (x.reshape(*k.shape[:-2], group, n, x.shape[-1]) for x in (q, out))
    k, v = k[..., None, :, :], v[..., None, :, :]
    info, size = np.finfo(wide), math.prod(out.shape[:-1])
    most = max(1, ROWS * 4 // wide.itemsize)
    narrow = NARROW if max(left, right) == math.inf else (NARROW + 2) // 3
    together = 0 < size * min(m, NARROW) <= NARROW * most // 2  # all heads in one tile
    rows = min(most, max(COLUMNS, size // 8))  # of a strip: a long text has eight or more
    largest = size if together else min(n, rows)
    columns = min(m, most * COLUMNS // max(1, largest))
    reached = np.tri(min(m, narrow), dtype=wide) if min(left, right) < math.inf else None

    def work(strips: list) -> None:
        tile, ones = np.empty(largest * columns, dtype=wide), np.ones(columns, dtype=wide)
        for head, i in iter(strips.pop, None):
            queries, blend = q[head][..., i : i + rows, :] * scale, blends[head][..., i : i + rows, :]
            height, position = blend.shape[-2], i + m - n
            start = max(0, position - left)
            stop = max(start, min(m, position + height + right))
            low, high = position - left - start, position + right - start  # of these, the first query reads low to high
            keys, values = (x[head and (*head[:-1], 0)][..., start:stop, :] for x in (k, v))
            small = height >= FEW
            if small:
                with np.errstate(over="ignore"):
                    square = [np.vecdot(x, x).max(initial=0.0) for x in (queries, keys, values)]  # of the longest
                small = math.sqrt(square[0]) * math.sqrt(square[1]) <= info.maxexp / 4 and square[2] < math.inf
            total, end = np.zeros(blend.shape[:-1], dtype=wide), 0
            top = None if small else total - math.inf
            while (j := end) < stop - start:
                whole = low + height <= j + 1 and j + narrow <= high + 1  # every query reads the next keys
                end = min(j + columns, high + 1, stop - start) if whole else min(j + narrow, stop - start)
                a, b = max(0, j - high), min(height, end - low)  # the queries that read a key of this tile
                some_total, some_blend = total[..., a:b], blend[..., a:b, :]
                s = tile[: some_total.size * (end - j)].reshape(*some_total.shape, end - j)
                np.matmul(queries[..., a:b, :], keys[..., j:end, :].mT, out=s)
                edges = []
                if (c := end - 1 - high) > a:  # for these queries, the last keys come too late
                    edges.append((s[..., : c - a, :], reached[a + high - j : c + high - j, : end - j]))
                if (c := j + 1 - low) < b:  # for these, the first keys come too early
                    edges.append((s[..., c - a :, :], 1 - reached[c - 1 + low - j : b - 1 + low - j, : end - j]))
                if not small:
                    for part, read in edges:
                        np.copyto(part, -math.inf, where=read == 0)
                    new = np.maximum(top[..., a:b], s.max(axis=-1))
                    shift = np.where(new == -math.inf, 0.0, new)
                    s -= shift[..., None]
                    kept, top[..., a:b] = np.exp2(top[..., a:b] - shift), new
                    some_total *= kept
                    some_blend *= kept[..., None]
                np.exp2(s, out=s)
                if small:
                    for part, read in edges:
                        part *= read
                some_total += s @ ones[: end - j]
                some_blend += s @ values[..., j:end, :]
            blend /= np.maximum(total, info.tiny)[..., None]  # a row that read nothing stays zero

    heads = [()] if together else list(np.ndindex(q.shape[:-2]))
    strips = [(head, i) for i in range(0, n, rows) for head in heads]
    workers = max(1, min(workers, len(strips)))
    strips = [None] * workers + strips  # a worker stops at None
    if workers == 1:
        work(strips)
    else:
        with ThreadPoolExecutor(workers) as pool:
            list(pool.map(work, [strips] * workers))
    return (out[0] if bare else out).astype(dtype, copy=False)
