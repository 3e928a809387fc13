"""softlookup.heads.latent: keys and values of many heads from a few numbers that are kept."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from invariants import held
from libraries import finite_differences
from oracles.freeze import frozen
from subjects import SUBJECTS

from softlookup.heads import (
    absorb_queries,
    absorbed_latent_attention,
    expand_latent,
    latent_attention,
    latent_heads,
    reused_values,
    tensor_product_heads,
    tied_heads,
)
from softlookup.lookup import attention, scaled_dot
from softlookup.normalizers import sink_softmax

NAN, INF = math.nan, math.inf
FORMS = pytest.mark.parametrize("form", [latent_attention, absorbed_latent_attention])
claims = pytest.mark.claims


def loop(q, c, k_rot, w_k, w_v, allowed=None, scale=None):
    """One head at a time: make each key and each value, compare, blend. Arrays have heads and no batch axis."""
    heads, n, width = q.shape
    groups, m, _ = c.shape
    out = np.zeros((heads, n, w_v.shape[-1]))
    scale = 1 / math.sqrt(width) if scale is None else scale
    for h in range(heads):
        latent = c[h // (heads // groups)]
        keys = [[*(latent[j] @ w_k[h]), *k_rot[0, j]] for j in range(m)]
        for i in range(n):
            read = [j for j in range(m) if allowed is None or allowed[i, j]]
            powers = [math.exp(scale * math.fsum(a * b for a, b in zip(q[h, i], keys[j], strict=True))) for j in read]
            for j, power in zip(read, powers, strict=True):
                out[h, i] += power / math.fsum(powers) * (latent[j] @ w_v[h])
    return out


def draw(rng, heads=4, groups=1, n=3, m=5, batch=()):
    """q, c, k_rot, w_k and w_v with r = 3, d = 3, d_R = 2 and e = 2."""
    shapes = ((heads, n, 5), (groups, m, 3), (1, m, 2), (heads, 3, 3), (heads, 3, 2))
    return [rng.normal(size=(*batch, *shape)) for shape in shapes]


class TestLatentAttention:
    @FORMS
    @given(st.sampled_from([(1, 1), (4, 1), (4, 2), (6, 3), (3, 3)]), st.integers(0, 4), st.integers(1, 5))
    def test_is_the_loop(self, form, heads_and_groups, n, m):
        rng = np.random.default_rng([*heads_and_groups, n, m])
        arrays, allowed = draw(rng, *heads_and_groups, n, m), rng.random((n, m)) < 0.7
        np.testing.assert_allclose(form(*arrays), loop(*arrays), rtol=1e-11, atol=1e-12)
        masked = loop(*arrays, allowed, 0.7)
        np.testing.assert_allclose(form(*arrays, mask=allowed, scale=0.7), masked, rtol=1e-11, atol=1e-12)

    @FORMS
    def test_by_hand(self, xp, form):
        # scores: head 0 compares 2 log 2 with 0 and log 2, so its weights are 4/7, 1/7, 2/7; head 1 has equal ones
        q = xp.asarray([[[math.log(2), 0.0]], [[0.0, 0.0]]])
        c, k_rot = xp.asarray([[2.0], [0.0], [1.0]]), xp.asarray([[1.0], [1.0], [1.0]])
        w_k, w_v = xp.asarray([[[1.0]], [[5.0]]]), xp.asarray([[[7.0]], [[-1.0]]])
        xp.check(form(q, c, k_rot, w_k, w_v, scale=1.0), [[[10.0]], [[-1.0]]])

    @FORMS
    @claims("H04")
    def test_case_h04(self, case, form):
        given, expected = case("H04")["inputs"], case("H04")["expected"]
        arrays = [np.asarray(given[name]) for name in ("q", "c_kv", "k_rope", "W_uk", "W_uv")]
        np.testing.assert_allclose(form(*arrays), expected["out"], rtol=1e-11)
        np.testing.assert_allclose(absorb_queries(arrays[0], arrays[3]), expected["q_absorbed"], rtol=1e-12)
        width = arrays[1].shape[-1] + arrays[2].shape[-1]
        wrong = case("H04")["wrong"]["scale_from_absorbed_width"]["out"]
        np.testing.assert_allclose(form(*arrays, scale=width**-0.5), wrong, rtol=1e-11)

    @claims("H04")
    @pytest.mark.parametrize(("groups", "batch"), [(1, ()), (2, (2,)), (4, (3, 1))], ids=str)
    def test_both_orders_of_the_products_agree(self, xp, groups, batch):
        arrays = [xp.asarray(a) for a in draw(np.random.default_rng(1), 4, groups, batch=batch)]
        allowed = xp.asarray(np.random.default_rng(2).random((4, 3, 5)) < 0.6, "bool")
        for options in ({}, {"scale": 0.2, "mask": allowed}):
            naive = xp.quick(lambda *a, o=options: latent_attention(*a, **o))(*arrays)
            absorbed = xp.quick(lambda *a, o=options: absorbed_latent_attention(*a, **o))(*arrays)
            xp.check(absorbed, xp.numpy(naive), tolerance=xp.tolerance)

    @pytest.mark.parametrize("form", [latent_attention, absorbed_latent_attention])
    def test_agrees_with_deepseek(self, agree, form):
        fixture = frozen("transformers_deepseek_v3")
        q, c, k_rot = (np.moveaxis(fixture[name].reshape(2, 5, heads, -1), 2, 1) for name, heads in HEADS)
        w = fixture["kv_b_proj"].reshape(3, 5, 6).mT  # each head: three columns of keys, two of values
        q, k_rot = np.concat([q[..., :3], turned(q[..., 3:], fixture["angles"])], -1), turned(k_rot, fixture["angles"])
        out = form(q, c, k_rot, w[..., :3], w[..., 3:], mask=np.tri(5, dtype=bool))
        agree(
            np.moveaxis(out, 1, 2).reshape(2, 5, 6),
            fixture["out"],
            function=f"heads.{form.__name__}",
            stranger="transformers, attention of DeepSeek-V3",
            version=fixture.version,
            dtype="float64",
        )

    def test_deepseek_keeps_what_comes_after_the_norm(self):
        fixture = frozen("transformers_deepseek_v3")
        before = fixture["before_norm"]
        weight = fixture["c"] / (before / np.sqrt(np.mean(before**2, axis=-1, keepdims=True)))
        np.testing.assert_allclose(weight, np.broadcast_to(weight[:1, :1], weight.shape), rtol=1e-5)

    @FORMS
    def test_agrees_with_torch_on_the_heads_that_are_meant(self, torch, agree, form):
        q, c, k_rot, w_k, w_v = draw(np.random.default_rng(3), 4, 2, batch=(2,))
        k = np.concat([np.repeat(c, 2, axis=-3) @ w_k, np.repeat(k_rot, 4, axis=-3)], -1)
        theirs = torch.nn.functional.scaled_dot_product_attention(
            *(torch.tensor(a) for a in (q, k, np.repeat(c, 2, axis=-3) @ w_v))
        )
        agree(
            form(q, c, k_rot, w_k, w_v),
            theirs.numpy(),
            function=f"heads.{form.__name__}",
            stranger="torch scaled_dot_product_attention, two latents for four heads",
            version=f"torch {torch.__version__.partition('+')[0]}",
            dtype="float64",
        )

    @FORMS
    @pytest.mark.parametrize(("n", "m"), [(6, 6), (1, 40), (40, 40)])
    def test_products_are_as_many_as_the_docstring_says(self, torch, form, n, m):
        from torch.utils.flop_counter import FlopCounterMode

        heads, r, d, rotated, e = 4, 3, 3, 2, 2
        naive = heads * (m * r * (d + e) + n * m * (d + rotated + e))
        absorbed = heads * (n * r * (d + e) + n * m * (2 * r + rotated))
        with FlopCounterMode(display=False) as counter:
            form(*(torch.tensor(a) for a in draw(np.random.default_rng(4), heads, 1, n, m)))
        assert counter.get_total_flops() == 2 * (naive if form is latent_attention else absorbed)

    @FORMS
    def test_decoding_with_a_cache_is_the_full_pass(self, xp, form):
        q, c, k_rot, w_k, w_v = (xp.asarray(a) for a in draw(np.random.default_rng(5), n=3, m=3))
        step = xp.quick(form)
        whole = xp.numpy(step(q, c, k_rot, w_k, w_v, mask=xp.asarray(np.tri(3), "bool")))
        steps = [xp.numpy(step(q[:, i : i + 1, :], c[:, : i + 1, :], k_rot[:, : i + 1, :], w_k, w_v)) for i in range(3)]
        np.testing.assert_allclose(np.concat(steps, axis=1), whole, rtol=xp.tolerance, atol=xp.tolerance)

    def test_heads_with_another_normalizer(self, xp):
        q, c, k_rot, w_k, w_v = (xp.asarray(a) for a in draw(np.random.default_rng(6)))
        normalize, scale = sink_softmax(xp.asarray(0.4)), scaled_dot(scale=5**-0.5)
        naive = attention(q, *latent_heads(c, k_rot, w_k, w_v), normalize=normalize)
        keys = xp.asarray(np.concat([xp.numpy(c), xp.numpy(k_rot)], -1))
        absorbed = attention(absorb_queries(q, w_k), keys, c, score=scale, normalize=normalize) @ w_v
        xp.check(absorbed, xp.numpy(naive), tolerance=xp.tolerance)

    @FORMS
    def test_one_head_without_head_axes(self, xp, form):
        q, c, k_rot, w_k, w_v = draw(np.random.default_rng(7), heads=1)
        with_axes, run = loop(q, c, k_rot, w_k, w_v), xp.quick(form)
        xp.check(run(*(xp.asarray(a[0]) for a in (q, c, k_rot, w_k, w_v))), with_axes[0], tolerance=xp.tolerance)
        mask = xp.asarray(np.eye(3, 5), "bool")
        alone = run(*(xp.asarray(a[0]) for a in (q, c, k_rot, w_k, w_v)), mask=mask)
        xp.check(alone, c[0][:3] @ w_v[0], tolerance=xp.tolerance)

    @FORMS
    def test_identities_are_multi_query_attention(self, form):
        rng, eye = np.random.default_rng(8), np.broadcast_to(np.eye(3), (4, 3, 3))
        q, c = rng.normal(size=(4, 2, 3)), rng.normal(size=(1, 5, 3))
        ours = form(q, c, np.zeros((1, 5, 0)), eye, eye)
        np.testing.assert_allclose(ours, attention(q, c, c), rtol=1e-12)

    @FORMS
    def test_nothing_to_read_and_nobody_to_read(self, xp, form):
        rng, run = np.random.default_rng(9), xp.quick(form)
        for n, m in xp.some([(0, 5), (3, 0), (0, 0)]):
            xp.check(run(*(xp.asarray(a) for a in draw(rng, n=n, m=m))), np.zeros((4, n, 2)))
        arrays = [xp.asarray(a) for a in draw(rng)]
        xp.check(run(*arrays, mask=xp.asarray(np.zeros((3, 5)), "bool")), np.zeros((4, 3, 2)))

    @FORMS
    def test_gradients(self, autograd, form):
        rng = np.random.default_rng(10)
        arrays, g, allowed = draw(rng, 2, 1, 2, 3), rng.normal(size=(2, 2, 2)), np.array([[1, 0, 1], [0, 0, 0]]) > 0
        expected = finite_differences(lambda *a: form(*a, mask=allowed), g, *arrays)
        mask = autograd.asarray(allowed, "bool")
        found = autograd.vjp(lambda *a: form(*a, mask=mask), *(autograd.asarray(a) for a in (g, *arrays)))
        for one, two in zip(found, expected, strict=True):
            autograd.check(one, two, tolerance=1e-8)

    @FORMS
    @pytest.mark.parametrize("bad", [NAN, INF])
    def test_a_hidden_latent_leaves_gradients_finite(self, autograd, form, bad):
        rng = np.random.default_rng(11)
        arrays, g, allowed = draw(rng, 4, 2), rng.normal(size=(4, 3, 2)), np.ones((4, 3, 5), dtype=bool)
        allowed[:2, :, 1] = allowed[:, :, 3] = False  # item 1 is hidden from the first group alone
        mask = autograd.asarray(allowed, "bool")

        def gradients(spoiled):
            given = [autograd.asarray(a) for a in (g, *spoiled)]
            return [autograd.numpy(a) for a in autograd.vjp(lambda *a: form(*a, mask=mask), *given)]

        clean = gradients(arrays)
        arrays[1][0, 1] = arrays[1][:, 3] = arrays[2][0, 3] = bad
        for ours, before in zip(gradients(arrays), clean, strict=True):
            np.testing.assert_allclose(ours, before, rtol=1e-12)

    @FORMS
    def test_thousands_of_items_and_half_precision(self, xp, form):
        for dtype in ("float32", *xp.narrow_dtypes):
            q, k_rot = (xp.asarray(np.zeros(shape), dtype) for shape in ((2, 1, 2), (4096, 1)))
            c, w = xp.asarray(np.ones((4096, 1)), dtype), xp.asarray([[[3.0]], [[5.0]]], dtype)
            xp.check(form(q, c, k_rot, w, w), [[[3.0]], [[5.0]]], dtype=dtype)

    @FORMS
    def test_bad_input(self, xp, other, form):
        q, c, k_rot, w_k, w_v = (xp.asarray(a) for a in draw(np.random.default_rng(12), 4, 2))
        for arrays, message in (
            ((q[:, :, :4], c, k_rot, w_k, w_v), r"q has 4 columns.* 3 for w_k and 2 for k_rot"),
            ((q, c[:, :, :2], k_rot, w_k, w_v), r"w_k has 3 rows, c has 2 columns"),
            ((q, c, k_rot, w_k, w_v[:, :2, :]), r"w_v has 2 rows, c has 3 columns"),
            ((q, c, k_rot[:, :4, :], w_k, w_v), r"c has 5 items, k_rot has 4"),
            ((q[:2, :, :], c, k_rot, w_k, w_v), r"w_k has 4 heads, q has 2"),
            ((q, c, k_rot, w_k, w_v[:2, :, :]), r"w_v has 2 heads, q has 4"),
            ((q[0, 0, :], c, k_rot, w_k, w_v), r"q has shape \(5,\)"),
            ((q[0, :, :], c[:1, :, :], k_rot, w_k, w_v), r"q has shape \(3, 5\)"),
            ((q, c[0, 0, :], k_rot, w_k, w_v), r"c has shape \(3,\)"),
            ((q, c, k_rot[0, 0, :], w_k, w_v), r"k_rot has shape \(2,\)"),
            ((q, c, k_rot, w_k[0, 0, :], w_v), r"w_k has shape \(3,\)"),
        ):
            with pytest.raises(ValueError, match=message):
                form(*arrays)
        three = xp.asarray(np.ones((3, 5, 3)))
        for mask in (None, xp.asarray(np.ones((3, 5)), "bool")):
            with pytest.raises(ValueError, match="c has 3 heads, which does not divide q's 4"):
                form(q, three, k_rot, w_k, w_v, mask=mask)
            with pytest.raises(ValueError, match="k_rot has 3 heads, which does not divide q's 4"):
                form(q, c, three[:, :, :2], w_k, w_v, mask=mask)
        with pytest.raises(ValueError, match=r"mask.*\(2, 5\)"):
            form(q, c, k_rot, w_k, w_v, mask=xp.asarray(np.ones((2, 5)), "bool"))
        with pytest.raises(ValueError, match="scale"):
            form(q, c, k_rot, w_k, w_v, scale=INF)
        with pytest.raises(TypeError, match="scale"):
            form(q, c, k_rot, w_k, w_v, scale="one")
        with pytest.raises(TypeError, match="mask"):
            form(q, c, k_rot, w_k, w_v, mask=q)
        with pytest.raises(TypeError, match="w_v"):
            form(q, c, k_rot, w_k, other.asarray(np.ones((4, 3, 2))))
        with pytest.raises(TypeError, match="c must be an array"):
            form(q, [[1.0]], k_rot, w_k, w_v)


HEADS = (("q", 3), ("c", 1), ("k_rot", 1))


def turned(x, angles):
    """Each pair of neighbors turned by its angle, as complex numbers."""
    return (x.view(np.complex128) * np.exp(1j * angles)).view(np.float64)


class TestAbsorbedLatentAttention:
    def test_is_multi_query_attention_over_what_is_kept(self):
        q, c, k_rot, w_k, w_v = draw(np.random.default_rng(13))
        kept = np.concat([c, k_rot], -1)
        assert kept.size == 5 * (3 + 2)
        queries = np.concat([q[..., :3] @ w_k.mT, q[..., 3:]], -1)
        blend = attention(queries, kept, kept[..., :3], score=scaled_dot(scale=5**-0.5))
        np.testing.assert_allclose(absorbed_latent_attention(q, c, k_rot, w_k, w_v), blend @ w_v, rtol=1e-12)


class TestAbsorbQueries:
    def test_scores_stay_the_same(self, xp):
        q, c, k_rot, w_k, w_v = (xp.asarray(a) for a in draw(np.random.default_rng(14)))
        k, _ = latent_heads(c, k_rot, w_k, w_v)
        ours = xp.numpy(absorb_queries(q, w_k)) @ np.concat([xp.numpy(c), xp.numpy(k_rot)], -1).mT
        np.testing.assert_allclose(ours, xp.numpy(q) @ xp.numpy(k).mT, rtol=1e-11, atol=1e-11)

    def test_bad_input(self, xp):
        with pytest.raises(ValueError, match=r"q has 2 columns, w_k makes keys of 3"):
            absorb_queries(xp.asarray(np.ones((1, 2))), xp.asarray(np.ones((4, 3))))
        with pytest.raises(ValueError, match=r"leading axes.*q has \(2,\), w_k has \(3,\)"):
            absorb_queries(xp.asarray(np.ones((2, 1, 3))), xp.asarray(np.ones((3, 4, 3))))
        for name, shapes in (("q", ((3,), (4, 3))), ("w_k", ((1, 3), (3,)))):
            with pytest.raises(ValueError, match=rf"{name} has shape \(3,\)"):
                absorb_queries(*(xp.asarray(np.ones(shape)) for shape in shapes))


class TestLatentHeads:
    def test_by_hand(self, xp):
        c, k_rot = xp.asarray([[[1.0, 2.0]], [[3.0, 4.0]]]), xp.asarray([[9.0]])
        w = np.arange(8.0).reshape(4, 2, 1)
        k, v = latent_heads(c, k_rot, xp.asarray(w), xp.asarray(10 * w))
        content = [2.0, 8.0, 32.0, 46.0]  # latent h // 2: 0 + 2, 2 + 6; 12 + 20, 18 + 28
        xp.check(k, [[[x, 9.0]] for x in content])
        xp.check(v, [[[10 * x]] for x in content])

    def test_batches_broadcast(self, xp):
        rng = np.random.default_rng(15)
        c, k_rot, w = rng.normal(size=(2, 1, 5, 3)), rng.normal(size=(1, 5, 2)), rng.normal(size=(4, 3, 3))
        k, v = latent_heads(*map(xp.asarray, (c, k_rot, w, w)))
        whole = np.concat([c @ w, np.broadcast_to(k_rot, (2, 4, 5, 2))], -1)
        xp.check(k, whole, tolerance=1e-11)
        xp.check(v, c @ w, tolerance=1e-11)

    def test_bad_input(self, xp):
        c, k_rot, w = (xp.asarray(np.ones(shape)) for shape in ((1, 5, 3), (1, 5, 2), (4, 3, 3)))
        with pytest.raises(ValueError, match=r"c has 5 items, k_rot has 4"):
            latent_heads(c, k_rot[:, :4, :], w, w)
        with pytest.raises(ValueError, match=r"c has \(4,\), k_rot has \(2,\)"):
            latent_heads(c, xp.asarray(np.ones((2, 5, 2))), w, w)
        with pytest.raises(ValueError, match=r"w has 3 rows, c has 2 columns"):
            latent_heads(c[:, :, :2], k_rot, w, w)
        with pytest.raises(ValueError, match=r"k_rot has shape \(2,\)"):
            latent_heads(c, k_rot[0, 0, :], w, w)


class TestExpandLatent:
    @given(st.sampled_from([(1, 1), (4, 1), (4, 2), (6, 3)]), st.integers(0, 3))
    def test_is_the_loop(self, heads_and_groups, m):
        heads, groups = heads_and_groups
        rng = np.random.default_rng([heads, groups, m])
        c, w = rng.normal(size=(groups, m, 3)), rng.normal(size=(heads, 3, 2))
        expected = np.stack([c[h // (heads // groups)] @ w[h] for h in range(heads)])
        np.testing.assert_allclose(expand_latent(c, w), expected, rtol=1e-12)

    def test_without_head_axes(self, xp):
        c, w = xp.asarray([[1.0, 2.0]]), xp.asarray([[3.0], [4.0]])
        xp.check(expand_latent(c, w), [[11.0]])
        xp.check(expand_latent(c, w[None, ...]), [[[11.0]]])
        xp.check(expand_latent(c[None, ...], w), [[[11.0]]])

    def test_wide_queries_of_multi_matrix_factorization(self):
        rng = np.random.default_rng(16)
        x, s, w = rng.normal(size=(5, 6)), rng.normal(size=(6, 3)), rng.normal(size=(4, 3, 8))
        k, v = rng.normal(size=(5, 8)), rng.normal(size=(5, 8))
        ours = attention(expand_latent(x @ s, w), k, v)
        for h in range(4):  # each head has a projection of its own, of rank three
            np.testing.assert_allclose(ours[h], attention(x @ (s @ w[h]), k, v), rtol=1e-11)

    def test_bad_input(self, xp):
        c, w = xp.asarray(np.ones((3, 5, 2))), xp.asarray(np.ones((4, 2, 2)))
        with pytest.raises(ValueError, match="c has 3 heads, which does not divide w's 4"):
            expand_latent(c, w)
        with pytest.raises(ValueError, match="c has 0 heads"):
            expand_latent(c[:0, :, :], w)
        with pytest.raises(ValueError, match="w has 2 rows, c has 1 columns"):
            expand_latent(c[:1, :, :1], w)
        with pytest.raises(ValueError, match="w has 2 rows, c has 1 columns"):
            expand_latent(c[0, :, :1], w)
        with pytest.raises(ValueError, match=r"c has shape \(2,\)"):
            expand_latent(c[0, 0, :], w)


class TestTensorProductHeads:
    @given(st.integers(1, 3), st.integers(0, 3))
    def test_is_the_loop(self, terms, n):
        rng = np.random.default_rng([terms, n])
        a, b = rng.normal(size=(n, terms, 4)), rng.normal(size=(n, terms, 2))
        expected = np.zeros((4, n, 2))
        for h in range(4):
            for i in range(n):
                for term in range(terms):
                    expected[h, i] += a[i, term, h] * b[i, term] / terms
        np.testing.assert_allclose(tensor_product_heads(a, b), expected, rtol=1e-12, atol=1e-14)

    def test_special_cases(self, xp):
        rng = np.random.default_rng(17)
        x = rng.normal(size=(5, 4, 3))  # five items of four heads
        own = tensor_product_heads(xp.asarray(4 * np.eye(4)), xp.asarray(x))
        xp.check(own, np.moveaxis(x, 1, 0), tolerance=1e-11)
        groups = 2 * np.kron(np.eye(2), np.ones((1, 2)))
        grouped = tensor_product_heads(xp.asarray(groups), xp.asarray(x[:, :2]))
        xp.check(grouped, np.repeat(np.moveaxis(x[:, :2], 1, 0), 2, axis=0), tolerance=1e-11)
        shared = tensor_product_heads(xp.asarray(np.ones((1, 4))), xp.asarray(x[:, :1]))
        xp.check(shared, np.repeat(np.moveaxis(x[:, :1], 1, 0), 4, axis=0), tolerance=1e-11)

    def test_grouped_factors_give_grouped_query_attention_of_torch(self, torch, agree):
        rng = np.random.default_rng(18)
        q, b_k, b_v = rng.normal(size=(4, 3, 4)), rng.normal(size=(5, 2, 4)), rng.normal(size=(5, 2, 4))
        groups = 2 * np.kron(np.eye(2), np.ones((1, 2)))
        ours = attention(q, tensor_product_heads(groups, b_k), tensor_product_heads(groups, b_v))
        k, v = (torch.tensor(np.moveaxis(b, 1, 0).copy())[None] for b in (b_k, b_v))
        theirs = torch.nn.functional.scaled_dot_product_attention(torch.tensor(q)[None], k, v, enable_gqa=True)
        agree(
            ours,
            theirs[0].numpy(),
            function="heads.tensor_product_heads",
            stranger="torch scaled_dot_product_attention, enable_gqa",
            version=f"torch {torch.__version__.partition('+')[0]}",
            dtype="float64",
        )

    def test_the_rank_is_that_of_the_terms(self):
        rng = np.random.default_rng(19)
        x = tensor_product_heads(rng.normal(size=(6, 2, 5)), rng.normal(size=(6, 2, 7)))
        assert {int(np.linalg.matrix_rank(x[:, i])) for i in range(6)} == {2}

    def test_turning_the_terms_turns_the_heads(self):
        rng, angles = np.random.default_rng(20), np.arange(6)[:, None] * np.array([1.0, 0.1])
        a, b = rng.normal(size=(6, 2, 3)), rng.normal(size=(6, 2, 4))
        before = tensor_product_heads(a, turned(b, angles[:, None]))
        after = turned(np.ascontiguousarray(tensor_product_heads(a, b)), angles)
        np.testing.assert_allclose(before, after, rtol=1e-12, atol=1e-14)

    def test_gradients(self, autograd):
        rng = np.random.default_rng(21)
        g, a, b = rng.normal(size=(3, 2, 2)), rng.normal(size=(2, 2, 3)), rng.normal(size=(2, 2, 2))
        expected = finite_differences(tensor_product_heads, g, a, b)
        found = autograd.vjp(tensor_product_heads, *map(autograd.asarray, (g, a, b)))
        for one, two in zip(found, expected, strict=True):
            autograd.check(one, two, tolerance=1e-8)

    def test_bad_input(self, xp):
        for a, b, message in (
            ((5, 2, 4), (5, 3, 4), "a has 2 terms, b has 3"),
            ((5, 0, 4), (5, 0, 4), r"b has shape \(5, 0, 4\).*at least one term"),
            ((4, 2, 4), (5, 2, 4), r"a has \(4,\), b has \(5,\)"),
            ((4,), (5, 2, 4), r"a has shape \(4,\)"),
            ((2, 4), (2, 4), r"b has shape \(2, 4\)"),
        ):
            with pytest.raises(ValueError, match=message):
                tensor_product_heads(xp.asarray(np.ones(a)), xp.asarray(np.ones(b)))


class TestTiedHeads:
    def test_by_hand(self, xp):
        kv, k_rot = xp.asarray([[[1.0, 2.0, 3.0]], [[4.0, 5.0, 6.0]]]), xp.asarray([[[8.0, 9.0]]])
        k, v = tied_heads(kv, k_rot)
        xp.check(k, [[[1.0, 8.0, 9.0]], [[4.0, 8.0, 9.0]]])
        xp.check(v, xp.numpy(kv))

    def test_corners(self, xp):
        kv = xp.asarray(np.random.default_rng(22).normal(size=(2, 5, 4)))
        k, v = tied_heads(kv, xp.asarray(np.zeros((1, 5, 0))))
        xp.check(k, xp.numpy(v))
        k, _ = tied_heads(kv, xp.asarray(np.ones((5, 4))))
        xp.check(k, np.ones((2, 5, 4)))

    def test_decoding_with_a_cache_is_the_full_pass(self):
        rng = np.random.default_rng(23)
        q, kv, k_rot = rng.normal(size=(4, 5, 4)), rng.normal(size=(2, 5, 4)), rng.normal(size=(1, 5, 2))
        whole = attention(q, *tied_heads(kv, k_rot), mask=np.tri(5, dtype=bool))
        for i in range(5):
            step = attention(q[:, i : i + 1], *tied_heads(kv[:, : i + 1], k_rot[:, : i + 1]))
            np.testing.assert_allclose(step, whole[:, i : i + 1], rtol=1e-12)

    def test_bad_input(self, xp):
        kv, k_rot = xp.asarray(np.ones((2, 5, 4))), xp.asarray(np.ones((1, 5, 2)))
        with pytest.raises(ValueError, match="k_rot has 5 columns, kv has 4"):
            tied_heads(kv, xp.asarray(np.ones((1, 5, 5))))
        with pytest.raises(ValueError, match="kv has 5 items, k_rot has 3"):
            tied_heads(kv, k_rot[:, :3, :])
        with pytest.raises(ValueError, match=r"kv has \(2,\), k_rot has \(3,\)"):
            tied_heads(kv, xp.asarray(np.ones((3, 5, 2))))
        with pytest.raises(ValueError, match=r"kv has shape \(4,\)"):
            tied_heads(kv[0, 0, :], k_rot)


class TestReusedValues:
    def test_by_hand(self, xp):
        k, w = xp.asarray([[1.0, 2.0]]), xp.asarray([[1.0, 3.0], [2.0, 4.0]])  # k w = 5, 11
        xp.check(reused_values(k, w, xp.asarray([0.0, 10.0])), [[1.0, 112.0]])
        xp.check(reused_values(k, w, xp.asarray([0.0, 0.0])), [[1.0, 2.0]])

    def test_each_head_may_have_its_own(self):
        rng = np.random.default_rng(24)
        k, w, alpha = rng.normal(size=(2, 5, 3)), rng.normal(size=(2, 3, 3)), rng.normal(size=(2, 3))
        ours = reused_values(k, w, alpha)
        for h in range(2):
            np.testing.assert_allclose(ours[h], k[h] @ (np.eye(3) + w[h] * alpha[h]), rtol=1e-12)
        np.testing.assert_allclose(reused_values(k[0], w, alpha), k[0] + alpha[:, None] * (k[0] @ w), rtol=1e-12)

    def test_bad_input(self, xp):
        k, w, alpha = (xp.asarray(np.ones(shape)) for shape in ((5, 3), (3, 3), (3,)))
        for arrays, message in (
            ((k, w[:, :2], alpha), r"w has shape \(3, 2\); it must be \(3, 3\)"),
            ((k[:, :2], w, alpha), "w has 3 rows, k has 2 columns"),
            ((k, w, alpha[:2]), r"alpha has shape \(2,\)"),
            ((k, w, alpha[0]), r"alpha has shape \(\)"),
            ((k[0, :], w, alpha), r"k has shape \(3,\)"),
        ):
            with pytest.raises(ValueError, match=message):
                reused_values(*arrays)


@pytest.mark.parametrize(("name", "invariant"), held("heads/latent"))
def test_shared_invariants(xp, name, invariant):
    invariant(SUBJECTS[name], xp)
