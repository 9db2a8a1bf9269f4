"""What a name holds: an object is what all its writes make it, and where one is unknown nothing is said of it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import libcst as cst
import pytest

from tests.rules.projects import file_of

HEAD = """
import json, copy, dataclasses, logging
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, CPUOffload, MixedPrecision
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
import other
from other import SHARED, change, look
"""
OTHER = """
# fsdp
SHARED = []

def change(given, extra=None):
    given.update(x=1)

def look(given):
    print(len(given))
    return given
"""
MADE = {"dict": "{}", "list": "[]", "set": "set()", "comprehension": "[x for x in net]", "object": "CPUOffload()"}
#: What changes ``held`` between its assignment and its use, in the function that has both.
CHANGES = {
    "a field": "held.field = 1",
    "a key": "held['key'] = 1",
    "a deleted key": "del held['key']",
    "a method": "held.update(key=1)",
    "a bound method": "put = held.append\n    put(1)",
    "setattr": "setattr(held, 'field', 1)",
    "its dictionary": "held.__dict__['field'] = 1",
    "vars": "vars(held)['field'] = 1",
    "in place": "other_name = held\n    other_name += [1]",
    "another name": "same = held\n    same.add(1)",
    "a chain of names": "same = more = held\n    last = more if net else None\n    last.clear()",
    "a choice": "(held or net).clear()",
    "an unknown function": "fill(held)",
    "an unknown method": "net.fill(held)",
    "a keyword": "fill(into=held)",
    "a function of another file": "change(held)",
    "a function that gives it back": "look(held).clear()",
    "a function here": "def inner(one):\n        one.clear()\n    inner(held)",
    "a closure": "def inner():\n        held.clear()\n    inner()",
    "a lambda": "run(lambda: held.clear())",
    "a loop": "for one in net:\n        held.append(one)",
    "a branch": "if net:\n        held.append(net)",
    "a try": "try:\n        held.append(net)\n    finally:\n        pass",
    "an expression": "_ = [held.append(one) for one in net]",
    "a field of self": "self.kept = held\n    self.kept.append(1)",
    "a list of it": "for one in [held, net]:\n        one.clear()",
    "a dictionary of it": "table = {'held': held}\n    table['held'].clear()",
    "a part": "held['part'].append(1)",
    "a deeper part": "held.part['x'].y = 1",
    "stored": "net.append(held)",
    "yielded": "yield held",
    "given to a thread": "run(fill, args=(held,))",
    "a with": "with held as one:\n        pass",
}
#: What reads ``held`` and changes nothing.
READS = {
    "nothing": "pass",
    "printing": "print(held)",
    "a log": "logging.getLogger().info('held %s', held)",
    "a text": "text = f'{held}' + str(held)",
    "a copy": "mine = copy.deepcopy(held)\n    mine.clear()",
    "a list of it": "mine = list(held)\n    mine.append(1)",
    "a display of it": "mine = [*held]\n    mine.append(1)",
    "a merge": "mine = {**held, 'x': 1}\n    mine['y'] = 2",
    "a test": "if held and len(held) > 1:\n        return None",
    "a loop": "for one in held:\n        print(one)",
    "its items": "for key, value in held.items():\n        print(key, value)",
    "json": "json.dumps(held)",
    "a function that looks": "look(held)",
    "a function here": "def inner(one):\n        return len(one)\n    inner(held)",
    "a comparison": "assert held != 3",
    "its class": "assert isinstance(held, object)",
    "a field": "net.x = held.field",
    "torch": "torch.save(held, 'file')",
    "an unpacked call": "net.run(**held)",
    "another object": "same = 1\n    same.field = held",
    "the same name elsewhere": "def inner(held):\n        held.clear()",
    "an early return": "if net:\n        return held",
}


def value(source: str, *, other: str = OTHER) -> str:
    """What is known of the last argument called ``into`` in ``source``."""
    files = {"example.py": source, "other.py": other}
    file = file_of(source, files)
    given = [one.value for one in file.nodes(cst.Arg) if one.keyword is not None and one.keyword.value == "into"]
    return file.code(file.value(given[-1]))


def in_function(made: str, between: str) -> str:
    return f"{HEAD}\ndef build(self, net):\n    held = {made}\n    {between}\n    return FSDP(net, into=held)\n"


@pytest.mark.parametrize("made", MADE)
@pytest.mark.parametrize("change", CHANGES)
def test_an_object_that_something_changes_is_unknown(change: str, made: str) -> None:
    assert value(in_function(MADE[made], CHANGES[change])) == "held"


@pytest.mark.parametrize("made", MADE)
@pytest.mark.parametrize("read", READS)
def test_an_object_that_is_only_read_is_known(read: str, made: str) -> None:
    assert value(in_function(MADE[made], READS[read])) == MADE[made]


def test_what_happens_below_the_use_does_not_count() -> None:
    source = (
        f"{HEAD}\ndef build(net):\n    held = []\n    net = FSDP(net, into=held)\n    held.append(1)\n    return net\n"
    )
    assert value(source) == "[]"


def test_what_happens_below_the_use_counts_in_a_loop_around_both() -> None:
    body = "    held = []\n    for one in nets:\n        FSDP(one, into=held)\n        held.append(one)\n"
    assert value(f"{HEAD}\ndef build(nets):\n{body}") == "held"
    inside = "    for one in nets:\n        held = []\n        FSDP(one, into=held)\n        held.append(one)\n"
    assert value(f"{HEAD}\ndef build(nets):\n{inside}") == "[]"


def test_the_other_branch_changes_another_object() -> None:
    first = "    if net:\n        held = CPUOffload()\n    else:\n        net.held = 1\n"
    assert value(f"{HEAD}\ndef build(net):\n{first}    return FSDP(net, into=held)\n") == "CPUOffload()"


MODULE = {
    "a function": "def fill():\n    held.append(1)\n",
    "a global": "def fill():\n    global held\n    held += [1]\n",
    "below": "held.append(1)\n",
    "given away": "register(held)\n",
    "handed out": "def get():\n    return held\n",
}


@pytest.mark.parametrize("way", MODULE)
def test_a_list_of_the_module_is_what_the_whole_module_makes_of_it(way: str) -> None:
    source = f"{HEAD}\nheld = []\n\ndef build(net):\n    return FSDP(net, into=held)\n\n{MODULE[way]}"
    assert value(source) == "held"


OTHERS = {
    "its name": "from example import held\nheld.append(1)\n",
    "a new name": "from example import held as kept\n\ndef fill():\n    kept.append(1)\n",
    "the module": "import example\n\ndef fill():\n    example.held.append(1)\n",
    "a star": "from example import *\nheld.append(1)\n",
    "given away": "from example import held\nfill(held)\n",
}


@pytest.mark.parametrize("way", OTHERS)
def test_a_list_of_the_module_is_what_other_files_make_of_it(way: str) -> None:
    source = f"{HEAD}\nheld = []\n\ndef build(net):\n    return FSDP(net, into=held)\n"
    assert value(source, other=OTHER + OTHERS[way]) == "held"
    assert value(source, other=OTHER + "from example import held\nprint(held)\n") == "[]"


def test_a_default_is_one_object_in_all_calls() -> None:
    source = f"{HEAD}\ndef build(net, held=[]):\n    use = held\n    net = FSDP(net, into=use)\n    held.append(1)\n"
    assert value(source) == "held"


def test_letters_of_several_bytes_do_not_move_the_place() -> None:
    source = f"{HEAD}\ndef build(net):\n    é = 'ü'; held = []; held.append(é)\n    return FSDP(net, into=held)\n"
    assert value(source) == "held"


@pytest.mark.parametrize("end", ["\r", "\r\n"])
def test_other_line_ends_do_not_move_the_place(end: str) -> None:
    source = f"{HEAD}\ndef build(net):\n    held = []\n    held.append(1)\n    return FSDP(net, into=held)\n"
    assert value(source.replace("\n", end)) == "held"


#: The functions of rules that look at what first made an object, and why that says nothing wrong of what it is.
FIRST = {
    "construction/_plan/argument_dicts.py: _read": "every use of the dictionary is a write that it lists",
    "construction/_plan/around.py: ignored_lines": "asks whether it is a container, which no write changes",
    "construction/_plan/arguments.py: is_steady": "asks whether the name is a parameter",
    "construction/_plan/bound_calls.py: calls_of_partial": "compares bindings; the partial is called and nothing else",
    "construction/_plan/leaves.py: _entries": "every use of the table looks an entry up",
    "construction/_plan/leaves.py: _follow": "asks for changes first",
    "construction/_plan/local_dicts.py: filled": "follows every use of the dictionary",
    "construction/_plan/members.py: owner_of": "asks for the class, which no write changes",
    "construction/_plan/slots.py: _given_whole": "asks for changes",
    "construction/shared_configuration.py: _annotated": "reads annotations",
    "construction/unseen_optimizers.py: _is_fresh": "asks whether the function makes the model",
    "hosts/_given_words.py: unpacked_words": "asks what words it may hold",
    "hosts/_given_words.py: words_of": "asks what words it may hold",
    "state/_governing/context.py: _config": "asks for changes first",
    "state/_governing/context.py: _is_configuration": "asks for the class, which no write changes",
    "state/_governing/entering.py: _manager": "a call of state_dict_type, which nothing else reads",
    "state/_governing/kinds.py: _given": "asks for every kind of state that it may hold",
    "state/_governing/loading.py: _assigned": "asks what may be loaded",
    "state/_writing/set.py: _is_temporary": "asks whether a call makes it",
    "state/load_target.py: visit": "looks for what fills it by itself",
    "state/raw_optimizer.py: _taken_whole": "asks what it may hold",
    "state/saved_parameters.py: _tensors": "asks what it may hold, beside what all its writes put there",
}
#: What gives the bindings of a name, and what made it.
BINDINGS = {"binding", "definitions", "found", "latest_binding", "origin", "origins", "reaching"}


def _first_values() -> Iterator[str]:
    """The functions of rules that read the value of a binding, or ask what made a name."""
    root = Path(__file__).parents[3] / "rules/fsdp_rules"
    for room in ("construction", "hosts", "state"):
        for path in sorted((root / room).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.FunctionDef) and _takes_first_value(node):
                    yield f"{path.relative_to(root)}: {node.name}"


def _takes_first_value(function: ast.FunctionDef) -> bool:
    held: set[str] = set()
    more = True
    while more:
        before = len(held)
        for node in ast.walk(function):
            source, target = _given(node)
            if source is not None and target is not None and _is_binding(source, held):
                held |= {one.id for one in ast.walk(target) if isinstance(one, ast.Name)}
        more = len(held) > before
    for node in ast.walk(function):
        if isinstance(node, ast.Attribute) and node.attr == "value" and _is_binding(node.value, held):
            return True
        if isinstance(node, ast.Attribute) and node.attr in ("origin", "origins"):
            return True
    return False


def _given(node: ast.AST) -> tuple[ast.expr | None, ast.expr | None]:
    """What ``node`` assigns, and to what."""
    if isinstance(node, ast.Assign):
        return node.value, node.targets[0]
    if isinstance(node, ast.AnnAssign | ast.NamedExpr):
        return node.value, node.target
    return (node.iter, node.target) if isinstance(node, ast.For | ast.comprehension) else (None, None)


def _is_binding(node: ast.expr, held: set[str]) -> bool:
    """Whether ``node`` is a binding or several, by a name in ``held`` or by what gives them."""
    while isinstance(node, ast.Subscript):
        node = node.value
    if isinstance(node, ast.Name):
        return node.id in held
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "get":
        node = node.func.value
    if isinstance(node, ast.Call):
        called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        return called in BINDINGS or (called in ("max", "min", "next") and any(_is_binding(a, held) for a in node.args))
    if isinstance(node, ast.BoolOp):
        return any(_is_binding(one, held) for one in node.values)
    if isinstance(node, ast.ListComp | ast.SetComp | ast.GeneratorExp):
        return any(_is_binding(one.iter, held) for one in node.generators)
    return isinstance(node, ast.Attribute) and node.attr == "found"


def test_no_rule_takes_what_first_made_an_object_for_what_it_is() -> None:
    """The value of a binding says nothing of later writes: ask ``file.value``, or ``file.objects.changes`` first."""
    assert sorted(FIRST) == sorted(_first_values())
