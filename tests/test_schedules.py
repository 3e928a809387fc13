"""Every exact schedule through the public cases on masks, alignment, scale, cap, heads and numbers."""

import functools

import numpy as np
import pytest

from softlookup import schedules
from softlookup.lookup import scaled_dot
from softlookup.masks import sliding_window

LEFT = scaled_dot()


def at(places, others, *, mask):
    """The part of a mask for some queries and some keys."""
    return mask[..., np.asarray(places)[:, None], np.asarray(others)]


def dealt(x):
    """An array in two uneven parts along its items, and where these stand."""
    cut = x.shape[-2] // 3
    return [x[..., :cut, :], x[..., cut:, :]], [np.arange(cut), np.arange(cut, x.shape[-2])]


def ring(q, k, v, mask, score):
    (qs, q_positions), (ks, k_positions), (vs, _) = dealt(q), dealt(k), dealt(v)
    places = {"q_positions": q_positions, "k_positions": k_positions}
    outs, _ = schedules.ring_attention(qs, ks, vs, **places, mask=functools.partial(at, mask=mask), score=score)
    return np.concatenate(outs, axis=-2)


def tree(q, k, v, mask, score):
    (ks, k_positions), (vs, _) = dealt(k), dealt(v)
    places = {"q_positions": np.arange(q.shape[-2]), "k_positions": k_positions}
    return schedules.tree_attention(q, ks, vs, **places, mask=functools.partial(at, mask=mask), score=score)[0]


def blocks(q, k, v, mask, score):
    layout = schedules.block_layout(mask, rows=2, columns=2)
    return schedules.block_sparse_attention(q, k, v, layout=layout, mask=mask, score=score)[0]


def parts(q, k, v, mask, score):
    cut = k.shape[-2] // 3
    sides = [(k[..., s, :], v[..., s, :], mask[..., s]) for s in (slice(None, cut), slice(cut, None))]
    pairs = [schedules.partial_attention(q, k, v, mask=mask, score=score) for k, v, mask in sides]
    return schedules.merge(*pairs[0], *pairs[1])[0]


SCHEDULES = {
    "online": lambda q, k, v, mask, score: schedules.online_attention(q, k, v, block=2, mask=mask, score=score),
    "split": lambda q, k, v, mask, score: schedules.split_attention(q, k, v, size=2, mask=mask, score=score),
    "merged": parts,
    "flash by queries": lambda q, k, v, mask, score: schedules.flash_attention(
        q, k, v, tiles=(2, 2), mask=mask, score=score
    )[0],
    "flash by keys": lambda q, k, v, mask, score: schedules.flash_attention_by_keys(
        q, k, v, tiles=(2, 2), mask=mask, score=score
    )[0],
    "ring": ring,
    "tree": tree,
    "live blocks": blocks,
}

ALL, TRI = np.ones((1, 1), dtype=bool), functools.partial(np.tri, dtype=bool)
ONE = scaled_dot(scale=1.0)
SETTINGS = [
    ("M01", "out", lambda given: given["keep"], LEFT),
    ("M03", "out", lambda given: given["keep"], LEFT),
    ("M06", "out", lambda given: TRI(4) & np.asarray(given["key_valid"]), LEFT),
    ("C01", "out_bottom_right", lambda given: TRI(2, 5, 3), LEFT),
    ("C01", "out_top_left", lambda given: TRI(2, 5), LEFT),
    ("C02", "out_bottom_right", lambda given: TRI(5, 2, -3), LEFT),
    ("C02", "out_top_left", lambda given: TRI(5, 2), LEFT),
    ("S01", "out", lambda given: ALL, LEFT),
    ("S05", "out", lambda given: given["keep"], scaled_dot(scale=1.0, cap=1.0)),
    ("W01", "out_w_counts_self", lambda given: sliding_window(np.arange(4), np.arange(4), left=1, right=0), LEFT),
    ("W01", "out_left_2_inclusive", lambda given: sliding_window(np.arange(4), np.arange(4), left=2, right=0), LEFT),
    ("H01", "out", lambda given: ALL, ONE),
    ("N05", "out", lambda given: ALL, LEFT),
]


