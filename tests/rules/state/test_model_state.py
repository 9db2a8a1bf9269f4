"""FSDP307 and 309: a model's own state, and the functions that write and read it."""

from __future__ import annotations

import pytest

from fsdp_rules.verdict.finding import Level
from fsdp_rules.verdict.result import Changed
from tests.rules.helpers import check_noop, check_rewrites, findings, rewrite, rewrite_tree

WRAP = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
LOADED = """\
    set_model_state_dict(
        model,
        {state},
        options=StateDictOptions(full_state_dict=True, broadcast_from_rank0=True),
    )
"""
#: Where the model may not be sharded, and no process group may be there.
ASKED = """\
    set_model_state_dict(
        model,
        {state},
        options=StateDictOptions(
            full_state_dict=torch.distributed.is_initialized(),
            broadcast_from_rank0=torch.distributed.is_initialized(),
        ),
    )
"""


def output(body: str, **others: str) -> str:
    """The rewritten ``body``, as text."""
    result = rewrite(body, None, **others)
    assert isinstance(result, Changed), result
    return result.source.decode()


def test_models_that_are_not_sharded_are_left_alone() -> None:
    check_noop(
        """
        import torch
        import torch.distributed.checkpoint as dcp

        def save(model, optimizer, path):
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)
            model.load_state_dict(torch.load(path))
            dcp.save_state_dict(model.state_dict(), dcp.FileSystemWriter(path))
        """
    )


def test_a_model_that_is_loaded_before_it_is_wrapped_is_left_alone() -> None:
    text = output(
        WRAP
        + """
import torch

def read(model, path):
    model.load_state_dict(torch.load(path))

def main(path):
    model = Net()
    model.load_state_dict(torch.load(path))
    read(model, path)
    model = FSDP(model)
    return model
"""
    )
    assert text.count("model.load_state_dict(torch.load(path))") == 2


def test_a_model_that_is_handed_on_after_it_is_wrapped() -> None:
    text = output(
        """
import torch

def read(model, path):
    model.load_state_dict(torch.load(path))
""",
        main=WRAP + "from example import read\n\ndef main(path):\n    model = FSDP(Net())\n    read(model, path)\n",
    )
    assert text.endswith("def read(model, path):\n" + ASKED.format(state="torch.load(path)"))


@pytest.mark.parametrize(
    ("body", "state"),
    [
        ("model.load_state_dict(torch.load(path))", "torch.load(path)"),
        ("state = torch.load(path)\n    model.load_state_dict(state)", "state"),
        ("state = torch.load(path)\n    model.load_state_dict(state)\n    print(state)", "dict(state)"),
        ("state = torch.load(path)\n    model.load_state_dict(state['m'])\n    print(state['o'])", "state['m']"),
        ("state = torch.load(path)\n    model.load_state_dict(state['m'])\n    print(state['m'])", "dict(state['m'])"),
        ("model.load_state_dict(path)", "dict(path)"),
    ],
)
def test_a_state_that_is_read_again_is_copied(body: str, state: str) -> None:
    text = output(f"{WRAP}import torch\n\ndef main(net, path):\n    model = FSDP(net)\n    {body}\n")
    assert LOADED.format(state=state) in text


def test_strict_is_kept() -> None:
    text = output(
        f"{WRAP}\ndef main(net, state, strict):\n    model = FSDP(net)\n"
        "    print(model.load_state_dict(state, strict))\n    model.load_state_dict(state, strict=True)\n"
    )
    assert "broadcast_from_rank0=True, strict=strict)" in text
    assert "broadcast_from_rank0=True)" in text


def test_a_part_of_the_model() -> None:
    text = output(f"{WRAP}\ndef main(net):\n    model = FSDP(net)\n    return model.encoder.state_dict()\n")
    assert "get_model_state_dict(model.encoder, options=StateDictOptions(full_state_dict=True))" in text


