// The cost of all sessions together, and their cost without the proxy: over time, by policy, model and tenant.
import { ask, query } from "./api.js";
import { chart, running } from "./chart.js";
import { choice, field, h, swap } from "./dom.js";
import { counted, dollars, percent, saved, short, tenantName, whole } from "./format.js";
import { every } from "./live.js";
import { panel } from "./notices.js";

const SPANS = [["86400", "Last day"], ["604800", "Last week"], ["2592000", "Last 30 days"], ["0", "All time"]];
const DAY_S = 86400;

export function showMoney(view) {
  const span = choice(SPANS, "604800");
  const body = h("div", { class: "stack" });
  swap(view.root, h("div", { class: "title" }, h("h1", {}, "Money")),
    h("form", { class: "filters", on: { submit: (event) => event.preventDefault() } }, field("Time", span)), body);
  let stamp = "";
  const load = async () => {
    const seconds = Number(span.value);
    const since = seconds ? Math.floor((Date.now() / 1000 - seconds) / 3600) * 3600 : 0;
    const money = await ask("GET", `/money${query({ since: since || "", step: "auto" })}`, undefined, view.signal);
    const now = JSON.stringify(money);
    if (now === stamp) return;
    stamp = now;
    swap(body, money.total.exchanges ? draw(money, view) : panel("No request in this time", "Choose a longer one, or send a first request through the proxy."));
  };
  const refresh = () => load().catch(view.fail);
  span.addEventListener("change", refresh);
  every(5, view.signal, refresh);
}

function draw(money, view) {
  const { total } = money;
  const steps = filled(money);
  const share = saved(total.cost, total.cost_without);
  const at = steps.map((one) => one.at);
  const billed = total.exchanges - total.unpriced;
  const each = money.step >= DAY_S ? "per day" : money.step > 3600 ? "per six hours" : money.step === 3600 ? "per hour" : "per five minutes";
  const card = (label, value, ...facts) => h("div", { class: "card" }, h("div", { class: "label" }, label), h("div", { class: "figure" }, value), h("div", { class: "facts" }, facts.map((one) => h("span", {}, one))));
  const column = (name, look, key) => ({ name, look, values: steps.map((one) => one[key]), kind: "column" });
  return [
    h("div", { class: "cards" },
      card("Paid", billed ? dollars(total.cost) : "unknown", counted(total.exchanges, "request"), total.unpriced ? `${whole(total.unpriced)} without a bill: no price, or no usage reported` : ""),
      card("Without the proxy", billed ? `about ${dollars(total.cost_without)}` : "unknown"),
      ...(total.observed ? [card("With the observed plans", `about ${dollars(total.cost_planned)}`, counted(total.observed, "request"))] : []),
      card("Saved", share === null ? "unknown" : percent(share), share !== null && dollars(total.cost_without - total.cost)),
      card("Tokens sent", short(total.tokens_after), `of ${short(total.tokens_before)}`),
      card("From the provider's cache", total.prompt_tokens ? percent(total.cached_tokens / total.prompt_tokens) : "unknown", total.prompt_tokens ? `${short(total.cached_tokens)} of ${short(total.prompt_tokens)} tokens reported, ${short(total.predicted)} predicted` : "")),
    h("div", { class: "charts" },
      billed ? chart("Dollars so far", { at, format: dollars, between: ["without the proxy", "paid"], series: [
        { name: "without the proxy", look: "c-without", values: running(steps.map((one) => one.cost_without)), kind: "line" },
        { name: "paid", look: "c-paid", values: running(steps.map((one) => one.cost)), kind: "line" }, ...(total.observed ? [planned(steps)] : [])] }) : null,
      billed ? chart(`Dollars ${each}`, { at, format: dollars, series: [column("without the proxy", "c-without", "cost_without"), column("paid", "c-paid", "cost")] }) : null,
      chart(`Prompt tokens ${each}`, { at, format: short, series: [column("as the client sent them", "c-without", "tokens_before"), column("as they went out", "c-paid", "tokens_after")] }),
      chart(`Cached tokens ${each}`, { at, format: short, series: [column("predicted", "c-predicted", "predicted"), column("reported", "c-reported", "cached_tokens")] })),
    h("div", { class: "columns" }, shares("By policy", "Policy", money.policies, (name) => name), shares("By model", "Model", money.models, (name) => name),
      view.tenants && shares("By tenant", "Tenant", money.tenants, tenantName)),
    spenders(money),
  ];
}

