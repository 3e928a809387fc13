"""Figures: each cell's picture becomes inline SVG that takes the colors and the font of the page.

A figure needs alt text, a caption and a status; it must be small, and its text must be readable on a phone.
"""

import base64
import io
import re
from html import escape
from itertools import count
from pathlib import Path
from xml.etree import ElementTree as ET

import numpy as np
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
STATUS = re.compile(r"synthetic|computed|trained here(, .+)?|reproduced from .+")
LARGEST = 24_000  # bytes of one SVG element
PHONE, READABLE = 342, 9  # width of a figure and least size of its text there, in CSS pixels of a phone
DEFAULTS = {"opacity": "1", "fill-opacity": "1", "stroke-opacity": "1", "stroke-linejoin": "", "font-family": ""}
NUMBERS = {"d", "x", "y", "width", "height", "transform", "viewBox", "points"}


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
        problems = [
            f"figure without {problem}"
            for problem, found in (
                ("alt text", alt),
                ("a caption", caption is not None),
                ("a status (synthetic, computed, trained here, reproduced from ...)", STATUS.fullmatch(status)),
            )
            if not found
        ]
        if caption is not None and status:
            caption += nodes.inline("", f" Status: {status}.", classes=["status"])
        for part, bundle in enumerate(bundles):
            image = next(iter(bundle.findall(nodes.image)))
            svg = (Path(app.srcdir) / image["uri"].lstrip("/")).read_text(encoding="utf-8")
            made = prepare(svg, alt, f"f{number}{chr(97 + part)}-")
            problems += flaws(made)
            bundle.children = []
            bundle += nodes.raw("", made, format="html")
        for problem in problems:
            record.fail(app.env, "figure", problem, cell.line)


def prepare(svg: str, alt: str, prefix: str) -> str:
    """The SVG element for the page: one role, one label, short unique ids, the page's inks, nothing unseen."""
    root = ET.fromstring(svg)
    for parent in list(root.iter()):
        for child in list(parent):
            if re.search(r"metadata|style$", str(child.tag)):
                parent.remove(child)
    names = (f"{prefix}{number}" for number in count())
    for node in list(root.iter()):
        node.tag = node.tag.split("}")[-1]
        node.attrib = {key.split("}")[-1]: tidy(key.split("}")[-1], value) for key, value in node.attrib.items()}
        node.tail = None
        if node.tag != "tspan":
            node.text = (node.text or "").strip()
        if node.tag == "image":
            print_in_ink(node, next(names))
    for node in root.iter("text"):
        join(node)
    drop_repeated_styles(root)
    unwrap(root)
    body = "".join(ET.tostring(child, encoding="unicode") for child in root).replace(" />", "/>")
    used = {name: next(names) for name in dict.fromkeys(re.findall(r'(?:href="#|url\(#)([^")]+)', body))}
    body = re.sub(r' id="([^"]*)"', lambda match: f' id="{used[match[1]]}"' if match[1] in used else "", body)
    body = re.sub(r'(href="#|url\(#)([^")]+)', lambda match: match[1] + used[match[2]], body)
    for color, ink in INKS.items():
        body = re.sub(re.escape(color), ink, body, flags=re.IGNORECASE)
    box = root.get("viewBox")
    width = float(box.split()[2]) * 4 / 3
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{box}" role="img" aria-label="{escape(alt)}"'
    return f'{head} class="figure" style="max-width:{width:.0f}px;stroke-linejoin:round">{body}</svg>'


def tidy(name: str, value: str) -> str:
    """An attribute with shorter numbers, and without what is so anyway."""
    if name == "style":
        pairs = [pair.split(":", 1) for pair in value.split(";") if ":" in pair]
        pairs = [(key.strip(), text.strip()) for key, text in pairs]
        return ";".join(f"{key}:{text}" for key, text in pairs if DEFAULTS.get(key) not in ("", text))
    if name in NUMBERS:
        digits = 4 if name == "transform" else 2
        value = re.sub(r"-?\d+\.\d+", lambda match: f"{float(match[0]):.{digits}f}".rstrip("0").rstrip("."), value)
        value = re.sub(r"rotate\(-?0 [^)]*\)\s*", "", value)
        value = re.sub(r"\s*([A-Za-z(),])\s*", r"\1", value) if name == "d" else value
    return value.strip()


