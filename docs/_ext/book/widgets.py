"""``{widget}``: the figure above becomes something to play with, and stays as what is seen without scripts.

A widget is a custom element of ``docs/_static/widgets``. Its code is written into the pages that use it, since a
browser does not load modules from files, and its data are expressions of the page.
"""

import json
import re
from html import escape
from pathlib import Path

import numpy as np
from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from . import record
from .client import client_of
from .expect import client_parent

FOLDER = Path(__file__).parents[2] / "_static" / "widgets"
IMPORT = re.compile(r'^import \{[^}]*\} from "\./([\w-]+\.js)";\n', re.MULTILINE)
STYLE = "widgets.css"


class widget(nodes.General, nodes.Element):
    """A custom element around its static figure."""


class Widget(SphinxDirective):
    required_arguments = 1
    option_spec = {"label": directives.unchanged_required}
    has_content = True

    def run(self):
        name = self.arguments[0]
        cell = next((node for node in reversed(client_parent(self).children)), None)
        problems = {
            f"there is no widget {name!r}": (FOLDER / f"{name}.js").exists(),
            "needs a :label: that says what can be done": self.options.get("label"),
            "works on pages with cells only": client_of(self.state.document),
            "must stand directly under the cell of its figure": cell is not None and "cell_index" in cell,
        }
        for problem in (problem for problem, fine in problems.items() if not fine):
            record.fail(self.env, "widget", f"{{widget}} {problem}", self.lineno)
            return []
        node = widget(name=name, label=self.options["label"], values=self.values())
        self.set_source_info(node)
        for path in files(name):
            self.env.note_dependency(str(path))
        return [node]

    def values(self) -> str:
        """The data as JSON, each number with all its digits."""
        found = {}
        for number, text in enumerate(self.content, self.lineno + self.content_offset + 1):
            name, colon, expression = text.partition(":")
            try:
                value = client_of(self.state.document).runner.evaluate(expression.strip())
                found[name.strip()] = plain(value)
                json.dumps(found, allow_nan=False)
            except Exception as error:
                why = f"{type(error).__name__}: {error}" if colon else "a line of data is written name: expression"
                record.fail(self.env, "widget", f"{{widget}} {text.strip()}: {why}", number)
                found.pop(name.strip(), None)
        return json.dumps(found, separators=(",", ":"))


def plain(value):
    """Lists and numbers of Python for arrays and numbers of NumPy."""
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


def take_over(app: Sphinx, doctree: nodes.document) -> None:
    """Put each widget around the picture of the cell above it."""
    for node in list(doctree.findall(widget)):
        siblings = node.parent.children
        cell = siblings[siblings.index(node) - 1]
        pictures = [raw for raw in cell.findall(nodes.raw) if raw.astext().startswith("<svg")]
        node.parent.remove(node)
        if len(pictures) != 1:
            record.fail(app.env, "widget", "{widget} needs one figure in the cell above it", node.line)
            continue
        pictures[0].replace_self(node)
        node += pictures[0]


def files(name: str) -> list[Path]:
    return [FOLDER / STYLE, *(FOLDER / module for module in modules(f"{name}.js"))]


def modules(name: str) -> list[str]:
    """A module and all that it imports, each before the ones that import it."""
    imported = IMPORT.findall((FOLDER / name).read_text(encoding="utf-8"))
    return list(dict.fromkeys([*(inner for each in imported for inner in modules(each)), name]))


def bundle(names: list[str]) -> str:
    """One module with the code of these widgets; each widget has a scope of its own, what they import is shared."""
    needed = dict.fromkeys(module for name in names for module in modules(f"{name}.js"))
    made = []
    for module in needed:
        code = IMPORT.sub("", (FOLDER / module).read_text(encoding="utf-8")).strip()
        code = re.sub(r"^export ", "", re.sub(r"^//.*\n", "", code, flags=re.MULTILINE), flags=re.MULTILINE)
        made.append(f"{{\n{code.strip()}\n}}" if module.removesuffix(".js") in names else code.strip())
    return "\n".join(made)


def write_code(app: Sphinx, pagename: str, templatename: str, context: dict, doctree: nodes.document | None) -> None:
    names = sorted({node["name"] for node in doctree.findall(widget)}) if doctree else []
    if names:
        style = (FOLDER / STYLE).read_text(encoding="utf-8")
        context["metatags"] = context.get("metatags", "") + f"<style>\n{style}</style>\n"
        context["body"] += f'<script type="module">\n{bundle(names)}\n</script>\n'


def visit_html(self, node):
    values, label = escape(node["values"]), escape(node["label"])
    self.body.append(f'<widget-{node["name"]} class="widget" data-label="{label}" data-values="{values}">')


def depart_html(self, node):
    self.body.append(f"</widget-{node['name']}>")


def nothing(self, node):
    pass


def setup(app: Sphinx) -> dict:
    app.add_node(widget, html=(visit_html, depart_html), latex=(nothing, nothing), text=(nothing, nothing))
    app.add_directive("widget", Widget)
    app.connect("doctree-read", take_over, priority=65)
    app.connect("html-page-context", write_code)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
