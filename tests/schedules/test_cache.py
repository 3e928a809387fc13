"""softlookup.schedules.cache: a cache of keys and values, contiguous, in pages, or rolling."""

import functools
import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from invariants import held
from libraries import finite_differences
from oracles.freeze import frozen
from oracles.onnx_cases import attention_arguments, node_cases, onnx
from subjects import SUBJECTS

from softlookup.heads import cache_bytes
from softlookup.lookup import attention, scaled_dot
from softlookup.masks import causal, positions, sliding_window
from softlookup.normalizers import sink_softmax
from softlookup.positions import alibi, alibi_slopes, rotary, rotary_frequencies
from softlookup.schedules import (
    chunked_prefill,
    decode,
    gather_pages,
    online_attention,
    paged_attention,
    rolling_decode,
    rolling_positions,
    rolling_write,
    shared_prefix_attention,
    split_attention,
    write_pages,
)

INF, NAN = math.inf, math.nan
claims = pytest.mark.claims


def random_arrays(seed, *shapes):
    rng = np.random.default_rng(seed)
    return [rng.normal(size=shape) for shape in shapes]


def text(seed, length=9):
    """Queries, keys and values of a text: four query heads, two key heads."""
    return random_arrays(seed, (4, length, 6), (2, length, 6), (2, length, 3))


def loop(q, k, v, left=None):
    """One head: each position blends the values from `left` before it to its own, in plain Python."""
    rows = []
    for i in range(len(q)):
        near = range(0 if left is None else max(0, i - left), i + 1)
        e = [math.exp(math.fsum(a * b for a, b in zip(q[i], k[j], strict=True)) / math.sqrt(len(q[i]))) for j in near]
        rows.append(
            [math.fsum(w * v[j][c] for w, j in zip(e, near, strict=True)) / math.fsum(e) for c in range(len(v[0]))]
        )
    return np.array(rows)


def pieces(length, sizes):
    """Slices of the sizes, one after the other; the last has what is left."""
    cuts = np.minimum(np.cumsum([0, *sizes, length]), length)
    return [slice(a, b) for a, b in itertools.pairwise(cuts) if a < b]


def decoded(q, k, v, sizes, **options):
    """The rows of a text in pieces, and the cache at its end."""
    cache, outs = (k[..., :0, :], v[..., :0, :]), []
    for cut in pieces(k.shape[-2], sizes):
        out, *cache = decode(q[..., cut, :], *cache, k[..., cut, :], v[..., cut, :], **options)
        outs.append(out)
    return np.concatenate(outs, axis=-2), *cache


def rolled(q, k, v, window, sizes, **options):
    """The same with a rolling cache whose slots hold NaN until they are written."""
    cache = [np.full((*x.shape[:-2], window, x.shape[-1]), NAN) for x in (k, v)]
    outs = []
    for cut in pieces(k.shape[-2], sizes):
        out, *cache = rolling_decode(q[..., cut, :], *cache, k[..., cut, :], v[..., cut, :], cut.start, **options)
        outs.append(out)
    return np.concatenate(outs, axis=-2), *cache


