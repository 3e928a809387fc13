import { divergence, edgeDeletion, softmax, sum } from "./arithmetic.js";
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
    const choice = make("fieldset", { class: "readers" }, make("legend", {}, "The letter whose edge is cut"));
    letters.forEach((letter, j) => {
      const input = make("input", { type: "radio", name: "edge", class: "visually-hidden", "aria-label": `${letter} at place ${j}` });
      input.addEventListener("change", () => {
        this.item = j;
        this.update();
      });
      this.sliders.push(() => (input.checked = this.item === j));
      choice.append(make("label", {}, input, make("span", {}, letter)));
    });
    this.append(choice);
    this.here = this.add("rect", { class: "part", y: 2, height: TOP + weights.length * TILE + 2, rx: 4 });
    this.names = letters.map((letter) => this.add("text", { class: "middle", y: 18 }, letter));
    this.heads = weights.map((row, h) => ({
      name: this.add("text", { class: "quiet", x: 0, y: TOP + (h + 0.7) * TILE }, `head ${h}`),
      tiles: row.map((w) => [this.add("rect", { class: "frame" }), this.add("rect", { class: "tile", style: `--ink:${w}` })]),
      cross: this.add("path", { class: "cross" }),
    }));
    this.label = this.add("text", { class: "quiet", x: 0, y: BASE - TALL - 22 }, "what comes next, with all edges (frame) and without those cut");
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
    set(this.here, { x: px(item), width: column });
    this.names.forEach((node, j) => set(node, { x: px(j + 0.5), class: `middle${j === item ? " strong" : ""}` }));
    this.heads.forEach(({ tiles, cross }, h) => {
      const y = TOP + h * TILE, [a, b] = [px(item) + 2, px(item + 1) - 2];
      tiles.forEach((pair, j) => pair.forEach((node) => set(node, { x: px(j) + 2, y, width: column - 4, height: TILE - 4 })));
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
    const top = after.indexOf(Math.max(...after)), effect = divergence(logits, moved);
    this.words = `${cut.filter(Boolean).length} edges to ${letters[item]} cut: ${alphabet[top]} is likeliest, effect ${written(effect)} nats.`;
    this.readout({
      "comes next": `${alphabet[top].trim() || "space"} ${written(after[top], 3)}`,
      "mean weight": written(sum(weights.map((w) => w[item])) / weights.length, 3),
      "effect of the cut": `${written(effect, 3)} nats`,
      "effect of a swap": `${written(swaps[item], 3)} nats`,
    });
  }

  sentence() {
    return this.words;
  }
});
