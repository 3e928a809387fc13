"""Learned numbers for groups of distances, looked up in a table or made by a network from the offset in an image."""

import math
from collections.abc import Sequence
from typing import Any

from array_api_compat import array_namespace

from softlookup._arrays import Array, cast, integers, library, promote
from softlookup._checks import (
    broadcast_batch,
    check_axes,
    check_equal,
    integer_pairs,
    positive_integer,
)
from softlookup.normalizers.pointwise import sigmoid

__all__ = ["bucket_bias", "log_cpb", "log_cpb_coordinates", "swin_index", "t5_bucket"]


def t5_bucket(
    q_positions: Array,
    k_positions: Array,
    /,
    *,
    buckets: int = 32,
    max_distance: int = 128,
    bidirectional: bool = True,
) -> Array:
    r"""Number the group of distances that each pair belongs to: near ones alone, far ones in ever wider groups.

    .. math:: \text{bucket}_{ij} = \min(r, E) + \#\{t = 1, \dots, K - 1 : (r / E)^K \ge (D / E)^t\} + N [p_j > p_i],
              \qquad r = |p_j - p_i|, \quad E = \lfloor N / 2 \rfloor, \quad K = N - E

    Parameters
    ----------
    q_positions : integer array of shape (..., n)
        Position of each query.
    k_positions : integer array of shape (..., m)
        Position of each key.
    buckets : int
        How many buckets there are. If `bidirectional`, each side has N = buckets / 2 of them, else the past has all N.
    max_distance : int
        The distance D from which on the last bucket of a side is used, at the latest.
    bidirectional : bool
        Whether later keys have buckets of their own, after those of the earlier ones. If not, a later key counts as one
        at distance zero, and a mask has to hide it.

    Returns
    -------
    integer array of shape (..., n, m)
        Row of the table for each pair, from zero to buckets - 1.

    Raises
    ------
    ValueError
        If `buckets` is not positive, leaves a side fewer than two buckets or is odd for two sides, if `max_distance` is
        not above the number E of distances that have a bucket of their own, if positions have no axis, or if their
        leading axes do not broadcast.
    TypeError
        If positions are not arrays of signed integers, if two array libraries are mixed, or if `buckets` or
        `max_distance` is not an integer.

    See Also
    --------
    bucket_bias : Looks the numbers up.
    swin_index : The row of a table for offsets in an image.

    Notes
    -----
    Cost : O(n m N) time, O(n m) memory.
    Empty row : not concerned.

    The distance is key minus query, as in T5. The boundaries are found with whole numbers; a logarithm in floating
    point puts some distances on the other side of one, for some numbers of buckets.

    References
    ----------
    C. Raffel et al., Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer, JMLR 2020,
    section 2.1.

    Examples
    --------
    >>> import numpy as np
    >>> t5_bucket(np.array([0]), np.array([-200, -16, -8, -7, -1, 0, 1, 7, 16, 200]))
    array([[15, 10,  8,  7,  1,  0, 17, 23, 26, 31]])
    """
    side = positive_integer("buckets", buckets)
    if bidirectional:
        if side % 2:
            raise ValueError(f"buckets is {buckets}; it must be even, because each side has one half of them")
        side //= 2
    if side < 2:
        raise ValueError(f"buckets is {buckets}; each side needs at least two")
    exact = side // 2
    if positive_integer("max_distance", max_distance) <= exact:
        raise ValueError(f"max_distance is {max_distance}; it must be more than {exact}, which have their own buckets")
    query, key = integer_pairs(q_positions=q_positions, k_positions=k_positions)
    xp = array_namespace(key)
    offset = key - query
    past = -xp.minimum(offset, xp.zeros_like(offset))
    distance = xp.abs(offset) if bidirectional else past
    bucket = xp.where(distance < exact, distance, exact)
    for start in _starts(exact, side - exact, max_distance):
        bucket = bucket + cast(xp, distance >= start, bucket.dtype)
    return bucket + side * cast(xp, offset > 0, bucket.dtype) if bidirectional else bucket


