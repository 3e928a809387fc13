"""softlookup.normalizers.sparse_simplex: weights that sum to one and are exactly zero for scores too far below."""

import decimal
import functools
import itertools
import math

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from invariants import held
from libraries import finite_differences
from oracles.freeze import frozen
from subjects import SUBJECTS

from softlookup.lookup import attention, attention_vjp, hardmax_average, softmax, softmax_vjp
from softlookup.normalizers import entmax, entmax15, entmax_vjp, sparsemax, sparsemax_vjp

INF, NAN = math.inf, math.nan
ALPHAS = (1.1, 1.5, 2.0, 3.0)
NORMALIZERS = {"sparsemax": sparsemax, "entmax15": entmax15} | {f"alpha {a}": entmax(alpha=a) for a in ALPHAS}
each = pytest.mark.parametrize("normalize", NORMALIZERS.values(), ids=NORMALIZERS)


def some(xp, *compiled):
    """All normalizers; where each is compiled anew those named, as the search is one program for every alpha."""
    return [NORMALIZERS[name] for name in compiled] if xp.compiles else NORMALIZERS.values()


def projection(row):
    """The nearest distribution, found by trying every set of items that could be the ones with a weight."""
    best = None
    for size in range(1, len(row) + 1):
        for support in itertools.combinations(range(len(row)), size):
            threshold = (math.fsum(row[j] for j in support) - 1) / size
            p = [row[j] - threshold if j in support else 0.0 for j in range(len(row))]
            distance = math.fsum((x - y) ** 2 for x, y in zip(p, row, strict=True))
            if min(p) >= 0 and (best is None or distance < best[0]):
                best = distance, p
    return best[1]


def by_threshold(row, alpha):
    """One row in thirty digits: halve the interval of the threshold until the weights sum to one."""
    with decimal.localcontext(prec=30):
        beta = decimal.Decimal(alpha) - 1
        y = [beta * (decimal.Decimal(x) - decimal.Decimal(max(row))) for x in row]
        low, high = decimal.Decimal(-1), decimal.Decimal(0)

        def weights(t):
            return [(x - t) ** (1 / beta) if x > t else decimal.Decimal(0) for x in y]

        for _ in range(85):
            middle = (low + high) / 2
            low, high = (middle, high) if sum(weights(middle)) > 1 else (low, middle)
        return [float(p) for p in weights(low)]


@st.composite
def rows(draw):
    s = draw(hnp.arrays(np.float64, st.integers(1, 6), elements=st.floats(-3, 3)))
    allowed = draw(hnp.arrays(bool, s.shape))
    allowed[0] = True
    return s, allowed


def spread(f, s, allowed):
    """What `f` gives for the allowed scores, in their places, and zero elsewhere."""
    out = np.zeros(s.shape)
    out[allowed] = f(s[allowed].tolist())
    return out


