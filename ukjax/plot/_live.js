// A page that simulates: the motion is computed in WebAssembly, by the module that `ukjax._export._live` makes.
// y = (q, v): the state; f: generalised forces of the hand; p: parameters; t: time [s].

const { coordinates: nq, speeds: n, step: longest, measured } = data;
const count = data.links.reduce((sum, link) => sum + link.count, 0), size = count * dimension;
const WISH = 20;                                     // how fast what is held follows the hand [rad/s of the clock]
const LIMIT = 1e-6;                                  // of constraint errors, beyond which the page stops [m, rad]
const SAMPLES = 600;
let program, cell, p = data.parameters.map(x => x.value);
let time = data.t0, before = null;                   // before: when the last picture was drawn [ms]; null in a pause
let stopped = "";                                    // why there is no motion to show
let held = null;                                     // what the hand holds: {pull, place, target}
let X = new Float64Array(size), force = 0;
let trails = [], history = [], baseline = null, cost = 0;
const box = [data.lower, data.upper];

// --- The module ---

function start(instance) {
  program = instance.exports;
  const { memory } = program;
  const sizes = { y: nq + n, z: nq + n, f: n, p: Math.max(1, p.length), d: nq + n, e: nq + n, X: size, F: size, Q: n,
    w: measured.length + 2 };
  const bytes = 8 * Object.values(sizes).reduce((a, b) => a + b), at = program.arrays.value;
  const lacking = at + bytes - memory.buffer.byteLength;
  if (lacking > 0) memory.grow(Math.ceil(lacking / 65536));
  cell = {};
  let offset = at;
  for (const [name, length] of Object.entries(sizes)) {
    cell[name] = new Float64Array(memory.buffer, offset, length);
    offset += 8 * length;
  }
  reset();
  if (!window.matchMedia("(prefers-reduced-motion: reduce)").matches) play();
}

const at = (name, skip = 0) => cell[name].byteOffset + 8 * skip;
const given = () => p.length ? [at("p")] : [];

function derivative(to) {                            // whether it is certain
  return program.live_derivative(at("y"), at("y", nq), time, at("f"), ...given(), at(to), at(to, nq)) === 1;
}

function project(from, to) {                         // to the nearest state on the constraints; whether there is one
  if (program.live_projection(at(from), at(from, nq), time, ...given(), at(to), at(to, nq)) !== 1) return false;
  return cell[to].every(Number.isFinite);
}

function measure(name = "y") {
  program.live_measures(at(name), at(name, nq), time, ...given(), at("w"));
  return [...cell.w];
}

function drawPoints() {
  program.live_points(at("y"), at("y", nq), time, ...given(), at("X"));
  X = cell.X.slice();
}

const errorOf = w => Math.max(w[w.length - 2], w[w.length - 1]);

// --- Time ---

function settle() {                                  // the nearest state that fits together; whether there is one
  cell.z.set(cell.y);
  for (let i = 0; i < 20; i++) {
    if (!project("z", "z")) return false;
    if (errorOf(measure("z")) < 1e-12) break;
  }
  if (!(errorOf(measure("z")) < 1e-9)) return false;
  cell.y.set(cell.z);
  return true;
}

function reset() {
  time = data.t0;
  cell.p.set(p);
  cell.y.set([...data.q0, ...data.v0]);
  held = null;
  stopped = settle() ? "" : FIT;
  showBox(...box);
  rebase();
  trails = data.links.filter(link => link.trail).map(() => []);
  look();
  fit();
  draw();
}

const FIT = "With these parameters the parts do not fit together near this state. Move the slider back, or reset.";
const UNCERTAIN = "Stopped: at this state the equation of motion does not say for certain how to go on. The rank of the " +
  "constraints changes next to it, or there is no motion. Reset, or pull it to another state.";
const MISSED = "Stopped: the constraints are missed, for the motion is too fast for steps of this length. Reset.";
const FAST = "Stopped: the motion is too fast to be followed. Reset.";

function advance(seconds) {                          // by so much time of the motion
  if (stopped) return;
  const steps = Math.max(1, Math.ceil(seconds / longest - 1e-9)), h = seconds / steps;
  if (!hand(WISH * rate())) return stop(UNCERTAIN);
  const done = program.march(at("y"), time, h, steps, at("f"), ...given());
  time += done * h;
  if (done < steps) return stop(UNCERTAIN);
  check();
}

