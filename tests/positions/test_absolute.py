"""softlookup.positions.absolute: sinusoids, learned tables, and what a causal mask knows of order without them."""

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

from softlookup.lookup import attention, scaled_dot
from softlookup.masks import causal, document_positions, positions
from softlookup.positions import learned_positions, padded_positions, sinusoidal, sinusoidal_shift

INF = math.inf
LAYOUTS = ("interleaved", "concatenated")


def loop(p, width, layout, base=10000.0):
    """One encoding, column by column."""
    row = [
        (math.cos if column % 2 else math.sin)(p / base ** ((column - column % 2) / width)) for column in range(width)
    ]
    return row if layout == "interleaved" else row[0::2] + row[1::2]


class TestSinusoidal:
    def test_by_hand(self, xp):
        p = xp.asarray([0.0, math.pi / 2, -math.pi])
        alternating = [[0, 1, 0, 1], [1, 0, math.sin(math.pi / 20), math.cos(math.pi / 20)]]
        alternating += [[0, -1, -math.sin(math.pi / 10), math.cos(math.pi / 10)]]
        ours = {layout: sinusoidal(p, width=4, layout=layout, base=100.0) for layout in LAYOUTS}
        xp.check(ours["interleaved"], alternating)
        xp.check(ours["concatenated"], np.array(alternating)[:, [0, 2, 1, 3]])

    @given(
        st.lists(st.integers(-5000, 5000) | st.floats(-50, 50), max_size=4),
        st.integers(0, 9),
        st.sampled_from(LAYOUTS),
        st.sampled_from([2.0, 1e4, 5e5]),
    )
    def test_is_the_loop(self, places, width, layout, base):
        ours = sinusoidal(np.array(places, dtype=float), width=width, layout=layout, base=base)
        expected = np.array([loop(p, width, layout, base) for p in places]).reshape(len(places), width)
        np.testing.assert_allclose(ours, expected, atol=5e-12)

    @pytest.mark.parametrize("width", [8, 7])
    def test_agrees_with_marian_and_with_fsmt(self, agree, width):
        fixture = frozen("transformers_sinusoids")
        p = np.arange(20)
        ours = sinusoidal(p, width=width, layout="concatenated")
        notes = {"version": fixture.version, "dtype": "float32"}
        agree(
            ours,
            fixture[f"marian{width}"],
            function="positions.sinusoidal",
            stranger="transformers, sinusoids of Marian",
            **notes,
        )
        even = width - width % 2
        ours = sinusoidal(p, width=even, layout="concatenated", base=1e4 ** (even / (even - 2)))
        if width % 2:
            ours = np.concatenate([ours, np.zeros((20, 1))], axis=1)
        agree(
            ours,
            fixture[f"fsmt{width}"],
            function="positions.sinusoidal",
            stranger="transformers, sinusoids of FSMT",
            clash="other frequencies, so another base; an odd width ends in a column of zeros",
            **notes,
        )

    def test_the_layouts_hold_the_same_columns(self, xp):
        p = xp.asarray([0.5, 3.0])
        for width in (6, 7):
            one, two = (xp.numpy(sinusoidal(p, width=width, layout=layout)) for layout in LAYOUTS)
            np.testing.assert_array_equal(np.concatenate([one[:, 0::2], one[:, 1::2]], axis=1), two)

    def test_the_dot_product_depends_on_the_distance_alone(self, xp):
        p, q = xp.asarray([0.0, 7.0, -30.0]), xp.asarray([5.0, 12.0, -25.0])
        for layout in LAYOUTS:
            products = sinusoidal(p, width=6, layout=layout) @ sinusoidal(q, width=6, layout=layout).mT
            expected = sum(math.cos(5 * 10000 ** (-r / 3)) for r in range(3))
            np.testing.assert_allclose(np.diag(xp.numpy(products)), [expected] * 3, rtol=1e-12)

    @pytest.mark.parametrize("layout", LAYOUTS)
    def test_any_shape_of_positions(self, xp, layout):
        for shape in ((), (2, 1, 3), (0,), (2, 0)):
            p = xp.asarray(np.arange(math.prod(shape), dtype=float).reshape(shape))
            expected = np.reshape([loop(x, 5, layout) for x in range(math.prod(shape))], (*shape, 5))
            xp.check(sinusoidal(p, width=5, layout=layout), expected)

    def test_integers_are_the_default_float(self, xp):
        ours = sinusoidal(xp.asarray([-3, 1000], "int64"), width=4, layout="interleaved")
        expected = [loop(p, 4, "interleaved") for p in (-3, 1000)]
        tolerance = 2e-4 if xp.default_float == "float32" else 0.0
        xp.check(ours, expected, dtype=xp.default_float, tolerance=tolerance)

    def test_half_precision_is_that_of_float32_rounded_once(self, xp):
        for dtype in xp.narrow_dtypes:
            ours = sinusoidal(xp.asarray([0.0, 255.0], dtype), width=6, layout="interleaved")
            xp.check(ours, [loop(p, 6, "interleaved") for p in (0, 255)], dtype=dtype)

    @pytest.mark.parametrize("place", [1234567.0, -12345678.0])
    def test_float32_loses_digits_at_huge_positions_and_float64_does_not(self, xp, place):
        """Each column is off by at most what its angle is rounded by: in float32 by 2^-23 of it."""
        exact = np.array([loop(place, 12, "interleaved")])
        ours = sinusoidal(xp.asarray([place]), width=12, layout="interleaved")
        xp.check(ours, exact, tolerance=2**-51 * abs(place))
        ours = xp.numpy(sinusoidal(xp.asarray([place], "float32"), width=12, layout="interleaved"))
        angles = abs(place) * 10000.0 ** (-np.repeat(np.arange(6), 2) / 6)
        assert np.all(np.abs(ours - exact) <= 2**-23 * angles + 1e-6)
        assert np.max(np.abs(ours - exact)) > 1e-3

    def test_gradient(self, autograd):
        p, g = np.array([0.3, -2.0]), np.random.default_rng(1).normal(size=(2, 5))

        def encode(x):
            return sinusoidal(x, width=5, layout="concatenated", base=10.0)

        (expected,) = finite_differences(encode, g, p)
        (ours,) = autograd.vjp(encode, autograd.asarray(g), autograd.asarray(p))
        autograd.check(ours, expected, tolerance=1e-8)

    def test_infinite_positions_give_nan(self):
        with np.errstate(invalid="ignore"):
            assert np.isnan(sinusoidal(np.array([INF]), width=3, layout="interleaved")).all()

    def test_bad_input(self, xp):
        p = xp.asarray([0.0])
        with pytest.raises(ValueError, match=r"layout is 'half'.*'interleaved', 'concatenated'"):
            sinusoidal(p, width=4, layout="half")
        with pytest.raises(ValueError, match="width is -2"):
            sinusoidal(p, width=-2, layout="interleaved")
        with pytest.raises(TypeError, match="width"):
            sinusoidal(p, width=4.0, layout="interleaved")
        for base in (0.0, -1.0, INF):
            with pytest.raises(ValueError, match="base"):
                sinusoidal(p, width=4, layout="interleaved", base=base)
        for bad in ([0.0], 3, xp.asarray([True], "bool")):
            with pytest.raises(TypeError, match="positions"):
                sinusoidal(bad, width=4, layout="interleaved")
        with pytest.raises(TypeError, match="layout"):
            sinusoidal(p, width=4)


