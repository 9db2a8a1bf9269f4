"""What every expression of a tree may be, from one abstract interpretation of the files that FSDP1 can reach."""
