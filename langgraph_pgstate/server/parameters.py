"""Parameters of the commands to a thread, by method; `ThreadCommand` in `bodies.py` has them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AliasChoices, ConfigDict, Field, model_validator

from langgraph_pgstate.server.bodies import Body, Goto, Json, Limit, Strategy


class RunParams(Body):
    """The parameters that commands which create a run have in common."""

    config: Json | None = None
    metadata: Json | None = None


class RunStart(RunParams):
    """Parameters of `run.start`."""

    assistant_id: str
    input: Any = None
    multitask_strategy: Strategy = Field(
        "enqueue", validation_alias=AliasChoices("multitaskStrategy", "multitask_strategy")
    )


class InputResponse(Body):
    """The answer to one interrupt."""

    interrupt_id: str
    response: Any = None


class InputRespond(RunParams):
    """Parameters of `input.respond`: one answer, or several."""

    responses: Annotated[list[InputResponse], Field(min_length=1)]
    update: Json | list[tuple[str, Any]] | None = None
    goto: Goto | None = None

    @model_validator(mode="before")
    @classmethod
    def _several(cls, value: Any) -> Any:
        return {"responses": [value], **value} if isinstance(value, dict) and "responses" not in value else value


class InjectedMessage(Body):
    """A message to a graph."""

    model_config = ConfigDict(extra="allow")

    role: Literal["user", "system"]
    content: str


class InputInject(Body):
    """Parameters of `input.inject`."""

    namespace: list[str] = Field(default_factory=list)
    message: InjectedMessage


class StateGet(Body):
    """Parameters of `state.get`."""

    namespace: list[str] = Field(default_factory=list)
    keys: list[str] | None = None


class StateList(Body):
    """Parameters of `state.listCheckpoints`."""

    namespace: list[str] = Field(default_factory=list)
    limit: Limit = 10
    before: str | None = None


class StateFork(RunParams):
    """Parameters of `state.fork`."""

    checkpoint_id: str
    input: Any = None


class AgentTree(Body):
    """Parameters of `agent.getTree`."""

    run_id: str | None = None
