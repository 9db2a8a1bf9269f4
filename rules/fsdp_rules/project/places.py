"""Where things are: attributes that give the model inside, modules by their files, and scopes around scopes."""

from __future__ import annotations

#: Attributes of a wrapped model that give the model inside, which under FSDP2 is the same object.
INNER = (".module", "._fsdp_wrapped_module")


def module_name(path: str) -> str:
    """The dotted name under which the file at ``path`` would be imported from the directory the path starts in."""
    # Asked of every file of a tree; pathlib takes ten times as long.
    *directories, name = path.split("/")
    dot = name.rfind(".")
    stem = name[:dot] if 0 < dot < len(name) - 1 else name
    parts = [part for part in (*directories, stem) if part not in ("", ".", "..")]
    if parts and parts[-1] == "__init__":
        parts.pop()
    return ".".join(parts)


def scopes(scope: str) -> list[str]:
    """``scope`` and all scopes around it, innermost first, "" (the module) last."""
    found = [scope]
    while found[-1]:
        found.append(found[-1].rpartition(".")[0])
    return found
