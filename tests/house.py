"""The rules of the house, read from the source with ast: floors, purity, circles, sizes, names, and tests.

Each rule takes a `House` and returns what breaks it, one line a breach. Its docstring says how to mend a breach: the
failing test shows it. test_house.py asks all rules about the project, and about small trees in which each is broken on
purpose. An import counts wherever it stands: at the top,
in a function, under TYPE_CHECKING, or as text given to `import_module`.
"""

from __future__ import annotations

import ast
import gc
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.entered_files import EnteredFiles

PACKAGE = "proxy"

FLOORS = (
    {"cli"},
    {"web"},
    {"operator", "replay"},
    {"exchange"},
    {"events"},
    {"helper"},
    {"sessions"},
    {"tools"},
    {"store", "upstream"},
    {"metrics"},
    {"telemetry"},
    {"library"},
    {"settings"},
    {"tokenizers", "contrib"},
    {"context", "stream"},
    {"notes"},
    {"dialects"},
    {"chat"},
    {"errors", "version"},
)
"""From top to bottom. A floor imports what is below it; siblings in braces never import each other."""

FACE = "library"
"""The package itself (`from proxy import rewrite`) stands on this floor and imports it and what is below."""

PURE = {"context", "stream", "notes", "dialects", "chat", "errors"}

PURE_IMPORTS = {
    "__future__", "abc", "array", "base64", "binascii", "bisect", "collections", "contextlib", "contextvars", "copy",
    "dataclasses", "datetime", "decimal", "difflib", "enum", "fnmatch", "fractions", "functools", "graphlib", "hashlib",
    "heapq", "hmac", "html", "importlib", "io", "itertools", "json", "keyword", "math", "msgspec", "operator", "re",
    "statistics", "string", "struct", "textwrap", "types", "typing", "unicodedata", "urllib.parse", "weakref", "zlib",
}  # fmt: skip
"""Modules that pure floors may import: computing, and nothing that reads a clock, a file, a socket or chance.

importlib is among them for stages of a user's own (`module:Class`); io for StringIO and BytesIO; contextvars for the
check that a caller hands in (`chat.message.checkpoint`).
"""

IMPURE_CALLS = {"open", "print", "input", "exec", "eval", "breakpoint", "now", "utcnow", "today"}
"""Called by name or as a method (`datetime.now()`), these do what a pure floor does not."""

ONLY_IN = {
    "aiohttp": {"proxy/upstream/http1.py", "proxy/upstream/transport.py"},
    "aiosqlite": {"proxy/store/migrate.py", "proxy/store/sqlite.py"},
    "asyncpg": {
        *("proxy/store/postgres.py", "proxy/store/postgres_writer.py", "proxy/store/postgres_reader.py"),
        *("proxy/store/postgres_batch.py", "proxy/store/postgres_partitions.py"),
    },
    "pyarrow": {"proxy/cli/exchange_files.py"},
    "opentelemetry": {"proxy/telemetry.py"},
    "prometheus_client": {"proxy/metrics.py"},
    "toktok": {"proxy/tokenizers.py"},
}
"""Libraries that few files may import, so that they can be exchanged."""

ENVIRONMENT = {"proxy/settings/load.py"}
"""Files that read the environment."""

LINES = 600
FUNCTION_LINES = 60

ENTERED_FILES = 55
SWITCHES = 330
"""Files that one plain request of 42 messages enters at most, when its conversation is known, and how often it goes
from one file to another: whoever follows a request reads these files, and turns that often."""

FOLDER_NAMES = re.compile(r"(utils?|helpers|common|misc)\b|.*_(utils?|helpers?|common|misc)\b")
"""Names that say nothing. `helper` alone is no such name: it is the second, cheaper model."""
CLASS_NAMES = re.compile(r".*(Manager|Handler|Service|Impl)$")

QUESTION_WORDS = re.compile(r"\s*(What|Whether|How|Who|Where|When|Which)\b")
"""Words that no docstring begins with: it begins with the thing that it is, or with the verb that it does."""