def bucket_bias(table: Array, buckets: Array, /) -> Array:
    r"""Look up the number of each head for each pair's bucket.

    .. math:: \text{bias}_{hij} = T_{b_{ij}, h}

    Parameters
    ----------
    table : array of shape (..., N, H)
        The learned numbers T: a row for each bucket, a column for each head.
    buckets : integer array of shape (..., n, m)
        Row b of the table for each pair, from 0 to N - 1. Other numbers are not looked for, and what they give depends
        on the array library.

    Returns
    -------
    array of shape (..., H, n, m)
        The bias, in the dtype of `table`.

    Raises
    ------
    ValueError
        If an argument has fewer than two axes, or if the leading axes do not broadcast.
    TypeError
        If `table` is not an array of numbers, if `buckets` is not an array of signed integers, or if two array
        libraries are mixed.

    See Also
    --------
    t5_bucket, swin_index : The rows for distances in a text and for offsets in an image.
    log_cpb : A network in place of the table.

    Notes
    -----
    Slot : bias
    Changes : each group of distances has its own learned number in each head.
    Cost : O(H n m) time and memory; the table has N H numbers.
    Empty row : decided by mask and normalizer.
    Promises : prefix stable
    Equals : ``alibi`` when each distance has its own bucket and the table holds -slope times the distance; no bias when
        all rows of the table are equal, after a softmax.
    Year : 2019
    Source : Raffel et al., 2019, Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer,
        section 2.1, arXiv 1910.10683; for images Liu et al., 2021, Swin Transformer, section 3.2, arXiv 2103.14030.
    Other names : T5 relative position bias, T5 bias, relative attention bias, bucketed relative positions, relative
        position bias table, Swin relative position bias

    T5 adds it to dot products that are not scaled. The gradient of the table sums over all pairs that share a row.

    References
    ----------
    C. Raffel et al., JMLR 2020; Z. Liu et al., Swin Transformer: Hierarchical Vision Transformer using Shifted Windows,
    ICCV 2021.

    Examples
    --------
    >>> import numpy as np
    >>> bucket_bias(np.array([[0.0], [-1.0], [-5.0]]), np.array([[0, 2], [1, 0]]))
    array([[[ 0., -5.],
            [-1.,  0.]]])
    """
    library(table=table, buckets=buckets)
    _, dtype, (table,) = promote(table=table)
    xp, (buckets,) = integers(buckets=buckets)
    check_axes("N H", table=table)
    check_axes("n m", buckets=buckets)
    batch = broadcast_batch(2, table=table, buckets=buckets)
    n, m = buckets.shape[-2:]
    rows, heads = table.shape[-2:]
    columns = xp.broadcast_to(table.mT, (*batch, heads, rows))
    flat = xp.broadcast_to(xp.reshape(buckets, (*buckets.shape[:-2], 1, n * m)), (*batch, heads, n * m))
    return cast(xp, xp.reshape(xp.take_along_axis(columns, flat, axis=-1), (*batch, heads, n, m)), dtype)


def swin_index(q_coordinates: Array, k_coordinates: Array, /, *, window: Sequence[int]) -> Array:
    r"""Number the offset of each pair of places in a window of an image.

    .. math:: \text{index}_{ij} = (y_i - y_j + M_y - 1)(2 M_x - 1) + (x_i - x_j + M_x - 1)

    Parameters
    ----------
    q_coordinates : integer array of shape (..., n, 2)
        Row y and column x of each query.
    k_coordinates : integer array of shape (..., m, 2)
        Row y and column x of each key.
    window : sequence of two int
        Height and width M of the window. Offsets must be smaller; farther ones get numbers that mean other offsets.

    Returns
    -------
    integer array of shape (..., n, m)
        Row of the table for each pair, from 0 to (2 M_y - 1)(2 M_x - 1) - 1.

    Raises
    ------
    ValueError
        If coordinates do not have the shape (..., 2), if their leading axes do not broadcast, or if `window` does not
        hold two positive numbers.
    TypeError
        If coordinates are not arrays of signed integers, if two array libraries are mixed, or if `window` does not hold
        integers.

    See Also
    --------
    bucket_bias : Looks the numbers up.
    log_cpb : A network in place of the table.

    Notes
    -----
    Cost : O(n m) time and memory.
    Empty row : not concerned.

    Here the offset is query minus key, since the tables of trained models are read so. The other sign reads the table
    from its other end.

    References
    ----------
    Z. Liu et al., Swin Transformer: Hierarchical Vision Transformer using Shifted Windows, ICCV 2021, section 3.2.

    Examples
    --------
    >>> import numpy as np
    >>> places = np.array([[0, 0], [0, 1], [1, 0], [1, 1]])
    >>> swin_index(places, places, window=(2, 2))
    array([[4, 3, 1, 0],
           [5, 4, 2, 1],
           [7, 6, 4, 3],
           [8, 7, 5, 4]])
    """
    height, width = _window(window)
    _, down, right = _offsets(q_coordinates, k_coordinates)
    return (down + height - 1) * (2 * width - 1) + right + width - 1


