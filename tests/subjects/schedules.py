"""The functions of the family schedules, as the properties see them."""

import numpy as np

from softlookup import lookup, schedules
from subjects.base import PAIR, ROWS, WEIGHTS, Subject, draw_attention, draw_scores, normal, readable


def draw_state(rng, n, m):
    """A state, and a block that is read into it."""
    state = normal(rng, top=(n,), blend=(n, 2)) | {"total": np.asarray(1 + rng.random(n))}
    return state | draw_scores(rng, n, m) | normal(rng, v=(m, 2))


def total_of_split(q, k, mask, bias, **_):
    return lookup.log_sum_exp(lookup.attention_scores(q, k, bias=bias), mask)


def draw_two_parts(rng, n, m, *more):
    shapes = {"out_a": (n, 2), "lse_a": (n,), "out_b": (n, 2), "lse_b": (n,)}
    return normal(rng, **{name: shapes["out_a" if "out" in name else "lse_a"] for name in (*more, *shapes)})


def draw_parts(rng, n, m):
    return normal(rng, outs=(3, n, 2), lses=(3, n))


def draw_shared_prefix(rng, n, m):
    shapes = {"q": (3, 4, n, 3), "k_prefix": (2, 3, 3), "v_prefix": (2, 3, 2), "k": (3, 2, m, 3), "v": (3, 2, m, 2)}
    return normal(rng, **shapes) | {"mask": readable(rng, n, m)[None, None]}


PARTS = {"g_out": -2, "g_lse": -1, "out_a": -2, "lse_a": -1, "out_b": -2, "lse_b": -1}
MERGING_SCORES = [lookup.scaled_dot(), lookup.scaled_dot(scale=0.2, cap=1.0)]
BLOCKS = {"options": {"block": [5, 8]}}  # each holds all keys, so that the sums have one order

SUBJECTS = {
    "schedules.online_softmax": Subject(
        schedules.online_softmax,
        draw_scores,
        **ROWS,
        **WEIGHTS,
        **BLOCKS,
        mask="allowed",
        shifted="s",
        log_total=lambda s, allowed: lookup.log_sum_exp(s, allowed),
    ),
    "schedules.online_log_sum_exp": Subject(
        schedules.online_log_sum_exp, draw_scores, **ROWS, **BLOCKS, queries_out=(-1,), mask="allowed", shifted="s"
    ),
    "schedules.online_attention": Subject(
        schedules.online_attention,
        draw_attention,
        **PAIR,
        queries_out=(-2,),
        values="v",
        mask="mask",
        shifted="bias",
        needed={"block": 2},
        options=BLOCKS["options"] | {"score": [lookup.scaled_dot(), lookup.scaled_dot(scale=0.2, cap=1.0)]},
        log_total=lambda q, k, mask, bias, **_: lookup.log_sum_exp(lookup.attention_scores(q, k, bias=bias), mask),
    ),
    "schedules.online_update": Subject(
        schedules.online_update,
        draw_state,
        {"s": -1, "v": -2, "allowed": -1},
        {"top": -1, "total": -1, "blend": -2, "s": -2, "v": None, "allowed": -2},
        keys_out=(None, None, None),
        queries_out=(-1, -1, -2),
        mask="allowed",
    ),
    "schedules.partial_attention": Subject(
        schedules.partial_attention,
        draw_attention,
        **PAIR,
        keys_out=(None, None),
        queries_out=(-2, -1),
        mask="mask",
        options={"score": MERGING_SCORES},
    ),
    "schedules.merge": Subject(
        schedules.merge, draw_two_parts, queries=PARTS, keys_out=(None, None), queries_out=(-2, -1)
    ),
    "schedules.merge_all": Subject(
        schedules.merge_all, draw_parts, queries={"outs": -2, "lses": -1}, keys_out=(None, None), queries_out=(-2, -1)
    ),
    "schedules.merge_vjp": Subject(
        schedules.merge_vjp,
        lambda rng, n, m: draw_two_parts(rng, n, m, "g_out", "g_lse"),
        queries=PARTS,
        keys_out=(None,) * 4,
        queries_out=(-2, -1, -2, -1),
    ),
    "schedules.split_attention": Subject(
        schedules.split_attention,
        draw_attention,
        **PAIR,
        queries_out=(-2,),
        values="v",
        mask="mask",
        shifted="bias",
        options={"score": MERGING_SCORES, "size": [2, 1]},
        needed={"size": 2},
        log_total=total_of_split,
    ),
    "schedules.shared_prefix_attention": Subject(
        schedules.shared_prefix_attention,
        draw_shared_prefix,
        keys={"k": -2, "v": -2, "mask": -1},
        queries={"q": -2, "mask": -2},
        queries_out=(-2,),
        mask="mask",
        options={"score": MERGING_SCORES},
    ),
}
