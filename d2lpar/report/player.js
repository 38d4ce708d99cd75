// The player of timelines: draws recorded events, and lets their time pass.
//
// The first part knows no page: what the events are, where they are drawn, what is
// where and when.  Then come the drawing, and last the page with its controls.
// Nothing is loaded from anywhere.

// ------------------------------------------------------------------ what happened

// Okabe-Ito colours; hatching and letters tell them apart in grey, as in the pictures.
// `dark` is for the second stage of a rank.
const LOOKS = {
  compute: { face: "#0072B2", ink: "white" },
  forward: { face: "#9AD4F7", ink: "black", dark: "#0072B2" },
  backward: { face: "#E69F00", ink: "black", dark: "#D55E00" },
  "weight gradient": { face: "#F0E442", ink: "black", dark: "#8A8000", hatch: "dots" },
  blocked: { face: "", edge: "#999999", hatch: "lines" },
  transferring: { face: "#C4C4C4", ink: "black" },
  waiting: { face: "", edge: "#999999", hatch: "lines" },
  sending: { face: "#CC79A7", ink: "black" },
  receiving: { face: "#F0D4E3", edge: "#CC79A7", ink: "black" },
  AG: { face: "#9ADBC7", ink: "black" },
  RS: { face: "#009E73", ink: "white" },
  AR: { face: "#00563F", ink: "white" },
  collective: { face: "#009E73", ink: "white", hatch: "dots" },
};
const PASSES = { F: "forward", B: "backward", W: "weight gradient" };
// F3, F attention, or 2F3: micro-batch 3 in stage 2
const PASS = /^(\d*)(([FBW])(\d*| .+))$/;
const WAITS = { wait: "waiting", blocked: "blocked", transfer: "transferring" };
const CODES = { all_gather: "AG", reduce_scatter: "RS", all_reduce: "AR" };
const WORDS = { waiting: "in a call, wire unseen" };
for (const [name, code] of Object.entries(CODES)) WORDS[code] = `${code} ${name}`;
for (const [key, name] of Object.entries(PASSES)) WORDS[name] = `${name} (${key})`;
const MESSAGES = { send: "sending", recv: "receiving" };
const EXPOSED = "#D55E00";
export const FOLDED = 16; // above: one thin row per rank, the first 8 and the last 2
const FIRST = 8, LAST = 2;
const MANY_ARROWS = 60; // above: arrows of the messages in flight only

export function kindOf(stream, name, label = null) {
  if (stream !== "compute") return MESSAGES[stream] ?? CODES[name] ?? "collective";
  if (WAITS[name]) return WAITS[name];
  const pass = PASS.exec(label ?? name);
  return pass ? PASSES[pass[3]] : "compute";
}

// What the legend calls it; no wire carries a collective of the virtual clock.
export function wordOf(kind, panels) {
  const virtual = panels.every((panel) => panel.clock === "virtual");
  const native = kind === "collective" || Object.values(CODES).includes(kind);
  return (WORDS[kind] ?? kind) + (virtual && native ? ", by formula" : "");
}

// The panels with their events as objects, and the two ends of every message.
export function decode(data) {
  const panels = data.panels.map((panel, number) => {
    const columns = Object.fromEntries(
      Object.entries(panel.events).map(([name, text]) => [name, numbersOf(text)]),
    );
    const events = columns.start.map((start, i) => {
      const field = (name, usual) => (columns[name] ? columns[name][i] : usual);
      const stream = data.streams[field("stream", 0)];
      const name = data.names[field("name", 0)];
      const event = { panel: number, rank: field("rank", 0), stream, name, start };
      event.stop = columns.stop[i];
      event.bytes = field("bytes", 0);
      event.flops = field("flops", 0);
      event.peer = field("peer", null);
      event.id = field("id", null);
      event.place = data.places[field("where", null)] ?? null;
      event.label = data.labels?.[field("label", null)] ?? null;
      event.kind = kindOf(stream, name, event.label);
      const stage = PASS.exec(event.label ?? name)?.[1];
      event.dark = Math.floor(stage / panel.ranks) % 2 === 1;
      return event;
    });
    return { ...panel, events, messages: messagesOf(events) };
  });
  return { panels, elapsed: Math.max(...panels.map((panel) => panel.elapsed)) };
}

// A column is a text, "0 1.5e-05 -"; "-" stands for nothing.
function numbersOf(text) {
  return text ? text.split(" ").map((one) => (one === "-" ? null : Number(one))) : [];
}

function messagesOf(events) {
  const sends = new Map();
  for (const e of events) if (e.stream === "send" && e.id !== null) sends.set(e.id, e);
  return events
    .filter((e) => e.stream === "recv" && sends.has(e.id))
    .map((recv) => ({ send: sends.get(recv.id), recv }));
}

// A lane for each event, so that no lane has overlaps; events are in order of start.
export function lanes(events) {
  const ends = [];
  const chosen = events.map((event) => {
    const ns = (time) => Math.round(time * 1e9);
    let lane = ends.findIndex((end) => end <= ns(event.start));
    if (lane < 0) lane = ends.length;
    ends[lane] = ns(event.stop);
    return lane;
  });
  return { chosen, count: Math.max(1, ends.length) };
}

