"""How a target is reached: straight or through its own outbound proxy, in the clear or with TLS.

Never the environment's proxy or authorities: which way a request with somebody's key goes is said in the settings.
"""

from __future__ import annotations

import asyncio
import base64
import ipaddress
import re
import socket
import ssl
import sys
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

import truststore
from aiohappyeyeballs import start_connection

from proxy.errors import ConfigError
from proxy.upstream.connection import Connection, Lost, Slow
from proxy.upstream.framing import Malformed, write_head
from proxy.upstream.headers import Headers
from proxy.upstream.target import Address, Target, locate

PORTS: Final = {b"http": 80, b"https": 443}

BUNDLES: Final = (
    "/etc/ssl/cert.pem", "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem", "/etc/pki/tls/cert.pem",
    "/etc/ssl/certs/ca-certificates.crt", "/etc/ssl/ca-bundle.pem",
)  # fmt: skip
"""Where systems keep their authorities, for a Python whose own OpenSSL was built for another system (truststore's
list)."""


ATTEMPT_S: Final = 0.25
"""How long one address of a host has before the next is tried beside it (RFC 8305, 5: 250 ms)."""


class Unconnected(Exception):
    """No connection came about, so nothing has been sent."""


class Way:
    """The way to a target. connect_s: for the connection, with its handshakes.

    Raises ConfigError for a bundle that cannot be read and for a proxy that is none.
    """

    def __init__(self, target: Target, connect_s: float) -> None:
        self.address: Address = locate(target)
        self.before = b""
        """What stands before the path in a request's first line, where an outbound proxy reads it."""
        self.headers: Headers = []
        """What is said to the outbound proxy."""
        self._connect_s = connect_s
        self._host = self.address.host.decode()
        self._port = self.address.port or PORTS[self.address.scheme]
        self._tls = _trusted(target) if self.address.scheme == b"https" else None
        self._tunnel = b""
        self._outer: ssl.SSLContext | None = None
        self._first = (self._host, self._port)
        if target.proxy:
            self._through(target)

    def _through(self, target: Target) -> None:
        url = urlsplit(target.proxy)
        if url.scheme not in ("http", "https") or not url.hostname:
            raise ConfigError(f"upstreams.{target.name}.proxy", "(not shown)", "an http:// or https:// URL")
        self._first = (url.hostname, url.port or PORTS[url.scheme.encode()])
        self._outer = _authorities(None) if url.scheme == "https" else None
        said: Headers = []
        if url.username:
            secret = f"{unquote(url.username)}:{unquote(url.password or '')}".encode()
            said = [(b"proxy-authorization", b"Basic " + base64.b64encode(secret))]
        if self._tls is None:
            self.before = b"http://" + self.address.host_header
            self.headers = said
        else:
            host = self.address.host
            where = b"%b:%d" % (b"[%b]" % host if b":" in host else host, self._port)
            self._tunnel = write_head("CONNECT", where, [(b"host", where), *said])

    async def connect(self, connection: Connection) -> None:
        """Raises Slow, or Unconnected with the system's words. Whoever asked closes it then."""
        host, port = self._first
        tls = self._outer if self._tunnel or self.before else self._tls
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._connect_s):
                name = host if tls is not None else None
                if _is_address(host):
                    await loop.create_connection(lambda: connection, host, port, ssl=tls, server_hostname=name)
                else:
                    found = await _reached(host, port)
                    try:
                        await loop.create_connection(lambda: connection, sock=found, ssl=tls, server_hostname=name)
                    except BaseException:
                        found.close()
                        raise
                if self._tunnel:
                    await self._dig(connection)
        except TimeoutError as error:
            raise Slow(f"no connection to {host}:{port} in time") from error
        except (OSError, UnicodeError, Lost, Malformed) as error:  # UnicodeError: a host name that cannot be one
            raise Unconnected(str(error) or type(error).__name__) from error

    async def _dig(self, connection: Connection) -> None:
        """Through the outbound proxy, which then only sees what is encrypted."""
        assert self._tls is not None  # noqa: S101  # else there is no tunnel
        deadline = asyncio.get_running_loop().time() + self._connect_s
        trip = connection.begin("CONNECT", self._tunnel, None, self._connect_s, deadline)
        await trip.head()
        if not 200 <= trip.status < 300:
            raise Unconnected(f"the outbound proxy answered with status {trip.status}")
        if not trip.keeps:
            raise Unconnected("the outbound proxy said more than that there is a tunnel")
        await connection.encrypt(self._tls, self._host)


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


async def _reached(host: str, port: int) -> socket.socket:
    """A connection to whichever of a host's addresses answers first, IPv6 and IPv4 in turns (RFC 8305).

    An address that swallows packets costs `ATTEMPT_S`, not the whole time for a connection. Raises OSError.
    """
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP)
    return await start_connection(found, happy_eyeballs_delay=ATTEMPT_S, interleave=1, loop=loop)


def _trusted(target: Target) -> ssl.SSLContext:
    try:
        return _authorities(target.ca_bundle or None)
    except OSError as error:  # ssl.SSLError is one
        allowed = f"a readable PEM file ({error})"
        raise ConfigError(f"upstreams.{target.name}.ca_bundle", target.ca_bundle, allowed) from error


def _authorities(bundle: str | None) -> ssl.SSLContext:
    """Trusts a bundle's authorities, else the system's; never those that SSL_CERT_FILE or SSL_CERT_DIR name."""
    if bundle is not None:
        context = ssl.create_default_context(cafile=bundle)
    elif sys.platform == "darwin":
        context = truststore.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    else:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(*_systems())
    context.set_alpn_protocols(["http/1.1"])
    return context


def _systems() -> tuple[str | None, str | None]:
    """The system's file and folder of authorities. Raises OSError where it has none."""
    built_in = ssl.get_default_verify_paths()  # its `openssl_` ones: the others are the environment's
    file, folder = Path(built_in.openssl_cafile), Path(built_in.openssl_capath)
    hashed = folder.is_dir() and any(re.fullmatch(r"[0-9a-fA-F]{8}\.\d", entry.name) for entry in folder.iterdir())
    if file.is_file() or hashed:
        return str(file) if file.is_file() else None, str(folder) if hashed else None
    found = next((one for one in BUNDLES if Path(one).is_file()), None)
    if found is None:
        raise FileNotFoundError("this system has no authorities; name a file of them")
    return found, None
