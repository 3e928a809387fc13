// The arithmetic of the widgets: functions of numbers and arrays, compared with softlookup by a test.

export const sum = (a) => a.reduce((total, x) => total + x, 0);

export const softmax = (s, allowed = s.map(() => true), temperature = 1) => {
  const top = Math.max(...s.filter((_, j) => allowed[j]));
  const e = s.map((x, j) => (allowed[j] && x > -Infinity ? Math.exp((x - top) / temperature) : 0));
  const total = sum(e);
  return e.map((x) => (total ? x / total : 0));
};

export const dot = (a, b) => sum(a.map((x, i) => x * b[i]));

// Turn an arrow in the plane counterclockwise.
export const rotate = ([a, b], angle) => [
  a * Math.cos(angle) - b * Math.sin(angle),
  a * Math.sin(angle) + b * Math.cos(angle),
];

export const weightedAverage = (w, v) => sum(w.map((x, j) => (x ? x * v[j] : 0)));

// Maximum, total and blend after one more block of keys, and what the old sums were multiplied by.
export const onlineUpdate = ([top, total, blend], s, v) => {
  const higher = Math.max(top, ...s);
  const kept = Math.exp(top - higher);
  const e = s.map((x) => Math.exp(x - higher));
  return [higher, total * kept + sum(e), blend * kept + weightedAverage(e, v), kept];
};

// The same after each block, from nothing.
export const onlineStates = (s, v, block) => {
  const states = [];
  for (let start = 0; start < s.length; start += block) {
    const [scores, values] = [s, v].map((x) => x.slice(start, start + block));
    states.push(onlineUpdate(states.at(-1) ?? [-Infinity, 0, 0], scores, values));
  }
  return states;
};

export const entropy = (w) => Math.max(0, -sum(w.map((x) => (x > 0 ? x * Math.log2(x) : 0))));

export const effectiveItems = (w) => 2 ** entropy(w);

export const kernelWeights = (q, keys, width) => softmax(keys.map((k) => -0.5 * ((q - k) / width) ** 2));

export const kernelRegression = (q, keys, values, width) => weightedAverage(kernelWeights(q, keys, width), values);

// Give item i the share t; the others divide what is left in the proportions that they had.
export const respend = (w, i, t) => {
  const rest = sum(w.filter((_, j) => j !== i));
  return w.map((x, j) => (j === i ? t : rest ? (x / rest) * (1 - t) : (1 - t) / (w.length - 1)));
};

// How the output of a query moves when it may no longer read item j; each item adds a list of numbers.
export const edgeDeletion = (w, v, j) => v[j].map((x, c) => {
  const out = weightedAverage(w, v.map((row) => row[c]));
  return w[j] === 1 ? -out : (w[j] / (1 - w[j])) * (out - x);
});

// How far a prediction has moved, in nats.
export const divergence = (s, changed) => {
  const [p, q] = [s, changed].map((x) => softmax(x));
  return sum(p.map((x, c) => (x > 0 ? x * Math.log(x / q[c]) : 0)));
};
