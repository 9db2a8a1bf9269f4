"""Contexts of FSDP1 that a program stores, or puts on a stack, before a block enters them: trained both ways."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from tests.parity.compare import differ
from tests.parity.trees import rewrite_tree, train_tree, tree
from tests.pool import Pool

TRAIN = """\
import contextlib
import sys
import torch
from contextlib import nullcontext
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from common import CPU, Net, data, finish, note, start
{imports}

def step(net, optimizer, accum=3):
    for micro in range(accum):
        last = micro == accum - 1
        x = data()
{micro}
    optimizer.step()
    optimizer.zero_grad()


def main():
    rank = start()
    model = FSDP(Net(), device_id=CPU, use_orig_params=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    torch.manual_seed(10 + rank)
    for _ in range(3):
        step(model, optimizer)
    finish(sys.argv[1])


if __name__ == "__main__":
    main()
"""
LOSS = "loss = net(x).square().mean() / accum\nloss.backward()\nnote(loss)"


def program(opened: str, imports: str = "", **files: str) -> dict[str, str]:
    """Gradients accumulated in the block that ``opened`` ends with."""
    block = f"{opened}\n{textwrap.indent(LOSS, '    ')}"
    return tree(train=TRAIN.format(imports=imports, micro=textwrap.indent(block, "        ")), **files)


STACKED = """
with contextlib.ExitStack() as entered:
    if not last:
        entered.enter_context(net.no_sync())
    entered.enter_context(torch.enable_grad())"""
SPLIT = """
from contextlib import nullcontext as nothing

class Accumulates:
    def __init__(self, wrapped, accum):
        self.wrapped, self.accum = wrapped, accum

    def backward(self, micro, compute):
        held = self.wrapped.no_sync if micro + 1 < self.accum else nothing
        with torch.enable_grad(), held():
            compute()
"""
OWN = """
def main():
    rank = start()
    model = FSDP(Net(), device_id=CPU, use_orig_params=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    torch.manual_seed(10 + rank)
    for _ in range(3):
        for micro in range(3):
            quiet = getattr(model, "no_sync", nullcontext) if micro < 2 else nullcontext
            with quiet():
                loss = model(data()).square().mean() / 3
                loss.backward()
                note(loss)
        optimizer.step()
        optimizer.zero_grad()
    finish(sys.argv[1])
"""
ASKING = {"train.py": TRAIN.partition("def step")[0].format(imports="") + OWN.lstrip() + "\n\nmain()\n"}
FORMS = {
    "asked for with a default": {**program("with nullcontext():"), **ASKING},
    "branches": program("if not last:\n    context = net.no_sync()\nelse:\n    context = nullcontext()\nwith context:"),
    "an expression, beside another": program(
        "quiet = nullcontext() if last else net.no_sync()\nwith torch.enable_grad(), quiet:"
    ),
    "a method": program("maybe = net.no_sync if not last else contextlib.nullcontext\nwith maybe():"),
    "a lambda": program("hold = lambda: net.no_sync() if micro < 2 else nullcontext()\nwith hold():"),
    "an exit stack": program(STACKED.strip("\n")),
    "a class in another file": program(
        "def compute():",
        "from accumulating import Accumulates",
        accumulating=f"import torch\n{SPLIT}",
    ),
}
FORMS["a class in another file"]["train.py"] = FORMS["a class in another file"]["train.py"].replace(
    "            note(loss)\n", "            note(loss)\n        Accumulates(net, accum).backward(micro, compute)\n"
)
#: Another program of the same tree, which wraps its model with DDP and takes nothing of the first.
DDP = """
import torch
from torch.nn.parallel import DistributedDataParallel as DDP
from common import Net, data, start

def main():
    start()
    model = DDP(Net())
    with model.no_sync():
        model(data()).sum().backward()
"""
FORMS["beside a program for DDP"] = {**FORMS["branches"], "other.py": DDP.lstrip("\n")}


@pytest.mark.parametrize("files", FORMS.values(), ids=FORMS.keys())
def test_gradients_accumulate_the_same_without_a_helper(pool: Pool, tmp_path: Path, files: dict[str, str]) -> None:
    done = rewrite_tree(files)
    assert "no_sync" not in done.files["train.py"] + done.files.get("accumulating.py", "")
    assert done.files.get("other.py") == files.get("other.py")
    assert not any("fsdp_compat" in text for text in done.files.values())
    before = train_tree(pool, files, tmp_path / "before", fsdp1=True)
    after = train_tree(pool, done.files, tmp_path / "after")
    assert len(before[0]) == 9
    assert list(differ("losses", before, after)) == []


SAMPLE = """\
import contextlib
import sys
import torch
from contextlib import nullcontext
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from common import CPU, Net, data, finish, note, start
{imports}

class Sampler(Net):
    def generate(self, x, n):
        for _ in range(n):
            x = torch.cat([x, self(x[:, -6:])], dim=1)
        return x


def sample(net, kind, number):
    net.eval()
    tokens = torch.ones(2, 6)
    with torch.no_grad():
{block}
    net.train()
    note(tokens.double().sum())


def main():
    rank = start()
    plain = Sampler()
    model = FSDP(Sampler(), device_id=CPU, use_orig_params=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    torch.manual_seed(10 + rank)
    for number in range(4):
        loss = model(data()).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        note(loss)
        sample(plain, "none", 0)
        sample(model, "FSDP", number + 1)
    finish(sys.argv[1])


if __name__ == "__main__":
    main()
"""
GENERATED = "tokens = net.generate(tokens, 3)"


def sampling(opened: str, imports: str = "", **files: str) -> dict[str, str]:
    """Tokens that are sampled in the block that ``opened`` ends with."""
    block = f"{opened}\n    {GENERATED}"
    return tree(train=SAMPLE.format(imports=imports, block=textwrap.indent(block, "        ")), **files)


SAMPLERS = {
    "a lambda": sampling(
        'enter = lambda: (FSDP.summon_full_params(net, writeback=False, recurse=False) if "FS" in kind '
        "else contextlib.nullcontext())\nwith enter():"
    ),
    "a test above": sampling(
        "context = nullcontext()\nif number > 0:\n    context = FSDP.summon_full_params(net, writeback=False)\n"
        "with context:"
    ),
    "an expression above": sampling(
        "kept = nullcontext() if number == 0 else FSDP.summon_full_params(net, writeback=False)\nnumber = 2\nwith kept:"
    ),
    "a name": sampling("with FSDP.summon_full_params(net, writeback=False) if number else nullcontext():"),
    "a function of another file": sampling(
        "if True:",
        "from sampling import run",
        sampling="from contextlib import nullcontext as nothing\n"
        "from torch.distributed.fsdp import FullyShardedDataParallel\n\n\n"
        "def run(wrapped, tokens, whole=False):\n"
        "    gathered = FullyShardedDataParallel.summon_full_params(wrapped) if not whole else nothing()\n"
        "    with gathered:\n        return wrapped.generate(tokens, 3)\n",
    ),
}
SAMPLERS["a function of another file"]["train.py"] = SAMPLERS["a function of another file"]["train.py"].replace(
    GENERATED, "tokens = run(net, tokens, number == 0)"
)


@pytest.mark.parametrize("files", SAMPLERS.values(), ids=SAMPLERS.keys())
def test_models_generate_the_same_without_a_helper(pool: Pool, tmp_path: Path, files: dict[str, str]) -> None:
    done = rewrite_tree(files)
    text = "\n".join(done.files.values())
    assert "unshard()" in text
    assert "summon_full_params" not in text
    assert "fsdp_compat" not in text
    before = train_tree(pool, files, tmp_path / "before", fsdp1=True)
    after = train_tree(pool, done.files, tmp_path / "after")
    assert len(set(before[0])) == 9
    assert list(differ("losses and samples", before, after)) == []


STATES = """\
import sys
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import FullStateDictConfig, StateDictType
from common import CPU, Net, data, finish, note, start


def train(model, optimizer):
    for _ in range(2):
        loss = model(data()).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        note(loss)


def save(model, optimizer):
    with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, FullStateDictConfig(True, True)):
{taken}


def resume(net, adam, saved):
{loaded}


def main():
    rank = start()
    model = FSDP(Net(), device_id=CPU, use_orig_params=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    torch.manual_seed(10 + rank)
    train(model, optimizer)
    states = save(model, optimizer)
    held = states["optimizer"]["state"]
    for name in sorted(held):
        note(held[name]["exp_avg"].double().sum())
        note(held[name]["step"])
        assert held[name]["exp_avg"].device.type == "cpu"
    again = torch.optim.AdamW(model.parameters(), lr=0.05)
    resume(model, again, states)
    train(model, again)
    finish(sys.argv[1])


if __name__ == "__main__":
    main()
"""
LOADED = {
    "a name that is deleted": """
flat = FSDP.optim_state_dict_to_load(net, adam, saved["optimizer"])
del saved["optimizer"]
adam.load_state_dict(flat)
del flat
""",
    "at once": 'adam.load_state_dict(FSDP.optim_state_dict_to_load(net, adam, saved["optimizer"]))\n',
}
TAKEN = {
    "a name that is deleted": "state = FSDP.optim_state_dict(model, optimizer)\nreturn dict(optimizer=state)\n",
    "at once": 'return {"optimizer": FSDP.optim_state_dict(model, optimizer)}\n',
}


@pytest.mark.parametrize("form", LOADED)
def test_states_of_an_optimizer_on_every_rank_need_no_helper(pool: Pool, tmp_path: Path, form: str) -> None:
    """FSDP1's default: every rank gets the whole state, on the CPU."""
    taken, loaded = textwrap.indent(TAKEN[form], "        "), textwrap.indent(LOADED[form].strip("\n"), "    ")
    files = tree(train=STATES.format(taken=taken, loaded=loaded))
    done = rewrite_tree(files)
    text = done.files["train.py"]
    assert 'value.to("cpu", copy=True)' in text
    assert "set_optimizer_state_dict(" in text
    assert "del flat" not in text
    assert "fsdp_compat" not in text
    before = train_tree(pool, files, tmp_path / "before", fsdp1=True)
    after = train_tree(pool, done.files, tmp_path / "after")
    assert len(before[0]) > 20
    assert list(differ("losses and states", before, after)) == []


OWN_CONTEXTS = """
def whole(net):
    return FSDP.state_dict_type(net, StateDictType.FULL_STATE_DICT, FullStateDictConfig(True, True))


class Run:
    def __init__(self, model, optimizer):
        self.model, self.optimizer = model, optimizer

    def _sharded(self):
        return FSDP.state_dict_type(self.model, StateDictType.SHARDED_STATE_DICT)

    def copy(self):
        with self._sharded():
            state = self.model.state_dict()
            self.model.load_state_dict({name: value for name, value in state.items()})


def save(model, optimizer):
    with whole(model):
        return {"model": model.state_dict(), "optimizer": FSDP.optim_state_dict(model, optimizer)}


def resume(net, adam, saved):
    Run(net, adam).copy()
    with whole(net):
        adam.load_state_dict(FSDP.optim_state_dict_to_load(net, adam, saved["optimizer"]))


"""


def test_functions_that_return_a_context_go_with_the_blocks_that_enter_it(pool: Pool, tmp_path: Path) -> None:
    before, _, rest = STATES.partition("def save")
    noted = "    note(sum(value.double().sum() for value in states['model'].values()))\n    held ="
    main = rest[rest.index("def main") :].replace("    held =", noted)
    files = tree(train=before + OWN_CONTEXTS.lstrip("\n") + main)
    done = rewrite_tree(files)
    text = done.files["train.py"]
    assert "def whole" not in text and "_sharded" not in text
    assert "fsdp_compat" not in text and "TODO" not in text
    old = train_tree(pool, files, tmp_path / "before", fsdp1=True)
    new = train_tree(pool, done.files, tmp_path / "after")
    assert len(old[0]) > 20
    assert list(differ("losses and states", old, new)) == []
