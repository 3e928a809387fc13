"""How scores become a budget."""

from softlookup.normalizers.pointwise import relu, sigmoid, sigmoid_vjp, silu, squared_relu
from softlookup.normalizers.sampling import gumbel_noise, gumbel_softmax, straight_through
from softlookup.normalizers.sinks import (
    append_item,
    sink_softmax,
    sink_softmax_vjp,
    softmax_plus_one,
    softpick,
)
from softlookup.normalizers.sparse_simplex import entmax, entmax15, entmax_vjp, sparsemax, sparsemax_vjp
from softlookup.normalizers.stick_breaking import stick_breaking, stick_remainder
from softlookup.normalizers.transport import sinkhorn, softmax_over_queries

__all__ = [
    "append_item",
    "entmax",
    "entmax15",
    "entmax_vjp",
    "gumbel_noise",
    "gumbel_softmax",
    "relu",
    "sigmoid",
    "sigmoid_vjp",
    "silu",
    "sink_softmax",
    "sink_softmax_vjp",
    "sinkhorn",
    "softmax_over_queries",
    "softmax_plus_one",
    "softpick",
    "sparsemax",
    "sparsemax_vjp",
    "squared_relu",
    "stick_breaking",
    "stick_remainder",
    "straight_through",
]
