"""The checker for uses of FSDP1 that are left without a word, and what it finds in the outputs of all fixtures."""

from __future__ import annotations

import dataclasses
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel

from fsdp_migrate.pipeline.moved_lines import follow
from fsdp_rules.engine.rewrite import rewrite_source
from fsdp_rules.settings import Settings
from fsdp_rules.verdict.result import Changed, Unchanged
from tests.leftovers.check import left
from tests.leftovers.names import METHODS, SHARED_METHODS
from tests.leftovers.uses import uses
from tests.pool import ROOT
from tests.rules.projects import project_of

FIXTURES = sorted(path.parent.name for path in (ROOT / "fixtures" / "rewrite").glob("*/before.py"))
PROJECTS = sorted(path.name for path in (ROOT / "fixtures" / "projects").iterdir() if path.is_dir())
#: What nn.Module has too, and what only other parts of torch call.
NOT_ASKED = {"apply", "forward", "module", "named_buffers", "named_parameters"}


def found(source: str, **others: str) -> list[tuple[int, str, str]]:
    """(line, kind, what) of every use in ``source``, beside the modules ``others``."""
    files = {"example.py": source, **{f"{name}.py": text for name, text in others.items()}}
    everything = uses({path: textwrap.dedent(text).strip() for path, text in files.items()})
    return [(use.line, use.kind, use.what) for use in everything if use.path == "example.py"]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (
            "from torch.distributed.fsdp import FullyShardedDataParallel as F\nF(m)",
            [(2, "name", "FullyShardedDataParallel")],
        ),
        ("import torch\ntorch.distributed.fsdp.CPUOffload(True)", [(2, "value", "CPUOffload")]),
        (
            "import torch.distributed.fsdp as fsdp\nfsdp.fully_sharded_data_parallel.StateDictType.LOCAL_STATE_DICT",
            [(2, "value", "StateDictType.LOCAL_STATE_DICT")],
        ),
        (
            "def f():\n    from torch.distributed.fsdp.wrap import wrap\n    return wrap(m)",
            [(3, "name", "wrap")],
        ),
        (
            "try:\n    from torch.distributed.fsdp import FullyShardedDataParallel as F\n"
            "except ImportError:\n    F = None\nisinstance(m, F)",
            [(5, "name", "FullyShardedDataParallel")],
        ),
        (
            "from torch.distributed.fsdp._runtime_utils import _lazy_init\n_lazy_init(m, m)",
            [(2, "name", "_runtime_utils._lazy_init")],
        ),
        ("from torch.distributed.fsdp import MixedPrecision", [(1, "import", "MixedPrecision")]),
        (
            "from torch.distributed.fsdp import FullyShardedDataParallel as F\n\ndef f(m: 'F'): ...",
            [(1, "import", "FullyShardedDataParallel"), (3, "name", "FullyShardedDataParallel")],
        ),
        (
            "from torch.distributed.fsdp import ShardingStrategy as S\nx.sharding_strategy is S.NO_SHARD",
            [(2, "name", "ShardingStrategy.NO_SHARD")],
        ),
        ("model.clip_grad_norm_(1.0)", [(1, "method", "clip_grad_norm_")]),
        ("with trainer.model.no_sync():\n    pass", [(1, "method", "no_sync")]),
        ("getattr(model, 'summon_full_params')", [(1, "string", "summon_full_params")]),
        ("unit._handle.flat_param", [(1, "attribute", "_handle"), (1, "attribute", "flat_param")]),
        ("'_fsdp_wrapped_module.' in name", [(1, "string", "_fsdp_wrapped_module.")]),
        (
            "type(m).__name__ == 'FullyShardedDataParallel'",
            [(1, "string", "FullyShardedDataParallel")],
        ),
        (
            "from torch.distributed.fsdp import fully_shard\nfully_shard(m)\nm.module.head",
            [(3, "module", "m.module")],
        ),
        (
            "from torch.distributed.checkpoint.optimizer import load_sharded_optimizer_state_dict as load\nload()",
            [(2, "name", "load_sharded_optimizer_state_dict")],
        ),
    ],
)
def test_uses_are_found(source: str, expected: list[tuple[int, str, str]]) -> None:
    assert found(source) == expected


