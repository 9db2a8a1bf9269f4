"""Writing a checkpoint again in another format: steps that change a :class:`state.State`, and writers that take one.

A step is a function from state to state that reads no tensor; a writer asks
:mod:`fsdp_migrate.checkpoints.read.elements` for one tensor after the other.
So a reader of one more format serves all writers, and the other way round.
"""
