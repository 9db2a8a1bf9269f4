"""What the configuration keys of frameworks mean under FSDP1 and FSDP2: a table per framework, as data."""
