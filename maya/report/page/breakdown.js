// Where the time of a step goes: stacked bars of some ranks, a table, and the length of every step.
const stepOf = (rank) => content.parts.reduce((sum, part) => sum + part.ns[rank], 0);

function drawBars() {
  const longest = Math.max(...content.bars.map((bar) => stepOf(bar.rank)), 1);
  $("bars").replaceChildren(...content.bars.map((bar) => {
    const total = stepOf(bar.rank);
    const pieces = content.parts.filter((part) => part.ns[bar.rank] > 0).map((part) => {
      const piece = element("span", { style: `width: ${100 * part.ns[bar.rank] / longest}%; background: var(--${part.key})` });
      if (part.ns[bar.rank] / longest > 0.06) piece.textContent = (100 * part.ns[bar.rank] / total).toFixed(0) + " %";
      piece.style.color = inkOn(colour(part.key));
      hover(piece, () => [part.name, [duration(part.ns[bar.rank]) + ", " + share(part.ns[bar.rank] / total), part.meaning]]);
      return piece;
    });
    const hidden = content.hidden_ns[bar.rank];
    const thin = element("div", { class: "bar thin" });
    if (hidden > 0) {
      const piece = element("span", { style: `width: ${Math.min(100, 100 * hidden / longest)}%; background: var(--hidden)` });
      hover(piece, () => ["Communication hidden behind computation", [duration(hidden)]]);
      thin.append(piece);
    }
    return element("div", { class: "bar-row" },
      element("div", { class: "name" }, bar.label, " ", element("small", {}, "rank " + bar.rank)),
      element("div", { class: "bar-box" }, element("div", { class: "bar" }, ...pieces), thin),
      element("div", { class: "total" }, duration(total)));
  }));
}

function hover(piece, describe) {
  piece.addEventListener("mousemove", (event) => showTip(event, ...describe()));
  piece.addEventListener("mouseleave", hideTip);
}

function drawBreakdownTable() {
  const rows = content.parts.filter((part) => part.ns.some((ns) => ns > 0));
  const head = element("tr", {}, element("th", {}, "part"),
    ...content.bars.flatMap((bar) => [element("th", { class: "number" }, bar.label), element("th", { class: "number share" }, "share")]),
    element("th", {}, "meaning"));
  const lines = rows.map((part) => element("tr", {},
    element("td", {}, element("span", { class: "key", style: `background: var(--${part.key})` }), part.name),
    ...content.bars.flatMap((bar) => [
      element("td", { class: "number" }, duration(part.ns[bar.rank])),
      element("td", { class: "number quiet share" }, share(part.ns[bar.rank] / Math.max(1, stepOf(bar.rank))))]),
    element("td", { class: "quiet" }, part.meaning)));
  const total = element("tr", { class: "total" }, element("td", {}, "step"),
    ...content.bars.flatMap((bar) => [element("td", { class: "number" }, duration(stepOf(bar.rank))), element("td")]),
    element("td"));
  const hidden = element("tr", {},
    element("td", {}, element("span", { class: "key", style: "background: var(--hidden)" }), "communication, hidden"),
    ...content.bars.flatMap((bar) => [
      element("td", { class: "number" }, duration(content.hidden_ns[bar.rank])),
      element("td", { class: "number quiet share" }, share(content.hidden_ns[bar.rank] / Math.max(1, stepOf(bar.rank))))]),
    element("td", { class: "quiet" }, "overlaps with computing, so it is not part of the step's length"));
  const some = content.hidden_ns.some((ns) => ns > 0);
  $("breakdown-table").replaceChildren(element("thead", {}, head), element("tbody", {}, ...lines, total, ...(some ? [hidden] : [])));
}

function drawSteps() {
  const canvas = $("steps-chart");
  const [pen, width] = prepare(canvas, 120);
  const { ns, warm_up, typical } = content.steps;
  const [left, right, top, bottom] = [64, 8, 8, 22];
  const most = Math.max(...ns, 1);
  const column = (width - left - right) / ns.length;
  const y = (value) => 120 - bottom - (120 - top - bottom) * value / most;
  pen.textAlign = "right";
  for (const at of ticks(0, most, 3)) {
    pen.fillStyle = colour("line");
    pen.fillRect(left, Math.round(y(at)), width - left - right, 1);
    pen.fillStyle = colour("muted");
    pen.fillText(duration(at), left - 8, y(at));
  }
  pen.textAlign = "center";
  const every = Math.ceil(ns.length / Math.max(1, Math.floor((width - left) / 40)));
  ns.forEach((value, at) => {
    const from = left + at * column;
    const wide = Math.max(1, Math.min(48, column * 0.7));
    pen.fillStyle = colour(at === typical ? "accent" : at < warm_up ? "idle" : "other");
    pen.fillRect(from + (column - wide) / 2, y(value), wide, y(0) - y(value));
    pen.fillStyle = colour("muted");
    if (at % every === 0) pen.fillText(String(at + 1), from + column / 2, 120 - bottom / 2);
  });
  canvas.setAttribute("aria-label", `Length of ${ns.length} steps, ${ns.map(duration).join(", ")}`);
  canvas.onmousemove = (event) => {
    const at = Math.floor((place(canvas, event)[0] - left) / column);
    if (at < 0 || at >= ns.length) return hideTip();
    const note = at === typical ? "typical step, shown on this page" : at < warm_up ? "warm-up, left out" : "";
    showTip(event, "step " + (at + 1), [duration(ns[at]), note]);
  };
  canvas.onmouseleave = hideTip;
}
