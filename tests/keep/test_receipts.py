"""Receipts of erasures: signed, verified, and without personal data."""

from __future__ import annotations

import json
from base64 import b64encode
from typing import Any

import pytest

from langgraph_pgstate.errors import ConfigurationError
from langgraph_pgstate.keep.receipts import Signer, Verdict, make_receipt, signer_of, subject_of, verify_receipt

SECRET = b"a secret of the operator"
SUBJECT = subject_of("user", "evelyn")
# A key of a kind that nobody knows, as PKCS #8.
_PRIVATE = b"PRIVATE " + b"KEY"
_OF_ANOTHER_KIND = bytes.fromhex("302e020100300506032b6561042204") + bytes([32]) + bytes(range(32))
FACTS = {"receipt_id": "r", "rows": 3, "counts": {"threads": 3}}


def keys_of_ed25519() -> tuple[bytes, bytes]:
    ed25519 = pytest.importorskip("cryptography.hazmat.primitives.asymmetric.ed25519")
    from cryptography.hazmat.primitives import serialization as form

    private = ed25519.Ed25519PrivateKey.generate()
    pem = form.Encoding.PEM
    return (
        private.private_bytes(pem, form.PrivateFormat.PKCS8, form.NoEncryption()),
        private.public_key().public_bytes(pem, form.PublicFormat.SubjectPublicKeyInfo),
    )


def test_a_receipt_is_verified_with_its_secret() -> None:
    receipt = make_receipt(FACTS, SUBJECT, Signer(SECRET))
    assert "evelyn" not in json.dumps(receipt)
    assert verify_receipt(json.dumps(receipt), SECRET).is_signed
    assert verify_receipt(receipt, SECRET, SUBJECT).is_of is True
    assert verify_receipt(receipt, SECRET, subject_of("user", "bob")).is_of is False
    assert verify_receipt(receipt, SECRET, subject_of("thread", "evelyn")).is_of is False
    assert not verify_receipt({**receipt, "rows": 4}, SECRET).is_signed
    assert not verify_receipt(receipt, SECRET + b"!").is_signed
    assert not verify_receipt({**receipt, "signature": None}, SECRET).is_signed
    # A file ends in a line end.
    assert verify_receipt(receipt, SECRET + b"\n", SUBJECT).is_of is True


def test_a_receipt_is_verified_with_a_public_key() -> None:
    private, public = keys_of_ed25519()
    receipt = make_receipt(FACTS, SUBJECT, signer_of(private))
    assert receipt["algorithm"] == "Ed25519"
    assert verify_receipt(receipt, public) == Verdict(True, None)
    # Only who has the private key can say about whom it is.
    unsaid = verify_receipt(receipt, public, SUBJECT)
    assert (unsaid.is_signed, unsaid.is_of) == (True, None)
    assert "private key" in unsaid.why
    assert verify_receipt(receipt, private, SUBJECT).is_of is True
    assert not verify_receipt({**receipt, "rows": 4}, public).is_signed
    assert not verify_receipt(receipt, keys_of_ed25519()[1]).is_signed
    assert verify_receipt(receipt, SECRET).why.startswith("it was signed by Ed25519")
    with pytest.raises(ConfigurationError, match="must be a private key"):
        signer_of(public)


def test_without_a_key_a_receipt_proves_nothing() -> None:
    receipt = make_receipt(FACTS, SUBJECT, None)
    assert (receipt["subject"], receipt["signature"], receipt["algorithm"]) == (None, None, "none")
    assert verify_receipt(receipt, SECRET).why == "it was not signed"


def test_what_is_no_receipt_or_key_is_refused() -> None:
    deep: Any = {"signature": "x", "algorithm": "none", "subject": None}
    for _ in range(5000):
        deep = {"signature": "x", "algorithm": "none", "subject": None, "inner": deep}
    for wrong in ("", "[]", "{}", b"\xff", {"signature": "x"}, "[" * 100_000, deep):
        with pytest.raises(ConfigurationError, match="must be a receipt"):
            verify_receipt(wrong, SECRET)
    unknown = b"-----BEGIN %b-----\n%b\n-----END %b-----\n" % (_PRIVATE, b64encode(_OF_ANOTHER_KIND), _PRIVATE)
    for key in (b"", "short", b"-----BEGIN PUBLIC KEY-----\n", unknown):
        with pytest.raises(ConfigurationError, match="key of receipts"):
            Signer(key)


def test_codes_and_signatures_of_any_characters_are_compared() -> None:
    """Guard: `compare_digest` refuses texts that are not ASCII, and UTF-8 lone surrogates."""
    receipt = make_receipt(FACTS, SUBJECT, Signer(SECRET))
    for text in ("é", "\ud800"):
        assert not verify_receipt({**receipt, "signature": text}, SECRET).is_signed
        plain = {name: value for name, value in receipt.items() if name != "signature"} | {"subject": text}
        content = json.dumps(plain, sort_keys=True, separators=(",", ":")).encode()
        signed = {**plain, "signature": Signer(SECRET).sign(content)}
        assert verify_receipt(signed, SECRET, SUBJECT).is_of is False
