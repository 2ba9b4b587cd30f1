// SNAT addresses: how many of their ports flows have.

import { bar, number, state, text } from "./columns.js";

const part = ({ flows }) => (flows.capacity === 0 ? 0 : 1 - flows.free / flows.capacity);

const columns = [
  text("address", "Address", (one) => one.address, { isName: true }),
  text("network", "Network", (one) => one.network),
  text("ports", "Ports", (one) => `${one.first_port}–${one.last_port}`),
  state("state", "State", ({ draining, peer }) => ({
    words: draining ? "finishes flows" : peer ? "of the other box" : "in use",
    tone: draining ? "warn" : "good",
    value: draining,
  })),
  number("live", "Live", (one) => one.flows.live, { hint: "ports of flows" }),
  number("free", "Free", (one) => one.flows.free, {
    hint: "ports that a new flow may take",
    tone: (free, one) => (one.flows.capacity > 0 && free < one.flows.capacity / 10 ? "bad" : undefined),
  }),
  number("capacity", "Of", (one) => one.flows.capacity),
  bar("bar", "Taken", part),
];

export const snat = {
  id: "snat",
  caption: "SNAT addresses",
  columns,
  none: "No SNAT addresses.",
  rows: ({ overview, scope }) =>
    overview.status.snat
      .filter((one) => scope.hasSnatOf(one.network))
      .map((one) => ({
        key: one.address,
        item: one,
        problem: one.flows.capacity > 0 && !one.peer && part(one) > 0.9 ? 2 : one.draining ? 1 : 0,
      })),
  search: (one) => `${one.address} ${one.network}`,
};
