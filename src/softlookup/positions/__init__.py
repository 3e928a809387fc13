"""Where order comes from."""

__all__ = []
