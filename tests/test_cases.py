"""Which cases from public bug reports are held by which test, and which are still open.

``python tests/test_cases.py`` prints the list.
"""

import ast
import functools
import json
import pathlib

import pytest

HERE = pathlib.Path(__file__).parent
CASES = json.loads((HERE / "cases.json").read_text(encoding="utf-8"))


@functools.cache
def claims():
    """The tests that claim each case: {id: {file::test: code}}, read from the decorators without running anything."""
    found = {}
    for path in sorted(HERE.rglob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            for decorator in getattr(node, "decorator_list", []):
                if isinstance(decorator, ast.Call) and ast.unparse(decorator.func).rpartition(".")[2] == "claims":
                    for argument in decorator.args:
                        test = f"{path.relative_to(HERE).as_posix()}::{node.name}"
                        found.setdefault(ast.literal_eval(argument), {})[test] = ast.unparse(node)
    return found


def listing():
    """One line for each case."""
    held = [f"{name}  {case['title']}: {', '.join(claims()[name])}" for name, case in CASES["claimed"].items()]
    return "\n".join([*held, *(f"{name}  {title}: open" for name, title in CASES["open"].items())])


@pytest.mark.parametrize("name", CASES["claimed"])
def test_a_claimed_case_has_a_test_of_the_case_and_one_of_its_kind(name):
    tests = claims().get(name, {})
    assert len(tests) > 1
    assert any(f"test_case_{name.lower()}" in test and f"case('{name}')" in code for test, code in tests.items())


@pytest.mark.parametrize("name", [name for name, case in CASES["claimed"].items() if case["wrong"]])
def test_the_wrong_answers_of_a_claimed_case_are_told_from_ours(name):
    assert any("wrong" in code for code in claims()[name].values())


@pytest.mark.parametrize("name", CASES["open"])
def test_an_open_case_is_claimed_by_no_test(name):
    assert name not in claims()


def test_only_known_cases_are_claimed_and_none_is_both_claimed_and_open():
    assert set(claims()) == set(CASES["claimed"])
    assert not set(CASES["claimed"]) & set(CASES["open"])


@pytest.mark.parametrize("name", CASES["claimed"])
def test_a_claimed_case_says_where_it_was_found_and_what_is_right(name):
    case = CASES["claimed"][name]
    assert case["title"]
    assert case["source"]
    assert case["inputs"]
    assert case["expected"]


def test_the_list_names_every_case_once():
    lines = listing().splitlines()
    assert [line.split()[0] for line in lines] == [*CASES["claimed"], *CASES["open"]]
    assert sum(line.endswith(": open") for line in lines) == len(CASES["open"])


if __name__ == "__main__":
    print(listing())
