"""softlookup.positions.rotary: pairs of numbers turn with the position."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from invariants import held
from libraries import finite_differences
from oracles.freeze import frozen
from oracles.onnx_cases import node_cases
from subjects import SUBJECTS

from softlookup.lookup import attention, attention_scores, scaled_dot
from softlookup.masks import causal, document_positions
from softlookup.positions import (
    change_pairing,
    proportional_frequencies,
    rotary,
    rotary_frequencies,
    rotary_vjp,
    rotate_pairs,
    section_angles,
)
from softlookup.scores import rms_norm

NAN, INF = math.nan, math.inf
PAIRINGS = ("interleaved", "half")
claims = pytest.mark.claims


def loop(row, angles, pairing):
    """One row, turned with complex numbers: each pair times exp(i angle)."""
    out, r = list(row), len(angles)
    for m, angle in enumerate(angles):
        a, b = (2 * m, 2 * m + 1) if pairing == "interleaved" else (m, m + r)
        z = complex(row[a], row[b]) * complex(math.cos(angle), math.sin(angle))
        out[a], out[b] = z.real, z.imag
    return out


def loop_frequencies(width, base=10000.0):
    return [math.exp(-2 * m / width * math.log(base)) for m in range(width // 2)]


@st.composite
def turns(draw):
    width = draw(st.integers(0, 7))
    numbers = st.lists(st.floats(-9, 9), min_size=width, max_size=width)
    angles = st.lists(st.floats(-50, 50), min_size=0, max_size=width // 2)
    return draw(numbers), draw(angles), draw(st.sampled_from(PAIRINGS))


class TestRotatePairs:
    def test_by_hand(self, xp):
        x, quarter = xp.asarray([[1.0, 2.0, 3.0, 4.0]]), xp.asarray([[math.pi / 2, math.pi]])
        xp.check(rotate_pairs(x, quarter, pairing="interleaved"), [[-2.0, 1.0, -3.0, -4.0]])
        xp.check(rotate_pairs(x, quarter, pairing="half"), [[-3.0, -2.0, 1.0, -4.0]])

    @given(turns())
    def test_is_the_loop(self, turn):
        row, angles, pairing = turn
        ours = rotate_pairs(np.array([row]), np.array([angles]), pairing=pairing)
        np.testing.assert_allclose(ours, [loop(row, angles, pairing)], rtol=1e-13, atol=1e-13)

    @pytest.mark.parametrize("pairing", PAIRINGS)
    def test_lengths_stay_and_other_numbers_are_not_touched(self, xp, pairing):
        rng = np.random.default_rng(0)
        x = rng.normal(size=(2, 5, 7))
        x[..., 6] = [[NAN, INF, -INF, 1e300, 0.0]] * 2
        ours = xp.numpy(rotate_pairs(xp.asarray(x), xp.asarray(rng.normal(size=(5, 3))), pairing=pairing))
        np.testing.assert_array_equal(ours[..., 6], x[..., 6])
        lengths = [np.linalg.norm(a[..., :6], axis=-1) for a in (ours, x)]
        np.testing.assert_allclose(*lengths, rtol=xp.tolerance)

    def test_a_nan_stays_in_its_pair(self, xp):
        x = xp.asarray([[NAN, 1.0, 1.0, 1.0], [1.0, 1.0, 1.0, INF]])
        ours = xp.numpy(rotate_pairs(x, xp.asarray([[0.1, 0.2]]), pairing="half"))
        np.testing.assert_array_equal(np.isfinite(ours), [[False, True, False, True], [True, False, True, False]])

    def test_wide_angles_keep_their_digits(self, xp):
        if xp.name == "jax-32bit":
            pytest.skip("no float64")
        x, angles = np.array([[1.0, 0.0]]), np.array([[750000.25]])
        ours = rotate_pairs(xp.asarray(x, "float32"), xp.asarray(angles), pairing="half")
        xp.check(ours, [[math.cos(750000.25), math.sin(750000.25)]], dtype="float32", tolerance=1e-7)

    def test_the_turn_itself_is_computed_in_the_dtype_of_the_items(self):
        x = np.random.default_rng(22).normal(size=(9, 2)).astype(np.float32)
        angles = np.linspace(0, 3, 9)[:, None]
        cos, sin = np.cos(angles[:, 0]).astype(np.float32), np.sin(angles[:, 0]).astype(np.float32)
        a, b = x.T
        ours = rotate_pairs(x, angles, pairing="half")
        np.testing.assert_array_equal(ours, np.stack([a * cos - b * sin, a * sin + b * cos], axis=-1))

    def test_bad_input(self, xp, other):
        x, angles = xp.asarray(np.ones((3, 4))), xp.asarray(np.ones((3, 2)))
        with pytest.raises(ValueError, match=r"x has 4 columns; 3 angles need at least 6"):
            rotate_pairs(x, xp.asarray(np.ones((3, 3))), pairing="half")
        with pytest.raises(ValueError, match=r"angles.*\(2, 2\).*\(3, 2\)"):
            rotate_pairs(x, xp.asarray(np.ones((2, 2))), pairing="half")
        with pytest.raises(ValueError, match=r"angles.*\(2, 3, 2\)"):
            rotate_pairs(x, xp.asarray(np.ones((2, 3, 2))), pairing="half")
        for bad in ("halves", None, True):
            with pytest.raises(ValueError, match=r'pairing is .*"interleaved" or "half"'):
                rotate_pairs(x, angles, pairing=bad)
        for one, two in ((x[0, :], angles), (x, angles[0, 0])):
            with pytest.raises(ValueError, match="axes"):
                rotate_pairs(one, two, pairing="half")
        with pytest.raises(TypeError, match="one library"):
            rotate_pairs(x, other.asarray(np.ones((3, 2))), pairing="half")
        with pytest.raises(TypeError, match="pairing"):
            rotate_pairs(x, angles)


class TestRotary:
    @claims("R01")
    def test_case_r01(self, xp, case):
        c = case("R01")
        x, p = xp.asarray(c["inputs"]["x"]), xp.asarray(c["inputs"]["positions"], "int64")
        f = xp.asarray(rotary_frequencies(4, base=c["inputs"]["params"]["base"]))
        xp.check(f, c["expected"]["freqs"])
        xp.check(rotary(x, p, f, pairing="interleaved"), c["expected"]["out_interleaved"])
        xp.check(rotary(x, p, f, pairing="half"), c["expected"]["out_half_split"])
        order = change_pairing(np.arange(4.0), to="half")
        np.testing.assert_array_equal(order, c["expected"]["half_to_interleaved_channel_order"])

    @claims("R01")
    @pytest.mark.parametrize("width", [2, 6, 8, 10])
    def test_the_pairings_are_one_up_to_the_order_of_numbers(self, xp, width):
        rng = np.random.default_rng(width)
        q, k = (xp.asarray(rng.normal(size=(2, 5, width))) for _ in range(2))
        p, f = xp.asarray(rng.integers(-20, 20, size=5), "int64"), xp.asarray(rotary_frequencies(width))
        turned = [rotary(a, p, f, pairing="interleaved") for a in (q, k)]
        other = [rotary(change_pairing(a, to="half"), p, f, pairing="half") for a in (q, k)]
        for a, b in zip(turned, other, strict=True):
            xp.check(b, xp.numpy(change_pairing(a, to="half")))
        xp.check(attention_scores(*turned), xp.numpy(attention_scores(*other)))
        if width > 2:
            wrong = attention_scores(turned[0], rotary(k, p, f, pairing="half"))
            assert not np.allclose(xp.numpy(wrong), xp.numpy(attention_scores(*turned)))

    @claims("R02")
    def test_case_r02(self, xp, case):
        c = case("R02")
        q, k, v = (xp.asarray(c["inputs"][name]) for name in "qkv")
        f = xp.asarray(rotary_frequencies(4, base=c["inputs"]["params"]["base"]))
        keys = rotary(k, xp.asarray(c["inputs"]["k_positions"], "int64"), f, pairing="half")
        for place, expected in (
            (c["inputs"]["q_positions"], c["expected"]),
            ([0], c["wrong"]["position_0"]),
            ([3], c["wrong"]["position_3"]),
        ):
            query = rotary(q, xp.asarray(place, "int64"), f, pairing="half")
            xp.check(attention(query, keys, v), expected["out"])

    @claims("R02")
    @pytest.mark.parametrize("pairing", PAIRINGS)
    @pytest.mark.parametrize("start", [0, 1000])
    def test_token_by_token_with_a_cache_is_the_full_pass(self, pairing, start):
        rng = np.random.default_rng(3)
        q, k, v = (rng.normal(size=(heads, 6, 4)) for heads in (4, 2, 2))
        p, f = start + np.arange(6), rotary_frequencies(4)
        keys = rotary(k, p, f, pairing=pairing)
        whole = attention(rotary(q, p, f, pairing=pairing), keys, v, mask=causal(p, p))
        cache = []
        for t in range(6):
            now = slice(t, t + 1)
            cache.append(rotary(k[:, now, :], p[now], f, pairing=pairing))
            past = np.concatenate(cache, axis=1)
            np.testing.assert_array_equal(past, keys[:, : t + 1])
            step = attention(rotary(q[:, now, :], p[now], f, pairing=pairing), past, v[:, : t + 1, :])
            np.testing.assert_allclose(step, whole[:, now], rtol=1e-12, atol=1e-14)

    @claims("R08")
    def test_case_r08(self, xp, case):
        c = case("R08")
        x, p = xp.asarray(c["inputs"]["x"]), xp.asarray(c["inputs"]["positions"], "int64")
        params = c["inputs"]["params"]
        f = xp.asarray(rotary_frequencies(params["rotary_dim"], base=params["base"]))
        xp.check(f, c["expected"]["freqs_leading_block"])
        xp.check(rotary(x, p, f, pairing="half"), c["expected"]["out_leading_block"])
        wide = xp.asarray(rotary_frequencies(8, base=params["base"]))
        f = proportional_frequencies(wide, keep=2)
        xp.check(f, c["expected"]["freqs_proportional"])
        xp.check(rotary(x, p, f, pairing="half"), c["expected"]["out_proportional"])
        xp.check(rotary(x, p, wide[:2], pairing="half"), c["wrong"]["head_width_freqs"]["out_leading_block"])

    @claims("R08")
    @pytest.mark.parametrize("pairing", PAIRINGS)
    @pytest.mark.parametrize("width", [0, 2, 4, 6, 8])
    def test_partial_is_the_leading_block_and_trailing_is_a_slice(self, pairing, width):
        rng = np.random.default_rng(width)
        x, p = rng.normal(size=(3, 5, 8)), rng.integers(0, 99, size=5)
        f = rotary_frequencies(width) if width else np.zeros(0)
        ours = rotary(x, p, f, pairing=pairing)
        np.testing.assert_array_equal(ours[..., width:], x[..., width:])
        np.testing.assert_array_equal(ours[..., :width], rotary(x[..., :width], p, f, pairing=pairing))
        last = np.concatenate([x[..., : 8 - width], rotary(x[..., 8 - width :], p, f, pairing=pairing)], axis=-1)
        scores = [scaled_dot()(a, a) for a in (last, rotary(last, p, f * 0, pairing=pairing))]
        np.testing.assert_array_equal(*scores)

    @claims("R09")
    def test_case_r09(self, xp, case):
        c = case("R09")
        x, gain = xp.asarray(c["inputs"]["x"]), xp.asarray(c["inputs"]["gain"])
        p, f = xp.asarray(c["inputs"]["positions"], "int64"), xp.asarray(rotary_frequencies(4))

        def turn(a):
            return rotary(a, p, f, pairing="half")

        xp.check(turn(rms_norm(x)), c["expected"]["no_gain_norm_then_rope"])
        xp.check(rms_norm(turn(x)), c["expected"]["no_gain_rope_then_norm"])
        xp.check(turn(rms_norm(x, weight=gain)), c["expected"]["gain_norm_then_rope"])
        xp.check(rms_norm(turn(x), weight=gain), c["expected"]["gain_rope_then_norm"])

    @claims("R09")
    @pytest.mark.parametrize("pairing", PAIRINGS)
    def test_a_gain_commutes_only_if_it_is_the_same_for_both_numbers_of_a_pair(self, pairing):
        rng = np.random.default_rng(9)
        x, p, f = rng.normal(size=(2, 5, 6)), np.arange(5) + 1, rotary_frequencies(6)
        pairs = rng.uniform(0.5, 2, size=3)
        equal = np.repeat(pairs, 2) if pairing == "interleaved" else np.tile(pairs, 2)
        for gain, commutes in ((equal, True), (rng.uniform(0.5, 2, size=6), False)):
            first = rotary(rms_norm(x, weight=gain), p, f, pairing=pairing)
            last = rms_norm(rotary(x, p, f, pairing=pairing), weight=gain)
            assert np.allclose(first, last, rtol=1e-12, atol=1e-12) == commutes

    @claims("R10")
    def test_case_r10(self, xp, case):
        c = case("R10")
        ids = xp.asarray(np.array(c["inputs"]["attention_mask"]) - 1, "int64")
        places = document_positions(ids)
        xp.check(places, c["expected"]["positions"], dtype="int64")
        wrong = c["wrong"]["shared_arange"]["positions"]
        np.testing.assert_array_equal((xp.numpy(places) == wrong).all(axis=-1), [False, True])
        np.testing.assert_array_equal(np.array(c["inputs"]["table"])[xp.numpy(places)], c["expected"]["table_rows"])
        q, k = (xp.asarray(c["inputs"][name]) for name in "qk")
        f = xp.asarray(rotary_frequencies(4))
        for i, j, expected in ((1, 0, "rope_score_pos_1_0"), (3, 2, "rope_score_pos_3_2")):
            a, b = (rotary(x, xp.asarray([p], "int64"), f, pairing="half") for x, p in ((q, i), (k, j)))
            xp.check(attention_scores(a, b, score=scaled_dot(scale=1.0)), [[c["expected"][expected]]])

    @claims("R10")
    @pytest.mark.parametrize("pads", [(0, 0), (2, 0), (1, 4), (5, 3)])
    def test_a_padded_sample_is_the_sample_alone(self, pads):
        rng = np.random.default_rng(sum(pads))
        q, k, v = (rng.normal(size=(2, 2, 6, 4)) for _ in range(3))
        valid = np.arange(6) >= np.array(pads)[:, None]
        p, f = document_positions(np.where(valid, 0, -1))[:, None, :], rotary_frequencies(4)
        turned = [rotary(a, p, f, pairing="half") for a in (q, k)]
        ours = attention(*turned, v, mask=np.tri(6, dtype=bool) & valid[:, None, None, :])
        for b, pad in enumerate(pads):
            places = np.arange(6 - pad)
            alone = [rotary(a[b, :, pad:], places, f, pairing="half") for a in (q, k)]
            alone = attention(*alone, v[b, :, pad:], mask=causal(places, places))
            np.testing.assert_allclose(ours[b, :, pad:], alone, rtol=1e-12, atol=1e-14)

    @given(st.integers(-(10**6), 10**6), st.integers(0, 2**32 - 1))
    def test_scores_depend_on_distances_alone(self, step, seed):
        rng = np.random.default_rng(seed)
        q, k, f = rng.normal(size=(3, 8)), rng.normal(size=(4, 8)), rotary_frequencies(8)
        at, of = rng.integers(-50, 50, size=3), rng.integers(-50, 50, size=4)
        for pairing in PAIRINGS:
            scores = [
                rotary(q, at + s, f, pairing=pairing) @ rotary(k, of + s, f, pairing=pairing).T for s in (0, step)
            ]
            np.testing.assert_allclose(*scores, rtol=0, atol=1e-8)

    def test_two_turns_are_one(self, xp):
        rng = np.random.default_rng(12)
        x, f = xp.asarray(rng.normal(size=(2, 3, 6))), xp.asarray(rotary_frequencies(6))
        p, step = xp.asarray([0.0, 0.5, -3.0]), xp.asarray([7.0, 1.25, 2.0])
        twice = rotary(rotary(x, p, f, pairing="half"), step, f, pairing="half")
        xp.check(twice, xp.numpy(rotary(x, p + step, f, pairing="half")))
        xp.check(rotary_vjp(rotary(x, p, f, pairing="half"), p, f, pairing="half"), xp.numpy(x))
        xp.check(rotary(x, -p, f, pairing="half"), xp.numpy(rotary_vjp(x, p, f, pairing="half")))
        xp.check(rotary(x, p, -f, pairing="half"), xp.numpy(rotary_vjp(x, p, f, pairing="half")))

    def test_position_zero_and_frequency_zero_change_nothing(self, xp):
        x = np.random.default_rng(13).normal(size=(3, 4))
        for p, f in (([0.0, 0.0, 0.0], [1.0, 0.1]), ([1.0, 5.0, 9.0], [0.0, 0.0])):
            ours = rotary(*map(xp.asarray, (x, p, f)), pairing="interleaved")
            xp.check(ours, x, tolerance=0)

    def test_positions_of_samples_and_frequencies_of_heads(self, xp):
        rng = np.random.default_rng(14)
        x, p = rng.normal(size=(2, 3, 5, 6)), rng.integers(0, 30, size=(2, 5))
        f = rotary_frequencies(4, base=np.array([10.0, 100.0, 1000.0]))
        ours = xp.numpy(rotary(xp.asarray(x), xp.asarray(p[:, None], "int64"), xp.asarray(f), pairing="half"))
        for b, h in np.ndindex(2, 3):
            alone = rotary(x[b, h], p[b], f[h], pairing="half")
            np.testing.assert_allclose(ours[b, h], alone, rtol=xp.tolerance, atol=xp.tolerance)

    @pytest.mark.parametrize("onnx_case", node_cases("RotaryEmbedding"), ids=lambda c: c.name)
    def test_agrees_with_the_cases_of_onnx(self, onnx_case, agree):
        """Their cosines are random numbers, so a pair is turned by an angle and then stretched."""
        given, options = onnx_case.inputs, onnx_case.attributes
        x, cos, sin = (given[name].astype(np.float64) for name in ("X", "cos_cache", "sin_cache"))
        flat = x.ndim == 3
        if flat:
            x = x.reshape(*x.shape[:2], options["num_heads"], -1).swapaxes(1, 2)
        if "position_ids" in given:
            cos, sin = cos[given["position_ids"]], sin[given["position_ids"]]
        pairing = "interleaved" if options.get("interleaved") else "half"
        turned = rotate_pairs(x, np.arctan2(sin, cos)[:, None], pairing=pairing)
        r = cos.shape[-1]
        stretch = np.hypot(cos, sin)[:, None]
        stretch = np.repeat(stretch, 2, -1) if pairing == "interleaved" else np.concatenate([stretch] * 2, -1)
        ours = np.concatenate([turned[..., : 2 * r] * stretch, turned[..., 2 * r :]], -1)
        theirs = onnx_case.outputs["Y"]
        agree(
            ours.swapaxes(1, 2).reshape(theirs.shape) if flat else ours,
            theirs,
            function="positions.rotate_pairs",
            stranger="onnx RotaryEmbedding, node cases",
            version=f"onnx {__import__('onnx').__version__}",
            dtype="float32",
        )

    @pytest.mark.parametrize(
        ("name", "width", "pairing", "stranger"),
        [
            ("llama", 8, "half", "transformers, rotary of Llama"),
            ("neox", 4, "half", "transformers, partial rotary of GPT-NeoX"),
            ("gptj", 4, "interleaved", "transformers, partial rotary of GPT-J"),
            ("deepseek", 8, "interleaved", "transformers, interleaved helper of DeepSeek-V3"),
        ],
    )
    def test_agrees_with_transformers(self, name, width, pairing, stranger, agree):
        fixture = frozen("transformers_rotary")
        ours = rotary(fixture["x"], fixture["positions"][:, None], rotary_frequencies(width), pairing=pairing)
        clash = None
        if name == "deepseek":
            ours, clash = change_pairing(ours, to="half"), "it returns evens, then odds"
        agree(
            ours,
            fixture[name],
            function="positions.rotary",
            stranger=stranger,
            version=fixture.version,
            dtype="float64",
            clash=clash,
        )

    @pytest.mark.parametrize("pairing", PAIRINGS)
    def test_agrees_with_complex_numbers_of_numpy(self, pairing, agree):
        rng = np.random.default_rng(15)
        x, p, f = rng.normal(size=(3, 5, 8)), rng.integers(-99, 99, size=5), np.array(loop_frequencies(8))
        a, b = (x[..., 0::2], x[..., 1::2]) if pairing == "interleaved" else (x[..., :4], x[..., 4:])
        z = (a + 1j * b) * np.exp(1j * p[:, None] * f)
        join = np.stack if pairing == "interleaved" else np.concatenate
        agree(
            rotary(x, p, f, pairing=pairing),
            join([z.real, z.imag], axis=-1).reshape(x.shape),
            function="positions.rotary",
            stranger="numpy, multiplication of complex numbers",
            version=f"numpy {np.__version__}",
            dtype="float64",
        )

    def test_any_positions(self, xp):
        p = [-7.0, 10.0**6, 3.5, 0.0]
        x, f = np.random.default_rng(16).normal(size=(4, 6)), loop_frequencies(6)
        expected = [loop(row, [place * t for t in f], "half") for row, place in zip(x, p, strict=True)]
        ours = rotary(*map(xp.asarray, (x, p, f)), pairing="half")
        xp.check(ours, expected, tolerance=1e-9)

    def test_far_positions_need_wide_angles(self, xp):
        """At a million, float32 angles are wrong in the second digit; float64 frequencies mend it."""
        x, p = np.array([[1.0, 0.0]]), np.array([10**6])
        exact = 10**6 * 0.31622776
        single = xp.asarray([[1.0, 0.0]], "float32")
        place = xp.asarray(p, "int64")
        wide = rotary(single, place, xp.asarray([0.31622776]), pairing="half")
        xp.check(wide, [[math.cos(exact), math.sin(exact)]], dtype="float32", tolerance=1e-6)
        narrow = rotary(single, xp.asarray(p, "float32"), xp.asarray([0.31622776], "float32"), pairing="half")
        error = np.abs(xp.numpy(narrow) - [[math.cos(exact), math.sin(exact)]]).max()
        assert 1e-3 < error < 0.1
        rounded = float(np.float32(10**6) * np.float32(0.31622776))
        xp.check(narrow, rotary(x, np.array([1.0]), np.array([rounded]), pairing="half"), dtype="float32")

    def test_thousands_of_items_in_half_precision(self, xp):
        for dtype in ("float32", *xp.narrow_dtypes):
            x = xp.asarray(np.tile([[1.0, 0.0]], (4096, 1)), dtype)
            p, f = xp.asarray(np.arange(4096), "int64"), xp.asarray([math.pi / 2])
            quarter = np.array([[1, 0], [0, 1], [-1, 0], [0, -1]])[np.arange(4096) % 4]
            xp.check(rotary(x, p, f, pairing="half"), quarter, dtype=dtype, tolerance=1e-3)

    def test_gradients_of_items_positions_and_frequencies(self, autograd):
        rng = np.random.default_rng(17)
        for pairing in PAIRINGS:
            g, x, p, f = rng.normal(size=(2, 3, 5)), rng.normal(size=(2, 3, 5)), rng.normal(size=3), rng.random(2)
            expected = finite_differences(lambda *a: rotary(*a, pairing=pairing), g, x, p, f)  # noqa: B023
            arrays = [autograd.asarray(a) for a in (g, x, p, f)]
            ours = autograd.vjp(lambda *a: rotary(*a, pairing=pairing), *arrays)  # noqa: B023
            for one, two in zip(ours, expected, strict=True):
                autograd.check(one, two, tolerance=1e-8)
            autograd.check(rotary_vjp(*[arrays[i] for i in (0, 2, 3)], pairing=pairing), expected[0], tolerance=1e-8)

    def test_bad_input(self, xp, other):
        x, p, f = xp.asarray(np.ones((2, 3, 4))), xp.asarray([0, 1, 2], "int64"), xp.asarray([1.0, 0.1])
        for function in (rotary, rotary_vjp):
            with pytest.raises(ValueError, match=r"has 4 columns; 3 angles"):
                function(x, p, xp.asarray([1.0, 0.1, 0.01]), pairing="half")
            with pytest.raises(ValueError, match=r"positions.*\(4,\).*\(2, 3\)"):
                function(x, xp.asarray(range(4), "int64"), f, pairing="half")
            with pytest.raises(ValueError, match=r"positions.*\(2, 1, 3\)"):
                function(x, xp.asarray(np.ones((2, 1, 3)), "int64"), f, pairing="half")
            with pytest.raises(ValueError, match=r"frequencies.*\(3, 2\).*\(2, 2\)"):
                function(x, p, xp.asarray(np.ones((3, 2))), pairing="half")
            with pytest.raises(ValueError, match="pairing"):
                function(x, p, f, pairing="neox")
            for arguments in ((x[0, 0, :], p, f), (x, p[0], f), (x, p, f[0])):
                with pytest.raises(ValueError, match="axes"):
                    function(*arguments, pairing="half")
            with pytest.raises(TypeError, match="x, positions, frequencies must be arrays of one library"):
                function(x, p, other.asarray([1.0, 0.1]), pairing="half")
            with pytest.raises(TypeError, match="frequencies"):
                function(x, p, [1.0, 0.1], pairing="half")
            with pytest.raises(TypeError, match="positions"):
                function(x, xp.asarray([True, False, True], "bool"), f, pairing="half")


class TestRotaryVjp:
    def test_by_hand(self, xp):
        ours = rotary_vjp(xp.asarray([[0.0, 1.0]]), xp.asarray([3], "int64"), xp.asarray([math.pi / 6]), pairing="half")
        xp.check(ours, [[1.0, 0.0]])

    def test_unsigned_positions_are_positions(self):
        p = np.array([3], dtype=np.uint8)
        ours = rotary_vjp(np.array([[0.0, 1.0]]), p, np.array([np.pi / 6]), pairing="half")
        np.testing.assert_allclose(ours, [[1.0, 0.0]], atol=1e-15)


class TestRotaryFrequencies:
    @pytest.mark.parametrize("width", [2, 4, 64])
    @pytest.mark.parametrize("base", [2, 10000.0, 500000.0])
    def test_is_the_loop(self, width, base):
        np.testing.assert_allclose(rotary_frequencies(width, base=base), loop_frequencies(width, base), rtol=1e-13)

    def test_a_base_of_any_library_gives_frequencies_of_it(self, xp):
        ours = rotary_frequencies(6, base=xp.asarray([8.0, 27.0]))
        xp.check(ours, [[1.0, 1 / 2, 1 / 4], [1.0, 1 / 3, 1 / 9]])
        assert rotary_frequencies(6).dtype == np.float64

    def test_gradient_of_the_base(self, autograd):
        (expected,) = finite_differences(lambda b: rotary_frequencies(6, base=b), np.ones(3), np.array(50.0))
        ours = autograd.vjp(
            lambda b: rotary_frequencies(6, base=b), autograd.asarray(np.ones(3)), autograd.asarray(50.0)
        )
        autograd.check(ours[0], expected, tolerance=1e-8)

    def test_bad_input(self, xp):
        with pytest.raises(ValueError, match=r"width is 7; it must be even, because two numbers make a pair"):
            rotary_frequencies(7)
        for width in (0, -2):
            with pytest.raises(ValueError, match="width"):
                rotary_frequencies(width)
        with pytest.raises(TypeError, match="width"):
            rotary_frequencies(4.0)
        for base in (0, -1.0, INF, NAN):
            with pytest.raises(ValueError, match="base"):
                rotary_frequencies(4, base=base)
        for base in ("big", xp.asarray(True, "bool")):
            with pytest.raises(TypeError, match="base"):
                rotary_frequencies(4, base=base)


class TestProportionalFrequencies:
    def test_by_hand(self, xp):
        f = xp.asarray([1.0, 0.1, 0.01])
        for keep in range(4):
            xp.check(proportional_frequencies(f, keep=keep), [1.0, 0.1, 0.01][:keep] + [0.0] * (3 - keep))

    def test_agrees_with_transformers(self, agree):
        fixture = frozen("transformers_rope_types")
        agree(
            proportional_frequencies(rotary_frequencies(16), keep=int(0.4 * 16 // 2)),
            fixture["proportional"],
            function="positions.proportional_frequencies",
            stranger="transformers, rope_type proportional",
            version=fixture.version,
            dtype="float64",
        )

    def test_pairs_without_frequency_see_no_distance(self):
        rng = np.random.default_rng(18)
        q, k, f = (
            rng.normal(size=(1, 8)),
            rng.normal(size=(50, 8)),
            proportional_frequencies(rotary_frequencies(8), keep=2),
        )
        q[:, [0, 1, 4, 5]] = 0
        keys = rotary(k, np.arange(50), f, pairing="half")
        np.testing.assert_allclose(rotary(q, np.array([49]), f, pairing="half") @ keys.T, q @ k.T, rtol=1e-13)

    def test_bad_input(self, xp):
        f = xp.asarray([1.0, 0.1])
        for keep in (-1, 3):
            with pytest.raises(ValueError, match=f"keep is {keep}"):
                proportional_frequencies(f, keep=keep)
        with pytest.raises(TypeError, match="keep"):
            proportional_frequencies(f, keep=0.5)
        with pytest.raises(ValueError, match="axes"):
            proportional_frequencies(f[0], keep=1)


def loop_sections(coordinates, frequencies, sections, alternating):
    """Angles of one item, by handing out the frequencies one after the other."""
    left, owners, turn = list(sections), [], 0
    for _ in frequencies:
        if alternating:
            owner = turn % len(sections)
            owner, turn = (owner if left[owner] else 0), turn + 1
        else:
            owner = next(c for c, size in enumerate(left) if size)
        left[owner] -= 1
        owners.append(owner)
    return [coordinates[c] * t for c, t in zip(owners, frequencies, strict=True)]


class TestSectionAngles:
    @pytest.mark.parametrize("alternating", [False, True])
    @pytest.mark.parametrize("sections", [(2, 2, 2), (3, 2, 2), (5, 1, 3), (4,), (6, 0), (2, 2)])
    def test_is_the_loop(self, xp, sections, alternating):
        rng = np.random.default_rng(sum(sections))
        c, f = rng.integers(-9, 30, size=(5, len(sections))), rng.random(sum(sections))
        expected = [loop_sections(row, f, sections, alternating) for row in c]
        ours = section_angles(xp.asarray(c, "int64"), xp.asarray(f), sections=sections, alternating=alternating)
        xp.check(ours, expected)

    @pytest.mark.parametrize(
        ("name", "stranger"),
        [
            ("pixtral", "transformers, rotary of Pixtral, rows and columns"),
            ("dinov3", "transformers, rotary of DINOv3, centers of patches"),
            ("qwen2", "transformers, multimodal rotary of Qwen2-VL"),
            ("qwen3", "transformers, multimodal rotary of Qwen3-VL"),
        ],
    )
    def test_agrees_with_transformers(self, name, stranger, agree):
        fixture, f = frozen("transformers_rotary_sections"), rotary_frequencies(16)
        slow = 2 * np.pi * rotary_frequencies(8, base=100.0)
        centers = 2 * (fixture["grid"] + 0.5) / np.array([2, 3]) - 1
        angles = {
            "pixtral": lambda: section_angles(fixture["grid"], np.concatenate([f[::2], f[1::2]]), sections=(4, 4)),
            "dinov3": lambda: section_angles(centers, np.concatenate([slow, slow]), sections=(4, 4)),
            "qwen2": lambda: section_angles(fixture["places"], f, sections=(2, 3, 3)),
            "qwen3": lambda: section_angles(fixture["places"], f, sections=(4, 2, 2), alternating=True),
        }[name]()
        agree(
            rotate_pairs(fixture["x"], angles, pairing="half"),
            fixture[name],
            function="positions.section_angles",
            stranger=stranger,
            version=fixture.version,
            dtype="float64",
        )

    def test_equal_coordinates_are_one_position(self, xp):
        x, f = xp.asarray(np.random.default_rng(19).normal(size=(4, 6))), xp.asarray(rotary_frequencies(6))
        p = np.array([0, 3, 7, 100])
        angles = section_angles(xp.asarray(np.stack([p] * 3, -1), "int64"), f, sections=(1, 1, 1))
        ours = rotate_pairs(x, angles, pairing="interleaved")
        xp.check(ours, xp.numpy(rotary(x, xp.asarray(p, "int64"), f, pairing="interleaved")))

    def test_scores_depend_on_the_distance_along_each_axis(self):
        rng = np.random.default_rng(20)
        q, k, c = rng.normal(size=(3, 8)), rng.normal(size=(3, 8)), rng.integers(0, 9, size=(2, 3, 2))
        f, scores = np.tile(rotary_frequencies(4), 2), []
        for step in ([0, 0], [5, -11]):
            turned = [
                rotate_pairs(a, section_angles(b + np.array(step), f, sections=(2, 2)), pairing="half")
                for a, b in zip((q, k), c, strict=True)
            ]
            scores.append(turned[0] @ turned[1].T)
        np.testing.assert_allclose(*scores, atol=1e-13)

    def test_bad_input(self, xp, other):
        c, f = xp.asarray(np.ones((4, 2)), "int64"), xp.asarray([1.0, 0.1, 0.01])
        for sections in ((2, 2), (3,), (1, 1, 1)):
            with pytest.raises(ValueError, match=r"sections is .*2 numbers.*the sum 3"):
                section_angles(c, f, sections=sections)
        with pytest.raises(ValueError, match=r"sections is \(1, 2\); no section but the first"):
            section_angles(c, f, sections=(1, 2), alternating=True)
        with pytest.raises(ValueError, match="sections is -1"):
            section_angles(c, f, sections=(4, -1))
        with pytest.raises(TypeError, match="sections"):
            section_angles(c, f, sections=(1.5, 1.5))
        with pytest.raises(ValueError, match="axes"):
            section_angles(c[0, :], f, sections=(2, 1))
        with pytest.raises(ValueError, match="axes"):
            section_angles(c, f[0], sections=(2, 1))
        with pytest.raises(ValueError, match=r"frequencies.*\(2, 3\)"):
            section_angles(c, xp.asarray(np.ones((2, 3))), sections=(2, 1))
        with pytest.raises(TypeError, match="one library"):
            section_angles(c, other.asarray([1.0, 0.1, 0.01]), sections=(2, 1))


class TestChangePairing:
    def test_by_hand(self, xp):
        x = xp.asarray([[0.0, 1.0, 2.0, 3.0, 4.0, 5.0]])
        xp.check(change_pairing(x, to="half"), [[0.0, 2.0, 4.0, 1.0, 3.0, 5.0]])
        xp.check(change_pairing(x, to="interleaved"), [[0.0, 3.0, 1.0, 4.0, 2.0, 5.0]])

    @pytest.mark.parametrize("width", [0, 2, 4, 6, 12])
    def test_one_undoes_the_other(self, width):
        x = np.random.default_rng(width).normal(size=(3, width))
        np.testing.assert_array_equal(change_pairing(change_pairing(x, to="half"), to="interleaved"), x)

    def test_weights_are_converted_by_their_columns(self, xp):
        rng = np.random.default_rng(21)
        x, w = xp.asarray(rng.normal(size=(5, 3))), xp.asarray(rng.normal(size=(3, 6)))
        p, f = xp.asarray(range(5), "int64"), xp.asarray(rotary_frequencies(6))
        ours = rotary(x @ change_pairing(w, to="half"), p, f, pairing="half")
        xp.check(change_pairing(ours, to="interleaved"), xp.numpy(rotary(x @ w, p, f, pairing="interleaved")))

    def test_bad_input(self, xp):
        with pytest.raises(ValueError, match="x has 5 columns; they must be even"):
            change_pairing(xp.asarray(np.ones((2, 5))), to="half")
        with pytest.raises(ValueError, match='to is "?.*halves'):
            change_pairing(xp.asarray(np.ones((2, 4))), to="halves")
        with pytest.raises(ValueError, match="axes"):
            change_pairing(xp.asarray(1.0), to="half")


@pytest.mark.parametrize(("name", "invariant"), held("positions/rotary"))
def test_shared_invariants(xp, name, invariant):
    invariant(SUBJECTS[name], xp)
