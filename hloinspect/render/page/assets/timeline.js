// The timeline as a person uses it: what is shown, moving and zooming, pointing and choosing.

const timeline = {
  canvas: byId("canvas"),
  bands: sides.flatMap((side) => side.bands.map((raw) => makeBand(raw, side.place))),
  view: { from: 0, to: 1 },
  chosen: null,
  printing: false,
};

const shownBands = () => timeline.bands.filter((band) => band.visible);
const fullLength = () => Math.max(1, ...shownBands().map((band) => band.length));

function gutterOf(width) {
  return width >= 700 ? 138 : 58;
}

function draw() {
  const { canvas } = timeline;
  if (!canvas) return;
  const width = Math.max(280, Math.floor(canvas.parentElement.clientWidth));
  const ratio = Math.max(1, window.devicePixelRatio || 1);
  let height = 4;
  for (const band of shownBands()) height += measureBand(band, height) + BAND_GAP;
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
  }
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  readColors(context);
  context.fillStyle = colors.paper;
  context.fillRect(0, 0, width, height);
  timeline.frame = { width, gutter: gutterOf(width), view: timeline.view };
  for (const band of shownBands()) paintBand(context, band, timeline.frame, chosenOn(band));
  tellView();
}

let requested = false;
function redraw() {
  if (requested) return;
  requested = true;
  requestAnimationFrame(() => {
    requested = false;
    draw();
  });
}

function chosenOn(band) {
  const { chosen } = timeline;
  if (!chosen || chosen.side !== band.side) return {};
  return { own: chosen.id, partner: chosen.round_trip };
}

function tellView() {
  const { from, to } = timeline.view;
  const whole = fullLength();
  const share = to - from >= whole * 0.999 ? "the whole picture" : `${timeText((to - from) / 1e6)} of ${timeText(whole / 1e6)}`;
  const folded = shownBands().some((band) => band.loops.some((loop) => !loop.open));
  const cut = !folded && shownBands().some((band) => band.length < 0.999 * band.real);
  const why = folded ? " Loops are folded: one steady iteration stands for all that are alike." : cut ? " Loops have too many iterations to show them all: the last of them stay folded." : "";
  byId("shown").textContent = `Shown: ${share}.${why}`;
}

// ---- moving

function look(from, to) {
  const whole = fullLength();
  const span = Math.min(Math.max(to - from, whole * 1e-7, 1), whole);
  const start = Math.min(Math.max(from, 0), whole - span);
  timeline.view = { from: start, to: start + span };
  redraw();
}

function zoom(factor, at) {
  const { from, to } = timeline.view;
  const middle = at === undefined ? (from + to) / 2 : at;
  look(middle - (middle - from) * factor, middle + (to - middle) * factor);
}

function pan(share) {
  const { from, to } = timeline.view;
  const by = (to - from) * share;
  const whole = fullLength();
  const shift = Math.min(Math.max(by, -from), whole - to);
  look(from + shift, to + shift);
}

const fit = () => look(0, fullLength());

function xAt(event) {
  const box = timeline.canvas.getBoundingClientRect();
  const { gutter, width } = timeline.frame;
  const share = (event.clientX - box.left - gutter) / (width - gutter);
  return timeline.view.from + Math.max(0, share) * (timeline.view.to - timeline.view.from);
}

// ---- what is under the pointer

function under(event) {
  const box = timeline.canvas.getBoundingClientRect();
  const px = event.clientX - box.left, py = event.clientY - box.top;
  const { gutter, width, view } = timeline.frame;
  const band = shownBands().find((one) => py >= one.top && py < one.bottom);
  if (!band || px < gutter) return null;
  const x = xAt(event), slack = (2.5 * (view.to - view.from)) / (width - gutter);
  const strip = Math.floor((py - band.top - HEAD - AXIS) / STRIP);
  if (py >= band.top + HEAD + AXIS && strip < band.depth) {
    const one = band.marks.find((mark) => mark.depth === strip && x >= mark.x0 && x < mark.x1);
    return one ? { band, mark: one, x } : null;
  }
  const memory = band.memoryRows.find((row) => py >= row.y && py < row.y + row.height);
  if (memory) return { band, memory, x };
  const row = band.rows.find((one) => py >= one.y && py < one.y + one.height);
  return row ? hit(band, row, Math.floor((py - row.y) / row.slot), x, slack) : null;
}

