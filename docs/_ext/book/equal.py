"""``{equal}``: an executed equality, proved by the cell above it and collected into ``equalities.md``."""

import ast

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from . import record
from .expect import cell_above


class Equal(SphinxDirective):
    required_arguments = 1
    final_argument_whitespace = True
    has_content = True

    def run(self):
        client, index = cell_above(self)
        result = client.results.get(index) if client and index is not None else None
        if index is None:
            record.fail(self.env, "equal", "{equal} must stand directly under the cell that asserts it", self.lineno)
        elif result is None or result.error:
            record.fail(self.env, "equal", "{equal}: its cell did not run to the end", self.lineno)
        elif not asserts(client.notebook.cells[index].source):
            record.fail(self.env, "equal", "{equal}: its cell compares nothing", self.lineno)
        known = record.page(self.env).equalities
        box = nodes.admonition(classes=["equal"], ids=[f"equal-{len(known) + 1}"])
        left, messages = self.state.inline_text(self.arguments[0], self.lineno)
        box += nodes.title("", "An equality")
        box += nodes.paragraph("", "", nodes.strong("", "", *left))
        box += self.parse_content_to_nodes()
        known.append((box["ids"][0], [child.deepcopy() for child in box.children[1:]]))
        return [box, *messages]


def asserts(source: str) -> bool:
    """Whether the cell has an assertion that compares two different things."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Assert) and not isinstance(node.test, ast.Constant):
            return True
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func).rpartition(".")[2]
            arguments = [ast.dump(argument) for argument in node.args]
            if name.startswith("assert_") and len(arguments) > 1 and arguments[0] != arguments[1]:
                return True
    return False


def setup(app: Sphinx) -> dict:
    app.add_directive("equal", Equal)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
