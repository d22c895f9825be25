// Ctrl+Enter (or Cmd+Enter) anywhere on the Generate tab presses its button.
document.addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey)) return;
  const button = document.querySelector("#generate");
  if (!button || button.offsetParent === null || button.disabled) return;
  event.preventDefault();
  // A number field tells its value when it is left.
  if (document.activeElement instanceof HTMLElement && document.activeElement.tagName === "INPUT") document.activeElement.blur();
  setTimeout(() => button.click(), 50);
});

// Buttons that carry only a sign get a name for screen readers, in the language of the labels.
const NAMES = navigator.language.toLowerCase().split("-")[0] === "pt" ?
  { "swap": "Trocar largura e altura", "random-seed": "Semente aleatória" } :
  { "swap": "Swap width and height", "random-seed": "Random seed" };
new MutationObserver(() => {
  for (const [id, name] of Object.entries(NAMES)) {
    const button = document.getElementById(id);
    if (button && !button.hasAttribute("aria-label")) { button.setAttribute("aria-label", name); button.title = name; }
  }
}).observe(document.documentElement, { childList: true, subtree: true });
