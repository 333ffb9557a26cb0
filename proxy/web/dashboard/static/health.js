// Is the proxy well: its store, the time until first bytes, errors, and its counters since it started.
import { ask, query } from "./api.js";
import { chart } from "./chart.js";
import { h, swap } from "./dom.js";
import { dollars, milliseconds, whole } from "./format.js";
import { every } from "./live.js";
import { filled } from "./money.js";

const WEEK_S = 604800;
const COUNTERS = [["requests", "requests of clients"], ["prompt_tokens", "prompt tokens"], ["completion_tokens", "completion tokens"], ["edits", "edits"], ["refetch", "results fetched again"],
  ["fallbacks", "sent without their plan"], ["refusals", "plans refused"], ["retrieved_items", "items brought back"], ["upstream_errors", "upstream errors"], ["client_gone", "clients that left"],
  ["dropped_reasoning", "pieces of reasoning left out"], ["dropped_reasoning_dollars", "price of thinking them again", dollars],
  ["internal_errors", "faults of the proxy itself"], ["persist_dropped", "rows not stored"]];

export function showHealth(view) {
  const body = h("div", { class: "stack" });
  swap(view.root, h("div", { class: "title" }, h("h1", {}, "Health")), body);
  let stamp = "";
  const load = async () => {
    const since = Math.floor((Date.now() / 1000 - WEEK_S) / 3600) * 3600;
    const [money, proxy] = await Promise.all([ask("GET", `/money${query({ since, step: "auto" })}`, undefined, view.signal), ask("GET", "/stats", undefined, view.signal)]);
    const now = JSON.stringify([money.steps, proxy]);
    if (now === stamp) return;
    stamp = now;
    swap(body, state(proxy), money.total.exchanges ? charts(money) : h("p", { class: "soft" }, "No request in the last week."), counters(proxy));
  };
  every(5, view.signal, () => load().catch(view.fail));
}

function state(proxy) {
  const card = (label, value, tone, ...facts) => h("div", { class: "card" }, h("div", { class: "label" }, label), h("div", { class: `figure ${tone}` }, value), h("div", { class: "facts" }, facts.map((one) => h("span", {}, one))));
  return h("div", { class: "cards" },
    card("Store", proxy.healthy ? "healthy" : "in trouble", proxy.healthy ? "up" : "down", proxy.healthy ? "everything is stored" : proxy.trouble),
    card("Waiting to be written", whole(proxy.queued), "", "transactions"),
    card("Rows not stored", whole(proxy.dropped), proxy.dropped ? "down" : "", "since the proxy started"),
    card("Added by the proxy", milliseconds(proxy.added_ms), "", proxy.added_ms === null ? "no request since it started" : `99 of 100 within ${milliseconds(proxy.added_ms_p99)}`),
    card("Helper models today", proxy.dollars_spent_today === null ? "unknown" : dollars(proxy.dollars_spent_today), ""));
}

function charts(money) {
  const steps = filled(money);
  const at = steps.map((one) => one.at);
  return h("div", { class: "charts" },
    chart("Time to the first byte, mean", { at, format: milliseconds, series: [{ name: "until the answer begins", look: "c-paid", values: steps.map((one) => (one.answered ? one.first_byte_ms / one.answered : null)), kind: "line" }] }),
    chart("Requests", { at, counts: true, format: whole, series: [{ name: "requests", look: "c-paid", values: steps.map((one) => one.exchanges), kind: "column" }] }),
    chart("Errors", { at, counts: true, format: whole, series: [{ name: "failed", look: "c-bad", values: steps.map((one) => one.errors), kind: "column" }, { name: "sent without their plan", look: "c-without", values: steps.map((one) => one.fallbacks), kind: "column" }] }));
}

function counters(proxy) {
  const known = Object.keys(proxy.figures).length > 0; // a counter that has counted nothing may not be there
  const found = known ? COUNTERS.map(([name, ...shown]) => [name, added(proxy.figures, name), ...shown]).filter(([name, sum]) => sum || !name.startsWith("dropped_")) : [];
  return h("section", { class: "panel" }, h("h2", {}, "Since the proxy started"),
    h("dl", { class: "facts-list wide" }, h("dt", {}, "version"), h("dd", {}, proxy.version), h("dt", {}, "usual policy"), h("dd", {}, proxy.policy),
      h("dt", {}, "upstreams"), h("dd", {}, proxy.upstreams.join(", ")), found.map(([, sum, text, write = whole]) => [h("dt", {}, text), h("dd", {}, write(sum))])),
    !known && h("p", { class: "soft" }, "The counters are those of every tenant: a key of one tenant does not see them."),
    known && h("p", { class: "soft" }, "GET /metrics has more, each by its labels."));
}

/** A counter with a kind is one figure a kind: `upstream_errors.429`, `upstream_errors.timeout`. */
function added(figures, name) {
  return Object.entries(figures).reduce((sum, [each, figure]) => (each === name || each.startsWith(`${name}.`) ? sum + figure : sum), 0);
}
