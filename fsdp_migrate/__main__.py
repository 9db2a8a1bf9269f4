"""``python -m fsdp_migrate``."""

from __future__ import annotations

from fsdp_migrate.cli import entry_point

if __name__ == "__main__":
    entry_point()
