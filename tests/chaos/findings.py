"""What a verifier finds."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is not as it was told.

    Attributes:
        kind: Which promise is broken.
        thread: On which thread.
        text: How.
    """

    kind: str
    thread: str
    text: str
