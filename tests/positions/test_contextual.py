"""softlookup.positions.contextual: CoPE counts what a query wants counted, PaTH turns past every item."""

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

from softlookup.lookup import attention, attention_scores, attention_weights, scaled_dot, softmax
from softlookup.masks import causal
from softlookup.positions import (
    cope,
    cope_positions,
    forgetting,
    path,
    path_by_queries,
    path_step,
    path_transfer,
    read_between,
    rotary,
)

INF, NAN = math.inf, math.nan
SHAPES = {"q": (2, 3, 4), "k": (2, 5, 4), "e": (4, 4), "w": (2, 5, 4), "beta": (5,)}
PATHS = {"path": path, "path_by_queries": path_by_queries}
each_path = pytest.mark.parametrize("function", PATHS.values(), ids=PATHS)


def draw(seed=0, **shapes):
    rng = np.random.default_rng(seed)
    return {name: rng.normal(size=shape) for name, shape in (SHAPES | shapes).items()}


def recent(n=3, m=5):
    """The last n of m items read what is not later."""
    return causal(np.arange(m - n, m), np.arange(m))


def uneven(seed, n=3, m=5):
    return np.random.default_rng(seed).random((n, m)) < 0.6


def gate(s):
    return 1 / (1 + math.exp(-s))


def counted(s, allowed, j, largest=INF):
    return min(math.fsum(gate(s[x]) for x in range(j, len(s)) if allowed[x]), largest)


def on_the_line(e, p):
    low, high = math.floor(p), math.ceil(p)
    return e[low] + (p - low) * (e[high] - e[low])


def loop_cope(q, k, e, mask, scale=0.5):
    """One head: a vector for each pair, between two rows of the table."""
    out = np.zeros(mask.shape)
    for i in range(len(q)):
        z = [scale * math.fsum(q[i] * key) for key in k]
        for j in range(len(k)):
            out[i, j] = z[j] + math.fsum(q[i] * on_the_line(e, counted(z, mask[i], j, len(e) - 1)))
    return out


def loop_path(q, k, w, beta, mask, scale=0.5):
    """One head: the key is turned by one matrix after the other, the earliest first."""
    out, eye = np.zeros(mask.shape), np.eye(q.shape[-1])
    for i in range(len(q)):
        for j in range(len(k)):
            x = k[j]
            for item in range(j + 1, len(k)):
                if mask[i, item]:
                    x = (eye - beta[item] * np.outer(w[item], w[item])) @ x
            out[i, j] = scale * math.fsum(q[i] * x)
    return out


class TestCopePositions:
    @given(st.integers(0, 99), st.sampled_from([None, 0, 0.7, 2.0]))
    def test_is_the_loop(self, seed, largest):
        s, allowed = 3 * np.random.default_rng(seed).normal(size=(3, 5)), uneven(seed)
        bound = INF if largest is None else largest
        expected = [[counted(s[i], allowed[i], j, bound) for j in range(5)] for i in range(3)]
        np.testing.assert_allclose(cope_positions(s, allowed, largest=largest), expected, rtol=1e-12)

    def test_open_gates_count_the_keys_and_closed_ones_nothing(self, xp):
        mask = xp.asarray(recent(2, 4), "bool")
        s = xp.asarray(np.full((2, 4), 800.0))
        xp.check(cope_positions(s, mask), [[3, 2, 1, 0], [4, 3, 2, 1]])
        xp.check(cope_positions(-s, mask), np.zeros((2, 4)))
        xp.check(cope_positions(s, mask, largest=2), [[2, 2, 1, 0], [2, 2, 2, 1]])
        xp.check(cope_positions(s), [[4, 3, 2, 1]] * 2)

    def test_infinite_scores_are_gates_and_nan_stays(self, xp):
        s = xp.asarray([[INF, -INF, 0.0, INF, 0.0], [0.0, NAN, 0.0, 0.0, INF]])
        expected = [[3, 2, 2, 1.5, 0.5], [NAN, NAN, 2, 1.5, 1]]
        xp.check(cope_positions(s), expected)
        xp.check(cope_positions(s, largest=1), np.minimum(expected, 1))
        hidden = xp.asarray([[True, False, True, True, False]] * 2, "bool")
        xp.check(cope_positions(s, hidden), [[2.5, 1.5, 1.5, 1, 0], [1.5, 1, 1, 0.5, 0]])

    def test_thousands_of_items_in_single_precision(self):
        s = np.random.default_rng(1).normal(size=(1, 5000))
        wide, narrow = cope_positions(s), cope_positions(s.astype(np.float32))
        assert narrow.dtype == np.float32
        np.testing.assert_allclose(narrow, wide, rtol=2e-4)

    def test_bad_input(self, xp, other):
        s = xp.asarray(np.zeros((2, 3)))
        with pytest.raises(ValueError, match=r"s has shape \(2,\)"):
            cope_positions(s[:, 0])
        with pytest.raises(ValueError, match=r"largest is -1.*negative"):
            cope_positions(s, largest=-1)
        with pytest.raises(ValueError, match="largest is inf"):
            cope_positions(s, largest=INF)
        with pytest.raises(TypeError, match="largest"):
            cope_positions(s, largest="2")
        with pytest.raises(ValueError, match=r"allowed has shape \(2, 4\)"):
            cope_positions(s, xp.asarray(np.ones((2, 4)), "bool"))
        for bad in (s, other.asarray(np.ones((2, 3)), "bool")):
            with pytest.raises(TypeError, match="allowed"):
                cope_positions(s, bad)