class TestSparsemax:
    def test_by_hand(self, xp):
        s = xp.asarray([[1.0, 0.5, 0.0], [0.0, 0.0, 0.0], [0.3, 0.2, 0.1], [3.0, 2.0, 1.0]])
        expected = [[0.75, 0.25, 0.0], [1 / 3] * 3, [1.3 / 3, 1 / 3, 0.7 / 3], [1.0, 0.0, 0.0]]
        xp.check(xp.quick(sparsemax)(s), expected)

    @given(rows())
    @example((np.array([1.0, 0.0, 1e-16]), np.ones(3, dtype=bool)))
    def test_is_the_nearest_distribution(self, row):
        np.testing.assert_allclose(sparsemax(*row), spread(projection, *row), rtol=1e-12, atol=1e-14)

    def test_is_onto_a_distribution_itself(self, xp):
        p = [[0.5, 0.25, 0.25], [0.5, 0.5, 0.0], [1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]
        xp.check(xp.quick(sparsemax)(xp.asarray(p)), p)

    def test_agrees_with_the_package_entmax(self, agree):
        fixture = frozen("entmax_package")
        agree(
            sparsemax(fixture["s"]),
            fixture["sparsemax"],
            function="normalizers.sparsemax",
            stranger="entmax, sparsemax",
            version=fixture.version,
            dtype="float64",
        )

    def test_rounding_makes_no_weight_negative(self):
        # the leads over the last score are one in sum; added up in floating point they are a little more
        hundredths = np.array([0, 2, 4, 5, 3, 1, 3, 1, 3, 3, 1, 2, 4, 2])
        w = sparsemax(np.append(hundredths / 100, (0.34 - 1) / 14))
        np.testing.assert_allclose(w, np.append(hundredths / 100 + 0.66 / 14, 0), atol=1e-15)
        assert w.min() == 0

    def test_two_items_are_a_line_cut_off(self, xp):
        difference = np.linspace(-2, 2, 17)
        s = xp.asarray(np.stack([difference, np.zeros(17)], axis=-1))
        first = np.clip((1 + difference) / 2, 0, 1)
        xp.check(xp.quick(sparsemax)(s), np.stack([first, 1 - first], axis=-1))

    @given(rows())
    def test_items_are_in_until_the_leads_over_them_use_up_the_budget(self, row):
        s, allowed = row
        leads = [np.maximum(s[allowed] - x, 0).sum() for x in s]
        w = sparsemax(*row)
        for weight, lead, a in zip(w, leads, allowed, strict=True):
            assert (weight > 1e-12) == (a and lead < 1) or abs(lead - 1) < 1e-9


class TestEntmax15:
    def test_by_hand(self, xp):
        # squares of (0.6, 0.8, 0) and of (1, 0): halves of the scores differ as the roots of the weights do
        s = xp.asarray([[0.0, 0.4, -2.0], [2.0, 0.0, -INF], [0.0, 0.0, 0.0]])
        xp.check(xp.quick(entmax15)(s), [[0.36, 0.64, 0.0], [1.0, 0.0, 0.0], [1 / 3] * 3])

    @given(rows())
    def test_is_the_threshold_in_thirty_digits(self, row):
        expected = spread(functools.partial(by_threshold, alpha=1.5), *row)
        np.testing.assert_allclose(entmax15(*row), expected, rtol=1e-11, atol=1e-14)

    def test_agrees_with_the_package_entmax(self, agree):
        fixture = frozen("entmax_package")
        agree(
            entmax15(fixture["s"]),
            fixture["entmax15"],
            function="normalizers.entmax15",
            stranger="entmax, entmax15",
            version=fixture.version,
            dtype="float64",
        )


class TestEntmax:
    @given(rows(), st.sampled_from([1.01, 1.3, 1.5, 2.0, 2.5, 4.0]))
    def test_is_the_threshold_in_thirty_digits(self, row, alpha):
        expected = spread(functools.partial(by_threshold, alpha=alpha), *row)
        ours = entmax(alpha=alpha)(*row)
        # above two the slope is infinite at the threshold: a rounding error there grows to its root
        np.testing.assert_allclose(ours, expected, atol=1e-13 if alpha <= 2 else 1e-16 ** (0.9 / (alpha - 1)))

    def test_agrees_with_the_package_entmax(self, agree):
        fixture = frozen("entmax_package")
        ours = [entmax(alpha=alpha)(fixture["s"]) for alpha in fixture["alphas"]]
        agree(
            np.stack(ours),
            fixture["bisect"],
            function="normalizers.entmax",
            stranger="entmax, entmax_bisect",
            version=fixture.version,
            dtype="float64",
        )

    def test_two_is_sparsemax_and_one_and_a_half_is_entmax15(self, xp):
        s = np.random.default_rng(0).normal(size=(6, 9))
        xp.check(xp.quick(entmax(alpha=2))(xp.asarray(s)), sparsemax(s))
        if not xp.compiles:
            xp.check(entmax(alpha=1.5)(xp.asarray(s)), entmax15(s))

    def test_one_is_softmax_and_it_is_reached_without_loss(self):
        s = np.random.default_rng(1).normal(size=(4, 7)) * 5
        np.testing.assert_array_equal(entmax(alpha=1)(s), softmax(s))
        np.testing.assert_allclose(entmax(alpha=1 + 2**-52)(s), softmax(s), rtol=1e-12)
        for step in (1e-3, 1e-6, 1e-9, 1e-12):
            change = (entmax(alpha=1 + step)(s) - softmax(s)) / step
            w, logs = softmax(s), np.log(softmax(s))
            slope = -w * (logs**2 - (w * logs**2).sum(-1, keepdims=True)) / 2
            np.testing.assert_allclose(change, slope, atol=50 * step + 1e-15 / step)

    def test_near_one_small_weights_keep_their_digits(self):
        row = [0.0, -20.0, -40.0]
        np.testing.assert_allclose(entmax(alpha=1.001)(np.array(row)), by_threshold(row, 1.001), rtol=1e-11)

    def test_large_alpha_reads_the_best_alone(self, xp):
        s = np.array([[1.0, 3.0, 3.0], [0.0, -1e-3, -INF], [-INF, -INF, -INF]])
        for alpha in (1e300,) if xp.compiles else (1e4, 1e30, 1e300):
            xp.check(xp.quick(entmax(alpha=alpha))(xp.asarray(s)), hardmax_average(s))

    def test_many_equal_scores_with_large_alpha_in_single_precision(self, xp):
        ours = xp.quick(entmax(alpha=5.0))(xp.asarray(np.zeros((1, 4096)), "float32"))
        xp.check(ours, np.full((1, 4096), 1 / 4096), dtype="float32", tolerance=0)

    def test_bad_alpha(self):
        for alpha in (0.99, -1.0, INF, NAN):
            with pytest.raises(ValueError, match="alpha"):
                entmax(alpha=alpha)
        with pytest.raises(ValueError, match=r"alpha is 0\.5; it must be at least one"):
            entmax_vjp(np.ones(2), np.ones(2), alpha=0.5)
        with pytest.raises(TypeError, match="alpha"):
            entmax(alpha="2")
        with pytest.raises(TypeError, match="alpha"):
            entmax(alpha=np.array([1.5, 2.0]))


class TestEvery:
    def test_edges(self, xp):
        s = xp.asarray([[INF, 5.0, INF], [1.0, -INF, NAN], [NAN, 0.0, 1.0], [-INF, -INF, 2.0], [1e300, -1e300, 0.0]])
        allowed = xp.asarray([[1, 1, 1], [1, 1, 0], [1, 1, 0], [1, 1, 0], [1, 1, 1]], "bool")
        expected = [[0.5, 0.0, 0.5], [1.0, 0.0, 0.0], [NAN] * 3, [0.0] * 3, [1.0, 0.0, 0.0]]
        for normalize in some(xp, "sparsemax", "entmax15", "alpha 3.0"):
            xp.check(xp.quick(normalize)(s, allowed), expected)

    @each
    def test_exactly_zero_at_the_distance_where_the_best_takes_all(self, normalize):
        at = {"sparsemax": 1.0, "entmax15": 2.0} | {f"alpha {a}": 1 / (a - 1) for a in ALPHAS}
        (distance,) = (at[name] for name, function in NORMALIZERS.items() if function is normalize)
        w = normalize(np.array([[7.0, 7.0 - distance * (1 + 1e-9)], [7.0, 7.0 - distance * (1 - 1e-3)]]))
        np.testing.assert_array_equal(w[0], [1.0, 0.0])
        assert 0 < w[1, 1] < 0.1

    def test_one_key_and_one_row_alone(self, xp):
        for normalize in some(xp, "sparsemax"):
            xp.check(xp.quick(normalize)(xp.asarray([-7.0])), [1.0])
            xp.check(xp.quick(normalize)(xp.asarray([[2.0, 2.0]])[0, ...]), [0.5, 0.5])

    @each
    def test_order_of_the_scores_is_kept_and_the_sum_is_one(self, normalize):
        s = np.random.default_rng(2).normal(size=(50, 2000))
        w = normalize(s)
        np.testing.assert_allclose(w.sum(-1), 1, rtol=1e-14)
        assert (np.diff(np.take_along_axis(w, np.argsort(s), -1)) >= 0).all()
        assert ((w > 0).sum(-1) < 400).all() or normalize is NORMALIZERS["alpha 1.1"]

    def test_the_support_shrinks_as_alpha_grows(self):
        s = np.random.default_rng(3).normal(size=(20, 100))
        sizes = [(entmax(alpha=a)(s) > 0).sum(-1) for a in (1.0, 1.1, 1.25, 1.5, 2.0, 3.0)]
        assert (np.diff(sizes, axis=0) <= 0).all()
        assert (sizes[0] == 100).all()

    @each
    def test_maximizes_the_score_plus_the_entropy_of_tsallis(self, normalize):
        alpha = {"sparsemax": 2.0, "entmax15": 1.5} | {f"alpha {a}": a for a in ALPHAS}
        (alpha,) = (a for name, a in alpha.items() if NORMALIZERS[name] is normalize)
        rng = np.random.default_rng(4)
        s, others = rng.normal(size=5), rng.dirichlet(np.full(5, 0.5), size=2000)
        w = normalize(s)

        def value(p):
            return p @ s + (1 - (p**alpha).sum(-1)) / (alpha * (alpha - 1))

        near = 0.999 * w + 0.001 * others
        assert value(w) > value(others).max()
        assert value(w) > value(near).max()

    def test_thousands_of_keys_and_half_precision(self, xp):
        for normalize in some(xp, "entmax15"):
            for dtype in ("float32", *xp.narrow_dtypes):
                flat = xp.quick(normalize)(xp.asarray(np.zeros((1, 4096)), dtype))
                xp.check(flat, np.full((1, 4096), 1 / 4096), dtype=dtype)

    @each
    def test_single_precision_over_thousands_of_spread_scores(self, normalize):
        s = np.random.default_rng(5).uniform(-0.01, 0, size=(3, 5000)).astype(np.float32)
        np.testing.assert_allclose(normalize(s), normalize(s.astype(np.float64)), rtol=1e-3, atol=1e-6)
        np.testing.assert_allclose(normalize(s).sum(-1), 1, rtol=1e-5)

    def test_bad_input(self, xp, other):
        s = xp.asarray(np.ones((2, 3)))
        for normalize in (sparsemax, entmax15, entmax(alpha=1.2), entmax(alpha=1)):
            with pytest.raises(ValueError, match=r"\bs\b.*\(\)"):
                normalize(xp.asarray(1.0))
            with pytest.raises(ValueError, match=r"allowed.*\(3, 3\)"):
                normalize(s, xp.asarray(np.ones((3, 3)), "bool"))
            with pytest.raises(TypeError, match="allowed"):
                normalize(s, s)
            with pytest.raises(TypeError, match="allowed"):
                normalize(s, other.asarray(np.ones((2, 3)), "bool"))
            with pytest.raises(TypeError, match=r"\bs\b"):
                normalize([[1.0]])
            with pytest.raises(ValueError, match=r"\bg\b.*\(2, 2\)"):
                normalize.vjp(xp.asarray(np.ones((2, 2))), s)


class TestVjp:
    def draw(self, seed):
        rng = np.random.default_rng(seed)
        g, s, allowed = rng.normal(size=(3, 6)), rng.normal(size=(3, 6)), rng.random((3, 6)) < 0.8
        allowed[1] = False
        return g, s, allowed

    def test_formula_autograd_and_finite_differences(self, autograd):
        """Random rows, an empty one, one of equal scores, and two with NaN and infinity that are hidden."""
        g, s, allowed = self.draw(6)
        s = np.concatenate([s, np.zeros((1, 6)), [[0.25, NAN, 0.0, -INF, NAN, INF], [NAN, INF, 0.0, 1.0, NAN, -INF]]])
        g = np.concatenate([g, [[1.0, 0.0, 0.0, 0.0, 0.0, 0.0], [1.0, 3.0, 0.0, 1.0, 2.0, 0.0], [1.0] * 6]])
        allowed = np.concatenate([allowed, np.array([[1] * 6, [1, 0, 1, 1, 0, 0], [0] * 6], dtype=bool)])
        arrays, mask = [autograd.asarray(a) for a in (g, s)], autograd.asarray(allowed, "bool")
        spoiled = autograd.asarray(np.where(allowed, g, NAN))
        for normalize in some(autograd, "sparsemax", "entmax15", "alpha 3.0"):
            (expected,) = finite_differences(lambda a, f=normalize: f(a, allowed), g, s)
            (by_autograd,) = autograd.vjp(lambda a, f=normalize: f(a, mask), *arrays)
            autograd.check(by_autograd, expected, tolerance=1e-7)
            by_formula = autograd.quick(normalize.vjp)(spoiled, arrays[1], mask)
            autograd.check(by_formula, autograd.numpy(by_autograd), tolerance=1e-11)
            assert expected[3, 0] > 0.1
            assert not expected[[1, 5]].any()

    def test_sparsemax_vjp_is_the_mean_over_the_support_taken_off(self, xp):
        g, s = xp.asarray([[4.0, 2.0, 9.0], [1.0, 2.0, 6.0]]), xp.asarray([[1.0, 0.5, 0.0], [0.0, 0.0, 0.0]])
        xp.check(xp.quick(sparsemax_vjp)(g, s), [[1.0, -1.0, 0.0], [-2.0, -1.0, 3.0]])
        assert sparsemax.vjp is sparsemax_vjp

    def test_entmax_vjp_by_hand(self, xp):
        # weights 0.36 and 0.64 have the roots 0.6 and 0.8; the mean of g is 0.6 / 1.4
        g, s = xp.asarray([[1.0, 0.0, 9.0]]), xp.asarray([[0.0, 0.4, -2.0]])
        expected = [[0.6 * (1 - 0.6 / 1.4), -0.8 * 0.6 / 1.4, 0.0]]
        xp.check(xp.quick(functools.partial(entmax_vjp, alpha=1.5))(g, s), expected)
        xp.check(xp.quick(entmax15.vjp)(g, s), expected)

    def test_agree_with_the_package_entmax(self, agree):
        fixture = frozen("entmax_package")
        g, s = fixture["g"], fixture["s"]
        each_alpha = np.stack([entmax_vjp(g, s, alpha=alpha) for alpha in fixture["alphas"]])
        for function, ours, theirs, stranger in (
            ("sparsemax_vjp", sparsemax_vjp(g, s), fixture["sparsemax_vjp"], "sparsemax"),
            ("entmax_vjp", entmax15.vjp(g, s), fixture["entmax15_vjp"], "entmax15"),
            ("entmax_vjp", each_alpha, fixture["bisect_vjp"], "entmax_bisect"),
        ):
            agree(
                ours,
                theirs,
                function=f"normalizers.{function}",
                stranger=f"entmax, gradient of {stranger}",
                version=fixture.version,
                dtype="float64",
            )

    def test_at_one_it_is_the_gradient_of_softmax_and_at_two_that_of_sparsemax(self):
        g, s, allowed = self.draw(7)
        np.testing.assert_allclose(entmax_vjp(g, s, allowed, alpha=1), softmax_vjp(g, s, allowed), atol=1e-15)
        np.testing.assert_allclose(entmax_vjp(g, s, allowed, alpha=2), sparsemax_vjp(g, s, allowed), atol=1e-15)
        near = entmax_vjp(g, s, allowed, alpha=1 + 1e-9)
        np.testing.assert_allclose(near, softmax_vjp(g, s, allowed), atol=1e-8)

    def test_attention_vjp_finds_the_gradient(self, autograd):
        rng = np.random.default_rng(8)
        g, q, k, v = (autograd.asarray(rng.normal(size=n)) for n in ((3, 2), (3, 4), (5, 4), (5, 2)))
        for normalize in some(autograd, "entmax15"):
            ours = autograd.quick(lambda *a, f=normalize: attention_vjp(*a, normalize=f)[:3])(g, q, k, v)
            theirs = autograd.vjp(lambda *a, f=normalize: attention(*a, normalize=f), g, q, k, v)
            for one, two in zip(ours, theirs, strict=True):
                autograd.check(one, autograd.numpy(two))


@pytest.mark.parametrize(("name", "invariant"), held("normalizers/sparse_simplex"))
def test_shared_invariants(xp, name, invariant):
    invariant(SUBJECTS[name], xp)
