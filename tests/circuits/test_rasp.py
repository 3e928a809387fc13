"""softlookup.circuits.rasp: selectors, means over them, and small programs."""

import itertools
import operator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from invariants import held
from libraries import finite_differences
from oracles.freeze import frozen
from subjects import SUBJECTS

from softlookup.circuits import (
    aggregate,
    balanced,
    balanced_by_peeling,
    histogram,
    induct,
    latest,
    nesting_depth,
    reverse,
    select,
    selector_width,
    selector_width_by_attention,
    sort,
)
from softlookup.lookup import attention, hardmax, weighted_average
from softlookup.masks import causal

NAN, INF = float("nan"), float("inf")
texts = st.lists(st.integers(-3, 3), max_size=9)
brackets = st.lists(st.tuples(st.sampled_from([-1, 0, 1]), st.integers(0, 1)), max_size=10)
TRACR = "Tracr, RASP evaluator"


def loop_induct(tokens, default=-1):
    out = []
    for i, x in enumerate(tokens):
        before = [j for j in range(i) if tokens[j] == x]
        out.append(tokens[before[-1] + 1] if before else default)
    return out


def loop_balanced(items):
    """A stack: whether the text up to each position is balanced."""
    stack, broken, out = [], False, []
    for sign, kind in items:
        if sign > 0:
            stack.append(kind)
        elif sign < 0:
            broken |= not stack or stack.pop() != kind
        out.append(not broken and not stack)
    return out


def loop_depth(items):
    depth = deepest = 0
    for sign, _ in items:
        depth += sign
        deepest = max(deepest, depth)
    return deepest


def well_nested(rng, pairs):
    """A random balanced text of so many pairs, of two kinds, with fillers."""
    if pairs == 0:
        return [(0, 0)] * int(rng.integers(0, 2))
    inside = int(rng.integers(0, pairs))
    kind = int(rng.integers(0, 2))
    return [(1, kind), *well_nested(rng, inside), (-1, kind), *well_nested(rng, pairs - 1 - inside)]


def columns(items):
    pairs = np.array(items, dtype=float).reshape(-1, 2)
    return pairs[:, 0], pairs[:, 1]


def random_selector(seed, *shape):
    return np.random.default_rng(seed).random(shape) < 0.5


@pytest.fixture
def tracr():
    return frozen("tracr_programs")


class TestSelect:
    def test_by_hand_the_key_comes_first(self, xp):
        keys, queries = xp.asarray([1.0, 2.0, 3.0]), xp.asarray([2.0, 5.0])
        less = select(keys, queries, predicate=operator.lt)
        xp.check(less, [[True, False, False], [True, True, True]], dtype="bool")
        xp.check(select(keys, queries), [[False, True, False], [False, False, False]], dtype="bool")

    @given(texts, texts)
    def test_is_the_loop(self, keys, queries):
        ours = select(np.array(keys, dtype=int), np.array(queries, dtype=int), predicate=lambda k, q: k + 1 >= q)
        assert ours.tolist() == [[k + 1 >= q for k in keys] for q in queries]

    def test_agrees_with_tracr(self, tracr, agree):
        place = np.arange(9)
        agree(
            select(tracr["texts"], place, predicate=operator.lt),
            tracr["selector"],
            function="circuits.select",
            stranger=TRACR,
            version=tracr.version,
            dtype="bool",
            exact=True,
        )

    def test_of_positions_is_the_causal_mask(self, xp):
        place = xp.asarray(np.arange(5), "int64")
        xp.check(select(place, place, predicate=operator.le), xp.numpy(causal(place, place)), dtype="bool")

    def test_truth_values_and_predicates_of_one_side(self, xp):
        opens = xp.asarray([True, False, True], "bool")
        xp.check(select(opens, opens), [[True, False, True], [False, True, False], [True, False, True]], dtype="bool")
        one = select(xp.asarray([0.0, 1.0]), xp.asarray([5.0, 6.0, 7.0]), predicate=lambda key, query: key > 0)
        xp.check(one, [[False, True]] * 3, dtype="bool")

    def test_leading_axes_broadcast(self, xp):
        keys, queries = xp.asarray(np.arange(6).reshape(3, 1, 2)), xp.asarray([[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]])
        out = select(keys, queries)
        assert tuple(out.shape) == (3, 2, 3, 2)
        assert xp.numpy(out)[2, 1].tolist() == [[False, False], [True, False], [False, True]]

    def test_bad_input(self, xp, other):
        x = xp.asarray([1.0, 2.0])
        with pytest.raises(TypeError, match="predicate must be a function"):
            select(x, x, predicate="==")
        with pytest.raises(TypeError, match="predicate must be boolean"):
            select(x, x, predicate=operator.mul)
        with pytest.raises(TypeError, match="predicate must be a boolean array"):
            select(x, x, predicate=lambda key, query: True)
        with pytest.raises(ValueError, match="predicate has shape"):
            select(x, x, predicate=lambda key, query: (key == query)[None, ...])
        with pytest.raises(ValueError, match="keys has shape"):
            select(xp.asarray(1.0), x)
        with pytest.raises(ValueError, match="queries has shape"):
            select(x, xp.asarray(1.0))
        with pytest.raises(ValueError, match="leading axes"):
            select(xp.asarray(np.ones((2, 3))), xp.asarray(np.ones((3, 3))))
        with pytest.raises(TypeError, match="one library"):
            select(x, other.asarray([1.0]))
        with pytest.raises(TypeError, match="keys must be an array"):
            select([1.0], x)


