"""The API reference: one page for each family, made from the docstrings, which are parsed at their own file and line.

The page of a family is a file of a few lines that the build writes below ``reference/`` if ``reference/index`` exists.
"""

import ast
import inspect
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType

from docutils import nodes
from docutils.statemachine import StringList
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.directives.other import TocTree
from sphinx.environment import BuildEnvironment
from sphinx.util.docutils import SphinxDirective, SphinxRole, switch_source_input

from .tables import FIELDS, link, table, topics
from .tests import tests_of

PAGE = """.. default-role:: public

{line}
{title}
{line}

.. reference-family:: {family}
"""
HEADING = re.compile(r"-{3,}\s*")


@dataclass
class Section:
    """A section of a docstring: its lines, each with its place."""

    name: str
    lines: StringList


def functions(families: list[str]) -> dict[str, list[ModuleType]]:
    """The topic modules of each family that exists."""
    found: dict[str, list[ModuleType]] = {}
    for module in topics(families):
        found.setdefault(module.__name__.split(".")[1], []).append(module)
    return found


@cache
def public_names(families: tuple[str, ...]) -> dict[str, str]:
    """The full name of each public function, by its own name."""
    return {
        name: f"softlookup.{family}.{name}"
        for family, modules in functions(list(families)).items()
        for module in modules
        for name in module.__all__
    }


def write_pages(app: Sphinx) -> None:
    """A file for each family, touched only when it changes; none for a family that is gone."""
    folder = Path(app.srcdir, "reference")
    if not (folder / "index.md").exists():
        return
    wanted = {}
    for family in functions(app.config.book_families):
        title = f"Functions of {family}"
        wanted[folder / f"{family}.rst"] = PAGE.format(line="=" * len(title), title=title, family=family)
    for path in set(folder.glob("*.rst")) - set(wanted):
        path.unlink()
    for path, text in wanted.items():
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")


def index_again(app: Sphinx, env: BuildEnvironment, added: set, changed: set, removed: set) -> list[str]:
    """The index lists the families, so a page that is new or gone changes it."""
    moved = any(docname.startswith("reference/") for docname in added | removed)
    return ["reference/index"] if moved and "reference/index" in env.found_docs else []


class Families(TocTree):
    """The pages of the reference, in the order of the families."""

    def run(self):
        names = [f"/reference/{family}" for family in functions(self.config.book_families)]
        self.content = StringList(names, source=self.env.docname)
        return super().run()


class Family(SphinxDirective):
    """All functions of a family, topic by topic."""

    required_arguments = 1

    def run(self):
        self.family = self.arguments[0]
        self.known = public_names(tuple(self.config.book_families))
        sections = [self.topic(module) for module in functions([self.family])[self.family]]
        return [self.overview(), *sections]

    def overview(self) -> nodes.Node:
        rows = []
        for module in functions([self.family])[self.family]:
            for name in module.__all__:
                summary = (inspect.getdoc(getattr(module, name)) or "").split("\n")[0]
                rows.append([to_function(name, f"softlookup.{self.family}.{name}"), self.words(summary)])
        return nodes.container("", table(["Function", "What it does"], rows), classes=["docstring"])

    def topic(self, module: ModuleType) -> nodes.section:
        for path in (Path(module.__file__), Path(module.__file__).with_name("__init__.py")):
            self.env.note_dependency(str(path))
        topic = module.__name__.rpartition(".")[2]
        title = topic.replace("_", " ").capitalize()
        section = nodes.section("", nodes.title("", title), ids=[nodes.make_id(f"topic-{topic}")])
        path = Path(module.__file__)
        defined = {
            node.name: node for node in ast.parse(path.read_text(encoding="utf-8")).body if hasattr(node, "name")
        }
        for name in module.__all__:
            section += self.entry(name, defined[name], path, topic)
        return section

    def entry(self, name: str, function: ast.FunctionDef, path: Path, topic: str) -> list[nodes.Node]:
        arguments = signature(function)
        lines = [
            f".. py:function:: {name}({arguments})",
            f"   :module: softlookup.{self.family}",
            "   :no-index-entry:",
        ]
        made = self.parse_rst(StringList(lines, source=str(path)))
        entry = next(node for node in made if isinstance(node, addnodes.desc))
        entry["classes"].append("docstring")
        self.env.current_document["book:parameters"] = {argument.arg for argument in all_arguments(function)}
        content = entry[-1]
        content += self.links(f"{self.family}.{name}", topic)
        for part in docstring_sections(function, path):
            maker = {"See Also": self.see_also, "Notes": self.notes}.get(part.name, self.parse_section)
            content += [nodes.rubric("", part.name)] if part.name else []
            content += maker(part)
        return made

    def links(self, name: str, topic: str) -> nodes.paragraph:
        page = link(name)
        page.children = [nodes.inline("", f"{topic.replace('_', ' ').capitalize()}, where the book explains it")]
        line = nodes.paragraph("", "", page, classes=["entry-links"])
        if found := tests_of(self.env, name, topic):
            line += [nodes.Text(" · tested by "), *found]
        return line

    def parse_rst(self, lines: StringList) -> list[nodes.Node]:
        holder = nodes.container()
        with switch_source_input(self.state, lines):
            self.state.nested_parse(lines, 0, holder)
        return holder.children

    def parse_section(self, part: Section) -> list[nodes.Node]:
        """Entries of the form ``name : type`` with their text below are definition lists as they stand."""
        for number, line in enumerate(part.lines):
            if part.name == "Parameters" and line.startswith("*"):
                part.lines[number] = line.replace("*", r"\*")
            if part.name == "References":  # the initial of an author is no number of a list
                part.lines[number] = re.sub(r"^(\w+)\. ", r"\1\. ", line)
        return self.parse_rst(part.lines)

    def see_also(self, part: Section) -> list[nodes.Node]:
        entries = nodes.bullet_list()
        for names, text in items(part.lines, r"(?P<name>[^:]+?)(?:\s*:\s+|$)"):
            line = nodes.paragraph()
            for name in filter(None, names.split(",")):
                line += [nodes.Text(", ")] if line.children else []
                own = name.strip().rpartition(".")[2]
                line += to_function(own, self.known.get(own, name.strip()), text.info(0))
            words = self.parse_rst(text)
            line += [nodes.Text(": "), *words[0].children] if words else []
            entries += [nodes.list_item("", line)] if line.children else []
        return [entries]

    def notes(self, part: Section) -> list[nodes.Node]:
        """The fixed fields as a list, then the words."""
        fields, rest = nodes.field_list(classes=["fixed-fields"]), StringList()
        for name, text in items(part.lines, rf"(?P<name>{'|'.join(FIELDS)})\s*: "):
            if name:
                fields += nodes.field("", nodes.field_name("", name), nodes.field_body("", *self.parse_rst(text)))
            else:
                rest.extend(text)
        return [*([fields] if fields.children else []), *self.parse_rst(rest)]

    def words(self, text: str) -> list[nodes.Node]:
        made, messages = self.state.inline_text(text, self.lineno)
        return [*made, *messages]


