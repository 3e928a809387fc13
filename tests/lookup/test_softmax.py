"""softlookup.lookup.softmax: scores become a budget; its log-sum-exp, its entropy and its gradient."""

import importlib
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from invariants import held
from libraries import finite_differences
from oracles.onnx_cases import node_cases, onnx
from subjects import SUBJECTS

from softlookup.lookup import effective_items, entropy, log_sum_exp, softmax, softmax_vjp

INF, NAN = math.inf, math.nan
claims = pytest.mark.claims
scores = st.floats(-1e3, 1e3) | st.just(-INF)
any_score = scores | st.sampled_from([INF, NAN])


def loop(row, allowed=None, temperature=1.0):
    """One row in plain Python: each allowed exponential over their sum, with the rule for what is not finite."""
    visible = [j for j in range(len(row)) if (allowed is None or allowed[j]) and row[j] != -INF]
    w = [0.0] * len(row)
    if any(math.isnan(row[j]) for j in visible):
        return [NAN] * len(row)
    if top := [j for j in visible if row[j] == INF]:
        visible = top
    for j in visible:
        w[j] = 1 / math.fsum(1.0 if row[i] == row[j] else exp((row[i] - row[j]) / temperature) for i in visible)
    return w


def loop_log(row, allowed=None):
    """log of the sum of exponentials of one row, in plain Python."""
    visible = [x for x, a in zip(row, allowed if allowed is not None else [True] * len(row), strict=True) if a]
    if any(math.isnan(x) for x in visible):
        return NAN
    top = max(visible, default=-INF)
    return top if math.isinf(top) else top + math.log(math.fsum(exp(x - top) for x in visible))


def exp(x):
    return math.exp(x) if x < 700 else INF


def rows(function, s, allowed, **options):
    """`function` row by row over the last axis of `s`."""
    allowed = np.broadcast_to(True if allowed is None else allowed, s.shape)
    return np.array([function(list(r), list(a), **options) for r, a in zip(flat(s), flat(allowed), strict=True)])


def flat(a):
    return a.reshape(math.prod(a.shape[:-1]), a.shape[-1])


@st.composite
def masked_scores(draw, elements=scores):
    shape = draw(hnp.array_shapes(min_dims=1, max_dims=3, min_side=1, max_side=5))
    return draw(hnp.arrays(np.float64, shape, elements=elements)), draw(st.none() | hnp.arrays(bool, shape))