function check() {
  const w = measure();
  if (!w.every(Number.isFinite) || !cell.y.every(Number.isFinite)) return stop(FAST);
  if (errorOf(w) > LIMIT) return stop(MISSED);
  note(w);
}

function stop(words) {
  stopped = words;
  pause();
}

const rate = () => 1 / Number(find("speed").value);  // seconds of the clock in a second of the motion

// --- The hand: a damped spring to where it is, as strong as what it holds is heavy ---

function hand(frequency) {                           // sets f; whether the motion is certain
  cell.f.fill(0);
  force = 0;
  if (!held) return true;
  if (!derivative("e")) return false;
  const pulls = held.pulls();
  let response = 0, size = 0;
  for (const pull of pulls) {                          // how the point moves for a force of 1 along each axis
    cell.f.set(pull.along);
    if (!derivative("d")) return false;
    pull.along.forEach((x, i) => { response += x * (cell.d[nq + i] - cell.e[nq + i]); size += x * x; });
  }
  cell.f.fill(0);
  held.firm = !(response > 1e-9 * size);
  if (held.firm) return true;
  // Next to a state in which the point cannot follow, a force for it would be endless.
  held.most = Math.max(held.most || 0, response);
  const mass = response / (response ** 2 + (0.1 * held.most) ** 2);
  let squares = 0;
  for (const { along, gap } of pulls) {
    const speed = along.reduce((sum, x, i) => sum + x * cell.y[nq + i], 0);
    const strength = (frequency ** 2 * gap - 1.4 * frequency * speed) * mass;
    along.forEach((x, i) => { cell.f[i] += strength * x; });
    squares += strength ** 2;
  }
  force = Math.sqrt(squares);
  return true;
}

function grip(point, target) {                       // of a point of the drawing: {weights: [[index, weight], ...]}
  const gripped = { point, target, pulls() {
    drawPoints();
    const here = where(point.weights), there = gripped.target;
    const axes = dimension === 2 ? [[1, 0], [0, 1]] : [right, up, eye];
    const offset = there.map((x, i) => x - here[i]);
    return axes.map((axis, k) => {
      cell.F.fill(0);
      for (const [index, weight] of point.weights) axis.forEach((x, i) => { cell.F[index * dimension + i] = weight * x; });
      program.live_pull(at("y"), at("y", nq), time, at("F"), ...given(), at("Q"));
      return { along: [...cell.Q], gap: k === 2 ? 0 : dot(axis, offset) };
    });
  } };
  return gripped;
}

function gripCoordinate(i, target) {
  const along = new Array(n).fill(0);
  along[i] = 1;
  const gripped = { coordinate: i, target, pulls: () => [{ along, gap: gripped.target - cell.y[i] }] };
  return gripped;
}

function where(weights) {
  const found = new Array(dimension).fill(0);
  for (const [index, weight] of weights) for (let i = 0; i < dimension; i++) found[i] += weight * X[index * dimension + i];
  return found;
}

function nearest([x, y]) {                           // the point of a link next to the pointer: {weights, distance}
  let best = { distance: Infinity };
  let index = 0;
  const offer = (weights, [px, py]) => {
    const distance = Math.hypot(px - x, py - y);
    if (distance < best.distance) best = { weights, distance };
  };
  for (const link of data.links) {
    const path = points(X, index, link.count).map(a => place([...a]));
    path.forEach((a, i) => {
      offer([[index + i, 1]], a);
      if (i === 0) return;
      const b = path[i - 1], [dx, dy] = [a[0] - b[0], a[1] - b[1]], square = dx * dx + dy * dy;
      if (square === 0) return;
      const s = Math.min(1, Math.max(0, ((x - b[0]) * dx + (y - b[1]) * dy) / square));
      offer([[index + i - 1, 1 - s], [index + i, s]], [b[0] + s * dx, b[1] + s * dy]);
    });
    index += link.count;
  }
  return best;
}

function adjust() {                                  // in a pause: what is held follows the hand, at rest, in no time
  if (stopped === UNCERTAIN || stopped === MISSED) stopped = "";
  const h = longest / 8, now = time;
  for (let i = 0; i < 8 && held; i++) {
    cell.y.fill(0, nq);
    if (!hand(0.5 / h) || program.march(at("y"), now, h, 1, at("f"), ...given()) < 1) { stopped = UNCERTAIN; break; }
  }
  cell.y.fill(0, nq);
  if (!settle()) stopped = UNCERTAIN;
  rebase();
}

