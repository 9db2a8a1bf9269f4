"""How long a browser takes to open the HTML report of a rewrite, to filter it, and to search in it.

    python benchmarks/report_opening.py [--findings 1000] [--rounds 7] [--output benchmarks/report_opening.json]

Writes the report of a run with so many findings of all levels, 20 to a file, and opens it in Debian's Chromium without
a window. Every round is a new tab. Milliseconds, medians and the range:

- ``loaded``: from the start of the navigation to the end of the load event, with all scripts run.
- ``drawn``: to the first contents on the screen.
- ``main_thread``: CPU time of the page's main thread until then, which other work on the machine hardly changes.
- ``filter`` and ``search``: from the event to the second frame after it, without the pause for typing.

Prints JSON.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from selenium import webdriver
from selenium.webdriver.chrome.service import Service

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.conditions import conditions, write  # noqa: E402
from fsdp_migrate.pipeline.outcome import FileOutcome, RunResult  # noqa: E402
from fsdp_migrate.report.rewrite import html_report  # noqa: E402
from fsdp_rules.verdict.finding import Finding, Level  # noqa: E402
from fsdp_rules.verdict.result import Changed  # noqa: E402

IN_A_FILE = 20
LEVELS = (Level.SAFE, Level.REVIEW, Level.MANUAL, Level.SAFE, Level.INFO)
OPTIONS = ("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking")
LOADED = """
const [entry] = performance.getEntriesByType("navigation");
const paint = performance.getEntriesByName("first-contentful-paint")[0];
return {loaded: entry.loadEventEnd, drawn: paint ? paint.startTime : null};
"""
REACTION = """
const [selector, value, done] = arguments;
const start = performance.now();
const field = document.querySelector(selector);
if (field.type === "checkbox") field.checked = false;
else field.value = value;
field.dispatchEvent(new Event("change", {bubbles: true}));
requestAnimationFrame(() => requestAnimationFrame(() => done(performance.now() - start)));
"""


def report(findings: int) -> str:
    """The page of a run whose files have wraps, gates and loops around 20 findings each."""
    outcomes = []
    for number in range(-(-findings // IN_A_FILE)):
        path = f"training/stage_{number % 7}/model_{number}.py"
        before, after, found = [], [], []
        for block in range(min(IN_A_FILE, findings - number * IN_A_FILE)):
            head = [f"def build_{block}(model, settings, rank):", f'    """Stage {block} of the model."""']
            before += [*head, "    model = FSDP(model, auto_wrap_policy=policy, device_id=rank)"]
            level = LEVELS[(number + block) % len(LEVELS)]
            line = len(before)
            found.append(
                Finding(f"FSDP{101 + block % 9}", f"rule-{block % 9}", path, line, 12, line, 64, level, MESSAGE, ADVICE)
            )
            after += [*head, "    for module in model.blocks:", "        fully_shard(module, mesh=mesh)"]
            after += ["    fully_shard(model, mesh=mesh)"]
            rest = [f"    step_{block} = settings[{step}] + rank * {step}" for step in range(12)] + [
                "    return model",
                "",
            ]
            before += rest
            after += rest
        old, new = ("\n".join(lines).encode() for lines in (before, after))
        outcomes.append(FileOutcome(path, Path(f"/{path}"), old, Changed(new, tuple(found))))
    return html_report.render(RunResult(("training",), True, len(outcomes), tuple(outcomes)))


MESSAGE = "fully_shard shards each module that the policy selects, assuming the modules exist before the first call"
ADVICE = "Compare the names of the sharded modules with those of FSDP1."


def measure(file: Path, rounds: int) -> dict[str, list[float]]:
    """Milliseconds of each round."""
    program, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if program is None or driver is None:
        raise SystemExit("this benchmark needs Debian's packages chromium and chromium-driver")
    found: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as profile:
        options = webdriver.ChromeOptions()
        options.binary_location = program
        for option in (*OPTIONS, f"--user-data-dir={profile}", "--window-size=1400,900"):
            options.add_argument(option)
        browser = webdriver.Chrome(options=options, service=Service(driver))
        browser.set_script_timeout(120)
        try:
            for _ in range(rounds + 1):
                for name, value in _round(browser, file).items():
                    found.setdefault(name, []).append(value)
        finally:
            browser.quit()
    # The first one starts the browser's processes.
    return {name: values[1:] for name, values in found.items()}


def _round(browser: webdriver.Chrome, file: Path) -> dict[str, float]:
    browser.switch_to.new_window("tab")
    browser.execute_cdp_cmd("Performance.enable", {"timeDomain": "threadTicks"})
    browser.get(file.as_uri())
    times: dict[str, Any] = browser.execute_script(LOADED)
    metrics = {one["name"]: one["value"] for one in browser.execute_cdp_cmd("Performance.getMetrics", {})["metrics"]}
    times["main_thread"] = 1000 * metrics["TaskDuration"]
    times["filter"] = browser.execute_async_script(REACTION, "input[value=review]", "")
    times["search"] = browser.execute_async_script(REACTION, "#search", "stage_3 build_7")
    browser.close()
    browser.switch_to.window(browser.window_handles[0])
    return {name: value for name, value in times.items() if value is not None}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--findings", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--output", type=Path, help="write the JSON here too")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "report.html"
        file.write_text(report(options.findings), encoding="utf-8")
        size = file.stat().st_size
        load = os.getloadavg()[0]
        found = measure(file, options.rounds)
    result = {
        **conditions(),
        "load_average": [round(load, 1), round(os.getloadavg()[0], 1)],
        "findings": options.findings,
        "bytes": size,
        "rounds": options.rounds,
        "milliseconds": {
            name: {
                "median": round(statistics.median(values), 1),
                "least": round(min(values), 1),
                "most": round(max(values), 1),
            }
            for name, values in found.items()
        },
    }
    write(result, options.output)


if __name__ == "__main__":
    main()
