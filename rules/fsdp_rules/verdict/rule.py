"""The base class of all rules."""

from __future__ import annotations

import enum
import importlib
import inspect
import pkgutil
from collections.abc import Iterable, Iterator
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar

import libcst as cst

from fsdp_rules.verdict.diagnosis import Diagnosis
from fsdp_rules.verdict.what_to_test import LOSSES

if TYPE_CHECKING:
    from fsdp_rules.file.file import File


class Role(enum.Enum):
    """What the engine has something to say about itself, or asks of one rule: it finds that rule by its role."""

    WRAP = "calls that wrap a model"
    IMPORTS = "imports of FSDP1's names"
    UNKNOWN = "uses of FSDP1's names that no other rule covers"
    PRIVATE = "copies of FSDP1's own code"


class Rule:
    """One FSDP1 concept: its docstring is its documentation, its example is its first test.

    ``visits`` lists the node types that the engine shows to :meth:`visit`, which takes no others; one walk of the tree
    serves all rules.
    ``shim``: the rule is about something that fsdp_compat does not carry either, and speaks under ``--to shim`` too.
    ``role``: what the engine needs this one rule for. ``is_wrap``: the rule decides whether a wrap is rewritten.

    A rule is asked about every file that a wrapped model, a parameter or a gradient of one reaches. Three attributes
    say which other files it is asked about, from the cheapest search to the dearest. ``spelled`` are texts that are
    FSDP1's by themselves: a file that has one is read in any tree; ``alone`` are regular expressions for what the rule
    has to say about such a file, also where nothing else in the tree is FSDP1. ``markers`` are texts (a pair counts
    where both are there) for which a file is read once the tree has FSDP1, though no wrapped model is seen to reach it.
    ``open_world``: the rule also speaks of what nothing in the tree makes, as a loop whose caller is elsewhere, so that
    it is asked about every file with one of its markers.

    ``moves_together``: FSDP1's call does nothing, or fails, on FSDP2's models, and FSDP2's on FSDP1's; if one such
    call stays, all have to. ``what_to_test`` says in a sentence what shows that a change was right.
    """

    id: ClassVar[str]
    name: ClassVar[str]
    visits: ClassVar[tuple[type[cst.CSTNode], ...]] = ()
    shim: ClassVar[bool] = False
    role: ClassVar[Role | None] = None
    is_wrap: ClassVar[bool] = False
    spelled: ClassVar[tuple[str, ...]] = ()
    alone: ClassVar[tuple[str, ...]] = ()
    markers: ClassVar[tuple[str | tuple[str, str], ...]] = ()
    open_world: ClassVar[bool] = False
    moves_together: ClassVar[bool] = False
    what_to_test: ClassVar[str] = LOSSES
    before: ClassVar[str] = ""
    after: ClassVar[str] = ""

    @property
    def names_the_wrap(self) -> bool:
        """Whether the rule is about a model that is wrapped, in the loop or its state, so that it says where."""
        return self.id.startswith(("FSDP2", "FSDP3"))

    @classmethod
    def doc(cls) -> str:
        """The documentation of the rule, as Markdown."""
        return inspect.getdoc(cls) or ""

    def visit(self, node: Any, file: File) -> Iterable[Diagnosis]:
        """Verdicts about ``node``, which is of one of the types in ``visits``."""
        return ()


def classes_in(package: ModuleType) -> Iterator[type[Rule]]:
    """The classes of rules that the files of ``package`` define; the folders in it hold none."""
    for info in pkgutil.iter_modules(package.__path__, package.__name__ + "."):
        module = importlib.import_module(info.name)
        for value in vars(module).values():
            if isinstance(value, type) and issubclass(value, Rule) and value.__module__ == module.__name__:
                yield value