function hit(band, row, slot, x, slack) {
  let best = null;
  for (let number = pieceAt(band, x - slack); number < band.pieces.length; number++) {
    const piece = band.pieces[number];
    if (piece.x > x + slack) break;
    const lane = piece.segment.lanes[row.lane];
    for (let place = firstBehind(lane, x - slack - piece.x); place < lane.start.length; place++) {
      const from = piece.x + lane.start[place], to = piece.x + lane.end[place];
      if (from > x + slack) break;
      if (lane.slot[place] !== slot) continue;
      const away = x < from ? from - x : x > to ? x - to : 0;
      if (!best || away < best.away) best = { away, band, piece, lane, place, x };
    }
  }
  return best;
}

function tipLines(found) {
  if (found.mark) {
    const { loop } = found.mark;
    const does = loop.iterations > 1 ? [loop.open ? "click to fold" : "click to show all iterations"] : [];
    return [markText(found.mark), `loop ${loop.name}`, ...does];
  }
  if (found.memory) {
    const size = memoryAt(found.band, found.memory, found.x);
    return size === null ? [] : [`${found.memory.name} memory: ${bytesText(size)}`];
  }
  const { lane, place, piece, band } = found;
  const transfer = sides[band.side].byId.get(lane.transfer[place]);
  const lines = [labelOf(band, lane, place)];
  const long = lane.end[place] - lane.start[place];
  lines.push(`${timeText(long / 1e6)}, from ${timeText((piece.real + lane.start[place]) / 1e6)} of the step`);
  if (transfer && lane.kind[place] !== WAIT) {
    const bare = bareLength(lane, place);
    lines.push(`${percentText(long - bare, long)} of this beside compute or collectives`);
    lines.push(`${transfer.verdict}: ${transfer.reason}`);
  } else if (transfer) lines.push(transfer.tensor);
  else if (lane.kind[place] === COLLECTIVE) lines.push("collective");
  else if (!band.measured) lines.push("kernels in a row, of which this is the first");
  return lines;
}

function showTip(event, found) {
  const tip = byId("tip");
  const lines = found ? tipLines(found) : [];
  tip.hidden = !lines.length;
  if (tip.hidden) return;
  tip.replaceChildren(...lines.map((line, place) => make(place ? "div" : "b", {}, line)));
  const box = timeline.canvas.parentElement.getBoundingClientRect();
  const left = Math.min(event.clientX - box.left + 14, box.width - tip.offsetWidth - 4);
  const above = event.clientY - box.top - tip.offsetHeight - 12;
  tip.style.left = `${Math.max(0, left)}px`;
  tip.style.top = `${above > 0 ? above : event.clientY - box.top + 18}px`;
}

// ---- loops

function setLoop(loop, open) {
  const { from, to } = timeline.view;
  loop.open = open;
  for (const band of timeline.bands) layOut(band);
  if (to - from > 0.9 * fullLength() || from >= fullLength()) fit();
  else look(from, to);
  listLoops();
}

function setLoops(open) {
  for (const band of timeline.bands) for (const loop of band.loops) loop.open = open;
  for (const band of timeline.bands) layOut(band);
  fit();
  listLoops();
}

function listLoops() {
  const bar = byId("loops");
  const focused = bar.contains(document.activeElement) ? [...bar.children].indexOf(document.activeElement) : -1;
  const loops = shownBands().flatMap((band) => band.loops.map((loop) => [band, loop]));
  bar.hidden = !loops.length;
  const buttons = [];
  if (loops.length > 1)
    for (const [open, text] of [[true, "Open all loops"], [false, "Fold all loops"]])
      buttons.push(make("button", { type: "button", on: { click: () => setLoops(open) } }, text));
  if (loops.length <= 12)
    for (const [band, loop] of loops) {
      const letter = sides[band.side].label ? `${sides[band.side].label} ` : "";
      const text = `${loop.open ? "Fold" : "Open"} ${letter}${loop.name} \u00d7${countText(loop.iterations)}`;
      const properties = { type: "button", "aria-expanded": String(loop.open), on: { click: () => setLoop(loop, !loop.open) } };
      buttons.push(make("button", properties, text));
    }
  bar.replaceChildren(...buttons);
  if (focused >= 0 && bar.children[focused]) bar.children[focused].focus();
}

