"""softlookup.heads.gates: numbers that open and close outputs, values and whole heads."""

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

from softlookup.heads import head_gate, mixture_of_heads, output_gate, top_gates, value_residual
from softlookup.lookup import attention, attention_scores, log_sum_exp, softmax
from softlookup.normalizers import sink_softmax
from softlookup.scores import rms_norm

INF, NAN = math.inf, math.nan


def loop_gate(out, logits):
    y = np.zeros(out.shape)
    for index in np.ndindex(out.shape):
        y[index] = out[index] / (1 + math.exp(-np.broadcast_to(logits, out.shape)[index]))
    return y


def loop_top(row, kept):
    """Sort by size and then by place, keep the first ones, share one among them."""
    order = sorted(range(len(row)), key=lambda e: (-row[e], e))[:kept]
    total = math.fsum(math.exp(row[e]) for e in order)
    return [math.exp(row[e]) / total if e in order else 0.0 for e in range(len(row))]


def loop_mixture(q, k, v, w_o, logits, kept, mask):
    _, heads, n, d = q.shape
    out = np.zeros((n, w_o.shape[-1]))
    for i in range(n):
        for e, gate in enumerate(loop_top(logits[i], kept)):
            for h in range(heads):
                weights = {j: math.exp(q[e, h, i] @ k[h, j] / math.sqrt(d)) for j in range(k.shape[1]) if mask[h, i, j]}
                for j, weight in weights.items():
                    out[i] += gate * weight / sum(weights.values()) * v[h, j] @ w_o[e, h]
    return out


def draw(seed, experts=3, heads=2, n=4, m=5):
    rng = np.random.default_rng(seed)
    shapes = [(experts, heads, n, 3), (heads, m, 3), (heads, m, 2), (experts, heads, 2, 4), (n, experts)]
    mask = rng.random((heads, n, m)) < 0.6
    mask[:, 1] = False
    return [rng.normal(size=s) for s in shapes], mask


class TestOutputGate:
    def test_by_hand(self, xp):
        xp.check(output_gate(*map(xp.asarray, ([[[10.0, 10.0]]], np.log([[[1.0, 4.0]]])))), [[[5.0, 8.0]]])

    @pytest.mark.parametrize("shape", [(2, 3, 4), (2, 3, 1), (1, 4), ()])
    def test_is_the_loop(self, xp, shape):
        rng = np.random.default_rng(0)
        out, logits = rng.normal(size=(2, 3, 4)), rng.normal(size=shape)
        xp.check(output_gate(xp.asarray(out), xp.asarray(logits)), loop_gate(out, logits))

    def test_agrees_with_transformers(self, agree):
        """Qwen3-Next packs a query and its gate side by side in each head, and stores a norm as one plus its weight."""
        o = frozen("transformers_qwen3_next_gate")
        packed = (o["x"] @ o["q_proj.weight"].T).reshape(2, 5, 4, 4).swapaxes(1, 2)
        k, v = ((o["x"] @ o[f"{name}_proj.weight"].T).reshape(2, 5, 2, 2).swapaxes(1, 2) for name in "kv")
        epsilon = float(o["epsilon"])
        q = rms_norm(packed[..., :2], weight=1 + o["q_norm.weight"], epsilon=epsilon)
        k = rms_norm(k, weight=1 + o["k_norm.weight"], epsilon=epsilon)
        out = output_gate(attention(q, k, v, mask=np.tri(5, dtype=bool)), packed[..., 2:])
        agree(
            out.swapaxes(1, 2).reshape(2, 5, 8) @ o["o_proj.weight"].T,
            o["out"],
            function="heads.output_gate",
            stranger="transformers Qwen3-Next attention, kept result",
            version=o.version,
            dtype="float64",
            clash="query and gate are packed head by head; norms store a weight minus one, in single precision",
        )

    def test_corners(self, xp):
        out = xp.asarray([[[3.0, -4.0]]])
        for logit, factor in ((0.0, 0.5), (INF, 1.0), (-INF, 0.0), (1000.0, 1.0), (-1000.0, 0.0)):
            xp.check(output_gate(out, xp.asarray(logit)), factor * np.array([[[3.0, -4.0]]]))

    def test_gradients(self, autograd):
        g, out, logits = np.random.default_rng(1).normal(size=(3, 2, 3, 4))
        expected = finite_differences(output_gate, g, out, logits[..., :1])
        arrays = map(autograd.asarray, (g, out, logits[..., :1]))
        for one, two in zip(autograd.vjp(output_gate, *arrays), expected, strict=True):
            autograd.check(one, two, tolerance=1e-8)

    def test_bad_input(self, xp, other):
        out = xp.asarray(np.ones((2, 3, 4)))
        with pytest.raises(ValueError, match=r"logits.*\(3,\).*\(2, 3, 4\)"):
            output_gate(out, xp.asarray(np.ones(3)))
        with pytest.raises(ValueError, match=r"out.*\(3, 4\)"):
            output_gate(out[0, ...], xp.asarray(1.0))
        with pytest.raises(TypeError, match="logits"):
            output_gate(out, 1.0)
        with pytest.raises(TypeError, match="one library"):
            output_gate(out, other.asarray(1.0))