class TestAggregate:
    def test_by_hand(self, xp):
        selector = xp.asarray([[True, True, False], [False, False, False], [False, False, True]], "bool")
        xp.check(aggregate(selector, xp.asarray([2.0, 4.0, 9.0])), [3.0, 0.0, 9.0])
        xp.check(aggregate(selector, xp.asarray([2.0, 4.0, 9.0]), default=-1), [3.0, -1.0, 9.0])

    @given(st.integers(0, 4), st.integers(0, 5), st.integers(0, 99))
    def test_is_the_loop(self, n, m, seed):
        rng = np.random.default_rng(seed)
        selector, values = rng.random((n, m)) < 0.4, rng.normal(size=m)
        expected = []
        for row in selector:
            read = [float(v) for v, chosen in zip(values, row, strict=True) if chosen]
            expected.append(sum(read) / len(read) if read else 0.5)
        np.testing.assert_allclose(aggregate(selector, values, default=0.5), expected, atol=1e-14)

    def test_agrees_with_tracr(self, tracr, agree):
        x = tracr["texts"]
        for name, seen in (("mean", True), ("causal_mean", np.tri(9, dtype=bool))):
            agree(
                aggregate(select(x, x, predicate=operator.lt) & seen, x, default=-1),
                tracr[name],
                function="circuits.aggregate",
                stranger=TRACR,
                version=tracr.version,
                dtype="float64",
                clash="without a default, an empty row is None",
            )

    def test_is_attention_with_equal_scores_and_a_weighted_average(self, xp):
        selector, values = random_selector(1, 2, 4, 6), np.random.default_rng(2).normal(size=(2, 6))
        selector[0, 1] = False
        ours = aggregate(xp.asarray(selector, "bool"), xp.asarray(values))
        q, k = np.zeros((2, 4, 1)), np.zeros((2, 6, 1))
        xp.check(ours, attention(q, k, values[..., None], mask=selector)[..., 0])
        equal = selector / np.maximum(selector.sum(-1, keepdims=True), 1)
        xp.check(ours, weighted_average(equal, values[..., None])[..., 0])

    def test_what_is_not_selected_may_hold_anything(self, xp):
        selector = xp.asarray([[True, False, True], [False, True, True]], "bool")
        xp.check(aggregate(selector, xp.asarray([1.0, NAN, 3.0])), [2.0, NAN])
        xp.check(aggregate(selector, xp.asarray([1.0, INF, 3.0])), [2.0, INF])

    def test_one_value_is_read_to_the_last_bit(self, xp):
        values = np.random.default_rng(3).normal(size=40)
        ours = aggregate(xp.asarray(np.eye(40, dtype=bool)[::-1], "bool"), xp.asarray(values))
        xp.check(ours, values[::-1], tolerance=0)

    def test_narrow_numbers_are_averaged_wide(self, xp):
        for dtype in xp.narrow_dtypes:
            many = xp.asarray(np.full(5000, 40.0), dtype)  # the sum is beyond float16
            xp.check(aggregate(xp.asarray(np.ones((1, 5000)), "bool"), many), [40.0], dtype=dtype)

    def test_leading_axes_broadcast(self, xp):
        selector, values = random_selector(4, 3, 1, 2, 4), np.random.default_rng(5).normal(size=(2, 4))
        ours = aggregate(xp.asarray(selector, "bool"), xp.asarray(values))
        for a, b in itertools.product(range(3), range(2)):
            np.testing.assert_allclose(xp.numpy(ours)[a, b], aggregate(selector[a, 0], values[b]), rtol=1e-5)

    def test_gradient(self, autograd):
        selector, values, g = random_selector(6, 3, 4), *(np.random.default_rng(7).normal(size=k) for k in (4, 3))
        selector[1] = False
        mask = autograd.asarray(selector, "bool")
        (dv,) = autograd.vjp(lambda v: aggregate(mask, v), autograd.asarray(g), autograd.asarray(values))
        autograd.check(dv, finite_differences(lambda v: aggregate(selector, v), g, values)[0], tolerance=1e-9)

    def test_bad_input(self, xp, other):
        selector, values = xp.asarray(np.ones((2, 3)), "bool"), xp.asarray([1.0, 2.0, 3.0])
        with pytest.raises(ValueError, match="selector has 3 items, values has 2"):
            aggregate(selector, values[:2])
        with pytest.raises(TypeError, match="selector must be boolean"):
            aggregate(xp.asarray(np.ones((2, 3))), values)
        with pytest.raises(ValueError, match=r"selector has shape \(3,\); it needs the axes"):
            aggregate(selector[0, :], values)
        with pytest.raises(ValueError, match="values has shape"):
            aggregate(selector, xp.asarray(1.0))
        with pytest.raises(ValueError, match="leading axes"):
            aggregate(xp.asarray(np.ones((2, 2, 3)), "bool"), xp.asarray(np.ones((4, 3))))
        with pytest.raises(ValueError, match="default is nan"):
            aggregate(selector, values, default=NAN)
        with pytest.raises(TypeError, match="default must be a number"):
            aggregate(selector, values, default=None)
        with pytest.raises(TypeError, match="values must hold real numbers"):
            aggregate(selector, selector[0, :])
        with pytest.raises(TypeError, match="one library"):
            aggregate(selector, other.asarray([1.0, 2.0, 3.0]))


