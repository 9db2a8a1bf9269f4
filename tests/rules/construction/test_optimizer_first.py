"""FSDP117: optimizers built before the model is wrapped."""

from __future__ import annotations

import pytest

from fsdp_rules.settings import Settings
from tests.rules.helpers import check_noop, check_rewrites, findings

HEAD = "import torch\nfrom torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"


def found(source: str, settings: Settings | None = None) -> list[tuple[str, str]]:
    return [(one.level.value, one.message) for one in findings(HEAD + source, settings) if one.rule == "FSDP117"]


def test_without_fsdp1_nothing_happens() -> None:
    check_noop("import torch\n\noptimizer = torch.optim.SGD(model.parameters())\nmodel = shard(model)\n")


def test_an_optimizer_built_afterwards_is_left_alone() -> None:
    assert found("model = FSDP(model)\noptimizer = torch.optim.SGD(model.parameters())\n") == []


def test_an_optimizer_of_another_model_is_left_alone() -> None:
    assert found("optimizer = torch.optim.SGD(critic.parameters())\nmodel = FSDP(model)\n") == []


def test_schedulers_are_not_optimizers() -> None:
    assert found("s = torch.optim.lr_scheduler.LambdaLR(get(model), f)\nmodel = FSDP(model)\n") == []


def test_attributes_and_libraries_of_their_own() -> None:
    check_rewrites(
        """
        import bitsandbytes as bnb
        from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

        class Trainer:
            def __init__(self, model):
                self.model = model
                self.optimizer = bnb.optim.AdamW8bit([p for p in self.model.parameters() if p.requires_grad])
                self.steps = 0
                self.model = FSDP(self.model, use_orig_params=True)
        """,
        """
        import bitsandbytes as bnb
        from torch.distributed.fsdp import fully_shard

        class Trainer:
            def __init__(self, model):
                self.model = model
                self.steps = 0
                fully_shard(self.model)
                self.optimizer = bnb.optim.AdamW8bit([p for p in self.model.parameters() if p.requires_grad])
        """,
    )


def test_a_scheduler_between_the_two_needs_the_optimizer_where_it_is() -> None:
    check_rewrites(
        """
        import torch
        from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

        def build(model):
            groups = [{"params": [p for p in model.parameters() if p.ndim > 1]}]
            optimizer = torch.optim.SGD(groups, lr=0.1)
            scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10)
            model = FSDP(model, use_orig_params=True)
            return model, optimizer, scheduler
        """,
        """
        import fsdp_compat
        import torch

        def build(model):
            groups = [{"params": [p for p in model.parameters() if p.ndim > 1]}]
            optimizer = torch.optim.SGD(groups, lr=0.1)
            scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10)
            model = fsdp_compat.shard(model, use_orig_params=True)
            fsdp_compat.relink_optimizer(optimizer, model)
            return model, optimizer, scheduler
        """,
    )


def test_parts_wrapped_one_by_one_in_a_loop() -> None:
    check_rewrites(
        """
        import torch
        from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

        def build(model):
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for i, layer in enumerate(model.layers):
                model.layers[i] = FSDP(layer, use_orig_params=True)
            return model, optimizer
        """,
        """
        import fsdp_compat
        import torch

        def build(model):
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for i, layer in enumerate(model.layers):
                model.layers[i] = fsdp_compat.shard(layer, use_orig_params=True)
            fsdp_compat.relink_optimizer(optimizer, model)
            return model, optimizer
        """,
    )


def test_a_loop_that_trains_relinks_before_it_does() -> None:
    check_rewrites(
        """
        import torch
        from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

        def compare(runs):
            pairs = []
            for model in runs:
                optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
                pairs.append((model, optimizer))
            for model, optimizer in pairs:
                model = FSDP(model, use_orig_params=True)
                train(model, optimizer)
        """,
        """
        import fsdp_compat
        import torch

        def compare(runs):
            pairs = []
            for model in runs:
                optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
                pairs.append((model, optimizer))
            for model, optimizer in pairs:
                model = fsdp_compat.shard(model, use_orig_params=True)
                fsdp_compat.relink_optimizer(optimizer, model)
                train(model, optimizer)
        """,
    )


@pytest.mark.parametrize(
    ("between", "level"),
    [("print('sharding')", "safe"), ("kwargs = {'use_orig_params': True}", "safe"), ("freeze(model)", "review")],
)
def test_a_statement_that_may_change_what_the_optimizer_holds(between: str, level: str) -> None:
    source = f"""
optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
{between}
model = FSDP(model, use_orig_params=True)
"""
    assert [each for each, _ in found(source)] == [level]


def test_flat_parameters_never_trained_this_way_and_that_is_said() -> None:
    ((level, message),) = found("optimizer = torch.optim.SGD(model.parameters())\nmodel = FSDP(model)\n")
    assert level == "review"
    assert "trained nothing" in message


