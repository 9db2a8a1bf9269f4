"""The configuration of a run: what its files come to, and those that the project's own code reads."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from fsdp_migrate.configs import configuration as configs
from fsdp_migrate.pipeline.releases import Done, with_releases
from fsdp_migrate.pipeline.work import Candidate, contained
from fsdp_migrate.tree.files import Source
from fsdp_rules.fsdp1.strategy_names import NAMES
from fsdp_rules.project.own_keys import OwnKey, own_keys_of
from fsdp_rules.settings import Settings
from fsdp_rules.verdict.result import Failed, Result

#: The file that shards the models of verl, and the word by which it knows FSDP2.
_OF_VERL = "/verl/workers/fsdp_workers.py"
_FSDP2 = re.compile(rb"""["']fsdp2["']""")
#: The keys that each file of Python reads for arguments that are gone, by its path.
Keys = Mapping[str, tuple[OwnKey, ...]]


def keys_in(files: Iterable[Candidate]) -> dict[str, tuple[OwnKey, ...]]:
    """What the Python ``files`` read; notebooks are left out."""
    return own_keys_of({file.path: file.data for file in files if not file.is_notebook})


def with_options(marked: Iterable[Candidate], texts: Mapping[str, bytes]) -> list[str]:
    """The files among ``texts`` that declare such a key of the project's, or hand it to a function that reads it."""
    keys = own_keys_of({**{one.path: one.data for one in marked if not one.is_notebook}, **texts})
    names = {one.names[-1] for found in keys.values() for one in found}
    if not names:
        return []
    words = "|".join(sorted(re.escape(name).replace("_", "[_-]") for name in names))
    declared = re.compile(rf"^[ \t]+(?:{words})[ \t]*:|--(?:{words})\b".encode(), re.MULTILINE)
    return sorted(path for path, data in texts.items() if path in keys or declared.search(data))


#: ``ShardingStrategy[name]``, ``getattr(ShardingStrategy, name)`` and ``{"name": ShardingStrategy.NAME}``.
_LOOK_UP = re.compile(
    rb"\bShardingStrategy\[\s*[A-Za-z_]|\bgetattr\([\w.]*\bShardingStrategy,\s*[A-Za-z_]"
    rb"|[\"']([\w-]+)[\"']\s*:\s*[\w.]*\bShardingStrategy\.[A-Z]"
)


def has_older_verl(files: Iterable[tuple[str, bytes]]) -> bool:
    """Whether the Python ``files`` have verl's own code, of a release that knows no fsdp2."""
    every = [(path.replace("\\", "/"), data) for path, data in files]
    own = any(f"/{path}".endswith(_OF_VERL) for path, _ in every)
    return own and not any(_FSDP2.search(data) for path, data in every if "/verl/" in f"/{path}")


def strategy_names(files: Iterable[tuple[str, bytes]]) -> frozenset[str]:
    """The names that the Python ``files`` look up members of ShardingStrategy by."""
    keys = {one[1] for _, data in files for one in _LOOK_UP.finditer(data)}
    return frozenset(key.decode() for key in keys if key) | (NAMES if None in keys else frozenset())


def naming(rest: Sequence[Source], keys: Keys, read: Callable[[Path], bytes]) -> Iterator[tuple[Source, bytes]]:
    """The configuration among ``rest`` that has the name of a key in its bytes, read again."""
    words = {one.names[-1].encode() for found in keys.values() for one in found}
    for source in rest if words else ():
        try:
            data = read(source.path)
        except (OSError, MemoryError):
            continue
        if any(word in data for word in words):
            yield source, data


def configured(
    files: Sequence[Done], keys: Keys, settings_of: Callable[[str], Settings], step: Callable[[], None]
) -> list[Result]:
    """The results of ``files``, in their order; those of requirements depend on all the others."""
    results = []
    precision = configs.launches({file.path: file.data for file in files if file.is_config})
    for file in files:
        if not file.is_config or isinstance(file.result, Failed):
            results.append(file.result)
            continue
        settings = replace(settings_of(file.path), launched=precision(file.path))
        results.append(contained(partial(configs.migrate, file.data, file.path, settings, keys)))
        step()
    done = [Done(file.path, file.data, result, file.is_config) for file, result in zip(files, results, strict=True)]
    return with_releases(done, settings_of)
