"""Encryption of one value under a data key, bound to its row. No I/O.

    bytes   `03 70 67 73` · data key (8 bytes) · nonce (12) · ciphertext and tag, by AES-256-GCM
    text    `pgs1:` and base64 of these bytes without the first four

The associated data are table, column and key of the row, so a value that was moved to another row, column or table does
not decrypt. A value is encrypted under a subkey, which HMAC-SHA-256 derives from the data key and the first part of the
row's key, such as the thread. Nonces are random and have only 12 bytes, so a single key can encrypt only a limited
number of values safely. Subkeys raise this limit.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import json
import os
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, Final

from langgraph_pgstate.errors import ConfigurationError, DecryptionError

MAGIC: Final = b"\x03pgs"
TEXT_MAGIC: Final = "pgs1:"
KEY_BYTES: Final = 32
_ID_BYTES: Final = 8
_NONCE_BYTES: Final = 12
_TAG_BYTES: Final = 16
_START: Final = len(MAGIC)
_NONCE_AT: Final = _START + _ID_BYTES
_CONTENT_AT: Final = _NONCE_AT + _NONCE_BYTES
_MOST_SUBKEYS: Final = 4096
_WORD_BYTES: Final = 8
# Letters that replace digits in a hexadecimal digest, so that full-text search takes the digest as one word.
_LETTERS: Final = str.maketrans("0123456789", "ghijklmnop")


def aes_gcm(key: bytes) -> Any:
    """Return AES-GCM under a key."""
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ImportError as error:
        raise ConfigurationError(
            "encryption needs the package cryptography: pip install 'langgraph-pgstate[encryption]'"
        ) from error
    return AESGCM(key)


def decrypt(aead: Any, nonce: bytes, data: bytes, associated: bytes) -> bytes | None:
    """Return the decrypted content; `None` if the content was encrypted with another key or other associated data."""
    from cryptography.exceptions import InvalidTag

    try:
        content: bytes = aead.decrypt(nonce, data, associated)
    except (InvalidTag, ValueError):
        # A truncated nonce raises `ValueError`.
        return None
    return content


def new_key_id() -> str:
    """Return the id of a new data key."""
    return os.urandom(_ID_BYTES).hex()


def is_sealed(value: Any) -> bool:
    """Return whether a value is encrypted."""
    return value.startswith(TEXT_MAGIC) if isinstance(value, str) else value[:_START] == MAGIC


def key_id_of(value: bytes) -> str:
    """Return the id of the data key of an encrypted value."""
    return value[_START:_NONCE_AT].hex()


def key_id_at(head: bytes | str, *, is_bytes: bool) -> str | None:
    """Return the data key's id from a value's first 12 bytes or 17 characters; `None` if the value is plain.

    For damaged text, return an id that no key has.
    """
    if is_bytes:
        return key_id_of(bytes(head)) if isinstance(head, bytes) and is_sealed(head) else None
    if not isinstance(head, str) or not head.startswith(TEXT_MAGIC):
        return None
    try:
        return base64.b64decode(head[len(TEXT_MAGIC) :] + "==")[:_ID_BYTES].hex()
    except ValueError:
        return ""


def to_text(sealed: bytes) -> str:
    """Return an encrypted value as text."""
    return TEXT_MAGIC + base64.b64encode(sealed[_START:]).decode()


def from_text(text: str, where: str) -> bytes:
    """Return an encrypted value from its text."""
    try:
        return MAGIC + base64.b64decode(text[len(TEXT_MAGIC) :], validate=True)
    except (binascii.Error, ValueError) as error:
        raise DecryptionError(where) from error


def where(column: str, parts: Sequence[Any]) -> str:
    """Return the place of a value, for errors."""
    return f"{column} of {', '.join(repr(part) for part in parts)}"


class DataKey:
    """A data key that was unwrapped. Its `id` has 16 hexadecimal digits, and its secret has 32 bytes."""

    __slots__ = ("_raw_id", "_secret", "_subkeys", "id", "scope")

    def __init__(self, id: str, scope: str, secret: bytes) -> None:
        self.id, self.scope = id, scope
        self._raw_id, self._secret = bytes.fromhex(id), secret
        # For each first part of a row's key, the cipher of the subkey, and the HMAC key for stable nonces.
        self._subkeys: dict[str, tuple[Any, bytes]] = {}

    def __repr__(self) -> str:
        return f"<DataKey {self.id}>"

    def seal(self, column: str, parts: Sequence[Any], content: bytes, *, is_stable: bool = False) -> bytes:
        """Return encrypted content, bound to its column (`table.column`) and to the key of its row (`parts`).

        If `is_stable`, equal arguments give an equal result. A reader of the table then sees that values are equal.
        """
        associated = _associated(column, parts)
        aead, nonces = self._of(parts[0])
        if is_stable:
            nonce = hmac.digest(nonces, associated + b"\0" + content, "sha256")[:_NONCE_BYTES]
        else:
            nonce = os.urandom(_NONCE_BYTES)
        sealed: bytes = MAGIC + self._raw_id + nonce + aead.encrypt(nonce, content, associated)
        return sealed

    def open(self, column: str, parts: Sequence[Any], sealed: bytes) -> bytes:
        """Return the content of an encrypted value.

        Raises:
            DecryptionError: If the value was changed, truncated, or moved from another row.
        """
        content = None
        if len(sealed) >= _CONTENT_AT + _TAG_BYTES:
            aead, _ = self._of(parts[0])
            content = decrypt(aead, sealed[_NONCE_AT:_CONTENT_AT], sealed[_CONTENT_AT:], _associated(column, parts))
        if content is None:
            raise DecryptionError(where(column, parts))
        return content

    def digest(self, purpose: str, content: bytes) -> str:
        """Return an HMAC of content, to search for equal content."""
        return hmac.digest(self._derived(f"digest\0{purpose}"), content, "sha256").hex()[:32]

    def mark(self, purpose: str, digest: str) -> str:
        """Return an HMAC of a digest, as text that begins with the id of this key, like an encrypted value."""
        return to_text(MAGIC + self._raw_id + bytes.fromhex(self.digest(purpose, digest.encode())))

    def words(self, words: Iterable[str]) -> str:
        """Return the HMACs of words, written in letters, as one text. They are sorted to hide the order of words."""
        key = self._derived("words")
        found = {hmac.digest(key, word.encode("utf-8", "surrogatepass"), "sha256")[:_WORD_BYTES] for word in words}
        return " ".join(one.hex().translate(_LETTERS) for one in sorted(found))

    def _of(self, part: Any) -> tuple[Any, bytes]:
        subject = _text(part)
        found = self._subkeys.get(subject)
        if found is None:
            if len(self._subkeys) >= _MOST_SUBKEYS:
                self._subkeys.clear()
            found = aes_gcm(self._derived(f"content\0{subject}")), self._derived(f"nonce\0{subject}")
            self._subkeys[subject] = found
        return found

    def _derived(self, purpose: str) -> bytes:
        return hmac.digest(self._secret, b"langgraph_pgstate\0" + purpose.encode("utf-8", "surrogatepass"), "sha256")


def _associated(column: str, parts: Sequence[Any]) -> bytes:
    # NUL is a safe separator, because texts in PostgreSQL cannot contain NUL.
    return "\0".join([column, *map(_text, parts)]).encode("utf-8", "surrogatepass")


def _text(part: Any) -> str:
    if type(part) is str:
        return part
    if isinstance(part, list | tuple):
        return _labels(tuple(part))
    # The prefix distinguishes `None` from the string 'None'.
    return f"\x01{part!r}" if part is None else str(part)


@lru_cache(4096)
def _labels(namespace: tuple[str, ...]) -> str:
    """Return a namespace as text. The cache helps, because each value of a namespace needs the text several times."""
    return json.dumps(namespace)
