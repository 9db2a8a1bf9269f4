"""FSDP304, 305, 306 and 308: an optimizer's state."""

from __future__ import annotations

import textwrap

import pytest

from fsdp_rules.settings import Settings
from fsdp_rules.verdict.result import Changed
from tests.rules.helpers import check_findings, check_rewrites, findings, rewrite

FSDP1 = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"


def output(body: str, settings: Settings | None = None) -> str:
    """The rewritten ``body``, as text."""
    result = rewrite(FSDP1 + body, settings)
    assert isinstance(result, Changed), result
    return result.source.decode()


def levels(body: str) -> list[tuple[str, str]]:
    """Rule and level of each finding of a state rule."""
    return [(found.rule, found.level.value) for found in findings(FSDP1 + body) if found.rule > "FSDP3"]


SET_FULL = """\
    set_optimizer_state_dict(
        model,
        optim,
        optim_state_dict={state},
        options=StateDictOptions(full_state_dict=True{more}),
    )
    for state in optim.state.values():
        state.update({{key: value.clone() for key, value in state.items() if torch.is_tensor(value)}})
"""
OWN = "state.update({key: value.clone() for key, value in state.items() if torch.is_tensor(value)})"


@pytest.mark.parametrize(
    "call",
    [
        "FSDP.optim_state_dict_to_load(model, optim, osd)",
        "FSDP.optim_state_dict_to_load(model=model, optim=optim, optim_state_dict=osd)",
        "FSDP.optim_state_dict_to_load(optim_state_dict=osd, model=model, optim=optim)",
        "FSDP.optim_state_dict_to_load(osd, model, optim)",
        "FSDP.optim_state_dict_to_load(osd, model=model, optim=optim)",
        "FSDP.optim_state_dict_to_load(model, optim, osd, group=None)",
        "FSDP.shard_full_optim_state_dict(osd, model)",
        "FSDP.shard_full_optim_state_dict(full_optim_state_dict=osd, model=model, optim=optim)",
    ],
)
@pytest.mark.parametrize("nested", [True, False])
def test_one_call_makes_and_loads(call: str, nested: bool) -> None:
    body = f"optim.load_state_dict({call})" if nested else f"flat = {call}\n    optim.load_state_dict(flat)"
    text = output(f"\ndef load(model, optim, osd):\n    {body}\n")
    assert text.endswith("def load(model, optim, osd):\n" + SET_FULL.format(state="osd", more=""))


def test_rank_zero_sends_the_state() -> None:
    body = """
from torch.distributed.fsdp import FullOptimStateDictConfig, FullStateDictConfig, StateDictType

def load(model, optim, osd):
    with FSDP.state_dict_type(
        model, StateDictType.FULL_STATE_DICT, FullStateDictConfig(), FullOptimStateDictConfig(rank0_only=True)
    ):
        flat = FSDP.optim_state_dict_to_load(model, optim, osd)
    optim.load_state_dict(flat)
"""
    assert output(body).endswith(SET_FULL.format(state="osd", more=", broadcast_from_rank0=True"))


@pytest.mark.parametrize(
    ("path", "wrapped", "sends"),
    [
        ('"optim.pt"', "model = FSDP(model)", ", broadcast_from_rank0=True"),
        ('f"optim_{torch.distributed.get_rank()}.pt"', "model = FSDP(model)", ""),
        ('"optim.pt"', "model = FSDP(model, ignored_modules=[model.head])", ""),
    ],
)
def test_what_every_rank_reads_from_one_file_is_sent_by_rank_zero(path: str, wrapped: str, sends: str) -> None:
    """Of the forms with the same numbers it takes the least memory; a rank's own values are never sent over."""
    body = f"""
import torch
from torch.distributed.fsdp import StateDictType

def load(model, optim):
    {wrapped}
    FSDP.set_state_dict_type(model, StateDictType.FULL_STATE_DICT)
    osd = torch.load({path})
    optim.load_state_dict(FSDP.optim_state_dict_to_load(model, optim, osd))
"""
    text = "".join(output(body).split())
    assert "".join(f"options=StateDictOptions(full_state_dict=True{sends})".split()) in text.replace(",)", ")"), text
    told = [one.message for one in findings(FSDP1 + body) if one.rule == "FSDP305"]
    assert ["lowest memory peak" in message for message in told] == [bool(sends)]


def test_what_may_not_be_sharded_is_only_sent_in_a_process_group() -> None:
    text = output(
        "import torch\n\ndef load(model, optim):\n"
        "    optim.load_state_dict(FSDP.shard_full_optim_state_dict(torch.load('optim.pt'), model))\n"
    )
    assert "broadcast_from_rank0=torch.distributed.is_initialized()" in text


