"""FSDP301, 302, 303 and 310: which kind of state governs a call, and what becomes of the setting."""

from __future__ import annotations

import pytest

from fsdp_rules.settings import Settings
from fsdp_rules.verdict.result import Changed
from tests.rules.helpers import check_findings, check_noop, check_rewrites, findings, rewrite

IMPORTS = """\
import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullOptimStateDictConfig, FullStateDictConfig, StateDictType
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
"""


def source(body: str) -> str:
    """``body`` behind the imports that FSDP1 code has."""
    return IMPORTS + body


def levels(body: str, rule: str, **others: str) -> list[str]:
    """The levels of the findings of ``rule``."""
    return [found.level.value for found in findings(source(body), None, **others) if found.rule == rule]


def test_a_with_of_another_library_is_left_alone() -> None:
    check_noop(
        """
        def save(engine, path):
            with engine.state_dict_type(engine.model, "full"):
                return engine.model.state_dict()
        """
    )


def test_other_state_dicts_in_the_block_are_left_alone() -> None:
    check_rewrites(
        """
        from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, StateDictType

        def save(model, optimizer, scheduler):
            with FSDP.state_dict_type(model, StateDictType.SHARDED_STATE_DICT):
                return model.state_dict(), optimizer.state_dict(), scheduler.state_dict()
        """,
        """
        import copy

        from torch.distributed.checkpoint.state_dict import get_model_state_dict

        def save(model, optimizer, scheduler):
            return copy.deepcopy(get_model_state_dict(model)), optimizer.state_dict(), scheduler.state_dict()
        """,
    )


def test_other_managers_comments_and_strings_are_kept() -> None:
    check_rewrites(
        '''
        import torch
        from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, StateDictType

        def save(model, path):
            # above
            with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT), open(path, "wb") as file:  # beside
                # first
                state = model.state_dict()
                torch.save(state, file)

        def text(model):
            with FSDP.state_dict_type(model, StateDictType.SHARDED_STATE_DICT):
                state = model.state_dict()
                doc = """
            four
        """
                # last
            # behind
            return state, doc
        ''',
        '''
        import copy

        import torch
        from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

        def save(model, path):
            # above
            with open(path, "wb") as file:  # beside
                # first
                state = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
                torch.save(state, file)

        def text(model):
            state = copy.deepcopy(get_model_state_dict(model))
            doc = """
            four
        """
            # last
            # behind
            return state, doc
        ''',
    )


@pytest.mark.parametrize(
    ("config", "options", "level"),
    [
        ("FullStateDictConfig()", "full_state_dict=True", "safe"),
        ("FullStateDictConfig(True, True)", "full_state_dict=True, cpu_offload=True", "safe"),
        ("FullStateDictConfig(rank0_only=True)", "full_state_dict=True", "review"),
        ("FullStateDictConfig(offload_to_cpu=cpu, rank0_only=True)", "full_state_dict=True, cpu_offload=cpu", "review"),
        ("FullStateDictConfig(offload_to_cpu=cpu, rank0_only=cpu)", "full_state_dict=True, cpu_offload=cpu", "safe"),
        (
            "conf",
            'full_state_dict=True, cpu_offload=getattr(conf, "offload_to_cpu", False) and '
            'getattr(conf, "rank0_only", False)',
            "review",
        ),
        ("None", "full_state_dict=True", "safe"),
    ],
)
def test_full_configurations(config: str, options: str, level: str) -> None:
    before = f"""
def save(model, cpu, conf):
    with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, {config}):
        return model.state_dict()
"""
    after = IMPORTS[: IMPORTS.index("from")] + (
        "from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict\n"
    )
    call = f"get_model_state_dict(model, options=StateDictOptions({options}))"
    if len(call) + 11 > 100:
        call = f"get_model_state_dict(\n        model,\n        options=StateDictOptions({options}),\n    )"
    if "getattr" in options:
        lines = "".join(f"            {option},\n" for option in options.split(", ", 1))
        call = call.replace(options, f"\n{lines}        ")
    check_rewrites(source(before), f"{after}\ndef save(model, cpu, conf):\n    return {call}\n")
    assert levels(before, "FSDP309") == [level]


