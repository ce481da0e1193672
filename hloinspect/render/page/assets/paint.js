// Drawing: rows of intervals, memory, axes. Knows pixels and colours, and nothing of clicks.

const ROW = { main: 26, wait: 18, side: 16, communication: 18, d2h: 22, h2d: 22 };
const SLOT = 18, MEMORY_ROW = 46, HEAD = 22, STRIP = 17, AXIS = 20, GAP = 3, BAND_GAP = 16;
const LANE_NAMES = {
  main: ["Compute", "Comp."],
  wait: ["Waiting for the host", "Wait"],
  side: ["Side stream", "Side"],
  communication: ["Collectives", "Coll."],
  d2h: ["Copies to the host", "d2h"],
  h2d: ["Copies from the host", "h2d"],
};
// A TPU's trace does not say when a copy moves: these are the windows from the start to the end of the wait.
const WINDOW_NAMES = { d2h: ["Windows to the host", "d2h"], h2d: ["Windows from the host", "h2d"] };
const COLORS = [
  "paper", "ink", "faint", "line", "compute", "collective", "copied", "bare", "wait", "device", "host", "select", "on-fill",
];
const FONT = "12px system-ui, -apple-system, 'Segoe UI', sans-serif";
const SMALL = "11px system-ui, -apple-system, 'Segoe UI', sans-serif";

let colors = {};
const patterns = {};

