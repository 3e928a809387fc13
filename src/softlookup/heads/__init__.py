"""How several lookups share work."""

__all__ = []
