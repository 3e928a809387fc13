"""Page = module = test: one topic, three files, the same public names in each, and families that import in order."""

import ast
import importlib
import json
from pathlib import Path

import pytest
from book.tests import own_test

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "softlookup"
FAMILIES = {
    family["family"]: family["topics"] for family in json.loads((ROOT / "docs/_data/families.json").read_text())
}
MODULES = {f"{path.parent.name}/{path.stem}": path for path in SOURCE.glob("*/*.py") if not path.stem.startswith("__")}
PAGES = {f"{path.parent.name}/{path.stem}": path for path in ROOT.glob("docs/[a-z]*/*.md") if path.stem != "index"}
TESTS = {
    f"{path.parent.name}/{path.stem.removeprefix('test_')}": path
    for path in ROOT.glob("tests/*/test_*.py")
    if path.parent.name in FAMILIES
}
PYTHON = [
    path for folder in ("docs", "src", "tests") for path in (ROOT / folder).rglob("*.py") if "_build" not in path.parts
]
SILENT_COMPARISONS = ("allclose", "array_equal", "isclose")


def public(topic: str) -> list[str]:
    return importlib.import_module(f"softlookup.{topic.replace('/', '.')}").__all__


def test_page_module_and_test_exist_together():
    assert set(PAGES) == set(MODULES) == set(TESTS)
    assert MODULES


@pytest.mark.parametrize("topic", MODULES)
def test_topic_is_on_the_map(topic):
    family, name = topic.split("/")
    assert name in FAMILIES[family]


@pytest.mark.parametrize("topic", MODULES)
def test_public_names_are_the_functions_that_the_module_defines(topic):
    defined = [
        node.name
        for node in ast.parse(MODULES[topic].read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")
    ]
    assert sorted(public(topic)) == sorted(defined)


@pytest.mark.parametrize("family", sorted({topic.split("/")[0] for topic in MODULES}))
def test_a_family_exports_the_names_of_its_topics(family):
    package = importlib.import_module(f"softlookup.{family}")
    names = [name for topic in MODULES if topic.startswith(f"{family}/") for name in public(topic)]
    assert sorted(package.__all__) == sorted(names)
    assert all(callable(getattr(package, name)) for name in names)


@pytest.mark.parametrize("topic", MODULES)
def test_each_public_function_has_a_test_of_its_name(topic):
    text = TESTS[topic].read_text(encoding="utf-8")
    assert [name for name in public(topic) if not own_test(text, name)] == []


@pytest.mark.parametrize("topic", MODULES)
def test_a_family_imports_only_itself_earlier_families_and_the_shared_modules(topic):
    family = topic.split("/")[0]
    later = list(FAMILIES)[list(FAMILIES).index(family) + 1 :]
    for node in ast.walk(ast.parse(MODULES[topic].read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [alias.name for alias in node.names] + [getattr(node, "module", None) or ""]
            parts = {part for name in names for part in name.split(".")}
            assert not parts & set(later), f"{topic} imports a later family on line {node.lineno}"


def test_softlookup_imports_without_matplotlib():
    import subprocess
    import sys

    code = "import sys, softlookup, softlookup.lookup; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("path", PYTHON, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_comparison_asserts(path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            name = ast.unparse(node.value.func).rpartition(".")[2]
            assert name not in SILENT_COMPARISONS, f"{path.name}:{node.lineno}: a bare {name}(...) asserts nothing"


def test_every_recorded_oracle_is_a_public_function():
    names = {f"{topic.split('/')[0]}.{name}" for topic in MODULES for name in public(topic)}
    recorded = json.loads((ROOT / "docs/_data/oracles.json").read_text(encoding="utf-8"))
    assert {entry["function"] for entry in recorded} <= names