// The moments at which something starts or ends, each once.
export function moments(panels) {
  const all = new Map();
  for (const { events } of panels) {
    for (const { start, stop } of events) {
      for (const time of [start, stop]) all.set(Math.round(time * 1e10), time);
    }
  }
  return [...all.values()].sort((a, b) => a - b);
}

// What starts at this moment, what ends, and which messages are on their way.
export function at(panel, time, elapsed) {
  const near = (other) => Math.abs(other - time) < 1e-9 * elapsed;
  return {
    starts: panel.events.filter((e) => near(e.start)),
    ends: panel.events.filter((e) => near(e.stop)),
    flights: panel.messages.filter((m) => isBetween(time, m.send.start, m.recv.stop)),
  };
}

const isBetween = (time, start, stop) => start <= time && time < stop;

// What one rank does at this moment.
export function doing(panel, rank, time) {
  return panel.events.filter(
    (e) => e.rank === rank && isBetween(time, e.start, e.stop),
  );
}

// -------------------------------------------------------------- where it is drawn

const TITLE = 24, AXIS = 22, ROW = 17, THIN = 14, GAP = 6; // pixels

// Rows from top to bottom.  `isOpen(panel, rank)`: a row per stream; `isWhole(panel)`:
// all ranks are shown, also where there are many.
export function layout(panels, isOpen, isWhole) {
  const plan = { rows: [], titles: [], folds: [], height: 0 };
  panels.forEach((panel, number) => {
    plan.titles.push({ text: panel.title, top: plan.height });
    plan.height += TITLE;
    const hides = panel.ranks > FOLDED && !isWhole(number);
    for (let rank = 0; rank < panel.ranks; rank++) {
      if (hides && rank === FIRST) {
        rank = panel.ranks - LAST;
        const text = `${rank - FIRST} ranks more`;
        plan.folds.push({ panel: number, text, top: plan.height, height: THIN });
        plan.height += THIN + GAP;
      }
      addRank(plan, panel, number, rank, isOpen(number, rank));
    }
  });
  return plan;
}

const MARGIN = 2000; // a row in which less of the time is filled would look empty
const PLACES = { compute: "0", send: "1", recv: "2" };
const placeOf = (stream) => (PLACES[stream] ?? "3") + stream;

function addRank(plan, panel, number, rank, open) {
  const streams = new Map([["compute", []]]);
  for (const event of panel.events) {
    if (event.rank !== rank) continue;
    if (!streams.has(event.stream)) streams.set(event.stream, []);
    streams.get(event.stream).push(event);
  }
  const last = (mine) => mine.reduce((sum, e) => sum + e.stop - e.start, 0);
  const least = panel.elapsed / MARGIN;
  const shown = ([name, mine]) => name === "compute" || last(mine) > least;
  const names = [...streams].filter(shown).map(([name]) => name);
  names.sort((a, b) => (placeOf(a) < placeOf(b) ? -1 : 1));
  const height = open ? ROW : THIN / names.length;
  names.forEach((stream, i) => {
    const events = streams.get(stream);
    const row = { panel: number, rank, stream, open, first: i === 0, events };
    row.alone = names.length === 1;
    plan.rows.push({ ...row, top: plan.height + i * height, height, ...lanes(events) });
  });
  plan.height += names.length * height + (open ? GAP : 2);
}

// Where an event of this row is from top to bottom.
function span(row, i) {
  const height = row.height / row.count;
  return [row.top + row.chosen[i] * height, height];
}

// What is at this height and time: an event, a fold, or a row without anything there.
export function hit(plan, y, time, tolerance = 0) {
  const inside = (box) => box.top <= y && y < box.top + box.height;
  const fold = plan.folds.find(inside);
  const row = plan.rows.find(inside);
  let event = null, nearest = Infinity;
  (row?.events ?? []).forEach((e, i) => {
    const [top, height] = span(row, i);
    const away = Math.max(e.start - time, time - e.stop, 0);
    if (y < top || y >= top + height || away > tolerance || away >= nearest) return;
    [event, nearest] = [e, away];
  });
  return { fold, row, event };
}

// ------------------------------------------------------------------ words for it

export function seconds(time) {
  for (const [unit, scale] of [["ns", 1e9], ["us", 1e6], ["ms", 1e3]]) {
    const value = Number((time * scale).toPrecision(4));
    if (value > 0 && value < 1000) return `${value} ${unit}`;
  }
  return `${Number(time.toPrecision(4))} s`;
}

export function size(bytes) {
  if (bytes < 1e6) return `${bytes.toLocaleString("en")} B`;
  const power = Math.min(4, Math.floor(Math.log10(bytes) / 3));
  const value = Number((bytes / 10 ** (3 * power)).toPrecision(4));
  return `${value} ${["B", "kB", "MB", "GB", "TB"][power]}`;
}

function title(event) {
  const { rank, kind, name, label, peer } = event;
  const words = { sending: `sends to ${peer}`, receiving: `receives from ${peer}` };
  Object.assign(words, { waiting: "is in a call", blocked: "is blocked" });
  words.transferring = "is in a transfer";
  const named = label ? `${label}, ${name}` : name;
  return `rank ${rank}: ${words[kind] ?? named}`;
}

