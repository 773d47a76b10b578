"""Requests of embeddings from models, and their encoding as PostgreSQL's binary arrays."""

from __future__ import annotations

import logging
import math
import struct
import sys
from array import array
from collections.abc import Sequence
from itertools import chain, islice
from typing import Any, Final, Protocol

from langchain_core.embeddings import Embeddings
from langgraph.store.base.embed import EmbeddingsLambda

from langgraph_pgstate.errors import ConfigurationError
from langgraph_pgstate.memory.gathering import Gathering

_log = logging.getLogger(__name__)

_BATCH: Final = 1000
_ARRAY_HEADER: Final = struct.Struct("!iiIii")

Vector = Sequence[float]


class Embedder(Protocol):
    """An object that requests embeddings from a model."""

    async def embed(self, texts: Sequence[str]) -> list[Vector]:
        """Return the embedding of each text."""
        ...

    async def embed_query(self, query: str) -> Vector:
        """Return the embedding of a query, which some models embed in another way than the texts that it finds."""
        ...


class AsyncEmbedder:
    """The embedder of the async store. It combines simultaneous requests of several tasks."""

    def __init__(self, model: Embeddings) -> None:
        self._model = model
        self._together = Gathering(self._embed, lambda texts: [object() for _ in texts], most=_BATCH, patience=0)

    async def embed(self, texts: Sequence[str]) -> list[Vector]:
        """Return the embedding of each text."""
        return await self._together(texts)

    async def embed_query(self, query: str) -> Vector:
        """Return the embedding of a query. A function embeds queries and texts alike, so it gets them together."""
        if isinstance(self._model, EmbeddingsLambda):
            return (await self.embed([query]))[0]
        return await self._model.aembed_query(query)

    async def _embed(self, calls: Sequence[Sequence[str]]) -> list[list[Vector]]:
        texts, found = [*chain.from_iterable(calls)], []
        for start in range(0, len(texts), _BATCH):
            found += await self._model.aembed_documents(texts[start : start + _BATCH])
        _check_count(found, texts)
        left = iter(found)
        return [[*islice(left, len(one))] for one in calls]


class BlockingEmbedder:
    """The embedder of the blocking store. Its coroutine never suspends."""

    def __init__(self, model: Embeddings) -> None:
        self._model = model

    async def embed(self, texts: Sequence[str]) -> list[Vector]:
        """Return the embedding of each text."""
        found: list[Vector] = []
        for start in range(0, len(texts), _BATCH):
            found += self._model.embed_documents([*texts[start : start + _BATCH]])
        _check_count(found, texts)
        return found

    async def embed_query(self, query: str) -> Vector:
        """Return the embedding of a query."""
        return self._model.embed_query(query)


def _check_count(found: Sequence[Vector], texts: Sequence[str]) -> None:
    """Raise an error unless there is one embedding for each text."""
    if len(found) != len(texts):
        raise ValueError(
            f"the embedding model must return {len(texts)} embeddings for {len(texts)} texts, not {len(found)}"
        )


def packed(vector: Vector, dims: int) -> bytes:
    """Return a vector in pgvector's binary format."""
    if len(vector) != dims:
        raise ConfigurationError(f"the embedding model must return {dims} numbers (dims), not {len(vector)}")
    numbers = array("f", vector)
    if not math.isfinite(sum(numbers)):
        raise ConfigurationError("the embedding model must return finite numbers")
    if sys.byteorder == "little":
        numbers.byteswap()
    return struct.pack("!HH", dims, 0) + numbers.tobytes()


def packed_array(vectors: Sequence[bytes], element_type: int) -> bytes:
    """Return packed vectors as an array in PostgreSQL's binary format."""
    if not vectors:
        return struct.pack("!iiI", 0, 0, element_type)
    parts = [_ARRAY_HEADER.pack(1, 0, element_type, len(vectors), 1)]
    for vector in vectors:
        parts += [struct.pack("!i", len(vector)), vector]
    return b"".join(parts)


def report_failure(error: Exception, count: int) -> None:
    """Log that a model failed."""
    _log.warning("the embedding model failed for %d texts, which are indexed later: %r", count, error)


def is_model_error(error: Any) -> bool:
    """Return whether an error comes from the model, not from a mistake of the caller."""
    return isinstance(error, Exception) and not isinstance(error, ConfigurationError)
