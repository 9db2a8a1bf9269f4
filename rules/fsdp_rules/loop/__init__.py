"""What a training loop asks of an FSDP1 model, a method to a file."""
