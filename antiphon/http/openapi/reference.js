const entries = [...document.querySelectorAll("nav li")];
document.getElementById("filter").addEventListener("input", (event) => {
  const words = event.target.value.toLowerCase().split(/\s+/);
  for (const entry of entries) {
    const text = entry.dataset.text.toLowerCase();
    entry.hidden = !words.every((word) => text.includes(word));
  }
  if (event.target.value) for (const group of document.querySelectorAll("nav details")) group.open = true;
});

// The key of the web page: it lives in sessionStorage only.
const KEY = "antiphon.key";
const keyField = document.getElementById("key");
try {
  keyField.value = JSON.parse(sessionStorage.getItem(KEY) ?? '""');
  keyField.addEventListener("change", () => sessionStorage.setItem(KEY, JSON.stringify(keyField.value.trim())));
} catch { /* the browser stores nothing */ }

const headers = () => (keyField.value.trim() ? { authorization: `Bearer ${keyField.value.trim()}` } : {});

function element(name, properties = {}, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
}

/** The name of a model that the server has; asked for once a key. */
let model;
keyField.addEventListener("change", () => { model = undefined; });
async function firstModel() {
  model ??= fetch("v1/models", { headers: headers() }).then(async (reply) => {
    const { data = [] } = await reply.json();
    return data[0]?.id ?? "MODEL";
  });
  return model.catch(() => "MODEL");
}

/** The form with which one operation is tried. */
async function build(panel) {
  const { method, path, inputs, body } = panel.dataset;
  const fields = JSON.parse(inputs).map((input) => ({
    ...input,
    control: element("input", { type: input.file ? "file" : "text", required: input.required, autocomplete: "off" }),
  }));
  const text = body === undefined ? null : element("textarea", { spellcheck: false });
  if (text) text.value = body.split('"MODEL"').join(JSON.stringify(await firstModel()));
  const status = element("span", { className: "hint" });
  status.setAttribute("role", "status");
  const output = element("pre", { className: "code", hidden: true, tabIndex: 0 });
  const stop = element("button", { type: "button", textContent: "Stop", hidden: true });
  const form = element(
    "form", {},
    ...fields.map(({ name, in: place, control }) =>
      element("label", { className: "field" }, element("span", { className: "field-label", textContent: `${name} (${place})` }), control)),
    ...(text ? [element("label", { className: "field" }, element("span", { className: "field-label", textContent: "JSON body" }), text)] : []),
    element("div", { className: "row" }, element("button", { className: "primary", textContent: `Send ${method}` }), stop, status),
  );
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    send(method, path, fields, text, { status, output, stop });
  });
  panel.append(form, output);
}

async function send(method, path, fields, text, { status, output, stop }) {
  const abort = new AbortController();
  const of = (place) => fields.filter((field) => field.in === place && (field.control.value || field.required));
  const address = of("path").reduce(
    (url, { name, control }) => url.replace(`{${name}}`, encodeURIComponent(control.value)), path.slice(1));
  const query = new URLSearchParams(of("query").map(({ name, control }) => [name, control.value])).toString();
  const request = { method, headers: headers(), signal: abort.signal };
  if (text) {
    request.body = text.value;
    request.headers["content-type"] = "application/json";
  } else if (of("body").length) {
    request.body = new FormData();
    for (const { name, control } of of("body")) {
      for (const value of control.files ?? [control.value]) request.body.append(name, value);
    }
  }
  output.hidden = false;
  output.textContent = "";
  status.textContent = "Waiting …";
  stop.hidden = false;
  stop.onclick = () => abort.abort();
  const began = performance.now();
  try {
    const reply = await fetch(query ? `${address}?${query}` : address, request);
    const type = reply.headers.get("content-type") ?? "";
    const name = `${reply.status} · ${type.split(";")[0]}`;
    status.textContent = name;
    const reader = reply.body.pipeThrough(new TextDecoderStream()).getReader();
    for (let part = await reader.read(); !part.done; part = await reader.read()) output.textContent += part.value;
    if (type.includes("application/json")) output.textContent = JSON.stringify(JSON.parse(output.textContent), null, 2);
    status.textContent = `${name} · ${Math.round(performance.now() - began)} ms`;
  } catch (error) {
    status.textContent = error.name === "AbortError" ? "Stopped" : error.message;
  } finally {
    stop.hidden = true;
  }
}

for (const panel of document.querySelectorAll("details.try")) {
  panel.addEventListener("toggle", () => build(panel), { once: true });
}
