"""Rule for the context manager ``no_sync``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import libcst as cst

from fsdp_rules.file.expressions import attribute_of, call_of, is_repeatable
from fsdp_rules.file.file import File
from fsdp_rules.file.nothing import Chosen, chosen
from fsdp_rules.fsdp1.strategy_names import ZERO2
from fsdp_rules.loop._stored_sync import pushed, stored, synchronised
from fsdp_rules.loop._sync_blocks import NO_SYNC, SYNC_FLAG, around, count, nested, rebinds
from fsdp_rules.loop._sync_flags import Flags
from fsdp_rules.model.asked_for import asked_for
from fsdp_rules.model.guards import is_under_ddp, is_under_hasattr
from fsdp_rules.model.sharded import sharded
from fsdp_rules.model.wrap_given import AS_REDUCED, wrap_given
from fsdp_rules.model.wrappers import is_wrapped_here, other_wrapper
from fsdp_rules.project.project import Certainty
from fsdp_rules.verdict.diagnosis import Build, Diagnosis, Edit, Rebuild, Replace
from fsdp_rules.verdict.finding import Level
from fsdp_rules.verdict.rule import Rule
from fsdp_rules.verdict.sentence import sentence

WIDER = "gradients accumulate in reduce_dtype (FSDP1: param_dtype)"
FSDP_WORD = re.compile(r"fsdp|FullySharded", re.IGNORECASE)


@dataclass(frozen=True)
class Item:
    """The one item of a ``with`` that is ``no_sync``, and on what that hangs."""

    block: cst.With
    position: int
    choice: Chosen


class NoSync(Rule):
    """Gradient accumulation with no_sync().

    FSDP2 has a flag instead of a context manager: `set_requires_gradient_sync(False)` before, `True` after, even after
    an exception. A condition on `no_sync()` becomes the value of the flag, including a context that is stored in a name
    until one block enters it. On an exit stack the flag is set, and a callback restores it. The helper
    `fsdp_compat.no_sync(model)`, which restores the previous value, replaces a context manager that is passed on, is
    nested in another one, may be DDP's, or is read by `getattr` with a default from a model that another function
    wraps. Under a test for DDP, the `no_sync` is kept.

    A model of SHARD_GRAD_OP or _HYBRID_SHARD_ZERO2 is kept gathered inside the block, as under FSDP1:
    set_reshard_after_backward gets the same flag. Otherwise every micro-batch would gather all parameters again. If the
    strategy is not certain, `fsdp_compat.no_sync` checks the model.

    Inside the block, FSDP2 accumulates in the dtype of the reduction, and FSDP1 in the dtype of the computation. They
    are equal in fp32, and FSDP2 is more precise if only the reduction is fp32. If the model's MixedPrecision uses two
    dtypes, `fsdp_compat.no_sync` accumulates as FSDP1 does.
    """

    id = "FSDP202"
    name = "no-sync"
    moves_together = True
    markers = ("no_sync",)
    open_world = True
    what_to_test = (
        "Train with gradient accumulation over several micro-batches and compare the losses, number for number."
    )
    visits = (cst.Attribute, cst.Call)
    before = """
import contextlib

from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

def train(model, batches):
    model = FSDP(model)
    for micro, batch in enumerate(batches):
        with model.no_sync() if micro < len(batches) - 1 else contextlib.nullcontext():
            model(batch).sum().backward()
"""
    after = """
from torch.distributed.fsdp import fully_shard

def train(model, batches):
    fully_shard(model)
    for micro, batch in enumerate(batches):
        model.set_requires_gradient_sync(micro >= len(batches) - 1)
        try:
            model(batch).sum().backward()
        finally:
            model.set_requires_gradient_sync(True)
