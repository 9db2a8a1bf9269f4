"""Writes what comes from the rules: a page under docs/ for each, their index, the table of names, and their words.

With ``--check`` nothing is written; exits 1 if a page is missing, stale or without a rule.
"""

from __future__ import annotations

import ast
import importlib
import json
import sys
import textwrap
from collections.abc import Iterator, Mapping
from itertools import groupby
from pathlib import Path
from typing import Any

from fsdp_migrate.report.rulebook import Page, explanation, pages
from fsdp_rules.configuration.config_registry import config_rules
from fsdp_rules.engine.catalogue import NAME, Catalogue
from fsdp_rules.engine.registry import all_rules
from fsdp_rules.fsdp1.api import KINDS, Entry, entries

DOCS = Path(__file__).resolve().parent.parent / "docs"
CATALOGUE = DOCS.parent / "rules" / "fsdp_rules" / "engine" / NAME
FEATURES = DOCS / "features.toml"
BENCHMARKS = DOCS.parent / "benchmarks"
#: What benchmarks/training_costs.py times, as the page says it.
TIMED = {
    "step": "training step",
    "save_sharded": "saving a sharded checkpoint",
    "load_sharded": "loading it",
    "save_full": "saving a full checkpoint on rank 0",
    "load_full": "loading it on all ranks",
}
CHAPTERS = {
    "1": "Construction",
    "2": "Training loop",
    "3": "State and optimizer",
    "4": "Checkpoints on disk",
    "5": "Configuration files",
    "6": "Edits that weaken the proof",
    "9": "Beyond reach",
}
VERDICTS = """\
- **exact**: FSDP2 has its own form, with the same numbers.
- **emulated**: the same numbers, with a helper of `fsdp_compat` or a few statements.
- **no-op**: FSDP2 always or never does it, so nothing is needed.
- **refused**: reported with advice, never dropped silently."""


def main(arguments: list[str]) -> int:
    """Write or check all pages; the exit code."""
    wanted = generated()
    stale = [path for path, text in wanted.items() if not path.is_file() or path.read_text(encoding="utf-8") != text]
    orphans = sorted(set((DOCS / "rules").glob("*.md")) - wanted.keys())
    if "--check" in arguments:
        for path in [*stale, *orphans]:
            print(f"{path.relative_to(DOCS.parent)} is stale: run make docs", file=sys.stderr)
        return 1 if stale or orphans else 0
    for path in stale:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(wanted[path], encoding="utf-8", newline="\n")
    for path in orphans:
        path.unlink()
    print(f"{len(wanted)} pages, {len(stale)} written, {len(orphans)} removed")
    return 0


def generated() -> dict[Path, str]:
    """The text of every generated page by its path."""
    known = pages()
    texts = {DOCS / "rules" / f"{page.id}.md": _text(_rule(page)) for page in known}
    return {
        **texts,
        DOCS / "rules.md": _text(_index(known)),
        DOCS / "coverage.md": _text(_coverage(entries())),
        DOCS / "features.md": _text(_features()),
        DOCS / "costs.md": _text(_costs()),
        CATALOGUE: Catalogue.of(all_rules()).text(),
    }


def features() -> list[dict[str, Any]]:
    """The rows of docs/features.toml: ``list``, ``name``, ``says`` and ``tests``."""
    toml = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    rows: list[dict[str, Any]] = toml.loads(FEATURES.read_text(encoding="utf-8"))["feature"]
    return rows


def _text(lines: Iterator[str]) -> str:
    return "\n".join(lines) + "\n"


def _rule(page: Page) -> Iterator[str]:
    yield from explanation(page)
    if assumed := _assumptions(page.id):
        yield from (
            "",
            "## Assumptions",
            "",
            "A `review` finding names the assumption that its change makes, one of these:",
            "",
        )
        yield from (f"- {text}" for text in assumed)
    names = [entry for entry in entries() if entry.rule == page.id]
    if names:
        yield from ("", "## Names", "")
        yield from (f"- {_spelled(entry)}: {entry.rewriter}" for entry in names)


def _assumptions(rule: str) -> list[str]:
    """What the messages of a rule assume: those of its file, and of the machinery of its room that it calls."""
    own = next((type(one) for one in (*all_rules(), *config_rules()) if one.id == rule), None)
    if own is None:
        return []
    room = own.__module__.rpartition(".")[0]
    modules = [own.__module__]
    # The machinery of a room is one step away, or two where a verdict chooses who writes.
    for _ in range(2):
        modules += [
            name for module in modules for name in _imported(module) if name.startswith((f"{room}._", f"{room}.keys"))
        ]
    found: dict[str, None] = {}
    for module in dict.fromkeys(modules):
        for message in _messages(_parsed(module)):
            assumed = message.replace("assuming ", "assumes ").partition("assumes ")[2].strip()
            if len(assumed.replace("…", "")) > len(" is "):
                found[assumed.replace("<", "&lt;")] = None
    return list(found)


