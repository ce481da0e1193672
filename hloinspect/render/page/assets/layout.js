// A band's segments laid out side by side: folded loops show one iteration, opened ones all of their iterations.
// Times are nanoseconds: `x` on the picture, `real` in the step (the first iteration, where a loop is folded).

const MAX_SLOTS = 4; // rows for copies of one direction that overlap
const MAX_SHOWN = 60000; // intervals of one band that are laid out; beyond, the last iterations of long loops stay folded

function makeBand(raw, side) {
  const unit = raw.unit_ps / 1000;
  const segments = raw.segments.map((segment, place) =>
    makeSegment(segment, unit, raw.memory ? raw.memory.segments[place] : null, raw.memory ? raw.memory.unit_bytes : 1),
  );
  const band = {
    side,
    label: texts[raw.label],
    measured: raw.kind === "measured",
    windows: raw.kind === "measured" && sides[side].transfers.some((transfer) => transfer.m && transfer.m.is_window),
    together_ps: raw.together_ps,
    segments,
    memory: raw.memory || null,
    visible: true,
    pieces: [],
    marks: [],
    length: 0,
  };
  [band.tree, band.loops] = nest(raw.folds, segments.length);
  band.lanes = data.lanes.map((_, lane) => lane).filter((lane) => segments.some((one) => one.lanes[lane].start.length));
  band.slots = data.lanes.map((_, lane) => 1 + segments.reduce((most, one) => one.lanes[lane].slot.reduce((a, b) => Math.max(a, b), most), 0));
  return band;
}

function makeSegment(raw, unit, memory, bytes) {
  const starts = sums(raw.starts);
  const names = sums(raw.names);
  const lanes = data.lanes.map(() => ({ start: [], end: [], kind: [], transfer: [], name: [], reach: [] }));
  const busy = [];
  starts.forEach((start, place) => {
    const lane = lanes[Number(raw.lanes[place])];
    const kind = Number(raw.kinds[place]);
    const begin = start * unit, end = (start + raw.lengths[place]) * unit;
    lane.start.push(begin);
    lane.end.push(end);
    lane.kind.push(kind);
    lane.transfer.push(raw.transfers[place]);
    lane.name.push(names[place]);
    lane.reach.push(Math.max(end, lane.reach.length ? lane.reach[lane.reach.length - 1] : 0));
    if (kind === COMPUTE || kind === COLLECTIVE) addSpan(busy, begin, end);
  });
  for (const lane of lanes) {
    lane.bare = lane.start.map((start, place) => bareOf(busy, start, lane.end[place], lane.kind[place]));
    lane.slot = slotsOf(lane);
  }
  return {
    repeat: raw.repeat,
    start: raw.start * unit,
    length: raw.length * unit,
    count: starts.length,
    lanes,
    memory: memory && {
      times: sums(memory.times).map((time) => time * unit),
      device: sums(memory.device).map((size) => size * bytes),
      host: sums(memory.host).map((size) => size * bytes),
    },
  };
}

// Intervals of one lane that overlap stand below each other: for each the first row that is free.
function slotsOf(lane) {
  const free = [];
  return lane.start.map((start, place) => {
    let slot = free.findIndex((end) => end <= start);
    if (slot < 0) slot = Math.min(free.length, MAX_SLOTS - 1);
    free[slot] = Math.max(free[slot] || 0, lane.end[place]);
    return slot;
  });
}

// Spans come in order of their starts; those that touch become one.
function addSpan(spans, begin, end) {
  const last = spans[spans.length - 1];
  if (last && begin <= last[1]) last[1] = Math.max(last[1], end);
  else spans.push([begin, end]);
}

// The parts of a copy beside which neither compute nor a collective runs.
function bareOf(busy, begin, end, kind) {
  if (kind !== D2H && kind !== H2D) return null;
  const found = [];
  let low = 0, high = busy.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (busy[middle][1] <= begin) low = middle + 1;
    else high = middle;
  }
  let at = begin;
  for (let place = low; place < busy.length && busy[place][0] < end; place++) {
    if (busy[place][0] > at) found.push([at, busy[place][0]]);
    at = Math.max(at, busy[place][1]);
  }
  if (at < end) found.push([at, end]);
  return found;
}

