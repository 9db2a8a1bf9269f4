"""Where FSDP1's names come from after a rewrite, to FSDP2 and to the shim."""

from __future__ import annotations

import ast
import re

import pytest

from fsdp_rules.settings import Settings
from fsdp_rules.verdict.result import Changed, Failed
from tests.rules.helpers import check_noop, check_rewrites, findings, rewrite, rewrite_tree

SHIM = Settings(to="shim")


def test_every_form_of_import_moves_to_the_shim() -> None:
    check_rewrites(
        """
        import torch
        import torch.distributed.fsdp as fsdp
        from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
        from torch.distributed.fsdp import MixedPrecision, fully_shard
        from torch.distributed.fsdp.wrap import (
            transformer_auto_wrap_policy,
            wrap,
        )

        def build(model):
            strategy = torch.distributed.fsdp.ShardingStrategy.NO_SHARD
            return FSDP(model, sharding_strategy=strategy, cpu_offload=fsdp.CPUOffload())
        """,
        """
        import fsdp_compat
        import torch
        import torch.distributed.fsdp as fsdp
        from fsdp_compat import FullyShardedDataParallel as FSDP
        from fsdp_compat import MixedPrecision
        from torch.distributed.fsdp import fully_shard
        from fsdp_compat import (
            transformer_auto_wrap_policy,
            wrap,
        )

        def build(model):
            strategy = fsdp_compat.ShardingStrategy.NO_SHARD
            return FSDP(model, sharding_strategy=strategy, cpu_offload=fsdp_compat.CPUOffload())
        """,
        SHIM,
    )


def test_a_lazy_import_stays_in_its_function() -> None:
    check_rewrites(
        """
        def build(model):
            from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

            return FSDP(model)
        """,
        """
        def build(model):
            from torch.distributed.fsdp import fully_shard

            return fully_shard(model)
        """,
    )


def test_a_guarded_import_is_left_alone() -> None:
    check_rewrites(
        """
        try:
            from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
        except ImportError:
            FSDP = None

        def build(model):
            return FSDP(model)
        """,
        """
        try:
            from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
            from torch.distributed.fsdp import fully_shard
        except ImportError:
            FSDP = None
            fully_shard = None

        def build(model):
            return fully_shard(model)
        """,
    )


def test_names_that_a_helper_takes_come_from_the_runtime() -> None:
    check_rewrites(
        """
        from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
        from torch.distributed.fsdp import ShardingStrategy  # by name

        def build(model, name):
            return FSDP(model, ignored_states=name, sharding_strategy=ShardingStrategy[name])
        """,
        """
        import fsdp_compat
        from fsdp_compat import ShardingStrategy
        # by name

        def build(model, name):
            return fsdp_compat.shard(model, ignored_states=name, sharding_strategy=ShardingStrategy[name])
        """,
    )


BUILD = """
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

def build(model):
    return FSDP(model, use_orig_params=True)
"""
BUILT = """
from torch.distributed.fsdp import fully_shard

def build(model):
    return fully_shard(model)
"""


def test_a_text_that_is_no_annotation_keeps_no_import() -> None:
    test = '\ndef is_fsdp(config):\n    return "FSDP" in config.trainer or NAMES["FSDP"]\n'
    check_rewrites(BUILD + test, BUILT + test)


@pytest.mark.parametrize(
    "use", ['__all__ = ["build", "FSDP"]', 'def f(model: "list[FSDP]"): ...', 'x: Optional["FSDP"] = None']
)
def test_a_text_that_names_a_type_keeps_the_import(use: str) -> None:
    result = rewrite(f"{BUILD}\n{use}\n")
    assert not isinstance(result, Changed) or b"FSDP" in result.source.replace(use.encode(), b"")


def test_a_star_import_keeps_what_its_file_reads() -> None:
    check_rewrites(BUILD, BUILT, main="from example import *\n\nbuild(model)\n")
    after = BUILT.replace("import fully_shard", "import FullyShardedDataParallel as FSDP, fully_shard")
    check_rewrites(BUILD, after, main="from example import *\n\nbuild(FSDP)\n")
    between = "from example import *\n"
    check_rewrites(BUILD, after, between=between, main="from between import *\n\nbuild(FSDP)\n")


def test_configurations_of_a_module_that_a_package_passes_on_stay_torchs() -> None:
    check_rewrites(
        """
        from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision

        half = MixedPrecision()
        """,
        """
        from torch.distributed.fsdp import MixedPrecision

        half = MixedPrecision()
        """,
        **{"package/__init__": "from example import *\n"},
        main="from example import half, MixedPrecision\n",
    )


