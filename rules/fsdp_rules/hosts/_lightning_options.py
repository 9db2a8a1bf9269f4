"""What a call of Lightning's ``FSDPStrategy`` asks for, in the terms of ``fully_shard``."""

from __future__ import annotations

from dataclasses import dataclass, field

import libcst as cst

from fsdp_rules.configuration.config_strategy import RESHARDS, strategy_name
from fsdp_rules.configuration.keys import ELEMENTWISE, NOT_BROADCAST
from fsdp_rules.file.expressions import elements, is_none, literal_bool
from fsdp_rules.file.file import File
from fsdp_rules.file.keyed import key_of
from fsdp_rules.hosts._values import layer_classes, literal, offload, precision

#: Arguments that change no number and have no counterpart.
_GONE = ("backward_prefetch", "forward_prefetch", "limit_all_gathers", "use_orig_params", "sync_module_states")
#: Arguments that the new strategy has as well.
_KEPT = ("process_group_backend", "timeout")
_CHECKPOINTED = ("activation_checkpointing_policy", "activation_checkpointing")
_MAPPED = ("sharding_strategy", "cpu_offload", "mixed_precision", "auto_wrap_policy", "state_dict_type")
_READ = (*_MAPPED, *_CHECKPOINTED, *_GONE, *_KEPT)


@dataclass
class Wanted:
    """``layers`` are the texts of the units' classes, ``checkpointed`` those of the layers whose activations are
    recomputed; ``options`` are those of ``fully_shard``, ``strategy`` those of the new strategy. ``assumed`` are
    statements to review, each with its advice. ``reason`` says why the call is kept, empty if it can move.
    """

    layers: list[str] = field(default_factory=list)
    checkpointed: list[str] = field(default_factory=list)
    options: dict[str, str] = field(default_factory=dict)
    strategy: dict[str, str] = field(default_factory=dict)
    assumed: list[tuple[str, str]] = field(default_factory=list)
    reason: str = ""

    @classmethod
    def read(cls, call: cst.Call, file: File) -> Wanted:
        """What ``call`` says."""
        wanted = cls()
        arguments = {key_of(one): one.value for one in call.args if not is_none(file.value(one.value))}
        wanted.reason = wanted._read({name: value for name, value in arguments.items() if name}, file)
        if None in arguments:
            wanted.reason = "its arguments are not all named here"
        return wanted

    def _read(self, given: dict[str, cst.BaseExpression], file: File) -> str:
        if left := [name for name in given if name not in _READ]:
            return f"{left[0]} has no counterpart that this tool can write"
        strategy = literal(given["sharding_strategy"], file) if "sharding_strategy" in given else None
        name = strategy_name(str(strategy.plain).upper()) if strategy else "FULL_SHARD"
        if name not in ("FULL_SHARD", "SHARD_GRAD_OP"):
            return f"{name or 'a strategy that is only known at run time'} has no data-parallel mesh there"
        if not RESHARDS[name]:
            self.options["reshard_after_forward"] = "False"
        if "cpu_offload" in given and offload(given["cpu_offload"], file).plain is not False:
            return "ModelParallelStrategy moves all parameters to the GPU, which cpu_offload refuses"
        if "mixed_precision" in given:
            policy = precision(given["mixed_precision"], file)
            if not policy.text:
                return "this tool cannot see the dtypes of its mixed_precision"
            self.options["mp_policy"] = policy.text
            self.assumed.append((_CASTS, "Compare the losses of a few steps"))
        if "auto_wrap_policy" in given:
            self.layers = _classes(given["auto_wrap_policy"], False, file)
            if not self.layers:
                return "its auto_wrap_policy is not a list of classes that this file writes out"
        for name in _CHECKPOINTED:
            if name in given:
                self.checkpointed = _classes(given[name], name == _CHECKPOINTED[1], file)
                if not self.checkpointed:
                    return f"its {name} is not a list of classes that this file writes out"
        self._states(given, file)
        return ""

    def _states(self, given: dict[str, cst.BaseExpression], file: File) -> None:
        kind = given.get("state_dict_type")
        known = literal(kind, file) if kind is not None else None
        plain = known.plain if known and known.known else None
        text = f'{file.code(kind)} == "sharded"' if kind is not None and plain is None else str(plain == "sharded")
        self.strategy = {name: file.code(given[name]) for name in _KEPT if name in given}
        self.strategy = {"save_distributed_checkpoint": text, **self.strategy}
        original, synced = given.get("use_orig_params"), given.get("sync_module_states")
        if original is not None and literal_bool(file.value(original)) is not True:
            self.assumed.append((ELEMENTWISE[0], "Compare the losses of a few steps"))
        if synced is not None and literal_bool(file.value(synced)) is not False:
            self.assumed.append((NOT_BROADCAST[0], "Call seed_everything before the model is built"))


def _classes(node: cst.BaseExpression, is_alone: bool, file: File) -> list[str]:
    """The texts of the classes of a policy, empty where the file does not say them. ``is_alone``: one may be bare."""
    layers = layer_classes(node, file)
    found = elements(cst.parse_expression(layers)) if layers else None
    if found is None and is_alone and isinstance(node, cst.Name | cst.Attribute) and file.value(node) is node:
        found = [node]
    return [cst.Module([]).code_for_node(one) for one in found or ()]


_CASTS = "assumes buffers may keep their dtype and each unit may cast its inputs, as FSDP2's policy does"
