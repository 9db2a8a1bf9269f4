"""Which edits of a rewrite make the runs differ, found by making them in their other form, and running again."""
