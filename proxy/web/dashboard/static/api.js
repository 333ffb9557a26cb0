// Calls of the admin API: the key goes with each call, and every error has one shape.

const STORED = "context-proxy-key";

/** The proxy's address, without a slash at its end. Behind a reverse proxy it may have a path. */
export const ROOT = new URL("..", location.href).href.replace(/\/$/, "");

/** An error of a call. status: 0 if the proxy did not answer. */
export class Problem extends Error {
  constructor(status, message, hint = "") {
    super(message);
    this.status = status;
    this.hint = hint;
  }
}

const reachListeners = new Set();

/** Register a function that is called with true if the proxy answers, else with false. */
export function onReach(listener) {
  reachListeners.add(listener);
}

export const key = {
  get: () => sessionStorage.getItem(STORED) || "",
  set: (value) => (value ? sessionStorage.setItem(STORED, value) : sessionStorage.removeItem(STORED)),
};

async function send(method, path, body, signal) {
  const headers = {};
  if (key.get()) headers["x-context-key"] = key.get();
  if (body !== undefined || method === "POST") headers["content-type"] = "application/json";
  let answer;
  try {
    const text = body === undefined ? undefined : JSON.stringify(body);
    answer = await fetch(`${ROOT}/api${path}`, { method, headers, body: text, signal, credentials: "omit", cache: "no-store" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    for (const listener of reachListeners) listener(false);
    throw new Problem(0, "The proxy does not answer.", "It is asked again every few seconds.");
  }
  for (const listener of reachListeners) listener(true);
  if (answer.ok) return answer;
  let problem = {};
  try {
    problem = (await answer.json()).error || {};
  } catch { /* not ours: a gateway in between */ }
  throw new Problem(answer.status, problem.message || `The answer was ${answer.status}.`, problem.hint || "");
}

export async function ask(method, path, body, signal) {
  return (await send(method, path, body, signal)).json();
}

/** Fetch and save as a file: links could not carry the key. */
export async function save(path, name) {
  const blob = await (await send("GET", path)).blob();
  const link = document.createElement("a");
  const address = URL.createObjectURL(blob);
  link.setAttribute("href", address);
  link.setAttribute("download", name);
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}

/** The path of a part of a session. place: {tenant, address}. */
export function at(place, rest = "", query = {}) {
  const given = Object.entries({ tenant: place.tenant, ...query }).filter(([, value]) => value !== "" && value !== null && value !== undefined);
  const asked = new URLSearchParams(given).toString();
  return `/sessions/${encodeURIComponent(place.address)}${rest}${asked ? `?${asked}` : ""}`;
}

/** A query string, without empty values. */
export function query(values) {
  const given = Object.entries(values).filter(([, value]) => value !== "" && value !== null && value !== undefined);
  return given.length ? `?${new URLSearchParams(given)}` : "";
}
