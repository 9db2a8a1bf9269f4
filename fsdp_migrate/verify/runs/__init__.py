"""Runs the user's program with the recorder in it: the trees, the processes, and what they print."""
