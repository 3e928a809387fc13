"""What a trained head computes."""

__all__ = []
