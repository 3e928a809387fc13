"""softlookup.scores.temperature: factors of rows, and the softmax whose base is the number of keys."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from invariants import held
from libraries import finite_differences
from subjects import SUBJECTS

from softlookup.lookup import attention, attention_vjp, attention_weights, entropy, gaussian_score, scaled_dot, softmax
from softlookup.scores import log_length, position_temperature, row_scaled, scalable_softmax

INF, NAN = math.inf, math.nan


def random_arrays(seed, *shapes):
    rng = np.random.default_rng(seed)
    return [rng.normal(size=shape) for shape in shapes]


class TestRowScaled:
    def test_is_the_loop(self, xp):
        q, k, f = random_arrays(0, (3, 4), (5, 4), (3,))
        expected = [[f[i] * sum(q[i] * k[j]) / 2 for j in range(5)] for i in range(3)]
        xp.check(row_scaled(xp.asarray(f))(xp.asarray(q), xp.asarray(k)), expected)

    def test_one_number_for_each_head(self, xp):
        q, k, f = random_arrays(1, (2, 3, 4), (2, 5, 4), (2, 1))
        s = xp.numpy(scaled_dot()(xp.asarray(q), xp.asarray(k)))
        xp.check(row_scaled(xp.asarray(f))(xp.asarray(q), xp.asarray(k)), f[:, :, None] * s)

    def test_equals_a_temperature_of_softmax(self, xp):
        q, k = map(xp.asarray, random_arrays(2, (3, 4), (5, 4)))
        sharp = row_scaled(xp.asarray(4.0), score=gaussian_score())
        weights = xp.numpy(softmax(gaussian_score()(q, k), temperature=0.25))
        xp.check(attention_weights(q, k, score=sharp), weights)

    def test_agrees_with_scaled_queries_in_torch(self, torch, agree):
        q, k, v = random_arrays(3, (1, 2, 5, 4), (1, 2, 6, 4), (1, 2, 6, 3))
        f = np.random.default_rng(4).uniform(0.5, 3, size=(1, 2, 5))
        theirs = torch.nn.functional.scaled_dot_product_attention(*map(torch.tensor, (q * f[..., None], k, v)))
        agree(
            attention(q, k, v, score=row_scaled(f)),
            theirs,
            function="scores.row_scaled",
            stranger="torch scaled_dot_product_attention of scaled queries",
            version=f"torch {torch.__version__.partition('+')[0]}",
            dtype="float64",
        )

    def test_its_gradient_passes_through_attention(self, autograd):
        q, k, v, g, f = map(autograd.asarray, random_arrays(5, (2, 3), (4, 3), (4, 2), (2, 2), (2,)))
        score = row_scaled(f)
        expected = autograd.vjp(lambda *a: attention(*a, score=score), g, q, k, v)
        for ours, theirs in zip(attention_vjp(g, q, k, v, score=score)[:3], expected, strict=True):
            autograd.check(ours, autograd.numpy(theirs), tolerance=1e-11)

    def test_a_factor_learns(self, autograd):
        q, k, g, f = random_arrays(6, (2, 3), (4, 3), (2, 4), (2,))
        (expected,) = finite_differences(lambda a: row_scaled(a)(q, k), g, f)
        (ours,) = autograd.vjp(
            lambda a: row_scaled(a)(autograd.asarray(q), autograd.asarray(k)), *map(autograd.asarray, (g, f))
        )
        np.testing.assert_allclose(autograd.numpy(ours), expected, atol=1e-8)

    def test_infinite_scores_stay_even_under_a_factor_of_zero(self, xp):
        def infinite(q, k):
            return xp.asarray([[1.0, -INF]]) + 0 * (q @ k.mT)

        xp.check(row_scaled(xp.asarray([0.0]), score=infinite)(xp.asarray([[1.0]]), xp.asarray([[1.0]])), [[0.0, -INF]])

    def test_bad_input(self, xp, other):
        q = xp.asarray(np.ones((3, 2)))
        with pytest.raises(TypeError, match="score"):
            row_scaled(q, score=2.0)
        with pytest.raises(ValueError, match=r"factor.*\(2,\).*\(3,\)"):
            row_scaled(xp.asarray(np.ones(2)))(q, q)
        with pytest.raises(TypeError, match="factor"):
            row_scaled(2.0)(q, q)
        with pytest.raises(TypeError, match="library"):
            row_scaled(other.asarray(np.ones(3)))(q, q)


class TestLogLength:
    def test_by_hand(self, xp):
        xp.check(log_length(xp.asarray([2.0, 4.0, 8.0, 32.0]), trained=4), [0.5, 1.0, 1.5, 2.5])

    def test_one_key_or_none_has_the_factor_zero(self, xp):
        xp.check(log_length(xp.asarray([0.0, 1.0]), trained=10.0), [0.0, 0.0])

    def test_holds_the_sharpest_weight_of_bounded_scores(self):
        for n in (10, 100, 1000):
            s = np.zeros((1, n))
            s[0, 0] = 2 * math.log(10)
            top = softmax(s * log_length(np.asarray([n]), trained=10)[:, None])[0, 0]
            np.testing.assert_allclose(top, n**2 / (n**2 + n - 1), rtol=1e-12)

    def test_bad_input(self, xp):
        for trained in (1, 0.5, -3.0):
            with pytest.raises(ValueError, match=rf"trained is {trained}"):
                log_length(xp.asarray([2.0]), trained=trained)
        with pytest.raises(ValueError, match="trained"):
            log_length(xp.asarray([2.0]), trained=INF)
        with pytest.raises(ValueError, match=r"visible.*\(\)"):
            log_length(xp.asarray(2.0), trained=2)
        with pytest.raises(TypeError, match="visible"):
            log_length([2.0], trained=2)


class TestPositionTemperature:
    @given(st.integers(0, 10**6), st.integers(1, 10**5), st.floats(-2, 2))
    def test_is_the_formula(self, position, step, strength):
        expected = 1 + strength * math.log(1 + (position + 1) // step)
        out = position_temperature(np.asarray([position]), step=step, strength=strength)
        np.testing.assert_allclose(out, [expected], rtol=1e-12)

    def test_grows_at_the_last_position_of_each_step(self, xp):
        p = np.arange(12.0)
        grown = [1.0] * 3 + [1 + math.log(2)] * 4 + [1 + math.log(3)] * 4 + [1 + math.log(4)]
        xp.check(position_temperature(xp.asarray(p), step=4, strength=1), grown)

    def test_positions_before_zero_count_as_zero(self, xp):
        xp.check(position_temperature(xp.asarray([-9.0, 0.0]), step=1, strength=1.0), [1 + math.log(2)] * 2)

    def test_bad_input(self, xp):
        p = xp.asarray([1.0])
        for step in (0, -1, INF):
            with pytest.raises(ValueError, match="step"):
                position_temperature(p, step=step, strength=1.0)
        with pytest.raises(ValueError, match="strength"):
            position_temperature(p, step=1, strength=NAN)
        with pytest.raises(ValueError, match=r"positions.*\(\)"):
            position_temperature(xp.asarray(1.0), step=1, strength=1.0)


class TestScalableSoftmax:
    def test_is_the_loop_of_powers(self, xp):
        s, p = random_arrays(7, (4, 5), (4,))
        allowed = np.array([[1, 1, 1, 1, 1], [1, 0, 1, 0, 0], [0, 0, 0, 1, 0], [0, 0, 0, 0, 0]], dtype=bool)
        expected = np.zeros((4, 5))
        for i in range(4):
            n = int(allowed[i].sum())
            powers = [n ** (p[i] * s[i, j]) if allowed[i, j] else 0.0 for j in range(5)]
            expected[i] = np.array(powers) / (sum(powers) or 1)
        xp.check(scalable_softmax(xp.asarray(p))(xp.asarray(s), xp.asarray(allowed, "bool")), expected)

    def test_agrees_with_softmax_of_torch(self, torch, agree):
        (s,) = random_arrays(8, (3, 6))
        agree(
            scalable_softmax(np.asarray(0.43), shift=0.2)(s),
            torch.softmax((0.43 * math.log(6) + 0.2) * torch.tensor(s), -1),
            function="scores.scalable_softmax",
            stranger="torch.softmax of multiplied scores",
            version=f"torch {torch.__version__.partition('+')[0]}",
            dtype="float64",
        )

    def test_equals_softmax_without_strength(self, xp):
        s = xp.asarray(random_arrays(9, (3, 6))[0])
        xp.check(scalable_softmax(xp.asarray(0.0), shift=1.0)(s), xp.numpy(softmax(s)))

    def test_equals_the_log_length_factor(self, xp):
        (s,) = random_arrays(10, (5, 5))
        causal = np.tri(5, dtype=bool)
        factor = xp.numpy(log_length(xp.asarray(causal.sum(-1)), trained=64))
        expected = softmax(s * factor[:, None], causal)
        p = xp.asarray(1 / math.log(64))
        xp.check(scalable_softmax(p)(xp.asarray(s), xp.asarray(causal, "bool")), expected)

    def test_subtracting_a_multiple_of_log_n_would_do_nothing(self):
        (s,) = random_arrays(11, (1, 6))
        ours = scalable_softmax(np.asarray(1.0))(s)
        np.testing.assert_allclose(softmax(s - math.log(6)), softmax(s))
        assert entropy(ours) < entropy(softmax(s))

    def test_infinite_and_hidden_scores(self, xp):
        s = xp.asarray([[-INF, 1.0, NAN], [INF, 1.0, NAN], [-INF, NAN, NAN], [2.0, NAN, NAN]])
        allowed = xp.asarray([[1, 1, 0], [1, 1, 0], [1, 0, 0], [1, 0, 0]], "bool")
        expected = [[0.0, 1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 0.0], [1.0, 0.0, 0.0]]
        xp.check(scalable_softmax(xp.asarray(1.0))(s, allowed), expected)

    def test_hidden_nan_reaches_no_gradient(self, autograd):
        s, allowed = autograd.asarray([[1.0, NAN, 0.5]]), autograd.asarray([[True, False, True]], "bool")
        gradients = autograd.vjp(
            lambda s, p: scalable_softmax(p)(s, allowed),
            autograd.asarray([[1.0, 2.0, 3.0]]),
            s,
            autograd.asarray([0.7]),
        )
        w = 1 / (1 + 2 ** (-0.7 * 0.5))
        ds = w * (1 - w) * (1 - 3) * math.log(2)
        autograd.check(gradients[0], [[0.7 * ds, 0.0, -0.7 * ds]])
        autograd.check(gradients[1], [0.5 * ds])

    def test_bad_input(self, xp):
        s = xp.asarray(np.ones((2, 3)))
        with pytest.raises(ValueError, match="shift"):
            scalable_softmax(s, shift=INF)
        with pytest.raises(ValueError, match=r"p has shape \(3,\).*\(2,\)"):
            scalable_softmax(xp.asarray(np.ones(3)))(s)
        with pytest.raises(TypeError, match=r"\bp\b"):
            scalable_softmax(1.0)(s)
        with pytest.raises(TypeError, match="allowed"):
            scalable_softmax(xp.asarray(1.0))(s, s)


@pytest.mark.parametrize(("name", "invariant"), held("scores/temperature"))
def test_shared_invariants(xp, name, invariant):
    invariant(SUBJECTS[name], xp)
