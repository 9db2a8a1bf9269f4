"""Readers of the files in which projects list what they require, one module for each family of formats."""
