"""The facts of configuration and scripts, line by line: numbers, loads that need not match, and tests left out."""

from __future__ import annotations

import re

from fsdp_migrate.check.weakening.proof_facts import Facts, Number, Text, kind_of

_SETTING = re.compile(
    r"(?<![\w.-])(?:--)?[\"']?(?P<name>[A-Za-z][\w-]*)[\"']?(?:\s*[:=]\s*|\s+)[\"']?(?P<value>\d[\w.+-]*)"
)
_LAX = re.compile(r"[\"']?\bstrict[\"']?\s*[:=]\s*(?:false|no|0)\b", re.IGNORECASE)
_DESELECTED = re.compile(r"--ignore(?:-glob)?[= ]|--deselect|\bnorecursedirs\b|\bcollect_ignore|-[km][= ]*[\"'\\]*not ")
_PASSED = re.compile(r"\|\|\s*true\b|\bcontinue-on-error:\s*true\b|\ballow_failure:\s*true\b")
_IGNORE = re.compile(r"#\s*fsdp-migrate:\s*ignore.*")


def text_facts(source: bytes) -> Facts:
    """The facts of ``source``, whatever its format is."""
    facts = Facts()
    for number, line in enumerate(source.decode("utf-8", errors="replace").splitlines(), start=1):
        plain = line.strip()
        facts.lines.append(plain)
        if found := _IGNORE.search(plain):
            facts.ignores.append(Text(" ".join(found[0].split()), "", number))
        code = re.split(r"(?:^|\s)#", plain, maxsplit=1)[0]
        if _LAX.search(code):
            facts.lax.append(Text(code, "", number))
        if _DESELECTED.search(code) or _PASSED.search(code):
            facts.skips.append(Text(code, "", number))
        for setting in _SETTING.finditer(code):
            kind = kind_of(setting["name"])
            try:
                value = float(setting["value"])
            except ValueError:
                continue
            if kind:
                name = setting["name"].replace("-", "_")
                facts.numbers.append(Number(kind, name, value, "", number))
    return facts
