"""The documentation builds as a site without a warning."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

DOCS = Path(__file__).resolve().parent.parent / "docs"


def build(source: Path, target: Path) -> subprocess.CompletedProcess[str]:
    # A proxy that nothing answers at: what would load something fails.
    offline = dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), "http://127.0.0.1:9")
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html", source, target]
    return subprocess.run(
        list(map(str, command)), env={**os.environ, **offline}, capture_output=True, text=True, check=False
    )


def test_the_site_builds_offline_and_every_link_leads_somewhere(tmp_path: Path) -> None:
    done = build(DOCS, tmp_path / "site")
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "site/guide.html").read_text()
    assert 'href="rules.html"' in page
    assert not re.search(r'(src|href)="https?://[^"]*\.(js|css|woff2?)"', page)
    assert (tmp_path / "site/rules/FSDP101.html").is_file()
    assert (tmp_path / "site/searchindex.js").is_file()


def test_a_broken_link_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "conf.py").write_text((DOCS / "conf.py").read_text())
    (tmp_path / "index.md").write_text("# Title\n\n[broken](absent.md) and [another](#nowhere)\n")
    done = build(tmp_path, tmp_path / "site")
    assert done.returncode == 1
    assert "absent" in done.stderr
    assert "nowhere" in done.stderr
