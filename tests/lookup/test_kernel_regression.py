"""softlookup.lookup.kernel_regression: weights from distances, and a metric that is learned."""

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

from softlookup.lookup import (
    attention,
    boxcar,
    constant,
    epanechnikov,
    gaussian,
    gaussian_score,
    kernel_regression,
    kernel_weights,
    laplace,
    leave_one_out_error,
    leave_one_out_error_vjp,
    scaled_dot,
    softmax,
    student_t,
    triangular,
    tricube,
)

INF, NAN = math.inf, math.nan
FORMULAS = {
    gaussian: lambda u: math.exp(-u * u / 2),
    boxcar: lambda u: 1.0 if u <= 1 else 0.0,
    triangular: lambda u: max(0.0, 1 - u),
    epanechnikov: lambda u: 0.75 * max(0.0, 1 - u * u),
    tricube: lambda u: max(0.0, 1 - u**3) ** 3,
    laplace: lambda u: math.exp(-u),
    student_t: lambda u: 1 / (1 + u * u),
    constant: lambda u: 1.0,
}
kernels = pytest.mark.parametrize("kernel", FORMULAS, ids=lambda kernel: kernel.__name__)
coordinates = st.integers(-20, 20).map(lambda i: i / 8)


def loop(q, k, kernel, bandwidth, mask=None):
    """Row by row in plain Python: the kernel of each distance over the sum of the row; an empty row stays zero."""
    w = np.zeros((len(q), len(k)))
    for i in range(len(q)):
        for j in range(len(k)):
            if mask is None or mask[i, j]:
                w[i, j] = FORMULAS[kernel](math.dist(q[i], k[j]) / bandwidth)
        total = math.fsum(w[i])
        w[i] = w[i] / total if total else 0.0
    return w


@st.composite
def points(draw):
    n, m, d = draw(st.integers(0, 3)), draw(st.integers(0, 4)), draw(st.integers(0, 3))
    q, k = (draw(hnp.arrays(np.float64, (rows, d), elements=coordinates)) for rows in (n, m))
    return q, k, draw(st.sampled_from([0.5, 1.0, 2.0])), draw(st.none() | hnp.arrays(bool, (n, m)))


def check_kernel(kernel, xp, values):
    """The kernel at 0, 1/2, 1 and 2, by hand."""
    xp.check(kernel(xp.asarray([0.0, 0.5, 1.0, 2.0])), values)


def check_formula(kernel):
    u = np.array([0.0, 1e-9, 0.25, 0.75, 1 - 2.0**-40, 1 + 2.0**-40, 1.5, 3.0, 30.0])
    np.testing.assert_allclose(kernel(u), [FORMULAS[kernel](x) for x in u], rtol=1e-12)
    np.testing.assert_array_equal(kernel(-u), kernel(u))


def test_gaussian(xp):
    check_kernel(gaussian, xp, [1.0, 0.8824969025845955, 0.6065306597126334, 0.1353352832366127])
    check_formula(gaussian)


def test_boxcar(xp):
    check_kernel(boxcar, xp, [1.0, 1.0, 1.0, 0.0])
    check_formula(boxcar)


def test_triangular(xp):
    check_kernel(triangular, xp, [1.0, 0.5, 0.0, 0.0])
    check_formula(triangular)


def test_epanechnikov(xp):
    check_kernel(epanechnikov, xp, [0.75, 0.5625, 0.0, 0.0])
    check_formula(epanechnikov)


def test_tricube(xp):
    check_kernel(tricube, xp, [1.0, (7 / 8) ** 3, 0.0, 0.0])
    check_formula(tricube)


def test_laplace(xp):
    check_kernel(laplace, xp, [1.0, 0.6065306597126334, 0.36787944117144233, 0.1353352832366127])
    check_formula(laplace)


def test_student_t(xp):
    check_kernel(student_t, xp, [1.0, 0.8, 0.5, 0.2])
    check_formula(student_t)