function readColors(context) {
  const style = getComputedStyle(document.documentElement);
  colors = Object.fromEntries(COLORS.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
  patterns.collective = patternOf(context, colors.collective, "upright");
  patterns.d2h = patternOf(context, colors.copied, "rising");
  patterns.h2d = patternOf(context, colors.copied, "falling");
  patterns.bare = patternOf(context, colors.bare, "cross");
  patterns.wait = patternOf(context, colors.wait, "dots");
  patterns.compute = colors.compute;
}

// A filled tile with marks in the colour of the paper: kinds look different without colour too.
function patternOf(context, color, marks) {
  const tile = document.createElement("canvas");
  tile.width = tile.height = 8;
  const pen = tile.getContext("2d");
  pen.fillStyle = color;
  pen.fillRect(0, 0, 8, 8);
  pen.strokeStyle = pen.fillStyle = colors["on-fill"];
  pen.globalAlpha = 0.38;
  pen.lineWidth = 1.4;
  const lines = {
    upright: [[2, 0, 2, 8], [6, 0, 6, 8]],
    rising: [[-2, 10, 10, -2], [-2, 2, 2, -2], [6, 10, 10, 6]],
    falling: [[-2, -2, 10, 10], [-2, 6, 2, 10], [6, -2, 10, 2]],
    cross: [[-2, 10, 10, -2], [-2, -2, 10, 10]],
    dots: [],
  }[marks];
  for (const [x0, y0, x1, y1] of lines) {
    pen.beginPath();
    pen.moveTo(x0, y0);
    pen.lineTo(x1, y1);
    pen.stroke();
  }
  if (marks === "dots") for (const [x, y] of [[1, 1], [5, 5]]) pen.fillRect(x, y, 2, 2);
  return context.createPattern(tile, "repeat");
}

function fillOf(lane, kind) {
  if (kind === COMPUTE) return patterns.compute;
  if (kind === COLLECTIVE) return patterns.collective;
  return kind === WAIT ? patterns.wait : kind === D2H ? patterns.d2h : patterns.h2d;
}

// Rows of a band with their heights, from the top; gives the band's height.
function measureBand(band, top) {
  let y = top + HEAD + AXIS + band.depth * STRIP;
  band.top = top;
  band.rows = band.lanes.map((lane) => {
    const slots = band.slots[lane];
    const height = slots === 1 ? ROW[data.lanes[lane]] : slots * SLOT;
    const row = { lane, y, height, slot: height / slots };
    y += height + GAP;
    return row;
  });
  band.memoryRows = [];
  if (band.memory) {
    const shown = [["device", band.memory.device_peak_bytes], ["host", band.memory.host_peak_bytes]];
    for (const [name, peak] of shown)
      if (peak > 0) {
        band.memoryRows.push({ name, peak, y: y + 4, height: MEMORY_ROW });
        y += MEMORY_ROW + GAP + 4;
      }
  }
  band.bottom = y;
  return y - top;
}

// Everything of a band. `frame` has width, gutter, and view (from, to); `chosen` are the transfers to mark, by role.
function paintBand(context, band, frame, chosen) {
  const { gutter, width } = frame;
  const scale = (width - gutter) / (frame.view.to - frame.view.from);
  const X = (x) => gutter + (x - frame.view.from) * scale;
  context.save();
  context.font = `600 ${FONT}`;
  context.fillStyle = colors.ink;
  context.textBaseline = "middle";
  context.fillText(clipped(context, band.label, width - 4), 2, band.top + HEAD / 2);
  paintAxis(context, band, frame, X);
  paintStrips(context, band, frame, X);
  for (const row of band.rows) paintRow(context, band, row, frame, X, scale);
  for (const row of band.memoryRows) paintMemory(context, band, row, frame, X);
  paintBreaks(context, band, frame, X);
  paintChosen(context, band, frame, X, chosen);
  paintLabels(context, band, frame);
  context.restore();
}

function paintLabels(context, band, frame) {
  const short = frame.gutter < 100 ? 1 : 0;
  context.font = SMALL;
  context.fillStyle = colors.paper;
  context.fillRect(0, band.top + HEAD, frame.gutter - 1, band.bottom - band.top - HEAD);
  context.fillStyle = colors.ink;
  for (const row of band.rows) {
    const name = data.lanes[row.lane];
    const names = band.windows && name in WINDOW_NAMES ? WINDOW_NAMES[name] : LANE_NAMES[name];
    context.fillText(clipped(context, names[short], frame.gutter - 6), 2, row.y + row.height / 2);
  }
  for (const row of band.memoryRows) {
    const name = row.name === "device" ? ["Device memory", "Device"] : ["Host memory", "Host"];
    context.fillText(name[short], 2, row.y + row.height / 2 - 8);
    context.fillStyle = colors.faint;
    const most = `${short ? "" : "up to "}${bytesText(row.peak)}`;
    context.fillText(most, 2, row.y + row.height / 2 + 7);
    context.fillStyle = colors.ink;
  }
}

function clipped(context, text, room) {
  if (room < 12) return "";
  if (context.measureText(text).width <= room) return text;
  let low = 0, high = text.length;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (context.measureText(`${text.slice(0, middle)}\u2026`).width <= room) low = middle;
    else high = middle - 1;
  }
  return low > 0 ? `${text.slice(0, low)}\u2026` : "";
}

// ---- time

function niceStep(span, room) {
  const rough = (span * 90) / room;
  const power = 10 ** Math.floor(Math.log10(rough));
  return power * [1, 2, 5, 10].find((step) => step * power >= rough);
}

// Intervals in which time goes on without a jump: [{x0, x1, real}].
function unbroken(band) {
  const found = [];
  for (const piece of band.pieces) {
    const last = found[found.length - 1];
    if (last && Math.abs(last.real + (last.x1 - last.x0) - piece.real) < 1e-6 * Math.max(1, piece.real)) last.x1 += piece.segment.length;
    else found.push({ x0: piece.x, x1: piece.x + piece.segment.length, real: piece.real });
  }
  return found;
}

