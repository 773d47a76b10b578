"""Requests of all operations and pages, from dice: of the form that they must have, and of others."""

from __future__ import annotations

import base64
import gzip
import html
import json
import random
import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote, quote_from_bytes, unquote

from support.pages import forms_of

from langgraph_pgstate.inspector.routes import PAGES
from langgraph_pgstate.server import commands
from langgraph_pgstate.server.bodies import Body
from langgraph_pgstate.server.routes import OPERATIONS

from .mutating import NUMBERS, TEXTS, Raw, changed, damaged, nested, scalar, written

_USUAL: Final[dict[str, Sequence[Any]]] = {
    "assistant_id": ("chat", "own", "asking", "trip"),
    "graph_id": ("chat", "asking", "trip"),
    "thread_id": ("t", "t", "u", "fork", "rich", "archived", "held", "new"),
    "run_id": ("r", "dead"),
    "schedule": ("* * * * *", "0 9 * * 1"),
    "timezone": ("UTC", "Europe/Prague"),
    "end_time": ("2099-01-01T00:00:00Z",),
    "key": ("k", "key"),
    "namespace": ("a.b", "a"),
    "path": ("notes.md",),
    "name": ("daily", "score", "keep", "Eve"),
    "webhook": ("https://example.com/a",),
    "if_not_exists": ("create",),
    "method": ("run.start", "input.respond", "input.inject", "state.get", "state.listCheckpoints", "agent.getTree"),
    "limit": ("1", "5", 1, 5),
    "stream_mode": ("values", "updates", "messages-tuple", "events"),
    "channels": (["values"], ["messages", "lifecycle"]),
    "checkpoint_ns": ("",),
}
"""Values that most requests of a field have: a refusal of one would hide what the others do."""
_QUERY: Final = re.findall(
    r"\w+",
    "limit offset status select stream_mode cursor name xray recurse wait action by before days agent user_id "
    "namespace key refresh_ttl include subgraphs delete_threads cancel_on_disconnect tenant_id since checkpoint_id",
)
_FIELDS: Final = re.findall(
    r"\w+",
    "add answered archive archived as_node ascending asked at back before by channel check check_all checkpoint cursor "
    "day days decision directory dry_run edit ended expected expects fields forks format from graph head hold how id "
    "item kind label limit message metadata mode model name namespace nonce notice ns offset part person place purge q "
    "query queue reason result rows run saw_busy show seen since sort span status step sure tenant thread to tool "
    "until user value version view agent key values path user_id thread_id message_id "
    "keep_for delete_after action seconds",
)
_PARAMETERS: Final[tuple[type[Body], ...]] = (
    *(commands.RunStart, commands.InputRespond, commands.InputInject, commands.StateGet, commands.StateList),
    *(commands.StateFork, commands.AgentTree),
)
_HEADERS: Final = (
    *("last-event-id", "traceparent", "tracestate", "baggage", "accept", "accept-language", "prefer", "referer"),
    *("origin", "sec-fetch-site", "if-none-match", "cookie", "authorization", "x-forwarded-for", "forwarded", "range"),
    *("content-encoding", "transfer-encoding", "content-type", "content-length", "host", "x-api-key", "user-agent"),
    *("access-control-request-method", "x-http-method-override", "expect", "upgrade", "x-a", "via", "te"),
)
_TYPES: Final = (
    *(b"text/plain", b"application/x-www-form-urlencoded", b"multipart/form-data; boundary=x", b"multipart/form-data"),
    *(b"application/json; charset=utf-16", b"Application/JSON;x", b"application/jsonx", b"", b"\xff", b";", b"*/*"),
)
_MULTIPART: Final = b'--x\r\nContent-Disposition: form-data; name="a"; filename="../b"\r\n\r\n1\r\n--x--\r\n'
_METHODS: Final = ("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS", "TRACE", "CONNECT", "get", "M\u00e9", "")
_LINK: Final = re.compile(r'href="(/ui/[^"#]*)"')
_ID: Final = re.compile(rb'"(?:\w*_id|id|key|next|cursor|name)":"([^"\\]{1,200})"')


@dataclass(slots=True)
class Request:
    """A request.

    Attributes:
        name: The operation or page whose form it has.
        method: Its method.
        target: Path and query, as they are sent.
        headers: Its headers.
        body: The parts in which its body arrives.
        is_read: Whether it may change nothing.
        is_page: Whether it is one of the pages.
        ends_early: Whether the client goes before the end of the body.
    """

    name: str
    method: str
    target: bytes
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    body: list[bytes] = field(default_factory=list)
    is_read: bool = False
    is_page: bool = False
    ends_early: bool = False

    def __str__(self) -> str:
        size = sum(map(len, self.body))
        shown = b"".join(self.body)[:600]
        headers = [(name, value[:60]) for name, value in self.headers]
        early = ", of which the last part is missing" if self.ends_early else ""
        return f"{self.name}: {self.method} {self.target[:400]!r} {headers!r} {size} bytes{early} {shown!r}"


