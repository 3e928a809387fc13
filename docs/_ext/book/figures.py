"""Figures: each cell's picture becomes inline SVG that takes the colors and the font of the page.

A figure needs alt text, a caption and a status.
"""

import re
from html import escape
from pathlib import Path

from docutils import nodes
from sphinx.application import Sphinx

from . import record

# The colors of softlookup.figures and of matplotlibrc, and what the page shows for them.
INKS = {
    "#111112": "currentColor",
    "#0072b2": "var(--figure-blue)",
    "#d55e00": "var(--figure-orange)",
    "#009e73": "var(--figure-green)",
    "#fefefd": "var(--pst-color-background)",
}
STATUS = re.compile(r"synthetic|computed|trained here|reproduced from .+")


def inline(app: Sphinx, doctree: nodes.document) -> None:
    cells = doctree.findall(lambda node: isinstance(node, nodes.container) and "cell_metadata" in node)
    for number, cell in enumerate(cells):
        bundles = [node for node in cell.findall(nodes.container) if node.get("mime_type") == "image/svg+xml"]
        if not bundles:
            continue
        options = cell["cell_metadata"].get("mystnb", {})
        alt = str(options.get("image", {}).get("alt", "")).strip()
        status = str(cell["cell_metadata"].get("status", ""))
        caption = next(iter(cell.findall(nodes.caption)), None)
        for problem, found in (
            ("alt text", alt),
            ("a caption", caption is not None),
            ("a status (synthetic, computed, trained here, reproduced from ...)", STATUS.fullmatch(status)),
        ):
            if not found:
                record.fail(app.env, "figure", f"figure without {problem}", cell.line)
        if caption is not None and status:
            caption += nodes.inline("", f" Status: {status}.", classes=["status"])
        for part, bundle in enumerate(bundles):
            image = next(iter(bundle.findall(nodes.image)))
            svg = (Path(app.srcdir) / image["uri"].lstrip("/")).read_text(encoding="utf-8")
            raw = nodes.raw("", prepare(svg, alt, f"f{number}{chr(97 + part)}-"), format="html")
            bundle.children = []
            bundle += raw


def prepare(svg: str, alt: str, prefix: str) -> str:
    """The SVG element for the page: one role, one label, unique ids, the page's inks."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->", "", svg, flags=re.DOTALL)
    used = set(re.findall(r'(?:href="#|url\(#)([^")]+)', svg))
    svg = re.sub(r'\sid="([^"]*)"', lambda match: f' id="{prefix}{match[1]}"' if match[1] in used else "", svg)
    svg = re.sub(r'(href="#|url\(#)', rf"\g<1>{prefix}", svg)
    for color, ink in INKS.items():
        svg = re.sub(re.escape(color), ink, svg, flags=re.IGNORECASE)
    svg = re.sub(r"font-family: [^;\"]*;? ?", "", svg)
    head, _, body = svg.partition(">")
    head = re.sub(r'\s(width|height|xmlns:xlink|version)="[^"]*"', "", head)
    width = float(re.search(r'viewBox="0 0 ([\d.]+)', head)[1]) * 4 / 3
    body = re.sub(r">\s+<", "><", body.replace("xlink:href", "href"))
    return f'{head} role="img" aria-label="{escape(alt)}" class="figure" style="max-width:{width:.0f}px">{body}'


def setup(app: Sphinx) -> dict:
    app.connect("doctree-read", inline, priority=60)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
