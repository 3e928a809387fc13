"""Soft Lookup: a reference implementation of attention and its variants."""

from softlookup import lookup

__all__ = ["__version__", "lookup"]
__version__ = "0.1.0"
