"""Where every node of a parsed module stands: in the tree, in the text, and in the order of the text."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache, cached_property
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple, TypeVar, cast

import libcst as cst
from libcst._nodes.internal import CodegenState

if TYPE_CHECKING:
    from types import TracebackType

Node = TypeVar("Node", bound=cst.CSTNode)
#: Gives the source text of a node as it will be written, edits inside it included.
Code = Callable[[cst.CSTNode], str]
SCOPES = (cst.FunctionDef, cst.ClassDef)
_NEWLINE = re.compile(r"\r\n?|\n")
_NOWHERE = nullcontext()


class Span(NamedTuple):
    """Where something stands: lines count from 1, columns from 0 in characters, as in :mod:`ast` and libcst."""

    line: int
    column: int
    end_line: int
    end_column: int


class Layout(CodegenState):
    """What printing a module once tells about its nodes.

    Printing has to be done anyway, to see that the text comes back as it was parsed; libcst's visitors and metadata
    providers would take a slower walk each, for parents, for types and for positions. Nodes are known by their ``id``
    in here, since libcst computes their hash in Python; the module keeps them alive.
    """

    def __init__(self, module: cst.Module) -> None:
        super().__init__(module.default_indent, module.default_newline)
        self.module = module
        self._parents: dict[int, cst.CSTNode | None] = {}
        self._by_type: dict[type[cst.CSTNode], list[cst.CSTNode]] = defaultdict(list)
        #: Each node's number in the order of the text, and that of the first node behind it that is not inside it.
        self._numbers: dict[int, int] = {}
        self._ends: dict[int, int] = {}
        #: The tokens that make up a node: all of them, and (where it differs) without what only surrounds it.
        self._printed: dict[int, tuple[int, int]] = {}
        self._places: dict[int, tuple[int, int]] = {}
        self._scopes: dict[int, str] = {}
        self._around: list[cst.CSTNode | None] = [None]
        self._starts: list[int] = []
        self._has_last_newline = True
        #: Nodes of no module are kept alive, since others may get their ``id``.
        self._adopted: list[cst.CSTNode] = []
        module._codegen(self)

    # What printing calls

    def before_codegen(self, node: cst.CSTNode) -> None:
        key = id(node)
        self._parents[key] = self._around[-1]
        self._around.append(node)
        self._numbers[key] = len(self._numbers)
        self._by_type[type(node)].append(node)
        self._starts.append(len(self.tokens))

    def after_codegen(self, node: cst.CSTNode) -> None:
        key = id(node)
        self._around.pop()
        self._ends[key] = len(self._numbers)
        self._printed[key] = (self._starts.pop(), len(self.tokens))

    def record_syntactic_position(  # type: ignore[override]
        self, node: cst.CSTNode, *, start_node: cst.CSTNode | None = None, end_node: cst.CSTNode | None = None
    ) -> AbstractContextManager[None]:
        return _Place(self, node, start_node, end_node)

    def note_place(self, node: cst.CSTNode, start: int, end: int) -> None:
        """``node`` without what only surrounds it goes from one token to another."""
        self._places[id(node)] = (start, end)

    def place(self, node: cst.CSTNode) -> tuple[int, int]:
        """The tokens of ``node`` without the whitespace and parentheses around it."""
        return self._places.get(id(node)) or self._printed[id(node)]

    def pop_trailing_newline(self) -> None:
        # Positions are told as if it were there.
        self._has_last_newline = not self.tokens

    def adopt(self, node: cst.CSTNode, like: cst.CSTNode) -> None:
        """``node``, which is made of nodes of the module, stands where ``like``, one of them, does."""
        self._adopted.append(node)
        self._places[id(node)] = self.place(like)
        self._parents[id(node)] = self._parents[id(like)]
        self._numbers[id(node)], self._ends[id(node)] = self._numbers[id(like)], self._ends[id(like)]

    # What is asked afterwards

    @property
    def code(self) -> str:
        """The whole module as it prints."""
        return "".join(self.tokens if self._has_last_newline else self.tokens[:-1])

    def has(self, node: cst.CSTNode) -> bool:
        """Whether ``node`` is one of the module's."""
        return id(node) in self._numbers

    def nodes(self, kind: type[Node]) -> list[Node]:
        """All nodes of exactly the type ``kind``, in the order of the text."""
        return cast("list[Node]", self._by_type.get(kind, []))

    def inside(self, node: cst.CSTNode, kind: type[Node]) -> list[Node]:
        """The nodes of exactly the type ``kind`` in ``node``, itself included, in the order of the text."""
        found, numbers = self.nodes(kind), self._numbers_by_type(kind)
        key = id(node)
        return found[bisect_left(numbers, self._numbers[key]) : bisect_left(numbers, self._ends[key])]

    def _numbers_by_type(self, kind: type[cst.CSTNode]) -> list[int]:
        if kind not in self._sorted_numbers:
            self._sorted_numbers[kind] = [self._numbers[id(node)] for node in self.nodes(kind)]
        return self._sorted_numbers[kind]

    @cached_property
    def _sorted_numbers(self) -> dict[type[cst.CSTNode], list[int]]:
        return {}

    def parent(self, node: cst.CSTNode) -> cst.CSTNode | None:
        """The node that ``node`` stands in, None for the module and for nodes of other modules."""
        return self._parents.get(id(node))

    def ancestors(self, node: cst.CSTNode) -> Iterator[cst.CSTNode]:
        """All nodes around ``node``, innermost first."""
        parents = self._parents
        current = parents.get(id(node))
        while current is not None:
            yield current
            current = parents.get(id(current))

    def statement(self, node: cst.CSTNode) -> cst.CSTNode:
        """The small or compound statement that ``node`` belongs to, ``node`` itself included."""
        current: cst.CSTNode | None = node
        while current is not None:
            if _is_statement(type(current)):
                return current
            current = self._parents.get(id(current))
        return self.module

    def block(self, statement: cst.CSTNode) -> list[cst.CSTNode]:
        """The small and compound statements of the block that ``statement`` stands in, in order."""
        return self._block(statement)[0]

    def number(self, statement: cst.CSTNode) -> int | None:
        """The how manieth of its block ``statement`` is, from 0; None where it is in no block."""
        return self._block(statement)[1].get(id(statement))

    def _block(self, statement: cst.CSTNode) -> tuple[list[cst.CSTNode], dict[int, int]]:
        owner = self.parent(statement)
        if isinstance(owner, cst.SimpleStatementLine):
            owner = self.parent(owner)
        known = self._blocks.get(id(owner))
        if known is None:
            body = getattr(owner, "body", ())
            found = statements_of(body if isinstance(body, list | tuple) else ())
            known = self._blocks[id(owner)] = (found, {id(entry): number for number, entry in enumerate(found)})
        return known

    @cached_property
    def _blocks(self) -> dict[int, tuple[list[cst.CSTNode], dict[int, int]]]:
        return {}

    def function(self, node: cst.CSTNode) -> cst.FunctionDef | None:
        """The innermost function around ``node``."""
        owner = self._parents.get(id(node))
        while owner is not None and type(owner) is not cst.FunctionDef:
            owner = self._parents.get(id(owner))
        return owner

    def scope(self, node: cst.CSTNode) -> str:
        """The qualified name of the functions and classes around ``node``, "" at module level."""
        owner = self._parents.get(id(node))
        while owner is not None and type(owner) not in SCOPES:
            owner = self._parents.get(id(owner))
        if owner is None:
            return ""
        known = self._scopes.get(id(owner))
        if known is None:
            name = cst.ensure_type(getattr(owner, "name", None), cst.Name).value
            known = self._scopes[id(owner)] = f"{self.scope(owner)}.{name}".lstrip(".")
        return known

    def span(self, node: cst.CSTNode) -> Span:
        """Where ``node`` stands: lines from 1, columns from 0."""
        start, end = self.place(node)
        return Span(*self._position(start), *self._position(end))

    def printed(self, node: cst.CSTNode, at_top: bool = False) -> str:
        """``node`` as it would print alone, with the whitespace and parentheses that are its own.

        ``at_top``: as a statement prints where nothing is indented.
        """
        place = self._printed.get(id(node))
        if at_top:
            # What an edit has moved up from a block was printed with that block's margin.
            place = place if self._parents.get(id(node)) is self.module else None
            return text_of(node, self.module) if place is None else "".join(self.tokens[slice(*place)])
        text = "".join(self.tokens[slice(*place)]) if place is not None else ""
        # Alone it would stand at the margin, so the lines below its first would be indented less.
        return text if text and _NEWLINE.search(text) is None else text_of(node, self.module)

    def _position(self, token: int) -> tuple[int, int]:
        offset = self._offsets[token]
        line = bisect_right(self._line_starts, offset)
        return line, offset - self._line_starts[line - 1]

    @cached_property
    def _offsets(self) -> list[int]:
        return list(accumulate(map(len, self.tokens), initial=0))

    @cached_property
    def _line_starts(self) -> list[int]:
        return [0, *(found.end() for found in _NEWLINE.finditer("".join(self.tokens)))]


