"""What is known about FSDP1, and how each part of it becomes FSDP2. Depends on libcst alone."""
