// A table whose cells are changed in place. Of many rows the first are shown: those with problems first, else in their order.

import { element, setAttribute, setText } from "./dom.js";
import { count } from "./text.js";

// Rows that are shown of a table, and on a narrow screen, where each is a card.
export const MAX_ROWS = 200;
const MAX_CARDS = 40;
const COLLATOR = new Intl.Collator("en", { numeric: true });
const IS_NARROW = matchMedia("(max-width: 720px)");

// A row on the page.
class Row {
  constructor(table, key) {
    this.line = element("tr", { role: "row", "data-row": key });
    this.cells = table.columns.map((column) => {
      const isName = column.isName === true;
      const attributes = { "data-key": column.key, "data-label": column.title };
      attributes.role = isName ? "rowheader" : "cell";
      if (isName) attributes.scope = "row";
      if (column.isNumeric) attributes.class = "number";
      const cell = element(isName ? "th" : "td", attributes);
      this.line.append(cell);
      return { cell, base: attributes.class ?? "", last: {}, ...parts(cell, column) };
    });
  }

  update(columns, item, view, problem) {
    setAttribute(this.line, "class", ["", "row-warn", "row-bad"][problem] || null);
    columns.forEach((column, at) => {
      const one = this.cells[at];
      if (column.make !== undefined) {
        one.draw(item, view);
        return;
      }
      const now = column.cell(item, view);
      const { last } = one;
      if (now.text !== last.text) setText(one.words, now.text);
      if (column.isState && now.mark !== last.mark) setText(one.mark, now.mark ?? "");
      if (now.value !== last.value) setAttribute(one.cell, "data-value", now.value);
      if (now.title !== last.title) setAttribute(one.cell, "title", now.title || null);
      if (now.tone !== last.tone) {
        one.cell.className = now.tone === undefined ? one.base : `${one.base} ${now.tone}`.trim();
      }
      one.last = now;
    });
  }
}

// What is changed inside of a cell: words, a mark and words, or a drawing.
function parts(cell, column) {
  if (column.make !== undefined) return { draw: column.make(cell) };
  if (!column.isState) return { words: cell };
  const mark = element("span", { class: "mark", "aria-hidden": "true" });
  const words = element("span", { class: "words" });
  cell.append(mark, words);
  return { mark, words };
}

// `definition`: id, caption, columns, rows(view) as `{ key, item, problem }`, search(item), and what is shown if none are.
export class Table {
  #rows = new Map();
  #sort = null;

  constructor(section, definition) {
    Object.assign(this, definition);
    this.body = element("tbody", { role: "rowgroup" });
    this.heads = this.columns.map((column) => this.#head(column));
    const heads = element("tr", { role: "row" }, ...this.heads);
    this.table = element(
      "table",
      { id: `table-${this.id}`, role: "table" },
      element("caption", {}, this.caption),
      element("thead", { role: "rowgroup" }, heads),
      this.body,
    );
    const region = { class: "scroll", role: "region", "aria-label": this.caption };
    this.note = element("p", { class: "note" });
    section.append(element("div", region, this.table), this.note);
  }

  // Shows what the filter leaves: how many rows there are of how many, and how many with problems.
  render(view) {
    const all = this.rows(view);
    const { words, problems } = view;
    const left = all.filter(({ item, problem }) => {
      if (problems && problem === 0) return false;
      if (words.length === 0) return true;
      const found = this.search(item).toLowerCase();
      return words.every((word) => found.includes(word));
    });
    const limit = IS_NARROW.matches ? MAX_CARDS : MAX_ROWS;
    const shown = this.#sorted(left, view).slice(0, limit);
    this.#show(shown, view);
    const more = left.length - shown.length;
    const isFiltered = all.length > left.length || view.scope.network !== null;
    const none = isFiltered ? "None that the filter leaves." : this.none;
    setText(this.note, more > 0 ? `${more} more: filter` : shown.length === 0 ? none : "");
    this.table.hidden = shown.length === 0;
    return { all: all.length, left: left.length, problems: left.filter((row) => row.problem > 0).length };
  }

  #show(shown, view) {
    const before = this.#rows;
    this.#rows = new Map();
    for (const { key, item, problem } of shown) {
      let unique = key;
      for (let number = 2; this.#rows.has(unique); number += 1) unique = `${key} ${number}`;
      const row = before.get(unique) ?? new Row(this, unique);
      before.delete(unique);
      this.#rows.set(unique, row);
      row.update(this.columns, item, view, problem);
    }
    for (const row of before.values()) row.line.remove();
    let place = this.body.firstElementChild;
    for (const { line } of this.#rows.values()) {
      if (line === place) place = place.nextElementSibling;
      else this.body.insertBefore(line, place);
    }
  }

  #sorted(rows, view) {
    const { column, isRising } = this.#sort ?? {};
    if (column === undefined && this.keepsOrder) return rows;
    if (column === undefined) {
      const groups = [[], [], []];
      for (const row of rows) groups[row.problem].push(row);
      return [...groups[2], ...groups[1], ...groups[0]];
    }
    const keyed = rows.map((row) => [column.get(row.item, view), row]);
    const unknown = (value) => value === null || value === undefined;
    keyed.sort(([a], [b]) => {
      if (unknown(a) || unknown(b)) return Number(unknown(a)) - Number(unknown(b));
      const order = typeof a === "string" ? COLLATOR.compare(a, b) : a - b;
      return isRising ? order : -order;
    });
    return keyed.map(([, row]) => row);
  }

  #head(column) {
    const attributes = { role: "columnheader", scope: "col", "data-key": column.key };
    if (column.isNumeric) attributes.class = "number";
    const head = element("th", attributes);
    if (column.get === undefined) {
      head.append(column.title);
      return head;
    }
    const button = element("button", { type: "button", class: "sort" }, column.title);
    if (column.hint) button.title = column.hint;
    button.addEventListener("click", () => this.#sortBy(column));
    head.append(button);
    return head;
  }

  // Numbers fall first and words rise first; then the other way; then the order of before.
  #sortBy(column) {
    const first = column.isNumeric !== true;
    const now = this.#sort;
    if (now?.column !== column) this.#sort = { column, isRising: first };
    else this.#sort = now.isRising === first ? { column, isRising: !first } : null;
    this.columns.forEach((one, at) => {
      const order = this.#sort?.isRising ? "ascending" : "descending";
      setAttribute(this.heads[at], "aria-sort", this.#sort?.column === one ? order : null);
    });
    this.changed();
  }
}

// What the heading of a section says of its tables.
export function counts({ all, left, problems }) {
  const of = left === all ? count(all) : `${left} of ${all}`;
  return problems > 0 ? `${of}, ${problems} with problems` : of;
}
