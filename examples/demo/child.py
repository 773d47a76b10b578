"""The child process of the demo: runs the agent and sends events to the parent over a pipe.

It reads one `Job` as JSON from its standard input and writes events as JSON lines to its standard output. The
parent kills it.
"""

from __future__ import annotations

import json
import os
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.runnables import RunnableConfig

from examples.demo.agent import (
    AGENT,
    DINNER_WISH,
    FIRST_WISH,
    OTHER_WISH,
    PAYMENT_WISH,
    TASTE_WISH,
    VOUCHER_WISH,
    build_agent,
    follow_up,
    offline_model,
    payment,
    provider_model,
)
from langgraph_pgstate.cli.tree import WRITER_KEY
from langgraph_pgstate.memory import memory_tools
from langgraph_pgstate.record.types import ToolExecution
from langgraph_pgstate.state import PGState
from langgraph_pgstate.tools import Happened, ToolLedger, current_execution
from langgraph_pgstate.worker.worker import Worker

_HANGING_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True)
class Job:
    """The job of a child process.

    Attributes:
        part: `begin`, `resume`, `fork`, `print`, `reprint`, `pay`, `ask`, `work`, `learn` or `know`.
        dsn: The database.
        schema: Its schema.
        thread_id: The thread.
        process: Name of the process in the tree.
        model: `provider:model`, or `None` for the offline one.
        turns: With `resume`: number of further turns.
        hotel_seconds: Seconds that `book_hotel` takes.
        pay_seconds: Seconds that `pay_hotel` takes.
        checkpoint_id: With `fork`: the checkpoint to go on from.
        voucher: With `print` and `reprint`: the file that vouchers are printed to.
        user_id: With `learn` and `know`: the user of whom something is remembered.
    """

    part: str
    dsn: str = field(repr=False)
    schema: str
    thread_id: str
    process: str
    model: str | None
    turns: int = 0
    hotel_seconds: float = 0.1
    pay_seconds: float = 0.1
    checkpoint_id: str | None = None
    voucher: str | None = None
    user_id: str | None = None

    def to_json(self) -> str:
        """Return the job as JSON."""
        return json.dumps(asdict(self))


def run(job: Job) -> None:
    """Run a job."""
    model = provider_model(job.model) if job.model else offline_model()
    if job.part == "work":
        _work(job, model)
        return
    if job.user_id:
        _remember(job, model)
        return
    with PGState.open(job.dsn, schema=job.schema) as state:
        ledger: ToolLedger | None = None
        effects: list[Callable[..., str]] = []
        if job.voucher:
            ledger = state.tools
            effects.append(_voucher_printer(Path(job.voucher), ledger, hangs=job.part == "print"))
        elif job.part in ("pay", "ask"):
            ledger = state.tools
            effects.append(payment(ledger, job.pay_seconds))
        graph = state.record(
            build_agent(model, state.saver, _tell_tool, hotel_seconds=job.hotel_seconds, effects=effects, ledger=ledger)
        )
        config: RunnableConfig = {
            "configurable": {"thread_id": job.thread_id},
            "metadata": {WRITER_KEY: job.process},
            "recursion_limit": 50,
        }
        wishes = {"begin": FIRST_WISH, "print": VOUCHER_WISH, "pay": PAYMENT_WISH}
        if job.part in wishes:
            answer = graph.invoke({"messages": [HumanMessage(wishes[job.part])]}, config)
        elif job.part == "fork":
            config["configurable"]["checkpoint_id"] = job.checkpoint_id
            wish = {"messages": [HumanMessage(OTHER_WISH)]}
            config["configurable"] = graph.update_state(config, wish, as_node="__start__")["configurable"]
            answer = graph.invoke(None, config)
        else:
            answer = graph.invoke(None, config)
        for asked in answer.get("__interrupt__", ()):
            _tell("interrupt", question=asked.value["question"])
        _tell("answer", text=str(answer["messages"][-1].text), messages=len(answer["messages"]))
        for turn in range(2, job.turns + 2):
            answer = graph.invoke({"messages": [HumanMessage(follow_up(turn))]}, config)
            _tell("turn", turn=turn, messages=len(answer["messages"]))


