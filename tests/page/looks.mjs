// How the page looks and what it costs: contrast, widths, the time of an update, and growth.

const RATIO = 4.5;
const WIDTHS = [360, 768, 1280, 2560];
const SCHEMES = ["light", "dark"];

// Runs inside of the page: texts whose contrast with what is behind them is too low.
function lowContrasts(least) {
  const channels = (color) => color.match(/[\d.]+/g).map(Number);
  const over = ([r, g, b, a = 1], [x, y, z]) => [r, g, b].map((one, at) => one * a + [x, y, z][at] * (1 - a));
  const luminance = (color) => {
    const [r, g, b] = color.map((one) => {
      const part = one / 255;
      return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ground = (node) => {
    const layers = [];
    for (let at = node; at !== null; at = at.parentElement) layers.push(channels(getComputedStyle(at).backgroundColor));
    return layers.reduceRight((below, layer) => over(layer, below), [255, 255, 255]);
  };
  const found = new Set();
  let texts = 0;
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const { parentElement: node, data } = walker.currentNode;
    if (data.trim() === "" || !node.checkVisibility({ visibilityProperty: true })) continue;
    texts += 1;
    const behind = ground(node);
    const color = over(channels(getComputedStyle(node).color), behind);
    const [low, high] = [luminance(color), luminance(behind)].sort((a, b) => a - b);
    const ratio = (high + 0.05) / (low + 0.05);
    if (ratio < least) found.add(`${node.tagName}.${node.className} "${data.trim().slice(0, 30)}" ${ratio.toFixed(2)}`);
  }
  return { texts, found: [...found] };
}

// What is wrong with names and roles for readers of screens, and with widths and contrasts.
export async function check(page) {
  const wrong = await page.evaluate(() => {
    const found = [];
    const { scrollWidth } = document.documentElement;
    if (scrollWidth > innerWidth) found.push(`${scrollWidth} px wide on a screen of ${innerWidth}`);
    for (const table of document.querySelectorAll("table")) {
      if (!table.caption?.textContent) found.push(`${table.id} has no caption`);
    }
    for (const field of document.querySelectorAll("input, select")) {
      if (field.labels.length === 0) found.push(`${field.id} has no label`);
    }
    for (const node of document.querySelectorAll("svg")) {
      if (!node.hasAttribute("aria-label") && node.closest("td").checkVisibility()) found.push("a drawing has no label");
    }
    for (const mark of document.querySelectorAll("td.good, td.warn, td.bad")) {
      const state = mark.querySelector(".mark");
      if (state !== null && state.textContent === "") found.push(`${mark.textContent} is a colour alone`);
    }
    return found;
  });
  const { texts, found } = await page.evaluate(lowContrasts, RATIO);
  if (texts < 20) wrong.push(`only ${texts} texts`);
  return [...wrong, ...found];
}

// The page in every width and scheme, with a picture of each in a folder.
export async function looks({ url, folder, open, page }) {
  const wrong = [];
  for (const scheme of SCHEMES) {
    for (const width of WIDTHS) {
      await open({ url, width, height: width < 720 ? 800 : 1200, scheme });
      const found = await check(page());
      wrong.push(...found.map((one) => `${scheme}, ${width} px: ${one}`));
      await page().screenshot({ path: `${folder}/${scheme}-${width}.png`, fullPage: width > 720 });
    }
  }
  return wrong;
}

// An overview of so many services and backends, made from the first of each in a real one.
function enlarged(overview, services, each) {
  const [service] = overview.services;
  const [backend] = overview.backends;
  const large = { ...overview, services: [], backends: [] };
  const rates = { ...overview.rates, services: {}, backends: {} };
  const rate = Object.values(overview.rates.services)[0];
  for (let number = 0; number < services; number += 1) {
    const name = `service-${number}`;
    large.services.push({ ...service, name, pools: [name] });
    rates.services[name] = { ...rate, flows: number };
    for (let at = 0; at < each; at += 1) {
      large.backends.push({ ...backend, pool: name, name: `n${at}` });
      rates.backends[`${name}/n${at}`] = { ...rate, flows: at };
    }
  }
  return { ...large, rates };
}

// Milliseconds of script that an update of a large installation takes, by the counters of the browser.
export async function update({ url, overview, services, each, updates, open, page }) {
  await open({ url });
  const session = await page().context().newCDPSession(page());
  await session.send("Performance.enable");
  const script = async () => {
    const { metrics } = await session.send("Performance.getMetrics");
    return metrics.find((one) => one.name === "ScriptDuration").value;
  };
  let number = 0;
  const large = enlarged(overview, services, each);
  await page().route("**/v1/live", (route) => {
    number += 1;
    large.time = new Date(Date.UTC(2026, 0, 1, 0, 0, number)).toISOString();
    for (const backend of large.backends) backend.counts.flows = number;
    for (const name of Object.keys(large.rates.services)) large.rates.services[name].flows = number;
    const body = `event: overview\ndata: ${JSON.stringify(large)}\n\n`;
    return route.fulfill({ contentType: "text/event-stream", body });
  });
  await page().reload();
  const times = [];
  for (let count = 0; count < updates; count += 1) {
    const time = await page().locator("#time").getAttribute("data-value");
    const before = await script();
    await page().waitForFunction((last) => document.getElementById("time").dataset.value !== last, time, { polling: 250 });
    times.push((await script()) - before);
  }
  const shown = await page().locator("#table-backends tbody tr").count();
  const note = await page().locator("#backends .note").first().textContent();
  await page().unroute("**/v1/live");
  return { milliseconds: times.map((one) => Math.round(one * 1000)), shown, note };
}

// Rows, nodes and bytes of the heap, at the beginning and at the end of so many seconds.
export async function grow(page, { seconds }) {
  const session = await page.context().newCDPSession(page);
  const measure = async () => {
    // First: a locator brings listeners of its own into a page.
    const rows = await page.locator("tbody tr").count();
    await session.send("HeapProfiler.collectGarbage");
    const [nodes, { usedSize }] = [await session.send("Memory.getDOMCounters"), await session.send("Runtime.getHeapUsage")];
    return { rows, nodes: nodes.nodes, listeners: nodes.jsEventListeners, heap: usedSize };
  };
  await page.waitForTimeout(5000);
  const first = await measure();
  await page.waitForTimeout(seconds * 1000);
  return { first, last: await measure() };
}
