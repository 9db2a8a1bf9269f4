"""Which files under a path belong together as one checkpoint, and who lays them out like that."""

from __future__ import annotations

import codecs
import enum
import os
import re
import stat
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from fsdp_migrate.checkpoints.entries import BadCheckpoint
from fsdp_migrate.checkpoints.read import archive
from fsdp_migrate.checkpoints.read.unpickle import starts_as_old_pickle


class Kind(str, enum.Enum):
    """How a checkpoint is stored."""

    DCP = "dcp"
    RANKS = "ranks"
    FILE = "file"
    SAFETENSORS = "safetensors"
    PICKLE = "pickle"


@dataclass(frozen=True)
class Found:
    """Files that are one checkpoint. ``path`` is its folder, or the file or first rank's file; ``files`` lie in it.

    ``layout`` names who writes such folders, or is empty. ``ranks`` has the file of each rank, for rank files alone.
    """

    kind: Kind
    path: Path
    files: tuple[Path, ...]
    layout: str = ""
    ranks: dict[int, Path] = field(default_factory=dict)


#: What Lightning keeps beside the files of torch.distributed.checkpoint.
LIGHTNING_FILE = "meta.pt"

_TORCH = (".pt", ".pth", ".ckpt")
_OFTEN_TORCH = (".bin", ".tar", ".pkl", ".pickle")
_TORCH_STARTS = (b"PK\x03\x04", b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")
_NAMED = (*_TORCH, *_OFTEN_TORCH, ".safetensors", ".safetensors.index.json", ".distcp", ".metadata")
#: How the file begins that git has in place of one in its large file storage.
LFS_START = b"version https://git-lfs"
_TOLD_BY = 512
#: Why such a thing is passed over.
SPECIAL = "a pipe, a device or a broken link, which is not opened"
#: A path may have a million characters; a message shows its start.
_SHOWN = 200
#: Numbers are of the digits that programs count with: a line that loads has no other spelling of them.
_RANK = re.compile(r"(?P<before>.*?rank[-_.]?)(?P<rank>[0-9]+)(?P<after>[^0-9]*)", re.IGNORECASE)
_NUMBER = re.compile(r"(?P<before>.*?[-_.])(?P<rank>[0-9]+)(?P<after>\.\w+)")
_DCP_FILE = re.compile(r"__([0-9]+)_[0-9]+\.distcp")
_DCP_LOCAL = re.compile(r"__[0-9]+\.metadata")
_HF_SHARD = re.compile(r"shard-\d+-(?P<rest>.*)\.safetensors|(?P<stem>(?:.*-)?)\d+-of-(?P<count>\d+)\.safetensors")


def find(
    path: Path,
    entered: Callable[[Path], bool] = lambda folder: True,
    passed_over: Callable[[Path], object] = lambda special: None,
) -> list[Found]:
    """The checkpoints at or under ``path``, sorted by path; links to folders are not followed.

    ``entered`` says of a folder below ``path`` whether to look into it; hidden ones never are. ``passed_over`` is
    called with what has a checkpoint's name and is a pipe, a device or a link to nowhere: opening one may never return.
    Raises :class:`BadCheckpoint` where ``path`` cannot be read. A folder without checkpoints gives an empty list.
    """
    if not os.path.isdir(path):  # noqa: PTH112 - Path.is_dir raises for a name that is too long
        return [_file(path)] if path.name != ".metadata" else [_of_metadata(path)]
    found: list[Found] = []
    for folder, inner, names in os.walk(path, onerror=_raise):
        inner[:] = sorted(name for name in inner if not name.startswith(".") and entered(Path(folder, name)))
        here = Path(folder)
        special = {name for name in names if _may_be_checkpoint(name) and not _is_regular(here / name)}
        for name in sorted(special):
            passed_over(here / name)
        found += _in_folder(here, sorted(set(names) - special))
    return found


def leads_out(file: Path, folder: Path) -> str:
    """Why ``file``, which is in ``folder``, is not read where a link leads out of it; "" where none does."""
    inside = Path(os.path.realpath(folder)) in Path(os.path.realpath(file)).parents
    return "" if inside else "a link to a file outside its folder, which is not read: copy the file into the folder"


def _may_be_checkpoint(name: str) -> bool:
    return name == ".metadata" or name.endswith(_NAMED)


def world_size_in(name: str) -> int | None:
    """The number of ranks that a file name like ``model_world_size_8_rank_0.pt`` tells."""
    told = re.search(r"world_size_(\d+)", name)
    return int(told[1]) if told else None


def split_at_rank(name: str, rank: int) -> tuple[str, str]:
    """What stands before and behind the number of the rank in a file's name, for a file of rank ``rank``."""
    match = _RANK.fullmatch(name) or _NUMBER.fullmatch(name)
    if match is None or int(match["rank"]) != rank:
        raise ValueError(f"{name} is not the file of rank {rank}")
    return match["before"], match["after"]


def _raise(error: OSError) -> None:
    raise BadCheckpoint(f"{error.filename}: could not read: {error.strerror or error}") from error


def _names(folder: Path) -> list[str]:
    try:
        return sorted(os.listdir(folder))  # noqa: PTH208
    except OSError as error:
        raise BadCheckpoint(f"{folder}: could not read: {error.strerror or error}") from error


def _in_folder(folder: Path, names: list[str]) -> Iterator[Found]:
    if ".metadata" in names or any(_DCP_FILE.fullmatch(name) or _DCP_LOCAL.fullmatch(name) for name in names):
        yield _dcp(folder, names)
    yield from _safetensors(folder, [name for name in names if name.endswith(".safetensors")], names)
    torch_files = [name for name in names if name.endswith((*_TORCH, *_OFTEN_TORCH)) and _is_torch(folder / name)]
    if LIGHTNING_FILE in torch_files and ".metadata" in names:
        torch_files.remove(LIGHTNING_FILE)
    yield from _families(folder, torch_files)


def _dcp(folder: Path, names: Iterable[str]) -> Found:
    files = [
        folder / name
        for name in names
        if name in (".metadata", LIGHTNING_FILE) or name.endswith(".distcp") or _DCP_LOCAL.fullmatch(name)
    ]
    return Found(Kind.DCP, folder, tuple(files), _dcp_layout(folder, names))


def _dcp_layout(folder: Path, names: Iterable[str]) -> str:
    if LIGHTNING_FILE in names:
        return "Lightning"
    if re.fullmatch(r"(pytorch_model_fsdp|optimizer)_\d+", folder.name):
        return "HF Trainer" if (folder.parent / "trainer_state.json").exists() else "accelerate"
    if re.match(r"ep\d+-ba\d+", folder.name):
        return "Composer"
    return ""


def _safetensors(folder: Path, shards: list[str], names: list[str]) -> Iterator[Found]:
    taken: set[str] = set()
    for name in names:
        if not name.endswith(".safetensors.index.json"):
            continue
        from fsdp_migrate.checkpoints.read.safetensors import files_in_index

        stem, listed = name.removesuffix(".safetensors.index.json"), files_in_index(folder / name)
        own = [shard for shard in shards if shard in listed or (not listed and shard.startswith(stem))] or shards
        taken.update(own)
        files = (folder / name, *(folder / shard for shard in own))
        yield Found(Kind.SAFETENSORS, folder / name, files)
    families: dict[object, list[str]] = defaultdict(list)
    for name in shards:
        if name not in taken:
            match = _HF_SHARD.fullmatch(name)
            families[(match["stem"], match["count"]) if match else name].append(name)
    for family in families.values():
        yield Found(Kind.SAFETENSORS, folder / family[0], tuple(folder / name for name in family))


def _families(folder: Path, names: list[str]) -> Iterator[Found]:
    families: dict[str, dict[int, Path]] = defaultdict(dict)
    single: list[str] = []
    for name in names:
        match = _RANK.fullmatch(name)
        family = families[f"{match['before']}#{match['after']}"] if match else {}
        if match and int(match["rank"]) not in family:
            family[int(match["rank"])] = folder / name
        else:
            # A second file of a rank, "rank_01" beside "rank_1", is a checkpoint of its own.
            single.append(name)
    numbered: dict[str, dict[int, Path]] = defaultdict(dict)
    for name in list(single):
        match = _NUMBER.fullmatch(name)
        if match and not _RANK.fullmatch(name):
            numbered[f"{match['before']}#{match['after']}"][int(match["rank"])] = folder / name
    for pattern, files in numbered.items():
        if _are_ranks(files):
            families[pattern] = files
            single = [name for name in single if folder / name not in files.values()]
    for files in families.values():
        ranks = dict(sorted(files.items()))
        first = next(iter(ranks.values()))
        yield Found(Kind.RANKS, first, tuple(ranks.values()), _rank_layout(first.name), ranks)
    for name in single:
        yield _file(folder / name)


def _are_ranks(files: dict[int, Path]) -> bool:
    """Whether numbered files are those of ranks, not of steps: they say so, or are slices."""
    from fsdp_migrate.checkpoints.read import torch_save as torchfile
    from fsdp_migrate.checkpoints.traits import are_slices

    try:
        read = {number: torchfile.read(file) for number, file in files.items()}
    except BadCheckpoint:
        return False
    if all(file.rank == number for number, file in read.items()):
        return True
    # Some ranks may be missing; the numbers of steps are further apart.
    count_up = len(files) > 1 and max(files) < 2 * len(files)
    return count_up and are_slices([file.entries for file in read.values()])


def _rank_layout(name: str) -> str:
    if re.fullmatch(r"(model|optim|extra_state)_world_size_\d+_rank_\d+\.pt", name):
        return "verl"
    if re.fullmatch(r"(pytorch_model_fsdp|optimizer)(_\d+)?_rank\d+\.bin", name):
        return "accelerate"
    if re.match(r"ep\d+-ba\d+", name):
        return "Composer"
    return ""


def _is_regular(path: Path) -> bool:
    """Whether it is a file, itself or where a link leads: no pipe, no device, no link to nowhere or to itself."""
    try:
        return stat.S_ISREG(path.stat().st_mode)
    except (OSError, ValueError):
        return False


def _of_metadata(path: Path) -> Found:
    _refuse_special(path)
    return _dcp(path.parent, [name for name in _names(path.parent) if _is_regular(path.parent / name)])


def _refuse_special(path: Path) -> None:
    try:
        mode = path.stat().st_mode
    except FileNotFoundError as error:
        raise BadCheckpoint(f"{path}: no such file or directory") from error
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise BadCheckpoint(f"{str(path)[:_SHOWN]}: could not read: {reason or error}") from error
    if not stat.S_ISREG(mode):
        raise BadCheckpoint(f"{path}: a pipe, socket or device, which contains no checkpoint")


def _file(path: Path) -> Found:
    _refuse_special(path)
    layout = "accelerate" if path.name in ("pytorch_model_fsdp.bin", "optimizer.bin") else ""
    if path.name.endswith(".safetensors"):
        return Found(Kind.SAFETENSORS, path, (path,))
    if path.name.endswith(".safetensors.index.json"):
        inside = [name for name in _names(path.parent) if name.endswith(".safetensors")]
        shards = [name for name in inside if _is_regular(path.parent / name)]
        return next(_safetensors(path.parent, shards, [path.name]))
    if _is_torch(path):
        kind = Kind.FILE if archive.starts_as_archive(archive.whole(path)) else Kind.PICKLE
        return Found(kind, path, (path,), layout)
    raise BadCheckpoint(f"{path}: neither a torch.save file nor a safetensors file")


def _is_torch(path: Path) -> bool:
    """By content; for what is no text, a name of torch's own counts too, so that a broken file is not passed over."""
    if not _is_regular(path):
        return False
    start = archive.first_bytes(archive.whole(path), _TOLD_BY)
    if start.startswith(_TORCH_STARTS):
        return True
    if path.name.endswith(_TORCH) and (start.startswith(LFS_START) or not _is_text(start)):
        return True
    return path.name.endswith((*_TORCH, *_OFTEN_TORCH)) and starts_as_old_pickle(path)


def _is_text(start: bytes) -> bool:
    """Whether it looks like a text, as corpora in Portuguese are called ``.pt``; an empty file does not."""
    try:
        text = codecs.getincrementaldecoder("utf-8")().decode(start)
    except UnicodeDecodeError:
        return False
    return bool(text.strip()) and all(letter.isprintable() or letter.isspace() for letter in text)
