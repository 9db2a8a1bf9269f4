"""What a run that resumes may be made of, and which combinations are tried."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence

from tests.parity.specs import Pair, Spec, pairs, specs

#: How the program saves, and so how it loads.
FORMS = (
    *("full", "full by the old names", "sharded folder", "sharded folder by the first names"),
    *("sharded files", "local", "raw"),
)
OPTIMIZERS = (
    *("adamw", "fused adamw", "amsgrad", "sgd", "adagrad", "rmsprop", "nadam"),
    *("two groups", "quantised", "other shapes"),
)
#: What loads it: the program as it is rewritten, or code of FSDP2 with the lines that are printed for the checkpoint.
WAYS = ("rewrite", "shim", "inspect", "dcp", "full and back")
#: The ranks that save and those that resume; ``h``: two replicas.
RANKS = ("2 to 2", "2 to 4", "4 to 2", "4h to 2")
MODELS = (*("plain", "tied", "frozen", "ignored", "uneven", "bf16", "pure bf16", "buffers", "extra state", "meta"),)
LOOPS = ("plain", "cosine", "one cycle", "warm-up", "scaler", "random")

FACTORS: dict[str, tuple[str, ...]] = {
    "form": FORMS,
    "original": ("True", "False"),
    "optimizer": OPTIMIZERS,
    "way": WAYS,
    "ranks": RANKS,
    "model": MODELS,
    "loop": LOOPS,
}

#: What the whole matrix combines in full.
COMBINED = ("form", "original", "optimizer", "way")
#: How often the rest is drawn for a combination before it is one that FSDP1 does not save.
_TRIES = 50

#: What FSDP1 itself cannot do, so that there is nothing to resume; the reason says what it does instead.
EXCLUDED: dict[str, Callable[[Spec], bool]] = {
    "states shaped differently from their parameter: FSDP1 does not gather them, so only per-rank files have them": (
        lambda s: s["optimizer"] == "other shapes" and s["form"] not in ("local", "raw")
    ),
    "LOCAL_STATE_DICT with a device mesh: FSDP1 raises": (
        lambda s: s["form"] == "local" and s["ranks"].startswith("4h")
    ),
}


#: From this tolerance on weights and states after five steps are not compared: optimizers make more of a rounding.
ONLY_LOSSES = 1e-1
#: Optimizers whose kernels on the CPU compute the last elements of a 16-bit tensor otherwise than the rest.
_ROUNDING_BY_PLACE = ("sgd", "rmsprop", "quantised", "other shapes")


def tolerance(spec: Spec) -> tuple[float, str]:
    """How far the steps after the load may be apart, relative to the largest value, and why; the load never is."""
    saving, resuming = (ranks.removesuffix("h") for ranks in spec["ranks"].split(" to "))
    if saving != resuming:
        relative = ONLY_LOSSES if "bf16" in spec["model"] else 1e-4
        return relative, "a different number of ranks sums gradients in a different order"
    if spec["optimizer"] == "fused adamw":
        return (
            1e-6,
            "a CPU kernel rounds a tensor's last elements differently, and FSDP1's tensors end elsewhere",
        )
    if spec["model"] == "pure bf16" and spec["optimizer"] in _ROUNDING_BY_PLACE:
        return (
            2e-2,
            "a CPU kernel rounds a tensor's last elements differently, and FSDP1's tensors end elsewhere",
        )
    return 0.0, ""


def valid(spec: Spec) -> bool:
    """Whether FSDP1 saves the combination."""
    return not any(excludes(spec) for excludes in EXCLUDED.values())


def pairwise() -> list[Spec]:
    """Combinations in which every two values of two factors are together in one, always the same."""
    return list(specs(FACTORS, valid))


def sample(count: int = 40) -> list[Spec]:
    """The ``count`` of them that, one after the other, show the most pairs that were not shown before."""
    left, seen, chosen = pairwise(), set[Pair](), list[Spec]()
    for _ in range(count):
        best = max(left, key=lambda spec: len(pairs(spec) - seen))
        left.remove(best)
        seen |= pairs(best)
        chosen.append(best)
    return chosen


def whole(combined: Sequence[str] = COMBINED) -> list[Spec]:
    """Every combination of the ``combined`` factors that FSDP1 saves, always the same; the rest is drawn for each."""
    chooser, chosen = random.Random(0), list[Spec]()
    for values in itertools.product(*(FACTORS[name] for name in combined)):
        fixed = dict(zip(combined, values, strict=True))
        specs = ({name: chooser.choice(of) for name, of in FACTORS.items()} | fixed for _ in range(_TRIES))
        chosen += list(itertools.islice(filter(valid, specs), 1))
    return chosen


def drawn(count: int, seed: int) -> list[Spec]:
    """``count`` combinations drawn from all."""
    chooser, chosen = random.Random(seed), list[Spec]()
    while len(chosen) < count:
        spec = {name: chooser.choice(values) for name, values in FACTORS.items()}
        chosen += [spec] if valid(spec) else []
    return chosen