// The lines that describe an event: name, times, amounts, line of code.
export function describe(event, unit = seconds) {
  const { start, stop, bytes, flops, place } = event;
  const lines = [title(event)];
  lines.push(`${unit(start)} to ${unit(stop)} (${unit(stop - start)})`);
  const amounts = [];
  if (bytes) amounts.push(size(bytes));
  if (flops) amounts.push(`${flops.toLocaleString("en")} flops`);
  if (amounts.length) lines[1] += `, ${amounts.join(", ")}`;
  if (place) lines.push(place[1] ? `${place[0]}   ${place[1]}` : place[0]);
  return lines;
}

// What a moment brings, in a sentence or two.
export function tell(timeline, time, unit = seconds) {
  const parts = timeline.panels.map((panel) => {
    const { starts, ends, flights } = at(panel, time, timeline.elapsed);
    const news = starts.filter((e) => e.kind !== "receiving");
    const some = news.slice(0, 3).map(title);
    if (news.length > 3) some.push(`${news.length - 3} more`);
    let text = some.length ? `starts: ${some.join("; ")}. ` : "";
    if (ends.length) text += `${ends.length} ended. `;
    if (flights.length) text += `${flights.length} in flight.`;
    const name = timeline.panels.length > 1 ? `${panel.title.split(":")[0]}: ` : "";
    return text && name + text;
  });
  return [`at ${unit(time)}`, ...parts].filter(Boolean).join("  ");
}

// ------------------------------------------------------------------ the drawing

const RIGHT = 12;

// `view` is everything that a frame depends on; see `Player.view`.
function draw(ctx, view) {
  const { width, height, scroll, plan } = view;
  ctx.clearRect(0, 0, width, height);
  ctx.font = view.font;
  ctx.textBaseline = "middle";
  ctx.save();
  ctx.beginPath();
  ctx.rect(0, AXIS, width, height - AXIS);
  ctx.clip();
  ctx.translate(0, AXIS - scroll);
  for (const text of plan.titles) label(ctx, view, text.text, 2, text.top + 14, true);
  for (const fold of plan.folds) drawFold(ctx, view, fold);
  for (const row of plan.rows) if (isVisible(view, row)) drawNames(ctx, view, row);
  ctx.beginPath();
  ctx.rect(view.left, 0, width - view.left - RIGHT + 1, plan.height);
  ctx.clip();
  const seen = plan.rows.filter((row) => isVisible(view, row));
  for (const row of seen) drawRow(ctx, view, row, drawBar);
  view.timeline.panels.forEach((panel, p) => drawExposed(ctx, view, panel, p));
  view.timeline.panels.forEach((panel, p) => drawMessages(ctx, view, panel, p));
  for (const row of seen) drawRow(ctx, view, row, drawLetters);
  ctx.restore();
  drawAxis(ctx, view);
}

const isVisible = (view, row) =>
  row.top + row.height > view.scroll && row.top < view.scroll + view.height;

function label(ctx, view, text, x, y, strong = false) {
  ctx.font = strong ? `bold ${view.font}` : view.font;
  ctx.fillStyle = view.ink;
  ctx.fillText(text, x, y, view.width - x - 2);
  ctx.font = view.font;
}

function drawFold(ctx, view, fold) {
  ctx.fillStyle = view.faint;
  ctx.fillRect(0, fold.top, view.width - RIGHT, fold.height);
  label(ctx, view, `▸ ${fold.text}`, 4, fold.top + fold.height / 2);
}

function drawNames(ctx, view, row) {
  const { rank, stream, first, open, top, height } = row;
  const middle = top + (open ? height / 2 : THIN / 2);
  const chosen = view.chosen?.panel === row.panel && view.chosen.rank === rank;
  if (chosen) {
    ctx.fillStyle = view.faint;
    ctx.fillRect(0, top, view.width - RIGHT, height);
  }
  const name = view.narrow ? `${rank}` : `rank ${rank}`;
  if (first) label(ctx, view, name, 4, middle, chosen);
  if (!open || row.alone) return;
  ctx.textAlign = "right";
  const short = view.narrow ? stream.slice(0, 4) : stream.slice(0, 10);
  label(ctx, view, short, view.left - 5, middle);
  ctx.textAlign = "left";
}

function drawRow(ctx, view, row, paint) {
  row.events.forEach((event, i) => {
    if (event.stop < view.from || event.start > view.to) return;
    const [top, height] = span(row, i);
    const a = Math.max(view.x(event.start), view.left - 2);
    const b = Math.min(view.x(event.stop), view.width + 2);
    const box = { x: a, y: top + 0.5, w: Math.max(1, b - a - 0.5), h: height - 1 };
    ctx.globalAlpha = event.start > view.now ? 0.2 : 1;
    paint(ctx, view, event, box);
    ctx.globalAlpha = 1;
  });
}

