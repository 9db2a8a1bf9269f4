"""States that a program keeps while it trains on: FSDP1's are copies, FSDP2's are the live tensors."""

from __future__ import annotations

from pathlib import Path

import pytest

from fsdp_rules.settings import Settings
from tests.parity.trees import rewrite_tree, train_tree, tree
from tests.pool import Pool

HEAD = """\
import queue
import sys
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardingStrategy, StateDictType
from torch.distributed.fsdp import FullOptimStateDictConfig, FullStateDictConfig
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from common import CPU, Block, Net, data, finish, note, start

def fit(model, optimizer, steps):
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model(data()).square().mean()
        loss.backward()
        optimizer.step()
        note(loss)
"""
SHARDED = "FSDP.state_dict_type(model, StateDictType.SHARDED_STATE_DICT)"
ON_CPU = (
    "FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, FullStateDictConfig(rank0_only=False),"
    " FullOptimStateDictConfig(offload_to_cpu=True, rank0_only=False))"
)


def main(body: str, above: str = "", strategy: str = "FULL_SHARD") -> str:
    lines = "\n".join(f"    {line}" for line in body.strip("\n").split("\n"))
    return f"""{HEAD}{above}

def main():
    rank = start()
    model = FSDP(
        Net(), auto_wrap_policy=ModuleWrapPolicy({{Block}}), device_id=CPU, use_orig_params=True,
        sharding_strategy=ShardingStrategy.{strategy}
    )
    torch.manual_seed(10 + rank)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    fit(model, optimizer, 2)
{lines}
    fit(model, optimizer, 2)
    finish(sys.argv[1])


if __name__ == "__main__":
    main()
"""


MODEL = f"""
with {{kind}}:
    {{kept}}
fit(model, optimizer, 2)
with {SHARDED}:
    model.load_state_dict({{state}})
"""
OPTIMIZER = """
with {kind}:
    best = FSDP.optim_state_dict(model, optimizer)
fit(model, optimizer, 2)
with {kind}:
    optimizer.load_state_dict(FSDP.optim_state_dict_to_load(model, optimizer, best))
"""
PROGRAMS = {
    "a name": main(MODEL.format(kind=SHARDED, kept="best = model.state_dict()", state="best")),
    "under NO_SHARD": main(
        MODEL.replace(SHARDED, "{kind}").format(
            kind=SHARDED.replace("SHARDED", "FULL"), kept="best = {'model': model.state_dict()}", state="best['model']"
        ),
        strategy="NO_SHARD",
    ),
    "a queue": main(
        MODEL.format(kind=SHARDED, kept="states.put(model.state_dict())", state="states.get()"),
        "states = queue.Queue()\n",
    ),
    "what a function returns": main(
        MODEL.format(kind="torch.no_grad()", kept="best = taken(model)", state="best"),
        f"def taken(model):\n    with {SHARDED}:\n        return model.state_dict()\n",
    ),
    "an attribute, a round later": main(
        f"""
keeper = Keeper()
for number in range(4):
    fit(model, optimizer, 1)
    if number == 1:
        with {SHARDED}:
            keeper.best = model.state_dict()
with {SHARDED}:
    model.load_state_dict(keeper.best)
""",
        "class Keeper:\n    best = None\n",
    ),
    "a name in a loop": main(
        f"""
for number in range(4):
    fit(model, optimizer, 1)
    if number == 1:
        with {SHARDED}:
            best = model.state_dict()
    if number == 3:
        with {SHARDED}:
            model.load_state_dict(best)
"""
    ),
    "sharded optimizer states": main(OPTIMIZER.format(kind=SHARDED)),
    "full optimizer states": main(OPTIMIZER.format(kind=SHARDED.replace("SHARDED", "FULL"))),
    "full optimizer states on the CPU": main(OPTIMIZER.format(kind=ON_CPU)),
    "full optimizer states on rank 0": main(
        OPTIMIZER.replace("FSDP.optim_state_dict_to_load(model, optimizer, best)", "{loaded}").format(
            kind=ON_CPU.replace("False", "True"),
            loaded="FSDP.optim_state_dict_to_load(model, optimizer, best if rank == 0 else {})",
        )
    ),
    "the old names": main("""
best = FSDP.full_optim_state_dict(model, optimizer, rank0_only=False)
fit(model, optimizer, 2)
optimizer.load_state_dict(FSDP.shard_full_optim_state_dict(best, model))
"""),
}

