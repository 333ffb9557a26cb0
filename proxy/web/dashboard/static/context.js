// The first tab of a session: the strip, its groups as lines, and the messages of the open group.
import { ask, at } from "./api.js";
import { button, h, swap } from "./dom.js";
import { counted, fate, inserted, short, whole, words } from "./format.js";
import { message } from "./message.js";
import { act, askToConfirm } from "./notices.js";
import { hints, legend, strip, why } from "./strip.js";

const LINES = 60;
/** Groups above which a bar of the strip stands for several. */
const FOLDS_OVER = 120;

export function showContext(session) {
  const drawn = h("div", {}, h("p", { class: "soft" }, "Drawing…"));
  const list = h("div", {});
  swap(session.root, drawn, finder(session, (id) => { if (open !== id) choose(id); }), list);
  let open = session.rest[0] || "";
  let chart = null;
  let all = false;

  const choose = (id) => {
    open = open === id ? "" : id;
    draw();
    if (open) fetchGroup().then(() => document.getElementById("group")?.closest("article").scrollIntoView({ block: "nearest" }));
  };
  const group = h("section", { class: "group", id: "group", "aria-label": "Messages of the group" });
  const view = { session, get branch() { return chart ? chart.branch : ""; }, done: session.refresh && (() => session.refresh()) };
  view.done = () => session.refresh();

  const draw = () => {
    const focused = document.activeElement && document.activeElement.dataset ? document.activeElement.dataset.focus : "";
    const folds = chart.bars.length > FOLDS_OVER;
    swap(drawn, h("div", { class: "drawn" }, legend(), strip(chart, open, choose),
      folds && h("p", { class: "soft" }, `${chart.earlier ? `The newest ${whole(chart.bars.length)} of ${counted(chart.bars.length + chart.earlier, "group")}` : counted(chart.bars.length, "group")}: a bar stands for several of the older ones.`), note(chart)));
    swap(list, lines(chart, open, choose, view, group, all, () => { all = true; draw(); }));
    if (focused) session.root.querySelector(`[data-focus="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true });
  };
  const fetchGroup = async () => {
    const wanted = open;
    if (!wanted) return;
    if (group.dataset.id !== wanted) swap(group, h("p", { class: "soft" }, "Fetching…"));
    try {
      const messages = await ask("GET", at(session.place, `/groups/${encodeURIComponent(wanted)}`, { branch: chart.branch }), undefined, session.signal);
      if (wanted !== open) return;
      group.dataset.id = wanted;
      const inserts = chart.inserts.filter((one) => one.after && messages.some((m) => m.id === one.after));
      swap(group, messages.map((one) => message(one, view, inserts.filter((insert) => insert.after === one.id))));
    } catch (problem) {
      if (problem.status === 404) swap(group, h("p", { class: "soft" }, "The group is not in this branch any more."));
      else session.fail(problem);
    }
  };
  session.changed = async () => {
    chart = await ask("GET", at(session.place, "/prompt_chart", { branch: session.branch }), undefined, session.signal);
    draw();
    await fetchGroup();
  };
}

/** Search over what was said in the session; a match opens its group. */
function finder(session, show) {
  const input = h("input", { type: "search", placeholder: "Words that were said", autocomplete: "off", "aria-label": "Search this session" });
  const found = h("ul", { class: "hits", "aria-live": "polite" });
  const search = async (event) => {
    event.preventDefault();
    const q = input.value.trim();
    if (!q) {
      swap(found);
      return;
    }
    const matches = await ask("GET", at(session.place, "/search", { q, limit: 20 }), undefined, session.signal);
    swap(found, matches.length ? matches.map((one) => h("li", {}, h("p", {}, one.text), one.kind === "message" && button("Show its group", async () => {
      const whole = await ask("GET", at(session.place, `/messages/${encodeURIComponent(one.id)}`), undefined, session.signal);
      show(whole.group);
    }, { kind: "quiet small", focus: `hit-${one.id}` }))) : h("li", { class: "soft" }, "No message has these words."));
  };
  return h("div", { class: "finder" }, h("form", { class: "row", role: "search", on: { submit: (event) => search(event).catch(session.fail) } }, input, h("button", { class: "button", type: "submit" }, "Search")), found);
}

function note(chart) {
  const notices = [];
  if (chart.refused) notices.push(h("p", { class: "notice bad" }, `The prompt is sent unchanged: ${words(chart.refused)}.`));
  if (chart.earlier && chart.bars.length <= FOLDS_OVER) notices.push(h("p", { class: "soft" }, `${counted(chart.earlier, "earlier group")} not drawn.`));
  return notices;
}

function lines(chart, open, choose, view, group, all, showAll) {
  const largest = Math.max(...chart.bars.map((bar) => bar.group.tokens), 1);
  const newest = [...chart.bars].reverse();
  const shown = all || newest.length <= LINES ? newest : newest.filter((bar, n) => n < LINES || bar.group.id === open);
  const inserts = chart.inserts.filter((one) => one.source);
  const made = h("div", { class: "groups" },
    h("h2", {}, "Groups", h("small", {}, " newest first")),
    inserts.length ? insertsLine(inserts) : null,
    shown.map((bar) => line(bar, largest, bar.group.id === open, choose, view, group)),
    shown.length < newest.length && h("div", { class: "row centre" }, button(`Show all ${whole(newest.length)}`, showAll, { kind: "quiet", focus: "all" })));
  hints(made);
  return made;
}

function insertsLine(inserts) {
  return h("details", { class: "line inserts" },
    h("summary", {}, h("span", { class: "dot k-insert" }), "Inserted by the proxy",
      h("span", { class: "facts" }, h("span", {}, inserts.map((one) => inserted(one.source)).join(", ")), h("span", {}, `${short(inserts.reduce((sum, one) => sum + one.tokens, 0))} tokens`))),
    inserts.map((one) => h("div", { class: "insert" }, h("p", { class: "label" }, `${inserted(one.source)} · ${short(one.tokens)} tokens`), h("pre", { class: "text" }, one.text.trim()))));
}

function line(bar, largest, isOpen, choose, view, group) {
  const one = bar.group;
  const size = one.sent === one.tokens ? short(one.tokens) : [h("s", {}, short(one.tokens)), " ", h("b", {}, short(one.sent))];
  const reasons = new Map();
  for (const p of bar.pieces.filter((each) => each.status && each.status !== "in")) {
    const text = `${fate(p.status, p.tokens, p.sent)} by ${words(p.stage || "the operator")}`;
    reasons.set(text, (reasons.get(text) || 0) + 1);
  }
  return h("article", { class: `line s-${one.status}${isOpen ? " open" : ""}` },
    h("div", { class: "line-head" },
      h("button", { type: "button", class: "line-title", dir: "auto", "data-focus": `line-${one.id}`, "aria-expanded": String(isOpen), on: { click: () => choose(one.id) } },
        one.title || "(no user prompt)"),
      one.pinned && h("span", { class: "flag" }, "pinned"),
      one.status !== "in" && h("span", { class: `flag s-${one.status}` }, fate(one.status, one.tokens, one.sent)),
      h("span", { class: "tokens" }, size),
      view.session.may && actions(one, view)),
    h("div", { class: "line-bar", vars: { "--width": `${Math.max(1, (100 * one.tokens) / largest).toFixed(2)}%` } },
      h("div", { class: "bar" }, bar.pieces.map((p) => {
        const out = ["out", "dropped", "removed"].includes(p.status);
        const kept = p.status === "changed" ? `${Math.round((100 * p.sent) / Math.max(p.tokens, 1))}%` : "100%";
        return h("i", { class: `piece k-${p.kind} ${out ? "out" : p.status === "changed" ? "part" : ""}`, vars: { "--size": String(Math.max(p.tokens, 1)), "--kept": kept }, "data-tooltip": `${p.kind} · ${short(p.tokens)} tokens\n${why(p)}` });
      }))),
    isOpen && reasons.size > 0 && h("p", { class: "facts" }, [...reasons].map(([text, count]) => h("span", {}, `${whole(count)} ${text}`))),
    isOpen && group);
}

/** Drop, restore, pin, remove: a group or a message. what: "groups" or "messages". */
export function actions(one, view, what = "groups") {
  const { session } = view;
  const noun = what === "groups" ? "group" : "message";
  const run = (action, done) => async () => {
    await act(() => ask("POST", at(session.place, `/${what}/${encodeURIComponent(one.id)}/${action}`, { branch: view.branch })), done);
    view.done();
  };
  const remove = async () => {
    const yes = await askToConfirm(`Remove this ${noun} for good?`, "It leaves every prompt, and what it said is taken out of the store. Nobody gets it back.", "Remove for good");
    if (yes) await run("remove", (made) => `${counted(made.messages.length, "message")} removed for good.`)();
  };
  const name = (verb) => ({ kind: "quiet small", label: `${verb} this ${noun}`, focus: `${verb}-${what}-${one.id}` });
  const gone = one.status === "removed";
  const out = one.status === "dropped" || gone;
  return h("span", { class: "acts" },
    !out && button("Drop", run("drop", (made) => `${counted(made.messages.length, "message")} left the prompt (${short(made.tokens)} tokens).`), name("Drop")),
    one.status !== "in" && !gone && button("Restore", run("restore", (made) => `${counted(made.messages.length, "message")} back, whole.`), name("Restore")),
    !out && (one.pinned
      ? button("Unpin", run("unpin", "Policies may edit it again."), name("Unpin"))
      : button("Pin", run("pin", "No policy edits it from now on."), name("Pin"))),
    !gone && button("Remove", remove, { ...name("Remove"), kind: "quiet small risky" }));
}
