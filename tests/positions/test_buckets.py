"""softlookup.positions.buckets: T5's buckets, the table of a window, and the network of SwinV2."""

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

from softlookup.lookup import attention, scaled_dot, softmax
from softlookup.masks import causal, positions
from softlookup.positions import alibi, bucket_bias, log_cpb, log_cpb_coordinates, swin_index, t5_bucket

BIG = 2**40
claims = pytest.mark.claims
places = hnp.arrays(np.int64, st.integers(0, 5), elements=st.integers(-300, 300) | st.sampled_from([-BIG, BIG]))


def bucket_of(offset, buckets, max_distance, bidirectional):
    """One bucket, by comparing whole powers: key minus query is `offset`."""
    side = buckets // 2 if bidirectional else buckets
    exact, distance = side // 2, abs(offset) if bidirectional else max(-offset, 0)
    steps = side - exact
    if distance < exact:
        number = distance
    else:
        reached = [t for t in range(steps) if distance**steps >= exact ** (steps - t) * max_distance**t]
        number = exact + max(reached)
    return number + (side if bidirectional and offset > 0 else 0)


def grid(height, width):
    """The places of a window, row by row."""
    return np.argwhere(np.ones((height, width), dtype=bool))


def weights(rng, units=5, heads=2):
    return rng.normal(size=(2, units)), rng.normal(size=units), rng.normal(size=(units, heads))