function paintAxis(context, band, frame, X) {
  const y = band.top + HEAD + AXIS - 4;
  const step = niceStep(frame.view.to - frame.view.from, frame.width - frame.gutter);
  let free = frame.gutter;
  context.font = SMALL;
  for (const interval of unbroken(band)) {
    const from = Math.max(interval.x0, frame.view.from), to = Math.min(interval.x1, frame.view.to);
    if (from >= to) continue;
    const shift = interval.real - interval.x0;
    for (let number = Math.ceil((from + shift) / step - 1e-9); number * step <= to + shift; number++) {
      const x = X(number * step - shift);
      context.fillStyle = colors.line;
      context.fillRect(x, y, 1, band.bottom - y);
      const text = timeLabel(number * step, step);
      const half = context.measureText(text).width;
      if (x >= free && x + half < frame.width) {
        context.fillStyle = colors.faint;
        context.fillText(text, x + 3, y - 6);
        free = x + half + 14;
      }
    }
  }
}

// A time of the step, with enough digits to differ from its neighbours.
function timeLabel(ns, step) {
  const [unit, size] = step >= 2e8 ? ["s", 1e9] : step >= 2e5 ? ["ms", 1e6] : step >= 200 ? ["us", 1e3] : ["ns", 1];
  const places = Math.max(0, Math.min(9, Math.ceil(-Math.log10(step / size) - 1e-9)));
  return `${(ns / size).toFixed(places)} ${unit}`;
}

function paintStrips(context, band, frame, X) {
  context.font = SMALL;
  const step = band.top + HEAD + AXIS;
  for (const one of band.marks) {
    const x0 = Math.max(X(one.x0), frame.gutter), x1 = Math.min(X(one.x1), frame.width);
    if (x1 - x0 < 1.5) continue;
    const y = step + one.depth * STRIP;
    const folds = one.loop.iterations > 1;
    context.fillStyle = colors.line;
    context.fillRect(x0 + 0.5, y + 1, x1 - x0 - 1, STRIP - 4);
    context.fillStyle = colors.ink;
    const sign = folds ? (one.loop.open ? "\u2212 " : "+ ") : "";
    const text = `${sign}${markText(one)}`;
    const short = one.last > one.first ? `${sign}\u00d7${countText(one.last - one.first + 1)}` : sign.trim();
    const room = x1 - x0 - 8;
    const shown = context.measureText(text).width <= room ? text : clipped(context, short, room);
    context.fillText(shown, x0 + 4, y + STRIP / 2 - 0.5);
  }
}

// Where iterations are left out, a broken line.
function paintBreaks(context, band, frame, X) {
  const found = unbroken(band);
  context.strokeStyle = colors.faint;
  context.lineWidth = 1;
  context.setLineDash([3, 3]);
  for (const interval of found.slice(1)) {
    const x = X(interval.x0);
    if (x < frame.gutter || x > frame.width) continue;
    context.beginPath();
    context.moveTo(x, band.top + HEAD);
    context.lineTo(x, band.bottom - GAP);
    context.stroke();
  }
  context.setLineDash([]);
}

// ---- rows

function paintRow(context, band, row, frame, X, scale) {
  const { gutter, width, view } = frame;
  const bins = new Map();
  const bin = (fill, slot, x, share) => {
    const column = Math.floor(x) - gutter;
    if (column < 0 || column >= width - gutter) return;
    if (!bins.has(fill)) bins.set(fill, []);
    const rows = bins.get(fill);
    if (!rows[slot]) rows[slot] = new Float32Array(width - gutter + 1);
    rows[slot][column] += share;
  };
  const bar = (fill, from, to, slot) => {
    const x0 = X(from), x1 = X(to);
    if (x1 < gutter || x0 > width) return;
    if (x1 - x0 < 1) return bin(fill, slot, x0, x1 - x0);
    const left = Math.max(x0, gutter), right = Math.min(x1, width);
    context.fillStyle = fill;
    const y = row.y + slot * row.slot;
    context.fillRect(left, y, Math.max(1, right - left - (right - left > 4 ? 0.5 : 0)), row.slot - (slot ? 1 : 0));
  };
  context.fillStyle = colors.line;
  context.fillRect(gutter, row.y + row.height, width - gutter, 1);
  const labels = [];
  for (let number = pieceAt(band, view.from); number < band.pieces.length && band.pieces[number].x < view.to; number++) {
    const piece = band.pieces[number], lane = piece.segment.lanes[row.lane];
    for (let place = firstBehind(lane, view.from - piece.x); place < lane.start.length; place++) {
      const from = piece.x + lane.start[place], to = piece.x + lane.end[place];
      if (from > view.to) break;
      const slot = lane.slot[place];
      bar(fillOf(row.lane, lane.kind[place]), from, to, slot);
      for (const [begin, end] of lane.bare[place] || []) bar(patterns.bare, piece.x + begin, piece.x + end, slot);
      if ((to - from) * scale > 34) labels.push([from, to, lane, place]);
    }
  }
  paintBins(context, row, gutter, bins);
  for (const [from, to, lane, place] of labels) paintName(context, band, row, X, frame, from, to, lane, place);
}

