"""softlookup.masks.causal: positions, and the rule that nobody reads what comes later."""

import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from invariants import held
from masks.pairs import BIG, loop, places, random_items, refuses_bad_pairs, version
from oracles.freeze import frozen
from oracles.onnx_cases import attention_arguments, given_mask, node_cases, onnx
from subjects import SUBJECTS

from softlookup.lookup import attention
from softlookup.masks import causal, padding, positions, strictly_causal, valid_keys


def lower_right(n, m):
    """The mask of torch that ends at the last key; with more queries than keys it warns of NaN, and gives zeros."""
    from torch.nn.attention.bias import causal_lower_right

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return causal_lower_right(n, m)


class TestPositions:
    @pytest.mark.parametrize(
        ("offset", "expected"), [(None, [2, 3]), (0, [0, 1]), (-3, [-3, -2]), (BIG, [BIG, BIG + 1])]
    )
    def test_two_queries_and_four_keys(self, xp, offset, expected):
        queries, keys = positions(xp.asarray(np.ones((2, 3))), xp.asarray(np.ones((4, 3))), offset=offset)
        xp.check(queries, expected, dtype="int64")
        xp.check(keys, [0, 1, 2, 3], dtype="int64")

    def test_more_queries_than_keys_begin_before_the_keys(self, xp):
        queries, _ = positions(xp.asarray(np.ones((4, 3))), xp.asarray(np.ones((2, 3))))
        xp.check(queries, [-2, -1, 0, 1], dtype="int64")

    @pytest.mark.parametrize("dtype", ["int32", "int64"])
    def test_an_offset_for_each_sample(self, xp, dtype):
        q, k = xp.asarray(np.ones((2, 2, 3))), xp.asarray(np.ones((2, 5, 3)))
        queries, keys = positions(q, k, offset=xp.asarray([3, -1], dtype))
        xp.check(queries, [[3, 4], [-1, 0]], dtype="int64")
        xp.check(keys, [0, 1, 2, 3, 4], dtype="int64")
        with_head_axis, _ = positions(q, k, offset=xp.asarray([[3], [-1]], dtype))
        xp.check(with_head_axis, [[[3, 4]], [[-1, 0]]], dtype="int64")

    def test_an_offset_without_axes_is_a_number(self, xp):
        q = xp.asarray(np.ones((2, 3)))
        xp.check(positions(q, q, offset=xp.asarray(4, "int64"))[0], [4, 5], dtype="int64")

    def test_bad_input(self, xp, other):
        q = xp.asarray(np.ones((2, 3)))
        for name, arguments in {"q": ([[1.0]], q), "k": (q, [[1.0]])}.items():
            with pytest.raises(TypeError, match=rf"\b{name}\b"):
                positions(*arguments)
        for name, arguments in {"q": (q[0, :], q), "k": (q, q[0, :])}.items():
            with pytest.raises(ValueError, match=rf"\b{name}\b.*\(3,\)"):
                positions(*arguments)
        with pytest.raises(TypeError):
            positions(q, other.asarray(np.ones((2, 3))))
        for offset in (0.5, "1", xp.asarray([0.5]), [1], other.asarray([1], "int64")):
            with pytest.raises(TypeError, match="offset"):
                positions(q, q, offset=offset)


