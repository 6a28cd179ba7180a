"""What mkdocs has to know of this repository: pages at its root, and a navigation that finds the pages of plugins."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).parents[1]
AT_ROOT = {"README.md": "index.md", "CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md",
           "SECURITY.md": "security.md"}
"""Files at the repository's root that are pages of the site."""
LINK = re.compile(r"(?<!!)\[(?P<text>[^\]]*)\]\((?P<path>(?!\w+:|#)[^)#\s]+)(?P<anchor>#[^)\s]*)?\)|"
                  r"!\[(?P<alt>[^\]]*)\]\((?P<image>(?!\w+:)[^)\s]+)\)")


def on_config(config: Any) -> Any:
    """Put the pages in place of patterns in the navigation."""
    config.nav = _found(config.nav)
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add the pages that lie at the root."""
    for name, uri in AT_ROOT.items():
        files.append(File.generated(config, uri, content=(ROOT / name).read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Links as they are in the repository become links as they are on the site."""
    uri = page.file.src_uri
    source = next((name for name, at in AT_ROOT.items() if at == uri), f"docs/{uri}")

    def moved(link: re.Match[str]) -> str:
        path = link["path"] or link["image"]
        target = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
        inside = AT_ROOT.get(target, target.removeprefix("docs/") if target.startswith("docs/") else None)
        if inside is None and (ROOT / target).exists():
            return link["text"] or ""  # a file of the repository that is no page
        found = posixpath.relpath(inside or path, posixpath.dirname(uri) or ".")
        return f"![{link['alt']}]({found})" if link["image"] else f"[{link['text']}]({found}{link['anchor'] or ''})"

    return LINK.sub(moved, markdown)


def _found(nav: Any) -> Any:
    """The navigation with pages in place of patterns: none, the page, or several as a section."""
    if isinstance(nav, list):
        lists = [_found(one) for one in nav]
        return [one for entry in lists for one in (entry if isinstance(entry, list) else [entry])]
    if isinstance(nav, dict):
        found = {title: _found(inner) for title, inner in nav.items()}
        return {title: inner[0] if len(inner) == 1 else inner for title, inner in found.items() if inner} or []
    return sorted(str(p.relative_to(ROOT / "docs")) for p in (ROOT / "docs").glob(nav)) if "*" in nav else nav
