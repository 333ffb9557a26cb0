"""The upstreams that can be asked, with addresses and TLS settings: the configured ones, parsed once at the start.

The authorities that a connection trusts are the system's or those of the target's own bundle. The environment names
none: the settings alone decide which connection carries a request with somebody's key.
"""

from __future__ import annotations

import re
import ssl
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import quote, urlsplit

import truststore

from proxy.errors import ConfigError
from proxy.settings.load import DEMO, Settings

_PATH_SAFE: Final = re.compile(r"[!\"$->@-~]*")
"""Printable ASCII without # and ?, which would end the path."""

BUNDLES: Final = (
    "/etc/ssl/cert.pem", "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem", "/etc/pki/tls/cert.pem",
    "/etc/ssl/certs/ca-certificates.crt", "/etc/ssl/ca-bundle.pem",
)  # fmt: skip
"""Paths where systems keep their authorities, for a Python whose own OpenSSL was built for another system (truststore's
list)."""


@dataclass(frozen=True, slots=True)
class Target:
    """An upstream as configured. `key` is its own key, None if the client's Authorization goes on."""

    name: str
    base_url: str
    strategy: str
    key: str | None
    models: tuple[str, ...]
    proxy: str
    ca_bundle: str
    policy: str
    transport: str = "aiohttp"
    client_cert: str = ""
    client_key: str = ""

    def __repr__(self) -> str:
        key = None if self.key is None else "***"
        return f"Target(name={self.name!r}, base_url={self.base_url!r}, strategy={self.strategy!r}, key={key})"


@dataclass(frozen=True, slots=True)
class Address:
    """A base URL, split into the parts that go on the wire."""

    scheme: bytes
    host: bytes
    port: int | None
    host_header: bytes
    base_path: str
    """Its path, without a slash at the end; "" for none."""

    def request_target(self, path: str, query: bytes) -> bytes:
        """Return the request target for a client's path. A base with a path replaces the /v1 of the client's path. A
        base without a path leaves it as it is."""
        path = "/" + path.lstrip("/")
        if self.base_path:
            if path == "/v1" or path.startswith("/v1/"):
                path = path[3:]
            path = self.base_path + path
        if not _PATH_SAFE.fullmatch(path):
            path = quote(path, safe="/%:@!$&'()*+,;=~")
        return path.encode("ascii") + (b"?" + query if query else b"")


def parse_address(target: Target) -> Address:
    """Return the address of a target. Raises ConfigError if the base URL is not one."""
    url = urlsplit("http://demo" if target.base_url == DEMO else target.base_url)
    if url.scheme not in ("http", "https") or not url.hostname:
        raise ConfigError(f"upstreams.{target.name}.base_url", target.base_url, "an http:// or https:// URL")
    host = url.hostname.encode("ascii" if url.hostname.isascii() else "idna")
    name = b"[%b]" % host if b":" in host else host
    return Address(
        scheme=url.scheme.encode(),
        host=host,
        port=url.port,
        host_header=name if url.port is None else b"%b:%d" % (name, url.port),
        base_path=re.sub("/{2,}", "/", url.path).rstrip("/"),
    )


def read_targets(settings: Settings) -> Iterable[Target]:
    """Yield the configured upstreams as targets."""
    for name, upstream in settings.active_upstreams.items():
        key = upstream.read_api_key()
        yield Target(
            name=name,
            base_url=upstream.base_url,
            strategy=upstream.strategy,
            key=None if key is None else key.get_secret_value(),
            models=upstream.models,
            proxy=upstream.find_outbound_proxy(),
            ca_bundle=upstream.ca_bundle,
            policy=upstream.policy,
            transport=upstream.transport,
            client_cert=upstream.client_cert,
            client_key=upstream.client_key,
        )


def create_client_context(target: Target) -> ssl.SSLContext:
    """Return the TLS context for a target: the authorities to trust, and the certificate to show. Raises ConfigError
    if one of its files cannot be read."""
    try:
        context = _trusting(target.ca_bundle or None)
    except OSError as error:  # ssl.SSLError is one
        allowed = f"a readable PEM file ({error})"
        raise ConfigError(f"upstreams.{target.name}.ca_bundle", target.ca_bundle, allowed) from error
    if target.client_cert:
        try:
            # An encrypted key is refused: without this, OpenSSL would ask for the password on the terminal.
            context.load_cert_chain(target.client_cert, target.client_key or None, password=lambda: b"")
        except OSError as error:
            allowed = f"a PEM file with a certificate and its key without a password ({error})"
            raise ConfigError(f"upstreams.{target.name}.client_cert", target.client_cert, allowed) from error
    context.set_alpn_protocols(["http/1.1"])
    return context


def _trusting(bundle: str | None) -> ssl.SSLContext:
    """Return a context that trusts a bundle's authorities, else the system's; never those of SSL_CERT_FILE or
    SSL_CERT_DIR."""
    if bundle is not None:
        return ssl.create_default_context(cafile=bundle)
    if sys.platform == "darwin":
        return truststore.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(*_system_authorities())
    return context


def _system_authorities() -> tuple[str | None, str | None]:
    """Return the system's file and folder of authorities. Raises OSError if it has none."""
    built_in = ssl.get_default_verify_paths()  # its `openssl_` ones: the others are the environment's
    file, folder = Path(built_in.openssl_cafile), Path(built_in.openssl_capath)
    hashed = folder.is_dir() and any(re.fullmatch(r"[0-9a-fA-F]{8}\.\d", entry.name) for entry in folder.iterdir())
    if file.is_file() or hashed:
        return str(file) if file.is_file() else None, str(folder) if hashed else None
    found = next((one for one in BUNDLES if Path(one).is_file()), None)
    if found is None:
        raise FileNotFoundError("this system has no authorities; name a file of them")
    return found, None
