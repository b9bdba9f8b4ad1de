// The keyboard. Single keys work where nobody types and no dialog is open; Esc closes what is open, by the browser itself.

import { at, h } from "./dom.js";
import { panel } from "./notes.js";

export const PLACES = { o: "overview", e: "entries", r: "requests", t: "people", h: "health" };
const NAMES = { overview: "Overview", entries: "What is kept", requests: "Live requests", people: "Models and tenants", health: "Health" };
const SOON = 1200; // ms in which a letter belongs to the g before it

/** Go to a section: the focus goes with the eye. */
export function go(id) {
  const section = at(id);
  const calm = matchMedia("(prefers-reduced-motion: reduce)").matches;
  section.focus({ preventScroll: true });
  section.scrollIntoView({ behavior: calm ? "auto" : "smooth", block: "start" });
}

/** All keys, to read. */
export function help(logout) {
  const row = (keys, what) => h("div", {}, h("dt", {}, keys.map((key) => h("kbd", {}, key))), h("dd", {}, what));
  panel("Keys",
    h("dl", { class: "keys" },
      row(["/"], "Search what is kept"),
      Object.entries(PLACES).map(([key, id], k) => row(["g", key, String(k + 1)], NAMES[id])),
      row(["p"], "Pause live requests"), row(["d"], "Light or dark"), row(["c"], "Connect an app"),
      row(["↑", "↓"], "In a table: from row to row"), row(["←", "→"], "In a chart: from step to step"),
      row(["?"], "This list"), row(["Esc"], "Close")),
    h("p", { class: "sub" }, "After g the letter; or the digit alone. Nothing on this page comes from elsewhere, and nothing goes elsewhere."),
    h("div", { class: "answers" }, h("button", { type: "button", id: "logout", on: { click: logout } }, "Log out")));
}

/** actions: {help, pause, theme, connect}. */
export function listen(actions) {
  let led = -Infinity; // when g was pressed
  document.addEventListener("keydown", (event) => {
    const typing = event.target.closest?.("input, textarea, select, [contenteditable]");
    if (event.key === "Escape" && typing && !document.querySelector("dialog[open]")) {
      typing.blur();
      return;
    }
    if (event.ctrlKey || event.metaKey || event.altKey || typing || document.querySelector("dialog[open]")) return;
    const after = performance.now() - led < SOON;
    led = -Infinity;
    const place = after ? PLACES[event.key] : Object.values(PLACES)[Number(event.key) - 1];
    if (place) go(place);
    else if (after) return;
    else if (event.key === "g") led = performance.now();
    else if (event.key === "/") {
      at("search").focus();
      at("search").select();
    } else if (event.key === "?") actions.help();
    else if (event.key === "p") actions.pause();
    else if (event.key === "d") actions.theme();
    else if (event.key === "c") actions.connect();
    else return;
    event.preventDefault();
  });
}
