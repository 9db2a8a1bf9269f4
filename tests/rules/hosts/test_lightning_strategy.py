"""Lightning's strategy: what moves together with configure_model, and what is kept."""

from __future__ import annotations

import pytest

from tests.rules.helpers import check_rewrites, findings, rewrite

HEAD = """
import lightning.pytorch as pl
import torch
from lightning.pytorch.strategies import FSDPStrategy
from layers import Block, Net
"""
MODULE = """
class Model(pl.LightningModule):
    def __init__(self, size):
        super().__init__()
        self.save_hyperparameters()
        self.size = size
        self.model = None
        self.loss = torch.nn.CrossEntropyLoss()

    def configure_model(self):
        if self.model is None:
            self.model = Net(self.size)

    def training_step(self, batch):
        return self.loss(self.model(batch), batch)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.model.parameters())
"""
RUN = """
trainer = pl.Trainer(devices=8, num_nodes=4, strategy=FSDPStrategy(auto_wrap_policy={Block}))
trainer.fit(Model(3), data)
"""


def test_the_calls_follow_the_model_in_its_block() -> None:
    source = HEAD + MODULE + RUN
    result = rewrite(source)
    text = result.source.decode()  # type: ignore[union-attr]
    assert (
        "            self.model = Net(self.size)\n"
        "            if self.device_mesh is not None:\n"
        '                mesh = self.device_mesh["data_parallel"]\n'
        "                for module in reversed(list(self.model.modules())):\n"
        "                    if isinstance(module, Block):\n"
        "                        fully_shard(module, mesh=mesh)\n"
        "                fully_shard(self.model, mesh=mesh)\n"
    ) in text
    assert "data_parallel_size=32" in text
    assert "FSDPStrategy" not in text


def test_every_argument_with_a_counterpart() -> None:
    check_rewrites(
        """
        import lightning as L
        import torch
        from torch.distributed.fsdp import MixedPrecision
        from layers import Block, Head, Net
        class Model(L.LightningModule):
            def configure_model(this):
                this.net = Net()
                return
            def training_step(this, batch):
                return this.net.loss(batch)
        def main(args):
            strategy = L.pytorch.strategies.FSDPStrategy(
                auto_wrap_policy={Block, Head},
                mixed_precision=MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32),
                state_dict_type="sharded",
                limit_all_gathers=True,
                process_group_backend="nccl",
            )
            trainer = L.Trainer(devices="auto", num_nodes=args.nodes, strategy=strategy)
            trainer.fit(Model())
        """,
        """
        import lightning as L
        import torch
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method
        from layers import Block, Head, Net
        class Model(L.LightningModule):
            def configure_model(this):
                this.net = Net()
                if this.device_mesh is not None:
                    mesh = this.device_mesh["data_parallel"]
                    mp_policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
                    for module in reversed(list(this.net.modules())):
                        if isinstance(module, (Block, Head)):
                            fully_shard(module, mesh=mesh, mp_policy=mp_policy)
                    fully_shard(this.net, mesh=mesh, mp_policy=mp_policy)
                    register_fsdp_forward_method(this.net, "loss")
                return
            def training_step(this, batch):
                return this.net.loss(batch)
        def main(args):
            strategy = L.pytorch.strategies.ModelParallelStrategy(
                data_parallel_size=torch.cuda.device_count() * args.nodes,
                tensor_parallel_size=1,
                save_distributed_checkpoint=True,
                process_group_backend="nccl",
            )
            trainer = L.Trainer(devices="auto", num_nodes=args.nodes, strategy=strategy)
            trainer.fit(Model())
        """,
    )


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("{Block}", "mine", "auto_wrap_policy is not a list"),
        ("auto_wrap_policy={Block}", "sharding_strategy='HYBRID_SHARD'", "HYBRID_SHARD has no data-parallel mesh"),
        ("auto_wrap_policy={Block}", "cpu_offload=True", "which cpu_offload refuses"),
        ("auto_wrap_policy={Block}", "activation_checkpointing_policy=mine", "policy is not a list of classes"),
        ("Net(self.size)", "Net() if self.size else run(self.size)", "in a way that this tool does not follow"),
        ("auto_wrap_policy={Block}", "ignored_modules=[x]", "ignored_modules has no counterpart"),
        ("auto_wrap_policy={Block}", "**options", "not all named"),
        ("num_nodes=4", "precision='16-mixed'", "no precision 16-mixed"),
        ("num_nodes=4", "precision=args.precision", "no precision that this tool can see"),
        ("num_nodes=4", "**options", "not all of the Trainer's arguments are written out"),
        ("devices=8", "devices=[0, 1]", "cannot see the number of its devices"),
        ("Model(3)", "make()", "no LightningModule in this file"),
        ("trainer.fit(Model(3), data)", "", "no LightningModule in this file"),
        ("(pl.LightningModule)", "(Base)", "extends more than LightningModule"),
        ("configure_model", "setup_model", "has no configure_model"),
        ("Net(self.size)", "torch.compile(Net())", "in a way that this tool does not follow"),
        ("Net(self.size)", "Block()", "is itself an instance of a class in the policy"),
        ("self.size = size", "self.head = torch.nn.Linear(2, 2)", "self.head of __init__ may have parameters"),
        ("self.size = size", "self.a, self.b = make()", "of __init__ may have parameters"),
        ("self.model(batch)", "self.model(self.size(batch))", "self.size of __init__ may have parameters"),
        ("self.model(batch)", "self.model(self.size.encode(batch))", "self.size of __init__ may have parameters"),
        ("self.size = size", "setattr(self, 'x', size)", "gets modules without an assignment"),
        ("self.model(batch)", "self.model.head.weight", "in a way that this tool does not follow"),
        ("self.model(batch)", "run(self.model)", "in a way that this tool does not follow"),
        ("self.model(batch)", "self.model.state_dict()", "calls model.state_dict(), which returns shards"),
        ("from layers import Block, Net", "Net = None", "Block is not visible to configure_model"),
        ("data)", "isinstance(s, FSDPStrategy))", "its name is used in other places"),
    ],
)
def test_what_is_not_seen_keeps_the_call(old: str, new: str, said: str) -> None:
    source = HEAD + MODULE + RUN
    assert old in source
    kept = [one for one in findings(source.replace(old, new)) if one.rule == "FSDP556"]
    assert [one.level.value for one in kept] == ["manual"]
    assert said in kept[0].message
    assert "ModelParallelStrategy(" in kept[0].advice or "DDPStrategy" in kept[0].advice