MAX_SENTENCE = 30
PARAGRAPH = re.compile(r"\n\s*\n|\n\s*(?=(?:[-*]|\d+\.) )")
TABLE = re.compile(r"\S   |[│├└─]")
SENTENCE = re.compile(r"(?<=[.!?]) (?=[A-Z(`\"]|[a-z_]\w*(?:, [a-z_]\w*)*: )")
QUOTED = re.compile(r"`[^`]*`")
WORD = re.compile(r"[\w'’-]+")
"""Parts of a docstring, for its sentences."""

PATHS = re.compile(r"(?<![\w./-])(?:proxy|tests|docs|config|docker)/[\w./-]*\w\.(?:py|md|toml|yml|json|sql|js)\b")
PAGES = re.compile(r"(?<![\w./-])[A-Z]+\.md\b")
"""Pages at the top of the repository."""
MODULES = re.compile(r"(?<![\w./-])proxy(?:\.[a-zA-Z_]\w*)+")
"""Files and modules as a docstring names them."""

TOP_LEVEL = {
    "proxy", "tests", "config", "docker", "Dockerfile", "docker-compose.yml", "pyproject.toml", "README.md",
    "Makefile", "LICENSE", "CHANGELOG.md", "SECURITY.md", ".ci", ".gitignore", "requirements.lock", "docs",
    "zensical.toml",
}  # fmt: skip

WITHOUT_TESTS: dict[str, str] = {}
"""Modules that need no test file of their own, each with its reason."""


@dataclass(frozen=True)
class Module:
    """A file of the package, parsed. name: dotted; path: from the root, with slashes."""

    name: str
    path: str
    tree: ast.Module
    lines: int

    @property
    def floor(self) -> str:
        """The first name below the package; the package itself is its face."""
        return self.name.split(".")[1] if "." in self.name else FACE


@dataclass(frozen=True)
class House:
    """A checkout: its root, the package's modules, and every Python file with its number of lines."""

    root: Path
    modules: dict[str, Module]
    files: dict[str, ast.Module]


def walk(tree: ast.Module) -> tuple[ast.AST, ...]:
    """The nodes of a tree, which is walked once for all rules."""
    known = vars(tree)
    if "walked" not in known:
        known["walked"] = tuple(ast.walk(tree))
    return known["walked"]  # type: ignore[no-any-return]


def read(root: Path) -> House:
    """Parse proxy/ and tests/."""
    gc.disable()  # trees have no garbage, and to look for it takes three times as long as to parse
    try:
        return _read(root)
    finally:
        gc.enable()


def _read(root: Path) -> House:
    modules, files = {}, {}
    for file in sorted([*(root / PACKAGE).rglob("*.py"), *(root / "tests").rglob("*.py")]):
        path = file.relative_to(root).as_posix()
        text = file.read_text("utf-8")
        files[path] = tree = ast.parse(text, path)
        if path.startswith(PACKAGE + "/"):
            name = path.removesuffix(".py").replace("/", ".").removesuffix(".__init__")
            modules[name] = Module(name, path, tree, text.count("\n") + 1)
    return House(root, modules, files)


def imports(module: Module, known: dict[str, Module]) -> Iterator[tuple[str, int]]:
    """Every module that a module imports, in full, with the line."""
    package = module.name if module.path.endswith("__init__.py") else module.name.rpartition(".")[0]
    for node in walk(module.tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*above, *filter(None, [base])])
            for alias in node.names:
                deeper = f"{base}.{alias.name}"
                # `from proxy.store import base` imports a module, `from urllib import parse` as well.
                is_module = deeper in known or (base.split(".")[0] != PACKAGE and deeper in PURE_IMPORTS)
                yield (deeper if is_module else base), node.lineno
        elif isinstance(node, ast.Call) and _called(node) in ("import_module", "__import__"):
            given = node.args[0] if node.args else None
            if isinstance(given, ast.Constant) and isinstance(given.value, str):
                yield given.value, node.lineno


def _called(node: ast.Call) -> str:
    return node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")


def _level(floor: str) -> int | None:
    return next((index for index, names in enumerate(FLOORS) if floor in names), None)