def _parsed(module: str) -> ast.Module:
    return ast.parse(Path(str(importlib.import_module(module).__file__)).read_text(encoding="utf-8"))


def _imported(module: str) -> list[str]:
    return [node.module for node in ast.walk(_parsed(module)) if isinstance(node, ast.ImportFrom) and node.module]


def _messages(tree: ast.Module) -> Iterator[str]:
    """The texts of one line in a file, with three dots for each value."""
    parts = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in parts:
            yield node.value if "\n" not in node.value else ""


def _index(known: list[Page]) -> Iterator[str]:
    yield "# Rules"
    yield ""
    yield "`fsdp-migrate rules FSDP102` prints a page on the terminal, and the comment"
    yield "`# fsdp-migrate: ignore[FSDP102]` silences a rule on its line."
    for number, chapter in groupby(known, key=lambda page: page.id.removeprefix("FSDP")[0]):
        yield from ("", f"## {number}xx {CHAPTERS[number]}", "", "| id | name | |", "|---|---|---|")
        for page in chapter:
            yield f"| [{page.id}](rules/{page.id}.md) | {page.name} | {page.first_sentence} |"


def _coverage(listed: tuple[Entry, ...]) -> Iterator[str]:
    yield "# Every FSDP1 name and its FSDP2 equivalent"
    yield ""
    yield "Every argument, method, field and value of torch's FSDP1 has one verdict for the rewriter"
    yield "(`fsdp-migrate rewrite`) and one for the shim (`fsdp_compat`). A test reads torch's own signatures and"
    yield "fails on a name without a verdict."
    yield ""
    yield VERDICTS
    yield ""
    yield "| | names | exact | emulated | no-op | refused |"
    yield "|---|---|---|---|---|---|"
    for side in ("rewriter", "shim"):
        verdicts = [getattr(entry, side) for entry in listed]
        counts = [verdicts.count(verdict) for verdict in ("exact", "emulated", "no-op", "refused")]
        yield f"| {side} | {len(listed)} | " + " | ".join(map(str, counts)) + " |"
    for (kind, owner), group in groupby(listed, key=lambda entry: (entry.kind, entry.owner)):
        title = f"{KINDS[kind]} of `{owner}`" if owner not in ("fsdp", "wrap") else KINDS[kind]
        yield from ("", f"## {title}", "")
        yield "| FSDP1 | FSDP2 | rewriter | shim | torch | rule | |"
        yield "|---|---|---|---|---|---|---|"
        for entry in group:
            fsdp2 = f"`{entry.fsdp2}`" if _is_code(entry.fsdp2) else entry.fsdp2
            rule = f"[{entry.rule}](rules/{entry.rule}.md)"
            cells = [f"`{entry.name}`", fsdp2, entry.rewriter, entry.shim, entry.torch, rule, entry.note]
            yield f"| {' | '.join(cells)} |"


def _features() -> Iterator[str]:
    yield "# Requested FSDP2 features and their tests"
    yield ""
    yield "Two lists say what people miss when they leave FSDP1: the work list of FSDP2's eager mode (pytorch#120003)"
    yield "and the feature table of Composer's move to FSDP2. Each row is something that `fsdp_compat` does, with the"
    yield "tests that show it; they run with `make test`, and on GPUs with `make test-gpu`."
    for title, group in groupby(features(), key=lambda row: row["list"]):
        yield from ("", f"## The {title}", "", "| feature | in `fsdp_compat` | shown by |", "|---|---|---|")
        for row in group:
            yield f"| {row['name']} | {row['says']} | {'<br>'.join(map(_test, row['tests']))} |"


