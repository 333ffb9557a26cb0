// Elements from descriptions. All content becomes text nodes: nothing here parses markup.

const SVG = "http://www.w3.org/2000/svg";

/** An element. props: attributes; `on` listeners by event; `vars` CSS properties; `value`, `checked`… as properties. */
export function h(tag, props, ...children) {
  return fill(document.createElement(tag), props, children);
}

/** The same in SVG. */
export function svg(tag, props, ...children) {
  return fill(document.createElementNS(SVG, tag), props, children);
}

const PROPERTIES = new Set(["value", "checked", "disabled", "hidden", "open", "indeterminate", "selected"]);

function fill(element, props, children) {
  for (const [name, value] of Object.entries(props || {})) {
    if (value === undefined || value === null || value === false) {
      if (value === false && PROPERTIES.has(name)) element[name] = false;
    } else if (name === "on") {
      for (const [event, listener] of Object.entries(value)) element.addEventListener(event, listener);
    } else if (name === "vars") {
      for (const [key, one] of Object.entries(value)) element.style.setProperty(key, one);
    } else if (PROPERTIES.has(name)) {
      element[name] = value;
    } else if (name.startsWith("on") || name === "style" || name === "src" || name === "srcdoc") {
      throw new Error(`${name} is not set on anything here`);
    } else if (name === "href" && !String(value).startsWith("#")) {
      throw new Error("links lead to places of this page only");
    } else {
      element.setAttribute(name, value === true ? "" : String(value));
    }
  }
  add(element, children);
  return element;
}

function add(element, children) {
  for (const child of children) {
    if (child === null || child === undefined || child === false) continue;
    if (Array.isArray(child)) add(element, child);
    else element.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
}

/** Replace the content of an element by these; the focus (by data-focus) is kept. */
export function swap(element, ...children) {
  const active = document.activeElement;
  const held = active && element.contains(active) ? active.closest("[data-focus]") : null;
  const name = held && held.dataset.focus;
  element.replaceChildren();
  add(element, children);
  if (!name) return;
  const again = element.querySelector(`[data-focus="${CSS.escape(name)}"]`);
  if (again) again.focus({ preventScroll: true });
}

/** A button. kind: "", "quiet", "danger" or "main". */
export function button(text, action, { kind = "", label, title, focus, disabled, pressed } = {}) {
  return h("button", {
    type: "button", class: `button ${kind}`, "aria-label": label, title, "data-focus": focus, disabled: Boolean(disabled),
    "aria-pressed": pressed === undefined ? undefined : String(pressed), on: { click: action },
  }, text);
}

let numbers = 0;

/** A control with its label, one above the other. */
export function field(label, control, hint) {
  control.id ||= `field-${(numbers += 1)}`;
  const described = hint && h("p", { class: "hint", id: `${control.id}-hint` }, hint);
  if (described) control.setAttribute("aria-describedby", described.id);
  return h("div", { class: "field" }, h("label", { for: control.id }, label), control, described);
}

/** A choice. options: [value, text] pairs. */
export function choice(options, value, props = {}) {
  const made = h("select", props, options.map(([one, text]) => h("option", { value: one }, text)));
  made.value = value;
  return made;
}
