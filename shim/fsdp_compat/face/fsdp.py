"""``FullyShardedDataParallel`` with FSDP2 underneath: FSDP1-style code runs with nothing but its import changed."""

from __future__ import annotations

import difflib
import functools
import inspect
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import ActivationWrapper
from torch.distributed.fsdp import FSDPModule
from torch.utils.hooks import RemovableHandle

from fsdp_compat import units as modules
from fsdp_compat.face.attributes import ATTRIBUTES
from fsdp_compat.face.sharding import shard
from fsdp_compat.face.unwrapping import reads
from fsdp_compat.messages import warn_caller
from fsdp_compat.planning.records import is_root
from fsdp_compat.states import state_dict_type as state
from fsdp_compat.states import statics as legacy
from fsdp_compat.step import comm_hooks, full_params, grads
from fsdp_compat.torch_.param_groups import is_running

_KEYWORDS = tuple(inspect.signature(shard).parameters)
_classes: dict[type, type] = {}


class _Face(type):
    """The class of the class: calling it shards, and every FSDP2 module is an instance of it."""

    def __new__(mcs, name: str, bases: tuple[type, ...], namespace: dict[str, Any]) -> _Face:
        if any(isinstance(base, _Face) for base in bases):
            raise TypeError(
                f"{name} cannot inherit from fsdp_compat's FullyShardedDataParallel, which shards a module in place "
                "instead of wrapping it. Replace it by a function that calls FullyShardedDataParallel(...), and move "
                "its methods to the module's own class."
            )
        return super().__new__(mcs, name, bases, namespace)

    def __call__(cls, module: nn.Module, *args: Any, **kwargs: Any) -> nn.Module:
        """Shard ``module``, see :func:`fsdp_compat.shard`, and return the same object with FSDP1's methods."""
        for name in sorted(kwargs.keys() - _KEYWORDS):
            close = difflib.get_close_matches(name, _KEYWORDS, 1)
            raise TypeError(
                f"FullyShardedDataParallel() got an unexpected keyword argument {name!r}"
                + (f". Did you mean {close[0]!r}?" if close else f": it takes {', '.join(_KEYWORDS)}")
            )
        shard(module, *args, **kwargs)
        for unit in modules.fsdp_modules(module):
            _give_methods(unit)
        kinds = {type(unit).__name__: None for unit in modules.fsdp_modules(module) if "module" in unit._modules}
        if kinds:
            warn_caller(
                f"{' and '.join(kinds)} has a child called module, and .module is that child; under FSDP1 it was "
                f"the whole wrapped model. Remove .module where you mean the whole model."
            )
        return module

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, FSDPModule) and not reads.has_unwrapped(instance, sys._getframe(1))

    def __subclasscheck__(cls, subclass: type) -> bool:
        return subclass is cls or issubclass(subclass, FSDPModule)


class _Statics:
    """FSDP1's static methods: a module given to one of them counts, not the module it is called on."""

    summon_full_params = staticmethod(full_params.summon_full_params)
    fsdp_modules = staticmethod(modules.fsdp_modules)
    state_dict_type = staticmethod(state.state_dict_type)
    set_state_dict_type = staticmethod(state.set_state_dict_type)
    get_state_dict_type = staticmethod(state.get_state_dict_type)
    optim_state_dict = staticmethod(legacy.optim_state_dict)
    optim_state_dict_to_load = staticmethod(legacy.optim_state_dict_to_load)
    full_optim_state_dict = staticmethod(legacy.full_optim_state_dict)
    sharded_optim_state_dict = staticmethod(legacy.sharded_optim_state_dict)
    shard_full_optim_state_dict = staticmethod(legacy.shard_full_optim_state_dict)
    flatten_sharded_optim_state_dict = staticmethod(legacy.flatten_sharded_optim_state_dict)
    scatter_full_optim_state_dict = staticmethod(legacy.scatter_full_optim_state_dict)
    rekey_optim_state_dict = staticmethod(legacy.rekey_optim_state_dict)


