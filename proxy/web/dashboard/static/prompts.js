// The requests of a session on a time line, and the prompt of any of them next to the client's own.
import { ask, at, save } from "./api.js";
import { chart } from "./chart.js";
import { button, h, swap } from "./dom.js";
import { diff } from "./diff.js";
import { ago, clock, counted, fate, outcome, percent, short, words } from "./format.js";
import { marksOf, newestRequests, part, withoutSideCalls } from "./latency.js";
import { reason, textOf } from "./message.js";
import { act } from "./notices.js";

const LINES = 60;
const CONTEXT_LINES = 3;
const CHANGES_DRAWN = 40;
const MESSAGES_FETCHED = 400;
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
      found.map((one) => entry(`${base}/${encodeURIComponent(one.exchange)}`, wanted === one.exchange, `${clock(one.started_at)} · ${one.status === "complete" ? counted(one.messages, "message") : outcome(one.status)}`,
        one.tokens_before === one.tokens_after ? short(one.tokens_after) : [h("s", {}, short(one.tokens_before)), " ", h("b", {}, short(one.tokens_after))], ago(one.started_at), one.fallback && h("span", { class: "flag bad" }, "sent without its plan"))),
      next && button("Older", () => { cursors = [...cursors, next]; load().catch(session.fail); }, { kind: "quiet", focus: "older" }));
  };
  let drawn = false;
  const fetchPrompt = async () => {
    if (drawn && wanted !== "next") return;
    if (!drawn) swap(shown, h("p", { class: "soft" }, "Building the prompt…"));
    const place = wanted === "next" ? "/prompt" : `/exchanges/${encodeURIComponent(wanted)}/prompt`;
    const fetchPage = (first, more) => ask("GET", at(session.place, place, { branch: wanted === "next" ? session.branch : "", first, limit: MESSAGES_FETCHED, ...more }), undefined, session.signal);
    const prompt = await fetchPage(0, { changed: true });
    drawn = true;
    swap(shown, draw(session, prompt, fetchPage));
  };
  session.changed = async (stats, record) => {
    await Promise.all([load(), timeLine(session, line, base, stats, record)]);
    await fetchPrompt();
  };
}

async function timeLine(session, box, base, stats, record) {
  const all = await newestRequests(session);
  const points = withoutSideCalls(all, record);
  if (points.length < 2) return;
  const open = (n) => { location.hash = `${base}/${encodeURIComponent(points[n].exchange)}`; };
  swap(box, chart(`Tokens of each request${part(all, stats)}; choose one to see its prompt`, { at: points.map((one) => one.started_at), inOrder: true, open, format: short, marks: marksOf(points), between: ["as the client sent it", "as it went out"], series: [
    { name: "as the client sent it", look: "c-without", values: points.map((one) => one.tokens_before), kind: "line" },
    { name: "as it went out", look: "c-paid", values: points.map((one) => one.tokens_after), kind: "line" }] }));
}

function entry(href, here, title, ...facts) {
  return h("a", { class: "request", href, "aria-current": here ? "true" : undefined, "data-focus": href }, h("span", {}, title), h("span", { class: "facts" }, facts.filter(Boolean).map((one) => h("span", {}, one))));
}

function draw(session, prompt, fetchPage) {
  const bytes = (which) => () => act(() => save(at(session.place, `/exchanges/${encodeURIComponent(prompt.exchange)}/body`, { which }), `${prompt.exchange}-${which}.json`));
  const share = prompt.tokens_before ? 1 - prompt.tokens_after / prompt.tokens_before : 0;
  return [
    h("div", { class: "prompt-head" },
      h("h2", {}, prompt.exchange ? "The request as it was sent" : "The next request, if it came now"),
      h("p", { class: "facts" }, h("span", {}, prompt.policy), h("bdi", {}, prompt.model),
        h("span", {}, `${short(prompt.tokens_before)} → ${short(prompt.tokens_after)} tokens${share > 0.005 ? `, ${percent(share)} less` : ""}`),
        h("span", {}, counted(prompt.count, "message")), h("span", {}, counted(prompt.changes, "change"))),
      prompt.refused && h("p", { class: "notice bad" }, `It was sent unchanged: ${words(prompt.refused)}.`),
      prompt.exchange && h("p", { class: "row" }, button("Save what was sent", bytes("sent"), { kind: "quiet small" }), button("Save the original", bytes("original"), { kind: "quiet small" }))),
    changes(prompt, fetchPage, session.fail),
  ];
}

/** The messages with what differs, from the first change on: what is the same is folded. A page begins at the next
 * change, and pages are fetched as far as changes are drawn: a long session costs no more than what is looked at. */
