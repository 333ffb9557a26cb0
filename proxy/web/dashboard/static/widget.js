// <context-manager-widget>: the context use of a session, on any page, in one file.
//
//   <script src="https://proxy.example/dashboard/widget.js"></script>
//   <context-manager-widget session="fix-the-build" key="(a read key)"></context-manager-widget>
//
// Attributes: session (without it, the one used last), tenant, key, proxy (its address; without it, where this file
// came from). The page's origin has to stand in the proxy's `dashboard.origins`. The button needs an admin's key.
// All data from the proxy is shown as text.
"use strict";
(() => {
  const NAME = "context-manager-widget";
  const SECONDS = 3;
  const source = document.currentScript ? new URL("../", document.currentScript.src).href : `${location.origin}/`;
  const number = new Intl.NumberFormat("en");

  const STYLE = `
    :host { display: block; max-width: 30rem; color-scheme: light dark; container-type: inline-size;
      font: 14px/1.45 ui-sans-serif, system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; color: light-dark(#1d1c19, #ebe9e3);
      --line: light-dark(#dedacf, #303233); --soft: light-dark(#5d5a52, #a9a69d); --accent: light-dark(#1f5f5b, #6fc3b8);
      --warn: light-dark(#7d4f00, #e6b866); --warn-bg: light-dark(#fdf3dc, #33290f); }
    :host([hidden]) { display: none; }
    .box { background: light-dark(#fff, #1a1b1c); border: 1px solid var(--line); border-radius: 10px; padding: 14px 16px; display: grid; gap: 12px; }
    h3 { margin: 0; font-size: 15px; font-weight: 650; } h3 span { color: var(--soft); font-weight: 400; overflow-wrap: anywhere; }
    .stats { display: grid; gap: 8px; grid-template-columns: repeat(3, 1fr); }
    @container (max-width: 20rem) { .stats { grid-template-columns: 1fr; } }
    .card { border: 1px solid var(--line); border-radius: 8px; padding: 8px 10px; min-width: 0; }
    .card.warning { border-color: var(--warn); background: var(--warn-bg); }
    .label, .sub { color: var(--soft); font-size: 12px; } .value { font-size: 19px; font-variant-numeric: tabular-nums; overflow-wrap: anywhere; }
    progress { appearance: none; width: 100%; height: 8px; border: 0; border-radius: 4px; overflow: hidden; background: var(--line); accent-color: var(--accent); }
    progress::-webkit-progress-bar { background: var(--line); } progress::-webkit-progress-value { background: var(--accent); }
    progress::-moz-progress-bar { background: var(--accent); } .warning progress::-webkit-progress-value { background: var(--warn); }
    .banner { color: var(--warn); background: var(--warn-bg); border: 1px solid var(--warn); border-radius: 8px; padding: 8px 10px; }
    button { font: inherit; font-weight: 600; color: light-dark(#fff, #10201e); background: var(--accent); border: 0; border-radius: 8px; padding: 8px 14px; min-height: 36px; cursor: pointer; justify-self: start; }
    button:disabled { opacity: .6; cursor: default; } button:focus-visible { outline: 3px solid var(--accent); outline-offset: 2px; }
    .info { color: var(--soft); font-size: 13px; } .info strong { color: light-dark(#1d1c19, #ebe9e3); }
    .toast { border-radius: 8px; padding: 8px 10px; background: light-dark(#e5f1ee, #17302c); } .toast.bad { background: light-dark(#fbe9e7, #3a1d1a); }
  `;

  function make(tag, name, ...children) {
    const made = document.createElement(tag);
    if (name) made.className = name;
    made.append(...children.filter((one) => one !== null));
    return made;
  }

  class ContextManagerWidget extends HTMLElement {
    static observedAttributes = ["session", "tenant", "key", "proxy"];

    constructor() {
      super();
      this.attachShadow({ mode: "open" });
      const sheet = new CSSStyleSheet();
      sheet.replaceSync(STYLE);
      this.shadowRoot.adoptedStyleSheets = [sheet];
      this._interval = null;
      this._stats = null;
      this._trouble = "";
      this._toast = null;
      this._activity = 0;
      this._round = 0;
    }

    connectedCallback() {
      clearInterval(this._interval);
      this.render();
      this.refresh();
      this._interval = setInterval(() => this.refresh(), SECONDS * 1000);
    }

    disconnectedCallback() {
      if (this._interval) {
        clearInterval(this._interval);
        this._interval = null;
      }
      clearTimeout(this._toast && this._toast.timer);
      this._toast = null;
      this._round += 1;
    }

    attributeChangedCallback() {
      this._stats = null;
      if (this.isConnected) this.refresh();
    }

    /** The data for a page's own status bar. */
    getStatus() {
      const stats = this._stats;
      const full = Boolean(stats && stats.needs_pruning);
      return {
        state: this._trouble ? "error" : full ? "warning" : stats && stats.sent > 0 ? "active" : "idle",
        primaryMetric: `${number.format(stats ? stats.sent : 0)} tokens`,
        secondaryMetric: `${((stats && stats.utilisation ? stats.utilisation : 0) * 100).toFixed(0)}% used`,
        lastActivity: this._activity || null,
        message: this._trouble || (full ? "Needs pruning" : "Healthy"),
      };
    }

    /** Ask the proxy again, and show its answer. */
    async refresh() {
      const round = (this._round += 1);
      let [stats, trouble] = [null, ""];
      try {
        const place = await this._place();
        if (place) stats = await this._ask("GET", `${place}/stats`);
        if (stats) stats.place = place;
      } catch (error) {
        trouble = error.message;
      }
      if (round !== this._round || !this.isConnected) return;
      if (stats && (!this._stats || stats.exchanges !== this._stats.exchanges)) this._activity = Date.now();
      if (!trouble || !this._stats) this._stats = stats;
      this._trouble = trouble;
      this.render();
    }

    /** The path of the session: the named one, else the one used last. */
    async _place() {
      const [session, tenant] = [this.getAttribute("session"), this.getAttribute("tenant")];
      if (session) return `/sessions/${encodeURIComponent(plain(session))}`;
      const found = await this._ask("GET", "/sessions?limit=1");
      if (!found.items.length) return null;
      if (!tenant) this._found = found.items[0].tenant;
      return `/sessions/${encodeURIComponent(found.items[0].address)}`;
    }

    async _ask(method, path) {
      const headers = this.getAttribute("key") ? { "x-context-key": this.getAttribute("key") } : {};
      if (method === "POST") headers["content-type"] = "application/json";
      const tenant = this.getAttribute("tenant") || (path.includes("/sessions/") && !this.getAttribute("session") && this._found);
      const given = this.getAttribute("proxy");
      const address = given ? new URL(`/api${path}`, given) : new URL(`api${path}`, source);
      if (tenant) address.searchParams.set("tenant", tenant);
      let answer;
      try {
        answer = await fetch(address, { method, headers, credentials: "omit", cache: "no-store" });
      } catch {
        throw new Error("The proxy does not answer, or this page may not ask it.");
      }
      const told = await answer.json().catch(() => ({}));
      if (!answer.ok) throw new Error((told.error && told.error.message) || `The answer was ${answer.status}.`);
      return told;
    }

    async prune() {
      const stats = this._stats;
      if (!stats) return;
      this._busy = true;
      this.render();
      try {
        await this._ask("POST", `${stats.place}/prune`);
        this._say("The next request is pruned.");
        this.dispatchEvent(new CustomEvent("toast:success", { bubbles: true, composed: true, detail: { message: "The next request is pruned." } }));
      } catch (error) {
        this._say(error.message, "bad");
      }
      this._busy = false;
      if (!this.isConnected) return;
      this.render();
      await this.refresh();
    }

    _say(text, kind = "") {
      clearTimeout(this._toast && this._toast.timer);
      if (!this.isConnected) return;
      this._toast = { text, kind, timer: setTimeout(() => { this._toast = null; this.render(); }, 6000) };
    }

    render() {
      const held = this.shadowRoot.activeElement !== null;
      const stats = this._stats;
      const used = stats && stats.utilisation ? stats.utilisation * 100 : 0;
      const full = Boolean(stats && stats.needs_pruning);
      const box = make("div", "box");
      const title = make("h3", "", "Context Manager");
      if (stats) title.append(" ", make("span", "", stats.session));
      box.append(title);
      if (stats) {
        const bar = make("progress");
        bar.max = 100;
        bar.value = Math.min(used, 100);
        bar.setAttribute("aria-label", "Utilization");
        box.append(make("div", "stats",
          card("Messages", number.format(stats.items)),
          card("Tokens", number.format(stats.sent), stats.limit ? `of ${number.format(stats.limit)}` : "limit not known", full),
          card("Utilization", `${used.toFixed(1)}%`, null, full, bar)));
      } else if (!this._trouble) {
        box.append(make("div", "sub", "Nothing was said yet."));
      }
      if (this._trouble) box.append(status("banner", this._trouble));
      if (full) box.append(status("banner", "Context exceeds the policy's share of the model's window: pruning recommended"));
      if (stats) {
        const button = make("button", "prune-btn", "Prune Context Now");
        button.type = "button";
        button.disabled = Boolean(this._busy);
        button.addEventListener("click", () => this.prune());
        if (stats.prunable || this.hasAttribute("always")) box.append(button);
      }
      const info = make("div", "info", make("strong", "", "Automatic management"));
      info.append(make("div", "", "Context is pruned before requests go out when utilization exceeds the policy's share, 80 % by default."));
      box.append(info);
      if (this._toast) box.append(status(`toast ${this._toast.kind}`, this._toast.text));
      this.shadowRoot.replaceChildren(box);
      const again = this.shadowRoot.querySelector("button");
      if (held && again) again.focus({ preventScroll: true });
    }
  }

  function card(label, value, sub = null, warning = false, more = null) {
    return make("div", warning ? "card warning" : "card", make("div", "label", label), make("div", "value", value), sub === null ? null : make("div", "sub", sub), more);
  }

  function status(name, text) {
    const made = make("div", name, text);
    made.setAttribute("role", "status");
    return made;
  }

  /** A name as a path can carry it: as it is, or as ~ and its base64url. */
  function plain(session) {
    if (/^(~[\w-]+|[A-Za-z0-9][\w.:@+-]*)$/.test(session)) return session;
    const bytes = new TextEncoder().encode(session);
    return `~${btoa(String.fromCharCode(...bytes)).replaceAll("+", "-").replaceAll("/", "_").replace(/=+$/, "")}`;
  }

  ContextManagerWidget.widget = Object.freeze({ element: NAME, displayName: "Context Manager", icon: "🧠", category: "intelligence", updateInterval: SECONDS * 1000 });
  if (!customElements.get(NAME)) customElements.define(NAME, ContextManagerWidget);
})();
