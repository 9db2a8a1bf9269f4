"""What a program shows of its sharded models while it runs: which expression holds what, and where models are wrapped.

Loaded into the program as the rest of the recorder is: it imports nothing but torch and itself.
"""
