"""softlookup.normalizers.transport: keys have a budget too."""

import itertools
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

from softlookup.lookup import attention, hardmax, log_sum_exp, softmax
from softlookup.normalizers import gumbel_noise, sinkhorn, softmax_over_queries

INF, NAN = math.inf, math.nan


def divide_rows(w):
    return [[x / (sum(row) or 1.0) for x in row] for row in w]


def divide_columns(w):
    return [list(row) for row in zip(*divide_rows([list(column) for column in zip(*w, strict=True)]), strict=True)]


def exponentials(s, allowed):
    return [[math.exp(x) if a else 0.0 for x, a in zip(*pair, strict=True)] for pair in zip(s, allowed, strict=True)]


def loop(s, allowed, steps):
    """Exponentials, divided by the sums of rows, then of columns and rows in turn."""
    w = divide_rows(exponentials(s, allowed))
    for _ in range(steps):
        w = divide_rows(divide_columns(w))
    return w


@st.composite
def tables(draw):
    shape = draw(st.integers(1, 5)), draw(st.integers(1, 5))
    return draw(hnp.arrays(np.float64, shape, elements=st.floats(-8, 8))), draw(hnp.arrays(bool, shape))


def square(seed=0, size=6):
    return np.random.default_rng(seed).normal(size=(size, size))


