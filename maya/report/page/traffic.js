// Bytes sent between ranks or nodes, as a matrix with a logarithmic scale.
const trafficView = { at: 0, cell: 10, left: 60, top: 22, byPair: new Map() };

function drawTraffic() {
  const { unit, size, entries } = content.traffic;
  const canvas = $("traffic-map");
  const wide = canvas.clientWidth || 1200;
  const view = trafficView;
  view.cell = Math.max(2, Math.min(26, Math.floor(Math.min(wide - view.left - 8, 640) / Math.max(1, size))));
  const [pen] = prepare(canvas, view.top + Math.max(1, size) * view.cell + 8);
  let [least, most] = [Infinity, 0];
  for (let at = 2; at < entries.length; at += 3) {
    least = Math.min(least, entries[at]);
    most = Math.max(most, entries[at]);
  }
  pen.fillStyle = colour("soft");
  pen.fillRect(view.left, view.top, size * view.cell, size * view.cell);
  const [low, high] = [Math.log(Math.max(1, least)), Math.log(Math.max(2, most))];
  const gap = view.cell > 5 ? 1 : 0;
  for (let at = 0; at < entries.length; at += 3) {
    const part = high > low ? (Math.log(Math.max(1, entries[at + 2])) - low) / (high - low) : 1;
    pen.fillStyle = heat(0.12 + 0.88 * part);
    pen.fillRect(view.left + entries[at + 1] * view.cell, view.top + entries[at] * view.cell, view.cell - gap, view.cell - gap);
  }
  pen.fillStyle = colour("muted");
  const every = [1, 2, 4, 8, 16, 32, 64].find((each) => each * view.cell > 26) || 128;
  for (let at = 0; at < size; at += every) {
    pen.textAlign = "right";
    pen.fillText(String(at), view.left - 6, view.top + (at + 0.5) * view.cell);
    pen.textAlign = "center";
    pen.fillText(String(at), view.left + (at + 0.5) * view.cell, view.top - 10);
  }
  pen.textAlign = "left";
  pen.fillText("from", 2, view.top + 0.5 * view.cell);
  pen.fillText("to " + unit, 2, view.top - 10);
  if (most) scale($("traffic-scale"), 0.12, 1, heat, bytes(least), bytes(most));
}

function describeTraffic(cell) {
  const { unit, size } = content.traffic;
  const [from, to] = [Math.floor(cell / size), cell % size];
  return [`${unit} ${from} to ${unit} ${to}`, [bytes(trafficView.byPair.get(cell) || 0) + " per step"]];
}

function startTraffic() {
  const { unit, size, entries, how } = content.traffic;
  $("traffic-about").textContent = how;
  for (let at = 0; at < entries.length; at += 3) trafficView.byPair.set(entries[at] * size + entries[at + 1], entries[at + 2]);
  const canvas = $("traffic-map");
  canvas.hidden = !entries.length;
  canvas.setAttribute("aria-label", `Bytes from each ${unit} to each other. Arrow keys go from cell to cell.`);
  const cellAt = (event) => {
    const [x, y] = place(canvas, event);
    const [column, row] = [Math.floor((x - trafficView.left) / trafficView.cell), Math.floor((y - trafficView.top) / trafficView.cell)];
    return column >= 0 && column < size && row >= 0 && row < size ? row * size + column : -1;
  };
  canvas.onmousemove = (event) => {
    const cell = cellAt(event);
    if (cell < 0) return hideTip();
    showTip(event, ...describeTraffic(cell));
  };
  canvas.onmouseleave = hideTip;
  canvas.onkeydown = (event) => {
    const by = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: size, ArrowUp: -size }[event.key];
    if (by === undefined) return;
    event.preventDefault();
    trafficView.at = Math.max(0, Math.min(size * size - 1, trafficView.at + by));
    drawTraffic();
    const [row, column] = [Math.floor(trafficView.at / size), trafficView.at % size];
    const pen = canvas.getContext("2d");
    pen.strokeStyle = colour("ink");
    pen.lineWidth = 2;
    pen.strokeRect(trafficView.left + column * trafficView.cell, trafficView.top + row * trafficView.cell, trafficView.cell, trafficView.cell);
    const [title, lines] = describeTraffic(trafficView.at);
    $("traffic-details").textContent = title + ": " + lines.join(", ");
  };
  draws(drawTraffic);
}
