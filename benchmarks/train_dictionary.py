"""Makes `codec/frames1.zdict` from the boilerplate of messages and checkpoints, with no prose in it.

Run once per dictionary version; the result is frozen with the first release that ships it. Samples are synthetic: every
message type in the shapes providers give them, with shuffled common words where a conversation has sentences, so
that the dictionary learns structure and letter frequencies and not a benchmark's text.
"""

from __future__ import annotations

import random
import string
import sys
import uuid
from pathlib import Path

import ormsgpack
import zstandard
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    FunctionMessage,
    HumanMessage,
    RemoveMessage,
    SystemMessage,
    ToolMessage,
)
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

TARGET = Path(__file__).resolve().parents[1] / "langgraph_pgstate" / "codec" / "frames1.zdict"
SIZE = 8 * 1024
ENTROPY_TABLES = 600

PROVIDERS = [
    {
        "token_usage": {
            "completion_tokens": 1,
            "prompt_tokens": 2,
            "total_tokens": 3,
            "completion_tokens_details": {
                "accepted_prediction_tokens": 0,
                "audio_tokens": 0,
                "reasoning_tokens": 0,
                "rejected_prediction_tokens": 0,
            },
            "prompt_tokens_details": {"audio_tokens": 0, "cached_tokens": 0},
        },
        "model_provider": "openai",
        "model_name": "gpt-",
        "system_fingerprint": "fp_",
        "service_tier": "default",
        "finish_reason": "stop",
        "logprobs": None,
    },
    {
        "id": "msg_",
        "model": "claude-",
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 0,
            "input_tokens": 1,
            "output_tokens": 1,
            "service_tier": "standard",
        },
        "model_name": "claude-",
        "model_provider": "anthropic",
    },
    {"finish_reason": "STOP", "model_name": "gemini-", "safety_ratings": [], "model_provider": "google_genai"},
    {"finish_reason": "tool_calls", "model_name": "gpt-", "model_provider": "openai"},
    {},
]


# The most frequent words of written English; they stand where prose would.
WORDS = [
    "the",
    "of",
    "and",
    "to",
    "in",
    "a",
    "is",
    "that",
    "for",
    "it",
    "as",
    "was",
    "with",
    "be",
    "by",
    "on",
    "not",
    "he",
    "his",
    "but",
    "at",
    "are",
    "this",
    "have",
    "from",
    "or",
    "had",
    "an",
    "they",
    "which",
    "one",
    "you",
    "were",
    "all",
    "her",
    "she",
    "there",
    "would",
    "their",
    "we",
    "him",
    "been",
    "has",
    "when",
    "who",
    "will",
    "no",
    "more",
    "if",
    "out",
    "so",
    "up",
    "said",
    "what",
    "its",
    "about",
    "than",
    "into",
    "them",
    "can",
    "only",
    "other",
    "time",
    "new",
    "some",
    "could",
    "these",
    "two",
    "may",
    "first",
    "then",
    "do",
    "any",
    "like",
    "my",
    "now",
    "over",
    "such",
    "our",
    "man",
    "me",
    "even",
    "most",
    "made",
    "after",
    "also",
    "did",
    "many",
    "off",
    "before",
    "must",
    "well",
    "back",
    "through",
    "years",
    "where",
    "much",
    "your",
    "way",
    "down",
    "should",
    "because",
    "long",
    "each",
    "just",
    "state",
    "those",
    "people",
    "too",
    "mr",
    "how",
    "little",
    "good",
    "world",
    "make",
    "very",
    "year",
    "still",
    "see",
    "work",
    "life",
]


def prose(rng: random.Random, words: int) -> str:
    return " ".join(rng.choices(WORDS, k=words)).capitalize() + "."


def letters(rng: random.Random, count: int) -> str:
    return "".join(rng.choices(string.ascii_letters + string.digits, k=count))


