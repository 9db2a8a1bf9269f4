"""Rule FSDP202: the context manager no_sync."""

from __future__ import annotations

import re
import textwrap

import pytest

from fsdp_rules.settings import Settings
from fsdp_rules.verdict.result import Changed
from tests.rules.helpers import check_noop, check_rewrites, findings, rewrite

WRAP = """
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

def wrap(model):
    return FSDP(model)
"""
MAIN = """
import example
from w import wrap

model = wrap(net)
example.step(model)
"""
DDP = "import example\nfrom torch.nn.parallel import DistributedDataParallel\n\nmodel = DistributedDataParallel(net)\n"


def levels(source: str, settings: Settings | None = None, **others: str) -> list[str]:
    return [found.level.value for found in findings(source, settings, **others) if found.rule == "FSDP202"]


def with_item(item: str) -> str:
    return textwrap.dedent(f"""
    from contextlib import nullcontext
    context = nullcontext

    def step(model, batch, micro=0, accum=1, last=False):
        with {item}:
            model(batch).backward()
    """)


def test_noop_without_fsdp() -> None:
    check_noop("def step(model):\n    with model.no_sync():\n        pass\n")


@pytest.mark.parametrize(
    "item",
    [
        "accelerator.no_sync(model)",
        "self.no_sync()",
        "fabric.no_backward_sync(model)",
        "trainer.strategy.no_sync()",
        "helpers.no_sync()",
    ],
)
def test_noop_for_other_objects(item: str) -> None:
    check_noop(f"import helpers\n\ndef step(self, accelerator, model):\n    with {item}:\n        pass\n", w=WRAP)


@pytest.mark.parametrize(
    ("item", "synchronised"),
    [
        ("model.no_sync()", "False"),
        ("model.no_sync() if micro < accum - 1 else nullcontext()", "micro >= accum - 1"),
        ("nullcontext() if last else model.no_sync()", "last"),
        ("nullcontext() if (micro + 1) % accum == 0 else model.no_sync()", "(micro + 1) % accum == 0"),
        ("model.no_sync() if (micro + 1) % accum else nullcontext()", "(micro + 1) % accum == 0"),
        ("nullcontext() if (micro % accum) else model.no_sync()", "micro % accum != 0"),
        ("model.no_sync() if not last else nullcontext()", "last"),
        ("(model.no_sync() if not (last or micro) else nullcontext())", "last or micro"),
        ("model.no_sync() if accum > 1 and not last else nullcontext()", "accum <= 1 or last"),
        ("model.no_sync() if micro in (0, 1) else nullcontext()", "micro not in (0, 1)"),
        ("model.no_sync() if accum else nullcontext()", "not accum"),
        ("model.no_sync() if (lambda: micro)() else nullcontext()", "not (lambda: micro)()"),
    ],
)
def test_conditions(item: str, synchronised: str) -> None:
    before = with_item(item)
    block, _, body = before.partition(f"    with {item}:\n")
    after = f"""{block}    model.set_requires_gradient_sync({synchronised})
    try:
{body}    finally:
        model.set_requires_gradient_sync(True)
"""
    check_rewrites(before, after, w=WRAP, main=MAIN)
    assert levels(before, w=WRAP, main=MAIN) == ["safe"]
    assert levels(before, w=WRAP) == ["review"]


def test_block_keeps_every_byte() -> None:
    before = '''
    import torch

    def step(model, batches):
        # why
        with torch.profiler.record_function("step"), model.no_sync():  # accumulate
            for batch in batches:
                text = """
      not indented
        """
                if batch is None: return text
                model(batch).backward()  # here
            # end
        # after
        return 1
    '''
    after = '''
    import torch

    def step(model, batches):
        # why
        model.set_requires_gradient_sync(False)
        try:
            with torch.profiler.record_function("step"):  # accumulate
                for batch in batches:
                    text = """
      not indented
        """
                    if batch is None: return text
                    model(batch).backward()  # here
                # end
        finally:
            model.set_requires_gradient_sync(True)
        # after
        return 1
    '''
    check_rewrites(before, after, w=WRAP, main=MAIN)


