"""Rule FSDP203: the static method summon_full_params."""

from __future__ import annotations

import textwrap

import pytest

from fsdp_rules.settings import Settings
from fsdp_rules.verdict.result import Changed
from tests.rules.helpers import check_noop, check_rewrites, findings, rewrite

HEAD = """
import contextlib

import fsdp_compat
import torch
import torch.distributed.fsdp
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import fully_shard

kept = contextlib.nullcontext, fsdp_compat, torch, fully_shard
"""
HELPER = "fsdp_compat.summon_full_params"
IMPORT = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"


@pytest.mark.parametrize(
    "line",
    ["module.summon_full_params()", "FSDP.summon_full_params(module)", "trainer.strategy.summon_full_params(module)"],
)
def test_noop_for_other_classes(line: str) -> None:
    check_noop(f"from elsewhere import FullyShardedDataParallel as FSDP\n\ndef step(module, trainer):\n    {line}\n")


@pytest.mark.parametrize("name", ["FSDP", "torch.distributed.fsdp.FullyShardedDataParallel"])
@pytest.mark.parametrize(
    "form",
    [
        "with {}(m):\n        pass",
        "with {}(m, True, writeback=False, with_grads=True) as c, open(c):\n        pass",
        "with {}(m) if c else contextlib.nullcontext():\n        pass",
        "c = lambda: ({}(m, recurse=False) if c else contextlib.nullcontext())",
        "c = {} if c else kept",
        "with {}(\n        m,  # why\n        recurse=c\n    ):\n        pass",
    ],
)
def test_every_form(form: str, name: str) -> None:
    before = HEAD + "\ndef step(m, c):\n    " + form.format(f"{name}.summon_full_params") + "\n"
    after = HEAD + "\ndef step(m, c):\n    " + form.format(HELPER) + "\n"
    check_rewrites(before, after.replace(IMPORT, ""))
    manual = findings(before, Settings(helpers="never"))
    assert [(found.rule, found.level.value) for found in manual if found.rule != "FSDP100"] == [("FSDP203", "manual")]


@pytest.mark.parametrize("owner", ["model", "type(model)", "model.__class__"])
def test_through_an_instance(owner: str) -> None:
    head = "import fsdp_compat\nfrom w import wrap\n\n\ndef step(net):\n    model = wrap(net)\n    with "
    wrap = "from torch.distributed.fsdp import FullyShardedDataParallel\n\n\ndef wrap(model):\n"
    check_rewrites(
        f"{head}{owner}.summon_full_params(model):\n        pass\n",
        f"{head}fsdp_compat.summon_full_params(model):\n        pass\n",
        w=f"{wrap}    return FullyShardedDataParallel(model)\n",
    )


def test_the_name_alone_gives_it_away_where_the_project_wraps() -> None:
    wraps = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\nmodel = FSDP(model)\n"
    before = (
        "import fsdp_compat\n\nkept = fsdp_compat\n\n\ndef step(model):\n    with {}(model.module):\n        pass\n"
    )
    check_rewrites(before.format("model.module.summon_full_params"), before.format(HELPER), main=wraps)
    (found,) = findings(before.format("model.module.summon_full_params"), main=wraps)
    assert found.level.value == "review"


@pytest.mark.parametrize("owner", ["self", "trainer.strategy", "backend"])
def test_noop_for_methods_of_the_project(owner: str) -> None:
    wraps = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\nmodel = FSDP(model)\n"
    own = "class Backend:\n    def summon_full_params(self, model):\n        pass\n" if owner == "backend" else ""
    check_noop(
        f"def step(self, model, trainer, backend):\n    {owner}.summon_full_params(model)\n", main=wraps, own=own
    )


@pytest.mark.parametrize(("main", "level"), [("", "review"), (IMPORT + "model = FSDP(model)\n", "safe")])
def test_a_model_that_a_library_wraps(main: str, level: str) -> None:
    source = f"{IMPORT}\ndef sample(model):\n    return FSDP.summon_full_params(model)\n"
    (found,) = (entry for entry in findings(source, main=main) if entry.rule == "FSDP203")
    assert (found.level.value, "this project does not wrap" in found.message) == (level, level == "review")


