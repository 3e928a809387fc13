"""softlookup.positions.distance_bias: ALiBi, KERPLE, FIRE, Sandwich and forgetting."""

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

from softlookup.lookup import attention, attention_weights, log_sum_exp, softmax
from softlookup.masks import causal, positions
from softlookup.positions import (
    alibi,
    alibi_slopes,
    fire,
    forgetting,
    forgetting_by_totals,
    kerple_log,
    kerple_power,
    sandwich,
)

INF, NAN, BIG = math.inf, math.nan, 2**40
claims = pytest.mark.claims
places = hnp.arrays(np.int64, st.integers(0, 5), elements=st.integers(-9, 9) | st.sampled_from([-BIG, BIG]))
numbers = st.floats(0.01, 2.0)


def loop(queries, keys, rule):
    """A bias of one head, pair by pair in plain Python."""
    pairs = [[rule(int(i), int(j)) for j in keys] for i in queries]
    return np.array(pairs, dtype=float).reshape(1, len(queries), len(keys))


def one(x):
    return np.array([x])


def gates(rng, *shape):
    """Logarithms of gates between zero and one."""
    return -np.logaddexp(0, -rng.normal(1, 1, size=shape))


DISTANCES = {
    "alibi": (alibi, 1),
    "kerple_log": (kerple_log, 2),
    "kerple_power": (kerple_power, 2),
    "sandwich": (sandwich, 2),
}
by_distance = pytest.mark.parametrize(("function", "count"), DISTANCES.values(), ids=DISTANCES)


def every_scheme(rng, heads=2, tokens=8):
    """Each scheme as a function of positions, with its parameters bound; gates belong to the keys."""
    r1, r2 = rng.uniform(0.1, 1, size=(2, heads))
    network = rng.normal(size=5), rng.normal(size=5), rng.normal(size=(5, heads))
    log_f = gates(rng, heads, tokens)
    return {
        "alibi": lambda i, j: alibi(i, j, r1),
        "kerple_log": lambda i, j: kerple_log(i, j, r1, r2),
        "kerple_power": lambda i, j: kerple_power(i, j, r1, r2),
        "fire": lambda i, j: fire(i, j, np.array(0.3), np.array(4.0), *network),
        "sandwich": lambda i, j: sandwich(i, j, r1, np.array([1.0, 0.1])),
        "forgetting": lambda i, j: forgetting(i, j, log_f[:, : len(j)]),
        "forgetting_by_totals": lambda i, j: forgetting_by_totals(i, j, log_f[:, : len(j)]),
    }


class TestAlibiSlopes:
    def test_by_hand(self):
        np.testing.assert_array_equal(alibi_slopes(2), [1 / 16, 1 / 256])
        np.testing.assert_array_equal(alibi_slopes(3), [1 / 16, 1 / 256, 1 / 4])
        np.testing.assert_array_equal(alibi_slopes(2, octaves=2.0), [1 / 2, 1 / 4])

    @claims("P01")
    def test_case_p01(self, case):
        expected, wrong = case("P01")["expected"]["slopes"], case("P01")["wrong"]
        for heads in case("P01")["inputs"]["n_heads"]:
            np.testing.assert_allclose(alibi_slopes(heads), expected[str(heads)], rtol=1e-12)
        assert not np.allclose(alibi_slopes(6), wrong["plain_geometric_6"]["slopes"])
        assert not np.allclose(alibi_slopes(8), wrong["start_at_zero_8"]["slopes"])

    @claims("P01")
    @pytest.mark.parametrize("heads", range(1, 41))
    def test_any_number_of_heads(self, heads):
        """Each slope of a power of two is there, and those in between come from the next one, in its order."""
        power = max(p for p in (1, 2, 4, 8, 16, 32) if p <= heads)
        twice = [2 ** (-8 * (h + 1) / (2 * power)) for h in range(2 * power)]
        expected = twice[1::2] + twice[0::2][: heads - power]
        np.testing.assert_allclose(alibi_slopes(heads), expected, rtol=1e-14)
        assert len(set(alibi_slopes(heads))) == heads

    @pytest.mark.parametrize("heads", [1, 2, 6, 8, 12, 20])
    def test_agrees_with_bloom_and_mpt(self, heads, agree):
        fixture = frozen("transformers_alibi")
        record = {"version": fixture.version, "dtype": "float32"}
        slopes = alibi_slopes(heads, octaves=np.float32([8.0]))[0]
        agree(
            slopes[:, None, None] * np.arange(5),
            fixture[f"bloom_{heads}"][0],
            function="positions.alibi_slopes",
            stranger="transformers, build_alibi_tensor of BLOOM",
            clash="multiplies the slope by the key's own position",
            **record,
        )
        agree(
            alibi(np.array([4]), np.arange(5), slopes),
            fixture[f"mpt_{heads}"],
            function="positions.alibi",
            stranger="transformers, build_mpt_alibi_tensor of MPT",
            clash="counts distances from the last key, for every query",
            **record,
        )

    def test_bloom_counts_the_keys_that_are_no_padding(self):
        """Under a causal softmax its bias is ours for positions that start at the first real key."""
        fixture = frozen("transformers_alibi")
        rng = np.random.default_rng(0)
        s, p = rng.normal(size=(8, 3, 3)), np.arange(3)
        theirs = softmax(s + fixture["bloom_8"][1][..., 2:], causal(p, p))
        np.testing.assert_allclose(theirs, softmax(s + alibi(p, p, alibi_slopes(8)), causal(p, p)), rtol=1e-12)

    def test_library_and_rows(self, xp):
        xp.check(alibi_slopes(2, octaves=xp.asarray([8.0, 2.0])), [[1 / 16, 1 / 256], [1 / 2, 1 / 4]])

    def test_bad_input(self):
        for heads in (0, -1):
            with pytest.raises(ValueError, match=f"heads is {heads}"):
                alibi_slopes(heads)
        with pytest.raises(TypeError, match="heads"):
            alibi_slopes(2.0)
        for octaves in (0.0, INF):
            with pytest.raises(ValueError, match="octaves"):
                alibi_slopes(2, octaves=octaves)
        with pytest.raises(TypeError, match="octaves"):
            alibi_slopes(2, octaves="8")


