"""The pages of the built site as parameters of tests."""

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SITE = Path(os.environ.get("SOFTLOOKUP_SITE", ROOT / "docs" / "_build" / "html")).resolve()
FAMILIES = sorted(path.name for path in (ROOT / "src" / "softlookup").iterdir() if (path / "__init__.py").exists())
PAGES = sorted(path.relative_to(SITE).as_posix() for path in SITE.rglob("*.html") if "_static" not in path.parts)
TOPICS = [name for name in PAGES if name.split("/")[0] in FAMILIES and not name.endswith("/index.html")]

UNBUILT = None if PAGES else "the site is not built: run `python docs`"

every_page = pytest.mark.parametrize("name", PAGES or ["index.html"])
every_topic = pytest.mark.parametrize("name", TOPICS or ["index.html"])
