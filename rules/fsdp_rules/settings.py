"""What a user may ask of a rewrite."""

from __future__ import annotations

from dataclasses import dataclass

#: How long a line may be that a rewrite writes.
LINE_LENGTH = 100


@dataclass(frozen=True)
class Settings:
    """What a user may ask of a rewrite.

    ``to``: ``native`` (FSDP2) or ``shim`` (imports of ``fsdp_compat``). ``helpers``: whether native output may call
    ``fsdp_compat``. ``select`` and ``ignore`` hold rule ids or prefixes (``FSDP1``); an empty ``select`` means all.
    ``traps``: nothing is going to be written, so that traps are told of in projects that have no FSDP1 any more, too.
    """

    to: str = "native"
    helpers: bool = True
    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    traps: bool = False

    def enabled(self, rule_id: str) -> bool:
        """Whether the rule runs under these settings."""
        if any(rule_id.startswith(prefix) for prefix in self.ignore):
            return False
        return not self.select or any(rule_id.startswith(prefix) for prefix in self.select)
