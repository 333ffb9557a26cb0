"""Settings as TOML: config/default.toml with its comments, and the settings in force for `check`. Reader of
the fields of a class, with the docstrings that stand under them in the source."""

from __future__ import annotations

import ast
import inspect
import json
import textwrap
from dataclasses import MISSING, dataclass, is_dataclass
from dataclasses import fields as dataclass_fields
from urllib.parse import urlsplit

from pydantic import BaseModel, SecretStr
from pydantic_core import PydanticUndefined

from proxy.settings.load import Settings, UpstreamSettings, WebhookSettings, mask_password
from proxy.settings.model import ApiKeySettings, SettingsSection

FILE_HEADER = """\
# Every setting with its default: this file changes nothing. Written by `context-proxy docs`.
# Copy what you change into a file of your own and start with --config FILE. The environment overrides the file
# (CONTEXT_PROXY_PORT, CONTEXT_PROXY_STATE__ASK), flags override both.
"""

UPSTREAM_HEADER = """\

# Who answers, by name; a request goes to the first whose `models` match. Without any: the built-in demo.
# [upstreams.main]
"""

KEYS_HEADER = """\

# Who may ask; without any: whoever reaches this machine's own address, and nobody else. One entry a key.
# [[keys]]
"""

KEY_EXAMPLE = {"name": "laptop", "sha256": "0" * 64, "tenant": "acme", "plane": "data"}
"""The entry of the example: no key has this hash."""

WEBHOOKS_HEADER = """\

# Receivers of events, by a signed POST each (docs/guide/events.md). One entry a receiver.
# [[webhooks]]
"""

WEBHOOK_EXAMPLE = {"url": "https://example.com/hooks/context", "secret_env": "CONTEXT_WEBHOOK_SECRET"}
"""The required values of an entry, for the example."""

TABLE_SETTINGS = frozenset({"upstreams", "keys", "webhooks"})
"""Settings that are tables of a person's own, without a default to print."""

WIDTH = 118


def render_defaults() -> str:
    """Return the text of config/default.toml."""
    fields = read_fields(Settings)
    parts = [FILE_HEADER]
    top = [
        field for field in fields if field.name not in TABLE_SETTINGS and not isinstance(field.default, SettingsSection)
    ]
    parts += ["\n" + _render_comment(field.text) + _render_line(field) for field in top]
    for field in fields:
        if isinstance(field.default, SettingsSection):
            kind = type(field.default)
            parts.append("\n" + _render_comment(read_summary(kind)) + f"[{field.name}]\n")
            parts += ["\n" + _render_comment(below.text) + _render_line(below) for below in read_fields(kind)]
    parts.append(UPSTREAM_HEADER)
    for field in read_fields(UpstreamSettings):
        shown = "https://api.openai.com/v1" if field.required else field.default
        parts.append(textwrap.indent(_render_comment(field.text) + f"{field.name} = {render_literal(shown)}\n", "# "))
    parts.append(WEBHOOKS_HEADER)
    for field in read_fields(WebhookSettings):
        value = render_literal(WEBHOOK_EXAMPLE.get(field.name, field.default))
        parts.append(textwrap.indent(_render_comment(field.text) + f"{field.name} = {value}\n", "# "))
    parts.append(KEYS_HEADER)
    for field in read_fields(ApiKeySettings):
        parts.append(
            textwrap.indent(
                _render_comment(field.text) + f"{field.name} = {render_literal(KEY_EXAMPLE[field.name])}\n", "# "
            )
        )
    return "".join(parts)


def render_settings(settings: Settings) -> str:
    """Return all settings with their values, without comments. Secrets are stars."""
    top: list[str] = []
    tables: list[str] = []
    for name in Settings.model_fields:
        value = getattr(settings, name)
        if isinstance(value, SettingsSection):
            tables.append(_render_table(name, value))
        elif name == "upstreams":
            tables += [
                _render_table(f"upstreams.{_render_key(target)}", upstream)
                for target, upstream in settings.active_upstreams.items()
            ]
        elif name == "keys":
            tables += [_render_table("[keys]", key.model_copy(update={"sha256": "***"})) for key in settings.keys]
        elif name == "webhooks":
            hooks = (hook.model_copy(update={"url": _hide_path(hook.url)}) for hook in settings.webhooks)
            tables += [_render_table("[webhooks]", hook) for hook in hooks]
        else:
            top.append(f"{name} = {render_literal(value)}")
    return "\n\n".join(["\n".join(top), *tables]) + "\n"