function drawBar(ctx, view, event, { x, y, w, h }) {
  const look = LOOKS[event.kind];
  const runs = view.moving && isBetween(view.now, event.start, event.stop);
  ctx.fillStyle = (event.dark && look.dark) || look.face || view.paper;
  ctx.fillRect(x, y, w, h);
  if (look.hatch && h > 5) {
    ctx.fillStyle = view.hatches[look.hatch];
    ctx.fillRect(x, y, w, h);
  }
  if (look.edge && w > 3) {
    ctx.strokeStyle = look.edge;
    ctx.lineWidth = 0.5;
    ctx.strokeRect(x, y, w, h);
  }
  if (runs || event === view.event) {
    ctx.strokeStyle = event === view.event ? EXPOSED : view.ink;
    ctx.lineWidth = 1.5;
    ctx.strokeRect(x, y, w, h);
  }
}

// On paper of the bar's colour, which hides hatching and arrows.
function drawLetters(ctx, view, event, { x, y, w, h }) {
  if (h < 12) return;
  const look = LOOKS[event.kind];
  const a = Math.max(x, view.left), b = Math.min(x + w, view.width - RIGHT);
  const fits = (text) => ctx.measureText(text).width + 3 < b - a;
  const text = lettersOf(event).find(fits);
  if (!text) return;
  const wide = ctx.measureText(text).width;
  const middle = (a + b) / 2 - wide / 2;
  ctx.fillStyle = (event.dark && look.dark) || look.face;
  ctx.fillRect(middle - 2, y + 1, wide + 4, h - 2);
  ctx.fillStyle = event.dark ? "white" : look.ink;
  ctx.fillText(text, middle, y + h / 2 + 0.5);
}

// What may be written into a bar: the longer text, or the shorter where it is narrow.
export function lettersOf({ kind, stream, name, peer, label }) {
  if (Object.values(WAITS).includes(kind)) return [];
  const word = kind === "sending" ? "to" : "from";
  if (peer !== null) return [`${word} ${peer}`, `${peer}`];
  const pass = PASS.exec(label ?? name);
  if (stream === "compute") return pass ? [pass[2], pass[4]] : [label ?? name];
  const code = CODES[name] ?? name;
  const number = pass ? pass[4] : /^\d+$/.test(label) ? label : "";
  return number ? [code + number, number.trim()] : [name, code];
}

function drawExposed(ctx, view, panel, number) {
  for (const [rank, start, stop] of panel.exposed ?? []) {
    const rows = rowsOf(view, number, rank);
    if (!rows.length || start > view.now) continue;
    const top = rows[0].top, last = rows[rows.length - 1];
    const a = view.x(start), b = view.x(Math.min(stop, view.now));
    ctx.fillStyle = `${EXPOSED}40`;
    ctx.fillRect(a, top, b - a, last.top + last.height - top);
    ctx.strokeStyle = EXPOSED;
    ctx.lineWidth = 1;
    ctx.strokeRect(a, top, b - a, last.top + last.height - top);
  }
}

const rowsOf = (view, panel, rank) =>
  view.plan.rows.filter((row) => row.panel === panel && row.rank === rank);

// Arrows of all messages where they are few; of those in flight always, with a dot.
function drawMessages(ctx, view, panel, number) {
  const { from, to, now } = view;
  const seen = panel.messages.filter((m) => m.recv.stop >= from && m.send.start <= to);
  const few = seen.length <= MANY_ARROWS && panel.ranks <= FOLDED;
  for (const { send, recv } of seen) {
    const flies = view.moving && isBetween(now, send.start, recv.stop);
    if (send.start > now || !(flies || few)) continue;
    const a = heightOf(view, number, send), b = heightOf(view, number, recv);
    const done = flies ? (now - send.start) / (recv.stop - send.start) : 1;
    const tip = { x: view.x(flies ? now : recv.stop), y: a + (b - a) * done };
    drawArrow(ctx, view, { x: view.x(send.start), y: a }, tip, flies);
  }
}

// Where a message leaves or arrives: its row, or the fold that hides the rank.
function heightOf(view, panel, event) {
  const rows = rowsOf(view, panel, event.rank);
  const row = rows.find((r) => r.stream === event.stream) ?? rows[0];
  const box = row ?? view.plan.folds.find((fold) => fold.panel === panel);
  return box.top + box.height / 2;
}

function drawArrow(ctx, view, from, to, flies) {
  ctx.fillStyle = view.ink;
  ctx.beginPath();
  ctx.moveTo(from.x, from.y);
  ctx.lineTo(to.x, to.y);
  const wide = flies ? 1.6 : 0.8;
  for (const [colour, width] of [[view.paper, wide + 2.4], [view.ink, wide]]) {
    ctx.strokeStyle = colour; // first paper: ink is seen on every bar
    ctx.lineWidth = width;
    ctx.stroke();
  }
  ctx.strokeStyle = view.paper;
  ctx.lineWidth = flies ? 1 : 3;
  ctx.beginPath();
  if (flies) {
    ctx.arc(to.x, to.y, 4.5, 0, 2 * Math.PI);
  } else {
    const turn = Math.atan2(to.y - from.y, to.x - from.x);
    for (const [r, angle] of [[0, 0], [7, turn + 2.75], [7, turn - 2.75]]) {
      ctx.lineTo(to.x + r * Math.cos(angle), to.y + r * Math.sin(angle));
    }
    ctx.closePath();
  }
  ctx.stroke();
  ctx.fill();
}

