"""``{source}``: the code that runs, its docstring cut, taken from the module itself."""

import ast
import importlib
import inspect
import textwrap

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from . import record


class Source(SphinxDirective):
    """Shows ``family.function``."""

    required_arguments = 1

    def run(self):
        family, _, name = self.arguments[0].partition(".")
        try:
            function = getattr(importlib.import_module(f"softlookup.{family}"), name)
            code = without_docstring(textwrap.dedent(inspect.getsource(function)))
        except (ImportError, AttributeError, TypeError) as error:
            record.fail(self.env, "source", f"{{source}} {self.arguments[0]}: {error}", self.lineno)
            return []
        block = nodes.literal_block(code, code, language="python", classes=["source"])
        title = nodes.paragraph("", "", nodes.literal("", f"softlookup.{family}.{name}"))
        return [nodes.container("", title, block, classes=["source"])]


def without_docstring(code: str) -> str:
    function = ast.parse(code).body[0]
    if ast.get_docstring(function) is None:
        return code.rstrip()
    lines, docstring = code.splitlines(), function.body[0]
    return "\n".join(lines[: docstring.lineno - 1] + lines[docstring.end_lineno :]).rstrip()


def setup(app: Sphinx) -> dict:
    app.add_directive("source", Source)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
