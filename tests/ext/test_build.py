"""Right pages pass, show what they should, and are read again when they must be."""

import re

import pytest
from book import katex
from ext.books import build, write

GOOD = """
    # Good

    It is {val}`0.3 <0.1 + 0.2>`, so {simplified}`always <precise-here>` $x^2$.

    ```{code-cell} python
    print(1 / 3)
    ```
    ```{expect}
    0.333
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
    ```{code-cell} python
    1 / 2
    ```
    ```{expect}
    0.5
    ```
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
    ---
    import matplotlib.pyplot as plt
    plt.plot([1, 2]);
    ```

    ```{code-cell} python
    :unchecked: the time of day differs each time
    print(5)
    ```

    ```{precise} precise-here
    Nearly always.
    ```
    """
LISTS = "# Lists\n\n```{equalities-list}\n```\n\n```{book-total}\n```\n"
TOPIC = """
    # Weighted average

    ## Core
    ```{key-idea}
    Blend.
    ```
    ```{try}
    Try.
    ```
    ```{solution-start}
    ```
    {val}`1 <1>`
    ```{solution-end}
    ```

    (lookup.weighted_average)=
    Words.

    ```{code-cell} python
    import numpy as np
    from softlookup.lookup import budget, is_distribution, weighted_average
    w = np.array([[0.5, 0.5]])
    out = weighted_average(w, w.T), budget(w), is_distribution(w)
    ```

    (lookup.budget)=
    (lookup.is_distribution)=
    ## Deepen
    EXERCISES

    ## Research
    Words.
    """
EXERCISE = """```{exercise} Do
    This.
    ```
    ```{solution-start}
    ```
    {val}`1 <1>`
    ```{solution-end}
    ```
    """
TOPIC = TOPIC.replace("EXERCISES", 3 * EXERCISE)


@pytest.fixture
def html(tmp_path):
    book = build(write(tmp_path, {"good": GOOD, "lists": LISTS}))
    assert book.failures == []
    return {name: (book.html / f"{name}.html").read_text(encoding="utf-8") for name in ("good", "lists")}


def test_a_right_page_passes_and_shows_its_marks(html):
    good = html["good"]
    assert '<span class="val">0.3<' in good
    assert good.count('<p class="check"') == 2
    assert 'class="katex"' in good
    assert "<script" not in good.split("<body")[1].split("katex")[1].split("</p>")[0]
    assert '<details class="solution"><summary>Solution</summary>' in good
    assert "4 values on this page were recomputed when it was built." in good


def test_simplifications_and_statements_link_each_other(html):
    assert re.search(r'id="simplified-1">always<a[^>]*href="#precise-here"', html["good"])
    assert re.search(r'id="precise-here".*href="#simplified-1"', html["good"], re.DOTALL)


def test_a_figure_is_inline_svg_with_its_label_and_status(html):
    assert re.search(r'<svg[^>]*role="img" aria-label="A rising line."', html["good"])
    assert "Status: synthetic." in html["good"]
    assert "#0072b2" not in html["good"]
    assert "var(--figure-blue)" in html["good"]


def test_equalities_and_values_are_collected(html):
    assert "A third" in html["lists"]
    assert 'href="good.html#equal-1"' in html["lists"]
    assert "4 values in this book were recomputed" in html["lists"]


def test_two_builds_of_one_state_are_identical(tmp_path):
    made = []
    for name in ("one", "two"):
        book = build(write(tmp_path / name, {"good": GOOD, "lists": LISTS}))
        made.append({path.name: path.read_bytes() for path in sorted(book.html.glob("*.html"))})
    assert made[0] == made[1]
    assert len(made[0]) >= 3


def test_a_repeated_build_passes_too_and_a_mended_page_is_forgiven(tmp_path):
    source = write(tmp_path, {"good": GOOD, "bad": "# Bad\nSee [this](nowhere.md). It is {val}`1 <2>`.\n"})
    assert {page for page, _, _ in build(source).failures} == {"bad"}
    assert {page for page, _, _ in build(source).failures} == {"bad"}
    page = source / "bad.md"
    page.write_text(page.read_text().replace("[this](nowhere.md)", "this").replace("<2>", "<1>"))
    assert build(source).failures == []
    assert build(source).failures == []


