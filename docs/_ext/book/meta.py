"""What search engines, previews and lost readers need: descriptions, a map of the site, a page for wrong addresses."""

from html import escape
from itertools import islice
from urllib.parse import urljoin, urlsplit

from docutils import nodes
from sphinx.application import Sphinx

ABOUT = "Attention, executed: a book whose every number is recomputed when it is built."
LONGEST = 160


def describe(app: Sphinx, pagename: str, templatename: str, context: dict, doctree: nodes.document | None) -> None:
    """Add the description of a page, and where its address is known what a preview shows."""
    base = app.config.html_baseurl
    context["base_path"] = urlsplit(base).path or "/"
    about = description(doctree)
    tags = [("name", "description", about)]
    if base:
        tags += [
            ("property", "og:title", context.get("title") or app.config.project),
            ("property", "og:description", about),
            ("property", "og:type", "article"),
            ("property", "og:site_name", app.config.project),
            ("property", "og:url", urljoin(base, app.builder.get_target_uri(pagename))),
            ("property", "og:image", urljoin(base, "_static/page.png")),
        ]
    lines = [f'<meta {kind}="{name}" content="{escape(text)}">' for kind, name, text in tags]
    context["metatags"] = context.get("metatags", "") + "\n".join(lines)


def description(doctree: nodes.document | None) -> str:
    """The opening question of a page and what follows it, cut at a word."""
    paragraphs = [] if doctree is None else doctree.findall(nodes.paragraph)
    text = " ".join(word for paragraph in islice(paragraphs, 3) for word in paragraph.astext().split())
    if len(text) > LONGEST:
        text = text[:LONGEST].rpartition(" ")[0] + " …"
    return text if len(text) >= 40 else f"{text} {ABOUT}".strip()


def write_map(app: Sphinx, exception: Exception | None) -> None:
    """List the pages of a site whose address is known, and say to search engines where the list is."""
    base = app.config.html_baseurl
    if exception or app.builder.format != "html" or not base:
        return
    pages = sorted(urljoin(base, app.builder.get_target_uri(name)) for name in app.env.found_docs)
    urls = "".join(f"  <url><loc>{escape(page)}</loc></url>\n" for page in pages)
    head = '<?xml version="1.0" encoding="UTF-8"?>\n<urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9">\n'
    (app.outdir / "sitemap.xml").write_text(f"{head}{urls}</urlset>\n", encoding="utf-8")
    robots = f"User-agent: *\nAllow: /\nSitemap: {urljoin(base, 'sitemap.xml')}\n"
    (app.outdir / "robots.txt").write_text(robots, encoding="utf-8")


def setup(app: Sphinx) -> dict:
    app.connect("html-page-context", describe)
    app.connect("build-finished", write_map)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
