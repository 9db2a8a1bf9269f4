"""The base class of all rules."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Iterable, Iterator
from types import ModuleType
from typing import TYPE_CHECKING, ClassVar

import libcst as cst

from fsdp_rules.verdict.diagnosis import Diagnosis

if TYPE_CHECKING:
    from fsdp_rules.file.file import File


class Rule:
    """One FSDP1 concept: its docstring is its documentation, its example is its first test.

    ``visits`` lists the node types that the engine shows to :meth:`visit`; one walk of the tree serves all rules.
    ``shim``: the rule is about something that fsdp_compat does not carry either, and speaks under ``--to shim`` too.
    """

    id: ClassVar[str]
    name: ClassVar[str]
    visits: ClassVar[tuple[type[cst.CSTNode], ...]] = ()
    shim: ClassVar[bool] = False
    before: ClassVar[str] = ""
    after: ClassVar[str] = ""

    @classmethod
    def doc(cls) -> str:
        """The documentation of the rule, as Markdown."""
        return inspect.getdoc(cls) or ""

    def visit(self, node: cst.CSTNode, file: File) -> Iterable[Diagnosis]:
        """Verdicts about ``node``, which is of one of the types in ``visits``."""
        return ()


def classes_in(package: ModuleType) -> Iterator[type[Rule]]:
    """The classes of rules that the files of ``package`` define; the folders in it hold none."""
    for info in pkgutil.iter_modules(package.__path__, package.__name__ + "."):
        module = importlib.import_module(info.name)
        for value in vars(module).values():
            if isinstance(value, type) and issubclass(value, Rule) and value.__module__ == module.__name__:
                yield value
