// Copying, with a confirmation on the button.

const DONE = "Copied";

/** Copy a text. `button` says that it is copied, for a moment. */
export async function copyText(text, button) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    copyBySelection(text, button?.closest("dialog") ?? document.body);
    button?.focus();
  }
  if (!button || button.textContent === DONE) return;
  const label = button.textContent;
  button.textContent = DONE;
  setTimeout(() => {
    button.textContent = label;
  }, 1500);
}

/** Pages of plain http on other addresses than localhost have no clipboard. Beside an open dialog, nothing
 * can be selected. */
function copyBySelection(text, place) {
  const area = document.createElement("textarea");
  area.value = text;
  place.append(area);
  area.select();
  document.execCommand("copy");
  area.remove();
}
