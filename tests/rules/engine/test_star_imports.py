"""What a star import gives under a name that the output needs is not what the output calls."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from fsdp_migrate.cli import main
from fsdp_rules.settings import Settings
from fsdp_rules.verdict.result import Changed, Failed
from tests.rules.helpers import rewrite, rewrite_tree

FSDP1 = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
BUILD = "\n\ndef build(model):\n    return FSDP(model)\n"
NAMES = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, MixedPrecision, ShardingStrategy\n"
MORE = """

def build(model):
    half = MixedPrecision(param_dtype=torch.bfloat16)
    return FSDP(model, mixed_precision=half, sharding_strategy=ShardingStrategy.HYBRID_SHARD)


def save(model):
    with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT):
        return model.state_dict()
"""
OWN = "def {name}(*args, **kwargs):\n    raise RuntimeError\n"


def _output(source: str, to: str = "native", **others: str) -> str:
    result = rewrite(source, Settings(to=to), **others)
    assert isinstance(result, Changed), result
    again = rewrite(result.source, Settings(to=to), **others)
    assert getattr(again, "source", result.source) == result.source, "a second run changes the output"
    return result.source.decode()


def _is_imported_below_star(output: str, name: str) -> bool:
    statements = ast.parse(output).body
    imports = [entry for entry in statements if isinstance(entry, ast.Import | ast.ImportFrom)]
    bound = [(alias.asname or alias.name.partition(".")[0]) for entry in imports for alias in entry.names]
    return name in bound and bound.index(name) > max(place for place, one in enumerate(bound) if one == "*")


@pytest.mark.parametrize(
    "mine",
    [
        OWN.format(name="fully_shard"),
        "class fully_shard:\n    pass\n",
        "fully_shard = print\n",
        "from elsewhere import fully_shard\n",
        "try:\n    from torch.distributed.fsdp import fully_shard\nexcept ImportError:\n    fully_shard = None\n",
        "for fully_shard in range(3):\n    pass\n",
        f"__all__ = ['fully_shard']\n{OWN.format(name='fully_shard')}",
        f"__all__ = [one for one in globals()]\n{OWN.format(name='fully_shard')}",
        f"__all__ = []\n__all__ += ['fully_shard']\n{OWN.format(name='fully_shard')}",
        f"__all__ = []\n__all__.append('fully_shard')\n{OWN.format(name='fully_shard')}",
        "from second import *\n",
        "from second import *\n__all__ = ['fully_shard']\n",
        "if True:\n    from second import fully_shard\n",
    ],
)
@pytest.mark.parametrize("order", [FSDP1 + "from mine import *\n", "from mine import *\n" + FSDP1])
def test_a_name_that_a_star_import_of_the_project_gives(mine: str, order: str) -> None:
    output = _output(order + BUILD, mine=mine, second=OWN.format(name="fully_shard"))
    assert "import fully_shard as torch_fully_shard" in output
    assert "return torch_fully_shard(model)" in output


@pytest.mark.parametrize(
    "mine",
    [
        "from torch.distributed.fsdp import fully_shard\n",
        "from second import fully_shard\n",
        "from second import *\n",
        f"__all__ = ['other']\n{OWN.format(name='fully_shard')}",
        f"__all__: list[str] = []\n{OWN.format(name='fully_shard')}",
        "def other():\n    def fully_shard():\n        pass\n\n    return fully_shard\n",
        "class Other:\n    fully_shard = None\n",
        "def _fully_shard():\n    pass\n",
    ],
)
def test_a_name_that_a_star_import_does_not_give_is_no_clash(mine: str) -> None:
    second = "from torch.distributed.fsdp import fully_shard\n"
    output = _output(FSDP1 + "from mine import *\n" + BUILD, mine=mine, second=second)
    assert "return fully_shard(model)" in output


def test_an_import_below_the_star_import_is_what_is_read() -> None:
    source = f"from mine import *\n{FSDP1}from torch.distributed.fsdp import fully_shard\n{BUILD}"
    assert "return fully_shard(model)" in _output(source, mine=OWN.format(name="fully_shard"))


def test_an_import_above_the_star_import_is_not_what_is_read() -> None:
    source = f"{FSDP1}from torch.distributed.fsdp import fully_shard\nfrom mine import *\n{BUILD}"
    assert "return torch_fully_shard(model)" in _output(source, mine=OWN.format(name="fully_shard"))


@pytest.mark.parametrize(
    "name",
    [
        *("init_device_mesh", "MixedPrecisionPolicy", "FSDPModule", "fsdp_compat", "dist", "torch"),
        *("get_model_state_dict", "StateDictOptions"),
    ],
)
@pytest.mark.parametrize("to", ["native", "shim"])
def test_every_name_that_the_output_imports(name: str, to: str) -> None:
    source = NAMES.replace("\n", ", StateDictType\n") + "import torch\nfrom mine import *\n" + MORE
    output = _output(source, to, mine=OWN.format(name=name))
    above = {
        alias.asname or alias.name.partition(".")[0]
        for entry in ast.parse(output).body
        if isinstance(entry, ast.Import | ast.ImportFrom)
        for alias in entry.names
    }
    assert name == "torch" or name not in above


def test_a_star_import_of_a_package_is_followed() -> None:
    files = {
        "package/__init__.py": b"from .parts import *\n",
        "package/parts.py": OWN.format(name="fully_shard").encode(),
        "package/train.py": f"{FSDP1}from . import *\n{BUILD}".encode(),
        "main.py": f"{FSDP1}from package import *\n{BUILD}".encode(),
    }
    results = rewrite_tree(files)
    for path in ("package/train.py", "main.py"):
        result = results[path]
        assert isinstance(result, Changed)
        assert b"return torch_fully_shard(model)" in result.source


def test_modules_that_star_import_each_other_are_followed_once() -> None:
    mine = "from second import *\n" + OWN.format(name="fully_shard")
    output = _output(FSDP1 + "from mine import *\n" + BUILD, mine=mine, second="from mine import *\n")
    assert "return torch_fully_shard(model)" in output


def test_a_builtin_that_a_star_import_gives_is_not_what_the_output_calls() -> None:
    source = f"{FSDP1}from mine import *\n\ndef f(model):\n    model = FSDP(model)\n    return type(model) is FSDP\n"
    result = rewrite(source, mine=OWN.format(name="isinstance"))
    assert isinstance(result, Failed)
    assert "its own isinstance" in result.error
    assert isinstance(rewrite(source, mine="__all__ = []\n" + OWN.format(name="isinstance")), Changed)


UNSEEN = [
    FSDP1 + "from third import *\n",
    "from third import *\n" + FSDP1,
    FSDP1 + "try:\n    from third import *\nexcept ImportError:\n    pass\n",
    "import os\n" + FSDP1 + "from torch.distributed.fsdp import CPUOffload\nfrom third import *\nprint(CPUOffload)\n",
    FSDP1 + "from torch.distributed.tensor import DTensor\nimport sys\nfrom third import *\nprint(DTensor, sys)\n",
    FSDP1 + "from mine import *\n",
]


@pytest.mark.parametrize("order", UNSEEN)
def test_an_import_is_below_the_star_import_of_an_unknown_module(order: str) -> None:
    output = _output(order + BUILD, mine="from third import *\n")
    assert "return fully_shard(model)" in output
    if "try:" in order:
        assert output.index("import *") < output.index("import fully_shard")
    else:
        assert _is_imported_below_star(output, "fully_shard")


@pytest.mark.parametrize("to", ["native", "shim"])
def test_a_module_is_imported_below_the_star_import_of_an_unknown_module(to: str) -> None:
    source = "import torch.distributed.fsdp as f\nfrom third import *\n\ndef build(model, **kw):\n    return f."
    output = _output(source + "FullyShardedDataParallel(model, **kw)\n", to)
    assert _is_imported_below_star(output, "fsdp_compat")


def test_a_name_that_an_unknown_module_may_give_is_another() -> None:
    source = f"{FSDP1}from third import *\n{BUILD}\n\ndef other(model):\n    return fully_shard(model)\n"
    output = _output(source)
    assert "def build(model):\n    return torch_fully_shard(model)" in output
    assert "def other(model):\n    return fully_shard(model)" in output


def test_a_star_import_in_a_command(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(OWN.format(name="fully_shard"))
    (tmp_path / "train.py").write_text(FSDP1 + "from mine import *\n" + BUILD)
    assert main(["rewrite", "--torch", "2.13", str(tmp_path)]) == 0
    assert "    torch_fully_shard(model)\n" in (tmp_path / "train.py").read_text()


GUARD = (
    "try:\n    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
    "except ImportError:\n    FSDP = None\n"
)


def test_an_import_in_a_guard_above_the_star_import_of_an_unknown_module() -> None:
    output = _output(f"{GUARD}from third import *\n{BUILD}")
    assert "    from torch.distributed.fsdp import fully_shard as torch_fully_shard\n" in output
    assert "torch_fully_shard = None" in output
    assert "return torch_fully_shard(model)" in output
    assert "return fully_shard(model)" in _output(f"from third import *\n{GUARD}{BUILD}")


LEGACY = "import torch.distributed.checkpoint{alias}\nfrom torch.distributed.checkpoint import load_state_dict\n"
SAVED = "\n\ndef read(state, reader):\n    load_state_dict(state, reader)\n"


@pytest.mark.parametrize("name", ["dcp", "load"])
def test_a_module_that_a_star_import_gives(name: str) -> None:
    """``dcp.load`` by an import of its own, since the file's ``dcp`` is another."""
    alias = LEGACY.format(alias=" as dcp")
    direct = "from torch.distributed.checkpoint import load\n" if name == "load" else ""
    source = f"{alias}{direct}{FSDP1}from mine import *\n{BUILD}{SAVED}"
    output = _output(source, mine=OWN.format(name=name))
    assert "    load(" not in output or name != "load"
    assert "    dcp.load(" not in output or name != "dcp"


