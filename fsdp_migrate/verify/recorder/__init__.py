"""What is injected into the user's program and writes down each step; it imports nothing but torch and itself.

It is loaded into the program under a name of its own, so that neither this distribution nor what it depends on
comes onto the program's path. Hence its imports are relative.
"""