class TestReadBetween:
    @given(st.lists(st.floats(0, 3), max_size=6), st.integers(0, 9))
    def test_is_the_loop(self, places, seed):
        x = np.random.default_rng(seed).normal(size=(2, 4))
        p = np.array([places, places]).reshape(2, len(places))
        expected = [[on_the_line(row, place) for place in places] for row in x]
        np.testing.assert_allclose(read_between(x, p), np.reshape(expected, p.shape), rtol=1e-12, atol=1e-12)

    def test_agrees_with_numpy_interp(self, agree):
        rng = np.random.default_rng(2)
        x, p = rng.normal(size=(3, 6)), rng.uniform(0, 5, size=(3, 9))
        agree(
            read_between(x, p),
            np.stack([np.interp(places, np.arange(6), row) for places, row in zip(p, x, strict=True)]),
            function="positions.read_between",
            stranger="numpy.interp",
            version=f"numpy {np.__version__}",
            dtype="float64",
        )

    def test_no_such_place_is_nan(self, xp):
        x = xp.asarray([[1.0, 3.0]])
        places = [[-0.1, 0.0, 1.0, 1.1, NAN, INF, -INF, 0.25]]
        xp.check(read_between(x, xp.asarray(places)), [[NAN, 1, 3, NAN, NAN, NAN, NAN, 1.5]])

    def test_gradient_at_a_whole_place_is_zero(self, autograd):
        x, g = autograd.asarray([[1.0, 5.0, 6.0]]), autograd.asarray(np.ones((1, 3)))
        p = autograd.asarray([[1.0, 0.5, 2.0]])
        dx, dp = autograd.vjp(read_between, g, x, p)
        autograd.check(dx, [[0.5, 1.5, 1.0]])
        autograd.check(dp, [[0.0, 4.0, 0.0]])

    def test_bad_input(self, xp, other):
        x = xp.asarray(np.zeros((2, 3)))
        with pytest.raises(ValueError, match="x has 2 queries, p has 1"):
            read_between(x, x[:1, :])
        with pytest.raises(ValueError, match="nothing to look up"):
            read_between(x[:, :0], x)
        with pytest.raises(ValueError, match=r"p has shape \(3,\)"):
            read_between(x, x[0, :])
        with pytest.raises(ValueError, match=r"x has shape \(3,\)"):
            read_between(x[0, :], x)
        with pytest.raises(ValueError, match=r"leading axes.*x has \(2,\), p has \(3,\)"):
            read_between(xp.asarray(np.zeros((2, 1, 3))), xp.asarray(np.zeros((3, 1, 3))))
        with pytest.raises(TypeError, match="one library"):
            read_between(x, other.asarray(np.zeros((2, 3))))