def test_offloaded_on_every_rank() -> None:
    body = """
def save(model, optimizer):
    with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, FullStateDictConfig(offload_to_cpu=True)):
        state = model.state_dict()
        return state, FSDP.optim_state_dict(model, optimizer)
"""
    check_rewrites(
        source(body),
        """\
import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
)

def save(model, optimizer):
    state = {
        name: tensor.cpu()
        for name, tensor in get_model_state_dict(model, options=StateDictOptions(full_state_dict=True)).items()
    }
    optim_state = get_optimizer_state_dict(
        model,
        optimizer,
        options=StateDictOptions(full_state_dict=True),
    )
    for param_state in optim_state["state"].values():
        param_state.update(
            {key: value.to("cpu", copy=True) for key, value in param_state.items() if torch.is_tensor(value)}
        )
    return state, optim_state
""",
    )
    check_findings(
        source(body),
        {("FSDP100", "safe"), ("FSDP301", "safe"), ("FSDP309", "review"), ("FSDP304", "safe")},
        Settings(helpers="never"),
    )


@pytest.mark.parametrize(
    ("test", "level"),
    [
        ("dist.get_rank() == 0", "safe"),
        ("not self.rank", "safe"),
        ("local_rank == 0", "review"),
        ("dist.get_rank() == 1", "review"),
    ],
)
def test_a_state_that_only_rank_zero_reads(test: str, level: str) -> None:
    body = f"""
def save(self, model, local_rank):
    with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, FullStateDictConfig(offload_to_cpu=True)):
        state = model.state_dict()
    if {test}:
        torch.save(state, "model.pt")
"""
    assert levels(body, "FSDP309") == [level]


def test_configurations_in_variables_go_once_nothing_reads_them() -> None:
    check_rewrites(
        """
        import torch.distributed as dist
        from torch.distributed.fsdp import FullyShardedDataParallel, FullStateDictConfig, StateDictType

        full_policy = FullStateDictConfig(offload_to_cpu=True, rank0_only=True)

        def state(model):
            with FullyShardedDataParallel.state_dict_type(
                module=model, state_dict_type=StateDictType.FULL_STATE_DICT, state_dict_config=full_policy
            ):
                return model.state_dict()
        """,
        """
        import torch.distributed as dist
        from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

        def state(model):
            return get_model_state_dict(
                model,
                options=StateDictOptions(full_state_dict=True, cpu_offload=True),
            )
        """,
    )


def test_a_configuration_is_the_one_assigned_last() -> None:
    check_rewrites(
        """
        from torch.distributed.fsdp import FullOptimStateDictConfig, FullStateDictConfig, StateDictType
        from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

        def states(model, optimizer):
            config = FullStateDictConfig(offload_to_cpu=True, rank0_only=True)
            with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, state_dict_config=config):
                first = model.state_dict()
            config = FullOptimStateDictConfig(offload_to_cpu=False, rank0_only=False)
            with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, optim_state_dict_config=config):
                return first, FSDP.optim_state_dict(model, optimizer)
        """,
        """
        import torch
        from torch.distributed.checkpoint.state_dict import (
            StateDictOptions,
            get_model_state_dict,
            get_optimizer_state_dict,
        )

        def states(model, optimizer):
            first = get_model_state_dict(
                model,
                options=StateDictOptions(full_state_dict=True, cpu_offload=True),
            )
            optim_state = get_optimizer_state_dict(
                model,
                optimizer,
                options=StateDictOptions(full_state_dict=True),
            )
            for state in optim_state["state"].values():
                state.update(
                    {key: value.clone() for key, value in state.items() if torch.is_tensor(value) and value.dim() == 0}
                )
            return first, optim_state
        """,
    )


def test_a_configuration_that_a_branch_may_have_changed_is_asked_when_the_program_runs() -> None:
    body = """
def state(model, fast):
    config = FullStateDictConfig(offload_to_cpu=True, rank0_only=True)
    if fast:
        config = FullStateDictConfig(offload_to_cpu=False, rank0_only=False)
    with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, config):
        return model.state_dict()
"""
    result = rewrite(source(body))
    assert isinstance(result, Changed) and b"cpu_offload=config.offload_to_cpu" in result.source


def test_a_local_name_that_hides_the_setting_keeps_the_configuration() -> None:
    body = """
CPU = True
policy = FullStateDictConfig(offload_to_cpu=CPU, rank0_only=True)

def state(model, CPU):
    with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, policy):
        return model.state_dict()
"""
    message = next(found.message for found in findings(source(body)) if found.rule == "FSDP309")
    assert 'the state is kept on its device if getattr(policy, "rank0_only", False) is false' in message