// What is narrower than a pixel: in each column the filled height is its share of the time, the worst at the bottom.
function paintBins(context, row, gutter, bins) {
  const worst = [patterns.bare, patterns.wait];
  const fills = [...bins.keys()].sort((one, other) => worst.includes(other) - worst.includes(one));
  for (let slot = 0; slot * row.slot < row.height - 1; slot++) {
    const filled = new Float32Array(Math.max(0, ...fills.map((fill) => (bins.get(fill)[slot] || []).length)));
    for (const fill of fills) {
      context.fillStyle = fill;
      (bins.get(fill)[slot] || []).forEach((share, column) => {
        if (share <= 0) return;
        const height = Math.min(row.slot - filled[column], Math.max(share * row.slot, worst.includes(fill) ? 4 : 1.5));
        filled[column] += height;
        context.fillRect(gutter + column, row.y + (slot + 1) * row.slot - filled[column], 1, height);
      });
    }
  }
}

function paintName(context, band, row, X, frame, from, to, lane, place) {
  const left = Math.max(X(from), frame.gutter), right = Math.min(X(to), frame.width);
  context.font = SMALL;
  const shown = clipped(context, labelOf(band, lane, place), right - left - 10);
  if (!shown) return;
  const y = row.y + lane.slot[place] * row.slot + row.slot / 2;
  if (lane.kind[place] !== COMPUTE) {
    context.fillStyle = colors.paper;
    context.fillRect(left + 3, y - 7, context.measureText(shown).width + 5, 14);
  }
  context.fillStyle = colors.ink;
  context.fillText(shown, left + 5.5, y + 0.5);
}

function labelOf(band, lane, place) {
  const transfer = lane.transfer[place] ? sides[band.side].byId.get(lane.transfer[place]) : null;
  if (lane.kind[place] === WAIT) return `waits for ${transfer ? `${transfer.direction} ${transfer.id}` : "the host"}`;
  if (transfer) return `${transfer.direction} ${transfer.id}  ${transfer.tensor}`;
  const name = texts[lane.name[place]] || KINDS[lane.kind[place]];
  // A predicted interval of compute is a run of kernels, and has the name of the first.
  return lane.kind[place] === COMPUTE && !band.measured ? `${name} \u2026` : name;
}

// ---- memory

