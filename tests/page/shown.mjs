// What the page shows: the exact values of all cells, by table, row and column.

// Runs inside of the page.
export function cells() {
  const tables = {};
  for (const table of document.querySelectorAll("main table")) {
    const rows = {};
    for (const line of table.tBodies[0].rows) {
      const values = {};
      for (const cell of line.cells) {
        if (cell.hasAttribute("data-value")) values[cell.dataset.key] = cell.getAttribute("data-value");
      }
      rows[line.dataset.row] = values;
    }
    tables[table.id.replace("table-", "")] = rows;
  }
  const head = {};
  for (const node of document.querySelectorAll("header [data-value]")) head[node.id] = node.dataset.value;
  const problems = [...document.querySelectorAll("#problem-list li")].map((line) => line.textContent);
  return { tables, head, problems };
}

// As lb shows text of others, written anew from lb-user/src/system/escape.rs.
export function escaped(text) {
  let clean = "";
  for (const character of String(text)) {
    const code = character.codePointAt(0);
    const isControl = code < 0x20 || (code >= 0x7f && code <= 0x9f);
    const turns = (code >= 0x2028 && code <= 0x202e) || (code >= 0x2066 && code <= 0x2069);
    if (character === "\n") clean += "\\n";
    else if (character === "\r") clean += "\\r";
    else if (character === "\t") clean += "\\t";
    else if (isControl || turns) clean += `\\u{${code.toString(16)}}`;
    else clean += character;
  }
  return clean;
}