def render_literal(value: object) -> str:
    """Return a value in TOML. A secret is written as stars, and so is a password in a URL."""
    if isinstance(value, SecretStr):
        return '"***"' if value.get_secret_value() else '""'
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        # JSON's strings are TOML's basic strings, except for the delete character.
        return json.dumps(mask_password(value), ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, tuple | list):
        inner = ", ".join(render_literal(item) for item in value)
        if len(inner) < WIDTH - 20:
            return f"[{inner}]"
        return "[\n" + "".join(f"    {render_literal(item)},\n" for item in value) + "]"
    return str(value)


def _hide_path(url: str) -> str:
    """Return a URL with stars for its path, since the path may be a secret."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}/***"


def _render_line(field: DocumentedField) -> str:
    return f"{field.name} = {render_literal(field.default)}\n"


def _render_table(name: str, section: SettingsSection) -> str:
    return "\n".join(
        [f"[{name}]", *(f"{key} = {render_literal(getattr(section, key))}" for key in type(section).model_fields)]
    )


def _render_key(name: str) -> str:
    return name if name.replace("-", "").replace("_", "").isalnum() and name.isascii() else json.dumps(name)


def _render_comment(text: str) -> str:
    return "".join(f"# {line}\n" for line in textwrap.wrap(text, WIDTH, break_long_words=False, break_on_hyphens=False))


@dataclass(frozen=True, slots=True)
class DocumentedField:
    """A field with its documentation."""

    name: str
    default: object
    """The default, None if there is none."""
    required: bool
    """True if there is no default."""
    text: str
    """The docstring under the field, on one line; empty if there is none."""


def read_fields(kind: type) -> list[DocumentedField]:
    """Return the fields of a dataclass that can be given, or of a pydantic model, in the order of the source.

    The source is read with ast, since docstrings of fields are not kept at run time.
    """
    texts = _read_docstrings(kind)
    lines = []
    for name, default in _read_defaults(kind).items():
        required = default is MISSING or default is PydanticUndefined
        lines.append(DocumentedField(name, None if required else default, required, texts.get(name, "")))
    return lines


def read_summary(kind: type) -> str:
    """Return the first paragraph of a class's docstring, on one line."""
    return " ".join((inspect.getdoc(kind) or "").split("\n\n")[0].split())


def _read_defaults(kind: type) -> dict[str, object]:
    if issubclass(kind, BaseModel):
        return {
            name: field.get_default(call_default_factory=True) if not field.is_required() else PydanticUndefined
            for name, field in kind.model_fields.items()
        }
    if is_dataclass(kind):
        return {f.name: f.default for f in dataclass_fields(kind) if f.init}
    return {}


def _read_docstrings(kind: type) -> dict[str, str]:
    """Return docstrings by field. Fields of a dataclass's bases are among them, since they are its fields as well."""
    bases = [base for base in reversed(kind.__mro__[1:]) if is_dataclass(base)]
    return {name: text for each in (*bases, kind) for name, text in _own_docstrings(each).items()}


def _own_docstrings(kind: type) -> dict[str, str]:
    body = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0]
    if not isinstance(body, ast.ClassDef):
        return {}
    docstrings = {}
    for field, below in zip(body.body, body.body[1:], strict=False):
        if (
            isinstance(field, ast.AnnAssign)
            and isinstance(field.target, ast.Name)
            and isinstance(below, ast.Expr)
            and isinstance(below.value, ast.Constant)
            and isinstance(below.value.value, str)
        ):
            docstrings[field.target.id] = " ".join(below.value.value.split())
    return docstrings
