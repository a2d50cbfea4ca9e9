// What all parts of the page share: elements, and how times, numbers and texts are shown.
//
// Nothing that comes from the gateway becomes markup: it is put into the page as text nodes and
// attributes only, and what a screen would obey is shown as its number.

const SVG = "http://www.w3.org/2000/svg";

export const find = (selector) => document.querySelector(selector);

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") element.addEventListener(name, value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value != null) element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child != null));
  return element;
}

// Makes an element; attributes that are functions listen to events.
export const make = (name, attributes = {}, ...children) =>
  fill(document.createElement(name), attributes, children);

// Makes an element of a drawing.
export const draw = (name, attributes = {}, ...children) =>
  fill(document.createElementNS(SVG, name), attributes, children);

// Control characters, and marks that turn the direction of writing.
const ACTS = /[\u0000-\u001f\u007f-\u009f\u200e\u200f\u202a-\u202e\u2066-\u2069]/g;

// Returns a text that somebody else wrote as one that is only seen.
export const visible = (text) =>
  String(text).replace(ACTS, (c) => `\\u{${c.charCodeAt(0).toString(16)}}`);

export const count = (number) => Number(number).toLocaleString("en");

// Returns "1 packet" or "2 packets".
export const several = (number, word) => `${count(number)} ${word}${Number(number) === 1 ? "" : "s"}`;

export function bytes(number) {
  let value = Number(number);
  for (const unit of ["B", "kB", "MB", "GB", "TB"]) {
    if (value < 1000 || unit === "TB") {
      return `${value < 10 && unit !== "B" ? value.toFixed(1) : Math.round(value)} ${unit}`;
    }
    value /= 1000;
  }
  return "";
}

// Times are nanoseconds since 1970, as BigInt: a Number has no room for them.

// Returns the time that a text stands for; null where it is none.
export function readTime(text) {
  const parts = /^(\d{4}-\d\d-\d\d)(?:[T ](\d\d:\d\d)(?::(\d\d)(?:\.(\d{1,9}))?)?)?Z?$/.exec(text.trim());
  if (!parts) return null;
  const [, day, minute = "00:00", second = "00", fraction = ""] = parts;
  const ms = Date.parse(`${day}T${minute}:${second}Z`);
  return Number.isNaN(ms) ? null : BigInt(ms) * 1_000_000n + BigInt(fraction.padEnd(9, "0"));
}

// Returns a time as RFC 3339 has it, with as many digits as it needs, or as many as are wanted.
export function showTime(ns, digits) {
  let second = ns / 1_000_000_000n;
  if (second * 1_000_000_000n > ns) second -= 1n;
  const fraction = String(ns - second * 1_000_000_000n).padStart(9, "0");
  const shown = digits === undefined ? fraction.replace(/0+$/, "") : fraction.slice(0, digits);
  const whole = new Date(Number(second) * 1000).toISOString().slice(0, 19);
  return `${whole}${shown && `.${shown}`}Z`;
}

// Returns a time as it is read on a page, in which the day may stand elsewhere.
export const clock = (ns, digits) => showTime(ns, digits).slice(11, -1);