COUNTED = """
class Counted(Net):
    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        return super().forward(x) * (1 + 0.1 * self.calls)

"""
#: FSDP1's states share buffers with the model, so that loading a kept one does not bring them back.
PROGRAMS["with buffers"] = main(
    MODEL.format(kind=SHARDED, kept="best = {'model': model.state_dict()}", state="best['model']"), COUNTED
).replace(" Net(),", " Counted(),")


@pytest.mark.parametrize("name", PROGRAMS)
def test_it_loads_what_it_kept(name: str, pool: Pool, tmp_path: Path) -> None:
    files = tree(train=PROGRAMS[name])
    after = rewrite_tree(files)
    assert after.manual() == []
    before = train_tree(pool, files, tmp_path / "before", fsdp1=True)
    assert train_tree(pool, after.files, tmp_path / "after") == before


#: Under NO_SHARD FSDP1's state of an optimizer is whole, and the tensors of that, whatever its type.
LIVE = {
    "full": OPTIMIZER.format(kind=SHARDED.replace("SHARDED", "FULL")),
    "sharded": OPTIMIZER.format(kind=SHARDED),
    "full by the old names": """
best = FSDP.full_optim_state_dict(model, optimizer, rank0_only=False)
fit(model, optimizer, 2)
optimizer.load_state_dict(FSDP.shard_full_optim_state_dict(best, model))
""",
    "sharded by the old names": """
best = {"optim": FSDP.sharded_optim_state_dict(model, optimizer)}
fit(model, optimizer, 2)
optimizer.load_state_dict(FSDP.flatten_sharded_optim_state_dict(best["optim"], model, optimizer))
""",
}


@pytest.mark.parametrize("name", LIVE)
def test_a_state_of_what_is_not_sharded_that_is_loaded_again_is_left_to_a_human(
    name: str, pool: Pool, tmp_path: Path
) -> None:
    files = tree(train=main(LIVE[name], strategy="NO_SHARD"))
    (left,) = rewrite_tree(files).manual()
    assert "under NO_SHARD, FSDP1's state shares tensors" in left
    under_shim = rewrite_tree(files, Settings(to="shim"))
    assert under_shim.manual() == []
    before = train_tree(pool, files, tmp_path / "before", fsdp1=True)
    assert train_tree(pool, under_shim.files, tmp_path / "after") == before


def test_a_state_of_what_is_not_sharded_that_is_kept_has_its_assumption() -> None:
    kept = tree(train=main("best = [FSDP.optim_state_dict(model, optimizer)]\nnote.best = best", strategy="NO_SHARD"))
    assert any("assuming it is not loaded in this run" in one.message for one in rewrite_tree(kept).findings)


#: What is done with a state before the next step needs no copy.
AT_ONCE = {
    "torch.save": "torch.save(model.state_dict(), 'x.pt')",
    "a name": "state = model.state_dict()\n    if note:\n        torch.save({'model': state}, 'x.pt')",
    "a dictionary": "state = {}\n    state['model'] = model.state_dict()\n    torch.save(state, 'x.pt')",
    "read in place": "state = {0: model.state_dict()}\n    dcp.load(state)\n    model.load_state_dict(state[0])",
    "a function of this file": "written(model.state_dict())",
    "a function by its name": "storage.save_sharded(model.state_dict())",
}


@pytest.mark.parametrize("done", AT_ONCE)
def test_what_is_done_with_it_at_once_gets_no_copy(done: str) -> None:
    body = f"""
import torch.distributed.checkpoint as dcp
FSDP.set_state_dict_type(model, StateDictType.SHARDED_STATE_DICT)
for number in range(2):
    fit(model, optimizer, 1)
    {AT_ONCE[done]}
"""
    above = "import storage\n\ndef written(state):\n    if len(state):\n        torch.save(state, 'x.pt')\n"
    after = rewrite_tree(tree(train=main(body, above)))
    assert "copy" not in after.files["train.py"]
    assert "get_model_state_dict(model)" in after.files["train.py"]