class TestCope:
    @pytest.mark.parametrize("scale", [None, 1.3])
    def test_is_the_loop(self, xp, scale):
        x = draw(3, e=(2, 4, 4))
        y, mask = xp.arrays(x), uneven(3)
        score = cope(y["e"], xp.asarray(mask, "bool"), scale=scale)
        expected = [loop_cope(x["q"][h], x["k"][h], x["e"][h], mask, scale or 0.5) for h in range(2)]
        xp.check(attention_scores(y["q"], y["k"], score=score), expected)

    def test_agrees_with_x_transformers(self, agree):
        fixture = frozen("x_transformers_cope")
        mask = np.tri(7, dtype=bool)
        both = cope(fixture["e"], mask)(fixture["q"], fixture["k"])
        content = scaled_dot()(fixture["q"], fixture["k"])
        agree(
            (both - content)[..., mask],
            fixture["out"][..., mask],
            function="positions.cope",
            stranger="x-transformers, CoPE, the term of the counts",
            version=fixture.version,
            dtype="float64",
        )

    def test_released_code_divides_the_second_term_too(self):
        """softmax of (q·k + q·e[p]) / sqrt(d), with gates from q·k / sqrt(d)."""
        x, mask = draw(4), recent()
        q, k, e = x["q"][0], x["k"][0], x["e"]
        p = cope_positions(scaled_dot()(q, k), mask, largest=3)
        released = (q @ k.T + read_between(q @ e.T, p)) / 2
        np.testing.assert_allclose(cope(e / 2, mask)(q, k), released, rtol=1e-12)

    def test_open_gates_give_relative_positions(self):
        """Every gate is open, so the count is the number of items from the key to the query."""
        x = draw(5, q=(6, 4), k=(6, 4), e=(8, 4))
        x["q"][:, 0], x["k"][:, 0] = 1e2, 1e2
        mask = np.tri(6, dtype=bool)
        distance = np.arange(6)[:, None] - np.arange(6)
        expected = x["q"] @ x["k"].T / 2 + np.sum(x["q"][:, None] * x["e"][np.maximum(distance + 1, 0)], -1)
        ours = cope(x["e"], mask)(x["q"], x["k"])
        np.testing.assert_allclose(ours[mask], expected[mask], rtol=1e-12)

    def test_equal_rows_change_no_weight(self, xp):
        x = xp.arrays(draw(6))
        mask = xp.asarray(recent(), "bool")
        same = xp.asarray(np.ones((4, 1)) * np.arange(4))
        ours = attention_weights(x["q"], x["k"], mask=mask, score=cope(same, mask))
        xp.check(ours, xp.numpy(attention_weights(x["q"], x["k"], mask=mask)))
        xp.check(cope(0 * same, mask)(x["q"], x["k"]), xp.numpy(scaled_dot()(x["q"], x["k"])))

    def test_one_row_leaves_nothing_to_count(self, xp):
        x = xp.arrays(draw(7))
        mask = xp.asarray(recent(), "bool")
        row = x["e"][:1, :]
        expected = xp.numpy(scaled_dot()(x["q"], x["k"])) + xp.numpy(x["q"] @ row.mT)
        xp.check(cope(row, mask)(x["q"], x["k"]), expected)

    def test_gradients(self, autograd):
        x, g = draw(8), np.random.default_rng(8).normal(size=(2, 3, 5))
        names, mask = ("q", "k", "e"), autograd.asarray(recent(), "bool")
        expected = finite_differences(lambda q, k, e: cope(e, recent())(q, k), g, *(x[n] for n in names))
        arrays = [autograd.asarray(a) for a in (g, *(x[n] for n in names))]
        for one, two in zip(autograd.vjp(lambda q, k, e: cope(e, mask)(q, k), *arrays), expected, strict=True):
            autograd.check(one, two, tolerance=1e-8)

    def test_bad_input(self, xp, other):
        x = xp.arrays(draw())
        mask = xp.asarray(recent(), "bool")

        def bad(match, error=ValueError, e=x["e"], m=mask, q=x["q"]):
            with pytest.raises(error, match=match):
                cope(e, m)(q, x["k"])

        bad("e has no row", e=x["e"][:0, :])
        bad("q has 4 columns, e has 3", e=x["e"][:, :3])
        bad(r"e has shape \(4,\)", e=x["e"][0, :])
        bad(r"e has shape \(3, 4, 4\)", e=xp.asarray(np.zeros((3, 4, 4))))
        bad(r"mask has shape \(5, 3\)", m=mask.mT)
        bad("q has 3 columns, k has 4", q=x["q"][..., :3])
        bad("mask must be an array", error=TypeError, m=None)
        bad("mask must be boolean", error=TypeError, m=xp.asarray(np.ones((3, 5))))
        bad("one library", error=TypeError, m=other.asarray(recent(), "bool"))
        bad("one library", error=TypeError, e=other.asarray(np.zeros((4, 4))))
        with pytest.raises(ValueError, match="scale is inf"):
            cope(x["e"], mask, scale=INF)
        with pytest.raises(TypeError, match="scale"):
            cope(x["e"], mask, scale="1")


