"""The boxes of a page: key idea, worked example, stop and try, exercises and their folded solutions.

A cell nested in a directive does not run, so a solution is gated by a start and an end.
"""

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from . import record

TASKS = ("try", "exercise")


class solution(nodes.General, nodes.Element):
    """A folded solution."""


class gate(nodes.General, nodes.Element):
    """Where a solution starts or ends; gone when the page is read."""


class Box(SphinxDirective):
    """A titled box; the directive's argument, if any, follows the title."""

    optional_arguments = 1
    final_argument_whitespace = True
    has_content = True
    titles = {"key-idea": "Key idea", "worked": "Worked example", "try": "Stop and try", "exercise": "Exercise"}

    def run(self):
        title = ": ".join([self.titles[self.name], *self.arguments])
        words, messages = self.state.inline_text(title, self.lineno)
        box = nodes.admonition(classes=[self.name])
        self.set_source_info(box)
        box += nodes.title(title, "", *words)
        box += self.parse_content_to_nodes()
        return [box, *messages]


class Gate(SphinxDirective):
    def run(self):
        node = gate(opens=self.name == "solution-start")
        self.set_source_info(node)
        return [node]


def fold_solutions(app: Sphinx, doctree: nodes.document) -> None:
    """Gather what stands between the gates; each task has one solution and each solution checks something."""
    for start in [node for node in doctree.findall(gate) if node["opens"]]:
        siblings = start.parent.children
        begin = siblings.index(start)
        end = next((i for i in range(begin + 1, len(siblings)) if isinstance(siblings[i], gate)), None)
        if end is None or siblings[end]["opens"]:
            record.fail(app.env, "solution", "{solution-start} without {solution-end} in the same section", start.line)
            continue
        inside = siblings[begin + 1 : end]
        if not is_task(siblings[begin - 1] if begin else None):
            record.fail(app.env, "solution", "a solution must stand directly under its {try} or {exercise}", start.line)
        if not any(is_checked(node) for child in inside for node in child.findall()):
            record.fail(app.env, "solution", "the solution checks nothing: it has no cell and no {val}", start.line)
        folded = solution("", *inside)
        start.parent[begin : end + 1] = [folded]
    for stray in list(doctree.findall(gate)):
        record.fail(app.env, "solution", "a solution gate without its partner in the same section", stray.line)
        stray.parent.remove(stray)
    for task in doctree.findall(is_task):
        if not isinstance(task.next_node(descend=False, siblings=True), solution):
            record.fail(app.env, "solution", "a {try} or an {exercise} without a solution under it", task.line)


def is_task(node: nodes.Node | None) -> bool:
    return isinstance(node, nodes.admonition) and any(name in node["classes"] for name in TASKS)


def is_checked(node: nodes.Node) -> bool:
    return isinstance(node, nodes.Element) and ("cell_index" in node or "val" in node.get("classes", []))


def visit_html(self, node):
    self.body.append('<details class="solution"><summary>Solution</summary>')


def depart_html(self, node):
    self.body.append("</details>\n")


def setup(app: Sphinx) -> dict:
    app.add_node(gate)
    app.add_node(solution, html=(visit_html, depart_html), latex=(nothing, nothing), text=(nothing, nothing))
    for name in Box.titles:
        app.add_directive(name, Box)
    app.add_directive("solution-start", Gate)
    app.add_directive("solution-end", Gate)
    app.connect("doctree-read", fold_solutions, priority=50)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def nothing(self, node):
    pass