// ---- choosing

function showChosen(transfer) {
  let first = null;
  for (const band of shownBands()) {
    if (band.side !== transfer.side) continue;
    const places = placesOf(band, transfer.id);
    if (places.length && !first) first = places;
  }
  if (!first) return;
  const copies = first.filter((place) => place.kind === D2H || place.kind === H2D);
  const target = copies[0] || first[0];
  const { from, to } = timeline.view;
  const long = Math.max(target.x1 - target.x0, fullLength() * 1e-5);
  const seen = target.x0 >= from && target.x1 <= to && long > (to - from) / 60;
  if (!seen) look(target.x0 - 4 * long, target.x1 + 4 * long);
}

function stepThrough(by) {
  const all = sides.flatMap((side) => side.transfers);
  if (!all.length) return;
  const place = all.indexOf(timeline.chosen);
  choose(all[place < 0 ? (by > 0 ? 0 : all.length - 1) : (place + by + all.length) % all.length], { move: true });
}

const KEYS = {
  "+": () => zoom(0.5),
  "=": () => zoom(0.5),
  "-": () => zoom(2),
  _: () => zoom(2),
  0: fit,
  Home: fit,
  ArrowLeft: () => pan(-0.15),
  ArrowRight: () => pan(0.15),
  n: () => stepThrough(1),
  p: () => stepThrough(-1),
  Escape: () => choose(null),
};

function listen() {
  const { canvas } = timeline;
  let drag = null;
  canvas.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || !(event.key in KEYS)) return;
    event.preventDefault();
    KEYS[event.key]();
  });
  canvas.addEventListener(
    "wheel",
    (event) => {
      const sideways = event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY);
      if (!sideways && !event.ctrlKey && !event.metaKey && document.activeElement !== canvas) return;
      event.preventDefault();
      if (sideways) pan((event.deltaX || event.deltaY) / 800);
      else zoom(Math.exp(Math.max(-200, Math.min(200, event.deltaY)) * 0.003), xAt(event));
    },
    { passive: false },
  );
  canvas.addEventListener("pointerdown", (event) => {
    if (event.button) return;
    drag = { x: event.clientX, view: { ...timeline.view }, moved: false };
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", (event) => {
    if (!drag) {
      const found = under(event);
      canvas.style.cursor = found && (found.mark || (found.lane && found.lane.transfer[found.place])) ? "pointer" : "grab";
      showTip(event, found);
      return;
    }
    const by = event.clientX - drag.x;
    if (Math.abs(by) > 4) drag.moved = true;
    if (!drag.moved) return;
    byId("tip").hidden = true;
    canvas.style.cursor = "grabbing";
    const scale = (drag.view.to - drag.view.from) / (timeline.frame.width - timeline.frame.gutter);
    const shift = Math.min(Math.max(-by * scale, -drag.view.from), fullLength() - drag.view.to);
    look(drag.view.from + shift, drag.view.to + shift);
  });
  canvas.addEventListener("pointerup", (event) => {
    const moved = drag && drag.moved;
    drag = null;
    if (!moved) click(event);
  });
  canvas.addEventListener("pointercancel", () => (drag = null));
  canvas.addEventListener("pointerleave", () => (byId("tip").hidden = true));
}

function click(event) {
  const found = under(event);
  if (found && found.mark && found.mark.loop.iterations > 1) return setLoop(found.mark.loop, !found.mark.loop.open);
  if (!found || !found.lane) return choose(null);
  const transfer = sides[found.band.side].byId.get(found.lane.transfer[found.place]);
  if (transfer) return choose(transfer);
  if (event.pointerType === "touch") showTip(event, found);
  say(tipLines(found).join(". "));
}

function say(text) {
  const live = byId("live");
  if (live) live.textContent = text;
}
