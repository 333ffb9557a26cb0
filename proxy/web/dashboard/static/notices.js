// Messages to the person: toasts, questions, and errors.
import { button, h } from "./dom.js";
import { sentence } from "./format.js";

/** A short text at the lower edge. kind: "good" or "bad". */
export function toast(text, kind = "good") {
  const made = h("div", { class: `toast ${kind}` }, text);
  document.getElementById("toasts").append(made);
  setTimeout(() => made.remove(), kind === "bad" ? 9000 : 5000);
}

/** Ask before an action that cannot be undone. Resolves to true if the person agrees. */
export function askToConfirm(title, text, yes) {
  return new Promise((resolve) => {
    const done = (answer) => {
      dialog.close();
      dialog.remove();
      resolve(answer);
    };
    const dialog = h("dialog", { class: "dialog", "aria-labelledby": "dialog-title", on: { cancel: () => done(false) } },
      h("h2", { id: "dialog-title" }, title),
      h("p", {}, text),
      h("div", { class: "row end" },
        button("Cancel", () => done(false), { kind: "quiet" }),
        button(yes, () => done(true), { kind: "danger" })));
    document.body.append(dialog);
    dialog.showModal();
  });
}

/** Run an action of the person. A toast shows `done`, a text or a function of the result, or the error. */
export async function act(action, done) {
  try {
    const result = await action();
    const text = typeof done === "function" ? done(result) : done;
    if (text) toast(text);
    return result;
  } catch (problem) {
    if (problem.name === "AbortError") return undefined;
    toast([problem.message, problem.hint].filter(Boolean).map(sentence).join(" "), "bad");
    return undefined;
  }
}

/** A panel that shows an error, or that there is nothing. */
export function panel(title, text, ...more) {
  return h("section", { class: "panel" }, h("h2", {}, title), text && h("p", {}, text), more);
}

/** The heading of a page that has none to show. */
export const unseenHeading = () => h("h1", { class: "hidden-text" }, "context-proxy");

/** Show an error instead of a view. */
export function trouble(problem) {
  if (problem.status === 404) {
    return [unseenHeading(), panel("Not here", "It is not in the store, or it is another tenant's.", h("p", {}, h("a", { href: "#/" }, "All sessions")))];
  }
  return [unseenHeading(), panel("That did not work", sentence(problem.message), problem.hint && h("p", { class: "soft" }, sentence(problem.hint)))];
}
