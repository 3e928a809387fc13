"""The functions of the family schedules, as the properties see them."""

import functools
import itertools

import numpy as np
from array_api_compat import array_namespace

from softlookup import lookup, schedules
from subjects.base import PAIR, ROWS, WEIGHTS, Subject, draw_attention, draw_scores, normal, readable, without


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


def draw_cached(rng, n, m):
    return normal(rng, q=(4, n, 3), k_cache=(2, m, 3), v_cache=(2, m, 2), k=(2, n, 3), v=(2, n, 2))


def draw_rolling(rng, n, m):
    return draw_cached(rng, n, 4) | {"start": np.asarray(rng.integers(0, 9))}


def draw_pages(rng, n, m):
    pools = normal(rng, q=(2, 4, n, 3), k_pool=(7, 2, 2, 3), v_pool=(7, 2, 2, 2))
    return pools | {"block_table": rng.integers(0, 7, size=(2, m)), "lengths": rng.integers(0, 2 * m + 1, size=2)}


def draw_new_items(rng, n, m):
    given = normal(rng, pool=(7, 2, 2, 3), x=(2, 2, n, 3))
    return given | {"block_table": rng.integers(0, 7, size=(2, 3)), "places": rng.integers(0, 6, size=(2, n))}


PARTS = {"g_out": -2, "g_lse": -1, "out_a": -2, "lse_a": -1, "out_b": -2, "lse_b": -1}
MERGING_SCORES = [lookup.scaled_dot(), lookup.scaled_dot(scale=0.2, cap=1.0)]
BLOCKS = {"options": {"block": [5, 8]}}  # each holds all keys, so that the sums have one order

EVERY_BLOCK = 3, 3, ((0, 1), (0, 1)), ((), ())
NEW = {"q": -2, "k": -2, "v": -2}
ATTENDS = [lookup.attention, functools.partial(lookup.attention, score=lookup.scaled_dot(scale=0.2))]
LAYOUTS = [EVERY_BLOCK, (3, 3, ((0, 1), (1,)), ((), ()))]

FLASH = {"mask": "mask", "options": {"tiles": [(4, 5), (9, 8)], "score": MERGING_SCORES}, "needed": {"tiles": (3, 2)}}


def draw_flash_vjp(rng, n, m):
    results = {"g_out": (4, n, 2), "g_lse": (4, n), "out": (4, n, 2), "lse": (4, n), "sink": (4, n)}
    return draw_attention(rng, n, m) | normal(rng, **results)


def dealt(function, mask, arrays, listed, devices=3, **options):
    """Call a function of lists of arrays, one for each device, with rows dealt out, and collect the results.

    The first device has one row, the last one what is left. A mask of all pairs stands for the callable that looks at
    positions.
    """
    xp, lengths = array_namespace(*arrays.values()), {name: a.shape[-2] for name, a in arrays.items()}
    ends = {name: [0, *[min(1, n)] * (devices - 1), n] for name, n in lengths.items()}
    cuts = {name: [slice(*pair) for pair in itertools.pairwise(ends[name])] for name in lengths}
    places = {name: [np.arange(cut.start, cut.stop) for cut in cuts[name]] for name in ("q", "k")}
    if mask is not None:
        options |= {
            "q_positions": places["q"] if "q" in listed else np.arange(lengths["q"]),
            "k_positions": places["k"],
            "mask": lambda rows, columns: xp.take(xp.take(mask, rows, axis=-2), columns, axis=-1),
        }
    given = [[a[..., cut, :] for cut in cuts[name]] if name in listed else a for name, a in arrays.items()]
    *results, sent = function(*given, **options)
    assert all(isinstance(number, int) for row in sent for number in row)
    results = tuple(xp.concat(x, axis=-2) if isinstance(x, list) else x for x in results)
    return results if len(results) > 1 else results[0]


def ring_attention(q, k, v, /, *, mask=None, score=lookup.scaled_dot()):
    return dealt(schedules.ring_attention, mask, {"q": q, "k": k, "v": v}, "qkv", score=score)


def ring_attention_vjp(g, q, k, v, /, *, mask=None):
    return dealt(schedules.ring_attention_vjp, mask, {"g": g, "q": q, "k": k, "v": v}, "gqkv")


def tree_attention(q, k, v, /, *, mask=None, score=lookup.scaled_dot()):
    return dealt(schedules.tree_attention, mask, {"q": q, "k": k, "v": v}, "kv", score=score)


