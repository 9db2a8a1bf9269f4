"""The version of both distributions, fsdp-migrate and fsdp-compat, which are released together."""

__version__ = "0.1.0"