class TestPathTransfer:
    def test_is_the_product_with_the_latest_item_leftmost(self, xp):
        x = draw(9, w=(4, 3), beta=(4,))
        one, two, three = (np.eye(3) - x["beta"][i] * np.outer(x["w"][i], x["w"][i]) for i in (1, 2, 3))
        mask = np.array([[True, True, True, False], [True, True, False, True]])
        eye = np.eye(3)
        expected = [[two @ one, two, eye, eye], [three @ one, three, three, eye]]
        y = xp.arrays(x)
        xp.check(path_transfer(y["w"], y["beta"], xp.asarray(mask, "bool")), expected)

    def test_a_mask_for_each_sample(self, xp):
        x, masks = draw(9, w=(4, 3), beta=(4,)), np.stack([uneven(1, 2, 4), uneven(2, 2, 4)])
        expected = [path_transfer(x["w"], x["beta"], mask) for mask in masks]
        y = xp.arrays(x)
        xp.check(xp.quick(path_transfer)(y["w"], y["beta"], xp.asarray(masks, "bool")), expected)

    def test_reflections_keep_lengths(self):
        x = draw(10, w=(6, 4))
        w = x["w"] / np.linalg.norm(x["w"], axis=-1, keepdims=True)
        turned = path_transfer(w, np.full(6, 2.0), np.tri(6, dtype=bool))
        eye = np.broadcast_to(np.eye(4), turned.shape)
        np.testing.assert_allclose(turned @ turned.swapaxes(-1, -2), eye, atol=1e-12)
        passed = np.maximum(np.arange(6)[:, None] - np.arange(6), 0)
        np.testing.assert_allclose(np.linalg.det(turned), (-1.0) ** passed, rtol=1e-12)

    def test_between_zero_and_two_nothing_grows(self):
        x = draw(11, w=(9, 4))
        w = x["w"] / np.linalg.norm(x["w"], axis=-1, keepdims=True)
        turned = path_transfer(w, np.random.default_rng(11).uniform(0, 2, size=9), np.tri(9, dtype=bool))
        assert np.linalg.norm(turned, ord=2, axis=(-2, -1)).max() < 1 + 1e-12

    def test_bad_input(self, xp, other):
        w, beta, mask = xp.asarray(np.ones((5, 3))), xp.asarray(np.ones(5)), xp.asarray(recent(), "bool")
        with pytest.raises(ValueError, match=r"w has shape \(3,\)"):
            path_transfer(w[0, :], beta, mask)
        with pytest.raises(ValueError, match=r"beta has shape \(\)"):
            path_transfer(w, beta[0], mask)
        with pytest.raises(ValueError, match=r"mask has shape \(5,\)"):
            path_transfer(w, beta, mask[0, :])
        with pytest.raises(ValueError, match="w has 5 items, beta has 4"):
            path_transfer(w, beta[:4], mask)
        with pytest.raises(ValueError, match="beta has 5 items, mask has 4"):
            path_transfer(w, beta, mask[:, :4])
        with pytest.raises(ValueError, match="leading axes"):
            path_transfer(xp.asarray(np.ones((2, 5, 3))), xp.asarray(np.ones((3, 5))), mask)
        with pytest.raises(TypeError, match="mask must be boolean"):
            path_transfer(w, beta, xp.asarray(np.ones((3, 5))))
        with pytest.raises(TypeError, match="one library"):
            path_transfer(w, beta, other.asarray(recent(), "bool"))


