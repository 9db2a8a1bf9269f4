"""Optimizers whose origin cannot be followed: one line in front of the sharding, and only there."""

from __future__ import annotations

import pytest

from fsdp_rules.settings import Settings
from tests.rules.helpers import findings, rewrite, rewrite_tree

HEAD = "import torch\nfrom torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
STEP = "    for batch in batches:\n        model(batch).backward()\n        optimizer.step()\n"
UNSEEN = {
    "a function of a library": f"from somewhere import make\ndef run(net, batches):\n    optimizer = make(net)\n"
    f"    model = FSDP(net, use_orig_params=True)\n{STEP}",
    "a container": "def run(state, batches):\n    state.model = FSDP(state.model, use_orig_params=True)\n"
    "    for batch in batches:\n        state.model(batch).backward()\n        state.optimizer.step()\n",
    "a tuple of a library": "from somewhere import prepare\ndef run(batches):\n    net, optimizer, sched = prepare()\n"
    f"    model = FSDP(net, use_orig_params=True)\n{STEP}",
    "a method of a class": "class Trainer:\n    def __init__(self, net, registry):\n        self.model = net\n"
    "        self.optimizer = registry['sgd'](net)\n        self.wrap()\n    def wrap(self):\n"
    "        self.model = FSDP(self.model, use_orig_params=True)\n    def step(self, batch):\n"
    "        self.model(batch).backward()\n        self.optimizer.step()\n",
    "a method that is called before": "from somewhere import load, make\nclass Trainer:\n"
    "    def __init__(self, name):\n"
    "        self.net = load(name)\n        self.build()\n        self._shard()\n    def _shard(self):\n"
    "        self.net = FSDP(self.net, use_orig_params=True)\n    def build(self):\n"
    "        self.optimizer = make(self.net)\n    def step(self, batch):\n"
    "        self.net(batch).backward()\n        self.optimizer.step()\n",
    "a lambda": "MAKERS = {'sgd': lambda m: torch.optim.SGD(m.parameters(), lr=0.1)}\n"
    f"def run(net, batches):\n    optimizer = MAKERS['sgd'](net)\n    model = FSDP(net, use_orig_params=True)\n{STEP}",
    "a closure": "def outer(get):\n    net, optimizer = get()\n    def run(batches):\n"
    "        model = FSDP(net, use_orig_params=True)\n        model(batches).backward()\n        optimizer.step()\n",
}
#: An object that gets the model before the wrap, of a class that has the method or not.
OWN = (
    "class MemoryOptimizer{base}:\n    def __init__(self, net):\n        self.net = net\n    def {method}(self):\n"
    "        pass\ndef run(net, batches):\n    memory_optimizer = MemoryOptimizer(net)\n"
    "    model = FSDP(net, use_orig_params=True)\n    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
)
UNSEEN |= {
    "an object of the tree with a step": OWN.format(base="", method="step"),
    "one of a class below one outside": OWN.format(base="(torch.optim.Optimizer)", method="clear"),
}
SEEN = {
    "an object of the tree without a step": OWN.format(base="", method="clear"),
    "built from the wrapped model": "def run(net, batches):\n    model = FSDP(net, use_orig_params=True)\n"
    f"    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n{STEP}",
    "a library's function that gets the wrapped model": "from somewhere import make\ndef run(Net, batches):\n"
    f"    model = Net()\n    model = FSDP(model, use_orig_params=True)\n    optimizer = make(model)\n{STEP}",
    "a function of the program": "def make(net):\n    return torch.optim.SGD(net.parameters(), lr=0.1)\n"
    f"def run(net, batches):\n    model = FSDP(net, use_orig_params=True)\n    optimizer = make(model)\n{STEP}",
    "groups that are collected": "def run(net, batches):\n    model = FSDP(net, use_orig_params=True)\n    some = []\n"
    "    for name, p in model.named_parameters():\n        some.append(p)\n"
    f"    optimizer = torch.optim.SGD([{{'params': some}}], lr=0.1)\n{STEP}",
    "nothing is trained": "def run(net, batch):\n    return FSDP(net, use_orig_params=True)(batch)\n",
    "settings that are called like it": "def run(net, batches, config):\n    model = FSDP(net, use_orig_params=True)\n"
    "    optimizer = dict(type='AdamW', lr=0.1)\n    use_optimizer = config.get('use_optimizer')\n"
    "    config.opt = config.opt.lower()\n    adam = torch.optim.AdamW(model.parameters())\n",
    "options of a command line": "def run(net, batches):\n    model = FSDP(net, use_orig_params=True)\n"
    "    adam = torch.optim.AdamW(model.parameters())\n\nopt, rest = parser.parse_known_args()\n"
    "opts = parser.parse_args()\nrun(opt.net, opts)\n",
    "classes in a tuple": "def run(net, batches):\n    model = FSDP(net, use_orig_params=True)\n"
    "    adam = torch.optim.AdamW(model.parameters())\n\nclass Kinds:\n    def __new__(cls):\n"
    "        cls.optimizers.append(torch.optim.Adam)\n        cls.optimizers = tuple(cls.optimizers)\n",
    "one that a call is given and gives back": "from checkpoints import load\ndef run(net, batches):\n"
    "    model = FSDP(net, use_orig_params=True)\n    optimizer = torch.optim.AdamW(model.parameters())\n"
    "    model, optimizer, step = load(model, optimizer)\n",
    "a class of a library": "from apex.optimizers import FusedAdam\ndef run(net, batches):\n"
    "    model = FSDP(net, use_orig_params=True)\n    optimizer = FusedAdam(model.parameters(), lr=0.1)\n",
    "a method that runs once the object is made": "from somewhere import load, MemoryOptimizer\nclass Trainer:\n"
    "    def __init__(self, name):\n        self.net = load(name)\n        self._shard()\n"
    "        self.memory_optimizer = MemoryOptimizer(self.net)\n    def _shard(self):\n"
    "        self.net = FSDP(self.net, use_orig_params=True)\n    def train(self, batches):\n"
    "        optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1)\n        for batch in batches:\n"
    "            self.net(batch).backward()\n            optimizer.step()\n",
    "made in place": "from somewhere import make\ndef run(Net, batches):\n"
    f"    model = FSDP(Net(), use_orig_params=True)\n    optimizer = make()\n{STEP}",
}


