"""Attributes of packages that are imported when they are first used (PEP 562)."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazy_attributes(package: str, modules: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return a package's `__getattr__` and `__dir__`.

    Define `__getattr__` where type checkers do not look: to them it would mean that the package has every name.

    Args:
        package: The package's name.
        modules: By attribute, the module that defines it.
    """
    namespace = vars(sys.modules[package])

    def get(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        found = namespace[name] = getattr(import_module(modules[name]), name)
        return found

    def names() -> list[str]:
        return sorted({*namespace, *modules})

    return get, names
