"""Each action of the dashboard, done in a browser: what it did is looked for in what upstream gets next."""

from __future__ import annotations

import json
from itertools import count

import pytest

from tests.web.dashboard.screen import Screen, list_whole_results

pytestmark = pytest.mark.slow
numbers = count()


def opened(screen: Screen, tab: str = "", wait: str = ".line-title", policy: str = "") -> str:
    """A conversation of three groups of its own, shown; its name."""
    name = f"talk-{next(numbers)}"
    screen.stage.converse(name, policy=policy)
    screen.go(f"#/s/acme/{name}{tab}", wait)
    return name


def test_drop_and_restore_a_group(screen: Screen) -> None:
    name = opened(screen)
    screen.press(".line:has-text('Prompt number 0?') button:text-is('Drop')")
    screen.page.wait_for_selector(".line.s-dropped:has-text('Prompt number 0?')")
    sent = screen.stage.say(name, "Go on.")
    assert "Prompt number 0?" not in sent
    assert f"Result of {name}-0-0" not in sent
    assert "Prompt number 1?" in sent
    screen.press(".line:has-text('Prompt number 0?') button:text-is('Restore')")
    sent = screen.stage.say(name, "And on.")
    assert "Prompt number 0?" in sent
    assert f"Result of {name}-0-0" in sent


def test_drop_one_message_takes_its_call_along(screen: Screen) -> None:
    name = opened(screen)
    screen.click(".line-title:has-text('Prompt number 0?')")
    result = f".message:has-text('Result of {name}-0-0')"
    screen.page.hover(result)
    assert "2 messages" in screen.press(f"{result} button:text-is('Drop')")
    sent = screen.stage.say(name, "Go on.")
    assert f"{name}-0-0" not in sent
    assert f"Result of {name}-0-1" in sent
    assert "Prompt number 0?" in sent


def test_a_pinned_group_stays_whole_when_the_rest_is_compressed(screen: Screen) -> None:
    name = opened(screen)
    screen.press(".line:has-text('Prompt number 0?') button:text-is('Pin')")
    screen.page.wait_for_selector(".line:has-text('Prompt number 0?') .flag:text-is('pinned')")
    screen.press("button:text-is('Compress')")
    sent = screen.stage.say(name, "Go on.")
    assert set(list_whole_results(sent, name)) >= {f"{name}-0-0", f"{name}-0-1"}
    assert f"{name}-1-0" not in list_whole_results(sent, name), "the rest was shortened"
    screen.press(".line:has-text('Prompt number 0?') button:text-is('Unpin')")
    screen.press("button:text-is('Compress')")
    assert f"{name}-0-0" not in list_whole_results(screen.stage.say(name, "And on."), name)


def test_remove_asks_first_and_then_nobody_gets_it_back(screen: Screen) -> None:
    name = opened(screen)
    line = ".line:has-text('Prompt number 1?')"
    screen.click(f"{line} button:text-is('Remove')")
    screen.page.wait_for_selector("dialog[open]")
    screen.click("dialog button:text-is('Cancel')")
    assert "Prompt number 1?" in screen.stage.say(name, "Go on.")
    screen.click(f"{line} button:text-is('Remove')")
    screen.press("dialog button:text-is('Remove for good')")
    screen.page.wait_for_selector(".line.s-removed")
    assert "Prompt number 1?" not in screen.stage.say(name, "And on.")
    assert screen.stage.get(f"/sessions/{name}/messages?q=Prompt+number+1")["items"] == []
    assert screen.page.locator(".line.s-removed button:text-is('Restore')").count() == 0


def test_undo_removes_the_last_group_from_the_next_prompt(screen: Screen) -> None:
    name = opened(screen)
    screen.press("button:text-is('Undo last group')")
    sent = screen.stage.say(name, "Go on.")
    assert "Prompt number 2?" not in sent
    assert "Prompt number 1?" in sent


def test_the_window_field_limits_the_next_prompt_to_the_last_groups(screen: Screen) -> None:
    name = opened(screen)
    screen.page.fill(".toolbar input[type=number]", "2")
    screen.press(".toolbar button:text-is('Set')")
    sent = screen.stage.say(name, "Go on.")
    assert "Prompt number 0?" not in sent
    assert "Prompt number 2?" in sent
    screen.page.fill(".toolbar input[type=number]", "0")
    screen.press(".toolbar button:text-is('Set')")
    assert screen.stage.get(f"/sessions/{name}/settings")["window"] == 0


@pytest.mark.parametrize("how", ["Prune", "Compress"])
def test_prune_and_compress_leave_fewer_whole_results_in_the_prompt(screen: Screen, how: str) -> None:
    name = opened(screen)
    before = list_whole_results(screen.stage.say(name, "Go on."), name)
    screen.press(f".toolbar button:text-is('{how}')")
    assert len(list_whole_results(screen.stage.say(name, "And on."), name)) < len(before)


