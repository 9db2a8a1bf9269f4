"""FSDP208: a model's units, its root, and functions run over its modules."""

from __future__ import annotations

from fsdp_rules.settings import Settings
from tests.rules.helpers import check_noop, check_rewrites, findings

WRAP = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"


def levels(source: str, settings: Settings | None = None) -> list[str]:
    return [found.level.value for found in findings(source, settings) if found.rule == "FSDP208"]


def test_methods_of_other_objects_are_left_alone() -> None:
    check_noop("model.apply(init)\ntable.apply(fn)\ntree.check_is_root()\n")


def test_apply_before_the_model_is_wrapped_is_left_alone() -> None:
    assert levels(WRAP + "def build(model):\n    model.apply(init)\n    model = FSDP(model)\n    return model\n") == []


def test_apply_inside_a_summon_is_left_alone() -> None:
    source = WRAP + "model = FSDP(model)\nwith FSDP.summon_full_params(model):\n    model.apply(init)\n"
    assert levels(source) == []


def test_the_units_of_a_model() -> None:
    check_rewrites(
        """
        import torch.distributed.fsdp as fsdp

        def units(module, model):
            return [m.training for m in fsdp.FullyShardedDataParallel.fsdp_modules(module=model, root_only=False)]
        """,
        """
        import torch.distributed.fsdp as fsdp

        def units(module, model):
            return [m.training for m in [unit for unit in model.modules() if isinstance(unit, fsdp.FSDPModule)]]
        """,
    )


def test_the_outermost_units() -> None:
    source = WRAP + "units = FSDP.fsdp_modules(model, root_only=True)\n"
    check_rewrites(source, "import fsdp_compat\nunits = fsdp_compat.fsdp_modules(model, root_only=True)\n")
    assert levels(source, Settings(helpers="never")) == ["manual"]


def test_apply_on_a_wrapped_model() -> None:
    check_rewrites(
        """
        from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

        def build(model, init):
            model = FSDP(model)
            model.apply(init)  # draw the weights
            return model
        """,
        """
        import fsdp_compat
        from torch.distributed.fsdp import fully_shard

        def build(model, init):
            fully_shard(model)
            # draw the weights
            with fsdp_compat.summon_full_params(model):
                model.apply(init)
            return model
        """,
    )


def test_apply_inside_an_expression() -> None:
    assert levels(WRAP + "model = FSDP(model)\nprint(model.apply(init))\n") == ["manual"]


def test_the_root() -> None:
    assert levels(WRAP + "model = FSDP(model)\nif model.check_is_root():\n    print(1)\n") == ["manual"]