NATIVE = {
    "an average": (
        """
        with FSDP.summon_full_params(model, writeback=False):
            for n, p in model.module.named_parameters():
                shadow[n] = p.detach().clone()
        """,
        """
        for n, p in model.named_parameters():
            shadow[n] = p.full_tensor().detach().clone()
        """,
    ),
    "a comprehension, beside another context": (
        """
        with torch.no_grad(), FSDP.summon_full_params(model):
            sizes = [p.abs().sum().item() for p in model.parameters() if p.requires_grad]
        """,
        """
        with torch.no_grad():
            sizes = [p.full_tensor().abs().sum().item() for p in model.parameters() if p.requires_grad]
        """,
    ),
    "two reads": (
        """
        with FSDP.summon_full_params(model):
            for p in model.parameters():
                print(p.shape, p.max(), p.mean())
        """,
        """
        for p in model.parameters():
            p = p.full_tensor()
            print(p.shape, p.max(), p.mean())
        """,
    ),
    "on the CPU": (
        """
        with FSDP.summon_full_params(model, offload_to_cpu=True, writeback=False):
            weights = {n: keep(p) for n, p in model.named_parameters()}
        """,
        """
        weights = {n: keep(p.full_tensor().cpu()) for n, p in model.named_parameters()}
        """,
    ),
    "a copy and a factor": (
        """
        with FSDP.summon_full_params(model):
            for n, p in model.named_parameters():
                if n in shadow:
                    p.data.copy_(shadow[n])
                else:
                    p.data.mul_(0.5)
        """,
        """
        for n, p in model.named_parameters():
            if n in shadow:
                p.data.copy_(distribute_tensor(shadow[n], p.device_mesh, p.placements, src_data_rank=None))
            else:
                p.data.mul_(0.5)
        """,
    ),
    "a lambda that chooses": (
        """
        enter = lambda: (FSDP.summon_full_params(model, False, False) if "FSDP" in keep.kind else nullcontext())
        with enter():
            tokens = model.generate(tokens)
        """,
        """
        gathers = "FSDP" in keep.kind
        if gathers:
            model.unshard()
        try:
            tokens = model.generate(tokens)
        finally:
            if gathers:
                model.reshard()
        """,
    ),
    "chosen above": (
        """
        context = nullcontext() if keep == 1 else FSDP.summon_full_params(model, writeback=False)
        keep = 2
        with torch.no_grad(), context:
            tokens = model.generate(tokens)
        """,
        """
        gathers = keep != 1
        keep = 2
        if gathers:
            model.unshard()
        try:
            with torch.no_grad():
                tokens = model.generate(tokens)
        finally:
            if gathers:
                model.reshard()
        """,
    ),
    "chosen by a test": (
        """
        context = nullcontext()
        # why
        if keep:
            context = FSDP.summon_full_params(model, writeback=False, recurse=False)
        with context:
            tokens = model.generate(tokens)
        """,
        """
        gathers = False
        # why
        if keep:
            gathers = True
        if gathers:
            model.unshard()
        try:
            tokens = model.generate(tokens)
        finally:
            if gathers:
                model.reshard()
        """,
    ),
    "chosen by a name": (
        """
        with FSDP.summon_full_params(model, writeback=False) if keep else nullcontext():
            tokens = model.generate(tokens)
        """,
        """
        if keep:
            model.unshard()
        try:
            tokens = model.generate(tokens)
        finally:
            if keep:
                model.reshard()
        """,
    ),
    "stored, and read": (
        """
        whole = FSDP.summon_full_params(model, writeback=False)
        with whole:
            sizes = [p.abs().sum() for p in model.parameters()]
        """,
        """
        sizes = [p.full_tensor().abs().sum() for p in model.parameters()]
        """,
    ),
    "generation": (
        """
        with FSDP.summon_full_params(model, writeback=False, recurse=False):
            # why
            tokens = model.generate(tokens)
        """,
        """
        model.unshard()
        try:
            # why
            tokens = model.generate(tokens)
        finally:
            model.reshard()
        """,
    ),
}


@pytest.mark.parametrize(("before", "after"), NATIVE.values(), ids=NATIVE.keys())
def test_blocks_without_a_helper(before: str, after: str) -> None:
    head = "import torch\nfrom contextlib import nullcontext\nfrom torch.distributed.fsdp import {}\n{}\n\n"
    head += "kept = nullcontext\n\ndef step(net, shadow, keep, tokens):\n    model = {}(net)\n"
    tensors = "from torch.distributed.tensor import distribute_tensor\n" if "distribute_tensor" in after else ""
    old = head.format("FullyShardedDataParallel as FSDP", "", "FSDP") + textwrap.indent(textwrap.dedent(before), "    ")
    new = head.format("fully_shard", tensors, "fully_shard") + textwrap.indent(textwrap.dedent(after), "    ")
    check_rewrites(old.replace("\n\n", "\n"), new.replace("\n\n", "\n"), Settings(torch=(2, 7)))


EACH = "with FSDP.summon_full_params(model):\n    for p in model.parameters():\n        "


