"""What FSDP1 needs so that it runs on CPU tensors over gloo, for tests and scripts."""

from __future__ import annotations

from fsdp_migrate.verify.recorder.lifted import fsdp1_on_cpu

__all__ = ["fsdp1_on_cpu"]
