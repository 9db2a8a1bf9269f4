"""Configuration of frameworks: what each key means under FSDP2, and edits of those keys alone."""