def test_a_state_inside_a_display_is_laid_out_in_it() -> None:
    check_rewrites(
        """
        from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

        def main(net, with_a_rather_long_name_for_a_model):
            with_a_rather_long_name_for_a_model = FSDP(net)
            return {
                "model": with_a_rather_long_name_for_a_model.state_dict(),
            }
        """,
        """
        from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
        from torch.distributed.fsdp import fully_shard

        def main(net, with_a_rather_long_name_for_a_model):
            with_a_rather_long_name_for_a_model = fully_shard(net)
            return {
                "model": get_model_state_dict(
                    with_a_rather_long_name_for_a_model,
                    options=StateDictOptions(full_state_dict=True),
                ),
            }
        """,
    )


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        ("dist_cp.save_state_dict(state, writer)", "dist_cp.save(state, storage_writer=writer)"),
        ("dist_cp.save_state_dict(state_dict=state, storage_writer=writer)", None),
        ("dist_cp.load_state_dict(state, writer, None, 0, True)", None),
    ],
)
def test_the_first_names_of_save_and_load(call: str, expected: str | None) -> None:
    text = output(
        f"{WRAP}import torch.distributed.checkpoint as dist_cp\n\ndef main(net, state, writer):\n"
        f"    model = FSDP(net)\n    {call}\n"
    )
    known = {
        "dist_cp.save_state_dict(state_dict=state, storage_writer=writer)": (
            "dist_cp.save(state_dict=state, storage_writer=writer)"
        ),
        "dist_cp.load_state_dict(state, writer, None, 0, True)": (
            "dist_cp.load(state, storage_reader=writer, process_group=None, no_dist=True)"
        ),
    }
    assert f"    {expected or known[call]}\n" in text


def test_a_call_over_several_lines_keeps_them() -> None:
    check_rewrites(
        """
        import torch.distributed.checkpoint as dist_cp
        from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, StateDictType

        def save(model, path):
            with FSDP.state_dict_type(model, StateDictType.SHARDED_STATE_DICT):
                dist_cp.save_state_dict(
                    {"model": model.state_dict()},  # all of it
                    Writer(
                        path,
                        overwrite=True,
                    ),
                    None,
                    0,
                )
                dist_cp.load_state_dict(model.state_dict(),
                                        Reader(path), None, 0,
                                        no_dist=True)
        """,
        """
        import torch.distributed.checkpoint as dist_cp
        from torch.distributed.checkpoint.state_dict import get_model_state_dict

        def save(model, path):
            dist_cp.save(
                {"model": get_model_state_dict(model)},  # all of it
                storage_writer=Writer(
                    path,
                    overwrite=True,
                ),
                process_group=None,
            )
            dist_cp.load(get_model_state_dict(model),
                                    storage_reader=Reader(path), process_group=None,
                                    no_dist=True)
        """,
    )


@pytest.mark.parametrize("package", ["torch.distributed.checkpoint", "torch.distributed._shard.checkpoint"])
def test_imported_functions_are_replaced_with_their_import(package: str) -> None:
    check_rewrites(
        f"""
        from {package} import FileSystemWriter, save_state_dict
        from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

        def main(net, state):
            model = FSDP(net)
            save_state_dict(state, FileSystemWriter("x"))
        """,
        f"""
        import torch.distributed.checkpoint as dcp
        from {package} import FileSystemWriter
        from torch.distributed.fsdp import fully_shard

        def main(net, state):
            model = fully_shard(net)
            dcp.save(state, storage_writer=FileSystemWriter("x"))
        """,
    )


@pytest.mark.parametrize(("more", "level"), [("", "safe"), (", no_dist=True", "review")])
def test_an_argument_that_old_releases_lack(more: str, level: str) -> None:
    body = (
        f"{WRAP}import torch.distributed.checkpoint as dcp\n\ndef main(net, state, reader):\n    model = FSDP(net)\n"
        f"    dcp.load_state_dict(state, storage_reader=reader{more})\n"
    )
    assert [found.level.value for found in findings(body) if found.rule == "FSDP307"] == [level]


def test_another_coordinator_is_left_for_the_reader() -> None:
    body = (
        f"{WRAP}import torch.distributed.checkpoint as dcp\n\ndef main(net, state, writer):\n    model = FSDP(net)\n"
        "    dcp.save_state_dict(state, writer, coordinator_rank=1)\n"
    )
    assert [found.level.value for found in findings(body) if found.rule == "FSDP307"] == ["manual"]


