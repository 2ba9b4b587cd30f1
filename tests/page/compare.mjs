// What the page must show of what `lb status`, `services`, `backends`, `drops`, `drops --names` and `events` answer.

import { escaped } from "./shown.mjs";

// A number that may have moved by so much since.
const about = (value, by) => ({ value, by });
// Ages move as time passes, and begin anew with a check.
const AGE_SECONDS = 6;
const age = (value) => (value === null || value === undefined ? "" : about(value, AGE_SECONDS));
// Of what is not in any answer: a number, or nothing.
const ANY = { isAny: true };
// Without traffic nothing comes in a second.
const STILL = 0;

const eachOf = (list, key, values) => Object.fromEntries(list.map((one) => [key(one), values(one)]));
const reasons = (counts) => Object.entries(counts ?? {}).map(([reason, many]) => `${reason}=${many}`).join(" ");

function networkCells(one) {
  return {
    name: one.name,
    role: one.role,
    interface: one.interface,
    vlan: one.vlan,
    carrier: one.carrier,
    mode: one.mode,
    flows: one.flows,
    max_flows: one.max_flows,
    new: STILL,
    bits_request: STILL,
    bits_reply: STILL,
    dropped: ANY,
    unreachable: ANY,
    half_open: age(one.half_open.lifetime_seconds),
  };
}

function serviceCells(one) {
  return {
    name: one.name,
    network: one.network,
    listen: one.listen,
    pools: one.pools.join(", "),
    up: one.backends_up === null ? "" : `${one.backends_up}/${one.backends}`,
    flows: one.flows,
    new: STILL,
    bits_request: STILL,
    bits_reply: STILL,
    failed: STILL,
    connect: null,
  };
}

function backendCells(one) {
  return {
    pool: one.pool,
    name: one.name,
    address: one.address,
    state: one.state,
    share: one.share,
    weight: one.weight,
    flows_begun: one.counts?.flows,
    new: STILL,
    bits_request: STILL,
    bits_reply: STILL,
    failed: one.counts?.failed,
    check: one.health?.last?.outcome.words,
    check_age: age(one.health?.last?.age_seconds),
    since: age(one.health?.since_seconds),
    next_hop: one.next_hop,
  };
}

function sharedCells([service, one]) {
  return {
    service,
    accepted: one.accepted,
    routed: one.routed,
    bound: one.bound,
    handed_over: one.handed_over,
    redispatched: one.redispatched,
    ech: one.ech,
    copied: reasons(one.copied),
    refused: reasons(one.refused),
    requests_routed: one.requests?.routed,
    requests_refused: reasons(one.requests?.refused),
  };
}

function snatCells(one) {
  return {
    address: one.address,
    network: one.network,
    ports: `${one.first_port}–${one.last_port}`,
    state: one.draining,
    live: one.flows.live,
    free: one.flows.free,
    capacity: one.flows.capacity,
  };
}

function quotaCells({ network, quota }) {
  const limit = Math.min(quota.most ?? quota.ports, quota.ports);
  return {
    network,
    backends: quota.backends,
    family: quota.ipv6 ? "IPv6" : "IPv4",
    flows: quota.flows,
    most: quota.most,
    ports: quota.ports,
    networks: quota.networks,
    used: limit === 0 ? 0 : (100 * quota.flows) / limit,
  };
}

function dropCells(one) {
  const { hook, network, reason, dropped, refused, help } = one;
  return { hook, network, reason, dropped, refused, since_last: ANY, rate: ANY, help, sample: ANY };
}

function nameCells({ name, service, network, reason, count, client, age_seconds: seconds }) {
  return { name: name ?? "(none)", service, network, reason, count, client, age: age(seconds) };
}

function eventCells({ time, severity, kind, object, words, by }) {
  return { time, severity, kind, object, words, by };
}

