"""softlookup.schedules.ring: several devices, simulated and, with gloo, real."""

import contextlib
import itertools
import math
import pathlib
import subprocess
import sys
import time
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from invariants import held
from libraries import finite_differences
from subjects import SUBJECTS

from softlookup.lookup import attention, attention_vjp, scaled_dot
from softlookup.masks import causal, sliding_window, strictly_causal
from softlookup.schedules import (
    all_to_all_attention,
    live_pairs,
    merge_all,
    partial_attention,
    ring_attention,
    ring_attention_vjp,
    ring_step,
    ring_step_vjp,
    stripes,
    tree_attention,
    tree_step,
    zigzag,
)

INF, NAN = math.inf, math.nan
CLOSE = {"rtol": 1e-11, "atol": 1e-12}


def random_arrays(seed, *shapes):
    rng = np.random.default_rng(seed)
    return [rng.normal(size=shape) for shape in shapes]


def contiguous(m, *, devices):
    return np.array_split(np.arange(m), devices)


WINDOW = partial(sliding_window, left=2, right=0)
LAYOUTS = [contiguous, stripes, zigzag]


def deal(x, places):
    return [x[..., np.asarray(place, dtype=int), :] for place in places]


def collect(parts, places):
    order = np.argsort(np.concatenate(places))
    return np.concatenate(parts, axis=-2)[..., order, :]


def loop(q, k, v, allowed):
    """Attention with plain numbers, one head."""
    rows = []
    for i in range(len(q)):
        read = [j for j in range(len(k)) if allowed(i, j)]
        e = [math.exp(math.fsum(q[i] * k[j]) / math.sqrt(q.shape[1])) for j in read]
        total = math.fsum(e)
        rows.append(
            [
                math.fsum(x * v[j, c] for x, j in zip(e, read, strict=True)) / total if read else 0.0
                for c in range(v.shape[1])
            ]
        )
    return np.array(rows).reshape(len(q), v.shape[1])


def everything(i, j):
    return True


def not_later(i, j):
    return j <= i


class TestRingStep:
    def test_by_hand(self, xp):
        """Part A has the total 4 and the output 5, the block the total 12 and the output 7."""
        q, k, v = xp.asarray([[1.0]]), xp.asarray(np.log([[4.0], [8.0]])), xp.asarray([[3.0], [9.0]])
        out, lse = ring_step(xp.asarray([[5.0]]), xp.asarray([math.log(4)]), q, k, v)
        xp.check(out, [[6.5]])
        xp.check(lse, [math.log(16)])

    def test_a_block_that_is_hidden_changes_nothing(self, xp):
        out, lse, q, k, v = random_arrays(0, (3, 2), (3,), (3, 4), (5, 4), (5, 2))
        k[2], v[3] = NAN, INF
        hidden = xp.asarray(np.zeros((3, 5)), "bool")
        new = ring_step(*map(xp.asarray, (out, lse, q, k, v)), mask=hidden)
        xp.check(new[0], out, tolerance=0)
        xp.check(new[1], lse, tolerance=0)

    def test_a_wide_state_stays_wide(self, xp):
        out, lse, q, k, v = random_arrays(1, (3, 2), (3,), (3, 4), (5, 4), (5, 2))
        for dtype in xp.narrow_dtypes:
            narrow = [xp.asarray(a, dtype) for a in (q, k, v)]
            new = ring_step(xp.asarray(out, "float32"), xp.asarray(lse, "float32"), *narrow)
            expected = ring_step(out, lse, *map(xp.numpy, narrow))
            xp.check(new[0], expected[0], dtype="float32", tolerance=1e-5)
            xp.check(new[1], expected[1], dtype="float32", tolerance=1e-5)

    def test_bad_input(self, xp):
        out, lse, q, k, v = (xp.asarray(a) for a in random_arrays(2, (3, 2), (3,), (3, 4), (5, 4), (5, 2)))
        with pytest.raises(ValueError, match="out_b has shape"):
            ring_step(out[:2, :], lse[:2], q, k, v)
        with pytest.raises(ValueError, match="lse_a has shape"):
            ring_step(out, lse[:2], q, k, v)
        with pytest.raises(ValueError, match="k has 5 items, v has 4"):
            ring_step(out, lse, q, k, v[:4, :])
        with pytest.raises(TypeError, match="q must be an array"):
            ring_step(out, lse, [[1.0]], k, v)


