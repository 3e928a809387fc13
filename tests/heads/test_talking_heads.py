"""softlookup.heads.talking_heads: heads that share their scores before the softmax and their weights after it."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from invariants import held
from libraries import finite_differences
from oracles.freeze import frozen
from subjects import SUBJECTS

from softlookup.heads import mix_heads, talking_heads_attention, talking_heads_weights
from softlookup.lookup import attention, attention_weights, gaussian_score, scaled_dot

INF, NAN = math.inf, math.nan


def loop_mix(x, mix):
    """One new head after another, one pair after another."""
    old, n, m = x.shape
    new = mix.shape[1]
    return [
        [[math.fsum(x[a, i, j] * mix[a, b] for a in range(old)) for j in range(m)] for i in range(n)]
        for b in range(new)
    ]


def loop(q, k, v, mix_scores, mix_weights, mask, bias):
    """Scores of all heads, mixed, normalized over what may be read, mixed again, blended: only sums and products."""
    (old, n, d), m, (heads, new) = q.shape, k.shape[1], mix_weights.shape
    out = np.zeros((new, n, v.shape[2]))
    for i in range(n):
        w = np.zeros((heads, m))
        for b in range(heads):
            e = {}
            for j in range(m):
                if mask[b, i, j]:
                    dots = [sum(q[a, i, c] * k[a, j, c] for c in range(d)) / math.sqrt(d) for a in range(old)]
                    e[j] = math.exp(sum(dots[a] * mix_scores[a, b] for a in range(old)) + bias[b, i, j])
            for j in e:
                w[b, j] = e[j] / sum(e.values())
        for c in range(new):
            for j in range(m):
                out[c, i] += sum(w[b, j] * mix_weights[b, c] for b in range(heads)) * v[c, j]
    return out


def draw(seed, n=4, m=5, old=3, heads=4, new=2):
    """Arrays for the full call, with a mask that differs between the heads and has an empty row."""
    rng = np.random.default_rng(seed)
    shapes = [(old, n, 3), (old, m, 3), (new, m, 2), (old, heads), (heads, new)]
    mask = rng.random((heads, n, m)) < 0.6
    mask[:, 1] = False
    return [rng.normal(size=s) for s in shapes], mask, rng.normal(size=(heads, n, m))


class TestMixHeads:
    def test_by_hand(self, xp):
        x = xp.asarray([[[0.8, 0.2]], [[0.5, 0.5]]])
        xp.check(mix_heads(x, xp.asarray([[0.5, 1.0], [0.5, -1.0]])), [[[0.65, 0.35]], [[0.3, -0.3]]])

    @given(st.integers(0, 3), st.integers(1, 3), st.integers(0, 3), st.integers(0, 3))
    def test_is_the_loop(self, old, new, n, m):
        rng = np.random.default_rng(old + 4 * new)
        x, mix = rng.normal(size=(old, n, m)), rng.normal(size=(old, new))
        expected = np.array(loop_mix(x, mix)).reshape(new, n, m)
        np.testing.assert_allclose(mix_heads(x, mix), expected, rtol=1e-12, atol=1e-12)

    def test_axes_before_the_heads_broadcast(self, xp):
        rng = np.random.default_rng(0)
        x, mix = rng.normal(size=(2, 1, 3, 4, 5)), rng.normal(size=(6, 3, 2))
        ours = xp.numpy(mix_heads(xp.asarray(x), xp.asarray(mix)))
        assert ours.shape == (2, 6, 2, 4, 5)
        np.testing.assert_allclose(ours[1, 4], loop_mix(x[1, 0], mix[4]), rtol=1e-12)

    def test_pairs_never_meet_and_infinities_do_not_survive_a_zero(self, xp):
        x = np.array([[[1.0, NAN]], [[2.0, 3.0]]])
        xp.check(mix_heads(*map(xp.asarray, (x, np.eye(2)))), [[[1.0, NAN]], [[2.0, NAN]]])
        with np.errstate(invalid="ignore"):
            hidden = mix_heads(*map(xp.asarray, ([[[-INF]], [[0.5]]], [[1.0, 0.0, -1.0], [1.0, 1.0, 1.0]])))
        xp.check(hidden, [[[-INF]], [[NAN]], [[INF]]])

    def test_bad_input(self, xp, other):
        x, mix = xp.asarray(np.ones((2, 3, 4))), xp.asarray(np.ones((2, 5)))
        with pytest.raises(ValueError, match="mix has 3 rows, x has 2 heads"):
            mix_heads(x, xp.asarray(np.ones((3, 2))))
        with pytest.raises(ValueError, match=r"\bx\b.*\(3, 4\)"):
            mix_heads(x[0, ...], mix)
        with pytest.raises(ValueError, match=r"mix.*\(2,\)"):
            mix_heads(x, mix[:, 0])
        with pytest.raises(ValueError, match="do not broadcast"):
            mix_heads(xp.asarray(np.ones((2, 2, 3, 4))), xp.asarray(np.ones((3, 2, 5))))
        with pytest.raises(TypeError, match="mix"):
            mix_heads(x, [[1.0], [1.0]])
        with pytest.raises(TypeError, match="one library"):
            mix_heads(x, other.asarray(np.ones((2, 5))))


class TestTalkingHeadsAttention:
    def test_by_hand(self, xp):
        q, k = np.ones((2, 1, 1)), np.log([[[4.0], [1.0]], [[1.0], [1.0]]])
        v = np.array([[[10.0], [20.0]], [[10.0], [20.0]]])
        after = [[0.5, 1.0], [0.5, -1.0]]
        arrays = [xp.asarray(a) for a in (q, k, v, np.eye(2), after)]
        xp.check(talking_heads_attention(*arrays), [[[0.65 * 10 + 0.35 * 20]], [[0.3 * 10 - 0.3 * 20]]])

    @pytest.mark.parametrize("sizes", [(4, 5, 3, 4, 2), (2, 3, 1, 1, 1), (3, 1, 2, 2, 3)])
    def test_is_the_loop(self, xp, sizes):
        arrays, mask, bias = draw(1, *sizes)
        ours = talking_heads_attention(*map(xp.asarray, arrays), mask=xp.asarray(mask, "bool"), bias=xp.asarray(bias))
        xp.check(ours, loop(*arrays, mask, bias), tolerance=1e-11)

    def test_agrees_with_timm_up_to_its_two_biases(self, agree):
        """The bias before the softmax changes nothing, the one after it adds that multiple of the sum of all values."""
        o = frozen("timm_talking_heads")
        packed = o["x"] @ o["qkv.weight"].T + o["qkv.bias"]
        q, k, v = packed.reshape(2, 5, 3, 3, 4).transpose(2, 0, 3, 1, 4)
        ours = talking_heads_attention(q, k, v, o["proj_l.weight"].T, o["proj_w.weight"].T)
        ours = ours + o["proj_w.bias"][:, None, None] * v.sum(axis=-2, keepdims=True)
        ours = ours.transpose(0, 2, 1, 3).reshape(2, 5, 12) @ o["proj.weight"].T + o["proj.bias"]
        agree(
            ours,
            o["out"],
            function="heads.talking_heads_attention",
            stranger="timm TalkingHeadAttn of CaiT, kept result",
            version=o.version,
            dtype="float64",
            clash="the matrices are stored transposed; a bias behind the second one adds the sum of all values",
        )

    def test_identities_are_ordinary_attention(self, xp):
        rng = np.random.default_rng(2)
        q, k, v = (rng.normal(size=(2, 3, size, 4)) for size in (4, 5, 5))
        mask, bias = rng.random((3, 4, 5)) < 0.7, rng.normal(size=(3, 4, 5))
        given = {"mask": xp.asarray(mask, "bool"), "bias": xp.asarray(bias)}
        arrays, eye = [xp.asarray(a) for a in (q, k, v)], xp.asarray(np.eye(3))
        xp.check(talking_heads_attention(*arrays, eye, eye, **given), xp.numpy(attention(*arrays, **given)))

    def test_mixed_scores_are_one_head_with_a_wide_query(self):
        (q, k, _, mix, _), mask, _ = draw(3)
        ours = talking_heads_weights(q, k, mix, np.eye(4), mask=mask)
        wide = (q[None] * mix.T[:, :, None, None]).transpose(0, 2, 1, 3).reshape(4, 4, 9)
        keys = k.transpose(1, 0, 2).reshape(1, 5, 9)
        theirs = attention_weights(wide, keys, mask=mask, score=scaled_dot(scale=1 / math.sqrt(3)))
        np.testing.assert_allclose(ours, theirs, rtol=1e-12, atol=1e-15)

    def test_mixed_weights_of_one_value_are_mixed_outputs(self):
        (q, k, v, before, after), mask, _ = draw(4)
        ours = talking_heads_attention(q, k, v[0], before, after, mask=mask)
        outputs = talking_heads_attention(q, k, v[0], before, np.eye(4), mask=mask)
        np.testing.assert_allclose(ours, np.einsum("bie,bc->cie", outputs, after), rtol=1e-11, atol=1e-14)

    def test_keys_of_one_head_serve_all(self, xp):
        (q, k, v, before, after), _, _ = draw(5)
        arrays = [xp.asarray(a) for a in (q, k[0], v[0], before, after)]
        spread = [q, np.stack([k[0]] * 3), np.stack([v[0]] * 2), before, after]
        xp.check(talking_heads_attention(*arrays), xp.numpy(talking_heads_attention(*map(xp.asarray, spread))))

    def test_decoding_with_a_cache_is_the_full_pass(self):
        (q, k, v, before, after), _, bias = draw(6, n=5)
        whole = talking_heads_attention(q, k, v, before, after, mask=np.tri(5, dtype=bool), bias=bias)
        for t in range(5):
            seen = slice(t + 1)
            row = talking_heads_attention(
                q[:, t : t + 1], k[:, seen], v[:, seen], before, after, bias=bias[:, t : t + 1, seen]
            )
            np.testing.assert_allclose(row[:, 0], whole[:, t], rtol=1e-12, atol=1e-13)

    def test_a_pair_that_one_head_may_read_reaches_every_value_head(self, xp):
        q, k = xp.asarray(np.zeros((2, 1, 1))), xp.asarray(np.zeros((2, 2, 1)))
        mask = xp.asarray([[[True, False]], [[False, True]]], "bool")
        v, both = xp.asarray([[[1.0], [10.0]]]), xp.asarray([[1.0, 0.0], [1.0, 1.0]])
        xp.check(talking_heads_attention(q, k, v, xp.asarray(np.eye(2)), both, mask=mask), [[[11.0]], [[10.0]]])

    def test_a_nan_in_one_row_stays_out_of_the_others(self, xp):
        (q, k, v, before, after), _, _ = draw(7)
        mask = np.ones((4, 5), dtype=bool)
        mask[1:, 4] = False
        clean = talking_heads_attention(*map(xp.asarray, (q, k, v, before, after)), mask=xp.asarray(mask, "bool"))
        k[0, 4], v[1, 4] = NAN, INF
        spoiled = talking_heads_attention(*map(xp.asarray, (q, k, v, before, after)), mask=xp.asarray(mask, "bool"))
        np.testing.assert_array_equal(xp.numpy(spoiled)[:, 1:], xp.numpy(clean)[:, 1:])
        assert np.isnan(xp.numpy(spoiled)[:, 0]).all()

    def test_gradients(self, autograd):
        arrays, mask, bias = draw(8, n=3, m=4)
        g = np.random.default_rng(9).normal(size=(2, 3, 2))
        arrays = [*arrays, bias]
        expected = finite_differences(lambda *a: talking_heads_attention(*a[:5], mask=mask, bias=a[5]), g, *arrays)
        allowed = autograd.asarray(mask, "bool")
        ours = autograd.vjp(
            lambda *a: talking_heads_attention(*a[:5], mask=allowed, bias=a[5]), *map(autograd.asarray, (g, *arrays))
        )
        for one, two in zip(ours, expected, strict=True):
            autograd.check(one, two, tolerance=1e-7)

    def test_what_is_hidden_in_every_head_leaves_gradients_finite(self, autograd):
        (q, k, v, before, after), _, _ = draw(10)
        k[:, 2], v[:, 2] = NAN, INF
        allowed = autograd.asarray(np.arange(5) != 2, "bool")
        arrays = [autograd.asarray(a) for a in (np.ones((2, 4, 2)), q, k, v, before, after)]
        for gradient in autograd.vjp(lambda *a: talking_heads_attention(*a, mask=allowed), *arrays):
            assert np.isfinite(autograd.numpy(gradient)).all()

    def test_thousands_of_keys_and_half_precision(self, xp):
        for dtype in ("float32", *xp.narrow_dtypes):
            arrays = [np.zeros((2, 1, 2)), np.zeros((2, 4096, 2)), np.ones((2, 4096, 1)), np.eye(2), 2 * np.eye(2)]
            xp.check(talking_heads_attention(*(xp.asarray(a, dtype) for a in arrays)), [[[2.0]]] * 2, dtype=dtype)

    def test_bad_input(self, xp, other):
        (q, k, v, before, after), _, _ = draw(11)
        q, k, v, before, after = map(xp.asarray, (q, k, v, before, after))
        with pytest.raises(ValueError, match="mix_scores has 2 rows, q has 3 heads"):
            talking_heads_attention(q, k, v, before[:2, :], after)
        with pytest.raises(ValueError, match="mix_weights has 3 rows, mix_scores has 4 columns"):
            talking_heads_attention(q, k, v, before, after[:3, :])
        with pytest.raises(ValueError, match="v has 3 heads, mix_weights has 2 columns"):
            talking_heads_attention(q, k, xp.asarray(np.ones((3, 5, 2))), before, after)
        with pytest.raises(ValueError, match="k has 2 heads, which does not divide q's 3"):
            talking_heads_attention(q, k[:2, ...], v, before, after)
        with pytest.raises(ValueError, match=r"k has 4 items, v has 5"):
            talking_heads_attention(q, k[:, :4, :], v, before, after)
        with pytest.raises(ValueError, match=r"\bq\b.*\(4, 3\)"):
            talking_heads_attention(q[0, ...], k, v, before, after)
        with pytest.raises(ValueError, match=r"\bk\b.*\(3,\)"):
            talking_heads_weights(q, k[0, 0, :], before, after)
        with pytest.raises(ValueError, match=r"mix_weights.*\(4,\)"):
            talking_heads_attention(q, k, v, before, after[:, 0])
        with pytest.raises(ValueError, match=r"mix_scores.*\(3,\)"):
            talking_heads_attention(q, k, v, before[:, 0], after)
        with pytest.raises(ValueError, match=r"leading axes do not broadcast: q has \(2,\), k has \(3,\), mix_scores"):
            talking_heads_weights(xp.asarray(np.ones((2, 3, 4, 3))), xp.asarray(np.ones((3, 3, 5, 3))), before, after)
        with pytest.raises(ValueError, match=r"mask.*\(3, 4, 5\).*\(4, 4, 5\)"):
            talking_heads_attention(q, k, v, before, after, mask=xp.asarray(np.ones((3, 4, 5)), "bool"))
        with pytest.raises(ValueError, match=r"bias.*\(3, 4, 5\)"):
            talking_heads_attention(q, k, v, before, after, bias=xp.asarray(np.ones((3, 4, 5))))
        with pytest.raises(TypeError, match="mask must be boolean"):
            talking_heads_attention(q, k, v, before, after, mask=xp.asarray(np.ones((4, 5))))
        with pytest.raises(TypeError, match="one library"):
            talking_heads_attention(q, k, v, before, other.asarray(np.ones((4, 2))))


class TestTalkingHeadsWeights:
    def test_added_scores_multiply_and_added_weights_add(self, xp):
        k = np.log([[[1.0], [1.0], [8.0], [1.0]], [[1.0], [2.0], [4.0], [8.0]]])
        q, k, one = map(xp.asarray, (np.ones((2, 1, 1)), k, [[1.0]]))
        product = talking_heads_weights(q, k, xp.asarray([[1.0], [1.0]]), one)
        xp.check(product, [[[1 / 43, 2 / 43, 32 / 43, 8 / 43]]])
        mean = talking_heads_weights(q, k, xp.asarray(np.eye(2)), xp.asarray([[0.5], [0.5]]))
        halves = np.array([1, 1, 8, 1]) / 22 + np.array([1, 2, 4, 8]) / 30
        xp.check(mean, [[halves]])

    def test_another_score(self, xp):
        (q, k, _, _, _), _, _ = draw(12)
        score, eye = gaussian_score(bandwidth=0.8), xp.asarray(np.eye(3))
        q, k = xp.asarray(q), xp.asarray(k)
        ours = talking_heads_weights(q, k, eye, eye, score=score)
        xp.check(ours, xp.numpy(attention_weights(q, k, score=score)))

    def test_rows_sum_to_the_columns_of_the_second_matrix(self):
        (q, k, _, before, after), _, _ = draw(13)
        sums = talking_heads_weights(q, k, before, after).sum(-1)
        np.testing.assert_allclose(sums, np.repeat(after.sum(0)[:, None], 4, 1), rtol=1e-12)


@pytest.mark.parametrize(("name", "invariant"), held("heads/talking_heads"))
def test_shared_invariants(xp, name, invariant):
    invariant(SUBJECTS[name], xp)
