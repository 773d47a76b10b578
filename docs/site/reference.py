"""Generates the reference pages of the site from what the package itself says.

Python from docstrings, by mkdocstrings; the command line from its definitions; tables from the comments of
`schema.sql`; metrics and settings from the names and texts in the code.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Iterable
from functools import cached_property
from importlib import import_module, resources
from pathlib import Path
from typing import Any, get_type_hints

import langgraph_pgstate
from langgraph_pgstate import errors, metrics
from langgraph_pgstate.admin.gauges import GAUGES
from langgraph_pgstate.agent_server import AgentServerSettings
from langgraph_pgstate.memory import AsyncNotes, memory_tools
from langgraph_pgstate.memory.remembering import AsyncMemories
from langgraph_pgstate.otlp.spans import ATTRIBUTES
from langgraph_pgstate.schema.queries import queries
from langgraph_pgstate.server.app import ServerOptions
from langgraph_pgstate.server.routes import OPERATIONS
from langgraph_pgstate.worker.config_keys import KEYS, NOTES

_SETTINGS = ("Backoff", "DefaultAnswer", "PoolSettings", "Rate", "RecorderSettings", "RetryPolicy", "ThreadKeys")
_SETTINGS += ("ToolPolicy", "ToolSettings", "WebhookSettings")
_MAIN = ("PGStateSaver", "AsyncPGStateSaver", "PGState", "AsyncPGState", "Worker", "AsyncWorker")
_TYPES = (
    "admin",
    "assistants",
    "files",
    "interrupts",
    "keep",
    "leases",
    "memory",
    "record",
    "runs",
    "schedules",
    "schema",
)
_TYPES += ("threads",)
_ALERTS = Path(__file__).parents[2] / "examples" / "monitoring" / "alerts.yml"
_LITERAL = r"'((?:[^']|'')*)'"


def pages() -> dict[str, str]:
    """Return Markdown by the path of its page."""
    return {f"reference/{name}.md": make() for name, make in _PAGES.items()}


def python() -> str:
    """The classes that applications use, and the parts of a state."""
    # What `state.memory` inherits, and the notes that it hands out.
    parts = dict.fromkeys((*_parts(), AsyncMemories, AsyncNotes))
    sections = [
        *(_documented(getattr(langgraph_pgstate, name)) for name in _MAIN),
        "## Parts of a state\n\nThe blocking classes have the same methods, without `await`.\n",
        *(_documented(part, level=3) for part in parts),
        _documented(memory_tools, level=3),
    ]
    return "\n".join(["# Python", "", *sections])


def results() -> str:
    """What calls return."""
    settings = {getattr(langgraph_pgstate, name) for name in _SETTINGS}
    modules = [import_module(f"langgraph_pgstate.{package}.types") for package in _TYPES]
    found = [one for module in modules for one in vars(module).values() if inspect.isclass(one) and one not in settings]
    found = [one for one in found if one.__module__.startswith("langgraph_pgstate.") and one.__name__[0] != "_"]
    classes = sorted(set(found), key=lambda one: one.__name__)
    return "\n".join(["# Types of results", "", *map(_documented, classes)])


def settings() -> str:
    """Settings as objects, and as environment variables."""
    rows = [
        (f"`{name}`", f"`{field}`", re.sub(r"^(`PGSTATE_\w+`(, | and )?)+", "", text))
        for field, text in _attributes(AgentServerSettings)
        for name in re.findall(r"PGSTATE_[A-Z_]+", text)
    ]
    return "\n".join(
        [
            "# Settings",
            "",
            "## Environment variables",
            "",
            "LangGraph's [Agent Server](../agent-server.md#settings) reads all of these. Commands read `PGSTATE_DSN`,",
            # pragma: allowlist nextline secret
            "`PGSTATE_WEBHOOK_SECRET`, `PGSTATE_WEBHOOK_NETWORKS` and `PGSTATE_OTLP_ENDPOINT`; `serve` and `privacy`",
            "also `PGSTATE_RECEIPT_KEY_FILE`.",
            "",
            *_table(("variable", "field", "meaning"), rows),
            "## Objects",
            "",
            *(_documented(getattr(langgraph_pgstate, name), level=3) for name in _SETTINGS),
        ]
    )


def exceptions() -> str:
    """The tree of exceptions, and each of them."""
    tree = inspect.getdoc(errors) or ""
    classes = [one for one in vars(errors).values() if inspect.isclass(one) and one.__module__ == errors.__name__]
    return "\n".join(["# Errors", "", tree, "", *(_documented(one) for one in classes if issubclass(one, Exception))])


def command_line() -> str:
    """Every command with its arguments and options."""
    from typer.main import get_command

    from langgraph_pgstate.cli.app import app

    program: Any = get_command(app)
    lines = [
        "# Command line",
        "",
        "What `pgstate COMMAND --help` says. [Examples and conventions](../command-line.md).",
        "",
    ]
    lines += ["## Options of all commands", "", *_parameters(program)]
    for name, command in program.commands.items():
        words = " ".join(_metavar(one) for one in command.params if _is_argument(one))
        lines += [
            f"## `{name}`",
            "",
            _sentence(command.help),
            "",
            "```text",
            f"pgstate {name} [OPTIONS] {words}".rstrip(),
        ]
        lines += ["```", "", *_parameters(command)]
    return "\n".join(lines)


def tables() -> str:
    """Tables and views with the comments of their columns."""
    folder = resources.files("langgraph_pgstate.schema")
    text = "".join(folder.joinpath(name).read_text("utf-8") for name in ("bootstrap.sql", "schema.sql"))
    comments = {
        (kind, name): "".join(re.findall(_LITERAL, literal)).replace("''", "'")
        for kind, name, literal in re.findall(
            rf"COMMENT ON (\w+) /\*schema\*/([\w.]+) IS\s+((?:{_LITERAL}\s*)+);".replace(
                "((?:[^']|'')*)", "(?:[^']|'')*"
            ),
            text,
        )
    }
    columns: dict[str, dict[str, str]] = {}
    for table, body in re.findall(
        r"^CREATE TABLE (?:IF NOT EXISTS )?/\*schema\*/(\w+) \(\n(.*?)^\)", text, re.MULTILINE | re.DOTALL
    ):
        columns[table] = dict(re.findall(r"^    ([a-z_]+) ([a-z]+(?: precision)?(?:\[\])?)", body, re.MULTILINE))
    lines = [
        "# SQL",
        "",
        "The comments that `\\d+ pgstate.runs` shows in psql. [Conventions, diagram and queries](../sql.md).",
        "",
    ]
    for kind, heading in (("TABLE", "Tables"), ("VIEW", "Views")):
        lines += [f"## {heading}", ""]
        for name in sorted(name for found, name in comments if found == kind):
            mine = [full.partition(".") for found, full in comments if found == "COLUMN"]
            order = [column for table, _, column in mine if table == name]
            rows = [
                (f"`{column}`", columns.get(name, {}).get(column, ""), comments["COLUMN", f"{name}.{column}"])
                for column in columns.get(name, order)
                if ("COLUMN", f"{name}.{column}") in comments
            ]
            lines += [f"### `{name}`", "", comments[kind, name], "", *_table(("column", "type", "meaning"), rows)]
    return "\n".join(lines)


def metrics_page() -> str:
    """Names and texts of all metrics."""
    found = {f"pgstate_{name}": text for name, text in GAUGES.items()}
    for group in (metrics._POOL, metrics._POOL_COUNTERS):
        found |= {f"pgstate_{name}": str(row[-1]) for name, row in group.items()}
    for node in ast.walk(ast.parse(inspect.getsource(metrics))):
        if isinstance(node, ast.Call) and len(node.args) > 1:
            name, text = (one.value if isinstance(one, ast.Constant) else None for one in node.args[:2])
            if isinstance(name, str) and name.startswith("pgstate_") and isinstance(text, str):
                found[name] = text
    rows = [(f"`{name}`", text) for name, text in sorted(found.items())]
    alerts = re.findall(r"alert: (\w+).*?\n +summary: \"(.*?)\"\n", _ALERTS.read_text("utf-8"), re.DOTALL)
    return "\n".join(
        [
            "# Metrics",
            "",
            "Names and help texts. [How to read them](../observability.md#metrics).",
            "",
            *_table(("metric", "meaning"), rows),
            "## Alerts",
            "",
            "Those of `examples/monitoring/alerts.yml`.",
            "",
            *_table(("alert", "says"), [(f"`{name}`", f"`{text}`") for name, text in alerts]),
        ]
    )


def attributes() -> str:
    """Names of the attributes of exported spans."""
    rows = [(f"`{name}`", spans, meaning) for name, (spans, meaning) in ATTRIBUTES.items()]
    head = ["# Attributes of spans", "", "Of [exported spans](../observability.md#traces).", ""]
    return "\n".join([*head, *_table(("attribute", "on", "meaning"), rows)])


def server() -> str:
    """Operations, options and keys of the server."""
    operations = [
        (f"`{one.name}`", f"`{one.method} {one.path}`", f"{one.summary} {one.description}".strip())
        for one in OPERATIONS
    ]
    keys = [(f"`{path}`", use, NOTES.get(path, "")) for path, use in KEYS.items()]
    return "\n".join(
        [
            "# Server",
            "",
            "[How to use it](../server.md).",
            "",
            "## Operations",
            "",
            *_table(("operation of the SDK", "request", "does"), operations),
            "## Keys of `langgraph.json`",
            "",
            "A key stands for those below it. `refused` ends the command, `warned` is named in the log, `image` says",
            "how an image is built, and has no effect.",
            "",
            *_table(("key", "is", "note"), keys),
            "## Options of `create_app`",
            "",
            *_table(("option", "meaning"), [(f"`{name}`", text) for name, text in _attributes(ServerOptions)]),
        ]
    )


def locks() -> str:
    """Statements that lock rows which they do not write."""
    rows = []
    for name, query in sorted(queries("pgstate").all.items()):
        text = re.sub("--.*", "", query.text.decode())
        found = dict.fromkeys(f"`{table}`: `{lock}`" for table, lock in _locked(text))
        if found:
            rows.append((f"`{name}`", "; ".join(found), query.purpose.replace("\n", " ")))
    head = ["# Locks", "", "Statements that lock rows until the end of their transaction.", ""]
    return "\n".join([*head, *_table(("statement", "locks", "does"), rows)])


def _locked(text: str) -> Iterable[tuple[str, str]]:
    """Yield the tables that a statement locks, with the lock."""
    for one in re.finditer(r"\b(FOR (?:NO KEY )?(?:UPDATE|(?:KEY )?SHARE))( OF (\w+))?( SKIP LOCKED)?", text):
        before = text[: one.start()]
        while (shorter := re.sub(r"\([^()]*\)", "", before)) != before:
            before = shorter
        before = before.rpartition("(")[2]
        tables = re.findall(r'"pgstate"\.(\w+)(?: (?:AS )?(\w+))?', before)
        named = [table for table, alias in tables if one[3] and alias == one[3]]
        yield (named or [tables[-1][0]])[-1], one[1] + (one[4] or "")


_PAGES: dict[str, Callable[[], str]] = {
    "python": python,
    "types": results,
    "settings": settings,
    "errors": exceptions,
    "command-line": command_line,
    "sql": tables,
    "metrics": metrics_page,
    "server": server,
    "attributes": attributes,
    "locks": locks,
}


def _parts() -> Iterable[type]:
    from langgraph_pgstate.state import AsyncPGState

    store = "langgraph_pgstate.memory.store"
    module = {**vars(import_module(store)), **vars(import_module(AsyncPGState.__module__))}
    for name, value in inspect.getmembers_static(AsyncPGState):
        if isinstance(value, cached_property) and not name.startswith("_"):
            yield get_type_hints(value.func, module)["return"]


def _documented(one: Any, level: int = 2) -> str:
    return f"::: {one.__module__}.{one.__qualname__}\n    options:\n      heading_level: {level}\n"


def _attributes(one: type) -> list[tuple[str, str]]:
    """Names and texts of the `Attributes:` of a docstring."""
    text = (inspect.getdoc(one) or "").partition("Attributes:\n")[2]
    return [
        (name, " ".join(words.split()))
        for name, words in re.findall(r"^    (\w+): (.*(?:\n {5,}.*)*)", text, re.MULTILINE)
    ]


def _metavar(parameter: Any) -> str:
    shown = str(parameter.metavar or (parameter.name if _is_argument(parameter) else "N").upper())
    if not _is_argument(parameter):
        return shown
    shown += "..." if parameter.nargs == -1 else ""
    return shown if parameter.required else f"[{shown}]"


def _is_argument(parameter: Any) -> bool:
    return bool(parameter.param_type_name == "argument")


def _parameters(command: Any) -> list[str]:
    rows = []
    for one in command.params:
        text = _sentence(getattr(one, "help", ""))
        if _is_argument(one):
            shown = _metavar(one)
        else:
            metavar = "" if one.is_flag else f" {_metavar(one)}"
            shown = ", ".join([*one.opts, *one.secondary_opts]) + metavar
        default = one.default
        if (
            default not in (None, False, ())
            and not callable(default)
            and not one.required
            and getattr(one, "show_default", True)
        ):
            text += f" Default: `{default}`."
        rows.append((f"`{shown}`", text.strip()))
    return _table(("parameter", "meaning"), rows) if rows else []


def _sentence(text: str | None) -> str:
    return " ".join((text or "").split())


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> list[str]:
    """Lines of a Markdown table, and an empty one."""
    lines = [f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in (head, *rows)]
    return [lines[0], "|---" * len(head) + "|", *lines[1:], ""]
