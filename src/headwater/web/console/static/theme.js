// Before anything is drawn: the theme that was chosen, so that no other one is seen first.
(() => {
  let chosen = null;
  try { chosen = localStorage.getItem("headwater.theme"); } catch { /* a browser that keeps nothing */ }
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
})();