def test_constant(xp):
    check_kernel(constant, xp, [1.0, 1.0, 1.0, 1.0])
    check_formula(constant)


class TestEveryKernel:
    @kernels
    def test_keeps_shape_and_precision(self, xp, kernel):
        for shape in ((), (0,), (2, 0, 3), (2, 1, 3)):
            xp.check(kernel(xp.asarray(np.zeros(shape))), np.full(shape, FORMULAS[kernel](0.0)))
        for dtype in ("float32", *xp.narrow_dtypes):
            xp.check(kernel(xp.asarray([0.5], dtype)), [FORMULAS[kernel](0.5)], dtype=dtype)
        xp.check(kernel(xp.asarray([0, 2], "int64")), [FORMULAS[kernel](u) for u in (0, 2)], dtype=xp.default_float)

    @kernels
    def test_nan_stays_and_infinity_is_out_of_reach(self, xp, kernel):
        nan, far = (1.0, 1.0) if kernel is constant else (NAN, 0.0)
        xp.check(kernel(xp.asarray([NAN, INF, 0.0])), [nan, far, FORMULAS[kernel](0.0)])

    @kernels
    def test_refuses_a_list(self, kernel):
        with pytest.raises(TypeError, match="u"):
            kernel([1.0])

    @pytest.mark.parametrize(
        ("kernel", "theirs", "clash"),
        [
            (gaussian, "gaussian", None),
            (boxcar, "tophat", "does not reach the distance of one bandwidth itself"),
            (epanechnikov, "epanechnikov", None),
            (laplace, "exponential", None),
            (triangular, "linear", None),
        ],
    )
    def test_agrees_with_scikit_learn(self, agree, kernel, theirs, clash):
        record = frozen("sklearn_kernel_density")
        agree(
            kernel(record["u"]) / kernel(np.zeros(1)),
            record[theirs],
            function=f"lookup.{kernel.__name__}",
            stranger=f"sklearn.neighbors.KernelDensity, {theirs}",
            version=record.version,
            dtype="float64",
            clash=clash,
        )


