"""FSDP301: a kind of state whose context a function or method of the file returns, and its callers enter."""

from __future__ import annotations

import pytest

from fsdp_rules.verdict.finding import Level
from fsdp_rules.verdict.result import Changed, Unchanged
from tests.rules.helpers import check_rewrites, findings, rewrite_tree

IMPORTS = """\
from contextlib import contextmanager
from torch.distributed.fsdp import FullOptimStateDictConfig, FullStateDictConfig, StateDictType
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
"""
CONTEXT = "FSDP.state_dict_type({}, StateDictType.FULL_STATE_DICT, FullStateDictConfig(True, True))"
RETURNED = f"def full_state(model):\n    return {CONTEXT.format('model')}\n"
MANAGER = f"@contextmanager\ndef full_state(model):\n    with {CONTEXT.format('model')}:\n        yield\n"
CONFIGURED = """@contextmanager
def full_state(model):
    kind = StateDictType.FULL_STATE_DICT
    policy = FullStateDictConfig(offload_to_cpu=True, rank0_only=True)
    with FSDP.state_dict_type(model, kind, policy):
        yield model
"""
LOCAL = (
    'def full_state(model):\n    """The whole state, on rank 0."""\n'
    "    from torch.distributed.fsdp import FullyShardedDataParallel\n\n"
    f"    return {CONTEXT.format('model').replace('FSDP', 'FullyShardedDataParallel')}\n"
)
USER = """
def save(net):
    sharded = FSDP(net)
    with full_state(sharded):
        return sharded.state_dict()
"""
METHODS = f"""
class Trainer:
    def __init__(self, net):
        self.model = FSDP(net)

    def _whole(self):
        return {CONTEXT.format("self.model")}

    def save(self):
        with self._whole():
            return self.model.state_dict()
"""


def manual(source: str, **others: str) -> set[tuple[str, int]]:
    """The rules and lines of what is left to do by hand."""
    return {(one.rule, one.line) for one in findings(source, None, **others) if one.level.value == "manual"}


@pytest.mark.parametrize(
    "function", [RETURNED, MANAGER, CONFIGURED, LOCAL], ids=["returned", "entered", "configured", "imported inside"]
)
def test_its_caller_passes_the_options_and_the_function_goes(function: str) -> None:
    imported = "from contextlib import contextmanager\n" if function in (MANAGER, CONFIGURED) else ""
    check_rewrites(
        f"{imported}{IMPORTS.partition(chr(10))[2]}\n{function}{USER}",
        """\
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import fully_shard

def save(net):
    sharded = fully_shard(net)
    return get_model_state_dict(
        sharded,
        options=StateDictOptions(full_state_dict=True, cpu_offload=True),
    )
""",
    )


def test_a_method_of_the_class() -> None:
    check_rewrites(
        IMPORTS.partition("\n")[2] + METHODS,
        """\
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import fully_shard

class Trainer:
    def __init__(self, net):
        self.model = fully_shard(net)

    def save(self):
        return get_model_state_dict(
            self.model,
            options=StateDictOptions(full_state_dict=True, cpu_offload=True),
        )
""",
    )


WRITTEN = """\
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import fully_shard
{}
def save(net):
    sharded = fully_shard(net)
    return get_model_state_dict(
        sharded,
        options=StateDictOptions(full_state_dict=True, cpu_offload=True),
    )
"""


def outcome(files: dict[str, str]) -> tuple[dict[str, str], set[tuple[str, str]]]:
    """The tree after a rewrite, and the files and rules of what is left to do by hand."""
    after, left = dict(files), set[tuple[str, str]]()
    for path, result in rewrite_tree({path: text.encode() for path, text in files.items()}).items():
        assert isinstance(result, Changed | Unchanged), result
        left |= {(path, one.rule) for one in result.findings if one.level is Level.MANUAL}
        if isinstance(result, Changed):
            after[path] = result.source.decode()
    return after, left


@pytest.mark.parametrize("function", [RETURNED, MANAGER, CONFIGURED], ids=["returned", "entered", "configured"])
@pytest.mark.parametrize(("imported", "called"), [("from tools import full_state", ""), ("import tools", "tools.")])
def test_callers_in_another_file_pass_the_options_and_the_function_sets_nothing(
    function: str, imported: str, called: str
) -> None:
    user = f"from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n{imported}\n"
    user += USER.replace("full_state", f"{called}full_state")
    after, left = outcome({"train.py": user, "tools.py": f"{IMPORTS}\n{function}\nKEPT = 1\n"})
    assert left == set()
    assert after["train.py"] == WRITTEN.format(f"{imported}\n")
    emptied = "(model):\n    return contextlib.nullcontext()\n" if function is RETURNED else "(model):\n    yield"
    assert emptied in after["tools.py"] and "FSDP" not in after["tools.py"]


