"""Stages and injections of one's own: files beside the policy, and no others."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from proxy.errors import ConfigError
from proxy.settings.load import find_shipped_file
from proxy.settings.policy_files import find_own_classes, read_policy_file
from tests.conversations import assistant, user
from tests.proxy_server import run_proxy
from tests.raw_upstream import run_upstream
from tests.scripted_model import ScriptedModel

CODE = """
from __future__ import annotations
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from proxy.context.plan import Insert, Proposal
from proxy.context.view import View
from proxy.context.stage import Injection, Stage, When
from .words import GONE

@dataclass(frozen=True, slots=True)
class Forget(Stage):
    "Leave out every user message that says so."
    word: str = "forget"
    when: ClassVar[When] = "always"

    def __call__(self, view: View) -> Iterable[Proposal]:
        for n, message in enumerate(view.messages[:-1]):
            if message.role == "user" and self.word in message.text:
                yield Proposal(n, "text", "forget", GONE, text=GONE, after=1, since=n)

@dataclass(frozen=True, slots=True)
class Greet(Injection):
    "Say hello."
    def __call__(self, view: View) -> Iterable[Insert]:
        yield Insert("tail", "greet", "Hello from a file.")
"""
POLICY = """name = "mine"
[[stages]]
use = "mystages:Forget"
word = "secret"
[[injections]]
use = "mystages:Greet"
"""


def write(folder: Path, code: str = CODE, policy: str = POLICY) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "mystages.py").write_text(code)
    (folder / "words.py").write_text("GONE = 'gone'\n")
    (folder / "mine.toml").write_text(policy)
    return folder / "mine.toml"


def test_a_class_of_a_file_beside_the_policy_needs_no_search_path(tmp_path: Path) -> None:
    before = list(sys.path)
    policy = read_policy_file(write(tmp_path))
    [own, greeting] = find_own_classes([policy])
    assert (own.policy, own.use, own.file) == ("mine", "mystages:Forget", tmp_path / "mystages.py")
    assert greeting.use == "mystages:Greet"
    assert policy.stages[0].word == "secret"  # type: ignore[attr-defined]  # the stage above
    assert (sys.path, "mystages" in sys.modules) == (before, False)


def test_two_folders_have_files_of_the_same_name_and_neither_hides_the_proxy_s_own(tmp_path: Path) -> None:
    for name in ("one", "two"):
        file = write(
            tmp_path / name, CODE.replace('"forget"', f'"{name}"'), 'name = "mine"\n[[stages]]\nuse = "proxy:Forget"\n'
        )
        (tmp_path / name / "mystages.py").rename(tmp_path / name / "proxy.py")
        assert read_policy_file(file).stages[0].word == name  # type: ignore[attr-defined]  # the stage above
    assert "Forget" not in vars(sys.modules["proxy"])


@pytest.mark.parametrize(
    ("code", "use", "said"),
    [
        ("x = 1\ny = nothing\n", "mystages:Forget", r"mystages\.py:2: NameError: name 'nothing' is not defined"),
        ("x = = 1\n", "mystages:Forget", r"mystages\.py:1: SyntaxError"),
        ("x = 1\n", "mystages:Forget", r"the name of a class in .*mystages\.py"),
        ("Forget = 1\n", "mystages:Forget", r"the name of a class in .*mystages\.py"),
        ("class Forget: pass\n", "mystages:Forget", "a dataclass that can be called with a View"),
        ("", "elsewhere:Forget", "No module named 'elsewhere'"),
        ("", "../mystages:Forget", "relative import"),
    ],
)
def test_a_file_that_is_wrong_is_refused_with_its_line(tmp_path: Path, code: str, use: str, said: str) -> None:
    file = write(tmp_path, code, f'name = "mine"\n[[stages]]\nuse = "{use}"\n')
    with pytest.raises(ConfigError, match=said) as caught:
        read_policy_file(file)
    assert (caught.value.key, caught.value.source) == ("stages.use", str(file))


def test_a_link_out_of_the_folder_is_not_followed_and_one_inside_it_is(tmp_path: Path) -> None:
    """A ConfigMap of Kubernetes is a folder of links into a folder below it."""
    folder, elsewhere = tmp_path / "policies", tmp_path / "elsewhere.py"
    file = write(folder)
    (folder / "mystages.py").rename(elsewhere)
    (folder / "mystages.py").symlink_to(elsewhere)
    with pytest.raises(ConfigError, match="not a link"):
        read_policy_file(file)
    (folder / "mystages.py").unlink()
    (folder / "..data").mkdir()
    elsewhere.rename(folder / "..data" / "mystages.py")
    (folder / "mystages.py").symlink_to("..data/mystages.py")
    assert len(find_own_classes([read_policy_file(file)])) == 2


def test_the_package_s_policies_name_no_file() -> None:
    for file in find_shipped_file("policies").glob("*.toml"):
        assert find_own_classes([read_policy_file(file)]) == []


async def test_the_running_proxy_uses_it_and_its_log_names_the_file(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path)
    model = ScriptedModel()
    messages = [user("a secret"), assistant("yes"), user("well?")]
    with caplog.at_level("INFO"):
        async with (
            run_upstream(model) as upstream,
            run_proxy(upstream.port, policies_dir=str(tmp_path), policy="mine") as proxy,
        ):
            await proxy.post({"model": "m", "messages": messages})
    [sent] = model.chats
    assert sent["messages"][0]["content"] == "gone"
    assert "Hello from a file." in str(sent)
    assert f"the policy mine uses mystages:Forget of {tmp_path / 'mystages.py'}" in caplog.text


def test_the_command_reads_it_where_the_working_directory_has_modules_of_the_same_names(tmp_path: Path) -> None:
    """The installed command, in a folder with a package `proxy` and a module `tokenizers` of somebody else's."""
    write(tmp_path / "policies")
    (tmp_path / "proxy").mkdir()
    for name in ("proxy/__init__.py", "tokenizers.py", "fastapi.py"):
        (tmp_path / name).write_text("raise SystemExit('the wrong module')\n")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "CONTEXT_"))}
    environment |= {"CONTEXT_PROXY_POLICIES_DIR": "policies", "CONTEXT_PROXY_POLICY": "mine"}
    command = [str(Path(sys.executable).with_name("context-proxy")), "check"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert "# Code of your own: mystages:Forget of policies/mystages.py, used by mine" in done.stdout.replace(
        f"{tmp_path}/", ""
    )


def test_a_policy_has_the_name_of_its_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"mine\.toml: name = 'other' is not usable; allowed: 'mine'"):
        read_policy_file(write(tmp_path, policy=POLICY.replace('"mine"', '"other"')))
