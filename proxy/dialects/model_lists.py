"""Lists of models: which request asks for one, and the lists of several providers as one, in the client's form.

OpenAI's list has `data`, whose entries have an `object`. Messages' list has `data`, whose entries have a `type`.
Gemini's has `models`, whose names begin with `models/`. Some providers answer with a bare array.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Final, Literal, NamedTuple

import msgspec

ListForm = Literal["completions", "messages", "gemini"]
"""The form of a list, by the wire format to which it belongs."""

_MODELS_PATH: Final = re.compile(r"/{1,2}(?:v1/|(?P<beta>v1beta\w*/))?models(?:/(?P<model>.+?))?/?")
_GEMINI_PATH: Final = re.compile(r"/{1,2}(?:upload/)?v1beta\w*/(?!openai/)|/ws/google\.ai\.generativelanguage\.")
"""The beginning of Google's own paths, also of its uploads and of its WebSocket."""
_GEMINI_PREFIX: Final = "models/"
_NO_DATE: Final = "1970-01-01T00:00:00Z"
"""The date of a model whose date is not known, as Anthropic writes it."""


class ModelsQuestion(NamedTuple):
    """A request for the list of models, or for one of them."""

    form: ListForm
    model: str
    """The name of the one model; "" for the list."""


class ListedModel(msgspec.Struct, frozen=True):
    """One model of a list."""

    name: str
    """Its name in chat requests."""
    form: ListForm
    entry: dict[str, Any]
    """As the provider has written it."""


def read_models_question(method: str, path: str, headers: Iterable[tuple[bytes, bytes]]) -> ModelsQuestion | None:
    """Return what a request asks about models; None if it asks something else. path: decoded, with /v1 or without it.
    Google's stable paths are those of OpenAI, so a header tells its clients."""
    found = _MODELS_PATH.fullmatch(path) if method == "GET" else None
    if found is None:
        return None
    form = find_client_form(path, headers)
    return ModelsQuestion(form, (found["model"] or "").removeprefix(_GEMINI_PREFIX if form == "gemini" else ""))


def find_client_form(path: str, headers: Iterable[tuple[bytes, bytes]]) -> ListForm:
    """Return the form that a client of the path reads, by the path or by a header that its SDK sends. path: decoded."""
    names = {name.lower() for name, _ in headers}
    if _GEMINI_PATH.match(path) or any(name.startswith(b"x-goog-api-") for name in names):
        return "gemini"
    return "messages" if b"anthropic-version" in names else "completions"


def read_model_list(body: bytes) -> list[ListedModel] | None:
    """Return the models of a provider's list, in its order; None if the body is no list of models."""
    try:
        tree = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError):
        return None
    if isinstance(tree, dict):
        is_gemini = "data" not in tree
        entries = tree.get("models" if is_gemini else "data")
    else:
        is_gemini, entries = False, tree
    if not isinstance(entries, list):
        return None
    read = (_read_entry(entry, is_gemini=is_gemini) for entry in entries)
    return [model for model in read if model is not None]


def read_model(body: bytes, form: ListForm) -> ListedModel | None:
    """Return the one model of an answer in this form; None if the body is none."""
    try:
        entry = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError):
        return None
    return _read_entry(entry, is_gemini=form == "gemini")


def _read_entry(entry: Any, *, is_gemini: bool) -> ListedModel | None:
    name = entry.get("name" if is_gemini else "id") if isinstance(entry, dict) else None
    if not isinstance(name, str) or not name:
        return None
    if is_gemini:
        return ListedModel(name.removeprefix(_GEMINI_PREFIX), "gemini", entry)
    is_messages = entry.get("type") == "model" and "object" not in entry
    return ListedModel(name, "messages" if is_messages else "completions", entry)


def select_routed(models: Iterable[ListedModel], is_routed: Callable[[str], bool]) -> list[ListedModel]:
    """Return the models whose chat requests go to the provider that lists them. is_routed: tells that of a name.

    Google's list in OpenAI's form has names with `models/` in front. Its models can be called without that, too.
    """
    selected: dict[str, ListedModel] = {}
    for model in models:
        name = next(filter(is_routed, (model.name, model.name.removeprefix(_GEMINI_PREFIX))), None)
        if name is not None:
            selected.setdefault(name, msgspec.structs.replace(model, name=name))
    return list(selected.values())


def write_model_list(form: ListForm, models: Iterable[tuple[str, ListedModel]]) -> bytes:
    """Return one list in this form. models: each with the name of its upstream. An entry that has the form already
    keeps all its members."""
    entries = [_ENTRY_WRITERS[form](owner, model) for owner, model in models]
    if form == "gemini":
        return msgspec.json.encode({"models": entries})
    if form == "completions":
        return msgspec.json.encode({"object": "list", "data": entries})
    first, last = (entries[0]["id"], entries[-1]["id"]) if entries else (None, None)
    return msgspec.json.encode({"data": entries, "has_more": False, "first_id": first, "last_id": last})


def write_model(form: ListForm, owner: str, model: ListedModel) -> bytes:
    """Return one model in this form. owner: the name of its upstream."""
    return msgspec.json.encode(_ENTRY_WRITERS[form](owner, model))


def _write_completions_entry(owner: str, model: ListedModel) -> dict[str, Any]:
    if model.form == "completions":
        return {**model.entry, "id": model.name}
    kept = model.entry if model.form == "messages" else {}
    return {
        **kept,
        "id": model.name,
        "object": "model",
        "created": _read_seconds(model.entry.get("created_at")),
        "owned_by": owner,
    }


def _write_messages_entry(_owner: str, model: ListedModel) -> dict[str, Any]:
    if model.form == "messages":
        return {**model.entry, "id": model.name}
    shown = model.entry.get("name") if model.form == "completions" else model.entry.get("displayName")
    return {
        "type": "model",
        "id": model.name,
        "display_name": shown if isinstance(shown, str) and shown else model.name,
        "created_at": _write_date(model.entry.get("created")),
    }


def _write_gemini_entry(_owner: str, model: ListedModel) -> dict[str, Any]:
    if model.form == "gemini":
        return model.entry
    shown = model.entry.get("display_name") or model.entry.get("name")
    return {
        "name": _GEMINI_PREFIX + model.name,
        "displayName": shown if isinstance(shown, str) else model.name,
        "supportedGenerationMethods": ["generateContent", "countTokens"],
    }


_ENTRY_WRITERS: Final[Mapping[ListForm, Callable[[str, ListedModel], dict[str, Any]]]] = {
    "completions": _write_completions_entry,
    "messages": _write_messages_entry,
    "gemini": _write_gemini_entry,
}


def _read_seconds(date: object) -> int:
    """The seconds of a date since 1970; 0 if it is none."""
    try:
        return int(datetime.fromisoformat(date).timestamp()) if isinstance(date, str) else 0
    except (ValueError, OverflowError):
        return 0


def _write_date(seconds: object) -> str:
    """The date of these seconds since 1970; that of 1970 if they are none."""
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        return _NO_DATE
    try:
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (ValueError, OverflowError, OSError):
        return _NO_DATE
