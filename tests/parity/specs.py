"""Which parity programs there are: every pair of values of two factors stands together in at least one of them."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Mapping

from tests.parity.tolerance import tolerance

Spec = Mapping[str, str]
Factors = Mapping[str, tuple[str, ...]]
Pair = frozenset[tuple[str, str]]

FACTORS: dict[str, tuple[str, ...]] = {
    "model": ("mlp", "gpt", "tied", "uneven", "conv"),
    "strategy": ("absent", "FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD", "_HYBRID_SHARD_ZERO2"),
    "spelling": ("literal", "variable", "by_name", "table"),
    "policy": (
        *("none", "transformer", "transformer_variable", "module", "size", "lambda", "always", "or"),
        *("custom", "custom_dict", "function"),
    ),
    "precision": ("none", "fp32", "bf16", "bf16_param", "bf16_reduce"),
    "orig_params": ("absent", "True", "False"),
    "device": ("literal", "variable"),
    "sync": ("absent", "True"),
    "init": ("eager", "meta", "meta_init_fn"),
    "ignored": ("none", "modules_frozen", "modules_trained", "states_frozen"),
    "knob": ("none", "limit", "backward_pre", "backward_post", "forward"),
    "group": ("none", "process_group_none", "new_group", "mesh"),
    "kwargs": ("direct", "literal", "dict", "update", "item", "mixed"),
    "call": ("rebind", "new_name", "attribute", "function", "partial", "nested", "enable_wrap"),
    "imports": ("alias", "plain", "deep", "dotted"),
    "clip": ("none", "unused", "used", "item", "active", "active_inf", "gated"),
    "accumulate": ("none", "plain", "with", "conditional", "exit_stack", "assigned"),
    "checkpointing": ("none", "before", "after"),
    "optimizer": ("sgd", "adamw", "before_wrapping"),
    "midway": ("none", "evaluate", "summon_read", "summon_write", "reload", "optim_state", "module"),
    "end": ("context", "context_config", "set_type", "summon"),
    "layout": ("inline", "train_function"),
    "place": ("script", "another_file", "list", "dict", "dataclass", "factory", "closure", "method"),
}

#: The values that have a short spelling in FSDP2 itself: any other one sends a whole program through a helper.
COMMON = FACTORS | {
    "spelling": ("literal", "variable"),
    "policy": ("none", "transformer", "transformer_variable", "module", "lambda"),
    "init": ("eager", "meta", "meta_init_fn"),
    "ignored": ("none",),
    "group": ("none", "process_group_none", "mesh"),
    "kwargs": ("direct",),
    "call": ("rebind", "new_name", "attribute", "function"),
}

#: Pairs of common values that send a program through a helper all the same.
HELPED: tuple[Callable[[Spec], bool], ...] = (
    lambda s: s["sync"] == "True" and s["group"] == "mesh",
    lambda s: s["strategy"] == "NO_SHARD" and s["group"] == "mesh",
    lambda s: s["model"] == "conv" and s["precision"] != "none",
)

_POLICIES_THAT_SPLIT_TIES = ("always", "size", "or")

#: What FSDP1 refuses or gets wrong by itself (the reason says which), so that there is nothing to compare with.
EXCLUDED: dict[str, Callable[[Spec], bool]] = {
    "tied weights in two units: FSDP1 fails in the forward pass": lambda s: (
        s["model"] == "tied" and (s["policy"] in _POLICIES_THAT_SPLIT_TIES or s["call"] == "enable_wrap")
    ),
    "tied weights on the meta device: FSDP1 initialises them twice and unties them": lambda s: (
        s["model"] == "tied" and s["init"] != "eager"
    ),
    "an ignored module that shares a weight with a sharded one": lambda s: (
        s["model"] == "tied" and s["ignored"] != "none"
    ),
    "a wrap policy on top of manually wrapped units: FSDP1 raises ValueError": lambda s: (
        s["call"] in ("nested", "enable_wrap") and s["policy"] != "none"
    ),
    "an optimizer built before wrapping: FSDP1 trains it only with use_orig_params=True": lambda s: (
        s["optimizer"] == "before_wrapping" and (s["orig_params"] != "True" or s["init"] != "eager")
    ),
    "an ignored fp32 module that gets bf16 inputs: dtype mismatch in the matrix product": lambda s: (
        s["ignored"] != "none" and s["precision"] in ("bf16", "bf16_param")
    ),
    "an ignored module on the meta device: nothing initialises it": lambda s: (
        s["ignored"] != "none" and s["init"] != "eager"
    ),
    "ignored modules or states, if children are wrapped manually with the same arguments": lambda s: (
        s["ignored"] != "none" and s["call"] in ("nested", "enable_wrap")
    ),
    "active clipping with a trained ignored module: FSDP1 clips each rank's shard by a different factor": lambda s: (
        s["ignored"] == "modules_trained" and s["clip"].startswith("active")
    ),
    "units that contain only frozen parameters": lambda s: s["ignored"] != "none" and s["policy"] in ("always", "size"),
    "BatchNorm inside a bf16 unit with fp32 statistics: dtype mismatch": lambda s: (
        s["model"] == "conv" and s["precision"] == "bf16_param" and s["policy"] == "none"
    ),
    "different spellings of an omitted strategy": lambda s: s["strategy"] == "absent" and s["spelling"] != "literal",
    "a strategy per module together with NO_SHARD or a hybrid strategy": lambda s: (
        s["policy"] == "custom_dict" and s["strategy"] not in ("absent", "FULL_SHARD", "SHARD_GRAD_OP")
    ),
    "AdamW where the last bits may differ: it turns a rounding error in a zero gradient into a full step": lambda s: (
        s["optimizer"] == "adamw" and tolerance(s).relative > 0
    ),
    "bf16 gradients accumulated under no_sync() with NO_SHARD and use_orig_params=True: FSDP1 fails": lambda s: (
        s["strategy"] == "NO_SHARD"
        and s["orig_params"] == "True"
        and s["precision"] in ("bf16", "bf16_param")
        and s["accumulate"] not in ("none", "plain")
    ),
    "a class that wraps and trains its own model, if the model is also passed in a container": lambda s: (
        s["call"] == "attribute" and s["place"] not in ("script", "another_file")
    ),
    "a closure that trains, together with a separate train function": lambda s: (
        s["place"] == "closure" and s["layout"] == "train_function"
    ),
    "a hybrid strategy without a two-dimensional mesh": lambda s: "HYBRID" in s["strategy"] and s["group"] != "mesh",
}


def valid(spec: Spec) -> bool:
    """Whether FSDP1 runs the combination."""
    return not any(excludes(spec) for excludes in EXCLUDED.values())


def common(spec: Spec) -> bool:
    """Whether FSDP1 runs the combination, and FSDP2 can say it without a helper for the wrapping."""
    return valid(spec) and not any(helped(spec) for helped in HELPED)


def specs(factors: Factors, allowed: Callable[[Spec], bool]) -> Iterator[Spec]:
    """Allowed combinations of ``factors`` that show every pair of values, always the same ones in the same order."""
    chooser = random.Random(2)
    missing = {
        frozenset({(left, a), (right, b)})
        for left, right in itertools.combinations(factors, 2)
        for a, b in itertools.product(factors[left], factors[right])
    }
    while missing:
        pair = min(missing, key=sorted)
        candidates = [spec for spec in (_draw(chooser, factors, allowed, pair) for _ in range(8)) if spec]
        if not candidates:
            missing.discard(pair)
            continue
        best = max(candidates, key=lambda spec: len(missing & pairs(spec)))
        missing -= pairs(best)
        yield best


def pairs(spec: Spec) -> set[Pair]:
    """Every two values that stand together in ``spec``."""
    return {frozenset(two) for two in itertools.combinations(spec.items(), 2)}


def _draw(chooser: random.Random, factors: Factors, allowed: Callable[[Spec], bool], pair: Pair) -> Spec | None:
    for _ in range(300):
        spec = {name: chooser.choice(values) for name, values in factors.items()} | dict(pair)
        if allowed(spec):
            return spec
    return None
