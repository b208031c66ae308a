// The model's markdown: parsed by marked, cleaned by DOMPurify, code coloured by highlight.js,
// formulas set by KaTeX. Nothing in it can load anything: pictures of other hosts become links.
import { Marked } from "../vendor/marked.js";
import DOMPurify from "../vendor/purify.js";
import { html, useLayoutEffect, useMemo, useRef, useState, useEffect } from "./lib.js";
import { copyText } from "./clipboard.js";
import { previewButton } from "./preview.js";

/** `$…$` as in pandoc: no space inside the dollars and no digit after them, so that prices stay. */
const INLINE_MATH = /^(?:\$(?!\s)((?:\\.|[^\\$\n])+?)(?<!\s)\$(?!\d)|\\\((.+?)\\\))/;
const BLOCK_MATH = /^(?:\$\$([\s\S]+?)\$\$|\\\[([\s\S]+?)\\\])(?:\n|$)/;

const formula = (level, pattern, start) => ({
  name: `${level}Math`,
  level,
  start: (text) => text.match(start)?.index,
  tokenizer(text) {
    const match = pattern.exec(text);
    return match ? { type: `${level}Math`, raw: match[0], text: (match[1] ?? match[2]).trim() } : undefined;
  },
  renderer: ({ text }) =>
    level === "block"
      ? `<div class="formula" data-tex="${escape(text)}" data-display="true"></div>`
      : `<span class="formula" data-tex="${escape(text)}"></span>`,
});

