"""How long the language server takes to answer a keystroke in a long file.

    python benchmarks/editor_keystroke.py [--lines 3000] [--rounds 7] [--output benchmarks/editor_keystroke.json]

Starts ``fsdp-migrate lsp``, opens a file of so many lines, and types one character in its middle, once a round,
when the server is at rest. Milliseconds, medians and the range:

- ``answer``: from the change to the diagnostics at their new lines.
- ``looked_at``: from the change to those of the whole file as it is now, with the pause of 300 ms before it.
- ``answer_while_looking``: as ``answer``, for characters that come every 150 ms while the server looks at the file.

Prints JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from lsprotocol import types  # noqa: E402
from pygls.lsp.client import LanguageClient  # noqa: E402

from benchmarks.conditions import conditions  # noqa: E402

HEAD = """from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def build(model):
    return FSDP(model, use_orig_params=True)
"""
PART = """

class Trainer{number}:
    def __init__(self, net, optimizer):
        self.model = {model}
        self.optimizer = optimizer

    def step(self, batch, targets):
        loss = (self.model(batch) - targets).square().mean()
        loss.backward()
        self.model.{method}
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.item()

    def count(self, values, limit=3):
        total = 0
        for value in values:
            if value > limit:
                total += value * {number}
        return total
"""


def source(lines: int) -> str:
    """A file of this length in which a few classes train a sharded model, and the others a plain one."""
    text, number = HEAD, 0
    while text.count("\n") < lines:
        wraps = number % 20 == 0
        model, method = ("build(net)", "clip_grad_norm_(1.0)") if wraps else ("net", "train()")
        text += PART.format(number=number, model=model, method=method)
        number += 1
    return text


async def measured(root: Path, text: str, rounds: int) -> dict[str, list[float]]:
    """Milliseconds of each round until the answers, and until the file has been looked at."""
    client = LanguageClient("benchmark", "1")
    published: asyncio.Queue[float] = asyncio.Queue()
    first_of: dict[int | None, float] = {}

    @client.feature(types.TEXT_DOCUMENT_PUBLISH_DIAGNOSTICS)
    def seen(said: types.PublishDiagnosticsParams) -> None:
        first_of.setdefault(said.version, time.perf_counter())
        published.put_nowait(time.perf_counter())

    await client.start_io(sys.executable, "-m", "fsdp_migrate", "lsp", cwd=root)
    capabilities = types.ClientCapabilities()
    await client.initialize_async(types.InitializeParams(capabilities=capabilities, root_uri=root.as_uri()))
    client.initialized(types.InitializedParams())
    uri = (root / "train.py").as_uri()
    item = types.TextDocumentItem(uri, "python", 1, text)
    client.text_document_did_open(types.DidOpenTextDocumentParams(item))
    await published.get()
    place = types.Position(text.count("\n") // 2, 0)

    def typed(version: int) -> float:
        change = types.TextDocumentContentChangePartial(types.Range(place, place), "#\n")
        document = types.VersionedTextDocumentIdentifier(version, uri)
        began = time.perf_counter()
        client.text_document_did_change(types.DidChangeTextDocumentParams(document, [change]))
        return began

    answers, looks, began = [], [], {}
    for number in range(rounds):
        start = typed(number + 2)
        answers.append(1000 * (await published.get() - start))
        looks.append(1000 * (await published.get() - start))
    # The pause passes, and a look begins.
    typed(rounds + 2)
    await asyncio.sleep(0.5)
    for number in range(rounds + 3, 2 * rounds + 3):
        began[number] = typed(number)
        await asyncio.sleep(0.15)
    await client.shutdown_async(None)
    client.exit(None)
    await client.stop()
    meanwhile = [1000 * (first_of[number] - start) for number, start in began.items()]
    return {"answer": answers, "looked_at": looks, "answer_while_looking": meanwhile}


def spread(values: list[float]) -> dict[str, float]:
    """The median and the range."""
    middle = statistics.median(values)
    return {"median": round(middle, 1), "least": round(min(values), 1), "most": round(max(values), 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lines", type=int, default=3000)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    text = source(arguments.lines)
    with tempfile.TemporaryDirectory() as name:
        root = Path(name).resolve()
        (root / "train.py").write_text(text, encoding="utf-8")
        times = asyncio.run(measured(root, text, arguments.rounds))
    found = {
        **conditions(),
        "lines": text.count("\n"),
        "rounds": arguments.rounds,
        **{name: spread(values) for name, values in times.items()},
    }
    written = json.dumps(found, indent=2) + "\n"
    if arguments.output:
        arguments.output.write_text(written, encoding="utf-8")
    print(written, end="")


if __name__ == "__main__":
    main()
