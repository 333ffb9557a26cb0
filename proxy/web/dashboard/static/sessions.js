// The list of sessions: the context use, cost and errors of each.
import { ask, query } from "./api.js";
import { button, choice, field, h, swap } from "./dom.js";
import { ago, counted, dollars, outcome, owner, percent, saved, short } from "./format.js";
import { panel } from "./notices.js";

const SPANS = [["0", "Any time"], ["3600", "Last hour"], ["86400", "Last day"], ["604800", "Last week"]];

/** Put the list into `root`. load: fetch it again; hidden: show the list or not. */
export function listSessions(view, root) {
  const wanted = { q: "", policy: "", span: "0", explicit: "" };
  let pages = 1;
  const list = h("div", {});
  const more = h("div", { class: "row centre" });
  const search = h("input", { type: "search", placeholder: "A part of the name", autocomplete: "off" });
  const policy = choice([["", "Every policy"]], "");
  const span = choice(SPANS, "0");
  const named = choice([["", "Named or not"], ["true", "Named by the client"], ["false", "Recognised by content"]], "");
  let typing = 0;
  const change = () => {
    Object.assign(wanted, { q: search.value.trim(), policy: policy.value, span: span.value, explicit: named.value });
    pages = 1;
    load().catch(view.fail);
  };
  search.addEventListener("input", () => { clearTimeout(typing); typing = setTimeout(change, 200); });
  for (const one of [policy, span, named]) one.addEventListener("change", change);
  swap(root,
    h("div", { class: "row spread" }, h("h2", {}, "Sessions", h("small", {}, " used last first")), h("a", { href: "#/search" }, "Search what was said")),
    h("form", { class: "filters", role: "search", on: { submit: (event) => event.preventDefault() } },
      field("Name", search), field("Policy", policy), field("Used", span), field("Named", named)),
    list, more);
  ask("GET", "/policies", undefined, view.signal).then(({ items }) => {
    for (const one of items) policy.append(h("option", { value: one.name }, one.name));
  }).catch(view.fail);

  let asked = 0;
  let stamp = "";
  const load = async () => {
    const mine = (asked += 1);
    const since = wanted.span === "0" ? "" : Math.floor(Date.now() / 1000 - Number(wanted.span));
    const found = [];
    let cursor = null;
    for (let page = 0; page < pages; page += 1) {
      const path = `/live${query({ q: wanted.q, policy: wanted.policy, explicit: wanted.explicit, since, cursor })}`;
      const got = await ask("GET", path, undefined, view.signal);
      found.push(...got.items);
      cursor = got.next;
      if (!cursor) break;
    }
    if (mine !== asked) return;
    const now = JSON.stringify([found.map((one) => [one, ago(one.last_at)]), cursor, wanted]);
    if (now === stamp) return;
    stamp = now;
    swap(list, found.length ? table(found, view.tenants && new Set(found.map((one) => one.tenant)).size > 1) : nothing());
    swap(more, cursor && button("Show more", () => { pages += 1; load().catch(view.fail); }, { kind: "quiet", focus: "more" }));
  };
  return { load, hidden: (yes) => { root.hidden = yes; } };
}

function nothing() {
  return panel("No session fits", "Widen the search, or wait: the list looks again every few seconds.");
}

function table(rows, tenants) {
  return h("table", { class: "sessions" },
    h("caption", { class: "hidden-text" }, "Sessions, used last first"),
    h("thead", {}, h("tr", {}, ["Session", "Newest prompt, of the window", "Paid", "Saved", "Last used", "Flags"].map((text, n) =>
      h("th", { scope: "col", class: n === 2 || n === 3 ? "number" : undefined }, text)))),
    h("tbody", {}, rows.map((row) => line(row, tenants))));
}

