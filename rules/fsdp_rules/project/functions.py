"""Which functions of a tree a call may mean: exactly, where its dotted path says so, else by the name of the method."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from fsdp_rules.fsdp1.names import FSDP, canonical, expand
from fsdp_rules.project.dotted_names import Found, end_of, is_at, named, nearest
from fsdp_rules.project.exports import Exports
from fsdp_rules.project.facts import FileFacts
from fsdp_rules.project.places import Place, Sure, module_name, scopes
from fsdp_rules.project.texts import NO_MODEL

#: How many methods of one name a call may mean by that name alone: where more have it, the name says nothing.
METHODS = 100


class Functions:
    """All functions of a tree by their last names; a class stands for its constructor."""

    def __init__(self, files: list[FileFacts], exports: Exports) -> None:
        self.exports = exports
        self.files = {file.path: file for file in files}
        self._imports = {file.path: {entry.partition(".")[0] for entry in file.imported} | {"torch"} for file in files}
        self._by_module = {file.module: file for file in files}
        #: Whether some call means too many methods to be followed to any.
        self.is_bounded = False
        self._asked: set[tuple[str, str, str]] = set()
        self._bases: dict[tuple[str, str], list[Found]] = {}
        self._methods: dict[tuple[str, str, str], list[Found]] = {}
        self._known: dict[tuple[str, str, str], list[Found]] = {}
        self._guesses: dict[str, list[tuple[FileFacts, str, Sure]]] = {}
        self._guessed: dict[tuple[str, str], list[tuple[Place, Sure]]] = {}
        self._guessed_results: dict[tuple[str, str], list[tuple[Place, Sure]]] = {}
        self._by_name: dict[str, list[Found]] = defaultdict(list)
        self._classes: dict[str, list[Found]] = defaultdict(list)
        #: The same by the last two parts of their dotted names: many classes have a ``forward``.
        self._by_end: dict[str, list[Found]] = defaultdict(list)
        self._classes_by_end: dict[str, list[Found]] = defaultdict(list)
        for file in files:
            for qualified in file.functions:
                self._by_name[qualified.rpartition(".")[2]].append((file, qualified))
                self._by_end[end_of(f"{file.module}.{qualified}")].append((file, qualified))
            for qualified in file.classes:
                self._classes[qualified.rpartition(".")[2]].append((file, qualified))
                self._classes_by_end[end_of(f"{file.module}.{qualified}")].append((file, qualified))

    def wraps(self, place: Place) -> bool:
        """Whether what is called at ``place`` is FSDP1's class, maybe under a name of the tree's own."""
        return canonical(self.exports.resolve(place.name)) in (FSDP, "wrap")

    def extends(self, place: Place) -> bool:
        """Whether what is called at ``place`` is a subclass of FSDP1's class, whose models cannot be moved."""
        full = self.exports.resolve(place.name)
        name = full.rpartition(".")[2]
        here = [entry for entry in self._classes.get(name, ()) if entry[0].path == place.path and "." not in full]
        return any(qualified in file.wrappers for file, qualified in here or self._classes_at(place.path, full))

    def made_by(self, place: Place) -> list[Found]:
        """The classes that the ``call`` at ``place`` may make an object of."""
        name = place.name.rpartition(".")[2]
        if name not in self._classes:
            return []
        file = self.files[place.path]
        if "." not in place.name:
            here = (f"{one}.{name}".lstrip(".") for one in scopes(place.scope))
            return [(file, one) for one in here if one in file.classes][:1]
        return self._classes_at(place.path, self.exports.resolve(place.name))

    def bases(self, owners: Iterable[Found]) -> list[Found]:
        """``owners`` and all classes of the tree that they inherit from."""
        found: dict[tuple[str, str], Found] = {}
        pending = list(owners)
        while pending:
            file, qualified = pending.pop()
            if (file.path, qualified) not in found:
                found[file.path, qualified] = (file, qualified)
                pending += self._above(file, qualified)
        return list(found.values())

    def returns(self, place: Place) -> list[tuple[Place, Sure]]:
        """What the ``call`` at ``place`` may give, each with whether no guess was made."""
        found = self.of(place)
        name = place.name.rpartition(".")[2]
        if found is not self._guesses.get(name):
            return _results(found, place.part)
        if (name, place.part) not in self._guessed_results:
            self._guessed_results[name, place.part] = _results(found, place.part)
        return self._guessed_results[name, place.part]

    def parameters(self, place: Place) -> list[tuple[Place, Sure]]:
        """The parameters that the ``arg`` at ``place`` may be, each with whether no guess was made."""
        found = self.of(place)
        name = place.name.rpartition(".")[2]
        # What a method is called alone by is asked for at every call of that name.
        if found is not self._guesses.get(name):
            return _parameters(found, place.part)
        if (name, place.part) not in self._guessed:
            self._guessed[name, place.part] = _parameters(found, place.part)
        return self._guessed[name, place.part]

    def exact(self, place: Place) -> list[Found]:
        """The functions, more than one where several files are meant alike, with the dotted name of ``place``."""
        # A dotted name means the same in every function of a file, but for the object itself.
        is_scoped = "." not in place.name or place.name.startswith(("self.", "cls."))
        key = (place.path, place.scope if is_scoped else "", place.name)
        if key not in self._known:
            self._known[key] = self._exact(*key)
        return self._known[key]

    def anywhere(self, name: str) -> list[Found]:
        """The functions and classes that some module has under the ``name``."""
        found = [entry for entry in self._by_name.get(name, ()) if "." not in entry[1]]
        for owner in self._classes.get(name, ()):
            found += self._constructor(owner)
        return found

    def paths(self, module: str) -> list[str]:
        """The files of the module that an import path may mean."""
        return [self._by_module[one].path for one in self.exports.modules.get(module, ())]

    def method(self, owner: Found, name: str) -> list[Found]:
        """The method ``name`` of the class ``owner``, its own or that of the nearest base."""
        key = (owner[0].path, owner[1], name)
        if key not in self._methods:
            self._methods[key] = self._method(owner, name, set())
        return self._methods[key]

    def is_imported(self, place: Place) -> bool:
        """Whether what is called at ``place`` starts with a name that its file imports."""
        return place.name.partition(".")[0] in self._imports.get(place.path, ())

    def of(self, place: Place) -> list[tuple[FileFacts, str, Sure]]:
        """The functions that the call at ``place`` may run, each with how sure that is."""
        exact = self.exact(place)
        if exact:
            return [(file, qualified, len(exact) == 1) for file, qualified in exact]
        head, _, name = place.name.rpartition(".")
        if head.endswith("import_module"):
            return [(file, qualified, False) for file, qualified in self.anywhere(name)]
        if not head or self.is_imported(place):
            return []
        if name not in self._guesses:
            methods = [entry for entry in self._by_name.get(name, ()) if "." in entry[1]]
            self.is_bounded |= len(methods) > METHODS
            known = methods if len(methods) <= METHODS else []
            self._guesses[name] = [(file, qualified, None) for file, qualified in known]
        return self._guesses[name]

    def _exact(self, path: str, scope: str, callee: str) -> list[Found]:
        head, _, name = callee.rpartition(".")
        if not head:
            found = self._here(path, scope, name)
            if not found and path in self.files:
                for module in self.exports.starred(self.files[path].module):
                    found += self._at(path, f"{module}.{name}")
            return found
        if head in ("self", "cls"):
            owner = next((one for one in scopes(scope) if one in self.files[path].classes), None)
            return [] if owner is None else self.method((self.files[path], owner), name)
        return self._at(path, self.exports.resolve(callee)) or self._at(path, f"{self._module(path)}.{callee}")

    def _module(self, path: str) -> str:
        return self.files[path].module if path in self.files else module_name(path)

    def _here(self, path: str, scope: str, name: str) -> list[Found]:
        """The function or class that the plain ``name`` means in ``scope``."""
        for around in scopes(scope):
            qualified = f"{around}.{name}" if around else name
            file = self.files[path]
            if name in file.functions.get(around, ()):
                return []
            if qualified in file.functions and around not in file.classes:
                return [(file, qualified)]
            if qualified in file.classes:
                return self._constructor((file, qualified))
        return []

    def _at(self, path: str, full: str) -> list[Found]:
        """The functions with the fully dotted name ``full``, in the modules that are nearest to ``path``."""
        head, _, name = full.rpartition(".")
        found = named(full, self._by_name, self._by_end)
        for owner in nearest(path, full, named(full, self._classes, self._classes_by_end)):
            found += self._constructor(owner)
        if not found and head:
            owners = named(head, self._classes, self._classes_by_end)
            for owner in nearest(path, head, owners):
                found += self.method(owner, name)
            if not owners:
                # An object of a module, too, is called: what runs then is a method of its class.
                found = self._of_instance(path, head, name) or self._of_instance(path, full, "__call__")
            return found
        return nearest(path, full, found)

    def _of_instance(self, path: str, head: str, name: str) -> list[Found]:
        """The method ``name`` of the object that a module binds to ``head``."""
        module, _, variable = head.rpartition(".")
        found: list[Found] = []
        for candidate in self.exports.modules.get(module, ()):
            file = self._by_module[candidate]
            for made in file.instances.get(variable, ()):
                if made.rpartition(".")[2] in self._classes and (file.path, made, name) not in self._asked:
                    self._asked.add((file.path, made, name))
                    found += self._exact(file.path, "", f"{made}.{name}")
                    self._asked.discard((file.path, made, name))
        return found

    def _classes_at(self, path: str, full: str) -> list[Found]:
        owners = named(full, self._classes, self._classes_by_end)
        return nearest(path, full, owners) if "." in full else []

    def _constructor(self, owner: Found) -> list[Found]:
        return self.method(owner, "__init__")

    def _method(self, owner: Found, name: str, seen: set[tuple[str, str]]) -> list[Found]:
        """The method ``name`` of a class, its own or that of the nearest base."""
        file, qualified = owner
        if (file.path, qualified) in seen:
            return []
        seen.add((file.path, qualified))
        if f"{qualified}.{name}" in file.functions:
            return [(file, f"{qualified}.{name}")]
        return [one for entry in self._above(file, qualified) for one in self._method(entry, name, seen)]

    def _above(self, file: FileFacts, qualified: str) -> list[Found]:
        """The classes that the bases of a class may be."""
        key = (file.path, qualified)
        if key not in self._bases:
            self._bases[key] = found = []
            for base in file.classes.get(qualified, ()):
                full = expand(base, file.aliases)
                known = self.exports.resolve(full if full != base else f"{file.module}.{base}")
                # A bare name may come in a way that is not followed; what stands behind a dot is of a known owner.
                end = end_of(known) if "." in base else base
                called = (self._classes_by_end if "." in base else self._classes).get(end, [])
                found += [entry for entry in called if is_at(entry, known)] or called
        return self._bases[key]


