"""A rule's page as a file that a browser opens, for links where the distribution names no address of its own."""

from __future__ import annotations

import html
from importlib.metadata import metadata, version

from fsdp_migrate.report.rulebook import Page, explanation
from fsdp_migrate.tree import writing

_PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>{title}</title>
<style>:root {{ color-scheme: light dark }} body {{ font: 1rem/1.5 sans-serif; max-width: 45rem; margin: 2rem auto; \
padding: 0 1rem }} pre {{ overflow: auto }}</style>
{body}</html>
"""


def home() -> str:
    """Where this distribution says that its repository is; empty where it says nothing."""
    urls = dict(line.split(", ", 1) for line in metadata("fsdp-migrate").get_all("Project-URL") or ())
    return str(urls.get("Repository", "")).rstrip("/")


def address(page: Page) -> str:
    """The page at the repository, else as a file in the user's cache; "" where that cannot be written."""
    return f"{home()}/blob/HEAD/docs/rules/{page.id}.md" if home() else _written(page)


def _written(page: Page) -> str:
    from markdown_it import MarkdownIt
    from platformdirs import user_cache_path

    folder = user_cache_path("fsdp-migrate", appauthor=False) / "rules" / version("fsdp-migrate")
    file = folder / f"{page.id}.html"
    body = MarkdownIt("commonmark", {"html": False}).enable("table").render("\n".join(explanation(page)))
    text = _PAGE.format(title=html.escape(f"{page.id} {page.name}"), body=body)
    try:
        if not file.exists() or file.read_text(encoding="utf-8") != text:
            folder.mkdir(parents=True, exist_ok=True)
            writing.replace(file, text.encode("utf-8"))
    except OSError:
        return ""
    return file.as_uri()
