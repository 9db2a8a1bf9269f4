"""Proof on the user's own run: record a training before and after its migration, and compare the two bit for bit."""
