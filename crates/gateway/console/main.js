// The page: what is asked stands in the address behind `#`, so that a view can be sent, and
// everything that is shown follows from it.

import { Latest, Refused, address, askJson, token, watch } from "./ask.js";
import { onChoice, select, showChart, showNoChart } from "./chart.js";
import { copy, download, queryLine, wiresharkLine } from "./copy.js";
import { check } from "./filter.js";
import { showHosts, showNoHosts } from "./hosts.js";
import { showNoPackets, showPackets } from "./packets.js";
import { showPins } from "./pins.js";
import { bytes, count, draw, find, make, readTime, showTime, visible } from "./page.js";

// Bars of the histogram.
const PARTS = 240;
// Seconds of rates that are drawn.
const RATES = 60;
// How long it takes until the gateway is asked for rates again, in milliseconds.
const AGAIN = 5000;

const KEYS = ["store", "from", "to", "after", "before", "filter", "measure", "open"];

let known = { user: "", stores: [], filter: "" };
let state = {};
let picture = null;
const charts = new Latest();
const rates = new Latest();

function readState() {
  const told = new URLSearchParams(location.hash.slice(1));
  state = Object.fromEntries(KEYS.map((key) => [key, told.get(key) ?? ""]));
  for (const key of ["from", "to", "after", "before"]) {
    if (readTime(state[key]) === null) state[key] = "";
  }
}

// Changes the state, and the address with it.
function change(changes, how = "pushState") {
  Object.assign(state, changes);
  const told = new URLSearchParams(KEYS.filter((key) => state[key]).map((key) => [key, state[key]]));
  history[how](null, "", `#${told}`);
}

function trouble(error) {
  const place = find("#trouble");
  place.hidden = !error;
  place.textContent = error ? visible(error.message) : "";
}

const store = () => known.stores.find(({ name }) => name === state.store) ?? known.stores[0];

const question = () => ({
  store: store().name, filter: state.filter, after: state.after, before: state.before,
});

const time = (text) => (text ? readTime(text) : null);

// Returns the filter and the span that are shown, as far as they are told; where no span is chosen,
// that of the chart.
function pinnable() {
  const { filter, after, before } = state;
  return { filter, after: after || state.from, before: before || state.to };
}

// What is told of all packets is refused to who may see some of them only.
const OF_ALL = "your role has a filter, and this is told of all packets.";

async function loadChart() {
  const signal = charts.begin();
  if (known.filter) return showNoChart(`No histogram: ${OF_ALL}`);
  const asked = { store: store().name, after: state.from, before: state.to };
  try {
    const histogram = await askJson("histogram", { ...asked, parts: PARTS }, { signal });
    picture = { histogram, losses: { gaps: [], gaps_omitted: 0, lost: 0, unseen: 0, shed_packets: 0 } };
    drawChart();
    picture.losses = await askJson("losses", asked, { signal });
    drawChart();
  } catch (error) {
    if (signal.aborted) return;
    picture = null;
    showNoChart(error instanceof Refused ? `No histogram: ${visible(error.message)}.` : String(error));
  }
}

function drawChart() {
  if (!picture) return;
  const view = [time(state.from), time(state.to)];
  showChart(picture.histogram, picture.losses, view, state.measure, readTime);
  select(time(state.after), time(state.before));
}

async function loadAnswer() {
  const asked = question();
  if (await check() === false) return showNoPackets("The filter cannot be asked for.");
  const opens = (open) => change({ open }, "replaceState");
  // The packets come first: the gateway answers few questions of a user at once.
  const packets = showPackets(asked, state.open, opens);
  if (known.filter) showNoHosts(`No hosts: ${OF_ALL}`);
  else {
    showHosts(asked, (part) => {
      find("#filter").value = state.filter ? `(${state.filter}) and ${part}` : part;
      submit();
    });
  }
  return packets;
}

function showState() {
  find("#store").value = store().name;
  for (const key of ["after", "before", "filter"]) find(`#${key}`).value = state[key];
  for (const radio of document.querySelectorAll("[name=measure]")) {
    radio.checked = radio.value === (state.measure || "packets");
  }
  find("#copied").hidden = true;
  find("#zoom").disabled = !state.after && !state.before;
  find("#whole").disabled = !(state.from || state.to || state.after || state.before);
  const link = find("#download");
  link.href = address("packets", question());
  link.download = `${store().name}.pcapng`.replace(/[^A-Za-z0-9._-]/g, "_");
  document.title = `${visible(store().name)} – tapdeck`;
}

async function load() {
  showState();
  showPins(store().name, known.may_pin, pinnable);
  const chart = loadChart();
  select(time(state.after), time(state.before));
  await Promise.all([chart, loadAnswer()]);
}

// Asks anew for what depends on the span and the filter.
function askAgain() {
  showState();
  select(time(state.after), time(state.before));
  loadAnswer();
}

