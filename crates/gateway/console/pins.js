// Pins: packets that are kept from retention. They are listed for everybody, and made and removed
// by who may, by a press of a button each: no address does anything.

import { Latest, address, ask, askJson } from "./ask.js";
import { download } from "./copy.js";
import { bytes, find, make, readTime, several, showTime, visible } from "./page.js";

// How long it takes until it is asked again how far pins are that are under way, in milliseconds.
const AGAIN = 15_000;

const place = find("#pins");
const list = find("#pin-list");
const state = find("#pins-state");
const form = find("#new-pin");
const latest = new Latest();

let store = "";
let mayPin = false;
// Returns the filter and the span that are shown.
let asked = () => ({});
// The pin that is asked about whether it is to be removed.
let doubted = null;
// How many lists are asked for, one behind the other: each has a hundred pins at most.
let lists = 1;
const nothing = () => ({ pins: [], next: null, unread: [] });
let shown = nothing();
let timer;

const WORDS = { open: "under way", done: "done", full: "no room for all of it" };

const short = (time) => (time ? showTime(readTime(time)) : "");

function fact(name, ...value) {
  return make("div", {}, make("dt", {}, name), make("dd", {}, ...value));
}

// Returns the button that removes a pin, which asks first.
function remover(pin) {
  const isDoubted = doubted === pin.number;
  const button = (text, click, kind = "") => make("button", { type: "button", class: kind, click }, text);
  const focus = (selector) => list.querySelector(`[data-pin="${pin.number}"] ${selector}`)?.focus();
  if (!isDoubted) {
    return button(`Remove pin ${pin.number}`, () => {
      doubted = pin.number;
      show(shown);
      focus(".doubt button");
    }, "remove");
  }
  return make("span", { class: "doubt buttons", role: "group", "aria-label": `Remove pin ${pin.number}?` },
    make("span", {}, `Remove pin ${pin.number}? Its packets are gone then, for everybody.`),
    button("Remove it", () => remove(pin.number), "remove"),
    button("Keep it", () => {
      doubted = null;
      show(shown);
      focus(".remove");
    }));
}

// Returns the link by which the packets of a pin are downloaded.
function downloader(pin) {
  const [path, parameters] = [`pins/${pin.number}/packets`, { store }];
  const trouble = (error) => (state.textContent = visible(error.message));
  return make("a", {
    class: "button",
    href: address(path, parameters),
    download: `${store}-pin-${pin.number}.pcapng`,
    click: (event) => download(event, path, parameters, trouble),
  }, `Download packets of pin ${pin.number}`);
}

function entry(pin) {
  const question = [pin.filter, pin.community_id && `flow ${pin.community_id}`, pin.ceiling && `within ${pin.ceiling}`];
  const what = question.filter(Boolean).map(visible).join(", ") || "every packet";
  const whose = pin.by ?? (pin.rule ? `the rule ${pin.rule}` : "somebody at the sensor");
  const isPartly = pin.state !== "done" && pin.reached > pin.after;
  const lacks = pin.complete === false && pin.lacks.length
    ? make("details", {}, make("summary", {}, `What the recording lacks (${pin.lacks.length})`),
      make("ul", {}, ...pin.lacks.map((lack) => make("li", {}, visible(lack)))))
    : null;
  return make("li", { "data-pin": pin.number, class: `pin ${pin.state}` },
    make("h3", {}, `Pin ${pin.number}: `, make("span", { class: "reason" }, visible(pin.reason))),
    make("dl", {},
      fact("State", make("b", { class: "state" }, WORDS[pin.state] ?? visible(pin.state)),
        isPartly ? `, copied up to ${short(pin.reached)}` : null),
      fact("Has", `${several(pin.packets, "packet")}, ${bytes(pin.bytes)}`),
      fact("Of", what),
      fact("Span", `${short(pin.after)} to ${short(pin.before)}`),
      fact("Kept", pin.until ? `until ${short(pin.until)}` : "until it is removed"),
      fact("Made", `${showTime(readTime(pin.made), 0)} for ${visible(whose)}`)),
    lacks,
    make("span", { class: "buttons" },
      pin.packets ? downloader(pin) : null,
      mayPin ? remover(pin) : null));
}

