// The next prompt as one strip: each group a bar of its messages, coloured by kind, hollow if out of the prompt.
import { h } from "./dom.js";
import { counted, fate, inserted, short, whole, words } from "./format.js";

const KINDS = [["tools", "tool definitions"], ["system", "system"], ["user", "user"], ["thinking", "thinking and answers"], ["tool", "tool results"], ["insert", "inserted by the proxy"]];
const NAMES = Object.fromEntries(KINDS);
const WRAP_AT = 30;
const OUT = new Set(["out", "dropped", "removed"]);

export function legend() {
  return h("ul", { class: "legend", "aria-label": "Colours" },
    KINDS.map(([kind, text]) => h("li", {}, h("i", { class: `swatch k-${kind}` }), text)),
    h("li", {}, h("i", { class: "swatch k-tool part" }), "shortened"),
    h("li", {}, h("i", { class: "swatch k-tool out" }), "left out"));
}

/** The status of a piece in the next prompt, with its reason, in a line. */
export function why(piece) {
  const verb = piece.status === "removed" ? "removed for good" : fate(piece.status, piece.tokens, piece.sent);
  if (piece.status === "in" || piece.status === undefined) return piece.pinned ? "pinned: no policy edits it" : "in the prompt, unchanged";
  return [verb, piece.reason && `: ${piece.reason}`, piece.stage && ` (${words(piece.stage)})`].filter(Boolean).join("");
}

function piece(one) {
  const kept = one.status === "changed" ? `${Math.round((100 * one.sent) / Math.max(one.tokens, 1))}%` : "100%";
  const look = OUT.has(one.status) ? "out" : one.status === "changed" ? "part" : "";
  const tooltip = `${NAMES[one.kind] || one.kind} · ${one.status === "changed" ? `${short(one.tokens)} → ${short(one.sent)}` : short(one.tokens)} tokens\n${one.source ? inserted(one.source) : why(one)}`;
  return h("i", { class: `piece k-${one.kind} ${look}`, vars: { "--size": String(Math.max(one.tokens, 1)), "--kept": kept }, "data-tooltip": tooltip });
}

function summary(bar) {
  const { group, pieces } = bar;
  const reasons = new Map();
  for (const one of pieces) {
    if (one.status !== "in" && one.status !== undefined) reasons.set(why(one), (reasons.get(why(one)) || 0) + 1);
  }
  const size = group.sent === group.tokens ? `${short(group.tokens)} tokens` : `${short(group.tokens)} → ${short(group.sent)} tokens`;
  return [group.title || "(no user prompt)", `${counted(group.messages, "message")}, ${size}${group.pinned ? ", pinned" : ""}`,
    ...[...reasons].slice(0, 6).map(([text, count]) => `${count} × ${text}`)].join("\n");
}

const FOLD_AT = 120;
const UNFOLDED = 40;

/** Bars of a long conversation: the older groups are one bar for so many, which opens the first of them. */
function folded(bars, open) {
  const older = bars.slice(0, -UNFOLDED);
  const each = Math.ceil(older.length / (FOLD_AT - UNFOLDED));
  const made = [];
  for (let n = 0; n < older.length; n += each) {
    const run = older.slice(n, n + each);
    const inside = run.find((one) => one.group.id === open);
    made.push(run.length === 1 ? run[0] : { run, open: Boolean(inside), chosen: inside || run[0] });
  }
  return [...made, ...bars.slice(-UNFOLDED)];
}

/** The pieces of several groups, added up by kind and status. */
function addedUp(run) {
  const sums = new Map();
  for (const one of run.flatMap((bar) => bar.pieces)) {
    const key = `${one.kind} ${one.status}`;
    const sum = sums.get(key) || { kind: one.kind, status: one.status, tokens: 0, sent: 0 };
    sum.tokens += one.tokens;
    sum.sent += one.sent;
    sums.set(key, sum);
  }
  return [...sums.values()];
}

function foldedBar({ run, open, chosen }, choose, first) {
  const pieces = addedUp(run);
  const [before, sent] = ["tokens", "sent"].map((key) => run.reduce((sum, one) => sum + one.group[key], 0));
  const tooltip = [`Groups ${whole(first + 1)} to ${whole(first + run.length)}`, `${counted(run.reduce((sum, one) => sum + one.group.messages, 0), "message")}, ${before === sent ? short(before) : `${short(before)} → ${short(sent)}`} tokens`,
    ...pieces.filter((one) => one.status !== "in").map((one) => `${NAMES[one.kind] || one.kind}: ${short(one.tokens)} → ${OUT.has(one.status) ? "0" : short(one.sent)} tokens`), `Begins with: ${chosen.group.title || "(no user prompt)"}`].join("\n");
  return h("button", { type: "button", class: "bar run", "data-focus": `bar-${chosen.group.id}`, "data-tooltip": tooltip, "aria-label": tooltip.replaceAll("\n", ". "), "aria-expanded": String(open), tabindex: "-1",
    vars: { "--size": String(pieces.reduce((sum, one) => sum + Math.max(one.tokens, 1), 0)) }, on: { click: () => choose(chosen.group.id) } }, pieces.map((one) => piece(one)));
}

