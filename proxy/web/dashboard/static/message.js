// One message of a group: its text, the decision about it, and the reason.
import { button, h, swap } from "./dom.js";
import { actions } from "./context.js";
import { ago, fate, inserted, short, words } from "./format.js";

const LONG = 1600;

/** The parts of a message in chat completions' form: [{kind, text}]. Any content comes out as text. */
export function partsOf(body) {
  if (body === null || body === undefined) return [];
  if (typeof body !== "object" || Array.isArray(body)) return [{ kind: "text", text: plain(body) }];
  const made = [];
  const reasoning = body.reasoning_content ?? body.reasoning;
  if (reasoning) made.push({ kind: "reasoning", text: plain(reasoning) });
  if (typeof body.content === "string") {
    if (body.content) made.push({ kind: "text", text: body.content });
  } else if (Array.isArray(body.content)) {
    for (const part of body.content) made.push(partOf(part));
  } else if (body.content !== null && body.content !== undefined) {
    made.push({ kind: "text", text: plain(body.content) });
  }
  if (body.refusal) made.push({ kind: "text", text: plain(body.refusal) });
  for (const call of Array.isArray(body.tool_calls) ? body.tool_calls : []) made.push(callOf(call));
  return made;
}

function partOf(part) {
  if (part && typeof part === "object") {
    if (typeof part.text === "string") return { kind: "text", text: part.text };
    const address = part.image_url && (part.image_url.url ?? part.image_url);
    return { kind: "text", text: `[${plain(part.type || "part")}${typeof address === "string" ? ` ${address.slice(0, 80)}` : ""}]` };
  }
  return { kind: "text", text: plain(part) };
}

function callOf(call) {
  const made = (call && (call.function || call.custom)) || {};
  const given = made.arguments ?? made.input ?? "";
  return { kind: "call", text: `${plain(made.name ?? "")}(${typeof given === "string" ? given : plain(given)})` };
}

function plain(value) {
  return typeof value === "string" ? value : JSON.stringify(value, null, 1);
}

/** The whole text of a message, for a diff. */
export function textOf(body) {
  return partsOf(body).map((one) => (one.kind === "call" ? `→ ${one.text}` : one.text)).join("\n");
}

/** A text that opens when it is long. */
export function long(text, kind = "text") {
  if (text.length <= LONG) return h("pre", { class: kind }, text);
  const made = h("pre", { class: kind }, `${text.slice(0, LONG)}…`);
  const box = h("div", {}, made, button(`Show all ${short(text.length)} characters`, () => swap(box, h("pre", { class: kind }, text)), { kind: "quiet small" }));
  return box;
}

function content(body) {
  const parts = partsOf(body);
  return parts.length ? parts.map((one) => long(one.text, one.kind)) : h("p", { class: "soft" }, "(empty)");
}

const KINDS = { assistant: "thinking", tool: "tool", function: "tool", system: "system", developer: "system" };

/** A message with its reason and its actions. inserts: the proxy's texts behind it. */
export function message(one, view, inserts = []) {
  const changed = one.whole !== undefined && one.whole !== null;
  const box = h("div", { class: "said" });
  const show = (which) => swap(box, which === "whole" ? content(one.whole) : one.content === undefined || one.content === null ? h("p", { class: "soft" }, "Not in the prompt.") : content(one.content));
  let which = changed && (one.content === null || one.content === undefined) ? "whole" : "sent";
  show(which);
  const turn = changed && one.content !== undefined && one.content !== null && button("As it came", () => {
    which = which === "whole" ? "sent" : "whole";
    turn.textContent = which === "whole" ? "As it goes out" : "As it came";
    show(which);
  }, { kind: "quiet small", focus: `turn-${one.id}` });
  const size = one.why ? [h("s", {}, short(one.why.tokens_before)), " ", h("b", {}, short(one.why.tokens_after))] : short(one.tokens);
  return h("div", { class: `message k-${KINDS[one.role] || "user"} s-${one.status}` },
    h("div", { class: "message-head" },
      h("span", { class: "role" }, one.role),
      h("span", { class: "tokens" }, size),
      one.pinned && h("span", { class: "flag" }, "pinned"),
      one.status !== "in" && h("span", { class: `flag s-${one.status}` }, fate(one.status, one.why ? one.why.tokens_before : 0, one.why ? one.why.tokens_after : 0)),
      turn, view.session.may && one.id && one.source !== "next" && actions(one, view, "messages")),
    one.why && reason(one.why),
    box,
    inserts.map((insert) => h("div", { class: "insert" }, h("p", { class: "label" }, `inserted: ${inserted(insert.source)}`), h("pre", { class: "text" }, insert.text.trim()))));
}

export function reason(why) {
  return h("p", { class: "why" }, why.reason, h("span", { class: "soft" }, ` · by ${words(why.stage)}, ${why.since ? ago(why.since) : "with the next request"}${why.find ? ` · whole text: ${why.find}` : ""}`));
}
