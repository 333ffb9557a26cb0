// The settings of a session, its export, and its removal.
import { ask, at, save } from "./api.js";
import { button, choice, field, h, swap } from "./dom.js";
import { counted, moment, whole, words } from "./format.js";
import { act, askToConfirm } from "./notices.js";

const SCHEDULES = [["", "As the policy says"], ["when_it_pays", "When it pays"], ["on_overflow", "On overflow"], ["every_turn", "Every turn"], ["literal", "Literal"]];
/** The kinds of stored rows, as the API counts them. */
const ROWS = {
  messages: "messages", exchanges: "requests", edits: "edits", branches: "branches", states: "versions of the state", scratchpads: "versions of the scratchpad",
  notes: "notes and feedback", iterations: "iterations", hidden_rounds: "rounds with the proxy's tools", helper_answers: "answers of the helper model",
  embeddings: "embeddings", forms: "other stored texts", gaps: "requests not stored",
};
const URGENCIES = [["", "As the policy says"], ["gentle", "Gentle"], ["literal", "Literal"]];

export function showSettings(session) {
  const root = h("div", { class: "columns" });
  swap(session.root, root);
  let drawn = false;
  session.changed = async (_, record) => {
    if (drawn) return;
    const [set, policies, described] = await Promise.all([
      ask("GET", at(session.place, "/settings"), undefined, session.signal),
      ask("GET", "/policies", undefined, session.signal),
      ask("GET", "/openapi.json", undefined, session.signal),
    ]);
    drawn = true;
    swap(root, form(session, set, policies.items, described), data(session, record));
  };
}

/** The values that a field of the settings may have, as the API describes them. */
function allowed(described, name, known) {
  const found = JSON.stringify(described.components?.schemas?.SettingsBody?.properties?.[name] || {});
  const values = JSON.parse(found).anyOf?.find((one) => one.enum)?.enum;
  return values ? [known[0], ...values.map((one) => [one, known.find(([value]) => value === one)?.[1] || words(one)])] : known;
}

function form(session, set, policies, described) {
  const off = !session.may;
  const policy = choice([["", "The usual one"], ...policies.map((one) => [one.name, `${one.name}${one.is_default ? " (default)" : ""}`])], set.policy || "", { disabled: off });
  const schedule = choice(allowed(described, "schedule", SCHEDULES), set.schedule || "", { disabled: off });
  const urgency = choice(allowed(described, "urgency", URGENCIES), set.urgency || "", { disabled: off });
  const window = h("input", { type: "number", min: 0, max: 1000000, placeholder: "as the policy says", value: set.window >= 0 ? String(set.window) : "", disabled: off });
  const most = h("input", { type: "number", min: 1, max: 1000000, placeholder: "as the policy says", value: set.max_iterations ? String(set.max_iterations) : "", disabled: off });
  const about = h("p", { class: "hint" });
  const tell = () => {
    const one = policies.find((found) => found.name === policy.value);
    about.hidden = !one;
    about.textContent = one ? [`${one.mode}, ${words(one.schedule)}`, one.stages.length ? `stages: ${one.stages.map(words).join(", ")}` : "changes nothing", one.injections.length ? `inserts: ${one.injections.map(words).join(", ")}` : ""].filter(Boolean).join(" · ") : "";
  };
  policy.addEventListener("change", tell);
  tell();
  const number = (input) => (input.value === "" ? null : Number(input.value));
  const put = async (event) => {
    event.preventDefault();
    const body = { policy: policy.value || null, schedule: schedule.value || null, urgency: urgency.value || null, window: number(window), max_iterations: number(most) };
    await act(() => ask("PATCH", at(session.place, "/settings"), body), "Stored: it holds from the next request on.");
    session.refresh();
  };
  const waiting = [set.force && `The next request does: ${set.force}.`, set.ask && "The next request asks the model for its state."].filter(Boolean).join(" ");
  return h("section", { class: "panel" }, h("h2", {}, "Settings"), h("p", { class: "soft" }, "They hold from the next request on, whichever process answers it."),
    waiting && h("p", { class: "notice" }, waiting),
    h("form", { class: "stack", on: { submit: put } },
      field("Policy", policy), about, field("Schedule", schedule, "When edits are made: each moves the provider's cache."),
      field("Window", window, "Groups that stay in the prompt, 0 for all."),
      field("Largest number of iterations", most, "Answers to one user prompt, for policies that count them."),
      field("Urgency", urgency, "The tone of the proxy's notes to the model: on loops, and on iterations left."),
      session.may && h("div", {}, h("button", { class: "button main", type: "submit" }, "Save settings"))));
}

function data(session, record) {
  const order = Object.keys(ROWS);
  const place = ([table]) => (order.indexOf(table) + order.length + 1) % (order.length + 1);
  const rows = Object.entries(record.rows).filter(([, count]) => count).sort((a, b) => place(a) - place(b));
  const name = record.session.replaceAll(/[^\w.-]+/g, "_").slice(0, 60) || "session";
  const remove = async () => {
    const yes = await askToConfirm("Delete this session?", `All ${counted(record.rows.messages || 0, "message")} of it leave the store for good. Memos stay, without its name. A client that goes on with it begins a new one.`, "Delete session");
    if (!yes) return;
    const made = await act(() => ask("DELETE", at(session.place)), (one) => `Deleted: ${counted(one.removed, "row")}${one.verified ? ", verified." : "."}`);
    if (made) location.hash = "#/";
  };
  return h("section", { class: "panel" }, h("h2", {}, "Data"),
    h("dl", { class: "facts-list" }, h("dt", {}, "Begun"), h("dd", {}, moment(record.created_at)), rows.map(([table, count]) => [h("dt", {}, ROWS[table] || words(table)), h("dd", {}, whole(count))])),
    session.may ? h("div", { class: "row" },
      button("Export as JSONL", () => act(() => save(at(session.place, "/export"), `${name}.jsonl`), "Exported."), { focus: "export" }),
      button("Delete session", remove, { kind: "danger", focus: "delete" })) : h("p", { class: "soft" }, "A read key neither exports nor deletes."));
}
