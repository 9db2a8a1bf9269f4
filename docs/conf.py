"""The documentation as a site: `make site` builds it without the network, and every broken link is an error."""

project = "fsdp-migrate"
author = "the authors of fsdp-migrate"
extensions = ["myst_parser"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["workflows"]
html_theme = "furo"
html_title = "fsdp-migrate"
html_show_copyright = False
html_copy_source = False
# Links to headings, as GitHub names them.
myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence"]
# Code that shows what a file looks like with a mark in it is no Python.
suppress_warnings = ["misc.highlighting_failure"]


def setup(app):
    """Lead links to the repository's CONTRIBUTING.md to the page that includes it."""

    def read(app, name, text):
        text[0] = text[0].replace("](../CONTRIBUTING.md", "](contributing.md")

    app.connect("source-read", read)
