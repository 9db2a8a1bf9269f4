"""Of which classes an abstract object may be."""

from __future__ import annotations

from fsdp_rules.fsdp1.names import FSDP, canonical
from fsdp_rules.values.abstract import Kind, Obj
from fsdp_rules.values.frames import Class
from fsdp_rules.values.library import table

_MODULE = "torch.nn.Module"
_MODULES = frozenset({Kind.MODEL, Kind.PART, Kind.OTHER_WRAPPER})
OPTIMIZER = "torch.optim.Optimizer"
NO_OPTIMIZERS = _MODULES | {Kind.CONTAINER, Kind.CONSTANT, Kind.TEXT}


def is_optimizer(name: str) -> bool:
    """Whether the dotted name is that of a class of optimizers."""
    return table("functions").get(name) == "optimizer"


def may_be(one: Obj, cls: Obj, is_one: bool) -> bool:
    """Whether ``one`` may be an object of the class ``cls``; or, where ``is_one`` is false, of another class."""
    if cls.kind is not Kind.EXTERN:
        return True
    if not is_one:
        return one.kind not in _surely(cls.data)
    if is_optimizer(cls.data):
        return one.kind not in NO_OPTIMIZERS
    if cls.data == _MODULE:
        return one.kind is not Kind.OPTIMIZER
    if canonical(cls.data) == FSDP:
        return one.kind not in (Kind.OTHER_WRAPPER, Kind.OPTIMIZER)
    return one.kind is not Kind.MODEL if _is_other_wrapper(cls.data) else True


def _surely(name: str) -> frozenset[Kind]:
    """What is always of the class ``name``."""
    if name == _MODULE:
        return _MODULES
    if name == OPTIMIZER:
        return frozenset({Kind.OPTIMIZER})
    if canonical(name) == FSDP:
        return frozenset({Kind.MODEL})
    return frozenset({Kind.OTHER_WRAPPER}) if _is_other_wrapper(name) else frozenset()


def _is_other_wrapper(name: str) -> bool:
    return table("functions").get(name) == "other_wrapper"


def copies_whole(function: Obj) -> bool:
    """Whether ``function`` copies a parameter or a gradient, which is whole where full parameters are gathered."""
    is_method = function.kind is Kind.METHOD and function.data[0].kind in (Kind.PARAMETER, Kind.GRADIENT)
    return is_method and table("tensor").get(function.data[1]) == "copied"


def class_of(receiver: Obj | None) -> Obj | None:
    """The class of what a method is called on, or the class that it is called on."""
    if receiver is None or receiver.kind is Kind.CLASS:
        return receiver
    cls = receiver.data[0] if receiver.kind is Kind.INSTANCE else None
    return cls.frame.owner if isinstance(cls, Class) else None


def overrides(lower: Class, upper: Class, method: str) -> bool:
    """Whether objects of ``lower`` run another ``method`` than that of ``upper``."""
    between = (one for one in lower.above if one in upper.below)
    return bool(method) and any(method in one.body.bound for one in (lower, *between))
