// What the page says by itself: a toast that goes away, a question that waits, and what to do first.

import { at, h } from "./dom.js";

const STAYS = 5000, MOST = 3;

/** A line in the corner for a few seconds. */
export function toast(text, kind = "good") {
  const room = at("toasts");
  const note = h("div", { class: `toast ${kind}` }, text);
  room.append(note);
  room.hidePopover(); // and up again: above a dialog that was opened since
  room.showPopover();
  while (room.children.length > MOST) room.firstElementChild.remove();
  setTimeout(() => note.remove(), STAYS);
}

/** Ask before something is gone: resolves to whether to go on. `body`: nodes; `label`: what the button does. */
export function confirm(title, body, label) {
  const dialog = at("confirm");
  const yes = h("button", { type: "submit", class: "danger main", value: "yes" }, label);
  dialog.replaceChildren(h("form", { method: "dialog" },
    h("h2", { id: "confirm-title" }, title), body,
    h("div", { class: "answers" }, h("button", { type: "submit", value: "no", autofocus: true }, "Cancel"), yes)));
  dialog.returnValue = "";
  dialog.showModal();
  return new Promise((resolve) => dialog.addEventListener("close", () => resolve(dialog.returnValue === "yes"), { once: true }));
}

/** A panel with a title and a way out. */
export function panel(title, ...body) {
  const dialog = at("panel");
  dialog.replaceChildren(
    h("header", { class: "head" }, h("h2", { id: "panel-title" }, title),
      h("button", { type: "button", class: "quiet icon", "aria-label": "Close", on: { click: () => dialog.close() } }, "✕")),
    ...body.flat());
  if (!dialog.open) dialog.showModal();
}

/** Close a dialog by a click on what is behind it. */
export function closesOutside(dialog) {
  dialog.addEventListener("pointerdown", (event) => {
    const box = dialog.getBoundingClientRect();
    const inside = event.clientX >= box.left && event.clientX <= box.right && event.clientY >= box.top && event.clientY <= box.bottom;
    if (event.target === dialog && !inside) dialog.close();
  });
}

/** Text that can be copied with one press. */
export function copyable(text, name) {
  const code = h("code", {}, text);
  const button = h("button", { type: "button", class: "quiet copy", "aria-label": `Copy ${name}` }, "Copy");
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(text);
      button.textContent = "Copied";
    } catch {
      // Not a secure context, or not allowed: select it, so that the usual keys do.
      getSelection().selectAllChildren(code);
      button.textContent = "Selected";
    }
    setTimeout(() => (button.textContent = "Copy"), 1500);
  });
  return h("div", { class: "copyable" }, h("pre", { tabindex: 0 }, code), button);
}
