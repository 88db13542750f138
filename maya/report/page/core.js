// Shared by all parts of the page: the content, number formats, colours, canvases and the tooltip.
const content = JSON.parse(document.getElementById("content").textContent, (_, value) => value?.runs ? expanded(value.runs) : value);

// Lists of thousands of ranks are written as values and how often each occurs in a row.
function expanded(runs) {
  const values = [];
  for (let at = 0; at < runs.length; at += 2)
    for (let times = runs[at + 1]; times > 0; times--) values.push(runs[at]);
  return values;
}

const $ = (id) => document.getElementById(id);

function element(tag, attributes, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

const digits = (value) => value >= 100 ? value.toFixed(0) : value >= 10 ? value.toFixed(1) : value.toFixed(2);

function duration(ns) {
  if (ns < 0) return "−" + duration(-ns);
  if (ns >= 1e9) return digits(ns / 1e9) + " s";
  if (ns >= 1e6) return digits(ns / 1e6) + " ms";
  if (ns >= 1e3) return digits(ns / 1e3) + " µs";
  return ns + " ns";
}

function bytes(count) {
  for (const [unit, size] of [["TiB", 2 ** 40], ["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]])
    if (count >= size) return digits(count / size) + " " + unit;
  return count + " B";
}

const share = (part) => part > 0 && part < 0.0005 ? "< 0.1 %" : (100 * part).toFixed(1) + " %";
const whole = (count) => Math.round(count).toLocaleString("en");
const rate = (bytesPerSecond) => bytesPerSecond ? digits(bytesPerSecond / 1e9) + " GB/s" : "";
const shown = { ns: duration, bytes, share, rate, count: whole, text: String };

function median(values) {
  const sorted = Float64Array.from(values).sort();
  return sorted[sorted.length >> 1];
}

// Colours are CSS variables, so that light, dark and paper differ in one place.
let colours = new Map();
function colour(name) {
  if (!colours.has(name)) {
    const found = getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();
    colours.set(name, found || "#808080");
  }
  return colours.get(name);
}

function channels(hex) {
  return [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
}

function between(first, second, part) {
  const [from, to] = [channels(first), channels(second)];
  return "rgb(" + from.map((value, at) => Math.round(value + (to[at] - value) * part)).join(",") + ")";
}

const heat = (part) => between(colour("ramp-0"), colour("ramp-1"), Math.max(0, Math.min(1, part)));
const signed = (part) =>
  between(colour("middle"), colour(part < 0 ? "below" : "above"), Math.min(1, Math.abs(part)));

// Dark or white text, whichever is readable on the colour.
const inkOnPaint = (paint) => inkOn(String(paint));  // a canvas returns its colours as #rrggbb
function inkOn(hex) {
  const [red, green, blue] = channels(hex);
  return 0.299 * red + 0.587 * green + 0.114 * blue > 150 ? "#1b2330" : "#ffffff";
}

// Size a canvas to device pixels; drawing uses CSS pixels.
function prepare(canvas, height) {
  const width = canvas.clientWidth || 1200;
  const ratio = window.devicePixelRatio || 1;
  canvas.style.height = height + "px";
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  const pen = canvas.getContext("2d");
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.clearRect(0, 0, width, height);
  pen.font = "12px system-ui, sans-serif";
  pen.textBaseline = "middle";
  return [pen, width];
}

// Round numbers between two values, about `count` of them.
function ticks(low, high, count) {
  const rough = (high - low) / Math.max(1, count);
  const power = 10 ** Math.floor(Math.log10(rough || 1));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((each) => each >= rough) || 1;
  const found = [];
  for (let at = Math.ceil(low / step) * step; at <= high + step * 1e-9; at += step) found.push(at);
  return found;
}

const tip = $("tip");
function showTip(event, title, lines) {
  tip.replaceChildren(element("b", {}, title), lines.filter(Boolean).join("\n"));
  tip.hidden = false;
  const [width, height] = [tip.offsetWidth, tip.offsetHeight];
  const left = event.clientX + 14 + width > window.innerWidth ? event.clientX - width - 10 : event.clientX + 14;
  const top = event.clientY + 16 + height > window.innerHeight ? event.clientY - height - 10 : event.clientY + 16;
  tip.style.left = Math.max(4, left) + "px";
  tip.style.top = Math.max(4, top) + "px";
}
const hideTip = () => { tip.hidden = true; };

const place = (canvas, event) => {
  const box = canvas.getBoundingClientRect();
  return [event.clientX - box.left, event.clientY - box.top];
};

// Functions that draw again when the theme, the paper or the width changes.
const drawings = [];
function draws(draw) {
  drawings.push(draw);
  draw();
}
function drawAll() {
  colours = new Map();
  for (const draw of drawings) draw();
}

function legend(into, entries) {
  into.replaceChildren(...entries.map(([key, name]) =>
    element("span", {}, element("i", { style: `background: var(--${key})` }), name)));
}

function scale(into, from, to, colourAt, low, high) {
  const stops = [0, 0.25, 0.5, 0.75, 1].map((part) => colourAt(from + (to - from) * part)).join(", ");
  into.replaceChildren(low, element("i", { style: `background: linear-gradient(to right, ${stops})` }), high);
}

const rankName = (rank) => content.ranks_per_node < content.peak_bytes.length
  ? `rank ${rank} (node ${Math.floor(rank / content.ranks_per_node)}, GPU ${rank % content.ranks_per_node})`
  : `rank ${rank}`;
