"""A file counts as changed or read only where the result of its tool proves it."""

from __future__ import annotations

import pytest

from proxy.context.analysis import file_results
from proxy.context.analysis.output_wrappers import MAX_LINE_CHARS
from tests.context.analysis.test_activity import render_record

LONG = "\n".join(f"{n}: x = {n}" for n in range(60))


@pytest.mark.parametrize(
    ("text", "edited"),
    [
        ("ok", True),
        ("", True),
        ("The file a.py has been edited. Here's the result:\n" + LONG, True),
        ("The file /no/failed/errors.py has been updated. Here's the result:\n" + LONG, True),
        ("Text replaced. Please review the changes and make sure they are correct:\n" + LONG, True),
        ("diff --git a/a.py b/a.py\n" + LONG, True),
        ('{"success": true, "text": "x"}', True),
        ("Your proposed edit has introduced new syntax error(s).\n" + LONG, False),
        ("No replacement was performed, old_str `x` did not appear verbatim in a.py.", False),
        ("File has been modified since read, either by the user or by a linter. Read it again.", False),
        ("Claude requested permissions to write to a.py, but you haven't granted it yet.", False),
        ("Found 3 matches of old_string; provide more context", False),
        ("The change will be applied when the user approves it", False),
        ("Replaced 3 occurrences", True),
        (LONG, False),
        ('{"updated": 0, "path": "a.py"}', False),
        ('{"status": "ok", "applied": 0}', False),
        ('{"status": "ok", "applied": 1}', True),
        ("Edit queued for review.", False),
        ("Proposed changes to a.py shown to the user.", False),
        ("Waiting for user confirmation...", False),
        ("Tool execution was interrupted", False),
        ("Rolled back", False),
        ("\u274c a.py", False),
        ("a.py is read-only", False),
        ("Diff shown in editor. User has accepted the changes.", True),
        ("Disk quota exceeded", False),
        ("413 Payload Too Large", False),
        ("Path is a directory", False),
        ("Too many requests", False),
        ("Unknown tool: Edit", False),
        ("Connection closed", False),
        ("Malformed diff at line 7", False),
        ("a.py", True),
        ("Wrote 12 lines. Lint: clean", True),
        ("Datei wurde gespeichert.", True),
        ("Fichier enregistr\u00e9", True),
        ("\u6587\u4ef6\u5df2\u4fdd\u5b58", True),
    ],
)
def test_t2_a_file_is_reported_as_edited_where_the_result_says_so(text: str, edited: bool) -> None:
    (*told,) = render_record(("Edit", {"file_path": "a.py"}, text))
    assert (told[:1] == ["Edited: a.py"]) == edited


@pytest.mark.parametrize(
    "text",
    [
        "Die Datei wurde nicht ge\u00e4ndert.",
        "Fehler: Zugriff verweigert",
        "Hata: dosya kilitli",
        "B\u0142\u0105d: plik zablokowany",
        "Fout: bestand is vergrendeld",
        "\u062e\u0637\u0623: \u0627\u0644\u0645\u0642\u0637\u0639 \u0645\u0642\u0641\u0644",
        "\u05d4\u05e7\u05d5\u05d1\u05e5 \u05e0\u05e2\u05d5\u05dc",
        "\u00c9chec de l'\u00e9criture",
        "\u9519\u8bef\uff1a\u6743\u9650\u88ab\u62d2\u7edd",
        "\u6587\u4ef6\u672a\u66f4\u6539",
        "\u5909\u66f4\u3067\u304d\u307e\u305b\u3093",
        "\u0424\u0430\u0439\u043b \u043d\u0435 \u0438\u0437\u043c\u0435\u043d\u0451\u043d",
    ],
)
def test_an_edit_that_failed_in_another_language_is_not_an_edit(text: str) -> None:
    assert not [line for line in render_record(("edit_file", {"path": "a.py"}, text)) if line.startswith("Edited")]
    assert render_record(("edit_file", {"path": "a.py"}, "Datei a.py aktualisiert"))[0] == "Edited: a.py"


def test_a_file_that_could_not_be_read_is_not_reported_as_read() -> None:
    assert render_record(("read_file", {"path": "x.py"}, "Fehler: Datei nicht gefunden"))[:1] != ["Read: x.py"]


@pytest.mark.parametrize(
    "text",
    [
        "EISDIR: illegal operation on a directory, read",
        "\u6587\u4ef6\u4e0d\u5b58\u5728",
        "Bestand niet gevonden",
        "Filen finns inte",
        "Nie ma takiego pliku",
    ],
)
def test_a_file_that_is_missing_in_any_language_is_not_reported_as_read(text: str) -> None:
    assert not [line for line in render_record(("view", {"path": "/w/a.py"}, text)) if line.startswith("Read")]
    assert render_record(("view", {"path": "/w/a.py"}, "     1\traise Error('not found')")) == ["Read: /w/a.py"]
    assert render_record(("view", {"path": "/w/a.py"}, "ready = True")) == ["Read: /w/a.py"]


@pytest.mark.parametrize(
    "text", ["Bestand niet opgeslagen, ok?", "Plik nie zapisany (modified)", "Kunde inte sparas: ok"]
)
def test_an_edit_that_was_refused_in_another_language_is_not_an_edit(text: str) -> None:
    assert render_record(("edit_file", {"path": "/w/a.py"}, text)) == []


def test_only_the_beginning_of_a_line_is_searched_for_doubt() -> None:
    assert file_results.has_doubt(["a hunk was rejected"])
    assert not file_results.has_doubt(["a " * MAX_LINE_CHARS + "rejected"])