class TestKernelWeights:
    def test_three_keys_on_a_line_by_hand(self, xp):
        q, k = xp.asarray([[0.0]]), xp.asarray([[0.0], [1.0], [-3.0]])
        xp.check(kernel_weights(q, k, kernel=triangular, bandwidth=2.0), [[2 / 3, 1 / 3, 0.0]])
        xp.check(kernel_weights(q, k, kernel=student_t), [[1 / 1.6, 0.5 / 1.6, 0.1 / 1.6]])
        e = math.exp(-0.5)
        xp.check(kernel_weights(q, k[:2, :]), [[1 / (1 + e), e / (1 + e)]])

    @kernels
    @given(points())
    def test_is_the_loop(self, kernel, given_points):
        q, k, bandwidth, mask = given_points
        w = kernel_weights(q, k, kernel=kernel, bandwidth=bandwidth, mask=mask)
        np.testing.assert_allclose(w, loop(q, k, kernel, bandwidth, mask), rtol=1e-10, atol=1e-12)

    @given(points())
    def test_takes_any_function_of_the_distance_over_the_bandwidth(self, given_points):
        q, k, bandwidth, mask = given_points
        w = kernel_weights(q, k, kernel=lambda u: 3 * np.exp(-u), bandwidth=bandwidth, mask=mask)
        np.testing.assert_allclose(w, loop(q, k, laplace, bandwidth, mask), rtol=1e-10, atol=1e-12)

    def test_a_distant_query_of_the_gaussian_still_reads_its_nearest_key(self, xp):
        q, k = xp.asarray([[1e4], [-1e4]]), xp.asarray([[0.0], [1.0]])
        xp.check(kernel_weights(q, k), [[0.0, 1.0], [1.0, 0.0]])

    @kernels
    def test_a_distant_query_of_the_other_kernels_reads_nothing_or_everything(self, xp, kernel):
        w = xp.numpy(kernel_weights(xp.asarray([[1e4]]), xp.asarray([[0.0], [1.0]]), kernel=kernel))
        compact = kernel in (boxcar, triangular, epanechnikov, tricube, laplace)
        assert w.sum() == pytest.approx(0.0 if compact else 1.0)

    def test_keys_of_equal_norm_make_the_gaussian_a_softmax_of_dot_products(self, xp):
        rng = np.random.default_rng(0)
        q, k, h = rng.normal(size=(4, 3)), rng.normal(size=(5, 3)), 0.7
        k = 2 * k / np.linalg.norm(k, axis=-1, keepdims=True)
        xp.check(kernel_weights(xp.asarray(q), xp.asarray(k), bandwidth=h), softmax(q @ k.T / h**2))

    def test_the_bandwidth_is_a_temperature(self, xp):
        rng = np.random.default_rng(1)
        q, k, h = rng.normal(size=(4, 3)), rng.normal(size=(5, 3)), 0.7
        half_squares = -((q[:, None] - k) ** 2).sum(-1) / 2
        xp.check(kernel_weights(xp.asarray(q), xp.asarray(k), bandwidth=h), softmax(half_squares, temperature=h**2))

    @kernels
    def test_only_the_distance_counts(self, xp, kernel):
        rng = np.random.default_rng(2)
        q, k = rng.normal(size=(4, 2)), rng.normal(size=(5, 2))
        turn = np.array([[0.6, -0.8], [0.8, 0.6]])
        moved = (xp.asarray(a @ turn + 3.0) for a in (q, k))
        expected = loop(q, k, kernel, 1.5)
        xp.check(kernel_weights(*moved, kernel=kernel, bandwidth=1.5), expected, tolerance=1e-11)

    @kernels
    @pytest.mark.parametrize("bad", [NAN, INF, -INF])
    def test_a_hidden_key_may_hold_anything(self, xp, kernel, bad):
        q, k = xp.asarray([[0.0], [0.5]]), xp.asarray([[0.0], [bad], [0.5]])
        mask = xp.asarray([[True, False, True]], "bool")
        expected = loop([[0.0], [0.5]], [[0.0], [0.5]], kernel, 1.0)
        xp.check(kernel_weights(q, k, kernel=kernel, mask=mask), np.insert(expected, 1, 0.0, axis=1))

    @kernels
    def test_a_key_that_only_some_may_read_reaches_only_those(self, xp, kernel):
        q, k = xp.asarray([[0.0], [0.0]]), xp.asarray([[0.0], [NAN]])
        mask = xp.asarray([[True, False], [True, True]], "bool")
        w = xp.numpy(kernel_weights(q, k, kernel=kernel, mask=mask))
        np.testing.assert_array_equal(w, [[1.0, 0.0], [0.5, 0.5] if kernel is constant else [NAN, NAN]])

    @kernels
    def test_an_infinitely_distant_key_weighs_nothing(self, xp, kernel):
        w = [[0.5, 0.5]] if kernel is constant else [[1.0, 0.0]]
        xp.check(kernel_weights(xp.asarray([[0.0]]), xp.asarray([[0.0], [INF]]), kernel=kernel), w)

    @kernels
    def test_no_key_in_reach_is_an_empty_row(self, xp, kernel):
        q, k = xp.asarray([[0.0], [0.0]]), xp.asarray([[0.0], [0.0]])
        mask = xp.asarray([[False, False], [True, True]], "bool")
        xp.check(kernel_weights(q, k, kernel=kernel, mask=mask), [[0.0, 0.0], [0.5, 0.5]])

    @kernels
    def test_zero_lengths(self, xp, kernel):
        weigh = xp.quick(lambda q, k: kernel_weights(q, k, kernel=kernel))
        for n, m, d, b in xp.some(list(itertools.product((0, 2), (0, 1, 3), (0, 2), (0, 2)))):
            q, k = xp.asarray(np.ones((b, n, d))), xp.asarray(np.ones((b, m, d)))
            xp.check(weigh(q, k), np.full((b, n, m), 1 / max(m, 1)))

    @pytest.mark.parametrize("kernel", [kernel for kernel in FORMULAS if kernel is not constant])
    def test_gradients_stay_finite_where_a_query_stands_on_a_key(self, autograd, kernel):
        q, k, g = (autograd.asarray(a) for a in ([[0.0, 0.0]], [[0.0, 0.0], [0.25, 0.5]], [[1.0, 0.5]]))
        dq, dk = autograd.vjp(lambda q, k: kernel_weights(q, k, kernel=kernel), g, q, k)
        assert np.all(np.isfinite(autograd.numpy(dq)))
        assert np.all(np.isfinite(autograd.numpy(dk)))

    def test_bad_input(self, xp, other):
        refuses_bad_points(kernel_weights, xp, other)

    @pytest.mark.parametrize("kernel", [gaussian, triangular, constant])
    def test_half_precision_stays_with_every_kind_of_kernel(self, kernel):
        a = np.asarray([[0.0], [0.5]], dtype=np.float16)
        assert kernel_weights(a, a, kernel=kernel).dtype == np.float16

    @pytest.mark.parametrize("bandwidth", [0, -1.0, NAN, INF])
    def test_an_impossible_bandwidth_raises(self, xp, bandwidth):
        a = xp.asarray([[1.0]])
        for kernel in (gaussian, triangular):
            with pytest.raises(ValueError, match="bandwidth"):
                kernel_weights(a, a, kernel=kernel, bandwidth=bandwidth)
        with pytest.raises(ValueError, match="bandwidth"):
            kernel_regression(a, a, a, bandwidth=bandwidth)
        with pytest.raises(ValueError, match="bandwidth"):
            gaussian_score(bandwidth=bandwidth)


