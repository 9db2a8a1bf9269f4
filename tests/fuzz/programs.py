"""A grammar of FSDP1 programs: imports, wraps, loops and states in every scope, layout and spelling at random."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from tests.fuzz import fragments

CLASS_NAMES = ("FSDP", "FSDP", "FullyShardedDataParallel", "Wrapper", "F", "fsdp_package.FullyShardedDataParallel")
OPTIMIZERS = ("optimizer", "opt", "self.optimizer", "optim", "optimizers['main']")
INDENTS = ("    ", "  ", "\t", "        ", "   ")
#: Of so many programs the first that Python takes is chosen, or the last.
ATTEMPTS = 4
NEWLINES = ("\n", "\n", "\n", "\r\n", "\r")


@dataclass
class Writer:
    """Draws a program from ``rng``; :attr:`neutral` are its statements that have nothing to do with FSDP1, by name."""

    rng: random.Random
    indent: str = "    "
    model: str = "model"
    other: str = "net"
    optimizer: str = "optimizer"
    cls: str = "FSDP"
    neutral: dict[str, str] = field(default_factory=dict)

    def fill(self, text: str) -> str:
        """``text`` with names and keyword arguments in place of what stands for them."""
        while "@K" in text:
            chosen = self.rng.sample(fragments.KEYWORDS, self.rng.randrange(0, 4))
            separator = self.rng.choice((", ", ", ", ",\n        "))
            text = text.replace("@K", separator.join(sorted(chosen, key=lambda word: word.startswith("**"))), 1)
        model = self.model if self.rng.random() < 0.8 else self.other
        text = text.replace(", ,", ",").replace("@M", model).replace("@O", self.optimizer)
        return text.replace("@F", self.cls)

    def statement(self) -> str:
        """One statement, or several on lines of their own."""
        kind = self.rng.randrange(20)
        if kind < 5:
            return self.fill(self.rng.choice(fragments.WRAPS))
        if kind < 12:
            return self.fill(self.rng.choice(fragments.LOOPS))
        if kind < 16:
            return self.rng.choice(fragments.statements_of_fixtures())
        if kind == 16:
            return self.rng.choice(fragments.CLASHES)
        name = f"neutral_{len(self.neutral)}"
        self.neutral[name] = self.rng.choice(fragments.NEUTRAL).replace("@N", name)
        return self.neutral[name]

    def block(self, depth: int, most: int) -> str:
        """Statements one below the other, compound ones among them."""
        parts = []
        for _ in range(self.rng.randrange(1, most + 1)):
            text = self.compound(depth) if depth and self.rng.random() < 0.4 else self.statement()
            parts.append(self.decorated(text))
        return "\n".join(parts)

    def decorated(self, text: str) -> str:
        """``text`` behind a comment or a blank line, or before one."""
        kind = self.rng.randrange(12)
        before = {
            0: "# before\n",
            1: "\n",
            2: "\n\n# a  long   comment: FSDP(x)\n",
            3: "# fsdp-migrate: ignore[FSDP203]\n",
        }
        after = {4: "  # after", 5: "  # type: ignore", 6: ";", 7: "  # fsdp-migrate: ignore[FSDP101]"}
        ends = kind in after and "\n" not in text and "#" not in text
        return before.get(kind, "") + text + (after[kind] if ends else "")

    def inner(self, text: str) -> str:
        """``text`` one step deeper; lines inside of strings move too, which makes them other strings."""
        return "\n".join(self.indent + line if line.strip() else line for line in text.split("\n"))

    def shape(self, depth: int) -> str:
        """A compound statement of several parts."""
        lines = []
        plain = self.model if self.model.isidentifier() else "plain"
        # What stands for a block or a statement may fill in names that look alike.
        for line in self.rng.choice(fragments.SHAPES).split("\n"):
            text = line.lstrip("\t")
            if text == "@B":
                text = self.block(depth - 1, 4)
            elif text == "@S":
                text = self.statement()
            else:
                text = self.fill(text.replace("@P", plain))
            for _ in range(len(line) - len(line.lstrip("\t"))):
                text = self.inner(text)
            lines.append(text)
        return "\n".join(lines)

    def compound(self, depth: int) -> str:
        """A compound statement around a block."""
        if self.rng.random() < 0.4:
            return self.shape(depth)
        head = self.rng.choice(
            (
                *(
                    "if rank == 0:",
                    "if x: ",
                    "for step in range(10):",
                    "while True:",
                    "try:",
                    "with open(path) as file:",
                ),
                *("def main(args, @M=None, *rest, **kwargs):", "async def main():", "class Trainer(Base):"),
                *("def get_state_dict(model, options, mesh):", "match kind:\n" + self.indent + "case 1:", "else"),
                *("def __init__(self, fully_shard, module):", "with torch.no_grad(), lock:", "if isinstance(@M, @F):"),
            )
        )
        body = self.block(depth - 1, 4)
        if (
            head == "if x: "
            and "\n" not in body
            and not body.startswith(("def ", "class ", "#", "with ", "for ", "if "))
        ):
            return head + body
        if head == "else":
            return f"if x:\n{self.inner('pass')}\nelse:\n{self.inner(body)}"
        if head == "try:":
            return f"try:\n{self.inner(body)}\nexcept (ValueError, KeyError) as error:\n{self.inner(self.statement())}"
        if head.startswith("match"):
            return f"{self.fill(head)}\n{self.inner(self.inner(body))}"
        return f"{self.fill(head)}\n{self.inner(body)}"

    def program(self) -> str:
        """A whole module, with line feeds."""
        rng = self.rng
        self.indent, self.cls = rng.choice(INDENTS), rng.choice(CLASS_NAMES)
        self.model, self.other = rng.sample(fragments.STATE_MODELS, 2)
        self.optimizer = rng.choice(OPTIMIZERS)
        name = self.cls if "." not in self.cls else "FSDP"
        imports = [rng.choice(fragments.IMPORTS).replace("@F", name), "import torch"]
        imports += rng.sample(fragments.MORE_IMPORTS, rng.randrange(0, 6))
        if rng.random() < 0.2:
            imports.append("import torch.distributed.fsdp as fsdp_package")
        if rng.random() < 0.3:
            rng.shuffle(imports)
        # A model that is used above the line that wraps it would mean something else there.
        wraps = (f"{name} = {self.cls}({name}, @K)" for name in (self.model, self.other))
        body = "\n".join([*map(self.fill, wraps), self.block(3, 6)])
        parts = [*imports, f"def run(args):\n{self.inner(body)}" if rng.random() < 0.5 else body]
        if rng.random() < 0.2:
            parts.insert(
                0, rng.choice(('"""Doc."""', "#!/usr/bin/env python", "from __future__ import annotations", "\n\n"))
            )
        return "\n".join(parts) + rng.choice(("\n", "\n", "", "\n\n\n", "\n# end", "\n  ", "\n\f\n"))


@dataclass(frozen=True)
class Source:
    """The bytes of a generated file, and the texts in it that a rewrite has no business with, by the name they bind."""

    data: bytes
    neutral: dict[str, str]


def source(rng: random.Random) -> Source:
    """A program in some encoding, with some kind of line ends."""
    for _ in range(ATTEMPTS):
        writer = Writer(rng)
        text = writer.program()
        if _is_valid(text):
            break
    newline = rng.choice(NEWLINES)
    encoding = rng.choice(("utf-8", "utf-8", "utf-8", "utf-8-sig", "latin-1"))
    if encoding == "latin-1":
        text = "# -*- coding: latin-1 -*-\n" + text
    data = text.replace("\n", newline).encode(encoding, "replace")
    return Source(data, dict(writer.neutral) if newline == "\n" else {})


def _is_valid(text: str) -> bool:
    try:
        compile(text, "train.py", "exec", dont_inherit=True)
    except SyntaxError:
        return False
    return True
