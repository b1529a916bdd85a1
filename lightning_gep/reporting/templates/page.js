"use strict";

(() => {
  const root = document.documentElement;
  const printing = matchMedia("print");
  const prefersDark = matchMedia("(prefers-color-scheme: dark)");
  const touch = matchMedia("(pointer: coarse)");
  const plots = JSON.parse(document.getElementById("plots").textContent);

  // Colors: figures name them, the style sheet decides what they are, light or dark as the system is.

  function colors() {
    const style = getComputedStyle(root);
    return (name) => style.getPropertyValue(`--${name}`).trim();
  }

  function resolve(value, color, key = "") {
    if (Array.isArray(value)) return value.map((item) => resolve(item, color, key));
    if (value && typeof value === "object") {
      return Object.fromEntries(Object.entries(value).map(([name, item]) => [name, resolve(item, color, name)]));
    }
    return key === "color" && value[0] === "@" ? color(value.slice(1)) : value;
  }

  function axis(given, color) {
    return {
      gridcolor: color("grid"),
      linecolor: color("line"),
      zeroline: false,
      automargin: true,
      ticks: "outside",
      tickcolor: color("line"),
      ticklen: 4,
      fixedrange: touch.matches,
      ...given,
      title: { standoff: 8, font: { size: 13 }, ...(given?.title ?? {}) },
    };
  }

  function layoutOf(plot, color) {
    const { xaxis, yaxis, ...rest } = plot.layout;
    return {
      autosize: true,
      height: plot.height,
      margin: { l: 44, r: 14, t: 30, b: 44 },
      font: { family: getComputedStyle(document.body).fontFamily, size: 13, color: color("text") },
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      hovermode: "closest",
      // A finger that moves over a plot means to scroll the page.
      dragmode: touch.matches ? false : "zoom",
      hoverlabel: {
        bgcolor: color("panel"),
        bordercolor: color("line"),
        font: { color: color("text"), size: 13 },
        align: "left",
        namelength: -1,
      },
      modebar: { bgcolor: "rgba(0,0,0,0)", color: color("quiet"), activecolor: color("text") },
      showlegend: plot.traces.filter((trace) => trace.showlegend).length > 1,
      legend: { orientation: "h", x: 0, y: 1, yanchor: "bottom", bgcolor: "rgba(0,0,0,0)" },
      uirevision: "kept", // series that were switched off stay off when the colors change
      ...rest,
      xaxis: axis(xaxis, color),
      yaxis: axis(yaxis, color),
    };
  }

  const config = {
    displaylogo: false,
    responsive: true,
    // Named one by one: plotly's own choice has buttons that send data to its site.
    modeBarButtons: [touch.matches ? ["toImage"] : ["toImage", "zoom2d", "pan2d", "resetScale2d"]],
  };

  function draw(plot) {
    const element = document.getElementById(`plot-${plot.key}`);
    const color = colors();
    const traces = resolve(plot.traces, color);
    const layout = layoutOf(plot, color);
    if (printing.matches) {
      const height = Math.max(0.75 * plot.height, Math.min(plot.height, 180));
      Object.assign(layout, { width: Math.min(element.clientWidth, 660), height, autosize: false });
    }
    return Plotly.react(element, traces, layout, config);
  }

  function drawAll() {
    for (const plot of plots) draw(plot);
  }

  function inView(plot) {
    const { top, bottom } = document.getElementById(`plot-${plot.key}`).getBoundingClientRect();
    return bottom > 0 && top < innerHeight;
  }

  // What is in view first, then one plot a task: the page answers while the others are drawn.
  async function drawOneByOne() {
    const first = plots.filter(inView);
    for (const plot of first) await draw(plot);
    performance.mark("plots in view drawn");
    for (const plot of plots.filter((other) => !first.includes(other))) {
      await new Promise((next) => setTimeout(next));
      await draw(plot);
    }
    root.dataset.plots = "drawn";
    performance.mark("plots drawn");
  }

  prefersDark.addEventListener("change", drawAll);

  // Printing: light, everything that matters open, plots as wide as the paper.

  let closedAgain = [];
  function preparePrint() {
    closedAgain = [...closedAgain, ...document.querySelectorAll("details[data-print]:not([open])")];
    for (const details of closedAgain) details.open = true;
    drawAll();
  }
  function afterPrint() {
    for (const details of closedAgain) details.open = false;
    closedAgain = [];
    drawAll();
  }
  printing.addEventListener("change", (event) => (event.matches ? preparePrint() : afterPrint()));

  // The table of runs.

  const table = document.getElementById("runs-table");
  if (table) runsTable(table);

  function runsTable(table) {
    const collator = new Intl.Collator(undefined, { numeric: true });
    const bodies = [...table.tBodies];
    const headers = [...table.tHead.rows[0].cells];
    const text = document.getElementById("filter-text");
    const status = document.getElementById("filter-status");
    const mechanism = document.getElementById("filter-mechanism");
    const count = document.getElementById("filter-count");

    function valueAt(body, column) {
      const cell = body.rows[0].cells[column];
      return headers[column].dataset.numeric ? (cell.dataset.value ?? "") : cell.dataset.value;
    }

    function compare(column, direction) {
      const numeric = Boolean(headers[column].dataset.numeric);
      return (one, other) => {
        const [a, b] = [valueAt(one, column), valueAt(other, column)];
        if (a === "" || b === "") return (a === "") - (b === ""); // unknown last, either way
        if (numeric) return direction * (a === b ? 0 : Number(a) - Number(b));
        return direction * collator.compare(a, b);
      };
    }

    function sort(column) {
      const header = headers[column];
      // The best first: numbers begin with the largest.
      const first = header.dataset.numeric ? "descending" : "ascending";
      const second = first === "ascending" ? "descending" : "ascending";
      const order = header.getAttribute("aria-sort") === first ? second : first;
      for (const other of headers) other.removeAttribute("aria-sort");
      header.setAttribute("aria-sort", order);
      bodies.sort(compare(column, order === "ascending" ? 1 : -1));
      table.append(...bodies);
    }

    function filter() {
      const words = text.value.toLowerCase().split(/\s+/).filter(Boolean);
      let shown = 0;
      for (const body of bodies) {
        const { search, status: its, mechanism: kind } = body.dataset;
        const fits =
          words.every((word) => search.includes(word)) &&
          (!status.value || status.value === its) &&
          (!mechanism.value || mechanism.value === kind);
        body.hidden = !fits;
        shown += fits;
      }
      count.textContent = `${shown} of ${bodies.length} runs shown`;
    }

    headers.forEach((header, column) => header.querySelector("button").addEventListener("click", () => sort(column)));
    if (text) for (const control of [text, status, mechanism]) control.addEventListener("input", filter); // not for one run

    // A run's card stands in a template until it is asked for, so that hundreds of them are neither laid out nor printed.
    table.addEventListener("click", (event) => {
      const button = event.target.closest("button[data-card]");
      if (button) toggleCard(button);
    });

    function toggleCard(button) {
      const body = button.closest("tbody");
      const open = button.getAttribute("aria-expanded") !== "true";
      button.setAttribute("aria-expanded", String(open));
      if (!open) {
        body.rows[1].remove();
        return;
      }
      const cell = body.insertRow().insertCell();
      cell.colSpan = headers.length;
      cell.className = "opened";
      cell.id = button.getAttribute("aria-controls");
      cell.append(document.getElementById(button.dataset.card).content.cloneNode(true));
    }
  }

  drawOneByOne();
})();
