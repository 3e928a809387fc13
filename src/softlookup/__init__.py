"""Soft Lookup: a reference implementation of attention and its variants."""

from softlookup import lookup, scores

__all__ = ["__version__", "lookup", "scores"]
__version__ = "0.1.0"
