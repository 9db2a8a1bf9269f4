"""What an imported name means: re-exports and star imports of a tree, followed to where they come from."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from fsdp_rules.project.public_names import Public


@dataclass(frozen=True)
class Given:
    """What star imports give: each name with all that it may stand for.

    ``unseen`` says that one of the modules is none of the tree, so that its names are not known.
    """

    names: dict[str, frozenset[str]]
    unseen: bool


@dataclass(frozen=True)
class Exports:
    """The names of every module of a tree.

    ``names`` are what each module binds to something else, by module; ``modules`` the modules that an import path may
    mean, by that path: an import need not start where the tree does. ``stars`` are the modules that a module
    star-imports, ``public`` what such an import of a module gives.
    """

    names: dict[str, dict[str, str]]
    modules: dict[str, tuple[str, ...]] = field(default_factory=dict)
    stars: dict[str, tuple[str, ...]] = field(default_factory=dict)
    public: dict[str, Public] = field(default_factory=dict)

    @classmethod
    def build(
        cls, names: dict[str, dict[str, str]], stars: dict[str, tuple[str, ...]], public: dict[str, Public]
    ) -> Exports:
        """The table for modules with these names."""
        return cls(names, by_suffix(names), stars, public)

    def resolve(self, dotted: str) -> str:
        """``dotted`` with re-exports of this tree followed to where they come from."""
        # Each import is followed once: a package that takes a name from its module of that name would never end.
        followed: set[str] = set()
        while not dotted.startswith("torch."):
            head, _, name = dotted.rpartition(".")
            tail: list[str] = []
            target = self._exported(head, name)
            while target is None and head and head not in self.modules:
                tail.insert(0, name)
                head, _, name = head.rpartition(".")
                target = self._exported(head, name)
            if target is None or target in followed:
                break
            followed.add(target)
            dotted = ".".join([target, *tail])
        return dotted

    def spellings(self, name: str) -> frozenset[str]:
        """The last names that may stand for what is called ``name``, itself included."""
        given: dict[str, set[str]] = defaultdict(set)
        for table in self.names.values():
            for local, target in table.items():
                given[target.rpartition(".")[2]].add(local)
        found, pending = {name}, [name]
        while pending:
            new = given.get(pending.pop(), set()) - found
            found |= new
            pending += new
        return frozenset(found)

    def starred(self, module: str) -> Iterator[str]:
        """Every module whose names ``module`` has by a star import, through others too."""
        seen: set[str] = set()
        pending = list(self.stars.get(module, ()))
        while pending:
            one = pending.pop()
            for found in self.modules.get(one, ()):
                if found not in seen:
                    seen.add(found)
                    pending += self.stars.get(found, ())
                    yield found

    def given(self, module: str) -> Given:
        """What the star imports of ``module`` give, those of the starred modules included."""
        reached = list(self.starred(module))
        table: dict[str, dict[str, set[str]]] = {one: defaultdict(set) for one in (module, *reached)}
        for one in reached:
            for name, target in self.public.get(one, Public()).names.items():
                table[one][name].add(target if target == f"{one}.{name}" else self.resolve(target))
        # Modules may star-import each other: what they pass on grows until no name is new.
        pending = list(table)
        while pending:
            one = pending.pop()
            before = sum(map(len, table[one].values()))
            for found in (found for star in self.stars.get(one, ()) for found in self.modules.get(star, ())):
                public = self.public.get(found, Public())
                for name, targets in list(table[found].items()):
                    if public.gives(name):
                        table[one][name] |= targets
            if sum(map(len, table[one].values())) > before:
                pending += [other for other in table if other != one]
        names = {name: frozenset(targets) for name, targets in table[module].items()}
        unseen = any(star not in self.modules for one in table for star in self.stars.get(one, ()))
        return Given(names, unseen)

    def _exported(self, module: str, name: str) -> str | None:
        for candidate in self.modules.get(module, ()):
            if name in self.names[candidate]:
                return self.names[candidate][name]
        return None


def by_suffix(names: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """The dotted ``names`` that end with a path, by that path."""
    found: dict[str, list[str]] = defaultdict(list)
    for name in names:
        rest = name
        while rest:
            found[rest].append(name)
            rest = rest.partition(".")[2]
    return {suffix: tuple(modules) for suffix, modules in found.items()}
