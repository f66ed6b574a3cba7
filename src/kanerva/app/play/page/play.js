// The page of the playground: no library, no build step, nothing from elsewhere.

const $ = (id) => document.getElementById(id);
const all = (selector, root = document) => [...root.querySelectorAll(selector)];
const app = { session: null, models: {}, model: null, stored: [], tray: [], chosen: 0, three: [], known: false };

// ---- asking the server

class Problem extends Error {}

async function request(path, body, headers = {}, signal = undefined) {
  let answer;
  try {
    answer = await fetch(path, { method: "POST", body, signal, headers: { "x-session": app.session ?? "", ...headers } });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem("The server does not answer. Is it still running?");
  }
  if (answer.ok) return answer;
  const said = await answer.json().catch(() => ({ error: answer.statusText || "no answer" }));
  if (answer.status === 410) {
    app.session = null;
    await begin();
  }
  throw new Problem(capital(said.error));
}

const post = async (name, body = {}) => (await request(`api/${name}`, JSON.stringify(body))).json();

async function stream(name, body, on, signal) {
  const reader = (await request(`api/${name}`, JSON.stringify(body), {}, signal)).body.getReader();
  const decoder = new TextDecoder();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) throw new Problem("The answer was cut off.");
    const lines = (rest + decoder.decode(value, { stream: true })).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      const event = JSON.parse(line);
      if (event.event === "error") throw new Problem(capital(event.error));
      if (event.event === "waiting") say(`Others are being served; ${event.ahead} before you.`);
      else if ($("message").textContent.startsWith("Others are")) say("");
      if (event.event === "done") return event;
      if (event.event !== "waiting") on(event);
    }
  }
}

// "the memory is blank" begins a sentence; "photo.png: …" begins with a name
const capital = (text) => (/^\S+\.\w+:/.test(text) ? text : text.charAt(0).toUpperCase() + text.slice(1));

function say(text, error = false) {
  $("message").textContent = text;
  $("message").hidden = !text;
  $("message").classList.toggle("error", error);
}

// What a button does; while it does it, it cannot be pressed again, and what goes wrong is said on the page.
function does(id, work) {
  const button = $(id);
  button.addEventListener("click", async () => {
    say("");
    button.disabled = true;
    document.body.dataset.busy = id;
    try {
      await work();
    } catch (error) {
      if (error.name !== "AbortError") say(error.message, true);
    }
    button.disabled = id === "write" && !app.tray.length;
    delete document.body.dataset.busy;
    write_code();
  });
}

// On a phone, results are below what was pressed.
function reveal(panel) {
  if (innerWidth <= 860) $(panel).querySelector(".result").scrollIntoView({ behavior: "smooth" });
}

// A job that can be stopped: by its button, or by starting it again.
function stoppable(button) {
  let controller = null;
  $(button)?.addEventListener("click", () => controller?.abort());
  return async (name, body, on) => {
    controller?.abort();
    controller = new AbortController();
    if ($(button)) $(button).hidden = false;
    try {
      return await stream(name, body, on, controller.signal);
    } finally {
      if ($(button)) $(button).hidden = true;
    }
  };
}

// ---- pictures: one byte for each channel and pixel, 0 to 255

const from64 = (text) => Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
const to64 = (bytes) => btoa(String.fromCharCode(...bytes));
const blank = () => new Uint8Array(app.model.image.reduce((a, b) => a * b)).fill(app.model.binary ? 0 : 128);

let theme = {};
function read_theme() {
  const style = getComputedStyle(document.documentElement);
  const rgb = (name) => style.getPropertyValue(name).trim().match(/[0-9a-f]{2}/gi).map((h) => parseInt(h, 16));
  theme = Object.fromEntries(["glyph", "glyph-paper", "wrong", "lost", "accent"].map((n) => [n, rgb(`--${n}`)]));
}

const mix = (a, b, t) => a.map((v, i) => v + (b[i] - v) * t);

// Draw a picture; wrong pixels (against `truth`) are red, lost ones (mask 0) bluish.
function paint(canvas, pixels, { truth = null, mask = null } = {}) {
  const [channels, height, width] = app.model.image;
  canvas.width = width;
  canvas.height = height;
  canvas.pixels = { pixels, truth, mask };
  const context = canvas.getContext("2d");
  const data = context.createImageData(width, height);
  const size = width * height;
  for (let i = 0; i < size; i++) {
    let colour;
    if (app.model.binary) {
      const ground = mask && !mask[i] ? theme.lost : theme["glyph-paper"];
      colour = mix(ground, theme.glyph, pixels[i] / 255);
      if (truth && (truth[i] >= 128) !== (pixels[i] >= 128)) colour = mix(ground, theme.wrong, pixels[i] >= 128 ? 1 : 0.45);
    } else {
      colour = [0, 1, 2].map((c) => pixels[(channels === 1 ? 0 : c) * size + i]);
      if (mask && !mask[i]) colour = mix(colour, theme.lost, 0.75);
    }
    data.data.set([...colour, 255], 4 * i);
  }
  context.putImageData(data, 0, 0);
}

function thumb(text, { click = null, caption = "", title = "" } = {}) {
  const box = document.createElement(click ? "button" : "div");
  box.className = "thumb";
  if (title) box.title = title;
  const canvas = document.createElement("canvas");
  if (click) box.ariaLabel = title;
  paint(canvas, from64(text));
  box.append(canvas);
  if (caption) box.append(Object.assign(document.createElement("span"), { textContent: caption }));
  if (click) box.addEventListener("click", click);
  return box;
}