def test_a_wrapped_model_that_is_returned_at_once() -> None:
    source = (
        "def build(model):\n    optimizer = torch.optim.SGD(model.parameters())\n    return FSDP(model), optimizer\n"
    )
    assert [level for level, _ in found(source)] == ["manual"]


def test_without_helpers_nothing_is_relinked() -> None:
    source = "if fast:\n    optimizer = torch.optim.SGD(model.parameters())\nmodel = FSDP(model)\n"
    assert [level for level, _ in found(source, Settings(helpers="never"))] == ["manual"]


def test_parameters_that_a_name_holds_are_from_before_wherever_the_optimizer_is_built() -> None:
    check_rewrites(
        """
        import torch
        from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

        def build(model):
            trained = [p for p in model.parameters() if p.requires_grad]
            optimizer = torch.optim.SGD(trained, lr=0.1)
            model = FSDP(model, use_orig_params=True)
            return model, optimizer
        """,
        """
        import fsdp_compat
        import torch

        def build(model):
            trained = [p for p in model.parameters() if p.requires_grad]
            optimizer = torch.optim.SGD(trained, lr=0.1)
            model = fsdp_compat.shard(model, use_orig_params=True)
            fsdp_compat.relink_optimizer(optimizer, model)
            return model, optimizer
        """,
    )


WRAPPER = """
def wrap_model(model):
    return FSDP(model, use_orig_params=True)
"""


def test_a_function_of_the_project_that_wraps() -> None:
    check_rewrites(
        HEAD
        + WRAPPER
        + """
def build(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model = wrap_model(model)
    return model, optimizer
""",
        """import torch
from torch.distributed.fsdp import fully_shard

def wrap_model(model):
    return fully_shard(model)

def build(model):
    model = wrap_model(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return model, optimizer
""",
    )


def test_a_function_of_the_project_that_wraps_behind_a_scheduler() -> None:
    source = """
def build(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    model = wrap_model(model)
    return model, optimizer
"""
    assert [level for level, _ in found(WRAPPER + source)] == ["manual"]


def test_functions_and_methods_of_the_project_that_build_optimizers() -> None:
    check_rewrites(
        """
        from optim import make_optimizer
        from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

        def build(model, critic, args):
            optimizer = make_optimizer(model, lr=args.lr)
            model = FSDP(model, use_orig_params=True)
            other = critic.configure_optimizers(args)
            critic = FSDP(critic, use_orig_params=True)
            return model, optimizer, critic, other
        """,
        """
        from optim import make_optimizer
        from torch.distributed.fsdp import fully_shard

        def build(model, critic, args):
            fully_shard(model)
            optimizer = make_optimizer(model, lr=args.lr)
            fully_shard(critic)
            other = critic.configure_optimizers(args)
            return model, optimizer, critic, other
        """,
    )


def test_states_and_schedulers_are_not_optimizers() -> None:
    assert found("state = get_optimizer_state(model)\ns = make_optim_scheduler(model)\nmodel = FSDP(model)\n") == []


def test_wrap_inside_enable_wrap_is_followed_by_one_relink_behind_the_last() -> None:
    check_rewrites(
        """
        import torch
        from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
        from torch.distributed.fsdp.wrap import enable_wrap, wrap

        def build(model, options):
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            with enable_wrap(wrapper_cls=FSDP, **options):
                model.encoder = wrap(model.encoder)
                model = wrap(model)
            return model, optimizer
        """,
        """
        import fsdp_compat
        import torch
        from fsdp_compat import enable_wrap, wrap

        def build(model, options):
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            with enable_wrap(wrapper_cls=fsdp_compat.shard, **options):
                model.encoder = wrap(model.encoder)
                model = wrap(model)
                fsdp_compat.relink_optimizer(optimizer, model)
            return model, optimizer
        """,
    )


def test_each_branch_that_wraps_relinks() -> None:
    source = """
def build(model, options):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if options:
        model = FSDP(model, **options)
    else:
        model = FSDP(model, use_orig_params=True)
    return model, optimizer
"""
    assert [level for level, _ in found(source)] == ["review", "review"]


def test_an_optimizer_that_is_given_with_the_model_gets_the_new_parameters() -> None:
    check_rewrites(
        """
        from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

        def shard(model, optimizer, opt=None, optimizer_name=""):
            model = FSDP(model, use_orig_params=True)
            return model, optimizer
        """,
        """
        import fsdp_compat
        from torch.distributed.fsdp import fully_shard

        def shard(model, optimizer, opt=None, optimizer_name=""):
            fsdp_compat.guard_optimizers(model)
            fully_shard(model)
            fsdp_compat.relink_optimizer(optimizer, model)
            if opt is not None:
                fsdp_compat.relink_optimizer(opt, model)
            return model, optimizer
        """,
    )