@each_path
class TestPath:
    @pytest.mark.parametrize("scale", [None, 1.3])
    def test_is_the_loop(self, xp, function, scale):
        x, mask = draw(12), uneven(12)
        y = xp.arrays(x)
        score = xp.quick(function(y["w"], y["beta"], xp.asarray(mask, "bool"), scale=scale))
        expected = [loop_path(x["q"][h], x["k"][h], x["w"][h], x["beta"], mask, scale or 0.5) for h in range(2)]
        xp.check(score(y["q"], y["k"]), expected)

    def test_agrees_with_fla(self, agree, function):
        """Two heads of keys and directions serve four heads of queries; the scale multiplies the forgetting too."""
        fixture = frozen("fla_path")
        q, k, v, w = (np.moveaxis(fixture[name], 2, 1) for name in ("q", "k", "v", "w"))
        beta, log_f = (np.moveaxis(fixture[name], 2, 1) for name in ("beta", "log_f"))
        p, mask = np.arange(7), np.tri(7, dtype=bool)
        score = function(np.repeat(w, 2, axis=1), np.repeat(beta, 2, axis=1), mask, scale=0.4)
        for name, bias in (("out", None), ("forgot", 0.4 * forgetting(p, p, log_f))):
            agree(
                np.moveaxis(attention(q, k, v, mask=mask, bias=bias, score=score), 1, 2),
                fixture[name],
                function="positions.path",
                stranger="fla naive_path_attn, without and with forgetting",
                version=fixture.version,
                dtype="float32",
                clash="multiplies the sum of score and forgetting by the scale",
            )

    def test_no_turn_is_the_dot_product(self, xp, function):
        x = xp.arrays(draw(13))
        score = xp.quick(function(x["w"], 0 * x["beta"], xp.asarray(recent(), "bool")))
        xp.check(score(x["q"], x["k"]), xp.numpy(scaled_dot()(x["q"], x["k"])))

    def test_orthonormal_directions_are_taken_away_one_by_one(self, function):
        """Then the product is the identity minus the sum."""
        x, mask = draw(14, q=(4, 4), k=(4, 4)), np.tri(4, dtype=bool)
        w = np.linalg.qr(x["w"][0, :4])[0]
        beta = np.array([0.3, 2.0, 1.0, 0.7])
        later = mask[:, None, :] & (np.arange(4) > np.arange(4)[:, None])
        lost = np.einsum("ijl,l,il,jl->ij", later, beta, x["q"] @ w.T, x["k"] @ w.T)
        ours = function(w, beta, mask, scale=1.0)(x["q"], x["k"])
        np.testing.assert_allclose(ours, x["q"] @ x["k"].T - lost, atol=1e-12)

    @pytest.mark.parametrize("angle", [0.3, -1.0])
    def test_turning_mirrors_are_rotary_at_even_distances(self, function, angle):
        x, p = draw(15, q=(9, 2), k=(9, 2)), np.arange(9)
        w = np.stack([np.cos(angle * p), -np.sin(angle * p)], axis=-1)
        mask = np.tri(9, dtype=bool)
        ours = function(w, np.full(9, 2.0), mask)(x["q"], x["k"])
        q, k = (rotary(a, p, np.array([angle]), pairing="interleaved") for a in (x["q"], x["k"]))
        expected, even = scaled_dot()(q, k), mask & ((p[:, None] - p) % 2 == 0)
        np.testing.assert_allclose(ours[even], expected[even], rtol=1e-10)
        assert not np.isclose(ours, expected)[mask & ~even].any()

    def test_the_same_mirror_twice_is_none(self, function):
        x, p = draw(16, q=(6, 4), k=(6, 4)), np.arange(6)
        w = np.broadcast_to([0.6, 0.8, 0.0, 0.0], (6, 4))
        ours = function(w, np.full(6, 2.0), np.tri(6, dtype=bool))(x["q"], x["k"])
        even = np.tri(6, dtype=bool) & ((p[:, None] - p) % 2 == 0)
        np.testing.assert_allclose(ours[even], scaled_dot()(x["q"], x["k"])[even], rtol=1e-11)

    def test_what_was_overwritten_is_not_found(self, function):
        """Directions are the keys and beta is one: of equal keys only the last is left."""
        k = np.eye(3)[[0, 1, 0, 2, 0, 2]]
        mask = np.ones((1, 6), dtype=bool)
        for query, found in ((0, 4), (1, 1), (2, 5)):
            ours = function(k, np.ones(6), mask, scale=1.0)(np.eye(3)[[query]], k)
            np.testing.assert_array_equal(ours[0], np.arange(6) == found)

    def test_gradients(self, autograd, function):
        x = draw(17, q=(2, 3), k=(3, 3), w=(3, 3), beta=(3,))
        g, names = np.random.default_rng(17).normal(size=(2, 3)), ("q", "k", "w", "beta")
        mask = autograd.asarray(recent(2, 3), "bool")
        expected = finite_differences(lambda q, k, w, b: function(w, b, recent(2, 3))(q, k), g, *(x[n] for n in names))
        arrays = [autograd.asarray(a) for a in (g, *(x[n] for n in names))]
        ours = autograd.vjp(lambda q, k, w, b: function(w, b, mask)(q, k), *arrays)
        for one, two in zip(ours, expected, strict=True):
            autograd.check(one, two, tolerance=1e-8)

    def test_width_one_and_zero(self, function):
        """Without a column every score is zero, and one column is not divided."""
        ones, mask = np.ones((2, 1)), np.ones((2, 2), dtype=bool)
        np.testing.assert_array_equal(function(ones, np.array([0.0, 0.5]), mask)(ones, 3 * ones), [[1.5, 3], [1.5, 3]])
        none = ones[:, :0]
        np.testing.assert_array_equal(function(none, np.ones(2), mask)(none, none), np.zeros((2, 2)))

    def test_one_direction_for_all_items_and_one_item(self, xp, function):
        x = xp.arrays(draw(18))
        mask = xp.asarray(recent(), "bool")
        one = x["w"][:, :1, :]
        same = xp.asarray(np.broadcast_to(draw(18)["w"][:, :1], (2, 5, 4)))
        beta = xp.asarray(np.full(5, 0.5))
        ours = xp.quick(function(one, beta[:1], mask))(x["q"], x["k"])
        xp.check(ours, xp.numpy(xp.quick(function(same, beta, mask))(x["q"], x["k"])))
        ours = xp.quick(function(one, beta[:1], mask[:, :1]))(x["q"], x["k"][:, :1, :])
        xp.check(ours, xp.numpy(scaled_dot()(x["q"], x["k"][:, :1, :])))

    def test_bad_input(self, xp, other, function):
        x = xp.arrays(draw())
        usual = xp.asarray(recent(), "bool")

        def bad(match, error=ValueError, mask=usual, **given):
            y = x | given
            with pytest.raises(error, match=match):
                function(y["w"], y["beta"], mask)(y["q"], y["k"])

        bad(r"w has shape \(4,\)", w=x["w"][0, 0, :])
        bad(r"w has shape \(2, 4, 4\)", w=x["w"][:, :4, :])
        bad(r"w has shape \(2, 5, 3\)", w=x["w"][..., :3])
        bad(r"beta has shape \(\)", beta=x["beta"][0])
        bad(r"beta has shape \(4,\)", beta=x["beta"][:4])
        bad(r"mask has shape \(5, 3\)", mask=usual.mT)
        bad("q has 3 columns, k has 4", q=x["q"][..., :3])
        bad("mask must be an array", error=TypeError, mask=None)
        bad("mask must be boolean", error=TypeError, mask=xp.asarray(np.ones((3, 5))))
        bad("one library", error=TypeError, mask=other.asarray(recent(), "bool"))
        with pytest.raises(ValueError, match="scale is nan"):
            function(x["w"], x["beta"], usual, scale=NAN)
        with pytest.raises(TypeError, match="scale"):
            function(x["w"], x["beta"], usual, scale="1")