def _said(source: str, settings: Settings | None = None) -> list[str]:
    return [found.level.value for found in findings(HEAD + source, settings) if found.rule == "FSDP125"]


@pytest.mark.parametrize("source", UNSEEN.values(), ids=UNSEEN.keys())
def test_an_optimizer_that_cannot_be_followed_is_guarded(source: str) -> None:
    assert _said(source) == ["review"]
    result = rewrite(HEAD + source)
    after = result.source.decode()  # type: ignore[union-attr]
    assert "fsdp_compat" not in after
    assert after.count("is_replaced = True") == after.count("is_replaced = False") == 1
    assert after.count("register_optimizer_step_pre_hook(refuse_early_optimizer)") == 1


@pytest.mark.parametrize("source", SEEN.values(), ids=SEEN.keys())
def test_one_that_can_is_not(source: str) -> None:
    assert _said(source) == []


#: A module of Lightning's, whose trainer calls the method.
AUTOENCODER = """
import torch

class Autoencoder(Base):
    def configure_optimizers(self):
        opt_ae = torch.optim.Adam(self.encoder.parameters(), lr=0.1)
        return [opt_ae], []
"""
WRAPS = f"{HEAD}def shard(net):\n    return FSDP(net, use_orig_params=True)\n"
TRAINS = f"{WRAPS}def main(make):\n    net = shard(make())\n    optimizer = torch.optim.Adam(net.parameters())\n"


def _in_train(train: str) -> list[str]:
    """What is said of a tree with that module in another file."""
    results = rewrite_tree({"train.py": train.encode(), "vae.py": AUTOENCODER.encode()})
    return [found.path for result in results.values() for found in result.findings if found.rule == "FSDP125"]


def test_modules_of_lightning_in_other_files_build_no_optimizer_of_what_a_function_wraps() -> None:
    assert _in_train(TRAINS) == []


@pytest.mark.parametrize(
    "train",
    [
        f"{WRAPS}def main(make):\n    net = make()\n    steps = net.configure_optimizers()\n    net = shard(net)\n",
        f"{HEAD}class Task(Base):\n    def configure(self, net):\n        net = FSDP(net, use_orig_params=True)\n",
    ],
    ids=["a program that calls it", "a method that wraps"],
)
def test_modules_of_lightning_that_may_be_what_is_wrapped(train: str) -> None:
    assert _in_train(train) == ["train.py"]


@pytest.mark.parametrize("helpers", ["never", "needed"])
def test_the_guard_needs_no_helper(helpers: str) -> None:
    result = rewrite(HEAD + UNSEEN["a container"], Settings(helpers=helpers))
    assert "fsdp_compat" not in result.source.decode()  # type: ignore[union-attr]


