"""Every public function is called by a cell of its own topic's page, and has one anchor there."""

import re

from docutils import nodes
from sphinx.application import Sphinx

from . import record
from .client import topic_functions


def check(app: Sphinx, doctree: nodes.document) -> None:
    env = app.env
    family = env.docname.partition("/")[0]
    lines = record.source_lines(env)
    for name in topic_functions(env):
        anchor = f"({family}.{name})="
        places = [number for number, line in enumerate(lines, 1) if line.strip() == anchor]
        if len(places) != 1:
            record.fail(env, "anchor", f"{anchor} stands {len(places)} times on its page", (places or [1])[-1])
        if name not in record.page(env).called:
            record.fail(env, "uncalled", f"{family}.{name} is never called by a cell of its page", (places or [1])[0])
    for number, line in enumerate(lines, 1):
        if (match := re.fullmatch(rf"\({family}\.(\w+)\)=", line.strip())) and match[1] not in topic_functions(env):
            record.fail(env, "anchor", f"{line.strip()} names no public function of this topic", number)


def setup(app: Sphinx) -> dict:
    app.connect("doctree-read", check)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
