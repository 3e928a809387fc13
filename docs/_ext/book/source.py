"""``{source}``: the code that runs, its docstring cut, taken from the module itself, with the way to all about it."""

import ast
import importlib
import inspect
import textwrap

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx.util.docutils import SphinxDirective
from sphinx.util.nodes import make_refnode

from . import record
from .tests import tests_of


class more(nodes.Inline, nodes.Element):
    """Links to the reference entry, the source and the tests of a function."""


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
        topic = inspect.getmodule(function).__name__.rpartition(".")[2]
        title += more("", *tests_of(self.env, self.arguments[0], topic), name=name, family=family, topic=topic)
        return [nodes.container("", title, block, classes=["source"])]


class About(SphinxPostTransform):
    """Fills the links in, where this book has the pages that they lead to."""

    default_priority = 8

    def run(self, **kwargs):
        objects = self.env.domains["py"].objects
        for place in list(self.document.findall(more)):
            name = f"softlookup.{place['family']}.{place['name']}"
            links = []
            if name in objects:
                module = f"_modules/softlookup/{place['family']}/{place['topic']}"
                links.append(self.link("reference", objects[name].docname, objects[name].node_id))
                links.append(self.link("source", module, place["name"]))
            if place.children:
                links.append(nodes.inline("", "", nodes.Text("tests: "), *place.children))
            line = nodes.inline("", "", classes=["more"])
            for number, part in enumerate(links):
                line += [nodes.Text(" · " if number else " "), part]
            place.replace_self([line] if links else [])

    def link(self, words: str, docname: str, anchor: str) -> nodes.reference:
        return make_refnode(record.running_app().builder, self.env.docname, docname, anchor, nodes.Text(words), "")


def without_docstring(code: str) -> str:
    function = ast.parse(code).body[0]
    if ast.get_docstring(function) is None:
        return code.rstrip()
    lines, docstring = code.splitlines(), function.body[0]
    return "\n".join(lines[: docstring.lineno - 1] + lines[docstring.end_lineno :]).rstrip()


def setup(app: Sphinx) -> dict:
    app.add_node(more)
    app.add_directive("source", Source)
    app.add_post_transform(About)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