// A canvas to draw on, with a pen and an eraser.
class Pad {
  constructor(name, { erases = false, changed = () => {} } = {}) {
    Object.assign(this, { name, erases, changed, tool: "pen", canvas: $(`${name}-pad`) });
    const tools = document.querySelector(`.switch[data-pad=${name}]`);
    choose(tools, { pen: "Pen", eraser: "Eraser" }, "pen", (tool) => (this.tool = tool));
    this.colour = tools.parentElement.querySelector(".colour");
    this.canvas.addEventListener("pointerdown", (event) => {
      event.preventDefault();
      this.canvas.setPointerCapture(event.pointerId);
      this.last = null;
      this.move(event);
    });
    this.canvas.addEventListener("pointermove", (event) => event.buttons && this.move(event));
    for (const end of ["pointerup", "pointercancel"]) this.canvas.addEventListener(end, () => (this.last = null));
  }

  set(pixels, mask = null) {
    this.pixels = pixels.slice();
    this.mask = mask ? mask.slice() : new Uint8Array(app.model.image[1] * app.model.image[2]).fill(255);
    this.colour.hidden = app.model.binary;
    this.show();
  }

  show() {
    paint(this.canvas, this.pixels, { mask: this.mask });
  }

  move(event) {
    const box = this.canvas.getBoundingClientRect();
    const here = [
      ((event.clientX - box.left) / box.width) * app.model.image[2],
      ((event.clientY - box.top) / box.height) * app.model.image[1],
    ];
    const from = this.last ?? here;
    const steps = Math.ceil(2 * Math.hypot(here[0] - from[0], here[1] - from[1])) + 1;
    for (let i = 0; i <= steps; i++) this.dab(from[0] + ((here[0] - from[0]) * i) / steps, from[1] + ((here[1] - from[1]) * i) / steps);
    this.last = here;
    this.show();
    this.changed();
  }

  dab(x, y) {
    const [channels, height, width] = app.model.image;
    const radius = this.tool === "eraser" ? 2.2 : 0.95;
    const ink = this.ink();
    for (let row = Math.max(0, Math.floor(y - radius)); row <= Math.min(height - 1, y + radius); row++)
      for (let column = Math.max(0, Math.floor(x - radius)); column <= Math.min(width - 1, x + radius); column++) {
        if (Math.hypot(column + 0.5 - x, row + 0.5 - y) > radius) continue;
        const i = row * width + column;
        for (let c = 0; c < channels; c++) this.pixels[c * width * height + i] = ink[c];
        this.mask[i] = this.tool === "eraser" && this.erases ? 0 : 255;
      }
  }

  ink() {
    if (this.tool === "eraser") return app.model.binary ? [0] : [128, 128, 128];
    if (app.model.binary) return [255];
    return this.colour.value.match(/[0-9a-f]{2}/gi).map((h) => parseInt(h, 16));
  }

  get masked() {
    return this.mask.some((m) => !m);
  }
}

// Buttons of which one is pressed.
function choose(box, names, first, change) {
  box.replaceChildren(
    ...Object.entries(names).map(([key, text]) => {
      const button = Object.assign(document.createElement("button"), { textContent: text, type: "button" });
      button.dataset.key = key;
      button.addEventListener("click", () => {
        all("button", box).forEach((other) => other.setAttribute("aria-pressed", other === button));
        box.value = key;
        change(key);
        write_code();
      });
      return button;
    }),
  );
  all("button", box).find((button) => button.dataset.key === first)?.click();
}

// ---- frames that are shown one after another, no faster than the eye can follow

class Film {
  constructor(show, pace = 110) {
    Object.assign(this, { show, pace, frames: [], at: -1, timer: null, caught: () => {} });
  }

  clear() {
    clearInterval(this.timer);
    Object.assign(this, { frames: [], at: -1, timer: null, caught: () => {} });
  }

  add(frame) {
    this.frames.push(frame);
    this.play();
  }

  play() {
    this.timer ??= setInterval(() => this.next(), this.pace);
  }

  next() {
    if (this.at < this.frames.length - 1) return this.go(this.at + 1);
    clearInterval(this.timer);
    this.timer = null;
    this.caught();
  }

  go(at) {
    this.at = at;
    this.show(this.frames[at], at, this.frames.length);
  }

  get idle() {
    return this.timer === null;
  }

  // resolves when everything was shown
  end() {
    return new Promise((done) => {
      if (this.idle) return done();
      this.caught = done;
    });
  }
}

const short = (v) => (Math.abs(v) < 1000 ? v.toFixed(0) : `${(v / 1000).toFixed(1)}k`).replace("-", "−");

