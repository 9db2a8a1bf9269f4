"""Rule for ``enable_wrap(wrapper_cls=FSDP, ...)`` and the ``wrap`` calls inside it."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from fsdp_rules.file.file import File
from fsdp_rules.fsdp1.names import FSDP
from fsdp_rules.verdict.diagnosis import Diagnosis, Replace
from fsdp_rules.verdict.finding import Level
from fsdp_rules.verdict.rule import Rule


class EnableWrap(Rule):
    """wrap() inside enable_wrap().

    The arguments of `enable_wrap` apply to every `wrap` that runs inside the `with`, also in other functions and files,
    and `wrap` alone returns its argument. So the context is kept, with `fsdp_compat.shard` as its wrapper, which takes
    FSDP1's arguments. A second `wrap` of a wrapped module changes nothing. `enable_wrap` and `wrap` themselves are now
    imported from `fsdp_compat`.
    """

    id = "FSDP116"
    name = "enable-wrap"
    moves_together = True
    visits = (cst.Call,)
    before = """
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import enable_wrap, wrap

def shard_parts(model, **options):
    with enable_wrap(wrapper_cls=FSDP, **options):
        model.encoder = wrap(model.encoder)
        model.decoder = wrap(model.decoder, use_orig_params=True)
"""
    after = """
import fsdp_compat
from fsdp_compat import enable_wrap, wrap

def shard_parts(model, **options):
    with enable_wrap(wrapper_cls=fsdp_compat.shard, **options):
        model.encoder = wrap(model.encoder)
        model.decoder = wrap(model.decoder, use_orig_params=True)
"""

    def visit(self, node: cst.CSTNode, file: File) -> Iterable[Diagnosis]:
        """Put the helper in the place of the wrapper class."""
        if not isinstance(node, cst.Call) or file.fsdp1(node.func) != "enable_wrap":
            return
        for argument in node.args:
            if argument.keyword is None or argument.keyword.value != "wrapper_cls":
                continue
            wrapper = file.value(argument.value)
            if file.fsdp1(wrapper) == FSDP:
                yield self._wrapper(wrapper, argument.value, file)

    def _wrapper(self, wrapper: cst.BaseExpression, given: cst.BaseExpression, file: File) -> Diagnosis:
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
            "each wrap() inside the context shards its module in place with FSDP1's arguments",
            "wrap children before their parents, and the whole model too if this context does so under FSDP1",
            edits=(Replace(wrapper, lambda code: spelled),),
            claims=(given,),
        )
