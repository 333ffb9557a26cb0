// The requests of a session on a time line, and the prompt of any of them next to the client's own.
import { ask, at, save } from "./api.js";
import { chart } from "./chart.js";
import { button, h, swap } from "./dom.js";
import { diff } from "./diff.js";
import { ago, clock, counted, percent, short, words } from "./format.js";
import { marksOf } from "./latency.js";
import { reason, textOf } from "./message.js";
import { act } from "./say.js";

const LINES = 60;
const CONTEXT_LINES = 3;
const CHANGES_DRAWN = 40;
const OUT = new Set(["out", "dropped", "removed"]);

export function showPrompts(session) {
  const list = h("nav", { class: "requests", "aria-label": "Requests" });
  const shown = h("div", { class: "prompt" });
  const line = h("div", { class: "time-line" });
  swap(session.root, line, h("div", { class: "prompts" }, list, shown));
  const wanted = session.rest[0] || "next";
  let cursors = [null];
  const base = `${session.base}/prompts`;

  const load = async () => {
    const found = [];
    let next = null;
    for (const cursor of cursors) {
      const got = await ask("GET", at(session.place, "/exchanges", { limit: 40, cursor, branch: session.branch }), undefined, session.signal);
      found.push(...got.items);
      next = got.next;
    }
    swap(list,
      entry(`${base}/next`, wanted === "next", "Next request", "as it would go out now"),
      found.map((one) => entry(`${base}/${encodeURIComponent(one.exchange)}`, wanted === one.exchange, `${clock(one.started_at)} · ${one.status === "complete" ? counted(one.messages, "message") : one.status}`,
        one.tokens_before === one.tokens_after ? short(one.tokens_after) : [h("s", {}, short(one.tokens_before)), " ", h("b", {}, short(one.tokens_after))], ago(one.started_at), one.fallback && h("span", { class: "flag bad" }, "sent unchanged"))),
      next && button("Older", () => { cursors = [...cursors, next]; load().catch(session.fail); }, { kind: "quiet", focus: "older" }));
  };
  let drawn = false;
  const fetchPrompt = async () => {
    if (drawn && wanted !== "next") return;
    if (!drawn) swap(shown, h("p", { class: "soft" }, "Building the prompt…"));
    const path = wanted === "next" ? at(session.place, "/prompt", { branch: session.branch }) : at(session.place, `/exchanges/${encodeURIComponent(wanted)}/prompt`);
    const prompt = await ask("GET", path, undefined, session.signal);
    drawn = true;
    swap(shown, draw(session, prompt));
  };
  session.changed = async () => {
    await Promise.all([load(), timeLine(session, line, base)]);
    await fetchPrompt();
  };
}

async function timeLine(session, box, base) {
  const points = await ask("GET", at(session.place, "/points", { limit: 200, branch: session.branch }), undefined, session.signal);
  if (points.length < 2) return;
  const open = (n) => { location.hash = `${base}/${encodeURIComponent(points[n].exchange)}`; };
  swap(box, chart("Tokens of each request; choose one to see its prompt", { at: points.map((one) => one.started_at), inOrder: true, open, format: short, marks: marksOf(points), between: ["as the client sent it", "as it went out"], series: [
    { name: "as the client sent it", look: "c-without", values: points.map((one) => one.tokens_before), kind: "line" },
    { name: "as it went out", look: "c-paid", values: points.map((one) => one.tokens_after), kind: "line" }] }));
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
      h("h2", {}, prompt.exchange ? "The request as it was sent" : "The next request, if it came now"),
      h("p", { class: "facts" }, h("span", {}, prompt.policy), h("bdi", {}, prompt.model),
        h("span", {}, `${short(prompt.tokens_before)} → ${short(prompt.tokens_after)} tokens${share > 0.005 ? `, ${percent(share)} less` : ""}`),
        h("span", {}, `${counted(changed, "message")} changed`), h("span", {}, counted(prompt.inserts.length, "insert"))),
      prompt.refused && h("p", { class: "notice bad" }, `It went out as it came: ${words(prompt.refused)}.`),
      prompt.exchange && h("p", { class: "row" }, button("Save what was sent", bytes("sent"), { kind: "quiet small" }), button("Save the original", bytes("original"), { kind: "quiet small" }))),
    changes(prompt),
  ];
}

