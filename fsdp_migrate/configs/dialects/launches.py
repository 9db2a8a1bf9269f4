"""What scripts that start ``accelerate launch`` with a file of settings say beside it, which counts more."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePosixPath

from fsdp_migrate.configs.dialects.shell import launcher
from fsdp_migrate.configs.editing.shell_words import commands, flag_value, flags
from fsdp_migrate.tree.files import SHELL_SUFFIXES

_LOW = ("bf16", "fp16", "fp8")


def launches(files: Mapping[str, bytes]) -> dict[str, str]:
    """The low precision that scripts among ``files`` give for settings files, by their names, with the script's."""
    found: dict[str, str] = {}
    for path, data in files.items():
        if not path.endswith(SHELL_SUFFIXES) or b"launch" not in data:
            continue
        for words in commands(data.decode("utf-8", "replace"))[0]:
            if (launched := launcher(words)) is None:
                continue
            given = {
                name[2:].replace("-", "_"): (value, joined) for _, name, value, joined in flags(words[: launched[1]])
            }
            (file, is_joined), precision = given.get("config_file", (None, False)), given.get("mixed_precision")
            if file is not None and precision is not None and (low := flag_value(*precision)) in _LOW:
                name = (file.raw.partition("=")[2] if is_joined else file.raw).strip("\"'")
                found[name] = f"{low} ({PurePosixPath(path).name})"
    return found


def precision_of(path: str, found: Mapping[str, str]) -> str:
    """The low precision that a script gives for the file ``path``, however much of its path it names; "" without."""
    own = PurePosixPath(path.replace("\\", "/")).parts
    for name, precision in found.items():
        parts = [one for one in PurePosixPath(name).parts if one not in (".", "..", "/") and "$" not in one]
        if parts and list(own[-len(parts) :]) == parts:
            return precision
    return ""
