"""A Responses answer as the client would have it from the provider itself, where the proxy has asked for more.

A request that the proxy completes from its store names no earlier response, is not stored by the provider, and asks for
encrypted reasoning. A response repeats these values, and its reasoning has the token. Both are put right here, in a
stream as in one body. Every other byte is passed on as received.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from proxy.dialects.responses import stream as responses_stream
from proxy.stream.responses_body import join_items, set_members
from proxy.stream.sse import EVENT_LIMIT, SseEvent, SseParser, replace_data

_TOKEN: Final = b'"encrypted_content"'
_RESPONSE: Final = b'"response"'


class ResponseEcho:
    """Rewrites one answer.

    members: values of the response object that the client has asked for, as JSON by name. hides_tokens: the client did
    not ask for encrypted reasoning.
    """

    def __init__(self, members: Mapping[str, bytes], *, hides_tokens: bool) -> None:
        self._members = members
        self._hides_tokens = hides_tokens
        self._parser = SseParser(EVENT_LIMIT)

    def rewrite_body(self, body: bytes) -> bytes:
        """The response object in one body."""
        return self._rewrite_response(body)

    def feed(self, data: bytes) -> bytes:
        """The events that these bytes of a stream complete."""
        return b"".join([self._rewrite_event(event) for event in self._parser.feed(data)])

    def flush(self) -> bytes:
        """The rest of a stream that has ended."""
        return b"".join([self._rewrite_event(event) for event in self._parser.flush()])

    def rewrite_data(self, data: bytes) -> bytes:
        """The data of one event."""
        has_tokens = self._hides_tokens and _TOKEN in data
        if not (has_tokens or _RESPONSE in data):
            return data  # nearly all are deltas
        event = responses_stream.read_event(data)
        if event is None:
            return data
        new: dict[str, bytes] = {}
        for name, rewrite in (("response", self._rewrite_response), ("item", self.hide_token)):
            if isinstance(event.get(name), dict):
                raw = responses_stream.read_member(data, name, event[name])
                made = rewrite(raw)
                new |= {} if made is raw else {name: made}
        return set_members(data, new) if new else data

    def _rewrite_event(self, event: SseEvent) -> bytes:
        data = event.data
        made = None if data is None else self.rewrite_data(data)
        return event.raw if made is None or made is data else replace_data(event, made)

    def _rewrite_response(self, response: bytes) -> bytes:
        value: dict[str, Any] = responses_stream.read_object(response) or {}
        new = {name: raw for name, raw in self._members.items() if name in value}
        if self._hides_tokens and _TOKEN in response and isinstance(value.get("output"), list):
            new["output"] = join_items([self.hide_token(item) for item in responses_stream.read_output(response)])
        return set_members(response, new) if new else response

    def hide_token(self, item: bytes) -> bytes:
        """An item without its token, where the client did not ask for it."""
        if not self._hides_tokens or _TOKEN not in item:
            return item
        value = responses_stream.read_object(item) or {}
        is_shown = value.get("type") == "reasoning" and value.get("encrypted_content")
        return set_members(item, {"encrypted_content": b"null"}) if is_shown else item
