"""Progress of a build for people: page k of n, with seconds."""

import time

from sphinx.application import Sphinx

CLOCK = {}


def begin(app: Sphinx, env, docnames: list[str]) -> None:
    CLOCK.update(total=len(docnames), done=0, at=time.perf_counter())


def page_read(app: Sphinx, doctree) -> None:
    if not app.config.book_progress:
        return
    now = time.perf_counter()
    CLOCK["done"] += 1
    print(f"page {CLOCK['done']} of {CLOCK['total']}: {app.env.docname} ({now - CLOCK['at']:.1f} s)", flush=True)
    CLOCK["at"] = now


def setup(app: Sphinx) -> dict:
    app.add_config_value("book_progress", False, "", bool)
    app.connect("env-before-read-docs", begin)
    app.connect("doctree-read", page_read, priority=999)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
