"""The runner as MyST-NB's notebook client: cells run while the page is read, in this process."""

import ast
import importlib
import time
from pathlib import Path

import myst_nb.sphinx_ as myst_nb_sphinx
import nbformat.v4 as notebook_format
from docutils import nodes
from myst_nb.core.execute.base import NotebookClientBase
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.errors import ExtensionError

from . import record
from .runner import Result, Runner

TOKENIZE = getattr(myst_nb_sphinx, "notebook_to_tokens", None)


class Client(NotebookClientBase):
    """Runs the cells up to the one that is asked for, and remembers what each gave."""

    def start_client(self):
        self.env = record.running_app().env
        self.notebook.metadata["language_info"] = {"name": "python", "pygments_lexer": "python"}
        self.results: dict[int, Result] = {}
        self.last = -1
        self.broken = False
        self.lines = Path(self.path).read_text(encoding="utf-8").splitlines()
        self.runner = Runner(self.path, topic_functions(self.env))
        self.started = time.perf_counter()

    def code_cell_outputs(self, cell_index):
        while self.last < cell_index:
            self.last += 1
            if self.notebook.cells[self.last].cell_type == "code" and not self.broken:
                self.run(self.last)
        cell = self.notebook.cells[cell_index]
        return cell.get("execution_count"), cell.get("outputs", [])

    def run(self, index: int) -> None:
        cell = self.notebook.cells[index]
        result = self.results[index] = self.runner.run(cell.source, self.first_code_line(index))
        expects_error = "raises-exception" in cell.metadata.get("tags", [])
        if result.error and not expects_error:
            self.broken = True
            self.fail("cell", f"cell failed: {result.error}", result.line)
        elif expects_error and not result.error:
            self.fail("cell", "the cell is tagged raises-exception and raised nothing", self.fence_line(index))
        cell.execution_count = len(self.results)
        cell.outputs = list(outputs(result))

    def fence_line(self, index: int) -> int:
        return self.cell_line(index) + 1

    def first_code_line(self, index: int) -> int:
        """The line of the page on which the cell's code starts, after the fence and its options."""
        line = self.fence_line(index)  # from zero: the line below the fence
        if self.lines[line].strip() == "---":
            line = next(n for n in range(line + 1, len(self.lines)) if self.lines[n].strip() == "---") + 1
        while self.lines[line].startswith(":"):
            line += 1
        first = self.notebook.cells[index].source.split("\n", 1)[0]
        while self.lines[line] != first and not self.lines[line].strip():
            line += 1
        return line + 1

    def fail(self, kind: str, message: str, line: int) -> None:
        record.fail(self.env, kind, message, line)

    def close_client(self, exc_type, exc_val, exc_tb):
        if exc_type is None:
            self.code_cell_outputs(len(self.notebook.cells) - 1)
            self.check_outputs()
        record.page(self.env).called = self.runner.calls.called
        self.exec_metadata = {
            "mtime": time.time(),
            "runtime": time.perf_counter() - self.started,
            "method": "in-process",
            "succeeded": not self.broken,
            "error": None,
            "traceback": None,
        }

    def check_outputs(self) -> None:
        """Every output that a reader sees is compared, or its cell says why not."""
        for index, result in self.results.items():
            metadata = self.notebook.cells[index].metadata
            if not result.shown or metadata.get("compared") or (result.error and self.broken):
                continue
            if len(str(metadata.get("unchecked", "")).split()) < 3:
                self.fail("unchecked", "the cell prints and no {expect} follows it", self.fence_line(index))


def outputs(result: Result):
    if result.text:
        yield notebook_format.new_output("stream", name="stdout", text=result.text)
    if result.value is not None and not result.figures:
        yield notebook_format.new_output("execute_result", data={"text/plain": repr(result.value)})
    for figure in result.figures:
        yield notebook_format.new_output("display_data", data={"image/svg+xml": figure})
    if result.error:
        name, _, message = result.error.partition(": ")
        yield notebook_format.new_output("error", ename=name, evalue=message, traceback=[result.error])


def topic_functions(env: BuildEnvironment) -> dict[str, object]:
    """The public functions of the page's own topic, by name."""
    module = topic_module(env)
    return {name: getattr(module, name) for name in module.__all__} if module else {}


def topic_module(env: BuildEnvironment):
    family, _, topic = env.docname.partition("/")
    if family not in env.config.book_families or topic in ("", "index"):
        return None
    return importlib.import_module(f"softlookup.{family}.{topic}")


def create_client(notebook, source, nb_config, logger, read_fmt=None):
    return Client(notebook, Path(source), nb_config, logger)


def notebook_to_tokens(notebook, mdit_parser, mdit_env, logger):
    """MyST-NB's function on a corrected source map.

    MyST-NB counts blank lines above a text away and counts text one line, cells two lines too far.
    """
    lines = Path(mdit_parser.options["document"]["source"]).read_text(encoding="utf-8").splitlines()
    source_map = notebook.metadata["source_map"]
    for number, cell in enumerate(notebook.cells):
        if cell.cell_type == "code":
            source_map[number] -= 2
        else:
            while not lines[source_map[number]].strip():
                source_map[number] += 1
            source_map[number] -= 1
    return TOKENIZE(notebook, mdit_parser, mdit_env, logger)


def client_of(document: nodes.document) -> Client | None:
    """The client of the page that `document` is being made from; None on a page without cells."""
    renderer = document.get("nb_renderer")
    return renderer and renderer.renderer.nb_client


def note_imports(app: Sphinx, doctree: nodes.document) -> None:
    """Read the page again when a module in the import closure of its cells changes."""
    todo, seen = list(imported_by("\n".join(code_of(doctree)))), set()
    if module := topic_module(app.env):
        todo.append(module.__name__)
    while todo:
        path = module_file(todo.pop())
        if path and path not in seen:
            seen.add(path)
            app.env.note_dependency(str(path))
            todo += imported_by(path.read_text(encoding="utf-8"), package=package_of(path))


def code_of(doctree: nodes.document):
    for cell in doctree.findall(lambda node: isinstance(node, nodes.container) and "cell_metadata" in node):
        yield from (block.astext() for block in cell.findall(nodes.literal_block) if block.get("language") == "python")


def imported_by(source: str, package: str = "") -> set[str]:
    names = set()
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return names
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package.split(".")[: len(package.split(".")) + 1 - node.level]) if node.level else ""
            base = ".".join(part for part in (base, node.module) if part)
            names |= {base, *(f"{base}.{alias.name}" for alias in node.names)}
    return {name for name in names if name.split(".")[0] == "softlookup"}


def module_file(name: str) -> Path | None:
    root = Path(importlib.import_module("softlookup").__file__).parent
    path = root.joinpath(*name.split(".")[1:])
    candidates = (path / "__init__.py", path.with_suffix(".py"))
    return next((candidate for candidate in candidates if candidate.exists()), None)


def package_of(path: Path) -> str:
    root = Path(importlib.import_module("softlookup").__file__).parent.parent
    return ".".join(path.relative_to(root).parent.parts)


def setup(app: Sphinx) -> dict:
    for replacement in (create_client, notebook_to_tokens):
        if not hasattr(myst_nb_sphinx, replacement.__name__):
            raise ExtensionError(f"this myst-nb has no {replacement.__name__} in myst_nb.sphinx_; install myst-nb 1.4")
        setattr(myst_nb_sphinx, replacement.__name__, replacement)
    app.connect("doctree-read", note_imports, priority=90)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