// --- Errors as they go ---

function rebase() {                                  // from here on nothing but the mechanism acts
  const w = measure();
  baseline = w.every(Number.isFinite) ? w : null;
  history = [];
  if (baseline) note(w);
}

function note(w) {
  history.push([time, ...w]);
  if (history.length > SAMPLES) history.shift();
}

const LOWEST = -17;

function plot(canvas, values, logarithmic) {
  const view = canvas.getContext("2d"), ratio = window.devicePixelRatio || 1, room = canvas.getBoundingClientRect();
  const [wide, high] = [Math.round(room.width * ratio), Math.round(room.height * ratio)];
  if (canvas.width !== wide || canvas.height !== high) [canvas.width, canvas.height] = [wide, high];
  view.setTransform(ratio, 0, 0, ratio, 0, 0);
  view.clearRect(0, 0, room.width, room.height);
  let low = LOWEST, top = -3;
  if (!logarithmic) {
    [low, top] = [Math.min(...values), Math.max(...values)];
    const least = 1e-12 * Math.max(1e-300, Math.abs(low), Math.abs(top)) || 1e-15;
    if (top - low < least) [low, top] = [low - least, top + least];
  }
  const heightOf = x => room.height - 3 - (room.height - 6) * (x - low) / (top - low);
  const rule = x => { view.beginPath(); view.moveTo(0, heightOf(x)); view.lineTo(room.width, heightOf(x)); view.stroke(); };
  view.strokeStyle = colors.faint;
  view.lineWidth = 1;
  for (const x of logarithmic ? [-15, -12, -9, -6] : [low, 0, top]) if (x >= low && x <= top) rule(x);
  view.fillStyle = colors.soft;
  view.font = "10px system-ui, sans-serif";
  const labels = logarithmic ? [[-9, "1e-9"], [-15, "1e-15"]] : [];
  for (const [x, words] of labels) view.fillText(words, 2, heightOf(x) - 2);
  view.strokeStyle = colors.curve;
  view.lineWidth = 1.5;
  view.beginPath();
  values.forEach((x, i) => {
    const px = room.width * i / (SAMPLES - 1), py = heightOf(Math.max(low, Math.min(top, x)));
    if (i) view.lineTo(px, py); else view.moveTo(px, py);
  });
  view.stroke();
}

function drawPlots() {
  if (!baseline || !history.length) return;
  const last = history[history.length - 1];
  measured.forEach(({ kept }, i) => {
    const from = kept ? baseline[i] : 0, value = last[i + 1] - from;
    find("plot" + i + "-value").textContent = value.toExponential(1);
    plot(find("plot" + i), history.map(x => x[i + 1] - from), false);
  });
  if (!data.constrained) return;
  const errors = history.map(x => errorOf(x));
  find("plot-error-value").textContent = errors[errors.length - 1].toExponential(1);
  plot(find("plot-error"), errors.map(x => x > 0 ? Math.log10(x) : LOWEST), true);
}

// --- The picture ---

function follow() {                                  // the box goes along, or grows
  const low = new Array(dimension).fill(Infinity), top = new Array(dimension).fill(-Infinity);
  for (let i = 0; i < size; i++) {
    low[i % dimension] = Math.min(low[i % dimension], X[i]);
    top[i % dimension] = Math.max(top[i % dimension], X[i]);
  }
  if (!low.every(Number.isFinite) || !top.every(Number.isFinite)) return;
  if (data.follow) {
    const by = low.map((x, i) => dimension === 3 && i === 2 ? 0 : (x + top[i]) / 2 - middle[i]);
    showBox(lower.map((x, i) => x + by[i]), upper.map((x, i) => x + by[i]));
  } else if (low.some((x, i) => x < lower[i]) || top.some((x, i) => x > upper[i])) {
    const spare = 0.04 * Math.max(...extent);
    showBox(lower.map((x, i) => low[i] < x ? low[i] - spare : x), upper.map((x, i) => top[i] > x ? top[i] + spare : x));
    fit();
  }
}

