"""What is known about FSDP1, and how each part of it becomes FSDP2. Pure functions over sources; depends on libcst alone."""
