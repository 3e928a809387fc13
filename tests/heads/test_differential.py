"""softlookup.heads.differential: the weights of one head minus a fraction of those of its neighbor."""

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
    differential_attention,
    differential_lambda,
    differential_norm,
    differential_weights,
    talking_heads_attention,
)
from softlookup.lookup import attention, attention_weights, gaussian_score

INF, NAN = math.inf, math.nan


def loop(q, k, v, lam, mask, bias):
    """One pair of heads and one query after the other."""
    pairs, n, m, d = q.shape[0] // 2, q.shape[1], k.shape[1], q.shape[2]
    out = np.zeros((pairs, n, v.shape[2]))
    for h in range(pairs):
        for i in range(n):
            for c, factor in ((2 * h, 1.0), (2 * h + 1, -lam[h, i])):
                key = k[c // (q.shape[0] // k.shape[0])]
                e = {
                    j: math.exp(math.fsum(q[c, i] * key[j]) / math.sqrt(d) + bias[c, i, j])
                    for j in range(m)
                    if mask[c, i, j]
                }
                for j in e:
                    out[h, i] += factor * e[j] / math.fsum(e.values()) * v[h // (pairs // v.shape[0]), j]
    return out


def draw(seed, pairs=2, key_heads=4, value_heads=2, n=4, m=5):
    """Arrays for the full call, with a mask that differs between the heads and has an empty row."""
    rng = np.random.default_rng(seed)
    shapes = [(2 * pairs, n, 3), (key_heads, m, 3), (value_heads, m, 2)]
    mask = rng.random((2 * pairs, n, m)) < 0.6
    mask[:, 1] = False
    return [rng.normal(size=s) for s in shapes], rng.normal(size=(pairs, n)), mask, rng.normal(size=mask.shape)


class TestDifferentialAttention:
    def test_by_hand(self, xp):
        q, k, v = np.ones((2, 1, 1)), np.log([[[4.0], [1.0]], [[1.0], [1.0]]]), [[10.0], [20.0]]
        q, k, v, lam = map(xp.asarray, (q, k, v, 0.4))
        xp.check(differential_weights(q, k, lam=lam), [[[0.8 - 0.2, 0.2 - 0.2]]])
        xp.check(differential_attention(q, k, v, lam=lam), [[[6.0]]])

    @pytest.mark.parametrize("sizes", [(2, 4, 2), (2, 2, 1), (4, 2, 2), (1, 1, 1), (3, 6, 3)])
    def test_is_the_loop(self, xp, sizes):
        arrays, lam, mask, bias = draw(1, *sizes)
        given = {"lam": xp.asarray(lam), "mask": xp.asarray(mask, "bool"), "bias": xp.asarray(bias)}
        xp.check(differential_attention(*map(xp.asarray, arrays), **given), loop(*arrays, lam, mask, bias))

    def test_agrees_with_timm(self, agree):
        o = frozen("timm_differential")
        q, k, v = np.split(o["x"] @ o["qkv.weight"].T, 3, axis=-1)
        q, k = (a.reshape(2, 5, 6, 2).swapaxes(1, 2) for a in (q, k))
        v = v.reshape(2, 5, 3, 4).swapaxes(1, 2)
        out = differential_attention(q, k, v, lam=o["lam"], mask=np.tri(5, dtype=bool))
        ours = differential_norm(out, initial=float(o["initial"]), weight=o["sub_norm.weight"], epsilon=1e-5)
        agree(
            ours.swapaxes(1, 2).reshape(2, 5, 12) @ o["proj.weight"].T + o["proj.bias"],
            o["out"],
            function="heads.differential_attention",
            stranger="timm DiffAttention, kept result",
            version=o.version,
            dtype="float64",
        )

    def test_agrees_with_transformers_after_a_permutation_of_the_heads(self, agree):
        """Its pairs are the heads h and h + H/2, and its pair of value heads is v and v + H_v/2, side by side."""
        o, order = frozen("transformers_diffllama"), [0, 4, 1, 5, 2, 6, 3, 7]
        q, k, v = (o["x"] @ o[f"{name}_proj.weight"].T for name in "qkv")
        q, k, v = (a.reshape(2, 5, -1, 2).swapaxes(1, 2) for a in (q, k, v))
        k = np.repeat(k, 2, axis=1)
        values = np.concatenate([v[:, :2], v[:, 2:]], axis=-1)
        vectors = [o[f"lambda_{name}"] for name in ("q1", "k1", "q2", "k2")]
        lam = differential_lambda(*vectors, initial=float(o["initial"]))
        mask = np.tri(5, dtype=bool)
        out = differential_attention(q[:, order], k[:, order], values, lam=np.asarray(lam), mask=mask)
        ours = differential_norm(out, initial=float(o["initial"]), epsilon=1e-5)
        agree(
            ours.swapaxes(1, 2).reshape(2, 5, 16) @ o["o_proj.weight"].T,
            o["out"],
            function="heads.differential_attention",
            stranger="transformers DiffLlama, kept result",
            version=o.version,
            dtype="float64",
            clash="pairs h and h + H/2, values v and v + H_v/2; lambda in single precision; the norm has no weight",
        )
        np.testing.assert_allclose(o["initial"], 0.8 - 0.6 * math.exp(-0.3 * 3))

    def test_is_the_difference_of_two_calls(self, xp):
        (q, k, v), lam, mask, bias = draw(2)
        parts = [
            xp.numpy(
                attention(
                    *map(xp.asarray, (q[c::2], k[c::2], v)),
                    mask=xp.asarray(mask[c::2], "bool"),
                    bias=xp.asarray(bias[c::2]),
                )
            )
            for c in (0, 1)
        ]
        given = {"lam": xp.asarray(lam), "mask": xp.asarray(mask, "bool"), "bias": xp.asarray(bias)}
        ours = differential_attention(*map(xp.asarray, (q, k, v)), **given)
        xp.check(ours, parts[0] - lam[..., None] * parts[1])

    def test_is_talking_heads_with_a_fixed_matrix(self):
        (q, k, v), _, _, _ = draw(3)
        after = np.array([[1.0, 0.0], [-0.3, 0.0], [0.0, 1.0], [0.0, -0.3]])
        ours = differential_attention(q, k, v, lam=np.array(0.3))
        np.testing.assert_allclose(ours, talking_heads_attention(q, k, v, np.eye(4), after), rtol=1e-12, atol=1e-14)

    def test_keys_of_a_group_are_shared_by_neighbors(self):
        (q, k, v), lam, _, _ = draw(4, pairs=4, key_heads=2, value_heads=2)
        spread = np.repeat(k, 4, axis=0), np.repeat(v, 2, axis=0)
        np.testing.assert_allclose(
            differential_attention(q, k, v, lam=lam), differential_attention(q, *spread, lam=lam), rtol=1e-12
        )

    def test_shapes_of_lambda(self, xp):
        (q, k, v), lam, _, _ = draw(5)
        q, k, v = map(xp.asarray, (q, k, v))
        for some in (lam[0, 0], lam[:, :1], lam[:1], np.stack([lam])):
            whole = np.broadcast_to(some, (*np.shape(some)[:-2], 2, 4))
            if np.ndim(some) > 2:
                with pytest.raises(ValueError, match=r"lam has shape \(1, 2, 4\)"):
                    differential_attention(q, k, v, lam=xp.asarray(some))
                continue
            ours = differential_attention(q, k, v, lam=xp.asarray(some))
            xp.check(ours, xp.numpy(differential_attention(q, k, v, lam=xp.asarray(whole))))

    def test_decoding_with_a_cache_is_the_full_pass(self):
        (q, k, v), lam, _, bias = draw(6, n=5)
        whole = differential_attention(q, k, v, lam=lam, mask=np.tri(5, dtype=bool), bias=bias)
        for t in range(5):
            now, seen = slice(t, t + 1), slice(t + 1)
            row = differential_attention(q[:, now], k[:, seen], v[:, seen], lam=lam[:, now], bias=bias[:, now, seen])
            np.testing.assert_allclose(row[:, 0], whole[:, t], rtol=1e-12, atol=1e-13)

    def test_what_one_head_of_the_pair_may_read_the_pair_may_read(self, xp):
        q, k, v = map(xp.asarray, (np.zeros((2, 1, 1)), np.zeros((2, 2, 1)), [[1.0], [10.0]]))
        for shape in ((2, 1, 2), (1, 2, 1, 2)):
            mask = xp.asarray(np.array([[[True, False]], [[False, True]]]).reshape(shape), "bool")
            batch = q if len(shape) == 3 else q[None, ...]
            ours = xp.numpy(differential_attention(batch, k, v, lam=xp.asarray(0.5), mask=mask))
            np.testing.assert_allclose(ours.ravel(), [1 - 0.5 * 10])

    def test_gradients(self, autograd):
        arrays, lam, mask, bias = draw(7, n=3, m=4)
        g = np.random.default_rng(8).normal(size=(2, 3, 2))
        arrays = [*arrays, lam, bias]
        expected = finite_differences(
            lambda *a: differential_attention(*a[:3], lam=a[3], mask=mask, bias=a[4]), g, *arrays
        )
        allowed = autograd.asarray(mask, "bool")
        ours = autograd.vjp(
            lambda *a: differential_attention(*a[:3], lam=a[3], mask=allowed, bias=a[4]),
            *map(autograd.asarray, (g, *arrays)),
        )
        for one, two in zip(ours, expected, strict=True):
            autograd.check(one, two, tolerance=1e-7)

    def test_what_is_hidden_in_every_head_leaves_gradients_finite(self, autograd):
        (q, k, v), lam, _, _ = draw(9)
        k[:, 2], v[:, 2] = NAN, INF
        allowed = autograd.asarray(np.arange(5) != 2, "bool")
        arrays = [autograd.asarray(a) for a in (np.ones((2, 4, 2)), q, k, v, lam)]
        for gradient in autograd.vjp(lambda *a: differential_attention(*a[:3], lam=a[3], mask=allowed), *arrays):
            assert np.isfinite(autograd.numpy(gradient)).all()

    def test_thousands_of_keys_and_half_precision(self, xp):
        for dtype in ("float32", *xp.narrow_dtypes):
            arrays = [np.zeros((2, 1, 2)), np.zeros((2, 4096, 2)), np.ones((4096, 1))]
            ours = differential_attention(*(xp.asarray(a, dtype) for a in arrays), lam=xp.asarray(0.25, dtype))
            xp.check(ours, [[[0.75]]], dtype=dtype)

    def test_bad_input(self, xp, other):
        (q, k, v), lam, _, _ = draw(10)
        q, k, v, lam = map(xp.asarray, (q, k, v, lam))
        for heads in (0, 1, 3):
            with pytest.raises(ValueError, match=f"q has {heads} heads; pairs need an even number"):
                differential_attention(xp.asarray(np.ones((heads, 4, 3))), k[:1, ...], v, lam=lam)
        with pytest.raises(ValueError, match=r"\bq\b.*\(4, 3\)"):
            differential_attention(q[0, ...], k, v, lam=lam)
        with pytest.raises(ValueError, match="k has 3 heads, which does not divide q's 4"):
            differential_attention(q, k[:3, ...], v, lam=lam)
        for heads in (0, 4):
            with pytest.raises(ValueError, match=f"v has {heads} heads, which does not divide the 2 pairs"):
                differential_attention(q, k, xp.asarray(np.ones((heads, 5, 2))), lam=lam)
        with pytest.raises(ValueError, match="k has 5 items, v has 4"):
            differential_attention(q, k, v[:, :4, :], lam=lam)
        with pytest.raises(ValueError, match=r"lam.*\(4, 4\).*\(2, 4\)"):
            differential_attention(q, k, v, lam=xp.asarray(np.ones((4, 4))))
        with pytest.raises(ValueError, match=r"mask.*\(2, 4, 5\).*\(4, 4, 5\)"):
            differential_attention(q, k, v, lam=lam, mask=xp.asarray(np.ones((2, 4, 5)), "bool"))
        with pytest.raises(ValueError, match=r"bias.*\(2, 4, 5\)"):
            differential_attention(q, k, v, lam=lam, bias=xp.asarray(np.ones((2, 4, 5))))
        with pytest.raises(TypeError, match="lam"):
            differential_attention(q, k, v, lam=0.5)
        with pytest.raises(TypeError, match="mask must be boolean"):
            differential_attention(q, k, v, lam=lam, mask=xp.asarray(np.ones((4, 5))))
        with pytest.raises(TypeError, match="one library"):
            differential_attention(q, k, v, lam=other.asarray(0.5))


class TestDifferentialWeights:
    @given(st.integers(0, 30), st.floats(-1, 2))
    def test_rows_sum_to_one_minus_lambda_within_their_bounds(self, seed, lam):
        (q, k, _), _, _, _ = draw(seed)
        w = differential_weights(q, k, lam=np.array(lam))
        np.testing.assert_allclose(w.sum(-1), 1 - lam, atol=1e-12)
        assert (w >= -max(lam, 0)).all()
        assert (w <= 1 + max(-lam, 0)).all()

    def test_zero_is_the_first_heads_and_another_score(self, xp):
        (q, k, _), _, _, _ = draw(11)
        score = gaussian_score(bandwidth=0.7)
        ours = differential_weights(xp.asarray(q), xp.asarray(k), lam=xp.asarray(0.0), score=score)
        xp.check(ours, attention_weights(q[::2], k[::2], score=score))

    def test_equal_heads_cancel(self, xp):
        (q, k, _), _, _, _ = draw(12)
        q[1::2], k[1::2] = q[::2], k[::2]
        ours = differential_weights(xp.asarray(q), xp.asarray(k), lam=xp.asarray(1.0))
        xp.check(ours, np.zeros((2, 4, 5)))


class TestDifferentialLambda:
    def test_by_hand(self, xp):
        q1, k1, q2, k2 = map(xp.asarray, ([1.0, 2.0], [math.log(2), math.log(1.5)], [0.0, 1.0], [5.0, math.log(0.5)]))
        xp.check(differential_lambda(q1, k1, q2, k2, initial=0.2), 2 * 1.5**2 - 0.5 + 0.2)

    def test_vectors_of_several_layers(self, xp):
        rng = np.random.default_rng(13)
        q1, k1, q2, k2 = rng.normal(size=(4, 3, 2))
        expected = [math.exp(a @ b) - math.exp(c @ d) + 0.8 for a, b, c, d in zip(q1, k1, q2, k2, strict=True)]
        xp.check(differential_lambda(*map(xp.asarray, (q1, k1, q2, k2)), initial=0.8), expected)

    def test_gradients(self, autograd):
        arrays, g = np.random.default_rng(14).normal(size=(4, 3, 2)), np.array([1.0, -2.0, 0.5])
        expected = finite_differences(lambda *a: differential_lambda(*a, initial=0.8), g, *arrays)
        ours = autograd.vjp(
            lambda *a: differential_lambda(*a, initial=0.8), autograd.asarray(g), *map(autograd.asarray, arrays)
        )
        for one, two in zip(ours, expected, strict=True):
            autograd.check(one, two, tolerance=1e-7)

    def test_bad_input(self, xp):
        two, three = xp.asarray([1.0, 2.0]), xp.asarray([1.0, 2.0, 3.0])
        for place, name in enumerate(("k1", "q2", "k2"), 1):
            with pytest.raises(ValueError, match=f"{name} has 3 columns, q1 has 2"):
                differential_lambda(*(three if p == place else two for p in range(4)), initial=0.8)
        for place, name in enumerate(("q1", "k1", "q2", "k2")):
            with pytest.raises(ValueError, match=rf"{name} has shape \(\)"):
                differential_lambda(*(xp.asarray(1.0) if p == place else two for p in range(4)), initial=0.8)
        rows = [xp.asarray(np.ones((size, 2))) for size in (2, 3)]
        for place in range(4):
            vectors = [rows[1] if p == place else rows[0] for p in range(4)]
            with pytest.raises(ValueError, match="leading axes do not broadcast"):
                differential_lambda(*vectors, initial=0.8)
        with pytest.raises(ValueError, match="initial is inf"):
            differential_lambda(two, two, two, two, initial=INF)
        with pytest.raises(TypeError, match="initial"):
            differential_lambda(two, two, two, two, initial="0.8")


class TestDifferentialNorm:
    def test_by_hand(self, xp):
        x = xp.asarray([[[1.0, 7.0], [0.0, 0.0]]])  # the mean of the squares is 25
        xp.check(differential_norm(x, initial=0.8), [[[0.04, 0.28], [0.0, 0.0]]])
        weight = xp.asarray([10.0, 1.0])
        xp.check(differential_norm(x, initial=0.5, weight=weight, epsilon=11.0)[0, 0, :], [0.5 * 10 / 6, 0.5 * 7 / 6])

    def test_bad_input(self, xp):
        x = xp.asarray(np.ones((2, 3, 4)))
        with pytest.raises(ValueError, match=r"\bx\b.*\(3, 4\)"):
            differential_norm(x[0, ...], initial=0.8)
        with pytest.raises(ValueError, match=r"weight.*\(3,\)"):
            differential_norm(x, initial=0.8, weight=xp.asarray(np.ones(3)))
        with pytest.raises(ValueError, match="initial is nan"):
            differential_norm(x, initial=NAN)


@pytest.mark.parametrize(("name", "invariant"), held("heads/differential"))
def test_shared_invariants(xp, name, invariant):
    invariant(SUBJECTS[name], xp)
