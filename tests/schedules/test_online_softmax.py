"""softlookup.schedules.online_softmax: one pass over the keys, with a maximum that is corrected on the way."""

import functools
import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from invariants import held
from libraries import finite_differences
from subjects import SUBJECTS

from softlookup.lookup import (
    attention,
    attention_vjp,
    gaussian_score,
    hard_lookup,
    log_sum_exp,
    scaled_dot,
    softmax,
)
from softlookup.masks import causal
from softlookup.normalizers import sink_softmax
from softlookup.schedules import online_attention, online_log_sum_exp, online_softmax, online_update

INF, NAN = math.inf, math.nan
claims = pytest.mark.claims
BLOCKS = (1, 2, 3, 5, 8, 100)


def version(module):
    return f"{module.__name__} {module.__version__.partition('+')[0]}"


def loop(scores, values, allowed):
    """One query, one key at a time, in plain Python: maximum, total, blend."""
    top, total, blend = -INF, 0.0, [0.0] * len(values[0])
    for s, v, a in zip(scores, values, allowed, strict=True):
        if not a or s == -INF:
            continue
        new = max(top, s)
        kept, e = math.exp(top - new), math.exp(s - new)
        total = total * kept + e
        blend = [b * kept + e * x for b, x in zip(blend, v, strict=True)]
        top = new
    return top, total, blend


def dense(scores, allowed):
    """One row of softmax and its log-sum-exp, from all scores at once."""
    kept = [s for s, a in zip(scores, allowed, strict=True) if a and s > -INF]
    if not kept:
        return [0.0] * len(scores), -INF
    total = max(kept) + math.log(math.fsum(math.exp(s - max(kept)) for s in kept))
    return [math.exp(s - total) if a else 0.0 for s, a in zip(scores, allowed, strict=True)], total


@st.composite
def rows(draw):
    m = draw(st.integers(1, 7))
    scores = draw(hnp.arrays(np.float64, m, elements=st.floats(-40, 40) | st.just(-INF) | st.floats(-1e4, 1e4)))
    return scores, draw(hnp.arrays(bool, m)), draw(st.integers(1, 8))


def problem(seed=0, n=4, m=7):
    """Queries of four heads, keys and values of two, a mask with an empty row, a bias."""
    rng = np.random.default_rng(seed)
    q, k, v = rng.normal(size=(4, n, 3)), rng.normal(size=(2, m, 3)), rng.normal(size=(2, m, 2))
    mask = rng.random((4, n, m)) < 0.6
    mask[:, 0, :], mask[:, 1, :3] = False, False
    return q, k, v, mask, rng.normal(size=(4, 1, m))


