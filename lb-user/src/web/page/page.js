// The page of an instance: takes overviews as they come, and shows what the filter leaves of the latest.

import { backends } from "./backends.js";
import { byId, element, setText } from "./dom.js";
import { events } from "./events.js";
import { Filter, words } from "./filter.js";
import { renderHead, renderLink } from "./head.js";
import { History } from "./history.js";
import { listen } from "./keys.js";
import { networks, quotas, shares, unreachableByNetwork } from "./networks.js";
import { drops, names, refusals, shared, verdicts } from "./refusals.js";
import { Scope } from "./scope.js";
import { services } from "./services.js";
import { snat } from "./snat.js";
import { Live } from "./stream.js";
import { Table, counts } from "./table.js";
import { duration } from "./text.js";

// Sections in their order, with their tables; the heading counts the rows of the first.
const SECTIONS = [
  ["networks", [networks]],
  ["services", [services]],
  ["backends", [backends]],
  ["shared", [shared, shares]],
  ["names", [names]],
  ["drops", [drops, verdicts]],
  ["events", [events]],
  ["snat", [snat, quotas]],
];
// Without an overview for so long, or for so many times what lay between the last two, the values are old.
const SILENT_MS = 3500;
const SILENT_INTERVALS = 3;
const CLOCK_INTERVAL_MS = 500;
// A shared VIP is one with problems so long after a refusal.
const RISING_MS = 60000;

class Page {
  #overview = null;
  #history = new History();
  #filter = new Filter(() => this.#draw());
  #link = { name: "waiting", words: "waiting for data" };
  #received = 0;
  #interval = 0;
  #isDrawing = false;
  #refusals = new Map();
  #rising = new Map();

  constructor() {
    const changed = () => this.#draw();
    this.sections = SECTIONS.map(([id, definitions]) => {
      const section = byId(id);
      const tables = definitions.map((definition) => new Table(section, { ...definition, changed }));
      return { count: section.querySelector(".count"), tables, badge: byId(`badge-${id}`) };
    });
    listen(this.#filter);
    this.live = new Live({
      overview: (overview) => this.#receive(overview),
      state: (name, text) => this.#setLink(name, text),
      token: (isWrong) => this.#askForToken(isWrong),
    });
    byId("login-form").addEventListener("submit", (event) => {
      event.preventDefault();
      byId("login").close();
      this.live.useToken(byId("token").value.trim());
      byId("token").value = "";
    });
    byId("login").addEventListener("cancel", (event) => event.preventDefault());
    setInterval(() => this.#showLink(), CLOCK_INTERVAL_MS);
    this.live.start();
  }

  #receive(overview) {
    const now = performance.now();
    this.#interval = this.#received === 0 ? 0 : now - this.#received;
    this.#received = now;
    this.#overview = overview;
    if (overview.rates !== null) this.#history.push(overview.rates);
    const totals = refusals(overview);
    for (const [name, total] of totals) {
      if (total > (this.#refusals.get(name) ?? total)) this.#rising.set(name, now);
    }
    this.#refusals = totals;
    for (const [name, since] of this.#rising) {
      if (now - since > RISING_MS) this.#rising.delete(name);
    }
    this.#draw();
  }

  // Draws at the next frame; a page that is not seen has none, and draws the latest when it is.
  #draw() {
    if (this.#isDrawing || this.#overview === null) return;
    this.#isDrawing = true;
    requestAnimationFrame(() => {
      this.#isDrawing = false;
      this.#render(this.#overview);
    });
  }

  #render(overview) {
    this.#filter.offer(overview.status.networks);
    const { network, query, problems } = this.#filter.choice;
    const view = {
      overview,
      rates: overview.rates,
      history: this.#history,
      rising: this.#rising,
      unreachable: unreachableByNetwork(overview),
      scope: new Scope(overview, network),
      words: words(query),
      problems,
    };
    renderHead(overview);
    this.#showLink();
    for (const { count, tables, badge } of this.sections) {
      const [first] = tables.map((table) => table.render(view));
      setText(count, counts(first));
      setText(badge, first.problems > 0 ? `▲${first.problems}` : "");
    }
    document.documentElement.classList.add("has-data");
  }

  #setLink(name, text) {
    this.#link = { name, words: text };
    this.#showLink();
  }

  // The connection's state, or how long nothing has come.
  #showLink() {
    const { name, words: text } = this.#link;
    const since = performance.now() - this.#received;
    const isSilent = this.#received > 0 && since > Math.max(SILENT_MS, SILENT_INTERVALS * this.#interval);
    const silence = isSilent ? `no data for ${duration(Math.floor(since / 1000))}` : "";
    if (name === "live") {
      if (isSilent) renderLink("silent", silence);
      else if (this.#received === 0) renderLink("waiting", "waiting for data");
      else renderLink("live", "live");
    } else renderLink(name, isSilent ? `${silence}: ${text}` : text);
  }

  #askForToken(isWrong) {
    setText(byId("login-words"), isWrong ? "That is not the token." : "This instance asks for its token.");
    if (!byId("login").open) byId("login").showModal();
    byId("token").focus();
  }
}

for (const [at, [id]] of SECTIONS.entries()) {
  const title = byId(id).querySelector("h2").firstChild.textContent;
  const key = element("kbd", { "aria-hidden": "true" }, String(at + 1));
  const badge = element("span", { id: `badge-${id}`, class: "badge" });
  byId("jumps").append(element("button", { type: "button", "data-number": at + 1 }, key, title.trim(), badge));
}
new Page();
