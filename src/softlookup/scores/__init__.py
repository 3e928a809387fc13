"""How a query is compared with a key."""

from softlookup.scores.softcap import capped, softcap, softcap_vjp
from softlookup.scores.temperature import log_length, position_temperature, row_scaled, scalable_softmax

__all__ = [
    "capped",
    "log_length",
    "position_temperature",
    "row_scaled",
    "scalable_softmax",
    "softcap",
    "softcap_vjp",
]
