// Networks: what they are attached to, and what their clients do.

import { bitsPerSecond, line, number, perSecond, share, state, text, warnIfAny } from "./columns.js";
import { bits, duration, rate } from "./text.js";
import { servedFrom } from "./scope.js";

const rateOf = (item, view) => view.rates?.networks[item.name];

export const eight = (bytes) => (bytes === undefined ? null : 8 * bytes);

// 2: it carries nothing; 1: something is as it should not be.
export function problemOf({ carrier, mode, stopped, peer_without_program: lacksProgram }) {
  if (!carrier || stopped || mode === "missing" || mode === "detached") return 2;
  return mode === "elsewhere" || lacksProgram ? 1 : 0;
}

function modeOf({ mode, stopped, peer_without_program: lacksProgram }) {
  if (stopped) return { words: `${mode}, stopped`, tone: "bad", value: mode };
  if (mode === "missing" || mode === "detached") return { words: mode, tone: "bad" };
  if (lacksProgram) {
    const hint = "the other end of this veth has no XDP program: what leaves by the NIC that it came in by may be lost";
    return { words: `${mode}, peer without program`, tone: "warn", value: mode, hint };
  }
  return { words: mode, tone: mode === "native" ? "good" : mode === "elsewhere" ? "warn" : "calm" };
}

// Backends whose next hop does not answer, of the pools that only this network has; or none if that is not known.
function unreachable({ name }, view) {
  return view.unreachable.get(name) ?? null;
}

// Unreachable backends by the network that they are in, as far as the networks that are served from it tell.
export function unreachableByNetwork({ status, services, backends }) {
  const poolNetwork = new Map();
  for (const { name } of status.networks) {
    const served = new Set(servedFrom(status.networks, name));
    for (const { network, pools } of services) {
      if (served.has(network)) for (const pool of pools) poolNetwork.set(pool, name);
    }
  }
  const counts = new Map([...poolNetwork.values()].map((name) => [name, 0]));
  for (const { pool, state: words } of backends) {
    const network = poolNetwork.get(pool);
    if (network !== undefined && words.includes("unreachable")) counts.set(network, counts.get(network) + 1);
  }
  return counts;
}

function halfOpen({ half_open: ring }) {
  const hint = `${ring.places} places, taken ${ring.taken} times`;
  const seconds = ring.lifetime_seconds;
  if (seconds === null) return { words: "room", tone: "calm", value: "", hint };
  return { words: `full, ${duration(seconds)}`, tone: seconds < 1 ? "warn" : "calm", value: seconds, hint };
}

const columns = [
  text("name", "Network", (one) => one.name, { isName: true }),
  text("role", "Role", (one) => one.role),
  text("interface", "Interface", (one) => one.interface),
  text("vlan", "VLAN", (one) => one.vlan),
  state("carrier", "Carrier", ({ carrier }) => ({
    words: carrier ? "yes" : "no carrier",
    tone: carrier ? "good" : "bad",
    value: carrier,
  })),
  state("mode", "XDP", modeOf),
  number("flows", "Flows", (one) => one.flows, { hint: "in full use: established connections, answered UDP flows" }),
  number("max_flows", "Max", (one) => one.max_flows, { hint: "the most that they may have at a time" }),
  perSecond("new", "New", (one, view) => rateOf(one, view)?.flows),
  line("line_flows", "New flows", (one, view) => view.history.network(one.name)?.flows, rate),
  bitsPerSecond("bits_request", "Requests", (one, view) => eight(rateOf(one, view)?.bytes_request), {
    hint: "from clients",
  }),
  bitsPerSecond("bits_reply", "Replies", (one, view) => eight(rateOf(one, view)?.bytes_reply), {
    hint: "to clients",
  }),
  line("line_bits", "Bits", (one, view) => view.history.network(one.name)?.bits, bits),
  perSecond("dropped", "Dropped", (one, view) => rateOf(one, view)?.dropped, { tone: warnIfAny }),
  number("unreachable", "Unreachable", unreachable, {
    hint: "backends whose next hop does not answer",
    tone: warnIfAny,
  }),
  state("half_open", "Half-open", halfOpen, {
    hint: "whether the ring of half-open flows has room; if it has none, how long a half-open flow is kept",
  }),
];

const shareColumns = [
  text("network", "Network", ([name]) => name, { isName: true }),
  number("descriptors", "Sockets", ([, use]) => use.descriptors),
  number("flow_ports", "Flow ports", ([, use]) => use.flow_ports, {
    hint: "ports of flows that sockets have, or had a moment ago",
  }),
  number("leg_ports", "Leg ports", ([, use]) => use.leg_ports, {
    hint: "ports of connections that are never handed over",
  }),
];

const quotaColumns = [
  text("network", "Clients", ({ network }) => network, { isName: true }),
  text("backends", "Backends", ({ quota }) => quota.backends),
  text("family", "Family", ({ quota }) => (quota.ipv6 ? "IPv6" : "IPv4")),
  number("flows", "Flows", ({ quota }) => quota.flows),
  number("most", "Most", ({ quota }) => quota.most, { hint: "the most that there may be at a time" }),
  number("ports", "Ports", ({ quota }) => quota.ports, { hint: "for all networks together" }),
  number("networks", "Networks", ({ quota }) => quota.networks, { hint: "that share the ports" }),
  share("used", "Used", ({ quota }) => partOf(quota) * 100),
];

// The part of what a network may have that it has.
function partOf({ flows, most, ports }) {
  const limit = Math.min(most ?? ports, ports);
  return limit === 0 ? 0 : flows / limit;
}

export const networks = {
  id: "networks",
  caption: "Networks",
  columns,
  none: "No networks.",
  rows: ({ overview, scope }) =>
    overview.status.networks
      .filter((one) => scope.hasNetwork(one.name))
      .map((one) => ({ key: one.name, item: one, problem: problemOf(one) })),
  search: (one) => `${one.name} ${one.role} ${one.interface} ${one.vlan ?? ""} ${one.mode}`,
};

export const shares = {
  id: "shares",
  caption: "What shared VIPs divide among networks",
  columns: shareColumns,
  none: "",
  rows: ({ overview, scope }) =>
    Object.entries(overview.status.divided)
      .filter(([name]) => scope.hasNetwork(name))
      .map((entry) => ({ key: entry[0], item: entry, problem: 0 })),
  search: ([name]) => name,
};

export const quotas = {
  id: "quotas",
  caption: "What each network has of the SNAT ports of others",
  columns: quotaColumns,
  none: "",
  rows: ({ overview, scope }) =>
    overview.status.networks.flatMap(({ name: network, quotas: all }) =>
      all
        .filter((quota) => scope.hasNetwork(network) || quota.backends === scope.network)
        .map((quota) => ({
          key: `${network} ${quota.backends} ${quota.ipv6 ? "IPv6" : "IPv4"}`,
          item: { network, quota },
          problem: partOf(quota) >= 0.9 ? 1 : 0,
        })),
    ),
  search: ({ network, quota }) => `${network} ${quota.backends}`,
};