function draw() {
  drawPoints();
  follow();
  drawRest();
  let index = 0, trail = 0;
  const tips = [];
  for (const link of data.links) {
    if (link.trail) {
      const path = trails[trail++];
      if (find("trails").checked) line(path.map(place), link.color, 1.2, 0.75);
    }
    const path = points(X, index, link.count).map(a => [...a]);
    tips.push([link, path]);
    index += link.count;
  }
  for (const [link, path] of tips) drawLink(path.map(place), link.color, link.closed);
  if (held && held.point) {
    const from = place(where(held.point.weights)), to = place(held.target);
    line([from, to], colors.ink, 1.5, 0.8);
    disc(from, 4, colors.ink);
    disc(to, 3, colors.ink);
    if (force) text((force < 100 ? force.toPrecision(2) : force.toFixed(0)) + " N", [to[0] + 9, to[1] - 9], "left", "bottom", colors.ink);
  }
  const digits = Math.min(6, Math.max(2, Math.ceil(-Math.log10(data.speed / 60) - 1e-9)));
  find("time").textContent = "t = " + time.toFixed(digits) + " s";
  const firm = held && held.firm ? "The constraints hold this point: no force moves it." : "";
  find("said").textContent = stopped || firm || (data.links.length ? HINT : "");
  find("said").className = stopped ? "alarm" : "";
  const now = find("coordinate");
  if (data.names.length && !(held && held.coordinate !== undefined)) showCoordinate(Number(now.value));
  drawPlots();
}

const HINT = "Pull at a part with the mouse" + (dimension === 3 ? "; turn the view by its background" : "") +
  ". In a pause parts stay where they are put.";

function leaveTrails() {
  data.links.filter(link => link.trail).forEach((link, k) => {
    let index = -1;
    for (const other of data.links) { index += other.count; if (other === link) break; }
    trails[k].push(points(X, index, 1).map(a => [...a])[0]);
    if (trails[k].length > SAMPLES) trails[k].shift();
  });
}

// One picture: `seconds` of the clock since the last one.
function picture(seconds) {
  const began = performance.now();
  advance(seconds / rate());
  draw();
  leaveTrails();
  cost += 0.05 * (performance.now() - began - cost);
  find("cost").textContent = cost.toFixed(1) + " ms a picture";
}

function next(now) {
  if (before === null) {
    if (held) { adjust(); draw(); requestAnimationFrame(next); }
    return;
  }
  // After a while in the background the motion goes on where it was.
  const seconds = Math.min(0.05, Math.max(0, (now - before) / 1000));
  before = now;
  if (seconds > 0) picture(seconds);
  requestAnimationFrame(next);
}

function play() {
  if (stopped) return;
  before = performance.now();
  find("play").textContent = "Pause";
  requestAnimationFrame(next);
}

function pause() {
  before = null;
  find("play").textContent = "Play";
}

function toggle() { if (before === null) play(); else pause(); }

function take(what) {
  held = what;
  if (before === null) requestAnimationFrame(next);
}

function release() {
  if (!held) return;
  held = null;
  cell.f.fill(0);
  rebase();
  draw();
}

// --- Hands on ---

find("play").addEventListener("click", toggle);
find("reset").addEventListener("click", () => { reset(); if (before !== null) before = performance.now(); });
find("trails").addEventListener("change", draw);
document.addEventListener("keydown", event => {
  if (event.key !== " " || /^(BUTTON|SELECT|INPUT)$/.test(event.target.tagName)) return;
  event.preventDefault();
  toggle();
});
for (const [what, name] of [[window, "resize"], [window.matchMedia("(prefers-color-scheme: dark)"), "change"]]) {
  what.addEventListener(name, () => { if (program) { fit(); draw(); } });
}

let turned = null;                                   // where the pointer was while it turns the view
const onCanvas = event => { const room = canvas.getBoundingClientRect(); return [event.clientX - room.left, event.clientY - room.top]; };

canvas.addEventListener("pointerdown", event => {
  if (!program) return;
  const pointer = onCanvas(event), point = nearest(pointer);
  canvas.setPointerCapture(event.pointerId);
  if (point.distance < (event.pointerType === "touch" ? 30 : 16)) {
    take(grip(point, where(point.weights)));
    held.offset = place(held.target).map((x, i) => pointer[i] - x);
  } else if (dimension === 3) turned = [event.clientX, event.clientY];
});
canvas.addEventListener("pointermove", event => {
  if (held && held.point) {
    const pointer = onCanvas(event), from = place(held.target);
    const [dx, dy] = pointer.map((x, i) => (x - held.offset[i] - from[i]) / zoom);
    held.target = held.target.map((x, i) => x + dx * right[i] - dy * up[i]);
  } else if (turned) {
    azimuth -= 0.5 * (event.clientX - turned[0]);
    elevation = Math.max(-90, Math.min(90, elevation + 0.5 * (event.clientY - turned[1])));
    turned = [event.clientX, event.clientY];
    look();
    fit();
    draw();
  }
});
for (const end of ["pointerup", "pointercancel"]) canvas.addEventListener(end, () => { turned = null; release(); });