class TestSelectorWidth:
    def test_by_hand(self, xp):
        selector = xp.asarray([[True, True, False], [False, False, False]], "bool")
        xp.check(selector_width(selector), [2, 0], dtype="int64")

    def test_agrees_with_tracr(self, tracr, agree):
        x = tracr["texts"]
        agree(
            selector_width(select(x, x)),
            tracr["histogram"],
            function="circuits.selector_width",
            stranger=TRACR,
            version=tracr.version,
            dtype="int64",
            exact=True,
        )

    def test_bad_input(self, xp):
        for count in (selector_width, selector_width_by_attention, latest):
            with pytest.raises(TypeError, match="selector must be boolean"):
                count(xp.asarray(np.ones((2, 3))))
            with pytest.raises(ValueError, match="selector has shape"):
                count(xp.asarray([True], "bool"))
            with pytest.raises(TypeError, match="selector must be an array"):
                count([[True]])


class TestSelectorWidthByAttention:
    @pytest.mark.parametrize("shape", [(3, 5), (2, 4, 7), (3, 0), (0, 4)])
    def test_is_the_count(self, xp, shape):
        selector = random_selector(8, *shape)
        ours = selector_width_by_attention(xp.asarray(selector, "bool"))
        xp.check(ours, selector.sum(-1), dtype="int64")

    def test_of_thousands(self, xp):
        widths = np.array([0, 1, 4999, 19_999, 20_000])
        ours = selector_width_by_attention(xp.asarray(np.arange(20_000) < widths[:, None], "bool"))
        xp.check(ours, widths, dtype="int64")

    def test_float32_reaches_a_million(self):
        count = np.arange(1_000_001, dtype=np.float32)
        np.testing.assert_array_equal(np.round(1 / (1 / (1 + count)) - 1), count)


