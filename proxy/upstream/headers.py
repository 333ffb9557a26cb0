"""Rules for what goes on in both directions: end-to-end headers in their order, and no key of the operator.

Headers of one connection only must not travel further (RFC 9110, 7.6.1: the named ones, and those that `Connection`
lists). A `Transfer-Encoding` or `Content-Length` of the other side would describe bytes that this side does not send.
The proxy's own credentials and headers are removed in both directions as well. Headers are plain lists of pairs,
because a dict loses order and duplicates.

An upstream's error may repeat the operator's key to a client. A `Redactor` removes it from a body.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Collection, Iterable, Sequence
from functools import lru_cache
from typing import Final
from urllib.parse import quote, unquote

from proxy.dialects.cloud_paths import BEDROCK_PREFIX

Headers = list[tuple[bytes, bytes]]

HOP_BY_HOP: Final = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
"""RFC 9110 7.6.1 and RFC 2616 13.5.1: about one connection, never about the message."""

NOT_FORWARDED: Final = HOP_BY_HOP | {b"host", b"content-length", b"expect"}
"""Also dropped from a request: Host names the proxy, the length is set again, Expect is answered."""

CREDENTIAL_HEADERS: Final = frozenset({b"authorization", b"api-key", b"x-api-key", b"x-goog-api-key"})
"""Headers with a credential for the upstream. A client may send a key of the proxy in one of them."""

PROXY_PREFIX: Final = b"x-context-"
"""Prefix of headers between the client and the proxy; x-context-key is a credential of the proxy."""

OVERRIDE_HEADERS: Final = frozenset(
    {
        b"cookie",
        b"forwarded",
        b"openai-organization",
        b"openai-project",
        b"x-forwarded-host",
        b"x-forwarded-prefix",
        b"x-forwarded-uri",
        b"x-goog-user-project",
        b"x-http-method",
        b"x-http-method-override",
        b"x-method-override",
        b"x-original-uri",
        b"x-original-url",
        b"x-rewrite-url",
    }
)
"""Headers by which a client chooses method, path or account. With the proxy's own key they would choose where that key
is used."""

OVERRIDE_PARAMETERS: Final = frozenset(
    {
        "accesstoken", "apikey", "bearertoken", "httpheaders", "httpmethod", "key", "oauthtoken", "subscriptionkey",
        "userproject",
    }
)  # fmt: skip
"""Names of a query, as their letters alone, by which a client brings a credential, or chooses method or account."""

AUTHORIZATION: Final = b"authorization"
ANTHROPIC_KEY: Final = b"x-api-key"
AZURE_KEY: Final = b"api-key"
GOOGLE_KEY: Final = b"x-goog-api-key"
"""Headers of a key for Messages at Anthropic, for Azure OpenAI and for Gemini; Authorization holds tokens there."""
TOKEN_PREFIXES: Final = ("sk-ant-oat", "eyJ", "ya29.")
"""Beginnings of OAuth tokens: Anthropic's, those of Entra ID (as all JSON Web Tokens), Google's."""
ANTHROPIC_HOST: Final = "api.anthropic.com"
GOOGLE_HOST: Final = "generativelanguage.googleapis.com"
AZURE_DOMAINS: Final = (".azure.com", ".azure.us", ".azure.cn")
GOOGLE_PATH: Final = re.compile(
    r"/v1beta\w*/(?:models|tunedModels|cachedContents|files)(?:[/:]|$)"
    r"|:(?:generateContent|streamGenerateContent|countTokens)/?$"
)
"""Paths in Google's own form. Its OpenAI-compatible ones take the key as all others do."""
AZURE_BASE_END: Final = re.compile(r"(?:/openai)?(?:/v1)?$")
"""The end of a base URL, where Azure's own paths (`/openai/deployments/...`) follow."""
OLLAMA_PATH: Final = re.compile(
    r"/api/(?:blobs/[^/]+|chat|copy|create|delete|embed|embeddings|generate|ps|pull|push|show|tags|version)"
)
"""Whole paths of Ollama's own API, https://docs.ollama.com/api. The admin API has no path of these."""

