"""softlookup.schedules.speed: the same sum in tiles, with NumPy alone."""

import math
import threading
import tracemalloc
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from invariants import held, reach_past_the_hull
from libraries import Library
from subjects import SUBJECTS

from softlookup.lookup import attention, scaled_dot
from softlookup.masks import causal, positions, sliding_window
from softlookup.schedules import fast_attention, online_attention, speed

INF, NAN = math.inf, math.nan
TILES = ((2048, 256, 192, 8), (1, 1, 1, 0), (2, 3, 2, 0), (5, 2, 2, 0), (5, 2, 1, 6), (64, 4, 3, 0))
WINDOWS = ((None, None), (0, 0), (2, None), (None, 1), (1, 3), (70, 80))


def version(module):
    return f"{module.__name__} {module.__version__.partition('+')[0]}"


def loop(q, k, v, *, after=INF, before=INF, scale=None):
    """One head, one query and one key after the other, in plain Python."""
    out, scale = [], 1 / math.sqrt(max(len(q[0]), 1)) if scale is None else scale
    for i, query in enumerate(q):
        place, numbers, values = i + len(k) - len(q), [], []
        for j, (key, value) in enumerate(zip(k, v, strict=True)):
            if -before <= j - place <= after:
                numbers.append(scale * math.fsum(a * b for a, b in zip(query, key, strict=True)))
                values.append(value)
        top = max(numbers, default=0.0)
        e = [math.exp(x - top) for x in numbers]
        total = math.fsum(e) or 1.0
        out.append([math.fsum(a * row[c] for a, row in zip(e, values, strict=True)) / total for c in range(len(v[0]))])
    return out


def problem(seed=0, n=7, m=9, heads=4, shared=2, batch=(), scale=1.0):
    rng = np.random.default_rng(seed)
    shapes = (*batch, heads, n, 3), (*batch, shared, m, 3), (*batch, shared, m, 2)
    q, k, v = (rng.normal(size=shape) for shape in shapes)
    return q * scale, k, v


def allowed(q, k, is_causal, window):
    p = positions(q, k)
    mask = sliding_window(*p, left=window[0], right=window[1])
    return mask & causal(*p) if is_causal else mask


@pytest.fixture(params=TILES, ids=str)
def tiles(request, monkeypatch):
    """Tiles that hold everything, and tiles of few rows and columns that divide nothing; with maxima or without."""
    for name, size in zip(("ROWS", "COLUMNS", "NARROW", "FEW"), request.param, strict=True):
        monkeypatch.setattr(speed, name, size)


