// The store over time: packets or bytes as bars, and beneath them when some were lost, went unseen
// or lost payload. Kinds are told apart by their lane, their shape and their name, and not by
// colour alone.

import { bytes, clock, count, draw, find, make, several, showTime, visible } from "./page.js";

const PLOT = 132;
const LANE = 14;
const AXIS = 20;
const TOP = 16;
// Room at the left for the names of lanes; console.css has it, too.
const GUTTER = 48;
// Steps of the sliders, over all of the time that is shown.
const STEPS = 400;

const S = 1_000_000_000n;
const KINDS = [
  ["lost", "lost", "packets dropped while the ring was full"],
  ["unseen", "unseen", "packets that came while the hook was not there"],
  ["shed", "shed", "packets kept without all of their payload"],
];
const STEP_S = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600,
  43_200, 86_400, 172_800, 604_800, 2_592_000, 31_536_000];

const place = find("#chart");
const svg = draw("svg", { role: "img" });
const slider = (label) => make("input", {
  type: "range", min: 0, max: STEPS, step: 1, "aria-label": label,
});
const [first, last] = [slider("The span begins"), slider("The span ends")];
const sliders = make("div", { class: "sliders" }, first, last);
place.append(svg, sliders);

let shown = null;
let span = [null, null];
let width = 600;
let chosen = () => {};

const share = (ns) => Number(ns - shown.start) / Number(shown.end - shown.start);
const x = (ns) => GUTTER + share(ns) * (width - GUTTER);

// Returns the time at a part of the width, with no more digits than a place of its own has.
function timeOf(part) {
  const all = Number(shown.end - shown.start);
  const step = 10n ** BigInt(Math.max(0, Math.floor(Math.log10(all / width))));
  const ns = shown.start + BigInt(Math.round(all * Math.min(Math.max(part, 0), 1)));
  return ns / step * step;
}

const at = (px) => timeOf((px - GUTTER) / (width - GUTTER));

function tickStep() {
  const room = Number(shown.end - shown.start) / Math.max(width / 100, 1);
  if (room < 1e9) {
    const power = 10 ** Math.floor(Math.log10(Math.max(room, 1)));
    return BigInt(Math.ceil([1, 2, 5, 10].find((n) => n * power >= room) * power));
  }
  return S * BigInt(STEP_S.find((s) => s * 1e9 >= room) ?? STEP_S.at(-1));
}

function axis() {
  const step = tickStep();
  const y = TOP + PLOT + lanes().length * LANE;
  const digits = step >= S ? 0 : 9 - (String(step).length - 1);
  const ticks = [];
  for (let ns = (shown.start / step + 1n) * step; ns < shown.end; ns += step) {
    const text = step >= 86_400n * S ? showTime(ns).slice(5, 10)
      : step >= 60n * S ? clock(ns).slice(0, 5) : clock(ns, digits);
    const px = x(ns);
    ticks.push(draw("line", { class: "tick", x1: px, x2: px, y1: TOP, y2: y }));
    if (px > GUTTER && px < width - 24) ticks.push(draw("text", { class: "label", x: px, y: y + 14, "text-anchor": "middle" }, text));
  }
  return ticks;
}

function bars() {
  const { values, first: from, step } = shown;
  const most = Math.max(...values, 1);
  const w = Math.max(x(shown.start + step) - GUTTER - 1, 1);
  const rects = values.map((value, i) => {
    if (!value) return "";
    // The least is seen, too.
    const h = Math.max(value / most * PLOT, 1.5);
    return `M${x(from + BigInt(i) * step).toFixed(1)} ${TOP + PLOT}v${-h.toFixed(1)}h${w.toFixed(1)}v${h.toFixed(1)}z`;
  });
  const each = `${shown.show(most)} in ${duration(Number(step))}`;
  return [
    draw("path", { class: "bars", d: rects.join("") }),
    draw("text", { class: "label", x: GUTTER, y: 11 }, `most: ${each}`),
  ];
}

// Returns the kinds of loss that there are.
const lanes = () => KINDS.filter(([kind]) => shown.gaps.some((gap) => gap.kind === kind));

