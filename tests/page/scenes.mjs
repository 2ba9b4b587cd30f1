// What a user does: keys, and names from clients that are made to run as scripts.

import assert from "node:assert/strict";
import { escaped } from "./shown.mjs";

const focused = (page) => page.evaluate(() => document.activeElement.id);
const fragment = (page) => page.evaluate(() => location.hash);

// Each key does what it is for, and what it does stands in the address.
export async function keyboard(page) {
  await page.keyboard.press("/");
  assert.equal(await focused(page), "query");
  await page.keyboard.type("a&b n1");
  assert.equal(await fragment(page), "#q=a%26b%20n1");
  await page.keyboard.press("Escape");
  assert.equal(await fragment(page), "");
  assert.equal(await page.locator("#query").inputValue(), "");
  await page.keyboard.press("n");
  assert.equal(await focused(page), "network");
  await page.keyboard.press("Escape");
  await page.keyboard.press("p");
  assert.equal(await fragment(page), "#problems");
  await page.keyboard.press("p");
  assert.equal(await fragment(page), "");
  for (const [at, id] of ["networks", "services", "backends", "shared", "names", "drops", "events", "snat"].entries()) {
    await page.keyboard.press(String(at + 1));
    assert.equal(await focused(page), `head-${id}`);
    const isSeen = (name) => {
      const { top } = document.getElementById(`head-${name}`).getBoundingClientRect();
      return top >= 0 && top < innerHeight;
    };
    assert.ok(await page.evaluate(isSeen, id), `${id} is not seen`);
  }
  await page.keyboard.press("?");
  assert.ok(await page.locator("#help").isVisible());
  await page.keyboard.press("Escape");
  assert.ok(!(await page.locator("#help").isVisible()));
  await page.evaluate(() => document.activeElement.blur());
  const order = [];
  await page.evaluate(() => scrollTo(0, 0));
  await page.locator("#network").focus();
  for (let count = 0; count < 4; count += 1) {
    order.push(await focused(page));
    await page.keyboard.press("Tab");
  }
  assert.deepEqual(order, ["network", "query", "problems", "clear"]);
}

// Shows a made-up overview.
async function show(page, overview) {
  const body = `: a comment\n\nevent: overview\ndata: ${JSON.stringify(overview)}\n\n`;
  await page.route("**/v1/live", (route) => route.fulfill({ contentType: "text/event-stream", body }));
  await page.reload();
  await page.waitForSelector(".has-data");
}

// What comes in a second: bytes as bits, and how each number is written.
export async function rates(page, { overview }) {
  const rate = {
    flows: 1234.5,
    bytes_request: 1000,
    bytes_reply: 425e6,
    failed: 0.25,
    dropped: 7,
    connect_seconds: 0.0042,
  };
  const [service] = overview.services;
  const [backend] = overview.backends;
  overview.rates = {
    seconds: 2,
    networks: { [service.network]: rate },
    services: { [service.name]: rate },
    backends: { [`${backend.pool}/${backend.name}`]: rate },
  };
  Object.assign(overview.drops[0], { since_last: 5 });
  await show(page, overview);
  const shown = (table, row) =>
    page.evaluate(
      ([name, line]) => {
        const rows = [...document.querySelectorAll(`#table-${name} tbody tr`)];
        const cells = [...rows.find((one) => one.dataset.row === line).cells];
        return Object.fromEntries(cells.map((cell) => [cell.dataset.key, [cell.dataset.value, cell.textContent]]));
      },
      [table, row],
    );
  const common = {
    new: ["1234.5", "1.2k/s"],
    bits_request: ["8000", "8.0 kbit/s"],
    bits_reply: ["3400000000", "3.4 Gbit/s"],
  };
  const wanted = [
    ["networks", service.network, { ...common, dropped: ["7", "7/s"] }],
    ["services", `${service.name} ${service.listen}`, { ...common, failed: ["0.25", "0.3/s"], connect: ["0.0042", "4.2 ms"] }],
    ["backends", `${backend.pool}/${backend.name}`, common],
    ["drops", dropName(overview.drops[0]), { since_last: ["5", "5"], rate: ["2.5", "2.5/s"] }],
  ];
  for (const [table, row, cells] of wanted) {
    const found = await shown(table, row);
    for (const [key, value] of Object.entries(cells)) assert.deepEqual(found[key], value, `${table}, ${row}, ${key}`);
  }
  await page.unroute("**/v1/live");
}

