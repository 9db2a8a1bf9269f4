"""Rule for ``enable_wrap(wrapper_cls=FSDP, ...)`` and the ``wrap`` calls inside it."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from fsdp_rules.construction._plan.bound_calls import calls_in_context, wraps_again
from fsdp_rules.construction.call import applied_all
from fsdp_rules.file.dissolved import dissolved
from fsdp_rules.file.expressions import dict_entries
from fsdp_rules.file.file import File
from fsdp_rules.fsdp1.names import FSDP
from fsdp_rules.verdict.diagnosis import Diagnosis, Rebuild, Replace
from fsdp_rules.verdict.finding import Level
from fsdp_rules.verdict.rule import Rule


class EnableWrap(Rule):
    """wrap() inside enable_wrap().

    The arguments of `enable_wrap` apply to every `wrap` that runs inside the `with`, including in other functions and
    files. Outside such a block, `wrap` returns its argument. If all `wrap` calls in the project are in the block
    itself, each becomes `fully_shard`, and the block is removed. Otherwise the context is kept, with
    `fsdp_compat.shard` as its wrapper, which accepts FSDP1's arguments; `enable_wrap` and `wrap` themselves are then
    imported from `fsdp_compat`. A second `wrap` of a wrapped module changes nothing.
    """

    id = "FSDP116"
    is_wrap = True
    name = "enable-wrap"
    moves_together = True
    visits = (cst.Call,)
    before = """
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import ShardingStrategy
from torch.distributed.fsdp.wrap import enable_wrap, wrap

def shard_parts(model):
    with enable_wrap(wrapper_cls=FSDP, sharding_strategy=ShardingStrategy.SHARD_GRAD_OP):
        model.encoder = wrap(model.encoder)
        model.decoder = wrap(model.decoder, use_orig_params=True)
"""
    after = """
from torch.distributed.fsdp import fully_shard

def shard_parts(model):
    fully_shard(model.encoder, reshard_after_forward=False)
    fully_shard(model.decoder, reshard_after_forward=False)
"""

    def visit(self, node: cst.Call, file: File) -> Iterable[Diagnosis]:
        """Put the helper in the place of the wrapper class."""
        if file.fsdp1(node.func) != "enable_wrap":
            return
        for argument in node.args:
            written = dict_entries(file.value(argument.value)) if argument.star == "**" else None
            by_name = argument.keyword is not None and argument.keyword.value == "wrapper_cls"
            given = argument.value if by_name else (written or {}).get("wrapper_cls")
            wrapper = file.value(given) if given is not None else None
            if given is None or wrapper is None or file.fsdp1(wrapper) != FSDP:
                continue
            if written is None:
                yield from self._context(node, wrapper, given, file)
            else:
                yield self._wrapper(wrapper, given, "its arguments are a dictionary", file)

    def _context(
        self, context: cst.Call, wrapper: cst.BaseExpression, given: cst.BaseExpression, file: File
    ) -> Iterable[Diagnosis]:
        item = file.parent(context)
        block = file.parent(item) if isinstance(item, cst.WithItem) else None
        if not isinstance(block, cst.With) or len(block.items) != 1:
            yield self._wrapper(
                wrapper, given, "its block has other contexts too, or it is not entered by a with statement", file
            )
            return
        said = applied_all(calls_in_context(context, block, file), file)
        if isinstance(said, str):
            yield self._wrapper(wrapper, given, said, file)
            return
        again = tuple(_passed_on(call) for call in wraps_again(block, file))
        yield Diagnosis(
            context,
            Level.REVIEW,
            "each wrap() in this block shards its module in place, assuming no library calls wrap() in it",
            edits=(Rebuild(block, dissolved()), *again),
            claims=(given, *(edit.node for edit in again)),
        )
        yield from said

    def _wrapper(self, wrapper: cst.BaseExpression, given: cst.BaseExpression, why: str, file: File) -> Diagnosis:
        if not file.settings.may_help:
            return Diagnosis(
                wrapper,
                Level.MANUAL,
                "wrap() shards whatever runs inside this context, in other functions too",
                "allow helpers, or replace each wrap() with fully_shard, children before parents",
            )
        spelled = file.ref("fsdp_compat.shard")
        return Diagnosis(
            wrapper,
            Level.REVIEW,
            f"each wrap() inside the context shards its module with FSDP1's arguments: {why}",
            "wrap children before their parents, and the whole model too if this context does so under FSDP1",
            edits=(Replace(wrapper, lambda code: spelled),),
            claims=(given,),
        )


def _passed_on(call: cst.Call) -> Replace:
    """A second ``wrap`` as what it is given."""
    return Replace(call, lambda code: code(call.args[0].value))
