"""What to test after a rule has changed code: the sentences that several rules share."""

from __future__ import annotations

LOSSES = (
    "Train the first steps with the old and the new code, on the same data, seed and number of processes: in fp32 "
    "the losses are identical, number for number."
)
RESUME = (
    "Save during a run, resume in new processes, and compare the next losses with those of an uninterrupted run. "
    "Load one checkpoint of the old code as well."
)
CLIPPING = (
    "Log the gradient norm of the first steps with the old and the new code, with a limit low enough that "
    "clipping is active: the norms agree to six digits on every rank."
)
EFFECT = "Run each of these places once in a real, sharded run: code that no longer has an effect raises no error."
WEIGHTS = "Compare a checksum of the weights before the first step, with the old and the new code, on every rank."
HOSTED = (
    "Start the run with the old and the new configuration and compare the losses of the first steps, and list the "
    "sharded modules once: a key that a framework does not read raises no error."
)
UNCHECKED = "Read each of these places: no rule covers them, so nothing was checked for you."