class TestRingAttention:
    @given(st.lists(st.integers(0, 3), min_size=1, max_size=4), st.booleans(), st.integers(0, 5))
    def test_is_the_loop_for_parts_of_any_length(self, lengths, masked, seed):
        n = sum(lengths)
        q, k, v = random_arrays(seed, (n, 3), (n, 3), (n, 2))
        ends = np.cumsum(lengths)
        places = [np.arange(end - length, end) for end, length in zip(ends, lengths, strict=True)]
        where = {"q_positions": places, "k_positions": places} if masked else {}
        outs, sent = ring_attention(deal(q, places), deal(k, places), deal(v, places), **where)
        expected = loop(q, k, v, not_later if masked else everything)
        np.testing.assert_allclose(np.concatenate(outs), expected, **CLOSE)
        devices = len(lengths)
        assert sent == [[5 * lengths[(p - t) % devices] for p in range(devices)] for t in range(devices - 1)]

    @pytest.mark.parametrize("layout", LAYOUTS)
    @pytest.mark.parametrize("devices", [1, 2, 3, 4, 9])
    @pytest.mark.parametrize("mask", [None, causal, strictly_causal, WINDOW])
    def test_is_attention_for_every_layout_and_mask(self, layout, devices, mask):
        q, k, v = random_arrays(3, (2, 4, 7, 3), (2, 2, 7, 3), (2, 1, 7, 2))
        places = layout(7, devices=devices)
        where = {} if mask is None else {"q_positions": places, "k_positions": places, "mask": mask}
        outs, sent = ring_attention(*(deal(x, places) for x in (q, k, v)), **where)
        allowed = None if mask is None else mask(np.arange(7), np.arange(7))
        np.testing.assert_allclose(collect(outs, places), attention(q, k, v, mask=allowed), **CLOSE)
        rows = [len(place) for place in places]
        per_row = 2 * (2 * 3 + 1 * 2)  # batch items, and heads times width
        assert sent == [[per_row * rows[p - t] for p in range(devices)] for t in range(devices - 1)]

    def test_queries_and_keys_may_be_other_texts(self, xp):
        """Four queries that stand after a cache of nine keys, on three devices; one has no queries."""
        q, k, v = random_arrays(4, (4, 3), (9, 3), (9, 2))
        q_places = [np.array([8]), np.array([], dtype=int), np.array([6, 5, 7])]
        k_places = [np.array([3, 0]), np.array([8, 1, 2, 4, 5]), np.array([7, 6])]
        outs, _ = ring_attention(
            *[
                [xp.asarray(x) for x in xs]
                for xs in (deal(q, [[3], [], [1, 0, 2]]), deal(k, k_places), deal(v, k_places))
            ],
            q_positions=q_places,
            k_positions=k_places,
        )
        expected = attention(q, k, v, mask=causal(np.arange(5, 9), np.arange(9)))
        for ours, rows in zip(outs, ([3], [], [1, 0, 2]), strict=True):
            xp.check(ours, expected[np.asarray(rows, dtype=int)])

    def test_without_positions_nothing_is_hidden(self):
        x = np.arange(6.0)[:, None]
        parts = deal(x, contiguous(6, devices=3))
        outs, _ = ring_attention(parts, parts, parts, mask=strictly_causal)
        np.testing.assert_allclose(np.concatenate(outs), attention(x, x, x), **CLOSE)

    def test_another_score(self, xp):
        q, k, v = random_arrays(5, (5, 3), (5, 3), (5, 2))
        score, places = scaled_dot(scale=0.7, cap=1.5), contiguous(5, devices=2)
        outs, _ = ring_attention(*([xp.asarray(x) for x in deal(a, places)] for a in (q, k, v)), score=score)
        expected = attention(q, k, v, score=score)
        for ours, place in zip(outs, places, strict=True):
            xp.check(ours, expected[place])

    def test_narrow_parts_are_rounded_once(self, xp):
        q, k, v = random_arrays(6, (6, 4), (6, 4), (6, 2))
        places = zigzag(6, devices=3)
        for dtype in xp.narrow_dtypes:
            narrow = [[xp.asarray(x, dtype) for x in deal(a, places)] for a in (q, k, v)]
            single = [[xp.asarray(xp.numpy(x), "float32") for x in xs] for xs in narrow]
            for ours, expected in zip(ring_attention(*narrow)[0], ring_attention(*single)[0], strict=True):
                xp.check(ours, xp.numpy(xp.asarray(xp.numpy(expected), dtype)), dtype=dtype, tolerance=0)

    def test_one_narrow_part_does_not_narrow_the_others(self, xp):
        one, two = xp.asarray([[1.0]], "float32"), xp.asarray([[2.0]])
        outs, _ = ring_attention([one, two], [one, two], [one, two])
        for out in outs:
            assert xp.dtype_of(out) == xp.dtype("float64")

    def test_hidden_nan_and_large_scores(self, xp):
        """NaN at the last position, which the others may not read, and scores of a thousand."""
        q, k, v = random_arrays(7, (6, 2), (6, 2), (6, 2))
        q *= 1000
        k[5], v[5] = NAN, INF
        places = stripes(6, devices=2)
        outs, _ = ring_attention(
            *([xp.asarray(x) for x in deal(a, places)] for a in (q, k, v)), q_positions=places, k_positions=places
        )
        got = collect([xp.numpy(x) for x in outs], places)
        expected = attention(q[:5], k[:5], v[:5], mask=np.tri(5, dtype=bool))
        np.testing.assert_allclose(got[:5], expected, rtol=1e-9, atol=1e-9)
        assert np.isnan(got[5]).all()

    def test_a_query_before_every_key_gets_zeros(self, xp):
        x = [xp.asarray([[1.0, 2.0]]), xp.asarray([[3.0, 4.0]])]
        outs, _ = ring_attention(x, x, x, q_positions=[[-7], [10**9]], k_positions=[[0], [10**9 + 1]])
        xp.check(outs[0], [[0.0, 0.0]])
        xp.check(outs[1], [[1.0, 2.0]])

    def test_thousands_of_positions(self):
        q, k, v = random_arrays(8, (2000, 4), (2000, 4), (2000, 4))
        places = zigzag(2000, devices=8)
        outs, _ = ring_attention(*(deal(x, places) for x in (q, k, v)), q_positions=places, k_positions=places)
        np.testing.assert_allclose(
            collect(outs, places), attention(q, k, v, mask=np.tri(2000, dtype=bool)), rtol=1e-9, atol=1e-11
        )

    def test_a_text_that_grows_leaves_earlier_rows_alone(self):
        """Position by position: the new query goes around the devices, or stays and the keys do."""
        q, k, v = random_arrays(9, (2, 9, 3), (2, 9, 3), (2, 9, 2))
        whole = attention(q, k, v, mask=np.tri(9, dtype=bool))
        for t in range(9):
            places = stripes(t + 1, devices=3)
            outs, _ = ring_attention(*(deal(x, places) for x in (q, k, v)), q_positions=places, k_positions=places)
            np.testing.assert_allclose(collect(outs, places), whole[:, : t + 1], **CLOSE)
            out, _ = tree_attention(q[:, t : t + 1], deal(k, places), deal(v, places))
            np.testing.assert_allclose(out[:, 0], whole[:, t], **CLOSE)

    def test_agrees_with_torch_on_the_whole_text(self, torch, agree):
        q, k, v = random_arrays(10, (2, 4, 13, 8), (2, 2, 13, 8), (2, 2, 13, 8))
        places = zigzag(13, devices=4)
        theirs = torch.nn.functional.scaled_dot_product_attention(
            *map(torch.tensor, (q, k, v)), is_causal=True, enable_gqa=True
        )
        outs, _ = ring_attention(*(deal(x, places) for x in (q, k, v)), q_positions=places, k_positions=places)
        agree(
            collect(outs, places),
            theirs,
            function="schedules.ring_attention",
            stranger="torch scaled_dot_product_attention, on the text in one place",
            version=f"torch {torch.__version__.partition('+')[0]}",
            dtype="float64",
        )

    def test_bad_input(self, xp):
        x = [xp.asarray(np.ones((2, 3))), xp.asarray(np.ones((1, 3)))]
        with pytest.raises(TypeError, match="qs must be a list"):
            ring_attention(x[0], x, x)
        with pytest.raises(ValueError, match="one entry for each device.*'ks': 1"):
            ring_attention(x, x[:1], x)
        with pytest.raises(ValueError, match="at least one"):
            ring_attention([], [], [])
        with pytest.raises(ValueError, match="given together"):
            ring_attention(x, x, x, q_positions=[[0, 1], [2]])
        with pytest.raises(ValueError, match="given together"):
            ring_attention(x, x, x, k_positions=[[0, 1], [2]])
        with pytest.raises(ValueError, match=r"k_positions\[1\] has shape \(2,\); it must be \(1,\)"):
            ring_attention(x, x, x, q_positions=[[0, 1], [2]], k_positions=[[0, 1], [2, 3]])
        with pytest.raises(ValueError, match="one entry for each device"):
            ring_attention(x, x, x, q_positions=[[0, 1]], k_positions=[[0, 1], [2]])
        with pytest.raises(TypeError, match=r"vs\[1\] must be an array"):
            ring_attention(x, x, [x[0], 1.0])
        with pytest.raises(ValueError, match="k has 2 items, v has 1"):
            ring_attention(x, x, x[::-1])


