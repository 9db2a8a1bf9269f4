"""What a checkpoint does not say about the parameters in it: their shapes and their order, told by another file.

A template is one of

- JSON with an object of names and shapes, ``{"tok.weight": [17, 6], ...}``, of all parameters in the order of
  ``model.named_parameters()``. A parameter that is another one too has the name of that one instead of a shape:
  ``"head.weight": "tok.weight"``; a buffer, if it is there, ``null``. :data:`RECIPE` writes it, for a model built on
  the meta device too (but not for one moved there, which unties parameters).
- a file of ``torch.save`` with what ``model.state_dict()`` gave, which carries the versions of its modules.
- any other state dict in such a file, safetensors, with or without an index, or a folder of
  torch.distributed.checkpoint. These have names in whatever order they were put there.
- an optimizer keyed by parameters' names, which has their shapes and an order that may be another.

Nothing in it is unpickled. Tensors that are no floating-point numbers are left out, as FSDP flattens none of them.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fsdp_migrate.checkpoints import traits
from fsdp_migrate.checkpoints.convert.keys.names import DDP, clean
from fsdp_migrate.checkpoints.convert.state import CannotConvert
from fsdp_migrate.checkpoints.entries import (
    BadCheckpoint,
    Bytes,
    Entries,
    Key,
    TensorEntry,
    spelled,
    strides_of,
    tensors,
)
from fsdp_migrate.checkpoints.judge.loading import root_of_model
from fsdp_migrate.checkpoints.read.archive import first_bytes, whole
from fsdp_migrate.checkpoints.read.checkpoint_parts import Checkpoint, open_all
from fsdp_migrate.tree.regular import read_regular

#: Writes the JSON of a model, before FSDP wraps it.
RECIPE = (
    "first = {}; out = {n: list(p.shape) if first.setdefault(p, n) == n else first[p] "
    "for n, p in model.named_parameters(remove_duplicate=False)}; out |= dict.fromkeys(dict(model.named_buffers())); "
    "pathlib.Path('template.json').write_text(json.dumps(out))"
)
#: How to get one that tells all.
ADVICE = f"write one from the model before FSDP wraps it: {RECIPE}"
#: States that have the shape of their parameter, in the optimizers of torch and those made like them.
LIKE_THE_PARAMETER = (
    *("exp_avg", "exp_avg_sq", "max_exp_avg_sq", "momentum_buffer", "square_avg", "grad_avg", "exp_inf"),
    *("acc_delta", "sum", "prev", "step_size", "ax"),
)


@dataclass(frozen=True)
class Template:
    """Names without what wrappers leave in them, and shapes.

    ``ordered``: the order of ``shapes`` is that of the parameters in the model. ``where`` is what to call it.
    ``ties``: names of a parameter that has another name before, and that name; ``alike``: the same for names whose
    elements are equal, which may be tied. ``parameters_only``: no buffers are among ``shapes``; ``buffers``: those that
    are known as such. ``strided``: names whose elements do not lie in the order of their indices, as those of
    ``channels_last``.
    """

    shapes: Mapping[str, tuple[int, ...]]
    ordered: bool
    where: str
    ties: Mapping[str, str] = field(default_factory=dict)
    alike: Mapping[str, str] = field(default_factory=dict)
    parameters_only: bool = False
    buffers: frozenset[str] = frozenset()
    strided: frozenset[str] = frozenset()


def read_template(path: Path) -> Template:
    """The template at ``path``. Raises :class:`CannotConvert` for what is none, with how to make one."""
    try:
        if path.is_file() and first_bytes(whole(path), 64).lstrip()[:1] == b"{":
            told = _json(path)
            if "weight_map" not in told:
                return _of_json(told, str(path))
        found = open_all(path)
    except BadCheckpoint as error:
        raise CannotConvert(f"the template cannot be read: {error}; {ADVICE}") from error
    if len(found) != 1:
        names = ", ".join(str(one.path) for one in found[:4]) + (", …" if len(found) > 4 else "")
        raise CannotConvert(f"{path}: a template is one file or checkpoint; {len(found)} found here: {names}")
    return _of_checkpoint(found[0])


def template_of_optimizer(checkpoint: Checkpoint) -> Template | None:
    """Names and shapes from the states of an optimizer keyed by name; None where there is none in the checkpoint.

    Raises :class:`CannotConvert` where states of one parameter have several shapes.
    """
    shapes: dict[str, tuple[int, ...]] = {}
    for optimizer in traits.optimizers(checkpoint.entries):
        start = (*optimizer.prefix, "state")
        for key, entry in tensors(checkpoint.entries):
            if optimizer.keyed_by != "fqn" or key[: len(start)] != start or len(key) != len(start) + 2:
                continue
            name = clean(str(key[-2]))
            if key[-1] not in LIKE_THE_PARAMETER or not entry.shape:
                continue
            if shapes.setdefault(name, entry.shape) != entry.shape:
                raise CannotConvert(
                    f"{checkpoint.path}: {spelled(key)} has the shape {entry.shape}, but other states of the same "
                    f"parameter have {shapes[name]}, so the shape of {name} is unknown; pass a template. {ADVICE}"
                )
    where = f"the optimizer in {checkpoint.path}"
    return _without_ddp(Template(shapes, False, where, parameters_only=True)) if shapes else None


def contiguous(template: Template, names: Iterable[str]) -> list[str]:
    """What to say about parameters whose elements are assumed to be in the order of their indices.

    Raises :class:`CannotConvert` for one that the template knows to lie otherwise.
    """
    names = sorted(names)
    strided = [name for name in names if name in template.strided]
    if strided:
        raise CannotConvert(
            f"{template.where}: {strided[0]} is not contiguous (channels_last?), so its elements are ordered "
            f"differently in the flat parameter, which is not supported"
        )
    tells = template.ordered and not template.parameters_only
    deep = [name for name in names if len(template.shapes.get(name, ())) > 3]
    more = f" and {len(deep) - 1} more" if len(deep) > 1 else ""
    return (
        [f"assumes {deep[0]}{more} is contiguous, which models in channels_last are not"] if deep and not tells else []
    )


def _json(path: Path) -> dict[str, Any]:
    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        twice = [name for name, count in Counter(name for name, _ in pairs).items() if count > 1]
        if twice:
            raise CannotConvert(f"{path}: {twice[0]} occurs twice in the template; {ADVICE}")
        return dict(pairs)

    try:
        told = json.loads(read_regular(path), object_pairs_hook=once)
    except (OSError, ValueError, RecursionError) as error:
        raise CannotConvert(f"{path}: not valid JSON: {error}; {ADVICE}") from error
    if not isinstance(told, dict):
        raise CannotConvert(f"{path}: a template is an object of names and shapes; {ADVICE}")
    return told


def _of_json(told: dict[str, Any], where: str) -> Template:
    shapes: dict[str, tuple[int, ...]] = {}
    ties: dict[str, str] = {}
    for name, shape in told.items():
        if shape is None:
            continue
        if isinstance(shape, str):
            if shape not in told or isinstance(told[shape], str) or clean(shape) not in shapes:
                raise CannotConvert(
                    f"{where}: the shape of {name} is {shape}, a name without a shape before it; {ADVICE}"
                )
            new, made = clean(name), shapes[clean(shape)]
            ties[new] = clean(shape)
        elif isinstance(shape, list) and all(type(size) is int and size >= 0 for size in shape):
            new, made = clean(name), tuple(shape)
        else:
            raise CannotConvert(f"{where}: {name} has {json.dumps(shape)[:80]}, which is not a shape; {ADVICE}")
        if new in shapes:
            raise CannotConvert(f"{where}: without wrapper prefixes, two names in the template become {new}; {ADVICE}")
        shapes[new] = made
    if not shapes:
        raise CannotConvert(f"{where}: the template has no names; {ADVICE}")
    buffers = frozenset(clean(name) for name, shape in told.items() if shape is None)
    return _without_ddp(Template(shapes, True, where, ties, parameters_only=True, buffers=buffers))


def _of_checkpoint(checkpoint: Checkpoint) -> Template:
    where = str(checkpoint.path)
    if checkpoint.dangers:
        path, run = checkpoint.dangers[0]
        raise CannotConvert(f"{path}: loading it would run {run[0]}; do not use it, even as a template. {ADVICE}")
    if checkpoint.problems:
        raise CannotConvert(f"{where}: the template is incomplete ({checkpoint.problems[0]}); {ADVICE}")
    if traits.flat_parameters(checkpoint.entries):
        raise CannotConvert(f"{where}: the template itself has flat parameters, without names and shapes; {ADVICE}")
    root = root_of_model(checkpoint.entries)
    if root is None:
        of_optimizer = template_of_optimizer(checkpoint)
        if of_optimizer is None:
            raise CannotConvert(f"{where}: the template has no model tensors; {ADVICE}")
        return of_optimizer
    shapes: dict[str, tuple[int, ...]] = {}
    names: dict[Key, str] = {}
    for key, entry in _parameters(checkpoint.entries, root):
        name = clean(str(key[-1]))
        if name in shapes:
            raise CannotConvert(f"{where}: without wrapper prefixes, two names in the template become {name}; {ADVICE}")
        shapes[name], names[key] = entry.shape, name
    tied = [[names[key] for key in keys if key in names] for keys in checkpoint.ties]
    held = {key: entry for key, entry in tensors(checkpoint.entries) if key in names}
    return _without_ddp(
        Template(
            shapes,
            any(root in file.of_modules for file in checkpoint.ranks.values()),
            where,
            {name: group[0] for group in tied for name in group[1:]},
            _alike({names[key]: entry for key, entry in held.items()}),
            strided=frozenset(names[key] for key, entry in held.items() if _strided(entry)),
        )
    )


def _parameters(entries: Entries, root: Key) -> Iterator[tuple[Key, TensorEntry]]:
    for key, entry in tensors(entries):
        if key[:-1] == root and "float" in entry.dtype:
            yield key, entry


def _alike(entries: Mapping[str, TensorEntry]) -> dict[str, str]:
    """Names of matrices that hold the same elements as one before; vectors often do without being tied."""
    first: dict[object, str] = {}
    found: dict[str, str] = {}
    for name, entry in entries.items():
        where = entry.chunks[0].where if len(entry.chunks) == 1 else None
        if isinstance(where, Bytes) and where.content is not None and len(entry.shape) > 1 and entry.numel:
            content = (entry.shape, entry.dtype, where.strides, where.content)
            if first.setdefault(content, name) != name:
                found[name] = first[content]
    return found


def _strided(entry: TensorEntry) -> bool:
    for chunk in entry.chunks:
        if isinstance(chunk.where, Bytes) and chunk.numel > 1:
            steps = zip(chunk.where.strides, strides_of(chunk.sizes), chunk.sizes, strict=True)
            if any(step != usual for step, usual, size in steps if size > 1):
                return True
    return False


def _without_ddp(template: Template) -> Template:
    """Without the ``module.`` that DistributedDataParallel puts before all names, where all of them have it."""
    start = len(DDP) if all(name.startswith(DDP) for name in template.shapes) else 0

    def names(pairs: Mapping[str, str]) -> dict[str, str]:
        return {name[start:]: other[start:] for name, other in pairs.items()}

    return replace(
        template,
        shapes={name[start:]: shape for name, shape in template.shapes.items()},
        ties=names(template.ties),
        alike=names(template.alike),
        buffers=frozenset(name.removeprefix(DDP) if start else name for name in template.buffers),
        strided=frozenset(name[start:] for name in template.strided),
    )
