"""The language server over standard input and output, as an editor starts it, with the client of pygls."""

from __future__ import annotations

import asyncio
import hashlib
import json
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from lsprotocol import types
from pygls.lsp.client import LanguageClient

from fsdp_migrate.cli import main
from fsdp_migrate.lsp.caching import CachingEngine
from fsdp_migrate.lsp.moving import moved
from fsdp_migrate.lsp.workspace import Open, look
from fsdp_migrate.pipeline.engine import RulesEngine
from fsdp_migrate.pipeline.hunks import Hunk
from fsdp_migrate.trace.record import Trace, TracedFile, Value, dumped
from fsdp_rules.engine.rewrite import Prepared
from fsdp_rules.project.project import FileFacts, Project
from fsdp_rules.settings import Settings
from fsdp_rules.verdict.finding import Finding, Level
from fsdp_rules.verdict.result import Result

SOURCE = """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

text = "\N{GRINNING FACE}"; model = FSDP(model)


def unrelated():
    return 1


def train(loss):
    return model._handle
"""
TWO = {
    "model.py": "from torch.distributed.fsdp import FullyShardedDataParallel as F\n\ndef build(m):\n    return F(m)\n",
    "train.py": "from model import build\n\nmodel = build(net)\nmodel.clip_grad_norm_(1.0)\n",
}

TRACED = """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def save(thing):
    return thing.state_dict()


model = FSDP(net)
save(model)
save(other)
"""


class Editor:
    """A client that keeps what the server has published last, and waits for the next."""

    def __init__(self, client: LanguageClient, root: Path) -> None:
        self.client, self.root = client, root
        self.published: asyncio.Queue[types.PublishDiagnosticsParams] = asyncio.Queue()
        self.messages: asyncio.Queue[types.ShowMessageParams] = asyncio.Queue()

        @client.feature(types.TEXT_DOCUMENT_PUBLISH_DIAGNOSTICS)
        def published(said: types.PublishDiagnosticsParams) -> None:
            self.published.put_nowait(said)

        @client.feature(types.WINDOW_SHOW_MESSAGE)
        def shown(said: types.ShowMessageParams) -> None:
            self.messages.put_nowait(said)

    def uri(self, name: str) -> str:
        return (self.root / name).as_uri()

    def open(self, name: str, text: str) -> None:
        item = types.TextDocumentItem(self.uri(name), "python", 1, text)
        self.client.text_document_did_open(types.DidOpenTextDocumentParams(item))

    def change(self, name: str, text: str) -> None:
        document = types.VersionedTextDocumentIdentifier(2, self.uri(name))
        whole = types.TextDocumentContentChangeWholeDocument(text)
        self.client.text_document_did_change(types.DidChangeTextDocumentParams(document, [whole]))

    async def diagnostics(self, name: str) -> list[types.Diagnostic]:
        while (said := await self.published.get()).uri != self.uri(name):
            pass
        return list(said.diagnostics)

    async def looked(self, name: str) -> list[types.Diagnostic]:
        """What is published once a changed file has been looked at again, after what was moved at once."""
        await self.diagnostics(name)
        return await self.diagnostics(name)

    async def actions(self, name: str, line: int, found: list[types.Diagnostic]) -> list[types.CodeAction]:
        place = types.Range(types.Position(line, 0), types.Position(line, 0))
        document = types.TextDocumentIdentifier(self.uri(name))
        asked = types.CodeActionParams(document, place, types.CodeActionContext(found))
        answer = await self.client.text_document_code_action_async(asked)
        return [one for one in answer or [] if isinstance(one, types.CodeAction)]


def with_server(root: Path, play: Callable[[Editor], Awaitable[None]], options: object = None) -> None:
    async def run() -> None:
        client = LanguageClient("test", "1")
        editor = Editor(client, root)
        await client.start_io(sys.executable, "-m", "fsdp_migrate", "lsp", cwd=root)
        await client.initialize_async(
            types.InitializeParams(
                capabilities=types.ClientCapabilities(), root_uri=root.as_uri(), initialization_options=options
            )
        )
        client.initialized(types.InitializedParams())
        await asyncio.wait_for(play(editor), 60)
        await client.shutdown_async(None)
        client.exit(None)
        await client.stop()

    asyncio.run(run())