class TestAlibi:
    @given(places, places, numbers)
    def test_is_the_loop(self, queries, keys, slope):
        ours = alibi(queries, keys, one(slope))
        np.testing.assert_allclose(ours, loop(queries, keys, lambda i, j: -slope * abs(i - j)), rtol=1e-15)

    @claims("P02")
    def test_case_p02(self, xp, case):
        c = case("P02")
        q, k, v = (xp.asarray(c["inputs"][name]) for name in "qkv")
        slope, p = xp.asarray([c["inputs"]["slope"]]), xp.asarray(range(3), "int64")
        mask, bias = causal(p, p), alibi(p, p, slope)[0, ...]
        by_key = slope * xp.asarray(range(3))
        for given_bias, kind in ((bias, "relative"), (by_key, "key_only")):
            xp.check(attention(q, k, v, mask=mask, bias=given_bias), c["expected"]["out"])
            w = attention_weights(q, k, mask=mask, bias=given_bias)
            xp.check(w, c["expected"]["weights" if kind == "relative" else "weights_key_only"])
            zeros = xp.asarray(np.zeros((3, 3)))
            xp.check(log_sum_exp(zeros + given_bias, mask), c["expected"][f"lse_{kind}"])
        xp.check(attention(q, k, v, mask=mask, bias=-bias), c["wrong"]["plus_sign"]["out"])

    @claims("P02")
    @given(places, st.data())
    def test_the_key_alone_is_enough_under_causal_softmax_and_there_only(self, p, data):
        p = np.sort(np.clip(p, -9, 9))
        slopes = np.array([0.5, 0.03])
        s = np.random.default_rng(data.draw(st.integers(0, 99))).normal(size=(2, len(p), len(p)))
        mask, relative, by_key = causal(p, p), alibi(p, p, slopes), slopes[:, None, None] * p
        np.testing.assert_allclose(softmax(s + by_key, mask), softmax(s + relative, mask), rtol=1e-10)
        shift = log_sum_exp(s + by_key, mask) - log_sum_exp(s + relative, mask)
        np.testing.assert_allclose(shift, slopes[:, None] * p, rtol=1e-10, atol=1e-10)
        if len(set(p)) > 1:
            assert not np.allclose(softmax(s + by_key), softmax(s + relative))
            assert not np.allclose(softmax(s - relative, mask), softmax(s + relative, mask))

    @pytest.mark.parametrize("is_causal", [True, False])
    def test_agrees_with_flex_attention(self, torch, agree, monkeypatch, is_causal):
        from torch.nn.attention import flex_attention as flex

        monkeypatch.setattr(flex, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)
        rng = np.random.default_rng(1)
        q, k, v = (rng.normal(size=(1, 6, 7, 4)) for _ in range(3))
        slopes, p = alibi_slopes(6), np.arange(7)
        held_slopes = torch.tensor(slopes)
        block = flex.create_block_mask(lambda b, h, i, j: j <= i, None, None, 7, 7, device="cpu") if is_causal else None
        theirs = flex.flex_attention(
            *map(torch.tensor, (q, k, v)),
            score_mod=lambda s, b, h, i, j: s - held_slopes[h] * (i - j).abs(),
            block_mask=block,
        )
        agree(
            attention(q, k, v, bias=alibi(p, p, slopes), mask=causal(p, p) if is_causal else None),
            theirs,
            function="positions.alibi",
            stranger="torch flex_attention, a score_mod with the slopes",
            version=f"torch {torch.__version__.partition('+')[0]}",
            dtype="float64",
        )

    def test_narrow_numbers_tell_few_distances_apart(self, xp):
        far = xp.asarray([-2048, -2049, -2050], "int64")
        for dtype in ("float32", *xp.narrow_dtypes):
            ours = set(xp.numpy(alibi(xp.asarray([0], "int64"), far, xp.asarray([1.0], dtype))).ravel())
            assert len(ours) == {"float32": 3, "float16": 2, "bfloat16": 1}[dtype]


