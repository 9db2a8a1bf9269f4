# ruff: noqa: E501
"""Code that chooses between functions of FSDP1 and of FSDP2, over files: both stay, and one finding says so."""

from __future__ import annotations

import pytest

from fsdp_rules.verdict.result import Changed, Unchanged
from tests.rules.helpers import rewrite_tree

BUILD = "def build(m, kind):\n    return KINDS[kind](m)\n"
OLD = """from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

def wrap_old(net):
    return FSDP(net)
"""
NEW = """from torch.distributed.fsdp import fully_shard

def wrap_new(net):
    fully_shard(net)
    return net
"""
LOOP = """
def run(net, x, kind):
    model = build(net, kind)
    model(x).sum().backward()
    return model.state_dict()
"""
FROM = "from one import wrap_old\nfrom two import wrap_new\n"
CHOICES = {
    "two arms": f"{FROM}"
    "def build(m, kind):\n    if kind == 2:\n        return wrap_new(m)\n    else:\n        return wrap_old(m)\n",
    "an arm that leaves": f"{FROM}"
    "def build(m, kind):\n    if kind == 2:\n        return wrap_new(m)\n    return wrap_old(m)\n",
    "three arms": (
        f"{FROM}def build(m, kind):\n    if kind == 0:\n        return m\n    elif kind == 1:\n        m = wrap_old(m)\n"
        "    elif kind == 2:\n        m = wrap_new(m)\n    return m\n"
    ),
    "a dictionary": f'{FROM}KINDS = {{"a": wrap_old, "b": wrap_new}}\n' + BUILD,
    "a dictionary of lambdas": (
        "import one, two\ndef build(m, kind):\n"
        '    return {"a": lambda m: one.wrap_old(m), "b": lambda m: two.wrap_new(m)}[kind](m)\n'
    ),
    "a call of dict": "import one, two\nKINDS = dict(a=one.wrap_old, b=two.wrap_new)\n" + BUILD,
    "entries": ('import one, two\nKINDS = {}\nKINDS["a"] = one.wrap_old\nKINDS["b"] = two.wrap_new\n' + BUILD),
    "an expression": f"{FROM}def build(m, kind):\n    wrap = wrap_new if kind == 2 else wrap_old\n    return wrap(m)\n",
    "match": (
        f"{FROM}def build(m, kind):\n    match kind:\n        case 2:\n            return wrap_new(m)\n"
        "        case _:\n            return wrap_old(m)\n"
    ),
    "imports in arms": (
        "def build(m, kind):\n    if kind == 2:\n        from two import wrap_new as wrap\n    else:\n"
        "        from one import wrap_old as wrap\n    return wrap(m)\n"
    ),
    "star imports": 'from one import *\nfrom two import *\nKINDS = {"a": wrap_old, "b": wrap_new}\n' + BUILD,
    "functions between": (
        f"{FROM}def old(m):\n    return wrap_old(m)\n\ndef new(m):\n    return wrap_new(m)\n\n"
        "def build(m, kind):\n    return (new if kind else old)(m)\n"
    ),
}
REGISTRY = """KINDS = {}
def register(name):
    def put(f):
        KINDS[name] = f
        return f
    return put

def build(m, kind):
    return KINDS[kind](m)
"""
TREES = {
    "a file of the dictionary alone": {
        "one": OLD,
        "two": NEW,
        "kinds": f'{FROM}KINDS = {{"a": wrap_old, "b": wrap_new}}\n',
        "main": "from kinds import KINDS\n" + BUILD + LOOP,
    },
    **{name: {"one": OLD, "two": NEW, "main": text + LOOP} for name, text in CHOICES.items()},
    "one file": {"one": OLD + NEW + 'KINDS = {"a": wrap_old, "b": wrap_new}\n' + BUILD + LOOP},
    "a registry": {
        "reg": REGISTRY,
        "one": "from reg import register\n" + OLD.replace("def wrap_old", '@register("a")\ndef wrap_old'),
        "two": "from reg import register\n" + NEW.replace("def wrap_new", '@register("b")\ndef wrap_new'),
        "main": "from reg import build\nimport one, two\n" + LOOP,
    },
    "methods": {
        "one": (
            "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, fully_shard\n\nclass Trainer:\n"
            "    def __init__(self, m, kind):\n        self.m = self._two(m) if kind == 2 else self._one(m)\n"
            "    def _one(self, m):\n        return FSDP(m)\n    def _two(self, m):\n        fully_shard(m)\n        return m\n"
        )
    },
    "classes": {
        "one": OLD.replace("def wrap_old(net):\n", "class One:\n    def wrap(self, net):\n    "),
        "two": (
            "from torch.distributed.fsdp import fully_shard\n\nclass Two:\n    def wrap(self, net):\n"
            "        fully_shard(net)\n        return net\n"
        ),
        "main": (
            "from one import One\nfrom two import Two\nKINDS = {'a': One, 'b': Two}\ndef build(m, kind):\n"
            f"    return KINDS[kind]().wrap(m)\n{LOOP}"
        ),
    },
}  # fmt: skip


