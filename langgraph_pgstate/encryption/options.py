"""The option `encryption`: master keys, and the scopes of data keys."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, Literal

from langgraph_pgstate.encryption.cipher import aes_gcm
from langgraph_pgstate.encryption.masters import MasterKey, master_of
from langgraph_pgstate.errors import ArgumentTypeError, ConfigurationError

_MOST_SCOPE_BYTES: Final = 512
# In a namespace, the label after one of these labels is the id of an owner.
_OWNERS: Final = {
    "user": "user_id",
    "users": "user_id",
    "tenant": "tenant_id",
    "tenants": "tenant_id",
    "agent": "agent",
    "agents": "agent",
}
MIN_CACHE_SECONDS: Final = 1.0
"""Minimum of `cache_for`. A key that is loaded for an operation must be cached until the operation runs again."""


@dataclass(frozen=True, slots=True)
class Subject:
    """The facts about a row that decide which data key encrypts its content.

    A row of a thread has the thread's id and owner. The config of the first put in this process names the owner, or
    else the thread's row does. Memories and files have a namespace. Its labels after `user`, `tenant` and `agent` name
    the owner.
    """

    thread_id: str | None = None
    user_id: str | None = None
    tenant_id: str | None = None
    agent: str | None = None
    namespace: tuple[str, ...] = ()

    @classmethod
    def of_namespace(cls, namespace: Sequence[str]) -> Subject:
        """Return the subject that the namespace of a memory or a file names."""
        named: dict[str, str] = {}
        labels = iter(namespace)
        for name in labels:
            if (part := _OWNERS.get(name)) is not None and (label := next(labels, None)) is not None:
                named.setdefault(part, label)
        return cls(None, named.get("user_id"), named.get("tenant_id"), named.get("agent"), tuple(namespace))


_SCOPES: Final[dict[str, Callable[[Subject], str]]] = {
    "all": lambda subject: "",
    "tenant": lambda subject: f"tenant:{subject.tenant_id}" if subject.tenant_id is not None else "",
    "user": lambda subject: f"user:{subject.user_id}" if subject.user_id is not None else "",
    "thread": lambda subject: f"thread:{subject.thread_id}" if subject.thread_id is not None else "",
}

_ASKED: Final[dict[str, tuple[str, ...]]] = {"tenant": ("tenant_id",), "user": ("user_id",)}


class Encryption:
    """Encryption of content, for `encryption=` of savers and states.

    Values are encrypted by AES-256-GCM under data keys, which are stored wrapped by a master key. If tables keep
    tenants apart, each tenant has its own data keys.

    Args:
        keys: The master key: an object with `id`, `wrap` and `unwrap`; `"file:PATH"` or `"env:NAME"` for a key of 32
            bytes in a file or an environment variable; or the URL of a key of a service: `aws-kms://ARN`,
            `gcp-kms://projects/…/cryptoKeys/…`, `vault://transit/KEY`. In a list, the first key wraps new data keys,
            and the other keys only unwrap older data keys.
        scope: Rows that share a data key: by default all rows, else those of a `"tenant"`, a `"user"` or a `"thread"`;
            or a function that takes a `Subject` and returns the name of its data key. Names are stored in clear text.
        readable: Keys of metadata and of values of the store that are not encrypted, so that searches can use them.
            Metadata of LangGraph and of this package are never encrypted.
        searchable: Keys of metadata and of values of the store that can be searched for equal values. A reader of the
            tables sees which values are equal.
        search: `"words"` stores digests of the words of memories and messages, so that words can be searched. A reader
            of the tables sees which texts share words.
        plain_vectors: Whether embeddings of memories may be stored. They are not encrypted, and reveal the topics of
            the texts.
        accept_plain: Whether content that is not encrypted may be read, during a move to encryption.
        cache_for: Time after which the master key is called again for a cached data key. If the master key does not
            respond, the cached data key stays in use.
        max_cached: Maximum number of data keys in memory.

    Raises:
        ConfigurationError: If an argument is invalid, or the package `cryptography` is not installed.
    """

    def __init__(
        self,
        keys: MasterKey | str | Sequence[MasterKey | str],
        *,
        scope: str | Callable[[Subject], str] | None = None,
        readable: Collection[str] = (),
        searchable: Collection[str] = (),
        search: Literal["words"] | None = None,
        plain_vectors: bool = False,
        accept_plain: bool = False,
        cache_for: timedelta = timedelta(minutes=5),
        max_cached: int = 10_000,
    ) -> None:
        given: Sequence[Any] = [*keys] if isinstance(keys, list | tuple) else [keys]
        self.masters = tuple(map(master_of, given))
        if not self.masters:
            raise ConfigurationError("keys must have at least one master key")
        if len({master.id for master in self.masters}) < len(self.masters):
            raise ConfigurationError("keys must name each master key only once")
        if not (scope is None or callable(scope) or scope in _SCOPES):
            raise ConfigurationError(f"scope must be one of {', '.join(_SCOPES)}, or a function, got {scope!r}")
        for name, names in (("readable", readable), ("searchable", searchable)):
            if isinstance(names, str) or not all(isinstance(one, str) for one in names):
                raise ArgumentTypeError(f"{name} must be a list of keys of metadata, not {names!r}")
        if search not in (None, "words"):
            raise ConfigurationError(f"search must be 'words' or None, got {search!r}")
        if not isinstance(cache_for, timedelta) or cache_for.total_seconds() < MIN_CACHE_SECONDS:
            raise ConfigurationError(f"cache_for must be a timedelta of at least a second, not {cache_for!r}")
        if type(max_cached) is not int or max_cached < 1:
            raise ConfigurationError(f"max_cached must be at least 1, not {max_cached!r}")
        # If the package cryptography is missing, raise the error now.
        aes_gcm(bytes(32))
        self._scope: Callable[[Subject], str] = scope if callable(scope) else _SCOPES[scope or "all"]
        # The fields of a thread's owner that decide the scope of the thread.
        self.asks_owner = ("agent", "user_id", "tenant_id") if callable(scope) else _ASKED.get(scope or "all", ())
        self.readable, self.searchable = frozenset(readable), frozenset(searchable)
        self.search, self.plain_vectors, self.accept_plain = search, plain_vectors, accept_plain
        self.cache_seconds, self.max_cached = cache_for.total_seconds(), max_cached

    def __repr__(self) -> str:
        return f"<Encryption {', '.join(master.id for master in self.masters)}>"

    @classmethod
    def from_environment(
        cls, environment: Mapping[str, str], *, accept_plain: bool = False, key: MasterKey | None = None
    ) -> Encryption | None:
        """Return the encryption that environment variables configure, for commands.

        If no variable names a master key, `key` is used instead. Without either, return `None`.

        `PGSTATE_ENCRYPTION_KEYS` lists master keys, like `env:NAME,file:PATH`. `PGSTATE_ENCRYPTION_SCOPE`,
        `PGSTATE_ENCRYPTION_READABLE`, `PGSTATE_ENCRYPTION_SEARCHABLE` and `PGSTATE_ENCRYPTION_SEARCH` are the arguments
        of these names; lists are separated by commas. `PGSTATE_ENCRYPTION_PLAIN_VECTORS` is 1 to allow embeddings.

        Raises:
            ConfigurationError: If a variable is invalid.
        """

        def listed(name: str) -> list[str]:
            return [one.strip() for one in environment.get(name, "").split(",") if one.strip()]

        keys: list[MasterKey | str] = [*listed("PGSTATE_ENCRYPTION_KEYS")]
        if not keys and key is not None:
            keys = [key]
        if not keys:
            return None
        return cls(
            keys,
            scope=environment.get("PGSTATE_ENCRYPTION_SCOPE") or None,
            readable=listed("PGSTATE_ENCRYPTION_READABLE"),
            searchable=listed("PGSTATE_ENCRYPTION_SEARCHABLE"),
            search=environment.get("PGSTATE_ENCRYPTION_SEARCH") or None,  # type: ignore[arg-type]
            plain_vectors=environment.get("PGSTATE_ENCRYPTION_PLAIN_VECTORS") == "1",
            accept_plain=accept_plain,
        )

    def scope_of(self, subject: Subject) -> str:
        """Return the name of the data key of a row.

        Raises:
            ConfigurationError: If the function `scope` returns an invalid name.
        """
        found = self._scope(subject)
        if not isinstance(found, str) or "\0" in found or len(found.encode("utf-8", "replace")) > _MOST_SCOPE_BYTES:
            raise ConfigurationError(
                f"scope must return a text of at most {_MOST_SCOPE_BYTES} bytes without NUL, got {found!r}"
            )
        return found
