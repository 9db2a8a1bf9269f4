"""Trains under transformers' Trainer on one rank, with arguments that a program makes.

accelerate takes FSDP on accelerators alone, and the Trainer gives it the plugin of its arguments: accelerate's gate is
put aside where the Trainer has made its Accelerator, and everything behind it is accelerate's and the Trainer's own.
"""

from __future__ import annotations

import os
from typing import Any

import torch

STEPS = 4


def train(rank: int, world_size: int, source: str, folder: str) -> dict[str, Any]:
    """Losses and the class of the model that is trained; ``source`` is a program that makes ``arguments``."""
    os.environ.update({"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world_size)})
    os.environ.update({"LOCAL_WORLD_SIZE": str(world_size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"})
    from accelerate.state import AcceleratorState, GradientState, PartialState
    from accelerate.utils import DistributedType, FullyShardedDataParallelPlugin
    from transformers import LlamaConfig, LlamaForCausalLM, Trainer

    for state in (AcceleratorState, GradientState, PartialState):
        state._reset_state()
    made: dict[str, Any] = {"folder": folder}
    exec(compile(source, "arguments.py", "exec"), made)
    arguments = made["arguments"]
    plugin = FullyShardedDataParallelPlugin(**{**arguments.fsdp_plugin_args, "sync_module_states": False})

    class OnCpu(Trainer):
        def create_accelerator_and_postprocess(self) -> None:
            wanted, self.args.fsdp_plugin_args = self.args.fsdp_plugin_args, None
            super().create_accelerator_and_postprocess()
            self.args.fsdp_plugin_args = wanted
            for shared in (AcceleratorState._shared_state, PartialState._shared_state):
                shared.update(distributed_type=DistributedType.FSDP, device=torch.device("cpu"))
            self.accelerator.state.fsdp_plugin = plugin
            self.is_fsdp_enabled = True
            precision = self.accelerator.mixed_precision
            if precision != "no":
                plugin.set_mixed_precision(precision)

    torch.manual_seed(7)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=64, max_position_embeddings=32, **sizes))
    torch.manual_seed(11)
    rows = [torch.randint(0, 64, (16,)) for _ in range(STEPS * world_size * 2)]
    trainer = OnCpu(model=model, args=arguments, train_dataset=[{"input_ids": row, "labels": row} for row in rows])
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    return {"losses": losses, "class": type(trainer.model_wrapped).__name__}
