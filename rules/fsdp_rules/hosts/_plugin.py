"""A call of accelerate's plugin as a block of settings, under the launcher's names."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import libcst as cst

from fsdp_rules.configuration.block import Block, Change, NoEditor, Plain, Setting
from fsdp_rules.file.file import File
from fsdp_rules.file.keyed import key_of, keyed_call
from fsdp_rules.file.tree import Code
from fsdp_rules.frameworks.table import table
from fsdp_rules.hosts._values import Value, literal, literal_code, offload, policy, precision

PYTHON = "python"
#: Readers of arguments whose values are not those of a file.
_READERS: Mapping[str, Callable[[cst.BaseExpression, File], Value]] = {
    "cpu_offload": offload,
    "auto_wrap_policy": policy,
    "mixed_precision_policy": precision,
}
#: What decides what happens: FSDP2 wants another value for it, so that it has to be known.
_DECIDING = ("sharding_strategy", "reshard_after_forward", "state_dict_type")
#: What FSDP2 does not have, of the arguments that are Python's alone.
_GONE = ("limit_all_gathers", "param_init_fn")
#: Taken as on where only the running program knows.
_MAY_BE_ON = ("sync_module_states", "activation_checkpointing")
#: What is set later in the same form under both FSDPs.
_SAME = ("state_dict_config", "optim_state_dict_config", "ignored_modules")


def changes_form(name: str) -> bool:
    """Whether the attribute ``name`` of a plugin is one that FSDP2 takes in another form."""
    known = {key.argument for key in table("accelerate").keys.values()} | set(table("accelerate").arguments)
    return name in known and name not in _SAME


@dataclass(frozen=True)
class Plugin:
    """One call: its arguments by name with what they say, and the block for the rules about configuration."""

    call: cst.Call
    given: Mapping[str, cst.BaseExpression]
    values: Mapping[str, Value]
    block: Block

    @classmethod
    def read(cls, call: cst.Call, around: Mapping[str, Plain], file: File) -> Plugin:
        """``call``, all of whose arguments have names."""
        rows = {key.argument: key for key in table("accelerate").keys.values() if key.argument}
        given = {key_of(arg) or "": arg.value for arg in call.args}
        values = {name: _READERS.get(name, literal)(value, file) for name, value in given.items()}
        for name in _DECIDING:
            if name in values and not values[name].known:
                values[name] = replace(values[name], fixed="its value is only known at run time")
        settings: dict[str, Setting] = {}
        for place, (name, value) in enumerate(values.items()):
            if name not in rows or (value.known and value.plain is None):
                continue
            plain = True if name in _MAY_BE_ON and not value.known else value.plain
            settings[rows[name].name] = Setting(rows[name].name, name, plain, place, place, value.fixed)
            for other, text in value.beside.items():
                settings[rows[other].name] = Setting(rows[other].name, other, text, place, place)
        release = file.settings.accelerate
        block = Block("accelerate", PYTHON, settings, around, (0, 0), NoEditor(), accelerate=release)
        return cls(call, given, values, block)

    def consumed(self, file: File) -> tuple[tuple[cst.CSTNode, str], ...]:
        """Assignments that only arguments read which become something else."""
        found = []
        for name, node in self.given.items():
            binding = file.binding(node) if self.values[name].text and isinstance(node, cst.Name) else None
            if binding is not None and isinstance(node, cst.Name):
                found.append((binding.statement, node.value))
        return tuple(found)

    def set_later(self, file: File) -> Iterator[tuple[cst.CSTNode, str]]:
        """Assignments to attributes of the plugin that mean something else under FSDP2, with their names."""
        parent = file.parent(self.call)
        targets = parent.targets if isinstance(parent, cst.Assign) else ()
        held = {file.code(target.target) for target in targets}
        for assign in file.nodes(cst.Assign) if held else ():
            for target in assign.targets:
                node = target.target
                if isinstance(node, cst.Attribute) and file.code(node.value) in held and changes_form(node.attr.value):
                    yield assign, node.attr.value

    @property
    def unknown(self) -> list[str]:
        """Arguments that no version of the plugin has."""
        known = {key.argument for key in table("accelerate").keys.values()} | set(table("accelerate").arguments)
        return [name for name in self.given if name not in known]

    def text(self, change: Change, code: Code, file: File) -> str:
        """The call with ``change`` carried out, and without the arguments that FSDP2 does not have."""
        texts: dict[str, str | None] = {}
        for name, value in self.values.items():
            if value.text:
                texts[name] = value.text
                texts.update(value.beside)
        texts.update({name: literal_code(new) for name, new in change.values.items()})
        gone = [key.argument for key in table("accelerate").with_verdict("removed")]
        texts.update(dict.fromkeys(name for name in (*change.removed, *gone, *_GONE) if name in self.given))
        texts.update({_argument(name): literal_code(new) for name, new in change.added.items()})
        names = {old: _argument(new) for old, new in change.names.items()}
        return keyed_call(self.call, texts, names, code, file)


def _argument(key: str) -> str:
    row = table("accelerate").keys.get(key)
    return row.argument if row else key
