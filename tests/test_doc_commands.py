"""Every command of README, CONTRIBUTING and docs/ runs here, or is named below with what runs it instead."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from fsdp_migrate.cli import cli, main
from tests.cli_words import called

ROOT = Path(__file__).resolve().parent.parent
PAGES = ["README.md", "CONTRIBUTING.md", *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))]
#: Blocks of these languages are for a shell; in one without a language, lines that begin with a known program are.
SHELLS = ("console", "sh", "bash", "shell")
PROGRAMS = ("fsdp-migrate", "python", "pytest", "make", "pip", "pipx", "uvx", "git", "torchrun", "pre-commit", "eval")
#: The beginning of a command: why it does not run here, and the file that runs it where there is one.
NOT_RUN = {
    "pip install": ("needs the network; the wheel is installed by", "tests/test_packages.py"),
    "pipx install": ("needs the network; the wheel is installed by", "tests/test_packages.py"),
    "uvx": ("needs the network; the wheel is installed by", "tests/test_packages.py"),
    "fsdp-migrate verify record": ("trains; run by", "tests/verify/test_verify_command.py"),
    "fsdp-migrate verify compare": ("needs two recordings; run by", "tests/verify/test_verify_command.py"),
    "fsdp-migrate verify": ("trains twice; run by", "tests/verify/test_verify_command.py"),
    "fsdp-migrate trace": ("trains; run by", "tests/trace/test_trace_command.py"),
    "fsdp-migrate migrate": ("trains twice; run by", "tests/trace/test_migrate.py"),
    "fsdp-migrate rewrite --trace": ("needs a trace; run by", "tests/trace/test_evidence.py"),
    "fsdp-migrate check --trace": ("needs a trace; run by", "tests/trace/test_evidence.py"),
    "fsdp-migrate status --trace": ("needs a trace; run by", "tests/trace/test_evidence.py"),
    "fsdp-migrate done": ("needs the id of a place; run by", "tests/command/test_next_done.py"),
    "fsdp-migrate preflight": ("trains; run by", "tests/verify/test_verify_command.py"),
    "fsdp-migrate tune": ("trains; run by", "tests/tune/test_tune_command.py"),
    "fsdp-migrate rewrite --layout layout.json": ("needs a recorded layout; run by", "tests/tune/test_expert.py"),
    "fsdp-migrate rewrite --interactive": ("needs a terminal; run by", "tests/command/test_interactive.py"),
    "fsdp-migrate rewrite --why": ("needs the files of the page; run by", "tests/command/test_why.py"),
    "fsdp-migrate rewrite [PATH]...": ("a synopsis; its options are compared with the command's", "tests/test_docs.py"),
    "sbatch": ("needs SLURM; the scripts are run by", "tests/verify/test_clusters.py"),
    "eval": ("sets up an interactive shell; run by", "tests/command/test_cli.py"),
    "_FSDP_MIGRATE_COMPLETE": ("sets up an interactive shell; run by", "tests/command/test_cli.py"),
    "make": ("minutes to hours; its lines are read by", "tests/test_doc_commands.py"),
    "python scripts/new_rule.py": ("writes into the repository; run by", "tests/test_new_rule.py"),
    "python scripts/docs.py": ("writes into the repository; run by", "tests/test_docs.py"),
    "python scripts/ecosystem.py": ("needs other repositories; run by", "tests/test_ecosystem.py"),
    "python scripts/real_world.py": ("needs other repositories", ""),
    "python scripts/torch_tests.py": ("needs a checkout of PyTorch", ""),
    "python -m pytest": ("runs the tests of a rule that the page invents", ""),
}
#: What the pages expect in a project, apart from checkpoints.
SOURCE = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n\nmodel = FSDP(model)\n"


def commands(text: str) -> Iterator[str]:
    """The commands in the fenced blocks of a page, without comments and prompts."""
    for language, body in re.findall(r"^```([\w+-]*)[^\n]*\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        for line in body.splitlines():
            prompted = line.startswith("$ ")
            command = re.sub(r"\s+#\s.*$", "", line.removeprefix("$ ")).strip()
            first = command.partition(" ")[0]
            if command and (
                prompted or first in PROGRAMS or (language in SHELLS and language != "console" and line[0] not in "# ")
            ):
                yield command


def listed(command: str) -> str | None:
    """The entry of NOT_RUN for a command."""
    return next(
        (begin for begin in NOT_RUN if command == begin or command.startswith((f"{begin} ", f"{begin}="))), None
    )


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with a program, a checkpoint and the names that the pages use."""
    monkeypatch.chdir(tmp_path)
    for folder in ("", "my_repo", "src"):
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / "train.py").write_text(SOURCE)
    (tmp_path / "a.py").write_text(SOURCE)
    (tmp_path / "out/step_1000").mkdir(parents=True)
    torch.save({"weight": torch.ones(2, 2)}, tmp_path / "out/step_1000/model.pt")
    torch.save({"weight": torch.ones(2, 2)}, tmp_path / "model.pt")
    subprocess.run(["git", "init", "--quiet", "--initial-branch=main"], check=True)
    commit()
    return tmp_path