// A curve of energies. Where the first is far above the rest, it would flatten them: it is cut off at the top.
function chart(svg, values, at, label = "energy (nats)") {
  const width = svg.clientWidth || 300, height = svg.clientHeight || 150;
  const rest = values.length > 1 ? values.slice(1) : values;
  const cut = values.length > 2 && values[0] - Math.min(...rest) > 3 * (Math.max(...rest) - Math.min(...rest) || 1);
  const low = Math.min(...(cut ? rest : values)), span = Math.max(...(cut ? rest : values)) - low || 1;
  const high = cut ? low + 1.6 * span : low + span;
  const x = (i) => 46 + ((width - 56) * i) / Math.max(1, values.length - 1);
  const y = (v) => height - 22 - ((height - 42) * (Math.min(v, high) - low)) / (high - low);
  const line = (from, some) => some.map((v, i) => `${i ? "L" : "M"}${x(i + from).toFixed(1)} ${y(v).toFixed(1)}`).join("");
  const dots = values.length > 45 ? "" : values.map((v, i) => `<circle class="dot" cx="${x(i)}" cy="${y(v)}" r="2.5"/>`).join("");
  const curve = cut ? `<path class="over" d="${line(0, values.slice(0, 2))}"/><path class="curve" d="${line(1, rest)}"/>` : `<path class="curve" d="${line(0, values)}"/>`;
  const top = cut ? values[0] : low + span;
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.innerHTML = `<path class="axis" d="M46 14V${height - 20}H${width - 8}"/>${curve}${dots}
    <circle class="now" cx="${x(at)}" cy="${y(values[at])}" r="4.5"/>
    <text x="41" y="${y(high) + 4}" text-anchor="end">${short(top)}</text>
    ${values.length > 1 ? `<text x="41" y="${y(low) + 4}" text-anchor="end">${short(low)}</text>` : ""}
    <text x="54" y="11">${label}</text><text x="${width - 8}" y="${height - 5}" text-anchor="end">step</text>`;
}

// ---- what the memory holds

function shown(answer) {
  Object.assign(app, { stored: answer.stored, known: answer.known });
  const n = app.stored.length, rows = answer.rows;
  $("load-text").textContent = n ? `${n} written, ${rows} rows` : "The memory is blank";
  $("load-bar").style.width = `${Math.min(100, (100 * n) / rows)}%`;
  $("load-bar").className = n > rows ? "over" : "";
  $("load-why").textContent =
    n > rows ? "More than it has rows (K): it holds blends now." : "Images written, against the rows of the memory (K).";
  $("stored").dataset.empty = "Nothing is stored yet.";
  $("stored").replaceChildren(...app.stored.map((text, i) => thumb(text, { click: () => select(i), title: `stored picture ${i + 1}` })));
  app.chosen = Math.min(app.chosen, Math.max(0, n - 1));
  app.three = app.three.filter((i) => i < n);
  for (let i = 0; app.three.length < Math.min(3, n); i++) if (!app.three.includes(i)) app.three.push(i);
  mark();
}

const tab = () => document.querySelector("nav [aria-selected=true]").dataset.tab;

function select(i) {
  say("");
  if (tab() === "store") open("recall");
  if (tab() === "map") {
    app.three = app.three.includes(i) ? app.three.filter((j) => j !== i) : [...app.three.slice(-2), i];
    return mark();
  }
  app.chosen = i;
  if (tab() === "recall") cue_is(i);
  if (tab() === "inside") {
    pads.ask.set(from64(app.stored[i]));
    $("contains-said").textContent = "";
  }
  mark();
  write_code();
}

function mark() {
  const on = tab() === "map" ? app.three : tab() === "store" ? [] : [app.chosen];
  all("#stored .thumb").forEach((box, i) => box.classList.toggle("on", on.includes(i)));
  $("three").dataset.empty = "Write at least three pictures first.";
  $("three").replaceChildren(...app.three.map((i, n) => thumb(app.stored[i], { caption: "ABC"[n] })));
  write_code();
}

function open(name) {
  all("nav button").forEach((button) => {
    button.setAttribute("aria-selected", button.dataset.tab === name);
    button.tabIndex = button.dataset.tab === name ? 0 : -1; // the arrow keys lead to the others
  });
  all(".panel").forEach((panel) => (panel.hidden = panel.id !== name));
  if (name === "recall" && app.origin === undefined && app.stored.length) cue_is(app.chosen);
  if (name === "inside" && app.stored.length && pads.ask.pixels.every((v) => v === blank()[0])) pads.ask.set(from64(app.stored[app.chosen]));
  mark();
}

// ---- store

function tray(images) {
  const room = app.limits.length - app.tray.length - app.stored.length;
  if (images.length > room) say(`A memory takes ${app.limits.length} pictures; ${images.length - room} were left out.`, true);
  app.tray.push(...images.slice(0, Math.max(0, room)));
  show_tray();
}

function show_tray() {
  $("tray-count").textContent = app.tray.length ? `${app.tray.length}` : "";
  $("tray").replaceChildren(
    ...app.tray.map((text, i) => {
      const box = thumb(text);
      const remove = Object.assign(document.createElement("button"), { className: "remove", textContent: "×", title: "leave out", ariaLabel: `leave out picture ${i + 1}` });
      remove.addEventListener("click", () => (app.tray.splice(i, 1), show_tray()));
      box.append(remove);
      return box;
    }),
  );
  $("write").disabled = !app.tray.length;
}

function store() {
  does("pick", async () => {
    const { images } = await post("pick", { set: $("set").value, count: +$("count").value, classes: +$("classes").value });
    app.tray = [];
    tray(images);
  });
  does("write", async () => {
    const n = app.tray.length;
    const answer = await post("write", { images: app.tray });
    app.tray = [];
    app.origin = undefined;
    shown(answer);
    show_tray();
    $("write-said").textContent = `${n} ${n === 1 ? "picture" : "pictures"} written in ${answer.ms.toFixed(0)} ms. Now damage one: Recall.`;
  });
  does("clear", async () => {
    shown(await post("clear"));
    app.origin = undefined;
    $("write-said").textContent = "The memory is as it was before anything was written (prior).";
  });
  does("tray-clear", async () => ((app.tray = []), show_tray()));
  does("draw-clear", async () => pads.draw.set(blank()));
  does("draw-add", async () => {
    tray([to64(pads.draw.pixels)]);
    pads.draw.set(blank());
  });
  $("files").addEventListener("change", async () => {
    const files = [...$("files").files].slice(0, app.limits.length);
    say("");
    const wrong = [];
    for (const file of files) {
      try {
        if (file.size > app.limits.upload) throw new Problem(`${file.name}: expected at most 2.0 MB`);
        const name = encodeURIComponent(file.name.slice(0, 60));
        tray((await (await request("api/upload", file, { "x-name": name })).json()).images);
      } catch (error) {
        wrong.push(error.message);
      }
    }
    if (wrong.length) say(wrong.join(" "), true);
    $("files").value = "";
  });
  $("count").addEventListener("input", () => {
    $("classes").value = $("count").value;
    outputs();
  });
}

