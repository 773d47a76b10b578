"""Classes and functions of the library `rich`, each imported at its first use.

`--help` and `--version` do not need `rich`, which takes long to import.
"""

from __future__ import annotations

from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.markup import escape
    from rich.measure import Measurement
    from rich.progress import Progress as ProgressBar
    from rich.style import Style
    from rich.table import Table
    from rich.text import Text
    from rich.tree import Tree

    console = Console(highlight=False)
    errors = Console(stderr=True, highlight=False, soft_wrap=True)
else:
    # All control characters but tab and line feed.
    _CONTROLS = dict.fromkeys([*range(9), *range(11, 32), *range(127, 160)])

    class _Lazy:
        """A class or function that is imported when it is called."""

        def __init__(self, module: str, name: str) -> None:
            self._module, self._name = module, name

        def __call__(self, *args: Any, **options: Any) -> Any:
            return getattr(import_module(self._module), self._name)(*args, **options)

        def __getattr__(self, name: str) -> Any:
            return getattr(getattr(import_module(self._module), self._name), name)

    class _LazyConsole:
        """A console that is made at its first use."""

        def __init__(self, **options: Any) -> None:
            self._options = options

        @cached_property
        def made(self) -> Any:
            return Console(**self._options)

        def __getattr__(self, name: str) -> Any:
            return getattr(self.made, name)

    def Console(**options: Any) -> Any:
        """Return a console that prints texts unchanged, but without control characters, which a terminal would obey."""
        from rich.console import Console

        class Plain(Console):
            def render(self, renderable: Any, options: Any = None) -> Any:
                for part in super().render(renderable, options):
                    yield part if part.control else part._replace(text=part.text.translate(_CONTROLS))

        # With emoji, rich would print an emoji instead of `:key:` in an id.
        return Plain(emoji=False, **options)

    escape = _Lazy("rich.markup", "escape")
    Measurement = _Lazy("rich.measure", "Measurement")
    ProgressBar = _Lazy("rich.progress", "Progress")
    Style = _Lazy("rich.style", "Style")
    Table = _Lazy("rich.table", "Table")
    Text = _Lazy("rich.text", "Text")
    Tree = _Lazy("rich.tree", "Tree")
    console = _LazyConsole(highlight=False)
    errors = _LazyConsole(stderr=True, highlight=False, soft_wrap=True)

__all__ = [
    "Console",
    "Measurement",
    "ProgressBar",
    "Style",
    "Table",
    "Text",
    "Tree",
    "console",
    "errors",
    "escape",
]
