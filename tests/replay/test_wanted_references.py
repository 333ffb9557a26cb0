from __future__ import annotations

from proxy.replay.wanted_references import (
    FAR_MESSAGES,
    JoinedTexts,
    Reference,
    WantedReferences,
    find_request_positions,
)
from tests.replay.recorded import assistant, assistant_call, messages, system, tool_result, user

LINE = "    return the_sum_of(everything)"


def find_references(*said: dict[str, object], tools: bytes | None = None) -> WantedReferences:
    return WantedReferences(messages(*said), tools)


def test_a_request_is_made_before_each_answer_that_a_user_message_precedes() -> None:
    found = messages(
        system("s"),
        assistant("hi, I am here"),
        user("a"),
        assistant("b"),
        assistant_call(1),
        tool_result(1, "c"),
        assistant("d"),
    )
    assert find_request_positions(found) == [3, 4, 6]
    assert find_request_positions(messages(assistant("nobody asked"))) == []


def test_references_of_the_next_answer_are_wanted_with_their_last_holder() -> None:
    found = find_references(
        user("look at src/a.py"), assistant_call(1, path="src/a.py"), tool_result(1, "src/a.py holds 31337"),
        assistant_call(2, path="src/a.py", n=31337, new="src/b.py"), tool_result(2, "x"), assistant("done"),
    )  # fmt: skip
    first, second, last = found.requests
    assert first.atoms == (Reference("src/a.py", 0, far=False),)
    assert second.atoms == (Reference("31337", 2, far=False), Reference("src/a.py", 2, far=False))
    assert last.atoms == last.lines == ()


def test_references_to_the_system_prompt_or_the_tools_are_not_wanted() -> None:
    said = (
        system("use etc/x.conf"),
        user("etc/x.conf, var/y.log, z_1"),
        assistant_call(1, a="etc/x.conf", b="var/y.log", c="z_1"),
    )
    assert [w.text for w in find_references(*said).requests[0].atoms] == ["var/y.log"]
    (step,) = find_references(*said, tools=b'[{"description": "writes var/y.log"}]').requests
    assert step.atoms == ()


def test_lines_are_wanted_without_their_numbers_and_once() -> None:
    (_, step) = find_references(
        user("go on"), assistant_call(1, path="p/q.py"), tool_result(1, f"1\tdef f():\n2\t{LINE}\n3\t"),
        assistant_call(2, old=f"{LINE}\n{LINE}", new="return what_nobody_has_seen_before"),
    ).requests  # fmt: skip
    assert step.lines == (Reference(LINE.strip(), 2, far=False),)


def test_far_is_more_than_twenty_messages_since_the_last_sight() -> None:
    def after(count: int) -> Reference:
        between = [assistant(f"thinking {n}") for n in range(count)]
        found = find_references(user(f"see src/a.py\n{LINE}"), *between, assistant_call(1, path="src/a.py", old=LINE))
        step = found.requests[-1]
        assert step.atoms[0].far is step.lines[0].far
        return step.atoms[0]

    assert not after(FAR_MESSAGES - 1).far
    assert after(FAR_MESSAGES).far


def test_an_atom_inside_a_longer_one_keeps_it_but_does_not_count_as_its_occurrence() -> None:
    found = find_references(
        user("run ./src/a.py,src/a.py:7"), *[assistant("m")] * 30, assistant_call(1, path="src/a.py")
    )
    (atom,) = found.requests[-1].atoms
    assert (atom.holder, atom.far) == (0, False)


def test_a_line_of_the_system_prompt_is_there_but_wanted_only_where_it_is_elsewhere() -> None:
    (step,) = find_references(system(LINE), user("go"), assistant_call(1, old=LINE)).requests
    assert step.lines == ()
    found = find_references(system(LINE), user(LINE), assistant_call(1, old=LINE))
    assert found.requests[0].lines == (Reference(LINE.strip(), 1, far=False),)
    assert found.find_line(LINE.strip()) == [0, 1, 2]
    assert found.find_line("another") == []


def test_the_window_of_an_atom_is_what_stands_around_it() -> None:
    found = find_references(user("a" * 80 + "  src/x.py\n" + "b" * 80), assistant_call(1, path="src/x.py"))
    (atom,) = found.requests[0].atoms
    window = found.read_window(atom)
    assert window == "a" * 59 + " src/x.py " + "b" * 59
    assert found.find_window(window) == [0]


def test_needles_are_found_in_the_text_that_holds_them() -> None:
    joined = JoinedTexts(["one.two", "", "xone.two", "see one.two, one.two"])
    assert joined.find_texts("one.two", is_whole_word=True) == [0, 3]
    assert joined.find_texts("one.two", is_whole_word=False) == [0, 2, 3]
    assert joined.find_texts("three", is_whole_word=True) == []
    assert JoinedTexts([]).find_texts("x", is_whole_word=False) == []
