// Light or dark theme, set before the first paint. A plain script in the head: a module would run later and flash.
//
// The theme follows the system unless another one is selected here. The selection is stored in this browser only.
(function () {
  "use strict";
  const NAME = "knapcache-theme";
  const root = document.documentElement;
  const system = () => (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");

  function stored() {
    try {
      return localStorage.getItem(NAME);
    } catch {
      return null; // storage is disabled: the selection lasts until the page is closed
    }
  }

  function apply(theme) {
    if (theme === "light" || theme === "dark") root.dataset.theme = theme;
    else delete root.dataset.theme;
  }

  apply(stored());
  // Sent by app.js. Selecting the system's theme removes the stored selection, so that the page follows the system again.
  root.addEventListener("theme", () => {
    const next = (root.dataset.theme || system()) === "dark" ? "light" : "dark";
    apply(next === system() ? null : next);
    try {
      if (next === system()) localStorage.removeItem(NAME);
      else localStorage.setItem(NAME, next);
    } catch {
      // See stored().
    }
  });
})();
