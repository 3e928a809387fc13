"""The site around the pages: labels for screen readers, and the line to report an error."""

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


def repair(app: Sphinx, exception: Exception | None) -> None:
    if exception or app.builder.format != "html":
        return
    for page in app.outdir.rglob("*.html"):
        html = old = page.read_text(encoding="utf-8")
        for pattern, new in REPAIRS:
            html = re.sub(pattern, new, html)
        if html != old:
            page.write_text(html, encoding="utf-8")


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
    return {"parallel_read_safe": True, "parallel_write_safe": True}
