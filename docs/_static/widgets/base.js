// What every widget shares: data, a stage in pixels of the page, sliders, a readout, one quiet announcement.

const HTML = new Set(["button", "dd", "div", "dl", "dt", "fieldset", "input", "label", "legend", "output", "p", "span"]);

export const set = (node, attributes) => {
  for (const [key, value] of Object.entries(attributes)) {
    if (value === null || value === false) node.removeAttribute(key);
    else node.setAttribute(key, typeof value === "number" ? +value.toFixed(4) : value === true ? "" : value);
  }
  return node;
};

export const make = (name, attributes = {}, ...children) => {
  const node = HTML.has(name)
    ? document.createElement(name)
    : document.createElementNS("http://www.w3.org/2000/svg", name);
  node.append(...children);
  return set(node, attributes);
};

export const clamp = (x, low, high) => Math.min(high, Math.max(low, x));

export const written = (x, digits = 2) => {
  const text = x.toFixed(digits);
  return +text === 0 ? text.replace("-", "") : text.replace("-", "\u2212");
};

const KEYS = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1, PageUp: 10, PageDown: -10 };

export class Widget extends HTMLElement {
  restart = "Start again";

  connectedCallback() {
    if (this.stage) return;
    this.data = JSON.parse(this.dataset.values);
    this.sliders = [];
    this.stage = make("svg", { class: "stage", role: "group", "aria-label": this.dataset.label });
    this.append(make("p", { class: "hint" }, `${this.dataset.label}.`));
    this.controls = make("div", { class: "controls" });
    this.shown = make("dl", { class: "readout" });
    this.said = make("output", { class: "visually-hidden", "aria-live": "polite" });
    this.begin();
    this.build();
    if (this.restart) this.button(this.restart, () => this.begin());
    this.append(this.stage, this.controls, this.shown, this.said);
    this.classList.add("started");
    this.update();
    new ResizeObserver(() => this.update(false)).observe(this);
  }

  // Draw again; what is said aloud waits until the reader stops moving things.
  update(moved = true) {
    this.width = Math.max(280, this.clientWidth);
    this.draw();
    set(this.stage, { width: this.width, height: this.height, viewBox: `0 0 ${this.width} ${this.height}` });
    for (const refresh of this.sliders) refresh();
    if (!moved) return;
    clearTimeout(this.timer);
    if (this.last !== undefined) this.timer = setTimeout(() => (this.said.textContent = this.sentence()), 700);
    this.last = true;
  }

  add(name, attributes, ...children) {
    const node = make(name, attributes, ...children);
    this.stage.append(node);
    return node;
  }

  readout(pairs) {
    this.shown.replaceChildren(
      ...Object.entries(pairs).map(([name, text]) => make("div", {}, make("dt", {}, name), make("dd", {}, text))),
    );
  }

  // A thing on the stage that is dragged or moved by keys. `at` gives the value below a point of the stage.
  slider(node, { label, low, high, step, get, put, text, at, area = node, vertical = false }) {
    const move = (x) => {
      put(+clamp(Math.round(x / step) * step, low, high).toFixed(9));
      this.update();
    };
    set(node, { role: "slider", tabindex: 0, "aria-label": label, "aria-valuemin": low, "aria-valuemax": high });
    if (vertical) {
      set(node, { "aria-orientation": "vertical" });
      // Browsers do not apply touch-action to a part of a drawing.
      area.addEventListener("touchstart", (event) => event.preventDefault(), { passive: false });
    }
    const drag = (event) => {
      const box = this.stage.getBoundingClientRect();
      move(at(event.clientX - box.left, event.clientY - box.top));
    };
    area.addEventListener("pointerdown", (event) => {
      area.setPointerCapture(event.pointerId);
      node.focus({ preventScroll: true });
      event.preventDefault();
      if (event.pointerType !== "touch") drag(event); // a finger may be about to scroll the page
    });
    area.addEventListener("pointerup", drag);
    area.addEventListener("pointermove", (event) => area.hasPointerCapture(event.pointerId) && drag(event));
    node.addEventListener("keydown", (event) => {
      const ends = { Home: low, End: high };
      if (!(event.key in KEYS) && !(event.key in ends)) return;
      event.preventDefault();
      move(event.key in ends ? ends[event.key] : get() + KEYS[event.key] * step);
    });
    this.sliders.push(() => set(node, { "aria-valuenow": String(get()), "aria-valuetext": text() }));
  }

  range(label, { low, high, step, get, put, text }) {
    const input = make("input", { type: "range", min: low, max: high, step });
    const value = make("span", { class: "value" });
    input.addEventListener("input", () => {
      put(+input.value);
      this.update();
    });
    this.sliders.push(() => {
      input.value = get();
      value.textContent = text();
      set(input, { "aria-valuetext": text() });
    });
    this.controls.append(make("label", {}, make("span", {}, label), input, value));
  }

  // A button; with `pressed` it is a switch.
  button(label, press, pressed) {
    const node = make("button", { type: "button" }, label);
    node.addEventListener("click", () => {
      press();
      this.update();
    });
    if (pressed) this.sliders.push(() => set(node, { "aria-pressed": String(pressed()) }));
    this.controls.append(node);
    return node;
  }
}