class TestKerpleLog:
    @given(places, places, numbers, numbers)
    def test_is_the_loop(self, queries, keys, r1, r2):
        ours = kerple_log(queries, keys, one(r1), one(r2))
        expected = loop(queries, keys, lambda i, j: -r1 * math.log(1 + r2 * abs(i - j)))
        np.testing.assert_allclose(ours, expected, rtol=1e-12)

    def test_weights_fall_as_a_power(self, xp):
        p, r1, r2 = xp.asarray([0, 1, 3, 100], "int64"), xp.asarray([2.0]), xp.asarray([0.5])
        w = softmax(kerple_log(p[:1], p, r1, r2))
        fall = np.array([1, 1.5, 2.5, 51]) ** -2.0
        xp.check(w, [[fall / fall.sum()]])

    def test_small_r2_is_alibi(self):
        p = np.arange(6)
        np.testing.assert_allclose(kerple_log(p, p, one(5e8), one(1e-9)), alibi(p, p, one(0.5)), rtol=1e-7)


class TestKerplePower:
    @given(places, places, numbers, numbers)
    def test_is_the_loop(self, queries, keys, r1, r2):
        ours = kerple_power(queries, keys, one(r1), one(r2))
        expected = loop(queries, keys, lambda i, j: -r1 * float(abs(i - j)) ** r2)
        np.testing.assert_allclose(ours, expected, rtol=1e-12)

    @given(places, places, numbers)
    def test_power_one_is_alibi(self, queries, keys, r1):
        ours = kerple_power(queries, keys, one(r1), one(1.0))
        np.testing.assert_allclose(ours, alibi(queries, keys, one(r1)), rtol=1e-13)

    def test_power_two_is_a_gaussian(self, xp):
        i, j = xp.asarray([0], "int64"), xp.asarray([-1, 0, 2], "int64")
        xp.check(kerple_power(i, j, xp.asarray([0.5]), xp.asarray([2.0])), [[[-0.5, 0.0, -2.0]]])

    def test_the_gradient_at_distance_zero_is_zero(self, autograd):
        i, j = (autograd.asarray(p, "int64") for p in ([3], [3, 1]))
        r = [autograd.asarray([0.7]), autograd.asarray([0.5])]
        g = autograd.asarray(np.ones((1, 1, 2)))
        d1, d2 = autograd.vjp(lambda a, b: kerple_power(i, j, a, b), g, *r)
        autograd.check(d1, [-math.sqrt(2)])
        autograd.check(d2, [-0.7 * math.sqrt(2) * math.log(2)])


