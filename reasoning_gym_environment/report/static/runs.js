"use strict";
// The curves of runs and of their evaluations: held-out accuracy first, then training, then each task.

const Runs = (() => {
  const curves = JSON.parse(document.getElementById("curve-data").textContent);
  const { series, runs } = curves;
  const form = document.getElementById("view");
  if (!form) return { curves };

  // Each chart: the name of its values in evaluations and in training, its title, whether they are shares, and whether
  // they are rates of right answers, which are often equal.
  const MEASURES = [
    ["accuracy", "", "Held-out accuracy", true, true],
    ["exact", "", "Held-out exact rate", true, true],
    ["", "reward", "Reward", true, true],
    ["", "exact", "Exact rate", true, true],
    ["", "accuracy", "Scores of at least 0.5", true, true],
    ["", "signal", "Groups with a signal", true],
    ["format_failures", "no_answer", "Unreadable answers", true],
    ["truncated", "cut_off", "Cut off by the token limit", true],
    ["completion_tokens", "tokens", "Tokens of a completion", false],
    ["", "level", "Mean level", false],
    ["", "staleness", "Staleness: steps from sampling to score", false],
  ];
  const AXES = { step: "step of the trainer", item: "groups", time: "hours since the first point" };
  const STUCK = 0.02;
  const BATCH = 8;

  // --- what is chosen

  const knows = (curve, axis) => Boolean(curve.all[axis]?.some((value) => value !== null));
  const axes = Object.keys(AXES).filter((axis) => (runs.length ? runs : series).every((curve) => knows(curve, axis)));
  if (!axes.length) axes.push("item");

  const addChoices = () => {
    const asked = Page.state().get("axis");
    const chosen = axes.includes(asked) ? asked : axes[0];
    for (const axis of axes) {
      const label = Page.element("label", "", AXES[axis]);
      const input = Page.element("input");
      Object.assign(input, { type: "radio", name: "axis", value: axis, checked: axis === chosen });
      label.prepend(input);
      document.getElementById("axes").append(label);
    }
    const names = [...runs, ...series].map((curve) => curve.name);
    if (runs.length < 2 && series.length < 2) return;
    for (const name of new Set(names)) {
      const label = Page.element("label", "", name);
      const input = Page.element("input");
      Object.assign(input, { type: "checkbox", name: "run", value: name, checked: true });
      label.prepend(input);
      document.getElementById("shown").append(label);
    }
  };

  const axisNow = () => new FormData(form).get("axis") || axes[0];
  const isShown = (curve) => {
    const box = [...form.querySelectorAll("input[name=run]")].find((candidate) => candidate.value === curve.name);
    return !box || box.checked;
  };

  // --- the places of points on the axis

  // A step as a number of groups, from the bins of the only run.
  const itemOfStep = (step) => {
    const { step: steps, item: items } = runs[0].all;
    const after = steps.findIndex((value) => value !== null && value >= step);
    if (after === -1) return items.at(-1);
    if (after === 0) return 0;
    const share = (step - steps[after - 1]) / (steps[after] - steps[after - 1] || 1);
    return items[after - 1] + share * (items[after] - items[after - 1]);
  };

  const placesOf = (columns, axis) => {
    if (axis === "time") {
      const start = columns.time.find((value) => value !== null);
      return columns.time.map((value) => (value === null ? null : (value - start) / 3600));
    }
    if (axis === "item" && !columns.item) {
      return runs.length === 1 && knows(runs[0], "step") ? columns.step.map(itemOfStep) : columns.step;
    }
    return columns[axis];
  };

  // --- charts of all tasks together

  // Held-out curves have the first colours, in all charts.
  const heldOutLine = (one, place, columns, { value, low, high }) => {
    const name = series.length > 1 ? `held-out, ${one.name}` : "held-out";
    return { name, colour: place, x: placesOf(columns, axisNow()), y: value, low, high };
  };
  const trainingLine = (run, place, columns, values) => {
    const name = runs.length > 1 ? run.name : "training";
    return { name, colour: series.length + place, x: placesOf(columns, axisNow()), y: values, weights: columns.groups };
  };
  const isDrawn = (line) => line.x.some((value) => value !== null) && line.y.some((value) => value !== null);

  const linesOf = (heldOut, training) => {
    const lines = [];
    series.forEach((one, place) => {
      if (heldOut && isShown(one)) lines.push(heldOutLine(one, place, one.all, one.all[heldOut]));
    });
    runs.forEach((run, place) => {
      const isLong = run.all.item.length > 1;
      if (training && isShown(run) && isLong) lines.push(trainingLine(run, place, run.all, run.all[training]));
    });
    return lines.filter(isDrawn);
  };

  const isConstant = (lines) => {
    const values = lines.flatMap((line) => line.y).filter((value) => value !== null);
    return values.every((value) => value === values[0]);
  };

  const areEqual = (first, second) =>
    first.length === second.length && first.every((line, place) => String(line.y) === String(second[place].y));

  // Equal rates share a chart, and any other than the first that never changes is a line of text.
  const drawCharts = () => {
    const parent = document.getElementById("curves");
    Charts.clear(parent);
    const kept = [];
    const constant = [];
    for (const [heldOut, training, title, isShare, isRight] of MEASURES) {
      const lines = linesOf(heldOut, training);
      if (!lines.length) continue;
      const same = isRight && kept.find((chart) => areEqual(chart.lines, lines));
      if (same) same.title += ` = ${title.toLowerCase()}`;
      else kept.push({ title, isShare, lines });
    }
    for (const [place, { title, isShare, lines }] of kept.entries()) {
      const format = isShare ? Page.percent : Page.number;
      // The first measure is what a reader looks for, also where nothing has happened.
      if (place > 0 && isConstant(lines)) {
        constant.push(`${title}: ${format(lines[0].y.find((value) => value !== null))} throughout.`);
        continue;
      }
      const formatAxis = isShare ? (value) => `${Number((100 * value).toFixed(1))}%` : Page.number;
      const axis = axisNow();
      const smoothing = Number(form.elements.smooth.value);
      Charts.add(parent, { title, isShare, lines, format, formatAxis, smoothing, xLabel: AXES[axis], sync: axis });
    }
    parent.classList.toggle("with-held-out", series.some(isShown));
    document.getElementById("constant").textContent = constant.join(" ");
  };

  // --- a small chart for each task

  const ends = (values, weights) => {
    const known = values.map((value, place) => [value, weights ? weights[place] : 1]).filter(([value]) => value !== null);
    if (!known.length) return null;
    // Single evaluations have many questions; the bins of training are small, so a quarter of them makes an end.
    const size = weights ? Math.max(1, Math.floor(known.length / 4)) : 1;
    const mean = (some) => {
      const weight = some.reduce((sum, [, count]) => sum + count, 0);
      return some.reduce((sum, [value, count]) => sum + value * count, 0) / weight;
    };
    return { first: mean(known.slice(0, size)), last: mean(known.slice(-size)) };
  };

  const taskNames = () => {
    const names = new Set();
    for (const curve of [...series, ...runs]) Object.keys(curve.tasks).forEach((name) => names.add(name));
    return [...names].sort();
  };

  const describe = (name) => {
    const heldOut = series.filter(isShown).find((one) => one.tasks[name]);
    const run = runs.filter(isShown).find((one) => one.tasks[name]);
    const found = heldOut
      ? ends(heldOut.tasks[name].accuracy.value, null)
      : run && ends(run.tasks[name].exact, run.tasks[name].groups);
    const level = run && ends(run.tasks[name].level, run.tasks[name].groups);
    return { name, ends: found, level, change: found ? found.last - found.first : 0, now: found ? found.last : -1 };
  };

  const ORDERS = {
    rise: (a, b) => b.change - a.change,
    fall: (a, b) => a.change - b.change,
    low: (a, b) => a.now - b.now,
    high: (a, b) => b.now - a.now,
    name: () => 0,
  };

  const taskLines = (name) => {
    const lines = [];
    runs.forEach((run, place) => {
      const columns = run.tasks[name];
      if (!columns || !isShown(run) || columns.item.length < 2) return;
      lines.push({ ...trainingLine(run, place, columns, columns.exact), isThin: true });
    });
    series.forEach((one, place) => {
      const columns = one.tasks[name];
      if (columns && isShown(one)) lines.push(heldOutLine(one, place, columns, columns.accuracy));
    });
    return lines.filter(isDrawn);
  };

  const addTask = (parent, task) => {
    const card = Page.element("div", "multiple");
    const head = Page.element("div", "multiple-head");
    const link = Page.element("a", "", task.name);
    link.href = `#samples?${new URLSearchParams({ task: task.name })}`;
    link.title = "show its samples";
    head.append(link);
    if (task.ends) {
      head.append(Page.element("span", task.change < 0 ? "down" : "up", Page.points(task.change)));
      head.append(Page.element("small", "", `${Page.percent(task.ends.first)} to ${Page.percent(task.ends.last)}`));
    }
    if (task.level && task.level.first !== task.level.last) {
      head.append(Page.element("small", "", `level ${Page.number(task.level.first)} to ${Page.number(task.level.last)}`));
    }
    card.append(head);
    parent.append(card);
    const lines = taskLines(task.name);
    if (!lines.length) {
      card.append(Page.element("p", "lead", "Too few groups for a curve."));
      return;
    }
    const formatAxis = (value) => `${Math.round(100 * value)}%`;
    const axis = axisNow();
    Charts.add(card, {
      ...{ title: task.name, isShare: true, isSmall: true, range: [0, 1], lines, formatAxis },
      ...{ format: Page.percent, smoothing: 1, xLabel: AXES[axis], sync: axis },
    });
  };

  let latest = 0;
  const addTasks = () => {
    const parent = document.getElementById("multiples");
    const tasks = taskNames().map(describe);
    tasks.sort(ORDERS[document.getElementById("order").elements.tasks.value]);
    const named = (title, some) => (some.length ? `${title}: ${some.map((task) => task.name).join(", ")}. ` : "");
    const known = tasks.filter((task) => task.ends);
    const isStuck = (task) => task.now <= STUCK && task.change <= STUCK;
    document.getElementById("stuck").textContent =
      named("Stuck at 0", known.filter(isStuck)) + named("Solved", known.filter((task) => task.now >= 1 - STUCK));
    Charts.clear(parent);
    // In batches, so that a hundred tasks do not keep the reader waiting.
    latest += 1;
    const turn = latest;
    const addSome = (start) => {
      if (turn !== latest) return;
      tasks.slice(start, start + BATCH).forEach((task) => addTask(parent, task));
      if (start + BATCH < tasks.length) setTimeout(() => addSome(start + BATCH));
    };
    addSome(0);
  };

  const drawAll = () => {
    drawCharts();
    addTasks();
  };

  addChoices();
  if (Page.state().has("smooth")) form.elements.smooth.value = Page.state().get("smooth");
  for (const some of [form, document.getElementById("order")]) {
    some.addEventListener("submit", (event) => event.preventDefault());
  }
  form.addEventListener("input", () => {
    Page.remember({ axis: axisNow() === axes[0] ? "" : axisNow(), smooth: form.elements.smooth.value });
    drawAll();
  });
  document.getElementById("order").addEventListener("input", addTasks);
  drawAll();
  return { curves };
})();
