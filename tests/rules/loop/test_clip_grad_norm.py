"""Rule FSDP201: the method clip_grad_norm_."""

from __future__ import annotations

import pytest

from fsdp_rules.settings import Settings
from fsdp_rules.verdict.result import Changed
from tests.rules.helpers import check_noop, check_rewrites, findings, rewrite

WRAP = """
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

def wrap(model):
    return FSDP(model)
"""
#: A wrap of another model, which fully_shard alone can do.
HEAD_WRAP = "\n\ndef wrap_head(head):\n    head = FSDP(head)\n    return head\n\n\n"


def levels(source: str, settings: Settings | None = None, **others: str) -> list[str]:
    return [found.level.value for found in findings(source, settings, **others) if found.rule == "FSDP201"]


@pytest.mark.parametrize(
    "source",
    [
        pytest.param("def step(model):\n    model.clip_grad_norm_(1.0)\n", id="no FSDP1 in the project"),
        pytest.param(
            "import torch\n\ndef step(model):\n    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n",
            id="torch",
        ),
    ],
)
def test_noop_without_fsdp(source: str) -> None:
    check_noop(source)


@pytest.mark.parametrize(
    "line",
    [
        "accelerator.clip_grad_norm_(model.parameters(), 1.0)",
        "self.accelerator.clip_grad_norm_(1.0)",
        "fabric.clip_grad_norm_(1.0)",
        "self.trainer.strategy.clip_grad_norm_(1.0)",
        "optimizer.clip_grad_norm_(1.0)",
        "self.clip_grad_norm_(1.0)",
        "utils.clip_grad_norm_(params, 1.0)",
        "helpers.clip_grad_norm_(1.0)",
        "model.clip_grad_norm_(model.parameters(), 1.0)",
        "model.clip_grad_norm_(max_norm=1.0, parameters=model.parameters())",
        "clip_grad_norm_(1.0)",
    ],
)
def test_noop_for_other_objects(line: str) -> None:
    check_noop(
        f"import helpers\n\ndef step(self, accelerator, fabric, optimizer, utils, params, net):\n    {line}\n", w=WRAP
    )


def test_in_a_file_that_imports_no_fsdp() -> None:
    before = """
    import torch

    def step(model, cfg):
        model.clip_grad_norm_(cfg.max_norm)
        total = model.clip_grad_norm_(cfg.max_norm, norm_type=2)
        return model.clip_grad_norm_(max_norm=cfg.max_norm)
    """
    after = """
    import torch

    def step(model, cfg):
        torch.nn.utils.clip_grad_norm_(model.parameters(), cfg.max_norm)
        total = torch.nn.utils.clip_grad_norm_(model.parameters(), cfg.max_norm, norm_type=2).full_tensor()
        return torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=cfg.max_norm).full_tensor()
    """
    check_rewrites(before, after, main="from w import wrap\nimport example\n\nexample.step(wrap(m), c)\n", w=WRAP)


def test_levels() -> None:
    step = "def step(model):\n    model.clip_grad_norm_(1.0)\n"
    call = "from w import wrap\nimport example\n\nmodel = wrap(net)\nexample.step(model)\n"
    assert levels(step, w=WRAP, main=call) == ["safe"]
    assert levels(step, w=WRAP) == ["review"]


def test_receivers() -> None:
    before = """
    import torch
    from w import wrap

    class Trainer:
        def __init__(self, net, nets):
            self.model = wrap(net)
            self.nets = [wrap(net) for net in nets]

        def step(self, stats):
            stats["norm"] += self.model.clip_grad_norm_(1.0).item()
            self.nets[0].clip_grad_norm_(2.0, 1)
            (  self.model.clip_grad_norm_(1.0)  )
            print(get_model().clip_grad_norm_(1.0))
    """
    after = """
    import torch
    from w import wrap

    class Trainer:
        def __init__(self, net, nets):
            self.model = wrap(net)
            self.nets = [wrap(net) for net in nets]

        def step(self, stats):
            stats["norm"] += torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0).full_tensor().item()
            torch.nn.utils.clip_grad_norm_(self.nets[0].parameters(), 2.0, 1)
            (  torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)  )
            print(torch.nn.utils.clip_grad_norm_(get_model().parameters(), 1.0).full_tensor())
    """
    check_rewrites(before, after, w=WRAP)
    assert levels(before, w=WRAP) == ["safe", "safe", "safe", "review"]


