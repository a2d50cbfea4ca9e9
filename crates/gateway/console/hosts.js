// The most common hosts and ports of the span, as the indexes tell them.

import { Latest, askJson } from "./ask.js";
import { find, make, visible } from "./page.js";

// How many of each are shown.
const SHOWN = 15;

const place = find("#hosts");
const state = find("#hosts-state");
const latest = new Latest();

const percent = (share) => `${(share * 100).toFixed(share < 0.0995 ? 1 : 0)} %`;

function table(title, word, list, choose) {
  const row = ({ name, share }) => {
    const bar = make("span", { class: "share", "aria-hidden": "true" });
    bar.style.width = `${Math.max(share * 100, 1)}%`;
    const button = make("button", {
      type: "button", class: "link", title: `Add ${word} ${visible(name)} to the filter`,
      click: () => choose(`${word} ${name}`),
    }, visible(name));
    return make("tr", {}, make("th", { scope: "row" }, button, bar), make("td", {}, percent(share)));
  };
  const head = ["Share of the recording"].map((text) => make("th", { scope: "col" }, text));
  return make("table", {},
    make("thead", {}, make("tr", {}, make("th", { scope: "col" }, title), ...head)),
    make("tbody", {}, ...list.slice(0, SHOWN).map(row)));
}

// Shows hosts and ports of a question's span. `choose` gets a filter when one is chosen.
export async function showHosts(question, choose) {
  const signal = latest.begin();
  state.textContent = "Asking …";
  try {
    const { store, after, before } = question;
    const told = await askJson("hosts", { store, after, before }, { signal });
    const notes = [];
    if (told.segments_not_indexed) notes.push(`${told.segments_not_indexed} segments are not indexed.`);
    if (!told.hosts.length) notes.push("No hosts.");
    state.textContent = [...notes, ...told.faults.map(visible)].join(" ");
    place.replaceChildren(
      table("Host", "host", told.hosts, choose), table("Port", "port", told.ports, choose));
  } catch (error) {
    if (!signal.aborted) showNoHosts(error.message);
  }
}

// Shows that there are none, and why.
export function showNoHosts(why) {
  latest.begin();
  place.replaceChildren();
  state.textContent = why;
}
