// Figures for people: short, and the same everywhere.

const WHOLE = new Intl.NumberFormat("en");

/** 812, 4.1k, 61k, 1.2M */
export function short(number) {
  if (number === null || number === undefined) return "–";
  if (Math.abs(number) < 1000) return String(Math.round(number));
  const [size, unit] = Math.abs(number) < 999_500 ? [1e3, "k"] : [1e6, "M"];
  const scaled = number / size;
  return `${Math.abs(scaled) < 9.95 ? scaled.toFixed(1) : Math.round(scaled)}${unit}`;
}

/** 61,204 */
export function whole(number) {
  return number === null || number === undefined ? "–" : WHOLE.format(Math.round(number));
}

/** $0.0042, $1.27, $1,204 */
export function dollars(amount) {
  if (amount === null || amount === undefined) return "–";
  const size = Math.abs(amount);
  if (size < 0.00005) return size === 0 ? "$0" : "about $0";
  const digits = size >= 1000 ? 0 : size >= 1 ? 2 : size >= 0.1 ? 3 : 4;
  return `${amount < 0 ? "−" : ""}$${size.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits })}`;
}

/** 0.4 ms, 12 ms, 3.2 s */
export function milliseconds(amount) {
  if (amount === null || amount === undefined) return "–";
  if (amount < 1000) return `${amount < 9.95 ? amount.toFixed(1) : Math.round(amount)} ms`;
  return `${(amount / 1000).toFixed(amount < 99_950 ? 1 : 0)} s`;
}

/** 38 % of a share between 0 and 1 */
export function percent(share, digits = 0) {
  if (share === null || share === undefined || !Number.isFinite(share)) return "–";
  const text = (share * 100).toFixed(digits);
  return `${Number(text) === 0 ? text.replace("-", "") : text.replace("-", "−")} %`;
}

/** How much less `now` is than `before`, or null. */
export function saved(now, before) {
  return now === null || now === undefined || !before ? null : 1 - now / before;
}

/** now, 40 s, 5 min, 3 h, 12 Nov */
export function ago(seconds, now = Date.now() / 1000) {
  if (!seconds) return "–";
  const past = now - seconds;
  if (past < 5) return "now";
  if (past < 60) return `${Math.round(past)} s ago`;
  if (past < 3600) return `${Math.round(past / 60)} min ago`;
  if (past < 86400) return `${Math.round(past / 3600)} h ago`;
  return new Date(seconds * 1000).toLocaleDateString("en-GB", { day: "numeric", month: "short" });
}

/** 12 Nov 2026, 14:03:22 */
export function moment(seconds) {
  return seconds ? new Date(seconds * 1000).toLocaleString("en-GB", { dateStyle: "medium", timeStyle: "medium" }) : "–";
}

/** 14:03 */
export function clock(seconds) {
  return new Date(seconds * 1000).toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit" });
}

/** "1 group", "3 groups" */
export function counted(number, noun) {
  return `${whole(number)} ${noun}${number === 1 ? "" : "s"}`;
}

/** A tenant's name, of those that are a hash of a credential the beginning, as the command line shows it. */
export function tenantName(tenant) {
  return /^[0-9a-f]{32}$/.test(tenant) ? `${tenant.slice(0, 8)}…` : tenant;
}

/** "tenant acme" */
export function owner(tenant) {
  return `tenant ${tenantName(tenant)}`;
}

/** What became of a message or group: a status of the API, with the tokens before and after, in a word. */
export function fate(status, before, after) {
  if (status === "changed") return after > before ? "added to" : "shortened";
  return status === "out" ? "left out" : status;
}

/** 14:03 of today, 21 Nov 14:03 of another day */
export function when(seconds) {
  const then = new Date(seconds * 1000);
  const day = then.toDateString() === new Date().toDateString() ? "" : `${then.toLocaleDateString("en-GB", { day: "numeric", month: "short" })} `;
  return `${day}${clock(seconds)}`;
}

/** 30 % fewer tokens, of the tokens before and after; "" where they are the same. */
export function fewer(after, before) {
  const share = saved(after, before);
  if (share === null || Math.abs(share) < 0.005) return "";
  return `${percent(Math.abs(share))} ${share > 0 ? "fewer" : "more"} tokens`;
}

const OUTCOMES = { rejected: "refused by the upstream", partial: "broken off", client_gone: "client left", open: "running", lost: "end not stored" };

/** How a request ended, of a status of the API. */
export function outcome(status) {
  return OUTCOMES[status] || words(status);
}

/** Names of the texts that the proxy inserts, where the name in the code says too little. */
const INSERTED = { ask: "request for the state", state: "the state", guidelines: "how to read a shortened history", memos: "memos", ledger: "record of activity", reflect: "request to reflect", stored: "text kept from an earlier request" };

/** What an inserted text is, in words. */
export function inserted(source) {
  return INSERTED[source] || words(source);
}

/** Upper case at the beginning, a full stop at the end: for messages of the API, which are parts of sentences. */
export function sentence(text) {
  return text ? `${text[0].toUpperCase()}${text.slice(1)}${/[.!?…]$/.test(text) ? "" : "."}` : "";
}

/** drop_old_results -> drop old results */
export function words(name) {
  return String(name).replaceAll("_", " ");
}
