// The first page: what was saved, whether the proxy is well, one chart, and the sessions.
import { ROOT, ask, query } from "./api.js";
import { chart, running } from "./chart.js";
import { h, swap } from "./dom.js";
import { counted, dollars, milliseconds, percent, saved, short, whole } from "./format.js";
import { every } from "./live.js";
import { filled, planned } from "./money.js";
import { listSessions } from "./sessions.js";

export function showOverview(view) {
  const health = h("div", {});
  const tiles = h("div", { class: "cards tiles", "aria-busy": "true" });
  const drawn = h("div", { class: "overview-chart" });
  const sessions = h("section", { class: "stack" });
  const begin = h("div", { class: "stack" });
  swap(view.root, h("div", { class: "title" }, h("h1", {}, "Overview")), health, begin, tiles, drawn, sessions);
  const list = listSessions(view, sessions);
  let stamp = "";
  const load = async () => {
    const midnight = Math.floor(new Date().setHours(0, 0, 0, 0) / 1000);
    const [all, today, proxy] = await Promise.all([
      ask("GET", "/money?step=auto", undefined, view.signal),
      ask("GET", `/money${query({ since: midnight, step: "day" })}`, undefined, view.signal),
      ask("GET", "/stats", undefined, view.signal),
    ]);
    const now = JSON.stringify([all.total, all.over, today.total, proxy]);
    if (now === stamp) return;
    stamp = now;
    tiles.removeAttribute("aria-busy");
    const used = all.total.exchanges > 0;
    for (const part of [tiles, drawn]) part.hidden = !used;
    list.hidden(all.over === 0);
    swap(health, notices(proxy));
    swap(begin, all.over === 0 ? welcome() : null);
    if (!used) return;
    swap(tiles, figures(all, today.total, proxy));
    swap(drawn, drawSavings(all), hint(all, proxy));
  };
  every(4, view.signal, () => Promise.all([load(), list.load()]).catch(view.fail));
}

function notices(proxy) {
  return [
    !proxy.healthy && h("p", { class: "notice bad", role: "alert" }, `The store is in trouble: ${proxy.trouble}. Requests go on${proxy.queued ? `; ${counted(proxy.queued, "transaction")} of the store ${proxy.queued === 1 ? "waits" : "wait"}` : ""}. What does not fit the queue is not stored.`),
    proxy.dropped > 0 && h("p", { class: "notice bad" }, `${counted(proxy.dropped, "row")} could not be stored since the proxy started.`),
  ];
}

function tile(label, value, tone, ...facts) {
  return h("div", { class: "card" }, h("div", { class: "label" }, label), h("div", { class: `figure ${tone}` }, value),
    h("div", { class: "facts" }, facts.filter(Boolean).map((one) => h("span", {}, one))));
}

const tone = (share) => (share === null ? "" : share > 0.005 ? "up" : share < -0.005 ? "down" : "");

/** Dollars saved, with their share. Nothing is claimed where no request has a bill. */
function savedTile(label, total, more) {
  const billed = total.exchanges - total.unpriced;
  if (!total.exchanges) return tile(label, "–", "", "no request");
  if (!billed) return tile(label, "unknown", "", "no price is known for these models, or no usage was reported");
  const share = saved(total.cost, total.cost_without);
  const tokens = saved(total.tokens_after, total.tokens_before);
  return tile(label, dollars(total.cost_without - total.cost), tone(share), share !== null && `${percent(share, 1)} of about ${dollars(total.cost_without)}`,
    tokens > 0.005 && `${percent(tokens)} fewer tokens than the client sent`, total.unpriced > 0 && `${whole(total.unpriced)} of ${counted(total.exchanges, "request")} ${total.unpriced === 1 ? "has" : "have"} no bill`, more);
}

function figures(all, today, proxy) {
  const { total } = all;
  const cached = (one) => (one.prompt_tokens ? one.cached_tokens / one.prompt_tokens : null);
  const known = cached(today) !== null ? today : total;
  const failed = (one) => one.errors + one.fallbacks;
  return [
    savedTile("Saved today", today, proxy.dollars_spent_today > 0 && `helper models cost ${dollars(proxy.dollars_spent_today)} beside it`),
    savedTile("Saved in all", total, all.more && `the ${whole(all.over)} sessions used last`),
    tile("Requests today", whole(today.exchanges), "", `${whole(total.exchanges)} in all`, counted(all.over, "session")),
    tile("Errors today", whole(today.errors), today.errors ? "down" : "", failed(today) === 0 ? "every request was managed" : `${whole(today.fallbacks)} sent without a plan`, `${whole(total.errors)} in all`),
    tile("Added by the proxy", proxy.added_ms === null ? "–" : milliseconds(proxy.added_ms), "", proxy.added_ms === null ? "no request since it started" : "median of a request",
      proxy.added_ms !== null && `99 of 100 within ${milliseconds(proxy.added_ms_p99)}`),
    tile("From the provider's cache", cached(known) === null ? "unknown" : percent(cached(known)), "", cached(known) === null ? "the provider reports none" : known === today ? "of today's prompt tokens" : "of all prompt tokens"),
  ];
}

