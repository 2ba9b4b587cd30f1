// Events: what happened, the newest first.

import { state, text } from "./columns.js";

const TONES = { error: "bad", warning: "warn", notice: "calm" };
const PROBLEMS = { error: 2, warning: 1, notice: 0 };

// The time of day, in UTC as the log has it; the date is in the title.
const clock = (time) => time.slice(11, 19);

const columns = [
  { ...text("time", "Time (UTC)", (one) => one.time), cell: timeCell },
  state("severity", "Severity", ({ severity }) => ({ words: severity, tone: TONES[severity] ?? "calm" })),
  text("kind", "Kind", (one) => one.kind),
  text("object", "Object", (one) => one.object, { isName: true }),
  text("words", "What happened", (one) => one.words, { isLong: true }),
  text("by", "By", (one) => one.by),
];

function timeCell({ time }) {
  return { text: clock(time), value: time, title: time };
}

export const events = {
  id: "events",
  caption: "Events, the newest first",
  columns,
  none: "No events.",
  keepsOrder: true,
  rows: ({ overview, scope }) =>
    overview.events
      .filter((one) => scope.hasObject(one.object))
      .map((one) => ({ key: String(one.number), item: one, problem: PROBLEMS[one.severity] ?? 0 }))
      .reverse(),
  search: (one) => `${one.time} ${one.severity} ${one.kind} ${one.object} ${one.words} ${one.by ?? ""}`,
};
