"""Math typeset at build time: KaTeX runs in QuickJS, no script is on the page, a bad formula fails the build."""

import functools
import json
from pathlib import Path

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.math import get_node_equation_number

from . import record

try:
    import quickjs
except ImportError:
    quickjs = None


@functools.cache
def engine():
    context = quickjs.Context()
    context.eval((Path(__file__).parent / "_vendor" / "katex.min.js").read_text(encoding="utf-8"))
    options = "{displayMode: display, throwOnError: true, strict: 'error'}"
    # JSON.stringify flattens the string: the binding cannot return concatenated ones.
    return context.eval(f"(tex, display) => JSON.stringify(katex.renderToString(tex, {options}))")


@functools.cache
def render(tex: str, display: bool) -> str:
    return json.loads(engine()(tex, display))


def source(node: nodes.Element) -> str:
    """The TeX of a node; a display with line breaks is aligned, as everywhere in Sphinx."""
    tex = node.astext()
    if isinstance(node, nodes.math_block) and "\\\\" in tex and "\\begin" not in tex:
        return rf"\begin{{aligned}}{tex}\end{{aligned}}"
    return tex


def check(app: Sphinx, doctree: nodes.document) -> None:
    if quickjs is None:
        return
    for node in doctree.findall(lambda node: isinstance(node, nodes.math | nodes.math_block)):
        try:
            render(source(node), isinstance(node, nodes.math_block))
        except quickjs.JSException as error:
            record.fail_at(app.env, "math", f"math: {str(error).splitlines()[0]}", node)


def to_html(translator, node: nodes.Element, display: bool) -> str:
    try:
        return render(source(node), display)
    except Exception:  # reported with its line when the page was read, or no engine here
        return f"<code>{translator.encode(node.astext())}</code>"


def visit_inline(self, node):
    self.body.append(f'<span class="math">{to_html(self, node, display=False)}</span>')
    raise nodes.SkipNode


def visit_block(self, node):
    self.body.append(self.starttag(node, "div", CLASS="math"))
    self.body.append(to_html(self, node, display=True))
    if node["number"]:
        self.body.append(f'<span class="eqno">({get_node_equation_number(self, node)})')
        self.add_permalink_ref(node, "Link to this equation")
        self.body.append("</span>")
    self.body.append("</div>\n")
    raise nodes.SkipNode


def announce(app: Sphinx) -> None:
    if quickjs is None:
        print("quickjs-ng has no wheel for this platform: formulas are shown as TeX source", flush=True)


def setup(app: Sphinx) -> dict:
    app.add_html_math_renderer("katex", (visit_inline, None), (visit_block, None))
    app.connect("builder-inited", announce)
    app.connect("doctree-read", check)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
