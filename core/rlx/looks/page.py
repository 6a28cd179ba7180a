"""Pages of one file each: every text in them is escaped, and they load nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rlx.registry import is_installed
from rlx_sdk import InputError, PluginError


def write_page(template: str, path: Path, **values: Any) -> None:
    """Fill a template of this package.

    Raises:
        InputError: a package is missing, or the file cannot be written.
    """
    need("jinja2")
    from jinja2 import Environment, PackageLoader, StrictUndefined

    pages = Environment(loader=PackageLoader("rlx.looks"), autoescape=True, undefined=StrictUndefined,
                        trim_blocks=True)
    pages.filters["number"] = number
    text = pages.get_template(template).render(**values)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8", errors="replace")
    except OSError as error:
        raise InputError(f"the page '{path}' cannot be written: {error.strerror}") from error


def need(module: str) -> None:
    """Refuse to go on without a package of the extra.

    Raises:
        PluginError: with the line that installs it.
    """
    if not is_installed(module):
        raise PluginError(f"pages need the package '{module}', which is not installed: pip install 'rlx[report]'")


def number(value: float | None) -> str:
    """With three digits after the point where they tell something."""
    if value is None:
        return "–"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}" if 0 < abs(value) < 0.001 else f"{value:.3f}"
