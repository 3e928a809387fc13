import { divergence, edgeDeletion, respend, softmax, sum } from "./arithmetic.js";
import { Widget, make, set, written } from "./base.js";

const [LEFT, TOP, TILE, BASE, TALL] = [62, 26, 26, 262, 72];

customElements.define("widget-edge-deletion", class extends Widget {
  height = 284;

  begin() {
    this.item = this.data.item;
    this.cut = this.data.weights.map(() => false);
  }

  build() {
    const { letters, weights } = this.data;
    const tall = { y: 2, height: TOP + weights.length * TILE + 2 };
    this.here = make("rect", { class: "part", ...tall, rx: 4 });
    this.touched = make("rect", { class: "area", ...tall });
    const grip = this.add("g", {}, this.here, this.touched);
    this.names = letters.map((letter) => this.add("text", { class: "middle", y: 18 }, letter));
    this.heads = weights.map((row, h) => ({
      name: this.add("text", { class: "quiet", x: 0, y: TOP + (h + 0.7) * TILE }, `head ${h}`),
      tiles: row.map(() => [this.add("rect", { class: "frame" }), this.add("rect", { class: "tile" })]),
      cross: this.add("path", { class: "cross" }),
    }));
    this.area = this.add("rect", { class: "area sideways", x: LEFT, y: 0, height: TOP + weights.length * TILE });
    this.slider(grip, {
      label: "Letter whose edges are cut", low: 0, high: letters.length - 1, step: 1, area: this.area,
      get: () => this.item, put: (j) => (this.item = j),
      text: () => `${letters[this.item]} at place ${this.item}`,
      at: (x) => ((x - LEFT) / (this.width - LEFT)) * letters.length - 0.5,
    });
    this.add("text", { class: "quiet", x: 0, y: BASE - TALL - 22 }, "what comes next; frames: with all edges");
    this.different = [...new Set(letters)];
    this.axis = this.add("path", { class: "axis" });
    this.bars = [...this.different, "other"].map((name) => ({
      bar: this.add("rect", { class: "weight" }), frame: this.add("rect", { class: "frame" }),
      name: this.add("text", { class: "middle small", y: BASE + 18 }, name),
    }));
    weights.forEach((_, h) => this.button(`Cut in head ${h}`, () => (this.cut[h] = !this.cut[h]), () => this.cut[h]));
  }

  draw() {
    const { letters, alphabet, weights, writes, logits, swaps } = this.data, { item, cut } = this;
    const column = (this.width - LEFT) / letters.length, px = (j) => LEFT + j * column;
    const touch = Math.max(26, column);
    set(this.here, { x: px(item), width: column });
    set(this.touched, { x: px(item + 0.5) - touch / 2, width: touch });
    set(this.area, { width: this.width - LEFT });
    this.names.forEach((node, j) => set(node, { x: px(j + 0.5), class: `middle${j === item ? " strong" : ""}` }));
    this.heads.forEach(({ tiles, cross }, h) => {
      const y = TOP + h * TILE, [a, b] = [px(item) + 2, px(item + 1) - 2];
      const w = cut[h] ? respend(weights[h], item, 0) : weights[h];
      tiles.forEach((pair, j) => {
        for (const node of pair) set(node, { x: px(j) + 2, y, width: column - 4, height: TILE - 4, style: `--ink:${w[j]}` });
      });
      set(cross, { d: cut[h] ? `M${a} ${y}L${b} ${y + TILE - 4}M${a} ${y + TILE - 4}L${b} ${y}` : "" });
    });
    const moves = weights.map((w, h) => edgeDeletion(w, writes[h], item)).filter((_, h) => cut[h]);
    const moved = logits.map((x, c) => x + sum(moves.map((move) => move[c])));
    const [before, after] = [logits, moved].map((s) => softmax(s));
    const pick = (p) => this.different.map((letter) => p[alphabet.indexOf(letter)]);
    const step = this.width / this.bars.length, wide = Math.min(34, step - 6);
    const [old, now] = [before, after].map((p) => [...pick(p), 1 - sum(pick(p))]);
    set(this.axis, { d: `M0 ${BASE}H${this.width}` });
    this.bars.forEach(({ bar, frame, name }, i) => {
      const x = (i + 0.5) * step, box = { x: x - wide / 2, width: wide };
      set(bar, { ...box, y: BASE - TALL * now[i], height: TALL * now[i] });
      set(frame, { ...box, y: BASE - TALL * old[i], height: TALL * old[i] });
      set(name, { x });
    });
    const top = after.indexOf(Math.max(...after)), next = alphabet[top].trim() || "space", effect = divergence(logits, moved);
    this.words = `${cut.filter(Boolean).length} edges to ${letters[item]} cut: ${next} is likeliest, effect ${written(effect)} nats.`;
    this.readout({
      "likeliest next": `${next} ${written(after[top], 3)}`,
      "mean weight": written(sum(weights.map((w) => w[item])) / weights.length, 3),
      "effect of the cut": `${written(effect, 3)} nats`,
      "effect of a swap": `${written(swaps[item], 3)} nats`,
    });
  }

  sentence() {
    return this.words;
  }
});