def _parameters(found: list[tuple[FileFacts, str, Sure]], part: str) -> list[tuple[Place, Sure]]:
    return [
        (one, sure)
        for file, qualified, sure in found
        for one in parameters_of(file, qualified, part)
        # A method that has nothing but the name of what is called, and takes a text, is another one.
        if sure is not None or one.name not in file.plain.get(qualified, ())
    ]


def parameters_of(file: FileFacts, qualified: str, part: str, bound: int = 0) -> list[Place]:
    """The parameters of a function that the argument ``part`` may be, behind ``bound`` that a partial has given it."""
    names = file.functions[qualified]
    if names[:1] in (("self",), ("cls",)):
        names = names[1:]
    found: tuple[str, ...]
    if part.isdigit():
        position = int(part) + bound
        found = (names[position],) if position < len(names) else ("*",)
    elif part in ("*", "**"):
        # Which element of what a call unpacks goes to which parameter is not known, but for what the names say.
        found = (part,) if part == "**" else ("*", *(name for name in names if NO_MODEL.search(name) is None))
    else:
        found = (part,) if part in names else ("**",)
    return [Place("param", file.path, qualified, name) for name in found]


def _results(found: list[tuple[FileFacts, str, Sure]], part: str) -> list[tuple[Place, Sure]]:
    return [(Place("ret", file.path, qualified, part=part), sure) for file, qualified, sure in found]
