"""Every gadget in every spelling is reported, wherever a checkpoint may have a pickle, and none is run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from fixtures.checkpoints import hostile
from fsdp_migrate.checkpoints.convert.plan import Target
from fsdp_migrate.checkpoints.convert.state import CannotConvert
from fsdp_migrate.checkpoints.entries import BadCheckpoint
from fsdp_migrate.checkpoints.judge.judge import findings
from fsdp_migrate.checkpoints.read.danger import dangerous, foreign, needed, pickles_in
from fsdp_migrate.checkpoints.read.unpickle import Global
from fsdp_rules.verdict.finding import Level
from tests.checkpoints import gadgets
from tests.checkpoints.convert.converting import converted

#: Not of Python, torch or numpy: a program's own as far as anybody can tell.
_OTHERS = ("cffi", "pip", "setuptools", "distutils")


def test_there_are_more_than_a_few() -> None:
    assert len(set(gadgets.CALLS)) > 150
    assert not {Global(*gadget.rpartition(".")[::2]) for gadget in gadgets.CALLS} & needed()


@pytest.mark.parametrize("spelling", gadgets.SPELLINGS)
def test_every_gadget_in_every_spelling(spelling: str, tmp_path: Path) -> None:
    path = tmp_path / "written"
    for gadget in gadgets.CALLS:
        (pickled,) = pickles_in(gadgets.SPELLINGS[spelling](gadget, path))
        told = [*dangerous(pickled), *foreign(pickled)]
        assert any(gadget in str(name) for name in told) or spelling == "by_nested_pickle", (gadget, told)
        assert dangerous(pickled) or gadget.startswith(_OTHERS), gadget
    assert not path.exists()


@pytest.mark.parametrize("spelling", gadgets.SPELLINGS)
@pytest.mark.parametrize("where", ["file", "second", "metadata", "value", "chunk", "bare chunk", "old", "pickle"])
def test_wherever_a_pickle_may_be(spelling: str, where: str, tmp_path: Path) -> None:
    written, folder = tmp_path / "written", tmp_path / "in"
    data = gadgets.SPELLINGS[spelling]("posix.mkdir", written)
    match where:
        case "file":
            hostile.archive(data, folder.with_suffix(".pt"))
        case "second":
            hostile.archive(b"\x80\x02}.", folder.with_suffix(".pt"), **{"constants.pkl": data})
        case "metadata":
            hostile.in_metadata(data, folder)
        case "value":
            hostile.in_byte_item(data, folder)
        case "chunk":
            hostile.in_tensor_chunk(data, folder)
        case "bare chunk":
            hostile.in_tensor_chunk(b"\x80\x02" + b"N0" * 300 + b"}.", folder)
            (file,) = folder.glob("*.distcp")
            file.write_bytes(data + bytes(file.stat().st_size - len(data)))
        case "old":
            folder.with_suffix(".pt").write_bytes(b"\x80\x02N." * 4 + data)
        case "pickle":
            folder.with_suffix(".pkl").write_bytes(data)
    (source,) = (path for path in tmp_path.iterdir())
    (first, *_) = findings(source)
    assert (first.rule, first.level) == ("FSDP406", Level.MANUAL)
    for to in Target:
        with pytest.raises((CannotConvert, BadCheckpoint)):
            converted(source, tmp_path / "out", to)
    assert not written.exists()


@pytest.mark.parametrize(
    "spelling", ["by_global", "by_stack_global", "by_dotted_attribute", "by_instance", "by_object", "behind_another"]
)
def test_they_are_real(spelling: str, tmp_path: Path) -> None:
    """In a process of its own: what is unpickled writes."""
    made = getattr(gadgets, spelling)("posix.mkdir", tmp_path / "written")
    (tmp_path / "payload").write_bytes(made)
    code = "import pickle, sys; file = open(sys.argv[1], 'rb'); pickle.load(file); pickle.load(file)"
    subprocess.run([sys.executable, "-c", code, tmp_path / "payload"], capture_output=True, check=False)
    assert (tmp_path / "written").is_dir()


@pytest.mark.parametrize("name", ["model.pt", "model.ckpt", "states.pkl", "pytorch_model.bin"])
@pytest.mark.parametrize("end", [".", "\nand no end"])
def test_a_pickle_that_is_a_text(name: str, end: str, tmp_path: Path) -> None:
    """Protocol 0 has printable characters alone, and torch.load runs it as it does any other."""
    (tmp_path / name).write_text(f"cposix\nmkdir\n(V{tmp_path}/written\ntR{end}")
    (first, *_) = findings(tmp_path)
    assert (first.rule, first.level) == ("FSDP406", Level.MANUAL)
    assert not (tmp_path / "written").exists()


@pytest.mark.parametrize(
    "text", ["cada\nlinha\nRio\n", "Vamos.\n", "(a)\n", "I am\n", "N", "guten Tag\n", "]\n", "}\n"]
)
def test_a_text_is_no_pickle(text: str, tmp_path: Path) -> None:
    (tmp_path / "corpus.pt").write_text(text)
    assert findings(tmp_path) == []
