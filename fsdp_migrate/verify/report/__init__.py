"""A verdict as text, JSON, Markdown and a page."""

from __future__ import annotations

from fsdp_migrate.verify.verdict import Verdict


def render(suffix: str, verdict: Verdict) -> str:
    """The report of the kind that ``.json``, ``.md`` or ``.html`` asks for."""
    match suffix:
        case ".html":
            from fsdp_migrate.verify.report import html_report

            return html_report.render(verdict)
        case ".json":
            from fsdp_migrate.verify.report import json_report

            return json_report.render(verdict)
        case _:
            from fsdp_migrate.verify.report import markdown_report

            return markdown_report.render(verdict)
