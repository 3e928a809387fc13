"""softlookup.schedules.quantized: rounding to eight bits, exact changes before it, and attention with it."""

import fractions
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from invariants import held
from libraries import finite_differences
from subjects import SUBJECTS

from softlookup.lookup import attention, attention_scores, attention_weights, scaled_dot, softmax
from softlookup.schedules import (
    dequantize,
    hadamard,
    merge,
    partial_attention,
    quantize_int8,
    quantized_attention,
    round_to_e4m3,
    round_to_e5m2,
    smooth_keys,
)

INF, NAN = math.inf, math.nan
FORMATS = {round_to_e4m3: (3, -6, 448.0), round_to_e5m2: (2, -14, 57344.0)}


def int8_rows(x):
    return dequantize(*quantize_int8(x, rows=1))


def random_arrays(seed, *shapes):
    rng = np.random.default_rng(seed)
    return [rng.normal(size=shape) for shape in shapes]


def representable(bits, lowest, largest):
    """Every number of the format that is not negative, in increasing order."""
    small = [i * 2.0 ** (lowest - bits) for i in range(2**bits)]
    rest = [(2**bits + i) * 2.0 ** (e - bits) for e in range(lowest, 17) for i in range(2**bits)]
    return np.array([x for x in small + rest if x <= largest])


def nearest(x, numbers):
    """The nearest of the numbers by exact fractions; of two, the one at an even place."""
    gaps = [(abs(fractions.Fraction(x) - fractions.Fraction(y)), i % 2) for i, y in enumerate(numbers)]
    return numbers[gaps.index(min(gaps))]


