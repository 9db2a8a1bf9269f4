"""Runs the shim's tests on several versions of torch and Python, each in an environment of its own under .matrix/.

Without versions named it runs all of VERSIONS. What test files of the shim yield on a version replaces what
docs/torch-versions.json has of the same files and the same torch, and docs/torch-versions.md is written from it; with
``--page`` the page alone. Exits 1 if a test fails anywhere.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import datetime
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from packaging.version import Version

ROOT = Path(__file__).resolve().parent.parent
ENVIRONMENTS = ROOT / ".matrix"
DATA = ROOT / "docs" / "torch-versions.json"
PAGE = ROOT / "docs" / "torch-versions.md"
GATES = ROOT / "shim" / "fsdp_compat" / "torch_" / "versions.py"
# By torch, from the oldest that has fully_shard to the newest: the Python that it is run with, if this machine has it.
VERSIONS = {
    "2.6": "3.10",
    "2.8": "3.12",
    "2.10": "3.11",
    "2.12": "3.12",
    "2.13": "3.13",
    "2.14": "3.14",
    "2.15": "3.13",
}
NEEDED = """\
To train, rewritten code and the shim need torch 2.6 or newer; `--torch` sets the release that a rewrite targets."""
GAPS = """\
The shim tests these conditions when it is imported. Rewritten code that does not import it gets torch's own behaviour:
on the CPU, it needs torch 2.8 to run a forward, and 2.10 to average over gloo."""
ASKED = """\
The tests of `tests/shim` (on the CPU, with gloo, most of them against real FSDP1) were run on these releases. `make
test` runs all of them on torch 2.13. A test that needs a feature its torch lacks is skipped. When a change for one
release touched a test file, that file was run again on that release. The number after each commit is the number of
files that were run at that commit."""
DIRECTORY = "tests/shim"


@dataclass(frozen=True)
class Portion:
    """What came out of test files that ran together, at one commit.

    ``passed`` holds how many tests passed in each file, also in those in which none did. ``failed`` holds (file, test,
    first line of what it said), ``skipped`` (file, reason).
    """

    commit: str
    date: str
    passed: Mapping[str, int]
    failed: tuple[tuple[str, str, str], ...]
    skipped: tuple[tuple[str, str], ...]

    def without(self, files: Collection[str]) -> Portion:
        """What remains if other runs say more of ``files``."""
        return dataclasses.replace(
            self,
            passed={file: count for file, count in self.passed.items() if file not in files},
            failed=tuple(entry for entry in self.failed if entry[0] not in files),
            skipped=tuple(entry for entry in self.skipped if entry[0] not in files),
        )


@dataclass(frozen=True)
class Result:
    """What came out on one version, in portions that have no file in common."""

    version: str
    torch: str
    python: str
    portions: tuple[Portion, ...]

    @property
    def files(self) -> int:
        return sum(len(portion.passed) for portion in self.portions)

    @property
    def passed(self) -> int:
        return sum(sum(portion.passed.values()) for portion in self.portions)

    @property
    def failed(self) -> list[tuple[str, str]]:
        """The tests that failed, each with the first line of what it said."""
        return [(f"{file}::{test}", said) for portion in self.portions for file, test, said in portion.failed]

    @property
    def skipped(self) -> list[str]:
        """The reasons of the tests that were skipped."""
        return [reason for portion in self.portions for _, reason in portion.skipped]

    def after(self, earlier: Result) -> Result:
        """This and what it does not replace of an ``earlier`` result, of which nothing is left with another torch."""
        if (earlier.torch, earlier.python) != (self.torch, self.python):
            return self
        again = {file for portion in self.portions for file in portion.passed}
        rest = [portion.without(again) for portion in earlier.portions]
        return dataclasses.replace(self, portions=(*(portion for portion in rest if portion.passed), *self.portions))


@dataclass(frozen=True)
class Gate:
    """One condition of the shim on the version of torch, and the reason for it."""

    name: str
    since: Version
    reason: str


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the matrix; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("versions", nargs="*", metavar="X.Y", help="run these alone")
    parser.add_argument("--tests", nargs="+", default=[DIRECTORY], help=f"what pytest is given ({DIRECTORY})")
    parser.add_argument("--page", action="store_true", help="write the page from the last results, and run nothing")
    options = parser.parse_args(arguments)
    if options.page:
        write_page()
        return 0
    wrong = [version for version in options.versions if not re.fullmatch(r"\d+\.\d+", version)]
    if wrong:
        parser.error(f"{', '.join(wrong)}: a version is named by its first two numbers, like {next(iter(VERSIONS))}")
    failed = False
    for version in options.versions or VERSIONS:
        started = time.monotonic()
        python = environment(version, interpreter(VERSIONS.get(version)))
        result = run_tests(version, python, options.tests)
        failed |= bool(result.failed)
        print(
            f"torch {result.torch}: {result.passed} passed, {len(result.failed)} failed, {len(result.skipped)} "
            f"skipped, after {(time.monotonic() - started) / 60:.1f} minutes",
            flush=True,
        )
        for test, said in result.failed:
            print(f"  {test}: {said}", flush=True)
        if all(whole_files(test) for test in options.tests):
            record(result)
            write_page()
    return 1 if failed else 0


def whole_files(test: str) -> bool:
    """Whether what pytest is given are whole test files of the shim."""
    return test == DIRECTORY or bool(re.fullmatch(rf"{DIRECTORY}/test_\w+\.py", test))


def record(result: Result) -> None:
    """Put ``result`` in the place of what the last results have of the same files on the same version."""
    results = {earlier.version: earlier for earlier in read_results()[0]}
    earlier = results.get(result.version)
    results[result.version] = result.after(earlier) if earlier else result
    ordered = sorted(results.values(), key=lambda result: Version(result.version))
    found = {"results": [dataclasses.asdict(result) for result in ordered], "files": test_files()}
    DATA.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def read_results() -> tuple[list[Result], int]:
    """The last results, and how many files of tests the shim had then."""
    data = json.loads(DATA.read_text(encoding="utf-8"))
    results = [
        Result(**{**result, "portions": tuple(Portion(**portion) for portion in result["portions"])})
        for result in data["results"]
    ]
    return results, data["files"]


def interpreter(release: str | None) -> str:
    """The interpreter of a release of Python; this one if there is none on this machine."""
    found = release and shutil.which(f"python{release}")
    # A version manager's stand-in is found for releases that are not chosen, and fails.
    if found and subprocess.run([found, "-c", "import venv"], capture_output=True, check=False).returncode == 0:
        return found
    return sys.executable


def environment(version: str, base: str) -> Path:
    """The interpreter of an environment with the newest torch ``version``.* and the project, installed if need be."""
    directory = ENVIRONMENTS / version
    python = directory / "bin" / "python"
    stamp = directory / ".installed"
    wanted = (ROOT / "pyproject.toml").read_text()
    if stamp.exists() and stamp.read_text() == wanted:
        return python
    if not python.exists():
        subprocess.run([base, "-m", "venv", str(directory)], check=True)
    install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*install, "--editable", f"{ROOT}[dev]", f"torch=={version}.*"], check=True)
    stamp.write_text(wanted)
    return python


def run_tests(version: str, python: Path, tests: Sequence[str]) -> Result:
    """Run ``tests`` with ``python``; RuntimeError if pytest did not run all of them."""
    commit = checked_out()
    asked = "import platform, torch; print(torch.__version__, platform.python_version())"
    torch, release = subprocess.run([python, "-c", asked], check=True, capture_output=True, text=True).stdout.split()
    report = ENVIRONMENTS / version / "report.xml"
    report.unlink(missing_ok=True)
    command = [str(python), "-m", "pytest", "-q", "-m", "", "-p", "no:cacheprovider", f"--junit-xml={report}", *tests]
    with (ENVIRONMENTS / version / "output.txt").open("w") as output:
        variables = {**os.environ, "OMP_NUM_THREADS": "1"}
        ended = subprocess.run(command, cwd=ROOT, env=variables, stdout=output, stderr=output).returncode
    # 1: tests failed. With any other code the report is of a part of the tests, or of none.
    if ended not in (0, 1):
        raise RuntimeError(f"pytest ended with {ended} on torch {torch}; see {output.name}")
    today = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
    return Result(version, torch, release, (read_report(report, commit, today),))


def checked_out() -> str:
    """The commit of the shim and its tests, with a + if they were changed since."""

    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()

    return git("rev-parse", "--short=9", "HEAD") + ("+" if git("status", "--porcelain", "shim", "tests") else "")


def read_report(report: Path, commit: str, date: str) -> Portion:
    """What pytest has written to ``report``. An error while a test is collected or set up is a failure."""
    passed: dict[str, int] = {}
    failed, skipped = [], []
    for case in ElementTree.parse(report).iter("testcase"):
        # A file that cannot be collected is a case without a class.
        file = (case.get("classname") or case.get("name", "")).rpartition(".")[2]
        passed.setdefault(file, 0)
        bad = [*case.iter("failure"), *case.iter("error")]
        left_out = case.find("skipped")
        if bad:
            failed.append((file, case.get("name", ""), _first_line(bad[0])))
        elif left_out is not None:
            skipped.append((file, left_out.get("message", "")))
        else:
            passed[file] += 1
    return Portion(commit, date, passed, tuple(failed), tuple(skipped))


def _first_line(failure: ElementTree.Element) -> str:
    """What went wrong. A job of several processes tells it last, after the traceback."""
    # The message is cut short by pytest; what was raised stands behind an E in the text as well.
    told = [line[1:].strip() for line in (failure.text or "").splitlines() if line.startswith("E  ")]
    lines = [line for line in told or (failure.get("message") or "").splitlines() if line.strip()]
    errors = [line for line in lines if re.match(r"[A-Za-z_.]*(Error|Exception|Warning)\b", line)]
    return (errors or lines or ["no message"])[-1].strip()[:300]


def gates(source: str) -> list[Gate]:
    """The conditions in the text of versions.py: a comment, and the version since which they hold."""
    pattern = r"((?:^#.*\n)+)^(\w+) = Version\(\"([\d.]+)\"\) <= TORCH"
    return [
        Gate(name, Version(since), " ".join(line.lstrip("# ") for line in comment.splitlines()))
        for comment, name, since in re.findall(pattern, source, re.MULTILINE)
    ]


def write_page() -> None:
    """Write docs/torch-versions.md from the last results."""
    PAGE.write_text(page(*read_results(), gates(GATES.read_text(encoding="utf-8"))), encoding="utf-8")


def test_files() -> int:
    """How many files of tests the shim has."""
    return len(list((ROOT / DIRECTORY).glob("test_*.py")))


def page(results: Sequence[Result], every: int, conditions: Sequence[Gate]) -> str:
    """The text of docs/torch-versions.md. A whole run is one of ``every`` file of tests."""
    whole = len([result for result in results if result.files >= every])
    runs = "all" if whole == len(results) else whole or "none"
    passed, failed = sum(result.passed for result in results), sum(len(result.failed) for result in results)
    lines = ["<!-- Written by `make matrix`; do not edit. -->", "# Versions of torch", ""]
    lines += [
        f"**{NEEDED}**",
        "",
        f"On {len(results)} releases {passed} tests passed and {failed} failed; {runs} of these releases ran all "
        f"{every} test files.",
        "",
        "## What you lose on an older torch",
        "",
        GAPS,
        "",
        "| before torch | difference | condition in the shim |",
        "|---|---|---|",
    ]
    ordered = sorted(conditions, key=lambda gate: gate.since, reverse=True)
    lines += [f"| {gate.since} | {gate.reason} | `{gate.name}` |" for gate in ordered]
    lines += ["", "The conditions are in `shim/fsdp_compat/torch_/versions.py`.", "", "## What was run", "", ASKED, ""]
    lines += ["| torch | python | test files | passed | failed | skipped | commits |"]
    lines += ["|---|---|---|---|---|---|---|"]
    for result in results:
        counts = f"{result.passed} | {len(result.failed)} | {len(result.skipped)}"
        commits = ", ".join(f"{part.commit} of {part.date} ({len(part.passed)})" for part in result.portions)
        lines.append(f"| {result.torch} | {result.python} | {result.files} of {every} | {counts} | {commits} |")
    lines += _missing(results)
    for result in results:
        if result.failed or result.skipped:
            lines += [
                "",
                f"## Skipped on torch {result.torch}" if not result.failed else f"## torch {result.torch}",
                "",
            ]
        lines += [f"- failed: `{test}`: {said}" for test, said in result.failed]
        reasons = collections.Counter(result.skipped)
        lines += [f"- {count} skipped: {reason}" for reason, count in sorted(reasons.items())]
    return "\n".join([*lines, ""])


def _missing(results: Sequence[Result]) -> list[str]:
    """What VERSIONS asks for and no result has: a release, or a release with that Python."""
    pythons = {result.version: ".".join(result.python.split(".")[:2]) for result in results}
    absent = [version for version in VERSIONS if version not in pythons]
    other = {version: (asked, pythons[version]) for version, asked in VERSIONS.items() if version in pythons}
    lines = [f"- torch {version}: not run" for version in absent]
    lines += [
        f"- torch {version} on Python {asked}, which the test machine did not have: Python {had} was used instead"
        for version, (asked, had) in other.items()
        if asked != had
    ]
    return ["", "Not tested:", "", *lines] if lines else []


if __name__ == "__main__":
    sys.exit(main())
