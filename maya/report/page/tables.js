// Tables with columns that sort on a click, the origins of durations, and the settings.
function drawTable(table, data) {
  let [sorted, down] = [-1, true];
  const body = element("tbody");
  const heads = data.columns.map((name, at) => {
    const numeric = data.units[at] !== "text";
    const button = element("button", { type: "button" }, name);
    const head = element("th", { class: numeric ? "number" : "", scope: "col" }, button);
    button.addEventListener("click", () => {
      [down, sorted] = [sorted === at ? !down : numeric, at];
      heads.forEach((each) => each.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      fill();
    });
    return head;
  });
  function fill() {
    const rows = data.rows.map((row, number) => [row, number]);
    if (sorted >= 0) {
      const order = (a, b) => typeof a === "number" ? a - b : String(a).localeCompare(String(b), "en");
      rows.sort(([a, i], [b, j]) => (down ? -1 : 1) * order(a[sorted], b[sorted]) || i - j);
    }
    body.replaceChildren(...rows.map(([row]) => element("tr", {}, ...row.map((value, at) => {
      const unit = data.units[at];
      const text = shown[unit](value);
      if (unit !== "text") return element("td", { class: "number" }, text);
      return element("td", { class: at === 0 ? "name" : "quiet", title: text }, text);
    }))));
  }
  fill();
  table.replaceChildren(element("thead", {}, element("tr", {}, ...heads)), body);
  if (!data.rows.length) table.replaceChildren(element("caption", {}, "none"));
}

function drawOrigins() {
  const total = content.origins.reduce((sum, each) => sum + each.ns, 0) || 1;
  const used = content.origins.filter((each) => each.ns > 0);
  const bar = element("div", { class: "bar" }, ...used.map((each) => {
    const piece = element("span", { style: `width: ${100 * each.ns / total}%; background: var(--${each.key})` });
    if (each.ns / total > 0.08) piece.textContent = each.name;
    piece.style.color = inkOn(colour(each.key));
    hover(piece, () => [each.name, [share(each.ns / total), each.meaning]]);
    return piece;
  }));
  $("origins-bar").replaceChildren(bar);
  $("origins-table").replaceChildren(element("tbody", {}, ...content.origins.map((each) => element("tr", {},
    element("td", {}, element("span", { class: "key", style: `background: var(--${each.key})` }), each.name),
    element("td", { class: "number" }, share(each.ns / total)),
    element("td", { class: "number" }, duration(each.ns)),
    element("td", { class: "quiet" }, each.meaning)))));
  $("origins-network").textContent = content.network_origin;
}

function fillSettings() {
  $("settings-tables").replaceChildren(...content.settings.map(([name, rows]) => element("div", {},
    element("h3", {}, name),
    element("table", {}, element("tbody", {}, ...rows.map(([key, value]) =>
      element("tr", {}, element("td", {}, key), element("td", {}, value))))))));
}
