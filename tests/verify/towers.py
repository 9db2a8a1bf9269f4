"""A program in which bisecting is tried: two models, a module that is ignored, averages, and a state put back."""

REQUIREMENTS = "torch>=2.7\n"
TOWERS = """
import argparse
import contextlib

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import (
    FullStateDictConfig,
    FullyShardedDataParallel as FSDP,
    MixedPrecision,
    ShardingStrategy,
    StateDictType,
)
from torch.distributed.fsdp.wrap import ModuleWrapPolicy


class Layer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.inner = nn.LayerNorm(width), nn.Linear(width, width)

    def forward(self, x):
        return x + torch.tanh(self.inner(self.norm(x)))


class Encoder(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.features = nn.Linear(6, width).requires_grad_(False)
        self.layers = nn.Sequential(*(Layer(width) for _ in range(3)))

    def forward(self, x):
        return self.layers(self.features(x.float()).to(x.dtype))


def sharded(encoder, head, precision):
    cpu = torch.device("cpu")
    encoder = FSDP(
        encoder,
        auto_wrap_policy=ModuleWrapPolicy({Layer}),
        mixed_precision=precision,
        ignored_modules=[encoder.features],
        device_id=cpu,
        use_orig_params=True,
    )
    head = FSDP(head, sharding_strategy=ShardingStrategy.SHARD_GRAD_OP, device_id=cpu, use_orig_params=True)
    return encoder, head


def accumulate(encoder, head, step, micro):
    generator = torch.Generator().manual_seed(1000 * step + 10 * micro + dist.get_rank())
    x = torch.randn(4, 6, generator=generator)
    loss = head(encoder(x).float()).square().mean()
    loss.backward()
    return loss.detach()


def clip_encoder(encoder):
    return encoder.clip_grad_norm_(100.0)


def clip_head(head):
    return head.clip_grad_norm_(100.0)


def average(model, mean):
    # A moving average of the weights.
    with FSDP.summon_full_params(model, writeback=False):
        for name, value in model.named_parameters():
            mean[name] = value.detach().clone() if name not in mean else mean[name].lerp(value.detach(), 0.5)


def pull(model, mean):
    # Draws the weights to their average.
    with torch.no_grad(), FSDP.summon_full_params(model):
        for name, value in model.named_parameters():
            value.lerp_(mean[name], 0.25)


def taken(model):
    with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, FullStateDictConfig(rank0_only=False)):
        return {name: value.clone() for name, value in model.state_dict().items()}


def put(model, state):
    with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, FullStateDictConfig(rank0_only=False)):
        model.load_state_dict(state)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--param", default="float32")
    parser.add_argument("--micro", type=int, default=3)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    precision = MixedPrecision(param_dtype=getattr(torch, args.param), reduce_dtype=torch.float32)
    encoder, head = sharded(Encoder(16), nn.Sequential(nn.Linear(16, 8), nn.Tanh(), nn.Linear(8, 3)), precision)
    first = taken(head)
    optimizer = torch.optim.AdamW([p for p in (*encoder.parameters(), *head.parameters()) if p.requires_grad], lr=1e-2)
    mean = {}
    for step in range(args.steps):
        for micro in range(args.micro):
            with encoder.no_sync() if micro < args.micro - 1 else contextlib.nullcontext():
                accumulate(encoder, head, step, micro)
        clip_encoder(encoder)
        clip_head(head)
        optimizer.step()
        optimizer.zero_grad()
        average(head, mean)
        pull(head, mean)
        if step == 0:
            put(head, first)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
"""
