"""Break a module on purpose, one small change at a time, and list the changes that no test notices.

``python tests/mutate.py lookup/softmax lookup/attention`` works on copies of the sources in a temporary folder, put
first on the path; the tree itself is never touched. Each change is first given to the tests of the topic without
PyTorch and JAX, and what survives to those with them. ``_arrays`` and ``_checks`` face the tests of all topics.
``--pages`` builds the topic's page in place of the tests, ``--quick`` leaves PyTorch and JAX out altogether, ``--line``
takes only the changes of one line. The exit code says whether a change survived.
"""

import argparse
import ast
import copy
import multiprocessing
import os
import shutil
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

TESTS = Path(__file__).resolve().parent
SOURCE = TESTS.parent / "src"
QUICK, SLOW = ["-k", "not torch and not jax"], ["-k", "torch or jax"]
PASSED_ON = ("xp", "dtype")
TIMEOUT = 600
ELSEWHERE = 77

ARITHMETIC = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.Pow: ast.Mult}
LOGIC = {ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd, ast.And: ast.Or, ast.Or: ast.And}
COMPARISONS = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
}


def mutants(source):
    """(line, what changed, new source) for every change of a module."""
    tree = ast.parse(source)
    for path, node in walk(tree):
        for changed in changes(node):
            yield node.lineno, describe(node, changed), ast.unparse(replaced(tree, path, changed))


def walk(node, path=()):
    """Every expression and statement of the code that runs, with its place in the tree; no types, messages or names."""
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list") or is_prose(node, name):
            continue
        for i, child in enumerate(value if isinstance(value, list) else [value]):
            if isinstance(child, ast.expr | ast.stmt | ast.arguments | ast.comprehension | ast.keyword):
                place = (*path, (name, i if isinstance(value, list) else None))
                if isinstance(child, ast.expr | ast.stmt):
                    yield place, child
                yield from walk(child, place)


def is_prose(node, name):
    """Whether a field holds words rather than code: a docstring, a message, an imported or exported name."""
    if isinstance(node, ast.Import | ast.ImportFrom | ast.JoinedStr):
        return True
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Constant)
    if isinstance(node, ast.Assign):
        return isinstance(node.targets[0], ast.Name) and (name == "targets" or node.targets[0].id == "__all__")
    return isinstance(node, ast.Raise)


def changes(node):
    """What a node may become; None means that the statement is dropped."""
    match node:
        case ast.BinOp(left, op, right):
            yield from (left, right)
            if swapped := (ARITHMETIC | LOGIC).get(type(op)):
                yield ast.BinOp(left, swapped(), right)
        case ast.BoolOp(op, values):
            yield ast.BoolOp(LOGIC[type(op)](), values)
            yield from values
        case ast.UnaryOp(_, operand):
            yield operand
        case ast.Compare(left, [op], comparators):
            yield from (ast.Compare(left, [swapped()], comparators) for swapped in COMPARISONS.get(type(op), ()))
            if type(op) not in COMPARISONS:
                yield ast.UnaryOp(ast.Not(), node)
        case ast.Constant(bool() as value):
            yield ast.Constant(not value)
        case ast.Constant(int() | float() as value):
            yield ast.Constant(value + 1)
        case ast.IfExp(test, body, orelse):
            yield ast.IfExp(ast.UnaryOp(ast.Not(), test), body, orelse)
        case ast.Call(function, arguments, keywords):
            yield from calls(function, arguments, keywords)
        case ast.If(test, body, orelse):
            yield ast.If(ast.UnaryOp(ast.Not(), test), body, orelse)
            yield None
        case ast.Return(ast.expr()):
            yield ast.Return(None)
        case ast.Expr(ast.Constant()) | ast.Pass() | ast.Return() | ast.Raise():
            return
        case ast.Assign([ast.Name("__all__")]):
            return
        case ast.Expr() | ast.Assign() | ast.AugAssign() | ast.For():
            yield None


def calls(function, arguments, keywords):
    """A call without one of its keywords, with two arguments swapped, or replaced by one of its arguments."""
    for i in range(len(keywords)):
        yield ast.Call(function, arguments, keywords[:i] + keywords[i + 1 :])
    if len(arguments) == 3:
        yield ast.Call(function, [arguments[0], arguments[2], arguments[1]], keywords)
    for argument in arguments:
        if not isinstance(argument, ast.Constant | ast.Starred) and ast.unparse(argument) not in PASSED_ON:
            yield argument


