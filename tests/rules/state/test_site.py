"""What is known of a call on a state: one object for all rules, each answer worked out once."""

from __future__ import annotations

import textwrap
from collections import Counter

import libcst as cst

from fsdp_rules.file.file import File
from fsdp_rules.file.once import once
from fsdp_rules.state._governing.site import StateSite, state_site
from fsdp_rules.state._governing.state_settings import Kind
from tests.rules.projects import file_of

SOURCE = """
    import torch
    import torch.distributed as dist
    from torch.distributed.fsdp import FullStateDictConfig, StateDictType
    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

    def save(net, other, path):
        model = FSDP(net)
        with FSDP.state_dict_type(model, StateDictType.SHARDED_STATE_DICT):
            part = model.state_dict()
        state = model.state_dict()
        if dist.get_rank() == 0:
            torch.save(state, path)
            model.load_state_dict(state)
        other.load_state_dict(part, strict=False)
"""


def _file() -> File:
    return file_of(textwrap.dedent(SOURCE))


def _sites(file: File) -> list[StateSite]:
    return [site for call in file.nodes(cst.Call) if (site := state_site(call, file)) is not None]


def test_all_rules_get_one_object_for_a_call() -> None:
    file = _file()
    assert [id(site) for site in _sites(file)] == [id(site) for site in _sites(file)]
    assert len(_sites(file)) == 4


def test_a_site_knows_what_governs_its_call() -> None:
    part, state, load, other = _sites(_file())
    assert part.block is not None and part.governing.context.kind is Kind.SHARDED and part.full is False
    assert state.block is None and state.full is True and state.rank_zero_reads
    assert load.is_under_rank_zero and load.is_shown_sharded and load.is_sharded
    assert not other.is_sharded and not other.is_under_rank_zero


def test_an_answer_is_worked_out_once_for_a_node_of_a_file() -> None:
    asked: Counter[cst.CSTNode] = Counter()

    @once
    def answer(node: cst.Call, file: File) -> str | None:
        asked[node] += 1
        return file.resolved(node.func)

    first, second = _file(), _file()
    for file in (first, second, first):
        for call in file.nodes(cst.Call):
            assert answer(call, file) == file.resolved(call.func)
    assert set(asked.values()) == {1}
    assert len(asked) == len(first.nodes(cst.Call)) + len(second.nodes(cst.Call))
