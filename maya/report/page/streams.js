// The streams of a rank over time, with zoom, and with events found by name highlighted.
const view = { rank: 0, from: 0, to: 1, tracks: [], track: 0, event: -1, found: null };
const TRACK_HEIGHT = 34, LEFT = 96, TOP = 24, AHEAD = 46;

// Decode five numbers for each event into times since the start of the track.
function decodeTrack(track) {
  const count = track.events.length / 5;
  const out = { name: track.name, start: new Float64Array(count), end: new Float64Array(count),
    activity: new Int32Array(count), lead: new Float64Array(count), wait: new Float64Array(count) };
  let at = 0;
  for (let event = 0; event < count; event++) {
    const [gap, took, activity, lead, wait] = track.events.slice(5 * event, 5 * event + 5);
    out.start[event] = at + gap;
    at = out.end[event] = at + gap + took;
    out.activity[event] = activity;
    out.lead[event] = lead;
    out.wait[event] = wait;
  }
  return out;
}

function firstEndingAfter(track, ns) {
  let [low, high] = [0, track.end.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (track.end[middle] > ns) high = middle;
    else low = middle + 1;
  }
  return low;
}

const kindOf = (event, track) => content.activities[track.activity[event]].kind;

function drawStreams() {
  const canvas = $("streams-chart");
  const [pen, width] = prepare(canvas, TOP + view.tracks.length * TRACK_HEIGHT + AHEAD);
  const one = content.streams[view.rank];
  if (!one) {
    pen.fillStyle = colour("muted");
    pen.fillText("no stream recorded", 8, 16);
    return;
  }
  const x = (ns) => LEFT + (width - LEFT) * (ns - view.from) / (view.to - view.from);
  drawTimes(pen, x, width, one);
  view.tracks.forEach((track, number) => drawTrack(pen, track, TOP + number * TRACK_HEIGHT, x, width, number));
  drawAhead(pen, x, width);
  const steps = one.steps.filter(([, end]) => end - one.first_ns > view.from && end - one.first_ns <= view.to);
  $("streams-range").textContent = `${duration(Math.round(view.to - view.from))} from ${duration(Math.round(view.from + one.first_ns))}` +
    (steps.length ? `, step${steps.length > 1 ? "s" : ""} ${steps.map(([step]) => step + 1).join(", ")}` : "") +
    (one.joined_ns ? `; adjacent events below ${duration(one.joined_ns)} are joined` : "");
  drawOverview();
}

function drawTimes(pen, x, width, one) {
  const bottom = TOP + view.tracks.length * TRACK_HEIGHT;
  pen.textAlign = "center";
  for (const at of ticks(view.from + one.first_ns, view.to + one.first_ns, Math.floor((width - LEFT) / 110))) {
    const place = x(at - one.first_ns);
    pen.fillStyle = colour("soft");
    pen.fillRect(Math.round(place), TOP - 6, 1, bottom - TOP + 6);
    pen.fillStyle = colour("muted");
    pen.fillText(preciseTime(at), Math.max(LEFT + 30, Math.min(width - 36, place)), 10);
  }
  pen.fillStyle = colour("accent");
  for (const [, end] of one.steps) {
    const place = x(end - one.first_ns);
    if (place >= LEFT && place <= width) pen.fillRect(Math.round(place), TOP - 8, 1.5, bottom - TOP + 8);
  }
}

// As many digits as the zoom needs.
function preciseTime(ns) {
  const span = view.to - view.from;
  const [unit, size] = span > 2e9 ? ["s", 1e9] : span > 2e6 ? ["ms", 1e6] : ["µs", 1e3];
  const places = Math.max(0, Math.min(4, Math.ceil(-Math.log10(span / size / 8))));
  return (ns / size).toFixed(places) + " " + unit;
}

