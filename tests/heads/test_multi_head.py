"""softlookup.heads.multi_head: projections, the cut into heads, the lookup in each, and the way back."""

import functools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from invariants import held
from libraries import finite_differences
from oracles.freeze import frozen
from oracles.onnx_cases import attention_arguments, node_cases, onnx
from subjects import SUBJECTS

from softlookup.heads import merge_heads, multi_head_attention, split_heads, sum_over_heads
from softlookup.lookup import attention, attention_weights, hardmax, scaled_dot
from softlookup.masks import causal

INF, NAN = math.inf, math.nan
claims = pytest.mark.claims
both = pytest.mark.parametrize("function", [multi_head_attention, sum_over_heads])
numbers = st.integers(-16, 16).map(lambda i: i / 8)


def loop(x, context, w_q, w_k, w_v, w_o, mask=None):
    """Head by head, row by row and number by number, in plain Python."""

    def project(rows, w):
        return [[math.fsum(r[a] * w[a][b] for a in range(len(w))) for b in range(w.shape[1])] for r in rows]

    out = np.zeros((len(x), w_o.shape[-1]))
    for h in range(len(w_q)):
        shared = h // (len(w_q) // len(w_k))
        q, k, v = project(x, w_q[h]), project(context, w_k[shared]), project(context, w_v[shared])
        for i, query in enumerate(q):
            read = [j for j in range(len(k)) if mask is None or mask[i][j]]
            scores = [math.fsum(map(float.__mul__, query, k[j])) / math.sqrt(len(query)) for j in read]
            total = math.fsum(math.exp(s) for s in scores)
            for j, s in zip(read, scores, strict=True):
                for c, a in np.ndindex(*w_o.shape[1:]):
                    out[i, a] += math.exp(s) / total * v[j][c] * w_o[h, c, a]
    return out


@st.composite
def layers(draw):
    """Inputs and projections of every size, self or cross, with grouped heads and perhaps a mask."""
    n, m, d, e, kv_heads, group = (draw(st.integers(1, 3)) for _ in range(6))
    shapes = (n, 3), (m, 2), (group * kv_heads, 3, d), (kv_heads, 2, d), (kv_heads, 2, e), (group * kv_heads, e, 4)
    arrays = [draw(hnp.arrays(np.float64, shape, elements=numbers)) for shape in shapes]
    return arrays, draw(st.none() | hnp.arrays(bool, (n, m)))


def masked(mask):
    return functools.partial(attention, mask=mask)


def random_layer(seed, heads=3, kv_heads=3, width=4, d=2, e=3, n=5, m=6):
    rng = np.random.default_rng(seed)
    shapes = [(n, width), (m, width), (heads, width, d), (kv_heads, width, d), (kv_heads, width, e), (heads, e, width)]
    return [rng.normal(size=shape) for shape in shapes]


def version(module):
    return f"{module.__name__} {module.__version__.partition('+')[0]}"


def per_head(weight, heads):
    """The weight (out, in) of a library's linear map as (heads, in, out of one head)."""
    return split_heads(np.ascontiguousarray(weight.T), heads=heads)


def per_head_out(weight, heads):
    """The weight (out, in) of a library's output projection as (heads, in of one head, out)."""
    return weight.T.reshape(heads, -1, weight.shape[0])


def with_ones(x):
    return np.concatenate([x, np.ones((*x.shape[:-1], 1))], axis=-1)


def with_bias(weight, bias, heads):
    """A linear map with a bias as one with a row more, for inputs with a column of ones."""
    return per_head(np.concatenate([weight, bias[:, None]], axis=1), heads)


