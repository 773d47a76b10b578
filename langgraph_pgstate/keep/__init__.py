"""What becomes of threads: archives, policies of how long they are kept, and erasure of what is about a person."""

from typing import TYPE_CHECKING

from langgraph_pgstate._lazy import lazy_attributes

if TYPE_CHECKING:
    from langgraph_pgstate.keep.api import Archive, AsyncArchive
    from langgraph_pgstate.keep.erasures import Erasure, Kept, StoredErasure
    from langgraph_pgstate.keep.privacy import AsyncPrivacy, Privacy
    from langgraph_pgstate.keep.receipts import Verdict
    from langgraph_pgstate.keep.types import ArchivedThread, ArchiveReport, DeletionReport, LeftThread, RestoreReport
else:
    __getattr__, __dir__ = lazy_attributes(
        __name__,
        {
            "Archive": "langgraph_pgstate.keep.api",
            "ArchiveReport": "langgraph_pgstate.keep.types",
            "ArchivedThread": "langgraph_pgstate.keep.types",
            "AsyncArchive": "langgraph_pgstate.keep.api",
            "AsyncPrivacy": "langgraph_pgstate.keep.privacy",
            "DeletionReport": "langgraph_pgstate.keep.types",
            "Erasure": "langgraph_pgstate.keep.erasures",
            "Kept": "langgraph_pgstate.keep.erasures",
            "LeftThread": "langgraph_pgstate.keep.types",
            "Privacy": "langgraph_pgstate.keep.privacy",
            "RestoreReport": "langgraph_pgstate.keep.types",
            "StoredErasure": "langgraph_pgstate.keep.erasures",
            "Verdict": "langgraph_pgstate.keep.receipts",
        },
    )

__all__ = [
    "Archive",
    "ArchiveReport",
    "ArchivedThread",
    "AsyncArchive",
    "AsyncPrivacy",
    "DeletionReport",
    "Erasure",
    "Kept",
    "LeftThread",
    "Privacy",
    "RestoreReport",
    "StoredErasure",
    "Verdict",
]