@pytest.mark.parametrize(
    ("block", "why"),
    [
        ("with FSDP.summon_full_params(model):\n    save(model)", "used as a whole"),
        ("with FSDP.summon_full_params(model):\n    model.init()", "what init does"),
        (EACH + "nn.init.zeros_(p)", "may write"),
        (EACH + "p.normal_()", "normal_ writes"),
        (EACH + "p += 1", "reassigned"),
        (EACH + "p.data = p.data * 2", "p.data is assigned"),
        (EACH + "p[0] = 1", "a part of p is assigned"),
        (EACH + "p.detach().zero_()", "may write"),
        (EACH + "kept.append(p)", "may write"),
        (EACH + "print(p.grad)", "p.grad"),
        (EACH + "if rank == 0:\n            print(p.sum())", "only some ranks"),
        ("with FSDP.summon_full_params(model, rank0_only=True):\n    print(model.weight)", "only rank 0"),
        ("with FSDP.summon_full_params(model, writeback=flag):\n    print(model.weight)", "at run time"),
        ("context = FSDP.summon_full_params(model)\nwith context as c:\n    model.generate()", "stored"),
        (
            "context = FSDP.summon_full_params(model)\nmodel = kept\nwith context:\n    model.generate()",
            "was reassigned",
        ),
        ("context = lambda m: FSDP.summon_full_params(m)\nwith context(model):\n    model.generate()", "stored"),
        ("context = FSDP.summon_full_params(model)\nkept(context)\nwith context:\n    model.generate()", "stored"),
        (
            "with FSDP.summon_full_params(model) if kept else nullcontext():\n"
            "    for p in model.parameters():\n        print(p.sum())",
            "stored",
        ),
    ],
)
def test_what_needs_the_helper_says_why(block: str, why: str) -> None:
    source = IMPORT + "from contextlib import nullcontext\nfrom torch import nn\n\n"
    source += "def step(net, flag, rank, save, kept):\n    model = FSDP(net)\n"
    (found,) = (one for one in findings(source + textwrap.indent(block, "    ") + "\n") if one.rule == "FSDP203")
    assert why in found.message
    assert "full_tensor()" in found.advice
    assert "fsdp_compat" in found.message


def test_parameters_are_sharded_again_after_a_forward() -> None:
    source = IMPORT + textwrap.dedent(
        """
        def evaluate(net, batch, shadow):
            model = FSDP(net)
            print(model(batch))
            with FSDP.summon_full_params(model, writeback=False):
                for n, p in model.named_parameters():
                    shadow[n] = p.clone()
        """
    )
    result = rewrite(source)
    assert isinstance(result, Changed)
    assert b"unit.reshard()\n    for n, p in model.named_parameters():" in result.source


def test_a_model_that_nothing_is_known_of_is_assumed_to_be_the_sharded_one() -> None:
    source = IMPORT + textwrap.dedent(
        """
        def build(net):
            return FSDP(net)

        def copy_to(unknown, shadow):
            with FSDP.summon_full_params(unknown, writeback=True):
                for n, p in unknown.named_parameters():
                    p.data.copy_(shadow[n])
        """
    )
    result = rewrite(source)
    assert isinstance(result, Changed)
    assert b"fsdp_compat" not in result.source
    (found,) = (one for one in result.findings if one.rule == "FSDP203")
    assert found.level.value == "review"
    assert "assuming unknown is the sharded model" in found.message


def test_a_method_that_reads_parameters_inside_keeps_the_block() -> None:
    source = """
    import torch
    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

    class Pruner:
        def __init__(self, net):
            self.model = FSDP(net, use_orig_params=True)
            with FSDP.summon_full_params(self.model, writeback=False):
                self.masks = {n: torch.ones_like(p) for n, p in self.prunable()}
                self.start = {n: p.detach().clone() for n, p in self.model.named_parameters()}

        def prunable(self):
            return [(n, p) for n, p in self.model.named_parameters() if n.endswith("weight")]
    """
    (found,) = [one for one in findings(source) if one.rule == "FSDP203"]
    assert "self.prunable() also returns parameters that it gathers" in found.message
    (found,) = [one for one in findings(source.replace("self.prunable()}", "()}")) if one.rule == "FSDP203"]
    assert "full_tensor()" in found.message


@pytest.mark.parametrize(
    ("policy", "step", "helper"),
    [
        ("auto_wrap_policy=ModuleWrapPolicy({Layer})", "layer.step(x)", True),
        ("auto_wrap_policy=size_based_auto_wrap_policy", "layer.step(x)", True),
        ("auto_wrap_policy=size_based_auto_wrap_policy", "self.once(layer, x)", True),
        ("use_orig_params=True", "layer.step(x)", False),
        ("auto_wrap_policy=ModuleWrapPolicy({Layer})", "layer(x)", False),
        ("auto_wrap_policy=ModuleWrapPolicy({Layer})", "self.cache.push(layer(x))", False),
    ],
)
def test_a_method_that_runs_another_method_of_a_unit_keeps_the_block(policy: str, step: str, helper: bool) -> None:
    source = f"""
    import torch
    from torch import nn
    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
    from torch.distributed.fsdp.wrap import ModuleWrapPolicy, size_based_auto_wrap_policy

    class Cache:
        def push(self, x):
            return x

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x):
            return self.linear(x)

        def step(self, x):
            return self.linear(x)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.cache = Cache()
            self.layers = nn.ModuleList([Layer(), Layer()])

        def once(self, layer, x):
            return layer.step(x)

        def generate(self, x):
            for layer in self.layers:
                x = {step}
            return x

    def main(x):
        model = FSDP(Net(), {policy})
        with FSDP.summon_full_params(model, writeback=False):
            return model.module.generate(x)
    """
    (found,) = [one for one in findings(source) if one.rule == "FSDP203"]
    assert ("calls a method of a unit" in found.message) is helper
