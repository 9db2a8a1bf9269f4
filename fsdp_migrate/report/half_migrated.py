"""Whether a rewrite left a project between FSDP1 and FSDP2."""

from __future__ import annotations

from fsdp_migrate.pipeline.outcome import RunResult
from fsdp_rules.engine.catalogue import catalogue
from fsdp_rules.verdict.finding import Finding, Level

SHIM = "fsdp-migrate rewrite --to shim"


def left_behind(result: RunResult) -> list[Finding]:
    """The FSDP1 calls that could not move although others, which do not work with them, have; [] where none did."""
    together = catalogue().moves_together
    concerned = [finding for finding in result.findings if finding.rule in together]
    if not any(finding.level in (Level.SAFE, Level.REVIEW) for finding in concerned):
        return []
    return [finding for finding in concerned if finding.level is Level.MANUAL]


def warning(result: RunResult) -> str:
    """What to say above everything else, "" where the project has moved as a whole."""
    left = left_behind(result)
    # A tree without FSDP1's branches runs what it ran with FSDP2.
    if not left or result.both == "retire":
        return ""
    several = len(left) > 1
    files = sorted({finding.path for finding in left})
    where = ", ".join(files[:3]) + (f" and {len(files) - 3} more" if len(files) > 3 else "")
    return (
        f"{len(left)} FSDP1 {'calls' if several else 'call'} could not be rewritten ({where}) and will not "
        f"work with the migrated models. Rewrite {'them' if several else 'it'} by hand before you run "
        f"anything, or undo this (`fsdp-migrate undo`) and use `{SHIM}`, {_what_the_shim_does(result)}."
    )


def _what_the_shim_does(result: RunResult) -> str:
    """How much of what this rewrite left is done by code that runs through fsdp_compat."""
    manual = [finding for finding in result.findings if finding.level is Level.MANUAL]
    left = [finding for finding in manual if finding.rule in catalogue().shim]
    if not left:
        return "which runs all of this project through fsdp_compat"
    rules = ", ".join(sorted({finding.rule for finding in left}))
    return f"which also leaves {len(left)} of the {len(manual)} manual findings ({rules})"
