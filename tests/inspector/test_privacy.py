"""The page of erasures."""

from __future__ import annotations

from support.pages import HOSTILE, forms_of, inspected, state_of, travel


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
        assert (await visitor.act("/privacy/erase", **form)).status_code == 409
        assert [await state.threads.get(id) is None for id in ("t", "later", "held")] == [True, True, False]
        (receipt,) = (await visitor.data("/privacy"))["receipts"]
        assert (receipt["kind"], receipt["ended_at"]) == ("user", None)
        assert "evelyn" not in str(receipt)
        assert "held by counsel" in await visitor.page("/privacy", thread="held")
        assert "goes with the thread_id" in await visitor.page("/privacy", message="m")
        assert (await visitor.act("/privacy/erase", thread="none", rows="1")).status_code == 404
