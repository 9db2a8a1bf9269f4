"""Whether the output of a rewrite has a bug that people met after they had migrated by hand."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any


def outcome(
    bug: Mapping[str, Any], findings: Iterable[Mapping[str, Any]], before: Mapping[str, str], after: Mapping[str, str]
) -> str:
    """has, avoids, names or unjudged.

    ``bug`` may have the regular expressions ``has`` and ``avoids``, which are searched for in the files that the
    rewrite changed, and ``names``, rules whose finding tells the user of it.
    """
    changed = [text for path, text in after.items() if text != before.get(path)]
    for verdict in ("has", "avoids"):
        if verdict in bug and any(re.search(bug[verdict], text) for text in changed):
            return verdict
    if any(finding["rule"] in bug.get("names", ()) for finding in findings):
        return "names"
    return "unjudged"
