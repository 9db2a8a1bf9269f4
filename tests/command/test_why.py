"""``rewrite --why FILE:LINE``: what expressions may be, with the way from where that is made."""

from __future__ import annotations

from itertools import takewhile
from pathlib import Path

import pytest

from fsdp_migrate.cli import main

BUILD = """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def same(one):
    return one


class Trainer:
    def __init__(self, net):
        self.model = same(FSDP(net))

    def fit(self, batches):
        for batch in batches:
            loss = self.model(batch).sum()
            loss.backward()
"""
LOOP = """\
from build import Trainer


def norms(trainer):
    for weight in trainer.model.parameters():
        print(weight.data.topk(2))


def main(net):
    norms(Trainer(net))
"""
GUESS = """\
def norms(anything):
    return anything.model.clip_grad_norm_(1.0)
"""
FILES = {"build.py": BUILD, "loop.py": LOOP, "guess.py": GUESS}


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def why(place: str, capsys: pytest.CaptureFixture[str]) -> list[str]:
    assert main(["rewrite", "--why", place, "."]) == 0
    said = capsys.readouterr()
    return said.out.splitlines()


def test_the_way_goes_through_functions_objects_and_files(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = why("loop.py:6", capsys)
    start = said.index("loop.py:6: `weight` may be a parameter of such a model, or a tensor that shares its values")
    way = [" ".join(line.split()) for line in takewhile(lambda line: line.startswith("    "), said[start + 1 :])]
    assert way[0] == "build.py:10 FSDP(net) (a model in FSDP1's class)"
    assert "build.py:5 one" in way
    assert "loop.py:5 trainer.model" in way
    assert way[-2].startswith("loop.py:5 weight (a parameter of such a model")
    assert way[-1] == "loop.py:6 weight"


def test_every_place_of_a_name_and_the_call_that_makes_it(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    body = "def run(net):\n    net = FSDP(net)\n    net.train()\n    return net.clip_grad_norm_(1)\n"
    body = f"from build import FSDP\n\n\n{body}"
    (tree / "run.py").write_text(body, encoding="utf-8")
    for line in (5, 6, 7):
        said = [" ".join(one.split()) for one in why(f"run.py:{line}", capsys)]
        assert f"run.py:{line}: `net` may be a model in FSDP1's class" in said
        assert "run.py:5 FSDP(net) (a model in FSDP1's class)" in said


def test_findings_of_the_line_come_first(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert why("loop.py:6", capsys)[0].startswith("loop.py:6:")
    assert "FSDP2" in why("loop.py:6", capsys)[0]


def test_what_rests_on_a_name_says_so(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = why("guess.py:2", capsys)
    assert any("only by its name: some object has this as `model`" in line for line in said)


def test_a_line_without_any_says_so(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert why("build.py:15", capsys) == [
        "build.py:15: no expression that begins here can be an FSDP1 model or part of one"
    ]


def test_a_file_that_no_model_reaches_says_so(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tree / "other.py").write_text("print(1)\n", encoding="utf-8")
    assert why("other.py:1", capsys) == ["other.py:1: not analysed, because no FSDP1 model is passed to this file"]


def test_nothing_is_written(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    why("build.py:10", capsys)
    assert {name: (tree / name).read_text(encoding="utf-8") for name in FILES} == FILES


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--why", "loop.py", "."], "give a file and a line"),
        (["--why", "loop.py:0", "."], "give a file and a line"),
        (["--why", "loop.py:99", "."], "loop.py has no line 99"),
        (["--why", "missing.py:1", "."], "missing.py is not a Python file under ."),
        (["--why", "loop.py:6", "--diff", "."], "writes nothing"),
        (["--why", "loop.py:6", "--format", "json", "."], "writes nothing"),
    ],
)
def test_bad_input(words: list[str], says: str, tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rewrite", *words]) == 2
    assert says in capsys.readouterr().err
