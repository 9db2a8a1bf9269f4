"""The code that loads a checkpoint into FSDP2, and the traps on the way that this one has."""

from __future__ import annotations

import glob
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from fsdp_migrate.checkpoints import traits
from fsdp_migrate.checkpoints.entries import Entries, Key, tensors
from fsdp_migrate.checkpoints.read.checkpoint_parts import Checkpoint
from fsdp_migrate.checkpoints.read.find import Kind, split_at_rank

#: Gives each parameter's state its own tensors, in the form that a rewrite writes.
OWNED = (
    "for state in optimizer.state.values(): "
    "state.update({key: value.clone() for key, value in state.items() if torch.is_tensor(value)})"
)


@dataclass(frozen=True)
class Trap:
    """Something that goes wrong without an error, or with a misleading one."""

    name: str
    sentence: str


def root_of_model(entries: Entries) -> Key | None:
    """The key under which the model lies, ``()`` where it is the root; None for an optimizer alone."""
    # A rate may be a tensor in the groups of an optimizer.
    parts = [(*one.prefix, part) for one in traits.optimizers(entries) for part in ("state", "param_groups")]
    roots = Counter(
        key[:-1]
        for key, entry in tensors(entries)
        if key
        and ("float" in entry.dtype or entry.stored is not None)
        and not any(key[: len(part)] == part for part in parts)
    )
    return roots.most_common(1)[0][0] if roots else None


def line(checkpoint: Checkpoint, aliases: Sequence[tuple[str, str]] = ()) -> str:
    """One line of code for an FSDP2 model, or as a comment why there is none, or that it has to be converted.

    A second line copies the states that several parameters share, which the first loads as they are. Both take the
    functions of ``torch.distributed.checkpoint.state_dict`` for imported, and ``dist``, ``dcp`` and ``torch``.
    ``aliases``: names that the model has and its safetensors lack, each with the name of the same elements in them.
    """
    if checkpoint.dangers:
        return "# do not load: this pickle runs code"
    if checkpoint.problems:
        return "# not complete"
    if checkpoint.damage:
        return "# damaged: see the finding"
    if needs_conversion(checkpoint):
        return "# not directly: the finding has the command that converts it"
    if traits.shared_moments(checkpoint.entries):
        # A line would load the one tensor as each of the states.
        has_model = root_of_model(checkpoint.entries) is not None
        return "# only the model, as the finding says" if has_model else "# not this optimizer: see the finding"
    loaded = _line(checkpoint, aliases)
    shared = [optimizer.prefix for optimizer in traits.optimizers(checkpoint.entries)[:1]]
    return f"{loaded}\n{OWNED}" if any(traits.sharing(checkpoint.entries, one) for one in shared) else loaded


def _line(checkpoint: Checkpoint, aliases: Sequence[tuple[str, str]]) -> str:
    whole = ", options=StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)"
    match checkpoint.found.kind:
        case Kind.DCP:
            return _from_folder(checkpoint)
        case Kind.RANKS:
            return _from_value(checkpoint, f"torch.load({_name_of_rank(checkpoint)}, weights_only=True)", "")
        case Kind.SAFETENSORS if _is_sharded(checkpoint):
            reader = f"dcp.HuggingFaceStorageReader({literal(str(checkpoint.found.files[0].parent))})"
            return (
                f"sd = get_model_state_dict(model); dcp.load(sd, storage_reader={reader}); "
                "set_model_state_dict(model, sd)"
            )
        case Kind.SAFETENSORS:
            loaded = _from_safetensors(checkpoint)
            return _tied(loaded, aliases, whole) if aliases else _from_value(checkpoint, loaded, whole)
        case Kind.PICKLE:
            return "# save it again with a torch that writes archives (1.6 or later)"
        case Kind.FILE:
            return _from_value(
                checkpoint, f"torch.load({literal(str(checkpoint.path))}, mmap=True, weights_only=True)", whole
            )


def needs_conversion(checkpoint: Checkpoint) -> bool:
    """Whether no FSDP2 program can load it as it is."""
    return (
        bool(traits.flat_parameters(checkpoint.entries))
        or any(optimizer.keyed_by == "id" for optimizer in traits.optimizers(checkpoint.entries))
        or any(entry.kind == "ShardedTensor" for _, entry in tensors(checkpoint.entries))
    )