// Tables by name, rows by name, cells by column.
export function expected({ status, services, backends, drops, names, events }) {
  const quotas = status.networks.flatMap(({ name, quotas: all }) =>
    all.map((quota) => ({ network: name, quota })),
  );
  const verdict = (counts) => ({ ...counts, lost: ANY });
  return {
    networks: eachOf(status.networks, (one) => one.name, networkCells),
    services: eachOf(services.services, (one) => `${one.name} ${one.listen}`, serviceCells),
    backends: eachOf(backends.backends, (one) => `${one.pool}/${one.name}`, backendCells),
    shared: eachOf(Object.entries(status.shared), ([name]) => name, sharedCells),
    shares: eachOf(Object.entries(status.divided), ([name]) => name, ([network, use]) => ({ network, ...use })),
    names: eachOf(names.names, (one) => `${one.service} ${one.network} ${one.reason} ${one.name ?? ""}`, nameCells),
    drops: eachOf(drops.drops, (one) => `${one.hook} ${one.network} ${one.reason}`, dropCells),
    verdicts: eachOf(Object.entries(status.verdicts), ([hook]) => hook, ([hook, counts]) => ({ hook, ...verdict(counts) })),
    events: eachOf(events.events, (one) => String(one.number), eventCells),
    snat: eachOf(status.snat, (one) => one.address, snatCells),
    quotas: eachOf(quotas, ({ network, quota }) => `${network} ${quota.backends} ${quota.ipv6 ? "IPv6" : "IPv4"}`, quotaCells),
  };
}

// What differs between the page and answers from before and from after it; a number lies between those of both.
export function differences(page, before, after) {
  const [first, last] = [expected(before), expected(after)];
  const found = [];
  const names = (object) => Object.keys(object).sort();
  const same = (what, shown, wanted) => {
    if (JSON.stringify(shown) !== JSON.stringify(wanted)) found.push(`${what}: shown ${shown}, expected ${wanted}`);
  };
  same("tables", names(page.tables), names(first));
  for (const table of names(first)) {
    const rows = page.tables[table] ?? {};
    same(`rows of ${table}`, names(rows), names(last[table]).map(escaped));
    for (const [row, wanted] of Object.entries(last[table])) {
      const shown = rows[escaped(row)] ?? {};
      same(`columns of ${table} ${row}`, names(shown), names(wanted));
      for (const [column, value] of Object.entries(wanted)) {
        const earlier = first[table][row]?.[column] ?? value;
        if (fits(shown[column], earlier, value)) continue;
        const text = `shown ${shown[column]}, expected ${JSON.stringify(earlier)} to ${JSON.stringify(value)}`;
        found.push(`${table}, ${row}, ${column}: ${text}`);
      }
    }
  }
  found.push(...headDifferences(page, before.status, after.status));
  return found;
}

function fits(shown, earlier, later) {
  if (shown === undefined) return false;
  if (later?.isAny) return true;
  const number = (one) => (typeof one === "object" && one !== null ? one.value : one);
  const [a, b] = [number(earlier), number(later)];
  if (typeof a === "number" && typeof b === "number") {
    const by = later?.by ?? 0;
    return shown !== "" && Number(shown) >= Math.min(a, b) - by && Number(shown) <= Math.max(a, b) + by;
  }
  return [earlier, later].some((one) => shown === escaped(number(one) ?? ""));
}

function headDifferences({ head, problems }, before, { instance, lb_version: version, health, config, flows }) {
  const wanted = {
    instance,
    "lb-version": version,
    "state-words": health.state,
    "backends-up": `${health.backends_up}/${health.backends}`,
    "flow-ids": flows.live,
    generation: config.generation,
    "config-age": about(config.age_seconds, AGE_SECONDS),
    "config-note": health.stale ?? "",
    link: "live",
  };
  const found = [];
  for (const [id, value] of Object.entries(wanted)) {
    const earlier = id === "flow-ids" ? before.flows.live : value;
    if (!fits(head[id], earlier, value)) found.push(`head, ${id}: shown ${head[id]}, expected ${JSON.stringify(value)}`);
  }
  const lines = health.problems.map(escaped);
  if (JSON.stringify(problems) !== JSON.stringify(lines)) found.push(`problems: shown ${problems}, expected ${lines}`);
  return found;
}