def test_an_optimizer_that_is_given_where_nothing_can_follow_is_left_to_a_human() -> None:
    source = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n\n"
    source += "def shard(model, optimizer):\n    return FSDP(model, use_orig_params=True), optimizer\n"
    assert ("FSDP117", "manual") in {(found.rule, found.level.value) for found in findings(source)}


def test_a_function_that_passes_a_sharded_model_on_does_not_shard_it_again() -> None:
    source = """
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

def load(model, optimizer):
    {}
    return model, optimizer

def main(model):
    {}
    optimizer = torch.optim.AdamW(model.parameters())
    model, optimizer = load(model, optimizer)

def other(model):
    load(FSDP(model, use_orig_params=True), None)
"""
    text = "import torch\n" + source
    wrap = "model = FSDP(model)"
    assert "FSDP117" not in {found.rule for found in findings(text.format("pass", wrap))}
    assert "FSDP117" not in {found.rule for found in findings(text.format("pass", "pass"))}
    assert "FSDP117" in {found.rule for found in findings(text.format(wrap, "pass"))}


@pytest.mark.parametrize("settings", ["self.config", "cfg", "args", "run.hparams"])
def test_settings_that_come_beside_a_model_are_no_model(settings: str) -> None:
    source = f"""
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

def build(config):
    return FSDP(make(config), use_orig_params=True)

def main(self, cfg, args, run, teacher):
    optimizer = build_optimizer(teacher, {settings})
    model = build({settings})
    return model, optimizer
"""
    assert "FSDP117" not in {found.rule for found in findings(source)}


def test_what_a_name_gets_further_down_is_not_what_its_optimizer_trains() -> None:
    source = """
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

def main(model, averagers, k):
    model = FSDP(model)
    named = list(model.named_parameters())
    params = [p for n, p in named]
    optimizer = torch.optim.AdamW([{"params": params}])
    model = averagers.found[k].model
    return optimizer
"""
    assert "FSDP117" not in {found.rule for found in findings(source)}


BUILD = "import torch\nfrom common import Net\n\ndef build():\n    model = Net()\n    {}\n    return model, optimizer\n"


@pytest.mark.parametrize(
    "built",
    ["optimizer = torch.optim.SGD(model.parameters())", "optimizer = torch.optim.AdamW(list(model.parameters()))"],
)
def test_the_helper_relinks_what_another_file_builds(built: str) -> None:
    others = {
        "parallel": HEAD + "\ndef shard(net):\n    return FSDP(net, use_orig_params=True)\n",
        "train": "from example import build\nfrom parallel import shard\n\nnet, opt = build()\nnet = shard(net)\n",
    }
    for helpers, expected in (("always", []), ("needed", ["manual"])):
        settings = Settings(helpers=helpers)
        said = [one for one in findings(BUILD.format(built), settings, **others) if one.rule == "FSDP117"]
        assert [one.level.value for one in said] == expected


def test_another_name_of_the_model_is_wrapped_above() -> None:
    source = """
    import torch
    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

    class Trainer:
        def __init__(self, model, optimizer_cls):
            self.model = model
            self.model = FSDP(module=self.model)
            self.optimizer = optimizer_cls(params=model.parameters())

    def main(model):
        return Trainer(model=model, optimizer_cls=torch.optim.Adam)
    """
    assert [one for one in findings(source) if one.rule == "FSDP117"] == []


OWN_SCOPES = (
    "[p for p in draft.parameters() if p.requires_grad]",
    "list(p for p in draft.parameters())",
    "[{'params': [p for p in draft.parameters()], 'lr': 1e-3}]",
    "[p for m in [draft] for p in m.parameters()]",
)


@pytest.mark.parametrize("above", ["for p in target.parameters():\n    p.requires_grad = False\n", "p = get(target)\n"])
@pytest.mark.parametrize("given", OWN_SCOPES)
def test_a_comprehension_has_variables_of_its_own(given: str, above: str) -> None:
    wraps = "target = FSDP(target, use_orig_params=True)\ndraft = FSDP(draft, use_orig_params=True)\n"
    built = "optimizer = torch.optim.AdamW({}, lr=1e-3)\n"
    assert found(above + wraps + built.format(given)) == []
    assert found("p = list(target.parameters())\n" + wraps + built.format("[q for q in p]")) != []


TWO_MODELS = """
def prepare(net, setting):
    return FSDP(net, use_orig_params=True, sync_module_states=setting is not None)

def build_optimizer(net, setting):
    return torch.optim.SGD(net.parameters(), lr=0.1)

def main(net, other):
    {above}
    optimizer = build_optimizer({built}, {given})
    model = prepare({wrapped}, {given})
    return optimizer, model
"""


