"""softlookup.positions.relative: scores and values that depend on the distance."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from invariants import held
from libraries import finite_differences
from oracles.freeze import frozen
from subjects import SUBJECTS

from softlookup.lookup import attention, attention_scores, attention_weights, scaled_dot, softmax, weighted_average
from softlookup.masks import causal, positions
from softlookup.positions import (
    clipped_distance,
    disentangled,
    read_distances,
    shaw,
    shaw_values,
    sinusoidal,
    skew,
    transformer_xl,
)

claims = pytest.mark.claims
SHAPES = {"q": (2, 4, 3), "k": (2, 6, 3), "a": (5, 3), "b": (2, 5, 3), "u": (2, 3), "v": (3,)}


def clipped(distance, left, right):
    return min(max(distance, -left), right) + left


def dot(x, y):
    return math.fsum(float(a) * float(b) for a, b in zip(x, y, strict=True))


def draw(seed=0, **shapes):
    rng = np.random.default_rng(seed)
    return {name: rng.normal(size=shape) for name, shape in (shapes or SHAPES).items()}


def pairs(n=4, m=6, left=2, right=2):
    """The index of the last n of m positions."""
    return clipped_distance(np.arange(m - n, m), np.arange(m), left=left, right=right)


def loop(q, k, term):
    """One score for each head, query and key; a table with two axes serves every head."""
    heads, n, m = q.shape[0], q.shape[1], k.shape[1]
    return np.array([[[term(h, i, j) for j in range(m)] for i in range(n)] for h in range(heads)])


class TestClippedDistance:
    @claims("P07")
    def test_case_p07(self, xp, case):
        given_, expected = case("P07"), case("P07")["expected"]
        inputs, params = given_["inputs"], given_["inputs"]["params"]
        q, k = (xp.asarray(np.zeros((inputs[name], 1))) for name in ("n_q", "n_k"))
        k_distance = params["max_distance"]
        assert 2 * k_distance + 1 == expected["table_size"]
        ours = clipped_distance(*positions(q, k), left=k_distance, right=k_distance)
        xp.check(ours, expected["index"], dtype="int64")
        same = clipped_distance(*positions(q, k, offset=params["query_offset"]), left=2, right=2)
        xp.check(same, expected["index"], dtype="int64")
        wrong = clipped_distance(*positions(q, k, offset=0), left=2, right=2)
        xp.check(wrong, given_["wrong"]["no_offset"]["index"], dtype="int64")

    @claims("P07")
    @given(
        st.lists(st.integers(-300, 300), max_size=5),
        st.lists(st.integers(-300, 300), max_size=5),
        st.integers(0, 5),
        st.integers(0, 5),
    )
    def test_is_the_loop_for_any_positions_and_ends(self, q, k, left, right):
        ours = clipped_distance(np.array(q, dtype=int), np.array(k, dtype=int), left=left, right=right)
        expected = [[clipped(b - a, left, right) for b in k] for a in q]
        np.testing.assert_array_equal(ours, np.reshape(expected, (len(q), len(k))))
        assert np.all((ours >= 0) & (ours <= left + right))

    @claims("P07")
    def test_each_step_of_decoding_reads_the_rows_of_the_full_table(self):
        whole = pairs(7, 7)
        for t in range(7):
            step = clipped_distance(*positions(np.zeros((1, 1)), np.zeros((t + 1, 1))), left=2, right=2)
            np.testing.assert_array_equal(step, whole[t : t + 1, : t + 1])

    @claims("P07")
    def test_texts_longer_than_the_table_and_a_table_of_one_row(self, xp):
        far = xp.asarray([0, 10_000, -(2**40) if xp.wide else -(2**30)], "int64")
        zero = xp.asarray([0], "int64")
        xp.check(clipped_distance(zero, far, left=3, right=1), [[3, 4, 0]], dtype="int64")
        xp.check(clipped_distance(far, far, left=0, right=0), np.zeros((3, 3)), dtype="int64")

    def test_samples_with_positions_of_their_own(self, xp):
        q, k = xp.asarray([[0], [3]], "int64"), xp.asarray([0, 1, 2, 3], "int64")
        expected = [[[1, 2, 2, 2]], [[0, 0, 0, 1]]]
        xp.check(clipped_distance(q, k, left=1, right=1), expected, dtype="int64")

    def test_bad_input(self, xp, other):
        p = xp.asarray([0, 1], "int64")
        for name in ("left", "right"):
            with pytest.raises(ValueError, match=f"{name} is -1"):
                clipped_distance(p, p, **{"left": 1, "right": 1, name: -1})
            with pytest.raises(TypeError, match=name):
                clipped_distance(p, p, **{"left": 1, "right": 1, name: 1.0})
        for bad in ([0, 1], xp.asarray([0.0]), other.asarray([0], "int64")):
            with pytest.raises(TypeError, match="k_positions"):
                clipped_distance(p, bad, left=1, right=1)


def shaw_loop(q, k, a, index, scale):
    return loop(q, k, lambda h, i, j: scale * dot(q[h, i], k[h, j] + a[index[i, j]]))


class TestShaw:
    def test_by_hand(self, xp):
        score = shaw(xp.asarray([[10.0], [20.0], [30.0]]), xp.asarray([[1, 2], [0, 1]], "int64"))
        xp.check(score(xp.asarray([[1.0], [2.0]]), xp.asarray([[1.0], [5.0]])), [[21.0, 35.0], [22.0, 50.0]])

    @pytest.mark.parametrize("scale", [None, 0.7])
    def test_is_the_loop(self, xp, scale):
        x, index = draw(), pairs()
        y = xp.arrays(x)
        ours = attention_scores(y["q"], y["k"], score=shaw(y["a"], xp.asarray(index, "int64"), scale=scale))
        xp.check(ours, shaw_loop(x["q"], x["k"], x["a"], index, scale or 3**-0.5))
        ours = shaw(y["b"], xp.asarray(index, "int64"), scale=scale)(y["q"], y["k"])
        tables = [shaw_loop(x["q"], x["k"], table, index, scale or 3**-0.5)[h] for h, table in enumerate(x["b"])]
        xp.check(ours, tables)

    def test_agrees_with_wav2vec2_bert(self, agree):
        fixture = frozen("transformers_wav2vec2_bert_relative")
        score = shaw(fixture["table"], pairs(6, 6, left=3, right=1))
        agree(
            attention_weights(fixture["q"], fixture["k"], score=score),
            fixture["weights"],
            function="positions.shaw",
            stranger="transformers, relative_key of Wav2Vec2-BERT",
            version=fixture.version,
            dtype="float64",
        )

    def test_grouped_heads_and_samples_with_their_own_index(self, xp):
        x = draw(1, q=(2, 4, 3, 5), k=(2, 2, 3, 5), a=(4, 3, 5))
        index = np.random.default_rng(1).integers(0, 3, size=(2, 1, 3, 3))
        y = xp.arrays(x)
        ours = attention_scores(y["q"], y["k"], score=shaw(y["a"], xp.asarray(index, "int64")))
        for b in range(2):
            for h in range(4):
                alone = shaw(x["a"][h], index[b, 0])(x["q"][b, h], x["k"][b, h // 2])
                np.testing.assert_allclose(xp.numpy(ours)[b, h], alone, atol=xp.tolerance)

    def test_is_the_product_and_the_gather_and_the_skew(self, xp):
        x = xp.arrays(draw(2, q=(2, 4, 3), k=(2, 6, 3), a=(9, 3)))
        index = xp.asarray(pairs(4, 6, left=5, right=3), "int64")
        ours = xp.numpy(shaw(x["a"], index)(x["q"], x["k"]))
        by_row = x["q"] @ x["a"].mT * 3**-0.5
        xp.check(scaled_dot()(x["q"], x["k"]) + read_distances(by_row, index), ours)
        xp.check(scaled_dot()(x["q"], x["k"]) + skew(by_row, keys=6), ours)

    def test_a_table_of_zeros_is_the_scaled_dot_product(self, xp):
        x = xp.arrays(draw())
        ours = shaw(xp.asarray(np.zeros((5, 3))), xp.asarray(pairs(), "int64"))(x["q"], x["k"])
        xp.check(ours, xp.numpy(scaled_dot()(x["q"], x["k"])))

    def test_a_row_that_the_table_does_not_have_is_nan_unless_hidden(self, xp):
        x = xp.arrays(draw(3, q=(2, 3), k=(2, 3), v=(2, 1), a=(2, 3)))
        index = xp.asarray([[0, 2], [-1, 1]], "int64")
        score = shaw(x["a"], index)
        assert np.isnan(xp.numpy(score(x["q"], x["k"]))).tolist() == [[False, True], [True, False]]
        ours = attention(x["q"], x["k"], x["v"], mask=xp.asarray(np.eye(2), "bool"), score=score)
        xp.check(ours, xp.numpy(x["v"]))

    def test_no_queries_no_keys_no_columns(self, xp):
        for n, m, d in ((0, 2, 3), (2, 0, 3), (0, 0, 3), (2, 2, 0)):
            q, k, a = (xp.asarray(np.zeros(shape)) for shape in ((n, d), (m, d), (3, d)))
            xp.check(shaw(a, xp.asarray(np.zeros((n, m)), "int64"))(q, k), np.zeros((n, m)))

    def test_thousands_of_keys_and_half_precision(self, xp):
        index = xp.asarray(pairs(1, 4096), "int64")
        for dtype in ("float32", *xp.narrow_dtypes):
            q, k, a = (xp.asarray(np.ones(shape), dtype) for shape in ((1, 4), (4096, 4), (5, 4)))
            xp.check(shaw(a, index)(q, k), np.full((1, 4096), 4.0), dtype=dtype)

    def test_gradients(self, autograd):
        x, index = draw(4), pairs()
        g = np.random.default_rng(4).normal(size=(2, 4, 6))
        names = ("q", "k", "a")
        expected = finite_differences(lambda q, k, a: shaw(a, index)(q, k), g, *(x[name] for name in names))
        places = autograd.asarray(index, "int64")
        arrays = [autograd.asarray(a) for a in (g, *(x[name] for name in names))]
        for one, two in zip(autograd.vjp(lambda q, k, a: shaw(a, places)(q, k), *arrays), expected, strict=True):
            autograd.check(one, two, tolerance=1e-8)

    def test_bad_input(self, xp, other):
        x, index = xp.arrays(draw()), xp.asarray(pairs(), "int64")
        q, k, a = x["q"], x["k"], x["a"]
        for bad, match in (
            (a[:, :2], r"q has 3 columns, a has 2"),
            (a[0, :], r"a has shape \(3,\)"),
            (a[:0, :], "a has nothing to look up"),
            (xp.asarray(np.ones((3, 5, 3))), r"a has shape \(3, 5, 3\)"),
        ):
            with pytest.raises(ValueError, match=match):
                shaw(bad, index)(q, k)
        with pytest.raises(ValueError, match=r"index has shape \(4, 5\).*\(2, 4, 6\)"):
            shaw(a, index[:, :5])(q, k)
        with pytest.raises(ValueError, match=r"index has shape \(6,\)"):
            shaw(a, index[0, :])(q, k)
        for bad in (pairs().tolist(), xp.asarray(pairs()), other.asarray(pairs(), "int64")):
            with pytest.raises(TypeError, match="index"):
                shaw(a, bad)(q, k)
        with pytest.raises(TypeError, match=r"\ba\b"):
            shaw(other.asarray(np.ones((5, 3))), index)(q, k)
        for build in (lambda **o: shaw(a, index, **o), lambda **o: disentangled(a, a, index, **o)):
            with pytest.raises(ValueError, match="scale"):
                build(scale=math.inf)
            with pytest.raises(TypeError, match="scale"):
                build(scale="1")
        with pytest.raises(ValueError, match="scale"):
            transformer_xl(x["u"], x["v"], a, index, scale=math.nan)


class TestShawValues:
    def test_by_hand(self, xp):
        w, a = xp.asarray([[0.5, 0.5], [0.0, 1.0]]), xp.asarray([[10.0, 1.0], [20.0, 2.0], [30.0, 3.0]])
        xp.check(shaw_values(w, a, xp.asarray([[1, 2], [0, 1]], "int64")), [[25.0, 2.5], [20.0, 2.0]])

    @pytest.mark.parametrize("table", [(5, 2), (3, 5, 2)], ids=str)
    def test_is_the_loop(self, xp, table):
        x, index = draw(5, w=(3, 4, 6), a=table), pairs()
        ours = shaw_values(*xp.arrays(x).values(), xp.asarray(index, "int64"))
        expected = np.zeros((3, 4, 2))
        for h, i, j in np.ndindex(3, 4, 6):
            a = x["a"] if len(table) == 2 else x["a"][h]
            expected[h, i] += x["w"][h, i, j] * a[index[i, j]]
        xp.check(ours, expected)

    def test_is_the_average_of_the_table_by_the_weight_of_each_distance(self):
        w = softmax(np.random.default_rng(6).normal(size=(4, 6)))
        a, index = np.random.default_rng(7).normal(size=(5, 2)), pairs()
        spent = np.stack([np.where(index == r, w, 0).sum(-1) for r in range(5)], axis=-1)
        np.testing.assert_allclose(shaw_values(w, a, index), weighted_average(spent, a), rtol=1e-12)

    def test_gradients(self, autograd):
        x, index = draw(8, g=(2, 4, 2), w=(2, 4, 6), a=(5, 2)), pairs()
        expected = finite_differences(lambda w, a: shaw_values(w, a, index), *x.values())
        places = autograd.asarray(index, "int64")
        ours = autograd.vjp(lambda w, a: shaw_values(w, a, places), *map(autograd.asarray, x.values()))
        for one, two in zip(ours, expected, strict=True):
            autograd.check(one, two, tolerance=1e-8)

    def test_bad_input(self, xp, other):
        w, a, index = xp.asarray(np.ones((4, 6))), xp.asarray(np.ones((5, 2))), xp.asarray(pairs(), "int64")
        with pytest.raises(ValueError, match=r"index has shape \(4, 5\)"):
            shaw_values(w, a, index[:, :5])
        with pytest.raises(ValueError, match=r"w has shape \(6,\)"):
            shaw_values(w[0, :], a, index)
        with pytest.raises(ValueError, match=r"a has shape \(2,\)"):
            shaw_values(w, a[0, :], index)
        with pytest.raises(ValueError, match="a has nothing to look up"):
            shaw_values(w, a[:0, :], index)
        with pytest.raises(ValueError, match="do not broadcast"):
            shaw_values(xp.asarray(np.ones((2, 4, 6))), xp.asarray(np.ones((3, 5, 2))), index)
        for bad in (pairs().tolist(), xp.asarray(pairs()), other.asarray(pairs(), "int64")):
            with pytest.raises(TypeError, match="index"):
                shaw_values(w, a, bad)


class TestReadDistances:
    @given(st.integers(0, 3), st.integers(0, 4), st.integers(1, 4), st.integers(0, 99))
    def test_is_the_loop(self, n, m, r, seed):
        rng = np.random.default_rng(seed)
        x, index = rng.normal(size=(2, n, r)), rng.integers(0, r, size=(n, m))
        expected = [[[x[b, i, index[i, j]] for j in range(m)] for i in range(n)] for b in range(2)]
        np.testing.assert_array_equal(read_distances(x, index), np.reshape(expected, (2, n, m)))

    def test_a_column_that_is_missing_gives_nan(self, xp):
        ours = read_distances(xp.asarray([[1.0, 2.0]]), xp.asarray([[-1, 0, 1, 2]], "int64"))
        xp.check(ours, [[np.nan, 1.0, 2.0, np.nan]])

    def test_bad_input(self, xp, other):
        x, index = xp.asarray(np.ones((2, 3))), xp.asarray(np.zeros((2, 4)), "int64")
        with pytest.raises(ValueError, match=r"x has 1 queries, index has 2"):
            read_distances(x[:1, :], index)
        with pytest.raises(ValueError, match=r"x has shape \(3,\)"):
            read_distances(x[0, :], index)
        with pytest.raises(ValueError, match=r"index has shape \(4,\)"):
            read_distances(x, index[0, :])
        with pytest.raises(ValueError, match="x has nothing to look up"):
            read_distances(x[:, :0], index)
        with pytest.raises(ValueError, match=r"do not broadcast"):
            read_distances(xp.asarray(np.ones((2, 2, 3))), xp.asarray(np.zeros((3, 2, 4)), "int64"))
        with pytest.raises(TypeError, match="index"):
            read_distances(x, other.asarray(np.zeros((2, 4)), "int64"))


class TestSkew:
    def test_by_hand(self, xp):
        x = xp.asarray([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0], [7.0, 8.0, 9.0]])
        xp.check(skew(x, keys=3), [[3.0, 0.0, 0.0], [5.0, 6.0, 0.0], [7.0, 8.0, 9.0]])

    @given(st.integers(0, 4), st.integers(0, 5), st.integers(0, 5), st.integers(0, 99))
    def test_is_the_loop(self, n, m, more, seed):
        r = m + more
        x = np.random.default_rng(seed).normal(size=(2, n, r))
        y = [
            [[x[b, i, j - i + n - 1] if j - i + n - 1 < r else 0.0 for j in range(m)] for i in range(n)]
            for b in range(2)
        ]
        np.testing.assert_array_equal(skew(x, keys=m), np.reshape(y, (2, n, m)))

    @pytest.mark.parametrize(("n", "m"), [(1, 1), (4, 4), (2, 5), (5, 3)])
    def test_is_the_gather_with_all_distances_and_under_a_causal_mask(self, xp, n, m):
        x = np.random.default_rng(9).normal(size=(2, n, n + m - 1))
        index = pairs(n, m, left=m - 1, right=n - 1)
        xp.check(skew(xp.asarray(x), keys=m), read_distances(x, index))
        past = x[..., :m]
        allowed = causal(*positions(np.zeros((n, 1)), np.zeros((m, 1))))
        known = read_distances(past, np.minimum(index, m - 1))
        np.testing.assert_array_equal(np.where(allowed, skew(past, keys=m), 0), np.where(allowed, known, 0))

    def test_nothing_spills_from_one_row_into_another(self, xp):
        x = np.array([[1.0, 2.0], [np.nan, np.inf]])
        xp.check(skew(xp.asarray(x), keys=2), [[2.0, 0.0], [np.nan, np.inf]])

    def test_gradient(self, autograd):
        rng = np.random.default_rng(10)
        g, x = rng.normal(size=(3, 4)), rng.normal(size=(3, 5))
        (expected,) = finite_differences(lambda a: skew(a, keys=4), g, x)
        (ours,) = autograd.vjp(lambda a: skew(a, keys=4), autograd.asarray(g), autograd.asarray(x))
        autograd.check(ours, expected, tolerance=1e-8)

    def test_bad_input(self, xp):
        x = xp.asarray(np.ones((2, 3)))
        with pytest.raises(ValueError, match=r"keys is 4; x has 3 columns"):
            skew(x, keys=4)
        with pytest.raises(ValueError, match=r"keys is -1"):
            skew(x, keys=-1)
        with pytest.raises(TypeError, match="keys"):
            skew(x, keys=2.0)
        with pytest.raises(ValueError, match=r"x has shape \(3,\)"):
            skew(x[0, :], keys=2)


def xl_loop(x, index, scale):
    q, k, a = x["q"], x["k"], x["a"]

    def term(h, i, j):
        return scale * (dot(q[h, i] + x["u"][h], k[h, j]) + dot(q[h, i] + x["v"], a[index[i, j]]))

    return loop(q, k, term)


class TestTransformerXl:
    @pytest.mark.parametrize("scale", [None, 0.7])
    def test_is_the_loop(self, xp, scale):
        x, index = draw(11), pairs()
        y = xp.arrays(x)
        score = transformer_xl(y["u"], y["v"], y["a"], xp.asarray(index, "int64"), scale=scale)
        xp.check(attention_scores(y["q"], y["k"], score=score), xl_loop(x, index, scale or 3**-0.5))

    def test_agrees_with_xlnet(self, agree):
        fixture = frozen("transformers_xlnet_relative")
        q, k, v = (fixture[name].swapaxes(0, 1) for name in "qkv")
        # rows of XLNet: query minus key from 7 down to -3, so key minus query from -7 up to 3
        table = np.einsum("rh,hnd->nrd", fixture["encoded"], fixture["projection"])
        score = transformer_xl(fixture["u"], fixture["w"], table, pairs(4, 7, left=7, right=3))
        notes = {"version": fixture.version, "clash": "sinusoids of query minus key, from the farthest left"}
        agree(
            attention(q, k, v, score=score).swapaxes(0, 1).reshape(4, 12),
            fixture["out"].reshape(4, 12),
            function="positions.transformer_xl",
            stranger="transformers, rel_attn_core of XLNet",
            dtype="float64",
            **notes,
        )
        by_distance = np.einsum("nid,nrd->nir", q + fixture["w"][:, None], table)
        bias = skew(by_distance[..., 1:], keys=7) / math.sqrt(6)
        shifted = attention(q + fixture["u"][:, None], k, v, bias=bias)
        np.testing.assert_allclose(shifted, attention(q, k, v, score=score), rtol=1e-12)
        agree(
            sinusoidal(-np.arange(-7, 4), width=12, layout="concatenated"),
            fixture["encoded"],
            function="positions.sinusoidal",
            stranger="transformers, sinusoids of XLNet",
            dtype="float32",
            **notes,
        )

    def test_is_shaw_without_the_two_queries(self, xp):
        x, index = xp.arrays(draw()), xp.asarray(pairs(), "int64")
        none = xp.asarray(np.zeros(3))
        ours = transformer_xl(none, none, x["a"], index)(x["q"], x["k"])
        xp.check(ours, xp.numpy(shaw(x["a"], index)(x["q"], x["k"])))

    def test_gradients(self, autograd):
        x, index = draw(12), pairs()
        g, names = np.random.default_rng(12).normal(size=(2, 4, 6)), ("q", "k", "u", "v", "a")
        places = autograd.asarray(index, "int64")
        expected = finite_differences(
            lambda q, k, u, v, a: transformer_xl(u, v, a, index)(q, k), g, *(x[n] for n in names)
        )
        arrays = [autograd.asarray(a) for a in (g, *(x[name] for name in names))]
        ours = autograd.vjp(lambda q, k, u, v, a: transformer_xl(u, v, a, places)(q, k), *arrays)
        for one, two in zip(ours, expected, strict=True):
            autograd.check(one, two, tolerance=1e-8)

    def test_bad_input(self, xp):
        x, index = xp.arrays(draw()), xp.asarray(pairs(), "int64")
        q, k, a, u = x["q"], x["k"], x["a"], x["u"]
        for name, bad in (("u", u[:, :2]), ("v", xp.asarray(np.ones((3, 3)))), ("v", xp.asarray(1.0))):
            arguments = {"u": u, "v": u} | {name: bad}
            with pytest.raises(ValueError, match=rf"\b{name} has shape"):
                transformer_xl(*arguments.values(), a, index)(q, k)
        with pytest.raises(ValueError, match=r"a has shape \(3,\)"):
            transformer_xl(u, u, a[0, :], index)(q, k)


class TestDisentangled:
    @pytest.mark.parametrize("scale", [None, 0.7])
    def test_is_the_loop(self, xp, scale):
        x, index = draw(13), pairs()
        y = xp.arrays(x)

        def term(h, i, j):
            q, k, row = x["q"][h, i], x["k"][h, j], index[i, j]
            return (scale or 9**-0.5) * (dot(q, k) + dot(q, x["a"][row]) + dot(x["b"][h, row], k))

        score = disentangled(y["a"], y["b"], xp.asarray(index, "int64"), scale=scale)
        xp.check(attention_scores(y["q"], y["k"], score=score), loop(x["q"], x["k"], term))

    def test_agrees_with_deberta(self, agree):
        fixture = frozen("transformers_deberta_disentangled")
        a, b = (fixture[name][:, ::-1] for name in ("keys", "queries"))
        score = disentangled(a, b, pairs(7, 7, left=2, right=3))
        agree(
            attention_weights(fixture["q"], fixture["k"], score=score),
            fixture["weights"],
            function="positions.disentangled",
            stranger="transformers, DeBERTa-v2 without buckets",
            version=fixture.version,
            dtype="float64",
            clash="tables are ordered by query minus key and lack the row of the largest distance to the left",
        )

    def test_the_paper_reads_the_second_table_from_the_other_end(self):
        """The paper's last term has delta(j, i): within the span this is the code's table with its rows in reverse."""
        rng, span, n = np.random.default_rng(14), 4, 4
        q, k, keys, queries = (rng.normal(size=size) for size in ((n, 3), (n, 3), (8, 3), (8, 3)))

        def delta(i, j):
            return min(max(i - j + span, 0), 2 * span - 1)

        paper = [
            [dot(q[i], k[j]) + dot(q[i], keys[delta(i, j)]) + dot(queries[delta(j, i)], k[j]) for j in range(n)]
            for i in range(n)
        ]
        other = np.roll(queries[::-1], 1, axis=0)  # row c becomes row 2 * span - c
        index = pairs(n, n, left=span - 1, right=span)
        ours = disentangled(keys[::-1], other[::-1], index, scale=1.0)(q, k)
        np.testing.assert_allclose(ours, paper, rtol=1e-12)

    def test_is_shaw_without_the_second_table(self, xp):
        x, index = xp.arrays(draw()), xp.asarray(pairs(), "int64")
        none = xp.asarray(np.zeros((5, 3)))
        ours = disentangled(x["a"], none, index, scale=0.3)(x["q"], x["k"])
        xp.check(ours, xp.numpy(shaw(x["a"], index, scale=0.3)(x["q"], x["k"])))

    def test_gradients(self, autograd):
        x, index = draw(15), pairs()
        g, names = np.random.default_rng(15).normal(size=(2, 4, 6)), ("q", "k", "a", "b")
        places = autograd.asarray(index, "int64")
        expected = finite_differences(lambda q, k, a, b: disentangled(a, b, index)(q, k), g, *(x[n] for n in names))
        arrays = [autograd.asarray(a) for a in (g, *(x[name] for name in names))]
        ours = autograd.vjp(lambda q, k, a, b: disentangled(a, b, places)(q, k), *arrays)
        for one, two in zip(ours, expected, strict=True):
            autograd.check(one, two, tolerance=1e-8)

    def test_bad_input(self, xp):
        x, index = xp.arrays(draw()), xp.asarray(pairs(), "int64")
        with pytest.raises(ValueError, match=r"b has shape \(3,\)"):
            disentangled(x["a"], x["a"][0, :], index)(x["q"], x["k"])
        with pytest.raises(ValueError, match=r"q has 3 columns, a has 2"):
            disentangled(x["a"][:, :2], x["a"], index)(x["q"], x["k"])


def schemes(x, index):
    return {
        "shaw": shaw(x["a"], index),
        "transformer_xl": transformer_xl(x["u"], x["v"], x["a"], index),
        "disentangled": disentangled(x["a"], x["b"], index),
    }


NAMES = ("shaw", "transformer_xl", "disentangled")
TABLES = {"a": (5, 4), "b": (5, 4), "u": (4,), "v": (4,)}


@pytest.mark.parametrize("name", NAMES)
class TestWithACache:
    def test_token_by_token_and_in_pieces_equals_the_full_pass(self, xp, name):
        x = xp.arrays(draw(16, q=(7, 4), k=(7, 4), values=(7, 2), table=(5, 2), **TABLES))

        def read(start, stop):
            q, k = x["q"][start:stop, :], x["k"][:stop, :]
            places = positions(q, k)
            index, mask = clipped_distance(*places, left=3, right=1), causal(*places)
            w = attention_weights(q, k, mask=mask, score=schemes(x, index)[name])
            return weighted_average(w, x["values"][:stop, :]) + shaw_values(w, x["table"], index)

        whole = xp.numpy(read(0, 7))
        for cuts in ((0, 2, 3, 7),) if xp.compiles else (range(8), (0, 2, 3, 7)):
            for start, stop in itertools.pairwise(cuts):
                xp.check(read(start, stop), whole[start:stop])

    def test_appending_leaves_earlier_rows_alone(self, name):
        x = draw(17, q=(8, 4), k=(8, 4), values=(8, 2), **TABLES)

        def read(n):
            index = pairs(n, n, left=3, right=1)
            mask, score = np.tri(n, dtype=bool), schemes(x, index)[name]
            return attention(x["q"][:n], x["k"][:n], x["values"][:n], mask=mask, score=score)

        np.testing.assert_allclose(read(8)[:5], read(5), rtol=1e-12)

    def test_moving_all_positions_changes_nothing(self, name):
        x = draw(18, q=(4, 4), k=(6, 4), **TABLES)
        q, k = np.array([3, -2, 7, 7]), np.array([0, 5, -4, 9, 2, 30])
        here, there = (clipped_distance(q + step, k + step, left=2, right=2) for step in (0, 10**9))
        one, two = (schemes(x, index)[name](x["q"], x["k"]) for index in (here, there))
        np.testing.assert_array_equal(one, two)


@pytest.mark.parametrize(("name", "invariant"), held("positions/relative"))
def test_shared_invariants(xp, name, invariant):
    invariant(SUBJECTS[name], xp)
