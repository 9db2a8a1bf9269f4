"""Defects in a migrated program that resumes, each with the cause that a comparison with the run before must name."""

from __future__ import annotations

import contextlib
import itertools
import math
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from fsdp_migrate.verify.comparison import verdict_of
from fsdp_migrate.verify.recording.read import read
from fsdp_migrate.verify.recording.recording import Recording
from fsdp_migrate.verify.recording.rest import rest
from fsdp_migrate.verify.resuming import explained
from fsdp_migrate.verify.verdict import Verdict
from tests.parity.cpu import fsdp1_on_cpu
from tests.parity.harness import SCRIPT
from tests.parity.specs import Spec
from tests.parity.trees import rewrite_tree
from tests.pool import Pool
from tests.resume.program import AFTER, BEFORE, program

_LOADED = "load(model, optimizer, path)\n"
_STATES = "list(optimizer.state.values())"
#: Statements that do after a load what a wrong one has done.
_SHARED = f"for held in {_STATES}: held['step'] = {_STATES}[0]['step']"
_ONE = f"for held in {_STATES}: held['exp_avg_sq'] = held['exp_avg']"
#: As a load that copies each state has what the file has for two of them.
_COPIES = f"for held in {_STATES}: held['exp_avg'].copy_(held['exp_avg_sq'])"
_SWAPPED = """\
inner = [[p for p in layer.parameters() if p in optimizer.state] for layer in net.layers]
for one, other in zip(*inner):
    optimizer.state[one], optimizer.state[other] = optimizer.state[other], optimizer.state[one]"""
_SHARED_LOOP = """\
    for param_state in optimizer.state.values():
        param_state.update({key: value.clone() for key, value in param_state.items() if torch.is_tensor(value)})
"""
_ADAM = ("adamw", "amsgrad", "nadam")
_COUNTED = (*_ADAM, "rmsprop")
_KEPT = (*_COUNTED, "sgd", "adagrad", "two groups")
_FULL = ("full", "full by the old names")
_BY_NAME = (*_FULL, "sharded folder", "sharded folder by the first names")
_SCHEDULED = ("cosine", "one cycle", "warm-up")


@dataclass(frozen=True)
class Kind:
    """A kind of defect: ``change`` makes it in the text of the program; the rest is where it can be."""

    name: str
    cause: str
    change: Callable[[str], str]
    forms: tuple[str, ...] = _BY_NAME
    optimizers: tuple[str, ...] = _KEPT
    loops: tuple[str, ...] = ("plain",)
    original: tuple[str, ...] = ("True", "False")
    #: What the run before saved is of so many steps later.
    late: int = 0
    has_prefix: bool = False


def _then(statements: str) -> Callable[[str], str]:
    return lambda text: text.replace(f"        {_LOADED}", f"        {_LOADED}{_indented(statements)}\n")


def _indented(statements: str) -> str:
    return "\n".join(f"        {line}" for line in statements.splitlines())


def _without(line: str) -> Callable[[str], str]:
    return lambda text: text.replace(line, "")


def _not_strict(text: str) -> str:
    head, load, tail = text.partition("def load(")
    return head + load + tail.replace("StateDictOptions(", "StateDictOptions(strict=False, ", 1)


_REBUILT = """\
for group in optimizer.param_groups:
    del group["initial_lr"]
    group["lr"] = group["lr"] / 2
scheduler = type(scheduler)(optimizer, {arguments})"""
KINDS = (
    Kind("empty template", "not-resumed", _then("optimizer.state.clear()")),
    Kind("rank 0's optimizer alone", "state-of-some-ranks", _then("if rank: optimizer.state.clear()")),
    Kind("shared counter", "shared-counter", _then(_SHARED), optimizers=_COUNTED),
    Kind("states not copied", "shared-counter", _without(_SHARED_LOOP), ("full",), _COUNTED, original=("False",)),
    Kind("one tensor", "one-tensor", _then(_ONE), optimizers=_ADAM),
    Kind("other group order", "other-order", _then(_SWAPPED)),
    Kind("stale alias", "of-another-step",
         lambda text: text.replace('first = rest["step"]', 'first = rest["step"] - 1'), late=1),
    Kind("DDP prefix", "module-prefix", _not_strict, _FULL, has_prefix=True),
    Kind("lost scheduler", "lost-schedule", _without('scheduler.load_state_dict(rest["scheduler"])'),
         loops=_SCHEDULED),
    Kind("initial_lr", "initial-lr", _then(_REBUILT.format(arguments="T_max=6")), loops=("cosine",)),
    Kind("lost generator", "other-random-numbers", _without('torch.set_rng_state(rest["random"])'),
         loops=("random",)),
    Kind("data from the start", "data-from-start", lambda text: text.replace("batch(step,", "batch(step - first,")),
)  # fmt: skip

#: Beside those, one that comes of the file alone.
COPIES = Kind("copies of one tensor", "one-tensor", _then(_COPIES), ("full",), _ADAM)


@dataclass(frozen=True)
class Defect:
    """``kind`` in the program of ``spec``."""

    kind: Kind
    spec: Spec

    @property
    def name(self) -> str:
        return ", ".join((self.kind.name, *(self.spec[key] for key in ("form", "original", "optimizer", "loop"))))


