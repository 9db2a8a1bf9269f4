"""One conversion from start to end: read, decide, write beside, compare, put in place."""

from __future__ import annotations

import hashlib
import shlex
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

from fsdp_migrate.checkpoints import traits
from fsdp_migrate.checkpoints.audit.auditor import Audit
from fsdp_migrate.checkpoints.audit.inventory import Disagrees
from fsdp_migrate.checkpoints.convert import manifest_digests
from fsdp_migrate.checkpoints.convert import target as place
from fsdp_migrate.checkpoints.convert.plan import Target, Wanted, is_left_out, plan
from fsdp_migrate.checkpoints.convert.state import CannotConvert, State
from fsdp_migrate.checkpoints.convert.stream import TensorStream
from fsdp_migrate.checkpoints.entries import BadCheckpoint, spelled, tensors
from fsdp_migrate.checkpoints.judge import loading
from fsdp_migrate.checkpoints.judge.judge import judge
from fsdp_migrate.checkpoints.read import digests, elements
from fsdp_migrate.checkpoints.read.checkpoint_parts import Checkpoint, open_all, open_found
from fsdp_migrate.checkpoints.read.find import Kind, find
from fsdp_migrate.checkpoints.read.manifest import Evidence
from fsdp_migrate.checkpoints.threads import mapped
from fsdp_rules.verdict.finding import Level

#: What is no longer so once it is converted: forms that FSDP2 does not read, pickles that run code, shared counters.
_SETTLED = ("FSDP401", "FSDP402", "FSDP403", "FSDP404", "FSDP406", "FSDP408")
#: What Hugging Face's libraries cut at by default.
SHARD_SIZE = 5 * 10**9


#: Is told what is being done, and of how many bytes; gives what is to be called with each number of them done.
Progress: TypeAlias = Callable[[str, int], Callable[[int], object]]


@dataclass(frozen=True)
class Converted:
    """What was written, or would be: how much, what was changed on the way, and the line that loads it."""

    source: Path
    target: Path
    count: int
    nbytes: int
    notes: Sequence[str]
    line: str


def prepare(source: Path, target: Path, wanted: Wanted) -> State:
    """The state that :func:`convert` writes. Raises :class:`CannotConvert` or :class:`BadCheckpoint`."""
    return _prepared(source, target, wanted)[1]


def _prepared(source: Path, target: Path, wanted: Wanted) -> tuple[Checkpoint, State, Audit]:
    place.refuse(source, target)
    checkpoint = _only(source)
    place.refuse(checkpoint.path, target)
    place.refuse_name(target, wanted.to is Target.FULL)
    flat = traits.flat_parameters(checkpoint.entries)
    state = plan(checkpoint, wanted, _beside(checkpoint) if flat and wanted.template is None else [])
    place.refuse_repetition(state, source, checkpoint.found.files)
    try:
        audit = Audit(checkpoint)
        audit.refuse_lost(state)
    except Disagrees as error:
        raise CannotConvert(f"{source}: two independent readers get different results: {error}") from error
    return checkpoint, state, audit


def convert(source: Path, target: Path, wanted: Wanted, progress: Progress, shard_size: int = SHARD_SIZE) -> Converted:
    """Write the checkpoint at ``source`` to ``target``, which must not be there yet.

    One process and no process group; it holds two tensors at most. Raises :class:`CannotConvert` and
    :class:`BadCheckpoint`, both before anything lies at ``target``; ``source`` is only ever read.
    """
    checkpoint, state, audit = _prepared(source, target, wanted)
    place.refuse_small_disk(state, target)
    _refuse_names_of_other_encodings(state, target)
    size = sum(file.stat().st_size for file in checkpoint.found.files)
    nbytes = place.nbytes_of(state)
    kept: list[int] = []
    checking, ended = progress("checking", size), threading.Event()

    def check(count: int) -> None:
        if ended.is_set():
            raise CannotConvert("it was ended")
        checking(count)

    with place.beside(target, _mark(state, wanted.to, shard_size)) as path, ThreadPoolExecutor(1) as pool:
        # Beside the writing, which reads the same pages: nothing is put in place before it has ended.
        checked = pool.submit(digests.with_damage, checkpoint, check)
        stream = TensorStream(state.entries, progress("writing", nbytes), kept.append)
        try:
            _write(state, path, stream, wanted.to, shard_size)
            judged = checked.result()
            _refuse_damaged(judged, wanted)
        except MemoryError as error:
            largest = max(entry.nbytes for _, entry in tensors(state.entries))
            raise CannotConvert(f"{source}: its largest tensor has {largest:,} bytes, too many for memory") from error
        finally:
            ended.set()
        on_disk = pool.submit(place.sync, path)
        try:
            compared = audit.compare(state, path, progress("comparing", nbytes))
        except (Disagrees, BadCheckpoint) as error:
            raise CannotConvert(f"the written checkpoint differs from the source, and was removed: {error}") from error
        on_disk.result()
        (made,) = open_all(path)
        more, carried = _evidence(judged, made)
        manifest_digests.write(made, path, compared, carried)
    left = [
        f"{path}: left by a killed or running conversion; delete it if none is running"
        for path in place.left_behind(target)
    ]
    if kept:
        left.append(f"kept {sum(kept):,} bytes that a killed conversion had already written")
    notes = (*state.notes, *more, *left)
    (written,) = open_all(target)
    count = len(list(tensors(state.entries)))
    return Converted(source, target, count, nbytes, notes, loading.line(written, state.aliases))


