"""softlookup.normalizers.sampling: noise from uniform numbers, the soft draw, and the hard draw with its gradient."""

import math

import numpy as np
import pytest
from invariants import held
from libraries import finite_differences
from subjects import SUBJECTS

from softlookup.lookup import attention, attention_vjp, hardmax, softmax, softmax_vjp
from softlookup.normalizers import gumbel_noise, gumbel_softmax, straight_through

INF, NAN = math.inf, math.nan


def random_arrays(seed, *shapes):
    rng = np.random.default_rng(seed)
    return [rng.normal(size=shape) for shape in shapes]


class TestGumbelNoise:
    def test_inverts_the_distribution_function(self, xp):
        u = np.linspace(0.01, 0.99, 50)
        noise = xp.numpy(gumbel_noise(xp.asarray(u)))
        np.testing.assert_allclose(np.exp(-np.exp(-noise)), u, rtol=1e-12)

    def test_edges(self, xp):
        np.testing.assert_array_equal(
            xp.numpy(gumbel_noise(xp.asarray([0.0, 1.0, -0.1, 1.1, NAN]))), [-INF, INF, NAN, NAN, NAN]
        )

    def test_its_moments_are_those_of_the_distribution(self):
        n = 200_000
        noise = gumbel_noise((np.arange(n) + 0.5) / n)  # the midpoint rule for the integral over u
        np.testing.assert_allclose(noise.mean(), np.euler_gamma, atol=1e-4)
        np.testing.assert_allclose(noise.var(), math.pi**2 / 6, atol=1e-3)

    def test_bad_input(self):
        with pytest.raises(TypeError, match=r"\bu\b"):
            gumbel_noise([0.5])


class TestGumbelSoftmax:
    def test_is_the_loop(self, xp):
        s, g = random_arrays(0, (3, 4), (3, 4))
        expected = [[math.exp((s[i, j] + g[i, j]) / 0.7) for j in range(4)] for i in range(3)]
        expected /= np.sum(expected, -1, keepdims=True)
        xp.check(gumbel_softmax(xp.asarray(g), temperature=0.7)(xp.asarray(s)), expected)

    def test_agrees_with_torch_given_its_noise(self, torch, agree):
        (s,) = random_arrays(1, (4, 5))
        torch.manual_seed(0)
        theirs = torch.nn.functional.gumbel_softmax(torch.tensor(s), tau=0.6)
        torch.manual_seed(0)
        noise = -torch.empty(4, 5, dtype=torch.float64).exponential_().log()
        agree(
            gumbel_softmax(noise.numpy(), temperature=0.6)(s),
            theirs,
            function="normalizers.gumbel_softmax",
            stranger="torch gumbel_softmax, with the noise it draws",
            version=f"torch {torch.__version__.partition('+')[0]}",
            dtype="float64",
        )

    def test_equals_softmax_without_noise(self, xp):
        s = xp.asarray(random_arrays(2, (3, 4))[0])
        zero = xp.asarray(np.zeros((1, 1)))
        xp.check(gumbel_softmax(zero, temperature=0.5)(s), xp.numpy(softmax(s, temperature=0.5)))

    def test_hidden_noise_and_scores_have_no_effect(self, xp):
        allowed = xp.asarray([[True, False, True]], "bool")
        s, noise = xp.asarray([[0.0, NAN, math.log(3)]]), xp.asarray([[0.0, INF, 0.0]])
        xp.check(gumbel_softmax(noise)(s, allowed), [[0.25, 0.0, 0.75]])

    def test_a_cold_draw_is_hard(self, xp):
        s, g = map(xp.asarray, random_arrays(3, (5, 4), (5, 4)))
        xp.check(gumbel_softmax(g, temperature=1e-4)(s), xp.numpy(straight_through(g)(s)), tolerance=0)

    def test_its_gradient(self, autograd):
        g, s, noise = random_arrays(4, (3, 4), (3, 4), (3, 4))
        allowed = np.random.default_rng(5).random((3, 4)) < 0.7
        normalize = gumbel_softmax(autograd.asarray(noise), temperature=0.8)
        mask = autograd.asarray(allowed, "bool")
        ours = normalize.vjp(autograd.asarray(g), autograd.asarray(s), mask)
        (theirs,) = autograd.vjp(lambda a: normalize(a, mask), *map(autograd.asarray, (g, s)))
        (differences,) = finite_differences(lambda a: gumbel_softmax(noise, temperature=0.8)(a, allowed), g, s)
        autograd.check(ours, autograd.numpy(theirs))
        autograd.check(ours, differences, tolerance=1e-8)

    def test_bad_input(self, xp, other):
        s = xp.asarray(np.ones((2, 3)))
        for function in (gumbel_softmax, straight_through):
            for temperature in (0.0, -1.0, INF):
                with pytest.raises(ValueError, match="temperature"):
                    function(s, temperature=temperature)
            with pytest.raises(ValueError, match=r"noise.*\(4, 2, 3\)"):
                function(xp.asarray(np.ones((4, 2, 3))))(s)
            with pytest.raises(TypeError, match="noise"):
                function([[1.0]])(s)
            with pytest.raises(TypeError, match="library"):
                function(other.asarray(np.ones((2, 3))))(s)
            with pytest.raises(TypeError, match="allowed"):
                function(s)(s, s)


