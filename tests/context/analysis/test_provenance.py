from __future__ import annotations

import json

import pytest

from proxy.context.analysis.provenance import find_provenance
from tests.conversations import Json, assistant, call, make_messages, result, user


def history(*steps: tuple[str, Json, str]) -> list[Json]:
    """One call a step: tool, arguments, result; the n-th result stands at 2n."""
    made: list[Json] = [user("go")]
    for name, arguments, text in steps:
        made += [{**assistant(None), "tool_calls": [call("c", name, json.dumps(arguments))]}, result("c", text)]
    return made


READ = ("Read", {"file_path": "/r/src/a.py"}, "     1\tx = 1")
EDIT = ("Edit", {"file_path": "/r/src/a.py", "old_string": "1", "new_string": "2"}, "     1\tx = 2")
OTHER = ("Edit", {"file_path": "/r/src/b.py"}, "done")
FAILED = ("Edit", {"file_path": "/r/src/a.py"}, "Error: old string not found in file")
SED = ("bash", {"command": "cd /r && sed -i 's/1/2/' src/a.py"}, "")
GREP = ("Grep", {"pattern": "x"}, "src/a.py:1:x = 1")
LISTED = ("Grep", {"pattern": "y"}, "src/data.py:1:y = 1\na.pyi:2:y")
SHOWN = ("read_file", {"path": "src/a.py"}, "x = 1")
USER = ("get_user", {"user_id": "u_17"}, '{"tier": "gold"}')
TIER = ("set_tier", {"user_id": "u_17", "tier": "silver"}, "ok")


def describe_origin_of(*steps: tuple[str, Json, str]) -> str:
    return find_provenance(make_messages(*history(*steps)), 2).describe_origin()


@pytest.mark.parametrize(
    ("steps", "end"),
    [
        ((READ,), "1 step ago; no call has changed it since"),
        ((READ, OTHER, FAILED), "3 steps ago; no call has changed it since"),
        ((READ, EDIT), "2 steps ago; edited once since: read it again for its present text"),
        ((READ, EDIT, SED, EDIT), "4 steps ago; edited 3 times since: read it again for its present text"),
        ((GREP, READ), "2 steps ago"),
        ((GREP, EDIT), "2 steps ago; changed once since: ask again for what is there now"),
        ((GREP, ("Edit", {"file_path": "c/a.py"}, "done")), "2 steps ago"),
        ((LISTED, ("Edit", {"file_path": "a.py"}, "done")), "2 steps ago"),
        ((SHOWN, ("edit_file", {"path": "a.py"}, "done")), "2 steps ago; no call has changed it since"),
        ((USER, TIER, TIER), "3 steps ago; changed 2 times since: ask again for what is there now"),
        ((USER, ("set_tier", {"user_id": "u_18"}, "ok")), "2 steps ago"),
    ],
)
def test_a_result_is_reported_with_its_age_and_what_has_changed_it(
    steps: tuple[tuple[str, Json, str], ...], end: str
) -> None:
    arguments = json.dumps(steps[0][1])
    assert describe_origin_of(*steps) == f"the result of {steps[0][0]} {arguments}, {end}"


PATCH = "*** Begin Patch\n*** Update File: src/a.py\n@@\n-x\n+y\n*** End Patch"
ONCE = "edited once since: read it again for its present text"
GONE = "no longer current: the file was deleted or moved away"
MAYBE = "no call is known to have changed it, but a command that ran after it may have"


def ran(command: str, text: str = "") -> tuple[str, Json, str]:
    return "bash", {"command": command}, text


