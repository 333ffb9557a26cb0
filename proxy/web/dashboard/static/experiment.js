// The experiment: sessions of the control arm against managed ones, by what the provider reported.
import { ask, query } from "./api.js";
import { choice, field, h, swap } from "./dom.js";
import { counted, dollars, milliseconds, percent, short, whole } from "./format.js";
import { every } from "./live.js";
import { panel } from "./notices.js";

const SPANS = [["604800", "Last week"], ["2592000", "Last 30 days"], ["7776000", "Last 90 days"], ["0", "All time"]];
const SHARES = new Set(["repeated calls", "tool errors", "refused requests"]);

export function showExperiment(view) {
  const span = choice(SPANS, "7776000");
  const body = h("div", { class: "stack" });
  swap(view.root, h("div", { class: "title" }, h("h1", {}, "Experiment")),
    h("form", { class: "filters", on: { submit: (event) => event.preventDefault() } }, field("Sessions used in", span)), body);
  swap(body, h("p", { class: "soft" }, "Comparing the sessions…"));
  let stamp = "";
  const load = async () => {
    const seconds = Number(span.value);
    const since = seconds ? Math.floor((Date.now() / 1000 - seconds) / 3600) * 3600 : "";
    const report = await ask("GET", `/report${query({ since })}`, undefined, view.signal);
    const now = JSON.stringify(report);
    if (now === stamp) return;
    stamp = now;
    swap(body, draw(report));
  };
  // One report is made at a time: another reader's is waited for.
  const refresh = () => load().catch((problem) => {
    if (problem.status !== 429) view.fail(problem);
    else if (!stamp) swap(body, h("p", { class: "soft" }, "The report is being made for another reader. It is asked for again in half a minute."));
  });
  span.addEventListener("change", refresh);
  every(30, view.signal, refresh);
}

function draw(report) {
  const sessions = report.control_sessions + report.managed_sessions;
  if (!sessions && !report.share) {
    return panel("No experiment is set",
      "A share of the sessions can go out unchanged, as a control. The others are compared with it, by what the provider reported.",
      h("pre", {}, "[experiment]\ncontrol = 0.1"),
      h("p", { class: "soft" }, "Put this into the configuration file and start the proxy again. Ten of a hundred new sessions are then the control."));
  }
  return [
    h("p", { class: "verdict" }, report.verdict),
    h("p", { class: "facts" }, facts(report).map((one) => h("span", {}, one))),
    sessions > 0 && figures(report.figures),
    h("div", { class: "columns" }, predictions(report.predictions), losses(report)),
  ];
}

function facts(report) {
  return [
    `${counted(report.control_sessions, "session")} in the control arm`, `${whole(report.managed_sessions)} managed`,
    report.mixed && `${whole(report.mixed)} in both arms, not counted`, report.unpriced && `${whole(report.unpriced)} without a bill`,
    report.partly_billed && `${whole(report.partly_billed)} with a bill of a part of their requests`,
    report.share ? `the control arm gets ${percent(report.share)} of new sessions` : "no experiment is set now",
    report.more && "only the last used sessions are counted",
  ].filter(Boolean);
}

function figures(rows) {
  const widest = Math.max(0.01, ...rows.flatMap(({ relative, difference: { low, high } }) => (relative && low !== null ? [Math.abs(low), Math.abs(high)] : [])));
  const scale = Math.min(widest, 1);
  const head = ["Figure", "Control", "Managed", "Difference, with its interval of 95 %", "Known"];
  return h("section", { class: "panel" }, h("h2", {}, "Both arms"),
    h("div", { class: "scrolls", tabindex: "0", role: "region", "aria-label": "Both arms" }, h("table", { class: "plain arms" },
      h("thead", {}, h("tr", {}, head.map((text, n) => h("th", { scope: "col", class: n === 1 || n === 2 ? "number" : undefined }, text)))),
      h("tbody", {}, rows.map((one) => {
        const format = formatOf(one.name);
        return h("tr", {}, h("th", { scope: "row" }, one.name), value("Control", one.control, format), value("Managed", one.managed, format), difference(one, format, scale),
          h("td", { "data-label": "Known:" }, one.known ? "yes" : h("span", { class: "soft" }, needed(one))));
      })))),
    h("p", { class: "soft" }, "Dollars for the same prompts: what the provider charged, divided by what the client's own prompts were predicted to cost. The bar is the interval, and the line in its middle no difference. There is an interval from 20 sessions on. A difference is known where chance alone would hardly make it, with 20 sessions or more in each arm. More sessions: as many are needed to see a difference of 5 %."));
}

