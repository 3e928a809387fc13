"""``{val}``: a number in prose, shown as written and compared with its expression."""

import re

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxRole

from . import record
from .client import client_of
from .compare import value_mismatch

FORM = re.compile(r"(?P<shown>[^<]+?)\s*<(?P<expression>.+)>", re.DOTALL)


class Val(SphinxRole):
    def run(self):
        line = record.line_of(self.env, self.text, self.lineno)
        form, client = FORM.fullmatch(self.text), client_of(self.inliner.document)
        if form is None or client is None:
            why = "needs the form shown <expression>" if client else "works on pages with cells only"
            record.fail(self.env, "val", f"{{val}} {self.text}: {why}", line)
            return [nodes.inline(self.text, self.text)], []
        shown, expression = form["shown"], form["expression"]
        try:
            why = value_mismatch(shown, client.runner.evaluate(expression))
        except Exception as error:
            why = f"{type(error).__name__}: {error}"
        if why:
            record.fail(self.env, "val", f"{{val}} {expression}: {why}", line)
        else:
            record.page(self.env).values += 1
        return [value_node(shown)], []


def value_node(shown: str) -> nodes.inline:
    node = nodes.inline(shown, "", classes=["val"])
    mantissa, e, exponent = shown.partition("e")
    if e and re.fullmatch(r"[+-]?\d+", exponent):
        power = str(int(exponent)).replace("-", "\N{MINUS SIGN}")
        node += [nodes.Text(f"{mantissa} × 10"), nodes.superscript("", power)]
    else:
        node += nodes.Text(re.sub(r"^-(?=[\d.])", "\N{MINUS SIGN}", shown))
    node += nodes.inline("", " (recomputed)", classes=["visually-hidden"])
    return node


def setup(app: Sphinx) -> dict:
    app.add_role("val", Val())
    return {"parallel_read_safe": True, "parallel_write_safe": True}
