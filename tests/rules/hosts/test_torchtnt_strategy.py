"""torchtnt's strategy: which calls move, and which are kept."""

from __future__ import annotations

import pytest

from tests.rules.helpers import check_findings, check_rewrites, findings

IMPORT = "from torchtnt.utils.prepare_module import FSDPStrategy\n"
LAYERS = "auto_wrap_policy=ModuleWrapPolicy({Block})"
WRAP = "from torch.distributed.fsdp.wrap import ModuleWrapPolicy\n"


def test_a_call_moves_with_its_import() -> None:
    check_rewrites(
        """
        import torch
        from torch.distributed.fsdp import CPUOffload, MixedPrecision
        from torch.distributed.fsdp.wrap import ModuleWrapPolicy
        from torchtnt.utils.prepare_module import FSDPStrategy as Strategy, prepare_module

        def build(model, device):
            policy = ModuleWrapPolicy({Block})
            half = MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
            strategy = Strategy(auto_wrap_policy=policy, mixed_precision=half, cpu_offload=CPUOffload(True))
            return prepare_module(model, device, strategy=strategy)
        """,
        """
        import torch
        from torch.distributed.fsdp import MixedPrecisionPolicy
        from torchtnt.utils.prepare_module import FSDP2Strategy as Strategy, prepare_module

        def build(model, device):
            strategy = Strategy(
                modules_to_shard=[Block],
                mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32),
                cpu_offload=True,
            )
            return prepare_module(model, device, strategy=strategy)
        """,
    )


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("FSDPStrategy()", "needs modules_to_shard"),
        ("FSDPStrategy(**options)", "not all named"),
        (f"FSDPStrategy({LAYERS}, sharding_strategy='NO_SHARD')", "NO_SHARD has no FSDP2Strategy"),
        (f"FSDPStrategy({LAYERS}, sharding_strategy=args.strategy)", "only known at run time"),
        (f"FSDPStrategy({LAYERS}, ignored_modules=[head])", "FSDP2Strategy has no ignored_modules"),
        (f"FSDPStrategy({LAYERS}, mixed_precision=half)", "the dtypes of its mixed_precision"),
        (f"FSDPStrategy({LAYERS})\nprint(FSDPStrategy)", "used in other places"),
    ],
)
def test_a_call_is_kept(source: str, said: str) -> None:
    text = f"{WRAP}{IMPORT}strategy = {source}\n"
    assert any(said in one.message for one in findings(text) if one.rule == "FSDP555")


def test_defaults_of_fsdp1_that_differ_are_said() -> None:
    source = f"{WRAP}{IMPORT}strategy = FSDPStrategy({LAYERS}, sync_module_states=True)\n"
    check_findings(source, {("FSDP555", "review")})
    told = " ".join(found.message for found in findings(source) if found.rule == "FSDP555")
    assert "elementwise" in told
    assert "same weights" in told
