"""How each public function is called, and along which axes of its arguments and results queries and keys run."""

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from softlookup import lookup


@dataclass(frozen=True)
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
    factory: bool = False
    boolean: bool = False
    log_total: Callable | None = None

    def __call__(self, **given):
        """Call the function; the result is always a tuple of arrays."""
        given = self.needed | given
        if self.factory:
            q, k = given.pop("q"), given.pop("k")
            return (self.function(**given)(q, k),)
        positional = [p.name for p in self.parameters if p.kind is p.POSITIONAL_ONLY]
        arguments = [given.pop(name) for name in positional if name in given]
        out = self.function(*arguments, **given)
        return tuple(a for a in out if a is not None) if isinstance(out, tuple) else (out,)

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
SCORES = [lookup.scaled_dot(), lookup.scaled_dot(scale=0.2, cap=1.0)]

WEIGHTS = {"keys_out": (-1,), "queries_out": (-2,)}


def cold_softmax(s, allowed=None, /):
    return lookup.softmax(s, allowed, temperature=0.5)


cold_softmax.vjp = functools.partial(lookup.softmax_vjp, temperature=0.5)


def total_of_scores(s, allowed):
    return lookup.log_sum_exp(s, allowed)


def total_of_attention(q, k, mask, bias, **_):
    return lookup.log_sum_exp(lookup.attention_scores(q, k, bias=bias), mask)


def total_of_kernel(q, k, mask, **_):
    return lookup.log_sum_exp(lookup.gaussian_score()(q, k), mask)


def elementwise(kernel):
    return Subject(kernel, lambda rng, n, m: {"u": np.abs(rng.normal(size=(n, m)))}, {"u": -1}, {"u": -2}, (-1,), (-2,))


