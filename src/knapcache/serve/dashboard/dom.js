// Elements in one call, so that no text of others is ever read as HTML: children are nodes or strings, never markup.

const SVG = "http://www.w3.org/2000/svg";

function fill(element, given, children) {
  for (const [name, value] of Object.entries(given ?? {})) {
    if (value == null || value === false) continue;
    if (name === "on") for (const [event, run] of Object.entries(value)) element.addEventListener(event, run);
    else if (name === "data") Object.assign(element.dataset, value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(Infinity).filter((child) => child != null && child !== false));
  return element;
}

/** An HTML element: h("button", {class: "quiet", on: {click}}, "Purge"). */
export const h = (tag, given, ...children) => fill(document.createElement(tag), given, children);

/** An SVG element. */
export const s = (tag, given, ...children) => fill(document.createElementNS(SVG, tag), given, children);

/** The element with this id. */
export const at = (id) => document.getElementById(id);

/** Set text, but only where it changed: a calm page touches nothing that stayed the same. */
export function put(target, text) {
  const element = typeof target === "string" ? at(target) : target;
  if (element.textContent !== text) element.textContent = text;
}

/** Replace the rows of a table body, and put the focus back on the row that had it (rows are told apart by data-key). */
export function rows(body, fresh) {
  const key = body.contains(document.activeElement) && document.activeElement.closest("[data-key]")?.dataset.key;
  body.replaceChildren(...fresh);
  if (key) body.querySelector(`[data-key="${CSS.escape(key)}"]`)?.querySelector("button, a")?.focus({ preventScroll: true });
}

/** A group of choices, one of which holds; arrow keys move, as in every radio group. Returns how to set it. */
export function choices(root, options, chosen, pick) {
  const buttons = options.map(([value, label]) =>
    h("button", { type: "button", role: "radio", data: { value }, on: { click: () => choose(value) } }, label));
  function choose(value, quiet = false) {
    for (const button of buttons) {
      const here = button.dataset.value === value;
      button.setAttribute("aria-checked", String(here));
      button.tabIndex = here ? 0 : -1;
    }
    if (!quiet) pick(value);
  }
  root.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const next = buttons[(buttons.indexOf(document.activeElement) + step + buttons.length) % buttons.length];
    choose(next.dataset.value);
    next.focus();
  });
  root.replaceChildren(...buttons);
  choose(chosen, true);
  return (value) => choose(value, true);
}
