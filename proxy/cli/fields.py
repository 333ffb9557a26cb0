"""Reader of a class's fields: their defaults, and the docstrings that stand under them in the source."""

from __future__ import annotations

import ast
import inspect
import textwrap
from dataclasses import MISSING, dataclass, is_dataclass
from dataclasses import fields as dataclass_fields

from pydantic import BaseModel
from pydantic_core import PydanticUndefined


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
    """Return the fields of a dataclass or of a pydantic model, in the order of the source.

    The source is read with ast, since docstrings of fields are not kept at run time.
    """
    texts = _docstrings(kind)
    told = []
    for name, default in _defaults(kind).items():
        required = default is MISSING or default is PydanticUndefined
        told.append(DocumentedField(name, None if required else default, required, texts.get(name, "")))
    return told


def read_summary(kind: type) -> str:
    """Return the first paragraph of a class's docstring, on one line."""
    return " ".join((inspect.getdoc(kind) or "").split("\n\n")[0].split())


def _defaults(kind: type) -> dict[str, object]:
    if issubclass(kind, BaseModel):
        return {
            name: field.get_default(call_default_factory=True) if not field.is_required() else PydanticUndefined
            for name, field in kind.model_fields.items()
        }
    if is_dataclass(kind):
        return {f.name: f.default for f in dataclass_fields(kind)}
    return {}


def _docstrings(kind: type) -> dict[str, str]:
    """Return docstrings by field. Fields of a dataclass's bases are among them, since they are its fields as well."""
    bases = [base for base in reversed(kind.__mro__[1:]) if is_dataclass(base)]
    return {name: text for each in (*bases, kind) for name, text in _own_docstrings(each).items()}


def _own_docstrings(kind: type) -> dict[str, str]:
    body = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0]
    if not isinstance(body, ast.ClassDef):
        return {}
    found = {}
    for field, below in zip(body.body, body.body[1:], strict=False):
        if (
            isinstance(field, ast.AnnAssign)
            and isinstance(field.target, ast.Name)
            and isinstance(below, ast.Expr)
            and isinstance(below.value, ast.Constant)
            and isinstance(below.value.value, str)
        ):
            found[field.target.id] = " ".join(below.value.value.split())
    return found
