"""Requests to AWS, signed with the operator's credentials (`upstreams.NAME.auth = "aws"`).

A client's signature covers the host and the body, so it is worthless behind a proxy. Signature Version 4 is that of
`botocore`: https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_sigv-signing-elements.html. The credentials are
those that AWS's own tools find: variables, profiles, SSO, the role of a machine. They are renewed before they expire.
"""

from __future__ import annotations

import asyncio
import logging
import re
from typing import Any, Final

import httpx2

from proxy.settings.load import copy_environment
from proxy.upstream.headers import CREDENTIAL_HEADERS, HIDDEN_TEXT, Headers, find_header, remove_headers

log = logging.getLogger(__name__)

BEDROCK_SERVICE: Final = "bedrock"
"""The name of Bedrock in signatures."""
_HOST: Final = re.compile(
    r"(?:^|\.)(?P<name>bedrock-runtime(?:-fips)?|bedrock-mantle|aws-external-anthropic)\.(?P<region>[a-z0-9-]+)\."
)
"""Hosts of Bedrock, of its endpoint in Anthropic's own form, and of Anthropic's platform on AWS, with their region."""
_SIGNED: Final = (b"host", b"content-type")
_LENGTHS: Final = (b"content-length", b"transfer-encoding")
_TOKEN: Final = b"x-amz-security-token"
_SIGNATURE_PARTS: Final = (b"x-amz-date", _TOKEN, b"x-amz-content-sha256")
"""Headers of a client's signature beside Authorization."""
MAX_SIGNED_BYTES: Final = 64 << 20
"""Largest body that is signed, in bytes. A signature covers all of it, so it is held; Bedrock takes 25 MB."""


def find_service(host: str) -> tuple[str, str]:
    """Return (the service's name in signatures, its region or ""), by an upstream's host without the port."""
    found = _HOST.search(host.lower())
    if found is None:
        return BEDROCK_SERVICE, ""
    return BEDROCK_SERVICE if found["name"].startswith("bedrock-runtime") else found["name"], found["region"]


class AwsSigner:
    """Signer of the requests to one upstream. origin: its scheme and host. host: the host without the port."""

    def __init__(self, origin: str, host: str) -> None:
        self._origin = origin
        self._service, self._region = find_service(host)
        self._session: Any = None

    async def sign_request(self, request: httpx2.Request) -> httpx2.Request:
        """Return a request with a signature, and without any other credential. Raises `httpx2.ConnectError` if it
        cannot be signed, and `httpx2.LocalProtocolError` over `MAX_SIGNED_BYTES`."""
        body = await _read_body(request)
        try:
            # Credentials are read from files, or asked of the machine's metadata.
            headers = await asyncio.to_thread(self._sign, request, body)
        except Exception as problem:  # botocore has many kinds: files, SSO, metadata
            log.warning("a request to AWS cannot be signed: %s", problem)
            raise httpx2.ConnectError(f"the request cannot be signed: {_describe_to_client(problem)}") from problem
        if body:
            headers = [*remove_headers(headers, *_LENGTHS), (b"content-length", b"%d" % len(body))]
        extensions = {**request.extensions, HIDDEN_TEXT: find_header(headers, _TOKEN)}
        stream = httpx2.ByteStream(body)
        return httpx2.Request(request.method, request.url, headers=headers, stream=stream, extensions=extensions)

    def find_credentials(self) -> Any:
        """Return botocore's credentials. Raises LookupError if there are none, or no region."""
        from botocore.exceptions import BotoCoreError  # noqa: PLC0415  # an extra, with half a second of imports
        from botocore.session import Session  # noqa: PLC0415

        if self._session is None:
            self._session = Session()
        try:
            credentials = self._session.get_credentials()
            # botocore itself knows the older variable alone.
            named = copy_environment().get("AWS_REGION") or self._session.get_config_variable("region")
        except BotoCoreError as problem:
            raise LookupError(str(problem)) from problem
        if credentials is None:
            raise LookupError("no AWS credentials: set AWS_PROFILE or AWS_ACCESS_KEY_ID, or run where a role is given")
        self._region = self._region or str(named or "")
        if not self._region:
            raise LookupError("no AWS region: set AWS_REGION")
        return credentials

    def _sign(self, request: httpx2.Request, body: bytes) -> Headers:
        """Return the headers of a request, signed."""
        from botocore.auth import SigV4Auth  # noqa: PLC0415
        from botocore.awsrequest import AWSRequest  # noqa: PLC0415

        credentials = self.find_credentials().get_frozen_credentials()
        kept = remove_headers(request.headers.raw, *CREDENTIAL_HEADERS, *_SIGNATURE_PARTS)
        signed = {name.decode(): value for name in _SIGNED if (value := find_header(kept, name))}
        target: bytes = request.extensions["target"]
        made = AWSRequest(method=request.method, url=self._origin + target.decode("ascii"), headers=signed, data=body)
        SigV4Auth(credentials, self._service, self._region).add_auth(made)
        added = [(name.lower().encode(), value.encode()) for name, value in made.headers.items()]
        return kept + [header for header in added if header[0] not in _SIGNED]


def _describe_to_client(problem: Exception) -> str:
    """Words for the client. The output of the operator's own program for credentials is for the log alone."""
    cause = problem.__cause__ or problem
    if type(cause).__name__ != "CredentialRetrievalError":
        return str(problem)
    return f"no credentials from {getattr(cause, 'kwargs', {}).get('provider', 'AWS')}: the proxy's log says why"


async def _read_body(request: httpx2.Request) -> bytes:
    assert isinstance(request.stream, httpx2.AsyncByteStream)  # noqa: S101  # of an asynchronous transport
    parts: list[bytes] = []
    size = 0
    async for part in request.stream:
        size += len(part)
        if size > MAX_SIGNED_BYTES:
            raise httpx2.LocalProtocolError(f"a body that is signed has {MAX_SIGNED_BYTES >> 20} MiB at most")
        parts.append(part)
    return b"".join(parts)
