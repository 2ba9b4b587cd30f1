// Backends: their states and checks, and what they get of new flows.

import { age, bitsPerSecond, number, perSecond, share, state, text } from "./columns.js";
import { eight } from "./networks.js";
import { duration } from "./text.js";

const nameOf = (one) => `${one.pool}/${one.name}`;
const rateOf = (item, view) => view.rates?.backends[nameOf(item)];

// 2: it fails, and gets no new flows for that; 1: it gets none for another reason, or is not known.
export function problemOf({ state: words, health }) {
  const verdict = words.split(", ")[0];
  if (verdict === "dead" || verdict === "not ready" || verdict === "service down") return 2;
  if (words.includes("unreachable") || words.includes("unresponsive")) return 2;
  if (verdict === "unknown") return 1;
  return health?.overridden != null && health.overridden.override !== "enable" ? 1 : 0;
}

function stateOf(one) {
  const calm = one.state.startsWith("unchecked") || one.health?.backup || one.health?.retired;
  const tone = [calm ? "calm" : "good", "warn", "bad"][problemOf(one)];
  const drain = one.health?.drain_seconds ?? null;
  const hint = drain === null ? "" : `its flows end in ${duration(drain)}`;
  return { words: one.state, tone, hint };
}

const columns = [
  text("pool", "Pool", (one) => one.pool),
  text("name", "Backend", (one) => one.name, { isName: true }),
  text("address", "Address", (one) => one.address),
  state("state", "State", stateOf),
  share("share", "Share", (one) => one.share, { hint: "of the pool's new flows" }),
  number("weight", "Weight", (one) => one.weight, { hint: "as configured" }),
  number("flows_begun", "Begun", (one) => one.counts?.flows, { hint: "flows that have begun" }),
  perSecond("new", "New", (one, view) => rateOf(one, view)?.flows),
  bitsPerSecond("bits_request", "Requests", (one, view) => eight(rateOf(one, view)?.bytes_request), {
    hint: "from clients",
  }),
  bitsPerSecond("bits_reply", "Replies", (one, view) => eight(rateOf(one, view)?.bytes_reply), {
    hint: "to clients",
  }),
  number("failed", "Failed", (one) => one.counts?.failed, {
    hint: "connections that it has not answered, or refused",
    tone: (value, one, view) => (rateOf(one, view)?.failed > 0 ? "bad" : undefined),
  }),
  text("check", "Last check", (one) => one.health?.last?.outcome.words),
  age("check_age", "Checked", (one) => one.health?.last?.age_seconds),
  age("since", "Since", (one) => one.health?.since_seconds, {
    hint: "when the verdict changed, if it did while this process runs",
  }),
  text("next_hop", "Next hop", (one) => one.next_hop),
];

export const backends = {
  id: "backends",
  caption: "Backends in the order of the file, those with problems first",
  columns,
  none: "No backends.",
  rows: ({ overview, scope }) =>
    overview.backends
      .filter((one) => scope.hasPool(one.pool))
      .map((one) => ({ key: nameOf(one), item: one, problem: problemOf(one) })),
  search: (one) => {
    const check = one.health?.last?.outcome.words ?? "";
    return `${one.pool} ${one.name} ${one.address} ${one.state} ${check} ${one.next_hop ?? ""}`;
  },
};