// A round step of time, so that labels have room.
export function stepOf(range, count) {
  const exact = range / Math.max(1, count);
  const power = 10 ** Math.floor(Math.log10(exact));
  return power * [1, 2, 5, 10].find((factor) => factor * power >= exact * (1 - 1e-9));
}

function drawAxis(ctx, view) {
  const { from, to, left, width, height, ink } = view;
  const step = stepOf(to - from, (width - left) / 80);
  ctx.strokeStyle = ctx.fillStyle = ink;
  ctx.lineWidth = 1;
  ctx.textAlign = "center";
  for (let k = Math.ceil(from / step - 1e-9); k * step <= to * (1 + 1e-9); k++) {
    const x = view.x(k * step);
    ctx.globalAlpha = 0.2;
    ctx.beginPath();
    ctx.moveTo(x, AXIS - 4);
    ctx.lineTo(x, height);
    ctx.stroke();
    ctx.globalAlpha = 0.8;
    const text = k ? view.unit(k * step) : "0";
    const half = ctx.measureText(text).width / 2;
    ctx.fillText(text, Math.min(x, width - half - 1), 9);
  }
  ctx.globalAlpha = 1;
  ctx.textAlign = "left";
  if (view.now >= from && view.now <= to) drawCursor(ctx, view);
}

function drawCursor(ctx, view) {
  const x = view.x(view.now);
  ctx.strokeStyle = ctx.fillStyle = EXPOSED;
  ctx.lineWidth = 1.5;
  ctx.beginPath();
  ctx.moveTo(x, 14);
  ctx.lineTo(x, view.height);
  ctx.stroke();
  ctx.beginPath();
  ctx.moveTo(x - 5, 13);
  ctx.lineTo(x + 5, 13);
  ctx.lineTo(x, AXIS);
  ctx.fill();
}

// Hatching as a pattern: lines for ranks that are blocked, dots for collectives.
function hatching(ctx, kind, ink) {
  const tile = document.createElement("canvas");
  tile.width = tile.height = 6;
  const pen = tile.getContext("2d");
  pen.fillStyle = pen.strokeStyle = ink;
  if (kind === "lines") {
    for (const shift of [-6, 0, 6]) {
      pen.moveTo(shift, 6);
      pen.lineTo(shift + 6, 0);
    }
    pen.stroke();
  } else {
    pen.fillRect(1, 1, 1.5, 1.5);
    pen.fillRect(4, 4, 1.5, 1.5);
  }
  return ctx.createPattern(tile, "repeat");
}

// ------------------------------------------------------------------ the page

const TALLEST = 620; // pixels; more is scrolled
const STYLE = `
:host { display: block; max-width: 100%; margin: 0.5em 0; color: inherit; }
.bar, .legend { display: flex; flex-wrap: wrap; gap: 4px 6px; align-items: center; }
.legend { column-gap: 14px; }
button, select { font: inherit; font-size: 13px; color: inherit; padding: 3px 9px;
  background: transparent; border: 1px solid currentColor; border-radius: 4px;
  min-height: 28px; cursor: pointer; }
option { color: black; background: white; }
button:hover { background: rgba(128, 128, 128, 0.25); }
button:focus-visible, select:focus-visible, input:focus-visible, canvas:focus-visible {
  outline: 2px solid #56B4E9; outline-offset: 1px; }
input { flex: 1 1 120px; min-width: 80px; accent-color: #D55E00; }
.scroll { overflow-x: hidden; overflow-y: auto; max-height: ${TALLEST}px;
  margin: 4px 0; }
.inside { position: relative; }
canvas { position: sticky; top: 0; display: block; touch-action: pan-y; }
.status { font-size: 13px; min-height: 3.6em; line-height: 1.2; white-space: pre-wrap;
  overflow-wrap: anywhere; }
.tip { position: absolute; z-index: 5; max-width: 90%; padding: 3px 7px;
  font-size: 12px; white-space: pre-wrap; pointer-events: none; border-radius: 4px;
  background: #222; color: white; border: 1px solid #999; overflow-wrap: anywhere; }
.legend, details { font-size: 12px; }
.legend i { display: inline-block; width: 22px; height: 11px; margin-right: 4px;
  border: 1px solid #BBBBBB; }
summary { cursor: pointer; }
@media print { .bar, .status, details { display: none; } }
`;
const KEYS = `Space plays and pauses. Left and right step from event to event; with \
Shift they move the part that is shown. + and - zoom, 0 shows all. Home and End go to \
the first and the last moment. Up and down choose a rank, Enter folds or opens it, F \
shows all ranks or folds them. With a mouse: drag to move, Ctrl and the wheel to zoom, \
click on a bar, on a rank or on a moment.`;
const HATCHED = {
  lines: "repeating-linear-gradient(135deg, #BBBBBB 0 1px, transparent 1px 4px)",
  dots: "radial-gradient(white 1px, transparent 1.5px) 0 0 / 5px 5px",
};
const LENGTH = 10; // seconds in which the whole timeline is played

