"""The line of code that ``inspect`` prints, run on FSDP2 models: it loads what the run that saved had gathered."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from fsdp_migrate.checkpoints.convert.plan import Target
from fsdp_migrate.checkpoints.judge.judge import judge
from fsdp_migrate.checkpoints.judge.loading import OWNED, line, root_of_model, traps
from fsdp_migrate.checkpoints.read.checkpoint_parts import open_all
from tests.checkpoints import fsdp2
from tests.checkpoints.convert.converting import converted
from tests.checkpoints.written import expected
from tests.pool import Pool


def _load(rank: int, world_size: int, code: str) -> dict[str, Any]:
    """Run ``code`` on a fresh FSDP2 model and optimizer; the state that they then have, whole."""
    from torch.distributed.device_mesh import init_device_mesh

    model, optimizer = fsdp2.fresh(init_device_mesh("cpu", (world_size,)))
    fsdp2.load(code, model, optimizer)
    return fsdp2.gathered(model, optimizer)


@pytest.mark.parametrize(
    ("name", "ranks"),
    [
        ("sharded_orig_dcp", 2),
        ("sharded_flat_dcp", 2),
        ("sharded_orig_dcp", 4),
        ("mesh_dcp", 2),
        ("mesh", 2),
        ("fsdp2_dcp", 4),
        ("fsdp2", 2),
        ("ep0-ba2", 2),
        ("lightning", 2),
        ("full_orig.pt", 2),
    ],
)
def test_models_and_optimizers(name: str, ranks: int, two_ranks: Path, pool: Pool) -> None:
    (found,) = open_all(two_ranks / name)
    loaded = pool.run(_load, ranks, line(found))[0]
    wanted = _model_and_optimizer(expected(two_ranks, name))
    assert len(wanted) == 37
    for key, value in wanted.items():
        assert torch.equal(_at(loaded, key), value), key


@pytest.mark.parametrize("shards", [1, 2])
def test_safetensors(shards: int, two_ranks: Path, pool: Pool, tmp_path: Path) -> None:
    whole = {key[1]: value for key, value in expected(two_ranks, "full_orig.pt").items() if key[0] == "model"}
    names = sorted(whole)
    for number in range(shards):
        part = {name: whole[name].clone() for name in names[number::shards]}
        save_file(part, tmp_path / f"model-0000{number + 1}-of-0000{shards}.safetensors")
    (found,) = open_all(tmp_path)
    loaded = pool.run(_load, 2, line(found))[0]["model"]
    for name, value in whole.items():
        assert torch.equal(loaded[name], value), name


def _untied(world_size: int) -> Any:
    """A sharded model without tied parameters, which safetensors do not hold; one has fewer rows than ranks."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    return fully_shard(
        torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Linear(5, 1)), mesh=init_device_mesh("cpu", (world_size,))
    )


def _whole(model: Any) -> dict[str, Any]:
    return {name: value.full_tensor() for name, value in model.state_dict().items()}