def traps(checkpoint: Checkpoint) -> Iterator[Trap]:
    """The traps that this checkpoint has, worst first."""
    found = traits.optimizers(checkpoint.entries)
    folder = checkpoint.found.kind is Kind.DCP
    names = [str(key[-1]) for key in checkpoint.entries if key]
    if folder and found:
        yield Trap(
            "silent-reset",
            "dcp.load into optimizer.state_dict() of a fresh optimizer silently loads no state: load into "
            "get_optimizer_state_dict(model, optimizer)",
        )
    if traits.shared_moments(checkpoint.entries):
        yield Trap(
            "shared-moments",
            "two states of one parameter are the same tensor, as FSDP1 saves them on the CPU: one of them is lost, so "
            "start the optimizer again",
        )
    if checkpoint.metadata is not None and checkpoint.metadata.by_rank:
        yield Trap(
            "by-rank",
            "loads only on the same number of ranks, with FileSystemReader(use_collectives=False)",
        )
    flat = traits.flat_parameters(checkpoint.entries)
    if flat:
        yield Trap("strict-false", "load_state_dict(strict=False) silently loads nothing from these keys")
    if flat and folder and len(list(tensors(checkpoint.entries))) > len(flat):
        yield Trap("lossy-views", "only the flat parameters are complete: tensors under parameter names are slices")
    for optimizer in found:
        if optimizer.groups > 1:
            yield Trap(
                "groups",
                f"the optimizer has {optimizer.groups} groups: one built with fewer silently drops the rest",
            )
    grouped = [key for key in checkpoint.entries if "param_groups" in key]
    if any("betas" in key for key in grouped) and not any("decoupled_weight_decay" in key for key in grouped):
        yield Trap(
            "decoupled-weight-decay",
            "its groups lack decoupled_weight_decay, which newer Adam and AdamW need for a strict load: pass "
            "DefaultLoadPlanner(allow_partial_load=True)",
        )
    if any(entry.kind == "DTensor" for _, entry in tensors(checkpoint.entries)):
        yield Trap("import-dtensor", "torch.load(weights_only=True) needs import torch.distributed.tensor before it")
    if _is_sharded(checkpoint):
        yield Trap(
            "sharded-safetensors",
            "the shape of a tensor is only known from its parts: if the files of the last ranks are missing, it is "
            "too short, and the other files do not show it",
        )
    if any(name.startswith("_orig_mod.") or "._orig_mod." in name for name in names):
        yield Trap("compiled", "keys with _orig_mod. come from torch.compile and match only a compiled model")
    if any(name.startswith("module.") for name in names):
        yield Trap("module-prefix", "keys start with module., as DistributedDataParallel writes them")


def _is_sharded(checkpoint: Checkpoint) -> bool:
    """Whether ranks have written their parts of tensors as safetensors, each its own files."""
    return any(entry.kind == "sharded" for _, entry in tensors(checkpoint.entries))


def _from_folder(checkpoint: Checkpoint) -> str:
    root = root_of_model(checkpoint.entries)
    targets: dict[Key, str] = {}
    after = []
    if root is not None:
        targets[root] = "get_model_state_dict(model)"
        after.append(f"set_model_state_dict(model, {_at('sd', root)})")
    for optimizer in traits.optimizers(checkpoint.entries)[:1]:
        targets[optimizer.prefix] = "get_optimizer_state_dict(model, optimizer)"
        after.append(f"set_optimizer_state_dict(model, optimizer, {_at('sd', optimizer.prefix)})")
    if not targets:
        return "# neither a model nor an optimizer"
    return f"sd = {_nested(targets)}; dcp.load(sd, checkpoint_id={literal(str(checkpoint.path))}); " + "; ".join(after)


def _nested(targets: Mapping[Key, str]) -> str:
    """The expression of dictionaries that has each value under its key."""
    if () in targets:
        rest = {key: value for key, value in targets.items() if key}
        return f"{targets[()]} | {_nested(rest)}" if rest else targets[()]
    inner: dict[str | int, dict[Key, str]] = {}
    for key, value in targets.items():
        inner.setdefault(key[0], {})[key[1:]] = value
    return "{" + ", ".join(f"{literal(name)}: {_nested(held)}" for name, held in inner.items()) + "}"


