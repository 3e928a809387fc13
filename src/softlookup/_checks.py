"""Checks of arguments: an error names the argument, what it has, and the rule. Values of arrays are never read."""

import math
import numbers
import operator
from typing import Any

import numpy as np
from array_api_compat import array_namespace, is_array_api_obj

from softlookup._arrays import Array, hide, integers


def check_axes(axes: str, /, **arrays: Array) -> None:
    """Raise unless each array has the axes that are named, as in ``check_axes("n d", q=q)``, or more before them."""
    for name, x in arrays.items():
        if x.ndim <= axes.count(" "):
            raise ValueError(f"{name} has shape {tuple(x.shape)}; it needs the axes (..., {axes.replace(' ', ', ')})")


def check_equal(what: str, axis: int, /, **arrays: Array) -> None:
    """Raise unless two arrays have the same size along `axis`, which counts `what`."""
    (a, x), (b, y) = arrays.items()
    if x.shape[axis] != y.shape[axis]:
        raise ValueError(f"{a} has {x.shape[axis]} {what}, {b} has {y.shape[axis]}; they must be equal")


def check_shape(name: str, x: Array, shape: tuple[int, ...]) -> None:
    """Raise unless `x` has exactly `shape`."""
    if tuple(x.shape) != shape:
        raise ValueError(f"{name} has shape {tuple(x.shape)}; it must be {tuple(shape)}")


def check_broadcast(name: str, x: Array, shape: tuple[int, ...]) -> None:
    """Raise unless `x` broadcasts to `shape` without enlarging it."""
    try:
        fits = np.broadcast_shapes(tuple(x.shape), shape) == shape
    except ValueError:
        fits = False
    if not fits:
        raise ValueError(f"{name} has shape {tuple(x.shape)}, which does not broadcast to {tuple(shape)}")


def broadcast_batch(axes: int, /, **arrays: Array) -> tuple[int, ...]:
    """Return the common shape, by NumPy's rule, of what stands before the last `axes` axes of the arrays."""
    batches = {name: tuple(x.shape[: max(x.ndim - axes, 0)]) for name, x in arrays.items()}
    try:
        return np.broadcast_shapes(*batches.values())
    except ValueError:
        shapes = ", ".join(f"{name} has {batch}" for name, batch in batches.items())
        raise ValueError(f"the leading axes do not broadcast: {shapes}") from None


def pair_shape(q: Array, k: Array) -> tuple[int, ...]:
    """Return the shape ``(..., n, m)`` of one number for each pair of a query and a key of the same width."""
    check_axes("n d", q=q)
    check_axes("m d", k=k)
    check_equal("columns", -1, q=q, k=k)
    return (*broadcast_batch(2, q=q, k=k), q.shape[-2], k.shape[-2])


def check_projects(**arrays: Array) -> None:
    """Raise unless the second array, a matrix ``(..., d, h)``, can multiply the rows of the first, ``(..., n, d)``."""
    (a, x), (b, w) = arrays.items()
    check_axes("n d", **{a: x})
    check_axes("d h", **{b: w})
    if w.shape[-2] != x.shape[-1]:
        raise ValueError(f"{b} has {w.shape[-2]} rows, {a} has {x.shape[-1]} columns; they must be equal")
    broadcast_batch(2, **arrays)


def group_size(name: str, x: Array, heads: int, what: str) -> int:
    """Return how many of the `heads` share one head of ``x (..., H, m, d)``; `what` says whose heads they are."""
    if x.shape[-3] == 0 or heads % x.shape[-3]:
        raise ValueError(f"{name} has {x.shape[-3]} heads, which does not divide {what}")
    return heads // x.shape[-3]


def check_items(k: Array, v: Array) -> None:
    """Raise unless there is one value for each key."""
    check_axes("m d", k=k)
    check_axes("m e", v=v)
    check_equal("items", -2, k=k, v=v)


def allowed_pairs(xp: Any, name: str, allowed: Array | None, shape: tuple[int, ...]) -> Array | None:
    """Return `allowed` broadcast to `shape`; it must be None or a boolean array of the library `xp`."""
    if allowed is None:
        return None
    if not is_array_api_obj(allowed) or array_namespace(allowed) is not xp:
        raise TypeError(f"{name} must be a boolean array of the other arguments' library, not {type(allowed).__name__}")
    if not xp.isdtype(allowed.dtype, "bool"):
        raise TypeError(f"{name} must be boolean (True = may read), not {allowed.dtype}; numbers to add go into bias")
    check_broadcast(name, allowed, shape)
    return xp.broadcast_to(allowed, shape)


def readable_scores(xp: Any, s: Array, allowed: Array | None, fill: float) -> Array:
    """Return the scores ``s (..., m)`` with `fill` wherever they may not be read."""
    check_axes("m", s=s)
    return hide(xp, s, allowed_pairs(xp, "allowed", allowed, s.shape), fill)


def check_callable(what: str, /, **functions: Any) -> None:
    """Raise unless each argument can be called; `what` says what it must be."""
    for name, function in functions.items():
        if not callable(function):
            raise TypeError(f"{name} must be {what}, not {type(function).__name__}")


def integer_pairs(**arrays: Array) -> tuple[Array, Array]:
    """Return integer arrays ``(..., n)`` and ``(..., m)`` as ``(..., n, 1)`` and ``(..., 1, m)``, to compare pairs."""
    _, (rows, columns) = integers(**arrays)
    check_axes("n", **arrays)
    broadcast_batch(1, **arrays)
    return rows[..., :, None], columns[..., None, :]


def finite(name: str, value: float) -> float:
    """Return `value` as a Python float; it must be a finite number."""
    if not isinstance(value, numbers.Real):
        raise TypeError(f"{name} must be a number, not {type(value).__name__}")
    if not math.isfinite(value):
        raise ValueError(f"{name} is {value}; it must be finite")
    return float(value)


def positive(name: str, value: float, hint: str = "") -> float:
    """Return `value` as a Python float; it must be a finite number greater than zero."""
    if finite(name, value) <= 0:
        raise ValueError(f"{name} is {value}; it must be positive{hint}")
    return float(value)


def integer(name: str, value: int) -> int:
    """Return `value` as a Python int; it must be an integer."""
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be an integer, not {type(value).__name__}") from None


def natural(name: str, value: int, hint: str = "") -> int:
    """Return `value` as a Python int; it must be an integer that is not negative."""
    number = integer(name, value)
    if number < 0:
        raise ValueError(f"{name} is {value}; it must not be negative{hint}")
    return number


def positive_integer(name: str, value: int) -> int:
    """Return `value` as a Python int; it must be an integer greater than zero."""
    number = integer(name, value)
    if number < 1:
        raise ValueError(f"{name} is {value}; it must be positive")
    return number
