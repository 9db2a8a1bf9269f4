"""FSDP around tensor and sequence parallelism: against FSDP1 bit for bit, and against a model on one process."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from packaging.version import Version
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP1
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import SequenceParallel, parallelize_module

import fsdp_compat.planning.tensor_parallel
from fsdp_compat import FSDP, ModuleWrapPolicy, ShardingStrategy, relink_optimizer, shard
from fsdp_compat.torch_.versions import TORCH
from tests.device import DEVICE
from tests.pool import Pool
from tests.shim.gates import needs_torch
from tests.shim.parallel import (
    STYLES,
    Mlp,
    Mlps,
    full,
    loss_of,
    optimizer_of,
    tensor_parallel,
    train,
    train_unsharded,
)
from tests.shim.training import clean, quiet_fsdp1, weights_here


def float64(values: list[float]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


NAMES = {2: ("dp", "tp"), 3: ("replicate", "shard", "tp")}


def build_mesh(shape: tuple[int, ...]) -> DeviceMesh:
    return init_device_mesh(DEVICE.type, shape, mesh_dim_names=NAMES[len(shape)])


def data_parallel(mesh: DeviceMesh) -> DeviceMesh:
    return mesh["dp"] if mesh.ndim == 2 else mesh["replicate", "shard"]


def arguments(mesh: DeviceMesh, strategy: str = "FULL_SHARD") -> dict[str, Any]:
    return {
        "auto_wrap_policy": ModuleWrapPolicy({Mlp}),
        "sharding_strategy": ShardingStrategy[strategy],
        "device_id": DEVICE,
        "use_orig_params": True,
        "device_mesh": mesh,
    }


def trained(mesh: DeviceMesh, style: str, keywords: dict[str, Any]) -> tuple[list[float], dict[str, torch.Tensor]]:
    model = FSDP(STYLES[style](Mlps().double(), mesh["tp"]), **keywords)
    for param in model.parameters():
        assert isinstance(param, DTensor)
    losses, _ = train(model, dist.get_rank() // mesh["tp"].size(), optimizer_of(model))
    return losses, full(dict(model.named_parameters()))


def trained_by_fsdp1(
    mesh: DeviceMesh, style: str, keywords: dict[str, Any]
) -> tuple[list[float], dict[str, torch.Tensor]]:
    with quiet_fsdp1():
        model = FSDP1(STYLES[style](Mlps().double(), mesh["tp"]), **keywords)
        losses, _ = train(model, dist.get_rank() // mesh["tp"].size(), optimizer_of(model))
        with FSDP1.summon_full_params(model):
            return losses, full({clean(name): param for name, param in model.named_parameters()})


def against_fsdp1(rank: int, world_size: int, shape: tuple[int, ...], style: str, strategy: str) -> None:
    mesh = build_mesh(shape)
    keywords = arguments(data_parallel(mesh), strategy)
    losses, weights = trained(mesh, style, keywords)
    their_losses, their_weights = trained_by_fsdp1(mesh, style, keywords)
    # Four ranks' gradients are added in another order, two ranks' are not.
    rounding = 1e-12 if data_parallel(mesh).size() > 2 else 0.0
    torch.testing.assert_close(float64(losses), float64(their_losses), rtol=0, atol=rounding)
    assert weights.keys() == their_weights.keys()
    for name, weight in weights.items():
        torch.testing.assert_close(weight, their_weights[name], rtol=0, atol=rounding)
    reference, reference_losses, _ = train_unsharded(world_size // shape[-1])
    torch.testing.assert_close(torch.tensor(losses), torch.tensor(reference_losses[rank // shape[-1]]))
    for name, weight in weights_here(reference).items():
        torch.testing.assert_close(weights[name], weight.double(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("shape", "style", "strategy"),
    [
        ((2, 2), "tensor", "FULL_SHARD"),
        ((2, 2), "sequence", "FULL_SHARD"),
        ((2, 2), "sequence", "SHARD_GRAD_OP"),
        ((4, 1), "tensor", "FULL_SHARD"),
        ((1, 2, 2), "sequence", "HYBRID_SHARD"),
        ((2, 2, 1), "tensor", "HYBRID_SHARD"),
        ((2, 2, 1), "sequence", "_HYBRID_SHARD_ZERO2"),
    ],
)
def test_trains_as_fsdp1_around_tensor_parallelism(
    pool: Pool, shape: tuple[int, ...], style: str, strategy: str
) -> None:
    pool.run(against_fsdp1, 4, shape, style, strategy)


def against_one_process(rank: int, world_size: int, shape: tuple[int, ...], style: str, strategy: str) -> None:
    """Worker: layouts on which FSDP1 fails, for it takes one rank to shard over as NO_SHARD."""
    mesh = build_mesh(shape)
    losses, weights = trained(mesh, style, arguments(data_parallel(mesh), strategy))
    reference, reference_losses, _ = train_unsharded(world_size // shape[-1])
    torch.testing.assert_close(torch.tensor(losses), torch.tensor(reference_losses[rank // shape[-1]]))
    for name, weight in weights_here(reference).items():
        torch.testing.assert_close(weights[name], weight.double(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("shape", "style", "strategy"),
    [
        ((1, 2), "tensor", "FULL_SHARD"),
        ((1, 2), "sequence", "SHARD_GRAD_OP"),
        ((2, 1, 2), "tensor", "HYBRID_SHARD"),
        ((2, 1, 2), "sequence", "HYBRID_SHARD"),
    ],
)
def test_trains_as_one_process_where_fsdp1_fails(pool: Pool, shape: tuple[int, ...], style: str, strategy: str) -> None:
    pool.run(against_one_process, torch.Size(shape).numel(), shape, style, strategy)


def whole_mesh(rank: int, world_size: int) -> None:
    """Worker: given whole, a mesh shards over its first dimension, as FSDP1 takes it."""
    mesh = build_mesh((2, 2))
    assert trained(mesh, "tensor", arguments(mesh["dp"]))[0] == trained(mesh, "tensor", arguments(mesh))[0]


def test_the_whole_mesh_shards_over_its_first_dimension(pool: Pool) -> None:
    pool.run(whole_mesh, 4)


def clipped(rank: int, world_size: int, shape: tuple[int, ...], style: str, strategy: str) -> None:
    mesh = build_mesh(shape)
    model = FSDP(STYLES[style](Mlps(), mesh["tp"]), **arguments(data_parallel(mesh), strategy))
    _, norms = train(model, rank // shape[-1], optimizer_of(model), clip=lambda: model.clip_grad_norm_(0.3))
    reference, _, reference_norms = train_unsharded(world_size // shape[-1], max_norm=0.3)
    assert min(reference_norms) > 0.3
    torch.testing.assert_close(torch.tensor(norms), torch.tensor(reference_norms))
    weights = full(dict(model.named_parameters()))
    for name, weight in weights_here(reference).items():
        torch.testing.assert_close(weights[name], weight, rtol=1e-4, atol=1e-5)
    loss_of(model, rank // shape[-1], 9).backward()
    for data_rank in range(world_size // shape[-1]):
        (loss_of(reference, data_rank, 9) * shape[-1] / world_size).backward()
    expected = nn.utils.clip_grad_norm_(reference.parameters(), 1.0, float("inf"))
    # The reference still holds the clipped gradients of its last step, and so does the sharded model.
    torch.testing.assert_close(model.clip_grad_norm_(1.0, float("inf")), expected)


@pytest.mark.parametrize(
    ("shape", "style", "strategy"),
    [
        ((2, 2), "tensor", "FULL_SHARD"),
        ((2, 2), "sequence", "FULL_SHARD"),
        ((2, 1, 2), "tensor", "HYBRID_SHARD"),
        ((2, 2, 1), "sequence", "HYBRID_SHARD"),
    ],
)
def test_gradient_norms_are_those_of_one_process(pool: Pool, shape: tuple[int, ...], style: str, strategy: str) -> None:
    pool.run(clipped, 4, shape, style, strategy)


def refused(rank: int, world_size: int) -> None:
    """Worker: meshes that cannot be meant; nothing is touched."""
    mesh = build_mesh((2, 2))
    group = mesh["dp"].get_group()
    # torch hands out equal meshes for each other, so those of other roots get other names.
    cube = init_device_mesh(DEVICE.type, (2, 1, 2), mesh_dim_names=("replicate", "shard", "model"))
    turned = init_device_mesh(DEVICE.type, (2, 2), mesh_dim_names=("tp", "dp"))
    alone = init_device_mesh(DEVICE.type, (4,), mesh_dim_names=("all",))
    part = DeviceMesh.from_group(group, DEVICE.type)
    hybrid, none = ShardingStrategy.HYBRID_SHARD, ShardingStrategy.NO_SHARD
    cases: list[tuple[DeviceMesh, dict[str, Any], type[Exception], str]] = [
        (mesh, {}, ValueError, r"blocks\.0\.up\.weight .* \(tp=2\), so device_mesh must define.*mesh\['dp'\]"),
        (mesh, {"process_group": group}, ValueError, r"device_mesh, not process_group, must define.*mesh\['dp'\]"),
        (mesh, {"device_mesh": mesh["tp"]}, ValueError, r"the same ranks.*Pass device_mesh=mesh\['dp'\] of the mesh"),
        (mesh, {"device_mesh": part}, ValueError, r"not part of the same mesh.*Build one mesh"),
        (mesh, {"device_mesh": mesh, "sharding_strategy": hybrid}, ValueError, r"the same ranks.*Build one mesh"),
        (mesh, {"device_mesh": mesh["dp"], "sharding_strategy": none}, NotImplementedError, "Use HYBRID_SHARD on"),
        (turned, {"device_mesh": turned}, ValueError, r"the same ranks.*device_mesh=mesh\['dp'\]"),
        (alone, {}, ValueError, r"Build one mesh, init_device_mesh\(device, \(ranks, tp\)"),
        (alone, {"device_mesh": alone}, ValueError, r"the same ranks.*Build one mesh"),
        (cube, {"device_mesh": cube}, ValueError, r"only the first dimension of device_mesh \(replicate=2, shard=1"),
        (cube, {"device_mesh": cube, "sharding_strategy": hybrid}, ValueError, "ndim=2 but got 3"),
        (cube, {"sharding_strategy": hybrid}, ValueError, r"device_mesh=mesh\['replicate', 'shard'\] of the mesh"),
    ]
    for whole, keywords, error, message in cases:
        model = tensor_parallel(Mlps(), whole[{cube: "model", alone: "all"}.get(whole, "tp")])
        before = dict(model.named_parameters())
        with pytest.raises(error, match=message):
            FSDP(model, device_id=DEVICE, auto_wrap_policy=ModuleWrapPolicy({Mlp}), **keywords)
        assert all(param is before[name] for name, param in model.named_parameters())


@needs_torch("2.10", "tensor parallelism along the outer dimension of a mesh")
def test_meshes_that_do_not_fit_tensor_parallelism_are_refused(pool: Pool) -> None:
    pool.run(refused, 4)


def uneven(rank: int, world_size: int) -> None:
    """Worker: as on a torch that misplaces uneven parts. Rows cut by both, and those alone, have to be even."""
    mesh = build_mesh((2, 2))
    with mock.patch.object(fsdp_compat.planning.tensor_parallel, "HAS_UNEVEN_STRIDES", False):
        with pytest.raises(
            NotImplementedError, match=r"blocks\.0\.up\.weight has 10 rows, not a multiple of the 4 ranks"
        ):
            FSDP(tensor_parallel(Mlps(10), mesh["tp"]), **arguments(mesh["dp"]))
        FSDP(tensor_parallel(Mlps(12), mesh["tp"]), **arguments(mesh["dp"]))


def test_uneven_parts_are_refused_where_torch_misplaces_them(pool: Pool) -> None:
    pool.run(uneven, 4)


def wrong_order(rank: int, world_size: int) -> None:
    """Worker: tensor parallelism after sharding, which under FSDP1 silently does nothing."""
    mesh = build_mesh((2, 2))
    # On torch 2.6 torch's own error is the first.
    other_mesh = r"|Cannot distribute a DTensor with device mesh" if Version("2.8") > TORCH else ""
    for style in STYLES.values():
        model = FSDP(Mlps(), **arguments(mesh["dp"]))
        wanted = rf"tensor parallelism comes before FSDP: call parallelize_module{other_mesh}"
        with pytest.raises((RuntimeError, ValueError), match=wanted):
            style(model, mesh["tp"])
    model = FSDP(Mlps(), **arguments(mesh["dp"]))
    # SequenceParallel of torch 2.6 wraps what is sharded, and the first forward fails.
    wrapped = r"|exceeds dimension size" if Version("2.8") > TORCH else ""
    with pytest.raises(RuntimeError, match=rf"tensor parallelism comes before FSDP{wrapped}"):
        parallelize_module(model.blocks[0], mesh["tp"], {"norm": SequenceParallel()})
        loss_of(model, rank // 2, 0)


def test_tensor_parallelism_after_sharding_is_an_error(pool: Pool) -> None:
    pool.run(wrong_order, 4)


def optimizer_first(rank: int, world_size: int, style: str, how: str) -> None:
    """Worker: an optimizer that has stepped on the tensor-parallel model goes on training it under FSDP."""
    mesh = build_mesh((2, 2))
    models = [STYLES[style](Mlps().to(DEVICE), mesh["tp"]) for _ in range(2)]
    optimizers = [optimizer_of(model) for model in models]
    for model, optimizer in zip(models, optimizers, strict=True):
        # The same data on all ranks, since nothing averages gradients yet.
        train(model, 0, optimizer, range(1))
    keywords = arguments(mesh["dp"])
    if how == "at once":
        FSDP(models[0], **keywords)
    else:
        shard(models[0], **{**keywords, "use_orig_params": False})
        loss_of(models[0], 0, 1).backward()
        with pytest.raises(RuntimeError, match="was built before the model was sharded"):
            optimizers[0].step()
        relink_optimizer(optimizers[0], models[0])
        optimizers[0].zero_grad()
    for model, optimizer in zip(models, optimizers, strict=True):
        train(model, 0, optimizer, range(1, 3))
    weights = [full(dict(model.named_parameters())) for model in models]
    for name, weight in weights[1].items():
        torch.testing.assert_close(weights[0][name], weight, rtol=1e-5, atol=1e-6)
    for param in models[0].parameters():
        state = optimizers[0].state[param]["exp_avg"]
        assert isinstance(param, DTensor)
        assert isinstance(state, DTensor)
        assert state.placements == param.placements
        assert state.to_local().shape == param.to_local().shape


@pytest.mark.parametrize("how", ["at once", "later"])
@pytest.mark.parametrize("style", STYLES)
def test_an_optimizer_built_before_goes_on(pool: Pool, style: str, how: str) -> None:
    pool.run(optimizer_first, 4, style, how)


def gathered_in_optimizer(rank: int, world_size: int) -> None:
    """Worker: an optimizer built on gathered tensor-parallel parameters, which are DTensors too, is found out."""
    mesh = build_mesh((2, 2))
    model = FSDP(STYLES["sequence"](Mlps(), mesh["tp"]), **arguments(mesh["dp"], "SHARD_GRAD_OP"))
    loss = loss_of(model, 0, 0)
    optimizer = optimizer_of(model)
    loss.backward()
    with pytest.raises(RuntimeError, match="has gathered copies of parameters"):
        optimizer.step()


def test_an_optimizer_of_gathered_parameters_is_refused(pool: Pool) -> None:
    pool.run(gathered_in_optimizer, 4)
