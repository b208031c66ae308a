(given) => {
  "use strict";
  // What a program sees besides the language, and how it is asked where it stands. A program may
  // break all of it: it breaks only itself.
  const [code, paths, answers, at] = given;
  const { stringify, parse } = JSON;
  const asked = [], open = [], said = [];
  let over = false, error = null;

  // The same answers must lead to the same calls: time stands still, and chance is drawn from it.
  const Real = Date;
  globalThis.Date = new Proxy(Real, {
    construct: (target, given, as) =>
      Reflect.construct(target, given.length ? given : [at], as === globalThis.Date ? target : as),
    apply: () => new Real(at).toString(),
    get: (target, name) => (name === "now" ? () => at : target[name]),
  });
  Real.prototype.constructor = globalThis.Date;
  let state = at >>> 0;
  Math.random = () => {
    state = (state + 0x6d2b79f5) | 0;
    let x = Math.imul(state ^ (state >>> 15), 1 | state);
    x = (x + Math.imul(x ^ (x >>> 7), 61 | x)) ^ x;
    return ((x ^ (x >>> 14)) >>> 0) / 4294967296;
  };
  for (const name of ["performance", "WeakRef", "FinalizationRegistry"]) delete globalThis[name];

  const written = (value) => {
    if (typeof value === "string") return value.toWellFormed();
    if (value instanceof Error) return `${value.name}: ${value.message}`.toWellFormed();
    return stringify(value) ?? String(value).toWellFormed();
  };
  const text = (...values) => void said.push(values.map(written).join(" "));
  globalThis.text = text;
  globalThis.console = Object.fromEntries(
    ["log", "info", "debug", "warn", "error"].map((name) => [name, text]),
  );
  globalThis.image = () => {
    throw new Error("image() is not possible here: put out text.");
  };

  const call = (path) => (argument) => {
    const given = argument === undefined ? "" : stringify(argument);
    if (given === undefined) throw new TypeError(`tools.${path.join(".")} takes no function.`);
    return new Promise((yes, no) => {
      asked.push([path, given]);
      open.push([yes, no]);
    });
  };
  const strict = (target, name) =>
    new Proxy(target, {
      get: (all, key) => {
        if (typeof key === "string" && !(key in all))
          throw new ReferenceError(`There is no ${name}.${key}.`);
        return all[key];
      },
    });
  const tools = Object.create(null);
  for (const path of paths) {
    const [first, second] = path;
    if (second === undefined) tools[first] = Object.assign(call(path), tools[first]);
    else (tools[first] ??= Object.create(null))[second] = call(path);
  }
  for (const [name, inner] of Object.entries(tools))
    if (typeof inner !== "function") tools[name] = strict(inner, `tools.${name}`);
  globalThis.tools = strict(tools, "tools");

  // The code stands in the third line of a function, in a file of this name.
  const broken = (why) => {
    if (why === null) return "It used too much memory."; // more than it takes to say so
    if (!(why instanceof Error)) return written(why);
    const line = /<input>:(\d+)/.exec(why.stack ?? "");
    return written(why) + (line && line[1] > 2 ? ` (line ${line[1] - 2})` : "");
  };
  let answered = 0;
  globalThis.__program = {
    step: () => {
      if (error === null && asked.length > answered && asked.length <= answers.length) {
        for (; answered < asked.length; answered++) {
          const [yes, no] = open[answered], [value, failed] = answers[answered];
          if (failed) no(new Error(parse(value)));
          else yes(parse(value));
        }
        return "";
      }
      const left = error === null ? asked.slice(answers.length) : [];
      if (error === null && !left.length && !over)
        error = "It waits for something that never comes.";
      return stringify({ asked: left, said: said.join("\n"), error });
    },
    said: () => said.join("\n"),
  };
  try {
    const Program = (async () => {}).constructor;
    new Program(code)().then(
      (value) => {
        if (value !== undefined) text(value);
        over = true;
      },
      (why) => {
        error = broken(why);
      },
    );
  } catch (why) {
    error = broken(why);
  }
}
