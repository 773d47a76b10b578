"""Archives of threads, retention policies, and the export and erasure of personal data."""

from typing import TYPE_CHECKING

from langgraph_pgstate._lazy import lazy_attributes

if TYPE_CHECKING:
    from langgraph_pgstate.keep.api import Archive, AsyncArchive, AsyncRetention, Retention
    from langgraph_pgstate.keep.parquet import AsyncParquet, Parquet
    from langgraph_pgstate.keep.privacy import AsyncPrivacy, Privacy
    from langgraph_pgstate.keep.receipts import Verdict
    from langgraph_pgstate.keep.types import (
        ArchivedThread,
        ArchiveReport,
        DeletionReport,
        Erasure,
        ExportedFile,
        Kept,
        LeftThread,
        Policy,
        PolicyReport,
        RestoreReport,
        StoredErasure,
    )
else:
    _TYPES = "langgraph_pgstate.keep.types"
    __getattr__, __dir__ = lazy_attributes(
        __name__,
        {
            "Archive": "langgraph_pgstate.keep.api",
            "ArchiveReport": _TYPES,
            "ArchivedThread": _TYPES,
            "AsyncArchive": "langgraph_pgstate.keep.api",
            "AsyncParquet": "langgraph_pgstate.keep.parquet",
            "AsyncPrivacy": "langgraph_pgstate.keep.privacy",
            "AsyncRetention": "langgraph_pgstate.keep.api",
            "DeletionReport": _TYPES,
            "Erasure": _TYPES,
            "ExportedFile": _TYPES,
            "Kept": _TYPES,
            "LeftThread": _TYPES,
            "Parquet": "langgraph_pgstate.keep.parquet",
            "Policy": _TYPES,
            "PolicyReport": _TYPES,
            "Privacy": "langgraph_pgstate.keep.privacy",
            "RestoreReport": _TYPES,
            "Retention": "langgraph_pgstate.keep.api",
            "StoredErasure": _TYPES,
            "Verdict": "langgraph_pgstate.keep.receipts",
        },
    )

__all__ = [
    "Archive",
    "ArchiveReport",
    "ArchivedThread",
    "AsyncArchive",
    "AsyncParquet",
    "AsyncPrivacy",
    "AsyncRetention",
    "DeletionReport",
    "Erasure",
    "ExportedFile",
    "Kept",
    "LeftThread",
    "Parquet",
    "Policy",
    "PolicyReport",
    "Privacy",
    "RestoreReport",
    "Retention",
    "StoredErasure",
    "Verdict",
]
