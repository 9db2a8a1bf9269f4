"""What stands between a checkpoint and FSDP2, as findings FSDP401 to FSDP408."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from fsdp_migrate.checkpoints import traits
from fsdp_migrate.checkpoints.entries import BadCheckpoint, Key, TensorEntry, spelled, tensors
from fsdp_migrate.checkpoints.judge.checkpoint_rules import NAMES
from fsdp_migrate.checkpoints.read import manifest
from fsdp_migrate.checkpoints.read.checkpoint_parts import Checkpoint, open_all
from fsdp_migrate.checkpoints.read.find import Kind
from fsdp_migrate.checkpoints.read.unpickle import Global
from fsdp_rules.verdict.finding import Finding, Level

_SHARDED_TENSOR = Global("torch.distributed._shard.sharded_tensor.api", "ShardedTensor")
#: What takes what FSDP1 alone can read to a form that FSDP2 reads too.
_CONVERT = "fsdp-migrate checkpoint convert {source} NEW --to dcp{options}"


@dataclass(frozen=True)
class _Said:
    rule: str
    level: Level
    message: str
    advice: str
    path: Path


def findings(path: Path) -> list[Finding]:
    """What is to be known about every checkpoint at or under ``path``, most dangerous first.

    Raises :class:`BadCheckpoint` where ``path`` is neither a checkpoint nor a folder.
    """
    return [finding for checkpoint in open_all(path) for finding in judge(checkpoint)]


def judge(checkpoint: Checkpoint) -> list[Finding]:
    """What is to be known about one checkpoint, most dangerous first."""
    return [
        Finding(
            said.rule,
            NAMES[said.rule],
            said.path.as_posix(),
            *(1, 0, 1, 0),
            said.level,
            said.message,
            said.advice,
        )
        for said in _all(checkpoint)
    ]


def _all(checkpoint: Checkpoint) -> Iterator[_Said]:
    yield from _code(checkpoint)
    yield from _incomplete(checkpoint)
    flat = traits.flat_parameters(checkpoint.entries)
    by_id = [optimizer for optimizer in traits.optimizers(checkpoint.entries) if optimizer.keyed_by == "id"]
    if flat:
        yield _flat(checkpoint, len(flat))
    elif _holds_sharded_tensors(checkpoint):
        yield _sharded(checkpoint)
    if by_id:
        yield _by_id(checkpoint)
    if lost := traits.shared_moments(checkpoint.entries):
        yield _lost_moments(checkpoint, lost)
    elif not (flat or by_id or _holds_sharded_tensors(checkpoint)):
        yield from _shared_counters(checkpoint)
    if checkpoint.found.kind is Kind.DCP and not (flat or by_id or checkpoint.problems):
        yield from _folder(checkpoint)
    yield from _source(checkpoint)


def _source(checkpoint: Checkpoint) -> Iterator[_Said]:
    """What was found about the source of the conversion that wrote it: nothing else shows it any more."""
    try:
        held = manifest.read(checkpoint)
    except BadCheckpoint as error:
        message = f"assumes that only the manifest is damaged: {error}"
        yield _Said("FSDP405", Level.REVIEW, message, "copy the checkpoint again, or convert it again", checkpoint.path)
        return
    # Of safetensors it is the folder's, which may hold other models too.
    if held is not None and held.tensors.keys() & checkpoint.entries.keys():
        for one in held.source:
            rule = one.rule if one.rule in NAMES else "FSDP405"
            yield _Said(rule, Level(one.level), one.message, one.advice, checkpoint.path)


def _code(checkpoint: Checkpoint) -> Iterator[_Said]:
    for path, names in checkpoint.dangers:
        shown = ", ".join(map(str, names[:3])) + (", …" if len(names) > 3 else "")
        yield _Said(
            "FSDP406",
            Level.MANUAL,
            f"loading this file would execute {shown}, which no checkpoint needs",
            "do not load it: ask its author, and load only with torch.load(..., weights_only=True)",
            path,
        )
    for path, names in checkpoint.foreign:
        shown = ", ".join(map(str, names[:3])) + (", …" if len(names) > 3 else "")
        yield _Said(
            "FSDP406",
            Level.REVIEW,
            f"contains objects of {shown}: loading runs their code, so this assumes that you trust it",
            "save tensors and plain values only, or load with weights_only=True and add_safe_globals",
            path,
        )


def _incomplete(checkpoint: Checkpoint) -> Iterator[_Said]:
    if checkpoint.problems:
        more = f" (and {len(checkpoint.problems) - 1} more)" if len(checkpoint.problems) > 1 else ""
        yield _Said(
            "FSDP405",
            Level.MANUAL,
            f"not complete: {checkpoint.problems[0]}{more}",
            "find the missing or truncated files, or use an earlier checkpoint",
            checkpoint.path,
        )
    if checkpoint.damage:
        first = checkpoint.damage[0]
        more = f", and {len(checkpoint.damage) - 1} more storages" if len(checkpoint.damage) > 1 else ""
        yield _Said(
            "FSDP405",
            Level.MANUAL,
            f"damaged: {first.problem}: {', '.join(map(spelled, first.keys[:3])) or 'of no tensor'}{more}",
            "copy the file again, or use an earlier checkpoint",
            checkpoint.path,
        )
    elif checkpoint.undigested:
        yield _Said(
            "FSDP405",
            Level.INFO,
            "its tensors have no CRC-32, so this check cannot detect damage to them",
            "use checkpoint verify, which compares the tensors with the manifest that checkpoint convert writes",
            checkpoint.path,
        )


def _flat(checkpoint: Checkpoint, count: int) -> _Said:
    said = f"{count} flat parameter{'s' * (count > 1)} of FSDP1 (LOCAL_STATE_DICT), which no FSDP2 model has"
    advice = f"{_convert(checkpoint, ' --template FILE')} (with strict=False, loading it silently loads nothing)"
    if checkpoint.found.kind is Kind.DCP:
        said += "; any tensors next to them that are named like parameters are one rank's slices"
    return _Said("FSDP402", Level.MANUAL, said, advice, checkpoint.path)


def _convert(checkpoint: Checkpoint, options: str = "") -> str:
    return _CONVERT.format(source=shlex.quote(checkpoint.path.as_posix()), options=options)


def _holds_sharded_tensors(checkpoint: Checkpoint) -> bool:
    """By the class itself: ``.metadata`` of torch 2.2 and before names others of its module for any tensor."""
    if checkpoint.found.kind is Kind.PICKLE:
        return _SHARDED_TENSOR in checkpoint.names
    return any(entry.kind == "ShardedTensor" for _, entry in tensors(checkpoint.entries))


def _sharded(checkpoint: Checkpoint) -> _Said:
    ranks = len(checkpoint.found.files)
    many = f"in {checkpoint.world_size} processes" if checkpoint.world_size else "in as many processes"
    return _Said(
        "FSDP401",
        Level.MANUAL,
        f"ShardedTensor in {ranks} file{'s' * (ranks > 1)} of torch.save: they open only {many} with a "
        "process group, and FSDP2 models do not load them",
        _convert(checkpoint),
        checkpoint.path,
    )


def _lost_moments(checkpoint: Checkpoint, lost: Mapping[Key, tuple[str, ...]]) -> _Said:
    count, states = len(lost), ", ".join(next(iter(lost.values())))
    return _Said(
        "FSDP407",
        Level.MANUAL,
        f"states of {count} parameter{'s' * (count > 1)} ({states}) are one tensor, as FSDP1 saves them on the CPU: "
        "all but one are lost",
        "load only the model and start the optimizer again, or use a checkpoint saved with offload_to_cpu=False",
        checkpoint.path,
    )


def _shared_counters(checkpoint: Checkpoint) -> Iterator[_Said]:
    count = sum(len(traits.sharing(checkpoint.entries, one.prefix)) for one in traits.optimizers(checkpoint.entries))
    if count:
        yield _Said(
            "FSDP408",
            Level.REVIEW,
            f"{count} parameters share states (step) with others, as the parameters of an FSDP1 flat parameter do: "
            f"assumes the loading code copies each (otherwise each parameter counts the steps of all parameters)",
            "load it with the lines that fsdp-migrate checkpoint inspect prints, or convert it, which separates them",
            checkpoint.path,
        )


def _by_id(checkpoint: Checkpoint) -> _Said:
    if checkpoint.rankwise:
        whose = "the slices of each rank"
    elif traits.are_slices([checkpoint.entries]):
        whose = "optimizer states, all one-dimensional like the slices of a rank,"
    else:
        whose = "optimizer states"
    return _Said(
        "FSDP403",
        Level.MANUAL,
        f"{whose} keyed by parameter id, and the file does not contain the names of the ids",
        f"{_convert(checkpoint, ' --groups FILE')} (loaded directly, the states are lost or fail in step())",
        checkpoint.path,
    )


def _folder(checkpoint: Checkpoint) -> Iterator[_Said]:
    origin = written_by_fsdp1(checkpoint)
    if origin is False:
        return
    who = "written by FSDP1" if origin else "written by FSDP1 or FSDP2, whose files look the same"
    yield _Said(
        "FSDP404",
        Level.INFO,
        f"a folder of torch.distributed.checkpoint {who} that loads into FSDP2 without conversion",
        "dcp.load into the return value of get_state_dict(model, optimizer), then set_state_dict "
        "(optimizer.state_dict() of a fresh optimizer silently loads no state)",
        checkpoint.path,
    )


def written_by_fsdp1(checkpoint: Checkpoint) -> bool | None:
    """Whether FSDP1 wrote this folder of torch.distributed.checkpoint; None where nothing in it tells.

    A parameter with fewer rows than ranks tells: FSDP2 records the empty parts of its DTensors, FSDP1 does not those
    of its ShardedTensors. A folder in which nothing is in parts was written by neither.
    """
    entries = list(tensors(checkpoint.entries))
    parts = [entry for _, entry in entries if len(entry.chunks) > 1]
    if not parts:
        return False
    if any(not chunk.numel for _, entry in entries if entry.numel for chunk in entry.chunks):
        return False
    shards = max(len(entry.chunks) for entry in parts)
    states = [entry for key, entry in entries if "state" in key and key[-1] in ("exp_avg", "momentum_buffer")]
    if any(_too_small(entry, shards) for entry in states):
        return True
    return True if any("_fsdp_wrapped_module" in spelled(key) for key, _ in entries) else None


def _too_small(entry: TensorEntry, shards: int) -> bool:
    return bool(entry.shape) and 0 < entry.shape[0] < shards and len(entry.chunks) == entry.shape[0]
