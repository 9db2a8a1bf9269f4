"""Writes the FSDP1 program of a combination: it trains, saves by its own code and goes on, or loads and goes on."""

from __future__ import annotations

import textwrap

from tests.parity.specs import Spec

#: Steps before the checkpoint, and after it.
BEFORE, AFTER = 2, 5

_IMPORTS = """\
import sys

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.optimizer import load_sharded_optimizer_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import (
    FullOptimStateDictConfig,
    FullStateDictConfig,
    MixedPrecision,
    ShardingStrategy,
    StateDictType,
)
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

import nets
from tests.resume import observed
"""

SAVES = {
    "full": """
        with FSDP.state_dict_type(
            model,
            StateDictType.FULL_STATE_DICT,
            FullStateDictConfig(offload_to_cpu=True, rank0_only=True),
            FullOptimStateDictConfig(offload_to_cpu=True, rank0_only=True),
        ):
            state = {"model": model.state_dict(), "optim": FSDP.optim_state_dict(model, optimizer)}
        if dist.get_rank() == 0:
            torch.save(state, path + "/checkpoint.pt")
    """,
    "full by the old names": """
        with FSDP.state_dict_type(
            model, StateDictType.FULL_STATE_DICT, FullStateDictConfig(offload_to_cpu=True, rank0_only=True)
        ):
            weights = model.state_dict()
        optim = FSDP.full_optim_state_dict(model, optimizer)
        if dist.get_rank() == 0:
            torch.save({"model": weights, "optim": optim}, path + "/checkpoint.pt")
    """,
    "sharded folder": """
        with FSDP.state_dict_type(model, StateDictType.SHARDED_STATE_DICT):
            state = {"model": model.state_dict(), "optim": FSDP.optim_state_dict(model, optimizer)}
        dcp.save(state, checkpoint_id=path + "/checkpoint")
    """,
    "sharded folder by the first names": """
        with FSDP.state_dict_type(model, StateDictType.SHARDED_STATE_DICT):
            state = {"model": model.state_dict(), "optim": FSDP.optim_state_dict(model, optimizer)}
            dcp.save_state_dict(state_dict=state, storage_writer=dcp.FileSystemWriter(path + "/checkpoint"))
    """,
    "sharded files": """
        with FSDP.state_dict_type(model, StateDictType.SHARDED_STATE_DICT):
            state = {"model": model.state_dict(), "optim": FSDP.sharded_optim_state_dict(model, optimizer)}
        torch.save(state, path + f"/checkpoint/rank_{dist.get_rank()}.pt")
    """,
    "local": """
        with FSDP.state_dict_type(model, StateDictType.LOCAL_STATE_DICT):
            state = {"model": model.state_dict(), "optim": optimizer.state_dict()}
        torch.save(state, path + f"/checkpoint/rank_{dist.get_rank()}.pt")
    """,
    "raw": """
        with FSDP.state_dict_type(
            model, StateDictType.FULL_STATE_DICT, FullStateDictConfig(offload_to_cpu=True, rank0_only=True)
        ):
            weights = model.state_dict()
        if dist.get_rank() == 0:
            torch.save(weights, path + "/model.pt")
        torch.save(optimizer.state_dict(), path + f"/checkpoint/optim_{dist.get_rank()}.pt")
    """,
}
LOADS = {
    "full": """
        state = torch.load(path + "/checkpoint.pt")
        with FSDP.state_dict_type(
            model, StateDictType.FULL_STATE_DICT, FullStateDictConfig(), FullOptimStateDictConfig()
        ):
            model.load_state_dict(state["model"])
            optim = FSDP.optim_state_dict_to_load(model, optimizer, state["optim"])
        optimizer.load_state_dict(optim)
    """,
    "full by the old names": """
        state = torch.load(path + "/checkpoint.pt")
        model.load_state_dict(state["model"])
        full = state["optim"] if dist.get_rank() == 0 else None
        optimizer.load_state_dict(FSDP.scatter_full_optim_state_dict(full, model, optim=optimizer))
    """,
    "sharded folder": """
        with FSDP.state_dict_type(model, StateDictType.SHARDED_STATE_DICT):
            state = {"model": model.state_dict(), "optim": FSDP.optim_state_dict(model, optimizer)}
            dcp.load(state, checkpoint_id=path + "/checkpoint")
            model.load_state_dict(state["model"])
            optim = FSDP.optim_state_dict_to_load(model, optimizer, state["optim"])
        optimizer.load_state_dict(optim)
    """,
    "sharded folder by the first names": """
        reader = dcp.FileSystemReader(path + "/checkpoint")
        with FSDP.state_dict_type(model, StateDictType.SHARDED_STATE_DICT):
            state = {"model": model.state_dict()}
            dcp.load_state_dict(state_dict=state, storage_reader=reader)
            model.load_state_dict(state["model"])
            optim = load_sharded_optimizer_state_dict(
                model_state_dict=state["model"], optimizer_key="optim", storage_reader=reader
            )
            flattened = FSDP.optim_state_dict_to_load(model, optimizer, optim["optim"])
        optimizer.load_state_dict(flattened)
    """,
    "sharded files": """
        state = torch.load(path + f"/checkpoint/rank_{dist.get_rank()}.pt", weights_only=False)
        with FSDP.state_dict_type(model, StateDictType.SHARDED_STATE_DICT):
            model.load_state_dict(state["model"])
        optimizer.load_state_dict(FSDP.flatten_sharded_optim_state_dict(state["optim"], model, optimizer))
    """,
    "local": """
        state = torch.load(path + f"/checkpoint/rank_{dist.get_rank()}.pt", weights_only=False)
        with FSDP.state_dict_type(model, StateDictType.LOCAL_STATE_DICT):
            model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optim"])
    """,
    "raw": """
        with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT):
            model.load_state_dict(torch.load(path + "/model.pt"))
        optimizer.load_state_dict(torch.load(path + f"/checkpoint/optim_{dist.get_rank()}.pt"))
    """,
    "printed": """
        observed.load_as_printed(model, optimizer, path)
    """,
}
_NETS = {
    "tied": "nets.tied()",
    "ignored": "nets.Net(first=nets.Scaled)",
    "uneven": "nets.Net(width=5, inner=3, out=1)",
    "pure bf16": "nets.Net().to(torch.bfloat16)",
    "buffers": "nets.Net(first=nets.Counting)",
    "extra state": "nets.Net(first=lambda width: nets.Remembering())",
}
_ARGUMENTS = {
    "ignored": "ignored_modules=[net.first]",
    "bf16": "mixed_precision=MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)",
    "meta": "param_init_fn=nets.initialise",
}
_OPTIMIZERS = {
    "adamw": "torch.optim.AdamW({params}, lr=0.01, foreach=True)",
    "fused adamw": "torch.optim.AdamW({params}, lr=0.01, weight_decay=0.1, fused=True)",
    "amsgrad": "torch.optim.Adam({params}, lr=torch.tensor(0.01), amsgrad=True)",
    "sgd": "torch.optim.SGD({params}, lr=0.01, momentum=0.9, nesterov=True)",
    "adagrad": "torch.optim.Adagrad({params}, lr=0.01, lr_decay=0.1)",
    "rmsprop": "torch.optim.RMSprop({params}, lr=0.01, momentum=0.5, centered=True)",
    "nadam": "torch.optim.NAdam({params}, lr=0.01)",
    "quantised": "nets.Quantised({params}, lr=0.01)",
    "other shapes": "nets.Shaped({params}, lr=0.01)",
}
_SCHEDULERS = {
    "cosine": "torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=6)",
    "one cycle": ("torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.02, total_steps=10, cycle_momentum=False)"),
    "warm-up": "torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 5))",
}
#: What is in the checkpoint beside model and optimizer, and the statement that takes it up again.
_KEPT = {
    **{name: {"scheduler": "scheduler.state_dict()"} for name in _SCHEDULERS},
    "scaler": {"scaler": "scaler.state_dict()"},
    "random": {"random": "torch.get_rng_state()"},
}
_RESTORED = {
    **dict.fromkeys(_SCHEDULERS, 'scheduler.load_state_dict(rest["scheduler"])'),
    "scaler": 'scaler.load_state_dict(rest["scaler"])',
    "random": 'torch.set_rng_state(rest["random"])',
}
_FROZEN = {
    "frozen": "for layer in net.layers:\n    layer.requires_grad_(False)",
    "ignored": "net.first.requires_grad_(False)",
}


