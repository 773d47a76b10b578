"""Administration: the schema, checks, sizes, maintenance, upcasting and transfers."""

from typing import TYPE_CHECKING

from langgraph_pgstate._lazy import lazy_attributes

if TYPE_CHECKING:
    from langgraph_pgstate.admin.api import Admin
else:
    __getattr__, __dir__ = lazy_attributes(
        __name__,
        {
            "Admin": "langgraph_pgstate.admin.api",
        },
    )

__all__ = ["Admin"]
