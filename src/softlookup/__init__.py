"""Soft Lookup: a reference implementation of attention and its variants."""

from softlookup import circuits, heads, lookup, masks, normalizers, positions, schedules, scores

__all__ = ["__version__", "circuits", "heads", "lookup", "masks", "normalizers", "positions", "schedules", "scores"]
__version__ = "0.1.0"