class Player {
  constructor(host, data) {
    this.host = host;
    this.timeline = decode(data);
    this.unit = data.units ? (time) => `${Number(time.toPrecision(4))}` : seconds;
    this.moments = moments(this.timeline.panels);
    const { elapsed, panels } = this.timeline;
    this.end = elapsed || 1;
    Object.assign(this, { from: 0, to: this.end, now: this.end, speed: 1 });
    Object.assign(this, { playing: false, event: null, chosen: null, frame: 0 });
    this.opened = new Map(); // "panel:rank" -> whether the reader opened it
    this.whole = panels.map(() => false);
    this.build(data);
    this.listen();
    this.theme();
    this.relayout();
    this.go(this.end);
    this.say("Press Play or step through the events; point at a bar for its details.");
  }

  // Elements

  build(data) {
    this.root = this.host.shadowRoot ?? this.host.attachShadow({ mode: "open" });
    const make = (tag, about = {}, ...inside) => {
      const node = Object.assign(document.createElement(tag), about);
      node.append(...inside);
      return node;
    };
    const button = (text, words, act) => {
      const node = make("button", { type: "button", textContent: text, title: words });
      node.setAttribute("aria-label", words);
      node.addEventListener("click", act);
      return node;
    };
    this.play = button("Play", "play the timeline", () => this.toggle());
    this.slider = make("input", { type: "range", min: 0, max: 1000, step: 1 });
    this.slider.setAttribute("aria-label", "moment of the timeline");
    this.speeds = make("select", { title: "speed" });
    for (const speed of [0.25, 0.5, 1, 2, 4]) {
      const chosen = { value: speed, textContent: `${speed}x`, selected: speed === 1 };
      this.speeds.append(make("option", chosen));
    }
    this.speeds.setAttribute("aria-label", "speed");
    this.fold = button("All ranks", "show or fold all ranks", () => this.unfold());
    this.fold.hidden = this.timeline.panels.every((panel) => panel.ranks <= FOLDED);
    const bar = make("div", { className: "bar" }, this.play);
    bar.append(button("‹ Step", "previous event", () => this.step(-1)));
    bar.append(button("Step ›", "next event", () => this.step(1)));
    bar.append(this.speeds, this.slider);
    bar.append(button("−", "zoom out", () => this.zoom(1.6)));
    bar.append(button("+", "zoom in", () => this.zoom(1 / 1.6)));
    bar.append(button("Fit", "show the whole time", () => this.show(0, this.end)));
    bar.append(this.fold);
    this.canvas = make("canvas", { tabIndex: 0 });
    this.canvas.setAttribute("role", "application");
    this.canvas.setAttribute("aria-label", `${data.alt} ${KEYS}`);
    this.tip = make("div", { className: "tip", hidden: true });
    this.inside = make("div", { className: "inside" }, this.canvas);
    this.scroll = make("div", { className: "scroll" }, this.inside);
    this.status = make("div", { className: "status" });
    this.status.setAttribute("role", "status");
    const keys = make("details", {}, make("summary", { textContent: "Keys" }), KEYS);
    const frame = make("div", { style: "position: relative" }, this.scroll, this.tip);
    this.legend = make("div", { className: "legend" });
    const style = make("style", { textContent: STYLE });
    this.root.replaceChildren(style, bar, frame, this.status, this.legend, keys);
    this.explain(make);
    this.ctx = this.canvas.getContext("2d");
  }

  explain(make) {
    const events = this.timeline.panels.flatMap((panel) => panel.events);
    const kinds = new Set(events.map((e) => e.kind));
    for (const kind of Object.keys(LOOKS).filter((name) => kinds.has(name))) {
      const { face, hatch } = LOOKS[kind];
      const box = make("i");
      box.style.background = [HATCHED[hatch], face].filter(Boolean).join(", ");
      this.legend.append(make("span", {}, box, wordOf(kind, this.timeline.panels)));
    }
    if (this.timeline.panels.some((panel) => panel.exposed)) {
      const box = make("i");
      box.style.cssText = `background: ${EXPOSED}40; border-color: ${EXPOSED}`;
      this.legend.append(make("span", {}, box, "exposed"));
    }
  }

  // What the reader does

  listen() {
    const { canvas } = this;
    canvas.addEventListener("keydown", (event) => this.key(event));
    canvas.addEventListener("pointerdown", (event) => this.press(event));
    canvas.addEventListener("pointermove", (event) => this.move(event));
    canvas.addEventListener("pointerup", (event) => this.release(event));
    canvas.addEventListener("pointerleave", () => this.point(null));
    canvas.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
    this.scroll.addEventListener("scroll", () => this.redraw());
    this.slider.addEventListener("input", () => {
      this.pause();
      this.go((this.slider.value / 1000) * this.end);
    });
    this.speeds.addEventListener("change", () => (this.speed = +this.speeds.value));
    new ResizeObserver(() => this.relayout()).observe(this.host);
    const theme = () => this.theme();
    const watched = { attributes: true, attributeFilter: THEMES };
    const observer = new MutationObserver(theme);
    for (const node of [document.documentElement, document.body]) {
      observer.observe(node, watched);
    }
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", theme);
  }

