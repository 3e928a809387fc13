"""What a trained head computes."""

from softlookup.circuits.language_model import (
    adam_step,
    batch,
    cross_entropy,
    decode,
    encode,
    forward,
    generate,
    initialize,
    load_model,
    loss_and_gradient,
    repeated_letters,
    seed_results,
    tales,
    train,
)

__all__ = [
    "adam_step",
    "batch",
    "cross_entropy",
    "decode",
    "encode",
    "forward",
    "generate",
    "initialize",
    "load_model",
    "loss_and_gradient",
    "repeated_letters",
    "seed_results",
    "tales",
    "train",
]
