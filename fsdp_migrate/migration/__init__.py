"""A training under FSDP1 becomes a proven one under FSDP2: trace, rewrite, verify, and a page at the end."""
