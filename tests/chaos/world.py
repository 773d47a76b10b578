"""The PostgreSQL that everything happens on, with the proxy before it and the disk below it."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from benchmarks.proxy import Proxy, open_proxy
from langgraph_pgstate import Encryption, LocalMasterKey
from langgraph_pgstate.db.embedded import EmbeddedServer, embedded_server

_VERSION = 18
_USER_FOR_ROOT = "pgserver"
_DISK_MB = 4096
# Where nothing can be mounted, statements fail as they do on a full disk.
_TRIGGER = """
CREATE OR REPLACE FUNCTION public.refuse_if_full() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT FROM public.full_disk) THEN
        RAISE EXCEPTION 'could not extend file: no space left on device' USING ERRCODE = '53100';
    END IF;
    RETURN NULL;
END $$;
"""

TENANT = "storm"
# Tenants are not kept apart for superusers.
_ROLE = "pgstate_chaos"


class Disk:
    """The tablespace of the tables: a file system in memory that can be made too small, or a trigger that fails."""

    def __init__(self, directory: Path, dsn: str) -> None:
        self._directory, self._dsn = directory, dsn
        directory.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", f"size={_DISK_MB}m", "tmpfs", str(directory)]
        self.is_mounted = (
            os.geteuid() == 0 and subprocess.run(command, capture_output=True, check=False).returncode == 0
        )
        with psycopg.connect(dsn, autocommit=True) as connection:
            if self.is_mounted:
                user = pwd.getpwnam(_USER_FOR_ROOT)
                os.chown(directory, user.pw_uid, user.pw_gid)
                directory.chmod(0o700)
                connection.execute(f"CREATE TABLESPACE small LOCATION '{directory}'".encode())
            else:
                connection.execute("CREATE TABLE IF NOT EXISTS public.full_disk ()")
                connection.execute(_TRIGGER.encode())

    def prepare(self, schema: str) -> None:
        """Have a schema's tables fail when the disk is full."""
        if not self.is_mounted:
            with psycopg.connect(self._dsn, autocommit=True) as connection:
                for table in ("checkpoints", "segments", "writes", "journal", "tool_executions", "messages"):
                    trigger = f"CREATE TRIGGER full_disk BEFORE INSERT ON {schema}.{table} EXECUTE FUNCTION public."
                    connection.execute(f"{trigger}refuse_if_full()".encode())

    def fill(self) -> None:
        """Leave no space but that of half-empty pages."""
        if self.is_mounted:
            status = os.statvfs(self._directory)
            used = (status.f_blocks - status.f_bfree) * status.f_frsize // 1024
            self._resize(f"{used + 16}k")
        else:
            with psycopg.connect(self._dsn, autocommit=True) as connection:
                connection.execute("INSERT INTO public.full_disk DEFAULT VALUES")

    def free(self) -> None:
        """Have space again."""
        if self.is_mounted:
            self._resize(f"{_DISK_MB}m")
        else:
            with psycopg.connect(self._dsn, autocommit=True) as connection:
                connection.execute("TRUNCATE public.full_disk")

    def close(self, *, keeps: bool) -> None:
        """Unmount, once the server is gone, with what was on it if that is kept."""
        if self.is_mounted:
            kept = self._directory.with_suffix(".kept")
            if keeps:
                shutil.copytree(self._directory, kept)
                subprocess.run(["chown", "-R", _USER_FOR_ROOT, str(kept)], check=True)
            subprocess.run(["umount", str(self._directory)], capture_output=True, check=False)
            if keeps:
                self._directory.rmdir()
                kept.rename(self._directory)

    def _resize(self, size: str) -> None:
        command = ["mount", "-o", f"remount,size={size}", str(self._directory)]
        # What was written between the look and this may make the size too small to be taken.
        subprocess.run(command, capture_output=True, check=False)


class World:
    """A server, its disk and the proxy before it.

    Attributes:
        direct: How to connect without the proxy.
        dsn: How to connect through it.
        calm: How the application connects without the proxy.
        judge: How to read the tenant's rows by SQL, or all.
        tenant: The tenant whose rows all are, if tenants are kept apart.
        is_encrypted: Whether all content is encrypted.
        proxy: The proxy.
        disk: The disk.
    """

    def __init__(
        self, data: Path, direct: str, proxy: Proxy, disk: Disk, tenant: str | None, is_encrypted: bool
    ) -> None:
        self._data, self.direct, self.proxy, self.disk, self.tenant = data, direct, proxy, disk, tenant
        self.is_encrypted = is_encrypted
        self.calm = direct if tenant is None else make_conninfo(direct, user=_ROLE)
        self.judge = direct if tenant is None else make_conninfo(self.calm, options=f"-c pgstate.tenant={tenant}")
        through = {"host": "127.0.0.1", "port": proxy.port, "sslmode": "disable", "gssencmode": "disable"}
        self.dsn = make_conninfo(self.calm, **through)

    def restart(self, mode: str) -> None:
        """Stop the server, `fast` (sessions are ended) or `immediate` (as if it had crashed), and start it again."""
        _restart(self._data, mode)


def encryption_of(is_encrypted: bool) -> Encryption | None:
    """The encryption of each process: by thread, with keys that are asked for again and again."""
    if not is_encrypted:
        return None
    return Encryption(LocalMasterKey(bytes(32)), scope="thread", cache_for=timedelta(seconds=2))


@contextmanager
def open_world(
    directory: Path, *, keeps: bool = False, tenant: str | None = None, is_encrypted: bool = False
) -> Iterator[World]:
    """Start everything on a data directory of its own. What was acknowledged is durable: fsync is on.

    Args:
        directory: Empty; `data` and `disk` are made in it.
        keeps: Whether the data is to be looked at afterwards.
        tenant: The tenant whose rows all are, if tenants are kept apart.
        is_encrypted: Whether all content is encrypted.
    """
    data = directory / "data"
    # The server's user reaches its tablespace by this path.
    directory.chmod(0o711)
    with embedded_server(data, version=_VERSION) as direct:
        with psycopg.connect(direct, autocommit=True) as connection:
            connection.execute("ALTER SYSTEM SET max_connections = 300")
            connection.execute("ALTER SYSTEM SET log_min_messages = 'fatal'")
        disk = Disk(directory / "disk", direct)
        try:
            if disk.is_mounted:
                with psycopg.connect(direct, autocommit=True) as connection:
                    connection.execute("ALTER DATABASE postgres SET default_tablespace = 'small'")
            if tenant is not None:
                with psycopg.connect(direct, autocommit=True) as connection:
                    connection.execute(
                        f"CREATE ROLE {_ROLE} LOGIN; GRANT CREATE ON DATABASE postgres TO {_ROLE}".encode()
                    )
                    shared = "TABLESPACE small" if disk.is_mounted else "TABLE public.full_disk"
                    connection.execute(f"GRANT ALL ON {shared} TO {_ROLE}".encode())
            _restart(data, "fast")
            info = conninfo_to_dict(direct)
            with open_proxy((str(info["host"]), int(info.get("port") or 5432))) as proxy:
                yield World(data, direct, proxy, disk, tenant, is_encrypted)
        finally:
            disk.free()
            EmbeddedServer(data).stop()
            disk.close(keeps=keeps)


def _restart(data: Path, mode: str) -> None:
    server = EmbeddedServer(data)
    server.stop(mode)
    server.start()
