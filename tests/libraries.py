"""The array libraries that a test runs under, and a comparison that also looks at library, dtype and shape."""

import contextlib
import importlib
import importlib.util

import numpy as np

MODULES = {"array-api-strict": "array_api_strict", "torch": "torch", "jax": "jax", "jax-32bit": "jax"}
TOLERANCE = {"float64": 1e-12, "float32": 5e-6, "float16": 2e-3, "bfloat16": 1.6e-2}
NARROW = {"float64": "float32", "int64": "int32"}


def missing(name):
    """Why the library cannot be used here, or None when it can."""
    module = MODULES.get(name, "numpy")
    if importlib.util.find_spec(module) is not None:
        return None
    return f"{module} is not installed: it comes with the extra `{'test' if 'strict' in name else 'oracles'}`"


class Library:
    """One array library: makes arrays, reads them back and checks what a function returned."""

    def __init__(self, name):
        self.name = name
        self.module = importlib.import_module(MODULES.get(name, "numpy"))
        if name.startswith("jax"):
            self.module.config.update("jax_disable_most_optimizations", True)  # compiling is most of a small test
        self.wide = name != "jax-32bit"
        self.tolerance = 1e-11 if self.wide else 2e-5
        self.compiles = name.startswith("jax")
        self.narrow_dtypes = {"array-api-strict": (), "numpy": ("float16",), "numpy-readonly": ("float16",)}.get(
            name, ("float16", "bfloat16")
        )
        self.default_float = {"torch": "float32", "jax-32bit": "float32"}.get(name, "float64")
        self.array_types = {
            "torch": lambda: self.module.Tensor,
            "array-api-strict": lambda: type(self.module.asarray(0.0)),
            "jax": lambda: self.module.Array,
            "jax-32bit": lambda: self.module.Array,
        }.get(name, lambda: (np.ndarray, np.generic))()

    def __repr__(self):
        return self.name

    def active(self):
        """The context in which the library's arrays have the widths that its name says."""
        return self.module.enable_x64(self.wide) if self.compiles else contextlib.nullcontext()

    def some(self, sizes):
        """All of `sizes`, or those with at most one zero and with only zeros where every new shape is compiled anew."""
        return [s for s in sizes if not self.compiles or s.count(0) in (0, 1, len(s))]

    def dtype(self, name):
        """The name of the dtype that an array asked for as `name` gets."""
        return name if self.wide else NARROW.get(name, name)

    def asarray(self, values, dtype="float64"):
        """An array of this library from nested lists or a NumPy array."""
        host = np.array(values, dtype=bool if dtype == "bool" else np.float64)
        dtype = self.dtype(dtype)
        if self.name == "torch":
            return self.module.tensor(host.tolist(), dtype=getattr(self.module, dtype)).reshape(host.shape)
        if self.compiles:
            return self.module.numpy.asarray(host, dtype=dtype)
        if self.name == "array-api-strict":
            return self.module.asarray(host.astype(dtype))
        host = host.astype(dtype)
        host.flags.writeable = self.name != "numpy-readonly"
        return host

    def arrays(self, values, dtype="float64"):
        """The same for a dictionary; masks and integers stay what they are, and so does what is not an array."""
        kept = {"b": "bool", "i": "int64"}
        return {
            name: self.asarray(a, kept.get(a.dtype.kind, dtype)) if isinstance(a, np.ndarray) else a
            for name, a in values.items()
        }

    def numpy(self, array):
        """A NumPy copy: booleans and integers as they are, floating point numbers in double precision."""
        if self.name == "torch":
            array = array.detach()
            array = (array.double() if array.is_floating_point() else array).numpy()
        array = np.array(array)
        return array if array.dtype.kind in "biu" else array.astype(np.float64)

    def dtype_of(self, array):
        return str(array.dtype).rpartition(".")[2]

    def check(self, actual, expected, *, dtype="float64", tolerance=None):
        """Assert that `actual` is an array of this library with the dtype, shape and numbers expected."""
        dtype = self.dtype(dtype)
        expected = np.asarray(expected)
        assert isinstance(actual, self.array_types), f"{type(actual)} is no array of {self.name}"
        assert self.dtype_of(actual) == dtype, f"dtype {self.dtype_of(actual)}, expected {dtype}"
        assert tuple(actual.shape) == expected.shape, f"shape {tuple(actual.shape)}, expected {expected.shape}"
        if dtype not in TOLERANCE:
            np.testing.assert_array_equal(self.numpy(actual), expected)
            return
        tolerance = max(TOLERANCE[dtype], tolerance or 0.0) if tolerance != 0 else 0
        np.testing.assert_allclose(self.numpy(actual), expected, rtol=tolerance, atol=tolerance)

    def quick(self, function):
        """The function, compiled in one piece where otherwise every operation is compiled on its own."""
        return self.module.jit(function) if self.compiles else function

    def vjp(self, function, g, *arrays):
        """Gradients of `sum(g * function(*arrays))` by the library's own automatic differentiation."""
        if self.name == "torch":
            leaves = [a.detach().clone().requires_grad_(True) for a in arrays]
            out = function(*leaves)
            return self.module.autograd.grad(out, leaves, g, materialize_grads=True)
        return self.module.jit(lambda g, arrays: self.module.vjp(function, *arrays)[1](g))(g, arrays)


def finite_differences(function, g, *arrays, step=1e-5):
    """Central differences of `sum(g * function(*arrays))` with respect to each NumPy array."""
    gradients = []
    for i, array in enumerate(arrays):
        gradient = np.zeros(array.shape)
        for index in np.ndindex(array.shape):
            ends = []
            for sign in (1, -1):
                moved = array.copy()
                moved[index] += sign * step
                ends.append(np.sum(g * function(*arrays[:i], moved, *arrays[i + 1 :])))
            gradient[index] = (ends[0] - ends[1]) / (2 * step)
        gradients.append(gradient)
    return gradients
