// Packets that leave the page: as a download, or by the question as a command for a terminal.

import { address, ask, token } from "./ask.js";
import { find, make } from "./page.js";

// Returns a word that a shell takes as it is.
export const quote = (text) =>
  /^[A-Za-z0-9_./:=@%+,-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`;

export function queryLine(directory, { filter, after, before }) {
  const words = ["tapdeck", "query", "--dir", quote(directory)];
  if (filter) words.push(quote(filter));
  if (after) words.push("--after", quote(after));
  if (before) words.push("--before", quote(before));
  return words.join(" ");
}

export function wiresharkLine(question) {
  const words = ["curl", "-fsS"];
  if (token.get()) words.push("-H", '"Authorization: Bearer $TOKEN"');
  else if (location.protocol === "https:") words.push("--cert you.pem --key you.key");
  words.push(quote(address("packets", question)), "|", "wireshark", "-k", "-i", "-");
  return words.join(" ");
}

// Has what a link leads to downloaded with a token, which a link cannot show: through the page's
// memory.
export async function download(event, path, parameters, trouble) {
  if (!token.get()) return;
  event.preventDefault();
  const link = event.currentTarget;
  const text = link.textContent;
  link.textContent = "Downloading …";
  try {
    const answer = await ask(path, parameters, { accept: "application/x-pcapng" });
    const url = URL.createObjectURL(await answer.blob());
    make("a", { href: url, download: link.download }).click();
    setTimeout(() => URL.revokeObjectURL(url), 60_000);
  } catch (error) {
    trouble(error);
  } finally {
    link.textContent = text;
  }
}

// Shows a command, and puts it on the clipboard where the browser allows that.
export async function copy(line) {
  const [state, text] = [find("#copied p"), find("#copied pre")];
  text.textContent = line;
  find("#copied").hidden = false;
  try {
    await navigator.clipboard.writeText(line);
    state.textContent = "Copied:";
  } catch {
    getSelection().selectAllChildren(text);
    state.textContent = "To be copied by hand:";
  }
}
