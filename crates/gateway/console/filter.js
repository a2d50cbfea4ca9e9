// Says while a filter is typed whether it compiles, and what it means.

import { Latest, askJson } from "./ask.js";
import { find, make, visible } from "./page.js";

// How long nobody types before the gateway is asked, in milliseconds.
const PAUSE = 250;

const field = find("#filter");
const meaning = find("#meaning");
const latest = new Latest();
let timer;

function show(state, ...lines) {
  field.setAttribute("aria-invalid", state === "bad");
  meaning.className = state;
  meaning.replaceChildren(...lines.map(([mark, text]) =>
    make("span", {}, make("b", {}, mark), ` ${visible(text)}`)));
}

async function tell() {
  const text = field.value.trim();
  const signal = latest.begin();
  if (!text) {
    show("", ["No filter:", "every packet of the span."]);
    return true;
  }
  try {
    const told = await askJson("filter", { filter: text }, { signal });
    if (!told.compiles) {
      show("bad", ["✗ Does not compile:", told.why]);
      return false;
    }
    const means = told.means ?? "the form is not known here, and libpcap takes it";
    const looked = told.looked_for === "anything" ? "each packet of the span is read" : told.looked_for;
    show("good", ["✓ Compiles:", means], ["Looked for by the index:", looked]);
    return true;
  } catch (error) {
    if (signal.aborted) return null;
    show("bad", ["✗", error.message]);
    return false;
  }
}

// Tells of the filter that is there. Returns whether it can be asked for; null if it has changed
// meanwhile.
export function check() {
  clearTimeout(timer);
  return tell();
}

field.addEventListener("input", () => {
  clearTimeout(timer);
  timer = setTimeout(tell, PAUSE);
});
