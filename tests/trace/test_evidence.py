"""``rewrite --trace`` and ``check --trace``: what a record decides, leaves open, and contradicts."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from fsdp_migrate.cli import main
from fsdp_migrate.trace.record import Trace, TracedFile, Value, dumped

#: The models come from a table, which the code alone does not show.
TRAIN = """
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def build(name):
    return FSDP(REGISTRY[name](), use_orig_params=True)


def fit(model, batches, clip):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in batches:
        model(batch).sum().backward()
        model.clip_grad_norm_(clip)
        optimizer.step()
    return model


def save(thing, path):
    torch.save(thing.module.state_dict(), path)


def local():
    net = FSDP(Net(), use_orig_params=True)
    net.clip_grad_norm_(1.0)
    return net.module
"""
Seen = dict[tuple[str, str], dict[str, int]]
Rewritten = Callable[..., tuple[int, str, str]]


WRAP = {
    "at": ["train.py", 26, 10, 26, 43],
    "class": "Net",
    "batch norm": [],
    "meta": False,
    "buffers": [],
    "optimizers before": [],
    "steps": 5,
    "unused": {},
}


def record(text: str, seen: Seen, ranks: tuple[int, ...] = (0, 1)) -> Trace:
    """A record of a run on two ranks in which expressions were ``seen``: by the beginning of their line and their text.

    ``ranks`` are those that looked.
    """
    lines: dict[int, dict[int, int]] = {}
    values = []
    for (start, expression), kinds in seen.items():
        number = next(n for n, line in enumerate(text.splitlines(), 1) if line.strip().startswith(start))
        column = text.splitlines()[number - 1].index(expression)
        lines[number] = {0: 20, 1: 20}
        values.append(Value((number, column, number, column + len(expression)), kinds, ranks))
    file = TracedFile(hashlib.sha256(text.encode()).hexdigest(), lines, tuple(values))
    return Trace(2, 5, {0: "steps", 1: "steps"}, {}, files={"train.py": file})


@pytest.fixture
def rewritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Rewritten:
    """Rewrites a text by a record: exit code, the text after, and what was printed."""
    monkeypatch.chdir(tmp_path)

    def run(text: str, trace: Trace, *options: str) -> tuple[int, str, str]:
        Path("train.py").write_text(text, encoding="utf-8")
        Path("trace.json").write_text(dumped(trace), encoding="utf-8")
        code = main(["rewrite", "-v", "--trace", "trace.json", *options, "train.py"])
        return code, Path("train.py").read_text(encoding="utf-8"), capsys.readouterr().out

    return run


def findings(printed: str, rule: str) -> list[str]:
    return re.findall(rf"^train\.py:\d+:\d+: {rule} (.*)$", printed, re.MULTILINE)


def test_what_always_was_a_model_is_one(rewritten: Rewritten) -> None:
    # Without a run this is silent: nothing in the code says what `thing` is.
    _, text, printed = rewritten(TRAIN, record(TRAIN, {}))
    assert "thing.module.state_dict()" in text
    code, text, printed = rewritten(TRAIN, record(TRAIN, {("torch.save", "thing"): {"model": 40}}))
    assert code == 0
    assert "thing.module" not in text
    assert "safe: FSDP2 has no wrapper: thing is the model itself" in findings(printed, "FSDP206")


def test_what_the_code_says_of_every_run_is_kept(rewritten: Rewritten) -> None:
    text = TRAIN.replace("    return net.module", "    return type(net).__name__")
    _, without, _ = rewritten(text, record(text, {}))
    assert "return 'FullyShardedDataParallel'" in without or 'return "FullyShardedDataParallel"' in without
    _, by_run, _ = rewritten(text, record(text, {("return type", "net"): {"model": 2}}))
    assert by_run == without


def test_what_never_was_one_is_left_and_named(rewritten: Rewritten) -> None:
    seen: Seen = {("model.clip", "model"): {"module": 40}}
    code, text, printed = rewritten(TRAIN, record(TRAIN, seen))
    assert code == 0
    assert "        model.clip_grad_norm_(clip)\n" in text
    (said,) = [one for one in findings(printed, "FSDP201") if "clip" in one and "info" in one]
    assert "unchanged: not a sharded model in 40 of 40 runs of this line (otherwise: " in said


@pytest.mark.parametrize(
    ("kinds", "ranks"),
    [({"module": 20}, (0,)), ({"model": 20, "module": 20}, (0, 1)), ({"none": 40}, (0, 1))],
    ids=["one rank did not look", "both", "nothing"],
)
def test_too_little_decides_nothing(rewritten: Rewritten, kinds: dict[str, int], ranks: tuple[int, ...]) -> None:
    trace = record(TRAIN, {("model.clip", "model"): kinds}, ranks)
    _, text, printed = rewritten(TRAIN, trace)
    assert "model.clip_grad_norm_(clip)" not in text
    assert any("assuming model is the sharded model" in one for one in findings(printed, "FSDP201"))


def test_a_run_that_ended_early_denies_nothing(rewritten: Rewritten) -> None:
    trace = record(TRAIN, {("model.clip", "model"): {"module": 40}})
    _, text, _ = rewritten(TRAIN, dataclasses.replace(trace, ended={0: "steps", 1: "running"}))
    assert "model.clip_grad_norm_(clip)" not in text


def test_a_sure_answer_that_the_run_contradicts_is_an_error(rewritten: Rewritten) -> None:
    code, _, printed = rewritten(TRAIN, record(TRAIN, {("net.clip", "net"): {"module": 2}}))
    assert code == 1
    assert (
        "manual: net is a sharded model according to this tool (its function wraps it earlier, on every path to this "
        in printed
    )
    assert "place), but it was not in 2 of 2 runs of this line (module)" in printed


def test_a_model_whose_steps_use_all_of_it_needs_no_zeros(rewritten: Rewritten) -> None:
    (number,) = [n for n, line in enumerate(TRAIN.splitlines(), 1) if line.strip().startswith("net = ")]
    for unused, level in (({}, "info: each of 5 traced steps"), ({"head.weight": 3}, "review: set_reduce_scatter_")):
        wrap = WRAP | {"at": ["train.py", number, 10, number, 43], "unused": unused}
        trace = dataclasses.replace(record(TRAIN, {}), wraps=(wrap,))
        _, text, printed = rewritten(TRAIN, trace, "--torch", "2.13")
        assert ("net.set_reduce_scatter_unused_params(True)" in text) == bool(unused)
        assert any(one.startswith(level) for one in findings(printed, "FSDP121")), printed


@pytest.mark.parametrize(
    ("state", "said"),
    [
        ("FULL_STATE_DICT", "safe: get_model_state_dict returns the state"),
        (
            "SHARDED_STATE_DICT",
            "manual: state_dict cannot be rewritten: in the traced run, SHARDED_STATE_DICT is set elsewhere",
        ),
    ],
)
def test_the_type_of_state_in_force(rewritten: Rewritten, state: str, said: str) -> None:
    text = TRAIN.replace("    return net.module", "    return net.state_dict()")
    number = len(text.splitlines())
    trace = dataclasses.replace(
        record(text, {}), reads=(("train.py", (number, 11, number, 25), "state_dict", state, 2),)
    )
    _, _, printed = rewritten(text, trace)
    assert findings(printed, "FSDP309")[0].startswith(said)


def test_a_file_that_has_changed_is_not_judged_by_the_run(rewritten: Rewritten) -> None:
    other = TRAIN.replace("path)", "path) ")
    _, text, printed = rewritten(other, record(TRAIN, {("torch.save", "thing"): {"model": 40}}))
    assert "thing.module" in text
    assert "train.py has changed since it was traced, so its record is not used" in printed


def test_the_report_has_the_share_that_the_run_decides(rewritten: Rewritten) -> None:
    _, _, printed = rewritten(TRAIN, record(TRAIN, {("torch.save", "thing"): {"model": 40}}))
    (share,) = re.findall(r"^trace: (\d+) of (\d+) findings", printed, re.MULTILINE)
    assert int(share[0]) == 2 < int(share[1])
    assert re.search(r"^trace: these lines did not run: train\.py:\d+ \(FSDP\d+\), ", printed, re.MULTILINE)


def test_json_says_which_findings_ran(rewritten: Rewritten, tmp_path: Path) -> None:
    rewritten(TRAIN, record(TRAIN, {("torch.save", "thing"): {"model": 40}}), "--report", "r.json")
    found = json.loads((tmp_path / "r.json").read_text(encoding="utf-8"))["findings"]
    assert {one["ran"] for one in found if one["rule"] == "FSDP206" and "thing" in one["message"]} == {True}
    assert False in {one["ran"] for one in found}


def test_check_takes_a_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(TRAIN, encoding="utf-8")
    Path("trace.json").write_text(dumped(record(TRAIN, {("torch.save", "thing"): {"model": 40}})), encoding="utf-8")
    assert main(["check", "train.py"]) == 1
    assert "thing is the model itself" not in capsys.readouterr().out
    assert main(["check", "--trace", "trace.json", "train.py"]) == 1
    assert "thing is the model itself" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{}", "is not a record of fsdp-migrate trace"),
        ("no", "is not JSON"),
        ('{"format": "fsdp-migrate trace", "version": 99}', "has version 99; this fsdp-migrate reads version 1"),
        ('{"format": "fsdp-migrate trace", "version": 1}', "is damaged (KeyError: 'files'): trace again"),
    ],
)
def test_what_is_no_record_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], content: str, said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(TRAIN, encoding="utf-8")
    Path("trace.json").write_text(content, encoding="utf-8")
    assert main(["rewrite", "--trace", "trace.json", "train.py"]) == 2
    assert said in capsys.readouterr().err
    assert Path("train.py").read_text(encoding="utf-8") == TRAIN


CALLED = """
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def shard(net):
    return FSDP(net, use_orig_params=True)


