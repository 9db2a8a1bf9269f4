"""What a run under FSDP1 shows of a program: recorded, merged over its ranks, and read for the rules."""