@pytest.mark.parametrize(
    "block",
    [
        "with FSDP.state_dict_type(model, kind()):\n        return model.state_dict()",
        "with FSDP.state_dict_type(*arguments):\n        return model.state_dict()",
        "with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT):\n        trainer.save(model)",
        "with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT):\n        model.save_pretrained('x')",
        "with FSDP.state_dict_type(trainer.model, StateDictType.FULL_STATE_DICT):\n        trainer.save()",
        "with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT):\n        model.state_dict(prefix='x')",
        "with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT):\n        model.load_state_dict(x, assign=1)",
        "stack.enter_context(FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT))\n    model.state_dict()",
    ],
)
def test_what_is_not_certain_is_left_for_the_reader(block: str) -> None:
    body = f"\ndef run(model, kind, arguments, trainer, stack):\n    {block}\n"
    found = [entry for entry in findings(source(body)) if entry.rule != "FSDP100"]
    assert [(entry.rule, entry.level.value) for entry in found] == [("FSDP301", "manual")]


def test_a_function_of_the_file_that_touches_no_state_may_have_the_model() -> None:
    body = """
def count(model):
    return sum(p.numel() for p in model.parameters())

def state(model):
    with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT):
        print(count(model), isinstance(model, torch.nn.Module))
        return model.state_dict()
"""
    assert levels(body, "FSDP301") == ["safe"]


def test_a_conditional_context() -> None:
    check_rewrites(
        """
        import contextlib
        from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, StateDictType

        def state(model, sharded):
            with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT) if sharded else contextlib.nullcontext():
                return model.state_dict()
        """,
        """
        from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

        def state(model, sharded):
            return get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
        """,
    )


def test_a_context_manager_that_nothing_of_its_file_enters_is_not_emptied() -> None:
    manager = """
import contextlib

@contextlib.contextmanager
def full(model):
    with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, FullStateDictConfig(True, True)):
        yield
"""
    user = """
def save(net):
    model = FSDP(net)
    with full(model):
        return model.state_dict()
"""
    assert levels(manager, "FSDP301") == ["manual"]
    assert levels(manager + user, "FSDP309") == ["safe"]
    assert levels("from contexts import full\n" + user, "FSDP309", contexts=source(manager)) == ["safe"]
    unseen = findings(source("from contexts import full\n" + user))
    assert [found.message for found in unseen if found.level.value == "review" and found.rule == "FSDP309"] == [
        "get_model_state_dict returns the state, assuming full sets no state dict type"
    ]
    assert levels(user.replace("full(model)", "torch.no_grad()"), "FSDP309") == ["safe"]


@pytest.mark.parametrize(
    ("kind", "full", "level"),
    [
        ("StateDictType.FULL_STATE_DICT if whole else StateDictType.SHARDED_STATE_DICT", "whole", "safe"),
        ("StateDictType.SHARDED_STATE_DICT if a or b else StateDictType.FULL_STATE_DICT", "not (a or b)", "safe"),
        ("StateDictType.SHARDED_STATE_DICT if a.b else StateDictType.FULL_STATE_DICT", "not a.b", "safe"),
        ("self.kind", "self.kind is StateDictType.FULL_STATE_DICT", "review"),
        ("StateDictType[a]", "StateDictType[a] is StateDictType.FULL_STATE_DICT", "review"),
        ("getattr(StateDictType, a.b)", "getattr(StateDictType, a.b) is StateDictType.FULL_STATE_DICT", "review"),
    ],
)
def test_a_kind_that_the_program_chooses(kind: str, full: str, level: str) -> None:
    body = f"""
def run(self, model, state, whole, a, b):
    with FSDP.state_dict_type(model, {kind}):
        model.load_state_dict(state)
        return model.state_dict()
"""
    result = rewrite(source(body))
    assert isinstance(result, Changed)
    text = "".join(result.source.decode().split()).replace(",)", ")")
    full = full.replace(" ", "")
    assert f"StateDictOptions(full_state_dict={full})" in text
    assert f"full_state_dict={full},broadcast_from_rank0={full})" in text
    assert set(levels(body, "FSDP309")) == {level, "review"}


