"""Where order comes from."""

from softlookup.positions.absolute import (
    learned_positions,
    padded_positions,
    sinusoidal,
    sinusoidal_shift,
)
from softlookup.positions.distance_bias import (
    alibi,
    alibi_slopes,
    fire,
    forgetting,
    forgetting_by_totals,
    kerple_log,
    kerple_power,
    sandwich,
)
from softlookup.positions.relative import (
    clipped_distance,
    disentangled,
    read_distances,
    shaw,
    shaw_values,
    skew,
    transformer_xl,
)
from softlookup.positions.rotary import (
    change_pairing,
    proportional_frequencies,
    rotary,
    rotary_frequencies,
    rotary_vjp,
    rotate_pairs,
    section_angles,
)

__all__ = [
    "alibi",
    "alibi_slopes",
    "change_pairing",
    "clipped_distance",
    "disentangled",
    "fire",
    "forgetting",
    "forgetting_by_totals",
    "kerple_log",
    "kerple_power",
    "learned_positions",
    "padded_positions",
    "proportional_frequencies",
    "read_distances",
    "rotary",
    "rotary_frequencies",
    "rotary_vjp",
    "rotate_pairs",
    "sandwich",
    "section_angles",
    "shaw",
    "shaw_values",
    "sinusoidal",
    "sinusoidal_shift",
    "skew",
    "transformer_xl",
]