class TestOnlineUpdate:
    def test_by_hand(self, xp):
        s, v = np.log([[1.0, 4.0, 2.0]]), np.array([[8.0], [4.0], [2.0]])
        state = xp.asarray([-INF]), xp.asarray([0.0]), xp.asarray([[0.0]])
        expected = [(0.0, 1.0, 8.0), (math.log(4), 1.25, 6.0), (math.log(4), 1.75, 7.0)]
        for j, (top, total, blend) in enumerate(expected):
            state = online_update(*state, xp.asarray(s[:, j : j + 1]), xp.asarray(v[j : j + 1]))
            for ours, theirs in zip(state, ([top], [total], [[blend]]), strict=True):
                xp.check(ours, theirs)

    @given(rows())
    def test_is_the_loop(self, row):
        scores, allowed, _ = row
        values = np.stack([np.arange(len(scores)) - 1.5, np.ones(len(scores))], axis=-1)
        ours = online_update(np.array([-INF]), np.zeros(1), np.zeros((1, 2)), scores[None], values, allowed[None])
        for one, two in zip(ours, loop(scores, values, allowed), strict=True):
            np.testing.assert_allclose(one[0], two, rtol=1e-12, atol=1e-300)

    def test_a_block_that_may_not_be_read_keeps_the_state(self, xp):
        state = xp.asarray([3.0, -INF]), xp.asarray([1.5, 0.0]), xp.asarray([[2.0], [0.0]])
        s, v = xp.asarray([[NAN, 9.0], [INF, 1.0]]), xp.asarray([[NAN], [INF]])
        hidden = xp.asarray(np.zeros((2, 2)), "bool")
        for block in ((s, v, hidden), (s[:, :0], v[:0, :])):
            for ours, before in zip(online_update(*state, *block), state, strict=True):
                xp.check(ours, xp.numpy(before), tolerance=0)

    def test_a_state_carried_over_a_cut_equals_the_whole(self, xp):
        rng = np.random.default_rng(1)
        s, v, allowed = rng.normal(size=(2, 3, 6)) * 9, rng.normal(size=(2, 6, 2)), rng.random((2, 3, 6)) < 0.7
        start = np.full((2, 3), -INF), np.zeros((2, 3)), np.zeros((2, 3, 2))
        arrays = [xp.asarray(a) for a in (s, v)] + [xp.asarray(allowed, "bool")]
        step = xp.quick(lambda state, s, v, a: online_update(*state, s, v, a))
        whole = step(tuple(map(xp.asarray, start)), *arrays)
        state = tuple(map(xp.asarray, start))
        for cut in (slice(0, 1), slice(1, 5), slice(5, 6)):
            state = step(state, arrays[0][..., cut], arrays[1][:, cut, :], arrays[2][..., cut])
        for ours, expected in zip(state, whole, strict=True):
            xp.check(ours, xp.numpy(expected))

    def test_a_sink_is_a_start(self, xp):
        rng = np.random.default_rng(2)
        s, v, z = rng.normal(size=(3, 5)), rng.normal(size=(5, 2)), rng.normal(size=3)
        start = xp.asarray(z), xp.asarray(np.ones(3)), xp.asarray(np.zeros((3, 2)))
        _, total, blend = online_update(*start, xp.asarray(s), xp.asarray(v))
        xp.check(blend / total[:, None], sink_softmax(z)(s) @ v)

    def test_more_batch_axes_in_the_values(self, xp):
        v = np.random.default_rng(3).normal(size=(2, 4, 3))
        state = xp.asarray([-INF]), xp.asarray([0.0]), xp.asarray(np.zeros((2, 1, 3)))
        _, total, blend = online_update(*state, xp.asarray(np.zeros((1, 4))), xp.asarray(v))
        xp.check(total, [4.0])
        xp.check(blend, v.sum(-2, keepdims=True))

    def test_the_state_decides_the_precision(self, xp):
        for narrow in xp.narrow_dtypes:
            state = xp.asarray([0.0], "float32"), xp.asarray([1.0], "float32"), xp.asarray([[1.0]], "float32")
            ours = online_update(*state, xp.asarray([[0.0]], narrow), xp.asarray([[2.0**-9]], narrow))
            xp.check(ours[2], [[1 + 2.0**-9]], dtype="float32", tolerance=0)

    def test_gradients(self, autograd):
        rng = np.random.default_rng(4)
        start = rng.normal(size=2), 1 + rng.random(2), rng.normal(size=(2, 2))
        s, v, allowed = rng.normal(size=(2, 3)), rng.normal(size=(3, 2)), np.array([[1, 0, 1], [0, 0, 0]], bool)

        def out(*arrays, mask=allowed):
            _, total, blend = online_update(*arrays, mask)
            return blend / total[:, None]

        g = rng.normal(size=(2, 2))
        expected = finite_differences(out, g, *start, s, v)
        mask = autograd.asarray(allowed, "bool")
        arrays = [autograd.asarray(a) for a in (g, *start, s, v)]
        for ours, theirs in zip(autograd.vjp(lambda *a: out(*a, mask=mask), *arrays), expected, strict=True):
            autograd.check(ours, theirs, tolerance=1e-8)

    def test_bad_input(self, xp, other):
        top, total, blend = xp.asarray(np.zeros(2)), xp.asarray(np.ones(2)), xp.asarray(np.zeros((2, 3)))
        s, v = xp.asarray(np.zeros((2, 4))), xp.asarray(np.zeros((4, 3)))
        for arguments, message in (
            ((top[:1], total, blend, s, v), r"top.*\(1,\).*\(2,\)"),
            ((top, total[:1], blend, s, v), r"total.*\(1,\).*\(2,\)"),
            ((top, total, blend[:, :1], s, v), r"blend.*\(2, 1\).*\(2, 3\)"),
            ((top, total, blend, s[0, :], v), r"\bs\b.*\(4,\)"),
            ((top, total, blend, s, v[1:, :]), r"4 weights.*3 items"),
            ((top, total, blend, s, v, xp.asarray(np.ones((3, 2, 4)), "bool")), r"allowed.*\(3, 2, 4\)"),
        ):
            with pytest.raises(ValueError, match=message):
                online_update(*arguments)
        with pytest.raises(TypeError, match="allowed"):
            online_update(top, total, blend, s, v, s)
        with pytest.raises(TypeError, match="top"):
            online_update(other.asarray([0.0, 0.0]), total, blend, s, v)


