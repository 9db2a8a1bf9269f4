"""Which rules are lost where a program is written another way that means the same, by transformation.

python scripts/metamorphic.py
python scripts/metamorphic.py --record
python scripts/metamorphic.py --rules FSDP211,FSDP226 --only getattr,walrus --show 2
"""

from __future__ import annotations

import argparse
import collections
import json
import multiprocessing
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from fsdp_rules.engine.registry import all_rules  # noqa: E402  what is below is of the repository
from tests.fuzz import metamorphic  # noqa: E402  the repository is no package that is installed


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the losses and their share; 1 if there is a silent one."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rules", default="", help="only these rules, by id")
    parser.add_argument("--only", default="", help="only these transformations, by name")
    parser.add_argument("--show", type=int, default=0, help="print so many programs of each transformation")
    parser.add_argument("--record", action="store_true", help="write the silent losses for the tests")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    options = parser.parse_args(arguments)
    names = options.only.split(",") if options.only else list(metamorphic.TRANSFORMATIONS)
    rules = options.rules.split(",") if options.rules else [rule.id for rule in all_rules()]
    with multiprocessing.get_context("fork").Pool(options.jobs) as pool:
        cases = [(name, rule) for name in names for rule in rules]
        answers = pool.starmap(_one, cases, chunksize=8)
    counts: collections.Counter[tuple[str, bool]] = collections.Counter()
    for (name, _), (count, is_edit, _) in zip(cases, answers, strict=True):
        counts[name, is_edit] += count
    lost = [one for _, _, found in answers for one in found]
    for is_edit, title in ((False, "what is left to do or to review"), (True, "edits")):
        total = sum(counts[name, is_edit] for name in names)
        some = [one for one in lost if one.is_edit == is_edit]
        silent = sum(not one.added for one in some)
        print(
            f"{title}: {total} programs, {len(some)} lose their rule, {silent} ({silent / (total or 1):.2%}) silently"
        )
    by_name = {name: [one for one in lost if one.transformation == name] for name in names}
    for name in sorted(names, key=lambda name: -sum(not one.added for one in by_name[name])):
        if found := by_name[name]:
            _print(name, counts[name, False] + counts[name, True], found, options.show)
    if options.record:
        silent = {name: collections.Counter(one.rule for one in by_name[name] if not one.added) for name in names}
        record = {name: dict(sorted(found.items())) for name, found in silent.items() if found}
        metamorphic.RECORD.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return int(any(not one.added for one in lost))


def _one(name: str, rule_id: str) -> tuple[int, bool, list[metamorphic.Loss]]:
    """The number of programs that ``name`` makes of the example of the rule, whether it only edits, and the losses."""
    warnings.simplefilter("ignore")
    rule = next(rule for rule in all_rules() if rule.id == rule_id)
    if not metamorphic.speaks(rule):
        return 0, False, []
    programs = [*metamorphic.variants(rule, name)]
    found = [metamorphic.loss(rule, name, number, files) for number, files in enumerate(programs)]
    return len(programs), metamorphic.only_edits(rule), [one for one in found if one is not None]


def _print(name: str, count: int, lost: list[metamorphic.Loss], show: int) -> None:
    silent = [one for one in lost if not one.added]
    print(f"\n## {name}: {len(lost)} of {count} lost, {len(silent)} silently")
    kinds = collections.Counter((one.rule, one.is_edit, ", ".join(sorted(one.added))) for one in lost)
    for (rule, is_edit, added), number in sorted(kinds.items(), key=lambda entry: (bool(entry[0][2]), entry[0])):
        print(
            f"- {rule}{' (edit)' * is_edit} {number} times" + (f"; reported instead: {added}" if added else ", silent")
        )
    for one in silent[:show]:
        for path, text in one.files.items():
            print(f"\n{one.rule} #{one.variant} {path}\n```python\n{text}```")


if __name__ == "__main__":
    sys.exit(main())
