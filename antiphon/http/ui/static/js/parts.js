// Small components that several views use.
import { html, useEffect, useRef, useState } from "./lib.js";
import { copyText } from "./clipboard.js";

/** Strokes on a grid of 24 units. */
const ICONS = {
  attach: "M20 11.5l-8.2 8.2a5.5 5.5 0 0 1-7.8-7.8l8.5-8.5a3.7 3.7 0 0 1 5.2 5.2l-8.5 8.5a1.8 1.8 0 0 1-2.6-2.6l7.8-7.8",
  book: "M4 5a2 2 0 0 1 2-2h14v16H6a2 2 0 0 0-2 2zM4 19V5M20 19v2H6",
  bolt: "M13 2L4 14h7l-1 8 9-12h-7z",
  box: "M12 3l8 4.5v9L12 21l-8-4.5v-9zM4 7.5l8 4.5 8-4.5M12 12v9",
  chart: "M4 20V10M10 20V4M16 20v-7M21 20H3",
  chat: "M4 5h16v11H9l-5 4z",
  check: "M4 12.5l5 5L20 6.5",
  chevron: "M9 6l6 6-6 6",
  close: "M6 6l12 12M18 6L6 18",
  code: "M8 7l-5 5 5 5M16 7l5 5-5 5",
  copy: "M9 9h11v11H9zM5 15H4V4h11v1",
  cpu: "M7 7h10v10H7zM10 3v4M14 3v4M10 17v4M14 17v4M3 10h4M3 14h4M17 10h4M17 14h4",
  down: "M12 5v14M6 13l6 6 6-6",
  download: "M12 4v11M7 10l5 5 5-5M4 20h16",
  edit: "M4 20l1-5L16 4l4 4L9 19z",
  file: "M6 3h8l5 5v13H6zM14 3v5h5",
  gear: "M12 9a3 3 0 1 0 0 6 3 3 0 0 0 0-6zM12 2v3M12 19v3M2 12h3M19 12h3M5 5l2 2M17 17l2 2M19 5l-2 2M7 17l-2 2",
  globe: "M12 3a9 9 0 1 0 0 18 9 9 0 0 0 0-18zM3 12h18M12 3c3 3 3 15 0 18M12 3c-3 3-3 15 0 18",
  image: "M4 5h16v14H4zM4 16l5-5 4 4 3-3 4 4M15 9h.01",
  list: "M8 6h12M8 12h12M8 18h12M4 6h.01M4 12h.01M4 18h.01",
  menu: "M4 6h16M4 12h16M4 18h16",
  microphone: "M12 3a3 3 0 0 0-3 3v5a3 3 0 0 0 6 0V6a3 3 0 0 0-3-3zM5 11a7 7 0 0 0 14 0M12 18v3",
  moon: "M20 14A8.5 8.5 0 0 1 10 4a8.5 8.5 0 1 0 10 10z",
  panel: "M4 5h16v14H4zM15 5v14",
  plug: "M9 3v6M15 3v6M6 9h12v3a6 6 0 0 1-12 0zM12 18v3",
  plus: "M12 5v14M5 12h14",
  retry: "M4 12a8 8 0 1 1 2.5 5.8M4 20v-5h5",
  search: "M11 4a7 7 0 1 0 0 14 7 7 0 0 0 0-14zM16 16l4.5 4.5",
  send: "M12 20V5M5 12l7-7 7 7",
  stop: "M7 7h10v10H7z",
  sun: "M12 8a4 4 0 1 0 0 8 4 4 0 0 0 0-8zM12 2v2M12 20v2M2 12h2M20 12h2M5 5l1.5 1.5M17.5 17.5L19 19M19 5l-1.5 1.5M6.5 17.5L5 19",
  terminal: "M4 5h16v14H4zM7 9l3 3-3 3M13 15h4",
  thought: "M12 4a7 6 0 0 0-5 10.2c.6.6 1 1.300 1 2.100V17h8v-.7c0-.8.4-1.500 1-2.100A7 6 0 0 0 12 4zM9 20h6",
  tool: "M14.500 5.500a4.500 4.500 0 0 0-5.700 5.700L3 17v4h4l5.800-5.800a4.500 4.500 0 0 0 5.700-5.700L15.500 12.500 12 12l-.5-3.500z",
  trash: "M4 7h16M9 7V4h6v3M6 7l1 14h10l1-14",
  user: "M12 4a4 4 0 1 0 0 8 4 4 0 0 0 0-8zM4 21c0-4 3.500-6 8-6s8 2 8 6",
};

export function Icon({ name }) {
  return html`<svg class="icon" viewBox="0 0 24 24" aria-hidden="true" focusable="false">
    <path d=${ICONS[name]} />
  </svg>`;
}

/** A button with an icon only; `label` is its accessible name and its tooltip. */
export function IconButton({ icon, label, onClick, className = "", buttonRef, ...rest }) {
  return html`<button type="button" ref=${buttonRef} class="icon-button ${className}" aria-label=${label} title=${label}
    onClick=${onClick} ...${rest}><${Icon} name=${icon} /></button>`;
}

