"""One file without FSDP1's branches: what conditions leave of its statements and expressions."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import cast

import libcst as cst
from libcst.metadata import MetadataWrapper, PositionProvider

from fsdp_rules.fsdp1.names import FSDP
from fsdp_rules.project.walking import walk
from fsdp_rules.retire.choices import Choices, Parsed
from fsdp_rules.retire.truths import Atom, Conditions, Truths, value_of

Statement = cst.SimpleStatementLine | cst.BaseCompoundStatement
#: What takes the place of an assertion that FSDP1's class alone satisfies.
NO_FSDP1 = 'raise AssertionError("FSDP1 is not supported")'
_LEAVING = (cst.Return, cst.Raise, cst.Continue, cst.Break)


@dataclass
class Pruned:
    """The result: ``module`` is the new tree, ``places`` the lines of what was removed or decided, ``lacking`` those of
    choices that leave FSDP2 nothing but an error."""

    module: cst.Module
    places: list[int] = field(default_factory=list)
    lacking: list[int] = field(default_factory=list)


def decides(file: Parsed, truths: Truths, choices: Choices) -> bool:
    """Whether a condition, an annotation or a table of ``file`` may change; without libcst, which takes longer."""
    conditions = Conditions(file.path, file.aliases, truths)
    for node in walk(file.tree):
        match node:
            case ast.If(test=test) | ast.IfExp(test=test) | ast.Assert(test=test):
                parts = [one for one in walk(test) if isinstance(one, ast.expr)]
                if any(conditions.truth(one) is not None for one in parts):
                    return True
            case ast.Compare(left=left, comparators=[ast.Tuple() | ast.List() | ast.Set() as listed]):
                values = listed.elts
                if 0 < len(conditions.kept_values(left, values)) < len(values):
                    return True
            case ast.Call(args=[ast.Constant(value=str()), ast.List() | ast.Tuple(), *_]) if "parametrize" in file.text:
                return True
            case ast.Dict() if choices.entries(node, file.aliases):
                return True
            case ast.Name() | ast.Attribute() if file.aliases.known(node) == FSDP:
                return True
    return False


def pruned(file: Parsed, truths: Truths, choices: Choices) -> Pruned:
    """``file`` without the branches of FSDP1."""
    wrapper = MetadataWrapper(cst.parse_module(file.text), unsafe_skip_copy=True)
    pruner = _Pruner(file, truths, choices)
    module = wrapper.visit(pruner)
    return Pruned(module, sorted(set(pruner.places)), pruner.lacking)


class _Pruner(cst.CSTTransformer):
    METADATA_DEPENDENCIES = (PositionProvider,)

    def __init__(self, file: Parsed, truths: Truths, choices: Choices) -> None:
        super().__init__()
        self._aliases = file.aliases
        self._choices = choices
        self._truths = truths
        self._conditions = Conditions(file.path, file.aliases, truths)
        self._path = file.path
        self._plain = cst.Module([])
        self.places: list[int] = []
        self.lacking: list[int] = []

    def leave_Module(self, original_node: cst.Module, updated_node: cst.Module) -> cst.Module:
        body = self._block(original_node.body, updated_node.body)
        return updated_node if body is None else updated_node.with_changes(body=body)

    def leave_IndentedBlock(
        self, original_node: cst.IndentedBlock, updated_node: cst.IndentedBlock
    ) -> cst.IndentedBlock:
        body = self._block(original_node.body, updated_node.body)
        if body is None:
            return updated_node
        return updated_node.with_changes(body=body or [cst.SimpleStatementLine([cst.Pass()])])

    def leave_IfExp(self, original_node: cst.IfExp, updated_node: cst.IfExp) -> cst.BaseExpression:
        held = self._truth(updated_node.test)
        if held is None:
            return updated_node
        self._at(original_node)
        chosen = updated_node.body if held else updated_node.orelse
        return chosen.with_changes(lpar=[*updated_node.lpar, *chosen.lpar], rpar=[*chosen.rpar, *updated_node.rpar])

    def leave_Call(self, original_node: cst.Call, updated_node: cst.Call) -> cst.Call:
        """The classes of an ``isinstance`` without FSDP1's, and the cases of a test without FSDP1's."""
        found = self._read(updated_node)
        match found:
            case ast.Call(func=ast.Name(id="isinstance" | "issubclass"), args=[_, ast.Tuple(elts=elts) as kinds]):
                kept = self._conditions.kept_kinds(kinds)
                return self._without(original_node, updated_node, 1, kept, len(elts))
            case ast.Call(func=ast.Name(id="isinstance" | "issubclass"), args=[_, ast.BinOp() as kinds]):
                return self._either(original_node, updated_node, self._conditions.kept_kinds(kinds))
            case ast.Call(func=ast.Attribute(attr="parametrize"), args=[ast.Constant(value=str(name)), values, *_]):
                if not isinstance(values, ast.List | ast.Tuple):
                    return updated_node
                held = [value_of(one, self._aliases) for one in values.elts]
                kept = [
                    place
                    for place, one in enumerate(held)
                    if one is None or self._truths.holds(Atom(name, one), self._path) is not False
                ]
                return self._without(original_node, updated_node, 1, kept, len(held))
        return updated_node

    def leave_Comparison(self, original_node: cst.Comparison, updated_node: cst.Comparison) -> cst.Comparison:
        found = self._read(updated_node)
        match found:
            case ast.Compare(left=left, ops=[ast.In() | ast.NotIn()], comparators=[values]):
                target = updated_node.comparisons[0]
                listed = target.comparator
                if isinstance(values, ast.Tuple | ast.List | ast.Set) and isinstance(
                    listed, cst.Tuple | cst.List | cst.Set
                ):
                    kept = self._conditions.kept_values(left, values.elts)
                    if 0 < len(kept) < len(values.elts):
                        self._at(original_node)
                        shorter = target.with_changes(comparator=_only(listed, kept))
                        return updated_node.with_changes(comparisons=[shorter])
        return updated_node

    def leave_Dict(self, original_node: cst.Dict, updated_node: cst.Dict) -> cst.Dict:
        found = self._read(original_node)
        gone = (
            {place for place, _ in self._choices.entries(found, self._aliases)} if isinstance(found, ast.Dict) else ()
        )
        if not gone:
            return updated_node
        self._at(original_node)
        kept = [one for place, one in enumerate(updated_node.elements) if place not in gone]
        return updated_node.with_changes(elements=_closed(kept, updated_node.elements))

    def leave_Annotation(self, original_node: cst.Annotation, updated_node: cst.Annotation) -> cst.Annotation:
        found = self._read(updated_node.annotation)
        if found is None or self._aliases.known(found) != FSDP:
            return updated_node
        self._at(original_node)
        return updated_node.with_changes(annotation=cst.Name("FSDPModule"))

    def _block(self, original: Sequence[cst.CSTNode], updated: Sequence[cst.CSTNode]) -> list[cst.BaseStatement] | None:
        """The statements of a block, None where all stay."""
        body: list[cst.BaseStatement] = []
        changed = False
        for before, now in zip(original, updated, strict=True):
            if isinstance(now, cst.If):
                found = self._chain(cast("cst.If", before), now)
            elif (found := self._asserted(now)) is not None:
                self._at(before)
            if found is None:
                body.append(cast("cst.BaseStatement", now))
                continue
            changed = True
            body += found
            if found and _leaves(found[-1]):
                # What follows was FSDP1's, or never ran.
                break
        return body if changed else None

    def _chain(self, before: cst.If, now: cst.If) -> list[Statement] | None:
        """What is left of an ``if`` with all its branches; None where all of them are."""
        arms: list[cst.If] = []
        last: cst.If | cst.Else | None = now
        changed = False
        while isinstance(last, cst.If):
            held, test = self._truth(last.test), self._simplified(last.test)
            if held is True:
                last, changed = cst.Else(last.body, leading_lines=last.leading_lines), True
                break
            if held is False:
                changed = True
            else:
                changed |= test is not last.test
                arms.append(last.with_changes(test=test))
            last = last.orelse
        if not changed:
            return None
        if not arms and last is not None and _raises(last) and not _raises(now):
            self.lacking.append(self.get_metadata(PositionProvider, before).start.line)
            return None
        self._at(before)
        if not arms:
            return [] if last is None else _inlined(last, now.leading_lines)
        rest: cst.If | cst.Else | None = last
        for arm in reversed(arms):
            rest = arm.with_changes(orelse=rest)
        first = cast("cst.If", rest)
        return [first.with_changes(leading_lines=now.leading_lines)]

    def _asserted(self, node: cst.CSTNode) -> list[Statement] | None:
        """What takes the place of an assertion that is never true."""
        if not isinstance(node, cst.SimpleStatementLine) or not isinstance(node.body[0], cst.Assert):
            return None
        found = self._read(node.body[0].test)
        if len(node.body) > 1 or not isinstance(found, ast.Call) or self._conditions.truth(found) is not False:
            return None
        raised = cst.ensure_type(cst.parse_statement(NO_FSDP1), cst.SimpleStatementLine)
        return [raised.with_changes(leading_lines=node.leading_lines)]

    def _simplified(self, test: cst.BaseExpression) -> cst.BaseExpression:
        """``test`` without the sides of ``and`` and ``or`` that decide nothing any more."""
        if not isinstance(test, cst.BooleanOperation):
            return test
        neutral = isinstance(test.operator, cst.And)
        left, right = self._simplified(test.left), self._simplified(test.right)
        if self._truth(left) is neutral:
            return right
        if self._truth(right) is neutral:
            return left
        if left is test.left and right is test.right:
            return test
        return test.with_changes(left=left, right=right)

    def _truth(self, node: cst.BaseExpression) -> bool | None:
        found = self._read(node)
        return None if found is None else self._conditions.truth(found)

    def _read(self, node: cst.BaseExpression) -> ast.expr | None:
        try:
            return ast.parse(f"({self._plain.code_for_node(node)}\n)", mode="eval").body
        except SyntaxError:
            # A starred or a named expression, which no condition is.
            return None

    def _without(self, original: cst.Call, call: cst.Call, place: int, kept: Sequence[int], number: int) -> cst.Call:
        """``call`` with only those entries of the argument at ``place`` that are kept."""
        values = call.args[place].value
        if not 0 < len(kept) < number or not isinstance(values, cst.Tuple | cst.List):
            return call
        self._at(original)
        alone = isinstance(values, cst.Tuple) and len(kept) == 1 and call.func.deep_equals(cst.Name("isinstance"))
        value = values.elements[kept[0]].value if alone else _only(values, kept)
        args = [*call.args]
        args[place] = args[place].with_changes(value=value)
        return call.with_changes(args=args)

    def _either(self, original: cst.Call, call: cst.Call, kept: Sequence[int]) -> cst.Call:
        kinds = call.args[1].value
        if len(kept) != 1 or not isinstance(kinds, cst.BinaryOperation) or isinstance(kinds.left, cst.BinaryOperation):
            return call
        self._at(original)
        value = (kinds.left, kinds.right)[kept[0]]
        return call.with_changes(args=[call.args[0], call.args[1].with_changes(value=value)])

    def _at(self, node: cst.CSTNode) -> None:
        self.places.append(self.get_metadata(PositionProvider, node).start.line)


def _only(values: cst.Tuple | cst.List | cst.Set, kept: Sequence[int]) -> cst.BaseExpression:
    elements = _closed([values.elements[place] for place in kept], values.elements)
    if isinstance(values, cst.Tuple) and len(elements) == 1:
        elements = [elements[0].with_changes(comma=cst.Comma())]
    return values.with_changes(elements=elements)


def _closed(kept: Sequence[cst.CSTNode], before: Sequence[cst.CSTNode]) -> list[cst.CSTNode]:
    """``kept`` with the comma, or without it, that ended the list ``before``."""
    if not kept:
        return []
    last = before[-1]
    return [*kept[:-1], kept[-1].with_changes(comma=getattr(last, "comma", cst.MaybeSentinel.DEFAULT))]


def _inlined(arm: cst.If | cst.Else, leading: Sequence[cst.EmptyLine]) -> list[Statement]:
    """The statements of a branch in place of the whole ``if``."""
    block = arm.body
    if isinstance(block, cst.SimpleStatementSuite):
        return [cst.SimpleStatementLine(block.body, leading_lines=leading)]
    body = [*cast("Sequence[Statement]", block.body)]
    if len(body) == 1 and isinstance(body[0], cst.SimpleStatementLine) and isinstance(body[0].body[0], cst.Pass):
        return []
    comments = [line for line in arm.leading_lines if line.comment is not None] if isinstance(arm, cst.Else) else []
    comments = [one for one in comments if one not in leading]
    first = body[0]
    body[0] = first.with_changes(leading_lines=[*leading, *comments, *first.leading_lines])
    return body


def _raises(arm: cst.If | cst.Else) -> bool:
    last = arm.body.body[-1]
    return isinstance(last.body[-1] if isinstance(last, cst.SimpleStatementLine) else last, cst.Raise)


def _leaves(statement: cst.CSTNode) -> bool:
    return isinstance(statement, cst.SimpleStatementLine) and isinstance(statement.body[-1], _LEAVING)
