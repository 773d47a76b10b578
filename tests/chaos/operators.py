"""The operator: a worker that prunes, forks, copies, deletes, labels and maintains while agents run."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .worker import Worker

# How often each, in relation to the others.
OPERATIONS = {
    "prune": 8,
    "prune_some": 4,
    "prune_aged": 2,
    "count": 1,
    "fork": 3,
    "copy": 3,
    "label": 4,
    "delete": 1,
    "prune_delete": 0.5,
    "revive": 3,
    "maintain": 2,
    "read": 4,
}


class Operator:
    """What an operator does, each noted before and after.

    Args:
        worker: Whose connections and plan it uses.
    """

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._number = 0

    async def work(self) -> None:
        """Do one thing after the other."""
        worker = self._worker
        while not worker.is_over:
            name = worker.draw.choices(list(OPERATIONS), list(OPERATIONS.values()))[0]
            thread_id = worker.draw.choice(worker.spec.threads)
            await worker.attempt(name, thread_id, getattr(self, f"_{name}")(thread_id))
            await worker.sleep(worker.draw.uniform(0.05, 0.4))

    async def _do(self, op: str, thread_id: str, target: Any, name: str, *args: Any, **options: Any) -> Any:
        """Call a method between two lines of the journal."""
        self._number += 1
        id, journal = f"{self._worker.spec.name}.{self._number}", self._worker.journal
        note = {key: value for key, value in options.items() if isinstance(value, int | str)}
        journal.note("op", op=op, id=id, thread=thread_id, args=[a for a in args if isinstance(a, str)], **note)
        answer = await self._worker.call(target, name, *args, **options)
        journal.note("done", op=op, id=id)
        return answer

    def _state(self, thread_id: str) -> Any:
        # A deletion leaves a tombstone where the thread is guarded.
        return self._worker.state(self._worker.profile(thread_id).guard)

    async def _prune(self, thread_id: str) -> None:
        keep = self._worker.draw.randint(1, 4)
        await self._do("prune", thread_id, self._state(thread_id).saver, "prune", [thread_id], keep_last=keep)

    async def _prune_some(self, thread_id: str) -> None:
        several = sorted({thread_id, *self._worker.draw.choices(self._worker.spec.threads, k=3)})
        for one in several:
            await self._do("prune", one, self._state(one).saver, "prune", [one], keep_last=1)

    async def _prune_aged(self, thread_id: str) -> None:
        saver, age = self._state(thread_id).saver, timedelta(seconds=self._worker.draw.uniform(0.5, 5))
        await self._do("prune", thread_id, saver, "prune", [thread_id], older_than=age, keep_last=1)

    async def _count(self, thread_id: str) -> None:
        await self._do("count", thread_id, self._state(thread_id).saver, "prune", [thread_id], dry_run=True)

    async def _prune_delete(self, thread_id: str) -> None:
        saver = self._state(thread_id).saver
        await self._do("delete", thread_id, saver, "prune", [thread_id], strategy="delete")

    async def _delete(self, thread_id: str) -> None:
        await self._do("delete", thread_id, self._state(thread_id).saver, "delete_thread", thread_id)

    async def _revive(self, thread_id: str) -> None:
        await self._do("revive", thread_id, self._state(thread_id).threads, "revive", thread_id)

    async def _fork(self, thread_id: str) -> None:
        threads = self._state(thread_id).threads
        branches = await self._worker.call(threads, "branches", thread_id)
        if not branches:
            return
        path = self._worker.draw.choice(branches).path
        # Most of a thread's last checkpoints.
        chosen = self._worker.draw.choice(path[-4:])
        await self._do("fork", thread_id, threads, "fork", thread_id, chosen, self._other(thread_id))

    async def _copy(self, thread_id: str) -> None:
        saver = self._state(thread_id).saver
        await self._do("copy", thread_id, saver, "copy_thread", thread_id, self._other(thread_id))

    def _other(self, thread_id: str) -> str:
        return f"{thread_id.partition('~')[0]}~{self._worker.draw.randint(1, 3)}"

    async def _label(self, thread_id: str) -> None:
        threads = self._state(thread_id).threads
        config = {"configurable": {"thread_id": thread_id}}
        label = f"label {self._worker.draw.getrandbits(32):08x}"
        found = await self._worker.call(threads, "label", config, label)
        names = found["configurable"]
        self._worker.journal.note("labelled", thread=thread_id, id=names["checkpoint_id"], label=label)

    async def _maintain(self, thread_id: str) -> None:
        await self._do("maintain", thread_id, self._worker.state(None), "maintain")

    async def _read(self, thread_id: str) -> None:
        """Ask the questions that readers ask; whatever they answer, they answer."""
        state = self._worker.state(None)
        await self._worker.call(state.interrupts, "threads")
        await self._worker.call(state.messages, "conversation", thread_id)
        await self._worker.call(state.runs, "failed")
