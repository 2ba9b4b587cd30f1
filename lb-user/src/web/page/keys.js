// Keys: to the fields of the filter, to sections, and what the keys are.

import { byId } from "./dom.js";

const isField = (node) => node instanceof HTMLElement && node.matches("input:not([type=checkbox]), select, textarea");

function jump(number) {
  const heading = byId("sections").querySelector(`section[data-number="${number}"] > h2`);
  if (heading === null) return;
  heading.scrollIntoView({ block: "start" });
  heading.focus({ preventScroll: true });
}

// Listens to keys, for a filter.
export function listen(filter) {
  const help = byId("help");
  const actions = {
    "/": () => filter.text.focus(),
    n: () => filter.select.focus(),
    p: () => filter.toggleProblems(),
    "?": () => help.showModal(),
  };
  addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.altKey || event.metaKey || help.open || byId("login").open) return;
    if (event.key === "Escape") {
      filter.clear();
      if (isField(document.activeElement)) document.activeElement.blur();
      return;
    }
    if (isField(event.target)) return;
    const action = /^[1-8]$/.test(event.key) ? () => jump(event.key) : actions[event.key];
    if (action === undefined) return;
    event.preventDefault();
    action();
  });
  byId("keys").addEventListener("click", () => help.showModal());
  byId("help-close").addEventListener("click", () => help.close());
  byId("clear").addEventListener("click", () => filter.clear());
  byId("jumps").addEventListener("click", (event) => {
    const number = event.target.closest("button")?.dataset.number;
    if (number !== undefined) jump(number);
  });
}
