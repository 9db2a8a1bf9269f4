"""The statements that set FSDP2's flags where FSDP1 has its ``no_sync``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import libcst as cst

from fsdp_rules.file.file import File
from fsdp_rules.file.tree import Code
from fsdp_rules.loop._stored_sync import FLAGS, Pushed, synchronised
from fsdp_rules.loop._sync_blocks import SYNC_FLAG
from fsdp_rules.verdict.diagnosis import Build, Edit, ReplaceStatement

Statements = list[cst.SimpleStatementLine | cst.BaseCompoundStatement]
RESHARD_FLAG = "set_reshard_after_backward"


@dataclass(frozen=True)
class Flags:
    """The flags of the model ``receiver``. ``stays_gathered``: FSDP1 keeps it gathered where nothing is reduced."""

    receiver: cst.BaseExpression
    stays_gathered: bool
    file: File

    def around(self, position: int, value: Build) -> Callable[[cst.BaseCompoundStatement, Code], Statements]:
        """What becomes of a block without its item at ``position``: the flags get ``value``, and then True again."""

        def build(statement: cst.BaseCompoundStatement, code: Code) -> Statements:
            block = cst.ensure_type(statement, cst.With)
            items = [entry for place, entry in enumerate(block.items) if place != position]
            body: cst.BaseSuite = _indented(block.body)
            if items:
                items[-1] = items[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)
                body = cst.IndentedBlock([block.with_changes(items=items)])
            final = cst.Finally(cst.IndentedBlock(self._parsed(self._set("True", code))))
            before = self._parsed(self._set_to(statement, value(code), code))
            return [*before, cst.Try(body=body, finalbody=final)]

        return build

    def pushed(self, push: Pushed) -> Edit:
        """The flags are set, and callbacks of an exit stack restore them."""

        def build(code: Code) -> str:
            callbacks = [f"{push.stack}.callback({flag}, True)" for flag in self._setters(code)]
            lines = self._set_to(push.statement, synchronised(push.choice, code), code)
            return "\n".join([*lines, *callbacks])

        return ReplaceStatement(push.statement, build)

    def _setters(self, code: Code) -> list[str]:
        names = [SYNC_FLAG, *([RESHARD_FLAG] if self.stays_gathered else [])]
        return [f"{code(self.receiver)}.{name}" for name in names]

    def _set(self, value: str, code: Code) -> list[str]:
        return [f"{setter}({value})" for setter in self._setters(code)]

    def _set_to(self, place: cst.CSTNode, value: str, code: Code) -> list[str]:
        """Set the flags to ``value``, which is evaluated once."""
        if not self.stays_gathered or value.isidentifier():
            return self._set(value, code)
        name = self.file.fresh(place, *FLAGS)
        return [f"{name} = {value}", *self._set(name, code)]

    def _parsed(self, lines: list[str]) -> list[cst.SimpleStatementLine]:
        parsing = self.file.module.config_for_parsing
        return [cst.ensure_type(cst.parse_statement(line, config=parsing), cst.SimpleStatementLine) for line in lines]


def _indented(body: cst.BaseSuite) -> cst.BaseSuite:
    if isinstance(body, cst.SimpleStatementSuite):
        line = cst.SimpleStatementLine(body.body, trailing_whitespace=body.trailing_whitespace)
        return cst.IndentedBlock([line])
    return body
