"""The gate: what is left of FSDP1 in sources and checkpoints, with nothing written and nothing loaded."""
