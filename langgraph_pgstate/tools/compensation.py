"""Compensation of effects, newest first. Each compensation is itself an action of the ledger."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from langgraph_pgstate.codec.values import ValueCodec
from langgraph_pgstate.errors import NotFoundError, ToolFailedError
from langgraph_pgstate.record.types import CompensationReport, ToolExecution
from langgraph_pgstate.schema.queries import Queries
from langgraph_pgstate.tools import executions as tool_executions
from langgraph_pgstate.tools.action_runner import ActionRunner
from langgraph_pgstate.tools.executions import Intent
from langgraph_pgstate.tools.intents import ToolCall, arguments_json, new_intent_id
from langgraph_pgstate.tools.policy import ToolPolicy, ToolSettings
from langgraph_pgstate.tools.recorded import GIVEN_UP
from langgraph_pgstate.tools.results import ParentAnswer, restore

_PREFIX = "compensate:"


@dataclass(frozen=True, slots=True)
class Compensator:
    """A compensation registered for a tool.

    Attributes:
        name: Name in the ledger.
        function: Called with the `ToolExecution` to compensate and its recorded result, or `None` if the result could
            not be stored.
        policy: Policy of the compensation.
    """

    name: str
    function: Callable[..., Any]
    policy: ToolPolicy


async def compensate_all(
    runner: ActionRunner,
    queries: Queries,
    codec: ValueCodec,
    settings: ToolSettings,
    compensators: Mapping[str, Compensator],
    thread_id: str,
    run_id: str | None,
    to_checkpoint: str | None,
) -> CompensationReport:
    """Compensate the effects of a thread's tools. Safe to kill and to call again.

    Raises:
        NotFoundError: If there is no such checkpoint.
        ThreadArchivedError: If the thread is archived.
    """
    effects = await runner.executor.run(tool_executions.list_effects, queries, thread_id, run_id, to_checkpoint)
    compensated, uncovered, unsettled, elsewhere = [], [], [], []
    failed: list[tuple[ToolExecution, Exception]] = []
    for effect, is_copy in effects:
        compensator = compensators.get(effect.tool)
        if is_copy:
            # Only the thread of origin compensates an effect. Otherwise the effect could be compensated twice.
            elsewhere.append(effect)
        elif effect.status != "success":
            unsettled.append(effect)
        elif compensator is None:
            uncovered.append(effect)
        else:
            try:
                await _compensate(runner, queries, codec, settings, compensator, effect)
                compensated.append(effect)
            except Exception as error:
                failed.append((effect, error))
    return CompensationReport(tuple(compensated), tuple(failed), tuple(uncovered), tuple(unsettled), tuple(elsewhere))


async def _compensate(
    runner: ActionRunner,
    queries: Queries,
    codec: ValueCodec,
    settings: ToolSettings,
    compensator: Compensator,
    effect: ToolExecution,
) -> None:
    thread_id, key = effect.thread_id, effect.idempotency_key
    recorded = await runner.executor.run(tool_executions.get, queries, thread_id, key)
    if recorded is None:
        return
    try:
        result = restore(codec, recorded)
    except NotFoundError:
        # The result could not be stored. The effect can still be compensated.
        result = None
    intent = Intent(
        thread_id,
        f"{_PREFIX}{key}",
        None,
        new_intent_id(),
        compensator.name,
        arguments_json({"tool": effect.tool, "key": key, "arguments": effect.arguments}, settings),
        agent=effect.agent,
        run_id=effect.run_id,
        compensates=key,
    )
    answer = result.command if isinstance(result, ParentAnswer) else result
    call = ToolCall(intent, compensator.policy, lambda: compensator.function(effect, answer))
    try:
        await runner.perform(call)
    except ToolFailedError as error:
        if error.error_type == GIVEN_UP:
            raise
        # The compensation failed in an earlier call, so this call tries again.
        await runner.recorded.settle(thread_id, intent.idempotency_key, "retry", None)
        await runner.perform(call)
