"""Where a function is tested: the file of its topic, and the class or the first test of its name."""

import re
from pathlib import Path

from docutils import nodes
from sphinx.environment import BuildEnvironment


def tests_of(env: BuildEnvironment, function: str, topic: str) -> list[nodes.Node]:
    """Words for the tests of ``family.name``, linked where the repository is known; nothing without the file."""
    family, _, name = function.partition(".")
    path = Path(env.srcdir).parent / "tests" / family / f"test_{topic}.py"
    if not path.exists():
        return []
    env.note_dependency(str(path))
    shown = f"tests/{family}/test_{topic}.py"
    file = nodes.literal("", shown)
    if url := env.config.book_repository_url:
        file = nodes.reference("", "", file, refuri=f"{url}/blob/main/{shown}")
    own = own_test(path.read_text(encoding="utf-8"), name)
    return [file, *([nodes.Text(", "), nodes.literal("", own)] if own else [])]


def own_test(text: str, name: str) -> str:
    camel = "".join(part.capitalize() for part in name.split("_"))
    found = re.search(rf"^class (Test{camel})\b|^(?:    )?def (test_{name}(?:_\w+)?)\(", text, re.MULTILINE)
    return (found[1] or found[2]) if found else ""
