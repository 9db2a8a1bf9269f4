"""`fsdp` and `fsdp_config` of transformers' arguments, in a call or a dictionary, as a block of settings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import libcst as cst

from fsdp_rules.configuration.block import Block, Change, NoEditor, Plain, Setting
from fsdp_rules.configuration.launched import PYTHON
from fsdp_rules.file.expressions import elements, is_none
from fsdp_rules.file.file import File
from fsdp_rules.file.keyed import key_of, keyed_call, keyed_dict
from fsdp_rules.hosts._values import Value, literal, literal_code
from fsdp_rules.verdict.diagnosis import Build

PREFIX = "fsdp_"
CONFIG, WORDS = "fsdp_config", "fsdp"
#: Arguments that transformers 5.0 has in `fsdp_config` alone.
GONE = ("fsdp_transformer_layer_cls_to_wrap", "fsdp_min_num_params")
#: Settings whose value decides what becomes of the others.
_DECIDING = ("version", "reshard_after_forward", "auto_wrap_policy", "xla", "xla_fsdp_v2")


@dataclass(frozen=True)
class Arguments:
    """One place. ``config`` is the dictionary of settings, None where the place has none; ``block`` is for the rules.

    ``unseen`` says what only the running program knows, empty where the file says it all.
    """

    place: cst.Call | cst.Dict
    given: Mapping[str, cst.BaseExpression]
    config: cst.Dict | None
    block: Block
    nodes: Mapping[str, cst.BaseExpression]
    unseen: str

    @classmethod
    def read(cls, place: cst.Call | cst.Dict, file: File) -> Arguments:
        """What ``place`` says."""
        items = place.args if isinstance(place, cst.Call) else place.elements
        given = {name: item.value for item in items if (name := key_of(item))}
        words = _words(given[WORDS], file) if WORDS in given else Value(None)
        unseen = "" if words.known else f"{WORDS} is only known at run time"
        config, reason = _config(given.get(CONFIG), file)
        if config is None and not reason and any(isinstance(item, cst.Arg) and item.star for item in items):
            reason = "arguments are unpacked here"
        settings: dict[str, Setting] = {}
        nodes: dict[str, cst.BaseExpression] = {}
        found = [(key_of(item), item.value) for item in config.elements] if config else []
        found += [(name, given[name]) for name in GONE if name in given and not is_none(given[name])]
        for place_number, (written, node) in enumerate(found):
            if written is None:
                reason = reason or "a key of fsdp_config is only known at run time"
                continue
            name, value = written.removeprefix(PREFIX), literal(node, file)
            if name in _DECIDING and not value.known:
                reason = reason or f"{written} is only known at run time"
            plain = True if name == "sync_module_states" and not value.known else value.plain
            settings[name] = Setting(name, written, plain, place_number, place_number)
            nodes[written] = node
        prefixed = sum(one.written.startswith(PREFIX) for one in settings.values()) * 2 > len(settings)
        around: dict[str, Plain] = {
            "fsdp": words.plain,
            "prefix": PREFIX if prefixed and config else "",
            "precision": _precision(given, file),
        }
        release = file.settings.transformers
        block = Block("transformers", PYTHON, settings, around, (0, 0), NoEditor(), (), release)
        return cls(place, given, config, block, nodes, unseen or reason)

    @property
    def gone(self) -> tuple[str, ...]:
        """The arguments that have to move into the dictionary."""
        return tuple(name for name in GONE if name in self.given)

    def edits(self, change: Change, file: File) -> Iterator[tuple[cst.BaseExpression, Build]]:
        """The nodes to replace, and what gives their texts: the dictionary, and the place around it."""
        texts = {name: literal_code(new) for name, new in change.values.items()}
        removed = dict.fromkeys(name for name in change.removed if name not in self.gone)
        added = {name: literal_code(new) for name, new in change.added.items()}
        layers = GONE[0]
        if layers in self.gone and not is_none(self.given[layers]):
            key = str(self.block.around["prefix"]) + layers.removeprefix(PREFIX)
            added = {key: _layers(self.given[layers], file), **added}
        config = self.config
        if config is not None:
            yield config, lambda code: keyed_dict(config, {**texts, **removed, **added}, {}, code, file)
        outer: dict[str, str | None] = dict.fromkeys(self.gone)
        if config is None:
            outer[CONFIG] = "{" + ", ".join(f'"{name}": {text}' for name, text in added.items()) + "}"
        if outer:
            place = self.place
            if isinstance(place, cst.Call):
                yield place, lambda code: keyed_call(place, outer, {}, code, file)
            else:
                yield place, lambda code: keyed_dict(place, outer, {}, code, file)


def is_off(node: cst.BaseExpression) -> bool:
    """Whether a value switches FSDP off."""
    if isinstance(node, cst.SimpleString):
        return not str(node.evaluated_value)
    return is_none(node) or (isinstance(node, cst.Name) and node.value == "False") or elements(node) == []


def branches(node: cst.BaseExpression) -> list[cst.BaseExpression]:
    """The values that an expression may have, but for those that switch FSDP off."""
    found = [*branches(node.body), *branches(node.orelse)] if isinstance(node, cst.IfExp) else [node]
    return [one for one in found if not is_off(one)]


def _words(node: cst.BaseExpression, file: File) -> Value:
    """The words of ``fsdp``, with blanks between them."""
    made = branches(file.value(node))
    if len(made) != 1:
        return Value(None, known=not made)
    parts = elements(made[0])
    if parts is None:
        return literal(made[0], file)
    values = [_word(part, file) for part in parts]
    return Value(" ".join(str(one.plain) for one in values)) if all(one.known for one in values) else Value(known=False)


def _word(node: cst.BaseExpression, file: File) -> Value:
    full = file.resolved(node) or ""
    if ".FSDPOption." in full:
        return Value(full.rpartition(".")[2].lower())
    return literal(node, file)


def _config(node: cst.BaseExpression | None, file: File) -> tuple[cst.Dict | None, str]:
    """The dictionary behind ``fsdp_config``, or why this tool cannot see it."""
    if node is None or is_none(node):
        return None, ""
    made = branches(file.value(node))
    if len(made) == 1 and isinstance(made[0], cst.Dict):
        name = node.value if isinstance(node, cst.Name) else ""
        if name and len(file.uses(name)) > 1:
            return None, f"{name} is also used in other places"
        return made[0], ""
    return None, f"{CONFIG} is not a dictionary that this file writes out"


def _precision(given: Mapping[str, cst.BaseExpression], file: File) -> str | None:
    """``bf16`` or ``fp16`` where it is on, ``no`` where neither is, None where only the running program knows."""
    values = {kind: literal(given[kind], file) for kind in ("bf16", "fp16") if kind in given}
    on = [kind for kind, value in values.items() if value.plain is True]
    return on[0] if on else ("no" if all(value.known for value in values.values()) else None)


def _layers(node: cst.BaseExpression, file: File) -> str:
    """The list of classes that an argument with commas named."""
    value = literal(node, file).plain
    if isinstance(value, str):
        return "[" + ", ".join(f'"{name.strip()}"' for name in value.split(",")) + "]"
    return file.code(node)


def with_class_names(file: File) -> frozenset[str]:
    """The classes of this file that extend transformers' arguments, by their names."""
    found = set()
    for one in file.nodes(cst.ClassDef):
        if any(is_arguments(base.value, file) for base in one.bases):
            found.add(one.name.value)
    return frozenset(found)


#: Packages whose arguments are transformers' own.
_PACKAGES = ("transformers", "trl", "sentence_transformers", "setfit", "optimum", "unsloth")


def is_arguments(func: cst.BaseExpression, file: File) -> bool:
    """Whether ``func`` names transformers' arguments, or a class that is called like them."""
    full = file.resolved(func) or file.code(func)
    last = full.rpartition(".")[2]
    return full.startswith(_PACKAGES) or last.endswith(("TrainingArguments", "TrainingArgs"))