class TestHeadGate:
    def test_by_hand(self, xp):
        ours = head_gate(*map(xp.asarray, ([[[10.0, 20.0]], [[10.0, 20.0]]], np.log([[4.0], [1.0]]))))
        xp.check(ours, [[[8.0, 16.0]], [[5.0, 10.0]]])

    @pytest.mark.parametrize("shape", [(2, 3), (2, 1), (3,), ()])
    def test_is_the_loop(self, xp, shape):
        rng = np.random.default_rng(2)
        out, logits = rng.normal(size=(2, 3, 4)), rng.normal(size=shape)
        xp.check(head_gate(xp.asarray(out), xp.asarray(logits)), loop_gate(out, np.asarray(logits)[..., None]))

    def test_a_sink_is_a_gate(self, xp):
        rng = np.random.default_rng(3)
        q, k, v, sink = (xp.asarray(rng.normal(size=size)) for size in ((2, 4, 3), (2, 5, 3), (2, 5, 2), (2, 1)))
        logits = log_sum_exp(attention_scores(q, k)) - sink
        ours = head_gate(attention(q, k, v), logits)
        xp.check(ours, xp.numpy(attention(q, k, v, normalize=sink_softmax(sink))))

    def test_gradients(self, autograd):
        rng = np.random.default_rng(4)
        g, out, logits = rng.normal(size=(2, 3, 4)), rng.normal(size=(2, 3, 4)), rng.normal(size=(2, 3))
        expected = finite_differences(head_gate, g, out, logits)
        for one, two in zip(autograd.vjp(head_gate, *map(autograd.asarray, (g, out, logits))), expected, strict=True):
            autograd.check(one, two, tolerance=1e-8)

    def test_bad_input(self, xp):
        out = xp.asarray(np.ones((2, 3, 4)))
        with pytest.raises(ValueError, match=r"logits.*\(2, 3, 1\).*\(2, 3\)"):
            head_gate(out, xp.asarray(np.ones((2, 3, 1))))
        with pytest.raises(ValueError, match=r"out.*\(3, 4\)"):
            head_gate(out[0, ...], xp.asarray(np.ones((2, 3))))