def test_other_indentation_and_one_line() -> None:
    before = "def step(self, batch):\n  with self.nets[0].no_sync(): self(batch).backward()  # sum\n"
    after = (
        "def step(self, batch):\n  self.nets[0].set_requires_gradient_sync(False)\n  try:\n"
        "    self(batch).backward()  # sum\n  finally:\n    self.nets[0].set_requires_gradient_sync(True)\n"
    )
    check_rewrites(before, after, w=WRAP)


def test_items_over_several_lines() -> None:
    before = """
    import torch

    def step(model, batch):
        with (
            model.no_sync(),  # one
            torch.profiler.record_function("step"),  # two
        ):
            model(batch).backward()
    """
    after = """
    import torch

    def step(model, batch):
        # one
        model.set_requires_gradient_sync(False)
        try:
            with (
                torch.profiler.record_function("step")  # two
            ):
                model(batch).backward()
        finally:
            model.set_requires_gradient_sync(True)
    """
    check_rewrites(before, after, w=WRAP, main=MAIN)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (
            "ctx = model.no_sync() if last else nullcontext()",
            "ctx = fsdp_compat.no_sync(model) if last else nullcontext()",
        ),
        ("stack.enter_context(model.no_sync())", "stack.enter_context(fsdp_compat.no_sync(model))"),
        ("with model.no_sync() as ctx:\n        pass", "with fsdp_compat.no_sync(model) as ctx:\n        pass"),
        ("with (ctx := model.no_sync()):\n        pass", "with (ctx := fsdp_compat.no_sync(model)):\n        pass"),
        ("with build().no_sync():\n        pass", "with fsdp_compat.no_sync(build()):\n        pass"),
        (
            "with model.no_sync() if last else other():\n        pass",
            "with fsdp_compat.no_sync(model) if last else other():\n        pass",
        ),
        (
            "with model.no_sync(), last.model.no_sync():\n        pass",
            "with fsdp_compat.no_sync(model), fsdp_compat.no_sync(last.model):\n        pass",
        ),
        (
            "with model.no_sync():\n        with model.no_sync():\n            pass",
            "with fsdp_compat.no_sync(model):\n        with fsdp_compat.no_sync(model):\n            pass",
        ),
        (
            "with last() as model, model.no_sync():\n        pass",
            "with last() as model, fsdp_compat.no_sync(model):\n        pass",
        ),
        (
            "with model.no_sync():\n        model, _ = last()",
            "with fsdp_compat.no_sync(model):\n        model, _ = last()",
        ),
    ],
)
def test_helper_in_place(before: str, after: str) -> None:
    head = "from contextlib import nullcontext\n\nimport fsdp_compat\n\n"
    source = f"{head}def step(model, stack, last, other, build):\n    {before}\n    return nullcontext\n"
    target = f"{head}def step(model, stack, last, other, build):\n    {after}\n    return nullcontext\n"
    check_rewrites(source, target, w=WRAP, main=MAIN)
    assert set(levels(source, Settings(helpers="never"), w=WRAP, main=MAIN)) == {"manual"}


def test_method_as_a_value() -> None:
    before = """
    import functools
    from contextlib import nullcontext

    import fsdp_compat

    def step(model, enter):
        context = model.no_sync
        with enter(context)():
            pass
    """
    after = before.replace("model.no_sync", "functools.partial(fsdp_compat.no_sync, model)")
    check_rewrites(before, after, w=WRAP, main=MAIN)


STORED = {
    "a conditional expression": (
        "context = model.no_sync() if micro < accum else nullcontext()\nwith context:",
        "syncs_gradients = micro >= accum\n",
        "syncs_gradients",
    ),
    "branches": (
        "if last:\n    context = nullcontext()\nelse:\n    context = model.no_sync()\nwith context:",
        "if last:\n    syncs_gradients = True\nelse:\n    syncs_gradients = False\n",
        "syncs_gradients",
    ),
    "a method": (
        "context = nullcontext if last else model.no_sync\nwith context():",
        "syncs_gradients = last\n",
        "syncs_gradients",
    ),
    "a lambda": ("context = lambda: model.no_sync() if accum else nullcontext()\nwith context():", "", "not accum"),
    "always": ("context = model.no_sync()\nwith context:", "syncs_gradients = False\n", "syncs_gradients"),
}


