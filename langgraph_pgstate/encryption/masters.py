"""Master keys, which wrap data keys. They are in a file, in an environment variable, or in a service."""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import os
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Final, Protocol, runtime_checkable

from langgraph_pgstate.encryption.cipher import KEY_BYTES, aes_gcm, decrypt
from langgraph_pgstate.encryption.services import SERVICES
from langgraph_pgstate.errors import ArgumentTypeError, ConfigurationError, DataKeyError

_NONCE_BYTES: Final = 12

Context = Mapping[str, str]
"""What a wrapped data key is bound to: its id, its scope, and its tenant, if there is one. Services log the context."""


@runtime_checkable
class MasterKey(Protocol):
    """A key that wraps data keys, such as a key of a key management service.

    `wrap` and `unwrap` may be coroutine functions. Ordinary functions are called in a thread if there is an event loop.
    An error becomes a retryable `KeyUnavailableError`, unless it is an error of this package.

    Attributes:
        id: Name of the key, stored with each data key that it wraps. Different keys must have different ids.
    """

    @property
    def id(self) -> str:
        """Name of the key."""
        ...

    def wrap(self, data_key: bytes, context: Context) -> bytes | Awaitable[bytes]:
        """Return a data key of 32 bytes, encrypted and bound to a context."""
        ...

    def unwrap(self, wrapped: bytes, context: Context) -> bytes | Awaitable[bytes]:
        """Return the data key that `wrap` has encrypted with the same context."""
        ...


class LocalMasterKey:
    """A master key of 32 bytes in this process. Its id is a digest of the bytes.

    Args:
        secret: The key, as bytes, or as text of 64 hexadecimal digits or in base64.

    Raises:
        ConfigurationError: If the key does not have 32 bytes.
    """

    def __init__(self, secret: bytes | str) -> None:
        key = secret if isinstance(secret, bytes) else _decoded(secret)
        if len(key) != KEY_BYTES:
            raise ConfigurationError(f"a master key must have {KEY_BYTES} bytes, got {len(key)}")
        self._aead = aes_gcm(key)
        self.id = f"local:{hashlib.sha256(b'langgraph_pgstate master' + key).hexdigest()[:16]}"

    def __repr__(self) -> str:
        return f"<LocalMasterKey {self.id}>"

    @classmethod
    def from_file(cls, path: str | Path) -> LocalMasterKey:
        """Read the key from a file, which contains the 32 bytes, or text as for `secret`.

        Raises:
            ConfigurationError: If the file cannot be read, or does not contain a key.
        """
        try:
            content = Path(path).read_bytes()
        except OSError as error:
            raise ConfigurationError(f"the file of the master key cannot be read: {error}") from error
        return cls(content if len(content) == KEY_BYTES else content.decode("ascii", "replace"))

    @classmethod
    def from_environment(cls, name: str = "PGSTATE_MASTER_KEY") -> LocalMasterKey:
        """Read the key from an environment variable.

        Raises:
            ConfigurationError: If the variable is not set, or does not contain a key.
        """
        text = os.environ.get(name)
        if not text:
            raise ConfigurationError(f"the environment variable {name} must contain the master key")
        return cls(text)

    @staticmethod
    def generate() -> str:
        """Return a new key as text in base64, for a file or an environment variable."""
        return base64.b64encode(os.urandom(KEY_BYTES)).decode()

    def wrap(self, data_key: bytes, context: Context) -> bytes:
        """Return an encrypted data key."""
        nonce = os.urandom(_NONCE_BYTES)
        wrapped: bytes = nonce + self._aead.encrypt(nonce, data_key, _associated(context))
        return wrapped

    def unwrap(self, wrapped: bytes, context: Context) -> bytes:
        """Return a data key.

        Raises:
            DataKeyError: If the data key was wrapped by another key, or with another context.
        """
        found = decrypt(self._aead, wrapped[:_NONCE_BYTES], wrapped[_NONCE_BYTES:], _associated(context))
        if found is None:
            raise DataKeyError(
                context.get("key_id", "?"), "this master key did not wrap the data key, or the wrapped key was changed"
            )
        return found


class CallableMasterKey:
    """A master key of two functions like `MasterKey.wrap` and `MasterKey.unwrap`. They may be coroutine functions."""

    def __init__(
        self,
        id: str,
        wrap: Callable[[bytes, Context], bytes | Awaitable[bytes]],
        unwrap: Callable[[bytes, Context], bytes | Awaitable[bytes]],
    ) -> None:
        self.id, self.wrap, self.unwrap = id, wrap, unwrap


def master_of(given: object) -> MasterKey:
    """Return a master key: the given object, or one from `file:PATH`, `env:NAME` or the URL of a service.

    Raises:
        ConfigurationError: If the value is no master key.
    """
    if isinstance(given, str):
        kind, _, name = given.partition(":")
        if kind == "file" and name:
            return LocalMasterKey.from_file(name)
        if kind == "env" and name:
            return LocalMasterKey.from_environment(name)
        if kind in SERVICES and name.startswith("//"):
            return SERVICES[kind](name[2:])
        raise ConfigurationError(
            f"a master key must have the form file:PATH or env:NAME, {', '.join(f'{one}://KEY' for one in SERVICES)}, "
            "or be an object with id, wrap and unwrap"
        )
    if isinstance(given, MasterKey):
        return given
    raise ArgumentTypeError(f"a master key must be an object with id, wrap and unwrap, not {type(given).__name__}")


def _decoded(text: str) -> bytes:
    text = text.strip()
    try:
        return bytes.fromhex(text) if len(text) == 2 * KEY_BYTES else base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        # The message must not show the text, which is secret.
        raise ConfigurationError("a master key must be written as 64 hexadecimal digits, or in base64") from error


def _associated(context: Context) -> bytes:
    return json.dumps(dict(context), sort_keys=True).encode()
