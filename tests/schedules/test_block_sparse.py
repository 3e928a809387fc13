"""softlookup.schedules.block_sparse: attention over the listed blocks of a mask."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from invariants import held
from libraries import finite_differences
from subjects import SUBJECTS

from softlookup.lookup import attention, attention_scores, log_sum_exp, scaled_dot
from softlookup.masks import block_summary, causal, document_ids, global_local, same_document, sink_window
from softlookup.schedules import (
    block_layout,
    block_sparse_attention,
    merge,
    online_attention,
    partial_attention,
    visited_pairs,
)
from softlookup.schedules.block_sparse import BlockLayout

INF, NAN = math.inf, math.nan


def random_arrays(seed, *shapes):
    rng = np.random.default_rng(seed)
    return [rng.normal(size=shape) for shape in shapes]


def random_mask(seed, n, m):
    """A mask whose blocks of various sizes are often empty and often full."""
    rng = np.random.default_rng(seed)
    rows, columns = rng.integers(1, 5, size=2)
    coarse = rng.choice([0.0, 0.5, 1.0], size=(-(-n // rows), -(-m // columns)), p=[0.4, 0.3, 0.3])
    return rng.random((n, m)) < np.kron(coarse, np.ones((rows, columns)))[:n, :m]


def masks(n):
    """The rules of the page, on n items that read each other."""
    at = np.arange(n)
    ids = document_ids(np.array([0, n // 2, n // 2 + n // 3, n]), size=n)
    far = at % 7 == 0
    return {
        "causal": causal(at, at),
        "window": sink_window(at, at, sinks=0, left=2),
        "window and sinks": sink_window(at, at, sinks=1, left=2),
        "documents": same_document(ids, ids),
        "global and local": global_local(at, at, far, far, left=1, right=1),
        "all": np.ones((n, n), dtype=bool),
        "none": np.zeros((n, n), dtype=bool),
    }


def loop(q, k, v, layout, mask):
    """Pair by pair, from the definition of the set that a query reads."""
    rows, columns, partial, full = layout
    out, lse = np.zeros((len(q), v.shape[1])), np.full(len(q), -INF)
    for i in range(len(q)):
        a = i // rows
        read = [
            j
            for j in range(len(k))
            if j // columns in full[a] or (j // columns in partial[a] and (mask is None or mask[i, j]))
        ]
        e = [math.exp(math.fsum(q[i] * k[j]) / math.sqrt(q.shape[1])) for j in read]
        if e:
            lse[i] = math.log(math.fsum(e))
            out[i] = [math.fsum(x * v[j, c] for x, j in zip(e, read, strict=True)) / math.fsum(e) for c in range(2)]
    return out, lse


def same(ours, expected, tolerance=1e-12):
    for a, b in zip(ours, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


class TestBlockLayout:
    def test_by_hand(self, xp):
        mask = xp.asarray(np.tri(6, dtype=bool), "bool")
        expected = (2, 2, ((0,), (1,), (2,)), ((), (0,), (0, 1)))
        assert block_layout(mask, rows=2, columns=2) == expected
        assert block_layout(mask, rows=4, columns=3) == (4, 3, ((0, 1), (1,)), ((), (0,)))

    @given(st.integers(0, 9), st.integers(0, 9), st.integers(1, 4), st.integers(1, 4), st.integers(0, 2**32 - 1))
    def test_is_the_loop(self, n, m, rows, columns, seed):
        mask = random_mask(seed, n, m)
        layout = block_layout(mask, rows=rows, columns=columns)
        assert (layout.rows, layout.columns) == (rows, columns)
        assert len(layout.partial) == len(layout.full) == -(-n // rows)
        for a in range(-(-n // rows)):
            blocks = [mask[a * rows : (a + 1) * rows, c * columns : (c + 1) * columns] for c in range(-(-m // columns))]
            assert layout.full[a] == tuple(c for c, block in enumerate(blocks) if block.all())
            assert layout.partial[a] == tuple(c for c, block in enumerate(blocks) if block.any() and not block.all())

    def test_is_plain_and_hashable(self, xp):
        layout = block_layout(xp.asarray(np.tri(5, dtype=bool), "bool"), rows=np.int64(2), columns=np.int64(2))
        assert hash(layout) == hash(BlockLayout(*layout))
        kinds = {type(x) for x in (layout.rows, *(c for row in (*layout.partial, *layout.full) for c in row))}
        assert kinds == {int}

    @pytest.mark.parametrize("lead", [(3,), (2, 3), (1, 1)])
    def test_several_masks_make_one_layout(self, lead):
        tables = np.stack([random_mask(seed, 8, 9) for seed in range(math.prod(lead))])
        layout = block_layout(tables.reshape(*lead, 8, 9), rows=3, columns=2)
        summaries = [block_summary(table, rows=3, columns=2) for table in tables]
        some, every = np.max(summaries, axis=0) > 0, np.min(summaries, axis=0) == 2
        for a in range(3):
            assert layout.full[a] == tuple(np.flatnonzero(every[a]))
            assert layout.partial[a] == tuple(np.flatnonzero(some[a] & ~every[a]))

    @pytest.mark.parametrize("name", [*masks(1)])
    @pytest.mark.parametrize(("rows", "columns"), [(4, 4), (2, 8)])
    def test_agrees_with_the_block_mask_of_torch(self, torch, agree, name, rows, columns):
        """Block for block, both ways round; all blocks are whole here."""
        from torch.nn.attention.flex_attention import create_block_mask

        mask = masks(16)[name]
        table = torch.tensor(mask)
        theirs = create_block_mask(
            lambda b, h, i, j: table[i, j], None, None, 16, 16, device="cpu", BLOCK_SIZE=(rows, columns)
        )
        named = {"": ("kv_num_blocks", "kv_indices"), "turned": ("q_num_blocks", "q_indices")}
        ours = {"": block_layout(mask, rows=rows, columns=columns)}
        ours["turned"] = block_layout(mask.T, rows=columns, columns=rows)
        for way, names in named.items():
            listed = lists(theirs, (*names, *(f"full_{name}" for name in names)))
            assert ours[way][2:] == listed
            agree(
                codes(ours[way], 16 // ours[way].columns),
                codes((0, 0, *listed), 16 // ours[way].columns),
                function="schedules.block_layout",
                stranger="torch create_block_mask, 1 for a partial and 2 for a full block",
                version=f"torch {torch.__version__.partition('+')[0]}",
                dtype="int64",
                exact=True,
                clash="a smaller last block counts as partial",
            )

    def test_torch_asks_the_mask_in_a_smaller_last_block(self, torch):
        from torch.nn.attention.flex_attention import create_block_mask

        theirs = create_block_mask(lambda b, h, i, j: i >= 0, None, None, 6, 7, device="cpu", BLOCK_SIZE=4)
        names = ("kv_num_blocks", "kv_indices", "full_kv_num_blocks", "full_kv_indices")
        assert lists(theirs, names) == (((1,), (0, 1)), ((0,), ()))
        assert block_layout(np.ones((6, 7), dtype=bool), rows=4, columns=4)[2:] == (((), ()), ((0, 1), (0, 1)))

    @pytest.mark.parametrize("name", ["causal", "window and sinks", "documents", "all"])
    def test_agrees_with_splash_attention(self, jax, agree, name):
        """The same three codes; blocks that no row visits are cut off there, and a mask of none is refused."""
        splash = pytest.importorskip("jax.experimental.pallas.ops.tpu.splash_attention")
        from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask_info as info

        mask = masks(16)[name]
        heads = splash.splash_attention_mask.MultiHeadMask([splash.splash_attention_mask.NumpyMask(mask)])
        theirs, _ = info.process_mask(heads, (4, 4))
        table = np.zeros((4, 4))
        for a, c in np.ndindex(theirs.block_mask[0].shape):
            if theirs.block_mask[0, a, c]:
                table[a, theirs.data_next[0, a, c]] = theirs.block_mask[0, a, c]
        agree(
            codes(block_layout(mask, rows=4, columns=4), 4),
            table,
            function="schedules.block_layout",
            stranger="jax splash attention, process_mask",
            version=f"jax {jax.__version__}",
            dtype="int64",
            exact=True,
        )

    def test_cannot_be_traced(self, jax):
        with pytest.raises(jax.errors.ConcretizationTypeError):
            jax.jit(lambda mask: block_layout(mask, rows=2, columns=2)[2])(jax.numpy.ones((4, 4), dtype=bool))

    def test_bad_input(self, xp):
        mask = xp.asarray(np.ones((4, 4)), "bool")
        with pytest.raises(ValueError, match="rows is 0"):
            block_layout(mask, rows=0, columns=2)
        with pytest.raises(ValueError, match="columns is -1"):
            block_layout(mask, rows=1, columns=-1)
        with pytest.raises(TypeError, match="rows must be an integer"):
            block_layout(mask, rows=1.0, columns=2)
        with pytest.raises(ValueError, match="mask has shape"):
            block_layout(mask[0, :], rows=1, columns=2)
        with pytest.raises(TypeError, match="boolean"):
            block_layout(xp.asarray(np.ones((4, 4))), rows=1, columns=2)
        with pytest.raises(TypeError, match="mask must be an array"):
            block_layout([[True]], rows=1, columns=2)


def lists(block_mask, names):
    """The lists of partial and of full blocks of a BlockMask of one head."""
    counts, places, full_counts, full_places = (getattr(block_mask, name)[0, 0].tolist() for name in names)
    return tuple(
        tuple(tuple(row[:count]) for count, row in zip(number, place, strict=True))
        for number, place in ((counts, places), (full_counts, full_places))
    )


def codes(layout, width):
    """The table that the lists stand for: 1 for a partial and 2 for a full block."""
    _, _, partial, full = layout
    table = np.zeros((len(partial), width))
    for code, rows in ((1, partial), (2, full)):
        for a, row in enumerate(rows):
            table[a, list(row)] = code
    return table


class TestBlockSparseAttention:
    def test_by_hand(self, xp):
        q, k = xp.asarray(np.zeros((4, 1))), xp.asarray(np.zeros((4, 1)))
        v = xp.asarray([[8.0], [4.0], [1.0], [3.0]])
        layout = (2, 2, ((0,), (1,)), ((), (0,)))
        out, lse = block_sparse_attention(q, k, v, layout=layout, mask=xp.asarray(np.tri(4, dtype=bool), "bool"))
        xp.check(out, [[8.0], [6.0], [13 / 3], [4.0]])
        xp.check(lse, np.log([1.0, 2.0, 3.0, 4.0]))

    @given(st.integers(0, 9), st.integers(0, 9), st.integers(1, 4), st.integers(1, 4), st.integers(0, 2**32 - 1))
    def test_is_the_loop(self, n, m, rows, columns, seed):
        """Any lists in any order, whether or not they fit the mask."""
        rng = np.random.default_rng(seed)
        width, height = -(-m // columns), -(-n // rows)
        orders = [rng.permutation(width).tolist() for _ in range(height)]
        cuts = np.sort(rng.integers(0, width + 1, size=(height, 2)), axis=1)
        partial = tuple(tuple(order[: cut[0]]) for order, cut in zip(orders, cuts, strict=True))
        full = tuple(tuple(order[cut[0] : cut[1]]) for order, cut in zip(orders, cuts, strict=True))
        q, k, v = random_arrays(seed, (n, 3), (m, 3), (m, 2))
        mask = rng.random((n, m)) < 0.5 if seed % 3 else None
        layout = rows, columns, partial, full
        same(block_sparse_attention(q, k, v, layout=layout, mask=mask), loop(q, k, v, layout, mask))

    @pytest.mark.parametrize("name", [*masks(1)])
    @pytest.mark.parametrize(("rows", "columns"), [(1, 1), (4, 3), (5, 16), (64, 64)])
    def test_is_attention_with_the_mask(self, name, rows, columns):
        mask = masks(17)[name]
        q, k, v, bias = random_arrays(1, (2, 4, 17, 3), (2, 2, 17, 3), (2, 1, 17, 2), (4, 17, 17))
        layout = block_layout(mask, rows=rows, columns=columns)
        score = scaled_dot(scale=0.4, cap=2.0)
        out, lse = block_sparse_attention(q, k, v, layout=layout, mask=mask, bias=bias, score=score)
        same([out], [attention(q, k, v, mask=mask, bias=bias, score=score)])
        scores = attention_scores(q, k, bias=bias, score=score)
        same([lse], [log_sum_exp(scores, np.broadcast_to(mask, scores.shape))])

    def test_one_layout_for_a_mask_of_each_head(self, xp):
        """The layout holds what any head visits, and the mask says the rest."""
        mask = np.stack([masks(12)[name] for name in ("causal", "documents", "none", "global and local")])
        q, k, v = random_arrays(2, (4, 12, 3), (2, 12, 3), (2, 12, 2))
        layout = block_layout(mask, rows=4, columns=4)
        out, lse = block_sparse_attention(*map(xp.asarray, (q, k, v)), layout=layout, mask=xp.asarray(mask, "bool"))
        expected = partial_attention(q, k, v, mask=mask)
        xp.check(out, expected[0])
        xp.check(lse, expected[1])

    @pytest.mark.parametrize("batches", [((2,), (), ()), ((), (3,), ()), ((), (), (2,)), ((2, 1), (3,), (2, 3))])
    def test_leading_axes_broadcast(self, batches):
        widths = (6, 3), (7, 3), (7, 2)
        q, k, v = random_arrays(15, *((*b, 1, *w) for b, w in zip(batches, widths, strict=True)))
        mask = random_mask(3, 6, 7)
        layout = block_layout(mask, rows=2, columns=3)
        for bias in (np.zeros(()), np.linspace(0, 2, 7), np.linspace(0, 2, 6)[:, None]):
            ours = block_sparse_attention(q, k, v, layout=layout, mask=mask, bias=bias)
            same(ours, partial_attention(q, k, v, mask=mask, bias=bias))

    def test_agrees_with_flex_attention(self, torch, agree, monkeypatch):
        from torch.nn.attention import flex_attention as flex

        monkeypatch.setattr(flex, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)
        q, k, v = random_arrays(3, (2, 4, 16, 8), (2, 2, 16, 8), (2, 2, 16, 8))
        mask = masks(16)["global and local"]
        table = torch.tensor(mask)
        blocks = flex.create_block_mask(lambda b, h, i, j: table[i, j], None, None, 16, 16, device="cpu", BLOCK_SIZE=4)
        out, aux = flex.flex_attention(
            *map(torch.tensor, (q, k, v)),
            block_mask=blocks,
            enable_gqa=True,
            return_aux=flex.AuxRequest(lse=True),
        )
        names = ("kv_num_blocks", "kv_indices", "full_kv_num_blocks", "full_kv_indices")
        ours = block_sparse_attention(q, k, v, layout=(4, 4, *lists(blocks, names)), mask=mask)
        version = f"torch {torch.__version__.partition('+')[0]}"
        agree(
            ours[0],
            out,
            function="schedules.block_sparse_attention",
            stranger="torch flex_attention with its block mask, the output",
            version=version,
            dtype="float64",
        )
        agree(
            ours[1],
            aux.lse,
            function="schedules.block_sparse_attention",
            stranger="torch flex_attention with its block mask, the log-sum-exp",
            version=version,
            dtype="float64",
        )

    def test_flex_attention_without_compilation_does_not_look_at_the_lists(self, torch, monkeypatch):
        """Key block 1 is in no list, and is read all the same: only the predicate is asked."""
        from torch.nn.attention import flex_attention as flex

        monkeypatch.setattr(flex, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)
        counts, places = torch.tensor([[[1, 1]]]), torch.tensor([[[[0, 1], [0, 1]]]])
        blocks = flex.BlockMask.from_kv_blocks(
            counts.int(), places.int(), BLOCK_SIZE=2, mask_mod=lambda b, h, i, j: j <= i
        )
        q, v = torch.zeros(1, 1, 4, 1), torch.arange(4.0).reshape(1, 1, 4, 1)
        theirs = flex.flex_attention(q, q, v, block_mask=blocks)[0, 0, :, 0]
        np.testing.assert_allclose(theirs, [0.0, 0.5, 1.0, 1.5])
        arrays = np.zeros((4, 1)), np.zeros((4, 1)), np.arange(4.0)[:, None]
        listed = block_sparse_attention(*arrays, layout=(2, 2, ((0,), (0,)), ((), ())), mask=np.tri(4, dtype=bool))
        np.testing.assert_allclose(listed[0][:, 0], [0.0, 0.5, 0.5, 0.5])

    def test_agrees_with_torch(self, torch, agree):
        q, k, v = random_arrays(4, (2, 3, 13, 8), (2, 3, 13, 8), (2, 3, 13, 8))
        mask = masks(13)["documents"]
        mask[3] = False
        theirs = torch.nn.functional.scaled_dot_product_attention(
            *map(torch.tensor, (q, k, v)), attn_mask=torch.tensor(mask)
        )
        agree(
            block_sparse_attention(q, k, v, layout=block_layout(mask, rows=4, columns=5), mask=mask)[0],
            theirs,
            function="schedules.block_sparse_attention",
            stranger="torch scaled_dot_product_attention with the mask",
            version=f"torch {torch.__version__.partition('+')[0]}",
            dtype="float64",
        )

    def test_one_row_of_blocks_is_online_attention_bit_for_bit(self):
        q, k, v = random_arrays(5, (4, 3), (10, 3), (10, 2))
        out, _ = block_sparse_attention(q, k, v, layout=(4, 4, ((0, 1, 2),), ((),)))
        np.testing.assert_array_equal(out, online_attention(q, k, v, block=4))

    def test_the_order_changes_the_last_digits_alone(self):
        q, k, v = random_arrays(6, (64, 8), (64, 8), (64, 2))
        mask = masks(64)["causal"]
        layout = block_layout(mask, rows=8, columns=8)
        turned = layout._replace(
            partial=tuple(r[::-1] for r in layout.partial), full=tuple(r[::-1] for r in layout.full)
        )
        asked = layout._replace(partial=tuple(f + p for f, p in zip(layout.full, layout.partial, strict=True)))
        asked = asked._replace(full=((),) * 8)
        usual = block_sparse_attention(q, k, v, layout=layout, mask=mask)
        for other in (turned, asked):
            same(block_sparse_attention(q, k, v, layout=other, mask=mask), usual)

    def test_parts_of_a_layout_merge(self):
        """The near blocks in one layout, the far ones in another: two calls with disjoint blocks, merged."""
        q, k, v = random_arrays(7, (12, 3), (12, 3), (12, 2))
        mask = masks(12)["causal"]
        layout = block_layout(mask, rows=3, columns=3)
        nothing = ((),) * 4
        near, far = layout._replace(full=nothing), layout._replace(partial=nothing)
        parts = [block_sparse_attention(q, k, v, layout=x, mask=mask) for x in (near, far)]
        same(merge(*parts[0], *parts[1]), partial_attention(q, k, v, mask=mask))

    def test_a_layout_of_a_longer_text_serves_a_shorter_one(self):
        q, k, v = random_arrays(8, (16, 3), (16, 3), (16, 2))
        mask = masks(16)["causal"]
        layout = block_layout(mask, rows=4, columns=3)
        for t in (1, 3, 4, 7, 15):
            given = q[:t], k[:t], v[:t]
            same(
                block_sparse_attention(*given, layout=layout, mask=mask[:t, :t]),
                partial_attention(*given, mask=mask[:t, :t]),
            )

    def test_decoding_with_a_cache_is_the_full_pass(self):
        """Token by token: the list of the last block of queries, for one query at a time."""
        q, k, v = random_arrays(9, (11, 3), (11, 3), (11, 2))
        mask = masks(11)["window and sinks"]
        whole = block_sparse_attention(q, k, v, layout=block_layout(mask, rows=4, columns=3), mask=mask)[0]
        for t in range(11):
            row = mask[t : t + 1, : t + 1]
            layout = block_layout(row, rows=1, columns=3)
            step = block_sparse_attention(q[t : t + 1], k[: t + 1], v[: t + 1], layout=layout, mask=row)[0]
            np.testing.assert_allclose(step[0], whole[t], rtol=1e-12)

    def test_blocks_that_are_not_listed_may_hold_anything(self, xp):
        mask = masks(12)["window"]
        arrays = random_arrays(10, (12, 3), (12, 3), (12, 2))
        layout = block_layout(mask, rows=4, columns=4)
        expected = block_sparse_attention(*arrays, layout=layout, mask=mask)
        for bad in (NAN, INF):
            q, k, v = (a.copy() for a in arrays)
            k[0], v[0] = bad, bad  # only the first three queries read it
            with np.errstate(invalid="ignore"):  # infinity minus infinity, where it is read
                out, lse = block_sparse_attention(
                    *map(xp.asarray, (q, k, v)), layout=layout, mask=xp.asarray(mask, "bool")
                )
            assert not np.isfinite(xp.numpy(out)[:3]).any()
            np.testing.assert_allclose(xp.numpy(out)[3:], expected[0][3:], rtol=1e-9)
            np.testing.assert_allclose(xp.numpy(lse)[3:], expected[1][3:], rtol=1e-9)

    def test_infinite_scores(self, xp):
        q, k = xp.asarray(np.zeros((2, 1))), xp.asarray(np.zeros((4, 1)))
        bias = xp.asarray([[-INF, -INF, 0.0, INF], [INF, -INF, INF, 0.0]])
        v = xp.asarray([[1.0], [2.0], [4.0], [8.0]])
        out, lse = block_sparse_attention(q, k, v, layout=(2, 2, ((0, 1),), ((),)), bias=bias)
        xp.check(out, [[8.0], [2.5]])
        xp.check(lse, [INF, INF])

    def test_a_full_block_does_not_ask_the_mask(self, xp):
        q, k, v = xp.asarray(np.zeros((2, 1))), xp.asarray(np.zeros((2, 1))), xp.asarray([[2.0], [6.0]])
        nobody = xp.asarray(np.zeros((2, 2)), "bool")
        for layout, expected in (((2, 2, ((),), ((0,),)), 4.0), ((2, 2, ((0,),), ((),)), 0.0)):
            out, _ = block_sparse_attention(q, k, v, layout=layout, mask=nobody)
            xp.check(out, [[expected]] * 2)

    def test_compiles_with_a_fixed_layout(self, jax):
        q, k, v = random_arrays(11, (10, 3), (10, 3), (10, 2))
        mask = masks(10)["documents"]
        layout = block_layout(mask, rows=4, columns=4)
        compiled = jax.jit(block_sparse_attention, static_argnames="layout")
        same(compiled(q, k, v, layout=layout, mask=mask), partial_attention(q, k, v, mask=mask))

    def test_gradients_are_those_of_attention(self, autograd):
        g, q, k, v = random_arrays(12, (6, 2), (6, 3), (6, 3), (6, 2))
        mask = masks(6)["window"]
        mask[4] = False
        layout = block_layout(mask, rows=2, columns=3)
        expected = finite_differences(lambda *a: attention(*a, mask=mask), g, q, k, v)
        allowed = autograd.asarray(mask, "bool")
        ours = autograd.vjp(
            lambda *a: block_sparse_attention(*a, layout=layout, mask=allowed)[0],
            *(autograd.asarray(a) for a in (g, q, k, v)),
        )
        for one, two in zip(ours, expected, strict=True):
            autograd.check(one, two, tolerance=1e-8)

    def test_a_nan_that_no_query_reads_reaches_no_gradient(self, autograd):
        g, q, k, v = random_arrays(13, (2, 1), (2, 2), (4, 2), (4, 1))
        k[1], k[3], v[3] = NAN, NAN, NAN
        mask = autograd.asarray([[True, False, True, True]] * 2, "bool")
        ours = autograd.vjp(
            lambda *a: block_sparse_attention(*a, layout=(2, 2, ((0,),), ((),)), mask=mask)[0],
            *(autograd.asarray(a) for a in (g, q, k, v)),
        )
        for gradient in ours:
            assert np.isfinite(autograd.numpy(gradient)).all()

    def test_narrow_numbers_come_back_narrow(self):
        q, k, v = (x.astype(np.float16) for x in random_arrays(31, (6, 3), (7, 3), (7, 2)))
        mask = random_mask(5, 6, 7)
        out, lse = block_sparse_attention(q, k, v, layout=block_layout(mask, rows=2, columns=3), mask=mask)
        expected, level = partial_attention(q, k, v, mask=mask)
        assert (out.dtype, lse.dtype) == (expected.dtype, level.dtype) == (np.float16, np.float32)
        np.testing.assert_allclose(out, expected, rtol=2e-3)
        np.testing.assert_allclose(lse, level, rtol=1e-5)

    def test_thousands_of_items_in_float32(self):
        q, k, v = (a.astype(np.float32) for a in random_arrays(14, (2048, 16), (2048, 16), (2048, 8)))
        at = np.arange(2048)
        mask = sink_window(at, at, sinks=4, left=99)
        layout = block_layout(mask, rows=128, columns=128)
        out, lse = block_sparse_attention(q, k, v, layout=layout, mask=mask)
        wide = partial_attention(*(a.astype(np.float64) for a in (q, k, v)), mask=mask)
        assert out.dtype == lse.dtype == np.float32
        same((out, lse), wide, 5e-6)
        assert visited_pairs(layout, n=2048, m=2048) == (16 + 15 + 14) * 128**2  # diagonal, its left, the sinks

    def test_bad_input(self, xp, other):
        q, k, v = (xp.asarray(np.ones(shape)) for shape in ((4, 3), (4, 3), (4, 2)))
        fine = (2, 2, ((0,), (1,)), ((), ()))
        wrong = {
            "layout has 3 parts": fine[:3],
            "rows is 0": (0, *fine[1:]),
            "columns is -2": (2, -2, *fine[2:]),
            "1 lists of partial blocks, 2 of full ones": (2, 2, ((0,),), ((), ())),
            "for 1 query blocks; 4 queries need 2": (2, 2, ((0,),), ((),)),
            "a block of layout is -1": (2, 2, ((0,), (-1,)), ((), ())),
            "lists a key block twice for query block 1": (2, 2, ((0,), (1,)), ((), (1,))),
            "lists a key block twice for query block 0": (2, 2, ((9, 9), (1,)), ((), ())),
        }
        for message, layout in wrong.items():
            with pytest.raises(ValueError, match=message):
                block_sparse_attention(q, k, v, layout=layout)
        for layout in ((2.0, *fine[1:]), (2, 2, ((0.0,), (1,)), ((), ()))):
            with pytest.raises(TypeError, match="must be an integer"):
                block_sparse_attention(q, k, v, layout=layout)
        with pytest.raises(ValueError, match="k has 4 items, v has 3"):
            block_sparse_attention(q, k, v[:3, :], layout=fine)
        with pytest.raises(ValueError, match="q has 3 columns, k has 2"):
            block_sparse_attention(q, k[:, :2], v, layout=fine)
        with pytest.raises(ValueError, match=r"mask has shape \(3, 4\)"):
            block_sparse_attention(q, k, v, layout=fine, mask=xp.asarray(np.ones((3, 4)), "bool"))
        with pytest.raises(ValueError, match=r"bias has shape \(3, 4\)"):
            block_sparse_attention(q, k, v, layout=fine, bias=xp.asarray(np.ones((3, 4))))
        with pytest.raises(TypeError, match="one library"):
            block_sparse_attention(q, k, other.asarray(np.ones((4, 2))), layout=fine)
        for mask in (xp.asarray(np.ones((4, 4))), other.asarray(np.ones((4, 4)), "bool")):
            with pytest.raises(TypeError, match="mask"):
                block_sparse_attention(q, k, v, layout=fine, mask=mask)


class TestVisitedPairs:
    @given(st.integers(0, 9), st.integers(0, 9), st.integers(1, 4), st.integers(1, 4), st.integers(0, 2**32 - 1))
    def test_is_the_loop(self, n, m, rows, columns, seed):
        mask = random_mask(seed, n, m)
        layout = block_layout(mask, rows=rows, columns=columns)
        pairs = 0
        for i in range(n):
            listed = layout.partial[i // rows] + layout.full[i // rows]
            pairs += sum(j // columns in listed for j in range(m))
        assert visited_pairs(layout, n=n, m=m) == pairs >= mask.sum()

    @pytest.mark.parametrize("blocks", [1, 2, 5, 8])
    @pytest.mark.parametrize("size", [1, 3, 8])
    def test_causal_is_about_half(self, blocks, size):
        """Of b times b blocks, b (b + 1) / 2 are visited."""
        n = blocks * size
        layout = block_layout(np.tri(n, dtype=bool), rows=size, columns=size)
        assert 2 * blocks * visited_pairs(layout, n=n, m=n) == (blocks + 1) * n * n
        assert [len(r) for r in layout.full] == list(range(blocks)) if size > 1 else True

    @pytest.mark.parametrize(("window", "size"), [(1, 4), (4, 4), (5, 4), (6, 4), (9, 4), (2, 1)])
    def test_window(self, window, size):
        """Away from the start a row of blocks visits ceil((w - 1) / c) + 1 of them."""
        at = np.arange(48)
        layout = block_layout(sink_window(at, at, sinks=0, left=window - 1), rows=size, columns=size)
        assert len(layout.partial[-1] + layout.full[-1]) == -(-(window - 1) // size) + 1

    def test_documents_that_end_with_a_block_cost_no_more_than_their_pairs(self):
        ids = document_ids(np.array([0, 8, 12, 24]), size=24)
        mask = same_document(ids, ids)
        layout = block_layout(mask, rows=4, columns=4)
        assert visited_pairs(layout, n=24, m=24) == mask.sum() == 8**2 + 4**2 + 12**2
        assert layout.partial == ((),) * 6

    def test_of_a_shorter_text(self):
        layout = block_layout(np.tri(8, dtype=bool), rows=4, columns=4)
        assert visited_pairs(layout, n=6, m=5) == 4 * 4 + 2 * 5
        assert visited_pairs(layout, n=0, m=5) == visited_pairs(layout, n=6, m=0) == 0

    def test_bad_input(self):
        layout = block_layout(np.tri(4, dtype=bool), rows=2, columns=2)
        with pytest.raises(ValueError, match="n is -1"):
            visited_pairs(layout, n=-1, m=2)
        with pytest.raises(TypeError, match="m must be an integer"):
            visited_pairs(layout, n=1, m=2.0)
        with pytest.raises(ValueError, match="5 queries need 3"):
            visited_pairs(layout, n=5, m=4)


@pytest.mark.parametrize(("name", "invariant"), held("schedules/block_sparse"))
def test_shared_invariants(xp, name, invariant):
    invariant(SUBJECTS[name], xp)
