"""The notebook and the script of a page: its cells in order, its words in plain Markdown, no markup of the book."""

import os
import re
import subprocess
import sys

import nbformat
import pytest
from ext.books import build, write

PAGE = r"""
    # All *kinds*

    It is {val}`1e-3 <0.001>`, so {simplified}`always <precise-here>` $x^2$, says {ref}`another <here>` and
    [a site](https://example.org/page). See {numref}`fig-line`, a\*b and `{val}`.

    (here)=
    ## Part

    % a comment
    ```{code-cell} python
    print(1 / 3)
    ```
    ```{expect}
    0.333
    ```

    ```{code-cell} python
    x = [1,
         2]
    x
    ```
    ```{expect}
    [1, 2]
    ```

    ```{code-cell} python
    :tags: [raises-exception]
    x[9]
    ```
    ```{expect}
    IndexError: list index out of range
    ```

    ```{code-cell} python
    assert abs(1 / 3 - 0.3333) < 0.001
    ```
    ```{equal} A third
    becomes $0.333$ when it is rounded.
    ```

    ```{try}
    What is a half?
    ```
    ```{solution-start}
    ```
    Easy.

    ```{code-cell} python
    print(1 / 2)
    print(1 / 4)
    ```
    ```{expect}
    0.5
    0.25
    ```
    ```{solution-end}
    ```

    ```{exercise} Two
    Twice?
    ```
    ```{solution-start}
    ```
    It is {val}`2 <1 + 1>`.
    ```{solution-end}
    ```

    ```{code-cell} python
    ---
    mystnb:
      image: {alt: "A rising line."}
      figure:
        name: fig-line
        caption: It rises to {val}`2 <1 + 1>`.
    status: synthetic
    tags: [hide-input]
    ---
    import matplotlib.pyplot as plt
    plt.plot([1, 2]);
    ```

    ```{source} lookup.is_distribution
    ```

    | a | b |
    |---|---|
    | $\|x\|$ | {val}`2 <1 + 1>` |

    ```{math}
    :label: eq-one
    x = 1
    ```

    By {eq}`eq-one`:

    ```{precise} precise-here
    Nearly always.
    ```
    """


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    source = write(tmp_path_factory.mktemp("book"), {"part/page": PAGE, "words": "# Words\n"})
    tests = source.parent / "tests" / "lookup"
    tests.mkdir(parents=True)
    (tests / "test_weighted_average.py").touch()  # the page links to it, its downloads do not
    book = build(source, book_title="The Book")
    assert book.failures == []
    return book.html


@pytest.fixture(scope="module")
def notebook(folder):
    return nbformat.read(folder / "part" / "page.ipynb", as_version=4)


@pytest.fixture(scope="module")
def script(folder):
    return (folder / "part" / "page.py").read_text(encoding="utf-8")


def prose(notebook):
    return "\n\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")


def test_the_notebook_is_valid_and_has_the_cells_in_order(notebook):
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.source.split("\n")[-1] for cell in code] == [
        "print(1 / 3)",
        "x",
        "x[9]",
        "assert abs(1 / 3 - 0.3333) < 0.001",
        "print(1 / 4)",
        "plt.plot([1, 2]);",
    ]
    assert [cell.execution_count for cell in code] == [1, 2, 3, 4, 5, 6]
    kinds = [[output.output_type for output in cell.outputs] for cell in code]
    assert kinds == [["stream"], ["execute_result"], ["error"], [], ["stream"], ["display_data"]]
    assert code[0].outputs[0].text == "0.3333333333333333\n"
    assert code[1].outputs[0].data["text/plain"] == "[1, 2]"
    assert "var(--" not in code[5].outputs[0].data["image/svg+xml"]
    assert code[2].metadata.tags == ["raises-exception"]
    assert code[4].metadata.jupyter == {"source_hidden": True, "outputs_hidden": True}
    assert code[5].metadata.jupyter == {"source_hidden": True, "outputs_hidden": False}


@pytest.mark.parametrize(
    "words",
    [
        "# All *kinds*\n\n*A page of The Book, version",
        "It is 1 × 10^−3, so always $x^2$, says another and\n[a site](https://example.org/page).",
        "See Fig. 1, a\\*b and `{val}`.",
        "## Part",
        "> **An equality**\n>\n> **A third**\n>\n> becomes $0.333$ when it is rounded.",
        "> **Stop and try**\n>\n> What is a half?\n\n<details><summary>Solution</summary>\n\nEasy.\n\n</details>",
        "> **Exercise: Two**\n>\n> Twice?\n\n<details><summary>Solution</summary>\n\nIt is 2.\n\n</details>",
        "**Figure 1.** It rises to 2. Status: synthetic.",
        "`softlookup.lookup.is_distribution`\n\n```python\ndef is_distribution(",
        "| a | b |\n|---|---|\n| $\\vert x\\vert $ | 2 |",
        "$$\nx = 1 \\tag{1}\n$$\n\nBy (1):",
        "> **Precisely**\n>\n> Nearly always.\n>\n> Simplified as: *always*",
    ],
)
def test_the_words_of_the_notebook_are_plain_markdown(notebook, words):
    assert words in prose(notebook)


def test_nothing_of_the_markup_is_left(notebook):
    words = re.sub(r"`{val}`|\$\$.*?\$\$|\$[^$]*\$", "", prose(notebook), flags=re.DOTALL)
    assert not re.search(r"\{[a-z:-]+\}|\)=|^%|recomputed|simplified-", words, re.MULTILINE)


def test_links_lead_to_the_hosted_book_when_there_is_one(tmp_path):
    source = write(
        tmp_path, {"a/b": "# B\n[C](../c.md), [here](#b)\n" + "```{code-cell} python\nx = 1\n```\n", "c": "# C\n"}
    )
    book = build(source, html_baseurl="https://example.org/book/")
    words = prose(nbformat.read(book.html / "a" / "b.ipynb", as_version=4))
    assert "[C](https://example.org/book/c.html), [here](https://example.org/book/a/b.html#b)" in words


def test_the_script_says_what_is_expected(script):
    assert "print(1 / 3)\n# expected: 0.333\n" in script
    assert "x = [1,\n     2]\nprint(repr(x))\n# expected: [1, 2]\n" in script
    assert "print(1 / 4)\n# expected:\n#   0.5\n#   0.25\n" in script
    assert "# > **Stop and try**" in script
    assert "# **Solution**" in script
    assert "<details>" not in script


def test_the_script_runs_and_prints_what_is_expected(folder):
    assert run(folder / "part" / "page.py") == [
        "0.3333333333333333",
        "[1, 2]",
        "IndexError: list index out of range",
        "0.5",
        "0.25",
    ]


def test_only_a_page_with_cells_has_downloads(folder):
    assert not (folder / "words.ipynb").exists()
    assert not (folder / "words.py").exists()


def run(*paths):
    """The printed lines of scripts, which run without anything that builds the book."""
    code = f"""
import runpy, sys
for path in {[str(path) for path in paths]}:
    runpy.run_path(path, run_name="__main__")
assert not {{"sphinx", "docutils", "myst_nb", "IPython"}} & set(sys.modules)
"""
    environment = {**os.environ, "MPLBACKEND": "agg"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()
