"""softlookup.normalizers.stick_breaking: shares of what is left, from the nearest key back."""

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

from softlookup.lookup import attention, weighted_average
from softlookup.normalizers import stick_breaking, stick_remainder

INF, NAN = math.inf, math.nan


def loop(s, allowed):
    """Weights and remainder of one row, key by key from the last."""
    w, left = np.zeros(len(s)), 1.0
    for j in reversed(range(len(s))):
        if allowed[j]:
            share = 1 / (1 + math.exp(-s[j]))
            w[j] = left * share
            left /= 1 + math.exp(s[j])
    return w, left


@st.composite
def rows(draw):
    m = draw(st.integers(0, 6))
    return draw(hnp.arrays(np.float64, m, elements=st.floats(-30, 30))), draw(hnp.arrays(bool, m))


class TestStickBreaking:
    @given(rows())
    def test_is_the_loop(self, row):
        np.testing.assert_allclose(stick_breaking(*row), loop(*row)[0], rtol=1e-9, atol=1e-12)

    def test_by_hand(self, xp):
        s = xp.asarray([[math.log(3), 0.0, math.log(1 / 3)]])  # shares 3/4, 1/2, 1/4
        xp.check(stick_breaking(s), [[0.75 * 0.5 * 0.75, 0.5 * 0.75, 0.25]])

    def test_agrees_with_the_naive_form_of_fla(self, agree):
        fixture = frozen("fla_stick_breaking")
        q, k, v = (np.swapaxes(fixture[name], -2, -3) for name in "qkv")
        out = attention(q, k, v, mask=np.tri(q.shape[-2], k=-1, dtype=bool), normalize=stick_breaking)
        agree(
            out,
            np.swapaxes(fixture["out"], -2, -3),
            function="normalizers.stick_breaking",
            stranger="flash-linear-attention, naive form",
            version=fixture.version,
            dtype="float64",
        )

    def test_one_key_is_a_sigmoid(self, xp):
        s = np.array([[-2.0], [0.0], [5.0]])
        xp.check(stick_breaking(xp.asarray(s)), np.exp(s) / (1 + np.exp(s)))

    def test_weights_and_remainder_are_the_whole_stick(self, xp):
        s = xp.asarray(np.random.default_rng(0).normal(size=(4, 6)))
        total = xp.numpy(stick_breaking(s)).sum(-1) + xp.numpy(stick_remainder(s))
        np.testing.assert_allclose(total, 1)

    def test_infinite_scores(self, xp):
        s = xp.asarray([[0.0, INF, 0.0], [0.0, -INF, 0.0], [0.0, 0.0, INF]])
        xp.check(stick_breaking(s), [[0.0, 0.5, 0.5], [0.25, 0.0, 0.5], [0.0, 0.0, 1.0]])

    def test_a_nan_that_may_be_read_spoils_itself_and_earlier_keys(self, xp):
        out = xp.numpy(stick_breaking(xp.asarray([[0.0, NAN, 0.0]])))
        np.testing.assert_array_equal(out, [[NAN, NAN, 0.5]])

    def test_long_rows_keep_their_far_weights(self, xp):
        out = xp.numpy(stick_breaking(xp.asarray(np.full((1, 3000), -6.0))))
        share = 1 / (1 + math.exp(6))
        np.testing.assert_allclose(out[0, 0], share * (1 - share) ** 2999, rtol=1e-9)

    def test_large_scores_read_the_last_allowed_key(self, xp):
        v = xp.asarray([[1.0], [2.0], [3.0]])
        w = stick_breaking(xp.asarray([[50.0, 50.0, 50.0]]), xp.asarray([[True, True, False]], "bool"))
        xp.check(weighted_average(w, v), [[2.0]])

    def test_gradients(self, autograd):
        rng = np.random.default_rng(1)
        g, s, allowed = rng.normal(size=(3, 5)), rng.normal(size=(3, 5)), rng.random((3, 5)) < 0.7
        (expected,) = finite_differences(lambda a: stick_breaking(a, allowed), g, s)
        mask = autograd.asarray(allowed, "bool")
        (ours,) = autograd.vjp(lambda a: stick_breaking(a, mask), *map(autograd.asarray, (g, s)))
        autograd.check(ours, expected, tolerance=1e-8)

    def test_the_slope_at_a_score_of_zero(self, autograd):
        (ours,) = autograd.vjp(stick_breaking, autograd.asarray([[1.0]]), autograd.asarray([[0.0]]))
        autograd.check(ours, [[0.25]])

    def test_hidden_and_infinite_scores_leave_gradients_finite(self, autograd):
        s = autograd.asarray([[0.5, NAN, -INF, INF, 0.1]])
        allowed = autograd.asarray([[True, False, True, True, True]], "bool")
        (ours,) = autograd.vjp(lambda a: stick_breaking(a, allowed), autograd.asarray(np.ones((1, 5))), s)
        share = 1 / (1 + math.exp(-0.1))
        # The infinite key takes all that is left, so the sum is one whatever the last share is.
        autograd.check(ours, [[0.0, 0.0, 0.0, 0.0, share * (1 - share) * (1 - 1)]])

    def test_bad_input(self, xp):
        s = xp.asarray(np.ones((2, 3)))
        for function in (stick_breaking, stick_remainder):
            with pytest.raises(ValueError, match=r"\bs\b.*\(\)"):
                function(xp.asarray(1.0))
            with pytest.raises(ValueError, match=r"allowed.*\(3, 3\)"):
                function(s, xp.asarray(np.ones((3, 3)), "bool"))
            with pytest.raises(TypeError, match="allowed"):
                function(s, s)


class TestStickRemainder:
    @given(rows())
    def test_is_the_loop(self, row):
        np.testing.assert_allclose(stick_remainder(*row), loop(*row)[1], rtol=1e-9, atol=1e-300)

    def test_agrees_with_the_naive_form_of_fla(self, agree):
        fixture = frozen("fla_stick_breaking")
        q, k = (np.swapaxes(fixture[name], -2, -3) for name in "qk")
        s = q @ k.mT / math.sqrt(q.shape[-1])
        agree(
            stick_remainder(s, np.tri(q.shape[-2], k=-1, dtype=bool)),
            np.swapaxes(fixture["rest"], -1, -2),
            function="normalizers.stick_remainder",
            stranger="flash-linear-attention, naive form",
            version=fixture.version,
            dtype="float64",
        )

    def test_nothing_is_taken_from_an_empty_row(self, xp):
        xp.check(stick_remainder(xp.asarray([[NAN, 1.0]]), xp.asarray([[False, False]], "bool")), [1.0])


@pytest.mark.parametrize(("name", "invariant"), held("normalizers/stick_breaking"))
def test_shared_invariants(xp, name, invariant):
    invariant(SUBJECTS[name], xp)