def defects(count: int) -> list[Defect]:
    """``count`` of them, of each kind as many as of the others as far as it has so many."""
    of_kinds = [_of(kind) for kind in KINDS]
    turns = itertools.zip_longest(*of_kinds)
    return [defect for turn in turns for defect in turn if defect is not None][:count]


def _of(kind: Kind) -> Iterator[Defect]:
    combinations = list(itertools.product(kind.forms, kind.original, kind.optimizers, kind.loops))
    # Neighbours differ in one value: from one to the next all are to.
    stride = next(step for step in itertools.count(7) if math.gcd(step, len(combinations)) == 1)
    for place in range(len(combinations)):
        form, original, optimizer, loop = combinations[place * stride % len(combinations)]
        yield Defect(kind, spec_of(form, original, optimizer, loop))


def spec_of(form: str, original: str, optimizer: str, loop: str, ranks: str = "2 to 2") -> Spec:
    """Of a program of the matrix of resuming."""
    return {
        "form": form, "original": original, "optimizer": optimizer, "way": "rewrite", "ranks": ranks,
        "model": "plain", "loop": loop,
    }  # fmt: skip


@contextlib.contextmanager
def recorded_beside_its_result() -> Iterator[None]:
    """What is entered around a program: it records to the folder of the file that its last argument names."""
    import importlib

    arm = importlib.import_module("fsdp_migrate.verify.recorder.arm")
    orders = importlib.import_module("fsdp_migrate.verify.recorder.orders")
    out = str(Path(sys.argv[-1]).parent / "recording")
    with fsdp1_on_cpu(), arm.recorded(orders.Orders(out, BEFORE + AFTER, stop=False)):
        yield


class Runs:
    """Programs before, each run once, and their resumed runs after with a defect in them."""

    def __init__(self, pool: Pool, directory: Path) -> None:
        self._pool, self._directory = pool, directory
        directory.mkdir(exist_ok=True)
        self._before: dict[tuple[tuple[str, str], ...], Recording] = {}

    def verdict(self, defect: Defect | None, spec: Spec) -> Verdict:
        """FSDP1 that never stopped against the migrated program that resumes, as it is or with ``defect``."""
        late = defect.kind.late if defect else 0
        never = rest(self._never(spec, 0), BEFORE)
        saved = self._saved(spec, late)
        if late:
            self._never(spec, late)
        text = rewrite_tree({SCRIPT: program(spec)}).files[SCRIPT]
        changed = defect.kind.change(text) if defect else text
        if defect is not None and changed == text and not defect.kind.has_prefix:
            raise ValueError(f"{defect.name}: it changes nothing")
        if defect is not None and defect.kind.has_prefix:
            saved = _with_prefix(saved)
        name = f"after-{len(list(self._directory.iterdir()))}"
        after = self._run(changed, "resume", saved, name, int(spec["ranks"][-1]))
        verdict = verdict_of(never, after)
        return explained(verdict, saved)

    def _saved(self, spec: Spec, late: int) -> Path:
        return self._directory / "-".join((*spec.values(), str(late))).replace(" ", "_")

    def _never(self, spec: Spec, late: int) -> Recording:
        key = (*spec.items(), ("late", str(late)))
        if key not in self._before:
            text = program(spec).replace(f"step == {BEFORE}:", f"step == {BEFORE + late}:")
            folder = self._saved(spec, late)
            self._before[key] = self._run(text, "save", folder, folder.name)
        return self._before[key]

    def _run(self, text: str, phase: str, path: Path, name: str, ranks: int = 2) -> Recording:
        folder = self._directory / name
        (folder / "checkpoint").mkdir(parents=True)
        shutil.copy(Path(__file__).parents[1] / "resume" / "nets.py", folder)
        script = folder / SCRIPT
        # What the matrix of resuming looks at is recorded here, and takes all ranks to have all states.
        script.write_text(text.replace("observed.whole(model, optimizer)", "None"))
        arguments = [phase, str(path), str(folder / "result.pt")]
        self._pool.run_script(script, ranks, arguments, prelude=recorded_beside_its_result)
        return read(folder / "recording")


def _with_prefix(saved: Path) -> Path:
    """The same checkpoint, its model's names as DistributedDataParallel has them."""
    import torch

    copy = saved.with_name(f"{saved.name}-prefix")
    if not copy.exists():
        shutil.copytree(saved, copy)
        held = torch.load(copy / "checkpoint.pt", weights_only=True)
        held["model"] = {f"module.{name}": value for name, value in held["model"].items()}
        torch.save(held, copy / "checkpoint.pt")
    return copy


def misses(defect: Defect, verdict: Verdict) -> Iterator[str]:
    """What is wrong with the verdict, if anything."""
    if verdict.first is None:
        yield "not found"
        return
    cause = verdict.cause.cause if verdict.cause is not None else None
    if cause != defect.kind.cause:
        yield f"the cause is {cause}, not {defect.kind.cause}, of {verdict.first.question.text} {verdict.first.name}"
