"""Run the cells of a page in this process: one fresh namespace and one reset state for each page."""

import ast
import contextlib
import io
import os
import random
import sys
import traceback
import warnings
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

HOUSE_STYLE = Path(__file__).parents[2] / "matplotlibrc"
os.environ["MATPLOTLIBRC"] = str(HOUSE_STYLE)
PRINT_OPTIONS = np.get_printoptions()
SILENT_COMPARISONS = ("allclose", "array_equal", "isclose")


@dataclass
class Result:
    """What one cell gave: printed text, the value of its last expression, figures as SVG, and the error."""

    text: str = ""
    value: object = None
    figures: list = field(default_factory=list)
    error: str | None = None
    line: int | None = None

    @property
    def shown(self) -> str:
        """The text that the reader sees, figures aside."""
        value = "" if self.value is None or self.figures else repr(self.value)
        return "\n".join(part.rstrip("\n") for part in (self.text, value, self.error or "") if part)


class Calls:
    """Records which of the watched functions a cell enters, directly or as a callable that it passed in."""

    def __init__(self, path: str, functions: dict[str, object]):
        self.path = path
        self.names = {function.__code__: name for name, function in functions.items()}
        self.called: set[str] = set()
        self.arguments: list[ast.expr] = []

    @contextlib.contextmanager
    def during(self, tree: ast.AST):
        if len(self.called) == len(self.names):
            yield
            return
        self.arguments = [
            expression
            for call in ast.walk(tree)
            if isinstance(call, ast.Call)
            for argument in [*call.args, *(keyword.value for keyword in call.keywords)]
            for expression in ast.walk(argument)
            if isinstance(expression, ast.Name | ast.Attribute)
        ]
        before = sys.getprofile()
        sys.setprofile(self.enter)
        try:
            yield
        finally:
            sys.setprofile(before)

    def enter(self, frame, event, _):
        if event != "call" or frame.f_code not in self.names:
            return
        name = self.names[frame.f_code]
        caller = frame.f_back
        while name not in self.called and caller is not None:
            if caller.f_code.co_filename == self.path:
                if caller is frame.f_back or any(self.is_passed(node, caller, frame.f_code) for node in self.arguments):
                    self.called.add(name)
                return
            caller = caller.f_back

    @staticmethod
    def is_passed(node: ast.expr, caller, code) -> bool:
        trail = []
        while isinstance(node, ast.Attribute):
            trail.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name):
            return False
        value = caller.f_locals.get(node.id, caller.f_globals.get(node.id))
        for attribute in reversed(trail):
            value = getattr(value, attribute, None)
        return getattr(value, "__code__", None) is code


class Runner:
    """Executes the cells of one page in one namespace."""

    def __init__(self, path: str, functions: dict[str, object] | None = None):
        self.path = str(path)
        self.namespace = {"__name__": "__main__"}
        self.calls = Calls(self.path, functions or {})
        reset_state()

    def run(self, source: str, first_line: int) -> Result:
        """Run one cell, whose first line of code stands on `first_line` of the page."""
        result, printed, complaints = Result(), io.StringIO(), io.StringIO()
        try:
            tree = parse(source, self.path, first_line)
            last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
            with (
                contextlib.redirect_stdout(printed),
                contextlib.redirect_stderr(complaints),
                strict_warnings(),
                self.calls.during(ast.Module([*tree.body, *([last] if last else [])], [])),
            ):
                exec(compile(tree, self.path, "exec"), self.namespace)
                if last:
                    value = eval(compile(ast.Expression(last.value), self.path, "eval"), self.namespace)
                    result.value = None if source.rstrip().endswith(";") else value
            with strict_warnings():
                result.figures = draw_figures()
            if complaints.getvalue():
                raise RuntimeError(f"the cell wrote to stderr: {complaints.getvalue().strip()}")
        except Exception as error:
            frames = [entry for entry in traceback.extract_tb(error.__traceback__) if entry.filename == self.path]
            result.error = f"{type(error).__name__}: {error.msg if isinstance(error, SyntaxError) else error}"
            result.line = frames[-1].lineno if frames else getattr(error, "lineno", None) or first_line
        result.text = printed.getvalue()
        return result

    def evaluate(self, expression: str) -> object:
        return eval(compile(expression.strip(), self.path, "eval"), self.namespace)


def reset_state() -> None:
    """Give a page the state of a fresh process."""
    np.set_printoptions(**PRINT_OPTIONS)
    np.seterr(divide="warn", over="warn", under="ignore", invalid="warn")
    np.random.seed(0)
    random.seed(0)
    if plt := sys.modules.get("matplotlib.pyplot"):
        plt.close("all")
        sys.modules["matplotlib"].rcdefaults()
        sys.modules["matplotlib"].rc_file(HOUSE_STYLE)


def draw_figures() -> list[str]:
    """The open figures as SVG, then closed."""
    plt = sys.modules.get("matplotlib.pyplot")
    drawn = []
    for number in plt.get_fignums() if plt else []:
        buffer = io.StringIO()
        plt.figure(number).savefig(buffer, format="svg", bbox_inches="tight", metadata={"Date": None})
        drawn.append(buffer.getvalue())
    if plt:
        plt.close("all")
    return drawn


@contextlib.contextmanager
def strict_warnings():
    """Warnings are errors; deprecations inside other libraries are not the page's fault."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for category in (DeprecationWarning, PendingDeprecationWarning):
            warnings.filterwarnings("ignore", category=category, module=r"(?!__main__)")
        yield


def parse(source: str, path: str, first_line: int) -> ast.Module:
    """The cell's syntax tree with the page's line numbers; a comparison that asserts nothing is refused."""
    try:
        tree = ast.parse(source, path)
    except SyntaxError as error:
        error.lineno = (error.lineno or 1) + first_line - 1
        raise
    ast.increment_lineno(tree, first_line - 1)
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            name = ast.unparse(node.value.func).rpartition(".")[2]
            if name in SILENT_COMPARISONS:
                raise SyntaxError(f"a bare {name}(...) compares without asserting", (path, node.lineno, None, None))
    return tree
