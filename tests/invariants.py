"""The properties that functions share, one function for each, and what each public function is held to.

With what `subjects` says of a function, every property is the same few lines for all of them. A function is held to a
property unless it lacks what the property speaks of, or `EXCEPTIONS` names the pair with a reason; a test makes sure
that those pairs do fail. That a state carried over a cut equals the whole joins the list with the first function that
has a state.
"""

import functools
import importlib

import numpy as np
import pytest
from subjects import SUBJECTS

HIDDEN, CUT = 2, 3


def permuting_keys_changes_nothing(subject, xp):
    """Keys and values in another order give the same rows; a result that has keys has them in that order."""
    arrays, order = subject.arrays(), np.random.default_rng(1).permutation(5)
    moved = {name: take(a, order, subject.keys.get(name)) for name, a in arrays.items()}
    for ours, before, axis in zip(run(subject, xp, moved), run(subject, xp, arrays), subject.keys_out, strict=True):
        close(ours, take(before, order, axis), xp)


def permuting_queries_permutes_the_results(subject, xp):
    """Queries in another order give the same rows in that order."""
    arrays, order = subject.arrays(), np.random.default_rng(2).permutation(4)
    moved = {name: take(a, order, subject.queries.get(name)) for name, a in arrays.items()}
    for ours, before, axis in zip(run(subject, xp, moved), run(subject, xp, arrays), subject.queries_out, strict=True):
        close(ours, take(before, order, axis), xp)


def results_lie_in_the_hull_of_the_values(subject, xp):
    """In no direction does a result reach farther than the farthest value that its query may read."""
    arrays = subject.arrays()
    (out,) = run(subject, xp, arrays)
    allowed = arrays[subject.mask] if subject.mask else np.ones(1, dtype=bool)
    assert reach_past_the_hull(out, arrays[subject.values], allowed) <= xp.tolerance


def a_hidden_key_may_hold_anything(subject, xp):
    """NaN or infinity at a key that no query may read leaves the results as they were, to the last bit."""
    arrays = subject.arrays()
    arrays[subject.mask][..., HIDDEN] = False
    clean = run(subject, xp, arrays)
    for bad in (np.nan, np.inf, -np.inf):
        spoiled = {name: spoil(a, subject.keys.get(name), bad) for name, a in arrays.items()}
        for ours, before in zip(run(subject, xp, spoiled), clean, strict=True):
            np.testing.assert_array_equal(ours, before)


def a_constant_on_a_row_of_scores_changes_nothing(subject, xp):
    """Adding the same number to all scores of a query changes no result."""
    arrays = subject.arrays()
    shift = 10 * np.random.default_rng(3).normal(size=(*arrays[subject.shifted].shape[:-1], 1))
    shifted = arrays | {subject.shifted: arrays[subject.shifted] + shift}
    for ours, before in zip(run(subject, xp, shifted), run(subject, xp, arrays), strict=True):
        close(ours, before, xp)


def the_future_does_not_change_the_past(subject, xp):
    """Under a causal mask, other queries and keys from a position on leave the rows before it as they were."""
    arrays, others = causal(subject, 0), causal(subject, 1)
    changed = {name: splice(subject, name, a, others[name]) for name, a in arrays.items()}
    now, then = (past(subject, run(subject, xp, given)) for given in (changed, arrays))
    for ours, before in zip(now, then, strict=True):
        close(ours, before, xp)


def appending_leaves_earlier_rows_alone(subject, xp):
    """Under a causal mask, the first positions alone give the first rows of the whole."""
    arrays = causal(subject, 0)
    short = {name: head(head(a, subject.queries.get(name)), subject.keys.get(name)) for name, a in arrays.items()}
    first, whole = (past(subject, run(subject, xp, given)) for given in (short, arrays))
    for ours, expected in zip(first, whole, strict=True):
        close(ours, expected, xp)


def one_batch_item_alone_equals_it_in_the_batch(subject, xp):
    """A leading axis holds independent calls."""
    items = [subject.arrays(seed) for seed in (0, 1)]
    batch = run(subject, xp, {name: np.stack([item[name] for item in items]) for name in items[0]})
    for i, item in enumerate(items):
        for alone, together in zip(run(subject, xp, item), batch, strict=True):
            close(alone, together[i], xp)


