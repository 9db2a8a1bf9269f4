"""Rule for the argument ``mixed_precision``."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from fsdp_rules.construction._plan.argument_rule import ArgumentRule
from fsdp_rules.construction._plan.leaves import Found, given_elsewhere, is_asked, is_imported, leaves, readers
from fsdp_rules.construction._plan.local_functions import by_fields
from fsdp_rules.construction._plan.plan import Precision, ShardPlan
from fsdp_rules.construction._plan.policy_text import policy_text
from fsdp_rules.construction._plan.precision_fields import buffers_like, precision_fields
from fsdp_rules.file.expressions import brief, is_none, is_repeatable
from fsdp_rules.file.file import File
from fsdp_rules.file.own_names import BY_FIELDS, own_name
from fsdp_rules.model.unwrapped_models import has_batch_norm
from fsdp_rules.project.configured import Contract
from fsdp_rules.project.flow import Certainty
from fsdp_rules.verdict.diagnosis import Build, Diagnosis, Replace
from fsdp_rules.verdict.finding import Level

NO_BATCHNORM = "assumes the model has no BatchNorm, which FSDP1 keeps in full precision"
BUFFERS_CAST = "buffers are cast once, so saved state dicts contain them in buffer_dtype"
CHECK_BUFFERS = "if other code loads the state dict, cast its buffers back"
CHECK_BATCHNORM = "check any(isinstance(m, torch.nn.modules.batchnorm._BatchNorm) for m in model.modules())"
#: What a policy is called that has no name yet.
POLICY_NAMES = ("mp_policy", "mixed_precision_policy")
#: Fields that FSDP2's policy has under the same names.
READ = frozenset({"param_dtype", "reduce_dtype"})


class MixedPrecisionArgument(ArgumentRule):
    """mixed_precision.

    `MixedPrecision` becomes `MixedPrecisionPolicy`. FSDP1 casts only the inputs of the root, FSDP2 those of every unit,
    so inner units get `cast_forward_inputs=False`. FSDP2 has no `buffer_dtype`: the buffers are cast where the model is
    sharded, and a saved state dict then contains them in that dtype. `fsdp_compat.shard` handles models with BatchNorm,
    which FSDP1 keeps in full precision, and policies that are not literals in the same file. The
    `param_dtype_override_fn` of torch 2.15 does not replace it: it keeps parameters in full precision, but still casts
    inputs to `param_dtype` and reduces the whole group in one dtype. FSDP1 casts the inputs of BatchNorm up and its
    output back, and reduces its gradients in full precision.
    """

    id = "FSDP104"
    name = "mixed-precision"
    moves_together = True
    what_to_test = (
        "Compare the dtypes of the model's output, its buffers and its parameters, and the losses of the first steps "
        "in low precision."
    )
    arguments = ("mixed_precision",)
    before = """
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import MixedPrecision

bf16 = MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)

def build(model):
    model = FSDP(model, mixed_precision=bf16)
    return model
"""
    after = """
import torch
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

bf16 = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)

def build(model):
    fully_shard(model, mp_policy=bf16)
    return model
