"""How scores become a budget."""

from softlookup.normalizers.sampling import gumbel_noise, gumbel_softmax, straight_through
from softlookup.normalizers.sinks import (
    append_item,
    sink_softmax,
    sink_softmax_vjp,
    softmax_plus_one,
    softpick,
)
from softlookup.normalizers.stick_breaking import stick_breaking, stick_remainder

__all__ = [
    "append_item",
    "gumbel_noise",
    "gumbel_softmax",
    "sink_softmax",
    "sink_softmax_vjp",
    "softmax_plus_one",
    "softpick",
    "stick_breaking",
    "stick_remainder",
    "straight_through",
]