class TestSoftmax:
    def test_the_logarithms_of_whole_numbers_by_hand(self, xp):
        s = xp.asarray([[math.log(1), math.log(3), math.log(4)], [0.0, 0.0, 0.0]])
        xp.check(softmax(s), [[0.125, 0.375, 0.5], [1 / 3, 1 / 3, 1 / 3]])

    @given(masked_scores(any_score))
    def test_is_the_loop(self, given_scores):
        s, allowed = given_scores
        expected = rows(loop, s, allowed).reshape(s.shape)
        np.testing.assert_allclose(softmax(s, allowed), expected, rtol=1e-12, atol=1e-300)

    @given(masked_scores(any_score), st.floats(1e-3, 1e3))
    def test_is_the_loop_at_any_temperature(self, given_scores, t):
        s, allowed = given_scores
        expected = rows(loop, s, allowed, temperature=t).reshape(s.shape)
        np.testing.assert_allclose(softmax(s, allowed, temperature=t), expected, rtol=1e-9, atol=1e-300)

    @pytest.mark.parametrize("node", node_cases("Softmax"), ids=lambda node: node.name)
    def test_agrees_with_the_node_cases_of_onnx(self, node, agree):
        axis = node.attributes.get("axis", -1)
        ours = softmax(np.moveaxis(node.inputs["input"].astype(np.float64), axis, -1))
        agree(
            np.moveaxis(ours, -1, axis),
            node.outputs["output"],
            function="lookup.softmax",
            stranger="onnx node cases of Softmax",
            version=f"onnx {onnx.__version__}",
            dtype="float32",
        )

    def test_agrees_with_torch(self, torch, agree):
        s = 5 * np.random.default_rng(0).normal(size=(4, 6, 33))
        agree(
            softmax(s, temperature=0.7),
            torch.softmax(torch.tensor(s) / 0.7, dim=-1),
            function="lookup.softmax",
            stranger="torch.softmax",
            version=f"torch {torch.__version__.partition('+')[0]}",
            dtype="float64",
        )

    def test_agrees_with_jax_under_a_mask(self, jax, agree):
        rng = np.random.default_rng(1)
        s, allowed = 5 * rng.normal(size=(4, 6, 33)), rng.random((4, 6, 33)) < 0.5
        agree(
            softmax(s, allowed),
            jax.nn.softmax(jax.numpy.asarray(s), axis=-1, where=jax.numpy.asarray(allowed)),
            function="lookup.softmax",
            stranger="jax.nn.softmax",
            version=f"jax {jax.__version__}",
            dtype="float64",
        )

    def test_a_mask_is_a_score_of_minus_infinity_is_a_missing_column(self, xp):
        s = np.random.default_rng(2).normal(size=(3, 5))
        kept = [0, 2, 3]
        allowed = np.isin(np.arange(5), kept)
        masked = softmax(xp.asarray(s), xp.asarray(allowed, "bool"))
        xp.check(masked, xp.numpy(softmax(xp.asarray(np.where(allowed, s, -INF)))))
        xp.check(masked[:, 2:4], xp.numpy(softmax(xp.asarray(s[:, kept])))[:, 1:])

    def test_temperature_divides_the_scores(self, xp):
        s = np.random.default_rng(3).normal(size=(3, 5))
        xp.check(softmax(xp.asarray(s), temperature=0.25), xp.numpy(softmax(xp.asarray(s / 0.25))))

    def test_a_cold_softmax_is_the_best_item_and_a_hot_one_is_the_mean_of_the_allowed(self, xp):
        s, allowed = xp.asarray([[1.0, 3.0, 2.0, 9.0]]), xp.asarray([[True, True, True, False]], "bool")
        xp.check(softmax(s, allowed, temperature=1e-3), [[0.0, 1.0, 0.0, 0.0]], tolerance=0)
        xp.check(softmax(s, allowed, temperature=1e15), [[1 / 3, 1 / 3, 1 / 3, 0.0]])

    def test_extreme_temperatures_still_give_weights(self, xp):
        s = xp.asarray([[3.0, 2.0, 3.0]])
        xp.check(softmax(s, temperature=1e-30), [[0.5, 0.0, 0.5]])
        xp.check(softmax(s, temperature=1e30), [[1 / 3, 1 / 3, 1 / 3]])

    @pytest.mark.parametrize(("temperature", "expected"), [(1e-200, [0.0, 1.0, 0.0]), (1e200, [0.5, 0.5, 0.0])])
    def test_temperatures_beyond_the_dtype_are_limits(self, temperature, expected):
        s, allowed = np.asarray([[1.0, 2.0, 9.0]], dtype=np.float32), np.asarray([[True, True, False]])
        with np.errstate(under="ignore", over="ignore"):
            np.testing.assert_array_equal(softmax(s, allowed, temperature=temperature), [expected])
            ds = softmax_vjp(s, s, allowed, temperature=temperature)
        assert np.all(np.isfinite(ds))

    def test_both_minus_infinity_and_a_mask_that_hides_all_give_an_empty_row(self, xp):
        s = xp.asarray([[1.0, 2.0], [-INF, -INF], [-INF, 5.0], [1.0, -INF]])
        allowed = xp.asarray([[False, False], [True, True], [True, False], [True, True]], "bool")
        xp.check(softmax(s, allowed), [[0.0, 0.0], [0.0, 0.0], [0.0, 0.0], [1.0, 0.0]], tolerance=0)

    def test_plus_infinite_scores_share_the_budget(self, xp):
        s = xp.asarray([[INF, 1.0, INF, -INF], [INF, 1.0, INF, INF], [INF, NAN, 1.0, 1.0], [INF, 0.0, 0.0, 0.0]])
        allowed = np.ones((4, 4), bool)
        allowed[1, 2] = allowed[3, 0] = False
        w = [[0.5, 0.0, 0.5, 0.0], [0.5, 0.0, 0.0, 0.5], [NAN] * 4, [0.0, 1 / 3, 1 / 3, 1 / 3]]
        xp.check(softmax(s, xp.asarray(allowed, "bool")), w)

    @pytest.mark.parametrize("bad", [NAN, INF, -INF])
    def test_a_hidden_score_has_no_effect(self, xp, bad):
        allowed = xp.asarray([[True, False, True]], "bool")
        xp.check(softmax(xp.asarray([[0.0, bad, math.log(3)]]), allowed), [[0.25, 0.0, 0.75]])

    def test_a_visible_nan_makes_its_row_nan_and_no_other(self, xp):
        xp.check(softmax(xp.asarray([[0.0, NAN], [0.0, 0.0]])), [[NAN, NAN], [0.5, 0.5]])

    @claims("S04")
    def test_case_s04_rows_of_keys_are_normalized(self, xp, case):
        c = case("S04")
        s, v = xp.asarray(c["inputs"]["scores"]), xp.asarray(c["inputs"]["v"])
        w = softmax(s)
        xp.check(w, c["expected"]["weights"])
        xp.check(w.sum(axis=-1) if xp.name == "torch" else xp.asarray(xp.numpy(w).sum(-1)), c["expected"]["row_sums"])
        xp.check(w @ v, c["expected"]["out"])
        wrong = c["wrong"]["over_queries"]
        assert np.abs(xp.numpy(w) - wrong["weights"]).max() > 0.1
        assert np.abs(xp.numpy(w @ v) - wrong["out"]).max() > 1

    @claims("S04")
    @given(hnp.arrays(np.float64, hnp.array_shapes(min_dims=1, max_dims=4, max_side=4), elements=st.floats(-50, 50)))
    def test_case_s04_each_row_over_the_last_axis_sums_to_one_and_ignores_the_other_rows(self, s):
        w = softmax(s)
        np.testing.assert_allclose(w.sum(-1), np.ones(s.shape[:-1]), rtol=1e-12)
        for index in np.ndindex(s.shape[:-1]):
            np.testing.assert_array_equal(w[index], softmax(s[index]))

    @claims("N13")
    def test_case_n13_scores_of_a_thousand(self, xp, case):
        c = case("N13")
        s = xp.asarray(c["inputs"]["scores"])
        xp.check(softmax(s), c["expected"]["weights"])
        xp.check(log_sum_exp(s), c["expected"]["lse"])

    @claims("N13")
    @pytest.mark.parametrize("shift", [-1e30, -1e5, 1e5, 1e30, 1e300])
    def test_case_n13_scores_of_any_size(self, xp, shift):
        s = xp.asarray([[shift, shift, -abs(shift) * 2]])
        xp.check(softmax(s), [[0.5, 0.5, 0.0]])
        xp.check(log_sum_exp(s) / abs(shift), [math.copysign(1.0, shift) + math.log(2) / abs(shift)])

    @claims("N02")
    def test_case_n02_four_thousand_equal_scores_in_sixteen_bits(self, xp, case):
        c = case("N02")
        logits = np.full(c["inputs"]["logits"]["shape"], c["inputs"]["logits"]["fill"])
        for dtype in xp.narrow_dtypes:
            w = softmax(xp.asarray(logits, dtype))
            xp.check(w, np.full(logits.shape, c["expected"]["weight_each"]), dtype=dtype, tolerance=0)
            assert xp.numpy(w).sum() == c["expected"]["row_sum"]
            for wrong in c["wrong"].values():
                assert xp.numpy(w)[0] != wrong["weight_each"]
                assert xp.numpy(w).sum() != wrong["row_sum"]

    @claims("N02")
    @pytest.mark.parametrize("m", [300, 2049, 5000])
    def test_case_n02_long_rows_of_any_length(self, xp, m):
        for dtype in xp.narrow_dtypes:
            w = xp.numpy(softmax(xp.asarray(np.zeros((2, m)), dtype)))
            np.testing.assert_allclose(w, 1 / m, rtol=2**-8 if dtype == "bfloat16" else 2**-11)

    def test_zero_lengths(self, xp):
        for shape in ((0,), (2, 0), (0, 3), (2, 0, 3)):
            xp.check(softmax(xp.asarray(np.ones(shape))), np.full(shape, 1 / 3))
            xp.check(softmax(xp.asarray(np.ones(shape)), xp.asarray(np.ones(shape), "bool")), np.full(shape, 1 / 3))

    def test_the_mask_broadcasts_to_the_scores(self, xp):
        s = xp.asarray(np.zeros((2, 2, 4)))
        for allowed in ([True, True, False, True], [[True], [False]], True):
            row = np.broadcast_to(allowed, (2, 2, 4))
            expected = row / np.maximum(row.sum(-1, keepdims=True), 1)
            xp.check(softmax(s, xp.asarray(allowed, "bool")), expected)

    def test_one_item_gets_all(self, xp):
        xp.check(softmax(xp.asarray([[-7.0], [1e4]])), [[1.0], [1.0]], tolerance=0)

    @pytest.mark.parametrize("temperature", [-1.0, NAN, INF, -INF])
    def test_an_impossible_temperature_raises(self, xp, temperature):
        with pytest.raises(ValueError, match="temperature"):
            softmax(xp.asarray([[1.0]]), temperature=temperature)

    def test_a_temperature_is_a_number(self, xp):
        for temperature in ("warm", [1.0], None):
            with pytest.raises(TypeError, match="temperature"):
                softmax(xp.asarray([[1.0]]), temperature=temperature)

    def test_a_temperature_of_zero_names_the_hard_lookup(self, xp):
        for zero in (0, 0.0):
            with pytest.raises(ValueError, match="temperature.*hard_lookup"):
                softmax(xp.asarray([[1.0]]), temperature=zero)

    def test_bad_input(self, xp, other):
        refuses_bad_input(softmax, xp, other)


