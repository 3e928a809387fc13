"""A page as plain Markdown: what its roles and directives made, in words that any Markdown reader shows."""

import re
from types import SimpleNamespace

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.util.math import get_node_equation_number

from .boxes import solution
from .expect import check_mark
from .katex import source as tex

UNSAID = {"visually-hidden", "recomputed", "way-on", "more", "toctree-wrapper"}
SILENT = (
    nodes.raw | nodes.comment | nodes.target | nodes.system_message | addnodes.index | addnodes.toctree | check_mark
)


class Plain:
    """Markdown of the nodes of one resolved page."""

    def __init__(self, app: Sphinx, docname: str, folds: bool = True):
        self.app, self.docname, self.folds = app, docname, folds
        self.equations = SimpleNamespace(builder=app.builder)

    def inline(self, node: nodes.Node) -> str:
        if isinstance(node, nodes.Text):
            return re.sub(r"([*`$<])", r"\\\1", node.astext())
        if is_silent(node):
            return ""
        if isinstance(node, nodes.literal):
            ticks = "``" if "`" in node.astext() else "`"
            return f"{ticks}{node.astext()}{ticks}"
        if isinstance(node, nodes.math):
            return f"${tex(node)}$"
        words = "".join(self.inline(child) for child in node.children)
        if isinstance(node, nodes.reference):
            url = self.url(node)
            return f"[{words}]({url})" if url and words else words
        mark = {"emphasis": "*", "title_reference": "*", "strong": "**", "superscript": "^"}.get(node.tagname, "")
        return f"{mark}{words}{'' if mark == '^' else mark}" if words else ""

    def url(self, node: nodes.reference) -> str:
        """Where a link leads outside the site; nothing where that is not known."""
        uri = node.get("refuri", "")
        if uri and not node.get("internal"):
            return uri
        base = self.app.config.html_baseurl
        here = self.app.builder.get_target_uri(self.docname)
        if not base:
            return ""
        path = uri or f"{here.rpartition('/')[2]}#{node.get('refid', '')}"
        folder = here.rpartition("/")[0]
        while path.startswith("../"):
            path, folder = path[3:], folder.rpartition("/")[0]
        return "/".join(part for part in (base.rstrip("/"), folder, path) if part)

    def blocks(self, children: list[nodes.Node]) -> str:
        made = [self.block(child) for child in children if not is_silent(child)]
        return "\n\n".join(text for text in made if text)

    def block(self, node: nodes.Node) -> str:
        maker = getattr(self, node.tagname, None)
        if maker:
            return maker(node)
        if isinstance(node, nodes.TextElement):
            return self.inline(node).strip()
        return self.blocks(node.children)

    def literal_block(self, node: nodes.literal_block) -> str:
        language = node.get("language", "")
        return f"```{language if language.isalpha() else ''}\n{node.astext()}\n```"

    def doctest_block(self, node: nodes.doctest_block) -> str:
        return f"```python\n{node.astext()}\n```"

    def math_block(self, node: nodes.math_block) -> str:
        tag = f" \\tag{{{get_node_equation_number(self.equations, node)}}}" if node["number"] else ""
        return f"$$\n{tex(node).strip()}{tag}\n$$"

    def rubric(self, node: nodes.rubric) -> str:
        return f"**{self.inline(node)}**"

    def admonition(self, node: nodes.admonition) -> str:
        title, *rest = node.children
        return prefixed(f"**{self.inline(title)}**\n\n{self.blocks(rest)}", "> ", "> ")

    def block_quote(self, node: nodes.block_quote) -> str:
        return prefixed(self.blocks(node.children), "> ", "> ")

    def bullet_list(self, node: nodes.Element) -> str:
        return "\n".join(prefixed(self.blocks(item.children), "* ", "  ") for item in node.children)

    def enumerated_list(self, node: nodes.Element) -> str:
        start = node.get("start", 1)
        items = [self.blocks(item.children) for item in node.children]
        return "\n".join(prefixed(text, f"{number}. ", "   ") for number, text in enumerate(items, start))

    def definition_list_item(self, node: nodes.Element) -> str:
        term, *rest = node.children
        return f"**{self.inline(term)}**\n\n{self.blocks(rest)}"

    def table(self, node: nodes.table) -> str:
        rows = [[self.cell(entry) for entry in row.children] for row in node.findall(nodes.row)]
        lines = [f"| {' | '.join(row)} |" for row in rows]
        lines.insert(1, "|" + "---|" * len(rows[0]))
        return "\n".join(lines)

    def cell(self, entry: nodes.entry) -> str:
        """One cell of a table; a bar in it, in a formula too, must not look like the end of the cell."""
        for formula in list(entry.findall(nodes.math)):
            bars = formula.astext().replace(r"\|", r"\Vert ").replace("|", r"\vert ")
            formula.replace_self(nodes.math(bars, bars))
        return re.sub(r"\s+", " ", self.blocks(entry.children)).replace("|", r"\|")

    def caption_of(self, figure: nodes.figure) -> str:
        numbers = self.app.env.toc_fignumbers.get(self.docname, {}).get("figure", {})
        number = ".".join(map(str, numbers.get((figure["ids"] or [""])[0], ())))
        caption = next(iter(figure.findall(nodes.caption)), None)
        return "" if caption is None else f"**Figure {number}.** {self.inline(caption)}".replace(" .**", ".**")

    def solution(self, node: solution) -> str:
        return self.fold(self.blocks(node.children), "Solution")

    def fold(self, text: str, title: str) -> str:
        if not self.folds:
            return f"**{title}**\n\n{text}"
        return f"<details><summary>{title}</summary>\n\n{text}\n\n</details>"


def is_silent(node: nodes.Node) -> bool:
    return isinstance(node, SILENT) or bool(UNSAID & set(node.get("classes", [])))


def prefixed(text: str, first: str, later: str) -> str:
    lines = text.split("\n")
    return "\n".join(f"{later if number else first}{line}".rstrip() for number, line in enumerate(lines))
