"""Results of strangers that are too heavy to install for a test run, kept as small files with their provenance.

``python tests/oracles/freeze.py`` writes ``frozen/*.npz`` (it needs the extra `freeze`), or only the cases that are
named after it; ``--check`` writes nothing and says how far a stranger's result has moved. A test compares the code
below with the code that is kept in each file.
"""

import importlib.metadata
import inspect
import json
import pathlib
import platform
import sys

import numpy as np

FOLDER = pathlib.Path(__file__).parent / "frozen"
CASES = {}


def case(*packages):
    """Register a function that returns the arrays of one file."""

    def register(function):
        CASES[function.__name__] = function, packages
        return function

    return register


class Frozen(dict):
    """The arrays of one file, and the version of the stranger that computed them."""

    def __init__(self, name):
        with np.load(FOLDER / f"{name}.npz", allow_pickle=False) as file:
            super().__init__(file)
        self.meta = json.loads(str(self.pop("meta")))
        self.version = ", ".join(f"{name} {version}" for name, version in self.meta["packages"].items())


def frozen(name):
    return Frozen(name)


@case("statsmodels")
def statsmodels_line():
    """Local constant regression with a Gaussian kernel on a line."""
    from statsmodels.nonparametric.kernel_regression import KernelReg

    rng = np.random.default_rng(0)
    k, v, q, h = rng.uniform(0, 6, size=(24, 1)), rng.normal(size=(24, 1)), np.linspace(0, 6, 9)[:, None], 0.62
    out, _ = KernelReg(v[:, 0], k[:, 0], "c", reg_type="lc", bw=[h]).fit(q[:, 0])
    return {"q": q, "k": k, "v": v, "h": np.array(h), "out": out[:, None]}


@case("statsmodels")
def statsmodels_plane():
    """Local constant regression with a product of two Gaussian kernels of one width."""
    from statsmodels.nonparametric.kernel_regression import KernelReg

    rng = np.random.default_rng(1)
    k, v, q, h = rng.normal(size=(20, 2)), rng.normal(size=(20, 1)), rng.normal(size=(5, 2)), 0.8
    out, _ = KernelReg(v[:, 0], k, "cc", reg_type="lc", bw=[h, h]).fit(q)
    return {"q": q, "k": k, "v": v, "h": np.array(h), "out": out[:, None]}


@case("scikit-learn")
def sklearn_kernel_density():
    """The density around one point, relative to its height there: the kernel over its value at zero."""
    from sklearn.neighbors import KernelDensity

    u = np.array([0.0, 0.125, 0.5, 0.75, 0.9375, 1.25, 2.5])
    arrays = {"u": u}
    for name in ("gaussian", "tophat", "epanechnikov", "exponential", "linear"):
        log_density = KernelDensity(kernel=name, bandwidth=0.5).fit([[0.0]]).score_samples(0.5 * u[:, None])
        arrays[name] = np.exp(log_density - log_density[0])
    return arrays


@case("scikit-learn")
def sklearn_nearest_neighbors():
    """The mean of the three nearest values, and their average with weights exp(-distance / temperature)."""
    from sklearn.neighbors import KNeighborsRegressor

    rng = np.random.default_rng(2)
    q, k, v, temperature = rng.normal(size=(6, 2)), rng.normal(size=(15, 2)), rng.normal(size=(15, 2)), 0.4
    hard = KNeighborsRegressor(3).fit(k, v).predict(q)
    soft = KNeighborsRegressor(3, weights=lambda d: np.exp(-d / temperature)).fit(k, v).predict(q)
    return {"q": q, "k": k, "v": v, "temperature": np.array(temperature), "hard": hard, "soft": soft}


@case("fla-core")
def fla_stick_breaking():
    """Stick-breaking attention and what is left of the stick; the file is loaded alone, its package needs a GPU."""
    import importlib.util

    import torch

    name = "fla/ops/stickbreaking_attn/naive.py"
    path = next(file for file in importlib.metadata.files("fla-core") if file.as_posix() == name).locate()
    spec = importlib.util.spec_from_file_location("naive", path)
    spec.loader.exec_module(naive := importlib.util.module_from_spec(spec))
    rng = np.random.default_rng(3)
    q, k, v = (rng.normal(size=(2, 7, 3, width)) for width in (4, 4, 2))
    out, rest = naive.naive_stickbreaking_attn(*map(torch.tensor, (q, k, v)))
    return {"q": q, "k": k, "v": v, "out": out.numpy(), "rest": rest.numpy()}


@case("transformers", "torch")
def transformers_gpt_oss_sinks():
    """Attention with one learned sink for each head, as gpt-oss computes it, under a causal mask with an empty row."""
    import types

    import torch
    from transformers.models.gpt_oss.modeling_gpt_oss import eager_attention_forward

    rng = np.random.default_rng(4)
    q, k, v = (rng.normal(size=(2, heads, 5, 3)) for heads in (4, 2, 2))
    sinks, allow = rng.normal(size=4), np.tri(5, k=-1, dtype=bool)
    module = types.SimpleNamespace(sinks=torch.tensor(sinks), num_key_value_groups=2, training=False)
    blocked = torch.tensor(np.where(allow, 0.0, np.finfo(np.float64).min))[None, None]
    out, _ = eager_attention_forward(module, *map(torch.tensor, (q, k, v)), blocked, scaling=3**-0.5)
    return {"q": q, "k": k, "v": v, "sinks": sinks, "allow": allow, "out": out.transpose(1, 2).numpy()}


def source(name):
    """The code of a case as it is kept in its file."""
    return inspect.getsource(CASES[name][0])


def freeze(name):
    """Compute one case and describe where it came from."""
    function, packages = CASES[name]
    meta = {
        "packages": {package: importlib.metadata.version(package) for package in packages},
        "numpy": np.__version__,
        "python": platform.python_version(),
        "code": source(name),
    }
    return function(), meta


def main(names, check):
    """Write or check the files of these cases; the exit code says whether a result moved."""
    moved = 0
    for name in names or CASES:
        arrays, meta = freeze(name)
        if check:
            drift = max(float(np.max(np.abs(1.0 * frozen(name)[key] - value))) for key, value in arrays.items())
            moved += drift > 1e-12
            print(f"{name}: {drift:.1e}")
        else:
            FOLDER.mkdir(exist_ok=True)
            np.savez_compressed(FOLDER / f"{name}.npz", meta=np.array(json.dumps(meta)), **arrays)
    return int(moved > 0)


if __name__ == "__main__":
    arguments = [argument for argument in sys.argv[1:] if argument != "--check"]
    sys.exit(main(arguments, "--check" in sys.argv))
