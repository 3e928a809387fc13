"""The functions of the family normalizers, as the properties see them."""

import numpy as np

from softlookup import normalizers
from subjects.base import ROWS, WEIGHTS, Subject, draw_scores, normal


def draw_noisy_scores(rng, n, m):
    return draw_scores(rng, n, m) | normal(rng, noise=(n, m))


NOISY = {
    "keys": ROWS["keys"] | {"noise": -1},
    "queries": ROWS["queries"] | {"noise": -2},
    **WEIGHTS,
    "mask": "allowed",
    "shifted": "s",
    "factory": ("s", "allowed"),
}


def draw_sink(rng, n, m):
    return draw_scores(rng, n, m) | normal(rng, sink=(n,))


SINK = {"keys": ROWS["keys"], "queries": ROWS["queries"] | {"sink": -1}, "mask": "allowed", "shifted": "s"}


def draw_gradient(rng, n, m):
    return draw_scores(rng, n, m) | normal(rng, g=(n, m))


ALPHA = {"mask": "allowed", "needed": {"alpha": 1.25}, "options": {"alpha": [1.25, 1.75]}}


POINTWISE = {**ROWS, **WEIGHTS, "mask": "allowed", "shifted": "s", "options": {"length": [1.0, 2.5]}}


SUBJECTS = {
    "normalizers.sigmoid": Subject(normalizers.sigmoid, draw_scores, **POINTWISE),
    "normalizers.sigmoid_vjp": Subject(
        normalizers.sigmoid_vjp, lambda rng, n, m: draw_scores(rng, n, m) | normal(rng, g=(n, m)), **POINTWISE
    ),
    "normalizers.relu": Subject(normalizers.relu, draw_scores, **POINTWISE),
    "normalizers.squared_relu": Subject(normalizers.squared_relu, draw_scores, **POINTWISE),
    "normalizers.silu": Subject(normalizers.silu, draw_scores, **POINTWISE),
    "normalizers.softmax_plus_one": Subject(
        normalizers.softmax_plus_one,
        draw_scores,
        **ROWS,
        **WEIGHTS,
        mask="allowed",
        shifted="s",
        options={"extra": [1.0, 2.5]},
    ),
    "normalizers.sink_softmax": Subject(
        normalizers.sink_softmax, draw_sink, **SINK, **WEIGHTS, factory=("s", "allowed")
    ),
    "normalizers.sink_softmax_vjp": Subject(
        normalizers.sink_softmax_vjp,
        lambda rng, n, m: draw_sink(rng, n, m) | normal(rng, g=(n, m)),
        **SINK,
        keys_out=(-1, None),
        queries_out=(-2, -1),
    ),
    "normalizers.softpick": Subject(normalizers.softpick, draw_scores, **ROWS, **WEIGHTS, mask="allowed", shifted="s"),
    "normalizers.sparsemax": Subject(
        normalizers.sparsemax, draw_scores, **ROWS, **WEIGHTS, mask="allowed", shifted="s"
    ),
    "normalizers.sparsemax_vjp": Subject(
        normalizers.sparsemax_vjp, draw_gradient, **ROWS, **WEIGHTS, mask="allowed", shifted="s"
    ),
    "normalizers.entmax15": Subject(normalizers.entmax15, draw_scores, **ROWS, **WEIGHTS, mask="allowed", shifted="s"),
    "normalizers.entmax": Subject(
        normalizers.entmax, draw_scores, **ROWS, **WEIGHTS, **ALPHA, shifted="s", factory=("s", "allowed")
    ),
    "normalizers.entmax_vjp": Subject(
        normalizers.entmax_vjp,
        draw_gradient,
        **ROWS,
        **WEIGHTS,
        **ALPHA | {"needed": {"alpha": 1.0}},  # a search compiles slowly, and `entmax` has it; zeros: `sparsemax_vjp`
        shifted="s",
    ),
    "normalizers.append_item": Subject(
        normalizers.append_item,
        lambda rng, n, m: normal(rng, k=(m, 3), v=(m, 2), key=(3,), value=(2,)),
    ),
    "normalizers.stick_breaking": Subject(
        normalizers.stick_breaking, draw_scores, **ROWS, **WEIGHTS, mask="allowed", shifted="s"
    ),
    "normalizers.stick_remainder": Subject(
        normalizers.stick_remainder, draw_scores, **ROWS, queries_out=(-1,), mask="allowed", shifted="s"
    ),
    "normalizers.gumbel_noise": Subject(
        normalizers.gumbel_noise,
        lambda rng, n, m: {"u": np.asarray(rng.uniform(0.1, 0.9, size=(n, m)))},
        {"u": -1},
        {"u": -2},
        **WEIGHTS,
    ),
    "normalizers.gumbel_softmax": Subject(
        normalizers.gumbel_softmax, draw_noisy_scores, **NOISY, options={"temperature": [1.0, 0.5]}
    ),
    "normalizers.straight_through": Subject(
        normalizers.straight_through, draw_noisy_scores, **NOISY, options={"temperature": [1.0, 0.5]}
    ),
    "normalizers.sinkhorn": Subject(
        normalizers.sinkhorn,
        draw_scores,
        **ROWS,
        **WEIGHTS,
        mask="allowed",
        shifted="s",
        options={"steps": [2, 1]},
        needed={"steps": 1},
        factory=("s", "allowed"),
    ),
    "normalizers.softmax_over_queries": Subject(
        normalizers.softmax_over_queries, draw_scores, **ROWS, **WEIGHTS, mask="allowed", shifted="s"
    ),
}