class TestLatest:
    def test_by_hand(self, xp):
        selector = xp.asarray([[True, True, False], [False, False, False], [True, False, True]], "bool")
        xp.check(latest(selector), [[False, True, False], [False] * 3, [False, False, True]], dtype="bool")

    @pytest.mark.parametrize("shape", [(4, 6), (2, 3, 5), (3, 0), (0, 3)])
    def test_is_the_hardmax_of_the_position(self, xp, shape):
        selector = random_selector(9, *shape)
        place = np.broadcast_to(np.arange(shape[-1], dtype=float), shape)
        weights = xp.numpy(hardmax(xp.asarray(place), xp.asarray(selector, "bool")))
        xp.check(latest(xp.asarray(selector, "bool")), weights == 1, dtype="bool")
        for row in np.ndindex(shape[:-1]):
            assert np.flatnonzero(latest(selector)[row]).tolist() == np.flatnonzero(selector[row])[-1:].tolist()


class TestReverse:
    @given(texts)
    def test_is_the_list_backwards(self, tokens):
        assert reverse(np.array(tokens, dtype=float)).tolist() == tokens[::-1]

    def test_agrees_with_tracr(self, tracr, agree):
        agree(
            reverse(tracr["texts"]),
            tracr["reverse"],
            function="circuits.reverse",
            stranger=TRACR,
            version=tracr.version,
            dtype="float64",
        )

    def test_twice_is_once_and_a_batch_is_reversed_row_by_row(self, xp):
        x = np.random.default_rng(10).normal(size=(2, 3, 5))
        xp.check(reverse(xp.asarray(x)), x[..., ::-1], tolerance=0)
        np.testing.assert_array_equal(reverse(reverse(x)), x)

    def test_bad_input(self, xp):
        with pytest.raises(ValueError, match="tokens has shape"):
            reverse(xp.asarray(1.0))
        with pytest.raises(TypeError, match="tokens must be an array"):
            reverse("hello")


class TestHistogram:
    @given(texts)
    def test_is_the_count(self, tokens):
        assert histogram(np.array(tokens, dtype=int)).tolist() == [tokens.count(x) for x in tokens]

    def test_agrees_with_tracr(self, tracr, agree):
        agree(
            histogram(tracr["texts"]),
            tracr["histogram"],
            function="circuits.histogram",
            stranger=TRACR,
            version=tracr.version,
            dtype="int64",
            exact=True,
        )

    def test_nan_equals_nothing(self, xp):
        xp.check(histogram(xp.asarray([NAN, 1.0, NAN, 1.0])), [0, 2, 0, 2], dtype="int64")

    def test_bad_input(self, xp):
        with pytest.raises(TypeError, match="tokens must be an array"):
            histogram([1, 2])
        with pytest.raises(ValueError, match="tokens has shape"):
            histogram(xp.asarray(1.0))


class TestSort:
    @given(texts)
    def test_is_stable(self, keys):
        values = np.arange(len(keys), dtype=float)
        expected = [i for _, i in sorted(zip(keys, values.tolist(), strict=True), key=operator.itemgetter(0))]
        assert sort(np.array(keys, dtype=int), values).tolist() == expected

    def test_agrees_with_tracr(self, tracr, agree):
        agree(
            sort(tracr["texts"], tracr["texts"]),
            tracr["sort"],
            function="circuits.sort",
            stranger=TRACR,
            version=tracr.version,
            dtype="float64",
        )

    def test_infinite_keys_and_extra_axes(self, xp):
        xp.check(sort(xp.asarray([INF, 0.0, -INF]), xp.asarray([1.0, 2.0, 3.0])), [3.0, 2.0, 1.0])
        keys, values = np.random.default_rng(11).normal(size=(2, 3, 6))
        ours = sort(xp.asarray(keys), xp.asarray(values))
        xp.check(ours, np.take_along_axis(values, np.argsort(keys, axis=-1), axis=-1), tolerance=0)

    def test_a_nan_among_the_keys_leaves_a_place_empty(self, xp):
        xp.check(sort(xp.asarray([NAN, 1.0, 2.0]), xp.asarray([4.0, 6.0, 8.0])), [5.0, 8.0, 0.0])

    def test_bad_input(self, xp, other):
        x = xp.asarray([1.0, 2.0])
        with pytest.raises(ValueError, match="keys has 2 items, values has 1"):
            sort(x, x[:1])
        with pytest.raises(ValueError, match="values has shape"):
            sort(x, xp.asarray(1.0))
        with pytest.raises(TypeError, match="one library"):
            sort(x, other.asarray([1.0, 2.0]))