/** The messages with what differs, from the first change on: what is the same is folded. */
function changes(prompt) {
  const inserted = new Map();
  for (const one of prompt.inserts) inserted.set(one.index, [...(inserted.get(one.index) || []), one]);
  const isChange = (one) => one.status !== "in" || inserted.has(one.index);
  const parts = [];
  for (const one of prompt.messages) {
    if (isChange(one)) parts.push({ change: one });
    else if (parts.at(-1)?.same) parts.at(-1).same.push(one);
    else parts.push({ same: [one] });
  }
  const appended = inserted.get(-1) || [];
  const total = parts.filter((one) => one.change).length + appended.length;
  const box = h("div", { class: "changes" });
  const place = h("span", { class: "soft", "aria-live": "polite" });
  const all = () => [...box.querySelectorAll("[data-change]")];
  let here = -1;
  const go = (step) => {
    const there = all();
    here = Math.max(0, Math.min(there.length - 1, here + step));
    if (!there[here]) return;
    there[here].scrollIntoView({ block: "start" });
    there[here].focus({ preventScroll: true });
    place.textContent = `change ${here + 1} of ${total}`;
  };
  const bar = h("div", { class: "diff-bar", role: "group", "aria-label": "Changes" },
    button("Previous change", () => go(-1), { kind: "small", focus: "previous" }), button("Next change", () => go(1), { kind: "small", focus: "next" }), place);
  place.textContent = total ? counted(total, "change") : "nothing differs";
  let drawn = 0;
  const more = h("div", { class: "row centre" });
  const add = () => {
    let room = CHANGES_DRAWN;
    while (drawn < parts.length && room) {
      const part = parts[drawn];
      drawn += 1;
      if (part.same) box.append(unchanged(part.same));
      else {
        box.append(pair(part.change, inserted.get(part.change.index) || []));
        room -= 1;
      }
    }
    const left = parts.slice(drawn).filter((one) => one.change).length;
    swap(more, left ? button(`Show more of the ${counted(left, "change")} below`, add, { kind: "quiet", focus: "more-changes" }) : null);
    if (drawn === parts.length) for (const one of appended.splice(0)) box.append(h("div", { class: "pair", "data-change": "", tabindex: "-1" }, h("div", { class: "cell empty" }), h("div", { class: "cell" }, ours(one))));
  };
  add();
  return [total ? bar : null, h("div", { class: "diff-head", "aria-hidden": "true" }, h("span", {}, "As the client sent it"), h("span", {}, prompt.exchange ? "As it went out" : "As it would go out")), box, more];
}

function unchanged(run) {
  const tokens = run.reduce((sum, one) => sum + one.tokens, 0);
  const box = h("div", { class: "unchanged" });
  const open = () => swap(box, run.map((one) => pair(one, [])));
  swap(box, button(`${counted(run.length, "message")} the same · ${short(tokens)} tokens`, open, { kind: "quiet" }));
  return box;
}

/** The lines of a diff, with what is the same folded: changed lines and a few around them. {fold: lines} or a line. */
function foldSame(lines) {
  const near = lines.map((_, n) => lines.slice(Math.max(0, n - CONTEXT_LINES), n + CONTEXT_LINES + 1).some((line) => line.sign !== "="));
  const made = [];
  lines.forEach((line, n) => {
    if (near[n]) made.push(line);
    else if (made.at(-1)?.fold) made.at(-1).fold.push(line);
    else made.push({ sign: "=", fold: [line] });
  });
  return made.flatMap((one) => (one.fold && one.fold.length <= 2 ? one.fold : [one]));
}

function pair(one, inserts) {
  const out = OUT.has(one.status);
  const head = h("div", { class: "pair-head" }, h("span", { class: "role" }, one.source === "next" ? "next" : one.role),
    h("span", { class: "tokens" }, one.why ? [h("s", {}, short(one.why.tokens_before)), " ", h("b", {}, short(one.why.tokens_after))] : short(one.tokens)),
    one.status !== "in" && h("span", { class: `flag s-${one.status}` }, { changed: "shortened", out: "left out" }[one.status] || one.status),
    one.why && reason(one.why));
  const before = textOf(one.whole ?? one.content);
  const after = out ? "" : textOf(one.content);
  const lines = foldWhere(one.status !== "in" && !out, one.status === "in" ? diff(before, before) : out ? before.split("\n").map((text) => ({ sign: "-", text })) : diff(before, after));
  const change = one.status !== "in" || inserts.length > 0;
  return h("div", { class: `pair s-${one.status}`, "data-change": change ? "" : undefined, tabindex: change ? "-1" : undefined }, head,
    h("div", { class: "cell" }, block(lines.filter((line) => line.sign !== "+"), "-")),
    h("div", { class: `cell${out ? " empty" : ""}` }, out ? h("p", { class: "soft" }, "not in the prompt") : block(lines.filter((line) => line.sign !== "-"), "+"), inserts.map(ours)));
}

const foldWhere = (wanted, lines) => (wanted ? foldSame(lines) : lines);

function block(lines, sign, all = false) {
  const box = h("div", {});
  const cut = all ? lines : lines.slice(0, LINES);
  const text = h("pre", { class: "text diff" }, cut.map((line) => {
    if (line.fold) {
      return h("span", { class: "fold" }, `⋯ ${counted(line.fold.length, "line")} the same\n`);
    }
    return line.sign === sign ? h(sign === "-" ? "del" : "ins", {}, `${line.text}\n`) : `${line.text}\n`;
  }));
  const folds = cut.some((line) => line.fold);
  swap(box, text, h("div", { class: "row" },
    folds && button("Show what is the same", () => box.replaceWith(block(lines.flatMap((line) => line.fold || [line]), sign, all)), { kind: "quiet small" }),
    cut.length < lines.length && button(`${counted(lines.length - cut.length, "more line")}`, () => box.replaceWith(block(lines, sign, true)), { kind: "quiet small" })));
  return box;
}

function ours(insert) {
  return h("div", { class: "insert" }, h("p", { class: "label" }, `inserted: ${words(insert.source)}`), h("pre", { class: "text diff" }, h("ins", {}, insert.text.trim())));
}

