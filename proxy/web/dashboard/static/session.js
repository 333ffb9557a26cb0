// One session: its figures, the actions on it as a whole, and its tabs.
import { ask, at } from "./api.js";
import { button, choice, h, swap } from "./dom.js";
import { ago, counted, dollars, fewer, owner, percent, saved, short, whole, words } from "./format.js";
import { every } from "./live.js";
import { act } from "./notices.js";
import { showContext } from "./context.js";
import { showCosts } from "./costs.js";
import { showLatency } from "./latency.js";
import { showPrompts } from "./prompts.js";
import { showSettings } from "./settings.js";
import { showNotes } from "./notes.js";

const TABS = [
  ["", "Context", showContext], ["prompts", "Requests", showPrompts], ["told", "State & notes", showNotes],
  ["costs", "Money", showCosts], ["latency", "Latency & errors", showLatency], ["settings", "Settings", showSettings],
];

export function showSession(view, place, rest) {
  const tab = TABS.find(([name]) => name === (rest[0] || "")) || TABS[0];
  const base = `#/s/${encodeURIComponent(place.tenant)}/${encodeURIComponent(place.address)}`;
  const head = h("div", {});
  const cards = h("div", { class: "cards", "aria-busy": "true" });
  const body = h("div", { class: "tab" });
  const session = { ...view, place, base, root: body, rest: rest.slice(1), branch: "", changed: null, refresh: null };
  const parts = [head, cards];
  if (session.may) parts.push(toolbar(session));
  const tabs = h("nav", { class: "tabs", "aria-label": "Parts of the session" }, TABS.map(([name, text]) =>
    h("a", { href: name ? `${base}/${name}` : base, "aria-current": name === tab[0] ? "page" : undefined }, text)));
  swap(view.root, parts, tabs, body);
  tabs.scrollLeft = tabs.querySelector("[aria-current]").offsetLeft - tabs.offsetLeft - 40;
  session.fail = view.fail;

  let stamp = null;
  const load = async () => {
    const query = session.branch ? { branch: session.branch, limit: 1 } : { limit: 1 };
    const newest = await ask("GET", at(place, "/exchanges", query), undefined, view.signal);
    const now = JSON.stringify([newest.items, session.branch]);
    if (now === stamp) return;
    const [record, stats] = await Promise.all([
      ask("GET", at(place), undefined, view.signal),
      newest.items.length ? ask("GET", at(place, "/stats", { branch: session.branch }), undefined, view.signal) : null,
    ]);
    stamp = now;
    swap(head, heading(session, record, stats));
    document.title = `${record.session} · context-proxy`;
    cards.removeAttribute("aria-busy");
    swap(cards, stats ? figures(stats) : h("p", { class: "soft" }, "Nothing was said in this session yet."));
    if (session.changed && stats) await session.changed(stats, record);
  };
  const failed = (problem) => {
    stamp = null; // what failed is asked for again
    view.fail(problem);
  };
  const again = every(3, view.signal, () => load().catch(failed));
  session.refresh = () => { stamp = null; again(); };
  tab[2](session);
}

function heading(session, record, stats) {
  const branches = record.branches.filter((one) => one.kind !== "side");
  const pick = branches.length > 1 && choice(
    [["", "Branch last spoken in"], ...branches.map((one) => [one.branch, `${one.kind} ${one.branch.slice(0, 6)} · ${ago(one.created_at)}`])],
    session.branch, { "aria-label": "Branch", "data-focus": "branch" });
  if (pick) pick.addEventListener("change", () => { session.branch = pick.value; session.refresh(); });
  const facts = [stats && stats.policy, stats && stats.model, session.tenants && owner(record.tenant), record.explicit ? null : "recognised by its content"];
  return h("div", { class: "title" },
    h("p", { class: "crumb" }, h("a", { href: "#/" }, "All sessions")),
    h("h1", { class: "session-title", dir: "auto" }, record.explicit || !record.title ? record.session : record.title),
    record.title && h("p", { class: "soft" }, h("bdi", {}, record.explicit ? record.title : record.session)),
    h("p", { class: "facts" }, facts.filter(Boolean).map((one) => h("bdi", {}, one)), pick));
}

function card(label, value, ...more) {
  return h("div", { class: "card" }, h("div", { class: "label" }, label), h("div", { class: "figure" }, value), h("div", { class: "facts" }, more));
}

/** The unit of the next prompt's tokens, beside those of the client. The proxy's tools may make it longer. */
function promptUnit({ sent, tokens }) {
  if (sent === tokens) return " tokens";
  return sent < tokens ? ` of ${short(tokens)} tokens` : ` tokens, ${short(tokens)} from the client`;
}