def refuses_bad_input(function, xp, other):
    s = xp.asarray(np.ones((2, 3)))
    with pytest.raises(ValueError, match=r"\bs\b.*\(\)"):
        function(xp.asarray(1.0))
    with pytest.raises(TypeError, match=r"\bs\b"):
        function([[1.0, 2.0]])
    with pytest.raises(TypeError, match="allowed"):
        function(s, [[True]])
    with pytest.raises(TypeError, match="allowed.*bool"):
        function(s, xp.asarray(np.ones((2, 3))))
    with pytest.raises(TypeError, match="allowed.*bool"):
        function(s, xp.asarray(np.ones((2, 3)), "int64"))
    with pytest.raises(TypeError):
        function(s, other.asarray(np.ones((2, 3)), "bool"))
    for shape in ((3, 3), (5, 2, 3), (2, 4)):
        with pytest.raises(ValueError, match=rf"allowed.*\({', '.join(map(str, shape))}\).* \(2, 3\)"):
            function(s, xp.asarray(np.ones(shape), "bool"))


class TestLogSumExp:
    def test_the_logarithms_of_whole_numbers_by_hand(self, xp):
        s = xp.asarray([[math.log(1), math.log(3), math.log(4)], [0.0, 0.0, 0.0]])
        xp.check(log_sum_exp(s), [math.log(8), math.log(3)])

    @given(masked_scores(any_score))
    def test_is_the_loop(self, given_scores):
        s, allowed = given_scores
        expected = rows(loop_log, s, allowed).reshape(s.shape[:-1])
        np.testing.assert_allclose(log_sum_exp(s, allowed), expected, rtol=1e-12, atol=1e-12)

    def test_agrees_with_numpy_logaddexp(self, agree):
        s = 5 * np.random.default_rng(4).normal(size=(6, 33))
        agree(
            log_sum_exp(s),
            np.logaddexp.reduce(s, axis=-1),
            function="lookup.log_sum_exp",
            stranger="numpy.logaddexp.reduce",
            version=f"numpy {np.__version__}",
            dtype="float64",
        )

    def test_agrees_with_torch(self, torch, agree):
        s = 5 * np.random.default_rng(5).normal(size=(6, 33))
        agree(
            log_sum_exp(s),
            torch.logsumexp(torch.tensor(s), dim=-1),
            function="lookup.log_sum_exp",
            stranger="torch.logsumexp",
            version=f"torch {torch.__version__.partition('+')[0]}",
            dtype="float64",
        )

    @given(masked_scores(st.floats(-50, 50)))
    def test_weights_are_exponentials_of_the_score_less_the_log_sum_exp(self, given_scores):
        s, allowed = given_scores
        total = np.expand_dims(log_sum_exp(s, allowed), -1)
        seen = np.broadcast_to(True if allowed is None else allowed, s.shape)
        expected = np.exp(np.where(seen, s - np.where(np.isinf(total), 0.0, total), -INF))
        np.testing.assert_allclose(softmax(s, allowed), expected, rtol=1e-12)

    def test_its_gradient_is_the_softmax_also_where_a_row_is_empty_or_hides_a_nan(self, autograd):
        s = np.random.default_rng(6).normal(size=(4, 3))
        allowed = np.array([[True] * 3, [False] * 3, [True, False, True], [True, True, False]])
        s[1], s[2, 1], s[3, 2] = NAN, NAN, INF
        expected = rows(loop, s, allowed).reshape(s.shape)
        mask = autograd.asarray(allowed, "bool")
        (ds,) = autograd.vjp(lambda s: log_sum_exp(s, mask), autograd.asarray(np.ones(4)), autograd.asarray(s))
        autograd.check(ds, expected)

    def test_infinities(self, xp):
        s = xp.asarray([[1.0, INF], [-INF, -INF], [-INF, 2.0], [INF, NAN], [INF, INF]])
        xp.check(log_sum_exp(s), [INF, -INF, 2.0, NAN, INF])
        first = xp.asarray([[True, False]], "bool")
        xp.check(log_sum_exp(s, first), [1.0, -INF, -INF, INF, INF])

    def test_zero_lengths(self, xp):
        for shape in ((0,), (2, 0), (0, 3), (2, 0, 3)):
            xp.check(log_sum_exp(xp.asarray(np.zeros(shape))), np.full(shape[:-1], -INF if shape[-1] == 0 else 0.0))

    def test_bad_input(self, xp, other):
        refuses_bad_input(log_sum_exp, xp, other)


