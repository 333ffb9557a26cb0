"""The upstreams that can be asked, and an HTTP transport to each: over aiohttp's connector, or httpx2's own.

A `Target` is a configured upstream, parsed once at the start, with its address and its TLS settings. The authorities
that a connection trusts are the system's or those of the target's own bundle. The environment names none: the settings
alone decide which connection carries a request with somebody's key.

aiohttp's connector resolves names, connects (happy eyeballs), encrypts, tunnels through outbound proxies and keeps
connections. It is called directly, because a session adds redirects, cookies and decompression. The answer is read by
`http1.ResponseStream`. The head of that module names what aiohttp's own reader loses.

aiohttp is imported in a worker thread before the first connection. It takes a tenth of a second and 10 MB, which an
idle proxy and its demo upstream do not need.
"""

from __future__ import annotations

import asyncio
import base64
import math
import re
import ssl
import sys
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, unquote, urlsplit

import httpx2

from proxy.dialects.cloud_paths import BEDROCK_PREFIX
from proxy.errors import ConfigError
from proxy.settings.load import Settings
from proxy.settings.model import DEMO, PoolSettings
from proxy.upstream.headers import (
    AZURE_BASE_END,
    GOOGLE_HOST,
    GOOGLE_PATH,
    OLLAMA_PATH,
    Headers,
    choose_key_header,
)
from proxy.upstream.http1 import ResponseStream, write_request_head

if TYPE_CHECKING:
    import aiohttp
    from aiohttp.connector import Connection
    from yarl import URL

    from proxy.upstream.aws_signing import AwsSigner

KEPT_S: Final = 4.0
"""Seconds for which an idle connection is kept. It is less than the 5 s after which uvicorn (so vLLM and LiteLLM) and
Node close theirs. A request that crosses such a close is lost, and must not be sent twice. Clients' own pools do not
keep theirs longer (httpx: 5 s)."""

HAPPY_EYEBALLS_DELAY_S: Final = 0.25
"""Seconds that one address of a host has before the next is tried in parallel (RFC 8305, 5: 250 ms)."""

RECONNECT_DELAY_S: Final = 0.02
"""Seconds before the one further try to connect; a refused connection is reported within 100 ms."""

HTTP_PROXY_SCHEMES: Final = ("http", "https")
"""Schemes of an outbound proxy's URL."""
SOCKS_SCHEMES: Final = ("socks5", "socks5h")

_PATH_SAFE: Final = re.compile(r"[!\"$->@-~]*")
"""Printable ASCII without # and ?, which would end the path."""

BUNDLES: Final = (
    "/etc/ssl/cert.pem", "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem", "/etc/pki/tls/cert.pem",
    "/etc/ssl/certs/ca-certificates.crt", "/etc/ssl/ca-bundle.pem",
)  # fmt: skip
"""Paths of systems' authorities, for a Python with an OpenSSL of another system (truststore's list)."""


_GOOGLE_BASE_END = re.compile(r"/v1\w*(?:/openai)?$")
"""The end of a base URL that Google's own paths already contain."""


_GOOGLE_STABLE_MODELS = re.compile(r"^/v1/models(?=/|$)")
"""Google's stable path of its models, which is also that of OpenAI. Both take their keys in other headers."""


_SHARED_BASE_PATH = re.compile(r"(?:/v1\w*|/openai)?")


@dataclass(frozen=True, slots=True)
class Target:
    """An upstream as configured. `key` is its own key, "" where requests are signed (`auth`), and None if the client's
    Authorization goes on."""

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
    key_header: str = ""
    """The header of the key; "": chosen for each request."""
    auth: str = ""
    """`aws` where requests are signed (`aws_signing`)."""

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
        base without a path leaves it as it is. Google's and Azure's own paths bring the end of such a base, and
        Bedrock's and Ollama's have none, so that of the base is left out."""
        path = "/" + path.lstrip("/")
        if GOOGLE_PATH.search(path):
            path = _GOOGLE_BASE_END.sub("", self.base_path) + path
        elif path.startswith(("/openai/", BEDROCK_PREFIX)):
            path = AZURE_BASE_END.sub("", self.base_path) + path
        elif OLLAMA_PATH.fullmatch(path):
            path = self.base_path.removesuffix("/v1") + path
        elif self.base_path:
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


def find_own_base_paths(base_paths: Iterable[str]) -> tuple[str, ...]:
    """Return the paths of base URLs that are a provider's own (`/api/v1`), the longest first. A version alone is
    none, and Azure's paths begin with `/openai` by themselves."""
    own = {path for path in base_paths if not _SHARED_BASE_PATH.fullmatch(path)}
    return tuple(sorted(own, key=lambda path: (-len(path), path)))