function drawTrack(pen, track, top, x, width, number) {
  pen.textAlign = "right";
  pen.fillStyle = colour(number === view.track ? "ink" : "muted");
  pen.fillText(track.name, LEFT - 10, top + TRACK_HEIGHT / 2);
  pen.fillStyle = colour("soft");
  pen.fillRect(LEFT, top + TRACK_HEIGHT - 1, width - LEFT, 1);
  pen.textAlign = "left";
  const narrow = new Map();  // kind -> for each pixel, the share of its time in events narrower than a pixel
  for (let at = firstEndingAfter(track, view.from); at < track.start.length && track.start[at] < view.to; at++) {
    const [from, to] = [x(track.start[at]), x(track.end[at])];
    const faded = view.found !== null && !view.found.has(track.activity[at]);
    const kind = kindOf(at, track);
    if (to - from < 1) addNarrow(narrow, faded ? "idle" : kind, from - LEFT, to - LEFT, width - LEFT);
    else drawEvent(pen, track, at, Math.max(LEFT, from), Math.min(width, to), top, kind, faded);
    if (track.wait[at] > 0) {  // a thinner, lighter bar before it: the wait for other ranks
      const begun = Math.max(LEFT, x(track.start[at] - track.wait[at]));
      pen.globalAlpha = faded ? 0.1 : 0.35;
      pen.fillStyle = colour("waiting");
      pen.fillRect(begun, top + TRACK_HEIGHT / 2 - 3, Math.max(0, from - begun), 6);
      pen.globalAlpha = 1;
    }
  }
  drawNarrow(pen, narrow, top);
  if (number === view.track && view.event >= 0) {
    const [left, right] = [x(track.start[view.event]), x(track.end[view.event])];
    pen.strokeStyle = colour("ink");
    pen.lineWidth = 2;
    pen.strokeRect(Math.max(LEFT, left), top + 3, Math.max(3, Math.min(width, right) - Math.max(LEFT, left)), TRACK_HEIGHT - 7);
  }
}

function drawEvent(pen, track, at, left, right, top, kind, faded) {
  pen.globalAlpha = faded ? 0.15 : 1;
  pen.fillStyle = colour(kind);
  pen.fillRect(left, top + 4, right - left - (right - left > 3 ? 0.6 : 0), TRACK_HEIGHT - 9);
  if (right - left > 46) {
    pen.fillStyle = inkOn(colour(kind));
    pen.save();
    pen.beginPath();
    pen.rect(left, top, right - left - 4, TRACK_HEIGHT);
    pen.clip();
    pen.fillText(content.activities[track.activity[at]].name, left + 5, top + TRACK_HEIGHT / 2);
    pen.restore();
  }
  pen.globalAlpha = 1;
}

function addNarrow(narrow, kind, from, to, columns) {
  if (!narrow.has(kind)) narrow.set(kind, new Float64Array(Math.ceil(columns) + 1));
  const into = narrow.get(kind);
  for (let column = Math.max(0, Math.floor(from)); column < to && column < into.length; column++)
    into[column] += Math.min(to, column + 1) - Math.max(from, column);
}

// Bars as high as the share of a pixel's time, so that a mostly idle stream looks idle.
function drawNarrow(pen, narrow, top) {
  const [bottom, high] = [top + TRACK_HEIGHT - 5, TRACK_HEIGHT - 9];
  const base = new Map();
  for (const [kind, parts] of narrow) {
    pen.fillStyle = colour(kind);
    parts.forEach((part, column) => {
      if (!part) return;
      const below = base.get(column) || 0;
      const height = Math.max(1, Math.min(1 - below, part) * high);
      pen.fillRect(LEFT + column, bottom - below * high - height, 1, height);
      base.set(column, below + part);
    });
  }
}

// Time from launch to start: where it is zero, the GPU waits for the host.
function drawAhead(pen, x, width) {
  const bottom = TOP + view.tracks.length * TRACK_HEIGHT + AHEAD - 4;
  const high = AHEAD - 12;
  const columns = Math.max(1, Math.ceil((width - LEFT) / 2));
  const least = new Float64Array(columns).fill(Infinity);
  for (const track of view.tracks)
    for (let at = firstEndingAfter(track, view.from); at < track.start.length && track.start[at] < view.to; at++) {
      if (kindOf(at, track) === "communication" || track.start[at] < view.from) continue;
      const column = Math.min(columns - 1, Math.floor((x(track.start[at]) - LEFT) / 2));
      least[column] = Math.min(least[column], track.lead[at]);
    }
  let most = 0;
  for (const lead of least) if (lead < Infinity) most = Math.max(most, lead);
  pen.textAlign = "right";
  pen.fillStyle = colour("muted");
  pen.fillText("host ahead", LEFT - 10, bottom - high + 8);
  pen.fillText(most ? "≤ " + duration(Math.round(most)) : "", LEFT - 10, bottom - high + 24);
  pen.fillStyle = colour("host_bound");
  let height = 0;
  for (let column = 0; column < columns; column++) {
    if (least[column] < Infinity) height = most ? Math.max(1, high * Math.max(0, least[column]) / most) : 1;
    pen.globalAlpha = 0.55;
    pen.fillRect(LEFT + 2 * column, bottom - height, 2, height);
  }
  pen.globalAlpha = 1;
}