function changes(prompt, fetchPage, fail) {
  const total = prompt.changes;
  let next = 0;
  let drawn = 0;
  const waiting = []; // parts that are not drawn: {change, inserts}, {same: messages}, or {first, until} of the same ones that are not fetched
  const take = (page) => {
    const inserted = new Map();
    for (const one of page.inserts) inserted.set(one.index, [...(inserted.get(one.index) || []), one]);
    const first = page.messages.length ? page.messages[0].index : page.count;
    if (first > next) waiting.push({ first: next, until: first });
    for (const one of page.messages) {
      const inserts = inserted.get(one.index) || [];
      if (one.status !== "in" || inserts.length) waiting.push({ change: one, inserts });
      else if (waiting.at(-1)?.same) waiting.at(-1).same.push(one);
      else waiting.push({ same: [one] });
    }
    for (const one of inserted.get(-1) || []) waiting.push({ insert: one });
    next = page.next;
  };
  take(prompt);
  const box = h("div", { class: "changes" });
  const place = h("span", { class: "soft", "aria-live": "polite" });
  const more = h("div", { class: "row centre" });
  const all = () => [...box.querySelectorAll("[data-change]")];
  let here = -1;
  const go = async (step) => {
    if (here + step >= drawn && drawn < total) await add();
    const there = all();
    here = Math.max(0, Math.min(there.length - 1, here + step));
    if (!there[here]) return;
    there[here].scrollIntoView({ block: "start" });
    there[here].focus({ preventScroll: true });
    place.textContent = `change ${here + 1} of ${total}`;
  };
  const step = (by) => () => go(by).catch(fail);
  const bar = h("div", { class: "diff-bar", role: "group", "aria-label": "Changes" },
    button("Previous change", step(-1), { kind: "small", focus: "previous" }), button("Next change", step(1), { kind: "small", focus: "next" }), place);
  place.textContent = total ? counted(total, "change") : "nothing differs";
  const draw = (part) => {
    if (part.same) box.append(unchanged(part.same));
    else if (part.until) box.append(skipped(part, fetchPage, fail));
    else if (part.insert) box.append(h("div", { class: "pair", "data-change": "", tabindex: "-1" }, h("div", { class: "cell empty" }), h("div", { class: "cell" }, ours(part.insert))));
    else box.append(pair(part.change, part.inserts));
    if (!part.same && !part.until) drawn += 1;
  };
  let adding = null; // two at once would draw one page twice
  const add = () => (adding ??= addMore().finally(() => (adding = null)));
  const addMore = async () => {
    const until = Math.min(total, drawn + CHANGES_DRAWN);
    while (drawn < until) {
      // A run of messages that are the same may go on in the next page.
      while (drawn < until && waiting.length && (next === null || waiting.length > 1 || !waiting[0].same)) draw(waiting.shift());
      if (next === null || drawn === until) break;
      take(await fetchPage(next, { changed: true }));
    }
    finish();
  };
  /** Below the last drawn change: a button for the changes that follow, or the messages behind them. */
  const finish = () => {
    if (drawn < total && (waiting.length || next !== null)) {
      swap(more, button(`Show more of the ${counted(total - drawn, "change")} below`, () => add().catch(fail), { kind: "quiet", focus: "more-changes" }));
      return;
    }
    for (const part of waiting.splice(0)) draw(part);
    if (next !== null) draw({ first: next, until: prompt.count });
    next = null;
    swap(more);
  };
  add().catch(fail);
  return [total ? bar : null, h("div", { class: "diff-head", "aria-hidden": "true" }, h("span", {}, "As the client sent it"), h("span", {}, prompt.exchange ? "As it went out" : "As it would go out")), box, more];
}

function unchanged(run) {
  const tokens = run.reduce((sum, one) => sum + one.tokens, 0);
  const box = h("div", { class: "unchanged" });
  const open = () => swap(box, run.map((one) => pair(one, [])));
  swap(box, button(`${counted(run.length, "message")} the same · ${short(tokens)} tokens`, open, { kind: "quiet" }));
  return box;
}

/** Messages that are the same and are not fetched: a page of them, and then what is behind it, when they are asked for. */
function skipped(part, fetchPage, fail) {
  const box = h("div", { class: "unchanged" });
  const open = async () => {
    const page = await fetchPage(part.first, { limit: Math.min(MESSAGES_FETCHED, part.until - part.first) });
    const rest = { first: part.first + page.messages.length, until: part.until };
    swap(box, page.messages.map((one) => pair(one, [])));
    if (page.messages.length && rest.first < rest.until) box.after(skipped(rest, fetchPage, fail));
  };
  swap(box, button(`${counted(part.until - part.first, "message")} the same`, () => open().catch(fail), { kind: "quiet" }));
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
    one.status !== "in" && h("span", { class: `flag s-${one.status}` }, fate(one.status, one.why ? one.why.tokens_before : 0, one.why ? one.why.tokens_after : 0)),
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

