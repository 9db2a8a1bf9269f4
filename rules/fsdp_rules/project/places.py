"""Where a value may be: the ends of the flows that the index of a tree is made of."""

from __future__ import annotations

from typing import NamedTuple

#: Attributes of a wrapped model that give the model inside, which under FSDP2 is the same object.
INNER = (".module", "._fsdp_wrapped_module")
#: The name of an attribute that only a running program knows: it may be any that nothing else assigns.
ANY = "*"


class Place(NamedTuple):
    """One place. What the fields mean depends on ``kind``:

    - ``var``: the name or dotted name ``name`` in the function ``scope`` of the file ``path``; ``early``: the same name
      above the line that wraps it; ``item``: what it holds under the constant key ``part``;
    - ``attr``: the attribute ``name`` of any object, as the file ``path`` assigns it, or without one as any file reads
      it; ``set``: the same, assigned from outside of its object's class;
    - ``ret``: what the function ``scope`` returns, or (``part``) one element of the tuple that it returns;
    - ``param``: the parameter ``name`` of the function ``scope``;
    - ``call``: what a call of ``name`` in ``scope`` gives, or (``part``) one element of it; ``made``: what the result
      of that call gives when it is called in turn; ``arg``: what the call is given as its argument ``part``, a
      position, a keyword, ``*`` or ``**``. :mod:`fsdp_rules.project.flow` joins these three to functions of the tree;
    - ``put``: the container ``name`` in ``scope``, or the element ``part`` of it, which may be one of a scope around;
    - ``other``: a model in another wrapper;
    - ``seed``: an ``FSDP(...)`` call; ``kept``: one that stays, of a subclass of FSDP1's class or under a comment;
      ``unknown``: where comes from what no file of the tree gives.
    """

    kind: str
    path: str = ""
    scope: str = ""
    name: str = ""
    part: str = ""


SEED = Place("seed")
#: Whether a step is sure; None where nothing but the name of a method, of some object, says that it is taken.
Sure = bool | None


def joint(first: Sure, second: Sure) -> Sure:
    """How sure two steps are together."""
    return None if first is None or second is None else first and second


class Flow(NamedTuple):
    """The value at ``source`` reaches ``target``; ``sure`` when no guess was made."""

    source: Place
    target: Place
    sure: bool


#: How many attributes of attributes an object is followed with.
DEPTH = 3


def field_of(place: Place, name: str) -> Place | None:
    """The attribute ``name`` (or ``a.b``) of what is at ``place``; None where objects are not followed so deep.

    In between, ``x.model`` that is passed as the argument ``x`` is a place of the kind ``arg.model``.
    """
    own = place.name if place.kind == "var" else place.kind
    if own.count(".") + name.count(".") >= DEPTH:
        return None
    if place.kind == "var":
        return place._replace(name=f"{own}.{name}")
    if place.kind.partition(".")[0] not in ("arg", "param", "ret", "call"):
        return None
    return place._replace(kind=f"{own}.{name}")


def module_name(path: str) -> str:
    """The dotted name under which the file at ``path`` would be imported from the directory the path starts in."""
    # Asked of every file of a tree; pathlib takes ten times as long.
    *directories, name = path.split("/")
    dot = name.rfind(".")
    stem = name[:dot] if 0 < dot < len(name) - 1 else name
    parts = [part for part in (*directories, stem) if part not in ("", ".", "..")]
    if parts and parts[-1] == "__init__":
        parts.pop()
    return ".".join(parts)


def scopes(scope: str) -> list[str]:
    """``scope`` and all scopes around it, innermost first, "" (the module) last."""
    found = [scope]
    while found[-1]:
        found.append(found[-1].rpartition(".")[0])
    return found