class TestSinusoidalShift:
    def test_by_hand(self, xp):
        ours = sinusoidal_shift(xp.asarray(math.pi / 2), width=4, layout="interleaved", base=4.0)
        half = math.sqrt(0.5)
        expected = [[0, -1, 0, 0], [1, 0, 0, 0], [0, 0, half, -half], [0, 0, half, half]]
        xp.check(ours, expected)
        ours = sinusoidal_shift(xp.asarray(math.pi / 2), width=4, layout="concatenated", base=4.0)
        xp.check(ours, np.array(expected)[[0, 2, 1, 3]][:, [0, 2, 1, 3]])

    @pytest.mark.parametrize("layout", LAYOUTS)
    def test_takes_every_encoding_to_the_one_a_step_further(self, xp, layout):
        p, steps = np.array([-4.0, 0.0, 0.5, 300.0]), np.array([1.0, -7.0, 0.25])
        options = {"width": 6, "layout": layout, "base": 50.0}
        ours = sinusoidal(xp.asarray(p), **options) @ sinusoidal_shift(xp.asarray(steps), **options)
        expected = [[loop(x + step, 6, layout, 50.0) for x in p] for step in steps]
        xp.check(ours, expected)
        usual = sinusoidal_shift(xp.asarray(3.0), width=6, layout=layout)
        ours = xp.asarray([loop(2.0, 6, layout)]) @ usual
        xp.check(ours, [loop(5.0, 6, layout)])

    @pytest.mark.parametrize("layout", LAYOUTS)
    def test_is_a_rotation_and_steps_add_up(self, layout):
        one, two, three = sinusoidal_shift(np.array([1.5, 2.0, 3.5]), width=6, layout=layout)
        np.testing.assert_allclose(one @ one.T, np.eye(6), atol=1e-15)
        np.testing.assert_allclose(np.linalg.det(one), 1)
        np.testing.assert_allclose(one @ two, three, atol=1e-15)

    def test_no_columns(self, xp):
        xp.check(sinusoidal_shift(xp.asarray([1.0]), width=0, layout="concatenated"), np.zeros((1, 0, 0)))

    def test_bad_input(self, xp):
        with pytest.raises(ValueError, match="width is 5; it must be even"):
            sinusoidal_shift(xp.asarray(1.0), width=5, layout="interleaved")
        with pytest.raises(ValueError, match="layout"):
            sinusoidal_shift(xp.asarray(1.0), width=4, layout="")
        with pytest.raises(TypeError, match="delta"):
            sinusoidal_shift(1.0, width=4, layout="interleaved")