// The whole span: for each pixel, the share of its time with computing and with communication.
function drawOverview() {
  const canvas = $("streams-overview");
  const [pen, width] = prepare(canvas, 34);
  const one = content.streams[view.rank];
  const all = one.last_ns - one.first_ns;
  const columns = Math.max(1, Math.floor(width - LEFT));
  const busy = { compute: new Float64Array(columns), communication: new Float64Array(columns) };
  for (const track of view.tracks)
    for (let at = 0; at < track.start.length; at++) {
      const into = kindOf(at, track) === "communication" ? busy.communication : busy.compute;
      const [from, to] = [track.start[at] / all * columns, track.end[at] / all * columns];
      for (let column = Math.max(0, Math.floor(from)); column < to && column < columns; column++)
        into[column] += Math.min(to, column + 1) - Math.max(from, column);
    }
  for (let column = 0; column < columns; column++) {
    pen.fillStyle = colour("gemm");
    const computed = Math.min(1, busy.compute[column]) * 15;
    pen.fillRect(LEFT + column, 16 - computed, 1, computed);
    pen.fillStyle = colour("communication");
    const sent = Math.min(1, busy.communication[column]) * 12;
    pen.fillRect(LEFT + column, 18, 1, sent);
  }
  pen.fillStyle = colour("muted");
  pen.textAlign = "right";
  pen.fillText("compute", LEFT - 10, 9);
  pen.fillText("network", LEFT - 10, 25);
  pen.strokeStyle = colour("ink");
  pen.lineWidth = 1;
  const [from, to] = [view.from / all * columns, view.to / all * columns];
  pen.strokeRect(LEFT + from + 0.5, 0.5, Math.max(2, to - from - 1), 33);
}

function zoomTo(from, to) {
  const one = content.streams[view.rank];
  if (!one) return;
  const all = one.last_ns - one.first_ns;
  const span = Math.max(200, Math.min(all, to - from));
  view.from = Math.max(0, Math.min(all - span, from));
  view.to = view.from + span;
  drawStreams();
}

function zoomBy(factor, around) {
  const middle = around === undefined ? (view.from + view.to) / 2 : around;
  zoomTo(middle - (middle - view.from) * factor, middle + (view.to - middle) * factor);
}

function zoomToStep() {
  const one = content.streams[view.rank];
  if (!one) return;
  const ends = one.steps.map(([step, end]) => [step, end - one.first_ns]);
  const at = ends.findIndex(([step]) => step === content.steps.typical);
  if (at < 0) return zoomTo(0, one.last_ns - one.first_ns);
  zoomTo(at ? ends[at - 1][1] : 0, ends[at][1]);
}

function describeEvent(track, at) {
  const activity = content.activities[track.activity[at]];
  const one = content.streams[view.rank];
  const took = track.end[at] - track.start[at];
  return [activity.name, [activity.detail,
    `${duration(took)}, from ${preciseTime(track.start[at] + one.first_ns)}`,
    track.wait[at] > 0 ? `waited ${duration(track.wait[at])} for other ranks before` : "",
    track.lead[at] >= 0 ? `launched ${duration(track.lead[at])} before its start` : "",
    `duration: ${activity.origin}${activity.spread ? ", ± " + activity.spread : ""}`]];
}