def test_two_models_in_nested_contexts() -> None:
    check_rewrites(
        """
        from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, StateDictType

        def states(net, other):
            first = FSDP(net)
            second = FSDP(other)
            with FSDP.state_dict_type(first, StateDictType.SHARDED_STATE_DICT):
                with FSDP.state_dict_type(second, StateDictType.FULL_STATE_DICT):
                    return first.state_dict(), second.state_dict()
        """,
        """
        import copy

        from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
        from torch.distributed.fsdp import fully_shard

        def states(net, other):
            first = fully_shard(net)
            second = fully_shard(other)
            return copy.deepcopy(get_model_state_dict(first)), get_model_state_dict(
                second,
                options=StateDictOptions(full_state_dict=True),
            )
        """,
    )


def test_equal_options_get_a_name() -> None:
    check_rewrites(
        """
        from torch.distributed.fsdp import FullOptimStateDictConfig, FullStateDictConfig, StateDictType
        from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

        def states(model, optimizer, options):
            with FSDP.state_dict_type(
                model,
                StateDictType.FULL_STATE_DICT,
                FullStateDictConfig(True, True),
                FullOptimStateDictConfig(True, True),
            ):
                return model.state_dict(), FSDP.optim_state_dict(model, optimizer)
        """,
        """
        import torch
        from torch.distributed.checkpoint.state_dict import (
            StateDictOptions,
            get_model_state_dict,
            get_optimizer_state_dict,
        )

        def states(model, optimizer, options):
            state_dict_options = StateDictOptions(full_state_dict=True, cpu_offload=True)
            optim_state = get_optimizer_state_dict(
                model,
                optimizer,
                options=state_dict_options,
            )
            for state in optim_state.get("state", {}).values():
                state.update(
                    {key: value.clone() for key, value in state.items() if torch.is_tensor(value) and value.dim() == 0}
                )
            return get_model_state_dict(model, options=state_dict_options), optim_state
        """,
    )


def test_a_kind_that_no_state_in_its_block_has() -> None:
    body = """
def save(model, optimizer, path):
    with FSDP.state_dict_type({0}):
        torch.save(optimizer.state_dict(), path)

def hand_over(model, optimizer, path):
    with FSDP.state_dict_type({0}):
        write(model, path)
"""
    result = rewrite(source(body.format("model, StateDictType.LOCAL_STATE_DICT")))
    assert isinstance(result, Changed)
    removed, kept = result.source.decode().split("def hand_over")
    assert "state_dict_type" not in removed and "\n    torch.save(optimizer.state_dict(), path)" in removed
    assert "TODO(fsdp-migrate FSDP310)" in kept
    at_run_time = rewrite(source(body.format("model, kind_of(path)")))
    assert isinstance(at_run_time, Changed) and at_run_time.source.decode().count("TODO(fsdp-migrate FSDP301)") == 1


def test_local_state_is_refused() -> None:
    body = """
def save(model, optimizer):
    with FSDP.state_dict_type(model, StateDictType.LOCAL_STATE_DICT):
        return model.state_dict(), FSDP.optim_state_dict(model, optimizer)

def sticky(model):
    FSDP.set_state_dict_type(model, StateDictType.LOCAL_STATE_DICT)
    return model.state_dict()
"""
    found = {(entry.rule, entry.level.value) for entry in findings(source(body)) if entry.rule != "FSDP100"}
    assert found == {("FSDP310", "manual"), ("FSDP304", "info"), ("FSDP309", "manual")}


def test_an_optimizer_state_in_a_block_that_is_kept_is_named() -> None:
    body = """
class Trainer:
    def __init__(self, net, ema):
        self.net = FSDP(net)
        self.ema = FSDP(ema)

    def save(self):
        with FSDP.state_dict_type(self.net, StateDictType.FULL_STATE_DICT):
            states = self.net.state_dict(), self.ema.state_dict()
            return states, FSDP.optim_state_dict(self.net, self.optimizer)

    def load(self, states):
        with FSDP.state_dict_type(self.net, StateDictType.FULL_STATE_DICT):
            self.net.load_state_dict(states[0])
            self.ema.load_state_dict(states[1])
            self.optimizer.load_state_dict(FSDP.optim_state_dict_to_load(self.net, self.optimizer, states[2]))
"""
    found = {(entry.rule, entry.level.value, entry.line) for entry in findings(source(body))}
    lines = source(body).splitlines()
    taken, loaded = (lines.index(line) + 1 for line in lines if "FSDP.optim_state_dict" in line)
    assert {("FSDP304", "info", taken), ("FSDP305", "info", loaded)} <= found


