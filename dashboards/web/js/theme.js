// Before anything is painted: the theme that was chosen here before.
try {
  const chosen = localStorage.getItem("gatescope-theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
} catch {
  // Without storage the system's theme is used.
}