#: Statements in which the call is a part of an expression, and what each gets.
PARTS = {
    "nets[0] = FSDP(net, use_orig_params=True)": ["review"],
    "nets.append(FSDP(net, use_orig_params=True))": ["review"],
    "train(FSDP(net, use_orig_params=True), optimizer)": ["review"],
    "net = hold(FSDP(net, use_orig_params=True))": ["review"],
    "train(make(), FSDP(net, use_orig_params=True))": ["manual"],
    "nets = [FSDP(net, use_orig_params=True) for net in nets]": ["manual"],
    "nets = map(lambda net: FSDP(net, use_orig_params=True), nets)": ["manual"],
}


@pytest.mark.parametrize(("statement", "levels"), PARTS.items(), ids=PARTS.keys())
def test_a_part_of_an_expression_is_marked_where_nothing_else_runs_before_it(statement: str, levels: list[str]) -> None:
    source = (
        f"def run(net, nets, make, hold, train):\n    optimizer = make(net)\n    {statement}\n    optimizer.step()\n"
    )
    assert _said(source, Settings(helpers="never")) == levels


def test_a_model_that_a_comprehension_names_is_left_to_the_reader() -> None:
    body = "optimizer = make(nets)\n    return [FSDP(net, use_orig_params=True) for net in nets]\n"
    assert _said(f"def run(nets, make):\n    {body}") == ["manual"]


def test_a_file_with_several_wraps_gets_the_hook_once() -> None:
    source = UNSEEN["a container"] + "    state.other = FSDP(state.other, use_orig_params=True)\n"
    after = rewrite(HEAD + source).source.decode()  # type: ignore[union-attr]
    assert after.count("def refuse_early_optimizer(") == 1
    assert after.count("is_replaced = True") == 2


NETS = "from nets import MAKERS, Net, nets, register\n"
WRAP = "def shard(net):\n    return FSDP(net, use_orig_params=True)\n"
BUILD = "def make(net):\n    optimizer = MAKERS['sgd'](net)\n    return optimizer\n"
#: Programs whose optimizer comes from a registry, and whether it may be built before the model is wrapped.
ORDERS = {
    "after, in main": ("def main():\n    model = shard(Net())\n    optimizer = MAKERS['sgd'](model)\n", False),
    "before, in main": (
        "def main():\n    net = Net()\n    optimizer = MAKERS['sgd'](net)\n    net = shard(net)\n",
        True,
    ),
    "after, by a function": ("def main():\n    model = shard(Net())\n    optimizer = make(model)\n", False),
    "before, by a function": ("def main():\n    net = Net()\n    step = make(net)\n    net = shard(net)\n", True),
    "in a loop over both": (
        "def main(rest):\n    for net in nets:\n        net = shard(net)\n        optimizer = MAKERS['sgd'](rest)\n",
        True,
    ),
    "in the other arm": (
        "def main(flag):\n    net = Net()\n"
        "    if flag:\n        step = make(net)\n    else:\n        net = shard(net)\n",
        False,
    ),
    "a function that nobody calls": ("def more(net):\n    net = shard(net)\n    return MAKERS['sgd'](net)\n", True),
    "at the top of the file": ("net = shard(Net())\noptimizer = MAKERS['sgd'](net)\n", False),
    "at the top of the file, before": ("net = Net()\noptimizer = MAKERS['sgd'](net)\nnet = shard(net)\n", True),
    "a method of an object that is made first": (
        "class Trainer:\n    def __init__(self, net):\n        self.net = net\n"
        "        self.optimizer = MAKERS['sgd'](net)\n    def start(self):\n        self.net = shard(self.net)\n"
        "def main():\n    trainer = Trainer(Net())\n    trainer.start()\n",
        True,
    ),
    "a method that wraps and builds": (
        "class Trainer:\n    def __init__(self, net):\n        self.net = shard(net)\n"
        "        self.optimizer = MAKERS['sgd'](self.net)\ndef main():\n    Trainer(Net())\n",
        False,
    ),
    "a subclass that builds": (
        "class Base:\n    def __init__(self, net):\n        self.net = net\n        self.build()\n"
        "        self.net = shard(self.net)\n    def build(self):\n        pass\n"
        "class Trainer(Base):\n    def build(self):\n        self.optimizer = MAKERS['sgd'](self.net)\n"
        "def main():\n    Trainer(Net())\n",
        True,
    ),
    "a subclass that builds one of torch": (
        "class Base:\n    def __init__(self, net):\n        self.net = net\n        self.build()\n"
        "        self.net = shard(self.net)\n    def build(self):\n        pass\n"
        "class Trainer(Base):\n    def build(self):\n"
        "        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1)\n"
        "def main():\n    Trainer(Net())\n",
        True,
    ),
    "a subclass that builds afterwards": (
        "class Base:\n    def __init__(self, net):\n        self.net = shard(net)\n        self.build()\n"
        "    def build(self):\n        pass\n"
        "class Trainer(Base):\n    def build(self):\n"
        "        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1)\n"
        "def main():\n    Trainer(Net())\n",
        False,
    ),
    "a base that builds": (
        "class Base:\n    def __init__(self, net):\n        self.optimizer = MAKERS['sgd'](net)\n"
        "class Trainer(Base):\n    def __init__(self, net):\n        super().__init__(net)\n"
        "        self.net = shard(net)\ndef main():\n    Trainer(Net())\n",
        True,
    ),
    "a lambda that is kept": (
        "MADE = {'sgd': lambda net: torch.optim.SGD(net.parameters(), lr=0.1)}\ndef build():\n    net = Net()\n"
        "    return net, MADE['sgd'](net)\ndef main():\n    net, kept = build()\n    net = shard(net)\n",
        True,
    ),
    "a function that is handed on": (
        "def main():\n    net = Net()\n    register(shard)\n    step = make(net)\n    shard(net)\n",
        True,
    ),
}


