"""What a run came to, in words: each form is a pure function of a :class:`fsdp_migrate.pipeline.outcome.RunResult`."""
