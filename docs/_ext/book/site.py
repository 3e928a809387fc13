"""The site around the pages: labels for screen readers, the report line, and nothing that a page does not use."""

import re
from urllib.parse import quote

from sphinx.application import Sphinx

REPAIRS = (
    (r'role="doc-biblioentry"', 'role="listitem"'),
    (r'<th class="head">(<p></p>)?</th>', "<td></td>"),
    (r'<summary>(<span class="toctree-toggle")', r'<summary aria-label="Show the pages of this part">\1'),
    (r'<summary aria-label="Toggle hidden content">', "<summary>"),
    (r'(<button[^>]*search-button__button[^>]*?) aria-label="Search"', r"\1"),
    (
        r'<div id="pst-primary-sidebar" class',
        '<div id="pst-primary-sidebar" role="complementary" aria-label="Book" class',
    ),
)

ICONS = {
    "angle-left",
    "angle-right",
    "bars",
    "chevron-down",
    "circle-half-stroke",
    "list",
    "magnifying-glass",
    "moon",
    "sun",
    "xmark",
}
ICON_RULE = re.compile(r'(?:\.fa-[\w-]+,?)+\{--fa:"[^"]*"(?:;[^}]*)?\}')


def repair(app: Sphinx, exception: Exception | None) -> None:
    if exception or app.builder.format != "html":
        return
    for page in app.outdir.rglob("*.html"):
        html = old = page.read_text(encoding="utf-8")
        for pattern, new in REPAIRS:
            html = re.sub(pattern, new, html)
        if html != old:
            page.write_text(html, encoding="utf-8")


def drop_icons(app: Sphinx, exception: Exception | None) -> None:
    """The theme names two thousand icons; its pages show ten, and only they are in the font of the site."""
    sheet = app.outdir / "_static" / "styles" / "pydata-sphinx-theme.css"
    if exception or not sheet.is_file():
        return
    names = re.compile(r"\.fa-([\w-]+)")
    css = sheet.read_text(encoding="utf-8")
    css = ICON_RULE.sub(lambda rule: rule[0] if ICONS & set(names.findall(rule[0])) else "", css)
    sheet.write_text(css, encoding="utf-8")


def report_link(app: Sphinx, pagename: str, templatename: str, context: dict, doctree) -> None:
    """Where a reader reports an error, with page and version filled in as far as the place allows."""
    subject = f"{pagename} (version {app.config.version})"
    if app.config.book_report_url:
        title, body = quote(f"Error on {pagename}"), quote(f"Page: {pagename}\nVersion: {app.config.version}\n\n")
        url = f"{app.config.book_report_url}/new?title={title}&body={body}"
    else:
        url = context["pathto"]("contributing").rstrip("#") + "#report-an-error"
    context["report_url"], context["report_subject"] = url, subject


def setup(app: Sphinx) -> dict:
    app.connect("html-page-context", report_link)
    app.connect("build-finished", repair)
    app.connect("build-finished", drop_icons)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
