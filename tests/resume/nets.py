"""The models and optimizers of the programs that resume; it lies beside each of them as ``nets.py``."""

from __future__ import annotations

import torch
import torch.nn as nn


class Layer(nn.Module):
    def __init__(self, width, inner):
        super().__init__()
        self.up = nn.Linear(width, inner)
        self.norm = nn.LayerNorm(inner)
        self.down = nn.Linear(inner, width)

    def forward(self, x):
        return x + torch.tanh(self.down(self.norm(self.up(x))))


class Counting(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.register_buffer("mean", torch.zeros(width))
        self.register_buffer("count", torch.tensor(0))
        self.register_buffer("scale", torch.full((width,), 0.5), persistent=False)

    def forward(self, x):
        self.mean.lerp_(self.scale, 0.1)
        self.count += 1
        return x + self.mean / (1 + self.count)


class Remembering(nn.Module):
    calls = 0

    def get_extra_state(self):
        return {"calls": self.calls}

    def set_extra_state(self, state):
        self.calls = state["calls"]

    def forward(self, x):
        self.calls += 1
        return x * (1 + 0.1 * self.calls)


class Scaled(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(width))
        self.scale = nn.Parameter(torch.randn(()))

    def reset_parameters(self):
        nn.init.normal_(self.weight)
        nn.init.normal_(self.scale)

    def forward(self, x):
        return x + self.weight * self.scale


class Net(nn.Module):
    def __init__(self, width=8, inner=12, out=4, first=None):
        super().__init__()
        self.embed = nn.Linear(8, width)
        self.first = first(width) if first else nn.Identity()
        self.layers = nn.ModuleList([Layer(width, inner) for _ in range(2)])
        self.head = nn.Linear(width, out)

    def forward(self, x):
        x = self.first(self.embed(x))
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def tied():
    net = Net(out=8)
    net.head.weight = net.embed.weight
    return net


def batch(step, rank, world_size):
    """This rank's part of the eight rows of a step."""
    rows = torch.randn(8, 8, generator=torch.Generator().manual_seed(100 + step))
    return rows.chunk(world_size)[rank]


def initialise(module):
    module.to_empty(device="cpu", recurse=False)
    if hasattr(module, "reset_parameters"):
        module.reset_parameters()


class Quantised(torch.optim.Optimizer):
    """Momentum whose state has 8 bits an element; like others of its kind it keeps their dtype when it is loaded."""

    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr, "momentum": 0.9})

    def load_state_dict(self, state_dict):
        super().load_state_dict(state_dict)
        for state in self.state.values():
            state["codes"] = state["codes"].to(torch.int8)

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for param in group["params"]:
                if param.grad is None:
                    continue
                state = self.state[param]
                if not state:
                    state["codes"] = torch.zeros_like(param, dtype=torch.int8)
                momentum = state["codes"].to(param.dtype) / 64 * group["momentum"] + param.grad
                state["codes"] = (momentum * 64).round().clamp(-127, 127).to(torch.int8)
                param.add_(momentum, alpha=-group["lr"])


class Shaped(torch.optim.Optimizer):
    """Momentum, and beside it a state of one element, one of two, and a number, as some optimizers have them."""

    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for param in group["params"]:
                if param.grad is None:
                    continue
                state = self.state[param]
                if not state:
                    state.update(momentum=torch.zeros_like(param), count=0, pair=torch.zeros(2))
                state["count"] += 1
                state["pair"] += torch.tensor([1.0, 0.5])
                state["momentum"].mul_(0.9).add_(param.grad)
                param.add_(state["momentum"], alpha=-group["lr"] / (1 + 0.01 * float(state["pair"].sum())))
