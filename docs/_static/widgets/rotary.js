import { dot, rotate } from "./arithmetic.js";
import { Widget, clamp, make, set, written } from "./base.js";

const [FAR, RADIUS, TALL] = [12, 84, 130];

customElements.define("widget-rotary", class extends Widget {
  begin() {
    [this.query, this.key] = this.data.places;
    this.degrees = Math.round((this.data.angle * 180) / Math.PI);
  }

  build() {
    this.circle = this.add("circle", { class: "axis", r: RADIUS });
    this.between = this.add("path", { class: "bracket" });
    this.hands = ["query", "key"].map((name, i) => {
      const line = this.add("path", { class: i ? "line orange dashed" : "line blue" });
      const label = this.add("text", { class: "middle strong" });
      const grip = this.add("g", { class: "grip all" }, make("circle", { r: 13 }));
      this.slider(grip, {
        label: `Position of the ${name}`, low: -2 * FAR, high: 2 * FAR, step: 1, vertical: true,
        get: () => this[name], put: (p) => (this[name] = p), text: () => `position ${written(this[name], 0)}`,
        at: (x, y) => {
          const turn = Math.atan2(this.middle[1] - y, x - this.middle[0]) - this[name] * this.angle();
          return this[name] + Math.atan2(Math.sin(turn), Math.cos(turn)) / this.angle();
        },
      });
      return { name, line, label, grip };
    });
    this.axes = this.add("path", { class: "axis" });
    this.wave = this.add("path", { class: "line" });
    this.now = this.add("circle", { class: "answer", r: 7 });
    this.words = ["score", "distance, key minus query", "1", "−1", "−12", "0", "12"].map((word) =>
      this.add("text", { class: "quiet middle" }, word));
    this.range("Degrees a step", {
      low: 5, high: 90, step: 5, get: () => this.degrees, put: (x) => (this.degrees = x), text: () => `${this.degrees}°`,
    });
    this.button("Move both one step", () => {
      const step = Math.max(this.query, this.key) < 2 * FAR ? 1 : -2 * FAR;
      [this.query, this.key] = [this.query, this.key].map((p) => clamp(p + step, -2 * FAR, 2 * FAR));
    });
  }

  angle() {
    return (this.degrees * Math.PI) / 180;
  }

  score(distance) {
    return dot(this.data.q, rotate(this.data.k, distance * this.angle()));
  }

  draw() {
    const beside = this.width > 480, [cx, cy] = (this.middle = [beside ? 130 : this.width / 2, 128]);
    const [left, right] = [beside ? 300 : 34, this.width - 16], top = beside ? 62 : 284;
    this.height = beside ? 256 : 452;
    set(this.circle, { cx, cy });
    const tips = this.hands.map(({ name, line, label, grip }, i) => {
      const [x, y] = rotate(i ? this.data.k : this.data.q, this[name] * this.angle());
      const size = Math.hypot(x, y), at = (r) => `${cx + (r * x) / size} ${cy - (r * y) / size}`;
      set(line, { d: `M${cx} ${cy}L${at(RADIUS)}` });
      set(grip, { transform: `translate(${at(RADIUS)})` });
      const [lx, ly] = at(RADIUS + 36).split(" ").map(Number);
      set(label, { x: clamp(lx, 44, this.width - 44), y: clamp(ly + 5, 14, 250) });
      label.textContent = `${name} ${written(this[name], 0)}`;
      return Math.atan2(y, x);
    });
    const apart = Math.abs(Math.atan2(Math.sin(tips[0] - tips[1]), Math.cos(tips[0] - tips[1])));
    const on = (t) => `${cx + 30 * Math.cos(t)} ${cy - 30 * Math.sin(t)}`;
    const first = Math.sin(tips[0] - tips[1]) > 0 ? tips[1] : tips[0];
    set(this.between, { d: `M${on(first)}A30 30 0 0 0 ${on(first + apart)}` });
    const high = Math.hypot(...this.data.q) * Math.hypot(...this.data.k);
    const px = (d) => left + ((d + FAR) / (2 * FAR)) * (right - left), py = (s) => top + ((high - s) / (2 * high)) * TALL;
    set(this.axes, { d: `M${left} ${top}v${TALL}M${left} ${py(0)}h${right - left}` });
    const curve = Array.from({ length: 97 }, (_, i) => i / 4 - FAR).map((d) => `${px(d).toFixed(1)} ${py(this.score(d)).toFixed(1)}`);
    set(this.wave, { d: `M${curve.join("L")}` });
    const distance = this.key - this.query, seen = clamp(distance, -FAR, FAR);
    set(this.now, { cx: px(seen), cy: py(this.score(distance)), class: seen === distance ? "answer" : "point" });
    const places = [[left + 6, top - 12], [(left + right) / 2, top + TALL + 38], [left - 14, top + 5], [left - 16, top + TALL + 5],
      [left + 4, top + TALL + 18], [px(0), top + TALL + 18], [right - 4, top + TALL + 18]];
    places.forEach(([x, y], i) => set(this.words[i], { x, y }));
    this.readout({
      distance: written(distance, 0), "angle between": `${written((apart * 180) / Math.PI, 0)}°`, score: written(this.score(distance), 3),
    });
  }

  sentence() {
    return `Query at ${written(this.query, 0)}, key at ${written(this.key, 0)}: score ${written(this.score(this.key - this.query), 3)}.`;
  }
});
