// What a page needs to draw in the plane or in space. It stands at the start of the page's script.
"use strict";
const find = id => document.getElementById(id);
const data = JSON.parse(find("data").textContent);
const { dimension } = data;
const axes = "xyz".slice(0, dimension);
const canvas = find("canvas"), pen = canvas.getContext("2d");
let lower, upper, middle, extent;                    // the box that is shown [m]
let azimuth = -55, elevation = 22;                   // of the eye [degrees]
let width, height, zoom, centre, colors, right, up, eye;

// --- From space to the canvas ---

function look() {                                    // right, up, and towards the eye
  if (dimension === 2) { [right, up] = [[1, 0], [0, 1]]; return; }
  const a = azimuth * Math.PI / 180, e = elevation * Math.PI / 180;
  const [ca, sa, ce, se] = [Math.cos(a), Math.sin(a), Math.cos(e), Math.sin(e)];
  [right, up, eye] = [[-sa, ca, 0], [-se * ca, -se * sa, ce], [ce * ca, ce * sa, se]];
}

function dot(a, b) { return a.reduce((sum, x, i) => sum + x * b[i], 0); }

function place(point) {
  const off = point.map((x, i) => x - middle[i]);
  return [centre[0] + zoom * dot(right, off), centre[1] - zoom * dot(up, off)];
}

function points(flat, from, count) {
  const found = [];
  for (let i = from; i < from + count; i++) found.push(flat.slice(i * dimension, (i + 1) * dimension));
  return found;
}

function fit() {
  const box = find("view").getBoundingClientRect(), ratio = window.devicePixelRatio || 1;
  [width, height] = [box.width, box.height];
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  const [left, rest, below] = [58, 20, 42];          // room for the numbers [px]
  let across = extent[0], upright = extent[1];
  if (dimension === 3) {                             // the box fits at every azimuth
    across = Math.hypot(extent[0], extent[1]);
    upright = Math.abs(eye[2]) * across + up[2] * extent[2];
  }
  zoom = Math.min((width - left - rest) / across, (height - rest - below) / upright);
  centre = [left + (width - left - rest) / 2, rest + (height - rest - below) / 2];
  const style = getComputedStyle(document.documentElement);
  colors = Object.fromEntries(["ink", "faint", "soft", "scenery", "curve"].map(k => [k, style.getPropertyValue("--" + k).trim()]));
}

// --- Drawing ---

function line(path, color, thickness, alpha = 1) {
  pen.globalAlpha = alpha;
  pen.strokeStyle = color;
  pen.lineWidth = thickness;
  pen.beginPath();
  path.forEach(([x, y], i) => i ? pen.lineTo(x, y) : pen.moveTo(x, y));
  pen.stroke();
  pen.globalAlpha = 1;
}

function disc([x, y], radius, color) {
  pen.fillStyle = color;
  pen.beginPath();
  pen.arc(x, y, radius, 0, 2 * Math.PI);
  pen.fill();
}

function arrow(from, to, color) {
  const [dx, dy] = [to[0] - from[0], to[1] - from[1]], length = Math.hypot(dx, dy);
  if (length < 0.5) return;
  const head = Math.min(10, 0.4 * length), [ux, uy] = [dx / length * head, dy / length * head];
  const side = sign => [to[0] - ux + sign * 0.45 * uy, to[1] - uy - sign * 0.45 * ux];
  line([from, to], color, 2);
  line([side(1), to, side(-1)], color, 2);
}

function text(words, [x, y], align, baseline, color = colors.soft) {
  pen.fillStyle = color;
  pen.textAlign = align;
  pen.textBaseline = baseline;
  pen.fillText(words, x, y);
}

function ticks(i, room) {                            // round numbers along an axis, some 60 px apart
  const raw = extent[i] * Math.min(1, 60 / room), power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map(m => m * power).find(s => s >= raw);
  const found = [];
  for (let k = Math.ceil(lower[i] / step); k * step <= upper[i]; k++) found.push(k * step);
  const decimals = Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
  return found.map(x => [x, (Math.abs(x) < step / 2 ? 0 : x).toFixed(Math.min(decimals, 12))]);
}

