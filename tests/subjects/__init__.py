"""Each public function as the properties see it, one module for each family."""

import importlib
import pkgutil

SUBJECTS = {}
for _, family, _ in pkgutil.iter_modules(__path__):
    if family != "base":
        SUBJECTS |= importlib.import_module(f"subjects.{family}").SUBJECTS
