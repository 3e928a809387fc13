"""The functions of the family heads, as the properties see them."""

SUBJECTS = {}
