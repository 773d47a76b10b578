"""Master keys of key management services: AWS KMS, Google Cloud KMS, and the transit engine of Vault.

A data key is sent to the service with a context: its id and its scope. The service refuses to unwrap it with another
context. Permanent refusals, such as "access denied" or "the key is disabled", are not retryable errors; data keys in
memory are then used until `cache_for` ends. Other errors are retryable.
"""

from __future__ import annotations

import base64
import importlib
import json
import os
import re
import threading
from collections.abc import Mapping
from typing import Any, Final

from langgraph_pgstate.errors import ConfigurationError, DataKeyError, KeyUnavailableError

DEFAULT_TIMEOUT: Final = 10.0

_ARN: Final = re.compile(r"(arn:[a-z0-9-]+:kms:)([a-z0-9-]+)(:\d+:key/([\w-]+))")
_GOOGLE_NAME: Final = re.compile(r"projects/[^/?]+/locations/[^/?]+/keyRings/[^/?]+/cryptoKeys/[^/?]+")
_VAULT_NAME: Final = re.compile(r"([^/?][^?]*)/([^/?]+)")
# Temporary errors, although AWS sends these errors with the HTTP status of wrong requests.
_AWS_PASSING: Final = frozenset({"ThrottlingException", "LimitExceededException", "ExpiredTokenException"})
_AWS_CHANGED: Final = frozenset({"InvalidCiphertextException", "IncorrectKeyException"})
_VAULT_CHANGED: Final = ("authentication failed", "invalid ciphertext")


class _ServiceKey:
    """A key of a service, with one client in each process."""

    def __init__(self, id: str, client: Any, timeout: float) -> None:
        self.id, self._given, self._timeout = id, client, timeout
        self._made: tuple[int, Any] | None = None
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id}>"

    def _new_client(self) -> Any:
        raise NotImplementedError

    def _client(self) -> Any:
        if self._given is not None:
            return self._given
        with self._lock:
            # A forked child must not use the parent's connections.
            if self._made is None or self._made[0] != os.getpid():
                self._made = os.getpid(), self._new_client()
            return self._made[1]

    def _refused(self, error: Exception, *, retryable: bool) -> KeyUnavailableError:
        if not retryable:
            # Drop the client, so that a new client reads renewed credentials.
            self._made = None
        return KeyUnavailableError(self.id, f"{type(error).__name__}: {error}", retryable=retryable)


class AwsMasterKey(_ServiceKey):
    """A symmetric key of AWS KMS. It requires the extra `aws`.

    boto3 finds the credentials. `AWS_ENDPOINT_URL_KMS` can name another address of the service.

    Args:
        arn: The key's ARN. An alias is refused, because it can be changed to name another key. A multi-region key is
            the same key in each region.
        client: A client of boto3 to use.
        timeout: Seconds within which the service must respond.

    Raises:
        ConfigurationError: If `arn` is no ARN of a key, or boto3 is not installed.
    """

    def __init__(self, arn: str, *, client: Any = None, timeout: float = DEFAULT_TIMEOUT) -> None:
        match = _ARN.fullmatch(arn)
        if match is None:
            raise ConfigurationError(
                "a master key of AWS KMS must have the form aws-kms://arn:aws:kms:REGION:ACCOUNT:key/ID, "
                f"with the ARN of a key, not of an alias; got {arn!r}"
            )
        _module("boto3", "aws")
        self._arn, self._region = arn, match[2]
        is_multi_region = match[4].startswith("mrk-")
        super().__init__(f"aws-kms://{match[1]}*{match[3]}" if is_multi_region else f"aws-kms://{arn}", client, timeout)

    def _new_client(self) -> Any:
        config = _module("botocore.config", "aws").Config(
            connect_timeout=self._timeout,
            read_timeout=self._timeout,
            retries={"mode": "standard", "total_max_attempts": 2},
        )
        # Make a session, because the default session is not safe to share between threads.
        return _module("boto3", "aws").Session().client("kms", region_name=self._region, config=config)

    def wrap(self, data_key: bytes, context: Mapping[str, str]) -> bytes:
        """Return a data key, encrypted by the service with the context as encryption context."""
        given = {"KeyId": self._arn, "Plaintext": data_key, "EncryptionContext": dict(context)}
        return bytes(self._ask("encrypt", context, given)["CiphertextBlob"])

    def unwrap(self, wrapped: bytes, context: Mapping[str, str]) -> bytes:
        """Return a data key."""
        given = {"KeyId": self._arn, "CiphertextBlob": wrapped, "EncryptionContext": dict(context)}
        return bytes(self._ask("decrypt", context, given)["Plaintext"])

    def _ask(self, operation: str, context: Mapping[str, str], given: dict[str, Any]) -> Any:
        exceptions = _module("botocore.exceptions", "aws")
        try:
            return getattr(self._client(), operation)(**given)
        except exceptions.ClientError as error:
            code = error.response.get("Error", {}).get("Code", "")
            status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
            if code in _AWS_CHANGED:
                raise _changed(context, error) from error
            raise self._refused(error, retryable=code in _AWS_PASSING or status >= 500) from error


