// The times of a session's requests, and what went wrong or was edited in them.
import { ask, at } from "./api.js";
import { chart } from "./chart.js";
import { h, swap } from "./dom.js";
import { dollars, milliseconds, outcome, short, when, words } from "./format.js";

const DRAWN = 200; // requests that a chart of one session draws

export function showLatency(session) {
  const root = h("div", {});
  swap(session.root, root);
  session.changed = async (stats) => {
    const points = await newestRequests(session);
    swap(root, points.length ? [charts(session, points, part(points, stats)), events(session, points)] : h("p", { class: "soft" }, "No request yet."));
  };
}

/** The newest requests of a session, oldest first, each with its tokens, times and cost. */
export const newestRequests = (session) => ask("GET", at(session.place, "/points", { limit: DRAWN, branch: session.branch }), undefined, session.signal);

/** For the title of a chart: which of the session's requests it draws, if not all. */
export const part = (points, stats) => (points.length === DRAWN && stats.exchanges > DRAWN ? `, newest ${DRAWN} requests` : "");

/** The requests of the conversation itself, without those for a title and the like, which have short prompts of their
 * own. */
export function withoutSideCalls(points, record) {
  const side = new Set(record.branches.filter((one) => one.kind === "side").map((one) => one.branch));
  const own = points.filter((one) => !side.has(one.branch));
  return own.length ? own : points;
}

const failed = (one) => !["complete", "open", "client_gone"].includes(one.status);

/** Requests on a time line, with their edits, loops and errors. */
export function marksOf(points) {
  return points.flatMap((one, n) => [
    one.edited && { n, look: "c-mark", text: "new edits" },
    (one.fallback || failed(one)) && { n, look: "c-bad", text: "error or sent without its plan" },
  ].filter(Boolean));
}

function charts(session, points, newest) {
  const open = (n) => { location.hash = `${session.base}/prompts/${encodeURIComponent(points[n].exchange)}`; };
  return h("div", { class: "charts" }, chart(`Time of each request${newest}`, { at: points.map((one) => one.started_at), inOrder: true, open, format: milliseconds, marks: marksOf(points).filter((one) => one.look === "c-bad"), series: [
    { name: "until the answer began", look: "c-paid", values: points.map((one) => one.first_byte_ms), kind: "line" },
    { name: "until it ended", look: "c-without", values: points.map((one) => one.total_ms), kind: "line" }] }));
}

function events(session, points) {
  const listed = [...points].reverse().filter((one) => one.fallback || one.loop || one.edited || !["complete", "open"].includes(one.status)).slice(0, 60);
  return h("section", { class: "panel" }, h("h2", {}, "Edits, loops, errors"),
    listed.length ? h("ul", { class: "events" }, listed.map((one) => h("li", {},
      h("a", { href: `${session.base}/prompts/${encodeURIComponent(one.exchange)}` }, when(one.started_at)),
      h("span", { class: "flags" },
        one.edited && h("span", { class: "flag" }, "new edits"), one.loop && h("span", { class: "flag warn" }, "a note on a loop was inserted"),
        one.fallback && h("span", { class: "flag bad" }, `sent without its plan: ${words(one.fallback)}`), !["complete", "open"].includes(one.status) && h("span", { class: "flag bad" }, outcome(one.status))),
      h("span", { class: "facts" }, h("span", {}, one.tokens_before === one.tokens_after ? `${short(one.tokens_after)} tokens` : `${short(one.tokens_before)} → ${short(one.tokens_after)} tokens`),
        one.cached_tokens !== null && h("span", {}, `${short(one.cached_tokens)} of ${short(one.prompt_tokens)} cached at the provider, ${short(one.predicted)} predicted`), one.cost !== null && h("span", {}, dollars(one.cost)))))) : h("p", { class: "soft" }, "none so far"));
}
