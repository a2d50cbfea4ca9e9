// Packets as rows, a thousand at once, each of which opens as fields and bytes.

import { Latest, askJson } from "./ask.js";
import { clock, count, find, make, readTime, several, showTime, visible } from "./page.js";

// Packets that are asked for at once.
const PAGE = 1000;
// Packets that are shown, so that a browser's memory is bounded.
const MOST = 10 * PAGE;
const COLUMNS = ["Time", "Interface", "Source", "Destination", "Protocol", "Length", "Flags"];

const table = find("#packets");
const state = find("#packets-state");
const more = find("#more");
const latest = new Latest();
const narrow = matchMedia("(max-width: 40rem)");

let question = {};
let changed = () => {};
// Where the next page begins: a time, and how many packets of that time were before.
let next = null;
let shown = 0;
let day = "";
let busy = false;

const head = make("div", { role: "rowgroup", class: "head" },
  make("div", { role: "row", class: "row" },
    ...COLUMNS.map((name) => make("span", { role: "columnheader" }, name))));

const endpoint = (address, port) => {
  if (address == null) return "";
  if (port == null) return visible(address);
  return String(address).includes(":") ? `[${address}]:${port}` : `${address}:${port}`;
};

const cell = (kind, ...children) => make("span", { role: "cell", class: kind }, ...children);

function row(packet, id) {
  const time = readTime(packet.time);
  const button = make("button", { type: "button", class: "link time", "aria-expanded": "false", "data-id": id },
    clock(time, 6), make("span", { class: "rest", "aria-hidden": "true" }, packet.time.slice(26, -1)));
  const marks = [];
  if (packet.dropped) marks.push(`▼ ${count(packet.dropped)} lost before it`);
  if (packet.shed) marks.push(`◆ ${several(packet.shed, "byte")} shed`);
  const line = make("div", { role: "row", class: "row" },
    cell("when", button),
    cell("interface", visible(packet.interface)),
    cell("source", endpoint(packet.src, packet.sport)),
    cell("destination", endpoint(packet.dst, packet.dport)),
    cell("protocol", packet.protocol ?? ""),
    cell("length", count(packet.length)),
    cell("flags", packet.flags ?? "", ...marks.map((mark) => make("span", { class: "mark" }, mark))));
  line.addEventListener("click", (event) => {
    // A text that is marked with the mouse is to be copied.
    if (!getSelection().toString() && event.target.closest(".row") === line) toggle(button);
  });
  return line;
}

function divider(text) {
  return make("div", { role: "row", class: "day" }, make("span", { role: "cell" }, text));
}

async function toggle(button, tell = true) {
  const line = button.closest(".row");
  if (button.getAttribute("aria-expanded") === "true") {
    button.setAttribute("aria-expanded", "false");
    line.nextElementSibling?.remove();
    if (tell) changed("");
    return;
  }
  button.setAttribute("aria-expanded", "true");
  const inside = make("div", { role: "cell", class: "inside" }, "Asking …");
  line.after(make("div", { role: "row", class: "open" }, inside));
  if (tell) changed(button.dataset.id);
  const [ns, skip] = button.dataset.id.split("~");
  const time = BigInt(ns);
  try {
    const { store, filter } = question;
    const told = await askJson("packets", {
      store, filter, after: showTime(time), before: showTime(time + 1n), skip, limit: 1, whole: true,
    });
    if (!told.packets.length) throw new Error("The packet is gone: its segment was deleted.");
    inside.replaceChildren(...opened(told.packets[0]));
  } catch (error) {
    inside.replaceChildren(error.message);
  }
}

function opened(packet) {
  const data = packet.frame.match(/../g) ?? [];
  const hex = dump(data);
  const mark = ({ start, end }, button) => {
    for (const pressed of hex.parentElement.querySelectorAll("[aria-pressed=true]")) {
      if (pressed !== button) pressed.setAttribute("aria-pressed", "false");
    }
    const on = button.getAttribute("aria-pressed") !== "true";
    button.setAttribute("aria-pressed", on);
    let first = null;
    for (const byte of hex.querySelectorAll("[data-at]")) {
      const inside = on && byte.dataset.at >= start && byte.dataset.at < end;
      byte.classList.toggle("marked", inside);
      if (inside) first ??= byte;
    }
    first?.scrollIntoView({ block: "nearest" });
  };
  const marker = (range, ...children) => {
    const button = make("button", { type: "button", class: "field", "aria-pressed": "false" }, ...children);
    button.addEventListener("click", () => mark(range, button));
    return button;
  };
  const layer = ({ name, bytes: range, fields }) => make("li", {},
    marker(range, make("b", {}, name), ` ${several(range.end - range.start, "byte")}`),
    make("ul", {}, ...fields.map((field) => make("li", {},
      marker(field.bytes, make("span", { class: "name" }, field.name), " ", visible(field.value))))));
  const notes = [`${showTime(readTime(packet.time), 9)} at ${visible(packet.interface)}, ` +
    `${several(packet.length, "byte")} long, ${count(packet.captured)} recorded.`];
  if (packet.shed) notes.push(`${several(packet.shed, "byte")} shed under overload.`);
  if (packet.dropped) notes.push(`${several(packet.dropped, "packet")} lost before it.`);
  return [
    make("p", {}, notes.join(" ")),
    make("ul", { class: "layers", "aria-label": "Fields" }, ...packet.layers.map(layer)),
    hex,
  ];
}

