"""The page of erasures."""

from __future__ import annotations

import psycopg
import pytest
from support.pages import HOSTILE, forms_of, inspected, state_of, travel, trip, visiting

from langgraph_pgstate.errors import ConfigurationError
from langgraph_pgstate.keep import Privacy
from langgraph_pgstate.server import create_app


@pytest.mark.slow
async def test_it_is_shown_what_would_go_before_it_goes(dsn: str, schema: str) -> None:
    async with inspected(dsn, schema) as (server, visitor):
        state = state_of(server)
        assert "Nothing was erased yet" in await visitor.page("/privacy")
        await travel(state, user_id="evelyn")
        await travel(state, "held", user_id="evelyn")
        await state.threads.hold("held", f"case {HOSTILE}", by="counsel")
        await visitor.introduce()
        page = await visitor.page("/privacy", user="evelyn")
        assert HOSTILE not in page
        for text in ("This was a dry run", "held by counsel", "checkpoints"):
            assert text in page
        form = forms_of(page)["/privacy/erase"]
        assert await state.threads.get("t") is not None
        await travel(state, "later", user_id="evelyn")
        refused = await visitor.act("/privacy/erase", **form)
        assert (refused.status_code, "since you looked" in refused.text) == (409, True)
        form = forms_of(await visitor.page("/privacy", user="evelyn"))["/privacy/erase"]
        sent = await visitor.act("/privacy/erase", **form)
        assert (sent.status_code, "user=evelyn" in sent.headers["location"]) == (303, True)
        # A second person, whose page was made before.
        del form["nonce"]
        assert (await visitor.act("/privacy/erase", **form)).status_code == 409
        assert [await state.threads.get(id) is None for id in ("t", "later", "held")] == [True, True, False]
        (receipt,) = (await visitor.data("/privacy"))["receipts"]
        assert (receipt["kind"], receipt["ended_at"]) == ("user", None)
        assert "evelyn" not in str(receipt)
        assert "held by counsel" in await visitor.page("/privacy", thread="held")
        assert "must be given with the thread_id" in await visitor.page("/privacy", message="m")
        assert (await visitor.act("/privacy/erase", thread="none", rows="1")).status_code == 404


@pytest.mark.slow
async def test_the_second_person_of_an_erasure_is_told_who_was_first(dsn: str, schema: str) -> None:
    async with inspected(dsn, schema) as (server, eve), visiting(server) as adam:
        state = state_of(server)
        await eve.introduce("Eve")
        await adam.introduce("Adam")
        for thread_id, kind, status in (("t", "user", 409), ("other", "thread", 404)):
            await travel(state, thread_id, user_id="evelyn")
            asked = {"user": "evelyn"} if kind == "user" else {"thread": thread_id}
            forms = [forms_of(await one.page("/privacy", **asked))["/privacy/erase"] for one in (eve, adam)]
            first = await eve.act("/privacy/erase", **forms[0])
            (newest, *_) = (await state.privacy.receipts()).items
            assert f"/privacy/receipts/{newest.erasure_id}" in first.headers["location"]
            told = await adam.act("/privacy/erase", **forms[1])
            assert (told.status_code, f"a {kind} was erased just now by Eve" in told.text) == (status, True)
            # The same form sent twice is the same erasure.
            again = await eve.act("/privacy/erase", **forms[0])
            assert (again.status_code, again.headers["location"]) == (303, first.headers["location"])
            assert (await state.privacy.receipts()).items[0] == newest
            events = (await state.events.list(f"erasure:{newest.erasure_id}", kind="action")).items
            assert [one.payload for one in events] == [{"action": "erase", "by": "Eve"}]
            assert "Eve" in await adam.page(f"/privacy/receipts/{newest.erasure_id}")
            assert "Eve" not in str(newest.receipt)


@pytest.mark.slow
async def test_a_receipt_is_signed_shown_compared_and_downloaded(dsn: str, schema: str) -> None:
    key = b"a secret of receipts"
    async with inspected(dsn, schema, receipt_key=key) as (server, visitor):
        await travel(state_of(server), user_id="evelyn")
        await visitor.introduce()
        page = await visitor.page("/privacy", user="evelyn")
        assert "It is signed." in page
        form = forms_of(page)["/privacy/erase"]
        assert (await visitor.act("/privacy/erase", **form)).status_code == 303
        (erasure,) = (await visitor.data("/privacy"))["receipts"]
        path = f"/privacy/receipts/{erasure['erasure_id']}"
        assert f'href="/ui{path}"' in await visitor.page("/privacy")
        assert "The receipt is as it was signed." in await visitor.page(path)
        assert "as it was signed, and about this user" in await visitor.page(path, user="evelyn")
        assert "about another subject" in await visitor.page(path, user="adam")
        assert "must be given with the thread_id" in await visitor.page(path, message="m")
        response = await visitor.client.get(f"/ui{path}/download")
        assert response.headers["content-disposition"].startswith("attachment")
        assert "evelyn" not in response.text
        assert Privacy.verify(response.content, key, user_id="evelyn").is_of
        for missing in ("/privacy/receipts/none", "/privacy/receipts/none/download"):
            assert (await visitor.client.get(f"/ui{missing}")).status_code == 404
    async with inspected(dsn, schema) as (_, visitor):
        assert "To verify it here" in await visitor.page(path)
    # Somebody with write access to the table has changed it: the signature says so.
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
        change = f"UPDATE {schema}.erasures SET receipt = jsonb_set(receipt, '{{counts,threads}}', '7')"
        await connection.execute(change.encode())
    async with inspected(dsn, schema, receipt_key=key) as (_, visitor):
        assert "The receipt is not valid" in await visitor.page(path)
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
        change = f"UPDATE {schema}.erasures SET receipt = jsonb_set(receipt, '{{receipt_id}}', '\"other\"')"
        await connection.execute(change.encode())
    async with inspected(dsn, schema, receipt_key=key) as (_, visitor):
        assert "one of another erasure: other" in await visitor.page(path)


@pytest.mark.slow
async def test_without_a_key_a_receipt_says_that_it_is_not_signed(dsn: str, schema: str) -> None:
    async with inspected(dsn, schema) as (server, visitor):
        state = state_of(server)
        await travel(state, user_id="evelyn")
        await travel(state, "held", user_id="evelyn")
        await state.threads.hold("held", "case 7", by="counsel")
        assert "It is not signed" in await visitor.page("/privacy", user="evelyn")
        await state.privacy.erase(user_id="evelyn")
        ((open_one),) = (await visitor.data("/privacy"))["receipts"]
        path = f"/privacy/receipts/{open_one['erasure_id']}"
        assert "It has not ended" in await visitor.page(path)
        assert (await visitor.client.get(f"/ui{path}/download")).status_code == 404
        await state.threads.release("held", "case 7", by="counsel")
        await state.privacy.erase(user_id="evelyn")
        assert "The receipt is not signed" in await visitor.page(path)
    for unusable in (b"short", "-----BEGIN PUBLIC KEY-----"):
        with pytest.raises(ConfigurationError):
            create_app(lambda: None, {"trip": trip()}, inspector=True, receipt_key=unusable)  # type: ignore[arg-type, return-value]
