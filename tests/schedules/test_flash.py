"""softlookup.schedules.flash: tiles of queries against tiles of keys, forward and backward."""

import math
import types

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from invariants import held
from libraries import finite_differences
from oracles.onnx_cases import attention_arguments, node_cases, onnx
from subjects import SUBJECTS

from softlookup.lookup import attention, attention_scores, attention_vjp, gaussian_score, log_sum_exp, scaled_dot
from softlookup.masks import causal, sliding_window
from softlookup.normalizers import sink_softmax, sink_softmax_vjp
from softlookup.schedules import (
    add_sink,
    flash_attention,
    flash_attention_by_keys,
    flash_attention_vjp,
    online_attention,
    partial_attention,
    split_attention,
)

INF, NAN = math.inf, math.nan
claims = pytest.mark.claims
TILES = [(1, 1), (2, 3), (3, 2), (4, 7), (9, 1), (1, 20)]
LOOPS = [flash_attention, flash_attention_by_keys]
both_loops = pytest.mark.parametrize("flash", LOOPS, ids=["by queries", "by keys"])


def random_arrays(seed, *shapes):
    rng = np.random.default_rng(seed)
    return [rng.normal(size=shape) for shape in shapes]


def version(module):
    return f"{module.__name__} {module.__version__.partition('+')[0]}"


