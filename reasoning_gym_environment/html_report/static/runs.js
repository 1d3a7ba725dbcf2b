"use strict";
// The curves of runs and of their evaluations, and a card with the curves of each task that a reader opens.

const Runs = (() => {
  const { curves, compared } = JSON.parse(document.getElementById("curve-data").textContent);
  const parent = document.getElementById("curves");
  if (!parent) return { compared };

  // Each chart: the name of its values, its title, and whether they are shares.
  const MEASURES = [
    ["accuracy", "Accuracy", true],
    ["exact", "Exact rate", true],
    ["reward", "Reward", true],
    ["has_signal", "Groups with a signal", true],
    ["format_failures", "Unreadable answers", true],
    ["truncated", "Cut off by the token limit", true],
    ["completion_tokens", "Tokens of a completion", false],
    ["level", "Mean level", false],
  ];

  // `pointsOf` are the points of a curve. Held-out curves have the first colours, in all charts.
  const colours = [...curves].sort((a, b) => b.isHeldOut - a.isHeldOut);
  const linesOf = (measure, pointsOf) => {
    const lines = [];
    for (const curve of colours) {
      const points = (pointsOf(curve) ?? []).filter((point) => point[measure]);
      if (points.length < 2) continue;
      const [y, low, high] = [0, 1, 2].map((limit) => points.map((point) => point[measure][limit]));
      lines.push({ name: curve.name, axis: curve.axis, colour: colours.indexOf(curve), x: points.map((point) => point.place), y, low, high });
    }
    return lines;
  };

  const isConstant = (lines) => lines.every((line) => line.y.every((value) => value === lines[0].y[0]));

  const areIn = (lines, others) => lines.every((line) => others.some((other) => other.name === line.name && String(other.y) === String(line.y)));

  // Lines whose places are steps and lines whose places are groups have a chart each.
  const addChart = (holder, title, isShare, lines) => {
    const formatAxis = isShare ? (value) => `${Number((100 * value).toFixed(1))}%` : Page.number;
    const format = isShare ? Page.percent : Page.number;
    for (const axis of new Set(lines.map((line) => line.axis))) {
      Charts.add(holder, { title, isShare, xLabel: axis, format, formatAxis, lines: lines.filter((line) => line.axis === axis) });
    }
  };

  // Rates that are in an earlier chart have none of their own, and any other than the first that never changes is a line of text.
  const drawCharts = () => {
    const kept = [];
    const constant = [];
    for (const [measure, title, isShare] of MEASURES) {
      const lines = linesOf(measure, (curve) => curve.all);
      if (!lines.length) continue;
      const same = isShare && kept.find((chart) => areIn(lines, chart.lines));
      if (same) same.title += ` = ${title.toLowerCase()}`;
      else if (kept.length && isConstant(lines)) {
        const value = lines[0].y[0];
        constant.push(`${title}: ${isShare ? Page.percent(value) : Page.number(value)} throughout.`);
      } else kept.push({ title, isShare, lines });
    }
    for (const { title, isShare, lines } of kept) addChart(parent, title, isShare, lines);
    document.getElementById("constant").textContent = constant.join(" ");
  };

  // --- the card of a task

  const table = document.getElementById("task-table");

  const cardOf = (task) => {
    const row = Page.element("tr", "card");
    const cell = row.insertCell();
    cell.colSpan = table.tHead.rows[0].cells.length;
    const link = Page.element("a", "", "show its samples");
    link.href = `#samples?${new URLSearchParams({ task })}`;
    const charts = Page.element("div", "charts");
    cell.append(link, charts);
    return { row, charts };
  };

  // Lines of other programs do not name their tasks.
  table?.addEventListener("click", (event) => {
    const opener = event.target.closest(".opener");
    if (!opener) return;
    const row = opener.closest("tr");
    const isOpen = opener.getAttribute("aria-expanded") === "true";
    opener.setAttribute("aria-expanded", String(!isOpen));
    if (isOpen) {
      row.nextElementSibling.remove();
      return;
    }
    const { task } = row.dataset;
    const card = cardOf(task);
    row.after(card.row);
    const rates = linesOf("accuracy", (curve) => curve.tasks[task]);
    const levels = linesOf("level", (curve) => curve.tasks[task]);
    if (rates.length) addChart(card.charts, `Accuracy of ${task}`, true, rates);
    if (levels.length && !isConstant(levels)) addChart(card.charts, `Mean level of ${task}`, false, levels);
    if (!rates.length) card.charts.append(Page.element("p", "lead", "A curve needs eight groups or two evaluations."));
  });

  drawCharts();
  return { compared };
})();
