import { respend, sum, weightedAverage } from "./arithmetic.js";
import { Widget, clamp, make, set, written } from "./base.js";

const TOP = 30, BASE = 200, BAR = 52;

customElements.define("widget-budget", class extends Widget {
  height = 268;
  restart = "";

  begin() {
    this.w = [...this.data.weights[0]];
  }

  build() {
    const { values } = this.data;
    [this.low, this.high] = [Math.min(...values), Math.max(...values)];
    this.line = this.add("path", { class: "axis" });
    this.hull = this.add("path", { class: "hull" });
    this.hullName = this.add("text", { class: "green middle small" }, "no answer leaves this line, the hull of the values");
    this.items = values.map((value, j) => {
      const bar = this.add("rect", { class: "weight", width: BAR, rx: 2 });
      const tick = this.add("text", { class: "middle strong" }, String(value));
      const name = make("text", { class: "middle", y: -14 });
      const grip = this.add("g", { class: "grip upright" },
        make("rect", { class: "area", x: -BAR / 2, y: -22, width: BAR, height: 34 }),
        make("rect", { x: -BAR / 2 - 4, y: -5, width: BAR + 8, height: 10, rx: 5 }), name);
      this.slider(grip, {
        label: `Weight of the value ${value}`, low: 0, high: 1, step: 0.01, vertical: true,
        get: () => +this.w[j].toFixed(9), put: (t) => (this.w = respend(this.w, j, t)),
        text: () => written(this.w[j]),
        at: (_, y) => (BASE - y) / (BASE - TOP),
      });
      return { bar, tick, name, grip };
    });
    this.beam = this.add("path", { class: "fulcrum" });
    this.out = this.add("text", { class: "blue strong middle" });
    this.button("First reader", () => this.begin());
    this.button("Second reader", () => (this.w = [...this.data.weights[1]]));
    this.button("Equal shares", () => (this.w = values.map(() => 1 / values.length)));
  }

  draw() {
    const { values } = this.data;
    const span = Math.min(this.width - 120, 480), left = (this.width - span) / 2;
    const px = (v) => left + ((v - this.low) / (this.high - this.low)) * span;
    this.answer = weightedAverage(this.w, values);
    set(this.line, { d: `M${left - 45} ${BASE}H${left + span + 45}` });
    set(this.hull, { d: `M${px(this.low)} ${BASE + 3}H${px(this.high)}` });
    set(this.hullName, { x: this.width / 2, y: this.height - 6 });
    this.items.forEach(({ bar, tick, name, grip }, j) => {
      const x = px(values[j]), y = BASE - this.w[j] * (BASE - TOP);
      set(bar, { x: x - BAR / 2, y, height: BASE - y });
      set(tick, { x, y: BASE + 22 });
      set(grip, { transform: `translate(${x} ${y})` });
      name.textContent = written(this.w[j]);
    });
    const at = px(this.answer);
    set(this.beam, { d: `M${at} ${BASE + 6}l11 20h-22z` });
    set(this.out, { x: clamp(at, 30, this.width - 30), y: BASE + 44 });
    this.out.textContent = `answer ${written(this.answer)}`;
    this.readout({
      answer: written(this.answer),
      sum: written(sum(this.w)),
      ...Object.fromEntries(values.map((v, j) => [`${written(this.w[j])} × ${v}`, written(this.w[j] * v)])),
    });
  }

  sentence() {
    return `Weights ${this.w.map((x) => written(x)).join(", ")}; answer ${written(this.answer)}.`;
  }
});
