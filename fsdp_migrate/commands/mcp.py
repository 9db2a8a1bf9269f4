"""The command ``mcp``: other commands as tools for coding agents, by the Model Context Protocol.

A tool is a command of this program with its options and its answer of ``--format json``, and nothing besides.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from mcp.server import Server
    from mcp.types import CallToolResult

_TOOLS = ("check", "rewrite", "next", "done", "status", "explain", "verify")
#: These tools change no file of the project.
_READS = ("check", "next", "done", "status", "explain", "verify")
#: Options for a terminal, and of where an answer is written.
_FOR_PEOPLE = {"form", "interactive", "output", "report", "stdin_filename", "verbosity", "write_baseline"}
_DIRECTORY = {"type": "string", "description": "Folder of the project. Default: where the server was started."}


@click.command(short_help="Run a server of the Model Context Protocol, for coding agents.")
def mcp() -> int:
    """Run a server of the Model Context Protocol on standard input and output, for coding agents.

    Its tools are commands of fsdp-migrate (check, rewrite, next, done, status, explain, verify) with their options,
    and answer with the JSON of these commands. A client starts it, see docs/agents.md. It needs the extra
    [mcp] of fsdp-migrate.
    """
    try:
        import anyio
        from mcp.server.stdio import stdio_server
    except ModuleNotFoundError as error:
        raise click.ClickException(f"mcp needs {error.name}: install fsdp-migrate with its extra [mcp]") from error
    root = click.get_current_context().find_root().command
    assert isinstance(root, click.Group)
    server = _server(root)

    async def serve() -> None:
        async with stdio_server() as (reads, writes):
            await server.run(reads, writes, server.create_initialization_options())

    anyio.run(serve)
    return 0


def _server(root: click.Group) -> Server[Any]:
    from jsonschema import Draft202012Validator
    from mcp import types
    from mcp.server import Server

    commands = {name: _leaf(root.commands[name]) for name in _TOOLS}
    schemas = {name: _input(command) for name, command in commands.items()}

    async def listed(context: Any, params: Any) -> types.ListToolsResult:
        tools = [
            types.Tool(
                name=name,
                description=" ".join((root.commands[name].help or "").split("\n\n")[0].split()),
                input_schema=schemas[name],
                annotations=types.ToolAnnotations(read_only_hint=name in _READS),
            )
            for name in commands
        ]
        return types.ListToolsResult(tools=tools)

    async def called(context: Any, params: types.CallToolRequestParams) -> CallToolResult:
        given = dict(params.arguments or {})
        if params.name not in commands:
            return _failed(f"there is no tool {params.name}; there are {', '.join(commands)}")
        if wrong := [error.message for error in Draft202012Validator(schemas[params.name]).iter_errors(given)]:
            return _failed("\n".join(wrong))
        directory = given.pop("directory", None)
        words = [params.name, "--format", "json", *_words(commands[params.name], given)]
        return await _answer(words, directory)

    return Server("fsdp-migrate", version=version("fsdp-migrate"), on_list_tools=listed, on_call_tool=called)


def _leaf(command: click.Command) -> click.Command:
    """A group that is a command itself does it by its hidden ``run``."""
    return command.commands["run"] if isinstance(command, click.Group) else command


def _params(command: click.Command) -> Iterator[click.Parameter]:
    for param in command.params:
        if param.name not in _FOR_PEOPLE and not getattr(param, "hidden", False):
            yield param


def _input(command: click.Command) -> dict[str, Any]:
    """The JSON Schema of what a command can be given."""
    params = {str(param.name): param for param in _params(command)}
    required = [name for name, param in params.items() if param.required]
    properties = {name: _schema(param) for name, param in params.items()}
    if "command" in params:
        properties["command"]["description"] = (
            "The words of the command that starts the training, such as [torchrun, train.py]."
        )
    more = {"directory": _DIRECTORY}
    return {"type": "object", "properties": properties | more, "required": required, "additionalProperties": False}


def _schema(param: click.Parameter) -> dict[str, Any]:
    kinds = {"boolean": "boolean", "integer": "integer", "integer range": "integer", "float": "number"}
    schema: dict[str, Any] = {"type": kinds.get(param.type.name, "string")}
    if isinstance(param.type, click.Choice):
        schema["enum"] = list(param.type.choices)
    if param.multiple or param.nargs != 1:
        schema = {"type": "array", "items": schema}
    text = getattr(param, "help", None)
    return {**schema, "description": text} if text else schema


def _words(command: click.Command, given: Mapping[str, Any]) -> list[str]:
    """The command line of what a tool was given: options, and then arguments, which are never read as options."""
    options: list[str] = []
    arguments: list[str] = []
    for param in _params(command):
        value = given.get(str(param.name))
        values = value if isinstance(value, list) else [value]
        if value is None:
            continue
        if isinstance(param, click.Argument):
            arguments += map(str, values)
        elif isinstance(value, bool):
            options += param.opts[:1] if value else param.secondary_opts[:1]
        else:
            options += [f"{param.opts[0]}={each}" for each in values]
    return [*options, "--", *arguments]


async def _answer(words: list[str], directory: str | None) -> CallToolResult:
    """Run a command, and answer with the object that it prints, or the reason why it could not run."""
    import anyio
    from mcp import types

    command = [sys.executable, "-m", "fsdp_migrate", *words]
    try:
        # Standard input is that of the protocol.
        process = await anyio.open_process(command, stdin=subprocess.DEVNULL, cwd=directory)
    except OSError as error:
        return _failed(f"{directory}: {error.strerror or error}")
    out, errors = bytearray(), bytearray()

    async def read(stream: Any, into: bytearray) -> None:
        async for part in stream:
            into += part

    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(read, process.stdout, out)
            tasks.start_soon(read, process.stderr, errors)
        await process.wait()
    finally:
        if process.returncode is None:
            # It ends what it has started.
            process.terminate()
            with anyio.CancelScope(shield=True):
                await process.wait()
    said = errors.decode(errors="replace").strip()
    if not out:
        return _failed(said or f"it ended with exit code {process.returncode}")
    content = [types.TextContent(type="text", text=text) for text in (out.decode(), said) if text]
    return types.CallToolResult(content=[*content], structured_content=json.loads(out))


def _failed(reason: str) -> CallToolResult:
    from mcp import types

    return types.CallToolResult(content=[types.TextContent(type="text", text=reason)], is_error=True)
