"""Mixed precision against real FSDP1: same losses, same dtypes wherever a module can see them."""

from __future__ import annotations

import dataclasses
import os
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, NamedTuple, cast
from unittest import mock

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP1
from torch.distributed.fsdp import MixedPrecisionPolicy

import fsdp_compat
from fsdp_compat import CustomPolicy, MixedPrecision, ModuleWrapPolicy, ShardingStrategy
from tests.device import DEVICE, KIND, ranks
from tests.pool import Pool
from tests.shim.gates import needs_torch
from tests.shim.models import Block, build, loss_of
from tests.shim.training import POLICIES, Case, assert_same, both, quiet_fsdp1, whole

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32


@pytest.mark.parametrize(
    "precision",
    [
        MixedPrecision(param_dtype=BF16, reduce_dtype=FP32),
        MixedPrecision(param_dtype=BF16),
        MixedPrecision(reduce_dtype=BF16),
        MixedPrecision(param_dtype=BF16, cast_forward_inputs=True, cast_root_forward_inputs=False),
    ],
    ids=str,
)
def test_trains_as_fsdp1(pool: Pool, precision: MixedPrecision) -> None:
    for theirs, ours in pool.run(both, ranks(2), Case(arguments={"mixed_precision": precision})):
        assert_same(theirs, ours)