@pytest.mark.parametrize(
    "source",
    [
        "from torch.distributed.fsdp import fully_shard, FSDPModule\nfully_shard(m)\nisinstance(m, FSDPModule)",
        "from fsdp_compat import FSDP, StateDictType\nFSDP.set_state_dict_type(m, StateDictType.FULL_STATE_DICT)",
        "import fsdp_compat\nwith fsdp_compat.no_sync(model):\n    pass",
        "import torch\ntorch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)",
        "accelerator.clip_grad_norm_(model.parameters(), 1.0)",
        "self.no_sync()",
        "config.state_dict_type",
        "getattr(model, 'no_sync', default)",
        "strategy == 'FSDP'",
        "m.module.head",
        "from torch.nn.parallel import DistributedDataParallel as D\nm = D(m)\nm.register_comm_hook(None, hook)",
        "from torch.nn.parallel import DistributedDataParallel as D\nE: TypeAlias = D\nm = E(m)\nm.no_sync()",
        "class Backend:\n    def summon_full_params(self, m): ...\n\n"
        "class Trainer:\n    def __init__(self):\n        self._dist = Backend()\n"
        "    def step(self):\n        self._dist.summon_full_params(self.m)",
    ],
)
def test_other_code_is_not_taken_for_fsdp1(source: str) -> None:
    assert found(source) == []


def test_reexports_are_followed_through_modules() -> None:
    source = "from wrapping import *\nimport names\nShard(m, names.Wrapper)"
    names = "from wrapping import Shard as Wrapper"
    wrapping = "from torch.distributed.fsdp import FullyShardedDataParallel\nShard = FullyShardedDataParallel"
    assert found(source, names=names, wrapping=wrapping) == [(3, "name", "FullyShardedDataParallel")] * 1


def test_modules_that_import_each_other_are_no_endless_road() -> None:
    assert found("from other import a\na.b", other="from example import a\nimport other.a as a") == []


OWN = "from base import Base\n\nclass Own(Base):\n    def no_sync(self): ...\n\n"
SHARDED = "from torch.distributed.fsdp import FullyShardedDataParallel as Base"


@pytest.mark.parametrize(
    ("made", "base", "expected"),
    [
        ("m = Own()", "class Base: ...", []),
        ("m = Own()", SHARDED, ["no_sync"]),
        ("m = Own() if small else wrap(m)", "class Base: ...", ["no_sync"]),
        ("m = Own()\nm = wrap(m)", "class Base: ...", ["no_sync"]),
        ("for m in models: pass", "class Base: ...", ["no_sync"]),
        ("m = Other()", "class Base: ...", ["no_sync"]),
    ],
)
def test_methods_of_classes_of_the_tree_are_told_apart(made: str, base: str, expected: list[str]) -> None:
    uses_of_m = [what for _, kind, what in found(f"{OWN}{made}\nm.no_sync()", base=base) if kind == "method"]
    assert uses_of_m == expected


def test_what_a_name_becomes_further_down_does_not_count() -> None:
    source = f"{OWN}def train(m):\n    m.no_sync()\n    m = Own()"
    assert [what for _, _, what in found(source, base="class Base: ...")] == ["no_sync"]


@pytest.mark.parametrize(
    "source",
    [
        "if hasattr(unit, '_handles') and ready:\n    unit._handles.clear()",
        "unit._handles if hasattr(unit, '_handles') else []",
        "hasattr(unit, '_handles') and ready and unit._handles",
    ],
)
def test_a_question_accounts_for_what_only_runs_where_the_answer_is_yes(source: str) -> None:
    assert found(source) == [(1, "string", "_handles")]


@pytest.mark.parametrize(
    "source",
    [
        "if hasattr(unit, '_handles'):\n    other._handles.clear()",
        "if hasattr(unit, '_handles'):\n    pass\nelse:\n    unit._handles.clear()",
        "hasattr(unit, '_handles') or unit._handles",
    ],
)
def test_a_question_about_something_else_accounts_for_nothing(source: str) -> None:
    assert ("attribute", "_handles") in {(kind, what) for _, kind, what in found(source)}


