"""The base class of the rules about configuration."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import ClassVar

from fsdp_rules.configuration.block import Block, Verdict


class ConfigRule:
    """One thing that changes between FSDP1 and FSDP2 in configuration: its docstring is its documentation.

    ``dialects`` are those whose blocks :meth:`visit` is shown. ``before`` and ``after`` are an example, whole files
    whose name is ``file``.
    """

    id: ClassVar[str]
    name: ClassVar[str]
    dialects: ClassVar[tuple[str, ...]]
    file: ClassVar[str] = "accelerate.yaml"
    before: ClassVar[str] = ""
    after: ClassVar[str] = ""

    @property
    def language(self) -> str:
        """What the example is written in, by the name of its file."""
        return {"yaml": "yaml", "json": "json", "sh": "bash", "py": "python"}[self.file.rpartition(".")[2]]

    @classmethod
    def doc(cls) -> str:
        """The documentation of the rule, as Markdown."""
        return inspect.getdoc(cls) or ""

    def visit(self, block: Block) -> Iterable[Verdict]:
        """Verdicts about the settings of one place."""
        raise TypeError(f"{type(self).__name__} does not declare what it reads in {block.dialect}")