def find_key_header(target: Target, address: Address, path: str) -> bytes:
    """Return the header that carries the target's key, if it has one, in a request to a client's path."""
    host = address.host.decode("ascii").lower()
    if (target.strategy == "gemini" or host == GOOGLE_HOST) and not address.base_path.endswith("/openai"):
        path = _GOOGLE_STABLE_MODELS.sub("/v1beta/models", path)
    return choose_key_header(path, target.key or "", host=host, strategy=target.strategy, key_header=target.key_header)


def read_targets(settings: Settings) -> Iterable[Target]:
    """Yield the configured upstreams as targets."""
    for name, upstream in settings.active_upstreams.items():
        key = upstream.read_api_key()
        yield Target(
            name=name,
            base_url=upstream.base_url,
            strategy=upstream.strategy,
            key=("" if upstream.auth else None) if key is None else key.get_secret_value(),
            models=upstream.models,
            proxy=upstream.find_outbound_proxy(),
            ca_bundle=upstream.ca_bundle,
            policy=upstream.policy,
            transport=upstream.transport,
            client_cert=upstream.client_cert,
            client_key=upstream.client_key,
            key_header=upstream.key_header,
            auth=upstream.auth,
        )


def create_client_context(target: Target) -> ssl.SSLContext:
    """Return the TLS context for a target: the authorities to trust, and the certificate to show. Raises ConfigError
    if one of its files cannot be read."""
    try:
        context = _create_trusting_context(target.ca_bundle or None)
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


def _create_trusting_context(bundle: str | None) -> ssl.SSLContext:
    """Return a context with a bundle's authorities, else the system's; never SSL_CERT_FILE or SSL_CERT_DIR."""
    if bundle is not None:
        return ssl.create_default_context(cafile=bundle)
    if sys.platform == "darwin":
        import truststore  # noqa: PLC0415  # for this system alone

        return truststore.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(*_find_system_authorities())
    return context


def _find_system_authorities() -> tuple[str | None, str | None]:
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


def create_transport(target: Target, limits: PoolSettings) -> httpx2.AsyncBaseTransport:
    """Return the transport that the target's settings name, an `httpx2.AsyncBaseTransport`. Raises ConfigError if the
    settings do not allow one.

    Time limits come with each request, as httpx2 has them (`extensions["timeout"]`), with `total` for the whole answer.
    `extensions["target"]` is the path and query as they are sent.
    """
    if target.base_url == DEMO:
        # The scripts of the demo: no other upstream needs them.
        from proxy.upstream.demo import DemoTransport  # noqa: PLC0415

        return DemoTransport()
    url = urlsplit(target.proxy)
    allowed = HTTP_PROXY_SCHEMES if target.transport == "aiohttp" else HTTP_PROXY_SCHEMES + SOCKS_SCHEMES
    if target.proxy and (url.scheme not in allowed or not url.hostname):
        words = 'an http:// or https:// URL, or a socks5:// one with transport = "httpx2"'
        raise ConfigError(f"upstreams.{target.name}.proxy", "(not shown)", words)
    return AiohttpTransport(target, limits) if target.transport == "aiohttp" else Httpx2Transport(target, limits)


def create_signer(target: Target, address: Address) -> AwsSigner | None:
    """Return the signer of a target's requests; None where they go unsigned."""
    if not target.auth:
        return None
    from proxy.upstream.aws_signing import AwsSigner  # noqa: PLC0415  # few upstreams need it

    return AwsSigner(f"{address.scheme.decode()}://{address.host_header.decode()}", address.host.decode("ascii"))


