"""The functions of the family positions, as the properties see them."""

SUBJECTS = {}
