"""Implementations that nobody here wrote, and the record of how closely they agree with ours."""
