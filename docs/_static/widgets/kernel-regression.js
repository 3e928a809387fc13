import { effectiveItems, entropy, kernelRegression, kernelWeights } from "./arithmetic.js";
import { Widget, make, set, written } from "./base.js";

const LEFT = 42, RIGHT = 44, TOP = 14, FLOOR = 206, BASE = 306;

customElements.define("widget-kernel-regression", class extends Widget {
  height = 346;

  begin() {
    this.q = this.data.query;
    this.h = this.data.width;
  }

  build() {
    const { x, t, truth, ends } = this.data;
    this.grid = truth.map((_, i) => ends[0] + ((ends[1] - ends[0]) * i) / (truth.length - 1));
    this.step = this.grid[1] - this.grid[0];
    const all = [...t, ...truth];
    [this.low, this.high] = [Math.min(...all) - 0.05, Math.max(...all) + 0.05];
    this.axis = this.add("path", { class: "axis" });
    this.names = ["value", "weight"].map((name) => this.add("text", { class: "quiet" }, name));
    this.marks = [0, 1, 2, 3, 4, 5, 6].map((n) => [n, this.add("text", { class: "quiet middle" }, String(n))]);
    this.truthLine = this.add("path", { class: "line" });
    this.fitLine = this.add("path", { class: "line blue dashed" });
    this.truthName = this.add("text", {}, "truth");
    this.fitName = this.add("text", { class: "blue" }, "fit");
    this.sticks = x.map(() => this.add("line", { class: "stick" }));
    this.points = x.map(() => this.add("circle", { class: "point" }));
    this.bell = this.add("path", { class: "bracket" });
    this.gap = this.add("line", { class: "gap" });
    this.cursor = this.add("line", { class: "cursor" });
    this.largest = this.add("text", { class: "orange middle" });
    this.right = this.add("circle", { class: "ring", r: 6 });
    this.answer = this.add("rect", { class: "answer", width: 11, height: 11 });
    const area = this.add("rect", { class: "area sideways", x: LEFT, y: 0, height: this.height });
    this.area = area;
    this.grip = this.add("g", { class: "grip" }, make("circle", { r: 13 }), make("path", { d: "M-3-4l-4 4 4 4M3-4l4 4-4 4" }));
    this.slider(this.grip, {
      label: "Query", low: ends[0], high: ends[1], step: this.step, area: this.stage,
      get: () => this.q, put: (q) => (this.q = q), text: () => `x = ${written(this.q)}`,
      at: (px) => ends[0] + ((px - LEFT) / (this.width - LEFT - RIGHT)) * (ends[1] - ends[0]),
    });
    this.range("Width h", {
      low: 0.06, high: 2, step: 0.01, get: () => this.h, put: (h) => (this.h = h), text: () => written(this.h),
    });
  }

  draw() {
    const { x, t, truth, ends } = this.data;
    const { q, h } = this;
    const px = (a) => LEFT + ((a - ends[0]) / (ends[1] - ends[0])) * (this.width - LEFT - RIGHT);
    const py = (a) => TOP + ((this.high - a) / (this.high - this.low)) * (FLOOR - TOP);
    const path = (ys) => "M" + ys.map((y, i) => `${px(this.grid[i]).toFixed(1)} ${py(y).toFixed(1)}`).join("L");
    const w = kernelWeights(q, x, h);
    const fit = this.grid.map((a) => kernelRegression(a, x, t, h));
    this.w = w;
    this.prediction = kernelRegression(q, x, t, h);
    this.expected = truth[Math.round((q - ends[0]) / this.step)];
    set(this.axis, { d: `M${LEFT} ${BASE}H${px(ends[1])}` });
    set(this.area, { width: this.width - LEFT - RIGHT });
    this.names.forEach((node, i) => set(node, { x: 0, y: i ? BASE - 4 : TOP + 8 }));
    this.marks.forEach(([n, node]) => set(node, { x: px(n), y: BASE + 34 }));
    set(this.truthLine, { d: path(truth) });
    set(this.fitLine, { d: path(fit) });
    const [a, b] = [py(truth.at(-1)), py(fit.at(-1))];
    const apart = Math.max(0, 16 - Math.abs(a - b)) / 2;
    set(this.truthName, { x: px(ends[1]) + 6, y: a + 4 + (a < b ? -apart : apart) });
    set(this.fitName, { x: px(ends[1]) + 6, y: b + 4 + (a < b ? apart : -apart) });
    const top = Math.max(...w), tall = (BASE - FLOOR - 34) / Math.max(0.2, top);
    x.forEach((k, j) => {
      set(this.sticks[j], { x1: px(k), x2: px(k), y1: BASE, y2: BASE - tall * w[j] });
      set(this.points[j], { cx: px(k), cy: py(t[j]), r: 3 + 4 * (w[j] / top), class: w[j] > top / 20 ? "point read" : "point" });
    });
    set(this.largest, { x: px(x[w.indexOf(top)]), y: BASE - tall * top - 7 });
    this.largest.textContent = written(top, 3);
    const [from, to] = [px(Math.max(ends[0], q - h)), px(Math.min(ends[1], q + h))];
    set(this.bell, { d: `M${from} ${BASE + 5}v8M${to} ${BASE + 5}v8M${from} ${BASE + 9}H${to}` });
    set(this.gap, { x1: px(q), x2: px(q), y1: py(this.expected), y2: py(this.prediction) });
    set(this.cursor, { x1: px(q), x2: px(q), y1: TOP, y2: BASE });
    set(this.right, { cx: px(q), cy: py(this.expected) });
    set(this.answer, { x: px(q) - 5.5, y: py(this.prediction) - 5.5 });
    set(this.grip, { transform: `translate(${px(q)} ${BASE + 9})` });
    this.readout({
      query: written(q),
      prediction: written(this.prediction),
      truth: written(this.expected),
      "largest weight": written(top, 3),
      entropy: `${written(entropy(w))} bits`,
      "effective points": `${written(effectiveItems(w), 1)} of ${x.length}`,
    });
  }

  sentence() {
    const points = written(effectiveItems(this.w), 1);
    return `Prediction ${written(this.prediction)}, truth ${written(this.expected)}, ${points} effective points.`;
  }
});