class TestNestingDepth:
    @given(brackets)
    def test_is_the_running_sum(self, items):
        signs, _ = columns(items)
        assert nesting_depth(signs).tolist() == [int(sum(signs[: i + 1])) for i in range(len(signs))]

    def test_agrees_with_tracr(self, tracr, agree):
        agree(
            nesting_depth(np.sign(tracr["words"])),
            tracr["depth"],
            function="circuits.nesting_depth",
            stranger=TRACR,
            version=tracr.version,
            dtype="int64",
            exact=True,
            clash="a fraction of the past, times its length and rounded by hand",
        )

    def test_thousands_deep(self, xp):
        signs = np.where(np.arange(3001) < 2000, 1.0, -1.0)
        for dtype in ("float32", *xp.narrow_dtypes):
            xp.check(nesting_depth(xp.asarray(signs, dtype)), np.cumsum(signs).astype(int), dtype="int64")


class TestBalanced:
    @given(brackets)
    def test_is_the_stack(self, items):
        assert balanced(*columns(items)).tolist() == loop_balanced(items)

    @given(st.integers(0, 9), st.integers(0, 999))
    def test_accepts_what_is_nested_well(self, pairs, seed):
        items = well_nested(np.random.default_rng(seed), pairs)
        assert balanced(*columns(items)).tolist() == loop_balanced(items)
        assert not items or balanced(*columns(items))[-1]

    def test_agrees_with_tracr(self, tracr, agree):
        words = tracr["words"]
        assert 5 < tracr["balanced"][:, -1].sum() < len(words) - 5
        agree(
            balanced(np.sign(words), np.abs(words)),
            tracr["balanced"],
            function="circuits.balanced",
            stranger=TRACR,
            version=tracr.version,
            dtype="bool",
            exact=True,
        )

    def test_every_short_text(self):
        signs = np.array(list(itertools.product([1, -1], repeat=6)))
        kinds = np.array(list(itertools.product([0, 1], repeat=6)))
        ours = balanced(signs[:, None, :], kinds)
        for a, b in itertools.product(range(64), range(0, 64, 5)):
            assert ours[a, b].tolist() == loop_balanced(zip(signs[a], kinds[b], strict=True))

    def test_bad_input(self, xp, other):
        x = xp.asarray([1.0, -1.0])
        for function in (balanced, lambda *given: balanced_by_peeling(*given, depth=1)):
            with pytest.raises(ValueError, match="signs has 2 items, kinds has 1"):
                function(x, x[:1])
            with pytest.raises(ValueError, match="kinds has shape"):
                function(x, xp.asarray(1.0))
            with pytest.raises(ValueError, match="leading axes"):
                function(xp.asarray(np.ones((2, 2))), xp.asarray(np.ones((3, 2))))
            with pytest.raises(TypeError, match="one library"):
                function(x, other.asarray([0.0, 0.0]))


class TestBalancedByPeeling:
    @given(brackets, st.integers(0, 4))
    def test_is_the_stack_up_to_a_depth(self, items, depth):
        expected = (not items or loop_balanced(items)[-1]) and loop_depth(items) <= depth
        assert balanced_by_peeling(*columns(items), depth=depth).tolist() == expected

    @given(st.integers(0, 9), st.integers(0, 999))
    def test_needs_exactly_the_depth(self, pairs, seed):
        items = well_nested(np.random.default_rng(seed), pairs)
        enough = [bool(balanced_by_peeling(*columns(items), depth=depth)) for depth in range(11)]
        assert enough == [depth >= loop_depth(items) for depth in range(11)]

    def test_a_batch(self, xp):
        signs, kinds = np.array([[1, 1, -1, -1], [1, -1, 1, -1]]), np.array([[0, 1, 1, 0], [0, 0, 0, 1]])
        ours = balanced_by_peeling(xp.asarray(signs), xp.asarray(kinds), depth=2)
        xp.check(ours, [True, False], dtype="bool")

    def test_bad_depth(self):
        x = np.array([1.0, -1.0])
        with pytest.raises(ValueError, match="depth is -1; it must not be negative"):
            balanced_by_peeling(x, x, depth=-1)
        with pytest.raises(TypeError, match="depth must be an integer"):
            balanced_by_peeling(x, x, depth=1.5)


