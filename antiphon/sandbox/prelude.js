(input) => {
  "use strict";
  // The globals that a program sees besides the language, and the functions that report its state.
  // A program may overwrite all of them: it breaks only itself.
  const [code, paths, outcomes, timeMs] = input;
  const { stringify, parse } = JSON;
  const calls = [], settlers = [], lines = [];
  let isFinished = false, error = null;

  // The same outcomes must lead to the same calls. So the clock stands still, and its time is the
  // seed of Math.random.
  const RealDate = Date;
  globalThis.Date = new Proxy(RealDate, {
    construct: (target, args, newTarget) =>
      Reflect.construct(
        target,
        args.length ? args : [timeMs],
        newTarget === globalThis.Date ? target : newTarget,
      ),
    apply: () => new RealDate(timeMs).toString(),
    get: (target, name) => (name === "now" ? () => timeMs : target[name]),
  });
  RealDate.prototype.constructor = globalThis.Date;
  let state = timeMs >>> 0;
  Math.random = () => {
    state = (state + 0x6d2b79f5) | 0;
    let x = Math.imul(state ^ (state >>> 15), 1 | state);
    x = (x + Math.imul(x ^ (x >>> 7), 61 | x)) ^ x;
    return ((x ^ (x >>> 14)) >>> 0) / 4294967296;
  };
  for (const name of ["performance", "WeakRef", "FinalizationRegistry"]) delete globalThis[name];

  const format = (value) => {
    if (typeof value === "string") return value.toWellFormed();
    if (value instanceof Error) return `${value.name}: ${value.message}`.toWellFormed();
    return stringify(value) ?? String(value).toWellFormed();
  };
  const text = (...values) => void lines.push(values.map(format).join(" "));
  globalThis.text = text;
  globalThis.console = Object.fromEntries(
    ["log", "info", "debug", "warn", "error"].map((name) => [name, text]),
  );
  globalThis.image = () => {
    throw new Error("image() is not supported here: use text() instead.");
  };

  const call = (path) => (argument) => {
    const json = argument === undefined ? "" : stringify(argument);
    if (json === undefined)
      throw new TypeError(`tools.${path.join(".")} does not accept a function.`);
    return new Promise((resolve, reject) => {
      calls.push([path, json]);
      settlers.push([resolve, reject]);
    });
  };
  const strict = (target, name) =>
    new Proxy(target, {
      get: (members, key) => {
        if (typeof key === "string" && !(key in members))
          throw new ReferenceError(`There is no ${name}.${key}.`);
        return members[key];
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

  // In a stack trace, QuickJS calls the file with the program's code "<input>". Line 3 of this file
  // is the first line of the code, because the code is the body of a function.
  const errorMessage = (reason) => {
    // QuickJS throws null if there is not even memory for an error object.
    if (reason === null) return "It used too much memory.";
    if (!(reason instanceof Error)) return format(reason);
    const line = /<input>:(\d+)/.exec(reason.stack ?? "");
    return format(reason) + (line && line[1] > 2 ? ` (line ${line[1] - 2})` : "");
  };
  let settled = 0;
  globalThis.__program = {
    step: () => {
      // Settle the calls when all calls made so far have an outcome. The result "" tells the caller
      // to run the jobs again.
      if (error === null && calls.length > settled && calls.length <= outcomes.length) {
        for (; settled < calls.length; settled++) {
          const [resolve, reject] = settlers[settled], [value, failed] = outcomes[settled];
          if (failed) reject(new Error(parse(value)));
          else resolve(parse(value));
        }
        return "";
      }
      const pending = error === null ? calls.slice(outcomes.length) : [];
      if (error === null && !pending.length && !isFinished)
        error = "It waits for something that never comes.";
      return stringify({ pending_calls: pending, output: lines.join("\n"), error });
    },
    output: () => lines.join("\n"),
  };
  try {
    const Program = (async () => {}).constructor;
    new Program(code)().then(
      (value) => {
        if (value !== undefined) text(value);
        isFinished = true;
      },
      (reason) => {
        error = errorMessage(reason);
      },
    );
  } catch (reason) {
    error = errorMessage(reason);
  }
}