@pytest.mark.parametrize("files", TREES.values(), ids=TREES.keys())
def test_both_sides_of_a_choice_stay(files: dict[str, str]) -> None:
    results = rewrite_tree({f"{name}.py": text.encode() for name, text in files.items()})
    assert not any(isinstance(result, Changed) for result in results.values())
    said = [entry for result in results.values() if isinstance(result, Unchanged) for entry in result.findings]
    assert {entry.message for entry in said} == {"unchanged: the project has an FSDP2 branch for it"}
    assert sum(entry.rule == "FSDP101" for entry in said) == 1


@pytest.mark.parametrize(
    "main",
    [
        f"{FROM}def build(a, b):\n    return wrap_old(a), wrap_new(b)\n",
        "from one import wrap_old\ndef build(m, kind):\n    if kind:\n        return wrap_old(m)\n    return m\n",
        f"{FROM}def build(m, kind):\n    if kind:\n        m = wrap_old(m)\n    else:\n        m = wrap_new(wrap_old(m))\n    return m\n",
        f"{FROM}NAMES = {{'a': wrap_old.__name__}}\ndef build(m, other):\n    wrap_new(other)\n    return wrap_old(m)\n",
    ],
    ids=["both", "another arm", "both in one arm", "one entry"],
)
def test_what_is_no_choice_is_rewritten(main: str) -> None:
    results = rewrite_tree({"one.py": OLD.encode(), "two.py": NEW.encode(), "main.py": main.encode()})
    assert isinstance(results["one.py"], Changed)


@pytest.mark.parametrize("call", ["net.fully_shard(CONFIG)", "self_of(net).parts.fully_shard()"])
def test_a_method_that_shards_a_model_of_another_framework_is_no_side(call: str) -> None:
    other = f"def wrap_new(net):\n    return {call}\n"
    files = {"one.py": OLD, "two.py": other, "main.py": CHOICES["two arms"]}
    results = rewrite_tree({name: text.encode() for name, text in files.items()})
    assert isinstance(results["one.py"], Changed)


def test_a_wrap_that_has_no_twin_is_rewritten_beside_one() -> None:
    other = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n\ndef teacher(net):\n    return FSDP(net)\n"
    files = {
        "one": OLD + "\ndef teacher(net):\n    return FSDP(net)\n",
        "two": NEW,
        "main": CHOICES["a dictionary"] + LOOP,
        "other": other,
    }
    results = rewrite_tree({f"{name}.py": text.encode() for name, text in files.items()})
    assert isinstance(results["other.py"], Changed)
    (one,) = (result for path, result in results.items() if path == "one.py")
    assert isinstance(one, Changed)
    assert b"def wrap_old(net):\n    return FSDP(net)" in one.source
    assert b"def teacher(net):\n    return fully_shard(net)" in one.source


