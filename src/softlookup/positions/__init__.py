"""Where order comes from."""

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
    "change_pairing",
    "proportional_frequencies",
    "rotary",
    "rotary_frequencies",
    "rotary_vjp",
    "rotate_pairs",
    "section_angles",
]
