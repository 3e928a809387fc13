"""Each page with cells as a notebook and as a script, beside the page: no checks, no markup of the book."""

import ast
import textwrap
from dataclasses import dataclass, field
from pathlib import Path

import nbformat
from docutils import nodes
from sphinx.application import Sphinx

from .boxes import solution
from .expect import check_mark
from .figures import INKS
from .plain import Plain


@dataclass
class Cell:
    """One cell of a download; a cell without code is Markdown."""

    text: str
    code: bool = False
    options: dict = field(default_factory=dict)
    outputs: list = field(default_factory=list)
    expected: str = ""
    folded: bool = False


def cells(plain: Plain, node: nodes.Element, depth: int = 1):
    """The cells below a node, in the order of the page."""
    for child in node.children:
        if isinstance(child, nodes.title):
            yield Cell(f"{'#' * depth} {plain.inline(child)}")
        elif isinstance(child, nodes.section):
            yield from cells(plain, child, depth + isinstance(node, nodes.section))
        elif is_cell(child):
            yield code_cell(child)
            for figure in child.findall(nodes.figure):
                yield Cell(plain.caption_of(figure))
        elif isinstance(child, solution) and any(child.findall(is_cell)):
            yield from solution_cells(plain, child)
        elif isinstance(child, check_mark):
            yield Cell("", expected=child["expected"])
        else:
            yield Cell(plain.blocks([child]))


def solution_cells(plain: Plain, node: solution):
    """A solution with code: a fold holds Markdown only, so each stretch of it is folded, and the code is hidden."""
    for number, cell in enumerate(joined(cells(plain, node))):
        if cell.code:
            cell.folded = True
        else:
            cell.text = plain.fold(cell.text, "Solution, continued" if number else "Solution")
        yield cell


def is_cell(node: nodes.Node) -> bool:
    return isinstance(node, nodes.container) and "cell_index" in node


def code_cell(node: nodes.container) -> Cell:
    code = next(block for block in node.findall(nodes.literal_block)).astext()
    shown = [part for part in node.children if part.get("nb_element") == "cell_code_output"]
    return Cell(code, True, node["cell_metadata"], [out for part in shown for out in outputs(part)])


def outputs(node: nodes.Element):
    for part in node.findall(lambda part: isinstance(part, nodes.literal_block | nodes.raw)):
        text = part.astext()
        if isinstance(part, nodes.raw):
            for color, ink in INKS.items():
                text = text.replace(ink, color)
            text = text.replace('style="max-width', 'style="background:#ffffff;max-width', 1)
            yield nbformat.v4.new_output("display_data", {"image/svg+xml": text})
        elif "stream" in part["classes"]:
            yield nbformat.v4.new_output("stream", name="stdout", text=text.rstrip("\n") + "\n")
        elif "traceback" in part["classes"]:
            name, _, message = text.partition(": ")
            yield nbformat.v4.new_output("error", ename=name, evalue=message, traceback=[text])
        else:
            yield nbformat.v4.new_output("execute_result", {"text/plain": text})


def joined(parts) -> list[Cell]:
    """Neighboring Markdown in one cell, a new one at each heading; an expected output joins its cell."""
    made = []
    for part in parts:
        if part.expected and not part.code:
            made[-1].expected = part.expected
        elif part.code or (part.text and (not made or made[-1].code or part.text.startswith("#"))):
            made.append(part)
        elif part.text:
            made[-1].text += "\n\n" + part.text
    return made


def notebook(parts: list[Cell]) -> nbformat.NotebookNode:
    made = nbformat.v4.new_notebook(
        metadata={
            "kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"},
            "language_info": {"name": "python"},
        }
    )
    count = 0
    for number, part in enumerate(parts, 1):
        if not part.code:
            made.cells.append(nbformat.v4.new_markdown_cell(part.text, id=f"cell-{number}"))
            continue
        count += 1
        tags = part.options.get("tags", [])
        metadata = {"tags": ["raises-exception"]} if "raises-exception" in tags else {}
        if part.folded or "hide-input" in tags:
            metadata["jupyter"] = {"source_hidden": True, "outputs_hidden": part.folded}
        for output in part.outputs:
            if output.output_type == "execute_result":
                output.execution_count = count
        made.cells.append(
            nbformat.v4.new_code_cell(
                part.text, id=f"cell-{number}", metadata=metadata, outputs=part.outputs, execution_count=count
            )
        )
    return made


def script(parts: list[Cell]) -> str:
    made = []
    for part in parts:
        if not part.code:
            made.append("# %% [markdown]\n" + commented(part.text))
            continue
        code = printing(part)
        if "raises-exception" in part.options.get("tags", []):
            caught = "except Exception as error:\n    print(f'{type(error).__name__}: {error}')"
            code = f"try:\n{textwrap.indent(code, '    ')}\n{caught}"
        made.append("# %%\n" + code + ("\n" + expectation(part.expected) if part.expected else ""))
    if any(output.output_type == "display_data" for part in parts for output in part.outputs):
        made.append("# %%\nimport matplotlib.pyplot\n\nmatplotlib.pyplot.show()")
    return "\n\n".join(made) + "\n"


def printing(part: Cell) -> str:
    """The code of a cell; a value that a notebook would show is printed."""
    if not any(output.output_type == "execute_result" for output in part.outputs):
        return part.text
    value = ast.parse(part.text).body[-1]
    lines = part.text.split("\n")
    last = "\n".join(lines[value.lineno - 1 : value.end_lineno])
    return "\n".join([*lines[: value.lineno - 1], f"print(repr({last}))", *lines[value.end_lineno :]])


def expectation(expected: str) -> str:
    if "\n" in expected:
        return "# expected:\n" + commented(expected, "#   ")
    return f"# expected: {expected}"


def commented(text: str, sign: str = "# ") -> str:
    return "\n".join(f"{sign}{line}".rstrip() for line in text.split("\n"))


def write(app: Sphinx, pagename: str, templatename: str, context: dict, doctree: nodes.document | None) -> None:
    context["downloads"] = []
    if doctree is None or not any(doctree.findall(is_cell)):
        return
    place = Path(app.outdir, pagename)
    place.parent.mkdir(parents=True, exist_ok=True)
    doctree = doctree.deepcopy()
    for suffix, label, folds in ((".ipynb", "Notebook", True), (".py", "Script", False)):
        found = [cell for cell in cells(Plain(app, pagename, folds), doctree) if cell.text or cell.expected]
        found[0].text += f"\n\n*{origin(app)}*"
        parts = joined(found)
        text = nbformat.writes(notebook(parts)) + "\n" if folds else script(parts)
        place.with_name(place.name + suffix).write_text(text, encoding="utf-8")
        context["downloads"].append((label, suffix, place.name + suffix))


def origin(app: Sphinx) -> str:
    version = app.config.version
    return f"A page of {app.config.book_title}, version {version}. It needs softlookup {version} and matplotlib."


def setup(app: Sphinx) -> dict:
    app.connect("html-page-context", write)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
