"""Simplification marks: ``{simplified}`` in a Core links to a ``{precise}`` statement, which lists its marks."""

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx.util.docutils import SphinxDirective, SphinxRole
from sphinx.util.nodes import make_refnode

from . import record
from .val import FORM


class simplification(nodes.Inline, nodes.Element):
    """Words that simplify, with the label of the precise statement."""


class leaning(nodes.General, nodes.Element):
    """The place in a precise statement where its marks are listed."""


class Simplified(SphinxRole):
    def run(self):
        form = FORM.fullmatch(self.text)
        line = record.line_of(self.env, self.text, self.lineno)
        if form is None:
            record.fail(self.env, "mark", "{simplified} needs the form words <label>", line)
            return [], []
        marks = record.page(self.env).marks
        name = f"simplified-{len(marks) + 1}"
        marks.append((form["expression"], line, name, form["shown"]))
        return [simplification("", nodes.Text(form["shown"]), target=form["expression"], ids=[name])], []


class Precise(SphinxDirective):
    required_arguments = 1
    has_content = True

    def run(self):
        label = self.arguments[0]
        if label in record.page(self.env).statements:
            record.fail(self.env, "mark", f"a second precise statement {label}", self.lineno)
        record.page(self.env).statements[label] = self.lineno
        box = nodes.admonition(classes=["precise"], ids=[label])
        box += nodes.title("", "Precisely")
        box += self.parse_content_to_nodes()
        box += leaning(label=label)
        return [box]


class Resolve(SphinxPostTransform):
    """Links the marks and the statements with each other."""

    default_priority = 8

    def run(self, **kwargs):
        pages = record.pages(self.env)
        home = {label: name for name, page in pages.items() for label in page.statements}
        for mark in list(self.document.findall(simplification)):
            node = nodes.inline("", "", *mark.children, classes=["simplified"], ids=mark["ids"])
            if mark["target"] in home:
                sign = nodes.inline("", "(simplified: the precise statement)", classes=["visually-hidden"])
                node += self.link(home[mark["target"]], mark["target"], sign, "Simplified: the precise statement")
            mark.replace_self(node)
        for place in list(self.document.findall(leaning)):
            marks = [(name, mark) for name, page in sorted(pages.items()) for mark in page.marks]
            place.replace_self(self.back_links([(name, *m[2:]) for name, m in marks if m[0] == place["label"]]))

    def link(self, docname: str, target: str, child: nodes.Node, title: str) -> nodes.reference:
        return make_refnode(record.running_app().builder, self.env.docname, docname, target, child, title)

    def back_links(self, marks: list) -> list[nodes.Node]:
        if not marks:
            return []
        line = nodes.paragraph("", "Simplified as: ", classes=["leaning"])
        for number, (docname, name, words) in enumerate(marks):
            line += [nodes.Text("; ")] if number else []
            line += self.link(docname, name, nodes.emphasis("", words), "Where the statement is simplified")
        return [line]


def check_targets(app: Sphinx, env: BuildEnvironment) -> None:
    """A mark without a statement fails every build, and so do two statements of one name."""
    pages = record.pages(env)
    known = {}
    for docname, page in sorted(pages.items()):
        for label, line in page.statements.items():
            if known.setdefault(label, docname) != docname:
                record.fail(env, "mark", f"{{precise}} {label} stands on {known[label]} too", line, docname)
    for docname, page in pages.items():
        for target, line, _, words in page.marks:
            if target not in known:
                record.fail(env, "mark", f"{{simplified}} {words}: no precise statement {target}", line, docname)


def setup(app: Sphinx) -> dict:
    app.add_node(simplification)
    app.add_node(leaning)
    app.add_role("simplified", Simplified())
    app.add_directive("precise", Precise)
    app.add_post_transform(Resolve)
    app.connect("env-updated", check_targets)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