HIDDEN_TEXT: Final = "hidden_text"
"""The extension of a signed request, and of its response, with the token of the session whose credentials signed it."""
MIN_SECRET_LENGTH: Final = 8
"""Characters below which a key ("none", "test") is not a secret: it would remove unrelated headers."""


def choose_key_header(path: str, key: str, *, host: str, strategy: str, key_header: str = "") -> bytes:
    """Return the header in which an upstream takes a key of the operator's. path: of the request, as the client sent
    it. host: without its port. strategy, key_header: those of the upstream's settings.

    Azure's older paths take only tokens in Authorization. So did Anthropic's Messages, until its SDKs of October 2026
    began to send keys there; `x-api-key` is in its documentation before and after. Its form of chat completions takes a
    key in Authorization.
    """
    if key_header:
        return key_header.encode()
    if key.startswith(TOKEN_PREFIXES) or path.startswith(BEDROCK_PREFIX):
        return AUTHORIZATION
    if GOOGLE_PATH.search(path):
        return GOOGLE_KEY
    if strategy == "anthropic" or host == ANTHROPIC_HOST:
        return AUTHORIZATION if path.rstrip("/").endswith("/chat/completions") else ANTHROPIC_KEY
    if host.endswith(AZURE_DOMAINS):
        return ANTHROPIC_KEY if "/messages" in path else AZURE_KEY  # Messages: Claude in Foundry
    return AUTHORIZATION


def write_credential(key_header: bytes, key: str) -> bytes:
    """Return the value of the header that carries a key."""
    return (b"Bearer " if key_header == AUTHORIZATION else b"") + key.encode()


def build_request_headers(
    headers: Iterable[tuple[bytes, bytes]],
    *,
    host: bytes,
    key: str | None = None,
    key_header: bytes = AUTHORIZATION,
    length: int | None = None,
    chunked: bool = False,
    identity: bool = False,
) -> Headers:
    """Return the headers for the upstream.

    `key` replaces the client's credentials. It stands in `key_header`. The other headers with a credential are dropped,
    and those that would steer its use (OVERRIDE_HEADERS). `length` is the body's, in bytes. `chunked`: the length is
    not known. `identity` asks for an uncompressed answer, because the proxy will read it.
    """
    received = [(name.lower(), value) for name, value in headers]
    dropped, credential = NOT_FORWARDED, None
    if key is not None:
        dropped = dropped | OVERRIDE_HEADERS | (CREDENTIAL_HEADERS - {key_header})
        credential = write_credential(key_header, key)
    dropped = _add_listed(dropped, received)
    out: Headers = [(b"host", host)]
    accept = b"identity" if identity else None
    for header in received:
        name = header[0]
        if name == key_header and key is not None:
            if credential is not None:
                out.append((name, credential))
            credential = None  # once, at the position of the first
        elif name == b"accept-encoding" and identity:
            if accept is not None:
                out.append((name, accept))
            accept = None
        elif name not in dropped and not name.startswith(PROXY_PREFIX):
            out.append(header)
    if credential is not None:
        out.append((key_header, credential))
    if accept is not None:
        out.append((b"accept-encoding", accept))
    if chunked:
        out.append((b"transfer-encoding", b"chunked"))
    elif length is not None:
        out.append((b"content-length", b"%d" % length))
    return out


def remove_overrides(query: bytes) -> bytes:
    """Return the query of a request that has a key of the operator's: without a credential of the client, and without
    what would steer the use of the key (OVERRIDE_PARAMETERS)."""
    if not query:
        return query
    pairs = query.split(b"&")
    kept = [pair for pair in pairs if OVERRIDE_PARAMETERS.isdisjoint(_read_parameter_names(pair))]
    return query if len(kept) == len(pairs) else b"&".join(kept)


def _read_parameter_names(pair: bytes) -> Iterable[str]:
    """The letters of the names in a part of a query. Some servers take `;` for the beginning of another name."""
    for part in pair.split(b";"):
        name = unquote(part.partition(b"=")[0].decode("latin-1"))
        yield "".join(filter(str.isalpha, name)).lower()