def refuses_bad_points(function, xp, other):
    q, k = xp.asarray(np.ones((2, 3))), xp.asarray(np.ones((4, 3)))
    with pytest.raises(ValueError, match=r"\bq\b.*\(3,\)"):
        function(xp.asarray(np.ones(3)), k)
    with pytest.raises(ValueError, match=r"\bk\b.*\(3,\)"):
        function(q, xp.asarray(np.ones(3)))
    with pytest.raises(ValueError, match=r"q.*3.*k.*2"):
        function(q, xp.asarray(np.ones((4, 2))))
    with pytest.raises(ValueError, match=r"\(2,\).*\(3,\)"):
        function(xp.asarray(np.ones((2, 2, 3))), xp.asarray(np.ones((3, 4, 3))))
    with pytest.raises(TypeError, match=r"\bq\b"):
        function([[1.0]], k)
    with pytest.raises(TypeError, match=r"\bk\b"):
        function(q, [[1.0]])
    with pytest.raises(TypeError):
        function(q, other.asarray(np.ones((4, 3))))
    with pytest.raises(TypeError, match="mask.*bool"):
        function(q, k, mask=xp.asarray(np.ones((2, 4))))
    with pytest.raises(TypeError, match="mask"):
        function(q, k, mask=[[True]])
    with pytest.raises(TypeError):
        function(q, k, mask=other.asarray(np.ones((2, 4)), "bool"))
    for shape in ((3, 4), (5, 2, 4)):
        with pytest.raises(ValueError, match=rf"mask.*\({', '.join(map(str, shape))}\)"):
            function(q, k, mask=xp.asarray(np.ones(shape), "bool"))