def imports_go_down(house: House) -> list[str]:
    """A floor imports itself and what is below it: nothing above, no sibling, and nobody the package's face.

    To mend it: take the value as an argument, or move the code to a floor that may know both. A new package gets a
    floor in `FLOORS`, and a row in docs/development/architecture-and-floors.md."""
    found = []
    for module in house.modules.values():
        here = _level(module.floor)
        if here is None:
            found.append(f"{module.path}: {module.floor} is on no floor")
            continue
        for name, line in imports(module, house.modules):
            if name.split(".")[0] != PACKAGE:
                continue
            floor = name.split(".")[1] if "." in name else "the package's face"
            there = _level(floor)
            if there is None or there < here or (there == here and floor != module.floor):
                found.append(f"{module.path}:{line}: {module.floor} imports {name}")
    return found


def pure_floors_only_compute(house: House) -> list[str]:
    """Pure floors import nothing but what computes, and open, print and ask the time of nothing.

    To mend it: let the caller on a floor above read the clock, the file or the id, and pass it in."""
    found = []
    for module in house.modules.values():
        if module.floor not in PURE:
            continue
        for name, line in imports(module, house.modules):
            top = name.split(".")[0]
            if top != PACKAGE and top not in PURE_IMPORTS and name not in PURE_IMPORTS:
                found.append(f"{module.path}:{line}: pure, and imports {name}")
        calls = [node for node in walk(module.tree) if isinstance(node, ast.Call)]
        impure = [node for node in calls if _called(node) in IMPURE_CALLS]
        found += [f"{module.path}:{node.lineno}: pure, and calls {_called(node)}()" for node in impure]
    return found


def nothing_imports_in_circles(house: House) -> list[str]:
    """No module imports itself by way of others.

    To mend it: move what both need into the lower of the two modules, or into one below both."""
    graph = {
        name: sorted({target for target, _ in imports(module, house.modules) if target in house.modules})
        for name, module in house.modules.items()
    }
    found, done = [], set[str]()

    def walk(name: str, path: tuple[str, ...]) -> None:
        if name in path:
            found.append(" -> ".join((*path[path.index(name) :], name)))
        elif name not in done:
            for target in graph[name]:
                walk(target, (*path, name))
            done.add(name)

    for name in graph:
        walk(name, ())
    return found


def files_are_short(house: House) -> list[str]:
    """At most 600 lines a file, tests included, and at most 60 a function.

    To mend it: a file that is two things becomes two files with a name for each. Else make it simpler."""
    found = []
    for path, tree in house.files.items():
        lines = (house.root / path).read_text("utf-8").count("\n")
        if lines > LINES:
            found.append(f"{path}: {lines} lines")
        for node in walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                length = (node.end_lineno or node.lineno) - node.lineno + 1
                if length > FUNCTION_LINES:
                    found.append(f"{path}:{node.lineno}: {node.name} has {length} lines")
    return found


def modules_say_what_they_are_for(house: House) -> list[str]:
    """Every module of the package begins with a docstring."""
    return [f"{m.path}: no docstring" for m in house.modules.values() if not ast.get_docstring(m.tree)]


def no_docstring_begins_with_a_question_word(house: House) -> list[str]:
    """No docstring begins with What, Whether, How, Who, Where, When or Which: no module's, class's, function's or
    field's, also in tests/. To mend it: begin with the thing that it is, or with the verb that it does."""
    found = []
    for path, tree in house.files.items():
        begun = [(line, QUESTION_WORDS.match(text)) for line, text in _docstrings(tree)]
        found += [f"{path}:{line}: a docstring begins with {word[1]}" for line, word in begun if word]
    return found


def no_sentence_of_a_docstring_is_long(house: House) -> list[str]:
    """A sentence of a docstring of the package has at most 30 words. A name in backticks is one word, and a list of
    parameters ("limit: tokens. step: ...") has a sentence for each. A paragraph set as a table has no sentences."""
    found = []
    for module in house.modules.values():
        for line, text in _docstrings(module.tree):
            paragraphs = (each for each in PARAGRAPH.split(text) if not TABLE.search(each))
            sentences = (each for paragraph in paragraphs for each in SENTENCE.split(" ".join(paragraph.split())))
            for sentence in sentences:
                words = len(WORD.findall(QUOTED.sub("name", sentence)))
                if words > MAX_SENTENCE:
                    found.append(f"{module.path}:{line}: a sentence of {words} words: {sentence[:60]}")
    return found