@pytest.mark.parametrize(("program", "guarded"), ORDERS.values(), ids=ORDERS.keys())
def test_what_is_built_afterwards_by_the_order_of_calls_needs_no_guard(program: str, guarded: bool) -> None:
    source = f"{NETS}{WRAP}{BUILD}{program}"
    assert _said(source) == ["review"] * guarded
    split = f"from parallel import shard\n{HEAD}{NETS}{BUILD}{program}"
    result = rewrite_tree({"train.py": split.encode(), "parallel.py": (HEAD + WRAP).encode()})["parallel.py"]
    assert ("is_replaced" in result.source.decode()) is guarded  # type: ignore[union-attr]


DDP = """\
import torch
from torch.nn.parallel import DistributedDataParallel

def train(net, registry, batches):
    optimizer = registry["sgd"](net)
    net = DistributedDataParallel(net)
    for batch in batches:
        net(batch).backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        net.zero_grad()
"""


@pytest.mark.parametrize(("program", "told"), [(DDP, []), (DDP.replace("DistributedData", "My"), ["review"])])
def test_the_optimizers_of_a_program_beside_it_that_has_ddp_alone_are_not_counted(
    program: str, told: list[str]
) -> None:
    said = findings(HEAD + SEEN["built from the wrapped model"], None, other=program)
    assert [found.level.value for found in said if found.rule == "FSDP125"] == told


PROBE = """\
import torch

def split(names):
    return names[::2]

def train_probe(head, batches):
    optimizer = torch.optim.SGD(head.parameters(), lr=0.1)
    for batch in batches:
        head(batch).backward()
        optimizer.step()
"""
RUN = "import sys\nfrom probe import train_probe\ntrain_probe(load(sys.argv[1]), [])\n"


@pytest.mark.parametrize(("main", "guarded"), [("", False), ("import run_probe\n", True)])
def test_what_another_program_builds_of_a_shared_file(main: str, guarded: bool) -> None:
    source = f"""\
{main}{HEAD}
def shard(net):
    return FSDP(net, use_orig_params=True)

def main(load):
    from probe import split
    model = shard(load())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in split([]):
        model(batch).backward()
        optimizer.step()

if __name__ == "__main__":
    main(open)
"""
    said = findings(source, None, probe=PROBE, run_probe=RUN)
    assert any(found.rule == "FSDP125" for found in said) is guarded


@pytest.mark.parametrize(
    ("bound", "guarded"),
    [
        ("kwargs = dict(use_orig_params=False, limit_all_gathers=True)\n    net = FSDP(net, **kwargs)", False),
        ("kwargs = dict(use_orig_params=True, limit_all_gathers=True)\n    net = FSDP(net, **kwargs)", True),
        ("original = False\n    net = FSDP(net, use_orig_params=original)", False),
        ("net = FSDP(net, use_orig_params=config.original)", True),
        ("wrap = functools.partial(FSDP, use_orig_params=True)\n    net = wrap(net)", True),
        ("wrap = functools.partial(FSDP)\n    net = wrap(net)", False),
    ],
)
def test_what_fsdp1_would_not_have_trained_needs_no_guard(bound: str, guarded: bool) -> None:
    source = f"""\
import functools
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

def train(net, registry, config):
    optimizer = registry["sgd"](net)
    {bound}
    net(1).backward()
    optimizer.step()
"""
    assert [found.level.value for found in findings(source) if found.rule == "FSDP125"] == ["review"] * guarded