@pytest.mark.parametrize("model", ["sharded", "self.model"])
def test_the_model_that_a_block_has_another_name_for(model: str) -> None:
    imported = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\nimport tools\n"
    user = f"{imported}\nclass Run:\n    def save(self, net):\n        {model} = FSDP(net)\n"
    block = f"        with tools.full_state({model}) as whole:\n            return whole.state_dict()\n"
    after, left = outcome({"train.py": user + block, "tools.py": f"{IMPORTS}\n{CONFIGURED}"})
    assert left == set()
    assert f"        whole = {model}\n        return get_model_state_dict(\n            whole,\n" in after["train.py"]
    other, left = outcome(
        {"train.py": user + block, "tools.py": f"{IMPORTS}\n{CONFIGURED.replace('yield model', 'yield')}"}
    )
    assert ("train.py", "FSDP301") in left and "as whole" in other["train.py"]


ELSEWHERE = {
    "imported for others": "from tools import full_state\n",
    "under another name": "from tools import full_state as whole\n\ndef load(m, s):\n    with whole(m):\n"
    "        m.load_state_dict(s)\n",
    "pushed on a stack": "import tools\n\ndef push(stack, net):\n    stack.enter_context(tools.full_state(net))\n"
    "    return net.state_dict()\n",
    "handed on": "import tools\nuse(tools.full_state)\n",
}


@pytest.mark.parametrize("other", ELSEWHERE.values(), ids=ELSEWHERE)
def test_it_stays_while_another_file_needs_it(other: str) -> None:
    user = f"from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\nfrom tools import full_state\n{USER}"
    own = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
    after, left = outcome({"train.py": user, "tools.py": f"{IMPORTS}\n{MANAGER}", "other.py": own + other})
    assert ("tools.py", "FSDP301") in left
    assert "def full_state" in after["tools.py"]


def test_a_function_of_another_file_that_has_several_kinds_is_not_followed() -> None:
    chosen = MANAGER.replace("(model)", "(model, kind)").replace("StateDictType.FULL_STATE_DICT", "kind")
    user = f"from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\nfrom tools import full_state\n{USER}"
    _, left = outcome({"train.py": user.replace("(sharded):", "(sharded, KIND):"), "tools.py": f"{IMPORTS}\n{chosen}"})
    assert ("train.py", "FSDP309") in left


LOADS = """
def load(net, state):
    with full_state(net):
        net.load_state_dict(state)
"""
KEPT = {
    "another kind for each caller": RETURNED.replace("(model)", "(model, kind)").replace(
        "StateDictType.FULL_STATE_DICT", "kind"
    ),
    "local states": RETURNED.replace("FULL_STATE_DICT, FullStateDictConfig(True, True)", "LOCAL_STATE_DICT"),
    "what it does first": RETURNED.replace("    return", "    prepare(model)\n    return"),
    "one more of its name": f"{RETURNED}\nif OLD:\n    def full_state(model):\n        return old(model)\n",
    "a model of its own": RETURNED.replace("(model)", "(other)"),
    "more than yields": MANAGER.replace("yield", "yield model.state_dict()"),
}


@pytest.mark.parametrize("function", KEPT.values(), ids=KEPT)
def test_what_is_not_one_certain_context_stays(function: str) -> None:
    user = USER.replace("(sharded):", "(sharded, KIND):") if "kind" in function else USER
    assert any(rule in ("FSDP301", "FSDP310") for rule, _ in manual(f"{IMPORTS}\n{function}{user}"))


def test_it_stays_while_something_else_calls_it() -> None:
    pushed = "\ndef push(stack, net):\n    stack.enter_context(full_state(net))\n    return net.state_dict()\n"
    by_name = '\ndef push(net):\n    with getattr(tools, "full_state")(net):\n        return net.state_dict()\n'
    elsewhere = "from torch.distributed.fsdp import FSDP\nfrom example import full_state\nprint(full_state)\n"
    assert manual(f"{IMPORTS}\n{RETURNED}{USER}{LOADS}") == set()
    assert ("FSDP301", 6) in manual(f"{IMPORTS}\n{RETURNED}{USER}{pushed}")
    assert ("FSDP301", 6) in manual(f"{IMPORTS}\n{RETURNED}{USER}{by_name}")
    assert ("FSDP301", 6) in manual(f"{IMPORTS}\n{RETURNED}{USER}", other=elsewhere)