def test_several_lines_keep_their_comments() -> None:
    before = """
    import torch

    def step(model, cfg):
        norm = model.clip_grad_norm_(  # first
            cfg["#max"],  # second
            norm_type=2.0  # third
        )
        return norm
    """
    after = """
    import torch

    def step(model, cfg):
        norm = torch.nn.utils.clip_grad_norm_(
            # first
            model.parameters(),
            cfg["#max"],  # second
            norm_type=2.0,  # third
        ).full_tensor()
        return norm
    """
    check_rewrites(before, after, w=WRAP)


def test_helper_for_mixed_gradients() -> None:
    wrapping = WRAP.replace("FSDP(model)", "FSDP(model, ignored_modules=[model.frozen])")
    before = """
    import torch

    def step(model, cfg):
        return model.clip_grad_norm_(cfg.max_norm).item()
    """
    after = """
    import fsdp_compat
    import torch

    def step(model, cfg):
        return fsdp_compat.clip_grad_norm_(model, cfg.max_norm).item()
    """
    check_rewrites(before, after, w=wrapping)
    assert levels(before, Settings(helpers="never"), w=wrapping) == ["manual"]


def test_asked_for_by_name() -> None:
    before = """
    import torch

    def step(model):
        if hasattr(model, "clip_grad_norm_"):
            model.clip_grad_norm_(1.0)
        else:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    """
    after = """
    import torch
    from torch.distributed.fsdp import FSDPModule

    def step(model):
        if isinstance(model, FSDPModule):
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        else:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    """
    check_rewrites(before, after, w=WRAP)


@pytest.mark.parametrize(
    "line",
    [
        "clip = model.clip_grad_norm_",
        "model.clip_grad_norm_ = clip",
        'clip = getattr(model, "clip_grad_norm_", None)',
    ],
)
def test_manual_as_a_value(line: str) -> None:
    source = WRAP + f"\ndef step(net):\n    model = FSDP(net)\n    {line}\n    return clip\n"
    assert levels(source) == ["manual"]


def test_manual_where_the_project_has_its_own() -> None:
    other = WRAP + "\nclass Own:\n    def clip_grad_norm_(self, norm):\n        return norm\n"
    assert levels("def step(thing):\n    thing.clip_grad_norm_(1.0)\n", w=other) == ["manual"]


def test_review_where_parameters_may_be_low_precision() -> None:
    source = WRAP + "\ndef step(net):\n    model = FSDP(net.bfloat16())\n    model.clip_grad_norm_(1.0)\n"
    assert levels(source) == ["review"]


def test_where_only_a_subclass_wraps() -> None:
    other = WRAP.replace("def wrap(model):\n    return FSDP(model)", "class Own(FSDP):\n    pass")
    assert levels("def step(model):\n    model.clip_grad_norm_(1.0)\n", other=other) == ["info"], (
        "a wrap by a subclass is left by hand, and so is all else"
    )


@pytest.mark.parametrize("argument", ["ignored_modules=None", "ignored_states=[]", '**{"ignored_modules": None}'])
def test_no_helper_where_nothing_is_ignored(argument: str) -> None:
    before = "import torch\n\ndef step(model):\n    model.clip_grad_norm_(1.0)\n"
    after = before.replace("model.clip_grad_norm_(1.0)", "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)")
    check_rewrites(before, after, w=WRAP.replace("FSDP(model)", f"FSDP(model, {argument})"))


def test_an_infinity_norm_goes_to_the_helper() -> None:
    check_rewrites(
        """
        from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

        def step(model):
            model = FSDP(model)
            return model.clip_grad_norm_(1.0, float("inf"))
        """,
        """
        import fsdp_compat
        from torch.distributed.fsdp import fully_shard

        def step(model):
            fully_shard(model)
            return fsdp_compat.clip_grad_norm_(model, 1.0, float("inf"))
        """,
    )


FACTORY = """
from torch.distributed.fsdp import CPUOffload, FullyShardedDataParallel as FSDP

def wrap(module, cpu_offload=False, ignored=None):
    return FSDP(module, cpu_offload=CPUOffload(offload_params=cpu_offload), ignored_modules=ignored)
"""
TRAIN = """
import torch
from w import wrap

def train(net, text_encoder):
    model = wrap(net)
    other = {other}
    return model.clip_grad_norm_(1.0)
"""


@pytest.mark.parametrize(
    ("other", "helped"),
    [
        ("wrap(text_encoder)", False),
        ("wrap(text_encoder, cpu_offload=True)", False),
        ("wrap(text_encoder, ignored=[text_encoder.head])", False),
        ("0\n    model = wrap(net, ignored=[net.head])", True),
    ],
)
def test_what_another_model_is_given_counts_for_that_one(other: str, helped: bool) -> None:
    result = rewrite(TRAIN.format(other=other), w=FACTORY)
    assert isinstance(result, Changed)
    assert (b"fsdp_compat.clip_grad_norm_(model" in result.source) is helped
    assert (b"torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0).full_tensor()" in result.source) is not helped


