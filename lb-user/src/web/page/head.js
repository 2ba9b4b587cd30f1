// The head of the page: how the instance is, where its configuration stands, and how old this is.

import { byId, element, setAttribute, setText } from "./dom.js";
import { NONE, ago, duration, exact } from "./text.js";

const STATES = {
  ok: { words: "ok", tone: "good", mark: "●" },
  degraded: { words: "degraded", tone: "warn", mark: "▲" },
  unknown: { words: "unknown", tone: "bad", mark: "?" },
};
const LINKS = {
  live: { tone: "good", mark: "●" },
  waiting: { tone: "calm", mark: "○" },
  silent: { tone: "bad", mark: "■" },
  busy: { tone: "warn", mark: "▲" },
  lost: { tone: "bad", mark: "■" },
  token: { tone: "warn", mark: "▲" },
};

function put(id, words, value, tone = null) {
  const node = byId(id);
  setText(node, words);
  setAttribute(node, "data-value", value ?? "");
  setAttribute(node, "class", tone);
}

function putState(state, problems) {
  const { words, tone, mark } = STATES[state] ?? STATES.unknown;
  setText(byId("state-mark"), mark);
  put("state-words", words, state);
  setAttribute(byId("state"), "class", `pill ${tone}`);
  const list = byId("problem-list");
  const lines = [...list.children];
  problems.forEach((problem, at) => {
    if (lines[at] === undefined) list.append(element("li", {}, problem));
    else setText(lines[at], problem);
  });
  for (const line of lines.slice(problems.length)) line.remove();
  list.hidden = problems.length === 0;
}

function putConfig(config, health) {
  if (config === null) {
    put("generation", "unknown", "");
    put("config-age", NONE, "");
    put("config-note", "", "");
    setAttribute(byId("config"), "title", null);
    return;
  }
  put("generation", exact(config.generation), config.generation);
  put("config-age", `applied ${ago(config.age_seconds)}`, config.age_seconds);
  setAttribute(byId("config"), "title", config.file);
  const { confirm_seconds: confirm } = config;
  const notes = [];
  if (confirm !== null) notes.push(`unconfirmed: taken back in ${duration(confirm)}`);
  const stale = health.stale ?? config.stale;
  if (stale !== null) notes.push(`stale: ${stale}`);
  const words = notes.length > 0 ? `▲ Configuration ${notes.join("; ")}` : "";
  put("config-note", words, stale, notes.length > 0 ? "warn" : null);
}

// Shows what an overview says of the instance.
export function renderHead({ time, status }) {
  const { health, config, flows } = status;
  put("instance", status.instance, status.instance);
  put("lb-version", `version ${status.lb_version}`, status.lb_version, "version");
  document.title = `${health.state === "ok" ? "" : `${health.state}: `}${status.instance} – lb`;
  putState(health.state, health.problems);
  const { backends_up: up, backends, backends_out: out } = health;
  const isKnown = health.state !== "unknown";
  const words = out > 0 ? `${exact(up)} of ${exact(backends)}, ${exact(out)} taken out` : `${exact(up)} of ${exact(backends)}`;
  const tone = !isKnown || up === backends ? null : up === 0 ? "bad" : "warn";
  put("backends-up", isKnown ? words : NONE, isKnown ? `${up}/${backends}` : "", tone);
  put("flow-ids", `${exact(flows.live)} of ${exact(flows.capacity)}`, flows.live);
  putConfig(config, health);
  put("time", `${time.slice(0, 10)} ${time.slice(11, 19)} UTC`, time);
  byId("time").dateTime = time;
}

// Shows how the connection is.
export function renderLink(name, words) {
  const { tone, mark } = LINKS[name];
  setText(byId("link-mark"), mark);
  setText(byId("link-words"), words);
  setAttribute(byId("link"), "class", `pill ${tone}`);
  setAttribute(byId("link"), "data-value", name);
  document.documentElement.classList.toggle("is-stale", name !== "live");
}