// ---- recall

const METHODS = {
  "least-squares": ["Least squares", "Encode, solve for the weights, decode, again (the paper's read)."],
  descent: ["Descent, looks inside", "Looks for the stored picture in the memory itself, then lowers the energy; can certify. While it looks: downhill from the cue."],
  cue: ["Descent from the cue", "Infers the weights from the cue alone, then lowers the energy (inside=False)."],
  stochastic: ["Stochastic", "Draws weights and pixels in turn: a Markov chain around stored patterns."],
};

const REFINED = {
  descent: ["Descent", "Lowers the energy from the weights that were drawn; it never rises."],
  "least-squares": ["Least squares", "Encode, solve for the weights, decode, again (the paper's); few pictures end as blanks."],
  stochastic: ["Stochastic", "Draws weights and pixels in turn (Markov chain)."],
};

function cue_is(index) {
  app.origin = index;
  pads.cue.set(index === null ? blank() : from64(app.stored[index]));
  $("cue-said").textContent = index === null ? "Draw something." : `Stored picture ${index + 1}, undamaged.`;
}

const distance = (value) => (app.model.binary ? `${value.toFixed(0)} of ${app.model.image[1] * app.model.image[2]}` : `${value.toFixed(3)} rms`);

class Column {
  constructor(number) {
    this.root = $(`column-${number}`);
    this.root.innerHTML = `<h2></h2><canvas class="picture" role="img" aria-label="What is recalled at this step"></canvas>
      <label>Step <output></output><input type="range" min="0" max="0" value="0"></label>
      <div class="facts"></div><svg class="chart" role="img" aria-label="The energy at every step"></svg>`;
    this.film = new Film((frame, at) => this.show(frame, at));
    this.slider = this.root.querySelector("input");
    this.slider.addEventListener("input", () => this.film.frames.length && this.film.go(+this.slider.value));
  }

  start(method, truth) {
    this.film.clear();
    Object.assign(this, { method, truth, end: null, early: false, found: 0, look: null });
    this.root.querySelector("h2").textContent = METHODS[method][0];
    this.root.querySelector(".facts").replaceChildren();
    this.root.dataset.state = "running";
  }

  // Early steps are shown until the search is over; those of the answer take their place.
  step(event) {
    if (this.early && !event.early) this.film.clear();
    this.early = event.early;
    this.film.add(event);
  }

  inside(event) {
    Object.assign(this, { found: event.found, of: event.of });
  }

  looking(image) {
    this.look = from64(image);
    const { frames, at } = this.film;
    if (frames[at]) this.facts(frames[at], at);
  }

  // What is said while a search goes on.
  searching() {
    const canvas = document.createElement("canvas");
    paint(canvas, this.look);
    if (this.method === "cue") return ["Still inferring", canvas, "what the cue was"];
    return ["Still looking", canvas, this.found ? `inside: ${this.found} of ${this.of} found` : "inside"];
  }

  show(frame, at) {
    const truth = this.truth === null ? null : from64(app.stored[this.truth]);
    paint(this.root.querySelector("canvas"), from64(frame.image), { truth });
    this.slider.max = this.film.frames.length - 1;
    this.slider.value = at;
    this.root.querySelector("output").textContent = `${at ? at : "0, the cue"}${frame.early ? " (first try)" : ""}`;
    chart(this.root.querySelector("svg"), this.film.frames.map((one) => one.energy), at);
    this.facts(frame, at);
  }

  facts(frame, at) {
    const last = this.film.frames.length - 1;
    const rows = [["Energy", `${frame.energy.toFixed(1)} nats`]];
    if (this.truth !== null) rows.push([app.model.binary ? "Wrong pixels" : "Error", distance(frame.apart[this.truth])]);
    const near = frame.apart[frame.nearest];
    const exact = near < (app.model.binary ? 1 : 0.01);
    const canvas = document.createElement("canvas");
    paint(canvas, from64(app.stored[frame.nearest]));
    const pixels = from64(frame.image), empty = pixels.every((v) => v === pixels[0]);
    const off = exact ? ", exactly" : app.model.binary ? `, ${near.toFixed(0)} off` : "";
    if (empty) rows.push([at === last && this.end ? "Fell into" : "Nearest", "nothing: a blank page"]);
    else rows.push([at === last && this.end ? "Fell into" : "Nearest", canvas, `#${frame.nearest + 1}${off}`]);
    if (frame.early && this.look) rows.push(this.searching());
    if (at === last && this.end) rows.push(["Certified", this.badge(), ""]);
    this.root.querySelector(".facts").replaceChildren(
      ...rows.map(([name, ...values]) => {
        const row = document.createElement("div");
        row.append(Object.assign(document.createElement("span"), { textContent: name }), ...values);
        return row;
      }),
    );
  }

  badge() {
    const texts = { true: "yes: surely this one", false: "no: not sure", null: "does not say" };
    return Object.assign(document.createElement("b"), { className: `badge ${this.end.certified ? "yes" : "no"}`, textContent: texts[this.end.certified] });
  }

