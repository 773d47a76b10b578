"""A master key made of LangGraph's own `Encryption` object, which `langgraph.json` names."""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Mapping
from typing import Any, Final

from langgraph_pgstate.encryption.masters import CallableMasterKey
from langgraph_pgstate.errors import ConfigurationError, DataKeyError
from langgraph_pgstate.langgraph_compat import encryption_handlers

_ID: Final = "langgraph.json"
_DIGEST_BYTES: Final = 32


def master_of_langgraph(given: Any) -> CallableMasterKey:
    """Return a master key that wraps data keys by the blob handlers of a `langgraph_sdk.Encryption`.

    Its handlers for JSON are not called, because data keys encrypt all content. The context of a handler has the model
    `data_key`, and the id and the scope of the data key as metadata.

    Raises:
        ConfigurationError: If the object is no `Encryption`, lacks a blob handler, or has an `encryption.context`
            handler, which needs a request.
    """
    handlers = encryption_handlers(given)
    if handlers is None:
        raise ConfigurationError(f"encryption must be a langgraph_sdk.Encryption, not {type(given).__name__}")
    if handlers.encrypt is None or handlers.decrypt is None:
        raise ConfigurationError(
            "encryption must have handlers encrypt.blob and decrypt.blob, by which data keys are wrapped"
        )
    if handlers.has_context:
        raise ConfigurationError(
            "encryption must not have a handler encryption.context, because data keys do not depend on requests: set "
            "PGSTATE_ENCRYPTION_SCOPE to what has a data key of its own, such as user"
        )
    encrypt, decrypt = handlers.encrypt, handlers.decrypt

    async def wrap(data_key: bytes, context: Mapping[str, str]) -> bytes:
        # Put a digest of the context before the data key, because the handlers do not bind the key to the context.
        wrapped: bytes = await encrypt(handlers.context("data_key", dict(context)), _digest(context) + data_key)
        return wrapped

    async def unwrap(wrapped: bytes, context: Mapping[str, str]) -> bytes:
        found = await decrypt(handlers.context("data_key", dict(context)), wrapped)
        content: bytes = getattr(found, "plaintext", found)
        if not hmac.compare_digest(content[:_DIGEST_BYTES], _digest(context)):
            raise DataKeyError(
                context.get("key_id", "?"), "this master key did not wrap the data key, or the wrapped key was changed"
            )
        return content[_DIGEST_BYTES:]

    return CallableMasterKey(_ID, wrap, unwrap)


def _digest(context: Mapping[str, str]) -> bytes:
    return hashlib.sha256(json.dumps(dict(context), sort_keys=True).encode()).digest()