class Requests:
    """Requests, which name what answers have named, and what none has.

    Args:
        dice: Decides.
    """

    def __init__(self, dice: random.Random) -> None:
        self.dice = dice
        self.known: list[str] = ["t"]
        self.links: list[str] = ["/ui/threads/t"]
        self.forms: dict[str, dict[str, str]] = {}
        self.token = ""
        self.cookie = b""
        self.identity = ""

    def learn(self, body: bytes, is_page: bool) -> None:
        """Remember the links, forms and ids of an answer."""
        if is_page:
            text = body.decode("utf-8", "replace")
            self.forms |= forms_of(text)
            self.links = [*dict.fromkeys([*self.links, *map(html.unescape, _LINK.findall(text)[:100])])][-300:]
        found = [one.decode("utf-8", "replace") for one in _ID.findall(body[:50_000])[:40]]
        self.known = [*dict.fromkeys([*self.known, *found])][-300:]

    def next(self) -> Request:
        """Return a request."""
        roll = self.dice.random()
        if roll < 0.6:
            made = self._operation()
        elif roll < 0.97:
            made = self._page()
        else:
            made = Request("nothing", self.dice.choice(_METHODS), self._junk_path())
        if self.dice.random() < 0.03:
            made.method = self.dice.choice(_METHODS)
            made.is_read = False
        if self.dice.random() < 0.25:
            made.headers += self._headers()
        if self.identity and self.dice.random() < 0.95:
            made.headers.append((b"authorization", self.identity.encode()))
        if made.is_page and self.dice.random() < 0.97:
            made.headers.append((b"cookie", self.cookie))
        if made.body and self.dice.random() < 0.05:
            at = self.dice.randrange(len(made.body[0]) + 1)
            made.body = [made.body[0][:at], b"", made.body[0][at:]]
            made.ends_early = self.dice.random() < 0.3
        return made

    def text(self) -> str:
        """Return a text."""
        match self.dice.randrange(5):
            case 0:
                return self.dice.choice(self.known)
            case 1:
                return "".join(map(chr, self.dice.choices(range(1, 0x2FFF), k=self.dice.randrange(8))))
            case 2:
                return self._cursor()
            case _:
                return self.dice.choice(TEXTS)

    def _cursor(self) -> str:
        """Return a cursor of a list, as it is or forged."""
        found = [one for one in self.known if one.startswith("Wy")]
        found += re.findall(r"cursor=(Wy[\w=-]+)", " ".join(self.links[-100:]))
        given = self.dice.choice(found or ["WyJ0aHJlYWRzIiwiMjAyNi0wMS0wMVQwMDowMDowMCswMDowMCIsInQiXQ"])
        if self.dice.random() < 0.3:
            return given
        try:
            tree = json.loads(base64.urlsafe_b64decode(given + "=="))
        except ValueError:
            return given
        plain = written(changed(self.dice, tree)).encode("utf-8", "surrogatepass")
        return base64.urlsafe_b64encode(plain).decode().rstrip("=")

    def _operation(self) -> Request:
        one = self.dice.choice(OPERATIONS)
        path = re.sub(r"{(\w+)}", lambda match: self._part(match[1]), one.path)
        made = Request(one.name, one.method, path.encode() + self._query(_QUERY), is_read=one.is_read)
        if one.body is None and self.dice.random() < 0.95:
            return made
        body = self._body(one.body or self.dice.choice(_PARAMETERS))
        if one.name == "runs.create_batch" and isinstance(body, dict):
            body = body.get("runs", body)
        made.headers.append((b"content-type", b"application/json"))
        made.body = [self._encoded(body, made.headers)]
        return made

    def _body(self, model: type[Body]) -> Any:
        schema = _schema_of(model)
        body = self._value(schema, schema.get("$defs", {}))
        for _ in range(self.dice.choice((0, 0, 0, 1, 1, 2))):
            body = changed(self.dice, body, self._hostile)
        return body

    def _hostile(self, dice: random.Random) -> Any:
        if dice.random() < 0.06:
            return nested(dice, dice.choice((50, 198, 202, 300, 950, 3000, 20_000)))
        if dice.random() < 0.03:
            return Raw(dice.choice(("1" + "0" * 5000, "-", "1e99999", "NaN", "Infinity", '{"a":1,"a":2}', "01", "\v1")))
        return self.text() if dice.random() < 0.3 else scalar(dice)

    def _value(self, schema: Any, others: Any, name: str = "", depth: int = 0) -> Any:
        """Return a value as a schema describes it."""
        dice = self.dice
        if name in _USUAL and dice.random() < 0.8:
            return dice.choice(_USUAL[name])
        if name == "params":
            parameters = _schema_of(dice.choice(_PARAMETERS))
            return self._value(parameters, parameters.get("$defs", {}), depth=depth + 1)
        if "$ref" in schema:
            return self._value(others[schema["$ref"].rpartition("/")[2]], others, name, depth)
        if "anyOf" in schema:
            return self._value(dice.choice(schema["anyOf"]), others, "", depth)
        if "enum" in schema or "const" in schema:
            return dice.choice(schema.get("enum") or [schema["const"]])
        if schema.get("properties"):
            needed = {*schema.get("required", ())}
            chance = dice.choice((0.1, 0.3, 0.8))
            return {
                field: self._value(one, others, field, depth + 1)
                for field, one in schema["properties"].items()
                if field in needed or dice.random() < chance
            }
        match schema.get("type"):
            case "string":
                return self.text()
            case "integer":
                return dice.choice((*NUMBERS[:6], 10, 1000))
            case "number":
                return dice.choice((0, 1, 0.5, 1e-9, 1e9, 5))
            case "boolean":
                return dice.random() < 0.5
            case "array":
                inner = schema.get("items", {})
                return [self._value(inner, others, "", depth + 1) for _ in range(dice.choice((0, 1, 1, 2, 3)))]
            case "null":
                return None
        if schema.get("type") == "object" or dice.random() < 0.5:
            fields = [*TEXTS[:12], "messages", "configurable", "thread_id", "type", "content", "role", "$eq", "lc"]
            chosen = dice.sample(fields, dice.randrange(4))
            return {key: self._value({}, others, "", depth + 1) if depth < 4 else 1 for key in chosen}
        return self._hostile(dice)

    def _encoded(self, body: Any, headers: list[tuple[bytes, bytes]]) -> bytes:
        dice = self.dice
        data = written(body).encode("utf-8", "surrogatepass")
        if dice.random() < 0.85:
            return data
        match dice.randrange(12):
            case 0:
                return damaged(dice, [data])
            case 1:
                return b"\xef\xbb\xbf" + data
            case 2:
                return data.decode("utf-8", "replace").encode(dice.choice(("utf-16", "utf-32", "utf-7")), "replace")
            case 3:
                headers.append((b"content-encoding", dice.choice((b"gzip", b"deflate", b"br", b"identity"))))
                return gzip.compress(data) if dice.random() < 0.5 else zlib.compress(data)
            case 4:
                headers[-1] = (b"content-type", dice.choice(_TYPES))
                return dice.choice((data, _MULTIPART))
            case 5:
                return data + dice.choice((b"}", b" ", b"\0", b",", b"{}", b"//"))
            case 6:
                return data.replace(b"{", b'{"limit":0,"limit":"x",', 1)
            case 7:
                return b" " * dice.choice((10, 140_000)) + data
            case 8:
                return data.replace(b'":', b'":[' + b"1," * dice.choice((30_000, 60_000)) + b"1],", 1)
            case 9:
                length = dice.choice((b"0", b"-1", b"1" * 30, b"99999999999", b"x", b"\xb2"))
                headers.append((b"content-length", length))
                return data
            case 10:
                return data.replace(b'"', b'"' + b"\\u0000\\ud83d", dice.randrange(1, 4))
            case _:
                return b'{"x":"' + b"y" * dice.choice((130_000, 1_000_000)) + b'",' + data[1:]

    def _page(self) -> Request:
        dice = self.dice
        headers = [(b"accept", b"application/json")] if dice.random() < 0.3 else []
        if dice.random() < 0.25:
            link = dice.choice(self.links)
            name = next((one.name for one in PAGES if one.is_read and link.startswith(f"/ui{one.path}")), "page")
            path, _, query = link.partition("?")
            more = self._query(_FIELDS).replace(b"?", b"&" if query else b"?", 1)
            # `&` alone begins no query.
            return Request(f"page {name}", "GET", _ascii(path, query) + more, headers, is_read=True, is_page=True)
        if self.forms and dice.random() < 0.35:
            path = dice.choice([*self.forms])
            return self._form(path, {**self.forms[path], **self._fields(3)}, headers)
        page = dice.choice(PAGES)
        path = re.sub(r"{(\w+)}", lambda match: self._part(match[1]), page.path)
        if page.is_read:
            target = f"/ui{path}".encode() + self._query(_FIELDS)
            return Request(f"page {page.name}", "GET", target, headers, is_read=True, is_page=True)
        return self._form(path, self._fields(6), headers)

    def _form(self, path: str, fields: dict[str, str], headers: list[tuple[bytes, bytes]]) -> Request:
        dice = self.dice
        given = {name: value for name, value in fields.items() if name and dice.random() < 0.95}
        if dice.random() < 0.7:
            given["sure"] = "1"
        if dice.random() < 0.95:
            given["token"] = self.token
        data = "&".join(f"{_quoted(name)}={_quoted(value)}" for name, value in given.items()).encode()
        kind = b"application/x-www-form-urlencoded"
        match dice.randrange(40):
            case 0:
                data = damaged(dice, [data])
            case 1:
                kind, data = dice.choice(_TYPES), dice.choice((data, _MULTIPART))
            case 2:
                data += b"&a=1" * 1001
            case 3:
                data += dice.choice((b"&%", b"&%zz", b"&%ff=%fe", b"&=&&;", b"&a\0=\0", b"&a=%00", b"\xff\xfe"))
        headers = [*headers, (b"content-type", kind)]
        target = f"/ui{path}".encode("ascii", "backslashreplace")
        return Request(f"page {path.rpartition('/')[2]}", "POST", target, headers, [data], is_page=True)

    def _fields(self, most: int) -> dict[str, str]:
        found = {}
        for _ in range(self.dice.randrange(most)):
            name = self.dice.choice(_FIELDS)
            usual = _USUAL.get(name)
            found[name] = str(self.dice.choice(usual)) if usual and self.dice.random() < 0.3 else self.text()
        return found

    def _query(self, names: Sequence[str]) -> bytes:
        parts = []
        for _ in range(self.dice.choice((0, 0, 1, 1, 2, 3))):
            name = self.dice.choice(names)
            usual = _USUAL.get(name)
            value = str(self.dice.choice(usual)) if usual and self.dice.random() < 0.4 else self.text()
            parts.append(f"{name}={_quoted(value)}")
        if self.dice.random() < 0.02:
            parts.append(self.dice.choice(("%", "%zz=%", "&&=;", "a=%ff%fe", "=", "a" * 9000, "%00=%00", "[]=1")))
        return f"?{'&'.join(parts)}".encode() if parts else b""

    def _part(self, name: str) -> str:
        """Return a part of a path, quoted."""
        roll = self.dice.random()
        if roll < 0.7:
            return quote(str(self.dice.choice(_USUAL.get(name, self.known))), safe="")
        if roll < 0.9:
            return quote(self.dice.choice(self.known), safe="") or "t"
        if roll < 0.93:
            odd = ("%00", "%ff%fe", "%2F", "%2e%2e", "..", "%25%32%66", "%c0%af", "a;b=c", "~00", "~2F")
            return self.dice.choice(odd)
        return _quoted(self.text()) or "t"

    def _junk_path(self) -> bytes:
        parts = [self._part("junk") for _ in range(self.dice.randrange(6))]
        known = ("threads", "runs", "ui", "assistants", "store", "items", "stream", "static", "..", "", "%2e%2e")
        parts = [self.dice.choice(known) if self.dice.random() < 0.6 else part for part in parts]
        return f"/{'/'.join(parts)}".encode("ascii", "backslashreplace") + self._query(_QUERY)

    def _headers(self) -> list[tuple[bytes, bytes]]:
        found = []
        for _ in range(self.dice.choice((1, 1, 2, 5))):
            name = self.dice.choice(_HEADERS)
            value = {
                "last-event-id": self.dice.choice(("1", "0", "-1", "12.end", "r:3", f"{self.text()}:1", str(2**63))),
                "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
                "sec-fetch-site": "same-origin",
                "authorization": "bob",
                "accept": "text/event-stream",
                "content-type": "application/json",
            }.get(name, "")
            if not value or self.dice.random() < 0.6:
                value = self.text()
            # What servers of HTTP refuse does not come here.
            data = re.sub(rb"[\x00\r\n]", b"", value.encode("utf-8", "surrogatepass"))[:9000].strip()
            found.append((name.encode(), data))
        if self.dice.random() < 0.1:
            found.append((b"x-many", b"x" * 60_000))
        return found


def _ascii(path: str, query: str) -> bytes:
    """Return a link as browsers send it."""
    target = f"{path}?{query}" if query else path
    return quote(target, safe="/?&=%~+:;,@!$'()*[]").encode()


def _quoted(text: str) -> str:
    return quote_from_bytes(text.encode("utf-8", "surrogatepass"), safe="")


_SCHEMAS: Final[dict[type[Body], Any]] = {}


def _schema_of(model: type[Body]) -> Any:
    if model not in _SCHEMAS:
        _SCHEMAS[model] = model.model_json_schema()
    return _SCHEMAS[model]


def path_of(target: bytes) -> str:
    """Return the path of a target, decoded as servers of HTTP decode it."""
    return unquote(target.partition(b"?")[0].decode("ascii"))
