"""Checkpoints as the frameworks' own code writes them on one CPU process; each function is one framework's."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    """Two layers, and the loss as models of transformers give it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 2)

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        out = self.second(torch.relu(self.first(x)))
        return {"loss": out.sum() if labels is None else nn.functional.mse_loss(out, labels), "logits": out}


class Counter:
    """What a program registers beside its model."""

    def __init__(self) -> None:
        self.seen = 3

    def state_dict(self) -> dict[str, Any]:
        return {"seen": self.seen, "mean": torch.ones(2)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.seen = state["seen"]


@contextmanager
def _one_rank() -> Iterator[None]:
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
        try:
            yield
        finally:
            dist.destroy_process_group()


def _data() -> DataLoader[Any]:
    return DataLoader(TensorDataset(torch.randn(8, 4), torch.randn(8, 2)), batch_size=4, shuffle=True)


def accelerate(folder: Path, safe: bool) -> None:
    """``save_state`` with everything that it takes."""
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters())
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (step + 1))
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, _data(), scheduler)
    accelerator.register_for_checkpointing(Counter())
    for x, y in loader:
        accelerator.backward(model(x, y)["loss"])
        optimizer.step()
        scheduler.step()
    accelerator.save_state(str(folder), safe_serialization=safe)


def accelerate_fsdp(folder: Path, kind: str) -> None:
    """The model and the optimizer under FSDP1 in each kind of state, by accelerate's own functions."""
    from accelerate import Accelerator
    from accelerate.utils import FullyShardedDataParallelPlugin, save_fsdp_model, save_fsdp_optimizer
    from torch.distributed.fsdp import FullyShardedDataParallel

    with _one_rank():
        accelerator = Accelerator(cpu=True)
        plugin = FullyShardedDataParallelPlugin(fsdp_version=1, state_dict_type=kind)
        model = FullyShardedDataParallel(Net(), device_id=torch.device("cpu"), use_orig_params=True)
        optimizer = torch.optim.AdamW(model.parameters())
        model(torch.ones(2, 4))["loss"].backward()
        optimizer.step()
        save_fsdp_model(plugin, accelerator, model, str(folder))
        save_fsdp_optimizer(plugin, accelerator, optimizer, model, str(folder))


def trainer(folder: Path, adapted: bool) -> None:
    """transformers' Trainer after two steps, of a whole model or of PEFT's adapter."""
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

    model: Any = GPT2LMHeadModel(GPT2Config(vocab_size=17, n_positions=8, n_embd=8, n_layer=1, n_head=2))
    if adapted:
        from peft import LoraConfig, get_peft_model

        model = get_peft_model(model, LoraConfig(r=2, target_modules=["c_attn"], fan_in_fan_out=True))
    rows = [{"input_ids": [1, 2, 3], "labels": [1, 2, 3]} for _ in range(4)]
    arguments = TrainingArguments(
        output_dir=str(folder),
        max_steps=2,
        save_steps=1,
        per_device_train_batch_size=2,
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
    )
    Trainer(model=model, args=arguments, train_dataset=rows).train()


def peft(folder: Path, safe: bool) -> None:
    """``save_pretrained`` of adapters of several kinds."""
    from peft import IA3Config, LoraConfig, VeraConfig, get_peft_model

    for name, config in {
        "lora": LoraConfig(r=2, target_modules=["first"], modules_to_save=["second"], use_dora=True),
        "ia3": IA3Config(target_modules=["first"], feedforward_modules=["first"]),
        "vera": VeraConfig(r=2, target_modules=["first"]),
    }.items():
        model = get_peft_model(Net(), config)
        model.save_pretrained(str(folder / name), safe_serialization=safe)
        torch.save(model.state_dict(), folder / name / "whole.pt")


