"""softlookup.scores.similarity: matrices, angles and distances, and what each of them equals."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from invariants import held
from libraries import finite_differences
from subjects import SUBJECTS

from softlookup.lookup import attention, attention_weights, gaussian_score, scaled_dot, softmax
from softlookup.scores import bilinear, cosine, distance_as_dot, l2_distance, low_rank_bilinear

INF, NAN = math.inf, math.nan


def random_arrays(seed, *shapes):
    rng = np.random.default_rng(seed)
    return [rng.normal(size=shape) for shape in shapes]


def learns(autograd, build, parameters, seed=20):
    """The gradient with respect to queries, keys and parameters is that of finite differences."""
    q, k, g = random_arrays(seed, (3, 3), (4, 3), (3, 4))
    expected = finite_differences(lambda q, k, *a: build(*a)(q, k), g, q, k, *parameters)
    got = autograd.vjp(lambda q, k, *a: build(*a)(q, k), *map(autograd.asarray, (g, q, k, *parameters)))
    for ours, theirs in zip(got, expected, strict=True):
        autograd.check(ours, theirs, tolerance=1e-7)


def refuses_unlike_pairs(score, xp, other):
    good = [xp.asarray(np.ones(s)) for s in ((2, 3), (4, 3))]
    for i, name in enumerate("qk"):
        with pytest.raises(ValueError, match=rf"\b{name}\b.*\(3,\)"):
            score(*good[:i], xp.asarray(np.ones(3)), *good[i + 1 :])
        with pytest.raises(TypeError, match=rf"\b{name}\b"):
            score(*good[:i], [[1.0]], *good[i + 1 :])
    with pytest.raises(ValueError, match=r"3.*2"):
        score(good[0], xp.asarray(np.ones((4, 2))))
    with pytest.raises(ValueError, match="leading axes"):
        score(xp.asarray(np.ones((2, 2, 3))), xp.asarray(np.ones((5, 4, 3))))
    with pytest.raises(TypeError, match="library"):
        score(good[0], other.asarray(np.ones((4, 3))))


class TestBilinear:
    def test_is_the_loop(self, xp):
        q, k, w = random_arrays(0, (3, 2), (4, 5), (2, 5))
        expected = [
            [math.fsum(q[i, a] * w[a, b] * k[j, b] for a in range(2) for b in range(5)) for j in range(4)]
            for i in range(3)
        ]
        xp.check(bilinear(xp.asarray(w))(xp.asarray(q), xp.asarray(k)), expected)

    def test_one_matrix_for_each_head(self, xp):
        q, k, w = random_arrays(1, (2, 3, 2), (2, 4, 5), (2, 2, 5))
        s = bilinear(xp.asarray(w))(xp.asarray(q), xp.asarray(k))
        xp.check(s, [q[h] @ w[h] @ k[h].T for h in range(2)])

    def test_agrees_with_torch(self, torch, agree):
        q, k, w = random_arrays(2, (3, 4), (5, 6), (4, 6))
        layer = torch.nn.Bilinear(4, 6, 1, bias=False, dtype=torch.float64)
        layer.weight.data[0] = torch.tensor(w)
        pairs = torch.tensor(np.repeat(q, 5, axis=0)), torch.tensor(np.tile(k, (3, 1)))
        agree(
            bilinear(w)(q, k),
            layer(*pairs).detach().reshape(3, 5),
            function="scores.bilinear",
            stranger="torch.nn.Bilinear",
            version=f"torch {torch.__version__.partition('+')[0]}",
            dtype="float64",
        )

    def test_equals_scaled_dot_for_a_multiple_of_the_identity(self, xp):
        q, k = map(xp.asarray, random_arrays(3, (3, 4), (5, 4)))
        xp.check(bilinear(xp.asarray(0.3 * np.eye(4)))(q, k), xp.numpy(scaled_dot(scale=0.3)(q, k)))

    def test_attention_may_compare_widths_that_differ(self, xp):
        q, k, v, w = random_arrays(4, (3, 2), (4, 5), (4, 2), (2, 5))
        s = q @ w @ k.T
        weights = np.exp(s) / np.exp(s).sum(-1, keepdims=True)
        out = attention(*map(xp.asarray, (q, k, v)), score=bilinear(xp.asarray(w)))
        xp.check(out, weights @ v)

    def test_every_argument_learns(self, autograd):
        learns(autograd, bilinear, random_arrays(5, (3, 3)))

    def test_bad_input(self, xp, other):
        refuses_unlike_pairs(bilinear(xp.asarray(np.ones((3, 3)))), xp, other)
        q, k = xp.asarray(np.ones((2, 3))), xp.asarray(np.ones((4, 3)))
        for shape, message in (((2, 3), "w has 2 rows, q has 3"), ((3, 2), "w has 2 columns, k has 3")):
            with pytest.raises(ValueError, match=message):
                bilinear(xp.asarray(np.ones(shape)))(q, k)
        with pytest.raises(ValueError, match=r"w has shape \(3,\)"):
            bilinear(xp.asarray(np.ones(3)))(q, k)
        with pytest.raises(ValueError, match="leading axes"):
            bilinear(xp.asarray(np.ones((2, 3, 3))))(xp.asarray(np.ones((3, 2, 3))), k)
        with pytest.raises(TypeError, match=r"\bw\b"):
            bilinear([[1.0]])(q, k)


class TestLowRankBilinear:
    def test_is_the_loop(self, xp):
        q, k, u, v = random_arrays(6, (3, 4), (5, 2), (4, 3), (2, 3))
        expected = [[math.fsum((q[i] @ u) * (k[j] @ v)) for j in range(5)] for i in range(3)]
        xp.check(low_rank_bilinear(*map(xp.asarray, (u, v)))(xp.asarray(q), xp.asarray(k)), expected)

    def test_equals_bilinear_with_the_product(self, xp):
        q, k, u, v = map(xp.asarray, random_arrays(7, (2, 3, 4), (2, 5, 4), (2, 4, 2), (2, 4, 2)))
        xp.check(low_rank_bilinear(u, v)(q, k), xp.numpy(bilinear(u @ v.mT)(q, k)))

    def test_equals_the_dot_product_of_projections(self, xp):
        q, k, u, v = map(xp.asarray, random_arrays(8, (3, 4), (5, 4), (4, 2), (4, 2)))
        xp.check(low_rank_bilinear(u, v)(q, k), xp.numpy(scaled_dot(scale=1.0)(q @ u, k @ v)))

    def test_agrees_with_projections_in_torch(self, torch, agree):
        q, k, v, a, b = random_arrays(9, (1, 5, 4), (1, 6, 4), (1, 6, 3), (4, 2), (4, 2))
        t = [torch.tensor(x) for x in (q @ a, k @ b, v)]
        agree(
            attention(q, k, v, score=low_rank_bilinear(a, b)),
            torch.nn.functional.scaled_dot_product_attention(*t, scale=1.0),
            function="scores.low_rank_bilinear",
            stranger="torch scaled_dot_product_attention of projections, scale 1",
            version=f"torch {torch.__version__.partition('+')[0]}",
            dtype="float64",
        )

    def test_every_argument_learns(self, autograd):
        learns(autograd, low_rank_bilinear, random_arrays(10, (3, 2), (3, 2)))

    def test_bad_input(self, xp, other):
        a = xp.asarray(np.ones((3, 2)))
        refuses_unlike_pairs(low_rank_bilinear(a, a), xp, other)
        q, k = xp.asarray(np.ones((2, 3))), xp.asarray(np.ones((4, 3)))
        b = xp.asarray(np.ones((4, 2)))
        with pytest.raises(ValueError, match="u has 4 rows, q has 3"):
            low_rank_bilinear(b, a)(q, k)
        with pytest.raises(ValueError, match="v has 4 rows, k has 3"):
            low_rank_bilinear(a, b)(q, k)
        with pytest.raises(ValueError, match="u has 2 columns, v has 5"):
            low_rank_bilinear(a, xp.asarray(np.ones((3, 5))))(q, k)
        with pytest.raises(ValueError, match="leading axes"):
            low_rank_bilinear(xp.asarray(np.ones((2, 3, 2))), xp.asarray(np.ones((5, 3, 2))))(q, k)


class TestCosine:
    def test_is_the_loop(self, xp):
        q, k = random_arrays(11, (3, 4), (5, 4))
        expected = [[math.fsum(x * y) / math.hypot(*x) / math.hypot(*y) / 0.3 for y in k] for x in q]
        xp.check(cosine(temperature=0.3)(xp.asarray(q), xp.asarray(k)), expected)

    def test_agrees_with_torch(self, torch, agree):
        q, k = random_arrays(12, (3, 4), (5, 4))
        theirs = torch.nn.functional.cosine_similarity(torch.tensor(q)[:, None], torch.tensor(k)[None], dim=-1)
        agree(
            cosine()(q, k),
            theirs,
            function="scores.cosine",
            stranger="torch.nn.functional.cosine_similarity",
            version=f"torch {torch.__version__.partition('+')[0]}",
            dtype="float64",
            clash="torch takes the larger of the norm and 1e-8",
        )

    def test_agrees_with_the_attention_of_swin(self, torch, agree):
        q, k, v, theta = random_arrays(13, (1, 2, 5, 4), (1, 2, 6, 4), (1, 2, 6, 3), (2, 1))
        theta[0] = 9.0  # beyond the clamp
        f = torch.nn.functional
        tau = torch.clamp(torch.tensor(theta)[..., None], max=math.log(100)).exp()
        s = f.normalize(torch.tensor(q), dim=-1) @ f.normalize(torch.tensor(k), dim=-1).mT * tau
        agree(
            attention(q, k, v, score=cosine(temperature=np.exp(-np.minimum(theta, math.log(100))))),
            torch.softmax(s, dim=-1) @ torch.tensor(v),
            function="scores.cosine",
            stranger="torch normalize, product and softmax, clamped as in SwinV2",
            version=f"torch {torch.__version__.partition('+')[0]}",
            dtype="float64",
        )

    def test_a_temperature_for_each_head_or_row(self, xp):
        q, k = map(xp.asarray, random_arrays(14, (2, 3, 4), (2, 5, 4)))
        plain = xp.numpy(cosine()(q, k))
        for t in (np.asarray([[0.5], [2.0]]), np.asarray([0.5, 1.0, 4.0]), np.asarray(0.25)):
            xp.check(cosine(temperature=xp.asarray(t))(q, k), plain / (t[..., None] if t.ndim else t))

    def test_equals_scaled_dot_of_unit_vectors(self, xp):
        angles = np.linspace(0, 5, 4)
        x = xp.asarray(np.stack([np.cos(angles), np.sin(angles)], -1))
        xp.check(cosine(temperature=0.2)(x, x), xp.numpy(scaled_dot(scale=5.0)(x, x)))

    @given(hnp.arrays(np.float64, (2, 3), elements=st.floats(-1e3, 1e3)), st.floats(1e-3, 1e3))
    def test_lengths_do_not_count_and_scores_are_bounded(self, x, factor):
        s = cosine()(x, x)
        assert np.all(np.abs(s) <= 1 + 1e-14)
        np.testing.assert_allclose(cosine()(x, factor * x), s, atol=1e-12)

    @pytest.mark.parametrize("size", [1e-200, 1e200])
    def test_squares_neither_overflow_nor_vanish(self, size):
        x = np.array([[3.0, 4.0], [4.0, 3.0]]) * size
        np.testing.assert_allclose(cosine()(x, x), [[1.0, 0.96], [0.96, 1.0]], rtol=1e-14)

    def test_half_precision_at_the_end_of_its_range(self, xp):
        for dtype in xp.narrow_dtypes:
            x = xp.asarray([[6e4, 6e4], [6e4, -6e4]], dtype)
            xp.check(cosine(temperature=0.5)(x, x), [[2.0, 0.0], [0.0, 2.0]], dtype=dtype)

    def test_a_zero_vector_scores_zero_and_has_no_slope(self, autograd):
        arrays = [np.ones((2, 2)), np.array([[0.0, 0.0], [1.0, 0.0]]), np.array([[0.0, 0.0], [0.0, 2.0]])]
        g, q, k = map(autograd.asarray, arrays)
        autograd.check(cosine()(q, k), np.zeros((2, 2)))
        dq, dk = autograd.vjp(cosine(), g, q, k)
        autograd.check(dq, [[0.0, 0.0], [0.0, 1.0]])
        autograd.check(dk, [[0.0, 0.0], [0.5, 0.0]])

    def test_every_argument_learns(self, autograd):
        learns(autograd, lambda t: cosine(temperature=t), [np.array([0.5, 1.0, 2.0])])

    def test_a_hidden_key_has_no_effect_on_gradients(self, autograd):
        g, q, k, v = random_arrays(15, (2, 2), (2, 3), (4, 3), (4, 2))
        k[1], v[1] = NAN, INF
        mask = autograd.asarray(np.array([[True, False, True, True]] * 2), "bool")
        got = autograd.vjp(lambda *a: attention(*a, mask=mask, score=cosine()), *map(autograd.asarray, (g, q, k, v)))
        kept = [0, 2, 3]
        rest = autograd.vjp(lambda *a: attention(*a, score=cosine()), *map(autograd.asarray, (g, q, k[kept], v[kept])))
        autograd.check(got[0], autograd.numpy(rest[0]))
        for ours, theirs in zip(got[1:], rest[1:], strict=True):
            autograd.check(ours, np.insert(autograd.numpy(theirs), 1, 0.0, axis=0))

    def test_bad_input(self, xp, other):
        refuses_unlike_pairs(cosine(), xp, other)
        for bad in (0, -1.0, NAN, INF):
            with pytest.raises(ValueError, match="temperature"):
                cosine(temperature=bad)
        q = xp.asarray(np.ones((3, 2)))
        with pytest.raises(ValueError, match=r"temperature.*\(2,\).*\(3,\)"):
            cosine(temperature=xp.asarray(np.ones(2)))(q, q)
        with pytest.raises(TypeError, match="temperature"):
            cosine(temperature="1")(q, q)


class TestL2Distance:
    def test_is_the_loop(self, xp):
        q, k = random_arrays(16, (3, 4), (5, 4))
        expected = np.array([[-(math.dist(x, y) ** 2) for y in k] for x in q])
        xp.check(l2_distance(scale=0.7)(xp.asarray(q), xp.asarray(k)), 0.7 * expected)
        xp.check(l2_distance()(xp.asarray(q), xp.asarray(k)), expected / 2)

    @pytest.mark.parametrize("h", [0.3, 1.0, 2.5])
    def test_equals_the_gaussian_score(self, xp, h):
        q, k = map(xp.asarray, random_arrays(17, (3, 4), (5, 4)))
        xp.check(l2_distance(scale=1 / (2 * h**2))(q, k), xp.numpy(gaussian_score(bandwidth=h)(q, k)))

    def test_equals_scaled_dot_for_keys_of_one_length(self, xp):
        q, k = random_arrays(18, (3, 4), (5, 4))
        q, k = xp.asarray(q), xp.asarray(k / np.linalg.norm(k, axis=-1, keepdims=True))
        weights = attention_weights(q, k, score=scaled_dot(scale=0.8))
        xp.check(attention_weights(q, k, score=l2_distance(scale=0.4)), xp.numpy(weights))

    def test_agrees_with_torch(self, torch, agree):
        q, k = random_arrays(19, (3, 4), (5, 4))
        agree(
            l2_distance()(q, k),
            -(torch.cdist(torch.tensor(q), torch.tensor(k), compute_mode="donot_use_mm_for_euclid_dist") ** 2) / 2,
            function="scores.l2_distance",
            stranger="torch.cdist, squared, over the root of d",
            version=f"torch {torch.__version__.partition('+')[0]}",
            dtype="float64",
        )

    def test_every_argument_learns(self, autograd):
        learns(autograd, l2_distance, [])

    def test_no_columns(self, xp):
        xp.check(l2_distance()(xp.asarray(np.ones((2, 0))), xp.asarray(np.ones((3, 0)))), np.zeros((2, 3)))

    def test_bad_input(self, xp, other):
        refuses_unlike_pairs(l2_distance(), xp, other)
        for bad in (NAN, INF):
            with pytest.raises(ValueError, match="scale"):
                l2_distance(scale=bad)
        with pytest.raises(TypeError, match="scale"):
            l2_distance(scale="1")


class TestDistanceAsDot:
    def test_by_hand(self, xp):
        q, k = distance_as_dot(xp.asarray([[1.0, 2.0]]), xp.asarray([[3.0, 4.0]]))
        xp.check(q, [[2.0, 4.0, 1.0]])
        xp.check(k, [[3.0, 4.0, -25.0]])

    def test_the_product_differs_by_a_constant_of_the_row(self, xp):
        q, k = random_arrays(21, (2, 3, 4), (2, 5, 4))
        lifted_q, lifted_k = distance_as_dot(xp.asarray(q), xp.asarray(k))
        expected = -((q[:, :, None] - k[:, None]) ** 2).sum(-1) + (q**2).sum(-1)[..., None]
        xp.check(lifted_q @ lifted_k.mT, expected)

    def test_gives_the_weights_of_the_distance(self, xp):
        q, k = map(xp.asarray, random_arrays(22, (3, 4), (5, 4)))
        lifted = scaled_dot(scale=0.5)(*distance_as_dot(q, k))
        xp.check(softmax(lifted), xp.numpy(attention_weights(q, k, score=l2_distance())))

    def test_agrees_with_fused_attention_in_torch(self, torch, agree):
        q, k, v = random_arrays(23, (1, 2, 5, 4), (1, 2, 6, 4), (1, 2, 6, 3))
        t = [torch.tensor(x) for x in (*distance_as_dot(q, k), v)]
        agree(
            attention(q, k, v, score=l2_distance()),
            torch.nn.functional.scaled_dot_product_attention(*t, scale=0.5),
            function="scores.distance_as_dot",
            stranger="torch scaled_dot_product_attention of lifted queries and keys",
            version=f"torch {torch.__version__.partition('+')[0]}",
            dtype="float64",
        )

    def test_bad_input(self, xp, other):
        refuses_unlike_pairs(distance_as_dot, xp, other)


@pytest.mark.parametrize(("name", "invariant"), held("scores/similarity"))
def test_shared_invariants(xp, name, invariant):
    invariant(SUBJECTS[name], xp)
