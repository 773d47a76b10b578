"""The name of the person who acts."""

from __future__ import annotations

import html
import re

from support.pages import state_of, travel

from .conftest import Place


async def test_the_name_is_kept_by_the_browser(place: Place) -> None:
    _, visitor = place
    response = await visitor.act("/person", name="Ève <b>", back="/ui/threads?status=error")
    assert (response.status_code, response.headers["location"]) == (303, "/ui/threads?status=error&notice=person.keep")
    cookie = next(one for one in response.headers.get_list("set-cookie") if "pgstate_person" in one)
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    page = await visitor.page("/threads", notice="person.keep")
    assert "Ève &lt;b&gt;" in page
    assert "Your name is kept" in page
    assert (await visitor.data("/person"))["name"] == "Ève <b>"


async def test_a_name_that_is_none_is_refused(place: Place) -> None:
    for name in ("", "  ", "x" * 81, "a\tb\x07"):
        assert (await place[1].act("/person", name=name)).status_code == 422


async def test_the_way_back_stays_in_the_pages(place: Place) -> None:
    own, hosts = (
        ("/other", "/ui/\\evil", "/ui/a\nb", "javascript:alert(1)"),
        ("//evil.example", "https://evil.example/ui/"),
    )
    for back in (*own, *hosts, f"/ui{hosts[0]}"):
        response = await place[1].act("/person", name="Eve", back=back)
        assert response.headers["location"] == "/ui/threads?notice=person.keep"


async def test_the_way_back_keeps_what_was_looked_at(place: Place) -> None:
    server, visitor = place
    at = (await travel(state_of(server), "50% é?"))[1]
    queries = [("/threads", {"status": "idle"}), ("/threads/50%25%20%C3%A9%3F", {"at": at, "view": "state"})]
    for path, query in queries:
        page = await visitor.page(path, **query, notice="person.keep")
        links = {html.unescape(one) for one in re.findall(r'href="(/ui/person[^"]*)"', page)}
        assert len(links) == 1
        form = (await visitor.client.get(links.pop())).text
        back = html.unescape(re.search(r'name="back" value="([^"]*)"', form)[1])  # type: ignore[index]
        response = await visitor.act("/person", name="Eve", back=back)
        reached = str(visitor.client.base_url.join(response.headers["location"]))
        shown = visitor.client.build_request("GET", f"/ui{path}", params={**query, "notice": "person.keep"})
        assert reached == str(shown.url)
        visitor.client.cookies.delete("pgstate_person")
