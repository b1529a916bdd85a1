// Runs before anything is drawn, so that a remembered dark page does not flash white.
try {
  const remembered = localStorage.getItem("gep-report-theme");
  if (remembered === "light" || remembered === "dark") document.documentElement.dataset.theme = remembered;
} catch (error) {
  // Storage may be forbidden for files; the system's own setting counts then.
}