class TestSandwich:
    @given(places.map(lambda p: np.clip(p, -99, 99)), places.map(lambda p: np.clip(p, -99, 99)), numbers)
    def test_is_the_loop(self, queries, keys, ratio):
        frequencies = [1.0, 0.3, 0.01]
        ours = sandwich(queries, keys, one(ratio), np.array(frequencies))
        expected = loop(queries, keys, lambda i, j: math.fsum(math.cos(f * (i - j)) - 1 for f in frequencies) / ratio)
        np.testing.assert_allclose(ours, expected, rtol=1e-10, atol=1e-12)

    def test_is_the_inner_product_of_sinusoids(self):
        frequencies = 10000.0 ** (-np.arange(1, 9) / 8)
        queries, keys = np.array([3, -2, 900]), np.array([5, 0, -7, 1000])

        def sinusoids(p):
            angles = p[:, None] * frequencies
            return np.concatenate([np.sin(angles), np.cos(angles)], axis=-1)

        inner = sinusoids(queries) @ sinusoids(keys).T
        ours = sandwich(queries, keys, np.array([2.0, 8.0]), frequencies)
        np.testing.assert_allclose(ours, (inner - 8) / np.array([2.0, 8.0])[:, None, None], atol=1e-12)

    def test_far_away_single_precision_loses_the_angle(self):
        """The difference of positions is exact; the angle is rounded to a unit of 1/16 at a million."""
        i, j, f = np.array([0]), np.array([10**6 + 1]), np.array([0.9], dtype=np.float32)
        wide = sandwich(i, j, one(1.0), f.astype(float))[0, 0, 0]
        narrow = sandwich(i, j, one(np.float32(1)), f)[0, 0, 0]
        assert 1e-5 < abs(wide - narrow) <= 2.0**-5


def network(rng, units=6, heads=3):
    return rng.normal(size=units), rng.normal(size=units), rng.normal(size=(units, heads))


class TestFire:
    @given(places, places, numbers, numbers)
    def test_is_the_loop(self, queries, keys, c, threshold):
        w1, b1, w2 = network(np.random.default_rng(2), heads=1)

        def rule(i, j):
            x = math.log(1 + c * abs(i - j)) / math.log(1 + c * max(threshold, i))
            return math.fsum(max(x * w + b, 0) * u for w, b, u in zip(w1, b1, w2[:, 0], strict=True))

        ours = fire(queries, keys, np.array(c), np.array(threshold), w1, b1, w2)
        np.testing.assert_allclose(ours, loop(queries, keys, rule), rtol=1e-9, atol=1e-9)

    def test_agrees_with_linear_layers_of_torch(self, torch, agree):
        rng = np.random.default_rng(3)
        w1, b1, w2 = network(rng)
        p = np.arange(9)
        x = np.log1p(0.4 * abs(p[:, None] - p)) / np.log1p(0.4 * np.maximum(p, 5))[:, None]
        first, second = torch.nn.Linear(1, 6).double(), torch.nn.Linear(6, 3, bias=False).double()
        with torch.no_grad():
            first.weight[:], first.bias[:] = torch.tensor(w1[:, None]), torch.tensor(b1)
            second.weight[:] = torch.tensor(w2.T)
            theirs = second(torch.relu(first(torch.tensor(x)[..., None])))
        agree(
            fire(p, p, np.array(0.4), np.array(5.0), w1, b1, w2),
            theirs.permute(2, 0, 1),
            function="positions.fire",
            stranger="torch.nn.Linear and relu, from the part of the query's position",
            version=f"torch {torch.__version__.partition('+')[0]}",
            dtype="float64",
        )

    def test_before_the_threshold_it_can_be_kerple(self):
        p, c, threshold = np.arange(6), 0.5, 8.0
        r1 = np.array([0.7, 2.0])
        w2 = -(r1 * math.log1p(c * threshold))[None]
        ours = fire(p, p, np.array(c), np.array(threshold), np.ones(1), np.zeros(1), w2)
        np.testing.assert_allclose(ours, kerple_log(p, p, r1, np.full(2, c)), rtol=1e-12)

    def test_from_the_threshold_on_what_is_divided_fills_zero_to_one(self):
        p = np.arange(20)
        x = -fire(p, p, np.array(0.3), np.array(4.0), np.ones(1), np.zeros(1), -np.ones((1, 1)))[0]
        np.testing.assert_allclose(x[4:, 0], 1, rtol=1e-12)
        assert (x[:4, 0] < 1).all()
        smaller = np.log1p(0.3 * abs(p[:, None] - p)) / np.log1p(0.3 * np.minimum(np.maximum(p, 1), 4))[:, None]
        assert smaller[19, 0] > 1.5  # the smaller of the two lengths: a wrong copy

    def test_a_divisor_of_zero_gives_what_the_network_makes_of_zero(self, xp):
        i, j = xp.asarray([0, 2], "int64"), xp.asarray([0, -1], "int64")
        zero, rest = xp.asarray(0.0), [xp.asarray([1.0]), xp.asarray([0.5]), xp.asarray([[2.0]])]
        half = math.log(4) / math.log(3)
        xp.check(fire(i, j, xp.asarray(1.0), zero, *rest), [[[1.0, 1.0], [3.0, 1 + 2 * half]]])

    def test_gradients(self, autograd):
        rng = np.random.default_rng(4)
        i, j = np.array([7, 2, -3]), np.array([1, 7, 0, 2])
        arrays = [np.array(0.4), np.array(3.3), *network(rng, units=4, heads=2)]
        g = rng.normal(size=(2, 3, 4))
        expected = finite_differences(lambda *a: fire(i, j, *a), g, *arrays)
        queries, keys = (autograd.asarray(p, "int64") for p in (i, j))
        ours = autograd.vjp(lambda *a: fire(queries, keys, *a), *map(autograd.asarray, (g, *arrays)))
        for a, b in zip(ours, expected, strict=True):
            autograd.check(a, b, tolerance=1e-7)

    def test_bad_input(self, xp, other):
        p, one, units = xp.asarray([0, 1], "int64"), xp.asarray(1.0), xp.asarray(np.ones(3))
        w2 = xp.asarray(np.ones((3, 2)))
        with pytest.raises(ValueError, match=r"w1 has 3 units, b1 has 2"):
            fire(p, p, one, one, units, units[:2], w2)
        with pytest.raises(ValueError, match=r"w1 has 3 units, w2 has 2"):
            fire(p, p, one, one, units, units, w2[:2, ...])
        with pytest.raises(ValueError, match=r"b1 has shape \(\)"):
            fire(p, p, one, one, units, one, w2)
        with pytest.raises(ValueError, match=r"w2 has shape \(3,\)"):
            fire(p, p, one, one, units, units, units)
        with pytest.raises(ValueError, match=r"leading axes.*c has \(2,\).*w2 has \(3,\)"):
            fire(p, p, xp.asarray(np.ones(2)), one, units, units, xp.asarray(np.ones((3, 3, 2))))
        with pytest.raises(TypeError, match="q_positions"):
            fire(xp.asarray([0.0]), p, one, one, units, units, w2)
        with pytest.raises(TypeError, match="one library"):
            fire(p, p, *(other.asarray(np.ones(s)) for s in ((), (), 3, 3, (3, 2))))


