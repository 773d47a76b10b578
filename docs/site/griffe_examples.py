"""Read `Example:` in docstrings as the section `Examples:`, which mkdocstrings shows as a program."""

from __future__ import annotations

from typing import Any

import griffe


class Examples(griffe.Extension):
    """Renames the section."""

    def on_instance(self, *, obj: Any, **_: Any) -> None:
        """Rename it in the docstring of one object."""
        if obj.docstring:
            obj.docstring.value = obj.docstring.value.replace("\nExample:\n", "\nExamples:\n")
