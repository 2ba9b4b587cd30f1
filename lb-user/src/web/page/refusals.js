// What was not carried: refusals of shared VIPs, the names of them, and dropped packets.

import { age, number, perSecond, share, text, warnIfAny } from "./columns.js";
import { ago, count, exact } from "./text.js";

// How long ago a refusal may be to be one of now, in seconds.
const RECENT_SECONDS = 60;

const sum = (counts) => Object.values(counts).reduce((all, one) => all + one, 0);

// Counts by their reason, as `no_route 12, timeout 3`.
function reasons(key, title, get) {
  const cell = ([, stats]) => {
    const entries = Object.entries(get(stats));
    const words = entries.map(([reason, many]) => `${reason} ${count(many)}`).join(", ");
    const exactly = entries.map(([reason, many]) => `${reason} ${exact(many)}`).join(", ");
    const value = entries.map(([reason, many]) => `${reason}=${many}`).join(" ");
    return { text: words || "–", value, title: exactly, tone: words === "" ? "zero" : undefined };
  };
  return { key, title, get: ([, stats]) => sum(get(stats)), cell };
}

const sharedColumns = [
  text("service", "Service", ([name]) => name, { isName: true }),
  number("bound", "Bound", ([, one]) => one.bound, {
    hint: "opened by XDP alone, and none of the others",
  }),
  number("accepted", "Accepted", ([, one]) => one.accepted),
  number("routed", "Routed", ([, one]) => one.routed),
  number("handed_over", "Handed over", ([, one]) => one.handed_over, {
    hint: "of those, the ones that the data plane carries",
  }),
  number("redispatched", "Redispatched", ([, one]) => one.redispatched, {
    hint: "taken to another backend than the first, which did not answer",
  }),
  number("ech", "ECH", ([, one]) => one.ech, { hint: "hellos with an encrypted one in them" }),
  reasons("copied", "Copied", (one) => one.copied),
  reasons("refused", "Refused", (one) => one.refused),
  number("requests_routed", "Requests", ([, one]) => one.requests?.routed, {
    hint: "requests that a backend has answered, of services that route by Host",
  }),
  reasons("requests_refused", "Requests refused", (one) => one.requests?.refused ?? {}),
];

const nameColumns = [
  text("name", "Name", (one) => one.name ?? "(none)", { isName: true }),
  text("service", "Service", (one) => one.service),
  text("network", "Network", (one) => one.network),
  text("reason", "Reason", (one) => one.reason),
  number("count", "Count", (one) => one.count),
  text("client", "Last client", (one) => one.client),
  age("age", "When", (one) => one.age_seconds),
];

// Packets a second of a line.
function dropRate({ since_last: since }, view) {
  const seconds = view.rates?.seconds;
  return since === null || since === undefined || !seconds ? null : since / seconds;
}

// The latest packet in words.
function sampleOf({ samples: [sample] }) {
  if (sample === undefined) return "";
  const { protocol, source, destination, flags, length, vlan, service, age_seconds: seconds } = sample;
  const ends = [source, destination].filter((one) => one !== null).join(" → ");
  const tag = vlan === null ? "" : `VLAN ${vlan}`;
  const of = service === null ? "" : `of ${service}`;
  const parts = [protocol, ends, flags ?? "", `${length} bytes`, tag, of].filter((part) => part !== "");
  return `${parts.join(" ")}, ${ago(seconds)}`;
}

const dropColumns = [
  text("hook", "Hook", (one) => one.hook),
  text("network", "Network", (one) => one.network),
  text("reason", "Reason", (one) => one.reason, { isName: true }),
  number("dropped", "Dropped", (one) => one.dropped),
  number("refused", "Refused", (one) => one.refused, { hint: "answered with a refusal" }),
  number("since_last", "New", (one) => one.since_last, { hint: "since the overview before", tone: warnIfAny }),
  perSecond("rate", "Now", dropRate, { tone: warnIfAny }),
  text("help", "Meaning", (one) => one.help, { isLong: true }),
  text("sample", "Latest packet", sampleOf, { isLong: true }),
];

const VERDICTS = ["total", "forwarded", "transmitted", "delivered", "consumed", "passed", "dropped", "refused"];

const verdictColumns = [
  text("hook", "Hook", ([hook]) => hook, { isName: true }),
  ...VERDICTS.map((verdict) =>
    number(verdict, verdict[0].toUpperCase() + verdict.slice(1), ([, counts]) => counts[verdict]),
  ),
  share("lost", "Dropped part", ([, { total, dropped }]) => (total === 0 ? 0 : (100 * dropped) / total)),
];

export const shared = {
  id: "shared",
  caption: "What became of the clients of shared VIPs since the process began",
  columns: sharedColumns,
  none: "No shared VIPs.",
  rows: ({ overview, scope, rising }) =>
    Object.entries(overview.status.shared)
      .filter(([name]) => scope.hasService(name))
      .map((entry) => {
        const isRising = rising.has(entry[0]);
        return { key: entry[0], item: entry, problem: isRising ? 1 : 0 };
      }),
  search: ([name, one]) => `${name} ${Object.keys(one.refused).join(" ")} ${Object.keys(one.copied).join(" ")}`,
};

export const names = {
  id: "names",
  caption: "Names that shared VIPs have refused, the latest first of each service",
  columns: nameColumns,
  none: "No refused names.",
  rows: ({ overview, scope }) =>
    overview.names
      .filter((one) => scope.hasNetwork(one.network))
      .map((one) => ({
        key: `${one.service} ${one.network} ${one.reason} ${one.name ?? ""}`,
        item: one,
        problem: one.age_seconds < RECENT_SECONDS ? 1 : 0,
      })),
  search: (one) => `${one.name ?? ""} ${one.service} ${one.network} ${one.reason} ${one.client}`,
};

export const drops = {
  id: "drops",
  caption: "Dropped and refused packets by reason",
  columns: dropColumns,
  none: "No dropped packets.",
  rows: ({ overview, scope }) =>
    overview.drops
      .filter((one) => scope.hasNetwork(one.network))
      .map((one) => ({
        key: `${one.hook} ${one.network} ${one.reason}`,
        item: one,
        problem: one.since_last > 0 ? 1 : 0,
      })),
  search: (one) => `${one.hook} ${one.network} ${one.reason} ${one.help} ${sampleOf(one)}`,
};

export const verdicts = {
  id: "verdicts",
  caption: "Packets by verdict, of all networks",
  columns: verdictColumns,
  none: "",
  // They are of no network.
  rows: ({ overview, scope }) =>
    scope.network !== null
      ? []
      : Object.entries(overview.status.verdicts).map((entry) => ({ key: entry[0], item: entry, problem: 0 })),
  search: ([hook]) => hook,
};

// The refusals of each shared VIP, to see at the next overview which have risen.
export function refusals({ status }) {
  const totals = ([name, { refused, requests }]) => [name, sum(refused) + sum(requests?.refused ?? {})];
  return new Map(Object.entries(status.shared).map(totals));
}
