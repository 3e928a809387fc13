import { effectiveItems, entropy, softmax, sum } from "./arithmetic.js";
import { Widget, make, set, written } from "./base.js";

const LINKS = 84, TILE = 30;

customElements.define("widget-sentence", class extends Widget {
  height = 232;

  begin() {
    this.reader = this.data.reader;
    this.temperature = 1;
    this.causal = false;
  }

  build() {
    const { words } = this.data;
    const group = `reader-${words.join("-")}`;
    const choice = make("fieldset", { class: "readers" }, make("legend", {}, "The word that reads"));
    words.forEach((word, i) => {
      const input = make("input", { type: "radio", name: group, class: "visually-hidden" });
      input.addEventListener("change", () => {
        this.reader = i;
        this.update();
      });
      this.sliders.push(() => (input.checked = this.reader === i));
      choice.append(make("label", {}, input, make("span", {}, word)));
    });
    this.append(choice);
    this.items = words.map((word) => ({
      link: this.add("path", { class: "link" }),
      frame: this.add("rect", { class: "frame", height: TILE, rx: 2 }),
      tile: this.add("rect", { class: "tile", height: TILE, rx: 2 }),
      cross: this.add("path", { class: "cross" }),
      name: this.add("text", { class: "middle" }, word),
      number: this.add("text", { class: "middle small" }),
    }));
    this.budgetName = this.add("text", { class: "quiet small" }, "the budget of the row, spent on");
    this.parts = words.map((word) => ({
      box: this.add("rect", { class: "part" }),
      name: this.add("text", { class: "middle small" }, word),
    }));
    this.range("Temperature", {
      low: 0.1, high: 4, step: 0.05, get: () => this.temperature, put: (t) => (this.temperature = t),
      text: () => written(this.temperature),
    });
    this.button("Hide the future", () => (this.causal = !this.causal), () => this.causal);
    const scale = make("span", { class: "scale" }, ...[0, 0.25, 0.5, 0.75, 1].map((o) => make("span", { style: `--ink:${o}` })));
    this.controls.append(make("p", { class: "legend" }, "weight 0", scale, "1: fuller color, larger weight; crossed out, hidden"));
  }

  draw() {
    const { words, scores } = this.data, n = words.length, column = this.width / n;
    const allowed = words.map((_, j) => !this.causal || j <= this.reader);
    const open = softmax(scores[this.reader], undefined, this.temperature);
    const w = (this.w = softmax(scores[this.reader], allowed, this.temperature));
    const from = (this.reader + 0.5) * column, side = Math.min(column - 8, 64);
    let left = 0;
    this.items.forEach(({ link, frame, tile, cross, name, number }, j) => {
      const x = (j + 0.5) * column, box = { x: x - side / 2, y: LINKS, width: side };
      set(link, { d: `M${from} 2C${from} ${LINKS / 2} ${x} ${LINKS / 2} ${x} ${LINKS}`, "stroke-width": 22 * w[j] });
      set(frame, box);
      set(tile, { ...box, style: `--ink:${w[j]}` });
      const [a, b] = [x - side / 2, x + side / 2];
      set(cross, { d: allowed[j] ? "" : `M${a} ${LINKS}L${b} ${LINKS + TILE}M${a} ${LINKS + TILE}L${b} ${LINKS}` });
      set(name, { x, y: LINKS + TILE + 20, class: `middle${allowed[j] ? "" : " quiet"}${j === this.reader ? " strong" : ""}` });
      set(number, { x, y: LINKS + TILE + 38 });
      number.textContent = written(w[j], column < 60 ? 2 : 3);
      const wide = w[j] * this.width, { box: part, name: label } = this.parts[j];
      set(part, { x: left, y: 184, width: wide, height: 40 });
      set(label, { x: left + wide / 2, y: 209, visibility: wide > 9 * words[j].length + 4 ? null : "hidden" });
      left += wide;
    });
    set(this.budgetName, { x: 0, y: 177 });
    const top = w.indexOf(Math.max(...w));
    this.readout({
      "reads most": `${words[top]} ${written(w[top], 3)}`,
      sum: written(sum(w)),
      "re-spent": written(sum(open.filter((_, j) => !allowed[j])), 3),
      entropy: `${written(entropy(w))} bits`,
      "effective words": `${written(effectiveItems(w), 1)} of ${allowed.filter(Boolean).length}`,
    });
  }

  sentence() {
    const top = this.w.indexOf(Math.max(...this.w)), { words } = this.data;
    return `${words[this.reader]} reads ${words[top]} most, with weight ${written(this.w[top], 3)}.`;
  }
});