def lightning(folder: Path) -> None:
    """A ``.ckpt`` with hyperparameters, callbacks, a scheduler and a data module's state."""
    from lightning import LightningModule, Trainer
    from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint, StochasticWeightAveraging

    class Module(LightningModule):
        def __init__(self, **settings: Any) -> None:
            super().__init__()
            self.save_hyperparameters()
            self.net = Net()

        def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
            loss = self.net(*batch)["loss"]
            self.log("loss", loss)
            return loss

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.AdamW(self.parameters())
            return [optimizer], [torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)]

    Trainer(
        accelerator="cpu",
        max_epochs=3,
        default_root_dir=folder,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[
            ModelCheckpoint(folder, save_last=True, monitor="loss"),
            EarlyStopping("loss"),
            StochasticWeightAveraging(1e-2, swa_epoch_start=1),
        ],
    ).fit(Module(path=Path("data"), options=argparse.Namespace(width=8), sizes=(1, 2)), _data())


def composer(folder: Path) -> None:
    """What its trainer saves after two batches, with an algorithm, a scheduler and a callback that have states."""
    from composer import Trainer
    from composer.algorithms import EMA
    from composer.callbacks import OptimizerMonitor, SpeedMonitor
    from composer.models import ComposerModel
    from composer.optim import DecoupledAdamW, LinearWithWarmupScheduler

    class Model(ComposerModel):
        def __init__(self) -> None:
            super().__init__()
            self.net = Net()

        def forward(self, batch: list[torch.Tensor]) -> torch.Tensor:
            return self.net(batch[0])["logits"]

        def loss(self, outputs: torch.Tensor, batch: list[torch.Tensor]) -> torch.Tensor:
            return nn.functional.mse_loss(outputs, batch[1])

    model = Model()
    Trainer(
        model=model,
        train_dataloader=_data(),
        optimizers=DecoupledAdamW(model.parameters(), lr=1e-3),
        schedulers=LinearWithWarmupScheduler("1ba"),
        algorithms=[EMA(half_life="1ba")],
        callbacks=[OptimizerMonitor(), SpeedMonitor()],
        max_duration="2ba",
        save_folder=str(folder),
        save_interval="1ba",
        device="cpu",
        progress_bar=False,
    ).fit()


def verl(folder: Path) -> None:
    """The files of a rank by its checkpoint manager, of a model under FSDP1."""
    from omegaconf import OmegaConf
    from torch.distributed.fsdp import FullyShardedDataParallel
    from transformers import GPT2Config, GPT2LMHeadModel
    from verl.utils.checkpoint.fsdp_checkpoint_manager import FSDPCheckpointManager

    with _one_rank():
        inner = GPT2LMHeadModel(GPT2Config(vocab_size=17, n_positions=8, n_embd=8, n_layer=1, n_head=2))
        model = FullyShardedDataParallel(inner, device_id=torch.device("cpu"), use_orig_params=True)
        optimizer = torch.optim.AdamW(model.parameters())
        model(input_ids=torch.tensor([[1, 2, 3]]), labels=torch.tensor([[1, 2, 3]])).loss.backward()
        optimizer.step()
        contents = {"save": ["model", "optimizer", "extra"], "load": ["model", "optimizer", "extra"]}
        manager = FSDPCheckpointManager(
            model,
            optimizer,
            torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0),
            None,
            checkpoint_config=OmegaConf.create({"save_contents": contents["save"], "load_contents": contents["load"]}),
        )
        manager.save_checkpoint(str(folder), global_step=1)


WRITERS: Mapping[str, tuple[str, Callable[[Path], None]]] = {
    "accelerate": ("accelerate", lambda folder: accelerate(folder, safe=True)),
    "accelerate, pickled": ("accelerate", lambda folder: accelerate(folder, safe=False)),
    "accelerate, FULL": ("accelerate", lambda folder: accelerate_fsdp(folder, "FULL_STATE_DICT")),
    "accelerate, SHARDED": ("accelerate", lambda folder: accelerate_fsdp(folder, "SHARDED_STATE_DICT")),
    "accelerate, LOCAL": ("accelerate", lambda folder: accelerate_fsdp(folder, "LOCAL_STATE_DICT")),
    "Trainer": ("transformers", lambda folder: trainer(folder, adapted=False)),
    "Trainer, adapter": ("peft", lambda folder: trainer(folder, adapted=True)),
    "PEFT": ("peft", lambda folder: peft(folder, safe=True)),
    "PEFT, pickled": ("peft", lambda folder: peft(folder, safe=False)),
    "Lightning": ("lightning", lightning),
    "Composer": ("composer", composer),
    "verl": ("verl", verl),
}
