"""The rule "digits as written", case by case."""

import numpy as np
import pytest
from book.compare import count_numbers, text_mismatch, value_mismatch

RIGHT = [
    ("0.607", 0.60653066),
    ("0.3", 0.1 + 0.2),
    ("25", 25.0),
    ("25", 25 + 5e-10),
    ("-0.30", -0.2951),
    ("−0.30", -0.2951),
    ("60%", 0.6),
    ("31.6%", 0.3161),
    ("4,096", 4096),
    ("1,234.5", 1234.52),
    ("1/3", 1 / 3),
    ("-2/3", -2 / 3),
    ("1e-16", 1.2e-16),
    ("1.2e3", 1234.0),
    ("1.000", 1.0004),
    ("cat", "cat"),
    ("True", np.True_),
    ("[0.1, 0.9]", np.asarray([0.1, 0.9])),
    ("0.25", np.float64(0.2501)),
]
WRONG = [
    ("0.608", 0.60653066, "is not 0.608"),
    ("0.606", 0.60653066, "is not 0.606"),
    ("2.1", 2.0, "is not 2.1"),
    ("25", 25 + 5e-9, "is not 25"),
    ("1", 1.0004, "is not 1"),
    ("−0.30", 0.2951, "is not −0.30"),
    ("60%", 0.601, "is not 60%"),
    ("60", 0.6, "is not 60"),
    ("4,096", 4097, "is not 4,096"),
    ("1/3", 0.3333333, "is not 1/3"),
    ("1e-16", 1.6e-16, "is not 1e-16"),
    ("0.2", 0.25, "tie"),
    ("0.3", 0.25, "tie"),
    ("0.12", 0.125 + 4e-10, "tie"),
    ("cat", "cats", "is not cat"),
    ("0.5", float("nan"), "nan is not 0.5"),
    ("0.5", float("inf"), "inf is not 0.5"),
    ("[0.1, 0.9]", [0.1, 0.8], "is not"),
]


@pytest.mark.parametrize(("shown", "value"), RIGHT)
def test_right_values_pass(shown, value):
    assert value_mismatch(shown, value) is None


@pytest.mark.parametrize(("shown", "value", "why"), WRONG)
def test_wrong_values_fail(shown, value, why):
    assert why in value_mismatch(shown, value)


@pytest.mark.parametrize(
    ("expected", "got"),
    [
        ("[1. 0.6065]", "[1.         0.60653066]"),
        ("array([1. , 0.6065])", "array([1.        , 0.60653066])"),
        ("a 1\nb 2", "a  1\nb 2\n"),
        ("0.", "-0.0000000001"),
        ("x=3", "x = 3"),
        ("inf nan", "inf nan"),
    ],
)
def test_right_outputs_pass(expected, got):
    assert text_mismatch(expected, got) is None


@pytest.mark.parametrize(
    ("expected", "got"),
    [
        ("[2.]", "[2.4]"),
        ("[1. 0.6066]", "[1.         0.60653066]"),
        ("a 1", "a 1\nb 2"),
        ("a 1\nb 2", "a 1"),
        ("a 1", "b 1"),
        ("1 2", "1"),
        ("1", "1 2"),
        ("nan", "1"),
        ("0.5", "nan"),
        ("True", "False"),
    ],
)
def test_wrong_outputs_fail(expected, got):
    assert text_mismatch(expected, got)


def test_names_with_digits_are_words():
    assert text_mismatch("float64 x1 2", "float64 x1 2") is None
    assert text_mismatch("float64", "float32")
    assert count_numbers("float64 has 2 of 1.5e3") == 2