class TestQuantizeInt8:
    def test_by_hand(self, xp):
        codes, scales = quantize_int8(xp.asarray([[12.7, 5.02, -0.27], [1.0, -254.0, 3.0]]), rows=1)
        xp.check(codes, [[127, 50, -3], [0, -127, 2]], dtype="int8")  # 1/2 goes to 0, 3/2 to 2
        xp.check(scales, [[0.1], [2.0]])
        codes, scales = quantize_int8(xp.asarray([[12.7, 5.02, -0.27], [1.0, -254.0, 3.0]]), rows=2)
        xp.check(codes, [[6, 3, 0], [0, -127, 2]], dtype="int8")
        xp.check(scales, [[2.0], [2.0]])

    @given(st.integers(0, 7), st.integers(0, 4), st.integers(1, 9), st.integers(0, 2**32 - 1))
    def test_is_the_loop(self, n, d, rows, seed):
        rng = np.random.default_rng(seed)
        x = rng.normal(size=(n, d)) * 10.0 ** rng.integers(-3, 4, size=(n, 1))
        codes, scales = quantize_int8(x, rows=rows)
        for i in range(n):
            block = x[i // rows * rows : i // rows * rows + rows]
            scale = max((abs(float(y)) for y in block.ravel()), default=0.0) / 127
            assert scales[i, 0] == scale
            assert codes[i].tolist() == [round(float(y) / scale) for y in x[i]]

    def test_agrees_with_torch(self, torch, agree):
        (x,) = random_arrays(1, (16, 8))
        codes, scales = quantize_int8(x, rows=1)
        theirs = torch.fake_quantize_per_channel_affine(
            torch.tensor(x).float(), torch.tensor(scales[:, 0]).float(), torch.zeros(16).int(), 0, -127, 127
        )
        agree(
            dequantize(codes, scales),
            theirs,
            function="schedules.dequantize",
            stranger="torch fake_quantize_per_channel_affine, with our scales",
            version=f"torch {torch.__version__.partition('+')[0]}",
            dtype="float32",
        )

    def test_agrees_with_onnx(self, agree):
        onnx = pytest.importorskip("onnx")
        from onnx import helper
        from onnx.reference import ReferenceEvaluator

        x = np.concatenate([random_arrays(2, (6, 8))[0], [[254.0, 1.0, 3.0, 5.0, -1.0, -3.0, -5.0, 0.0]]])
        codes, scales = quantize_int8(x.astype(np.float32), rows=1)
        inputs = [helper.make_tensor_value_info(name, 1, None) for name in ("x", "s")]
        zero = helper.make_tensor("z", 3, [7], [0] * 7)
        node = helper.make_node("QuantizeLinear", ["x", "s", "z"], ["y"], axis=0)
        graph = helper.make_graph([node], "g", inputs, [helper.make_tensor_value_info("y", 3, None)], [zero])
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)])
        (theirs,) = ReferenceEvaluator(model).run(None, {"x": x.astype(np.float32), "s": scales[:, 0]})
        agree(
            codes,
            theirs,
            function="schedules.quantize_int8",
            stranger="onnx reference, QuantizeLinear, with our scales",
            version=f"onnx {onnx.__version__}",
            dtype="int64",
            exact=True,
        )

    def test_half_a_step_is_the_largest_error(self):
        for seed in range(20):
            (x,) = random_arrays(seed, (5, 16))
            for rows in (1, 2, 5):
                codes, scales = quantize_int8(x, rows=rows)
                assert (np.abs(dequantize(codes, scales) - x) <= scales / 2 * (1 + 1e-12)).all()
                again, same = quantize_int8(dequantize(codes, scales), rows=rows)
                np.testing.assert_array_equal(again, codes)
                np.testing.assert_allclose(same, scales, rtol=1e-15)

    def test_zeros_and_what_is_not_finite(self, xp):
        x = xp.asarray([[0.0, 0.0], [NAN, 1.0], [INF, 1.0], [3.0, -3.0]])
        codes, scales = quantize_int8(x, rows=1)
        with np.errstate(invalid="ignore"):  # zero times infinity
            back = dequantize(codes, scales)
        xp.check(codes, [[0, 0], [0, 0], [0, 0], [127, -127]], dtype="int8")
        xp.check(back, [[0.0, 0.0], [NAN, NAN], [NAN, NAN], [3.0, -3.0]])

    def test_the_smallest_numbers_do_not_wrap_around(self):
        x = np.array([[190.0, -190.0, -3.0]], dtype=np.float32) * np.float32(2.0**-149)  # 190 / 127 is written as 1
        codes, scales = quantize_int8(x, rows=1)
        assert codes.tolist() == [[127, -127, -3]]
        assert scales.tolist() == [[2.0**-149]]

    def test_narrow_numbers_have_wide_scales(self, xp):
        for dtype in xp.narrow_dtypes:
            codes, scales = quantize_int8(xp.asarray([[1.0, 0.3]], dtype), rows=1)
            xp.check(codes, [[127, 38]], dtype="int8")
            xp.check(scales, [[1 / 127]], dtype="float32")

    def test_bad_input(self, xp):
        x = xp.asarray(np.ones((2, 3)))
        with pytest.raises(ValueError, match="rows is 0"):
            quantize_int8(x, rows=0)
        with pytest.raises(TypeError, match="rows must be an integer"):
            quantize_int8(x, rows=1.0)
        with pytest.raises(ValueError, match="x has shape"):
            quantize_int8(x[0, :], rows=1)
        with pytest.raises(TypeError, match="x must be an array"):
            quantize_int8([[1.0]], rows=1)


class TestDequantize:
    def test_by_hand(self, xp):
        codes, _ = quantize_int8(xp.asarray([[127.0, -2.0], [3.0, 127.0]]), rows=1)
        xp.check(dequantize(codes, xp.asarray([[0.5], [2.0]])), [[63.5, -1.0], [6.0, 254.0]])

    def test_bad_input(self, xp, other):
        codes, scales = xp.asarray(np.ones((2, 3))), xp.asarray(np.ones((2, 1)))
        for wrong in (scales[:1, :], codes):
            with pytest.raises(ValueError, match="scales has shape"):
                dequantize(codes, wrong)
        with pytest.raises(ValueError, match="codes has shape"):
            dequantize(codes[0, :], scales)
        with pytest.raises(TypeError, match="one library"):
            dequantize(codes, other.asarray(np.ones((2, 1))))


