// Toasts, dialogs and copyable text.

import { byId, h } from "./dom.js";

const TOAST_TIME = 5000; // ms
const MAX_TOASTS = 3;

/** Show a line in the corner for a few seconds. */
export function toast(text, kind = "good") {
  const list = byId("toasts");
  const element = h("div", { class: `toast ${kind}` }, text);
  list.append(element);
  list.hidePopover(); // shown again at once: this puts it above a dialog that opened in the meantime
  list.showPopover();
  while (list.children.length > MAX_TOASTS) list.firstElementChild.remove();
  setTimeout(() => element.remove(), TOAST_TIME);
}

/** Ask for confirmation; resolves to true if it was given. `body`: nodes; `label`: text of the button, which `ready` gets. */
export function confirm(title, body, label, ready = () => {}) {
  const dialog = byId("confirm");
  const yes = h("button", { type: "submit", class: "danger main", value: "yes" }, label);
  dialog.replaceChildren(h("form", { method: "dialog" },
    h("h2", { id: "confirm-title" }, title), body,
    h("div", { class: "buttons" }, h("button", { type: "submit", value: "no", autofocus: true }, "Cancel"), yes)));
  dialog.returnValue = "";
  dialog.showModal();
  ready(yes);
  return new Promise((resolve) => dialog.addEventListener("close", () => resolve(dialog.returnValue === "yes"), { once: true }));
}

/** Open a dialog with a title and a close button. */
export function panel(title, ...body) {
  const dialog = byId("panel");
  dialog.replaceChildren(
    h("header", { class: "head" }, h("h2", { id: "panel-title" }, title),
      h("button", { type: "button", class: "quiet icon", "aria-label": "Close", on: { click: () => dialog.close() } }, "✕")),
    ...body.flat());
  if (!dialog.open) dialog.showModal();
}

/** Open the drawer at the right. label: a node before its title, or null; body, footer: nodes. */
export function openDrawer([label, title], body, footer = null) {
  const dialog = byId("drawer");
  dialog.replaceChildren(
    h("header", { class: "head" }, label, h("h2", { id: "drawer-title" }, title),
      h("button", { type: "button", class: "quiet icon", "aria-label": "Close", autofocus: true, on: { click: () => dialog.close() } }, "✕")),
    h("div", { class: "sheet" }, body), footer || "");
  if (!dialog.open) dialog.showModal();
  dialog.scrollTop = 0;
}

/** Close a dialog by a click on its backdrop. */
export function closeOnOutsideClick(dialog) {
  dialog.addEventListener("pointerdown", (event) => {
    const box = dialog.getBoundingClientRect();
    const inside = event.clientX >= box.left && event.clientX <= box.right && event.clientY >= box.top && event.clientY <= box.bottom;
    if (event.target === dialog && !inside) dialog.close();
  });
}

/** Text with a copy button. */
export function copyable(text, name) {
  const code = h("code", {}, text);
  const button = h("button", { type: "button", class: "quiet copy", "aria-label": `Copy ${name}` }, "Copy");
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(text);
      button.textContent = "Copied";
    } catch {
      // Not a secure context, or not permitted. Select the text, so that Ctrl+C copies it.
      getSelection().selectAllChildren(code);
      button.textContent = "Selected";
    }
    setTimeout(() => (button.textContent = "Copy"), 1500);
  });
  return h("div", { class: "copyable" }, h("pre", { tabindex: 0 }, code), button);
}
