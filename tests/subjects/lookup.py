"""The functions of the family lookup, as the properties see them."""

import functools

import numpy as np

from softlookup import lookup
from subjects.base import (
    PAIR,
    ROWS,
    WEIGHTS,
    Subject,
    draw_attention,
    draw_heads,
    draw_pairs,
    draw_points,
    draw_scores,
    draw_sums,
    draw_weights,
    normal,
    without,
)

SCORES = [lookup.scaled_dot(), lookup.scaled_dot(scale=0.2, cap=1.0)]


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
        factory=("q", "k"),
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
        factory=("q", "k"),
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