def probes(bits, lowest, largest):
    """Every number of the format, what lies half-way between two, what lies just beside that, and random numbers."""
    numbers = representable(bits, lowest, largest)
    halves = (numbers[1:] + numbers[:-1]) / 2
    rng = np.random.default_rng(3)
    random = rng.normal(size=2000) * 2.0 ** rng.integers(lowest - bits - 3, 10, size=2000)
    beside = [np.nextafter(halves.astype(np.float32), np.float32(end)) for end in (0, np.inf)]
    inside = np.concatenate([numbers, halves, *beside, np.abs(random)]).astype(np.float32).astype(np.float64)
    inside = inside[inside <= largest]
    return np.concatenate([inside, -inside])


class TestRoundToE4m3:
    @pytest.mark.parametrize("function", FORMATS)
    def test_is_the_nearest(self, function):
        numbers = representable(*FORMATS[function])
        assert len(numbers) == {round_to_e4m3: 127, round_to_e5m2: 124}[function]  # NaN and infinity take the rest
        for x in probes(*FORMATS[function])[::7]:
            assert function(np.array(x)) == math.copysign(nearest(abs(x), numbers), x)

    @pytest.mark.parametrize("function", FORMATS)
    def test_every_library_gives_the_same_bits(self, xp, function):
        x = probes(*FORMATS[function])
        expected = function(x)
        xp.check(function(xp.asarray(x)), expected, tolerance=0)
        xp.check(function(xp.asarray(x, "float32")), expected, dtype="float32", tolerance=0)

    @pytest.mark.parametrize("function", FORMATS)
    def test_saturates_and_keeps_signs(self, xp, function):
        _, lowest, largest = FORMATS[function]
        beyond = [largest * 1.01, 1e30, INF, -INF, NAN, 0.0, -0.0, -(2.0 ** (lowest - 9))]
        expected = [largest, largest, largest, -largest, NAN, 0.0, -0.0, -0.0]
        ours = xp.numpy(function(xp.asarray(beyond)))
        np.testing.assert_array_equal(ours, expected)
        np.testing.assert_array_equal(np.signbit(ours[5:]), [False, True, True])

    @pytest.mark.parametrize("function", FORMATS)
    def test_the_largest_error(self, function):
        bits, lowest, largest = FORMATS[function]
        x = probes(bits, lowest, largest)
        error = np.abs(function(x) - x)
        normal = np.abs(x) >= 2.0**lowest
        assert (error[normal] <= 2.0 ** -(bits + 1) * np.abs(x[normal])).all()
        assert (error[~normal] <= 2.0 ** (lowest - bits - 1)).all()

    def test_agrees_with_casts(self, torch, agree):
        x = probes(*FORMATS[round_to_e4m3])
        version = f"torch {torch.__version__.partition('+')[0]}"
        agree(
            round_to_e4m3(x),
            torch.tensor(x).float().to(torch.float8_e4m3fn).double(),
            function="schedules.round_to_e4m3",
            stranger="torch, cast to float8_e4m3fn",
            version=version,
            dtype="float32",
            exact=True,
        )
        x = probes(*FORMATS[round_to_e5m2])
        agree(
            round_to_e5m2(x),
            torch.tensor(x).float().to(torch.float8_e5m2).double(),
            function="schedules.round_to_e5m2",
            stranger="torch, cast to float8_e5m2",
            version=version,
            dtype="float32",
            exact=True,
            clash="numbers beyond the largest become infinity",
        )

    def test_agrees_with_ml_dtypes(self, agree):
        ml_dtypes = pytest.importorskip("ml_dtypes")
        x = probes(*FORMATS[round_to_e4m3]).astype(np.float32)
        agree(
            round_to_e4m3(x),
            x.astype(ml_dtypes.float8_e4m3fn).astype(np.float64),
            function="schedules.round_to_e4m3",
            stranger="ml_dtypes float8_e4m3fn",
            version=f"ml_dtypes {ml_dtypes.__version__}",
            dtype="float32",
            exact=True,
            clash="numbers beyond the largest become NaN",
        )
        x = probes(*FORMATS[round_to_e5m2]).astype(np.float32)
        agree(
            round_to_e5m2(x),
            x.astype(ml_dtypes.float8_e5m2).astype(np.float64),
            function="schedules.round_to_e5m2",
            stranger="ml_dtypes float8_e5m2",
            version=f"ml_dtypes {ml_dtypes.__version__}",
            dtype="float32",
            exact=True,
            clash="numbers beyond the largest become infinity",
        )

    def test_every_byte_is_its_own_rounding(self):
        ml_dtypes = pytest.importorskip("ml_dtypes")
        for function, name in ((round_to_e4m3, "float8_e4m3fn"), (round_to_e5m2, "float8_e5m2")):
            x = np.arange(256, dtype=np.uint8).view(getattr(ml_dtypes, name)).astype(np.float64)
            x = x[np.isfinite(x)]
            np.testing.assert_array_equal(function(x), x)
            assert np.abs(x).max() == FORMATS[function][2]
            np.testing.assert_array_equal(np.unique(np.abs(x)), representable(*FORMATS[function]))

    def test_what_strangers_do_beyond_the_largest(self, torch):
        ml_dtypes = pytest.importorskip("ml_dtypes")
        x = np.array([464.0, 465.0, 1e9, INF], dtype=np.float32)
        with np.errstate(invalid="ignore", over="ignore"):
            ours = x.astype(ml_dtypes.float8_e4m3fn).astype(np.float64)
            wide = np.array([57345.0, 61440.0, 1e9, INF], dtype=np.float32).astype(ml_dtypes.float8_e5m2)
        np.testing.assert_array_equal(ours, [448.0, NAN, NAN, NAN])
        np.testing.assert_array_equal(wide.astype(np.float64), [57344.0, INF, INF, INF])
        wide = torch.tensor([57345.0, 61440.0, 1e9, INF]).to(torch.float8_e5m2)
        np.testing.assert_array_equal(wide.double(), [57344.0, INF, INF, INF])

    def test_agrees_with_onnx_cast(self, agree):
        """With the attribute saturate at its default the rule is ours, also beyond the largest number."""
        onnx = pytest.importorskip("onnx")
        from onnx import helper
        from onnx.reference import ReferenceEvaluator

        for function, kind in ((round_to_e4m3, "FLOAT8E4M3FN"), (round_to_e5m2, "FLOAT8E5M2")):
            x = np.concatenate([probes(*FORMATS[function]), [500.0, 1e6, -1e6]]).astype(np.float32)
            to = getattr(onnx.TensorProto, kind)
            node = helper.make_node("Cast", ["x"], ["y"], to=to)
            back = helper.make_node("Cast", ["y"], ["z"], to=1)
            infos = [helper.make_tensor_value_info(name, 1, None) for name in "xz"]
            graph = helper.make_graph([node, back], "g", infos[:1], infos[1:])
            model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)])
            (theirs,) = ReferenceEvaluator(model).run(None, {"x": x})
            np.testing.assert_array_equal(function(x), theirs)

    def test_bad_input(self):
        for function in FORMATS:
            with pytest.raises(TypeError, match="x must be an array"):
                function(1.0)


