"""The API reference: made from docstrings, every link both ways, every error at the docstring's file and line."""

import ast
import re
from pathlib import Path
from types import ModuleType

import pytest
from book.reference import signature
from book.tests import own_test
from ext.books import build, write

INDEX = "# Functions\n\n```{reference-pages}\n```\n"
TOPIC = "# A\n\n(lookup.other)=\n(lookup.softmax)=\n```{source} lookup.softmax\n```\n"
PAGES = {"reference/index": INDEX, "part/a": TOPIC}
VIEWCODE = ["myst_nb", "sphinx.ext.viewcode", "book"]
DOCSTRING = '''"""Softmax as a test needs it."""

__all__ = ["other", "softmax"]


def other(softmax, /):
    """Do nothing with `softmax`."""


def softmax(s: int, /, *masks: int, t: float = 1.0, normalize=other) -> int:
    r"""Turn `s` into something.

    .. math:: e^{s}

    Parameters
    ----------
    s : array of shape (..., n)
        Scores, for `other` and `softmax`.
    *masks : arrays
        Masks.

    See Also
    --------
    other : The other one.
    other, softmax

    Notes
    -----
    Slot : normalize
    Cost : O(n) time,
        with :math:`n^2` memory and 3 more.

    Some words 12.

    References
    ----------
    J. S. Bridle, 1990.

    Examples
    --------
    >>> 1 + 1
    2
    """
'''


@pytest.fixture
def module(tmp_path, monkeypatch):
    """The family lookup with one topic alone, whose text a test may change before it builds."""
    path = tmp_path / "softmax.py"
    path.write_text(DOCSTRING, encoding="utf-8")
    (tmp_path / "__init__.py").touch()

    def load(*families):
        fakes = [ModuleType(f"softlookup.{family}.softmax") for family in families or ["lookup"]]
        for fake in fakes:
            fake.__file__ = str(path)
            exec(compile(path.read_text(encoding="utf-8"), str(path), "exec"), fake.__dict__)
        of = lambda fake: fake.__name__.split(".")[1]  # noqa: E731
        monkeypatch.setattr("book.reference.topics", lambda wanted: [fake for fake in fakes if of(fake) in wanted])

    return path, load


@pytest.fixture
def book(tmp_path, module):
    module[1]()
    source = write(tmp_path, PAGES)
    tests = tmp_path / "tests" / "lookup"
    tests.mkdir(parents=True)
    (tests / "test_softmax.py").write_text("class TestSoftmax:\n    pass\n\n\ndef test_other_way():\n    pass\n")
    return source


def entry(html: Path, name: str) -> str:
    text = (html / "reference" / "lookup.html").read_text(encoding="utf-8")
    return (
        text.partition(f'id="softlookup.lookup.{name}"')[2]
        .partition("sphinxsidebar")[0]
        .partition('<dl class="py function')[0]
    )


def built(source, **options):
    return build(source, extensions=VIEWCODE, **options)


def test_an_entry_has_signature_sections_fields_and_links(book):
    made = built(book)
    assert made.failures == []
    text = entry(made.html, "softmax")
    plain = re.sub(r"\s+", " ", re.sub(r"<[^>]+>", "", text))
    assert "(s, /, *masks, t=1.0, normalize=other)" in plain.replace(" ,", ",")
    assert 'class="katex"' in text
    assert re.search(r"<dt>s<span class=\"classifier\">array of shape \((…|\.{3}), n\)", text)
    assert "<dt>*masks<" in text
    assert re.search(r"<dt[^>]*>Cost<.*?O\(n\) time,\s+with .*?katex", text, re.DOTALL)
    assert "Some words 12." in plain
    assert "<p>J. S. Bridle, 1990.</p>" in text
    assert text.count('href="#softlookup.lookup.other"') == 3  # in the words, and twice under See Also
    assert 'href="../part/a.html#lookup-softmax"' in text
    assert "tests/lookup/test_softmax.py" in plain
    assert "TestSoftmax" in plain
    assert "&gt;&gt;&gt; " in text
    assert "test_other_way" in entry(made.html, "other")
    assert "#softlookup.lookup.softmax" not in entry(made.html, "other")  # there it is the argument