class TestLearnedPositions:
    def test_by_hand(self, xp):
        x, table = xp.asarray([[1.0, 2.0], [3.0, 4.0]]), xp.asarray([[10.0, 20.0], [30.0, 40.0], [50.0, 60.0]])
        xp.check(learned_positions(x, table, xp.asarray([2, 0], "int64")), [[51.0, 62.0], [13.0, 24.0]])

    @given(st.integers(0, 4), st.integers(1, 5), st.integers(0, 100))
    def test_is_the_loop(self, n, rows, seed):
        rng = np.random.default_rng(seed)
        x, table, p = rng.normal(size=(2, n, 3)), rng.normal(size=(rows, 3)), rng.integers(0, rows, size=(2, n))
        expected = [[x[b, i] + table[p[b, i]] for i in range(n)] for b in range(2)]
        np.testing.assert_array_equal(learned_positions(x, table, p), np.reshape(expected, (2, n, 3)))

    def test_agrees_with_the_embedding_of_torch(self, torch, agree):
        rng = np.random.default_rng(2)
        x, table, p = rng.normal(size=(2, 5, 3)), rng.normal(size=(7, 3)), rng.integers(0, 7, size=(2, 5))
        theirs = torch.tensor(x) + torch.nn.functional.embedding(torch.tensor(p), torch.tensor(table))
        agree(
            learned_positions(x, table, p),
            theirs,
            function="positions.learned_positions",
            stranger="torch embedding",
            version=f"torch {torch.__version__.partition('+')[0]}",
            dtype="float64",
            exact=True,
        )

    def test_agrees_with_opt_with_its_offset(self, agree):
        fixture = frozen("transformers_learned_positions")
        p = padded_positions(fixture["valid"]) + 2
        agree(
            learned_positions(np.zeros((2, 5, 3)), fixture["table"], p),
            fixture["opt"],
            function="positions.learned_positions",
            stranger="transformers, learned positions of OPT",
            version=fixture.version,
            dtype="float64",
            exact=True,
            clash="position 0 is row 2 of the table, and padding is row 1",
        )

    def test_a_table_of_sinusoids(self, xp):
        p, x = xp.asarray([3, 0, 3], "int64"), xp.asarray(np.ones((2, 3, 4)))
        table = sinusoidal(xp.asarray(np.arange(5.0)), width=4, layout="concatenated")
        encoded = [loop(place, 4, "concatenated") for place in (3, 0, 3)]
        xp.check(learned_positions(x, table, p), np.broadcast_to(1 + np.array(encoded), (2, 3, 4)))

    def test_a_position_without_a_row_gives_nan_in_its_own_item(self, xp):
        x, table = xp.asarray(np.ones((4, 1))), xp.asarray([[10.0], [20.0]])
        p = xp.asarray([-1, 1, 2, 0], "int64")
        xp.check(learned_positions(x, table, p), [[np.nan], [21.0], [np.nan], [11.0]])

    def test_gradient(self, autograd):
        rng = np.random.default_rng(3)
        g, x, table = rng.normal(size=(4, 2)), rng.normal(size=(4, 2)), rng.normal(size=(3, 2))
        p = np.array([2, 0, 2, -1])
        places = autograd.asarray(p, "int64")
        arrays = map(autograd.asarray, (g, x, table))
        dx, dtable = autograd.vjp(lambda a, b: learned_positions(a, b, places), *arrays)
        autograd.check(dx, g)
        autograd.check(dtable, [g[1], [0, 0], g[0] + g[2]])

    def test_half_precision_and_thousands_of_rows(self, xp):
        for dtype in ("float32", *xp.narrow_dtypes):
            x, table = xp.asarray(np.ones((3, 2)), dtype), xp.asarray(np.ones((4096, 2)), dtype)
            ours = learned_positions(x, table, xp.asarray([4095, 0, 2000], "int64"))
            xp.check(ours, 2 * np.ones((3, 2)), dtype=dtype)

    def test_bad_input(self, xp, other):
        x, table, p = xp.asarray(np.ones((2, 3))), xp.asarray(np.ones((4, 3))), xp.asarray([0, 1], "int64")
        with pytest.raises(ValueError, match=r"x has 3 columns, table has 2"):
            learned_positions(x, table[:, :2], p)
        with pytest.raises(ValueError, match="table has nothing to look up"):
            learned_positions(x, table[:0, :], p)
        with pytest.raises(ValueError, match=r"table has shape \(3,\)"):
            learned_positions(x, table[0, :], p)
        with pytest.raises(ValueError, match=r"x has shape \(3,\)"):
            learned_positions(x[0, :], table, p)
        with pytest.raises(ValueError, match=r"positions has shape \(2, 2\)"):
            learned_positions(x, table, xp.asarray([[0, 1], [1, 0]], "int64"))
        for bad in ([0, 1], xp.asarray([0.0, 1.0]), other.asarray([0, 1], "int64")):
            with pytest.raises(TypeError, match="positions"):
                learned_positions(x, table, bad)