class TestInduct:
    @given(texts)
    def test_is_the_loop(self, tokens):
        assert induct(np.array(tokens, dtype=float), default=-9).tolist() == loop_induct(tokens, -9)

    def test_agrees_with_tracr(self, tracr, agree):
        """There is no `latest` there: the last of several is found by counting, in one layer more."""
        agree(
            induct(tracr["texts"]),
            tracr["induct"],
            function="circuits.induct",
            stranger=TRACR,
            version=tracr.version,
            dtype="float64",
        )

    def test_a_token_that_is_zero_or_the_default_is_a_token(self, xp):
        xp.check(induct(xp.asarray([0.0, 0.0, 5.0, 0.0])), [-1.0, 0.0, -1.0, 5.0])
        xp.check(induct(xp.asarray([-1.0, -1.0, 2.0, -1.0])), [-1.0, -1.0, -1.0, 2.0])

    def test_later_tokens_change_nothing(self):
        x = np.random.default_rng(12).integers(0, 3, size=(2, 12))
        for n in range(13):
            np.testing.assert_array_equal(induct(x[:, :n]), induct(x)[:, :n])

    def test_token_by_token_is_the_whole(self):
        """With a cache of tokens and of previous tokens, one query reads both layers' keys."""
        x = np.random.default_rng(13).integers(0, 4, size=20).astype(float)
        tokens, previous, out = np.zeros(0), np.zeros(0), []
        for i, token in enumerate(x):
            query, tokens = np.array([token]), np.append(tokens, token)
            place = np.arange(i + 1)
            previous = np.append(previous, aggregate(select(place, np.array([i - 1])), tokens))
            found = latest(select(previous, query) & (place > 0))
            out += aggregate(found, tokens, default=-1).tolist()
        assert out == induct(x).tolist() == loop_induct(x.tolist())

    def test_bad_input(self, xp):
        with pytest.raises(ValueError, match="default is inf"):
            induct(xp.asarray([1.0]), default=INF)
        with pytest.raises(ValueError, match="tokens has shape"):
            induct(xp.asarray(1.0))


class TestOneLayer:
    """A head's report on the stored bits, to a query that knows nothing of them, is a width and a sum."""

    @pytest.mark.parametrize("bits", [1, 2, 3, 4])
    def test_one_head_of_truth_values_knows_two_bits_and_not_three(self, bits):
        texts = np.array(list(itertools.product([0, 1], repeat=bits)))
        most = 0
        for program in itertools.product(range(9), repeat=bits):
            choice = np.array([divmod(p, 3) for p in program])  # for each place, what a zero and what a one adds
            adds = choice[np.arange(bits), texts]
            most = max(most, len({(int((a > 0).sum()), int((a == 2).sum())) for a in adds}))
        assert most <= (bits + 1) * (bits + 2) // 2
        assert (most == 2**bits) == (bits < 3)

    @pytest.mark.parametrize("bits", [1, 2, 3, 4, 40])
    def test_two_layers_of_one_head_of_truth_values_know_them_all(self, bits):
        stored, blank, mark = np.random.default_rng(bits).integers(0, 2, size=bits), 8, 9
        at = np.arange(2 * bits + 1)
        for asked in range(bits):
            text = np.full(2 * bits + 1, blank)
            text[1::2], text[2 * asked], text[-1] = stored, mark, mark
            marked = aggregate(select(at, at - 1), (text == mark) + 0)
            answer = aggregate(select(marked, np.array([1.0])), (text == 1) + 0)
            assert answer.tolist() == [stored[asked]] == [loop_induct(text.tolist())[-1]]


@pytest.mark.parametrize(("name", "invariant"), held("circuits/rasp"))
def test_shared_invariants(xp, name, invariant):
    invariant(SUBJECTS[name], xp)
