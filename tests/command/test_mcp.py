"""``fsdp-migrate mcp`` over standard input and output, with the client of the protocol's own SDK."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from fsdp_migrate.cli import main
from tests.command.test_next_done import SOURCE

mcp = pytest.importorskip("mcp", reason="the extra [mcp] is not installed")

Ask = Callable[..., Awaitable[Any]]
TOOLS = {"check", "rewrite", "next", "done", "status", "explain", "verify"}


def session(project: Path, work: Callable[[Ask, Any], Awaitable[None]]) -> None:
    """Starts the server in ``project`` as a client does, and gives ``work`` a function that calls a tool."""

    async def run() -> None:
        parameters = mcp.StdioServerParameters(command=sys.executable, args=["-m", "fsdp_migrate", "mcp"], cwd=project)
        async with mcp.stdio_client(parameters) as streams, mcp.ClientSession(*streams) as client:
            await client.initialize()

            async def ask(tool: str, **arguments: Any) -> Any:
                return await client.call_tool(tool, arguments)

            await work(ask, client)

    asyncio.run(run())


def test_the_loop_of_an_agent(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "train.py"
    file.write_text(SOURCE)

    async def work(ask: Ask, client: Any) -> None:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert tools.keys() == TOOLS
        assert tools["rewrite"].input_schema["properties"]["to"]["enum"] == ["native", "shim"]
        assert [name for name, tool in tools.items() if not tool.annotations.read_only_hint] == ["rewrite"]
        checked = (await ask("check", paths=["."])).structured_content
        # The answer is that of the command.
        assert main(["check", "--format", "json", "."]) == 1
        own = json.loads(capsys.readouterr().out)
        assert [one["fingerprint"] for one in checked["findings"]] == [one["fingerprint"] for one in own["findings"]]
        patch = (await ask("rewrite", paths=["."], diff=True)).structured_content["patch"]
        assert patch.startswith("--- a/train.py")
        assert file.read_text() == SOURCE
        assert (await ask("rewrite", paths=["."], to="native")).structured_content["summary"]["files_changed"] == 1
        place = (await ask("next")).structured_content["item"]["id"]
        assert (await ask("done", item=place)).structured_content["done"] is False
        assert (await ask("status", directory=str(tmp_path))).structured_content["total"]["manual"] == 1
        assert (await ask("explain", rule="102")).structured_content["rules"][0]["id"] == "FSDP102"

    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(tmp_path)
        session(tmp_path, work)


def test_what_cannot_run_is_an_error_with_its_reason(tmp_path: Path) -> None:
    async def work(ask: Ask, client: Any) -> None:
        for arguments, reason in (
            (("check", {"paths": ["nowhere"]}), "nowhere"),
            (("check", {"paths": "train.py"}), "is not of type 'array'"),
            (("check", {"jobs": "2"}), "is not of type 'integer'"),
            (("check", {"format": "text"}), "'format' was unexpected"),
            (("verify", {"command": ["true"]}), "git"),
            (("verify", {}), "give the command that starts the training"),
            (("status", {"directory": "/not/there"}), "/not/there"),
            # A path is never an option.
            (("check", {"paths": ["--exit-zero"]}), "--exit-zero"),
        ):
            answer = await ask(arguments[0], **arguments[1])
            assert answer.is_error, arguments
            assert reason in answer.content[0].text, answer.content[0].text

    session(tmp_path, work)


def test_without_the_extra_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "mcp.server.stdio", None)
    assert main(["mcp"]) == 2
    assert "install fsdp-migrate with its extra [mcp]" in capsys.readouterr().err
