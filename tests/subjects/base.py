"""How a public function is called, and along which axes of its arguments and results queries and keys run."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np


@dataclass(frozen=True, eq=False)
class Subject:
    """A public function as the properties see it.

    `draw(rng, n, m)` gives NumPy arrays by argument name. `keys` and `queries` give the axis of each argument along
    which keys and queries run, `keys_out` and `queries_out` those of each result (None: it has no such axis).
    """

    function: Callable
    draw: Callable
    keys: dict = field(default_factory=dict)
    queries: dict = field(default_factory=dict)
    keys_out: tuple = (None,)
    queries_out: tuple = (None,)
    values: str | None = None
    mask: str | None = None
    shifted: str | None = None
    options: dict = field(default_factory=dict)
    needed: dict = field(default_factory=dict)
    factory: tuple = ()
    boolean: bool = False
    whole: bool = False
    log_total: Callable | None = None
    numpy_only: bool = False

    def __call__(self, **given):
        """Call the function; the result is always a tuple of arrays."""
        given = self.needed | given
        last = [given.pop(name) for name in self.factory if name in given]
        positional = [p.name for p in self.parameters if p.kind is p.POSITIONAL_ONLY]
        arguments = [given.pop(name) for name in positional if name in given]
        arguments += [x for p in self.parameters if p.kind is p.VAR_POSITIONAL for x in given.pop(p.name)]
        out = self.function(*arguments, **given)
        out = out(*last) if self.factory else out
        return tuple(a for a in out if a is not None) if isinstance(out, tuple) else (out,)

    def dtype(self, computed):
        """The dtype of the results of a call in which numbers are of the dtype `computed`."""
        return "bool" if self.boolean else "int64" if self.whole else computed

    @property
    def parameters(self):
        return list(inspect.signature(self.function).parameters.values())

    def arrays(self, seed=0, n=4, m=5):
        return self.draw(np.random.default_rng(seed), n, m)

    def without_options(self, arrays):
        """The arrays that the function cannot do without."""
        left_out = {p.name for p in self.parameters if p.default is None}
        return {name: a for name, a in arrays.items() if name not in left_out}


def normal(rng, **shapes):
    return {name: np.asarray(rng.normal(size=shape)) for name, shape in shapes.items()}


def readable(rng, n, m):
    """A random mask in which every query reads at least one key, if there is one."""
    mask = rng.random((n, m)) < 0.6
    mask[:, :1] |= ~mask.any(-1, keepdims=True)
    return mask


def draw_scores(rng, n, m, **more):
    return normal(rng, s=(n, m), **dict.fromkeys(more, (n, m))) | {"allowed": readable(rng, n, m)}


def draw_sums(rng, n, m):
    w = draw_weights(rng, n, m)["w"]
    return {"w": w * rng.choice([1.0, 1.25], size=(n, 1))}


def draw_weights(rng, n, m):
    allowed = readable(rng, n, m)
    w = np.where(allowed, rng.random((n, m)) + 0.1, 0.0)
    return {"w": w / w.sum(-1, keepdims=True), "v": rng.normal(size=(m, 2)), "allowed": allowed}


def draw_pairs(rng, n, m):
    return normal(rng, q=(n, 3), k=(m, 3)) | {"mask": readable(rng, n, m)}


def draw_points(rng, n, m):
    return draw_pairs(rng, n, m) | normal(rng, v=(m, 2))


def draw_heads(rng, n, m):
    return normal(rng, q=(4, n, 3), k=(2, m, 3), bias=(4, n, m)) | {"mask": readable(rng, n, m)[None]}


def draw_attention(rng, n, m):
    return draw_heads(rng, n, m) | normal(rng, v=(2, m, 2))


def without(draw, *names):
    return lambda rng, n, m: {name: a for name, a in draw(rng, n, m).items() if name not in names}


PAIR = {"keys": {"q": None, "k": -2, "v": -2, "mask": -1, "bias": -1}, "queries": {"q": -2, "mask": -2, "bias": -2}}
ROWS = {
    "keys": dict.fromkeys(("s", "g", "w", "allowed"), -1) | {"v": -2},
    "queries": dict.fromkeys(("s", "g", "w", "allowed"), -2),
}
WEIGHTS = {"keys_out": (-1,), "queries_out": (-2,)}
