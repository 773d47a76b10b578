"""Local servers with the APIs of key management services, for the services' real clients."""

from __future__ import annotations

import base64
import json
import os
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

SLOW_SECONDS = 4.0
TIMEOUT = 1.0


class Service:
    """A service that counts its requests.

    Attributes:
        url: The URL of its key.
        asked: Requests that it has got.
        mood: Kind of its refusals: `denied`, `disabled`, `throttled`, `broken`, `slow`; empty for none.
        aad: The associated data of each request.
    """

    url: str

    def __init__(self) -> None:
        self.asked, self.mood, self.aad = 0, "", list[Any]()
        self._lock = threading.Lock()
        self.released = threading.Event()

    def note(self, aad: Any) -> None:
        with self._lock:
            self.asked += 1
            self.aad.append(aad)
        if self.mood == "slow":
            self.released.wait(SLOW_SECONDS)

    def master(self) -> Any:
        """Return a master key with a time limit of a second."""
        raise NotImplementedError

    def stop(self) -> None:
        """Stop the server."""
        raise NotImplementedError


class _Http(Service):
    def __init__(self) -> None:
        super().__init__()
        service, self.is_open = self, True

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                if not service.is_open:
                    # A kept-alive connection ends without a response.
                    self.close_connection = True
                    return
                status, content, type_ = service.answer(self.path, dict(self.headers), body)
                self.send_response(status)
                self.send_header("Content-Type", type_)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            do_PUT = do_POST

            def log_message(self, *args: Any) -> None:
                pass

            def handle(self) -> None:
                with suppress(OSError):
                    super().handle()

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.address = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()

    def answer(self, path: str, headers: dict[str, str], body: bytes) -> tuple[int, bytes, str]:
        raise NotImplementedError

    def stop(self) -> None:
        if self.is_open:
            self.is_open = False
            self.released.set()
            self.server.shutdown()
            self.server.server_close()


class Aws(_Http):
    """Moto's server of AWS KMS, behind one that counts and refuses."""

    _REFUSALS = {
        "denied": (400, "AccessDeniedException"),
        "disabled": (400, "DisabledException"),
        "throttled": (400, "ThrottlingException"),
        "broken": (500, "KMSInternalException"),
    }

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        import boto3
        from moto.server import ThreadedMotoServer

        self.moto = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
        self.moto.start()
        host, port = self.moto.get_host_and_port()
        self._behind = f"http://{host}:{port}"
        for name, value in (
            ("AWS_ACCESS_KEY_ID", "test"),
            ("AWS_SECRET_ACCESS_KEY", "test"),
            ("AWS_ENDPOINT_URL_KMS", self.address),
            ("AWS_EC2_METADATA_DISABLED", "true"),
        ):
            monkeypatch.setenv(name, value)
        client = boto3.Session().client("kms", region_name="eu-central-1", endpoint_url=self._behind)
        self.arn = client.create_key()["KeyMetadata"]["Arn"]
        self.url = f"aws-kms://{self.arn}"

    def master(self) -> Any:
        from langgraph_pgstate.encryption import AwsMasterKey

        return AwsMasterKey(self.arn, timeout=TIMEOUT)

    def answer(self, path: str, headers: dict[str, str], body: bytes) -> tuple[int, bytes, str]:
        self.note(json.loads(body).get("EncryptionContext"))
        type_ = "application/x-amz-json-1.1"
        if self.mood in self._REFUSALS:
            status, code = self._REFUSALS[self.mood]
            return status, json.dumps({"__type": code, "message": self.mood}).encode(), type_
        given = {name: value for name, value in headers.items() if name.lower() not in ("host", "content-length")}
        request = urllib.request.Request(self._behind + path, body, given, method="POST")
        try:
            with urllib.request.urlopen(request) as response:
                return response.status, response.read(), type_
        except urllib.error.HTTPError as error:
            return error.code, error.read(), type_

    def stop(self) -> None:
        if self.is_open:
            super().stop()
            self.moto.stop()


