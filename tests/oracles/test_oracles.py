"""The record of agreement itself, the readers of strangers, and the frozen results."""

import ast
import functools
import json
import pathlib
import re

import numpy as np
import pytest

from oracles.freeze import CASES, FOLDER, frozen, source
from oracles.onnx_cases import attention_arguments, node_cases
from oracles.records import FILE, Records, round_up

RECORDS = json.loads(FILE.read_text(encoding="utf-8"))
TESTS = pathlib.Path(__file__).parents[1]
WHO = {"function": "lookup.f", "stranger": "someone", "version": "someone 1", "dtype": "float64"}


@pytest.fixture
def records(tmp_path):
    """A record in which `lookup.f` and `someone` differ by at most 3e-10, and are the same where nothing is rounded."""
    first = Records(recording=True, file=tmp_path / "oracles.json")
    first.agree([1.0], [1.0 + 2.5e-10], **WHO)
    first.agree([1.0], [1.0], **WHO | {"stranger": "exact"}, exact=True)
    first.save()
    return lambda **options: Records(file=tmp_path / "oracles.json", **{"recording": False} | options)


@pytest.mark.parametrize(
    ("number", "up"), [(0.0, 0.0), (3e-16, 3e-16), (3.01e-16, 4e-16), (9.7e-16, 1e-15), (0.25, 0.3), (12.0, 20.0)]
)
def test_a_difference_is_rounded_up_to_one_digit(number, up):
    assert round_up(number) == pytest.approx(up, rel=1e-12)


def test_an_ordinary_run_allows_what_is_recorded_and_no_more(records):
    records().agree([1.0], [1.0 + 2.9e-10], **WHO)
    with pytest.raises(AssertionError, match="the record allows 3e-10"):
        records().agree([1.0], [1.0 + 3.1e-10], **WHO)


def test_a_recorded_zero_stays_zero(records):
    with pytest.raises(AssertionError, match="the record allows 0e"):
        records().agree([1.0], [1.0 + 2**-52], **WHO | {"stranger": "exact"}, exact=True)


def test_a_sum_may_be_rounded_in_another_order(records):
    rounded = records(recording=True)
    rounded.agree([2.0], [2.0], **WHO)
    rounded.save()
    records().agree([2.0], [2.0 + 2 * 2**-51], **WHO)
    with pytest.raises(AssertionError, match="the record allows 4e-15"):
        records().agree([2.0], [2.0 + 5e-15], **WHO)


def test_a_comparison_without_a_record_fails(records):
    with pytest.raises(AssertionError, match="no record of lookup.f / nobody"):
        records().agree([1.0], [1.0], **WHO | {"stranger": "nobody"})


def test_a_clash_is_part_of_the_record(records):
    with pytest.raises(AssertionError, match="another clash"):
        records().agree([1.0], [1.0], **WHO, clash="counts from one")


@pytest.mark.parametrize(
    ("ours", "theirs"), [([np.nan], [1.0]), ([1.0], [np.nan]), ([np.inf], [-np.inf]), ([[1.0]], [1.0]), ([], [])]
)
def test_what_cannot_be_compared_fails_also_while_recording(records, ours, theirs):
    with pytest.raises(AssertionError):
        records(recording=True).agree(ours, theirs, **WHO)


def test_several_comparisons_make_one_record_of_the_largest(records):
    new = records(recording=True)
    for off in (1e-10, 5e-10, 2e-10):
        new.agree([1.0], [1.0 + off], **WHO)
    new.save()
    records().agree([1.0], [1.0 + 4.9e-10], **WHO)


def test_recording_keeps_the_records_of_other_comparisons_and_the_order_of_the_file(records, tmp_path):
    before = (tmp_path / "oracles.json").read_text()
    again = records(recording=True)
    again.agree([1.0], [1.0 + 2.5e-10], **WHO)
    again.save()
    assert (tmp_path / "oracles.json").read_text() == before
    assert [entry["stranger"] for entry in json.loads(before)] == ["exact", "someone"]


def test_nothing_is_written_when_nothing_was_compared(tmp_path):
    Records(recording=True, file=tmp_path / "oracles.json").save()
    assert not (tmp_path / "oracles.json").exists()


@functools.cache
def comparisons():
    """The function and the stranger of every call of `agree`, as patterns: what a string leaves open fits anything."""
    found = set()
    for path in TESTS.rglob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "agree":
                keywords = {keyword.arg: keyword.value for keyword in node.keywords}
                found.add((pattern(keywords["function"]), pattern(keywords["stranger"])))
    return found


def pattern(node):
    parts = node.values if isinstance(node, ast.JoinedStr) else [node]
    return "".join(re.escape(part.value) if isinstance(part, ast.Constant) else ".+" for part in parts)


@pytest.mark.parametrize("entry", RECORDS, ids=lambda entry: f"{entry['function']}-{entry['stranger']}")
def test_every_record_belongs_to_a_comparison_that_is_still_made(entry):
    assert set(entry) == {"function", "stranger", "version", "dtype", "difference", "floor", "clash"}
    assert any(re.fullmatch(f, entry["function"]) and re.fullmatch(s, entry["stranger"]) for f, s in comparisons())


def test_every_comparison_has_a_record():
    kept = [(entry["function"], entry["stranger"]) for entry in RECORDS]
    for function, stranger in comparisons():
        assert any(re.fullmatch(function, f) and re.fullmatch(stranger, s) for f, s in kept), stranger


def test_every_frozen_file_has_a_case_and_every_case_a_file():
    assert sorted(path.stem for path in FOLDER.glob("*.npz")) == sorted(CASES)


@pytest.mark.parametrize("name", CASES)
def test_a_frozen_file_was_written_by_the_code_of_its_case(name):
    kept = frozen(name)
    assert kept.meta["code"] == source(name), f"{name} has changed since it was frozen: run tests/oracles/freeze.py"
    assert set(kept.meta) == {"packages", "numpy", "python", "code"}
    assert all(np.isfinite(a).all() for a in kept.values())


def test_the_cases_of_onnx_are_read_with_their_conventions():
    cases = {case.name: case for case in node_cases("Attention")}
    assert len(cases) >= 60
    seen = attention_arguments(cases["test_attention_4d_causal"])
    assert seen["q"].shape[-2] < seen["k"].shape[-2]
    np.testing.assert_array_equal(seen["mask"][0, 0], np.tri(seen["q"].shape[-2], seen["k"].shape[-2], dtype=bool))
    grouped = attention_arguments(cases["test_attention_3d_gqa"])
    assert grouped["q"].shape[1] > grouped["k"].shape[1]
