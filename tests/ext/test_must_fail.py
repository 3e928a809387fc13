"""Pages that must fail, at their line, and again when the build is simply repeated."""

import pytest
from ext.books import HEAD, build, write

OFFSET = HEAD.count("\n")
CELL = "```{code-cell} python\n%s\n```\n"
FIGURE = """
    ```{{code-cell}} python
    ---
    mystnb:
      {image}
      figure:
        name: fig-{name}
        caption: What to see.
    {status}
    ---
    import matplotlib.pyplot as plt
    plt.plot([1, 2]);
    ```
    """

# name: (page below its front matter, line of the failure in that text, part of the message)
PAGES = {
    "wrong_expect": (
        "# T\n" + CELL % "print(0.1 + 0.2)" + "```{expect}\n0.31\n```\n",
        5,
        "0.30000000000000004 is not 0.31",
    ),
    "wrong_val": ("# T\nIt\nis {val}`0.31 <0.1 + 0.2>`.\n", 3, "is not 0.31"),
    "wrong_whole": ("# T\nIt is {val}`2 <2.0001>`.\n", 2, "2.0001 is not 2"),
    "wrong_percent": ("# T\nIt is {val}`61% <0.6>`.\n", 2, "is not 61%"),
    "wrong_fraction": ("# T\nIt is {val}`1/3 <0.333>`.\n", 2, "is not 1/3"),
    "wrong_word": ("# T\nIt is {val}`cat <'dog'>`.\n", 2, "dog is not cat"),
    "wrong_in_table": ("# T\n\n| a |\n|---|\n| {val}`1 <2>` |\n", 5, "is not 1"),
    "numpy_whole": (
        "# T\n" + CELL % "import numpy as np\nprint(np.array([2.4]))" + "```{expect}\n[2.]\n```\n",
        6,
        "2.4 is not 2.",
    ),
    "tie": ("# T\nIt is {val}`0.2 <0.25>`.\n", 2, "on the tie"),
    "missing_line": (
        "# T\n" + CELL % "print(1); print(2)" + "```{expect}\n1\n```\n",
        5,
        "1 lines expected, 2 lines came",
    ),
    "extra_line": ("# T\n" + CELL % "print(1)" + "```{expect}\n1\n2\n```\n", 5, "2 lines expected, 1 lines came"),
    "other_text": ("# T\n" + CELL % "print('a 1')" + "```{expect}\nb 1\n```\n", 5, "the text differs"),
    "raising": ("# T\n" + CELL % "x = 1\nx / 0" + "\n" + CELL % "x = 2", 4, "ZeroDivisionError"),
    "raising_option": (
        "# T\n```{code-cell} python\n:tags: [hide-input]\n\ny = 1\nnosuch\n```\n",
        6,
        "NameError: name 'nosuch'",
    ),
    "syntax": ("# T\n" + CELL % "x = 1\nx = = 2", 4, "SyntaxError"),
    "warns": ("# T\n" + CELL % "import numpy as np\nx = np.log(np.zeros(1))", 4, "RuntimeWarning"),
    "silent_comparison": ("# T\n" + CELL % "import numpy as np\nnp.allclose(1, 2)", 4, "compares without asserting"),
    "raises_nothing": ("# T\n```{code-cell} python\n:tags: [raises-exception]\nx = 1\n```\n", 2, "raised nothing"),
    "unknown_name": ("# T\nIt is {val}`1 <nosuch>`.\n", 2, "NameError"),
    "raising_val": ("# T\nIt is {val}`1 <1 / 0>`.\n", 2, "ZeroDivisionError"),
    "malformed_val": ("# T\nIt is {val}`1`.\n", 2, "needs the form"),
    "early_val": ("# T\nIt is {val}`1 <x>`.\n\n" + CELL % "x = 1", 2, "NameError"),
    "unchecked_print": ("# T\n" + CELL % "print(1)", 2, "no {expect} follows"),
    "unchecked_value": ("# T\n" + CELL % "1 + 1", 2, "no {expect} follows"),
    "lazy_reason": ("# T\n```{code-cell} python\n:unchecked: no\nprint(1)\n```\n", 2, "no {expect} follows"),
    "below_a_cell": ("# T\n" + CELL % "x = 1" + "\n\nWords.\nIt is {val}`2 <x>`.\n", 8, "1.0 is not 2"),
    "last_cell": ("# T\n```{code-cell} python\n:tags: [remove-cell]\nprint(1)\n```\n", 2, "no {expect} follows"),
    "distant_expect": (
        "# T\n" + CELL % "print(1)" + "Words.\n\n```{expect}\n1\n```\n",
        7,
        "directly under a code cell",
    ),
    "second_expect": (
        "# T\n" + CELL % "print(1)" + "```{expect}\n1\n```\n```{expect}\n1\n```\n",
        8,
        "a second {expect}",
    ),
    "bare_digit": ("# T\nWords.\n\nThere are\n25 of them.\n", 5, "'25'"),
    "caption_digit": (
        FIGURE.format(image='image: {alt: "A line."}', name="digit", status="status: synthetic").replace(
            "What to see.", "There are 7."
        ),
        8,
        "'7.'",
    ),
    "no_alt": (FIGURE.format(image="image: {}", name="alt", status="status: computed"), 2, "without alt text"),
    "no_status": (FIGURE.format(image='image: {alt: "A line."}', name="status", status=""), 2, "without a status"),
    "bad_formula": ("# T\nWords.\n\nThen $\\nosuch{x}$.\n", 4, "\\nosuch"),
    "bad_display": ("# T\n\n```{math}\n\\frac{1\n```\n", 4, "math:"),
    "no_target": ("# T\nOr {simplified}`all <nowhere>`.\n", 2, "no precise statement nowhere"),
    "malformed_mark": ("# T\nOr {simplified}`all`.\n", 2, "needs the form"),
    "equal_uncompared": ("# T\n" + CELL % "x = 1" + "```{equal} A\nis B.\n```\n", 5, "compares nothing"),
    "equal_constant": ("# T\n" + CELL % "assert True" + "```{equal} A\nis B.\n```\n", 5, "compares nothing"),
    "equal_itself": (
        "# T\n" + CELL % "import numpy as np\nnp.testing.assert_equal(1, 1)" + "```{equal} A\nis B.\n```\n",
        6,
        "compares nothing",
    ),
    "equal_alone": ("# T\n```{equal} A\nis B.\n```\n", 2, "directly under the cell"),
    "equal_failed": ("# T\n" + CELL % "assert 1 == 2" + "```{equal} A\nis B.\n```\n", 5, "did not run"),
    "nested_cell": ("# T\n:::{note}\n```{code-cell} python\nx = 1\n```\n:::\n", 3, "code-cell"),
    "broken_link": ("# T\nWords.\n\nSee [this](nowhere.md).\n", 4, "nowhere.md"),
    "broken_anchor": ("# T\nSee {ref}`nowhere`.\n", 2, "nowhere"),
    "no_solution": ("# T\n```{try}\nWhat?\n```\n", 2, "without a solution"),
    "idle_solution": (
        "# T\n```{try}\nWhat?\n```\n```{solution-start}\n```\nThis.\n\n```{solution-end}\n```\n",
        5,
        "checks nothing",
    ),
    "open_solution": ("# T\n```{try}\nWhat?\n```\n```{solution-start}\n```\nThis.\n", 5, "without {solution-end}"),
    "no_source": ("# T\n```{source} lookup.nosuch\n```\n", 2, "nosuch"),
}


@pytest.fixture(scope="module")
def builds(tmp_path_factory):
    source = write(tmp_path_factory.mktemp("must_fail"), {name: text for name, (text, _, _) in PAGES.items()})
    return [build(source), build(source)]


@pytest.mark.parametrize("name", PAGES)
@pytest.mark.parametrize("time", [0, 1], ids=["first build", "repeated build"])
def test_a_page_that_must_fail_does(builds, name, time):
    _, line, message = PAGES[name]
    found = [failure for failure in builds[time].failures if failure[0] == name]
    assert any(at == line + OFFSET and message in text for _, at, text in found), found


def test_a_failure_names_what_was_expected_and_what_came(builds):
    assert "expected: 0.31" in builds[0].warnings
    assert "got:      0.30000000000000004" in builds[0].warnings
    assert f"wrong_expect.md:{5 + OFFSET}" in builds[0].warnings
