"""softlookup.masks.padding: padding, prefixes, blocks, packed documents, shared prefixes and trees."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from invariants import held
from masks.pairs import loop, places, random_items, refuses_bad_pairs, version
from oracles.onnx_cases import attention_arguments, node_cases, onnx
from subjects import SUBJECTS

from softlookup.lookup import attention
from softlookup.masks import (
    block_causal,
    causal,
    document_ids,
    document_positions,
    padding,
    positions,
    prefix_causal,
    same_document,
    shared_prefix,
    tree,
    valid_keys,
)

few_ids = places(elements=st.integers(-2, 3))


def refuses_bad_row(function, xp, name):
    """What every function of one row of integers refuses."""
    for bad in ([0, 1], xp.asarray([0.0, 1.0]), xp.asarray([True, False], "bool")):
        with pytest.raises(TypeError, match=name):
            function(bad)


class TestValidKeys:
    @given(st.integers(-2, 7), st.integers(0, 5), st.booleans())
    def test_is_the_loop(self, length, size, left):
        expected = [j >= size - length if left else j < length for j in range(size)]
        np.testing.assert_array_equal(
            valid_keys(np.array(length), size=size, left=left), np.array(expected, dtype=bool)
        )

    def test_two_texts_by_hand(self, xp):
        lengths = xp.asarray([1, 3], "int64")
        right, left = [[1, 0, 0, 0], [1, 1, 1, 0]], [[0, 0, 0, 1], [0, 1, 1, 1]]
        xp.check(valid_keys(lengths, size=4), np.array(right, dtype=bool), dtype="bool")
        xp.check(valid_keys(lengths, size=4, left=True), np.array(left, dtype=bool), dtype="bool")

    def test_bad_input(self, xp):
        refuses_bad_row(lambda lengths: valid_keys(lengths, size=2), xp, "lengths")
        for size, error in ((-1, ValueError), (1.0, TypeError)):
            with pytest.raises(error, match="size"):
                valid_keys(xp.asarray([1], "int64"), size=size)


class TestPadding:
    def test_padded_texts_are_the_texts_alone(self):
        q, k, v = random_items(0, (2, 2, 3, 4), (2, 2, 5, 4), (2, 2, 5, 3))
        lengths = [2, 4]
        out = attention(q, k, v, mask=padding(valid_keys(np.array(lengths), size=5))[:, None])
        for i, length in enumerate(lengths):
            alone = attention(q[i], k[i, :, :length], v[i, :, :length])
            np.testing.assert_allclose(out[i], alone, rtol=1e-12, atol=1e-15)

    def test_one_row_serves_all_queries(self, xp):
        xp.check(padding(xp.asarray([True, False], "bool")), np.array([[True, False]]), dtype="bool")

    def test_padded_queries_read_like_the_others(self):
        q, k, v = random_items(1, (4, 3), (4, 3), (4, 2))
        p = np.arange(4)
        mask = causal(p, p) & padding(np.array([True, True, False, False]))
        np.testing.assert_allclose(attention(q, k, v, mask=mask)[2:], attention(q[2:], k[:2], v[:2]), rtol=1e-12)

    def test_left_padding_under_a_causal_mask_leaves_rows_empty(self, xp):
        valid, p = valid_keys(xp.asarray(2, "int64"), size=4, left=True), xp.asarray(range(4), "int64")
        expected = np.array([[0, 0, 0, 0], [0, 0, 0, 0], [0, 0, 1, 0], [0, 0, 1, 1]], dtype=bool)
        xp.check(causal(p, p) & padding(valid), expected, dtype="bool")

    def test_is_the_opposite_of_the_key_padding_mask_of_torch(self, torch, agree):
        torch.manual_seed(0)
        layer = torch.nn.MultiheadAttention(8, 2, bias=False, batch_first=True, dtype=torch.float64)
        x = torch.tensor(random_items(2, (2, 5, 8))[0])
        valid = valid_keys(torch.tensor([3, 5]), size=5)
        w_q, w_k, w_v = (w.detach().T for w in layer.in_proj_weight.chunk(3))
        q, k, v = ((x @ w).reshape(2, 5, 2, 4).swapaxes(1, 2) for w in (w_q, w_k, w_v))
        ours = attention(q, k, v, mask=padding(valid)[:, None]).swapaxes(1, 2).reshape(2, 5, 8)
        agree(
            (ours @ layer.out_proj.weight.T).detach(),
            layer(x, x, x, key_padding_mask=~valid)[0].detach(),
            function="masks.padding",
            stranger="torch.nn.MultiheadAttention, key_padding_mask",
            version=version(torch),
            dtype="float64",
            clash="True means drop",
        )

    def test_agrees_with_the_lengths_of_jax(self, jax, agree):
        q, k, v = random_items(3, (2, 3, 2, 8), (2, 5, 2, 8), (2, 5, 2, 8))
        lengths = np.array([2, 4])
        heads_first = [a.swapaxes(1, 2) for a in (q, k, v)]
        agree(
            attention(*heads_first, mask=padding(valid_keys(lengths, size=5))[:, None]).swapaxes(1, 2),
            jax.nn.dot_product_attention(
                *map(jax.numpy.asarray, (q, k, v)), key_value_seq_lengths=jax.numpy.asarray(lengths, dtype="int32")
            ),
            function="masks.padding",
            stranger="jax.nn.dot_product_attention, key_value_seq_lengths",
            version=version(jax),
            dtype="float32",
        )

    @pytest.mark.parametrize(
        "node",
        [n for n in node_cases("Attention") if "nonpad_kv_seqlen" in n.inputs and not n.attributes],
        ids=lambda node: node.name,
    )
    def test_agrees_with_the_lengths_of_onnx(self, node, agree):
        a = attention_arguments(node)
        m = a["k"].shape[-2]
        mask = padding(valid_keys(node.inputs["nonpad_kv_seqlen"], size=m))[:, None]
        agree(
            attention(a["q"], a["k"], a["v"], mask=mask, bias=a["bias"]),
            node.outputs["Y"],
            function="masks.padding",
            stranger="onnx node cases of Attention, nonpad_kv_seqlen",
            version=version(onnx),
            dtype=str(node.inputs["Q"].dtype),
        )

    def test_bad_input(self, xp):
        with pytest.raises(TypeError, match="valid.*bool"):
            padding(xp.asarray([1, 0], "int64"))
        with pytest.raises(TypeError):
            padding([True])
        with pytest.raises(ValueError, match="valid"):
            padding(xp.asarray(True, "bool"))


class TestPrefixCausal:
    @given(places(), places(), st.integers(-3, 5))
    def test_is_the_loop(self, queries, keys, prefix):
        expected = loop(queries, keys, lambda i, j: j <= i or j < prefix)
        np.testing.assert_array_equal(prefix_causal(queries, keys, np.array(prefix)), expected)

    def test_a_prefix_for_each_sample(self, xp):
        p = xp.asarray([0, 1, 2], "int64")
        mask = prefix_causal(p, p, xp.asarray([0, 2, 3], "int64"))
        expected = [np.tri(3), [[1, 1, 0], [1, 1, 0], [1, 1, 1]], np.ones((3, 3))]
        xp.check(mask, np.array(expected, dtype=bool), dtype="bool")

    def test_is_the_prefix_alone_and_then_causal(self):
        q, k, v = random_items(4, (6, 3), (6, 3), (6, 2))
        p = np.arange(6)
        out = attention(q, k, v, mask=prefix_causal(p, p, np.array(3)))
        np.testing.assert_allclose(out[:3], attention(q[:3], k[:3], v[:3]), rtol=1e-12)
        np.testing.assert_allclose(out[3:], attention(q, k, v, mask=causal(p, p))[3:], rtol=1e-12)

    def test_bad_input(self, xp, other):
        refuses_bad_pairs(lambda *a: prefix_causal(*a, xp.asarray(1, "int64")), xp, other)
        p = xp.asarray([0, 1], "int64")
        refuses_bad_row(lambda prefix: prefix_causal(p, p, prefix), xp, "prefix")


class TestBlockCausal:
    @given(places(), places(), st.integers(1, 4))
    def test_is_the_loop(self, queries, keys, block):
        expected = loop(queries, keys, lambda i, j: j // block <= i // block)
        np.testing.assert_array_equal(block_causal(queries, keys, block=block), expected)

    def test_blocks_of_one_are_causal(self, xp):
        p = xp.asarray([-2, 0, 1, 2], "int64")
        xp.check(block_causal(p, p, block=1), np.tri(4, dtype=bool), dtype="bool")

    def test_each_block_is_open_attention_to_itself_and_the_earlier_ones(self):
        q, k, v = random_items(5, (7, 3), (7, 3), (7, 2))
        out = attention(q, k, v, mask=block_causal(np.arange(7), np.arange(7), block=3))
        for start, stop in ((0, 3), (3, 6), (6, 7)):
            np.testing.assert_allclose(out[start:stop], attention(q[start:stop], k[:stop], v[:stop]), rtol=1e-12)

    def test_bad_input(self, xp, other):
        refuses_bad_pairs(lambda *a: block_causal(*a, block=2), xp, other)
        p = xp.asarray([0], "int64")
        for block, error in ((0, ValueError), (-1, ValueError), (2.0, TypeError)):
            with pytest.raises(error, match="block"):
                block_causal(p, p, block=block)


def packed(lengths, padded=0):
    """Where documents of these lengths end in one row, and its size."""
    ends = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    return ends, int(ends[-1]) + padded


class TestSameDocument:
    @given(few_ids, few_ids)
    def test_is_the_loop(self, queries, keys):
        expected = loop(queries, keys, lambda i, j: i == j and j >= 0)
        np.testing.assert_array_equal(same_document(queries, keys), expected)

    @pytest.mark.claims("W06")
    def test_case_w06(self, xp, case):
        c = case("W06")
        q, k, v = (xp.asarray(c["inputs"][name]) for name in "qkv")
        ids = document_ids(xp.asarray(c["inputs"]["cu_seqlens"], "int64"), size=6)
        xp.check(document_positions(ids), c["inputs"]["position_ids"], dtype="int64")
        p = xp.asarray(range(6), "int64")
        out = attention(q, k, v, mask=causal(p, p) & same_document(ids, ids))
        xp.check(out, c["expected"]["out"])
        for wrong in c["wrong"].values():
            assert not np.allclose(xp.numpy(out), wrong["out"])

    @pytest.mark.claims("W06")
    @pytest.mark.parametrize("lengths", [(2, 1, 1, 2), (1, 1, 1, 1), (4,), (0, 3, 0, 0, 2, 0), (0, 0), ()])
    @pytest.mark.parametrize("padded", [0, 2])
    @pytest.mark.parametrize("restart", [False, True])
    def test_packed_documents_are_the_documents_alone(self, lengths, padded, restart):
        ends, size = packed(lengths, padded)
        q, k, v = random_items(6, (2, size, 3), (2, size, 3), (2, size, 2))
        ids = document_ids(ends, size=size)
        p = document_positions(ids) if restart else np.arange(size)
        out = attention(q, k, v, mask=causal(p, p) & same_document(ids, ids))
        for start, stop in itertools.pairwise(ends):
            own = [a[:, start:stop] for a in (q, k, v)]
            alone = attention(*own, mask=np.tri(stop - start, dtype=bool))
            np.testing.assert_allclose(out[:, start:stop], alone, rtol=1e-12, atol=1e-15)
        np.testing.assert_array_equal(out[:, ends[-1] :], np.zeros((2, padded, 2)))

    def test_spans_are_read_in_both_directions(self, xp):
        p, spans = xp.asarray(range(5), "int64"), xp.asarray([-1, 0, 0, -1, 1], "int64")
        expected = np.tri(5, dtype=bool)
        expected[1, 2] = True
        xp.check(causal(p, p) | same_document(spans, spans), expected, dtype="bool")

    def test_bad_input(self, xp, other):
        refuses_bad_pairs(same_document, xp, other, ("q_ids", "k_ids"))


def test_same_document_agrees_with_the_flexible_mask_of_torch(torch, agree):
    from torch.nn.attention.flex_attention import create_mask

    ids = document_ids(torch.tensor([0, 2, 2, 5]), size=7)
    agree(
        same_document(ids, ids),
        create_mask(lambda b, h, i, j: (ids[i] == ids[j]) & (ids[j] >= 0), None, None, 7, 7, device="cpu")[0, 0],
        function="masks.same_document",
        stranger="torch create_mask of FlexAttention",
        version=version(torch),
        dtype="float64",
        exact=True,
    )


class TestDocumentIds:
    @given(st.lists(st.integers(0, 3), max_size=4), st.integers(0, 3))
    def test_is_the_loop(self, lengths, padded):
        ends, size = packed(lengths, padded)
        expected = [d for d, length in enumerate(lengths) for _ in range(length)] + [-1] * padded
        np.testing.assert_array_equal(document_ids(ends, size=size), np.array(expected, dtype=int))

    def test_is_what_searchsorted_says(self):
        ends = np.array([0, 2, 2, 5, 9])
        expected = np.searchsorted(ends, np.arange(9), side="right") - 1
        np.testing.assert_array_equal(document_ids(ends, size=9), expected)

    def test_two_packings_at_once(self, xp):
        ends = xp.asarray([[0, 2, 4], [0, 0, 3]], "int32")
        xp.check(document_ids(ends, size=4), [[0, 0, 1, 1], [1, 1, 1, -1]], dtype="int64")

    def test_items_before_the_first_document_are_in_none(self, xp):
        xp.check(document_ids(xp.asarray([1, 2], "int64"), size=3), [-1, 0, -1], dtype="int64")

    def test_bad_input(self, xp):
        refuses_bad_row(lambda ends: document_ids(ends, size=2), xp, "cumulative_lengths")
        with pytest.raises(ValueError, match="cumulative_lengths"):
            document_ids(xp.asarray(3, "int64"), size=2)
        for size, error in ((-1, ValueError), (1.0, TypeError)):
            with pytest.raises(error, match="size"):
                document_ids(xp.asarray([0, 1], "int64"), size=size)


class TestDocumentPositions:
    @given(few_ids)
    def test_is_the_loop(self, ids):
        expected = [sum(ids[:i] == ids[i]) if ids[i] >= 0 else 0 for i in range(len(ids))]
        np.testing.assert_array_equal(document_positions(ids), np.array(expected, dtype=int))

    def test_a_document_in_two_pieces_goes_on(self, xp):
        ids = xp.asarray([0, 1, 0, -1, -1], "int64")
        xp.check(document_positions(ids), [0, 0, 1, 0, 0], dtype="int64")

    def test_bad_input(self, xp):
        refuses_bad_row(document_positions, xp, "ids")
        with pytest.raises(ValueError, match="ids"):
            document_positions(xp.asarray(3, "int64"))


class TestSharedPrefix:
    @given(st.lists(st.tuples(st.integers(0, 4), st.integers(-1, 3)), max_size=6))
    def test_is_the_loop(self, items):
        p, b = np.array(items, dtype=int).reshape(-1, 2).T
        expected = [[pj <= pi and (bj == 0 or bj == bi >= 0) for pj, bj in items] for pi, bi in items]
        np.testing.assert_array_equal(
            shared_prefix(p, p, b, b), np.array(expected, dtype=bool).reshape(2 * [len(items)])
        )

    def test_is_the_prefix_with_each_continuation_alone(self):
        p, b = np.array([0, 1, 2, 3, 4, 3, 3, 4]), np.array([0, 0, 0, 1, 1, 2, 3, 3])
        arrays = random_items(7, (8, 3), (8, 3), (8, 2))
        out = attention(*arrays, mask=shared_prefix(p, p, b, b))
        for branch in (1, 2, 3):
            own = [i for i, of in enumerate(b) if of in (0, branch)]
            alone = attention(*(a[own] for a in arrays), mask=np.tri(len(own), dtype=bool))
            np.testing.assert_allclose(out[own], alone, rtol=1e-11)

    def test_bad_input(self, xp, other):
        b = xp.asarray([0, 1], "int64")
        refuses_bad_pairs(lambda *a: shared_prefix(*a, b, b), xp, other)
        refuses_bad_pairs(lambda *a: shared_prefix(b, b, *a), xp, other, ("q_branches", "k_branches"))


class TestTree:
    @given(st.lists(st.integers(-2, 6), max_size=7))
    def test_is_the_walk_along_the_parents(self, drawn):
        parents = [min(parent, node - 1) for node, parent in enumerate(drawn)]
        expected = np.zeros((len(parents), len(parents)), dtype=bool)
        for node in range(len(parents)):
            above = node
            while above >= 0:
                expected[node, above] = True
                above = parents[above]
        np.testing.assert_array_equal(tree(np.array(parents, dtype=int)), expected)

    def test_a_chain_is_causal_and_a_forest_of_roots_the_identity(self, xp):
        for n in (1, 2, 5, 9):
            np.testing.assert_array_equal(tree(np.arange(n) - 1), np.tri(n, dtype=bool))
        xp.check(tree(xp.asarray([-1, -1, -1], "int64")), np.eye(3, dtype=bool), dtype="bool")

    def test_parents_may_come_after_their_children(self, xp):
        xp.check(tree(xp.asarray([1, 2, -1], "int64")), np.tri(3, dtype=bool).T, dtype="bool")

    def test_each_path_is_a_causal_run_after_the_prefix(self):
        parents = np.array([-1, 0, 0, 1, 2, 2])
        drafts, prefix = len(parents), 3
        q, k, v = random_items(8, (drafts, 4), (prefix + drafts, 4), (prefix + drafts, 2))
        out = attention(q, k, v, mask=np.concatenate([np.ones((drafts, prefix), dtype=bool), tree(parents)], axis=1))
        for leaf, path in ((3, [0, 1, 3]), (4, [0, 2, 4]), (5, [0, 2, 5])):
            seen = [0, 1, 2, *(prefix + node for node in path)]
            run = q[path], k[seen], v[seen]
            np.testing.assert_allclose(out[leaf], attention(*run, mask=causal(*positions(*run[:2])))[-1], rtol=1e-12)

    def test_a_deep_tree(self):
        assert tree(np.arange(200) - 1).sum() == 200 * 201 // 2

    def test_bad_input(self, xp):
        refuses_bad_row(tree, xp, "parents")
        with pytest.raises(ValueError, match="parents"):
            tree(xp.asarray(0, "int64"))


@pytest.mark.parametrize(("name", "invariant"), held("masks/padding"))
def test_shared_invariants(xp, name, invariant):
    invariant(SUBJECTS[name], xp)
