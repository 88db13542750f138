// Memory of a rank over time: allocated, reserved, outside PyTorch's allocator, and the GPU's capacity.
function drawMemory() {
  const canvas = $("memory-chart");
  const one = content.memory[Number($("memory-rank").value) || 0];
  const [pen, width] = prepare(canvas, 240);
  if (!one || !one.ns.length) {
    pen.fillStyle = colour("muted");
    pen.fillText("no memory recorded", 8, 20);
    return;
  }
  const [left, right, top, bottom] = [76, 10, 10, 24];
  const outside = one.outside;
  const peak = one.reserved.reduce((a, b) => Math.max(a, b), 0) + outside;
  const far = peak * 4 < content.capacity_bytes;  // the capacity would make the curve too flat
  const most = far ? peak * 1.25 : Math.max(peak, content.capacity_bytes) * 1.04;
  const end = Math.max(one.ns[one.ns.length - 1], 1);
  const x = (ns) => left + (width - left - right) * ns / end;
  const y = (count) => 240 - bottom - (240 - top - bottom) * count / most;
  const unit = most >= 4 * 2 ** 30 ? 2 ** 30 : 2 ** 20;
  pen.textAlign = "right";
  for (const at of ticks(0, most / unit, 5)) {
    pen.fillStyle = colour("line");
    pen.fillRect(left, Math.round(y(at * unit)), width - left - right, 1);
    pen.fillStyle = colour("muted");
    pen.fillText(at + (unit === 2 ** 30 ? " GiB" : " MiB"), left - 8, y(at * unit));
  }
  pen.textAlign = "center";
  for (const at of ticks(0, end, 8)) pen.fillText(duration(at), Math.min(width - 30, Math.max(left + 4, x(at))), 240 - 10);
  const area = (values, base, fill) => {
    pen.fillStyle = fill;
    pen.beginPath();
    pen.moveTo(x(one.ns[0]), y(base));
    values.forEach((value, at) => {
      pen.lineTo(x(one.ns[at]), y(base + value));
      pen.lineTo(x(at + 1 < values.length ? one.ns[at + 1] : end), y(base + value));
    });
    pen.lineTo(x(end), y(base));
    pen.fill();
  };
  area(one.reserved, outside, colour("hidden"));
  area(one.allocated, outside, colour("gemm"));
  pen.fillStyle = colour("host_bound");
  pen.fillRect(x(one.ns[0]), y(outside), x(end) - x(one.ns[0]), y(0) - y(outside));
  if (!far) {
    pen.strokeStyle = colour("waiting");
    pen.setLineDash([6, 4]);
    pen.beginPath();
    pen.moveTo(left, y(content.capacity_bytes));
    pen.lineTo(width - right, y(content.capacity_bytes));
    pen.stroke();
    pen.setLineDash([]);
  }
  const summary = `rank ${one.rank}: at most ${bytes(peak)} of ${bytes(content.capacity_bytes)} in use: ` +
    `${bytes(one.allocated.reduce((a, b) => Math.max(a, b), 0))} allocated, ` +
    `${bytes(peak - outside)} reserved, ${bytes(outside)} outside PyTorch's allocator` +
    (far ? "; the capacity is far above the chart" : "");
  $("memory-details").textContent = summary;
  canvas.setAttribute("aria-label", summary);
  canvas.onmousemove = (event) => {
    const ns = (place(canvas, event)[0] - left) / (width - left - right) * end;
    if (ns < 0 || ns > end) return hideTip();
    let at = 0;
    while (at + 1 < one.ns.length && one.ns[at + 1] <= ns) at++;
    showTip(event, "at " + duration(ns), ["allocated " + bytes(one.allocated[at]), "reserved " + bytes(one.reserved[at]),
      "outside " + bytes(outside), "total " + bytes(one.reserved[at] + outside)]);
  };
  canvas.onmouseleave = hideTip;
}

function startMemory() {
  legend($("memory-legend"), [["gemm", "allocated"], ["hidden", "reserved, not allocated"],
    ["host_bound", "outside PyTorch's allocator"], ["waiting", "capacity"]]);
  const select = $("memory-rank");
  select.append(...content.memory.map((one, at) => element("option", { value: at }, String(one.rank))));
  select.onchange = drawMemory;
  draws(drawMemory);
}
