// Tables that sort and filter. A row stands for a transfer; choosing it chooses the transfer everywhere.

const both = sides.length > 1;
const anyMeasured = sides.some((side) => side.transfers.some((transfer) => transfer.m));
const anyPredicted = sides.some((side) => side.transfers.some((transfer) => transfer.p));

function verdictBadge(transfer) {
  const doubt = transfer.robust === 0 ? " ?" : "";
  const title = doubt ? "the verdict changes within the range of the prediction" : null;
  return make("span", { class: `verdict ${transfer.verdict}`, title }, `${MARKS[transfer.verdict] || ""} ${transfer.verdict}${doubt}`);
}

const number = (value, text) => (value === null || value === undefined ? "" : text(value));

// title, value to sort by, text or element to show; `right` for figures, `up` where small ones come first at first.
function transferColumns() {
  const columns = [
    { title: "Transfer", up: true, value: (t) => t.side * 1e9 + t.id, show: pickButton },
    { title: "Tensor", up: true, value: (t) => t.tensor, show: (t) => t.tensor },
    { title: "Each", right: true, value: (t) => t.bytes, show: (t) => bytesText(t.bytes) },
    { title: "Runs", right: true, value: (t) => t.executions, show: (t) => `\u00d7${countText(t.executions)}` },
  ];
  for (const [key, shown, word] of [["p", anyPredicted, "predicted"], ["m", anyMeasured, "measured"]]) {
    if (!shown) continue;
    const more = anyPredicted && anyMeasured ? `, ${word}` : "";
    const window_ = key === "m" && sides.some((side) => side.transfers.some((t) => t.m && t.m.is_window));
    const figure = (name) => (t) => (t[key] ? t[key][name] : null);
    columns.push(
      { title: `${window_ ? "Window" : "Takes"}${more}`, right: true, value: figure("duration_each_ms"), show: (t) => number(figure("duration_each_ms")(t), timeText) },
      { title: `Covered${more}`, right: true, value: (t) => (t[key] ? t[key].cover_ms / (t[key].duration_ms || 1) : null), show: (t) => (t[key] ? percentText(t[key].cover_ms, t[key].duration_ms) : "") },
      { title: `Waits${more}`, right: true, value: figure("wait_ms"), show: (t) => number(figure("wait_ms")(t), timeText) },
    );
  }
  columns.push(
    { title: "Verdict", up: true, value: (t) => -VERDICTS.indexOf(t.verdict), show: verdictBadge },
    { title: "Where", up: true, value: (t) => t.where, show: (t) => t.where },
  );
  return columns;
}

function pickButton(transfer) {
  return make("button", { type: "button", class: "pick", "data-side": transfer.side, "data-transfer": transfer.id }, nameOf(transfer));
}

// One table: a head with buttons that sort, and a body whose rows are made once and put in order.
function sortable(table, caption, columns, rows, initial) {
  const state = { column: initial, up: Boolean(columns[initial].up), keep: () => true, shown: rows };
  const heads = columns.map((column, place) => {
    const button = make("button", { type: "button" }, column.title);
    button.addEventListener("click", () => {
      state.up = state.column === place ? !state.up : Boolean(column.up);
      state.column = place;
      fill();
    });
    return make("th", { scope: "col", class: column.right ? "number" : "" }, button);
  });
  const body = make("tbody");
  const lines = new Map();
  table.replaceChildren(make("caption", {}, caption), make("thead", {}, make("tr", {}, ...heads)), body);

  function fill() {
    const { value } = columns[state.column];
    const sign = state.up ? 1 : -1;
    const order = rows.map((row, place) => [value(row), place]);
    order.sort(([one, first], [other, second]) => {
      if (one === other || (one !== one && other !== other)) return first - second;
      if (one === null || one === undefined) return 1;
      if (other === null || other === undefined) return -1;
      return (one < other ? -1 : 1) * sign;
    });
    state.shown = order.map(([, place]) => rows[place]).filter(state.keep);
    body.replaceChildren(...state.shown.map((row) => {
      if (!lines.has(row)) lines.set(row, rowOf(row));
      return lines.get(row);
    }));
    heads.forEach((head, place) => {
      if (place === state.column) head.setAttribute("aria-sort", state.up ? "ascending" : "descending");
      else head.removeAttribute("aria-sort");
    });
    markChosen();
  }

  function rowOf(row) {
    const transfer = row.transfer || row;
    const cells = columns.map((column) =>
      make("td", { class: column.right ? "number" : "", "data-value": column.right ? column.value(row) : null }, column.show(row)),
    );
    const line = make("tr", { "data-side": transfer.side, "data-transfer": transfer.id }, ...cells);
    line.addEventListener("click", (event) => {
      if (event.target.closest("button") || !String(window.getSelection())) choose(transfer, { move: true, toPanel: true });
    });
    return line;
  }

  fill();
  return { fill, state };
}

