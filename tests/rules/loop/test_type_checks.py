"""Rule FSDP205: tests of FSDP1's class, its name, and annotations with it."""

from __future__ import annotations

import textwrap

import pytest

from fsdp_rules.settings import Settings
from tests.rules.helpers import check_noop, check_rewrites, findings

FSDP = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
WRAPS = f"{FSDP}model = FSDP(model)\n"
USED = "import torch\nimport typing\nfrom torch.distributed.fsdp import FSDPModule\n{}kept = FSDPModule, torch\n\n"
BODY = "\ndef check(x: object, Block: type, DDP: type):\n    "


def levels(source: str, **others: str) -> list[str]:
    return [found.level.value for found in findings(source, **others) if found.rule == "FSDP205"]


@pytest.mark.parametrize(
    "source",
    [
        "from elsewhere import FullyShardedDataParallel as FSDP\n\ntest = isinstance(model, FSDP)\n",
        "from torch.distributed.fsdp import FSDPModule\n\ntest = isinstance(model, FSDPModule)\n",
        'test = type(model).__name__ == "DistributedDataParallel"\n',
        'names = ["FullyShardedDataParallel"]\n',
        'test = name == "FullyShardedDataParallel"\n',
        'mode: "FSDP" = None\n',
    ],
)
def test_noop(source: str) -> None:
    check_noop(source)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("isinstance(x, FSDP)", "isinstance(x, FSDPModule)"),
        ("isinstance(x.model, (FSDP, DDP))", "isinstance(x.model, (FSDPModule, DDP))"),
        ("isinstance(x, FSDP | DDP)", "isinstance(x, FSDPModule | DDP)"),
        ("isinstance(x, (DDP, (FSDP, Block)))", "isinstance(x, (DDP, (FSDPModule, Block)))"),
        ("issubclass(type(x), FSDP)", "issubclass(type(x), FSDPModule)"),
        ("type(x) is FSDP", "isinstance(x, FSDPModule)"),
        ("FSDP == type(x)", "isinstance(x, FSDPModule)"),
        ("x and type(x) is not FSDP", "x and not isinstance(x, FSDPModule)"),
        ("x.__class__ != FSDP", "not isinstance(x, FSDPModule)"),
        ("type(x) in (FSDP, DDP)", "isinstance(x, (FSDPModule, DDP))"),
        ("type(x) not in [FSDP]", "not isinstance(x, (FSDPModule,))"),
        ('type(x).__name__ == "FullyShardedDataParallel"', "isinstance(x, FSDPModule)"),
        ('"FullyShardedDataParallel" != x.__class__.__name__', "not isinstance(x, FSDPModule)"),
        ('"FullyShardedDataParallel" in str(type(x.model))', "isinstance(x.model, FSDPModule)"),
        ('"FullyShardedDataParallel" not in type(x).__qualname__', "not isinstance(x, FSDPModule)"),
        (
            'type(x).__name__ in ("DDP", "FullyShardedDataParallel")',
            '(isinstance(x, FSDPModule) or type(x).__name__ in ("DDP",))',
        ),
        (
            'type(x).__name__ not in ["A", "FullyShardedDataParallel", "B"]',
            '(not isinstance(x, FSDPModule) and type(x).__name__ not in ("A", "B"))',
        ),
        ("isinstance(x, (FSDP, FSDPModule))", "isinstance(x, FSDPModule)"),
        ("isinstance(x, (FSDP, FSDPModule, DDP))", "isinstance(x, (FSDPModule, DDP))"),
        ("isinstance(x, FSDPModule | FSDP)", "isinstance(x, FSDPModule)"),
        ("typing.cast(FSDP, x)", "typing.cast(FSDPModule, x)"),
        ('typing.cast("FSDP", x)', 'typing.cast("FSDPModule", x)'),
        ("[m for m in x if isinstance(m, FSDP)]", "[m for m in x if isinstance(m, FSDPModule)]"),
        ("lambda m: isinstance(m, FSDP)", "lambda m: isinstance(m, FSDPModule)"),
    ],
)
def test_expressions(before: str, after: str) -> None:
    check_rewrites(f"{USED.format(FSDP)}{BODY}return {before}\n", f"{USED.format('')}{BODY}return {after}\n")


@pytest.mark.parametrize(
    "annotation",
    [
        "FSDP",
        '"FSDP"',
        "FSDP | None",
        '"list[FSDP]"',
        "typing.Optional[FSDP]",
        'typing.Union["FSDP", None]',
        "list[FSDP]",
    ],
)
def test_annotations(annotation: str) -> None:
    body = f"def check(x: {annotation}, *, y: {annotation} = None) -> {annotation}:\n    z: {annotation} = x\n"
    after = USED.format("") + body.replace("FSDP", "FSDPModule")
    check_rewrites(USED.format(FSDP) + body, after, Settings(line_length=200))
    assert levels(USED.format(FSDP) + body) == ["safe"] * 4


def test_words_that_are_no_types() -> None:
    source = USED.format(FSDP) + 'def check(mode: typing.Literal["FSDP", "DDP"] = "FSDP", x: FSDP = None):\n    pass\n'
    after = source.replace("x: FSDP ", "x: FSDPModule ")
    check_rewrites(source, after)


def test_names_for_classes() -> None:
    body = "SHARDED = (FSDP, torch.nn.Linear)\nMaybe = typing.Optional[FSDP]\n\n"
    body += "def check(x: Maybe):\n    return isinstance(x, SHARDED)\n"
    check_rewrites(USED.format(FSDP) + body, USED.format("") + body.replace("FSDP", "FSDPModule"))


