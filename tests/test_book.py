"""The pages are the doctests: each page of the book is a test, run by the same machinery that builds the site."""

import contextlib
import io
import warnings
from pathlib import Path

import pytest
from sphinx.testing.util import SphinxTestApp

DOCS = Path(__file__).resolve().parents[1] / "docs"
PAGES = sorted(
    path.relative_to(DOCS).with_suffix("").as_posix()
    for path in DOCS.rglob("*.md")
    if not path.relative_to(DOCS).parts[0].startswith("_")
)


@pytest.fixture(scope="module")
def failures(tmp_path_factory):
    """(page, line, message) of every failure of one fresh build."""
    folder = tmp_path_factory.mktemp("book")
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecations inside Sphinx; the runner is strict about the cells by itself
        app = SphinxTestApp("html", srcdir=DOCS, builddir=folder, warning=io.StringIO(), freshenv=True)
        try:
            app.build()
            return list(app.book_failures.failures)
        finally:
            app.cleanup()


@pytest.mark.parametrize("page", PAGES)
def test_page(failures, page):
    found = [f"docs/{page}.md:{line}: {message}" for name, line, message in failures if name == page]
    assert not found, "\n".join(["", *found])


def test_the_book_as_a_whole(failures):
    assert [failure for failure in failures if failure[0] not in PAGES] == []