BASE = """
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

class Base:
    def __init__(self, model):
        self.model = model

    def load(self, path):
        {load}

class Sharded(Base):
    def __init__(self, model):
        self.model = {wrap}(model)
"""


def test_a_class_that_shards_only_sometimes_loads_without_a_process_group_too() -> None:
    check_rewrites(
        BASE.format(load="self.model.load_state_dict(torch.load(path))", wrap="FSDP"),
        BASE.replace(
            "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP",
            "from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict\n"
            "from torch.distributed.fsdp import fully_shard",
        ).format(
            load="""set_model_state_dict(
            self.model,
            torch.load(path),
            options=StateDictOptions(
                full_state_dict=torch.distributed.is_initialized(),
                broadcast_from_rank0=torch.distributed.is_initialized(),
            ),
        )""",
            wrap="fully_shard",
        ),
    )


def test_what_is_called_an_optimizer_is_no_model() -> None:
    main = WRAP + "from example import save\n\ndef main(net, a):\n    things = [FSDP(net), a]\n    save(*things)\n"
    main += "    save(*reversed(things), a)\n"
    source = "def save(model, optimizer, lr_scheduler):\n    {}.state_dict()\n"
    said = {
        name: [found.rule for found in findings(source.format(name), None, main=main) if found.rule == "FSDP309"]
        for name in ("model", "optimizer", "lr_scheduler")
    }
    assert said == {"model": ["FSDP309"], "optimizer": [], "lr_scheduler": []}


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("model = FSDP(net)\n    model = torch.compile(model)\n    return model.state_dict()", True),
        ("model = FSDP(torch.compile(net) if fast else net)\n    return model.state_dict()", True),
        (
            "model = FSDP(net)\n    model = torch.compile(model) if fast else model\n    model.load_state_dict(fast)",
            True,
        ),
        ("model = FSDP(net)\n    model.compile()\n    return model.state_dict()", False),
        (
            "model = FSDP(net)\n    state = model.state_dict()\n    model = torch.compile(model)\n    return state",
            False,
        ),
        ("model = FSDP(net)\n    other = torch.compile(net)\n    return model.state_dict()", False),
    ],
)
def test_names_of_a_compiled_model_lose_their_prefix(body: str, told: bool) -> None:
    source = f"import torch\n{WRAP}\ndef main(net, fast):\n    {body}\n"
    said = [(found.level.value, "_orig_mod." in found.message) for found in findings(source) if found.rule == "FSDP309"]
    assert said == [("review" if told else "safe", told)]


def test_the_model_inside_a_compiled_one_is_a_sharded_model() -> None:
    main = f"{WRAP}from example import load\n\nmodel = FSDP(Net())\nload(model, state, True)\n"
    source = "def load(model, state, compiled):\n    model._orig_mod.load_state_dict(state)\n"
    text = output(source, main=main)
    assert "set_model_state_dict(\n        model._orig_mod,\n" in text


def test_a_compiled_attribute_loses_its_prefix_in_all_methods() -> None:
    source = f"""
import torch
{WRAP}
class Trainer:
    def __init__(self, net):
        self.model = torch.compile(FSDP(net))

    def state(self):
        return self.model.state_dict()
"""
    assert ["_orig_mod." in found.message for found in findings(source) if found.rule == "FSDP309"] == [True]


def test_an_attribute_of_the_same_name_in_a_file_without_fsdp1() -> None:
    wrapper = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
    wrapper += "class Trainer:\n    def __init__(self, model):\n        self.model = FSDP(model)\n"
    script = "def evaluate(x, state):\n    x.model.load_state_dict(state)\n"
    assert [(found.rule, found.level.value) for found in findings(script, None, trainer=wrapper)] == [
        ("FSDP309", "review")
    ]
    helped = "from tools.fsdp import Checkpointer\n\n" + script
    assert [found.level.value for found in findings(helped, None, trainer=wrapper)] == ["review"]
    inheriting = "from trainer import Trainer\n\nclass Mine(Trainer):\n    def save(self):\n"
    inheriting += "        return self.model.state_dict()\n"
    assert [found.level.value for found in findings(inheriting, None, trainer=wrapper)] == ["safe"]