  key(event) {
    const way = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -1, ArrowDown: 1 }[event.key];
    const part = (this.to - this.from) / 5;
    const acts = {
      " ": () => this.toggle(),
      ArrowLeft: () => (event.shiftKey ? this.pan(-part) : this.step(way)),
      ArrowRight: () => (event.shiftKey ? this.pan(part) : this.step(way)),
      ArrowUp: () => this.choose(way),
      ArrowDown: () => this.choose(way),
      Enter: () => this.chosen && this.flip(this.chosen.panel, this.chosen.rank),
      Home: () => this.go(0),
      End: () => this.go(this.end),
      "+": () => this.zoom(1 / 1.6),
      "=": () => this.zoom(1 / 1.6),
      "-": () => this.zoom(1.6),
      0: () => this.show(0, this.end),
      f: () => this.unfold(),
    };
    const act = acts[event.key.length === 1 ? event.key.toLowerCase() : event.key];
    if (!act || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    event.stopPropagation();
    if (event.key !== " ") this.pause();
    act();
  }

  // The time and height of a pointer, in the layout.
  spot(event) {
    const box = this.canvas.getBoundingClientRect();
    const x = event.clientX - box.left, y = event.clientY - box.top;
    const scale = (this.to - this.from) / (this.width - this.left - RIGHT);
    const time = this.from + (x - this.left) * scale;
    return { x, y, time, scale, down: y - AXIS + this.scroll.scrollTop };
  }

  press(event) {
    this.drag = { x: event.clientX, from: this.from, moved: false };
    this.canvas.setPointerCapture?.(event.pointerId);
  }

  move(event) {
    const { drag } = this;
    if (!drag) return this.point(event);
    const far = event.clientX - drag.x;
    drag.moved ||= Math.abs(far) > 4;
    if (drag.moved) this.pan(drag.from - far * this.spot(event).scale - this.from);
  }

  release(event) {
    const moved = this.drag?.moved;
    this.drag = null;
    if (!moved) this.click(this.spot(event));
  }

  click({ x, y, time, scale, down }) {
    const found = hit(this.plan, down, time, 3 * scale);
    if (y > AXIS && found.fold) return this.unfold(found.fold.panel);
    if (y > AXIS && x < this.left && found.row) {
      return this.flip(found.row.panel, found.row.rank);
    }
    if (y > AXIS && found.event) {
      this.event = found.event;
      this.say(describe(found.event, this.unit).join("\n"));
      return this.redraw();
    }
    this.pause();
    this.go(time);
  }