function drawSavings(money) {
  const steps = filled(money);
  const at = steps.map((one) => one.at);
  if (money.total.exchanges > money.total.unpriced) {
    const observed = 2 * money.total.observed > money.total.exchanges;
    return chart("Dollars so far", { at, format: dollars, between: ["without the proxy", "paid"], series: [
      { name: "without the proxy", look: "c-without", values: running(steps.map((one) => one.cost_without)), kind: "line" },
      { name: "paid", look: "c-paid", values: running(steps.map((one) => one.cost)), kind: "line" },
      ...(observed ? [planned(steps)] : [])] });
  }
  return chart("Prompt tokens", { at, format: short, series: [
    { name: "as the client sent them", look: "c-without", values: steps.map((one) => one.tokens_before), kind: "column" },
    { name: "as they went out", look: "c-paid", values: steps.map((one) => one.tokens_after), kind: "column" }] });
}

/** The next step where nothing is saved yet. */
function hint({ total }, proxy) {
  const share = saved(total.cost, total.cost_without);
  if (2 * total.observed > total.exchanges && total.cost_planned < total.cost * 0.98) {
    return h("p", { class: "notice" }, `The observed plans would have paid ${dollars(total.cost_planned)} in place of ${dollars(total.cost)}. To send them, start the proxy with another policy than observe, or name one in a session's settings.`);
  }
  if (share !== null && Math.abs(share) <= 0.005) {
    return h("p", { class: "soft" }, proxy.policy === "passthrough" ? "The policy passthrough changes nothing. The policy thrifty saves." : "A prompt is shortened once that pays: after some long tool results, or near the model's window. Short conversations stay as they are.");
  }
  return null;
}

/** The next steps if nothing has been said yet. */
function welcome() {
  const base = `${ROOT}/v1`;
  return [
    h("section", { class: "panel" }, h("h2", {}, "Nothing yet"), h("p", {}, "Point an agent at this proxy, and its conversations appear here by themselves."),
      h("pre", { class: "code" }, `export OPENAI_BASE_URL=${base}`),
      h("p", {}, "Any client of the OpenAI API will do: it keeps its own key and its own model names. Claude Code takes the address without a path:"),
      h("pre", { class: "code" }, `export ANTHROPIC_BASE_URL=${ROOT}`),
      h("p", {}, "To see it with recorded sessions first:"),
      h("pre", { class: "code" }, "context-proxy serve --sample --port 8090"),
      h("p", {}, "To try it by hand:"),
      h("pre", { class: "code" }, `curl ${base}/chat/completions -H 'content-type: application/json' \\\n  -H "authorization: Bearer $OPENAI_API_KEY" -H 'x-context-session: hello' \\\n  -d '{"model": "gpt-5", "messages": [{"role": "user", "content": "Hello"}]}'`)),
    h("section", { class: "panel" }, h("h2", {}, "What you will see"), sample(), h("p", { class: "soft" }, "An example with invented figures: each bar is a prompt, and the hollow part is what the proxy leaves out.")),
  ];
}

/** A drawing of what the strips look like; no figure of it is from the store. */
function sample() {
  const parts = [[["system", 3, ""]], [["user", 1, ""], ["thinking", 1, ""], ["tool", 8, "part"]], [["user", 1, ""], ["tool", 6, "out"], ["thinking", 2, ""]], [["user", 1, ""], ["thinking", 2, ""], ["tool", 5, ""]]];
  return h("div", { class: "strip", role: "img", "aria-label": "An example of a prompt drawn as a strip" }, parts.map((pieces) =>
    h("div", { class: "bar fixed", vars: { "--size": String(pieces.reduce((sum, [, size]) => sum + size, 0)) } }, pieces.map(([kind, size, look]) =>
      h("i", { class: `piece k-${kind} ${look}`, vars: { "--size": String(size), "--kept": "25%" } })))));
}
