// The data island as objects: columns become rows, differences become sums. Nothing here touches the page.

const started = performance.now();
const data = JSON.parse(document.getElementById("data").textContent);
const texts = data.strings;
const KINDS = ["compute", "collective", "d2h", "h2d", "wait"];
const COMPUTE = 0, COLLECTIVE = 1, D2H = 2, H2D = 3, WAIT = 4;
const VERDICTS = ["hidden", "partial", "exposed", "synchronous", "unknown"];
const MARKS = { hidden: "\u25cf", partial: "\u25d0", exposed: "\u25cb", synchronous: "\u25a0", unknown: "?" };

function sums(differences) {
  let sum = 0;
  return differences.map((difference) => (sum += difference));
}

// Columns as one object a row; "p.x" and "m.x" become row.p.x and row.m.x (null where all of them are null).
function rowsOf(table) {
  const isText = new Set(table.texts);
  const rows = Array.from({ length: table.count }, () => ({ p: {}, m: {} }));
  for (const [key, column] of Object.entries(table.columns)) {
    const [group, name] = key.includes(".") ? key.split(".") : [null, key];
    rows.forEach((row, place) => {
      const value = column.length === 1 ? column[0] : column[place];
      (group ? row[group] : row)[name] = isText.has(key) && value !== null ? texts[value] : value;
    });
  }
  for (const row of rows) {
    if (row.p.wait_ms === null) row.p = null;
    if (row.m.wait_ms === null) row.m = null;
  }
  return rows;
}

// ---- figures as people read them, as hloinspect/units.py writes them

function digits(value) {
  return String(Number(value.toPrecision(3)));
}

function timeText(ms) {
  if (ms >= 10000) return `${(ms / 1000).toFixed(2)} s`;
  if (ms >= 100) return `${ms.toFixed(0)} ms`;
  if (ms >= 0.1) return `${digits(ms)} ms`;
  if (ms >= 1e-3) return `${digits(ms * 1e3)} us`;
  return ms > 0 ? `${digits(ms * 1e6)} ns` : "0 ms";
}

function bytesText(size) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let value = size, unit = 0;
  while (value >= 1024 && unit < units.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return value >= 100 || unit === 0 ? `${value.toFixed(0)} ${units[unit]}` : `${digits(value)} ${units[unit]}`;
}

function percentText(part, whole) {
  return whole > 0 ? `${((100 * part) / whole).toFixed(0)} %` : "0 %";
}

function countText(count) {
  return count.toLocaleString("en-US");
}

// ---- elements, made without markup: texts stay texts

function make(tag, properties, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties || {})) {
    if (name === "class") element.className = value;
    else if (name === "on") for (const [event, call] of Object.entries(value)) element.addEventListener(event, call);
    else if (value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

const byId = (id) => document.getElementById(id);

const sides = data.sides.map((raw, place) => {
  const transfers = rowsOf(raw.transfers);
  for (const transfer of transfers) transfer.side = place;
  return {
    place,
    label: raw.label,
    measured: raw.measured,
    predicted: raw.predicted,
    memory: raw.memory,
    transfers,
    byId: new Map(transfers.map((transfer) => [transfer.id, transfer])),
    findings: raw.findings.map((finding) => ({
      ...finding,
      name: texts[finding.name],
      message: texts[finding.message],
      remedy: texts[finding.remedy],
    })),
    bands: raw.bands,
  };
});

function nameOf(transfer) {
  const letter = sides[transfer.side].label;
  return `${letter ? `${letter} ` : ""}${transfer.direction} ${transfer.id}`;
}

// The times from which a verdict follows: measured where there are any.
function timesOf(transfer) {
  return transfer.m || transfer.p;
}
