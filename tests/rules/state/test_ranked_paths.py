"""Full states from paths that are formed from a rank, anywhere: what rank 0 reads is never sent to all."""

from __future__ import annotations

import pytest

from fsdp_rules.state._writing.set import OF_A_RANK
from fsdp_rules.verdict.finding import Level
from fsdp_rules.verdict.result import Changed
from tests.rules.helpers import findings, rewrite

#: As a message says it after what it is about.
SAID = OF_A_RANK.replace("assumes ", "assuming ", 1)
HEAD = """
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, StateDictType
from paths import shard_path, plain_path, said_path
"""
PATHS = """
import os, torch.distributed as dist

def shard_path(folder):
    return os.path.join(folder, f"expert_{dist.get_rank()}.pt")

def plain_path(folder):
    return os.path.join(folder, "all.pt")

def said_path(folder):
    print(f"rank {dist.get_rank()} reads {folder}")
    return folder
"""
RESUME = (
    HEAD
    + """
def resume(model, path):
    model = FSDP(model)
    {before}
    with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT):
        model.load_state_dict(torch.load({path}, weights_only=True))
    return model
"""
)
STICKY = (
    HEAD
    + """
def resume(model, path):
    model = FSDP(model)
    FSDP.set_state_dict_type(model, StateDictType.FULL_STATE_DICT)
    state = torch.load({path}, weights_only=True)
    model.load_state_dict(state)
    return model
"""
)
CLASS = (
    HEAD
    + """
class Loader:
    def __init__(self, model):
        self.model = FSDP(model)

    def resume(self, path):
        with FSDP.state_dict_type(self.model, StateDictType.FULL_STATE_DICT):
            self.model.load_state_dict(torch.load({path}, weights_only=True))
"""
)
GIVES = """
from example import resume

def main(model, local_rank):
    {before}
    resume(model, {path})
"""
DIRECT = RESUME.format(before="{before}", path="{path}")
RANKED = {
    "an environment variable": (DIRECT.format(before="import os", path="f'{path}/{os.environ[\"RANK\"]}.pt'"), ""),
    "its default": (DIRECT.format(before="import os", path="path + os.environ.get('RANK', '0')"), ""),
    "a call of the library": (DIRECT.format(before="import torch.distributed as d", path="path % d.get_rank()"), ""),
    "a name of its own": (
        DIRECT.format(before="import torch.distributed as dist\n    mine = dist.get_rank()", path="path.format(mine)"),
        "",
    ),
    "a path's method": (DIRECT.format(before="rank = 3", path="path.joinpath(str(rank)).with_suffix('.pt')"), ""),
    "an open file": (DIRECT.format(before="process_index = 3", path="open(f'{process_index}.pt', 'rb')"), ""),
    "a function": (RESUME.format(before="", path="shard_path(path)"), ""),
    "a name": (RESUME.format(before="where = shard_path(path)", path="where"), ""),
    "a setting that stays": (STICKY.format(path="shard_path(path)"), ""),
    "a method": (CLASS.format(path="shard_path(path)"), ""),
    "a caller": (RESUME.format(before="", path="path"), GIVES.format(before="", path="f'part{local_rank}.pt'")),
    "a caller's name": (
        RESUME.format(before="", path="path"),
        GIVES.format(before="path = 'part_%d.pt' % local_rank", path="path=path"),
    ),
}
ONE_FOR_ALL = {
    "a function": (RESUME.format(before="", path="plain_path(path)"), ""),
    "a function that prints": (RESUME.format(before="", path="said_path(path)"), ""),
    "a caller": (
        RESUME.format(before="", path="path"),
        GIVES.format(before="print(f'{local_rank}')", path="'all.pt'"),
    ),
    **{
        f"a caller that names a device by {device}": (
            RESUME.format(before="", path="path").replace("(model, path)", "(model, path, device=None)"),
            GIVES.format(before=f"device = {device}", path="'all.pt', device"),
        )
        for device in (
            "f'cuda:{local_rank}'",
            "'cuda:%d' % local_rank",
            "'npu:' + str(local_rank)",
            "'xpu:{}'.format(local_rank)",
        )
    },
}


@pytest.mark.parametrize(("source", "main"), RANKED.values(), ids=RANKED.keys())
def test_each_rank_cuts_what_it_has_read(source: str, main: str) -> None:
    found = findings(source, paths=PATHS, main=main)
    assert [one.level for one in found if SAID in one.message] == [Level.REVIEW], found
    result = rewrite(source, paths=PATHS, main=main)
    assert isinstance(result, Changed)
    text = "".join(result.source.decode().split())
    assert "full_state_dict=True)" in text and "broadcast_from_rank0" not in text


@pytest.mark.parametrize(("source", "main"), ONE_FOR_ALL.values(), ids=ONE_FOR_ALL.keys())
def test_one_file_for_all_ranks_is_sent_by_rank_0(source: str, main: str) -> None:
    found = findings(source, paths=PATHS, main=main)
    assert {one.level for one in found if one.rule == "FSDP309"} == {Level.SAFE}
    result = rewrite(source, paths=PATHS, main=main)
    assert isinstance(result, Changed)
    assert "broadcast_from_rank0=True" in result.source.decode()


@pytest.mark.parametrize("state", ["received(path)", "path.state"])
def test_what_each_rank_may_have_of_its_own_is_an_assumption(state: str) -> None:
    source = RESUME.format(before="", path="path").replace("torch.load(path, weights_only=True)", state, 1)
    found = [one for one in findings(source) if one.rule == "FSDP309"]
    assert [one.level for one in found] == [Level.REVIEW]
    assert "assuming every rank passes the same state" in found[0].message


GIVEN = {
    "torch.load": ("import torch", "torch.load(f'optimizer_{rank}.pt')", False),
    "a function of torch": ("from torch import load", "load(f'optimizer_{rank}.pt')", False),
    "json": ("import json as reader", "reader.load(open(f'step_{rank}.json'))", False),
    "a method": ("", "loader.load(f'expert_{rank}.pt')", True),
    "a class of the project": ("from example import Loader", "Loader.load(loader, f'expert_{rank}.pt')", True),
    "an object of the project": ("from example import LOADER", "LOADER.load(f'expert_{rank}.pt')", True),
    "a module of the project": ("import example", "example.LOADER.load(f'expert_{rank}.pt')", True),
}


@pytest.mark.parametrize(("imports", "call", "ranked"), GIVEN.values(), ids=GIVEN.keys())
def test_a_function_of_another_library_says_nothing_of_the_project_s(imports: str, call: str, ranked: bool) -> None:
    source = CLASS.replace("resume", "load").format(path="path") + "\nLOADER = Loader(None)\n"
    head = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\nfrom example import Loader\n"
    other = f"{head}{imports}\n\ndef main(net, rank):\n    loader = Loader(net)\n    return {call}\n"
    found = findings(source, paths=PATHS, main=other)
    assert any(SAID in one.message for one in found) is ranked
