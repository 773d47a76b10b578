"""Places for the objects of archives: a folder, the memory of this process, or a bucket of S3, Google Cloud or Azure.

All methods block. An object is stored completely or not at all.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from glob import escape
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar
from urllib.parse import unquote, urlsplit

from langgraph_pgstate.arguments import identifier
from langgraph_pgstate.errors import ArchiveError, ArchiveUnavailableError, ConfigurationError

T = TypeVar("T")

_BUCKETS: Final = ("s3", "gs", "az")
_SCHEMES: Final = ("file", "memory", *_BUCKETS)


class Objects(Protocol):
    """A place that stores the objects of archives by name, below one URL."""

    @property
    def url(self) -> str:
        """The URL."""
        ...

    def put(self, name: str, data: bytes) -> None:
        """Store an object, or replace the object of this name.

        Raises:
            ArchiveUnavailableError: If the object could not be stored.
        """
        ...

    def get(self, name: str) -> bytes:
        """Return an object.

        Raises:
            ArchiveError: If the object does not exist.
            ArchiveUnavailableError: If the object could not be read.
        """
        ...

    def get_range(self, name: str, start: int, length: int) -> bytes:
        """Return `length` bytes of an object from `start`, or fewer at its end. Raises the errors of `get`."""
        ...

    def delete(self, name: str) -> None:
        """Delete an object if it exists. Raises the errors of `put`."""
        ...

    def list(self, ending: str) -> list[str]:
        """Return the sorted names of objects that end with a text. Raises the errors of `put`."""
        ...


def check_url(url: str) -> str:
    """Check the URL of a place for objects, and return it without a slash at its end."""
    text = identifier("url", url).rstrip("/")
    try:
        parts = urlsplit(text)
    except ValueError as error:
        raise ConfigurationError(f"the URL of an archive must be a URL, got {url!r}: {error}") from error
    if parts.scheme not in _SCHEMES or parts.query or parts.fragment or parts.password:
        raise ConfigurationError(
            "the URL of an archive must have the form s3://bucket/prefix, gs://bucket/prefix, az://container/prefix "
            f"or file:///folder, without a password, got {url!r}"
        )
    if parts.scheme == "file" and (
        parts.netloc not in ("", "localhost") or not Path(unquote(parts.path)).is_absolute()
    ):
        raise ConfigurationError(f"the URL of a folder must have the form file:///absolute/path, got {url!r}")
    if "\0" in unquote(text):
        raise ConfigurationError(f"the URL of an archive must not have NUL, got {url!r}")
    if {".", ".."} & {*unquote(parts.path).split("/")}:
        raise ConfigurationError(f"the URL of an archive must not have the segments . and .., got {url!r}")
    if parts.scheme != "file" and not parts.netloc:
        raise ConfigurationError(f"the URL of an archive must name a bucket, got {url!r}")
    return text


def open_objects(url: str) -> Objects:
    """Return the place for objects at a URL. Only its methods connect to it.

    The credentials of buckets come from the environment variables that the providers' own tools use: AWS_ACCESS_KEY_ID,
    AWS_REGION, AWS_ENDPOINT_URL, GOOGLE_APPLICATION_CREDENTIALS, AZURE_STORAGE_ACCOUNT_NAME and so on.

    Raises:
        ConfigurationError: If the URL is invalid, or requires the extra `archive`, which is not installed.
    """
    text = check_url(url)
    parts = urlsplit(text)
    if parts.scheme == "file":
        return _Folder(text, Path(unquote(parts.path)))
    if parts.scheme == "memory":
        return _MEMORIES.setdefault(text, _Memory(text))
    return _Bucket(text)


class _Folder:
    def __init__(self, url: str, path: Path) -> None:
        self.url, self._path = url, path

    def put(self, name: str, data: bytes) -> None:
        try:
            self._put(self._path / name, data)
        except OSError as error:
            parent, why = self._path.parent, str(error)
            if isinstance(error, FileNotFoundError) and not os.path.exists(parent):
                why = f"the folder {parent} does not exist"
            raise ArchiveUnavailableError(f"{self.url}/{name}", f"cannot be stored: {why}") from error

    def get(self, name: str) -> bytes:
        return self._call(name, Path.read_bytes)

    def get_range(self, name: str, start: int, length: int) -> bytes:
        return self._call(name, _read_range, start, length)

    def delete(self, name: str) -> None:
        self._call(name, self._delete)

    def list(self, ending: str) -> list[str]:
        def names(path: Path) -> list[str]:
            return sorted(one.name for one in path.iterdir() if one.name.endswith(ending)) if path.exists() else []

        return self._call("", names)

    def _delete(self, path: Path) -> None:
        """Delete a file, and its temporary files that killed processes have left."""
        for one in (path, *path.parent.glob(f".{escape(path.name)}.*.part")):
            one.unlink(missing_ok=True)

    def _put(self, path: Path, data: bytes) -> None:
        """Store a file so that it survives a crash of the machine."""
        # Do not make the parent of the folder. A missing parent may mean that a disk is not mounted.
        self._path.mkdir(exist_ok=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
        try:
            with open(descriptor, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            Path(temporary).replace(path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def _call(self, name: str, function: Callable[..., T], *args: Any) -> T:
        try:
            return function(self._path / name, *args)
        except FileNotFoundError as error:
            raise ArchiveError(f"{self.url}/{name}", "does not exist") from error
        except OSError as error:
            raise ArchiveUnavailableError(f"{self.url}/{name}", f"cannot be reached: {error}") from error


def _read_range(path: Path, start: int, length: int) -> bytes:
    with path.open("rb") as file:
        # A forged manifest may name any position and length. A read of that length would exhaust the memory.
        rest = max(0, os.fstat(file.fileno()).st_size - start)
        file.seek(start if rest else 0)
        return file.read(min(length, rest))


class _Memory:
    def __init__(self, url: str) -> None:
        self.url, self._found = url, dict[str, bytes]()

    def put(self, name: str, data: bytes) -> None:
        self._found[name] = bytes(data)

    def get(self, name: str) -> bytes:
        if name not in self._found:
            raise ArchiveError(f"{self.url}/{name}", "does not exist")
        return self._found[name]

    def get_range(self, name: str, start: int, length: int) -> bytes:
        return self.get(name)[start : start + length]

    def delete(self, name: str) -> None:
        self._found.pop(name, None)

    def list(self, ending: str) -> list[str]:
        return sorted(name for name in self._found if name.endswith(ending))


_MEMORIES: Final[dict[str, _Memory]] = {}


class _Bucket:
    def __init__(self, url: str) -> None:
        try:
            import obstore
            from obstore.store import from_url
        except ImportError as error:
            raise ConfigurationError(
                f"archives in buckets require the extra `archive`: pip install 'langgraph-pgstate[archive]' ({error})"
            ) from error
        self.url, self._obstore = url, obstore
        try:
            self._store: Any = from_url(url)
        except Exception as error:
            raise ConfigurationError(f"{url} cannot be opened: {error}") from error

    def put(self, name: str, data: bytes) -> None:
        self._call(name, lambda: self._obstore.put(self._store, name, data))

    def get(self, name: str) -> bytes:
        return self._call(name, lambda: bytes(self._obstore.get(self._store, name).bytes()))

    def get_range(self, name: str, start: int, length: int) -> bytes:
        return self._call(name, lambda: bytes(self._obstore.get_range(self._store, name, start=start, length=length)))

    def delete(self, name: str) -> None:
        try:
            self._call(name, lambda: self._obstore.delete(self._store, name))
        except ArchiveUnavailableError:
            raise
        except ArchiveError:
            # The object is missing already. Some servers report a missing object as an error.
            return

    def list(self, ending: str) -> list[str]:
        def names() -> list[str]:
            return [str(one["path"]) for page in self._obstore.list(self._store) for one in page]

        return sorted(name for name in self._call("", names) if name.endswith(ending) and "/" not in name)

    def _call(self, name: str, function: Callable[[], T]) -> T:
        try:
            return function()
        except FileNotFoundError as error:
            raise ArchiveError(f"{self.url}/{name}", "does not exist") from error
        except Exception as error:
            reason = str(error).partition("\n")[0]
            raise ArchiveUnavailableError(f"{self.url}/{name}", f"cannot be reached: {reason}") from error
