"""The functions of the family positions, as the properties see them."""

import numpy as np

from softlookup import positions
from subjects.base import Subject, normal


def whole(rng, *shape):
    return np.asarray(rng.integers(-4, 9, size=shape))


def draw_rotary(rng, n, m, name="x"):
    return normal(rng, **{name: (4, n, 6), "frequencies": (1, 2)}) | {"positions": whole(rng, 1, n)}


def of_pairs(function, draw):
    return Subject(
        function,
        draw,
        queries={"x": -2, "g": -2, "angles": -2, "positions": -1},
        queries_out=(-2,),
        options={"pairing": ["half", "interleaved"]},
        needed={"pairing": "half"},
    )


SUBJECTS = {
    "positions.change_pairing": Subject(
        positions.change_pairing,
        lambda rng, n, m: normal(rng, x=(n, 6)),
        queries={"x": -2},
        queries_out=(-2,),
        options={"to": ["half", "interleaved"]},
        needed={"to": "half"},
    ),
    "positions.proportional_frequencies": Subject(
        positions.proportional_frequencies,
        lambda rng, n, m: normal(rng, frequencies=(4,)),
        options={"keep": [1, 3]},
        needed={"keep": 1},
    ),
    "positions.rotary": of_pairs(positions.rotary, draw_rotary),
    "positions.rotary_frequencies": Subject(
        positions.rotary_frequencies,
        lambda rng, n, m: {"base": np.asarray(rng.uniform(5, 500))},
        options={"width": [6, 8]},
        needed={"width": 6},
    ),
    "positions.rotary_vjp": of_pairs(positions.rotary_vjp, lambda rng, n, m: draw_rotary(rng, n, m, "g")),
    "positions.rotate_pairs": of_pairs(
        positions.rotate_pairs, lambda rng, n, m: normal(rng, x=(4, n, 6), angles=(1, n, 2))
    ),
    "positions.section_angles": Subject(
        positions.section_angles,
        lambda rng, n, m: {"coordinates": 1.0 * whole(rng, n, 2)} | normal(rng, frequencies=(3,)),
        queries={"coordinates": -2},
        queries_out=(-2,),
        options={"sections": [(2, 1), (1, 2)], "alternating": [False, True]},
        needed={"sections": (2, 1)},
    ),
}
