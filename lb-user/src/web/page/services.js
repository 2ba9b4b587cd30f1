// Services: what listens, and how many of the backends behind it are up.

import { badIfAny, bitsPerSecond, line, number, perSecond, state, text, time } from "./columns.js";
import { eight } from "./networks.js";
import { NONE, bits, rate } from "./text.js";

const rateOf = (item, view) => view.rates?.services[item.name];

// 2: no backend is up; 1: not all are.
export function problemOf({ backends, backends_up: up, pools_down: down }) {
  if (up === null) return 0;
  if (up === 0) return 2;
  return up < backends || down.length > 0 ? 1 : 0;
}

function upOf(one) {
  const { backends, backends_up: up, pools_down: down } = one;
  if (up === null) return { words: NONE, tone: "zero", value: "", hint: "no control plane reports it" };
  const words = `${up}/${backends} up`;
  const tone = ["good", "warn", "bad"][problemOf(one)];
  if (down.length === 0) return { words, tone, value: `${up}/${backends}` };
  const hint = `all backends of ${down.join(", ")} fail, and answer: the service behind them is down`;
  return { words: `${words}, service down`, tone, value: `${up}/${backends}`, hint };
}

const columns = [
  text("name", "Service", (one) => one.name, { isName: true }),
  text("network", "Network", (one) => one.network),
  text("listen", "Listens on", (one) => one.listen),
  text("pools", "Pools", (one) => one.pools.join(", ")),
  state("up", "Backends", upOf, { hint: "backends that take new flows, of all" }),
  number("flows", "Flows", (one) => one.flows, { hint: "in full use: established connections, answered UDP flows" }),
  perSecond("new", "New", (one, view) => rateOf(one, view)?.flows),
  line("line_flows", "New flows", (one, view) => view.history.service(one.name)?.flows, rate),
  bitsPerSecond("bits_request", "Requests", (one, view) => eight(rateOf(one, view)?.bytes_request), {
    hint: "from clients",
  }),
  bitsPerSecond("bits_reply", "Replies", (one, view) => eight(rateOf(one, view)?.bytes_reply), {
    hint: "to clients",
  }),
  line("line_bits", "Bits", (one, view) => view.history.service(one.name)?.bits, bits),
  perSecond("failed", "Failed", (one, view) => rateOf(one, view)?.failed, {
    hint: "connections that no backend has answered, or that one has refused",
    tone: badIfAny,
  }),
  time("connect", "Connect", (one, view) => rateOf(one, view)?.connect_seconds, {
    hint: "how long backends took to answer, on average",
  }),
];

export const services = {
  id: "services",
  caption: "Services, a line for each address and port",
  columns,
  none: "No services.",
  rows: ({ overview, scope }) =>
    overview.services
      .filter((one) => scope.hasService(one.name) && scope.hasNetwork(one.network))
      .map((one) => ({ key: `${one.name} ${one.listen}`, item: one, problem: problemOf(one) })),
  search: (one) => `${one.name} ${one.network} ${one.listen} ${one.pools.join(" ")}`,
};
