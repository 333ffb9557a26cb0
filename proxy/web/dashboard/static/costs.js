// The cost of one session, request by request, and what other policies would have cost.
import { ask, at } from "./api.js";
import { chart, running } from "./chart.js";
import { button, h, swap } from "./dom.js";
import { counted, dollars, percent, saved, short, whole } from "./format.js";
import { newestRequests, part, withoutSideCalls } from "./latency.js";
import { act } from "./notices.js";

const COMPARED = 5;

export function showCosts(session) {
  const root = h("div", {});
  swap(session.root, root, session.may && comparison(session));
  session.changed = async (stats, record) => {
    const points = await newestRequests(session);
    swap(root, points.length ? charts(session, points, withoutSideCalls(points, record), part(points, stats)) : h("p", { class: "soft" }, "No request yet."));
  };
}

function charts(session, points, own, newest) {
  const priced = points.some((one) => one.cost !== null);
  const observed = points.some((one) => one.cost_planned !== null);
  const cost = running(points.map((one) => one.cost));
  const without = running(points.map((one) => one.cost_without));
  const common = along(session, points);
  const prompts = along(session, own);
  return h("div", { class: "charts" },
    priced ? h("p", { class: "soft" }, summary(cost.at(-1), without.at(-1), points, newest))
      : h("p", { class: "notice" }, "What was paid is unknown: the model has no price in config/models.toml, or its upstream reports no usage."),
    priced && chart(newest ? `Dollars${newest}` : "Dollars so far", { ...common, format: dollars, between: ["without the proxy", "paid"], series: [
      { name: "without the proxy", look: "c-without", values: without, kind: "line" }, { name: "paid", look: "c-paid", values: cost, kind: "line" },
      ...(observed ? [{ name: "with the observed plans", look: "c-planned", values: running(points.map((one) => one.cost_planned ?? one.cost)), kind: "line" }] : [])] }),
    chart(`Tokens of each prompt${newest}`, { ...prompts, format: short, between: ["as the client sent it", "as it went out"], series: [
      { name: "as the client sent it", look: "c-without", values: own.map((one) => one.tokens_before), kind: "line" },
      { name: "as it went out", look: "c-paid", values: own.map((one) => one.tokens_after), kind: "line" }] }),
    chart(`Tokens from the provider's cache${newest}`, { ...prompts, format: short, series: [
      { name: "reported", look: "c-reported", values: own.map((one) => one.cached_tokens), kind: "column" },
      { name: "predicted", look: "c-predicted", values: own.map((one) => one.predicted), kind: "line" }] }),
    priced && chart(`Dollars of each request${newest}`, { ...common, format: dollars, series: [
      { name: "without the proxy", look: "c-without", values: points.map((one) => one.cost_without), kind: "column" },
      { name: "paid", look: "c-paid", values: points.map((one) => one.cost), kind: "column" }] }));
}

/** The places of a chart of these requests; one that is chosen is opened. */
function along(session, points) {
  const open = (n) => { location.hash = `${session.base}/prompts/${encodeURIComponent(points[n].exchange)}`; };
  return { at: points.map((one) => one.started_at), inOrder: true, open };
}

function summary(cost, without, points, newest) {
  const share = saved(cost, without);
  const unbilled = points.filter((one) => one.cost === null).length;
  const over = newest ? `the newest ${counted(points.length, "request")}` : counted(points.length, "request");
  const left = unbilled ? ` ${whole(unbilled)} of them ${unbilled === 1 ? "has no bill and is" : "have no bill and are"} in neither sum.` : "";
  if (Math.abs(share ?? 0) < 0.005) return `${dollars(cost)} over ${over}, about as much as without the proxy.${left}`;
  return `${dollars(cost)} in place of about ${dollars(without)}: ${percent(Math.abs(share ?? 0))} ${share < 0 ? "more" : "less"} over ${over}.${left}`;
}

/** The session played again under other policies, as `context-proxy replay` does it. Nothing is sent upstream. */
function comparison(session) {
  const out = h("div", { class: "stack", "aria-live": "polite" });
  const run = async () => {
    swap(out, h("p", { class: "soft" }, "Playing the session under other policies. A long one takes a minute."));
    const { items } = await ask("GET", "/policies", undefined, session.signal);
    const wanted = items.filter((one) => one.mode === "rewrite" && one.stages.length).sort((a, b) => Number(b.is_default) - Number(a.is_default)).slice(0, COMPARED).map((one) => one.name);
    const report = await act(() => ask("POST", at(session.place, "/replay"), { policies: wanted.map((policy) => ({ policy })) }, session.signal));
    swap(out, report ? compared(report) : null);
  };
  return h("section", { class: "panel" }, h("h2", {}, "Other policies"),
    h("p", { class: "soft" }, "What this conversation would have cost under other policies: its requests are planned again, and nothing is sent."),
    h("div", {}, button("Compare policies", () => run().catch(session.fail), { focus: "compare" })), out);
}

function compared(report) {
  const [prices] = report.prices;
  const rows = report.entries.map((one) => ({ name: one.name, cost: one.total.cost[prices], kept: one.total.lines.all })).filter((one) => one.cost && one.cost.effective_relative !== null);
  const top = Math.max(1, ...rows.map((one) => one.cost.effective_relative));
  const width = (share) => `${((100 * share) / top).toFixed(1)}%`;
  return [h("table", { class: "plain compared" },
    h("caption", { class: "hidden-text" }, "Cost of each policy, of what doing nothing costs"),
    h("thead", {}, h("tr", {}, ["Policy", "Cost, doing nothing being 100 %", "Kept of what was quoted later"].map((text, n) => h("th", { scope: "col", class: n === 2 ? "number" : undefined }, text)))),
    h("tbody", {}, rows.map((one) => h("tr", {}, h("th", { scope: "row" }, one.name),
      h("td", { class: "wide" }, h("div", { class: "track", vars: { "--sent": width(one.cost.effective_relative), "--before": width(1) }, "aria-hidden": "true" }, h("i", { class: "before" }), h("i", { class: "sent" })), percent(one.cost.effective_relative)),
      h("td", { class: "number" }, one.kept === null ? "unknown" : percent(one.kept)))))),
  h("p", { class: "soft" }, `Over ${counted(report.requests, "request")}, at the price pair ${prices} (cache write/read). The cost counts fetching again what a policy took out and was quoted later.`)];
}