@pytest.mark.parametrize(
    ("given", "reader", "told"),
    [
        ("", "", False),
        (", process_group=None", "", False),
        (", process_group=groups.data()", "", True),
        (", process_group=groups.data()", "if groups.data_rank() == 0:\n        ", True),
        (", process_group=groups.data()", "if dist.get_rank() == 0:\n        ", False),
    ],
)
def test_a_state_of_a_model_in_a_group_of_its_own_goes_to_rank_zero_of_all(given: str, reader: str, told: bool) -> None:
    source = f"""\
import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullStateDictConfig, StateDictType
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

def save(net, path):
    model = FSDP(net{given})
    with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, FullStateDictConfig(True, True)):
        state = model.state_dict()
    {reader}torch.save(state, path)
"""
    (found,) = [entry for entry in findings(source) if entry.rule == "FSDP309"]
    assert (found.level.value, "process_group contains every rank" in found.message) == (
        ("review", True) if told else ("safe", False)
    )


def test_a_full_state_is_sent_to_ranks_outside_of_the_model_s_group_too() -> None:
    source = f"{WRAP}\ndef main(net, state):\n    model = FSDP(net%s)\n    model.load_state_dict(state)\n"
    told = {
        argument: ["since rank 0 sends to all" in found.message for found in findings(source % argument)].count(True)
        for argument in ("", ", process_group=None", ", process_group=group")
    }
    assert told == {"": 0, ", process_group=None": 0, ", process_group=group": 1}


@pytest.mark.parametrize(
    ("made", "given", "is_cut"),
    [
        ("group = dist.new_group([0, 1])", "group", True),
        ("ranks = list(range(2, 4))\n    group = dist.new_group(ranks=ranks)", "group", True),
        ("first, _ = dist.new_subgroups(2)", "first", True),
        ("groups = [dist.new_group([r for r in range(8) if r % 2 == n]) for n in (0, 1)]", "groups[n]", True),
        ("self.group = dist.new_group([n, n + 1])", "self.group", True),
        ("", "dist.new_group([0, 1])", True),
        ("mine = [0, 1]\n    one = dist.new_group(mine)\n    group = one", "group", True),
        ("group = dist.new_group()", "group", False),
        ("group = dist.new_group(backend='gloo')", "group", False),
        ("group = dist.new_group(list(range(n)))", "group", False),
        ("group = dist.new_group(range(0, n))", "group", False),
        ("group = dist.new_group(n)", "group", False),
        ("other = dist.new_group([0, 1])", "group", False),
        ("group = None\n    if n:\n        group = dist.new_group([0, 1])", "group", True),
    ],
)
def test_each_rank_of_a_subgroup_that_the_code_makes_cuts_its_own_state(made: str, given: str, is_cut: bool) -> None:
    wrap = f"{WRAP}import torch.distributed as dist\n\ndef build(self, net, n, group):\n    {made or 'pass'}\n"
    wrap += f"    return FSDP(net, process_group={given})\n"
    load = "\ndef load(self, net, n, group, state):\n    model = build(self, net, n, group)\n"
    load += "    model.load_state_dict(state)\n"
    (alone,) = (found for found in findings(wrap + load) if found.rule == "FSDP309")
    (found,) = (
        found for found in findings(f"from build import build\n{load}", None, build=wrap) if found.rule == "FSDP309"
    )
    assert [("with a broadcast" in one.message, one.level.value) for one in (alone, found)] == [(is_cut, "review")] * 2
    assert ("broadcast_from_rank0" in output(load.replace("\ndef load", f"\n{wrap}\ndef load"))) is not is_cut