def commit() -> None:
    """Record the tree, so that the next command finds nothing unsaved."""
    who = ("-c", "user.name=n", "-c", "user.email=n@example.org")
    subprocess.run(["git", "add", "--all"], check=True)
    subprocess.run(["git", *who, "commit", "--quiet", "--allow-empty", "--message=m"], check=True)


def answered(code: int, said: str) -> bool:
    """Whether a command did its work: 1 is the answer of a gate, and also Python's own code for a crash."""
    return code in (0, 1) and "Traceback (most recent call last)" not in said


@pytest.mark.parametrize("page", PAGES)
def test_commands_run_in_the_order_of_the_page(page: str, project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for command in commands((ROOT / page).read_text(encoding="utf-8")):
        if listed(command):
            continue
        if re.search(r"[<>|]", command) or not command.startswith("fsdp-migrate "):
            search = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
            done = subprocess.run(
                command, shell=True, env={**os.environ, "PATH": search}, capture_output=True, text=True, check=False
            )
            code, said = done.returncode, done.stdout + done.stderr
        else:
            code, said = main(shlex.split(command)[1:]), "".join(capsys.readouterr())
        assert answered(code, said), (command, said)
        if " rewrite " in command:
            commit()


def test_a_crash_is_no_answer() -> None:
    done = subprocess.run([sys.executable, "-c", "1 / 0"], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert not answered(done.returncode, done.stderr)
    assert answered(1, "a.py:1:1: FSDP101 safe: sharded in place")


def test_what_is_not_run_is_on_a_page_and_its_test_exists() -> None:
    on_pages = {listed(command) for page in PAGES for command in commands((ROOT / page).read_text(encoding="utf-8"))}
    assert NOT_RUN.keys() - on_pages == set()
    for reason, file in NOT_RUN.values():
        assert reason
        assert not file or (ROOT / file).is_file(), file


def test_the_reading_of_pages_finds_commands() -> None:
    page = (
        "```console\n$ fsdp-migrate check .   # gate\nits output\n```\n\n```sh\nrm -r x\n```\n\n```\nmake it\nso\n```\n"
    )
    assert list(commands(page)) == ["fsdp-migrate check .", "rm -r x", "make it"]
    assert listed("rm -r x") is None
    assert listed("make test") == "make"
    assert listed("makeshift") is None


def targets(text: str) -> set[str]:
    """The targets of make that a page names, in blocks and in its lines."""
    return set(re.findall(r"(?:^|`)make ([a-z-]+)", text, re.MULTILINE))


def test_targets_of_make_exist_and_start_files_that_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    lines = dict(re.findall(r"^([a-z-]+):[^\n]*\n((?:\t[^\n]*\n)*)", makefile, re.MULTILINE))
    named = set().union(*(targets((ROOT / page).read_text(encoding="utf-8")) for page in [*PAGES, "SECURITY.md"]))
    assert named
    assert named <= lines.keys()
    for target, body in lines.items():
        for file in re.findall(r"(?<!--output )\b(?:scripts|benchmarks|tests)/[\w/.]+", body):
            assert (ROOT / file).exists(), (target, file)


def test_scripts_that_pages_name_exist_and_have_the_options() -> None:
    for page in PAGES:
        for file, rest in re.findall(
            r"python ((?:scripts|benchmarks)/\w+\.py)([^`\n]*)", (ROOT / page).read_text(encoding="utf-8")
        ):
            source = (ROOT / file).read_text(encoding="utf-8")
            for option in re.findall(r"(?<!\S)--[a-z-]+", rest.partition("#")[0]):
                assert f'"{option}"' in source, (page, file, option)


def test_commands_within_sentences_have_the_options_that_they_use() -> None:
    found = 0
    for page in PAGES:
        for line in re.findall(r"`fsdp-migrate ([^`]+)`", (ROOT / page).read_text(encoding="utf-8")):
            command, words, known = called(line.partition(" -- ")[0].split())
            assert command is not cli, (page, line)
            assert {word.partition("=")[0] for word in words if word.startswith("--")} <= known, (page, line)
            found += 1
    assert found > 5