@pytest.mark.parametrize(
    "load", ["{optim}.load_state_dict({flat})", "flat = {flat}\n    {optim}.load_state_dict(flat)"]
)
def test_an_optimizer_that_a_call_gives_is_asked_for_once(load: str) -> None:
    load = load.format(flat="FSDP.optim_state_dict_to_load(model, made(), osd)", optim="made()")
    text = output(f"\ndef load(model, made, osd):\n    {load}\n")
    assert text.count("made()") == 1
    assert (
        "    loaded_optimizer = made()\n    set_optimizer_state_dict(\n        model,\n        loaded_optimizer,\n"
        in text
    )
    assert f"    for state in loaded_optimizer.state.values():\n        {OWN}\n" in text


@pytest.mark.parametrize(
    ("before", "owned"),
    [
        ("osd = torch.load(osd)", True),
        ("print(osd)", True),
        ("state = {'o': FSDP.optim_state_dict(model, optim)}\n        dcp.load(state, checkpoint_id=osd)", False),
        ("dcp.load_state_dict(osd, 'folder')", False),
    ],
)
def test_a_sharded_state_is_copied_unless_it_is_the_optimizer_s_own(before: str, owned: bool) -> None:
    """Parameters of a flat one share a counter in files of each rank, and not in what torch reads in place."""
    body = f"""
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.fsdp import StateDictType

def load(model, optim, osd):
    with FSDP.state_dict_type(model, StateDictType.SHARDED_STATE_DICT):
        {before}
        optim.load_state_dict(FSDP.optim_state_dict_to_load(model, optim, osd))
"""
    assert ("value.clone()" in output(body)) is owned


def test_sharded_states_take_no_options() -> None:
    text = output(
        """
def load(model, optim, osd):
    optim.load_state_dict(FSDP.flatten_sharded_optim_state_dict(osd, model, optim))
    return FSDP.sharded_optim_state_dict(model, optim)
"""
    )
    assert "    set_optimizer_state_dict(model, optim, optim_state_dict=osd)\n" in text
    assert "    return copy.deepcopy(get_optimizer_state_dict(model, optim))\n" in text


def test_branches_that_share_one_load() -> None:
    text = output(
        """
def load(model, optim, osd, how):
    if how:
        flat = FSDP.scatter_full_optim_state_dict(osd, model)
    else:
        flat = FSDP.optim_state_dict_to_load(model, optim, osd)
    optim.load_state_dict(flat)
    print("loaded")
"""
    )
    assert text.count("set_optimizer_state_dict(\n") == 2
    assert ".load_state_dict" not in text
    assert text.endswith('    print("loaded")\n')


@pytest.mark.parametrize(
    "body",
    [
        "if c:\n        osd = {call}\n    optim.load_state_dict(osd)",
        "flat = {call}\n    if c:\n        optim.load_state_dict(flat)",
        "flat = {call}\n    optim.load_state_dict(flat)\n    return flat",
        "flat = {call}\n    other.load_state_dict(flat)",
        "flat = {call}\n    if c:\n        return\n    optim.load_state_dict(flat)",
        "return {call}",
    ],
)
def test_a_result_that_goes_another_way_comes_from_the_helper(body: str) -> None:
    call = "FSDP.optim_state_dict_to_load(model, optim, osd)"
    source = f"\ndef load(model, optim, osd, c, other):\n    {body.format(call=call)}\n"
    text = output(source)
    assert "fsdp_compat.optim_state_dict_to_load(model, optim, osd)" in text
    assert text.count("load_state_dict(") == source.count("load_state_dict(")
    assert not [found for found in findings(FSDP1 + source) if "set_optimizer_state_dict" in found.message]
    assert [found.level.value for found in findings(FSDP1 + source, Settings(helpers="never"))] == ["manual"]


@pytest.mark.parametrize(
    "body",
    [
        "flat = FSDP.scatter_full_optim_state_dict(osd, model)",
        "FSDP.optim_state_dict_to_load(model, optim, osd)",
        "optim.load_state_dict(FSDP.optim_state_dict_to_load(model, optim, osd, is_named_optimizer=True))",
        "return FSDP.optim_state_dict(model, optim, other)",
        "return FSDP.optim_state_dict(*osd)",
        "return FSDP.rekey_optim_state_dict(osd, 0, model)",
    ],
)
def test_what_is_not_certain_is_left_for_the_reader(body: str) -> None:
    found = levels(f"\ndef load(model, optim, osd, other):\n    {body}\n")
    assert [level for _, level in found] == ["manual"]


