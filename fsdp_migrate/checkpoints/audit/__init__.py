"""A second reading of checkpoints, which shares no code with :mod:`fsdp_migrate.checkpoints.read`.

A conversion is checked with it: what one reader overlooks it overlooks in source and target alike, and comparing its
own readings shows nothing. Here pickles go through a machine over their operations instead of Python's unpickler,
archives through their directory's bytes instead of ``zipfile``, safetensors without their library, and the places of
DTensors follow from the sizes of all ranks instead of from the mesh. Nothing is run here either.
"""
