"use strict";
// The curves of runs and of their evaluations, and a card with the curves of each task that a reader opens.

const Runs = (() => {
  const curves = JSON.parse(document.getElementById("curve-data").textContent);
  const { series, runs } = curves;
  const parent = document.getElementById("curves");
  if (!parent) return { curves };

  // Each chart: the name of its values in evaluations and in training, its title, and whether they are shares.
  const MEASURES = [
    ["accuracy", "", "Held-out accuracy", true],
    ["exact", "", "Held-out exact rate", true],
    ["", "reward", "Reward", true],
    ["", "exact", "Exact rate", true],
    ["", "has_signal", "Groups with a signal", true],
    ["format_failures", "format_failures", "Unreadable answers", true],
    ["truncated", "truncated", "Cut off by the token limit", true],
    ["completion_tokens", "completion_tokens", "Tokens of a completion", false],
    ["", "level", "Mean level", false],
    ["", "staleness", "Staleness: steps from sampling to score", false],
  ];

  // The places on the axis are steps of the trainer if all runs know them, and otherwise numbers of groups.
  const hasSteps = runs.every((run) => run.all.step.every((step) => step !== null));

  const lineOf = (name, colour, columns, measure, isByStep) => {
    const { value, low, high } = columns[measure];
    const x = isByStep ? columns.step : columns.groups;
    return { name, colour, x, y: value, low, high, label: isByStep ? "step of the trainer" : "groups" };
  };

  // Held-out curves have the first colours, in all charts.
  const linesOf = (heldOut, training, columnsOf) => {
    const lines = [];
    series.forEach((one, place) => {
      const columns = columnsOf(one);
      const name = series.length > 1 ? `held-out, ${one.name}` : "held-out";
      if (heldOut && columns) lines.push(lineOf(name, place, columns, heldOut, true));
    });
    runs.forEach((run, place) => {
      const columns = columnsOf(run);
      const name = runs.length > 1 ? run.name : "training";
      if (training && columns?.step.length > 1) lines.push(lineOf(name, series.length + place, columns, training, hasSteps));
    });
    return lines.filter((line) => line.y.some((value) => value !== null));
  };

  const isConstant = (lines) => {
    const values = lines.flatMap((line) => line.y).filter((value) => value !== null);
    return values.every((value) => value === values[0]);
  };

  const areEqual = (first, second) =>
    first.length === second.length && first.every((line, place) => String(line.y) === String(second[place].y));

  // Lines whose places are steps and lines whose places are groups have a chart each.
  const addChart = (holder, title, isShare, lines) => {
    const formatAxis = isShare ? (value) => `${Number((100 * value).toFixed(1))}%` : Page.number;
    const format = isShare ? Page.percent : Page.number;
    for (const xLabel of new Set(lines.map((line) => line.label))) {
      Charts.add(holder, { title, isShare, xLabel, format, formatAxis, lines: lines.filter((line) => line.label === xLabel) });
    }
  };

  // Equal rates share a chart, and any other than the first that never changes is a line of text.
  const drawCharts = () => {
    const kept = [];
    const constant = [];
    for (const [heldOut, training, title, isShare] of MEASURES) {
      const lines = linesOf(heldOut, training, (curve) => curve.all);
      const same = isShare && kept.find((chart) => areEqual(chart.lines, lines));
      if (same) same.title += ` = ${title.toLowerCase()}`;
      else if (kept.length && lines.length && isConstant(lines)) {
        const value = lines[0].y.find((known) => known !== null);
        constant.push(`${title}: ${isShare ? Page.percent(value) : Page.number(value)} throughout.`);
      } else if (lines.length) kept.push({ title, isShare, lines });
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
    const ofTask = (curve) => curve.tasks[task];
    const rates = linesOf("accuracy", "exact", ofTask);
    const levels = linesOf("", "level", ofTask);
    if (rates.length) addChart(card.charts, `Right answers of ${task}`, true, rates);
    if (levels.length && !isConstant(levels)) addChart(card.charts, `Mean level of ${task}`, false, levels);
    if (!rates.length) card.charts.append(Page.element("p", "lead", "A curve needs eight groups or two evaluations."));
  });

  drawCharts();
  return { curves };
})();
