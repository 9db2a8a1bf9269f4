"""Makes a release of both distributions: version, changelog, commit and tag.

    python scripts/release.py 0.2.0 --dry-run    # print what would change
    python scripts/release.py 0.2.0              # change it, commit, and tag v0.2.0
    python scripts/release.py 0.2.0 --push       # the same, and push both: .github/workflows/release.yml publishes them

Refuses a version that is not newer, a changelog with nothing under "Unreleased", and a working tree with changes.
"""

from __future__ import annotations

import argparse
import datetime
import difflib
import re
import subprocess
import sys
from pathlib import Path

from packaging.version import InvalidVersion, Version

VERSION_FILE = Path("shim/fsdp_compat/_version.py")
CHANGELOG = Path("CHANGELOG.md")
_VERSION = re.compile(r'(?<=__version__ = ")[^"]+')
_UNRELEASED = re.compile(r"^## Unreleased\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)


class Refused(Exception):
    """The release cannot be made; the message says why."""


def planned(root: Path, wanted: str, day: str) -> dict[Path, str]:
    """The new texts of the files that change. Raises :class:`Refused`."""
    module, changelog = (root / path for path in (VERSION_FILE, CHANGELOG))
    text = module.read_text(encoding="utf-8")
    found = _VERSION.search(text)
    if found is None:
        raise Refused(f"{VERSION_FILE} has no version")
    try:
        if Version(wanted) <= Version(found[0]) and f"## {wanted} " in changelog.read_text(encoding="utf-8"):
            raise Refused(f"{wanted} is released already")
        if Version(wanted) < Version(found[0]):
            raise Refused(f"{wanted} is not newer than {found[0]}")
    except InvalidVersion as error:
        raise Refused(f"{wanted} is not a version: use for example 0.2.0") from error
    changes = changelog.read_text(encoding="utf-8")
    unreleased = _UNRELEASED.search(changes)
    if unreleased is None or not re.search(r"^- ", unreleased[1], re.MULTILINE):
        raise Refused(f'{CHANGELOG} has nothing under "## Unreleased"')
    heading = f"## Unreleased\n\n## {wanted} ({day})\n"
    return {
        module: _VERSION.sub(wanted, text, count=1),
        changelog: changes.replace("## Unreleased\n", heading, 1),
    }


def release(root: Path, wanted: str, dry_run: bool, push: bool) -> None:
    """Carry it out in the repository at ``root``, or print what it would be. Raises :class:`Refused`."""
    files = planned(root, wanted, datetime.date.today().isoformat())
    tag = f"v{wanted}"
    if _git(root, "tag", "--list", tag):
        raise Refused(f"the tag {tag} exists already")
    if dry_run:
        for path, text in files.items():
            name = str(path.relative_to(root))
            old = path.read_text(encoding="utf-8").splitlines(keepends=True)
            sys.stdout.writelines(difflib.unified_diff(old, text.splitlines(keepends=True), f"a/{name}", f"b/{name}"))
        print(f"would commit this and tag it {tag}")
        return
    if _git(root, "status", "--porcelain"):
        raise Refused("the working tree has changes: commit or stash them first")
    for path, text in files.items():
        path.write_text(text, encoding="utf-8")
    _git(root, "commit", "--quiet", "--message", f"Release {wanted}", "--", *map(str, files))
    _git(root, "tag", "--annotate", tag, "--message", f"fsdp-migrate and fsdp-compat {wanted}")
    if push:
        # Both or none: a tag alone would publish a commit that the branch does not have.
        _git(root, "push", "--quiet", "--atomic", "origin", "HEAD", tag)
    print(f"committed and tagged {tag}" + (", and pushed" if push else ". Next: git push --follow-tags"))


def _git(root: Path, *command: str) -> str:
    done = subprocess.run(["git", *command], cwd=root, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Refused(f"git {command[0]} failed: {done.stderr.strip()}")
    return done.stdout.strip()


def main() -> int:
    """Parse the arguments; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("version")
    parser.add_argument("--dry-run", action="store_true", help="print what would change")
    parser.add_argument("--push", action="store_true", help="also push commit and tag to origin")
    asked = parser.parse_args()
    try:
        release(Path(__file__).resolve().parent.parent, asked.version, asked.dry_run, asked.push)
    except Refused as error:
        print(f"Error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