def _evidence(source: Checkpoint, made: Checkpoint) -> tuple[list[str], list[Evidence]]:
    """What to say of the conversion, and of its result for ever: what was found about the source and still holds."""
    notes: list[str] = []
    # What a finding says is to be done first has been left out, or nothing would be converted.
    found = [
        Evidence(one.rule, (Level.INFO if one.level is Level.MANUAL else one.level).value, one.message, one.advice)
        for one in judge(source)
        if one.rule not in _SETTLED
    ]
    odd: list[str] = []
    if source.undigested:
        if source.found.kind is not Kind.SAFETENSORS:
            notes.append("tensors of the source have no CRC-32, so damage to them could not be detected")
        entries = dict(tensors(made.entries))
        finite = mapped(elements.is_finite, entries.values())
        odd = [spelled(key) for key, is_finite in zip(entries, finite, strict=True) if not is_finite]
    if odd:
        many = f" and {len(odd) - 3} more" if len(odd) > 3 else ""
        notes.append(
            f"{', '.join(odd[:3])}{many}: has NaN or infinite values, and no CRC-32 shows that they were saved"
        )
        found.append(
            Evidence("FSDP405", Level.REVIEW.value, notes[-1], "compare with the run, or with an earlier checkpoint")
        )
    told = (f"its source: {one.message.removeprefix('its source: ')}" for one in found)
    return notes, list(dict.fromkeys(replace(one, message=text) for one, text in zip(found, told, strict=True)))


def _mark(state: State, to: Target, shard_size: int) -> str:
    """The same for conversions that write files of the same names and sizes, whose bytes are then compared."""
    told = [(key, entry.dtype, entry.shape) for key, entry in tensors(state.entries)]
    return hashlib.sha256(repr((to.value, shard_size, told)).encode("utf-8", "backslashreplace")).hexdigest()[:8]


def _refuse_damaged(checkpoint: Checkpoint, wanted: Wanted) -> None:
    """Raise :class:`CannotConvert` where elements are not those that were saved, those of left out keys apart."""
    for damage in checkpoint.damage:
        names = [spelled(key) for key in damage.keys]
        if names and all(is_left_out(name, wanted.leave_out) for name in names):
            continue
        shown = ", ".join(names[:3]) or "no tensor"
        options = " ".join(f"--leave-out {shlex.quote(name)}" for name in names[:3])
        raise CannotConvert(
            f"{damage.problem}: damaged elements of {shown}: copy the file again, or use an earlier checkpoint"
            + (f" ({options} converts the rest)" if names else "")
        )


def _refuse_names_of_other_encodings(state: State, target: Path) -> None:
    """Raise :class:`CannotConvert` for names that UTF-8 cannot spell, which no format keeps as they are."""
    for what, text in (("the name of the target", str(target)), *(("the key", spelled(key)) for key in state.entries)):
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            shown = text.encode("utf-8", "backslashreplace").decode()
            raise CannotConvert(f"{what} {shown} has characters that UTF-8 cannot encode: rename it") from error


def _write(state: State, path: Path, stream: TensorStream, to: Target, shard_size: int) -> None:
    # Each writer takes time or a library that the others do without: torch for two of them.
    match to:
        case Target.SAFETENSORS:
            from fsdp_migrate.checkpoints.convert.writers import to_safetensors

            to_safetensors.write(state, path, stream, shard_size)
        case Target.FULL:
            from fsdp_migrate.checkpoints.convert.writers import to_full

            to_full.write(state, path, stream)
        case Target.DCP:
            from fsdp_migrate.checkpoints.convert.writers import to_dcp

            to_dcp.write(state, path, stream)


def _only(source: Path) -> Checkpoint:
    """The one checkpoint at or under ``source``; a rank's file stands for those of all ranks beside it."""
    beside = find(source.parent, lambda folder: False) if source.is_file() else []
    families = [found for found in beside if found.kind is Kind.RANKS and source in found.files]
    found = [open_found(one) for one in families] or open_all(source)
    if not found:
        raise CannotConvert(f"{source}: contains no checkpoint")
    if len(found) > 1:
        names = ", ".join(str(one.path) for one in found[:5]) + (", …" if len(found) > 5 else "")
        raise CannotConvert(f"{source}: {len(found)} checkpoints found in it; pass one of them: {names}")
    return found[0]


def _beside(checkpoint: Checkpoint) -> list[Checkpoint]:
    """The others in the same folder and in folders of that, where accelerate puts the optimizer of rank files."""
    folder = checkpoint.path.parent
    found = find(folder, lambda inner: inner.parent == folder)
    return [open_found(one) for one in found if one.path != checkpoint.path]