@pytest.mark.parametrize(("ranks", "said"), [("[0, 1]", ["FSDP301 manual"]), ("", ["FSDP301 safe", "FSDP309 review"])])
def test_only_rank_zero_of_all_gets_the_state_of_a_subgroup(ranks: str, said: list[str]) -> None:
    source = f"""\
import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullStateDictConfig, StateDictType
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

def save(net, path):
    group = dist.new_group({ranks})
    model = FSDP(net, process_group=group)
    with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, FullStateDictConfig(True, True)):
        state = model.state_dict()
    torch.save(state, path)
"""
    about = [found for found in findings(source) if found.rule in ("FSDP301", "FSDP309")]
    assert [f"{found.rule} {found.level.value}" for found in about] == said


@pytest.mark.parametrize(
    ("body", "asks"),
    [
        ("model.load_state_dict(state)", True),
        ("if sharded:\n        model.load_state_dict(state)", False),
        ("if not sharded:\n        model.load_state_dict(state)", True),
        ("if sharded:\n        pass\n    else:\n        model.load_state_dict(state)", True),
        ("if not sharded:\n        pass\n    else:\n        model.load_state_dict(state)", False),
        ("if state and sharded:\n        model.load_state_dict(state)", False),
        ("if state or sharded:\n        model.load_state_dict(state)", True),
        ("if world_size > 1:\n        model.load_state_dict(state)", False),
        ("if world_size == 1:\n        model.load_state_dict(state)", True),
        ("if world_size == 1:\n        pass\n    else:\n        model.load_state_dict(state)", False),
        ("if mode == 'fsdp':\n        model.load_state_dict(state)", False),
        ("if state:\n        model.load_state_dict(state)", True),
        ("if state:\n        model = FSDP(model)\n    model.load_state_dict(state)", True),
        ("model = FSDP(model) if sharded else model\n    model.load_state_dict(state)", True),
        ("model = FSDP(model)\n    model.load_state_dict(state)", False),
        ("with FSDP.state_dict_type(model, FULL):\n        model.load_state_dict(state)", False),
    ],
)
def test_a_full_load_asks_for_a_process_group_unless_the_model_is_surely_sharded(body: str, asks: bool) -> None:
    imports = f"from torch.distributed.fsdp import StateDictType\n{WRAP}\nFULL = StateDictType.FULL_STATE_DICT\n"
    source = f"{imports}\ndef load(model, state, sharded, world_size):\n    {body}\n\nload(FSDP(net), state, True, 2)\n"
    text = output(source)
    assert text.count("set_model_state_dict(") == 1
    assert text.count("dist.is_initialized()") == 2 * asks


@pytest.mark.parametrize(("wrap", "asks"), [("", False), ("if model:\n            ", True)])
def test_a_method_of_a_class_that_always_shards_does_not_ask(wrap: str, asks: bool) -> None:
    text = output(
        f"{WRAP}\nclass Trainer:\n    def __init__(self, model):\n        self.model = model\n"
        f"        {wrap}self.model = FSDP(self.model)\n\n"
        "    def load(self, state):\n        self.model.load_state_dict(state)\n"
    )
    assert ("is_initialized" in text) is asks


@pytest.mark.parametrize("test", ["rank == 0", "dist.get_rank() == 0", "args.rank == 0"])
def test_a_load_on_one_rank_is_left_for_the_reader(test: str) -> None:
    body = (
        f"{WRAP}import torch.distributed as dist\n\ndef main(net, state, rank, args):\n    if args.fsdp:\n"
        f"        net = FSDP(net)\n    if {test}:\n        net.load_state_dict(state)\n"
    )
    assert "    net.load_state_dict(state)" in output(body)
    assert [found.level.value for found in findings(body) if found.rule == "FSDP309"] == ["manual"]


def test_methods_that_are_passed_on() -> None:
    source = """
    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

    def main(net, other, save):
        model = FSDP(net)
        save(model.state_dict, other.state_dict)
        return model.load_state_dict
    """
    passed = [found for found in findings(source) if found.rule == "FSDP309"]
    assert [(found.line, found.level.value) for found in passed] == [(6, "manual"), (7, "manual")]


