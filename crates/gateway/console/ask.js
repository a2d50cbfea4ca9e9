// Questions to the gateway. Who asks is shown by a certificate or by the listener, which the
// browser sees to, or by a token, which lies in this tab's session alone.

const KEY = "tapdeck-token";

export const token = {
  get: () => sessionStorage.getItem(KEY) ?? "",
  set: (text) => (text ? sessionStorage.setItem(KEY, text) : sessionStorage.removeItem(KEY)),
};

// An answer that is none.
export class Refused extends Error {
  constructor(status, text) {
    super(text);
    this.status = status;
  }
}

// Returns the address of a question. Parameters that are empty are left out.
export function address(path, parameters = {}) {
  const url = new URL(`../v1/${path}`, document.baseURI);
  for (const [name, value] of Object.entries(parameters)) {
    if (value !== undefined && value !== null && value !== "") url.searchParams.set(name, value);
  }
  return url.href;
}

export async function ask(path, parameters, { signal, accept = "application/json", method = "GET", json } = {}) {
  const headers = { Accept: accept };
  if (json) headers["Content-Type"] = "application/json";
  if (token.get()) headers.Authorization = `Bearer ${token.get()}`;
  let answer;
  try {
    const how = {
      method, headers, signal, body: json && JSON.stringify(json),
      cache: "no-store", redirect: "error", referrerPolicy: "no-referrer",
    };
    answer = await fetch(address(path, parameters), how);
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new Refused(0, "The gateway does not answer.");
  }
  if (!answer.ok) throw new Refused(answer.status, (await answer.text()).trim() || answer.statusText);
  return answer;
}

export const askJson = async (...question) => (await ask(...question)).json();

// Calls `each` with every event that the gateway sends, until the signal ends that.
export async function watch(path, parameters, each, signal) {
  const answer = await ask(path, parameters, { signal, accept: "text/event-stream" });
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const events = (rest + value).split("\n\n");
    rest = events.pop();
    for (const event of events) {
      if (event.startsWith("data: ")) each(JSON.parse(event.slice(6)));
    }
  }
}

// Questions of one kind, of which the last alone counts: one that begins ends the one before.
export class Latest {
  #controller = new AbortController();

  begin() {
    this.#controller.abort();
    this.#controller = new AbortController();
    return this.#controller.signal;
  }
}
