from __future__ import annotations

import libcst as cst
import pytest

from fsdp_rules.file.file import File
from fsdp_rules.model.sharded import Sharded, Why, sharded, sharded_owner
from fsdp_rules.project.project import Certainty
from tests.rules.helpers import check_noop, check_rewrites
from tests.rules.projects import file_of

HEAD = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"


def parsed(source: str) -> File:
    return file_of(HEAD + source)


def receiver(file: File) -> cst.BaseExpression:
    """The model whose method ``ask`` is called in ``file``."""
    (found,) = (node.value for node in file.nodes(cst.Attribute) if node.attr.value == "ask")
    return found


def asked(source: str) -> Sharded:
    file = parsed(source)
    return sharded(receiver(file), file)


@pytest.mark.parametrize(
    ("source", "certainty", "why"),
    [
        ("def f(net):\n    net = FSDP(net)\n    net.ask()\n", Certainty.YES, Why.ABOVE),
        ("def f(net):\n    net.ask()\n    net = FSDP(net)\n", Certainty.NO, Why.LATER),
        ("def f(net, on):\n    if on:\n        net = FSDP(net)\n    net.ask()\n", Certainty.YES, Why.FOLLOWED),
        ("def f(net):\n    net = FSDP(net)\n    g(net)\ndef g(m):\n    m.ask()\n", Certainty.YES, Why.FOLLOWED),
        (
            "def f(net):\n    net = FSDP(net)\n    if not isinstance(net, FSDP):\n        net.ask()\n",
            Certainty.NO,
            Why.TESTED,
        ),
        ("def f(net, other):\n    net = FSDP(net)\n    other.ask()\n", Certainty.NO, Why.UNKNOWN),
        ("def f(net):\n    net = FSDP(net)\n    net.module.ask()\n", Certainty.YES, Why.ABOVE),
        ("def f(net):\n    net = FSDP(net.ask())\n", Certainty.NO, Why.LATER),
    ],
)
def test_a_model_is_sharded_below_its_wrap_alone(source: str, certainty: Certainty, why: Why) -> None:
    found = asked(source)
    assert (found.certainty, found.why) == (certainty, why)


@pytest.mark.parametrize(
    ("taken", "certainty"),
    [
        ("nets.get('a')", Certainty.MAYBE),
        ("nets.pop('a')", Certainty.MAYBE),
        ("next(iter(nets.values()))", Certainty.MAYBE),
        ("list(nets.values())[0]", Certainty.MAYBE),
        ("others.get('a')", Certainty.NO),
        ("len(nets)", Certainty.NO),
        ("open(nets).get('a')", Certainty.NO),
    ],
)
def test_what_a_call_takes_from_a_container_may_be_one_of_its_models(taken: str, certainty: Certainty) -> None:
    source = f"def f(net, others):\n    nets = {{'a': FSDP(net)}}\n    {taken}.ask()\n"
    assert asked(source).certainty is certainty


def test_a_loop_leads_back_from_the_wrap_unless_it_makes_another_model() -> None:
    assert asked("def f(net):\n    while True:\n        net.ask()\n        net = FSDP(net)\n").why is Why.FOLLOWED
    made = "def f():\n    for size in (1, 2):\n        net = Net(size)\n        net.ask()\n        net = FSDP(net)\n"
    assert asked(made).why is Why.LATER


def test_a_model_that_a_caller_has_wrapped_is_sharded_above_a_wrap_too() -> None:
    given = "def f(net):\n    net.ask()\n    net = wrap(net)\ndef wrap(m):\n    return FSDP(m)\n"
    assert asked(given).why is Why.LATER
    assert asked(f"{given}def main(model):\n    model = FSDP(model)\n    f(model)\n").why is Why.FOLLOWED


def test_an_object_of_another_library_is_foreign() -> None:
    source = "def f(net, accelerator, model):\n    net = FSDP(net)\n    {}.ask()\n"
    assert asked(source.format("accelerator")).is_excluded
    assert not asked(source.format("model")).is_excluded


