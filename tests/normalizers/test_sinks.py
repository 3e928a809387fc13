"""softlookup.normalizers.sinks: a part of the budget that no item gets."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from invariants import held
from libraries import finite_differences
from oracles.freeze import frozen
from subjects import SUBJECTS

from softlookup.lookup import attention, attention_vjp, attention_weights, log_sum_exp, softmax, weighted_average
from softlookup.normalizers import append_item, sink_softmax, sink_softmax_vjp, softmax_plus_one, softpick

INF, NAN = math.inf, math.nan
claims = pytest.mark.claims


def loop(row, allowed, extra):
    """One row: each allowed exponential over `extra` plus their sum."""
    total = extra + math.fsum(math.exp(x) for x, a in zip(row, allowed, strict=True) if a)
    return [math.exp(x) / total if a else 0.0 for x, a in zip(row, allowed, strict=True)]


def loop_softpick(row, allowed):
    total = math.fsum(abs(math.expm1(x)) for x, a in zip(row, allowed, strict=True) if a)
    return [max(math.expm1(x), 0) / total if a and total else 0.0 for x, a in zip(row, allowed, strict=True)]


@st.composite
def rows(draw):
    m = draw(st.integers(0, 6))
    return draw(hnp.arrays(np.float64, m, elements=st.floats(-30, 30))), draw(hnp.arrays(bool, m))


class TestSoftmaxPlusOne:
    def test_by_hand(self, xp):
        s = xp.asarray([[math.log(1), math.log(3), math.log(4)]])
        xp.check(softmax_plus_one(s), [[1 / 9, 3 / 9, 4 / 9]])
        xp.check(softmax_plus_one(s, extra=2.0), [[0.1, 0.3, 0.4]])

    @given(rows(), st.sampled_from([0.5, 1.0, 3.0]))
    def test_is_the_loop(self, row, extra):
        np.testing.assert_allclose(softmax_plus_one(*row, extra=extra), loop(*row, extra), rtol=1e-12, atol=1e-300)

    def test_agrees_with_the_module_of_torch_with_a_zero_item(self, torch, agree):
        q, k, v, module = torch_module(torch, add_zero_attn=True)
        ours = attention(q.numpy(), k.numpy(), v.numpy(), normalize=softmax_plus_one)
        agree(
            ours,
            module(q, k, v, need_weights=False)[0],
            function="normalizers.softmax_plus_one",
            stranger="torch nn.MultiheadAttention, add_zero_attn",
            version=f"torch {torch.__version__.partition('+')[0]}",
            dtype="float64",
        )

    def test_whole_extras_are_items_with_score_and_value_zero(self, xp):
        s, v = xp.asarray([[0.4, -1.0]]), xp.asarray([[2.0], [3.0]])
        longer, more = xp.asarray([[0.4, -1.0, 0.0, 0.0, 0.0]]), xp.asarray([[2.0], [3.0], [0.0], [0.0], [0.0]])
        ours = softmax_plus_one(s, extra=3) @ v
        xp.check(ours, xp.numpy(weighted_average(softmax(longer), more)))

    def test_large_scores_do_not_overflow_and_tiny_ones_read_nothing(self, xp):
        xp.check(softmax_plus_one(xp.asarray([[1000.0, 1000.0], [-1000.0, -INF]])), [[0.5, 0.5], [0.0, 0.0]])

    def test_bad_extra(self, xp):
        for extra in (0.0, -1.0, INF):
            with pytest.raises(ValueError, match="extra"):
                softmax_plus_one(xp.asarray([1.0]), extra=extra)
        with pytest.raises(TypeError, match="extra"):
            softmax_plus_one(xp.asarray([1.0]), extra="one")


def torch_module(torch, **options):
    """Queries, keys and values of one head, and a module of torch that projects nothing."""
    rng = np.random.default_rng(5)
    q, k, v = (torch.tensor(rng.normal(size=(n, 4))) for n in (3, 5, 5))
    module = torch.nn.MultiheadAttention(4, 1, bias=False, batch_first=True, dtype=torch.float64, **options)
    with torch.no_grad():
        module.in_proj_weight[:] = torch.eye(4, dtype=torch.float64).repeat(3, 1)
        module.out_proj.weight[:] = torch.eye(4, dtype=torch.float64)
    return q, k, v, module.requires_grad_(False)


class TestSinkSoftmax:
    @given(rows(), st.floats(-20, 20))
    def test_is_the_loop(self, row, sink):
        ours = sink_softmax(np.asarray(sink))(*row)
        np.testing.assert_allclose(ours, loop(*row, math.exp(sink)), rtol=1e-12, atol=1e-300)

    def test_agrees_with_gpt_oss(self, agree):
        fixture = frozen("transformers_gpt_oss_sinks")
        normalize = sink_softmax(fixture["sinks"][:, None])
        ours = attention(fixture["q"], fixture["k"], fixture["v"], mask=fixture["allow"], normalize=normalize)
        agree(
            ours,
            fixture["out"],
            function="normalizers.sink_softmax",
            stranger="transformers, eager attention of gpt-oss",
            version=fixture.version,
            dtype="float64",
        )

    @claims("S06")
    def test_case_s06_in_three_forms(self, case):
        given, expected = case("S06")["inputs"], case("S06")["expected"]
        q, k, v, sink = (np.asarray(given[name]) for name in ("q", "k", "v", "sink"))
        weights = attention_weights(q, k, normalize=sink_softmax(sink))
        plain = attention(q, k, v)
        total = log_sum_exp(q @ k.T / math.sqrt(2))
        np.testing.assert_allclose(weights, expected["weights"], rtol=1e-12)
        np.testing.assert_allclose(plain, expected["out_without_sink"], rtol=1e-12)
        np.testing.assert_allclose(total, expected["lse_without_sink"], rtol=1e-12)
        np.testing.assert_allclose(np.logaddexp(total, sink), expected["lse_with_sink"], rtol=1e-12)
        gate = 1 / (1 + np.exp(sink - total))
        np.testing.assert_allclose(gate, expected["gate"], rtol=1e-12)
        renormalized = plain * np.exp(total - np.logaddexp(total, sink))[:, None]
        for out in (attention(q, k, v, normalize=sink_softmax(sink)), plain * gate[:, None], renormalized):
            np.testing.assert_allclose(out, expected["out"], rtol=1e-12)

    @claims("S06")
    @pytest.mark.parametrize("shape", [(), (4, 1), (4, 3), (2, 1, 1)], ids=str)
    def test_any_sink_is_a_gate_and_a_column_without_a_value(self, xp, shape):
        rng = np.random.default_rng(6)
        q, k, v, z = (rng.normal(size=size) for size in ((2, 4, 3, 2), (2, 2, 5, 2), (2, 2, 5, 3), shape))
        mask = np.array([[1, 1, 0, 1, 0], [0, 1, 1, 1, 1], [0, 0, 0, 0, 0]], dtype=bool)
        arrays = [xp.asarray(a) for a in (q, k, v)]
        allowed = xp.asarray(mask, "bool")
        ours = xp.numpy(attention(*arrays, mask=allowed, normalize=sink_softmax(xp.asarray(z))))
        keys, values = (np.repeat(a, 2, axis=1) for a in (k, v))
        s = np.where(mask, q @ keys.mT / math.sqrt(2), -INF)
        column = np.broadcast_to(z, s.shape[:-1])[..., None]
        np.testing.assert_allclose(ours, softmax(np.concat([s, column], -1))[..., :-1] @ values, atol=xp.tolerance)
        gate = 1 / (1 + np.exp(column[..., 0] - np.where(mask.any(-1), log_sum_exp(s), -700)))
        plain = xp.numpy(attention(*arrays, mask=allowed))
        np.testing.assert_allclose(ours, plain * gate[..., None], atol=xp.tolerance)

    def test_corners_are_other_normalizers(self, xp):
        s = xp.asarray(np.random.default_rng(7).normal(size=(3, 5)))
        xp.check(sink_softmax(xp.asarray(-INF))(s), xp.numpy(softmax(s)))
        xp.check(sink_softmax(xp.asarray(0.0))(s), xp.numpy(softmax_plus_one(s)))
        xp.check(sink_softmax(xp.asarray(INF))(s), np.zeros((3, 5)))

    def test_rows_keep_what_the_sink_leaves(self, xp):
        s = xp.asarray([[2.0, 1.0], [NAN, 1.0], [-INF, -INF]])
        allowed = xp.asarray([[True, True], [False, True], [True, False]], "bool")
        ours = sink_softmax(xp.asarray([0.0, 1.0, -3.0]))(s, allowed)
        total = math.exp(2) + math.exp(1) + 1
        xp.check(ours, [[math.exp(2) / total, math.exp(1) / total], [0.0, 0.5], [0.0, 0.0]])

    def test_thousands_of_keys_and_half_precision(self, xp):
        for dtype in ("float32", *xp.narrow_dtypes):
            ours = sink_softmax(xp.asarray(math.log(4096), dtype))(xp.asarray(np.zeros((1, 4096)), dtype))
            xp.check(ours, np.full((1, 4096), 1 / 8192), dtype=dtype)

    def test_bad_input(self, xp, other):
        s = xp.asarray(np.ones((2, 3)))
        with pytest.raises(ValueError, match=r"sink.*\(3,\).*\(2,\)"):
            sink_softmax(xp.asarray(np.ones(3)))(s)
        with pytest.raises(TypeError, match="sink"):
            sink_softmax(1.0)(s)
        with pytest.raises(TypeError, match="sink"):
            sink_softmax(other.asarray(1.0))(s)
        with pytest.raises(ValueError, match=r"\bg\b.*\(2, 2\)"):
            sink_softmax_vjp(xp.asarray(np.ones((2, 2))), s, xp.asarray(1.0))
        for normalize in (softmax_plus_one, softpick, sink_softmax(xp.asarray(0.0))):
            with pytest.raises(ValueError, match=r"\bs\b.*\(\)"):
                normalize(xp.asarray(1.0))
            with pytest.raises(ValueError, match=r"allowed.*\(3, 3\)"):
                normalize(s, xp.asarray(np.ones((3, 3)), "bool"))
            with pytest.raises(TypeError, match="allowed"):
                normalize(s, s)


class TestSinkSoftmaxVjp:
    def test_gradients_of_scores_and_sink(self, autograd):
        rng = np.random.default_rng(8)
        g, s, z = rng.normal(size=(2, 3, 5)), rng.normal(size=(2, 3, 5)), rng.normal(size=(2, 1))
        allowed = rng.random((3, 5)) < 0.6
        allowed[1] = False
        expected = finite_differences(lambda a, b: sink_softmax(b)(a, allowed), g, s, z)
        mask = autograd.asarray(allowed, "bool")
        arrays = [autograd.asarray(a) for a in (g, s, z)]
        by_autograd = autograd.vjp(lambda a, b: sink_softmax(b)(a, mask), *arrays)
        by_formula = sink_softmax_vjp(*arrays, mask)
        for one, two, three in zip(by_autograd, by_formula, expected, strict=True):
            autograd.check(one, three, tolerance=1e-8)
            autograd.check(two, three, tolerance=1e-8)

    def test_hidden_nan_leaves_gradients_finite(self, autograd):
        s, z = autograd.asarray([[0.5, NAN, -INF]]), autograd.asarray([0.0])
        allowed = autograd.asarray([[True, False, True]], "bool")
        ds, dz = autograd.vjp(lambda a, b: sink_softmax(b)(a, allowed), autograd.asarray(np.ones((1, 3))), s, z)
        share = math.exp(0.5) / (1 + math.exp(0.5))
        autograd.check(ds, [[share * (1 - share), 0.0, 0.0]])
        autograd.check(dz, [-share * (1 - share)])

    def test_attention_vjp_finds_the_gradient(self, autograd):
        rng = np.random.default_rng(9)
        g, q, k, v = (autograd.asarray(rng.normal(size=n)) for n in ((3, 2), (3, 4), (5, 4), (5, 2)))
        normalize = sink_softmax(autograd.asarray(0.3))
        ours = attention_vjp(g, q, k, v, normalize=normalize)[:3]
        theirs = autograd.vjp(lambda *a: attention(*a, normalize=normalize), g, q, k, v)
        for one, two in zip(ours, theirs, strict=True):
            autograd.check(one, autograd.numpy(two))


class TestSoftpick:
    def test_by_hand(self, xp):
        s = xp.asarray([[math.log(3), math.log(2), math.log(0.5)], [-1.0, -2.0, 0.0], [0.0, 0.0, 0.0]])
        xp.check(softpick(s), [[2 / 3.5, 1 / 3.5, 0.0], [0.0] * 3, [0.0] * 3])

    @given(rows())
    def test_is_the_loop(self, row):
        np.testing.assert_allclose(softpick(*row), loop_softpick(*row), rtol=1e-9, atol=1e-300)

    def test_large_scores_are_softmax(self, xp):
        s = xp.asarray([[1000.0, 999.0, 998.0]])
        xp.check(softpick(s), xp.numpy(softmax(s)))

    def test_small_scores_keep_their_digits(self, xp):
        xp.check(softpick(xp.asarray([[2e-9, 1e-9, -1e-9]], "float32")), [[0.5, 0.25, 0.0]], dtype="float32")

    def test_infinite_scores(self, xp):
        s = xp.asarray([[INF, 5.0, INF], [math.log(2), -INF, -INF], [NAN, 1.0, 1.0]])
        xp.check(softpick(s), [[0.5, 0.0, 0.5], [1 / 3, 0.0, 0.0], [NAN] * 3])

    def test_very_negative_scores_have_no_nan_gradient(self, autograd):
        s = autograd.asarray([[-1000.0, -INF, -2000.0], [INF, 1.0, NAN]])
        allowed = autograd.asarray([[True, True, True], [True, True, False]], "bool")
        (ours,) = autograd.vjp(lambda a: softpick(a, allowed), autograd.asarray(np.ones((2, 3))), s)
        autograd.check(ours, np.zeros((2, 3)))

    def test_gradients(self, autograd):
        rng = np.random.default_rng(10)
        g, s, allowed = rng.normal(size=(3, 5)), rng.normal(size=(3, 5)), rng.random((3, 5)) < 0.7
        (expected,) = finite_differences(lambda a: softpick(a, allowed), g, s)
        mask = autograd.asarray(allowed, "bool")
        (ours,) = autograd.vjp(lambda a: softpick(a, mask), *map(autograd.asarray, (g, s)))
        autograd.check(ours, expected, tolerance=1e-8)


class TestAppendItem:
    def test_agrees_with_the_module_of_torch(self, torch, agree):
        q, k, v, module = torch_module(torch, add_bias_kv=True)
        key, value = (bias.detach().numpy()[0, 0] for bias in (module.bias_k, module.bias_v))
        ours = attention(q.numpy(), *append_item(k.numpy(), v.numpy(), key, value))
        agree(
            ours,
            module(q, k, v, need_weights=False)[0],
            function="normalizers.append_item",
            stranger="torch nn.MultiheadAttention, add_bias_kv",
            version=f"torch {torch.__version__.partition('+')[0]}",
            dtype="float64",
        )

    def test_a_zero_item_is_softmax_plus_one(self, xp):
        rng = np.random.default_rng(11)
        q, k, v = (xp.asarray(rng.normal(size=size)) for size in ((2, 3, 4), (2, 5, 4), (2, 5, 2)))
        longer = append_item(k, v, xp.asarray(np.zeros(4)), xp.asarray(np.zeros((2, 2))))
        xp.check(attention(q, *longer), xp.numpy(attention(q, k, v, normalize=softmax_plus_one)))

    def test_the_item_stands_last(self, xp):
        k, v = append_item(*map(xp.asarray, ([[1.0]], [[2.0, 3.0]], [4.0], [5.0, 6.0])))
        xp.check(k, [[1.0], [4.0]])
        xp.check(v, [[2.0, 3.0], [5.0, 6.0]])

    def test_bad_input(self, xp):
        k, v = xp.asarray(np.ones((3, 2))), xp.asarray(np.ones((3, 4)))
        with pytest.raises(ValueError, match=r"key.*\(3,\)"):
            append_item(k, v, xp.asarray(np.ones(3)), xp.asarray(np.ones(4)))
        with pytest.raises(ValueError, match=r"value.*\(2,\)"):
            append_item(k, v, xp.asarray(np.ones(2)), xp.asarray(np.ones(2)))
        with pytest.raises(ValueError, match=r"k has 2 items"):
            append_item(k[:2, :], v, xp.asarray(np.ones(2)), xp.asarray(np.ones(4)))


@pytest.mark.parametrize(("name", "invariant"), held("normalizers/sinks"))
def test_shared_invariants(xp, name, invariant):
    invariant(SUBJECTS[name], xp)
