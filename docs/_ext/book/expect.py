"""``{expect}``: the output of the cell just above, compared with the block, digits as written."""

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from . import record
from .client import Client, client_of
from .compare import count_numbers, text_mismatch


class check_mark(nodes.General, nodes.Element):
    """The quiet sign that the build compared the output above."""


class Expect(SphinxDirective):
    has_content = True

    def run(self):
        client, index = cell_above(self)
        if index is None:
            record.fail(self.env, "expect", "{expect} must stand directly under a code cell", self.lineno)
            return []
        metadata, result = client.notebook.cells[index].metadata, client.results.get(index)
        if result is None:
            return []
        if metadata.get("compared"):
            record.fail(self.env, "expect", "a second {expect} for the same cell", self.lineno)
        metadata["compared"] = True
        expected = "\n".join(self.content)
        if why := text_mismatch(expected, result.shown):
            indent = "\n            "
            record.fail(
                self.env,
                "expect",
                f"output differs: {why}\n  expected: {expected.replace(chr(10), indent)}"
                f"\n  got:      {result.shown.replace(chr(10), indent)}",
                self.lineno,
            )
            return []
        record.page(self.env).values += count_numbers(expected)
        return [check_mark(expected=expected)]


def cell_above(directive: SphinxDirective) -> tuple[Client | None, int | None]:
    """The client and the index of the cell that stands directly above, check marks aside."""
    client = client_of(directive.state.document)
    if client is None:
        return None, None
    for node in reversed(client_parent(directive).children):
        if isinstance(node, nodes.container) and "cell_index" in node:
            return client, node["cell_index"]
        if not isinstance(node, check_mark | nodes.comment):
            break
    return client, None


def client_parent(directive: SphinxDirective) -> nodes.Element:
    return directive.state.document["nb_renderer"].renderer.current_node


def visit_html(self, node):
    text = "This output was compared with the expected one when the page was built."
    self.body.append(f'<p class="check" title="{text}"><span class="visually-hidden">{text}</span></p>')
    raise nodes.SkipNode


def skip(self, node):
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict:
    app.add_node(check_mark, html=(visit_html, None), latex=(skip, None), text=(skip, None))
    app.add_directive("expect", Expect)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
