"""One requirement of a file, whichever syntax its version has."""

from __future__ import annotations

import re
from collections.abc import Iterator
from urllib.parse import unquote, urlsplit

from packaging.markers import Marker, UndefinedEnvironmentName
from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from fsdp_migrate.tree.formats.entry import Entry

#: Every release.
ANY = SpecifierSet()
#: Where FSDP trains. Markers are read for it and for every Python that has FSDP2, on any machine.
_LINUX = {
    "implementation_name": "cpython",
    "os_name": "posix",
    "platform_machine": "x86_64",
    "platform_python_implementation": "CPython",
    "platform_release": "",
    "platform_system": "Linux",
    "platform_version": "",
    "sys_platform": "linux",
    "extra": "",
}
_PYTHONS = tuple(f"3.{minor}" for minor in range(9, 15))
#: A version with a local label or a wildcard, which only ``==`` and ``!=`` take, and older releases of pip took.
_LOOSE = re.compile(r"([<>~]=?\s*[\w.]+?)(?:\.\*|\+[\w.]+)+(?=\s*(?:,|;|$))")
#: A pin with one sign, as conda writes it, with or without the name of a build.
_CONDA = re.compile(r"(?P<name>[\w.-]+)\s*(?:(?P<more>[<>!~=]=.*|[<>].*)|(?:=\s*|\s+)(?P<pin>[\w.*+!]+)(?:[=\s].*)?)?")
_TAG = re.compile(r"@v?(?P<version>\d[\w.]*)$")


def requirement(text: str, line: int = 1) -> Entry | None:
    """A requirement as PEP 508 has it, or as older releases of pip took it; None for anything else."""
    for spelling in (text, _LOOSE.sub(r"\1", text)):
        try:
            parsed = Requirement(spelling)
        except InvalidRequirement:
            continue
        if not applies(parsed.marker):
            return None
        allowed = parsed.specifier or (of_url(parsed.url) if parsed.url else None) or ANY
        return _entry(parsed.name, allowed, re.escape(text), line)
    return None


def conda(text: str, line: int = 1) -> Entry | None:
    """A requirement as conda matches it: ``channel::name=2.5``, ``name 2.5.* build``, ``name >=2,<3``."""
    plain = re.sub(r"\[.*\]\s*$", "", text.rpartition("::")[2]).strip()
    found = _CONDA.fullmatch(plain)
    if not found:
        return None
    name = "torch" if found["name"].lower() == "pytorch" else found["name"]
    pin = found["pin"]
    allowed = specifier(found["more"] or "") if not pin else specifier(f"=={pin.rstrip('.*')}.*" if pin != "*" else "")
    return None if allowed is None else _entry(name, allowed, re.escape(text), line)


def table_entry(name: str, version: str) -> Entry | None:
    """An entry of a table by names, as poetry, pixi and pipenv write it, with the operators of poetry."""
    pattern = rf"^[ \t]*[\"']?{re.escape(name)}[\"']?\s*=[^\n]*"
    allowed = specifier(_poetry(version))
    return None if allowed is None else _entry(name, allowed, pattern, 1)


def pinned(name: str, version: str, pattern: str) -> Entry | None:
    """What a lock file holds."""
    allowed = specifier(f"=={version}")
    return None if allowed is None else _entry(name, allowed, pattern, 1)


def specifier(text: str) -> SpecifierSet | None:
    """The set of ``text``, None where it is none."""
    try:
        made = SpecifierSet(_LOOSE.sub(r"\1", text))
        [Version(one.version.removesuffix(".*")) for one in made]
    except (InvalidSpecifier, InvalidVersion):
        return None
    return made


def applies(marker: Marker | None) -> bool:
    """Whether a marker holds for some Python on the system that FSDP trains on."""
    if marker is None or "extra" in str(marker):
        return True
    try:
        return any(
            marker.evaluate({**_LINUX, "python_version": one, "python_full_version": f"{one}.0"}) for one in _PYTHONS
        )
    except UndefinedEnvironmentName:
        return True


def of_url(url: str) -> SpecifierSet | None:
    """The version that an address of a wheel, or a tag of a repository, has in its name."""
    path = unquote(urlsplit(url).path)
    try:
        return SpecifierSet(f"=={parse_wheel_filename(path.rpartition('/')[2])[1]}")
    except InvalidWheelFilename:
        tag = _TAG.search(path)
        return specifier(f"=={tag['version']}") if tag else None


def strings(value: object) -> Iterator[str]:
    """``value`` if it is a string, or the strings in it if it is a list."""
    for one in value if isinstance(value, list) else [value]:
        if isinstance(one, str):
            yield one


def _entry(name: str, allowed: SpecifierSet, pattern: str, line: int) -> Entry:
    return Entry(canonicalize_name(name), allowed, pattern, line)


def _poetry(version: str) -> str:
    """The specifier for a version of poetry; of alternatives the span from the first to the last."""
    first, *others = (
        [*map(_operator, re.split(r"\s*,\s*|\s+(?=[<>=!~^])", one.strip()))] for one in version.split("||")
    )
    if not others:
        return ",".join(first)
    lower = [re.sub(r"^==", ">=", one).removesuffix(".*") for one in ",".join(first).split(",") if one[:1] in "=>"]
    return ",".join([*lower, *(one for one in ",".join(others[-1]).split(",") if one.startswith("<"))])


def _operator(version: str) -> str:
    """Carets, tildes and bare versions of poetry as a specifier."""
    found = re.fullmatch(r"([\^~])\s*(\d+)((?:\.\d+)*)", version)
    if not found:
        return "" if version == "*" else re.sub(r"^=?(?=\d)", "==", version)
    parts = [int(part) for part in (found[2] + found[3]).split(".")]
    kept = 1 if found[1] == "^" or len(parts) == 1 else 2
    while found[1] == "^" and kept < len(parts) and not any(parts[:kept]):
        kept += 1
    upper = ".".join(map(str, [*parts[: kept - 1], parts[kept - 1] + 1]))
    return f">={'.'.join(map(str, parts))},<{upper}"