class TestRoundToE5m2:
    def test_by_hand(self, xp):
        x = [0.3, 1.1, 1.125, 1.375, 5.0, 6.9, 2.0**-16, 2.0**-17, 1.5 * 2.0**-16]
        expected = [0.3125, 1.0, 1.0, 1.5, 5.0, 7.0, 2.0**-16, 0.0, 2.0**-15]
        xp.check(round_to_e5m2(xp.asarray(x)), expected, tolerance=0)

    def test_of_the_other_by_hand(self, xp):
        x = [0.3, 1.1, 1.0625, 1.1875, 17.0, 19.0, 2.0**-9, 2.0**-10, 1.5 * 2.0**-9]
        expected = [0.3125, 1.125, 1.0, 1.25, 16.0, 20.0, 2.0**-9, 0.0, 2.0**-8]
        xp.check(round_to_e4m3(xp.asarray(x)), expected, tolerance=0)


class TestSmoothKeys:
    def test_by_hand(self, xp):
        smoothed, mean = smooth_keys(xp.asarray([[101.0, 1.0], [99.0, 3.0], [100.0, -1.0]]))
        xp.check(smoothed, [[1.0, 0.0], [-1.0, 2.0], [0.0, -2.0]])
        xp.check(mean, [[100.0, 1.0]])

    def test_weights_stay_and_the_log_sum_exp_moves(self, xp):
        q, k, v = random_arrays(4, (2, 4, 3, 8), (2, 4, 6, 8), (2, 4, 6, 2))
        mask = np.random.default_rng(5).random((3, 6)) < 0.6
        smoothed, mean = smooth_keys(xp.asarray(k + 5))
        arrays = xp.asarray(q), smoothed, xp.asarray(v)
        out, lse = partial_attention(*arrays, mask=xp.asarray(mask, "bool"))
        expected = partial_attention(q, k + 5, v, mask=mask)
        xp.check(out, expected[0], tolerance=1e-11)
        moved = (arrays[0] @ mean.mT)[..., 0] / math.sqrt(8)
        xp.check(lse + moved, expected[1], tolerance=1e-11)

    def test_parts_smoothed_by_themselves_merge_after_the_correction(self):
        q, k, v = random_arrays(6, (3, 4), (8, 4), (8, 2))
        k += 3
        parts, wrong = [], []
        for cut in (slice(0, 3), slice(3, 8)):
            smoothed, mean = smooth_keys(k[cut])
            out, lse = partial_attention(q, smoothed, v[cut])
            wrong += [out, lse]
            parts += [out, lse + (q @ mean.T)[:, 0] / 2]
        whole = attention(q, k, v)
        np.testing.assert_allclose(merge(*parts)[0], whole, rtol=1e-10)
        assert np.abs(merge(*wrong)[0] - whole).max() > 0.01

    def test_the_gradient_sums_to_zero(self, autograd):
        g, k = random_arrays(7, (5, 3), (5, 3))
        (dk,) = autograd.vjp(lambda x: smooth_keys(x)[0], autograd.asarray(g), autograd.asarray(k))
        autograd.check(dk, finite_differences(lambda x: smooth_keys(x)[0], g, k)[0], tolerance=1e-8)
        np.testing.assert_allclose(autograd.numpy(dk).sum(0), 0, atol=1e-12)

    def test_bad_input(self, xp):
        with pytest.raises(ValueError, match="k has shape"):
            smooth_keys(xp.asarray([1.0]))


