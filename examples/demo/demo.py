"""The demo: kill an agent in a superstep and in a tool, resume and fork it, let it remember, erase its user."""

from __future__ import annotations

import itertools
import json
import os
import secrets
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from examples.demo.agent import (
    AGENT,
    DINNER_WISH,
    FIRST_WISH,
    OFFLINE_MODEL,
    OTHER_WISH,
    PAYMENT_WISH,
    TASTE_WISH,
    VOUCHER_WISH,
)
from examples.demo.child import Job
from examples.demo.children import Child, DemoError, ToolRuns, started
from examples.demo.weigh import WholeValues
from langgraph_pgstate.admin.api import Admin
from langgraph_pgstate.cli.drawing import console
from langgraph_pgstate.cli.options import INSPECTOR_PORT, SERVER_PORT
from langgraph_pgstate.cli.output import bytes_in_words, count, progress, shorten
from langgraph_pgstate.cli.target import Target
from langgraph_pgstate.cli.tree import draw, outline, short_id
from langgraph_pgstate.state import PGState

_WIDTH: Final = 80
_PREFIX: Final = "demo-"
_EXAMPLE: Final = "examples/kill_and_resume.py"
_GRAPH: Final = "examples.demo.travel:graph"
# A tool that takes longer than the demo waits; its process is killed in it.
_HANGING_SECONDS: Final = 60.0
_OFFLINE_TURNS: Final = 120
_PROVIDER_TURNS: Final = 2


