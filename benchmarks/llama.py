"""A Llama-like model trained under FSDP1: what benchmarks/training_costs.py migrates, trains and compares."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.fsdp import (
    FullOptimStateDictConfig,
    FullStateDictConfig,
    StateDictType,
)
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy

HEADS = 4
MAX_NORM = 1.0


@dataclass(frozen=True)
class Shape:
    """Of the model and of one rank's batch."""

    layers: int
    width: int
    length: int
    batch: int
    vocabulary: int = 512


class Block(nn.Module):
    """Attention and SwiGLU, each with its norm before it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.attention_norm, self.norm = nn.RMSNorm(width), nn.RMSNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        hidden = 8 * width // 3
        self.gate, self.up = nn.Linear(width, hidden, bias=False), nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        heads = self.qkv(self.attention_norm(x)).view(batch, length, 3, HEADS, width // HEADS)
        query, key, value = heads.permute(2, 0, 3, 1, 4)
        attended = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, length, width))
        hidden = self.norm(x)
        return x + self.down(nn.functional.silu(self.gate(hidden)) * self.up(hidden))


class Llama(nn.Module):
    """Embedding, blocks, norm and head."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.tokens = nn.Embedding(shape.vocabulary, shape.width)
        self.blocks = nn.ModuleList(Block(shape.width) for _ in range(shape.layers))
        self.norm = nn.RMSNorm(shape.width)
        self.head = nn.Linear(shape.width, shape.vocabulary, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class Training:
    """One model with its optimizer and data."""

    def __init__(self, shape: Shape, device: torch.device) -> None:
        torch.manual_seed(0)
        policy = functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={Block})
        model = Llama(shape).to(device)
        self.model = FSDP(
            model,
            auto_wrap_policy=policy,
            device_id=device,
            use_orig_params=True,
            # The arguments of a variant are written here.
        )
        # The activation checkpointing of a variant is written here.
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.generator = torch.Generator().manual_seed(dist.get_rank())
        self.shape = shape
        self.device = device

    def forward_backward(self) -> torch.Tensor:
        """The loss, with gradients left behind."""
        size = (self.shape.batch, self.shape.length)
        batch = torch.randint(self.shape.vocabulary, size, generator=self.generator).to(self.device)
        loss = nn.functional.cross_entropy(self.model(batch).flatten(0, 1).float(), batch.roll(1, dims=1).flatten())
        loss.backward()
        return loss.detach()

    def clip(self) -> torch.Tensor:
        """The norm of all gradients before it was limited."""
        return self.model.clip_grad_norm_(MAX_NORM)

    def update(self) -> None:
        """Step the optimizer and drop the gradients."""
        self.optimizer.step()
        self.optimizer.zero_grad()

    def step(self) -> torch.Tensor:
        """The loss of one whole step."""
        loss = self.forward_backward()
        self.clip()
        self.update()
        return loss

    def save_sharded(self, folder: str) -> None:
        """Every rank writes its part of the model and of the optimizer."""
        with FSDP.state_dict_type(self.model, StateDictType.SHARDED_STATE_DICT):
            model = self.model.state_dict()
            optimizer = FSDP.optim_state_dict(self.model, self.optimizer)
        dcp.save({"model": model, "optimizer": optimizer}, checkpoint_id=folder)

    def load_sharded(self, folder: str) -> None:
        """Every rank reads its part."""
        with FSDP.state_dict_type(self.model, StateDictType.SHARDED_STATE_DICT):
            model = self.model.state_dict()
            optimizer = FSDP.optim_state_dict(self.model, self.optimizer)
            # The optimizer has made steps before, so that its state has all keys.
            dcp.load({"model": model, "optimizer": optimizer}, checkpoint_id=folder)  # fsdp-migrate: ignore[FSDP313]
            self.model.load_state_dict(model)
            self.optimizer.load_state_dict(FSDP.optim_state_dict_to_load(self.model, self.optimizer, optimizer))

    def save_full(self, file: str) -> None:
        """Rank 0 writes the whole model and optimizer."""
        with FSDP.state_dict_type(
            self.model,
            StateDictType.FULL_STATE_DICT,
            FullStateDictConfig(offload_to_cpu=True, rank0_only=True),
            FullOptimStateDictConfig(offload_to_cpu=True, rank0_only=True),
        ):
            model = self.model.state_dict()
            optimizer = FSDP.optim_state_dict(self.model, self.optimizer)
        if dist.get_rank() == 0:
            torch.save({"model": model, "optimizer": optimizer}, file)

    def load_full(self, file: str) -> None:
        """Every rank reads all and keeps its part."""
        state = torch.load(file, map_location="cpu", mmap=True)
        with FSDP.state_dict_type(self.model, StateDictType.FULL_STATE_DICT):
            self.model.load_state_dict(state["model"])
            optimizer = FSDP.optim_state_dict_to_load(self.model, self.optimizer, state["optimizer"])
        self.optimizer.load_state_dict(optimizer)