  async finish() {
    await this.film.end();
    if (this.film.at >= 0) this.film.go(this.film.at);
    this.root.dataset.state = "done";
  }
}

function recall() {
  const columns = [new Column(0), new Column(1)];
  const ask = stoppable("run-stop");
  does("cue-reset", async () => cue_is(app.origin ?? null));
  does("cue-clear", async () => cue_is(null));
  does("damage", async () => {
    const kind = $("kinds").value;
    const from = app.origin === null || app.origin === undefined ? to64(pads.cue.pixels) : app.stored[app.origin];
    const answer = await post("damage", { image: from, kind, amount: +$("amount").value, side: $("side").value });
    pads.cue.set(from64(answer.image), answer.mask && from64(answer.mask));
    $("cue-said").textContent = app.origin === null ? "Your drawing, damaged." : `Stored picture ${app.origin + 1}, damaged.`;
  });
  does("run", async () => {
    const methods = [$("method-0").value, $("method-1").value];
    const body = { image: to64(pads.cue.pixels), methods, steps: +$("steps").value, temperature: +$("temperature").value };
    if ($("tell").checked && pads.cue.masked) body.mask = to64(pads.cue.mask);
    columns.forEach((column, i) => column.start(methods[i], app.origin ?? null));
    await ask("recall", body, (event) => {
      const column = columns[event.column];
      if (event.event === "step") column.step(event);
      if (event.event === "looking") column.looking(event.image);
      if (event.event === "inside") column.inside(event);
      if (event.event === "end") {
        column.end = event;
        app.known = event.known;
      }
    });
    await Promise.all(columns.map((column) => column.finish()));
  });
}

function damage_kind(kind) {
  const about = {
    flips: ["The share of bits that are flipped.", 0.5, 0.1],
    "salt and pepper": ["The share of pixels that become black or white by the toss of a coin.", 1, 0.3],
    noise: ["The standard deviation of Gaussian noise, on pixels from −1 to 1.", 1, 0.3],
    block: ["The share of the picture that one erased rectangle covers.", 1, 0.3],
  }[kind];
  $("amount-box").hidden = !about;
  $("side-box").hidden = Boolean(about);
  if (about) {
    $("amount-why").textContent = about[0];
    $("amount").max = about[1];
    $("amount").value = about[2];
  }
  outputs();
}

// ---- look inside

function inside() {
  const ask = stoppable("contents-stop");
  const said = (text, kind = "") => ($("contains-said").innerHTML = text.replace(/\*(.*?)\*/, `<b class="${kind}">$1</b>`));
  does("ask-clear", async () => (pads.ask.set(blank()), said("")));
  does("contains", async () => {
    const { times } = await post("contains", { image: to64(pads.ask.pixels) });
    if (times > 0) said(`*Yes*, it was written ${times === 1 ? "once" : `${times} times`}.`, "yes");
    else if (times === 0) said("*No*, it was never written.", "no");
    else said("*Nobody can tell*: as many pictures as rows, or more, are in there.");
  });
  does("forget", async () => {
    const answer = await post("forget", { image: to64(pads.ask.pixels) });
    app.origin = undefined;
    shown(answer);
    said(`*Forgotten* in ${answer.ms.toFixed(0)} ms: the memory is as if it had never been written.`, "yes");
  });
  does("contents", async () => {
    const box = $("found"), start = performance.now();
    box.replaceChildren();
    const progress = () => ($("contents-said").textContent = `${box.children.length} found after ${((performance.now() - start) / 1000).toFixed(1)} s…`);
    const searching = document.querySelector(".searching");
    searching.hidden = false;
    try {
      const end = await ask("contents", {}, (event) => {
        if (event.event === "looking") paint($("looking"), from64(event.image));
        if (event.event === "found") {
          const one = thumb(event.image);
          one.classList.add("new");
          box.append(one);
        }
        progress();
      });
      box.replaceChildren(...end.images.map((image, i) => thumb(image, { caption: end.times[i] > 1 ? `×${end.times[i]}` : end.exact[i] ? "exact" : "near" })));
      app.known = end.images.length > 0;
      $("contents-said").textContent = `${end.images.length} of ${end.distinct} different pictures found in ${(end.ms / 1000).toFixed(1)} s, without a cue.${app.known ? " Recall by descent uses them from now on." : app.model.binary ? "" : " In colour, blends of stored pictures may pass for pictures too; then nothing tells which were stored."}`;
    } finally {
      searching.hidden = true;
    }
  });
}

// ---- dream

const DREAMS = {
  dream: ["Memory", "Samples like what is stored, refined step by step (generation, section 3.5)."],
  family: ["A class", "A few examples of an unseen class are enough to draw more of it (one-shot generation)."],
  chain: ["Chain", "From a stored picture, weights and pixels are drawn in turn: a walk through what the memory knows (Markov chain)."],
};

