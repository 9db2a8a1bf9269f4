"""FSDP1's semantics on top of FSDP2's ``fully_shard``: what has no short native spelling."""
