"""Other names for the tensors of safetensors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from fsdp_migrate.cli import main

MODEL = {"blocks.0.up": torch.arange(6.0).reshape(2, 3), "tok": torch.ones(4), "scale": torch.tensor(2.0)}
OPTIONS = ("--to", "safetensors")


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    tied = MODEL["tok"]
    torch.save({"model": {**MODEL, "head": tied}, "step": 1}, tmp_path / "full.pt")
    return tmp_path / "full.pt"


def _converted(source: Path, names: str, *options: str) -> int:
    return main(["checkpoint", "convert", str(source), "out", *(options or OPTIONS), "--names", names])


def test_a_file_gives_some_of_them_other_names(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("names.json").write_text(json.dumps({"blocks.0.up": "model.layers.0.up", "head": "lm_head", "tok": "embed"}))
    assert _converted(source, "names.json") == 0
    found = load_file("out/model.safetensors")
    assert found.keys() == {"model.layers.0.up", "embed", "scale"}
    assert torch.equal(found["model.layers.0.up"], MODEL["blocks.0.up"])
    said = capsys.readouterr().out
    assert "renamed 3 of 4 tensors by names.json" in said
    assert "left out lm_head: the same elements as embed" in said
    assert main(["checkpoint", "verify", "out"]) == 0


def test_a_function_gives_them_other_names(source: Path) -> None:
    Path("naming_of_this_test.py").write_text("def renamed(name):\n    return name.replace('blocks', 'layers')\n")
    assert _converted(source, "naming_of_this_test:renamed") == 0
    assert load_file("out/model.safetensors").keys() == {"layers.0.up", "tok", "scale"}


@pytest.mark.parametrize(
    ("told", "why"),
    [
        ("[", "the names cannot be read"),
        ([["a", "b"]], "not a JSON object of old and new names"),
        ({"blocks.1.up": "x"}, "the checkpoint has no blocks.1.up"),
        ({"tok": "scale"}, "tok and scale would both be called scale"),
        ({"tok": ""}, "the new name of tok is '', not a text"),
        ({"tok": 1}, "the new name of tok is 1, not a text"),
    ],
)
def test_names_that_do_not_fit_are_refused(
    told: object, why: str, source: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("names.json").write_text(told if isinstance(told, str) else json.dumps(told))
    assert _converted(source, "names.json") == 2
    assert why in capsys.readouterr().err
    assert not Path("out").exists()


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("import no_module_of_that_name", "cannot be imported: ModuleNotFoundError"),
        ("def other(name): ...", "cannot be imported: AttributeError"),
        ("def renamed(name):\n    return {}[name]", "failed for blocks.0.up: KeyError"),
        ("def renamed(name): ...", "the new name of blocks.0.up is None, not a text"),
    ],
)
def test_a_function_that_fails_is_named(
    text: str, why: str, source: Path, capsys: pytest.CaptureFixture[str], request: pytest.FixtureRequest
) -> None:
    module = f"naming_{abs(hash(request.node.name))}"
    Path(f"{module}.py").write_text(text)
    assert _converted(source, f"{module}:renamed") == 2
    assert why in capsys.readouterr().err


def test_other_formats_keep_their_names(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("names.json").write_text("{}")
    assert _converted(source, "names.json", "--to", "full") == 2
    assert "--names needs --to safetensors" in capsys.readouterr().err