class Probe(nn.Module):
    """Computes with a parameter and a buffer of its own, and notes the dtypes it meets."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3, 3))
        self.register_buffer("table", torch.linspace(0, 1, 3))
        self.register_buffer("hidden", torch.linspace(1, 2, 3), persistent=False)
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.seen: list[tuple[torch.dtype, ...]] = []

    def forward(self, x: torch.Tensor, position: torch.Tensor | None = None) -> torch.Tensor:
        given = x if position is None else position
        self.seen.append((x.dtype, given.dtype, self.weight.dtype, self.table.dtype, self.hidden.dtype))
        return (x.to(self.weight.dtype) @ self.weight) * self.table.to(self.weight.dtype)


class Sub(Probe):
    pass


class Net(nn.Module):
    def __init__(self, *, with_bn: bool) -> None:
        super().__init__()
        self.first = Sub()
        self.bn = nn.BatchNorm1d(3) if with_bn else nn.Identity()
        self.second = Probe()
        self.last = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.bn(self.first(x, torch.arange(3, dtype=torch.float32, device=DEVICE)))
        return self.last(self.second(x))


def wrapped(side: str, net: nn.Module, policy: Any, precision: Any, **keywords: Any) -> Any:
    keywords = {"mixed_precision": precision, "device_id": DEVICE, "use_orig_params": True, **keywords}
    with quiet_fsdp1():
        return {"fsdp1": FSDP1, "fsdp_compat": fsdp_compat.FSDP}[side](net, auto_wrap_policy=policy, **keywords)


def dtypes(rank: int, world_size: int, side: str, precision: Any, with_bn: bool) -> dict[str, Any]:
    """Worker: what the modules of a net saw in two steps, what came out, and the dtypes in its state dict."""
    torch.manual_seed(0)
    net = Net(with_bn=with_bn)
    keywords = {"auto_wrap_policy": ModuleWrapPolicy({Sub}), "mixed_precision": precision, "device_id": DEVICE}
    if side == "fsdp1":
        with quiet_fsdp1():
            model: nn.Module = FSDP1(net, use_orig_params=True, **keywords)
    else:
        model = fsdp_compat.shard(net, **keywords)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    outputs = []
    for step in range(2):
        generator = torch.Generator().manual_seed(10 * rank + step)
        output = model(torch.randn(4, 3, generator=generator).to(DEVICE))
        output.float().pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        outputs.append(output.detach())
    probes = [part for part in model.modules() if isinstance(part, Probe)]
    with quiet_fsdp1():
        saved = {name: value.dtype for name, value in model.state_dict().items()}
    return {
        "seen": [probe.seen for probe in probes],
        "outputs": outputs,
        "saved": saved,
        "buffers": [buffer.dtype for buffer in model.buffers()],
    }


@pytest.mark.parametrize("with_bn", [False, True])
@pytest.mark.parametrize(
    "precision",
    [
        MixedPrecision(param_dtype=BF16, reduce_dtype=FP32, buffer_dtype=BF16),
        MixedPrecision(param_dtype=BF16, buffer_dtype=FP16),
        MixedPrecision(buffer_dtype=BF16),
        MixedPrecision(param_dtype=BF16, cast_forward_inputs=True),
        MixedPrecision(param_dtype=BF16, cast_root_forward_inputs=False),
    ],
    ids=str,
)
def test_modules_see_the_dtypes_of_fsdp1(pool: Pool, precision: MixedPrecision, with_bn: bool) -> None:
    for theirs, ours in zip(
        pool.run(dtypes, ranks(2), "fsdp1", precision, with_bn),
        pool.run(dtypes, ranks(2), "compat", precision, with_bn),
        strict=True,
    ):
        torch.testing.assert_close(ours.pop("outputs"), theirs.pop("outputs"), rtol=0, atol=0)
        assert ours == theirs


class Scaler(nn.Module):
    """Buffers and no parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.linspace(0, 1, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.scale.to(x.dtype)


class Normalized(nn.Module):
    """Its parameters are all those of its units."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.linspace(0, 1, 3))
        self.scaler, self.part = Scaler(), Probe()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.part(self.scaler((x - self.mean).to(x.dtype)))


class Stacked(nn.Module):
    """A unit without parameters of its own inside a root that has some."""

    def __init__(self) -> None:
        super().__init__()
        self.normalized, self.last = Normalized(), nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.normalized(x))


def saved_dtypes(rank: int, world_size: int, side: str, net: type[nn.Module], units: set[Any], trained: bool) -> Any:
    """Worker: the dtypes and values in the state dict, after a step or before the first forward."""
    torch.manual_seed(0)
    model = wrapped(side, net(), ModuleWrapPolicy(units), MixedPrecision(param_dtype=BF16, buffer_dtype=BF16))
    if trained:
        model(torch.randn(4, 3).to(DEVICE)).sum().backward()
    with quiet_fsdp1():
        state = model.state_dict()
    return whole(state), [buffer.dtype for buffer in model.buffers()]


@pytest.mark.parametrize("trained", [True, False])
@pytest.mark.parametrize(
    ("net", "units"),
    [
        (Normalized, {Probe}),
        (Normalized, {Probe, Scaler}),
        (Normalized, set()),
        (Stacked, {Probe, Scaler}),
        (Stacked, {Probe, Normalized, nn.Linear}),
    ],
)
def test_buffers_of_units_without_parameters(
    pool: Pool, net: type[nn.Module], units: set[type[nn.Module]], trained: bool
) -> None:
    theirs = pool.run(saved_dtypes, ranks(2), "fsdp1", net, units, trained)[0]
    ours = pool.run(saved_dtypes, ranks(2), "fsdp_compat", net, units, trained)[0]
    assert ours[1] == theirs[1]
    for name, value in theirs[0].items():
        assert ours[0][name].dtype == value.dtype, name
        assert torch.equal(ours[0][name], value), name


def test_an_fsdp2_policy_means_what_fsdp1_would(pool: Pool) -> None:
    policy, precision = MixedPrecisionPolicy(BF16, FP32), MixedPrecision(param_dtype=BF16, reduce_dtype=FP32)
    for theirs, ours in zip(
        pool.run(dtypes, ranks(2), "fsdp1", precision, True),
        pool.run(dtypes, ranks(2), "compat", policy, True),
        strict=True,
    ):
        torch.testing.assert_close(ours.pop("outputs"), theirs.pop("outputs"), rtol=0, atol=0)
        assert ours == theirs


def nested_by_hand(rank: int, world_size: int) -> list[list[tuple[torch.dtype, ...]]]:
    """Worker: what modules see whose sharding was not known to be inside another one at the time."""
    precision = MixedPrecision(param_dtype=BF16, buffer_dtype=BF16)
    net = Net(with_bn=False)
    net.first = fsdp_compat.shard(net.first, mixed_precision=precision, device_id=DEVICE)
    fsdp_compat.shard(net, mixed_precision=precision, device_id=DEVICE)
    net(torch.randn(4, 3).to(DEVICE)).sum().backward()
    return [net.first.seen, net.second.seen]


def test_a_module_sharded_by_hand_casts_no_inputs_once_inside_another(pool: Pool) -> None:
    first, second = pool.run(nested_by_hand, ranks(2))[0]
    assert first == [(BF16, FP32, BF16, BF16, BF16)]
    assert second == [(BF16, BF16, BF16, BF16, BF16)]


def evaluated(rank: int, world_size: int, side: str, precision: MixedPrecision, setting: str) -> dict[str, Any]:
    """Worker: what modules see, and what comes of it, in training and in eval mode by turns."""
    with mock.patch.dict(os.environ, {"FSDP_USE_FULL_PREC_IN_EVAL": setting}):
        torch.manual_seed(0)
        model = wrapped(side, Net(with_bn=True), ModuleWrapPolicy({Sub}), precision)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        outputs, buffers = [], []
        for step, (training, grad) in enumerate([(True, True), (False, False), (False, True), (True, True)]):
            model.train(training)
            generator = torch.Generator().manual_seed(10 * rank + step)
            with torch.set_grad_enabled(grad):
                output = model(torch.randn(4, 3, generator=generator).to(DEVICE))
            buffers.append([buffer.dtype for buffer in model.buffers()])
            outputs.append(output.detach())
            if grad:
                output.float().pow(2).mean().backward()
                optimizer.step()
                optimizer.zero_grad()
        probes = [part for part in model.modules() if isinstance(part, Probe)]
        return {"seen": [probe.seen for probe in probes], "outputs": outputs, "buffers": buffers}


@pytest.mark.parametrize("setting", ["0", "1"])
@pytest.mark.parametrize(
    "precision",
    [
        MixedPrecision(param_dtype=BF16, reduce_dtype=FP32, buffer_dtype=BF16),
        MixedPrecision(reduce_dtype=BF16, cast_forward_inputs=True),
        MixedPrecision(param_dtype=BF16, cast_forward_inputs=True),
    ],
    ids=str,
)
def test_full_precision_in_eval(pool: Pool, precision: MixedPrecision, setting: str) -> None:
    for theirs, ours in zip(
        pool.run(evaluated, ranks(2), "fsdp1", precision, setting),
        pool.run(evaluated, ranks(2), "fsdp_compat", precision, setting),
        strict=True,
    ):
        if setting == "1" and precision.param_dtype is not None:
            assert [seen[2] for seen in ours["seen"][0]] == [BF16, FP32, FP32, BF16]
        torch.testing.assert_close(ours.pop("outputs"), theirs.pop("outputs"), rtol=0, atol=0)
        assert ours == theirs


def accumulated_around_eval(rank: int, world_size: int) -> None:
    """Worker: gradients that wait for their reduction survive a look at the model in the other precision."""
    results = []
    with mock.patch.dict(os.environ, {"FSDP_USE_FULL_PREC_IN_EVAL": "1"}):
        for look in (False, True):
            model = wrapped("fsdp_compat", build(), POLICIES["transformer"](), MixedPrecision(param_dtype=BF16))
            with model.no_sync():
                loss_of(model, rank, 0).backward()
            if look:
                model.eval()
                with torch.no_grad():
                    loss_of(model, rank, 5)
                model.train()
            loss_of(model, rank, 1).backward()
            results.append(whole({name: param.grad for name, param in model.named_parameters()}))
    for name, grad in results[0].items():
        assert torch.equal(grad, results[1][name]), name


def test_waiting_gradients_survive_an_evaluation(pool: Pool) -> None:
    pool.run(accumulated_around_eval, ranks(2))


def low_precision(rank: int, world_size: int, side: str, strategy: str, precision: MixedPrecision) -> dict[str, Any]:
    """Worker: dtypes of the gradients, and where training with them leads."""
    model = wrapped(
        side,
        build(),
        POLICIES["transformer"](),
        precision,
        sharding_strategy=ShardingStrategy[strategy],
        use_orig_params=False,
    )
    model.to(DEVICE)
    # foreach, which is the default on GPUs, takes no gradients in another dtype than their parameters'.
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)
    losses, found = [], []
    for step in range(2):
        optimizer.zero_grad()
        for micro in range(2):
            loss = loss_of(model, rank, 10 * step + micro)
            loss.backward()
            losses.append(loss.item())
        found.append({param.grad.dtype for param in model.parameters() if param.grad is not None})
        optimizer.step()
    return {"losses": losses, "dtypes": found}


@needs_torch("2.10", "Tensor.grad_dtype")
@pytest.mark.parametrize(
    ("strategy", "dtypes"),
    [("FULL_SHARD", BF16), ("SHARD_GRAD_OP", BF16), ("NO_SHARD", FP32)],
)
def test_low_precision_gradients_are_kept(pool: Pool, strategy: str, dtypes: torch.dtype) -> None:
    precision = MixedPrecision(param_dtype=BF16, reduce_dtype=FP32, keep_low_precision_grads=True)
    theirs, ours = (pool.run(low_precision, 2, side, strategy, precision) for side in ("fsdp1", "fsdp_compat"))
    assert ours == theirs
    assert all(found == {dtypes} for outcome in ours for found in outcome["dtypes"])


def test_another_type_is_refused() -> None:
    with pytest.raises(TypeError, match="mixed_precision takes"):
        fsdp_compat.plan(nn.Linear(2, 2), mixed_precision=cast(Any, BF16))


@dataclasses.dataclass
class Batch:
    """Something to pass to a model that is neither a tensor nor a container."""

    values: torch.Tensor
    counts: torch.Tensor


class Named(NamedTuple):
    values: torch.Tensor
    label: str


class Reader(nn.Module):
    """Notes the dtypes in whatever it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3, 3))
        self.seen: list[Any] = []

    def forward(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        self.seen.append((dtypes_in(args), dtypes_in(kwargs)))
        return next(iter(args)).to(self.weight.dtype) @ self.weight


def dtypes_in(value: Any) -> Any:
    """``value`` with the dtype in place of each tensor, and the name of its class where that is not a plain one."""
    if isinstance(value, torch.Tensor):
        return value.dtype
    if isinstance(value, Batch):
        return ["Batch", dtypes_in(value.values), dtypes_in(value.counts)]
    if isinstance(value, Mapping):
        return [type(value).__name__, {key: dtypes_in(part) for key, part in value.items()}]
    if isinstance(value, list | tuple):
        return [type(value).__name__, *map(dtypes_in, value)]
    return value


def nested_inputs(rank: int, world_size: int, side: str, precision: MixedPrecision) -> list[Any]:
    """Worker: the dtypes that the root and a unit inside meet in all kinds of arguments."""
    outer, inner = Reader(), Reader()
    inner = wrapped(side, inner, None, precision)

    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.outer, self.inner = outer, inner

        def forward(self, *args: Any, **kwargs: Any) -> torch.Tensor:
            return self.outer(*args, **kwargs) + self.inner(*given, **named)

    one, number = torch.ones(2, 3, device=DEVICE), torch.ones(2, dtype=torch.int64, device=DEVICE)
    given = (one, [one, (number, {"deep": one})], Batch(one, number), Named(one, "name"), None, 3.5)
    named = {"mapping": OrderedDict(first=one, second=number), "batch": Batch(one.double(), number), "flag": True}
    packed = nn.utils.rnn.pack_sequence([one, one[:1]])
    model = wrapped(side, Both(), None, precision)
    model(*given, **named).float().sum().backward()
    model(one, packed.data).float().sum().backward()
    return [outer.seen, inner.seen if side == "fsdp_compat" else inner.module.seen]


@needs_torch("2.8", "fully_shard that casts tensors inside dataclasses")
@pytest.mark.parametrize(
    "precision",
    [
        MixedPrecision(param_dtype=BF16),
        MixedPrecision(param_dtype=BF16, cast_forward_inputs=True),
        MixedPrecision(param_dtype=BF16, cast_forward_inputs=True, cast_root_forward_inputs=False),
        MixedPrecision(param_dtype=BF16, cast_root_forward_inputs=False),
        MixedPrecision(reduce_dtype=BF16, cast_forward_inputs=True),
    ],
    ids=str,
)
def test_arguments_of_all_kinds_are_cast_as_by_fsdp1(pool: Pool, precision: MixedPrecision) -> None:
    theirs, ours = (pool.run(nested_inputs, ranks(2), side, precision) for side in ("fsdp1", "fsdp_compat"))
    assert ours == theirs


def per_module(module: nn.Module) -> bool | dict[str, Any]:
    if isinstance(module, nn.Embedding):
        return {"mixed_precision": MixedPrecision(param_dtype=FP16, cast_forward_inputs=True)}
    if isinstance(module, Block):
        return {"mixed_precision": MixedPrecision(param_dtype=BF16, reduce_dtype=FP32, cast_forward_inputs=True)}
    return {"mixed_precision": MixedPrecision(cast_forward_inputs=True)} if isinstance(module, nn.LayerNorm) else False


def of_their_own(rank: int, world_size: int, side: str) -> list[float] | str:
    """Worker: a policy gives modules precisions of their own; the losses, or what the forward raises."""
    model = wrapped(side, build(), CustomPolicy(per_module), MixedPrecision(param_dtype=BF16, cast_forward_inputs=True))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for step in range(3):
        optimizer.zero_grad()
        try:
            loss = loss_of(model, rank, step)
        except RuntimeError as error:
            return str(error)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_modules_have_precisions_of_their_own(pool: Pool) -> None:
    theirs, ours = (pool.run(of_their_own, ranks(2), side) for side in ("fsdp1", "fsdp_compat"))
    assert ours == theirs
    # CPUs alone have a layer norm of bf16 by weights in fp32.
    assert all(isinstance(found, list) is (KIND == "cpu") for found in theirs), theirs
