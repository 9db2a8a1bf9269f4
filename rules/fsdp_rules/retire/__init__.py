"""The removal of FSDP1's branches from a tree that has FSDP2's beside them."""