class TestFastAttention:
    def test_by_hand(self):
        q, k = np.array([[1.0], [2.0]]), np.log([[1.0], [3.0]])
        out = fast_attention(q, k, np.array([[8.0], [4.0]]), scale=1.0)
        np.testing.assert_allclose(out, [[5.0], [4.4]])  # (8 + 3 * 4) / 4 and (8 + 9 * 4) / 10
        out = fast_attention(q, k, np.array([[8.0], [4.0]]), scale=1.0, causal=True)
        np.testing.assert_allclose(out, [[8.0], [4.4]])

    @given(st.integers(0, 99), st.integers(1, 9), st.integers(1, 9), st.sampled_from([1.0, 40.0, 1e4]), st.data())
    def test_is_the_loop(self, seed, n, m, size, data):
        q, k, v = (x[0] for x in problem(seed, n, m, 1, 1, scale=size))
        left, right = (data.draw(st.none() | st.integers(0, 10)) for _ in "lr")
        late = data.draw(st.booleans())
        ours = fast_attention(q, k, v, causal=late, window=(left, right), scale=0.7)
        before, after = (INF if x is None else x for x in (left, right))
        expected = loop(q.tolist(), k.tolist(), v.tolist(), before=before, after=0 if late else after, scale=0.7)
        np.testing.assert_allclose(ours, expected, rtol=1e-9, atol=1e-9)

    @pytest.mark.parametrize("window", WINDOWS)
    @pytest.mark.parametrize("is_causal", [False, True])
    def test_is_attention_in_tiles_of_any_size(self, tiles, window, is_causal):
        shapes = ((7, 9, 4, 2, ()), (9, 7, 3, 1, (2,)), (1, 6, 2, 2, (3, 2)), (0, 3, 2, 1, ()), (4, 0, 1, 1, ()))
        for n, m, heads, shared, batch in shapes:
            for size, workers in ((1.0, 1), (1e4, 3)):
                q, k, v = problem(n, n, m, heads, shared, batch, size)
                ours = fast_attention(q, k, v, causal=is_causal, window=window, workers=workers)
                expected = attention(q, k, v, mask=allowed(q, k, is_causal, window))
                assert (ours.shape, ours.dtype) == (expected.shape, expected.dtype)
                np.testing.assert_allclose(ours, expected, rtol=1e-9, atol=1e-9)

    @pytest.mark.parametrize("dtype", ["float64", "float32"])
    def test_is_attention_on_a_long_text(self, dtype):
        q, k, v = (x.astype(dtype) for x in problem(1, 300, 1300, 2, 1))
        tolerance = 1e-12 if dtype == "float64" else 2e-6
        for options in ({}, {"causal": True}, {"window": (1100, 5)}, {"causal": True, "window": (40, None)}):
            mask = allowed(q, k, options.get("causal"), options.get("window", (None, None)))
            for size in (1.0, 50.0):  # the second has scores that need a maximum
                queries = q * q.dtype.type(size)
                exact = attention(*(x.astype(np.float64) for x in (queries, k, v)), mask=mask)
                for workers in (1, 2):
                    ours = fast_attention(queries, k, v, workers=workers, **options)
                    assert ours.dtype == dtype
                    np.testing.assert_allclose(ours, exact, rtol=0, atol=size * tolerance)

    def test_each_option_counts(self):
        q, k, v = problem()
        usual = fast_attention(q, k, v)
        for options in ({"causal": True}, {"window": (1, None)}, {"window": (None, 1)}, {"scale": 0.3}):
            assert np.abs(fast_attention(q, k, v, **options) - usual).max() > 1e-3
        np.testing.assert_array_equal(fast_attention(q, k, v, workers=3), usual)
        np.testing.assert_allclose(
            fast_attention(q, k, v, scale=0.3), attention(q, k, v, score=scaled_dot(scale=0.3)), rtol=1e-12
        )

    def test_agrees_with_torch(self, torch, agree):
        from torch.nn.attention import SDPBackend, sdpa_kernel
        from torch.nn.attention.bias import causal_lower_right

        for dtype in ("float64", "float32"):
            for n, m in ((40, 40), (9, 40)):
                q, k, v = (x.astype(dtype) for x in problem(2, n, m))
                q, k, v = q[..., :2], k[..., :2], v
                theirs = [torch.from_numpy(np.ascontiguousarray(x))[None] for x in (q, k, v)]
                for backend, name in ((SDPBackend.FLASH_ATTENTION, "flash"), (SDPBackend.MATH, "math")):
                    for late in (False, True):
                        with sdpa_kernel(backend), warnings.catch_warnings(action="ignore"):
                            out = torch.nn.functional.scaled_dot_product_attention(
                                *theirs, attn_mask=causal_lower_right(n, m) if late else None, enable_gqa=True
                            )
                        agree(
                            fast_attention(q, k, v, causal=late),
                            out[0].numpy(),
                            function="schedules.fast_attention",
                            stranger=f"torch scaled_dot_product_attention, {name}",
                            version=version(torch),
                            dtype=dtype,
                        )

    def test_agrees_with_flex_attention(self, torch, agree):
        from torch.nn.attention.flex_attention import create_block_mask, flex_attention

        q, k, v = problem(3, 40, 40)
        theirs = [torch.from_numpy(x)[None] for x in (q, k, v)]
        mask = create_block_mask(lambda b, h, i, j: (j <= i) & (i - j <= 6), None, None, 40, 40, device="cpu")
        with warnings.catch_warnings(action="ignore"):
            out = flex_attention(*theirs, block_mask=mask, enable_gqa=True)
        agree(
            fast_attention(q, k, v, causal=True, window=(6, None)),
            out[0].numpy(),
            function="schedules.fast_attention",
            stranger="torch flex_attention with a window",
            version=version(torch),
            dtype="float64",
        )

    def test_agrees_with_jax(self, jax, agree):
        q, k, v = (x.astype(np.float32) for x in problem(4, 40, 40))
        v = np.concatenate([v, v[..., :1]], axis=-1)  # jax wants values as wide as keys
        theirs = [jax.numpy.asarray(x.swapaxes(0, 1))[None] for x in (q, k, v)]
        for options, jaxs in (
            ({"causal": True}, {"is_causal": True}),
            ({"window": (5, 3)}, {"local_window_size": (5, 3)}),
        ):
            agree(
                fast_attention(q, k, v, **options),
                np.asarray(jax.nn.dot_product_attention(*theirs, **jaxs))[0].swapaxes(0, 1),
                function="schedules.fast_attention",
                stranger="jax.nn.dot_product_attention",
                version=version(jax),
                dtype="float32",
            )

    def test_is_the_online_form(self):
        q, k, v = problem(5, 20, 30)
        ours = fast_attention(q, k, v, causal=True)
        theirs = online_attention(q, k, v, block=7, mask=np.tri(20, 30, 10, dtype=bool))
        np.testing.assert_allclose(ours, theirs, rtol=1e-11, atol=1e-12)

    def test_results_lie_in_the_hull(self, tiles):
        q, k, v = problem(6, scale=30.0)
        mask = np.broadcast_to(np.tri(7, 9, 2, dtype=bool), (4, 7, 9))
        assert reach_past_the_hull(fast_attention(q, k, v, causal=True), v, mask) < 1e-12

    def test_early_rows_do_not_depend_on_later_items(self):
        q, k, v = problem(7, 600, 600, 2, 1)
        first = fast_attention(*(x[:, :400] for x in (q, k, v)), causal=True)
        np.testing.assert_allclose(fast_attention(q, k, v, causal=True)[:, :400], first, rtol=1e-11, atol=1e-12)

    def test_a_text_read_token_by_token_with_a_cache_is_the_whole(self):
        q, k, v = problem(8, 12, 12)
        whole = fast_attention(q, k, v, causal=True, window=(4, None))
        for t in range(12):
            one = fast_attention(q[:, t : t + 1], k[:, : t + 1], v[:, : t + 1], causal=True, window=(4, None))
            np.testing.assert_allclose(one, whole[:, t : t + 1], rtol=1e-12, atol=1e-13)

    def test_leading_axes_broadcast_and_a_missing_head_axis_is_one_head(self):
        q, k, v = problem(9, batch=(2, 3))
        for arrays in (
            (q[0], k[:, :1], v),
            (q[0], k[0, :1], v),
            (q, k[0, 0, :1], v[0, 0, :1]),
            (q, k[0, 0, 0], v[0, 0, 0]),
        ):
            np.testing.assert_allclose(fast_attention(*arrays), attention(*arrays), rtol=1e-12, atol=1e-13)
        single = q[0, 0, 0], k[0, 0, 0], v[0, 0, 0]
        assert fast_attention(*single).shape == (7, 2)
        assert fast_attention(single[0], *(x[None] for x in single[1:])).shape == (1, 7, 2)

    @pytest.mark.parametrize("big", [3e4, 1e4])
    def test_large_scores(self, big, tiles):
        q, k, v = np.array([[big], [-big], [0.0]]), np.array([[1.0], [-1.0], [0.0]]), np.eye(3)
        for dtype in ("float64", "float32"):
            ours = fast_attention(*(x.astype(dtype) for x in (q, k, v)))
            np.testing.assert_allclose(ours, [[1, 0, 0], [0, 1, 0], [1 / 3] * 3], rtol=1e-6)

    def test_large_values(self):
        rng = np.random.default_rng(10)
        q, k = rng.normal(size=(2, 50, 64)).astype(np.float32) * 2
        out = fast_attention(q, k, np.full((50, 1), 1e36, dtype=np.float32))
        np.testing.assert_allclose(out, 1e36, rtol=1e-5)

    @pytest.mark.parametrize(
        ("query", "key", "scale", "value"),
        [
            (70, 1, 1, 1e10),
            (1, 70, 1, 1e10),
            (1, 1, 70, 1e10),
            (0.1, 700, 1, 1e10),
            (700, 0.1, 1, 1e10),
            (20, 1, 1, 1e36),
        ],
    )
    def test_exponentials_and_blends_stay_in_range(self, query, key, scale, value):
        q, k, v = ([[query]] * 9, [[key], [key], [-key]], [[value], [value], [0.0]])
        out = fast_attention(*(np.array(x, dtype=np.float32) for x in (q, k, v)), scale=scale)
        np.testing.assert_allclose(out, [[value]] * 9, rtol=1e-5)

    @pytest.mark.parametrize(("size", "scale"), [(1e150, 1e-200), (1e150, 1e-298), (1.0, 1e200), (1e-150, 1e200)])
    def test_scales_of_any_size(self, size, scale):
        q, k, v = np.array([[size]] * 9), np.array([[size], [size], [-size]]), np.array([[1.0], [3.0], [8.0]])
        score = scale * size * size  # 1e100, 100, 1e200, 1e-100
        expected = 2.0 if score > 1 else 4.0
        np.testing.assert_allclose(fast_attention(q, k, v, scale=scale), [[expected]] * 9, rtol=1e-12)

    def test_many_heads_of_few_queries(self):
        q, k, v = problem(19, 4, 1100, 300, 300)
        np.testing.assert_allclose(fast_attention(q, k, v), attention(q, k, v), rtol=1e-10, atol=1e-12)

    def test_rows_that_read_nothing_are_zero(self, tiles):
        q, k, v = problem(11, 9, 4)
        for size in (1.0, 1e4):
            out = fast_attention(q * size, k, v, causal=True)
            np.testing.assert_array_equal(out[:, :5], 0.0)
            assert np.abs(out[:, 5:]).min() > 0

    def test_a_key_that_no_query_may_read_can_hold_anything(self, tiles):
        q, k, v = problem(12, 6, 9)
        clean = fast_attention(q, k, v, window=(1, 0))  # the queries stand at 3 to 8: nobody reads 0 and 1
        for bad in (NAN, INF, -INF):
            k[:, :2], v[:, :2] = bad, bad
            np.testing.assert_allclose(fast_attention(q, k, v, window=(1, 0)), clean, rtol=1e-12, atol=1e-13)

    def test_a_key_that_some_may_read_can_spoil_the_others(self):
        q, k, v = problem(13, 4, 4, 1, 1)
        v[:, 3] = NAN
        assert np.isnan(fast_attention(q, k, v, causal=True)[:, 3]).all()
        assert np.isnan(fast_attention(q, k, v, causal=True)[:, :3]).any()
        mask = np.tri(4, dtype=bool)
        assert not np.isnan(attention(q, k, v, mask=mask)[:, :3]).any()

    def test_scores_of_minus_infinity_take_no_share(self, tiles):
        q, k, v = np.ones((9, 1)), np.array([[-INF], [0.0], [-INF], [0.0]]), np.array([[8.0], [1.0], [8.0], [3.0]])
        np.testing.assert_allclose(fast_attention(q, k, v), [[2.0]] * 9)
        np.testing.assert_array_equal(fast_attention(q, k[:1], v[:1]), [[0.0]] * 9)

    def test_a_nan_that_may_be_read_shows(self, tiles):
        for spoiled in range(3):
            arrays = [x.copy() for x in problem(14, 3, 3, 1, 1)]
            arrays[spoiled][..., 1, 0] = NAN
            assert np.isnan(fast_attention(*arrays)[0, 1, 0])

    def test_narrow_numbers_are_computed_in_float32(self):
        q, k, v = (x.astype(np.float16) for x in problem(15, 30, 30, scale=8.0))
        single = fast_attention(*(x.astype(np.float32) for x in (q, k, v)))
        ours = fast_attention(q, k, v)
        assert ours.dtype == np.float16
        np.testing.assert_array_equal(ours, single.astype(np.float16))
        assert fast_attention(q, k.astype(np.float32), v).dtype == np.float32
        assert fast_attention(*(np.rint(x).astype(np.int32) for x in (q, k, v))).dtype == np.float64
        whole = np.rint(k).astype(np.int8)  # alone and beside floats it becomes float64
        assert fast_attention(q, whole, v).dtype == attention(q, whole, v).dtype == np.float64

    def test_input_of_any_layout_stays_as_it_was(self):
        q, k, v = problem(16, 200, 200)
        expected = fast_attention(q, k, v, causal=True)
        for change in (
            np.asfortranarray,
            lambda x: np.repeat(x, 2, axis=-1)[..., ::2],
            lambda x: x[:, ::-1].copy()[:, ::-1],
            lambda x: x.swapaxes(0, 1).copy().swapaxes(0, 1),
        ):
            arrays = [change(x) for x in (q, k, v)]
            for x in arrays:
                x.flags.writeable = False
            np.testing.assert_allclose(fast_attention(*arrays, causal=True), expected, rtol=1e-12, atol=1e-13)

    def test_more_workers_than_strips_and_one_bit_pattern_for_all(self):
        q, k, v = problem(17, 260, 260, 3, 1)
        one = fast_attention(q, k, v, causal=True)
        for workers in (2, 5, 100):
            np.testing.assert_array_equal(fast_attention(q, k, v, causal=True, workers=workers), one)

    def test_work_is_shared_by_threads_and_their_errors_come_out(self, monkeypatch):
        q, k, v = problem(18, 600, 600, 2, 2)
        names, exp2 = set(), np.exp2

        def noted(*arguments, **options):
            names.add(threading.current_thread().name)
            return exp2(*arguments, **options)

        def broken(*arguments, **options):
            raise MemoryError("no room")

        monkeypatch.setattr(np, "exp2", noted)
        fast_attention(q, k, v)
        assert names == {threading.main_thread().name}
        fast_attention(q, k, v, workers=2)
        assert len(names) > 1
        monkeypatch.setattr(np, "exp2", broken)
        for workers in (1, 2):
            with pytest.raises(MemoryError, match="no room"):
                fast_attention(q, k, v, workers=workers)

    def test_the_longest_strips_go_first_and_each_goes_once(self, monkeypatch):
        strips = []

        class OneAfterTheOther(ThreadPoolExecutor):
            def map(self, work, shared):
                strips.append([strip for strip in shared[0][::-1] if strip])
                assert len(shared) <= len(strips[-1])  # no thread without work
                return [work(each) for each in shared]

        monkeypatch.setattr(speed, "ThreadPoolExecutor", OneAfterTheOther)
        q, k, v = problem(20, 1100, 1100, 3, 1)
        expected = fast_attention(q, k, v, causal=True)
        for workers in (2, 4, 99):
            np.testing.assert_array_equal(fast_attention(q, k, v, causal=True, workers=workers), expected)
            starts = [i for _, i in strips[-1]]
            assert starts == sorted(starts, reverse=True)
            assert len(starts) == len(set(strips[-1])) >= 8

    def test_memory_grows_no_faster_than_the_text(self):
        def extra(n, **options):
            q, k, v = (np.ones((1, n, 8), dtype=np.float32) for _ in "qkv")
            tracemalloc.start()
            try:
                size = fast_attention(q, k, v, **options).nbytes
                return tracemalloc.get_traced_memory()[1] - size
            finally:
                tracemalloc.stop()

        small, large = extra(2048), extra(8192)
        assert large < 8 * 2**20
        assert large < 2048 * 2048  # a tenth and less of a table of all scores would be more than this
        assert large <= 4 * small
        assert extra(8192, causal=True, window=(255, None), workers=2) < 8 * 2**20

    def test_a_window_reads_as_many_keys_as_it_has(self, monkeypatch):
        read, matmul = [], np.matmul

        def counted(a, b, **options):
            read.append(a.shape[-2] * b.shape[-1])
            return matmul(a, b, **options)

        monkeypatch.setattr(np, "matmul", counted)
        pairs = {}
        for n in (1024, 2048):
            for name, options in (("full", {}), ("causal", {"causal": True}), ("near", {"window": (127, 0)})):
                read.clear()
                fast_attention(*(np.ones((n, 2)) for _ in "qkv"), **options)
                pairs[name, n] = sum(read)
        assert pairs["full", 1024] == 1024**2
        assert pairs["full", 2048] == 2048**2
        assert pairs["causal", 2048] <= 2048 * (2048 + 192) / 2
        assert pairs["near", 2048] <= 2048 * (128 + 64)
        assert pairs["near", 2048] < 2.1 * pairs["near", 1024]

    def test_an_array_of_another_library_is_refused(self):
        q, k, v = problem()
        strange = Library("array-api-strict").asarray
        for arrays in ((strange(q), k, v), (q, strange(k), v), (q, k, strange(v))):
            with pytest.raises(TypeError, match="must be a NumPy array"):
                fast_attention(*arrays)

    def test_bad_input(self):
        q, k, v = problem()
        for arguments, message in (
            ((q[0, 0], k, v), r"q.*\(3,\).*\(\.\.\., n, d\)"),
            ((q, k[0, 0], v), r"k.*\(3,\)"),
            ((q, k, v[0, 0]), r"v.*\(2,\)"),
            ((q[..., :2], k, v), "q has 2 columns, k has 3"),
            ((q, k, v[:, :4]), "k has 9 items, v has 4"),
            ((q, k, v[:1]), "k has 2 heads, v has 1"),
            ((q[:3], k, v), "k has 2 heads.*q's 3"),
            ((np.ones((2, 4, 7, 3)), np.ones((3, 2, 9, 3)), v), r"q has \(2,\), k has \(3,\)"),
            ((np.ones((2, 4, 7, 3)), k, np.ones((3, 2, 9, 2))), r"q has \(2,\).* v has \(3,\)"),
        ):
            with pytest.raises(ValueError, match=message):
                fast_attention(*arguments)
        for options, error, message in (
            ({"window": (-1, None)}, ValueError, "window is -1.*None sets no limit"),
            ({"window": (None, -2)}, ValueError, "window is -2"),
            ({"window": (1.5, None)}, TypeError, "window must be an integer"),
            ({"window": 3}, TypeError, r"window must be a pair \(left, right\), not 3"),
            ({"window": (1, 2, 3)}, TypeError, "pair"),
            ({"scale": INF}, ValueError, "scale is inf"),
            ({"scale": "1"}, TypeError, "scale"),
            ({"workers": 0}, ValueError, "workers is 0"),
            ({"workers": 1.0}, TypeError, "workers"),
        ):
            with pytest.raises(error, match=message):
                fast_attention(q, k, v, **options)
        for bad in (q.astype(complex), q > 0):
            with pytest.raises(TypeError, match="q must hold real numbers"):
                fast_attention(bad, k, v)
        with pytest.raises(TypeError, match="v must be a NumPy array, not list"):
            fast_attention(q, k, v.tolist())


@pytest.mark.parametrize(("name", "holds"), held("schedules/speed"))
def test_shared_invariants(xp, name, holds):
    holds(SUBJECTS[name], xp)
