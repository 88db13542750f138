// Ranks as a heat map: one part of the step by node and GPU or by the coordinates of the mesh, or all parts by rank.
const ranksView = { cells: [], at: 0, columns: 1 };

function rankSeries() {
  const series = [["step", "step", content.peak_bytes.map((_, rank) => stepOf(rank)), duration]];
  for (const part of content.parts)
    if (part.ns.some((ns) => ns > 0)) series.push([part.key, part.name, part.ns, duration]);
  if (content.hidden_ns.some((ns) => ns > 0))
    series.push(["hidden", "communication, hidden", content.hidden_ns, duration]);
  series.push(["peak", "peak memory", content.peak_bytes, bytes]);
  return series;
}

function drawRanks() {
  const canvas = $("ranks-map");
  const all = rankSeries();
  const largestOf = (values) => values.reduce((a, b) => Math.max(a, b), 1);
  ranksView.longest = largestOf(all[0][2]);
  const [chosen, by] = $("ranks-what").value.split(":");
  const byDifference = $("ranks-colour").value === "difference";
  const rows = chosen === "all" ? all : all.filter(([key]) => key === chosen);
  if (chosen !== "all") ranksView.longest = largestOf(rows[0][2]);
  if (chosen === "all") drawAllParts(canvas, rows, byDifference);
  else if (by === "mesh") drawMesh(canvas, rows[0], byDifference);
  else drawNodes(canvas, rows[0], byDifference);
  drawRankScale(rows, byDifference);
}

// Times are relative to the longest step, memory to the GPU's capacity, so that rows can be compared.
function largest([key, , values]) {
  if (key === "peak") return content.capacity_bytes;
  return ranksView.longest || values.reduce((a, b) => Math.max(a, b), 1);
}

function colouring(row, byDifference) {
  const values = row[2];
  const most = largest(row);
  if (!byDifference) return (value) => heat(value / most);
  const middle = median(values);
  const furthest = values.reduce((a, b) => Math.max(a, Math.abs(b - middle)), 0);
  return (value) => signed(furthest ? (value - middle) / furthest : 0);
}

function drawRankScale(rows, byDifference) {
  const into = $("ranks-scale");
  if (rows.length > 1)
    return scale(into, byDifference ? -1 : 0, 1, byDifference ? signed : heat, byDifference ? "less than the median" : "0",
      byDifference ? "more" : "longest step, all memory");
  const [, , values, format] = rows[0];
  if (!byDifference) return scale(into, 0, 1, heat, "0", format(largest(rows[0])));
  const middle = median(values);
  const furthest = values.reduce((a, b) => Math.max(a, Math.abs(b - middle)), 0);
  if (!furthest) return into.replaceChildren("the same on all ranks: " + format(middle));
  scale(into, -1, 1, signed, "−" + format(furthest), "+" + format(furthest));
}

function drawAllParts(canvas, rows, byDifference) {
  const [left, high, top] = [170, 22, 4];
  const count = content.peak_bytes.length;
  const height = top + rows.length * high + 26;
  const [pen, width] = prepare(canvas, height);
  const column = Math.min(110, (width - left - 4) / count);
  const written = column >= 58;
  ranksView.columns = count;
  ranksView.cells = [];
  rows.forEach((row, line) => {
    const paint = colouring(row, byDifference);
    pen.textAlign = "right";
    pen.fillStyle = colour("muted");
    pen.fillText(row[1], left - 10, top + (line + 0.5) * high);
    for (let rank = 0; rank < count; rank++) {
      pen.fillStyle = paint(row[2][rank]);
      const [from, to] = [left + rank * column, left + (rank + 1) * column];
      pen.fillRect(from, top + line * high, to - from - (column > 6 ? 1 : -0.3), high - 1);
      ranksView.cells.push([from, top + line * high, column, high - 1, rank, row]);
      if (!written) continue;
      pen.fillStyle = inkOnPaint(pen.fillStyle);
      pen.textAlign = "center";
      pen.fillText(row[3](row[2][rank]), from + column / 2, top + (line + 0.5) * high);
    }
  });
  const every = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512].find((each) => each * column > 34) || 1024;
  pen.textAlign = column > 20 ? "center" : "left";
  pen.fillStyle = colour("muted");
  for (let rank = 0; rank < count; rank += every)
    pen.fillText(String(rank), left + (rank + (column > 20 ? 0.5 : 0)) * column, height - 12);
}

function drawNodes(canvas, row, byDifference) {
  const per = content.ranks_per_node;
  const count = content.peak_bytes.length;
  const nodes = Math.ceil(count / per);
  const [left, top] = [70, 22];
  const width = canvas.clientWidth || 1200;
  const cell = Math.max(4, Math.min(44, Math.floor((width - left - 4) / nodes)));
  const fit = Math.max(1, Math.floor((width - left - 4) / cell));
  const bands = Math.ceil(nodes / fit);
  const high = Math.max(15, Math.min(26, cell));
  const [pen] = prepare(canvas, bands * (top + per * high + 8));
  const paint = colouring(row, byDifference);
  ranksView.columns = 0;
  ranksView.cells = [];
  const every = [1, 2, 4, 8, 16, 32, 64].find((each) => each * cell > 30) || 128;
  for (let node = 0; node < nodes; node++) {
    const [band, column] = [Math.floor(node / fit), node % fit];
    const y = band * (top + per * high + 8) + top;
    pen.textAlign = "left";
    pen.fillStyle = colour("muted");
    if (column % every === 0) pen.fillText((column ? "" : "node ") + node, left + column * cell - (column ? 0 : 34), y - 10);
    for (let gpu = 0; gpu < per && node * per + gpu < count; gpu++) {
      if (column === 0) {
        pen.textAlign = "right";
        pen.fillStyle = colour("muted");
        pen.fillText("GPU " + gpu, left - 8, y + (gpu + 0.5) * high);
      }
      const rank = node * per + gpu;
      pen.fillStyle = paint(row[2][rank]);
      pen.fillRect(left + column * cell, y + gpu * high, cell - 1, high - 1);
      ranksView.cells.push([left + column * cell, y + gpu * high, cell - 1, high - 1, rank, row]);
    }
  }
}

