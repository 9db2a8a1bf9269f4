"""A strategy of Lightning in one file and the LightningModule that it shards in another: both change, or none."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

import libcst as cst

from fsdp_rules.file.file import File
from fsdp_rules.file.keyed import key_of
from fsdp_rules.fsdp1.names import expand
from fsdp_rules.hosts._lightning_module import Built, built
from fsdp_rules.hosts._lightning_options import Wanted
from fsdp_rules.hosts._lightning_sharding import StrategyCall, is_strategy, policy
from fsdp_rules.hosts._lightning_trainer import class_of
from fsdp_rules.project.hosted import Hosted
from fsdp_rules.project.places import module_name

RULE = "FSDP556"
#: Gives the file at a path, None where it cannot be read or is not to be changed.
Opened = Callable[[str], File | None]


def hosted_in(file: File, paths: Iterable[str], opened: Opened) -> Iterator[Hosted]:
    """What the strategies of ``file`` shard in the files at ``paths``."""
    for call in file.nodes(cst.Call):
        if not is_strategy(call, file) or not changes(call, file):
            continue
        read = StrategyCall.read(call, file)
        if not read.reason and read.run.elsewhere:
            yield _hosted(read, file, paths, opened)


def agreeing(found: list[Hosted]) -> tuple[Hosted, ...]:
    """``found``, without the modules that strategies shard in different ways."""
    ways: dict[tuple[str, str], set[Hosted]] = {}
    for one in found:
        ways.setdefault((one.module, one.name), set()).add(replace(one, strategy="", line=0))
    several = {key for key, entries in ways.items() if len(entries) > 1}
    return tuple(
        replace(one, reason=one.reason or f"several strategies train {one.name}")
        if (one.module, one.name) in several
        else one
        for one in found
    )


def changes(node: cst.CSTNode, file: File) -> bool:
    """Whether nothing says that the rule leaves ``node`` as it is."""
    kept = file.suppressions.ignored(RULE, node) or file.suppressions.gated(node) is not None
    return file.settings.enabled(RULE) and not kept


def wanted_of(one: Hosted, file: File) -> Wanted:
    """What ``one`` asks for, in the names of the ``file`` that has the module."""
    layers, checkpointed = ([_spelled(full, file) for full in names] for names in (one.layers, one.checkpointed))
    wanted = Wanted(layers=layers, checkpointed=checkpointed, options=dict(one.options))
    if one.dtypes:
        wanted.options["mp_policy"] = policy(dict(one.dtypes), file)
    return wanted


def class_named(name: str, file: File) -> cst.ClassDef | None:
    """The class ``name`` at the top of ``file``."""
    found = [one for one in file.layout.module.body if isinstance(one, cst.ClassDef) and one.name.value == name]
    return found[0] if len(found) == 1 else None


def _hosted(read: StrategyCall, file: File, paths: Iterable[str], opened: Opened) -> Hosted:
    module, _, name = read.run.elsewhere.rpartition(".")
    own = Hosted(file.path, file.span(read.node).line, name=name)
    known = file.project.names.modules.get(module, ())
    places = [path for path in paths if module_name(path) in known]
    other = opened(places[0]) if len(places) == 1 else None
    node = class_named(name, other) if other is not None else None
    if other is None or node is None:
        return replace(own, reason=f"no file in the tree defines {name} with a configure_model method")
    where = f"{other.path}: "
    if not changes(node, other):
        return replace(own, reason=f"{where}{RULE} is switched off there")
    if any(is_strategy(call, other) for call in other.nodes(cst.Call)):
        return replace(own, reason=f"{where}the file creates a strategy itself")
    if below := _below(own.name, other, file):
        return replace(own, reason=f"{below} extends {name}")
    full = {text: expand(text, file.aliases) for text in (*read.wanted.layers, *read.wanted.checkpointed)}
    for text, dotted in full.items():
        if not _is_seen(text, dotted, file, other):
            return replace(own, reason=f"{text} cannot be imported by configure_model in {other.path}")
    options = dict(read.wanted.options)
    dtypes = _dtypes(options.pop("mp_policy", ""), read.run.low, file)
    if dtypes is None:
        return replace(own, reason="its dtypes are not attributes of torch")
    found = replace(
        own,
        module=other.path,
        layers=tuple(full[text] for text in read.wanted.layers),
        checkpointed=tuple(full[text] for text in read.wanted.checkpointed),
        options=tuple(options.items()),
        dtypes=tuple(dtypes.items()),
    )
    wanted = wanted_of(found, other)
    made = built(node, [*wanted.layers, *wanted.checkpointed], other)
    reason = f"{where}{made.reason}" if made.reason else _outside(made, read, file)
    return replace(found, root=made.roots[0] if made.roots else "", reason=reason)


def _below(name: str, other: File, file: File) -> str:
    """The class that extends the class ``name``, by which configure_model would run as well."""
    owners = file.project.owners
    return next((owner[1] for owner, bases in owners.bases.items() if name in bases), "")


def _is_seen(text: str, dotted: str, file: File, other: File) -> bool:
    """Whether ``other`` can name what ``file`` calls ``text``, imported from ``dotted``."""
    if _known(dotted, other):
        return True
    root = text.partition(".")[0]
    if root not in file.aliases or dotted.startswith(f"{module_name(file.path)}."):
        return False
    relative = [
        one
        for one in file.nodes(cst.ImportFrom)
        if one.relative and not isinstance(one.names, cst.ImportStar)
        for alias in one.names
        if (alias.evaluated_alias or alias.evaluated_name) == root
    ]
    home = file.project.names.modules.get(dotted.rpartition(".")[0], ())
    mine = module_name(other.path)
    # What imports the module itself cannot be imported by it.
    circular = any(full.startswith(f"{mine}.") for one in home for full in file.project.names.names[one].values())
    return not relative and not circular


def _known(dotted: str, file: File) -> str:
    """How ``file`` already calls the class ``dotted`` at its top, empty where it does not."""
    full = file.project.resolve(dotted)
    if module_name(file.path) == full.rpartition(".")[0] and class_named(full.rpartition(".")[2], file) is not None:
        return full.rpartition(".")[2]
    above = file.references.imported_above
    names = (local for local, target in file.aliases.items() if local in above and file.project.resolve(target) == full)
    return next(names, "")


def _spelled(dotted: str, file: File) -> str:
    return _known(dotted, file) or file.ref(dotted, everywhere=True, by_name=True)


def _dtypes(text: str, low: str, file: File) -> dict[str, str] | None:
    """The dtypes of a policy by its arguments, as dotted names; None where one is no name of torch."""
    if not text:
        return {"param_dtype": f"torch.{low}", "reduce_dtype": f"torch.{low}"} if low else {}
    call = cst.parse_expression(text)
    found: dict[str, str] = {}
    for one in call.args if isinstance(call, cst.Call) else ():
        full = expand(cst.Module([]).code_for_node(one.value), file.aliases)
        if not full.startswith("torch."):
            return None
        found[key_of(one) or ""] = full
    return found


def _outside(made: Built, read: StrategyCall, file: File) -> str:
    """Why a use of the model in the strategy's own file is in the way, empty if there is none."""
    for use in file.nodes(cst.Attribute):
        if use.attr.value in made.roots and class_of(use.value, file) == read.run.elsewhere:
            return f"line {file.span(use).line} reads {file.code(use)}, which has shards under FSDP2"
    return ""