// Draws when something of a kind was lost. However many times there are, no more is drawn than
// there is room for.
function lane([kind, name], row) {
  const y = TOP + PLOT + row * LANE;
  const runs = [];
  for (const gap of shown.gaps.filter((gap) => gap.kind === kind)) {
    const from = Math.max(x(gap.first), GUTTER);
    const to = Math.min(Math.max(x(gap.last), from + 3), width);
    if (to <= GUTTER || from >= width) continue;
    const before = runs.at(-1);
    if (before && from <= before[1] + 1) before[1] = Math.max(before[1], to);
    else runs.push([from, to]);
  }
  const marks = runs.flatMap(([from, to]) => {
    const shapes = [draw("rect", { class: kind, x: from, y: y + 2, width: to - from, height: LANE - 4 })];
    if (kind !== "shed") {
      shapes.unshift(draw("rect", { class: `gap ${kind}`, x: from, y: TOP, width: to - from, height: PLOT }));
    }
    return shapes;
  });
  const label = draw("text", { class: "label lane", x: 2, y: y + 11 }, name);
  return draw("g", {}, ...marks, label);
}

// Patterns by which kinds are told apart without colours.
const patterns = () => draw("defs", {},
  draw("pattern", { id: "hatched", width: 6, height: 6, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" },
    draw("rect", { class: "lost-ink", width: 2.5, height: 6 })),
  draw("pattern", { id: "dotted", width: 5, height: 5, patternUnits: "userSpaceOnUse" },
    draw("circle", { class: "unseen-ink", cx: 2, cy: 2, r: 1.3 })));

export function duration(ns) {
  const units = [[86_400e9, "d"], [3600e9, "h"], [60e9, "min"], [1e9, "s"], [1e6, "ms"], [1e3, "µs"], [1, "ns"]];
  const [size, unit] = units.find(([size]) => ns >= size) ?? [1, "ns"];
  return `${Number((ns / size).toPrecision(3))} ${unit}`;
}

function brush() {
  const [from, to] = [span[0] === null ? GUTTER : x(span[0]), span[1] === null ? width : x(span[1])];
  const [left, right] = [from, to].map((px) => Math.min(Math.max(px, GUTTER), width));
  const height = TOP + PLOT + lanes().length * LANE;
  svg.querySelector(".brush")?.remove();
  svg.append(draw("g", { class: "brush" },
    draw("rect", { class: "outside", x: GUTTER, y: TOP, width: left - GUTTER, height: height - TOP }),
    draw("rect", { class: "outside", x: right, y: TOP, width: width - right, height: height - TOP }),
    draw("line", { x1: left, x2: left, y1: TOP - 4, y2: height }),
    draw("line", { x1: right, x2: right, y1: TOP - 4, y2: height })));
  const step = (px) => Math.round((px - GUTTER) / (width - GUTTER) * STEPS);
  first.value = step(left);
  last.value = step(right);
  first.setAttribute("aria-valuetext", span[0] === null ? "the beginning" : showTime(span[0]));
  last.setAttribute("aria-valuetext", span[1] === null ? "the end" : showTime(span[1]));
}

function redraw() {
  if (!shown) return;
  const height = TOP + PLOT + lanes().length * LANE + AXIS;
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.setAttribute("height", height);
  svg.replaceChildren(patterns(), ...axis(), ...bars(), ...lanes().map(lane));
  svg.setAttribute("aria-label", `${shown.measure} over time. ${find("#summary").textContent}`);
  brush();
}

// Returns a span as it is read, with the day of its end where that is another one.
function between(from, to) {
  const [begin, end] = [showTime(from, 3), showTime(to, 3)];
  const isOneDay = begin.slice(0, 10) === end.slice(0, 10);
  return `${begin} to ${isOneDay ? end.slice(11) : end}`;
}

// Returns a sentence of what the chart shows.
function summary(histogram, losses) {
  const all = histogram.packets.reduce((sum, n) => sum + n, 0);
  if (!all) return "No packets.";
  const volume = histogram.bytes.reduce((sum, n) => sum + n, 0);
  const words = [`${several(all, "packet")}, ${bytes(volume)}, from ${between(shown.start, shown.end)}.`];
  const told = [[losses.lost, "lost"], [losses.unseen, "went unseen"], [losses.shed_packets, "shed payload"]];
  const some = told.filter(([n]) => n).map(([n, word]) => `${several(n, "packet")} ${word}`);
  words.push(some.length ? `${some.join("; ")}.` : "Nothing was lost.");
  if (histogram.segments_not_indexed) words.push(`${several(histogram.segments_not_indexed, "segment")} not indexed.`);
  return [...words, ...histogram.faults.map((fault) => `Incomplete: ${visible(fault)}.`)].join(" ");
}

// Shows the list of losses, each of which can be chosen as the span.
function list(losses) {
  const box = find("#losses");
  box.hidden = !losses.gaps.length;
  box.querySelector("summary").textContent =
    `${several(losses.gaps.length + losses.gaps_omitted, "time")} with losses`;
  const item = (gap) => {
    const what = gap.kind === "shed" ? `shed payload, ${bytes(gap.bytes)}` : gap.kind;
    const where = gap.interface ? ` at ${visible(gap.interface)}` : "";
    const why = gap.why ? `: ${visible(gap.why)}` : "";
    const text = between(gap.first, gap.last);
    return make("li", {},
      make("button", { type: "button", class: "link", click: () => chosen(gap.first, gap.last + 1n) }, text),
      ` ${several(gap.packets, "packet")} ${what}${where}${why}`);
  };
  const largest = shown.gaps.slice(0, 200);
  box.querySelector("ul").replaceChildren(...largest.map(item));
  if (shown.gaps.length > largest.length) {
    box.querySelector("ul").append(make("li", {}, `… and ${count(shown.gaps.length - largest.length)} more`));
  }
}

// Shows a histogram and losses. `view` is the time that is shown, of which either end may be open.
// `read` reads times.
export function showChart(histogram, losses, view, measure, read) {
  const gaps = losses.gaps.map((gap) => ({
    ...gap, first: read(gap.first), last: read(gap.last),
  }));
  const step = BigInt(Math.max(Math.round(histogram.step_s * 1e9), 1));
  const begin = histogram.first === null ? null : read(histogram.first);
  const end = begin === null ? null : begin + step * BigInt(histogram.packets.length);
  const least = (list) => list.reduce((a, b) => (b < a ? b : a));
  const most = (list) => list.reduce((a, b) => (b > a ? b : a));
  const points = [...(begin === null ? [] : [begin, end]), ...gaps.flatMap((gap) => [gap.first, gap.last])];
  const open = points.length ? points : [0n, 1n];
  shown = {
    gaps, step, first: begin ?? 0n, measure: measure === "bytes" ? "Bytes" : "Packets",
    values: measure === "bytes" ? histogram.bytes : histogram.packets,
    show: measure === "bytes" ? bytes : (n) => several(n, "packet"),
    start: view[0] ?? least(open), end: view[1] ?? most(open),
  };
  if (shown.end <= shown.start) shown.end = shown.start + 1n;
  place.hidden = !points.length;
  find("#summary").textContent = summary(histogram, losses);
  list(losses);
  redraw();
}

// Shows that there is no chart, and why.
export function showNoChart(why) {
  shown = null;
  place.hidden = true;
  find("#losses").hidden = true;
  find("#summary").textContent = why;
}

// Marks a span, of which either end may be open.
export function select(after, before) {
  span = [after, before];
  if (shown) brush();
}

// Calls `each` with every span that is chosen.
export function onChoice(each) {
  chosen = each;
}

function finish() {
  const [from, to] = [Number(first.value), Number(last.value)];
  const time = (step) => timeOf(step / STEPS);
  chosen(from <= 0 ? null : time(from), to >= STEPS ? null : time(to));
}

function slide(moved) {
  if (!shown) return;
  // The ends do not pass each other.
  if (moved === first) first.value = Math.min(first.value, last.value - 1);
  else last.value = Math.max(last.value, Number(first.value) + 1);
  const time = (input) => timeOf(input.value / STEPS);
  if (moved === first) span = [first.value <= 0 ? null : time(first), span[1]];
  else span = [span[0], last.value >= STEPS ? null : time(last)];
  brush();
}

for (const input of [first, last]) {
  input.addEventListener("input", () => slide(input));
  input.addEventListener("change", finish);
}

let dragged = null;

const placeOf = (event) => event.clientX - svg.getBoundingClientRect().left;

svg.addEventListener("pointerdown", (event) => {
  if (!shown || event.button !== 0) return;
  dragged = placeOf(event);
  svg.setPointerCapture(event.pointerId);
});
svg.addEventListener("pointermove", (event) => {
  if (dragged === null) return;
  const ends = [dragged, placeOf(event)].sort((a, b) => a - b);
  span = ends.map(at);
  brush();
});
svg.addEventListener("pointerup", (event) => {
  if (dragged === null) return;
  const ends = [dragged, placeOf(event)].sort((a, b) => a - b);
  dragged = null;
  // A click chooses the bar that was hit.
  if (ends[1] - ends[0] < 4) {
    const i = (at(ends[0]) - shown.first) / shown.step;
    const from = shown.first + i * shown.step;
    chosen(from, from + shown.step);
  } else {
    chosen(at(ends[0]), at(ends[1]));
  }
});
svg.addEventListener("pointercancel", () => {
  dragged = null;
});

new ResizeObserver(([{ contentRect }]) => {
  if (contentRect.width < 1 || contentRect.width === width) return;
  width = contentRect.width;
  redraw();
}).observe(place);
