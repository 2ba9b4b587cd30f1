// The overviews that come from v1/live, one after the other; and another try, a while after each end.

const FIRST_RETRY_MS = 1000;
const MAX_RETRY_MS = 10000;
const TOKEN = "lb-token";

// Lines of a stream of events, whatever pieces they come in; a line may be megabytes long.
export class EventLines {
  #pieces = [];
  #kind = "";
  #data = [];

  constructor(receive) {
    this.receive = receive;
  }

  // Takes a piece of text.
  push(text) {
    let start = 0;
    for (let end = text.indexOf("\n"); end >= 0; end = text.indexOf("\n", start)) {
      this.#pieces.push(text.slice(start, end));
      this.#line(this.#pieces.join(""));
      this.#pieces = [];
      start = end + 1;
    }
    if (start < text.length) this.#pieces.push(text.slice(start));
  }

  #line(line) {
    if (line.endsWith("\r")) line = line.slice(0, -1);
    if (line.startsWith("event:")) this.#kind = line.slice(6).trim();
    else if (line.startsWith("data:")) this.#data.push(line.slice(5).trimStart());
    else if (line === "") {
      if (this.#data.length > 0) this.receive(this.#kind, this.#data.join("\n"));
      this.#kind = "";
      this.#data = [];
    }
  }
}

// The connection: `events.overview(object)`, `events.state(name, words)` and `events.token(isWrong)` are called.
export class Live {
  #events;
  #retry = FIRST_RETRY_MS;
  #timer = 0;

  constructor(events) {
    this.#events = events;
  }

  // Begins, or begins again with another token.
  start() {
    clearTimeout(this.#timer);
    const end = new AbortController();
    this.#connect(end.signal)
      .catch((error) => this.#again("lost", `connection lost: ${error.message}`))
      .finally(() => end.abort());
  }

  // Keeps a token for this tab, and tries it.
  useToken(token) {
    sessionStorage.setItem(TOKEN, token);
    this.#retry = FIRST_RETRY_MS;
    this.start();
  }

  async #connect(signal) {
    const token = sessionStorage.getItem(TOKEN);
    const headers = token === null ? {} : { Authorization: `Bearer ${token}` };
    const answer = await fetch("v1/live", { headers, signal, cache: "no-store" });
    if (answer.status === 401) {
      sessionStorage.removeItem(TOKEN);
      this.#events.state("token", "a token is needed");
      this.#events.token(token !== null);
      return;
    }
    if (answer.status === 503) {
      this.#again("busy", "too many pages are open");
      return;
    }
    if (!answer.ok) {
      this.#again("lost", `the server answers ${answer.status} ${answer.statusText}`.trim());
      return;
    }
    this.#events.state("live", "live");
    const lines = new EventLines((kind, data) => this.#receive(kind, data));
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    for (;;) {
      const { done, value } = await reader.read();
      if (done) break;
      lines.push(value);
    }
    this.#again("lost", "the stream has ended");
  }

  #receive(kind, data) {
    if (kind !== "overview") return;
    const overview = JSON.parse(data);
    if (overview.version !== 1) {
      throw new Error(`version ${overview.version} of overviews is not known: load this page again`);
    }
    this.#retry = FIRST_RETRY_MS;
    this.#events.overview(overview);
  }

  #again(state, words) {
    const pause = this.#retry;
    this.#retry = Math.min(MAX_RETRY_MS, pause * 1.6);
    this.#events.state(state, `${words}; next try in ${Math.round(pause / 1000)} s`);
    this.#timer = setTimeout(() => this.start(), pause);
  }
}
