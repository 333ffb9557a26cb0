// Search over what was said, in the sessions used last first.
import { ask, query } from "./api.js";
import { button, field, h, swap } from "./dom.js";
import { ago, counted, whole } from "./format.js";
import { panel } from "./notices.js";

/** Sessions that are searched without being asked for more; a page of the answer ends early where a store is slow. */
const AT_ONCE = 20;
/** Sessions that are searched without being asked for more while nothing is found. */
const UNTIL_FOUND = 500;

export function showSearch(view, wanted) {
  const input = h("input", { type: "search", placeholder: "Words, or a file's name", autocomplete: "off", value: wanted });
  const list = h("div", { class: "stack" });
  const more = h("div", { class: "row" });
  const go = (event) => {
    event.preventDefault();
    const words = input.value.trim();
    if (words) location.hash = `#/search/${encodeURIComponent(words)}`;
  };
  swap(view.root, h("div", { class: "title" }, h("h1", {}, "Search")),
    h("form", { class: "row search", role: "search", on: { submit: go } }, field("What was said", input), h("button", { class: "button main", type: "submit" }, "Search")), list, more);
  if (!wanted) {
    swap(list, h("p", { class: "soft" }, "Finds whole words in the messages and summaries of every session, the ones used last first."));
    input.focus();
    return;
  }
  let found = 0;
  let looked = 0;
  const load = async (cursor) => {
    swap(more, h("p", { class: "soft" }, looked ? `Searching: ${counted(looked, "session")} so far…` : "Searching…"));
    const got = await ask("GET", `/search${query({ q: wanted, cursor })}`, undefined, view.signal);
    looked += got.looked;
    found += got.items.length;
    list.append(...got.items.map((one) => hit(one, view)));
    swap(more, (found > 0 || got.next) && h("p", { class: "soft" }, `Found in ${whole(found)} of ${counted(looked, "session")}${got.next ? " searched so far" : ""}.`),
      got.next && button("Search older sessions", () => load(got.next).catch(view.fail), { focus: "older" }));
    if (got.next && looked < (found ? AT_ONCE : UNTIL_FOUND)) await load(got.next);
    if (!found && !got.next) swap(list, panel("Nothing has these words", `${counted(looked, "session")} searched. Whole words are found, in messages and in summaries.`));
  };
  load(null).catch(view.fail);
}

function hit(one) {
  const base = `#/s/${encodeURIComponent(one.tenant)}/${encodeURIComponent(one.address)}`;
  return h("section", { class: "panel" }, h("h2", {}, h("a", { href: base }, h("bdi", {}, one.title || one.session)), h("small", {}, ` ${ago(one.last_at)}`)),
    h("ul", { class: "hits" }, one.matches.map((match) => h("li", {},
      h("a", { href: match.group ? `${base}/group/${encodeURIComponent(match.group)}` : base }, match.role || match.kind), h("p", { class: "soft" }, match.text)))));
}