// The largest dimension of the mesh from left to right, all others from top to bottom.
function drawMesh(canvas, row, byDifference) {
  const across = content.mesh.reduce((a, b) => b.size > a.size ? b : a);
  const down = content.mesh.filter((each) => each !== across).reverse();
  const lines = down.reduce((product, each) => product * each.size, 1);
  const [left, top] = [150, 22];
  const width = canvas.clientWidth || 1200;
  const wide = Math.max(1, Math.min(26, (width - left - 4) / across.size));
  const high = Math.max(2, Math.min(22, 900 / lines));
  const [pen] = prepare(canvas, top + lines * high + 6);
  const paint = colouring(row, byDifference);
  const gap = (size) => size > 5 ? 1 : 0;
  ranksView.columns = across.size;
  ranksView.cells = [];
  pen.fillStyle = colour("muted");
  pen.textAlign = "left";
  pen.fillText(`${across.size} ranks with stride ${across.stride} from left to right`, left, 10);
  for (let line = 0; line < lines; line++) {
    let [first, rest, names] = [0, line, []];
    for (const each of [...down].reverse()) {
      first += rest % each.size * each.stride;
      names.unshift(rest % each.size);
      rest = Math.floor(rest / each.size);
    }
    const y = top + line * high;
    if (high >= 12 || line % Math.ceil(12 / high) === 0) {
      pen.textAlign = "right";
      pen.fillStyle = colour("muted");
      pen.fillText(names.join(", ") + " of " + down.map((each) => each.size).join(" × "), left - 8, y + Math.max(high, 10) / 2);
    }
    for (let at = 0; at < across.size; at++) {
      const rank = first + at * across.stride;
      pen.fillStyle = paint(row[2][rank]);
      pen.fillRect(left + at * wide, y, wide - gap(wide), high - gap(high));
      ranksView.cells.push([left + at * wide, y, wide, high, rank, row]);
    }
  }
}

function coordinatesOf(rank) {
  return content.mesh.map((each) => Math.floor(rank / each.stride) % each.size).reverse().join(", ");
}

function describeRank(rank, row) {
  const middle = median(row[2]);
  const away = row[2][rank] - middle;
  const compared = away ? `${away > 0 ? "+" : ""}${row[3] === bytes && away < 0 ? "−" + bytes(-away) : row[3](away)} from the median rank` : "same as the median rank";
  const where = content.mesh.length ? [`coordinates ${coordinatesOf(rank)} in the mesh`] : [];
  return [rankName(rank), [...where, `${row[1]}: ${row[3](row[2][rank])}`, compared]];
}

function rankCellAt(x, y) {
  return ranksView.cells.findIndex(([left, top, wide, high]) => x >= left && x < left + wide && y >= top && y < top + high);
}

function chooseRankCell(at) {
  if (at < 0 || at >= ranksView.cells.length) return;
  ranksView.at = at;
  drawRanks();
  const [left, top, wide, high, rank, row] = ranksView.cells[at];
  const pen = $("ranks-map").getContext("2d");
  pen.strokeStyle = colour("ink");
  pen.lineWidth = 2;
  pen.strokeRect(left, top, Math.max(wide, 2), high);
  const [title, lines] = describeRank(rank, row);
  $("ranks-details").textContent = `${title}. ${lines.join(", ")}. Streams shown below: ${showStreamsOf(rank)}`;
}

function startRanks() {
  const series = rankSeries();
  const select = $("ranks-what");
  select.append(element("option", { value: "all" }, "all parts, by rank"),
    ...series.map(([key, name]) => element("option", { value: key }, name + ", by node")));
  if (content.mesh.length)
    select.append(...series.map(([key, name]) => element("option", { value: key + ":mesh" }, name + ", by mesh coordinates")));
  if (content.peak_bytes.length > 64) {  // show the row that differs most between ranks
    const reach = (values) => values.reduce((a, b) => Math.max(a, b), -Infinity) - values.reduce((a, b) => Math.min(a, b), Infinity);
    const times = series.filter(([key]) => key !== "peak").map(([key, , values]) => [reach(values), key]);
    select.value = times.reduce((a, b) => b[0] > a[0] ? b : a)[1] + (content.mesh.length ? ":mesh" : "");
    $("ranks-colour").value = "difference";
  }
  select.onchange = $("ranks-colour").onchange = drawRanks;
  const canvas = $("ranks-map");
  canvas.setAttribute("aria-label", "Ranks as a heat map. Arrow keys go from rank to rank.");
  canvas.onmousemove = (event) => {
    const at = rankCellAt(...place(canvas, event));
    if (at < 0) return hideTip();
    const [, , , , rank, row] = ranksView.cells[at];
    showTip(event, ...describeRank(rank, row));
  };
  canvas.onmouseleave = hideTip;
  canvas.onclick = (event) => chooseRankCell(rankCellAt(...place(canvas, event)));
  canvas.onkeydown = (event) => {
    const per = ranksView.columns ? 1 : content.ranks_per_node;
    const down = ranksView.columns || 1;
    const by = { ArrowRight: per, ArrowLeft: -per, ArrowDown: down, ArrowUp: -down }[event.key];
    if (by === undefined) return;
    event.preventDefault();
    chooseRankCell(ranksView.at + by);
  };
  draws(drawRanks);
}