MADE = """
from torch import nn

class Net(nn.Linear):
    pass

def load(optim, osd, config):
    model = FSDP(Net(2, 2))
    {made}
    return FSDP.rekey_optim_state_dict(osd, config.key, {of})
"""


@pytest.mark.parametrize(
    ("made", "of", "level"),
    [
        ("", "Net(2, 2)", "info"),
        ("other = Net(2, 2).eval()", "other", "info"),
        ("other = Net(2, 2)", "model=other", "info"),
        ("other = Net(2, 2)\n    FSDP(other)", "other", "manual"),
        ("", "model", "manual"),
        ("", "FSDP(Net(2, 2))", "manual"),
        ("other = config.build()", "other", "manual"),
    ],
)
def test_keys_that_a_plain_model_renames_are_kept(made: str, of: str, level: str) -> None:
    found = levels(MADE.format(made=made, of=of))
    assert found == [("FSDP306", level)]


def test_a_load_that_loads_by_itself() -> None:
    text = output(
        "\ndef load(model, optim, osd):\n    FSDP.optim_state_dict_to_load(model, optim, osd, load_directly=True)\n"
    )
    assert text.endswith(SET_FULL.format(state="osd", more=""))


ON_CPU = """\
def save(model, optim):
    optim_state = get_optimizer_state_dict(model, optim, options=StateDictOptions(full_state_dict=True))
    for state in optim_state["state"].values():
        state.update({key: value.to("cpu", copy=True) for key, value in state.items() if torch.is_tensor(value)})
    return optim_state
"""


@pytest.mark.parametrize(
    "value",
    [
        "{call} if optim is not None else None",
        "optim and {call}",
        "[{call} for model in models]",
        "{{name: {call} for name in models}}",
        "lambda: {call}",
    ],
)
def test_a_state_that_is_taken_at_times_comes_from_the_helper(value: str) -> None:
    call = "FSDP.optim_state_dict(model, optim)"
    text = output(f"\ndef save(model, optim, models):\n    return {value.format(call=call)}\n")
    assert "fsdp_compat.optim_state_dict(model, optim)" in text


def test_the_optimizer_s_own_state_may_be_given() -> None:
    text = output("\ndef save(model, optim):\n    return FSDP.optim_state_dict(model, optim, optim.state_dict())\n")
    assert text.endswith(ON_CPU)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("model, optim", "options=StateDictOptions(full_state_dict=True, cpu_offload=True)"),
        ("model, optim, None, True", "options=StateDictOptions(full_state_dict=True, cpu_offload=True)"),
        ("model, optim, rank0_only=False", 'value.to("cpu", copy=True) for key, value in state.items()'),
        ("model, optim, rank0_only=alone", "options=StateDictOptions(full_state_dict=True, cpu_offload=alone)"),
    ],
)
def test_the_old_full_state(arguments: str, expected: str) -> None:
    text = output(f"\ndef save(model, optim, alone):\n    return FSDP.full_optim_state_dict({arguments})\n")
    assert expected in text


@pytest.mark.parametrize(
    ("reads", "native"),
    [
        ("if rank == 0:\n        torch.save(state, path)", True),
        ("if rank <= 0:\n        torch.save(state, path)", True),
        ("if rank == 0:\n        torch.save(state, path)\n    del state", True),
        ("if rank != 0:\n        return\n    torch.save(state, path)", True),
        ("if dist.get_rank() > 0:\n        return\n    torch.save(state, path)", True),
        ("if rank >= 0:\n        torch.save(state, path)", False),
        ("if rank < 2:\n        torch.save(state, path)", False),
        ("if rank != 0:\n        print(rank)\n    torch.save(state, path)", False),
        ("if local_rank != 0:\n        return\n    torch.save(state, path)", False),
        ("torch.save(state, path)\n    if rank != 0:\n        return", False),
        ("for one in path:\n        if rank != 0:\n            return\n    torch.save(state, path)", False),
    ],
)
def test_a_state_that_rank_0_alone_reads_is_moved_there_alone(reads: str, native: bool) -> None:
    head = "\nimport torch\nimport torch.distributed as dist\n"
    body = f"    state = FSDP.optim_state_dict(model, optim)\n    {reads}\n"
    text = output(f"{head}def save(model, optim, path, rank, local_rank):\n{body}")
    assert ("value.cpu()" not in text) is native
    assert ("StateDictOptions(full_state_dict=True, cpu_offload=True)" in text) is native