@pytest.mark.parametrize("helpers", ["never", "needed"])
@pytest.mark.parametrize("offload", ["args.offload", "True"])
def test_offloaded_gradients_need_a_cpu_backend(offload: str, helpers: str) -> None:
    # Another wrap is rewritten whatever helpers are allowed: a tree in which none is keeps FSDP1 whole.
    wraps = WRAP.replace("FSDP(model)", f"FSDP(model, cpu_offload=CPUOffload({offload}))") + HEAD_WRAP
    step, settings = "def step(model):\n    model.clip_grad_norm_(1.0)\n", Settings(helpers=helpers)
    (found,) = (one for one in findings(step, settings, w=wraps) if one.rule == "FSDP201")
    assert found.level.value == "review"
    assert "assuming the process group has a CPU backend" in found.message
    assert "cpu:gloo,cuda:nccl" in found.advice
    assert b"torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)" in rewrite(step, settings, w=wraps).source  # type: ignore[union-attr]


STARTED = {
    "a literal": ("dist.init_process_group('nccl')", True),
    "a keyword": ("dist.init_process_group(init_method='env://', backend=\"nccl\")", True),
    "a choice": ("dist.init_process_group('nccl' if torch.cuda.is_available() else 'gloo')", True),
    "a name": ("backend = 'nccl'\n    dist.init_process_group(backend)", True),
    "an option": ("parser.add_argument('--dist-backend', type=str, default='nccl')", True),
    "both": ("dist.init_process_group('cpu:gloo,cuda:nccl')", False),
    "torch's default": ("dist.init_process_group()", False),
    "gloo": ("dist.init_process_group('gloo')", False),
}


@pytest.mark.parametrize(("line", "alone"), STARTED.values(), ids=STARTED.keys())
@pytest.mark.parametrize("place", ["the same file", "a file that is imported", "the file of the step"])
def test_a_group_of_nccl_alone_contradicts_the_assumption(line: str, alone: bool, place: str) -> None:
    start = f"import torch\nimport torch.distributed as dist\n\ndef start(parser):\n    {line}\n"
    wraps = WRAP.replace("FSDP(model)", "FSDP(model, cpu_offload=CPUOffload(True))") + HEAD_WRAP
    step = "import start\n\ndef step(model):\n    model.clip_grad_norm_(1.0)\n"
    files = {"w": wraps}
    if place == "the same file":
        files["w"] = wraps + start
    elif place == "the file of the step":
        step = start + step.replace("import start\n", "")
    else:
        files["start"] = start
    (found,) = (one for one in findings(step, **files) if one.rule == "FSDP201")
    if place == "the file of the step" and alone and "init_process_group(" in line and "backend)" not in line:
        # The call is seen, and gets the backend.
        assert "assuming init_process_group() of this file starts the process group" in found.message
        assert levels(step, Settings(helpers="never"), **files) == ["review"]
        return
    assert ("NCCL cannot reduce a norm on the CPU" in found.message) is alone
    assert ("assuming the process group" in found.message) is not alone
    assert levels(step, Settings(helpers="never"), **files) == ["manual" if alone else "review"]
    if alone:
        assert b"fsdp_compat.clip_grad_norm_(model, 1.0)" in rewrite(step, **files).source  # type: ignore[union-attr]


def test_helpers_always() -> None:
    before = "import fsdp_compat\n\ndef step(model):\n    model.clip_grad_norm_(1.0)\n"
    after = before.replace("model.clip_grad_norm_(1.0)", "fsdp_compat.clip_grad_norm_(model, 1.0)")
    check_rewrites(before, after, Settings(helpers="always"), w=WRAP)


