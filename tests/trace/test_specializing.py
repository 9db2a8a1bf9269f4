"""``rewrite --trace --specialize``: what a run was given is written where the code reads a configuration."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fsdp_migrate.cli import main
from fsdp_migrate.trace.record import Trace, TracedFile, dumped
from fsdp_migrate.trace.specializing import specialized
from tests.trace.test_evidence import WRAP

SPREAD = """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def build(net, config):
    kwargs = config.arguments()
    return FSDP(net, **kwargs)
"""
BF16 = {
    "class": "MixedPrecision",
    "param_dtype": "torch.bfloat16",
    "reduce_dtype": None,
    "buffer_dtype": None,
    "keep_low_precision_grads": False,
    "cast_forward_inputs": False,
    "cast_root_forward_inputs": True,
    "_module_classes_to_ignore": ["torch.nn.modules.batchnorm._BatchNorm"],
}
GIVEN = {"sharding_strategy": "ShardingStrategy.SHARD_GRAD_OP", "mixed_precision": BF16, "use_orig_params": True}
Rewritten = Callable[..., tuple[int, str, str]]


def wrapped(text: str, *given: dict[str, Any]) -> list[dict[str, Any]]:
    """Wraps by the one call in ``text``, each of which was given these arguments."""
    line, column = next((n, at) for n, one in enumerate(text.splitlines(), 1) if (at := one.find("FSDP(")) >= 0)
    return [{**WRAP, "at": ["train.py", line, column, line, column + 5], "arguments": one} for one in given]


def record(text: str, *given: dict[str, Any]) -> Trace:
    """A record of a run of ``text`` on two ranks."""
    file = TracedFile(hashlib.sha256(text.encode()).hexdigest(), {6: {0: 1, 1: 1}, 7: {0: 1, 1: 1}})
    traced = Trace(2, 5, {0: "steps", 1: "steps"}, {}, files={"train.py": file})
    return dataclasses.replace(traced, wraps=tuple(wrapped(text, *given)))


@pytest.fixture
def rewritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Rewritten:
    """Rewrites a text by a record that lies beside it: exit code, the text after, and what was printed."""
    monkeypatch.chdir(tmp_path)

    def rewrite(text: str, trace: Trace, *options: str) -> tuple[int, str, str]:
        Path("train.py").write_text(text, encoding="utf-8")
        Path("trace.json").write_text(dumped(trace), encoding="utf-8")
        code = main(["rewrite", "--trace", "trace.json", "--verbose", "--allow-dirty", *options, "."])
        return code, Path("train.py").read_text(encoding="utf-8"), capsys.readouterr().out

    return rewrite


def test_arguments_of_a_dictionary_are_written_out(rewritten: Rewritten) -> None:
    code, after, said = rewritten(SPREAD, record(SPREAD, GIVEN), "--specialize")
    assert code == 0
    assert "fsdp_compat" not in after
    assert "        reshard_after_forward=False,\n" in after
    assert "MixedPrecisionPolicy(param_dtype=torch.bfloat16" in after
    assert "import ShardingStrategy" not in after
    assert "train.py:7" in said
    assert (
        "assumes every run has the values of the traced run: sharding_strategy=ShardingStrategy.SHARD_GRAD_OP" in said
    )


def test_a_configuration_stays_one_without_it(rewritten: Rewritten) -> None:
    _, after, said = rewritten(SPREAD, record(SPREAD, GIVEN))
    assert "**kwargs" in after
    assert "assumes every run" not in said


def test_a_record_is_no_configuration(rewritten: Rewritten) -> None:
    given = {**GIVEN, "auto_wrap_policy": {"partial": "torch.distributed.fsdp.wrap.transformer_auto_wrap_policy"}}
    _, _, said = rewritten(SPREAD, record(SPREAD, given))
    assert "trace.json" not in said


def test_without_a_record_there_is_nothing_to_write(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rewrite", "--specialize", "."]) == 2
    assert "give --trace FILE" in capsys.readouterr().err


STRATEGY = "ShardingStrategy.SHARD_GRAD_OP"
OFFLOAD = {"cpu_offload": {"class": "CPUOffload", "offload_params": True}}
#: A call, what it was given, and the call afterwards; None where it stays.
WRITTEN: list[tuple[str, dict[str, Any], str | None]] = [
    ("FSDP(net, sharding_strategy=args.s)", GIVEN, f"FSDP(net, sharding_strategy={STRATEGY})"),
    (
        "FSDP(net, mixed_precision=policy(args))",
        GIVEN,
        "FSDP(net, mixed_precision=MixedPrecision(param_dtype=torch.bfloat16))",
    ),
    ("FSDP(net, None, args.s)", GIVEN, f"FSDP(net, None, {STRATEGY})"),
    ("FSDP(net, cpu_offload=args.o)", OFFLOAD, "FSDP(net, cpu_offload=CPUOffload(offload_params=True))"),
    (
        "FSDP(net, **args.fsdp)",
        {"use_orig_params": True, "device_id": "cpu"},
        'FSDP(net, use_orig_params=True, device_id=args.fsdp["device_id"])',
    ),
    (
        "FSDP(net, use_orig_params=True, **args.fsdp)",
        {"use_orig_params": True, "cpu_offload": None},
        "FSDP(net, use_orig_params=True, cpu_offload=None)",
    ),
    ("FSDP(net, *args.all)", GIVEN, None),
    ("FSDP(net, use_orig_params=True)", {"use_orig_params": True}, None),
    ("FSDP(net, auto_wrap_policy=args.policy)", {"auto_wrap_policy": "module.policy"}, None),
    ("FSDP(net, mixed_precision=args.mp)", {"mixed_precision": {**BF16, "_module_classes_to_ignore": []}}, None),
]


@pytest.mark.parametrize(("call", "given", "after"), WRITTEN, ids=[call for call, _, _ in WRITTEN])
def test_what_is_written(call: str, given: dict[str, Any], after: str | None) -> None:
    text = f"import torch\nfrom torch.distributed.fsdp import FullyShardedDataParallel as FSDP\nnet = {call}\n"
    written = specialized(text, wrapped(text, given)).text.splitlines()
    assert written[2] == f"net = {after or call}"


def test_what_calls_were_given_differently_is_kept() -> None:
    text = "from torch.distributed.fsdp import FSDP\nnet = FSDP(net, **args)\n"
    both = wrapped(text, GIVEN, {**GIVEN, "sharding_strategy": "ShardingStrategy.FULL_SHARD"})
    assert specialized(text, both).text == text


def test_lines_stay_and_columns_move() -> None:
    text = "from torch.distributed.fsdp import FSDP\nmodel = FSDP(net,\n    **(\n    args.fsdp)); use(model)\n"
    found = specialized(text, wrapped(text, {"use_orig_params": False}))
    assert len(found.text.splitlines()) == len(text.splitlines())
    assert compile(found.text, "train.py", "exec")
    line = found.text.splitlines()[3]
    assert found._at((4, text.splitlines()[3].index("use("))) == (4, line.index("use("))
