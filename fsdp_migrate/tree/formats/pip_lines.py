"""Requirements and constraints as pip reads them, and the commands of a Dockerfile that give pip such words."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

from fsdp_migrate.tree.formats.entry import Entry, Include
from fsdp_migrate.tree.formats.requirement_entry import ANY, applies, conda, of_url, requirement, specifier

_COMMANDS = re.compile(r"&&|\|\||[;|]")
_IMAGE = re.compile(r"^FROM\s+(?:--\S+\s+)*\S*pytorch/pytorch:(?P<version>\d+(?:\.\d+)+)", re.MULTILINE | re.IGNORECASE)
#: Words of an installer after which the requirements come.
_INSTALLS = ("install", "add")


def pip_lines(text: str) -> Iterator[Entry | Include]:
    """A requirements or constraints file."""
    from pip_requirements_parser import CommentLine, OptionParsingError, get_line_parser, preprocess

    parse = get_line_parser()
    for numbered in preprocess(text):
        number, line = numbered
        if isinstance(numbered, CommentLine):
            continue
        try:
            words, options, _ = parse(line)
        except (OptionParsingError, ValueError):
            continue
        yield from (Include(path) for path in options.requirements or ())
        yield from (Include(path, constrains=True) for path in options.constraints or ())
        for one in (words, *(options.editables or ())):
            yield from _words(one, number) if one else ()


def _words(words: str, line: int) -> Iterator[Entry]:
    """One requirement: a name with versions, or an address, whose file or tag has the version."""
    from pip_requirements_parser import PipError, build_install_req

    found = requirement(words, line) or conda(words, line)
    if found is None and ("/" in words or words.endswith(".whl")):
        try:
            made = build_install_req(words)
        except (PipError, ValueError):
            return
        address = made.link.url if made.link else ""
        name = made.name or re.sub(r"(@.*|\.git.*)$", "", address.rpartition("/")[2])
        allowed = made.specifier or of_url(address.partition("#")[0]) or ANY
        if name and applies(made.marker):
            found = Entry(name.lower(), allowed, re.escape(words.split()[0]), line)
    if found is not None:
        yield found


def dockerfile(text: str) -> Iterator[Entry | Include]:
    """What a Dockerfile installs by a command, and the torch of the image that it starts from."""
    for image in _IMAGE.finditer(text):
        yield Entry("torch", specifier(f"=={image['version']}") or ANY, re.escape(image[0]))
    joined = re.sub(r"\\[ \t]*\n", " ", re.sub(r"^[ \t]*#.*\n", "", text, flags=re.MULTILINE))
    for command in (part for line in joined.splitlines() for part in _COMMANDS.split(line)):
        try:
            words = shlex.split(command, comments=True)
        except ValueError:
            continue
        starts = [number for number, word in enumerate(words) if word in _INSTALLS]
        if starts and any(word.rpartition("/")[2].startswith(("pip", "uv", "conda", "mamba")) for word in words):
            for word in words[starts[0] + 1 :]:
                yield from _words(word, 1) if not word.startswith("-") else ()
