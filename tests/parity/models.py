"""The models that the parity programs train, as source text, each with its data and its loss."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Model:
    """``classes`` and ``batches`` are module-level source; ``loss`` is an expression over ``output`` and ``y``.

    ``children`` are the attributes that hold a block, or the one that holds the list of blocks.
    """

    name: str
    block: str
    children: tuple[str, ...]
    classes: str
    batches: str
    loss: str


MLP = Model(
    "Mlp",
    "Layer",
    ("layers",),
    """
class Layer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, x):
        return x + F.gelu(self.linear(x))


class Mlp(nn.Module):
    width = 16

    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(8, self.width)
        self.layers = nn.ModuleList([Layer(self.width) for _ in range(3)])
        self.head = nn.Linear(self.width, 4)
        self.register_buffer("scale", torch.tensor(0.3))

    def reset_parameters(self):
        self.scale.fill_(0.3)

    def forward(self, x):
        x = self.stem(x)
        for layer in self.layers:
            x = layer(x)
        return self.head(x * self.scale)
""",
    """
def batches(rank):
    generator = torch.Generator().manual_seed(1000 + rank)
    while True:
        yield torch.randn(4, 8, generator=generator), torch.randn(4, 4, generator=generator)
""",
    "F.mse_loss(output.float(), y)",
)

UNEVEN = Model(
    "Uneven",
    "Gate",
    ("first", "second"),
    '''
class Gate(nn.Module):
    """A layer of which no size divides evenly."""

    def __init__(self, fan_in, fan_out):
        super().__init__()
        self.value = nn.Linear(fan_in, fan_out)
        self.gate = nn.Linear(fan_in, 1)

    def forward(self, x):
        return torch.sigmoid(self.gate(x)) * torch.tanh(self.value(x))


class Uneven(nn.Module):
    width = 7

    def __init__(self):
        super().__init__()
        self.first = Gate(5, self.width)
        self.second = Gate(self.width, 3)
        self.norm = nn.LayerNorm(3)
        self.head = nn.Linear(3, 1, bias=False)

    def forward(self, x):
        return self.head(self.norm(self.second(self.first(x))))
''',
    """
def batches(rank):
    generator = torch.Generator().manual_seed(1000 + rank)
    while True:
        yield torch.randn(4, 5, generator=generator), torch.randn(4, 1, generator=generator)
""",
    "F.mse_loss(output.float(), y)",
)

CONV = Model(
    "ConvNet",
    "ConvBlock",
    ("first", "second"),
    """
class ConvBlock(nn.Module):
    def __init__(self, fan_in, fan_out):
        super().__init__()
        self.conv = nn.Conv2d(fan_in, fan_out, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(fan_out)

    def forward(self, x):
        return F.relu(self.norm(self.conv(x)))


class ConvNet(nn.Module):
    width = 6

    def __init__(self):
        super().__init__()
        self.first = ConvBlock(3, self.width)
        self.second = ConvBlock(self.width, 10)
        self.head = nn.Linear(10, 5)

    def forward(self, x):
        x = F.max_pool2d(self.first(x), 2)
        return self.head(self.second(x).mean(dim=(2, 3)))
""",
    """
def batches(rank):
    generator = torch.Generator().manual_seed(1000 + rank)
    while True:
        yield torch.randn(4, 3, 8, 8, generator=generator), torch.randint(5, (4,), generator=generator)
""",
    "F.cross_entropy(output.float(), y)",
)

_GPT = """
class Block(nn.Module):
    def __init__(self, width, heads, length):
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
        self.register_buffer("mask", torch.ones(length, length).triu(1).bool(), persistent=False)

    def reset_parameters(self):
        self.mask.copy_(torch.ones_like(self.mask).triu(1))

    def attend(self, x):
        batch, length, width = x.shape
        q, k, v = (t.view(batch, length, self.heads, -1).transpose(1, 2) for t in self.qkv(x).chunk(3, dim=-1))
        scores = q @ k.transpose(-2, -1) / (width // self.heads) ** 0.5
        scores = scores.masked_fill(self.mask[:length, :length], float("-inf"))
        return self.proj((scores.softmax(dim=-1) @ v).transpose(1, 2).reshape(batch, length, width))

    def forward(self, x):
        x = x + self.attend(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Gpt(nn.Module):
    width = 12

    def __init__(self, vocabulary=29, length=8):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, self.width)
        self.positions = nn.Embedding(length, self.width)
        self.blocks = nn.ModuleList([Block(self.width, 2, length) for _ in range(2)])
        self.norm = nn.LayerNorm(self.width)
        self.head = nn.Linear(self.width, vocabulary, bias=False)
        self.register_buffer("scale", torch.tensor(0.7))
@TIE@
    def reset_parameters(self):
        self.scale.fill_(0.7)

    def forward(self, x):
        hidden = self.tokens(x) + self.positions(torch.arange(x.shape[1], device=x.device))
        for block in self.blocks:
            hidden = block(hidden)
        return self.head(self.norm(hidden) * self.scale)
"""
_GPT_BATCHES = """
def batches(rank):
    generator = torch.Generator().manual_seed(1000 + rank)
    while True:
        tokens = torch.randint(29, (2, 9), generator=generator)
        yield tokens[:, :-1], tokens[:, 1:]
"""
_GPT_LOSS = "F.cross_entropy(output.float().flatten(0, 1), y.flatten())"

GPT = Model("Gpt", "Block", ("blocks",), _GPT.replace("@TIE@\n", "\n"), _GPT_BATCHES, _GPT_LOSS)
TIED = Model(
    "Gpt",
    "Block",
    ("blocks",),
    _GPT.replace("@TIE@\n", "        self.head.weight = self.tokens.weight\n\n"),
    _GPT_BATCHES,
    _GPT_LOSS,
)

MODELS = {"mlp": MLP, "uneven": UNEVEN, "conv": CONV, "gpt": GPT, "tied": TIED}
