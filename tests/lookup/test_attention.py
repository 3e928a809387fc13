"""softlookup.lookup.attention: the five slots, their order, the heads, the masks, and the closed-form gradient."""

import itertools
import math
import types

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from invariants import held
from libraries import finite_differences
from oracles.onnx_cases import attention_arguments, node_cases, onnx, reference_attention
from subjects import SUBJECTS

from softlookup.lookup import (
    attention,
    attention_scores,
    attention_vjp,
    attention_weights,
    gaussian_score,
    hardmax,
    log_sum_exp,
    scaled_dot,
    softmax,
    weighted_average,
)

INF, NAN = math.inf, math.nan
claims = pytest.mark.claims
numbers = st.integers(-24, 24).map(lambda i: i / 8)


def loop(q, k, v, *, mask=None, bias=None, scale=None, cap=None):
    """Batch by batch, head by head, query by query, in plain Python: scores before the mask, weights and output."""
    q, k, v = (a[None] if a.ndim == 2 else a for a in (q, k, v))
    batch = np.broadcast_shapes(*(a.shape[:-3] for a in (q, k, v)))
    heads, n, d = q.shape[-3:]
    m, e = v.shape[-2:]
    q, k, v = (np.broadcast_to(a, (*batch, *a.shape[-3:])) for a in (q, k, v))
    s, w, out = (np.zeros((*batch, heads, n, last)) for last in (m, m, e))
    mask = np.broadcast_to(True if mask is None else mask, s.shape)
    bias = np.broadcast_to(0.0 if bias is None else bias, s.shape)
    for *b, h, i in np.ndindex(*batch, heads, n):
        at = (*b, h, i)
        keys = (*b, h // (heads // k.shape[-3]))
        values = (*b, h // (heads // v.shape[-3]))
        for j in range(m):
            dot = math.fsum(x * y for x, y in zip(q[at], k[keys][j], strict=True))
            x = dot * ((1 / math.sqrt(d) if d else 0.0) if scale is None else scale)
            s[*at, j] = (x if cap is None else cap * math.tanh(x / cap)) + bias[*at, j]
        visible = [j for j in range(m) if mask[*at, j] and s[*at, j] != -INF]
        top = max((s[*at, j] for j in visible), default=0.0)
        total = math.fsum(math.exp(s[*at, j] - top) for j in visible)
        for j in visible:
            w[*at, j] = math.exp(s[*at, j] - top) / total
        for c in range(e):
            out[*at, c] = math.fsum(w[*at, j] * v[values][j, c] for j in visible)
    return types.SimpleNamespace(s=s, w=w, out=out)


@st.composite
def lookups(draw):
    """Arrays with every pattern of heads and batches, and perhaps a mask, a bias, a scale and a cap."""
    n, m, d, e = (draw(st.integers(0, 3)) for _ in range(4))
    groups, kv_heads = draw(st.integers(1, 2)), draw(st.integers(1, 2))
    batch = draw(st.sampled_from([(), (2,), (1,)]))
    lead_q, lead_k, lead_v = (draw(st.sampled_from([batch, (1,) * len(batch), ()])) for _ in range(3))
    q = draw(hnp.arrays(np.float64, (*lead_q, groups * kv_heads, n, d), elements=numbers))
    k = draw(hnp.arrays(np.float64, (*lead_k, kv_heads, m, d), elements=numbers))
    v = draw(hnp.arrays(np.float64, (*lead_v, draw(st.sampled_from([1, kv_heads])), m, e), elements=numbers))
    grid = (groups * kv_heads, n, m)
    options = {
        "mask": draw(st.none() | hnp.arrays(bool, draw(st.sampled_from([grid, grid[1:], (1, 1, m)])))),
        "bias": draw(st.none() | hnp.arrays(np.float64, draw(st.sampled_from([grid, (n, 1)])), elements=numbers)),
        "scale": draw(st.none() | st.sampled_from([1.0, 0.0, -0.5, 2.0])),
        "cap": draw(st.none() | st.sampled_from([0.5, 3.0])),
    }
    return q, k, v, options


def in_slots(arrays):
    """Attention with its arrays by name."""
    options = {name: a for name, a in arrays.items() if name not in "qkv"}
    return attention(arrays["q"], arrays["k"], arrays["v"], **options)


def weights_in_slots(arrays):
    options = {name: a for name, a in arrays.items() if name not in "qkv"}
    return attention_weights(arrays["q"], arrays["k"], **options)


def split(options):
    """Arrays for attention, and the score that owns scale and cap."""
    return {name: options[name] for name in ("mask", "bias")}, scaled_dot(scale=options["scale"], cap=options["cap"])


def random_arrays(seed, *shapes):
    rng = np.random.default_rng(seed)
    return [rng.normal(size=shape) for shape in shapes]


def version(module):
    return f"{module.__name__} {module.__version__.partition('+')[0]}"


class TestScaledDot:
    def test_the_default_scale_is_one_over_the_root_of_the_width(self, xp):
        q, k = xp.asarray([[3.0, 1.0, 0.0, 2.0]]), xp.asarray([[1.0, 5.0, 7.0, 0.0], [0.0, 0.0, 1.0, -1.0]])
        xp.check(scaled_dot()(q, k), [[4.0, -1.0]])

    def test_a_given_scale_is_taken_as_it_is(self, xp):
        q, k = xp.asarray([[3.0, 1.0]]), xp.asarray([[1.0, 5.0]])
        for scale in (1, 2.0, 0.0, -0.25, 1 / math.sqrt(2)):
            xp.check(scaled_dot(scale=scale)(q, k), [[8 * scale]])

    def test_the_cap_bounds_the_scaled_score_and_keeps_small_ones(self, xp):
        q, k = xp.asarray([[1.0]]), xp.asarray([[0.001], [2.0], [-100.0]])
        s = scaled_dot(scale=0.5, cap=3.0)(q, k)
        xp.check(s, [[3 * math.tanh(x / 3) for x in (0.0005, 1.0, -50.0)]])
        assert np.abs(xp.numpy(s)).max() <= 3

    @given(lookups())
    def test_is_the_loop(self, lookup):
        q, k, _, options = lookup
        k = np.repeat(k, q.shape[-3] // k.shape[-3], axis=-3)
        expected = loop(q, k, np.zeros((k.shape[-2], 0)), scale=options["scale"], cap=options["cap"]).s
        s = scaled_dot(scale=options["scale"], cap=options["cap"])(q, k)
        np.testing.assert_allclose(s, expected, rtol=1e-12, atol=1e-12)

    def test_agrees_with_the_score_matrix_of_onnx(self, agree):
        for name, s, _ in onnx_score_matrices():
            if name in ("raw", "capped"):
                agree(
                    s[0],
                    s[1],
                    function="lookup.scaled_dot",
                    stranger=f"onnx node cases of Attention, {name} scores",
                    version=version(onnx),
                    dtype="float32",
                )

    @pytest.mark.parametrize("cap", [None, 0.75])
    @pytest.mark.parametrize("scale", [None, 0.3])
    def test_its_vjp_agrees_with_finite_differences(self, scale, cap):
        q, k, g = random_arrays(0, (2, 3, 4), (1, 5, 4), (2, 3, 5))
        score = scaled_dot(scale=scale, cap=cap)
        for ours, theirs in zip(score.vjp(g, q, k), finite_differences(score, g, q, k), strict=True):
            assert ours.shape == theirs.shape
            np.testing.assert_allclose(ours, theirs, rtol=1e-7, atol=1e-8)

    @pytest.mark.parametrize("cap", [None, 0.75])
    def test_its_vjp_agrees_with_automatic_differentiation(self, autograd, cap):
        q, k, g = (autograd.asarray(a) for a in random_arrays(1, (2, 1, 3, 4), (3, 5, 4), (2, 3, 3, 5)))
        score = scaled_dot(cap=cap)
        for ours, theirs in zip(score.vjp(g, q, k), autograd.vjp(score, g, q, k), strict=True):
            autograd.check(ours, autograd.numpy(theirs))

    def test_its_vjp_keeps_library_and_precision(self, xp):
        for dtype in ("float32", *xp.narrow_dtypes):
            q, k, g = (xp.asarray(a, dtype) for a in ([[1.0, 0.0]], [[2.0, 1.0], [0.0, 4.0]], [[1.0, 0.5]]))
            dq, dk = scaled_dot(scale=2.0).vjp(g, q, k)
            xp.check(dq, [[4.0, 6.0]], dtype=dtype)
            xp.check(dk, [[2.0, 0.0], [1.0, 0.0]], dtype=dtype)

    def test_bad_input(self, xp, other):
        refuses_bad_pairs(lambda q, k: scaled_dot()(q, k), xp, other)
        q, k = xp.asarray(np.ones((2, 3))), xp.asarray(np.ones((4, 3)))
        with pytest.raises(ValueError, match=r"\bg\b.*\(2, 3\)"):
            scaled_dot().vjp(xp.asarray(np.ones((2, 3))), q, k)
        with pytest.raises(TypeError, match=r"\bg\b"):
            scaled_dot().vjp([[1.0]], q, k)

    @pytest.mark.parametrize("cap", [0, -1.0, NAN, INF])
    def test_an_impossible_cap_raises(self, cap):
        with pytest.raises(ValueError, match="cap"):
            scaled_dot(cap=cap)

    @pytest.mark.parametrize("scale", [NAN, INF])
    def test_an_impossible_scale_raises(self, scale):
        with pytest.raises(ValueError, match="scale"):
            scaled_dot(scale=scale)

    def test_scale_and_cap_are_numbers(self):
        with pytest.raises(TypeError, match="scale"):
            scaled_dot(scale="large")
        with pytest.raises(TypeError, match="cap"):
            scaled_dot(cap=[1.0])


def refuses_bad_pairs(function, xp, other):
    """What every function of queries and keys refuses."""
    q, k = xp.asarray(np.ones((2, 3))), xp.asarray(np.ones((4, 3)))
    for bad in ((), (3,)):
        with pytest.raises(ValueError, match=r"\bq\b.*\("):
            function(xp.asarray(np.ones(bad)), k)
        with pytest.raises(ValueError, match=r"\bk\b.*\("):
            function(q, xp.asarray(np.ones(bad)))
    with pytest.raises(ValueError, match=r"q.*3.*k.*2"):
        function(q, xp.asarray(np.ones((4, 2))))
    with pytest.raises(ValueError, match=r"\(2.*\).*\(3.*\)"):
        function(xp.asarray(np.ones((2, 1, 2, 3))), xp.asarray(np.ones((3, 1, 4, 3))))
    with pytest.raises(TypeError, match=r"\bq\b"):
        function([[1.0, 1.0, 1.0]], k)
    with pytest.raises(TypeError, match=r"\bk\b"):
        function(q, [[1.0, 1.0, 1.0]])
    with pytest.raises(TypeError, match="library"):
        function(q, other.asarray(np.ones((4, 3))))


def refuses_bad_heads(function, xp):
    """What every function with grouped heads refuses."""
    q = xp.asarray(np.ones((8, 2, 3)))
    with pytest.raises(ValueError, match="k has 3 heads, which does not divide q's 8"):
        function(q, xp.asarray(np.ones((3, 4, 3))))
    with pytest.raises(ValueError, match="k has 16 heads"):
        function(q, xp.asarray(np.ones((16, 4, 3))))
    with pytest.raises(ValueError, match="k has 2 heads"):
        function(q[0, ...], xp.asarray(np.ones((2, 4, 3))))
    with pytest.raises(ValueError, match="k has 0 heads"):
        function(q, xp.asarray(np.ones((0, 4, 3))))


def refuses_bad_masks(function, xp, other, pair):
    """What every function with a mask (2 queries, 4 keys) refuses."""
    for wrong in (xp.asarray(np.ones((2, 4))), xp.asarray(np.ones((2, 4)), "int64")):
        with pytest.raises(TypeError, match=r"mask.*bool.*bias"):
            function(*pair, mask=wrong)
    with pytest.raises(TypeError, match="mask"):
        function(*pair, mask=[[True] * 4] * 2)
    with pytest.raises(TypeError, match="mask"):
        function(*pair, mask=other.asarray(np.ones((2, 4)), "bool"))
    for shape in ((3, 4), (2, 5), (1, 2, 4), (2, 2, 4)):
        with pytest.raises(ValueError, match=rf"mask.*\({', '.join(map(str, shape))}\)"):
            function(*pair, mask=xp.asarray(np.ones(shape), "bool"))


def refuses_bad_biases(function, xp, other, pair):
    with pytest.raises(TypeError, match="bias"):
        function(*pair, bias=[[1.0] * 4] * 2)
    with pytest.raises(TypeError, match="bias.*bool"):
        function(*pair, bias=xp.asarray(np.ones((2, 4)), "bool"))
    with pytest.raises(TypeError, match="library"):
        function(*pair, bias=other.asarray(np.ones((2, 4))))
    for shape in ((3, 4), (2, 5), (1, 2, 4), (2, 2, 4)):
        with pytest.raises(ValueError, match=rf"bias.*\({', '.join(map(str, shape))}\)"):
            function(*pair, bias=xp.asarray(np.ones(shape)))


class TestAttentionScores:
    @given(lookups())
    def test_is_the_loop(self, lookup):
        q, k, _, options = lookup
        arrays, score = split(options)
        s = attention_scores(q, k, bias=arrays["bias"], score=score)
        expected = loop(q, k, np.zeros((k.shape[-2], 0)), **{**options, "mask": None}).s
        np.testing.assert_allclose(s, expected, rtol=1e-12, atol=1e-12)

    def test_the_bias_comes_after_scale_and_cap(self, xp):
        q, k, bias = xp.asarray([[4.0]]), xp.asarray([[1.0], [-1.0]]), xp.asarray([[10.0, -INF]])
        s = attention_scores(q, k, bias=bias, score=scaled_dot(scale=0.5, cap=1.0))
        xp.check(s, [[math.tanh(2.0) + 10.0, -INF]])

    def test_agrees_with_the_biased_score_matrix_of_onnx(self, agree):
        compared = 0
        for name, s, mask in onnx_score_matrices():
            if name == "biased":
                compared += 1
                agree(
                    np.where(mask, s[0], -INF),
                    s[1],
                    function="lookup.attention_scores",
                    stranger="onnx node cases of Attention, biased scores",
                    version=version(onnx),
                    dtype="float32",
                    clash="writes the mask into the scores as minus infinity",
                )
        assert compared

    def test_any_function_of_queries_and_keys_is_a_score(self, xp):
        q, k = xp.asarray(np.ones((4, 2, 3))), xp.asarray(np.ones((2, 5, 3)))
        shapes = []

        def score(q, k):
            shapes.append((tuple(q.shape), tuple(k.shape)))
            return q @ k.mT

        xp.check(attention_scores(q, k, score=score), np.full((4, 2, 5), 3.0))
        assert shapes == [((4, 2, 3), (4, 5, 3))]

    def test_bad_input(self, xp, other):
        refuses_bad_pairs(attention_scores, xp, other)
        refuses_bad_heads(attention_scores, xp)
        pair = xp.asarray(np.ones((2, 3))), xp.asarray(np.ones((4, 3)))
        refuses_bad_biases(attention_scores, xp, other, pair)


class TestAttentionWeights:
    @given(lookups())
    def test_is_the_loop(self, lookup):
        q, k, _, options = lookup
        arrays, score = split(options)
        w = attention_weights(q, k, score=score, **arrays)
        expected = loop(q, k, np.zeros((k.shape[-2], 0)), **options).w
        np.testing.assert_allclose(w, expected, rtol=1e-11, atol=1e-12)

    def test_agrees_with_the_softmax_matrix_of_onnx(self, agree):
        compared = 0
        for name, w, _ in onnx_score_matrices():
            if name == "weights":
                compared += 1
                agree(
                    w[0],
                    w[1],
                    function="lookup.attention_weights",
                    stranger="onnx node cases of Attention, softmax matrix",
                    version=version(onnx),
                    dtype="float32",
                )
        assert compared

    def test_agrees_with_torch_multi_head_attention(self, torch, agree):
        q, k = random_arrays(2, (5, 8), (7, 8))
        layer = torch.nn.MultiheadAttention(8, 2, bias=False, batch_first=True, dtype=torch.float64)
        project_q, project_k, _ = layer.in_proj_weight.detach().numpy().reshape(3, 2, 4, 8)
        blocked = torch.tensor(~np.tri(5, 7, dtype=bool))
        _, theirs = layer(*(torch.tensor(a)[None] for a in (q, k, k)), attn_mask=blocked, average_attn_weights=False)
        agree(
            attention_weights(q @ project_q.mT, k @ project_k.mT, mask=np.tri(5, 7, dtype=bool)),
            theirs.detach()[0],
            function="lookup.attention_weights",
            stranger="torch.nn.MultiheadAttention",
            version=version(torch),
            dtype="float64",
            clash="True in a mask hides; averages the weights of the heads unless told not to",
        )

    @claims("M12")
    def test_case_m12_weights_and_output_come_from_one_computation(self, xp, case):
        c = case("M12")
        q, k, v = (xp.asarray(c["inputs"][name]) for name in "qkv")
        mask = xp.asarray(np.tri(3, dtype=bool), "bool")
        w, out = attention_weights(q, k, mask=mask), attention(q, k, v, mask=mask)
        xp.check(w, c["expected"]["weights"])
        xp.check(out, c["expected"]["out"])
        assert np.all(xp.numpy(w)[~np.tri(3, dtype=bool)] == 0)
        assert np.abs(xp.numpy(out) - c["wrong"]["no_mask"]["out"]).max() > 1

    @claims("M12")
    @given(lookups())
    def test_case_m12_the_output_is_the_blend_by_the_weights_whatever_the_options(self, lookup):
        q, k, v, options = lookup
        arrays, score = split(options)
        w = attention_weights(q, k, score=score, **arrays)
        v_heads = np.repeat(v, q.shape[-3] // v.shape[-3], axis=-3)
        np.testing.assert_allclose(attention(q, k, v, score=score, **arrays), w @ v_heads, rtol=1e-12, atol=1e-12)
        if arrays["mask"] is not None:
            assert np.all(w[~np.broadcast_to(arrays["mask"], w.shape)] == 0)

    @claims("S09")
    def test_case_s09_one_matrix_for_each_head(self, xp, case):
        c = case("S09")
        q, k, v = (xp.asarray(c["inputs"][name]) for name in "qkv")
        w = attention_weights(q, k)
        xp.check(w, c["expected"]["weights"])
        xp.check(w @ v, c["expected"]["out"])
        mean = np.array(c["expected"]["weights_mean_over_heads"])
        np.testing.assert_allclose(xp.numpy(w).mean(0), mean, atol=1e-6)
        assert np.abs(mean @ xp.numpy(v) - c["expected"]["out"]).max() > 0.1
        assert np.abs(xp.numpy(w) - mean).max() > 0.05

    @claims("S09")
    @pytest.mark.parametrize("heads", [1, 2, 6])
    def test_case_s09_the_weights_of_a_head_are_those_of_the_head_alone(self, xp, heads):
        q, k = random_arrays(3, (2, heads, 3, 4), (2, heads, 5, 4))
        w = attention_weights(xp.asarray(q), xp.asarray(k))
        assert tuple(w.shape) == (2, heads, 3, 5)
        for b, h in np.ndindex(2, heads):
            xp.check(w[b, h, :, :], xp.numpy(attention_weights(xp.asarray(q[b, h]), xp.asarray(k[b, h]))))

    def test_bad_input(self, xp, other):
        refuses_bad_pairs(attention_weights, xp, other)
        refuses_bad_heads(attention_weights, xp)
        pair = xp.asarray(np.ones((2, 3))), xp.asarray(np.ones((4, 3)))
        refuses_bad_masks(attention_weights, xp, other, pair)
        refuses_bad_biases(attention_weights, xp, other, pair)


def onnx_score_matrices():
    """Ours and onnx's view of the score matrix, for the node cases that return it."""
    stages = {0: "raw", 1: "capped", 2: "biased", 3: "weights"}
    for node in node_cases("Attention"):
        if "qk_matmul_output" not in node.outputs or node.inputs["Q"].dtype != np.float32:
            continue
        a = types.SimpleNamespace(**attention_arguments(node))
        stage = stages[node.attributes.get("qk_matmul_output_mode", 0)]
        score = scaled_dot(scale=a.scale, cap=None if stage == "raw" else a.cap)
        if stage == "weights":
            ours = attention_weights(a.q, a.k, mask=a.mask, bias=a.bias, score=score)
        else:
            ours = attention_scores(a.q, a.k, bias=a.bias if stage == "biased" else None, score=score)
        yield stage, (ours, node.outputs["qk_matmul_output"]), np.broadcast_to(a.mask, ours.shape)


class TestAttention:
    def test_two_queries_and_three_items_by_hand(self, xp):
        x = xp.asarray([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
        a = math.exp(1 / math.sqrt(2))
        w = np.array([[a, 1, a], [1, a, a], [a, a, a * a]])
        w = w / w.sum(-1, keepdims=True)
        assert w[0].round(4).tolist() == [0.4011, 0.1978, 0.4011]
        xp.check(attention(x, x, x), w @ [[1, 0], [0, 1], [1, 1]])

    @given(lookups())
    def test_is_the_loop(self, lookup):
        q, k, v, options = lookup
        arrays, score = split(options)
        out = attention(q, k, v, score=score, **arrays)
        np.testing.assert_allclose(out, loop(q, k, v, **options).out, rtol=1e-11, atol=1e-11)

    def test_is_the_loop_in_every_library(self, xp):
        q, k, v = random_arrays(4, (2, 4, 3, 5), (2, 2, 6, 5), (2, 1, 6, 2))
        options = {"mask": np.tri(3, 6, 2, dtype=bool), "bias": random_arrays(5, (4, 1, 6))[0]}
        options |= {"scale": 0.8, "cap": 1.5}
        arrays, score = split(options)
        out = attention(*map(xp.asarray, (q, k, v)), score=score, **xp.arrays(arrays))
        xp.check(out, loop(q, k, v, **options).out)

    @pytest.mark.parametrize("node", node_cases("Attention"), ids=lambda node: node.name)
    def test_agrees_with_the_node_cases_of_onnx(self, node, agree):
        a = types.SimpleNamespace(**attention_arguments(node))
        out = attention(a.q, a.k, a.v, mask=a.mask, bias=a.bias, score=scaled_dot(scale=a.scale, cap=a.cap))
        theirs = node.outputs["Y"]
        agree(
            out if theirs.ndim == 4 else out.swapaxes(-3, -2).reshape(theirs.shape),
            theirs,
            function="lookup.attention",
            stranger="onnx node cases of Attention",
            version=version(onnx),
            dtype=str(node.inputs["Q"].dtype),
            clash="a mask shorter than the keys hides the rest; a window does not count the query itself",
        )

    @pytest.mark.parametrize("heads", [(1, 1), (4, 2), (6, 1)])
    @pytest.mark.parametrize("masked", ["none", "boolean", "bias", "causal", "capped"])
    def test_agrees_with_the_reference_operator_of_onnx(self, agree, heads, masked):
        q, k, v, bias = random_arrays(6, (2, heads[0], 7, 16), (2, heads[1], 11, 16), (2, heads[1], 11, 5), (7, 11))
        allowed = np.random.default_rng(7).random((2, heads[0], 7, 11)) < 0.4
        ours, theirs = {
            "none": ({}, {}),
            "boolean": ({"mask": allowed}, {"attn_mask": allowed}),
            "bias": ({"bias": bias}, {"attn_mask": bias}),
            "causal": ({"mask": np.tri(7, 11, dtype=bool)}, {"is_causal": True}),
            "capped": ({"score": scaled_dot(scale=0.5, cap=2.0)}, {"scale": 0.5, "softcap": 2.0}),
        }[masked]
        agree(
            attention(q, k, v, **ours),
            reference_attention(q, k, v, **theirs)[0],
            function="lookup.attention",
            stranger="onnx reference operator Attention",
            version=version(onnx),
            dtype="float64",
            clash="aligns a causal mask at the first query and the first key when nothing is cached",
        )

    @pytest.mark.parametrize("heads", [(1, 1), (4, 2), (6, 1)])
    @pytest.mark.parametrize("masked", ["none", "boolean", "bias", "causal"])
    def test_agrees_with_torch(self, torch, agree, heads, masked):
        q, k, v, bias = random_arrays(8, (2, heads[0], 7, 16), (2, heads[1], 11, 16), (2, heads[1], 11, 16), (7, 11))
        allowed = np.random.default_rng(9).random((2, heads[0], 7, 11)) < 0.4
        ours, theirs = {
            "none": ({}, {}),
            "boolean": ({"mask": allowed}, {"attn_mask": torch.tensor(allowed)}),
            "bias": ({"bias": bias}, {"attn_mask": torch.tensor(bias)}),
            "causal": ({"mask": np.tri(7, 11, dtype=bool)}, {"is_causal": True}),
        }[masked]
        agree(
            attention(q, k, v, **ours),
            torch.nn.functional.scaled_dot_product_attention(*map(torch.tensor, (q, k, v)), enable_gqa=True, **theirs),
            function="lookup.attention",
            stranger="torch scaled_dot_product_attention",
            version=version(torch),
            dtype="float64",
            clash="is_causal aligns the first query with the first key; grouped heads only when asked for",
        )

    @pytest.mark.parametrize("masked", ["none", "boolean", "bias", "causal"])
    def test_agrees_with_jax(self, jax, agree, masked):
        q, k, v, bias = random_arrays(10, (2, 4, 7, 16), (2, 2, 11, 16), (2, 2, 11, 16), (2, 4, 7, 11))
        allowed = np.random.default_rng(11).random((2, 4, 7, 11)) < 0.4
        allowed[..., 0] = True
        ours, theirs = {
            "none": ({}, {}),
            "boolean": ({"mask": allowed}, {"mask": allowed}),
            "bias": ({"bias": bias}, {"bias": bias}),
            "causal": ({"mask": np.tri(7, 11, dtype=bool)}, {"is_causal": True}),
        }[masked]
        positions_first = (jax.numpy.asarray(a.swapaxes(-3, -2)) for a in (q, k, v))
        out = jax.nn.dot_product_attention(*positions_first, **theirs)
        agree(
            attention(q, k, v, **ours).swapaxes(-3, -2),
            out,
            function="lookup.attention",
            stranger="jax.nn.dot_product_attention",
            version=version(jax),
            dtype="float32",
            clash="positions before heads; is_causal aligns the first query with the first key; "
            "a fully masked row is the mean of the values",
        )

    def test_a_repeated_head_is_a_grouped_head(self, xp):
        q, k, v = random_arrays(12, (6, 3, 4), (2, 5, 4), (3, 5, 2))
        expected = attention(q, np.repeat(k, 3, axis=0), np.repeat(v, 2, axis=0))
        xp.check(attention(*map(xp.asarray, (q, k, v))), expected)

    def test_keys_without_a_head_axis_are_one_head(self, xp):
        q, k, v = random_arrays(13, (2, 6, 3, 4), (5, 4), (5, 2))
        expected = attention(q, k[None, None], v[None, None])
        xp.check(attention(*map(xp.asarray, (q, k, v))), expected)

    def test_a_wide_lookup_is_its_halves_merged_by_their_log_sum_exp(self, xp):
        q, k, v = map(xp.asarray, random_arrays(14, (3, 4), (6, 4), (6, 2)))
        halves = [(k[:2, :], v[:2, :]), (k[2:, :], v[2:, :])]
        parts = np.stack([xp.numpy(attention(q, *half)) for half in halves])
        logs = np.stack([xp.numpy(log_sum_exp(attention_scores(q, half[0]))) for half in halves])
        merged = np.einsum("pn,pne->ne", np.exp(logs - np.logaddexp(*logs)), parts)
        xp.check(attention(q, k, v), merged)

    def test_the_normalizer_gets_the_scores_and_the_mask(self, xp):
        q, k, v = map(xp.asarray, random_arrays(15, (2, 4, 3, 5), (2, 2, 6, 5), (2, 2, 6, 2)))
        mask, bias = xp.asarray(np.tri(3, 6, dtype=bool), "bool"), xp.asarray(np.ones((4, 3, 1)))
        seen = []

        def normalize(s, allowed):
            seen.append((tuple(s.shape), allowed))
            return softmax(s, allowed)

        expected = xp.numpy(attention(q, k, v, mask=mask, bias=bias))
        xp.check(attention(q, k, v, mask=mask, bias=bias, normalize=normalize), expected)
        attention(q, k, v, normalize=normalize)
        assert [shape for shape, _ in seen] == [(2, 4, 3, 6)] * 2
        assert seen[1][1] is None
        np.testing.assert_array_equal(
            np.broadcast_to(xp.numpy(seen[0][1]), (2, 4, 3, 6)), np.broadcast_to(np.tri(3, 6), (2, 4, 3, 6))
        )

    def test_scale_and_cap_belong_to_the_score(self, xp):
        q, k, v = map(xp.asarray, random_arrays(16, (3, 4), (5, 4), (5, 2)))
        s = np.tanh(xp.numpy(q @ k.mT) * 0.7 / 1.5) * 1.5
        xp.check(attention(q, k, v, score=scaled_dot(scale=0.7, cap=1.5)), softmax(s) @ xp.numpy(v))

    @pytest.mark.parametrize("score", [scaled_dot(), scaled_dot(scale=0.3, cap=2.0), gaussian_score(bandwidth=0.8)])
    def test_gradients_agree_with_finite_differences(self, autograd, score):
        q, k, v, bias, g = random_arrays(17, (4, 3, 2), (2, 5, 2), (1, 5, 3), (4, 1, 5), (4, 3, 3))
        mask = np.tri(3, 5, -1, dtype=bool)
        mask[1] = False
        hidden = autograd.asarray(mask, "bool")
        got = autograd.vjp(
            lambda q, k, v, b: attention(q, k, v, bias=b, mask=hidden, score=score),
            *map(autograd.asarray, (g, q, k, v, bias)),
        )
        expected = finite_differences(
            lambda q, k, v, b: attention(q, k, v, bias=b, mask=mask, score=score), g, q, k, v, bias
        )
        for ours, theirs in zip(got, expected, strict=True):
            autograd.check(ours, theirs, tolerance=1e-8)

    def test_passes_gradcheck(self, torch):
        leaves = [torch.tensor(a, requires_grad=True) for a in random_arrays(18, (2, 3, 2), (1, 4, 2), (2, 4, 2))]
        mask = torch.tensor(np.tri(3, 4, -1, dtype=bool))
        assert torch.autograd.gradcheck(lambda *a: attention(*a, mask=mask, score=scaled_dot(cap=1.0)), leaves)
        assert torch.autograd.gradgradcheck(lambda *a: attention(*a, mask=mask), leaves)

    @claims("M01")
    def test_case_m01_a_query_with_no_visible_key(self, xp, case):
        c = case("M01")
        q, k, v = (xp.asarray(c["inputs"][name]) for name in "qkv")
        mask = xp.asarray(c["inputs"]["keep"], "bool")
        out = attention(q, k, v, mask=mask)
        xp.check(out, c["expected"]["out"])
        xp.check(attention_weights(q, k, mask=mask), c["expected"]["weights"])
        xp.check(log_sum_exp(attention_scores(q, k), mask), c["expected"]["lse"])
        for wrong in c["wrong"].values():
            assert not np.allclose(xp.numpy(out), wrong["out"])

    @claims("M01")
    @pytest.mark.parametrize("how", ["mask", "bias", "both"])
    @pytest.mark.parametrize("rows", [rows for r in range(4) for rows in itertools.combinations(range(3), r)])
    def test_case_m01_any_set_of_empty_rows_however_they_became_empty(self, xp, how, rows):
        q, k, v = random_arrays(19, (2, 3, 4), (2, 5, 4), (2, 5, 2))
        mask, bias = np.ones((3, 5), bool), np.zeros((3, 5))
        for i in rows:
            mask[i, : 5 if how == "mask" else 2] = how == "bias"
            bias[i, 0 if how == "bias" else 2 :] = 0.0 if how == "mask" else -INF
        expected = attention(q, k, v)
        expected[:, list(rows)] = 0.0
        arrays = xp.arrays({"q": q, "k": k, "v": v, "mask": mask, "bias": bias})
        xp.check(xp.quick(in_slots)(arrays), expected)
        w = xp.numpy(xp.quick(weights_in_slots)(arrays))
        assert np.all(w[:, list(rows)] == 0)
        np.testing.assert_allclose(np.delete(w, rows, axis=1).sum(-1), 1, rtol=1e-5)

    @claims("M01")
    def test_case_m01_gradients_through_an_empty_row_are_zero(self, autograd):
        q, k, v, g = map(autograd.asarray, random_arrays(20, (3, 4), (5, 4), (5, 2), (3, 2)))
        mask = np.ones((3, 5), bool)
        mask[1] = False
        mask = autograd.asarray(mask, "bool")
        dq, dk, dv = (autograd.numpy(a) for a in autograd.vjp(lambda *a: attention(*a, mask=mask), g, q, k, v))
        assert np.all(dq[1] == 0)
        kept = autograd.asarray([True, False, True], "bool")
        others = autograd.vjp(lambda *a: attention(*a), g[kept], q[kept], k, v)
        for ours, theirs in zip((dq[[0, 2]], dk, dv), others, strict=True):
            np.testing.assert_allclose(ours, autograd.numpy(theirs), rtol=1e-12, atol=1e-12)

    @claims("M03")
    def test_case_m03_nan_and_infinity_at_a_masked_key(self, xp, case):
        c = case("M03")
        q, k, v = (xp.asarray(c["inputs"][name]) for name in "qkv")
        out = attention(q, k, v, mask=xp.asarray(c["inputs"]["keep"], "bool"))
        xp.check(out, c["expected"]["out"])
        for wrong in c["wrong"].values():
            assert not np.allclose(xp.numpy(out), wrong["out"])

    @claims("M03")
    @pytest.mark.parametrize("bad", [NAN, INF, -INF])
    @pytest.mark.parametrize("slot", ["k", "v", "k and v", "bias", "all"])
    @pytest.mark.parametrize("j", [0, 2, 4])
    def test_case_m03_every_value_that_is_not_finite_in_every_hidden_slot(self, xp, bad, slot, j):
        q, k, v, bias = random_arrays(21, (4, 3, 2), (2, 5, 2), (2, 5, 3), (4, 3, 5))
        mask = np.arange(5) != j
        expected = attention(q, k[:, mask], v[:, mask], bias=bias[..., mask])
        if slot in ("k", "k and v", "all"):
            k[:, j] = bad
        if slot in ("v", "k and v", "all"):
            v[:, j] = bad
        if slot in ("bias", "all"):
            bias[..., j] = bad
        xp.check(xp.quick(in_slots)(xp.arrays({"q": q, "k": k, "v": v, "mask": mask, "bias": bias})), expected)

    @claims("M03")
    @pytest.mark.parametrize("bad", [NAN, INF, -INF])
    @pytest.mark.parametrize("slot", ["k", "v"])
    def test_case_m03_a_key_that_only_some_may_read_reaches_only_those(self, xp, bad, slot):
        q, k, v = random_arrays(22, (3, 2), (3, 2), (3, 2))
        mask = np.tri(3, dtype=bool)
        expected = attention(q, k, v, mask=mask)
        (k if slot == "k" else v)[2] = bad
        with np.errstate(invalid="ignore"):
            out = xp.numpy(attention(*map(xp.asarray, (q, k, v)), mask=xp.asarray(mask, "bool")))
        np.testing.assert_allclose(out[:2], expected[:2], rtol=1e-5)
        assert not np.allclose(out[2], expected[2])

    @claims("M03")
    @pytest.mark.parametrize("bad", [NAN, INF, -INF])
    def test_case_m03_gradients_know_nothing_of_a_hidden_key(self, autograd, bad):
        q, k, v, g = random_arrays(23, (2, 3, 2), (2, 4, 2), (2, 4, 3), (2, 3, 3))
        kept = [0, 1, 3]
        expected = attention_vjp(g, q, k[:, kept], v[:, kept])
        k[:, 2] = v[:, 2] = bad
        mask = autograd.asarray([True, True, False, True], "bool")
        arrays = [autograd.asarray(a) for a in (q, k, v)]
        got = autograd.vjp(lambda *a: attention(*a, mask=mask), autograd.asarray(g), *arrays)
        autograd.check(got[0], expected[0])
        for ours, theirs in zip(got[1:], expected[1:3], strict=True):
            autograd.check(ours, np.insert(theirs, 2, 0.0, axis=1))

    @claims("M04")
    def test_case_m04_true_means_may_read(self, xp, case):
        c = case("M04")
        q, k, v = (xp.asarray(c["inputs"][name]) for name in "qkv")
        mask = xp.asarray(c["inputs"]["mask"], "bool")
        keeps, drops = c["expected"]["out_if_true_keeps"], c["expected"]["out_if_true_drops"]
        xp.check(attention(q, k, v, mask=mask), keeps)
        xp.check(attention(q, k, v, mask=~mask), drops)
        assert np.abs(np.subtract(keeps, drops)).max() > 1

    @claims("M04")
    @given(hnp.arrays(bool, (2, 4)))
    def test_case_m04_exactly_the_true_pairs_have_weight(self, mask):
        q, k = random_arrays(24, (2, 3), (4, 3))
        np.testing.assert_array_equal(attention_weights(q, k, mask=mask) > 0, mask)

    @claims("M05")
    def test_case_m05_numbers_are_a_bias_and_never_a_mask(self, xp, case):
        c = case("M05")
        q, k, v = (xp.asarray(c["inputs"][name]) for name in "qkv")
        number, boolean = xp.asarray(c["inputs"]["mask_float"]), xp.asarray(c["inputs"]["mask_bool"], "bool")
        xp.check(attention(q, k, v, mask=boolean), c["expected"]["out_bool_keep"])
        xp.check(attention(q, k, v, bias=number), c["expected"]["out_float_additive"])
        assert np.abs(np.subtract(c["expected"]["out_bool_keep"], c["expected"]["out_float_additive"])).max() > 1
        with pytest.raises(TypeError, match="mask.*bias"):
            attention(q, k, v, mask=number)

    @claims("M05")
    def test_case_m05_no_kind_of_number_is_a_mask_and_no_boolean_is_a_bias(self, xp):
        q, k, v = map(xp.asarray, random_arrays(25, (2, 3), (4, 3), (4, 1)))
        for dtype in ("float64", "float32", "int64", "int32", *xp.narrow_dtypes):
            for function in (lambda **o: attention(q, k, v, **o), lambda **o: attention_weights(q, k, **o)):
                with pytest.raises(TypeError, match="mask.*bias"):
                    function(mask=xp.asarray(np.ones((2, 4)), dtype))
        with pytest.raises(TypeError, match="bias"):
            attention(q, k, v, bias=xp.asarray(np.ones((2, 4)), "bool"))

    @claims("M06")
    def test_case_m06_padding_and_causal_order_compose(self, xp, case):
        c = case("M06")
        q, k, v = (xp.asarray(c["inputs"][name]) for name in "qkv")
        mask = np.tri(4, dtype=bool) & np.array(c["inputs"]["key_valid"])
        out = attention(q, k, v, mask=xp.asarray(mask, "bool"))
        xp.check(out, c["expected"]["out"])
        for wrong in c["wrong"].values():
            assert np.abs(xp.numpy(out) - wrong["out"]).max() > 0.5

    @claims("M06")
    @given(hnp.arrays(bool, 5), st.integers(-4, 4))
    def test_case_m06_any_padding_with_any_causal_order_is_the_lookup_in_what_both_allow(self, valid, shift):
        q, k, v = random_arrays(26, (5, 3), (5, 3), (5, 2))
        out = attention(q, k, v, mask=np.tri(5, k=shift, dtype=bool) & valid)
        for i in range(5):
            seen = [j for j in range(5) if valid[j] and j <= i + shift]
            alone = attention(q[i : i + 1], k[seen], v[seen])
            np.testing.assert_allclose(out[i : i + 1], alone, rtol=1e-12, atol=1e-12)

    @claims("M07")
    def test_case_m07_no_sentinel_lets_the_future_leak(self, xp, case):
        c = case("M07")
        q, k, v = (xp.asarray(c["inputs"][name], "float32") for name in "qkv")
        mask = np.tri(3, dtype=bool) & np.array(c["inputs"]["key_valid"])
        out = attention(q, k, v, mask=xp.asarray(mask, "bool"))
        xp.check(out, c["expected"]["out"], dtype="float32", tolerance=0)
        assert np.abs(xp.numpy(out) - c["wrong"]["summed_planes"]["out"]).max() > 10

    @claims("M07")
    @given(st.lists(hnp.arrays(bool, (3, 4)), min_size=1, max_size=4))
    def test_case_m07_masks_compose_before_they_are_used(self, masks):
        q, k, v = random_arrays(27, (3, 2), (4, 2), (4, 1))
        every = np.logical_and.reduce(masks)
        bias = np.sum([np.where(m, 0.0, -INF) for m in masks], axis=0)
        composed = attention(q, k, v, mask=every)
        np.testing.assert_allclose(attention(q, k, v, bias=bias), composed, rtol=1e-12, atol=1e-12)
        assert np.all(composed[~every.any(-1)] == 0)

    @claims("M08")
    def test_case_m08_a_hidden_key_has_a_weight_of_exactly_zero(self, xp, case):
        c = case("M08")
        q, k, v = (xp.asarray(c["inputs"][name]) for name in "qkv")
        options = {"mask": xp.asarray(c["inputs"]["keep"], "bool"), "score": scaled_dot(scale=1.0)}
        out = attention(q, k, v, **options)
        xp.check(out, c["expected"]["out"], tolerance=0)
        xp.check(attention_weights(q, k, **options), c["expected"]["weights"], tolerance=0)
        assert np.abs(xp.numpy(out) - c["wrong"]["minus_10"]["out"]).max() > 10

    @claims("M08")
    @pytest.mark.parametrize("hidden", [-1e30, -1e4, 0.0, 12.0, 1e4, 1e30])
    @pytest.mark.parametrize("seen", [-1e30, -1e4, 0.0, 1e30])
    def test_case_m08_however_large_the_hidden_score_is(self, xp, hidden, seen):
        q, k, v = xp.asarray([[1.0]]), xp.asarray([[seen], [hidden]]), xp.asarray([[1.0], [100.0]])
        xp.check(attention(q, k, v, mask=xp.asarray([[True, False]], "bool")), [[1.0]], tolerance=0)

    @claims("M09")
    def test_case_m09_a_mask_for_each_batch_item(self, xp, case):
        c = case("M09")
        q, k, v = (xp.asarray(c["inputs"][name]) for name in "qkv")
        keep = np.array(c["inputs"]["keep_per_batch"])
        out = attention(q, k, v, mask=xp.asarray(keep[:, None, None, :], "bool"))
        xp.check(out, c["expected"]["out"])
        assert np.abs(xp.numpy(out) - c["wrong"]["tiled"]["out"]).max() > 5
        batch_major = np.array(c["expected"]["flat_keep_b_major"]).reshape(2, 2, 1, 2)
        xp.check(attention(q, k, v, mask=xp.asarray(batch_major, "bool")), c["expected"]["out"])
        with pytest.raises(ValueError, match="mask"):
            attention(q, k, v, mask=xp.asarray(batch_major.reshape(4, 1, 2), "bool"))

    @claims("M09")
    @pytest.mark.parametrize("shape", list(itertools.product((1, 2), (1, 3), (1, 4), (1, 5))))
    def test_case_m09_a_mask_of_any_shape_that_broadcasts(self, xp, shape):
        q, k, v = random_arrays(28, (2, 3, 4, 2), (2, 3, 5, 2), (2, 3, 5, 1))
        mask = np.random.default_rng(29).random(shape) < 0.5
        out = xp.quick(in_slots)(xp.arrays({"q": q, "k": k, "v": v, "mask": mask}))
        full = np.broadcast_to(mask, (2, 3, 4, 5))
        expected = [[attention(q[b, h], k[b, h], v[b, h], mask=full[b, h]) for h in range(3)] for b in range(2)]
        xp.check(out, expected)

    @claims("C01")
    def test_case_c01_fewer_queries_than_keys(self, xp, case):
        c = case("C01")
        q, k, v = (xp.asarray(c["inputs"][name]) for name in "qkv")
        last, first = np.tri(2, 5, 3, dtype=bool), np.tri(2, 5, dtype=bool)
        xp.check(attention(q, k, v, mask=xp.asarray(last, "bool")), c["expected"]["out_bottom_right"])
        xp.check(attention(q, k, v, mask=xp.asarray(first, "bool")), c["expected"]["out_top_left"])

    @claims("C02")
    def test_case_c02_more_queries_than_keys(self, xp, case):
        c = case("C02")
        q, k, v = (xp.asarray(c["inputs"][name]) for name in "qkv")
        last = xp.asarray(np.tri(5, 2, -3, dtype=bool), "bool")
        first = xp.asarray(np.tri(5, 2, dtype=bool), "bool")
        xp.check(attention(q, k, v, mask=last), c["expected"]["out_bottom_right"])
        xp.check(log_sum_exp(attention_scores(q, k), last), c["expected"]["lse_bottom_right"])
        xp.check(attention(q, k, v, mask=first), c["expected"]["out_top_left"])

    @claims("C01", "C02")
    @pytest.mark.parametrize(("n", "m"), list(itertools.product(range(5), range(5))))
    def test_cases_c01_c02_every_alignment_of_every_pair_of_lengths(self, n, m):
        v = np.arange(m, dtype=float)[:, None]
        for offset in range(-n - 1, m + 1):
            out = attention(np.zeros((n, 1)), np.zeros((m, 1)), v, mask=np.tri(n, m, offset, dtype=bool))
            counts = [min(max(i + offset + 1, 0), m) for i in range(n)]
            expected = np.array([(c - 1) / 2 if c else 0.0 for c in counts]).reshape(n, 1)
            np.testing.assert_allclose(out, expected, atol=1e-14)

    @claims("S01")
    def test_case_s01_the_scale_comes_from_the_width_of_a_head(self, xp, case):
        c = case("S01")
        out = attention(*(xp.asarray(c["inputs"][name]) for name in "qkv"))
        xp.check(out, c["expected"]["out"])
        for wrong in c["wrong"].values():
            assert np.abs(xp.numpy(out) - wrong["out"]).max() > 0.05

    @claims("S01")
    @pytest.mark.parametrize("d", [1, 2, 3, 7])
    @pytest.mark.parametrize("heads", [1, 3])
    @pytest.mark.parametrize("e", [1, 5])
    def test_case_s01_whatever_heads_and_value_width_are(self, xp, d, heads, e):
        q, k, v = random_arrays(30, (heads, 2, d), (heads, 4, d), (heads, 4, e))
        w = np.exp(np.einsum("hnd,hmd->hnm", q, k) / math.sqrt(d))
        expected = (w / w.sum(-1, keepdims=True)) @ v
        xp.check(xp.quick(in_slots)(xp.arrays({"q": q, "k": k, "v": v})), expected)

    @claims("S02")
    def test_case_s02_no_scale_scale_one_and_scale_twice(self, xp, case):
        c = case("S02")
        q, k, v = (xp.asarray(c["inputs"][name]) for name in "qkv")
        out = attention(q, k, v)
        xp.check(out, c["expected"]["out_scale_none"])
        xp.check(attention(q, k, v, score=scaled_dot(scale=None)), c["expected"]["out_scale_none"])
        xp.check(attention(q, k, v, score=scaled_dot(scale=1.0)), c["expected"]["out_scale_one"])
        xp.check(attention(q, k, v, score=scaled_dot(scale=1 / 4)), c["expected"]["out_scale_1_over_d"])
        for wrong in c["wrong"].values():
            assert np.abs(xp.numpy(out) - wrong["out"]).max() > 0.05

    @claims("S02")
    @given(st.floats(-8, 8))
    def test_case_s02_a_given_scale_multiplies_the_bare_product_once(self, scale):
        q, k, v = random_arrays(31, (2, 4), (3, 4), (3, 1))
        expected = attention(scale * q, k, v, score=scaled_dot(scale=1.0))
        np.testing.assert_allclose(attention(q, k, v, score=scaled_dot(scale=scale)), expected, rtol=1e-10)

    @claims("N01")
    def test_case_n01_a_product_that_overflows_half_precision(self, xp, case):
        c = case("N01")
        for dtype in xp.narrow_dtypes:
            q, k, v = (xp.asarray(c["inputs"][name], dtype) for name in "qkv")
            out = attention(q, k, v)
            xp.check(out, c["expected"]["out"], dtype=dtype)
            xp.check(attention_weights(q, k), c["expected"]["weights"], dtype=dtype)
            for wrong in c["wrong"].values():
                assert not np.allclose(xp.numpy(out), wrong["out"])

    @claims("N01")
    @pytest.mark.parametrize("size", [1.0, 30.0, 150.0, 2000.0])
    def test_case_n01_half_precision_is_single_precision_rounded_at_the_end(self, xp, size):
        for dtype in xp.narrow_dtypes:
            arrays = [xp.asarray(size * a, dtype) for a in random_arrays(32, (3, 4), (5, 4), (5, 2))]
            wide = attention(*(xp.asarray(xp.numpy(a), "float32") for a in arrays))
            expected = xp.numpy(xp.asarray(xp.numpy(wide), dtype))
            xp.check(attention(*arrays), expected, dtype=dtype, tolerance=0)

    @claims("N09")
    def test_case_n09_no_keys_and_no_queries(self, xp, case):
        shapes, expected = case("N09")["inputs"], case("N09")["expected"]
        q, k, v = (xp.asarray(np.ones(shapes[f"{name}_shape_a"])) for name in "qkv")
        xp.check(attention(q, k, v), expected["out_a"])
        xp.check(log_sum_exp(attention_scores(q, k)), expected["lse_a"])
        q, k, v = (xp.asarray(np.ones(shapes[f"{name}_shape_b"])) for name in "qkv")
        xp.check(attention(q, k, v), np.ones(expected["out_b_shape"]))

    @claims("N09")
    @pytest.mark.parametrize("masked", [False, True])
    def test_case_n09_every_combination_of_empty_axes(self, xp, masked):
        for sizes in xp.some(list(itertools.product((0, 2), repeat=6))):
            self.check_sizes(xp, masked, *sizes)

    def check_sizes(self, xp, masked, batch, heads, n, m, d, e):
        shapes = {"g": (n, e), "q": (n, d), "k": (m, d), "v": (m, e)}
        arrays = {name: np.ones((batch, heads, *shape)) for name, shape in shapes.items()}
        extra = {"mask": np.ones((n, m), bool), "bias": np.zeros((n, m))} if masked else {}
        grid = (batch, heads, n, m)
        given = xp.arrays({name: arrays[name] for name in "qkv"} | extra)
        xp.check(xp.quick(lambda a: attention_scores(a["q"], a["k"]))(given), np.full(grid, math.sqrt(d)))
        xp.check(xp.quick(weights_in_slots)(given), np.full(grid, 1 / max(m, 1)))
        xp.check(xp.quick(in_slots)(given), np.full((batch, heads, n, e), float(m > 0)))
        extra = xp.arrays(extra)
        pull = xp.quick(lambda *a: attention_vjp(*a, **extra))
        dq, dk, dv, _ = pull(*xp.arrays(arrays).values())
        xp.check(dq, np.zeros(arrays["q"].shape))
        xp.check(dk, np.zeros(arrays["k"].shape))
        xp.check(dv, np.full(arrays["v"].shape, n / max(m, 1)))

    @claims("N10")
    def test_case_n10_keys_and_values_of_different_length(self, xp, case):
        c = case("N10")
        assert c["expected"]["raises"]
        q, k, v = (xp.asarray(np.ones(c["inputs"][f"{name}_shape"])) for name in "qkv")
        with pytest.raises(ValueError, match="k.*5.*v.*6"):
            attention(q, k, v)

    @claims("N10")
    @pytest.mark.parametrize(("m", "other_m"), [(m, o) for m in range(4) for o in range(4) if m != o])
    def test_case_n10_any_two_lengths_even_one_and_none(self, xp, m, other_m):
        q, k, v = (xp.asarray(np.ones(s)) for s in ((2, 3), (m, 3), (other_m, 1)))
        for call in (attention, lambda *a: attention_vjp(xp.asarray(np.ones((2, 1))), *a)):
            with pytest.raises(ValueError, match=rf"k.*{m}.*v.*{other_m}"):
                call(q, k, v)

    def test_visible_nan_spoils_the_rows_that_read_it(self, xp):
        q, k, v = random_arrays(33, (2, 2), (3, 2), (3, 2))
        q[0, 0] = NAN
        out = xp.numpy(attention(*map(xp.asarray, (q, k, v))))
        assert np.isnan(out[0]).all()
        assert np.isfinite(out[1]).all()
        v[1, 1] = NAN
        out = xp.numpy(attention(*map(xp.asarray, (q, k, v))))
        assert np.isfinite(out[1, 0])
        assert np.isnan(out[1, 1])

    def test_an_infinite_bias_reads_its_key_alone(self, xp):
        q, k, v = map(xp.asarray, random_arrays(34, (1, 2), (3, 2), (3, 2)))
        xp.check(attention(q, k, v, bias=xp.asarray([[0.0, INF, 0.0]])), xp.numpy(v)[1:2])

    def test_one_key_is_read_whole(self, xp):
        q, k, v = map(xp.asarray, random_arrays(35, (2, 3, 4), (2, 1, 4), (2, 1, 2)))
        xp.check(attention(q, k, v), np.repeat(xp.numpy(v), 3, axis=-2))

    def test_bad_input(self, xp, other):
        v = xp.asarray(np.ones((4, 1)))

        def with_values(q, k, **options):
            return attention(q, k, v, **options)

        refuses_bad_pairs(with_values, xp, other)
        refuses_bad_heads(with_values, xp)
        pair = xp.asarray(np.ones((2, 3))), xp.asarray(np.ones((4, 3)))
        refuses_bad_masks(with_values, xp, other, pair)
        refuses_bad_biases(with_values, xp, other, pair)
        with pytest.raises(ValueError, match=r"\bv\b.*\(4,\)"):
            attention(*pair, xp.asarray(np.ones(4)))
        with pytest.raises(TypeError, match=r"\bv\b"):
            attention(*pair, [[1.0]] * 4)
        with pytest.raises(TypeError, match="library"):
            attention(*pair, other.asarray(np.ones((4, 1))))
        eight = xp.asarray(np.ones((8, 2, 3))), xp.asarray(np.ones((2, 4, 3)))
        with pytest.raises(ValueError, match="v has 3 heads, which does not divide q's 8"):
            attention(*eight, xp.asarray(np.ones((3, 4, 1))))
        with pytest.raises(ValueError, match=r"\(2.*\).*\(3.*\)"):
            attention(xp.asarray(np.ones((2, 1, 2, 3))), pair[1], xp.asarray(np.ones((3, 1, 4, 1))))


class TestAttentionVjp:
    def test_values_with_a_batch_that_queries_and_keys_lack_add_up(self):
        rng = np.random.default_rng(5)
        g, q, k, v = (rng.standard_normal(shape) for shape in ((2, 1, 3, 3), (1, 3, 2), (1, 4, 2), (2, 1, 4, 3)))
        dq, dk, dv, _ = attention_vjp(g, q, k, v)
        parts = [attention_vjp(g[b], q, k, v[b]) for b in range(2)]
        np.testing.assert_allclose(dq, parts[0][0] + parts[1][0], atol=1e-15)
        np.testing.assert_allclose(dk, parts[0][1] + parts[1][1], atol=1e-15)
        np.testing.assert_allclose(dv, np.stack([parts[0][2], parts[1][2]]), atol=1e-15)

    options = pytest.mark.parametrize(
        ("scale", "cap", "masked", "biased"),
        [
            (None, None, False, None),
            (None, None, True, None),
            (0.3, None, True, (3, 5)),
            (None, 0.8, False, (4, 3, 5)),
            (1.0, 2.0, True, (2, 1, 1, 5)),
        ],
    )
    heads = pytest.mark.parametrize(
        "shapes",
        [
            ((2, 4, 3, 2), (2, 4, 5, 2), (2, 4, 5, 3)),
            ((2, 4, 3, 2), (2, 2, 5, 2), (2, 1, 5, 3)),
            ((1, 4, 3, 2), (2, 1, 5, 2), (5, 3)),
            ((2, 4, 3, 2), (5, 2), (2, 4, 5, 3)),
            ((2, 4, 3, 2), (2, 2, 5, 2), (2, 5, 3)),
        ],
    )

    @staticmethod
    def arguments(shapes, scale, cap, masked, biased):
        rng = np.random.default_rng(36)
        q, k, v = (rng.normal(size=s) for s in shapes)
        g, mask = rng.normal(size=(2, 4, 3, 3)), rng.random((2, 1, 3, 5)) < 0.6
        mask[0, 0, 1] = False
        bias = rng.normal(size=biased) if biased else None
        return g, q, k, v, bias, mask if masked else None, scaled_dot(scale=scale, cap=cap)

    @options
    @heads
    def test_agrees_with_finite_differences(self, shapes, scale, cap, masked, biased):
        g, q, k, v, bias, mask, score = self.arguments(shapes, scale, cap, masked, biased)
        leaves = (q, k, v) if bias is None else (q, k, v, bias)
        expected = finite_differences(
            lambda q, k, v, b=None: attention(q, k, v, bias=b, mask=mask, score=score), g, *leaves
        )
        got = attention_vjp(g, q, k, v, mask=mask, bias=bias, score=score)
        assert (got[3] is None) == (bias is None)
        for ours, theirs in zip(got[: len(leaves)], expected, strict=True):
            assert ours.shape == theirs.shape
            np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=1e-8)

    @options
    @heads
    def test_agrees_with_automatic_differentiation(self, autograd, shapes, scale, cap, masked, biased):
        g, q, k, v, bias, mask, score = self.arguments(shapes, scale, cap, masked, biased)
        leaves = [autograd.asarray(a) for a in ((q, k, v) if bias is None else (q, k, v, bias))]
        g, mask = autograd.asarray(g), None if mask is None else autograd.asarray(mask, "bool")
        expected = autograd.vjp(lambda q, k, v, b=None: attention(q, k, v, bias=b, mask=mask, score=score), g, *leaves)
        closed = autograd.quick(lambda g, q, k, v, b=None: attention_vjp(g, q, k, v, mask=mask, bias=b, score=score))
        got = closed(g, *leaves)
        for ours, theirs in zip(got[: len(leaves)], expected, strict=True):
            autograd.check(ours, autograd.numpy(theirs))

    def test_agrees_with_automatic_differentiation_of_the_stranger(self, torch, agree):
        q, k, v, bias, g = random_arrays(37, (2, 4, 7, 8), (2, 2, 9, 8), (2, 2, 9, 8), (4, 7, 9), (2, 4, 7, 8))
        leaves = [torch.tensor(a, requires_grad=True) for a in (q, k, v, bias)]
        out = torch.nn.functional.scaled_dot_product_attention(*leaves[:3], attn_mask=leaves[3], enable_gqa=True)
        out.backward(torch.tensor(g))
        for ours, leaf in zip(attention_vjp(g, q, k, v, bias=bias), leaves, strict=True):
            agree(
                ours,
                leaf.grad,
                function="lookup.attention_vjp",
                stranger="torch autograd of scaled_dot_product_attention",
                version=version(torch),
                dtype="float64",
            )

    @pytest.mark.parametrize("bad", [NAN, INF, -INF])
    @pytest.mark.parametrize("slot", ["k", "v", "bias", "all"])
    def test_knows_nothing_of_a_hidden_key(self, xp, bad, slot):
        q, k, v, bias, g = random_arrays(38, (2, 3, 2), (1, 4, 2), (2, 4, 3), (3, 4), (2, 3, 3))
        kept = [0, 1, 3]
        dq, dk, dv, dbias = attention_vjp(g, q, k[:, kept], v[:, kept], bias=bias[:, kept])
        if slot in ("k", "all"):
            k[:, 2] = bad
        if slot in ("v", "all"):
            v[:, 2] = bad
        if slot in ("bias", "all"):
            bias[:, 2] = bad
        mask = xp.asarray([True, True, False, True], "bool")
        closed = xp.quick(lambda g, q, k, v, b: attention_vjp(g, q, k, v, mask=mask, bias=b))
        got = closed(*map(xp.asarray, (g, q, k, v, bias)))
        expected = (dq, np.insert(dk, 2, 0.0, axis=1), np.insert(dv, 2, 0.0, axis=1), np.insert(dbias, 2, 0.0, axis=1))
        for ours, theirs in zip(got, expected, strict=True):
            xp.check(ours, theirs)

    def test_finds_the_vjp_of_the_normalizer_and_of_the_score(self, xp):
        g, q, k, v = map(xp.asarray, random_arrays(39, (2, 3, 3), (2, 3, 2), (2, 4, 2), (2, 4, 3)))

        def normalize(s, allowed):
            return softmax(s, allowed, temperature=0.5)

        normalize.vjp = lambda g, s, allowed: softmax.vjp(g, s, allowed, temperature=0.5)
        got = attention_vjp(g, q, k, v, normalize=normalize)
        expected = attention_vjp(g, q, k, v, score=scaled_dot(scale=2 / math.sqrt(2)))
        for ours, theirs in zip(got[:3], expected[:3], strict=True):
            xp.check(ours, xp.numpy(theirs))

    @pytest.mark.parametrize(("slot", "value"), [("normalize", hardmax), ("score", gaussian_score())])
    def test_a_part_without_a_vjp_is_refused_by_name(self, xp, slot, value):
        g, q, k, v = map(xp.asarray, random_arrays(40, (3, 3), (3, 2), (4, 2), (4, 3)))
        with pytest.raises(TypeError, match=f"{slot}.*vjp"):
            attention_vjp(g, q, k, v, **{slot: value})

    def test_keeps_precision(self, xp):
        g, q, k, v = random_arrays(41, (2, 3), (2, 2), (4, 2), (4, 3))
        expected = attention_vjp(g, q, k, v)
        for dtype in ("float32", *xp.narrow_dtypes):
            tolerance = {"float32": 5e-6, "float16": 5e-3, "bfloat16": 5e-2}[dtype]
            got = attention_vjp(*(xp.asarray(a, dtype) for a in (g, q, k, v)))
            for ours, theirs in zip(got[:3], expected[:3], strict=True):
                xp.check(ours, theirs, dtype=dtype, tolerance=tolerance)

    def test_bad_input(self, xp, other):
        g, v = xp.asarray(np.ones((2, 1))), xp.asarray(np.ones((4, 1)))

        def from_pair(q, k, **options):
            return attention_vjp(g, q, k, v, **options)

        refuses_bad_pairs(from_pair, xp, other)
        refuses_bad_heads(from_pair, xp)
        pair = xp.asarray(np.ones((2, 3))), xp.asarray(np.ones((4, 3)))
        refuses_bad_masks(from_pair, xp, other, pair)
        refuses_bad_biases(from_pair, xp, other, pair)
        with pytest.raises(ValueError, match=r"\bg\b.*\(2, 2\)"):
            attention_vjp(xp.asarray(np.ones((2, 2))), *pair, v)
        with pytest.raises(TypeError, match=r"\bg\b"):
            attention_vjp([[1.0]] * 2, *pair, v)


def test_the_blend_of_the_weights_is_attention(xp):
    q, k, v = map(xp.asarray, random_arrays(42, (3, 4), (5, 4), (5, 2)))
    xp.check(weighted_average(attention_weights(q, k), v), xp.numpy(attention(q, k, v)))


@pytest.mark.parametrize(("name", "invariant"), held("lookup/attention"))
def test_shared_invariants(xp, name, invariant):
    invariant(SUBJECTS[name], xp)