class TestSinkhorn:
    def test_by_hand(self, xp):
        s = xp.asarray([[math.log(4), 0.0], [0.0, 0.0]])
        xp.check(xp.quick(sinkhorn(steps=0))(s), [[4 / 5, 1 / 5], [1 / 2, 1 / 2]])
        # the columns 13/10 and 7/10 give 8/13, 2/7 and 5/13, 5/7: rows of 82/91 and 100/91
        xp.check(xp.quick(sinkhorn(steps=1))(s), [[56 / 82, 26 / 82], [35 / 100, 65 / 100]])

    @given(tables(), st.integers(0, 4))
    def test_is_the_loop(self, table, steps):
        np.testing.assert_allclose(sinkhorn(steps=steps)(*table), loop(*table, steps), rtol=1e-10, atol=1e-14)

    def test_agrees_with_a_loop_of_torch(self, torch, agree):
        s = square(1)
        theirs = torch.log_softmax(torch.tensor(s), dim=1)
        for _ in range(5):
            theirs = torch.log_softmax(torch.log_softmax(theirs, dim=0), dim=1)
        agree(
            sinkhorn(steps=5)(s),
            theirs.exp(),
            function="normalizers.sinkhorn",
            stranger="torch log_softmax, rows and columns in turn",
            version=f"torch {torch.__version__.partition('+')[0]}",
            dtype="float64",
        )

    def test_agrees_with_superglue_once_its_rows_are_divided_again(self, agree):
        fixture = frozen("transformers_sinkhorn")
        agree(
            sinkhorn(steps=4)(fixture["s"]),
            softmax(fixture["superglue"]),
            function="normalizers.sinkhorn",
            stranger="transformers, log_sinkhorn_iterations of SuperGlue, then softmax",
            version=fixture.version,
            dtype="float64",
        )

    def test_agrees_with_the_hyper_connections_of_deepseek_up_to_their_epsilon(self, agree):
        fixture = frozen("transformers_sinkhorn")
        agree(
            sinkhorn(steps=3)(fixture["comb"]),
            divide_rows(fixture["hyper"].tolist()),
            function="normalizers.sinkhorn",
            stranger="transformers, hyper-connections of DeepSeek-V4, then rows",
            version=fixture.version,
            dtype="float64",
            clash="adds 1e-6 to every sum, and divides the columns last",
        )

    def test_agrees_with_the_assignment_of_scipy_at_a_low_temperature(self, agree):
        fixture = frozen("scipy_assignment")
        agree(
            sinkhorn(steps=300)(fixture["s"] / 0.005),
            fixture["best"],
            function="normalizers.sinkhorn",
            stranger="scipy linear_sum_assignment, limit of low temperature",
            version=fixture.version,
            dtype="float64",
        )

    def test_two_by_two_limit_is_a_root(self):
        x = 1 / (1 + math.exp(-(1.0 + 2.0 + 0.5 - 0.3) / 2))
        w = sinkhorn(steps=60)(np.array([[1.0, -0.5], [0.3, 2.0]]))
        np.testing.assert_allclose(w, [[x, 1 - x], [1 - x, x]], rtol=1e-12)

    def test_without_steps_is_softmax_and_rows_always_sum_to_one(self, xp):
        s, allowed = square(3)[:, :4], np.random.default_rng(3).random((6, 4)) < 0.7
        ours = xp.quick(sinkhorn(steps=0))(xp.asarray(s), xp.asarray(allowed, "bool"))
        xp.check(ours, softmax(s, allowed))
        for steps in (1, 2, 7):
            np.testing.assert_allclose(sinkhorn(steps=steps)(s).sum(-1), 1, rtol=1e-12)

    @pytest.mark.parametrize(("n", "m"), [(6, 6), (3, 6), (6, 3), (1, 4), (4, 1)])
    def test_columns_approach_their_equal_share(self, n, m):
        s = np.random.default_rng(4).normal(size=(n, m))
        w = sinkhorn(steps=200)(s)
        np.testing.assert_allclose(w.sum(0), n / m, rtol=1e-12)
        np.testing.assert_allclose(w.sum(1), 1, rtol=1e-12)

    def test_the_distance_to_the_limit_never_grows(self):
        s = 2 * square(5)
        off = [np.abs(sinkhorn(steps=t)(s).sum(0) - 1).sum() for t in range(30)]
        assert all(late <= early + 1e-12 for early, late in itertools.pairwise(off))
        assert off[-1] < 1e-2 * off[0]

    def test_is_a_softmax_with_prices(self):
        s = square(6)
        w = sinkhorn(steps=3)(s)
        prices = s - np.log(w)
        prices -= prices[:, :1]
        np.testing.assert_allclose(prices, np.broadcast_to(prices[0], prices.shape), atol=1e-9)
        np.testing.assert_allclose(softmax(s - prices[0]), w, atol=1e-11)

    def test_the_limit_has_the_best_sum_of_scores_and_entropy(self):
        s, rng = square(7), np.random.default_rng(7)
        w = sinkhorn(steps=300)(s)

        def worth(w):
            return np.sum(w * s) - np.sum(w * np.log(w))

        for _ in range(20):
            i, j = rng.choice(6, 2, replace=False), rng.choice(6, 2, replace=False)
            moved = w.copy()
            moved[np.ix_(i, j)] += 1e-3 * np.array([[1, -1], [-1, 1]]) * rng.choice([-1, 1])
            assert moved.min() > 0
            assert worth(moved) < worth(w)

    def test_constants_on_rows_and_columns_do_not_reach_the_limit(self):
        s = square(8)
        moved = s + 5 * square(9)[:, :1] + 5 * square(9)[:1]
        np.testing.assert_allclose(sinkhorn(steps=30)(moved), sinkhorn(steps=30)(s), atol=1e-6)

    def test_a_causal_mask_drives_every_query_to_itself(self):
        s, causal = square(10, 4), np.tri(4, dtype=bool)
        gaps = [1 - np.diag(sinkhorn(steps=t)(s, causal)).min() for t in (0, 20, 200, 2000)]
        assert gaps == sorted(gaps, reverse=True)
        assert gaps[-1] < 1e-2
        np.testing.assert_allclose(gaps[2] / gaps[3], 10, rtol=0.1)  # only as one over the steps

    def test_a_causal_mask_does_not_keep_the_future_out(self):
        s, causal = square(11), np.tri(6, dtype=bool)
        other = s.copy()
        other[4:] = square(12)[4:]
        for function in (sinkhorn(steps=1), softmax_over_queries):
            assert np.abs(function(s, causal)[:4] - function(other, causal)[:4]).max() > 1e-3
        np.testing.assert_allclose(sinkhorn(steps=0)(s, causal)[:4], sinkhorn(steps=0)(other, causal)[:4])

    def test_a_mask_without_an_assignment_still_gives_rows_of_one(self):
        allowed = np.array([[1, 0, 0], [1, 0, 0], [1, 1, 1]], dtype=bool)
        w = sinkhorn(steps=50)(np.zeros((3, 3)), allowed)
        np.testing.assert_allclose(w[:2], [[1, 0, 0], [1, 0, 0]])
        np.testing.assert_allclose(w[2], [0, 1 / 2, 1 / 2], atol=1e-9)

    def test_empty_rows_and_columns_and_hidden_nan(self, xp):
        s = np.array([[1.0, NAN, 0.0], [NAN, NAN, NAN], [0.5, NAN, 2.0]])
        allowed = np.array([[1, 0, 1], [0, 0, 0], [1, 0, 1]], dtype=bool)
        kept = np.ix_([0, 2], [0, 2])
        for function in (sinkhorn(steps=2), softmax_over_queries):
            expected = np.zeros((3, 3))
            expected[kept] = function(s[kept])
            xp.check(xp.quick(function)(xp.asarray(s), xp.asarray(allowed, "bool")), expected)

    def test_large_scores_lose_no_key(self, xp):
        s = xp.asarray([[[1e4, 0.0], [1e4, 0.0]], [[-1e4, 0.0], [0.0, 1e4]]])
        xp.check(xp.quick(sinkhorn(steps=1))(s), np.full((2, 2, 2), 0.5))

    def test_infinite_scores(self, xp):
        s = xp.asarray([[INF, 5.0, INF], [0.0, -INF, 0.0], [0.0, 0.0, -INF]])
        xp.check(xp.quick(sinkhorn(steps=0))(s), [[0.5, 0.0, 0.5], [0.5, 0.0, 0.5], [0.5, 0.5, 0.0]])
        # the columns 3/2, 1/2 and 1 give rows of 1/3 + 1/2, twice, and of 1/3 + 1
        xp.check(xp.quick(sinkhorn(steps=1))(s), [[0.4, 0.0, 0.6], [0.4, 0.0, 0.6], [0.25, 0.75, 0.0]])

    def test_a_visible_nan_spreads_with_the_steps(self, xp):
        """It reaches the rows that share a key with it, and neither those that do not nor those that read nothing."""
        s = xp.asarray([[NAN, 1.0, 0.0], [0.0, 0.0, 0.0], [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
        allowed = xp.asarray([[1, 1, 0], [1, 1, 0], [0, 0, 1], [0, 0, 0]], "bool")
        rest = [[0.0, 0.0, 1.0], [0.0, 0.0, 0.0]]
        xp.check(xp.quick(sinkhorn(steps=0))(s, allowed), [[NAN, NAN, 0.0], [0.5, 0.5, 0.0], *rest])
        for function in (sinkhorn(steps=1), softmax_over_queries):
            xp.check(xp.quick(function)(s, allowed), [[NAN, NAN, 0.0], [NAN, NAN, 0.0], *rest])

    def test_gradients(self, autograd):
        """Two random tables with a row that reads nothing, and one with NaN and infinity."""
        rng = np.random.default_rng(13)
        g, s, allowed = rng.normal(size=(3, 3, 4)), rng.normal(size=(3, 3, 4)), rng.random((3, 3, 4)) < 0.8
        allowed[:2, 1] = False
        s[2] = [[NAN, -INF, 0.5, 0.0], [0.0, INF, 1.0, 0.3], [NAN] * 4]
        allowed[2] = [[False, True, True, True], [True] * 4, [False] * 4]
        mask, arrays = autograd.asarray(allowed, "bool"), [autograd.asarray(a) for a in (g, s)]
        for function in (sinkhorn(steps=2), softmax_over_queries):
            (expected,) = finite_differences(lambda a, f=function: f(a, allowed), g, s)
            (ours,) = autograd.vjp(lambda a, f=function: f(a, mask), *arrays)
            autograd.check(ours, expected, tolerance=1e-8)
            assert not expected[2, 2].any()

    def test_the_gradient_of_the_limit_solves_a_linear_system(self, autograd):
        s, g = 0.05 * square(15, 4), square(16, 4)
        w = sinkhorn(steps=3)(s)
        system = np.block([[np.eye(4), w], [w.T, np.eye(4)]])
        a, b = np.split(np.linalg.lstsq(system, np.concat([(w * g).sum(1), (w * g).sum(0)]))[0], 2)
        (ours,) = autograd.vjp(sinkhorn(steps=3), *map(autograd.asarray, (g, s)))
        autograd.check(ours, w * (g - a[:, None] - b), tolerance=1e-8)

    def test_thousands_of_keys_and_half_precision(self, xp):
        for dtype in ("float32", *xp.narrow_dtypes):
            s = xp.asarray(np.zeros((2, 4096)), dtype)
            xp.check(xp.quick(sinkhorn(steps=2))(s), np.full((2, 4096), 1 / 4096), dtype=dtype)

    def test_bad_input(self, xp, other):
        with pytest.raises(ValueError, match=r"steps is -1.*negative"):
            sinkhorn(steps=-1)
        with pytest.raises(TypeError, match="steps"):
            sinkhorn(steps=1.5)
        s = xp.asarray(np.ones((2, 3)))
        for function in (sinkhorn(steps=1), softmax_over_queries):
            with pytest.raises(ValueError, match=r"\bs\b.*\(3,\).*n, m"):
                function(xp.asarray(np.ones(3)))
            with pytest.raises(ValueError, match=r"allowed.*\(3, 3\)"):
                function(s, xp.asarray(np.ones((3, 3)), "bool"))
            with pytest.raises(TypeError, match="allowed"):
                function(s, s)
            with pytest.raises(TypeError, match="allowed"):
                function(s, other.asarray(np.ones((2, 3)), "bool"))
            with pytest.raises(TypeError, match=r"\bs\b"):
                function([[1.0]])


class TestSoftmaxOverQueries:
    def test_by_hand(self, xp):
        s = xp.asarray([[math.log(4), 0.0], [0.0, 0.0]])
        # the first key chooses 4/5 and 1/5, the second 1/2 and 1/2: rows of 13/10 and 7/10
        xp.check(xp.quick(softmax_over_queries)(s), [[8 / 13, 5 / 13], [2 / 7, 5 / 7]])

    @given(tables())
    def test_is_the_loop(self, table):
        expected = divide_rows(divide_columns(exponentials(*table)))
        np.testing.assert_allclose(softmax_over_queries(*table), expected, rtol=1e-10, atol=1e-14)

    def test_agrees_with_jax(self, jax, agree):
        s = square(17)[:4]
        choices = jax.nn.softmax(jax.numpy.asarray(s), axis=0)
        agree(
            softmax_over_queries(s),
            choices / choices.sum(axis=1, keepdims=True),
            function="normalizers.softmax_over_queries",
            stranger="jax softmax over axis 0, then a weighted mean",
            version=f"jax {jax.__version__}",
            dtype="float64",
        )

    def test_agrees_with_fla_after_one_of_its_steps(self, agree):
        fixture = frozen("fla_sinkhorn")
        agree(
            softmax_over_queries(fixture["s"]),
            fixture["one"],
            function="normalizers.softmax_over_queries",
            stranger="fla naive_sinkhorn, one step",
            version=fixture.version,
            dtype="float32",
        )
        begun = np.log(softmax_over_queries(fixture["s"]))
        np.testing.assert_allclose(sinkhorn(steps=6)(begun), fixture["seven"], rtol=1e-5)

    def test_is_one_step_of_sinkhorn_on_divided_rows(self, xp):
        s = square(18)[:, :4]
        logs = s - log_sum_exp(s)[:, None]
        xp.check(xp.quick(softmax_over_queries)(xp.asarray(logs)), sinkhorn(steps=1)(s))

    def test_one_query_reads_everything_equally(self, xp):
        s = xp.asarray([[[5.0, -3.0, 0.0, 1.0]]] * 2)
        allowed = xp.asarray([[[True] * 4], [[True, False, True, False]]], "bool")
        xp.check(xp.quick(softmax_over_queries)(s, allowed), [[[0.25] * 4], [[0.5, 0.0, 0.5, 0.0]]])

    def test_a_constant_on_a_column_changes_nothing(self):
        s = square(19)
        moved = softmax_over_queries(s + 7 * square(20)[:1])
        np.testing.assert_allclose(moved, softmax_over_queries(s), atol=1e-9)

    def test_a_query_that_loses_every_key_by_far_still_reads(self, xp):
        s = xp.asarray([[1e4, 1e4], [0.0, math.log(3)]])
        xp.check(xp.quick(softmax_over_queries)(s), [[0.5, 0.5], [0.25, 0.75]])

    def test_a_query_that_loses_every_key_to_infinity_reads_nothing(self, xp):
        s = xp.asarray([[INF, INF], [0.0, 1.0], [0.0, INF]])
        xp.check(xp.quick(softmax_over_queries)(s), [[2 / 3, 1 / 3], [0.0, 0.0], [0.0, 1.0]])

    def test_low_temperature_gives_each_key_to_one_query(self):
        s = square(21, 5)
        owners = hardmax(s.T).T
        expected = owners / np.where(owners.sum(1) == 0, 1, owners.sum(1))[:, None]
        read = owners.any(1)
        np.testing.assert_allclose(softmax_over_queries(s * 1e4)[read], expected[read], atol=1e-9)

    def test_serves_attention(self, xp):
        rng = np.random.default_rng(22)
        q, k, v = (rng.normal(size=size) for size in ((2, 3, 4), (2, 5, 4), (2, 5, 2)))
        choices = np.exp(q @ k.mT / 2)
        choices /= choices.sum(-2, keepdims=True)
        expected = choices / choices.sum(-1, keepdims=True) @ v
        run = xp.quick(lambda *a: attention(*a, normalize=softmax_over_queries))
        xp.check(run(*map(xp.asarray, (q, k, v))), expected)


def test_gumbel_noise_on_the_scores_draws_assignments():
    """With noise from the sampling page and a low temperature, every draw is close to a permutation."""
    u = np.random.default_rng(23).uniform(0.01, 0.99, size=(8, 4, 4))
    draws = sinkhorn(steps=500)((square(24, 4) + gumbel_noise(u)) / 0.02)
    best = [max(itertools.permutations(range(4)), key=lambda p, t=t: sum(t[range(4), p])) for t in draws]
    close = [np.mean([w[i, j] for i, j in enumerate(p)]) for w, p in zip(draws, best, strict=True)]
    assert np.mean(close) > 0.9
    assert len({tuple(p) for p in best}) > 1


@pytest.mark.parametrize(("name", "invariant"), held("normalizers/transport"))
def test_shared_invariants(xp, name, invariant):
    invariant(SUBJECTS[name], xp)
