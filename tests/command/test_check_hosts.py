"""What is shipped for other programs to call: the pre-commit hook and the GitHub Action, called as they call them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from markdown_it import MarkdownIt

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
SOURCE = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n\n\ndef build(m):\n    return FSDP(m)\n"
CLEAN = "from torch.distributed.fsdp import fully_shard\n\n\ndef build(m):\n    return fully_shard(m)\n"


@pytest.fixture
def environment(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """This project's commands on the path, as an installation puts them there; nothing of ours in the home."""
    monkeypatch.setenv("PATH", f"{BIN}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PRE_COMMIT_HOME", str(tmp_path_factory.mktemp("pre-commit")))
    monkeypatch.setenv("PYTHONWARNINGS", "default")


# ---------------------------------------------------------------------------------------------------- pre-commit


@pytest.fixture
def hooks(tmp_path_factory: pytest.TempPathFactory, environment: None) -> Path:
    """A git repository that has the shipped hooks, for pre-commit to clone."""
    folder = tmp_path_factory.mktemp("hooks")
    shutil.copy(ROOT / ".pre-commit-hooks.yaml", folder)
    identity = ("-c", "user.name=Somebody", "-c", "user.email=somebody@example.org")
    for command in (("init", "--quiet"), ("add", "--all"), (*identity, "commit", "--quiet", "--message", "hooks")):
        subprocess.run(["git", *command], cwd=folder, check=True)
    return folder


@pytest.fixture
def hooked(hooks: Path, tmp_path: Path, git: Callable[..., str]) -> Callable[..., subprocess.CompletedProcess[str]]:
    """A project with the hook installed by pre-commit; call it with options of the hook to commit all that is there."""
    revision = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=hooks, capture_output=True, text=True, check=True
    ).stdout.strip()

    def commit(**options: Any) -> subprocess.CompletedProcess[str]:
        # `language: system` takes the command from the path: installing one would need a network.
        hook = {"id": "fsdp-migrate-check", "language": "system", **options}
        config = {"repos": [{"repo": str(hooks), "rev": revision, "hooks": [hook]}]}
        (tmp_path / ".pre-commit-config.yaml").write_text(yaml.safe_dump(config))
        subprocess.run([BIN / "pre-commit", "install"], cwd=tmp_path, check=True, capture_output=True)
        git("add", "--all")
        return subprocess.run(
            ["git", "commit", "--message", "work"], cwd=tmp_path, capture_output=True, text=True, check=False
        )

    return commit


def test_pre_commit_takes_the_manifest(environment: None) -> None:
    subprocess.run([BIN / "pre-commit", "validate-manifest", ROOT / ".pre-commit-hooks.yaml"], check=True)