def program(spec: Spec, load: str | None = None) -> str:
    """The text of the program of ``spec``; ``load`` is another form that it loads by, and then it saves nothing.

    Its arguments are ``save`` or ``resume``, the folder of the checkpoint, and the file of the results.
    """
    save = _body(SAVES[spec["form"]]) if load is None else "    raise NotImplementedError"
    parts = [
        _IMPORTS,
        f"\ndef save(model, optimizer, path):\n{save}\n",
        f"\ndef load(model, optimizer, path):\n{_body(LOADS[load or spec['form']])}\n",
        f"\ndef main(phase, path, result):\n{textwrap.indent(_main(spec), '    ')}\n",
        '\nif __name__ == "__main__":\n    main(*sys.argv[1:])\n',
    ]
    return "\n".join(parts)


def _body(text: str) -> str:
    return textwrap.indent(textwrap.dedent(text).strip("\n"), "    ")


def _lines(*texts: str, by: int = 0) -> str:
    """The texts that are not empty, one below the other, indented by ``by``."""
    return textwrap.indent("\n".join(text for text in texts if text), " " * by)


def _main(spec: Spec) -> str:
    model, loop = spec["model"], spec["loop"]
    kept = {"step": "step"} | _KEPT.get(loop, {})
    rest = "{" + ", ".join(f'"{key}": {value}' for key, value in kept.items()) + "}"
    is_scaled = loop == "scaler"
    return _lines(
        'dist.init_process_group("gloo")',
        "rank, world_size = dist.get_rank(), dist.get_world_size()",
        'torch.manual_seed(0 if phase == "save" else 7)',
        _wrapped(spec),
        f"optimizer = {_optimizer(spec['optimizer'])}",
        f"scheduler = {_SCHEDULERS[loop]}" if loop in _SCHEDULERS else "",
        'scaler = ShardedGradScaler(device="cpu", init_scale=64.0, growth_interval=2)' if is_scaled else "",
        "first = 0",
        "torch.manual_seed(1)",
        'if phase == "resume":',
        _lines(
            "load(model, optimizer, path)",
            'rest = torch.load(path + "/rest.pt")',
            'first = rest["step"]',
            _RESTORED.get(loop, ""),
            "loaded = observed.whole(model, optimizer)",
            by=4,
        ),
        "losses = []",
        f"for step in range(first, {BEFORE + AFTER}):",
        _lines(
            f'if phase == "save" and step == {BEFORE}:',
            _lines(
                "save(model, optimizer, path)",
                "observed.describe_groups(model, optimizer, path)",
                f'if rank == 0:\n    torch.save({rest}, path + "/rest.pt")',
                "loaded = observed.whole(model, optimizer)",
                "losses = []",
                by=4,
            ),
            "optimizer.zero_grad()",
            "x = nets.batch(step, rank, world_size)",
            "x = x + torch.randn(8, 8).chunk(world_size)[rank]" if loop == "random" else "",
            "x = x.to(torch.bfloat16)" if model == "pure bf16" else "",
            "loss = model(x).square().mean()",
            "scaler.scale(loss).backward()\nscaler.step(optimizer)\nscaler.update()"
            if is_scaled
            else "loss.backward()\noptimizer.step()",
            "scheduler.step()" if loop in _SCHEDULERS else "",
            "losses.append(loss.item())",
            by=4,
        ),
        "history = [None] * world_size",
        "dist.all_gather_object(history, losses)",
        "ended = observed.whole(model, optimizer)",
        f'results = {{"losses": history, "loaded": loaded, "ended": ended, "rest": {rest}}}',
        "if rank == 0:\n    torch.save(results, result)",
        "dist.destroy_process_group()",
    )


