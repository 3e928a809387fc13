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


SUBJECTS = {
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
    "circuits.load_model": "nothing",
    "circuits.loss_and_gradient": "a model and a text",
    "circuits.repeated_letters": "a generator",
    "circuits.seed_results": "a name",
    "circuits.tales": "a generator",
    "circuits.train": "a generator",
    "circuits.head_matrices": "a model",
    "circuits.cut_path": "a model and a text",
}