class TestEntropy:
    def test_powers_of_two_by_hand(self, xp):
        w = [[0.25, 0.25, 0.25, 0.25], [0.5, 0.25, 0.125, 0.125], [0.0, 1.0, 0.0, 0.0], [0.5, 0.0, 0.5, 0.0]]
        xp.check(entropy(xp.asarray(w)), [2.0, 0.5 + 0.5 + 0.375 + 0.375, 0.0, 1.0])

    @given(st.lists(st.floats(0, 1), min_size=1, max_size=6))
    def test_is_the_loop(self, raw):
        expected = -math.fsum(p * math.log2(p) for p in raw if p > 0)
        np.testing.assert_allclose(entropy(np.array([raw])), [expected], rtol=1e-12, atol=1e-12)

    def test_agrees_with_torch(self, torch, agree):
        w = np.random.default_rng(7).dirichlet(np.ones(17), size=8)
        theirs = torch.distributions.Categorical(probs=torch.tensor(w)).entropy() / math.log(2)
        agree(
            entropy(w),
            theirs,
            function="lookup.entropy",
            stranger="torch.distributions.Categorical.entropy",
            version=f"torch {torch.__version__.partition('+')[0]}",
            dtype="float64",
            clash="measures in nats, not in bits",
        )

    @given(masked_scores(st.floats(-20, 20)))
    def test_is_the_log_sum_exp_less_the_mean_score(self, given_scores):
        s, _ = given_scores
        w = softmax(s)
        expected = (log_sum_exp(s) - np.sum(w * s, axis=-1)) / math.log(2)
        np.testing.assert_allclose(entropy(w), expected, rtol=1e-9, atol=1e-9)

    def test_an_empty_row_has_no_entropy(self, xp):
        xp.check(entropy(xp.asarray([[0.0, 0.0]])), [0.0])
        xp.check(entropy(xp.asarray(np.ones((2, 0)))), [0.0, 0.0])

    def test_nan_stays(self, xp):
        xp.check(entropy(xp.asarray([[NAN, 1.0], [1.0, 0.0]])), [NAN, 0.0])

    def test_its_gradient_is_finite_where_a_weight_is_positive(self, autograd):
        w = np.array([[0.5, 0.25, 0.25]])
        (dw,) = autograd.vjp(entropy, autograd.asarray([1.0]), autograd.asarray(w))
        autograd.check(dw, -np.log2(w) - 1 / math.log(2))

    def test_bad_input(self, xp):
        refuses_weights(entropy, xp)