class TestPaddedPositions:
    def test_by_hand(self, xp):
        valid = xp.asarray([[0, 0, 1, 1], [1, 1, 1, 0], [1, 0, 0, 1]], "bool")
        xp.check(padded_positions(valid), [[-1, -1, 0, 1], [0, 1, 2, -1], [0, -1, -1, 1]], dtype="int64")

    @given(st.lists(st.booleans(), max_size=8))
    def test_is_the_loop(self, valid):
        expected = [sum(valid[:i]) if v else -1 for i, v in enumerate(valid)]
        np.testing.assert_array_equal(padded_positions(np.array(valid, dtype=bool)), expected)

    def test_agrees_with_roberta(self, agree):
        fixture = frozen("transformers_learned_positions")
        agree(
            padded_positions(fixture["valid"]) + 2,
            fixture["roberta"],
            function="positions.padded_positions",
            stranger="transformers, positions of RoBERTa",
            version=fixture.version,
            dtype="float64",
            exact=True,
            clash="numbers from 2, one past the padding index 1, which padding gets",
        )

    def test_items_are_numbered_as_one_document(self, xp):
        valid = np.array([[False, True, True, False, True]])
        ids = xp.asarray(np.where(valid, 0, -1), "int64")
        ours = xp.numpy(padded_positions(xp.asarray(valid, "bool")))
        np.testing.assert_array_equal(np.maximum(ours, 0), xp.numpy(document_positions(ids)))

    def test_a_left_padded_text_gets_the_same_numbers_as_alone(self, xp):
        """Padding becomes NaN, and the mask keeps it out: the rows of the text are those of the text alone."""
        rng = np.random.default_rng(4)
        text, table = rng.normal(size=(3, 4)), xp.asarray(rng.normal(size=(3, 4)))
        valid = np.array([False, False, True, True, True])
        x = learned_positions(
            xp.asarray(np.concatenate([np.ones((2, 4)), text])), table, padded_positions(xp.asarray(valid, "bool"))
        )
        order = xp.asarray(np.arange(5), "int64")
        mask = causal(order, order) & xp.asarray(valid[None], "bool") & xp.asarray(valid[:, None], "bool")
        padded = attention(x, x, x, mask=mask)
        alone = learned_positions(xp.asarray(text), table, xp.asarray([0, 1, 2], "int64"))
        expected = attention(alone, alone, alone, mask=xp.asarray(np.tri(3), "bool"))
        xp.check(padded[2:, :], xp.numpy(expected))

    def test_bad_input(self, xp):
        with pytest.raises(TypeError, match="valid"):
            padded_positions(xp.asarray([0, 1], "int64"))
        with pytest.raises(ValueError, match=r"valid has shape \(\)"):
            padded_positions(xp.asarray(True, "bool"))