@pytest.mark.parametrize(("opened", "above", "flag"), STORED.values(), ids=STORED.keys())
def test_a_name_that_one_block_enters(opened: str, above: str, flag: str) -> None:
    head = "from contextlib import nullcontext\nkept = nullcontext\n\n"
    head += "def step(model, batch, micro=0, accum=1, last=False):\n"
    before = textwrap.indent(f"{opened}\n    model(batch).backward()\n", "    ")
    after = f"{above}model.set_requires_gradient_sync({flag})\ntry:\n    model(batch).backward()\nfinally:\n"
    after = textwrap.indent(f"{after}    model.set_requires_gradient_sync(True)\n", "    ")
    check_rewrites(head + before, head + after, w=WRAP, main=MAIN)


def test_a_name_that_one_block_enters_beside_another_context() -> None:
    before = """
    from contextlib import nullcontext
    kept = nullcontext

    def step(model, batch, profiling, last):
        with profiling() as profile:
            for micro in range(3):
                if last:
                    context = nullcontext()
                else:
                    context = model.no_sync()
                with context:
                    model(batch).backward()
    """
    after = """
    from contextlib import nullcontext
    kept = nullcontext

    def step(model, batch, profiling, last):
        with profiling() as profile:
            for micro in range(3):
                if last:
                    syncs_gradients = True
                else:
                    syncs_gradients = False
                model.set_requires_gradient_sync(syncs_gradients)
                try:
                    model(batch).backward()
                finally:
                    model.set_requires_gradient_sync(True)
    """
    check_rewrites(before, after, w=WRAP, main=MAIN)


@pytest.mark.parametrize(
    "body",
    [
        "context = model.no_sync()\nwith context:\n    pass\nwith context:\n    pass",
        "context = model.no_sync()\nkeep(context)\nwith context:\n    pass",
        "context = model.no_sync() if last else other()\nwith context:\n    pass",
        "context = model.no_sync() if last else second.no_sync()\nwith context:\n    pass",
        "context = other()\nif last:\n    context = model.no_sync()\nwith context:\n    pass",
        "context = model.no_sync()\nmodel = other()\nwith context:\n    pass",
        "context = model.no_sync()\nwith context as entered:\n    pass",
        "context = nullcontext()\nfor batch in keep:\n    with context:\n        pass\n    context = model.no_sync()",
        "def inner():\n    with context:\n        pass\ncontext = model.no_sync()\ninner()",
        "for context in [model.no_sync()]:\n    with context:\n        pass",
        "context = lambda at: model.no_sync() if at else nullcontext()\nwith context(last):\n    pass",
        "context, kept = model.no_sync(), 1\nwith context:\n    pass",
    ],
)
def test_a_name_that_more_than_one_block_may_enter(body: str) -> None:
    head = "from contextlib import nullcontext\n\nimport fsdp_compat\n\n"
    source = (
        f"{head}def step(model, second, other, keep, last):\n{textwrap.indent(body, '    ')}\n    return nullcontext\n"
    )
    target = source.replace("model.no_sync()", "fsdp_compat.no_sync(model)")
    target = target.replace("second.no_sync()", "fsdp_compat.no_sync(second)")
    main = MAIN + "example.step(model, wrap(net))\n"
    check_rewrites(source, target, w=WRAP, main=main)


STACKED = """
from contextlib import ExitStack, nullcontext

kept = nullcontext

def step(model, batch, last):
    with ExitStack() as stack:
        {}
        model(batch).backward()
"""


@pytest.mark.parametrize(
    ("item", "flag"),
    [("model.no_sync()", "False"), ("nullcontext() if last else model.no_sync()", "last")],
)
def test_on_an_exit_stack(item: str, flag: str) -> None:
    method = "model.set_requires_gradient_sync"
    after = f"{method}({flag})\n        stack.callback({method}, True)"
    check_rewrites(STACKED.format(f"stack.enter_context({item})"), STACKED.format(after), w=WRAP, main=MAIN)


@pytest.mark.parametrize(
    "body",
    [
        "context = stack.enter_context(model.no_sync())",
        "stack.enter_context(model.no_sync())\n        with model.no_sync():\n            pass",
        "other.enter_context(model.no_sync())",
    ],
)
def test_on_a_stack_that_may_hold_others(body: str) -> None:
    source = STACKED.replace("kept =", "import fsdp_compat\nkept =").format(body)
    check_rewrites(source, source.replace("model.no_sync()", "fsdp_compat.no_sync(model)"), w=WRAP, main=MAIN)


