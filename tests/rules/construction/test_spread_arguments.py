"""FSDP101: arguments that a wrap unpacks from a dictionary of which the values of the tree show what is in it."""

from __future__ import annotations

import pytest

from tests.rules.helpers import findings

HEAD = """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
import other
import json

def wrap(model, **kwargs):
    return FSDP(model, **kwargs)

"""
OUTER = "def outer(net, **kwargs):\n    {}\n    return wrap(net, **kwargs)\n\nouter(net)\n"
EMPTY = {
    "one caller": "model = wrap(net)\n",
    "two callers": "model = wrap(net)\nsecond = wrap(model=other.net)\n",
    "a caller in a function": "def outer(net):\n    return wrap(net)\n\nouter(net)\n",
}
GIVEN = {
    "nothing calls it": "",
    "handed to other code": "other.register(wrap)\n",
    "a dictionary of another place": "model = wrap(net, **other.CONFIG)\n",
    "options of a parser": "model = wrap(net, **vars(other.parser.parse_args()))\n",
    "attributes of an object": "model = wrap(net, **other.args().__dict__)\n",
    "what a file has": "model = wrap(net, **json.load(open(path)))\n",
    "copied": "model = wrap(net, **dict(other.pairs))\n",
    "filled by other code": "MORE = {}\nother.fill(MORE)\nmodel = wrap(net, **MORE)\n",
    "made at run time": "def outer(net, more=None):\n    return wrap(net, **(more or {}))\n\nouter(net)\n",
    "bound before": "import functools\nmake = functools.partial(wrap, use_orig_params=True)\nmodel = make(net)\n",
    "one caller of two": "model = wrap(net)\nsecond = wrap(other.net, use_orig_params=True)\n",
    "an entry that is added": OUTER.format("kwargs['use_orig_params'] = True"),
    "entries that are not known": OUTER.format("kwargs.update(other.more())"),
    "merged in place": OUTER.format("kwargs |= other.more()"),
    "merged": OUTER.format("kwargs = {**kwargs, **other.more()}"),
    "from a table": "TABLE = {'a': wrap}\nTABLE[other.NAME](net, **other.CONFIG)\n",
    "a method": "class Make:\n    make = staticmethod(wrap)\n\nMake.make(net, forward_prefetch=True)\n",
}
#: What the function does with the dictionary before it wraps.
CHANGED = [
    "kwargs |= other.more",
    "other.fill(kwargs)",
    "kwargs.setdefault('forward_prefetch', True)",
    "kwargs = other.more",
]


def said(source: str) -> str:
    """What is said of the wrap."""
    (found,) = (one for one in findings(HEAD + source) if one.rule == "FSDP101")
    return found.message


@pytest.mark.parametrize("source", EMPTY.values(), ids=EMPTY)
def test_a_dictionary_that_no_caller_puts_anything_in(source: str) -> None:
    assert said(source) == "sharded in place by fully_shard, assuming no other code gives **kwargs an argument"


@pytest.mark.parametrize("source", GIVEN.values(), ids=GIVEN)
def test_a_dictionary_that_something_may_be_in(source: str) -> None:
    assert "the content of **kwargs is only known at run time" in said(source)


@pytest.mark.parametrize("change", CHANGED)
def test_a_dictionary_that_the_function_itself_may_change(change: str) -> None:
    source = HEAD.replace("    return FSDP", f"    {change}\n    return FSDP")
    (wrap,) = (one for one in findings(f"{source}model = wrap(net)\n") if one.rule == "FSDP101")
    assert "sharded in place" not in wrap.message


FIELDS = """\
from dataclasses import dataclass, field
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

@dataclass
class Options:
    extra: dict = field(default_factory={made})

def wrap(model, opts):
    return FSDP(model, use_orig_params=True, **opts.extra)

opts = Options({given})
model = wrap(net, opts)
"""


@pytest.mark.parametrize(
    ("made", "given", "is_native"),
    [
        ("dict", "", False),
        ("lambda: {}", "", False),
        ("lambda: {'forward_prefetch': True}", "", False),
        ("dict", "extra={'forward_prefetch': True}", False),
        ("dict", "extra=load()", False),
        ("make", "", False),
    ],
)
def test_a_field_that_a_factory_makes(made: str, given: str, is_native: bool) -> None:
    found = findings(FIELDS.format(made=made, given=given))
    # Its name is also one of optimizers.
    assert not any(one.rule == "FSDP117" for one in found)
    (wrap,) = (one for one in found if one.rule == "FSDP101")
    assert wrap.message.startswith("sharded in place" if is_native else "fsdp_compat.shard applies")


def test_an_object_that_may_be_an_optimizer_is_still_one_by_its_name() -> None:
    wrap = "def wrap(model, opts):\n    return FSDP(model, use_orig_params=True), opts\n\nwrap(net, other.opts)\n"
    assert any(one.rule == "FSDP117" for one in findings(HEAD.partition("def wrap")[0] + wrap))
