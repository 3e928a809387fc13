"""What every family shares: the library and the dtypes of the arguments, hiding, distances, undoing a broadcast."""

import math
from collections.abc import Callable
from typing import Any

from array_api_compat import array_namespace, is_array_api_obj

Array = Any
"""An array of any library that follows the array API standard, such as NumPy, PyTorch or JAX."""

Score = Callable[[Array, Array], Array]
"""``score(q, k) -> s`` with ``q (..., n, d)``, ``k (..., m, d)`` and ``s (..., n, m)``."""

Normalizer = Callable[[Array, Array | None], Array]
"""``normalize(s, allowed) -> w`` along the last axis; ``allowed`` is None or boolean, True = may read."""


def library(**arrays: Array) -> Any:
    """Return the library that all of the arrays are of."""
    for name, x in arrays.items():
        if not is_array_api_obj(x):
            raise TypeError(f"{name} must be an array, not {type(x).__name__}")
    if len({array_namespace(x) for x in arrays.values()}) > 1:
        raise TypeError(f"{', '.join(arrays)} must be arrays of one library")
    return array_namespace(*arrays.values())


def promote(**arrays: Array | None) -> tuple[Any, Any, list[Array | None]]:
    """Return the library, the dtype of the result, and the arrays in the dtype to compute in.

    The dtype of the result is the common one; integers count as the library's default float. The dtype to compute in
    is that, but at least float32. An argument that is None stays None.
    """
    given = {name: x for name, x in arrays.items() if x is not None}
    xp = library(**given)
    dtype = xp.result_type(*(_float_dtype(xp, name, x) for name, x in given.items()))
    wide = xp.result_type(dtype, xp.float32)
    return xp, dtype, [x if x is None else cast(xp, x, wide) for x in arrays.values()]


def integers(**arrays: Array) -> tuple[Any, list[Array]]:
    """Return the library and the arrays of signed integers in one dtype, at least the default integer."""
    xp = library(**arrays)
    for name, x in arrays.items():
        if not xp.isdtype(x.dtype, "signed integer"):
            raise TypeError(f"{name} must hold signed integers, not {x.dtype}")
    dtype = xp.result_type(xp.arange(0).dtype, *(x.dtype for x in arrays.values()))
    return xp, [cast(xp, x, dtype) for x in arrays.values()]


def cast(xp: Any, x: Array, dtype: Any) -> Array:
    """Return `x` in `dtype`; a copy only if the dtype differs."""
    return xp.astype(x, dtype, copy=False)


def hide(xp: Any, x: Array, allowed: Array | None, fill: float) -> Array:
    """Return `x` with `fill` wherever it is not allowed; what was there reaches neither values nor gradients."""
    return x if allowed is None else xp.where(allowed, x, fill)


def hide_unread(xp: Any, x: Array, mask: Array | None) -> Array:
    """Return the items ``x (..., m, d)`` with zeros for those that no query of ``mask (..., n, m)`` may read."""
    return x if mask is None else xp.where(xp.any(mask, axis=-2)[..., None], x, 0.0)


def row_max(xp: Any, s: Array) -> Array:
    """Return the maximum of each row of ``s (..., m)`` as ``(..., 1)``; minus infinity where there is no item."""
    if s.shape[-1] == 0:
        return xp.sum(s, axis=-1, keepdims=True) - math.inf
    return xp.max(s, axis=-1, keepdims=True)


def share_infinite(xp: Any, s: Array, top: Array) -> Array:
    """Return the scores; where their maximum `top` is plus infinity, only the infinite ones count, and equally."""
    return xp.where(s == math.inf, 0.0, xp.where(top == math.inf, -math.inf, s))


def below_top(xp: Any, s: Array, top: Array) -> Array:
    """Return the scores minus their maximum `top`, with zero for each score of plus infinity."""
    return share_infinite(xp, s, top) - xp.where(xp.isinf(top), 0.0, top)


def inverse_root(width: int) -> float:
    """Return the usual scale of a dot product of this width; without columns it is one."""
    return 1 / math.sqrt(max(width, 1))


def squared_distance(xp: Any, q: Array, k: Array) -> Array:
    """Return the squared Euclidean distance of every ``q (..., n, d)`` to every ``k (..., m, d)``: ``(..., n, m)``."""
    return xp.sum((q[..., :, None, :] - k[..., None, :, :]) ** 2, axis=-1)


def distance(xp: Any, q: Array, k: Array) -> Array:
    """Return the Euclidean distance; at zero its gradient is zero, where that of the bare root is NaN."""
    square = squared_distance(xp, q, k)
    return xp.where(square == 0, 0.0, xp.sqrt(xp.where(square == 0, 1.0, square)))


def unit(xp: Any, x: Array) -> Array:
    """Return each row of ``x (..., d)`` with the length one; a row of zeros stays, and has the gradient zero."""
    top = row_max(xp, xp.abs(x))
    x = x / xp.where(top > 0, top, 1.0)  # the squares below neither overflow nor vanish
    square = xp.sum(x**2, axis=-1, keepdims=True)
    return xp.where(square == 0, 0.0, x / xp.sqrt(xp.where(square == 0, 1.0, square)))


def table_rows(xp: Any, name: str, table: Array, index: Array) -> Array:
    """Return the rows ``table (..., r, d)`` at ``index (..., n)`` as ``(..., n, d)``; NaN where it has no such row."""
    if table.shape[-2] == 0:
        raise ValueError(f"{name} has nothing to look up; it must not be empty")
    index, axes = index[..., None], max(table.ndim, index.ndim + 1)
    table, index = (x[(None,) * (axes - x.ndim) + (...,)] for x in (table, index))
    rows = xp.take_along_axis(table, xp.clip(index, 0, table.shape[-2] - 1), axis=-2)
    return hide(xp, rows, (index >= 0) & (index < table.shape[-2]), math.nan)


def sum_to_shape(xp: Any, x: Array, shape: tuple[int, ...]) -> Array:
    """Return `x` summed over the axes along which an array of `shape` was broadcast to it."""
    x = xp.sum(x, axis=tuple(range(x.ndim - len(shape))))
    stretched = tuple(i for i, size in enumerate(shape) if size != x.shape[i])
    return xp.sum(x, axis=stretched, keepdims=True)


def _float_dtype(xp: Any, name: str, x: Array) -> Any:
    if xp.isdtype(x.dtype, "real floating"):
        return x.dtype
    if xp.isdtype(x.dtype, "integral"):
        return xp.asarray(0.0).dtype
    raise TypeError(f"{name} must hold real numbers, not {x.dtype}")