class FullyShardedDataParallel(_Statics, metaclass=_Face):
    """FSDP1's class by name and signature; the object it returns is the module it was given, sharded in place.

    ``isinstance(m, FullyShardedDataParallel)`` holds for the module and for each of its units, and they keep their
    own class, their parameter names and their attributes. State dicts are whole by default, and optimizers that hold
    the module's parameters go on training them, as in FSDP1.
    ``forward`` may be called by name, as FSDP1's may; other methods that use parameters of the module itself, as
    ``generate`` does, are to be named to ``torch.distributed.fsdp.register_fsdp_forward_method`` first.
    Differs from FSDP1 in what :func:`fsdp_compat.shard`, :func:`fsdp_compat.no_sync` and
    :func:`fsdp_compat.summon_full_params` say, and in that names carry no ``_fsdp_wrapped_module``.
    """

    __signature__ = inspect.signature(shard)

    register_comm_hook = staticmethod(comm_hooks.register_comm_hook)
    clip_grad_norm_ = staticmethod(grads.clip_grad_norm_)
    no_sync = staticmethod(grads.no_sync)


class _Methods(_Statics, FSDPModule):
    """FSDP1's methods for modules that the face has sharded."""

    _comm_hook: Callable[..., Any] | None = None
    _comm_hook_state: object = None

    register_comm_hook = comm_hooks.register_comm_hook
    clip_grad_norm_ = grads.clip_grad_norm_
    no_sync = grads.no_sync

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        # A slice of a Sequential makes a new object of its class, which is to be a plain Sequential.
        plain = cls.__mro__[cls.__mro__.index(FSDPModule) + 1]
        return plain(*args, **kwargs)

    @property
    def module(self) -> Any:
        """The module itself: there is no wrapper. A child of that name, or what a checkpoint wrapper holds, wins."""
        return _unwrapped(self, sys._getframe(1))

    @property
    def _fsdp_wrapped_module(self) -> Any:
        return _unwrapped(self, sys._getframe(1))

    def register_forward_pre_hook(self, hook: Callable[..., Any], **kwargs: Any) -> RemovableHandle:
        """``nn.Module.register_forward_pre_hook``, in front of FSDP2's hook, which gathers and casts the inputs.

        A hook of FSDP1's wrapper runs before both. What the module had before it was wrapped runs after them.
        """
        assert isinstance(self, nn.Module)
        before = list(self._forward_pre_hooks.items())
        handle: RemovableHandle = super().register_forward_pre_hook(hook, **kwargs)  # type: ignore[misc]
        gathers = self._get_fsdp_state()
        own = [place for place, (_, one) in enumerate(before) if getattr(one, "__self__", None) is gathers]
        for key, _ in before[own[0] :] if own else ():
            self._forward_pre_hooks[key] = self._forward_pre_hooks.pop(key)
        return handle

    def check_is_root(self) -> bool:
        """Whether no sharded module is known to lie around this one."""
        assert isinstance(self, nn.Module)
        return is_root(self)

    def apply(self, fn: Callable[[nn.Module], None]) -> Any:
        """``nn.Module.apply`` on whole parameters, which are written back."""
        assert isinstance(self, nn.Module)
        if full_params.is_summoned(self):
            raise ValueError(
                f"apply() of a {type(self).__name__} is expected to be in states [IDLE], but was called inside "
                f"summon_full_params(). There, change the parameters directly, because apply() gathers them itself."
            )
        with full_params.summon_full_params(self, recurse=False):
            return super().apply(fn)  # type: ignore[misc]


def _unwrapped(module: Any, reader: FrameType) -> Any:
    children = module._modules
    if "module" in children:
        return children["module"]
    if isinstance(module, ActivationWrapper):
        return children["_checkpoint_wrapped_module"]
    reads.note(module, reader)
    return module


def _gathering(forward: Callable[..., Any]) -> Callable[..., Any]:
    """``forward`` for those who call it by name: FSDP1 gathers in its forward, FSDP2 in hooks of the call around it."""

    @functools.wraps(forward)
    def gather_first(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling() or is_running(self):
            reads.forget()
            return forward(self, *args, **kwargs)
        return self(*args, **kwargs)

    return gather_first


def _give_methods(unit: nn.Module) -> None:
    state.install_state_hooks(unit)
    sharded_class = unit.__class__
    if issubclass(sharded_class, _Methods):
        return
    if sharded_class not in _classes:
        plain: Any = sharded_class.__mro__[sharded_class.__mro__.index(FSDPModule) + 1]
        namespace = {name: vars(sharded_class)[name] for name in ("__deepcopy__", "__module__")}
        namespace["__qualname__"] = sharded_class.__qualname__
        namespace |= {name: attribute for name, attribute in ATTRIBUTES.items() if not hasattr(plain, name)}
        namespace["forward"] = _gathering(plain.forward)
        _classes[sharded_class] = type(sharded_class.__name__, (_Methods, plain), namespace)
    unit.__class__ = _classes[sharded_class]
