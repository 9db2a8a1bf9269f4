"""What FSDP1 saved, resumed by the rewritten program: equal to an unsharded run that never stopped.

Each form of saving and loading runs in two process groups: FSDP1 trains two steps and saves, the rewritten program
loads and trains two more. The oracle trains all four in one process, on the averaged gradients of both ranks; FSDP1
itself is no oracle for states on the CPU.
"""

from __future__ import annotations

import copy
import textwrap
from pathlib import Path
from typing import Any

import pytest

from fsdp_rules.settings import Settings
from tests.parity.compare import differ
from tests.parity.cpu import fsdp1_on_cpu
from tests.parity.harness import rewritten
from tests.pool import Pool

#: FSDP1 resets the optimizer where a load fills the state of a fresh one (FSDP313); what is compared here is not reset.
RESUMED = Settings(ignore=("FSDP313",))
MODEL = """\
import torch
import torch.nn as nn


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(5, 5)
        self.norm = nn.LayerNorm(5)

    def forward(self, x):
        return x + torch.tanh(self.norm(self.linear(x)))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([Layer() for _ in range(2)])
        self.head = nn.Linear(5, 3)
        self.register_buffer("seen", torch.zeros(2))

    def forward(self, x):
        self.seen += 1
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def batch(rank, step):
    return torch.randn(4, 5, generator=torch.Generator().manual_seed(100 * rank + step))


def groups(model, by_name=True):
    if not by_name:
        return [{"params": list(model.parameters()), "weight_decay": 0.1}]
    plain = [p for n, p in model.named_parameters() if "norm" in n or n.endswith("bias")]
    decayed = [p for n, p in model.named_parameters() if not ("norm" in n or n.endswith("bias"))]
    return [{"params": decayed, "weight_decay": 0.1}, {"params": plain, "weight_decay": 0.0, "lr": 0.02}]
"""
PROGRAM = """\
import sys

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.optimizer import load_sharded_optimizer_state_dict
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import FullOptimStateDictConfig, FullStateDictConfig, ShardedStateDictConfig, StateDictType
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

from model import Layer, Net, batch, groups


{save}


{load}


def main(phase, path):
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0 if phase == "save" else 7)
    model = FSDP(
        Net(), auto_wrap_policy=ModuleWrapPolicy({{Layer}}), device_id=torch.device("cpu"), use_orig_params={original}
    )
    optimizer = torch.optim.AdamW(groups(model, {original}), lr=0.05 if phase == "save" else 0.5)
    if phase == "resume":
        load(model, optimizer, path)
    losses = []
    for step in range(2) if phase == "save" else range(2, 4):
        optimizer.zero_grad()
        loss = model(batch(rank, step)).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    if phase == "save":
        save(model, optimizer, path)
        dist.barrier()
    else:
        with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT):
            weights = model.state_dict()
            state = FSDP.optim_state_dict(model, optimizer)
        history = [None] * dist.get_world_size()
        dist.all_gather_object(history, losses)
        if rank == 0:
            torch.save({{"losses": history, "weights": weights, "optimizer": state}}, path + "/result.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
"""
#: The forms that real code has, as (save, load).
FORMS = {
    "full on rank 0, the optimizer scattered": (
        """
        def save(model, optimizer, path):
            config = FullStateDictConfig(offload_to_cpu=True, rank0_only=True)
            with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, config):
                state = model.state_dict()
            optim = FSDP.full_optim_state_dict(model, optimizer)
            if dist.get_rank() == 0:
                torch.save(state, path + "/model.pt")
                torch.save(optim, path + "/optim.pt")
        """,
        """
        def load(model, optimizer, path):
            with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT):
                model.load_state_dict(torch.load(path + "/model.pt"))
            full = torch.load(path + "/optim.pt") if dist.get_rank() == 0 else None
            sharded = FSDP.scatter_full_optim_state_dict(full, model, optim=optimizer)
            optimizer.load_state_dict(sharded)
        """,
    ),
    "full on every rank, outside of any context": (
        """
        def save(model, optimizer, path):
            state = {"model": model.state_dict(), "optim": FSDP.full_optim_state_dict(model, optimizer)}
            if dist.get_rank() == 0:
                torch.save(state, path + "/checkpoint.pt")
        """,
        """
        def load(model, optimizer, path):
            checkpoint = torch.load(path + "/checkpoint.pt")
            model.load_state_dict(checkpoint["model"])
            optimizer.load_state_dict(FSDP.shard_full_optim_state_dict(checkpoint["optim"], model, optim=optimizer))
        """,
    ),
    "one context for both": (
        """
        def save(model, optimizer, path):
            with FSDP.state_dict_type(
                model, StateDictType.FULL_STATE_DICT, FullStateDictConfig(), FullOptimStateDictConfig(rank0_only=True)
            ):
                state, optim = model.state_dict(), FSDP.optim_state_dict(model, optimizer)
            if dist.get_rank() == 0:
                torch.save((state, optim), path + "/checkpoint.pt")
        """,
        """
        def load(model, optimizer, path):
            state, optim = torch.load(path + "/checkpoint.pt", weights_only=False)
            with FSDP.state_dict_type(
                model, StateDictType.FULL_STATE_DICT, FullStateDictConfig(), FullOptimStateDictConfig(rank0_only=False)
            ):
                model.load_state_dict(state)
                optimizer.load_state_dict(FSDP.optim_state_dict_to_load(model, optimizer, optim))
        """,
    ),
    "the arguments in the order of torch 2.0": (
        """
        def save(model, optimizer, path):
            context = FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT)
            with context:
                state, optim = model.state_dict(), FSDP.optim_state_dict(model, optimizer)
            if dist.get_rank() == 0:
                torch.save({"model": state, "optim": optim}, path + "/checkpoint.pt")
        """,
        """
        def load(model, optimizer, path):
            checkpoint = torch.load(path + "/checkpoint.pt")
            with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT):
                model.load_state_dict(checkpoint["model"])
                optim = FSDP.optim_state_dict_to_load(checkpoint["optim"], model, optimizer)
            optimizer.load_state_dict(optim)
        """,
    ),
    "sharded by torch.distributed.checkpoint": (
        """
        def save(model, optimizer, path):
            FSDP.set_state_dict_type(model, StateDictType.SHARDED_STATE_DICT)
            state = {"model": model.state_dict(), "optim": FSDP.optim_state_dict(model, optimizer)}
            dcp.save(state, checkpoint_id=path + "/dcp")
        """,
        """
        def load(model, optimizer, path):
            with FSDP.state_dict_type(model, StateDictType.SHARDED_STATE_DICT):
                state = {"model": model.state_dict(), "optim": FSDP.optim_state_dict(model, optimizer)}
                dcp.load(state, checkpoint_id=path + "/dcp")
                model.load_state_dict(state["model"])
                optim = FSDP.optim_state_dict_to_load(model, optimizer, state["optim"])
                optimizer.load_state_dict(optim)
        """,
    ),
    "sharded by the first names of torch.distributed.checkpoint": (
        """
        def save(model, optimizer, path):
            with FSDP.state_dict_type(model, StateDictType.SHARDED_STATE_DICT, ShardedStateDictConfig()):
                state = {"model": model.state_dict(), "optim": FSDP.optim_state_dict(model, optimizer)}
                dcp.save_state_dict(state_dict=state, storage_writer=FileSystemWriter(path + "/dcp"))
        """,
        """
        def load(model, optimizer, path):
            reader = FileSystemReader(path + "/dcp")
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
    ),
}


@pytest.mark.parametrize("original", [True, False], ids=["original parameters", "flat parameters"])
@pytest.mark.parametrize("form", FORMS)
def test_the_rewritten_program_resumes(pool: Pool, tmp_path: Path, form: str, original: bool) -> None:
    """All parameters of a flat one have one step counter in what FSDP1 saves; each has its own in what resumes."""
    import torch

    save, load = (textwrap.dedent(text).strip("\n") for text in FORMS[form])
    source = PROGRAM.format(save=save, load=load, original=original)
    (tmp_path / "model.py").write_text(MODEL)
    for phase, text in (("save", source), ("resume", rewritten(source, RESUMED))):
        script = tmp_path / f"{phase}.py"
        script.write_text(text)
        pool.run_script(script, 2, [phase, str(tmp_path)], prelude=fsdp1_on_cpu if phase == "save" else None)
    resumed = torch.load(tmp_path / "result.pt", weights_only=True)
    (expected,) = pool.run(oracle, 1, original)
    assert list(differ(form, _in_lists(expected), _in_lists(resumed))) == []


def oracle(rank: int, world_size: int, by_name: bool) -> dict[str, Any]:
    """Worker: four steps without sharding; both ranks' last two losses, the weights and the optimizer's state.

    On a worker like the others, since a process with more threads adds up in another order.
    """
    import torch

    names: dict[str, Any] = {}
    exec(compile(MODEL, "model.py", "exec"), names)
    torch.manual_seed(0)
    model = names["Net"]()
    optimizer = torch.optim.AdamW(names["groups"](model, by_name), lr=0.05)
    losses: list[list[float]] = [[], []]
    for step in range(4):
        gradients = []
        for part in (0, 1):
            replica = copy.deepcopy(model)
            loss = replica(names["batch"](part, step)).square().mean()
            loss.backward()
            gradients.append([param.grad for param in replica.parameters()])
            losses[part].append(loss.item())
        model.seen += 1
        for param, first, second in zip(model.parameters(), *gradients, strict=True):
            param.grad = (first + second) / 2
        optimizer.step()
    known = {param: name for name, param in model.named_parameters()}
    return {
        "losses": [each[2:] for each in losses],
        "weights": dict(model.state_dict()),
        "optimizer": {
            "state": {known[param]: dict(state) for param, state in optimizer.state.items()},
            "param_groups": [
                {**group, "params": [known[param] for param in group["params"]]} for group in optimizer.param_groups
            ],
        },
    }


def _in_lists(value: Any) -> Any:
    """Names in the order of the alphabet and tuples as lists: neither means anything in a state that goes by name."""
    if isinstance(value, dict):
        return {key: _in_lists(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return sorted(value) if value and isinstance(value[0], str) else [_in_lists(item) for item in value]
    return value
