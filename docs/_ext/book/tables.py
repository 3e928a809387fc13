"""What the build writes: variants, equalities, oracles, the source documents, times, and the count of values.

Each is filled in when pages are written, from docstrings, from the records of the other pages or from ``_data``,
and rendered again whenever any page is.
"""

import importlib
import inspect
import json
import pkgutil
import re
from pathlib import Path

from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx.util.docutils import SphinxDirective
from sphinx.util.nodes import make_refnode

from . import record

FIELDS = ("Slot", "Changes", "Cost", "Empty row", "Promises", "Equals", "Year", "Source", "Other names")
PROMISES = ("non-negative", "sums to one", "inside the hull", "shift invariant", "prefix stable")

ORACLE_COLUMNS = ("Function", "Stranger", "Version", "dtype", "Largest difference", "Rounding floor", "Known clash")
SPEED_COLUMNS = (
    "Run",
    "Threads",
    "Time",
    "Share of the limit",
    "Textbook takes",
    "torch, fused, takes",
    "JAX, all cores, takes",
    "Memory beyond the result",
)


class placeholder(nodes.General, nodes.Element):
    """A place that is filled in when the page is written."""


class Generated(SphinxDirective):
    def run(self):
        self.env.metadata[self.env.docname]["generated"] = True
        for path in sources(self.env, self.name):
            self.env.note_dependency(str(path))
        return [placeholder(what=self.name)]


class Fill(SphinxPostTransform):
    """Fills the places in, before references are resolved."""

    default_priority = 7

    def run(self, **kwargs):
        makers = {
            "variants-table": self.variants,
            "equalities-list": self.equalities,
            "oracles-table": self.oracles,
            "seed-table": self.source_documents,
            "speed-table": self.speed,
            "book-total": self.total,
        }
        for place in list(self.document.findall(placeholder)):
            place.replace_self(makers[place["what"]]())

    def variants(self) -> list[nodes.Node]:
        found = variants(self.env.config.book_families)
        what = [[link(name), *(fields[field] for field in FIELDS if field != "Promises")] for name, fields in found]
        kept = [[link(name), *promise_signs(fields["Promises"])] for name, fields in found]
        return [
            nodes.rubric("", "What each variant is"),
            table(["Variant", *(field for field in FIELDS if field != "Promises")], what),
            nodes.rubric("", "Which promises each variant keeps"),
            table(["Variant", *PROMISES], kept),
        ]

    def equalities(self) -> list[nodes.Node]:
        entries = nodes.definition_list()
        for docname, page in sorted(record.pages(self.env).items()):
            for name, parts in page.equalities:
                term = nodes.term("", "", *[child.deepcopy() for child in parts[0].children])
                body = nodes.definition("", *[child.deepcopy() for child in parts[1:]])
                title = self.env.titles[docname].astext()
                proof = make_refnode(
                    record.running_app().builder, self.env.docname, docname, name, nodes.inline("", title), ""
                )
                body += nodes.paragraph("", "Executed on: ", proof)
                entries += nodes.definition_list_item("", term, body)
        return [entries]

    def oracles(self) -> list[nodes.Node]:
        columns = ("function", "stranger", "version", "dtype", "difference", "floor", "clash")
        rows = [
            [link(row["function"]), *("" if row[name] is None else str(row[name]) for name in columns[1:])]
            for row in data(self.env, "oracles")
        ]
        return [table([*ORACLE_COLUMNS], rows)]

    def speed(self) -> list[nodes.Node]:
        record = data(self.env, "speed")
        rows = [
            [
                run["run"].replace(" = ", "\N{NO-BREAK SPACE}=\N{NO-BREAK SPACE}"),
                str(run["threads"]),
                f"{1000 * run['seconds']:.0f}\N{NO-BREAK SPACE}ms",
                *(two_digits(run[name]) if name in run else "" for name in ("limit", "textbook", "torch", "jax")),
                f"{run['extra'] / 2**20:.1f}\N{NO-BREAK SPACE}MiB",
            ]
            for run in record["runs"]
        ]
        others = [[other["what"], two_digits(other["ratio"])] for other in record["others"]]
        return [
            nodes.paragraph("", f"Measured on {record['date']}. {conditions(record)}"),
            table(SPEED_COLUMNS, rows),
            table(["Other comparisons", "Ratio"], others),
        ]

    def source_documents(self) -> list[nodes.Node]:
        rows = []
        for item in data(self.env, "seed_map"):
            covers = item["covers"]
            places = [covers] if isinstance(covers, str) else [self.place(cover) for cover in covers]
            rows.append([str(item["id"]), item["source"], item["item"], places])
        return [table(["Item", "Document", "What it says", "Where the book has it"], rows)]

    def place(self, cover: str) -> nodes.Node:
        docname, _, anchor = cover.partition("#")
        words = nodes.inline("", f"{self.env.titles[docname].astext()}: {anchor.replace('-', ' ')}")
        return make_refnode(record.running_app().builder, self.env.docname, docname, anchor, words, "")

    def total(self) -> list[nodes.Node]:
        values = sum(page.values for page in record.pages(self.env).values())
        return [
            nodes.paragraph(
                "", f"{values:,} values in this book were recomputed when it was built.", classes=["recomputed"]
            )
        ]


FROM_DATA = ("oracles-table", "seed-table", "speed-table")


def two_digits(ratio: float) -> str:
    """A ratio with the two digits that a record keeps: 0.97, 2.0 and 12."""
    return f"{ratio:#.2g}".removesuffix(".")


