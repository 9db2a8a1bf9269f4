"""The rules about configuration, 5xx: one class per file."""
