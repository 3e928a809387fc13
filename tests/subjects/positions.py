"""The functions of the family positions, as the properties see them."""

import functools

import numpy as np

from softlookup import positions
from subjects.base import WEIGHTS, Subject, draw_scores, normal, readable


def whole(rng, *shape):
    return np.asarray(rng.integers(-4, 9, size=shape))


def draw_rotary(rng, n, m, name="x"):
    return normal(rng, **{name: (4, n, 6), "frequencies": (1, 2)}) | {"positions": whole(rng, 1, n)}


LAYOUTS = ["interleaved", "concatenated"]


def draw_learned(rng, n, m):
    return normal(rng, x=(n, 4), table=(6, 4)) | {"positions": np.asarray(rng.integers(0, 6, size=n))}


def draw_distances(rng, n, m, **more):
    return normal(rng, **more) | {"index": np.asarray(rng.integers(0, 4, size=(n, m)))}


def draw_relative(rng, n, m, **more):
    return draw_distances(rng, n, m, q=(n, 3), k=(m, 3), a=(4, 3), **more)


def of_relative(function, **more):
    return Subject(
        function,
        functools.partial(draw_relative, **more),
        {"k": -2, "index": -1},
        {"q": -2, "index": -2},
        **WEIGHTS,
        options={"scale": [None, 1.0]},
        factory=("q", "k"),
    )


def of_pairs(function, draw):
    return Subject(
        function,
        draw,
        queries={"x": -2, "g": -2, "angles": -2, "positions": -1},
        queries_out=(-2,),
        options={"pairing": ["half", "interleaved"]},
        needed={"pairing": "half"},
    )


def draw_far(rng, n, m, **heads):
    """Positions, and positive numbers of the shapes that are named."""
    arrays = {name: np.asarray(rng.uniform(0.2, 2.0, size=shape)) for name, shape in heads.items()}
    return {"q_positions": whole(rng, n), "k_positions": whole(rng, m)} | arrays


def of_distance(function, **heads):
    return Subject(function, lambda rng, n, m: draw_far(rng, n, m, **heads), **FAR)


def of_gates(function):
    return Subject(
        function,
        lambda rng, n, m: draw_far(rng, n, m) | {"log_f": -np.asarray(rng.uniform(0.2, 2.0, size=(3, m)))},
        **FAR,
    )


FAR = {
    "keys": {"k_positions": -1, "log_f": -1},
    "queries": {"q_positions": -1},
    "keys_out": (-1,),
    "queries_out": (-2,),
}


def draw_text(rng, n, m, **more):
    return normal(rng, **more) | {"mask": readable(rng, n, m)}


def of_text(function, more):
    """A score of items that stand in the order of the text."""
    return Subject(
        function,
        lambda rng, n, m: draw_text(rng, n, m, q=(n, 3), k=(m, 3), **more(m)),
        {"k": -2, "w": -2, "beta": -1, "mask": -1},
        {"q": -2, "mask": -2},
        **WEIGHTS,
        mask="mask",
        options={"scale": [None, 1.0]},
        factory=("q", "k"),
    )


def draw_windows(rng, n, m, **weights):
    return normal(rng, **weights) | {"q_coordinates": whole(rng, n, 2), "k_coordinates": whole(rng, m, 2)}


WINDOWS = {
    "keys": {"k_coordinates": -2},
    "queries": {"q_coordinates": -2},
    "keys_out": (-1,),
    "queries_out": (-2,),
    "options": {"window": [(3, 3), (4, 2)]},
    "needed": {"window": (3, 3)},
}


def of_speeds(function, *lists, **options):
    """Frequencies in, frequencies out; the options have to be given."""
    needed = {name: values[0] for name, values in options.items()}
    names = ("frequencies", *lists)
    return Subject(
        function,
        lambda rng, n, m: {name: rng.uniform(0.2, 3, size=4) for name in names},
        options=options,
        needed=needed,
    )


def of_items(function, **options):
    needed = {name: values[0] for name, values in options.items()}
    return Subject(
        function,
        lambda rng, n, m: normal(rng, x=(n, 6)),
        queries={"x": -2},
        queries_out=(-2,),
        options=options,
        needed=needed,
    )