def log_cpb_coordinates(offsets: Array, /, *, window: Sequence[int]) -> Array:
    r"""Squeeze offsets in an image: near ones keep their differences, far ones are drawn together.

    .. math:: u = \operatorname{sign}(\delta) \, \frac{\log_2(1 + 8 |\delta| / (M - 1))}{\log_2 8}

    Parameters
    ----------
    offsets : array of shape (..., 2)
        Offset of rows and of columns, query minus key.
    window : sequence of two int
        Height and width M of the window that the network was trained with. The offsets may be larger.

    Returns
    -------
    array of shape (..., 2)
        Coordinates u, about -1.06 to 1.06 inside that window.

    Raises
    ------
    ValueError
        If `offsets` does not have the shape (..., 2), or if `window` does not hold two positive numbers.
    TypeError
        If `offsets` is not an array of numbers, or if `window` does not hold integers.

    See Also
    --------
    log_cpb : The bias that is made from them.

    Notes
    -----
    Cost : O(1) time for each offset.
    Empty row : not concerned.

    Integers become the library's default float. A window of one has no offset but zero, and is not divided by.

    References
    ----------
    Z. Liu et al., Swin Transformer V2: Scaling Up Capacity and Resolution, CVPR 2022, section 3.3.

    Examples
    --------
    >>> import numpy as np
    >>> log_cpb_coordinates(np.array([[0, -7], [7, 1]]), window=(8, 8)).round(3)
    array([[ 0.   , -1.057],
           [ 1.057,  0.367]])
    """
    sizes = _window(window)
    xp, dtype, (offsets,) = promote(offsets=offsets)
    _check_places("2", offsets=offsets)
    squeezed = [_squeeze(xp, offsets[..., axis], size) for axis, size in enumerate(sizes)]
    return cast(xp, xp.stack(squeezed, axis=-1), dtype)


