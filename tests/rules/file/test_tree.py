"""That a layout says what libcst's own, slower ways say."""

from __future__ import annotations

import ast
from pathlib import Path

import libcst as cst
import pytest
from libcst.metadata import MetadataWrapper, PositionProvider

from fsdp_rules.file.printer import Printer
from fsdp_rules.file.searching import find
from fsdp_rules.file.tree import Layout
from fsdp_rules.project.gates import statements

PROJECTS = Path(__file__).parents[3] / "fixtures" / "projects"
ODD = '''#!/usr/bin/env python
# header

@decorated  # why
class A(B, metaclass=M):
    """Doc."""

    x: int = (1 +
        2)

    async def f(self, /, a, *b, c: "T" = 1, **d) -> None:
        if (a): pass; return
        else:
            # about the call
            with open(a) as f, (open(b)) as g:
                print(f"{a!r:>{b}}", a[1:2, ...], *b, **d)
        try:
            del a; yield
        except (ValueError, TypeError) as error:
            raise X from error
        finally:
            global y
        match a:
            case [1, *_] | {"k": v} if v:
                lambda q=1: q
    # footer
while (n := next()): continue
else: z = [i async for i in y if i]
'''
SOURCES = {
    "odd": ODD,
    "odd-crlf": ODD.replace("\n", "\r\n"),
    "odd-tabs": ODD.replace("    ", "\t"),
    "no-last-newline": "import a\nx = (1,\n  2)",
    "comment-last": "if a:\n    b\n    # end",
    "empty": "",
    "newline": "\n",
    **{file.relative_to(PROJECTS).as_posix(): file.read_text() for file in sorted(PROJECTS.rglob("*.py"))},
}


class Walk(cst.CSTVisitor):
    """The nodes in the order of libcst's visitors, with their parents."""

    def __init__(self) -> None:
        super().__init__()
        self.around: list[cst.CSTNode] = []
        self.parents: dict[cst.CSTNode, cst.CSTNode | None] = {}

    def on_visit(self, node: cst.CSTNode) -> bool:
        self.parents[node] = self.around[-1] if self.around else None
        self.around.append(node)
        return True

    def on_leave(self, original_node: cst.CSTNode) -> None:
        self.around.pop()


@pytest.mark.parametrize("name", SOURCES)
def test_a_layout_agrees_with_libcst(name: str) -> None:
    module = cst.parse_module(SOURCES[name])
    layout, walk = Layout(module), Walk()
    module.visit(walk)
    assert layout.code == module.code == SOURCES[name]
    # Whitespace that a tree holds and nothing prints is the one thing that a layout does not know.
    known = {node: parent for node, parent in walk.parents.items() if type(node) is not cst.SimpleWhitespace}
    assert {node: layout.parent(node) for node in known} == known
    for kind in {type(node) for node in known}:
        expected = [node for node in known if type(node) is kind]
        assert layout.nodes(kind) == expected
        assert layout.inside(module, kind) == expected
    for node, place in MetadataWrapper(module, unsafe_skip_copy=True).resolve(PositionProvider).items():
        span = layout.span(node)
        assert (span.line, span.column) == (place.start.line, place.start.column), node
        assert (span.end_line, span.end_column) == (place.end.line, place.end.column), node


@pytest.mark.parametrize("name", SOURCES)
def test_nodes_inside_a_node_and_its_text_are_those_of_libcst(name: str) -> None:
    module = cst.parse_module(SOURCES[name])
    layout = Layout(module)
    for kind in (cst.Call, cst.FunctionDef, cst.With, cst.If, cst.BinaryOperation, cst.Tuple, cst.Attribute):
        for node in layout.nodes(kind):
            assert layout.printed(node) == module.code_for_node(node)
            walk = Walk()
            node.visit(walk)
            names = [entry for entry in walk.parents if type(entry) is cst.Name]
            assert layout.inside(node, cst.Name) == find(node, cst.Name) == names


@pytest.mark.parametrize("name", SOURCES)
def test_an_edited_module_prints_as_libcst_prints_it(name: str) -> None:
    module = cst.parse_module(SOURCES[name])
    printer = Printer(Layout(module))
    assert printer.code(module) == module.code
    new = cst.parse_statement("added = 1")
    for edited in (
        module.with_changes(body=[new, *module.body]),
        module.with_changes(body=[*module.body, new]),
        module.with_changes(body=module.body[1:]),
        module.with_changes(body=[]),
    ):
        assert printer.code(edited) == edited.code
    assert printer.code(module) == module.code


@pytest.mark.parametrize("name", SOURCES)
def test_statements_come_in_the_order_of_a_whole_walk(name: str) -> None:
    tree = ast.parse(SOURCES[name])
    assert list(statements(tree)) == [node for node in ast.walk(tree) if isinstance(node, ast.stmt)]