"""

    def visit(self, node: cst.Attribute | cst.Call, file: File) -> Iterable[Diagnosis]:
        """``X.no_sync``, called or not, and questions whether there is one."""
        if isinstance(node, cst.Call):
            return self._asked(node, file)
        return self._method(node, file) if node.attr.value == "no_sync" else ()

    def _asked(self, node: cst.Call, file: File) -> Iterator[Diagnosis]:
        """A question for the method: of a model that is sharded for certain, and of none but FSDP's, it is answered."""
        receiver = attribute_of(node, "no_sync")
        if receiver is not None and not file.settings.prefers_helpers:
            held = sharded(receiver, file).certainty
            call = call_of(node, file)
            # Wrapped elsewhere, a default may be for a model without one.
            plain = held is Certainty.YES and is_wrapped_here(receiver, file)
            edits = _native(node, call, receiver, file) if plain and (call is None or not call.args) else None
            if edits is not None:
                yield _flagged(node, receiver, edits, _assumptions(receiver, held, False, file), file)
                return
        found = asked_for(node, "no_sync", file)
        if found is not None:
            yield found

    def _method(self, node: cst.Attribute, file: File) -> Iterator[Diagnosis]:
        receiver = node.value
        parent, call = file.parent(node), call_of(node, file)
        found = sharded(receiver, file)
        held = found.certainty
        if found.is_excluded or (call is not None and call.args):
            return
        if call is None and (held is Certainty.NO or isinstance(parent, cst.AssignTarget)):
            return
        name = file.code(receiver)
        other = other_wrapper(receiver, file)
        may_be_ddp = other is not Certainty.NO
        if held is Certainty.NO and may_be_ddp and not FSDP_WORD.search(file.text):
            if other is Certainty.YES:
                return
            yield Diagnosis(node, Level.REVIEW, f"assumes {name} is a DDP model and keeps its no_sync")
            return
        if may_be_ddp and is_under_ddp(node, file):
            yield Diagnosis(node, Level.INFO, f"{name} is a DDP model here (see the test above) and keeps its no_sync")
            return
        if held is not Certainty.YES and "no_sync" in file.project.methods:
            yield Diagnosis(
                node,
                Level.MANUAL,
                f"{name} is either the sharded model or an object of this project with its own no_sync",
                "if it is the model, call fsdp_compat.no_sync(model) or model.set_requires_gradient_sync(...)",
            )
            return
        given = wrap_given(receiver, file)
        wider = given.accumulates_wider() is Certainty.YES and file.settings.torch < AS_REDUCED
        assumptions = _assumptions(receiver, held, may_be_ddp, file)
        level = Level.REVIEW if assumptions else Level.SAFE
        # Whoever asks for the method has models without it, which may be in a wrapper of another library.
        shared = held is not Certainty.YES and is_under_hasattr(node, name, NO_SYNC, file)
        stays = may_be_ddp or shared or wider or file.settings.prefers_helpers
        edits = None if stays else _native(node, call, receiver, file)
        if edits is not None:
            yield _flagged(node, receiver, edits, assumptions, file)
            return
        if not file.settings.may_help:
            yield Diagnosis(
                node,
                Level.MANUAL,
                "needs fsdp_compat.no_sync, but '--helpers never' forbids it: a flag cannot replace no_sync here",
                f"call {name}.set_requires_gradient_sync(False) before and (True) after the backward passes",
            )
            return
        helper = file.ref("fsdp_compat.no_sync")
        if call is None:
            partial = file.ref("functools.partial")
            edit = Replace(node, lambda code: f"{partial}({helper}, {code(receiver)})")
        else:
            edit = Replace(call, lambda code: f"{helper}({code(receiver)})")
        message = sentence("fsdp_compat.no_sync sets FSDP2's flag as a context manager", *assumptions)
        yield Diagnosis(node, level, message, _cure(name, may_be_ddp), edits=(edit,))