function paintMemory(context, band, row, frame, X) {
  const { gutter, width, view } = frame;
  const most = row.peak * 1.08;
  const Y = (size) => row.y + row.height - (size / most) * row.height;
  context.fillStyle = colors.line;
  context.fillRect(gutter, row.y + row.height, width - gutter, 1);
  context.fillStyle = colors[row.name];
  const columns = new Float32Array(width - gutter + 1);
  for (let number = pieceAt(band, view.from); number < band.pieces.length && band.pieces[number].x < view.to; number++) {
    const piece = band.pieces[number], memory = piece.segment.memory;
    if (!memory) continue;
    memory.times.forEach((time, place) => {
      const end = place + 1 < memory.times.length ? memory.times[place + 1] : piece.segment.length;
      const x0 = Math.max(gutter, X(piece.x + time)), x1 = Math.min(width, X(piece.x + end));
      if (x1 < gutter || x0 > width) return;
      const size = memory[row.name][place];
      for (let column = Math.floor(x0) - gutter; column <= Math.ceil(x1) - 1 - gutter; column++)
        if (column >= 0 && size > columns[column]) columns[column] = size;
    });
  }
  context.globalAlpha = 0.35;
  columns.forEach((size, column) => {
    if (size > 0) context.fillRect(gutter + column, Y(size), 1, row.y + row.height - Y(size));
  });
  context.globalAlpha = 1;
  columns.forEach((size, column) => {
    if (size > 0) context.fillRect(gutter + column, Y(size) - 1, 1, 2);
  });
  const limit = sides[band.side].memory[`${row.name}_limit_bytes`];
  if (limit && limit <= most) {
    context.fillStyle = colors.bare;
    context.fillRect(gutter, Y(limit), width - gutter, 1);
  }
}

function memoryAt(band, row, x) {
  const piece = band.pieces[Math.min(pieceAt(band, x), band.pieces.length - 1)];
  if (!piece || !piece.segment.memory) return null;
  const { times } = piece.segment.memory;
  let place = 0;
  while (place + 1 < times.length && times[place + 1] <= x - piece.x) place++;
  return piece.segment.memory[row.name][place];
}

// ---- what is chosen

function paintChosen(context, band, frame, X, chosen) {
  const y = new Map(band.rows.map((row) => [row.lane, row]));
  const drawn = {};
  for (const [role, id] of Object.entries(chosen)) {
    if (!id) continue;
    const places = placesOf(band, id);
    drawn[role] = places.filter((place) => place.kind === D2H || place.kind === H2D);
    context.strokeStyle = colors.select;
    context.lineWidth = role === "own" ? 2.5 : 2;
    context.setLineDash(role === "own" ? [] : [5, 3]);
    for (const place of places) {
      const x0 = Math.max(X(place.x0), frame.gutter - 4), x1 = Math.min(X(place.x1), frame.width + 4);
      if (x1 < frame.gutter || x0 > frame.width) continue;
      const row = y.get(place.lane), top = row.y + place.slot * row.slot;
      if (x1 - x0 >= 5) context.strokeRect(x0 - 1, top - 1, x1 - x0 + 2, row.slot + 2);
      else {
        // Too narrow for an outline, which would hide it: marks above and below.
        context.fillStyle = colors.select;
        for (const edge of [top - 3, top + row.slot]) context.fillRect(x0 - 1, edge, Math.max(2, x1 - x0 + 2), 3);
      }
    }
    context.setLineDash([]);
  }
  if (drawn.own && drawn.own.length && drawn.partner && drawn.partner.length) {
    const ends = nearest(drawn.own, drawn.partner);
    paintTrip(context, frame, X, ends[0], y.get(ends[0].lane), ends[1], y.get(ends[1].lane));
  }
}

// Of two lists of intervals the one that ends last before the other's first begins.
function nearest(own, partner) {
  const [out, back] = own[0].kind === D2H ? [own, partner] : [partner, own];
  const sent = out[out.length - 1];
  const after = back.find((place) => place.x0 >= sent.x1) || back[0];
  return [sent, after];
}

function paintTrip(context, frame, X, from, row, to, other) {
  const x0 = Math.min(frame.width, Math.max(frame.gutter, X((from.x0 + from.x1) / 2)));
  const x1 = Math.min(frame.width, Math.max(frame.gutter, X((to.x0 + to.x1) / 2)));
  const y0 = row.y + (from.slot + 1) * row.slot, y1 = other.y + (to.slot + 1) * other.slot;
  context.strokeStyle = colors.select;
  context.lineWidth = 1.5;
  context.beginPath();
  context.moveTo(x0, y0);
  context.bezierCurveTo(x0, y0 + 26, x1, y1 + 26, x1, y1);
  context.stroke();
}