class TestPathByQueries:
    @given(st.integers(0, 999), st.integers(0, 6), st.integers(0, 6))
    def test_is_the_definition(self, seed, n, m):
        x = draw(seed, q=(2, n, 3), k=(2, m, 3), w=(m, 3), beta=(2, m))
        mask = uneven(seed, n, m)
        expected = path(x["w"], x["beta"], mask)(x["q"], x["k"])
        np.testing.assert_allclose(path_by_queries(x["w"], x["beta"], mask)(x["q"], x["k"]), expected, atol=1e-10)

    def test_is_one_triangular_system(self):
        """The form of fast programs: all items are turned past one another at once."""
        x, n = draw(19, q=(6, 4), k=(6, 4), w=(6, 4), beta=(6,)), 6
        q, k, w, beta = x["q"], x["k"], x["w"], x["beta"]
        earlier, mask = np.tri(n, k=-1), np.tri(n, dtype=bool)
        taken = np.linalg.solve(
            np.eye(n) + earlier * (beta[:, None] * (w @ w.T)), earlier * (beta[:, None] * (w @ k.T))
        )
        expected = (q @ k.T - np.tril(q @ w.T) @ taken) / 2
        np.testing.assert_allclose(path_by_queries(w, beta, mask)(q, k)[mask], expected[mask], rtol=1e-9)


