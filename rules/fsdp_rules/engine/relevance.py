"""The second cheap question, asked of facts: is there anything in this file that a rule could speak about?"""

from __future__ import annotations

import re
from functools import cache

from fsdp_rules.engine.catalogue import catalogue
from fsdp_rules.fsdp1.names import FSDP_PACKAGE, canonical
from fsdp_rules.project.project import Project

#: What leads into a trap that is there without FSDP1 too.
TRAP = re.compile(r"distributed[. ].*checkpoint|ShardedTensor|\.full_tensor\(|enable_fsdp_float8_all_gather")
#: The project's own comments in a source.
OWN = "fsdp-migrate"
#: Names that stand for FSDP1 in much that has nothing to do with it: arguments, settings, texts.
LOOSE = frozenset({"fsdp", "FSDP"})


def is_relevant(text: str, path: str, project: Project, traps: bool = False) -> bool:
    """Whether the file needs to be parsed by libcst. Errs on the side of yes.

    ``traps`` as in :class:`fsdp_rules.settings.Settings`.
    """
    if any(canonical(project.resolve(target)) is not None for target in project.aliases(path).values()):
        return True
    if _direct().search(text):
        return True
    if any(path == one.module for one in project.hosted):
        return True
    if traps and "fsdp2" in project.tree_flags and TRAP.search(text):
        return True
    if project.words and _is_open(text):
        return True
    # A tree that wraps nothing may have functions that ask for FSDP1's class, for those who do.
    if not project.tree_flags & {"fsdp1", "gated"} and not project.askers:
        return False
    if any(name in text for found in project.own.values() for one in found for name in one.spelled()):
        return True
    if path in project.values.reached or path in project.values.giving:
        return True
    return any(name.rpartition(".")[2] in text for name in project.askers) or _is_open(text)


def _is_open(text: str) -> bool:
    known = catalogue()
    return any(all(word in text for word in together) for together in [*zip(known.spelled), *known.open_world])


@cache
def _direct() -> re.Pattern[str]:
    words = [word for word in catalogue().spelled if word not in LOOSE]
    return re.compile("|".join([*map(re.escape, [FSDP_PACKAGE, OWN, *words]), *catalogue().alone]))
