"""What the build knows about each page, and the memory of every failure.

A failed check warns with file and line, and the page is read again by the next build, so that
simply repeating a failed build fails again, whichever phase the failure came from.
"""

import io
import json
import logging
import re
from dataclasses import dataclass, field
from pathlib import Path

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util import logging as sphinx_logging

LOG = sphinx_logging.getLogger(__name__)
RUNNING: dict[str, Sphinx] = {}


@dataclass
class Page:
    """The record of one page; pickled with the environment."""

    values: int = 0
    marks: list = field(default_factory=list)  # (target, line, id of the mark, words)
    statements: dict = field(default_factory=dict)  # label of a precise statement -> line
    equalities: list = field(default_factory=list)  # (id, left side, nodes)
    links: set = field(default_factory=set)  # addresses outside the book
    called: set = field(default_factory=set)  # public functions that the cells entered


def running_app() -> Sphinx:
    """The application of the build that is going on in this process."""
    return RUNNING["app"]


def pages(env: BuildEnvironment) -> dict[str, Page]:
    if not hasattr(env, "book_pages"):
        env.book_pages = {}
    return env.book_pages


def page(env: BuildEnvironment) -> Page:
    return pages(env).setdefault(env.docname, Page())


def fail(env: BuildEnvironment, kind: str, message: str, line: int | None, docname: str | None = None) -> None:
    """Report a failed check of a page that is being read, at its file and line."""
    LOG.warning(message, location=(docname or env.docname, line or 1), type="book", subtype=kind)
    if docname is None:
        env.note_reread()


def fail_at(env: BuildEnvironment, kind: str, message: str, node: nodes.Node) -> None:
    """The same for a node, which may come from a docstring: then the file is the module."""
    line = node_line(node) or 1
    source = next((parent.source for parent in lineage(node) if getattr(parent, "source", None)), "")
    if source.endswith(".py"):
        LOG.warning(message, location=f"{source}:{line}", type="book", subtype=kind)
        env.note_reread()
    else:
        fail(env, kind, message, line_of(env, node.astext(), line))


def lineage(node: nodes.Node | None):
    while node is not None:
        yield node
        node = node.parent


def source_lines(env: BuildEnvironment, docname: str | None = None) -> list[str]:
    return Path(env.doc2path(docname or env.docname)).read_text(encoding="utf-8").splitlines()


def line_of(env: BuildEnvironment, needle: str, start: int) -> int:
    """The line on which `needle` stands, at or after `start` (inline markup only knows its paragraph's line)."""
    first = needle.split("\n")[0]
    for number, text in enumerate(source_lines(env)[start - 1 :], start):
        if first in text:
            return number
    return start


def node_line(node: nodes.Node) -> int | None:
    """The line of the nearest ancestor that knows one."""
    return next((parent.line for parent in lineage(node) if getattr(parent, "line", None)), None)


class FailureLog(sphinx_logging.WarningStreamHandler):
    """Collects the warnings of a build as (page, line, message); parked, as its base is, while Sphinx holds them."""

    def __init__(self, app: Sphinx):
        super().__init__(io.StringIO())
        self.app = app
        self.setLevel(logging.WARNING)
        self.addFilter(sphinx_logging.WarningSuppressor(app))
        self.failures: dict[tuple[str, int, str], None] = {}

    def emit(self, record: logging.LogRecord) -> None:
        location = getattr(record, "location", None)
        if isinstance(location, nodes.Node):
            location = sphinx_logging.get_node_location(location)
        if isinstance(location, tuple):
            docname, line = location
        else:
            path, _, number = str(location or "").rpartition(":")
            docname, line = (path, number) if number.isdigit() else (str(location or ""), 0)
            docname = self.app.env.path2doc(docname) or docname
        message = logging.LogRecord.getMessage(record)
        self.failures[docname or "", int(line or 0), re.sub(r" \[[\w.]+\]$", "", message)] = None


def memory(app: Sphinx) -> Path:
    return Path(app.doctreedir) / "failed.json"


def start(app: Sphinx) -> None:
    RUNNING["app"] = app
    app.book_failures = FailureLog(app)
    logging.getLogger(sphinx_logging.NAMESPACE).addHandler(app.book_failures)


def failed_before(app: Sphinx, env: BuildEnvironment, added, changed, removed) -> list[str]:
    if not memory(app).exists():
        return []
    failed = json.loads(memory(app).read_text(encoding="utf-8"))
    return sorted(env.found_docs if set(failed) - env.found_docs else failed)


def remember(app: Sphinx, exception: Exception | None) -> None:
    """Write down which pages failed; a failure without a page stands for all of them."""
    failures = app.book_failures
    logging.getLogger(sphinx_logging.NAMESPACE).removeHandler(failures)
    names = {docname for docname, _, _ in failures.failures}
    if exception is not None:
        names.add("")
    if names:
        memory(app).write_text(json.dumps(sorted(names)), encoding="utf-8")
    else:
        memory(app).unlink(missing_ok=True)


def purge(app: Sphinx, env: BuildEnvironment, docname: str) -> None:
    pages(env).pop(docname, None)


def merge(app: Sphinx, env: BuildEnvironment, docnames: set[str], other: BuildEnvironment) -> None:
    pages(env).update({name: record for name, record in pages(other).items() if name in docnames})


def setup(app: Sphinx) -> dict:
    app.connect("builder-inited", start, priority=1)
    app.connect("env-get-outdated", failed_before)
    app.connect("env-purge-doc", purge)
    app.connect("env-merge-info", merge)
    app.connect("build-finished", remember, priority=999)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
