"""What every test can ask for: the array libraries, the public cases, and the comparison with strangers."""

import json
import math
import pathlib
import sys

import hypothesis
import numpy as np
import pytest
from libraries import Library, missing
from oracles.records import Records

HERE = pathlib.Path(__file__).parent
CASES = HERE / "cases.json"
collect_ignore = ["schedules/ring_processes.py"]  # a program that tests start; it needs torch

ORDINARY = hypothesis.settings(
    derandomize=True,
    database=None,
    deadline=None,
    max_examples=25,
    suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture],
)
hypothesis.settings.register_profile("softlookup", ORDINARY)
hypothesis.settings.register_profile("mutate", ORDINARY, phases=[hypothesis.Phase.explicit, hypothesis.Phase.generate])
hypothesis.settings.load_profile("softlookup")


def pytest_addoption(parser):
    parser.addoption("--record", action="store_true", help="write docs/_data/oracles.json from this run")


def pytest_configure(config):
    config.addinivalue_line("markers", "claims(*ids): the cases of tests/cases.json that the test holds")
    config.addinivalue_line("markers", "browser: needs the built site, a browser and the extra `browser`")
    config.addinivalue_line("markers", "slow: takes minutes together with the others, for `pytest tests/site` by hand")
    config.stash[Records.KEY] = Records(recording=config.getoption("--record"))


def pytest_sessionfinish(session, exitstatus):
    if exitstatus == 0:
        session.config.stash[Records.KEY].save()


def pytest_runtest_setup(item):
    """Skip what needs a library that is not installed; from here, all its skips are reported in one line."""
    parameters = item.callspec.params if hasattr(item, "callspec") else {}
    wanted = {parameters.get(fixture) for fixture in ("xp", "other_xp", "autograd")}
    wanted |= {"torch", "jax"} & set(getattr(item, "fixturenames", ()))
    for name in wanted - {None}:
        if reason := missing(name):
            pytest.skip(reason)


@pytest.fixture(autouse=True)
def floating_point_errors_raise():
    """Underflow is how a weight becomes zero; every other floating point event is a fault."""
    with np.errstate(divide="raise", over="raise", invalid="raise", under="ignore"):
        yield


@pytest.fixture(scope="module", autouse=True)
def compiled_programs_are_let_go():
    """JAX keeps each program that it compiled, gigabytes of them in a whole run; few serve a second file."""
    yield
    if "jax" in sys.modules:
        sys.modules["jax"].clear_caches()


@pytest.fixture(params=["numpy-readonly", "array-api-strict", "torch", "jax"])
def xp(request):
    """Each array library in turn; NumPy's arrays are read-only, those of the property tests are not."""
    lib = Library(request.param)
    with lib.active():
        yield lib


@pytest.fixture(params=["numpy", "jax-32bit"])
def other_xp(request):
    """The same libraries in another mode: arrays that may be written to, and JAX without numbers of 64 bits."""
    lib = Library(request.param)
    with lib.active():
        yield lib


@pytest.fixture
def other(xp):
    """An array library that is not `xp`."""
    return Library("array-api-strict" if xp.name.startswith("numpy") else "numpy")


@pytest.fixture(params=["torch", "jax"])
def autograd(request):
    """Each library with automatic differentiation, in double precision."""
    lib = Library(request.param)
    with lib.active():
        yield lib


@pytest.fixture
def torch():
    return Library("torch").module


@pytest.fixture
def jax():
    lib = Library("jax")
    with lib.active():
        yield lib.module


@pytest.fixture
def agree(request):
    """Compare with a stranger: `agree(ours, theirs, function=..., stranger=..., version=..., dtype=...)`."""
    return request.config.stash[Records.KEY].agree


@pytest.fixture(scope="session")
def case():
    """`case("M01")` is a case of cases.json with its numbers as floats."""
    cases = json.loads(CASES.read_text(encoding="utf-8"))["claimed"]
    return lambda name: as_numbers(cases[name])


def as_numbers(value):
    """JSON has no infinities and no NaN: they are written as words."""
    if isinstance(value, dict):
        return {key: as_numbers(item) for key, item in value.items()}
    if isinstance(value, list):
        return [as_numbers(item) for item in value]
    return {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}.get(value, value) if isinstance(value, str) else value
