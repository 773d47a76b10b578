"""Run it twice: the first run is killed inside `hotel`; the second resumes there, and books no second flight."""

import operator
import os
import signal
from typing import Annotated, TypedDict

from langgraph.graph import START, StateGraph

from langgraph_pgstate import PGStateSaver


class Trip(TypedDict):
    booked: Annotated[list[str], operator.add]


def flight(trip: Trip) -> Trip:
    print("booking the flight")
    return {"booked": ["flight"]}


def hotel(trip: Trip) -> Trip:
    print("booking the hotel", flush=True)
    if not resuming:
        os.kill(os.getpid(), signal.SIGKILL)  # as a crash would: nothing is cleaned up
    return {"booked": ["hotel"]}


with PGStateSaver.embedded() as saver:  # or from_conn_string("postgresql://..."), and saver.setup() once
    graph = StateGraph(Trip).add_sequence([flight, hotel]).add_edge(START, "flight").compile(checkpointer=saver)
    thread = {"configurable": {"thread_id": "trip-1"}}
    resuming = bool(graph.get_state(thread).tasks)
    print(graph.invoke(None if resuming else {"booked": []}, thread, durability="sync"))