class Demo:
    """One run of the demo, on a new thread.

    Args:
        dsn: The database.
        target: The database in words, and its schema, which is made when it is missing.
        model: `provider:model`, or `None` for the offline one.
        turns: Turns the conversation goes on for after it was resumed.
    """

    def __init__(self, dsn: str, target: Target, *, model: str | None = None, turns: int | None = None) -> None:
        self._dsn, self._schema, self._place, self._model = dsn, target.schema, target.place, model
        self._program = target.program()
        self._turns = turns if turns is not None else _PROVIDER_TURNS if model else _OFFLINE_TURNS

    def run(self) -> None:
        """Run the demo.

        Raises:
            PGStateError: If a step fails, or if a tool that had finished was run again.
        """
        began_at = time.monotonic()
        with (
            PGState.open(self._dsn, schema=self._schema, pool=False) as state,
            Admin.open(self._dsn, schema=self._schema) as self._admin,
        ):
            state.setup()
            state.prices.set(OFFLINE_MODEL, input=3, output=15)
            self._state, self._saver = state, state.saver
            self._thread_id = self._next_thread_id()
            self._config: RunnableConfig = {"configurable": {"thread_id": self._thread_id}}
            version = self._admin.sizes().server_version
            console.print(f"[bold]The demo[/] on PostgreSQL {version}, {escape(self._place)}")
            console.print(f"thread {self._thread_id}, schema {self._schema}, model: {self._model or 'offline'}")
            before = self._kill_in_superstep()
            self._resume(before)
            self._fork()
            self._print_once()
            self._leave_unknown()
            self._work_off()
            self._erase(self._remember())
            whole = WholeValues()
            nodes = outline(whole.counted(self._saver.list(self._config)))
            _title("9  The checkpoint tree", "superstep, node, id, process, what it added")
            console.print(draw(nodes, self._thread_id, min(_WIDTH, console.width)))
            self._weigh(whole)
        self._close(time.monotonic() - began_at)

    def _next_thread_id(self) -> str:
        """Return the next unused `demo-n`, so that the demo can be repeated."""
        names = (f"{_PREFIX}{number}" for number in itertools.count(1))
        return next(name for name in names if self._state.threads.get(name) is None)

    def _job(self, part: str, process: str, **more: Any) -> Job:
        return Job(part, self._dsn, self._schema, self._thread_id, process, self._model, **more)

    def _kill_in_superstep(self) -> ToolRuns:
        """Start the agent in a child process, and kill it in a tool."""
        with started(self._job("begin", "p1", hotel_seconds=_HANGING_SECONDS)) as child:
            _title("1  An agent books a trip", f"process p1, pid {child.pid}")
            _line("you", f"“{FIRST_WISH}”")
            begun = self._show_until_amid(child)
            inside = ", ".join(child.runs.inside)
            for name in child.runs.inside:
                _line(name, f"({begun[name]}) is running …")
            _note(f"The superstep is half done. Stored at this moment: {self._stored(self._config, child.runs)}.")
            ending = child.kill()
        console.print(f"   [bold red]kill -9 {child.pid}[/]   p1 is gone inside {inside}, by [bold]{ending}[/].")
        return child.runs

    def _show_until_amid(self, child: Child) -> dict[str, str]:
        """Show the events of a child until a superstep is half done. Return the arguments of its tools."""
        begun: dict[str, str] = {}
        for event in child.events():
            if event["what"] == "answer":
                raise DemoError("the model called no tool to be killed in; run the demo again")
            _show(event, begun)
            if self._is_amid(child.runs):
                break
        return begun

    def _is_amid(self, runs: ToolRuns) -> bool:
        """Return whether one tool runs and the other has finished; with a real model, whether any tool runs."""
        if self._model:
            return runs.inside["book_hotel"] > 0 or (runs.begun.total() > 1 and runs.inside.total() > 0)
        return runs.inside["book_hotel"] > 0 and runs.finished["book_flight"] > 0

    def _stored(self, config: RunnableConfig, runs: ToolRuns) -> str:
        """Wait for the pending write of the tool that finished last, and return those of the superstep."""
        deadline = time.monotonic() + (0.5 if self._model else 5.0)
        answered: list[str] = []
        while next(reversed(runs.finished), None) not in answered and time.monotonic() < deadline:
            time.sleep(0.02)
            latest = self._saver.get_tuple(config)
            writes = latest.pending_writes or [] if latest else []
            answered = [
                str(message.name)
                for _, _, value in writes
                for message in (value if isinstance(value, list) else [value])
                if isinstance(message, ToolMessage)
            ]
        checkpoints = sum(1 for _ in self._saver.list(config, metadata_only=True))
        pending = f" and, as a pending write, the answer of {', '.join(answered)}" if answered else ""
        return f"{count(checkpoints, 'checkpoint')}{pending}"

    def _resume(self, before: ToolRuns) -> None:
        """Resume in a new process, and check that no finished tool runs again."""
        begun: dict[str, str] = {}
        messages = 0
        with started(self._job("resume", "p2", turns=self._turns)) as child:
            _title("2  A new process resumes", f"process p2, pid {child.pid}")
            _note("graph.invoke(None, config): from the last checkpoint, with the pending write.")
            events = child.events()
            for event in events:
                _show(event, begun)
                if event["what"] == "answer":
                    break
            self._compare(before, child.runs)
            with progress("   the conversation goes on", self._turns) as update:
                for event in events:
                    if event["what"] == "turn":
                        messages = event["messages"]
                        update(event["turn"] - 1, self._turns)
        if messages:
            console.print(f"   The conversation goes on for {count(self._turns, 'turn')}, to {messages} messages.")

    def _compare(self, before: ToolRuns, after: ToolRuns) -> None:
        """Print the tools of each process, for the first request."""
        again = [name for name in before.finished if after.begun[name]]
        if again and not self._model:
            raise DemoError(f"{', '.join(again)} had finished before the kill and was run again")
        once = " and ".join(name for name in before.finished if name not in again)
        _note(f"Not run again: {once or 'nothing'}. Run again, for it had not finished: {', '.join(before.inside)}.")
        table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="dim")
        table.add_column("   as the tools tell it", min_width=24)
        for column in ("begun in p1", "finished", "begun in p2", "finished"):
            table.add_column(column, justify="right")
        for name in dict.fromkeys([*before.begun, *after.begun]):
            counts = (before.begun[name], before.finished[name], after.begun[name], after.finished[name])
            table.add_row(f"   {name}", *(str(number) if number else "·" for number in counts))
        console.print(table)

    def _fork(self) -> None:
        """Change the request at a past checkpoint, and go on from there."""
        past = self._fork_point()
        with started(self._job("fork", "p3", checkpoint_id=past)) as child:
            _title("3  A fork: the past is still there", f"process p3, pid {child.pid}")
            _note(f"update_state on checkpoint {short_id(past)}, from before anything was booked:")
            _line("you", f"“{OTHER_WISH}”")
            begun: dict[str, str] = {}
            for event in child.events():
                _show(event, begun)

    def _print_once(self) -> None:
        """Kill a tool after its effect and before its result is stored; the next process checks the effect."""
        with tempfile.TemporaryDirectory(prefix="pgstate-demo-") as directory:
            file = Path(directory) / "vouchers.txt"
            with started(self._job("print", "p4", voucher=str(file))) as child:
                _title("4  An effect outside the database", f"process p4, pid {child.pid}")
                _line("you", f"“{VOUCHER_WISH}”")
                for event in child.events():
                    if event["what"] == "answer":
                        raise DemoError("the model printed no voucher; run the demo again")
                    if event["what"] == "effect":
                        break
                # The recorder stores the start of a tool within a second.
                time.sleep(1)
                self._show_ledger(f"print_voucher has appended its line to a file; {_lines(file)}.")
                ending = child.kill()
            console.print(f"   [bold red]kill -9 {child.pid}[/]   p4 is gone before the receipt, by [bold]{ending}[/].")
            with started(self._job("reprint", "p5", voucher=str(file))) as child:
                _note(f"A new process resumes (p5, pid {child.pid}). The ledger knows of the intent and of no outcome:")
                for event in child.events():
                    if event["what"] == "check":
                        found = "the line is there" if event["printed"] else "no such line"
                        _line("the ledger", f"{event['status']}; its check looks into the file: {found}")
                    elif event["what"] == "answer":
                        _line("agent", f"“{event['text']}”", lines=3)
            printed = len(file.read_text().splitlines())
            if child.runs.begun["print_voucher"] or printed != 1:
                raise DemoError(f"the voucher was printed {printed} times")
            self._show_ledger(f"Not printed again: {_lines(file)}.")

    def _leave_unknown(self) -> None:
        """Kill a payment that cannot be looked up; the next process asks a person, and the run waits."""
        with started(self._job("pay", "p6", pay_seconds=_HANGING_SECONDS)) as child:
            _title("5  An effect that only a person knows of", f"process p6, pid {child.pid}")
            _line("you", f"“{PAYMENT_WISH}”")
            for event in child.events():
                if event["what"] == "answer":
                    raise DemoError("the model called no tool to be killed in; run the demo again")
                if event["what"] == "tool":
                    _line(event["name"], f"({event['detail']}) is running …")
                    break
            # The recorder stores the start of a tool within a second.
            time.sleep(1)
            ending = child.kill()
        console.print(f"   [bold red]kill -9 {child.pid}[/]   p6 is gone inside pay_hotel, by [bold]{ending}[/].")
        with started(self._job("ask", "p7")) as child:
            _note(f"A new process resumes (p7, pid {child.pid}). Money may have moved or not; nobody can be asked:")
            asked = [event["question"] for event in child.events() if event["what"] == "interrupt"]
        if not asked or child.runs.begun["pay_hotel"]:
            raise DemoError("the run does not wait for a person")
        _line("the ledger", f"“{asked[0]}”", lines=2)
        self._show_ledger("The run is interrupted, and waits for the answer.")

    def _work_off(self) -> None:
        """Enqueue a run, kill the worker that runs it, and let another one finish it."""
        runs = self._state.runs
        thread_id = f"{self._thread_id}-queue"
        # A queue of its own, because a server of this database may have a worker, too.
        wish = {"messages": [HumanMessage(FIRST_WISH)]}
        run = runs.enqueue(AGENT, wish, thread_id=thread_id, queue=thread_id)
        with started(replace(self._job("work", "p8", hotel_seconds=_HANGING_SECONDS), thread_id=thread_id)) as child:
            _title("6  A queue and its workers", f"worker p8, pid {child.pid}")
            _line("you", f"enqueue “{FIRST_WISH}” on thread {thread_id}", lines=2)
            begun = self._show_until_amid(child)
            before = child.runs
            _note(f"Stored: {self._stored({'configurable': {'thread_id': thread_id}}, before)}.")
            ending = child.kill()
        console.print(
            f"   [bold red]kill -9 {child.pid}[/]   p8 is gone inside {', '.join(before.inside)}, by {ending}."
        )
        with started(replace(self._job("work", "p9"), thread_id=thread_id)) as child:
            _note(f"Another worker (p9, pid {child.pid}) finds the run of the dead one, and finishes it:")
            for event in child.events():
                _show(event, begun)
        again = [name for name in before.finished if child.runs.begun[name]]
        if again and not self._model:
            raise DemoError(f"{', '.join(again)} had finished before the kill and was run again")
        found = runs.get(thread_id, run.run_id)
        if found is None or found.status != "success":
            raise DemoError(f"the run ended as {found and found.status}")
        _note(f"The run ended as {found.status}, attempt {found.attempt}. Nobody invoked the graph again.")

    def _remember(self) -> str:
        """Let one conversation learn something, and another one know it; show which message it comes from.

        Returns:
            The user.
        """
        user_id = f"eve-{self._thread_id.removeprefix(_PREFIX)}"
        first, second = f"{self._thread_id}-first", f"{self._thread_id}-second"
        for part, process, thread_id, wish in (
            ("learn", "p10", first, TASTE_WISH),
            ("know", "p11", second, DINNER_WISH),
        ):
            with started(replace(self._job(part, process, user_id=user_id), thread_id=thread_id)) as child:
                if part == "learn":
                    _title("7  One conversation learns, another knows", f"process p10, pid {child.pid}")
                else:
                    _note(
                        f"Another conversation of the same user, {second}, in another process (p11, pid {child.pid}):"
                    )
                _line("you", f"“{wish}”")
                begun: dict[str, str] = {}
                for event in child.events():
                    _show(event, begun)
        known = self._state.memory.browse(user_id=user_id).items
        if not known:
            raise DemoError("the model remembered nothing; run the demo again")
        for one in known:
            found = self._state.memory.inspect(one.namespace, one.key)
            if found is None or found.thread_id != first or found.message is None:
                raise DemoError(f"memory {one.key} does not name the message that it comes from")
            _line(one.key, f"comes from thread {found.thread_id}, message “{found.message.text}”", lines=2)
        return user_id

    def _erase(self, user_id: str) -> None:
        """Erase the user: her conversations, what was remembered, and her words in the fork of somebody else."""
        fork, key = f"{self._thread_id}-anns", secrets.token_bytes(32)
        ann: Any = {"user_id": f"ann-{self._thread_id.removeprefix(_PREFIX)}", "metadata": {}}
        self._state.threads.fork(f"{self._thread_id}-second", to=fork, owner=ann)
        _title("8  A user is erased, with her receipt", user_id)
        _note(f"Ann has forked her conversation. Now all that is stored about {user_id} goes:")
        dry = self._state.privacy.erase(user_id=user_id, dry_run=True)
        _line("a dry run", f"{count(dry.rows, 'row')} of {count(len(dry.counts), 'kind')}, written nothing")
        done = self._state.privacy.erase(user_id=user_id, key=key)
        if done.receipt is None:
            raise DemoError(f"the erasure of {user_id} is not complete: {done.kept}")
        left = [*self._state.privacy.export(user_id=user_id)]
        if left:
            raise DemoError(f"{count(len(left), 'row')} of {user_id} are left")
        _line("erased", ", ".join(f"{rows:,} {name}" for name, rows in done.counts.items()), lines=3)
        said = self._state.messages.conversation(fork)[0].content or ""
        _line("in Ann's fork", f"“{said.strip()}”: the rest of her thread goes on")
        verdict = self._state.privacy.verify(done.receipt, key, user_id=user_id)
        if not verdict.is_of:
            raise DemoError(f"the receipt does not hold: {verdict.why}")
        _line(
            "the receipt",
            f"{done.receipt['algorithm']}, verified; it names nobody: {json.dumps(done.receipt)}",
            lines=4,
        )

    def _show_ledger(self, what: str) -> None:
        """Print the voucher in the ledger and in the file."""
        newest = self._state.tools.list(self._thread_id, limit=1)[0]
        outcome = "no outcome" if newest.ended_at is None else f"“{newest.preview}”"
        _note(f"{what} In tool_executions: {newest.tool}, {newest.status}, attempt {newest.attempt}, {outcome}.")

    def _fork_point(self) -> str:
        """Return the checkpoint after the result of the first tool, before any booking."""
        history = self._saver.list(self._config, metadata_only=True)
        return str(next(item for item in history if item.metadata.get("step", 0) <= 2).checkpoint["id"])

    def _weigh(self, whole: WholeValues) -> None:
        """Print the bytes that are stored, and the bytes of whole values."""
        size, tables = self._admin.thread_size(self._thread_id), self._admin.sizes().tables
        threads = next((table.rows for table in tables if table.name == "threads"), 1)
        stored = size.state_bytes + size.segment_bytes
        _title("10  The bytes", "counted from what was written")
        table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
        table.add_column(no_wrap=True)
        table.add_column(justify="right", no_wrap=True)
        table.add_column(no_wrap=True)
        table.add_row(f"   {whole.versions:,} whole values, one per version of a channel", bytes_in_words(whole.bytes))
        table.add_row(
            f"   the same in pgstate: {size.checkpoints:,} states, {size.segments:,} segments",
            f"[bold green]{bytes_in_words(stored)}[/]",
            f"[bold green]{whole.bytes / max(stored, 1):.0f} times less[/]",
        )
        disk = sum(table.bytes for table in tables)
        table.add_row(f"   on disk: tables, indexes and writes of {count(threads, 'thread')}", bytes_in_words(disk))
        console.print(table)
        _note(
            "Whole values as LangGraph's serializer makes them, before PostgreSQL compresses any; the checkpoints' "
            "bookkeeping counts only on pgstate's side. `make bench` measures both on disk."
        )

    def _close(self, seconds: float) -> None:
        console.print()
        console.print(f"[bold]Done in {seconds:.0f} s.[/] The thread is kept, and waits for an answer. Next:")
        thread = f"ui/threads/{self._thread_id}"
        commands = {f"{self._program} inspect": f"look at it: http://127.0.0.1:{INSPECTOR_PORT}/{thread}"}
        if self._model is None:
            served = f"{self._program} serve {_GRAPH}"
            commands[served] = f"answer, fork, go on: http://127.0.0.1:{SERVER_PORT}/{thread}"
        commands |= {
            f"{self._program} show {self._thread_id}": "its state, and what it asks",
            f"{self._program} tree {self._thread_id}": "its checkpoints again",
            f"{self._program} status": "tables, rows and bytes",
            f"{self._program} check --thread {self._thread_id}": "re-read and verify it",
        }
        if Path(_EXAMPLE).exists():
            python = min(sys.executable, os.path.relpath(sys.executable), key=len)
            commands[f"{python} {_EXAMPLE}"] = "a crash in one file; run it twice"
            commands["make serve"] = "an agent served over HTTP, for LangGraph's SDKs and Studio"
        for command, purpose in commands.items():
            console.print(f"   [cyan]{escape(command)}[/]", soft_wrap=True)
            console.print(f"      {escape(purpose)}", soft_wrap=True, highlight=False)


