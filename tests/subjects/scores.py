"""The functions of the family scores, as the properties see them."""

import functools

from softlookup import scores
from softlookup.lookup import gaussian_score, scaled_dot
from subjects.base import PAIR, ROWS, WEIGHTS, Subject, draw_pairs, draw_scores, normal, without

SCORES = [scaled_dot(), gaussian_score()]
NORMS = [scores.unit_norm, scores.rms_norm]


def draw_pairs_of_scores(rng, n, m, **more):
    return without(functools.partial(draw_scores, **more), "allowed")(rng, n, m)


def draw_scaled_pairs(rng, n, m):
    return without(draw_pairs, "mask")(rng, n, m) | normal(rng, factor=(n,))


def draw_hidden(rng, n, m, **more):
    return normal(rng, q=(n, 3), k=(m, 2), w=(3, 4), u=(2, 4), **more)


def draw_vectors(rng, n, m, **more):
    return normal(rng, x=(2, n, 3), weight=(2, 1, 3), **more)


PAIR_SCORE = {"keys": {"k": -2}, "queries": {"q": -2}, "factory": ("q", "k")} | WEIGHTS
VECTORS = {"queries": {"x": -2}, "queries_out": (-2,)}


SUBJECTS = {
    "scores.bilinear": Subject(
        scores.bilinear, lambda rng, n, m: normal(rng, q=(n, 3), k=(m, 2), w=(3, 2)), **PAIR_SCORE
    ),
    "scores.low_rank_bilinear": Subject(
        scores.low_rank_bilinear, lambda rng, n, m: normal(rng, q=(n, 3), k=(m, 2), u=(3, 4), v=(2, 4)), **PAIR_SCORE
    ),
    "scores.cosine": Subject(
        scores.cosine,
        lambda rng, n, m: normal(rng, q=(n, 3), k=(m, 3)) | {"temperature": rng.uniform(0.5, 2, size=n)},
        **PAIR_SCORE | {"queries": {"q": -2, "temperature": -1}},
    ),
    "scores.l2_distance": Subject(
        scores.l2_distance, without(draw_pairs, "mask"), **PAIR_SCORE, options={"scale": [None, 1.0]}
    ),
    "scores.distance_as_dot": Subject(
        scores.distance_as_dot, without(draw_pairs, "mask"), **PAIR, keys_out=(None, -2), queries_out=(-2, None)
    ),
    "scores.additive": Subject(scores.additive, functools.partial(draw_hidden, v=(4,), bias=(4,)), **PAIR_SCORE),
    "scores.concat_additive": Subject(
        scores.concat_additive, lambda rng, n, m: normal(rng, q=(n, 3), k=(m, 2), v=(4,), w=(5, 4)), **PAIR_SCORE
    ),
    "scores.gatv2": Subject(
        scores.gatv2, functools.partial(draw_hidden, a=(4,)), **PAIR_SCORE, options={"slope": [0.2, 0.5]}
    ),
    "scores.gat": Subject(
        scores.gat, functools.partial(draw_hidden, a=(4,), b=(4,)), **PAIR_SCORE, options={"slope": [0.2, 0.5]}
    ),
    "scores.unit_norm": Subject(scores.unit_norm, lambda rng, n, m: normal(rng, x=(n, 3)), **VECTORS),
    "scores.rms_norm": Subject(scores.rms_norm, draw_vectors, **VECTORS, options={"epsilon": [0.0, 0.5]}),
    "scores.rms_norm_heads": Subject(scores.rms_norm_heads, draw_vectors, **VECTORS, options={"epsilon": [0.0, 0.5]}),
    "scores.layer_norm": Subject(
        scores.layer_norm,
        functools.partial(draw_vectors, bias=(2, 1, 3)),
        **VECTORS,
        options={"epsilon": [0.0, 0.5]},
    ),
    "scores.normalized": Subject(
        scores.normalized,
        without(draw_pairs, "mask"),
        **PAIR_SCORE,
        options={"query": NORMS, "key": NORMS, "score": SCORES},
    ),
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