def test_where_ddp_is_used_as_well() -> None:
    maybe = "import fsdp_compat\n\ndef step(state, batch):\n    with state.model.no_sync():\n        pass\n"
    helped = maybe.replace("state.model.no_sync()", "fsdp_compat.no_sync(state.model)")
    main = MAIN.replace("model = ", "state.model = ")
    check_rewrites(maybe, helped, w=WRAP, d=DDP.replace("model = ", "state.model = "), main=main)
    check_rewrites(maybe, helped, w=WRAP, d=f"{DDP}state.model = model\n", main=main)
    unknown = with_item("model.no_sync()")
    assert levels(unknown, w=WRAP, d=DDP) == ["review"]
    assert levels("# fsdp or ddp\n" + unknown, w=WRAP, d=DDP) == ["review"]
    only_asked = DDP.partition("model")[0] + "test = isinstance(m, DistributedDataParallel)\n"
    native = unknown.replace("with model.no_sync():", "model.set_requires_gradient_sync(False)\n    try:")
    native += "    finally:\n        model.set_requires_gradient_sync(True)\n"
    check_rewrites(unknown, native, w=WRAP, d=only_asked, main=MAIN)


def test_a_model_that_is_surely_ddp_s_keeps_its_no_sync_without_a_word() -> None:
    wrap = "from torch.nn.parallel import DistributedDataParallel as DDP\n\ndef main(net, batch):\n"
    wrap += "    step(DDP(net), batch)\n\n"
    source = with_item("model.no_sync()")
    assert levels(wrap + source, w=WRAP) == []
    assert levels(wrap.replace("DDP(net)", "net") + source, w=WRAP, d=DDP) == ["review"]


REACHED = "from example import step\nfrom torch.nn.parallel import DistributedDataParallel as DDP\n"


@pytest.mark.parametrize(
    ("other", "level"),
    [
        (f"{REACHED}step(DDP(net))\n", "safe"),
        (f"{REACHED}def run(kept):\n    kept = kept.cuda()\n    step(kept, 1)\n\nrun(DDP(net, [0]))\n", "safe"),
        (f"{REACHED}net = DDP(net)\n\ndef train(net):\n    net.train()\n\ntrain(net)\n", "review"),
    ],
)
def test_a_model_that_ddp_wraps_is_followed(other: str, level: str) -> None:
    """The other program imports the same function, whatever its bytes say of FSDP1."""
    native = level == "review"
    source = with_item("model.no_sync()")
    assert levels(source, w=WRAP, main=MAIN, other=other) == [level]
    result = rewrite(source, w=WRAP, main=MAIN, other=other)
    assert isinstance(result, Changed)
    assert (b"set_requires_gradient_sync" in result.source) is native


def test_one_name_for_both_kinds_of_model() -> None:
    before = """
    import fsdp_compat
    from torch.nn.parallel import DistributedDataParallel as DDP
    from w import wrap

    def step(net, sharded, batch):
        model = wrap(net) if sharded else DDP(net)
        with model.no_sync():
            model(batch).backward()
    """
    check_rewrites(before, before.replace("model.no_sync()", "fsdp_compat.no_sync(model)"), w=WRAP)
    assert levels(before, w=WRAP) == ["safe"]


@pytest.mark.parametrize(
    ("test", "level"),
    [
        ("kind == Kind.ddp", "info"),
        ("cfg.ddp is not None and many", "info"),
        ("kind != Kind.ddp", "safe"),
        ("not ddp", "safe"),
        ('args.data_parallel in ["sdp", "hsdp"]', "safe"),
        ('kind in ("ddp", "fsdp")', "safe"),
    ],
)
def test_under_a_test_for_ddp_it_stays(test: str, level: str) -> None:
    source = f"""
from torch.nn.parallel import DistributedDataParallel as DDP
from w import wrap

def step(net, kind, batch):
    model = DDP(net) if kind == "ddp" else wrap(net)
    if {test}:
        with model.no_sync():
            model(batch).backward()
"""
    assert levels(source, w=WRAP) == [level]