class TestStraightThrough:
    def test_takes_the_first_of_the_largest_sums(self, xp):
        s, noise = xp.asarray([[1.0, 0.0, 2.0]]), xp.asarray([[1.0, 2.5, 0.5]])
        xp.check(straight_through(noise)(s), [[0.0, 1.0, 0.0]], tolerance=0)

    def test_agrees_with_torch_given_its_noise(self, torch, agree):
        (s,) = random_arrays(6, (40, 5))
        torch.manual_seed(1)
        theirs = torch.nn.functional.gumbel_softmax(torch.tensor(s), hard=True)
        torch.manual_seed(1)
        noise = -torch.empty(40, 5, dtype=torch.float64).exponential_().log()
        agree(
            straight_through(noise.numpy())(s),
            theirs.round(),
            function="normalizers.straight_through",
            stranger="torch gumbel_softmax(hard=True), with the noise it draws",
            version=f"torch {torch.__version__.partition('+')[0]}",
            dtype="float64",
            exact=True,
        )

    def test_draws_with_the_probabilities_of_softmax(self):
        """Noise at midpoints of u for two keys: the share of draws of the first is the integral of its probability."""
        n = 2000
        grid = gumbel_noise((np.arange(n) + 0.5) / n)
        noise = np.stack(np.meshgrid(grid, grid, indexing="ij"), axis=-1).reshape(-1, 2)
        s = np.broadcast_to(np.array([1.0, 0.0]), noise.shape)
        drawn = straight_through(noise)(s)[:, 0].mean()
        np.testing.assert_allclose(drawn, softmax(np.array([1.0, 0.0]))[0], atol=1e-3)

    def test_equals_hardmax_without_noise(self, xp):
        s = xp.asarray([[1.0, 1.0, 0.0], [-INF, -INF, -INF]])
        xp.check(straight_through(xp.asarray(0.0))(s), xp.numpy(hardmax(s)), tolerance=0)

    def test_its_gradient_is_that_of_the_soft_draw_in_torch(self, torch):
        g, s = random_arrays(7, (4, 5), (4, 5))
        torch.manual_seed(2)
        leaf = torch.tensor(s, requires_grad=True)
        torch.nn.functional.gumbel_softmax(leaf, tau=0.6, hard=True).backward(torch.tensor(g))
        torch.manual_seed(2)
        noise = -torch.empty(4, 5, dtype=torch.float64).exponential_().log()
        ours = straight_through(noise.numpy(), temperature=0.6).vjp(g, s)
        np.testing.assert_allclose(ours, leaf.grad, atol=1e-12)

    def test_its_gradient_reaches_queries(self):
        q, k, v, g, noise = random_arrays(8, (2, 3), (4, 3), (4, 2), (2, 2), (2, 4))
        normalize = straight_through(noise)
        dq, _, dv, _ = attention_vjp(g, q, k, v, normalize=normalize)
        s = q @ k.T / math.sqrt(3)
        np.testing.assert_allclose(dq, softmax_vjp(g @ v.T, s + noise) @ k / math.sqrt(3))
        np.testing.assert_allclose(dv, hardmax(s + noise).T @ g)
        assert np.isin(attention(q, k, v, normalize=normalize), v).all()


@pytest.mark.parametrize(("name", "invariant"), held("normalizers/sampling"))
def test_shared_invariants(xp, name, invariant):
    invariant(SUBJECTS[name], xp)