@pytest.mark.parametrize(
    ("step", "end"),
    [
        (("apply_patch", {"input": PATCH}, "Success. Updated the following files:\nM src/a.py"), ONCE),
        (("shell", {"command": ["apply_patch", PATCH]}, "Success."), ONCE),
        (ran(f"apply_patch <<'EOF'\n{PATCH}\nEOF"), ONCE),
        (("apply_patch", {"input": PATCH.replace("src/a.py", "src/b.py")}, "Success."), "no call has changed it since"),
        (("apply_patch", {"input": PATCH}, "Error: context not found"), "no call has changed it since"),
        (("Edit", {"file_path": "/r/src/a.py"}, "Fehler: Text nicht gefunden"), "no call has changed it since"),
        (("edit_file", {"path": "src/a.py", "dryRun": True}, "--- src/a.py"), "no call has changed it since"),
        (ran("git checkout -- src/a.py"), ONCE),
        (ran("cp /tmp/new.py src/a.py"), ONCE),
        (ran("rm /r/src/a.py"), GONE),
        (ran("cd /r && rm -rf src"), GONE),
        (("bash", {"command": "git mv src/a.py src/b.py", "workdir": "/r"}, ""), GONE),
        (("delete_file", {"path": "/r/src/a.py"}, "deleted"), GONE),
        (("move_file", {"source": "/r/src/a.py", "destination": "/r/src/b.py"}, "moved"), GONE),
        (ran("rm src/a.py"), MAYBE),  # in which folder, is not known
        (("delete_file", {"path": "src/a.py"}, "deleted"), ONCE),  # it is told to be read again
        (ran("rm -rf src"), MAYBE),
        (ran("test -e /nope && rm /r/src/a.py; true"), MAYBE),
        (ran("true || rm /r/src/a.py"), MAYBE),
        (ran("git rm --dry-run /r/src/a.py", "rm 'src/a.py'"), MAYBE),
        (ran("rm src/a.py", "rm: cannot remove 'src/a.py': Permission denied"), MAYBE),
        (ran("git stash"), MAYBE),
        (ran("git pull", "Updating 1..2"), MAYBE),
        (ran("git apply fix.diff"), MAYBE),
        (ran("ruff format ."), MAYBE),
        (ran("npx eslint --fix ."), MAYBE),
        (ran("cargo fmt"), MAYBE),
        (ran("python - <<'E'\nopen('src/a.py', 'w')\nE"), MAYBE),
        (ran("make generate"), MAYBE),
        (ran("pytest -x", "3 passed in 0.1s"), "no call has changed it since"),
        (ran("cd sub && go test ./... && git add ."), "no call has changed it since"),
        (ran("kubectl get pods"), "no call has changed it since"),
        (ran("grep -rn x src | head"), "no call has changed it since"),
    ],
)
def test_a_text_is_not_called_unchanged_where_a_call_has_or_may_have_changed_it(
    step: tuple[str, Json, str], end: str
) -> None:
    assert describe_origin_of(READ, step).partition("2 steps ago; ")[2] == end
    if end == GONE:
        written = ("write_file", {"path": "src/a.py"}, "written")
        assert describe_origin_of(READ, step, written).endswith(
            "edited 2 times since: read it again for its present text"
        )


def test_an_edit_is_no_older_than_the_edits_after_it() -> None:
    seen = find_provenance(make_messages(*history(READ, EDIT, EDIT)), 4)
    assert (seen.steps, seen.edits, seen.is_file) == (2, 1, True)


def test_a_described_origin_has_no_brackets_and_stays_short() -> None:
    found = describe_origin_of(("query", {"rows": ["[x]\n" * 40]}, "r"))
    assert "[" not in found
    assert "]" not in found
    assert "\n" not in found
    assert len(found) < 140


def test_a_message_that_is_not_a_result_has_only_an_age() -> None:
    assert find_provenance(make_messages(*history(READ, EDIT)), 0).describe_origin() == "3 steps ago"


@pytest.mark.parametrize(
    "command",
    [
        "npm run lint:fix", "npm run lint -- --fix", "npm test -- -u", "yarn lint --fix", "npx jest -u",
        "go test ./... -update", "mvn spotless:apply", "./gradlew spotlessApply", "terraform fmt", "gh pr checkout 12",
        "curl -sLo src/a.py https://example.com/a.py", "wget -O src/a.py https://example.com/a.py",
        "docker compose exec web python gen.py", "docker run -v .:/w image ./gen.sh", "pre-commit run -a",
        "bundle exec rubocop -a", "npx nx generate lib x",
    ],
)  # fmt: skip
def test_a_tool_that_mostly_reads_may_have_written_the_file(command: str) -> None:
    assert describe_origin_of(READ, ran(command, "ok")).endswith(MAYBE)


@pytest.mark.parametrize(
    "command",
    [
        "npm test", "npm run lint", "npx jest", "go test ./...", "mvn test", "terraform plan", "gh pr view 12",
        "curl -s localhost:8000/health", "wget -qO- localhost:8000", "docker ps", "docker compose up -d",
        "bundle exec rubocop", "npx nx test app", "git commit -m 'format the code'",
    ],
)  # fmt: skip
def test_a_tool_that_reads_changes_no_file(command: str) -> None:
    assert describe_origin_of(READ, ran(command, "ok")).endswith("no call has changed it since")