class TestRingStepVjp:
    @pytest.mark.parametrize("masked", [False, True])
    def test_blocks_add_up_to_the_gradient_of_the_whole(self, xp, masked):
        g, q, k, v = random_arrays(11, (4, 5, 2), (4, 5, 3), (2, 7, 3), (1, 7, 2))
        mask = np.random.default_rng(12).random((5, 7)) < 0.6 if masked else np.ones((5, 7), dtype=bool)
        mask[3] = ~np.asarray(masked)
        out, lse = partial_attention(q, k, v, mask=mask)
        dq, blocks = 0.0, []
        for cut in (slice(4, 7), slice(0, 4)):
            arrays = map(xp.asarray, (g, q, k[:, cut], v[:, cut], out, lse))
            adds = ring_step_vjp(*arrays, mask=xp.asarray(mask[:, cut], "bool"))
            dq = dq + xp.numpy(adds[0])
            blocks.append([xp.numpy(x) for x in adds[1:]])
        expected = attention_vjp(g, q, k, v, mask=mask)
        np.testing.assert_allclose(dq, expected[0], rtol=1e-5 if not xp.wide else 1e-10, atol=1e-11)
        for ours, theirs in zip(zip(*blocks[::-1], strict=True), expected[1:3], strict=True):
            np.testing.assert_allclose(np.concatenate(ours, axis=-2), theirs, rtol=1e-10, atol=1e-11)

    def test_a_hidden_nan_reaches_nothing(self, xp):
        g, q, k, v, out, lse = random_arrays(13, (2, 2), (2, 3), (3, 3), (3, 2), (2, 2), (2,))
        mask = np.array([[True, True, False], [True, False, False]])
        clean = ring_step_vjp(g, q, k, v, out, lse, mask=mask)
        k[2], v[1] = INF, NAN
        lse[1], out[1] = 0.5, 1.0
        ours = ring_step_vjp(*map(xp.asarray, (g, q, k, v, out, lse)), mask=xp.asarray(mask, "bool"))
        xp.check(ours[1][2:, :], np.zeros((1, 3)))
        assert np.isfinite(xp.numpy(ours[0])[1]).all()
        assert np.isfinite(clean[0]).all()

    def test_bad_input(self, xp):
        g, q, k, v, out, lse = (xp.asarray(a) for a in random_arrays(14, (3, 2), (3, 4), (5, 4), (5, 2), (3, 2), (3,)))
        with pytest.raises(ValueError, match="g has shape"):
            ring_step_vjp(g[:2, :], q, k, v, out, lse)
        with pytest.raises(ValueError, match="lse has shape"):
            ring_step_vjp(g, q, k, v, out, lse[:2])
        with pytest.raises(ValueError, match="out has shape"):
            ring_step_vjp(g, q, k, v, lse[0], lse)