async function submit() {
  // One that does not compile is told beside the field, and the view stays what it is.
  if (await check() === false) return;
  const changes = { filter: find("#filter").value.trim(), open: "" };
  for (const key of ["after", "before"]) {
    const field = find(`#${key}`);
    const ns = field.value.trim() ? readTime(field.value) : undefined;
    field.setAttribute("aria-invalid", ns === null);
    if (ns === null) {
      trouble(new Error(`${field.value}: write a time as 2026-01-02T03:04:05Z`));
      return;
    }
    changes[key] = ns === undefined ? "" : showTime(ns);
  }
  trouble(null);
  change(changes);
  askAgain();
}

function showRate(events) {
  const event = events.at(-1);
  const told = find("#rates");
  if (event.seen_packets_per_s === undefined) {
    told.textContent = event.error ? `no recorder answers: ${visible(event.error)}` : "…";
    return;
  }
  const words = [`${count(Math.round(event.captured_packets_per_s))} packets/s`,
    `${bytes(event.captured_bytes_per_s)}/s`];
  for (const kind of ["dropped", "unseen"]) {
    const rate = Math.round(event[`${kind}_packets_per_s`]);
    words.push(`${rate ? "▼ " : ""}${count(rate)} ${kind === "dropped" ? "lost" : kind}/s`);
  }
  told.textContent = words.join(" · ");
  const values = events.map((event) => event.captured_packets_per_s ?? 0);
  const most = Math.max(...values, 1);
  const points = values.map((value, i) => `${(i + RATES - values.length) * 120 / (RATES - 1)},${23 - value / most * 22}`);
  find("#spark").replaceChildren(draw("polyline", { points: points.join(" ") }));
}

async function live() {
  const signal = rates.begin();
  find("#live").hidden = false;
  const events = [];
  while (!signal.aborted) {
    try {
      await watch("watch", { store: store().name }, (event) => {
        events.push(event);
        events.splice(0, events.length - RATES);
        showRate(events);
      }, signal);
    } catch (error) {
      if (signal.aborted) return;
      find("#rates").textContent = visible(error.message);
      // Who may not know, or is not known, does not become so by asking.
      if ([401, 403, 404].includes(error.status)) return;
    }
    await new Promise((done) => setTimeout(done, AGAIN));
  }
}

// Takes a token out of the address that `tapdeck-gateway --store` has printed. A link of somebody
// else's changes no token that is there.
function takeToken() {
  const told = new URLSearchParams(location.hash.slice(1));
  const given = told.get("token");
  if (!given) return;
  if (!token.get()) token.set(given);
  told.delete("token");
  history.replaceState(null, "", `#${told}`);
}

async function start() {
  takeToken();
  trouble(null);
  try {
    known = await askJson("stores");
  } catch (error) {
    find("#view").hidden = true;
    find("#login").hidden = error.status !== 401;
    if (error.status === 401 && !token.get()) find("#token").focus();
    else trouble(error.status === 401 ? new Error("The gateway does not know this token.") : error);
    return;
  }
  find("#login").hidden = true;
  find("#forget").hidden = !token.get();
  find("#user").textContent = `${visible(known.user)}${known.filter ? `, who sees ${visible(known.filter)}` : ""}`;
  if (!known.stores.length) return trouble(new Error("There is no store for you."));
  find("#store").replaceChildren(...known.stores.map(({ name }) =>
    make("option", { value: name }, visible(name))));
  find("#store-field").hidden = false;
  find("#view").hidden = false;
  readState();
  if (!known.filter) live();
  await load();
}

onChoice((after, before) => {
  const text = (ns) => (ns === null ? "" : showTime(ns));
  change({ after: text(after), before: text(before), open: "" });
  askAgain();
});

find("#question").addEventListener("submit", (event) => {
  event.preventDefault();
  submit();
});
find("#login").addEventListener("submit", (event) => {
  event.preventDefault();
  token.set(find("#token").value.trim());
  find("#token").value = "";
  start();
});
find("#forget").addEventListener("click", () => {
  token.set("");
  location.reload();
});
find("#store").addEventListener("change", (event) => {
  change({ store: event.target.value, from: "", to: "", after: "", before: "", open: "" });
  if (!known.filter) live();
  load();
});
for (const radio of document.querySelectorAll("[name=measure]")) {
  radio.addEventListener("change", () => {
    change({ measure: radio.value === "bytes" ? "bytes" : "" }, "replaceState");
    drawChart();
  });
}
find("#zoom").addEventListener("click", () => {
  change({ from: state.after, to: state.before });
  showState();
  loadChart();
});
find("#whole").addEventListener("click", () => {
  change({ from: "", to: "", after: "", before: "", open: "" });
  load();
});
find("#refresh").addEventListener("click", load);
find("#download").addEventListener("click", (event) => download(event, "packets", question(), trouble));
find("#copy-query").addEventListener("click", () => copy(queryLine(store().directory, question())));
find("#copy-wireshark").addEventListener("click", () => copy(wiresharkLine(question())));
addEventListener("popstate", () => {
  readState();
  if (known.stores.length) load();
});

start();