def _saved_by_all(rank: int, world_size: int, folder: str) -> dict[str, Any]:
    """Save a model as safetensors, a file a rank; what it holds, whole."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_model_state_dict

    model = _untied(world_size)
    writer = dcp.HuggingFaceStorageWriter(path=folder, save_distributed=True)
    dcp.save(get_model_state_dict(model), storage_writer=writer)
    return _whole(model)


def _loaded_by_all(rank: int, world_size: int, code: str) -> dict[str, Any]:
    model = _untied(world_size)
    fsdp2.load(code, model, None)
    return _whole(model)


def test_safetensors_of_all_ranks(pool: Pool, tmp_path: Path) -> None:
    """As HuggingFaceStorageWriter leaves them: a name is in several files, so that one of them is not the tensor."""
    whole = pool.run(_saved_by_all, 2, str(tmp_path))[0]
    (found,) = open_all(tmp_path)
    assert len(found.found.files) == 2
    assert "sharded-safetensors" in [trap.name for trap in traps(found)]
    loaded = pool.run(_loaded_by_all, 2, line(found))[0]
    done = converted(tmp_path, tmp_path.parent / "whole.pt", Target.FULL)
    assert any("files of all ranks" in note for note in done.notes)
    written = torch.load(tmp_path.parent / "whole.pt")
    assert whole.keys() == loaded.keys() == written.keys()
    for name, value in whole.items():
        assert torch.equal(loaded[name], value), name
        assert torch.equal(written[name], value), name


@pytest.mark.parametrize(
    ("name", "shared"), [("full_flat.pt", True), ("full_orig.pt", False), ("sharded_flat_dcp", False)]
)
def test_a_step_that_parameters_share_is_found(name: str, shared: bool, two_ranks: Path) -> None:
    (found,) = open_all(two_ranks / name)
    assert ("FSDP408" in [finding.rule for finding in judge(found)]) is shared
    assert (OWNED in line(found)) is shared


@pytest.mark.parametrize("name", ["optimizer.pt", "rank_{}.pt"])
def test_a_state_of_another_name_that_parameters_share(name: str, tmp_path: Path) -> None:
    """NAdam's product of momenta is one tensor for a flat parameter too, in one file as in those of ranks."""
    for rank in range(2):
        product = torch.tensor(0.9)
        states = {key: {"exp_avg": torch.ones(2), "mu_product": product} for key in "ab"}
        saved = {"state": states, "param_groups": [{"params": ["a", "b"], "lr": 0.1}]}
        torch.save(saved, tmp_path / name.format(rank))
    (found,) = open_all(tmp_path)
    assert [finding.level.value for finding in judge(found) if finding.rule == "FSDP408"] == ["review"]
    assert line(found).endswith(OWNED)


def _model_and_optimizer(whole: dict[tuple[Any, ...], Any]) -> dict[tuple[Any, ...], torch.Tensor]:
    """The tensors under ``model`` and ``optim``, wherever the layout has put them."""
    found = {}
    for key, value in whole.items():
        if isinstance(value, torch.Tensor):
            root = "optim" if "state" in key[1:] or key[0] == "optim" else "model"
            start = key.index("state", 1) if root == "optim" else key.index("model") + 1
            found[(root, *key[start:])] = value.detach()
    return found


def _at(value: Any, key: tuple[Any, ...]) -> Any:
    for part in key:
        value = value[part]
    return value


def test_a_rate_that_is_a_tensor_is_not_a_model(tmp_path: Path) -> None:
    state = {"w": {"exp_avg": torch.ones(2, 2), "step": torch.tensor(1.0)}}
    groups = [{"params": ["w"], "lr": torch.tensor(0.1), "betas": (0.9, 0.99)}]
    torch.save({"state": state, "param_groups": groups}, tmp_path / "optim.pt")
    (found,) = open_all(tmp_path / "optim.pt")
    assert root_of_model(found.entries) is None
    assert "set_optimizer_state_dict" in line(found)
    assert "model_state_dict" not in line(found)


@pytest.mark.parametrize("names", [("exp_avg", "exp_avg_sq"), ("square_avg", "momentum_buffer", "grad_avg")])
def test_states_that_are_one_tensor(names: tuple[str, ...], tmp_path: Path) -> None:
    """As FSDP1 saves them on the CPU, where a copy to the CPU is none."""
    moment = torch.ones(2, 2)
    states = {"w": {**dict.fromkeys(names, moment), "step": torch.tensor(1.0)}}
    group = {"params": ["w"], "lr": 0.1}
    torch.save({"state": states, "param_groups": [group]}, tmp_path / "optimizer.pt")
    (found,) = open_all(tmp_path / "optimizer.pt")
    assert "shared-moments" in [trap.name for trap in traps(found)]
    assert "FSDP408" not in [finding.rule for finding in judge(found)]
    (said,) = (finding for finding in judge(found) if finding.rule == "FSDP407")
    assert f"({', '.join(names)}) are one tensor" in said.message