// Loops as a tree over the segments. Folds come with the inner ones first.
function nest(folds, count) {
  let top = Array.from({ length: count }, (_, segment) => ({ segment, first: segment, end: segment + 1 }));
  const loops = [];
  for (const [first, end, iterations, before, of, name] of folds) {
    const inside = top.filter((element) => element.first >= first && element.end <= end);
    const loop = { first, end, iterations, before, of, name: texts[name], children: inside, open: false };
    loops.push(loop);
    const place = top.indexOf(inside[0]);
    if (place < 0) continue;
    top.splice(place, inside.length, loop);
  }
  return [top, loops.filter((loop) => loop.iterations > 1)];
}

function layOut(band) {
  band.pieces = [];
  band.marks = [];
  let x = 0, laid = 0;
  const share = MAX_SHOWN / Math.max(1, band.loops.filter((loop) => loop.open).length);
  function walk(elements, real, depth) {
    let length = 0;
    for (const element of elements) {
      if (element.segment !== undefined) {
        const segment = band.segments[element.segment];
        band.pieces.push({ segment, x, real: real + length });
        laid += segment.count;
        x += segment.length;
        length += segment.length;
        continue;
      }
      const begin = x, before = laid;
      const iteration = walk(element.children, real + length, depth + 1);
      const room = Math.min(share, MAX_SHOWN - before) / Math.max(1, laid - before);
      const most = element.open ? Math.max(1, Math.min(element.iterations, Math.floor(room))) : 1;
      mark(band, element, begin, x, depth, 1, element.open && most > 1 ? 1 : element.iterations);
      for (let number = 2; number <= most; number++) {
        const start = x;
        walk(element.children, real + length + (number - 1) * iteration, depth + 1);
        mark(band, element, start, x, depth, number, number === most ? element.iterations : number);
      }
      length += iteration * element.iterations;
    }
    return length;
  }
  band.real = walk(band.tree, 0, 0);
  band.length = x;
  band.depth = band.marks.reduce((most, one) => Math.max(most, one.depth + 1), 0);
}

function mark(band, loop, x0, x1, depth, first, last) {
  band.marks.push({ loop, x0, x1, depth, first: loop.before + first, last: loop.before + last });
}

function markText(one) {
  if (one.last === one.first) return `iteration ${countText(one.first)} of ${countText(one.loop.of)}`;
  const iterations = one.last - one.first + 1;
  const which = iterations === one.loop.of ? "iterations" : `(iterations ${countText(one.first)} to ${countText(one.last)} of ${countText(one.loop.of)})`;
  return `\u00d7${countText(iterations)} ${which}, ${timeText((one.x1 - one.x0) / 1e6)} each`;
}

// The first piece that ends behind x.
function pieceAt(band, x) {
  let low = 0, high = band.pieces.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (band.pieces[middle].x + band.pieces[middle].segment.length <= x) low = middle + 1;
    else high = middle;
  }
  return low;
}

// The first interval of a lane that may reach behind a time.
function firstBehind(lane, time) {
  let low = 0, high = lane.reach.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (lane.reach[middle] <= time) low = middle + 1;
    else high = middle;
  }
  return low;
}

function bareLength(lane, place) {
  return (lane.bare[place] || []).reduce((sum, [from, to]) => sum + to - from, 0);
}

// What a transfer does on a band, piece by piece; `bare` is how long nothing runs beside it.
function placesOf(band, id) {
  const found = [];
  for (const piece of band.pieces)
    for (const number of band.lanes) {
      const lane = piece.segment.lanes[number];
      lane.transfer.forEach((transfer, place) => {
        if (transfer === id)
          found.push({ x0: piece.x + lane.start[place], x1: piece.x + lane.end[place], lane: number, slot: lane.slot[place], kind: lane.kind[place], bare: bareLength(lane, place) });
      });
    }
  return found;
}