def test_the_hook_stops_a_commit_until_nothing_is_left(
    hooked: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    (tmp_path / "a.py").write_text(SOURCE)
    answer = hooked()
    assert answer.returncode == 1, answer.stderr
    assert "fsdp-migrate check......" in answer.stderr
    assert "a.py:5:12: FSDP101 safe: " in answer.stderr
    (tmp_path / "a.py").write_text(CLEAN)
    answer = hooked()
    assert answer.returncode == 0, answer.stderr
    # What was committed before counts too: a wrapped model is followed from file to file.
    (tmp_path / "b.txt").write_text("no Python\n")
    assert "Passed" in hooked().stderr


def test_the_hook_takes_options(hooked: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(SOURCE)
    assert hooked(args=["--min-level", "manual", "."]).returncode == 0
    (tmp_path / "a.py").write_text(SOURCE + "\n")
    answer = hooked(args=["--select", "FSDP9999", "."])
    assert answer.returncode == 1
    assert "there is no rule FSDP9999" in answer.stderr


# ------------------------------------------------------------------------------------------------- GitHub Action


@dataclass(frozen=True)
class Action:
    """Runs the steps of a composite action as GitHub's runner does: inputs, ``if``, expressions, bash with ``-e``."""

    content: Mapping[str, Any]
    folder: Path

    def run(self, workspace: Path, **inputs: str) -> subprocess.CompletedProcess[str]:
        unknown = set(inputs) - set(self.content["inputs"])
        assert not unknown, unknown
        values = {name: inputs.get(name, entry["default"]) for name, entry in self.content["inputs"].items()}
        context = {f"inputs.{name}": value for name, value in values.items()}
        context["github.action_path"] = str(self.folder)
        assert self.content["runs"]["using"] == "composite"
        log = ""
        for step in self.content["runs"]["steps"]:
            if not self._wanted(step.get("if", ""), context):
                continue
            # An expression inside a script would let an input run as code.
            assert "${{" not in step["run"]
            assert step["shell"] == "bash"
            answer = subprocess.run(
                ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
                cwd=workspace,
                env={**os.environ, **{name: _filled(value, context) for name, value in step["env"].items()}},
                capture_output=True,
                text=True,
                check=False,
            )
            log += answer.stdout
            if answer.returncode:
                break
        return subprocess.CompletedProcess(answer.args, answer.returncode, log, answer.stderr)

    @staticmethod
    def _wanted(condition: str, context: Mapping[str, str]) -> bool:
        if not condition:
            return True
        name, _, value = condition.partition(" == ")
        return context[name] == value.strip("'")


def _filled(value: str, context: Mapping[str, str]) -> str:
    return re.sub(r"\$\{\{ ([\w.-]+) \}\}", lambda found: context[found[1]], value)


@pytest.fixture
def action(environment: None) -> Action:
    return Action(yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8")), ROOT)


def test_the_action_is_one_to_github(environment: None) -> None:
    command = [BIN / "check-jsonschema", "--builtin-schema", "vendor.github-actions", ROOT / "action.yml"]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stdout


def test_the_action_annotates_and_fails(action: Action, tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(SOURCE)
    answer = action.run(tmp_path, install="false")
    assert answer.returncode == 1, answer.stderr
    assert "::warning file=a.py,line=5,endLine=5,col=12,endColumn=19,title=FSDP101 constructor-call::" in answer.stdout
    (tmp_path / "a.py").write_text(CLEAN)
    answer = action.run(tmp_path, install="false")
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout == "1 source file and 0 checkpoints checked, no findings.\n"


def test_the_action_takes_all_its_inputs(action: Action, tmp_path: Path) -> None:
    for name in ("two words", "-b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.py").write_text(SOURCE)
    answer = action.run(
        tmp_path,
        install="false",
        paths="two words\n\n-b\n",
        select="FSDP1",
        ignore="FSDP100,FSDP110",
        format="sarif",
        output="out.sarif",
        **{"min-level": "safe"},
    )
    assert answer.returncode == 1, answer.stderr
    assert "two words/a.py:5:12: FSDP101" in answer.stdout
    assert "-b/a.py:5:12: FSDP101" in answer.stdout
    assert "FSDP110" not in answer.stdout
    assert '"version": "2.1.0"' in (tmp_path / "out.sarif").read_text()
    assert action.run(tmp_path, install="false", **{"min-level": "manual"}).returncode == 0
    assert action.run(tmp_path, install="false", baseline="absent.json").returncode == 2


def test_inputs_are_never_run(action: Action, tmp_path: Path) -> None:
    hostile = '$(touch ran) `touch ran`; touch ran" && touch ran && "'
    for name in set(action.content["inputs"]) - {"install"}:
        (tmp_path / name).mkdir()
        answer = action.run(tmp_path / name, install="false", **{name: hostile})
        # A strange name for a file to write is still a name, and all but "true" is no.
        assert answer.returncode == (0 if name in ("output", "exit-zero") else 2)
    assert not list(tmp_path.rglob("ran"))


def test_the_action_installs_what_lies_beside_it(
    action: Action, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stub = tmp_path / "bin" / "python"
    stub.parent.mkdir()
    stub.write_text('#!/bin/sh\nprintf "%s\\n" "$@" >> "$CALLS"\n')
    stub.chmod(0o755)
    monkeypatch.setenv("CALLS", str(tmp_path / "calls"))
    monkeypatch.setenv("PATH", f"{stub.parent}{os.pathsep}{os.environ['PATH']}")
    assert action.run(tmp_path).returncode == 0
    calls = (tmp_path / "calls").read_text().splitlines()
    assert calls[:3] == ["-m", "pip", "install"]
    installed = Path(calls[calls.index("fsdp_migrate") - 2])
    assert (installed / "pyproject.toml").read_text(encoding="utf-8").count('name = "fsdp-migrate"') == 1
    assert calls[calls.index("fsdp_migrate") + 1 :] == ["check", "--format", "github", "--", "."]


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("sarif", ["--builtin-schema", "vendor.github-workflows"]),
        ("comment", ["--builtin-schema", "vendor.github-workflows"]),
        ("gitlab-ci", ["--builtin-schema", "vendor.gitlab-ci", "--data-transform", "gitlab-ci"]),
    ],
)
def test_the_example_workflows_are_ones_to_their_hosts(environment: None, name: str, options: list[str]) -> None:
    file = ROOT / "docs" / "workflows" / f"{name}.yml"
    command = [BIN / "check-jsonschema", *options, file]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stdout


def test_the_comment_holds_the_patch(environment: None, tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(f'"""{"~" * 9}\n\n{"~" * 12}\n@all <b>\n"""\n{SOURCE}')
    steps = yaml.safe_load((ROOT / "docs/workflows/comment.yml").read_text())["jobs"]["fsdp-migrate"]["steps"]
    (script,) = [step["run"] for step in steps if step.get("name") == "Write the comment"]
    path = {"PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"}
    shell = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script]
    subprocess.run(shell, cwd=tmp_path, env={**os.environ, **path}, check=True)
    comment = (tmp_path / "comment.md").read_text()
    assert "+++ b/a.py" in comment
    assert comment.startswith("1 file read, 1 with findings, 1 would be rewritten.")
    fences = [token for token in MarkdownIt("commonmark").parse(comment) if token.type == "fence"]
    assert [token.content.strip() for token in fences] == [(tmp_path / "fsdp2.patch").read_text().strip()]
    assert "@all" in fences[0].content