def all_to_all_attention(q, k, v, /, *, mask=None, score=lookup.scaled_dot()):
    return dealt(schedules.all_to_all_attention, mask, {"q": q, "k": k, "v": v}, "qkv", devices=2, score=score)


for of_arrays in (ring_attention, ring_attention_vjp, tree_attention, all_to_all_attention):
    of_arrays.__doc__ = getattr(schedules, of_arrays.__name__).__doc__.partition("    Examples\n")[0]


def draw_step(rng, n, m):
    return draw_attention(rng, n, m) | normal(rng, out=(4, n, 2), lse=(4, n))


DEALT = {
    "keys": {"k": -2, "v": -2, "mask": -1},
    "queries": {"q": -2, "mask": -2},
    "queries_out": (-2,),
    "values": "v",
    "mask": "mask",
    "options": {"score": MERGING_SCORES},
}
STEP = {"keys": {"k": -2, "v": -2, "mask": -1}, "mask": "mask"}


SUBJECTS = {
    "schedules.flash_attention": Subject(
        schedules.flash_attention, draw_attention, **PAIR, **FLASH, keys_out=(None, None), queries_out=(-2, -1)
    ),
    "schedules.flash_attention_by_keys": Subject(
        schedules.flash_attention_by_keys, draw_attention, **PAIR, **FLASH, keys_out=(None, None), queries_out=(-2, -1)
    ),
    "schedules.flash_attention_vjp": Subject(
        schedules.flash_attention_vjp,
        draw_flash_vjp,
        PAIR["keys"],
        PAIR["queries"] | {"g_out": -2, "g_lse": -1, "out": -2, "lse": -1, "sink": -1},
        **FLASH,
        factory=("g_out", "g_lse", "out", "lse", "sink"),
        keys_out=(None, -2, -2, -1, None),
        queries_out=(-2, None, None, -2, -1),
    ),
    "schedules.add_sink": Subject(
        schedules.add_sink,
        lambda rng, n, m: normal(rng, out=(n, 2), lse=(n,), sink=(n,)),
        queries={"out": -2, "lse": -1, "sink": -1},
        keys_out=(None, None),
        queries_out=(-2, -1),
    ),
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
    "schedules.block_sparse_attention": Subject(
        schedules.block_sparse_attention,
        draw_attention,
        **PAIR,
        keys_out=(None, None),
        queries_out=(-2, -1),
        mask="mask",
        options={"score": MERGING_SCORES, "layout": LAYOUTS},
        needed={"layout": EVERY_BLOCK},
    ),
    "schedules.decode": Subject(
        schedules.decode,
        draw_cached,
        queries=NEW,
        keys_out=(None,) * 3,
        queries_out=(-2, None, None),
        options={"left": [None, 1], "attend": ATTENDS},
    ),
    "schedules.chunked_prefill": Subject(
        schedules.chunked_prefill,
        without(draw_attention, "mask", "bias"),
        keys={"k": -2, "v": -2},
        queries={"q": -2},
        queries_out=(-2,),
        options={"size": [5, 8], "left": [None, 1], "attend": ATTENDS},
        needed={"size": 2},
    ),
    "schedules.gather_pages": Subject(
        schedules.gather_pages,
        lambda rng, n, m: normal(rng, pool=(7, 2, 2, 3)) | {"block_table": rng.integers(0, 7, size=(n, m))},
        queries={"block_table": -2},
        queries_out=(-4,),
    ),
    "schedules.write_pages": Subject(schedules.write_pages, draw_new_items, queries_out=(None,)),
    "schedules.paged_attention": Subject(
        schedules.paged_attention,
        draw_pages,
        queries={"q": -2},
        queries_out=(-2,),
        options={"left": [None, 0], "attend": ATTENDS},
    ),
    "schedules.rolling_positions": Subject(
        schedules.rolling_positions,
        lambda rng, n, m: {"last": rng.integers(-1, 9, size=n)},
        queries={"last": -1},
        queries_out=(-2,),
        options={"window": [3, 4]},
        needed={"window": 3},
        whole=True,
    ),
    "schedules.rolling_write": Subject(
        schedules.rolling_write,
        lambda rng, n, m: normal(rng, cache=(2, 6, 3), x=(2, n, 3)) | {"start": np.asarray(rng.integers(0, 9))},
    ),
    "schedules.rolling_decode": Subject(
        schedules.rolling_decode,
        draw_rolling,
        queries=NEW,
        keys_out=(None,) * 3,
        queries_out=(-2, None, None),
        options={"attend": ATTENDS},
    ),
    "schedules.ring_step": Subject(
        schedules.ring_step,
        without(draw_step, "bias"),
        **STEP,
        queries={"out": -2, "lse": -1, "q": -2, "mask": -2},
        keys_out=(None, None),
        queries_out=(-2, -1),
        options={"score": MERGING_SCORES},
    ),
    "schedules.ring_step_vjp": Subject(
        schedules.ring_step_vjp,
        without(lambda rng, n, m: draw_step(rng, n, m) | normal(rng, g=(4, n, 2)), "bias"),
        **STEP,
        queries={"g": -2, "q": -2, "out": -2, "lse": -1, "mask": -2},
        keys_out=(None, -2, -2),
        queries_out=(-2, None, None),
    ),
    "schedules.ring_attention": Subject(ring_attention, without(draw_attention, "bias"), **DEALT),
    "schedules.ring_attention_vjp": Subject(
        ring_attention_vjp,
        without(lambda rng, n, m: draw_attention(rng, n, m) | normal(rng, g=(4, n, 2)), "bias"),
        **STEP,
        queries={"g": -2, "q": -2, "mask": -2},
        keys_out=(None, -2, -2),
        queries_out=(-2, None, None),
    ),
    "schedules.tree_step": Subject(
        schedules.tree_step,
        lambda rng, n, m: normal(rng, out=(n, 2), lse=(n,), top=(n,)),
        queries={"out": -2, "lse": -1, "top": -1},
        keys_out=(None, None),
        queries_out=(-2, -1),
    ),
    "schedules.fast_attention": Subject(
        schedules.fast_attention,
        without(draw_attention, "mask", "bias"),
        {"q": None, "k": -2, "v": -2},
        {"q": -2, "k": None, "v": None},
        queries_out=(-2,),
        values="v",
        options={
            "causal": [False, True],
            "window": [(None, None), (1, 0)],
            "scale": [0.3, 0.7],
            "workers": [1, 2],
        },
        log_total=lambda q, k, **_: lookup.log_sum_exp(lookup.attention_scores(q, k)),
        numpy_only=True,
    ),
    "schedules.tree_attention": Subject(tree_attention, without(draw_attention, "bias"), **DEALT),
    "schedules.all_to_all_attention": Subject(all_to_all_attention, without(draw_attention, "bias"), **DEALT),
    "schedules.quantize_int8": Subject(
        schedules.quantize_int8,
        lambda rng, n, m: normal(rng, x=(n, 3)),
        queries={"x": -2},
        keys_out=(None, None),
        queries_out=(-2, -2),
        options={"rows": [1, 2]},
        needed={"rows": 1},
    ),
    "schedules.dequantize": Subject(
        schedules.dequantize,
        lambda rng, n, m: normal(rng, codes=(n, 3), scales=(n, 1)),
        queries={"codes": -2, "scales": -2},
        queries_out=(-2,),
    ),
    "schedules.round_to_e4m3": Subject(
        schedules.round_to_e4m3, lambda rng, n, m: normal(rng, x=(n, 3)), queries={"x": -2}, queries_out=(-2,)
    ),
    "schedules.round_to_e5m2": Subject(
        schedules.round_to_e5m2, lambda rng, n, m: normal(rng, x=(n, 3)), queries={"x": -2}, queries_out=(-2,)
    ),
    "schedules.smooth_keys": Subject(
        schedules.smooth_keys,
        lambda rng, n, m: normal(rng, k=(m, 3)),
        {"k": -2},
        keys_out=(-2, None),
        queries_out=(None, None),
    ),
    "schedules.hadamard": Subject(
        schedules.hadamard,
        lambda rng, n, m: normal(rng, x=(n, 4), signs=(1, 4)),
        queries={"x": -2},
        queries_out=(-2,),
    ),
    "schedules.quantized_attention": Subject(
        schedules.quantized_attention,
        draw_attention,
        **PAIR,
        keys_out=(None, None),
        queries_out=(-2, -1),
        mask="mask",
        options={"score": MERGING_SCORES, "rounding": [schedules.round_to_e4m3, schedules.round_to_e5m2]},
        needed={"rounding": schedules.round_to_e4m3},
    ),
}

OTHERS = {
    "schedules.stripes": "two whole numbers, and gives positions",
    "schedules.zigzag": "two whole numbers, and gives positions",
    "schedules.live_pairs": "positions alone, and counts with NumPy",
    "schedules.block_layout": "a mask, and gives a layout in plain numbers",
    "schedules.visited_pairs": "a layout and two lengths",
}
