"""Parity programs beyond the matrix: any valid combination, in other names, layouts and surroundings at random."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import replace

from tests.parity.programs import Program, program
from tests.parity.specs import COMMON, FACTORS, Factors, Spec, common, valid

MODELS = ("net", "m", "trainee", "engine", "unit", "policy_net", "module", "optim_model", "strategy")
OPTIMIZERS = ("opt", "o", "solver", "trainer_optimizer", "module_optimizer")
#: What rewritten programs use, as this program's own: whoever calls one of these has mixed them up.
CLASHES = (
    *("fully_shard", "FSDPModule", "MixedPrecisionPolicy", "CPUOffloadPolicy", "init_device_mesh", "DeviceMesh"),
    *("get_model_state_dict", "set_model_state_dict", "StateDictOptions", "get_optimizer_state_dict"),
    *("fsdp_compat", "units_of", "dist_checkpoint", "mesh", "unit", "mp_policy", "sharding_arguments", "buffer"),
)
_LOOP = re.compile(r"^( +)(for step in range\(STEPS\):\n)((?:\1 +.*\n|\n)+)", re.MULTILINE)
_BACKWARD = re.compile(r"^( +)(loss\.backward\(\))$", re.MULTILINE)


def drawn(number: int) -> Program:
    """The program of this number, the same one on every run."""
    rng = random.Random(f"differential {number}")
    factors, allowed = rng.choice(((FACTORS, valid), (COMMON, common)))
    # What is changed below is the text of one script.
    chosen = program(f"d{number}", _spec(rng, {**factors, "place": ("script",)}, allowed))
    source = chosen.source
    for change in _CHANGES:
        if rng.random() < 0.6:
            source = change(rng, source)
    return replace(chosen, source=source)


def _spec(rng: random.Random, factors: Factors, allowed: Callable[[Spec], bool]) -> Spec:
    while True:
        spec = {name: rng.choice(values) for name, values in factors.items()}
        if allowed(spec):
            return spec


def _renamed(rng: random.Random, source: str) -> str:
    for name, others in (("model", MODELS), ("optimizer", OPTIMIZERS), ("rank", ("r", "process"))):
        new = rng.choice([other for other in others if not re.search(rf"\b{other}\b", source)])
        # Neither an attribute, nor a keyword, nor in a string.
        source = re.sub(rf"(?<![.\w\"']){name}\b(?!=[^=])(?![\"'])", new, source)
    return source


def _with_strings(rng: random.Random, source: str) -> str:
    text = rng.choice(('"""first\n  second\n\tthird"""', "f'''{1 + 1}\n      {step}\n'''", "r'''\\n\n# none\n'''"))
    return _BACKWARD.sub(lambda found: f"{found[1]}extra.append({text})  # kept\n{found[0]}", source)


def _clashing(rng: random.Random, source: str) -> str:
    names = [name for name in rng.sample(CLASHES, 4) if not re.search(rf"\b{name}\b", source)]
    forms = (
        "def {0}(*args, **kwargs):\n    raise RuntimeError('{0}')\n",
        "{0} = 'mine'\n",
        "{0} = None\n",
        "class {0}:\n    pass\n",
    )
    made = "\n".join(rng.choice(forms).format(name) for name in names)
    return source.replace("\nSTEPS = ", f"\n{made}\n\nSTEPS = ", 1)


def _nested(rng: random.Random, source: str) -> str:
    """The training loop inside of one more block."""
    head = rng.choice(("if STEPS:", "with contextlib.nullcontext():", "for epoch in range(1):", "while True:", "try:"))
    tail = {"while True:": "    break\n", "try:": ""}.get(head, "")

    def moved(found: re.Match[str]) -> str:
        margin, loop = found[1], found[0]
        body = "".join(f"    {line}" if line.strip() else line for line in loop.splitlines(keepends=True))
        end = f"{margin}finally:\n{margin}    STEPS\n" if head == "try:" else ""
        return f"{margin}{head}\n{body}{margin + tail if tail else ''}{end}"

    return "import contextlib\n" + _LOOP.sub(moved, source, count=1) if '"""' not in source[200:] else source


def _indented(rng: random.Random, source: str) -> str:
    indent = rng.choice(("  ", "\t", "        "))
    if source.count('"""') > 2 or "'''" in source:
        return source
    lines = source.split("\n")
    margins = [len(line) - len(line.lstrip(" ")) for line in lines]
    return "\n".join(
        indent * (margin // 4) + " " * (margin % 4) + line.lstrip(" ")
        for margin, line in zip(margins, lines, strict=True)
    )


def _returned(rng: random.Random, source: str) -> str:
    return source.replace("\n", rng.choice(("\r\n", "\r")))


#: Line ends come last, since the others look for line feeds, and strings after what moves lines.
_CHANGES: list[Callable[[random.Random, str], str]] = [
    _renamed,
    _indented,
    _nested,
    _with_strings,
    _clashing,
    _returned,
]
