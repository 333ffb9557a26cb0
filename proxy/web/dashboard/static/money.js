// The cost of all sessions together, and their cost without the proxy.
import { ask, query } from "./api.js";
import { chart, running } from "./chart.js";
import { choice, field, h, swap } from "./dom.js";
import { counted, dollars, percent, saved, short, whole } from "./format.js";
import { every } from "./live.js";
import { panel } from "./say.js";

const SPANS = [["86400", "Last day"], ["604800", "Last week"], ["2592000", "Last 30 days"], ["0", "All time"]];

export function showMoney(view) {
  const span = choice(SPANS, "604800");
  const body = h("div", { class: "stack" });
  swap(view.root, h("div", { class: "title" }, h("h1", {}, "Money")),
    h("form", { class: "filters", on: { submit: (event) => event.preventDefault() } }, field("Time", span)), body);
  const load = async () => {
    const seconds = Number(span.value);
    const since = seconds ? Math.floor((Date.now() / 1000 - seconds) / 3600) * 3600 : 0;
    const step = seconds && seconds <= 604800 ? "hour" : "day";
    const [money, proxy] = await Promise.all([ask("GET", `/money${query({ since: since || "", step })}`, undefined, view.signal), ask("GET", "/stats", undefined, view.signal)]);
    swap(body, money.total.exchanges ? draw(money, step) : panel("No request in this time", "Choose a longer one."), running_(proxy));
  };
  const refresh = () => load().catch(view.fail);
  span.addEventListener("change", refresh);
  every(5, view.signal, refresh);
}

function draw(money, step) {
  const { total } = money;
  const steps = filled(money);
  const share = saved(total.cost, total.cost_without);
  const labels = steps.map((one) => new Date(one.at * 1000).toLocaleString("en-GB", step === "hour" ? { day: "numeric", month: "short", hour: "2-digit", minute: "2-digit" } : { day: "numeric", month: "short" }));
  const paid = steps.map((one) => one.cost);
  const without = steps.map((one) => one.cost_without);
  const card = (label, value, ...facts) => h("div", { class: "card" }, h("div", { class: "label" }, label), h("div", { class: "figure" }, value), h("div", { class: "facts" }, facts.map((one) => h("span", {}, one))));
  return [
    h("div", { class: "cards" },
      card("Paid", dollars(total.cost), counted(total.exchanges, "request"), total.unpriced ? `${whole(total.unpriced)} without a price` : ""),
      card("Without the proxy", dollars(total.cost_without)),
      ...(total.cost_planned === total.cost ? [] : [card("Had observed plans gone out", `about ${dollars(total.cost_planned)}`)]),
      card("Saved", share === null ? "–" : percent(share), dollars(total.cost_without - total.cost)),
      card("Tokens sent", short(total.tokens_after), `of ${short(total.tokens_before)}`),
      card("From the cache", short(total.cached_tokens), `${short(total.predicted)} predicted`),
      card("Loops", whole(total.loops), counted(total.fallbacks, "fallback"))),
    h("div", { class: "charts" },
      chart("Dollars so far", { labels, format: dollars, between: ["without the proxy", "paid"], series: [
        { name: "without the proxy", look: "c-without", values: running(without), kind: "line" }, { name: "paid", look: "c-paid", values: running(paid), kind: "line" }] }),
      chart(step === "hour" ? "Dollars an hour" : "Dollars a day", { labels, format: dollars, series: [
        { name: "without the proxy", look: "c-without", values: without, kind: "column" }, { name: "paid", look: "c-paid", values: paid, kind: "column" }] }),
      chart("Cached tokens", { labels, format: short, series: [
        { name: "predicted", look: "c-predicted", values: steps.map((one) => one.predicted), kind: "column" }, { name: "reported", look: "c-reported", values: steps.map((one) => one.cached_tokens), kind: "column" }] })),
    spenders(money),
  ];
}

/** Every step from the first to the last, including those without a request. */
function filled({ steps, step }) {
  const known = new Map(steps.map((one) => [one.at, one]));
  const made = [];
  const first = Math.max(steps[0].at, steps.at(-1).at - 1000 * step);
  for (let at = first; at <= steps.at(-1).at; at += step) made.push(known.get(at) || { at, cost: 0, cost_without: 0, cost_planned: 0, predicted: 0, cached_tokens: 0 });
  return made;
}

function spenders(money) {
  return h("section", { class: "panel" }, h("h2", {}, "What cost most"),
    h("table", { class: "plain" },
      h("thead", {}, h("tr", {}, ["Session", "Paid", "Without", "Saved"].map((text, n) => h("th", { scope: "col", class: n ? "number" : undefined }, text)))),
      h("tbody", {}, money.spenders.map((one) => h("tr", {},
        h("th", { scope: "row" }, h("a", { href: `#/s/${encodeURIComponent(one.tenant)}/${encodeURIComponent(one.address)}/costs` }, h("bdi", {}, one.session))),
        h("td", { class: "number" }, dollars(one.figures.cost)), h("td", { class: "number" }, dollars(one.figures.cost_without)),
        h("td", { class: "number" }, percent(saved(one.figures.cost, one.figures.cost_without))))))),
    h("p", { class: "soft" }, `${counted(money.over, "session")} added up${money.more ? ", the last ones used; there are more" : ""}.`));
}

const TOLD = [["prompt_tokens", "prompt tokens"], ["completion_tokens", "completion tokens"], ["edits", "edits"], ["bypasses", "sent on as they came"], ["refusals", "plans refused"], ["retrieved_items", "items brought back"], ["upstream_errors", "upstream errors"], ["persist_dropped", "rows not stored"]];

function running_(proxy) {
  const found = TOLD.filter(([name]) => name in proxy.figures);
  return h("section", { class: "panel" }, h("h2", {}, "Since the proxy started"),
    !proxy.healthy && h("p", { class: "notice bad" }, `The store is in trouble: ${proxy.trouble}`),
    h("dl", { class: "facts-list wide" }, h("dt", {}, "version"), h("dd", {}, proxy.version), h("dt", {}, "usual policy"), h("dd", {}, proxy.policy),
      h("dt", {}, "upstreams"), h("dd", {}, proxy.upstreams.join(", ")), h("dt", {}, "helper models today"), h("dd", {}, dollars(proxy.dollars_spent_today)),
      found.map(([name, text]) => [h("dt", {}, text), h("dd", {}, whole(proxy.figures[name]))])));
}
