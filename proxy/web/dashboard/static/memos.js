// Notes of models for later sessions of a tenant, which people can read, edit and remove.
import { ask, query } from "./api.js";
import { button, choice, field, h, swap } from "./dom.js";
import { ago, tenantName } from "./format.js";
import { act, askToConfirm, panel } from "./notices.js";

export function showMemos(view) {
  const list = h("div", { class: "memos" });
  const more = h("div", { class: "row centre" });
  const search = h("input", { type: "search", placeholder: "In text or tags", autocomplete: "off" });
  const tenant = choice([["", ""]], "");
  const whose = field("Tenant", tenant);
  whose.hidden = true; // until there are several
  let found = [];
  let typing = 0;
  const load = async (cursor = null) => {
    const got = await ask("GET", `/memos${query({ q: search.value.trim(), tenant: tenant.value, cursor })}`, undefined, view.signal);
    found = cursor ? [...found, ...got.items] : got.items;
    swap(list, found.length ? found.map((one) => memo(view, one, tenant.value, again)) : panel("No memos", search.value ? "None has these words." : "Notes that models keep for later sessions. They write them with save_memo, under policies that offer it."));
    swap(more, got.next && button("Show more", () => load(got.next).catch(view.fail), { kind: "quiet", focus: "more" }));
  };
  const fail = (problem) => {
    if (problem.status !== 409) view.fail(problem);
    else swap(list, panel("Whose memos?", "There are several tenants. Pick one above."));
  };
  const again = () => load().catch(fail);
  search.addEventListener("input", () => { clearTimeout(typing); typing = setTimeout(again, 200); });
  tenant.addEventListener("change", again);
  swap(view.root, h("div", { class: "title" }, h("h1", {}, "Memos")),
    h("form", { class: "filters", role: "search", on: { submit: (event) => event.preventDefault() } }, field("Search", search), whose), list, more);
  const begin = async () => {
    if (view.tenants) {
      const { items } = await ask("GET", "/tenants", undefined, view.signal);
      whose.hidden = items.length < 2;
      if (items.length > 1) swap(tenant, items.map((one) => h("option", { value: one.tenant }, tenantName(one.tenant))));
      else if (!items.length) {
        swap(list, panel("No memos", "Notes that models keep for later sessions. Nothing was said through this proxy yet."));
        return;
      }
    }
    await load();
  };
  begin().catch(fail);
}

function memo(view, one, tenant, again) {
  const path = `/memos/${encodeURIComponent(one.memo)}${query({ tenant })}`;
  const box = h("article", { class: "panel memo" });
  const read = () => swap(box,
    h("pre", { class: "text" }, one.content),
    h("div", { class: "facts" }, one.tags.map((tag) => h("span", { class: "flag" }, tag)), one.project && h("span", {}, `project ${one.project}`),
      h("span", {}, `${ago(one.updated_at)}${one.session ? `, in ${one.session}` : ""}`),
      view.may && h("span", { class: "acts" },
        button("Edit", edit, { kind: "quiet small", label: "Edit this memo", focus: `edit-${one.memo}` }),
        button("Delete", remove, { kind: "quiet small risky", label: "Delete this memo", focus: `delete-${one.memo}` }))));
  const edit = () => {
    const text = h("textarea", { rows: 4 });
    text.value = one.content;
    const tags = h("input", { type: "text", value: one.tags.join(", ") });
    const put = async (event) => {
      event.preventDefault();
      const given = tags.value.split(",").map((tag) => tag.trim()).filter(Boolean);
      const made = await act(() => ask("PUT", path, { content: text.value, tags: given }), "Memo stored.");
      if (!made) return;
      one = made;
      read();
    };
    swap(box, h("form", { class: "stack", on: { submit: put } }, field("Memo", text), field("Tags", tags, "Separated by commas."),
      h("div", { class: "row" }, h("button", { class: "button main", type: "submit" }, "Save memo"), button("Cancel", read, { kind: "quiet" }))));
    text.focus();
  };
  const remove = async () => {
    if (!(await askToConfirm("Delete this memo?", "No session is told of it again, and it does not come back.", "Delete memo"))) return;
    await act(() => ask("DELETE", path), "Memo deleted.");
    again();
  };
  read();
  return box;
}