class TestPathStep:
    def test_is_the_loop(self, xp):
        x = draw(20, w=(2, 4), beta=(2,))
        expected = [
            [key - x["beta"][h] * math.fsum(key * x["w"][h]) * x["w"][h] for key in x["k"][h]] for h in range(2)
        ]
        y = xp.arrays(x)
        xp.check(path_step(y["k"], y["w"], y["beta"]), expected)

    def test_a_cache_of_turned_keys_needs_a_plain_dot_product(self):
        """Token by token equals the full pass."""
        x = draw(21, q=(2, 7, 4), k=(2, 7, 4), v=(2, 7, 3), w=(2, 7, 4), beta=(2, 7))
        mask = np.tri(7, dtype=bool)
        whole = attention(x["q"], x["k"], x["v"], mask=mask, score=path(x["w"], x["beta"], mask))
        cache = np.zeros((2, 0, 4))
        for t in range(7):
            turned = path_step(cache, x["w"][:, t], x["beta"][:, t])
            cache = np.concatenate([turned, x["k"][:, t : t + 1]], axis=1)
            step = attention(x["q"][:, t : t + 1], cache, x["v"][:, : t + 1])
            np.testing.assert_allclose(step[:, 0], whole[:, t], rtol=1e-10, atol=1e-12)

    def test_thousands_of_steps_in_single_precision(self):
        """A reflected key keeps its length; rounding moves it by far less than it turns."""
        rng = np.random.default_rng(22)
        k = wide = rng.normal(size=(1, 16))
        k = k.astype(np.float32)
        for _ in range(3000):
            w = rng.normal(size=16)
            w = (w / np.linalg.norm(w)).astype(np.float32)
            k, wide = path_step(k, w, np.array(2, dtype=np.float32)), path_step(wide, w, np.array(2.0))
        assert k.dtype == np.float32
        assert 1e-7 < np.abs(k - wide).max() < 1e-3

    def test_bad_input(self, xp, other):
        k, w, beta = xp.asarray(np.ones((2, 5, 3))), xp.asarray(np.ones(3)), xp.asarray(1.0)
        with pytest.raises(ValueError, match=r"k has shape \(3,\)"):
            path_step(k[0, 0, :], w, beta)
        with pytest.raises(ValueError, match=r"w has shape \(\)"):
            path_step(k, w[0], beta)
        with pytest.raises(ValueError, match="k has 3 columns, w has 2"):
            path_step(k, w[:2], beta)
        with pytest.raises(ValueError, match=r"leading axes.*k has \(2,\), w has \(\), beta has \(3,\)"):
            path_step(k, w, xp.asarray(np.ones(3)))
        with pytest.raises(ValueError, match=r"leading axes.*w has \(3,\)"):
            path_step(k, xp.asarray(np.ones((3, 3))), beta)
        with pytest.raises(TypeError, match="one library"):
            path_step(k, w, other.asarray(1.0))


SCORES = {
    "cope": lambda x, mask, m: cope(x["e"], mask),
    "path": lambda x, mask, m: path(x["w"][..., :m, :], x["beta"][:m], mask),
    "path_by_queries": lambda x, mask, m: path_by_queries(x["w"][..., :m, :], x["beta"][:m], mask),
}


