// The frame: the view that the address names, the key in use, light or dark, and the state of the proxy.
import { ask, key, onReach } from "./api.js";
import { button, field, h, swap } from "./dom.js";
import { sentence } from "./format.js";
import { showExperiment } from "./experiment.js";
import { showHealth } from "./health.js";
import { showMemos } from "./memos.js";
import { showMoney } from "./money.js";
import { showOverview } from "./overview.js";
import { panel, trouble, unseenHeading } from "./notices.js";
import { showSearch } from "./search.js";
import { showSession } from "./session.js";

const main = document.getElementById("main");
const PAGES = [["#/", "Overview"], ["#/money", "Money"], ["#/experiment", "Experiment"], ["#/health", "Health"], ["#/search", "Search"], ["#/memos", "Memos"]];

let me = null;
let ending = new AbortController();

/** The context of a view. root: its element; signal: its end; may: true if the key may change something. */
function context(root) {
  const mine = ending.signal;
  return {
    root,
    signal: mine,
    may: Boolean(me && me.may_change),
    tenants: Boolean(me && me.tenant === "*"),
    fail(problem) {
      if (problem.name === "AbortError" || mine.aborted) return;
      if (problem.status === 401) askForKey(problem);
      else if (problem.status !== 0 || !root.childElementCount) {
        swap(root, trouble(problem));
        // A store that is busy answers again: nobody should have to load the page for that.
        if (!(problem.status >= 400 && problem.status < 500)) setTimeout(() => mine.aborted || show(), 5000);
      }
    },
  };
}

async function show() {
  ending.abort();
  ending = new AbortController();
  const parts = location.hash.replace(/^#\/?/, "").split("/").map(decoded);
  frame(parts[0]);
  const root = h("div", { class: "view" });
  swap(main, root);
  const mine = ending.signal;
  if (!me) {
    try {
      me = await ask("GET", "/me", undefined, mine);
    } catch (problem) {
      if (mine.aborted) return;
      if (problem.status === 401 || problem.status === 403) askForKey(problem);
      else {
        swap(root, trouble(problem));
        setTimeout(() => mine.aborted || show(), 3000);
      }
      return;
    }
    if (mine.aborted) return;
    frame(parts[0]);
  }
  const view = context(root);
  if (parts[0] === "s" && parts.length >= 3) showSession(view, { tenant: parts[1], address: parts[2] }, parts.slice(3));
  else if (parts[0] === "money") showMoney(view);
  else if (parts[0] === "memos") showMemos(view);
  else if (parts[0] === "experiment") showExperiment(view);
  else if (parts[0] === "health") showHealth(view);
  else if (parts[0] === "search") showSearch(view, parts[1] || "");
  else if (parts[0] === "") showOverview(view);
  else swap(root, unseenHeading(), panel("There is no such page", "The pages are in the menu above."));
}

function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

function frame(page) {
  const here = page === "" || page === "s" ? "#/" : `#/${page}`;
  swap(document.getElementById("pages"), PAGES.map(([href, text]) =>
    h("a", { href, "aria-current": href === here ? "page" : undefined }, text)));
  swap(document.getElementById("top-end"), who(), themeSwitch());
  document.title = "context-proxy";
}

function who() {
  if (!me || me.plane === "any") return null;
  return h("span", { class: "who" },
    h("span", { class: "soft" }, `${me.name}${me.may_change ? "" : " (may look only)"}`),
    button("Forget key", () => { key.set(""); me = null; show(); }, { kind: "quiet", focus: "forget" }));
}

function themeSwitch() {
  const root = document.documentElement;
  const dark = () => (root.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
  const turn = () => {
    root.dataset.theme = dark() ? "light" : "dark";
    localStorage.setItem("context-proxy-theme", root.dataset.theme);
    frame(location.hash.replace(/^#\/?/, "").split("/")[0]);
  };
  return button(dark() ? "Light" : "Dark", turn, {
    kind: "quiet", label: dark() ? "Switch to light colours" : "Switch to dark colours", focus: "theme",
  });
}

function askForKey(problem) {
  ending.abort();
  const wrong = Boolean(key.get());
  key.set("");
  me = null;
  frame("");
  const input = h("input", { type: "password", autocomplete: "off", spellcheck: "false", required: true });
  const enter = (event) => {
    event.preventDefault();
    key.set(input.value.trim());
    show();
  };
  swap(main, h("div", { class: "view narrow" }, unseenHeading(), panel(
    wrong ? "That key does not open this" : "This proxy has keys", null,
    h("p", {}, wrong ? sentence(problem.message) : "Enter an admin key, or a read key to look only. It is kept in this tab and nowhere else."),
    h("form", { class: "stack", on: { submit: enter } },
      field("Key", input, "The command “context-proxy key” makes keys."),
      h("div", {}, h("button", { class: "button main", type: "submit" }, "Enter"))))));
  input.focus();
}

let reached = true;
onReach((answers) => {
  if (answers === reached) return;
  reached = answers;
  swap(document.getElementById("banner"), answers ? null
    : h("div", { class: "lost" }, h("strong", {}, "The proxy does not answer."), " What is shown may be old. It is asked again every few seconds."));
});

addEventListener("hashchange", () => {
  show();
  scrollTo(0, 0);
});
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  main.focus();
});
show();
