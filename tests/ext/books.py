"""Small books that are built with the real machinery, for the tests of the machinery."""

import contextlib
import io
import shutil
import textwrap
import warnings
from dataclasses import dataclass
from pathlib import Path

from sphinx.testing.util import SphinxTestApp

DOCS = Path(__file__).resolve().parents[2] / "docs"
CONF = """
import sys
sys.path.insert(0, {ext!r})
extensions = ["myst_nb", "book"]
myst_enable_extensions = ["colon_fence", "dollarmath"]
myst_heading_anchors = 3
nb_execution_mode = "inline"
html_math_renderer = "katex"
exclude_patterns = ["_build"]
nitpicky = True
numfig = True
book_families = ["lookup"]
"""
HEAD = "---\nfile_format: mystnb\nkernelspec: {name: python3}\n---\n"


@dataclass
class Built:
    """What one build of a small book gave."""

    failures: list[tuple[str, int, str]]  # page, line, message
    warnings: str
    html: Path
    read: list[str]  # the pages that this build read
    dependencies: dict[str, set[str]]
    said: str


def write(folder: Path, pages: dict[str, str]) -> Path:
    """A book with these pages (name to text below the front matter), an index and the real word list."""
    source = folder / "book"
    (source / "_data").mkdir(parents=True)
    shutil.copy(DOCS / "_data" / "words_with_digits.txt", source / "_data")
    conf = CONF.format(ext=str(DOCS / "_ext"))
    (source / "conf.py").write_text(conf, encoding="utf-8")
    names = "\n".join(name for name in pages if name != "index")
    index = pages.get("index", "# Index\n")
    (source / "index.md").write_text(f"{HEAD}{index}\n```{{toctree}}\n{names}\n```\n", encoding="utf-8")
    for name, text in pages.items():
        if name != "index":
            path = source / f"{name}.md"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(HEAD + textwrap.dedent(text), encoding="utf-8")
    return source


def build(source: Path, **options) -> Built:
    """One build into the same folders as the build before; its failures with page and line."""
    warning = io.StringIO()
    said = io.StringIO()
    with contextlib.redirect_stdout(said), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecations inside Sphinx; the runner is strict about the cells by itself
        app = SphinxTestApp(
            "html", srcdir=source, builddir=source.parent / "_build", warning=warning, confoverrides=options
        )
        read = []
        app.connect("env-before-read-docs", lambda app, env, docnames: read.extend(docnames))
        try:
            app.build()
            failures = list(app.book_failures.failures)
            return Built(failures, warning.getvalue(), Path(app.outdir), read, depends(app.env), said.getvalue())
        finally:
            app.cleanup()


def depends(env) -> dict[str, set[str]]:
    return {name: {str(path) for path in paths} for name, paths in env.dependencies.items()}