def test_dotted() -> None:
    source = "import torch.distributed.fsdp as fsdp\n\n\ndef check(x):\n    return isinstance(x, fsdp.{})\n"
    check_rewrites(source.format("FullyShardedDataParallel"), source.format("FSDPModule"))


def test_the_class_in_a_message() -> None:
    body = 'def check(x):\n    raise TypeError(f"{x} is no {%s}")\n'
    check_rewrites(USED.format(FSDP) + body % "FSDP", USED.format("") + body % "FSDPModule")


def test_patterns() -> None:
    body = "def check(x):\n    match x:\n        case FSDP() | None:\n            return 1\n"
    check_rewrites(USED.format(FSDP) + body, USED.format("") + body.replace("FSDP", "FSDPModule"))
    assert levels(FSDP + body.replace("FSDP()", "FSDP(module=m)").replace(" | None", "")) == ["manual"]


@pytest.mark.parametrize(
    ("condition", "level"),
    [
        ("isinstance(x, FSDP) and isinstance(y, Block)", "safe"),
        ("isinstance(x, FSDP) or isinstance(x, DDP)", "safe"),
        ("isinstance(x, Block) and not isinstance(x, FSDP)", "review"),
        ("isinstance(x, FSDP) or isinstance(x, FSDPModule)", "review"),
        ("type(x) is FSDP", "safe"),
        ("type(x) in (FSDP, DDP)", "review"),
        ('type(x()).__name__ in ("FullyShardedDataParallel", "DDP")', "manual"),
    ],
)
def test_levels_of_conditions(condition: str, level: str) -> None:
    assert levels(f"{USED.format(FSDP)}if {condition}:\n    pass\n", wraps=WRAPS) == [level]


@pytest.mark.parametrize(("other", "level"), [("Block", "review"), ("DDP", "safe"), ("FSDPModule", "review")])
@pytest.mark.parametrize("first", [True, False])
def test_levels_of_arms(other: str, level: str, first: bool) -> None:
    tests = ["FSDP", other] if first else [other, "FSDP"]
    source = textwrap.dedent(f"""
    def check(x):
        if isinstance(x, {tests[0]}):
            return 1
        elif x:
            return 2
        elif isinstance(x, {tests[1]}):
            return 3
    """)
    assert levels(FSDP + source, wraps=WRAPS) == [level]


@pytest.mark.parametrize("name", ["FSDPModule", "FSDP2Module"])
def test_tests_of_ifs_beside_each_other(name: str) -> None:
    source = textwrap.dedent(f"""
    def check(x):
        if isinstance(x, FSDP):
            return 1
        if isinstance(x, {name}):
            return 2
    """)
    assert levels(FSDP + source) == ["review"]


def test_another_name_of_the_class_beside_fsdp2_s_is_left_for_the_reader() -> None:
    source = """
from wrapping import Sharded

def check(x):
    if isinstance(x, Sharded):
        return 1
    if isinstance(x, FSDP2Module):
        return 2
"""
    wrapping = FSDP + "Sharded = FSDP\nmodel = FSDP(model)\n"
    told = [found for found in findings(source, wrapping=wrapping) if found.rule == "FSDP205"]
    assert [found.level.value for found in told] == ["manual"]


def test_name_of_the_class_without_fsdp1() -> None:
    source = 'def check(x):\n    return type(x).__name__ == "FullyShardedDataParallel"\n'
    assert levels(source) == ["review"]
    assert levels(source, other=FSDP + "\nmodel = FSDP(model)\n") == ["safe"]


def test_values_stay_unknown() -> None:
    found = findings(FSDP + 'WRAPPERS = {"fsdp": FSDP}\nKIND = FSDP\nprint(KIND)\n')
    assert {entry.rule for entry in found} == {"FSDP901"}


@pytest.mark.parametrize(
    ("body", "level"),
    [("return False", "review"), ("\n            continue", "review"), ("return True", "safe"), ("print(x)", "safe")],
)
def test_wrapper_left_out(body: str, level: str) -> None:
    source = f"{FSDP}def check(xs):\n    for x in xs:\n        if isinstance(x, FSDP): {body}\n"
    assert levels(source, wraps=WRAPS) == [level]


def test_another_name_of_the_class_is_followed_into_other_files() -> None:
    wrapping = """
    from typing import TypeAlias

    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

    Sharded: TypeAlias = FSDP

    def wrap(model) -> Sharded:
        return Sharded(model, use_orig_params=True)
    """
    check_rewrites(
        wrapping,
        """
        from typing import TypeAlias

        from torch.distributed.fsdp import FSDPModule, fully_shard

        Sharded: TypeAlias = FSDPModule

        def wrap(model) -> FSDPModule:
            return fully_shard(model)
        """,
    )
    check_rewrites(
        """
        from wrapping import Sharded, wrap

        def units(model: Sharded):
            return [module for module in wrap(model).modules() if isinstance(module, Sharded)]
        """,
        """
        from wrapping import wrap
        from torch.distributed.fsdp import FSDPModule

        def units(model: FSDPModule):
            return [module for module in wrap(model).modules() if isinstance(module, FSDPModule)]
        """,
        wrapping=wrapping,
    )


def test_a_project_that_wraps_nothing_itself_rests_on_what_does() -> None:
    assert levels(f"{FSDP}def check(x):\n    return isinstance(x, FSDP)\n") == ["review"]
