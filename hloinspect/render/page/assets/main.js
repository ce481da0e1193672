// Puts the page together.

function legend() {
  const box = byId("legend");
  if (!box) return;
  const lanes = new Set(timeline.bands.flatMap((band) => band.lanes.map((lane) => data.lanes[lane])));
  const kinds = new Set(timeline.bands.flatMap((band) => band.segments.flatMap((one) => one.lanes.flatMap((lane) => lane.kind))));
  const items = [["compute", "compute"]];
  if (kinds.has(COLLECTIVE)) items.push(["collective", "collective"]);
  if (lanes.has("d2h")) items.push(["d2h", "copy to the host, beside work"]);
  if (lanes.has("h2d")) items.push(["h2d", "copy from the host, beside work"]);
  if (lanes.has("d2h") || lanes.has("h2d")) items.push(["bare", "copy, nothing runs beside it"]);
  if (lanes.has("wait")) items.push(["wait", "the device waits"]);
  const entries = items.map(([name, text]) => {
    const swatch = make("canvas", { width: 30, height: 14, "aria-hidden": "true", "data-swatch": name });
    return make("span", { role: "listitem" }, swatch, text);
  });
  box.replaceChildren(...entries);
}

function paintLegend() {
  for (const swatch of document.querySelectorAll("canvas[data-swatch]")) {
    const pen = swatch.getContext("2d");
    pen.fillStyle = patterns[swatch.dataset.swatch];
    pen.fillRect(0, 0, swatch.width, swatch.height);
  }
}

function deviceChoice() {
  const place = byId("devices-choice");
  for (const side of sides) {
    const own = timeline.bands.filter((band) => band.side === side.place && band.measured);
    own.forEach((band, number) => (band.visible = number === 0));
    if (own.length < 2 || !place) continue;
    const select = make("select", {}, ...own.map((band, number) => make("option", { value: number }, band.label)));
    select.addEventListener("change", () => {
      own.forEach((band, number) => (band.visible = number === Number(select.value)));
      makeWaitTable();
      openLoops();
      listLoops();
      fit();
    });
    place.append(make("label", {}, `Device${side.label ? ` of ${side.label}` : ""} `, select));
  }
}

// Loops stay folded, unless something beside them shows its iterations one by one: then both are on one scale.
function openLoops() {
  const mixed = shownBands().some((band) => band.loops.length) && shownBands().some((band) => !band.loops.length);
  for (const band of timeline.bands) {
    for (const loop of band.loops) loop.open = mixed;
    layOut(band);
  }
}

const dark = window.matchMedia("(prefers-color-scheme: dark)");

function isDark() {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : dark.matches;
}

function themed() {
  byId("theme").textContent = isDark() ? "Light" : "Dark";
  if (timeline.canvas) {
    draw();
    paintLegend();
  }
}

function wire() {
  byId("theme").addEventListener("click", () => {
    document.documentElement.dataset.theme = isDark() ? "light" : "dark";
    themed();
  });
  dark.addEventListener("change", themed);
  document.addEventListener("click", (event) => {
    const button = event.target.closest("button[data-transfer]");
    if (button && !button.closest("tr")) {
      const transfer = sides[Number(button.dataset.side)].byId.get(Number(button.dataset.transfer));
      if (transfer) choose(transfer, { move: true, toPanel: true });
    }
    const link = event.target.closest('a[href^="#rule-"]');
    if (link) byId(link.getAttribute("href").slice(1)).open = true;
  });
  for (const region of document.querySelectorAll(".scroll")) {
    region.tabIndex = 0;
    region.setAttribute("role", "region");
    region.setAttribute("aria-label", region.querySelector("caption") ? region.querySelector("caption").textContent : "table");
  }
}

function wireTimeline() {
  const tools = {
    "zoom-in": () => zoom(0.5),
    "zoom-out": () => zoom(2),
    fit,
    left: () => pan(-0.5),
    right: () => pan(0.5),
    previous: () => stepThrough(-1),
    next: () => stepThrough(1),
  };
  for (const [name, call] of Object.entries(tools)) byId(`tool-${name}`).addEventListener("click", call);
  listen();
  byId("panel").addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    choose(null);
    timeline.canvas.focus();
  });
  new ResizeObserver(redraw).observe(timeline.canvas.parentElement);
  for (const event of ["beforeprint", "afterprint"])
    window.addEventListener(event, () => {
      document.documentElement.classList.toggle("printing", event === "beforeprint");
      themed();
    });
}

const times = { parsedMs: performance.now() - started };
deviceChoice();
openLoops();
if (timeline.canvas) {
  timeline.view = { from: 0, to: fullLength() };
  listLoops();
  legend();
  themed();
  wireTimeline();
}
times.firstDrawMs = performance.now() - started;
makeWaitTable();
openLoops();
makeTransferTable();
wire();
times.readyMs = performance.now() - started;
// For those who test the page, and for the curious; nothing here changes anything.
window.hloinspect = {
  ...times,
  view: () => ({ ...timeline.view, whole: fullLength() }),
  bands: () => shownBands().map((band) => ({ label: band.label, length: band.length, real: band.real, top: band.top, rows: band.rows, memoryRows: band.memoryRows })),
  timeText,
  bytesText,
  frame: () => ({ ...timeline.frame }),
  placesOf: (side, id) => shownBands().filter((band) => band.side === side).flatMap((band) => placesOf(band, id)),
};