@pytest.mark.parametrize(
    ("call", "after"),
    [
        ("FSDP.clip_grad_norm_(core, 1.0)", "torch.nn.utils.clip_grad_norm_(core.parameters(), 1.0)"),
        (
            "norm = FSDP.clip_grad_norm_(core, max_norm=limit)",
            "norm = torch.nn.utils.clip_grad_norm_(core.parameters(), max_norm=limit).full_tensor()",
        ),
        (
            "print(FSDP.clip_grad_norm_(core, 2.0, norm_type=2.0).item())",
            "print(torch.nn.utils.clip_grad_norm_(core.parameters(), 2.0, norm_type=2.0).full_tensor().item())",
        ),
        (
            "FSDP.clip_grad_norm_(max_norm=limit, self=core)",
            "torch.nn.utils.clip_grad_norm_(core.parameters(), max_norm=limit)",
        ),
        (
            "FSDP.clip_grad_norm_(core, limit, norm_type=kind)",
            "fsdp_compat.clip_grad_norm_(core, limit, norm_type=kind)",
        ),
    ],
)
def test_the_class_called_with_the_model(call: str, after: str) -> None:
    source = (
        "import torch\nfrom torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n\n"
        f"def step(core, limit, kind):\n    {call}\n"
    )
    main = f"{WRAP}\nfrom example import step\n\nmodel = wrap(net)\nstep(model, 1.0, 2.0)\n"
    imports = "import fsdp_compat\nimport torch\n" if "fsdp_compat" in after else "import torch\n"
    check_rewrites(source, f"{imports}\ndef step(core, limit, kind):\n    {after}\n", main=main)
    assert [each.rule for each in findings(source, main=main) if each.level.value == "manual"] == []


@pytest.mark.parametrize(
    "line",
    ["FSDP.clip_grad_norm_(core.parameters(), 1.0)", "clip = FSDP.clip_grad_norm_", "FSDP.clip_grad_norm_(*given)"],
)
def test_the_class_called_in_another_way(line: str) -> None:
    source = f"{WRAP}\ndef step(core, given):\n    core = wrap(core)\n    {line}\n"
    assert "FSDP901" in {each.rule for each in findings(source) if each.level.value == "manual"}


SHARED = """
from torch.distributed.fsdp import CPUOffload, FullyShardedDataParallel as FSDP

def shard(module, offload=False):
    return FSDP(module, cpu_offload=CPUOffload(offload_params=offload))
"""
STARTED = """
import torch.distributed as dist

dist.init_process_group(backend="nccl")
"""
TRAINS = """
from shared import shard  # FSDP, FullyShardedDataParallel

class Trainer:
    def __init__(self, model):
        self.model = model
        self.model.generator = shard(self.model.generator{0})

    def step(self, loss):
        loss.backward()
        return self.model.generator.clip_grad_norm_(1.0)
"""


@pytest.mark.parametrize("own", ["", ", offload=False"])
def test_another_program_that_offloads_says_nothing_of_this_one(own: str) -> None:
    others = {"shared": SHARED, "started": STARTED, "another": TRAINS.format(", offload=True")}
    (found,) = [one for one in findings(TRAINS.format(own), **others) if one.rule == "FSDP201"]
    assert "offloaded" not in found.message
    others["another"] = TRAINS.format("")
    (found,) = [one for one in findings(TRAINS.format(", offload=True"), **others) if one.rule == "FSDP201"]
    assert "offloaded" in found.message


@pytest.mark.parametrize(
    ("test", "level"),
    [("isinstance(model, FSDP)", "safe"), ("isinstance(model, (FSDP, DDP))", "manual"), ("model.training", "manual")],
)
def test_a_test_for_fsdp1_tells_a_model_from_an_object_with_its_own_method(test: str, level: str) -> None:
    source = f"""
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.nn.parallel import DistributedDataParallel as DDP

class Accelerator:
    def prepare(self, thing):
        if self.plugin:
            thing = FSDP(thing)
        self.models.append(thing)

    def clip_grad_norm_(self, max_norm):
        for model in self.models:
            if {test}:
                model.clip_grad_norm_(max_norm)
"""
    assert levels(source) == [level]


OWN = """
import torch.nn as nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Tower(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = FSDP(nn.Linear(2, 2))
        {made}

    {own}


def main(model):
    model.clip_grad_norm_(1.0)


main(Tower())
"""


@pytest.mark.parametrize(
    ("made", "own"),
    [
        ("self.other = None", "def clip_grad_norm_(self, norm): return norm"),
        ("def clip(norm): return norm\n        self.clip_grad_norm_ = clip", "def other(self): pass"),
    ],
)
def test_a_function_of_the_tree_is_not_fsdp1_s_method(made: str, own: str) -> None:
    elsewhere = "class Other:\n    def clip_grad_norm_(self): pass\n"
    assert all(one.rule != "FSDP201" for one in findings(OWN.format(made=made, own=own), o=elsewhere))


@pytest.mark.parametrize("limit", ["self.hparams.clip", 'hparams["max_grad_norm"]', "self.HPARAMS.clip"])
def test_a_limit_among_hyperparameters_is_no_list_of_parameters(limit: str) -> None:
    source = f"""
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

def step(self, net, hparams):
    model = FSDP(net)
    return model.clip_grad_norm_({limit})
"""
    assert levels(source) == ["safe"]