@pytest.mark.parametrize("name", SCORES)
class TestInAttention:
    def test_token_by_token_and_in_pieces_equals_the_full_pass(self, name):
        x = draw(23, q=(2, 7, 4), k=(2, 7, 4), v=(2, 7, 3), w=(2, 7, 4), beta=(7,))

        def read(start, stop):
            mask = recent(stop - start, stop)
            score = SCORES[name](x, mask, stop)
            return attention(x["q"][:, start:stop], x["k"][:, :stop], x["v"][:, :stop], mask=mask, score=score)

        whole = read(0, 7)
        for cuts in (range(8), (0, 2, 3, 7)):
            for start, stop in itertools.pairwise(cuts):
                np.testing.assert_allclose(read(start, stop), whole[:, start:stop], rtol=1e-11, atol=1e-13)
        np.testing.assert_allclose(read(0, 4), whole[:, :4], rtol=1e-11, atol=1e-13)  # appending leaves rows alone

    def test_packed_texts_are_the_texts_alone(self, name):
        x = draw(24, q=(2, 7, 4), k=(2, 7, 4), v=(2, 7, 3), w=(2, 7, 4), beta=(7,))
        text = np.array([0, 0, 0, 1, 1, 1, 1])
        mask = np.tri(7, dtype=bool) & (text[:, None] == text)
        whole = attention(x["q"], x["k"], x["v"], mask=mask, score=SCORES[name](x, mask, 7))
        for side in (slice(0, 3), slice(3, 7)):
            part = {key: a[..., side, :] if a.ndim > 1 and key != "e" else a for key, a in x.items()}
            part["beta"] = x["beta"][side]
            alone = np.tri(side.stop - side.start, dtype=bool)
            score = SCORES[name](part, alone, 7)
            ours = attention(part["q"], part["k"], part["v"], mask=alone, score=score)
            np.testing.assert_allclose(whole[:, side], ours, rtol=1e-11)

    def test_padding_may_hold_nan_also_in_gradients(self, autograd, name):
        x = draw(25, q=(1, 2, 4), k=(1, 4, 4), w=(1, 4, 4), beta=(4,), v=(1, 4, 2))
        mask = np.array([[False, True, True, False], [False, True, True, True]])
        names, g = ("q", "k", "e", "w", "beta", "v"), np.ones((1, 2, 2))

        def gradients(x):
            allowed = autograd.asarray(mask, "bool")

            def run(*arrays):
                y = dict(zip(names, arrays, strict=True))
                return attention(y["q"], y["k"], y["v"], mask=allowed, score=SCORES[name](y, allowed, 4))

            arrays = [autograd.asarray(a) for a in (g, *(x[n] for n in names))]
            return [autograd.numpy(run(*arrays[1:])), *map(autograd.numpy, autograd.vjp(run, *arrays))]

        clean = gradients(x)
        spoiled = {key: a.copy() for key, a in x.items()}
        spoiled["k"][:, 0] = spoiled["w"][:, 0] = spoiled["v"][:, 0] = spoiled["beta"][0] = NAN
        for ours, before in zip(gradients(spoiled), clean, strict=True):
            np.testing.assert_array_equal(ours, before)

    def test_a_later_nan_stays_out_of_earlier_rows(self, name):
        x = draw(26, q=(1, 5, 4), w=(1, 5, 4), k=(1, 5, 4), v=(1, 5, 2))
        mask = np.tri(5, dtype=bool)
        clean = attention(x["q"], x["k"], x["v"], mask=mask, score=SCORES[name](x, mask, 5))
        x["k"][:, 3] = x["w"][:, 3] = x["v"][:, 3] = x["beta"][3] = NAN
        with np.errstate(invalid="ignore"):
            ours = attention(x["q"], x["k"], x["v"], mask=mask, score=SCORES[name](x, mask, 5))
        np.testing.assert_array_equal(ours[:, :3], clean[:, :3])
        assert np.isnan(ours[:, 3:]).all()

    def test_a_row_that_reads_nothing_is_zero(self, xp, name):
        x = xp.arrays(draw(27, v=(2, 5, 2)))
        mask = xp.asarray([[False] * 5, [True] * 5, [False] * 5], "bool")
        score = xp.quick(SCORES[name](x, mask, 5))
        out = xp.numpy(attention(x["q"], x["k"], x["v"], mask=mask, score=score))
        np.testing.assert_array_equal(out[:, [0, 2]], 0)
        assert np.isfinite(out).all()


def test_counts_and_turns_do_not_look_at_positions():
    """Softmax of CoPE with all keys zero: every gate is half open, so places are halves of distances."""
    e, mask = np.arange(4.0)[:, None], np.ones((1, 6), dtype=bool)
    w = softmax(cope(e, mask)(np.ones((1, 1)), np.zeros((6, 1))))
    expected = np.exp([3, 2.5, 2, 1.5, 1, 0.5])
    np.testing.assert_allclose(w[0], expected / expected.sum(), rtol=1e-12)


@pytest.mark.parametrize(("name", "invariant"), held("positions/contextual"))
def test_shared_invariants(xp, name, invariant):
    invariant(SUBJECTS[name], xp)
