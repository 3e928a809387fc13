"""The shared properties: the table is complete, exceptions are real, and promises are neither broken nor modest."""

import functools
import importlib
import inspect
import pkgutil
import re

import numpy as np
import pytest
from invariants import (
    CUT,
    EXCEPTIONS,
    NEEDS,
    appending_leaves_earlier_rows_alone,
    close,
    head,
    hold,
    inputs_stay_as_they_were,
    integers_are_the_default_float,
    library_and_precision_stay,
    past,
    reach_past_the_hull,
)
from libraries import Library
from subjects import OTHERS, SUBJECTS

import softlookup

PROMISES = ("non-negative", "sums to one", "inside the hull", "shift invariant", "prefix stable")


def public_functions():
    """The qualified names of all public functions of all families."""
    families = [name for _, name, is_package in pkgutil.iter_modules(softlookup.__path__) if is_package]
    return [
        f"{family}.{name}" for family in families for name in importlib.import_module(f"softlookup.{family}").__all__
    ]


def test_every_public_function_has_a_subject_and_every_subject_is_public():
    assert sorted([*SUBJECTS, *OTHERS]) == sorted(public_functions())
    assert all(OTHERS.values())


@pytest.mark.parametrize(("name", "invariant"), EXCEPTIONS)
def test_an_exception_has_a_reason_and_is_real(name, invariant):
    assert EXCEPTIONS[name, invariant]
    need = NEEDS[invariant]
    assert need is None or getattr(SUBJECTS[name], need), "it lacks what the property needs: no exception is due"
    with pytest.raises((AssertionError, ValueError)):
        invariant(SUBJECTS[name], Library("numpy"))


@pytest.mark.parametrize("name", SUBJECTS)
def test_other_modes_of_the_libraries(other_xp, name):
    for invariant in (library_and_precision_stay, integers_are_the_default_float, inputs_stay_as_they_were):
        if (name, invariant) not in EXCEPTIONS:
            hold(invariant, SUBJECTS[name], other_xp)


@pytest.mark.parametrize("name", [name for name, subject in SUBJECTS.items() if not subject.numpy_only])
def test_traces_under_jit(jax, name):
    xp, subject = Library("jax"), SUBJECTS[name]
    arrays = xp.arrays(subject.arrays())
    for ours, expected in zip(jax.jit(lambda a: subject(**a))(arrays), subject(**arrays), strict=True):
        close(xp.numpy(ours), xp.numpy(expected), xp)


def promised(name):
    """What the field `Promises` says (the word none is no promise), or None for a function that is no variant."""
    notes = inspect.getdoc(SUBJECTS[name].function)
    found = re.search(r"^Promises : (.*(?:\n    .*)*)", notes, re.MULTILINE)
    assert bool(found) == bool(re.search(r"^Slot : ", notes, re.MULTILINE))
    return found and {promise.strip() for promise in found[1].split(",")} - {"none"}


VARIANTS = [name for name in SUBJECTS if re.search(r"^Slot : ", inspect.getdoc(SUBJECTS[name].function), re.MULTILINE)]


def has_weights(subject):
    """Whether there is something to multiply values with: a mask, a bias and a factor for each row are no weights."""
    if subject.values is not None or subject.keys_out[0] is None:
        return subject.values is not None
    return not subject.boolean and bool(subject.shifted or "k" in subject.arrays())


def is_mask(subject):
    """Whether the result says for each pair whether the query may read the key."""
    return subject.boolean and subject.keys_out[0] is not None


def weights(subject, arrays):
    """What the function multiplies the values with: its result, or its result for values that tell every key apart."""
    if subject.values is None:
        return subject(**arrays)[0]
    shape = arrays[subject.values].shape
    telling = np.broadcast_to(np.eye(shape[-2]), (*shape[:-1], shape[-2]))
    return subject(**arrays | {subject.values: telling})[0]


def readable(subject, arrays, w):
    return np.broadcast_to(arrays[subject.mask] if subject.mask else True, w.shape)


def is_non_negative(subject, seed):
    return np.all(weights(subject, subject.arrays(seed)) >= 0)


def sums_to_one(subject, seed):
    return np.allclose(weights(subject, subject.arrays(seed)).sum(-1), 1)


def is_inside_the_hull(subject, seed):
    """The blend by the weights; for a function that blends, its own result."""
    arrays = subject.arrays(seed)
    w = weights(subject, arrays)
    values = arrays[subject.values] if subject.values else np.random.default_rng(seed).normal(size=(5, 2))
    out = subject(**arrays)[0] if subject.values else w @ values
    if out.ndim > 2 and values.ndim == 2:
        values = values[None]
    return reach_past_the_hull(out, values, readable(subject, arrays, w)) < 1e-9


def is_shift_invariant(subject, seed):
    """A constant on each row of scores; without scores to add it to, the same step of all keys adds it to every q·k."""
    arrays = subject.arrays(seed)
    shifted = subject.shifted or "k"
    axis = -1 if subject.shifted else -2
    step = np.random.default_rng(seed).normal(size=arrays[shifted].shape)
    moved = arrays[shifted] + np.take(step, [0], axis)
    return np.allclose(weights(subject, arrays), weights(subject, arrays | {shifted: moved}), atol=1e-9)


def is_prefix_stable(subject, seed):
    """Later positions leave earlier rows alone; those of a mask also let nothing later be read."""
    if subject.mask:
        return holds(functools.partial(appending_leaves_earlier_rows_alone, subject, Library("numpy")))
    arrays = subject.draw(np.random.default_rng(seed), 5, 5)
    arrays |= {name: np.arange(5) for name in arrays if name.endswith("_positions")}
    if is_mask(subject) and subject(**arrays)[0][:CUT, CUT:].any():
        return False
    first = {name: head(head(a, subject.queries.get(name)), subject.keys.get(name)) for name, a in arrays.items()}
    early, whole = (past(subject, subject(**given)) for given in (first, arrays))
    return all(np.allclose(*pair) for pair in zip(early, whole, strict=True))


def holds(check):
    try:
        check()
    except AssertionError:
        return False
    return True


CHECKS = dict(
    zip(
        PROMISES,
        (is_non_negative, sums_to_one, is_inside_the_hull, is_shift_invariant, is_prefix_stable),
        strict=True,
    )
)


def test_variants_are_found():
    assert {"lookup.softmax", "lookup.attention", "lookup.scaled_dot", "lookup.kernel_regression"} <= set(VARIANTS)


@pytest.mark.parametrize("name", VARIANTS)
def test_promises_are_written_in_their_order(name):
    assert promised(name) <= set(PROMISES)


@pytest.mark.parametrize("promise", PROMISES)
@pytest.mark.parametrize("name", VARIANTS)
def test_a_promise_is_kept_and_one_that_is_not_given_is_broken(name, promise):
    subject = SUBJECTS[name]
    speaks = promise == "prefix stable" or has_weights(subject)
    kept = speaks and all(CHECKS[promise](subject, seed) for seed in range(5))
    assert kept == (promise in promised(name))