def message(rng: random.Random) -> object:
    noise = prose(rng, rng.randint(1, 60))
    tool = rng.choice(["search", "get_", "lookup_", "list_"]) + letters(rng, 4).lower()
    id = str(uuid.UUID(int=rng.getrandbits(128), version=4))
    call = "call_" + letters(rng, 24)
    usage = {
        "input_tokens": rng.randint(1, 90000),
        "output_tokens": rng.randint(1, 900),
        "total_tokens": rng.randint(1, 90000),
        "input_token_details": {"audio": 0, "cache_read": 0},
        "output_token_details": {"audio": 0, "reasoning": 0},
    }
    choices = [
        lambda: HumanMessage(content=noise, id=id),
        lambda: AIMessage(
            content=noise, id="run--" + id, response_metadata=rng.choice(PROVIDERS), usage_metadata=usage
        ),
        lambda: AIMessage(content=noise, id=id),
        lambda: AIMessage(
            content="",
            id="lc_run--" + id,
            tool_calls=[{"name": tool, "args": {"query": noise}, "id": call, "type": "tool_call"}],
            response_metadata=rng.choice(PROVIDERS),
            usage_metadata=usage,
            additional_kwargs={"refusal": None},
        ),
        lambda: AIMessage(
            content=[
                {"type": "text", "text": noise},
                {"type": "tool_use", "id": "toolu_" + call, "name": tool, "input": {}},
            ],
            id=id,
            tool_calls=[{"name": tool, "args": {}, "id": call, "type": "tool_call"}],
        ),
        lambda: ToolMessage(content=noise, name=tool, id=id, tool_call_id=call),
        lambda: ToolMessage(content=noise, name=tool, id=id, tool_call_id=call, status="error"),
        lambda: SystemMessage(content=noise, id=id),
        lambda: FunctionMessage(content=noise, name=letters(rng, 6), id=id),
        lambda: RemoveMessage(id=id),
        lambda: AIMessageChunk(content=noise, id="run--" + id),
    ]
    weights = [6, 4, 5, 5, 1, 6, 1, 1, 0.2, 0.2, 0.2]
    return rng.choices(choices, weights)[0]()


def version(rng: random.Random, number: int) -> str:
    return f"{number:032}.{rng.random():016}"


def state(rng: random.Random) -> bytes:
    """A checkpoint's `state`, as `codec/states.py` writes it."""
    nodes = rng.sample(["agent", "tools", "model", "supervisor", "router", "planner", "researcher"], 2)
    step = rng.randint(1, 400)
    channels = ["__start__", "messages", *(f"branch:to:{node}" for node in nodes)]
    versions = {channel: version(rng, step - rng.randint(0, 3)) for channel in channels}
    seen = {
        "__input__": {},
        "__start__": {"__start__": versions["__start__"]},
        **{node: {f"branch:to:{node}": versions[f"branch:to:{node}"]} for node in nodes},
    }
    manifest = {"messages": [2, 0, 0, 64, 1, 0, 64, 2, 0, 8, 3, 0, 1], channels[2]: None}
    return ormsgpack.packb(
        [
            4,
            "2026-01-01T00:00:00." + f"{rng.randint(0, 999999):06}" + "+00:00",
            versions,
            seen,
            ["messages", channels[2]],
            manifest,
        ]
    )


def main() -> int:
    rng = random.Random(20260101)
    serde = JsonPlusSerializer()
    samples: list[bytes] = []
    for _ in range(3000):
        one = message(rng)
        samples.append(serde.dumps_typed([one])[1])
        if rng.random() < 0.4:
            payload = serde.dumps_typed([one])[1]
            branch = ["branch:to:tools", "branch:to:agent", "branch:to:model"]
            samples.append(ormsgpack.packb([["messages", "msgpack", payload], [rng.choice(branch), "null", b""]]))
    samples += [state(rng) for _ in range(1500)]
    rng.shuffle(samples)
    dictionary = zstandard.train_dictionary(SIZE, samples, level=3)
    # Only the content is kept: the trained entropy tables at the head fit these samples' letters, and made real text
    # of another kind larger (562 against 452 bytes for an 816-byte message) when a small frame reused them.
    content = dictionary.as_bytes()[ENTROPY_TABLES:]
    TARGET.write_bytes(content)
    sys.stdout.write(f"{TARGET.name}: {len(content)} bytes from {len(samples)} samples\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