function show(told) {
  shown = told;
  const room = told.budget_bytes === null ? "" : `; ${bytes(told.used_bytes)} of ${bytes(told.budget_bytes)} are taken`;
  const held = several(told.pins.length, "pin") + (told.next === null ? "" : ", and older ones");
  find("#pins-count").textContent = held;
  state.textContent = told.pins.length ? `${held}${room}.` : `Nothing is pinned${room}.`;
  if (told.unread.length) state.textContent += ` Cannot be read: pin ${told.unread.join(", ")}.`;
  find("#pins-more").hidden = told.next === null;
  // What somebody has opened stays open.
  const open = [...list.querySelectorAll("details[open]")].map((one) => one.closest("li").dataset.pin);
  list.replaceChildren(...told.pins.map(entry));
  for (const number of open) list.querySelector(`[data-pin="${number}"] details`)?.setAttribute("open", "");
}

async function askPins(signal) {
  const told = await askJson("pins", { store }, { signal });
  for (let more = 1; more < lists && told.next !== null; more += 1) {
    const older = await askJson("pins", { store, from: told.next }, { signal });
    told.pins.push(...older.pins);
    told.unread.push(...older.unread);
    told.next = older.next;
  }
  return told;
}

async function load(said = "") {
  clearInterval(timer);
  doubted = null;
  const signal = latest.begin();
  if (!shown.pins.length) state.textContent = "Asking …";
  try {
    const told = await askPins(signal);
    const before = document.activeElement?.closest("[data-pin]")?.dataset.pin;
    show(told);
    if (before && !list.contains(document.activeElement)) {
      list.querySelector(`[data-pin="${before}"] button`)?.focus();
    }
    if (said) state.textContent = `${said} ${state.textContent}`;
  } catch (error) {
    if (signal.aborted) return;
    state.textContent = visible(error.message);
  }
  // Also where there was no answer: the next time there may be one.
  if (shown.pins.some((pin) => pin.state === "open")) {
    clearInterval(timer);
    timer = setInterval(() => {
      // Who is asked something is not to find another button under the finger.
      if (!document.hidden && place.open && doubted === null) load();
    }, AGAIN);
  }
}

async function remove(number) {
  doubted = null;
  try {
    await ask(`pins/${number}`, { store }, { method: "DELETE" });
    await load(`Pin ${number} is removed.`);
  } catch (error) {
    show(shown);
    state.textContent = visible(error.message);
  }
  state.focus();
}

// Puts what is shown into the form.
function fill() {
  const { filter, after, before } = asked();
  find("#pin-filter").value = filter ?? "";
  find("#pin-after").value = after ?? "";
  find("#pin-before").value = before ?? "";
}

// Reads the times of the form. Returns null where one of them is none, and marks that.
function times(fields) {
  const read = fields.map(([field, needed]) => {
    const text = field.value.trim();
    const ns = text ? readTime(text) : null;
    const isBad = text ? ns === null : needed;
    field.setAttribute("aria-invalid", isBad);
    if (isBad) trouble(`${text || "A span is needed"}: write a time as 2026-01-02T03:04:05Z`, field);
    return isBad ? undefined : ns;
  });
  return read.includes(undefined) ? null : read.map((ns) => (ns === null ? undefined : showTime(ns)));
}

function trouble(text, field) {
  const told = find("#pin-trouble");
  told.hidden = !text;
  told.textContent = visible(text);
  field?.focus();
}

async function pin() {
  trouble("");
  const [filter, reason] = [find("#pin-filter"), find("#pin-reason")];
  const fields = [[find("#pin-after"), true], [find("#pin-before"), true], [find("#pin-until"), false]];
  const read = times(fields);
  if (!read) return;
  const [after, before, until] = read;
  const wanted = { store, filter: filter.value.trim(), after, before, until, reason: reason.value.trim() };
  const button = find("#new-pin button");
  button.disabled = true;
  try {
    const made = await (await ask("pins", {}, { method: "POST", json: wanted })).json();
    reason.value = "";
    await load(`Pin ${made.number} is made, and its packets are being copied.`);
    state.focus();
  } catch (error) {
    trouble(error.message);
  } finally {
    button.disabled = false;
  }
}

// Shows the pins of a store to somebody who may change them or not. `question` returns the filter
// and the span that are shown.
export function showPins(name, may, question) {
  const isOther = store !== name;
  [store, mayPin, asked] = [name, may, question];
  form.hidden = !may;
  place.hidden = false;
  if (isOther) {
    doubted = null;
    lists = 1;
    shown = nothing();
    list.replaceChildren();
    find("#pins-count").textContent = "";
  }
  if (place.open) load();
}

place.addEventListener("toggle", () => {
  if (!place.open) return;
  fill();
  load();
});
find("#pin-take").addEventListener("click", fill);
find("#pins-refresh").addEventListener("click", () => load());
find("#pins-more").addEventListener("click", () => {
  lists += 1;
  load();
});
form.addEventListener("submit", (event) => {
  event.preventDefault();
  pin();
});
