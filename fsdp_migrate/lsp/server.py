"""The language server on pygls: diagnostics when a file is opened, changed or saved, quick fixes, and rule pages."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from importlib.metadata import version
from pathlib import Path

from lsprotocol import types
from pygls.lsp.server import LanguageServer

from fsdp_migrate.lsp.caching import CachingEngine
from fsdp_migrate.lsp.moving import moved
from fsdp_migrate.lsp.workspace import Open, look
from fsdp_migrate.pipeline.hunks import Hunk
from fsdp_migrate.report.offline import address
from fsdp_migrate.report.rulebook import UnknownRule, explanation, find, pages
from fsdp_migrate.report.summary import printable
from fsdp_migrate.trace.record import BadTrace
from fsdp_migrate.tree.files import NoSuchPath
from fsdp_migrate.tree.git import GitError
from fsdp_migrate.tree.settings import SettingsError
from fsdp_rules.verdict.finding import Finding, Level

#: Seconds without a change after which a file is looked at again.
DELAY = 0.3
NAME = "fsdp-migrate"
_SEVERITY = {
    Level.MANUAL: types.DiagnosticSeverity.Error,
    Level.REVIEW: types.DiagnosticSeverity.Warning,
    Level.SAFE: types.DiagnosticSeverity.Warning,
    Level.INFO: types.DiagnosticSeverity.Information,
}
_ALL = f"{types.CodeActionKind.SourceFixAll.value}.{NAME}"


class Server(LanguageServer):
    """Knows what was found in the files that are open, by their address."""

    def __init__(self) -> None:
        super().__init__(NAME, version(NAME))
        self.found: dict[str, Open] = {}
        self.lines: dict[str, Sequence[str]] = {}
        self.changes = 0
        self.one_at_a_time = asyncio.Lock()
        self.engine = CachingEngine()
        self.trace: str | None = None

    async def look(self, delay: float = 0.0) -> None:
        """Look at all open files, once nothing has changed for ``delay`` seconds, and publish what was found."""
        self.changes += 1
        mine = self.changes
        await asyncio.sleep(delay)
        async with self.one_at_a_time:
            # Of all changes that came while another look was on its way, the last one counts.
            if mine == self.changes:
                await self._look(mine)

    async def _look(self, mine: int) -> None:
        documents = {
            Path(document.path).resolve(): document
            for document in list(self.workspace.text_documents.values())
            if document.path and document.path.endswith(".py")
        }
        texts = {path: document.source for path, document in documents.items()}
        root = Path(self.workspace.root_path or next((path.parent for path in texts), Path.cwd()))
        try:
            found = await asyncio.get_running_loop().run_in_executor(
                None, look, root.resolve(), texts, self.engine, self.trace
            )
        except (BadTrace, SettingsError, UnknownRule, NoSuchPath, GitError) as error:
            self.window_show_message(types.ShowMessageParams(types.MessageType.Error, f"{NAME}: {error}"))
            return
        if mine != self.changes:
            # The lines are those of a text that is no more.
            return
        for path, document in documents.items():
            now = found[path]
            if now.error and document.uri in self.found:
                # In the middle of a word a file rarely parses; what is known of its other lines is still right.
                now = replace(self.found[document.uri], error=now.error)
            self.show(document.uri, now)

    def show(self, uri: str, found: Open) -> None:
        """Keep what was found in a document as it is now, and publish it."""
        document = self.workspace.get_text_document(uri)
        self.found[uri], self.lines[uri] = found, document.lines
        shown = [_diagnostic(finding, document.lines) for finding in found.findings]
        if found.error:
            shown.append(types.Diagnostic(_line(0), found.error, types.DiagnosticSeverity.Warning, source=NAME))
        self.text_document_publish_diagnostics(types.PublishDiagnosticsParams(uri, shown, document.version))


server = Server()


@server.feature(types.INITIALIZE)
def initialized(params: types.InitializeParams) -> None:
    """``initializationOptions`` may name a record: ``{"trace": "trace.json"}``, from the root of the workspace."""
    options = params.initialization_options
    server.trace = options.get("trace") if isinstance(options, dict) else getattr(options, "trace", None)


@server.feature(types.TEXT_DOCUMENT_DID_OPEN)
async def opened(params: types.DidOpenTextDocumentParams) -> None:
    await server.look()


@server.feature(types.TEXT_DOCUMENT_DID_SAVE)
async def saved(params: types.DidSaveTextDocumentParams) -> None:
    await server.look()


@server.feature(types.TEXT_DOCUMENT_DID_CHANGE)
async def changed(params: types.DidChangeTextDocumentParams) -> None:
    uri = params.text_document.uri
    if uri in server.found:
        # Long before the file has been looked at again.
        lines = server.workspace.get_text_document(uri).lines
        server.show(uri, moved(server.found[uri], server.lines[uri], lines))
    await server.look(DELAY)


@server.feature(types.TEXT_DOCUMENT_DID_CLOSE)
def closed(params: types.DidCloseTextDocumentParams) -> None:
    server.found.pop(params.text_document.uri, None)
    server.lines.pop(params.text_document.uri, None)
    server.text_document_publish_diagnostics(types.PublishDiagnosticsParams(params.text_document.uri, []))


@server.feature(types.TEXT_DOCUMENT_HOVER)
def hover(params: types.HoverParams) -> types.Hover | None:
    """The page of each rule that has a finding on this line."""
    line = params.position.line + 1
    found = server.found.get(params.text_document.uri, Open()).findings
    rules = sorted({finding.rule for finding in found if finding.line <= line <= finding.end_line})
    if not rules:
        return None
    known = pages()
    text = "\n\n---\n\n".join("\n".join(explanation(find(rule, known))) for rule in rules)
    return types.Hover(types.MarkupContent(types.MarkupKind.Markdown, text), _line(params.position.line))


@server.feature(
    types.TEXT_DOCUMENT_CODE_ACTION,
    types.CodeActionOptions([types.CodeActionKind.QuickFix, types.CodeActionKind.SourceFixAll]),
)
def code_actions(params: types.CodeActionParams) -> list[types.CodeAction]:
    """The hunks of a rewrite that touch the lines, the whole rewrite, and a comment that silences a rule."""
    uri = params.text_document.uri
    found = server.found.get(uri)
    if found is None:
        return []
    first, last = params.range.start.line, params.range.end.line
    actions = [
        types.CodeAction(
            "Rewrite these lines to FSDP2" if len(found.hunks) > 1 else "Rewrite to FSDP2",
            types.CodeActionKind.QuickFix,
            diagnostics=[*_about(params, hunk)],
            edit=_edit(uri, [_replaced(hunk, found.encoding)]),
        )
        for hunk in found.hunks
        if hunk.start <= last and first < hunk.end
    ]
    if found.hunks:
        everything = [_replaced(hunk, found.encoding) for hunk in found.hunks]
        actions.append(types.CodeAction("Rewrite this file to FSDP2", _ALL, edit=_edit(uri, everything)))
    lines = server.workspace.get_text_document(uri).lines
    for diagnostic in params.context.diagnostics:
        line = diagnostic.range.start.line
        if diagnostic.source == NAME and diagnostic.code and line < len(lines):
            actions.append(_ignored(uri, diagnostic, lines[line].rstrip("\r\n")))
    only = params.context.only
    return [action for action in actions if not only or any(_is_of(action, kind) for kind in only)]


def _is_of(action: types.CodeAction, kind: types.CodeActionKind | str) -> bool:
    wanted = kind.value if isinstance(kind, types.CodeActionKind) else kind
    mine = action.kind.value if isinstance(action.kind, types.CodeActionKind) else str(action.kind)
    return f"{mine}.".startswith(f"{wanted}.")


def _about(params: types.CodeActionParams, hunk: Hunk) -> list[types.Diagnostic]:
    shown = params.context.diagnostics
    return [one for one in shown if one.source == NAME and hunk.start <= one.range.start.line < hunk.end]


def _ignored(uri: str, diagnostic: types.Diagnostic, text: str) -> types.CodeAction:
    end = types.Position(diagnostic.range.start.line, _utf16(text, len(text)))
    comment = types.TextEdit(types.Range(end, end), f"  # fsdp-migrate: ignore[{diagnostic.code}]")
    title = f"Ignore {diagnostic.code} on this line"
    return types.CodeAction(title, types.CodeActionKind.QuickFix, [diagnostic], edit=_edit(uri, [comment]))


def _edit(uri: str, edits: list[types.TextEdit]) -> types.WorkspaceEdit:
    return types.WorkspaceEdit(changes={uri: edits})


def _replaced(hunk: Hunk, encoding: str) -> types.TextEdit:
    place = types.Range(types.Position(hunk.start, 0), types.Position(hunk.end, 0))
    return types.TextEdit(place, b"".join(hunk.new).decode(encoding, errors="replace"))


def _diagnostic(finding: Finding, lines: Sequence[str]) -> types.Diagnostic:
    message = ". ".join(filter(None, [printable(finding.text).rstrip("."), printable(finding.advice)]))
    return types.Diagnostic(
        types.Range(
            _position(finding.line, finding.column, lines), _position(finding.end_line, finding.end_column, lines)
        ),
        message,
        _SEVERITY[finding.level],
        code=finding.rule,
        code_description=types.CodeDescription(link) if (link := _link(finding.rule)) else None,
        source=NAME,
    )


@cache
def _link(rule: str) -> str:
    return address(find(rule, pages()))


def _position(line: int, column: int, lines: Sequence[str]) -> types.Position:
    text = lines[line - 1] if 0 < line <= len(lines) else ""
    return types.Position(line - 1, _utf16(text, column))


def _utf16(text: str, column: int) -> int:
    """A column in the units in which editors count."""
    return len(text[:column].encode("utf-16-le", errors="surrogatepass")) // 2


def _line(number: int) -> types.Range:
    return types.Range(types.Position(number, 0), types.Position(number + 1, 0))