def conditions(record: dict) -> str:
    """The machine, the versions and the variables under which times were measured."""
    machine, versions = record["machine"], record["versions"]
    memory = f", {machine['memory'] / 2**30:.0f} GiB of memory" if machine["memory"] else ""
    seen = f", instructions {', '.join(machine['instructions'])}" if machine["instructions"] else ""
    variables = [f"{name}={value}" for name, value in {**record["threads"], **record["kernels"]}.items() if value]
    return (
        f"Processor: {machine['processor']}, {machine['cores']} cores{memory}{seen}. "
        f"Versions: {', '.join(f'{name} {version}' for name, version in versions.items())}. "
        f"Variables that were set: {', '.join(variables) or 'none'}."
    )


def sources(env: BuildEnvironment, what: str) -> list[Path]:
    if what == "variants-table":
        return [Path(module.__file__) for module in topics(env.config.book_families)]
    return sorted(Path(env.srcdir, "_data").glob("*.json")) if what in FROM_DATA else []


def topics(families: list[str]):
    """The topic modules that exist, in the order of the book's families."""
    import softlookup

    present = {module.name for module in pkgutil.iter_modules(softlookup.__path__) if module.ispkg}
    for family in families:
        if family in present:
            package = importlib.import_module(f"softlookup.{family}")
            for module in pkgutil.iter_modules(package.__path__):
                if module.name != "__main__":
                    yield importlib.import_module(f"softlookup.{family}.{module.name}")


def variants(families: list[str]) -> list[tuple[str, dict[str, str]]]:
    """(family.function, its fixed fields) of every public function whose Notes have a Slot."""
    found = []
    for module in topics(families):
        family = module.__name__.split(".")[1]
        for name in module.__all__:
            fields = fixed_fields(inspect.getdoc(getattr(module, name)) or "")
            if "Slot" in fields:
                found.append((f"{family}.{name}", {field: fields.get(field, "") for field in FIELDS}))
    return found


def fixed_fields(docstring: str) -> dict[str, str]:
    """The ``Field : text`` lines of the Notes section, continued lines joined."""
    notes = re.search(r"^Notes\n-+\n(.*?)(?=^\S[^\n]*\n-{3,}\n|\Z)", docstring, re.DOTALL | re.MULTILINE)
    fields = re.findall(
        rf"^({'|'.join(FIELDS)})\s*: (.*?)(?=^\S|^\s*$|\Z)", notes[1] if notes else "", re.DOTALL | re.MULTILINE
    )
    return {name: " ".join(text.split()) for name, text in fields}


def promise_signs(text: str) -> list[str]:
    kept = {part.strip() for part in text.split(",")}
    return ["yes" if promise in kept else "no" for promise in PROMISES]


def link(label: str) -> nodes.Node:
    return pending_xref(
        "",
        nodes.literal("", label),
        refdomain="std",
        reftype="ref",
        reftarget=label.lower(),
        refexplicit=True,
        refwarn=True,
    )


def table(head: list[str], rows: list[list]) -> nodes.Node:
    group = nodes.tgroup("", *[nodes.colspec(colwidth=1) for _ in head], cols=len(head))
    group += nodes.thead("", table_row([nodes.Text(cell) for cell in head]))
    group += nodes.tbody("", *[table_row(row) for row in rows])
    return nodes.container("", nodes.table("", group), classes=["table-wrapper"])


def table_row(cells: list) -> nodes.row:
    row = nodes.row()
    for cell in cells:
        parts = cell if isinstance(cell, list) else [cell]
        content = nodes.paragraph()
        for number, part in enumerate(parts):
            content += [nodes.Text(", ")] if number else []
            content += text_nodes(part) if isinstance(part, str) else [part]
        row += nodes.entry("", content)
    return row


def text_nodes(text: str) -> list[nodes.Node]:
    """Plain text with ``literals`` and :math:`formulas`, as docstrings write them."""
    made = []
    for code, formula, words in re.findall(r"``(.+?)``|:math:`(.+?)`|((?:(?!``|:math:`).)+)", text, re.DOTALL):
        made.append(nodes.literal("", code) if code else nodes.math("", formula) if formula else nodes.Text(words))
    return made


def data(env: BuildEnvironment, name: str) -> list[dict]:
    return json.loads(Path(env.srcdir, "_data", f"{name}.json").read_text(encoding="utf-8"))


def say_count(app: Sphinx, doctree: nodes.document) -> None:
    """The last line of a page: how many of its values the build recomputed."""
    values = record.page(app.env).values
    if values:
        words = "value on this page was" if values == 1 else "values on this page were"
        line = nodes.paragraph("", f"{values} {words} recomputed when it was built.", classes=["recomputed"])
        (next(iter(doctree.findall(nodes.section)), doctree)).append(line)


def note_reading(app: Sphinx, env: BuildEnvironment, docnames: list[str]) -> None:
    app.book_reads = bool(docnames)


def render_again(app: Sphinx, env: BuildEnvironment) -> list[str]:
    return [name for name, metadata in env.metadata.items() if metadata.get("generated") and app.book_reads]


def setup(app: Sphinx) -> dict:
    app.add_node(placeholder)
    for name in ("variants-table", "equalities-list", "oracles-table", "seed-table", "speed-table", "book-total"):
        app.add_directive(name, Generated)
    app.add_post_transform(Fill)
    app.connect("doctree-read", say_count, priority=800)
    app.connect("env-before-read-docs", note_reading)
    app.connect("env-updated", render_again)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
