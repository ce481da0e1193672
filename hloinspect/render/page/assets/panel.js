// The panel: all that is known of the transfer that is chosen.

function choose(transfer, how = {}) {
  timeline.chosen = transfer;
  fillPanel(transfer);
  markChosen();
  if (transfer && how.move && timeline.canvas) showChosen(transfer);
  if (timeline.canvas) redraw();
  say(transfer ? `${nameOf(transfer)}, ${transfer.tensor}, ${transfer.verdict}: ${transfer.reason}` : "Nothing is selected.");
  const panel = byId("panel");
  if (transfer && how.toPanel && panel) {
    byId("stage").scrollIntoView({ block: "start" });
    panel.focus({ preventScroll: true });
  }
}

function fillPanel(transfer) {
  const panel = byId("panel");
  if (!panel) return;
  panel.hidden = !transfer;
  if (!transfer) return panel.replaceChildren();
  const side = sides[transfer.side];
  const close = make("button", { type: "button", class: "close", "aria-label": "Deselect", on: { click: () => choose(null) } }, "\u00d7");
  const head = make("h3", {}, `${nameOf(transfer)}  `, make("bdi", {}, transfer.tensor), " ", verdictBadge(transfer));
  const parts = [close, head, make("p", { class: "reason" }, marked(transfer.reason)), make("div", { class: "known" }, figureTable(transfer), facts(transfer))];
  const about = side.findings.filter((finding) => finding.transfers.includes(transfer.id));
  for (const finding of about) {
    const link = make("a", { href: `#finding-${side.label || "x"}-${finding.number}` }, finding.code);
    parts.push(make("p", { class: "remedy" }, make("b", {}, "Try "), marked(finding.remedy), " ", link));
  }
  if (!about.length) parts.push(make("p", { class: "remedy" }, "No finding is about this transfer."));
  panel.replaceChildren(...parts);
}

// A sentence with its flags and `code` set as such.
function marked(text) {
  const parts = sentence(text).split(/(`[^`]+`|--[\w.=/,-]*\w)/);
  return make("span", {}, ...parts.map((part, place) => (place % 2 ? make("code", { class: "flag" }, part.replace(/`/g, "")) : part)));
}

function sentence(text) {
  const shown = /^[a-z]+[ ,:;]/.test(text) ? text.slice(0, 1).toUpperCase() + text.slice(1) : text;
  return /[.?!]$/.test(shown) ? shown : `${shown}.`;
}

// Predicted beside measured, as far as there are any.
function figureTable(transfer) {
  const groups = [["predicted", transfer.p], ["measured", transfer.m]].filter(([, times]) => times);
  if (!groups.length) return null;
  const window_ = transfer.m && transfer.m.is_window ? "window from start to copy-done" : "takes";
  const rows = [
    [`${window_}, each`, "duration_each_ms"],
    [`${window_}, a step`, "duration_ms"],
    ["covered by compute or collectives", "cover_ms"],
    ["exposed", "exposed_ms"],
    ["the device waits for it", "wait_ms"],
    ["the step without it would be shorter by", "gain_if_free_ms"],
  ];
  const body = rows
    .filter(([, key]) => groups.some(([, times]) => typeof times[key] === "number"))
    .map(([name, key]) => make("tr", {}, make("th", { scope: "row" }, name), ...groups.map(([word, times]) => figureCell(times, key, word))));
  const head = make("tr", {}, make("th", { scope: "col" }, "time"), ...groups.map(([word]) => make("th", { scope: "col", class: "number" }, word)));
  return make("table", { class: "small" }, make("thead", {}, head), make("tbody", {}, ...body));
}

function figureCell(times, key, word) {
  const value = times[key];
  if (typeof value !== "number") return make("td", { class: "number" }, "");
  let text = timeText(value);
  if (key === "cover_ms") text += ` (${percentText(value, times.duration_ms)})`;
  if (key === "wait_ms" && word === "predicted" && times.high_ms > times.low_ms) text += ` (${timeText(times.low_ms)} to ${timeText(times.high_ms)})`;
  if (key === "wait_ms" && word === "measured") text += ` (90 % below ${timeText(times.p90_ms)})`;
  return make("td", { class: "number", "data-figure": `${word}.${key}`, "data-value": value }, text);
}

function facts(transfer) {
  const side = sides[transfer.side];
  const list = [];
  const add = (name, ...what) => list.push(make("div", {}, make("dt", {}, name), make("dd", {}, ...what)));
  const code = (text) => make("code", {}, text);
  add("moves", `${bytesText(transfer.bytes)} \u00d7${countText(transfer.executions)} = ${bytesText(transfer.bytes_per_step)} a step, ${transfer.direction === "d2h" ? "to the host" : "to the device"}`);
  add("array", code(transfer.shape));
  if (transfer.done) add("window", "from ", code(transfer.start), " to ", code(transfer.done));
  else add("instruction", code(transfer.start), transfer.asynchronous ? " (no copy-done was found)" : " (synchronous: the device does nothing else)");
  add("in", code(transfer.computation), transfer.loop_depth ? `, inside ${transfer.loop_depth === 1 ? "a loop" : `${transfer.loop_depth} loops`}` : "");
  if (transfer.file) add("source", code(`${transfer.file}:${transfer.line}`), transfer.function ? ` in ${transfer.function}` : "");
  add("mechanism", { dma: "copy engine", kernel: "a kernel reads or writes host memory" }[transfer.mechanism] || transfer.mechanism);
  if (transfer.stream) add("stream", code(transfer.stream));
  const partners = transfer.partners.split(" ").map((id) => side.byId.get(Number(id))).filter(Boolean);
  const buttons = partners.flatMap((partner, number) => number ? [", ", pickButton(partner)] : [pickButton(partner)]);
  if (partners.length) add("round trip", transfer.direction === "d2h" ? "brought back by " : "sent by ", ...buttons);
  else add("other end", transfer.outcome);
  const ahead = side.byId.get(transfer.queued_behind);
  if (ahead) add("queues behind", pickButton(ahead));
  if (transfer.p && transfer.p.needed_link_gbps) add("would hide with", `a link of ${transfer.p.needed_link_gbps.toFixed(0)} GB/s`);
  if (transfer.m && transfer.m.gbps) add("measured rate", `${digits(transfer.m.gbps)} GB/s`);
  if (transfer.freed_bytes) add("frees", `${bytesText(transfer.freed_bytes)} of device memory${transfer.late ? ", but only when the backward pass has begun" : ""}`);
  return make("dl", { class: "facts" }, ...list);
}