const escape = (text) =>
  text.replace(/[&<>"']/g, (sign) => `&#${sign.charCodeAt(0)};`);

const marked = new Marked({
  gfm: true,
  breaks: false,
  extensions: [
    formula("block", BLOCK_MATH, /\$\$|\\\[/),
    formula("inline", INLINE_MATH, /\$|\\\(/),
  ],
});

const CLEAN = {
  RETURN_DOM_FRAGMENT: true,
  USE_PROFILES: { html: true },
  FORBID_TAGS: ["style", "form", "button", "select", "textarea", "video", "audio", "picture", "dialog"],
  FORBID_ATTR: ["style", "id", "name", "srcset", "background", "poster", "target", "autofocus", "tabindex"],
};

/** Return markdown as safe nodes. */
function toNodes(markdown) {
  const fragment = DOMPurify.sanitize(markdown, CLEAN);
  for (const picture of fragment.querySelectorAll("img")) {
    if (!/^(data:image\/|blob:)/i.test(picture.getAttribute("src") ?? "")) linkInstead(picture);
  }
  for (const link of fragment.querySelectorAll("a")) secureLink(link);
  for (const code of fragment.querySelectorAll("pre > code")) frameCode(code);
  for (const table of fragment.querySelectorAll("table")) frameTable(table);
  return fragment;
}

function linkInstead(picture) {
  const link = document.createElement("a");
  link.href = picture.getAttribute("src") ?? "";
  link.className = "picture-link";
  link.textContent = picture.alt || link.href;
  link.title = "Pictures of other hosts are not loaded. The link opens this one.";
  picture.replaceWith(link);
}

function secureLink(link) {
  if (/^(https?:|mailto:)/i.test(link.getAttribute("href") ?? "")) {
    link.target = "_blank";
    link.rel = "noopener noreferrer";
  } else {
    link.removeAttribute("href");
  }
}

function frameTable(table) {
  const frame = document.createElement("div");
  frame.className = "table-frame";
  frame.tabIndex = 0;
  frame.setAttribute("role", "region");
  frame.setAttribute("aria-label", "Table");
  table.replaceWith(frame);
  frame.append(table);
}

/** Put a bar with the language and buttons above a block of code. */
function frameCode(code) {
  const language = /language-([\w+#.-]+)/.exec(code.className)?.[1] ?? "";
  const frame = document.createElement("div");
  frame.className = "code-frame";
  const bar = document.createElement("div");
  bar.className = "code-bar";
  const name = document.createElement("span");
  name.textContent = language || "text";
  const button = document.createElement("button");
  button.type = "button";
  button.className = "quiet small";
  button.textContent = "Copy";
  button.addEventListener("click", () => copyText(code.textContent, button));
  const buttons = document.createElement("span");
  buttons.append(...[previewButton(code, language), button].filter(Boolean));
  bar.append(name, buttons);
  const block = code.parentElement;
  block.tabIndex = 0;
  block.replaceWith(frame);
  frame.append(bar, block);
  code.dataset.language = language;
}

// --- libraries that only some texts need ---------------------------------------------------------

let highlighter;
let typesetter;
const loadHighlighter = () => (highlighter ??= import("../vendor/highlight.js"));
const loadTypesetter = () => (typesetter ??= import("../vendor/katex.js"));

async function colour(code) {
  const { default: hljs } = await loadHighlighter();
  const { language } = code.dataset;
  if (!code.isConnected || !hljs.getLanguage(language)) return;
  code.innerHTML = hljs.highlight(code.textContent, { language, ignoreIllegals: true }).value;
}

/** KaTeX writes styles by script, which the page's policy allows; in markup they are forbidden. */
async function typeset(node) {
  const { default: katex } = await loadTypesetter();
  katex.render(node.dataset.tex, node, {
    displayMode: node.dataset.display === "true",
    throwOnError: false,
    trust: false,
    maxExpand: 500,
  });
}

async function finish(root) {
  await Promise.all([
    ...[...root.querySelectorAll("code[data-language]")].map(colour),
    ...[...root.querySelectorAll(".formula")].map(typeset),
  ]);
}

// --- components ----------------------------------------------------------------------------------

/** One block. Only blocks whose text changed are parsed and shown again. */
function Block({ raw, links }) {
  const place = useRef(null);
  useLayoutEffect(() => {
    const tokens = Object.assign(marked.lexer(raw), { links });
    tokens.links = { ...links, ...tokens.links };
    const node = place.current;
    node.replaceChildren(toNodes(marked.parser(tokens)));
    finish(node).catch(() => {});
  }, [raw]);
  return html`<div class="block" ref=${place}></div>`;
}

/** Markdown that may still be growing. */
export function Markdown({ text }) {
  const tokens = useMemo(() => marked.lexer(text), [text]);
  const blocks = tokens.filter((token) => token.type !== "space" && token.type !== "def");
  const definitions = tokens.filter((token) => token.type === "def").map((token) => token.raw).join("");
  return html`<div class="markdown">
    ${blocks.map((token, index) => html`<${Block} key=${index} raw=${definitions + token.raw} />`)}
  </div>`;
}

/** Code or JSON with colours and no frame. */
export function Code({ text, language = "json", label }) {
  const place = useRef(null);
  useLayoutEffect(() => {
    const code = place.current;
    code.textContent = text;
    code.dataset.language = language;
    colour(code).catch(() => {});
  }, [text, language]);
  return html`<pre class="code" tabindex="0" aria-label=${label}><code ref=${place}></code></pre>`;
}

/** JSON text, indented if it is complete. */
export function Json({ value, label }) {
  const text = useMemo(() => {
    if (typeof value !== "string") return JSON.stringify(value, null, 2);
    try {
      return JSON.stringify(JSON.parse(value), null, 2);
    } catch {
      return value;
    }
  }, [value]);
  return html`<${Code} text=${text} label=${label} />`;
}

/** Seconds since a moment, while something runs. */
export function useSeconds(since, running) {
  const [now, setNow] = useState(Date.now());
  useEffect(() => {
    if (!running) return undefined;
    const timer = setInterval(() => setNow(Date.now()), 500);
    return () => clearInterval(timer);
  }, [running]);
  return Math.max(0, Math.round((now - since) / 1000));
}
