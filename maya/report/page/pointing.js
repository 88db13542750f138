// Mouse and keys on the streams: zoom, move, and go from event to event.
function pointAtStreams(canvas) {
  canvas.setAttribute("aria-label", "Streams of a rank over time. Plus and minus zoom, arrows move, n and p go from event to event.");
  let held = null;
  canvas.onwheel = (event) => {
    if (!event.ctrlKey && Math.abs(event.deltaY) < Math.abs(event.deltaX)) return;
    if (document.activeElement !== canvas && !event.ctrlKey) return;  // scrolling past the chart scrolls the page
    event.preventDefault();
    const part = (place(canvas, event)[0] - LEFT) / (canvas.clientWidth - LEFT);
    zoomBy(event.deltaY > 0 ? 1.25 : 0.8, view.from + part * (view.to - view.from));
  };
  canvas.onmousedown = (event) => { held = [event.clientX, view.from, view.to]; };
  window.addEventListener("mouseup", () => { held = null; });
  canvas.onmousemove = (event) => {
    if (held && event.buttons) {
      const by = (held[0] - event.clientX) / (canvas.clientWidth - LEFT) * (held[2] - held[1]);
      hideTip();
      return zoomTo(held[1] + by, held[2] + by);
    }
    const hit = eventAt(...place(canvas, event), canvas.clientWidth);
    if (!hit) return hideTip();
    showTip(event, ...describeEvent(view.tracks[hit[0]], hit[1]));
  };
  canvas.onmouseleave = hideTip;
  canvas.onclick = (event) => {
    const hit = eventAt(...place(canvas, event), canvas.clientWidth);
    if (hit) choose(...hit);
  };
  canvas.onkeydown = (event) => {
    const span = view.to - view.from;
    const keys = {
      "+": () => zoomBy(0.5), "=": () => zoomBy(0.5), "-": () => zoomBy(2),
      ArrowLeft: () => zoomTo(view.from - span / 5, view.to - span / 5),
      ArrowRight: () => zoomTo(view.from + span / 5, view.to + span / 5),
      ArrowUp: () => choose(Math.max(0, view.track - 1), -1),
      ArrowDown: () => choose(Math.min(view.tracks.length - 1, view.track + 1), -1),
      n: () => nextEvent(1), p: () => nextEvent(-1), Home: () => zoomTo(0, Infinity),
    };
    if (event.ctrlKey || event.metaKey || !keys[event.key]) return;
    event.preventDefault();
    keys[event.key]();
  };
}

function pointAtOverview(canvas) {
  const move = (event) => {
    const one = content.streams[view.rank];
    if (!one || (event.type === "mousemove" && !event.buttons)) return;
    const middle = (place(canvas, event)[0] - LEFT) / (canvas.clientWidth - LEFT) * (one.last_ns - one.first_ns);
    const span = view.to - view.from;
    zoomTo(middle - span / 2, middle + span / 2);
  };
  canvas.onmousedown = canvas.onmousemove = move;
}