SOURCE = """
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(
    model,
)
for step in range(3):
    model.clip_grad_norm_(1.0)
"""


def finding(line: int, level: str, message: str = "") -> dict[str, Any]:
    return {"path": "a.py", "line": line, "end_line": 8, "level": level, "message": message}


@pytest.mark.parametrize(
    ("findings", "lines"),
    [
        ([], [4, 8]),
        ([finding(4, "manual")], [8]),
        ([finding(5, "review")], [8]),
        ([finding(4, "safe")], [4, 8]),
        ([finding(7, "manual")], [4, 8]),
        ([finding(4, "info"), finding(8, "info")], []),
    ],
)
def test_only_what_is_said_at_the_statement_counts(findings: list[dict[str, Any]], lines: list[int]) -> None:
    assert [use.line for use in left({"a.py": SOURCE}, findings)] == lines


@pytest.mark.parametrize(
    ("entry", "lines"),
    [
        (finding(1, "info", "ShardingStrategy, CPUOffload: still torch's"), [3, 4]),
        (finding(1, "safe", "ShardingStrategy, CPUOffload: still torch's"), [2, 3, 4]),
        (finding(1, "info", "CPUOffload: still torch's"), [2, 3, 4]),
        ({**finding(1, "info", "ShardingStrategy"), "path": "b.py"}, [2, 3, 4]),
        (finding(1, "info", "FullyShardedDataParallel"), [2, 3, 4]),
    ],
)
def test_values_are_told_of_once_in_a_file_by_name(entry: dict[str, Any], lines: list[int]) -> None:
    source = (
        "from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision, ShardingStrategy\n"
        "KINDS = {'full': ShardingStrategy.FULL_SHARD}\n"
        "PRECISION = MixedPrecision()\n"
        "WRAPPER = FullyShardedDataParallel\n"
    )
    assert [use.line for use in left({"a.py": source}, [entry])] == lines


def test_a_todo_above_the_statement_counts() -> None:
    text = SOURCE.replace("    model.clip", "    # TODO(fsdp-migrate FSDP201): why\n    # more\n    model.clip")
    assert [use.line for use in left({"a.py": text}, [])] == [4]


def test_all_methods_of_the_wrapper_are_known() -> None:
    own = {name for name in vars(FullyShardedDataParallel) if not name.startswith("_")} - set(vars(nn.Module))
    assert own - NOT_ASKED - {"load_optim_state_dict_pre_hook"} == (METHODS | SHARED_METHODS) & own
    assert set(dir(FullyShardedDataParallel)) >= METHODS | SHARED_METHODS


def rewritten(sources: Mapping[str, str]) -> tuple[dict[str, str], list[dict[str, Any]]]:
    """What the rules make of ``sources``, with their findings at the lines of the output."""
    project = project_of(sources)
    output: dict[str, str] = {}
    said: list[dict[str, Any]] = []
    for path, text in sources.items():
        result = rewrite_source(text.encode(), path, project, Settings())
        assert isinstance(result, Changed | Unchanged), result
        output[path] = result.source.decode() if isinstance(result, Changed) else text
        moved = follow(result.findings, text.encode(), output[path].encode())
        said += [{**dataclasses.asdict(entry), "level": entry.level.value} for entry in moved]
    return output, said


def read(directory: Path) -> dict[str, str]:
    return {path.relative_to(directory).as_posix(): path.read_text() for path in sorted(directory.rglob("*.py"))}


@pytest.mark.parametrize("fixture", FIXTURES)
def test_nothing_is_left_of_a_fixture(fixture: str) -> None:
    before = (ROOT / "fixtures" / "rewrite" / fixture / "before.py").read_text()
    assert left(*rewritten({"before.py": before})) == []


@pytest.mark.parametrize("project", PROJECTS)
def test_nothing_is_left_of_a_project(project: str) -> None:
    sources = read(ROOT / "fixtures" / "projects" / project)
    assert uses(sources)
    assert left(*rewritten(sources)) == []
