"""The functions of the family circuits, as the properties see them."""

import operator

import numpy as np

from softlookup import circuits
from subjects.base import Subject, normal


def draw_few(rng, n, *names):
    """Small whole numbers, so that some of them are equal."""
    return {name: np.asarray(rng.integers(0, 3, size=n), dtype=float) for name in names}


def draw_selector(rng, n, m):
    """A selector whose first row selects nothing."""
    return {"selector": (rng.random((n, m)) < 0.6) & (np.arange(n) > 0)[:, None]}


def draw_brackets(rng, n, m):
    """Brackets of two kinds, side by side or one in the other, which fit either way."""
    inside, place = int(rng.random() > 0.6), np.arange(n)
    signs = np.where(place % (2 + 2 * inside) < 1 + inside, 1.0, -1.0)
    return {"signs": signs, "kinds": ((place + inside) // 2 % 2).astype(float)}


SELECTOR = {"keys": {"selector": -1, "values": -1}, "queries": {"selector": -2}, "mask": "selector"}


def draw_circuits(rng, *names):
    return normal(rng, **dict.fromkeys(names, (3, 5, 5)))


def draw_layers(rng, *more):
    """The weights of two layers with three heads each, and as many numbers for each other name."""
    w = rng.random((2, 3, 4, 4)) + 0.1
    return {"weights": w / w.sum(-1, keepdims=True)} | normal(rng, **dict.fromkeys(more, (2, 3, 4, 4)))


def draw_items(rng, n, m, **more):
    w = rng.random((n, m)) + 0.1
    return {"w": w / w.sum(-1, keepdims=True)} | normal(rng, v=(m, 3), **more)


PATTERN = {"queries_out": (-1,), "boolean": True}

SUBJECTS = {
    "circuits.previous_token_pattern": Subject(
        circuits.previous_token_pattern, lambda rng, n, m: draw_few(rng, n, "tokens"), **PATTERN
    ),
    "circuits.duplicate_token_pattern": Subject(
        circuits.duplicate_token_pattern, lambda rng, n, m: draw_few(rng, n, "tokens"), **PATTERN
    ),
    "circuits.induction_pattern": Subject(
        circuits.induction_pattern, lambda rng, n, m: draw_few(rng, n, "tokens"), **PATTERN
    ),
    "circuits.pattern_score": Subject(
        circuits.pattern_score,
        lambda rng, n, m: {"weights": np.asarray(rng.random((n, m))), "pattern": rng.random((n, m)) < 0.5},
        keys={"weights": -1, "pattern": -1},
        queries={"weights": -2, "pattern": -2},
        mask="pattern",
    ),
    "circuits.copying_score": Subject(circuits.copying_score, lambda rng, n, m: normal(rng, table=(5, 5))),
    "circuits.in_context_score": Subject(
        circuits.in_context_score,
        lambda rng, n, m: normal(rng, losses=(n, 7)),
        queries={"losses": -2},
        queries_out=(-1,),
        needed={"early": (0, 3), "late": (4, 7)},
        options={"early": ((0, 3), (1, 2)), "late": ((4, 7), (3, 6))},
    ),
    "circuits.qk_circuit": Subject(
        circuits.qk_circuit, lambda rng, n, m: normal(rng, query=(5, 3), key=(5, 3)), keys_out=(None,)
    ),
    "circuits.ov_circuit": Subject(
        circuits.ov_circuit, lambda rng, n, m: normal(rng, value=(5, 3), output=(3, 5)), keys_out=(None,)
    ),
    "circuits.token_table": Subject(
        circuits.token_table,
        lambda rng, n, m: normal(rng, left=(n, 5), circuit=(5, 5), right=(5, m)),
        keys={"right": -1},
        queries={"left": -2},
        keys_out=(-1,),
        queries_out=(-2,),
    ),
    "circuits.q_composition": Subject(circuits.q_composition, lambda rng, n, m: draw_circuits(rng, "ov", "qk")),
    "circuits.k_composition": Subject(circuits.k_composition, lambda rng, n, m: draw_circuits(rng, "ov", "qk")),
    "circuits.v_composition": Subject(circuits.v_composition, lambda rng, n, m: draw_circuits(rng, "ov", "later")),
    "circuits.attention_distance": Subject(
        circuits.attention_distance,
        lambda rng, n, m: {
            "w": draw_items(rng, n, m)["w"],
            "q_positions": rng.integers(0, 9, n),
            "k_positions": rng.integers(0, 9, m),
        },
        keys={"w": -1, "k_positions": -1},
        queries={"w": -2, "q_positions": -1},
        queries_out=(-1,),
    ),
    "circuits.sink_rate": Subject(
        circuits.sink_rate,
        lambda rng, n, m: {"w": rng.dirichlet(np.ones(5), size=(3, 4))},
        options={"threshold": (0.01, 0.9)},
    ),
    "circuits.effective_rank": Subject(
        circuits.effective_rank,
        lambda rng, n, m: {"w": draw_items(rng, n, m)["w"]},
        keys={"w": -1},
        queries={"w": -2},
    ),
    "circuits.rollout": Subject(circuits.rollout, lambda rng, n, m: draw_layers(rng)),
    "circuits.attention_flow": Subject(circuits.attention_flow, lambda rng, n, m: draw_layers(rng), numpy_only=True),
    "circuits.relevancy": Subject(circuits.relevancy, lambda rng, n, m: draw_layers(rng, "gradients")),
    "circuits.value_weighted_norm": Subject(
        circuits.value_weighted_norm,
        lambda rng, n, m: draw_items(rng, n, m, output=(3, 2)),
        keys={"w": -1, "v": -2},
        queries={"w": -2},
        keys_out=(-1,),
        queries_out=(-2,),
    ),
    "circuits.edge_deletion": Subject(
        circuits.edge_deletion,
        draw_items,
        keys={"w": -1, "v": -2},
        queries={"w": -2},
        keys_out=(-2,),
        queries_out=(-3,),
    ),
    "circuits.kl_divergence": Subject(
        circuits.kl_divergence,
        lambda rng, n, m: normal(rng, logits=(n, 4), changed=(n, 4)),
        queries={"logits": -2, "changed": -2},
        queries_out=(-1,),
    ),
    "circuits.select": Subject(
        circuits.select,
        lambda rng, n, m: draw_few(rng, m, "keys") | draw_few(rng, n, "queries"),
        keys={"keys": -1},
        queries={"queries": -1},
        keys_out=(-1,),
        queries_out=(-2,),
        options={"predicate": (operator.eq, operator.lt)},
        boolean=True,
    ),
    "circuits.aggregate": Subject(
        circuits.aggregate,
        lambda rng, n, m: draw_selector(rng, n, m) | {"values": np.asarray(rng.normal(size=m))},
        queries_out=(-1,),
        options={"default": (0.0, 2.0)},
        **SELECTOR,
    ),
    "circuits.selector_width": Subject(
        circuits.selector_width, draw_selector, queries_out=(-1,), whole=True, **SELECTOR
    ),
    "circuits.selector_width_by_attention": Subject(
        circuits.selector_width_by_attention, draw_selector, queries_out=(-1,), whole=True, **SELECTOR
    ),
    "circuits.latest": Subject(
        circuits.latest, draw_selector, keys_out=(-1,), queries_out=(-2,), boolean=True, **SELECTOR
    ),
    "circuits.reverse": Subject(circuits.reverse, lambda rng, n, m: draw_few(rng, n, "tokens"), queries_out=(-1,)),
    "circuits.histogram": Subject(
        circuits.histogram, lambda rng, n, m: draw_few(rng, n, "tokens"), queries_out=(-1,), whole=True
    ),
    "circuits.sort": Subject(
        circuits.sort, lambda rng, n, m: draw_few(rng, n, "keys") | normal(rng, values=n), queries_out=(-1,)
    ),
    "circuits.nesting_depth": Subject(
        circuits.nesting_depth,
        lambda rng, n, m: {"signs": draw_brackets(rng, n, m)["signs"]},
        queries_out=(-1,),
        whole=True,
    ),
    "circuits.balanced": Subject(circuits.balanced, draw_brackets, queries_out=(-1,), boolean=True),
    "circuits.balanced_by_peeling": Subject(
        circuits.balanced_by_peeling, draw_brackets, needed={"depth": 2}, options={"depth": (0, 2)}, boolean=True
    ),
    "circuits.induct": Subject(
        circuits.induct,
        lambda rng, n, m: draw_few(rng, n, "tokens"),
        queries_out=(-1,),
        options={"default": (-1.0, -2.0)},
    ),
}

OTHERS = {
    "circuits.adam_step": "a model and its gradient",
    "circuits.batch": "a text and a generator",
    "circuits.cross_entropy": "logits and a text",
    "circuits.decode": "numbers of characters",
    "circuits.encode": "a text",
    "circuits.forward": "a model and a text",
    "circuits.generate": "a model and a text",
    "circuits.initialize": "a generator",
    "circuits.ablate_heads": "a model and a text",
    "circuits.load_model": "nothing",
    "circuits.training_results": "nothing",
    "circuits.loss_and_gradient": "a model and a text",
    "circuits.repeated_letters": "a generator",
    "circuits.seed_results": "a name",
    "circuits.tales": "a generator",
    "circuits.train": "a generator",
    "circuits.head_matrices": "a model",
    "circuits.cut_path": "a model and a text",
    "circuits.remove_items": "a model and a text",
    "circuits.swap_items": "a model and a text",
    "circuits.weight_gradients": "a model and a text",
}