@pytest.mark.parametrize(
    ("before", "after", "is_sharded"),
    [
        ("models[0] = FSDP(models[0])", "models[0] = models[0].module", True),
        ("models[0] = FSDP(models[0])", "models[0] = other(models[0])", True),
        ("models = [FSDP(model) for model in models]", "models[0] = None", True),
        ("pass", "models[0] = FSDP(models[0])", False),
    ],
)
def test_an_element_is_unsharded_above_its_wrap_alone(before: str, after: str, is_sharded: bool) -> None:
    text = output(f"{WRAP}\ndef main(models, other):\n    {before}\n    save(models[0].state_dict())\n    {after}\n")
    assert ("save(get_model_state_dict(models[0]," in text) is is_sharded


@pytest.mark.parametrize(
    ("call", "said"),
    [
        ("model.save_pretrained('out')", True),
        ("model.module.save_pretrained('out')", True),
        ("with FSDP.summon_full_params(model):\n        model.save_pretrained('out')", False),
        ("model.save_pretrained('out', state_dict=state)", False),
        ("model.save_pretrained('out', **given)", False),
        ("tokenizer.save_pretrained('out')", False),
    ],
)
def test_a_model_that_writes_its_own_state_is_left_to_a_human(call: str, said: bool) -> None:
    source = f"{WRAP}def f(model, tokenizer, state, given):\n    model = FSDP(model)\n    {call}\n"
    found = {(one.rule, one.level) for one in findings(source) if "save_pretrained" in one.message}
    assert (("FSDP309", Level.MANUAL) in found) == said


def test_what_another_file_writes_of_a_list_of_models() -> None:
    main = f"{WRAP}from saving import keep\n\ndef main(nets):\n    keep([FSDP(net) for net in nets])\n"
    saving = "def keep(nets):\n    for number, net in enumerate(nets):\n        net.save_pretrained(f'out-{number}')\n"
    result = rewrite_tree({"main.py": main.encode(), "saving.py": saving.encode()})["saving.py"]
    assert isinstance(result, Changed)
    assert [(one.rule, one.level) for one in result.findings] == [("FSDP309", Level.MANUAL)]


@pytest.mark.parametrize(
    ("unwrapped", "said"),
    [
        ("model.module if isinstance(model, (FSDP, DDP)) else model", []),
        ("self.models[0]", ["manual"]),
    ],
)
def test_what_takes_the_wrapper_off_gives_what_it_is_given(unwrapped: str, said: list[str]) -> None:
    source = f"""
{WRAP}from torch.nn.parallel import DistributedDataParallel as DDP

class Accelerator:
    def prepare(self, model):
        self.models = [FSDP(model)]
        return self.models[0]

    def unwrap(self, model):
        return {unwrapped}

    def state(self, model):
        return self.unwrap(model).state_dict()

def main(net):
    accelerator = Accelerator()
    model = accelerator.prepare(net)
    accelerator.unwrap(model)
"""
    assert [found.level.value for found in findings(source) if found.rule == "FSDP309"] == said
    reached = source + "    accelerator.state(model)\n"
    assert [found.level.value for found in findings(reached) if found.rule == "FSDP309"] == ["manual"]


@pytest.mark.parametrize(
    ("with_", "is_kept"),
    [
        ("with FSDP.summon_full_params(one, writeback=False):", True),
        ("with one.summon_full_params(one, offload_to_cpu=True):", True),
        ("with FSDP.summon_full_params(one, recurse=False):", False),
        ("with FSDP.summon_full_params(model):", False),
        ("with torch.no_grad():", False),
    ],
)
def test_a_state_that_summon_full_params_gathers_may_be_empty(with_: str, is_kept: bool) -> None:
    body = f"""
import torch
{WRAP}
def save(model, names):
    model = FSDP(model)
    states = {{}}
    for name, one in model.named_modules():
        if isinstance(one, FSDP) and name in names:
            {with_}
                states.update({{f"{{name}}.{{k}}": v.clone() for k, v in one.state_dict().items()}})
    return states
"""
    text = output(body)
    assert ("in one.state_dict().items()" in text) is is_kept
    assert ("get_model_state_dict(one," in text) is not is_kept
