"""``next`` and ``done``: a migration place by place, which right edits finish and others use FSDP2."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from fsdp_migrate.check.checked import Told
from fsdp_migrate.check.items import Item
from fsdp_migrate.cli import main
from fsdp_migrate.report.item_page import BYTES, Left, as_json, lines
from fsdp_migrate.report.rulebook import pages
from fsdp_rules.verdict.finding import Finding, Level

Capture = pytest.CaptureFixture[str]
SOURCE = """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def build(model):
    return FSDP(model, use_orig_params=True)


def main(net, loader):
    model = build(net)
    for batch in loader:
        model(batch).sum().backward()
        assert batch is not None
    handle = model._handle
    print(handle)
    print(FSDP.set_state_dict_type(model, chosen()))
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "sub").mkdir()
    (tmp_path / "train.py").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def shown(capsys: Capture, *words: str, code: int = 1) -> dict[str, object]:
    capsys.readouterr()
    assert main([*words, "--json", "--jobs", "1"]) == code
    found: dict[str, object] = json.loads(capsys.readouterr().out)
    assert found["version"] == 1
    return found


def edit(file: Path, pattern: str, instead: str) -> None:
    text, changes = re.subn(pattern, lambda found: instead, file.read_text())
    assert changes, pattern
    file.write_text(text)


def test_a_migration_is_finished_place_by_place(project: Path, capsys: Capture) -> None:
    assert main(["next"]) == 1
    assert "Next: fsdp-migrate rewrite ." in capsys.readouterr().out
    assert main(["rewrite", "--quiet", "."]) == 1
    capsys.readouterr()
    assert main(["status", "--format", "json"]) == 0
    by_hand = json.loads(capsys.readouterr().out)["total"]["places_by_hand"]
    done = []
    while (found := shown(capsys, "next"))["item"] is not None:
        item = found["item"]
        assert isinstance(item, dict)
        assert found["open"] == by_hand - len(done)
        assert any(line.startswith(">") for line in item["source"])
        # The comment of the rewrite, and the statement below it.
        place = next(line for line in item["source"] if line.startswith(">"))[7:].strip()
        edit(project / "train.py", r" +# TODO\(fsdp-migrate.*\n(?: +#.*\n)* *" + re.escape(place) + "\n", "")
        answer = shown(capsys, *item["done"].split()[1:], code=0)
        assert (answer["done"], answer["reasons"]) == (True, [])
        done.append(item["id"])
        # It is done however often it is asked about.
        assert shown(capsys, "done", item["id"], code=0)["done"] is True
    assert len(set(done)) == by_hand >= 2
    # The import that only those places used.
    assert found["rewrite"] == {"findings": 1, "files": 1, "command": "fsdp-migrate rewrite ."}
    assert main(["rewrite", "--quiet", "."]) == 0
    capsys.readouterr()
    assert main(["next"]) == 0
    assert capsys.readouterr().out == "Nothing is left to do. Next: fsdp-migrate verify -- COMMAND\n"


def test_what_the_rewrite_knew_is_shown_with_its_comment(
    project: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "net.py").write_text(SOURCE.partition("def main")[0])
    (project / "sub/loop.py").write_text(
        "import sys\n\nsys.path.append('..')\nfrom net import FSDP, build\n\n\ndef main(net):\n    model = build(net)\n"
        "    print(FSDP.set_state_dict_type(model, chosen()))\n"
    )
    (project / "train.py").unlink()
    assert main(["rewrite", "--quiet", "."]) == 1
    edit(project / "net.py", r"\A", "# moved\n")
    monkeypatch.chdir(project / "sub")
    item = shown(capsys, "next", "..")["item"]
    assert isinstance(item, dict)
    assert "set_state_dict_type cannot be rewritten" in item["message"]
    assert item["advice"].startswith("pass StateDictOptions(...)")
    assert item["wrapped"]["path"] == "../net.py"
    assert [line for line in item["wrapped"]["source"] if line.startswith(">")] == [
        ">    6     return fully_shard(model)"
    ]


#: Edits that only make a finding go away, and what is said of each.
CHEATS = {
    "the comment alone": (r" +# TODO\(fsdp-migrate FSDP902.*\n", "", "FSDP606 TODO removed"),
    "an ignore comment": (
        r" +# TODO\(fsdp-migrate FSDP902.*\n( +)handle = model._handle",
        "    handle = model._handle  # fsdp-migrate: ignore[FSDP902]", "FSDP605 finding silenced",
    ),
    "a computed name": (
        r" +# TODO\(fsdp-migrate FSDP902.*\n( +)handle = model._handle",
        '    handle = getattr(model, "_han" + "dle")', "FSDP606 only known at run time",
    ),
    "an assert is lost on the way": (
        r"        assert batch is not None\n +# TODO\(fsdp-migrate FSDP902.*\n( +)handle = model._handle\n",
        "    handle = None\n", "FSDP601 deleted, or can no longer fail",
    ),
    "nothing": (r"\A", "# looked at\n", "FSDP902"),
}  # fmt: skip


