"""What is known of the optimizer that a run uses, in its release of torch."""

from __future__ import annotations

from fsdp_migrate.configs.versions import of_optimizer


def optimizer_notes(implementation: str, torch: str) -> list[str]:
    """One sentence for each; none where the optimizer is not one of torch's."""
    return [*of_optimizer(implementation, torch)] if implementation else []
