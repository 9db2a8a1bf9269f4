"""From FSDP1's arguments to an ordered list of FSDP2 units, decided before anything is touched.

The plan is FSDP1's decisions made legal for FSDP2: containers without a forward and parameters shared between
units cannot be what FSDP1 makes of them, so their parameters move to an enclosing unit. Each such change is a note.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from typing import Any

from torch import nn
from torch.distributed.fsdp import FSDPModule

from fsdp_compat.messages import shortened, warn_caller
from fsdp_compat.optimizers.replaced import replacement_of
from fsdp_compat.planning.mixed_precision import Precision
from fsdp_compat.planning.options import Options, ignored_parts
from fsdp_compat.planning.ownership import Ownership
from fsdp_compat.planning.plan import Plan, Unit
from fsdp_compat.planning.policies import Policy, chosen_modules, warn_if_nothing_matches
from fsdp_compat.planning.sizes import Shards, UnitBytes, known_world_size, shards_of
from fsdp_compat.planning.tensor_parallel import check_tensor_parallel
from fsdp_compat.units import parameter_at


def make_plan(
    module: nn.Module,
    options: Options,
    auto_wrap_policy: Policy | None = None,
    ignored_modules: Iterable[nn.Module] | None = None,
    ignored_states: Iterable[nn.Parameter] | Iterable[nn.Module] | None = None,
    world_size: int | None = None,
) -> Plan:
    """Decide the units of ``module``; touches nothing and needs no process group.

    ``world_size`` stands for the size of the default group where there is none yet; only the bytes depend on it.
    Raises ValueError, TypeError or NotImplementedError where the arguments contradict each other, where FSDP1
    refuses them, or where FSDP2 cannot do what they ask.
    """
    if not isinstance(module, nn.Module):
        raise TypeError(
            f"FSDP takes a module, not {type(module).__name__}. Wrap each module separately, or one that contains "
            f"and runs them."
        )
    options.check(is_auto_wrapped=auto_wrap_policy is not None)
    world = known_world_size(world_size, options)
    notes: list[str] = []
    ignored_module_set, ignored_params = _ignored(module, *ignored_parts(ignored_modules, ignored_states))
    precision = Precision.read(options.mixed_precision)
    full_precision: tuple[nn.Module, ...] = ()
    arguments: dict[nn.Module, dict[str, Any]] = {}
    if auto_wrap_policy is not None:
        classes = precision.full_precision_classes if precision is not None else ()
        full_precision = tuple(part for part in module.modules() if isinstance(part, classes))
        if full_precision:
            kinds = sorted({type(part).__name__ for part in full_precision})
            notes.append(f"mixed precision excludes {', '.join(kinds)}: they are separate units with their own dtype")
            warn_caller(
                "Both mixed precision and an auto_wrap_policy were specified to FSDP, where the wrapped module has "
                f"submodules of type {', '.join(kinds)}. These modules are separate units with mixed precision "
                f"disabled."
            )
        root_arguments = {**options.as_dict(), "ignored_states": ignored_params}
        chosen = chosen_modules(module, auto_wrap_policy, ignored_module_set, ignored_params, root_arguments, classes)
        arguments = {part: _unit_arguments(given, ignored_params) for part, given in chosen.items()}
        if not arguments:
            warn_if_nothing_matches(module, auto_wrap_policy)
    names = {part: name for name, part in module.named_modules()}
    for container in [part for part in arguments if _is_container(part)]:
        del arguments[container]
        notes.append(f"{names[container]} has no forward: its own parameters move to the enclosing unit")
    ownership = Ownership.of(module, arguments.keys(), ignored_params)
    _check_not_tied_to_sharded(ownership)
    own = [ownership.fqns[parameter_at(place)] for place in ownership.places[module]]
    if is_container_class(module) and own:
        raise ValueError(
            f"{type(module).__name__} has no forward, so FSDP2 cannot gather its parameters ({shortened(own)}). "
            f"Shard each of its elements, or the module that contains it."
        )
    if is_container_class(module):
        warn_caller(
            "FSDP will not all-gather parameters for containers that do not implement forward: each unit below this "
            f"{type(module).__name__} gathers its own."
        )
    notes += [
        f"{' and '.join(tie.fqns)} are one parameter: it belongs to {tie.owner_fqn or 'the root'}"
        for tie in ownership.ties
    ]
    nested = [name for name, part in module.named_modules() if isinstance(part, FSDPModule)]
    if nested:
        notes.append(f"already sharded, so not changed: {', '.join(nested)}")
    # Whose forward runs first is the root of that forward: below a container that is each of the outermost units.
    outermost = set(_outermost(module, arguments)) if is_container_class(module) else set()
    order = [
        (part, options.with_unit_arguments(given, names[part]), part in outermost) for part, given in arguments.items()
    ]
    for part, unit_options, _ in [*order, (module, options, True)]:
        params = map(parameter_at, ownership.places[part])
        check_tensor_parallel({param: ownership.fqns[param] for param in params}, unit_options)
    return Plan(
        root=module,
        units=tuple(
            _unit(
                names[part],
                part,
                unit_options,
                ownership,
                shards_of(module, unit_options, world, ignored_params),
                is_root=is_root,
            )
            for part, unit_options, is_root in [*order, (module, options, True)]
        ),
        ties=ownership.ties,
        ignored=ownership.ignored,
        ignored_modules=frozenset(ignored_module_set),
        full_precision=full_precision,
        notes=tuple(notes),
    )


def _unit(
    fqn: str, module: nn.Module, options: Options, ownership: Ownership, shards: Shards | None, *, is_root: bool
) -> Unit:
    precision = Precision.read(options.mixed_precision)
    params = dict.fromkeys(map(parameter_at, ownership.places[module]))
    param_dtype = precision.policy.param_dtype if precision is not None else None
    return Unit(
        fqn=fqn,
        module=module,
        options=options,
        precision=precision,
        is_root=is_root,
        places=ownership.places[module],
        numel=ownership.numel(module),
        size=UnitBytes.of(params, param_dtype, shards),
    )


def _ignored(
    root: nn.Module, modules: list[nn.Module], params: list[nn.Parameter]
) -> tuple[set[nn.Module], set[nn.Parameter]]:
    for module in modules:
        if isinstance(module, FSDPModule):
            raise ValueError(
                f"`ignored_modules` should not include FSDP modules, but contains a {type(module).__name__} "
                "that is sharded already. Remove it: a sharded module is not sharded again."
            )
    subtree = {part for module in modules for part in module.modules() if not isinstance(part, FSDPModule)}
    if root in subtree:
        warn_caller(
            "Trying to ignore the top-level module passed into the FSDP constructor itself will result in "
            f"all parameters being ignored: {type(root).__name__} is not sharded on any rank"
        )
    return subtree, {*params, *(param for module in modules for param in module.parameters())}


def _unit_arguments(given: dict[str, Any], ignored_params: set[nn.Parameter]) -> dict[str, Any]:
    if given.get("ignored_states") is not ignored_params:
        return given
    return {name: value for name, value in given.items() if name != "ignored_states"}


def _check_not_tied_to_sharded(ownership: Ownership) -> None:
    for param, fqn in ownership.fqns.items():
        replacement = replacement_of(param)
        if replacement is not None:
            raise ValueError(
                f"{fqn} is the same parameter as {replacement.fqn} of a module that is sharded already, so the two "
                "are no longer tied. Tie them after building and shard both with one call, or leave the inner module "
                "to the outer call."
            )


def _outermost(module: nn.Module, units: Container[nn.Module]) -> Iterator[nn.Module]:
    for child in module.children():
        if child in units:
            yield child
        else:
            yield from _outermost(child, units)


def is_container_class(module: nn.Module) -> bool:
    """Whether ``module`` is a ModuleList or a ModuleDict, which nobody calls."""
    return isinstance(module, nn.ModuleList | nn.ModuleDict) and _is_container(module)


def _is_container(module: nn.Module) -> bool:
    return getattr(module.forward, "__func__", module.forward) is nn.Module.forward