class TestT5Bucket:
    @given(places, places, st.sampled_from([(32, 128), (8, 5), (6, 4), (12, 100), (4, 3)]), st.booleans())
    def test_is_the_loop(self, queries, keys, setting, both):
        ours = t5_bucket(queries, keys, buckets=setting[0], max_distance=setting[1], bidirectional=both)
        expected = [[bucket_of(int(j) - int(i), *setting, both) for j in keys] for i in queries]
        np.testing.assert_array_equal(ours, np.array(expected, dtype=int).reshape(ours.shape))

    @claims("P04")
    def test_case_p04(self, xp, case):
        c = case("P04")
        keys = xp.asarray(c["inputs"]["rel_key_minus_query"], "int64")
        for kind, both in (("bidirectional", True), ("causal", False)):
            for start in (0, -7, 1000):
                ours = t5_bucket(xp.asarray([start], "int64"), keys + start, bidirectional=both)
                xp.check(ours, [c["expected"][kind]], dtype="int64")

    @claims("P04")
    @pytest.mark.parametrize("buckets", [4, 6, 8, 18, 32, 38, 64, 166])
    @pytest.mark.parametrize("max_distance", [100, 128, 200, 1000])
    def test_every_boundary_of_every_kind(self, buckets, max_distance):
        """Buckets never fall with the distance, the two sides mirror, and each begins where the powers say."""
        r = np.arange(1200)
        given_numbers = {"buckets": buckets, "max_distance": max_distance}
        past = t5_bucket(np.array([0]), -r, bidirectional=False, **given_numbers)[0]
        left = t5_bucket(np.array([0]), -r, **given_numbers)[0]
        right = t5_bucket(np.array([0]), r, **given_numbers)[0]
        for row, both in ((past, False), (left, True)):
            np.testing.assert_array_equal(row, [bucket_of(-x, buckets, max_distance, both) for x in r.tolist()])
            assert (np.diff(row) >= 0).all()
        np.testing.assert_array_equal(right[1:], left[1:] + buckets // 2)
        assert right[0] == left[0] == 0
        assert left[-1] == buckets // 2 - 1
        assert past[max_distance:].min() == past.max() == buckets - 1

    def test_agrees_with_transformers(self, agree):
        fixture = frozen("transformers_t5_buckets")
        offsets = fixture["offset"].astype(int)
        for name in fixture:
            kind, *setting = name.split("_")
            if kind in ("both", "past") and setting != ["166", "1000"]:
                buckets, max_distance = map(int, setting)
                agree(
                    t5_bucket(
                        np.array([5]),
                        offsets + 5,
                        buckets=buckets,
                        max_distance=max_distance,
                        bidirectional=kind == "both",
                    )[0],
                    fixture[name],
                    function="positions.t5_bucket",
                    stranger="transformers, T5Attention._relative_position_bucket",
                    version=fixture.version,
                    dtype="float32",
                    exact=True,
                    clash="takes a logarithm in float32, which is wrong at 796 for 166 buckets and 1000",
                )

    def test_a_logarithm_puts_some_distances_on_the_wrong_side(self):
        """In single precision 796 of 166 buckets up to 1000; in double precision 8, 16 and 64 of 18 up to 128."""
        fixture = frozen("transformers_t5_buckets")
        offsets = fixture["offset"].astype(int)
        ours = t5_bucket(np.array([0]), offsets, buckets=166, max_distance=1000)[0]
        np.testing.assert_array_equal(offsets[ours != fixture["both_166_1000"]], [-796, 796])
        assert 41**4 * 1000**38 <= 796**42 < 41**3 * 1000**39  # so 796 is not yet in group 39
        r = np.arange(4, 129)
        by_log = np.minimum(4 + (np.log(r / 4) / math.log(128 / 4) * 5).astype(int), 8)
        exact = t5_bucket(np.array([0]), -r, buckets=18, max_distance=128)[0]
        np.testing.assert_array_equal(r[by_log != exact], [8, 16, 64])
        assert 8**5 == 4**4 * 128  # so the second group begins at 8

    def test_bad_input(self, xp, other):
        p = xp.asarray([0, 1], "int64")
        for given_numbers, message in (
            ({"buckets": 0}, "buckets is 0"),
            ({"buckets": 33}, "buckets is 33; it must be even"),
            ({"buckets": 2}, "buckets is 2; each side"),
            ({"buckets": 1, "bidirectional": False}, "buckets is 1; each side"),
            ({"max_distance": 8}, "max_distance is 8; it must be more than 8"),
            ({"max_distance": 0}, "max_distance is 0"),
        ):
            with pytest.raises(ValueError, match=message):
                t5_bucket(p, p, **given_numbers)
        for name in ("buckets", "max_distance"):
            with pytest.raises(TypeError, match=name):
                t5_bucket(p, p, **{name: 32.0})
        for bad in ([0, 1], xp.asarray([0.0, 1.0]), other.asarray([0, 1], "int64")):
            with pytest.raises(TypeError, match="k_positions"):
                t5_bucket(p, bad)
        with pytest.raises(ValueError, match="q_positions"):
            t5_bucket(xp.asarray(0, "int64"), p)

    def test_samples_and_small_settings(self, xp):
        i = xp.asarray([[0, 3], [10, 20]], "int64")
        ours = t5_bucket(i, xp.asarray([0, 5], "int64"), buckets=4, max_distance=2)
        xp.check(ours, [[[0, 3], [1, 3]], [[1, 1], [1, 1]]], dtype="int64")
        assert t5_bucket(i, i, buckets=33, bidirectional=False).shape == (2, 2, 2)


class TestBucketBias:
    @given(st.integers(0, 4), st.integers(0, 4), st.integers(0, 99))
    def test_is_the_loop(self, n, m, seed):
        rng = np.random.default_rng(seed)
        table, buckets = rng.normal(size=(6, 3)), rng.integers(6, size=(n, m))
        expected = [[[table[b, h] for b in row] for row in buckets] for h in range(3)]
        np.testing.assert_array_equal(bucket_bias(table, buckets), np.reshape(expected, (3, n, m)))

    @pytest.mark.parametrize("kind", ["encoder", "decoder"])
    def test_agrees_with_t5_with_and_without_a_cache(self, agree, kind):
        fixture = frozen("transformers_t5_buckets")
        table, p = fixture[f"{kind}_relative_attention_bias"], np.arange(9)
        for queries, name in ((p, "bias"), (p[7:], "cached")):
            agree(
                bucket_bias(table, t5_bucket(queries, p, bidirectional=kind == "encoder")),
                fixture[f"{kind}_{name}"][0],
                function="positions.bucket_bias",
                stranger="transformers, T5Attention.compute_bias",
                version=fixture.version,
                dtype="float64",
                exact=True,
            )

    def test_agrees_with_an_attention_layer_of_t5(self, agree):
        """Dot products without a scale; there is no mask in this call."""
        fixture = frozen("transformers_t5_buckets")
        x, p = fixture["encoder_x"][0], np.arange(9)
        q, k, v = ((x @ fixture[f"encoder_{name}"].T).reshape(9, 2, 3).swapaxes(0, 1) for name in ("q", "k", "v"))
        bias = bucket_bias(fixture["encoder_relative_attention_bias"], t5_bucket(p, p))
        out = attention(q, k, v, bias=bias, score=scaled_dot(scale=1.0))
        agree(
            out.swapaxes(0, 1).reshape(9, 6) @ fixture["encoder_o"].T,
            fixture["encoder_out"][0],
            function="positions.bucket_bias",
            stranger="transformers, T5Attention",
            version=fixture.version,
            dtype="float64",
            clash="multiplies the dot products by one",
        )

    def test_a_table_of_distances_is_alibi(self):
        p, slopes = np.arange(8), np.array([0.5, 0.1])
        numbers = t5_bucket(p, p, buckets=32, max_distance=100, bidirectional=False)
        table = -np.arange(32)[:, None] * slopes
        past = causal(p, p)
        np.testing.assert_allclose(bucket_bias(table, numbers) * past, alibi(p, p, slopes) * past)

    def test_samples_with_tables_and_buckets_of_their_own(self, xp):
        rng = np.random.default_rng(1)
        tables, buckets = rng.normal(size=(2, 4, 3)), rng.integers(4, size=(2, 5, 6))
        for t, b in ((tables, buckets), (tables[0], buckets), (tables, buckets[0])):
            ours = bucket_bias(xp.asarray(t), xp.asarray(b, "int64"))
            rows = zip(*(a if a.ndim == 3 else [a, a] for a in (t, b)), strict=True)
            xp.check(ours, np.stack([np.moveaxis(one[two], -1, 0) for one, two in rows]))

    def test_a_nan_stays_in_its_bucket(self, xp):
        table = xp.asarray([[1.0], [math.nan], [-math.inf]])
        xp.check(bucket_bias(table, xp.asarray([[0, 1], [2, 0]], "int64")), [[[1.0, math.nan], [-math.inf, 1.0]]])

    def test_the_gradient_sums_over_pairs_of_a_bucket(self, autograd):
        rng = np.random.default_rng(2)
        buckets, g = rng.integers(4, size=(3, 5)), rng.normal(size=(2, 3, 5))
        expected = np.array([[g[h][buckets == b].sum() for h in range(2)] for b in range(6)])
        numbers = autograd.asarray(buckets, "int64")
        (ours,) = autograd.vjp(
            lambda table: bucket_bias(table, numbers), autograd.asarray(g), autograd.asarray(np.ones((6, 2)))
        )
        autograd.check(ours, expected)

    def test_bad_input(self, xp, other):
        table, buckets = xp.asarray(np.ones((4, 2))), xp.asarray(np.zeros((3, 3)), "int64")
        with pytest.raises(ValueError, match=r"table has shape \(4,\)"):
            bucket_bias(xp.asarray(np.ones(4)), buckets)
        with pytest.raises(ValueError, match=r"buckets has shape \(3,\)"):
            bucket_bias(table, buckets[0, :])
        with pytest.raises(ValueError, match=r"leading axes.*table has \(2,\).*buckets has \(3,\)"):
            bucket_bias(xp.asarray(np.ones((2, 4, 2))), xp.asarray(np.zeros((3, 3, 3)), "int64"))
        with pytest.raises(TypeError, match="buckets"):
            bucket_bias(table, table)
        with pytest.raises(TypeError, match="one library"):
            bucket_bias(other.asarray(np.ones((4, 2))), buckets)


class TestSwinIndex:
    @given(st.integers(1, 4), st.integers(1, 4))
    def test_is_the_loop_and_counts_every_offset_once(self, height, width):
        cells = grid(height, width)
        expected = [
            [(int(a[0] - b[0]) + height - 1) * (2 * width - 1) + int(a[1] - b[1]) + width - 1 for b in cells]
            for a in cells
        ]
        ours = swin_index(cells, cells, window=(height, width))
        np.testing.assert_array_equal(ours, expected)
        assert set(ours.ravel().tolist()) == set(range((2 * height - 1) * (2 * width - 1)))

    @pytest.mark.parametrize(
        ("name", "window"), [("swin_3", (3, 3)), ("index_4_3_0_0", (4, 3)), ("index_3_3_2_4", (3, 3))]
    )
    def test_agrees_with_swin(self, agree, name, window):
        fixture, cells = frozen("transformers_swin"), grid(*window)
        agree(
            swin_index(cells, cells, window=window).ravel(),
            fixture[name].ravel(),
            function="positions.swin_index",
            stranger="transformers, relative_position_index of Swin and SwinV2",
            version=fixture.version,
            dtype="float64",
            exact=True,
        )

    def test_the_other_sign_reads_from_the_other_end(self, xp):
        cells = xp.asarray(grid(2, 3), "int64")
        ours = xp.numpy(swin_index(cells, cells, window=(2, 3)))
        np.testing.assert_array_equal(ours.T, 3 * 5 - 1 - ours)
        xp.check(swin_index(cells + 100, cells + 100, window=(2, 3)), ours, dtype="int64")

    def test_bad_input(self, xp, other):
        cells = xp.asarray(grid(2, 2), "int64")
        for window in ((2,), (2, 2, 2), 2, (0, 2)):
            with pytest.raises(ValueError, match="window"):
                swin_index(cells, cells, window=window)
        with pytest.raises(TypeError, match="window"):
            swin_index(cells, cells, window=(2.0, 2))
        with pytest.raises(ValueError, match=r"q_coordinates has shape \(4, 1\)"):
            swin_index(cells[:, :1], cells, window=(2, 2))
        with pytest.raises(ValueError, match=r"k_coordinates has shape \(2,\)"):
            swin_index(cells, cells[0, :], window=(2, 2))
        with pytest.raises(TypeError, match="k_coordinates"):
            swin_index(cells, xp.asarray(grid(2, 2)), window=(2, 2))
        with pytest.raises(TypeError, match="one library"):
            swin_index(cells, other.asarray(grid(2, 2), "int64"), window=(2, 2))


class TestLogCpbCoordinates:
    @given(st.integers(-40, 40), st.integers(-40, 40), st.integers(2, 9), st.integers(2, 9))
    def test_is_the_formula(self, down, right, height, width):
        expected = [
            math.copysign(math.log2(1 + 8 * abs(x) / (size - 1)) / 3, x) for x, size in ((down, height), (right, width))
        ]
        ours = log_cpb_coordinates(np.array([down, right]), window=(height, width))
        np.testing.assert_allclose(ours, expected, rtol=1e-12, atol=1e-15)

    @pytest.mark.parametrize(
        ("name", "window", "trained"),
        [("4_3_0_0", (4, 3), (4, 3)), ("3_3_2_4", (3, 3), (2, 4)), ("1_1_0_0", (1, 1), (1, 1))],
    )
    def test_agrees_with_swin_v2(self, agree, name, window, trained):
        fixture = frozen("transformers_swin")
        offsets = grid(*(2 * size - 1 for size in window)).reshape(2 * window[0] - 1, -1, 2) - np.array(window) + 1
        agree(
            log_cpb_coordinates(offsets, window=trained),
            fixture[f"coordinates_{name}"],
            function="positions.log_cpb_coordinates",
            stranger="transformers, relative_coords_table of SwinV2",
            version=fixture.version,
            dtype="float32",
        )

    def test_bad_input(self, xp):
        with pytest.raises(ValueError, match=r"offsets has shape \(3,\)"):
            log_cpb_coordinates(xp.asarray(np.ones(3)), window=(2, 2))
        with pytest.raises(ValueError, match=r"offsets has shape \(\)"):
            log_cpb_coordinates(xp.asarray(1.0), window=(2, 2))
        with pytest.raises(TypeError, match="offsets"):
            log_cpb_coordinates([1, 2], window=(2, 2))
        with pytest.raises(ValueError, match="window"):
            log_cpb_coordinates(xp.asarray(np.ones(2)), window=(2, -2))


class TestLogCpb:
    @given(st.integers(1, 3), st.integers(1, 3), st.integers(0, 99))
    def test_is_the_loop(self, height, width, seed):
        rng = np.random.default_rng(seed)
        queries, keys = rng.integers(-5, 6, size=(3, 2)), rng.integers(-5, 6, size=(2, 2))
        w1, b1, w2 = weights(rng)
        expected = np.zeros((2, 3, 2))
        for i, a in enumerate(queries):
            for j, b in enumerate(keys):
                u = log_cpb_coordinates(a - b, window=(height, width))
                units = [max(u[0] * w1[0, x] + u[1] * w1[1, x] + b1[x], 0) for x in range(5)]
                for h in range(2):
                    z = math.fsum(unit * w2[x, h] for x, unit in enumerate(units))
                    expected[h, i, j] = 16 / (1 + math.exp(-z))
        ours = log_cpb(queries, keys, w1, b1, w2, window=(height, width))
        np.testing.assert_allclose(ours, expected, rtol=1e-10)

    def test_agrees_with_swin_v2(self, agree):
        fixture, cells = frozen("transformers_swin"), grid(4, 3)
        w1, b1, w2 = (fixture[f"mlp_{name}"].astype(float) for name in ("0.weight", "0.bias", "2.weight"))
        agree(
            softmax(log_cpb(cells, cells, w1.T, b1, w2.T, window=(4, 3))),
            fixture["weights"][0],
            function="positions.log_cpb",
            stranger="transformers, Swinv2SelfAttention with scores of zero",
            version=fixture.version,
            dtype="float32",
        )

    def test_is_a_table_of_all_offsets(self, xp):
        rng = np.random.default_rng(3)
        w1, b1, w2 = (xp.asarray(a) for a in weights(rng))
        cells, zero = xp.asarray(grid(3, 2), "int64"), xp.asarray([[0, 0]], "int64")
        offsets = xp.asarray(grid(5, 3) - np.array([2, 1]), "int64")
        table = log_cpb(offsets, zero, w1, b1, w2, window=(3, 2))[:, :, 0].mT
        direct = log_cpb(cells, cells, w1, b1, w2, window=(3, 2))
        xp.check(bucket_bias(table, swin_index(cells, cells, window=(3, 2))), xp.numpy(direct))

    def test_large_numbers_do_not_overflow(self, xp):
        cells = xp.asarray([[0, 0], [0, 1]], "int64")
        ones, zero = xp.asarray(np.ones((2, 1))), xp.asarray([0.0])
        for size, far in ((5000.0, 16.0), (-5000.0, 0.0)):
            ours = log_cpb(cells, cells, ones, zero + 1, xp.asarray([[size]]), window=(2, 2))
            assert xp.numpy(ours)[0, 0, 0] == far
            assert np.isfinite(xp.numpy(ours)).all()

    def test_gradients(self, autograd):
        rng = np.random.default_rng(4)
        queries, keys, arrays = grid(2, 2), grid(2, 3), weights(rng)
        g = rng.normal(size=(2, 4, 6))
        expected = finite_differences(lambda *a: log_cpb(queries, keys, *a, window=(2, 3)), g, *arrays)
        q, k = (autograd.asarray(p, "int64") for p in (queries, keys))
        ours = autograd.vjp(lambda *a: log_cpb(q, k, *a, window=(2, 3)), *map(autograd.asarray, (g, *arrays)))
        for a, b in zip(ours, expected, strict=True):
            autograd.check(a, b, tolerance=1e-7)

    def test_bad_input(self, xp, other):
        cells, rng = xp.asarray(grid(2, 2), "int64"), np.random.default_rng(5)
        w1, b1, w2 = (xp.asarray(a) for a in weights(rng))
        for arguments, message in (
            ((w1[:1, :], b1, w2), r"w1 has shape \(1, 5\)"),
            ((w1, b1[:2], w2), "w1 has 5 units, b1 has 2"),
            ((w1, b1, w2[:2, :]), "w1 has 5 units, w2 has 2"),
            ((b1, b1, w2), r"w1 has shape \(5,\)"),
            ((w1, b1, b1), r"w2 has shape \(5,\)"),
            ((w1, xp.asarray(1.0), w2), r"b1 has shape \(\)"),
            ((xp.asarray(np.ones((2, 2, 5))), b1, xp.asarray(np.ones((3, 5, 2)))), "leading axes"),
        ):
            with pytest.raises(ValueError, match=message):
                log_cpb(cells, cells, *arguments, window=(2, 2))
        with pytest.raises(TypeError, match="one library"):
            log_cpb(cells, cells, *(other.asarray(a) for a in weights(rng)), window=(2, 2))
        with pytest.raises(TypeError, match="q_coordinates"):
            log_cpb(xp.asarray(grid(2, 2)), cells, w1, b1, w2, window=(2, 2))


@pytest.mark.parametrize("past_only", [True, False])
class TestDecoding:
    def test_token_by_token_is_the_full_pass(self, past_only):
        rng = np.random.default_rng(6)
        q, k, v = (rng.normal(size=(2, 8, width)) for width in (4, 4, 3))
        table, p = rng.normal(size=(8, 2)), np.arange(8)
        setting = {"buckets": 8, "max_distance": 6, "bidirectional": not past_only}
        whole = attention(q, k, v, mask=causal(p, p), bias=bucket_bias(table, t5_bucket(p, p, **setting)))
        for t in range(8):
            new, seen = q[:, t : t + 1], slice(0, t + 1)
            bias = bucket_bias(table, t5_bucket(*positions(new, k[:, seen]), **setting))
            step = attention(new, k[:, seen], v[:, seen], bias=bias)
            np.testing.assert_allclose(step[:, 0], whole[:, t], rtol=1e-12)

    def test_appending_leaves_earlier_rows_alone(self, past_only):
        short, long = (t5_bucket(np.arange(n), np.arange(n), bidirectional=not past_only) for n in (50, 3000))
        np.testing.assert_array_equal(long[:50, :50], short)


@pytest.mark.parametrize(("name", "invariant"), held("positions/buckets"))
def test_shared_invariants(xp, name, invariant):
    invariant(SUBJECTS[name], xp)
