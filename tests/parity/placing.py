"""Where the parts of a parity program are: in one script, or over several files, with the model in some container."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from tests.parity import loop, wrapping
from tests.parity.imports import with_imports
from tests.parity.models import MODELS, Model
from tests.parity.specs import Spec
from tests.parity.text import indented

STEPS = 4
_DOC = '"""Trains a small model on every rank\'s own data."""\n\n'
_END = '\nif __name__ == "__main__":\n    main()\n'
_START = ['dist.init_process_group("gloo")', "rank = dist.get_rank()"]
_STOP = "dist.destroy_process_group()"
_RESULTS = "losses, norms, extra"
#: How the function of another file is given the wrapped model, what it calls that, and how it uses it.
HOLDERS: Mapping[str, tuple[str, str, str]] = {
    "another_file": ("{model}", "model", "model"),
    "factory": ("{model}", "model", "model"),
    "list": ("[{model}]", "models", "models[0]"),
    "dict": ('{{"model": {model}}}', "parts", 'parts["model"]'),
    "dataclass": ("Job(model={model}, step=0)", "job", "job.model"),
}
_JOB = """
@dataclass
class Job:
    model: nn.Module
    step: int
"""
_KEEPS = """
class Loop:
    def __init__(self, net, optimizer):
        self.net = net
        self.optimizer = optimizer
"""


def files(spec: Spec) -> dict[str, str]:
    """The files of a program by their paths: ``train.py`` is the script."""
    model = MODELS[spec["model"]]
    if spec["place"] == "script":
        return {"train.py": _DOC + with_imports("\n".join(_script(spec, model)), spec["imports"])}
    written = _parts(spec, model)
    return {path: _DOC + with_imports("\n".join(lines), spec["imports"]) for path, lines in written.items()}


def _wrapped(spec: Spec) -> str:
    return {"new_name": "fsdp_model", "attribute": "self.model"}.get(spec["call"], "model")


def _definitions(model: Model) -> list[str]:
    return ["\n" + model.classes.strip() + "\n", "\n" + model.batches.strip() + "\n"]


def _in_a_function(training: list[str]) -> str:
    return "\ndef train(model, optimizer, rank):\n" + indented([*training, f"return {_RESULTS}"])


def _script(spec: Spec, model: Model) -> Iterator[str]:
    yield f"STEPS = {STEPS}"
    yield from wrapping.constants(spec)
    yield from _definitions(model)
    yield from wrapping.functions(spec, model)
    wrapped = _wrapped(spec)
    if spec["layout"] == "train_function" and spec["call"] != "attribute":
        yield _in_a_function(loop.training(spec, model, "model"))
        training = [f"{_RESULTS} = train({wrapped}, optimizer, rank)"]
    else:
        training = loop.training(spec, model, wrapped)
    build = list(wrapping.construction(spec, model, wrapped))
    steps = [*_START, *build, *training, *loop.ending(spec, wrapped)]
    if spec["call"] == "attribute":
        yield from _trainer(spec, build, training)
        steps = [*_START, "trainer = Trainer(rank)", *_fitted(spec)]
    yield "\ndef main():\n" + indented([*steps, _STOP])
    yield _END


def _trainer(spec: Spec, build: list[str], training: list[str]) -> Iterator[str]:
    """A class that wraps its model itself."""
    yield "\nclass Trainer:\n    def __init__(self, rank):\n" + indented([*build, "self.optimizer = optimizer"], 2)
    method = [re.sub(r"\boptimizer\b", "self.optimizer", line) for line in training]
    if spec["layout"] == "train_function":
        yield "\n    def fit(self, rank):\n" + indented([*method, f"return {_RESULTS}"], 2)
        yield f"\n    def save(self, rank, {_RESULTS}):\n" + indented(loop.ending(spec, "self.model"), 2)
    else:
        yield "\n    def run(self, rank):\n" + indented([*method, *loop.ending(spec, "self.model")], 2)


def _fitted(spec: Spec) -> list[str]:
    if spec["layout"] == "train_function":
        return [f"{_RESULTS} = trainer.fit(rank)", f"trainer.save(rank, {_RESULTS})"]
    return ["trainer.run(rank)"]


def _parts(spec: Spec, model: Model) -> dict[str, list[str]]:
    """The lines of each file of a program of several."""
    classes = re.findall(r"^class (\w+)", model.classes, re.MULTILINE)
    construction = [*wrapping.constants(spec, training=False), *wrapping.functions(spec, model)]
    uses = [f"from net import {', '.join(classes)}"]
    steps = ["from net import batches", f"STEPS = {STEPS}", *wrapping.constants(spec, training=True)]
    written = {"net.py": _definitions(model)}
    wrapped = _wrapped(spec)
    build = list(wrapping.construction(spec, model, wrapped))
    if spec["call"] == "attribute":
        trainer = _trainer(spec, build, loop.training(spec, model, wrapped))
        written["steps.py"] = [*uses, *steps, *construction, *trainer]
        main = [*_START, "trainer = Trainer(rank)", *_fitted(spec), _STOP]
        written["train.py"] = ["from steps import Trainer", "\ndef main():\n" + indented(main), _END]
        return written
    if spec["place"] in ("closure", "factory"):
        returned = f"return {wrapped}, optimizer"
        made = "\ndef build(rank):\n" + indented([*build, returned])
        written["building.py"] = [*uses, *construction, made]
        uses, construction, wrapped = ["from building import build"], [], "model"
        build = ["model, optimizer = build(rank)"]
    if spec["place"] == "closure":
        inner = [*loop.training(spec, model, "model"), *loop.ending(spec, "model")]
        main = [*_START, *build, "def run():\n" + indented(inner), "run()", _STOP]
        written["train.py"] = [*uses, *steps, "\ndef main():\n" + indented(main), _END]
        return written
    written["steps.py"], imported, call = _steps(spec, model, wrapped, steps)
    if spec["place"] == "dataclass":
        written["job.py"] = ["from dataclasses import dataclass", _JOB]
        uses = [*uses, "from job import Job"]
    uses = [*uses, f"from steps import {imported}"]
    main = [*_START, *build, call, _STOP]
    written["train.py"] = [*uses, *construction, "\ndef main():\n" + indented(main), _END]
    return written


def _steps(spec: Spec, model: Model, wrapped: str, head: list[str]) -> tuple[list[str], str, str]:
    """The file that trains, what the script imports from it, and how it calls that."""
    is_method = spec["place"] == "method"
    given, name, expression = ("", "self", "self.net") if is_method else HOLDERS[spec["place"]]
    lines = list(head)
    if spec["layout"] == "train_function":
        lines.append(_in_a_function(loop.training(spec, model, "model")))
        training = [f"{_RESULTS} = train({expression}, optimizer, rank)"]
    else:
        training = loop.training(spec, model, expression)
    body = [*training, *loop.ending(spec, expression)]
    if is_method:
        body = [re.sub(r"\boptimizer\b", "self.optimizer", line) for line in body]
        lines += [_KEEPS.rstrip("\n"), "\n    def run(self, rank):\n" + indented(body, 2)]
        return lines, "Loop", f"Loop({wrapped}, optimizer).run(rank)"
    lines.append(f"\ndef run({name}, optimizer, rank):\n" + indented(body))
    return lines, "run", f"run({given.format(model=wrapped)}, optimizer, rank)"