def test_the_last_setting_before_a_call_counts() -> None:
    check_rewrites(
        """
        from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, StateDictType

        def states(model):
            FSDP.set_state_dict_type(model, StateDictType.FULL_STATE_DICT)
            full = model.state_dict()
            FSDP.set_state_dict_type(model, StateDictType.SHARDED_STATE_DICT)
            return full, model.state_dict()
        """,
        """
        import copy

        from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

        def states(model):
            full = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
            return full, copy.deepcopy(get_model_state_dict(model))
        """,
    )


def test_a_setting_in_init_governs_the_methods() -> None:
    check_rewrites(
        """
        import torch
        from torch.distributed.fsdp import FullStateDictConfig, StateDictType
        from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

        class Trainer:
            def __init__(self, model):
                self.model = FSDP(model)
                cpu = torch.cuda.is_available()
                FSDP.set_state_dict_type(
                    self.model, StateDictType.FULL_STATE_DICT, FullStateDictConfig(offload_to_cpu=cpu, rank0_only=cpu)
                )

            def state(self):
                return self.model.state_dict()
        """,
        """
        import torch
        from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
        from torch.distributed.fsdp import fully_shard

        class Trainer:
            def __init__(self, model):
                self.model = fully_shard(model)

            def state(self):
                return get_model_state_dict(
                    self.model,
                    options=StateDictOptions(full_state_dict=True, cpu_offload=torch.cuda.is_available()),
                )
        """,
    )


def test_settings_that_contradict_each_other_are_left_for_the_reader() -> None:
    body = """
class Trainer:
    def full(self):
        FSDP.set_state_dict_type(self.model, StateDictType.FULL_STATE_DICT)

    def sharded(self):
        FSDP.set_state_dict_type(self.model, StateDictType.SHARDED_STATE_DICT)

    def state(self):
        return self.model.state_dict()
"""
    assert levels(body, "FSDP309") == ["manual"]


def test_a_setting_in_another_file_may_govern() -> None:
    body = """
def state(net):
    model = FSDP(net)
    return model.state_dict()
"""
    setting = "def setup(FSDP, model, kind):\n    FSDP.set_state_dict_type(model, kind)\n"
    assert levels(body, "FSDP309") == ["safe"]
    assert levels(body, "FSDP309", setup=setting) == ["manual"]


def test_previous_settings_that_are_used_are_left_for_the_reader() -> None:
    body = """
def swap(model):
    old = FSDP.set_state_dict_type(model, StateDictType.FULL_STATE_DICT)
    return old, FSDP.get_state_dict_type(model)
"""
    assert levels(body, "FSDP302") == ["manual"]
    assert levels(body, "FSDP303") == ["manual"]


def test_a_context_that_is_assigned_before_it_is_entered() -> None:
    check_rewrites(
        """
        import torch
        from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
        from torch.distributed.fsdp import StateDictType

        def one(net, full):
            model = FSDP(net)
            context = FSDP.state_dict_type(
                model, StateDictType.FULL_STATE_DICT if full else StateDictType.SHARDED_STATE_DICT
            )
            with context:
                return model.state_dict()

        def another(net):
            model = FSDP(net)
            context = FSDP.state_dict_type(model, StateDictType.SHARDED_STATE_DICT)
            with context, torch.no_grad():
                state = model.state_dict()
            return state
        """,
        """
        import copy

        import torch
        from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
        from torch.distributed.fsdp import fully_shard

        def one(net, full):
            model = fully_shard(net)
            return copy.deepcopy(get_model_state_dict(model, options=StateDictOptions(full_state_dict=full)))

        def another(net):
            model = fully_shard(net)
            with torch.no_grad():
                state = copy.deepcopy(get_model_state_dict(model))
            return state
        """,
    )


@pytest.mark.parametrize("between", ["model = FSDP(other)", "print(context)", "full = not full"])
def test_an_assigned_context_that_may_mean_something_else_when_entered(between: str) -> None:
    body = f"""
def one(model, other, full):
    model = FSDP(model)
    context = FSDP.state_dict_type(
        model, StateDictType.FULL_STATE_DICT if full else StateDictType.SHARDED_STATE_DICT
    )
    {between}
    with context:
        return model.state_dict()
"""
    assert levels(body, "FSDP301") == levels(body, "FSDP309") == ["manual"]