def test_a_lazy_import_in_a_branch_goes_with_its_use() -> None:
    check_rewrites(
        """
        import torch

        def scaler(sharded):
            if sharded:
                from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler
                return ShardedGradScaler()  # type: ignore
            return torch.amp.GradScaler("cuda")
        """,
        """
        import torch

        def scaler(sharded):
            if sharded:
                return torch.amp.GradScaler("cuda")  # type: ignore
            return torch.amp.GradScaler("cuda")
        """,
    )


STAYS = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, MixedPrecision, ShardingStrategy\n"
VALUES = "half = MixedPrecision()\nkinds = {'full': ShardingStrategy.FULL_SHARD}\n"


@pytest.mark.parametrize(
    ("source", "named"),
    [
        (STAYS + "\n" + VALUES + "wrapper = FSDP\n", ["MixedPrecision, ShardingStrategy"]),
        ("import torch.distributed.fsdp as f\nkind = f.ShardingStrategy.FULL_SHARD\n", ["ShardingStrategy"]),
        ("try:\n    " + STAYS + "except ImportError:\n    pass\n" + VALUES, ["MixedPrecision, ShardingStrategy"]),
        (
            "if new:\n    from torch.distributed.fsdp import MixedPrecisionPolicy as MixedPrecision\n"
            "else:\n    from torch.distributed.fsdp import MixedPrecision\nhalf = MixedPrecision()\n",
            ["MixedPrecision"],
        ),
        (
            "if new:\n    from torch.distributed.fsdp import MixedPrecision\n"
            "else:\n    from torch.distributed.fsdp import MixedPrecisionPolicy as MixedPrecision\n"
            "half = MixedPrecision()\n",
            ["MixedPrecision"],
        ),
        (STAYS + VALUES, ["MixedPrecision, ShardingStrategy"]),
        (STAYS + VALUES + "model = FSDP(model, mixed_precision=half)\n", ["ShardingStrategy"]),
        (STAYS + VALUES + "model = FSDP(model, ignored_states=states, mixed_precision=half)\n", []),
        (STAYS + "wrapper = FSDP\n", []),
        (STAYS + "wrapper = [FSDP, MixedPrecision]\n", []),
    ],
)
def test_configurations_that_stay_are_named_once(source: str, named: list[str]) -> None:
    found = [entry for entry in findings(source) if entry.rule == "FSDP100" and entry.level.value == "review"]
    assert [entry.message.partition(":")[0] for entry in found] == named


@pytest.mark.parametrize(
    ("value", "strategy"),
    [
        ("StateDictType.FULL_STATE_DICT", "None"),
        ("wrap._or_policy", "None"),
        ("wrap.transformer_auto_wrap_policy", "None"),
        ("ShardingStrategy.FULL_SHARD", "config.kind"),
    ],
)
def test_what_the_wrap_of_another_file_reads_is_not_to_be_removed(value: str, strategy: str) -> None:
    config = f"import torch.distributed.fsdp as f\nimport torch.distributed.fsdp.wrap\n\nvalue = f.{value}\n"
    build = f"def build(net, config):\n    return FSDP(net, sharding_strategy={strategy})\n"
    main = f"{STAYS}from example import value\n\n{build}"
    (found,) = (one for one in findings(config, main=main) if one.rule == "FSDP100" and one.level.value != "safe")
    assert (found.level.value, found.advice) == ("info", "")


def test_configurations_may_be_ignored_by_a_comment() -> None:
    source = STAYS + "wrapper = FSDP\nhalf = MixedPrecision()  # fsdp-migrate: ignore[FSDP100]\n"
    assert [entry.level.value for entry in findings(source) if entry.rule == "FSDP100"] == ["safe"]


@pytest.mark.parametrize(
    ("module", "rules"),
    [
        ({}, set()),
        ({"package/shard": "def shard(model):\n    return model\n"}, set()),
        ({"package/shard": STAYS.replace(" as FSDP", " as shard")}, {"FSDP101", "FSDP110", "FSDP121"}),
    ],
)
def test_a_name_that_a_package_takes_from_its_module_of_that_name(module: dict[str, str], rules: set[str]) -> None:
    others = {"package/__init__": "from .shard import shard\n", **module}
    source = "from package import shard\n\n\ndef build(model):\n    return shard(model)\n"
    assert {entry.rule for entry in findings(source, **others)} == rules


GUARD = """
try:
    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
except ImportError:
    FSDP = None

def build(net):
    return FSDP(net)

def inner(model):
    return model.module if FSDP is not None and isinstance(model, FSDP) else model
"""