def build_response_headers(headers: Iterable[tuple[bytes, bytes]], key: str | None = None) -> Headers:
    """Return the headers for the client: names in lower case, as ASGI requires. A header that repeats the proxy's
    `key`, encoded or not, is dropped. A header with the proxy's own prefix (PROXY_PREFIX) is dropped too.

    Content-Length stays if it is true of the bytes that follow. Code that changes these bytes removes it
    (`remove_headers`)."""
    received = [(name.lower(), value) for name, value in headers]
    dropped = _add_listed(HOP_BY_HOP, received)
    if b"transfer-encoding" in [name for name, _ in received]:
        dropped = dropped | {b"content-length"}  # RFC 9112 6.3: Transfer-Encoding overrides it
    kept = [header for header in received if header[0] not in dropped and not header[0].startswith(PROXY_PREFIX)]
    if key is None or len(key) < MIN_SECRET_LENGTH:
        return kept
    forms = list_key_encodings(key)
    return [header for header in kept if not any(form in header[1] for form in forms)]


def remove_headers(headers: Iterable[tuple[bytes, bytes]], *names: bytes) -> Headers:
    """Return all headers except these (in lower case)."""
    return [(name, value) for name, value in headers if name.lower() not in names]


def find_header(headers: Iterable[tuple[bytes, bytes]], name: bytes) -> str:
    """Return the first value of a header (its name in lower case), decoded and stripped; "" if there is none."""
    for key, value in headers:
        if key.lower() == name:
            return value.decode("latin-1").strip()
    return ""


def _add_listed(names: frozenset[bytes], headers: Collection[tuple[bytes, bytes]]) -> frozenset[bytes]:
    """Return these names and those that the Connection headers list, in lower case."""
    listed = [value for name, value in headers if name == b"connection"]
    if not listed or listed in _KEEP_ALIVE_ALONE:
        return names
    return names | {option.strip().lower() for value in listed for option in value.split(b",") if option.strip()}


_KEEP_ALIVE_ALONE: Final = ([b"keep-alive"], [b"Keep-Alive"])
"""Connection headers that list only names that are always dropped."""


@lru_cache(maxsize=64)
def list_key_encodings(key: str) -> tuple[bytes, ...]:
    """Return the key as it is, percent-encoded in each usual way, and in base64 of both alphabets without its padding.
    Each form occurs once, the longest first."""
    raw = key.encode()
    quoted = [quote(key, safe=safe) for safe in ("", "/", "/+=")]
    quoted += [re.sub("%[0-9A-F]{2}", lambda found: found[0].lower(), text) for text in quoted]
    encoded = [base64.b64encode(raw).rstrip(b"="), base64.urlsafe_b64encode(raw).rstrip(b"=")]
    return tuple(sorted({raw, *(text.encode() for text in quoted), *encoded}, key=lambda form: (-len(form), form)))


class Redactor:
    """Redactor of a secret in a body that passes in pieces. `feed` each piece, then `end`.

    The key is found as it is, percent-encoded, and in base64 by itself. It is replaced by the same number of asterisks,
    so that a Content-Length stays true. Bytes that may begin the key are held back until the next piece decides.
    """

    __slots__ = ("_forms", "_held", "_pattern")

    def __init__(self, forms: Sequence[bytes]) -> None:
        """Prepare the search. forms: the texts to redact, the longest first."""
        self._forms = forms
        self._pattern = re.compile(b"|".join(map(re.escape, forms)))
        self._held = b""

    def feed(self, piece: bytes) -> bytes:
        """Take a piece. Return the bytes that may go on now."""
        redacted = self._redact(self._held + piece)
        keep = 0
        for form in self._forms:
            keep = max(keep, next((n for n in range(len(form) - 1, keep, -1) if redacted.endswith(form[:n])), 0))
        self._held = redacted[len(redacted) - keep :]
        return redacted[: len(redacted) - keep]

    def end(self) -> bytes:
        """Return the rest."""
        rest, self._held = self._held, b""
        return rest

    def _redact(self, text: bytes) -> bytes:
        return self._pattern.sub(lambda found: b"*" * len(found[0]), text)
