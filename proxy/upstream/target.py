"""The upstreams that can be asked, and their addresses: the configured upstreams, parsed once at the start."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote, urlsplit

from proxy.errors import ConfigError
from proxy.settings.load import DEMO, Settings

_PATH_SAFE: Final = re.compile(r"[!\"$->@-~]*")
"""Printable ASCII without # and ?, which would end the path."""


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
