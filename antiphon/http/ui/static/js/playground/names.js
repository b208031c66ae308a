// What this browser knows of conversations: the names that the user gave them, and which responses are
// branches of one conversation. The API has neither, so the browser stores them until the key is forgotten.
import { onForget } from "../api.js";
import { createStore, inBrowser } from "../lib.js";

/** The oldest entries are dropped beyond this many responses. */
const LIMIT = 2000;

/** A text for each response, kept in this browser. */
function byResponse(key) {
  const saved = inBrowser(key);
  const store = createStore({ byResponse: saved.read({}) });
  const write = (entries) => {
    const kept = Object.fromEntries(entries.slice(-LIMIT));
    store.update({ byResponse: kept });
    if (entries.length) saved.write(kept);
    else saved.remove();
  };
  onForget(() => write([]));
  return {
    store,
    of: (id) => store.get().byResponse[id],
    /** Give responses a text; an empty one removes theirs. */
    set(ids, text) {
      const others = Object.entries(store.get().byResponse).filter(([id]) => !ids.includes(id));
      write(text ? [...others, ...ids.map((id) => [id, text])] : others);
    },
  };
}

const named = byResponse("names");
const chats = byResponse("chats");

/** The name of its conversation by the id of each response. */
export const names = named.store;
export const setName = named.set;
export const nameOf = (id) => named.of(id) ?? "";

/** The id of its conversation by the id of each response, of those that this page began. */
export const addToChat = chats.set;
export const chatOf = chats.of;
