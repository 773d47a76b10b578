"""The pages and their actions, each with name, method, path and handler."""

from __future__ import annotations

from typing import Final

from langgraph_pgstate.inspector import (
    access,
    actions,
    archive,
    costs,
    database,
    edits,
    files,
    holds,
    interrupts,
    memory,
    privacy,
    queue,
    retention,
    runs,
    thread,
    threads,
    tools,
)
from langgraph_pgstate.inspector.page import Link, PageRoute

_THREAD: Final = "/threads/{thread_id}"
_MEMORY: Final = "/memory/{namespace}/{key}"
_FILE: Final = "/files/{namespace}/{path}"

# The name of an action begins with the name of its object.
PAGES: Final = (
    PageRoute("threads", "GET", "/threads", threads.threads),
    PageRoute(
        "threads.hold", "POST", "/threads", holds.hold_several, "The threads are held: nothing of them is deleted."
    ),
    PageRoute("runs", "GET", "/runs", runs.runs),
    PageRoute("run", "GET", "/runs/{thread_id}/{run_id}", runs.run),
    PageRoute(
        "run.cancel",
        "POST",
        "/runs/{thread_id}/{run_id}/cancel",
        runs.cancel,
        "The run is cancelled, or ends soon.",
        question="Cancel this run? It ends where it is; its checkpoints stay.",
        about=runs.about,
    ),
    PageRoute("run.retry", "POST", "/runs/{thread_id}/{run_id}/retry", runs.retry, "The run is enqueued again."),
    PageRoute(
        "run.discard",
        "POST",
        "/runs/{thread_id}/{run_id}/discard",
        runs.discard,
        "The run is no dead letter any more.",
        question="Discard what this run was to do? It cannot be retried any more.",
        about=runs.about,
    ),
    PageRoute("interrupts", "GET", "/interrupts", interrupts.interrupts),
    PageRoute(
        "interrupt.answer",
        "POST",
        "/interrupts/{thread_id}/{interrupt_id}/answer",
        interrupts.answer,
        "The answer is stored with your name. A run of the queue goes on; any other does by “Run on” on its thread.",
    ),
    PageRoute("tools", "GET", "/tools", tools.tools),
    PageRoute("tool.action", "GET", "/tools/{thread_id}/{key}", tools.action),
    PageRoute("tool.settle", "POST", "/tools/{thread_id}/{key}/settle", tools.settle, "The outcome is settled."),
    PageRoute("queue", "GET", "/queue", queue.queue),
    PageRoute(
        "worker.drain",
        "POST",
        "/queue/workers/{worker_id}/drain",
        queue.drain,
        "The worker was asked to drain; it ends when its runs have stopped.",
        question="Drain this worker? It requeues its runs and ends; its supervisor has to start it again.",
        about=queue.about_worker,
    ),
    PageRoute("schedule.pause", "POST", "/queue/schedules/{name}/pause", queue.pause, "The schedule is paused."),
    PageRoute("schedule.resume", "POST", "/queue/schedules/{name}/resume", queue.resume, "The schedule is resumed."),
    PageRoute("schedule.trigger", "POST", "/queue/schedules/{name}/trigger", queue.trigger, "A run is enqueued."),
    PageRoute("memory", "GET", "/memory", memory.memory),
    PageRoute("memory.item", "GET", _MEMORY, memory.item),
    PageRoute("memory.edit", "POST", f"{_MEMORY}/edit", memory.edit, "The item is changed. Its earlier version stays."),
    PageRoute(
        "memory.forget",
        "POST",
        f"{_MEMORY}/forget",
        memory.forget,
        "The item is forgotten.",
        question="Forget this? Agents cannot find it any more.",
        about=memory.about,
    ),
    PageRoute("memory.restore", "POST", f"{_MEMORY}/restore", memory.restore, "The version is restored."),
    PageRoute("files", "GET", "/files", files.files),
    PageRoute("file", "GET", _FILE, files.file),
    PageRoute("file.restore", "POST", f"{_FILE}/restore", files.restore, "The version is restored."),
    PageRoute("costs", "GET", "/costs", costs.costs),
    PageRoute("database", "GET", "/database", database.database),
    PageRoute("retention", "GET", "/retention", retention.retention),
    PageRoute("policy.new", "GET", "/retention/new", retention.new),
    PageRoute("policy", "GET", "/policies/{name}", retention.policy),
    PageRoute("policy.store", "POST", "/retention", retention.store, "The policy is stored."),
    PageRoute(
        "policy.delete",
        "POST",
        "/policies/{name}/delete",
        retention.delete,
        "The policy is deleted.",
        question="Delete this policy? Its threads are kept, unless another policy or a time to live deletes them.",
        about=retention.about,
    ),
    PageRoute("holds", "GET", "/holds", holds.holds),
    PageRoute(
        "holds.release",
        "POST",
        "/holds",
        holds.release_several,
        "The holds are released.",
        question="Release these holds? Policies and times to live may delete the threads from then on.",
        about=holds.about_several,
    ),
    PageRoute("archive", "GET", "/archive", archive.archive),
    PageRoute("privacy", "GET", "/privacy", privacy.privacy),
    PageRoute(
        "privacy.erase",
        "POST",
        "/privacy/erase",
        privacy.erase,
        "All data is erased, except what is named below, if anything is.",
    ),
    PageRoute("receipt", "GET", "/privacy/receipts/{erasure_id}", privacy.receipt),
    PageRoute("receipt.download", "GET", "/privacy/receipts/{erasure_id}/download", privacy.download),
    PageRoute("thread.value", "GET", f"{_THREAD}/value", thread.value),
    PageRoute("thread.fork", "POST", f"{_THREAD}/fork", actions.fork, "This is the new thread."),
    PageRoute("thread.run", "POST", f"{_THREAD}/run", actions.run, "The run is in the queue."),
    PageRoute("thread.ask_for_edit", "GET", f"{_THREAD}/edit", edits.ask),
    PageRoute("thread.edit", "POST", f"{_THREAD}/edit", edits.edit, "The state is changed."),
    PageRoute("thread.label", "POST", f"{_THREAD}/label", actions.label, "The label is changed."),
    PageRoute("thread.ask_for_deletion", "GET", f"{_THREAD}/delete", actions.ask_for_deletion),
    PageRoute("thread.delete", "POST", f"{_THREAD}/delete", actions.delete, "The thread is deleted."),
    PageRoute("thread.hold", "POST", f"{_THREAD}/hold", holds.hold, "The thread is held: nothing of it is deleted."),
    PageRoute(
        "thread.release",
        "POST",
        f"{_THREAD}/release",
        holds.release,
        "The hold is released.",
        question="Release this hold? Policies and times to live may delete the thread from then on.",
        about=holds.about,
    ),
    PageRoute(
        "thread.restore",
        "POST",
        f"{_THREAD}/restore",
        archive.restore,
        "The thread is restored: each of its rows was compared with the archive.",
    ),
    PageRoute("thread", "GET", _THREAD, thread.thread),
    PageRoute("person", "GET", "/person", access.ask_name),
    PageRoute(
        "person.keep", "POST", "/person", access.keep_name, "Your name is kept by this browser.", needs_person=False
    ),
)

NAVIGATION: Final = (
    Link("threads", "Threads", "g t"),
    Link("runs", "Runs", "g r"),
    Link("interrupts", "Interrupts", "g i"),
    Link("tools", "Tools", "g o"),
    Link("queue", "Queue", "g q"),
    Link("memory", "Memory", "g m"),
    Link("costs", "Cost", "g c"),
    Link("retention", "Retention", "g k"),
    Link("database", "Database", "g d"),
)
"""The pages that every page links to. The first is the start page."""
