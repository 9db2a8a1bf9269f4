"""Python code that has a framework run FSDP1: plugins, strategies and arguments, one class per rule."""
