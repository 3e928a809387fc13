"""softlookup.positions.rotary_scaling: other frequencies for longer texts."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from invariants import held
from libraries import finite_differences
from oracles.freeze import frozen
from subjects import SUBJECTS

from softlookup.positions import (
    by_parts_frequencies,
    dynamic_ntk_frequencies,
    interpolated_frequencies,
    longrope_frequencies,
    longrope_stretch,
    ntk_frequencies,
    rotary,
    rotary_frequencies,
    xpos_stretch,
    yarn_frequencies,
    yarn_stretch,
)

INF, NAN = math.inf, math.nan
claims = pytest.mark.claims
TURN = 2 * math.pi


def loop_frequencies(width, base=10000.0):
    return [base ** (-2 * r / width) for r in range(width // 2)]


def loop_parts(frequencies, factor, trained, low, high):
    """The rule in its three branches, by wavelength."""
    out = []
    for f in frequencies:
        wavelength = TURN / f
        if wavelength < trained / high:
            out.append(f)
        elif wavelength > trained / low:
            out.append(f / factor)
        else:
            smooth = (trained / wavelength - low) / (high - low)
            out.append((1 - smooth) * f / factor + smooth * f)
    return out


def loop_yarn(width, base, factor, trained, fast=32.0, slow=1.0, rounded=True):
    def pair(turns):
        return width * math.log(trained / (turns * TURN)) / (2 * math.log(base))

    first, last = pair(fast), pair(slow)
    if rounded:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, width - 1)
    if first == last:
        last += 0.001
    out = []
    for r, f in enumerate(loop_frequencies(width, base)):
        share = min(max((r - first) / (last - first), 0), 1)
        out.append(f * (1 - share) + f / factor * share)
    return out


def agrees(agree, ours, name, function, rope_type, precision="float64"):
    fixture = frozen("transformers_rope_types")
    agree(
        ours,
        fixture[name],
        function=f"positions.{function}",
        stranger=f"transformers, rope_type {rope_type}",
        version=fixture.version,
        dtype=precision,
    )


class TestInterpolatedFrequencies:
    def test_by_hand(self, xp):
        xp.check(interpolated_frequencies(xp.asarray([1.0, 0.1]), factor=4), [0.25, 0.025])

    def test_agrees_with_transformers(self, agree):
        ours = interpolated_frequencies(rotary_frequencies(16), factor=4.0)
        agrees(agree, ours, "linear", "interpolated_frequencies", "linear")

    def test_is_rotary_at_shorter_distances(self, xp):
        rng = np.random.default_rng(0)
        x, p, f = xp.asarray(rng.normal(size=(5, 6))), rng.integers(0, 400, size=5), xp.asarray(rotary_frequencies(6))
        slow = rotary(x, xp.asarray(p, "int64"), interpolated_frequencies(f, factor=8), pairing="half")
        xp.check(slow, xp.numpy(rotary(x, xp.asarray(p / 8), f, pairing="half")))


class TestNtkFrequencies:
    def test_by_hand(self, xp):
        f = xp.asarray([1.0, 0.1, 0.01])
        xp.check(ntk_frequencies(f, factor=4), [1.0, 0.05, 0.0025])
        xp.check(ntk_frequencies(f, factor=1), [1.0, 0.1, 0.01])

    @given(st.integers(2, 40), st.floats(2, 1e6), st.floats(0.5, 64))
    def test_is_a_larger_base(self, pairs, base, factor):
        width = 2 * pairs
        expected = loop_frequencies(width, base * factor ** (width / (width - 2)))
        np.testing.assert_allclose(
            ntk_frequencies(rotary_frequencies(width, base=base), factor=factor), expected, rtol=1e-11
        )

    def test_bad_input(self, xp):
        for few in ([], [1.0]):
            with pytest.raises(ValueError, match=f"frequencies has {len(few)} numbers; it needs at least two"):
                ntk_frequencies(xp.asarray(few), factor=2)


class TestDynamicNtkFrequencies:
    @claims("R04")
    def test_case_r04(self, xp, case):
        c = case("R04")
        params = c["inputs"]["params"]
        f = xp.asarray(rotary_frequencies(params["rotary_dim"], base=params["base"]))
        constant = c["wrong"]["constant_for_all"]["base"][0]
        for length, base in zip(c["inputs"]["seq_lens"], c["expected"]["base"], strict=True):
            ours = dynamic_ntk_frequencies(f, factor=params["factor"], length=length, trained=params["original_max"])
            xp.check(ours, loop_frequencies(64, base))
            assert np.allclose(xp.numpy(ours), loop_frequencies(64, constant), rtol=1e-6) == (length == 4096)

    @claims("R04")
    @given(st.integers(1, 100000), st.floats(0.1, 64), st.sampled_from([4, 64]))
    def test_any_length_below_the_trained_one_changes_nothing(self, length, factor, width):
        f, trained = rotary_frequencies(width), 4096
        ours = dynamic_ntk_frequencies(f, factor=factor, length=length, trained=trained)
        base = 10000.0
        if length > trained:
            base *= (factor * length / trained - (factor - 1)) ** (width / (width - 2))
        np.testing.assert_allclose(ours, loop_frequencies(width, base), rtol=1e-9)
        assert np.isfinite(ours).all()

    @pytest.mark.parametrize(("name", "length"), [("dynamic_short", 512), ("dynamic", 5000)])
    def test_agrees_with_transformers(self, name, length, agree):
        ours = dynamic_ntk_frequencies(rotary_frequencies(16), factor=2.0, length=length, trained=2048)
        agrees(agree, ours, name, "dynamic_ntk_frequencies", "dynamic")


class TestByPartsFrequencies:
    def test_by_hand(self, xp):
        turns = xp.asarray([5.0, 4.0, 2.5, 1.0, 0.5])
        ours = by_parts_frequencies(turns * TURN / 100, factor=4, trained=100) / TURN * 100
        xp.check(ours, [5.0, 4.0, 2.5 / 2 + 2.5 / 8, 0.25, 0.125])

    @given(st.floats(1, 64), st.floats(1, 1e5), st.floats(0.1, 8), st.floats(0.1, 30))
    def test_is_the_loop(self, factor, trained, low, more):
        f = loop_frequencies(16)
        ours = by_parts_frequencies(np.array(f), factor=factor, trained=trained, low=low, high=low + more)
        np.testing.assert_allclose(ours, loop_parts(f, factor, trained, low, low + more), rtol=1e-9)

    def test_agrees_with_transformers(self, agree):
        ours = by_parts_frequencies(rotary_frequencies(16), factor=8.0, trained=2048)
        agrees(agree, ours, "llama3", "by_parts_frequencies", "llama3")

    def test_ends_are_the_other_schemes(self):
        f = rotary_frequencies(16)
        np.testing.assert_array_equal(by_parts_frequencies(f, factor=8, trained=1e9), f)
        np.testing.assert_allclose(
            by_parts_frequencies(f, factor=8, trained=1), interpolated_frequencies(f, factor=8), rtol=1e-15
        )

    def test_bad_input(self, xp):
        f = xp.asarray([1.0, 0.1])
        for low, high in ((4.0, 4.0), (4.0, 1.0)):
            with pytest.raises(ValueError, match=f"high is {high}; it must be larger than low, which is {low}"):
                by_parts_frequencies(f, factor=2, trained=10, low=low, high=high)


class TestYarnFrequencies:
    @claims("R06")
    def test_case_r06(self, xp, case):
        c = case("R06")
        params, expected = c["inputs"]["params"], c["expected"]
        options = {"factor": params["factor"], "trained": params["original_max"]}
        options |= {"fast": params["beta_fast"], "slow": params["beta_slow"]}
        base = xp.asarray(params["base"])
        xp.check(yarn_frequencies(8, base=base, **options), expected["freqs_rounded_ends"])
        exact = yarn_frequencies(8, base=base, **options, rounded=False)
        xp.check(exact, expected["freqs_no_rounding"])
        wrong = c["wrong"]["scale_inside_power"]["freqs_no_rounding"]
        np.testing.assert_array_equal(np.isclose(xp.numpy(exact), wrong), [True, True, False, False])

    @claims("R06")
    @given(
        st.integers(1, 32),
        st.floats(2, 1e6),
        st.floats(1, 64),
        st.integers(16, 100000),
        st.sampled_from([(32.0, 1.0), (16.0, 2.0), (2.0, 1.0)]),
        st.booleans(),
    )
    def test_is_the_loop(self, pairs, base, factor, trained, turns, rounded):
        fast, slow = turns
        ours = yarn_frequencies(
            2 * pairs, base=base, factor=factor, trained=trained, fast=fast, slow=slow, rounded=rounded
        )
        expected = loop_yarn(2 * pairs, base, factor, trained, fast, slow, rounded)
        np.testing.assert_allclose(ours, expected, rtol=1e-9)

    @claims("R06")
    def test_the_last_pairs_are_interpolated_and_the_first_stay(self):
        f = rotary_frequencies(128)
        ours = yarn_frequencies(128, factor=4, trained=4096)
        np.testing.assert_array_equal(ours[:10], f[:10])
        np.testing.assert_allclose(ours[-10:], interpolated_frequencies(f, factor=4)[-10:], rtol=1e-15)

    @pytest.mark.parametrize(
        ("name", "options"),
        [
            ("yarn", {"factor": 4.0}),
            ("yarn_exact", {"factor": 40.0, "rounded": False, "fast": 16.0, "slow": 2.0}),
            ("yarn_ratio", {"factor": 40.0}),
        ],
    )
    def test_agrees_with_transformers(self, name, options, agree):
        ours = yarn_frequencies(16, trained=2048, **options)
        agrees(agree, ours, name, "yarn_frequencies", "yarn, ends rounded or not")

    def test_equal_ends_leave_one_step(self):
        """Few turns: both ends are limited to zero, and the step falls between the first two pairs."""
        ours = yarn_frequencies(8, factor=4.0, trained=5, fast=2.0, slow=1.0)
        np.testing.assert_allclose(ours, [1.0, 0.025, 0.0025, 0.00025], rtol=1e-12)

    def test_a_base_for_each_head(self, xp):
        ours = yarn_frequencies(16, base=xp.asarray([1e4, 1e6]), factor=4.0, trained=2048)
        xp.check(ours, [loop_yarn(16, base, 4.0, 2048) for base in (1e4, 1e6)])

    def test_bad_input(self, xp):
        given = {"factor": 4.0, "trained": 2048}
        with pytest.raises(ValueError, match="fast is 1.0; it must be larger than slow, which is 2.0"):
            yarn_frequencies(8, **given, fast=1.0, slow=2.0)
        with pytest.raises(ValueError, match="base is 1.0; it must be larger than one"):
            yarn_frequencies(8, base=1.0, **given)
        with pytest.raises(ValueError, match="width is 7"):
            yarn_frequencies(7, **given)
        with pytest.raises(TypeError, match="base"):
            yarn_frequencies(8, base="big", **given)


class TestYarnStretch:
    def test_by_hand(self, xp):
        x = xp.asarray([[1.0, -2.0]])
        xp.check(yarn_stretch(x, factor=math.exp(10)), [[2.0, -4.0]])
        for small in (1.0, 0.25):
            xp.check(yarn_stretch(x, factor=small), [[1.0, -2.0]])

    @pytest.mark.parametrize(("name", "factor"), [("yarn", 4.0), ("yarn_exact", 40.0)])
    def test_agrees_with_transformers(self, name, factor, agree):
        ours = yarn_stretch(np.ones((1, 1)), factor=factor)[0, 0]
        agrees(agree, ours, f"{name}_factor", "yarn_stretch", "yarn, attention factor")

    def test_deepseek_takes_a_ratio_of_two(self):
        ours = (0.1 * 1.0 * math.log(40) + 1) / (0.1 * 0.7 * math.log(40) + 1)
        assert math.isclose(ours, frozen("transformers_rope_types")["yarn_ratio_factor"])

    def test_scores_get_the_square(self, xp):
        q, k = (xp.asarray(np.random.default_rng(i).normal(size=(3, 4))) for i in (1, 2))
        stretched = [yarn_stretch(a, factor=8.0) for a in (q, k)]
        ours = stretched[0] @ xp.asarray(xp.numpy(stretched[1]).T.copy())
        xp.check(ours, xp.numpy(q) @ xp.numpy(k).T * (0.1 * math.log(8) + 1) ** 2)


class TestLongropeFrequencies:
    def test_by_hand(self, xp):
        f, short, long = (xp.asarray(a) for a in ([1.0, 0.1], [1.0, 2.0], [4.0, 8.0]))
        for length, expected in ((1, [1.0, 0.05]), (100, [1.0, 0.05]), (101, [0.25, 0.0125])):
            xp.check(longrope_frequencies(f, short, long, length=length, trained=100), expected)

    @pytest.mark.parametrize(("name", "length"), [("longrope_short", 2048), ("longrope", 2049)])
    def test_agrees_with_transformers(self, name, length, agree):
        """It computes the powers of the base in float32."""
        short, long = np.array([1.0, 1.05, 1.1, 1.2, 1.3, 1.5, 2.0, 2.5]), 1.0 + np.arange(8)
        ours = longrope_frequencies(rotary_frequencies(16), short, long, length=length, trained=2048)
        agrees(agree, ours, name, "longrope_frequencies", "longrope", precision="float32")

    def test_cached_keys_have_to_be_turned_again(self):
        rng = np.random.default_rng(3)
        q, k, p = rng.normal(size=(1, 8)), rng.normal(size=(6, 8)), np.arange(6)
        f, short, long = rotary_frequencies(8), np.ones(4), np.array([1.0, 2.0, 4.0, 8.0])
        before, after = (longrope_frequencies(f, short, long, length=n, trained=5) for n in (5, 6))
        query = rotary(q, p[5:], after, pairing="half")
        right, stale = rotary(k, p, after, pairing="half"), rotary(k, p, before, pairing="half")
        assert not np.allclose(query @ stale.T, query @ right.T, atol=1e-3)
        mended = rotary(stale, p, after - before, pairing="half")
        np.testing.assert_allclose(mended, right, atol=1e-14)

    def test_bad_input(self, xp, other):
        f = xp.asarray([1.0, 0.1])
        for name, lists in (("short", (np.ones(3), np.ones(2))), ("long", (np.ones(2), np.ones(3)))):
            with pytest.raises(ValueError, match=rf"{name} has shape \(3,\)"):
                longrope_frequencies(f, *map(xp.asarray, lists), length=1, trained=2)
        with pytest.raises(TypeError, match="one library"):
            longrope_frequencies(f, f, other.asarray([1.0, 1.0]), length=1, trained=2)


class TestLongropeStretch:
    def test_by_hand(self, xp):
        x = xp.asarray([[1.0, -2.0]])
        xp.check(longrope_stretch(x, factor=8, trained=2), [[2.0, -4.0]])
        for small in (1.0, 0.25):
            xp.check(longrope_stretch(x, factor=small, trained=2), [[1.0, -2.0]])

    def test_agrees_with_transformers(self, agree):
        ours = longrope_stretch(np.ones((1, 1)), factor=16.0, trained=2048)[0, 0]
        agrees(agree, ours, "longrope_factor", "longrope_stretch", "longrope, attention factor")

    def test_bad_input(self, xp):
        for trained in (1, 0.5):
            with pytest.raises(ValueError, match="trained is .*; it must be larger than one"):
                longrope_stretch(xp.asarray([[1.0]]), factor=2.0, trained=trained)


class TestXposStretch:
    def test_by_hand(self, xp):
        x, p = xp.asarray([[1.0, 2.0, 3.0, 4.0]]), xp.asarray([512], "int64")
        one, two = 0.4 / 1.4, 0.9 / 1.4
        xp.check(xpos_stretch(x, p, pairing="half"), [[one, 2 * two, 3 * one, 4 * two]])
        xp.check(xpos_stretch(x, p, pairing="interleaved"), [[one, 2 * one, 3 * two, 4 * two]])
        xp.check(xpos_stretch(x, -p, pairing="half"), [[1 / one, 2 / two, 3 / one, 4 / two]])
        halved = xpos_stretch(x, p, pairing="half", span=1024.0, offset=1.0)
        one, two = math.sqrt(1 / 2), math.sqrt(1.5 / 2)
        xp.check(halved, [[one, 2 * two, 3 * one, 4 * two]])

    @pytest.mark.parametrize("pairing", ["half", "interleaved"])
    def test_scores_decay_with_the_distance_alone(self, pairing):
        rng = np.random.default_rng(4)
        q, k, f = rng.normal(size=(3, 6)), rng.normal(size=(4, 6)), rotary_frequencies(6)
        at, of, zeta = np.array([5, 40, 90]), np.array([0, 5, 17, 80]), (np.arange(3) / 3 + 0.4) / 1.4
        pairs = (lambda a: a.reshape(-1, 3, 2)) if pairing == "interleaved" else (lambda a: a.reshape(-1, 2, 3).mT)
        expected = np.zeros((3, 4))
        for i, j in np.ndindex(3, 4):
            for r in range(3):
                u, v = complex(*pairs(q)[i, r]), complex(*pairs(k)[j, r])
                wave = u.conjugate() * v * np.exp(1j * (of[j] - at[i]) * f[r])
                expected[i, j] += wave.real * zeta[r] ** ((at[i] - of[j]) / 512)
        for step in (0, 1000, -60):
            queries = xpos_stretch(rotary(q, at + step, f, pairing=pairing), at + step, pairing=pairing)
            keys = xpos_stretch(rotary(k, of + step, f, pairing=pairing), -(of + step), pairing=pairing)
            np.testing.assert_allclose(queries @ keys.T, expected, rtol=1e-11, atol=1e-12)

    def test_gradients(self, autograd):
        rng = np.random.default_rng(5)
        g, x, p = rng.normal(size=(3, 4)), rng.normal(size=(3, 4)), rng.normal(size=3)
        expected = finite_differences(lambda *a: xpos_stretch(*a, pairing="half", span=3.0), g, x, p)
        arrays = [autograd.asarray(a) for a in (g, x, p)]
        ours = autograd.vjp(lambda *a: xpos_stretch(*a, pairing="half", span=3.0), *arrays)
        for one, two in zip(ours, expected, strict=True):
            autograd.check(one, two, tolerance=1e-8)

    def test_no_numbers(self):
        assert xpos_stretch(np.zeros((3, 0)), np.zeros(3), pairing="half").shape == (3, 0)

    def test_bad_input(self, xp, other):
        x, p = xp.asarray(np.ones((3, 4))), xp.asarray([0, 1, 2], "int64")
        with pytest.raises(ValueError, match="x has 3 columns; they must be even"):
            xpos_stretch(xp.asarray(np.ones((3, 3))), p, pairing="half")
        with pytest.raises(ValueError, match=r'pairing is .*"interleaved" or "half"'):
            xpos_stretch(x, p, pairing="neox")
        with pytest.raises(ValueError, match=r"positions.*\(2,\)"):
            xpos_stretch(x, p[:2], pairing="half")
        for one, two in ((x[0, :], p), (x, p[0])):
            with pytest.raises(ValueError, match="axes"):
                xpos_stretch(one, two, pairing="half")
        with pytest.raises(TypeError, match="one library"):
            xpos_stretch(x, other.asarray([0, 1, 2], "int64"), pairing="half")


OF_SPEEDS = {
    interpolated_frequencies: {"factor": 2.0},
    ntk_frequencies: {"factor": 2.0},
    dynamic_ntk_frequencies: {"factor": 2.0, "length": 9.0, "trained": 4.0},
    by_parts_frequencies: {"factor": 2.0, "trained": 4.0, "low": 1.0, "high": 4.0},
    yarn_stretch: {"factor": 2.0},
    longrope_stretch: {"factor": 2.0, "trained": 4.0},
}


@pytest.mark.parametrize("function", OF_SPEEDS, ids=lambda f: f.__name__)
def test_bad_input_of_each(xp, function):
    x, options = xp.asarray([[1.0, 0.5]]), OF_SPEEDS[function]
    for name in options:
        for bad in (0.0, -1.0, INF, NAN):
            with pytest.raises(ValueError, match=name):
                function(x, **options | {name: bad})
        with pytest.raises(TypeError, match=name):
            function(x, **options | {name: "two"})
    with pytest.raises(TypeError, match="must be an array"):
        function([1.0, 0.5], **options)
    if "stretch" not in function.__name__:
        with pytest.raises(ValueError, match="axes"):
            function(xp.asarray(1.0), **options)


@pytest.mark.parametrize("option", ["factor", "trained", "fast", "slow", "length", "span", "offset"])
@pytest.mark.parametrize("bad", [0.0, -1.0, INF, NAN])
def test_bad_options_of_the_others(option, bad):
    f = np.array([1.0, 0.1])
    calls = {
        yarn_frequencies: ((8,), {"factor": 4.0, "trained": 2048.0, "fast": 32.0, "slow": 1.0}),
        longrope_frequencies: ((f, f, f), {"length": 5.0, "trained": 4.0}),
        xpos_stretch: ((np.ones((3, 4)), np.arange(3)), {"pairing": "half", "span": 5.0, "offset": 0.4}),
    }
    for function, (arguments, options) in calls.items():
        if option in options:
            with pytest.raises(ValueError, match=f"{option} is"):
                function(*arguments, **options | {option: bad})


def test_lowest_frequency_of_every_scheme_is_divided_by_the_factor():
    f, s = rotary_frequencies(64), 8.0
    for scaled in (
        interpolated_frequencies(f, factor=s),
        ntk_frequencies(f, factor=s),
        by_parts_frequencies(f, factor=s, trained=2048),
        yarn_frequencies(64, factor=s, trained=2048),
    ):
        assert math.isclose(scaled[-1], f[-1] / s)


@pytest.mark.parametrize(("name", "invariant"), held("positions/rotary_scaling"))
def test_shared_invariants(xp, name, invariant):
    invariant(SUBJECTS[name], xp)
