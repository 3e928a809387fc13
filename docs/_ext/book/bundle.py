"""One stylesheet and one script for all pages, without the rules that no page can use."""

import hashlib
import posixpath
import re
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path

import tinycss2
from sphinx.application import Sphinx

THEME = ("styles/theme.css", "styles/pydata-sphinx-theme.css")
OPTIONS = "documentation_options.js"
SHEET = re.compile(r'\s*<link [^>]*?href="([^"]*?)_static/([\w./-]+\.css)[^"]*"[^>]*>')
SCRIPT = re.compile(r'\s*<script [^>]*?src="([^"]*?)_static/([\w./-]+\.js)[^"]*"[^>]*></script>')
ADDRESS = re.compile(
    r"""@import\s*(?:url\()?["']?(?P<sheet>[\w./-]+)["']?\)?;|url\(["']?(?!data:|#)(?P<file>[^)"']+)["']?\)"""
)
CLASSES = re.compile(r'\bclass="([^"]*)"')
INLINE = re.compile(r"<script[^>]*>(.+?)</script>", re.DOTALL)


def bundle(app: Sphinx, exception: Exception | None) -> None:
    """Write the two files, and let each page ask for them instead of their parts."""
    if exception or app.builder.format != "html":
        return
    static = app.outdir / "_static"
    pages = {
        path: path.read_text(encoding="utf-8") for path in app.outdir.rglob("*.html") if static not in path.parents
    }
    sheets = [name for name in [*THEME, *parts(app.builder._css_files)] if (static / name).is_file()]
    scripts = [name for name in parts(app.builder._js_files) if name != OPTIONS]
    names = used_names(pages.values(), [static / name for name in scripts] + list((static / "scripts").glob("*.js")))
    options = (static / OPTIONS).read_text(encoding="utf-8").strip()
    site = {
        "css": purge("".join(read_sheet(static, name) for name in sheets), names),
        "js": "".join(f";{(static / name).read_text(encoding='utf-8')}\n" for name in scripts),
    }
    marks = {}
    for suffix, text in site.items():
        (static / f"site.{suffix}").write_text(text, encoding="utf-8")
        marks[suffix] = f"site.{suffix}?v={hashlib.sha256(text.encode()).hexdigest()[:8]}"
    sheet = f'<link rel="stylesheet" href="{{}}_static/{marks["css"]}">'
    script = f'<script defer src="{{}}_static/{marks["js"]}"></script>'
    for path, html in pages.items():
        head, end, body = html.partition("</head>")
        new = one_for_all(head, SHEET, {*sheets, "site.css"}, sheet)
        if path.stem != "search":  # its own scripts need the others before the page is read
            new = re.sub(rf'<script src="[^"]*{OPTIONS}[^"]*"></script>', lambda _: f"<script>{options}</script>", new)
            new = one_for_all(new, SCRIPT, {*scripts, "site.js"}, script)
        if new != head:
            path.write_text(new + end + body, encoding="utf-8")


def parts(files: Iterable) -> list[str]:
    """The files of this site, of all that Sphinx, the theme and the extensions ask for, in the order of a page."""
    names = [str(file.filename) for file in sorted(files, key=lambda file: file.priority)]
    return [name.removeprefix("_static/") for name in names if name.startswith("_static/")]


def one_for_all(head: str, pattern: re.Pattern, names: set[str], tag: str) -> str:
    """Put `tag` in the place of the first of the tags with these names, and drop the others."""
    waiting = [tag]

    def put(match: re.Match) -> str:
        if match[2] not in names:
            return match[0]
        return f"\n    {waiting.pop().format(match[1])}" if waiting else ""

    return pattern.sub(put, head)


def read_sheet(static: Path, name: str) -> str:
    """A stylesheet with those that it imports, its addresses counted from the folder of all stylesheets."""
    folder = posixpath.dirname(name)

    def put(match: re.Match) -> str:
        address = posixpath.normpath(posixpath.join(folder, match["sheet"] or match["file"]))
        return read_sheet(static, address) if match["sheet"] else f'url("{address}")'

    return ADDRESS.sub(put, (static / name).read_text(encoding="utf-8"))


def used_names(pages: Iterable[str], scripts: Iterable[Path]) -> set[str]:
    """Each class of a page, and each word of a script, which may be a class that it gives."""
    names = set()
    for html in pages:
        for classes in CLASSES.findall(html):
            names.update(classes.split())
        for script in INLINE.findall(html):
            names.update(re.findall(r"[\w-]+", script))
    for path in scripts:
        names.update(re.findall(r"[\w-]+", path.read_text(encoding="utf-8")))
    return names


def purge(css: str, names: set[str]) -> str:
    """Drop each selector that asks for a class that has no other name, and each rule that has no selector left."""
    return "".join(kept(tinycss2.parse_stylesheet(css, skip_comments=True, skip_whitespace=True), names))


def kept(rules: list, names: set[str]) -> Iterator[str]:
    for rule in rules:
        if rule.type == "qualified-rule":
            selectors = [tinycss2.serialize(s).strip() for s in selectors_of(rule.prelude) if classes_of(s) <= names]
            if selectors:
                yield f"{','.join(selectors)}{{{tinycss2.serialize(rule.content).strip()}}}"
        elif rule.lower_at_keyword in ("media", "supports"):
            inner = tinycss2.parse_rule_list(rule.content, skip_comments=True, skip_whitespace=True)
            if body := "".join(kept(inner, names)):
                yield f"@{rule.at_keyword}{tinycss2.serialize(rule.prelude)}{{{body}}}"
        elif rule.lower_at_keyword != "charset":
            yield rule.serialize()


def selectors_of(prelude: list) -> Iterator[list]:
    """The selectors of a rule, which commas divide."""
    selector = []
    for token in prelude:
        if token == ",":
            yield selector
            selector = []
        else:
            selector.append(token)
    yield selector


def classes_of(selector: list) -> set[str]:
    """The classes that an element and its surroundings must have; what stands in `:not()` and `:is()` is no such."""
    return {after.value for dot, after in pairwise(selector) if dot == "." and after.type == "ident"}


def setup(app: Sphinx) -> dict:
    app.connect("build-finished", bundle, priority=900)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
