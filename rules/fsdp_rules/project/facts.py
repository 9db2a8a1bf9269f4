"""What one file tells the others: imports, functions, wraps, words; from the standard library's ast."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass, field

from fsdp_rules.project.aliases import Aliases, reads
from fsdp_rules.project.flags import flags_in
from fsdp_rules.project.gates import gated_lines, sharding_functions
from fsdp_rules.project.given_words import MAY_GIVE, Word, words_in
from fsdp_rules.project.ignore_comments import kept_wraps
from fsdp_rules.project.indexer import Indexer
from fsdp_rules.project.meta import MAY_NAME_META, meta_scopes
from fsdp_rules.project.optimizers import Optimizer, optimizers_in
from fsdp_rules.project.parts import ModuleClass, classes_in, returned_in
from fsdp_rules.project.places import module_name
from fsdp_rules.project.public_names import Public, public
from fsdp_rules.project.steps import Steps, steps_in
from fsdp_rules.project.taking import takes_state
from fsdp_rules.project.twins import CHOOSES
from fsdp_rules.project.walking import walk


@dataclass(frozen=True)
class FileFacts:
    """What one file tells the others; picklable."""

    path: str
    module: str
    aliases: dict[str, str]
    #: The parameters of each function, by its qualified name.
    functions: dict[str, tuple[str, ...]]
    flags: frozenset[str]
    imported: frozenset[str] = field(default=frozenset())
    #: The modules that the file star-imports, and every name that it reads where there is one.
    starred: frozenset[str] = field(default=frozenset())
    reads: frozenset[str] = field(default=frozenset())
    #: The bases of each class as the file writes them, dotted, by the class's qualified name.
    classes: dict[str, tuple[str, ...]] = field(default_factory=dict)
    #: The methods of its bases that each class calls, through ``super()`` or by their class, by its qualified name.
    supers: dict[str, frozenset[str]] = field(default_factory=dict)
    #: The names that the module itself assigns.
    assigned: frozenset[str] = field(default=frozenset())
    #: The last names of the attributes, of whatever objects, that the file assigns or defines.
    attributes: frozenset[str] = field(default=frozenset())
    #: What a star import of the file gives.
    public: Public = field(default_factory=Public)
    #: The functions that say whether what they are given is of FSDP1's class, and whether they ask for it alone.
    askers: dict[str, bool] = field(default_factory=dict)
    #: The functions in which the meta device is named.
    meta: frozenset[str] = field(default=frozenset())
    #: The functions that call ``fully_shard``.
    shards: frozenset[str] = field(default=frozenset())
    #: The lines on which the file wraps models with FSDP1, and the whole file, where it may choose what to wrap with.
    wrapped: frozenset[int] = frozenset()
    #: Those in gates, and those of wraps that stay: of subclasses of FSDP1's class, or under a comment.
    gated: frozenset[int] = frozenset()
    kept: frozenset[int] = frozenset()
    choosing: bytes = b""
    #: What the file builds, is given or uses as an optimizer.
    optimizers: tuple[Optimizer, ...] = ()
    #: The calls of each function, and what is used as values.
    steps: Steps = field(default_factory=lambda: Steps({}, frozenset()))
    #: The classes with bases, and what functions return the results of.
    modules: dict[str, ModuleClass] = field(default_factory=dict)
    returned: dict[str, frozenset[str]] = field(default_factory=dict)
    #: The words by which the file asks a framework for FSDP1, where it keeps them.
    words: tuple[Word, ...] = ()
    #: The whole file, where it speaks of FSDP: what a call is given may be written there.
    source: bytes = b""


def index_source(path: str, data: bytes, given: Mapping[str, str] | None = None) -> FileFacts | None:
    """The facts of one file, or None when it does not parse (the rewrite of that file then says why).

    ``given`` are names of FSDP1 that the star imports of the file give it.
    """
    try:
        tree = ast.parse(data)
        gated = gated_lines(tree, data.decode("utf-8", "replace")) if b"fsdp" in data.lower() else {}
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    try:
        return _index(path, tree, gated, data, given)
    except RecursionError:
        return None


@dataclass(frozen=True)
class Imports:
    """The modules and names that one file imports, and every name that it reads where it has a star import."""

    imported: frozenset[str]
    reads: frozenset[str]


def imports_in(path: str, data: bytes) -> Imports | None:
    """``imported`` and ``reads`` of the facts of one file, without the others; None when it does not parse."""
    try:
        tree = ast.parse(data)
        aliases = _aliases(path, tree)
        return Imports(frozenset(aliases.imported), reads(tree) if aliases.starred else frozenset())
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def aliases_in(path: str, text: str) -> dict[str, str]:
    """What each name that the source ``text`` imports stands for; nothing where it does not parse."""
    try:
        return _aliases(path, ast.parse(text)).names
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return {}


def _aliases(path: str, tree: ast.Module, given: Mapping[str, str] | None = None) -> Aliases:
    return Aliases(tree, module_name(path), path.endswith("__init__.py"), given)


def _index(
    path: str, tree: ast.Module, gated: Mapping[int, bool], data: bytes, given: Mapping[str, str] | None
) -> FileFacts:
    module = module_name(path)
    aliases = _aliases(path, tree, given)
    kept = kept_wraps(tree, data.decode("utf-8", "replace")) if b"ignor" in data.lower() else frozenset()
    indexer = Indexer(aliases, gated, kept)
    indexer.run(tree.body)
    nodes = [*walk(tree)]
    return FileFacts(
        path=path,
        module=module,
        aliases=aliases.names,
        functions=indexer.functions,
        flags=flags_in(data) | indexer.flags | _of_state(tree, data),
        imported=frozenset(aliases.imported),
        starred=frozenset(aliases.starred),
        reads=reads(tree) if aliases.starred else frozenset(),
        classes=indexer.classes,
        supers=indexer.supers,
        assigned=frozenset(name for scope, name in indexer.assigned if not scope),
        attributes=frozenset(
            name.rpartition(".")[2]
            for name in (*(name for scope, name in indexer.assigned if "." in name or scope), *indexer.functions)
        ),
        public=public(tree, module, aliases.names),
        askers=indexer.askers,
        meta=meta_scopes(tree) if MAY_NAME_META.search(data) else frozenset(),
        shards=sharding_functions(tree) if b"fully_shard" in data else frozenset(),
        wrapped=frozenset(indexer.wrapped),
        gated=frozenset(indexer.gated),
        kept=frozenset(indexer.kept),
        choosing=data if CHOOSES.search(data) else b"",
        optimizers=optimizers_in(tree, aliases) if b"opt" in data.lower() else (),
        steps=steps_in(tree),
        modules=classes_in(nodes, aliases),
        returned=returned_in(nodes, aliases),
        words=words_in(tree, path) if MAY_GIVE.search(data) else (),
        # Names that a star import gives are those of a file that need not say FSDP.
        source=data if aliases.starred or b"fsdp" in data.lower() or b"state_dict" in data else b"",
    )


def _of_state(tree: ast.Module, data: bytes) -> frozenset[str]:
    return frozenset({"takes_state"} if b"state_dict" in data and takes_state(tree) else ())
