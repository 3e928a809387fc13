"""Train the language model of this family: ``python -m softlookup.circuits --help``."""

import argparse
import importlib
import json
import pathlib
import pkgutil
import time
from collections.abc import Callable

import numpy as np

from softlookup import circuits
from softlookup.circuits import induction, language_model

WATCHED = (1, 50, *range(100, 500, 25), *range(500, 1000, 100), *range(1000, 4001, 500))
"""The steps after which `watched` measures."""


def trained(seed: int, steps: int) -> language_model.Model:
    """Train one model from its seed, and say how it goes."""
    start = time.perf_counter()

    def report(step: int, model: language_model.Model, loss: float) -> None:
        if step % max(steps // 10, 1) == 0:
            print(f"seed {seed}  step {step:5}  loss {loss:.4f}  {time.perf_counter() - start:6.1f} s", flush=True)

    return language_model.train(np.random.default_rng(seed), steps=steps, report=report)


def halved(model: language_model.Model) -> language_model.Model:
    """Return the model as it is shipped, in half precision."""
    return {name: x.astype(np.float16) for name, x in model.items()}


def measures(topics: list[str]) -> dict[str, Callable[[language_model.Model], dict[str, float]]]:
    """Return what each of the topics measures on a model, if it measures anything."""
    modules = {name: importlib.import_module(f"{circuits.__name__}.{name}") for name in topics}
    return {name: module._over_seeds for name, module in modules.items() if hasattr(module, "_over_seeds")}


def measured(model: language_model.Model, topics: list[str]) -> dict[str, dict[str, float]]:
    """Measure a model as it is shipped: rounded to half precision."""
    model = {name: x.astype(np.float32) for name, x in halved(model).items()}
    return {name: measure(model) for name, measure in measures(topics).items()}


def watched(seed: int, steps: int) -> dict[str, list[float]]:
    """Train one model and measure it on the way."""
    results: dict[str, list[float]] = {}

    def report(step: int, model: language_model.Model, loss: float) -> None:
        if step in WATCHED:
            for name, number in ({"step": step} | induction._over_training(model)).items():
                results.setdefault(name, []).append(step if name == "step" else float(f"{number:.4g}"))

    language_model.train(np.random.default_rng(seed), steps=steps, report=report)
    return results


def main() -> None:
    every = [module.name for module in pkgutil.iter_modules(circuits.__path__) if module.name != "__main__"]
    parser = argparse.ArgumentParser(prog="python -m softlookup.circuits", description="Train the language model.")
    parser.add_argument("--seed", type=int, default=0, help="seed of the texts and of the first weights")
    parser.add_argument("--steps", type=int, default=4000, help="steps of training")
    parser.add_argument("--output", type=pathlib.Path, help="the file to write; weights are rounded to float16")
    parser.add_argument("--seeds", action="store_true", help="measure five models, of the seeds 0 to 4, into one file")
    parser.add_argument("--training", action="store_true", help="train one model and measure it on the way")
    parser.add_argument("--models", type=pathlib.Path, help="with --seeds: a folder that keeps the trained models")
    parser.add_argument("--topics", nargs="+", choices=every, help="with --seeds: measure these, keep the others")
    given = parser.parse_args()
    if given.training:
        output = given.output or pathlib.Path("training.json")
        output.write_text(json.dumps(watched(given.seed, given.steps), indent=1) + "\n", encoding="utf-8")
        return
    if not given.seeds:
        model = trained(given.seed, given.steps)
        print(json.dumps(measured(model, ["language_model"]), indent=1))
        np.savez_compressed(given.output or "language_model.npz", **halved(model))
        return
    topics, output = given.topics or every, given.output or pathlib.Path("seeds.json")
    kept = json.loads(output.read_text(encoding="utf-8")) if output.exists() else {}
    results = {topic: numbers for topic, numbers in kept.items() if topic not in topics}
    for seed in range(5):
        file = given.models and given.models / f"seed{seed}.npz"
        if file and file.exists():
            with np.load(file) as arrays:
                model = dict(arrays)
        else:
            model = trained(seed, given.steps)
            if file:
                np.savez_compressed(file, **model)
        for topic, numbers in measured(model, topics).items():
            for quantity, number in numbers.items():
                results.setdefault(topic, {}).setdefault(quantity, []).append(float(f"{number:.6g}"))
    output.write_text(json.dumps(dict(sorted(results.items())), indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
