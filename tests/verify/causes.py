"""For every named cause two trainings that show it, and two near them that must not be called so."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import MixedPrecision, MixedPrecisionPolicy, ShardingStrategy

from tests.verify.shared import Decoder, Layer, Single
from tests.verify.trainings import (
    Block,
    Drifting,
    Net,
    Training,
    adamw,
    by_rank,
    clip,
    clip_value,
    fresh,
    fsdp1,
    fsdp2,
    grouped,
    halved,
    ignoring,
    last_digits,
    local_norm,
    numbers,
    redrawn,
    reloaded,
    resumed,
    scaled,
    stale,
    sync_always,
    sync_last,
    sync_never,
    tokens,
    weights,
    without_biases,
)

BF16, FP32 = torch.bfloat16, torch.float32
#: In place of a cause: the two agree bit for bit.
EQUAL = "equal"


@dataclass(frozen=True)
class Pair:
    """``cause`` is the one that is asked about; ``said``: what the comparison says, a cause, None or ``EQUAL``."""

    cause: str
    before: Training
    after: Training
    said: str | None

    @property
    def shows(self) -> bool:
        return self.said == self.cause


def _low(**options: object) -> Training:
    policy = MixedPrecisionPolicy(param_dtype=BF16, **options)  # type: ignore[arg-type]
    return Training(shard=fsdp2(mp_policy=policy), deep=1)


def _promoted(**options: object) -> Training:
    return replace(_low(**options), model=lambda: Net(gain=torch.ones(1)))


def _low_with(buffer: torch.dtype, value: float = 1.0) -> Training:
    def set_buffer(model: nn.Module) -> None:
        model.scale = torch.full((1,), value, dtype=buffer)

    return Training(initial=set_buffer)


def _matrices(factor: float, *names: str) -> Training:
    return Training(initial=weights(lambda name, param: param.mul_(factor) if name in names else None))


def _used() -> nn.Module:
    """Every parameter takes part: what is unused has zeros under FSDP1, and nothing under FSDP2."""
    return Net(spare=1.0)


def _without_biases(model: nn.Module) -> None:
    for name, param in model.named_parameters():
        if "bias" in name:
            param.grad = None


def _own(name: str, param: torch.Tensor) -> None:
    if name.startswith("blocks.0.") and param.dim() > 1:
        own = torch.Generator().manual_seed(dist.get_rank())
        param.copy_(torch.randn(param.shape, generator=own) * param.std())


PLAIN = Training()
FLAT = Training(shard=fsdp1())
HYBRID = fsdp2(hybrid=True)
_DECAY = grouped(lambda name, param: param.dim() > 1)
_EVERY, _LAST, _NEVER = (Training(sync=sync) for sync in (sync_always, sync_last, sync_never))
_CLIPPED, _TWICE, _HIGH = (Training(gradients=clip(*limits)) for limits in ((1e-3,), (1e-3, 1e-3), (1e3,)))
_LOCAL = Training(gradients=clip(1e3), clipping=local_norm)
_LOW1, _LOW2 = (
    Training(shard=fsdp1(mixed_precision=MixedPrecision(BF16, FP32)), model=_used, sync=sync_last),
    Training(shard=fsdp2(mp_policy=MixedPrecisionPolicy(BF16, FP32)), model=_used, sync=sync_last),
)
_REDUCED = (
    Training(shard=fsdp1(mixed_precision=MixedPrecision(None, BF16)), model=_used, sync=sync_last),
    Training(shard=fsdp2(mp_policy=MixedPrecisionPolicy(None, BF16)), model=_used, sync=sync_last),
)
_ORIGINAL = fsdp1(use_orig_params=True)
_RELOADED = Training(model=_used, optimizer=reloaded())
_SINGLE = [Training(shard, lambda: Decoder(Single), batch=numbers, deep=1) for shard in (fsdp1(), fsdp2())]
_SHARED_LOW = [
    Training(shard, lambda: Decoder(Layer), batch=numbers, deep=1)
    for shard in (fsdp1(mixed_precision=MixedPrecision(BF16, BF16)), fsdp2(mp_policy=MixedPrecisionPolicy(BF16, BF16)))
]
_ZERO = "blocks.0.linear.weight"

#: A model whose first block is each rank's own, as experts are, and FSDP1 leaves it out.
_EXPERTS = weights(_own)
_APART = Training(shard=ignoring("blocks.0"), initial=_EXPERTS)

PAIRS = (
    Pair("in-no-unit", _APART, Training(initial=_EXPERTS), "in-no-unit"),
    Pair("in-no-unit", Training(shard=ignoring("spare", "blocks.1")), FLAT, "in-no-unit"),
    Pair("in-no-unit", Training(shard=ignoring("spare")), Training(initial=weights(redrawn)), "initialised-later"),
    Pair("other-data", PLAIN, Training(batch=lambda micro, rank: tokens(micro, 0)), "other-data"),
    Pair("other-data", PLAIN, Training(target=0.5), None),
    Pair("untied", PLAIN, Training(model=lambda: Net(tie="")), "untied"),
    Pair("untied", PLAIN, Training(model=lambda: Net(tie="embed")), EQUAL),
    Pair("not-resumed", Training(optimizer=resumed), Training(optimizer=fresh), "not-resumed"),
    Pair("not-resumed", Training(optimizer=fresh), Training(optimizer=resumed), None),
    Pair("replicas-apart", Training(shard=HYBRID), Training(shard=HYBRID, initial=weights(by_rank)), "replicas-apart"),
    Pair("replicas-apart", Training(shard=HYBRID), Training(shard=HYBRID, initial=weights(redrawn)),
         "initialised-later"),
    Pair("not-loaded", PLAIN, _matrices(0.0, _ZERO), "not-loaded"),
    Pair("not-loaded", _matrices(0.0, _ZERO), _matrices(0.0, _ZERO, "blocks.1.norm.weight"), None),
    Pair("initialised-later", PLAIN, Training(initial=weights(redrawn)), "initialised-later"),
    Pair("initialised-later", PLAIN, _matrices(1.5, _ZERO), None),
    Pair("buffer-dtype", _low_with(FP32), _low_with(BF16), "buffer-dtype"),
    Pair("buffer-dtype", _low_with(FP32), _low_with(FP32, 1.5), None),
    Pair("param-dtype", PLAIN, _low(), "param-dtype"),
    Pair("param-dtype", PLAIN, Training(shard=fsdp2(mp_policy=MixedPrecisionPolicy(param_dtype=FP32))), EQUAL),
    Pair("input-dtype", _promoted(cast_forward_inputs=False), _promoted(cast_forward_inputs=True), "input-dtype"),
    Pair("input-dtype", Training(deep=1), Training(model=lambda: Net(gain=1.5), deep=1), None),
    Pair("stale-optimizer", PLAIN, Training(optimizer=stale), "stale-optimizer"),
    Pair("stale-optimizer", Training(optimizer=without_biases(0.01)), Training(optimizer=without_biases(0.02)),
         "other-setting"),
    Pair("not-reduced", _LAST, _NEVER, "not-reduced"),
    Pair("not-reduced", _EVERY, _LAST, "order-of-summation"),
    Pair("unused-parameters", FLAT, PLAIN, "unused-parameters"),
    Pair("unused-parameters", PLAIN, Training(gradients=_without_biases), None),
    Pair("other-divisor", PLAIN, Training(gradients=scaled(2.0)), "other-divisor"),
    Pair("other-divisor", PLAIN, Training(gradients=scaled(2.0, "blocks.0.")), None),
    Pair("reduce-dtype", _low(reduce_dtype=FP32), _low(reduce_dtype=BF16), "reduce-dtype"),
    Pair("reduce-dtype", _low(reduce_dtype=BF16), _low(), EQUAL),
    Pair("shared-input", Training(fsdp1(), lambda: Decoder(Layer), batch=numbers, deep=1),
         Training(model=lambda: Decoder(Layer), batch=numbers, deep=1), "shared-input"),
    Pair("shared-input", *_SHARED_LOW, "shared-input"),
    Pair("shared-input", *_SINGLE, EQUAL),
    Pair("order-of-summation", _LAST, _EVERY, "order-of-summation"),
    Pair("order-of-summation", PLAIN, Training(gradients=scaled(1.01, "blocks.0.")), None),
    Pair("accumulation-dtype", _LOW1, _LOW2, "accumulation-dtype"),
    Pair("accumulation-dtype", *_REDUCED, "accumulation-dtype"),
    Pair("accumulation-dtype", _LOW1, replace(_LOW2, gradients=scaled(1.2, "blocks.0.")), None),
    Pair("other-clip-limit", _CLIPPED, Training(gradients=clip(1e-2)), "other-clip-limit"),
    Pair("other-clip-limit", _HIGH, Training(gradients=clip(1000)), EQUAL),
    Pair("clipped-twice", _CLIPPED, _TWICE, "clipped-twice"),
    Pair("clipped-twice", _TWICE, Training(gradients=clip(1e-2, 1e-2)), "other-clip-limit"),
    Pair("logged-norm", _HIGH, _LOCAL, "logged-norm"),
    Pair("logged-norm", _HIGH, Training(gradients=lambda model: (scaled(0.5)(model), clip(1e3)(model))[0]),
         "other-divisor"),
    Pair("not-clipped", _CLIPPED, PLAIN, "not-clipped"),
    Pair("not-clipped", _HIGH, Training(gradients=clip_value), None),
    Pair("order-of-norm", _CLIPPED, Training(gradients=clip(1e-3), clipping=last_digits), "order-of-norm"),
    Pair("order-of-norm", _CLIPPED, Training(gradients=clip(1e-3, then=scaled(1.01))), None),
    Pair("other-groups", Training(optimizer=_DECAY), Training(optimizer=grouped(lambda name, param: True)),
         "other-groups"),
    Pair("other-groups", Training(optimizer=_DECAY),
         Training(optimizer=grouped(lambda name, param: (param.dim() > 1) != name.startswith("blocks.0."))),
         "other-setting"),
    Pair("other-setting", PLAIN, Training(optimizer=lambda model: adamw(model, 0.02)), "other-setting"),
    Pair("other-setting", PLAIN, Training(optimizer=lambda model: Drifting(model.parameters(), lr=0.01)), None),
    Pair("shared-moments", Training(_ORIGINAL, _used, optimizer=reloaded()), _RELOADED, "shared-moments"),
    Pair("shared-moments", Training(_ORIGINAL, _used, optimizer=reloaded(offload=False)), _RELOADED, EQUAL),
    Pair("shared-moments", Training(_ORIGINAL, _used, optimizer=reloaded(offload=False, change=halved)), _RELOADED,
         None),
    Pair("missing-unit", PLAIN, Training(shard=fsdp2(units=())), "missing-unit"),
    Pair("missing-unit", Training(shard=fsdp1(Block, nn.Tanh), model=_used), Training(model=_used),
         EQUAL),
    Pair("other-reshard", Training(shard=fsdp2(reshard_after_forward=False)), PLAIN, "other-reshard"),
    Pair("other-reshard", PLAIN, Training(shard=fsdp2(root=False)), EQUAL),
    Pair("other-mesh", PLAIN, Training(shard=HYBRID), "other-mesh"),
    Pair("other-mesh", Training(fsdp1(sharding_strategy=ShardingStrategy.NO_SHARD), model=_used),
         Training(HYBRID, model=_used), EQUAL),
)  # fmt: skip


def trainings() -> tuple[Training, ...]:
    """Each training once, in the order of the pairs."""
    return tuple({id(t): t for pair in PAIRS for t in (pair.before, pair.after)}.values())


def run(rank: int, world_size: int, directory: str, number: int) -> None:
    """Record the training with this number."""
    torch.set_num_threads(1)
    trainings()[number].run(rank, Path(directory))