class TestMultiHeadAttention:
    def test_two_heads_by_hand(self, xp):
        # Head 0 scores by ln 3 where the word matches and reads the first column; head 1 reads the mean of the second.
        x = [[1.0, 4.0], [0.0, 8.0]]
        w_q, w_k = [[[math.log(3)], [0.0]], [[0.0], [0.0]]], [[[1.0], [0.0]], [[1.0], [0.0]]]
        w_v, w_o = [[[1.0], [0.0]], [[0.0], [1.0]]], [[[1.0, 0.0]], [[0.0, 10.0]]]
        args = [xp.asarray(a) for a in (x, x, w_q, w_k, w_v, w_o)]
        xp.check(multi_head_attention(*args), [[0.75, 60.0], [0.5, 60.0]])

    @given(layers())
    def test_is_the_loop(self, layer):
        arrays, mask = layer
        ours = multi_head_attention(*arrays, attend=masked(mask))
        np.testing.assert_allclose(ours, loop(*arrays, mask), rtol=1e-11, atol=1e-11)

    @pytest.mark.parametrize("need_weights", [False, True])
    def test_agrees_with_the_module_of_torch_self(self, torch, agree, need_weights):
        rng = np.random.default_rng(0)
        module = torch.nn.MultiheadAttention(8, 2, batch_first=True, dtype=torch.float64).requires_grad_(False)
        for parameter in (module.in_proj_weight, module.in_proj_bias, module.out_proj.weight, module.out_proj.bias):
            parameter[...] = torch.tensor(rng.normal(size=parameter.shape))
        x, mask = rng.normal(size=(3, 5, 8)), np.tri(5, dtype=bool)
        (w_q, w_k, w_v), b = np.split(module.in_proj_weight.numpy(), 3), np.split(module.in_proj_bias.numpy(), 3)
        projections = [with_bias(w, one, 2) for w, one in zip((w_q, w_k, w_v), b, strict=True)]
        w_o = per_head_out(module.out_proj.weight.numpy(), 2)
        longer = with_ones(x)
        ours = multi_head_attention(longer, longer, *projections, w_o, attend=masked(mask))
        given = [torch.tensor(x)] * 3
        agree(
            ours + module.out_proj.bias.numpy(),
            module(*given, attn_mask=torch.tensor(~mask), need_weights=need_weights)[0],
            function="heads.multi_head_attention",
            stranger="torch.nn.MultiheadAttention, self",
            version=version(torch),
            dtype="float64",
            clash="True in a mask hides; weights are (out, in), stacked as queries, keys, values",
        )

    def test_agrees_with_the_module_of_torch_cross_with_other_widths(self, torch, agree):
        """Keys and values from two sources are one context, side by side, with zeros in the projections."""
        rng = np.random.default_rng(1)
        options = {"kdim": 3, "vdim": 5, "bias": False, "batch_first": True, "dtype": torch.float64}
        module = torch.nn.MultiheadAttention(8, 4, **options).requires_grad_(False)
        x, key, value = (rng.normal(size=(2, n, width)) for n, width in ((4, 8), (6, 3), (6, 5)))
        valid = np.arange(6) < np.array([[6], [2]])
        w_q, w_k, w_v = (
            per_head(w.numpy(), 4) for w in (module.q_proj_weight, module.k_proj_weight, module.v_proj_weight)
        )
        w_k, w_v = np.pad(w_k, [(0, 0), (0, 5), (0, 0)]), np.pad(w_v, [(0, 0), (3, 0), (0, 0)])
        w_o = per_head_out(module.out_proj.weight.numpy(), 4)
        context = np.concatenate([key, value], axis=-1)
        ours = multi_head_attention(x, context, w_q, w_k, w_v, w_o, attend=masked(valid[:, None, None, :]))
        theirs = module(*map(torch.tensor, (x, key, value)), key_padding_mask=torch.tensor(~valid))[0]
        agree(
            ours,
            theirs,
            function="heads.multi_head_attention",
            stranger="torch.nn.MultiheadAttention, cross, kdim and vdim",
            version=version(torch),
            dtype="float64",
            clash="True in a padding mask hides; keys and values may have two sources",
        )

    def test_agrees_with_the_cross_attention_of_bart(self, agree):
        f = frozen("transformers_bart_cross_attention")
        projections = [with_bias(f[f"w_{name}"], f[f"b_{name}"], 2) for name in "qkv"]
        attend = masked(f["valid"][:, None, None, :])
        x, context = with_ones(f["x"]), with_ones(f["context"])
        agree(
            multi_head_attention(x, context, *projections, per_head_out(f["w_o"], 2), attend=attend) + f["b_o"],
            f["out"],
            function="heads.multi_head_attention",
            stranger="transformers BartAttention, cross",
            version=f.version,
            dtype="float64",
        )

    def test_agrees_with_the_packed_projection_of_gpt_neox(self, agree):
        f = frozen("transformers_neox_packed_projection")
        w_q, w_k, w_v = np.moveaxis(f["packed"].reshape(3, 3, 2, 6), 1, 0).mT  # heads, then the three roles
        w_o, attend = per_head_out(f["w_o"], 3), masked(np.tri(4, dtype=bool))
        agree(
            multi_head_attention(f["x"], f["x"], w_q, w_k, w_v, w_o, attend=attend),
            f["out"],
            function="heads.multi_head_attention",
            stranger="transformers GPTNeoXAttention, packed projection",
            version=f.version,
            dtype="float64",
            clash="packs queries, keys and values head by head; takes the softmax in single precision",
        )
        wrong = np.swapaxes(f["packed"].reshape(3, 3, 2, 6), -1, -2)
        other = multi_head_attention(f["x"], f["x"], *wrong, w_o, attend=attend)
        assert np.abs(other - f["out"]).max() > 0.1

    def test_one_head_and_no_projection_is_attention(self, xp):
        rng = np.random.default_rng(2)
        x, context, one = rng.normal(size=(3, 4)), rng.normal(size=(5, 4)), np.eye(4)[None]
        ours = multi_head_attention(*(xp.asarray(a) for a in (x, context, one, one, one, one)))
        xp.check(ours, attention(x, context, context))

    def test_heads_do_not_hear_of_each_other(self, xp):
        x, context, w_q, w_k, w_v, w_o = random_layer(3)
        whole = xp.numpy(multi_head_attention(*(xp.asarray(a) for a in (x, context, w_q, w_k, w_v, w_o))))
        parts = [multi_head_attention(x, context, *(w[[h]] for w in (w_q, w_k, w_v, w_o))) for h in range(3)]
        np.testing.assert_allclose(whole, sum(parts), atol=xp.tolerance)

    def test_the_order_of_heads_does_not_matter(self):
        x, context, *projections = random_layer(4)
        whole = multi_head_attention(x, context, *projections)
        turned = multi_head_attention(x, context, *(w[[2, 0, 1]] for w in projections))
        np.testing.assert_allclose(turned, whole, rtol=1e-12, atol=1e-12)

    def test_values_may_have_fewer_heads_than_keys(self):
        x, context, w_q, w_k, w_v, w_o = random_layer(5, heads=4, kv_heads=4)
        written_out = multi_head_attention(x, context, w_q, w_k, np.repeat(w_v[:2], 2, axis=0), w_o)
        np.testing.assert_allclose(multi_head_attention(x, context, w_q, w_k, w_v[:2], w_o), written_out, atol=1e-12)

    def test_the_lookup_carries_what_the_slots_hold(self):
        arrays, bias = random_layer(6), np.random.default_rng(6).normal(size=(3, 5, 6))
        attend = functools.partial(attention, bias=bias, score=scaled_dot(scale=1.0), normalize=hardmax)
        x, context, w_q, w_k, w_v, w_o = arrays
        best = (x @ w_q @ (context @ w_k).mT + bias).argmax(-1)
        picked = np.take_along_axis(context @ w_v, best[..., None], axis=1)
        expected = np.einsum("hne,heo->no", picked, w_o)
        np.testing.assert_allclose(multi_head_attention(*arrays, attend=attend), expected, atol=1e-12)

    def test_a_lookup_may_return_fewer_heads_and_other_widths(self):
        """As differential attention does: a pair of heads becomes one, here by a difference."""
        x, context, w_q, w_k, w_v, w_o = random_layer(7, heads=4, kv_heads=4)

        def differ(q, k, v):
            out = attention(q, k, v)
            return np.concatenate([out[0::2] - out[1::2]] * 2, axis=-1)

        w_o = np.random.default_rng(7).normal(size=(2, 6, 5))
        out = attention(x @ w_q, context @ w_k, context @ w_v)
        expected = sum((out[2 * h] - out[2 * h + 1]) @ (w_o[h, :3] + w_o[h, 3:]) for h in range(2))
        ours = multi_head_attention(x, context, w_q, w_k, w_v, w_o, attend=differ)
        np.testing.assert_allclose(ours, expected, atol=1e-12)

    def test_decoding_with_a_cache_is_the_full_pass(self, xp):
        """Token by token: one new query reads the keys and values that are kept, and earlier rows stay."""
        x, _, w_q, w_k, w_v, w_o = (xp.asarray(a) for a in random_layer(8, heads=4, kv_heads=2, n=7))
        steps = xp.asarray(np.arange(7), "int64")
        full = multi_head_attention(x, x, w_q, w_k, w_v, w_o, attend=masked(causal(steps, steps)))
        cache = []

        def attend_with_cache(q, k, v):
            cache.append((xp.numpy(k), xp.numpy(v)))
            return attention(q, *(xp.asarray(np.concatenate(kept, axis=-2)) for kept in zip(*cache, strict=True)))

        for i in range(7):
            new = x[i : i + 1, ...]
            row = multi_head_attention(new, new, w_q, w_k, w_v, w_o, attend=attend_with_cache)
            np.testing.assert_allclose(xp.numpy(row)[0], xp.numpy(full)[i], atol=xp.tolerance)

    def test_appending_leaves_earlier_rows_alone_under_a_causal_mask(self):
        x, _, *projections = random_layer(9, n=7)
        causal_mask = np.tri(7, dtype=bool)
        whole = multi_head_attention(x, x, *projections, attend=masked(causal_mask))
        first = multi_head_attention(x[:4], x[:4], *projections, attend=masked(causal_mask[:4, :4]))
        np.testing.assert_allclose(first, whole[:4], atol=1e-12)

    @both
    def test_a_hidden_row_of_the_context_may_hold_anything(self, xp, function):
        x, context, *projections = random_layer(10)
        valid = np.array([True, True, False, True, False, True])
        clean = function(x, context[valid], *projections)
        attend = masked(xp.asarray(valid, "bool"))
        for bad in (NAN, INF, -INF):
            context[~valid] = bad
            with np.errstate(invalid="ignore"):
                ours = function(*(xp.asarray(a) for a in (x, context, *projections)), attend=attend)
            xp.check(ours, clean)

    @both
    def test_a_head_that_may_read_nothing_adds_nothing(self, xp, function):
        x, context, w_q, w_k, w_v, w_o = random_layer(11)
        mask = np.ones((3, 5, 6), dtype=bool)
        mask[1, 2] = False
        mask[:, 4] = False
        expected = sum(loop(x, context, *(w[[h]] for w in (w_q, w_k, w_v, w_o)), mask[h]) for h in range(3))
        attend = masked(xp.asarray(mask, "bool"))
        ours = xp.numpy(function(*(xp.asarray(a) for a in (x, context, w_q, w_k, w_v, w_o)), attend=attend))
        np.testing.assert_allclose(ours, expected, atol=xp.tolerance)
        assert np.all(ours[4] == 0)

    @both
    def test_hidden_nan_leaves_gradients_finite(self, autograd, function):
        x, context, *projections = random_layer(12)
        context[3] = NAN
        attend = masked(autograd.asarray(np.arange(6) != 3, "bool"))
        arrays = [autograd.asarray(a) for a in (x, *projections)]

        def layer(x, *projections):
            return function(x, autograd.asarray(context[[0, 1, 2, 4, 5]]), *projections)

        def spoiled(x, *projections):
            return function(x, autograd.asarray(np.where(np.isnan(context), 0.0, context)), *projections, attend=attend)

        g = autograd.asarray(np.ones((5, 4)))
        for ours, theirs in zip(autograd.vjp(spoiled, g, *arrays), autograd.vjp(layer, g, *arrays), strict=True):
            autograd.check(ours, autograd.numpy(theirs))

    @both
    def test_gradients_are_those_of_finite_differences(self, autograd, function):
        arrays = random_layer(13, heads=2, kv_heads=1, width=3, n=2, m=3)
        g = np.random.default_rng(13).normal(size=(2, 3))
        expected = finite_differences(function, g, *arrays)
        ours = autograd.vjp(function, autograd.asarray(g), *(autograd.asarray(a) for a in arrays))
        for one, two in zip(ours, expected, strict=True):
            autograd.check(one, two, tolerance=1e-7)

    def test_thousands_of_items_and_narrow_types(self, xp):
        """A row of equal items is their projection, whatever the weights."""
        x, row = np.ones((1, 2)), np.array([[1.0, 3.0]])
        w, w_v, w_o = np.ones((2, 2, 1)), np.array([[[1.0], [0.0]], [[0.0], [1.0]]]), np.array([[[1.0]], [[0.5]]])
        for dtype in ("float32", *xp.narrow_dtypes):
            arrays = [xp.asarray(a, dtype) for a in (x, np.repeat(row, 4096, axis=0), w, w, w_v, w_o)]
            xp.check(multi_head_attention(*arrays), [[2.5]], dtype=dtype)

    @both
    def test_bad_input(self, xp, other, function):
        host = dict(zip(("x", "context", "w_q", "w_k", "w_v", "w_o"), random_layer(14), strict=True))
        arrays = xp.arrays(host)

        def ones(*shape):
            return xp.asarray(np.ones(shape))

        def call(**changed):
            return function(*(arrays | changed).values())

        for name, axes in (("x", 1), ("context", 1), ("w_q", 2), ("w_k", 2), ("w_v", 2), ("w_o", 2)):
            with pytest.raises(ValueError, match=rf"\b{name}\b.*\("):
                call(**{name: ones(*(4,) * axes)})
            with pytest.raises(TypeError, match=rf"\b{name}\b"):
                call(**{name: [[1.0]]})
            with pytest.raises(TypeError, match="library"):
                call(**{name: other.asarray(host[name])})
        for name, source in (("w_q", "x"), ("w_k", "context"), ("w_v", "context")):
            with pytest.raises(ValueError, match=rf"{name} has 5 rows, {source} has 4 columns"):
                call(**{name: ones(3, 5, 2)})
        with pytest.raises(ValueError, match="w_o has 2 rows, the result of attend has 3 columns"):
            call(w_o=ones(3, 2, 4))
        for heads in (1, 2):
            with pytest.raises(ValueError, match=rf"the result of attend has 3 heads, w_o has {heads}"):
                call(w_o=ones(heads, 3, 4))
        with pytest.raises(ValueError, match="k has 2 heads, which does not divide q's 3"):
            call(w_k=ones(2, 4, 2))
        with pytest.raises(ValueError, match=r"do not broadcast.*\(2, 1\).*\(3, 3\)"):
            call(x=ones(2, 5, 4), w_q=ones(3, 3, 4, 2))

    @both
    def test_bad_lookup(self, xp, function):
        arrays = [xp.asarray(a) for a in random_layer(15)]
        with pytest.raises(TypeError, match="attend must be a function"):
            function(*arrays, attend="softmax")
        with pytest.raises(TypeError, match="the result of attend must be an array, not tuple"):
            function(*arrays, attend=lambda q, k, v: (v, v))
        with pytest.raises(ValueError, match=r"the result of attend has shape \(5, 3\)"):
            function(*arrays, attend=lambda q, k, v: attention(q, k, v)[0, ...])


