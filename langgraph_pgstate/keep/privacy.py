"""The export and erasure of personal data, with receipts."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from datetime import datetime
from typing import Any, Final

from langgraph_pgstate.arguments import identifier, thread_id_of
from langgraph_pgstate.codec.values import ValueCodec
from langgraph_pgstate.db.database import AsyncDatabase, Database
from langgraph_pgstate.db.protocol import read_all
from langgraph_pgstate.db.runners import AsyncRunner, BlockingRunner, blocking, iterating
from langgraph_pgstate.errors import ConfigurationError
from langgraph_pgstate.keep import exporting
from langgraph_pgstate.keep.erasing import EraseRequest, erase
from langgraph_pgstate.keep.receipts import Verdict, signer_of, verify_receipt
from langgraph_pgstate.keep.types import Erasure, StoredErasure
from langgraph_pgstate.paging import LAST, Page, decode_cursor, read_page
from langgraph_pgstate.schema.queries import Queries
from langgraph_pgstate.schema.tenancy import refuse_without_tenant

_KIND: Final = "erasures"


def request_erasure(user_id: str | None, thread_id: str | None, message_id: str | None) -> EraseRequest:
    """Validate the arguments of an erasure.

    Raises:
        ConfigurationError: If the arguments do not name exactly one user, one thread, or one message with its thread.
    """
    if message_id is not None and thread_id is not None and user_id is None:
        return EraseRequest("message", _named("message_id", message_id), thread_id_of(thread_id))
    if message_id is not None:
        raise ConfigurationError("message_id must be given with the thread_id of the message, and without user_id")
    if (user_id is None) == (thread_id is None):
        raise ConfigurationError("user_id or thread_id must be given, but not both")
    if user_id is not None:
        return EraseRequest("user", _named("user_id", user_id))
    return EraseRequest("thread", thread_id_of(thread_id))


def _named(name: str, value: str) -> str:
    found = identifier(name, value)
    if not found:
        raise ConfigurationError(f"{name} must not be empty")
    return found


class AsyncPrivacy:
    """The export and erasure of personal data; `AsyncPGState.privacy` returns it.

    If tenants are kept apart, calls export and erase the data of one tenant only.
    """

    def __init__(self, database: AsyncDatabase, queries: Queries, codec: ValueCodec, tenant: str | None = None) -> None:
        self._runner: Any = AsyncRunner(database)
        self._queries, self._codec, self._tenant = queries, codec, tenant

    async def erase(
        self,
        *,
        user_id: str | None = None,
        thread_id: str | None = None,
        message_id: str | None = None,
        key: bytes | str | None = None,
        by: str | None = None,
        erasure_id: str | None = None,
        dry_run: bool = False,
    ) -> Erasure:
        """Erase all stored data of a user, of a thread, or of one message.

        For a user, threads, forks and copies of these, memories, files, schedules and limits are deleted. In forks,
        copies and threads of other users, content that comes from the user is redacted. For a message, its content is
        redacted in every state, write, span and event, also of forks and copies.

        Each thread is erased in one transaction. If a call is interrupted, the next call continues the erasure, and the
        receipt counts the rows of both calls. Programs may run meanwhile: the user's runs are ended, and late writes of
        workers are refused.

        Args:
            user_id: Id of the user.
            thread_id: Id of the thread; with `message_id`, the thread of the message.
            message_id: Id of the message in the state.
            key: Key that signs the receipt: a secret of at least 16 bytes, or a private Ed25519 key as PEM.
            by: Name of the person who erases, for an event of the kind `action` under `erasure:ID`. The receipt does
                not name the person.
            erasure_id: Id of a new erasure; a random id by default. An erasure that is continued keeps its id.
            dry_run: Whether to count only. Nothing is written.

        Returns:
            The report. Its `kept` names threads that were not erased, because they are held or in use. There is no
            receipt until another call has erased these threads.

        Raises:
            NotFoundError: If there is no such thread or message.
            ThreadHeldError: If a hold protects the given thread. Nothing was written.
            ThreadInUseError: If a process runs the thread of a message. Nothing was written.
            ThreadArchivedError: If the thread of a message is archived. Nothing was written.
            ConfigurationError: If an argument is invalid, a message was encoded by another serializer than LangGraph's,
                or the user has data keys and the state has no `encryption`. Nothing was written.
        """
        request, signer = request_erasure(user_id, thread_id, message_id), signer_of(key)
        await self._runner.run(refuse_without_tenant, self._queries, "an erasure")
        given: Any = {"dry_run": dry_run, "tenant": self._tenant, "by": None if by is None else identifier("by", by)}
        given["erasure_id"] = None if erasure_id is None else _named("erasure_id", erasure_id)
        return await erase(self._runner, self._queries, self._codec, request, signer, **given)

    async def receipts(self, *, limit: int = 20, cursor: str | None = None) -> Page[StoredErasure]:
        """Return a page of erasures with their receipts, newest first. Unfinished erasures have no receipt.

        Args:
            limit: Page size, 1,000 at most.
            cursor: `next` of the previous page.

        Raises:
            ConfigurationError: If an argument is invalid.
        """
        at, erasure_id = decode_cursor(_KIND, cursor, (LAST, ""))
        parameters: dict[str, str | datetime] = {"cursor_at": at, "cursor_id": erasure_id}
        page = read_page(
            "list_erasures", parameters, limit, StoredErasure, _KIND, lambda one: (one.started_at, one.erasure_id)
        )
        found: Page[StoredErasure] = await self._runner.read(self._queries, page)
        return found

    async def receipt(self, erasure_id: str) -> StoredErasure | None:
        """Return an erasure with its receipt; `None` if there is no such erasure. One round trip.

        Args:
            erasure_id: Id of the erasure.

        Raises:
            ConfigurationError: If an argument is invalid.
        """
        reading = read_all("find_erasure", {"erasure_id": identifier("erasure_id", erasure_id)}, StoredErasure)
        found: tuple[StoredErasure, ...] = await self._runner.read(self._queries, reading)
        return next(iter(found), None)

    @staticmethod
    def verify(
        receipt: Mapping[str, Any] | str | bytes,
        key: bytes | str,
        *,
        user_id: str | None = None,
        thread_id: str | None = None,
        message_id: str | None = None,
    ) -> Verdict:
        """Return whether a receipt is unchanged since it was signed, and whether it is about a given user or thread.

        A signature proves that the holder of the key made the receipt. It does not prove that no other copies of the
        data exist.

        Args:
            receipt: The receipt, as JSON or as a mapping.
            key: The secret, or the private or public key. With a public key, the user or thread cannot be checked.
            user_id: Id of the user whom the receipt must be about.
            thread_id: Id of the thread that the receipt must be about; with `message_id`, the thread of the message.
            message_id: Id of the message that the receipt must be about.

        Raises:
            ConfigurationError: If `receipt` is not a receipt, or the key is invalid.
        """
        subject = None
        if (user_id, thread_id, message_id) != (None, None, None):
            subject = request_erasure(user_id, thread_id, message_id).subject
        return verify_receipt(receipt, key, subject)

    async def export(self, *, user_id: str, on_problem: Callable[[str], None] | None = None) -> AsyncIterator[bytes]:
        """Return all stored data of a user as JSON lines, page by page.

        Each line has the name of a table and a row. The export has the user's threads with their newest states, the
        user's memories, files, schedules, limits and feedback, and what the user did in other users' threads. Archived
        threads are read from their archives. Only the newest version of a file has its content; bytes are in base64.

        If content cannot be read, for example because its key is lost, the row has an `error` that says so, and the
        export goes on. Other encoded values are left out, because the recorded messages, inputs and outputs have the
        same content. Memory holds one page, or one archived thread.

        Args:
            user_id: Id of the user.
            on_problem: Called with a text for each content that cannot be read. If it is not called, the export is
                whole.

        Raises:
            ConfigurationError: If an argument is invalid.
        """
        user_id = _named("user_id", user_id)
        await self._runner.run(refuse_without_tenant, self._queries, "an export")
        given = self._queries, self._codec, user_id, self._tenant
        async for line in exporting.export_user(self._runner, *given):
            if line.problem is not None and on_problem is not None:
                on_problem(line.problem)
            yield line.data


class Privacy:
    """Blocking twin of `AsyncPrivacy`."""

    def __init__(self, database: Database, queries: Queries, codec: ValueCodec, tenant: str | None = None) -> None:
        self._runner: Any = BlockingRunner(database)
        self._queries, self._codec, self._tenant = queries, codec, tenant

    erase = blocking(AsyncPrivacy.erase)
    receipts = blocking(AsyncPrivacy.receipts)
    receipt = blocking(AsyncPrivacy.receipt)
    verify = staticmethod(AsyncPrivacy.verify)
    export = iterating(AsyncPrivacy.export)