  wheel(event) {
    if (!event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    this.zoom(event.deltaY > 0 ? 1.25 : 0.8, this.spot(event).time);
  }

  // What is under the pointer, in a box beside it.
  point(event) {
    const spot = event && this.spot(event);
    const inside = spot && spot.y > AXIS && spot.x > this.left;
    const found = inside && hit(this.plan, spot.down, spot.time, 3 * spot.scale).event;
    this.tip.hidden = !found;
    if (found) {
      this.tip.textContent = describe(found, this.unit).join("\n");
      const room = this.width - this.tip.offsetWidth - 4;
      this.tip.style.left = `${Math.max(0, Math.min(spot.x + 12, room))}px`;
      this.tip.style.top = `${spot.y + 16}px`;
    }
    if (this.event !== (found || null)) {
      this.event = found || null;
      this.redraw();
    }
  }

  // What follows

  toggle() {
    if (this.playing) return this.pause();
    if (this.now >= this.end) this.go(0);
    this.playing = true;
    this.play.textContent = "Pause";
    this.last = performance.now();
    requestAnimationFrame((time) => this.tick(time));
  }

  pause() {
    this.playing = false;
    this.play.textContent = "Play";
  }

  tick(time) {
    if (!this.playing || !this.host.isConnected) return this.pause();
    const passed = Math.max(0, time - this.last) / 1000;
    this.last = time;
    const next = this.now + (passed * this.speed * this.end) / LENGTH;
    this.go(next);
    if (next >= this.end) return this.pause();
    requestAnimationFrame((later) => this.tick(later));
  }

  // It is `time` on the timeline; the part that is shown follows.
  go(time) {
    this.now = Math.min(Math.max(time, 0), this.end);
    if (this.now < this.from || this.now > this.to) {
      this.pan(this.now - this.from - (this.to - this.from) * 0.1);
    }
    this.slider.value = (this.now / this.end) * 1000;
    this.slider.setAttribute("aria-valuetext", this.unit(this.now));
    this.report();
    this.redraw();
  }

  step(way) {
    this.pause();
    const near = 1e-9 * this.end;
    const later = (time) => (way > 0 ? time > this.now + near : time < this.now - near);
    const found = way > 0 ? this.moments.find(later) : this.moments.findLast(later);
    this.go(found ?? (way > 0 ? this.end : 0));
  }

  report() {
    if (this.playing) return (this.status.textContent = `at ${this.unit(this.now)}`);
    const { chosen } = this, lines = [tell(this.timeline, this.now, this.unit)];
    if (chosen) {
      const panel = this.timeline.panels[chosen.panel];
      const events = doing(panel, chosen.rank, this.now);
      lines.push(...events.map((e) => describe(e, this.unit).join("   ")));
      if (!events.length) lines.push(`rank ${chosen.rank}: nothing at this moment`);
    }
    this.say(lines.join("\n"));
  }

  say(text) {
    this.status.textContent = text;
  }

  choose(way) {
    const ranks = this.plan.rows.filter((row) => row.first);
    const { panel, rank } = this.chosen ?? {};
    const at = ranks.findIndex((row) => row.panel === panel && row.rank === rank);
    const next = at < 0 ? 0 : Math.min(Math.max(at + way, 0), ranks.length - 1);
    this.chosen = ranks[next];
    const top = this.chosen.top - this.scroll.scrollTop;
    if (top < 0 || top > this.height - AXIS - 3 * ROW) {
      this.scroll.scrollTop = this.chosen.top - 2 * ROW;
    }
    this.report();
    this.redraw();
  }

  isOpen(panel, rank) {
    const usual = this.timeline.panels[panel].ranks <= FOLDED;
    return this.opened.get(`${panel}:${rank}`) ?? usual;
  }

  flip(panel, rank) {
    this.opened.set(`${panel}:${rank}`, !this.isOpen(panel, rank));
    this.relayout();
  }

  unfold(panel = null) {
    const whole = panel !== null || !this.whole.some(Boolean);
    this.whole = this.whole.map((was, p) => ([null, p].includes(panel) ? whole : was));
    this.fold.textContent = this.whole.some(Boolean) ? "Fold ranks" : "All ranks";
    this.relayout();
  }

  show(from, to) {
    const wide = Math.min(Math.max(to - from, this.end * 1e-5), this.end);
    this.from = Math.min(Math.max(from, 0), this.end - wide);
    this.to = this.from + wide;
    this.redraw();
  }

  pan(by) {
    this.show(this.from + by, this.to + by);
  }

  zoom(factor, about = null) {
    const { from, to, now } = this;
    const middle = now > from && now < to ? now : (from + to) / 2;
    const fixed = about ?? middle;
    this.show(fixed - (fixed - from) * factor, fixed + (to - fixed) * factor);
  }

  // Sizes, colours, frames

  relayout() {
    this.width = Math.floor(this.host.clientWidth);
    if (!this.width) return;
    this.narrow = this.width < 520;
    const isOpen = (panel, rank) => this.isOpen(panel, rank);
    this.plan = layout(this.timeline.panels, isOpen, (panel) => this.whole[panel]);
    const streams = this.plan.rows.some((row) => row.open && !row.alone);
    this.left = this.narrow ? (streams ? 58 : 28) : streams ? 118 : 62;
    const whole = AXIS + this.plan.height + 4;
    this.height = Math.min(whole, TALLEST);
    this.inside.style.height = `${whole}px`;
    const dense = window.devicePixelRatio || 1;
    this.canvas.width = this.width * dense;
    this.canvas.height = this.height * dense;
    this.canvas.style.width = `${this.width}px`;
    this.canvas.style.height = `${this.height}px`;
    this.ctx.setTransform(dense, 0, 0, dense, 0, 0);
    this.redraw();
    globalThis.google?.colab?.output?.resizeIframeToContent?.();
  }

  // Ink is the colour of the text around; light ink means a dark page.
  theme() {
    const style = getComputedStyle(this.host);
    const [r, g, b] = (style.color.match(/[\d.]+/g) ?? [0, 0, 0]).map(Number);
    const dark = 0.3 * r + 0.59 * g + 0.11 * b > 128;
    this.ink = style.color;
    this.paper = dark ? "#2B2B2B" : "#FFFFFF";
    this.faint = "rgba(128, 128, 128, 0.25)";
    this.font = `11px ${style.fontFamily || "sans-serif"}`;
    const lines = hatching(this.ctx, "lines", dark ? "#777777" : "#BBBBBB");
    this.hatches = { lines, dots: hatching(this.ctx, "dots", "white") };
    this.redraw();
  }

  redraw() {
    if (this.frame || !this.plan) return;
    this.frame = requestAnimationFrame(() => {
      this.frame = 0;
      draw(this.ctx, this.view());
    });
  }

  view() {
    const { left, width, from, to } = this;
    const scale = (width - left - RIGHT) / (to - from);
    const moving = this.now < this.end;
    const scroll = this.scroll.scrollTop;
    return Object.assign(Object.create(this), {
      scroll, moving, x: (time) => left + (time - from) * scale,
    });
  }
}

const THEMES = ["class", "style", "theme", "data-theme", "data-jp-theme-light"];

// The element shows the player of this data in place of what it holds.
export function mount(element, data) {
  const host = document.createElement("div");
  host.dataset.lmSuppressShortcuts = "true"; // JupyterLab leaves the keys to it
  element.replaceChildren(host);
  element.dataset.ready = "yes";
  return new Player(host, data);
}

// Every element that a notebook or a page has prepared; those that play stay.
export function mountAll(page) {
  for (const element of page.querySelectorAll(".d2lpar-player:not([data-ready])")) {
    mount(element, JSON.parse(element.querySelector("script").textContent));
  }
}

// What anywidget asks of a module.
export default {
  render: ({ model, el }) => {
    mount(el, model.get("data"));
  },
};
