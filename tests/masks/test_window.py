"""softlookup.masks.window: windows, dilated windows, chunks, and a window that keeps the first keys."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from invariants import held
from masks.pairs import loop, places, random_items, refuses_bad_pairs, version
from oracles.freeze import frozen
from oracles.onnx_cases import attention_arguments, given_mask, node_cases, onnx
from subjects import SUBJECTS

from softlookup.lookup import attention, scaled_dot
from softlookup.masks import (
    causal,
    chunked,
    dilated_window,
    document_ids,
    padding,
    positions,
    same_document,
    sink_window,
    sliding_window,
    valid_keys,
)

reaches = st.none() | st.integers(0, 3)


def within(distance, left, right):
    return (left is None or distance >= -left) and (right is None or distance <= right)


def refuses_counts(function, xp, name, values, **good):
    """An impossible count is named in the error; one of the wrong type is a TypeError."""
    p = xp.asarray([0, 1], "int64")
    for value in values:
        with pytest.raises(ValueError, match=rf"{name} is {value}"):
            function(p, p, **good | {name: value})
    for value in (1.0, "1"):
        with pytest.raises(TypeError, match=name):
            function(p, p, **good | {name: value})


class TestSlidingWindow:
    @given(places(), places(), reaches, reaches)
    def test_is_the_loop(self, queries, keys, left, right):
        mask = sliding_window(queries, keys, left=left, right=right)
        np.testing.assert_array_equal(mask, loop(queries, keys, lambda i, j: within(j - i, left, right)))

    @given(places(), places())
    def test_without_limits_it_is_causal_or_everything(self, queries, keys):
        np.testing.assert_array_equal(sliding_window(queries, keys, left=None, right=0), causal(queries, keys))
        assert sliding_window(queries, keys, left=None, right=None).all()

    @given(st.integers(1, 9), st.integers(1, 12))
    def test_a_causal_window_of_w_reads_w_keys_once_there_are_so_many(self, w, n):
        p = np.arange(n)
        read = sliding_window(p, p, left=w - 1, right=0).sum(-1)
        np.testing.assert_array_equal(read, np.minimum(p + 1, w))

    @pytest.mark.claims("W01")
    def test_case_w01(self, xp, case):
        c = case("W01")
        q, k, v = (xp.asarray(c["inputs"][name]) for name in "qkv")
        p = xp.asarray(range(4), "int64")
        counts_itself = sliding_window(p, p, left=1, right=0)
        xp.check(counts_itself, np.array(c["expected"]["keep_w_counts_self"]), dtype="bool")
        xp.check(attention(q, k, v, mask=counts_itself), c["expected"]["out_w_counts_self"])
        inclusive = sliding_window(p, p, left=2, right=0)
        xp.check(attention(q, k, v, mask=inclusive), c["expected"]["out_left_2_inclusive"])

    @pytest.mark.claims("W01")
    @pytest.mark.parametrize("w", [1, 2, 3, 7])
    @pytest.mark.parametrize("offset", [0, 3, 100])
    def test_every_window_counts_its_keys_the_same_way_at_every_position(self, w, offset):
        q_positions, k_positions = np.arange(5) + offset, np.arange(-10, 120)
        v = k_positions.astype(float)[:, None]
        zeros = np.zeros((5, 1)), np.zeros((130, 1))
        mask = sliding_window(q_positions, k_positions, left=w - 1, right=0)
        np.testing.assert_array_equal(mask.sum(-1), np.full(5, w))
        np.testing.assert_allclose(attention(*zeros, v, mask=mask)[:, 0], q_positions - (w - 1) / 2, rtol=1e-12)
        inclusive = sliding_window(q_positions, k_positions, left=w, right=0)
        np.testing.assert_array_equal(inclusive.sum(-1), np.full(5, w + 1))

    def test_decoding_needs_the_last_w_keys_alone(self):
        q, k, v = random_items(1, (8, 4), (8, 4), (8, 2))
        p = np.arange(8)
        whole = attention(q, k, v, mask=sliding_window(p, p, left=2, right=0))
        for i in range(8):
            kept = slice(max(0, i - 2), i + 1)
            np.testing.assert_allclose(attention(q[i : i + 1], k[kept], v[kept])[0], whole[i], rtol=1e-12)

    @pytest.mark.parametrize("layers", [1, 2, 3])
    @pytest.mark.parametrize("w", [1, 2, 4])
    def test_layers_reach_w_less_one_farther_each(self, layers, w):
        p = np.arange(12)
        mask = sliding_window(p, p, left=w - 1, right=0)
        reached = np.linalg.matrix_power(mask.astype(int), layers) > 0
        np.testing.assert_array_equal(reached, sliding_window(p, p, left=layers * (w - 1), right=0))

    @pytest.mark.parametrize("size", [2, (1, 2), (1, 0)])
    def test_agrees_with_jax(self, jax, agree, size):
        left, right = (size, size) if isinstance(size, int) else size
        q, k, v = random_items(2, (1, 6, 2, 8), (1, 6, 2, 8), (1, 6, 2, 8))
        heads_first = [a.swapaxes(1, 2) for a in (q, k, v)]
        mask = sliding_window(*positions(*heads_first[:2], offset=0), left=left, right=right)
        agree(
            attention(*heads_first, mask=mask).swapaxes(1, 2),
            jax.nn.dot_product_attention(*map(jax.numpy.asarray, (q, k, v)), local_window_size=size),
            function="masks.sliding_window",
            stranger="jax.nn.dot_product_attention, local_window_size",
            version=version(jax),
            dtype="float32",
            clash="the query itself is not counted, and one number is meant for both sides",
        )

    @pytest.mark.parametrize(
        "node",
        [n for n in node_cases("Attention") if "left_window_size" in n.attributes],
        ids=lambda node: node.name,
    )
    def test_agrees_with_the_node_cases_of_onnx(self, node, agree):
        a = attention_arguments(node)
        mask, bias = given_mask(node, a["k"].shape[-2])
        offset = a["k"].shape[-2] - node.inputs["K"].shape[-2] if "past_key" in node.inputs else 0
        if "nonpad_kv_seqlen" in node.inputs:
            used = node.inputs["nonpad_kv_seqlen"]
            offset = used[:, None] - a["q"].shape[-2]
            mask = mask & padding(valid_keys(used, size=a["k"].shape[-2]))[:, None]
        left, right = (node.attributes.get(f"{side}_window_size", -1) for side in ("left", "right"))
        right = 0 if node.attributes.get("is_causal") else right
        where = positions(a["q"], a["k"], offset=offset)
        mask = mask & sliding_window(*where, left=None if left < 0 else left, right=None if right < 0 else right)
        out = attention(a["q"], a["k"], a["v"], mask=mask, bias=bias, score=scaled_dot(scale=a["scale"], cap=a["cap"]))
        theirs = node.outputs["Y"]
        agree(
            out if theirs.ndim == 4 else out.swapaxes(-3, -2).reshape(theirs.shape),
            theirs,
            function="masks.sliding_window",
            stranger="onnx node cases of Attention, windows",
            version=version(onnx),
            dtype=str(node.inputs["Q"].dtype),
            clash="minus one stands for no limit",
        )

    def test_bad_input(self, xp, other):
        refuses_bad_pairs(lambda *a: sliding_window(*a, left=1, right=1), xp, other)
        for name in ("left", "right"):
            refuses_counts(sliding_window, xp, name, (-1, -5), left=1, right=1)
            with pytest.raises(ValueError, match="None sets no limit"):
                sliding_window(*[xp.asarray([0], "int64")] * 2, **{"left": 1, "right": 1} | {name: -1})


class TestDilatedWindow:
    @given(places(), places(), reaches, reaches, st.integers(1, 3))
    def test_is_the_loop(self, queries, keys, left, right, dilation):
        mask = dilated_window(queries, keys, left=left, right=right, dilation=dilation)
        expected = loop(queries, keys, lambda i, j: within(j - i, left, right) and (j - i) % dilation == 0)
        np.testing.assert_array_equal(mask, expected)

    def test_a_row_by_hand(self, xp):
        i, j = xp.asarray([4], "int64"), xp.asarray(range(9), "int64")
        expected = np.array([[0, 1, 0, 0, 1, 0, 0, 1, 0]], dtype=bool)
        xp.check(dilated_window(i, j, left=4, right=4, dilation=3), expected, dtype="bool")

    @given(places(), places(), reaches)
    def test_without_gaps_it_is_the_window(self, queries, keys, left):
        dense = sliding_window(queries, keys, left=left, right=1)
        np.testing.assert_array_equal(dilated_window(queries, keys, left=left, right=1, dilation=1), dense)

    @pytest.mark.parametrize("dilation", [2, 3])
    def test_is_a_window_in_each_of_the_interleaved_sequences(self, dilation):
        p = np.arange(12)
        mask = dilated_window(p, p, left=2 * dilation, right=0, dilation=dilation)
        for rest in range(dilation):
            mine = p[rest::dilation]
            np.testing.assert_array_equal(
                mask[np.ix_(mine, mine)], sliding_window(*[mine // dilation] * 2, left=2, right=0)
            )
            assert not mask[np.ix_(mine, np.setdiff1d(p, mine))].any()

    def test_bad_input(self, xp, other):
        good = {"left": 1, "right": 1, "dilation": 1}
        refuses_bad_pairs(lambda *a: dilated_window(*a, **good), xp, other)
        refuses_counts(dilated_window, xp, "dilation", (0, -2), **good)
        refuses_counts(dilated_window, xp, "left", (-1,), **good)


class TestChunked:
    @given(places(), places(), st.integers(1, 4))
    def test_is_the_loop(self, queries, keys, chunk):
        expected = loop(queries, keys, lambda i, j: j <= i and j // chunk == i // chunk)
        np.testing.assert_array_equal(chunked(queries, keys, chunk=chunk), expected)

    def test_is_one_causal_run_for_each_chunk(self):
        arrays, p = random_items(3, (8, 4), (8, 4), (8, 2)), np.arange(8)
        out = attention(*arrays, mask=chunked(p, p, chunk=3))
        for start, stop in ((0, 3), (3, 6), (6, 8)):
            alone = attention(*(a[start:stop] for a in arrays), mask=causal(*[p[start:stop]] * 2))
            np.testing.assert_allclose(out[start:stop], alone, rtol=1e-12, atol=1e-15)

    def test_is_documents_as_long_as_a_chunk(self):
        p, ids = np.arange(7), document_ids(np.array([0, 3, 6, 9]), size=7)
        np.testing.assert_array_equal(chunked(p, p, chunk=3), causal(p, p) & same_document(ids, ids))
        np.testing.assert_array_equal(chunked(p, p, chunk=7), causal(p, p))

    def test_bad_input(self, xp, other):
        refuses_bad_pairs(lambda *a: chunked(*a, chunk=2), xp, other)
        refuses_counts(chunked, xp, "chunk", (0, -1), chunk=2)


class TestSinkWindow:
    @given(places(), places(), st.integers(0, 3), st.integers(0, 3))
    def test_is_the_loop(self, queries, keys, sinks, left):
        expected = loop(queries, keys, lambda i, j: j <= i and (0 <= j < sinks or i - j <= left))
        np.testing.assert_array_equal(sink_window(queries, keys, sinks=sinks, left=left), expected)

    def test_is_attention_to_the_kept_keys_alone(self):
        (q, k, v), p = random_items(4, (9, 4), (9, 4), (9, 2)), np.arange(9)
        out = attention(q, k, v, mask=sink_window(p, p, sinks=2, left=1))
        for i in range(9):
            kept = sorted({j for j in (0, 1) if j <= i} | {j for j in (i - 1, i) if j >= 0})
            np.testing.assert_allclose(out[i], attention(q[i : i + 1], k[kept], v[kept])[0], rtol=1e-12, atol=1e-15)

    @given(places(), places(), st.integers(0, 3))
    def test_its_limits_are_the_window_and_the_causal_mask(self, queries, keys, left):
        window = sliding_window(queries, keys, left=left, right=0)
        np.testing.assert_array_equal(sink_window(queries, keys, sinks=0, left=left), window)
        p = np.arange(6)
        np.testing.assert_array_equal(sink_window(p, p, sinks=6, left=0), causal(p, p))

    def test_bad_input(self, xp, other):
        refuses_bad_pairs(lambda *a: sink_window(*a, sinks=1, left=1), xp, other)
        for name in ("sinks", "left"):
            refuses_counts(sink_window, xp, name, (-1,), sinks=1, left=1)


FLEXIBLE = {
    "sliding_window": ({"left": 2, "right": 1}, lambda b, h, i, j: (i - j <= 2) & (j - i <= 1)),
    "dilated_window": (
        {"left": 4, "right": 2, "dilation": 2},
        lambda b, h, i, j: (i - j <= 4) & (j - i <= 2) & ((i - j) % 2 == 0),
    ),
    "chunked": ({"chunk": 3}, lambda b, h, i, j: (i >= j) & (i // 3 == j // 3)),
    "sink_window": ({"sinks": 2, "left": 1}, lambda b, h, i, j: (i >= j) & ((j < 2) | (i - j <= 1))),
}


@pytest.mark.parametrize("name", FLEXIBLE)
def test_agrees_with_the_flexible_mask_of_torch(torch, agree, name):
    from torch.nn.attention.flex_attention import create_mask

    options, rule = FLEXIBLE[name]
    agree(
        SUBJECTS[f"masks.{name}"].function(np.arange(7), np.arange(8), **options),
        create_mask(rule, None, None, 7, 8, device="cpu")[0, 0],
        function=f"masks.{name}",
        stranger="torch create_mask of FlexAttention",
        version=version(torch),
        dtype="float64",
        exact=True,
    )


@pytest.mark.parametrize(
    ("kept", "ours", "clash"),
    [
        ("window", lambda i, j: sliding_window(i, j, left=2, right=0), "the query itself is counted"),
        ("both_sides", lambda i, j: sliding_window(i, j, left=3, right=3), "the query itself is not counted"),
        ("chunked", lambda i, j: chunked(i, j, chunk=3), None),
    ],
    ids=["window", "both_sides", "chunked"],
)
def test_agrees_with_transformers(agree, kept, ours, clash):
    fixture = frozen("transformers_masks")
    agree(
        ours(np.arange(2, 5), np.arange(6)),
        fixture[kept],
        function="masks.chunked" if kept == "chunked" else "masks.sliding_window",
        stranger=f"transformers, mask function, {kept.replace('_', ' ')}",
        version=fixture.version,
        dtype="float64",
        exact=True,
        clash=clash,
    )


@pytest.mark.parametrize(("name", "invariant"), held("masks/window"))
def test_shared_invariants(xp, name, invariant):
    invariant(SUBJECTS[name], xp)
