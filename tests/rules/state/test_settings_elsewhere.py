"""A kind of state that one file sets and others depend on: all of it is rewritten, or all of it is left."""

from __future__ import annotations

import re

import pytest

from fsdp_rules.verdict.finding import Level
from fsdp_rules.verdict.result import Changed, Unchanged
from tests.rules.helpers import rewrite_tree

HEAD = "import torch\nfrom torch.distributed.fsdp import FullyShardedDataParallel as FSDP, StateDictType\n"
FULL = "StateDictType.FULL_STATE_DICT"
HOLDING = "from kinds import prepare\nfrom hold import Holder"
OUTER = "from kinds import outer\nfrom saving import save"
TABLE = "from kinds import KINDS\nfrom saving import save"
SAVE = "import torch\n\ndef save(m, path):\n    torch.save(m.state_dict(), path)\n"
PREPARE = f"{HEAD}def prepare(net):\n    FSDP.set_state_dict_type(net, {FULL})\n"
FACTORY = f"{HEAD}def full(net):\n    return FSDP.state_dict_type(net, {FULL})\n"


def _main(body: str, imports: str) -> str:
    lines = "\n".join(f"    {line}" for line in body.split("\n"))
    return f"{HEAD}{imports}\n\ndef main(net):\n    model = FSDP(net, use_orig_params=True)\n{lines}\n"


PREPARED = _main("prepare(model)\ntorch.save(model.state_dict(), 'a.pt')", "from kinds import prepare")
DIRECT = _main("with full(model):\n    state = model.state_dict()\ntorch.save(state, 'a.pt')", "from kinds import full")
SAVED = _main("save(model, 'a.pt')", "from saving import save")
TREES = {
    "a setter": {"train.py": PREPARED, "kinds.py": PREPARE},
    "a setter, and a third file": {
        "train.py": _main("prepare(model)\nsave(model, 'a.pt')", "from kinds import prepare\nfrom saving import save"),
        "kinds.py": PREPARE,
        "saving.py": SAVE,
    },
    "a method of a base": {
        "train.py": _main("T(model).save()", "from trainer import T"),
        "trainer.py": "import torch\nfrom base import Base\n\nclass T(Base):\n"
        "    def save(self):\n        self.whole()\n"
        "        torch.save(self.net.state_dict(), 'a.pt')\n",
        "base.py": f"{HEAD}class Base:\n    def __init__(self, net):\n        self.net = net\n\n"
        f"    def whole(self):\n        FSDP.set_state_dict_type(self.net, {FULL})\n",
    },
    "an object's attribute": {
        "train.py": _main("prepare(model)\nHolder(model).keep('a.pt')", HOLDING),
        "kinds.py": PREPARE,
        "hold.py": "import torch\n\nclass Holder:\n    def __init__(self, brain):\n"
        "        self.parts = {'brain': brain}\n\n"
        "    def keep(self, path):\n        torch.save(self.parts['brain'].state_dict(), path)\n",
    },
    "a factory": {"train.py": DIRECT, "kinds.py": FACTORY},
    "a factory, and a third file": {
        "train.py": _main(
            "with full(model):\n    save(model, 'a.pt')", "from kinds import full\nfrom saving import save"
        ),
        "kinds.py": FACTORY,
        "saving.py": SAVE,
    },
    "a factory of a factory": {
        "train.py": _main(
            "block = outer(model)\nwith block:\n    save(model, 'a.pt')",
            OUTER,
        ),
        "kinds.py": "from inner import full\n\ndef outer(net):\n    return full(net)\n",
        "inner.py": FACTORY,
        "saving.py": SAVE,
    },
    "a generator": {
        "train.py": DIRECT,
        "kinds.py": f"import contextlib\n{HEAD}\n@contextlib.contextmanager\ndef full(net):\n"
        f"    with FSDP.state_dict_type(net, {FULL}):\n        yield\n",
    },
    "a lambda": {"train.py": DIRECT, "kinds.py": f"{HEAD}full = lambda net: FSDP.state_dict_type(net, {FULL})\n"},
    "a partial": {
        "train.py": DIRECT,
        "kinds.py": f"import functools\n{HEAD}full = functools.partial(FSDP.state_dict_type, state_dict_type={FULL})\n",
    },
    "a decorator": {
        "train.py": SAVED,
        "saving.py": "import torch\nfrom kinds import whole\n\n@whole\n"
        "def save(m, path):\n    torch.save(m.state_dict(), path)\n",
        "kinds.py": f"{HEAD}def whole(fn):\n    def run(model, *args):\n"
        f"        with FSDP.state_dict_type(model, {FULL}):\n            return fn(model, *args)\n    return run\n",
    },
    "a class": {
        "train.py": DIRECT.replace("full", "Whole"),
        "kinds.py": f"{HEAD}class Whole:\n    def __init__(self, net):\n"
        f"        self.block = FSDP.state_dict_type(net, {FULL})\n"
        "    def __enter__(self):\n        return self.block.__enter__()\n"
        "    def __exit__(self, *error):\n        return self.block.__exit__(*error)\n",
    },
    "an exit stack": {
        "train.py": _main(
            "with contextlib.ExitStack() as stack:\n    enter(stack, model)\n"
            "    torch.save(model.state_dict(), 'a.pt')",
            "import contextlib\nfrom kinds import enter",
        ),
        "kinds.py": f"{HEAD}def enter(stack, net):\n    stack.enter_context(FSDP.state_dict_type(net, {FULL}))\n",
    },
    "a table": {
        "train.py": _main("with KINDS['full'](model):\n    save(model, 'a.pt')", TABLE),
        "kinds.py": f"{FACTORY}\nKINDS = {{'full': full}}\n",
        "saving.py": SAVE,
    },
}


def _after(files: dict[str, str]) -> tuple[dict[str, str], set[Level]]:
    sources, levels = dict(files), set()
    for path, result in rewrite_tree({path: text.encode() for path, text in files.items()}).items():
        assert isinstance(result, Changed | Unchanged), result
        levels |= {found.level for found in result.findings}
        if isinstance(result, Changed):
            sources[path] = result.source.decode()
    return sources, levels


@pytest.mark.parametrize("files", TREES.values(), ids=TREES.keys())
def test_no_call_is_left_without_its_setting(files: dict[str, str]) -> None:
    sources, levels = _after(files)
    text = "".join(sources.values())
    assert Level.MANUAL in levels or not re.search(r"\.state_dict\(|state_dict_type\(", text)
    if re.search(r"\.state_dict\(", text):
        assert "state_dict_type" in text.replace("set_state_dict_type is called", "")
    without = {path: re.sub(r" *# TODO\(.*\n(?: *#     .*\n)*", "", text) for path, text in sources.items()}
    assert "TODO" not in "".join(without.values())
    _, levels = _after(without)
    assert Level.MANUAL in levels or not re.search(r"state_dict_type\(", text)


def test_a_method_of_the_project_of_the_same_name_sets_nothing_for_a_model() -> None:
    plugin = f"{HEAD}class Plugin:\n    def __init__(self, kind):\n        self.set_state_dict_type(kind)\n\n"
    plugin += "    def set_state_dict_type(self, kind):\n        self.kind = StateDictType[kind]\n"
    main = _main("Plugin('FULL_STATE_DICT')\nmodel.load_state_dict(torch.load('a.pt'))", "from plugin import Plugin")
    results = rewrite_tree({"plugin.py": plugin.encode(), "train.py": main.encode()})
    assert [one for one in results["train.py"].findings if one.level is Level.MANUAL] == []
