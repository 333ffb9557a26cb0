// The prompt of any request next to the client's own, with a reason for each message that differs.
import { ask, at, save } from "./api.js";
import { button, h, swap } from "./dom.js";
import { diff } from "./diff.js";
import { ago, clock, counted, percent, short, words } from "./format.js";
import { reason, textOf } from "./message.js";
import { act } from "./say.js";

const LINES = 60;
const OUT = new Set(["out", "dropped", "removed"]);

export function showPrompts(session) {
  const list = h("nav", { class: "requests", "aria-label": "Requests" });
  const shown = h("div", { class: "prompt" });
  swap(session.root, h("div", { class: "prompts" }, list, shown));
  const wanted = session.rest[0] || "next";
  let cursors = [null];
  const base = `${session.base}/prompts`;

  const load = async () => {
    const found = [];
    let next = null;
    for (const cursor of cursors) {
      const got = await ask("GET", at(session.place, "/exchanges", { limit: 40, cursor, thread: session.thread }), undefined, session.signal);
      found.push(...got.items);
      next = got.next;
    }
    swap(list,
      entry(`${base}/next`, wanted === "next", "Next request", "as it would go out now"),
      found.map((one) => entry(`${base}/${encodeURIComponent(one.exchange)}`, wanted === one.exchange, `${clock(one.started_at)} · ${one.status === "complete" ? counted(one.messages, "message") : one.status}`,
        one.tokens_before === one.tokens_after ? short(one.tokens_after) : [h("s", {}, short(one.tokens_before)), " ", h("b", {}, short(one.tokens_after))], ago(one.started_at), one.fallback && h("span", { class: "flag bad" }, "fallback"))),
      next && button("Older", () => { cursors = [...cursors, next]; load().catch(session.fail); }, { kind: "quiet", focus: "older" }));
  };
  let drawn = false;
  const fetchPrompt = async () => {
    if (drawn && wanted !== "next") return;
    if (!drawn) swap(shown, h("p", { class: "soft" }, "Building the prompt…"));
    const path = wanted === "next" ? at(session.place, "/prompt", { thread: session.thread }) : at(session.place, `/exchanges/${encodeURIComponent(wanted)}/prompt`);
    const prompt = await ask("GET", path, undefined, session.signal);
    drawn = true;
    swap(shown, draw(session, prompt));
  };
  session.changed = async () => {
    await load();
    await fetchPrompt();
  };
}

function entry(href, here, title, ...facts) {
  return h("a", { class: "request", href, "aria-current": here ? "true" : undefined, "data-focus": href }, h("span", {}, title), h("span", { class: "facts" }, facts.filter(Boolean).map((one) => h("span", {}, one))));
}

function draw(session, prompt) {
  const changed = prompt.messages.filter((one) => one.status !== "in").length;
  const bytes = (which) => () => act(() => save(at(session.place, `/exchanges/${encodeURIComponent(prompt.exchange)}/body`, { which }), `${prompt.exchange}-${which}.json`));
  const share = prompt.tokens_before ? 1 - prompt.tokens_after / prompt.tokens_before : 0;
  return [
    h("div", { class: "prompt-head" },
      h("h2", {}, prompt.exchange ? "What was sent" : "What would go out now"),
      h("p", { class: "facts" }, h("span", {}, prompt.policy), h("bdi", {}, prompt.model),
        h("span", {}, `${short(prompt.tokens_before)} → ${short(prompt.tokens_after)} tokens${share > 0.005 ? `, ${percent(share)} less` : ""}`),
        h("span", {}, `${counted(changed, "message")} changed`), h("span", {}, counted(prompt.inserts.length, "insert"))),
      prompt.refused && h("p", { class: "notice bad" }, `It went out as it came: ${words(prompt.refused)}.`),
      prompt.exchange && h("p", { class: "row" }, button("Save what was sent", bytes("sent"), { kind: "quiet small" }), button("Save the original", bytes("original"), { kind: "quiet small" }))),
    h("div", { class: "diff-head", "aria-hidden": "true" }, h("span", {}, "As the client sent it"), h("span", {}, prompt.exchange ? "As it went out" : "As it would go out")),
    rows(prompt),
  ];
}

/** Runs of unchanged messages are one line until they are opened. */
function rows(prompt) {
  const inserted = new Map();
  for (const one of prompt.inserts) inserted.set(one.index, [...(inserted.get(one.index) || []), one]);
  const made = [];
  let same = [];
  const flush = () => {
    if (!same.length) return;
    const run = same;
    const tokens = run.reduce((sum, one) => sum + one.tokens, 0);
    if (run.length <= 2) made.push(...run.map((one) => pair(one, [])));
    else {
      const box = h("div", { class: "unchanged" });
      const open = () => swap(box, run.map((one) => pair(one, [])));
      swap(box, button(`${counted(run.length, "message")} unchanged · ${short(tokens)} tokens`, open, { kind: "quiet" }));
      made.push(box);
    }
    same = [];
  };
  for (const one of prompt.messages) {
    const ours = inserted.get(one.index) || [];
    if (one.status === "in" && !ours.length) same.push(one);
    else {
      flush();
      made.push(pair(one, ours));
    }
  }
  flush();
  for (const insert of inserted.get(-1) || []) made.push(h("div", { class: "pair" }, h("div", { class: "cell empty" }), h("div", { class: "cell" }, ours(insert))));
  return made;
}

function pair(one, inserts) {
  const out = OUT.has(one.status);
  const head = h("div", { class: "pair-head" }, h("span", { class: "role" }, one.source === "next" ? "next" : one.role),
    h("span", { class: "tokens" }, one.why ? [h("s", {}, short(one.why.tokens_before)), " ", h("b", {}, short(one.why.tokens_after))] : short(one.tokens)),
    one.status !== "in" && h("span", { class: `flag s-${one.status}` }, { changed: "shortened", out: "left out" }[one.status] || one.status),
    one.why && reason(one.why));
  const before = textOf(one.whole ?? one.content);
  const after = out ? "" : textOf(one.content);
  const lines = one.status === "in" ? diff(before, before) : out ? before.split("\n").map((text) => ({ sign: "-", text })) : diff(before, after);
  return h("div", { class: `pair s-${one.status}` }, head,
    h("div", { class: "cell" }, block(lines.filter((line) => line.sign !== "+"), "-")),
    h("div", { class: `cell${out ? " empty" : ""}` }, out ? h("p", { class: "soft" }, "not in the prompt") : block(lines.filter((line) => line.sign !== "-"), "+"), inserts.map(ours)));
}

function block(lines, sign, all = false) {
  const box = h("div", {});
  const cut = all ? lines : lines.slice(0, LINES);
  swap(box, h("pre", { class: "text diff" }, cut.map((line) => (line.sign === sign ? h(sign === "-" ? "del" : "ins", {}, `${line.text}\n`) : `${line.text}\n`))),
    cut.length < lines.length && button(`${counted(lines.length - cut.length, "more line")}`, () => box.replaceWith(block(lines, sign, true)), { kind: "quiet small" }));
  return box;
}

function ours(insert) {
  return h("div", { class: "insert" }, h("p", { class: "label" }, `inserted: ${words(insert.source)}`), h("pre", { class: "text diff" }, h("ins", {}, insert.text.trim())));
}

