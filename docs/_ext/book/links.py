"""External links in one list: ``links.txt`` beside the pages for a checker, and ``{external-links}`` for people."""

import re
from html import unescape
from itertools import groupby
from pathlib import Path
from urllib.parse import urlsplit

from docutils import nodes
from pybtex.plugin import find_plugin
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx.util.docutils import SphinxDirective
from sphinx.util.nodes import make_refnode

from . import record


class place(nodes.General, nodes.Element):
    """Where the list goes when the page is written."""


class External(SphinxDirective):
    def run(self):
        self.env.metadata[self.env.docname]["generated"] = True
        return [place()]


def note(app: Sphinx, doctree: nodes.document) -> None:
    uris = {node.get("refuri", "") for node in doctree.findall(nodes.reference)}
    record.page(app.env).links = {uri for uri in uris if uri.startswith(("http://", "https://"))}


def external(env: BuildEnvironment) -> dict[str, set[str]]:
    """The pages of each external link, the links sorted by host; the link of a work is on each page that cites it."""
    found: dict[str, set[str]] = {}
    for docname, page in record.pages(env).items():
        for uri in page.links:
            found.setdefault(uri, set()).add(docname)
    if "cite" in env.domaindata:
        add_works(env.get_domain("cite"), found)
    return dict(sorted(found.items(), key=lambda item: (urlsplit(item[0]).hostname or "", item[0])))


def add_works(domain, found: dict[str, set[str]]) -> None:
    citing: dict[str, set[str]] = {}
    for reference in domain.citation_refs:
        for target in reference.targets:
            citing.setdefault(target.key, set()).add(reference.docname)
    backend = find_plugin("pybtex.backends", "html")()
    for citation in domain.citations:
        for uri in re.findall(r'href="(http[^"]+)"', citation.formatted_entry.text.render(backend)):
            pages = {citation.bibliography_key.docname} | citing.get(citation.key, set())
            found.setdefault(unescape(uri), set()).update(pages)


class Fill(SphinxPostTransform):
    """One list for each host: the link and the pages that have it."""

    default_priority = 7

    def run(self, **kwargs):
        for spot in list(self.document.findall(place)):
            made = []
            for host, links in groupby(external(self.env).items(), key=lambda item: urlsplit(item[0]).hostname):
                entries = [nodes.list_item("", self.line(uri, pages)) for uri, pages in links]
                made += [nodes.rubric("", host), nodes.bullet_list("", *entries)]
            spot.replace_self(made)

    def line(self, uri: str, pages: set[str]) -> nodes.paragraph:
        line = nodes.paragraph("", "", nodes.reference("", uri, refuri=uri), nodes.Text(" on "))
        for number, docname in enumerate(sorted(pages)):
            title = nodes.inline("", self.env.titles[docname].astext())
            line += [nodes.Text(", ")] if number else []
            line += make_refnode(record.running_app().builder, self.env.docname, docname, "", title, "")
        return line


def write(app: Sphinx, exception: Exception | None) -> None:
    if not exception and app.builder.format == "html":
        text = "".join(f"{uri}\n" for uri in external(app.env))
        Path(app.outdir, "links.txt").write_text(text, encoding="utf-8")


def setup(app: Sphinx) -> dict:
    app.add_node(place)
    app.add_directive("external-links", External)
    app.add_post_transform(Fill)
    app.connect("doctree-read", note)
    app.connect("build-finished", write)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
