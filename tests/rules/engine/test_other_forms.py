"""Edits with names, each made in its other form while all others stay as they are."""

from __future__ import annotations

from fsdp_rules.engine.other_forms import KEPT
from fsdp_rules.settings import Settings
from fsdp_rules.verdict.result import Changed
from tests.rules.helpers import rewrite

SOURCE = """
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, StateDictType, MixedPrecision

def build(model, dtype):
    precision = MixedPrecision(param_dtype=dtype)
    return FSDP(model, mixed_precision=precision, use_orig_params=True)

def train(model, optimizer, batches):
    model = build(model, None)
    with model.no_sync():
        model(batches[0]).sum().backward()
    model(batches[1]).sum().backward()
    model.clip_grad_norm_(1.0)
    optimizer.step()
    with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT):
        return model.state_dict()
"""


def text(other: frozenset[str] | None) -> tuple[str, dict[str, set[str]]]:
    """The rewrite with these edits in their other form, and the rules of each edit."""
    result = rewrite(SOURCE, Settings(other=other))
    assert isinstance(result, Changed)
    rules: dict[str, set[str]] = {}
    for finding in result.findings:
        if finding.edit:
            rules.setdefault(finding.edit, set()).add(finding.rule)
    return result.source.decode(), rules


def named(rule: str) -> str:
    """The one edit of a rule."""
    _, edits = text(frozenset())
    (name,) = (name for name in edits if name.endswith(f" {rule}"))
    return name


def test_names_change_nothing() -> None:
    plain, none = text(None)
    native, edits = text(frozenset())
    assert (native, none) == (plain, {})
    assert {name.rpartition(" ")[2] for name in edits} == {"FSDP101", "FSDP201", "FSDP202", "FSDP301"}


def test_what_is_said_of_arguments_and_of_a_block_belongs_to_its_edit() -> None:
    _, edits = text(frozenset())
    assert edits[named("FSDP101")] >= {"FSDP101", "FSDP104", "FSDP112"}
    assert edits[named("FSDP301")] == {"FSDP301", "FSDP309"}


def test_a_helper_is_written_for_one_place_alone() -> None:
    source, _ = text(frozenset({named("FSDP202")}))
    assert "with fsdp_compat.no_sync(model):" in source
    assert "set_requires_gradient_sync" not in source
    assert "fully_shard(" in source
    assert "fsdp_compat.clip_grad_norm_" not in source


def test_code_without_a_helper_is_kept_with_what_it_reads() -> None:
    source, _ = text(frozenset({named("FSDP101")}))
    assert "precision = MixedPrecision(param_dtype=dtype)" in source
    assert "return FSDP(model, mixed_precision=precision, use_orig_params=True)" in source
    assert "get_model_state_dict(" in source
    result = rewrite(SOURCE, Settings(other=frozenset({named("FSDP301")})))
    assert isinstance(result, Changed)
    assert "with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT):\n        return model.state_dict()" in (
        result.source.decode()
    )
    assert [finding.rule for finding in result.findings if finding.message == KEPT] == ["FSDP301", "FSDP309"]