class Public(SphinxRole):
    """A name in single backquotes: a link where it is a public function and no argument, else code."""

    def run(self):
        own = self.text.removesuffix("()").rpartition(".")[2]
        known = public_names(tuple(self.config.book_families))
        if own in known and own not in self.env.current_document.get("book:parameters", ()):
            return [to_function(self.text, known[own])], []
        return [nodes.literal(self.text, self.text)], []


def to_function(words: str, target: str, place: tuple[str | None, int | None] = (None, None)) -> addnodes.pending_xref:
    link = addnodes.pending_xref("", nodes.literal("", words), refdomain="py", reftype="func", reftarget=target)
    link.update_all_atts({"refexplicit": True, "refwarn": True})
    link.source, link.line = place[0], (place[1] or 0) + 1
    return link


def items(lines: StringList, head: str):
    """(name, text) of each line that begins with `head`, indented lines joined to it; other lines have no name."""
    name = ""
    text = StringList()
    for source, number, line in lines.xitems():
        found = re.match(head, line)
        if not (line.startswith(" ") and name):
            if text:
                yield name, text
            name, text = found["name"] if found else "", StringList()
        text.append(line[found.end() :] if found else line.strip() if name else line, source, number)
    if text:
        yield name, text


def signature(function: ast.FunctionDef) -> str:
    """The arguments as the source has them, without annotations."""
    bare = ast.parse(ast.unparse(function)).body[0].args
    for argument in [*bare.posonlyargs, *bare.args, *bare.kwonlyargs, bare.vararg, bare.kwarg]:
        if argument is not None:
            argument.annotation = None
    return ast.unparse(bare)


def all_arguments(function: ast.FunctionDef) -> list[ast.arg]:
    arguments = function.args
    return [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]


def docstring_sections(function: ast.FunctionDef, path: Path) -> list[Section]:
    """The docstring in its numpydoc sections; the part above the first has no name."""
    start = function.body[0].lineno - 1
    lines = (ast.get_docstring(function) or "").split("\n")
    parts = [Section("", StringList())]
    for number, line in enumerate(lines):
        if number + 1 < len(lines) and HEADING.fullmatch(lines[number + 1]):
            parts.append(Section(line.strip(), StringList()))
        elif not HEADING.fullmatch(line):
            parts[-1].lines.append(line, str(path), start + number)
    return parts


def setup(app: Sphinx) -> dict:
    app.add_directive("reference-family", Family)
    app.add_directive("reference-pages", Families)
    app.add_role("public", Public())
    app.connect("builder-inited", write_pages)
    app.connect("env-get-outdated", index_again)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
