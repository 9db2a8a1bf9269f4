"""What a framework is given under a name: words and plugins that another file keeps, over two and three files."""

from __future__ import annotations

import pytest

from fsdp_rules.verdict.result import Unchanged
from tests.rules.helpers import rewrite_tree

TAKES = "import lightning as L\n{}\n\ndef run(model, data):\n    L.Trainer(devices=8, strategy={}).fit(model, data)\n"
KEPT = {
    "a name": ('HOW = "fsdp"\n', "from conf import HOW", "HOW"),
    "a name of its module": ('HOW = "fsdp"\n', "import conf", "conf.HOW"),
    "a choice": ('HOW = "fsdp" if BIG else "auto"\n', "from conf import HOW", "HOW"),
    "another word": ('HOW = "fsdp_cpu_offload"\n', "from conf import HOW", "HOW"),
    "another name": ('HOW = "fsdp"\n', "from conf import HOW as MODE", "MODE"),
    "a class": ('class Conf:\n    how = "fsdp"\n', "from conf import Conf", "Conf.how"),
    "an object": ('class Conf:\n    how: str = "fsdp"\n', "from conf import Conf", "Conf().how"),
    "a field": ('class Conf:\n    how: str = field(default="fsdp")\n', "from conf import CONF", "CONF.how"),
    "an attribute": (
        'class Conf:\n    def __init__(self):\n        self.how = "fsdp"\n',
        "from conf import C",
        "C.how",
    ),
    "a dictionary": ('CONF = {"how": "fsdp"}\n', "from conf import CONF", 'CONF["how"]'),
    "get": ('CONF = dict(how="fsdp")\n', "from conf import CONF", 'CONF.get("how")'),
    "a table": ('KINDS = {"big": "fsdp"}\n', "from conf import KINDS", 'KINDS["big"]'),
    "a function": ('def how():\n    return "fsdp"\n', "from conf import how", "how()"),
    "an option": (
        'def options(parser):\n    parser.add_argument("--how", choices=["ddp", "fsdp"])\n    return parser\n',
        "from conf import options\nargs = options(PARSER).parse_args()",
        "args.how",
    ),
    "setattr": ('def put(conf):\n    setattr(conf, "how", "fsdp")\n', "from conf import put\nput(CONF)", "CONF.how"),
    "an entry": ('CONF = {}\nCONF["how"] = "fsdp"\n', "from conf import CONF", 'CONF["how"]'),
}
PASSED = {
    "by name": 'from train import go\n\ngo(model, how="fsdp")\n',
    "by place": 'from train import go\n\ngo(model, "fsdp")\n',
}
UNPACKED = {
    "a dictionary": 'KW = {"devices": 8, "strategy": "fsdp"}\n',
    "dict": 'KW = dict(devices=8, strategy="fsdp")\n',
    "an entry": 'KW = dict(devices=8)\nKW["strategy"] = "fsdp"\n',
}


def found(files: dict[str, str], path: str = "train.py") -> object:
    """The rules and levels of what is said about the file at ``path``, the same in a second run."""
    sources = {name: text.encode() for name, text in files.items()}
    first = rewrite_tree(sources)
    after = {name: getattr(first.get(name), "source", data) for name, data in sources.items()}
    second = rewrite_tree(after)
    said = [_said(results.get(path, Unchanged())) for results in (first, second)]
    assert said[0] == said[1]
    return said[0]


def _said(result: object) -> list[tuple[str, str]]:
    return [(one.rule, one.level.value) for one in result.findings]  # type: ignore[attr-defined]


@pytest.mark.parametrize(("kept", "imported", "taken"), KEPT.values(), ids=KEPT.keys())
def test_a_word_of_another_file(kept: str, imported: str, taken: str) -> None:
    files = {"conf.py": kept, "train.py": TAKES.format(imported, taken)}
    assert found(files) == [("FSDP554", "manual")]
    other = kept.replace("fsdp_cpu_offload", "ddp").replace("fsdp", "ddp")
    assert found({**files, "conf.py": other}) == []