// A coordinate.

function showCoordinate(i) {
  const slider = find("pull"), value = cell.y[i];
  if (!(value >= Number(slider.min) && value <= Number(slider.max))) rangeOf(i);
  slider.value = value;
  find("coordinate-value").textContent = value.toPrecision(4);
}

function rangeOf(i) {                               // about the value: a turn, or a part of the picture
  const slider = find("pull"), value = cell.y[i], half = /\[rad\]$/.test(data.names[i]) ? Math.PI : 0.5 * Math.max(...extent);
  [slider.min, slider.max, slider.step] = [value - half, value + half, half / 500];
}

find("coordinate").addEventListener("change", () => { const i = Number(find("coordinate").value); rangeOf(i); showCoordinate(i); });
find("pull").addEventListener("input", () => {
  const i = Number(find("coordinate").value), value = Number(find("pull").value);
  if (held && held.coordinate === i) held.target = value; else take(gripCoordinate(i, value));
  find("coordinate-value").textContent = value.toPrecision(4);
});
for (const end of ["pointerup", "change", "blur"]) find("pull").addEventListener(end, release);

// Parameters: between a fifth and five times what they were.

const spanOf = value => value === 0 ? s => 2 * s - 1 : s => value * 5 ** (2 * s - 1);

function setParameter(i, value) {
  p[i] = value;
  cell.p.set(p);
  find("parameter" + i + "-value").textContent = value.toPrecision(3);
  if (stopped && stopped !== FIT) return;
  stopped = settle() ? "" : FIT;
  rebase();
  draw();
}

function add(parent, tag, id, words) {
  const made = document.createElement(tag);
  made.id = id;
  if (words !== undefined) made.textContent = words;
  find(parent).append(made);
  return made;
}

data.parameters.forEach(({ name, value }, i) => {
  const row = add("parameters", "label", "parameter-row" + i);
  row.className = "slider";
  add("parameter-row" + i, "span", "parameter-name" + i, name);
  add("parameter-row" + i, "output", "parameter" + i + "-value", value.toPrecision(3));
  const slider = add("parameter-row" + i, "input", "parameter" + i);
  Object.assign(slider, { type: "range", min: 0, max: 1, step: 0.005, value: 0.5 });
  slider.addEventListener("input", () => setParameter(i, spanOf(value)(Number(slider.value))));
});
find("defaults").addEventListener("click", () => {
  data.parameters.forEach(({ value }, i) => { find("parameter" + i).value = 0.5; setParameter(i, value); });
});

// What is measured.

function addPlot(id, words) {
  add("plots", "figure", id + "-figure");
  add(id + "-figure", "figcaption", id + "-caption");
  add(id + "-caption", "span", id + "-name", words);
  add(id + "-caption", "output", id + "-value", "");
  add(id + "-figure", "canvas", id);
}

measured.forEach(({ name, kept }, i) => addPlot("plot" + i, kept ? "drift of " + name : name));
if (data.constrained) addPlot("plot-error", "error of the constraints");

for (const factor of [0.05, 0.1, 0.2, 0.5, 1, 2, 5]) {
  const option = add("speed", "option", "speed" + factor, Number((factor * data.speed).toPrecision(3)));
  option.value = factor * data.speed;
}
find("speed").value = data.speed;
data.names.forEach((name, i) => { add("coordinate", "option", "coordinate" + i, name).value = i; });
find("coordinate").value = 0;
find("for-coordinates").hidden = !data.names.length;
find("for-parameters").hidden = !data.parameters.length;
find("for-trails").hidden = !data.links.some(link => link.trail);
find("title").textContent = data.title;
find("source").textContent = data.source;

const failed = error => { find("said").textContent = "This browser does not run the page: " + error.message; };
try {
  const bytes = Uint8Array.from(atob(data.code), x => x.charCodeAt(0));
  WebAssembly.instantiate(bytes, {}).then(({ instance }) => start(instance)).catch(failed);
} catch (error) { failed(error); }
