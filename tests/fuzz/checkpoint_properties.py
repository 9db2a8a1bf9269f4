"""What holds for every checkpoint: it is read without a traceback, and converted exactly or not at all."""

from __future__ import annotations

import contextlib
import io
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import _load_state_dict

from fsdp_migrate.checkpoints.convert.convert import convert
from fsdp_migrate.checkpoints.convert.plan import Target, Wanted
from fsdp_migrate.checkpoints.convert.state import CannotConvert
from fsdp_migrate.checkpoints.entries import BadCheckpoint
from fsdp_migrate.cli import main
from tests.fuzz.checkpoints import EXPECTED, REFUSED, unpacked


def hold(data: bytes) -> None:
    """Every property of the checkpoint in the archive ``data``; an AssertionError says which one does not hold."""
    with tempfile.TemporaryDirectory() as name, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        root = Path(name)
        files = unpacked(data)
        source = root / "source"
        source.mkdir()
        for path, content in files.items():
            if path not in (EXPECTED, REFUSED):
                (source / path).write_bytes(content)
        _inspected(source)
        found = "unknown"
        expected: Any = found
        if EXPECTED in files:
            expected = torch.load(io.BytesIO(files[EXPECTED]), weights_only=True)
        elif "model.pt" in files:
            expected = _loaded(source / "model.pt", found)
        elif "model.safetensors" in files:
            with contextlib.suppress(Exception):
                expected = load_file(source / "model.safetensors")
        for to in Target:
            _converted(source, root / f"target.{to.value}", to, None if expected is found else (expected,))
            assert REFUSED not in files or not (root / f"target.{to.value}").exists(), f"{to.value}: not refused"
        for path, content in files.items():
            assert path in (EXPECTED, REFUSED) or (source / path).read_bytes() == content, f"{path} changed"


def _inspected(source: Path) -> None:
    for form in ("json", "text"):
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as said:
            code = main(["checkpoint", "inspect", "--format", form, str(source)])
        assert code in (0, 1, 2), code
        assert code != 2 or said.getvalue().startswith("Error: "), said.getvalue()


def _loaded(path: Path, otherwise: Any) -> Any:
    try:
        return torch.load(path, weights_only=True)
    except Exception:  # whatever torch says about a broken file, it is not loaded
        return otherwise


def _converted(source: Path, target: Path, to: Target, expected: tuple[Any] | None) -> None:
    before = {path.name for path in target.parent.iterdir()}
    try:
        convert(source, target, Wanted(to), lambda label, nbytes: lambda count: None)
    except (BadCheckpoint, CannotConvert) as error:
        assert str(error).strip(), "a refusal without a reason"
        assert "the written checkpoint differs" not in str(error), f"{to.value}: {error}"
        assert expected is None or "readings get different results" not in str(error), f"{to.value}: {error}"
        assert {path.name for path in target.parent.iterdir()} == before, f"{to.value}: refused, and something was left"
        return
    if expected is None:
        return
    if to is Target.FULL:
        held = torch.load(target, weights_only=True)
        if (source / "model.pt").exists():
            assert not (gaps := [*_differences(expected[0], held, "")]), f"full: {gaps[:3]}"
        else:
            _alike(expected[0], held, "full")
    elif to is Target.DCP:
        _alike(expected[0], _of_folder(target), "dcp")
    else:
        wanted = dict(_flat(expected[0]))
        for path in [target] if target.is_file() else target.glob("*.safetensors"):
            for name, one in load_file(path).items():
                same = [other for key, other in wanted.items() if key == name or key.endswith(f".{name}")]
                assert any(not [*_differences(other, one, name)] for other in same), f"safetensors: {name}"


def _of_folder(path: Path) -> dict[str, Any]:
    """What torch reads from a folder, by the keys that it has there."""
    reader = FileSystemReader(path)
    state = {
        name: torch.empty(entry.size, dtype=entry.properties.dtype)
        if isinstance(entry, TensorStorageMetadata)
        else None
        for name, entry in reader.read_metadata().state_dict_metadata.items()
    }
    planner = DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
    _load_state_dict(state, reader, planner=planner, no_dist=True)
    return state


def _alike(before: Any, after: Any, what: str) -> None:
    wanted = {name: one for name, one in _flat(before) if not _is_empty(one)}
    found = {name: one for name, one in _flat(after) if not _is_empty(one)}
    assert wanted.keys() == found.keys(), f"{what}: {sorted(wanted.keys() ^ found.keys())}"
    gaps = [gap for name, one in wanted.items() for gap in _differences(one, found[name], name)]
    assert not gaps, f"{what}: {gaps[:3]}"


def _flat(held: Any, name: str | None = None) -> Iterator[tuple[str, Any]]:
    if isinstance(held, Mapping | list | tuple) and held and not isinstance(held, torch.Size):
        for part, inner in held.items() if isinstance(held, Mapping) else enumerate(held):
            yield from _flat(inner, str(part) if name is None else f"{name}.{part}")
    else:
        yield name or "", held


def _is_empty(held: Any) -> bool:
    return isinstance(held, dict | list | tuple) and not held


def _differences(before: Any, after: Any, where: str) -> Iterator[str]:
    """What of ``before`` is not in ``after``: kinds of dictionaries apart, to the last bit and sign."""
    if isinstance(before, torch.Tensor):
        if not isinstance(after, torch.Tensor) or (before.dtype, before.shape) != (after.dtype, after.shape):
            yield f"{where}: {before!r} became {after!r}"
        elif _bytes(before) != _bytes(after):
            yield f"{where}: other elements"
    elif isinstance(before, dict):
        if not isinstance(after, dict) or list(map(repr, before)) != list(map(repr, after)):
            yield f"{where}: {before!r} became {after!r}"
            return
        for (key, one), other in zip(before.items(), after.values(), strict=True):
            yield from _differences(one, other, f"{where}.{key}")
    elif isinstance(before, list | tuple) and type(before) is type(after) and len(before) == len(after):
        for number, (one, other) in enumerate(zip(before, after, strict=True)):
            yield from _differences(one, other, f"{where}.{number}")
    elif type(before) is not type(after) or repr(before) != repr(after):
        yield f"{where}: {before!r} became {after!r}"


def _bytes(held: torch.Tensor) -> bytes:
    whole = held.detach().resolve_conj().contiguous().reshape(-1)
    return whole.view(torch.uint8).numpy().tobytes() if whole.numel() else b""