class AiohttpTransport(httpx2.AsyncBaseTransport):
    """HTTP/1.1 to one target."""

    def __init__(self, target: Target, limits: PoolSettings) -> None:
        address = parse_address(target)
        self._max_idle = limits.keepalive
        """Idle connections that are kept at most."""
        self._slots = asyncio.Semaphore(limits.connections)
        """Limit of connections. The connector's own limit is not used: a task that is cancelled while it gets a
        connection takes the turn of the next task there."""
        self._answers: set[ResponseStream] = set()
        """The answers that are not closed yet."""
        self._timer: asyncio.TimerHandle | None = None
        """The timer for the time limits of all these answers; None if there are none. It stays when an answer ends,
        because to remove it costs a turn of the event loop."""
        self._check_at = math.inf
        """Loop time for which it is set."""
        self._connector: aiohttp.TCPConnector | None = None
        self._origin = f"{address.scheme.decode()}://{address.host_header.decode()}"
        """The origin to connect to: the upstream's, or that of an outbound proxy which reads requests."""
        self._target_prefix = b""
        """The part of a request's first line before the path, for an outbound proxy that reads it."""
        self._proxy_headers: Headers = []
        """Headers for the outbound proxy."""
        self._request_options: dict[str, Any] = {}
        """Further arguments of aiohttp's request."""
        encrypted = address.scheme == b"https"
        if target.proxy:
            through, secret = _split_credentials(target.proxy)
            encrypted = encrypted or through.scheme == "https"
            if address.scheme == b"http":
                self._origin = str(through)
                self._target_prefix = b"http://" + address.host_header
                self._proxy_headers = [(b"proxy-authorization", secret.encode())] if secret else []
            else:
                authority = address.host_header.decode() if address.port else f"{address.host_header.decode()}:443"
                host = {"Host": authority}
                headers = {**host, "User-Agent": "context-proxy"} | ({"Proxy-Authorization": secret} if secret else {})
                self._request_options = {"proxy": through, "proxy_headers": headers, "headers": host}
        self.tls = create_client_context(target) if encrypted else None

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        times: dict[str, float] = request.extensions["timeout"]
        now = asyncio.get_running_loop().time
        deadline = now() + times["total"]
        request_target = self._target_prefix + request.extensions["target"]
        head = write_request_head(request.method, request_target, [*request.headers.raw, *self._proxy_headers])
        connection = await self._acquire_connection(times)
        self._set_timer(min(deadline, now() + times["read"]))
        answer = ResponseStream(connection, request.method, times["read"], deadline, self._take_back)
        self._answers.add(answer)
        try:
            await answer.send(head, request)
            await answer.wait_for_head()
        except BaseException:
            answer.close()
            raise
        return httpx2.Response(answer.status, headers=answer.headers, stream=answer)

    def _set_timer(self, at: float) -> None:
        """Let the time limits be checked at this loop time, or before."""
        if at < self._check_at:
            if self._timer is not None:
                self._timer.cancel()
            self._check_at = at
            self._timer = asyncio.get_running_loop().call_at(at, self._check_time_limits)

    def _check_time_limits(self) -> None:
        self._timer, self._check_at = None, math.inf
        now = asyncio.get_running_loop().time()
        self._set_timer(min((answer.check_time_limits(now) for answer in list(self._answers)), default=math.inf))

    async def aclose(self) -> None:
        """Close every connection, including those in use."""
        for answer in list(self._answers):
            answer.close()
        if self._timer is not None:
            self._timer.cancel()
            self._timer, self._check_at = None, math.inf
        if self._connector is not None:
            await self._connector.close()

    def _take_back(self, answer: ResponseStream, connection: Connection, *, clean: bool) -> None:
        """Keep or close the connection of an answer that has ended."""
        protocol = connection.protocol
        assert protocol is not None  # noqa: S101  # it is given back once
        idle = 0 if self._connector is None else sum(map(len, self._connector._conns.values()))
        if clean and idle < self._max_idle:
            connection.release()
            protocol.set_parser(_IdleParser(), None, protocol.abort)
        else:
            protocol.abort()
            connection.close()
        self._answers.discard(answer)
        self._slots.release()

    async def _acquire_connection(self, times: dict[str, float]) -> Connection:
        """Return a kept or a new connection; if none can be made, the slot is released."""
        try:
            if self._slots.locked():
                async with asyncio.timeout(times["pool"]):
                    await self._slots.acquire()
            else:
                await self._slots.acquire()  # does not wait
        except TimeoutError as error:
            if self._slots.locked():
                raise httpx2.PoolTimeout("all connections are in use") from error
            await self._slots.acquire()  # a slot became free as the time ended
        try:
            try:
                return await self._connect(times["connect"])
            except httpx2.ConnectError:  # nothing was sent yet, so a second try does no harm
                await asyncio.sleep(RECONNECT_DELAY_S)
                return await self._connect(times["connect"])
        except BaseException:
            self._slots.release()
            raise

    async def _connect(self, seconds: float) -> Connection:
        if self._connector is None:
            await asyncio.to_thread(import_module, "aiohttp.connector")
        import aiohttp  # noqa: PLC0415  # it is loaded now: see the head of this module

        if self._connector is None:
            self._connector = self._create_connector()
        try:
            return await self._connector.connect(self._connect_request, [], _make_connect_timeout(seconds))
        except TimeoutError as error:
            raise httpx2.ConnectTimeout(
                f"no connection to {self._connect_request.host}:{self._connect_request.port} in time"
            ) from error
        except aiohttp.ClientHttpProxyError as error:
            raise httpx2.ConnectError(f"the outbound proxy answered with status {error.status}") from error
        except aiohttp.ClientResponseError as error:
            raise httpx2.ConnectError("the outbound proxy answered with no status line") from error
        except aiohttp.ServerDisconnectedError as error:
            raise httpx2.ConnectError("the outbound proxy closed the connection") from error
        except (aiohttp.ClientError, OSError, UnicodeError) as error:  # UnicodeError: an invalid host name
            cause = error.__cause__ or error
            raise httpx2.ConnectError(str(cause) or type(cause).__name__) from error

    def _create_connector(self) -> aiohttp.TCPConnector:
        """Return a connector, and set the request that it connects for. Both need a running loop."""
        import aiohttp  # noqa: PLC0415  # as in _connect
        from yarl import URL  # noqa: PLC0415  # a package of aiohttp's

        loop = asyncio.get_running_loop()
        origin = URL(self._origin, encoded=True)
        self._connect_request = aiohttp.ClientRequest("GET", origin, loop=loop, **self._request_options)
        return aiohttp.TCPConnector(
            limit=0,
            keepalive_timeout=KEPT_S,
            ssl=self.tls or True,
            happy_eyeballs_delay=HAPPY_EYEBALLS_DELAY_S,
            interleave=1,
            use_dns_cache=False,  # it would rotate the order of the addresses with each connection
            resolver=aiohttp.ThreadedResolver(),  # the system's, whatever else is installed
        )