def test_what_the_output_imports_is_in_the_guard_of_fsdp1_s_import() -> None:
    check_rewrites(
        GUARD,
        """
        try:
            from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
            from torch.distributed.fsdp import FSDPModule, fully_shard
        except ImportError:
            FSDP = None
            FSDPModule = fully_shard = None

        def build(net):
            return fully_shard(net)

        def inner(model):
            return model if FSDPModule is not None and isinstance(model, FSDPModule) else model
        """,
    )


def test_a_guard_that_raises_guards_nothing() -> None:
    source = GUARD.replace("    FSDP = None", "    raise")
    result = rewrite(source)
    assert isinstance(result, Changed)
    assert result.source.decode().startswith("\nfrom torch.distributed.fsdp import FSDPModule, fully_shard\n")


def test_an_unused_import_is_kept_where_its_rule_is_ignored() -> None:
    source = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
    assert isinstance(rewrite(source), Changed)
    check_noop(source, Settings(ignore=("FSDP1",)))


def test_an_import_in_a_function_is_no_name_of_the_module() -> None:
    """Another file imports the module's own import of that name, which stays for it."""
    before = """
    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

    def build(model):
        from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

        return FSDP(model)
    """
    after = """
    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, fully_shard

    def build(model):
        return fully_shard(model)
    """
    check_rewrites(before, after, other="from example import FSDP\n")


HOME = """
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import StateDictType


def build(model):
    return FSDP(model)
"""
SAVES = """
import {module}
from {module} import {names}


def save(model):
    with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT):
        return model.state_dict()


def main(net):
    return save({module}.build(net))
"""


@pytest.mark.parametrize("names", ["FSDP, StateDictType", "*"])
@pytest.mark.parametrize("again", [False, True])
def test_names_that_served_another_file_alone_are_gone_with_its_import(names: str, again: bool) -> None:
    module = "again" if again else "home"
    files = {"home.py": HOME, "saves.py": SAVES.format(module=module, names=names)}
    if again:
        files["again.py"] = f"from home import build, {'FSDP, StateDictType' if names == '*' else names}  # of fsdp\n"
    results = rewrite_tree({path: text.encode() for path, text in files.items()})
    texts = [one.source.decode() if isinstance(one, Changed) else files[path] for path, one in results.items()]
    assert len(texts) == len(files)
    assert not [text for text in texts if "StateDictType" in text or "FullyShardedDataParallel" in text]


def test_a_name_that_one_of_two_files_still_imports_is_kept() -> None:
    files = {
        "home.py": HOME,
        "saves.py": SAVES.format(module="home", names="FSDP, StateDictType"),
        "kinds.py": "# of fsdp\nfrom home import StateDictType\n\n\ndef kind(name):\n    return StateDictType[name]\n",
    }
    home = rewrite_tree({path: text.encode() for path, text in files.items()})["home.py"]
    assert isinstance(home, Changed)
    assert b"StateDictType" in home.source
    assert b"FullyShardedDataParallel" not in home.source


def test_a_file_of_imports_that_are_gone_begins_with_its_code() -> None:
    before = (
        "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n\n\ndef build(model):\n    return model\n"
    )
    result = rewrite(before)
    assert isinstance(result, Changed)
    assert result.source.decode() == "def build(model):\n    return model\n"


@pytest.mark.parametrize(
    ("imported", "left"),
    [
        ("from conf import prefetch, sizes", "from conf import sizes\n"),
        ("from conf import prefetch", "from conf import prefetch\n"),
        ("from conf import limit, prefetch, sizes", "from conf import limit, sizes\n"),
        ("from library import prefetch, sizes", "from library import prefetch, sizes\n"),
        ("from package import prefetch, sizes", "from package import prefetch, sizes\n"),
    ],
)
def test_a_name_of_the_project_that_a_removed_argument_alone_read_is_not_imported(imported: str, left: str) -> None:
    source = f"""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
{imported}


def build(model):
    return FSDP(model.to(sizes), backward_prefetch=prefetch)
"""
    others = {
        "conf.py": b"# for fsdp\nprefetch = limit = sizes = print\n",
        "package/prefetch.py": b"",
        "package/__init__.py": b"",
    }
    result = rewrite_tree({"example.py": source.encode(), **others})["example.py"]
    assert isinstance(result, Changed)
    assert left in result.source.decode()