def _from_value(checkpoint: Checkpoint, loaded: str, options: str) -> str:
    root = root_of_model(checkpoint.entries)
    optimizers = traits.optimizers(checkpoint.entries)[:1]
    prefixes = [*([root] if root is not None else []), *(optimizer.prefix for optimizer in optimizers)]
    if not prefixes:
        return f"{loaded}  # neither a model nor an optimizer"
    value = loaded if len(prefixes) == 1 else "sd"
    calls = [f"set_model_state_dict(model, {_at(value, root)}{options})"] if root is not None else []
    calls += [f"set_optimizer_state_dict(model, optimizer, {_at(value, one.prefix)}{options})" for one in optimizers]
    return "; ".join(calls if value != "sd" else [f"sd = {loaded}", *calls])


def _tied(loaded: str, aliases: Sequence[tuple[str, str]], options: str) -> str:
    ties = [f"{_at('sd', (name,))} = {_at('sd', (first,))}" for name, first in aliases]
    return "; ".join([f"sd = {loaded}", *ties, f"set_model_state_dict(model, sd{options})"])


def _from_safetensors(checkpoint: Checkpoint) -> str:
    shards = [file for file in checkpoint.found.files if file.suffix == ".safetensors"]
    if not shards:
        return "{}"
    if len(shards) == 1:
        return f"safetensors.torch.load_file({literal(str(shards[0]))})"
    start = re.split("[0-9]", shards[0].name)[0]
    pattern = f"{glob.escape(str(shards[0].parent / start) if start else f'{shards[0].parent}/')}*.safetensors"
    files = f"glob.glob({literal(pattern)})"
    if sorted(glob.glob(pattern)) != sorted(map(str, shards)):  # noqa: PTH207  as the printed line does it
        files = f"({', '.join(literal(str(file)) for file in shards)})"
    return f"{{k: v for f in {files} for k, v in safetensors.torch.load_file(f).items()}}"


def _name_of_rank(checkpoint: Checkpoint) -> str:
    """The expression of the name of a rank's own file."""
    ranks = checkpoint.found.ranks
    rank, path = next(iter(ranks.items()))
    before, after = split_at_rank(path.name, rank)
    widths = (0, len(path.name) - len(before) - len(after))
    fitting = [w for w in widths if all(one.name == f"{before}{n:0{w}}{after}" for n, one in ranks.items())]
    if not fitting:
        named = ", ".join(f"{number}: {literal(str(one))}" for number, one in ranks.items())
        return f"{{{named}}}[dist.get_rank()]"
    width = fitting[0]
    start = str(path.parent / before)
    if "{" in start + after or "}" in start + after:
        number = f"str(dist.get_rank()).zfill({width})" if width else "str(dist.get_rank())"
        return f"{literal(start)} + {number} + {literal(after)}"
    number = f"{{dist.get_rank():0{width}}}" if width else "{dist.get_rank()}"
    # What one literal is, the parts of an f-string are too: no quote or backslash of a name is left bare.
    return f"f{literal(start)[:-1]}{number}{literal(after)[1:]}"


def literal(value: str | int) -> str:
    """``value`` as Python reads it back, whatever characters it has; a text in double quotes."""
    if isinstance(value, int):
        return repr(value)
    inner = "".join(
        f"\\{letter}" if letter in '\\"' else letter if letter.isprintable() else ascii(letter)[1:-1]
        for letter in value
    )
    return f'"{inner}"'


def _at(value: str, key: Key) -> str:
    return value + "".join(f"[{literal(part)}]" for part in key)


def kind_in_words(checkpoint: Checkpoint) -> str:
    """What it is, as people call it."""
    kinds = {entry.kind for _, entry in tensors(checkpoint.entries)} - {"plain"}
    flat = bool(traits.flat_parameters(checkpoint.entries))
    match checkpoint.found.kind:
        case Kind.DCP:
            return "folder of torch.distributed.checkpoint" + (", flat parameters (LOCAL_STATE_DICT)" if flat else "")
        case Kind.SAFETENSORS:
            return "safetensors"
        case Kind.PICKLE:
            return "pickle, not an archive of torch.save"
        case Kind.RANKS | Kind.FILE:
            whose = "a file per rank" if checkpoint.found.kind is Kind.RANKS else "one file"
            if flat:
                return f"{whose} of torch.save, flat parameters (LOCAL_STATE_DICT)"
            held = " and ".join(sorted(kinds)) or "plain tensors"
            gathered = not kinds and any(file.fsdp1 for file in checkpoint.ranks.values())
            return f"{whose} of torch.save, {held}" + (", gathered by FSDP1" if gathered else "")
