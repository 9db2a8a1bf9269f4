"""From the bytes of one configuration file to its result: read, recognise, ask every rule, edit once, read again."""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace

from fsdp_migrate.configs.dialects.accelerate import Accelerate
from fsdp_migrate.configs.dialects.axolotl import Axolotl
from fsdp_migrate.configs.dialects.composer import Composer
from fsdp_migrate.configs.dialects.dialect import Dialect, written_twice
from fsdp_migrate.configs.dialects.named import named, toml_strings
from fsdp_migrate.configs.dialects.others import Others
from fsdp_migrate.configs.dialects.shell import shell_blocks
from fsdp_migrate.configs.dialects.trainer import Trainer
from fsdp_migrate.configs.dialects.verl import Verl
from fsdp_migrate.configs.editing import json_nodes, yaml_nodes
from fsdp_migrate.configs.nodes import Node, Text, Unreadable, apply
from fsdp_migrate.tree.files import LARGEST_CONFIG, SHELL_SUFFIXES, TOML_SUFFIX
from fsdp_rules.configuration.block import Block, TextEdit, Verdict
from fsdp_rules.configuration.config_rule import ConfigRule
from fsdp_rules.configuration.config_unreadable import UNREADABLE, template_or_broken
from fsdp_rules.configuration.judge import judge
from fsdp_rules.fsdp1.strategy_names import NAMES
from fsdp_rules.project.own_keys import OwnKey
from fsdp_rules.settings import Settings
from fsdp_rules.verdict.finding import Finding
from fsdp_rules.verdict.result import Changed, Failed, Result, Skipped, Unchanged

DIALECTS: tuple[Dialect, ...] = (Accelerate(), Trainer(), Verl(), Axolotl(), Composer())
_IGNORE = re.compile(r"#\s*fsdp-migrate:\s*ignore\[([^\]]*)\]")


#: The keys that each file of Python reads for arguments that are gone, by its path.
_Keys = Mapping[str, tuple[OwnKey, ...]]


def migrate(data: bytes, path: str, settings: Settings, keys: _Keys | None = None) -> Result:
    """The result of migrating one file of settings. BOM, line ends and all bytes outside of changed keys are kept.

    ``keys`` are those that the project's Python reads for arguments which FSDP2 does not have.
    """
    if len(data) > LARGEST_CONFIG:
        return Skipped(f"larger than {LARGEST_CONFIG // 1_000_000} MB, too large for a configuration")
    bom = codecs.BOM_UTF8 if data.startswith(codecs.BOM_UTF8) else b""
    try:
        text = Text(data[len(bom) :].decode("utf-8"))
    except UnicodeDecodeError as error:
        return Failed(f"is not UTF-8 at byte {error.start}")
    try:
        blocks = list(_blocks(text, path, keys or {}))
    except Unreadable as error:
        return Unchanged(tuple(_wanted([_unreadable(text, path, error)], text, settings)))
    findings: list[Finding] = []
    edits: list[TextEdit] = []
    for block in blocks:
        block = replace(block, transformers=settings.transformers, accelerate=settings.accelerate)
        block = replace(block, shards_natively=settings.shards_natively, older_verl=settings.older_verl)
        block = replace(
            block, strategy_names=settings.strategy_names | (NAMES if settings.to == "shim" else frozenset())
        )
        if settings.launched and block.dialect == "accelerate" and block.form == "file":
            block = replace(block, around={**block.around, "mixed_precision": settings.launched})
        told, changes = judge(block, _heard(block, text, settings))
        findings += [_finding(rule, verdict, block, text, path) for rule, verdict in told]
        edits += block.editor.edits(changes)
    findings.sort(key=lambda finding: (finding.line, finding.column, finding.rule))
    output = apply(text.text, edits)
    if output == text.text:
        return Unchanged(tuple(findings))
    try:
        list(_blocks(Text(output), path, {}))
    except Unreadable as error:
        return Failed(f"internal error: the changed file would not be readable (line {error.line}: {error})")
    return Changed(bom + output.encode("utf-8"), tuple(findings))


def _blocks(text: Text, path: str, keys: _Keys) -> Iterator[Block]:
    """The blocks of settings of a file, by its kind. Raises :class:`Unreadable`."""
    if path.endswith(SHELL_SUFFIXES):
        yield from shell_blocks(text.text, keys)
        return
    if path.endswith(TOML_SUFFIX):
        yield from named(toml_strings(text.text))
        return
    is_json = path.endswith(".json")
    roots: list[Node] = [json_nodes.document(text.text)] if is_json else yaml_nodes.documents(text.text)
    for root in roots:
        known = [
            replace(block, twice=tuple(written_twice(root, dialect.around)))
            for dialect in DIALECTS
            for block in dialect.blocks(text, root, path, is_json)
        ]
        known = [block for block in known if not _is_own(text.text[slice(*block.place)], keys)]
        yield from known or Others(keys).blocks(text, root, path, is_json)
        yield from named(root)


def _is_own(name: str, keys: _Keys) -> bool:
    """Whether the project's own code, and no framework, gives settings in what is called ``name`` to FSDP1."""
    read = (key for found in keys.values() for key in found)
    return any(name.strip("\"'") in (key.holder, *key.names[:-1]) for key in read)


def _heard(block: Block, text: Text, settings: Settings) -> Callable[[ConfigRule, Verdict], bool]:
    return lambda rule, verdict: settings.enabled(rule.id) and not _is_ignored(rule.id, text, _place(verdict, block))


def _place(verdict: Verdict, block: Block) -> tuple[int, int]:
    return (verdict.setting.start, verdict.setting.end) if verdict.setting else block.place


def _is_ignored(rule: str, text: Text, place: tuple[int, int]) -> bool:
    found = _IGNORE.search(text.line_text(text.line(place[0])))
    return found is not None and any(rule == name.strip() for name in found[1].split(","))


def _finding(rule: ConfigRule, verdict: Verdict, block: Block, text: Text, path: str) -> Finding:
    span = text.span(*_place(verdict, block))
    return Finding(
        rule=rule.id,
        name=rule.name,
        path=path,
        line=span.line,
        column=span.column,
        end_line=span.end_line,
        end_column=span.end_column,
        level=verdict.level,
        message=verdict.message,
        advice=verdict.advice,
    )


def _unreadable(text: Text, path: str, error: Unreadable) -> Finding:
    line = min(error.line, text.line(len(text.text.rstrip())))
    level, message, advice = template_or_broken(text.text, str(error))
    end = len(text.line_text(line))
    return Finding(UNREADABLE.id, UNREADABLE.name, path, line, 0, line, end, level, message, advice)


def _wanted(findings: Iterable[Finding], text: Text, settings: Settings) -> Iterator[Finding]:
    for finding in findings:
        place = text.text.find(text.line_text(finding.line))
        if settings.enabled(finding.rule) and not _is_ignored(finding.rule, text, (place, place)):
            yield finding
