"""Policy files, with the stages and injections of a user's own that they name as `module:Class`.

The module is a file beside the policy: `mystages:DropThoughts` is the class in `mystages.py` of the same folder. It is
loaded by file, under a package name of the folder's own. Python's search path plays no part in that: no PYTHONPATH is
needed, and a file that has the name of another module hides nothing. A file that a symbolic link brings in from
elsewhere is refused. A name without such a file is a module of an installed package.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from proxy.context.injections import BUILT_IN_INJECTIONS
from proxy.context.policy import Policy, read_policy
from proxy.context.stages import BUILT_IN_STAGES
from proxy.errors import ConfigError
from proxy.settings.load import find_shipped_file
from proxy.settings.toml_files import read_toml

PACKAGE: Final = "context_proxy_policies_"
"""Beginning of the names under which folders are packages. A hash of the folder's path follows."""
_SECTIONS: Final = ("stages", "injections")


@dataclass(frozen=True, slots=True)
class OwnClass:
    """A stage or injection that comes from a file beside a policy."""

    policy: str
    use: str
    """The class, as `module:Class`."""
    file: Path


def read_policy_file(file: Path) -> Policy:
    """Return the policy in a TOML file. Raises ConfigError with the file, the key and the allowed values."""
    if file.parent == find_shipped_file("policies"):
        return _read_shipped_policy(file)
    table = read_toml(file)[0]
    if table.get("name", file.stem) != file.stem:  # requests name the file, and what is stored the policy
        raise ConfigError("name", table["name"], f"{file.stem!r}, the name of the file", source=str(file))
    own = _load_own_classes(file, table)
    return read_policy(table, {**BUILT_IN_STAGES, **own}, {**BUILT_IN_INJECTIONS, **own}, source=str(file))


@cache
def _read_shipped_policy(file: Path) -> Policy:
    """Return a policy of the package, whose files do not change while the process runs."""
    return read_policy(read_toml(file)[0], BUILT_IN_STAGES, BUILT_IN_INJECTIONS, source=str(file))


def find_own_classes(policies: Iterable[Policy]) -> list[OwnClass]:
    """Return the classes of files beside the policies that these policies use, each once a policy."""
    own_classes: dict[OwnClass, None] = {}
    for policy in policies:
        for part in (*policy.stages, *policy.injections):
            kind = type(part)
            if kind.__module__.startswith(PACKAGE):
                module = sys.modules[kind.__module__]
                use = f"{kind.__module__.rpartition('.')[2]}:{kind.__qualname__}"
                own_classes[OwnClass(policy.name, use, Path(str(module.__file__)))] = None
    return list(own_classes)


def list_code_folders(policies: Iterable[Policy]) -> tuple[Path, ...]:
    """Return the folders of `find_own_classes`, for a process that reads pickled policies (`open_code_folders`)."""
    return tuple(dict.fromkeys(one.file.parent for one in find_own_classes(policies)))


def open_code_folders(folders: Iterable[Path]) -> None:
    """Make the files of these folders loadable in this process, under the names that pickled policies have."""
    for folder in folders:
        _open_folder(folder)


def _load_own_classes(file: Path, table: Mapping[str, Any]) -> dict[str, type]:
    """Return the classes by `module:Class` whose module is a file beside the policy's."""
    classes: dict[str, type] = {}
    for section, use in _find_uses(table):
        name, _, attribute = use.partition(":")
        code = file.parent / f"{name}.py"
        if not (name.isidentifier() and code.is_file()) or use in classes:
            continue
        if not code.resolve().is_relative_to(file.parent.resolve()):
            raise ConfigError(f"{section}.use", use, f"a file of {file.parent} itself, not a link", source=str(file))
        found = getattr(_load(code, f"{section}.use", use, str(file)), attribute, None)
        if not isinstance(found, type):
            raise ConfigError(f"{section}.use", use, f"the name of a class in {code}", source=str(file))
        classes[use] = found
    return classes


def _find_uses(table: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for section in _SECTIONS:
        rows = table.get(section, [])
        for row in rows if isinstance(rows, list) else ():
            use = row.get("use") if isinstance(row, Mapping) else None
            if isinstance(use, str) and ":" in use:
                yield section, use


def _load(code: Path, key: str, use: str, source: str) -> ModuleType:
    package = _open_folder(code.parent)
    try:
        return importlib.import_module(f"{package}.{code.stem}")
    except Exception as problem:  # the file is a user's: whatever it raises is the reason
        line = _find_line(problem, code)
        where = f"{code}:{line}" if line else str(code)
        allowed = f"a file that can be run ({where}: {type(problem).__name__}: {problem})"
        raise ConfigError(key, use, allowed, source=source) from problem


def _open_folder(folder: Path) -> str:
    """Return the package's name of a folder. Its modules are searched in that folder alone."""
    folder = folder.absolute()
    name = PACKAGE + sha256(str(folder).encode("utf-8", "surrogateescape")).hexdigest()[:16]
    if name not in sys.modules:
        package = ModuleType(name)
        package.__path__ = [str(folder)]
        sys.modules[name] = package
    importlib.invalidate_caches()
    return name


def _find_line(problem: Exception, code: Path) -> int | None:
    """Return the line of the file at which the error arose."""
    if isinstance(problem, SyntaxError):
        return problem.lineno
    line, at = None, problem.__traceback__
    while at is not None:
        if at.tb_frame.f_code.co_filename == str(code):
            line = at.tb_lineno
        at = at.tb_next
    return line
