"""An agent in a FastAPI application, behind its own login: `uvicorn app:app`, with PGSTATE_DSN.

client = get_client(url="http://127.0.0.1:8000/agents", headers={"authorization": "Bearer eve"})
await client.runs.wait(None, "agent", input={"messages": [{"role": "user", "content": "Hello."}]})
"""

import os
from typing import Any

from fastapi import FastAPI
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage
from langgraph.graph import START, MessagesState, StateGraph
from langgraph_sdk import Auth

from langgraph_pgstate import AsyncPGState
from langgraph_pgstate.server import create_app

auth = Auth()


@auth.authenticate
async def authenticate(authorization: str | None) -> str:
    """Return the user; verify a token here."""
    scheme, _, user = (authorization or "").partition(" ")
    if scheme != "Bearer" or not user:
        raise Auth.exceptions.HTTPException(401, headers={"WWW-Authenticate": "Bearer"})
    return user


@auth.on
async def own(ctx: Auth.types.AuthContext, value: dict[str, Any]) -> dict[str, str]:
    """Everybody sees and changes what is theirs: threads with their runs, crons, assistants."""
    value.setdefault("metadata", {})["owner"] = ctx.user.identity
    return {"owner": ctx.user.identity}


@auth.on.store
async def own_items(ctx: Auth.types.AuthContext, value: dict[str, Any]) -> bool:
    """Everybody has the items below their name."""
    return bool((value["namespace"] or ())[:1] == (ctx.user.identity,))


async def answer(state: MessagesState) -> dict[str, Any]:
    """Answer; a real model belongs here."""
    model = GenericFakeChatModel(messages=iter([AIMessage("Hello from PostgreSQL.")]))
    return {"messages": [await model.ainvoke(state["messages"])]}


graph = StateGraph(MessagesState).add_node(answer).add_edge(START, "answer").compile()

agents = create_app(lambda: AsyncPGState.open(os.environ["PGSTATE_DSN"]), {"agent": graph}, auth=auth)
app = FastAPI(lifespan=agents.lifespan)
app.mount("/agents", agents)


@app.get("/")
async def index() -> dict[str, str]:
    """A page of the application itself."""
    return {"agents": "/agents"}
