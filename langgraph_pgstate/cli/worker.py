"""The demo's child process: runs the agent, and tells the parent over a pipe what it is doing.

It reads one `Job` as JSON from its standard input and writes events as JSON lines to its standard output. It is
killed without warning; that is the point.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from dataclasses import asdict, dataclass
from typing import Any

from langchain_core.messages import HumanMessage
from langchain_core.runnables import RunnableConfig

from langgraph_pgstate.cli.agent import FIRST_WISH, OTHER_WISH, build_agent, follow_up, offline_model, provider_model
from langgraph_pgstate.cli.tree import WRITER_KEY
from langgraph_pgstate.saver import PGStateSaver


@dataclass(frozen=True, slots=True)
class Job:
    """What one process of the demo does.

    Attributes:
        part: `begin`, `resume` or `fork`.
        dsn: The database.
        schema: Its schema.
        thread_id: The thread.
        process: How the process is called in the tree.
        model: `provider:model`, or `None` for the offline one.
        turns: With `resume`: turns the conversation goes on for.
        hotel_seconds: How long the hotel's booking system takes.
        checkpoint_id: With `fork`: the checkpoint to go on from.
    """

    part: str
    dsn: str
    schema: str
    thread_id: str
    process: str
    model: str | None
    turns: int = 0
    hotel_seconds: float = 0.1
    checkpoint_id: str | None = None

    def to_json(self) -> str:
        """As the child reads it."""
        return json.dumps(asdict(self))


def run(job: Job) -> None:
    """Do a job."""
    model = provider_model(job.model) if job.model else offline_model()
    with PGStateSaver.from_conn_string(job.dsn, schema=job.schema) as saver:
        graph = build_agent(model, saver, _tell_tool, hotel_seconds=job.hotel_seconds)
        config: RunnableConfig = {
            "configurable": {"thread_id": job.thread_id},
            "metadata": {WRITER_KEY: job.process},
            "recursion_limit": 50,
        }
        if job.part == "begin":
            answer = graph.invoke({"messages": [HumanMessage(FIRST_WISH)]}, config)
        elif job.part == "resume":
            answer = graph.invoke(None, config)
        else:
            config["configurable"]["checkpoint_id"] = job.checkpoint_id
            wish = {"messages": [HumanMessage(OTHER_WISH)]}
            config["configurable"] = graph.update_state(config, wish, as_node="__start__")["configurable"]
            answer = graph.invoke(None, config)
        _tell("answer", text=str(answer["messages"][-1].text), messages=len(answer["messages"]))
        for turn in range(2, job.turns + 2):
            answer = graph.invoke({"messages": [HumanMessage(follow_up(turn))]}, config)
            _tell("turn", turn=turn, messages=len(answer["messages"]))


def main() -> None:
    """Entry point of the child."""
    warnings.simplefilter("ignore")
    job = Job(**json.loads(sys.stdin.readline()))
    try:
        run(job)
    except (BrokenPipeError, KeyboardInterrupt):
        os._exit(1)  # the parent is gone; nobody is left to be told
    except Exception as error:
        _tell("error", message=f"{type(error).__name__}: {error}")
        raise SystemExit(1) from None


def _tell_tool(name: str, phase: str, detail: str) -> None:
    _tell("tool", name=name, phase=phase, detail=detail)


def _tell(what: str, **data: Any) -> None:
    # One write below the pipe's atomic 4,096 bytes, so that tools in several threads don't mix their lines.
    short = {key: value[:900] if isinstance(value, str) else value for key, value in data.items()}
    os.write(1, (json.dumps({"what": what, **short}, ensure_ascii=False) + "\n").encode())


if __name__ == "__main__":
    main()