function grid() {
  if (dimension === 2) gridInPlane(); else gridInSpace();
}

function gridInPlane() {
  const [left, bottom] = place(lower), [end, top] = place(upper);
  for (const [x, label] of ticks(0, zoom * extent[0])) {
    const [at] = place([x, lower[1]]);
    line([[at, top], [at, bottom]], colors.faint, 1);
    text(label, [at, bottom + 5], "center", "top");
  }
  for (const [y, label] of ticks(1, zoom * extent[1])) {
    const [, at] = place([lower[0], y]);
    line([[left, at], [end, at]], colors.faint, 1);
    text(label, [left - 6, at], "right", "middle");
  }
  line([[left, top], [left, bottom], [end, bottom]], colors.soft, 1);
  text("x [m]", [(left + end) / 2, bottom + 21], "center", "top");
  pen.save();
  pen.translate(left - 50, (top + bottom) / 2);
  pen.rotate(-Math.PI / 2);
  text("y [m]", [0, 0], "center", "top");
  pen.restore();
}

function gridInSpace() {                             // the floor, and one upright edge of the box
  const near = eye.map((x, i) => x > 0 ? upper[i] : lower[i]);
  for (const i of [0, 1]) {                          // numbers along the edges of the floor next to the eye
    const along = (x, y) => i ? [y, x, lower[2]] : [x, y, lower[2]], j = 1 - i;
    const [from, to] = [place(along(lower[i], near[j])), place(along(upper[i], near[j]))];
    const outward = Math.sign((from[0] + to[0]) / 2 - centre[0]) || 1;
    const room = Math.hypot(to[0] - from[0], to[1] - from[1]);
    for (const [x, label] of ticks(i, Math.max(room, 1))) {
      line([place(along(x, lower[j])), place(along(x, upper[j]))], colors.faint, 1);
      if (room < 60) continue;                       // seen end on
      const [px, py] = place(along(x, near[j]));
      text(label, [px + 5 * outward, py + 4], outward > 0 ? "left" : "right", "top");
    }
    line([from, to], colors.soft, 1);
    text(axes[i] + " [m]", [(from[0] + to[0]) / 2 + 32 * outward, (from[1] + to[1]) / 2 + 22], "center", "top", colors.ink);
  }
  const corners = [[0, 0], [0, 1], [1, 0], [1, 1]].map(([a, b]) => [a ? upper[0] : lower[0], b ? upper[1] : lower[1]]);
  const side = corners.reduce((a, b) => place([...a, lower[2]])[0] <= place([...b, lower[2]])[0] ? a : b);
  const [foot, top] = [place([...side, lower[2]]), place([...side, upper[2]])];
  const room = Math.abs(top[1] - foot[1]);
  line([foot, top], colors.soft, 1);
  if (room < 60) return;
  for (const [z, label] of ticks(2, room)) {
    const [px, py] = place([...side, z]);
    line([[px - 4, py], [px, py]], colors.soft, 1);
    text(label, [px - 7, py], "right", "middle");
  }
  text("z [m]", [top[0], top[1] - 4], "center", "bottom", colors.ink);
}

function drawRest() {                                // all that does not move
  pen.clearRect(0, 0, width, height);
  pen.font = "12px system-ui, sans-serif";
  pen.lineJoin = pen.lineCap = "round";
  grid();
  for (const { at } of data.scenery) {
    const path = points(at, 0, at.length / dimension).map(place);
    if (path.length > 1) line(path, colors.scenery, 1.5); else disc(path[0], 3, colors.scenery);
  }
}

function drawLink(path, color, closed) {
  if (path.length > 1) line(path, color, 4);
  if (closed) return;
  disc(path[0], path.length > 1 ? 4 : 6, color);
  disc(path[path.length - 1], path.length > 1 ? 4 : 6, color);
}

function showBox(from, to) {
  [lower, upper] = [from, to];
  middle = lower.map((low, i) => (low + upper[i]) / 2);
  extent = lower.map((low, i) => upper[i] - low);
}

showBox(data.lower, data.upper);
