"""Run the tests: ``python tests``; further arguments go to pytest.

All tests are spread over the cores of the machine, a file at a time, since some share a built book; a choice of them
starts faster in one process. ``python tests --benchmarks`` measures times instead, with linear algebra on one thread
unless the environment says otherwise.
"""

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "docs"))

import _bootstrap

ALL = ("-n", "auto", "--dist", "loadfile")
BENCHMARKS = ("-o", "python_files=bench_*.py", "tests/benchmarks")
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")


def main(arguments):
    _bootstrap.speak_utf8()
    if "--benchmarks" in arguments:
        os.environ.update({name: os.environ.get(name, "1") for name in THREADS})
        others = [argument for argument in arguments if argument != "--benchmarks"]
        return _bootstrap.run(_bootstrap.prepare("benchmarks"), "pytest", *BENCHMARKS, *from_the_top(others))
    return _bootstrap.run(_bootstrap.prepare("test"), "pytest", *(from_the_top(arguments) or ALL))


def from_the_top(arguments):
    """The arguments, with paths that were typed in another folder made absolute."""
    if Path.cwd() == _bootstrap.ROOT:
        return arguments
    options = ["", *arguments]
    return [
        os.path.abspath(argument) if names_a_path(argument) and not before.startswith("-") else argument
        for before, argument in zip(options, arguments)
    ]


def names_a_path(argument):
    return not argument.startswith("-") and Path(argument.partition("::")[0]).exists()


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
