"""softlookup.heads.grouped_query: which query head reads which key head, without copies, and what it saves."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from invariants import held
from libraries import finite_differences
from oracles.freeze import frozen
from oracles.onnx_cases import attention_arguments, node_cases, onnx, reference_attention
from subjects import SUBJECTS

from softlookup.heads import cache_bytes, grouped_query_attention, multi_head_attention, pool_heads, repeat_heads
from softlookup.lookup import attention, attention_weights, hardmax, scaled_dot
from softlookup.normalizers import sink_softmax

INF, NAN = math.inf, math.nan
claims = pytest.mark.claims


def loop(q, k, v, mask=None):
    """Head by head and row by row, in plain Python."""
    heads, n, d = q.shape
    out = np.zeros((heads, n, v.shape[-1]))
    for h, i in np.ndindex(heads, n):
        keys, values = k[h // (heads // len(k))], v[h // (heads // len(v))]
        read = [j for j in range(len(keys)) if mask is None or mask[h, i, j]]
        scores = [math.fsum(a * b for a, b in zip(q[h, i], keys[j], strict=True)) / math.sqrt(d) for j in read]
        total = math.fsum(math.exp(s) for s in scores)
        for j, s in zip(read, scores, strict=True):
            for c in range(v.shape[-1]):
                out[h, i, c] += math.exp(s) / total * values[j, c]
    return out


def random_heads(seed, heads=4, k_heads=2, v_heads=2, n=3, m=5, lead=()):
    rng = np.random.default_rng(seed)
    return [rng.normal(size=(*lead, *s)) for s in ((heads, n, 2), (k_heads, m, 2), (v_heads, m, 3))]


def version(module):
    return f"{module.__name__} {module.__version__.partition('+')[0]}"


class TestGroupedQueryAttention:
    def test_neighbors_share_by_hand(self, xp):
        """Three times as good a key has three quarters of the budget; each pair of heads has values of its own."""
        q = xp.asarray([[[1.0]], [[0.0]], [[1.0]], [[0.0]]])
        k = xp.asarray([[[math.log(3)], [0.0]], [[0.0], [math.log(3)]]])
        v = xp.asarray([[[0.0], [4.0]], [[0.0], [40.0]]])
        xp.check(grouped_query_attention(q, k, v), [[[1.0]], [[2.0]], [[30.0]], [[20.0]]])

    @given(st.integers(0, 99), st.integers(1, 3), st.integers(1, 3), st.integers(0, 3), st.booleans())
    def test_is_the_loop(self, seed, k_heads, v_heads, m, masked):
        q, k, v = random_heads(seed, heads=6 if 3 in (k_heads, v_heads) else 4, k_heads=k_heads, v_heads=v_heads, m=m)
        mask = np.random.default_rng(seed).random((len(q), 3, m)) < 0.6 if masked else None
        np.testing.assert_allclose(grouped_query_attention(q, k, v, mask=mask), loop(q, k, v, mask), atol=1e-12)

    @claims("H01")
    def test_case_h01_consecutive_query_heads_share(self, xp, case):
        c = case("H01")
        q, k, v = (xp.asarray(c["inputs"][name]) for name in "qkv")
        ours = grouped_query_attention(q, k, v, score=scaled_dot(scale=1.0))
        xp.check(ours, c["expected"]["out"])
        xp.check(attention(q, k, v, score=scaled_dot(scale=1.0)), c["expected"]["out"])
        tiled = attention(q, *(xp.asarray(np.tile(c["inputs"][n], (2, 1, 1))) for n in "kv"), score=scaled_dot(scale=1))
        xp.check(tiled, c["wrong"]["tiled_0101"]["out"])
        assert np.abs(xp.numpy(ours) - c["wrong"]["tiled_0101"]["out"]).max() > 10

    @claims("H01")
    @pytest.mark.parametrize(("heads", "kv_heads"), [(1, 1), (4, 4), (4, 1), (6, 2), (6, 3), (8, 4)])
    def test_case_h01_head_h_reads_key_head_h_over_g(self, xp, heads, kv_heads):
        """Values that name their head, and keys that are all alike: the result is the number of the head."""
        q, k = xp.asarray(np.ones((heads, 1, 1))), xp.asarray(np.ones((kv_heads, 2, 1)))
        v = xp.asarray(np.broadcast_to(np.arange(float(kv_heads))[:, None, None], (kv_heads, 2, 1)))
        expected = [[[float(h * kv_heads // heads)]] for h in range(heads)]
        for function in (grouped_query_attention, attention):
            xp.check(function(q, k, v), expected)
        agree_with_tiling = all(h % kv_heads == h * kv_heads // heads for h in range(heads))
        assert agree_with_tiling == (kv_heads in (1, heads))

    def test_agrees_with_torch(self, torch, agree):
        for k_heads, v_heads in ((2, 2), (1, 1), (4, 4), (2, 1), (1, 4)):
            q, k, v = random_heads(0, k_heads=k_heads, v_heads=v_heads, lead=(2,))
            mask = np.tri(3, 5, 2, dtype=bool)
            theirs = torch.nn.functional.scaled_dot_product_attention(
                *map(torch.tensor, (q, k, v)), attn_mask=torch.tensor(mask), enable_gqa=True
            )
            agree(
                grouped_query_attention(q, k, v, mask=mask),
                theirs,
                function="heads.grouped_query_attention",
                stranger="torch scaled_dot_product_attention, enable_gqa",
                version=version(torch),
                dtype="float64",
                clash="grouped heads only when asked for",
            )

    def test_agrees_with_the_grouped_cases_of_onnx(self, agree):
        compared = 0
        for node in node_cases("Attention"):
            a = attention_arguments(node)
            if a["q"].shape[1] == a["k"].shape[1] or node.inputs["Q"].dtype != np.float32:
                continue
            compared += 1
            score = scaled_dot(scale=a["scale"], cap=a["cap"])
            ours = grouped_query_attention(a["q"], a["k"], a["v"], mask=a["mask"], bias=a["bias"], score=score)
            theirs = node.outputs["Y"]
            agree(
                ours if theirs.ndim == 4 else np.swapaxes(ours, 1, 2).reshape(theirs.shape),
                theirs,
                function="heads.grouped_query_attention",
                stranger="onnx node cases of Attention with grouped heads",
                version=version(onnx),
                dtype="float32",
            )
        assert compared > 3

    def test_the_reference_of_onnx_wants_as_many_key_heads_as_value_heads(self):
        q, k, v = random_heads(1, k_heads=2, v_heads=1, lead=(1,))
        with pytest.raises(ValueError, match="multiply|broadcast"):
            reference_attention(q, k, v)

    def test_all_slots_are_those_of_attention(self, xp):
        rng = np.random.default_rng(2)
        q, k, v = (xp.asarray(a) for a in random_heads(2, k_heads=2, v_heads=4, lead=(2,)))
        mask, bias = xp.asarray(rng.random((4, 3, 5)) < 0.6, "bool"), xp.asarray(rng.normal(size=(2, 4, 3, 5)))
        for normalize in (sink_softmax(xp.asarray(rng.normal(size=(4, 1)))), hardmax):
            options = {"mask": mask, "bias": bias, "score": scaled_dot(cap=1.0), "normalize": normalize}
            xp.check(grouped_query_attention(q, k, v, **options), xp.numpy(attention(q, k, v, **options)))

    def test_batches_broadcast(self, xp):
        q, k, v = random_heads(3)
        rng = np.random.default_rng(3)
        k, v = rng.normal(size=(2, 1, *k.shape)), rng.normal(size=(3, *v.shape))
        mask, bias = rng.random((2, 1, 4, 3, 5)) < 0.7, rng.normal(size=(4, 1, 5))
        expected = [[loop_with_bias(q, k[a, 0], v[b], mask[a, 0], bias) for b in range(3)] for a in range(2)]
        q, k, v, bias = (xp.asarray(a) for a in (q, k, v, bias))
        xp.check(grouped_query_attention(q, k, v, mask=xp.asarray(mask, "bool"), bias=bias), expected)

    def test_a_batch_of_queries_with_masks_of_their_own_reads_the_same_keys(self, xp):
        (q, k, v), (others, _, _) = random_heads(15), random_heads(16)
        mask = np.random.default_rng(15).random((2, 4, 3, 5)) < 0.7
        expected = [loop(one, k, v, allowed) for one, allowed in zip((q, others), mask, strict=True)]
        arrays = [xp.asarray(a) for a in (np.stack([q, others]), k, v)]
        xp.check(grouped_query_attention(*arrays, mask=xp.asarray(mask, "bool")), expected)

    def test_keys_and_values_are_read_in_place(self):
        """The score gets each key head once, whatever the number of query heads."""
        q, k, v = random_heads(4, heads=8)
        shapes = []

        def score(q, k):
            shapes.append((q.shape, k.shape))
            return q @ k.mT

        grouped_query_attention(q, k, v, mask=np.ones((3, 5), dtype=bool), score=score)
        assert shapes == [((2, 4, 3, 2), (2, 1, 5, 2))]

    def test_more_value_heads_than_query_heads(self):
        """Grouped values: the query heads are written out instead; the weights are computed once."""
        q, k, v = random_heads(5, heads=2, k_heads=2, v_heads=6)
        w = attention_weights(q, k)
        expected = [w[h // 3] @ v[h] for h in range(6)]
        np.testing.assert_allclose(grouped_query_attention(repeat_heads(q, heads=6), k, v), expected, atol=1e-12)

    def test_decoding_with_a_cache_is_the_full_pass(self, xp):
        """Token by token the same rows, and those before stay: the mask is causal, and the cache has few heads."""
        q, k, v = random_heads(6, n=6, m=6, k_heads=2, v_heads=1)
        causal = xp.asarray(np.tri(6, dtype=bool), "bool")
        full = xp.numpy(grouped_query_attention(*map(xp.asarray, (q, k, v)), mask=causal))
        for i in range(6) if not xp.compiles else (0, 3, 5):
            row = grouped_query_attention(*(xp.asarray(a) for a in (q[:, i : i + 1], k[:, : i + 1], v[:, : i + 1])))
            np.testing.assert_allclose(xp.numpy(row)[:, 0], full[:, i], atol=xp.tolerance)

    def test_nan_stays_where_it_may_be_read(self, xp):
        q, k, v = random_heads(7, m=4)
        mask = np.ones((4, 3, 4), dtype=bool)
        mask[:, :, 1] = False  # nobody reads item one
        mask[1, :, 2] = mask[0, 1, 2] = False  # of the first group only head zero reads item two, but for one query
        mask[2] = False  # and head two reads nothing
        clean = xp.numpy(grouped_query_attention(*map(xp.asarray, (q, k, v)), mask=xp.asarray(mask, "bool")))
        for bad in (NAN, INF):
            for spoiled in (k, v):
                spoiled[:, 1] = bad
            v[0, 2] = bad
            ours = xp.numpy(grouped_query_attention(*map(xp.asarray, (q, k, v)), mask=xp.asarray(mask, "bool")))
            reads = mask[:2, :, 2]
            np.testing.assert_allclose(ours[:2][~reads], clean[:2][~reads], atol=xp.tolerance)
            assert not np.isfinite(ours[:2][reads]).any()
            np.testing.assert_allclose(ours[2:], clean[2:], atol=xp.tolerance)
            assert np.all(ours[2] == 0)

    def test_gradients_are_those_of_finite_differences(self, autograd):
        q, k, v = random_heads(8, n=2, m=3, v_heads=1)
        g, mask = np.random.default_rng(8).normal(size=(4, 2, 3)), np.random.default_rng(8).random((4, 2, 3)) < 0.6
        mask[:, 0] = False
        expected = finite_differences(lambda *a: grouped_query_attention(*a, mask=mask), g, q, k, v)
        allowed = autograd.asarray(mask, "bool")
        arrays = [autograd.asarray(a) for a in (g, q, k, v)]
        ours = autograd.vjp(lambda *a: grouped_query_attention(*a, mask=allowed), *arrays)
        for one, two in zip(ours, expected, strict=True):
            autograd.check(one, two, tolerance=1e-8)

    def test_a_hidden_nan_leaves_gradients_finite(self, autograd):
        q, k, v = random_heads(9, m=3)
        k[:, 1], v[:, 1] = NAN, INF
        mask = autograd.asarray(np.array([True, False, True]), "bool")
        arrays = [autograd.asarray(a) for a in (np.ones((4, 3, 3)), q, k, v)]
        ours = autograd.vjp(lambda *a: grouped_query_attention(*a, mask=mask), *arrays)
        theirs = autograd.vjp(grouped_query_attention, *arrays[:2], *(autograd.asarray(a[:, [0, 2]]) for a in (k, v)))
        autograd.check(ours[0], autograd.numpy(theirs[0]))
        for one, two in zip(ours[1:], theirs[1:], strict=True):
            np.testing.assert_allclose(autograd.numpy(one)[:, [0, 2]], autograd.numpy(two), atol=1e-12)
            assert np.all(autograd.numpy(one)[:, 1] == 0)

    def test_thousands_of_items_and_narrow_types(self, xp):
        for dtype in ("float32", *xp.narrow_dtypes):
            q, k = xp.asarray(np.ones((4, 1, 1)), dtype), xp.asarray(np.ones((2, 4096, 1)), dtype)
            v = xp.asarray(np.broadcast_to(np.array([1.0, 3.0])[:, None, None], (2, 4096, 1)), dtype)
            xp.check(grouped_query_attention(q, k, v), [[[1.0]], [[1.0]], [[3.0]], [[3.0]]], dtype=dtype)

    def test_bad_input(self, xp, other):
        host = random_heads(10, heads=8)
        q, k, v = map(xp.asarray, host)

        def ones(*shape):
            return xp.asarray(np.ones(shape))

        for heads in (3, 16, 0):
            with pytest.raises(ValueError, match=f"k has {heads} heads, which does not divide q's 8"):
                grouped_query_attention(q, ones(heads, 5, 2), v)
            with pytest.raises(ValueError, match=f"v has {heads} heads, which does not divide q's 8"):
                grouped_query_attention(q, k, ones(heads, 5, 3))
        for at, name in enumerate("qkv"):
            given = [q, k, v]
            given[at] = given[at][0, ...]
            with pytest.raises(ValueError, match=rf"\b{name} has shape \(\d, \d\); it needs the axes \(..., H"):
                grouped_query_attention(*given)
            given[at] = other.asarray(host[at])
            with pytest.raises(TypeError, match="library"):
                grouped_query_attention(*given)
        with pytest.raises(ValueError, match="k has 5 items, v has 4"):
            grouped_query_attention(q, k, v[:, :4, :])
        with pytest.raises(ValueError, match="q has 2 columns, k has 3"):
            grouped_query_attention(q, ones(2, 5, 3), v)
        with pytest.raises(ValueError, match=r"q has \(2,\), k has \(\), v has \(3,\)"):
            grouped_query_attention(ones(2, 8, 3, 2), k, ones(3, 2, 5, 3))
        for shape in ((3, 3, 5), (1, 8, 3, 5)):
            with pytest.raises(ValueError, match="mask has shape"):
                grouped_query_attention(q, k, v, mask=xp.asarray(np.ones(shape), "bool"))
            with pytest.raises(ValueError, match="bias has shape"):
                grouped_query_attention(q, k, v, bias=ones(*shape))
        with pytest.raises(TypeError, match="mask must be boolean"):
            grouped_query_attention(q, k, v, mask=ones(3, 5))


def loop_with_bias(q, k, v, mask, bias):
    """The loop; a bias is one more column of queries and keys, for each pair its own."""
    heads, n, m = mask.shape
    bias = np.broadcast_to(bias, mask.shape) * math.sqrt(2 + n * m)
    scaled = q * math.sqrt(2 + n * m) / math.sqrt(2)
    out = np.zeros((heads, n, v.shape[-1]))
    for h in range(heads):
        columns = np.zeros((n, n * m)), np.zeros((m, n * m))
        for i, j in np.ndindex(n, m):
            columns[0][i, i * m + j], columns[1][j, i * m + j] = bias[h, i, j], 1.0
        query = np.concatenate([scaled[h], columns[0]], axis=-1)
        key = np.concatenate([k[h // (heads // len(k))], columns[1]], axis=-1)
        out[h] = loop(query[None], key[None], v[[h // (heads // len(v))]], mask[[h]])[0]
    return out


class TestRepeatHeads:
    def test_agrees_with_transformers(self, agree):
        f = frozen("transformers_repeat_kv")
        agree(
            repeat_heads(f["k"], heads=6),
            f["out"],
            function="heads.repeat_heads",
            stranger="transformers repeat_kv",
            version=f.version,
            dtype="float64",
            exact=True,
        )

    @claims("H01")
    def test_case_h01_the_order_of_repetition(self, xp):
        x = xp.asarray([[[1.0]], [[2.0]]])
        xp.check(repeat_heads(x, heads=4), [[[1.0]], [[1.0]], [[2.0]], [[2.0]]])
        xp.check(repeat_heads(x, heads=2), xp.numpy(x))

    def test_written_out_heads_change_nothing(self, xp):
        q, k, v = map(xp.asarray, random_heads(11, heads=6, k_heads=3, v_heads=2))
        ours = grouped_query_attention(q, k, v)
        xp.check(attention(q, repeat_heads(k, heads=6), repeat_heads(v, heads=6)), xp.numpy(ours))
        xp.check(attention(q, k, v), xp.numpy(ours))

    def test_bad_input(self, xp):
        x = xp.asarray(np.ones((3, 4, 2)))
        for heads in (8, 2):
            with pytest.raises(ValueError, match=f"x has 3 heads, which does not divide heads = {heads}"):
                repeat_heads(x, heads=heads)
        with pytest.raises(ValueError, match="heads is 0; it must be positive"):
            repeat_heads(x, heads=0)
        with pytest.raises(TypeError, match="heads must be an integer"):
            repeat_heads(x, heads=3.0)
        with pytest.raises(ValueError, match="x has 0 heads"):
            repeat_heads(xp.asarray(np.ones((0, 4, 2))), heads=2)
        with pytest.raises(ValueError, match=r"x has shape \(4, 2\)"):
            repeat_heads(x[0, ...], heads=2)


class TestPoolHeads:
    def test_means_by_hand(self, xp):
        w = xp.asarray([[[1.0, 0.0]], [[3.0, 2.0]], [[10.0, 0.0]], [[20.0, 4.0]]])
        xp.check(pool_heads(w, heads=2), [[[2.0, 1.0]], [[15.0, 2.0]]])
        xp.check(pool_heads(w, heads=1), [[[8.5, 1.5]]])
        xp.check(pool_heads(w, heads=4), xp.numpy(w))

    def test_pooled_projections_give_pooled_keys(self, xp):
        rng = np.random.default_rng(12)
        x, w = xp.asarray(rng.normal(size=(5, 3))), xp.asarray(rng.normal(size=(6, 3, 2)))
        xp.check(x @ pool_heads(w, heads=2), xp.numpy(pool_heads(x @ w, heads=2)))

    def test_equal_heads_lose_nothing(self, xp):
        few = xp.asarray(np.random.default_rng(13).normal(size=(2, 3, 4)))
        xp.check(pool_heads(repeat_heads(few, heads=6), heads=2), xp.numpy(few))

    def test_a_layer_whose_heads_agree_in_groups_survives_the_conversion(self):
        rng = np.random.default_rng(14)
        x, w_q, w_o = (rng.normal(size=size) for size in ((5, 6), (4, 6, 3), (4, 2, 6)))
        w_k, w_v = (repeat_heads(rng.normal(size=(2, 6, width)), heads=4) for width in (3, 2))
        before = multi_head_attention(x, x, w_q, w_k, w_v, w_o)
        few = (pool_heads(w, heads=2) for w in (w_k, w_v))
        np.testing.assert_allclose(multi_head_attention(x, x, w_q, *few, w_o), before, atol=1e-12)

    def test_bad_input(self, xp):
        w = xp.asarray(np.ones((6, 3, 2)))
        for heads in (4, 12):
            with pytest.raises(ValueError, match=f"heads is {heads}, which does not divide the 6 heads of w"):
                pool_heads(w, heads=heads)
        with pytest.raises(ValueError, match="heads is -1; it must be positive"):
            pool_heads(w, heads=-1)
        with pytest.raises(ValueError, match=r"w has shape \(3, 2\)"):
            pool_heads(w[0, ...], heads=1)


class TestCacheBytes:
    def test_by_hand(self, xp):
        """Two bytes, 80 layers, 8 heads, keys and values of width 128: 327,680 bytes for a token."""
        n = xp.asarray([0.0, 1.0, 4096.0])
        xp.check(cache_bytes(n, heads=8, d=128, layers=80), [0.0, 327680.0, 1342177280.0])
        xp.check(cache_bytes(n, heads=2, d=3, e=5, layers=7, size=0.5), [0.0, 56.0, 229376.0])
        xp.check(cache_bytes(n, heads=1, d=576, e=0), [0.0, 1152.0, 4718592.0])

    def test_is_the_size_of_the_arrays(self):
        k, v = np.zeros((3, 7, 5), dtype="float16"), np.zeros((3, 7, 4), dtype="float16")
        assert cache_bytes(np.asarray(7.0), heads=3, d=5, e=4) == k.nbytes + v.nbytes

    def test_bad_input(self, xp):
        n = xp.asarray([1.0])
        for name, bad in (("heads", 0), ("d", -1), ("e", -1), ("layers", 0), ("size", 0), ("size", NAN)):
            with pytest.raises(ValueError, match=rf"\b{name} is"):
                cache_bytes(n, **({"heads": 1, "d": 1} | {name: bad}))
        for name in ("heads", "d", "e", "layers", "size"):
            with pytest.raises(TypeError, match=rf"\b{name} must be"):
                cache_bytes(n, **({"heads": 1, "d": 1} | {name: "two"}))
        with pytest.raises(TypeError, match="n must be an array"):
            cache_bytes(4096, heads=1, d=1)


@pytest.mark.parametrize(("name", "invariant"), held("heads/grouped_query"))
def test_shared_invariants(xp, name, invariant):
    invariant(SUBJECTS[name], xp)