def test_a_sharded_state_is_read_into_the_optimizer_s_own() -> None:
    check_rewrites(
        """
        import torch.distributed.checkpoint as dist_cp
        from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, StateDictType

        def load(model, optim, reader):
            with FSDP.state_dict_type(model, StateDictType.SHARDED_STATE_DICT):
                state = dist_cp.load_sharded_optimizer_state_dict(
                    model_state_dict=model.state_dict(), optimizer_key="optim", storage_reader=reader
                )["optim"]
                optim.load_state_dict(FSDP.optim_state_dict_to_load(model, optim, state))
        """,
        """
        import torch.distributed.checkpoint as dist_cp
        from torch.distributed.checkpoint.state_dict import (
            get_optimizer_state_dict,
            set_optimizer_state_dict,
        )

        def load(model, optim, reader):
            state = {"optim": get_optimizer_state_dict(model, optim)}
            dist_cp.load(state, storage_reader=reader)
            state = state["optim"]
            set_optimizer_state_dict(model, optim, optim_state_dict=state)
        """,
    )


def test_what_the_groups_of_an_optimizer_do_not_have_yet_is_told_of() -> None:
    body = """
from torch.distributed.checkpoint.optimizer import load_sharded_optimizer_state_dict
from torch.distributed.fsdp import StateDictType

def load(model, optim, reader):
    with FSDP.state_dict_type(model, StateDictType.SHARDED_STATE_DICT):
        state = load_sharded_optimizer_state_dict(model.state_dict(), "optim", reader)
        optim.load_state_dict(FSDP.optim_state_dict_to_load(model, optim, state["optim"]))
"""
    told = [found for found in findings(FSDP1 + body) if found.rule == "FSDP308"]
    assert [(found.level.value, "initial_lr" in found.message) for found in told] == [("review", True)]


def test_a_sharded_state_without_a_known_optimizer_is_left_for_the_reader() -> None:
    check_findings(
        """
        from torch.distributed.checkpoint.optimizer import load_sharded_optimizer_state_dict

        def load(states, reader):
            return load_sharded_optimizer_state_dict(states, "optim", reader)
        """,
        {("FSDP308", "manual")},
        wrapping=FSDP1 + "model = FSDP(Net())",
    )


def test_a_sharded_state_that_is_read_in_a_block_that_stays_has_a_finding_of_its_own() -> None:
    body = """
from torch.distributed.checkpoint.optimizer import load_sharded_optimizer_state_dict
from torch.distributed.fsdp import StateDictType

def load(model, optim, reader):
    with FSDP.state_dict_type(model, StateDictType.SHARDED_STATE_DICT):
        state = load_sharded_optimizer_state_dict(model.state_dict(), "optim", reader)
        restore(model, optim, state["optim"])
"""
    assert levels(body) == [("FSDP301", "manual"), ("FSDP308", "manual")]


def test_a_state_that_is_saved_as_it_is() -> None:
    body = """
def main(net, optim, saved):
    model = FSDP(net)
    torch.save(optim.state_dict(), saved)
    own = optim.state_dict()
    return FSDP.optim_state_dict(model, optim, own)
"""
    assert ("FSDP311", "review") in levels(body)
    assert levels(body).count(("FSDP311", "review")) == 1
    assert levels("\ndef save(optim):\n    return optim.state_dict()\n") == []


def test_a_state_that_was_read_sharded_stays_so_outside_of_the_context() -> None:
    check_rewrites(
        """
        from torch.distributed.checkpoint import FileSystemReader
        from torch.distributed.checkpoint.optimizer import load_sharded_optimizer_state_dict
        from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, StateDictType

        def load(model, optimizer, path):
            model = FSDP(model)
            with FSDP.state_dict_type(model, StateDictType.SHARDED_STATE_DICT):
                state = load_sharded_optimizer_state_dict(
                    model_state_dict=model.state_dict(), optimizer_key="o", storage_reader=FileSystemReader(path)
                )
            flat = FSDP.optim_state_dict_to_load(model, optimizer, state["o"])
            optimizer.load_state_dict(flat)
        """,
        """
        import torch.distributed.checkpoint as dcp
        from torch.distributed.checkpoint import FileSystemReader
        from torch.distributed.checkpoint.state_dict import (
            get_optimizer_state_dict,
            set_optimizer_state_dict,
        )
        from torch.distributed.fsdp import fully_shard

        def load(model, optimizer, path):
            fully_shard(model)
            state = {"o": get_optimizer_state_dict(model, optimizer)}
            dcp.load(state, storage_reader=FileSystemReader(path))
            set_optimizer_state_dict(model, optimizer, optim_state_dict=state["o"])
        """,
    )


