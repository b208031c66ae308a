// Preact with htm: components are functions that return html`…`. No build step.
import { h, render, Fragment } from "../vendor/preact.js";
import htm from "../vendor/htm.js";
import { useEffect, useRef, useState } from "../vendor/preact-hooks.js";

export { render, Fragment };
export {
  useCallback, useEffect, useLayoutEffect, useMemo, useRef, useState,
} from "../vendor/preact-hooks.js";

export const html = htm.bind(h);

/** A value that components can follow. `update` merges an object or the result of a function. */
export function createStore(value) {
  const listeners = new Set();
  return {
    get: () => value,
    update(change) {
      const next = typeof change === "function" ? change(value) : change;
      value = { ...value, ...next };
      listeners.forEach((listener) => listener());
    },
    subscribe(listener) {
      listeners.add(listener);
      return () => listeners.delete(listener);
    },
  };
}

/** Render again whenever the selected part of a store changes. */
export function useStore(store, select = (value) => value) {
  const selected = select(store.get());
  const [, setVersion] = useState(0);
  useEffect(() => {
    let last = select(store.get());
    if (last !== selected) setVersion((version) => version + 1);
    return store.subscribe(() => {
      const next = select(store.get());
      if (next !== last) {
        last = next;
        setVersion((version) => version + 1);
      }
    });
  }, [store]);
  return selected;
}

/** Call a function when Escape is pressed while `active`. Dialogs close by themselves first. */
export function useEscape(active, onEscape) {
  useEffect(() => {
    if (!active) return undefined;
    const onKeyDown = (event) => {
      if (event.key === "Escape" && !document.querySelector("dialog[open]")) onEscape();
    };
    addEventListener("keydown", onKeyDown);
    return () => removeEventListener("keydown", onKeyDown);
  }, [active]);
}

/** What a button shows in its own place, such as an editor. When it closes, the button gets the focus. */
export function useEditor() {
  const [isOpen, setOpen] = useState(false);
  const button = useRef(null);
  const close = () => {
    setOpen(false);
    requestAnimationFrame(() => button.current?.focus());
  };
  return { isOpen, open: () => setOpen(true), close, button };
}

/** Load a value when the component appears and when `inputs` change. */
export function useLoaded(load, inputs) {
  const [state, setState] = useState({ loading: true });
  const [version, setVersion] = useState(0);
  useEffect(() => {
    let current = true;
    setState((old) => ({ ...old, loading: true, error: undefined }));
    load().then(
      (value) => current && setState({ value, loading: false }),
      (error) => current && setState((old) => ({ ...old, error, loading: false })),
    );
    return () => {
      current = false;
    };
  }, [...inputs, version]);
  const reload = () => {
    setState((old) => ({ ...old, loading: true })); // at once: what the old value allows must not be clicked
    setVersion((old) => old + 1);
  };
  return { ...state, reload };
}

export const newId = () =>
  Array.from(crypto.getRandomValues(new Uint8Array(8)), (byte) =>
    byte.toString(16).padStart(2, "0")).join("");

/** Read and write JSON in sessionStorage or localStorage; a full or blocked storage is ignored. */
export function storage(area, key) {
  return {
    read(otherwise) {
      try {
        return JSON.parse(area().getItem(key)) ?? otherwise;
      } catch {
        return otherwise;
      }
    },
    write(value) {
      try {
        area().setItem(key, JSON.stringify(value));
        return true;
      } catch {
        return false;
      }
    },
    remove() {
      try {
        area().removeItem(key);
      } catch { /* nothing is stored */ }
    },
  };
}
export const inSession = (key) => storage(() => sessionStorage, `antiphon.${key}`);
export const inBrowser = (key) => storage(() => localStorage, `antiphon.${key}`);
