"""What a file knows about its own names."""

from __future__ import annotations

from tests.rules.helpers import check_findings, check_rewrites, findings


def test_a_branch_for_another_class_holds_no_sharded_model() -> None:
    check_rewrites(
        """
        from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
        from torch.nn.parallel import DistributedDataParallel as DDP

        def step(model):
            model = FSDP(model)
            if isinstance(model, FSDP):
                model.clip_grad_norm_(1.0)
            elif isinstance(model, DDP):
                model.module.clip(1.0)
            else:
                model.module.other()
        """,
        """
        import torch
        from torch.distributed.fsdp import FSDPModule, fully_shard
        from torch.nn.parallel import DistributedDataParallel as DDP

        def step(model):
            fully_shard(model)
            if isinstance(model, FSDPModule):
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            elif isinstance(model, DDP):
                model.module.clip(1.0)
            else:
                model.module.other()
        """,
    )


def test_a_constant_that_the_output_still_reads_stays() -> None:
    check_rewrites(
        """
        import torch
        from torch.distributed.fsdp import FullStateDictConfig, StateDictType
        from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

        OFFLOAD = torch.cuda.is_available()
        FULL = FullStateDictConfig(offload_to_cpu=OFFLOAD, rank0_only=True)

        def save(model):
            model = FSDP(model)
            with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, FULL):
                return model.state_dict()
        """,
        """
        import torch
        from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
        from torch.distributed.fsdp import fully_shard

        OFFLOAD = torch.cuda.is_available()

        def save(model):
            fully_shard(model)
            return get_model_state_dict(
                model,
                options=StateDictOptions(full_state_dict=True, cpu_offload=OFFLOAD),
            )
        """,
    )


def test_what_a_partial_of_the_class_is_called_with_is_sharded() -> None:
    check_rewrites(
        """
        import functools
        from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

        def build(net):
            shard = functools.partial(FSDP, device_id=0)
            model = shard(net)
            other = functools.partial(FSDP, device_id=0)(net)
            return model.module.head, other.module.head
        """,
        """
        import functools
        import fsdp_compat
        import torch
        from torch.distributed.fsdp import fully_shard

        def build(net):
            torch.cuda.set_device(0)
            model = fully_shard(net)
            other = functools.partial(fsdp_compat.shard, device_id=0)(net)
            return model.head, other.head
        """,
    )


def test_code_in_a_version_gate_is_named_and_left_alone() -> None:
    source = """
        import torch
        from packaging import version
        from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

        def load(model, optim, state):
            if version.parse(torch.__version__) < version.parse("2.1.0"):
                flat = FSDP.optim_state_dict_to_load(state, model, optim)
            else:
                flat = FSDP.optim_state_dict_to_load(model, optim, state)
            optim.load_state_dict(flat)
        """
    assert {("FSDP305", "manual")} <= {(found.rule, found.level.value) for found in findings(source)}


def test_code_beside_its_fsdp2_twin_is_left_alone() -> None:
    check_findings(
        """
        from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
        from torch.distributed.fsdp import fully_shard

        def build(model, new):
            if new:
                fully_shard(model)
            else:
                model = FSDP(model, use_orig_params=True)
            return model
        """,
        {("FSDP101", "info")},
    )


def test_an_optimizer_built_before_a_partial_is_called_keeps_training() -> None:
    check_rewrites(
        """
        import functools
        import torch
        from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

        def build(model):
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            shard = functools.partial(FSDP, use_orig_params=True)
            model = shard(model)
            return model, optimizer
        """,
        """
        import torch
        from torch.distributed.fsdp import fully_shard

        def build(model):
            fully_shard(model)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            return model, optimizer
        """,
    )


def test_a_parameter_is_no_import_of_its_name() -> None:
    source = (
        "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n\n"
        "def wrap(model, FSDP{default}):\n    return FSDP(model)\n\nprint(FSDP)\n"
    )
    assert [found.line for found in findings(source.format(default="")) if found.rule == "FSDP101"] == []
    assert [found.line for found in findings(source.format(default="=FSDP")) if found.rule == "FSDP101"] == [4]
