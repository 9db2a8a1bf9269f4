"""What the recorder wrote, read back: the parts of all ranks put together to whole tensors."""