class TestValueResidual:
    def test_by_hand(self, xp):
        v, first, mix = map(xp.asarray, ([[10.0], [10.0]], [[20.0], [20.0]], [[0.25], [2.0]]))
        xp.check(value_residual(v, first, mix), [[12.5], [30.0]])

    def test_ends_are_the_layers(self, xp):
        v, first = np.random.default_rng(5).normal(size=(2, 2, 5, 3))
        for mix, expected in ((0.0, v), (1.0, first)):
            xp.check(value_residual(*map(xp.asarray, (v, first, mix))), expected)

    def test_attention_is_linear_in_it(self, xp):
        rng = np.random.default_rng(6)
        q, k, v, first = (xp.asarray(rng.normal(size=(2, 5, 3))) for _ in range(4))
        ours = attention(q, k, value_residual(v, first, xp.asarray(0.3)))
        xp.check(ours, 0.7 * xp.numpy(attention(q, k, v)) + 0.3 * xp.numpy(attention(q, k, first)))

    def test_gradients(self, autograd):
        g, v, first, mix = np.random.default_rng(7).normal(size=(4, 2, 3, 2))
        expected = finite_differences(value_residual, g, v, first, mix[:, :1, :1])
        arrays = map(autograd.asarray, (g, v, first, mix[:, :1, :1]))
        for one, two in zip(autograd.vjp(value_residual, *arrays), expected, strict=True):
            autograd.check(one, two, tolerance=1e-8)

    def test_bad_input(self, xp):
        v = xp.asarray(np.ones((2, 3, 4)))
        with pytest.raises(ValueError, match=r"first.*\(3, 4\).*\(2, 3, 4\)"):
            value_residual(v, v[0, ...], xp.asarray(0.5))
        with pytest.raises(ValueError, match=r"mix.*\(3,\)"):
            value_residual(v, v, xp.asarray(np.ones(3)))
        with pytest.raises(ValueError, match=r"\bv\b.*\(4,\)"):
            value_residual(v[0, 0, :], v[0, 0, :], xp.asarray(0.5))
        with pytest.raises(TypeError, match="mix"):
            value_residual(v, v, 0.5)


class TestTopGates:
    def test_by_hand(self, xp):
        logits = xp.asarray(np.log([[1.0, 3.0, 2.0, 1.0], [1.0, 1.0, 1.0, 1.0]]))
        xp.check(top_gates(logits, kept=2), [[0.0, 0.6, 0.4, 0.0], [0.5, 0.5, 0.0, 0.0]])
        xp.check(top_gates(logits, kept=1), [[0.0, 1.0, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0]])

    @given(hnp.arrays(np.float64, st.integers(1, 6), elements=st.integers(-2, 2).map(float)), st.integers(1, 6))
    def test_is_the_loop_with_many_ties(self, row, kept):
        kept = min(kept, len(row))
        np.testing.assert_allclose(top_gates(row, kept=kept), loop_top(list(row), kept), rtol=1e-12)

    def test_all_kept_is_softmax(self, xp):
        logits = xp.asarray(np.random.default_rng(8).normal(size=(2, 3, 5)))
        xp.check(top_gates(logits, kept=5), xp.numpy(softmax(logits)))

    def test_infinities_and_nan(self, xp):
        logits = xp.asarray([[-INF, 0.0, -INF], [INF, 0.0, INF], [NAN, 1.0, 2.0], [-INF] * 3])
        xp.check(top_gates(logits, kept=2), [[0.0, 1.0, 0.0], [0.5, 0.0, 0.5], [NAN] * 3, [0.0] * 3])

    def test_gradients(self, autograd):
        g, logits = np.random.default_rng(9).normal(size=(2, 3, 5))
        (expected,) = finite_differences(lambda z: top_gates(z, kept=2), g, logits)
        (ours,) = autograd.vjp(lambda z: top_gates(z, kept=2), *map(autograd.asarray, (g, logits)))
        autograd.check(ours, expected, tolerance=1e-8)
        assert ((expected != 0).sum(-1) == 2).all()

    def test_bad_input(self, xp):
        logits = xp.asarray(np.ones((2, 3)))
        with pytest.raises(ValueError, match="kept is 4; there are 3 experts"):
            top_gates(logits, kept=4)
        with pytest.raises(ValueError, match="kept is 0; it must be positive"):
            top_gates(logits, kept=0)
        with pytest.raises(TypeError, match="kept must be an integer"):
            top_gates(logits, kept=1.5)
        with pytest.raises(ValueError, match=r"logits.*\(\)"):
            top_gates(xp.asarray(1.0), kept=1)