function dream() {
  const ask = stoppable("dream-stop");
  const film = new Film((frame, at) => {
    $("player").hidden = film.frames.length < 2;
    $("dream-at").max = film.frames.length - 1;
    $("dream-at").value = at;
    $("player").querySelector("output").textContent = at + 1;
    if (frame.image) {
      paint($("film-picture"), from64(frame.image));
      chart($("film-chart"), film.frames.map((one) => one.energy), at);
    } else {
      const boxes = all("#samples canvas");
      if (boxes.length !== frame.images.length) $("samples").replaceChildren(...frame.images.map((image) => thumb(image)));
      else frame.images.forEach((image, i) => paint(boxes[i], from64(image)));
    }
  });
  $("dream-at").addEventListener("input", () => film.frames.length && film.go(+$("dream-at").value));
  does("dream-play", async () => (film.go(0), film.play()));
  choose($("dreams"), Object.fromEntries(Object.entries(DREAMS).map(([key, [text]]) => [key, text])), "dream", (kind) => {
    $("dream-why").textContent = DREAMS[kind][1];
    all("#dream [data-for]").forEach((label) => (label.hidden = !label.dataset.for.split(" ").includes(kind)));
  });
  does("dream-run", async () => {
    const kind = $("dreams").value;
    reveal("dream");
    film.clear();
    $("samples").replaceChildren();
    $("examples-box").hidden = true;
    $("player").hidden = true;
    $("film").hidden = kind !== "chain";
    $("dream-title").hidden = kind === "chain";
    $("dream-said").textContent = "";
    $("dream-hint").hidden = kind !== "dream" || 2 * app.stored.length >= app.model.rows;
    $("dream-hint").textContent = `${app.stored.length} pictures in ${app.model.rows} rows: most draws read next to nothing. Store more, for richer dreams.`;
    const body =
      kind === "chain"
        ? { index: app.chosen, steps: +$("chain-steps").value, temperature: +$("chain-temperature").value }
        : kind === "family"
          ? { n: +$("dream-n").value, examples: +$("examples").value, set: $("family-set").value }
          : { n: +$("dream-n").value, steps: +$("dream-steps").value, method: $("dream-method").value };
    const end = await ask(kind, body, (event) => {
      if (event.event === "examples") {
        app.family = event.number;
        $("examples-box").hidden = false;
        $("example-images").replaceChildren(...event.images.map((image) => thumb(image)));
      } else if (event.event !== "looking") film.add(event);
    });
    await film.end();
    const each = end.ms / film.frames.length;
    $("dream-said").textContent = kind === "family" ? `${body.n} new pictures in ${end.ms.toFixed(0)} ms.` : `${film.frames.length} steps, ${each.toFixed(0)} ms each.`;
  });
}

// ---- map

const COLOURS = [[27, 42, 92], [60, 111, 180], [140, 195, 201], [244, 239, 201]];
function colour(t) {
  const at = Math.min(0.999, Math.max(0, t)) * (COLOURS.length - 1);
  return mix(COLOURS[Math.floor(at)], COLOURS[Math.floor(at) + 1], at % 1);
}

function map() {
  const canvas = $("map-canvas"), ask = stoppable("map-stop");
  let frame = null, rows = [], at = -1, spot = null;
  const film = new Film((step, number) => {
    at = number;
    show_step(step, number);
    draw();
  });
  const place = ([a, b]) => {
    const x = (v, axis) => (v - axis[0]) / (axis[axis.length - 1] - axis[0]);
    return [canvas.width * x(a, frame.a), canvas.height * (1 - x(b, frame.b))];
  };
  const draw = () => {
    const context = canvas.getContext("2d");
    context.clearRect(0, 0, canvas.width, canvas.height);
    if (!frame) return;
    const n = frame.a.length, small = new OffscreenCanvas(n, n), data = new ImageData(n, n);
    const values = rows.flat(), low = Math.min(...values), high = Math.max(...values);
    rows.forEach((row, j) => row.forEach((v, i) => data.data.set([...colour(((v - low) / (high - low || 1)) ** 0.7), 255], 4 * ((n - 1 - j) * n + i))));
    small.getContext("2d").putImageData(data, 0, 0);
    context.imageSmoothingEnabled = true;
    // the points lie at the middles of cells, and the first and the last on the edge
    const scale = n / (n - 1), edge = (canvas.width * (scale - 1)) / 2;
    context.drawImage(small, -edge, -edge, canvas.width * scale, canvas.height * scale);
    if (values.length) {
      $("scale-low").textContent = `${short(low)} nats`;
      $("scale-high").textContent = `${short(high)} nats`;
      document.querySelector(".scale").hidden = false;
    }
    frame.places.forEach((where, i) => mark_place(context, place(where), "ABC"[i]));
    const path = film.frames.slice(0, at + 1).map((step) => place(step.place));
    trace(context, path);
    if (spot) ring(context, spot, "#fff");
  };
  const show_step = (step, number) => {
    paint($("map-picture"), from64(step.image));
    $("map-said").textContent = `${number ? `Step ${number}` : "The cue"}: energy ${step.energy.toFixed(1)} nats, ${step.outside.toFixed(1)} away from the plane. Nearest to stored picture ${step.nearest + 1}.`;
  };
  does("map-run", async () => {
    if (app.three.length !== 3) throw new Problem("Choose three stored pictures above first.");
    reveal("map");
    film.clear();
    canvas.dataset.state = "running";
    frame = spot = null;
    rows = [];
    at = -1;
    const kind = app.model.binary ? "flips" : "noise";
    const cue = await post("damage", { image: app.stored[app.three[0]], kind, amount: +$("map-amount").value });
    const body = { three: app.three, grid: +$("grid").value, image: cue.image, method: $("map-method").value };
    await ask("map", body, (event) => {
      if (event.event === "frame") frame = event;
      if (event.event === "row") rows[event.row] = event.energy;
      if (event.event === "path") film.add(event);
      if (event.event === "looking") paint($("map-picture"), from64(event.image));
      else draw();
    });
    await film.end();
    canvas.dataset.state = "done";
  });
  canvas.addEventListener("click", async (event) => {
    if (!frame) return;
    const box = canvas.getBoundingClientRect();
    const u = (event.clientX - box.left) / box.width, v = 1 - (event.clientY - box.top) / box.height;
    const along = (axis, t) => axis[0] + t * (axis[axis.length - 1] - axis[0]);
    try {
      const there = await post("point", { a: along(frame.a, u), b: along(frame.b, v) });
      spot = [u * canvas.width, (1 - v) * canvas.height];
      paint($("map-picture"), from64(there.image));
      $("map-said").textContent = `What is read there: energy ${there.energy.toFixed(1)} nats, nearest to stored picture ${there.nearest + 1}.`;
      draw();
    } catch (error) {
      say(error.message, true);
    }
  });
}