class TestForgetting:
    @given(places, places, st.integers(0, 99))
    def test_is_the_loop(self, queries, keys, seed):
        log_f = gates(np.random.default_rng(seed), 1, len(keys))

        def rule(i, j):
            return math.fsum(f for p, f in zip(keys, log_f[0], strict=True) if j < p <= i)

        np.testing.assert_allclose(forgetting(queries, keys, log_f), loop(queries, keys, rule), rtol=1e-12)

    def test_agrees_with_fla(self, agree):
        fixture = frozen("fla_forgetting")
        q, k, v, log_f = (np.moveaxis(fixture[name], 2, 1) for name in ("q", "k", "v", "log_f"))
        p = np.arange(7)
        agree(
            np.moveaxis(attention(q, k, v, mask=causal(p, p), bias=forgetting(p, p, log_f)), 1, 2),
            fixture["out"],
            function="positions.forgetting",
            stranger="fla naive_forgetting_attn",
            version=fixture.version,
            dtype="float32",
        )

    def test_one_gate_for_all_is_alibi(self, xp):
        p, slopes = xp.asarray(range(6), "int64"), xp.asarray([0.5, 0.1])
        log_f = -slopes[:, None] * xp.asarray(np.ones(6))
        allowed = np.tri(6)
        ours = xp.numpy(forgetting(p, p, log_f))
        np.testing.assert_allclose(ours, allowed * xp.numpy(alibi(p, p, slopes)), atol=xp.tolerance)

    def test_a_gate_of_zero_hides_what_stands_before_it(self, xp):
        """The definition stays finite after it, and the row keeps its own key."""
        p, log_f = xp.asarray(range(4), "int64"), xp.asarray([[-1.0, -2.0, -INF, -4.0]])
        expected = [[0, 0, 0, 0], [-2, 0, 0, 0], [-INF, -INF, 0, 0], [-INF, -INF, -4, 0]]
        bias = forgetting(p, p, log_f)
        xp.check(bias, [expected])
        x = xp.asarray(np.zeros((1, 4, 1)))
        w = attention_weights(x, x, mask=causal(p, p), bias=bias)
        early = 1 / (1 + math.exp(-2))
        late = 1 / (1 + math.exp(-4))
        xp.check(w, [[[1, 0, 0, 0], [1 - early, early, 0, 0], [0, 0, 1, 0], [0, 0, 1 - late, late]]])

    def test_gradients(self, autograd):
        rng = np.random.default_rng(6)
        i, j, log_f = np.array([4, -1, 7]), np.array([0, 2, 7, 5]), gates(rng, 2, 4)
        g = rng.normal(size=(2, 3, 4))
        queries, keys = (autograd.asarray(p, "int64") for p in (i, j))
        for function in (forgetting, forgetting_by_totals):
            (expected,) = finite_differences(lambda a, f=function: f(i, j, a), g, log_f)
            (ours,) = autograd.vjp(
                lambda a, f=function: f(queries, keys, a), autograd.asarray(g), autograd.asarray(log_f)
            )
            autograd.check(ours, expected, tolerance=1e-8)

    def test_bad_input(self, xp, other):
        p, log_f = xp.asarray([0, 1], "int64"), xp.asarray(np.zeros((3, 2)))
        for function in (forgetting, forgetting_by_totals):
            with pytest.raises(ValueError, match=r"k_positions has 2 keys, log_f has 3"):
                function(p, p, xp.asarray(np.zeros((3, 3))))
            with pytest.raises(ValueError, match=r"log_f has shape \(2,\)"):
                function(p, p, xp.asarray([0.0, 0.0]))
            with pytest.raises(ValueError, match=r"leading axes.*log_f has \(2,\)"):
                function(xp.asarray(np.zeros((4, 2)), "int64"), p, xp.asarray(np.zeros((2, 3, 2))))
            with pytest.raises(TypeError, match="k_positions"):
                function(p, xp.asarray([0.0, 1.0]), log_f)
            with pytest.raises(TypeError, match="one library"):
                function(p, p, other.asarray(np.zeros((3, 2))))