class _IdleParser:
    """Parser of an idle connection. Data closes the connection before the data comes here, because it would be taken
    for the beginning of an answer."""

    def feed_data(self, _: bytes) -> tuple[bool, bytes]:
        return False, b""

    def feed_eof(self) -> None:
        """Ignore the end: nobody waits for it."""


class Httpx2Transport(httpx2.AsyncHTTPTransport):
    """httpx2's own transport: HTTP/2 if the upstream offers it, and SOCKS proxies."""

    def __init__(self, target: Target, limits: PoolSettings) -> None:
        needed = ["h2", "socksio"] if urlsplit(target.proxy).scheme in SOCKS_SCHEMES else ["h2"]
        if not all(map(find_spec, needed)):
            raise ConfigError(
                f"upstreams.{target.name}.transport", "httpx2", 'aiohttp, or pip install "agent-context-proxy[httpx2]"'
            )
        super().__init__(
            verify=create_client_context(target),
            http2=True,
            limits=httpx2.Limits(
                max_connections=limits.connections,
                max_keepalive_connections=limits.keepalive,
                keepalive_expiry=KEPT_S,
            ),
            proxy=target.proxy or None,
            retries=1,
        )

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        deadline = asyncio.get_running_loop().time() + request.extensions["timeout"]["total"]
        try:
            async with asyncio.timeout_at(deadline):
                response = await super().handle_async_request(request)
        except TimeoutError as error:
            raise httpx2.ReadTimeout("the answer took longer than timeouts.total_s") from error
        assert isinstance(response.stream, httpx2.AsyncByteStream)  # noqa: S101  # of an asynchronous transport
        response.stream = _DeadlineBody(response.stream, deadline)
        return response


class _DeadlineBody(httpx2.AsyncByteStream):
    """A body that must end by a deadline, in loop time."""

    def __init__(self, stream: httpx2.AsyncByteStream, deadline: float) -> None:
        self._stream = stream
        self._parts = stream.__aiter__()
        self._deadline = deadline

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        try:
            async with asyncio.timeout_at(self._deadline):
                return await self._parts.__anext__()
        except TimeoutError as error:
            raise httpx2.ReadTimeout("the answer took longer than timeouts.total_s") from error

    async def aclose(self) -> None:
        await self._stream.aclose()


@lru_cache(maxsize=8)
def _make_connect_timeout(seconds: float) -> aiohttp.ClientTimeout:
    import aiohttp  # noqa: PLC0415  # as in AiohttpTransport._connect

    return aiohttp.ClientTimeout(connect=seconds, ceil_threshold=seconds)  # not rounded up to whole seconds


def _split_credentials(proxy: str) -> tuple[URL, str]:
    """Return an outbound proxy's URL without its credentials, and the header value of these, or ""."""
    from yarl import URL  # noqa: PLC0415  # a package of aiohttp's

    url = URL(proxy, encoded=True)
    if not url.raw_user:
        return url.origin(), ""
    secret = f"{unquote(url.raw_user)}:{unquote(url.raw_password or '')}".encode()
    return url.origin(), f"Basic {base64.b64encode(secret).decode()}"