function choose(trackNumber, at) {
  [view.track, view.event] = [trackNumber, at];
  const track = view.tracks[trackNumber];
  if (at >= 0) {
    const span = view.to - view.from;
    if (track.start[at] < view.from || track.start[at] > view.to) zoomTo(track.start[at] - span / 4, track.start[at] + span * 3 / 4);
    const [title, lines] = describeEvent(track, at);
    $("streams-details").textContent = `${track.name}: ${title}. ${lines.filter(Boolean).join("; ")}.`;
  } else {
    $("streams-details").textContent = track ? `${track.name}, ${track.start.length} events` : "";
  }
  drawStreams();
}

function nextEvent(by) {
  const track = view.tracks[view.track];
  if (!track || !track.start.length) return;
  let at = view.event < 0 ? firstEndingAfter(track, view.from) - (by > 0 ? 1 : 0) : view.event;
  do at += by; while (at >= 0 && at < track.start.length && view.found && !view.found.has(track.activity[at]));
  if (at >= 0 && at < track.start.length) choose(view.track, at);
}

function eventAt(x, y, width) {
  const number = Math.floor((y - TOP) / TRACK_HEIGHT);
  const track = view.tracks[number];
  if (!track || x < LEFT) return null;
  const perPixel = (view.to - view.from) / (width - LEFT);
  const ns = view.from + (x - LEFT) * perPixel;
  let at = firstEndingAfter(track, ns - perPixel);
  if (at >= track.start.length || track.start[at] > ns + perPixel) return null;
  if (track.end[at] < ns && at + 1 < track.start.length && track.start[at + 1] <= ns) at++;
  return [number, at];
}

function find(text) {
  const wanted = text.trim().toLowerCase();
  view.found = wanted ? new Set(content.activities.flatMap((activity, at) =>
    `${activity.name} ${activity.detail} ${activity.kind}`.toLowerCase().includes(wanted) ? [at] : [])) : null;
  if (view.found) {
    let [count, ns] = [0, 0];
    for (const track of view.tracks)
      for (let at = 0; at < track.start.length; at++)
        if (view.found.has(track.activity[at])) [count, ns] = [count + 1, ns + track.end[at] - track.start[at]];
    $("streams-details").textContent = count ? `${whole(count)} found, ${duration(ns)} in total; press n for the next` : "nothing found";
  }
  drawStreams();
}

// Show the streams of a rank, or of the rank that stands for its rank class. Returns which.
function showStreamsOf(rank) {
  const within = (text) => text.split(",").some((range) => {
    const [ends, step] = range.split(":");
    const [first, last] = ends.split("-").map(Number);
    return rank >= first && rank <= (last === undefined ? first : last) && (rank - first) % Number(step || 1) === 0;
  });
  const rankClass = content.rank_classes.find((each) => within(each.ranks));
  const exactly = content.streams.findIndex((one) => one.rank === rank);
  const at = exactly >= 0 || !rankClass ? exactly : content.streams.findIndex((one) => one.rank === rankClass.rank);
  if (at < 0) return "none";
  $("streams-rank").value = String(at);
  showRank(at);
  return `rank ${content.streams[at].rank}`;
}

function showRank(at) {
  view.rank = at;
  const one = content.streams[at];
  [view.tracks, view.track, view.event] = [one ? one.tracks.map(decodeTrack) : [], 0, -1];
  zoomToStep();
}

function startStreams() {
  const used = new Set(content.activities.map((activity) => activity.kind));
  const names = new Map(content.parts.map((part) => [part.key, part.name]));
  names.set("communication", "communication");
  legend($("streams-legend"), [...names].filter(([key]) => used.has(key)));
  const select = $("streams-rank");
  select.append(...content.streams.map((one, at) => {
    const rankClass = content.rank_classes.find((each) => each.rank === one.rank);
    const like = rankClass && rankClass.count > 1 ? `, one of ${whole(rankClass.count)} alike` : "";
    return element("option", { value: at }, `${one.rank}${like}`);
  }));
  select.onchange = () => showRank(Number(select.value));
  $("streams-find").oninput = (event) => find(event.target.value);
  for (const button of document.querySelectorAll("[data-zoom]"))
    button.onclick = () => ({ in: () => zoomBy(0.5), out: () => zoomBy(2), step: zoomToStep, all: () => zoomTo(0, Infinity) })[button.dataset.zoom]();
  pointAtStreams($("streams-chart"));
  pointAtOverview($("streams-overview"));
  showRank(0);
  drawings.push(drawStreams);
}