class TestSumOverHeads:
    def test_one_number_for_each_head_by_hand(self, xp):
        x, one = [[2.0], [4.0]], np.ones((3, 1, 1))
        w_o = [[[1.0]], [[10.0]], [[100.0]]]
        args = [xp.asarray(a) for a in (x, x, 0 * one, one, one, w_o)]
        xp.check(sum_over_heads(*args), [[333.0], [333.0]])

    @given(layers())
    def test_is_the_loop(self, layer):
        arrays, mask = layer
        ours = sum_over_heads(*arrays, attend=masked(mask))
        np.testing.assert_allclose(ours, loop(*arrays, mask), rtol=1e-11, atol=1e-11)

    @given(layers())
    def test_side_by_side_and_projected_is_the_sum(self, layer):
        arrays, mask = layer
        attend = masked(mask)
        one, other = multi_head_attention(*arrays, attend=attend), sum_over_heads(*arrays, attend=attend)
        np.testing.assert_allclose(one, other, rtol=1e-11, atol=1e-11)


class TestSplitHeads:
    def test_the_numbers_of_a_head_stand_next_to_one_another(self, xp):
        x = xp.asarray(np.arange(12.0).reshape(2, 6))
        xp.check(split_heads(x, heads=3), [[[0, 1], [6, 7]], [[2, 3], [8, 9]], [[4, 5], [10, 11]]])
        xp.check(split_heads(x, heads=2), [[[0, 1, 2], [6, 7, 8]], [[3, 4, 5], [9, 10, 11]]])

    @claims("H02")
    @pytest.mark.parametrize("heads", [1, 2, 3, 6])
    def test_case_h02_splitting_and_merging_are_inverse(self, xp, heads):
        for shape in ((4, 6), (2, 4, 6), (2, 1, 5, 6), (0, 6), (1, 6)):
            x = np.arange(float(math.prod(shape))).reshape(shape)
            split = split_heads(xp.asarray(x), heads=heads)
            assert tuple(split.shape) == (*shape[:-2], heads, shape[-2], 6 // heads)
            for *b, h, i in np.ndindex(*split.shape[:-1]):
                piece = x[*b, i, h * 6 // heads : (h + 1) * 6 // heads]
                np.testing.assert_array_equal(xp.numpy(split)[*b, h, i], piece)
            xp.check(merge_heads(split), x)

    def test_a_head_may_have_no_width(self, xp):
        xp.check(split_heads(xp.asarray(np.zeros((3, 0))), heads=4), np.zeros((4, 3, 0)))

    def test_agrees_with_the_three_axes_of_onnx(self, agree):
        compared = 0
        for node in node_cases("Attention"):
            if node.inputs["Q"].ndim != 3 or node.inputs["Q"].dtype != np.float32:
                continue
            a, compared = attention_arguments(node), compared + 1
            q = split_heads(node.inputs["Q"], heads=node.attributes["q_num_heads"])
            k, v = (split_heads(node.inputs[name], heads=node.attributes["kv_num_heads"]) for name in "KV")
            if "past_key" in node.inputs:
                k, v = (
                    np.concatenate([node.inputs[f"past_{name}"], new], axis=-2)
                    for name, new in (("key", k), ("value", v))
                )
            options = {name: a[name] for name in ("mask", "bias")}
            score = scaled_dot(scale=a["scale"], cap=a["cap"])
            agree(
                merge_heads(attention(q, k, v, score=score, **options)),
                node.outputs["Y"],
                function="heads.split_heads",
                stranger="onnx node cases of Attention with three axes",
                version=version(onnx),
                dtype="float32",
            )
        assert compared > 5

    @claims("H03")
    def test_case_h03_two_layouts_of_one_array(self, xp, case):
        c = case("H03")
        x = np.array(c["inputs"]["x"])
        as_heads = attention(*[xp.asarray(x)] * 3)
        xp.check(as_heads, c["expected"]["out_as_B_H_n_d"])
        turned = xp.asarray(np.swapaxes(x, 1, 2))
        ours = np.swapaxes(xp.numpy(attention(turned, turned, turned)), 1, 2)
        np.testing.assert_allclose(ours, c["expected"]["out_as_B_n_H_d"], atol=xp.tolerance)
        assert np.abs(xp.numpy(as_heads) - c["expected"]["out_as_B_n_H_d"]).max() > 0.1

    @claims("H03")
    @pytest.mark.parametrize(("n", "heads"), [(3, 2), (2, 2), (1, 4), (4, 1)])
    def test_case_h03_splitting_rows_makes_the_layout_of_heads(self, n, heads):
        """Rows (n, H * d) read as (n, H, d) have positions first; only with one head or one row is that no matter."""
        x = np.random.default_rng(16).normal(size=(n, heads * 2))
        ours = merge_heads(attention(*[split_heads(x, heads=heads)] * 3))
        each = [attention(*[x[:, 2 * h : 2 * h + 2]] * 3) for h in range(heads)]
        np.testing.assert_allclose(ours, np.concatenate(each, axis=-1), atol=1e-12)
        positions_first = attention(*[x.reshape(n, heads, 2)] * 3).reshape(n, heads * 2)
        assert np.allclose(ours, positions_first) == (n == heads == 1)

    def test_agrees_with_the_layout_of_jax(self, jax, agree):
        rng = np.random.default_rng(17)
        q, k, v = (rng.normal(size=(2, n, heads * 3)).astype("float32") for n, heads in ((4, 4), (5, 2), (5, 2)))
        theirs = jax.nn.dot_product_attention(*(a.reshape(*a.shape[:2], -1, 3) for a in (q, k, v)))
        ours = attention(split_heads(q, heads=4), *(split_heads(a, heads=2) for a in (k, v)))
        agree(
            merge_heads(ours).reshape(2, 4, 4, 3),
            theirs,
            function="heads.split_heads",
            stranger="jax.nn.dot_product_attention",
            version=version(jax),
            dtype="float32",
            clash="positions before heads",
        )

    def test_bad_input(self, xp):
        x = xp.asarray(np.ones((2, 6)))
        with pytest.raises(ValueError, match="heads is 4, which does not divide the width 6 of x"):
            split_heads(x, heads=4)
        with pytest.raises(ValueError, match="heads is 7"):
            split_heads(x, heads=7)
        for heads in (0, -2):
            with pytest.raises(ValueError, match=rf"heads is {heads}; it must be positive"):
                split_heads(x, heads=heads)
        with pytest.raises(TypeError, match="heads must be an integer"):
            split_heads(x, heads=2.0)
        with pytest.raises(ValueError, match=r"x has shape \(6,\)"):
            split_heads(x[0, :], heads=2)
        with pytest.raises(TypeError, match="x must be an array"):
            split_heads([[1.0]], heads=1)


class TestMergeHeads:
    @claims("H02")
    def test_case_h02_each_token_gets_its_own_heads(self, xp, case):
        c = case("H02")
        x = xp.asarray(c["inputs"]["x"])
        ours = merge_heads(x)
        xp.check(ours, c["expected"]["out"])
        xp.check(xp.asarray(np.reshape(c["inputs"]["x"], (1, 2, 4))), c["wrong"]["plain_reshape"]["out"])
        assert np.abs(xp.numpy(ours) - c["wrong"]["plain_reshape"]["out"]).max() > 1

    @claims("H02")
    @pytest.mark.parametrize(("heads", "n"), [(2, 2), (3, 4), (1, 4), (3, 1)])
    def test_case_h02_a_plain_reshape_is_right_for_one_head_or_one_token_only(self, heads, n):
        x = np.arange(heads * n * 2.0).reshape(heads, n, 2)
        assert np.array_equal(merge_heads(x), x.reshape(n, heads * 2)) == (heads == 1 or n == 1)

    def test_bad_input(self, xp):
        with pytest.raises(ValueError, match=r"x has shape \(2, 6\); it needs the axes \(..., H, n, d\)"):
            merge_heads(xp.asarray(np.ones((2, 6))))
        with pytest.raises(TypeError, match="x must be an array"):
            merge_heads([[[1.0]]])


def test_the_average_of_the_weights_is_not_the_layer():
    """What S09 says of plain attention holds for the layer: averaged weights give another output."""
    x, context, w_q, w_k, w_v, w_o = random_layer(18)
    w = attention_weights(x @ w_q, context @ w_k)
    layer = multi_head_attention(x, context, w_q, w_k, w_v, w_o)
    np.testing.assert_allclose(np.sum(w @ (context @ w_v) @ w_o, axis=0), layer, atol=1e-12)
    assert np.abs(np.sum(w.mean(0) @ (context @ w_v) @ w_o, axis=0) - layer).max() > 0.01


@pytest.mark.parametrize(("name", "invariant"), held("heads/multi_head"))
def test_shared_invariants(xp, name, invariant):
    invariant(SUBJECTS[name], xp)