// Returns bytes as hexadecimal numbers and as letters.
function dump(data) {
  const width = narrow.matches ? 8 : 16;
  const place = make("div", { class: "hex", tabindex: "0", role: "group", "aria-label": "Bytes" });
  for (let at = 0; at < data.length; at += width) {
    const part = data.slice(at, at + width);
    const spans = (show, kind) => make("span", { class: kind },
      ...part.map((byte, i) => make("span", { "data-at": at + i }, show(byte))));
    const letter = (byte) => {
      const code = Number.parseInt(byte, 16);
      return code >= 0x20 && code < 0x7f ? String.fromCharCode(code) : "·";
    };
    place.append(make("div", {},
      make("span", { class: "offset" }, at.toString(16).padStart(4, "0")),
      spans((byte) => byte, "digits"), spans(letter, "letters")));
  }
  return place;
}

async function page(signal) {
  busy = true;
  more.disabled = true;
  try {
    const { store, filter, before } = question;
    const asked = { store, filter, before, after: next.after, skip: next.skip || "", limit: PAGE };
    const told = await askJson("packets", asked, { signal });
    const group = make("div", { role: "rowgroup", class: "page" });
    let { ns, skip } = next;
    for (const packet of told.packets) {
      const time = readTime(packet.time);
      skip = time === ns ? skip : 0;
      ns = time;
      if (packet.time.slice(0, 10) !== day) {
        day = packet.time.slice(0, 10);
        group.append(divider(day));
      }
      group.append(row(packet, `${ns}~${skip}`));
      skip += 1;
    }
    table.append(group);
    shown += told.packets.length;
    next = { after: ns === null ? next.after : showTime(ns), ns, skip };
    end(told);
  } catch (error) {
    if (signal.aborted) return;
    state.textContent = error.message;
    more.hidden = true;
  } finally {
    if (!signal.aborted) busy = false;
  }
}

function end({ packets, end: last }) {
  const isWhole = packets.length < PAGE;
  const words = [isWhole ? several(shown, "packet") : `The first ${several(shown, "packet")}`];
  if (last.result === "limited" && isWhole) words.push("your role lets no more of them out");
  if (isWhole && last.dropped) words.push(`${count(last.dropped)} were lost in the span`);
  if (isWhole && last.unseen) words.push(`${count(last.unseen)} went unseen`);
  const faults = last.faults.map((fault) => ` Incomplete: ${visible(fault)}.`);
  state.textContent = `${words.join("; ")}.${faults.join("")}`;
  more.hidden = isWhole;
  more.disabled = false;
  more.textContent = shown < MOST ? "More packets" : "Go on with later packets";
}

async function begin(from) {
  const signal = latest.begin();
  table.replaceChildren(head);
  more.hidden = true;
  state.textContent = "Asking …";
  [shown, day, next] = [0, "", from];
  table.setAttribute("aria-busy", "true");
  await page(signal);
  if (!signal.aborted) table.setAttribute("aria-busy", "false");
  return signal;
}

// Shows the packets of a question, and one of them opened where it is named. `opens` is told which
// one is open.
export async function showPackets(asked, open, opens) {
  [question, changed] = [asked, opens];
  const start = { after: asked.after ?? "", ns: null, skip: 0 };
  const signal = await begin(start);
  if (!open || signal.aborted) return;
  const known = () => table.querySelector(`[data-id="${CSS.escape(open)}"]`);
  if (!known()) {
    const [ns, skip] = open.split("~");
    if (!/^\d{1,19}$/.test(ns) || !/^\d{1,9}$/.test(skip)) return;
    await begin({ after: showTime(BigInt(ns)), ns: BigInt(ns), skip: Number(skip) });
    state.textContent += " The list begins at the packet that is open.";
  }
  const button = known();
  if (!button) return;
  await toggle(button, false);
  button.scrollIntoView({ block: "center" });
}

// Shows that there are none, and why.
export function showNoPackets(why) {
  latest.begin();
  table.replaceChildren();
  more.hidden = true;
  state.textContent = why;
}

more.addEventListener("click", () => {
  if (busy) return;
  if (shown >= MOST) begin(next);
  else page(latest.begin());
});

new IntersectionObserver(([seen]) => {
  if (seen.isIntersecting && !more.hidden && !busy && shown < MOST) page(latest.begin());
}, { rootMargin: "200px" }).observe(more);

// Arrows lead from row to row.
table.addEventListener("keydown", (event) => {
  const step = { ArrowDown: 1, ArrowUp: -1, PageDown: 20, PageUp: -20 }[event.key];
  if (!step || !event.target.matches(".time")) return;
  const all = [...table.querySelectorAll(".time")];
  const at = all.indexOf(event.target) + step;
  event.preventDefault();
  all[Math.min(Math.max(at, 0), all.length - 1)].focus();
});