def applied(text: str, edits: list[types.TextEdit]) -> str:
    """``text`` with edits whose columns are before any character that takes two units."""
    lines = text.splitlines(keepends=True)
    for edit in sorted(edits, key=lambda one: -one.range.start.line):
        start, end = edit.range.start, edit.range.end
        tail = lines[end.line][end.character :] if end.line < len(lines) else ""
        before = lines[start.line][: start.character] if start.line < len(lines) else ""
        lines[start.line : end.line + 1] = [before + edit.new_text + tail]
    return "".join(lines)


def edits(action: types.CodeAction) -> list[types.TextEdit]:
    assert action.edit is not None
    assert action.edit.changes is not None
    (found,) = action.edit.changes.values()
    return [one for one in found if isinstance(one, types.TextEdit)]


def test_findings_pages_and_fixes_are_those_of_the_command(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(SOURCE)

    async def play(editor: Editor) -> None:
        editor.open("a.py", SOURCE)
        found = await editor.diagnostics("a.py")
        call = next(one for one in found if one.code == "FSDP101")
        # An emoji takes two of the units in which editors count.
        assert (call.range.start.line, call.range.start.character) == (2, len('text = "xx"; model = '))
        assert call.severity is types.DiagnosticSeverity.Warning
        assert call.code_description is not None
        page = Path(unquote(urlsplit(call.code_description.href).path))
        assert "<h1>FSDP101 constructor-call</h1>" in page.read_text(encoding="utf-8")
        assert {one.severity for one in found if one.code == "FSDP209"} <= {types.DiagnosticSeverity.Error}
        assert any(one.severity is types.DiagnosticSeverity.Error and one.range.start.line == 10 for one in found)

        hovered = await editor.client.text_document_hover_async(
            types.HoverParams(types.TextDocumentIdentifier(editor.uri("a.py")), types.Position(2, 20))
        )
        assert hovered is not None
        assert isinstance(hovered.contents, types.MarkupContent)
        assert "# FSDP101 constructor-call" in hovered.contents.value

        actions = {one.title: one for one in await editor.actions("a.py", 2, [call])}
        assert set(actions) == {
            "Rewrite these lines to FSDP2", "Rewrite this file to FSDP2", "Ignore FSDP101 on this line",
        }  # fmt: skip
        assert list(actions["Rewrite these lines to FSDP2"].diagnostics or ()) == [call]
        everything = applied(SOURCE, edits(actions["Rewrite this file to FSDP2"]))
        done = subprocess.run(
            [sys.executable, "-m", "fsdp_migrate", "rewrite", "--quiet", "--allow-dirty", "a.py"],
            cwd=tmp_path, check=False, capture_output=True,
        )  # fmt: skip
        assert done.returncode == 1
        assert everything == (tmp_path / "a.py").read_text()
        (ignored,) = edits(actions["Ignore FSDP101 on this line"])
        assert ignored.new_text == "  # fsdp-migrate: ignore[FSDP101]"

    with_server(tmp_path, play)


def test_a_model_is_followed_from_file_to_file_and_changes_are_looked_at(tmp_path: Path) -> None:
    for name, text in TWO.items():
        (tmp_path / name).write_text(text)

    async def play(editor: Editor) -> None:
        editor.open("train.py", TWO["train.py"])
        assert [one.code for one in await editor.diagnostics("train.py")] == ["FSDP201"]
        editor.change("train.py", "from model import build\n")
        assert await editor.looked("train.py") == []
        editor.change("train.py", "def f(:\n    FSDP\n")
        (broken,) = await editor.looked("train.py")
        assert "could not parse" in broken.message

    with_server(tmp_path, play)


def test_a_keystroke_is_answered_at_once_with_what_is_known(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(SOURCE)

    async def play(editor: Editor) -> None:
        editor.open("a.py", SOURCE)
        known = {(one.code, one.range.start.line) for one in await editor.diagnostics("a.py")}
        lines = SOURCE.splitlines(keepends=True)
        # Two lines are put in between, and the line of the wrap is another.
        editor.change("a.py", "".join([lines[0], "\n\n", lines[1], "#" + lines[2], *lines[3:]]))
        at_once = {(one.code, one.range.start.line) for one in await editor.diagnostics("a.py")}
        assert at_once == {(code, line + 2 if line > 2 else line) for code, line in known if line != 2}
        # A page and quick fixes of what is known are there.
        asked = types.HoverParams(types.TextDocumentIdentifier(editor.uri("a.py")), types.Position(12, 0))
        assert await editor.client.text_document_hover_async(asked) is not None
        afterwards = {(one.code, one.range.start.line) for one in await editor.diagnostics("a.py")}
        assert not any(code == "FSDP101" for code, _ in afterwards)

    with_server(tmp_path, play)


def test_findings_stay_while_a_file_does_not_parse(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(SOURCE)

    async def play(editor: Editor) -> None:
        editor.open("a.py", SOURCE)
        known = {(one.code, one.range.start.line) for one in await editor.diagnostics("a.py")}
        editor.change("a.py", SOURCE + "open(\n")
        assert {(one.code, one.range.start.line) for one in await editor.diagnostics("a.py")} == known
        looked_at = {(one.code, one.range.start.line) for one in await editor.diagnostics("a.py")}
        assert looked_at == {*known, (None, 0)}

    with_server(tmp_path, play)


def finding(line: int, end: int) -> Finding:
    return Finding("FSDP101", "constructor-call", "a.py", line, 0, end, 1, Level.SAFE, "x")


@pytest.mark.parametrize(
    ("after", "lines"),
    [
        ("a b c d e", [1, 3, 5]),
        ("x b c d e", [3, 5]),
        ("a b c d e f", [1, 3, 5]),
        ("a x y b c d e", [1, 5, 7]),
        ("a b d e", [1, 4]),
        ("a b c X e", [1, 5]),
        ("", []),
    ],
)
def test_what_is_known_moves_with_its_lines(after: str, lines: list[int]) -> None:
    findings = (finding(1, 1), finding(3, 4), finding(5, 5))
    hunks = tuple(Hunk("k", one.line - 1, (b"",) * (one.end_line - one.line + 1), ()) for one in findings)
    found = moved(Open(findings, hunks), ["a", "b", "c", "d", "e"], after.split())
    assert [one.line for one in found.findings] == lines
    assert [hunk.start + 1 for hunk in found.hunks] == lines


def test_bad_settings_are_a_message_and_no_end(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.fsdp-migrate]\nignore = ['FSDP999']\n")

    async def play(editor: Editor) -> None:
        editor.open("a.py", SOURCE)
        assert "there is no rule FSDP999" in (await editor.messages.get()).message

    with_server(tmp_path, play)


def test_it_names_the_extra_that_it_needs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delitem(sys.modules, "fsdp_migrate.lsp.server", raising=False)
    monkeypatch.setitem(sys.modules, "pygls", None)
    monkeypatch.setitem(sys.modules, "pygls.lsp.server", None)
    assert main(["lsp"]) == 2
    assert capsys.readouterr().err.startswith("Error: lsp needs pygls")


def test_what_does_not_change_is_indexed_once_and_open_files_alone_are_rewritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in TWO.items():
        (tmp_path / name).write_text(text)
    calls: list[tuple[str, str]] = []
    index, rewrite = RulesEngine.index, RulesEngine.rewrite

    def indexed(self: RulesEngine, path: str, data: bytes) -> FileFacts | None:
        calls.append(("index", Path(path).name))
        return index(self, path, data)

    def rewritten(
        self: RulesEngine,
        data: bytes,
        path: str,
        project: Project,
        settings: Settings,
        prepared: Prepared | None = None,
    ) -> Result:
        calls.append(("rewrite", Path(path).name))
        return rewrite(self, data, path, project, settings, prepared)

    monkeypatch.setattr(RulesEngine, "index", indexed)
    monkeypatch.setattr(RulesEngine, "rewrite", rewritten)
    engine, train = CachingEngine(), (tmp_path / "train.py").resolve()
    first = look(tmp_path.resolve(), {train: TWO["train.py"]}, engine)[train]
    assert "FSDP201" in {finding.rule for finding in first.findings}
    assert sorted(calls) == [("index", "model.py"), ("index", "train.py"), ("rewrite", "train.py")]
    calls.clear()
    later = look(tmp_path.resolve(), {train: TWO["train.py"] + "\n"}, engine)[train]
    assert later.findings == first.findings
    assert sorted(calls) == [("index", "train.py"), ("rewrite", "train.py")]
    (tmp_path / "model.py").write_text("def build(m):\n    return m\n")
    assert look(tmp_path.resolve(), {train: TWO["train.py"]}, engine)[train].findings != first.findings


def _message(method: str, number: int | None = None, **given: object) -> bytes:
    said: dict[str, object] = {
        "jsonrpc": "2.0",
        "method": method,
        **({} if number is None else {"id": number}),
        **given,
    }
    body = json.dumps(said).encode()
    return b"Content-Length: %d\r\n\r\n" % len(body) + body


START = _message("initialize", 1, params={"processId": None, "rootUri": None, "capabilities": {}})
ENDS = {
    "shutdown and exit": (START + _message("initialized", params={}) + _message("shutdown", 2) + _message("exit"), 0),
    "shutdown at once": (START + _message("shutdown", 2) + _message("exit"), 0),
    "an editor that is gone": (START + _message("shutdown", 2), 0),
}


@pytest.mark.parametrize("end", ENDS)
def test_its_end_leaves_no_traceback(end: str) -> None:
    given, code = ENDS[end]
    ended = subprocess.run([sys.executable, "-m", "fsdp_migrate", "lsp"], input=given, capture_output=True)
    assert (ended.returncode, ended.stderr) == (code, b"")
    assert b'"id": 2' in ended.stdout


def test_the_record_of_a_run_decides(tmp_path: Path) -> None:
    source = TRACED.encode()
    (tmp_path / "a.py").write_bytes(source)
    line = next(number for number, text in enumerate(TRACED.splitlines(), 1) if "thing.state_dict" in text)
    column = TRACED.splitlines()[line - 1].index("thing")
    values = (Value((line, column, line, column + len("thing")), {"module": 40}, (0,)),)
    file = TracedFile(hashlib.sha256(source).hexdigest(), {line: {0: 40}}, values)
    (tmp_path / "run.json").write_text(dumped(Trace(1, 3, {0: "over"}, {}, files={"a.py": file})))

    async def play(editor: Editor) -> None:
        editor.open("a.py", TRACED)
        found = await editor.diagnostics("a.py")
        texts = [one.message for one in found if one.range.start.line == line - 1]
        assert any("not a sharded model in 40 of 40 runs of this line" in text for text in texts), texts
        # What was edited is not what ran.
        editor.change("a.py", TRACED + "# edited\n")
        texts = [one.message for one in await editor.looked("a.py") if one.range.start.line == line - 1]
        assert texts
        assert not any("40 of 40" in text for text in texts), texts

    with_server(tmp_path, play, {"trace": "run.json"})


def test_a_record_that_is_none_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(SOURCE)

    async def play(editor: Editor) -> None:
        editor.open("a.py", SOURCE)
        assert "run.json: No such file" in (await editor.messages.get()).message

    with_server(tmp_path, play, {"trace": "run.json"})