def test_it_stays_with_a_block_that_stays() -> None:
    hidden = "\nimport tools\n\ndef load(net):\n    with full_state(net):\n        tools.restore(net)\n"
    assert manual(f"{IMPORTS}\n{RETURNED}{USER}{hidden}") == {("FSDP301", 6), ("FSDP301", 16)}


def test_it_stays_with_a_block_whose_finding_is_silenced() -> None:
    silenced = LOADS.replace("(net):\n        net", "(net):  # fsdp-migrate: ignore[FSDP301]\n        net")
    assert silenced != LOADS
    assert manual(f"{IMPORTS}\n{RETURNED}{USER}{silenced}") == {("FSDP301", 6)}


def test_a_method_that_a_subclass_replaces_is_not_followed() -> None:
    own = "    def _whole(self):\n        return tools.local(self.model)\n"
    other = f"from example import Trainer\n\nclass Own(Trainer):\n{own}"
    assert manual(IMPORTS + METHODS) == set()
    assert {rule for rule, _ in manual(IMPORTS + METHODS, other=other)} == {"FSDP301", "FSDP309"}


@pytest.mark.parametrize("name", ["whole", "_whole"])
def test_a_public_method_may_have_callers_that_say_nothing_of_fsdp(name: str) -> None:
    said = findings(IMPORTS + METHODS.replace("_whole", name))
    (removed,) = (one for one in said if one.rule == "FSDP301" and "callers" in one.message)
    assert removed.message.endswith("assuming no other file calls whole") is (name == "whole")
    assert removed.level.value == ("review" if name == "whole" else "safe")


OF_CLASS = f"""
class Trainer:
    def __init__(self, net):
        self.model = FSDP(net)

    {{decorators}}
    def _whole({{given}}):
        {{enters}}{CONTEXT.format("model")}{{ends}}

    def save(self):
        with {{owner}}._whole(self.model):
            return self.model.state_dict()
"""


@pytest.mark.parametrize("owner", ["self", "Trainer"])
@pytest.mark.parametrize("manager", [False, True], ids=["returned", "entered"])
@pytest.mark.parametrize(("decorator", "given"), [("staticmethod", "model"), ("classmethod", "cls, model")])
def test_a_function_of_the_class(decorator: str, given: str, manager: bool, owner: str) -> None:
    written = {
        "decorators": f"@{decorator}\n    @contextmanager" if manager else f"@{decorator}",
        "given": given,
        "enters": "with " if manager else "return ",
        "ends": ":\n            yield" if manager else "",
        "owner": owner,
    }
    source = IMPORTS + OF_CLASS.format(**written)
    assert manual(source) == set()
    (result,) = rewrite_tree({"example.py": source.encode()}).values()
    assert isinstance(result, Changed)
    assert b"_whole" not in result.source and b"get_model_state_dict(\n            self.model," in result.source


def test_a_property_of_the_class_is_left_to_a_human() -> None:
    given = {"decorators": "@property", "given": "model", "enters": "return ", "ends": "", "owner": "self"}
    assert manual(IMPORTS + OF_CLASS.format(**given)) != set()


PARAMETERS = """
class Saver:
    def __init__(self, net):
        self.model = FSDP(net)

    def _kind(self, on_first{default}, offload=True):
        config = FullStateDictConfig(rank0_only=on_first, offload_to_cpu=offload)
        return FSDP.state_dict_type(self.model, StateDictType.FULL_STATE_DICT, config)

    def save(self, first):
        with self._kind({given}):
            return self.model.state_dict()
"""


@pytest.mark.parametrize(
    ("default", "given", "written"),
    [
        ("", "True", "StateDictOptions(full_state_dict=True, cpu_offload=True)"),
        ("", "offload=False, on_first=False", "StateDictOptions(full_state_dict=True)"),
        ("=True", "", "StateDictOptions(full_state_dict=True, cpu_offload=True)"),
        ("=True", "offload=first", "cpu_offload=first"),
    ],
)
def test_parameters_of_the_method_are_what_each_call_gives(default: str, given: str, written: str) -> None:
    source = IMPORTS + PARAMETERS.format(default=default, given=given)
    assert manual(source) == set()
    (result,) = rewrite_tree({"example.py": source.encode()}).values()
    assert isinstance(result, Changed)
    assert written.encode() in result.source and b"_kind" not in result.source


@pytest.mark.parametrize(("default", "given"), [("=ON_FIRST", ""), ("", "**options")])
def test_parameters_that_no_call_says_are_left_to_a_human(default: str, given: str) -> None:
    assert manual(IMPORTS + PARAMETERS.format(default=default, given=given)) != set()
