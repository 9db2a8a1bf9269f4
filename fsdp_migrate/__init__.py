"""The command: files, processes and reports around the rules."""