def join(text: ET.Element) -> None:
    """Put letters of a formula that stand side by side together: the font of the page has its own widths."""
    letters = [
        (float(x), letter, span)
        for span in text
        for x, letter in zip(span.get("x", "0").split(), span.text or "", strict=False)
    ]
    kept = []
    for x, letter, span in sorted(letters, key=lambda each: each[0]):
        place = {"x": f"{x:g}", "y": span.get("y", "0"), "style": span.get("style", "")}
        if kept and all(kept[-1].get(key) == place[key] for key in ("y", "style")):
            kept[-1].text += letter
        else:
            kept.append(ET.Element("tspan", place))
            kept[-1].text = letter
    text[:] = kept


def drop_repeated_styles(root: ET.Element) -> None:
    """A mark is drawn in the style of its shape; only a closed shape needs to be told its fill."""
    shapes = {path.get("id"): path for path in root.iter("path")}
    for mark in root.iter("use"):
        shape = shapes[mark.get("href")[1:]]
        own, said = (set(node.get("style", "").split(";")) for node in (shape, mark))
        if own == said or ("z" not in shape.get("d") and all(rule.startswith("fill:") for rule in said - own)):
            del mark.attrib["style"]


def unwrap(node: ET.Element) -> None:
    """Put the children of each group that says nothing in its place."""
    kept = []
    for child in list(node):
        unwrap(child)
        for key in [key for key, value in child.attrib.items() if not value]:
            del child.attrib[key]
        kept += list(child) if child.tag == "g" and set(child.attrib) <= {"id"} else [child]
    node[:] = [child for child in kept if len(child) or child.tag not in ("g", "defs")]


def print_in_ink(image: ET.Element, name: str) -> None:
    """Turn a raster of ink into a stencil through which the page's ink is seen, unless it has colors of its own."""
    from PIL import Image

    data = base64.b64decode(image.get("href").partition(",")[2])
    pixels = np.asarray(Image.open(io.BytesIO(data)).convert("RGBA"))
    seen = pixels[..., 3] > 0
    if np.any(abs(pixels[seen][:, :3].astype(int) - (0x11, 0x11, 0x12)) > 8):
        return
    # Each cell is some pixels wide, so that a browser that smooths them blurs no more than its edge.
    times = max(1, 96 // max(seen.shape))
    opacity = np.kron(pixels[..., 3], np.ones((times, times), np.uint8))
    file = io.BytesIO()
    Image.fromarray(opacity).save(file, format="png", optimize=True)
    place = {key: image.get(key, "0") for key in ("x", "y", "width", "height")}
    stencil = ET.Element("mask", id=name, maskUnits="userSpaceOnUse", **place)
    source = "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()
    style = "image-rendering:crisp-edges;image-rendering:pixelated"
    stencil.append(ET.Element("image", place, href=source, style=style, preserveAspectRatio="none"))
    box = ET.Element("rect", place, fill="#111112", mask=f"url(#{name})")
    box.set("transform", image.get("transform", ""))
    image.tag, image.attrib = "g", {}
    image[:] = [stencil, box]


def flaws(svg: str) -> list[str]:
    """What is wrong with a figure as the reader gets it: too large a file, or text too small on a phone."""
    found = []
    if len(svg) > LARGEST:
        found.append(f"figure of {len(svg):,} bytes, of at most {LARGEST:,}: draw fewer points or a raster")
    width = float(re.search(r'viewBox="\S+ \S+ (\S+)', svg)[1])
    sizes = [float(size) for size in re.findall(r"font(?:-size)?:[^;\"]*?([\d.]+)px", svg)]
    smallest = min(sizes, default=width) * PHONE / width
    if smallest < READABLE:
        found.append(f"figure with text of {smallest:.1f} pixels on a phone, of at least {READABLE}: make it narrower")
    return found


def setup(app: Sphinx) -> dict:
    app.connect("doctree-read", inline, priority=60)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
