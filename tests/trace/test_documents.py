"""What every command prints with ``--format json`` fits its JSON Schema, which the wheel carries."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import click
import pytest
import torch
from jsonschema import Draft202012Validator
from referencing import Registry, Resource

from fsdp_migrate.cli import cli, main
from tests.forked import PYTHON
from tests.trace.conftest import TORCHRUN, TRAIN

SCHEMAS = {file.name: json.loads(file.read_text()) for file in (files("fsdp_migrate") / "schemas").iterdir()}
#: Servers, whose output is not text for people either.
SERVERS = {"lsp", "mcp"}
RUN = ("--", PYTHON, *TORCHRUN, "train.py")
BY_HAND = TRAIN.replace('parts["net"].clip_grad_norm_(1.0)', 'parts["net"]._handle')

Answer = Callable[..., dict[str, Any]]


def closed(schema: Any) -> Any:
    """The schema with no other keys allowed than those that it names: a test must notice a key without one."""
    if isinstance(schema, list):
        return [closed(entry) for entry in schema]
    if not isinstance(schema, dict):
        return schema
    more = {"additionalProperties": False} if "properties" in schema else {}
    return {**more, **{key: closed(value) for key, value in schema.items()}}


REGISTRY: Registry = Registry().with_resources(
    [(name, Resource.from_contents(closed(schema))) for name, schema in SCHEMAS.items()]
)


def errors(found: dict[str, Any], name: str) -> list[str]:
    """What of ``found`` does not fit the schema of this name."""
    schema = closed(SCHEMAS[f"{name.replace(' ', '-')}.schema.json"])
    return [error.message for error in Draft202012Validator(schema, registry=REGISTRY).iter_errors(found)]


@pytest.fixture
def answer(capfd: pytest.CaptureFixture[str]) -> Answer:
    """Runs a command with ``--format json``, and checks its answer by the schema of that name."""

    def run(name: str, *words: str, code: int = 0) -> dict[str, Any]:
        place = words.index("--") if "--" in words else len(words)
        assert main([*words[:place], "--format", "json", *words[place:]]) == code, capfd.readouterr()
        # Nothing but the document is on standard output.
        found = json.loads(capfd.readouterr().out)
        assert found["format"] == f"fsdp-migrate {name}"
        assert errors(found, name) == []
        return dict(found)

    return run


def leaves(command: click.Command, name: str = "") -> Iterator[tuple[str, click.Command]]:
    if isinstance(command, click.Group):
        for each, inner in command.commands.items():
            yield from leaves(inner, f"{name} {each}".strip())
    else:
        yield name, command


@pytest.mark.parametrize("name", [name for name, _ in leaves(cli) if name not in SERVERS])
def test_every_command_has_a_form_for_programs(name: str) -> None:
    command = dict(leaves(cli))[name]
    (form,) = [option for option in command.params if "--format" in option.opts]
    assert isinstance(form.type, click.Choice)
    assert "json" in form.type.choices
    known = {"explain": "rules", "verify run": "verify", "verify compare": "verify", "trace": "trace-summary"}
    schema = known.get(name, name.replace(" ", "-"))
    assert f"{schema}.schema.json" in SCHEMAS


@pytest.mark.parametrize("name", SCHEMAS)
def test_a_schema_is_one(name: str) -> None:
    Draft202012Validator.check_schema(SCHEMAS[name])


def test_sources(project: Path, answer: Answer) -> None:
    (project / "train.py").write_text(BY_HAND, encoding="utf-8")
    assert answer("check", "check", ".", code=1)["version"] == 2
    there = answer("rewrite", "rewrite", "--diff", "--allow-dirty", ".", code=1)
    assert there["patch"].startswith("--- a/train.py\n+++ b/train.py\n")
    assert (project / "train.py").read_text(encoding="utf-8") == BY_HAND
    assert answer("rewrite", "rewrite", "--allow-dirty", ".", code=1)["patch"] is None
    place = answer("next", "next", code=1)["item"]["id"]
    assert answer("done", "done", place, code=1)["done"] is False
    answer("status", "status")
    answer("status", "status", "--since", "HEAD")
    (listed,) = answer("undo", "undo", "--list")["runs"]
    assert (listed["files"], listed["put_back"]) == (["train.py"], [])
    (undone,) = answer("undo", "undo")["runs"]
    assert undone == {**listed, "put_back": ["train.py"]}
    assert (project / "train.py").read_text(encoding="utf-8") == BY_HAND
    answer("rewrite", "rewrite", "--allow-dirty", ".", code=1)
    (project / "train.py").write_text("pass\n", encoding="utf-8")
    (undone,) = answer("undo", "undo", code=1)["runs"]
    assert [left["path"] for left in undone["left"]] == ["train.py"]
    assert answer("next", "next")["item"] is None


def test_texts(project: Path, answer: Answer) -> None:
    assert len(answer("rules", "rules")["rules"]) > 100
    assert [rule["id"] for rule in answer("rules", "explain", "102")["rules"]] == ["FSDP102"]
    text = answer("skill", "skill")["text"]
    (written,) = answer("skill", "skill", "--write")["written"]
    assert Path(written).read_text(encoding="utf-8") == text


def test_checkpoints(tmp_path: Path, answer: Answer) -> None:
    file = tmp_path / "model.pt"
    torch.save({"model": {"a.weight": torch.ones(2, 3)}}, file)
    (found,) = answer("checkpoint inspect", "checkpoint", "inspect", str(file))["checkpoints"]
    assert found["tensors"][0]["key"] == ["model", "a.weight"]
    words = ("checkpoint", "convert", str(file), str(tmp_path / "new"), "--to", "safetensors")
    assert answer("checkpoint convert", *words, "--dry-run")["written"] is False
    assert answer("checkpoint convert", *words)["written"] is True
    answer("checkpoint verify", "checkpoint", "verify", str(file))


def test_runs(project: Path, answer: Answer) -> None:
    (unit,) = answer("preflight", "preflight", *RUN, code=1)["models"][0]["units"]
    assert unit["kind"] == "FSDP1"
    answer("preflight", "preflight", "--compare", *RUN, code=1)
    assert answer("tune", "tune", *RUN, code=1)["kind"] == "FSDP1"
    record = str(project.parent / "trace.json")
    assert answer("trace summary", "trace", "-o", record, "--steps", "2", *RUN)["missing"] == []
    assert errors(json.loads(Path(record).read_text()), "trace") == []
    assert answer("verify record", "verify", "record", "../one", "--steps", "2", *RUN)["ranks"] == 2
    same = answer("verify", "verify", "compare", "../one", "../one")
    assert (same["verdict"], same["first"]) == ("equal", None)


def test_a_rewrite_that_differs(project: Path, answer: Answer) -> None:
    differs = TRAIN.replace("lr=0.1", 'lr=0.1 if hasattr(parts["net"], "reshard") else 0.2')
    (project / "train.py").write_text(differs, encoding="utf-8")
    found = answer("migrate", "migrate", "--allow-dirty", "--steps", "2", *RUN, code=1)
    assert found["verdict"]["verdict"] == "different"
    assert found["bisection"]["runs"] > 0
    assert answer("migrate abort", "migrate", "--abort")["put_back"] == ["train.py"]


def test_the_edits_that_differ(project: Path, answer: Answer) -> None:
    found = answer("verify bisect", "verify", "--bisect", "--steps", "2", *RUN)
    assert (found["verdict"]["verdict"], found["edits"]) == ("equal", [])