def hadamard_loop(d):
    return np.array([[(-1) ** (a & b).bit_count() / math.sqrt(d) for b in range(d)] for a in range(d)])


class TestHadamard:
    @pytest.mark.parametrize("d", [1, 2, 4, 16, 64])
    def test_is_the_matrix(self, xp, d):
        (x,) = random_arrays(8, (3, d))
        signs = np.random.default_rng(9).choice([-1.0, 1.0], size=d)
        xp.check(hadamard(xp.asarray(x)), x @ hadamard_loop(d))
        xp.check(hadamard(xp.asarray(x), signs=xp.asarray(signs)), x @ np.diag(signs) @ hadamard_loop(d))
        np.testing.assert_allclose(hadamard_loop(d) @ hadamard_loop(d).T, np.eye(d), atol=1e-14)

    def test_agrees_with_scipy(self, agree):
        scipy = pytest.importorskip("scipy.linalg")
        import scipy as package

        agree(
            hadamard(np.eye(32)) * math.sqrt(32),
            scipy.hadamard(32),
            function="schedules.hadamard",
            stranger="scipy.linalg.hadamard",
            version=f"scipy {package.__version__}",
            dtype="float64",
            clash="entries plus and minus one, without the root",
        )

    def test_scores_stay(self, xp):
        q, k = random_arrays(10, (2, 3, 16), (2, 5, 16))
        signs = xp.asarray(np.random.default_rng(11).choice([-1.0, 1.0], size=16))
        turned = [hadamard(xp.asarray(a), signs=signs) for a in (q, k)]
        xp.check(attention_scores(*turned), attention_scores(q, k))
        xp.check(hadamard(hadamard(xp.asarray(q))), q)

    def test_one_column_is_spread_and_an_even_row_is_gathered(self):
        np.testing.assert_allclose(hadamard(np.array([8.0, 0, 0, 0])), [4.0, 4.0, 4.0, 4.0])
        np.testing.assert_allclose(hadamard(np.array([4.0, 4.0, 4.0, 4.0])), [8.0, 0, 0, 0], atol=1e-15)

    def test_the_gradient_is_the_transpose(self, autograd):
        g, x = random_arrays(12, (3, 8), (3, 8))
        (dx,) = autograd.vjp(hadamard, autograd.asarray(g), autograd.asarray(x))
        autograd.check(dx, g @ hadamard_loop(8).T)

    def test_bad_input(self, xp):
        for d in (0, 3, 12):
            with pytest.raises(ValueError, match=f"x has {d} columns"):
                hadamard(xp.asarray(np.ones((2, d))))
        for wrong in (2, (3, 2, 4)):
            with pytest.raises(ValueError, match="signs has shape"):
                hadamard(xp.asarray(np.ones((2, 4))), signs=xp.asarray(np.ones(wrong)))
        with pytest.raises(ValueError, match="x has shape"):
            hadamard(xp.asarray(np.array(1.0)))