class TestKernelRegression:
    def test_three_keys_on_a_line_by_hand(self, xp):
        q, k, v = xp.asarray([[0.0], [9.0]]), xp.asarray([[0.0], [1.0], [-3.0]]), xp.asarray([[30.0], [60.0], [90.0]])
        xp.check(kernel_regression(q, k, v, kernel=triangular, bandwidth=2.0), [[40.0], [0.0]])

    @kernels
    @given(points(), st.data())
    def test_is_the_loop(self, kernel, given_points, data):
        q, k, bandwidth, mask = given_points
        v = data.draw(hnp.arrays(np.float64, (len(k), 2), elements=coordinates))
        out = kernel_regression(q, k, v, kernel=kernel, bandwidth=bandwidth, mask=mask)
        np.testing.assert_allclose(out, loop(q, k, kernel, bandwidth, mask) @ v, rtol=1e-10, atol=1e-11)

    @pytest.mark.parametrize("name", ["statsmodels_line", "statsmodels_plane"])
    def test_agrees_with_statsmodels(self, agree, name):
        record = frozen(name)
        agree(
            kernel_regression(record["q"], record["k"], record["v"], bandwidth=float(record["h"])),
            record["out"],
            function="lookup.kernel_regression",
            stranger="statsmodels KernelReg, local constant",
            version=record.version,
            dtype="float64",
            clash="a bandwidth for each axis; NaN where no key is in reach",
        )

    def test_is_attention_with_the_gaussian_score(self, xp):
        rng = np.random.default_rng(3)
        q, k, v = (xp.asarray(rng.normal(size=s)) for s in ((2, 4, 3), (2, 5, 3), (2, 5, 2)))
        mask = xp.asarray(np.tri(4, 5, dtype=bool), "bool")
        theirs = attention(q, k, v, mask=mask, score=gaussian_score(bandwidth=0.7))
        xp.check(kernel_regression(q, k, v, bandwidth=0.7, mask=mask), xp.numpy(theirs))

    def test_is_attention_with_dot_products_when_keys_have_equal_norms(self, xp):
        rng = np.random.default_rng(4)
        q, k, v = (rng.normal(size=s) for s in ((4, 3), (5, 3), (5, 2)))
        k = k / np.linalg.norm(k, axis=-1, keepdims=True)
        q, k, v = map(xp.asarray, (q, k, v))
        theirs = attention(q, k, v, score=scaled_dot(scale=1 / 0.49))
        xp.check(kernel_regression(q, k, v, bandwidth=0.7), xp.numpy(theirs))

    def test_a_constant_kernel_is_the_mean_and_a_narrow_one_the_nearest_value(self, xp):
        q, k, v = xp.asarray([[0.2], [0.9]]), xp.asarray([[0.0], [1.0], [3.0]]), xp.asarray([[3.0], [6.0], [9.0]])
        xp.check(kernel_regression(q, k, v, kernel=constant), [[6.0], [6.0]])
        xp.check(kernel_regression(q, k, v, bandwidth=1e6), [[6.0], [6.0]], tolerance=1e-9)
        xp.check(kernel_regression(q, k, v, bandwidth=1e-3), [[3.0], [6.0]])

    @kernels
    def test_gradients_agree_with_finite_differences(self, autograd, kernel):
        q, k, v = np.array([[0.1], [0.6]]), np.array([[0.0], [0.35], [0.8]]), np.array([[1.0], [-2.0], [0.5]])
        g, mask = np.array([[1.0], [-0.5]]), np.array([[True, True, False], [True, True, True]])
        expected = finite_differences(lambda q, k, v: kernel_regression(q, k, v, kernel=kernel, mask=mask), g, q, k, v)
        hidden = autograd.asarray(mask, "bool")
        got = autograd.vjp(
            lambda q, k, v: kernel_regression(q, k, v, kernel=kernel, mask=hidden), *map(autograd.asarray, (g, q, k, v))
        )
        for ours, theirs in zip(got, expected, strict=True):
            autograd.check(ours, theirs, tolerance=1e-8)

    @kernels
    @pytest.mark.parametrize("bad", [NAN, INF])
    def test_gradients_know_nothing_of_a_hidden_key(self, autograd, kernel, bad):
        g, q, k, v = [[1.0]], [[0.1]], [[0.0], [bad], [0.8]], [[1.0], [bad], [0.5]]
        mask = autograd.asarray([[True, False, True]], "bool")
        got = autograd.vjp(
            lambda *a: kernel_regression(*a, kernel=kernel, mask=mask), *map(autograd.asarray, (g, q, k, v))
        )
        kept = autograd.vjp(
            lambda *a: kernel_regression(*a, kernel=kernel), *map(autograd.asarray, (g, q, k[::2], v[::2]))
        )
        autograd.check(got[0], autograd.numpy(kept[0]))
        for ours, theirs in zip(got[1:], kept[1:], strict=True):
            autograd.check(ours, np.insert(autograd.numpy(theirs), 1, 0.0, axis=0))

    @pytest.mark.parametrize("bad", [NAN, INF, -INF])
    def test_a_hidden_item_may_hold_anything(self, xp, bad):
        q, k, v = xp.asarray([[0.0]]), xp.asarray([[0.0], [bad]]), xp.asarray([[7.0], [bad]])
        xp.check(kernel_regression(q, k, v, mask=xp.asarray([[True, False]], "bool")), [[7.0]])

    def test_zero_lengths(self, xp):
        for n, m, d, e, b in xp.some(list(np.ndindex(2, 2, 2, 2, 2))):
            q, k, v = (xp.asarray(np.ones((b, *s))) for s in ((n, d), (m, d), (m, e)))
            xp.check(kernel_regression(q, k, v), np.full((b, n, e), float(m)))

    def test_bad_input(self, xp, other):
        v = xp.asarray(np.ones((4, 2)))
        refuses_bad_points(lambda q, k, **o: kernel_regression(q, k, v, **o), xp, other)
        q, k = xp.asarray(np.ones((2, 3))), xp.asarray(np.ones((4, 3)))
        with pytest.raises(ValueError, match=r"k.*4.*v.*5"):
            kernel_regression(q, k, xp.asarray(np.ones((5, 2))))
        with pytest.raises(ValueError, match=r"\bv\b.*\(4,\)"):
            kernel_regression(q, k, xp.asarray(np.ones(4)))
        with pytest.raises(TypeError, match=r"\bv\b"):
            kernel_regression(q, k, [[1.0]])


