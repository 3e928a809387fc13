"""Soft Lookup: a reference implementation of attention and its variants."""

from softlookup import lookup, masks, normalizers, scores

__all__ = ["__version__", "lookup", "masks", "normalizers", "scores"]
__version__ = "0.1.0"