@pytest.mark.parametrize(
    ("parameter", "call", "given", "is_kept"),
    [
        ("backbone", "run(self.backbone, batch)", "make()", True),
        ("backbone", "run(batch, model=self.backbone)", "make()", True),
        ("backbone: torch.nn.Module", "run(self.backbone, batch)", "make()", True),
        ("backbone=None", "run(self.backbone, batch)", "backbone=make()", True),
        ("backbone", "run(self.backbone, batch)", "3", False),
        ("backbone: int", "run(self.backbone, batch)", "args.n", False),
        ("backbone: str | None", "run(self.backbone, batch)", "args.n", False),
        ("backbone=3", "run(self.backbone, batch)", "args.n", False),
        ("backbone", "self.log('x', self.backbone)", "args.n", False),
        ("backbone", "torch.optim.SGD(self.model.parameters(), lr=self.backbone)", "args.n", False),
    ],
)
def test_a_model_that_is_only_passed_on_keeps_the_call(parameter: str, call: str, given: str, is_kept: bool) -> None:
    module = MODULE.replace("def __init__(self, size)", f"def __init__(self, {parameter})")
    module = module.replace("self.size = size", "self.backbone = backbone").replace("Net(self.size)", "Net()")
    module = module.replace("        return self.loss(", f"        {call}\n        return self.loss(")
    found = [
        one for one in findings(HEAD + module + RUN.replace("Model(3)", f"Model({given})")) if one.rule == "FSDP556"
    ]
    assert ("manual" in {one.level.value for one in found}) == is_kept
    if is_kept:
        assert "self.backbone is passed to other code" in found[0].message


def test_recomputed_layers_are_wrapped_first() -> None:
    run = RUN.replace("auto_wrap_policy={Block}", "auto_wrap_policy={Block}, activation_checkpointing_policy={Block}")
    text = rewrite(HEAD + MODULE + run).source.decode()  # type: ignore[union-attr]
    assert (
        '                mesh = self.device_mesh["data_parallel"]\n'
        "                apply_activation_checkpointing(\n"
        "                    self.model, check_fn=lambda module: isinstance(module, Block)\n"
        "                )\n"
        "                for module in reversed(list(self.model.modules())):\n"
    ) in text
    assert "checkpoint_wrapper import (\n    apply_activation_checkpointing,\n)" in text
    old = RUN.replace("auto_wrap_policy={Block}", "activation_checkpointing=[Block]")
    assert "isinstance(module, Block)" in rewrite(HEAD + MODULE + old).source.decode()  # type: ignore[union-attr]


FACTORIES = """
def make_strategy():
    return FSDPStrategy(auto_wrap_policy={Block})


def make_trainer():
    trainer = pl.Trainer(devices=8, strategy=make_strategy())
    return trainer


def make_model(size):
    return Model(size)


trainer = make_trainer()
trainer.fit(make_model(3), data)
"""


def test_functions_that_make_strategy_trainer_and_module_are_followed() -> None:
    text = rewrite(HEAD + MODULE + FACTORIES).source.decode()  # type: ignore[union-attr]
    assert "return ModelParallelStrategy(" in text
    assert "data_parallel_size=8" in text
    assert "fully_shard(self.model, mesh=mesh)" in text


def test_a_number_of_devices_from_another_function_keeps_the_call() -> None:
    source = HEAD + MODULE + FACTORIES.replace("def make_trainer()", "def make_trainer(args)")
    source = source.replace("devices=8", "devices=args.n").replace("make_trainer()\n", "make_trainer(x)\n")
    (kept,) = [one for one in findings(source) if one.rule == "FSDP556"]
    assert kept.level.value == "manual"
    assert "set in another function" in kept.message
