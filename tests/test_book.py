"""The pages are the doctests: each page of the book is a test, run by the same machinery that builds the site."""

import contextlib
import inspect
import io
import re
import warnings
from pathlib import Path

import nbformat
import pytest
import quickjs
from book.names import names
from book.tables import topics
from ext.searching import searcher
from ext.test_downloads import run
from sphinx.testing.util import SphinxTestApp

DOCS = Path(__file__).resolve().parents[1] / "docs"
PAGES = sorted(
    path.relative_to(DOCS).with_suffix("").as_posix()
    for path in DOCS.rglob("*.md")
    if not path.relative_to(DOCS).parts[0].startswith("_")
)


MARKUP = re.compile(r"\{[a-z:-]+\}|^\([\w.-]+\)=|^%", re.MULTILINE)
CODE = re.compile(r"```.*?```|`[^`\n]*`|\$\$.*?\$\$|(?<!\\)\$[^$]*\$", re.DOTALL)


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """One fresh build: its application, when it is done."""
    folder = tmp_path_factory.mktemp("book")
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecations inside Sphinx; the runner is strict about the cells by itself
        app = SphinxTestApp("html", srcdir=DOCS, builddir=folder, warning=io.StringIO(), freshenv=True)
        try:
            app.build()
        finally:
            app.cleanup()
    return app


@pytest.fixture(scope="module")
def failures(built):
    """(page, line, message) of every failure."""
    return list(built.book_failures.failures)


@pytest.fixture(scope="module")
def site(built):
    return Path(built.outdir)


@pytest.mark.parametrize("page", PAGES)
def test_page(failures, page):
    found = [f"docs/{page}.md:{line}: {message}" for name, line, message in failures if name == page]
    assert not found, "\n".join(["", *found])


def test_the_book_as_a_whole(failures):
    assert [failure for failure in failures if failure[0] not in PAGES] == []


def test_every_page_with_cells_is_a_valid_notebook_without_markup_of_the_book(site):
    notebooks = {path.relative_to(site).with_suffix("").as_posix(): path for path in site.rglob("*.ipynb")}
    texts = {page: (DOCS / f"{page}.md").read_text(encoding="utf-8") for page in PAGES}
    cells = re.compile(r"---\nfile_format: mystnb\n.*^```\{code-cell\}", re.DOTALL | re.MULTILINE)
    assert set(notebooks) == {page for page, text in texts.items() if cells.match(text)}
    for path in notebooks.values():
        notebook = nbformat.read(path, as_version=4)
        nbformat.validate(notebook)
        words = "\n\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
        assert MARKUP.findall(CODE.sub("", words)) == [], path
        assert "var(--" not in path.read_text(encoding="utf-8"), path


def test_every_script_runs_without_what_builds_the_book(site):
    scripts = [path for path in site.rglob("*.py") if path.with_suffix(".ipynb").exists()]
    assert scripts
    run(*scripts)


def test_the_search_puts_the_page_of_a_variant_first_for_each_of_its_names(built, site):
    search, homes = searcher(site), {}
    for module in topics(built.config.book_families):
        page = "/".join(module.__name__.split(".")[1:])
        for function in module.__all__:
            for name in names(function, inspect.getdoc(getattr(module, function)) or ""):
                homes.setdefault(name.lower(), set()).add(page)
    assert {"sdpa", "nw", "softmax", "weighted-average"} <= set(homes)
    lost = {name: found for name, pages in homes.items() if not (found := search(name)) or found[0][0] not in pages}
    assert lost == {}


def test_copied_code_has_no_prompts_and_no_outputs(site):
    script = (site / "_static" / "copybutton.js").read_text(encoding="utf-8")
    function = re.search(r"function formatCopyText\(.*?\n}\n", script, re.DOTALL)[0]
    call = re.search(r"return (formatCopyText\(text, .*\))", script)[1]
    copy = quickjs.Context().eval(f"{function}; (text) => {call}")
    assert copy(">>> for i in x:\n...     f(i)\n...\n2\n>>> x\n") == "for i in x:\n    f(i)\n\nx"
    assert copy("for i in x:\n    f(i)\n\nprint(...)\n") == "for i in x:\n    f(i)\n\nprint(...)"
    assert "'div:not(.cell_output) > div.highlight > pre'" in script


def test_every_function_has_an_entry_in_the_reference(built):
    modules = list(topics(built.config.book_families))
    functions = {f"softlookup.{module.__name__.split('.')[1]}.{name}" for module in modules for name in module.__all__}
    assert functions <= set(built.env.domains["py"].objects)


def test_every_external_link_is_in_the_list(site):
    listed = set((site / "links.txt").read_text(encoding="utf-8").splitlines())
    for path in site.rglob("*.html"):
        article = path.read_text(encoding="utf-8").partition("<article")[2].partition("</article>")[0]
        used = {link.replace("&amp;", "&") for link in re.findall(r'href="(https?://[^"]+)"', article)}
        assert used <= listed, path