class TestRingAttentionVjp:
    @pytest.mark.parametrize("layout", LAYOUTS)
    @pytest.mark.parametrize("devices", [1, 2, 4])
    def test_is_the_gradient_of_attention(self, layout, devices):
        g, q, k, v = random_arrays(15, (4, 7, 2), (4, 7, 3), (2, 7, 3), (2, 7, 2))
        places = layout(7, devices=devices)
        *ours, sent = ring_attention_vjp(
            *(deal(x, places) for x in (g, q, k, v)), q_positions=places, k_positions=places
        )
        expected = attention_vjp(g, q, k, v, mask=np.tri(7, dtype=bool))
        for parts, theirs in zip(ours, expected[:3], strict=True):
            np.testing.assert_allclose(collect(parts, places), theirs, **CLOSE)
        rows = [len(place) for place in places]
        times = [2] * (devices - 1) + [1]
        expected = [[times[t] * 2 * (3 + 2) * rows[p - t] for p in range(devices)] for t in range(devices)]
        assert sent == (expected if devices > 1 else [])

    def test_without_positions_and_with_another_mask(self):
        g, q, k, v = random_arrays(16, (5, 2), (5, 3), (5, 3), (5, 2))
        places = contiguous(5, devices=2)
        lists = [deal(x, places) for x in (g, q, k, v)]
        window = partial(sliding_window, left=1, right=0)
        for where, mask in (
            ({}, None),
            ({"q_positions": places, "k_positions": places, "mask": window}, window(np.arange(5), np.arange(5))),
        ):
            for parts, theirs in zip(
                ring_attention_vjp(*lists, **where), attention_vjp(g, q, k, v, mask=mask), strict=True
            ):
                if theirs is not None:
                    np.testing.assert_allclose(np.concatenate(parts), theirs, **CLOSE)

    def test_finite_differences(self):
        g, q, k, v = random_arrays(17, (4, 2), (4, 2), (4, 2), (4, 2))
        places = stripes(4, devices=3)

        def whole(*arrays):
            lists = (deal(x, places) for x in arrays)
            return collect(ring_attention(*lists, q_positions=places, k_positions=places)[0], places)

        *ours, _ = ring_attention_vjp(*(deal(x, places) for x in (g, q, k, v)), q_positions=places, k_positions=places)
        for parts, expected in zip(ours, finite_differences(whole, g, q, k, v), strict=True):
            np.testing.assert_allclose(collect(parts, places), expected, rtol=1e-6, atol=1e-8)

    def test_agrees_with_autograd_of_torch(self, torch, agree):
        g, q, k, v = random_arrays(18, (2, 6, 3), (2, 6, 4), (2, 6, 4), (2, 6, 3))
        places = zigzag(6, devices=2)
        leaves = [torch.tensor(x, requires_grad=True) for x in (q, k, v)]
        out = torch.nn.functional.scaled_dot_product_attention(*leaves, is_causal=True)
        theirs = torch.autograd.grad(out, leaves, torch.tensor(g))
        *ours, _ = ring_attention_vjp(*(deal(x, places) for x in (g, q, k, v)), q_positions=places, k_positions=places)
        agree(
            np.concatenate([collect(parts, places).ravel() for parts in ours]),
            torch.cat([x.ravel() for x in theirs]),
            function="schedules.ring_attention_vjp",
            stranger="torch autograd of scaled_dot_product_attention",
            version=f"torch {torch.__version__.partition('+')[0]}",
            dtype="float64",
        )

    def test_autograd_through_the_simulation(self, autograd):
        q, k, v = random_arrays(19, (4, 3), (4, 3), (4, 2))
        places = contiguous(4, devices=2)
        where = {"q_positions": places, "k_positions": places}

        def whole(*arrays):
            return sum(ring_attention(*([x[:2, :], x[2:, :]] for x in arrays), **where)[0])

        theirs = autograd.vjp(whole, autograd.asarray(np.ones((2, 2))), *map(autograd.asarray, (q, k, v)))
        *ours, _ = ring_attention_vjp(*(deal(x, places) for x in (np.ones((4, 2)), q, k, v)), **where)
        for gradient, parts in zip(theirs, ours, strict=True):
            autograd.check(gradient, collect(parts, places), tolerance=1e-10)