class TestMixtureOfHeads:
    def test_by_hand(self, xp):
        q, k, v = np.zeros((2, 1, 1, 1)), np.zeros((1, 2, 1)), [[[1.0], [3.0]]]
        q, k, v, w_o, z = map(xp.asarray, (q, k, v, [[[[1.0]]], [[[10.0]]]], np.log([[1.0, 3.0]])))
        xp.check(mixture_of_heads(q, k, v, w_o, z, kept=1), [[20.0]])
        xp.check(mixture_of_heads(q, k, v, w_o, z, kept=2), [[0.25 * 2 + 0.75 * 20]])

    @pytest.mark.parametrize("kept", [1, 2, 3])
    def test_is_the_loop(self, xp, kept):
        arrays, mask = draw(10)
        ours = mixture_of_heads(*map(xp.asarray, arrays), kept=kept, mask=xp.asarray(mask, "bool"))
        xp.check(ours, loop_mixture(*arrays, kept, mask), tolerance=1e-11)

    def test_agrees_with_transformers(self, agree):
        o = frozen("transformers_jetmoe")
        x, mask = o["x"], np.tri(5, dtype=bool)
        k, v = np.split((x @ o["kv_proj.weight"].T), 2, axis=-1)
        k, v = (a.reshape(2, 5, 2, 3).swapaxes(1, 2) for a in (k, v))
        q = np.einsum("bnd,eod->beno", x, o["experts.input_linear.weight"]).reshape(2, 3, 5, 2, 3).swapaxes(2, 3)
        w_o = o["experts.output_linear.weight"].reshape(3, 6, 2, 3).transpose(0, 2, 3, 1)
        logits = x @ o["experts.router.layer.weight"].T
        agree(
            mixture_of_heads(q, k, v, w_o, logits, kept=2, mask=mask) + o["experts.bias"],
            o["out"],
            function="heads.mixture_of_heads",
            stranger="transformers JetMoE attention, kept result",
            version=o.version,
            dtype="float64",
            clash="one bias behind the sum; the router computes in single precision; ties are not specified",
        )

    def test_one_expert_is_attention_with_its_projection(self, xp):
        (q, k, v, w_o, logits), mask = draw(11, experts=1)
        ours = mixture_of_heads(*map(xp.asarray, (q, k, v, w_o, logits)), kept=1, mask=xp.asarray(mask, "bool"))
        xp.check(ours, np.sum(attention(q[0], k, v, mask=mask) @ w_o[0], axis=0))

    def test_all_experts_with_equal_logits_are_their_mean(self, xp):
        (q, k, v, w_o, _), _ = draw(12)
        ours = mixture_of_heads(*map(xp.asarray, (q, k, v, w_o, np.zeros((4, 3)))), kept=3)
        xp.check(ours, np.mean([np.sum(attention(q[e], k, v) @ w_o[e], axis=0) for e in range(3)], axis=0))

    def test_what_is_not_chosen_may_hold_anything(self, xp):
        (q, k, v, w_o, logits), _ = draw(13)
        logits[2] = [3.0, 0.0, 3.0]
        clean = mixture_of_heads(*map(xp.asarray, (q, k, v, w_o, logits)), kept=2)
        q[1, :, 2] = NAN
        spoiled = mixture_of_heads(*map(xp.asarray, (q, k, v, w_o, logits)), kept=2)
        np.testing.assert_array_equal(xp.numpy(spoiled)[2], xp.numpy(clean)[2])

    def test_batches_and_grouped_keys(self, xp):
        items = [draw(seed) for seed in (14, 15)]
        arrays = [np.stack([item[0][a] for item in items]) for a in range(5)]
        arrays[3] = arrays[3][0]
        mask = np.stack([item[1] for item in items])
        ours = mixture_of_heads(*map(xp.asarray, arrays), kept=2, mask=xp.asarray(mask, "bool"))
        one = [a if place == 3 else a[1] for place, a in enumerate(arrays)]
        np.testing.assert_allclose(xp.numpy(ours)[1], loop_mixture(*one, 2, mask[1]), atol=xp.tolerance)
        (q, k, v, w_o, logits), _ = draw(16)
        shared = mixture_of_heads(*map(xp.asarray, (q, k[:1], v[:1], w_o, logits)), kept=2)
        spread = mixture_of_heads(*map(xp.asarray, (q, k[[0, 0]], v[[0, 0]], w_o, logits)), kept=2)
        xp.check(shared, xp.numpy(spread))

    def test_decoding_with_a_cache_is_the_full_pass(self):
        (q, k, v, w_o, logits), _ = draw(17, n=5)
        whole = mixture_of_heads(q, k, v, w_o, logits, kept=2, mask=np.tri(5, dtype=bool))
        for t in range(5):
            now, seen = slice(t, t + 1), slice(t + 1)
            row = mixture_of_heads(q[:, :, now], k[:, seen], v[:, seen], w_o, logits[now], kept=2)
            np.testing.assert_allclose(row, whole[now], rtol=1e-11, atol=1e-13)

    def test_gradients(self, autograd):
        arrays, mask = draw(18, n=3, m=4)
        g = np.random.default_rng(19).normal(size=(3, 4))
        expected = finite_differences(lambda *a: mixture_of_heads(*a, kept=2, mask=mask), g, *arrays)
        allowed = autograd.asarray(mask, "bool")
        ours = autograd.vjp(lambda *a: mixture_of_heads(*a, kept=2, mask=allowed), *map(autograd.asarray, (g, *arrays)))
        for one, two in zip(ours, expected, strict=True):
            autograd.check(one, two, tolerance=1e-7)

    def test_bad_input(self, xp, other):
        (q, k, v, w_o, logits), _ = draw(20)
        q, k, v, w_o, logits = map(xp.asarray, (q, k, v, w_o, logits))
        with pytest.raises(ValueError, match="q has 3 experts, w_o has 2"):
            mixture_of_heads(q, k, v, w_o[:2, ...], logits, kept=1)
        with pytest.raises(ValueError, match="q has 2 heads, w_o has 1"):
            mixture_of_heads(q, k, v, w_o[:, :1, ...], logits, kept=1)
        with pytest.raises(ValueError, match="w_o has 1 rows, v has 2 columns"):
            mixture_of_heads(q, k, v, w_o[:, :, :1, :], logits, kept=1)
        for wrong in (logits[:3, :], logits[:, :2]):
            with pytest.raises(ValueError, match=r"logits has shape .*; its last axes must be \(4, 3\)"):
                mixture_of_heads(q, k, v, w_o, wrong, kept=1)
            with pytest.raises(ValueError, match=r"its last axes must be \(4, 3\)"):
                mixture_of_heads(q[None, ...], k, v, w_o, wrong, kept=1)
        with pytest.raises(ValueError, match="kept is 4; there are 3 experts"):
            mixture_of_heads(q, k, v, w_o, logits, kept=4)
        for place, name in enumerate(("q", "k", "v", "w_o", "logits")):
            arrays = [q, k, v, w_o, logits]
            arrays[place] = xp.asarray(np.ones(3))
            with pytest.raises(ValueError, match=rf"^{name} has shape \(3,\); it needs the axes"):
                mixture_of_heads(*arrays, kept=1)
        with pytest.raises(TypeError, match="mask must be boolean"):
            mixture_of_heads(q, k, v, w_o, logits, kept=1, mask=xp.asarray(np.ones((4, 5))))
        with pytest.raises(TypeError, match="one library"):
            mixture_of_heads(q, k, v, w_o, other.asarray(np.ones((4, 3))), kept=1)


@pytest.mark.parametrize(("name", "invariant"), held("heads/gates"))
def test_shared_invariants(xp, name, invariant):
    invariant(SUBJECTS[name], xp)
