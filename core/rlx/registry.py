"""Finds plugins: entry points of the group ``rlx``, loaded one by one, so that a broken one breaks nothing else."""

from __future__ import annotations

import contextlib
import importlib.util
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from typing import Any, Literal

import pluggy

from rlx.text import did_you_mean, listing
from rlx_sdk import Kind, Plugin, PluginError, RlxError, hooks
from rlx_sdk.errors import cause
from rlx_sdk.plugins import RECORDS

GROUP = "rlx"
PROGRAM = "this program"
"""The package of a function that is given as a reward."""
KINDS: tuple[Kind, ...] = tuple(RECORDS)
_HOOKS: dict[str, Kind] = {f"rlx_{kind}s": kind for kind in KINDS}


@dataclass(frozen=True)
class Entry:
    """A plugin and the package it came from."""

    plugin: Any
    package: str
    version: str

    @property
    def name(self) -> str:
        """The plugin's name."""
        return str(self.plugin.name)

    @property
    def label(self) -> str:
        """Name, package and version, for messages."""
        return f"'{self.name}' ({self.package} {self.version})"

    def missing(self) -> dict[str, str]:
        """Packages it requires that are not installed, each with what to install."""
        requires: dict[str, str] = self.plugin.requires
        return {module: what for module, what in requires.items() if not is_installed(module)}

    def call(self, part: Literal["config", "needs", "build", "preflight", "cached_tokens"], *args: Any) -> Any:
        """Call one of the plugin's functions; what it prints goes to standard error.

        Raises:
            PluginError: it raised something that is not rlx's own; named with its package and the line.
        """
        try:
            with stdout_to_stderr():
                return getattr(self.plugin, part)(*args)
        except RlxError:
            raise
        except Exception as error:  # a stranger's code may raise anything; it is wrapped here, once
            raise PluginError(f"plugin {self.label} failed in its {part}: {cause(error)}") from error


@dataclass(frozen=True)
class BrokenPlugin:
    """An entry point that could not be used, and why."""

    name: str
    package: str
    reason: str


class Registry:
    """The plugins of one program run. Made once and passed on; there is no global one."""

    def __init__(self) -> None:
        """Start empty."""
        self._entries: dict[Kind, list[Entry]] = {kind: [] for kind in KINDS}
        self.broken: list[BrokenPlugin] = []

    @classmethod
    def discover(cls) -> Registry:
        """Load every installed plugin package."""
        registry = cls()
        points = {(p.name, p.value): p for p in metadata.entry_points(group=GROUP)}
        for point in sorted(points.values(), key=lambda p: (p.dist.name if p.dist else "", p.name)):
            package, version = (point.dist.name, point.dist.version) if point.dist else ("unknown package", "?")
            try:
                with stdout_to_stderr():
                    plugin = point.load()
                    registry.add(plugin, package, version)
            except (Exception, SystemExit) as error:  # a stranger's module; shown, and fatal when it is named
                reason = str(error) if isinstance(error, PluginError) else cause(error)
                registry.broken.append(BrokenPlugin(point.name, package, reason))
        return registry

    def add(self, plugin: object, package: str, version: str = "?") -> None:
        """Take the plugins that a module or object offers through its hooks.

        Raises:
            PluginError: it implements a hook that does not exist, or with other arguments, or returns something else.
        """
        manager = pluggy.PluginManager(hooks.PROJECT)
        manager.add_hookspecs(hooks)
        try:
            manager.register(plugin)
        except pluggy.PluginValidationError as error:
            raise PluginError(" ".join(str(error).split())) from error
        callers = manager.get_hookcallers(plugin) or []
        if not callers:
            raise PluginError(f"it implements none of the hooks {', '.join(_HOOKS)}")
        found = [(caller.name, record) for caller in callers for record in _records(caller)]
        for hook, record in found:
            self.put(_HOOKS[hook], record, package, version)

    def put(self, kind: Kind, record: Plugin, package: str, version: str = "?") -> None:
        """Take one plugin."""
        self._entries[kind].append(Entry(record, package, version))

    def entries(self, kind: Kind) -> list[Entry]:
        """All plugins of a kind, by name."""
        return sorted(self._entries[kind], key=lambda e: (e.name, e.package))

    def get(self, kind: Kind, name: str) -> Entry:
        """The plugin of that name, or ``package/name``.

        Raises:
            PluginError: unknown (with the nearest name and what is broken), ambiguous, or lacking a package.
        """
        package, _, plain = name.rpartition("/")
        found = [e for e in self._entries[kind] if e.name == plain and package in ("", e.package)]
        if not found:
            raise PluginError(self._unknown(kind, name, plain))
        if len(found) > 1:
            owners = " and ".join(f"'{e.package}/{e.name}'" for e in found)
            raise PluginError(f"{kind} '{name}' is offered by several packages; write {owners}")
        for module, what in found[0].missing().items():
            raise PluginError(f"{kind} '{name}' needs the package '{module}', which is not installed: "
                              f"pip install '{what}'")
        return found[0]

    def named(self, kind: Kind, text: str) -> tuple[Entry, dict[str, Any]]:
        """The plugin that `get` finds, or the one that ``name:argument`` means, with the option its argument sets.

        Raises:
            PluginError: as `get`.
        """
        head, colon, rest = text.partition(":")
        if not colon or not self.offers(kind, head):
            return self.get(kind, text), {}
        entry = self.get(kind, head)
        return entry, {entry.plugin.argument: text if rest.startswith("//") else rest}

    def offers(self, kind: Kind, name: str) -> bool:
        """Whether a plugin of that name takes an argument, so that ``name:argument`` means it."""
        return any(e.plugin.argument and name in (e.name, f"{e.package}/{e.name}") for e in self._entries[kind])

    def broken_note(self) -> str:
        """Plugins that could not be loaded, as the end of a message: what was asked for may be among them."""
        broken = "; ".join(f"{b.name} of {b.package} ({b.reason})" for b in self.broken)
        return f" Plugins that could not be loaded: {broken}." if broken else ""

    def _unknown(self, kind: Kind, name: str, plain: str) -> str:
        known = [e.name for e in self.entries(kind)]
        return (f"no {kind} '{name}'.{did_you_mean(plain, known)} Installed: {listing(known, 30) or 'none'}."
                f"{self.broken_note()}")


@contextlib.contextmanager
def stdout_to_stderr() -> Iterator[None]:
    """Standard output is rlx's own: what a plugin prints goes to standard error."""
    with contextlib.redirect_stdout(sys.stderr):
        yield


def _records(caller: pluggy.HookCaller) -> list[Plugin]:
    """What the one plugin behind a hook returns."""
    hook = caller.name
    if not caller.has_spec():
        raise PluginError(f"it implements the hook '{hook}', which rlx does not have.{did_you_mean(hook, _HOOKS)} "
                          f"(hooks: {', '.join(_HOOKS)})")
    records = (caller() or [None])[0]  # pluggy leaves out None
    wanted = RECORDS[_HOOKS[hook]]
    if not isinstance(records, list) or not all(isinstance(r, wanted) for r in records):
        raise PluginError(f"its hook {hook}() returned {records!r:.60}; a list of rlx_sdk.{wanted.__name__} is wanted")
    return records


def is_installed(module: str) -> bool:
    """Whether it could be imported; it is not."""
    try:
        return importlib.util.find_spec(module) is not None
    except ImportError:  # of a.b, when there is no a
        return False
