"""Sets the recorder up in a process that has just imported torch."""

from __future__ import annotations

import contextlib
import importlib
import random
import sys
from collections.abc import Iterator

import torch

from .observing.observer import Observer
from .orders import Orders, from_environment
from .session import Session
from .stack_file import listen

_session: Session | None = None
_observer: Observer | None = None


@contextlib.contextmanager
def recorded(orders: Orders) -> Iterator[None]:
    """Record what is trained inside."""
    session = Session(orders)
    session.listen()
    try:
        yield
    finally:
        session.close()


def helpers_loaded() -> None:
    """The program has imported ``fsdp_compat``, whose functions clip as FSDP1's method does."""
    if from_environment().cpu:
        importlib.import_module(".on_cpu", __package__).helpers_loaded()
    if _session is not None:
        _session.helpers_loaded()


def fsdp1_loaded() -> None:
    """The program has imported FSDP1's class."""
    if from_environment().cpu:
        importlib.import_module(".on_cpu", __package__).fsdp1_loaded()
    if _observer is not None:
        _observer.fsdp1_loaded()


def arm() -> None:
    """Seed if asked to, and listen. Until an optimizer steps nothing is written."""
    global _session, _observer
    orders = from_environment()
    listen(orders)
    if orders.cpu:
        importlib.import_module(".on_cpu", __package__).answer(orders.out)
    if orders.observe:
        _observer = Observer(orders)
        _observer.listen()
        return
    if orders.seed is not None:
        random.seed(orders.seed)
        torch.manual_seed(orders.seed)
        if "numpy" in sys.modules:
            sys.modules["numpy"].random.seed(orders.seed)
    _session = Session(orders)
    _session.listen()