def log_cpb(
    q_coordinates: Array, k_coordinates: Array, w1: Array, b1: Array, w2: Array, /, *, window: Sequence[int]
) -> Array:
    r"""Let a small network turn the squeezed offset in an image into a bias.

    .. math:: \text{bias}_{ij} = 16 \, \sigma\big( \max(u_{ij} w_1 + b_1, 0) \, w_2 \big)

    Parameters
    ----------
    q_coordinates : integer array of shape (..., n, 2)
        Row and column of each query.
    k_coordinates : integer array of shape (..., m, 2)
        Row and column of each key.
    w1 : array of shape (..., 2, h)
        First layer of the network: a row for the offset of rows, a row for the offset of columns.
    b1 : array of shape (..., h)
        First layer: what is added.
    w2 : array of shape (..., h, H)
        Second layer, one column for each head.
    window : sequence of two int
        Height and width of the window that the network was trained with. The places may lie farther apart.

    Returns
    -------
    array of shape (..., H, n, m)
        The bias, between 0 and 16, in the common dtype of the weights.

    Raises
    ------
    ValueError
        If coordinates do not have the shape (..., 2), if `w1` does not have two rows, if `w1`, `b1` and `w2` differ in
        the number of units, if the leading axes do not broadcast, or if `window` does not hold two positive numbers.
    TypeError
        If coordinates are not arrays of signed integers, if a weight is not an array of numbers, if two array libraries
        are mixed, or if `window` does not hold integers.

    See Also
    --------
    log_cpb_coordinates : The offsets as the network sees them.
    bucket_bias : A table in place of the network.

    Notes
    -----
    Slot : bias
    Changes : the bias is a function of the offset, so a model can be run with larger windows.
    Cost : O(n m h H) time, O(n m (h + H)) memory; from a table of all offsets, O(M_y M_x h H) time and O(H n m).
    Empty row : decided by mask and normalizer.
    Promises : prefix stable
    Equals : ``bucket_bias`` of the network's numbers for all offsets, with ``swin_index``; no bias when the second
        layer is zero, after a softmax.
    Year : 2021
    Source : Liu et al., 2021, Swin Transformer V2, section 3.3, arXiv 2111.09883; the factor 16 and the sigmoid from
        the released code.
    Other names : log-CPB, log-spaced continuous position bias, continuous relative position bias, SwinV2 position bias

    It is added to cosine scores that were multiplied by a learned number.

    References
    ----------
    Z. Liu et al., Swin Transformer V2: Scaling Up Capacity and Resolution, CVPR 2022.

    Examples
    --------
    >>> import numpy as np
    >>> places = np.array([[0, 0], [0, 1]])
    >>> log_cpb(places, places, np.ones((2, 1)), np.zeros(1), np.zeros((1, 1)), window=(2, 2))
    array([[[8., 8.],
            [8., 8.]]])
    """
    sizes = _window(window)
    library(q_coordinates=q_coordinates, w1=w1)
    xp, dtype, (w1, b1, w2) = promote(w1=w1, b1=b1, w2=w2)
    _, *offsets = _offsets(q_coordinates, k_coordinates)
    check_axes("2 h", w1=w1)
    check_axes("h", b1=b1)
    check_axes("h H", w2=w2)
    if w1.shape[-2] != 2:
        raise ValueError(f"w1 has shape {tuple(w1.shape)}; it must have two rows, for rows and for columns")
    check_equal("units", -1, w1=w1, b1=b1)
    check_equal("units", -1, w1=w1, w2=w2.mT)
    broadcast_batch(2, q_coordinates=q_coordinates, k_coordinates=k_coordinates, w1=w1, b1=b1[..., None], w2=w2)
    units = b1[..., None, None, :]
    for axis, (offset, size) in enumerate(zip(offsets, sizes, strict=True)):
        u = _squeeze(xp, cast(xp, offset, w1.dtype), size)
        units = units + u[..., None] * w1[..., None, None, axis, :]
    z = xp.where(units > 0, units, 0.0) @ w2[..., None, :, :]
    return cast(xp, 16 * xp.moveaxis(sigmoid(z), -1, -3), dtype)


def _starts(exact: int, steps: int, max_distance: int) -> list[int]:
    """Return the smallest r with (r / E)^K >= (D / E)^t for t = 1, ..., K - 1, found with whole numbers."""
    starts = []
    for t in range(1, steps):
        least = exact ** (steps - t) * max_distance**t
        low, high = exact, max_distance
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if middle**steps >= least else (middle + 1, high)
        starts.append(low)
    return starts


def _window(window: Sequence[int]) -> tuple[int, int]:
    if not isinstance(window, Sequence) or len(window) != 2:
        raise ValueError(f"window is {window!r}; it must hold two numbers, a height and a width")
    height, width = window
    return positive_integer("window", height), positive_integer("window", width)


def _check_places(axes: str, **arrays: Array) -> None:
    """Raise unless each array has these axes, the last of which holds a row and a column."""
    check_axes(axes, **arrays)
    for name, x in arrays.items():
        if x.shape[-1] != 2:
            raise ValueError(f"{name} has shape {tuple(x.shape)}; the last axis must hold a row and a column")


def _offsets(q_coordinates: Array, k_coordinates: Array) -> tuple[Any, Array, Array]:
    """Return the library and, for each pair, by how many rows and by how many columns the query is ahead."""
    xp, _ = integers(q_coordinates=q_coordinates, k_coordinates=k_coordinates)
    _check_places("n 2", q_coordinates=q_coordinates, k_coordinates=k_coordinates)
    pairs = [integer_pairs(q=q_coordinates[..., axis], k=k_coordinates[..., axis]) for axis in (0, 1)]
    return xp, *(query - key for query, key in pairs)


def _squeeze(xp: Any, offset: Array, size: int) -> Array:
    far = xp.log1p(8 * xp.abs(offset) / max(size - 1, 1)) / math.log(8)
    return xp.sign(offset) * far
