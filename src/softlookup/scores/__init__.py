"""How a query is compared with a key."""

from softlookup.scores.additive import additive, concat_additive, gat, gatv2
from softlookup.scores.qk_norm import layer_norm, normalized, rms_norm, rms_norm_heads, unit_norm
from softlookup.scores.similarity import bilinear, cosine, distance_as_dot, l2_distance, low_rank_bilinear
from softlookup.scores.softcap import capped, softcap, softcap_vjp
from softlookup.scores.temperature import log_length, position_temperature, row_scaled, scalable_softmax

__all__ = [
    "additive",
    "bilinear",
    "capped",
    "concat_additive",
    "cosine",
    "distance_as_dot",
    "gat",
    "gatv2",
    "l2_distance",
    "layer_norm",
    "log_length",
    "low_rank_bilinear",
    "normalized",
    "position_temperature",
    "rms_norm",
    "rms_norm_heads",
    "row_scaled",
    "scalable_softmax",
    "softcap",
    "softcap_vjp",
    "unit_norm",
]