def _title(title: str, right: str) -> None:
    console.print()
    space = max(min(_WIDTH, console.width) - len(title) - len(right), 2)
    console.print(f"[bold]{title}[/]{' ' * space}[dim]{right}[/]")


def _note(text: str) -> None:
    width = min(_WIDTH, console.width)
    console.print(Padding(Text(text), (0, 0, 0, 3)), width=width)


def _lines(file: Path) -> str:
    return f"the file has {count(len(file.read_text().splitlines()), 'line')}"


def _line(who: str, what: str, *, lines: int = 1) -> None:
    width = min(_WIDTH, console.width)
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(width=19)
    table.add_column(width=width - 22)
    table.add_row(
        Text(f"   {who}", style="cyan"),
        Text(shorten(what, width - 23 if lines == 1 else lines * (width - 26)), overflow="ellipsis"),
    )
    console.print(table)


def _show(event: dict[str, Any], begun: dict[str, str]) -> None:
    """Print an event; a tool only when it has ended."""
    if event["what"] == "answer":
        _line("agent", f"“{event['text']}”", lines=3)
    elif event["what"] == "tool" and event["phase"] == "begin":
        begun[event["name"]] = event["detail"]
    elif event["what"] == "tool":
        _line(event["name"], f"({begun.get(event['name'], '')}) → {event['detail']}")
