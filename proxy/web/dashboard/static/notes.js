// Texts for the model in addition to its history: state, scratchpad, the operator's notes, feedback, summaries.
import { ask, at } from "./api.js";
import { button, h, swap } from "./dom.js";
import { ago, counted, short, words } from "./format.js";
import { act } from "./notices.js";

export function showNotes(session) {
  const root = h("div", { class: "columns" });
  swap(session.root, root);
  const state = editor(session, "State", "What the model has to keep in mind: it stands in every prompt, in place of the messages that were left out.", {
    get: () => ask("GET", at(session.place, "/state", { branch: session.branch }), undefined, session.signal),
    put: (text) => ask("PUT", at(session.place, "/state", { branch: session.branch }), { text }),
    describe: (got) => (got.text ? `by the ${got.by} · ${counted(got.versions, "version")}` : "none yet"),
    empty: false,
  });
  const pad = editor(session, "Scratchpad", "Notes and open items in Markdown, kept by the model and by you.", {
    get: () => ask("GET", at(session.place, "/scratchpad"), undefined, session.signal),
    put: (text) => ask("PUT", at(session.place, "/scratchpad"), { text }),
    describe: (got) => (got.number ? `version ${got.number}, by the ${got.author || "model"}, ${ago(got.created_at)}` : "empty"),
    empty: true,
  });
  const notes = noteList(session, "Your notes", "Each is put at the end of the next prompt, and stays there until you withdraw it.", "/notes", "Add note", true);
  const feedback = noteList(session, "Feedback", "What the user thinks of the work so far: it goes into the record of the next iteration.", "/feedback", "Add feedback", false);
  const summaries = h("section", { class: "panel" });
  swap(root, h("div", { class: "stack" }, state.element, notes.element), h("div", { class: "stack" }, pad.element, feedback.element), summaries);
  session.changed = async () => {
    await Promise.all([state.load(), pad.load(), notes.load(), feedback.load(), loadSummaries(session, summaries)]);
  };
}

/** A text that can be read and, with an admin's key, replaced. A text that is being written is not overwritten. */
function editor(session, title, about, { get, put, describe, empty }) {
  const name = title.toLowerCase();
  const area = h("textarea", { rows: 12, spellcheck: "false", "aria-label": title, readonly: !session.may });
  const facts = h("p", { class: "facts" });
  let stored = "";
  const set = (got) => {
    const touched = area.value !== stored;
    stored = got.text || "";
    if (!touched) area.value = stored;
    swap(facts, h("span", {}, describe(got)));
    check();
  };
  const write = () => act(async () => set(await put(area.value)), `${title} stored: the next prompt has it.`);
  const save = button(`Save ${name}`, async () => { stored = area.value; await write(); session.refresh(); }, { kind: "main", focus: `save-${name}` });
  const back = button("Discard", () => { area.value = stored; check(); }, { kind: "quiet", focus: `discard-${name}` });
  const check = () => {
    const same = area.value === stored;
    save.disabled = same || (!empty && !area.value.trim());
    back.disabled = same;
  };
  area.addEventListener("input", check);
  check();
  const element = h("section", { class: "panel" }, h("h2", {}, title), h("p", { class: "soft" }, about), facts, area, session.may && h("div", { class: "row" }, save, back));
  return { element, load: async () => set(await get()) };
}

/** A list of notes, to which a person can add one. withdraw: each can be withdrawn again. */
function noteList(session, title, about, path, verb, withdraw) {
  const list = h("ul", { class: "notes" });
  const area = h("textarea", { rows: 2, "aria-label": title });
  const load = async () => {
    const found = await ask("GET", at(session.place, path, path === "/feedback" ? { branch: session.branch } : {}), undefined, session.signal);
    swap(list, found.length ? found.map((one) => h("li", {}, h("pre", { class: "text" }, one.text),
      h("span", { class: "facts" }, h("span", {}, ago(one.created_at)),
        withdraw && session.may && button("Withdraw", async () => {
          await act(() => ask("DELETE", at(session.place, `/notes/${encodeURIComponent(one.id)}`)), "The note leaves the prompts.");
          await load();
        }, { kind: "quiet small", label: "Withdraw this note", focus: `withdraw-${one.id}` })))) : h("li", { class: "soft" }, "none"));
  };
  const add = async (event) => {
    event.preventDefault();
    if (!area.value.trim()) return;
    const made = await act(() => ask("POST", at(session.place, path, path === "/feedback" ? { branch: session.branch } : {}), { text: area.value }), `${verb.replace("Add", "Added")}.`);
    if (made) area.value = "";
    await load().catch(session.fail);
  };
  const element = h("section", { class: "panel" }, h("h2", {}, title), h("p", { class: "soft" }, about), list,
    session.may && h("form", { class: "stack", on: { submit: add } }, area, h("div", {}, h("button", { class: "button", type: "submit" }, verb))));
  return { element, load };
}

async function loadSummaries(session, box) {
  const { items, next } = await ask("GET", at(session.place, "/summaries", { branch: session.branch, limit: 50 }), undefined, session.signal);
  swap(box, h("h2", {}, "Summaries"), h("p", { class: "soft" }, "Texts that stand in the place of others in the prompt."),
    items.length ? items.map((one) => h("details", { class: "summary" },
      h("summary", {}, h("span", {}, words(one.by)), h("span", { class: "facts" }, one.tokens_before !== null && one.tokens_before !== undefined && h("span", {}, `${short(one.tokens_before)} → ${short(one.tokens_after)} tokens`), one.created_at && h("span", {}, ago(one.created_at)))),
      h("pre", { class: "text" }, one.text))) : h("p", { class: "soft" }, "none"),
    next && h("p", { class: "soft" }, "There are more: GET /summaries has them all."));
}
