"""FSDP1's own methods of a sharded model that no rule speaks about, called or handed on."""

from __future__ import annotations

import pytest

from fsdp_rules.fsdp1.methods import OWN
from fsdp_rules.verdict.finding import Level
from fsdp_rules.verdict.result import Unchanged
from tests.rules.helpers import rewrite_tree

IMPORT = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
MAIN = """from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from uses import use

def main(net):
    core = FSDP(net)
    use(core, print)
"""
FORMS = {
    "assigned": "kept = net.{}",
    "called with unknown arguments": "kept = lambda *given: net.{}(*given)",
    "in a table": 'kept = {{"a": net.{}}}',
    "in an attribute": "run.kept = net.{}",
    "of itself": "kept = net.{}.__name__",
    "passed on": "run(net.{})",
    "returned": "return net.{}",
    "tested": "assert callable(net.{})",
}
METHODS = (*OWN, "apply")


def said(line: str, main: str = MAIN) -> list[tuple[str, Level]]:
    """The rules that speak about ``line`` in a file that is handed a model."""
    files = {"main.py": main.encode(), "uses.py": f"def use(net, run):\n    {line}\n".encode()}
    found = rewrite_tree(files).get("uses.py", Unchanged())
    return [(entry.rule, entry.level) for entry in found.findings]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS.keys())
def test_no_method_of_a_sharded_model_is_silent(form: str, method: str) -> None:
    line = form.format(method)
    assert said(line)
    plain = said(line, MAIN.replace("core = FSDP(net)", "FSDP(net.head).eval()\n    core = net"))
    assert Level.MANUAL not in {level for _, level in plain}


@pytest.mark.parametrize("method", ["set_state_dict_type", "summon_full_params"])
def test_what_no_rule_rewrites_is_left_to_a_human(method: str) -> None:
    assert said(f"kept = net.{method}") == [("FSDP901", Level.MANUAL)]


@pytest.mark.parametrize("made", ["FSDP(net)", "net"])
def test_a_name_of_fsdp1_alone_says_that_what_may_be_a_model_is_one(made: str) -> None:
    files = {
        "build.py": f"{IMPORT}class Box:\n    def __init__(self, net):\n        self.core = {made}\n"
        "def make(net):\n    return [Box(net)]\nFSDP(other).eval()\n",
        "hand.py": 'def through(boxes, jobs):\n    jobs["a"] = boxes[0].core\n    return jobs\n',
        "use.py": "from build import make\nfrom hand import through\n\ndef main(net):\n"
        '    core = through(make(net), {})["a"]\n    return core.summon_full_params\n',
    }
    found = rewrite_tree({path: text.encode() for path, text in files.items()}).get("use.py", Unchanged())
    assert [(entry.rule, entry.level) for entry in found.findings] == [("FSDP901", Level.MANUAL)] * (made != "net")