SUBJECTS = {
    "lookup.weighted_average": Subject(
        lookup.weighted_average, draw_weights, **ROWS, queries_out=(-2,), values="v", mask="allowed"
    ),
    "lookup.budget": Subject(lookup.budget, draw_sums, **ROWS, queries_out=(-1,)),
    "lookup.is_distribution": Subject(
        lookup.is_distribution,
        draw_sums,
        **ROWS,
        queries_out=(-1,),
        options={"tolerance": [1e-30, 0.5]},
        boolean=True,
    ),
    "lookup.softmax": Subject(
        lookup.softmax,
        draw_scores,
        **ROWS,
        **WEIGHTS,
        mask="allowed",
        shifted="s",
        options={"temperature": [1.0, 0.5]},
        log_total=total_of_scores,
    ),
    "lookup.log_sum_exp": Subject(
        lookup.log_sum_exp, draw_scores, **ROWS, queries_out=(-1,), mask="allowed", shifted="s"
    ),
    "lookup.entropy": Subject(lookup.entropy, without(draw_weights, "v", "allowed"), **ROWS, queries_out=(-1,)),
    "lookup.effective_items": Subject(
        lookup.effective_items, without(draw_weights, "v", "allowed"), **ROWS, queries_out=(-1,)
    ),
    "lookup.softmax_vjp": Subject(
        lookup.softmax_vjp,
        functools.partial(draw_scores, g=None),
        **ROWS,
        **WEIGHTS,
        mask="allowed",
        shifted="s",
        options={"temperature": [1.0, 0.5]},
    ),
    **{
        f"lookup.{kernel.__name__}": elementwise(kernel)
        for kernel in (
            lookup.gaussian,
            lookup.boxcar,
            lookup.triangular,
            lookup.epanechnikov,
            lookup.tricube,
            lookup.laplace,
            lookup.student_t,
            lookup.constant,
        )
    },
    "lookup.kernel_weights": Subject(
        lookup.kernel_weights,
        draw_pairs,
        **PAIR,
        **WEIGHTS,
        mask="mask",
        options={"kernel": [lookup.gaussian, lookup.laplace], "bandwidth": [1.0, 0.5]},
        log_total=total_of_kernel,
    ),
    "lookup.kernel_regression": Subject(
        lookup.kernel_regression,
        draw_points,
        **PAIR,
        queries_out=(-2,),
        values="v",
        mask="mask",
        options={"kernel": [lookup.gaussian, lookup.laplace], "bandwidth": [1.0, 0.5]},
        log_total=total_of_kernel,
    ),
    "lookup.gaussian_score": Subject(
        lookup.gaussian_score,
        without(draw_pairs, "mask"),
        **PAIR,
        **WEIGHTS,
        options={"bandwidth": [1.0, 0.5]},
        factory=True,
    ),
    "lookup.leave_one_out_error": Subject(
        lookup.leave_one_out_error,
        lambda rng, n, m: normal(rng, metric=(2, 3), x=(m, 3), y=(m, 2)),
        {"x": -2, "y": -2},
    ),
    "lookup.leave_one_out_error_vjp": Subject(
        lookup.leave_one_out_error_vjp,
        lambda rng, n, m: normal(rng, g=(), metric=(2, 3), x=(m, 3), y=(m, 2)),
        {"x": -2, "y": -2},
    ),
    "lookup.scaled_dot": Subject(
        lookup.scaled_dot,
        without(draw_pairs, "mask"),
        **PAIR,
        **WEIGHTS,
        options={"scale": [None, 1.0], "cap": [None, 1.0]},
        factory=True,
    ),
    "lookup.attention_scores": Subject(
        lookup.attention_scores,
        without(draw_heads, "mask"),
        **PAIR,
        **WEIGHTS,
        shifted="bias",
        options={"score": SCORES},
    ),
    "lookup.attention_weights": Subject(
        lookup.attention_weights,
        draw_heads,
        **PAIR,
        **WEIGHTS,
        mask="mask",
        shifted="bias",
        options={"score": SCORES, "normalize": [lookup.softmax, lookup.hardmax]},
        log_total=total_of_attention,
    ),
    "lookup.attention": Subject(
        lookup.attention,
        draw_attention,
        **PAIR,
        queries_out=(-2,),
        values="v",
        mask="mask",
        shifted="bias",
        options={"score": SCORES, "normalize": [lookup.softmax, lookup.hardmax]},
        log_total=total_of_attention,
    ),
    "lookup.attention_vjp": Subject(
        lookup.attention_vjp,
        lambda rng, n, m: draw_attention(rng, n, m) | normal(rng, g=(4, n, 2)),
        PAIR["keys"],
        PAIR["queries"] | {"g": -2},
        (None, -2, -2, -1),
        (-2, None, None, -2),
        mask="mask",
        shifted="bias",
        options={"score": SCORES, "normalize": [lookup.softmax, cold_softmax]},
    ),
    "lookup.hardmax": Subject(lookup.hardmax, draw_scores, **ROWS, **WEIGHTS, mask="allowed", shifted="s"),
    "lookup.hardmax_average": Subject(
        lookup.hardmax_average, draw_scores, **ROWS, **WEIGHTS, mask="allowed", shifted="s"
    ),
    "lookup.hard_lookup": Subject(
        lookup.hard_lookup,
        draw_attention,
        **PAIR,
        queries_out=(-2,),
        values="v",
        mask="mask",
        shifted="bias",
        options={"score": [lookup.scaled_dot(), lookup.scaled_dot(scale=-1.0)]},
    ),
    "lookup.nearest_neighbors": Subject(
        lookup.nearest_neighbors,
        draw_points,
        **PAIR,
        queries_out=(-2,),
        values="v",
        mask="mask",
        options={"neighbors": [2, 1]},
        needed={"neighbors": 2},
    ),
    "lookup.soft_nearest_neighbors": Subject(
        lookup.soft_nearest_neighbors,
        draw_points,
        **PAIR,
        queries_out=(-2,),
        values="v",
        mask="mask",
        options={"neighbors": [2, 1], "temperature": [0.5, 2.0]},
        needed={"neighbors": 2, "temperature": 0.5},
    ),
}
