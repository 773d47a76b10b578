"""What becomes of threads: archives, and policies of how long they are kept."""

from typing import TYPE_CHECKING

from langgraph_pgstate._lazy import lazy_attributes

if TYPE_CHECKING:
    from langgraph_pgstate.keep.api import Archive, AsyncArchive
    from langgraph_pgstate.keep.types import ArchivedThread, ArchiveReport, DeletionReport, LeftThread, RestoreReport
else:
    __getattr__, __dir__ = lazy_attributes(
        __name__,
        {
            "Archive": "langgraph_pgstate.keep.api",
            "ArchiveReport": "langgraph_pgstate.keep.types",
            "ArchivedThread": "langgraph_pgstate.keep.types",
            "AsyncArchive": "langgraph_pgstate.keep.api",
            "DeletionReport": "langgraph_pgstate.keep.types",
            "LeftThread": "langgraph_pgstate.keep.types",
            "RestoreReport": "langgraph_pgstate.keep.types",
        },
    )

__all__ = [
    "Archive",
    "ArchiveReport",
    "ArchivedThread",
    "AsyncArchive",
    "DeletionReport",
    "LeftThread",
    "RestoreReport",
]