// What is known without a control plane and without rates is shown, and the rest is not made up.
export async function unknown(page, { overview }) {
  overview.rates = null;
  overview.status.config = null;
  Object.assign(overview.status.health, { state: "unknown", problems: ["no control plane runs"] });
  for (const service of overview.services) Object.assign(service, { backends: null, backends_up: null });
  for (const one of overview.backends) Object.assign(one, { health: null, state: "unknown", counts: null, next_hop: null });
  await show(page, overview);
  const values = (selector) => page.locator(selector).evaluateAll((all) => all.map((one) => one.dataset.value));
  assert.deepEqual(await values("#state-words, #backends-up, #generation, #config-age"), ["unknown", "", "", ""]);
  assert.deepEqual(new Set(await values('#services tbody [data-key="up"]')), new Set([""]));
  assert.deepEqual(new Set(await values('#backends tbody [data-key="state"]')), new Set(["unknown"]));
  for (const key of ["new", "bits_request", "flows_begun", "check_age", "since", "next_hop"]) {
    assert.deepEqual(new Set(await values(`#backends tbody [data-key="${key}"]`)), new Set([""]), key);
  }
  await page.unroute("**/v1/live");
}

// Where there is no place for one more page, it says so, and gets one when there is.
export async function busy(page) {
  await page.route("**/v1/live", (route) => route.fulfill({ status: 503 }));
  await page.reload();
  await page.waitForSelector('#link[data-value="busy"]');
  assert.match(await page.locator("#link-words").textContent(), /^too many pages are open; next try in \d+ s$/);
  await page.unroute("**/v1/live");
  await page.waitForSelector('#link[data-value="live"]');
}

const dropName = ({ hook, network, reason }) => `${hook} ${network} ${reason}`;

const NAMES = [
  "<script>alert(1)</script>",
  '"><img src=x onerror=alert(1)>',
  "a\nb\tc\r",
  "\u001b[2J\u0007\u007f\u009b31m",
  "x\u202egpj\u2066y\u2028z",
];

// An overview whose texts are all such names: each is shown as it is, escaped, and nothing of it runs.
export async function hostile(page, { overview }) {
  overview.names = NAMES.map((name, at) => {
    const reason = NAMES[(at + 1) % NAMES.length];
    return { name, service: name, network: name, reason, count: 1, client: name, age_seconds: at };
  });
  overview.status.health.problems = NAMES;
  overview.status.instance = NAMES[0];
  overview.events = NAMES.map((name, number) => {
    const time = "2026-01-01T00:00:00Z";
    return { number, time, kind: name, severity: "error", object: name, words: name, by: name };
  });
  await show(page, overview);
  await page.waitForSelector("#table-names tbody tr:nth-child(5)");
  const texts = (selector) =>
    page.locator(selector).evaluateAll((nodes) => nodes.map((node) => node.textContent));
  const wanted = NAMES.map(escaped);
  assert.deepEqual((await texts('#table-names tbody [data-key="name"]')).sort(), [...wanted].sort());
  assert.deepEqual((await texts('#table-events tbody [data-key="words"]')).sort(), [...wanted].sort());
  assert.deepEqual(await texts("#problem-list li"), wanted);
  const titles = await page.locator("tbody [title], tbody [data-value]").evaluateAll((nodes) =>
    nodes.flatMap((node) => [...node.attributes].map((attribute) => attribute.value)),
  );
  const unsafe = /[\u0000-\u001f\u007f-\u009f\u2028-\u202e\u2066-\u2069]/;
  assert.deepEqual(titles.filter((text) => unsafe.test(text)), []);
  assert.equal(await page.locator("main script, main img").count(), 0);
  await page.unroute("**/v1/live");
}
