// The shell: navigation, theme, the question for a key, and which view is shown.
import { access, loadSession, session, setKey, signOut, url } from "./api.js";
import { html, inBrowser, render, useEffect, useEscape, useRef, useState, useStore } from "./lib.js";
import { Empty, Field, Icon, IconButton } from "./parts.js";
import { Recent } from "./recent.js";
import { Playground } from "./playground/view.js";
import { Containers } from "./views/containers.js";
import { Files } from "./views/files.js";
import { Models } from "./views/models.js";
import { Responses } from "./views/responses.js";
import { ServerSettings } from "./views/settings.js";
import { VectorStores } from "./views/stores.js";
import { Usage } from "./views/usage.js";

/** Path in the address after `#/`, name, icon, and the module of the view. */
const VIEWS = [
  { path: "playground", name: "Playground", icon: "chat", view: Playground },
  { path: "responses", name: "Responses", icon: "list", view: Responses },
  { path: "files", name: "Files", icon: "file", view: Files },
  { path: "stores", name: "Vector stores", icon: "book", view: VectorStores },
  { path: "containers", name: "Containers", icon: "box", view: Containers },
  { path: "models", name: "Models", icon: "cpu", view: Models },
  { path: "usage", name: "Usage", icon: "chart", view: Usage },
  { path: "settings", name: "Settings", icon: "gear", view: ServerSettings },
];

const UNKNOWN = {
  path: "", name: "Not found", view: () => html`<div class="view"><div class="view-body">
    <${Empty} icon="search" title="There is no such view"><p>Choose one in the menu.</p></${Empty}></div></div>`,
};

const theme = inBrowser("theme");

function showTheme(name) {
  if (name) document.documentElement.dataset.theme = name;
  else delete document.documentElement.dataset.theme;
}
showTheme(theme.read(null));

const isDark = () =>
  (theme.read(null) ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";

function useRoute() {
  const read = () => location.hash.replace(/^#\/?/, "").split("/").map(decodeURIComponent);
  const [route, setRoute] = useState(read);
  useEffect(() => {
    const update = () => setRoute(read());
    addEventListener("hashchange", update);
    return () => removeEventListener("hashchange", update);
  }, []);
  return route;
}

function App() {
  const [path, ...rest] = useRoute();
  const [menu, setMenu] = useState(false);
  const { needed, key } = useStore(access);
  const view = VIEWS.find((each) => each.path === path) ?? (path ? UNKNOWN : VIEWS[0]);
  const main = useRef(null);
  useEscape(menu, () => setMenu(false));
  useEffect(() => {
    document.title = `${view.name} – Antiphon`;
    setMenu(false);
  }, [view, rest.join("/")]);
  return html`<div class="app">
    <a class="skip" href="#main" onClick=${(event) => { event.preventDefault(); main.current.focus(); }}>Skip to the content</a>
    <${IconButton} icon="menu" className="menu-button" label="Menu" aria-expanded=${menu} onClick=${() => setMenu(!menu)} />
    <${Sidebar} active=${view.path} open=${menu} hasKey=${Boolean(key)} onClose=${() => setMenu(false)} />
    <main id="main" ref=${main} tabindex="-1">
      ${needed ? html`<${KeyForm} wrong=${key} />` : html`<${view.view} key=${view.path + key} rest=${rest} />`}
    </main>
  </div>`;
}

function Sidebar({ active, open, hasKey, onClose }) {
  const { user } = useStore(session);
  const [dark, setDark] = useState(isDark);
  const toggle = () => {
    theme.write(dark ? "light" : "dark");
    showTheme(dark ? "light" : "dark");
    setDark(!dark);
  };
  return html`${open && html`<div class="shade" onClick=${onClose}></div>`}
    <nav class="sidebar ${open ? "open" : ""}" aria-label="Views">
      <a class="brand" href="#/"><img src="ui/icon.svg" alt="" width="26" height="26" />Antiphon</a>
      <ul>${VIEWS.map(({ path, name, icon }) => html`<li key=${path}>
        <a href="#/${path}" aria-current=${active === path ? "page" : undefined} onClick=${onClose}><${Icon} name=${icon} />${name}</a></li>`)}</ul>
      <${Recent} onOpen=${onClose} />
      <div class="sidebar-end">
        ${user && html`<span class="hint grow" title=${`Signed in as ${user}`}>${user}</span>
          <button type="button" class="quiet small" onClick=${signOut}>Sign out</button>`}
        ${hasKey && html`<button type="button" class="quiet small" onClick=${() => setKey("")}>Forget the key</button>`}
        <a class="button quiet small" href="docs" target="_blank" rel="noopener">API reference</a>
        <span class="grow"></span>
        <${IconButton} icon=${dark ? "sun" : "moon"} label=${dark ? "Light colours" : "Dark colours"} onClick=${toggle} />
      </div>
    </nav>`;
}

/** Asks for the API key. It is kept in this tab only. */
function KeyForm({ wrong }) {
  const { issuers } = useStore(session);
  const [value, setValue] = useState(wrong);
  const submit = (event) => {
    event.preventDefault();
    setKey(value.trim());
  };
  return html`<form class="key-form stack" onSubmit=${submit}>
    ${issuers.map((name) => html`<a key=${name} class="button primary" href=${url(`/antiphon/sign-in/${encodeURIComponent(name)}`)}>Sign in with ${name}</a>`)}
    <h1>${issuers.length ? "Or use an API key" : "This server needs an API key"}</h1>
    <${Field} label="API key" hint="It stays in this tab and is forgotten when you close it.">
      <input type="password" autocomplete="off" required value=${value} onInput=${(event) => setValue(event.currentTarget.value)} />
    </${Field}>
    ${wrong && html`<p class="trouble" role="alert">The server does not know this key.</p>`}
    <div class="row end"><button type="submit" class="primary">Continue</button></div>
  </form>`;
}

loadSession();
render(html`<${App} />`, document.getElementById("app"));
