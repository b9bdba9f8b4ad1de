// DOM helpers. Children are nodes or strings, never markup, so text from requests is never parsed as HTML.

const SVG = "http://www.w3.org/2000/svg";

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value == null || value === false) continue;
    if (name === "on") for (const [event, listener] of Object.entries(value)) element.addEventListener(event, listener);
    else if (name === "data") Object.assign(element.dataset, value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(Infinity).filter((child) => child != null && child !== false));
  return element;
}

/** An HTML element: h("button", {class: "quiet", on: {click}}, "Purge"). */
export const h = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);

/** An SVG element. */
export const s = (tag, attributes, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);

export const byId = (id) => document.getElementById(id);

/** Set the text of an element or id, only if it changed: an unchanged node causes no layout and no announcement. */
export function setText(target, text) {
  const element = typeof target === "string" ? byId(target) : target;
  if (element.textContent !== text) element.textContent = text;
}

/** Replace the rows of a table body and restore the focus to the row (by data-key) that had it. */
export function replaceRows(body, rows) {
  const key = body.contains(document.activeElement) && document.activeElement.closest("[data-key]")?.dataset.key;
  body.replaceChildren(...rows);
  if (key) body.querySelector(`[data-key="${CSS.escape(key)}"]`)?.querySelector("button, a")?.focus({ preventScroll: true });
}

/** Fill a radio group; arrow keys move the selection. */
export function radioGroup(root, options, selected, onSelect) {
  const buttons = options.map(([value, label]) =>
    h("button", { type: "button", role: "radio", data: { value }, on: { click: () => select(value) } }, label));
  function mark(value) {
    for (const button of buttons) {
      const checked = button.dataset.value === value;
      button.setAttribute("aria-checked", String(checked));
      button.tabIndex = checked ? 0 : -1;
    }
  }
  function select(value) {
    mark(value);
    onSelect(value);
  }
  root.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const next = buttons[(buttons.indexOf(document.activeElement) + step + buttons.length) % buttons.length];
    select(next.dataset.value);
    next.focus();
  });
  root.replaceChildren(...buttons);
  mark(selected);
}

/** A row of a description list: its name and its value. */
export const fact = (name, ...value) => h("div", {}, h("dt", {}, name), h("dd", {}, ...value));

/** A number and a line below it, for a card. Returns a function that sets both. kind: "", "warn" or "bad". */
export function figure(root) {
  const [number, line] = [h("p", {}), h("p", { class: "sub" })];
  root.append(number, line);
  return (value, text, kind = "") => {
    number.className = `middle ${kind}`;
    setText(number, value);
    setText(line, text);
  };
}

/** A coloured dot. kind: "good", "fair" or "bad". */
export const dot = (kind) => h("i", { class: `dot ${kind}`, "aria-hidden": "true" });

/** Add style rules of a feature. The page's content security policy forbids <style> elements. */
export function addStyles(rules) {
  const sheet = new CSSStyleSheet();
  sheet.replaceSync(rules);
  document.adoptedStyleSheets.push(sheet);
}
