"""softlookup.lookup.weighted_average: the blend, its budget, and what keeps a hidden item out."""

import math
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from invariants import held
from libraries import finite_differences
from subjects import SUBJECTS

from softlookup.lookup import budget, is_distribution, weighted_average

finite = st.floats(-1e3, 1e3)
sizes = st.integers(0, 4)


def loop(w, v, allowed=None):
    """Row by row and column by column, in plain Python: the sum of weight times value over the allowed pairs."""
    out = np.zeros((w.shape[0], v.shape[1]))
    for i in range(w.shape[0]):
        for c in range(v.shape[1]):
            products = [float(w[i, j]) * float(v[j, c]) for j in range(w.shape[1]) if allowed is None or allowed[i, j]]
            out[i, c] = math.fsum(products) if all(map(math.isfinite, products)) else sum(products)
    return out


@st.composite
def blends(draw):
    n, m, e = draw(sizes), draw(sizes), draw(sizes)
    w, v = (draw(hnp.arrays(np.float64, shape, elements=finite)) for shape in ((n, m), (m, e)))
    return w, v, draw(hnp.arrays(bool, (n, m)))


class TestWeightedAverage:
    def test_weights_and_items_that_differ_in_number_are_told(self):
        with pytest.raises(ValueError, match="w has 3 weights in a row, v has 2 items"):
            weighted_average(np.ones((1, 3)), np.ones((2, 1)))

    def test_three_weights_of_ten_twenty_and_thirty_by_hand(self, xp):
        w = xp.asarray([[0.1, 0.3, 0.6], [0.6, 0.3, 0.1]])
        v = xp.asarray([[10.0], [20.0], [30.0]])
        xp.check(weighted_average(w, v), [[1 + 6 + 18], [6 + 6 + 3]])

    @given(blends())
    def test_is_the_loop(self, blend):
        w, v, allowed = blend
        np.testing.assert_allclose(weighted_average(w, v), loop(w, v), rtol=1e-12, atol=1e-8)
        np.testing.assert_allclose(weighted_average(w, v, allowed=allowed), loop(w, v, allowed), rtol=1e-12, atol=1e-8)

    @given(blends(), st.sampled_from([math.nan, math.inf, -math.inf]), st.data())
    def test_is_the_loop_with_a_value_that_is_not_finite(self, blend, bad, data):
        w, v, allowed = blend
        spoiled = data.draw(hnp.arrays(bool, v.shape))
        w = np.where(w == 0, 1.0, w)
        v = np.where(spoiled, bad, v)
        np.testing.assert_allclose(weighted_average(w, v, allowed=allowed), loop(w, v, allowed), rtol=1e-12, atol=1e-8)

    def test_agrees_with_numpy_average(self, agree):
        rng = np.random.default_rng(0)
        w, v = rng.dirichlet(np.ones(9), size=5), rng.normal(size=(9, 3))
        theirs = np.stack([np.average(v, axis=0, weights=row) for row in w])
        agree(
            weighted_average(w, v),
            theirs,
            function="lookup.weighted_average",
            stranger="numpy.average",
            version=f"numpy {np.__version__}",
            dtype="float64",
            clash="divides by the sum of the weights, so it agrees where they sum to one",
        )

    def test_a_pair_that_is_not_allowed_is_a_weight_of_zero_when_values_are_finite(self, xp):
        rng = np.random.default_rng(1)
        w, v, allowed = rng.normal(size=(2, 4, 5)), rng.normal(size=(2, 5, 3)), rng.random((2, 4, 5)) < 0.5
        expected = np.where(allowed, w, 0.0) @ v
        xp.check(weighted_average(xp.asarray(w), xp.asarray(v), allowed=xp.asarray(allowed, "bool")), expected)

    @given(blends(), finite)
    def test_is_linear_in_the_weights_and_in_the_values(self, blend, c):
        w, v, allowed = blend
        whole = weighted_average(w, v, allowed=allowed)
        np.testing.assert_allclose(weighted_average(c * w, v, allowed=allowed), c * whole, rtol=1e-9, atol=1e-6)
        np.testing.assert_allclose(weighted_average(w, c * v, allowed=allowed), c * whole, rtol=1e-9, atol=1e-6)

    def test_gradients_are_the_two_products_without_the_hidden_pairs(self, autograd):
        rng = np.random.default_rng(2)
        w, v, g = rng.normal(size=(4, 5)), rng.normal(size=(5, 3)), rng.normal(size=(4, 3))
        allowed = rng.random((4, 5)) < 0.6
        allowed[:, 2] = False
        v[2] = math.nan
        hidden = autograd.asarray(allowed, "bool")
        dw, dv = autograd.vjp(lambda w, v: weighted_average(w, v, allowed=hidden), *map(autograd.asarray, (g, w, v)))
        autograd.check(dw, np.where(allowed, g @ np.nan_to_num(v).T, 0.0))
        autograd.check(dv, np.where(allowed, w, 0.0).T @ g)

    def test_gradients_by_finite_differences(self, autograd):
        rng = np.random.default_rng(3)
        w, v, g, allowed = rng.normal(size=(3, 4)), rng.normal(size=(4, 2)), rng.normal(size=(3, 2)), np.tri(3, 4) > 0
        expected = finite_differences(lambda w, v: weighted_average(w, v, allowed=allowed), g, w, v)
        mask = autograd.asarray(allowed, "bool")
        got = autograd.vjp(lambda w, v: weighted_average(w, v, allowed=mask), *map(autograd.asarray, (g, w, v)))
        for ours, theirs in zip(got, expected, strict=True):
            autograd.check(ours, theirs, tolerance=1e-8)

    @pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
    def test_a_hidden_value_has_no_effect_on_its_row_and_its_usual_effect_on_the_others(self, xp, bad):
        w, v = xp.asarray([[0.5, 0.5], [0.25, 0.75], [0.5, -0.5]]), xp.asarray([[2.0, 4.0], [bad, 6.0]])
        allowed = xp.asarray([[True, False], [True, True], [True, True]], "bool")
        xp.check(weighted_average(w, v, allowed=allowed), [[1.0, 2.0], [bad, 5.5], [-bad, -1.0]])

    def test_infinities_of_both_signs_in_one_row_are_not_a_number(self, xp):
        w, v = xp.asarray([[0.5, 0.5], [1.0, 0.0]]), xp.asarray([[math.inf, 1.0], [-math.inf, 1.0]])
        allowed = xp.asarray([[True, True], [True, False]], "bool")
        xp.check(weighted_average(w, v, allowed=allowed), [[math.nan, 1.0], [math.inf, 1.0]])

    @pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
    def test_a_hidden_weight_has_no_effect_either(self, xp, bad):
        w, v = xp.asarray([[0.5, bad]]), xp.asarray([[2.0], [3.0]])
        xp.check(weighted_average(w, v, allowed=xp.asarray([[True, False]], "bool")), [[1.0]])

    def test_the_mask_broadcasts_to_the_weights(self, xp):
        w, v = xp.asarray(np.ones((2, 3, 4))), xp.asarray(np.ones((2, 4, 1)))
        for allowed in ([True, True, False, True], [[True], [False], [True]], True):
            counts = np.broadcast_to(allowed, (2, 3, 4)).sum(-1, keepdims=True)
            xp.check(weighted_average(w, v, allowed=xp.asarray(allowed, "bool")), counts.astype(float))

    def test_batch_axes_broadcast(self, xp):
        rng = np.random.default_rng(4)
        w, v = rng.normal(size=(3, 1, 2, 4)), rng.normal(size=(5, 4, 2))
        xp.check(weighted_average(xp.asarray(w), xp.asarray(v)), np.einsum("aznm,bme->abne", w, v))

    @pytest.mark.parametrize("masked", [False, True])
    def test_zero_lengths(self, xp, masked):
        for n, m, e, b in xp.some(list(np.ndindex(2, 2, 2, 2))):
            w, v = xp.asarray(np.ones((b, n, m))), xp.asarray(np.ones((b, m, e)))
            allowed = xp.asarray(np.ones((b, n, m)), "bool") if masked else None
            xp.check(weighted_average(w, v, allowed=allowed), np.full((b, n, e), float(m)))

    @pytest.mark.parametrize("spoiled", [False, True])
    def test_a_mask_takes_no_memory_of_the_size_of_all_products(self, spoiled):
        n = 128
        w, v, allowed = np.ones((n, n)), np.ones((n, n)), np.tri(n, dtype=bool)
        v[-1] = math.nan if spoiled else 1.0
        tracemalloc.start()
        weighted_average(w, v, allowed=allowed)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < n**3 * 8 / 8

    @pytest.mark.parametrize(
        ("w", "v", "allowed", "told"),
        [
            ((3,), (3, 1), None, r"\bw\b.*\(3,\)"),
            ((1, 3), (3,), None, r"\bv\b.*\(3,\)"),
            ((), (3, 1), None, r"\bw\b.*\(\)"),
            ((2, 3), (4, 1), None, r"4.*3|3.*4"),
            ((2, 2, 3), (3, 3, 1), None, r"w.*\(2,\).*v.*\(3,\)"),
            ((2, 3), (3, 1), (3, 3), r"allowed.*\(3, 3\).* \(2, 3\)"),
            ((2, 3), (3, 1), (5, 2, 3), r"allowed.*\(5, 2, 3\).* \(2, 3\)"),
        ],
    )
    def test_shapes_that_do_not_fit_raise_and_name_the_argument(self, xp, w, v, allowed, told):
        w, v = xp.asarray(np.ones(w)), xp.asarray(np.ones(v))
        allowed = None if allowed is None else xp.asarray(np.ones(allowed), "bool")
        with pytest.raises(ValueError, match=told):
            weighted_average(w, v, allowed=allowed)

    def test_wrong_types_raise(self, xp, other):
        w, v = xp.asarray([[1.0]]), xp.asarray([[1.0]])
        with pytest.raises(TypeError, match="w"):
            weighted_average([[1.0]], v)
        with pytest.raises(TypeError, match="v"):
            weighted_average(w, [[1.0]])
        with pytest.raises(TypeError, match="allowed"):
            weighted_average(w, v, allowed=[[True]])
        with pytest.raises(TypeError, match="allowed.*bool"):
            weighted_average(w, v, allowed=xp.asarray([[1.0]]))
        with pytest.raises(TypeError):
            weighted_average(w, other.asarray([[1.0]]))
        with pytest.raises(TypeError):
            weighted_average(w, v, allowed=other.asarray([[True]], "bool"))


