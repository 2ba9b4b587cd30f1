// Kinds of columns: how a value is shown, what it is exactly, and how rows are sorted by it.

import { Line } from "./history.js";
import { drawing } from "./dom.js";
import { NONE, ago, bits, count, duration, exact, percent, rate } from "./text.js";

// What `get` finds in a row, as text. Its value is the text itself.
export function text(key, title, get, options = {}) {
  const cell = (item, view) => {
    const value = get(item, view);
    const isNone = value === null || value === undefined || value === "";
    return { text: isNone ? NONE : value, value: isNone ? "" : value };
  };
  return { key, title, get, cell, ...options };
}

function numeric(format, exactly) {
  return (key, title, get, options = {}) => {
    const cell = (item, view) => {
      const value = get(item, view);
      const isNone = value === null || value === undefined;
      const tone = isNone ? undefined : options.tone?.(value, item, view);
      return {
        text: format(value),
        value: isNone ? "" : value,
        title: isNone ? "" : exactly(value),
        tone: tone ?? (isNone || (value === 0 && format !== ago) ? "zero" : undefined),
      };
    };
    return { key, title, get, cell, isNumeric: true, ...options };
  };
}

export const number = numeric(count, exact);
export const perSecond = numeric(rate, (value) => `${exact(value)} a second`);
export const bitsPerSecond = numeric(bits, (value) => `${exact(value)} bit/s`);
export const share = numeric(percent, (value) => `${exact(value)} %`);
export const time = numeric(duration, (value) => `${exact(value)} s`);
export const age = numeric(ago, (value) => `${exact(value)} s ago`);

// The tone of a count of which any is bad.
export const badIfAny = (value) => (value > 0 ? "bad" : "zero");
export const warnIfAny = (value) => (value > 0 ? "warn" : "zero");

// Marks that tell states apart without a colour.
const MARKS = { good: "●", warn: "▲", bad: "■", calm: "○" };

// A state in words, with a mark and a tone: `get` answers both.
export function state(key, title, get, options = {}) {
  const cell = (item, view) => {
    const { words, tone, value, hint } = get(item, view);
    return { text: words, value: value ?? words, title: hint ?? "", tone, mark: MARKS[tone] };
  };
  return { key, title, get: (item, view) => get(item, view).words, cell, isState: true, ...options };
}

// A line of what a rate was in the last minutes.
export function line(key, title, series, format, options = {}) {
  const make = (cell) => {
    const drawn = new Line();
    cell.append(drawn.image);
    return (item, view) => drawn.update(series(item, view), format);
  };
  return { key, title, make, ...options };
}

// A bar of a part, from 0 to 1.
export function bar(key, title, part, options = {}) {
  const make = (cell) => {
    const full = drawing("rect", { class: "bar-full", x: "0", y: "0", width: "0", height: "8", rx: "1" });
    const empty = drawing("rect", { class: "bar-empty", x: "0", y: "0", width: "100", height: "8", rx: "1" });
    const box = { class: "bar", viewBox: "0 0 100 8", preserveAspectRatio: "none", role: "img" };
    const image = drawing("svg", box, empty, full);
    cell.append(image);
    return (item, view) => {
      const width = (100 * Math.min(1, Math.max(0, part(item, view) || 0))).toFixed(1);
      if (full.getAttribute("width") === width) return;
      full.setAttribute("width", width);
      image.setAttribute("aria-label", `${width} % in use`);
      full.classList.toggle("is-high", Number(width) >= 90);
    };
  };
  return { key, title, make, ...options };
}