let transferTable = null;

function makeTransferTable() {
  const table = byId("transfer-table");
  if (!table) return;
  const rows = sides.flatMap((side) => side.transfers);
  const columns = transferColumns();
  const wait = columns.map((column) => column.title.startsWith("Waits")).lastIndexOf(true);
  const doubt = rows.some((row) => row.robust === 0) ? " A verdict with ? changes within the range of the prediction, or the profiler dropped events." : "";
  transferTable = sortable(table, `Every host transfer of the step. Takes is for one run, waits are for the whole step.${doubt}`, columns, rows, Math.max(0, wait));
  const verdicts = VERDICTS.filter((verdict) => rows.some((row) => row.verdict === verdict));
  byId("filter-verdict").append(...verdicts.map((verdict) => make("option", { value: verdict }, verdict)));
  const haystacks = new Map(rows.map((row) => [row, haystack(row)]));
  const refilter = () => {
    const direction = byId("filter-direction").value, verdict = byId("filter-verdict").value;
    const words = byId("filter-text").value.toLowerCase().split(/\s+/).filter(Boolean);
    transferTable.state.keep = (row) =>
      (!direction || row.direction === direction) &&
      (!verdict || row.verdict === verdict) &&
      words.every((word) => haystacks.get(row).includes(word));
    transferTable.fill();
    const shown = transferTable.state.shown;
    const moved = shown.reduce((sum, row) => sum + row.bytes_per_step, 0);
    byId("filter-count").textContent = `${countText(shown.length)} of ${countText(rows.length)} transfers, ${bytesText(moved)} a step`;
  };
  for (const id of ["filter-direction", "filter-verdict", "filter-text"]) byId(id).addEventListener("input", refilter);
  refilter();
}

function haystack(transfer) {
  const parts = [nameOf(transfer), transfer.tensor, transfer.shape, transfer.start, transfer.done, transfer.computation];
  parts.push(transfer.file, transfer.where, transfer.function, transfer.verdict, transfer.mechanism, transfer.reason);
  return parts.filter(Boolean).join(" ").toLowerCase();
}

// ---- waits: where on the timeline the device waits, and for what

function waitsOf(band) {
  const found = [];
  const lane = data.lanes.indexOf("wait");
  for (const piece of band.pieces) {
    const { start, end, transfer } = piece.segment.lanes[lane];
    start.forEach((from, place) => {
      const own = sides[band.side].byId.get(transfer[place]);
      if (own) found.push({ transfer: own, at: piece.real + from, each: end[place] - from, iterations: piece.segment.repeat, band });
    });
  }
  return found;
}

function makeWaitTable() {
  const table = byId("wait-table");
  if (!table) return;
  for (const band of timeline.bands) for (const loop of band.loops) loop.open = false;
  timeline.bands.forEach(layOut);
  const rows = shownBands().flatMap(waitsOf);
  byId("waits-note").textContent = rows.length
    ? "Each interval in which the device waits for a transfer. Waits add up to the stall of the step; one in a loop happens in every iteration."
    : "The device waits for no transfer.";
  table.parentElement.hidden = !rows.length;
  const columns = [
    { title: "Transfer", up: true, value: (w) => w.transfer.side * 1e9 + w.transfer.id, show: (w) => pickButton(w.transfer) },
    { title: "Waits each", right: true, value: (w) => w.each, show: (w) => timeText(w.each / 1e6) },
    { title: "Times", right: true, value: (w) => w.iterations, show: (w) => `\u00d7${countText(w.iterations)}` },
    { title: "A step", right: true, value: (w) => w.each * w.iterations, show: (w) => timeText((w.each * w.iterations) / 1e6) },
    { title: "First at", right: true, up: true, value: (w) => w.at, show: (w) => timeText(w.at / 1e6) },
    { title: "Waits at", up: true, value: (w) => w.transfer.done || w.transfer.start, show: (w) => w.transfer.done || w.transfer.start },
    { title: "Tensor", up: true, value: (w) => w.transfer.tensor, show: (w) => w.transfer.tensor },
  ];
  if (shownBands().length > 1) columns.push({ title: "Timeline", up: true, value: (w) => w.band.label, show: (w) => w.band.label });
  sortable(table, "Waits, the longest first", columns, rows, 3);
}

function markChosen() {
  const { chosen } = timeline;
  for (const row of document.querySelectorAll("tr[data-transfer]")) {
    const own = chosen && Number(row.dataset.side) === chosen.side && Number(row.dataset.transfer) === chosen.id;
    row.classList.toggle("chosen", Boolean(own));
    const pick = row.querySelector("button");
    if (own) pick.setAttribute("aria-current", "true");
    else pick.removeAttribute("aria-current");
  }
}