class Vault(_Http):
    """The transit engine of Vault, as its API documents it: keys of AES-GCM with associated data."""

    _REFUSALS = {
        "denied": (403, "permission denied"),
        "disabled": (400, "encryption key not found"),
        "throttled": (429, "request path rate limit quota exceeded"),
        "broken": (503, "Vault is sealed"),
    }

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self._aead = AESGCM(os.urandom(32))
        self.token = "hvs.test"
        monkeypatch.setenv("VAULT_ADDR", self.address)
        monkeypatch.setenv("VAULT_TOKEN", self.token)
        self.url = "vault://transit/pgstate"

    def master(self) -> Any:
        from langgraph_pgstate.encryption import VaultMasterKey

        return VaultMasterKey("transit/pgstate", timeout=TIMEOUT)

    def answer(self, path: str, headers: dict[str, str], body: bytes) -> tuple[int, bytes, str]:
        given = json.loads(body)
        aad = base64.b64decode(given.get("associated_data", ""))
        self.note(json.loads(aad))
        if self.mood in self._REFUSALS:
            status, why = self._REFUSALS[self.mood]
            return self._say(status, {"errors": [why]})
        if headers.get("X-Vault-Token") != self.token:
            return self._say(403, {"errors": ["permission denied"]})
        if path == "/v1/transit/encrypt/pgstate":
            nonce = os.urandom(12)
            sealed = nonce + self._aead.encrypt(nonce, base64.b64decode(given["plaintext"]), aad)
            return self._say(200, {"data": {"ciphertext": f"vault:v1:{base64.b64encode(sealed).decode()}"}})
        if path == "/v1/transit/decrypt/pgstate":
            version, _, text = given["ciphertext"].rpartition(":")
            if version != "vault:v1":
                return self._say(400, {"errors": ["invalid ciphertext: no prefix"]})
            sealed = base64.b64decode(text)
            try:
                plain = self._aead.decrypt(sealed[:12], sealed[12:], aad)
            except InvalidTag:
                return self._say(400, {"errors": ["cipher: message authentication failed"]})
            return self._say(200, {"data": {"plaintext": base64.b64encode(plain).decode()}})
        return self._say(404, {"errors": []})

    def _say(self, status: int, content: Any) -> tuple[int, bytes, str]:
        return status, json.dumps(content).encode(), "application/json"


class Google(Service):
    """A gRPC server of the public interface of Cloud KMS."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        import grpc
        from google.cloud.kms_v1.types import service as types

        self._aead, codes = AESGCM(os.urandom(32)), grpc.StatusCode
        self.name = "projects/p/locations/global/keyRings/r/cryptoKeys/k"
        self.url = f"gcp-kms://{self.name}"
        refusals = {
            "denied": codes.PERMISSION_DENIED,
            "disabled": codes.FAILED_PRECONDITION,
            "throttled": codes.RESOURCE_EXHAUSTED,
            "broken": codes.INTERNAL,
        }

        def begin(request: Any, context: Any) -> bytes:
            aad: bytes = request.additional_authenticated_data
            self.note(json.loads(aad))
            if self.mood in refusals:
                context.abort(refusals[self.mood], self.mood)
            if request.name != self.name:
                context.abort(codes.NOT_FOUND, "CryptoKey not found")
            return aad

        def encrypt(request: Any, context: Any) -> Any:
            aad, nonce = begin(request, context), os.urandom(12)
            sealed = nonce + self._aead.encrypt(nonce, request.plaintext, aad)
            return types.EncryptResponse(name=f"{request.name}/cryptoKeyVersions/1", ciphertext=sealed)

        def decrypt(request: Any, context: Any) -> Any:
            aad, sealed = begin(request, context), request.ciphertext
            try:
                return types.DecryptResponse(plaintext=self._aead.decrypt(sealed[:12], sealed[12:], aad))
            except InvalidTag:
                context.abort(codes.INVALID_ARGUMENT, "Decryption failed")

        def method(function: Any, request: Any, response: Any) -> Any:
            return grpc.unary_unary_rpc_method_handler(function, request.deserialize, response.serialize)

        methods = {
            "Encrypt": method(encrypt, types.EncryptRequest, types.EncryptResponse),
            "Decrypt": method(decrypt, types.DecryptRequest, types.DecryptResponse),
        }
        self.server = grpc.server(ThreadPoolExecutor(8))
        self.server.add_generic_rpc_handlers(
            [grpc.method_handlers_generic_handler("google.cloud.kms.v1.KeyManagementService", methods)]
        )
        self.address = f"127.0.0.1:{self.server.add_insecure_port('127.0.0.1:0')}"
        self.server.start()

    def master(self) -> Any:
        import grpc
        from google.cloud import kms_v1
        from google.cloud.kms_v1.services.key_management_service.transports import KeyManagementServiceGrpcTransport

        from langgraph_pgstate.encryption import GoogleMasterKey

        transport = KeyManagementServiceGrpcTransport(channel=grpc.insecure_channel(self.address))
        client = kms_v1.KeyManagementServiceClient(transport=transport)
        return GoogleMasterKey(self.name, client=client, timeout=TIMEOUT)

    def stop(self) -> None:
        self.released.set()
        self.server.stop(None).wait()


SERVICES = {"aws-kms": Aws, "gcp-kms": Google, "vault": Vault}


@contextmanager
def service(name: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    """Run one of them."""
    found = SERVICES[name](monkeypatch)
    try:
        yield found
    finally:
        found.stop()


__all__ = ["SERVICES", "Service", "service"]