class TestCausal:
    @given(places(), places())
    def test_is_the_loop(self, queries, keys):
        np.testing.assert_array_equal(causal(queries, keys), loop(queries, keys, lambda i, j: j <= i))

    def test_both_alignments_by_hand(self, xp):
        q, k = xp.asarray(np.ones((2, 3))), xp.asarray(np.ones((4, 3)))
        last, first = [[1, 1, 1, 0], [1, 1, 1, 1]], [[1, 0, 0, 0], [1, 1, 0, 0]]
        xp.check(causal(*positions(q, k)), np.array(last, dtype=bool), dtype="bool")
        xp.check(causal(*positions(q, k, offset=0)), np.array(first, dtype=bool), dtype="bool")

    def test_more_queries_than_keys_leave_the_first_without_any(self, xp):
        q, k = xp.asarray(np.ones((4, 3))), xp.asarray(np.ones((2, 3)))
        mask = causal(*positions(q, k))
        xp.check(mask, np.array([[0, 0], [0, 0], [1, 0], [1, 1]], dtype=bool), dtype="bool")
        xp.check(attention(q, k, k, mask=mask), [[0.0] * 3] * 2 + [[1.0] * 3] * 2)

    def test_each_sample_has_its_own_cache(self):
        q, k, v = random_items(0, (3, 2, 2, 4), (3, 2, 6, 4), (3, 2, 6, 4))
        used = [2, 4, 6]
        out = attention(q, k, v, mask=causal(*positions(q, k, offset=np.array([[u - 2] for u in used]))))
        for i, u in enumerate(used):
            alone = attention(q[i], k[i, :, :u], v[i, :, :u], mask=np.tri(2, u, u - 2, dtype=bool))
            np.testing.assert_allclose(out[i], alone, rtol=1e-12, atol=1e-15)

    def test_decoding_with_a_cache_is_the_full_pass_row_by_row(self):
        q, k, v = random_items(1, (2, 6, 4), (2, 6, 4), (2, 6, 3))
        whole = attention(q, k, v, mask=causal(*positions(q, k)))
        for start, stop in ((0, 1), (1, 2), (2, 4), (4, 6)):
            parts = q[:, start:stop, :], k[:, :stop, :], v[:, :stop, :]
            out = attention(*parts, mask=causal(*positions(*parts[:2])))
            np.testing.assert_allclose(out, whole[:, start:stop], rtol=1e-12, atol=1e-15)

    @given(st.integers(1, 6), st.integers(0, 5), st.sampled_from([7.0, np.nan, -1e100]))
    def test_the_future_does_not_change_the_past(self, n, cut, other):
        q, k, v = random_items(2, (n, 3), (n, 3), (n, 2))
        mask = causal(*positions(q, k))
        before = attention(q, k, v, mask=mask)[:cut]
        for a in (q, k, v):
            a[cut:] = other
        np.testing.assert_array_equal(attention(q, k, v, mask=mask)[:cut], before)

    def test_is_what_torch_calls_lower_right_and_upper_left(self, torch):
        from torch.nn.attention.bias import causal_upper_left

        for n, m in ((2, 4), (4, 2), (3, 3)):
            q, k = np.ones((n, 1)), np.ones((m, 1))
            np.testing.assert_array_equal(causal(*positions(q, k)), lower_right(n, m)._materialize())
            np.testing.assert_array_equal(causal(*positions(q, k, offset=0)), causal_upper_left(n, m)._materialize())

    @pytest.mark.parametrize("heads_and_lengths", [(2, 3, 5), (1, 5, 3), (2, 4, 4)])
    def test_agrees_with_torch(self, torch, agree, heads_and_lengths):
        heads, n, m = heads_and_lengths
        q, k, v = random_items(3, (1, heads, n, 8), (1, heads, m, 8), (1, heads, m, 8))
        tensors = [torch.tensor(a) for a in (q, k, v)]
        for offset, theirs, name in (
            (0, {"is_causal": True}, "is_causal"),
            (None, {"attn_mask": lower_right(n, m)}, "causal_lower_right"),
        ):
            agree(
                attention(q, k, v, mask=causal(*positions(q, k, offset=offset))),
                torch.nn.functional.scaled_dot_product_attention(*tensors, **theirs),
                function="masks.causal",
                stranger=f"torch scaled_dot_product_attention, {name}",
                version=version(torch),
                dtype="float64",
                clash="the first query stands at the first key" if name == "is_causal" else None,
            )

    def test_agrees_with_the_flexible_mask_of_torch(self, torch, agree):
        from torch.nn.attention.flex_attention import create_mask

        for n, m in ((2, 4), (4, 2)):
            theirs = create_mask(lambda b, h, i, j: i >= j, None, None, n, m, device="cpu")[0, 0]
            agree(
                causal(*positions(np.ones((n, 1)), np.ones((m, 1)), offset=0)),
                theirs,
                function="masks.causal",
                stranger="torch create_mask of FlexAttention",
                version=version(torch),
                dtype="float64",
                exact=True,
                clash="counts queries from the first key, whatever the lengths",
            )

    def test_agrees_with_transformers(self, agree):
        fixture = frozen("transformers_masks")
        agree(
            causal(np.arange(2, 5), np.arange(6)),
            fixture["causal"],
            function="masks.causal",
            stranger="transformers, causal mask function with an offset",
            version=fixture.version,
            dtype="float64",
            exact=True,
        )

    def test_agrees_with_jax(self, jax, agree):
        for n, m in ((3, 5), (5, 3)):
            q, k, v = random_items(4, (1, n, 2, 8), (1, m, 2, 8), (1, m, 2, 8))
            heads_first = [a.swapaxes(1, 2) for a in (q, k, v)]
            agree(
                attention(*heads_first, mask=causal(*positions(*heads_first[:2], offset=0))).swapaxes(1, 2),
                jax.nn.dot_product_attention(*map(jax.numpy.asarray, (q, k, v)), is_causal=True),
                function="masks.causal",
                stranger="jax.nn.dot_product_attention, is_causal",
                version=version(jax),
                dtype="float32",
                clash="the first query stands at the first key",
            )

    @pytest.mark.parametrize(
        "node",
        [
            n
            for n in node_cases("Attention")
            if n.attributes.get("is_causal") and "left_window_size" not in n.attributes
        ],
        ids=lambda node: node.name,
    )
    def test_agrees_with_the_node_cases_of_onnx(self, node, agree):
        a = attention_arguments(node)
        q, k = a["q"], a["k"]
        given_here, bias = given_mask(node, k.shape[-2])
        offset = a["k"].shape[-2] - node.inputs["K"].shape[-2] if "past_key" in node.inputs else 0
        mask = given_here
        if "nonpad_kv_seqlen" in node.inputs:
            used = node.inputs["nonpad_kv_seqlen"]
            offset = used[:, None] - q.shape[-2]
            mask = mask & padding(valid_keys(used, size=k.shape[-2]))[:, None]
        mask = mask & causal(*positions(q, k, offset=offset))
        out = attention(q, k, a["v"], mask=mask, bias=bias)
        theirs = node.outputs["Y"]
        agree(
            out if theirs.ndim == 4 else out.swapaxes(-3, -2).reshape(theirs.shape),
            theirs,
            function="masks.causal",
            stranger="onnx node cases of Attention, is_causal",
            version=version(onnx),
            dtype=str(node.inputs["Q"].dtype),
            clash="without a cache, the first query stands at the first key",
        )

    def test_bad_input(self, xp, other):
        refuses_bad_pairs(causal, xp, other)

    def test_thousands_of_keys(self):
        p = np.arange(3000)
        assert causal(p, p).sum() == 3000 * 3001 // 2

    def test_narrow_integers_do_not_wrap(self, xp):
        i, j = xp.asarray([127], "int32"), xp.asarray([-128, 127], "int64")
        xp.check(causal(i, j), np.array([[True, True]]), dtype="bool")


