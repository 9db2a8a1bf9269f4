"""What a program that compiles a model needs of a process in which other models have been trained before."""

from __future__ import annotations

import gc


def collect_dead_models() -> None:
    """Leave no dead model that could be collected while torch.compile traces the hooks of ``fully_shard``.

    These look a module's state up among those of all modules alive (``torch.distributed._composable_state``), and the
    compiler then guards on its position there. One that is gone by then makes the guard fail, on one rank alone, which
    leaves the other in a collective that nobody answers.
    """
    gc.collect()
