"""Each public function as the properties see it, one module for each family.

`OTHERS` are the public functions that take no arrays of queries and keys, each with what it takes instead.
"""

import importlib
import pkgutil

SUBJECTS = {}
OTHERS = {}
for _, family, _ in pkgutil.iter_modules(__path__):
    if family != "base":
        module = importlib.import_module(f"subjects.{family}")
        SUBJECTS |= module.SUBJECTS
        OTHERS |= getattr(module, "OTHERS", {})