def _flagged(
    node: cst.CSTNode, receiver: cst.BaseExpression, edits: Sequence[Edit], assumptions: list[str], file: File
) -> Diagnosis:
    """The verdict where flags are set around the block."""
    advice = ""
    if wrap_given(receiver, file).stays_gathered() is Certainty.MAYBE:
        name = file.code(receiver)
        assumptions = [
            f"assumes {name} does not use SHARD_GRAD_OP, which FSDP1 keeps gathered in no_sync",
            *assumptions,
        ]
        advice = (
            f"if it is, call {name}.set_reshard_after_backward(...) with the same flag; otherwise it gathers every time"
        )
    message = sentence("set_requires_gradient_sync is called before and after the block", *assumptions)
    return Diagnosis(node, Level.REVIEW if assumptions else Level.SAFE, message, advice, edits=tuple(edits))


def _cure(name: str, may_be_ddp: bool) -> str:
    """What to change so that no helper is needed."""
    flag = f"call {name}.set_requires_gradient_sync(False) before the backward passes that accumulate, and (True) after"
    return f"{flag}, in a branch for FSDPModule" if may_be_ddp else flag


def _assumptions(receiver: cst.BaseExpression, held: Certainty, may_be_ddp: bool, file: File) -> list[str]:
    found = []
    name = file.code(receiver)
    if held is not Certainty.YES:
        found.append(f"assumes {name} is the sharded model" + (" or a DDP model" if may_be_ddp else ""))
    if not may_be_ddp and held is not Certainty.NO and "ddp_wraps" in file.project.flags:
        found.append(f"assumes {name} is never a DDP model")
    wider = wrap_given(receiver, file).accumulates_wider()
    # What the program itself shows is no assumption.
    if wider is Certainty.MAYBE or (wider is Certainty.YES and file.settings.torch >= AS_REDUCED):
        found.append(WIDER)
    return found


def _native(
    node: cst.Attribute | cst.Call, call: cst.Call | None, receiver: cst.BaseExpression, file: File
) -> Sequence[Edit] | None:
    """The edits that set a flag in the place of ``node``, None where none can be set."""
    given = wrap_given(receiver, file)
    kept = given.stays_gathered()
    if kept is Certainty.MAYBE and not given.strategies.isdisjoint(ZERO2):
        # The helper looks at the model.
        return None
    flags = Flags(receiver, kept is Certainty.YES, file)
    item = _item(call, receiver, file) if call is not None else None
    if item is not None:
        return (Rebuild(item.block, flags.around(item.position, _hanging(item.choice))),)
    push = pushed(call, file) if call is not None else None
    if push is not None:
        alone = count(push.block, file, NO_SYNC, SYNC_FLAG) == 1
        return (flags.pushed(push),) if alone and is_repeatable(receiver) and not around(push.block, file) else None
    held = stored(node if call is None else call, receiver, file)
    if held is None or rebinds(held.block, receiver, file) or nested(held.block, file, held.made):
        return None
    value = (lambda code: held.flag) if held.condition is None else _hanging(held.condition)
    block = Rebuild(held.block, flags.around(held.position, value))
    return (block, *held.edits) if held.is_first else ()


def _hanging(choice: Chosen) -> Build:
    return lambda code: synchronised(choice, code)


def _item(call: cst.Call, receiver: cst.BaseExpression, file: File) -> Item | None:
    """How ``call`` stands in its ``with``, or None where no flag can be set in its place."""
    found = chosen(call, file)
    if found is None:
        return None
    choice, parent = found
    if not isinstance(parent, cst.WithItem) or parent.asname is not None:
        return None
    block = file.parent(parent)
    if not isinstance(block, cst.With) or block.asynchronous is not None:
        return None
    position = list(block.items).index(parent)
    if any(item.asname is not None for item in block.items[:position]):
        return None
    if sum(count(item, file, NO_SYNC) for item in block.items) > 1:
        return None
    if not is_repeatable(receiver) or rebinds(block, receiver, file) or nested(block, file):
        return None
    return Item(block, position, choice)
