"""The command on real programs: what it says, its exit codes, and the traps that must not pass for a comparison."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fsdp_migrate.cli import main
from fsdp_migrate.verify.runs import trees
from tests.forked import PYTHON
from tests.pool import ROOT

MINIGPT = ROOT / "fixtures" / "projects" / "minigpt" / "train.py"
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
#: A training of one process: steps, then its seed; what it does besides is put in at the marks.
PROGRAM = """
import sys
from pathlib import Path

import torch
{imports}
torch.set_num_threads(1)
torch.manual_seed(int(sys.argv[2]) or torch.seed() % 2**31)
model = torch.nn.Linear(3, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(int(sys.argv[1])):
    model(torch.randn(4, 3)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    {body}
"""


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return write(tmp_path / "train.py")


def write(path: Path, imports: str = "", body: str = "pass") -> Path:
    path.write_text(PROGRAM.format(imports=imports, body=body), encoding="utf-8")
    return path


def told(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    code = main(["verify", *arguments])
    out, err = capsys.readouterr()
    return code, out + err


def both(before: str, after: str) -> tuple[str, ...]:
    return ("--before", f"{PYTHON} {before}", "--after", f"{PYTHON} {after}")


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project minigpt, as somebody has it in git."""
    root = tmp_path_factory.mktemp("repository")
    shutil.copy(MINIGPT, root)
    commit(root)
    return root


def commit(root: Path) -> None:
    identity = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    for arguments in (("init", "-q"), ("add", "."), (*identity, "commit", "-qm", "all")):
        subprocess.run(["git", *arguments], cwd=root, check=True)


def test_a_repository_against_what_rewrite_makes_of_it(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(repository)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    report, kept = tmp_path / "report.json", tmp_path / "kept"
    options = ("--no-repeat", "--steps", "2", "--deep", "--report", str(report), "--keep", str(kept))
    code, text = told(capsys, *options, "--", *TORCHRUN, "train.py", "--out", "out", "--steps", "9")
    assert code == 0, text
    answer = json.loads(report.read_text())
    assert (answer["verdict"], answer["steps"], answer["ranks"], answer["first"]) == ("equal", 2, [2, 2], None)
    assert text.rstrip().endswith("values over 2 steps on 2 ranks, bit for bit")
    assert not (kept / "tree-after" / "out" / "checkpoint.pt").exists(), "the program was to stop after two steps"
    assert "fully_shard" in (kept / "tree-after" / "train.py").read_text()
    assert list(repository.iterdir()) in ([repository / ".git", repository / "train.py"],
                                          [repository / "train.py", repository / ".git"])  # fmt: skip
    assert (repository / "train.py").read_bytes() == MINIGPT.read_bytes()


SHARDED = """
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

torch.set_num_threads(1)
dist.init_process_group("gloo", init_method=f"file://{Path.cwd()}/store", rank=0, world_size=1)
torch.manual_seed(0)
model = FSDP(torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 2)), device_id=torch.device("cpu"))
optimizer = torch.optim.AdamW(model.parameters())
for step in range(2):
    model(torch.randn(5, 3)).square().mean().backward()
    model.clip_grad_norm_(100.0)
    optimizer.step()
    optimizer.zero_grad()
"""


def test_to_shim_compares_with_fsdp_compat(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    Path("train.py").write_text(SHARDED, encoding="utf-8")
    commit(Path.cwd())
    kept = tmp_path / "kept"
    options = ("--to", "shim", "--no-repeat", "--steps", "2", "--keep", str(kept))
    code, text = told(capsys, *options, "--", sys.executable, "train.py")
    assert code == 0, text
    assert text.rstrip().endswith("values over 2 steps on 1 rank, bit for bit, 2 gradient norms within 1e-5")
    assert "from fsdp_compat import FullyShardedDataParallel as FSDP" in (kept / "tree-after" / "train.py").read_text()
    assert "torch.distributed.fsdp import" in (kept / "tree-before" / "train.py").read_text()


def test_one_script_that_ends_before_the_last_step_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Python forgets the file of a script when it has ended, and the script is all that was rewritten."""
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(SHARDED, encoding="utf-8")
    commit(tmp_path)
    code, text = told(capsys, "--no-repeat", "--", PYTHON, "train.py")
    assert code == 0, text
    assert text.rstrip().endswith("values over 2 steps on 1 rank, bit for bit, 2 gradient norms within 1e-5")


def test_a_program_that_only_the_repository_has(tmp_path: Path) -> None:
    here, tree = tmp_path / "here", tmp_path / "tree"
    for name in ("here/.venv/bin/python", "here/tools/run", "tree/tools/run"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    interpreter = str(here / ".venv" / "bin" / "python")
    assert trees.command((".venv/bin/python", "x.py"), here, tree) == (interpreter, "x.py")
    for words in (("tools/run",), ("torchrun", "x.py"), ("no/such",), (sys.executable,)):
        assert trees.command(words, here, tree) == words


def test_the_original_in_place_of_the_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    for tree in (old, new):
        tree.mkdir()
        (tree / "layers.py").write_text("x = 1\n")
        write(tree / "train.py", imports=f"sys.path.insert(0, {str(old)!r})\nimport layers")
    monkeypatch.chdir(tmp_path)
    options = ("--before-dir", "old", "--after-dir", "new", "--no-repeat", "--steps", "2")
    code, text = told(capsys, *options, "--", PYTHON, "train.py", "2", "1")
    assert code == 2
    assert f'the run "after" imported {old / "layers.py"}, which is not in its copy' in text


def test_the_second_run_resumes_from_the_first(program: Path, capsys: pytest.CaptureFixture[str]) -> None:
    body = "saved = Path('saved'); saved.read_text() if saved.exists() else saved.write_text('x')"
    write(program, body=body)
    code, text = told(capsys, "--no-repeat", *both("train.py 2 1", "train.py 2 1"))
    assert code == 2
    assert f"the new run read {program.parent / 'saved'}, which an earlier run of this comparison wrote" in text


def test_packages_that_are_installed_between_two_runs_are_no_state(
    program: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    body = "saved = Path('site-packages/x.txt'); saved.read_text() if saved.exists() else saved.write_text('x')"
    write(program, body=body)
    (program.parent / "site-packages").mkdir()
    code, text = told(capsys, "--no-repeat", "--steps", "2", *both("train.py 2 1", "train.py 2 1"))
    assert code == 0, text


def test_a_run_that_ends_early(program: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, text = told(capsys, "--no-repeat", *both("train.py 3 1", "train.py 2 1"))
    assert code == 2
    assert "the runs recorded 3 steps before and 2 after: one of them ended early" in text


def test_a_crash_shows_the_programs_own_traceback(program: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(program, body="raise ArithmeticError('the loss is gone')")
    code, text = told(capsys, "--no-repeat", *both("train.py 2 1", "train.py 2 1"))
    assert code == 2
    assert 'the run "before" failed with exit code 1:\nTraceback (most recent call last):' in text
    assert text.rstrip().endswith("ArithmeticError: the loss is gone")


def test_a_run_without_a_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    code, text = told(capsys, "--no-repeat", *both("-c pass", "-c pass"))
    assert code == 2
    assert 'the run "before" ended without an optimizer step that could be recorded' in text


def test_a_run_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    hangs = "-c 'import signal; print(42, flush=True); signal.pause()'"
    code, text = told(capsys, "--no-repeat", "--timeout", "1", *both(hangs, hangs))
    assert code == 2
    assert 'the run "before" did not end within 1 seconds; it printed last:\n42' in text


def test_a_program_that_does_not_repeat_itself(program: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, text = told(capsys, *both("train.py 2 0", "train.py 2 0"))
    assert "note: the program is not deterministic: before the first step, initial weights" in text
    assert "pass --seed" in text
    assert code == 1 or "equal within the measured noise of the program" in text


def test_other_settings_are_different_with_their_cause(
    program: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other.py"
    other.write_text(program.read_text().replace("lr=0.1", "lr=0.2"))
    assert told(capsys, "record", "one", "--steps", "2", "--", PYTHON, "train.py", "5", "1")[0] == 0
    assert told(capsys, "record", "two", "--steps", "2", "--", PYTHON, "other.py", "5", "1")[0] == 0
    code, text = told(capsys, "compare", "one", "two")
    assert code == 1
    assert "first difference: step 0, optimizer settings, weight, lr\n  before: 0.1\n  after:  0.2\n" in text
    assert "cause: lr of weight is 0.1 before and 0.2 after" in text
    assert told(capsys, "compare", "one", "one")[0] == 0
    code, text = told(capsys, "record", "one", "--", PYTHON, "train.py", "1", "1")
    assert (code, "one is not an empty folder" in text) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("compare", "nowhere", "nowhere"), "there is no such folder"),
        (("--before", "x"), "come in pairs"),
        (("--report", "x.txt", "--", "x"), "the name must end in"),
        (("--", "x"), "is not in a git repository"),
        (("--before", "no-such-program", "--after", "x"), "could not be started"),
    ],
)
def test_what_cannot_be_done_is_said(
    arguments: tuple[str, ...], reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    code, text = told(capsys, *arguments)
    assert (code, reason in text) == (2, True), text


def test_preflight_stops_where_the_first_step_would_begin(program: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(program, body="Path('stepped').write_text('x')")
    code = main(["preflight", "--format", "json", "--", PYTHON, "train.py", "2", "1"])
    out, err = capsys.readouterr()
    assert (code, err) == (0, "")
    (model,) = json.loads(out)["models"]
    assert (model["world"], model["units"], model["suspicions"]) == (1, [], [])
    assert not (program.parent / "stepped").exists()
