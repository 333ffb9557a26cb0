"""Message identity: a canonical digest of each message, and a hash chain over the digests.

Agents send their whole history with every request. They send the same message in other bytes: a string or a list of
text parts, null or an empty string, arguments with other spaces. The digest ignores these differences, so the longest
known prefix of a history identifies the conversation. System messages are outside the chain: dates and
working directories change in them from request to request.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence

import msgspec

from proxy.chat.json_spans import decode_embedded
from proxy.chat.message import Call, Message

DIGEST_BYTES = 16
"""Bytes of a digest, a chain key and a form. With 128 bits, neither chance nor search finds a collision."""

_WORDS = re.compile(r"[^\W\d_]+")
_DAYS = "monday tuesday wednesday thursday friday saturday sunday mon tue wed thu fri sat sun am pm st nd rd th"
_MONTHS = (
    "january february march april may june july august september october november december "
    "jan feb mar apr jun jul aug sep sept oct nov dec"
)
_DATES = frozenset((*_DAYS.split(), *_MONTHS.split()))
"""Words that change in a system prompt from one day to the next."""

_LETTERS = "abcdefghijklmnopqrstuvwxyz234567"
BASE32_PAIRS = [one + other for one in _LETTERS for other in _LETTERS]
"""All pairs of base32 characters, each for ten bits: a table, since ids are made for every result of a prompt."""


def compute_form(raw: bytes) -> bytes:
    """The form: a 16-byte hash of these exact bytes."""
    return hashlib.blake2b(raw, digest_size=DIGEST_BYTES).digest()


def digest_message(role: str, text: str, calls: Sequence[Call], call_id: str | None, media: Iterable[bytes]) -> bytes:
    """The digest: 16 bytes over a message's canonical form: role, text, `call_id`, calls (id, name, arguments with
    sorted keys), media.

    Left out on purpose: names, refusals, annotations, reasoning, cache marks and unknown keys. Clients drop or move
    these between one request and the next.
    """
    pieces = [role, text, call_id or ""]
    for call in calls:
        pieces += (call.id, call.name, canonicalize_arguments(call.arguments))
    mixed = hashlib.blake2b(digest_size=DIGEST_BYTES)
    for piece in pieces:
        part = piece.encode("utf-8", "surrogatepass")
        mixed.update(b"%d:" % len(part))
        mixed.update(part)
    for medium in media:
        mixed.update(b"m" + medium)
    return mixed.digest()


def canonicalize_arguments(arguments: str) -> str:
    """Arguments as compact JSON with sorted keys; unchanged if no JSON, or over the limits of `decode_embedded`."""
    try:
        return msgspec.json.encode(decode_embedded(arguments), order="sorted").decode()
    except (ValueError, RecursionError, OverflowError):
        return arguments


def derive_root_key(tenant: str) -> bytes:
    """The chain key before the first message of a tenant: chains of two tenants never meet."""
    return hashlib.blake2b(b"context-proxy/1:" + tenant.encode(), digest_size=DIGEST_BYTES).digest()


def derive_next_key(parent: bytes, message_digest: bytes) -> bytes:
    """The chain key of the message that follows the key `parent`."""
    return hashlib.blake2b(parent + message_digest, digest_size=DIGEST_BYTES).digest()


def compute_keys(tenant: str, messages: Sequence[Message], known: Sequence[bytes] = ()) -> list[bytes]:
    """One chain key per message, each covering all messages before it. A system message has the key of the message
    before it.

    known: the keys of the first messages, if they have been computed before.
    """
    keys = list(known)
    at = keys[-1] if keys else derive_root_key(tenant)
    for n in range(len(keys), len(messages)):
        message = messages[n]
        if not message.is_system:
            at = derive_next_key(at, message.digest)
        keys.append(at)
    return keys


def public_id(key: bytes) -> str:
    """A message's id for people and models: 10 base32 characters, the same on every replica."""
    bits = int.from_bytes(key[:7].ljust(7, b"\0")) >> 6
    pairs = BASE32_PAIRS
    return (
        f"{pairs[bits >> 40]}{pairs[bits >> 30 & 1023]}{pairs[bits >> 20 & 1023]}"
        f"{pairs[bits >> 10 & 1023]}{pairs[bits & 1023]}"
    )


def digest_system_messages(messages: Sequence[Message]) -> bytes:
    """16 bytes over the exact system messages. A changed digest means a changed system prompt."""
    mixed = hashlib.blake2b(digest_size=DIGEST_BYTES)
    for message in messages:
        if message.is_system:
            mixed.update(message.digest)
    return mixed.digest()


def digest_undated_system(messages: Sequence[Message]) -> bytes:
    """16 bytes over the system messages without dates and numbers: the same for an agent from day to day."""
    mixed = hashlib.blake2b(digest_size=DIGEST_BYTES)
    for message in messages:
        if message.is_system:
            mixed.update(message.derive(_digest_undated))
    return mixed.digest()


def _digest_undated(message: Message) -> bytes:
    words = [word for word in _WORDS.findall(message.text) if word.lower() not in _DATES]
    return hashlib.blake2b(" ".join(words).encode("utf-8", "surrogatepass"), digest_size=DIGEST_BYTES).digest()
