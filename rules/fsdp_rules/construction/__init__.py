"""The constructor of FSDP1, an argument to a file."""
