// What is chosen to be shown: a network, words, problems only. It stands in the fragment of the address, so that a link has it.

import { byId } from "./dom.js";
import { escaped } from "./text.js";

// The choice that a fragment has.
export function parse(fragment) {
  const fields = new URLSearchParams(fragment.replace(/^#/, ""));
  return {
    network: fields.get("network") || null,
    query: fields.get("q") ?? "",
    problems: fields.has("problems"),
  };
}

// The fragment of a choice.
export function format({ network, query, problems }) {
  const parts = [];
  if (network !== null) parts.push(`network=${encodeURIComponent(network)}`);
  if (query !== "") parts.push(`q=${encodeURIComponent(query)}`);
  if (problems) parts.push("problems");
  return parts.length === 0 ? "" : `#${parts.join("&")}`;
}

// The words of a query, in lower case; a row is shown if it has all.
export function words(query) {
  return query.toLowerCase().split(/\s+/).filter((word) => word !== "");
}

// The choice with its fields of the page; `changed` is called when it is another one.
export class Filter {
  constructor(changed) {
    this.select = byId("network");
    this.text = byId("query");
    this.box = byId("problems");
    this.changed = changed;
    this.#read();
    this.select.addEventListener("change", () => this.#write());
    this.text.addEventListener("input", () => this.#write());
    this.box.addEventListener("change", () => this.#write());
    addEventListener("hashchange", () => {
      this.#read();
      this.changed();
    });
  }

  // Offers the networks that there are, and the chosen one even if it is not.
  offer(networks) {
    const names = networks.map((one) => one.name);
    const { network } = this.choice;
    if (network !== null && !names.includes(network)) names.push(network);
    const options = [...this.select.options].slice(1);
    if (options.length === names.length && names.every((name, at) => options[at].value === name)) return;
    for (const option of options) option.remove();
    for (const name of names) this.select.add(new Option(escaped(name), name));
    this.select.value = network ?? "";
  }

  clear() {
    this.select.value = "";
    this.text.value = "";
    this.box.checked = false;
    this.#write();
  }

  toggleProblems() {
    this.box.checked = !this.box.checked;
    this.#write();
  }

  #read() {
    this.choice = parse(location.hash);
    const { network, query, problems } = this.choice;
    if (network !== null && ![...this.select.options].some((option) => option.value === network)) {
      this.select.add(new Option(escaped(network), network));
    }
    this.select.value = network ?? "";
    this.text.value = query;
    this.box.checked = problems;
  }

  #write() {
    this.choice = {
      network: this.select.value === "" ? null : this.select.value,
      query: this.text.value,
      problems: this.box.checked,
    };
    history.replaceState(null, "", format(this.choice) || location.pathname);
    this.changed();
  }
}