def _work(job: Job, model: BaseChatModel) -> None:
    """Run what is enqueued, and report the answer of the thread's agent."""
    with PGState.open(job.dsn, schema=job.schema) as state:
        graph = build_agent(model, state.saver, _tell_tool, hotel_seconds=job.hotel_seconds)
        Worker(state, {AGENT: graph}, poll=0.1, queues=[job.thread_id]).run_until_idle()
        found = state.saver.get_tuple({"configurable": {"thread_id": job.thread_id}})
    messages = found.checkpoint["channel_values"]["messages"] if found else []
    _tell("answer", text=str(messages[-1].text) if messages else "", messages=len(messages))


def _remember(job: Job, model: BaseChatModel) -> None:
    """Talk with an agent that has long-term memory, and report what it remembers or recalls."""
    with PGState.open(job.dsn, schema=job.schema) as state:
        graph = state.record(build_agent(model, state.saver, _tell_tool, memory=memory_tools(state)))
        wish = {"learn": TASTE_WISH, "know": DINNER_WISH}[job.part]
        config: RunnableConfig = {"configurable": {"thread_id": job.thread_id, "user_id": job.user_id}}
        messages = graph.invoke({"messages": [HumanMessage(wish)]}, config)["messages"]
        results = {one.tool_call_id: str(one.content) for one in messages if isinstance(one, ToolMessage)}
        for call in (call for one in messages if isinstance(one, AIMessage) for call in one.tool_calls):
            detail = ", ".join(str(value) for value in call["args"].values())
            _tell_tool(call["name"], "begin", detail)
            _tell_tool(call["name"], "end", results[call["id"] or ""])
        _tell("answer", text=str(messages[-1].text), messages=len(messages))


def _voucher_printer(file: Path, ledger: ToolLedger, *, hangs: bool) -> Callable[[str], str]:
    """Return a tool that appends a line to a file, an effect outside the database.

    Args:
        file: The file.
        ledger: Gets the function that checks whether the line was written.
        hangs: True: the tool hangs after its effect, before it returns.
    """

    def is_printed(execution: ToolExecution) -> Happened | bool:
        """Return whether the voucher of this action is in the file."""
        printed = file.exists() and any(
            line.startswith(f"{execution.idempotency_key} ") for line in file.read_text().splitlines()
        )
        _tell("check", status=execution.status, attempt=execution.attempt, printed=printed)
        return Happened("voucher printed") if printed else False

    @ledger.policy(on_unknown="check", check=is_printed)
    def print_voucher(hotel: str) -> str:
        """Print the voucher for a hotel."""
        with file.open("a") as vouchers:
            vouchers.write(f"{current_execution().key} voucher for {hotel}\n")
        if hangs:
            _tell("effect")
            time.sleep(_HANGING_SECONDS)
        return "voucher printed"

    return print_voucher


def main() -> None:
    """Run the job on standard input."""
    warnings.simplefilter("ignore")
    job = Job(**json.loads(sys.stdin.readline()))
    try:
        run(job)
    except (BrokenPipeError, KeyboardInterrupt):
        os._exit(1)  # the parent is gone
    except Exception as error:
        _tell("error", message=f"{type(error).__name__}: {error}")
        raise SystemExit(1) from None


def _tell_tool(name: str, phase: str, detail: str) -> None:
    _tell("tool", name=name, phase=phase, detail=detail)


def _tell(what: str, **data: Any) -> None:
    # A write of less than 4,096 bytes is atomic, so lines of several threads do not mix.
    short = {key: value[:900] if isinstance(value, str) else value for key, value in data.items()}
    os.write(1, (json.dumps({"what": what, **short}, ensure_ascii=False) + "\n").encode())


if __name__ == "__main__":
    main()
