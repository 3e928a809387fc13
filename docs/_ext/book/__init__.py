"""The build of the book: pages run in this process, and every number on them is checked.

Each module has one purpose and a ``setup`` of its own; this one joins them.
"""

import hashlib
from pathlib import Path

from sphinx.application import Sphinx

PARTS = (
    "record",
    "client",
    "expect",
    "val",
    "equal",
    "marks",
    "boxes",
    "prose",
    "figures",
    "widgets",
    "katex",
    "calls",
    "source",
    "levels",
    "tables",
    "reference",
    "downloads",
    "names",
    "links",
    "around",
    "meta",
    "site",
    "bundle",
    "progress",
)


def fingerprint(srcdir: Path) -> str:
    """Hash of everything under docs that shapes a page besides the page: a change rebuilds all pages."""
    files = sorted([*srcdir.glob("_ext/**/*.py"), *srcdir.glob("_data/*"), *srcdir.glob("matplotlibrc")])
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


def setup(app: Sphinx) -> dict:
    app.add_config_value("book_fingerprint", fingerprint(Path(app.srcdir)), "env", str)
    app.add_config_value("book_families", [], "env", list)
    app.add_config_value("book_title", "", "html", str)
    app.add_config_value("book_repository_url", "", "env", str)
    app.add_config_value("book_report_url", "", "html", str)
    for part in PARTS:
        app.setup_extension(f"{__name__}.{part}")
    return {"version": "1", "env_version": 1, "parallel_read_safe": True, "parallel_write_safe": True}
