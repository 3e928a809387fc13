"""No unchecked number in prose: a digit outside ``{val}``, math, code, citations, links and headings is an error."""

import re
from pathlib import Path

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx

from . import record

EXEMPT = (
    nodes.math,
    nodes.math_block,
    nodes.literal,
    nodes.literal_block,
    nodes.doctest_block,
    nodes.title,
    nodes.rubric,
    nodes.reference,
    nodes.citation,
    nodes.label,
    nodes.raw,
    nodes.comment,
    nodes.problematic,
    nodes.system_message,
    nodes.substitution_definition,
    addnodes.pending_xref,
    addnodes.index,
)
WORDS = "_data/words_with_digits.txt"


def check(app: Sphinx, doctree: nodes.document) -> None:
    allowed = allowed_words(Path(app.srcdir) / WORDS)
    for text in doctree.findall(nodes.Text):
        if re.search(r"\d", allowed.sub("", text)) and not is_exempt(text):
            number = re.search(r"\S*\d\S*", allowed.sub("", text))[0]
            line = record.line_of(app.env, number, record.node_line(text) or 1)
            record.fail(app.env, "digit", f"unchecked number in prose: {number!r} (use {{val}})", line)


def allowed_words(path: Path) -> re.Pattern:
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    words = [line for line in lines if line and not line.startswith("#")]
    return re.compile("|".join(rf"(?<![\w.])(?:{word})(?![\w])" for word in words) or r"(?!)")


def is_exempt(text: nodes.Text) -> bool:
    node = text.parent
    while node is not None:
        if isinstance(node, EXEMPT) or {"val", "docstring", "status"} & set(node.get("classes", [])):
            return True
        if isinstance(node, nodes.caption):
            return False
        if node.get("nb_element") in ("cell_code_source", "cell_code_output"):
            return True
        node = node.parent
    return False


def setup(app: Sphinx) -> dict:
    app.connect("doctree-read", check)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