function needed(figure) {
  if (figure.sessions_needed === null) return "no";
  if (figure.sessions_needed) return `no: about ${counted(figure.sessions_needed, "more session")}`;
  const { low, high } = figure.difference;
  return Math.max(-low, high) < 0.05 ? "no: none of 5 % or more" : "no: chance alone may explain it";
}

function formatOf(name) {
  if (name.startsWith("dollars for")) return (amount) => amount.toFixed(3);
  if (name.startsWith("dollars")) return dollars;
  if (name.endsWith("in ms")) return milliseconds;
  if (SHARES.has(name)) return (share) => percent(share, 1);
  return (amount) => (amount < 100 ? amount.toFixed(2) : short(amount));
}

function value(label, interval, format) {
  if (interval.value === null) return h("td", { class: "number soft", "data-label": label }, "–");
  return h("td", { class: "number", "data-label": label }, format(interval.value), interval.low !== null && h("div", { class: "soft small" }, `${format(interval.low)} to ${format(interval.high)}`));
}

function difference(figure, format, scale) {
  const { value: middle, low, high } = figure.difference;
  if (middle === null) return h("td", { class: "soft" }, "–");
  const text = figure.relative ? (share) => `${share > 0 ? "+" : ""}${percent(share, 1)}` : format;
  const place = (share) => 50 + 50 * Math.max(-1, Math.min(1, share / scale));
  const bar = figure.relative && low !== null && h("div", { class: `interval ${figure.known ? "known" : ""}`, vars: { "--low": `${place(low)}%`, "--wide": `${place(high) - place(low)}%` }, "aria-hidden": "true" }, h("i", {}));
  return h("td", { "data-label": "Difference" }, text(middle), low !== null && h("span", { class: "soft small" }, ` ${text(low)} to ${text(high)}`), bar);
}

function predictions(arms) {
  const rows = Object.entries(arms);
  if (!rows.length) return null;
  return h("section", { class: "panel" }, h("h2", {}, "Predicted and reported"),
    h("div", { class: "scrolls", tabindex: "0", role: "region", "aria-label": "Predicted and reported" }, h("table", { class: "plain" },
      h("thead", {}, h("tr", {}, ["Arm", "Predicted", "Reported"].map((text, n) => h("th", { scope: "col", class: n ? "number" : undefined }, text)))),
      h("tbody", {}, rows.map(([arm, one]) => h("tr", {}, h("th", { scope: "row" }, arm), h("td", { class: "number" }, dollars(one.predicted)), h("td", { class: "number" }, dollars(one.reported))))))));
}

function losses(report) {
  if (!report.losses.length) {
    const billed = report.figures.some((one) => one.name === "dollars a session" && one.managed.value !== null);
    return billed && panel("Sessions that cost more", "By the estimate, no managed session cost more than it would have without the proxy.");
  }
  return h("section", { class: "panel" }, h("h2", {}, "Sessions that cost more"),
    h("ul", { class: "notes" }, report.losses.map((one) => h("li", {},
      h("a", { href: `#/s/${encodeURIComponent(one.tenant)}/${encodeURIComponent(one.address)}/costs` }, h("bdi", {}, one.title || one.session)),
      ` ${dollars(one.dollars)}, an estimated ${dollars(one.without)} without the proxy`,
      h("div", { class: "soft" }, one.causes.map((cause) => (cause.dollars === null ? cause.cause : `${cause.cause} (${dollars(cause.dollars)})`)).join("; "))))));
}