def split_and_merged_is_whole(subject, xp):
    """The keys in two parts, each with its share of the sum of exponentials, give the whole."""
    arrays = subject.arrays()
    sides = (slice(None, HIDDEN), slice(HIDDEN, None))
    parts = [{name: cut(a, side, subject.keys.get(name)) for name, a in arrays.items()} for side in sides]
    shares = [np.exp(subject.log_total(**part) - subject.log_total(**arrays))[..., None] for part in parts]
    results = [share * run(subject, xp, part)[0] for share, part in zip(shares, parts, strict=True)]
    (axis,) = subject.keys_out
    close(sum(results) if axis is None else np.concatenate(results, axis), run(subject, xp, arrays)[0], xp)


def no_queries_and_no_keys_give_results_of_those_lengths(subject, xp):
    """Lengths of zero and one are legal: each result has the shape that follows, and no NaN."""
    usual = [a.shape for a in run(subject, xp, subject.arrays())]
    for n, m in ((0, 5), (4, 0), (0, 0), (4, 1), (1, 1)):
        results = run(subject, xp, subject.arrays(0, n, m))
        for ours, shape, q, k in zip(results, usual, subject.queries_out, subject.keys_out, strict=True):
            lengths = {axis % len(shape): length for axis, length in ((q, n), (k, m)) if axis is not None}
            assert ours.shape == tuple(lengths.get(axis, size) for axis, size in enumerate(shape))
            assert not np.isnan(ours).any()


def library_and_precision_stay(subject, xp):
    """What goes in as float32 or narrower comes out as that; a narrow result is the one of float32, rounded once."""
    everything = subject.arrays()
    for arrays in (everything, subject.without_options(everything)):
        for dtype in ("float64", "float32"):
            for ours, expected in zip(subject(**xp.arrays(arrays, dtype)), subject(**arrays), strict=True):
                xp.check(ours, expected, dtype=subject.dtype(dtype), tolerance=1e-5 if dtype == "float32" else 1e-11)
        for dtype in xp.narrow_dtypes:
            narrow = xp.arrays(arrays, dtype)
            single = subject(**xp.arrays({name: xp.numpy(a) for name, a in narrow.items()}, "float32"))
            for ours, expected in zip(subject(**narrow), single, strict=True):
                rounded = xp.asarray(xp.numpy(expected), subject.dtype(dtype))
                xp.check(ours, xp.numpy(rounded), dtype=subject.dtype(dtype), tolerance=0)


def a_number_of_numpy_is_a_number(subject, xp):
    """Options may be NumPy's own numbers in double precision; they do not widen a narrower result."""
    arrays = xp.arrays(subject.arrays(), "float32")
    numbers = {name: values[1] for name, values in subject.options.items() if isinstance(values[1], float)}
    expected = subject(**arrays, **numbers)
    for ours, before in zip(subject(**arrays, **{n: np.float64(x) for n, x in numbers.items()}), expected, strict=True):
        xp.check(ours, xp.numpy(before), dtype=subject.dtype("float32"), tolerance=0)


def integers_are_the_default_float(subject, xp):
    """Whole numbers may come as integers; the results are of the library's default float."""
    arrays = {name: np.asarray(np.rint(3 * a)) if a.dtype.kind == "f" else a for name, a in subject.arrays().items()}
    floats = subject(**xp.arrays(arrays, xp.default_float))
    for ours, expected in zip(subject(**xp.arrays(arrays, "int64")), floats, strict=True):
        xp.check(ours, xp.numpy(expected), dtype=subject.dtype(xp.default_float), tolerance=0)


def inputs_stay_as_they_were(subject, xp):
    """Arguments are not written to, and every second number of a longer array is as good as an array of its own."""
    arrays = xp.arrays(subject.arrays())
    before = {name: xp.numpy(a) for name, a in arrays.items()}
    results = [xp.numpy(a) for a in subject(**arrays)]
    for name, a in arrays.items():
        np.testing.assert_array_equal(xp.numpy(a), before[name])
    doubled = xp.arrays({name: np.repeat(a[..., None], 2, axis=-1) for name, a in subject.arrays().items()})
    for ours, expected in zip(subject(**{name: a[..., 0] for name, a in doubled.items()}), results, strict=True):
        close(xp.numpy(ours), expected, xp)


