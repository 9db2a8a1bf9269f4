"""The facts of a tree: of the files that speak of FSDP1, and of those that a wrapped model can reach from there."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from fsdp_migrate.pipeline.configuring import keys_in, with_options
from fsdp_migrate.pipeline.engine import Engine
from fsdp_migrate.pipeline.work import Candidate, module_of
from fsdp_migrate.tree.files import Source
from fsdp_migrate.tree.regular import read_regular
from fsdp_rules.verdict.result import Failed, Skipped

if TYPE_CHECKING:
    from fsdp_rules.project.project import FileFacts, Project

_STAR = re.compile(rb"\bimport[ \t]*\*")
#: Gives the facts of each file, in order, or why there are none.
Indexing = Callable[[Sequence[Candidate]], "list[FileFacts | Skipped | Failed]"]


class Index:
    """Collects facts until no file is left that a wrapped model can reach.

    ``results`` says of each indexed file why it has no facts, None where it has some; ``found`` are the files that
    were indexed because a model reaches them, whatever their bytes say. ``retires``: FSDP1's branches are to be
    removed, so that what expressions may be is not asked.
    """

    def __init__(
        self, engine: Engine, index: Indexing, read: Callable[[Path], bytes] = read_regular, retires: bool = False
    ) -> None:
        self._bytes = read
        self._retires = retires
        self._engine = engine
        self._index = index
        self._facts: list[FileFacts] = []
        self._flags: Mapping[str, frozenset[str]] = {}
        self._batchnorm: frozenset[str] = frozenset()
        self.results: dict[str, Skipped | Failed | None] = {}
        self.found: list[Source] = []
        self.candidates: dict[str, Candidate] = {}

    def build(self, marked: Sequence[Candidate], rest: Iterable[Source]) -> Project | None:
        """The facts of the whole tree; None where no file has any.

        ``marked`` are the files with a marker in their bytes, ``rest`` all others, which are read again only where
        the tree has FSDP1.
        """
        speaking = [candidate for candidate in marked if self._engine.names_fsdp1(candidate.data)]
        self._add(speaking)
        if not self._facts:
            return None
        # Facts of several files are joined once more when all that are reached are known.
        is_first = len(self._facts) > 1 and self._engine.must_migrate(self._facts)
        project = None if is_first else self._engine.build(self._facts, self._flags, self._batchnorm)
        if project is None or self._engine.is_migrating(project):
            more = self._add([candidate for candidate in marked if candidate.path not in self.results])
            return replace(self._follow(None if more else project, rest), own=keys_in(self.candidates.values()))
        return project

    def _follow(self, project: Project | None, rest: Iterable[Source]) -> Project:
        """Index what a tree's models reach among ``rest``, round by round; ``project`` None is built of all facts."""
        sources = {source.shown: source for source in rest}
        imports = {path: self._engine.imports_of(path, one.data) for path, one in self.candidates.items()}
        imports.update({path: self._engine.imports_of(path, data) for path, data in self._read(sources.values())})
        neighbours = self._engine.neighbours(imports)
        connected = neighbours.connected(path for path, why in self.results.items() if why is None)
        texts = dict(self._read(source for path, source in sources.items() if path in connected))
        named = [(path, one.data) for path, one in self.candidates.items()]
        programs = self._engine.programs(neighbours, chain(named, texts.items()))
        self._flags = flags = {path: self._engine.flags_in(data) for path, data in texts.items()}
        raised = frozenset().union(*flags.values())
        # What is wrapped with DDP is followed as well, to tell the two apart, and what chooses between two FSDPs.
        has_both = raised.union(*(fact.flags for fact in self._facts)) >= {"fsdp1", "fsdp2"}
        telling = {"ddp_wraps", "wraps_by_name"} if has_both else {"ddp_wraps"}
        others = [path for path in sorted(texts) if flags[path] & telling]
        others += [path for path in with_options(self.candidates.values(), texts) if path not in others]
        # A file that passes on all names of another one holds none of them in its text.
        others += [path for path, data in texts.items() if path not in others and _STAR.search(data)]
        self._add_found(others, texts, sources)
        # What a star import gives decides which names the output may take.
        facts = 0
        while facts < len(self._facts):
            modules, facts = {one for fact in self._facts[facts:] for one in fact.starred}, len(self._facts)
            starred = {path for one in modules for path in neighbours.of(one) if path in texts}
            self._add_found(sorted(starred), texts, sources)
        own = [path for path, found in flags.items() if "own_batchnorm" in found]
        self._batchnorm = frozenset(neighbours.importing(own))
        if project is None or self._batchnorm or len(self._facts) > 1 or not raised <= project.flags:
            project = self._engine.build(self._facts, self._flags, self._batchnorm, programs)
        if self._retires and self._engine.has_both(project):
            # Branches are removed by what they name, whatever expressions may be.
            return project
        read = [one for path, one in self.candidates.items() if not (one.is_notebook and self.results[path])]
        known = {one.path: data for one in read if (data := module_of(one, self._engine)) is not None}
        known.update((path, data) for path, data in texts.items() if not sources[path].is_notebook)
        values = self._engine.values(project, known, neighbours, self.candidates)
        if self._add_found(sorted(path for path in values.reached if path in texts), texts, sources):
            project = self._engine.build(self._facts, self._flags, self._batchnorm, programs)
        return project.with_values(values)

    def _add_found(self, paths: Sequence[str], texts: dict[str, bytes], sources: Mapping[str, Source]) -> bool:
        """Index the files at ``paths``, which are taken out of ``texts``; whether one of them has facts."""
        self.found += [sources[path] for path in paths]
        return self._add([Candidate(path, texts.pop(path), sources[path].is_notebook) for path in paths])

    def _add(self, candidates: Sequence[Candidate]) -> bool:
        """Index ``candidates``; whether one of them has facts."""
        before = len(self._facts)
        for candidate, found in zip(candidates, self._index(candidates), strict=True):
            self.candidates[candidate.path] = candidate
            if isinstance(found, Skipped | Failed):
                self.results[candidate.path] = found
            else:
                self.results[candidate.path] = None
                self._facts.append(found)
        return len(self._facts) > before

    def _read(self, sources: Iterable[Source]) -> Iterator[tuple[str, bytes]]:
        """The path and the bytes of each source. What cannot be read any more is left out: it could be before."""
        for source in sources:
            try:
                yield source.shown, self._bytes(source.path)
            except (OSError, MemoryError):
                continue
