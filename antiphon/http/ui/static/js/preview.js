// A preview of HTML that a model wrote. Its frame has an origin of its own, and its content security
// policy lets it run scripts, but send and load nothing. A document in `srcdoc` would have the page's
// policy, which forbids its styles and scripts.
import { url } from "./api.js";

const LANGUAGES = new Set(["html", "htm", "xhtml", "svg"]);

/** A button that opens and closes a preview of the code below a block; null for other languages. */
export function previewButton(code, language) {
  if (!LANGUAGES.has(language.toLowerCase())) return null;
  const button = document.createElement("button");
  button.type = "button";
  button.className = "quiet small";
  button.textContent = "Preview";
  button.setAttribute("aria-expanded", "false");
  let frame = null;
  button.addEventListener("click", () => {
    if (frame) frame.remove();
    frame = frame ? null : openFrame(code);
    button.setAttribute("aria-expanded", String(frame !== null));
  });
  return button;
}

function openFrame(code) {
  const frame = document.createElement("iframe");
  frame.className = "html-preview";
  frame.title = "Preview of the HTML";
  frame.setAttribute("sandbox", "allow-scripts");
  frame.addEventListener(
    "load", () => frame.contentWindow.postMessage(code.textContent, "*"), { once: true });
  frame.src = url("ui/preview.html");
  code.closest(".code-frame").append(frame);
  return frame;
}