def test_asked_for_by_name() -> None:
    before = """
    from torch.distributed.fsdp import FSDPModule
    from torch.nn.parallel import DistributedDataParallel

    def step(model):
        return hasattr(model, "no_sync"), DistributedDataParallel, FSDPModule
    """
    question = 'hasattr(model, "no_sync")'
    check_rewrites(before, before.replace(question, f"(isinstance(model, FSDPModule) or {question})"), w=WRAP)
    alone = """
    from torch.distributed.fsdp import FSDPModule

    def step(model):
        return hasattr(model, "no_sync"), FSDPModule
    """
    check_rewrites(alone, alone.replace(question, f"(isinstance(model, FSDPModule) or {question})"), w=WRAP)
    assert levels('def step(model):\n    return getattr(model, "no_sync")\n', w=WRAP) == ["manual"]


def test_review_with_mixed_precision() -> None:
    mixed = WRAP.replace("FSDP(model)", "FSDP(model, mixed_precision=MixedPrecision(param_dtype=dtype))")
    assert levels(with_item("model.no_sync()"), w=mixed, main=MAIN) == ["review"]


def test_manual_where_the_project_has_its_own() -> None:
    other = WRAP + "\nclass Own:\n    def no_sync(self):\n        return self\n"
    assert levels(with_item("model.no_sync()"), w=other) == ["manual"]


def test_a_default_for_no_sync_does_where_nothing_is_differentiated() -> None:
    taken = 'def sample(model, quiet):\n    no_sync = getattr(model, "no_sync", quiet)\n'
    inside = "import torch\n" + taken + "    with torch.no_grad(), no_sync():\n        model()\n"
    assert levels(inside, w=WRAP) == ["info"]
    assert levels(inside + "    with no_sync():\n        model()\n", w=WRAP) == ["review"]
    assert levels(taken + "    return no_sync\n", w=WRAP) == ["review"]
    assert levels(taken + "    return no_sync\n", Settings(helpers="never"), w=WRAP) == ["manual"]
    assert levels(taken.replace("getattr(model", "getattr(model()") + "    return no_sync\n", w=WRAP) == ["manual"]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("no_sync = {}\n        return no_sync", "no_sync = {}\n        return no_sync"),
        ("with {}():\n            step(model)", "with ({})():\n            step(model)"),
        ("return step({}, model)", "return step({}, model)"),
    ],
)
def test_a_default_for_no_sync_stays_for_others(before: str, after: str) -> None:
    source = """
    import functools

    import fsdp_compat
    from torch.distributed.fsdp import FSDPModule

    kept = functools, fsdp_compat, FSDPModule

    def train(model, step, quiet):
        BODY
    """
    asked = 'getattr(model, "no_sync", quiet)'
    instead = f"functools.partial(fsdp_compat.no_sync, model) if isinstance(model, FSDPModule) else {asked}"
    check_rewrites(
        source.replace("BODY", before.format(asked)),
        source.replace("BODY", after.format(instead)),
        Settings(line_length=200),
        w=WRAP,
        main="from w import wrap\nfrom example import train\n\ntrain(wrap(net), step, quiet)\n",
    )


def kept(strategy: str, wrap: str = "FSDP(net, sharding_strategy={})") -> str:
    return f"""
    import contextlib

    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardingStrategy

    STRATEGIES = {{"a": ShardingStrategy.SHARD_GRAD_OP, "b": ShardingStrategy._HYBRID_SHARD_ZERO2}}

    def train(net, batches, mode, last, chosen):
        model = {wrap.format(strategy)}
        for batch in batches:
            with contextlib.nullcontext() if last else model.no_sync():
                model(batch).backward()
    """


@pytest.mark.parametrize(
    ("strategy", "keeps"),
    [
        ("ShardingStrategy.SHARD_GRAD_OP", True),
        ("ShardingStrategy._HYBRID_SHARD_ZERO2", True),
        ('ShardingStrategy["SHARD_GRAD_OP"]', True),
        ("STRATEGIES[mode]", True),
        ("ShardingStrategy.NO_SHARD if mode else ShardingStrategy.SHARD_GRAD_OP", True),
        ("ShardingStrategy.FULL_SHARD", False),
        ("None", False),
    ],
)
def test_a_model_that_fsdp1_keeps_gathered_is_not_resharded_inside(strategy: str, keeps: bool) -> None:
    result = rewrite(kept(strategy))
    assert isinstance(result, Changed)
    assert (b"model.set_reshard_after_backward(last)" in result.source) is keeps
    assert (b"model.set_reshard_after_backward(True)" in result.source) is keeps
    assert levels(kept(strategy)) == ["safe"]