def _costs() -> Iterator[str]:
    found = json.loads((BENCHMARKS / "training_costs.json").read_text(encoding="utf-8"))
    machine, on_cuda = found["machine"], found["backend"] == "nccl"
    loads = [load for variant in found["variants"].values() for load in variant["load_average"]]
    parameters = [f"{found[model]['parameters']:,}" for model in ("model", "memory_model")]
    clock = "wall-clock times" if on_cuda else "CPU times, not wall-clock times"
    yield "<!-- Written by `make docs` from benchmarks/*.json; do not edit. -->"
    yield "# What it costs"
    yield ""
    yield from _paragraph(
        "A Llama-like model is written for FSDP1 (benchmarks/llama.py) and rewritten to native FSDP2 and to the "
        "shim. The three are trained in turn in the same processes. The figures are ratios to FSDP1 in the same "
        "run: 1 means equal, and lower is better. `make bench` repeats this, and uses GPUs if the machine has any."
    )
    yield ""
    yield from _paragraph(
        f"Measured on {found['date']} with {found['ranks']} processes over {found['backend']} on {machine['device']} "
        f"({machine['cores']} cores), torch {found['versions']['torch']}, Python {found['versions']['python']}, AdamW "
        f"and gradient clipping. Other work ran on the machine (load average {min(loads):g} to {max(loads):g}). The "
        f"figures are {clock}, medians of {found['rounds']} rounds with their quartiles. Times are measured "
        f"on a model with {parameters[0]} parameters, memory on one with {parameters[1]}."
    )
    for name, variant in found["variants"].items():
        title = name.replace("-checkpointing", " with activation checkpointing")
        yield from ("", f"## {title}", "", *_variant(variant, "wall" if on_cuda else "cpu"))
    yield from _loading_forms()
    yield from _saving_forms()
    yield from _costs_on_a_gpu()
    opened = json.loads((BENCHMARKS / "report_opening.json").read_text(encoding="utf-8"))
    times = opened["milliseconds"]
    middle = {what: f"{one['median']:.0f} ms" for what, one in times.items()}
    yield from ("", "## The HTML report", "")
    yield from _paragraph(
        f"A browser opens the report of {opened['findings']:,} findings ({opened['bytes'] / 1e6:.1f} MB) in "
        f"{middle['loaded']} (median of {opened['rounds']} rounds, {times['loaded']['least']:.0f} to "
        f"{times['loaded']['most']:.0f} ms) and shows its first contents after {middle['drawn']}. Its main thread "
        f"is busy for {middle['main_thread']}, a filter takes {middle['filter']} and a search {middle['search']}. "
        f"Measured "
        f"on {opened['date']} on {opened['machine']['cores']} cores with other work (load average "
        f"{opened['load_average'][0]:g}). "
        "`make bench-report` repeats it."
    )


def _loading_forms() -> Iterator[str]:
    found = json.loads((BENCHMARKS / "loading_forms.json").read_text(encoding="utf-8"))
    (width, timed), *_ = found["to_fsdp1"].items()
    yield from ("", "## Ways to load a full state", "")
    yield from _paragraph(
        "FSDP1 gathers its units, and each rank slices its shard out of the file. torch's loader for FSDP2 sends every "
        "tensor separately from rank 0, including the optimizer's, which explains the difference in time. If each rank "
        "slices out its own shard (`distribute_tensor(value, mesh, placements, src_data_rank=None)`, from torch 2.7), "
        "the difference disappears, and the memory peak is higher. If all ranks read one file, `rewrite` writes "
        "torch's loader with `broadcast_from_rank0=True` for the model and the optimizer, and its finding says so. "
        "This is `written` in the table: it has the lowest memory peak of torch's loaders, runs on torch 2.6, finds "
        "the names of a compiled model, and raises an error if one is missing. If ranks may hold different values (a "
        "file per rank, ignored modules, another process group), each rank loads its own state. All forms load the "
        "same values."
    )
    yield ""
    yield from _paragraph(
        f"Measured on {found['date']} with torch {found['versions']['torch']} and other work on the machine (load "
        f"average {found['load_average'][0]:g} to {found['load_average'][1]:g}): CPU time of {found['rounds']} "
        f"rounds with {found['parameters'][width]:,} parameters, peak anonymous memory while building and loading with "
        f"{found['parameters'][str(found['memory_width'])]:,}. benchmarks/loading_forms.py "
        "defines the forms and repeats the measurement."
    )
    yield from ("", "| form | time relative to FSDP1 | peak on rank 0 | peak on rank 1 |", "|---|---|---|---|")
    for form in dict.fromkeys([*timed["cpu"]["ms"], *found["peak_mib"]]):
        ratio = timed["cpu"]["ratio"].get(form)
        time = f"{timed['cpu']['ms'][form]:.0f} ms" if form == "fsdp1" else _ratio(ratio) if ratio else "not measured"
        peaks = [f"{peak:.0f} MiB" for peak in found["peak_mib"].get(form, ())] or ["not measured"] * 2
        yield f"| {form} | {time} | {' | '.join(peaks)} |"


