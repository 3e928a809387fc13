"""What every test can ask for: the array libraries, the public cases, and the comparison with strangers."""

import json
import math
import pathlib

import hypothesis
import numpy as np
import pytest
from libraries import NAMES, Library, missing
from oracles.records import Records

HERE = pathlib.Path(__file__).parent
CASES = HERE / "cases.json"

hypothesis.settings.register_profile(
    "softlookup",
    derandomize=True,
    database=None,
    deadline=None,
    max_examples=40,
    suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture],
)
hypothesis.settings.load_profile("softlookup")


def pytest_addoption(parser):
    parser.addoption("--record", action="store_true", help="write docs/_data/oracles.json from this run")


def pytest_configure(config):
    config.addinivalue_line("markers", "claims(*ids): the cases of tests/cases.json that the test holds")
    config.stash[Records.KEY] = Records(recording=config.getoption("--record"))


def pytest_sessionfinish(session, exitstatus):
    if exitstatus == 0:
        session.config.stash[Records.KEY].save()


def library(name):
    """The library of that name, or a skip that says what is missing."""
    if reason := missing(name):
        pytest.skip(reason)
    return Library(name)


@pytest.fixture(autouse=True)
def floating_point_errors_raise():
    """Underflow is how a weight becomes zero; every other floating point event is a fault."""
    with np.errstate(divide="raise", over="raise", invalid="raise", under="ignore"):
        yield


@pytest.fixture(params=[name for name in NAMES if name != "jax-32bit"])
def xp(request):
    """Each array library in turn."""
    lib = library(request.param)
    with lib.active():
        yield lib


@pytest.fixture(params=NAMES)
def any_xp(request):
    """The same and JAX without numbers of 64 bits."""
    lib = library(request.param)
    with lib.active():
        yield lib


@pytest.fixture
def other(xp):
    """An array library that is not `xp`."""
    return Library("array-api-strict" if xp.name.startswith("numpy") else "numpy")


@pytest.fixture(params=["torch", "jax"])
def autograd(request):
    """Each library with automatic differentiation, in double precision."""
    lib = library(request.param)
    with lib.active():
        yield lib


@pytest.fixture
def torch():
    return library("torch").module


@pytest.fixture
def jax():
    lib = library("jax")
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
