"""Masking of long tool results. A model sees the beginning, the end and a reference that a tool can open.

State, checkpoints and ledger keep the whole results.
"""

from __future__ import annotations

import functools
import inspect
import re
import sys
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, TypedDict, Unpack, cast

from langchain_core.messages import AnyMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.messages.utils import convert_to_messages
from langchain_core.tools import BaseTool, StructuredTool, ToolException
from langgraph.prebuilt import ToolRuntime

from langgraph_pgstate.arguments import configurable_of
from langgraph_pgstate.call_site import lists_of
from langgraph_pgstate.db.adapters import run_blocking
from langgraph_pgstate.errors import ArgumentTypeError, ConfigurationError, NotFoundError
from langgraph_pgstate.options import check_options
from langgraph_pgstate.record.windows import TokenCounter, counter_of
from langgraph_pgstate.tools.ledger import AsyncToolLedger, ToolLedger
from langgraph_pgstate.tools.results import parse_reference, readable, reference_to

READ_RESULT: Final = "read_result"
# Key in a message's metadata for the reference to the whole result.
_MASKED: Final = "pgstate_masked"
_MAX_LIMIT: Final = 20_000
_MATCHES: Final = 20
_AROUND: Final = 200


class MaskOptions(TypedDict, total=False):
    """Keyword arguments of `mask_results`.

    Attributes:
        above: Number of tokens above which a result is masked; 2,000 by default.
        head: Approximate number of tokens to show from the beginning; 300 by default.
        tail: Approximate number of tokens to show from the end; 300 by default.
        except_tools: Tools whose results are never masked; by default `read_result`.
        token_counter: As for `window`. It gets each long text as a separate message.
    """

    above: int
    head: int
    tail: int
    except_tools: Collection[str]
    token_counter: Any


def mask_results(messages: Sequence[Any], **options: Unpack[MaskOptions]) -> list[BaseMessage]:
    """Return messages for a model, with long tool results replaced by their beginning, their end and a reference.

    The given messages are not changed. Give the model the tool of `read_result_tool`. Images and other parts that are
    not text stay. A result that is masked already stays as it is.

    Raises:
        ConfigurationError: If an option is not usable.
    """
    check_options(MaskResults, options, MaskOptions)
    limits = {name: options.get(name, default) for name, default in (("above", 2000), ("head", 300), ("tail", 300))}
    for name, limit in limits.items():
        if isinstance(limit, bool) or not isinstance(limit, int) or limit < 0:
            raise ConfigurationError(f"{name} must be a whole number of 0 or more, not {limit!r}")
    above, head, tail = (cast(int, limit) for limit in limits.values())
    if head + tail > above:
        raise ConfigurationError(f"head + tail must be at most `above`, which is {above}, not {head + tail}")
    spared = options.get("except_tools", (READ_RESULT,))
    if isinstance(spared, str):
        raise ArgumentTypeError(f"except_tools must be a list of names, not {spared!r}")
    count = counter_of(options.get("token_counter", "approximate"))
    return [
        _masked(message, above, head, tail, count)
        if isinstance(message, ToolMessage) and message.name not in spared
        else message
        for message in convert_to_messages(messages)
    ]


@dataclass(frozen=True, slots=True)
class MaskResults:
    """`mask_results` as an edit of LangChain's `ContextEditingMiddleware`: `edits=[MaskResults(above=2000)]`.

    Attributes:
        above: See `MaskOptions`. The middleware counts the tokens.
        head: See `MaskOptions`.
        tail: See `MaskOptions`.
        except_tools: See `MaskOptions`.
    """

    above: int = 2000
    head: int = 300
    tail: int = 300
    except_tools: Collection[str] = (READ_RESULT,)

    def __post_init__(self) -> None:
        self.apply([], count_tokens=len)

    def apply(self, messages: list[AnyMessage], *, count_tokens: TokenCounter) -> None:
        """Mask long results in a list of messages."""
        messages[:] = cast(
            "list[AnyMessage]",
            mask_results(
                messages,
                above=self.above,
                head=self.head,
                tail=self.tail,
                except_tools=self.except_tools,
                token_counter=count_tokens,
            ),
        )


