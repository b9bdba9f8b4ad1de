// Light or dark, before the first paint: a plain script in the head, as modules come too late and would flash.
//
// The system's wish holds unless a person chose otherwise here; the choice is kept in this browser only.
(function () {
  "use strict";
  const NAME = "knapcache-theme";
  const root = document.documentElement;
  const system = () => (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");

  function kept() {
    try {
      return localStorage.getItem(NAME);
    } catch {
      return null; // storage is off: the choice lasts as long as the page
    }
  }

  function apply(theme) {
    if (theme === "light" || theme === "dark") root.dataset.theme = theme;
    else delete root.dataset.theme;
  }

  apply(kept());
  // Asked for by app.js. Going back to what the system wants forgets the choice, so that it follows the system again.
  root.addEventListener("theme", () => {
    const next = (root.dataset.theme || system()) === "dark" ? "light" : "dark";
    apply(next === system() ? null : next);
    try {
      if (next === system()) localStorage.removeItem(NAME);
      else localStorage.setItem(NAME, next);
    } catch {
      // As above.
    }
  });
})();
