"""The functions of the family scores, as the properties see them."""

import functools

from softlookup import scores
from softlookup.lookup import gaussian_score, scaled_dot
from subjects.base import PAIR, ROWS, WEIGHTS, Subject, draw_pairs, draw_scores, normal, without

SCORES = [scaled_dot(), gaussian_score()]


def draw_pairs_of_scores(rng, n, m, **more):
    return without(functools.partial(draw_scores, **more), "allowed")(rng, n, m)


def draw_scaled_pairs(rng, n, m):
    return without(draw_pairs, "mask")(rng, n, m) | normal(rng, factor=(n,))


SUBJECTS = {
    "scores.row_scaled": Subject(
        scores.row_scaled,
        draw_scaled_pairs,
        PAIR["keys"],
        PAIR["queries"] | {"factor": -1},
        **WEIGHTS,
        options={"score": SCORES},
        factory=("q", "k"),
    ),
    "scores.log_length": Subject(
        scores.log_length,
        lambda rng, n, m: {"visible": rng.integers(2, 40, size=n).astype(float)},
        queries={"visible": -1},
        queries_out=(-1,),
        options={"trained": [64.0, 8.0]},
        needed={"trained": 64.0},
    ),
    "scores.position_temperature": Subject(
        scores.position_temperature,
        lambda rng, n, m: {"positions": rng.integers(0, 40, size=n).astype(float)},
        queries={"positions": -1},
        queries_out=(-1,),
        options={"step": [4.0, 8.0], "strength": [0.5, 1.0]},
        needed={"step": 4.0, "strength": 0.5},
    ),
    "scores.scalable_softmax": Subject(
        scores.scalable_softmax,
        lambda rng, n, m: draw_scores(rng, n, m) | normal(rng, p=(n,)),
        ROWS["keys"],
        ROWS["queries"] | {"p": -1},
        **WEIGHTS,
        mask="allowed",
        shifted="s",
        options={"shift": [0.0, 0.5]},
        factory=("s", "allowed"),
    ),
    "scores.softcap": Subject(
        scores.softcap,
        draw_pairs_of_scores,
        **ROWS,
        **WEIGHTS,
        options={"cap": [2.0, 0.5]},
        needed={"cap": 2.0},
    ),
    "scores.softcap_vjp": Subject(
        scores.softcap_vjp,
        functools.partial(draw_pairs_of_scores, g=None),
        **ROWS,
        **WEIGHTS,
        options={"cap": [2.0, 0.5]},
        needed={"cap": 2.0},
    ),
    "scores.capped": Subject(
        scores.capped,
        without(draw_pairs, "mask"),
        **PAIR,
        **WEIGHTS,
        options={"score": SCORES, "cap": [2.0, 0.5]},
        needed={"score": SCORES[0], "cap": 2.0},
        factory=("q", "k"),
    ),
}
