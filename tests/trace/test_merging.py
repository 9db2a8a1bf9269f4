"""``trace --merge``: records of several runs, and of the nodes of one, become one."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fsdp_migrate.cli import main
from fsdp_migrate.trace.evidence import Evidence
from fsdp_migrate.trace.merging import merge
from fsdp_migrate.trace.record import Trace, TracedFile, Value, dumped, load
from tests.forked import PYTHON
from tests.trace.conftest import TORCHRUN, TRAIN

SOURCE = b"model\nsave(model)\n"
HASH = "8f3ccf3e5bd1a2d2b40bbf6d0c9dc6fd5a6d3c2e2d3ba7cd1d6c52d36a4b4c3d"


def trace(*ranks: int, world: int = 2, end: str = "over", sha: str = HASH, **more: Any) -> Trace:
    """A record of these ranks: each ran line 1 twice and saw a model there."""
    values = (Value((1, 0, 1, 5), {"model": 2 * len(ranks)}, ranks),)
    file = TracedFile(sha, {1: dict.fromkeys(ranks, 2)}, values)
    wrap = {"at": ["a.py", 1, 0], "batch norm": [], "meta": False, "steps": 3, "unused": {}, "optimizers before": [0]}
    known = {"files": {"a.py": file}, "wraps": (wrap,), "optimizers": ({"at": ["a.py", 1, 0], "kind": "x"},), **more}
    return Trace(world, 3, dict.fromkeys(ranks, end), {}, ("train.py",), **known)


def merged(*traces: Trace) -> Trace:
    return merge([(Path(f"{number}.json"), each) for number, each in enumerate(traces)])


def test_nodes_of_a_run() -> None:
    whole = merged(trace(0), trace(1))
    assert (whole.is_whole, whole.steps, whole.missing) == (True, 3, [])
    assert whole.files["a.py"].lines == {1: {0: 2, 1: 2}}
    assert whole.files["a.py"].values == (Value((1, 0, 1, 5), {"model": 4}, (0, 1)),)
    # Both nodes saw the same wrap.
    assert len(whole.wraps) == 1


def test_runs_add_up() -> None:
    whole = merged(trace(0, 1), trace(0, 1))
    assert (whole.is_whole, whole.steps) == (True, 6)
    assert whole.files["a.py"].lines == {1: {0: 4, 1: 4}}
    assert [wrap["optimizers before"] for wrap in whole.wraps] == [[0], [1]]
    assert merged(whole, trace(0, 1)).files["a.py"].lines == {1: {0: 6, 1: 6}}


@pytest.mark.parametrize(
    ("traces", "missing"),
    [
        ((trace(0, world=4), trace(3, world=4)), [1, 2]),
        # The node of another run does not fill in for one that is missing.
        ((trace(0), replace(trace(1), argv=("other.py",))), [0, 1]),
        ((trace(0, 1), trace(0, world=3)), [1, 2]),
    ],
)
def test_missing_ranks_are_named(traces: tuple[Trace, ...], missing: list[int]) -> None:
    whole = merged(*traces)
    assert (whole.missing, whole.is_whole) == (missing, False)


def test_the_worst_end_counts() -> None:
    assert merged(trace(0, 1), trace(0, 1, end="running")).ended == {0: "running", 1: "running"}


def test_a_rank_that_did_not_look_in_one_run_has_not_looked() -> None:
    silent = trace(0, 1, files={"a.py": TracedFile(HASH, {1: {0: 1, 1: 1}}, ())})
    assert merged(trace(0, 1), silent).files["a.py"].values == (Value((1, 0, 1, 5), {"model": 4}, ()),)
    elsewhere = trace(0, 1, files={"a.py": TracedFile(HASH, {7: {0: 1, 1: 1}}, ())})
    assert merged(trace(0, 1), elsewhere).files["a.py"].values == trace(0, 1).files["a.py"].values


def test_another_text_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, each in (("a", trace(0)), ("b", trace(1, sha="other"))):
        (tmp_path / name).write_text(dumped(each))
    assert main(["trace", "--merge", str(tmp_path / "a"), str(tmp_path / "b"), "-o", str(tmp_path / "c")]) == 2
    assert f"a.py is not the same file in {tmp_path / 'a'} and {tmp_path / 'b'}" in capsys.readouterr().err
    assert not (tmp_path / "c").exists()


def test_a_run_that_trains_and_one_that_restores(
    project: Path, traced: Callable[..., tuple[int, Trace]], capfd: pytest.CaptureFixture[str]
) -> None:
    text = TRAIN.replace(
        "    dist.destroy", '    if len(sys.argv) > 1:\n        restore(parts["net"], {})\n    dist.destroy'
    )
    text = text.replace("import torch\n", "import sys\n\nimport torch\n", 1).replace(
        "    thing.load_state_dict(state)", "    str(thing)"
    )
    (project / "train.py").write_text(text, encoding="utf-8")
    records = [str(project.parent / name) for name in ("one.json", "two.json", "both.json")]
    for record, words in zip(records, ((), ("restore",)), strict=False):
        code = main(["trace", "-o", record, "--steps", "9", "--", PYTHON, *TORCHRUN, "train.py", *words])
        assert code == 0, capfd.readouterr()
    capfd.readouterr()
    assert main(["trace", "--merge", *records[:2], "-o", records[2], "--format", "json"]) == 0
    said = json.loads(capfd.readouterr().out)
    assert (said["is_whole"], said["steps"], said["missing"]) == (True, 6, [])
    line = next(number for number, each in enumerate(text.splitlines(), 1) if "str(thing)" in each)
    assert line not in load(Path(records[0])).files["train.py"].lines
    real = {"train.py": (project / "train.py", text.encode())}
    seen = Evidence(load(Path(records[2])))(real).files["train.py"]
    assert seen.lines[line] == 2
    # Its first look is in both runs.
    first = next(number for number, each in enumerate(text.splitlines(), 1) if "loss.backward" in each)
    assert seen.lines[first] == 12