@pytest.mark.parametrize("optim_config", ["optim_config", "cfg.optim", "configs[0]", "cfg.get()", "self.optim_config"])
def test_a_configuration_of_a_sharded_state_has_no_rank0_only(optim_config: str) -> None:
    source = f"""
        from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

        def load(self, net, kind, config, optim_config, cfg, configs, optimizer, state):
            model = FSDP(net)
            with FSDP.state_dict_type(model, kind, config, {optim_config}):
                optimizer.load_state_dict(FSDP.optim_state_dict_to_load(model, optimizer, state))
        """
    result = rewrite(textwrap.dedent(source))
    if isinstance(result, Changed):
        assert ".rank0_only" not in result.source.decode()


@pytest.mark.parametrize(
    ("body", "after"),
    [
        (
            "return FSDP.scatter_full_optim_state_dict(osd, model)",
            "return fsdp_compat.optim_state_dict_to_load(model, None, osd, rank0_only=True)",
        ),
        (
            "other.state = FSDP.shard_full_optim_state_dict(osd, model)",
            "other.state = fsdp_compat.optim_state_dict_to_load(model, None, osd)",
        ),
        (
            "return {'optimizer': FSDP.scatter_full_optim_state_dict(osd, model, optim=optim)}",
            "return {'optimizer': fsdp_compat.optim_state_dict_to_load(model, optim, osd, rank0_only=True)}",
        ),
    ],
)
def test_a_state_that_is_loaded_elsewhere_is_made_by_the_helper(body: str, after: str) -> None:
    source = f"\ndef load(model, optim, osd, other):\n    {body}\n"
    assert after in output(source)
    assert levels(source) == [("FSDP306", "safe")]
    assert [found.level.value for found in findings(FSDP1 + source, Settings(helpers="never"))] == ["manual"]


FILLED = """\
    for group in optim.param_groups:
        group.setdefault("initial_lr", group["lr"])
    set_optimizer_state_dict(
"""
SCHEDULED = """
import torch

def resume(model, optim, other, osd):
    {before}
    optim.load_state_dict(FSDP.optim_state_dict_to_load(model, optim, osd))
    {after}
    return optim, scheduler
"""


@pytest.mark.parametrize(
    ("before", "after", "filled"),
    [
        ("scheduler = None", "scheduler = torch.optim.lr_scheduler.LambdaLR(optim, abs)", True),
        ("scheduler = torch.optim.lr_scheduler.LambdaLR(optim, abs)", "pass", False),
        ("scheduler = None", "scheduler = torch.optim.lr_scheduler.StepLR(other, 3)", False),
        ("scheduler = None", "pass", False),
    ],
)
def test_a_scheduler_that_is_built_after_the_load_has_its_entry_in_the_groups(
    before: str, after: str, filled: bool
) -> None:
    body = SCHEDULED.format(before=before, after=after)
    assert (FILLED in output("model = FSDP(model, use_orig_params=True)\n" + body)) == filled


ELSEWHERE = """
import torch

def resume(model, optim, osd):
    optim.load_state_dict(FSDP.optim_state_dict_to_load(model, optim, osd))

def main(net, osd):
    model = FSDP(net, use_orig_params=True)
    optim = torch.optim.AdamW(model.parameters())
    {before}
    resume(model, optim, osd)
    {after}
"""
BUILDS = "scheduler = torch.optim.lr_scheduler.LambdaLR(optim, abs)"


@pytest.mark.parametrize(("before", "after"), [("pass", BUILDS), (BUILDS, "pass")])
def test_so_has_one_that_the_caller_of_the_load_builds_afterwards(before: str, after: str) -> None:
    assert (FILLED in output(ELSEWHERE.format(before=before, after=after))) == (after == BUILDS)


def test_an_optimizer_state_that_is_taken_first_now_reshards_what_an_evaluation_gathered() -> None:
    """FSDP1's statement takes the state of the model first, whose function reshards it under FSDP2."""
    after = output("""
import torch
from torch.distributed.fsdp import FullOptimStateDictConfig, FullStateDictConfig, StateDictType

def main(net, batches, kept):
    model = FSDP(net, use_orig_params=True)
    optimizer = torch.optim.AdamW(model.parameters())
    for batch in batches:
        model(batch).sum().backward()
        optimizer.step()
        with torch.no_grad():
            model(batch)
        with FSDP.state_dict_type(
            model, StateDictType.FULL_STATE_DICT, FullStateDictConfig(True, True), FullOptimStateDictConfig(True, True)
        ):
            kept.append({"model": model.state_dict(), "optimizer": FSDP.optim_state_dict(model, optimizer)})
""")
    assert after.index("unit.reshard()") < after.index("= get_optimizer_state_dict(") < after.index('{"model": get_')