def test_two_statements_of_one_name_fail_every_build(tmp_path):
    text = "# T\n```{precise} precise-same\nThis.\n```\n"
    source = write(tmp_path, {"a": text, "b": text})
    for _ in range(2):
        assert build(source).failures == [("b", 6, "{precise} precise-same stands on a too")]


def test_a_topic_page_with_everything_passes(tmp_path):
    assert build(write(tmp_path, {"lookup/weighted_average": TOPIC})).failures == []


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("budget(w), ", "", "lookup.budget is never called"),
        ("budget(w), ", "budget, ", "lookup.budget is never called"),
        ("(lookup.budget)=", "", "(lookup.budget)= stands 0 times"),
        ("(lookup.budget)=", "(lookup.budgets)=", "(lookup.budgets)= names no public function"),
        ("## Deepen", "## Deeper", "a topic page has the levels"),
        ("## Research", "## Research\n\n## More", "a topic page has the levels"),
        ("{key-idea}", "{worked}", "no {key-idea}"),
        (EXERCISE, "", "three to five exercises"),
    ],
)
def test_a_topic_page_that_lacks_something_fails_at_a_line(tmp_path, old, new, message):
    source = write(tmp_path, {"lookup/weighted_average": TOPIC})
    page = source / "lookup" / "weighted_average.md"
    text = page.read_text()
    old = "\n".join(line.removeprefix("    ") for line in old.split("\n"))
    assert old in text
    page.write_text(text.replace(old, new, 1 if old in ("## Research", "## Deepen") else -1))
    found = [failure for failure in build(source).failures if message in failure[2]]
    assert found
    assert all(line > 0 and page == "lookup/weighted_average" for page, line, _ in found)


def test_a_page_is_read_again_when_a_module_under_its_cells_changes(tmp_path):
    book = build(write(tmp_path, {"lookup/weighted_average": TOPIC, "plain": "# Plain\nWords.\n"}))
    assert book.failures == []
    depends = {page: {path.rsplit("softlookup/", 1)[-1] for path in paths} for page, paths in book.dependencies.items()}
    assert {"lookup/weighted_average.py", "_arrays.py", "_checks.py", "lookup/__init__.py"} <= depends[
        "lookup/weighted_average"
    ]
    assert "_arrays.py" not in depends.get("plain", set())


def test_a_change_of_the_machinery_rebuilds_everything(tmp_path):
    source = write(tmp_path, {"good": GOOD})
    build(source)
    assert build(source).read == []
    (source / "_data" / "words_with_digits.txt").write_text("x1\n")
    assert "good" in build(source).read


def test_generated_pages_are_rendered_again_whenever_any_page_is(tmp_path):
    source = write(tmp_path, {"good": GOOD, "lists": LISTS})
    build(source)
    page = source / "good.md"
    page.write_text(page.read_text().replace("A third", "One third"))
    book = build(source)
    assert book.read == ["good"]
    assert "One third" in (book.html / "lists.html").read_text(encoding="utf-8")


def test_without_a_math_engine_pages_show_the_source_and_the_build_says_so_once(tmp_path, monkeypatch):
    monkeypatch.setattr("book.katex.quickjs", None)
    katex.engine.cache_clear()
    katex.render.cache_clear()
    source = write(tmp_path, {"good": GOOD})
    book = build(source)
    assert book.failures == []
    assert '<span class="math"><code>x^2</code></span>' in (book.html / "good.html").read_text(encoding="utf-8")
    assert book.said.count("formulas are shown as TeX source") == 1


def test_a_myst_nb_without_the_client_factory_is_refused_clearly(tmp_path, monkeypatch):
    import myst_nb.sphinx_
    from sphinx.errors import ExtensionError

    monkeypatch.delattr(myst_nb.sphinx_, "create_client")
    with pytest.raises(ExtensionError, match="no create_client"):
        build(write(tmp_path, {"good": GOOD}))
