"""The settings of FSDP1's state_dict_type: the kind of state, and what its configurations say."""

from __future__ import annotations

import enum
from dataclasses import dataclass

import libcst as cst

from fsdp_rules.file.tree import Code


class Kind(enum.Enum):
    """FSDP1's three forms of a state, and what only the running program knows."""

    FULL = "FULL_STATE_DICT"
    SHARDED = "SHARDED_STATE_DICT"
    LOCAL = "LOCAL_STATE_DICT"
    EITHER = "FULL_STATE_DICT or SHARDED_STATE_DICT"
    UNKNOWN = ""

    @property
    def removed(self) -> str:
        """What a finding says where the setting of this kind is removed."""
        if self is Kind.SHARDED:
            return "removed, since FSDP2's states are sharded by default (SHARDED_STATE_DICT)"
        return f"each call now passes its own StateDictOptions ({self.value})"


@dataclass(frozen=True, eq=False)
class Expression:
    """A setting that the program computes: ``node`` with what stands behind and before it (an attribute, a ``not``)."""

    node: cst.BaseExpression
    behind: str = ""
    before: str = ""

    def text(self, code: Code) -> str:
        """The source text of the setting."""
        return self.before + code(self.node) + self.behind


@dataclass(frozen=True, eq=False)
class Both(Expression):
    """A setting that is true where ``other`` is as well."""

    other: Expression | None = None

    def text(self, code: Code) -> str:
        """The source text of the setting."""
        parts = [self.before + code(self.node) + self.behind, *([self.other.text(code)] if self.other else [])]
        return " and ".join(f"({part})" if " " in part and not part.endswith(")") else part for part in parts)


Setting = bool | Expression


#: Assignments that go if nothing reads them any more, with the name that each of them binds.
Consumed = tuple[tuple[cst.CSTNode, str], ...]


@dataclass(frozen=True, eq=False)
class Config:
    """What a ``FullStateDictConfig`` or one of its relatives says."""

    offload: Setting
    rank0_only: Setting = False
    given: bool = True


@dataclass(frozen=True, eq=False)
class Context:
    """The settings that govern a call. ``call`` sets them; None stands for the state that FSDP1 starts in.

    ``full`` says whether the state is a full one, ``note`` what has to be true for the settings to govern the call.
    """

    kind: Kind
    model_config: Config
    optim_config: Config
    call: cst.Call | None = None
    subject: cst.BaseExpression | None = None
    consumes: Consumed = ()
    note: str = ""
    full: Setting = True


DEFAULT = Context(Kind.FULL, Config(offload=False, given=False), Config(offload=True, given=False))
