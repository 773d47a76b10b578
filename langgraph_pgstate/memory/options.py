"""Options of a store. Options of LangGraph's `PostgresStore` have the same names and forms here."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypedDict

from langchain_core.embeddings import Embeddings
from langgraph.store.base import TTLConfig, ensure_embeddings

from langgraph_pgstate.arguments import identifier
from langgraph_pgstate.errors import ArgumentTypeError, ConfigurationError
from langgraph_pgstate.memory.namespaces import Namespace, labels_of
from langgraph_pgstate.memory.texts import WHOLE, fields_of

Distance = Literal["cosine", "l2", "inner_product"]

OPERATORS: Final[Mapping[str, str]] = {"cosine": "<=>", "l2": "<->", "inner_product": "<#>"}
OPERATOR_CLASSES: Final[Mapping[str, str]] = {"cosine": "cosine_ops", "l2": "l2_ops", "inner_product": "ip_ops"}
# Maximum numbers of dimensions that pgvector can index.
_MAX_DIMS: Final = {"vector": 2000, "halfvec": 4000}
_KEYS: Final = ("name", "dims", "embed", "fields", "distance_type", "ann_index_config")
_TTL_KEYS: Final = ("default_ttl", "refresh_on_read", "omit_expired", "sweep_interval_minutes")
_HNSW_KEYS: Final = ("m", "ef_construction")
_LANGUAGE: Final = re.compile(r"[a-z_][a-z0-9_]*(\.[a-z_][a-z0-9_]*)?")
DEFAULT_HISTORY: Final = 20
DEFAULT_SIMILARITY: Final = 0.95
_ALL: Final = 2**30


class IndexOptions(TypedDict, total=False):
    """Options of an index of embeddings: the options `index` of LangGraph's `PostgresStore`, and a name.

    Attributes:
        name: Name of the index; `default` if left out. Use a new name for a new model.
        dims: Number of dimensions.
        embed: LangChain's embeddings, a function of texts (also an async one), or a name like `openai:…`.
        fields: Paths of the fields that are embedded; the whole value by default.
        distance_type: `cosine`, the default, `l2` or `inner_product`.
        ann_index_config: Options of the approximate index of large namespaces. `vector_type` is `vector`, the default
            for up to 2,000 dimensions, or `halfvec`, for up to 4,000 in half the space. `kind` is `hnsw`, or `flat` for
            exact searches only. `m` and `ef_construction` are options of `hnsw`.
    """

    name: str
    dims: int
    embed: Embeddings | Callable[..., Any] | str
    fields: Sequence[str] | None
    distance_type: Distance
    ann_index_config: Mapping[str, Any]


class NamespaceOptions(TypedDict, total=False):
    """Options of the items of some namespaces. Arguments of a put take precedence.

    Attributes:
        index: Fields that are embedded and found by words; `False` for none.
        ttl: Minutes to live; `None` for ever.
    """

    index: Sequence[str] | Literal[False]
    ttl: float | None


class MemoryOptions(TypedDict, total=False):
    """Options of `PGMemoryStore` and `AsyncPGMemoryStore`.

    Attributes:
        index: Options of the index of embeddings, or a list with one mapping for each model, the preferred model last.
            Without an index, items are searched by words only.
        ttl: Times to live, as `PostgresStore` takes them. Expired items are never returned.
        namespaces: Options of items, by the labels with which their namespaces begin. More labels take precedence.
        language: Configuration of PostgreSQL's full-text search, such as `english`; `simple` by default.
        history: Number of earlier versions kept of each item, 20 by default; `None` for all, 0 for none.
        merge_similarity: Minimum similarity, from 0 to 1, at which a new memory replaces a memory of the same namespace
            and kind; 0.95 by default. Requires an index with the distance `cosine`. With `None`, only equal texts are
            merged.
    """

    index: IndexOptions | Mapping[str, Any] | Sequence[Mapping[str, Any]] | None
    ttl: TTLConfig | None
    namespaces: Mapping[tuple[str, ...], NamespaceOptions]
    language: str
    history: int | None
    merge_similarity: float | None


@dataclass(frozen=True, slots=True)
class Index:
    """A validated index."""

    name: str
    dims: int
    model: Embeddings | None
    fields: tuple[str, ...]
    distance: str
    vector_type: str
    is_approximate: bool
    parameters: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Settings:
    """Validated options of a store."""

    indexes: tuple[Index, ...]
    ttl: TTLConfig | None
    language: str
    history: int
    merge_similarity: float | None = None
    namespaces: tuple[tuple[Namespace, NamespaceOptions], ...] = ()

    @property
    def fields(self) -> tuple[str, ...]:
        """Fields that are indexed by words: the fields of the preferred index."""
        return self.indexes[-1].fields if self.indexes else (WHOLE,)

    def fields_in(self, namespace: Namespace) -> tuple[str, ...] | None:
        """Return the fields that are indexed in a namespace; `None` stands for the store's fields."""
        found = self._of("index", namespace, None)
        return () if found is False else found

    def default_ttl_in(self, namespace: Namespace) -> float | None:
        """Return the time to live of items of a namespace, in minutes; `None` for ever."""
        found: float | None = self._of("ttl", namespace, (self.ttl or {}).get("default_ttl"))
        return found

    def _of(self, name: str, namespace: Namespace, default: Any) -> Any:
        found: tuple[Mapping[str, Any], ...] = tuple(
            given for labels, given in self.namespaces if namespace[: len(labels)] == labels
        )
        # Options with the most labels are first, and take precedence.
        return next((given[name] for given in found if name in given), default)


