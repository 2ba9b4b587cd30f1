// Drives Chromium for a test: a line of JSON on the input is an order, `{"do": NAME, ...}`; a line on the output is what came of
// it, `{"ok": VALUE}` or `{"error": TEXT}`. The test names the folder of playwright-core in LB_PAGE_MODULES.

import { createRequire } from "node:module";
import { createInterface } from "node:readline";
import { differences } from "./compare.mjs";
import { check, grow, looks, update } from "./looks.mjs";
import { busy, hostile, keyboard, rates, unknown } from "./scenes.mjs";
import { cells } from "./shown.mjs";

const require = createRequire(`${process.env.LB_PAGE_MODULES}/`);
const { chromium } = require("playwright-core");

const DEADLINE_MS = 10000;
const browser = await chromium.launch({
  executablePath: process.env.LB_CHROMIUM ?? "/usr/bin/chromium",
  args: ["--no-sandbox", "--disable-dev-shm-usage"],
});

// The page that is open, and what it has done that it must not.
let page = null;
let faults = [];

async function open({ url, width = 1280, height = 900, scheme = "light" }) {
  await page?.context().close();
  faults = [];
  const context = await browser.newContext({ viewport: { width, height }, colorScheme: scheme });
  page = await context.newPage();
  page.setDefaultTimeout(DEADLINE_MS);
  const { origin } = new URL(url);
  page.on("console", (message) => {
    if (["error", "warning"].includes(message.type())) faults.push(`console: ${message.text()}`);
  });
  page.on("pageerror", (error) => faults.push(`error: ${error.message}`));
  page.on("dialog", (dialog) => {
    faults.push(`dialog: ${dialog.message()}`);
    dialog.dismiss();
  });
  page.on("request", (request) => {
    const to = request.url();
    if (!to.startsWith(`${origin}/`) && !to.startsWith("data:")) faults.push(`request: ${to}`);
  });
  await page.exposeFunction("reportViolation", (text) => faults.push(`violation: ${text}`));
  await page.addInitScript(() => {
    addEventListener("securitypolicyviolation", (event) => {
      reportViolation(`${event.violatedDirective} ${event.blockedURI} ${event.sourceFile}:${event.lineNumber}`);
    });
  });
  await page.goto(url);
  await page.waitForFunction(() => document.querySelector("#login[open]") || document.querySelector(".has-data"));
}

// The values of an overview that began after now.
async function settle() {
  for (let count = 0; count < 2; count += 1) {
    const time = await page.locator("#time").getAttribute("data-value");
    const isLater = (before) => document.getElementById("time").dataset.value !== before;
    await page.waitForFunction(isLater, time);
  }
  return page.evaluate(cells);
}

// Waits until a cell has a value; how many milliseconds that took.
async function wait({ table, row, key, value }) {
  const start = performance.now();
  const has = ([name, line, column, wanted]) => {
    const lines = [...document.querySelectorAll(`#table-${name} tbody tr`)];
    const cell = lines.find((one) => one.dataset.row === line)?.querySelector(`[data-key="${column}"]`);
    return cell?.dataset.value === wanted;
  };
  await page.waitForFunction(has, [table, row, key, value], { polling: 50 });
  return performance.now() - start;
}

// What is shown with a fragment: names of rows by table.
async function rows({ fragment }) {
  await page.evaluate((hash) => {
    location.hash = hash;
  }, fragment);
  await page.evaluate(() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done))));
  return page.evaluate(() => {
    const names = (table) => [...table.tBodies[0].rows].map((line) => line.dataset.row);
    const tables = [...document.querySelectorAll("main table")];
    return Object.fromEntries(tables.map((table) => [table.id.replace("table-", ""), names(table)]));
  });
}

// The field for the token: a wrong one is refused, the right one shows data, and is in no address.
async function login({ token }) {
  const field = page.locator("#login[open] #token");
  for (const text of ["wrong", token]) {
    await field.fill(text);
    await field.press("Enter");
    if (text === "wrong") await page.getByText("That is not the token.").waitFor();
  }
  await page.waitForSelector(".has-data");
  const unauthorized = faults.filter((fault) => fault.includes("401"));
  faults = faults.filter((fault) => !fault.includes("401"));
  return { unauthorized: unauthorized.length, url: page.url() };
}

async function link({ state }) {
  await page.waitForSelector(`#link[data-value="${state}"]`);
  return page.locator("#link-words").textContent();
}

const orders = {
  open,
  settle,
  wait,
  rows,
  login,
  link,
  compare: async ({ page: shown, before, after }) => differences(shown, before, after),
  keyboard: () => keyboard(page),
  rates: (order) => rates(page, order),
  unknown: (order) => unknown(page, order),
  busy: async () => {
    await busy(page);
    faults = faults.filter((fault) => !fault.includes("503"));
  },
  hostile: (order) => hostile(page, order),
  faults: async () => faults,
  check: () => check(page),
  looks: (order) => looks({ ...order, open, page: () => page }),
  update: (order) => update({ ...order, open, page: () => page }),
  grow: (order) => grow(page, order),
};

for await (const line of createInterface({ input: process.stdin })) {
  let answer;
  try {
    const order = JSON.parse(line);
    answer = { ok: (await orders[order.do](order)) ?? null };
  } catch (error) {
    answer = { error: String(error.stack ?? error) };
  }
  console.log(JSON.stringify(answer));
}
await browser.close();