def _wrapped(spec: Spec) -> str:
    """Statements that bind ``model``."""
    model = spec["model"]
    net = f"net = {_NETS.get(model, 'nets.Net()')}"
    arguments = [
        "net",
        "auto_wrap_policy=ModuleWrapPolicy({nets.Layer})",
        'device_id=torch.device("cpu")',
        f"use_orig_params={spec['original']}",
        _ARGUMENTS.get(model, ""),
    ]
    mesh = ""
    if spec["ranks"].startswith("4h"):
        mesh = 'mesh = init_device_mesh("cpu", (world_size // 2, 2), mesh_dim_names=("replicate", "shard"))'
        arguments += ["device_mesh=mesh", "sharding_strategy=ShardingStrategy.HYBRID_SHARD"]
    return _lines(
        f'with torch.device("meta"):\n    {net}' if model == "meta" else net,
        f"observed.describe(net, path{', net.first' if model == 'ignored' else ''})",
        _FROZEN.get(model, ""),
        mesh,
        "model = FSDP(",
        *(f"    {argument}," for argument in arguments if argument),
        ")",
    )


def _optimizer(name: str) -> str:
    trained = "[p for n, p in model.named_parameters() if p.requires_grad{}]"
    if name == "two groups":
        outside, inside = (trained.format(f' and "layers" {word} n') for word in ("not in", "in"))
        return f'torch.optim.AdamW([{{"params": {outside}, "weight_decay": 0.1}}, {{"params": {inside}}}], lr=0.01)'
    return _OPTIMIZERS[name].format(params=trained.format(""))
