"""What stands around a page: where it is, what comes before and after, how to cite it and how to mend it."""

import re
from pathlib import Path

from docutils import nodes
from sphinx.application import Sphinx

BIBTEX = """@incollection{{{key},
  author = {{{{{author}}}}},
  title = {{{title}}},
  booktitle = {{{book}}},
  note = {{Version {version}}}{url}
}}"""


def add(app: Sphinx, pagename: str, templatename: str, context: dict, doctree: nodes.document | None) -> None:
    if doctree is None:
        return
    context["has_levels"] = any("level" in section["classes"] for section in doctree.findall(nodes.section))
    context["bibtex"] = bibtex(app, pagename) if app.config.book_title else ""
    context["edit_url"] = edit_url(app, pagename)
    context["breadcrumb"] = []
    if family := family_of(app, pagename):
        context["breadcrumb"] = breadcrumb(app, pagename, family)
        _, before, after = app.env.collect_relations().get(pagename, (None, None, None))
        if not follows(app, before, family):
            context["prev"] = None
        if not (follows(app, after, family) or (family_of(app, after) and after.endswith("/index"))):
            context["next"] = None


def family_of(app: Sphinx, pagename: str | None) -> str:
    family, _, topic = (pagename or "").partition("/")
    return family if topic and family in app.config.book_families else ""


def follows(app: Sphinx, pagename: str | None, family: str) -> bool:
    return pagename == app.config.root_doc or family_of(app, pagename) == family


def breadcrumb(app: Sphinx, pagename: str, family: str) -> list[tuple[str, str]]:
    """The steps from the first page to this one: words, and where they lead; the last leads nowhere."""
    above = [name for name in (app.config.root_doc, f"{family}/index") if name != pagename and name in app.env.titles]
    words = {name: app.env.titles[name].astext() for name in (*above, pagename)} | {
        app.config.root_doc: app.config.project
    }
    return [(words[name], app.builder.get_relative_uri(pagename, name)) for name in above] + [(words[pagename], "")]


def bibtex(app: Sphinx, pagename: str) -> str:
    base = app.config.html_baseurl.rstrip("/")
    return BIBTEX.format(
        key=re.sub(r"\W+", "-", f"{app.config.project} {pagename}".lower()),
        author=app.config.author,
        title=re.sub(r"([&%#_])", r"\\\1", app.env.titles[pagename].astext()),
        book=app.config.book_title,
        version=app.config.version,
        url=f",\n  url = {{{base}/{app.builder.get_target_uri(pagename)}}}" if base else "",
    )


def edit_url(app: Sphinx, pagename: str) -> str:
    """Where the source of the page is edited; nowhere for a page that the build writes, or without a repository."""
    path = Path(app.env.doc2path(pagename))
    if not app.config.book_repository_url or path.suffix != ".md":
        return ""
    return f"{app.config.book_repository_url}/edit/main/docs/{path.relative_to(app.srcdir).as_posix()}"


def setup(app: Sphinx) -> dict:
    app.connect("html-page-context", add)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