def test_the_page_of_a_topic_links_to_entry_source_and_tests(book):
    made = built(book)
    text = (made.html / "part" / "a.html").read_text(encoding="utf-8")
    assert 'href="../reference/lookup.html#softlookup.lookup.softmax"' in text
    assert 'href="../_modules/softlookup/lookup/softmax.html#softmax"' in text
    assert "test_softmax.py" in text
    code = (made.html / "_modules" / "softlookup" / "lookup" / "softmax.html").read_text(encoding="utf-8")
    assert 'id="softmax"' in code
    assert 'href="../../../reference/lookup.html#softlookup.lookup.softmax"' in code


def test_tests_are_linked_where_the_repository_is_known(book):
    made = built(book, book_repository_url="https://example.org/r")
    address = 'href="https://example.org/r/blob/main/tests/lookup/test_softmax.py"'
    assert address in entry(made.html, "softmax")
    assert address in (made.html / "part" / "a.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("old", "new", "message", "moved"),
    [
        ("e^{s}", "\\nosuch", "\\nosuch", 0),
        ("n^2", "\\nosuch", "\\nosuch", None),
        ("other : The other one.", "nothing : The other one.", "nothing", None),
        ("Some words", "Some *words", "emphasis", 0),
        ("Scores, for", "Scores :nosuch:`x`, for", "nosuch", 0),
    ],
)
def test_an_error_in_a_docstring_fails_every_build_and_names_the_file(book, module, old, new, message, moved):
    path, load = module
    path.write_text(DOCSTRING.replace(old, new), encoding="utf-8")
    load()
    line = DOCSTRING[: DOCSTRING.index(old)].count("\n") + 1
    for _ in range(2):
        failures = built(book).failures
        named = [failure for failure in failures if message in failure[2]]
        assert named, failures
        where = {(page.rpartition("/")[2], number) for page, number, _ in named}
        assert all(page == "softmax.py" for page, _ in where), where
        if moved is not None:
            assert ("softmax.py", line + moved) in where


def test_pages_appear_and_go_with_their_families(book, module):
    folder = book / "reference"
    (folder / "gone.rst").write_text("Gone\n====\n")
    assert built(book).failures == []
    assert sorted(path.name for path in folder.iterdir()) == ["index.md", "lookup.rst"]
    before = (folder / "lookup.rst").stat().st_mtime_ns
    again = built(book)
    assert (folder / "lookup.rst").stat().st_mtime_ns == before
    assert "reference/lookup" not in again.read


def test_a_new_family_appears_by_itself(tmp_path, module):
    labels = "# A\n\n(lookup.other)=\n(lookup.softmax)=\n(masks.other)=\n(masks.softmax)=\nWords.\n"
    source = write(tmp_path, {"reference/index": INDEX, "part/a": labels})
    module[1]("lookup")
    assert built(source, book_families=["lookup", "masks"]).failures == []
    module[1]("lookup", "masks")
    made = built(source, book_families=["lookup", "masks"])
    assert made.failures == []
    assert "Functions of masks" in (made.html / "reference" / "index.html").read_text(encoding="utf-8")
    assert 'id="softlookup.masks.other"' in (made.html / "reference" / "masks.html").read_text(encoding="utf-8")


def test_a_book_without_the_index_has_no_reference(tmp_path):
    source = write(tmp_path, {"a": "# A\n\n```{source} lookup.softmax\n```\n"})
    made = build(source)
    assert made.failures == []
    assert not (source / "reference").exists()
    assert "reference" not in (made.html / "a.html").read_text(encoding="utf-8")


def test_signature_is_that_of_the_source_without_annotations():
    function = ast.parse("def f(q: A, /, *m: B, score: C = scaled_dot(), **rest: D) -> E: pass").body[0]
    assert signature(function) == "q, /, *m, score=scaled_dot(), **rest"


@pytest.mark.parametrize(
    ("text", "name", "expected"),
    [
        ("class TestKernelWeights:\n", "kernel_weights", "TestKernelWeights"),
        ("class TestSoftmaxVjp:\n", "softmax", ""),
        ("def test_softmax_rows(x):\n", "softmax", "test_softmax_rows"),
        ("class TestA:\n    def test_budget(self):\n", "budget", "test_budget"),
        ("def test_softmaxes(x):\n", "softmax", ""),
    ],
)
def test_the_own_test_of_a_function(text, name, expected):
    assert own_test(text, name) == expected