def refuses_weights(function, xp):
    with pytest.raises(ValueError, match=r"\bw\b.*\(\)"):
        function(xp.asarray(1.0))
    with pytest.raises(TypeError, match=r"\bw\b"):
        function([[1.0]])


class TestEffectiveItems:
    def test_equal_shares_count_the_items(self, xp):
        w = [[0.25, 0.25, 0.25, 0.25], [0.5, 0.0, 0.5, 0.0], [0.0, 0.0, 0.0, 1.0], [0.5, 0.25, 0.125, 0.125]]
        xp.check(effective_items(xp.asarray(w)), [4.0, 2.0, 1.0, 2.0**1.75])

    @given(masked_scores(st.floats(-20, 20)))
    def test_is_two_to_the_entropy_and_between_one_and_the_number_of_items(self, given_scores):
        s, _ = given_scores
        items = effective_items(softmax(s))
        np.testing.assert_allclose(items, 2 ** entropy(softmax(s)), rtol=1e-12)
        assert np.all(items >= 1 - 1e-9)
        assert np.all(items <= s.shape[-1] + 1e-9)

    def test_an_empty_row_has_no_items(self, xp):
        xp.check(effective_items(xp.asarray([[0.0, 0.0], [0.0, 1.0]])), [0.0, 1.0])
        xp.check(effective_items(xp.asarray(np.ones((2, 0)))), [0.0, 0.0])

    def test_nan_stays(self, xp):
        xp.check(effective_items(xp.asarray([[NAN, 1.0]])), [NAN])

    def test_bad_input(self, xp):
        refuses_weights(effective_items, xp)


