"""The SHA-256 of every tensor that a conversion wrote, beside them, and the comparison with it later."""

from __future__ import annotations

import hashlib
import json
import os
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fsdp_migrate.checkpoints.entries import TensorEntry, spelled, tensors
from fsdp_migrate.checkpoints.read import elements
from fsdp_migrate.checkpoints.read.checkpoint_parts import Checkpoint
from fsdp_migrate.checkpoints.read.manifest import NAME, VERSION, Evidence, Manifest
from fsdp_migrate.checkpoints.threads import mapped


def write(checkpoint: Checkpoint, target: Path, digests: Mapping[Any, str], source: Sequence[Evidence] = ()) -> None:
    """Write the manifest of ``checkpoint``, which is at ``target`` and has these ``digests``, into it.

    They are by key, or by the texts that a key looks like. Reads the tensors that have none there. ``source``: what was
    found about the source and holds for what was written too.
    """
    told = []
    for key, entry in tensors(checkpoint.entries):
        digest = digests.get(key) or digests.get(tuple(map(str, key))) or _digest(entry)
        told.append({"key": list(key), "dtype": entry.dtype, "shape": list(entry.shape), "sha256": digest})
    found = {"source": [asdict(one) for one in source]} if source else {}
    text = json.dumps({"version": VERSION, **found, "tensors": told}, indent=1) + "\n"
    path = target if target.is_file() else target / NAME
    if path is target:
        with zipfile.ZipFile(path, "a", zipfile.ZIP_STORED) as archive:
            root = next(name for name in archive.namelist() if name.endswith("/data.pkl")).removesuffix("data.pkl")
            # A fixed date, as torch's own records have: the same checkpoint gives the same bytes.
            archive.writestr(zipfile.ZipInfo(f"{root}{NAME}"), text)
    else:
        path.write_text(text, encoding="utf-8")
    with path.open("rb+") as stream:
        os.fsync(stream.fileno())


def differences(checkpoint: Checkpoint, wanted: Manifest, advance: Callable[[int], object]) -> Iterator[str]:
    """What ``checkpoint`` holds unlike the manifest ``wanted``."""
    held = dict(tensors(checkpoint.entries))
    digests = {}
    for (key, entry), digest in zip(held.items(), mapped(_digest, held.values()), strict=True):
        digests[key] = digest
        advance(entry.nbytes)
    for key in wanted.tensors.keys() - held.keys():
        yield f"{spelled(key)} is missing"
    for key, entry in held.items():
        told = wanted.tensors.get(key)
        if told is None:
            yield f"{spelled(key)} is not in the manifest"
        elif (entry.dtype, list(entry.shape)) != (told["dtype"], told["shape"]):
            yield f"{spelled(key)} is {entry.dtype} of shape {entry.shape}, and was {told['dtype']} of {told['shape']}"
        elif digests[key] != told["sha256"]:
            yield f"the elements of {spelled(key)} differ from the ones that were written (SHA-256)"


def _digest(entry: TensorEntry) -> str:
    digest = hashlib.sha256()
    for stretch in elements.stretches(entry):
        digest.update(stretch.data)
    return digest.hexdigest()