export function CopyButton({ text, label = "Copy", className = "quiet small" }) {
  const button = useRef(null);
  return html`<button type="button" class=${className} ref=${button}
    onClick=${() => copyText(typeof text === "function" ? text() : text, button.current)}>${label}</button>`;
}

/** A dialog of the browser: it keeps the focus inside and closes on Escape. Its first field gets the focus. */
export function Dialog({ title, onClose, children, wide = false }) {
  const dialog = useRef(null);
  useEffect(() => {
    dialog.current.showModal();
    dialog.current.querySelector("form :is(input, textarea, select):not([hidden])")?.focus();
  }, []);
  return html`<dialog ref=${dialog} class=${wide ? "wide" : ""} aria-label=${title} onClose=${onClose}
    onClick=${(event) => event.target === dialog.current && dialog.current.close()}>
    <div class="dialog-body">
      <header><h2>${title}</h2>
        <${IconButton} icon="close" label="Close" onClick=${() => dialog.current.close()} />
      </header>
      ${children}
    </div>
  </dialog>`;
}

/** Tabs with the arrow keys. `tabs`: pairs of id and label. */
export function Tabs({ tabs, active, onChange, label }) {
  const list = useRef(null);
  const move = (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    const at = tabs.findIndex(([id]) => id === active);
    onChange(tabs[(at + step + tabs.length) % tabs.length][0]);
    requestAnimationFrame(() => list.current?.querySelector("[aria-selected=true]")?.focus());
  };
  return html`<div class="tabs" role="tablist" aria-label=${label} ref=${list} onKeyDown=${move}>
    ${tabs.map(([id, name]) => html`<button type="button" role="tab" key=${id} aria-selected=${id === active}
      tabindex=${id === active ? 0 : -1} onClick=${() => onChange(id)}>${name}</button>`)}
  </div>`;
}

/** A heading that opens and closes what is below it. */
export function Section({ title, note, children, open: openAtFirst = false }) {
  const [open, setOpen] = useState(openAtFirst);
  return html`<section class="section">
    <button type="button" class="section-title" aria-expanded=${open} onClick=${() => setOpen(!open)}>
      <${Icon} name="chevron" /><span>${title}</span>${note && html`<small>${note}</small>`}
    </button>
    ${open && html`<div class="section-body">${children}</div>`}
  </section>`;
}

export function Field({ label, hint, children }) {
  return html`<div class="field"><label class="field"><span class="field-label">${label}</span>${children}</label>
    ${hint && html`<small class="hint">${hint}</small>`}</div>`;
}

export function Switch({ label, hint, checked, onChange, disabled = false }) {
  return html`<label class="switch ${disabled ? "disabled" : ""}">
    <input type="checkbox" role="switch" checked=${checked} disabled=${disabled}
      onChange=${(event) => onChange(event.currentTarget.checked)} />
    <span class="switch-text">${label}${hint && html`<small class="hint">${hint}</small>`}</span>
  </label>`;
}

export function Notice({ kind = "info", children }) {
  return html`<div class="notice ${kind}" role=${kind === "error" ? "alert" : "note"}>${children}</div>`;
}

export const Spinner = () => html`<span class="spinner" aria-hidden="true"></span>`;

const STATUS_NAMES = { in_progress: "running", queued: "queued" };

export function Status({ status }) {
  return html`<span class="status ${status}">${STATUS_NAMES[status] ?? status}</span>`;
}

export function Empty({ icon, title, children }) {
  return html`<div class="empty"><${Icon} name=${icon} /><h2>${title}</h2>${children}</div>`;
}

// --- formats -------------------------------------------------------------------------------------

const number = new Intl.NumberFormat("en");
export const count = (value) => (value == null ? "–" : number.format(value));

export function bytes(value) {
  const units = ["B", "kB", "MB", "GB"];
  let unit = 0;
  let amount = value ?? 0;
  while (amount >= 1000 && unit < units.length - 1) {
    amount /= 1000;
    unit += 1;
  }
  return `${amount >= 100 || unit === 0 ? Math.round(amount) : amount.toFixed(1)} ${units[unit]}`;
}

export function duration(seconds) {
  if (seconds == null || Number.isNaN(seconds)) return "–";
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 60) return `${seconds.toFixed(1)} s`;
  return `${Math.floor(seconds / 60)} min ${Math.round(seconds % 60)} s`;
}

/** The API's times are whole seconds. */
export const wholeSeconds = (seconds) => (seconds < 1 ? "under 1 s" : seconds < 60 ? `${seconds} s` : duration(seconds));

const clock = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const dated = new Intl.DateTimeFormat(undefined, { day: "numeric", month: "short", hour: "2-digit", minute: "2-digit" });

/** A unix time: the hour today, the date before. */
export function moment(unix) {
  if (!unix) return "–";
  const date = new Date(unix * 1000);
  return date.toDateString() === new Date().toDateString() ? clock.format(date) : dated.format(date);
}
