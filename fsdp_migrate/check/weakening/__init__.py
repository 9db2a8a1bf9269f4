"""Edits that make a migration easier to pass instead of right: ``check --since``."""