def test_a_model_of_a_strategy_that_is_chosen_at_run_time_is_for_the_reader() -> None:
    source = kept("ShardingStrategy[chosen]")
    assert levels(source) == ["review"]
    (found,) = (found for found in findings(source) if found.rule == "FSDP202")
    assert "SHARD_GRAD_OP" in found.message and "set_reshard_after_backward" in found.advice


def test_a_strategy_by_its_position_is_one() -> None:
    result = rewrite(kept("ShardingStrategy.SHARD_GRAD_OP", "FSDP(net, None, {})"))
    assert isinstance(result, Changed)
    assert b"model.set_reshard_after_backward(last)" in result.source


PRECISE = """
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, MixedPrecision

{made}

def step(net, batch, last):
    model = FSDP(net, mixed_precision={given})
    with model.no_sync():
        model(batch).sum().backward()
"""


@pytest.mark.parametrize(
    ("made", "given", "expected"),
    [
        ("HALF = MixedPrecision(torch.bfloat16, torch.float32)", "HALF", ["safe"]),
        ("", "MixedPrecision(param_dtype=torch.float16, reduce_dtype=torch.bfloat16)", ["safe"]),
        (
            "def half():\n    return MixedPrecision(param_dtype=torch.half, reduce_dtype=torch.float)",
            "half()",
            ["safe"],
        ),
        (
            "WIDE = {'reduce_dtype': torch.float32}\nclass Precision:\n    half = MixedPrecision(torch.half, **WIDE)",
            "Precision.half",
            ["safe"],
        ),
        ("import config", "MixedPrecision(config.dtype, config.reduced)", ["review"]),
        ("import config", "MixedPrecision(torch.bfloat16, config.reduced)", ["review"]),
        (
            "import config\nHALF = MixedPrecision(torch.half, torch.half)\nif config.other:\n    HALF = config.other",
            "HALF",
            ["review"],
        ),
        (
            "import config\ndef dtypes(own):\n    return config.own if own else MixedPrecision(torch.half, torch.half)",
            "dtypes(last)",
            ["review"],
        ),
    ],
)
def test_what_is_seen_to_accumulate_in_a_wider_dtype(made: str, given: str, expected: list[str]) -> None:
    source = PRECISE.format(made=made, given=given)
    assert levels(source) == expected
    result = rewrite(source)
    assert isinstance(result, Changed)
    assert (b"fsdp_compat.no_sync(" in result.source) == (expected == ["safe"])
    assert levels(source, Settings(helpers="never")) == (["manual"] if expected == ["safe"] else expected)


@pytest.mark.parametrize(
    ("made", "given"),
    [
        ("HALF = MixedPrecision(torch.bfloat16, torch.bfloat16)", "HALF"),
        ("", "MixedPrecision(param_dtype=torch.bfloat16)"),
        ("DTYPE = torch.half", "MixedPrecision(param_dtype=DTYPE, reduce_dtype=torch.float16)"),
        ("import config\nother = FSDP(config.net, mixed_precision=MixedPrecision(torch.half, torch.float))", "None"),
    ],
)
def test_a_model_that_accumulates_in_the_dtype_of_its_reduction_is_as_it_was(made: str, given: str) -> None:
    source = PRECISE.format(made=made, given=given)
    assert levels(source) == ["safe"]
    result = rewrite(source)
    assert isinstance(result, Changed)
    assert b"model.set_requires_gradient_sync(False)" in result.source


def test_a_torch_whose_helper_accumulates_in_the_wider_dtype_as_well() -> None:
    source = PRECISE.format(made="", given="MixedPrecision(torch.bfloat16, torch.float32)")
    assert levels(source, Settings(torch=(2, 15))) == ["review"]