def unmasked(schedule):
    def run(q, k, v):
        return SCHEDULES[schedule](q, k, v, np.ones((q.shape[-2], k.shape[-2]), dtype=bool), LEFT)

    return run


UNMASKED = {name: unmasked(name) for name in SCHEDULES} | {"fast": schedules.fast_attention}


def arrays(case, name, dtype=float):
    given = case(name)["inputs"]
    return given, [np.asarray(given[x], dtype=dtype) for x in "qkv"]


@pytest.mark.claims("M01", "M03", "M06", "C01", "C02", "S01", "S05", "W01", "H01", "N05")
@pytest.mark.parametrize(("name", "key", "mask", "score"), SETTINGS, ids=[f"{s[0]} {s[1]}" for s in SETTINGS])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_masks_alignment_scale_cap_and_heads(case, schedule, name, key, mask, score):
    given, (q, k, v) = arrays(case, name)
    pairs = np.broadcast_to(np.asarray(mask(given)), (*q.shape[:-2], q.shape[-2], k.shape[-2]))
    out = SCHEDULES[schedule](q, k, v, pairs, score)
    np.testing.assert_allclose(out, case(name)["expected"][key], rtol=1e-12, atol=1e-14)


@pytest.mark.claims("C01", "C02", "W01", "S01", "N05")
@pytest.mark.parametrize("workers", [1, 2])
def test_the_fast_form_where_it_has_the_setting(case, workers):
    settings = [
        ("C01", "out_bottom_right", {"causal": True}),
        ("C02", "out_bottom_right", {"causal": True}),
        ("W01", "out_w_counts_self", {"window": (1, 0)}),
        ("W01", "out_left_2_inclusive", {"window": (2, None), "causal": True}),
        ("S01", "out", {}),
        ("N05", "out", {}),
    ]
    for name, key, options in settings:
        out = schedules.fast_attention(*arrays(case, name)[1], **options, workers=workers)
        np.testing.assert_allclose(out, case(name)["expected"][key], rtol=1e-12, atol=1e-14)


@pytest.mark.claims("N01", "N13")
@pytest.mark.parametrize("schedule", UNMASKED)
def test_numbers_that_overflow_half_precision_and_sharp_scores(case, schedule):
    run = UNMASKED[schedule]
    out = run(*arrays(case, "N01", np.float16)[1])
    assert out.dtype == np.float16
    np.testing.assert_allclose(out.astype(float), case("N01")["expected"]["out"], rtol=2e-3, atol=2e-3)
    scores = np.asarray(case("N13")["inputs"]["scores"])
    out = run(np.ones((1, 1)), scores.T, np.eye(scores.shape[-1]))
    np.testing.assert_allclose(out, case("N13")["expected"]["weights"], rtol=1e-12, atol=1e-14)
    k, v = np.array([[1e4], [-1e4], [9999.0], [0.0]]), np.array([[1.0], [2.0], [3.0], [4.0]])
    share = 1 / (1 + np.exp(-1))
    np.testing.assert_allclose(run(np.array([[1.0], [-1.0]]), k, v), [[share + 3 * (1 - share)], [2.0]], rtol=1e-12)


@pytest.mark.claims("N09", "N10")
@pytest.mark.parametrize("schedule", UNMASKED)
def test_no_keys_no_queries_and_lengths_that_differ(case, schedule):
    run = UNMASKED[schedule]
    for n, m in ((2, 0), (0, 5), (0, 0), (1, 1)):
        out = run(np.ones((n, 2)), np.ones((m, 2)), np.ones((m, 3)))
        np.testing.assert_array_equal(out, np.ones((n, 3)) if m else np.zeros((n, 3)))
    shapes = {name: tuple(map(int, shape)) for name, shape in case("N10")["inputs"].items()}
    with pytest.raises(ValueError, match="items"):
        run(*(np.ones(shapes[f"{x}_shape"]) for x in "qkv"))