class TestOnlineSoftmax:
    def test_by_hand(self, xp):
        s = xp.asarray(np.log([[1.0, 4.0, 2.0, 1.0]]))
        for block in BLOCKS:
            xp.check(online_softmax(s, block=block), [[1 / 8, 4 / 8, 2 / 8, 1 / 8]])

    @given(rows())
    def test_is_the_loop(self, row):
        scores, allowed, block = row
        ours = online_softmax(scores, allowed, block=block)
        top, total, _ = loop(scores, [[0.0]] * len(scores), allowed)
        expected = [math.exp(s - top) / total if a and s > -INF else 0.0 for s, a in zip(scores, allowed, strict=True)]
        np.testing.assert_allclose(ours, expected, rtol=1e-12, atol=1e-300)
        np.testing.assert_allclose(ours, dense(scores, allowed)[0], rtol=1e-10, atol=1e-300)

    def test_agrees_with_torch(self, torch, agree):
        s = np.random.default_rng(5).normal(size=(3, 40)) * 20
        for block in BLOCKS:
            agree(
                online_softmax(s, block=block),
                torch.softmax(torch.tensor(s), -1),
                function="schedules.online_softmax",
                stranger="torch.softmax",
                version=version(torch),
                dtype="float64",
            )

    def test_is_softmax_with_infinite_scores_and_empty_rows(self, xp):
        s = [[INF, 1.0, INF, -INF], [-INF] * 4, [NAN, 1.0, 2.0, 3.0], [NAN, 1.0, 2.0, INF], [1e4, -1e4, 1e4, 0.0]]
        allowed = [[True] * 4, [True] * 4, [False] * 4, [True] * 4, [False, True, False, True]]
        expected = [[0.5, 0, 0.5, 0], [0] * 4, [0] * 4, [NAN] * 4, [0, 0, 0, 1]]
        arrays = xp.asarray(s), xp.asarray(allowed, "bool")
        for block in (1, 3):
            xp.check(xp.quick(functools.partial(online_softmax, block=block))(*arrays), expected)
        xp.check(softmax(*arrays), expected)

    def test_carries_the_gradient_of_softmax(self):
        q, k, v = (np.random.default_rng(6).normal(size=shape) for shape in ((3, 2), (5, 2), (5, 2)))
        ours = attention_vjp(v[:3], q, k, v, normalize=online_softmax)[:3]
        for one, two in zip(ours, attention_vjp(v[:3], q, k, v)[:3], strict=True):
            np.testing.assert_allclose(one, two, rtol=1e-12)

    def test_gradients(self, autograd):
        rng = np.random.default_rng(7)
        g, s, allowed = rng.normal(size=(3, 5)), rng.normal(size=(3, 5)), rng.random((3, 5)) < 0.7
        allowed[1] = False
        (expected,) = finite_differences(lambda a: online_softmax(a, allowed, block=2), g, s)
        mask = autograd.asarray(allowed, "bool")
        arrays = [autograd.asarray(a) for a in (g, np.where(allowed, s, NAN))]
        (ours,) = autograd.vjp(lambda a: online_softmax(a, mask, block=2), *arrays)
        autograd.check(ours, expected, tolerance=1e-8)

    def test_thousands_of_equal_scores_in_half_precision(self, xp):
        for dtype in ("float32", *xp.narrow_dtypes):
            s = xp.asarray(np.full((1, 4096), 3.0), dtype)
            xp.check(online_softmax(s, block=512), np.full((1, 4096), 1 / 4096), dtype=dtype)

    def test_by_default_one_key_is_read_at_a_time(self):
        s = np.random.default_rng(23).normal(size=(50, 99))
        for function in (online_softmax, online_log_sum_exp):
            np.testing.assert_array_equal(function(s), function(s, block=1))
            assert np.any(function(s) != function(s, block=2))

    def test_bad_input(self, xp):
        s = xp.asarray(np.ones((2, 3)))
        for function in (online_softmax, online_log_sum_exp):
            with pytest.raises(ValueError, match=r"\bs\b.*\(\)"):
                function(xp.asarray(1.0))
            with pytest.raises(ValueError, match=r"allowed.*\(3, 3\)"):
                function(s, xp.asarray(np.ones((3, 3)), "bool"))
            with pytest.raises(TypeError, match="allowed"):
                function(s, s)
            for block in (0, -2):
                with pytest.raises(ValueError, match="block"):
                    function(s, block=block)
            with pytest.raises(TypeError, match="block"):
                function(s, block=1.5)


