// Before the first paint: the colours that were chosen last, else those of the system.
"use strict";
(() => {
  const chosen = localStorage.getItem("context-proxy-theme");
  if (chosen === "dark" || chosen === "light") document.documentElement.dataset.theme = chosen;
})();