LOCAL = {
    "dist": "import torch.distributed as dist\n\n        dist.all_reduce(x)",
    "under another name": "import torch.distributed as td\n\n        td.all_reduce(x)",
    "one name": "from torch.distributed import get_world_size\n\n        get_world_size()",
    "in a branch": "if x:\n            import torch.distributed as dist\n\n            dist.all_reduce(x)",
    "the mesh": "from torch.distributed.device_mesh import init_device_mesh as mesh\n\n        mesh('cpu', (1,))",
}


@pytest.mark.parametrize("local", LOCAL.values(), ids=LOCAL)
def test_what_one_function_imports_has_no_meaning_in_another(local: str) -> None:
    source = (
        "import torch\nfrom torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n\n\nclass Trainer:\n"
        "    def __init__(self, net):\n        self.net = FSDP(net, device_id=torch.device('cpu'))\n\n"
        f"    def stats(self, x):\n        {local}\n"
    )
    result = rewrite(source)
    assert isinstance(result, Changed)
    tree = ast.parse(result.source)
    above = {alias.asname or alias.name.split(".")[0] for one in tree.body for alias in getattr(one, "names", ())}
    (built,) = (one for one in ast.walk(tree) if isinstance(one, ast.FunctionDef) and one.name == "__init__")
    assert "get_world_size" in ast.unparse(built)
    read = {one.id for one in ast.walk(built) if isinstance(one, ast.Name)}
    assert read <= above | {"self", "net", "torch"}


LATE = '''
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def build(net):
    return FSDP(net, use_orig_params=True)


def clip(net, limit):
    """Clip, and say the norm."""
    if isinstance(net, FSDP):
        return float(net.clip_grad_norm_(limit))
    {}
    return float(torch.nn.utils.clip_grad_norm_(net.parameters(), limit))
'''


@pytest.mark.parametrize(
    "late",
    [
        "import torch",
        "if limit:\n        import torch",
        "try:\n        import torch\n    finally:\n        print(limit)",
    ],
)
def test_what_a_function_imports_comes_before_what_the_output_reads(late: str) -> None:
    result = rewrite(LATE.format(late))
    assert isinstance(result, Changed)
    first, second, *_ = result.source.decode().partition("def clip")[2].splitlines()[1:]
    assert (first.strip(), second.strip()) == ('"""Clip, and say the norm."""', "import torch")
    assert result.source.count(b"import torch\n") == 1 + (late != "import torch")


def test_an_import_of_the_module_is_hidden_by_one_of_the_function() -> None:
    result = rewrite("import torch\n" + LATE.format("import torch"))
    assert isinstance(result, Changed)
    assert b'norm."""\n    import torch\n    if isinstance' in result.source


def test_a_relative_import_in_a_branch_is_no_import_of_torch() -> None:
    result = rewrite(LATE.format("if limit:\n        from .compat import torch"))
    assert not isinstance(result, Failed)


def test_a_name_that_the_code_reads_too_early_itself_stays_where_it_is() -> None:
    source = LATE.format("import torch").replace("    if isinstance", "    print(torch)\n    if isinstance")
    result = rewrite(source)
    assert isinstance(result, Changed)
    assert b"(limit)\n    import torch" not in result.source
    assert b"print(torch)\n" in result.source
    assert result.source.index(b"print(torch)") < result.source.index(b"    import torch\n")


def test_what_a_function_imports_is_not_imported_twice() -> None:
    check_rewrites(
        """
        def build(net):
            import torch
            import torch.distributed as dist
            from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

            return FSDP(net, device_id=torch.device("cpu")), dist.get_rank()
        """,
        """
        def build(net):
            import torch
            import torch.distributed as dist
            from torch.distributed.device_mesh import init_device_mesh
            from torch.distributed.fsdp import fully_shard

            return fully_shard(net, mesh=init_device_mesh("cpu", (dist.get_world_size(),))), dist.get_rank()
        """,
    )


def test_comments_beside_names_that_are_gone_go_with_them() -> None:
    source = """
        from torch.distributed.fsdp import (
            FullyShardedDataParallel as FSDP,
            MixedPrecision,
            LocalStateDictConfig,  # flat parameters
            StateDictType,  # kinds of state
            # of all
        )

        half = MixedPrecision(
            # Gradients
            reduce_dtype=None,
            # Buffers
            buffer_dtype=None,
        )
        KIND = StateDictType.FULL_STATE_DICT

        def build(net):
            return FSDP(net, mixed_precision=half)
    """
    done = rewrite(source)
    assert isinstance(done, Changed)
    assert re.findall(r"# (.*)", done.source.decode()) == ["kinds of state", "of all", "Gradients"]