def _docstrings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Each with its line. A text that stands alone is a docstring, also under a field or a name."""
    for node in walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            yield node.value.lineno, str(node.value.value)


def modules_have_tests(house: House) -> list[str]:
    """tests/ mirrors proxy/: each file with code has a file with tests. To mend it: write the named file."""
    found = []
    for module in house.modules.values():
        parts = module.path.removesuffix(".py").split("/")[1:]
        if parts[-1] == "__init__":
            if not _has_code(module.tree):
                continue
            wanted = ["/".join(["tests", *parts[:-1], "test_init.py"])]
            if parts[:-1]:
                wanted.append("/".join(["tests", *parts[:-2], f"test_{parts[-2]}.py"]))
        else:
            wanted = ["/".join(["tests", *parts[:-1], f"test_{parts[-1]}.py"])]
        if module.name not in WITHOUT_TESTS and not any(_has_tests(house.files.get(path)) for path in wanted):
            found.append(f"{module.path}: no tests in {' or '.join(wanted)}")
    return found


def _has_code(tree: ast.Module) -> bool:
    """True if there is more than a docstring, imports, and names such as `__all__`."""
    for node in tree.body:
        is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        is_dunder = isinstance(node, ast.Assign) and all(getattr(t, "id", "").startswith("__") for t in node.targets)
        if not (is_text or is_dunder or isinstance(node, ast.Import | ast.ImportFrom)):
            return True
    return False


def _has_tests(tree: ast.Module | None) -> bool:
    functions = ast.FunctionDef | ast.AsyncFunctionDef
    return tree is not None and any(isinstance(n, functions) and n.name.startswith("test") for n in walk(tree))


def names_say_something(house: House) -> list[str]:
    """No utils, helpers, common, misc; no class that is a Manager, Handler, Service or Impl. To mend it: take the word
    that an engineer would search for."""
    found = []
    for path, tree in house.files.items():
        if any(FOLDER_NAMES.fullmatch(part.removesuffix(".py")) for part in path.split("/")):
            found.append(f"{path}: a name that says nothing")
        classes = [node for node in walk(tree) if isinstance(node, ast.ClassDef)]
        found += [f"{path}:{node.lineno}: class {node.name}" for node in classes if CLASS_NAMES.fullmatch(node.name)]
    return found


def no_module_name_occurs_twice(house: House) -> list[str]:
    """No two modules have one name, but a command and the routes that it calls, and the files of the dialects.

    To mend it: name the newer one for what sets it apart from the other."""
    by_name: dict[str, list[str]] = {}
    for module in house.modules.values():
        if not module.path.endswith("__init__.py") and not module.path.startswith("proxy/dialects/"):
            by_name.setdefault(Path(module.path).stem, []).append(module.path)
    pairs = ("proxy/web/api/", "proxy/cli/")
    return [
        f"{name}: {', '.join(sorted(paths))}"
        for name, paths in sorted(by_name.items())
        if len(paths) > 1 and not (len(paths) == 2 and all(any(p.startswith(pair) for p in paths) for pair in pairs))
    ]


def no_public_class_name_occurs_twice(house: House) -> list[str]:
    """Each public class has a name of its own in the package. To mend it: name the newer one for what sets it apart, or
    use the other class."""
    by_name: dict[str, list[str]] = {}
    for module in house.modules.values():
        for node in module.tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                by_name.setdefault(node.name, []).append(module.path)
    return [f"{name}: {', '.join(sorted(paths))}" for name, paths in sorted(by_name.items()) if len(paths) > 1]


def no_name_of_a_module_is_bound_twice(house: House) -> list[str]:
    """A function, class or constant of a module is written once: a merge may leave an older copy behind.

    To mend it: remove the copy that is not read."""
    problems = []
    for path, tree in house.files.items():
        bound = [
            node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        ]
        assigned = [node for node in tree.body if isinstance(node, ast.Assign | ast.AnnAssign)]
        targets = [
            each for node in assigned for each in (node.targets if isinstance(node, ast.Assign) else [node.target])
        ]
        bound += [target.id for target in targets if isinstance(target, ast.Name)]
        problems += [f"{path}: {name} is bound twice" for name, count in Counter(bound).items() if count > 1]
    return problems


def paths_in_docstrings_exist(house: House) -> list[str]:
    """Each file and each module that a docstring names is there."""
    found = []
    for path, tree in house.files.items():
        if path == "tests/test_house.py":
            continue  # its planted trees have files of their own
        alone = [node.value for node in walk(tree) if isinstance(node, ast.Expr)]
        for text in [str(node.value) for node in alone if isinstance(node, ast.Constant)]:
            gone = [name for name in PATHS.findall(text) + PAGES.findall(text) if not (house.root / name).exists()]
            gone += [name for name in MODULES.findall(text) if not _is_there(house, name)]
            found += [f"{path}: names {name}" for name in gone]
    return found


def _is_there(house: House, dotted: str) -> bool:
    """True for a module, and for a name that one of its parents defines or imports."""
    while "." in dotted:
        if dotted in house.modules:
            return True
        parent, _, name = dotted.rpartition(".")
        module = house.modules.get(parent)
        if module is not None:
            return re.search(rf"\b{name}\b", ast.unparse(module.tree)) is not None
        dotted = parent
    return dotted in house.modules


def the_environment_is_read_in_one_place(house: House) -> list[str]:
    """`os.environ` and `os.getenv` stand in proxy/settings/load.py alone. To mend it: make it a setting."""
    found = []
    for module in house.modules.values():
        if module.path in ENVIRONMENT:
            continue
        for node in walk(module.tree):
            names: list[str] = []
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "os":
                names = [node.attr]
            elif isinstance(node, ast.ImportFrom) and node.module == "os":
                names = [alias.name for alias in node.names]
            if any("env" in name for name in names):
                line = getattr(node, "lineno", 0)
                found.append(f"{module.path}:{line}: reads the environment (os.{', '.join(names)})")
    return found


def libraries_stay_where_they_belong(house: House) -> list[str]:
    """A library that only few files may import is imported by no other. To mend it: use what these files offer
    (`ONLY_IN`)."""
    return [
        f"{module.path}:{line}: imports {name}"
        for module in house.modules.values()
        for name, line in imports(module, house.modules)
        if module.path not in ONLY_IN.get(name.split(".")[0], {module.path})
    ]


def nothing_else_lies_at_the_top(house: House) -> list[str]:
    """Nothing lies at the top level that is not listed here or named by .gitignore. To mend it: move it into a folder,
    or list it in `TOP_LEVEL`."""
    ignored = {".git"}
    if (house.root / ".gitignore").is_file():
        ignored |= {line.strip().strip("/") for line in (house.root / ".gitignore").read_text("utf-8").splitlines()}
    here = {entry.name for entry in house.root.iterdir()}
    return [f"{name}: not a part of the house" for name in sorted(here - TOP_LEVEL - ignored)]


def a_request_enters_few_files(entered: EnteredFiles) -> list[str]:
    """A plain request is followed through at most 55 files, with at most 330 switches between them.

    To mend it: compute in the file where the value is needed, or call once for what was called for each message."""
    found = []
    if len(entered.calls) > ENTERED_FILES:
        found.append(f"{len(entered.calls)} files are entered: {', '.join(sorted(entered.calls))}")
    if entered.switches > SWITCHES:
        found.append(f"{entered.switches} switches between files")
    return found


RULES: tuple[Callable[[House], list[str]], ...] = (
    imports_go_down,
    pure_floors_only_compute,
    nothing_imports_in_circles,
    files_are_short,
    modules_say_what_they_are_for,
    no_docstring_begins_with_a_question_word,
    no_sentence_of_a_docstring_is_long,
    modules_have_tests,
    names_say_something,
    no_module_name_occurs_twice,
    no_public_class_name_occurs_twice,
    no_name_of_a_module_is_bound_twice,
    paths_in_docstrings_exist,
    the_environment_is_read_in_one_place,
    libraries_stay_where_they_belong,
    nothing_else_lies_at_the_top,
)