def main(batches):
    net = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    net = shard(net)
    for batch in batches:
        net(batch).sum().backward()
        optimizer.step()
"""


def test_an_optimizer_that_the_rewrite_moves_is_not_reported_as_early(rewritten: Rewritten) -> None:
    wrap = {**WRAP, "at": ["train.py", 7, 11, 7, 42], "optimizers before": [0]}
    built = {"at": ["train.py", 12, 16, 12, 58], "class": "SGD", "groups": 1, "kind": "optimizer"}
    trace = dataclasses.replace(record(CALLED, {}), wraps=(wrap,), optimizers=(built,))
    _, text, printed = rewritten(CALLED, trace)
    assert text.index("shard(net)\n    optimizer") < text.index("torch.optim.SGD")
    assert findings(printed, "FSDP117")
    assert not findings(printed, "FSDP125")


FORCES = """
import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import ModuleWrapPolicy


class Block(nn.Module):
    pass


class Field(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = Block()

    def forward(self, place, forces):
        energy = self.blocks(place)
        if not forces:
            return energy
        return torch.autograd.grad(energy.sum(), place, create_graph=self.training)[0]


def build():
    return FSDP(Field(), auto_wrap_policy=ModuleWrapPolicy({Block}), use_orig_params=True)
"""
EXPERTS = """
import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullStateDictConfig, StateDictType
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def wrap(net, group):
    net.layer.experts = FSDP(net.layer.experts, process_group=group, use_orig_params=True)
    return FSDP(net, use_orig_params=True)


def save(net, group):
    net = wrap(net, group)
    experts = net.layer.experts
    with FSDP.state_dict_type(experts, StateDictType.FULL_STATE_DICT, FullStateDictConfig(True, rank0_only=True)):
        return experts.state_dict()


def main(net):
    torch.save(save(net, dist.new_group([0, 1])), "experts.pt")
"""


def test_a_unit_that_ran_decides_nothing_of_a_gradient_behind_it(rewritten: Rewritten) -> None:
    code, _, printed = rewritten(FORCES, record(FORCES, {("energy =", "self.blocks"): {"model": 40}}))
    assert code == 1
    assert any("this forward computes gradients itself" in one for one in findings(printed, "FSDP237"))


def test_a_run_does_not_say_which_wrap_a_model_is_from(rewritten: Rewritten) -> None:
    seen = {("with FSDP", "experts"): {"model": 4}, ("return experts", "experts"): {"model": 4}}
    code, text, printed = rewritten(EXPERTS, record(EXPERTS, seen))
    assert code == 1 and "get_model_state_dict(" not in text
    assert any("the model uses a subgroup" in one for one in findings(printed, "FSDP301"))
