"""The functions of the family masks, as the properties see them."""

import numpy as np
from array_api_compat import array_namespace

from softlookup import masks
from softlookup.lookup import gaussian_score, scaled_dot
from subjects.base import Subject, normal

PLACES = {"keys": {"k_positions": -1}, "queries": {"q_positions": -1}}
DOCUMENTS = {"keys": {"k_ids": -1}, "queries": {"q_ids": -1}}
PAIRS = {"keys_out": (-1,), "queries_out": (-2,), "boolean": True}


def whole(rng, least, most, **shapes):
    return {name: np.asarray(rng.integers(least, most, size=shape)) for name, shape in shapes.items()}


def draw_places(rng, n, m):
    return {"q_positions": rng.permutation(n) + rng.integers(4), "k_positions": rng.permutation(m)}


def draw_branches(rng, n, m):
    return draw_places(rng, n, m) | whole(rng, 0, 3, q_branches=n, k_branches=m)


def draw_parents(rng, n, m):
    return {"parents": np.array([rng.integers(-1, node) if node else -1 for node in range(n)], dtype=int)}


def draw_ends(rng, n, m):
    return {"cumulative_lengths": np.concatenate([[0], np.cumsum(rng.integers(0, 3, size=3))])}


def of_places(function, draw=draw_places, **more):
    return Subject(function, draw, **PLACES, **PAIRS, **more)


def draw_chosen(rng, n, m):
    return {"q_global": np.arange(n) == rng.integers(4), "k_global": np.arange(m) == rng.integers(5)}


def of_predicates(function):
    """Joined predicates, asked at two rows of numbers that need not be indices."""
    return Subject(
        function,
        lambda rng, n, m: normal(rng, b=(1, 1), h=(1, 1), i=(n, 1), j=(1, m)),
        {"j": -1},
        {"i": -2},
        **PAIRS,
        options={"mask_mods": [MODS, MODS[:1]]},
        needed={"mask_mods": MODS},
        factory=("b", "h", "i", "j"),
    )


MODS = [lambda b, h, i, j: j + 3 * b > i, lambda b, h, i, j: j + i < 3 * h]
OF_PLACE = [lambda b, h, i, j: j - i <= 1, lambda b, h, i, j: (j + 1) * (i + 2) < 7]


def turned(s, b, h, i, j):
    return array_namespace(s).where(j <= i, s, -s)


def squared(s, b, h, i, j):
    return s * s


SUBJECTS = {
    "masks.positions": Subject(
        masks.positions,
        lambda rng, n, m: normal(rng, q=(n, 3), k=(m, 3)),
        keys_out=(None, -1),
        queries_out=(-1, None),
        options={"offset": [None, 2]},
        whole=True,
    ),
    "masks.causal": of_places(masks.causal),
    "masks.strictly_causal": of_places(masks.strictly_causal),
    "masks.valid_keys": Subject(
        masks.valid_keys,
        lambda rng, n, m: whole(rng, 0, 6, lengths=()),
        options={"size": [6, 7], "left": [False, True]},
        needed={"size": 6},
        boolean=True,
    ),
    "masks.padding": Subject(
        masks.padding,
        lambda rng, n, m: {"valid": rng.random(m) < 0.6},
        {"valid": -1},
        keys_out=(-1,),
        boolean=True,
    ),
    "masks.prefix_causal": of_places(
        masks.prefix_causal, lambda rng, n, m: draw_places(rng, n, m) | whole(rng, -1, 5, prefix=())
    ),
    "masks.block_causal": of_places(masks.block_causal, options={"block": [2, 5]}, needed={"block": 2}),
    "masks.same_document": Subject(
        masks.same_document, lambda rng, n, m: whole(rng, -1, 3, q_ids=n, k_ids=m), **DOCUMENTS, **PAIRS
    ),
    "masks.document_ids": Subject(
        masks.document_ids, draw_ends, options={"size": [6, 7]}, needed={"size": 6}, whole=True
    ),
    "masks.document_positions": Subject(
        masks.document_positions, lambda rng, n, m: whole(rng, -1, 3, ids=n), queries_out=(-1,), whole=True
    ),
    "masks.shared_prefix": Subject(
        masks.shared_prefix,
        draw_branches,
        {"k_positions": -1, "k_branches": -1},
        {"q_positions": -1, "q_branches": -1},
        **PAIRS,
    ),
    "masks.tree": Subject(masks.tree, draw_parents, **PAIRS),
    "masks.sliding_window": of_places(
        masks.sliding_window, options={"left": [1, None], "right": [2, 0]}, needed={"left": 1, "right": 2}
    ),
    "masks.dilated_window": of_places(
        masks.dilated_window,
        options={"left": [4, 1], "right": [4, 0], "dilation": [2, 3]},
        needed={"left": 4, "right": 4, "dilation": 2},
    ),
    "masks.chunked": of_places(masks.chunked, options={"chunk": [2, 5]}, needed={"chunk": 2}),
    "masks.sink_window": of_places(
        masks.sink_window, options={"sinks": [0, 3], "left": [1, 4]}, needed={"sinks": 1, "left": 1}
    ),
    "masks.global_tokens": Subject(masks.global_tokens, draw_chosen, {"k_global": -1}, {"q_global": -1}, **PAIRS),
    "masks.global_local": Subject(
        masks.global_local,
        lambda rng, n, m: (
            draw_chosen(rng, n, m) | whole(rng, 0, 4, q_positions=n) | {"k_positions": rng.permutation(m)}
        ),
        {"k_positions": -1, "k_global": -1},
        {"q_positions": -1, "q_global": -1},
        **PAIRS,
        options={"left": [0, 3], "right": [0, None]},
        needed={"left": 0, "right": 0},
    ),
    "masks.evaluate_mask": Subject(
        masks.evaluate_mask,
        lambda rng, n, m: normal(rng, q=(n, 3), k=(m, 3)),
        {"k": -2},
        {"q": -2},
        **PAIRS,
        options={"mask_mod": OF_PLACE},
        needed={"mask_mod": OF_PLACE[0]},
    ),
    "masks.and_masks": of_predicates(masks.and_masks),
    "masks.or_masks": of_predicates(masks.or_masks),
    "masks.modified_score": Subject(
        masks.modified_score,
        lambda rng, n, m: normal(rng, q=(n, 3), k=(m, 3)),
        {"k": -2},
        {"q": -2},
        (-1,),
        (-2,),
        options={"score_mod": [turned, squared], "score": [scaled_dot(), gaussian_score()]},
        needed={"score_mod": turned},
        factory=("q", "k"),
    ),
    "masks.block_summary": Subject(
        masks.block_summary,
        lambda rng, n, m: {"mask": rng.random((n, m)) < 0.5},
        options={"rows": [1, 2], "columns": [1, 3]},
        needed={"rows": 1, "columns": 1},
        keys_out=(-1,),
        queries_out=(-2,),
        whole=True,
    ),
}
