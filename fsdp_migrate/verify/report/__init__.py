"""A verdict as text, JSON and Markdown."""

from __future__ import annotations

from fsdp_migrate.verify.verdict import Verdict


def render(suffix: str, verdict: Verdict) -> str:
    """The report of the kind that ``.json`` or ``.md`` asks for."""
    from fsdp_migrate.verify.report import json_report, markdown_report

    return json_report.render(verdict) if suffix == ".json" else markdown_report.render(verdict)
