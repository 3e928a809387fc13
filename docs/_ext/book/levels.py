"""The three levels of a topic page: Core, Deepen and Research, each with its promise and a way on within the level."""

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx.util.nodes import make_refnode

from . import record
from .client import topic_module

LEVELS = {
    "Core": "The idea, one concrete case and enough to use it.",
    "Deepen": "The formal statement, the derivation and the edge cases. It refines the Core and never contradicts it.",
    "Research": "The original sources, the variants and the open questions.",
}
SWITCH = """<div class="level-switch pst-js-only" role="group" aria-label="How much of this page to show">
<button type="button" data-level="core" aria-pressed="false">Core</button>
<button type="button" data-level="deepen" aria-pressed="false">Core + Deepen</button>
<button type="button" data-level="research" aria-pressed="true">Everything</button>
</div>"""


class way_on(nodes.General, nodes.Element):
    """The end of a level: where the next page's same level is."""


def check(app: Sphinx, doctree: nodes.document) -> None:
    """A topic page has the three levels and nothing else at their depth."""
    if topic_module(app.env) is None:
        return
    page = next(iter(doctree.findall(nodes.section)), doctree)
    sections = [node for node in page.children if isinstance(node, nodes.section)]
    names = [section[0].astext() for section in sections]
    if names != list(LEVELS):
        line = sections[0].line if sections else 1
        record.fail(app.env, "levels", f"a topic page has the levels {', '.join(LEVELS)}; this one has {names}", line)
        return
    page.insert(page.index(sections[0]), nodes.raw("", SWITCH, format="html"))
    for section, (name, promise) in zip(sections, LEVELS.items(), strict=True):
        section["classes"].append("level")
        section.insert(1, nodes.paragraph("", promise, classes=["promise"]))
        section += way_on(level=name)
    if not any("key-idea" in node["classes"] for node in sections[0].findall(nodes.admonition)):
        record.fail(app.env, "levels", "the Core has no {key-idea}", sections[0].line)
    if not any("try" in node["classes"] for node in sections[0].findall(nodes.admonition)):
        record.fail(app.env, "levels", "the Core has no {try}", sections[0].line)
    exercises = sum("exercise" in node["classes"] for node in sections[1].findall(nodes.admonition))
    if not 3 <= exercises <= 5:
        record.fail(app.env, "levels", f"Deepen ends with three to five exercises, not {exercises}", sections[1].line)


class WaysOn(SphinxPostTransform):
    """Previous and next within the level."""

    default_priority = 8

    def run(self, **kwargs):
        places = list(self.document.findall(way_on))
        if not places:
            return
        family = self.env.docname.partition("/")[0]
        _, before, after = self.env.collect_relations().get(self.env.docname, (None, None, None))
        for place in places:
            line = nodes.paragraph("", "", classes=["way-on"])
            for docname, sign in ((before, "previous"), (after, "next")):
                if docname and docname.startswith(f"{family}/") and not docname.endswith("/index"):
                    words = nodes.inline(
                        "", f"{place['level']} of the {sign} page: {self.env.titles[docname].astext()}"
                    )
                    anchor = place["level"].lower()
                    line += make_refnode(record.running_app().builder, self.env.docname, docname, anchor, words, "")
            place.replace_self([line] if line.children else [])


def setup(app: Sphinx) -> dict:
    app.add_node(way_on)
    app.add_post_transform(WaysOn)
    app.connect("doctree-read", check)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