class TestStripes:
    def test_by_hand(self):
        assert [place.tolist() for place in stripes(7, devices=3)] == [[0, 3, 6], [1, 4], [2, 5]]
        assert [place.tolist() for place in stripes(1, devices=3)] == [[0], [], []]

    @given(st.integers(0, 40), st.integers(1, 9))
    def test_every_position_stands_on_one_device(self, m, devices):
        places = stripes(m, devices=devices)
        assert len(places) == devices
        assert all((place % devices == p).all() for p, place in enumerate(places))
        assert sorted(np.concatenate(places)) == list(range(m))

    def test_bad_input(self):
        with pytest.raises(ValueError, match="m is -1"):
            stripes(-1, devices=2)
        with pytest.raises(ValueError, match="devices is 0"):
            stripes(4, devices=0)
        with pytest.raises(TypeError, match="devices must be an integer"):
            stripes(4, devices=1.5)


class TestZigzag:
    def test_by_hand(self):
        assert [place.tolist() for place in zigzag(8, devices=2)] == [[0, 1, 6, 7], [2, 3, 4, 5]]
        assert [place.tolist() for place in zigzag(5, devices=2)] == [[0, 1, 4], [2, 3]]
        assert [place.tolist() for place in zigzag(1, devices=2)] == [[0], []]

    @given(st.integers(0, 40), st.integers(1, 9))
    def test_every_position_stands_on_one_device(self, m, devices):
        places = zigzag(m, devices=devices)
        assert len(places) == devices
        assert sorted(np.concatenate(places)) == list(range(m))
        assert all((np.diff(place) > 0).all() for place in places)

    @pytest.mark.parametrize(("m", "devices"), [(16, 2), (24, 4), (48, 3)])
    def test_agrees_with_the_balancer_of_torch(self, torch, agree, m, devices):
        theirs = pytest.importorskip("torch.distributed.tensor.experimental._context_parallel._load_balancer")
        balancer = theirs._HeadTailLoadBalancer(m, devices, "cpu")
        order = np.concatenate(zigzag(m, devices=devices))
        for restore, ours in ((False, order), (True, np.argsort(order))):
            agree(
                ours,
                balancer._generate_indices(restore=restore)[0],
                function="schedules.zigzag",
                stranger="torch, balancer of context-parallel attention",
                version=f"torch {torch.__version__.partition('+')[0]}",
                dtype="float64",
                exact=True,
                clash="twice the number of devices must divide the length",
            )

    def test_bad_input(self):
        with pytest.raises(ValueError, match="m is -1"):
            zigzag(-1, devices=2)
        with pytest.raises(ValueError, match="devices is 0"):
            zigzag(4, devices=0)
        with pytest.raises(TypeError, match="m must be an integer"):
            zigzag(4.0, devices=2)


