"""LangGraph's Agent Server as a process, as `langgraph dev` starts it, without network."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from support import GUARD_SECONDS, wait_until

ROOT = Path(__file__).parents[2]
OFFLINE = {"LANGGRAPH_NO_VERSION_CHECK": "1", "LANGGRAPH_CLI_NO_ANALYTICS": "1", "LANGSMITH_TRACING": "false"}
# Expected log lines: of the server about itself, and of errors that tests cause on purpose.
_EXPECTED = (
    "Remove `format_exc_info` from your processor chain",
    "Slow graph load",
    "Retrying runs left running by a previous process",
    "`durability` has no effect when no checkpointer is present",
)


class AgentServer:
    """`langgraph dev` on the example's directory, or on a copy with other graphs.

    Args:
        directory: Its working directory; made with the example's files if it is missing.
        environment: Variables for it.
    """

    def __init__(self, directory: Path, environment: Mapping[str, str]) -> None:
        self.directory = directory
        if not directory.exists():
            example = ROOT / "examples" / "studio"
            shutil.copytree(example, directory, ignore=shutil.ignore_patterns(".*", "__pycache__"))
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PGSTATE_", "LANG"))}
        self._environment = {**kept, **OFFLINE, "PYTHONPATH": str(ROOT), "LOG_JSON": "true", **environment}
        self._output = directory / "log.jsonl"
        self._process: subprocess.Popen[bytes] | None = None
        self.url = ""

    def start(self) -> None:
        """Start, and wait until it answers."""
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port = listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        command = [str(Path(sys.executable).parent / "langgraph"), "dev", "--no-browser", "--no-reload"]
        with self._output.open("ab") as output:
            self._process = subprocess.Popen(
                [*command, "--port", str(port), "--n-jobs-per-worker", "4"],
                cwd=self.directory,
                env=self._environment,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        wait_until(self._answers, f"the server's start; it said {self._output.read_text()[-2000:]}")

    def stop(self, signal_number: int = signal.SIGINT) -> int:
        """End it by a signal, and return its exit code. It must end soon."""
        process, self._process = self._process, None
        assert process is not None
        process.send_signal(signal_number)
        try:
            return process.wait(GUARD_SECONDS / 3)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise

    @property
    def is_running(self) -> bool:
        """Whether it was started and not stopped."""
        return self._process is not None

    def log(self) -> list[dict[str, Any]]:
        """Return its log."""
        found = []
        for line in self._output.read_text().splitlines():
            try:
                entry = json.loads(line)
            except ValueError:
                entry = {"event": line, "level": "error" if "Error" in line or "Traceback" in line else "plain"}
            found.append(entry if isinstance(entry, dict) else {"event": line})
        return found

    def complaints(self) -> list[str]:
        """Return warnings and errors of the log, without expected ones."""
        bad = [entry for entry in self.log() if entry.get("level") in ("warning", "error", "critical")]
        found = [f"{entry.get('event')} {entry.get('exception', '')}" for entry in bad]
        return [text for text in found if not any(expected in text for expected in _EXPECTED)]

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, self._output.read_text()[-4000:]
        try:
            with urllib.request.urlopen(f"{self.url}/ok", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False