def loop_vjp(g, w, temperature):
    """One row: each weight times how far its own gradient lies above the mean one."""
    mean = math.fsum(a * b for a, b in zip(g, w, strict=True))
    return [wj * (gj - mean) / temperature for gj, wj in zip(g, w, strict=True)]


class TestSoftmaxVjp:
    def test_two_items_by_hand(self, xp):
        s, g = xp.asarray([[0.0, math.log(3)]]), xp.asarray([[1.0, 0.0]])
        xp.check(softmax_vjp(g, s), [[0.25 * 0.75, -0.75 * 0.25]])
        xp.check(softmax_vjp(g, s / 2, temperature=0.5), [[0.375, -0.375]])

    @given(masked_scores(st.floats(-30, 30)), st.floats(0.1, 10), st.data())
    def test_is_the_loop(self, given_scores, t, data):
        s, allowed = given_scores
        g = data.draw(hnp.arrays(np.float64, s.shape, elements=st.floats(-10, 10)))
        w = rows(loop, s, allowed, temperature=t)
        expected = np.array([loop_vjp(a, b, t) for a, b in zip(flat(g), w, strict=True)]).reshape(s.shape)
        np.testing.assert_allclose(softmax_vjp(g, s, allowed, temperature=t), expected, rtol=1e-9, atol=1e-9)

    def test_agrees_with_automatic_differentiation_of_the_stranger(self, torch, agree):
        rng = np.random.default_rng(8)
        s, g = rng.normal(size=(5, 9)), rng.normal(size=(5, 9))
        leaf = torch.tensor(s, requires_grad=True)
        torch.softmax(leaf / 0.5, dim=-1).backward(torch.tensor(g))
        agree(
            softmax_vjp(g, s, temperature=0.5),
            leaf.grad,
            function="lookup.softmax_vjp",
            stranger="torch autograd of torch.softmax",
            version=f"torch {torch.__version__.partition('+')[0]}",
            dtype="float64",
        )

    def test_agrees_with_automatic_differentiation_of_ours(self, autograd):
        rng = np.random.default_rng(9)
        s, g = rng.normal(size=(4, 5)), rng.normal(size=(4, 5))
        allowed = np.tri(4, 5, -1, dtype=bool)
        s[~allowed] = NAN
        mask = autograd.asarray(allowed, "bool")
        g, s = autograd.asarray(g), autograd.asarray(s)
        (ds,) = autograd.vjp(lambda s: softmax(s, mask, temperature=0.3), g, s)
        autograd.check(softmax_vjp(g, s, mask, temperature=0.3), autograd.numpy(ds))
        assert np.all(autograd.numpy(ds)[~allowed] == 0)

    def test_passes_gradcheck(self, torch):
        s = torch.tensor(np.random.default_rng(10).normal(size=(3, 4)), requires_grad=True)
        allowed = torch.tensor(np.tri(3, 4, -1, dtype=bool))
        assert torch.autograd.gradcheck(lambda s: softmax(s, allowed, temperature=0.7), s)
        assert torch.autograd.gradgradcheck(lambda s: softmax(s, allowed, temperature=0.7), s)

    @pytest.mark.parametrize("t", [0.25, 1.0, 3.0])
    def test_agrees_with_finite_differences(self, t):
        rng = np.random.default_rng(11)
        s, g, allowed = rng.normal(size=(3, 4)), rng.normal(size=(3, 4)), np.tri(3, 4, -1, dtype=bool)
        (expected,) = finite_differences(lambda s: softmax(s, allowed, temperature=t), g, s)
        np.testing.assert_allclose(softmax_vjp(g, s, allowed, temperature=t), expected, rtol=1e-7, atol=1e-8)

    @pytest.mark.parametrize("bad", [NAN, INF, -INF])
    def test_hidden_scores_and_hidden_gradients_have_no_effect(self, xp, bad):
        s, g = xp.asarray([[0.0, bad, math.log(3)], [bad] * 3]), xp.asarray([[1.0, bad, 0.0], [bad] * 3])
        allowed = xp.asarray([[True, False, True], [False] * 3], "bool")
        xp.check(softmax_vjp(g, s, allowed), [[0.1875, 0.0, -0.1875], [0.0, 0.0, 0.0]])

    def test_softmax_carries_it(self):
        assert softmax.vjp is softmax_vjp

    def test_zero_lengths(self, xp):
        for shape in ((0,), (2, 0), (0, 3), (2, 0, 3)):
            a = xp.asarray(np.ones(shape))
            xp.check(softmax_vjp(a, a), np.zeros(shape))

    def test_bad_input(self, xp, other):
        s = xp.asarray(np.ones((2, 3)))
        with pytest.raises(ValueError, match=r"\bg\b.*\(2, 2\).* \(2, 3\)"):
            softmax_vjp(xp.asarray(np.ones((2, 2))), s)
        with pytest.raises(TypeError, match=r"\bg\b"):
            softmax_vjp([[1.0]], s)
        with pytest.raises(TypeError):
            softmax_vjp(other.asarray(np.ones((2, 3))), s)
        with pytest.raises(ValueError, match="temperature.*hard_lookup"):
            softmax_vjp(s, s, temperature=0.0)
        refuses_bad_input(lambda a, *allowed: softmax_vjp(a if hasattr(a, "shape") else s, a, *allowed), xp, other)


def test_the_function_shadows_its_module():
    assert importlib.import_module("softlookup.lookup.softmax").softmax is softmax


@pytest.mark.parametrize(("name", "invariant"), held("lookup/softmax"))
def test_shared_invariants(xp, name, invariant):
    invariant(SUBJECTS[name], xp)