def _saving_forms() -> Iterator[str]:
    found = json.loads((BENCHMARKS / "saving_forms.json").read_text(encoding="utf-8"))
    timed = found["to_fsdp1"]["cpu"]
    yield from ("", "## Ways to gather a full state", "")
    yield from _paragraph(
        "Looking up names and states is a small part of the time to gather a full state (`states`); the rest is "
        "sending the parts and concatenating them. Other ways gather the same values and take longer, so `rewrite` "
        "writes torch's function (`written`). The measurement compares `full_tensor()` of each tensor, sending the "
        "parts of each to "
        "rank 0 alone (`gathered`), and sending those of all tensors to it at once (`in one`)."
    )
    yield ""
    yield from _paragraph(
        f"Measured on {found['date']} with torch {found['versions']['torch']} and other work on the machine (load "
        f"average {found['load_average'][0]:g} to {found['load_average'][1]:g}): CPU time of {found['rounds']} rounds "
        f"with {found['parameters']:,} parameters in {found['tensors']} tensors. "
        "benchmarks/saving_forms.py defines the forms and repeats the measurement."
    )
    yield from ("", "| form | time relative to FSDP1 |", "|---|---|")
    for form, spent in timed["ms"].items():
        yield f"| {form} | {f'{spent:.0f} ms' if form == 'fsdp1' else _ratio(timed['ratio'][form])} |"


def _costs_on_a_gpu() -> Iterator[str]:
    found = json.loads((BENCHMARKS / "training_costs_cuda.json").read_text(encoding="utf-8"))
    yield from ("", "## On a GPU", "")
    yield from _paragraph(
        f"Measured on {found['date']} with {found['ranks']} processes that share one {found['machine']['device']}, "
        f"NCCL over sockets, torch {found['versions']['torch']}, median wall-clock times of {found['rounds']} rounds. "
        "On a shared GPU, the ranks' collectives and kernels take turns, so these times show neither overlap "
        "nor what ranks with one GPU each would take. Memory is the peak of torch's allocator. Other variants and "
        "more GPUs were not measured; `make bench` runs them if the machine has GPUs."
    )
    for name, variant in found["variants"].items():
        yield from ("", f"### {name} on a GPU", "", *_variant(variant, "wall"))


def _variant(variant: Mapping[str, Any], clock: str) -> Iterator[str]:
    calls = {side: sum(parts.values()) for side, parts in variant["calls"].items()}
    before, after = variant["calls"]["fsdp1"], variant["calls"]["native"]
    loops = sum(after[part] - before[part] for part in ("clip", "update"))
    equal = "are equal bit for bit" if variant["same_losses"] else "are not all equal"
    yield from _paragraph(
        f"Before clipping, the losses of all three {equal}. Clipping and the optimizer step work on DTensors and add "
        f"{loops:,} Python calls to a step of native FSDP2."
    )
    yield from ("", "| | FSDP1 | native FSDP2 | shim |", "|---|---|---|---|")
    for work, title in TIMED.items():
        times = variant["times"][work][clock]
        ratios = [_ratio(times["to_fsdp1"][side]) for side in ("native", "shim")]
        yield f"| {title} | {times['ms']['fsdp1']:.0f} ms | {' | '.join(ratios)} |"
    peaks = variant["peak_to_fsdp1"]
    yield f"| peak memory | {variant['peak_mib']['fsdp1']:.0f} MiB | {peaks['native']:.2f} | {peaks['shim']:.2f} |"
    shares = [f"{calls[side] / calls['fsdp1']:.2f}" for side in ("native", "shim")]
    yield f"| Python function calls in a step | {calls['fsdp1']:,} | {' | '.join(shares)} |"
    collectives = [str(sum(variant["collectives"][side].values())) for side in ("fsdp1", "native", "shim")]
    yield f"| collectives of forward and backward (count) | {' | '.join(collectives)} |"


def _paragraph(text: str) -> list[str]:
    return textwrap.wrap(text, 120, break_long_words=False, break_on_hyphens=False)


def _ratio(found: Mapping[str, float]) -> str:
    return f"{found['median']:.2f} ({found['low']:.2f} to {found['high']:.2f})"


def _test(node: str) -> str:
    file, _, name = node.partition("::")
    return f"[`{name}`](../{file})"


def _is_code(text: str) -> bool:
    return bool(text) and (" " not in text or "(" in text or "=" in text)


def _spelled(entry: Entry) -> str:
    if entry.kind == "argument":
        return f"`{entry.owner}({entry.name}=)`"
    if entry.kind in ("class", "policy"):
        return f"`{entry.name}`"
    return f"`{entry.owner}.{entry.name}`"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