class TestGaussianScore:
    def test_half_the_squared_distance_by_hand(self, xp):
        q, k = xp.asarray([[0.0, 0.0], [3.0, 0.0]]), xp.asarray([[3.0, 4.0]])
        xp.check(gaussian_score()(q, k), [[-12.5], [-8.0]])
        xp.check(gaussian_score(bandwidth=2.0)(q, k), [[-3.125], [-2.0]])

    @given(points())
    def test_is_the_logarithm_of_the_kernel(self, given_points):
        q, k, bandwidth, _ = given_points
        expected = np.array([[-((math.dist(a, b) / bandwidth) ** 2) / 2 for b in k] for a in q]).reshape(len(q), len(k))
        np.testing.assert_allclose(gaussian_score(bandwidth=bandwidth)(q, k), expected, rtol=1e-12, atol=1e-12)

    def test_a_distance_is_exact_far_from_the_origin(self, xp):
        far = 2.0**20
        q, k = xp.asarray([[far, far]]), xp.asarray([[far + 1.0, far], [far, far]])
        xp.check(gaussian_score()(q, k), [[-0.5, 0.0]], tolerance=0)

    def test_bad_input(self, xp, other):
        def masked(q, k, mask=None):
            return kernel_weights(q, k, mask=mask) if mask is not None else gaussian_score()(q, k)

        refuses_bad_points(masked, xp, other)


def loop_error(metric, x, y):
    """Point by point in plain Python: predict each from the others, and average the squared errors."""
    total = 0.0
    for i in range(len(x)):
        others = [j for j in range(len(x)) if j != i]
        squares = [math.fsum(z * z for z in metric @ (x[i] - x[j])) for j in others]
        w = [math.exp((min(squares) - s) / 2) for s in squares]
        for c in range(y.shape[1]):
            prediction = math.fsum(a * y[j, c] for a, j in zip(w, others, strict=True)) / math.fsum(w)
            total += (y[i, c] - prediction) ** 2
    return total / len(x)