/** Dollars so far, had the plans that were only observed gone out. */
export function planned(steps) {
  return { name: "with the observed plans", look: "c-planned", values: running(steps.map((one) => one.cost_planned)), kind: "line" };
}

/** Every step from the first to the last, including those without a request. */
export function filled({ steps, step }) {
  const known = new Map(steps.map((one) => [one.at, one]));
  const made = [];
  const first = Math.max(steps[0].at, steps.at(-1).at - 1000 * step);
  const none = { cost: 0, cost_without: 0, cost_planned: 0, predicted: 0, cached_tokens: 0, tokens_before: 0, tokens_after: 0, errors: 0, fallbacks: 0, exchanges: 0, answered: 0, first_byte_ms: 0 };
  for (let at = first; at <= steps.at(-1).at; at += step) made.push(known.get(at) || { at, ...none });
  return made;
}

const unknown = () => h("span", { class: "soft" }, "unknown");

/** A table of shares, each with a bar of what was paid in what it would have cost. */
function shares(title, head, rows, name) {
  const largest = Math.max(...rows.map(({ figures }) => Math.max(figures.cost, figures.cost_without)), 1e-12);
  const width = (amount) => `${((100 * Math.max(amount, 0)) / largest).toFixed(1)}%`;
  return h("section", { class: "panel" }, h("h2", {}, title),
    h("div", { class: "scrolls", tabindex: "0", role: "region", "aria-label": title }, h("table", { class: "plain" },
      h("thead", {}, h("tr", {}, [head, "Requests", "Paid", "Saved", "Tokens left out"].map((text, n) => h("th", { scope: "col", class: n ? "number" : undefined }, text)))),
      h("tbody", {}, rows.map((one) => {
        const { figures } = one;
        const billed = figures.exchanges > figures.unpriced;
        const share = saved(figures.cost, figures.cost_without);
        return h("tr", {}, h("th", { scope: "row" }, h("bdi", {}, name(one.name)),
          billed && h("div", { class: "track thin", vars: { "--sent": width(figures.cost), "--before": width(figures.cost_without) }, "aria-hidden": "true" }, h("i", { class: "before" }), h("i", { class: "sent" }))),
        h("td", { class: "number" }, whole(figures.exchanges)), h("td", { class: "number" }, billed ? dollars(figures.cost) : unknown()),
        h("td", { class: "number" }, billed && share !== null ? [h("span", { class: share > 0.005 ? "good" : share < -0.005 ? "less" : "soft" }, dollars(figures.cost_without - figures.cost)), ` ${percent(share)}`] : unknown()),
        h("td", { class: "number" }, percent(saved(figures.tokens_after, figures.tokens_before))));
      })))));
}

function spenders(money) {
  return h("section", { class: "panel" }, h("h2", {}, "What cost most"),
    h("div", { class: "scrolls", tabindex: "0", role: "region", "aria-label": "What cost most" }, h("table", { class: "plain" },
      h("thead", {}, h("tr", {}, ["Session", "Paid", "Without", "Saved"].map((text, n) => h("th", { scope: "col", class: n ? "number" : undefined }, text)))),
      h("tbody", {}, money.spenders.map((one) => h("tr", {},
        h("th", { scope: "row" }, h("a", { href: `#/s/${encodeURIComponent(one.tenant)}/${encodeURIComponent(one.address)}/costs` }, h("bdi", {}, one.title || one.session))),
        h("td", { class: "number" }, one.figures.cost === null ? unknown() : dollars(one.figures.cost)), h("td", { class: "number" }, one.figures.cost_without === null ? unknown() : dollars(one.figures.cost_without)),
        h("td", { class: "number" }, one.figures.cost === null ? unknown() : percent(saved(one.figures.cost, one.figures.cost_without)))))))),
    h("p", { class: "soft" }, `${counted(money.over, "session")} added up${money.more ? ", the last ones used; there are more" : ""}. Dollars are by the prices of config/models.toml.`));
}