def every_argument_changes_the_result(subject, xp):
    """No argument is accepted and ignored."""
    arrays, others = subject.arrays(0), subject.arrays(1)
    known = {p.name for p in subject.parameters} | set(subject.factory)
    assert known == arrays.keys() | subject.options.keys()
    for name in arrays:
        assert differ(run(subject, xp, arrays), run(subject, xp, arrays | {name: others[name]})), name
    for name, (one, two) in subject.options.items():
        assert differ(run(subject, xp, arrays | {name: one}), run(subject, xp, arrays | {name: two})), name


NEEDS = {
    permuting_keys_changes_nothing: "keys",
    permuting_queries_permutes_the_results: "queries",
    results_lie_in_the_hull_of_the_values: "values",
    a_hidden_key_may_hold_anything: "mask",
    a_constant_on_a_row_of_scores_changes_nothing: "shifted",
    the_future_does_not_change_the_past: "mask",
    appending_leaves_earlier_rows_alone: "mask",
    one_batch_item_alone_equals_it_in_the_batch: None,
    split_and_merged_is_whole: "log_total",
    no_queries_and_no_keys_give_results_of_those_lengths: None,
    library_and_precision_stay: None,
    a_number_of_numpy_is_a_number: "options",
    integers_are_the_default_float: None,
    inputs_stay_as_they_were: None,
    every_argument_changes_the_result: None,
}

