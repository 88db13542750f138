// Fill in the page, and draw it again when its width or its colours change.
function fillHead() {
  $("title").textContent = content.title;
  $("subtitle").textContent = content.subtitle;
  $("figures").replaceChildren(...content.figures.map((figure) => element("div", { class: "figure" },
    element("div", { class: "label" }, figure.label), element("div", { class: "value" }, figure.value),
    element("div", { class: "note" }, figure.note))));
  $("notes").replaceChildren(...content.notes.map((note) => element("li", {}, note)));
  $("why").textContent = content.why;
  const { ns, typical, warm_up } = content.steps;
  $("breakdown-about").textContent = ns.length > 1
    ? `Times are means over ${ns.length - warm_up} of ${ns.length} steps, after warm-up. Streams, kernels and collectives ` +
      `are those of step ${typical + 1}, the step of median length.` : "";
}

const systemDark = window.matchMedia("(prefers-color-scheme: dark)");
let chosenTheme = "";
function applyTheme(paper) {
  document.documentElement.dataset.theme = paper ? "light" : chosenTheme || (systemDark.matches ? "dark" : "light");
}

function start() {
  applyTheme(false);
  fillHead();
  draws(drawBars);
  drawBreakdownTable();
  draws(drawSteps);
  startStreams();
  startRanks();
  drawTable($("kernels-table"), content.kernels);
  drawTable($("collectives-table"), content.collectives);
  startMemory();
  startTraffic();
  draws(drawOrigins);
  fillSettings();
  $("theme").onclick = () => {
    chosenTheme = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
    applyTheme(false);
    drawAll();
  };
  const again = (paper) => () => { applyTheme(paper); drawAll(); };
  systemDark.addEventListener("change", again(false));
  window.addEventListener("beforeprint", again(true));
  window.addEventListener("afterprint", again(false));
  let waiting = 0;
  window.addEventListener("resize", () => { cancelAnimationFrame(waiting); waiting = requestAnimationFrame(drawAll); });
  document.documentElement.dataset.ready = "true";
}
start();