USES = """
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, StateDictType

def stop(core):
    if isinstance(core, FSDP):
        return core.module.name
    raise TypeError(core)

def keep(core):
    core.clip_grad_norm_(1.0)
    with FSDP.state_dict_type(core, StateDictType.FULL_STATE_DICT):
        return core.state_dict()
"""
GATED = """
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, fully_shard

def build(net, kind):
    if kind == "one":
        net = FSDP(net)
    else:
        fully_shard(net)
    return net
"""
BOTH = {
    "functions": {"one": OLD, "two": NEW, "kinds": CHOICES["a dictionary"]},
    "branches": {"kinds": GATED},
}
RUN = "from kinds import build\nfrom uses import keep, stop\ndef run(net, x, kind):\n    model = build(net, kind)\n"


@pytest.mark.parametrize("choice", BOTH.values(), ids=BOTH.keys())
def test_what_is_done_to_a_model_of_a_choice_stays_beside_a_wrap_that_is_rewritten(choice: dict[str, str]) -> None:
    """A rewritten test for FSDP2's class is false of the FSDP1 model, and FSDP2's states are not its own."""
    run = f"{RUN}    stop(model)\n    return keep(model)\n"
    files = {**choice, "uses": USES, "main": run, "other": OLD.replace("wrap_old", "teacher")}
    results = rewrite_tree({f"{name}.py": text.encode() for name, text in files.items()})
    assert isinstance(results["other.py"], Changed)
    assert not isinstance(results["uses.py"], Changed)
    assert {found.level.value for found in results["uses.py"].findings} == {"info"}


@pytest.mark.parametrize("choice", BOTH.values(), ids=BOTH.keys())
def test_what_both_kinds_of_models_reach_is_manual(choice: dict[str, str]) -> None:
    teach = (
        OLD.replace("wrap_old", "teacher") + "from uses import keep\ndef save(net):\n    return keep(teacher(net))\n"
    )
    scaler = (
        f"from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler{USES}scaler = ShardedGradScaler()\n"
    )
    files = {**choice, "uses": scaler, "main": f"{RUN}    stop(model)\n    return keep(model)\n", "other": teach}
    results = rewrite_tree({f"{name}.py": text.encode() for name, text in files.items()})
    found = {(one.rule, one.level.value) for one in results["uses.py"].findings}
    assert {(rule, "manual") for rule in ("FSDP201", "FSDP204", "FSDP301", "FSDP309")} <= found
    assert ("FSDP205", "info") in found


@pytest.mark.parametrize(
    "path", ["tests/test_wraps.py", "test_wraps.py", "src/wraps_test.py", "pkg/tests/gpu/wraps.py"]
)
@pytest.mark.parametrize("choice", BOTH.values(), ids=BOTH.keys())
def test_a_wrap_of_a_test_does_not_undo_a_choice(choice: dict[str, str], path: str) -> None:
    run = f"{RUN}    stop(model)\n    return keep(model)\n"
    files = {f"{name}.py": text for name, text in {**choice, "uses": USES, "main": run}.items()} | {path: OLD}
    results = rewrite_tree({name: text.encode() for name, text in files.items()})
    assert not any(isinstance(result, Changed) for result in results.values())
    assert any(found.rule == "FSDP101" for found in results[path].findings)


def test_a_file_that_is_kept_has_one_finding() -> None:
    main = (
        "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, MixedPrecision, fully_shard\n\n"
        "def wrap(net, dtype, kind):\n    precision = MixedPrecision(param_dtype=dtype)\n    if kind == 2:\n"
        "        fully_shard(net)\n    else:\n        net = FSDP(net, mixed_precision=precision)\n    return net\n\n"
        "def clip(net):\n    if isinstance(net, FSDP):\n        return net.clip_grad_norm_(1.0)\n"
    )
    (result,) = rewrite_tree({"main.py": main.encode()}).values()
    assert isinstance(result, Unchanged)
    assert [entry.level.value for entry in result.findings] == ["info"]