SUBJECTS = {
    "positions.cope": of_text(positions.cope, lambda m: {"e": (3, 3)}),
    "positions.cope_positions": Subject(
        positions.cope_positions,
        draw_scores,
        {"s": -1, "allowed": -1},
        {"s": -2, "allowed": -2},
        **WEIGHTS,
        mask="allowed",
        options={"largest": [None, 1.0]},
    ),
    "positions.path": of_text(positions.path, lambda m: {"w": (m, 3), "beta": (m,)}),
    "positions.path_by_queries": of_text(positions.path_by_queries, lambda m: {"w": (m, 3), "beta": (m,)}),
    "positions.path_step": Subject(
        positions.path_step,
        lambda rng, n, m: normal(rng, k=(m, 3), w=(3,), beta=()),
        {"k": -2},
        keys_out=(-2,),
    ),
    "positions.path_transfer": Subject(
        positions.path_transfer,
        lambda rng, n, m: draw_text(rng, n, m, w=(m, 3), beta=(m,)),
        {"w": -2, "beta": -1, "mask": -1},
        {"mask": -2},
        (-3,),
        (-4,),
        mask="mask",
    ),
    "positions.read_between": Subject(
        positions.read_between,
        lambda rng, n, m: normal(rng, x=(n, 4)) | {"p": np.asarray(rng.uniform(0, 3, size=(n, m)))},
        {"p": -1},
        {"x": -2, "p": -2},
        **WEIGHTS,
    ),
    "positions.bucket_bias": Subject(
        positions.bucket_bias,
        lambda rng, n, m: normal(rng, table=(5, 3)) | {"buckets": np.asarray(rng.integers(5, size=(n, m)))},
        {"buckets": -1},
        {"buckets": -2},
        (-1,),
        (-2,),
    ),
    "positions.clipped_distance": Subject(
        positions.clipped_distance,
        lambda rng, n, m: {"q_positions": rng.permutation(n) + rng.integers(4), "k_positions": rng.permutation(m)},
        {"k_positions": -1},
        {"q_positions": -1},
        **WEIGHTS,
        options={"left": [1, 3], "right": [2, 0]},
        needed={"left": 1, "right": 2},
        whole=True,
    ),
    "positions.disentangled": of_relative(positions.disentangled, b=(4, 3)),
    "positions.log_cpb": Subject(
        positions.log_cpb, lambda rng, n, m: draw_windows(rng, n, m, w1=(2, 8), b1=(8,), w2=(8, 3)), **WINDOWS
    ),
    "positions.log_cpb_coordinates": Subject(
        positions.log_cpb_coordinates,
        lambda rng, n, m: normal(rng, offsets=(n, m, 2)),
        {"offsets": -2},
        {"offsets": -3},
        (-2,),
        (-3,),
        options={"window": [(3, 3), (4, 2)]},
        needed={"window": (3, 3)},
    ),
    "positions.read_distances": Subject(
        positions.read_distances,
        lambda rng, n, m: draw_distances(rng, n, m, x=(n, 4)),
        {"index": -1},
        {"x": -2, "index": -2},
        **WEIGHTS,
    ),
    "positions.shaw": of_relative(positions.shaw),
    "positions.shaw_values": Subject(
        positions.shaw_values,
        lambda rng, n, m: draw_distances(rng, n, m, w=(n, m), a=(4, 2)),
        {"w": -1, "index": -1},
        {"w": -2, "index": -2},
        queries_out=(-2,),
    ),
    "positions.skew": Subject(
        positions.skew,
        lambda rng, n, m: normal(rng, x=(n, 8)),
        queries_out=(-2,),
        options={"keys": [5, 8]},
        needed={"keys": 5},
    ),
    "positions.swin_index": Subject(positions.swin_index, draw_windows, **WINDOWS, whole=True),
    "positions.t5_bucket": Subject(
        positions.t5_bucket,
        draw_far,
        {"k_positions": -1},
        {"q_positions": -1},
        (-1,),
        (-2,),
        options={"buckets": [8, 12], "max_distance": [5, 90], "bidirectional": [True, False]},
        needed={"buckets": 8, "max_distance": 5},
        whole=True,
    ),
    "positions.transformer_xl": of_relative(positions.transformer_xl, u=(3,), v=(3,)),
    "positions.learned_positions": Subject(
        positions.learned_positions, draw_learned, queries={"x": -2, "positions": -1}, queries_out=(-2,)
    ),
    "positions.padded_positions": Subject(
        positions.padded_positions, lambda rng, n, m: {"valid": rng.random(n) < 0.6}, queries_out=(-1,), whole=True
    ),
    "positions.sinusoidal": Subject(
        positions.sinusoidal,
        lambda rng, n, m: {"positions": rng.integers(0, 40, size=n).astype(float)},
        queries={"positions": -1},
        queries_out=(-2,),
        options={"width": [4, 5], "layout": LAYOUTS, "base": [1e4, 100.0]},
        needed={"width": 4, "layout": "interleaved"},
    ),
    "positions.sinusoidal_shift": Subject(
        positions.sinusoidal_shift,
        lambda rng, n, m: {"delta": rng.integers(-9, 9, size=n).astype(float)},
        queries={"delta": -1},
        queries_out=(-3,),
        options={"width": [4, 6], "layout": LAYOUTS, "base": [1e4, 100.0]},
        needed={"width": 4, "layout": "interleaved"},
    ),
    "positions.alibi": of_distance(positions.alibi, slopes=(3,)),
    "positions.alibi_slopes": Subject(
        positions.alibi_slopes,
        lambda rng, n, m: {"octaves": np.asarray(rng.uniform(4, 9))},
        options={"heads": [2, 6]},
        needed={"heads": 2},
    ),
    "positions.fire": Subject(
        positions.fire,
        lambda rng, n, m: draw_far(rng, n, m, c=(), threshold=()) | normal(rng, w1=(16,), b1=(16,), w2=(16, 3)),
        **FAR,
    ),
    "positions.forgetting": of_gates(positions.forgetting),
    "positions.forgetting_by_totals": of_gates(positions.forgetting_by_totals),
    "positions.kerple_log": of_distance(positions.kerple_log, r1=(3,), r2=(3,)),
    "positions.kerple_power": of_distance(positions.kerple_power, r1=(3,), r2=(3,)),
    "positions.sandwich": of_distance(positions.sandwich, ratios=(3,), frequencies=(4,)),
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
    "positions.interpolated_frequencies": of_speeds(positions.interpolated_frequencies, factor=[4.0, 2.0]),
    "positions.ntk_frequencies": of_speeds(positions.ntk_frequencies, factor=[4.0, 2.0]),
    "positions.dynamic_ntk_frequencies": of_speeds(
        positions.dynamic_ntk_frequencies, factor=[4.0, 2.0], length=[150.0, 300.0], trained=[100.0, 120.0]
    ),
    "positions.by_parts_frequencies": of_speeds(
        positions.by_parts_frequencies, factor=[4.0, 2.0], trained=[8.0, 16.0], low=[1.0, 0.5], high=[4.0, 2.0]
    ),
    "positions.longrope_frequencies": of_speeds(
        positions.longrope_frequencies, "short", "long", length=[50.0, 200.0], trained=[100.0, 20.0]
    ),
    "positions.yarn_frequencies": Subject(
        positions.yarn_frequencies,
        lambda rng, n, m: {"base": np.asarray(rng.uniform(50, 500))},
        options={
            "width": [16, 32],
            "factor": [4.0, 2.0],
            "trained": [200.0, 400.0],
            "fast": [16.0, 8.0],
            "slow": [1.0, 2.0],
            "rounded": [True, False],
        },
        needed={"width": 16, "factor": 4.0, "trained": 200.0},
    ),
    "positions.yarn_stretch": of_items(positions.yarn_stretch, factor=[4.0, 2.0]),
    "positions.longrope_stretch": of_items(positions.longrope_stretch, factor=[4.0, 2.0], trained=[100.0, 200.0]),
    "positions.xpos_stretch": Subject(
        positions.xpos_stretch,
        lambda rng, n, m: normal(rng, x=(4, n, 6)) | {"positions": whole(rng, 1, n)},
        queries={"x": -2, "positions": -1},
        queries_out=(-2,),
        options={"pairing": ["half", "interleaved"], "span": [64.0, 32.0], "offset": [0.4, 0.2]},
        needed={"pairing": "half"},
    ),
}