EXCEPTIONS = {
    ("lookup.log_sum_exp", a_constant_on_a_row_of_scores_changes_nothing): "it moves by that constant",
    ("lookup.attention_scores", a_constant_on_a_row_of_scores_changes_nothing): "it is the scores",
    ("lookup.constant", every_argument_changes_the_result): "it is one whatever the distance",
    (
        "masks.positions",
        one_batch_item_alone_equals_it_in_the_batch,
    ): "all samples share positions, unless offsets differ",
    ("masks.positions", every_argument_changes_the_result): "it reads the lengths alone",
    ("masks.evaluate_mask", permuting_keys_changes_nothing): "it looks at the index of the key",
    ("masks.evaluate_mask", permuting_queries_permutes_the_results): "it looks at the index of the query",
    ("masks.evaluate_mask", every_argument_changes_the_result): "of queries and keys it reads the lengths alone",
    ("masks.modified_score", permuting_keys_changes_nothing): "it looks at the index of the key",
    ("masks.modified_score", permuting_queries_permutes_the_results): "it looks at the index of the query",
    ("masks.tree", no_queries_and_no_keys_give_results_of_those_lengths): "its queries are its keys",
    ("lookup.is_distribution", library_and_precision_stay): "it answers yes or no",
    ("lookup.leave_one_out_error", no_queries_and_no_keys_give_results_of_those_lengths): "it needs two points",
    ("lookup.leave_one_out_error_vjp", no_queries_and_no_keys_give_results_of_those_lengths): "it needs two points",
    (
        "normalizers.softmax_plus_one",
        a_constant_on_a_row_of_scores_changes_nothing,
    ): "scores are compared with zero too",
    (
        "normalizers.sink_softmax",
        a_constant_on_a_row_of_scores_changes_nothing,
    ): "scores are compared with the sink too",
    (
        "normalizers.sink_softmax_vjp",
        a_constant_on_a_row_of_scores_changes_nothing,
    ): "scores are compared with the sink",
    ("normalizers.softpick", a_constant_on_a_row_of_scores_changes_nothing): "each score is compared with zero",
    (
        "normalizers.append_item",
        no_queries_and_no_keys_give_results_of_those_lengths,
    ): "its results have an item more",
    ("normalizers.sigmoid", a_constant_on_a_row_of_scores_changes_nothing): "each score counts by itself",
    ("normalizers.sigmoid_vjp", a_constant_on_a_row_of_scores_changes_nothing): "each score counts by itself",
    ("normalizers.relu", a_constant_on_a_row_of_scores_changes_nothing): "each score counts by itself",
    ("normalizers.squared_relu", a_constant_on_a_row_of_scores_changes_nothing): "each score counts by itself",
    ("normalizers.silu", a_constant_on_a_row_of_scores_changes_nothing): "each score counts by itself",
    ("normalizers.stick_breaking", permuting_keys_changes_nothing): "the nearest key is asked first",
    ("normalizers.stick_breaking", a_constant_on_a_row_of_scores_changes_nothing): "each score is compared with zero",
    ("normalizers.stick_remainder", a_constant_on_a_row_of_scores_changes_nothing): "each score is compared with zero",
    ("normalizers.sinkhorn", the_future_does_not_change_the_past): "later queries compete for the same keys",
    ("normalizers.sinkhorn", appending_leaves_earlier_rows_alone): "later queries compete for the same keys",
    ("normalizers.softmax_over_queries", a_constant_on_a_row_of_scores_changes_nothing): "queries are compared",
    (
        "normalizers.softmax_over_queries",
        the_future_does_not_change_the_past,
    ): "later queries compete for the same keys",
    (
        "normalizers.softmax_over_queries",
        appending_leaves_earlier_rows_alone,
    ): "later queries compete for the same keys",
    ("positions.cope", permuting_keys_changes_nothing): "it counts the keys after a key",
    ("positions.cope_positions", permuting_keys_changes_nothing): "it counts the keys after a key",
    ("positions.path", permuting_keys_changes_nothing): "the items after a key turn it",
    ("positions.path_by_queries", permuting_keys_changes_nothing): "the items after a key turn it",
    ("positions.path_transfer", permuting_keys_changes_nothing): "the items after a key turn it",
    ("positions.longrope_frequencies", every_argument_changes_the_result): "it reads one of its two lists",
    ("normalizers.straight_through", every_argument_changes_the_result): "the temperature acts on the gradient alone",
    (
        "heads.talking_heads_attention",
        results_lie_in_the_hull_of_the_values,
    ): "mixed weights may be negative and need not sum to one",
    (
        "heads.differential_attention",
        results_lie_in_the_hull_of_the_values,
    ): "its weights may be negative, and sum to one minus lambda",
    ("schedules.online_log_sum_exp", a_constant_on_a_row_of_scores_changes_nothing): "it moves by that constant",
    ("schedules.online_softmax", every_argument_changes_the_result): "a block only changes the order of the sums",
    ("schedules.online_log_sum_exp", every_argument_changes_the_result): "a block only changes the order of the sums",
    ("schedules.online_attention", every_argument_changes_the_result): "a block only changes the order of the sums",
    ("schedules.fast_attention", every_argument_changes_the_result): "workers only share the strips",
    ("schedules.partial_attention", library_and_precision_stay): "its log-sum-exp is never narrower than float32",
    ("schedules.flash_attention", library_and_precision_stay): "its log-sum-exp is never narrower than float32",
    ("schedules.flash_attention_by_keys", library_and_precision_stay): "its log-sum-exp is never narrower than float32",
    ("schedules.flash_attention", every_argument_changes_the_result): "tiles only change the order of the sums",
    ("schedules.flash_attention_by_keys", every_argument_changes_the_result): "tiles only change the order of the sums",
    ("schedules.flash_attention_vjp", every_argument_changes_the_result): "tiles only change the order of the sums",
    ("schedules.block_sparse_attention", library_and_precision_stay): "its log-sum-exp is never narrower than float32",
    ("schedules.quantized_attention", library_and_precision_stay): "its log-sum-exp is never narrower than float32",
    ("schedules.quantize_int8", library_and_precision_stay): "its codes are int8, its scales at least float32",
    ("schedules.quantize_int8", integers_are_the_default_float): "its codes are int8",
    ("schedules.quantize_int8", a_number_of_numpy_is_a_number): "its codes are int8",
    ("schedules.decode", permuting_queries_permutes_the_results): "later positions read the earlier ones",
    ("schedules.decode", no_queries_and_no_keys_give_results_of_those_lengths): "its caches hold old and new keys",
    ("schedules.chunked_prefill", permuting_queries_permutes_the_results): "later positions read the earlier ones",
    ("schedules.chunked_prefill", permuting_keys_changes_nothing): "later positions read the earlier ones",
    ("schedules.chunked_prefill", every_argument_changes_the_result): "a size only changes the order of the work",
    ("schedules.gather_pages", no_queries_and_no_keys_give_results_of_those_lengths): "a page holds several items",
    ("schedules.gather_pages", one_batch_item_alone_equals_it_in_the_batch): "all sequences share one pool",
    ("schedules.write_pages", one_batch_item_alone_equals_it_in_the_batch): "all sequences share one pool",
    ("schedules.paged_attention", permuting_queries_permutes_the_results): "later positions read the earlier ones",
    ("schedules.paged_attention", one_batch_item_alone_equals_it_in_the_batch): "all sequences share one pool",
    ("schedules.rolling_decode", permuting_queries_permutes_the_results): "later positions read the earlier ones",
    (
        "circuits.previous_token_pattern",
        no_queries_and_no_keys_give_results_of_those_lengths,
    ): "its queries are its keys",
    ("circuits.previous_token_pattern", every_argument_changes_the_result): "it reads the length alone",
    (
        "circuits.duplicate_token_pattern",
        no_queries_and_no_keys_give_results_of_those_lengths,
    ): "its queries are its keys",
    ("circuits.induction_pattern", no_queries_and_no_keys_give_results_of_those_lengths): "its queries are its keys",
    ("circuits.latest", permuting_keys_changes_nothing): "it looks at the index of the key",
}