@cache
def _is_statement(kind: type[cst.CSTNode]) -> bool:
    # libcst's bases are abstract ones, which Python asks slowly.
    return issubclass(kind, cst.BaseSmallStatement | cst.BaseCompoundStatement)


def dotted(node: cst.CSTNode) -> str | None:
    """``a.b.c`` for a name or a chain of attributes, else None."""
    # Of the exact type: whether a node is of a libcst class that it is not of, Python asks slowly.
    if type(node) is cst.Name:
        return node.value
    parts: list[str] = []
    while type(node) is cst.Attribute:
        parts.append(node.attr.value)
        node = node.value
    return ".".join([node.value, *reversed(parts)]) if type(node) is cst.Name else None


def statements_of(lines: Sequence[cst.CSTNode]) -> list[cst.CSTNode]:
    """The small and compound statements of a block with these ``lines``, in order."""
    return [one for line in lines for one in (line.body if isinstance(line, cst.SimpleStatementLine) else [line])]


def leaves(body: cst.BaseSuite) -> bool:
    """Whether nothing that stands below ``body`` runs after it."""
    last = statements_of(body.body)[-1:]
    return bool(last) and isinstance(last[0], cst.Return | cst.Raise | cst.Continue | cst.Break)


def text_of(node: cst.CSTNode, module: cst.Module) -> str:
    """What ``module.code_for_node`` gives, in two thirds of the time: nobody asks for the places of what is printed."""
    state = Printing(module.default_indent, module.default_newline)
    node._codegen(state)
    return "".join(state.tokens)


class Printing(CodegenState):
    """Prints nodes, without their places."""

    def record_syntactic_position(  # type: ignore[override]
        self, node: cst.CSTNode, *, start_node: cst.CSTNode | None = None, end_node: cst.CSTNode | None = None
    ) -> AbstractContextManager[None]:
        return _NOWHERE


class _Place:
    """Notes which tokens are printed while it is entered."""

    def __init__(
        self, layout: Layout, node: cst.CSTNode, start_node: cst.CSTNode | None, end_node: cst.CSTNode | None
    ) -> None:
        self.layout = layout
        self.node = node
        self.start_node = start_node
        self.end_node = end_node

    def __enter__(self) -> None:
        self.start = len(self.layout.tokens)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        layout = self.layout
        start = self.start if self.start_node is None else layout.place(self.start_node)[0]
        end = len(layout.tokens) if self.end_node is None else layout.place(self.end_node)[1]
        layout.note_place(self.node, start, end)
