"""The functions of the family circuits, as the properties see them."""

SUBJECTS = {}

OTHERS = {}