def test_a_module_whose_name_an_unknown_star_import_may_give() -> None:
    source = f"{LEGACY.format(alias='')}{FSDP1}from third import *\n{BUILD}{SAVED}\n\ndef other():\n    dcp.save()\n"
    output = _output(source)
    assert "def other():\n    dcp.save()" in output
    assert "import torch.distributed.checkpoint as dcp" not in output
    assert "dist_cp.load(" in output


@pytest.mark.parametrize("passing", ["", "from home import *\n"])
def test_what_a_star_import_of_the_tree_gives_is_fsdp1_s(passing: str) -> None:
    home = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, StateDictType\n"
    train = (
        f"from {'again' if passing else 'home'} import *\n{BUILD}{MORE.partition('def save')[2].join(['def save', ''])}"
    )
    others = {"home": home, **({"again": passing} if passing else {})}
    output = _output(train, **others)
    assert "fully_shard(model)" in output
    assert "get_model_state_dict(model" in output
    assert "FSDP" not in output


def test_a_name_that_the_file_defines_is_none_of_its_star_imports() -> None:
    home = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
    train = (
        "from home import *\n\n\ndef FSDP(model):\n    return model\n\n\ndef build(model):\n    return FSDP(model)\n"
    )
    assert not isinstance(rewrite(train, home=home), Changed)