"""

    def plan(self, value: cst.BaseExpression, plan: ShardPlan, file: File) -> Iterable[Diagnosis]:
        """Read the policy's fields, or leave it to the helper."""
        if is_none(file.value(value)):
            return
        found = leaves(value, file)
        if (contract := self._given_elsewhere(value, found, plan, file)) is not None:
            held = plan.held(value, found.leaves[0], POLICY_NAMES, file)
            plan.precision = Precision(
                {"cast_forward_inputs": _flag(contract.casts[0]), "cast_root_forward_inputs": _flag(contract.casts[1])},
                variable=_name(held, value, file),
                optional=contract.optional,
                buffers_like=contract.buffers_like or None,
            )
            plan.assumptions += [BUFFERS_CAST] if contract.buffers_like else []
            yield Diagnosis(value, Level.SAFE, "the definition of this MixedPrecision becomes a MixedPrecisionPolicy")
            return
        made = [node for node in found.nodes if not is_none(node)]
        every = [fields for node in made if (fields := precision_fields(node, file)) is not None]
        reason = self._beyond_native(value, found, every, plan, file)
        if reason is None and not every:
            plain = "casting_precision" not in file.project.flags
            plan.precision = Precision({}, value=value, plain=plain)
            if plain:
                plan.assumptions.append(f"assumes {brief(file.code(value), 30)} casts inputs as MixedPrecision() does")
            plan.edits += [] if plain else by_fields(file)
            reader = "the output" if plain else own_name(BY_FIELDS, file)
            yield Diagnosis(value, Level.SAFE, f"{reader} reads the dtypes of the MixedPrecision")
            return
        if found.unknown or len(every) != len(made) or reason is not None:
            plan.helper.append(reason or f"mixed_precision={brief(file.code(value))} is only known at run time")
            yield Diagnosis(
                value, Level.SAFE, "fsdp_compat.shard applies the MixedPrecision at run time with FSDP1's cast rules"
            )
            return
        for fields in every:
            if "buffer_dtype" in fields and is_none(file.value(fields["buffer_dtype"])):
                del fields["buffer_dtype"]
        precision = Precision(dict(every[0]), optional=len(made) < len(found.nodes))
        like = buffers_like(every, file)
        if found.nodes != (value,):
            if isinstance(value, cst.IfExp):
                precision.chosen, precision.variable = value, file.fresh(plan.call, *POLICY_NAMES)
            else:
                precision.variable = _name(plan.named(value, POLICY_NAMES, file), value, file)
            if any("buffer_dtype" in fields for fields in every) and (len(every) > 1 or precision.optional):
                if like is None:
                    plan.helper.append(f"{precision.variable} has its own buffer_dtype")
                precision.buffers_like = like
                precision.fields.pop("buffer_dtype", None)
            plan.edits += [Replace(node, _built(dict(fields), file)) for node, fields in zip(made, every, strict=True)]
            nothing = f"{file.ref('torch.distributed.fsdp.MixedPrecisionPolicy')}()"
            if precision.optional and any(is_asked(use, file) for use in readers(found, file)):
                name = file.fresh(plan.call, *POLICY_NAMES)
                plan.taken_out.append(f"{name} = {precision.variable} or {nothing}")
                precision.variable = name
            else:
                plan.edits += [Replace(node, lambda code: nothing) for node in found.nodes if is_none(node)]
            plan.edits += self._reads(found, every, plan, file)
        plan.precision = precision
        if any("buffer_dtype" in fields for fields in every):
            plan.assumptions.append(BUFFERS_CAST)
        message = "MixedPrecision becomes MixedPrecisionPolicy, which casts only the root's inputs, as FSDP1 does"
        yield Diagnosis(value, Level.SAFE, message)

    def _given_elsewhere(self, value: cst.BaseExpression, found: Found, plan: ShardPlan, file: File) -> Contract | None:
        """What the definition gives that the MixedPrecision comes from, where that is rewritten with this call."""
        leaf = given_elsewhere(found, "precision", file)
        contract = leaf.contract(file) if leaf is not None else None
        if (
            leaf is None
            or not (is_repeatable(value) or leaf.node is value)
            or has_batch_norm(plan.call, file) is Certainty.YES
        ):
            return None
        if any(not _reads_dtype(use, file) for use in readers(found, file)):
            return None
        if has_batch_norm(plan.call, file) is Certainty.MAYBE:
            plan.assumptions.append(NO_BATCHNORM)
        return contract

    def _beyond_native(
        self,
        value: cst.BaseExpression,
        found: Found,
        every: list[dict[str, cst.BaseExpression]],
        plan: ShardPlan,
        file: File,
    ) -> str | None:
        if has_batch_norm(plan.call, file) is Certainty.YES:
            return "the model may have BatchNorm, which FSDP1 keeps in full precision"
        casts = set()
        for fields in every:
            if "_module_classes_to_ignore" in fields:
                return "the MixedPrecision sets its own module classes to ignore"
            precision = Precision(fields)
            if precision.flag("keep_low_precision_grads", False) is not False:
                return "keep_low_precision_grads has no FSDP2 field"
            casts.add((precision.flag("cast_forward_inputs", False), precision.flag("cast_root_forward_inputs", True)))
        if len(casts) > 1 or any(None in pair for pair in casts):
            return "which inputs are cast is only known at run time"
        if has_batch_norm(plan.call, file) is Certainty.MAYBE:
            plan.assumptions.append(NO_BATCHNORM)
        if found.nodes == (value,) or not every:
            return None
        inside = any(value in file.ancestors(node) for node in found.nodes)
        if inside and not isinstance(value, cst.IfExp):
            return "the MixedPrecision is created inside a larger expression"
        if not isinstance(value, cst.Name | cst.Subscript | cst.IfExp):
            return "the MixedPrecision is passed through several variables"
        for use in readers(found, file):
            parent = file.parent(use)
            name = parent.attr.value if isinstance(parent, cst.Attribute) and parent.value is use else ""
            if is_asked(use, file):
                continue
            if name not in READ and not (name == "buffer_dtype" and buffers_like(every, file)):
                return f"{use.value} is used in other places"
        if is_imported(found, file):
            return f"{file.code(value)} is used in other places"
        return None

    def _reads(
        self, found: Found, every: list[dict[str, cst.BaseExpression]], plan: ShardPlan, file: File
    ) -> list[Replace]:
        """What reads the dtype of the buffers, which FSDP2's policy does not have."""
        like = buffers_like(every, file)
        edits: list[Replace] = []
        for name in {carrier.value for carrier in found.carriers}:
            for use in file.uses(name):
                parent = file.parent(use)
                if isinstance(parent, cst.Attribute) and parent.attr.value == "buffer_dtype" and like:
                    edits.append(Replace(parent, _attribute(use, like)))
        return edits


def _reads_dtype(use: cst.Name, file: File) -> bool:
    parent = file.parent(use)
    return isinstance(parent, cst.Attribute) and parent.value is use and parent.attr.value in READ


def _name(held: cst.BaseExpression, value: cst.BaseExpression, file: File) -> str:
    """What names the policy below the statements: ``value`` itself, or the new name of it."""
    return file.code(value) if held is value else cst.ensure_type(held, cst.Name).value


def _flag(value: bool) -> cst.Name:
    return cst.Name(str(value))


def _attribute(owner: cst.Name, name: str) -> Build:
    return lambda code: f"{code(owner)}.{name}"


def _built(fields: dict[str, cst.BaseExpression], file: File) -> Build:
    return lambda code: policy_text(fields, file, code)
