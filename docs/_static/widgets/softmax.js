import { effectiveItems, entropy, softmax, sum } from "./arithmetic.js";
import { Widget, clamp, make, set, written } from "./base.js";

const [TOP, FLOOR, HIGH, LOW] = [24, 174, 4.5, -2.5];
const BASE = 300, TALL = 92, BAR = 64;

customElements.define("widget-softmax", class extends Widget {
  height = 322;

  begin() {
    this.s = [...this.data.scores];
    this.allowed = this.s.map(() => true);
    this.temperature = 1;
    this.added = 0;
  }

  build() {
    const { words } = this.data;
    this.names = ["score", "weight"].map((name) => this.add("text", { class: "quiet" }, name));
    this.lines = [0, 1].map(() => this.add("path", { class: "axis" }));
    this.items = words.map((word, j) => {
      const bar = this.add("rect", { class: "score", width: BAR });
      const weight = this.add("rect", { class: "weight", width: BAR });
      const share = this.add("text", { class: "middle strong" });
      const label = this.add("text", { class: "middle" }, word);
      const number = make("text", { class: "middle", y: -13 });
      const grip = this.add("g", { class: "grip upright" },
        make("rect", { class: "area", x: -BAR / 2, y: -22, width: BAR, height: 34 }),
        make("rect", { x: -BAR / 2 - 4, y: -5, width: BAR + 8, height: 10, rx: 5 }), number);
      this.slider(grip, {
        label: `Score of ${word}`, low: LOW, high: HIGH, step: 0.05, vertical: true,
        get: () => +(this.s[j] + this.added).toFixed(9), put: (x) => (this.s[j] = clamp(x - this.added, LOW + 1.5, HIGH - 1.5)),
        text: () => `${written(this.s[j] + this.added)}${this.allowed[j] ? "" : ", hidden"}`,
        at: (_, y) => HIGH - ((y - TOP) / (FLOOR - TOP)) * (HIGH - LOW),
      });
      return { bar, weight, share, label, number, grip };
    });
    this.range("Temperature", {
      low: 0.1, high: 5, step: 0.05, get: () => this.temperature, put: (t) => (this.temperature = t),
      text: () => written(this.temperature),
    });
    this.range("Add c to every score", {
      low: -1.5, high: 1.5, step: 0.05, get: () => this.added, put: (c) => (this.added = c), text: () => written(this.added),
    });
    words.forEach((word, j) => {
      const press = () => (this.allowed[j] = !this.allowed[j]);
      this.button(`Hide ${word}`, press, () => !this.allowed[j]);
    });
  }

  draw() {
    const n = this.s.length, left = 44, column = Math.min(150, (this.width - left) / n);
    const start = Math.max(left, (this.width - n * column) / 2);
    const py = (s) => TOP + ((HIGH - s) / (HIGH - LOW)) * (FLOOR - TOP);
    const scores = this.s.map((x) => x + this.added);
    const w = (this.w = softmax(scores, this.allowed, this.temperature));
    const plain = softmax(this.s, this.allowed, this.temperature);
    this.names.forEach((node, i) => set(node, { x: 0, y: i ? BASE - 4 : py(0) + 4 }));
    this.lines.forEach((node, i) => set(node, { d: `M${start - 4} ${i ? BASE : py(0)}h${n * column + 4}` }));
    this.items.forEach(({ bar, weight, share, label, number, grip }, j) => {
      const x = start + (j + 0.5) * column, y = py(scores[j]), hidden = !this.allowed[j];
      set(bar, { x: x - BAR / 2, y: Math.min(y, py(0)), height: Math.abs(y - py(0)), class: hidden ? "score hidden" : "score" });
      set(grip, { transform: `translate(${x} ${y})`, class: hidden ? "grip upright hidden" : "grip upright" });
      set(weight, { x: x - BAR / 2, y: BASE - w[j] * TALL, height: w[j] * TALL });
      set(share, { x, y: BASE - w[j] * TALL - 6 });
      set(label, { x, y: BASE + 18, class: hidden ? "middle quiet struck" : "middle" });
      number.textContent = written(scores[j]);
      share.textContent = hidden ? "hidden: 0" : written(w[j], 3);
    });
    this.readout({
      sum: written(sum(w)),
      entropy: `${written(entropy(w), 3)} bits`,
      "effective items": `${written(effectiveItems(w))} of ${this.allowed.filter(Boolean).length}`,
      "effect of c": written(Math.max(...w.map((x, j) => Math.abs(x - plain[j]))), 3),
    });
  }

  sentence() {
    const parts = this.data.words.map((word, j) => `${word} ${this.allowed[j] ? written(this.w[j], 3) : "hidden"}`);
    return `Weights: ${parts.join(", ")}.`;
  }
});
