"""Progress notes of a task: its goal, finished steps, blockers and next action."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from langgraph_pgstate.arguments import identifier, several
from langgraph_pgstate.db.runners import blocking
from langgraph_pgstate.errors import NotFoundError
from langgraph_pgstate.memory import memories
from langgraph_pgstate.memory.items import Origin, Put, Traits, limit_of
from langgraph_pgstate.memory.memories import NOTES, Owner
from langgraph_pgstate.memory.namespaces import check_size
from langgraph_pgstate.memory.texts import json_value
from langgraph_pgstate.memory.types import MemoryVersion

_UNSET: Final[Any] = object()
TEXTS: Final = ("goal", "next_action", "context")
LISTS: Final = ("completed", "blockers")


class _Notes:
    """The part of `Notes` and `AsyncNotes` that needs no connection."""

    def __init__(self, store: Any, task_id: str, owner: Owner) -> None:
        self._store, self._owner, self.task_id = store, owner, identifier("task_id", task_id)
        self._namespace = memories.namespace_of(NOTES, owner)
        check_size(self._namespace, task_id)
        self._use(None)

    def _use(self, found: MemoryVersion | None) -> None:
        value = {} if found is None else found.value
        self.version = 0 if found is None else found.version
        self.goal: str = value.get("goal", "")
        self.completed: list[str] = value.get("completed", [])
        self.blockers: list[str] = value.get("blockers", [])
        self.next_action: str = value.get("next_action", "")
        self.context: str = value.get("context", "")
        self.changed_by: str | None = None if found is None else found.changed_by
        self.changed_at: datetime | None = None if found is None else found.valid_from

    @property
    def _value(self) -> dict[str, Any]:
        return {
            "goal": self.goal,
            "completed": [*self.completed],
            "blockers": [*self.blockers],
            "next_action": self.next_action,
            "context": self.context,
        }

    def render(self) -> str:
        """Return the notes as Markdown, such as for the first message of a new session."""
        return markdown_of(self.task_id, self._value)


class AsyncNotes(_Notes):
    """Asynchronous twin of `Notes`."""

    async def read(self) -> None:
        """Read the current notes again."""
        found = await self._versions(limit=1)
        self._use(found[0] if found and found[0].valid_to is None else None)

    async def save(
        self,
        *,
        goal: str = _UNSET,
        completed: Sequence[str] = _UNSET,
        blockers: Sequence[str] = _UNSET,
        next_action: str = _UNSET,
        context: str = _UNSET,
        expected_version: int | None = None,
        by: str | None = None,
    ) -> None:
        """Store a new version of the notes. Fields that are not given keep their values. Each version is kept.

        Args:
            goal: Goal of the task.
            completed: All steps that are done.
            blockers: Obstacles.
            next_action: The next step.
            context: Other facts that the next session needs.
            expected_version: The version that must be current; by default the version that was read.
            by: Name of the person or service that saves the notes; by default the user of the running graph.

        Raises:
            StaleMemoryError: If another writer has changed the notes. The error names writer and time.
                Call `read`, then `save` again.
            ConfigurationError: If an argument is invalid.
            SerializationError: If a text cannot be stored.
        """
        value = self._value
        for name, given in (("goal", goal), ("next_action", next_action), ("context", context)):
            if given is not _UNSET:
                value[name] = identifier(name, given)
        for name, steps in (("completed", completed), ("blockers", blockers)):
            if steps is not _UNSET:
                value[name] = [identifier(name, step) for step in several(name, steps)]
        expected = self.version if expected_version is None else expected_version
        owner, store = self._owner, self._store
        origin: Origin = store.origin(by)
        found = await store.runner.run(
            memories.put_if_unchanged,
            store.queries,
            Put(self._namespace, self.task_id, json_value(value), None, (), []),
            language=store.settings.language,
            origin=origin,
            traits=Traits(NOTES, owner.user_id, owner.agent, owner.tenant_id),
            history=store.settings.history,
            expected_version=memories.version_of(expected, name="expected_version", least=0),
        )
        self._use(found)

    async def history(self, *, limit: int = 100, before: int | None = None) -> list[MemoryVersion]:
        """Return the versions, newest first.

        Args:
            limit: Maximum number of versions.
            before: Only versions before this one.

        Raises:
            ConfigurationError: If an argument is invalid.
        """
        oldest = None if before is None else memories.version_of(before, name="before")
        return await self._versions(limit=limit_of(limit), before=oldest)

    async def diff(self, a: int, b: int | None = None) -> str:
        """Return the difference between two versions, as a unified diff of their Markdown.

        Args:
            a: Number of the earlier version.
            b: Number of the later version; by default the version that was read or saved last.

        Raises:
            NotFoundError: If there is no such version.
            ConfigurationError: If an argument is invalid.
        """
        texts = []
        for version in (a, self.version if b is None else b):
            found = await self._versions(limit=1, version=memories.version_of(version))
            if not found:
                raise NotFoundError(f"the notes of task {self.task_id!r} have no version {version}")
            texts.append((f"version {version}", markdown_of(self.task_id, found[0].value).splitlines()))
        (name, before), (other, after) = texts
        return "\n".join(difflib.unified_diff(before, after, name, other, lineterm=""))

    async def _versions(self, **options: Any) -> list[MemoryVersion]:
        store = self._store
        found: list[MemoryVersion] = await store.runner.run(
            memories.list_versions, store.queries, self._namespace, self.task_id, **options
        )
        return found


def markdown_of(task_id: str, value: Mapping[str, Any]) -> str:
    """Return progress notes as Markdown."""
    parts = [f"# Progress: {task_id}"]
    for name in ("goal", "completed", "blockers", "next_action", "context"):
        found = value.get(name)
        if found:
            mark = "- [x] " if name == "completed" else "- "
            text = found if isinstance(found, str) else "\n".join(mark + str(one) for one in found)
            parts.append(f"## {name.replace('_', ' ').capitalize()}\n\n{text}")
    return "\n\n".join(parts) + "\n"


class Notes(_Notes):
    """Progress notes of a task, as they were read or saved last.

    Attributes:
        task_id: The task.
        version: Number of the version; 0 if there are no notes yet.
        goal: Goal of the task.
        completed: Steps that are done.
        blockers: Obstacles.
        next_action: The next step.
        context: Other facts that the next session needs.
        changed_by: User or service that saved this version.
        changed_at: Time at which this version was saved; `None` if there are no notes yet.
    """

    read = blocking(AsyncNotes.read)
    save = blocking(AsyncNotes.save)
    history = blocking(AsyncNotes.history)
    diff = blocking(AsyncNotes.diff)
    _versions = AsyncNotes._versions