class TestStrictlyCausal:
    @given(places(), places())
    def test_is_the_loop(self, queries, keys):
        np.testing.assert_array_equal(strictly_causal(queries, keys), loop(queries, keys, lambda i, j: j < i))

    def test_the_first_query_reads_nothing(self, xp):
        q = xp.asarray(np.ones((3, 2)))
        mask = strictly_causal(*positions(q, q))
        xp.check(mask, np.array([[0, 0, 0], [1, 0, 0], [1, 1, 0]], dtype=bool), dtype="bool")
        xp.check(attention(q, q, q, mask=mask), [[0.0, 0.0], [1.0, 1.0], [1.0, 1.0]])

    @given(places(), places())
    def test_is_causal_one_position_earlier_and_not_causal_the_other_way(self, queries, keys):
        np.testing.assert_array_equal(strictly_causal(queries, keys), causal(queries - 1, keys))
        np.testing.assert_array_equal(strictly_causal(queries, keys), ~causal(keys, queries).mT)

    def test_bad_input(self, xp, other):
        refuses_bad_pairs(strictly_causal, xp, other)


def test_masks_compose_with_the_signs_of_the_library(xp):
    p = xp.asarray([0, 1, 2], "int64")
    own = causal(p, p) & ~strictly_causal(p, p)
    xp.check(own, np.eye(3, dtype=bool), dtype="bool")
    xp.check(strictly_causal(p, p) | own, np.tri(3, dtype=bool), dtype="bool")


@pytest.mark.parametrize(("name", "invariant"), held("masks/causal"))
def test_shared_invariants(xp, name, invariant):
    invariant(SUBJECTS[name], xp)
