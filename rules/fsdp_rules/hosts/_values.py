"""What arguments in Python say, as the values that configuration files have."""

from __future__ import annotations

from dataclasses import dataclass, field

import libcst as cst

from fsdp_rules.configuration.block import Plain
from fsdp_rules.file.expressions import bind, elements, is_none, is_partial, literal_bool
from fsdp_rules.file.file import File
from fsdp_rules.file.keyed import key_of

POLICIES = {
    "transformer_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
    "size_based_auto_wrap_policy": "SIZE_BASED_WRAP",
}
#: torch's default where a size policy has none.
_LEAST = "100_000_000"


@dataclass(frozen=True)
class Value:
    """One value. ``known``: the file says it. ``text`` is how FSDP2 wants it spelled, empty where it is the same.

    ``beside`` are arguments that the new spelling needs besides, with their texts. ``fixed`` says why it cannot change.
    """

    plain: Plain = None
    known: bool = True
    text: str = ""
    beside: dict[str, str] = field(default_factory=dict)
    fixed: str = ""


def literal(node: cst.BaseExpression, file: File) -> Value:
    """The value of a literal, of FSDP1's enumerations (``ShardingStrategy.NO_SHARD``) or of a name for one."""
    found = file.value(node)
    if isinstance(found, cst.Name) and found.value in ("None", "True", "False"):
        return Value(None if is_none(found) else found.value == "True")
    if isinstance(found, cst.SimpleString | cst.ConcatenatedString):
        text = found.evaluated_value
        return Value(text) if isinstance(text, str) else Value(known=False)
    if isinstance(found, cst.Integer):
        return Value(found.evaluated_value)
    name = file.fsdp1(found)
    if name and "." in name:
        return Value(name.rpartition(".")[2])
    if isinstance(found, cst.Call) and len(found.args) == 1 and file.fsdp1(found.func):
        number = found.args[0].value
        return Value(number.evaluated_value) if isinstance(number, cst.Integer) else Value(known=False)
    return Value(known=False)


def offload(node: cst.BaseExpression, file: File) -> Value:
    """``cpu_offload``: a truth value, or FSDP1's ``CPUOffload``."""
    found = file.value(node)
    if not isinstance(found, cst.Call) or file.fsdp1(found.func) != "CPUOffload":
        plain = literal(node, file)
        return plain if plain.known else Value(known=False, fixed="its value is only known at run time")
    flag = (bind(found, ("offload_params",)) or {}).get("offload_params")
    known = False if flag is None else literal_bool(file.value(flag))
    if known is not None:
        return Value(known, text=str(known))
    return Value(True, known=False, text=f"bool({file.code(flag)})" if flag is not None else "")


def policy(node: cst.BaseExpression, file: File) -> Value:
    """``auto_wrap_policy``: a name, torch's policy, or a ``partial`` of it with classes or a size."""
    plain = literal(node, file)
    if plain.known:
        return plain
    found = file.value(node)
    name = file.fsdp1(found)
    if name in POLICIES:
        return Value(POLICIES[name])
    if isinstance(found, cst.Call) and is_partial(found, file) and found.args:
        kind = file.fsdp1(found.args[0].value)
        given = {arg.keyword.value: arg.value for arg in found.args[1:] if arg.keyword}
        if kind in POLICIES and len(given) == len(found.args) - 1:
            made = _by_layers(given, file) if kind == "transformer_auto_wrap_policy" else _by_size(given, file)
            if made:
                return made
    return Value(known=False, fixed="FSDP2 silently drops a callable, so only the root is sharded")


def _by_layers(given: dict[str, cst.BaseExpression], file: File) -> Value | None:
    layers = elements(file.value(given["transformer_layer_cls"])) if set(given) == {"transformer_layer_cls"} else None
    if not layers or not all(isinstance(layer, cst.Name | cst.Attribute) for layer in layers):
        return None
    names = ", ".join(_class_name(layer, file) for layer in layers)
    return Value(
        "TRANSFORMER_BASED_WRAP",
        text='"transformer_based_wrap"',
        beside={"transformer_cls_names_to_wrap": f"[{names}]"},
    )


def _class_name(layer: cst.BaseExpression, file: File) -> str:
    """The name of a class, or the expression that gives it where the file calls it otherwise."""
    text = file.code(layer)
    full = file.resolved(layer)
    last = text.rpartition(".")[2]
    known = (full and full.rpartition(".")[2] == last) or last in {one.name.value for one in file.nodes(cst.ClassDef)}
    return f'"{last}"' if known else f"{text}.__name__"


def _by_size(given: dict[str, cst.BaseExpression], file: File) -> Value | None:
    if set(given) - {"min_num_params"}:
        return None
    least = given.get("min_num_params")
    text = _LEAST if least is None else file.code(least)
    if least is not None and isinstance(file.value(least), cst.Float):
        text = f"int({text})"
    return Value("SIZE_BASED_WRAP", text='"size_based_wrap"', beside={"min_num_params": text})


def precision(node: cst.BaseExpression, file: File) -> Value:
    """``mixed_precision_policy``: a name, ``MixedPrecision`` or a dictionary of dtypes."""
    plain = literal(node, file)
    if plain.known:
        return plain
    found = file.value(node)
    fields: dict[str, cst.BaseExpression] = {}
    if isinstance(found, cst.Call) and file.fsdp1(found.func) == "MixedPrecision":
        fields = bind(found, ("param_dtype", "reduce_dtype", "buffer_dtype")) or {}
    elif isinstance(found, cst.Dict) and all(isinstance(one, cst.DictElement) for one in found.elements):
        fields = {
            file.code(one.key).strip("\"'"): one.value for one in found.elements if isinstance(one, cst.DictElement)
        }
    casts = {"cast_forward_inputs", "cast_root_forward_inputs"}
    if not fields or set(fields) - {"param_dtype", "reduce_dtype", "buffer_dtype", *casts}:
        return Value(known=False, fixed="FSDP2 takes a MixedPrecisionPolicy, and this tool cannot see its dtypes")
    kept = [f"{name}={file.code(fields[name])}" for name in ("param_dtype", "reduce_dtype") if name in fields]
    policy_class = file.ref("torch.distributed.fsdp.MixedPrecisionPolicy")
    return Value("dtypes", known=False, text=f"{policy_class}({', '.join(kept)})")


def layer_classes(node: cst.BaseExpression | None, file: File) -> str | None:
    """The classes of a policy, as the text of a list; None where it is no policy by classes."""
    found = file.value(node) if node is not None else None
    classes: cst.BaseExpression | None = found if isinstance(found, cst.Set | cst.List) else None
    if isinstance(found, cst.Call) and file.fsdp1(found.func) == "ModuleWrapPolicy" and len(found.args) == 1:
        classes = found.args[0].value
    elif isinstance(found, cst.Call) and is_partial(found, file) and len(found.args) == 2:
        is_layers = key_of(found.args[1]) == "transformer_layer_cls"
        is_policy = file.fsdp1(found.args[0].value) == "transformer_auto_wrap_policy"
        classes = found.args[1].value if is_layers and is_policy else None
    layers = elements(file.value(classes)) if classes is not None else None
    return f"[{', '.join(file.code(layer) for layer in layers)}]" if layers else None


def literal_code(value: object) -> str:
    """``value`` as a literal of Python."""
    return f'"{value}"' if isinstance(value, str) else repr(value)
