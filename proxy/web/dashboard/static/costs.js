// The cost of one session, request by request, and its errors.
import { ask, at } from "./api.js";
import { chart, running } from "./chart.js";
import { h, swap } from "./dom.js";
import { clock, dollars, percent, saved, short, words } from "./format.js";

export function showCosts(session) {
  const root = h("div", {});
  swap(session.root, root);
  session.changed = async () => {
    const points = await ask("GET", at(session.place, "/points", { limit: 200, thread: session.thread }), undefined, session.signal);
    swap(root, points.length ? [charts(points), events(session, points)] : h("p", { class: "soft" }, "No request yet."));
  };
}

function charts(points) {
  const labels = points.map((one) => clock(one.started_at));
  const priced = points.some((one) => one.cost !== null);
  const cost = running(points.map((one) => one.cost));
  const without = running(points.map((one) => one.cost_without));
  return h("div", { class: "charts" },
    priced ? h("div", {}, chart("Dollars so far", { labels, format: dollars, between: ["without the proxy", "paid"], series: [
      { name: "without the proxy", look: "c-without", values: without, kind: "line" }, { name: "paid", look: "c-paid", values: cost, kind: "line" }] }),
    h("p", { class: "soft" }, `${dollars(cost.at(-1))} in place of ${dollars(without.at(-1))}: ${percent(saved(cost.at(-1), without.at(-1)))} less over these ${points.length} requests.`))
      : h("p", { class: "notice" }, "The model has no price in config/models.toml: there is no bill."),
    chart("Tokens of each prompt", { labels, format: short, between: ["as the client sent it", "as it went out"], series: [
      { name: "as the client sent it", look: "c-without", values: points.map((one) => one.tokens_before), kind: "line" },
      { name: "as it went out", look: "c-paid", values: points.map((one) => one.tokens_after), kind: "line" }] }),
    chart("Tokens from the provider's cache", { labels, format: short, series: [
      { name: "predicted", look: "c-predicted", values: points.map((one) => one.predicted), kind: "line" },
      { name: "reported", look: "c-reported", values: points.map((one) => one.cached_tokens), kind: "column" }] }),
    chart("Dollars of each request", { labels, format: dollars, series: [
      { name: "without the proxy", look: "c-without", values: points.map((one) => one.cost_without), kind: "column" },
      { name: "paid", look: "c-paid", values: points.map((one) => one.cost), kind: "column" }] }));
}

function events(session, points) {
  const told = [...points].reverse().filter((one) => one.fallback || one.loop || one.edited || !["complete", "open"].includes(one.status)).slice(0, 60);
  return h("section", { class: "panel" }, h("h2", {}, "Edits, loops, fallbacks"),
    told.length ? h("ul", { class: "events" }, told.map((one) => h("li", {},
      h("a", { href: `${session.base}/prompts/${encodeURIComponent(one.exchange)}` }, clock(one.started_at)),
      h("span", { class: "flags" },
        one.edited && h("span", { class: "flag" }, "new edits"), one.loop && h("span", { class: "flag warn" }, "loop: the model was told"),
        one.fallback && h("span", { class: "flag bad" }, `fallback: ${words(one.fallback)}`), !["complete", "open"].includes(one.status) && h("span", { class: "flag bad" }, words(one.status))),
      h("span", { class: "facts" }, h("span", {}, `${short(one.tokens_before)} → ${short(one.tokens_after)} tokens`),
        one.cached_tokens !== null && h("span", {}, `${short(one.cached_tokens)} cached, ${short(one.predicted)} predicted`), one.cost !== null && h("span", {}, dollars(one.cost)))))) : h("p", { class: "soft" }, "none so far"));
}
