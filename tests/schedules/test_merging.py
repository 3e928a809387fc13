"""softlookup.schedules.merging: results over parts of the keys, put together."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from invariants import held
from libraries import finite_differences
from subjects import SUBJECTS

from softlookup.lookup import attention, attention_scores, attention_vjp, hardmax, log_sum_exp, scaled_dot, softmax
from softlookup.normalizers import (
    entmax,
    sigmoid,
    sink_softmax,
    sinkhorn,
    softmax_over_queries,
    softpick,
    sparsemax,
    stick_breaking,
)
from softlookup.schedules import (
    merge,
    merge_all,
    merge_vjp,
    partial_attention,
    shared_prefix_attention,
    split_attention,
)

INF, NAN = math.inf, math.nan
claims = pytest.mark.claims


def random_arrays(seed, *shapes):
    rng = np.random.default_rng(seed)
    return [rng.normal(size=shape) for shape in shapes]


def loop(scores, values, allowed):
    """One query: the blend of a part, and the logarithm of the sum of its exponentials."""
    read = [(math.exp(s), v) for s, v, a in zip(scores, values, allowed, strict=True) if a]
    total = math.fsum(e for e, _ in read)
    width = len(values[0]) if len(values) else 0
    if total == 0:
        return [0.0] * width, -INF
    return [math.fsum(e * v[c] for e, v in read) / total for c in range(width)], math.log(total)


def loop_merge(parts):
    """One row: each output counts by the sum of the exponentials of its part."""
    totals = [math.exp(lse) for _, lse in parts]
    total = math.fsum(totals)
    width = len(parts[0][0])
    if total == 0:
        return [0.0] * width, -INF
    out = [math.fsum(t * o[c] for t, (o, _) in zip(totals, parts, strict=True)) / total for c in range(width)]
    return out, math.log(total)


numbers = st.floats(-20, 20)
states = st.tuples(st.lists(numbers, min_size=2, max_size=2), numbers | st.just(-INF))


def as_state(state):
    return np.asarray([state[0]]), np.asarray([state[1]])


def same(ours, expected, tolerance=1e-12):
    for a, b in zip(ours, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


class TestPartialAttention:
    def test_by_hand(self, xp):
        q, k, v = xp.asarray([[1.0]]), xp.asarray(np.log([[1.0], [3.0]])), xp.asarray([[8.0], [4.0]])
        out, lse = partial_attention(q, k, v)
        xp.check(out, [[5.0]])
        xp.check(lse, [math.log(4)])

    @pytest.mark.parametrize("m", [0, 1, 5])
    def test_is_the_loop(self, m):
        q, k, v, bias = random_arrays(1, (3, 4), (m, 4), (m, 2), (3, m))
        mask = np.random.default_rng(2).random((3, m)) < 0.6
        out, lse = partial_attention(q, k, v, mask=mask, bias=bias)
        for i in range(3):
            scores = [math.fsum(q[i] * k[j]) / 2 + bias[i, j] for j in range(m)]
            expected = loop(scores, v, mask[i])
            np.testing.assert_allclose(out[i], expected[0] or np.zeros(2), rtol=1e-12, atol=1e-14)
            np.testing.assert_allclose(lse[i], expected[1], rtol=1e-12, atol=1e-14)

    def test_agrees_with_flex_attention(self, torch, agree, monkeypatch):
        from torch.nn.attention import flex_attention as flex

        monkeypatch.setattr(flex, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)
        q, k, v = random_arrays(3, (2, 4, 7, 16), (2, 2, 11, 16), (2, 2, 11, 16))
        mask = np.random.default_rng(4).random((7, 11)) < 0.4
        mask[2] = False
        allowed = torch.tensor(mask)
        out, aux = flex.flex_attention(
            *map(torch.tensor, (q, k, v)),
            score_mod=lambda s, b, h, i, j: torch.where(allowed[i, j], s, -INF),
            enable_gqa=True,
            return_aux=flex.AuxRequest(lse=True),
        )
        ours = partial_attention(q, k, v, mask=mask)
        version = f"torch {torch.__version__.partition('+')[0]}"
        agree(
            ours[0],
            out,
            function="schedules.partial_attention",
            stranger="torch flex_attention, the output",
            version=version,
            dtype="float64",
        )
        agree(
            ours[1],
            aux.lse,
            function="schedules.partial_attention",
            stranger="torch flex_attention, the log-sum-exp",
            version=version,
            dtype="float64",
        )

    def test_agrees_with_the_residual_of_jax(self, jax, agree):
        q, k, v = random_arrays(5, (2, 4, 7, 16), (2, 2, 11, 16), (2, 2, 11, 16))
        positions_first = (jax.numpy.asarray(a.swapaxes(-3, -2)) for a in (q, k, v))
        _, lse = jax.nn.dot_product_attention(*positions_first, return_residual=True)
        agree(
            partial_attention(q, k, v)[1].swapaxes(-2, -1),
            lse,
            function="schedules.partial_attention",
            stranger="jax.nn.dot_product_attention, return_residual",
            version=f"jax {jax.__version__}",
            dtype="float32",
            clash="positions before heads",
        )

    def test_output_is_attention_and_the_number_is_the_log_sum_exp(self, xp):
        q, k, v, bias = random_arrays(6, (2, 4, 3, 2), (2, 2, 5, 2), (2, 1, 5, 3), (4, 3, 5))
        mask = np.random.default_rng(7).random((3, 5)) < 0.5
        score = scaled_dot(scale=0.3)
        given = {"mask": xp.asarray(mask, "bool"), "bias": xp.asarray(bias), "score": score}
        out, lse = partial_attention(*map(xp.asarray, (q, k, v)), **given)
        xp.check(out, attention(q, k, v, mask=mask, bias=bias, score=score))
        s = attention_scores(q, k, bias=bias, score=score)
        xp.check(lse, log_sum_exp(s, np.broadcast_to(mask, s.shape)))

    def test_values_may_have_more_axes_than_keys(self, xp):
        q, k, v = random_arrays(8, (2, 4), (5, 4), (3, 1, 5, 2))
        out, lse = partial_attention(*map(xp.asarray, (q, k, v)))
        xp.check(out, attention(q, k, v))
        xp.check(lse, np.broadcast_to(log_sum_exp(q @ k.T / 2), (3, 1, 2)))

    def test_a_narrow_output_has_a_wide_log_sum_exp(self, xp):
        arrays = random_arrays(9, (3, 4), (6, 4), (6, 2))
        for dtype in xp.narrow_dtypes:
            narrow = [xp.asarray(a, dtype) for a in arrays]
            out, lse = partial_attention(*narrow)
            single = partial_attention(*(xp.asarray(xp.numpy(a), "float32") for a in narrow))
            xp.check(out, xp.numpy(xp.asarray(xp.numpy(single[0]), dtype)), dtype=dtype, tolerance=0)
            xp.check(lse, xp.numpy(single[1]), dtype="float32", tolerance=0)

    def test_infinite_scores(self, xp):
        q, k, v = (
            xp.asarray([[1.0]]),
            xp.asarray([[INF], [0.0], [INF], [-INF]]),
            xp.asarray([[1.0], [2.0], [3.0], [4.0]]),
        )
        out, lse = partial_attention(q, k, v)
        xp.check(out, [[2.0]])
        xp.check(lse, [INF])
        out, lse = partial_attention(q, k[3:, :], v[3:, :])
        xp.check(out, [[0.0]])
        xp.check(lse, [-INF])

    def test_a_hidden_nan_reaches_no_gradient(self, autograd):
        q, k, v = (autograd.asarray(a) for a in ([[1.0, 0.5]], [[0.5, 1.0], [NAN, INF]], [[2.0], [NAN]]))
        mask = autograd.asarray([[True, False]], "bool")
        for which, g, expected in ((0, [[1.0]], [[0.0, 0.0]]), (1, [1.0], np.array([[0.5, 1.0]]) / math.sqrt(2))):
            dq, dk = autograd.vjp(
                lambda a, b, part=which: partial_attention(a, b, v, mask=mask)[part], autograd.asarray(g), q, k
            )
            autograd.check(dq, expected)
            assert np.isfinite(autograd.numpy(dk)).all()

    def test_bad_input(self, xp, other):
        q, k, v = (xp.asarray(np.ones(shape)) for shape in ((2, 3), (4, 3), (5, 3)))
        with pytest.raises(ValueError, match="k has 4 items, v has 5"):
            partial_attention(q, k, v)
        with pytest.raises(TypeError, match="mask"):
            partial_attention(q, k, v[:4, :], mask=xp.asarray(np.ones((2, 4))))
        with pytest.raises(TypeError, match="one library"):
            partial_attention(q, k, other.asarray(np.ones((4, 3))))


class TestMerge:
    def test_by_hand(self, xp):
        a, b = (xp.asarray([[5.0]]), xp.asarray([math.log(4)])), (xp.asarray([[7.0]]), xp.asarray([math.log(12)]))
        out, lse = merge(*a, *b)
        xp.check(out, [[6.5]])
        xp.check(lse, [math.log(16)])

    def test_agrees_with_the_merger_of_torch(self, torch, agree):
        """What the context-parallel attention of PyTorch does, by sigmoids; two empty parts give NaN there."""
        theirs = pytest.importorskip("torch.distributed.tensor.experimental._context_parallel._attention")
        outs, lses = random_arrays(41, (3, 2, 4, 5), (3, 2, 4))
        lses[2, 0, 1] = -INF
        merger = theirs._SDPAMerger(convert_to_f32=False, seq_dim=1)
        state = outs[0], lses[0]
        for p in range(3):
            merger.step(torch.tensor(outs[p]), torch.tensor(lses[p]), partial=False)
            state = merge(*state, outs[p], lses[p]) if p else state
        out, lse = merger.results()
        version = f"torch {torch.__version__.partition('+')[0]}"
        agree(
            state[0],
            out,
            function="schedules.merge",
            stranger="torch, merger of context-parallel attention, the output",
            version=version,
            dtype="float64",
            clash="two empty parts give NaN",
        )
        agree(
            state[1],
            lse,
            function="schedules.merge",
            stranger="torch, merger of context-parallel attention, the log-sum-exp",
            version=version,
            dtype="float64",
            clash="two empty parts give NaN",
        )
        empty = torch.zeros(1, 1, 2), torch.full((1, 1), -INF)
        merger = theirs._SDPAMerger(convert_to_f32=False, seq_dim=0)
        for _ in range(2):
            merger.step(*empty, partial=False)
        assert all(torch.isnan(x).all() for x in merger.results())

    @given(states, states)
    def test_is_the_loop(self, one, two):
        same(merge(*as_state(one), *as_state(two)), as_state(loop_merge([one, two])))

    @given(states, states, states)
    def test_is_associative_and_commutative_and_has_an_identity(self, one, two, three):
        a, b, c = map(as_state, (one, two, three))
        same(merge(*merge(*a, *b), *c), merge(*a, *merge(*b, *c)), 1e-9)
        for ours, theirs in zip(merge(*a, *b), merge(*b, *a), strict=True):
            np.testing.assert_array_equal(ours, theirs)
        nothing = np.zeros((1, 2)), np.asarray([-INF])
        expected = a if one[1] > -INF else nothing
        for ours, theirs in zip(merge(*a, *nothing), expected, strict=True):
            np.testing.assert_array_equal(ours, theirs)

    @claims("N04")
    def test_case_n04(self, case, xp):
        given, expected = case("N04")["inputs"], case("N04")["expected"]
        a, b, nothing = ((xp.asarray([given[name][0]]), xp.asarray([given[name][1]])) for name in ("A", "B", "empty"))
        base_2 = {name: xp.asarray([given[f"{name}_lse_base2"]]) for name in "AB"}
        results = {
            "A_B": merge(*a, *b),
            "A_empty": merge(*a, *nothing),
            "empty_empty": merge(*nothing, *nothing),
            "A_B_from_base2": merge(a[0], math.log(2) * base_2["A"], b[0], math.log(2) * base_2["B"]),
        }
        assert results.keys() == expected.keys()
        for name, (out, lse) in results.items():
            xp.check(out, [expected[name]["out"]])
            xp.check(lse, [expected[name]["lse"]])
        out, lse = merge(a[0], base_2["A"], b[0], base_2["B"])
        wrong = case("N04")["wrong"]["base2_as_natural"]
        xp.check(out, [wrong["out"]])
        xp.check(lse, [wrong["lse"]])

    @claims("N04")
    @pytest.mark.parametrize("order", list(itertools.permutations(range(4))), ids=str)
    def test_empty_parts_at_any_place_in_any_order(self, order):
        out, lse = random_arrays(10, (4, 3, 2), (4, 3))
        lse[[0, 2], 0], lse[:, 1], lse[1, 2] = -INF, -INF, -INF
        state = np.zeros((3, 2)), np.full(3, -INF)
        for p in order:
            state = merge(*state, out[p], lse[p])
        expected = [loop_merge([(out[p, i], lse[p, i]) for p in range(4)]) for i in range(3)]
        same(state, (np.asarray([e[0] for e in expected]), np.asarray([e[1] for e in expected])))

    @claims("N04")
    def test_an_empty_part_may_hold_anything(self, xp):
        for bad in (NAN, INF, -INF, 3.0):
            a = xp.asarray([[1.0, 2.0], [bad, bad]]), xp.asarray([0.5, -INF])
            b = xp.asarray([[bad, bad], [bad, bad]]), xp.asarray([-INF, -INF])
            for one, two in ((a, b), (b, a)):
                out, lse = merge(*one, *two)
                xp.check(out, [[1.0, 2.0], [0.0, 0.0]])
                xp.check(lse, [0.5, -INF])

    @claims("N04")
    def test_a_row_hidden_in_all_parts_stays_empty(self, xp):
        q, k, v = (xp.asarray(a) for a in random_arrays(11, (2, 3), (6, 3), (6, 2)))
        mask = xp.asarray([[True] * 6, [False] * 6], "bool")
        parts = [partial_attention(q, k[p, :], v[p, :], mask=mask[:, p]) for p in (slice(0, 2), slice(2, 6))]
        out, lse = merge(*parts[0], *parts[1])
        expected = partial_attention(q, k, v, mask=mask)
        xp.check(out, xp.numpy(expected[0]))
        xp.check(lse, xp.numpy(expected[1]))
        assert np.isneginf(xp.numpy(lse)[1])

    @pytest.mark.parametrize("cut", range(7))
    @pytest.mark.parametrize("large", [1.0, 1e4, -1e4])
    def test_two_parts_are_the_whole(self, xp, cut, large):
        q, k, v = random_arrays(12, (3, 2), (6, 2), (6, 2))
        bias = np.full((3, 6), large)
        bias[:, 3:] -= 2
        arrays = [xp.asarray(a) for a in (q, k, v, bias)]
        parts = [
            partial_attention(arrays[0], arrays[1][p, :], arrays[2][p, :], bias=arrays[3][:, p])
            for p in (slice(0, cut), slice(cut, 6))
        ]
        expected = partial_attention(q, k, v, bias=bias)
        for ours, theirs in zip(merge(*parts[0], *parts[1]), expected, strict=True):
            xp.check(ours, theirs, tolerance=1e-11)

    def test_the_rule_for_infinities(self, xp):
        out_a, out_b = xp.asarray([[1.0], [1.0], [1.0], [1.0]]), xp.asarray([[5.0], [5.0], [5.0], [5.0]])
        lse_a, lse_b = xp.asarray([INF, INF, INF, NAN]), xp.asarray([0.0, INF, -INF, 0.0])
        out, lse = merge(out_a, lse_a, out_b, lse_b)
        xp.check(out, [[1.0], [3.0], [1.0], [NAN]])
        xp.check(lse, [INF, INF, INF, NAN])

    def test_two_infinite_parts_share_equally_which_reading_at_once_does_not(self):
        q, k, v = np.array([[1.0]]), np.array([[INF], [INF], [INF]]), np.array([[0.0], [0.0], [6.0]])
        parts = partial_attention(q, k[:2], v[:2]), partial_attention(q, k[2:], v[2:])
        np.testing.assert_allclose(merge(*parts[0], *parts[1])[0], [[3.0]])
        np.testing.assert_allclose(attention(q, k, v), [[2.0]])

    def test_outputs_may_be_narrower_than_their_log_sum_exps(self, xp):
        outs = [xp.asarray(a, "float32") for a in random_arrays(13, (3, 2), (3, 2))]
        lses = [xp.asarray(a + 300) for a in random_arrays(14, (3,), (3,))]
        out, lse = merge(outs[0], lses[0], outs[1], lses[1])
        expected = merge(*(xp.numpy(a) for a in (outs[0], lses[0], outs[1], lses[1])))
        xp.check(out, expected[0], dtype="float32")
        xp.check(lse, expected[1])
        for dtype in xp.narrow_dtypes:
            narrow = [xp.asarray(xp.numpy(a), dtype) for a in outs]
            out, lse = merge(narrow[0], lses[0], narrow[1], lses[1])
            expected = merge(*(xp.numpy(a) for a in (narrow[0], lses[0], narrow[1], lses[1])))
            xp.check(out, expected[0], dtype=dtype)
            xp.check(lse, expected[1])
        assert "float32" in str(merge(*outs[:1], lses[0], outs[1], lses[1])[0].dtype)

    def test_a_sink_is_one_more_part(self, xp):
        q, k, v, z = random_arrays(15, (4, 3, 2), (2, 5, 2), (2, 5, 3), (4, 1))
        mask = np.random.default_rng(16).random((3, 5)) < 0.5
        mask[1] = False
        arrays = [xp.asarray(a) for a in (q, k, v)]
        out, lse = partial_attention(*arrays, mask=xp.asarray(mask, "bool"))
        sink = np.broadcast_to(z, (4, 3))
        merged, total = merge(out, lse, xp.asarray(np.zeros((4, 3, 3))), xp.asarray(sink))
        xp.check(merged, attention(q, k, v, mask=mask, normalize=sink_softmax(z)), tolerance=1e-11)
        xp.check(total, np.logaddexp(xp.numpy(lse), sink))

    def test_bad_input(self, xp, other):
        out, lse = xp.asarray(np.ones((3, 2))), xp.asarray(np.ones(3))
        with pytest.raises(ValueError, match=r"out_a has shape \(2,\)"):
            merge(out[0, :], lse, out, lse)
        with pytest.raises(ValueError, match=r"out_b has shape \(2, 2\)"):
            merge(out, lse, out[:2, :], lse)
        for wrong in ((out, out, out, lse), (out, lse, out, lse[:2])):
            with pytest.raises(ValueError, match=r"lse_[ab] has shape .*it must be \(3,\)"):
                merge(*wrong)
        names = ("out_a", "lse_a", "out_b", "lse_b")
        for i, name in enumerate(names):
            given = [out, lse, out, lse]
            given[i] = [[1.0]]
            with pytest.raises(TypeError, match=f"{name} must be an array"):
                merge(*given)
            given[i] = other.asarray(np.ones((3, 2)[: 2 - i % 2]))
            with pytest.raises(TypeError, match="out_a, lse_a, out_b, lse_b must be arrays of one library"):
                merge(*given)


class TestMergeAll:
    def test_by_hand(self, xp):
        out, lse = merge_all(xp.asarray([[[1.0]], [[3.0]], [[10.0]]]), xp.asarray(np.log([[2.0], [2.0], [4.0]])))
        xp.check(out, [[6.0]])
        xp.check(lse, [math.log(8)])

    @given(st.lists(states, min_size=1, max_size=5))
    def test_is_the_loop_and_a_chain_of_merges(self, parts):
        outs, lses = (np.stack([as_state(p)[i] for p in parts]) for i in (0, 1))
        ours = merge_all(outs, lses)
        same(ours, as_state(loop_merge(parts)))
        chain = as_state(parts[0]) if parts[0][1] > -INF else (np.zeros((1, 2)), np.asarray([-INF]))
        for p in parts[1:]:
            chain = merge(*chain, *as_state(p))
        same(ours, chain, 1e-9)

    def test_is_a_lookup_of_the_parts(self, xp):
        outs, lses = random_arrays(17, (2, 4, 3, 2), (2, 4, 3))
        lses[:, 1] = -INF
        out, lse = merge_all(xp.asarray(outs), xp.asarray(lses))
        shares = np.exp(lses - np.log(np.exp(lses).sum(-2, keepdims=True)))
        xp.check(out, np.einsum("bpn,bpne->bne", shares, outs))
        xp.check(lse, np.log(np.exp(lses).sum(-2)))

    def test_no_parts_are_the_identity(self, xp):
        out, lse = merge_all(xp.asarray(np.zeros((0, 3, 2))), xp.asarray(np.zeros((0, 3))))
        xp.check(out, np.zeros((3, 2)))
        xp.check(lse, np.full(3, -INF))

    def test_three_infinite_parts_share_at_once_but_not_in_turn(self):
        outs, lses = np.array([[[0.0]], [[0.0]], [[6.0]]]), np.full((3, 1), INF)
        np.testing.assert_allclose(merge_all(outs, lses)[0], [[2.0]])
        first = merge(outs[0], lses[0], outs[1], lses[1])
        np.testing.assert_allclose(merge(*first, outs[2], lses[2])[0], [[3.0]])

    def test_thousands_of_parts(self, xp):
        outs, lses = np.ones((3000, 1, 1)), np.full((3000, 1), 1e4)
        outs[::2] = 3.0
        out, lse = merge_all(xp.asarray(outs), xp.asarray(lses))
        xp.check(out, [[2.0]])
        xp.check(lse, [1e4 + math.log(3000)])

    def test_gradients_with_empty_parts_hold_no_nan(self, autograd):
        outs = autograd.asarray([[[1.0], [NAN]], [[3.0], [INF]], [[NAN], [2.0]]])
        lses = autograd.asarray([[0.3, -INF], [1.0, -INF], [-INF, -INF]])
        g = autograd.asarray([[1.0], [1.0]])
        douts, dlses = autograd.vjp(lambda a, b: merge_all(a, b)[0], g, outs, lses)
        c = 1 / (1 + math.exp(0.7))
        autograd.check(douts, [[[c], [0.0]], [[1 - c], [0.0]], [[0.0], [0.0]]])
        autograd.check(dlses, [[-2 * c * (1 - c), 0.0], [2 * c * (1 - c), 0.0], [0.0, 0.0]])
        (dlses,) = autograd.vjp(lambda b: merge_all(outs, b)[1], g[:, 0], lses)
        autograd.check(dlses, [[c, 0.0], [1 - c, 0.0], [0.0, 0.0]])

    def test_bad_input(self, xp, other):
        with pytest.raises(TypeError, match="outs, lses must be arrays of one library"):
            merge_all(xp.asarray(np.ones((2, 3, 2))), other.asarray(np.ones((2, 3))))
        with pytest.raises(TypeError, match="lses must be an array"):
            merge_all(xp.asarray(np.ones((2, 3, 2))), [[1.0]])
        with pytest.raises(ValueError, match=r"outs has shape \(3, 2\).*p, n, e"):
            merge_all(xp.asarray(np.ones((3, 2))), xp.asarray(np.ones(3)))
        with pytest.raises(ValueError, match=r"lses has shape \(3, 4\).*\(4, 3\)"):
            merge_all(xp.asarray(np.ones((4, 3, 2))), xp.asarray(np.ones((3, 4))))
        with pytest.raises(TypeError, match="outs must be an array"):
            merge_all([[1.0]], xp.asarray(np.ones(3)))


class TestMergeVjp:
    @pytest.mark.parametrize("shape", [(1,), (4,), (2, 3)], ids=str)
    def test_gradients(self, autograd, shape):
        g_out, a, b = random_arrays(18, *[(*shape, 2)] * 3)
        g_lse, la, lb = random_arrays(19, *[shape] * 3)
        parts = (a, la, b, lb)
        expected = [
            one + two
            for one, two in zip(
                finite_differences(lambda *x: merge(*x)[0], g_out, *parts),
                finite_differences(lambda *x: merge(*x)[1], g_lse, *parts),
                strict=True,
            )
        ]
        arrays = [autograd.asarray(x) for x in parts]
        ours = merge_vjp(autograd.asarray(g_out), autograd.asarray(g_lse), *arrays)
        by_out = autograd.vjp(lambda *x: merge(*x)[0], autograd.asarray(g_out), *arrays)
        by_lse = autograd.vjp(lambda *x: merge(*x)[1], autograd.asarray(g_lse), *arrays)
        for one, two, three, four in zip(ours, by_out, by_lse, expected, strict=True):
            autograd.check(one, four, tolerance=1e-8)
            autograd.check(one, autograd.numpy(two) + autograd.numpy(three), tolerance=1e-12)

    def test_by_hand(self, xp):
        a, b, one, no = (xp.asarray(x) for x in ([[5.0]], [[7.0]], [[1.0]], [0.0]))
        lses = [xp.asarray([math.log(x)]) for x in (4.0, 12.0)]
        expected = ([[0.25]], [-0.375], [[0.75]], [0.375])  # shares 1/4 and 3/4, outputs 1.5 below and 0.5 above 6.5
        for ours, theirs in zip(merge_vjp(one, no, a, lses[0], b, lses[1]), expected, strict=True):
            xp.check(ours, theirs)

    def test_empty_and_infinite_parts_move_no_output_and_hold_no_nan(self, autograd):
        lse_a, lse_b = [-INF, -INF, INF, 0.0, INF], [-INF, 0.0, 0.0, -INF, INF]
        out_a = [[NAN], [INF], [1.0], [1.0], [1.0]]
        out_b = [[NAN], [2.0], [2.0], [NAN], [2.0]]
        arrays = [autograd.asarray(x) for x in (out_a, lse_a, out_b, lse_b)]
        g_out, g_lse = autograd.asarray(np.ones((5, 1))), autograd.asarray(np.ones(5))
        shares = [[0.0], [0.0], [1.0], [1.0], [0.5]], [[0.0], [1.0], [0.0], [0.0], [0.5]]
        slopes = [0.0, 0.0, 1.0, 1.0, 0.5], [0.0, 1.0, 0.0, 0.0, 0.5]  # those of the log-sum-exp alone
        ours = merge_vjp(g_out, g_lse, *arrays)
        by_out = autograd.vjp(lambda *x: merge(*x)[0], g_out, *arrays)
        by_lse = autograd.vjp(lambda *x: merge(*x)[1], g_lse, *arrays)
        summed = [autograd.numpy(a) + autograd.numpy(b) for a, b in zip(by_out, by_lse, strict=True)]
        for one, two, theirs in zip(ours, summed, (shares[0], slopes[0], shares[1], slopes[1]), strict=True):
            autograd.check(one, theirs)
            np.testing.assert_allclose(two, theirs, atol=1e-12)

    def test_the_gradient_of_each_part_needs_only_the_merged_result(self):
        g, q, k, v = random_arrays(20, (3, 2), (3, 4), (6, 4), (6, 2))
        dq, dk, dv, _ = attention_vjp(g, q, k, v)
        out, lse = partial_attention(q, k, v)
        for part in (slice(0, 2), slice(2, 6)):
            w = np.exp(q @ k[part].T / 2 - lse[:, None])
            ds = w * (g @ v[part].T - np.sum(g * out, axis=-1, keepdims=True))
            np.testing.assert_allclose(dv[part], w.T @ g, rtol=1e-12)
            np.testing.assert_allclose(dk[part], ds.T @ q / 2, rtol=1e-12)
            dq = dq - ds @ k[part] / 2
        np.testing.assert_allclose(dq, 0, atol=1e-14)

    def test_bad_input(self, xp):
        out, lse = xp.asarray(np.ones((3, 2))), xp.asarray(np.ones(3))
        with pytest.raises(ValueError, match=r"g_out has shape \(3, 1\)"):
            merge_vjp(out[:, :1], lse, out, lse, out, lse)
        with pytest.raises(ValueError, match=r"g_lse has shape \(2,\)"):
            merge_vjp(out, lse[:2], out, lse, out, lse)
        with pytest.raises(ValueError, match=r"lse_b has shape \(3, 2\)"):
            merge_vjp(out, lse, out, lse, out, out)


class TestSplitAttention:
    @pytest.mark.parametrize("size", [1, 2, 3, 5, 6, 7, 100])
    def test_is_attention_for_every_size(self, size):
        q, k, v, bias = random_arrays(21, (2, 4, 3, 2), (2, 2, 6, 2), (2, 1, 6, 3), (4, 3, 6))
        mask = np.random.default_rng(22).random((2, 1, 3, 6)) < 0.5
        ours = split_attention(q, k, v, size=size, mask=mask, bias=bias)
        np.testing.assert_allclose(ours, attention(q, k, v, mask=mask, bias=bias), rtol=1e-12, atol=1e-14)

    def test_agrees_with_torch_on_all_keys(self, torch, agree):
        q, k, v, bias = random_arrays(23, (2, 4, 7, 16), (2, 2, 11, 16), (2, 2, 11, 16), (7, 11))
        theirs = torch.nn.functional.scaled_dot_product_attention(
            *map(torch.tensor, (q, k, v)), attn_mask=torch.tensor(bias), enable_gqa=True
        )
        for size in (1, 4, 11):
            agree(
                split_attention(q, k, v, size=size, bias=bias),
                theirs,
                function="schedules.split_attention",
                stranger="torch scaled_dot_product_attention on all keys",
                version=f"torch {torch.__version__.partition('+')[0]}",
                dtype="float64",
            )

    @claims("N05")
    def test_case_n05(self, case, xp):
        given, expected = case("N05")["inputs"], case("N05")["expected"]
        q, k, v = (xp.asarray(given[name]) for name in "qkv")
        for splits in given["params"]["splits"]:
            size = -(-6 // splits)
            xp.check(split_attention(q, k, v, size=size), expected["out"])
            parts = [partial_attention(q, k[i : i + size, :], v[i : i + size, :]) for i in range(0, 6, size)]
            outs, lses = (xp.asarray(np.stack([xp.numpy(p[i]) for p in parts])) for i in (0, 1))
            out, lse = merge_all(outs, lses)
            xp.check(out, expected["out"])
            xp.check(lse, expected["lse"])

    @claims("N05")
    def test_the_same_call_gives_the_same_bits_and_another_size_the_same_number(self):
        wide = random_arrays(24, (4, 16), (256, 16), (256, 8))
        narrow = [a.astype(np.float32) for a in wide]
        exact = attention(*(a.astype(np.float64) for a in narrow))
        for size in (256, 100, 32, 1):
            ours = split_attention(*narrow, size=size)
            assert ours.dtype == np.float32
            np.testing.assert_array_equal(ours, split_attention(*narrow, size=size))
            assert np.abs(ours - exact).max() < 1e-6
            np.testing.assert_allclose(split_attention(*wide, size=size), attention(*wide), rtol=1e-12, atol=1e-14)

    @claims("N05")
    def test_a_batch_of_one_or_of_many_gives_the_same_number(self):
        q, k, v = random_arrays(25, (5, 2, 3, 4), (5, 2, 9, 4), (5, 2, 9, 2))
        together = split_attention(q, k, v, size=4)
        for b in range(5):
            np.testing.assert_allclose(split_attention(q[b], k[b], v[b], size=4), together[b], rtol=1e-13)

    @pytest.mark.parametrize("shape", [(), (1,), (5,), (3, 1), (3, 5), (2, 1, 5)], ids=str)
    def test_masks_and_biases_of_any_shape_are_cut_with_the_keys(self, shape):
        q, k, v, bias = random_arrays(26, (2, 3, 4), (2, 5, 4), (2, 5, 2), shape)
        mask = np.random.default_rng(28).random(shape) < 0.7
        given = {"mask": np.asarray(mask), "bias": np.asarray(bias)}
        np.testing.assert_allclose(split_attention(q, k, v, size=2, **given), attention(q, k, v, **given), rtol=1e-12)

    @pytest.mark.parametrize("spoiled", ["k", "v"])
    def test_a_nan_that_only_some_may_read_stays_with_them(self, xp, spoiled):
        """The stronger of the two guarantees, in each part and after the merge."""
        q, k, v = random_arrays(29, (2, 4, 3), (2, 5, 3), (2, 5, 2))
        mask = np.ones((4, 5), dtype=bool)
        mask[:2, 3] = False
        clean = attention(q, k, v, mask=mask)
        (k if spoiled == "k" else v)[:, 3] = NAN
        for size in (1, 2, 5):
            arrays = [xp.asarray(a) for a in (q, k, v)]
            ours = xp.numpy(split_attention(*arrays, size=size, mask=xp.asarray(mask, "bool")))
            np.testing.assert_allclose(ours[:, :2], clean[:, :2], rtol=1e-10, atol=1e-12)
            assert np.isnan(ours[:, 2:]).all()

    def test_narrow_arrays_are_rounded_once(self):
        """However many parts: half a unit of the output, and no more."""
        q, k, v = (a.astype(np.float16) for a in random_arrays(33, (4, 8), (500, 8), (500, 3)))
        expected = attention(*(a.astype(np.float64) for a in (q, k, v)))
        for size in (1, 7, 500):
            ours = split_attention(q, k, v, size=size)
            assert ours.dtype == np.float16
            assert np.all(np.abs(ours - expected) <= np.spacing(np.abs(ours)) * 0.51)

    def test_infinite_scores_of_one_part(self, xp):
        q, k, v = (
            xp.asarray([[1.0]]),
            xp.asarray([[INF], [0.0], [INF], [1.0]]),
            xp.asarray([[1.0], [2.0], [3.0], [4.0]]),
        )
        xp.check(split_attention(q, k, v, size=3), [[2.0]])
        xp.check(split_attention(q, k, v, size=1), [[2.0]])

    def test_gradients_are_those_of_attention(self, autograd):
        g, q, k, v = random_arrays(30, (3, 2), (3, 4), (5, 4), (5, 2))
        mask = np.array([[1, 1, 0, 0, 0], [0, 0, 0, 0, 0], [1, 1, 1, 0, 1]], dtype=bool)
        k[3], v[3] = NAN, INF
        expected = attention_vjp(g, q, k, v, mask=mask)[:3]
        hidden = autograd.asarray(mask, "bool")
        ours = autograd.vjp(
            lambda *a: split_attention(*a, size=2, mask=hidden), *(autograd.asarray(a) for a in (g, q, k, v))
        )
        for one, two in zip(ours, expected, strict=True):
            autograd.check(one, two)

    def test_bad_input(self, xp, other):
        q, k, v = (xp.asarray(np.ones(shape)) for shape in ((2, 3), (4, 3), (4, 3)))
        for size, error in ((0, ValueError), (-1, ValueError), (1.5, TypeError)):
            with pytest.raises(error, match="size"):
                split_attention(q, k, v, size=size)
        with pytest.raises(ValueError, match="k has 4 items, v has 3"):
            split_attention(q, k, v[:3, :], size=2)
        with pytest.raises(ValueError, match=r"mask has shape \(2, 3\)"):
            split_attention(q, k, v, size=2, mask=xp.asarray(np.ones((2, 3)), "bool"))
        with pytest.raises(ValueError, match=r"bias has shape \(2, 3\)"):
            split_attention(q, k, v, size=2, bias=xp.asarray(np.ones((2, 3))))
        with pytest.raises(TypeError, match="mask"):
            split_attention(q, k, v, size=2, mask=xp.asarray(np.ones((2, 4))))
        for mask in ([[True] * 4], other.asarray(np.ones((2, 4)), "bool")):
            with pytest.raises(TypeError, match="mask"):
                split_attention(q, k, v, size=2, mask=mask)


class TestSharedPrefixAttention:
    def whole(self, q, kp, vp, k, v, mask=None, score=scaled_dot()):
        """Each sequence by itself, on a copy of the prefix and its own suffix."""
        outs = []
        for b in range(q.shape[0]):
            keys, values = np.concat([kp, k[b]], axis=-2), np.concat([vp, v[b]], axis=-2)
            allowed = None
            if mask is not None:
                own = np.broadcast_to(mask, (*q.shape[:-1], k.shape[-2]))[b]
                allowed = np.concat([np.ones((*own.shape[:-1], kp.shape[-2]), dtype=bool), own], axis=-1)
            outs.append(attention(q[b], keys, values, mask=allowed, score=score))
        return np.stack(outs)

    @pytest.mark.parametrize(("n", "p", "m"), [(3, 4, 5), (1, 4, 0), (2, 0, 3), (1, 1, 1), (0, 2, 2), (2, 0, 0)])
    def test_is_attention_on_prefix_and_suffix_in_one_row(self, n, p, m):
        shapes = ((3, 4, n, 2), (2, p, 2), (2, p, 3), (3, 2, m, 2), (3, 2, m, 3))
        arrays = random_arrays(31, *shapes)
        mask = np.random.default_rng(32).random((3, 1, n, m)) < 0.6
        expected = self.whole(*arrays, mask)
        np.testing.assert_allclose(shared_prefix_attention(*arrays, mask=mask), expected, rtol=1e-12, atol=1e-14)

    def test_agrees_with_torch_on_copies(self, torch, agree):
        q, kp, vp, k, v = random_arrays(35, (3, 4, 2, 16), (2, 6, 16), (2, 6, 16), (3, 2, 5, 16), (3, 2, 5, 16))
        keys, values = (
            torch.cat([torch.tensor(a).expand(3, -1, -1, -1), torch.tensor(b)], dim=-2) for a, b in ((kp, k), (vp, v))
        )
        theirs = torch.nn.functional.scaled_dot_product_attention(torch.tensor(q), keys, values, enable_gqa=True)
        agree(
            shared_prefix_attention(q, kp, vp, k, v),
            theirs,
            function="schedules.shared_prefix_attention",
            stranger="torch scaled_dot_product_attention on copies of the prefix",
            version=f"torch {torch.__version__.partition('+')[0]}",
            dtype="float64",
        )

    def test_decoding_token_by_token_is_the_full_pass(self):
        """The suffix grows by one key at each step; earlier rows stay what they are."""
        q, kp, vp, k, v = random_arrays(36, (2, 4, 5, 3), (2, 4, 3), (2, 4, 2), (2, 2, 5, 3), (2, 2, 5, 2))
        full = shared_prefix_attention(q, kp, vp, k, v, mask=np.tri(5, dtype=bool))
        for t in range(5):
            step = shared_prefix_attention(q[..., t : t + 1, :], kp, vp, k[..., : t + 1, :], v[..., : t + 1, :])
            np.testing.assert_allclose(step[..., 0, :], full[..., t, :], rtol=1e-12)
            shorter = shared_prefix_attention(
                q[..., : t + 1, :], kp, vp, k[..., : t + 1, :], v[..., : t + 1, :], mask=np.tri(t + 1, dtype=bool)
            )
            np.testing.assert_allclose(shorter, full[..., : t + 1, :], rtol=1e-12)

    def test_three_levels_are_two_merges(self):
        q, k0, v0, k1, v1, k2, v2 = random_arrays(37, (2, 3), (4, 3), (4, 2), (2, 3), (2, 2), (3, 3), (3, 2))
        parts = [partial_attention(q, k, v) for k, v in ((k0, v0), (k1, v1), (k2, v2))]
        out, _ = merge(*merge(*parts[0], *parts[1]), *parts[2])
        whole = attention(q, np.concat([k0, k1, k2]), np.concat([v0, v1, v2]))
        np.testing.assert_allclose(out, whole, rtol=1e-12)

    def test_gradients_sum_over_the_sequences(self, autograd):
        g, *arrays = random_arrays(38, (2, 1, 2, 2), (2, 1, 2, 3), (1, 3, 3), (1, 3, 2), (2, 1, 2, 3), (2, 1, 2, 2))
        expected = finite_differences(lambda *a: self.whole(*a), g, *arrays)
        ours = autograd.vjp(shared_prefix_attention, *(autograd.asarray(a) for a in (g, *arrays)))
        for one, two in zip(ours, expected, strict=True):
            autograd.check(one, two, tolerance=1e-8)

    def test_bad_input(self, xp):
        q, kp, k = (xp.asarray(np.ones(shape)) for shape in ((2, 3, 4, 5), (3, 6, 5), (2, 3, 7, 5)))
        names = ("q", "k_prefix", "v_prefix", "k", "v")
        for i, name in enumerate(names):
            wrong = [q, kp, kp, k, k]
            wrong[i] = wrong[i][0, ...]
            with pytest.raises(ValueError, match=rf"\b{name} has shape"):
                shared_prefix_attention(*wrong)
        with pytest.raises(ValueError, match="mask"):
            shared_prefix_attention(q, kp, kp, k, k, mask=xp.asarray(np.ones((4, 6)), "bool"))
        with pytest.raises(TypeError, match="v must be an array"):
            shared_prefix_attention(q, kp, kp, k, 1.0)


def keeps_proportions(normalize):
    """Whether the weights of a part among all keys are those of the part alone, times one number for each row."""
    (s,) = random_arrays(39, (4, 6))
    among_all, alone = normalize(s)[:, :3], normalize(s[:, :3])
    product = among_all[:, :, None] * alone[:, None, :]
    return np.allclose(product, product.mT, atol=1e-9)


class TestWhatCanBeMerged:
    @pytest.mark.parametrize(
        "normalize",
        [softmax, sink_softmax(np.array(0.3)), sigmoid, hardmax, softpick, stick_breaking, softmax_over_queries],
    )
    def test_proportions_stay(self, normalize):
        assert keeps_proportions(normalize)

    @pytest.mark.parametrize("normalize", [sparsemax, entmax(alpha=1.5), sinkhorn(steps=5)])
    def test_proportions_change(self, normalize):
        assert not keeps_proportions(normalize)

    def test_one_output_and_one_threshold_do_not_tell_what_sparsemax_becomes(self):
        """Two parts with the same blend and the same threshold, and the same third key: different results."""
        alone, with_key = [], []
        for scores in ([1.0], [0.5, 0.5]):
            s, v = np.array([scores]), np.ones((len(scores), 1))
            w = sparsemax(s)
            alone.append(((w @ v).item(), (s - w).max()))
            with_key.append(sparsemax(np.concat([s, [[0.8]]], axis=-1)) @ np.concat([v, [[0.0]]]))
        np.testing.assert_allclose(alone[0], alone[1])
        np.testing.assert_allclose(with_key, [[[0.6]], [[7 / 15]]])


@pytest.mark.parametrize(("name", "invariant"), held("schedules/merging"))
def test_shared_invariants(xp, name, invariant):
    invariant(SUBJECTS[name], xp)