@st.composite
def training_sets(draw):
    m, d, e, r = draw(st.integers(2, 5)), draw(st.integers(1, 3)), draw(st.integers(1, 2)), draw(st.integers(1, 3))
    return tuple(draw(hnp.arrays(np.float64, s, elements=coordinates)) for s in ((r, d), (m, d), (m, e)))


class TestLeaveOneOutError:
    def test_two_points_predict_each_other(self, xp):
        metric, x, y = xp.asarray([[3.0]]), xp.asarray([[0.0], [5.0]]), xp.asarray([[1.0], [4.0]])
        xp.check(leave_one_out_error(metric, x, y), 9.0)

    def test_three_points_by_hand(self, xp):
        metric, x, y = xp.asarray([[0.0]]), xp.asarray([[0.0], [5.0], [7.0]]), xp.asarray([[0.0], [2.0], [4.0]])
        xp.check(leave_one_out_error(metric, x, y), (3.0**2 + 0.0 + 3.0**2) / 3)

    @given(training_sets())
    def test_is_the_loop(self, given_set):
        np.testing.assert_allclose(leave_one_out_error(*given_set), loop_error(*given_set), rtol=1e-9, atol=1e-12)

    def test_a_bandwidth_is_a_multiple_of_the_identity(self, xp):
        rng = np.random.default_rng(5)
        x, y, h = rng.normal(size=(6, 2)), rng.normal(size=(6, 1)), 0.7
        w = kernel_weights(x, x, bandwidth=h, mask=~np.eye(6, dtype=bool))
        expected = np.mean((y - w @ y) ** 2)
        xp.check(leave_one_out_error(*map(xp.asarray, (np.eye(2) / h, x, y))), expected)

    def test_batches(self, xp):
        rng = np.random.default_rng(6)
        metric, x, y = rng.normal(size=(3, 1, 2, 2)), rng.normal(size=(2, 5, 2)), rng.normal(size=(5, 1))
        expected = [[loop_error(metric[a, 0], x[b], y) for b in range(2)] for a in range(3)]
        xp.check(leave_one_out_error(*map(xp.asarray, (metric, x, y))), expected)

    def test_nan_stays(self, xp):
        good = np.ones((2, 2)), np.arange(6.0).reshape(3, 2), np.ones((3, 1))
        for i in range(3):
            sets = [a.copy() for a in good]
            sets[i][0, 0] = NAN
            xp.check(leave_one_out_error(*map(xp.asarray, sets)), NAN)

    def test_bad_input(self, xp, other):
        refuses_bad_sets(leave_one_out_error, xp, other)


def refuses_bad_sets(function, xp, other):
    good = [xp.asarray(np.ones(s)) for s in ((2, 3), (5, 3), (5, 1))]
    for i, name in enumerate(("metric", "x", "y")):
        with pytest.raises(ValueError, match=rf"\b{name}\b.*\(3,\)"):
            function(*good[:i], xp.asarray(np.ones(3)), *good[i + 1 :])
        with pytest.raises(TypeError, match=rf"\b{name}\b"):
            function(*good[:i], [[1.0]], *good[i + 1 :])
        with pytest.raises(TypeError):
            function(*good[:i], other.asarray(np.ones(good[i].shape)), *good[i + 1 :])
    with pytest.raises(ValueError, match=r"metric.*2.*x.*3"):
        function(xp.asarray(np.ones((2, 2))), *good[1:])
    with pytest.raises(ValueError, match=r"x.*5.*y.*4"):
        function(*good[:2], xp.asarray(np.ones((4, 1))))
    for i, j in ((0, 1), (0, 2), (1, 2)):
        batches = [xp.asarray(np.ones({i: (2,), j: (3,)}.get(n, ()) + tuple(a.shape))) for n, a in enumerate(good)]
        with pytest.raises(ValueError, match=r"do not broadcast.*\(2,\).*\(3,\)"):
            function(*batches)
    with pytest.raises(ValueError, match=r"\bx\b.*\(1, 3\)"):
        function(good[0], xp.asarray(np.ones((1, 3))), xp.asarray(np.ones((1, 1))))