class TestWithACache:
    """Absolute positions are added before attention, so a cached key keeps its own."""

    @pytest.mark.parametrize("layout", LAYOUTS)
    def test_token_by_token_equals_the_full_pass(self, xp, layout):
        rng = np.random.default_rng(5)
        x, table = rng.normal(size=(6, 4)), xp.asarray(rng.normal(size=(6, 4)))

        def place(items, start):
            p = xp.asarray(np.arange(start, start + len(items)), "int64")
            encoded = sinusoidal(xp.asarray(np.arange(start, start + len(items), dtype=float)), width=4, layout=layout)
            return learned_positions(xp.asarray(items) + encoded, table, p)

        whole = place(x, 0)
        expected = attention(whole, whole, whole, mask=xp.asarray(np.tri(6), "bool"))
        cache = []
        for step in range(6):
            cache.append(xp.numpy(place(x[step : step + 1], step)))
            q, k = xp.asarray(cache[-1]), xp.asarray(np.concatenate(cache))
            xp.check(attention(q, k, k, mask=causal(*positions(q, k))), xp.numpy(expected[step : step + 1, :]))

    def test_appending_leaves_earlier_rows_alone(self):
        x = np.random.default_rng(6).normal(size=(7, 4))
        x = x + sinusoidal(np.arange(7), width=4, layout="interleaved")
        short, whole = (attention(y, y, y, mask=np.tri(len(y), dtype=bool)) for y in (x[:4], x))
        np.testing.assert_allclose(whole[:4], short, rtol=1e-12)


class TestWithoutPositions:
    """What attention knows of order when no position is given."""

    def layer(self, x, mask=None):
        """A layer with fixed projections and a residual connection."""
        a, b, c = np.random.default_rng(7).normal(size=(3, 3, 3))
        return x + attention(x @ a, x @ b, x @ c, mask=mask)

    def test_without_a_mask_a_permutation_permutes_the_rows(self):
        x, order = np.random.default_rng(8).normal(size=(5, 3)), np.array([3, 0, 4, 1, 2])
        np.testing.assert_allclose(self.layer(self.layer(x[order])), self.layer(self.layer(x))[order], rtol=1e-12)

    @pytest.mark.parametrize("n", [1, 5, 300])
    def test_the_share_of_a_marked_first_item_is_one_over_the_place(self, xp, n):
        x, mark = np.zeros((n, 1)), np.eye(n)[:, :1]
        ours = attention(*map(xp.asarray, (x, x, mark)), mask=xp.asarray(np.tri(n), "bool"))
        xp.check(ours, 1 / np.arange(1, n + 1)[:, None])

    def test_one_causal_layer_gives_the_last_row_whatever_the_order_before_it(self):
        x, mask = np.random.default_rng(9).normal(size=(4, 3)), np.tri(4, dtype=bool)
        expected = self.layer(x, mask)[-1]
        for order in itertools.permutations(range(3)):
            np.testing.assert_allclose(self.layer(x[[*order, 3]], mask)[-1], expected, rtol=1e-12)

    def test_two_causal_layers_tell_all_orders_apart(self):
        x, mask = np.random.default_rng(9).normal(size=(4, 3)), np.tri(4, dtype=bool)
        rows = [self.layer(self.layer(x[[*order, 3]], mask), mask)[-1] for order in itertools.permutations(range(3))]
        for one, two in itertools.combinations(rows, 2):
            assert np.max(np.abs(one - two)) > 1e-2

    def test_equal_items_stay_equal_at_any_depth(self):
        """Without a marked first item, a causal mask of equal items gives equal rows: there is nothing to count."""
        x, mask = np.ones((6, 3)), np.tri(6, dtype=bool)
        for _ in range(3):
            x = self.layer(x, mask)
        np.testing.assert_allclose(x, np.broadcast_to(x[:1], x.shape), rtol=1e-12)

    def test_sinusoids_break_the_symmetry_without_a_mask(self):
        x, order = np.random.default_rng(8).normal(size=(5, 3)), np.array([3, 0, 4, 1, 2])
        place = sinusoidal(np.arange(5), width=3, layout="interleaved")
        assert np.max(np.abs(self.layer(x[order] + place) - self.layer(x + place)[order])) > 0.1

    def test_scores_of_sinusoids_alone_depend_on_the_distance(self):
        p = sinusoidal(np.arange(6), width=8, layout="interleaved")
        s = scaled_dot()(p, p)
        np.testing.assert_allclose(s[1:, 1:], s[:-1, :-1], rtol=1e-12)


@pytest.mark.parametrize(("name", "invariant"), held("positions/absolute"))
def test_shared_invariants(xp, name, invariant):
    invariant(SUBJECTS[name], xp)