def test_rebuild_asks_the_model_for_its_state(screen: Screen) -> None:
    name = opened(screen)
    assert "### STATE" not in screen.stage.say(name, "Go on.")
    assert "next request" in screen.press("button:text-is('Rebuild state')")
    assert "### STATE" in screen.stage.say(name, "And on.")


def test_the_state_the_scratchpad_and_notes_are_reported(screen: Screen) -> None:
    name = opened(screen, "/told", "textarea[aria-label=State]")
    screen.page.fill("textarea[aria-label=State]", "Goal: paint the shed green")
    screen.press("button:text-is('Save state')")
    screen.page.fill("textarea[aria-label=Scratchpad]", "- [ ] buy a brush")
    screen.press("button:text-is('Save scratchpad')")
    screen.page.fill("textarea[aria-label='Your notes']", "Leave the windows open.")
    screen.press("button:text-is('Add note')")
    sent = screen.stage.say(name, "Go on.")
    assert "paint the shed green" in sent
    assert "buy a brush" in sent
    assert "Leave the windows open." in sent
    screen.press("button[aria-label='Withdraw this note']")
    screen.page.wait_for_selector(".notes li:text-is('none')")
    assert "Leave the windows open." not in screen.stage.say(name, "And on.")


def test_feedback_is_stored_for_the_next_iteration(screen: Screen) -> None:
    name = opened(screen, "/told", "textarea[aria-label=Feedback]")
    screen.page.fill("textarea[aria-label=Feedback]", "Too slow.")
    screen.press("button:text-is('Add feedback')")
    assert [one["text"] for one in screen.stage.get(f"/sessions/{name}/feedback")] == ["Too slow."]


def test_saved_policy_and_window_hold_for_the_next_prompt(screen: Screen) -> None:
    name = opened(screen, "/settings", "button:text-is('Save settings')")
    screen.page.get_by_label("Policy").select_option("rolling")
    screen.page.get_by_label("Window").fill("1")
    screen.press("button:text-is('Save settings')")
    sent = screen.stage.say(name, "Go on.")
    assert "Prompt number 1?" not in sent
    assert screen.stage.get(f"/sessions/{name}/exchanges?limit=1")["items"][0]["policy"] == "rolling"


def test_a_session_can_be_exported_and_deleted(screen: Screen) -> None:
    name = opened(screen, "/settings", "button:text-is('Save settings')")
    with screen.page.expect_download() as found:
        screen.click("button:text-is('Export as JSONL')")
    line = json.loads(found.value.path().read_text())
    assert line["messages"][1] == {"role": "user", "content": "Prompt number 0?"}
    screen.click("button:text-is('Delete session')")
    screen.press("dialog button:text-is('Delete session')")
    screen.page.wait_for_selector("h1:text-is('Overview')")
    assert screen.stage.ask("GET", f"/api/sessions/{name}")[0] == 404


def test_memos_are_mended_and_removed(screen: Screen) -> None:
    screen.stage.memo("The shed was painted red in spring.", "shed")
    question = "What colour has the shed?"
    assert "painted red" in screen.stage.say("asks-0", question)
    screen.go("#/memos", ".memo")
    screen.click("button[aria-label='Edit this memo']")
    screen.page.get_by_label("Memo").fill("The shed was painted blue in spring.")
    screen.press("button:text-is('Save memo')")
    assert "painted blue" in screen.stage.say("asks-1", question)
    screen.click("button[aria-label='Delete this memo']")
    screen.press("dialog button:text-is('Delete memo')")
    assert "painted" not in screen.stage.say("asks-2", question)


def test_a_prompt_is_shown_beside_the_original_with_why(screen: Screen) -> None:
    name = opened(screen)
    screen.press(".line:has-text('Prompt number 0?') button:text-is('Drop')")
    screen.stage.say(name, "Go on.")
    screen.go(f"#/s/acme/{name}/prompts", ".pair")
    newest = screen.stage.get(f"/sessions/{name}/exchanges?limit=1")["items"][0]["exchange"]
    screen.click(f".request[href$='{newest}']")
    screen.page.wait_for_selector("h2:text-is('The request as it was sent')")
    gone = screen.page.locator(".pair.s-dropped").first
    gone.wait_for()
    assert "Prompt number 0?" in gone.locator("del").first.inner_text()
    assert "dropped by the operator" in gone.locator(".why").inner_text()
    with screen.page.expect_download() as found:
        screen.click("button:text-is('Save what was sent')")
    assert "Prompt number 0?" not in found.value.path().read_text()