class TestLeaveOneOutErrorVjp:
    @pytest.mark.parametrize("shape", [(1, 1), (1, 2), (2, 2), (3, 2)])
    def test_agrees_with_finite_differences(self, shape):
        rng = np.random.default_rng(7)
        metric, x, y = rng.normal(size=shape), rng.normal(size=(6, shape[1])), rng.normal(size=(6, 2))
        (expected,) = finite_differences(lambda a: loop_error(a, x, y), 2.5, metric)
        np.testing.assert_allclose(leave_one_out_error_vjp(np.array(2.5), metric, x, y), expected, rtol=1e-6, atol=1e-8)

    def test_agrees_with_automatic_differentiation(self, autograd):
        rng = np.random.default_rng(8)
        metric, x, y = (autograd.asarray(rng.normal(size=s)) for s in ((3, 2, 2), (3, 6, 2), (3, 6, 1)))
        g = autograd.asarray([1.0, -2.0, 0.5])
        (expected,) = autograd.vjp(lambda a: leave_one_out_error(a, x, y), g, metric)
        autograd.check(leave_one_out_error_vjp(g, metric, x, y), autograd.numpy(expected), tolerance=1e-11)

    @pytest.mark.parametrize(
        "lead", [((), (3,), (3,)), ((), (3,), ()), ((), (), (3,)), ((), (2, 1), (3,)), ((2, 1), (), (2, 3))]
    )
    def test_a_shared_metric_collects_the_gradients_of_the_batch(self, xp, lead):
        rng = np.random.default_rng(9)
        batch = np.broadcast_shapes(*lead)
        metric, x, y = (rng.normal(size=(*b, *s)) for b, s in zip(lead, ((2, 2), (6, 2), (6, 1)), strict=True))
        g, expected = rng.normal(size=batch), np.zeros(metric.shape)
        wide = [np.broadcast_to(a, (*batch, *a.shape[-2:])) for a in (metric, x, y)]
        for b in np.ndindex(batch):
            into = tuple(min(i, size - 1) for i, size in zip(b, lead[0], strict=False))
            expected[into] += leave_one_out_error_vjp(np.array(g[b]), *(a[b] for a in wide))
        pull = xp.quick(leave_one_out_error_vjp)
        xp.check(pull(*map(xp.asarray, (g, metric, x, y))), expected)

    def test_a_step_against_it_lowers_the_error(self):
        rng = np.random.default_rng(10)
        x = rng.uniform(-2, 2, size=(24, 2))
        y, metric = np.sin(2 * x[:, :1]), np.eye(2)
        errors = [leave_one_out_error(metric, x, y)]
        for _ in range(20):
            metric = metric - 0.5 * leave_one_out_error_vjp(np.array(1.0), metric, x, y)
            errors.append(leave_one_out_error(metric, x, y))
        assert np.all(np.diff(errors) < 0)
        assert errors[-1] < 0.7 * errors[0]

    def test_bad_input(self, xp, other):
        refuses_bad_sets(lambda *sets: leave_one_out_error_vjp(xp.asarray(1.0), *sets), xp, other)
        metric, x, y = (xp.asarray(np.ones(s)) for s in ((2, 3), (5, 3), (5, 1)))
        with pytest.raises(ValueError, match=r"\bg\b.*\(2,\)"):
            leave_one_out_error_vjp(xp.asarray(np.ones(2)), metric, x, y)
        with pytest.raises(TypeError, match=r"\bg\b"):
            leave_one_out_error_vjp(1.0, metric, x, y)


@pytest.mark.parametrize(("name", "invariant"), held("lookup/kernel_regression"))
def test_shared_invariants(xp, name, invariant):
    invariant(SUBJECTS[name], xp)
