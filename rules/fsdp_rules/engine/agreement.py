"""Which definitions of FSDP1's configuration change with all wraps that use them, decided before any edit."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import libcst as cst

from fsdp_rules.construction._plan.contracts import contract_of, values_of
from fsdp_rules.construction._plan.leaves import Leaf
from fsdp_rules.construction._plan.member_writes import field_of
from fsdp_rules.construction._plan.slot_uses import uses_of
from fsdp_rules.engine.fed_wraps import is_fed, spelled
from fsdp_rules.engine.hosting import carrying, hosting
from fsdp_rules.engine.kept_code import vendored
from fsdp_rules.engine.registry import in_charge
from fsdp_rules.engine.rewrite import Prepared, Said, diagnosed
from fsdp_rules.engine.source_text import decode
from fsdp_rules.file.file import File
from fsdp_rules.fsdp1.names import FSDP
from fsdp_rules.project.configured import Contract, Slot
from fsdp_rules.project.places import module_name
from fsdp_rules.project.project import Project
from fsdp_rules.project.seen import seen_from
from fsdp_rules.settings import Settings
from fsdp_rules.verdict.diagnosis import Taken
from fsdp_rules.verdict.rule import Role

#: The settings of each file.
SettingsOf = Callable[[str], Settings]
#: What may read or write a field, or call a method, by its name.
MEMBER = rb"""\.\s*%s\b|["']%s["']|\b%s\s*="""
#: How often what was agreed is looked at again; each time at least one definition less is.
ROUNDS = 20


@dataclass(frozen=True)
class Agreed:
    """The project with what definitions give to wraps, and the files that were parsed to decide it, by their paths."""

    project: Project
    prepared: Mapping[str, Prepared] = field(default_factory=dict)


def agreed(
    project: Project,
    files: Mapping[str, bytes],
    settings_of: SettingsOf,
    unread: Callable[[], Iterable[tuple[str, bytes]]],
) -> Agreed:
    """``project`` with what definitions give to wraps in other places, and whether they are rewritten with those.

    What strategies of frameworks shard in other files is decided as well.

    ``files`` are the Python files that have facts, ``unread`` gives the path and the bytes of all others,
    whose uses this tool cannot see.
    """
    project = carrying(hosting(project, files, settings_of), files, settings_of)
    marks = spelled(project)
    if not any(is_fed(source, project, path, marks) for path, source in project.sources.items() if path in files):
        return Agreed(project)
    return _Agreement(project, files, settings_of, unread).reached()


class _Agreement(Mapping[Slot, Contract]):
    """What the rules ask while it is looked for: each definition is read when a wrap first asks for it."""

    def __init__(
        self,
        project: Project,
        files: Mapping[str, bytes],
        settings_of: SettingsOf,
        unread: Callable[[], Iterable[tuple[str, bytes]]],
    ) -> None:
        self._sources = files
        self._settings_of = settings_of
        self._unread = unread
        self._known: dict[Slot, Contract | None] = {}
        #: The definitions that are left as they are, each with the use that keeps it so ("" where none does alone).
        self._refused: dict[Slot, str] = {}
        self._files: dict[str, File | None] = {}
        #: What the rules said of each file when they were last asked, and what they were told of definitions then.
        self._said: dict[str, tuple[Said, dict[Slot, Contract | None]]] = {}
        self._told: dict[Slot, Contract | None] = {}
        self._final: Mapping[Slot, Contract] | None = None
        self._project = replace(project, configured=self)

    def __getitem__(self, slot: Slot) -> Contract:
        contract = self._told[slot] = self._now(slot)
        if contract is None:
            raise KeyError(slot)
        return contract

    def _now(self, slot: Slot) -> Contract | None:
        if self._final is not None:
            return self._final.get(slot)
        if slot not in self._known:
            self._known[slot] = None
            file = self._file(slot.path)
            self._known[slot] = contract_of(slot, file) if file is not None else None
        contract = self._known[slot]
        if contract is None:
            return None
        return replace(contract, converted=slot not in self._refused, needed_by=self._refused.get(slot, ""))

    def __iter__(self) -> Iterator[Slot]:
        return (slot for slot, contract in list(self._known.items()) if contract is not None)

    def __len__(self) -> int:
        return len(list(iter(self)))

    def reached(self) -> Agreed:
        """What is agreed on."""
        marks = spelled(self._project)
        asking = [path for path, source in self._sources.items() if is_fed(source, self._project, path, marks)]
        for path in asking:
            self._ask(path)
        for _ in range(ROUNDS):
            known = len(self)
            taken, given = self._carried_out(sorted({*asking, *(slot.path for slot in self)}))
            changing = [slot for slot in self if slot not in self._refused]
            failed = {slot: why for slot in changing if (why := self._why_not(slot, taken, given)) is not None}
            if not failed and len(self) == known:
                return self._ended(self._decided(taken))
            self._refused |= failed
        return self._ended({})

    def _ended(self, final: Mapping[Slot, Contract]) -> Agreed:
        """``final`` as what files get now; what rules said of a file is kept where they had the same."""
        self._final = final
        prepared = {path: Prepared(file, self._kept(path)) for path, file in self._files.items() if file is not None}
        return Agreed(replace(self._project, configured=final), prepared)

    def _kept(self, path: str) -> Said | None:
        said, told = self._said.get(path, (None, {}))
        return said if all(self._now(slot) == contract for slot, contract in told.items()) else None

    def _ask(self, path: str) -> None:
        """Let the wraps of a file ask for the definitions that they need."""
        file = self._file(path)
        for call in file.nodes(cst.Call) if file is not None else ():
            if file is not None and file.fsdp1(call.func) == FSDP:
                list(in_charge(Role.WRAP).visit(call, file))

    def _carried_out(self, paths: Iterable[str]) -> tuple[list[Taken], set[Slot]]:
        """What is taken, and given, by edits that are made in the files at ``paths``."""
        taken: list[Taken] = []
        given: set[Slot] = set()
        for path in paths:
            file = self._file(path)
            if file is None or vendored(file) is not None:
                continue
            self._told = {}
            said = diagnosed(file)
            self._said[path] = said, self._told
            for _, diagnosis in said:
                if diagnosis.edits:
                    taken += diagnosis.takes
                    given.update(diagnosis.gives)
        return taken, given

    def _why_not(self, slot: Slot, taken: list[Taken], given: set[Slot]) -> str | None:
        """Why the definition of ``slot`` cannot change, None where it and every use of it are seen and change.

        The answer is the place of the use that prevents it, "" where there is none to name.
        """
        own = self._leaves(slot)
        fed = self._fed_by(slot)
        users = {(entry.device, entry.mesh_given) for entry in taken if entry.slot in fed and not entry.writes}
        # A dictionary names its device itself, so that one which nothing uses can change, too.
        is_dict = self[slot].kind == "arguments"
        if any(leaf.slot in self._refused for leaf in own) or not (users or is_dict):
            return ""
        if slot not in given and (is_dict or any(leaf.slot is None for leaf in own)):
            return ""
        is_strategy = self[slot].kind == "strategy"
        is_run = slot.is_call and all(self._is_run(leaf, slot) for leaf in own)
        if is_strategy and not (len(users) == 1 and _can_be_made(is_run, self[slot], *next(iter(users)))):
            return ""
        nodes = {entry.node for entry in taken if entry.slot == slot} | self._passed_on(slot)
        return self._unseen(slot, nodes)

    def _is_run(self, leaf: Leaf, slot: Slot) -> bool:
        """Whether ``leaf``, of the function of ``slot``, is made when that runs, not in a table of the module."""
        file = self._file(slot.path)
        return leaf.slot is not None or (file is not None and file.function(leaf.node) is not None)

    def _fed_by(self, slot: Slot) -> set[Slot]:
        """``slot`` and the slots that pass on what it gives."""
        found = {slot}
        while True:
            more = {one for one in self if one not in found and any(leaf.slot in found for leaf in self._leaves(one))}
            if not more:
                return found
            found |= more

    def _passed_on(self, slot: Slot) -> set[cst.CSTNode]:
        """The expressions that take ``slot`` in definitions which change themselves."""
        changing = [one for one in self if one not in self._refused]
        return {leaf.node for one in changing for leaf in self._leaves(one) if leaf.slot == slot}

    def _leaves(self, slot: Slot) -> Sequence[Leaf]:
        file = self._file(slot.path)
        return [leaf for leaf, _ in values_of(slot, self[slot], file)] if file is not None else []

    def _unseen(self, slot: Slot, nodes: set[cst.CSTNode]) -> str | None:
        """The place of a use of ``slot`` that is none of ``nodes``, which change; None where all are."""
        owner, own_name = field_of(slot)
        full = f"{module_name(slot.path)}.{slot.name}"
        table = self._project.names.names.values()
        named = {local for names in table for local, target in names.items() if self._project.resolve(target) == full}
        word = re.compile(rb"\b(?:%s)\b" % b"|".join(re.escape(name.encode()) for name in {own_name, *named}))
        if owner:
            word = re.compile(MEMBER % ((re.escape(own_name.encode()),) * 3))
        kept = {leaf.node for one in self._refused for leaf in self._leaves(one) if leaf.slot == slot}
        apart = seen_from(self._project, slot.path).apart
        for path, data in self._sources.items():
            if path in apart:
                continue
            file = self._file(path) if word.search(data) else None
            for use in uses_of(slot, file) if file is not None else ():
                if file is not None and use in kept:
                    return ""
                if file is not None and use not in nodes and self._is_new(use, file):
                    continue
                if file is not None and use not in nodes:
                    return f"{path}:{file.span(use).line}"
            if file is None and word.search(data):
                return path
        return next((path for path, data in self._unread() if path not in apart and word.search(data)), None)

    def _is_new(self, use: cst.CSTNode, file: File) -> bool:
        """Whether ``use`` is in a function that no wrap asks for, and that may change itself: it is looked at next."""
        function = file.function(use)
        slot = Slot(file.path, function.name.value) if function is not None else None
        return slot is not None and slot not in self._known and slot in self

    def _decided(self, taken: list[Taken]) -> dict[Slot, Contract]:
        found: dict[Slot, Contract] = {}
        for slot in self:
            fed = self._fed_by(slot)
            uses = [one for one in taken if one.slot in fed and not one.writes]
            device, mesh_given = next(((one.device, one.mesh_given) for one in uses), ("", False))
            contract = self[slot]
            own = contract.kind == "arguments"
            found[slot] = contract if own else replace(contract, device=device, mesh_given=mesh_given)
        return found

    def _file(self, path: str) -> File | None:
        if path not in self._files:
            self._files[path] = self._parsed(path)
        return self._files[path]

    def _parsed(self, path: str) -> File | None:
        data, settings = self._sources.get(path), self._settings_of(path)
        if data is None or settings.to == "shim":
            return None
        try:
            text = decode(data).text
            return File(text, ast.parse(text), path, self._project, settings)
        except (SyntaxError, UnicodeDecodeError, LookupError, cst.ParserSyntaxError, ValueError, RecursionError):
            return None


def _can_be_made(is_run: bool, contract: Contract, device: str, mesh_given: bool) -> bool:
    """Whether the definition can make the mesh of each strategy; ``is_run``: it does so in a function."""
    if mesh_given:
        return "NO_SHARD" not in contract.strategies
    if contract.strategies <= {"FULL_SHARD", "SHARD_GRAD_OP"} and device in ("cuda", "unset"):
        return True
    return is_run and device != "unknown"