class TestLivePairs:
    def test_by_hand(self):
        """Four positions in order on two devices: a triangle each, then nothing and a square."""
        halves = [[0, 1], [2, 3]]
        assert live_pairs(halves, halves).tolist() == [[3, 3], [0, 4]]
        assert live_pairs(halves, halves, mask=strictly_causal).tolist() == [[1, 1], [0, 4]]
        assert live_pairs([[3], np.array([], dtype=int)], halves).tolist() == [[2, 0], [2, 0]]

    @pytest.mark.parametrize("layout", LAYOUTS)
    @pytest.mark.parametrize(("m", "devices"), [(0, 2), (7, 1), (7, 3), (12, 4), (3, 5)])
    def test_all_pairs_are_counted_once(self, layout, m, devices):
        places = layout(m, devices=devices)
        pairs = live_pairs(places, places)
        assert pairs.shape == (devices, devices)
        assert pairs.sum() == m * (m + 1) // 2
        for p, t in itertools.product(range(devices), repeat=2):
            block = places[(p - t) % devices]
            assert pairs[t, p] == sum(j <= i for i in places[p] for j in block)

    @pytest.mark.parametrize("devices", [1, 2, 3, 4, 8])
    @pytest.mark.parametrize("c", [1, 2, 5])
    def test_the_formulas(self, devices, c):
        """Pieces of c positions for zigzag, parts of c for the others."""
        device, step = np.arange(devices), np.arange(devices)[:, None]
        earlier = step <= device  # the block comes from this device or from one before
        places = contiguous(c * devices, devices=devices)
        expected = np.where(step == 0, c * (c + 1) // 2, np.where(earlier, c * c, 0))
        np.testing.assert_array_equal(live_pairs(places, places), np.broadcast_to(expected, (devices, devices)))
        places = stripes(c * devices, devices=devices)
        expected = np.where(earlier, c * (c + 1) // 2, c * (c - 1) // 2)
        np.testing.assert_array_equal(live_pairs(places, places), expected)
        places = zigzag(2 * c * devices, devices=devices)
        expected = np.where(step == 0, c * (2 * c + 1), 2 * c * c)
        np.testing.assert_array_equal(live_pairs(places, places), np.broadcast_to(expected, (devices, devices)))

    @given(st.integers(1, 60), st.integers(2, 6))
    def test_zigzag_is_even_exactly_when_its_pieces_are(self, m, devices):
        totals = live_pairs(zigzag(m, devices=devices), zigzag(m, devices=devices)).sum(axis=0)
        assert (len(set(totals)) == 1) == (m % (2 * devices) == 0)

    def test_bad_input(self):
        with pytest.raises(ValueError, match="one entry for each device"):
            live_pairs([[0]], [[0], [1]])
        with pytest.raises(TypeError, match="q_positions must be a list"):
            live_pairs(np.arange(3), [[0]])


class TestTreeStep:
    def test_by_hand(self, xp):
        blend, total = tree_step(xp.asarray([[5.0]]), xp.asarray([math.log(4)]), xp.asarray([math.log(16)]))
        xp.check(blend, [[1.25]])
        xp.check(total, [0.25])

    def test_infinities(self, xp):
        out, lse = xp.asarray([[NAN], [1.0], [2.0], [3.0]]), xp.asarray([-INF, -INF, INF, 0.0])
        blend, total = tree_step(out, lse, xp.asarray([-INF, 2.0, INF, INF]))
        xp.check(blend, [[0.0], [0.0], [2.0], [0.0]])
        xp.check(total, [0.0, 0.0, 1.0, 0.0])

    def test_bad_input(self, xp):
        out, lse = xp.asarray(np.ones((3, 2))), xp.asarray(np.ones(3))
        with pytest.raises(ValueError, match="lse has shape"):
            tree_step(out, lse[:2], lse)
        with pytest.raises(ValueError, match="top has shape"):
            tree_step(out, lse, lse[:2])
        with pytest.raises(ValueError, match="out has shape"):
            tree_step(lse[0], lse, lse)


class TestTreeAttention:
    def test_by_hand(self, xp):
        q, ks, vs = xp.asarray([[1.0]]), np.log([[[1.0], [3.0]], [[4.0], [8.0]]]), [[[8.0], [4.0]], [[3.0], [9.0]]]
        out, sent = tree_attention(q, [xp.asarray(k) for k in ks], [xp.asarray(v) for v in vs])
        xp.check(out, [[6.5]])
        assert sent == [[0, 1], [1, 0], [0, 2], [2, 0]]

    @pytest.mark.parametrize("devices", [1, 2, 3, 4, 5, 8, 11])
    @pytest.mark.parametrize("masked", [False, True])
    def test_is_attention_and_a_merge_of_all(self, devices, masked):
        q, k, v = random_arrays(20, (2, 4, 2, 3), (2, 2, 9, 3), (2, 2, 9, 2))
        places = stripes(9, devices=devices)
        where = {"q_positions": [4, 8], "k_positions": places} if masked else {}
        out, sent = tree_attention(q, deal(k, places), deal(v, places), **where)
        allowed = causal(np.array([4, 8]), np.arange(9)) if masked else np.ones((2, 9), dtype=bool)
        np.testing.assert_allclose(out, attention(q, k, v, mask=allowed), **CLOSE)
        parts = [
            partial_attention(q, a, b, mask=allowed[:, place])
            for a, b, place in zip(deal(k, places), deal(v, places), places, strict=True)
        ]
        outs, lses = (np.stack([part[i] for part in parts], axis=axis) for i, axis in ((0, -3), (1, -2)))
        np.testing.assert_allclose(out, merge_all(outs, lses)[0], **CLOSE)
        rounds, rows = math.ceil(math.log2(devices)), 2 * 4 * 2
        assert len(sent) == 4 * rounds
        assert sum(map(sum, sent[: 2 * rounds])) == 2 * (devices - 1) * rows
        assert sum(map(sum, sent)) == 2 * (devices - 1) * rows * (2 + 2)

    def test_in_one_round_each_device_speaks_at_most_once_and_nobody_to_itself(self):
        q, k, v = random_arrays(21, (1, 3), (8, 3), (8, 2))
        places = contiguous(8, devices=8)
        _, sent = tree_attention(q, deal(k, places), deal(v, places))
        speakers = [[p for p, number in enumerate(row) if number] for row in sent]
        assert speakers[:6] == [[1, 3, 5, 7], [2, 6], [4], [0], [0, 4], [0, 2, 4, 6]]
        assert speakers[6:] == speakers[:6]

    def test_devices_without_keys_and_queries_that_read_nothing(self, xp):
        q, k, v = random_arrays(22, (2, 3), (2, 3), (2, 2))
        ks, vs = ([xp.asarray(x) for x in (a[:0], a, a[:0])] for a in (k, v))
        none = np.array([], dtype=int)
        out, _ = tree_attention(xp.asarray(q), ks, vs, q_positions=[-1, 1], k_positions=[none, [0, 1], none])
        xp.check(out, np.stack([np.zeros(2), attention(q, k, v)[1]]))

    def test_agrees_with_torch_on_the_whole_text(self, torch, agree):
        q, k, v = random_arrays(23, (2, 4, 1, 8), (2, 2, 30, 8), (2, 2, 30, 8))
        places = contiguous(30, devices=5)
        theirs = torch.nn.functional.scaled_dot_product_attention(*map(torch.tensor, (q, k, v)), enable_gqa=True)
        agree(
            tree_attention(q, deal(k, places), deal(v, places))[0],
            theirs,
            function="schedules.tree_attention",
            stranger="torch scaled_dot_product_attention, on the text in one place",
            version=f"torch {torch.__version__.partition('+')[0]}",
            dtype="float64",
        )

    def test_bad_input(self, xp):
        x = xp.asarray(np.ones((2, 3)))
        with pytest.raises(TypeError, match="ks must be a list"):
            tree_attention(x, x, [x])
        with pytest.raises(ValueError, match="one entry for each device"):
            tree_attention(x, [x], [x, x])
        with pytest.raises(ValueError, match="given together"):
            tree_attention(x, [x], [x], k_positions=[[0, 1]])
        with pytest.raises(TypeError, match="must be an array"):
            tree_attention(1.0, [x], [x])


class TestAllToAllAttention:
    @pytest.mark.parametrize("layout", LAYOUTS)
    @pytest.mark.parametrize("devices", [1, 2, 4])
    @pytest.mark.parametrize("mask", [None, causal, WINDOW])
    def test_is_attention(self, layout, devices, mask):
        q, k, v = random_arrays(24, (2, 8, 7, 3), (2, 4, 7, 3), (2, 4, 7, 2))
        places = layout(7, devices=devices)
        where = {} if mask is None else {"q_positions": places, "k_positions": places, "mask": mask}
        outs, sent = all_to_all_attention(*(deal(x, places) for x in (q, k, v)), **where)
        allowed = None if mask is None else mask(np.arange(7), np.arange(7))
        np.testing.assert_allclose(collect(outs, places), attention(q, k, v, mask=allowed), **CLOSE)
        rows = [len(place) for place in places]
        there = [2 * r * (8 * 3 + 4 * 3 + 4 * 2) * (devices - 1) // devices for r in rows]
        back = [2 * (7 - r) * 8 * 2 // devices for r in rows]
        assert sent == ([there, back] if devices > 1 else [])

    def test_queries_and_keys_may_be_other_texts(self, xp):
        q, k, v = random_arrays(25, (2, 3, 2), (2, 5, 2), (2, 5, 2))
        q_places, k_places = [[0], [1, 2]], [[0, 1, 2, 3], [4]]
        outs, _ = all_to_all_attention(
            *[[xp.asarray(x) for x in xs] for xs in (deal(q, q_places), deal(k, k_places), deal(v, k_places))]
        )
        expected = attention(q, k, v)
        xp.check(outs[0], expected[:, :1])
        xp.check(outs[1], expected[:, 1:])

    def test_key_heads_can_be_repeated_for_more_devices(self):
        q, k, v = random_arrays(26, (8, 6, 3), (2, 6, 3), (2, 6, 2))
        places = contiguous(6, devices=4)
        with pytest.raises(ValueError, match="ks have 2 heads, which 4 devices do not divide"):
            all_to_all_attention(*(deal(x, places) for x in (q, k, v)))
        twice = [np.repeat(x, 2, axis=-3) for x in (k, v)]
        outs, _ = all_to_all_attention(*(deal(x, places) for x in (q, *twice)))
        np.testing.assert_allclose(collect(outs, places), attention(q, k, v), **CLOSE)

    def test_agrees_with_torch_on_the_whole_text(self, torch, agree):
        q, k, v = random_arrays(27, (2, 4, 13, 8), (2, 2, 13, 8), (2, 2, 13, 8))
        places = contiguous(13, devices=2)
        theirs = torch.nn.functional.scaled_dot_product_attention(
            *map(torch.tensor, (q, k, v)), is_causal=True, enable_gqa=True
        )
        outs, _ = all_to_all_attention(*(deal(x, places) for x in (q, k, v)), q_positions=places, k_positions=places)
        agree(
            collect(outs, places),
            theirs,
            function="schedules.all_to_all_attention",
            stranger="torch scaled_dot_product_attention, on the text in one place",
            version=f"torch {torch.__version__.partition('+')[0]}",
            dtype="float64",
        )

    def test_bad_input(self, xp):
        x = [xp.asarray(np.ones((2, 3, 4)))] * 2
        with pytest.raises(ValueError, match="qs have 3 heads, which 2 devices do not divide"):
            all_to_all_attention([xp.asarray(np.ones((3, 3, 4)))] * 2, x, x)
        with pytest.raises(ValueError, match="an array of vs has shape"):
            all_to_all_attention(x, x, [xp.asarray(np.ones((3, 4)))] * 2)
        with pytest.raises(TypeError, match="ks must be a list"):
            all_to_all_attention(x, x[0], x)


def run_processes(folder, world, seconds=180):
    """Start the processes, wait for all of them, and leave none behind."""
    script = pathlib.Path(__file__).with_name("ring_processes.py")
    deadline = time.monotonic() + seconds
    with contextlib.ExitStack() as stack:
        processes = []
        for rank in range(world):
            log = stack.enter_context(open(folder / f"{rank}.log", "w+", encoding="utf-8"))
            command = [sys.executable, str(script), str(rank), str(world), str(folder)]
            processes.append(subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT))
            stack.callback(processes[-1].wait)
            stack.callback(processes[-1].kill)
        codes = [None] * world
        while None in codes and not any(codes) and time.monotonic() < deadline:
            time.sleep(0.02)
            codes = [process.poll() for process in processes]
    logs = "\n".join((folder / f"{rank}.log").read_text(encoding="utf-8") for rank in range(world))
    assert codes == [0] * world, f"exit codes {codes}\n{logs}"
    results = []
    for rank in range(world):
        with np.load(folder / f"{rank}.npz") as file:
            results.append(dict(file))
    return results


class TestRealProcesses:
    @pytest.mark.parametrize(("world", "layout", "m"), [(2, zigzag, 12), (4, contiguous, 10)], ids=["two", "four"])
    def test_agrees_with_processes_of_torch_over_gloo(self, torch, agree, tmp_path, world, layout, m):
        if sys.platform == "win32" or not (torch.distributed.is_available() and torch.distributed.is_gloo_available()):
            pytest.skip("no gloo over a loopback device whose name is known")
        g, q, k, v = random_arrays(28, (8, m, 3), (8, m, 4), (4, m, 4), (4, m, 3))
        places = layout(m, devices=world)
        named = {f"places_{p}": place for p, place in enumerate(places)}
        np.savez(tmp_path / "inputs.npz", g=g, q=q, k=k, v=v, **named)
        results = run_processes(tmp_path, world)
        lists = [deal(x, places) for x in (g, q, k, v)]
        where = {"q_positions": places, "k_positions": places}
        mask = np.tri(m, dtype=bool)
        expected = attention(q, k, v, mask=mask)
        for form in ("ring", "all_to_all"):
            np.testing.assert_allclose(collect([r[form] for r in results], places), expected, **CLOSE)
        for name, theirs in zip(("dq", "dk", "dv"), attention_vjp(g, q, k, v, mask=mask)[:3], strict=True):
            np.testing.assert_allclose(collect([r[name] for r in results], places), theirs, **CLOSE)
        for r in results:
            np.testing.assert_allclose(r["tree"], expected[:, -1:], **CLOSE)
        outs, around = ring_attention(*lists[1:], **where)
        swapped, exchanged = all_to_all_attention(*lists[1:], **where)
        *_, back = ring_attention_vjp(*lists, **where)
        np.testing.assert_array_equal([r["sent"] for r in results], np.transpose([*around, *back, *exchanged]))
        version = f"torch {torch.__version__.partition('+')[0]}"
        agree(
            np.concatenate(outs, axis=-2),
            np.concatenate([r["ring"] for r in results], axis=-2),
            function="schedules.ring_attention",
            stranger="the same steps in processes that send blocks with torch.distributed, gloo",
            version=version,
            dtype="float64",
        )
        agree(
            np.concatenate(swapped, axis=-2),
            np.concatenate([r["all_to_all"] for r in results], axis=-2),
            function="schedules.all_to_all_attention",
            stranger="the same exchange in processes that send heads with torch.distributed, gloo",
            version=version,
            dtype="float64",
        )
        agree(
            tree_attention(q[:, -1:], *lists[2:])[0],
            results[0]["tree"],
            function="schedules.tree_attention",
            stranger="the same steps in processes, with all_reduce of torch.distributed, gloo",
            version=version,
            dtype="float64",
        )
        if "ring_of_torch" in results[0]:
            agree(
                np.concatenate(outs, axis=-2),
                np.concatenate([r["ring_of_torch"] for r in results], axis=-2),
                function="schedules.ring_attention",
                stranger="torch, ring of context-parallel attention in processes over gloo",
                version=version,
                dtype="float64",
                clash="zigzag only under a causal mask, and only with equal pieces",
            )

    def test_a_failure_of_torch_processes_is_reported_and_leaves_none(self, torch, tmp_path):
        """The second process fails while the first one waits for its block: that is reported, and both are ended."""
        x = np.ones((2, 4, 3))
        np.savez(tmp_path / "inputs.npz", g=x, q=x, k=x, v=x, places_0=[0, 1], places_1=[2, 99])
        start = time.monotonic()
        with pytest.raises(AssertionError, match=r"exit codes \[.*, 1\][\s\S]*IndexError"):
            run_processes(tmp_path, 2, seconds=60)
        assert time.monotonic() - start < 90


@pytest.mark.parametrize(("name", "invariant"), held("schedules/ring"))
def test_shared_invariants(xp, name, invariant):
    invariant(SUBJECTS[name], xp)
