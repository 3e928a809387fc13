"""Every name of a variant leads to its place: names and abbreviations become entries of the index and of the search."""

import inspect
import re

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform

from .client import topic_functions
from .tables import fixed_fields


class Entries(SphinxTransform):
    """Main entries of the index, which the search puts first, at the anchor of each function of the page's topic."""

    default_priority = 400

    def apply(self, **kwargs):
        family = self.env.docname.partition("/")[0]
        entries = [
            ("single", name, nodes.make_id(f"{family}.{function}"), "main", None)
            for function, code in topic_functions(self.env).items()
            for name in names(function, inspect.getdoc(code) or "")
        ]
        if entries:
            self.document.insert(0, addnodes.index(entries=entries))


def names(function: str, docstring: str) -> list[str]:
    """The function's own name, as code and as words, and its other names; each as written and without its remark."""
    found = [function, function.replace("_", " "), function.replace("_", "-")]
    text = fixed_fields(docstring).get("Other names", "")
    for name in re.split(r"[,;]\s*(?![^()]*\))", "" if text.rstrip(".") in ("", "none") else text.rstrip(".")):
        plain = re.sub(r"``(.+?)``|:math:`(.+?)`", r"\1\2", name).strip()
        found += [plain, re.sub(r"\s*\(.*?\)", "", plain), *re.findall(r"\(([^()]+)\)", plain)]
    return list(dict.fromkeys(name for name in found if name))


def setup(app: Sphinx) -> dict:
    app.add_transform(Entries)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
