"""From the bytes of one configuration file to its result: read, recognise, ask every rule, edit once, read again."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterable, Iterator

from fsdp_migrate.configs.block import Block, Change, Verdict, merged
from fsdp_migrate.configs.dialects.accelerate import Accelerate
from fsdp_migrate.configs.dialects.dialect import Dialect
from fsdp_migrate.configs.dialects.others import Others
from fsdp_migrate.configs.dialects.shell import shell_blocks
from fsdp_migrate.configs.dialects.trainer import Trainer
from fsdp_migrate.configs.dialects.verl import Verl
from fsdp_migrate.configs.editing import json_nodes, yaml_nodes
from fsdp_migrate.configs.nodes import Node, Text, TextEdit, Unreadable, apply
from fsdp_migrate.configs.rules.config_registry import config_rules
from fsdp_migrate.configs.rules.config_rule import ConfigRule
from fsdp_migrate.configs.rules.config_unreadable import UNREADABLE, template_or_broken
from fsdp_migrate.configs.rules.config_version import ConfigVersion
from fsdp_migrate.tree.files import SHELL_SUFFIXES
from fsdp_rules.settings import Settings
from fsdp_rules.verdict.finding import Finding, Level
from fsdp_rules.verdict.result import Changed, Failed, Result, Skipped, Unchanged

#: Configuration is written by people; what is larger is data.
LARGEST = 1_000_000
DIALECTS: tuple[Dialect, ...] = (Accelerate(), Trainer(), Verl())
_IGNORE = re.compile(r"#\s*fsdp-migrate:\s*ignore\[([^\]]*)\]")
_KEPT = "these settings are kept as they are, because of {}"


def migrate(data: bytes, path: str, settings: Settings) -> Result:
    """The result of migrating one YAML or JSON file. BOM, line ends and all bytes outside of changed keys are kept."""
    if len(data) > LARGEST:
        return Skipped(f"larger than {LARGEST // 1_000_000} MB, which no configuration is")
    bom = codecs.BOM_UTF8 if data.startswith(codecs.BOM_UTF8) else b""
    try:
        text = Text(data[len(bom) :].decode("utf-8"))
    except UnicodeDecodeError as error:
        return Failed(f"is not UTF-8 at byte {error.start}")
    try:
        blocks = list(_blocks(text, path))
    except Unreadable as error:
        return Unchanged(tuple(_wanted([_unreadable(text, path, error)], text, settings)))
    findings: list[Finding] = []
    edits: list[TextEdit] = []
    for block in blocks:
        told, changes = _judge(block, text, settings)
        findings += [_finding(rule, verdict, block, text, path) for rule, verdict in told]
        edits += block.editor.edits(changes)
    findings.sort(key=lambda finding: (finding.line, finding.column, finding.rule))
    output = apply(text.text, edits)
    if output == text.text:
        return Unchanged(tuple(findings))
    try:
        list(_blocks(Text(output), path))
    except Unreadable as error:
        return Failed(f"internal error: the changed file would not be readable (line {error.line}: {error})")
    return Changed(bom + output.encode("utf-8"), tuple(findings))


def _blocks(text: Text, path: str) -> Iterator[Block]:
    """The blocks of settings of a file, by its kind. Raises :class:`Unreadable`."""
    if path.endswith(SHELL_SUFFIXES):
        yield from shell_blocks(text.text)
        return
    is_json = path.endswith(".json")
    roots: list[Node] = [json_nodes.document(text.text)] if is_json else yaml_nodes.documents(text.text)
    for root in roots:
        known = [block for dialect in DIALECTS for block in dialect.blocks(text, root, path, is_json)]
        yield from known or Others().blocks(text, root, path, is_json)


def _judge(block: Block, text: Text, settings: Settings) -> tuple[list[tuple[ConfigRule, Verdict]], Change]:
    """What is said about a block, and the change of it: all of it, or none where a part has to stay."""
    every = [
        (rule, verdict)
        for rule in config_rules()
        if block.dialect in rule.dialects
        for verdict in map(_editable, rule.visit(block))
    ]
    told = [
        (rule, verdict)
        for rule, verdict in every
        if settings.enabled(rule.id) and not _is_ignored(rule.id, text, _place(verdict, block))
    ]
    # Half of a block means something else than the whole: what a user leaves out keeps the rest.
    left_out = [one for one in every if one not in told and (one[1].keeps or one[1].change != Change())]
    stays = [verdict.setting.written if verdict.setting else rule.id for rule, verdict in told if verdict.keeps]
    stays += [rule.id for rule, _ in left_out]
    if not stays:
        return told, merged(verdict.change for _, verdict in told)
    left = [(rule, verdict) for rule, verdict in told if verdict.level in (Level.MANUAL, Level.INFO)]
    if any(verdict.change != Change() for _, verdict in told):
        whole = Verdict(None, Level.MANUAL, _KEPT.format(", ".join(dict.fromkeys(stays))))
        left.append((ConfigVersion(), whole))
    return left, Change()


def _editable(verdict: Verdict) -> Verdict:
    """The verdict, or the reason why its setting cannot be edited."""
    setting = verdict.setting
    if setting is None or not setting.fixed or verdict.change == Change():
        return verdict
    return Verdict(
        setting,
        Level.MANUAL,
        f"{setting.written} cannot be changed here: {setting.fixed}",
        "Write the settings out in this place and run this tool again.",
        keeps=True,
    )


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
    message, advice = template_or_broken(text.text, str(error))
    end = len(text.line_text(line))
    return Finding(UNREADABLE.id, UNREADABLE.name, path, line, 0, line, end, Level.MANUAL, message, advice)


def _wanted(findings: Iterable[Finding], text: Text, settings: Settings) -> Iterator[Finding]:
    for finding in findings:
        place = text.text.find(text.line_text(finding.line))
        if settings.enabled(finding.rule) and not _is_ignored(finding.rule, text, (place, place)):
            yield finding