def test_the_owner_of_a_part_is_what_is_sharded() -> None:
    file = parsed("def f(net):\n    net = FSDP(net)\n    net.blocks[0].ask()\n")
    owner = sharded_owner(receiver(file), file)
    assert owner is not None
    assert file.code(owner) == "net"


def test_nothing_is_done_to_a_model_above_its_wrap() -> None:
    check_rewrites(
        HEAD + "def f(net, x):\n    y = net.forward(x)\n    net = FSDP(net)\n    return net.forward(x) + y\n",
        "from torch.distributed.fsdp import fully_shard\n"
        "def f(net, x):\n    y = net.forward(x)\n    fully_shard(net)\n    return net(x) + y\n",
    )
    # Another file's function that is called above the wrap, which gives the model beside other things.
    for line in ("net, device = wrap(net)", "device, net = wrap(net=net)", "[net, device] = wrap(net)"):
        source = f"def count(m):\n    return m.module.name\ndef f(net):\n    count(net)\n    {line}\n"
        check_noop(
            f"from wraps import wrap\n{source}",
            wraps=HEAD + WRAPS.replace("return FSDP(net)", "net = FSDP(net)\n    return net, net"),
        )
    # DDP's method of the same name: FSDP1's is not there yet.
    check_noop(
        "from wraps import wrap\ndef f(net):\n    with net.no_sync():\n        pass\n    net = wrap(net)\n",
        wraps=HEAD + WRAPS,
    )


WRAPS = "def wrap(net):\n    return FSDP(net)\n"


ABOVE = "def f(net, others):\n    [net.ask() for net in {}]\n    net = FSDP(net)\n"


def test_the_variable_of_a_comprehension_is_not_the_name_of_the_function() -> None:
    found = asked(ABOVE.format("others"))
    assert (found.certainty, found.is_excluded) == (Certainty.NO, False)
    assert asked(ABOVE.replace("net.ask() for net in {}", "other for other in net.ask()")).why is Why.LATER


@pytest.mark.parametrize("made", ["return FSDP(net)", "return fully_shard(net)", "fully_shard(net)\n    return net"])
def test_what_a_function_of_the_file_shards_is_sharded_later(made: str) -> None:
    head = "from torch.distributed.fsdp import fully_shard\n"
    build = f"def build(net):\n    {made}\n"
    assert asked(
        f"{head}{build}def f(net):\n    net.ask()\n    net = build(net)\ndef g(net):\n    FSDP(net)\n"
    ).is_excluded


@pytest.mark.parametrize("own", ["net = build()", "net: object = build()", "for net in build():\n        pass", "pass"])
def test_a_name_that_a_function_binds_to_something_unknown_is_its_own(own: str) -> None:
    given = f"def f():\n    {own}\n    use(net)\ndef use(m):\n    m.ask()\n"
    found = asked(f"{given}net = FSDP(build())\n").certainty
    assert (found is Certainty.NO) is (own != "pass")


@pytest.mark.parametrize("own", ["net", "other"])
def test_a_parameter_is_between_a_function_and_the_module(own: str) -> None:
    given = f"def outer({own}):\n    def inner():\n        use(net)\n    inner()\ndef use(m):\n    m.ask()\n"
    found = asked(f"{given}net = FSDP(build())\n").certainty
    assert (found is Certainty.NO) is (own == "net")


@pytest.mark.parametrize(
    ("given", "certainty"),
    [("net: FSDP", Certainty.YES), ("*, net: FSDP", Certainty.YES), ("net: FSDP | None", Certainty.NO)],
)
def test_an_annotation_says_what_a_parameter_is(given: str, certainty: Certainty) -> None:
    source = f"def f({given}):\n    net.ask()\n"
    assert asked(source).certainty is certainty
    assert asked(source.replace("    net", "    net = g(net)\n    net")).certainty is not Certainty.YES
