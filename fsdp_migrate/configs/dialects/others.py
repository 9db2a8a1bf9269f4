"""Documents of frameworks that are only reported, and of projects that read FSDP's settings themselves."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import ClassVar

from fsdp_migrate.configs.dialects.dialect import setting
from fsdp_migrate.configs.dialects.read_by import read_by
from fsdp_migrate.configs.dialects.shell import STRATEGIES
from fsdp_migrate.configs.dialects.trainer import words_of
from fsdp_migrate.configs.nodes import Entry, Node, Text
from fsdp_rules.configuration.block import Block, NoEditor, Plain, Setting
from fsdp_rules.frameworks.refusals import asked_for
from fsdp_rules.hosts.host_table import host_of
from fsdp_rules.project.own_keys import OwnKey

_OWN = re.compile(r"(fsdp|sharding_strategy)[\w.]*$|^fsdp\w*$", re.IGNORECASE)
#: What the workflows of a CI server have at their top, whose jobs are named as people like.
_WORKFLOW = "jobs"
#: Arguments of FSDP1's constructor that FSDP2 has nothing for, as projects pass them on from their settings.
_ARGUMENTS = frozenset(
    {"limit_all_gathers", "use_orig_params", "forward_prefetch", "backward_prefetch", "sync_module_states"}
)
#: Keys of frameworks that run FSDP2 alone.
_FSDP2 = frozenset({"fsdp_cpu_offload", "fsdp_reshard_after_forward"})
#: Words of the Trainer's ``fsdp`` that choose a strategy, which stand in no framework's other keys.
_WORDS = frozenset({"full_shard", "shard_grad_op", "hybrid_shard", "hybrid_shard_zero2", "no_shard"})
_TRAINER = ("devices", "accelerator", "max_epochs", "num_nodes", "precision")


class Others:
    """Frameworks by their shapes, and any other mapping with FSDP's words in it."""

    name: ClassVar[str] = "others"

    def __init__(self, keys: Mapping[str, tuple[OwnKey, ...]]) -> None:
        """``keys`` are what files of Python read for arguments that are gone, by their paths."""
        self._keys = keys

    def blocks(self, text: Text, root: Node, path: str, is_json: bool) -> Iterable[Block]:
        known = list(self._hosts(root))
        yield from known
        if not known:
            yield from self._own(root, is_json)

    def _read(self, root: Node, is_json: bool) -> Iterator[tuple[Entry, dict[str, Plain]]]:
        """The entries that the project's code gives to arguments which are gone, and where it does."""
        for path, node in root.mappings() if self._keys else ():
            for entry in node.entries or ():
                where = read_by((*path, entry.key), self._keys, is_json)
                if where is not None and entry.node.is_scalar:
                    yield entry, {"value": None, **where}

    def _hosts(self, root: Node) -> Iterable[Block]:
        for _, node in root.mappings():
            for entry in node.entries or ():
                value = entry.node.value if entry.node.is_scalar else None
                host = host_of(value) if isinstance(value, str) else None
                if host is not None:
                    yield _block("host", entry, {"message": host.message, "advice": host.advice})
                elif entry.key == "strategy" and value in ("fsdp", "fsdp_cpu_offload", "fsdp_native"):
                    if any(node.get(name) for name in _TRAINER):
                        yield _block("host", entry, {"host": "lightning word", "word": value})
                elif entry.key == "fsdp_config" and entry.node.entries:
                    yield from self._config(root, node, entry)
                elif entry.key == "fsdp" and entry.node.items and _is_axolotl(root) and not node.get("fsdp_config"):
                    yield _block("host", entry, {"host": "axolotl", "version": _version(root, None)})
                elif entry.key == "fsdp" and _WORDS & set(str(words_of(entry.node)).lower().split()):
                    around: dict[str, Plain] = {name: node.scalar(name) for name in asked_for("transformers")}
                    around.update(host="trainer", words=words_of(entry.node), config=node.scalar("fsdp_config"))
                    yield _block("host", entry, around)

    def _config(self, root: Node, node: Node, entry: Entry) -> Iterable[Block]:
        if _is_axolotl(root):
            yield _block("host", entry, {"host": "axolotl", "version": _version(root, entry.node)}, entry.node)

    def _own(self, root: Node, is_json: bool) -> Iterable[Block]:
        if root.get(_WORKFLOW) is not None:
            return
        found: list[Entry] = []
        strategies: list[Entry] = []
        dead: list[Entry] = []
        for _, node in root.mappings():
            for entry in () if _is_off(node) or _is_fsdp2(node) else node.entries or ():
                if entry.key.removeprefix("fsdp_") in _ARGUMENTS and entry.node.is_scalar:
                    dead.append(entry)
                if (
                    not _OWN.search(entry.key)
                    or {"@", "/"} & set(entry.key)
                    or entry.key in _FSDP2
                    or (entry.key == "fsdp_config" and _is_unused(node))
                    or _is_off(entry.node)
                ):
                    continue
                found.append(entry)
                if entry.node.is_scalar and str(entry.node.value).lower() in STRATEGIES:
                    strategies.append(entry)
        for entry in strategies:
            yield _block("own", entry, {"value": str(entry.node.value)})
        for entry in dead:
            yield _block("own", entry, {"value": None, "dead": True})
        yield from (_block("own", entry, around) for entry, around in self._read(root, is_json) if entry not in dead)
        # A vocabulary in JSON has every word for a key.
        if found and not strategies and not is_json:
            first = min(found, key=lambda one: one.key_start)
            yield _block("own", first, {"value": None})


def _block(dialect: str, entry: Entry, around: dict[str, Plain], node: Node | None = None) -> Block:
    settings: dict[str, Setting] = {
        one.key.removeprefix("fsdp_"): setting(one.key.removeprefix("fsdp_"), one)
        for one in (node.entries if node else None) or ()
    }
    around = {"key": entry.key, **around}
    return Block(dialect, "file", settings, around, (entry.key_start, entry.key_end), NoEditor())


def _is_axolotl(root: Node) -> bool:
    return root.get("base_model") is not None


def _version(root: Node, config: Node | None) -> str:
    inner = config.scalar("fsdp_version") or config.scalar("version") if config else None
    return str(root.scalar("fsdp_version") or inner or 1)


def _is_unused(node: Node) -> bool:
    """Whether ``fsdp`` of the same arguments is off, as in records of runs that hold every argument."""
    words = node.get("fsdp")
    return words is not None and words_of(words) in ("", None, False)


def _is_fsdp2(node: Node) -> bool:
    """Whether the settings of a project say that they are FSDP2's."""
    words = [str(entry.node.value).lower() for entry in node.entries or () if entry.node.is_scalar]
    version = node.scalar("fsdp_version")
    return "fsdp2" in words or str(version) == "2"


def _is_off(node: Node) -> bool:
    """Whether FSDP is switched off here, or the key holds nothing."""
    if node.is_scalar:
        return node.value in (None, False, "", 0)
    switches = [node.get(name) for name in ("use", "enable", "enabled")]
    return any(switch is not None and switch.value is False for switch in switches) or not (node.entries or node.items)