class TestForgettingByTotals:
    @given(places, places, st.integers(0, 99))
    def test_is_the_definition(self, queries, keys, seed):
        log_f = gates(np.random.default_rng(seed), 2, len(keys))
        ours = forgetting_by_totals(queries, keys, log_f)
        np.testing.assert_allclose(ours, forgetting(queries, keys, log_f), rtol=1e-9, atol=1e-12)

    def test_loses_digits_as_the_totals_grow(self):
        """After 3000 tokens that forget much, two that forget little: the total swallows them in single precision."""
        log_f = np.array([[-5.0] * 3000 + [-1e-4, -1e-4]], dtype=np.float32)
        keys, queries = np.arange(3002), np.array([3001])
        ours = forgetting_by_totals(queries, keys, log_f)[0, 0, 2999]
        # only the last keys matter to the definition, which is too slow for all of them
        exact = forgetting(queries, keys[-3:], log_f[:, -3:])[0, 0, 0]
        np.testing.assert_allclose(exact, -2e-4, rtol=1e-6)
        assert abs(ours - exact) > 1e-5
        assert abs(ours - exact) < 2 * np.spacing(np.float32(15000))

    def test_a_gate_of_zero_is_too_much_for_it(self, xp):
        p, log_f = xp.asarray(range(3), "int64"), xp.asarray([[-1.0, -INF, -4.0]])
        with np.errstate(invalid="ignore"):
            ours = xp.numpy(forgetting_by_totals(p, p, log_f))
        np.testing.assert_array_equal(ours, [[[0, 0, 0], [-INF, NAN, 0], [-INF, NAN, NAN]]])


