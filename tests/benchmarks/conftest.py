"""The table of a benchmark run: printed at its end, and written to `docs/_data/speed.json` by `--record`."""

import datetime as dt
import importlib.util
import json
import os
import pathlib
import platform
from dataclasses import dataclass, field

import numpy as np
import pytest
from libraries import missing

FILE = pathlib.Path(__file__).parents[2] / "docs" / "_data" / "speed.json"
RATIOS = ("limit", "torch", "textbook", "jax")
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")
KERNELS = (
    "OPENBLAS_CORETYPE",
    "OPENBLAS_L2_SIZE",
    "MKL_ENABLE_INSTRUCTIONS",
    "NPY_DISABLE_CPU_FEATURES",
    "ATEN_CPU_CAPABILITY",
)


@dataclass
class Table:
    """What a run measured: times in seconds, ratios to them, and bytes beyond the result."""

    KEY = pytest.StashKey()
    runs: list = field(default_factory=list)
    others: list = field(default_factory=list)

    def lines(self):
        yield f"{'run':28}{'threads':>8}{'ms':>8}" + "".join(f"{name:>10}" for name in RATIOS) + f"{'MiB':>8}"
        for run in self.runs:
            ratios = "".join(f"{run[name]:10.2f}" if name in run else " " * 10 for name in RATIOS)
            yield f"{run['run']:28}{run['threads']:8}{1e3 * run['seconds']:8.0f}{ratios}{run['extra'] / 2**20:8.1f}"
        yield from (f"{other['what']}: {other['ratio']:.2f}" for other in self.others)


def round_to(number, digits):
    return float(f"{number:.{digits}g}")


def versions():
    names = {"Python": platform.python_version(), "NumPy": np.__version__}
    blas = np.show_config(mode="dicts")["Build Dependencies"]["blas"]
    names[blas["name"]] = blas["version"]
    return names | {name: importlib.import_module(name).__version__ for name in ("torch", "jax") if not missing(name)}


def machine():
    import cpuinfo

    processor = cpuinfo.get_cpu_info().get("brand_raw", platform.machine())
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else None
    simd = np.show_config(mode="dicts")["SIMD Extensions"].get("found", [])
    return {"processor": processor, "cores": os.cpu_count(), "memory": memory, "instructions": simd}


def environment(names):
    return {name: os.environ.get(name) for name in names}


def pytest_configure(config):
    config.stash[Table.KEY] = Table()


def pytest_terminal_summary(terminalreporter, config):
    table = config.stash[Table.KEY]
    if table.runs:
        terminalreporter.section("speed: how many times as long the others take")
        for line in table.lines():
            terminalreporter.write_line(line)


def pytest_sessionfinish(session, exitstatus):
    table = session.config.stash[Table.KEY]
    if exitstatus != 0 or not session.config.getoption("--record") or not table.runs:
        return
    rounded = [
        [{name: round_to(x, 2) if isinstance(x, float) else x for name, x in row.items()} for row in rows]
        for rows in (table.runs, table.others)
    ]
    record = {
        "date": dt.datetime.now(dt.UTC).date().isoformat(),
        "machine": machine(),
        "versions": versions(),
        "threads": environment(THREADS),
        "kernels": environment(KERNELS),
        "runs": rounded[0],
        "others": rounded[1],
    }
    FILE.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8", newline="\n")


@pytest.fixture
def table(request):
    return request.config.stash[Table.KEY]
