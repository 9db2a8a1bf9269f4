"""Small models with the shapes that sharding gets wrong first: uneven, shorter than the world, tied, frozen."""

from __future__ import annotations

import torch
from torch import nn

from tests.device import DEVICE


class Block(nn.Module):
    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, hidden)
        self.down = nn.Linear(hidden, width)
        self.gain = nn.Parameter(torch.ones(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.gain * self.down(torch.tanh(self.up(self.norm(x))))


class Model(nn.Module):
    """Embedding, blocks in a ModuleList, norm and head; every width is odd, so no world size divides it."""

    def __init__(self, *, tied: bool = False, depth: int = 3, vocabulary: int = 13, width: int = 7) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(Block(width, 11) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def build(seed: int = 0, *, tied: bool = False, **sizes: int) -> Model:
    torch.manual_seed(seed)
    model = Model(tied=tied, **sizes)
    return model if model.head.weight.is_meta else model.to(DEVICE)


def tokens(rank: int, step: int, vocabulary: int = 13) -> torch.Tensor:
    """A batch that differs from rank to rank and from step to step."""
    generator = torch.Generator().manual_seed(1000 * rank + step)
    return torch.randint(vocabulary, (3, 5), generator=generator).to(DEVICE)


def loss_of(model: nn.Module, rank: int, step: int) -> torch.Tensor:
    batch = tokens(rank, step)
    return nn.functional.cross_entropy(model(batch).flatten(0, 1), batch.roll(1, dims=1).flatten())
