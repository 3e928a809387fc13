"""softlookup.normalizers.pointwise: each score alone decides its weight."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from invariants import held
from libraries import finite_differences
from subjects import SUBJECTS

from softlookup.lookup import attention, attention_vjp
from softlookup.normalizers import relu, sigmoid, sigmoid_vjp, silu, softmax_plus_one, squared_relu

INF, NAN = math.inf, math.nan
FORMULAS = {
    sigmoid: lambda x, length: 1 / (1 + length * math.exp(-x)),
    relu: lambda x, length: max(x, 0) / length,
    squared_relu: lambda x, length: max(x / length, 0) ** 2,
    silu: lambda x, length: x / (1 + math.exp(-x)) / length,
}
each = pytest.mark.parametrize("function", FORMULAS, ids=lambda f: f.__name__)


@st.composite
def rows(draw):
    m = draw(st.integers(0, 6))
    return draw(hnp.arrays(np.float64, m, elements=st.floats(-30, 30))), draw(hnp.arrays(bool, m))


class TestEach:
    @each
    @given(rows(), st.sampled_from([1.0, 0.5, 7.0]))
    def test_is_the_loop(self, function, row, length):
        s, allowed = row
        expected = [FORMULAS[function](x, length) if a else 0.0 for x, a in zip(s, allowed, strict=True)]
        np.testing.assert_allclose(function(s, allowed, length=length), expected, rtol=1e-12, atol=1e-300)

    @each
    def test_keys_do_not_compete(self, xp, function):
        s = np.random.default_rng(0).normal(size=(3, 5))
        alone = np.concat([xp.numpy(function(xp.asarray(s[:, j : j + 1]), length=5)) for j in range(5)], axis=-1)
        xp.check(function(xp.asarray(s), length=5), alone)

    @each
    def test_minus_infinity_is_a_mask_and_hidden_rows_are_zero(self, xp, function):
        s = xp.asarray([[-INF, 1.0], [NAN, INF]])
        allowed = xp.asarray([[True, False], [False, False]], "bool")
        xp.check(function(s, allowed), np.zeros((2, 2)))
        xp.check(function(s)[0, :1], [0.0])

    @each
    def test_a_visible_nan_spoils_itself_alone(self, xp, function):
        ours = xp.numpy(function(xp.asarray([[NAN, 1.0]])))
        assert np.isnan(ours[0, 0])
        assert np.isfinite(ours[0, 1])

    @each
    def test_gradients(self, autograd, function):
        rng = np.random.default_rng(1)
        g, s, allowed = rng.normal(size=(3, 5)), 3 * rng.normal(size=(3, 5)), rng.random((3, 5)) < 0.7
        (expected,) = finite_differences(lambda a: function(a, allowed, length=3), g, s)
        mask = autograd.asarray(allowed, "bool")
        (ours,) = autograd.vjp(lambda a: function(a, mask, length=3), *map(autograd.asarray, (g, s)))
        autograd.check(ours, expected, tolerance=1e-7)

    @each
    def test_gradients_at_zero_and_at_the_infinities(self, autograd, function):
        s = autograd.asarray([[0.0, -INF, NAN, -2000.0]])
        allowed = autograd.asarray([[True, True, False, True]], "bool")
        (ours,) = autograd.vjp(lambda a: function(a, allowed), autograd.asarray(np.ones((1, 4))), s)
        slope = autograd.numpy(ours)
        np.testing.assert_array_equal(slope[0, 1:], 0.0)
        if function in (sigmoid, silu):
            assert slope[0, 0] == {sigmoid: 0.25, silu: 0.5}[function]

    @each
    def test_bad_input(self, xp, function):
        s = xp.asarray(np.ones((2, 3)))
        with pytest.raises(ValueError, match=r"\bs\b.*\(\)"):
            function(xp.asarray(1.0))
        with pytest.raises(ValueError, match=r"allowed.*\(3, 3\)"):
            function(s, xp.asarray(np.ones((3, 3)), "bool"))
        with pytest.raises(TypeError, match="allowed"):
            function(s, s)
        for length in (0, -1.0, INF):
            with pytest.raises(ValueError, match="length"):
                function(s, length=length)
        with pytest.raises(TypeError, match="length"):
            function(s, length="n")


class TestSigmoid:
    def test_by_hand(self, xp):
        xp.check(sigmoid(xp.asarray([[0.0, math.log(3)]])), [[0.5, 0.75]])
        xp.check(sigmoid(xp.asarray([[0.0, math.log(3)]]), length=3), [[0.25, 0.5]])

    def test_large_scores_do_not_overflow(self, xp):
        xp.check(sigmoid(xp.asarray([[1000.0, -1000.0, INF]], "float32")), [[1.0, 0.0, 1.0]], dtype="float32")

    def test_agrees_with_torch(self, torch, agree):
        s = 5 * np.random.default_rng(2).normal(size=(4, 6, 33))
        agree(
            sigmoid(s, length=33),
            torch.sigmoid(torch.tensor(s) - math.log(33)),
            function="normalizers.sigmoid",
            stranger="torch.sigmoid, with the bias -log n",
            version=f"torch {torch.__version__.partition('+')[0]}",
            dtype="float64",
        )

    def test_one_key_is_softmax_plus_one(self, xp):
        s = xp.asarray([[-2.0], [0.3], [4.0]])
        xp.check(sigmoid(s), xp.numpy(softmax_plus_one(s)))
        xp.check(sigmoid(s, length=5), xp.numpy(softmax_plus_one(s, extra=5)))


class TestSigmoidVjp:
    def test_the_closed_gradient_is_that_of_autograd(self, autograd):
        rng = np.random.default_rng(3)
        g, s, allowed = rng.normal(size=(3, 5)), rng.normal(size=(3, 5)), rng.random((3, 5)) < 0.6
        s[~allowed] = NAN
        mask, arrays = autograd.asarray(allowed, "bool"), [autograd.asarray(a) for a in (g, s)]
        (theirs,) = autograd.vjp(lambda a: sigmoid(a, mask, length=4), *arrays)
        autograd.check(sigmoid_vjp(*arrays, mask, length=4), autograd.numpy(theirs))

    def test_attention_vjp_finds_the_gradient(self, autograd):
        rng = np.random.default_rng(4)
        g, q, k, v = (autograd.asarray(rng.normal(size=n)) for n in ((3, 2), (3, 4), (5, 4), (5, 2)))
        ours = attention_vjp(g, q, k, v, normalize=sigmoid)[:3]
        theirs = autograd.vjp(lambda *a: attention(*a, normalize=sigmoid), g, q, k, v)
        for one, two in zip(ours, theirs, strict=True):
            autograd.check(one, autograd.numpy(two))

    def test_a_gradient_of_another_shape_is_refused(self, xp):
        with pytest.raises(ValueError, match=r"\bg\b.*\(2, 2\)"):
            sigmoid_vjp(xp.asarray(np.ones((2, 2))), xp.asarray(np.ones((2, 3))))


class TestRelu:
    def test_by_hand(self, xp):
        s = xp.asarray([[3.0, 0.0, -1.0, INF]])
        xp.check(relu(s, length=2), [[1.5, 0.0, 0.0, INF]])


class TestSquaredRelu:
    def test_by_hand(self, xp):
        s = xp.asarray([[3.0, 0.0, -1.0, INF]])
        xp.check(squared_relu(s, length=2), [[2.25, 0.0, 0.0, INF]])

    def test_the_length_inside_or_outside_the_square(self, xp):
        s = xp.asarray([[3.0, -1.0, 0.5]])
        inside, outside = xp.numpy(squared_relu(s, length=4)), xp.numpy(squared_relu(s, length=2))
        np.testing.assert_allclose(inside, np.maximum(xp.numpy(s) / 4, 0) ** 2)
        np.testing.assert_allclose(outside, np.maximum(xp.numpy(s), 0) ** 2 / 4)

    def test_agrees_with_torch(self, torch, agree):
        s = 5 * np.random.default_rng(5).normal(size=(4, 6, 33))
        theirs = torch.relu(torch.tensor(s) / 33)
        for function, result in ((relu, theirs), (squared_relu, theirs.square())):
            agree(
                function(s, length=33),
                result,
                function=f"normalizers.{function.__name__}",
                stranger="torch.relu",
                version=f"torch {torch.__version__.partition('+')[0]}",
                dtype="float64",
            )


class TestSilu:
    def test_by_hand(self, xp):
        s = xp.asarray([[math.log(3), 0.0, -math.log(3), INF]])
        xp.check(silu(s, length=2), [[0.375 * math.log(3), 0.0, -0.125 * math.log(3), INF]])

    def test_agrees_with_torch(self, torch, agree):
        s = 5 * np.random.default_rng(6).normal(size=(4, 6, 33))
        agree(
            silu(s, length=33),
            torch.nn.functional.silu(torch.tensor(s)) / 33,
            function="normalizers.silu",
            stranger="torch.nn.functional.silu",
            version=f"torch {torch.__version__.partition('+')[0]}",
            dtype="float64",
        )

    def test_large_scores_are_relu(self, xp):
        s = xp.asarray([[50.0, -50.0, 1000.0, -1000.0]])
        xp.check(silu(s), xp.numpy(relu(s)))


@pytest.mark.parametrize(("name", "invariant"), held("normalizers/pointwise"))
def test_shared_invariants(xp, name, invariant):
    invariant(SUBJECTS[name], xp)