class TestBudget:
    def test_is_the_sum_of_each_row(self, xp):
        xp.check(budget(xp.asarray([[0.1, 0.3, 0.6], [1.0, -3.0, 4.0]])), [1.0, 2.0])

    @given(hnp.arrays(np.float64, hnp.array_shapes(min_dims=2, max_dims=4, max_side=4), elements=finite))
    def test_is_the_loop(self, w):
        expected = np.array([math.fsum(row) for row in w.reshape(-1, w.shape[-1])]).reshape(w.shape[:-1])
        np.testing.assert_allclose(budget(w), expected, rtol=1e-12, atol=1e-9)

    def test_no_items_spend_nothing(self, xp):
        xp.check(budget(xp.asarray(np.ones((2, 0)))), [0.0, 0.0])

    def test_half_precision_does_not_stall(self, xp):
        for dtype in xp.narrow_dtypes:
            xp.check(budget(xp.asarray(np.full((1, 4096), 2.0**-12), dtype)), [1.0], dtype=dtype, tolerance=0)

    def test_a_number_and_a_list_are_refused(self, xp):
        with pytest.raises(ValueError, match=r"w.*\(\)"):
            budget(xp.asarray(1.0))
        with pytest.raises(TypeError, match="w"):
            budget([[1.0]])


