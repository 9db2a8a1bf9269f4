"""State dicts, optimizer state and checkpoints in code."""