def test_a_setting_that_governs_other_files_is_to_be_reviewed() -> None:
    body = """
def setup(model):
    FSDP.set_state_dict_type(model, StateDictType.FULL_STATE_DICT)
"""
    assert levels(body, "FSDP302") == ["review"]
    assert levels(f"{body}    return model.state_dict()\n", "FSDP302") == ["safe"]


def test_a_kind_by_an_unknown_name_of_fsdp1_is_left_with_its_block() -> None:
    source = """
    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, renamed

    def main(net, state):
        model = FSDP(net)
        with FSDP.state_dict_type(model, renamed.SHARDED_STATE_DICT):
            model.load_state_dict(state)
    """
    result = rewrite(source)
    assert isinstance(result, Changed)
    assert b"with FSDP.state_dict_type(model, renamed.SHARDED_STATE_DICT):" in result.source
    assert {(found.rule, found.line) for found in findings(source) if found.level.value == "manual"} == {
        ("FSDP301", 6),
        ("FSDP902", 6),
    }


KINDS = """
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, StateDictType

KINDS = {{"full": StateDictType.FULL_STATE_DICT, "parts": StateDictType.{other}}}

def save(net, config):
    model = FSDP(net)
    with FSDP.state_dict_type(model, KINDS[config.kind]):
        return model.state_dict()
"""


def test_a_kind_that_a_dictionary_gives_is_full_or_sharded() -> None:
    result = rewrite(KINDS.format(other="SHARDED_STATE_DICT"))
    assert isinstance(result, Changed)
    text = result.source.decode()
    assert "full_state_dict=KINDS[config.kind] is StateDictType.FULL_STATE_DICT" in text
    assert "FSDP." not in text
    assert not [found.message for found in result.findings if "KINDS" in found.message]


def test_a_dictionary_with_local_states_is_left() -> None:
    result = rewrite(KINDS.format(other="LOCAL_STATE_DICT"))
    assert "manual" in {found.level.value for found in getattr(result, "findings", ())}


@pytest.mark.parametrize(("base", "own"), [("", True), ("(torch.nn.Module)", False)])
def test_an_object_that_has_a_state_of_its_own_is_no_model(base: str, own: bool) -> None:
    source = f"""
        import torch
        from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

        class Average{base}:
            def __init__(self, model):
                self.kept = dict(model.named_parameters())

            def state_dict(self):
                return self.kept

        class Trainer:
            def __init__(self, net):
                self.model = FSDP(net)
                self.average = None
                self.average = Average(self.model)

            def save(self):
                return {{"average": self.average.state_dict()}}

        def wrap(other):
            other.average = FSDP(other.average)
    """
    result = rewrite(source)
    assert isinstance(result, Changed)
    assert ("self.average.state_dict()" in result.source.decode()) == own


def test_what_a_method_of_the_file_sets_governs_a_model_of_another_name() -> None:
    source = """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, StateDictType

class Ring:
    def __init__(self, net, optimizer):
        self.parts = FSDP(net), optimizer

    def _sharded(self):
        return FSDP.state_dict_type({subject}, StateDictType.SHARDED_STATE_DICT)

    def take(self):
        model, optimizer = self.parts
        with self._sharded():
            return model.state_dict()
"""
    for subject in ("self.parts[0]", "self.parts.model", "next(iter(self.parts))"):
        found = rewrite(source.format(subject=subject).encode())
        assert "full_state_dict=True" not in (found.source.decode() if isinstance(found, Changed) else "")
        assert {one.level.value for one in found.findings if one.rule in ("FSDP301", "FSDP309")} >= {"manual"}


def test_what_a_method_of_another_file_sets_governs_a_model_of_another_name() -> None:
    ring = """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, StateDictType

class Ring:
    def __init__(self, net):
        self.parts = [net]

    def sharded(self):
        return FSDP.state_dict_type(self.parts[0], StateDictType.SHARDED_STATE_DICT)
"""
    source = """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from ring import Ring

def take(net):
    model = FSDP(net)
    ring = Ring(model)
    with ring.sharded():
        return model.state_dict()
"""
    found = rewrite(source.encode(), ring=ring)
    assert isinstance(found, Changed)
    assert "full_state_dict=True" not in found.source.decode()
    assert "manual" in {one.level.value for one in found.findings if one.rule == "FSDP309"}