def problem(seed=0, n=4, m=7):
    """Queries of four heads, keys and values of two, a mask with an empty row and empty tiles, a bias."""
    q, k, v, bias = random_arrays(seed, (4, n, 3), (2, m, 3), (2, m, 2), (4, n, m))
    mask = np.random.default_rng(seed + 1).random((4, n, m)) < 0.6
    mask[:, 0, :], mask[:, 1, : m // 2], mask[:, :, m // 2] = False, False, False
    return q, k, v, bias, mask


def loop(q, k, v, bias, mask, cap=None):
    """One query of one head in plain Python: its blend and the logarithm of its total."""
    read = []
    for k_j, v_j, b, allowed in zip(k, v, bias, mask, strict=True):
        if allowed:
            s = math.fsum(x * y for x, y in zip(q, k_j, strict=True)) / math.sqrt(len(q))
            read.append((math.exp((s if cap is None else cap * math.tanh(s / cap)) + b), v_j))
    total = math.fsum(e for e, _ in read)
    if total == 0:
        return [0.0] * v.shape[-1], -INF
    return [math.fsum(e * v_j[c] for e, v_j in read) / total for c in range(v.shape[-1])], math.log(total)


def some_tiles(xp, *tiles):
    """All of them, or the first where every new shape is compiled anew."""
    return tiles[:1] if xp.compiles else tiles


class TestFlashAttention:
    """Both orders of the loops are held to everything."""

    @both_loops
    @pytest.mark.parametrize("tiles", TILES)
    def test_flash_attention_is_the_loop_for_each_query(self, flash, tiles):
        q, k, v, bias, mask = problem()
        for cap in (None, 1.5):
            out, lse = flash(q, k, v, tiles=tiles, mask=mask, bias=bias, score=scaled_dot(cap=cap))
            for h in range(4):
                for i in range(4):
                    blend, level = loop(q[h, i], k[h // 2], v[h // 2], bias[h, i], mask[h, i], cap)
                    np.testing.assert_allclose(out[h, i], blend, rtol=1e-12, atol=1e-14)
                    np.testing.assert_allclose(lse[h, i], level, rtol=1e-12, atol=1e-14)

    def test_flash_attention_agrees_with_the_flash_kernel_of_torch(self, torch, agree):
        q, k, v, bias = random_arrays(2, (2, 4, 37, 16), (2, 2, 45, 16), (2, 2, 45, 16), (37, 45))
        mask = np.random.default_rng(3).random((37, 45)) < 0.4
        mask[:, 0] = True
        wide = [torch.tensor(a) for a in (q, np.repeat(k, 2, axis=1), np.repeat(v, 2, axis=1))]
        added = torch.tensor(np.where(mask, bias, -INF))
        kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
        theirs = {"plain": kernel(*wide), "masked": kernel(*wide, attn_mask=added, scale=0.3)}
        for tiles in ((8, 16), (37, 1), (64, 64)):
            ours = {
                "plain": flash_attention(q, k, v, tiles=tiles),
                "masked": flash_attention(q, k, v, tiles=tiles, mask=mask, bias=bias, score=scaled_dot(scale=0.3)),
            }
            for name, (out, lse) in ours.items():
                agree(
                    out,
                    theirs[name][0],
                    function="schedules.flash_attention",
                    stranger="torch, the flash kernel for the CPU, the output",
                    version=version(torch),
                    dtype="float64",
                )
                agree(
                    lse,
                    theirs[name][1],
                    function="schedules.flash_attention",
                    stranger="torch, the flash kernel for the CPU, the log-sum-exp",
                    version=version(torch),
                    dtype="float64",
                )

    def test_flash_attention_by_keys_agrees_with_the_backends_of_torch(self, torch, agree):
        from torch.nn.attention import SDPBackend, sdpa_kernel

        q, k, v, bias = random_arrays(4, (2, 4, 9, 16), (2, 2, 13, 16), (2, 2, 13, 16), (9, 13))
        for backend in (SDPBackend.MATH, SDPBackend.FLASH_ATTENTION):
            with sdpa_kernel(backend):
                theirs = torch.nn.functional.scaled_dot_product_attention(
                    *map(torch.tensor, (q, k, v)), attn_mask=torch.tensor(bias), enable_gqa=True
                )
            for tiles in ((4, 4), (1, 5), (16, 16)):
                agree(
                    flash_attention_by_keys(q, k, v, tiles=tiles, bias=bias)[0],
                    theirs,
                    function="schedules.flash_attention_by_keys",
                    stranger="torch scaled_dot_product_attention, math and flash",
                    version=version(torch),
                    dtype="float64",
                )

    def test_flash_attention_agrees_with_flex_attention(self, torch, agree, monkeypatch):
        """Cap, bias and mask in their order, grouped heads, and the log-sum-exp."""
        from torch.nn.attention import flex_attention as flex

        monkeypatch.setattr(flex, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)
        q, k, v, bias = random_arrays(5, (2, 4, 9, 16), (2, 2, 13, 16), (2, 2, 13, 16), (4, 9, 13))
        mask = np.array(sliding_window(np.arange(9) + 4, np.arange(13), left=3, right=0))
        mask[2] = False
        allowed, added = torch.tensor(mask), torch.tensor(bias)
        out, aux = flex.flex_attention(
            *map(torch.tensor, (q, k, v)),
            score_mod=lambda s, b, h, i, j: torch.where(allowed[i, j], 2 * torch.tanh(s / 2) + added[h, i, j], -INF),
            enable_gqa=True,
            return_aux=flex.AuxRequest(lse=True),
        )
        for tiles in ((4, 4), (2, 13)):
            ours = flash_attention(q, k, v, tiles=tiles, mask=mask, bias=bias, score=scaled_dot(cap=2.0))
            agree(
                ours[0],
                out,
                function="schedules.flash_attention",
                stranger="torch flex_attention with cap, bias and window, the output",
                version=version(torch),
                dtype="float64",
            )
            agree(
                ours[1],
                aux.lse,
                function="schedules.flash_attention",
                stranger="torch flex_attention with cap, bias and window, the log-sum-exp",
                version=version(torch),
                dtype="float64",
            )

    @pytest.mark.parametrize("node", node_cases("Attention"), ids=lambda node: node.name)
    def test_flash_attention_agrees_with_the_node_cases_of_onnx(self, node, agree):
        a = types.SimpleNamespace(**attention_arguments(node))
        score, theirs = scaled_dot(scale=a.scale, cap=a.cap), node.outputs["Y"]
        for flash, tiles in zip(LOOPS, ((3, 2), (2, 4)), strict=True):
            out, _ = flash(a.q, a.k, a.v, tiles=tiles, mask=a.mask, bias=a.bias, score=score)
            same_axes = out if theirs.ndim == 4 else out.swapaxes(-3, -2).reshape(theirs.shape)
            if flash is flash_attention:
                agree(
                    same_axes,
                    theirs,
                    function="schedules.flash_attention",
                    stranger="onnx node cases of Attention",
                    version=version(onnx),
                    dtype=str(node.inputs["Q"].dtype),
                )
            else:
                agree(
                    same_axes,
                    theirs,
                    function="schedules.flash_attention_by_keys",
                    stranger="onnx node cases of Attention",
                    version=version(onnx),
                    dtype=str(node.inputs["Q"].dtype),
                )

    @both_loops
    @pytest.mark.parametrize("tiles", [(2, 3), (9, 4)])
    def test_is_attention_under_every_library(self, xp, flash, tiles):
        q, k, v, bias, mask = problem(6)
        score = scaled_dot(scale=0.7, cap=2.0)
        arrays = [xp.asarray(a) for a in (q, k, v, bias)] + [xp.asarray(mask, "bool")]
        run = xp.quick(lambda q, k, v, bias, mask: flash(q, k, v, tiles=tiles, mask=mask, bias=bias, score=score))
        out, lse = run(*arrays)
        xp.check(out, attention(q, k, v, mask=mask, bias=bias, score=score))
        xp.check(lse, log_sum_exp(attention_scores(q, k, bias=bias, score=score), mask))

    @given(
        st.integers(0, 6),
        st.integers(0, 6),
        st.integers(1, 7),
        st.integers(1, 7),
        st.integers(0, 99),
        st.sampled_from("qkc"),
    )
    def test_both_loops_are_attention_for_all_sizes(self, n, m, rows, columns, seed, kind):
        q, k, v, bias = random_arrays(seed, (n, 3), (m, 3), (m, 2), (n, m))
        shape = {"q": (n, 1), "k": (m,), "c": (n, m)}[kind]
        mask = np.asarray(np.random.default_rng(seed).random(shape) < 0.6)
        expected = partial_attention(q, k, v, mask=mask, bias=bias)
        for flash in LOOPS:
            for ours, theirs in zip(flash(q, k, v, tiles=(rows, columns), mask=mask, bias=bias), expected, strict=True):
                np.testing.assert_allclose(ours, theirs, rtol=1e-11, atol=1e-13)

    @both_loops
    @pytest.mark.parametrize("shape", [(), (1,), (7,), (4, 1), (1, 7), (4, 7), (2, 1, 4, 1)], ids=str)
    def test_masks_and_biases_of_any_shape_that_broadcasts(self, flash, shape):
        q, k, v, bias = random_arrays(7, (2, 2, 4, 3), (2, 1, 7, 3), (1, 7, 2), shape)
        given = {"bias": np.asarray(bias), "mask": np.asarray(np.random.default_rng(8).random(shape) < 0.7)}
        ours = flash(q, k, v, tiles=(3, 2), **given)
        np.testing.assert_allclose(ours[0], attention(q, k, v, **given), rtol=1e-12, atol=1e-14)
        assert ours[1].shape == ours[0].shape[:-1]

    @both_loops
    def test_values_may_have_more_axes_than_keys(self, xp, flash):
        q, k, v = random_arrays(9, (4, 3), (5, 3), (3, 1, 5, 2))
        run = xp.quick(lambda q, k, v: flash(q, k, v, tiles=(3, 2)))
        out, lse = run(*map(xp.asarray, (q, k, v)))
        xp.check(out, attention(q, k, v))
        xp.check(lse, np.broadcast_to(log_sum_exp(q @ k.T / math.sqrt(3)), (3, 1, 4)))

    @both_loops
    @pytest.mark.parametrize(
        "shapes",
        [
            ((2, 1, 1, 4, 3), (3, 1, 5, 3), (3, 1, 5, 2)),
            ((4, 3), (2, 1, 5, 3), (5, 2)),
            ((2, 3, 1, 4, 3), (5, 3), (5, 2)),
            ((4, 3), (5, 3), (2, 3, 1, 5, 2)),
        ],
        ids=["both", "keys", "queries", "values"],
    )
    def test_leading_axes_broadcast(self, flash, shapes):
        q, k, v = random_arrays(17, *shapes)
        out, lse = flash(q, k, v, tiles=(3, 2))
        np.testing.assert_allclose(out, attention(q, k, v), rtol=1e-12)
        np.testing.assert_allclose(
            lse, np.broadcast_to(log_sum_exp(attention_scores(q, k)), out.shape[:-1]), rtol=1e-12
        )
        ours = flash_attention_vjp(q, k, v, tiles=(3, 2))(out, 0 * lse, out, lse)
        for one, two in zip(ours[:3], attention_vjp(out, q, k, v)[:3], strict=True):
            np.testing.assert_allclose(one, two, rtol=1e-11, atol=1e-13)

    @both_loops
    def test_with_another_score(self, flash):
        q, k, v, bias, mask = problem(10)
        score = gaussian_score(bandwidth=0.7)
        ours = flash(q, k, v, tiles=(3, 2), mask=mask, bias=bias, score=score)[0]
        np.testing.assert_allclose(ours, attention(q, k, v, mask=mask, bias=bias, score=score), rtol=1e-12)

    def test_a_score_gets_one_tile_at_a_time_in_the_order_of_the_loop(self):
        q, k, v, *_ = problem()
        q[..., 0], k[..., 0] = np.arange(4), np.arange(7)
        for flash, order in (
            (flash_attention, [(i, j) for i in (0, 3) for j in (0, 4)]),
            (flash_attention_by_keys, [(i, j) for j in (0, 4) for i in (0, 3)]),
        ):
            seen = []

            def score(q, k, seen=seen):
                seen.append((q[0, 0, 0], k[0, 0, 0], q.shape[-2], k.shape[-2]))
                return scaled_dot()(q, k)

            flash(q, k, v, tiles=(3, 4), score=score)
            assert seen == [(i, j, {0: 3, 3: 1}[i], {0: 4, 4: 3}[j]) for i, j in order]

    @both_loops
    def test_tiles_decide_nothing_but_rounding(self, flash):
        q, k, v, *_ = problem(11, 9, 8)
        one_row_of_tiles = flash(q, k, v, tiles=(9, 3))[0]
        np.testing.assert_allclose(one_row_of_tiles, online_attention(q, k, v, block=3), rtol=1e-13)
        np.testing.assert_allclose(one_row_of_tiles, split_attention(q, k, v, size=3), rtol=1e-13)
        narrow = [a.astype(np.float32) for a in random_arrays(12, (8, 16), (256, 16), (256, 8))]
        exact = attention(*(a.astype(np.float64) for a in narrow))
        for tiles in ((8, 256), (3, 100), (1, 1)):
            first, again = (flash(*narrow, tiles=tiles)[0] for _ in range(2))
            np.testing.assert_array_equal(first, again)
            assert first.dtype == np.float32
            assert np.abs(first - exact).max() < 1e-6

    @both_loops
    @pytest.mark.parametrize("shift", [-6, -2, 0, 3, 9])
    @pytest.mark.parametrize("left", [0, 2, 9])
    def test_causal_and_window_masks_are_cut(self, flash, shift, left):
        """With a shift to the past, the first rows read nothing and the later ones nothing of the first tiles."""
        q, k, v = random_arrays(13, (8, 3), (8, 3), (8, 2))
        places = np.arange(8)
        mask = causal(places + shift, places) & sliding_window(places + shift, places, left=left, right=0)
        for tiles in ((3, 3), (1, 2)):
            out, lse = flash(q, k, v, tiles=tiles, mask=mask)
            np.testing.assert_allclose(out, attention(q, k, v, mask=mask), rtol=1e-12, atol=1e-14)
            np.testing.assert_array_equal(np.isneginf(lse), ~mask.any(-1))

    @both_loops
    @claims("N09", "N10")
    def test_no_keys_and_no_queries_and_lengths_that_differ(self, flash, case, xp):
        for n, m, e in xp.some([(2, 0, 3), (0, 5, 3), (0, 0, 2), (2, 3, 0), (1, 1, 1)]):
            arrays = [xp.asarray(np.ones(shape)) for shape in ((n, 2), (m, 2), (m, e))]
            run = xp.quick(lambda q, k, v, bias: flash(q, k, v, tiles=(2, 2), bias=bias))
            out, lse = run(*arrays, xp.asarray(np.zeros((n, m))))
            xp.check(out, np.ones((n, e)) if m else np.zeros((n, e)))
            xp.check(lse, np.full(n, math.log(m) + math.sqrt(2) if m else -INF))
        shapes = case("N10")["inputs"]
        with pytest.raises(ValueError, match=r"k.*5.*v.*6"):
            flash(*(xp.asarray(np.ones(shapes[f"{x}_shape"])) for x in "qkv"), tiles=(2, 2))

    @both_loops
    @claims("N01", "N13")
    def test_numbers_that_overflow_half_precision_and_sharp_scores(self, flash, case, xp):
        c = case("N01")
        run = xp.quick(lambda q, k, v: flash(q, k, v, tiles=(1, 1)))
        for dtype in xp.narrow_dtypes:
            q, k, v = (xp.asarray(c["inputs"][x], dtype) for x in "qkv")
            out, lse = run(q, k, v)
            xp.check(out, c["expected"]["out"], dtype=dtype)
            assert xp.dtype_of(lse) == "float32"
            single = run(*(xp.asarray(xp.numpy(a), "float32") for a in (q, k, v)))
            xp.check(lse, xp.numpy(single[1]), dtype="float32", tolerance=0)
        q, k = xp.asarray([[1.0], [-1.0]]), np.array([[1e4], [-1e4], [9999.0], [0.0]])
        v, share = np.array([[1.0], [2.0], [3.0], [4.0]]), 1 / (1 + math.exp(-1))
        for order in some_tiles(xp, [3, 1, 2, 0], [0, 1, 2, 3], [1, 2, 3, 0]):
            out, lse = run(q, xp.asarray(k[order]), xp.asarray(v[order]))
            xp.check(out, [[share + 3 * (1 - share)], [2.0]])
            xp.check(lse, [1e4 + math.log1p(math.exp(-1)), 1e4])
        scores = case("N13")["inputs"]["scores"]
        out, lse = run(*(xp.asarray(a) for a in ([[1.0]], np.transpose(scores), np.eye(2))))
        xp.check(out, case("N13")["expected"]["weights"])
        xp.check(lse, case("N13")["expected"]["lse"])

    @both_loops
    def test_infinite_scores_and_biases(self, flash, xp):
        q, k = xp.asarray(np.ones((4, 1))), xp.asarray(np.zeros((4, 1)))
        v = xp.asarray([[1.0], [2.0], [3.0], [4.0]])
        bias = [[INF, 0.0, INF, 1.0], [-INF, -INF, 0.0, -INF], [-INF] * 4, [0.0, 0.0, 0.0, INF]]
        for tiles in some_tiles(xp, (4, 2), (2, 1), (1, 4)):
            run = xp.quick(lambda q, k, v, bias, tiles=tiles: flash(q, k, v, tiles=tiles, bias=bias))
            out, lse = run(q, k, v, xp.asarray(bias))
            xp.check(out, [[2.0], [3.0], [0.0], [4.0]])
            xp.check(lse, [INF, 0.0, -INF, INF])

    def test_infinite_scores_in_several_tiles_are_counted_only_by_the_loop_over_queries(self):
        q, k, v = np.ones((1, 1)), np.full((3, 1), INF), np.array([[0.0], [0.0], [6.0]])
        np.testing.assert_allclose(flash_attention(q, k, v, tiles=(1, 2))[0], attention(q, k, v))
        np.testing.assert_allclose(flash_attention_by_keys(q, k, v, tiles=(1, 2))[0], [[3.0]])

    @both_loops
    def test_a_nan_that_only_some_may_read_stays_with_them(self, flash, xp):
        q, k, v = random_arrays(14, (4, 2), (5, 2), (5, 1))
        k[1], v[1] = NAN, INF
        mask = np.ones((4, 5), dtype=bool)
        mask[:2, 1] = False
        for tiles in some_tiles(xp, (3, 2), (2, 1), (4, 5)):
            run = xp.quick(lambda q, k, v, mask, tiles=tiles: flash(q, k, v, tiles=tiles, mask=mask))
            out, lse = run(*map(xp.asarray, (q, k, v)), xp.asarray(mask, "bool"))
            expected = attention(q[:2], np.delete(k, 1, 0), np.delete(v, 1, 0))
            xp.check(out, [*expected, [NAN], [NAN]])
            assert np.isfinite(xp.numpy(lse)[:2]).all()

    @both_loops
    def test_arrays_that_are_not_contiguous(self, flash):
        """Every second number, backward, transposed, and one row for all."""
        q, k, v = random_arrays(15, (8, 12), (9, 6), (2, 9))
        q, k, v = q[::-2, ::2], k[:, ::-1], v.T
        bias = np.broadcast_to(np.arange(9.0), (4, 9))
        for a in (q, k, v):
            a.flags.writeable = False
        ours = flash(q, k, v, tiles=(3, 4), bias=bias)[0]
        np.testing.assert_allclose(ours, attention(q.copy(), k.copy(), v.copy(), bias=bias), rtol=1e-12)

    @both_loops
    def test_decoding_one_query_at_a_time_is_the_causal_pass(self, flash):
        q, k, v = random_arrays(16, (7, 3), (7, 3), (7, 2))
        full = flash(q, k, v, tiles=(3, 2), mask=np.tri(7, dtype=bool))
        for t in range(7):
            step = flash(q[t : t + 1], k[: t + 1], v[: t + 1], tiles=(3, 2))
            for one, all_rows in zip(step, full, strict=True):
                np.testing.assert_allclose(one[0], all_rows[t], rtol=1e-12)

    @both_loops
    def test_thousands_of_items(self, flash):
        out, lse = flash(np.ones((1, 4)), np.zeros((5000, 4)), np.arange(5000.0)[:, None], tiles=(64, 64))
        np.testing.assert_allclose(out, [[2499.5]])
        np.testing.assert_allclose(lse, [math.log(5000)])

    @both_loops
    def test_bad_input(self, flash, xp, other):
        q, k, v = (xp.asarray(np.ones(shape)) for shape in ((4, 3, 2), (2, 5, 2), (2, 5, 2)))
        for tiles in ((0, 2), (2, -1)):
            with pytest.raises(ValueError, match="tiles is .*positive"):
                flash(q, k, v, tiles=tiles)
        with pytest.raises(ValueError, match="tiles has 3 numbers"):
            flash(q, k, v, tiles=(1, 2, 3))
        for tiles in (2, (2.0, 2), None):
            with pytest.raises(TypeError, match="tiles must be"):
                flash(q, k, v, tiles=tiles)
        wrong = xp.asarray(np.ones((3, 4)))
        with pytest.raises(ValueError, match=r"bias.*\(3, 4\)"):
            flash(q, k, v, tiles=(2, 2), bias=wrong)
        with pytest.raises(ValueError, match=r"mask.*\(3, 4\)"):
            flash(q, k, v, tiles=(2, 2), mask=xp.asarray(np.ones((3, 4)), "bool"))
        with pytest.raises(TypeError, match="mask must be boolean"):
            flash(q, k, v, tiles=(2, 2), mask=xp.asarray(np.ones((3, 5))))
        with pytest.raises(ValueError, match="k has 3 heads"):
            flash(q, xp.asarray(np.ones((3, 5, 2))), v, tiles=(2, 2))
        with pytest.raises(ValueError, match="columns"):
            flash(q, k[..., :1], v, tiles=(2, 2))
        with pytest.raises(TypeError, match="one library"):
            flash(q, k, other.asarray(np.ones((2, 5, 2))), tiles=(2, 2))


class TestFlashAttentionVjp:
    def test_by_hand(self, xp):
        """Two keys of equal score with values 0 and 4: weights 1/2, output 2, D = 2, ds = (-1, 1)."""
        q, k, v, g = (xp.asarray(a) for a in ([[1.0]], [[1.0], [1.0]], [[0.0], [4.0]], [[1.0]]))
        out, lse = flash_attention(q, k, v, tiles=(1, 1))
        pull = flash_attention_vjp(q, k, v, tiles=(1, 1), bias=xp.asarray([[0.0, 0.0]]))
        dq, dk, dv, dbias, dsink = pull(g, xp.asarray([0.0]), out, lse)
        for ours, expected in ((dq, [[0.0]]), (dk, [[-1.0], [1.0]]), (dv, [[0.5], [0.5]]), (dbias, [[-1.0, 1.0]])):
            xp.check(ours, expected)
        assert dsink is None
        ours = pull(xp.asarray([[0.0]]), xp.asarray([1.0]), out, lse)  # of L alone: the weights
        for one, expected in zip(ours, ([[1.0]], [[0.5], [0.5]], [[0.0], [0.0]], [[0.5, 0.5]]), strict=False):
            xp.check(one, expected)

    def test_agrees_with_the_flash_kernel_of_torch(self, torch, agree):
        """Its backward gets the same output and log-sum-exp as ours."""
        q, k, v, g, bias = random_arrays(20, *[(2, 2, 33, 16)] * 4, (33, 33))
        mask = np.tri(33, dtype=bool)
        wide = [torch.tensor(a) for a in (q, k, v)]
        added = torch.tensor(np.where(mask, bias, -INF))
        ops = torch.ops.aten
        out, lse = ops._scaled_dot_product_flash_attention_for_cpu(*wide, attn_mask=added)
        theirs = ops._scaled_dot_product_flash_attention_for_cpu_backward(
            torch.tensor(g), *wide, out, lse, 0.0, False, attn_mask=added
        )
        for tiles in ((8, 16), (33, 1), (64, 64)):
            pull = flash_attention_vjp(q, k, v, tiles=tiles, mask=mask, bias=bias)
            ours = pull(g, np.zeros(lse.shape), out.numpy(), lse.numpy())
            for one, two in zip(ours, theirs, strict=False):
                agree(
                    one,
                    two,
                    function="schedules.flash_attention_vjp",
                    stranger="torch, the backward pass of the flash kernel for the CPU",
                    version=version(torch),
                    dtype="float64",
                )

    def test_agrees_with_the_autograd_of_torch(self, torch, agree):
        """Of a dense computation with cap, bias, causal mask, sink, grouped heads and a gradient of L, in one go."""
        q, k, v, bias, z, g, gl = random_arrays(
            21, (4, 6, 3), (2, 9, 3), (2, 9, 2), (4, 6, 9), (4, 1), (4, 6, 2), (4, 6)
        )
        mask = np.tri(6, 9, 2, dtype=bool)
        leaves = [torch.tensor(a, requires_grad=True) for a in (q, k, v, bias, z)]
        tq, tk, tv, tb, tz = leaves
        keys, values = (x.repeat_interleave(2, dim=0) for x in (tk, tv))
        s = 1.5 * torch.tanh(tq @ keys.mT / math.sqrt(3) / 1.5) + tb
        s = torch.where(torch.tensor(mask), s, -INF)
        level = torch.logsumexp(torch.cat([s, tz.expand(4, 6)[..., None]], dim=-1), dim=-1)
        out = torch.exp(s - level[..., None]) @ values
        loss = (torch.tensor(g) * out).sum() + (torch.tensor(gl) * level).sum()
        theirs = torch.autograd.grad(loss, leaves)
        score = scaled_dot(cap=1.5)
        for tiles in ((2, 4), (6, 1), (1, 9)):
            given = {"tiles": tiles, "mask": mask, "bias": bias, "score": score}
            ours_out, ours_lse = add_sink(*flash_attention(q, k, v, **given), z)
            np.testing.assert_allclose(ours_out, out.detach(), rtol=1e-12, atol=1e-14)
            for one, two in zip(
                flash_attention_vjp(q, k, v, **given)(g, gl, ours_out, ours_lse, z), theirs, strict=True
            ):
                agree(
                    one,
                    two,
                    function="schedules.flash_attention_vjp",
                    stranger="torch, autograd of a dense computation with everything at once",
                    version=version(torch),
                    dtype="float64",
                )

    @pytest.mark.parametrize("tiles", [(2, 4), (9, 9)])
    def test_is_attention_vjp_and_the_gradient_of_the_sink(self, xp, tiles):
        q, k, v, bias, mask = problem(22)
        g, z = random_arrays(23, (4, 4, 2), (4, 1))
        score = scaled_dot(cap=1.2)
        given = {"mask": mask, "bias": bias, "score": score}
        sunk = attention_vjp(g, q, k, v, **given, normalize=sink_softmax(z))
        s = attention_scores(q, k, bias=bias, score=score)
        dsink = sink_softmax_vjp(g @ np.repeat(v, 2, axis=0).mT, s, z, mask)[1]
        arrays = [xp.asarray(a) for a in (q, k, v, bias, g, np.zeros((4, 4)), z)] + [xp.asarray(mask, "bool")]

        def both(q, k, v, bias, g, no, z, mask):
            given = {"tiles": tiles, "mask": mask, "bias": bias, "score": score}
            out, lse = flash_attention(q, k, v, **given)
            pull = flash_attention_vjp(q, k, v, **given)
            return pull(g, no, out, lse)[:4], pull(g, no, *add_sink(out, lse, z), z)

        plain, with_sink = xp.quick(both)(*arrays)
        for ours, expected in zip(plain, attention_vjp(g, q, k, v, **given), strict=True):
            xp.check(ours, expected, tolerance=1e-11)
        for ours, expected in zip(with_sink, (*sunk, dsink), strict=True):
            xp.check(ours, expected, tolerance=1e-11)

    @both_loops
    def test_is_what_autograd_and_finite_differences_find(self, flash, autograd):
        """Of both results at once, with a mask that empties a row."""
        q, k, v, bias, z, g, gl = random_arrays(24, (3, 2), (4, 2), (4, 2), (3, 4), (3,), (3, 2), (3,))
        mask = np.array([[1, 1, 0, 0], [0, 1, 1, 1], [0, 0, 0, 0]], dtype=bool)
        given = {"tiles": (2, 3), "score": scaled_dot(cap=1.0)}
        hidden = autograd.asarray(mask, "bool")

        def results(q, k, v, bias, z, mask=hidden):
            return add_sink(*flash(q, k, v, mask=mask, bias=bias, **given), z)

        expected = [
            sum(pair)
            for pair in zip(
                finite_differences(lambda *a: results(*a, mask)[0], g, q, k, v, bias, z),
                finite_differences(lambda *a: results(*a, mask)[1], gl, q, k, v, bias, z),
                strict=True,
            )
        ]
        arrays = [autograd.asarray(a) for a in (q, k, v, bias, z)]
        by_out = autograd.vjp(lambda *a: results(*a)[0], autograd.asarray(g), *arrays)
        by_lse = autograd.vjp(lambda *a: results(*a)[1], autograd.asarray(gl), *arrays)

        def pulled(q, k, v, bias, z, g, gl):
            pull = flash_attention_vjp(q, k, v, mask=hidden, bias=bias, **given)
            return pull(g, gl, *results(q, k, v, bias, z), z)

        ours = autograd.quick(pulled)(*arrays, autograd.asarray(g), autograd.asarray(gl))
        for one, two, three, four in zip(ours, by_out, by_lse, expected, strict=True):
            autograd.check(one, four, tolerance=1e-8)
            autograd.check(one, autograd.numpy(two) + autograd.numpy(three), tolerance=1e-12)

    @pytest.mark.parametrize("shape", [(), (1,), (5,), (3, 1), (1, 5), (3, 5), (4, 1, 5), (2, 1, 1, 1)], ids=str)
    def test_a_bias_that_broadcasts_has_a_gradient_of_its_shape(self, shape):
        g, q, k, v, bias = random_arrays(25, (2, 4, 3, 2), (2, 4, 3, 2), (2, 2, 5, 2), (2, 1, 5, 2), shape)
        bias, mask = np.asarray(bias), np.random.default_rng(26).random((3, 5)) < 0.7
        for tiles in ((2, 2), (3, 5), (1, 4)):
            given = {"mask": mask, "bias": bias}
            out, lse = flash_attention(q, k, v, tiles=tiles, **given)
            ours = flash_attention_vjp(q, k, v, tiles=tiles, **given)(g, np.zeros(lse.shape), out, lse)
            for one, two in zip(ours, attention_vjp(g, q, k, v, **given), strict=False):
                np.testing.assert_allclose(one, two, rtol=1e-11, atol=1e-13)

    def test_leading_axes_that_broadcast(self):
        g, q, k, v = random_arrays(27, (3, 2, 4, 2), (4, 3), (2, 5, 3), (3, 1, 5, 2))
        q, gl, z = q[None], random_arrays(28, (3, 2, 4))[0], np.array(0.3)
        out, lse = flash_attention(q, k[:1], v, tiles=(2, 2))
        g, gl = g[:, :1], gl[:, :1]
        ours = flash_attention_vjp(q, k[:1], v, tiles=(2, 2))(g, gl, *add_sink(out, lse, z), z)
        expected = [
            sum(pair)
            for pair in zip(
                *(
                    finite_differences(
                        lambda q, k, v, z, part=part: add_sink(*flash_attention(q, k, v, tiles=(9, 9)), z)[part],
                        up,
                        q,
                        k[:1],
                        v,
                        z,
                    )
                    for part, up in ((0, g), (1, gl))
                ),
                strict=True,
            )
        ]
        for one, two in zip((*ours[:3], ours[4]), expected, strict=True):
            np.testing.assert_allclose(one, two, rtol=1e-6, atol=1e-8)

    def test_keys_may_be_a_part_of_those_that_were_read(self):
        """The gradients of the parts are the rows of the whole, and their shares of dq add up."""
        g, gl, q, k, v, bias = random_arrays(29, (3, 2), (3,), (3, 4), (6, 4), (6, 2), (3, 6))
        out, lse = flash_attention(q, k, v, tiles=(2, 2), bias=bias)
        whole = flash_attention_vjp(q, k, v, tiles=(2, 2), bias=bias)(g, gl, out, lse)
        parts = [
            flash_attention_vjp(q, k[c], v[c], tiles=(2, 2), bias=bias[:, c])(g, gl, out, lse)
            for c in (slice(0, 2), slice(2, 6))
        ]
        np.testing.assert_allclose(parts[0][0] + parts[1][0], whole[0], rtol=1e-12)
        for i, axis in ((1, 0), (2, 0), (3, 1)):
            np.testing.assert_allclose(np.concat([p[i] for p in parts], axis=axis), whole[i], rtol=1e-12)

    def test_a_hidden_key_reaches_no_gradient(self, xp):
        q, k, v, bias, mask = problem(30)
        g = random_arrays(31, (4, 4, 2))[0]
        expected = attention_vjp(g, q, k, v, mask=mask, bias=bias)

        def pulled(q, k, v, mask, bias, g, no):
            given = {"tiles": (3, 2), "mask": mask, "bias": bias}
            return flash_attention_vjp(q, k, v, **given)(g, no, *flash_attention(q, k, v, **given))[:4]

        run = xp.quick(pulled)
        for bad in (NAN, INF):
            k[:, 3], v[:, 3], bias[:, :, 3] = bad, bad, bad  # nobody reads it
            arrays = (
                *map(xp.asarray, (q, k, v)),
                xp.asarray(mask, "bool"),
                *map(xp.asarray, (bias, g, np.zeros((4, 4)))),
            )
            for one, two in zip(run(*arrays), expected, strict=True):
                xp.check(one, two)

    def test_values_that_only_some_may_read_spoil_no_other_query(self):
        q, k, v, g = random_arrays(32, (3, 2), (4, 2), (4, 2), (3, 2))
        v[1], mask = NAN, np.ones((3, 4), dtype=bool)
        mask[:2, 1] = False
        results = flash_attention(q, k, v, tiles=(1, 2), mask=mask)
        dq = flash_attention_vjp(q, k, v, tiles=(1, 2), mask=mask)(g, np.zeros(3), *results)[0]
        assert np.isfinite(dq[:2]).all()
        assert np.isnan(dq[2]).all()

    def test_infinite_scores(self, xp):
        """One infinite score has the whole budget and no slope."""
        q, k, v, g = (xp.asarray(np.ones(shape)) for shape in ((2, 1), (3, 1), (3, 1), (2, 1)))
        rows = ([0.0, INF, 1.0], [0, 1, 0]), ([-INF, 0.0, -INF], [0, 1, 0]), ([-INF] * 3, [0, 0, 0])

        def pulled(q, k, v, bias, g, no):
            given = {"tiles": (1, 2), "bias": bias}
            return flash_attention_vjp(q, k, v, **given)(g, no, *flash_attention(q, k, v, **given))[:4]

        run = xp.quick(pulled)
        for row, weights in rows:
            dq, dk, dv, dbias = run(q, k, v, xp.asarray([row, [-INF] * 3]), g, xp.asarray(np.zeros(2)))
            xp.check(dv, np.array(weights, dtype=float)[:, None])
            for zero in (dq, dk, dbias):
                xp.check(zero, np.zeros(zero.shape))

    def test_narrow_arrays_with_a_wide_log_sum_exp(self, xp):
        q, k, v, g = random_arrays(33, (3, 4), (5, 4), (5, 2), (3, 2))
        run = xp.quick(lambda q, k, v, *upper: flash_attention_vjp(q, k, v, tiles=(2, 2))(*upper)[:3])
        for dtype in xp.narrow_dtypes:
            arrays = [xp.asarray(a, dtype) for a in (q, k, v)]
            upper = xp.asarray(g, dtype)
            out, lse = flash_attention(*arrays, tiles=(2, 2))
            ours = run(*arrays, upper, 0 * lse, out, lse)
            single = [xp.asarray(xp.numpy(a), "float32") for a in (*arrays, upper, out)]
            expected = run(*single[:4], 0 * lse, single[4], lse)
            for one, two in zip(ours, expected, strict=True):
                xp.check(one, xp.numpy(xp.asarray(xp.numpy(two), dtype)), dtype=dtype, tolerance=0)

    def test_no_table_of_all_pairs(self):
        """What the score is asked for, forward and backward, is one tile at a time, and each tile once."""
        q, k, v, g = random_arrays(34, (10, 3), (9, 3), (9, 2), (10, 2))
        plain, seen = scaled_dot(), []

        def score(q, k):
            seen.append((q.shape[-2], k.shape[-2]))
            return plain(q, k)

        score.vjp = plain.vjp
        results = flash_attention(q, k, v, tiles=(4, 5), score=score)
        flash_attention_vjp(q, k, v, tiles=(4, 5), score=score)(g, np.zeros(10), *results)
        assert seen == [(i, j) for i in (4, 4, 2) for j in (5, 4)] + [(i, j) for j in (5, 4) for i in (4, 4, 2)]

    def test_no_keys_and_no_queries(self, xp):
        def pulled(q, k, v, bias, g, no):
            given = {"tiles": (2, 2), "bias": bias}
            return flash_attention_vjp(q, k, v, **given)(g, no, *flash_attention(q, k, v, **given))[:4]

        run = xp.quick(pulled)
        for n, m in xp.some([(0, 5), (4, 0), (0, 0), (4, 1)]):
            q, k, v, g = (xp.asarray(np.ones(shape)) for shape in ((n, 2), (m, 2), (m, 3), (n, 3)))
            ours = run(q, k, v, xp.asarray(np.zeros((1, m))), g, xp.asarray(np.zeros(n)))
            expected = np.zeros((n, 2)), np.zeros((m, 2)), np.full((m, 3), n), np.zeros((1, m))
            for one, two in zip(ours, expected, strict=True):
                xp.check(one, two)

    def test_the_same_tiles_give_the_same_bits_and_another_order_others(self):
        """In float32, each order of the tiles is within rounding of the gradient in float64."""
        wide = random_arrays(35, (64, 16), (64, 16), (64, 8), (64, 8))
        q, k, v, g = (a.astype(np.float32) for a in wide)
        out, lse = flash_attention(q, k, v, tiles=(16, 16))
        no = np.zeros_like(lse)
        exact = attention_vjp(*(a.astype(np.float64) for a in (g, q, k, v)))
        answers = []
        for tiles in ((16, 16), (16, 16), (8, 4), (64, 64)):
            grads = flash_attention_vjp(q, k, v, tiles=tiles)(g, no, out, lse)
            for one, two in zip(grads, exact[:3], strict=False):
                assert np.abs(one - two).max() < 1e-5
            answers.append(b"".join(x.tobytes() for x in grads[:3]))
        assert answers[0] == answers[1]
        assert len(set(answers)) == 3

    def test_bad_input(self, xp, other):
        q, k, v = (xp.asarray(np.ones(shape)) for shape in ((3, 2), (4, 2), (4, 5)))
        g, rows = xp.asarray(np.ones((3, 5))), xp.asarray(np.ones(3))
        with pytest.raises(TypeError, match="score has no attribute vjp"):
            flash_attention_vjp(q, k, v, tiles=(2, 2), score=lambda q, k: q @ k.mT)
        with pytest.raises(ValueError, match="tiles is 0"):
            flash_attention_vjp(q, k, v, tiles=(0, 2))
        with pytest.raises(TypeError, match="tiles"):
            flash_attention_vjp(q, k, v, tiles=2)
        pull = flash_attention_vjp(q, k, v, tiles=(2, 2))
        right = {"g_out": g, "g_lse": rows, "out": g, "lse": rows}
        for name, x in right.items():
            wrong = right | {name: x[:2, ...]}
            with pytest.raises(ValueError, match=rf"{name} has shape \(2,"):
                pull(*wrong.values())
            with pytest.raises(TypeError, match=rf"{name} must be an array"):
                pull(*(right | {name: [1.0]}).values())
            with pytest.raises(TypeError, match="one library"):
                pull(*(right | {name: other.asarray(np.ones(x.shape))}).values())
        with pytest.raises(ValueError, match=r"sink has shape \(4,\)"):
            pull(*right.values(), xp.asarray(np.ones(4)))
        with pytest.raises(ValueError, match="k has 4 items, v has 3"):
            flash_attention_vjp(q, k, v[:3, :], tiles=(2, 2))(*right.values())


class TestAddSink:
    def test_by_hand(self, xp):
        out, lse = add_sink(xp.asarray([[8.0], [0.0]]), xp.asarray([math.log(3), -INF]), xp.asarray(0.0))
        xp.check(out, [[6.0], [0.0]])
        xp.check(lse, [math.log(4), 0.0])

    @claims("S06")
    def test_case_s06(self, case, xp):
        given, expected = case("S06")["inputs"], case("S06")["expected"]
        results = flash_attention(*(xp.asarray(given[x]) for x in "qkv"), tiles=(1, 2))
        xp.check(results[1], expected["lse_without_sink"])
        out, lse = add_sink(*results, xp.asarray(given["sink"]))
        xp.check(out, expected["out"])
        xp.check(lse, expected["lse_with_sink"])

    @pytest.mark.parametrize("shape", [(), (4, 1), (4, 4), (1, 1, 1)], ids=str)
    def test_is_attention_with_the_sink_in_the_normalizer(self, xp, shape):
        q, k, v, bias, mask = problem(36)
        q, z = q[None], np.asarray(random_arrays(37, shape)[0])

        def run(q, k, v, mask, bias, z):
            return add_sink(*flash_attention(q, k, v, tiles=(3, 2), mask=mask, bias=bias), z)

        arrays = [*map(xp.asarray, (q, k, v)), xp.asarray(mask, "bool"), xp.asarray(bias), xp.asarray(z)]
        out, _ = xp.quick(run)(*arrays)
        xp.check(out, attention(q, k, v, mask=mask, bias=bias, normalize=sink_softmax(z)))

    def test_a_sink_of_minus_infinity_changes_nothing(self, xp):
        out, lse = add_sink(xp.asarray([[8.0], [0.0]]), xp.asarray([1.0, -INF]), xp.asarray(-INF))
        xp.check(out, [[8.0], [0.0]])
        xp.check(lse, [1.0, -INF])

    def test_dtypes(self, xp):
        out, lse = add_sink(xp.asarray([[8.0]], "float32"), xp.asarray([1.0]), xp.asarray(0.0))
        xp.check(out, [[8 / (1 + math.exp(-1))]], dtype="float32")
        xp.check(lse, [math.log(math.e + 1)])

    def test_bad_input(self, xp, other):
        out, lse, sink = xp.asarray(np.ones((3, 2))), xp.asarray(np.ones(3)), xp.asarray(0.0)
        with pytest.raises(ValueError, match=r"lse has shape \(2,\)"):
            add_sink(out, lse[:2], sink)
        with pytest.raises(ValueError, match=r"sink has shape \(3, 1\)"):
            add_sink(out, lse, xp.asarray(np.ones((3, 1))))
        with pytest.raises(ValueError, match="out has shape"):
            add_sink(lse, lse, sink)
        with pytest.raises(TypeError, match="sink must be an array"):
            add_sink(out, lse, 0.0)
        with pytest.raises(TypeError, match="one library"):
            add_sink(out, lse, other.asarray(0.0))


@pytest.mark.parametrize(("name", "invariant"), held("schedules/flash"))
def test_shared_invariants(xp, name, invariant):
    invariant(SUBJECTS[name], xp)