function ring(context, [x, y], colour) {
  context.beginPath();
  context.arc(x, y, 8, 0, 7);
  context.lineWidth = 3;
  context.strokeStyle = colour;
  context.stroke();
}

function mark_place(context, [x, y], letter) {
  context.beginPath();
  context.arc(x, y, 15, 0, 7);
  context.fillStyle = "#ffffffe6";
  context.fill();
  context.fillStyle = "#1b2a5c";
  context.font = "bold 19px system-ui, sans-serif";
  context.textAlign = "center";
  context.textBaseline = "middle";
  context.fillText(letter, x, y + 1);
}

function trace(context, path) {
  for (const [width, style] of [[7, "#00000066"], [3.5, "#ffb454"]]) {
    context.beginPath();
    path.forEach(([x, y], i) => (i ? context.lineTo(x, y) : context.moveTo(x, y)));
    context.lineWidth = width;
    context.lineJoin = "round";
    context.strokeStyle = style;
    context.stroke();
  }
  path.forEach(([x, y], i) => {
    context.beginPath();
    context.arc(x, y, i === path.length - 1 ? 8 : 4.5, 0, 7);
    context.fillStyle = i ? "#ffb454" : "#e5484d";
    context.fill();
  });
}

// ---- the same in Python

function python(value) {
  return JSON.stringify(value);
}

function write_code() {
  if (!app.model || !pads.cue) return;
  const set = $("set").value;
  const head = `import torch\nimport kanerva\n\nmodel = kanerva.load(${python(app.model.place)})\n`;
  const load = (name) => `images = kanerva.data.load(${python(app.model.sets[name]?.place ?? "folder of your images")}, split="test")\n`;
  const written = `${head}${load(set)}x = kanerva.data.episodes(images, batch=1, length=${$("count").value}, classes=${$("classes").value})[0]\nstate = model.write(x).detach()\n`;
  const i = Math.min(app.chosen, +$("count").value - 1);
  const method = (key) => (key === "cue" ? `method="descent", inside=False` : `method=${python(key)}`);
  const extra = (key) => (key === "stochastic" ? `, temperature=${(+$("temperature").value).toFixed(1)}` : "");
  const kind = $("kinds").value, amount = +$("amount").value;
  const cue = kind === "half" ? `half(x[${i}:${i + 1}], ${python($("side").value)})` : `${(kind ?? "flips").replaceAll(" ", "_")}(x[${i}:${i + 1}], ${amount})`;
  const mask = (key) => ($("tell").checked && ["half", "block"].includes(kind) && ["descent", "cue"].includes(key) ? ", mask=mask" : "");
  const contents = (key) => (app.known && key === "descent" ? ", contents=inside" : "");
  $("code-store").textContent = `${written}print(len(x), "images in", model.config.rows, "rows")`;
  $("code-recall").textContent =
    `${written}cue, mask = kanerva.data.${cue}\n${app.known ? "inside = model.contents(state)\n" : ""}` +
    [$("method-0").value, $("method-1").value]
      .map((key) => `found = model.recall(state, cue, steps=${$("steps").value}, ${method(key)}${extra(key)}${mask(key)}${contents(key)})\nprint(found.energy[:, 0], found.certified)  # found.x has the picture of every step\n`)
      .join("");
  $("code-inside").textContent = `${written}print(model.contains(state, x[${i}:${i + 1}]))  # how often it was written\nless = model.forget(state, x[${i}:${i + 1}])\nfound = model.contents(state)  # everything, without a cue\nprint(len(found.x), found.cost)`;
  const sample = `drawn = model.sample(state, n=${$("dream-n").value}, steps=${$("dream-steps").value}, method=${python($("dream-method").value)})\nprint(drawn.last.shape, drawn.energy[-1])`;
  const few = `first, count = int(images.start[${app.family ?? 0}]), int(images.count[${app.family ?? 0}])\nfew = images.images(first + torch.randperm(count)[:${$("examples").value}])\nstate = model.write(few).detach()\ndrawn = model.more(state, few, n=${$("dream-n").value})\nprint(drawn.last.shape)`;
  $("code-dream").textContent = {
    dream: `${written}${sample}`,
    family: `${head}${load($("family-set").value)}${few}`,
    chain: `${written}chain = model.recall(state, x[${i}:${i + 1}], steps=${$("chain-steps").value}, method="stochastic", temperature=${(+$("chain-temperature").value).toFixed(1)})\nprint(chain.energy[:, 0])`,
  }[$("dreams").value];
  const damage = app.model.binary ? "flips" : "noise";
  $("code-map").textContent =
    written.replace("import kanerva\n", "import kanerva\nfrom kanerva.lab.plane import landscape, through\n") +
    `w = model.retriever(state).find(x[[${app.three.length === 3 ? app.three.map((j) => Math.min(j, +$("count").value - 1)).join(", ") : "0, 1, 2"}]])\nplane = through(w)\nside = torch.linspace(-2, 8, ${$("grid").value})\nenergy = landscape(model, state, plane.at(torch.cartesian_prod(side, side)))\n` +
    `cue = kanerva.data.${damage}(x[${app.three[0] ?? 0}:${(app.three[0] ?? 0) + 1}], ${+$("map-amount").value}).x\npath = plane.place(model.recall(state, cue, ${method($("map-method").value)}).w[:, 0])`;
}