function figures(stats) {
  const share = saved(stats.cost, stats.cost_without);
  const part = (tokens) => `${Math.min(100, (100 * tokens) / stats.limit).toFixed(2)}%`;
  const reported = stats.prompt_tokens ? stats.cached_reported / stats.prompt_tokens : null;
  // The prediction counts tokens itself: it may exceed those that a provider reports.
  const predicted = stats.prompt_tokens ? Math.min(1, stats.cached_predicted / stats.prompt_tokens) : null;
  const levels = Object.entries(stats.levels || {});
  const again = Object.values(stats.refetched || {}).reduce((sum, count) => sum + count, 0);
  return [
    h("div", { class: "card broad" },
      h("div", { class: "label" }, "Next prompt"),
      h("div", { class: "figure" }, short(stats.sent), h("small", {}, promptUnit(stats))),
      stats.limit && h("div", { class: `track ${stats.utilisation > 1 ? "over" : stats.needs_pruning ? "full" : ""}`, vars: { "--sent": part(stats.sent), "--before": part(stats.tokens) } },
        h("i", { class: "before" }), h("i", { class: "sent" })),
      h("div", { class: "facts" },
        stats.limit ? h("span", {}, `${percent(stats.utilisation, 1)} of ${short(stats.limit)}`) : h("span", {}, "the model's window is not known"),
        stats.over_budget ? h("span", { class: "flag bad" }, `${short(stats.over_budget)} over the budget`) : null,
        stats.needs_pruning && h("span", { class: "flag warn" }, "over the policy's share"))),
    card("Messages", whole(stats.items), h("span", {}, counted(stats.groups, "group")),
      stats.left_out ? h("span", {}, `${whole(stats.left_out)} left out`) : null, stats.shortened ? h("span", {}, `${whole(stats.shortened)} shortened`) : null,
      again ? h("span", {}, `${whole(again)} fetched again`) : null),
    card("Paid so far", stats.cost === null ? "unknown" : dollars(stats.cost), h("span", {}, stats.cost === null ? "the model has no price, or no usage was reported" : `about ${dollars(stats.cost_without)} without the proxy`), stats.more && h("span", {}, `newest ${counted(stats.exchanges, "request")}`),
      stats.unbilled ? h("span", {}, `${counted(stats.unbilled, "request")} without a bill`) : null,
      stats.pings ? h("span", {}, `${dollars(stats.pings_cost)} for ${counted(stats.pings, "ping")} that kept the cache warm`) : null),
    stats.cost_planned === null ? null : card(`With ${stats.planned_as || "the plan"} instead`, `about ${dollars(stats.cost_planned)}`, h("span", {}, "its plans were only observed")),
    card("Saved", share === null ? "unknown" : percent(share), share !== null && h("span", {}, dollars(stats.cost_without - stats.cost)),
      h("span", {}, fewer(1, stats.ratio) ? `${fewer(1, stats.ratio)} than the client sent` : "as many tokens as the client sent")),
    card("From the provider's cache", percent(reported), h("span", {}, `${percent(predicted)} predicted`)),
    levels.length ? card("In levels", short(levels.reduce((sum, [, tokens]) => sum + tokens, 0)),
      levels.map(([name, tokens]) => h("span", {}, `${words(name)} ${short(tokens)}${stats.level_budgets[name] ? ` of ${short(stats.level_budgets[name])}` : ""}`)), h("span", {}, `${counted(stats.retrieved, "item")} brought back`)) : null,
  ];
}

/** The actions on the whole session: they hold from the next request on. */
function toolbar(session) {
  const { place } = session;
  const post = (rest, body) => ask("POST", at(place, rest), body);
  const branch = () => (session.branch ? { branch: session.branch } : {});
  const run = (rest, body, done) => async () => {
    await act(() => post(rest, typeof body === "function" ? body() : body), done);
    session.refresh();
  };
  const window = h("input", { type: "number", min: 0, max: 1000000, required: true, placeholder: "auto", "aria-label": "Newest groups that stay in the prompt, 0 for all" });
  const keep = (event) => {
    event.preventDefault();
    run("/window", { groups: Number(window.value) }, () => (Number(window.value) ? `The last ${counted(Number(window.value), "group")} stay.` : "All groups stay."))();
  };
  ask("GET", at(place, "/settings"), undefined, session.signal).then((set) => {
    if (set.window >= 0 && document.activeElement !== window) window.value = String(set.window);
  }).catch(() => {});
  return h("div", { class: "toolbar", role: "group", "aria-label": "Actions on the session" },
    button("Undo last group", run("/undo", branch, (made) => `${counted(made.messages.length, "message")} of the last group left the prompt.`), { title: "Take the newest prompt and its answers out of the conversation" }),
    button("Prune", run("/prune", undefined, "The next request is pruned."), { label: "Prune with the next request", title: "The next prompt is cut as if its budget were smaller than its size: what leaves stays out" }),
    button("Compress", run("/compress", undefined, "The next request makes every edit that its policy has to propose."), { label: "Compress with the next request", title: "The next request makes every edit that its policy has to propose" }),
    button("Rebuild state", run("/rebuild", branch, (made) => `State: ${words(made.how)}, ${words(made.outcome)}.`), { title: "Make the state of the conversation anew from its messages" }),
    h("form", { class: "inline", on: { submit: keep } }, h("span", { class: "soft" }, "Keep the newest"), window, h("span", { class: "soft" }, "groups"), h("button", { class: "button", type: "submit" }, "Set")));
}