def replaced(tree, path, changed):
    """A copy of the tree with another node at a place."""
    tree = copy.deepcopy(tree)
    parent = tree
    for name, i in path[:-1]:
        parent = getattr(parent, name) if i is None else getattr(parent, name)[i]
    name, i = path[-1]
    if i is None:
        setattr(parent, name, changed)
    else:
        getattr(parent, name)[i] = changed or ast.Pass()
    return ast.fix_missing_locations(tree)


def describe(before, after):
    old = ast.unparse(before).partition("\n")[0]
    return f"{old}  ->  {ast.unparse(ast.fix_missing_locations(after)) if after else '(dropped)'}".partition("\n")[0]


def survives(folder, target, text, arguments, patience=TIMEOUT):
    """Whether the tests pass with `text` as the module; raises when they did not run at all or ran something else."""
    (folder / "softlookup" / f"{target}.py").write_text(text, encoding="utf-8")
    methods = multiprocessing.get_all_start_methods()
    process = multiprocessing.get_context("fork" if "fork" in methods else "spawn").Process(
        target=run_tests, args=(str(folder), arguments)
    )
    process.start()
    process.join(patience)
    if process.is_alive():
        process.kill()
        return False
    if process.exitcode in (ELSEWHERE, 4, 5):
        raise RuntimeError(f"pytest stopped with {process.exitcode}: no test of {target} was run on the copy")
    return process.exitcode == 0


def run_tests(folder, arguments):
    """The child process: run pytest on the copy, silently, and exit with its code."""
    import pytest

    sys.path.insert(0, folder)
    os.environ["PYTHONPATH"] = folder
    with open(os.devnull, "w", encoding="utf-8") as nowhere:
        for stream in (sys.stdout, sys.stderr):
            os.dup2(nowhere.fileno(), stream.fileno())
    code = pytest.main([*arguments, "-x", "-p", "no:cacheprovider", "--assert=plain", "--hypothesis-profile=mutate"])
    loaded = sys.modules.get("softlookup")
    here = loaded is None or Path(loaded.__file__).is_relative_to(folder)
    os._exit(int(code) if here else ELSEWHERE)


def tests_of(target, pages):
    """What pytest is asked to run for a module."""
    if pages:
        return [str(TESTS / "test_book.py"), "-k", target]
    family, _, topic = target.rpartition("/")
    paths = [TESTS / family / f"test_{topic}.py"] if family else sorted(TESTS.glob("*/test_*.py"))
    return [str(path) for path in paths if family or (SOURCE / "softlookup" / path.parent.name).is_dir()]


def survivors(target, options):
    """Try every change of a module; yields those that no test noticed."""
    original = (SOURCE / "softlookup" / f"{target}.py").read_text(encoding="utf-8")
    arguments = tests_of(target, options.pages)
    stages = [arguments] if options.pages else [[*arguments, *QUICK], [*arguments, *SLOW]][: 2 - options.quick]
    with tempfile.TemporaryDirectory() as folder:
        copied = Path(folder).resolve()
        shutil.copytree(SOURCE / "softlookup", copied / "softlookup", ignore=shutil.ignore_patterns("__pycache__"))
        patience = []
        for stage in stages:
            start = time.monotonic()
            if not survives(copied, target, original, stage):
                raise RuntimeError(f"the tests of {target} fail on the module as it is")
            patience.append(min(TIMEOUT, 30 + 5 * (time.monotonic() - start)))  # a changed loop may never end
        for where, what, text in mutants(original):
            if options.line in (None, where) and all(map(partial(survives, copied, target, text), stages, patience)):
                yield where, what


def main(arguments):
    """Report the survivors of each module; the exit code says whether there were any."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("targets", nargs="+", help="modules such as lookup/softmax or _arrays")
    parser.add_argument("--pages", action="store_true", help="build the page in place of the tests")
    parser.add_argument("--quick", action="store_true", help="leave PyTorch and JAX out")
    parser.add_argument("--line", type=int, help="only the changes of this line")
    options = parser.parse_args(arguments)
    found = 0
    for target in options.targets:
        for line, what in survivors(target, options):
            found += 1
            print(f"src/softlookup/{target}.py:{line}: survived: {what}", flush=True)
    print(f"{found} survived")
    return int(found > 0)


if __name__ == "__main__":
    for module in ("hypothesis", "hypothesis.extra.numpy", "numpy", "onnx", "pytest"):
        __import__(module)
    sys.exit(main(sys.argv[1:]))