@pytest.fixture
def handed_out(project: Path, capsys: Capture) -> str:
    """The id of the item about the handle, in a tree that was rewritten."""
    assert main(["rewrite", "--quiet", "."]) == 1
    for _ in range(2):
        item = shown(capsys, "next")["item"]
        assert isinstance(item, dict)
        if item["rule"] == "FSDP902":
            return str(item["id"])
        edit(project / "train.py", r" +# TODO\(fsdp-migrate " + item["rule"] + r".*\n(?: +#.*\n)*.*\n", "")
    raise AssertionError


@pytest.mark.parametrize("name", CHEATS)
def test_what_only_looks_done_is_not_done(name: str, handed_out: str, project: Path, capsys: Capture) -> None:
    pattern, instead, said = CHEATS[name]
    edit(project / "train.py", pattern, instead)
    answer = shown(capsys, "done", handed_out)
    assert answer["done"] is False
    assert said in " ".join(map(str, answer["reasons"])), answer  # type: ignore[call-overload]


def test_an_id_stays_while_code_around_it_moves(
    handed_out: str, project: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    edit(project / "train.py", r"\A", "# more\n\n")
    monkeypatch.chdir(project / "sub")
    assert shown(capsys, "next", "..")["item"]["id"] == handed_out  # type: ignore[index]
    monkeypatch.chdir(project)
    (project / "train.py").unlink()
    answer = shown(capsys, "done", handed_out)
    assert answer["reasons"] == ["train.py no longer exists: if it moved, run fsdp-migrate next again"]


def test_of_two_places_that_look_the_same_one_can_be_done(project: Path, capsys: Capture) -> None:
    edit(project / "train.py", "    print.*\n    print.*\n", "    handle = model._handle\n")
    assert main(["rewrite", "--quiet", "."]) == 1
    (item,) = {shown(capsys, "next")["item"]["id"] for _ in range(2)}  # type: ignore[index]
    assert item.startswith("FSDP902-")
    text = (project / "train.py").read_text()
    twice = re.search(r"( +# TODO\(fsdp-migrate FSDP902.*\n +handle = model._handle\n)", text)
    assert twice is not None
    (project / "train.py").write_text(text.replace(twice[0], "", 1))
    assert shown(capsys, "done", item, code=0)["done"] is True
    assert shown(capsys, "next")["item"]["rule"] == "FSDP902"  # type: ignore[index]


def test_an_id_that_was_never_shown_and_a_damaged_record_are_errors(
    handed_out: str, project: Path, capsys: Capture
) -> None:
    assert main(["done", "FSDP902-00000000"]) == 2
    assert "has not shown a place with the id FSDP902-00000000 here" in capsys.readouterr().err
    (record,) = (project / ".fsdp-migrate/items").glob(f"{handed_out}.json")
    record.write_text("{}")
    assert main(["done", handed_out]) == 2
    assert "is damaged: remove it" in capsys.readouterr().err


def test_git_shows_nothing_of_what_is_kept(
    tmp_path: Path, git: Callable[..., str], commit: Callable[[], None], capsys: Capture
) -> None:
    (tmp_path / "train.py").write_text(
        SOURCE.replace("    return FSDP(model, use_orig_params=True)", "    return model")
    )
    commit()
    assert main(["next"]) == 1
    assert (tmp_path / ".fsdp-migrate").is_dir()
    assert git("status", "--porcelain") == ""


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.id)
def test_an_item_of_every_rule_fits(page: object) -> None:
    from fsdp_migrate.report.rulebook import Page

    assert isinstance(page, Page)
    long = "\u00e9" * 900
    finding = Finding(page.id, page.name, "a.py", 40, 0, 90, 1, Level.MANUAL, long, long, 40, "line 12")
    item = Item(f"{page.id}-00000000", "a.py", "", Told(finding, True, False, ""))
    sources = {"a.py": "\n".join(f"{number} = '\u4e2d'{long}" for number in range(200)).encode()}
    left = Left(3, 2, 1, "fsdp-migrate rewrite .")
    content = as_json(item, left, page, sources)
    assert len(content.encode()) <= BYTES
    assert json.loads(content)["item"]["wrapped"]["line"] == 12
    assert len("\n".join(lines(item, left, page, sources)).encode()) <= BYTES
