"""The house keeps its rules, and each rule sees what it forbids."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests import house as rules
from tests.entered_files import entered_files, follow_warm_request
from tests.house import RULES, House, read
from tests.mutants import misfits

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def project() -> House:
    return read(ROOT)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_the_project_keeps_each_house_rule(project: House, rule: Callable[[House], list[str]]) -> None:
    assert rule(project) == [], rule.__doc__


async def test_a_warm_request_enters_few_files(tmp_path: Path) -> None:
    entered = await follow_warm_request(tmp_path / "first.sqlite3")
    for again in ("second", "third"):  # on a busy machine a wake-up comes late, and brings a dozen switches with it
        if rules.a_request_enters_few_files(entered):
            entered = await follow_warm_request(tmp_path / f"{again}.sqlite3")
    assert rules.a_request_enters_few_files(entered) == [], rules.a_request_enters_few_files.__doc__
    assert {"web/app.py", "exchange/handler.py", "context/pipeline.py", "store/sqlite.py"} < entered.calls.keys()


def test_every_exception_has_its_reason_and_is_still_needed(project: House) -> None:
    for name, reason in rules.WITHOUT_TESTS.items():
        assert reason
        assert name in project.modules


def test_every_fault_to_be_planted_is_about_code_and_tests_that_are_there() -> None:
    assert misfits(ROOT) == [], "tests/mutants.py has to follow what has moved or changed"


def test_no_property_depends_on_the_speed_of_the_machine() -> None:
    assert settings().deadline is None
    assert HealthCheck.too_slow in settings().suppress_health_check


def test_at_most_twelve_direct_dependencies_each_with_its_reason() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    assert len(tomllib.loads(text)["project"]["dependencies"]) <= 12
    block = text.partition("\ndependencies = [")[2].partition("\n]")[0]
    assert all(re.search(r'",\s+# \w', line) for line in block.splitlines() if line.strip())


@pytest.mark.parametrize("lock", ["requirements.lock", "tests/requirements.lock"])
def test_locks_are_hashed_and_name_no_index(lock: str) -> None:
    text = (ROOT / lock).read_text()
    assert "://" not in text
    assert not re.search(r"^\s*--(?!hash=)", text, re.MULTILINE)
    pinned = re.findall(r"^[a-z0-9][^\n]*(?:\n    [^\n]*)*", text, re.MULTILINE)
    assert len(pinned) > 30
    assert all("==" in each and "--hash=sha256:" in each for each in pinned)


def plant(root: Path, files: dict[str, str] | None = None) -> House:
    """A small house in which all is well, but for the files given."""
    texts = {"proxy/__init__.py": '"""The face."""\n', "proxy/errors.py": '"""Errors."""\nX = 1\n'}
    texts["tests/test_errors.py"] = "def test_it() -> None: ...\n"
    for path, text in (texts | (files or {})).items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    return read(root)


def test_a_small_house_in_which_all_is_well_keeps_every_rule(tmp_path: Path) -> None:
    house = plant(tmp_path)
    assert [breach for rule in RULES for breach in rule(house)] == []


DOC = '"""A module."""\n'


@pytest.mark.parametrize(
    ("where", "text"),
    [
        ("chat/key", "from proxy.settings.load import Settings"),
        ("chat/key", "import proxy.store.base"),
        ("chat/key", "from proxy import Plan"),
        ("context/plan", "from proxy.stream.sse import Event"),
        ("store/base", "from proxy.upstream import client"),
        ("settings", "from proxy.metrics import Metrics"),
        ("tokenizers", "import proxy.settings.load"),
        ("stream/sse", "from ..context import plan"),
        ("web/app", "def f():\n    from proxy.cli import main"),
        ("web/app", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from proxy.cli.main import app"),
        ("web/app", "import importlib\nimportlib.import_module('proxy.cli.main')"),
        ("attic/box", "X = 1"),
        ("__init__", "from proxy.web.app import create_app"),
    ],
)
def test_an_import_that_does_not_go_down_is_seen(tmp_path: Path, where: str, text: str) -> None:
    (breach,) = rules.imports_go_down(plant(tmp_path, {f"proxy/{where}.py": DOC + text + "\n"}))
    assert breach.startswith("proxy/")


@pytest.mark.parametrize(
    ("where", "text"),
    [
        ("web/app", "from proxy.settings.load import Settings"),
        ("context/plan", "from proxy.chat.chain import step"),
        ("chat/key", "from proxy.chat import message"),
        ("chat/dialects/completions", "from ..message import Message"),
        ("__init__", "from proxy.context.plan import Plan"),
    ],
)
def test_an_import_that_goes_down_is_none_of_its_business(tmp_path: Path, where: str, text: str) -> None:
    assert rules.imports_go_down(plant(tmp_path, {f"proxy/{where}.py": DOC + text + "\n"})) == []


@pytest.mark.parametrize(
    "text",
    [
        "import os",
        "import asyncio",
        "from time import time",
        "import logging.handlers",
        "from urllib import request",
        "import httpx2",
        "def f():\n    import uuid",
        "open('x')",
        "print('x')",
        "from datetime import datetime\ndatetime.now()",
    ],
)
def test_an_impure_module_is_reported(tmp_path: Path, text: str) -> None:
    house = plant(tmp_path, {"proxy/notes/state_block.py": DOC + text + "\n", "proxy/metrics.py": DOC + text + "\n"})
    (breach,) = rules.pure_floors_only_compute(house)
    assert breach.startswith("proxy/notes/state_block.py:")


def test_pure_floors_may_import_modules_that_only_compute(tmp_path: Path) -> None:
    text = (
        "import json, msgspec\nfrom collections.abc import Iterable\nfrom urllib import parse\nfrom io import StringIO"
    )
    assert rules.pure_floors_only_compute(plant(tmp_path, {"proxy/chat/chain.py": DOC + text + "\n"})) == []


def test_an_import_cycle_is_reported(tmp_path: Path) -> None:
    house = plant(
        tmp_path,
        {
            "proxy/chat/a.py": DOC + "import proxy.chat.b\n",
            "proxy/chat/b.py": DOC + "def f():\n    from proxy.chat import c\n",
            "proxy/chat/c.py": DOC + "from proxy.chat.a import X\n",
        },
    )
    assert rules.nothing_imports_in_circles(house) == [
        "proxy.chat.a -> proxy.chat.b -> proxy.chat.c -> proxy.chat.a",
    ]


def test_a_long_file_and_a_long_function_are_seen_in_tests_too(tmp_path: Path) -> None:
    body = "def f():\n" + "    x = 1\n" * 60
    house = plant(
        tmp_path, {"proxy/chat/chain.py": "#\n" * 601, "tests/test_x.py": body, "proxy/metrics.py": "#\n" * 600}
    )
    assert rules.files_are_short(house) == [
        "proxy/chat/chain.py: 601 lines",
        "tests/test_x.py:1: f has 61 lines",
    ]


def test_a_module_without_a_docstring_is_reported(tmp_path: Path) -> None:
    house = plant(tmp_path, {"proxy/chat/chain.py": "X = 1\n", "proxy/chat/__init__.py": ""})
    assert len(rules.modules_say_what_they_are_for(house)) == 2


@pytest.mark.parametrize(
    ("files", "turns", "breaches"),
    [
        (rules.ENTERED_FILES, 1, 0),
        (rules.ENTERED_FILES + 1, 1, 1),
        (2, rules.SWITCHES // 2, 0),
        (2, rules.SWITCHES // 2 + 1, 1),
        (rules.ENTERED_FILES + 1, 10, 2),
    ],
)
def test_a_request_that_enters_many_files_or_often_another_one_is_seen(
    tmp_path: Path, files: int, turns: int, breaches: int
) -> None:
    names = [f"step_{n}" for n in range(files)]
    for name in names:
        (tmp_path / f"{name}.py").write_text(f"{DOC}def {name}():\n    return 1\n")
    steps = []
    for name in names:
        space: dict[str, Any] = {}
        exec(compile((tmp_path / f"{name}.py").read_text(), str(tmp_path / f"{name}.py"), "exec"), space)
        steps.append(space[name])
    with entered_files(tmp_path) as entered:
        assert sum(step() for _ in range(turns) for step in steps) == files * turns
    assert len(rules.a_request_enters_few_files(entered)) == breaches


@pytest.mark.parametrize("word", ["What", "Whether", "How", "Who", "Where", "When", "Which"])
@pytest.mark.parametrize(
    "text",
    [
        '"""{} it is."""\n',
        '"""\n{} it is.\n"""\n',
        DOC + 'class C:\n    """{} it is."""\n',
        DOC + 'class C:\n    x: int = 1\n    """{} it is."""\n',
        DOC + 'class C:\n    async def f(self):\n        """{} it is."""\n',
        DOC + 'X = 1\n"""{} it is."""\n',
    ],
    ids=["module", "module, on its second line", "class", "field", "method", "constant"],
)
@pytest.mark.parametrize("path", ["proxy/chat/chain.py", "tests/chat/test_chain.py"])
def test_a_docstring_that_begins_with_a_question_word_is_seen(tmp_path: Path, path: str, text: str, word: str) -> None:
    house = plant(tmp_path, {path: text.format(word)})
    (breach,) = rules.no_docstring_begins_with_a_question_word(house)
    assert breach.startswith(f"{path}:")
    assert breach.endswith(word)


@pytest.mark.parametrize("text", ["True if it is.", "However it is made, it is one.", "The part for which it is."])
def test_other_docstrings_and_strings_in_code_may_begin_as_they_like(tmp_path: Path, text: str) -> None:
    house = plant(tmp_path, {"proxy/chat/chain.py": f'"""{text}"""\n# What it is.\nX = "What it is"\n'})
    assert rules.no_docstring_begins_with_a_question_word(house) == []


LONG = " ".join(["word"] * 31)


@pytest.mark.parametrize(
    "text",
    [
        f'"""{LONG}."""\n',
        f'"""Short. {LONG}. Short."""\n',
        f'"""Short.\n\n- a point\n- {LONG}\n"""\n',
        DOC + f'def f(limit):\n    """Cut it.\n\n    limit: tokens. step: {LONG}."""\n',
        DOC + f'X = 1\n"""{LONG.replace("word word", "word" + chr(10) + "word")}."""\n',
    ],
    ids=["module", "between others", "point of a list", "parameter", "constant, over two lines"],
)
def test_a_long_sentence_in_a_docstring_is_seen(tmp_path: Path, text: str) -> None:
    house = plant(tmp_path, {"proxy/chat/chain.py": text})
    (breach,) = rules.no_sentence_of_a_docstring_is_long(house)
    assert re.match(r"proxy/chat/chain\.py:\d+: a sentence of 3[12] words: ", breach)


@pytest.mark.parametrize(
    "text",
    [
        " ".join(["word"] * 30) + ".",
        " ".join(["word"] * 20) + ".\n" + " ".join(["Word"] * 20) + ".",
        " ".join(["word"] * 29) + " `a b c d e f`.",
        " ".join(["word"] * 16) + ". limit: " + " ".join(["word"] * 16),
        "\n".join(["G1 there is a content   G2 roles are user and model"] * 5),
    ],
    ids=["thirty words", "two sentences", "a name in backticks", "a parameter", "a table"],
)
def test_sentences_of_thirty_words_names_and_tables_are_none_of_its_business(tmp_path: Path, text: str) -> None:
    house = plant(tmp_path, {"proxy/chat/chain.py": f'"""Short.\n\n{text}"""\n# {LONG}\nX = "{LONG}"\n'})
    assert rules.no_sentence_of_a_docstring_is_long(house) == []


def test_a_module_without_tests_is_seen(tmp_path: Path) -> None:
    house = plant(
        tmp_path,
        {
            "proxy/chat/__init__.py": DOC + "def f(): ...\n",
            "proxy/chat/chain.py": DOC,
            "proxy/chat/a.py": DOC,
            "tests/chat/test_a.py": "def check() -> None: ...\n",
            "proxy/chat/b.py": DOC,
            "tests/chat/test_b.py": "class TestB:\n    async def test_it(self) -> None: ...\n",
            "proxy/store/__init__.py": DOC + "from proxy.errors import X\n__all__ = ['X']\n",
        },
    )
    assert [breach.split(":")[0] for breach in rules.modules_have_tests(house)] == [
        "proxy/chat/__init__.py",
        "proxy/chat/a.py",
        "proxy/chat/chain.py",
    ]


@pytest.mark.parametrize("name", ["proxy/chat/utils", "proxy/chat/json_helpers", "tests/common", "proxy/misc/a"])
def test_a_file_name_without_meaning_is_reported(tmp_path: Path, name: str) -> None:
    assert len(rules.names_say_something(plant(tmp_path, {f"{name}.py": DOC}))) == 1


def test_a_module_name_that_occurs_twice_is_seen_but_for_a_command_and_its_routes(tmp_path: Path) -> None:
    files = ("chat/parts", "stream/parts", "cli/memos", "web/api/memos", "cli/keys", "chat/keys")
    assert rules.no_module_name_occurs_twice(plant(tmp_path, {f"proxy/{name}.py": DOC for name in files})) == [
        "keys: proxy/chat/keys.py, proxy/cli/keys.py",
        "parts: proxy/chat/parts.py, proxy/stream/parts.py",
    ]


def test_a_public_class_name_that_occurs_twice_is_seen(tmp_path: Path) -> None:
    text = DOC + "class Answer: ...\nclass _Own: ...\n"
    house = plant(tmp_path, {"proxy/chat/a.py": text, "proxy/stream/b.py": text})
    assert rules.no_public_class_name_occurs_twice(house) == ["Answer: proxy/chat/a.py, proxy/stream/b.py"]


def test_a_name_that_a_module_binds_twice_is_seen(tmp_path: Path) -> None:
    text = DOC + "A = 1\nB: int = 2\n\n\ndef run() -> None: ...\n\n\nA = 3\n\n\ndef run() -> None: ...\n"
    assert rules.no_name_of_a_module_is_bound_twice(plant(tmp_path, {"proxy/chat/a.py": text})) == [
        "proxy/chat/a.py: run is bound twice",
        "proxy/chat/a.py: A is bound twice",
    ]


def test_a_file_or_module_that_a_docstring_names_and_that_is_not_there_is_seen(tmp_path: Path) -> None:
    text = (
        '"""See proxy/chat/gone.py, docs/gone.md, `proxy.chat.gone` and `proxy.errors.Y`;'
        ' proxy/errors.py has `proxy.errors.X`. GONE.md and README.md are pages."""\n'
    )
    (tmp_path / "README.md").touch()
    assert rules.paths_in_docstrings_exist(plant(tmp_path, {"proxy/chat/a.py": text})) == [
        "proxy/chat/a.py: names proxy/chat/gone.py",
        "proxy/chat/a.py: names docs/gone.md",
        "proxy/chat/a.py: names GONE.md",
        "proxy/chat/a.py: names proxy.chat.gone",
        "proxy/chat/a.py: names proxy.errors.Y",
    ]


