"""Files of agents, stored in versions and searched in PostgreSQL. They belong to no thread."""

from typing import TYPE_CHECKING

from langgraph_pgstate._lazy import lazy_attributes

if TYPE_CHECKING:
    from langgraph_pgstate.files.api import AsyncFiles, Files
    from langgraph_pgstate.files.backend import PGFiles
else:
    __getattr__, __dir__ = lazy_attributes(
        __name__,
        {
            "AsyncFiles": "langgraph_pgstate.files.api",
            "Files": "langgraph_pgstate.files.api",
            "PGFiles": "langgraph_pgstate.files.backend",
        },
    )

__all__ = ["AsyncFiles", "Files", "PGFiles"]