@by_distance
class TestEveryDistance:
    def test_only_the_distance_counts(self, xp, function, count):
        rng = np.random.default_rng(8)
        heads = [xp.asarray(rng.uniform(0.1, 1, size=3)) for _ in range(count)]
        i, j = np.array([3, -4, 0]), np.array([2, 9, -4, 0])
        expected = xp.numpy(function(xp.asarray(i, "int64"), xp.asarray(j, "int64"), *heads))
        for step in (1, -7, 10**6, 2**30):
            moved = function(xp.asarray(i + step, "int64"), xp.asarray(j + step, "int64"), *heads)
            xp.check(moved, expected)
        xp.check(function(xp.asarray(-i, "int64"), xp.asarray(-j, "int64"), *heads), expected)
        assert (expected[:, [1, 2], [2, 3]] == 0).all()

    def test_samples_with_positions_of_their_own(self, xp, function, count):
        rng = np.random.default_rng(9)
        heads = [xp.asarray(rng.uniform(0.1, 1, size=2)) for _ in range(count)]
        i, j = rng.integers(-9, 9, size=(3, 2)), rng.integers(-9, 9, size=4)
        together = function(xp.asarray(i, "int64"), xp.asarray(j, "int64"), *heads)
        rows = [xp.numpy(function(xp.asarray(row, "int64"), xp.asarray(j, "int64"), *heads)) for row in i]
        xp.check(together, np.stack(rows))

    def test_gradients(self, autograd, function, count):
        rng = np.random.default_rng(10)
        i, j = np.array([4, -1]), np.array([0, 4, 9])
        heads = [rng.uniform(0.2, 1, size=2) for _ in range(count)]
        g = rng.normal(size=(2, 2, 3))
        expected = finite_differences(lambda *a: function(i, j, *a), g, *heads)
        queries, keys = (autograd.asarray(p, "int64") for p in (i, j))
        ours = autograd.vjp(lambda *a: function(queries, keys, *a), *map(autograd.asarray, (g, *heads)))
        for a, b in zip(ours, expected, strict=True):
            autograd.check(a, b, tolerance=1e-7)

    def test_bad_input(self, xp, other, function, count):
        p, good = xp.asarray([0, 1], "int64"), [xp.asarray(np.ones(3))] * count
        for bad in ([0, 1], xp.asarray([0.0, 1.0]), xp.asarray([True, False], "bool")):
            with pytest.raises(TypeError, match="q_positions"):
                function(bad, p, *good)
            with pytest.raises(TypeError, match="k_positions"):
                function(p, bad, *good)
        with pytest.raises(TypeError, match="one library"):
            function(p, p, *[other.asarray(np.ones(3))] * count)
        with pytest.raises(ValueError, match=r"shape \(\)"):
            function(p, p, *[xp.asarray(1.0)] * count)
        with pytest.raises(ValueError, match=r"q_positions has shape \(\)"):
            function(xp.asarray(1, "int64"), p, *good)
        with pytest.raises(ValueError, match="leading axes"):
            function(xp.asarray(np.zeros((4, 2)), "int64"), p, *[xp.asarray(np.ones((3, 2)))] * count)


@pytest.mark.parametrize("function", [kerple_log, kerple_power])
def test_kerple_log_and_power_need_one_pair_of_numbers_a_head(xp, function):
    p = xp.asarray([0, 1], "int64")
    with pytest.raises(ValueError, match=r"r1 has 3 heads, r2 has 1"):
        function(p, p, xp.asarray(np.ones(3)), xp.asarray(np.ones(1)))


@pytest.mark.parametrize("name", every_scheme(np.random.default_rng(0)))
class TestDecoding:
    def test_token_by_token_is_the_full_pass(self, name):
        rng = np.random.default_rng(11)
        bias = every_scheme(rng)[name]
        q, k, v = (rng.normal(size=(2, 8, width)) for width in (4, 4, 3))
        p = np.arange(8)
        whole = attention(q, k, v, mask=causal(p, p), bias=bias(p, p))
        for t in range(8):
            new, seen = q[:, t : t + 1], slice(0, t + 1)
            i, j = positions(new, k[:, seen])
            step = attention(new, k[:, seen], v[:, seen], bias=bias(i, j))
            np.testing.assert_allclose(step[:, 0], whole[:, t], rtol=1e-12)

    def test_appending_leaves_earlier_rows_alone(self, name):
        bias = every_scheme(np.random.default_rng(12))[name]
        short, long = (bias(np.arange(n), np.arange(n)) for n in (5, 8))
        np.testing.assert_allclose(long[:, :5, :5], short, rtol=1e-12)

    def test_thousands_of_keys(self, name):
        bias = every_scheme(np.random.default_rng(13), tokens=4096)[name]
        n = 64 if name == "forgetting" else 4096
        row = bias(np.array([n - 1]), np.arange(n))
        assert row.shape == (2, 1, n)
        assert np.isfinite(row).all()


@pytest.mark.parametrize(("name", "invariant"), held("positions/distance_bias"))
def test_shared_invariants(xp, name, invariant):
    invariant(SUBJECTS[name], xp)