class TestOnlineLogSumExp:
    def test_by_hand(self, xp):
        s = xp.asarray([[math.log(1), math.log(4), math.log(3)], [-INF] * 3, [1e4, 1e4, -1e4], [INF, 0.0, INF]])
        for block in (1, 2):
            xp.check(online_log_sum_exp(s, block=block), [math.log(8), -INF, 1e4 + math.log(2), INF])

    @given(rows())
    def test_is_the_loop(self, row):
        scores, allowed, block = row
        ours = online_log_sum_exp(scores, allowed, block=block)
        np.testing.assert_allclose(ours, dense(scores, allowed)[1], rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(ours, log_sum_exp(scores, allowed), rtol=1e-12, atol=1e-12)

    def test_agrees_with_torch(self, torch, agree):
        s = np.random.default_rng(8).normal(size=(3, 40)) * 20
        agree(
            online_log_sum_exp(s, block=7),
            torch.logsumexp(torch.tensor(s), -1),
            function="schedules.online_log_sum_exp",
            stranger="torch.logsumexp",
            version=version(torch),
            dtype="float64",
        )

    def test_its_gradient_is_softmax(self, autograd):
        s = np.array([[0.5, -1.0, 2.0, 0.0], [3.0, NAN, 1.0, NAN]])
        allowed = autograd.asarray(~np.isnan(s), "bool")
        g = autograd.asarray(np.ones(2))
        (ours,) = autograd.vjp(lambda a: online_log_sum_exp(a, allowed, block=3), g, autograd.asarray(s))
        autograd.check(ours, softmax(s, ~np.isnan(s)))


class TestOnlineAttention:
    @pytest.mark.parametrize("block", BLOCKS)
    def test_is_the_loop_for_each_query(self, block):
        q, k, v, mask, bias = problem()
        ours = online_attention(q, k, v, block=block, mask=mask, bias=bias)
        for h, i in itertools.product(range(4), range(4)):
            scores = [sum(q[h, i] * k[h // 2, j]) / math.sqrt(3) + bias[h, 0, j] for j in range(7)]
            _, total, blend = loop(scores, v[h // 2], mask[h, i])
            np.testing.assert_allclose(ours[h, i], [b / total if total else 0.0 for b in blend], rtol=1e-12)

    def test_agrees_with_torch(self, torch, agree):
        q, k, v, mask, bias = problem(9, 5, 33)
        mask[:, :, 5] = True
        added = torch.tensor(np.where(mask, bias, -INF))
        for block in (1, 4, 64):
            agree(
                online_attention(q, k, v, block=block, mask=mask, bias=bias),
                torch.nn.functional.scaled_dot_product_attention(
                    *(torch.tensor(a)[None] for a in (q, k, v)), attn_mask=added[None], enable_gqa=True
                )[0],
                function="schedules.online_attention",
                stranger="torch scaled_dot_product_attention, grouped heads, mask and bias",
                version=version(torch),
                dtype="float64",
            )

    def test_agrees_with_jax(self, jax, agree):
        q, k, v, mask, bias = problem(10, 5, 9)
        v, mask[:, :, 5] = k + 1, True
        theirs = jax.nn.dot_product_attention(
            *(a.astype(np.float32).swapaxes(0, 1) for a in (q, k, v)),
            mask=mask[None],
            bias=np.broadcast_to(bias, mask.shape).astype(np.float32)[None],
        )
        q, k, v, bias = (a.astype(np.float32) for a in (q, k, v, bias))
        agree(
            online_attention(q, k, v, block=4, mask=mask, bias=bias),
            np.asarray(theirs).swapaxes(0, 1),
            function="schedules.online_attention",
            stranger="jax.nn.dot_product_attention",
            version=version(jax),
            dtype="float32",
            clash="positions before heads",
        )

    @pytest.mark.parametrize("block", [1, 2, 3, 7, 9])
    def test_is_attention(self, xp, block):
        q, k, v, mask, bias = problem()
        arrays = [xp.asarray(a) for a in (q, k, v, bias)] + [xp.asarray(mask, "bool")]
        run = xp.quick(lambda q, k, v, bias, mask: online_attention(q, k, v, block=block, mask=mask, bias=bias))
        xp.check(run(*arrays), attention(q, k, v, mask=mask, bias=bias))

    @pytest.mark.parametrize("score", [gaussian_score(bandwidth=0.5), scaled_dot(scale=-2.0, cap=1.5)])
    def test_with_other_scores(self, score):
        q, k, v, mask, _ = problem(11)
        np.testing.assert_allclose(
            online_attention(q, k, v, block=2, mask=mask, score=score),
            attention(q, k, v, mask=mask, score=score),
            rtol=1e-12,
        )

    def test_a_score_gets_one_block_at_a_time(self):
        q, k, v, *_ = problem()
        seen = []

        def score(q, k):
            seen.append((*q.shape, *k.shape))
            return scaled_dot()(q, k)

        online_attention(q, k, v, block=3, score=score)
        assert seen == [(4, 4, 3, 4, size, 3) for size in (3, 3, 1)]

    def test_any_order_of_keys_and_sharp_scores(self, xp):
        rng = np.random.default_rng(12)
        q, k, v = xp.asarray([[1.0]]), np.array([[1e4], [-1e4], [9999.0], [0.0]]), rng.normal(size=(4, 2))
        share = 1 / (1 + math.exp(-1))
        for order in ([0, 1, 2, 3], [3, 1, 2, 0], [1, 2, 3, 0]):
            ours = online_attention(q, xp.asarray(k[order]), xp.asarray(v[order]), block=1)
            xp.check(ours, [share * v[0] + (1 - share) * v[2]])
        hard = hard_lookup(np.array([[1.0]]), 10 * k, v)
        xp.check(online_attention(q, xp.asarray(10 * k), xp.asarray(v), block=2), hard, tolerance=1e-4)

    @pytest.mark.parametrize("lead", [0, 1, 2, 5])
    def test_leading_blocks_that_are_all_hidden(self, xp, lead):
        """Rows that are empty in one block and not in another, and throughout."""
        rng = np.random.default_rng(13)
        q, k, v = (rng.normal(size=shape) for shape in ((3, 2), (6, 2), (6, 2)))
        mask = np.ones((3, 6), dtype=bool)
        mask[0, :lead], mask[1, 2:4], mask[2] = False, False, False
        arrays = [xp.asarray(a) for a in (q, k, v)] + [xp.asarray(mask, "bool")]
        ours = online_attention(*arrays[:3], block=2, mask=arrays[3])
        xp.check(ours, attention(q, k, v, mask=mask))
        np.testing.assert_array_equal(xp.numpy(ours)[2], 0.0)

    def test_a_future_that_is_hidden(self, xp):
        q, k, v, *_ = problem(14, 7, 7)
        places = np.arange(7)
        mask = np.asarray(causal(places, places))
        run = xp.quick(lambda q, k, v, mask: online_attention(q, k, v, block=3, mask=mask))
        xp.check(run(*map(xp.asarray, (q, k, v)), xp.asarray(mask, "bool")), attention(q, k, v, mask=mask))

    def test_infinite_scores_and_biases(self, xp):
        q, k, v = xp.asarray(np.ones((4, 1))), xp.asarray([[0.0]] * 4), xp.asarray([[8.0], [4.0], [2.0], [1.0]])
        bias = [[-INF] * 4, [-INF, -INF, 0.0, 0.0], [INF, 0.0, -INF, INF], [0.0, 1.0, INF, 2.0]]
        for block in (1, 2, 3):
            ours = online_attention(q, k, v, block=block, bias=xp.asarray(bias))
            xp.check(ours, [[0.0], [1.5], [4.5], [2.0]])

    def test_a_bias_of_any_shape_that_broadcasts(self, xp):
        q, k, v, mask, _ = problem(15)
        allowed = xp.asarray(mask, "bool")
        run = xp.quick(lambda q, k, v, mask, bias: online_attention(q, k, v, block=4, mask=mask, bias=bias))
        for shape in ((), (7,), (4, 1), (4, 4, 1)):
            bias = np.random.default_rng(16).normal(size=shape)
            ours = run(*map(xp.asarray, (q, k, v)), allowed, xp.asarray(bias))
            xp.check(ours, attention(q, k, v, mask=mask, bias=bias))

    @pytest.mark.parametrize(
        "shapes",
        [((2, 1, 4, 3, 2), (3, 2, 5, 2), (5, 4)), ((3, 2), (2, 1, 5, 2), (1, 5, 4)), ((3, 2), (5, 2), (2, 1, 5, 4))],
        ids=("queries", "keys", "values"),
    )
    def test_leading_axes_broadcast(self, xp, shapes):
        rng = np.random.default_rng(24)
        q, k, v = (rng.normal(size=shape) for shape in shapes)
        bias = rng.normal(size=5)
        run = xp.quick(lambda q, k, v, bias: online_attention(q, k, v, block=3, bias=bias))
        xp.check(run(*map(xp.asarray, (q, k, v, bias))), attention(q, k, v, bias=bias))

    def test_a_nan_that_only_some_may_read_stays_with_them(self, xp):
        """The stronger of the two guarantees, for keys and for values, as in attention."""
        for block, spoiled in itertools.product((1, 2, 5), ("k", "v")):
            q, k, v, mask, _ = problem(17)
            mask[:, 2:, 3], mask[:, :2, 3] = True, False
            clean = attention(q, k, v, mask=mask)
            (k if spoiled == "k" else v)[:, 3] = NAN
            run = xp.quick(functools.partial(online_attention, block=block))
            ours = xp.numpy(run(*map(xp.asarray, (q, k, v)), mask=xp.asarray(mask, "bool")))
            np.testing.assert_allclose(ours[:, :2], clean[:, :2], rtol=1e-10, atol=1e-12)
            assert np.isnan(ours[:, 2:]).all()

    @pytest.mark.parametrize("bad", [NAN, INF, -INF])
    def test_a_key_that_no_query_reads_reaches_no_gradient(self, autograd, bad):
        q, k, v, mask, bias = problem(18)
        mask[..., 3] = False
        g = np.random.default_rng(19).normal(size=(4, 4, 2))
        expected = finite_differences(
            lambda *a: online_attention(*a[:3], block=2, mask=mask, bias=a[3]), g, q, k, v, bias
        )
        k[:, 3], v[:, 3], bias[..., 3] = bad, bad, bad
        allowed = autograd.asarray(mask, "bool")
        ours = autograd.vjp(
            lambda q, k, v, b: online_attention(q, k, v, block=2, mask=allowed, bias=b),
            *map(autograd.asarray, (g, q, k, v, bias)),
        )
        for one, two in zip(ours, expected, strict=True):
            autograd.check(one, two, tolerance=1e-8)

    def test_narrow_numbers_are_computed_in_single_precision(self, xp):
        """Rounded once at the end: a total of 4096 ones would stand still in half precision."""
        rng = np.random.default_rng(20)
        v = np.round(rng.normal(size=(4096, 2)), 1)
        for dtype in xp.narrow_dtypes:
            arrays = [xp.asarray(a, dtype) for a in (np.zeros((1, 2)), np.zeros((4096, 2)), v)]
            expected = np.mean(xp.numpy(arrays[2]), axis=0, keepdims=True)
            ours = online_attention(*arrays, block=1024)
            xp.check(ours, xp.numpy(xp.asarray(expected, dtype)), dtype=dtype, tolerance=4e-3)

    def test_scores_that_overflow_half_precision(self, xp):
        for dtype in xp.narrow_dtypes:
            q, k = xp.asarray([[300.0]], dtype), xp.asarray([[300.0], [-300.0], [300.0]], dtype)
            v = xp.asarray([[1.0], [5.0], [3.0]], dtype)
            xp.check(online_attention(q, k, v, block=1), [[2.0]], dtype=dtype)

    def test_single_precision_is_within_the_bound_of_the_page(self):
        """To first order, relative to the weighted sum of absolute values."""
        rng = np.random.default_rng(21)
        unit = np.finfo(np.float32).eps / 2
        for m, block, spread in ((64, 1, 1.0), (1000, 8, 5.0), (4096, 64, 20.0)):
            s, v = (rng.normal(size=shape).astype(np.float32) for shape in ((1, m), (m, 3)))
            s *= np.float32(spread)
            w = softmax(s.astype(np.float64))
            state = np.full(1, -np.inf, np.float32), np.zeros(1, np.float32), np.zeros((1, 3), np.float32)
            rises = 0
            for start in range(0, m, block):
                before = state[0]
                state = online_update(*state, s[:, start : start + block], v[start : start + block])
                rises += int(state[0][0] > before[0])
            error = np.abs(state[2] / state[1][:, None] - w @ v.astype(np.float64))
            steps = 3 * rises + m // block + block + 4
            bound = 2 * unit * (steps + float(s.max() - s.min())) * (w @ np.abs(v))
            assert np.all(error <= bound)

    def test_no_keys_and_no_queries(self, xp):
        for n, m, e in xp.some([(2, 0, 3), (0, 5, 3), (0, 0, 2), (2, 3, 0), (1, 1, 1)]):
            arrays = [xp.asarray(np.ones(shape)) for shape in ((n, 2), (m, 2), (m, e))]
            expected = np.ones((n, e)) if m else np.zeros((n, e))
            xp.check(online_attention(*arrays, block=2, bias=xp.asarray(np.zeros((n, m)))), expected)

    @claims("N09")
    def test_case_n09_without_keys_or_queries(self, case):
        given, expected = case("N09")["inputs"], case("N09")["expected"]
        shapes = {name: tuple(map(int, shape)) for name, shape in given.items() if name.endswith(("_a", "_b"))}
        a = [np.ones(shapes[f"{x}_shape_a"]) for x in "qkv"]
        b = [np.ones(shapes[f"{x}_shape_b"]) for x in "qkv"]
        np.testing.assert_array_equal(online_attention(*a, block=4), expected["out_a"])
        np.testing.assert_array_equal(online_log_sum_exp(a[0] @ a[1].mT), expected["lse_a"])
        assert online_attention(*b, block=4).shape == tuple(map(int, expected["out_b_shape"]))

    @claims("N05")
    def test_case_n05_any_cut_gives_the_same(self, case):
        given, expected = case("N05")["inputs"], case("N05")["expected"]
        q, k, v = (np.asarray(given[name]) for name in "qkv")
        for splits in given["params"]["splits"]:
            size = math.ceil(len(k) / splits)
            first, again = (online_attention(q, k, v, block=size) for _ in range(2))
            np.testing.assert_array_equal(first, again)
            np.testing.assert_allclose(first, expected["out"], rtol=1e-12)
            np.testing.assert_allclose(online_log_sum_exp(q @ k.T / math.sqrt(2), block=size), expected["lse"])

    @claims("N05")
    def test_one_query_alone_has_the_same_bits_as_in_a_batch(self):
        """The order of the sums depends on the block, not on how many queries there are."""
        rng = np.random.default_rng(22)
        s = rng.normal(size=(40, 65))
        together = online_softmax(s, block=16)
        for i in range(40):
            np.testing.assert_array_equal(online_softmax(s[i : i + 1], block=16)[0], together[i])

    def test_new_maxima_are_as_many_as_the_harmonic_number(self):
        """All orders of six keys, counted: H_6 on average, and H_3 for blocks of two."""
        for block, expected in ((1, sum(1 / j for j in range(1, 7))), (2, 1 + 1 / 2 + 1 / 3)):
            s = np.array(list(itertools.permutations(range(6))), dtype=float)
            state = np.full(len(s), -INF), np.zeros(len(s)), np.zeros((len(s), 1))
            rises = np.zeros(len(s))
            for j in range(0, 6, block):
                before = state[0]
                state = online_update(*state, s[:, j : j + block], np.ones((block, 1)))
                rises += state[0] > before
            assert math.isclose(rises.mean(), expected, rel_tol=1e-12)

    def test_bad_input(self, xp, other):
        q, k, v = (xp.asarray(np.ones(shape)) for shape in ((4, 3, 2), (2, 5, 2), (2, 5, 2)))
        for block in (0, -1):
            with pytest.raises(ValueError, match="block"):
                online_attention(q, k, v, block=block)
        with pytest.raises(TypeError, match="block"):
            online_attention(q, k, v, block=2.0)
        with pytest.raises(ValueError, match=r"k has 3 heads"):
            online_attention(q, xp.asarray(np.ones((3, 5, 2))), v, block=2)
        with pytest.raises(ValueError, match=r"columns"):
            online_attention(q, k[..., :1], v, block=2)
        with pytest.raises(ValueError, match=r"columns"):
            online_attention(q, k[:, :0, :1], v[:, :0, :], block=2)
        with pytest.raises(ValueError, match=r"bias.*\(3, 4\)"):
            online_attention(q, k, v, block=2, bias=xp.asarray(np.ones((3, 4))))
        with pytest.raises(ValueError, match=r"mask.*\(3, 4\)"):
            online_attention(q, k, v, block=2, mask=xp.asarray(np.ones((3, 4)), "bool"))
        with pytest.raises(TypeError, match="mask"):
            online_attention(q, k, v, block=2, mask=xp.asarray(np.ones((3, 5))))
        with pytest.raises(TypeError, match="arrays of one library"):
            online_attention(q, k, other.asarray(np.ones((2, 5, 2))), block=2)


@pytest.mark.parametrize(("name", "invariant"), held("schedules/online_softmax"))
def test_shared_invariants(xp, name, invariant):
    invariant(SUBJECTS[name], xp)