@pytest.mark.parametrize(("kept", "imported", "taken"), KEPT.values(), ids=KEPT.keys())
def test_a_word_of_the_same_file(kept: str, imported: str, taken: str) -> None:
    name = imported.partition(" as ")[2] or imported.rpartition(" ")[2]
    alias = "MODE = HOW\n" if name == "MODE" else ""
    source = TAKES.format(f"{kept}{alias}", taken.replace("conf.", ""))
    assert found({"train.py": source}) == [("FSDP554", "manual")]


def test_a_word_through_a_third_file() -> None:
    files = {
        "pkg/__init__.py": "from pkg.conf import *\n",
        "pkg/conf.py": '__all__ = ["HOW"]\nHOW = "fsdp"\n',
        "train.py": TAKES.format("from pkg import HOW", "HOW"),
    }
    assert found(files) == [("FSDP554", "manual")]


@pytest.mark.parametrize("given", PASSED.values(), ids=PASSED.keys())
def test_a_word_that_a_caller_gives(given: str) -> None:
    train = "import lightning as L\n\ndef go(model, how):\n    L.Fabric(strategy=how).setup(model)\n"
    assert found({"main.py": given, "train.py": train}) == [("FSDP554", "manual")]
    assert found({"main.py": given.replace("fsdp", "ddp"), "train.py": train}) == []


@pytest.mark.parametrize("kept", UNPACKED.values(), ids=UNPACKED.keys())
def test_unpacked_arguments(kept: str) -> None:
    train = "import lightning as L\nfrom conf import KW\n\ntrainer = L.Trainer(**KW)\n"
    assert found({"conf.py": kept, "train.py": train}) == [("FSDP554", "manual")]
    assert found({"conf.py": kept.replace("fsdp", "ddp"), "train.py": train}) == []
    assert found({"train.py": train.replace("from conf import KW\n", kept)}) == [("FSDP554", "manual")]


@pytest.mark.parametrize(
    "other",
    [
        'STEPS = [one for one in NAMES if one == "fsdp"]\nHOW = "auto"\n',
        'HOW = "auto"\nLABEL = "fsdp"\n',
        'HOW = "ddp" if MODE == "fsdp" else "auto"\n',
        'HOW = "not fsdp"\n',
    ],
)
def test_other_words_are_none(other: str) -> None:
    assert found({"conf.py": other, "train.py": TAKES.format("from conf import HOW", "HOW")}) == []


PLUGIN = (
    "from accelerate import FullyShardedDataParallelPlugin\n"
    'PLUGIN = FullyShardedDataParallelPlugin(sharding_strategy="FULL_SHARD", use_orig_params=True)\n'
)
ACCELERATOR = """
from accelerate import Accelerator
from conf import {}

acc = Accelerator({})

def go(net, optim):
    net = acc.prepare(net)
    optim = acc.prepare(optim)
"""


@pytest.mark.parametrize(
    ("kept", "name", "taken"),
    [
        (PLUGIN, "PLUGIN", "fsdp_plugin=PLUGIN"),
        (PLUGIN.replace("PLUGIN = ", "def plugin():\n    return "), "plugin", "fsdp_plugin=plugin()"),
        (PLUGIN + "KW = dict(fsdp_plugin=PLUGIN)\n", "KW", "**KW"),
        (PLUGIN.replace("PLUGIN = ", "KW = dict(fsdp_plugin=")[:-1] + ")\n", "KW", "**KW"),
    ],
)
def test_a_plugin_of_another_file(kept: str, name: str, taken: str) -> None:
    files = {"conf.py": kept, "train.py": ACCELERATOR.format(name, taken)}
    assert found(files) == [("FSDP551", "manual")]


def test_the_precision_beside_a_plugin_of_another_file() -> None:
    train = ACCELERATOR.format("PLUGIN", 'mixed_precision="bf16", fsdp_plugin=PLUGIN')
    assert found({"conf.py": PLUGIN, "train.py": train}) == [("FSDP551", "manual"), ("FSDP551", "manual")]
    train = train.replace("acc.prepare(net)", "acc.prepare(net, optim)[0]").replace("bf16", "no")
    assert found({"conf.py": PLUGIN, "train.py": train}) == []
