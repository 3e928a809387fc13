import { onlineStates } from "./arithmetic.js";
import { Widget, clamp, make, set, written } from "./base.js";

const [TOP, FLOOR, HIGH, LOW] = [14, 172, 4.5, -1.5];
const BASE = 302, TALL = 100, LEFT = 40, RIGHT = 30;

customElements.define("widget-online-softmax", class extends Widget {
  height = 332;

  begin() {
    this.s = [...this.data.scores];
    this.block = 1;
    this.blocks = 4;
  }

  get read() {
    return Math.min(this.blocks * this.block, this.s.length);
  }

  build() {
    this.here = this.add("rect", { class: "part", y: TOP - 10, height: BASE + 36 - TOP, rx: 6 });
    this.names = ["score", "adds", "value"].map((name) => this.add("text", { class: "quiet" }, name));
    this.axis = this.add("path", { class: "axis" });
    this.ahead = this.add("path", { class: "line blue dashed" });
    this.top = this.add("path", { class: "line blue" });
    this.max = this.add("text", { class: "small blue" }, "max");
    this.items = this.s.map((_, j) => {
      const bar = this.add("rect", { class: "weight" });
      const share = this.add("text", { class: "small middle" });
      const value = this.add("text", { class: "small middle" }, String(this.data.values[j]));
      const area = make("rect", { class: "area", y: -15, height: 30 });
      const grip = this.add("g", {}, area, make("circle", { r: 6 }));
      this.slider(grip, {
        label: `Score of key ${j + 1}`, low: LOW, high: HIGH, step: 0.1, vertical: true,
        get: () => this.s[j], put: (x) => (this.s[j] = x),
        text: () => `${written(this.s[j])}, ${j < this.read ? "read" : "not read yet"}`,
        at: (_, y) => HIGH - ((y - TOP) / (FLOOR - TOP)) * (HIGH - LOW),
      });
      return { bar, share, value, area, grip };
    });
    this.button("Previous block", () => this.blocks--);
    this.button("Next block", () => this.blocks++);
    this.range("Keys in a block", {
      low: 1, high: this.s.length, step: 1, get: () => this.block, text: () => String(this.block),
      put: (b) => ([this.blocks, this.block] = [Math.ceil(this.read / b), b]),
    });
  }

  draw() {
    const { block, s } = this, n = s.length, column = (this.width - LEFT - RIGHT) / n;
    const px = (j) => LEFT + j * column, py = (x) => TOP + ((HIGH - x) / (HIGH - LOW)) * (FLOOR - TOP);
    const states = onlineStates(s, this.data.values, block);
    this.blocks = clamp(this.blocks, 0, states.length);
    const { blocks, read } = this, none = [-Infinity, 0, 0, 1];
    const [top, total, blend, kept] = (this.state = states[blocks - 1] ?? none);
    const levels = states.slice(0, blocks).map(([x], b) => `H${px(b * block)}V${py(x)}H${px(Math.min(n, (b + 1) * block))}`);
    set(this.top, { d: blocks ? `M${px(0)} ${py(states[0][0])}${levels.join("")}` : "M0 0" });
    set(this.ahead, { d: blocks ? `M${px(read)} ${py(top)}H${px(n)}` : "M0 0" });
    set(this.max, { x: blocks ? px(n) + 4 : -99, y: blocks ? py(top) + 4 : 0 });
    const first = Math.max(0, blocks - 1) * block;
    set(this.here, { x: px(first), width: blocks ? px(read) - px(first) : 0, visibility: blocks ? null : "hidden" });
    set(this.axis, { d: `M${px(0)} ${BASE}H${px(n)}` });
    this.names.forEach((node, i) => set(node, { x: 0, y: [(TOP + FLOOR) / 2, BASE - 4, BASE + 20][i] }));
    this.items.forEach(({ bar, share, value, area, grip }, j) => {
      const x = px(j + 0.5), e = j < read ? Math.exp(s[j] - top) : 0, width = Math.min(28, column - 4);
      set(bar, { x: x - width / 2, width, y: BASE - e * TALL, height: e * TALL });
      set(share, { x, y: BASE - e * TALL - 5 });
      share.textContent = j < read ? written(e, column < 32 ? 1 : 2) : "";
      set(value, { x, y: BASE + 20 });
      set(area, { x: -column / 2, width: column });
      set(grip, { transform: `translate(${x} ${py(s[j])})`, class: j < read ? "grip upright read" : "grip upright" });
    });
    const [, all, sum] = states.at(-1);
    this.readout({
      maximum: blocks ? written(top) : "\u2212\u221e",
      "old sums times": written(kept, 3),
      total: written(total, 3),
      blend: written(blend, 3),
      "output so far": blocks ? written(blend / total, 3) : "none",
      "of all keys": written(sum / all, 3),
    });
  }

  sentence() {
    const [top, total, blend, kept] = this.state;
    if (!this.blocks) return "No key is read.";
    return `${this.read} keys read: maximum ${written(top)}, old sums times ${written(kept, 3)}, ` +
      `total ${written(total, 3)}, output so far ${written(blend / total, 3)}.`;
  }
});
