// Keyboard shortcuts. They are off in text fields and while a dialog is open. The browser itself closes dialogs on Esc.

import { byId, h } from "./dom.js";
import { panel } from "./dialogs.js";
import { allViews, goTo } from "./frame.js";

const SEQUENCE_TIME = 1200; // ms between g and the letter after it

/** Show the list of shortcuts, and who is logged in. */
export function showShortcuts({ name, role }, logout) {
  const row = (keys, what) => h("div", {}, h("dt", {}, keys.map((key) => h("kbd", {}, key))), h("dd", {}, what));
  panel("Keyboard shortcuts",
    h("dl", { class: "keys" },
      row(["/"], "Search entries"),
      allViews().map(({ key, title }, k) => row([...(key ? ["g", key] : []), ...(k < 9 ? [String(k + 1)] : [])], title)),
      row(["p"], "Pause or resume requests"), row(["d"], "Light or dark theme"), row(["c"], "Connect an app"),
      row(["↑", "↓"], "In a table: previous or next row"), row(["←", "→"], "In a chart: previous or next step"),
      row(["?"], "This list"), row(["Esc"], "Close")),
    h("p", { class: "sub" }, "Press g and then the letter, or only the digit. This page loads nothing from other hosts and sends nothing to them."),
    h("div", { class: "buttons" }, name && h("span", { class: "note" }, `Logged in with the token ${name}, role ${role}`), h("button", { type: "button", id: "logout", on: { click: logout } }, "Log out")));
}

/** actions: {help, pause, theme, connect}. */
export function bindShortcuts(actions) {
  let prefixTime = -Infinity; // when g was pressed
  document.addEventListener("keydown", (event) => {
    const typing = event.target.closest?.("input, textarea, select, [contenteditable]");
    if (event.key === "Escape" && typing && !document.querySelector("dialog[open]")) {
      typing.blur();
      return;
    }
    if (event.ctrlKey || event.metaKey || event.altKey || typing || document.querySelector("dialog[open]")) return;
    const prefixed = performance.now() - prefixTime < SEQUENCE_TIME;
    prefixTime = -Infinity;
    const view = prefixed ? allViews().find(({ key }) => key && key === event.key) : allViews()[Number(event.key) - 1];
    if (view) goTo(view.name);
    else if (prefixed) return;
    else if (event.key === "g") prefixTime = performance.now();
    else if (event.key === "/") {
      if (byId("entries").hidden) goTo("entries");
      byId("search").focus();
      byId("search").select();
    } else if (event.key === "?") actions.help();
    else if (event.key === "p") actions.pause();
    else if (event.key === "d") actions.theme();
    else if (event.key === "c") actions.connect();
    else return;
    event.preventDefault();
  });
}
