"""Writes the FSDP1 training program of a :data:`~tests.parity.specs.Spec`, in the manner of code that people write."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from tests.parity import loop, wrapping
from tests.parity.imports import with_imports
from tests.parity.models import MODELS
from tests.parity.specs import COMMON, FACTORS, Spec, common, specs, valid
from tests.parity.text import indented

STEPS = 4


@dataclass(frozen=True)
class Program:
    """A script that trains for a few steps and saves losses, norms and weights to the file ``sys.argv[1]``."""

    name: str
    spec: Spec
    source: str
    world_size: int


@cache
def programs() -> tuple[Program, ...]:
    """All programs, always the same ones: those named ``n…`` keep to what FSDP2 itself can say."""
    return tuple(
        program(f"{family}{number:03d}-{spec['model']}", spec)
        for family, factors, allowed in (("a", FACTORS, valid), ("n", COMMON, common))
        for number, spec in enumerate(specs(factors, allowed))
    )


def program(name: str, spec: Spec) -> Program:
    """The program of one combination."""
    body = "\n".join(_parts(spec))
    source = f'"""Trains a small model on every rank\'s own data."""\n\n{with_imports(body, spec["imports"])}'
    return Program(name, spec, source, 4 if "HYBRID" in spec["strategy"] else 2)


def _parts(spec: Spec) -> Iterator[str]:
    model = MODELS[spec["model"]]
    yield f"STEPS = {STEPS}"
    yield from wrapping.constants(spec)
    yield "\n" + model.classes.strip() + "\n"
    yield "\n" + model.batches.strip() + "\n"
    yield from wrapping.functions(spec, model)
    wrapped = {"new_name": "fsdp_model", "attribute": "self.model"}.get(spec["call"], "model")
    if spec["layout"] == "train_function" and spec["call"] != "attribute":
        yield "\ndef train(model, optimizer, rank):\n" + indented(loop.training(spec, model, "model"))
        yield "    return losses, norms, extra\n"
        training = [f"losses, norms, extra = train({wrapped}, optimizer, rank)"]
    else:
        training = loop.training(spec, model, wrapped)
    build = list(wrapping.construction(spec, model, wrapped))
    start = ['dist.init_process_group("gloo")', "rank = dist.get_rank()"]
    steps = [*start, *build, *training, *loop.ending(spec, wrapped)]
    if spec["call"] == "attribute":
        yield "\nclass Trainer:\n    def __init__(self, rank):\n" + indented([*build, "self.optimizer = optimizer"], 2)
        method = [re.sub(r"\boptimizer\b", "self.optimizer", line) for line in training]
        if spec["layout"] == "train_function":
            yield "\n    def fit(self, rank):\n" + indented([*method, "return losses, norms, extra"], 2)
            yield "\n    def save(self, rank, losses, norms, extra):\n" + indented(loop.ending(spec, wrapped), 2)
            last = ["losses, norms, extra = trainer.fit(rank)", "trainer.save(rank, losses, norms, extra)"]
        else:
            yield "\n    def run(self, rank):\n" + indented([*method, *loop.ending(spec, wrapped)], 2)
            last = ["trainer.run(rank)"]
        steps = [*start, "trainer = Trainer(rank)", *last]
    yield "\ndef main():\n" + indented([*steps, "dist.destroy_process_group()"])
    yield '\nif __name__ == "__main__":\n    main()\n'
