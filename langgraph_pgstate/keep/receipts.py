"""Receipts of erasures: their content, signatures and verification. No I/O.

A receipt has the start and end of an erasure, and the number of rows that were erased or redacted in each table. A
receipt names no person. Its subject is a code, which only the holder of the key can compute from an id.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from langgraph_pgstate.errors import ConfigurationError

HMAC: Final = "HMAC-SHA256"
ED25519: Final = "Ed25519"
NONE: Final = "none"
_FORMAT: Final = 1
_SHORTEST_SECRET: Final = 16
_PEM: Final = b"-----BEGIN "


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of verifying a receipt.

    Attributes:
        is_signed: Whether the receipt is unchanged since the holder of the key signed it.
        is_of: Whether the receipt is about the given user, thread or message; `None` if none was given, or the key is
            public.
        why: Why the verification failed, or cannot say what the receipt is about; else empty.
    """

    is_signed: bool
    is_of: bool | None
    why: str = ""


def subject_of(kind: str, id: str, thread_id: str | None = None) -> bytes:
    """Return bytes that name the subject of an erasure: a user, a thread or a message."""
    return json.dumps([kind, id, thread_id], ensure_ascii=True).encode()


class Signer:
    """A key that signs receipts and verifies their signatures.

    Args:
        key: A secret of at least 16 bytes, for HMAC; or an Ed25519 key as PEM. A public key can only verify. White
            space around the key is ignored, so that the newline at the end of a file does not change the secret.

    Raises:
        ConfigurationError: If the key is neither a secret nor an Ed25519 key.
    """

    def __init__(self, key: bytes | str) -> None:
        secret = key.encode() if isinstance(key, str) else key
        if not isinstance(secret, bytes):
            raise ConfigurationError(f"the key of receipts must be bytes or a string, not {type(key).__name__}")
        secret = secret.strip()
        self._private: Any = None
        self._public: Any = None
        self._secret = secret
        if secret.startswith(_PEM):
            self._load(secret)
        elif len(secret) < _SHORTEST_SECRET:
            raise ConfigurationError(f"the key of receipts must have at least {_SHORTEST_SECRET} bytes")

    def _load(self, pem: bytes) -> None:
        try:
            from cryptography.exceptions import UnsupportedAlgorithm
            from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
            from cryptography.hazmat.primitives.serialization import load_pem_private_key, load_pem_public_key
        except ImportError:
            raise ConfigurationError("an Ed25519 key requires the package cryptography") from None
        try:
            if b"PUBLIC KEY" in pem:
                self._public = load_pem_public_key(pem)
            else:
                self._private = load_pem_private_key(pem, None)
                self._public = self._private.public_key()
        except (ValueError, TypeError, UnsupportedAlgorithm) as error:
            raise ConfigurationError(f"the key of receipts cannot be read: {error}") from error
        if not isinstance(self._public, Ed25519PublicKey) or not isinstance(self._private, Ed25519PrivateKey | None):
            raise ConfigurationError("the key of receipts must be an Ed25519 key")

    @property
    def algorithm(self) -> str:
        """The name of the signature's algorithm."""
        return HMAC if self._public is None else ED25519

    @property
    def can_sign(self) -> bool:
        """Whether the key can sign. A public key cannot."""
        return self._public is None or self._private is not None

    def code_of(self, subject: bytes) -> str:
        """Return the code of a subject. Without the key, nobody can find the subject by trying ids."""
        if self._public is None:
            return hmac.new(self._secret, b"subject\0" + subject, hashlib.sha256).hexdigest()
        # Signatures of Ed25519 are deterministic, so the code of a subject is always the same.
        return hashlib.sha256(self._private.sign(b"subject\0" + subject)).hexdigest()

    def sign(self, content: bytes) -> str:
        """Return the signature of a receipt's content."""
        if self._public is None:
            return hmac.new(self._secret, content, hashlib.sha256).hexdigest()
        signature: bytes = self._private.sign(content)
        return signature.hex()

    def is_signature(self, content: bytes, signature: str) -> bool:
        """Return whether a signature of a content was made with the key."""
        if self._public is None:
            return hmac.compare_digest(self.sign(content).encode(), _bytes(signature))
        try:
            self._public.verify(bytes.fromhex(signature), content)
        except Exception:
            # Catch all errors, because the optional package of `InvalidSignature` is not imported at the top.
            return False
        return True


def signer_of(key: bytes | str | None) -> Signer | None:
    """Return the signer of a key, or `None` if no key is given.

    Raises:
        ConfigurationError: If the key cannot sign.
    """
    if key is None:
        return None
    signer = Signer(key)
    if not signer.can_sign:
        raise ConfigurationError("key must be a private key to sign receipts, got a public key")
    return signer


def make_receipt(facts: Mapping[str, Any], subject: bytes, signer: Signer | None) -> dict[str, Any]:
    """Return the receipt of an erasure. The `facts` must not name a person.

    Without a signer, the receipt has no signature and no subject.
    """
    receipt = {
        "format": _FORMAT,
        **facts,
        "subject": None if signer is None else signer.code_of(subject),
        "algorithm": NONE if signer is None else signer.algorithm,
    }
    return {**receipt, "signature": None if signer is None else signer.sign(_content(receipt))}


def verify_receipt(receipt: Mapping[str, Any] | str | bytes, key: bytes | str, subject: bytes | None = None) -> Verdict:
    """Return whether a receipt is unchanged since it was signed, and whether it is about a given subject.

    Raises:
        ConfigurationError: If `receipt` is not a receipt, or the key is invalid.
    """
    try:
        found = json.loads(receipt) if isinstance(receipt, str | bytes) else dict(receipt)
        signature, algorithm = found.pop("signature"), found["algorithm"]
        code, content = found["subject"], _content(found)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ConfigurationError("receipt must be a receipt that `erase` returned") from error
    signer = Signer(key)
    if algorithm == NONE or signature is None:
        return Verdict(False, None, "it was not signed")
    if algorithm != signer.algorithm:
        return Verdict(False, None, f"it was signed by {algorithm}, but the key is for {signer.algorithm}")
    if not isinstance(signature, str) or not signer.is_signature(content, signature):
        return Verdict(False, None, "it was changed, or signed with another key")
    if subject is None:
        return Verdict(True, None)
    if not signer.can_sign:
        return Verdict(True, None, "the receipt is as it was signed; whom it is about requires the private key")
    is_of = hmac.compare_digest(signer.code_of(subject).encode(), _bytes(code))
    return Verdict(True, is_of, "" if is_of else "it is about another subject")


def _bytes(code: Any) -> bytes:
    return str(code).encode("utf-8", "backslashreplace")


def _content(receipt: Mapping[str, Any]) -> bytes:
    return json.dumps(receipt, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()