function line(row, tenants) {
  const figures = row.figures;
  const address = `#/s/${encodeURIComponent(row.tenant)}/${encodeURIComponent(row.address)}`;
  const share = figures && saved(figures.cost, figures.cost_without);
  const facts = [!row.explicit && row.title && row.session, row.policy, figures && figures.model, tenants && owner(row.tenant)];
  return h("tr", {},
    h("th", { scope: "row" },
      h("a", { class: "name", dir: "auto", href: address, "data-focus": address }, row.explicit || !row.title ? row.session : row.title),
      row.explicit && row.title && h("span", { class: "first-prompt", dir: "auto" }, row.title),
      h("span", { class: "facts" }, facts.filter(Boolean).map((one) => h("bdi", {}, one)))),
    h("td", { class: "wide" }, figures ? gauge(figures) : h("span", { class: "soft" }, "nothing was said yet")),
    h("td", { class: "number", "data-label": "Paid" }, figures ? [figures.cost === null ? "unknown" : dollars(figures.cost), figures.more && h("span", { class: "facts" }, `newest ${counted(figures.exchanges, "request")}`)] : "–"),
    h("td", { class: "number", "data-label": "Saved" }, figures && share !== null
      ? [h("span", { class: share > 0.005 ? "good" : share < -0.005 ? "less" : "soft" }, percent(share)), Math.abs(figures.cost_without - figures.cost) >= 0.00005 && h("span", { class: "facts" }, dollars(figures.cost_without - figures.cost))]
      : "unknown"),
    h("td", { class: "nowrap", "data-label": "Used" }, ago(row.last_at),
      h("span", { class: "facts" }, `${counted(row.exchanges, "request")}, ${counted(row.messages, "message")}`)),
    h("td", {}, flags(figures)));
}

/** The use of the model's window: solid is the sent prompt, hollow the client's own. No bar if the window is unknown. */
export function gauge(figures) {
  const { tokens_before: before, tokens_after: sent, limit } = figures;
  const part = (tokens) => `${Math.min(100, (100 * tokens) / limit).toFixed(2)}%`;
  const state = figures.utilisation > 1 ? "over" : figures.needs_pruning ? "full" : "";
  return h("div", { class: "gauge" },
    limit && h("div", { class: `track ${state}`, vars: { "--sent": part(sent), "--before": part(before) }, role: "img", "aria-label": `${percent(sent / limit)} of the window used` },
      h("i", { class: "before" }), h("i", { class: "sent" })),
    h("div", { class: "facts" },
      h("span", {}, before !== sent ? [h("s", {}, short(before)), " ", h("b", {}, short(sent))] : h("b", {}, short(sent)), limit ? ` of ${short(limit)}` : " tokens"),
      h("span", {}, limit ? percent(sent / limit, sent / limit < 0.1 ? 1 : 0) : "window not known")));
}

function flags(figures) {
  if (!figures) return null;
  const made = [];
  if (figures.over_budget) made.push(h("span", { class: "flag bad", title: "The newest prompt was over its budget with everything out that may go" }, `over budget ${short(figures.over_budget)}`));
  if (figures.needs_pruning) made.push(h("span", { class: "flag warn", title: "Over the share of the window that the policy fills" }, "full"));
  if (figures.loops) made.push(h("span", { class: "flag warn", title: "The model was told that it goes round in circles" }, `loops ${figures.loops}`));
  if (figures.fallbacks) made.push(h("span", { class: "flag bad", title: "Requests that went out without their plan, mostly as received, with the reason under Latency and errors" }, `${figures.fallbacks} without a plan`));
  if (["failed", "partial", "rejected"].includes(figures.status)) made.push(h("span", { class: "flag bad" }, outcome(figures.status)));
  if (figures.status === "open") made.push(h("span", { class: "flag live" }, "running"));
  if (figures.status === "lost") made.push(h("span", { class: "flag bad", title: "The proxy was killed while it answered, or its store was away" }, outcome("lost")));
  return h("span", { class: "flags" }, made);
}
