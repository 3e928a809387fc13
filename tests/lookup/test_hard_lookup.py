"""softlookup.lookup.hard_lookup: the best item alone, the nearest few, and how soft lookup becomes hard."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from invariants import held
from libraries import finite_differences
from oracles.freeze import frozen
from oracles.onnx_cases import node_cases, onnx
from subjects import SUBJECTS

from softlookup.lookup import (
    attention,
    attention_scores,
    hard_lookup,
    hardmax,
    hardmax_average,
    kernel_regression,
    laplace,
    nearest_neighbors,
    scaled_dot,
    soft_nearest_neighbors,
    softmax,
)

INF, NAN = math.inf, math.nan
few_scores = st.sampled_from([-INF, -1.0, 0.0, 0.5, 2.0, INF])
any_score = few_scores | st.just(NAN)
steps = st.integers(-4, 4).map(float)


@st.composite
def masked_scores(draw, elements=any_score):
    shape = draw(hnp.array_shapes(min_dims=1, max_dims=3, min_side=1, max_side=5))
    return draw(hnp.arrays(np.float64, shape, elements=elements)), draw(st.none() | hnp.arrays(bool, shape))


def winners(row, allowed):
    """The places of the largest allowed score of a row, or None where a readable score is NaN."""
    visible = [j for j in range(len(row)) if allowed[j] and row[j] != -INF]
    if any(math.isnan(row[j]) for j in visible):
        return None
    top = max((row[j] for j in visible), default=None)
    return [j for j in visible if row[j] == top]


def loop(s, allowed, shares):
    """Row by row in plain Python: `shares` turns the winners of a row into its weights."""
    allowed = np.broadcast_to(True if allowed is None else allowed, s.shape)
    w = np.zeros(s.shape)
    for index in np.ndindex(s.shape[:-1]):
        best = winners(s[index], allowed[index])
        if best is None:
            w[index] = NAN
        elif best:
            w[index] = [shares(best, j) for j in range(s.shape[-1])]
    return w


def first(best, j):
    return float(j == best[0])


def equal(best, j):
    return (j in best) / len(best)


def refuses_bad_scores(function, xp, other):
    s = xp.asarray(np.ones((2, 3)))
    with pytest.raises(ValueError, match=r"\bs\b.*\(\)"):
        function(xp.asarray(1.0))
    with pytest.raises(TypeError, match=r"\bs\b"):
        function([[1.0]])
    with pytest.raises(TypeError, match="allowed.*bool"):
        function(s, xp.asarray(np.ones((2, 3))))
    with pytest.raises(TypeError, match="allowed"):
        function(s, [[True] * 3] * 2)
    with pytest.raises(TypeError, match="allowed"):
        function(s, other.asarray(np.ones((2, 3)), "bool"))
    for shape in ((3, 3), (5, 2, 3)):
        with pytest.raises(ValueError, match=rf"allowed.*\({', '.join(map(str, shape))}\).* \(2, 3\)"):
            function(s, xp.asarray(np.ones(shape), "bool"))


class TestHardmax:
    def test_the_first_of_the_largest_by_hand(self, xp):
        s = xp.asarray([[1.0, 3.0, 3.0], [-5.0, -7.0, -6.0]])
        xp.check(hardmax(s), [[0.0, 1.0, 0.0], [1.0, 0.0, 0.0]], tolerance=0)

    @given(masked_scores())
    def test_is_the_loop(self, given_scores):
        s, allowed = given_scores
        np.testing.assert_array_equal(hardmax(s, allowed), loop(s, allowed, first))

    @pytest.mark.parametrize("node", node_cases("Hardmax"), ids=lambda node: node.name)
    def test_agrees_with_the_node_cases_of_onnx(self, node, agree):
        axis = node.attributes.get("axis", -1)
        ours = hardmax(np.moveaxis(node.inputs["input"].astype(np.float64), axis, -1))
        agree(
            np.moveaxis(ours, -1, axis),
            node.outputs["output"],
            function="lookup.hardmax",
            stranger="onnx node cases of Hardmax",
            version=f"onnx {onnx.__version__}",
            dtype="float32",
            exact=True,
        )

    def test_agrees_with_torch_argmax(self, torch, agree):
        s = np.random.default_rng(0).integers(0, 3, size=(40, 6)).astype(float)
        agree(
            hardmax(s),
            torch.nn.functional.one_hot(torch.tensor(s).argmax(-1), 6),
            function="lookup.hardmax",
            stranger="torch.argmax",
            version=f"torch {torch.__version__.partition('+')[0]}",
            dtype="float64",
            exact=True,
        )

    def test_is_the_limit_of_a_cold_softmax(self, xp):
        s = xp.asarray([[1.0, 1.25, 0.5], [0.0, -1.0, -INF]])
        xp.check(softmax(s, temperature=1e-4), xp.numpy(hardmax(s)), tolerance=0)

    def test_infinities_and_nan(self, xp):
        s = xp.asarray([[-INF, -INF], [INF, INF], [-INF, 2.0], [NAN, 1.0], [NAN, INF]])
        xp.check(hardmax(s), [[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [NAN, NAN], [NAN, NAN]], tolerance=0)
        second = xp.asarray([[False, True]], "bool")
        xp.check(hardmax(s, second), [[0.0, 0.0], [0.0, 1.0], [0.0, 1.0], [0.0, 1.0], [0.0, 1.0]], tolerance=0)

    def test_zero_lengths(self, xp):
        for shape in ((0,), (2, 0), (0, 3)):
            xp.check(hardmax(xp.asarray(np.ones(shape))), np.ones(shape), tolerance=0)

    def test_bad_input(self, xp, other):
        refuses_bad_scores(hardmax, xp, other)


class TestHardmaxAverage:
    def test_all_of_the_largest_share_by_hand(self, xp):
        xp.check(hardmax_average(xp.asarray([[1.0, 3.0, 3.0], [-5.0, -7.0, -6.0]])), [[0.0, 0.5, 0.5], [1.0, 0.0, 0.0]])

    @given(masked_scores())
    def test_is_the_loop(self, given_scores):
        s, allowed = given_scores
        np.testing.assert_array_equal(hardmax_average(s, allowed), loop(s, allowed, equal))

    @given(masked_scores(st.integers(-3, 3).map(float)))
    def test_is_the_limit_of_a_cold_softmax_and_the_first_tie_is_not(self, given_scores):
        s, allowed = given_scores
        cold = softmax(s, allowed, temperature=1e-3)
        np.testing.assert_array_equal(hardmax_average(s, allowed), cold)
        ties = np.any((cold > 0) & (cold < 1))
        assert np.array_equal(hardmax(s, allowed), cold) != ties

    def test_agrees_with_numpy(self, agree):
        s = np.random.default_rng(1).integers(0, 3, size=(40, 6)).astype(float)
        ties = s == np.max(s, axis=-1, keepdims=True)
        agree(
            hardmax_average(s),
            ties / np.count_nonzero(ties, axis=-1, keepdims=True),
            function="lookup.hardmax_average",
            stranger="numpy.max and count_nonzero",
            version=f"numpy {np.__version__}",
            dtype="float64",
            exact=True,
        )

    def test_infinities_and_nan(self, xp):
        s = xp.asarray([[-INF, -INF], [INF, INF], [-INF, 2.0], [NAN, 1.0], [NAN, INF]])
        xp.check(hardmax_average(s), [[0.0, 0.0], [0.5, 0.5], [0.0, 1.0], [NAN, NAN], [NAN, NAN]], tolerance=0)
        second = xp.asarray([[False, True]], "bool")
        xp.check(hardmax_average(s, second), [[0.0, 0.0], [0.0, 1.0], [0.0, 1.0], [0.0, 1.0], [0.0, 1.0]], tolerance=0)

    def test_zero_lengths(self, xp):
        for shape in ((0,), (2, 0), (0, 3)):
            xp.check(hardmax_average(xp.asarray(np.ones(shape))), np.ones(shape), tolerance=0)

    def test_bad_input(self, xp, other):
        refuses_bad_scores(hardmax_average, xp, other)


class TestHardLookup:
    def test_the_drawer_that_fits_best_by_hand(self, xp):
        q, k = xp.asarray([[1.0, 0.0]]), xp.asarray([[0.9, 5.0], [1.1, 0.0], [1.0, 9.0]])
        v = xp.asarray([[10.0], [20.0], [30.0]])
        xp.check(hard_lookup(q, k, v), [[20.0]], tolerance=0)
        mask, bias = xp.asarray([[True, False, True]], "bool"), xp.asarray([[0.5, 0.0, 0.0]])
        xp.check(hard_lookup(q, k, v, mask=mask), [[30.0]], tolerance=0)
        xp.check(hard_lookup(q, k, v, bias=bias), [[10.0]], tolerance=0)
        xp.check(hard_lookup(q, k, v, score=scaled_dot(scale=-1.0)), [[10.0]], tolerance=0)

    @given(
        hnp.arrays(np.float64, (2, 3, 2), elements=steps),
        hnp.arrays(np.float64, (1, 4, 2), elements=steps),
        st.none() | hnp.arrays(bool, (3, 4)),
    )
    def test_is_the_value_of_the_first_best_key(self, q, k, mask):
        v = np.arange(1.0, 5.0)[None, :, None]
        out = hard_lookup(q, k, v, mask=mask, score=scaled_dot(scale=1.0))
        allowed = np.ones((3, 4), bool) if mask is None else mask
        for h, i in np.ndindex(2, 3):
            best = winners([math.fsum(q[h, i] * key) for key in k[0]], allowed[i])
            assert out[h, i, 0] == (v[0, best[0], 0] if best else 0.0)

    def test_agrees_with_numpy_argmax(self, agree):
        rng = np.random.default_rng(2)
        q, k, v = (rng.normal(size=s) for s in ((5, 7, 8), (5, 9, 8), (5, 9, 3)))
        best = np.argmax(np.einsum("hnd,hmd->hnm", q, k), axis=-1)
        agree(
            hard_lookup(q, k, v),
            np.take_along_axis(v, best[..., None], axis=-2),
            function="lookup.hard_lookup",
            stranger="numpy.argmax",
            version=f"numpy {np.__version__}",
            dtype="float64",
            exact=True,
        )

    def test_is_attention_with_hardmax_and_the_limit_of_attention(self, xp):
        rng = np.random.default_rng(3)
        q, k, v = (xp.asarray(rng.normal(size=s)) for s in ((4, 3, 2), (2, 5, 2), (2, 5, 3)))
        out = hard_lookup(q, k, v)
        xp.check(attention(q, k, v, normalize=hardmax), xp.numpy(out), tolerance=0)
        xp.check(attention(q, k, v, score=scaled_dot(scale=1e4)), xp.numpy(out))

    def test_its_gradient_reaches_the_chosen_value_and_nothing_else(self, autograd):
        q, k, v = [[1.0, 0.0]], [[0.9, 5.0], [1.1, 0.0], [1.0, 9.0]], [[10.0], [20.0], [30.0]]
        dq, dk, dv = autograd.vjp(hard_lookup, *map(autograd.asarray, ([[1.0]], q, k, v)))
        autograd.check(dq, [[0.0, 0.0]])
        autograd.check(dk, np.zeros((3, 2)))
        autograd.check(dv, [[0.0], [1.0], [0.0]])

    def test_visible_nan_spoils_the_rows_that_read_it(self, xp):
        q, k, v = xp.asarray([[NAN], [1.0]]), xp.asarray([[1.0], [2.0]]), xp.asarray([[5.0], [6.0]])
        xp.check(hard_lookup(q, k, v), [[NAN], [6.0]])

    def test_a_row_that_may_read_nothing_is_zero(self, xp):
        q, k, v = (xp.asarray(np.ones(s)) for s in ((2, 3), (4, 3), (4, 2)))
        mask = xp.asarray([[False], [True]], "bool")
        xp.check(hard_lookup(q, k, v, mask=mask), [[0.0, 0.0], [1.0, 1.0]], tolerance=0)

    def test_zero_lengths(self, xp):
        for n, m, d, e in xp.some(list(np.ndindex(2, 2, 2, 2))):
            q, k, v = (xp.asarray(np.ones(s)) for s in ((n, d), (m, d), (m, e)))
            xp.check(hard_lookup(q, k, v), np.full((n, e), float(m)))

    def test_bad_input(self, xp, other):
        refuses_bad_items(hard_lookup, xp, other)
        q, k, v = (xp.asarray(np.ones(s)) for s in ((2, 3), (4, 3), (4, 2)))
        with pytest.raises(ValueError, match="k has 3 heads"):
            hard_lookup(xp.asarray(np.ones((8, 2, 3))), xp.asarray(np.ones((3, 4, 3))), v)
        with pytest.raises(ValueError, match=r"bias.*\(3, 4\)"):
            hard_lookup(q, k, v, bias=xp.asarray(np.ones((3, 4))))


def refuses_bad_items(function, xp, other):
    """What every function of queries, keys, values and a mask refuses."""
    good = [xp.asarray(np.ones(s)) for s in ((2, 3), (4, 3), (4, 2))]
    for i, name in enumerate("qkv"):
        with pytest.raises(ValueError, match=rf"\b{name}\b.*\(3,\)"):
            function(*good[:i], xp.asarray(np.ones(3)), *good[i + 1 :])
        with pytest.raises(TypeError, match=rf"\b{name}\b"):
            function(*good[:i], [[1.0]], *good[i + 1 :])
        with pytest.raises(TypeError):
            function(*good[:i], other.asarray(np.ones(good[i].shape)), *good[i + 1 :])
    with pytest.raises(ValueError, match=r"q.*3.*k.*2"):
        function(good[0], xp.asarray(np.ones((4, 2))), good[2])
    with pytest.raises(ValueError, match=r"k.*4.*v.*5"):
        function(*good[:2], xp.asarray(np.ones((5, 2))))
    with pytest.raises(TypeError, match="mask.*bool"):
        function(*good, mask=xp.asarray(np.ones((2, 4))))
    with pytest.raises(TypeError, match="mask"):
        function(*good, mask=other.asarray(np.ones((2, 4)), "bool"))
    with pytest.raises(TypeError, match="mask"):
        function(*good, mask=[[True] * 4] * 2)
    for shape in ((3, 4), (5, 2, 4)):
        with pytest.raises(ValueError, match=rf"mask.*\({', '.join(map(str, shape))}\)"):
            function(*good, mask=xp.asarray(np.ones(shape), "bool"))


def neighbors_of(query, keys, neighbors, allowed):
    """The allowed keys in the order of their distance, and of their place where distances are equal."""
    order = sorted((math.dist(query, key), j) for j, key in enumerate(keys) if allowed[j])
    return order[:neighbors]


def loop_neighbors(q, k, v, neighbors, mask, weigh):
    out = np.zeros((len(q), v.shape[-1]))
    for i in range(len(q)):
        near = neighbors_of(q[i], k, neighbors, np.ones(len(k), bool) if mask is None else mask[i])
        weights = [weigh(distance - near[0][0]) for distance, _ in near]
        for weight, (_, j) in zip(weights, near, strict=True):
            out[i] += weight / math.fsum(weights) * v[j]
    return out


@st.composite
def neighborhoods(draw):
    n, m, d = draw(st.integers(0, 3)), draw(st.integers(0, 5)), draw(st.integers(0, 2))
    q, k, v = (draw(hnp.arrays(np.float64, s, elements=steps)) for s in ((n, d), (m, d), (m, 2)))
    return q, k, v, draw(st.integers(1, 6)), draw(st.none() | hnp.arrays(bool, (n, m)))


class TestNearestNeighbors:
    def test_of_many_keys_at_one_distance_the_first_are_read(self, xp):
        q, k, v = (
            xp.asarray([[0.0]]),
            xp.asarray([[2.0], [-1.0], [1.0]] * 99),
            xp.asarray([[float(j)] for j in range(297)]),
        )
        xp.check(nearest_neighbors(q, k, v, neighbors=4), [[3.0]])

    def test_two_of_four_keys_on_a_line_by_hand(self, xp):
        q, k = xp.asarray([[0.0], [10.0]]), xp.asarray([[3.0], [1.0], [-2.0], [4.0]])
        v = xp.asarray([[8.0], [2.0], [4.0], [6.0]])
        xp.check(nearest_neighbors(q, k, v, neighbors=2), [[3.0], [7.0]])

    @given(neighborhoods())
    def test_is_the_loop(self, neighborhood):
        q, k, v, neighbors, mask = neighborhood
        out = nearest_neighbors(q, k, v, neighbors=neighbors, mask=mask)
        np.testing.assert_allclose(out, loop_neighbors(q, k, v, neighbors, mask, lambda d: 1.0), rtol=1e-12, atol=1e-12)

    def test_agrees_with_scikit_learn(self, agree):
        record = frozen("sklearn_nearest_neighbors")
        agree(
            nearest_neighbors(record["q"], record["k"], record["v"], neighbors=3),
            record["hard"],
            function="lookup.nearest_neighbors",
            stranger="sklearn KNeighborsRegressor",
            version=record.version,
            dtype="float64",
        )

    def test_one_neighbor_is_the_best_key_by_distance(self, xp):
        rng = np.random.default_rng(4)
        q, k, v = (xp.asarray(rng.normal(size=s)) for s in ((2, 6, 3), (2, 5, 3), (2, 5, 2)))
        xp.check(nearest_neighbors(q, k, v, neighbors=1), xp.numpy(kernel_regression(q, k, v, bandwidth=1e-3)))

    def test_as_many_neighbors_as_keys_is_the_mean(self, xp):
        q, k, v = (xp.asarray(np.random.default_rng(5).normal(size=s)) for s in ((3, 2), (4, 2), (4, 2)))
        mean = np.broadcast_to(xp.numpy(v).mean(0), (3, 2))
        for neighbors in (4, 100):
            xp.check(nearest_neighbors(q, k, v, neighbors=neighbors), mean)

    def test_a_tie_at_the_edge_goes_to_the_first(self, xp):
        q, k = xp.asarray([[0.0]]), xp.asarray([[2.0], [1.0], [-1.0], [1.0]])
        v = xp.asarray([[1.0], [2.0], [4.0], [8.0]])
        for neighbors, expected in ((1, 2.0), (2, 3.0), (3, 14 / 3), (4, 3.75)):
            xp.check(nearest_neighbors(q, k, v, neighbors=neighbors), [[expected]])

    def test_many_ties_stay_in_their_order(self, xp):
        m = 200
        k, v = xp.asarray(np.where(np.arange(m) % 3 == 0, 1.0, -1.0)[:, None]), xp.asarray(2.0 ** np.arange(m)[:, None])
        for neighbors in (1, 7, 50):
            expected = (2.0**neighbors - 1) / neighbors
            out = xp.numpy(nearest_neighbors(xp.asarray([[0.0]]), k, v, neighbors=neighbors))
            np.testing.assert_allclose(out, [[expected]], rtol=1e-5)

    def test_its_gradient_reaches_the_chosen_values(self, autograd):
        q, k, v = [[0.0]], [[3.0], [1.0], [-2.0]], [[8.0], [2.0], [4.0]]
        dq, dk, dv = autograd.vjp(
            lambda q, k, v: nearest_neighbors(q, k, v, neighbors=2), *map(autograd.asarray, ([[1.0]], q, k, v))
        )
        autograd.check(dq, [[0.0]])
        autograd.check(dk, np.zeros((3, 1)))
        autograd.check(dv, [[0.0], [0.5], [0.5]])

    def test_bad_input(self, xp, other):
        refuses_bad_items(lambda *a, **o: nearest_neighbors(*a, neighbors=2, **o), xp, other)

    def test_fewer_allowed_keys_than_neighbors(self, xp):
        refuses_nothing_when_keys_run_out(lambda *a, **o: nearest_neighbors(*a, neighbors=3, **o), xp)

    @pytest.mark.parametrize("bad", [NAN, INF, -INF])
    def test_keys_that_are_not_finite(self, xp, bad):
        reads_what_it_may(lambda *a, **o: nearest_neighbors(*a, neighbors=2, **o), xp, bad)

    @pytest.mark.parametrize("neighbors", [0, -1])
    def test_an_impossible_number_of_neighbors_raises(self, xp, neighbors):
        a = xp.asarray([[1.0]])
        with pytest.raises(ValueError, match="neighbors"):
            nearest_neighbors(a, a, a, neighbors=neighbors)
        with pytest.raises(ValueError, match="neighbors"):
            soft_nearest_neighbors(a, a, a, neighbors=neighbors, temperature=1.0)

    def test_half_a_neighbor_is_refused(self, xp):
        a = xp.asarray([[1.0]])
        with pytest.raises(TypeError):
            nearest_neighbors(a, a, a, neighbors=1.5)


def refuses_nothing_when_keys_run_out(function, xp):
    """Two allowed keys, then one, then none, where three neighbors are wanted; all keys are equally far."""
    q, k, v = xp.asarray([[0.0]] * 3), xp.asarray([[1.0], [-1.0], [1.0]]), xp.asarray([[1.0], [3.0], [8.0]])
    mask = xp.asarray([[True, True, False], [False, False, True], [False, False, False]], "bool")
    xp.check(function(q, k, v, mask=mask), [[2.0], [8.0], [0.0]])
    for m in (0, 1):
        xp.check(function(q, k[:m, :], v[:m, :]), np.full((3, 1), float(m)))


def reads_what_it_may(function, xp, bad):
    """A hidden key has no effect; a readable NaN spoils its row; a readable infinity is the farthest of all."""
    q, k = xp.asarray([[0.0], [0.0]]), xp.asarray([[bad], [1.0], [-1.0]])
    v = xp.asarray([[5.0], [1.0], [3.0]])
    mask = xp.asarray([[False, True, True], [True, True, True]], "bool")
    xp.check(function(q, k, v, mask=mask), [[2.0], [NAN if math.isnan(bad) else 2.0]])


class TestSoftNearestNeighbors:
    def test_two_of_four_keys_on_a_line_by_hand(self, xp):
        q, k = xp.asarray([[0.0]]), xp.asarray([[3.0], [1.0], [-2.0], [4.0]])
        v = xp.asarray([[8.0], [2.0], [4.0], [6.0]])
        t = 1 / math.log(3)
        xp.check(soft_nearest_neighbors(q, k, v, neighbors=2, temperature=t), [[0.75 * 2 + 0.25 * 4]])

    @given(neighborhoods(), st.sampled_from([0.25, 1.0, 4.0]))
    def test_is_the_loop(self, neighborhood, t):
        q, k, v, neighbors, mask = neighborhood
        out = soft_nearest_neighbors(q, k, v, neighbors=neighbors, temperature=t, mask=mask)
        expected = loop_neighbors(q, k, v, neighbors, mask, lambda d: math.exp(-d / t))
        np.testing.assert_allclose(out, expected, rtol=1e-10, atol=1e-10)

    def test_agrees_with_scikit_learn(self, agree):
        record = frozen("sklearn_nearest_neighbors")
        t = float(record["temperature"])
        agree(
            soft_nearest_neighbors(record["q"], record["k"], record["v"], neighbors=3, temperature=t),
            record["soft"],
            function="lookup.soft_nearest_neighbors",
            stranger="sklearn KNeighborsRegressor, weights by distance",
            version=record.version,
            dtype="float64",
        )

    def test_all_keys_are_kernel_regression_with_the_laplace_kernel(self, xp):
        rng = np.random.default_rng(6)
        q, k, v = (xp.asarray(rng.normal(size=s)) for s in ((2, 6, 3), (2, 5, 3), (2, 5, 2)))
        theirs = kernel_regression(q, k, v, kernel=laplace, bandwidth=0.7)
        xp.check(soft_nearest_neighbors(q, k, v, neighbors=5, temperature=0.7), xp.numpy(theirs))

    def test_a_hot_one_is_the_hard_mean_and_a_cold_one_the_nearest(self, xp):
        rng = np.random.default_rng(7)
        q, k, v = (xp.asarray(rng.normal(size=s)) for s in ((6, 3), (5, 3), (5, 2)))
        hot = soft_nearest_neighbors(q, k, v, neighbors=3, temperature=1e7)
        xp.check(hot, xp.numpy(nearest_neighbors(q, k, v, neighbors=3)), tolerance=1e-6)
        cold = soft_nearest_neighbors(q, k, v, neighbors=3, temperature=1e-4)
        xp.check(cold, xp.numpy(nearest_neighbors(q, k, v, neighbors=1)))

    def test_gradients_agree_with_finite_differences(self, autograd):
        rng = np.random.default_rng(8)
        q, k, v, g = (rng.normal(size=s) for s in ((3, 2), (5, 2), (5, 2), (3, 2)))
        mask = np.tri(3, 5, 2, dtype=bool)
        hidden = autograd.asarray(mask, "bool")
        options = {"neighbors": 2, "temperature": 0.7}
        expected = finite_differences(lambda *a: soft_nearest_neighbors(*a, mask=mask, **options), g, q, k, v)
        got = autograd.vjp(
            lambda *a: soft_nearest_neighbors(*a, mask=hidden, **options), *map(autograd.asarray, (g, q, k, v))
        )
        for ours, theirs in zip(got, expected, strict=True):
            autograd.check(ours, theirs, tolerance=1e-8)

    @pytest.mark.parametrize("bad", [NAN, INF])
    def test_gradients_know_nothing_of_a_hidden_key(self, autograd, bad):
        g, q, k, v = [[1.0]], [[0.1]], [[0.0], [bad], [0.8]], [[1.0], [bad], [0.5]]
        mask = autograd.asarray([[True, False, True]], "bool")
        options = {"neighbors": 3, "temperature": 0.5}
        got = autograd.vjp(
            lambda *a: soft_nearest_neighbors(*a, mask=mask, **options), *map(autograd.asarray, (g, q, k, v))
        )
        kept = autograd.vjp(
            lambda *a: soft_nearest_neighbors(*a, **options), *map(autograd.asarray, (g, q, k[::2], v[::2]))
        )
        autograd.check(got[0], autograd.numpy(kept[0]))
        for ours, theirs in zip(got[1:], kept[1:], strict=True):
            autograd.check(ours, np.insert(autograd.numpy(theirs), 1, 0.0, axis=0))

    def test_fewer_allowed_keys_than_neighbors(self, xp):
        refuses_nothing_when_keys_run_out(
            lambda *a, **o: soft_nearest_neighbors(*a, neighbors=3, temperature=0.5, **o), xp
        )

    @pytest.mark.parametrize("bad", [NAN, INF, -INF])
    def test_keys_that_are_not_finite(self, xp, bad):
        reads_what_it_may(lambda *a, **o: soft_nearest_neighbors(*a, neighbors=2, temperature=0.5, **o), xp, bad)

    def test_bad_input(self, xp, other):
        refuses_bad_items(lambda *a, **o: soft_nearest_neighbors(*a, neighbors=2, temperature=1.0, **o), xp, other)
        a = xp.asarray([[1.0]])
        for temperature in (-1.0, NAN):
            with pytest.raises(ValueError, match="temperature"):
                soft_nearest_neighbors(a, a, a, neighbors=1, temperature=temperature)
        with pytest.raises(ValueError, match="temperature.*hard_lookup|temperature.*nearest_neighbors"):
            soft_nearest_neighbors(a, a, a, neighbors=1, temperature=0.0)


def test_hard_and_soft_normalizers_fit_one_slot(xp):
    q, k, v = map(xp.asarray, ([[1.0, 0.0]], [[2.0, 0.0], [2.0, 5.0]], [[1.0], [3.0]]))
    s = attention_scores(q, k)
    for normalize, expected in ((softmax, 2.0), (hardmax, 1.0), (hardmax_average, 2.0)):
        xp.check(normalize(s) @ v, [[expected]])
        xp.check(attention(q, k, v, normalize=normalize), [[expected]])


@pytest.mark.parametrize(("name", "invariant"), held("lookup/hard_lookup"))
def test_shared_invariants(xp, name, invariant):
    invariant(SUBJECTS[name], xp)