def settings_of(options: MemoryOptions) -> Settings:
    """Validate the options of a store."""
    if unknown := options.keys() - MemoryOptions.__annotations__.keys():
        raise ArgumentTypeError(
            f"options must be among {', '.join(sorted(MemoryOptions.__annotations__))}, not {min(unknown)!r}"
        )
    index = options.get("index")
    if index is not None and not isinstance(index, Mapping | Sequence):
        raise ArgumentTypeError(f"index must be a mapping or a list of mappings, not {type(index).__name__}")
    given = [index] if isinstance(index, Mapping) else [*(index or ())]
    indexes = tuple(map(_index, given))
    if len({one.name for one in indexes}) < len(indexes):
        raise ConfigurationError("index must have a different name in each mapping")
    language = options.get("language", "simple")
    if not isinstance(language, str) or not _LANGUAGE.fullmatch(language):
        raise ConfigurationError(f"language must name a text search configuration, like 'english', not {language!r}")
    history = options.get("history", DEFAULT_HISTORY)
    if history is not None and (isinstance(history, bool) or not isinstance(history, int) or history < 0):
        raise ConfigurationError(f"history must be a number of versions or None, not {history!r}")
    similarity = options.get("merge_similarity", DEFAULT_SIMILARITY)
    if similarity is not None and (not isinstance(similarity, int | float) or not 0 <= similarity <= 1):
        raise ConfigurationError(f"merge_similarity must be from 0 to 1 or None, not {similarity!r}")
    return Settings(
        indexes,
        _ttl(options.get("ttl")),
        language if "." in language else f"pg_catalog.{language}",
        _ALL if history is None else min(history, _ALL),
        similarity,
        _namespaces(options.get("namespaces") or {}),
    )


def _namespaces(given: Any) -> tuple[tuple[Namespace, NamespaceOptions], ...]:
    if not isinstance(given, Mapping):
        raise ArgumentTypeError(f"namespaces must be a mapping of labels to options, not {type(given).__name__}")
    found = []
    for labels, options in given.items():
        if not isinstance(options, Mapping) or options.keys() - NamespaceOptions.__annotations__.keys():
            raise ArgumentTypeError(f"namespaces[{labels!r}] must have only index and ttl, not {options!r}")
        one: NamespaceOptions = {}
        if "index" in options:
            index = options["index"]
            one["index"] = False if index is False else fields_of(index, name=f"index of namespaces[{labels!r}]")
        if "ttl" in options:
            one["ttl"] = None if options["ttl"] is None else minutes_of(options["ttl"])
        found.append((labels_of(labels, what="namespace among the options"), one))
    return tuple(sorted(found, key=lambda one: -len(one[0])))


def _index(options: Mapping[str, Any]) -> Index:
    if not isinstance(options, Mapping):
        raise ArgumentTypeError(f"index must be a mapping or a list of mappings, not {type(options).__name__}")
    if unknown := [one for one in options if one not in _KEYS]:
        raise ArgumentTypeError(f"keys of index must be among {', '.join(_KEYS)}, not {unknown[0]!r}")
    name, dims = identifier("index name", options.get("name", "default")), options.get("dims")
    if isinstance(dims, bool) or not isinstance(dims, int) or dims < 1:
        raise ConfigurationError(f"index must have dims, the number of dimensions of its model, not {dims!r}")
    ann = dict(options.get("ann_index_config") or {})
    usual = "vector" if dims <= _MAX_DIMS["vector"] else "halfvec"
    vector_type, kind = ann.pop("vector_type", usual), ann.pop("kind", "hnsw")
    if vector_type not in _MAX_DIMS:
        raise ConfigurationError(f"vector_type must be 'vector' or 'halfvec', not {vector_type!r}")
    if kind not in ("hnsw", "flat"):
        raise ConfigurationError(f"kind must be 'hnsw' or 'flat' (exact searches only), not {kind!r}")
    if dims > _MAX_DIMS[vector_type]:
        raise ConfigurationError(
            f"dims must be at most {_MAX_DIMS['vector']:,} for 'vector' and {_MAX_DIMS['halfvec']:,} for 'halfvec', "
            f"not {dims:,}"
        )
    for key, value in ann.items():
        if key not in _HNSW_KEYS or isinstance(value, bool) or not isinstance(value, int) or value < 2:
            raise ConfigurationError(
                f"ann_index_config may have {' and '.join(_HNSW_KEYS)}, integers of 2 or more, not {key}={value!r}"
            )
    distance = options.get("distance_type", "cosine")
    if distance not in OPERATORS:
        raise ConfigurationError(f"distance_type must be one of {', '.join(OPERATORS)}, not {distance!r}")
    if options.get("embed") is None:
        raise ConfigurationError(
            "index must have embed: LangChain's Embeddings, a function of texts, or a model's name, like 'openai:…'"
        )
    fields = fields_of(options.get("fields") or (WHOLE,), name="index fields")
    return Index(name, dims, ensure_embeddings(options["embed"]), fields, distance, vector_type, kind == "hnsw", ann)


def _ttl(ttl: Any) -> TTLConfig | None:
    if ttl is None:
        return None
    unknown = [one for one in ttl if one not in _TTL_KEYS] if isinstance(ttl, Mapping) else [ttl]
    if unknown:
        raise ConfigurationError(f"ttl must be a mapping with keys among {', '.join(_TTL_KEYS)}, not {unknown[0]!r}")
    if (default := ttl.get("default_ttl")) is not None:
        minutes_of(default)
    config: TTLConfig = {**ttl}  # type: ignore[typeddict-item]
    return config


def minutes_of(ttl: Any) -> float:
    """Return a validated time to live in minutes."""
    if isinstance(ttl, bool) or not isinstance(ttl, int | float) or not 0 < ttl < 1000 * 366 * 24 * 60:
        raise ConfigurationError(f"ttl must be a number of minutes, more than 0 and less than 1,000 years, not {ttl!r}")
    return float(ttl)