@pytest.mark.parametrize("name", ["SessionManager", "Handler", "ChatService", "StoreImpl"])
def test_a_class_that_is_named_after_nothing_is_seen(tmp_path: Path, name: str) -> None:
    assert len(rules.names_say_something(plant(tmp_path, {"proxy/chat/chain.py": f"class {name}: ...\n"}))) == 1


@pytest.mark.parametrize(
    "text",
    ["import os\nos.environ['X']", "import os\nos.getenv('X')", "from os import environ", "from os import getenv"],
)
def test_a_second_reader_of_the_environment_is_seen(tmp_path: Path, text: str) -> None:
    house = plant(tmp_path, {"proxy/settings/load.py": DOC + text + "\n", "proxy/store/base.py": DOC + text + "\n"})
    (breach,) = rules.the_environment_is_read_in_one_place(house)
    assert breach.startswith("proxy/store/base.py")


def test_a_second_user_of_a_library_is_seen(tmp_path: Path) -> None:
    text = DOC + "import toktok\n"
    house = plant(
        tmp_path, {"proxy/tokenizers.py": text, "proxy/web/app.py": DOC + "from toktok.core import Encoding\n"}
    )
    assert rules.libraries_stay_where_they_belong(house) == ["proxy/web/app.py:2: imports toktok.core"]


def test_an_extra_entry_at_the_top_is_reported(tmp_path: Path) -> None:
    house = plant(tmp_path)
    (tmp_path / ".gitignore").write_text("data/\n")
    for name in ("data", "notes"):
        (tmp_path / name).mkdir()
    assert rules.nothing_else_lies_at_the_top(house) == ["notes: not a part of the house"]
