"""A verdict as text, JSON, Markdown and a page."""

from __future__ import annotations

from fsdp_migrate.verify.verdict import Verdict


def render(suffix: str, verdict: Verdict) -> str:
    """The report of the kind that ``.json``, ``.md`` or ``.html`` asks for."""
    match suffix:
        case ".html":
            from fsdp_migrate.verify.report import verdict_html

            return verdict_html.render(verdict)
        case ".json":
            from fsdp_migrate.verify.report import verdict_json

            return verdict_json.render(verdict)
        case _:
            from fsdp_migrate.verify.report import verdict_markdown

            return verdict_markdown.render(verdict)