class TestIsDistribution:
    def test_the_tolerance_grows_with_the_number_of_weights(self):
        w = np.zeros((2, 1, 100))
        w[..., 0] = 1 + 50 * np.finfo(float).eps
        assert is_distribution(w).all()
        assert not is_distribution(w[..., :2]).any()

    def test_rows_that_are_and_rows_that_are_not(self, xp):
        w = [[0.25, 0.75], [1.0, 0.0], [0.5, 0.25], [0.75, 0.75], [1.5, -0.5], [0.0, 0.0], [math.nan, 1.0]]
        xp.check(is_distribution(xp.asarray(w)), [True, True, False, False, False, False, False], dtype="bool")

    def test_rounding_of_a_row_is_forgiven_and_no_more(self, xp):
        m = 4
        eps = 2.0**-52
        w = np.full((3, m), 0.25)
        w[1, 0] += (m - 1) * eps
        w[2, 0] += 4 * m * eps
        xp.check(is_distribution(xp.asarray(w)), [True, True, False], dtype="bool")

    def test_no_rounding_makes_a_weight_negative(self, xp):
        xp.check(is_distribution(xp.asarray([[1.0 + 2.0**-30, -(2.0**-30)]]), tolerance=0.5), [False], dtype="bool")

    def test_the_tolerance_is_the_largest_distance_from_one(self, xp):
        w = xp.asarray([[0.5, 0.25], [0.5, 0.625], [0.5, 0.875], [0.5, 0.0]])
        xp.check(is_distribution(w, tolerance=0.25), [True, True, False, False], dtype="bool")

    def test_half_precision_is_judged_in_its_own_rounding(self, xp):
        for dtype in ("float32", *xp.narrow_dtypes):
            thirds = xp.asarray([[1 / 3, 1 / 3, 1 / 3], [0.5, 0.5, 0.125]], dtype)
            xp.check(is_distribution(thirds), [True, False], dtype="bool")

    def test_zero_lengths(self, xp):
        xp.check(is_distribution(xp.asarray(np.ones((0, 2)))), np.zeros(0, bool), dtype="bool")
        xp.check(is_distribution(xp.asarray(np.ones((2, 0)))), [False, False], dtype="bool")

    def test_integers_are_numbers(self, xp):
        xp.check(is_distribution(xp.asarray([[1, 0], [1, 1]], "int64")), [True, False], dtype="bool")

    def test_bad_input(self, xp):
        with pytest.raises(TypeError, match="w"):
            is_distribution([[1.0]])
        with pytest.raises(ValueError, match=r"w.*\(\)"):
            is_distribution(xp.asarray(1.0))
        with pytest.raises(ValueError, match="tolerance"):
            is_distribution(xp.asarray([[1.0]]), tolerance=-1e-3)


@pytest.mark.parametrize(("name", "invariant"), held("lookup/weighted_average"))
def test_shared_invariants(xp, name, invariant):
    invariant(SUBJECTS[name], xp)
