"""FSDP120: torch.compile around a wrapped model."""

from __future__ import annotations

from fsdp_rules.verdict.finding import Level
from fsdp_rules.verdict.result import Changed, Unchanged
from tests.rules.helpers import check_noop, findings, rewrite_tree

WRAP = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"


def levels(source: str) -> list[str]:
    return [found.level.value for found in findings(source) if found.rule == "FSDP120"]


def test_a_model_that_is_never_wrapped() -> None:
    check_noop("import torch\n\nmodel = torch.compile(model)\n")


def test_the_wrapped_model() -> None:
    source = """
        import torch
        from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

        model = FSDP(model)
        model = torch.compile(model)
        """
    assert levels(source) == ["review"]
    assert any("no longer have the prefix _orig_mod" in found.message for found in findings(source))


def test_a_compiled_model_that_is_wrapped() -> None:
    source = """
        import torch
        from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

        model = FSDP(torch.compile(model))
        """
    assert levels(source) == ["info"]


def test_a_model_compiled_before_it_is_wrapped() -> None:
    source = """
        import torch
        from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

        def build(model):
            model = torch.compile(model)
            return FSDP(model)
        """
    assert levels(source) == []


def test_a_model_that_a_list_gives_may_be_sharded() -> None:
    main = f"{WRAP}from running import run\n\ndef main(nets):\n    run([FSDP(net) for net in nets])\n"
    running = "import torch\n\ndef run(nets):\n    return [torch.compile(net) for net in nets]\n"
    result = rewrite_tree({"main.py": main.encode(), "running.py": running.encode()}).get("running.py")
    assert isinstance(result, Changed | Unchanged)
    (found,) = result.findings
    assert (found.rule, found.level) == ("FSDP120", Level.REVIEW)
    assert found.message.startswith("if this model is sharded: ")