def held(topic):
    """Parameters for the test of one topic: each public function with each property that it is held to."""
    family, module = topic.split("/")
    functions = importlib.import_module(f"softlookup.{family}.{module}").__all__
    return [
        (f"{family}.{name}", functools.partial(hold, invariant))
        for name in functions
        for invariant, need in NEEDS.items()
        if f"{family}.{name}" in SUBJECTS
        and (need is None or getattr(SUBJECTS[f"{family}.{name}"], need))
        and (f"{family}.{name}", invariant) not in EXCEPTIONS
    ]


def hold(invariant, subject, xp):
    """Hold a function to a property; one that is for NumPy alone must refuse the arrays of other libraries."""
    if subject.numpy_only and not xp.name.startswith("numpy"):
        with pytest.raises(TypeError, match="NumPy"):
            subject(**xp.arrays(subject.arrays()))
    else:
        invariant(subject, xp)


def run(subject, xp, arrays):
    """The results of the function under one array library, as NumPy arrays; in one piece where that can be compiled."""
    call = subject
    if xp.compiles and all(isinstance(a, np.ndarray) for a in arrays.values()):
        call = compiled(subject, xp.module.jit)
    return [xp.numpy(a) for a in call(**xp.arrays(arrays))]


@functools.cache
def compiled(subject, jit):
    return jit(subject.__call__)


def close(ours, expected, xp):
    np.testing.assert_allclose(ours, expected, rtol=xp.tolerance, atol=xp.tolerance)


def differ(ours, theirs):
    return any(not np.array_equal(a, b) for a, b in zip(ours, theirs, strict=True))


def take(a, order, axis):
    return a if axis is None else np.take(a, order, axis)


def cut(a, side, axis):
    return a if axis is None else a[(..., side, *[slice(None)] * (-1 - axis))]


def head(a, axis):
    """The first positions of an array along an axis, if it has that axis."""
    return cut(a, slice(None, CUT), axis)


def spoil(a, axis, bad):
    """A copy with `bad` at the hidden key, unless the array has no keys or holds no numbers."""
    if axis is None or a.dtype == bool:
        return a
    spoiled = a.copy()
    np.moveaxis(spoiled, axis, 0)[HIDDEN] = bad
    return spoiled


def causal(subject, seed):
    """Arguments of as many queries as keys, under a causal mask."""
    arrays = subject.arrays(seed, 5, 5)
    arrays[subject.mask] = np.broadcast_to(np.tri(5, dtype=bool), arrays[subject.mask].shape).copy()
    return arrays


def splice(subject, name, one, two):
    """`one` with the later queries and keys of `two`."""
    spliced = two.copy()
    early = head(head(spliced, subject.queries.get(name)), subject.keys.get(name))
    early[...] = head(head(one, subject.queries.get(name)), subject.keys.get(name))
    return spliced


def past(subject, results):
    """The early rows of each result that has queries, and the early keys of those rows."""
    rows = zip(results, subject.queries_out, subject.keys_out, strict=True)
    return [head(head(a, queries), keys) for a, queries, keys in rows if queries is not None]


def reach_past_the_hull(out, values, allowed):
    """How far `out` (..., n, e) reaches past the readable values (..., m, e), over random directions."""
    directions = np.random.default_rng(4).normal(size=(out.shape[-1], 16))
    reach = values @ directions
    if out.ndim > 2:
        reach = np.repeat(reach, out.shape[-3] // reach.shape[-3], axis=-3)
    farthest = np.max(np.where(allowed[..., None], reach[..., None, :, :], -np.inf), axis=-2)
    return float(np.max(np.where(allowed.any(-1)[..., None], out @ directions - farthest, -np.inf)))