/** The whole strip. open: the id of the opened group; choose: called with an id. */
export function strip(chart, open, choose) {
  const bars = [];
  const size = (pieces) => pieces.reduce((sum, one) => sum + Math.max(one.tokens, 1), 0);
  if (chart.fixed.length) {
    bars.push(h("div", { class: "bar fixed", role: "img", "aria-label": `Tools and system prompt, ${short(size(chart.fixed))} tokens`, vars: { "--size": String(size(chart.fixed)) } }, chart.fixed.map(piece)));
  }
  let passed = 0;
  const buttons = (chart.bars.length > FOLD_AT ? folded(chart.bars, open) : chart.bars).map((bar) => {
    passed += bar.run ? bar.run.length : 1;
    if (bar.run) return foldedBar(bar, choose, passed - bar.run.length);
    const tooltip = summary(bar);
    const made = h("button", {
      type: "button", class: `bar s-${bar.group.status}`, "data-focus": `bar-${bar.group.id}`, "data-tooltip": tooltip, "aria-label": tooltip.replaceAll("\n", ". "),
      "aria-expanded": String(bar.group.id === open), tabindex: "-1", vars: { "--size": String(size(bar.pieces)) },
      on: { click: () => choose(bar.group.id) },
    }, bar.pieces.map(piece));
    return made;
  });
  bars.push(...buttons);
  if (chart.inserts.length) {
    const inserts = chart.inserts.map((one) => ({ kind: "insert", tokens: one.tokens, sent: one.tokens, status: "in", source: one.source }));
    bars.push(h("div", { class: "bar fixed", role: "img", "aria-label": `Inserted by the proxy, ${short(size(inserts))} tokens`, vars: { "--size": String(size(inserts)) } }, inserts.map(piece)));
  }
  const first = buttons.find((one) => one.getAttribute("aria-expanded") === "true") || buttons.at(-1);
  if (first) first.tabIndex = 0;
  const all = bars.map((bar) => Number(bar.style.getPropertyValue("--size")));
  const total = all.reduce((sum, one) => sum + one, 0);
  bars.forEach((bar, n) => bar.style.setProperty("--share", (all[n] / total).toFixed(6)));
  const made = h("div", { class: `strip${bars.length > WRAP_AT ? " wraps" : ""}`, role: "group", "aria-label": "The groups of the conversation; arrow keys move" }, bars);
  made.addEventListener("keydown", (event) => move(event, buttons));
  hints(made);
  return made;
}

/** Left and right go from group to group. */
function move(event, buttons) {
  const here = buttons.indexOf(document.activeElement);
  const to = { ArrowLeft: here - 1, ArrowRight: here + 1, Home: 0, End: buttons.length - 1 }[event.key];
  if (here < 0 || to === undefined || !buttons[to]) return;
  event.preventDefault();
  for (const one of buttons) one.tabIndex = -1;
  buttons[to].tabIndex = 0;
  buttons[to].focus();
}

/** The description of the piece under the pointer or the keyboard focus. */
export function hints(root) {
  const tip = h("div", { class: "tip", role: "tooltip", hidden: true });
  root.append(tip);
  const show = (from) => {
    const target = from && from.closest ? from.closest("[data-tooltip]") : null;
    if (!target || !root.contains(target)) {
      tip.hidden = true;
      return;
    }
    tip.textContent = target.dataset.tooltip;
    tip.hidden = false;
    const [frame, box] = [root.getBoundingClientRect(), target.getBoundingClientRect()];
    const left = box.left + box.width / 2 - frame.left - tip.offsetWidth / 2;
    tip.style.setProperty("left", `${Math.max(0, Math.min(left, frame.width - tip.offsetWidth))}px`);
    tip.style.setProperty("top", `${box.bottom - frame.top + 8}px`);
  };
  root.addEventListener("pointerover", (event) => show(event.target));
  root.addEventListener("pointerleave", () => show(null));
  root.addEventListener("focusin", (event) => show(event.target.matches(":focus-visible") ? event.target : null));
  root.addEventListener("focusout", () => show(null));
  root.addEventListener("keydown", (event) => event.key === "Escape" && show(null));
}