@pytest.mark.parametrize(
    ("above", "given"),
    [("", "True"), ("", "None"), ("rate = 0.5", "rate"), ("kinds = {'fused': True}", "kinds")],
)
def test_a_setting_that_both_are_given_is_no_model(above: str, given: str) -> None:
    assert found(TWO_MODELS.format(above=above, built="net", given=given, wrapped="other")) == []
    ((level, said),) = found(TWO_MODELS.format(above=above, built="net", given=given, wrapped="net"))
    assert level == "safe" and " net" in said


def test_an_optimizer_in_the_other_arm_is_of_a_run_that_does_not_wrap() -> None:
    source = """
def main(model, args):
    if args.cpu:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    else:
        model = FSDP(model, use_orig_params=True)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
"""
    assert found(source) == []
    assert found(source.replace("    else:", "    if True:"))


def test_parameters_collected_in_the_other_arm_are_of_a_run_that_does_not_wrap_this() -> None:
    source = """
def main(first, second, together):
    if together:
        model = FSDP(Both(first, second), use_orig_params=True)
        trained = [p for n, p in model.named_parameters() if "second." in n]
    else:
        first = FSDP(first)
        second = FSDP(second)
        trained = second.parameters()
    optimizer = torch.optim.AdamW(trained)
"""
    assert not found(source)
    assert found(source.replace("    else:", "    if True:"))


def test_what_a_wrapped_model_is_made_of_has_none_of_its_parameters() -> None:
    source = """
def main(depths):
    net = Net(depths)
    for name, p in net.named_parameters():
        p.requires_grad = depth_of(name, depths) > 1
    model = FSDP(net, use_orig_params=True)
    groups = split(model)
    optimizer = torch.optim.AdamW(groups)
"""
    assert not found(source)
    assert not found(source.replace("depths", "cfg.model").replace("main(cfg.model)", "main(cfg)"))
    early = source.replace("depth_of(name, depths) > 1", "True; depths.append(p)").replace("split(model)", "depths")
    assert found(early)


def test_a_table_that_is_only_compared_with_keeps_its_place() -> None:
    source = """
def main(net):
    kinds = {id(p): "head" for p in net.parameters()}
    names = {n: kinds[id(p)] for n, p in net.named_parameters()}
    model = FSDP(net, use_orig_params=True)
    trained = [p for n, p in model.named_parameters() if names[n] == "head"]
    optimizer = torch.optim.AdamW(trained)
"""
    assert not found(source)
    assert found(source.replace(' if names[n] == "head"]', "] + list(names.values())"))


@pytest.mark.parametrize("made", ["Other(3)", 'Other.from_pretrained("x")', "torch.nn.Transformer()"])
@pytest.mark.parametrize(
    "given", ["model.head.parameters()", "[p for n, p in model.a.head.named_parameters() if p.requires_grad]"]
)
def test_a_part_of_a_model_that_a_library_makes(made: str, given: str) -> None:
    source = f"""
from library import Other
model = {made}
optimizer = torch.optim.AdamW({given})
model = FSDP(model, use_orig_params=True)
model(1).backward()
optimizer.step()
"""
    part = given.partition("model.")[2].partition(".parameters")[0].partition(".named")[0]
    message = f"optimizer is moved after the sharding of model.{part}, because FSDP2 makes new parameters"
    assert found(source) == [("safe", message)]
    # Its step would have been taken between the two.
    stepped = source.replace("model = FSDP", "optimizer.step()\nmodel = FSDP")
    message = f"optimizer is built before model.{part} is sharded and gets the new parameters afterwards"
    assert found(stepped) == [("review", message)]


@pytest.mark.parametrize("call", ["Other(base)", "Other(backbone=base)", "Other(Other(base))"])
def test_a_module_that_a_library_puts_into_the_model(call: str) -> None:
    source = f"""
from library import Other
def main(args):
    base = torch.nn.Linear(3, 3)
    model = {call}
    optimizer = torch.optim.AdamW(base.parameters())
    model = FSDP(model, use_orig_params=True)
    model(1).backward()
    optimizer.step()
"""
    message = "this optimizer is built before base is sharded elsewhere: its step would train nothing"
    assert found(source) == [("manual", message)]
    assert not found(source.replace(call, "Other(3)"))
    # What a library was given is no module because it makes one.
    assert not found(source.replace(call, "Other(args)").replace("base.parameters()", "split(args, base.parameters())"))


def test_a_setting_of_a_model_is_no_part_of_it() -> None:
    source = """
from library import Other
def main(critic):
    model = Other(3)
    optimizer = torch.optim.AdamW(groups(critic, model.depth), lr=model.config.lr)
    model = FSDP(model, use_orig_params=True)
"""
    assert not [one for one in found(source) if "model" in one[1]]