WAYS = {
    "a field of a named tuple": """
class Job(NamedTuple):
    net: object
    steps: int

def train(net, batches, last):
    job = Job(FSDP(net, sharding_strategy=ShardingStrategy.SHARD_GRAD_OP), 3)
    MODEL = job.net
""",
    "partials in a loop": """
PARTIAL = functools.partial(FSDP, sharding_strategy=ShardingStrategy._HYBRID_SHARD_ZERO2)

def train(net, batches, last):
    for wrap in (PARTIAL, functools.partial(FSDP, sharding_strategy=ShardingStrategy.SHARD_GRAD_OP)):
        net = wrap(net)
    MODEL = net
""",
    "options": """
def train(net, batches, last):
    options = dict(use_orig_params=True)
    options.update(sharding_strategy=ShardingStrategy.SHARD_GRAD_OP)
    MODEL = FSDP(net, **options)
""",
    "a configuration": """
@dataclass
class Config:
    net: object
    strategy: object = ShardingStrategy.FULL_SHARD

def build(config):
    return FSDP(config.net, sharding_strategy=config.strategy)

def train(net, batches, last):
    MODEL = build(Config(net, ShardingStrategy.SHARD_GRAD_OP))
""",
    "a parameter": """
def build(net, strategy=None, **others):
    return FSDP(net, sharding_strategy=strategy, **others)

def train(net, batches, last):
    other = build(net.head)
    MODEL = build(net, ShardingStrategy.SHARD_GRAD_OP, use_orig_params=True)
""",
    "a configuration as keywords": """
@dataclass
class Options:
    sharding_strategy: object
    use_orig_params: bool = True

def train(net, batches, last):
    MODEL = FSDP(net, **asdict(Options(ShardingStrategy.SHARD_GRAD_OP)))
""",
    "an attribute by its name": """
def train(net, batches, last):
    MODEL = FSDP(net, None, getattr(ShardingStrategy, "SHARD_GRAD_OP"))
""",
}
USED = """
import functools
from dataclasses import asdict, dataclass
from typing import NamedTuple

from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardingStrategy

{way}
    for batch in batches:
        with model.no_sync():
            model(batch).backward()
"""


@pytest.mark.parametrize("way", WAYS)
def test_the_strategy_is_followed_to_the_wrap(way: str) -> None:
    source = USED.format(way=WAYS[way].strip().replace("MODEL", "model"))
    result = rewrite(source)
    assert isinstance(result, Changed)
    assert b"model.set_reshard_after_backward(False)" in result.source
    assert levels(source) == ["safe"]
    plain = re.sub(r"ShardingStrategy\.(SHARD_GRAD_OP|_HYBRID_SHARD_ZERO2)", "ShardingStrategy.FULL_SHARD", source)
    result = rewrite(plain.replace('"SHARD_GRAD_OP"', '"FULL_SHARD"') + "\nkept = ShardingStrategy.SHARD_GRAD_OP\n")
    assert isinstance(result, Changed)
    assert b"set_reshard_after_backward" not in result.source
    assert levels(plain) == ["safe"]


@pytest.mark.parametrize(
    "strategy",
    [
        "ShardingStrategy.FULL_SHARD if last else ShardingStrategy.SHARD_GRAD_OP",
        "{1: ShardingStrategy._HYBRID_SHARD_ZERO2}.get(last, ShardingStrategy.HYBRID_SHARD)",
    ],
)
def test_a_model_of_one_strategy_or_another_is_looked_at(strategy: str) -> None:
    source = kept(strategy)
    result = rewrite(source)
    assert isinstance(result, Changed)
    assert b"fsdp_compat.no_sync(model)" in result.source
    assert levels(source) == ["safe"]
    assert levels(source, Settings(helpers="never")) == ["manual"]


@pytest.mark.parametrize(
    "chosen",
    [
        "(Config(ShardingStrategy.SHARD_GRAD_OP) if last else Config()).strategy",
        "narrowed(ShardingStrategy.SHARD_GRAD_OP if last else None)",
    ],
)
def test_none_is_a_strategy_of_its_own(chosen: str) -> None:
    made = """
    from typing import NamedTuple

    class Config(NamedTuple):
        strategy: object = None

    def narrowed(strategy):
        if isinstance(strategy, str):
            raise ValueError(strategy)
        return strategy
    """
    source = kept(chosen).replace("    STRATEGIES =", f"{made}\n    STRATEGIES =")
    result = rewrite(source)
    assert isinstance(result, Changed)
    assert b"fsdp_compat.no_sync(model)" in result.source
