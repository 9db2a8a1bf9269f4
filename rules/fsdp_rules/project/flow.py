"""Follows wrapped models through a whole project: assignments, returns, attributes and arguments."""

from __future__ import annotations

import enum
from collections import defaultdict, deque
from collections.abc import Iterator

from fsdp_rules.project.facts import SEED, FileFacts, module_name, place_key


class Certainty(enum.IntEnum):
    """How sure it is that an expression holds an FSDP1 model."""

    NO = 0
    MAYBE = 1
    YES = 2


def spread(files: list[FileFacts]) -> dict[str, Certainty]:
    """Follow wrapped models from their ``FSDP(...)`` calls along all flows until nothing changes."""
    by_name: dict[str, list[tuple[FileFacts, str]]] = defaultdict(list)
    for file in files:
        for qualified in file.functions:
            owner, _, name = qualified.rpartition(".")
            by_name[name].append((file, qualified))
            if name == "__init__":
                by_name[owner.rpartition(".")[2]].append((file, qualified))

    edges: dict[str, list[tuple[str, bool]]] = defaultdict(list)
    for file in files:
        for flow in file.flows:
            sources: list[tuple[str, bool]] = [(flow.source, flow.sure)]
            targets: list[tuple[str, bool]] = [(flow.target, flow.sure)]
            if flow.source.startswith("call:"):
                sources = [(place, sure and flow.sure) for place, sure in _returns(flow.source, by_name)]
            elif flow.source.startswith("made:"):
                path, scope, maker = flow.source[5:].split(":")
                makers = _functions(path, scope, maker, by_name)
                sources = [(SEED, sure and flow.sure) for file_, name, sure in makers if name in file_.makers]
            if flow.target.startswith("arg:"):
                targets = [(place, sure and flow.sure) for place, sure in _parameters(flow.target, by_name)]
            for source, source_sure in sources:
                for target, target_sure in targets:
                    edges[source].append((target, source_sure and target_sure))

    scopes: dict[tuple[str, str], list[str]] = defaultdict(list)
    for place in edges:
        if place.startswith("var:"):
            path, scope, text = place[4:].rsplit(":", 2)
            scopes[path, text].append(scope)

    held: dict[str, Certainty] = {}
    queue: deque[tuple[str, Certainty]] = deque([(SEED, Certainty.YES)])
    while queue:
        place, certainty = queue.popleft()
        if held.get(place, Certainty.NO) >= certainty:
            continue
        held[place] = certainty
        for target, sure in edges.get(place, ()):
            queue.append((target, certainty if sure else min(certainty, Certainty.MAYBE)))
        if place.startswith("attr:"):
            continue
        if place.startswith("var:"):
            path, scope, text = place[4:].rsplit(":", 2)
            for inner in scopes[path, text]:
                if inner.startswith(f"{scope}."):
                    queue.append((f"var:{path}:{inner}:{text}", min(certainty, Certainty.MAYBE)))
    return held


def _returns(place: str, by_name: dict[str, list[tuple[FileFacts, str]]]) -> Iterator[tuple[str, bool]]:
    path, scope, callee, *position = place[5:].split(":")
    suffix = f":{position[0]}" if position else ""
    for file, qualified, sure in _functions(path, scope, callee, by_name):
        yield f"ret:{place_key(file.path)}:{qualified}{suffix}", sure


def _parameters(place: str, by_name: dict[str, list[tuple[FileFacts, str]]]) -> Iterator[tuple[str, bool]]:
    path, scope, callee, argument = place[4:].split(":")
    for file, qualified, sure in _functions(path, scope, callee, by_name):
        names = file.functions[qualified]
        if names[:1] in (("self",), ("cls",)):
            names = names[1:]
        if argument.isdigit():
            if int(argument) < len(names):
                yield f"param:{place_key(file.path)}:{qualified}:{names[int(argument)]}", sure
        elif argument in names:
            yield f"param:{place_key(file.path)}:{qualified}:{argument}", sure


def _functions(
    path: str, scope: str, callee: str, by_name: dict[str, list[tuple[FileFacts, str]]]
) -> Iterator[tuple[FileFacts, str, bool]]:
    """The functions that ``callee`` may name: exactly, when its dotted path says so, else by its last name."""
    head, _, name = callee.rpartition(".")
    candidates = by_name.get(name, [])
    exact = [
        (file, qualified)
        for file, qualified in candidates
        if (not head and place_key(file.path) == path)
        or (head and (file.module == head or file.module.endswith("." + head)))
        or (head == "self" and place_key(file.path) == path)
    ]
    if exact:
        exact = _nearest(path, head, exact)
        for file, qualified in exact:
            yield file, qualified, len(exact) == 1
    elif head:
        for file, qualified in candidates:
            yield file, qualified, False


def _nearest(path: str, head: str, found: list[tuple[FileFacts, str]]) -> list[tuple[FileFacts, str]]:
    """Those of ``found``, in modules that an import of ``head`` may mean, whose import starts nearest above ``path``.

    A repository often holds several programs, each with a ``util`` of its own beside its main file.
    """
    folder = module_name(path).split(".")[:-1]
    starts: dict[str, int] = {}
    for file, _ in found:
        start = file.module.removesuffix(head).rstrip(".")
        parts = start.split(".") if start else []
        starts[file.path] = len(parts) if parts == folder[: len(parts)] else -1
    best = max(starts.values())
    return [(file, qualified) for file, qualified in found if starts[file.path] == best]