class GoogleMasterKey(_ServiceKey):
    """A symmetric key of Google Cloud KMS. It requires the extra `gcp`.

    Google's client finds the credentials.

    Args:
        name: The key's name: `projects/…/locations/…/keyRings/…/cryptoKeys/…`, without a version.
        client: A `KeyManagementServiceClient` to use.
        timeout: Seconds within which the service must respond.

    Raises:
        ConfigurationError: If `name` has another form, or google-cloud-kms is not installed.
    """

    def __init__(self, name: str, *, client: Any = None, timeout: float = DEFAULT_TIMEOUT) -> None:
        if _GOOGLE_NAME.fullmatch(name) is None:
            raise ConfigurationError(
                "a master key of Google Cloud KMS must have the form "
                f"gcp-kms://projects/PROJECT/locations/PLACE/keyRings/RING/cryptoKeys/KEY, got {name!r}"
            )
        _module("google.cloud.kms_v1", "gcp")
        self._name = name
        super().__init__(f"gcp-kms://{name}", client, timeout)

    def _new_client(self) -> Any:
        return _module("google.cloud.kms_v1", "gcp").KeyManagementServiceClient()

    def wrap(self, data_key: bytes, context: Mapping[str, str]) -> bytes:
        """Return a data key, encrypted by the service with the context as additional authenticated data."""
        given = {"name": self._name, "plaintext": data_key, "additional_authenticated_data": _associated(context)}
        return bytes(self._ask("encrypt", context, given).ciphertext)

    def unwrap(self, wrapped: bytes, context: Mapping[str, str]) -> bytes:
        """Return a data key."""
        given = {"name": self._name, "ciphertext": wrapped, "additional_authenticated_data": _associated(context)}
        return bytes(self._ask("decrypt", context, given).plaintext)

    def _ask(self, operation: str, context: Mapping[str, str], given: dict[str, Any]) -> Any:
        errors, retrying = _module("google.api_core.exceptions", "gcp"), _module("google.api_core.retry", "gcp")
        is_passing = retrying.if_exception_type(errors.ServiceUnavailable)
        retry = retrying.Retry(predicate=is_passing, initial=0.1, maximum=1.0, timeout=self._timeout)
        try:
            return getattr(self._client(), operation)(request=given, retry=retry, timeout=self._timeout)
        except errors.InvalidArgument as error:
            if operation == "decrypt":
                raise _changed(context, error) from error
            raise self._refused(error, retryable=False) from error
        except errors.TooManyRequests as error:
            raise self._refused(error, retryable=True) from error
        except errors.ClientError as error:
            raise self._refused(error, retryable=isinstance(error, errors.Aborted | errors.Cancelled)) from error


class VaultMasterKey(_ServiceKey):
    """A key of the transit engine of Vault or OpenBao. It requires the extra `vault`.

    hvac finds the address in `VAULT_ADDR`, and the token in `VAULT_TOKEN` or the file `~/.vault-token`. The token is
    read again after a refusal. `VAULT_NAMESPACE` names the namespace.

    Args:
        name: Mount path of the engine, and the name of the key: `transit/KEY`. The key's type must be an AEAD cipher,
            such as `aes256-gcm96`, the default.
        client: A client of hvac to use.
        timeout: Seconds within which the service must respond.

    Raises:
        ConfigurationError: If `name` has another form, or hvac is not installed.
    """

    def __init__(self, name: str, *, client: Any = None, timeout: float = DEFAULT_TIMEOUT) -> None:
        match = _VAULT_NAME.fullmatch(name)
        if match is None:
            raise ConfigurationError(f"a master key of Vault must have the form vault://transit/KEY, got {name!r}")
        _module("hvac", "vault")
        self._mount, self._name = match[1], match[2]
        super().__init__(f"vault://{name}", client, timeout)

    def _new_client(self) -> Any:
        return _module("hvac", "vault").Client(timeout=self._timeout, namespace=os.environ.get("VAULT_NAMESPACE"))

    def wrap(self, data_key: bytes, context: Mapping[str, str]) -> bytes:
        """Return a data key, encrypted by the service with the context as associated data."""
        found: str = self._ask("encrypt_data", context, plaintext=_base64(data_key))["ciphertext"]
        return found.encode()

    def unwrap(self, wrapped: bytes, context: Mapping[str, str]) -> bytes:
        """Return a data key."""
        given = wrapped.decode("ascii", "replace")
        return base64.b64decode(self._ask("decrypt_data", context, ciphertext=given)["plaintext"])

    def _ask(self, operation: str, context: Mapping[str, str], **given: str) -> Any:
        errors = _module("hvac.exceptions", "vault")
        try:
            transit = self._client().secrets.transit
            answer = getattr(transit, operation)(
                name=self._name, mount_point=self._mount, associated_data=_base64(_associated(context)), **given
            )
        except errors.InvalidRequest as error:
            if any(words in str(error) for words in _VAULT_CHANGED):
                raise _changed(context, error) from error
            raise self._refused(error, retryable=False) from error
        except (errors.Unauthorized, errors.Forbidden, errors.InvalidPath) as error:
            raise self._refused(error, retryable=False) from error
        return answer["data"]


SERVICES: Final[dict[str, type[AwsMasterKey] | type[GoogleMasterKey] | type[VaultMasterKey]]] = {
    "aws-kms": AwsMasterKey,
    "gcp-kms": GoogleMasterKey,
    "vault": VaultMasterKey,
}
"""Classes of master keys of services, by the scheme of the keys' URLs."""


def _module(name: str, extra: str) -> Any:
    """Return a module of a service's client."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ConfigurationError(
            f"a master key of this service requires the package of {name}: pip install 'langgraph-pgstate[{extra}]'"
        ) from error


def _changed(context: Mapping[str, str], error: Exception) -> DataKeyError:
    why = f"its master key did not wrap it, or it was changed: {type(error).__name__}"
    return DataKeyError(context.get("key_id", "?"), why)


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _associated(context: Mapping[str, str]) -> bytes:
    return json.dumps(dict(context), sort_keys=True).encode()
