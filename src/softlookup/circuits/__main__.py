"""Train the language model of this family: ``python -m softlookup.circuits --help``."""

import argparse
import importlib
import json
import pathlib
import pkgutil
import time

import numpy as np

from softlookup import circuits
from softlookup.circuits import language_model


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


def measured(model: language_model.Model) -> dict[str, dict[str, float]]:
    """Ask each module of the family for its numbers about one model; the model is rounded as it is shipped."""
    names = [f"{circuits.__name__}.{module.name}" for module in pkgutil.iter_modules(circuits.__path__)]
    modules = [importlib.import_module(name) for name in names if not name.endswith("__main__")]
    model = {name: x.astype(np.float32) for name, x in halved(model).items()}
    return {m.__name__.rpartition(".")[2]: m._over_seeds(model) for m in modules if hasattr(m, "_over_seeds")}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m softlookup.circuits", description="Train the language model.")
    parser.add_argument("--seed", type=int, default=0, help="seed of the texts and of the first weights")
    parser.add_argument("--steps", type=int, default=4000, help="steps of training")
    parser.add_argument("--output", type=pathlib.Path, help="the file to write; the weights are rounded to float16")
    parser.add_argument("--seeds", action="store_true", help="measure five models, of the seeds 0 to 4, into one file")
    parser.add_argument("--models", type=pathlib.Path, help="with --seeds: a folder that keeps the trained models")
    given = parser.parse_args()
    if not given.seeds:
        model = trained(given.seed, given.steps)
        print(json.dumps(measured(model)["language_model"], indent=2))
        np.savez_compressed(given.output or "language_model.npz", **halved(model))
        return
    results: dict[str, dict[str, list[float]]] = {}
    for seed in range(5):
        kept = given.models and given.models / f"seed{seed}.npz"
        if kept and kept.exists():
            with np.load(kept) as file:
                model = dict(file)
        else:
            model = trained(seed, given.steps)
            if kept:
                np.savez_compressed(kept, **model)
        for topic, numbers in measured(model).items():
            for quantity, number in numbers.items():
                results.setdefault(topic, {}).setdefault(quantity, []).append(float(f"{number:.6g}"))
    text = json.dumps(results, indent=1)
    (given.output or pathlib.Path("seeds.json")).write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
