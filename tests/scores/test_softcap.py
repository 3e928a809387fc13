"""softlookup.scores.softcap: scores bent toward a bound, and where the cap stands in the order."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from invariants import held
from libraries import finite_differences
from oracles.freeze import frozen
from oracles.onnx_cases import attention_arguments, node_cases, onnx
from subjects import SUBJECTS

from softlookup.lookup import attention, attention_scores, attention_vjp, gaussian_score, scaled_dot
from softlookup.scores import capped, softcap, softcap_vjp

INF, NAN = math.inf, math.nan
claims = pytest.mark.claims


def random_arrays(seed, *shapes):
    rng = np.random.default_rng(seed)
    return [rng.normal(size=shape) for shape in shapes]


def refuses_bad_caps(call):
    for cap in (0, -1.0, INF, NAN):
        with pytest.raises(ValueError, match="cap"):
            call(cap)
    with pytest.raises(TypeError, match="cap"):
        call("3")


def capped_nodes():
    return [node for node in node_cases("Attention") if node.attributes.get("softcap")]


class TestSoftcap:
    def test_is_the_formula(self, xp):
        (s,) = random_arrays(0, (2, 3, 4))
        expected = [5 * math.tanh(x / 5) for x in (7 * s).ravel()]
        xp.check(softcap(xp.asarray(7 * s), cap=5.0), np.reshape(expected, s.shape))

    def test_agrees_with_torch(self, torch, agree):
        (s,) = random_arrays(1, (5, 6))
        agree(
            softcap(40 * s, cap=30),
            30 * torch.tanh(torch.tensor(40 * s) / 30),
            function="scores.softcap",
            stranger="torch.tanh, scaled",
            version=f"torch {torch.__version__.partition('+')[0]}",
            dtype="float64",
        )

    @given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=6), st.floats(0.01, 1e3))
    def test_is_bounded_and_keeps_the_order(self, scores, cap):
        out = softcap(np.sort(scores), cap=cap)
        assert np.all(np.abs(out) <= cap * (1 + 1e-15))
        assert np.all(np.diff(out) >= 0)

    def test_small_scores_stay_as_they_are(self, xp):
        s = np.linspace(-0.01, 0.01, 5)
        xp.check(softcap(xp.asarray(s), cap=50.0), s - s**3 / (3 * 50**2), tolerance=1e-15)

    def test_infinities_and_nan(self, xp):
        out = xp.numpy(softcap(xp.asarray([-INF, INF, NAN]), cap=2.0))
        np.testing.assert_array_equal(out, [-2.0, 2.0, NAN])

    def test_bad_input(self):
        refuses_bad_caps(lambda cap: softcap(np.ones(2), cap=cap))
        with pytest.raises(TypeError, match=r"\bs\b"):
            softcap([1.0], cap=1.0)


class TestSoftcapVjp:
    def test_agrees_with_differences_and_automatic_differentiation(self, autograd):
        g, s = random_arrays(2, (3, 4), (3, 4))
        ours = softcap_vjp(g, 3 * s, cap=2.0)
        (differences,) = finite_differences(lambda a: softcap(a, cap=2.0), g, 3 * s)
        np.testing.assert_allclose(ours, differences, atol=1e-9)
        (theirs,) = autograd.vjp(lambda a: softcap(a, cap=2.0), *map(autograd.asarray, (g, 3 * s)))
        autograd.check(theirs, ours)

    def test_infinite_scores_have_no_slope(self, xp):
        s = xp.asarray([-INF, 0.0, INF])
        xp.check(softcap_vjp(xp.asarray(np.ones(3)), s, cap=2.0), [0.0, 1.0, 0.0])

    def test_bad_input(self):
        refuses_bad_caps(lambda cap: softcap_vjp(np.ones(2), np.ones(2), cap=cap))
        with pytest.raises(ValueError, match=r"g.*\(3,\).*\(2,\)"):
            softcap_vjp(np.ones(3), np.ones(2), cap=1.0)


class TestCapped:
    def test_is_the_loop(self, xp):
        q, k = random_arrays(3, (3, 4), (5, 4))
        expected = [[1.5 * math.tanh(sum(a * b for a, b in zip(x, y, strict=True)) / 1.5) for y in k] for x in q]
        xp.check(capped(scaled_dot(scale=1.0), cap=1.5)(xp.asarray(q), xp.asarray(k)), expected)

    def test_equals_the_cap_of_scaled_dot(self, xp):
        q, k = map(xp.asarray, random_arrays(4, (2, 3, 4), (2, 5, 4)))
        xp.check(capped(scaled_dot(), cap=0.7)(q, k), xp.numpy(scaled_dot(cap=0.7)(q, k)))

    def test_a_cap_out_of_reach_changes_nothing(self, xp):
        q, k = map(xp.asarray, random_arrays(5, (3, 4), (5, 4)))
        xp.check(capped(scaled_dot(), cap=1e9)(q, k), xp.numpy(scaled_dot()(q, k)))

    @pytest.mark.parametrize("node", capped_nodes(), ids=lambda node: node.name)
    def test_agrees_with_the_node_cases_of_onnx(self, node, agree):
        given = attention_arguments(node)
        score = capped(scaled_dot(scale=given["scale"]), cap=given["cap"])
        ours = attention(given["q"], given["k"], given["v"], mask=given["mask"], bias=given["bias"], score=score)
        theirs = node.outputs["Y"].astype(np.float64)
        agree(
            ours if theirs.ndim == 4 else ours.swapaxes(1, 2).reshape(theirs.shape),
            theirs,
            function="scores.capped",
            stranger="onnx node cases of Attention with softcap",
            version=f"onnx {onnx.__version__}",
            dtype=node.inputs["Q"].dtype.name,
        )

    def test_agrees_with_flex_attention(self, torch, agree, monkeypatch):
        from torch.nn.attention import flex_attention as flex

        monkeypatch.setattr(flex, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)
        arrays = random_arrays(6, (1, 2, 5, 4), (1, 2, 6, 4), (1, 2, 6, 3))
        arrays[0] *= 5
        with np.errstate(all="ignore"):
            theirs = flex.flex_attention(
                *map(torch.tensor, arrays), score_mod=lambda s, b, h, i, j: 2 * torch.tanh(s / 2)
            )
        agree(
            attention(*arrays, score=capped(scaled_dot(), cap=2.0)),
            theirs,
            function="scores.capped",
            stranger="torch flex_attention with a score_mod",
            version=f"torch {torch.__version__.partition('+')[0]}",
            dtype="float64",
        )

    def test_agrees_with_gemma_2(self, agree):
        fixture = frozen("transformers_gemma2_softcap")
        score = capped(scaled_dot(scale=float(fixture["scale"])), cap=float(fixture["cap"]))
        agree(
            attention(fixture["q"], fixture["k"], fixture["v"], mask=fixture["allow"], score=score),
            fixture["out"],
            function="scores.capped",
            stranger="transformers, eager attention of Gemma 2",
            version=fixture.version,
            dtype="float32",
        )

    def test_its_gradient_passes_through_attention(self, autograd):
        arrays = random_arrays(7, (2, 3), (4, 3), (4, 2), (2, 2))
        q, k, v, g = map(autograd.asarray, arrays)
        score = capped(scaled_dot(), cap=0.5)
        expected = autograd.vjp(lambda *a: attention(*a, score=score), g, q, k, v)
        for ours, theirs in zip(attention_vjp(g, q, k, v, score=score)[:3], expected, strict=True):
            autograd.check(ours, autograd.numpy(theirs), tolerance=1e-11)

    def test_a_score_without_a_gradient_gives_none(self):
        def plain(q, k):
            return q @ k.mT

        assert not hasattr(capped(plain, cap=1.0), "vjp")

    @claims("S05")
    def test_case_s05_the_cap_comes_before_the_mask(self, xp, case):
        c = case("S05")
        q, k, v = (xp.asarray(c["inputs"][name]) for name in "qkv")
        mask = xp.asarray(c["inputs"]["keep"], "bool")
        for score in (capped(scaled_dot(scale=1.0), cap=1.0), scaled_dot(scale=1.0, cap=1.0)):
            out = attention(q, k, v, mask=mask, score=score)
            xp.check(out, c["expected"]["out"])
            for wrong in c["wrong"].values():
                assert np.abs(xp.numpy(out) - wrong["out"]).max() > 0.1

    @claims("S05")
    @pytest.mark.parametrize("cap", [1e-3, 0.5, 3.0, 1e4])
    @pytest.mark.parametrize("score", [scaled_dot(), gaussian_score()], ids=["dot", "gaussian"])
    def test_case_s05_no_cap_gives_weight_to_a_hidden_key(self, cap, score):
        q, k, v, bias = random_arrays(8, (4, 3), (6, 3), (6, 2), (4, 6))
        mask = np.random.default_rng(9).random((4, 6)) < 0.5
        mask[0] = False
        out = attention(10 * q, k, v, mask=mask, bias=bias, score=capped(score, cap=cap))
        for i in range(4):
            seen = np.flatnonzero(mask[i])
            s = cap * np.tanh(attention_scores(10 * q[[i]], k[seen], score=score) / cap) + bias[i, seen]
            w = np.exp(s - s.max(initial=0.0))
            np.testing.assert_allclose(out[i], (w @ v[seen])[0] / w.sum() if seen.size else 0, atol=1e-12)

    def test_bad_input(self):
        refuses_bad_caps(lambda cap: capped(scaled_dot(), cap=cap))
        with pytest.raises(TypeError, match="score"):
            capped(3.0, cap=1.0)


@pytest.mark.parametrize(("name", "invariant"), held("scores/softcap"))
def test_shared_invariants(xp, name, invariant):
    invariant(SUBJECTS[name], xp)
