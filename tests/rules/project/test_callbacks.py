"""Functions that are passed as values: each one that a call may run is reached, in files that nothing else leads to."""

from __future__ import annotations

import pytest

from fsdp_rules.verdict.result import Changed, Unchanged
from tests.rules.helpers import rewrite_tree
from tests.rules.project.callback_forms import FORMS, WORK

#: The file of the function that is passed.
STEPS = "program/steps.py"
IMPORT = "from torch.distributed.fsdp import FullyShardedDataParallel as Wrap\n"


def tree(form: dict[str, str], wraps: bool) -> dict[str, str]:
    """A program whose main file wraps the model that is handed on, or (``wraps`` is false) another one."""
    needs = form["run"].partition("def run(")[2].partition(")")[0].split(", ")
    made = "Wrap(net)" if wraps else "net"
    main = f"{IMPORT}from program.run import run\n\n\ndef main(net, other, pool, name, cfg):\n    other = Wrap(other)\n"
    files = {"steps": WORK, **form, "main": f"{main}    made = {made}\n    run({', '.join(needs)})\n"}
    return {f"program/{name}.py": text for name, text in files.items()}


def spoken(files: dict[str, str], path: str) -> set[str]:
    """The rules that speak about the file at ``path``."""
    for name, text in files.items():
        compile(text, name, "exec", dont_inherit=True)
    result = rewrite_tree({name: text.encode() for name, text in files.items()}).get(path, Unchanged())
    assert isinstance(result, Changed | Unchanged), result
    return {found.rule for found in result.findings}


@pytest.mark.parametrize("form", FORMS)
def test_the_function_that_is_passed_is_reached(form: str) -> None:
    assert "FSDP211" in spoken(tree(FORMS[form], True), STEPS)


@pytest.mark.parametrize("form", FORMS)
def test_nothing_is_said_of_it_where_another_model_is_wrapped(form: str) -> None:
    assert spoken(tree(FORMS[form], False), STEPS) == set()


NET = f"""\
{IMPORT}

class Holder:
    pass


def produce(net):
    holder = Holder()
    holder.brain = Wrap(net)
    return holder
"""
MIDDLE = """\
from net import produce


def hand_on(net, work):
    holder = produce(net)
    return work([holder.brain], holder)
"""
USE = """\
import copy

from middle import hand_on


def work(items, holder):
    copy.deepcopy(items[0])
    for thing in items:
        thing.zero_grad()
        thing.module.weight
    holder.brain.state_dict()


def main(net):
    hand_on(net, work)
"""


def test_a_callback_is_given_a_list_and_the_object_that_carries_the_model() -> None:
    files = {"net.py": NET, "middle.py": MIDDLE, "use.py": USE}
    result = rewrite_tree({name: text.encode() for name, text in files.items()})["use.py"]
    assert isinstance(result, Changed)
    found = {(one.line, one.rule, one.wrapped) for one in result.findings if one.rule != "FSDP100"}
    wrapped = "net.py:10"
    assert found == {
        (7, "FSDP211", wrapped),
        (9, "FSDP220", wrapped),
        (10, "FSDP206", wrapped),
        (11, "FSDP309", wrapped),
    }


@pytest.mark.parametrize("given", ["setattr(parent, name, Wrap(module))", "print(parent, name, Wrap(module))"])
def test_builtins_call_none_of_what_they_are_given(given: str) -> None:
    nest = f"""def nest(root):
    def inner(module, name, parent):
        for key, child in module.named_children():
            inner(child, key, module)
        {given}
    inner(root, "root", None)
"""
    files = {
        "wrap": f"{IMPORT}\nclass Hook:\n    def apply(self, model):\n        nest(model)\n\n{nest}",
        "toggles": "from functools import partial\n\ndef toggle(core, enable):\n    core.update(enable.module)\n\n"
        "off = partial(toggle, enable=False)\n",
        "main": "from program import toggles\nfrom program import wrap\n\ndef run(build):\n    model = build()\n"
        "    print(model.module)\n    model.apply(toggles.off)\n",
    }
    assert not spoken({f"program/{name}.py": text for name, text in files.items()}, "program/toggles.py")