def _masked(message: ToolMessage, above: int, head: int, tail: int, count: TokenCounter) -> ToolMessage:
    text = str(message.text)
    # A text has at most four bytes per character, and no more tokens than bytes. So short texts need not be counted.
    if _MASKED in message.response_metadata or len(text) * 4 <= above:
        return message
    tokens = count([HumanMessage(text)])
    if tokens <= above:
        return message
    per_token = len(text) / tokens
    first, last = int(head * per_token), len(text) - int(tail * per_token)
    reference = message.id or message.tool_call_id
    note = (
        f"[… {last - first:,} of {len(text):,} characters are left out here. {READ_RESULT} returns them for the "
        f"reference {reference}]"
    )
    if len(note) >= last - first:
        return message
    shown = "\n".join(part for part in (text[:first], note, text[last:]) if part)
    others = [] if isinstance(message.content, str) else [part for part in message.content if not _is_text(part)]
    return message.model_copy(
        update={
            "content": [{"type": "text", "text": shown}, *others] if others else shown,
            "response_metadata": {**message.response_metadata, _MASKED: reference},
        }
    )


def _is_text(part: Any) -> bool:
    return isinstance(part, str) or part.get("type") == "text"


def read_result_tool(state: Any = None) -> BaseTool:
    """Return the tool `read_result`, for `ToolNode` and `create_agent`.

    The tool opens references of `mask_results`, which name messages of the agent's state. With a state or its ledger,
    it also opens references to results that the ledger has kept out of the state (`ToolSettings.result_limit`). It
    finds only results of the run's own thread, whatever the reference says.

    Args:
        state: A state, or its ledger.

    Raises:
        ConfigurationError: If `state` has no ledger.
    """
    ledger = getattr(state, "tools", state)
    if not isinstance(ledger, ToolLedger | AsyncToolLedger | None):
        raise ArgumentTypeError(f"read_result_tool must be given a state or its ledger, not {type(state).__name__}")

    async def read_result(
        reference: str, runtime: ToolRuntime, offset: int = 0, limit: int = 4000, search: str | None = None
    ) -> str:
        """Read a long result of a tool, of which only the beginning and the end were shown.

        Args:
            reference: The reference, as it was shown.
            offset: The character from which on to read.
            limit: How many characters to read at most.
            search: A text to look for instead; returns the places where it is, without regard to case.
        """
        text = _in_state(runtime.state, reference)
        if text is None:
            text = await _in_ledger(ledger, runtime.config, reference)
        if text is None:
            raise ToolException(f"this conversation has no result {reference!r}")
        if search:
            return _places(text, search)
        start = max(0, min(offset, len(text)))
        end = min(len(text), start + max(1, min(limit, _MAX_LIMIT)))
        rest = f"; read on with offset={end}" if end < len(text) else ""
        return f"{text[start:end]}\n[characters {start:,} to {end:,} of {len(text):,}{rest}]"

    @functools.wraps(read_result)
    def blocking(*args: Any, **kwargs: Any) -> str:
        return run_blocking(read_result(*args, **kwargs))

    if ledger is not None:
        # Do not shorten the results of this tool. Otherwise the model would get only another reference instead of the
        # text.
        ledger.policy(READ_RESULT, result_limit=sys.maxsize)
    is_async = isinstance(ledger, AsyncToolLedger)
    return StructuredTool.from_function(
        None if is_async else blocking,
        # A tool with a blocking ledger has no coroutine, so an async graph runs the tool in a thread.
        coroutine=read_result if is_async else None,
        name=READ_RESULT,
        parse_docstring=True,
        handle_tool_error=True,
    )


def _in_state(state: Any, reference: str) -> str | None:
    """Return the text of the newest result that has the reference as its message id, or else as its call id.

    Return `None` if there is no such result.
    """
    for messages in lists_of(state):
        results = [message for message in reversed(messages) if isinstance(message, ToolMessage)]
        for message in (*(one for one in results if one.id == reference), *results):
            if reference in (message.id, message.tool_call_id):
                return str(message.text)
    return None


async def _in_ledger(ledger: Any, config: Mapping[str, Any], reference: str) -> str | None:
    """Return the result that the ledger has under the key of a reference, on the run's own thread."""
    thread_id = configurable_of(config).get("thread_id")
    if ledger is None or thread_id is None:
        return None
    with suppress(ConfigurationError, NotFoundError):
        # In a fork, the reference names the source thread, but the fork has its own copy of the row.
        result = ledger.result(reference_to(str(thread_id), parse_reference(reference)[1]))
        return readable(await result if inspect.isawaitable(result) else result)
    return None


def _places(text: str, wanted: str) -> str:
    """Return the places of `wanted` in a text, each with the surrounding text."""
    places = [*re.finditer(re.escape(wanted), text, re.IGNORECASE)]
    found = [
        f"[at character {place.start():,}]\n{text[max(0, place.start() - _AROUND) : place.end() + _AROUND]}"
        for place in places[:_MATCHES]
    ]
    if not found:
        return f"{wanted!r} is not in the result, which has {len(text):,} characters"
    more = f"\n[the first {len(found)} of {len(places):,} places]" if len(places) > len(found) else ""
    return "\n".join(found) + more
