"""What a layout runs on: computing speed, memory, and what a collective costs inside a node and between nodes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fsdp_migrate.tree.toml import toml

_KNOWN = Path(__file__).with_name("machines.toml")


class BadMachine(ValueError):
    """A machine file that cannot be read, or has no machine of a name; the message says what is missing."""


@dataclass(frozen=True)
class Link:
    """``bandwidth``: bytes per second of one rank, which NCCL's tests call "busbw". ``latency`` in seconds."""

    bandwidth: float
    latency: float


@dataclass(frozen=True)
class Machine:
    """One kind of machine.

    ``flops`` per second and dtype that a training reaches, ``memory`` in bytes of one rank, ``node`` ranks in one node.
    ``copies``: bytes per second of a copy on the device. ``overlaps``: collectives run beside the computation.
    ``host``: seconds that Python spends on one unit in one pass, 0 where it is ahead of the device.
    """

    name: str
    flops: Mapping[str, float]
    memory: int
    node: int
    inside: Link
    between: Link
    copies: float = float("inf")
    overlaps: bool = True
    host: float = 0.0
    source: str = field(default="", compare=False)

    def computing(self, dtype: str) -> float:
        """Floating-point operations per second."""
        return self.flops.get(dtype, min(self.flops.values()))

    def scaled(self, factor: float) -> Machine:
        """One that computes so many times as fast."""
        flops = {dtype: speed * factor for dtype, speed in self.flops.items()}
        return replace(self, flops=flops, copies=self.copies * factor)

    def seconds(self, kind: str, amount: int, ranks: int, *, spread: bool) -> float:
        """Of one collective over ``ranks`` on ``amount`` bytes; ``spread``: each of them in another node."""
        if ranks < 2:
            return 0.0
        link = self.between if spread or ranks > self.node else self.inside
        share = (ranks - 1) / ranks * (2 if kind == "reduction" else 1)
        return link.latency + amount * share / link.bandwidth


def known() -> dict[str, Machine]:
    """The machines that come with the command, by name."""
    return _machines(_KNOWN)


def machine(wanted: str) -> Machine:
    """A known machine by its name, or the first one of a TOML file by its path.

    :raises BadMachine: there is none, or a field is missing.
    """
    machines = known()
    if wanted in machines:
        return machines[wanted]
    path = Path(wanted)
    if not path.is_file():
        raise BadMachine(f"{wanted} is neither a file nor one of {', '.join(machines)}")
    return next(iter(_machines(path).values()))


def _machines(path: Path) -> dict[str, Machine]:
    try:
        tables = toml().loads(path.read_text(encoding="utf-8"))
        found = {name: _machine(name, table) for name, table in tables.items()}
    except KeyError as error:
        raise BadMachine(f"{path}: {error.args[0]} is missing") from error
    except (OSError, ValueError, TypeError, AttributeError) as error:
        # A TOML error is a ValueError, and so are bytes that are no text.
        raise BadMachine(f"{path} is not a machine file: {error}") from error
    if not found:
        raise BadMachine(f"{path} has no machine")
    return found


def _machine(name: str, table: dict[str, Any]) -> Machine:
    inside = Link(**table["inside"])
    return Machine(
        name,
        table["flops"],
        round(table["memory_gib"] * 2**30),
        table["ranks_per_node"],
        inside,
        Link(**table["between"]) if "between" in table else inside,
        table.get("copies", float("inf")),
        table.get("overlaps", True),
        table.get("host_seconds", 0.0),
        table.get("source", ""),
    )