def bound(q, k, scale):
    """How far a score can be off when both rows are rounded by half a step: step times the sums of absolutes."""
    steps = [np.abs(a).max(-1, keepdims=True) / 127 for a in (q, k)]
    sums = [np.abs(a).sum(-1, keepdims=True) for a in (q, k)]
    d = q.shape[-1]
    return scale * (steps[0] / 2 @ sums[1].T + sums[0] @ steps[1].T / 2 + d / 4 * steps[0] @ steps[1].T)


class TestQuantizedAttention:
    def test_by_hand(self, xp):
        """1.03 becomes 1, 2.1 becomes 2; the exponential 0.1353 becomes 9/64; 3.3 and 5.1 become 3.25 and 5."""
        q, k, v = (xp.asarray(a) for a in ([[1.03]], [[0.0], [2.1]], [[3.3], [5.1]]))
        out, lse = quantized_attention(q, k, v, rounding=round_to_e4m3)
        total = 1 + math.exp(-2)
        xp.check(out, [[(9 / 64 * 3.25 + 5) / total]])
        xp.check(lse, [2 + math.log(total)])

    def test_is_the_loop(self):
        q, k, v, bias = random_arrays(13, (4, 3), (6, 3), (6, 2), (4, 6))
        mask = np.random.default_rng(14).random((4, 6)) < 0.6
        mask[1] = False
        out, lse = quantized_attention(q, k, v, rounding=round_to_e5m2, mask=mask, bias=bias)
        a, b, c = (round_to_e5m2(x) for x in (q, k, v))
        for i in range(4):
            s = {j: math.fsum(a[i] * b[j]) / math.sqrt(3) + bias[i, j] for j in range(6) if mask[i, j]}
            e = {j: math.exp(x - max(s.values())) for j, x in s.items()}
            total = math.fsum(e.values())
            expected = [math.fsum(round_to_e5m2(np.array(e[j])) * c[j, x] for j in e) / (total or 1) for x in range(2)]
            np.testing.assert_allclose(out[i], expected, rtol=1e-12)
            np.testing.assert_allclose(lse[i], max(s.values()) + math.log(total) if s else -INF, rtol=1e-12)

    def test_without_rounding_it_is_attention(self, xp):
        q, k, v, bias = random_arrays(15, (2, 4, 3, 2), (2, 2, 5, 2), (2, 1, 5, 3), (4, 3, 5))
        mask = np.random.default_rng(16).random((3, 5)) < 0.5
        given = {"mask": xp.asarray(mask, "bool"), "bias": xp.asarray(bias), "score": scaled_dot(scale=0.3, cap=2.0)}
        out, lse = quantized_attention(*map(xp.asarray, (q, k, v)), rounding=lambda x: x, **given)
        expected = partial_attention(q, k, v, mask=mask, bias=bias, score=scaled_dot(scale=0.3, cap=2.0))
        xp.check(out, expected[0])
        xp.check(lse, expected[1])

    def test_agrees_with_torch(self, torch, agree):
        """The same steps with the casts of PyTorch; no library has this on the processor in one call."""
        q, k, v = random_arrays(17, (2, 5, 16), (2, 9, 16), (2, 9, 8))

        def cast(x):
            return x.float().to(torch.float8_e4m3fn).double()

        a, b, c = (cast(torch.tensor(x)) for x in (q, k, v))
        s = a @ b.mT / 4
        e = torch.exp(s - s.amax(-1, keepdim=True))
        out, lse = quantized_attention(q, k, v, rounding=round_to_e4m3)
        version = f"torch {torch.__version__.partition('+')[0]}"
        agree(
            out,
            cast(e) @ c / e.sum(-1, keepdim=True),
            function="schedules.quantized_attention",
            stranger="torch, by hand with casts to float8_e4m3fn, the output",
            version=version,
            dtype="float64",
        )
        agree(
            lse,
            torch.logsumexp(s, -1),
            function="schedules.quantized_attention",
            stranger="torch, by hand with casts to float8_e4m3fn, the log-sum-exp",
            version=version,
            dtype="float64",
        )

    @pytest.mark.parametrize("outlier", [0.0, 30.0])
    def test_scores_are_off_by_less_than_the_bound(self, outlier):
        for seed in range(10):
            q, k = random_arrays(seed, (20, 32), (30, 32))
            k[:, 3] += outlier
            q[2], k[4] = 0, 0
            scale = 1 / math.sqrt(32)
            error = np.abs(int8_rows(q) @ int8_rows(k).T - q @ k.T) * scale
            assert (error <= bound(q, k, scale)).all()

    def test_weights_move_no_more_than_the_worst_score(self):
        """In the sum of absolute differences softmax moves by at most the largest change of a score."""
        rng = np.random.default_rng(18)
        for size in (1e-3, 0.1, 1.0, 10.0):
            s, ds = rng.normal(size=(200, 7)) * 3, rng.uniform(-size, size, (200, 7))
            moved = np.abs(softmax(s + ds) - softmax(s)).sum(-1)
            assert (moved <= 2 * np.tanh(np.abs(ds).max(-1) / 2) + 1e-12).all()
        two = np.abs(softmax(np.array([0.1, -0.1])) - softmax(np.array([-0.1, 0.1]))).sum()
        np.testing.assert_allclose(two, 2 * math.tanh(0.1))

    def test_small_weights_vanish(self):
        """One score of zero and 4096 of -7: their exponentials are below half the smallest step."""
        s = np.array([0.0] + [-7.0] * 4096)
        q, k, v = np.ones((1, 1)), np.zeros((4097, 1)), np.array([0.0] + [1.0] * 4096)[:, None]
        out, _ = quantized_attention(q, k, v, rounding=round_to_e4m3, bias=s[None])
        right = 4096 * math.exp(-7) / (1 + 4096 * math.exp(-7))
        assert out[0, 0] == 0
        np.testing.assert_allclose(attention(q, k, v, bias=s[None]), [[right]], rtol=1e-12)

    def test_smoothing_and_rotation_help_against_outliers(self):
        rng = np.random.default_rng(19)
        q, k, v = random_arrays(20, (32, 64), (128, 64), (128, 16))
        k[:, 5] += 50.0
        right = attention(q, k, v)
        signs = rng.choice([-1.0, 1.0], size=64)
        smoothed = smooth_keys(k)[0]
        turned = [hadamard(a, signs=signs) for a in (q, k)]
        errors = {
            "bare": quantized_attention(q, k, v, rounding=int8_rows)[0] - right,
            "smooth": quantized_attention(q, smoothed, v, rounding=int8_rows)[0] - right,
            "turned": quantized_attention(*turned, v, rounding=int8_rows)[0] - right,
        }
        sizes = {name: np.sqrt(np.mean(e**2)) for name, e in errors.items()}
        assert sizes["smooth"] < sizes["turned"] < sizes["bare"]
        assert sizes["bare"] > 3 * sizes["smooth"]

    def test_smoothing_over_all_keys_lets_the_future_change_the_rounding(self):
        q, k, v = random_arrays(21, (6, 8), (6, 8), (6, 2))
        mask = np.tri(6, dtype=bool)
        other = k.copy()
        other[5] += 40.0
        outs = [quantized_attention(q, smooth_keys(x)[0], v, rounding=int8_rows, mask=mask)[0][:5] for x in (k, other)]
        assert np.abs(outs[0] - outs[1]).max() > 1e-4
        exact = [attention(q, smooth_keys(x)[0], v, mask=mask)[:5] for x in (k, other)]
        np.testing.assert_allclose(*exact, rtol=1e-9)

    def test_a_row_of_exponentials_has_the_scale_one_over_127(self):
        q, k, v = random_arrays(22, (5, 4), (9, 4), (9, 2))
        seen = []

        def watching(x):
            seen.append(quantize_int8(x, rows=1)[1])
            return int8_rows(x)

        quantized_attention(q, k, v, rounding=watching)
        np.testing.assert_array_equal(seen[2], np.full((5, 1), 1 / 127))
        assert len(seen) == 4

    def test_a_hidden_nan_stays_hidden(self, xp):
        q, k, v = (a.copy() for a in random_arrays(23, (3, 4), (5, 4), (5, 2)))
        mask = np.tri(3, 5, 1, dtype=bool)
        expected = quantized_attention(q, k, v, rounding=int8_rows, mask=mask)
        k[4], v[4], k[3], v[3] = NAN, INF, NAN, NAN
        out, lse = quantized_attention(*map(xp.asarray, (q, k, v)), rounding=int8_rows, mask=xp.asarray(mask, "bool"))
        np.testing.assert_allclose(xp.numpy(out)[:2], expected[0][:2], rtol=1e-9)
        np.testing.assert_allclose(xp.numpy(lse)[:2], expected[1][:2], rtol=1e-9)
        assert np.isnan(xp.numpy(out)[2]).all() == bool(mask[2, 3])

    def test_decoding_with_a_cache_is_the_full_pass(self):
        q, k, v = random_arrays(24, (7, 4), (7, 4), (7, 2))
        for rounding in (round_to_e4m3, int8_rows):
            whole = quantized_attention(q, k, v, rounding=rounding, mask=np.tri(7, dtype=bool))[0]
            for t in range(7):
                step = quantized_attention(q[t : t + 1], k[: t + 1], v[: t + 1], rounding=rounding)[0]
                np.testing.assert_allclose(step[0], whole[t], rtol=1e-10)

    def test_bad_input(self, xp):
        q, k, v = (xp.asarray(np.ones(shape)) for shape in ((4, 3), (5, 3), (5, 2)))
        with pytest.raises(TypeError, match="rounding must be a function"):
            quantized_attention(q, k, v, rounding=None)
        with pytest.raises(ValueError, match="k has 5 items, v has 4"):
            quantized_attention(q, k, v[:4, :], rounding=round_to_e4m3)
        with pytest.raises(ValueError, match="bias"):
            quantized_attention(q, k, v, rounding=round_to_e4m3, bias=xp.asarray(np.ones((3, 5))))
        with pytest.raises(ValueError, match="mask"):
            quantized_attention(q, k, v, rounding=round_to_e4m3, mask=xp.asarray(np.ones((3, 5)), "bool"))


def test_sum_of_weights_may_differ_from_one():
    """The total is that of the exponentials before rounding."""
    q, k = random_arrays(25, (4, 3), (6, 3))
    w, _ = quantized_attention(q, k, np.eye(6), rounding=round_to_e4m3)
    assert np.abs(w.sum(-1) - 1).max() > 1e-3
    np.testing.assert_allclose(w.sum(-1), 1, atol=1 / 16)
    np.testing.assert_allclose(w, attention_weights(q, k), atol=0.2)


@pytest.mark.parametrize(("name", "invariant"), held("schedules/quantized"))
def test_shared_invariants(xp, name, invariant):
    invariant(SUBJECTS[name], xp)