// ---- begin

function outputs() {
  all("label output").forEach((output) => {
    const input = output.parentElement.querySelector("input[type=range]");
    if (input && !output.closest(".column, #player")) output.textContent = input.value;
  });
  const stochastic = ["method-0", "method-1"].some((id) => $(id).value === "stochastic");
  $("temperature-box").hidden = !stochastic;
  all("select.method").forEach((select) => {
    const small = select.parentElement.querySelector("small");
    small.textContent = (select.id === "dream-method" ? REFINED : METHODS)[select.value][1];
  });
  write_code();
}

function options(select, names, first) {
  select.replaceChildren(...Object.entries(names).map(([value, text]) => new Option(text, value, false, value === first)));
}

const pads = {};

function use(name) {
  app.model = app.models[name];
  const sets = Object.keys(app.model.sets);
  for (const id of ["set", "family-set"]) options($(id), Object.fromEntries(sets.map((s) => [s, `${s} (${app.model.sets[s].classes} classes)`])), sets[0]);
  $("pick-box").hidden = !sets.length;
  $("no-sets").hidden = Boolean(sets.length);
  $("no-sets").textContent = app.model.missing;
  const family = document.querySelector("#dreams [data-key=family]");
  family.disabled = !sets.length;
  if (!sets.length && $("dreams").value === "family") document.querySelector("#dreams [data-key=dream]").click();
  choose($("kinds"), Object.fromEntries(app.model.damages.map((kind) => [kind, capital(kind)])), app.model.damages[0], damage_kind);
  Object.values(pads).forEach((pad) => pad.set(blank()));
  // in colour, a search inside takes long and finds little
  $("method-1").value = app.model.binary ? "descent" : "cue";
  $("red").hidden = !app.model.binary;
  $("map-amount-why").textContent = app.model.binary ? "The share of bits that are flipped." : "The standard deviation of the noise.";
  Object.assign(app, { tray: [], origin: undefined, chosen: 0, three: [], family: undefined });
  $("tray").dataset.empty = "Pick, draw or upload some pictures; they wait here.";
  for (const canvas of [...all(".column canvas"), $("map-picture"), $("film-picture"), $("looking")]) paint(canvas, blank());
  for (const id of ["found", "samples", "example-images", "write-said", "contains-said", "contents-said", "dream-said"]) $(id).replaceChildren();
  show_tray();
}

async function begin() {
  app.session ??= sessionStorage.getItem("kanerva-session");
  const answer = await (await request("api/session", "{}")).json();
  app.session = answer.session;
  sessionStorage.setItem("kanerva-session", answer.session);
  app.limits = answer.limits;
  app.models = Object.fromEntries(answer.models.map((model) => [model.name, model]));
  options($("model"), Object.fromEntries(answer.models.map((m) => [m.name, `${m.name} (${m.rows} rows, ${m.image[1]}×${m.image[2]}${m.binary ? "" : ", colour"})`])), answer.model);
  use(answer.model);
  shown(answer);
}

async function main() {
  read_theme();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    read_theme();
    all("canvas").forEach((canvas) => canvas.pixels && paint(canvas, canvas.pixels.pixels, canvas.pixels));
  });
  for (const id of ["method-0", "method-1", "dream-method", "map-method"]) {
    const names = Object.entries(id === "dream-method" ? REFINED : METHODS);
    options($(id), Object.fromEntries(names.map(([key, [text]]) => [key, text])), { "method-0": "least-squares", "map-method": "cue" }[id] ?? "descent");
  }
  Object.assign(pads, { draw: new Pad("draw"), ask: new Pad("ask", { changed: () => ($("contains-said").textContent = "") }) });
  pads.cue = new Pad("cue", {
    erases: true,
    changed: () => ($("cue-said").textContent = app.origin === null || app.origin === undefined ? "Your drawing." : `Stored picture ${app.origin + 1}, changed by hand.`),
  });
  store();
  recall();
  inside();
  dream();
  map();
  // without it, a label that shows a slider's value would name the value, not the slider
  all("label").forEach((label, i) => {
    const control = label.querySelector("input, select");
    control.id ||= `control-${i}`;
    label.htmlFor = control.id;
  });
  all("nav button").forEach((button, i, tabs) => {
    button.addEventListener("click", () => (say(""), open(button.dataset.tab)));
    button.addEventListener("keydown", (event) => {
      const to = tabs[(i + { ArrowRight: 1, ArrowLeft: tabs.length - 1 }[event.key]) % tabs.length];
      if (to) (to.focus(), to.click());
    });
  });
  document.addEventListener("input", outputs);
  document.addEventListener("change", outputs);
  $("model").addEventListener("change", async () => {
    try {
      const answer = await post("model", { model: $("model").value });
      use(answer.model);
      shown(answer);
      open("store");
      outputs();
      if (Object.keys(app.model.sets).length) $("pick").click();
    } catch (error) {
      say(error.message, true);
    }
  });
  try {
    all("nav button")[0].setAttribute("aria-selected", true);
    await begin();
    open("store");
    if (!app.stored.length && Object.keys(app.model.sets).length) $("pick").click();
  } catch (error) {
    say(error.message, true);
  }
  outputs();
  document.body.dataset.ready = "yes";
}

main();
