"""What to test after a rule has changed code, in plain words: one sentence for a family of rules, by rule id."""

from __future__ import annotations

_LOSSES = (
    "Train the first steps with the old and the new code, on the same data, seed and number of processes: in "
    "fp32 the losses are identical, number for number."
)
_RESUME = (
    "Save during a run, resume in new processes, and compare the next losses with those of an uninterrupted "
    "run. Load one checkpoint of the old code as well."
)
_CLIP = (
    "Log the gradient norm of the first steps with the old and the new code, with a limit low enough that "
    "clipping is active: the norms agree to six digits on every rank."
)
_EFFECT = "Run each of these places once in a real, sharded run: code that no longer has an effect raises no error."

#: By prefix of the rule id; the longest that fits counts.
_CHECKS = {
    "FSDP": _LOSSES,
    "FSDP102": "Compare the peak memory of each GPU after a few steps: it shows if the same parameters are sharded.",
    "FSDP103": (
        "List the sharded modules (`[n for n, m in model.named_modules() if isinstance(m, FSDPModule)]`) and compare "
        "them with the modules that FSDP1 wrapped."
    ),
    "FSDP104": (
        "Compare the dtypes of the model's output, its buffers and its parameters, and the losses of the first steps "
        "in low precision."
    ),
    "FSDP105": "After a step, check the device of parameters and optimizer state (`p.device`): it is the CPU.",
    "FSDP106": "Start on every type of device that the project runs on, with more than one process per machine.",
    "FSDP107": "Run on as many machines as in production, or at least two: the mesh decides which ranks share shards.",
    "FSDP109": "Compare a checksum of the weights before the first step, with the old and the new code, on every rank.",
    "FSDP114": "Compare a checksum of the weights before the first step, with the old and the new code, on every rank.",
    "FSDP117": "Check that every parameter has changed after the first optimizer step.",
    "FSDP201": _CLIP,
    "FSDP202": "Train with gradient accumulation over several micro-batches and compare the losses, number for number.",
    "FSDP204": "Train in fp16 past the first skipped step and compare the loss scale with that of the old code.",
    "FSDP205": _EFFECT,
    "FSDP206": _EFFECT,
    "FSDP207": _EFFECT,
    "FSDP208": _EFFECT,
    "FSDP210": "Call each of these methods (`generate`, for example) on a sharded model, on several processes.",
    "FSDP211": "Compare the averaged weights with those of the old code after a few steps.",
    "FSDP212": _EFFECT,
    "FSDP214": "Run what only one rank does (logging, evaluation) with several processes: it must not hang.",
    "FSDP215": _CLIP,
    "FSDP216": _CLIP,
    "FSDP217": _EFFECT,
    "FSDP218": "Evaluate, freeze or unfreeze, and train for two steps: the second must change what the first did.",
    "FSDP219": "Print the parameter groups and compare them with those of the old code.",
    "FSDP220": "Evaluate between two steps, and compare the losses after it with those of the old code.",
    "FSDP3": _RESUME,
    "FSDP4": _RESUME,
    "FSDP5": (
        "Start the run with the old and the new configuration and compare the losses of the first steps, and list the "
        "sharded modules once: a key that a framework does not read raises no error."
    ),
    "FSDP9": "Read each of these places: no rule knows them, so nothing was checked for you.",
}


def what_to_test(rule: str) -> str:
    """The sentence for the rule with this id."""
    return _CHECKS[max((prefix for prefix in _CHECKS if rule.startswith(prefix)), key=len)]
