"""Notebooks: only the source of changed cells is altered."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fsdp_migrate.cli import main
from fsdp_migrate.tree import notebooks


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def marker(data: bytes) -> bool:
    return b"FSDP" in data


def cell(*lines: str, kind: str = "code") -> dict[str, object]:
    extra = {"execution_count": None, "outputs": [{"text": ["FSDP(x)\n"]}]} if kind == "code" else {}
    return {"cell_type": kind, "metadata": {}, "source": list(lines), **extra}


def dump(*cells: dict[str, object], **metadata: object) -> str:
    content = {"cells": list(cells), "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


def write(text: str) -> Path:
    file = Path("n.ipynb")
    file.write_bytes(text.encode())
    return file


TWO_CELLS = dump(cell("# FSDP(x)\n", "text", kind="markdown"), cell("import a\n", "FSDP(é)"), cell("b = 1"), cell())


@pytest.mark.usefixtures("word_engine")
@pytest.mark.parametrize(
    "text",
    [
        TWO_CELLS,
        TWO_CELLS.replace("\n", "\r\n"),
        TWO_CELLS.rstrip("\n"),
        "\ufeff" + TWO_CELLS,
        json.dumps(json.loads(TWO_CELLS)),
        json.dumps(json.loads(TWO_CELLS), indent="\t", sort_keys=True),
        json.dumps(json.loads(TWO_CELLS), separators=(",", ":"), ensure_ascii=False),
        dump({"cell_type": "code", "source": "import a\nFSDP(é)", "outputs": []}),
        json.dumps({"cells": [{"source": "FSDP(é)", "cell_type": "code"}]}),
        '{ "cells" :[ {"cell_type":"code", "source" : [ "\\u0061\\n" , "FSDP(x)" ] } , {"cell_type":"raw"} ] }',
    ],
    ids=["plain", "CRLF", "no final newline", "BOM", "one line, escaped", "tabs", "dense", "string", "escape", "odd"],
)
def test_nothing_else_in_the_file_changes(text: str) -> None:
    file = write(text)
    assert main(["rewrite", "n.ipynb"]) == 0
    before, found, after = text.partition('"source"') if "markdown" not in text else _at_second_source(text)
    assert file.read_bytes().decode() == before + found + after.replace("FSDP(", "fully_shard(", 1)


def _at_second_source(text: str) -> tuple[str, str, str]:
    at = text.index("import a")
    return text[:at], "", text[at:]


@pytest.mark.usefixtures("word_engine")
def test_lines_that_come_and_go() -> None:
    file = write(dump(cell("a\n", "FSDP.by_hand()")))
    assert main(["rewrite", "n.ipynb"]) == 1
    assert file.read_text() == dump(cell("a\n", "pass # TODO\n", "FSDP.by_hand()"))


@pytest.mark.usefixtures("word_engine")
def test_findings_name_the_line_of_the_file_and_the_cell(capsys: pytest.CaptureFixture[str]) -> None:
    text = dump(cell("x\n", "y"), cell("text", kind="markdown"), cell("a\n", "FSDP.by_hand() # TODO\n", "b"))
    write(text)
    assert main(["rewrite", "n.ipynb"]) == 1
    row = next(number for number, line in enumerate(text.splitlines(), start=1) if "by_hand" in line)
    assert f"n.ipynb:{row}:1: FSDP101 manual: cell 3, line 2: native" in capsys.readouterr().out


@pytest.mark.usefixtures("word_engine")
@pytest.mark.parametrize(
    "magic",
    [
        "%matplotlib inline",
        "!pip install torch",
        "  %load_ext autoreload",
        "files = !ls",
        "timing = %timeit -o f()",
        "f??",
        "?f",
        "!pip install \\\n  torch \\\n  numpy",
        "from __future__ import annotations",
        "from __future__ import annotations  # why",
    ],
)
def test_magics_are_kept(magic: str) -> None:
    head = "if x:\n" if magic.startswith(" ") else "x = 1\n"
    lines = f"{head}{magic}\nFSDP(x)".splitlines(keepends=True)
    file = write(dump(cell("y = 1"), cell(*lines)))
    assert main(["rewrite", "n.ipynb"]) == 0
    assert json.loads(file.read_text())["cells"][1]["source"] == [
        line.replace("FSDP(", "fully_shard(") for line in lines
    ]


@pytest.mark.usefixtures("word_engine")
def test_a_timed_cell_is_still_python() -> None:
    file = write(dump(cell("%%time\n", "FSDP(x)\n")))
    assert main(["rewrite", "n.ipynb"]) == 0
    assert file.read_text() == dump(cell("%%time\n", "fully_shard(x)\n"))


@pytest.mark.usefixtures("word_engine")
@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("%%bash\npython train.py --FSDP", "cell 2, line 1: a %%bash cell and is not rewritten"),
        ("%time m = FSDP(m)", "cell 2, line 1: an IPython magic runs this code, so it is not rewritten"),
        ("x = 1\nthis is FSDP no Python", "cell 2, line 1: this cell is not valid Python and is not rewritten"),
    ],
)
def test_cells_that_are_left_alone_are_named(source: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    lines = source.splitlines(keepends=True)
    file = write(dump(cell("FSDP(x)"), cell(*lines), cell("FSDP(y)")))
    assert main(["rewrite", "n.ipynb"]) == 1
    assert f"FSDP900 manual: {message}" in capsys.readouterr().out
    assert file.read_text() == dump(cell("fully_shard(x)"), cell(*lines), cell("fully_shard(y)"))


@pytest.mark.usefixtures("word_engine")
def test_a_broken_cell_without_fsdp_is_worth_knowing_only(capsys: pytest.CaptureFixture[str]) -> None:
    write(dump(cell("FSDP(x)"), cell("%%html\n", "<b>"), cell("no Python")))
    assert main(["rewrite", "n.ipynb"]) == 0
    out = capsys.readouterr().out
    assert "FSDP900 info: cell 3, line 1: this cell is not valid Python" in out
    assert "cell 2" not in out


@pytest.mark.usefixtures("word_engine")
def test_the_cell_rule_can_be_ignored() -> None:
    write(dump(cell("FSDP = 1"), cell("no FSDP Python")))
    assert main(["rewrite", "n.ipynb"]) == 1
    assert main(["rewrite", "n.ipynb", "--ignore", "FSDP900"]) == 0


@pytest.mark.usefixtures("word_engine")
@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"cells": [FSDP', "could not parse: broken JSON at line 1"),
        ("", None),
        ('"FSDP"', "could not parse: it has no list of cells"),
        ('{"worksheets": [{"cells": ["FSDP"]}]}', "could not parse: it has no list of cells"),
        ('{"cells": ["FSDP"]}', "could not parse: cell 1 is not an object"),
        ('{"cells": [{"cell_type": "code", "source": ["FSDP", 1]}]}', "could not parse: cell 1 is not an object"),
        ("[" * 100_000 + '"FSDP"', "too deeply nested"),
        (dump(cell("_fsdp_migrate_cell_1_ = FSDP(x)")), "which is reserved"),
    ],
    ids=["cut off", "empty", "a string", "format 3", "no object", "no lines", "deep", "reserved"],
)
def test_bad_notebooks(text: str, reason: str | None, capsys: pytest.CaptureFixture[str]) -> None:
    file = write(text)
    assert main(["rewrite", "n.ipynb"]) == (2 if reason else 0)
    assert (reason or "") in capsys.readouterr().err
    assert file.read_text() == text


@pytest.mark.usefixtures("word_engine")
def test_other_languages_are_skipped_and_said_to_be(capsys: pytest.CaptureFixture[str]) -> None:
    text = dump(cell("FSDP(x)"), kernelspec={"language": "R", "name": "ir"})
    assert main(["rewrite", str(write(text))]) == 0
    assert "n.ipynb: skipped: a notebook in a language other than Python" in capsys.readouterr().out


def test_lost_cells_are_noticed() -> None:
    notebook = notebooks.parse(dump(cell("a"), cell("!b"), cell("c")).encode(), "n.ipynb", marker)
    assert notebook is not None
    assert notebook.rebuild(notebook.module) == notebook.text.encode()
    lines = notebook.module.decode().splitlines(keepends=True)
    for lost in ("_fsdp_migrate_cell_1_\n", "_fsdp_migrate_cell_2_\n", "_fsdp_migrate_masked_0_\n"):
        with pytest.raises(notebooks.NotebookError):
            notebook.rebuild("".join(line for line in lines if line != lost).encode())
        with pytest.raises(notebooks.NotebookError):
            notebook.rebuild("".join(line * (2 if line == lost else 1) for line in lines).encode())


def test_messages_name_the_cells_of_other_lines(capsys: pytest.CaptureFixture[str]) -> None:
    made = ("from accelerate import Accelerator, FullyShardedDataParallelPlugin\n", "\n")
    plugin = ("plugin = FullyShardedDataParallelPlugin()\n", "accelerator = Accelerator(fsdp_plugin=plugin)")
    used = ("# its model\n", "model = accelerator.prepare_model(model)")
    write(dump(cell(*made, *plugin), cell("x = 1"), cell(*used)))
    assert main(["rewrite", "n.ipynb"]) == 1
    assert "prepare_model() in cell 3, line 2 raises" in capsys.readouterr().out


def test_cells_keep_their_code_under_the_real_rules() -> None:
    imports = cell("from torch.distributed.fsdp import FullyShardedDataParallel as FSDP")
    file = write(
        dump(cell("%pip install torch"), imports, cell("model = FSDP(model)  # wrap"), cell("%%time\n", "run()"))
    )
    assert main(["rewrite", "n.ipynb"]) == 0
    sources = ["".join(part["source"]) for part in json.loads(file.read_text())["cells"]]
    assert sources[0] == "%pip install torch"
    assert sources[1] == "from torch.distributed.fsdp import fully_shard"
    assert "fully_shard(model)" in sources[2]
    assert sources[3] == "%%time\nrun()"
    written = file.read_bytes()
    assert main(["rewrite", "n.ipynb"]) == 0
    assert file.read_bytes() == written