def in_pages(seed, lengths, size, spare=2, heads=2):
    """Keys and values of texts in one pool, in pages in random order; what no text uses is NaN, the table stale."""
    rng = np.random.default_rng(seed)
    columns = max(-(-n // size) for n in lengths) + 1
    used = [-(-n // size) for n in lengths]
    free = list(rng.permutation(sum(used) + spare))
    table = rng.integers(0, len(free), size=(len(lengths), columns))
    table[:, -1] = [99, -7, *[0] * len(lengths)][: len(lengths)]
    pools = [np.full((len(free), heads, size, width), NAN) for width in (6, 3)]
    texts = []
    for b, n in enumerate(lengths):
        texts.append(random_arrays(seed + b + 1, (heads, n, 6), (heads, n, 3)))
        for page in range(used[b]):
            table[b, page] = free.pop()
            for pool, x in zip(pools, texts[-1], strict=True):
                there = x[:, page * size : (page + 1) * size]
                pool[table[b, page], :, : there.shape[-2]] = there
    return *pools, table, np.array(lengths), texts


def with_bias(q, k, v, mask):
    """Attention with a bias by distance, from the places that a cache gives."""
    return attention(q, k, v, mask=mask, bias=alibi(*positions(q, k), alibi_slopes(4)))


WAYS = {
    "plain": (attention, None),
    "window": (attention, 3),
    "sink": (functools.partial(attention, normalize=sink_softmax(np.array(0.3))), None),
    "softcap": (functools.partial(attention, score=scaled_dot(cap=1.5)), None),
    "distance": (with_bias, None),
    "online": (functools.partial(online_attention, block=2), None),
    "split": (functools.partial(split_attention, size=3), 4),
}

WITH_PAST = [c for c in node_cases("Attention") if "past_key" in c.inputs]
CHUNKINGS = [(1,) * 9, (9,), (4, 1, 1, 3), (2, 7), (5, 9), (100,)]


class TestDecode:
    def test_by_hand(self, xp):
        """Scores of zero: each step is the mean of the values so far, (1 + 3) / 2 and (1 + 3 + 8) / 3."""
        q, k, v = xp.asarray([[0.0]]), xp.asarray([[5.0]]), xp.asarray([[1.0]])
        out, k_cache, v_cache = decode(q, k[:0, :], v[:0, :], k, v)
        xp.check(out, [[1.0]])
        out, k_cache, v_cache = decode(q, k_cache, v_cache, k, xp.asarray([[3.0]]))
        xp.check(out, [[2.0]])
        out, k_cache, v_cache = decode(q, k_cache, v_cache, k, xp.asarray([[8.0]]))
        xp.check(out, [[4.0]])
        xp.check(k_cache, [[5.0]] * 3)
        xp.check(v_cache, [[1.0], [3.0], [8.0]])

    @given(st.lists(st.integers(1, 4), max_size=9), st.none() | st.integers(0, 9))
    def test_is_the_loop(self, sizes, left):
        q, k, v = random_arrays(1, (9, 4), (9, 4), (9, 2))
        out, k_cache, v_cache = decoded(q, k, v, sizes, left=left)
        np.testing.assert_allclose(out, loop(q, k, v, left), rtol=1e-12, atol=1e-14)
        np.testing.assert_array_equal(k_cache, k)
        np.testing.assert_array_equal(v_cache, v)

    @pytest.mark.parametrize("sizes", CHUNKINGS, ids=str)
    @pytest.mark.parametrize("way", WAYS)
    def test_any_pieces_give_the_rows_of_the_full_pass(self, way, sizes):
        (attend, left), (q, k, v) = WAYS[way], text(2)
        p = np.arange(9)
        full = attend(q, k, v, mask=sliding_window(p, p, left=left, right=0))
        np.testing.assert_allclose(decoded(q, k, v, sizes, left=left, attend=attend)[0], full, rtol=1e-11, atol=1e-13)

    def test_agrees_with_torch_step_by_step(self, torch, agree):
        q, k, v = text(3)
        cache = k[:, :0], v[:, :0]
        for t in range(9):
            new = slice(t, t + 1)
            out, *cache = decode(q[:, new], *cache, k[:, new], v[:, new])
            theirs = torch.nn.functional.scaled_dot_product_attention(
                *(torch.tensor(x)[None] for x in (q[:, new], k[:, : t + 1], v[:, : t + 1])), enable_gqa=True
            )
            agree(
                out[None],
                theirs,
                function="schedules.decode",
                stranger="torch scaled_dot_product_attention, one query at a time",
                version=f"torch {torch.__version__.partition('+')[0]}",
                dtype="float64",
            )

    @pytest.mark.parametrize("node", WITH_PAST, ids=lambda c: c.name)
    def test_agrees_with_onnx(self, node, agree):
        """The caches of all its cases with past keys, and the output where each new key has a query."""
        given = attention_arguments(node)
        past = [node.inputs[name].astype(np.float64) for name in ("past_key", "past_value")]
        new = [x[..., past[0].shape[-2] :, :] for x in (given["k"], given["v"])]
        q, n = given["q"], new[0].shape[-2]
        complete = node.attributes.get("is_causal") and q.shape[-2] == n

        def attend(q, k, v, mask):
            score = scaled_dot(scale=given["scale"], cap=given["cap"])
            return attention(q, k, v, mask=mask & given["mask"], bias=given["bias"], score=score)

        q = q if complete else np.zeros((*q.shape[:-2], n, q.shape[-1]))
        out, *caches = decode(q, *past, *new, attend=attend if complete else attention)
        for ours, name in zip(caches, ("present_key", "present_value"), strict=True):
            np.testing.assert_array_equal(ours, node.outputs[name])
        if complete:
            agree(
                out,
                node.outputs["Y"],
                function="schedules.decode",
                stranger="onnx Attention, causal node case with past keys",
                version=f"onnx {onnx.__version__}",
                dtype="float32",
            )

    @pytest.mark.parametrize("kind", ["dynamic", "static"])
    def test_agrees_with_the_caches_of_transformers(self, kind, agree):
        kept = frozen("transformers_caches")
        out, k_cache, _ = decoded(kept["q"], kept["k"], kept["v"], kept["sizes"])
        np.testing.assert_array_equal(k_cache, kept[f"{kind}.kept"][..., :12, :])
        agree(
            out,
            kept[f"{kind}.out"],
            function="schedules.decode",
            stranger="transformers, dynamic and static cache",
            version=kept.version,
            dtype="float64",
        )

    def test_earlier_rows_change_if_anything_about_earlier_keys_changes(self):
        """What breaks the rule: a mask that lets an early row read a late key, and keys made anew at each length."""
        q, k, v = text(4)
        last = decoded(q, k, v, (1,) * 9)[0]
        assert not np.allclose(attention(q, k, v)[:, :-1], last[:, :-1])
        np.testing.assert_allclose(attention(q, k, v)[:, -1], last[:, -1], rtol=1e-12)
        renewed = []
        for i in range(9):
            new = slice(i, i + 1)
            grown = [x[:, :i] * (i + 1) for x in (k, v)]  # something about old items depends on the length
            renewed.append(decode(q[:, new], *grown, k[:, new], v[:, new])[0])
        renewed = np.concatenate(renewed, axis=-2)
        assert not np.allclose(renewed[:, 1:], last[:, 1:])

    def test_rotary_before_caching_is_rotary_at_reading(self, xp):
        q, k, v = text(5)
        frequencies, places = rotary_frequencies(6), np.arange(9) + 40

        def turn(x, p):
            return rotary(x, p, frequencies, pairing="half")

        before = decoded(turn(q, places), turn(k, places), v, (4, 1, 4))[0]

        def at_reading(q, k, v, mask):
            last = 40 + k.shape[-2]
            return attention(turn(q, np.arange(last - q.shape[-2], last)), turn(k, np.arange(40, last)), v, mask=mask)

        np.testing.assert_allclose(decoded(q, k, v, (4, 1, 4), attend=at_reading)[0], before, rtol=1e-12, atol=1e-14)
        moved = turn(k, places - 40), turn(q, places - 40)
        np.testing.assert_allclose(decoded(moved[1], moved[0], v, (9,))[0], before, rtol=1e-12, atol=1e-14)

    def test_a_key_that_the_window_leaves_out_may_be_nan(self, xp):
        q, k, v = text(6, 5)
        k_old, v_old = np.full((2, 3, 6), NAN), np.full((2, 3, 3), INF)
        k_old[:, 2:], v_old[:, 2:] = 0.3, 0.7
        arrays = [xp.asarray(x) for x in (q[:, :1], k_old, v_old, k[:, :1], v[:, :1])]
        out, _, _ = decode(*arrays, left=1)
        near = [np.concatenate(pair, axis=-2) for pair in ((k_old[:, 2:], k[:, :1]), (v_old[:, 2:], v[:, :1]))]
        xp.check(out, attention(q[:, :1], *near))

    @pytest.mark.parametrize(("c", "n"), [(0, 0), (0, 3), (4, 0), (0, 1), (4, 1)])
    def test_lengths_of_zero_and_one(self, xp, c, n):
        q, k, v = text(7, c + n)
        given = [xp.asarray(x) for x in (q[:, c:], k[:, :c], v[:, :c], k[:, c:], v[:, c:])]
        out, k_cache, v_cache = decode(*given)
        xp.check(out, attention(q, k, v, mask=np.tri(c + n, dtype=bool))[:, c:])
        xp.check(k_cache, k)
        xp.check(v_cache, v)

    def test_a_narrow_cache_is_rounded_once_when_it_is_filled(self):
        q, k, v = (x.astype(np.float16) for x in text(8))
        out, k_cache, _ = decoded(q, k, v, (1,) * 9)
        assert out.dtype == k_cache.dtype == np.float16
        wide = attention(*(x.astype(np.float32) for x in (q, k, v)), mask=np.tri(9, dtype=bool))
        np.testing.assert_allclose(out, wide, rtol=1e-3, atol=1e-3)
        _, mixed, _ = decode(q[:, :1].astype(np.float32), k, v, k[:, :1].astype(np.float32), v[:, :1])
        assert mixed.dtype == np.float32

    def test_gradients_reach_the_cache_and_the_new_items(self, autograd):
        q, k, v = text(9, 5)
        given = q[:, 3:], k[:, :3], v[:, :3], k[:, 3:], v[:, 3:]
        g = random_arrays(10, (4, 2, 3))[0]
        expected = finite_differences(lambda *a: decode(*a)[0], g, *given)
        ours = autograd.vjp(lambda *a: decode(*a)[0], *(autograd.asarray(a) for a in (g, *given)))
        for one, two in zip(ours, expected, strict=True):
            autograd.check(one, two, tolerance=1e-8)

    def test_bad_input(self, xp, other):
        q, k = (xp.asarray(np.ones((2, n, 3))) for n in (1, 4))
        new = xp.asarray(np.ones((2, 1, 3)))
        for i, name in ((1, "k"), (2, "v")):
            given = [q, k, k, new, new]
            given[i + 2] = new[:, :, :2]
            with pytest.raises(ValueError, match=rf"^{name} has shape \(2, 1, 2\)"):
                decode(*given)
        with pytest.raises(ValueError, match="k_cache has 4 items, v_cache has 3"):
            decode(q, k, k[:, :3, :], new, new)
        with pytest.raises(ValueError, match="k has 1 items, v has 4"):
            decode(q, k, k, new, k)
        with pytest.raises(ValueError, match="q has 4 items, k has 1"):
            decode(k, k, k, new, new)
        with pytest.raises(ValueError, match="v_cache has shape"):
            decode(q, k, k[0, 0, :], new, new)
        with pytest.raises(ValueError, match="q has shape"):
            decode(q[0, 0, :], k, k, new, new)
        with pytest.raises(ValueError, match="left"):
            decode(q, k, k, new, new, left=-1)
        with pytest.raises(TypeError, match="attend must be a function"):
            decode(q, k, k, new, new, attend=3)
        with pytest.raises(TypeError, match="one library"):
            decode(q, k, k, other.asarray(np.ones((2, 1, 3))), new)


class TestChunkedPrefill:
    @pytest.mark.parametrize("size", [1, 2, 4, 9, 100])
    @pytest.mark.parametrize("way", WAYS)
    def test_any_size_is_the_full_pass(self, way, size):
        (attend, left), (q, k, v), p = WAYS[way], text(11), np.arange(9)
        full = attend(q, k, v, mask=sliding_window(p, p, left=left, right=0))
        ours = chunked_prefill(q, k, v, size=size, left=left, attend=attend)
        np.testing.assert_allclose(ours, full, rtol=1e-11, atol=1e-13)

    @pytest.mark.parametrize(("n", "m"), [(3, 9), (9, 3), (0, 4), (4, 0), (0, 0), (1, 1)])
    def test_other_lengths_put_the_last_query_at_the_last_key(self, xp, n, m):
        q, k, v = random_arrays(12, (4, n, 6), (2, m, 6), (2, m, 3))
        ours = chunked_prefill(*(xp.asarray(x) for x in (q, k, v)), size=2)
        xp.check(ours, attention(q, k, v, mask=causal(*positions(q, k))))

    def test_a_piece_sees_no_later_key(self):
        q, k, v = text(13)
        k[:, 5:], v[:, 5:] = NAN, NAN
        seen = []

        def attend(q, k, v, mask):
            seen.append((q.shape[-2], k.shape[-2]))
            return attention(q, k, v, mask=mask)

        ours = chunked_prefill(q, k, v, size=4, attend=attend)
        assert seen == [(4, 4), (4, 8), (1, 9)]
        expected = attention(q[:, :5], k[:, :5], v[:, :5], mask=np.tri(5, dtype=bool))
        np.testing.assert_allclose(ours[:, :5], expected, rtol=1e-12)

    def test_agrees_with_torch_at_once(self, torch, agree):
        q, k, v = text(14)
        theirs = torch.nn.functional.scaled_dot_product_attention(
            *(torch.tensor(x)[None] for x in (q, k, v)), is_causal=True, enable_gqa=True
        )
        for size in (1, 4, 9):
            agree(
                chunked_prefill(q, k, v, size=size)[None],
                theirs,
                function="schedules.chunked_prefill",
                stranger="torch scaled_dot_product_attention, causal, at once",
                version=f"torch {torch.__version__.partition('+')[0]}",
                dtype="float64",
            )

    def test_gradients_are_those_of_the_full_pass(self, autograd):
        g, q, k, v = random_arrays(15, (5, 2), (5, 3), (5, 3), (5, 2))
        mask = np.tri(5, dtype=bool)
        expected = finite_differences(lambda *a: attention(*a, mask=mask), g, q, k, v)
        ours = autograd.vjp(lambda *a: chunked_prefill(*a, size=2), *(autograd.asarray(a) for a in (g, q, k, v)))
        for one, two in zip(ours, expected, strict=True):
            autograd.check(one, two, tolerance=1e-8)

    def test_bad_input(self, xp):
        x = xp.asarray(np.ones((4, 3)))
        for size, error in ((0, ValueError), (1.5, TypeError)):
            with pytest.raises(error, match="size"):
                chunked_prefill(x, x, x, size=size)
        with pytest.raises(ValueError, match="k has 4 items, v has 3"):
            chunked_prefill(x, x, x[:3, :], size=2)
        with pytest.raises(ValueError, match="q has shape"):
            chunked_prefill(x[0, :], x, x, size=2)
        with pytest.raises(ValueError, match="left"):
            chunked_prefill(x, x, x, size=2, left=-1)
        with pytest.raises(TypeError, match="attend"):
            chunked_prefill(x, x, x, size=2, attend=None)


class TestGatherPages:
    def test_is_the_loop(self, xp):
        (pool,) = random_arrays(16, (5, 2, 3, 2))
        table = np.array([[4, 0], [1, 1]])
        expected = np.array(
            [[[pool[table[b, t // 3], h, t % 3] for t in range(6)] for h in range(2)] for b in range(2)]
        )
        xp.check(gather_pages(xp.asarray(pool), xp.asarray(table, "int64")), expected)
        xp.check(gather_pages(xp.asarray(pool[:, 0]), xp.asarray(table, "int64")), expected[:, 0])
        xp.check(gather_pages(xp.asarray(pool), xp.asarray(table[0], "int64")), expected[0])

    def test_a_page_that_does_not_exist_is_nan(self, xp):
        pool = xp.asarray([[[1.0], [2.0]], [[3.0], [4.0]]])
        for bad in (-1, 2, 10**9, -(10**9)):
            out = gather_pages(pool, xp.asarray([[1, bad]], "int64"))
            xp.check(out, [[[3.0], [4.0], [NAN], [NAN]]])

    def test_bad_input(self, xp, other):
        pool, table = xp.asarray(np.ones((2, 3, 4))), xp.asarray([[0]], "int64")
        with pytest.raises(ValueError, match="pool has shape"):
            gather_pages(pool[0, :, :], table)
        with pytest.raises(ValueError, match="pool has nothing"):
            gather_pages(pool[:0, :, :], table)
        with pytest.raises(ValueError, match="block_table has shape"):
            gather_pages(pool, table[0, 0])
        with pytest.raises(TypeError, match="block_table must hold signed integers"):
            gather_pages(pool, pool[:, 0, :])
        with pytest.raises(TypeError, match="one library"):
            gather_pages(pool, other.asarray([[0]], "int64"))


class TestWritePages:
    @given(st.integers(1, 4), st.integers(0, 5), st.randoms(use_true_random=False))
    def test_is_the_loop(self, size, n, random):
        rng = np.random.default_rng(random.randrange(10**6))
        pool, x = rng.normal(size=(6, 2, size, 3)), rng.normal(size=(2, 2, n, 3))
        table, places = rng.integers(-1, 7, size=(2, 2)), rng.integers(-2, 2 * size + 2, size=(2, n))
        expected = pool.copy()
        for b in range(2):
            for i in range(n):
                if 0 <= places[b, i] < 2 * size and 0 <= table[b, places[b, i] // size] < 6:
                    expected[table[b, places[b, i] // size], :, places[b, i] % size] = x[b, :, i]
        np.testing.assert_array_equal(write_pages(pool, table, places, x), expected)
        np.testing.assert_array_equal(write_pages(pool[:, 0], table, places, x[:, 0]), expected[:, 0])

    def test_libraries(self, xp):
        pool, table = xp.asarray(np.full((2, 2, 1), NAN)), xp.asarray([[1, 0]], "int64")
        out = write_pages(pool, table, xp.asarray([[1, 2]], "int64"), xp.asarray([[[5.0], [6.0]]]))
        xp.check(out, [[[6.0], [NAN]], [[NAN], [5.0]]])
        none = xp.asarray(np.zeros((1, 0)), "int64")
        xp.check(write_pages(pool, none, xp.asarray([[0]], "int64"), xp.asarray([[[5.0]]])), xp.numpy(pool))
        xp.check(write_pages(pool, table, none, xp.asarray(np.zeros((1, 0, 1)))), xp.numpy(pool))

    def test_a_page_number_so_large_that_its_slots_overflow_writes_nothing(self):
        pool = np.zeros((2, 4, 1))
        for page in (2, 2**62, 2**63 - 1, -(2**62)):
            np.testing.assert_array_equal(
                write_pages(pool, np.array([[page]]), np.array([[1]]), np.ones((1, 1, 1))), pool
            )

    def test_a_text_alone_and_texts_in_two_axes(self):
        rng = np.random.default_rng(19)
        pool, x = rng.normal(size=(12, 2, 2, 3)), rng.normal(size=(2, 3, 2, 5, 3))
        table, places = rng.permutation(12).reshape(2, 3, 2), rng.integers(-1, 5, size=(2, 3, 5))
        expected = pool.copy()
        for b, c, i in np.ndindex(2, 3, 5):
            if 0 <= places[b, c, i] < 4:
                expected[table[b, c, places[b, c, i] // 2], :, places[b, c, i] % 2] = x[b, c, :, i]
        np.testing.assert_array_equal(write_pages(pool, table, places, x), expected)
        gathered = gather_pages(pool, table)
        for b, c, t in np.ndindex(2, 3, 2):
            np.testing.assert_array_equal(gathered[b, c, :, 2 * t : 2 * t + 2], pool[table[b, c, t]])
        alone = write_pages(pool, table[1, 2], places[1, 2], x[1, 2])
        mine = table[1, 2]
        np.testing.assert_array_equal(alone[mine], expected[mine])
        np.testing.assert_array_equal(np.delete(alone, mine, axis=0), np.delete(pool, mine, axis=0))

    def test_filling_pages_one_item_at_a_time_gives_the_text_back(self):
        x = random_arrays(17, (2, 2, 7, 3))[0]
        table, pool = np.array([[3, 0, 5], [1, 6, 2]]), np.full((8, 2, 3, 3), NAN)
        for t in range(7):
            pool = write_pages(pool, table, np.full((2, 1), t), x[:, :, t : t + 1])
        np.testing.assert_array_equal(gather_pages(pool, table)[..., :7, :], x)
        assert np.isnan(gather_pages(pool, table)[..., 7:, :]).all()

    def test_a_gradient_reaches_what_stayed_and_what_came(self, autograd):
        pool, x, g = random_arrays(18, (2, 2, 1), (1, 2, 1), (2, 2, 1))
        table, places = (autograd.asarray(a, "int64") for a in ([[1, 0]], [[1, 2]]))
        dpool, dx = autograd.vjp(
            lambda a, b: write_pages(a, table, places, b), *(autograd.asarray(a) for a in (g, pool, x))
        )
        autograd.check(dpool, [[[0.0], [g[0, 1, 0]]], [[g[1, 0, 0]], [0.0]]])
        autograd.check(dx, [[g[1, 1], g[0, 0]]])

    def test_bad_input(self, xp, other):
        pool, x = xp.asarray(np.ones((2, 2, 1))), xp.asarray(np.ones((1, 2, 1)))
        table, places = xp.asarray([[1, 0]], "int64"), xp.asarray([[1, 2]], "int64")
        with pytest.raises(ValueError, match=r"places has shape \(2,\)"):
            write_pages(pool, table, places[0, :], x)
        with pytest.raises(ValueError, match=r"x has shape \(1, 1, 1\).*\(1, 2, 1\)"):
            write_pages(pool, table, places, x[:, :1, :])
        with pytest.raises(ValueError, match="slots of a page"):
            write_pages(pool[:, :0, :], table, places, x)
        with pytest.raises(ValueError, match="pool has shape"):
            write_pages(pool[0, :, :], table, places, x)
        with pytest.raises(ValueError, match="block_table has shape"):
            write_pages(pool, table[0, 0], places, x)
        with pytest.raises(ValueError, match="places has shape"):
            write_pages(pool, table, places[0, 0], x)
        with pytest.raises(TypeError, match="places must hold signed integers"):
            write_pages(pool, table, x[:, :, 0], x)
        for i in range(4):
            given = [pool, table, places, x]
            given[i] = other.asarray(xp.numpy(given[i]))
            with pytest.raises(TypeError, match="one library"):
                write_pages(*given)


PARTLY_USED = [
    c
    for c in node_cases("Attention")
    if "nonpad_kv_seqlen" in c.inputs and c.attributes.get("is_causal") and c.inputs["Q"].dtype == np.float32
]


class TestPagedAttention:
    @pytest.mark.parametrize("size", [1, 2, 3, 4, 100])
    @pytest.mark.parametrize("n", [1, 3])
    @pytest.mark.parametrize("way", ["plain", "window", "sink", "softcap"])
    def test_is_attention_on_each_text_in_one_row(self, way, size, n):
        """Unequal lengths, one page short, exactly full, one text shorter than its queries, one empty."""
        (attend, left), lengths = WAYS[way], (7, 4, 8, 1, 0)
        k_pool, v_pool, table, n_of, texts = in_pages(19, lengths, size)
        q = random_arrays(20, (5, 4, n, 6))[0]
        ours = paged_attention(q, k_pool, v_pool, table, n_of, left=left, attend=attend)
        for b, (k, v) in enumerate(texts):
            mask = sliding_window(*positions(q[b], k), left=left, right=0)
            np.testing.assert_allclose(ours[b], attend(q[b], k, v, mask=mask), rtol=1e-12, atol=1e-14)

    @claims("O05")
    def test_case_o05(self, case, xp):
        given, expected = case("O05")["inputs"], case("O05")["expected"]
        pools = [xp.asarray(given[name]) for name in ("k_pool", "v_pool")]
        table, lengths = xp.asarray(given["block_table"], "int64"), xp.asarray(given["seq_lens"], "int64")
        xp.check(paged_attention(xp.asarray(given["q"]), *pools, table, lengths), expected["out"])
        xp.check(gather_pages(pools[1], table)[0, :3, :], expected["gathered_v"])
        neighbors = xp.asarray([[1, 2, 3]], "int64")
        xp.check(
            paged_attention(xp.asarray(given["q"]), *pools, neighbors, lengths),
            case("O05")["wrong"]["adjacent_pages"]["out"],
        )

    @claims("O05")
    @pytest.mark.parametrize("bad", [NAN, INF, -INF, 1e30])
    @pytest.mark.parametrize("stale", [0, 3, -1, 99, -(10**9)])
    def test_what_stands_past_the_end_is_never_read(self, xp, bad, stale):
        k_pool, v_pool, table, lengths, _ = in_pages(21, (5, 4, 0), 4)
        q = random_arrays(22, (3, 4, 1, 6))[0]
        clean = paged_attention(q, *(np.nan_to_num(x) for x in (k_pool, v_pool)), np.clip(table, 0, 4), lengths)
        spoiled = [np.where(np.isnan(x), bad, x) for x in (k_pool, v_pool)]
        used = np.arange(table.shape[1]) < -(-lengths[:, None] // 4)
        table = np.where(used, table, stale)
        arrays = [xp.asarray(x) for x in (q, *spoiled)] + [xp.asarray(x, "int64") for x in (table, lengths)]
        xp.check(paged_attention(*arrays), clean)

    @claims("O05")
    def test_a_table_row_that_was_another_texts(self):
        """A longer text used the row and the pages before; its keys are still there, and finite."""
        k_pool, v_pool, table, _, texts = in_pages(23, (8,), 2)
        for length in range(9):
            q = random_arrays(24, (1, 4, 1, 6))[0]
            k, v = (x[:, :length] for x in texts[0])
            mask = causal(*positions(q[0], k))
            ours = paged_attention(q, k_pool, v_pool, table, np.array([length]))
            np.testing.assert_allclose(ours[0], attention(q[0], k, v, mask=mask), rtol=1e-12, atol=1e-14)

    @claims("O05")
    def test_pages_that_the_window_has_left_may_belong_to_another_text(self, xp):
        k_pool, v_pool, table, lengths, texts = in_pages(42, (7,), 2)
        q = random_arrays(43, (1, 4, 1, 6))[0]
        for stale in (-1, 99, int(table[0, 3])):
            left_behind = table.copy()
            left_behind[0, :2] = stale  # positions 0 to 3; the window begins at 4
            given = [xp.asarray(x) for x in (q, k_pool, v_pool)]
            given += [xp.asarray(x, "int64") for x in (left_behind, lengths)]
            expected = attention(q[0], *(x[:, 4:] for x in texts[0]))
            xp.check(paged_attention(*given, left=2), expected[None])

    def test_a_missing_page_inside_the_length_shows(self, xp):
        pool, q = xp.asarray(np.ones((2, 2, 1))), xp.asarray(np.zeros((1, 1, 1)))
        for missing in (-1, 2):
            table = xp.asarray([[0, missing]], "int64")
            xp.check(paged_attention(q, pool, pool, table, xp.asarray([3], "int64")), [[[NAN]]])
            xp.check(paged_attention(q, pool, pool, table, xp.asarray([2], "int64")), [[[1.0]]])

    def test_agrees_with_the_reference_of_jax(self, jax, agree):
        reference = pytest.importorskip("jax.experimental.pallas.ops.tpu.ragged_paged_attention")
        jnp, lengths, n = jax.numpy, (7, 8, 2), 2
        k_pool, v_pool = random_arrays(25, (9, 2, 4, 8), (9, 2, 4, 8))
        q, table = random_arrays(26, (3, 4, n, 8))[0], np.array([[3, 1, 0], [7, 2, 8], [5, 0, 0]])
        both = np.empty((9, 4, 4, 8))
        both[:, :, 0::2], both[:, :, 1::2] = k_pool.swapaxes(1, 2), v_pool.swapaxes(1, 2)
        theirs = reference.ref_ragged_paged_attention(
            jnp.asarray(q.swapaxes(1, 2).reshape(-1, 4, 8), jnp.float32),
            jnp.asarray(both, jnp.float32),
            *(jnp.asarray(x, jnp.int32) for x in (lengths, table, range(0, 7, n), [3])),
            sm_scale=8**-0.5,
            sliding_window=3,
            soft_cap=2.0,
        )
        attend = functools.partial(attention, score=scaled_dot(cap=2.0))
        agree(
            paged_attention(q, k_pool, v_pool, table, np.array(lengths), left=2, attend=attend),
            np.asarray(theirs).reshape(3, n, 4, 8).swapaxes(1, 2),
            function="schedules.paged_attention",
            stranger="jax, reference of ragged paged attention",
            version=f"jax {jax.__version__}",
            dtype="float32",
            clash="keys and values in one pool, heads after slots, a window counts the own key",
        )

    def test_agrees_with_the_paged_attention_of_torch(self, torch, agree, monkeypatch):
        from torch.nn.attention import flex_attention as flex

        paged = pytest.importorskip("torch.nn.attention.experimental._paged_attention")
        monkeypatch.setattr(flex, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)
        lengths, pages = torch.tensor([7, 8, 2]), paged.PagedAttention(9, 4, 3, device="cpu")
        q, k, v = random_arrays(27, (3, 4, 2, 8), (3, 2, 8, 8), (3, 2, 8, 8))
        caches = [torch.zeros(1, 2, 36, 8, dtype=torch.float64) for _ in "kv"]
        for b in (1, 0, 2):
            pages.reserve(torch.tensor([b]), torch.tensor([8]))
        for b, n in enumerate(lengths):
            new = [torch.tensor(x[b : b + 1, :, :n]) for x in (k, v)]
            pages.assign(torch.tensor([b]), torch.arange(n)[None], *new, *caches)
        mask = flex.create_block_mask(
            lambda b, h, i, j: j <= lengths[b] - 2 + i, 3, 1, 2, 8, device="cpu", BLOCK_SIZE=(2, 4)
        )
        theirs = flex.flex_attention(
            torch.tensor(q),
            *(x.expand(3, -1, -1, -1) for x in caches),
            block_mask=pages.convert_logical_block_mask(mask, kv_len=lengths),
            enable_gqa=True,
        )
        pools = [x[0].reshape(2, 9, 4, 8).movedim(1, 0).numpy() for x in caches]
        agree(
            paged_attention(q, *pools, pages.page_table.numpy(), lengths.numpy()),
            theirs,
            function="schedules.paged_attention",
            stranger="torch PagedAttention with FlexAttention",
            version=f"torch {torch.__version__.partition('+')[0]}",
            dtype="float64",
            clash="one row of slots for all pages; -1 in the table for no page",
        )

    @pytest.mark.parametrize("node", PARTLY_USED, ids=lambda c: c.name)
    def test_agrees_with_onnx(self, node, agree):
        """Buffers of a fixed length, of which each sample uses a part: one page for each sample."""
        given, lengths = attention_arguments(node), node.inputs["nonpad_kv_seqlen"]

        def attend(q, k, v, mask):
            return attention(q, k, v, mask=mask & given["mask"], bias=given["bias"])

        table = np.arange(len(lengths))[:, None]
        agree(
            paged_attention(given["q"], given["k"], given["v"], table, lengths, attend=attend),
            node.outputs["Y"],
            function="schedules.paged_attention",
            stranger="onnx Attention, causal node cases with nonpad_kv_seqlen",
            version=f"onnx {onnx.__version__}",
            dtype="float32",
        )

    def test_decoding_from_pages_is_the_full_pass(self):
        """Write the new item, then read: two texts of unequal lengths, in pages that are not neighbors."""
        q, k, v = random_arrays(28, (2, 4, 7, 6), (2, 2, 7, 6), (2, 2, 7, 3))
        table, late = np.array([[3, 0, 5, 7], [1, 6, 2, 4]]), np.array([0, 2])
        pools = [np.full((8, 2, 2, x.shape[-1]), NAN) for x in (k, v)]
        for t in range(7):
            own = np.maximum(t - late, 0)
            new = [np.stack([x[b, :, i : i + 1] for b, i in enumerate(own)]) for x in (q, k, v)]
            pools = [write_pages(p, table, own[:, None], x) for p, x in zip(pools, new[1:], strict=True)]
            out = paged_attention(new[0], *pools, table, own + 1)
            for b, i in enumerate(own):
                full = attention(*(x[b, :, : i + 1] for x in (q, k, v)), mask=np.tri(i + 1, dtype=bool))
                np.testing.assert_allclose(out[b], full[:, -1:], rtol=1e-12)

    def test_shared_pages_are_a_shared_prefix(self):
        """Both tables begin with the same page; only the suffixes are stored twice."""
        q, kp, vp, k, v = random_arrays(29, (2, 4, 1, 6), (2, 4, 6), (2, 4, 3), (2, 2, 3, 6), (2, 2, 3, 3))
        pools = [np.full((4, 2, 4, x.shape[-1]), NAN) for x in (k, v)]
        for pool, prefix, suffix in zip(pools, (kp, vp), (k, v), strict=True):
            pool[2], pool[[0, 3], :, :3] = prefix, suffix
        out = paged_attention(q, *pools, np.array([[2, 0], [2, 3]]), np.array([7, 7]))
        np.testing.assert_allclose(out, shared_prefix_attention(q, kp, vp, k, v), rtol=1e-12)

    def test_pages_without_heads_and_texts_without_a_batch(self, xp):
        k_pool, v_pool, table, lengths, texts = in_pages(30, (5, 3), 2, heads=1)
        q = random_arrays(31, (2, 2, 6))[0]
        given = [xp.asarray(x[:, 0]) for x in (k_pool, v_pool)]
        table, lengths = xp.asarray(table, "int64"), xp.asarray(lengths, "int64")
        for b, (k, v) in enumerate(texts):
            expected = attention(q[b], k[0], v[0], mask=causal(*positions(q[b], k[0])))
            xp.check(paged_attention(xp.asarray(q), *given, table, lengths)[b, ...], expected)
            xp.check(paged_attention(xp.asarray(q[b]), *given, table[b, :], lengths[b]), expected)

    def test_gradients_leave_what_is_not_read_alone(self, autograd):
        k_pool, v_pool, table, lengths, _ = in_pages(32, (3,), 2)
        q, g = random_arrays(33, (1, 4, 1, 6), (1, 4, 1, 3))
        index = [autograd.asarray(x, "int64") for x in (table, lengths)]
        arrays = [autograd.asarray(x) for x in (g, q, k_pool, v_pool)]
        ours = autograd.vjp(lambda *a: paged_attention(*a, *index), *arrays)
        filled = [np.nan_to_num(x) for x in (k_pool, v_pool)]
        expected = finite_differences(lambda *a: paged_attention(*a, table, lengths), g, q, *filled)
        for one, two in zip(ours, expected, strict=True):
            autograd.check(one, two, tolerance=1e-8)

    def test_bad_input(self, xp, other):
        pool, q = xp.asarray(np.ones((3, 2, 4, 6))), xp.asarray(np.ones((2, 4, 1, 6)))
        table, lengths = xp.asarray([[0, 1], [2, 0]], "int64"), xp.asarray([3, 5], "int64")
        with pytest.raises(ValueError, match="k_pool has 2 pages, v_pool has 3"):
            paged_attention(q, pool[:2, ...], pool, table, lengths)
        with pytest.raises(ValueError, match="k_pool has 4 slots, v_pool has 3"):
            paged_attention(q, pool, pool[:, :, :3, :], table, lengths)
        with pytest.raises(ValueError, match=r"lengths has shape \(1,\).*\(2,\)"):
            paged_attention(q, pool, pool, table, lengths[:1])
        with pytest.raises(ValueError, match=r"q has shape \(4, 1, 6\)"):
            paged_attention(q[0, ...], pool, pool, table, lengths)
        for wrong, name in ((pool[0, 0, ...], "k_pool"), (pool[0, 0, 0, :], "k_pool")):
            with pytest.raises(ValueError, match=f"{name} has shape"):
                paged_attention(q, wrong, pool, table, lengths)
        with pytest.raises(ValueError, match="v_pool has shape"):
            paged_attention(q, pool, pool[0, 0, ...], table, lengths)
        with pytest.raises(ValueError, match="block_table has shape"):
            paged_attention(q, pool, pool, table[0, 0], lengths)
        with pytest.raises(ValueError, match="left"):
            paged_attention(q, pool, pool, table, lengths, left=-1)
        with pytest.raises(TypeError, match="attend"):
            paged_attention(q, pool, pool, table, lengths, attend=1)
        with pytest.raises(TypeError, match="lengths must hold signed integers"):
            paged_attention(q, pool, pool, table, q[:, 0, 0, 0])
        with pytest.raises(TypeError, match="one library"):
            paged_attention(q, pool, pool, other.asarray([[0, 1], [2, 0]], "int64"), lengths)


class TestRollingPositions:
    @pytest.mark.parametrize("window", [1, 3, 4])
    def test_is_the_list_of_who_was_written_last(self, xp, window):
        slots = list(range(-window, 0))
        for last in range(-1, 11):
            if last >= 0:
                slots[last % window] = last
            xp.check(rolling_positions(xp.asarray(last, "int64"), window=window), slots, dtype="int64")

    def test_bad_input(self, xp):
        with pytest.raises(ValueError, match="window is 0"):
            rolling_positions(xp.asarray([3], "int64"), window=0)
        with pytest.raises(TypeError, match="window"):
            rolling_positions(xp.asarray([3], "int64"), window=2.5)
        with pytest.raises(TypeError, match="last"):
            rolling_positions(xp.asarray([3.0]), window=2)


class TestRollingWrite:
    @given(st.integers(1, 5), st.integers(0, 12), st.integers(0, 9))
    def test_is_the_loop(self, window, n, start):
        cache, x = random_arrays(34, (2, window, 3), (2, n, 3))
        expected = cache.copy()
        for i in range(n):
            expected[:, (start + i) % window] = x[:, i]
        np.testing.assert_array_equal(rolling_write(cache, x, start), expected)
        np.testing.assert_array_equal(rolling_write(cache[0], x[0], np.array(start)), expected[0])

    @pytest.mark.parametrize("node", node_cases("TensorScatter"), ids=lambda c: c.name)
    def test_agrees_with_onnx(self, node, agree):
        cache, x = node.inputs["past_cache"], node.inputs["update"]
        heads = cache[:, None], x[:, None]
        ours = rolling_write(*(heads if cache.ndim == 3 else (cache, x)), node.inputs["write_indices"])
        agree(
            ours[:, 0] if cache.ndim == 3 else ours,
            node.outputs["present_cache"],
            function="schedules.rolling_write",
            stranger="onnx TensorScatter, all node cases",
            version=f"onnx {onnx.__version__}",
            dtype="float32",
        )

    def test_each_sample_has_its_own_start(self, xp):
        cache, x = random_arrays(35, (2, 1, 3, 2), (2, 1, 2, 2))
        ours = rolling_write(xp.asarray(cache), xp.asarray(x), xp.asarray([1, 5], "int64"))
        xp.check(ours, np.stack([rolling_write(cache[b], x[b], s) for b, s in enumerate((1, 5))]))

    def test_bad_input(self, xp):
        cache, x = xp.asarray(np.ones((2, 3, 4))), xp.asarray(np.ones((2, 1, 4)))
        with pytest.raises(ValueError, match="slots of the cache is 0"):
            rolling_write(cache[:, :0, :], x, 0)
        with pytest.raises(ValueError, match=r"x has shape \(1, 1, 4\)"):
            rolling_write(cache, x[:1, :, :], 0)
        with pytest.raises(ValueError, match=r"start has shape \(2,\).*\(\)"):
            rolling_write(cache, x, xp.asarray([0, 1], "int64"))
        with pytest.raises(ValueError, match="cache has shape"):
            rolling_write(cache[0, 0, :], x, 0)
        with pytest.raises(ValueError, match="x has shape"):
            rolling_write(cache, x[0, 0, :], 0)
        for start in (1.5, xp.asarray(1.0)):
            with pytest.raises(TypeError, match="offset"):
                rolling_write(cache, x, start)


class TestRollingDecode:
    @claims("W05")
    def test_case_w05(self, case, xp):
        given, expected = case("W05")["inputs"], case("W05")["expected"]["out_per_step"]
        q, k, v = (xp.asarray(given[name]) for name in "qkv")
        window, early = given["params"]["window"], case("W05")["wrong"]["rolled_one_early"]["out_per_step"]
        for slots, rows in ((window, expected), (window - 1, early)):
            caches = [xp.asarray(np.full((slots, 1), NAN)) for _ in "kv"]
            for t in range(6):
                new = [x[t : t + 1, :] for x in (q, k, v)]
                out, *caches = rolling_decode(new[0], *caches, *new[1:], t)
                if rows is expected or t >= slots:
                    xp.check(out, [rows[t]])

    @claims("W05")
    @pytest.mark.parametrize("window", [1, 2, 4, 8, 9, 20])
    @pytest.mark.parametrize("sizes", CHUNKINGS, ids=str)
    def test_any_pieces_are_the_sliding_window_over_the_whole(self, window, sizes):
        (q, k, v), p = text(36), np.arange(9)
        full = attention(q, k, v, mask=sliding_window(p, p, left=window - 1, right=0))
        out, k_cache, v_cache = rolled(q, k, v, window, sizes)
        np.testing.assert_allclose(out, full, rtol=1e-12, atol=1e-14)
        held = rolling_positions(np.array(8), window=window)
        for cache, x in ((k_cache, k), (v_cache, v)):
            np.testing.assert_array_equal(cache[:, held >= 0], x[:, held[held >= 0]])
            assert np.isnan(cache[:, held < 0]).all()

    @claims("W05")
    def test_the_window_is_full_exactly_when_the_cache_is(self):
        """All scores are equal and the values are the positions, so that the mean names the oldest key."""
        v = np.arange(12.0)[:, None]
        for window in (1, 2, 5):
            out = rolled(0 * v, 0 * v, v, window, (1,) * 12)[0]
            oldest = 2 * out[:, 0] - np.arange(12)
            np.testing.assert_allclose(oldest, np.maximum(0, np.arange(12) - window + 1), atol=1e-12)

    @given(st.lists(st.integers(1, 7), max_size=9), st.integers(1, 12))
    def test_is_the_loop(self, sizes, window):
        q, k, v = random_arrays(37, (11, 4), (11, 4), (11, 2))
        np.testing.assert_allclose(rolled(q, k, v, window, sizes)[0], loop(q, k, v, window - 1), rtol=1e-12, atol=1e-14)

    @pytest.mark.parametrize("kind", ["dynamic_window", "static_window"])
    def test_agrees_with_the_caches_of_transformers(self, kind, agree):
        kept = frozen("transformers_caches")
        window = int(kept["window"])
        out, k_cache, _ = rolled(kept["q"], kept["k"], kept["v"], window, kept["sizes"])
        held = kept[f"{kind}.kept"]
        assert held.shape[-2] == {"dynamic_window": window - 1, "static_window": window}[kind]
        in_order = np.argsort(rolling_positions(np.array(11), window=window))
        np.testing.assert_array_equal(k_cache[..., in_order[-held.shape[-2] :], :], held)
        agree(
            out,
            kept[f"{kind}.out"],
            function="schedules.rolling_decode",
            stranger="transformers, dynamic and static sliding window cache",
            version=kept.version,
            dtype="float64",
            clash="one of them keeps a key less; both keep the order of the text",
        )

    def test_writing_first_lets_early_queries_read_late_keys(self):
        """What a piece longer than one must not do: the slot of position 0 holds position 4 when query 1 asks."""
        v = np.arange(6.0)[:, None]
        cache, held = rolling_write(v[:4], v[4:], 4), rolling_positions(np.array(5), window=4)
        wrong = attention(np.zeros((1, 1)), 0 * cache, cache, mask=(held <= 5)[None])
        out, *_ = rolling_decode(np.zeros((2, 1)), np.zeros((4, 1)), v[:4], np.zeros((2, 1)), v[4:], 4)
        np.testing.assert_allclose(out, [[2.5], [3.5]])
        np.testing.assert_allclose(wrong, [[3.5]])

    def test_rotary_before_writing_and_a_bias_by_distance(self):
        (q, k, v), p, window = text(38), np.arange(9), 4
        frequencies = rotary_frequencies(6)
        q, k = (rotary(x, p, frequencies, pairing="half") for x in (q, k))
        mask = sliding_window(p, p, left=window - 1, right=0)
        np.testing.assert_allclose(rolled(q, k, v, window, (3, 1, 5))[0], attention(q, k, v, mask=mask), rtol=1e-12)
        caches, start = [np.zeros((2, window, x.shape[-1])) for x in (k, v)], 0
        full = attention(q, k, v, mask=mask, bias=alibi(p, p, alibi_slopes(4)))
        for cut in pieces(9, (3, 1, 5)):
            held = np.concatenate([rolling_positions(np.array(start - 1), window=window), p[cut]])
            attend = functools.partial(attention, bias=alibi(p[cut], held, alibi_slopes(4)))
            out, *caches = rolling_decode(q[:, cut], *caches, k[:, cut], v[:, cut], start, attend=attend)
            np.testing.assert_allclose(out, full[:, cut], rtol=1e-12)
            start = cut.stop

    def test_samples_of_unequal_lengths(self, xp):
        q, k_cache, v_cache, k, v = random_arrays(
            39, (2, 4, 3, 6), (2, 2, 4, 6), (2, 2, 4, 3), (2, 2, 3, 6), (2, 2, 3, 3)
        )
        starts = (1, 7)
        k_cache[0, :, 1:], v_cache[0, :, 1:] = NAN, INF
        ours = rolling_decode(*(xp.asarray(x) for x in (q, k_cache, v_cache, k, v)), xp.asarray(starts, "int64"))
        alone = [rolling_decode(q[b], k_cache[b], v_cache[b], k[b], v[b], s) for b, s in enumerate(starts)]
        for one, two in zip(ours, zip(*alone, strict=True), strict=True):
            xp.check(one, np.stack(two))

    def test_no_new_items_and_one(self, xp):
        q, k_cache, v_cache, k, v = random_arrays(40, (2, 0, 3), (2, 4, 3), (2, 4, 2), (2, 0, 3), (2, 0, 2))
        out, *caches = rolling_decode(*(xp.asarray(x) for x in (q, k_cache, v_cache, k, v)), 6)
        xp.check(out, np.zeros((2, 0, 2)))
        xp.check(caches[0], k_cache)
        xp.check(caches[1], v_cache)

    def test_gradients_leave_empty_slots_alone(self, autograd):
        g, q, k_cache, v_cache, k, v = random_arrays(41, (2, 2), (2, 3), (4, 3), (4, 2), (2, 3), (2, 2))
        expected = finite_differences(lambda *a: rolling_decode(*a, 2)[0], g, q, k_cache, v_cache, k, v)
        k_cache[2:], v_cache[2:] = NAN, NAN
        ours = autograd.vjp(
            lambda *a: rolling_decode(*a, 2)[0], *(autograd.asarray(a) for a in (g, q, k_cache, v_cache, k, v))
        )
        for one, two in zip(ours, expected, strict=True):
            autograd.check(one, two, tolerance=1e-8)

    def test_bad_input(self, xp):
        q = xp.asarray(np.ones((2, 1, 3)))
        cache = xp.asarray(np.ones((2, 4, 3)))
        with pytest.raises(ValueError, match="slots of the cache"):
            rolling_decode(q, cache[:, :0, :], cache[:, :0, :], q, q, 0)
        with pytest.raises(ValueError, match="q has 4 items, k has 1"):
            rolling_decode(cache, cache, cache, q, q, 0)
        with pytest.raises(ValueError, match="v has shape"):
            rolling_decode(q, cache, cache, q, q[:, :, :2], 0)
        with pytest.raises(ValueError, match="q has shape"):
            rolling_decode(q[0, 0, :], cache, cache, q, q, 0)
        with pytest.raises(TypeError, match="attend"):
            rolling_decode(q, cache, cache, q, q, 0, attend=1)


class TestBytes:
    @pytest.mark.parametrize(("heads", "d", "e"), [(8, 16, 16), (2, 16, 16), (1, 16, 16), (1, 64, 0)])
    def test_the_formula_counts_the_arrays(self, heads, d, e):
        """All heads, few, one, and a latent that is key and value at once."""
        k, v = np.zeros((heads, 0, d), np.float16), np.zeros((heads, 0, e), np.float16)
        one = np.zeros((heads, 5, d), np.float16), np.zeros((heads, 5, e), np.float16)
        _, k, v = decode(np.zeros((heads, 5, d), np.float16), k, v, *one, attend=lambda q, k, v, mask: q)
        assert k.nbytes + v.nbytes == cache_bytes(np.array(5.0), heads=heads, d=d, e=e)

    @given(st.integers(1, 16), st.integers(0, 100))
    def test_less_than_a_page_is_wasted(self, size, length):
        pages = -(-length // size)
        assert 0 <= pages * size - length <= size - 1


@pytest.mark.parametrize(("name", "invariant"), held("schedules/cache"))
def test_shared_invariants(xp, name, invariant):
    invariant(SUBJECTS[name], xp)
