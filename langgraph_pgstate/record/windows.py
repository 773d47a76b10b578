"""Windows of conversations for models: the newest messages within a budget, and messages that are always kept.

The choice is a pure function. A thread's messages are read newest first, until no more fit.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypedDict, Unpack, get_args

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.messages.utils import convert_to_messages, count_tokens_approximately

from langgraph_pgstate.errors import ArgumentTypeError, ConfigurationError
from langgraph_pgstate.options import check_options

Kept = Literal["system", "first_human", "last_human", "last"]
TokenCounter = Callable[[list[BaseMessage]], int]

_KEPT: Final = get_args(Kept)


class WindowOptions(TypedDict, total=False):
    """Keyword arguments of `window`.

    Attributes:
        max_tokens: Maximum number of tokens.
        max_messages: Maximum number of messages.
        keep: Messages that are never left out, even if they exceed a limit. `system`: the system messages at the
            beginning of the conversation. `first_human` and `last_human`: the first and the last message of a person.
            `last`: the last message, with its tool calls and results. By default all but `first_human`. With
            `last_human`, a window that begins before a person's last message begins with a message of a person.
        token_counter: Counts the tokens of a list of messages: a function, such as `len`, or a chat model; by default
            `approximate`, LangChain's approximation.
    """

    max_tokens: int | None
    max_messages: int | None
    keep: Collection[Kept]
    token_counter: Any


@dataclass(frozen=True, slots=True)
class Budget:
    """Validated options of a window."""

    max_tokens: int | None
    max_messages: int | None
    keep: frozenset[str]
    count: TokenCounter

    def fits(self, messages: list[BaseMessage]) -> bool:
        """Return whether the messages are within the limits."""
        if self.max_messages is not None and len(messages) > self.max_messages:
            return False
        return self.max_tokens is None or not messages or self.count(messages) <= self.max_tokens


def budget_of(options: WindowOptions) -> Budget:
    """Check the options of a window, and return them as a `Budget`.

    Raises:
        ConfigurationError: If an option is invalid.
    """
    check_options(Window, options, WindowOptions)
    for name in ("max_tokens", "max_messages"):
        limit = options.get(name)
        if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 0):
            raise ConfigurationError(f"{name} must be a whole number of 0 or more, not {limit!r}")
    keep = options.get("keep", ("system", "last_human", "last"))
    if isinstance(keep, str) or (unknown := {*keep} - {*_KEPT}):
        wrong = keep if isinstance(keep, str) else ", ".join(map(str, unknown))
        raise ConfigurationError(f"keep must be a list of {', '.join(_KEPT)}, not {wrong!r}")
    return Budget(
        options.get("max_tokens"),
        options.get("max_messages"),
        frozenset(keep),
        counter_of(options.get("token_counter", "approximate")),
    )


def counter_of(counter: Any) -> TokenCounter:
    """Return a function that counts tokens.

    Raises:
        ConfigurationError: If the argument is not a counter.
    """
    if counter == "approximate":
        return count_tokens_approximately
    found = getattr(counter, "get_num_tokens_from_messages", counter)
    if not callable(found):
        raise ArgumentTypeError(
            f"token_counter must be 'approximate', a chat model or a function of a list of messages, not {counter!r}"
        )
    counts: TokenCounter = found
    return counts


def window(messages: Sequence[Any], **options: Unpack[WindowOptions]) -> list[BaseMessage]:
    """Return the newest messages that fit a budget, and messages that are always kept, in their order.

    Tool calls stay with their results. Unlike LangChain's `trim_messages`, this function keeps the messages that `keep`
    names even if they exceed the budget. A second call on the result changes nothing.

    Args:
        messages: The conversation, oldest first. It is not changed.
        **options: See `WindowOptions`.

    Raises:
        ConfigurationError: If an option is invalid.
    """
    found = choose([], convert_to_messages(messages), budget_of(options), is_whole=True)
    assert found is not None
    return found


@dataclass(frozen=True, slots=True)
class Window:
    """The function `window` as an edit of LangChain's `ContextEditingMiddleware`: `edits=[Window(max_tokens=8000)]`.

    The attributes are those of `WindowOptions`. The middleware counts the tokens.
    """

    max_tokens: int | None = None
    max_messages: int | None = None
    keep: Collection[Kept] = ("system", "last_human", "last")

    def __post_init__(self) -> None:
        budget_of({"max_tokens": self.max_tokens, "max_messages": self.max_messages, "keep": self.keep})

    def apply(self, messages: list[Any], *, count_tokens: TokenCounter) -> None:
        """Reduce a list of messages to its window, in place."""
        messages[:] = window(
            messages,
            max_tokens=self.max_tokens,
            max_messages=self.max_messages,
            keep=self.keep,
            token_counter=count_tokens,
        )


def choose(
    head: Sequence[BaseMessage], tail: Sequence[BaseMessage], budget: Budget, *, is_whole: bool
) -> list[BaseMessage] | None:
    """Return the window of a conversation, or `None` if more messages must be read.

    Args:
        head: The first messages; empty if `tail` has the whole conversation.
        tail: The last messages.
        budget: The limits.
        is_whole: Whether no messages lie between `head` and `tail`. If false, `head` must include all messages that are
            kept from the beginning of the conversation.
    """
    known = [*head, *tail]
    if is_whole and budget.fits(known):
        return known
    start = 0 if is_whole else len(head)
    pinned = _pinned(known, budget.keep)
    cuts = _cuts(known, start, is_whole=is_whole)
    newest_human = next((place for place in range(len(known) - 1, start - 1, -1) if _is_human(known[place])), None)
    if "last_human" in budget.keep:
        if newest_human is None and not is_whole:
            return None
        if newest_human is not None:
            pinned.add(newest_human)
            cuts = [cut for cut in cuts if cut >= newest_human or cut == cuts[-1] or _is_human(known[cut])]
    if not cuts and not is_whole:
        return None

    def shown(cut: int) -> list[BaseMessage]:
        return [known[place] for place in sorted(pinned) if place < cut] + known[cut:]

    # Find the earliest position from which the messages fit; if there is none, take the last position.
    ends = [*cuts, len(known)]
    if "last" in budget.keep and cuts:
        ends = cuts
    low, high = 0, len(ends) - 1
    while low < high:
        middle = (low + high) // 2
        if budget.fits(shown(ends[middle])):
            high = middle
        else:
            low = middle + 1
    if low == 0 and not is_whole:
        return None
    return shown(ends[low])


def needs_more(head: Sequence[BaseMessage], keep: Collection[str]) -> bool:
    """Return whether `head` may lack messages that are kept from the beginning of the conversation."""
    if "first_human" in keep:
        return not any(map(_is_human, head))
    return "system" in keep and all(isinstance(message, SystemMessage) for message in head)


def _pinned(messages: Sequence[BaseMessage], keep: Collection[str]) -> set[int]:
    """Return the positions of messages that are kept from the beginning of the conversation."""
    pinned: set[int] = set()
    if "system" in keep:
        for place, message in enumerate(messages):
            if not isinstance(message, SystemMessage):
                break
            pinned.add(place)
    if "first_human" in keep:
        pinned |= {*[place for place, message in enumerate(messages) if _is_human(message)][:1]}
    return pinned


def _is_human(message: BaseMessage) -> bool:
    return isinstance(message, HumanMessage)


def _cuts(messages: Sequence[BaseMessage], start: int, *, is_whole: bool) -> list[int]:
    """Return the positions at which a window may begin without separating a tool call from its results.

    If the call of a result was not read, no position up to the result is returned. If the whole conversation was read,
    such a result has no call and stands alone.
    """
    called: dict[str, int] = {}
    # For each message, the position of the first message that must stay with this message.
    reach = list(range(len(messages)))
    for place in range(start, len(messages)):
        message = messages[place]
        if isinstance(message, AIMessage):
            called |= dict.fromkeys((str(call["id"]) for call in message.tool_calls), place)
        elif isinstance(message, ToolMessage):
            reach[place] = called.get(message.tool_call_id, place if is_whole else start - 1)
    cuts = []
    least = len(messages)
    for place in range(len(messages) - 1, start - 1, -1):
        least = min(least, reach[place])
        if least >= place:
            cuts.append(place)
    return cuts[::-1]
