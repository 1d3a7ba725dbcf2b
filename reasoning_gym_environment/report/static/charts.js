"use strict";
// Draws curves with uPlot: lines with intervals, a cursor that shows values, zoom, and the keyboard.

const Charts = (() => {
  const PALETTE = ["s0", "s1", "s2", "s3", "s4", "s5"];
  const DASHES = [[], [8, 4], [2, 4], [12, 4, 2, 4], [4, 4], [1, 3]];

  // The faint line of single values and the limits of intervals have no row in the legend.
  const HIDDEN = "no-legend";

  const drawn = new Set();

  const withAlpha = (colour, alpha) => colour.replace(/^rgb\((.*)\)$/, `rgba($1, ${alpha})`);

  // The mean of each value and of its neighbours on both sides, weighted by the number of groups behind each value.
  const smoothed = (values, weights, reach) => {
    if (!reach) return values;
    return values.map((value, place) => {
      if (value === null) return null;
      let sum = 0;
      let weight = 0;
      const last = Math.min(values.length - 1, place + reach);
      for (let near = Math.max(0, place - reach); near <= last; near += 1) {
        if (values[near] === null) continue;
        sum += values[near] * weights[near];
        weight += weights[near];
      }
      return sum / weight;
    });
  };

  // uPlot wants one column of places for all lines, in rising order.
  const inOrder = (line) => {
    const places = line.x.map((_, place) => place).filter((place) => line.x[place] !== null);
    places.sort((a, b) => line.x[a] - line.x[b]);
    const column = (values) => places.map((place) => values[place]);
    const strictX = [];
    for (const value of column(line.x)) {
      const before = strictX.at(-1);
      // Two bins may lie in one step of the trainer.
      strictX.push(before !== undefined && value <= before ? before + 1e-6 : value);
    }
    return { strictX, column };
  };

  const prepared = (lines, chart) => {
    const tables = [];
    const series = [{ label: chart.xLabel, value: (_, value) => (value === null ? "–" : Page.number(Math.round(value * 100) / 100)) }];
    const bands = [];
    lines.forEach((line) => {
      const colour = Page.colour(PALETTE[line.colour % PALETTE.length]);
      const dash = DASHES[line.colour % DASHES.length];
      const { strictX, column } = inOrder(line);
      const table = [strictX];
      const add = (values, options) => {
        table.push(values);
        series.push(options);
      };
      const y = column(line.y);
      const low = line.low && column(line.low);
      const high = line.high && column(line.high);
      if (low && high) {
        add(high, { class: HIDDEN, stroke: "transparent", points: { show: false } });
        add(low, { class: HIDDEN, stroke: "transparent", points: { show: false } });
        bands.push({ series: [series.length - 2, series.length - 1], fill: withAlpha(colour, 0.18) });
      }
      const reach = line.weights ? chart.smoothing : 0;
      if (reach) add(y, { class: HIDDEN, stroke: withAlpha(colour, 0.3), width: 1, points: { show: false } });
      const limits = low && high ? series.length - 2 : 0;
      add(smoothed(y, line.weights && column(line.weights), reach), {
        label: line.name,
        stroke: colour,
        width: line.isThin ? 1 : 2,
        dash,
        points: { show: strictX.length < 30 && !line.isThin, size: 6, fill: colour },
        value: (plot, value, _, place) => {
          if (value === null || value === undefined) return "–";
          const text = chart.format(value);
          if (!limits || place === null) return text;
          const from = plot.data[limits + 1][place];
          const to = plot.data[limits][place];
          return from === null || to === null ? text : `${text} (${chart.format(from)} to ${chart.format(to)})`;
        },
      });
      tables.push(table);
    });
    return { data: uPlot.join(tables), series, bands };
  };

  const axis = (chart, isX) => ({
    stroke: Page.colour("quiet"),
    grid: { stroke: Page.colour("grid"), width: 1, show: !isX },
    ticks: { show: false },
    font: "12px system-ui, sans-serif",
    labelFont: "12px system-ui, sans-serif",
    gap: isX ? 4 : 6,
    size: isX ? (chart.isSmall ? 20 : 26) : chart.isSmall ? 40 : 52,
    space: isX ? 60 : chart.isSmall ? 28 : 34,
    values: (_, ticks) => ticks.map((tick) => (isX ? Page.number(tick) : chart.formatAxis(tick))),
  });

  const range = (chart) => (_, low, high) => {
    if (low === null) return [0, 1];
    if (chart.range) return chart.range;
    const bottom = Math.min(0, low);
    // Small shares, such as refusals, have a shorter axis.
    const top = chart.isShare && high > 0.5 ? Math.max(1, high) : Math.max(high * 1.15, chart.isShare ? 0.05 : 1);
    return [bottom, top];
  };

  const summary = (chart) => {
    const ends = chart.lines.map((line) => {
      const known = line.y.filter((value) => value !== null);
      return `${line.name} from ${chart.format(known[0])} to ${chart.format(known.at(-1))}`;
    });
    return `${chart.title}, by ${chart.xLabel}: ${ends.join("; ")}.`;
  };

  // Lines have points at different places, so that the nearest place of the cursor may be between the points of a line.
  const nearestPoint = (plot, number, place) => {
    const values = plot.data[number];
    const isKnown = (at) => values[at] !== null && values[at] !== undefined;
    for (let distance = 0; distance < values.length; distance += 1) {
      if (isKnown(place - distance)) return place - distance;
      if (isKnown(place + distance)) return place + distance;
    }
    return place;
  };

  const draw = (holder, chart) => {
    const { data, series, bands } = prepared(chart.lines, chart);
    const last = data[0].length - 1;
    const showLast = (plot) => plot.setLegend({ idxs: series.map((_, number) => nearestPoint(plot, number, last)) }, false);
    const options = {
      width: Math.max(120, holder.clientWidth),
      height: chart.isSmall ? 110 : 220,
      series,
      bands,
      legend: { live: true, markers: { width: 2 } },
      scales: { x: { time: false }, y: { range: range(chart) } },
      axes: [axis(chart, true), axis(chart, false)],
      cursor: {
        sync: { key: chart.sync, scales: ["x", null], setSeries: false },
        points: { size: 7 },
        dataIdx: nearestPoint,
        drag: { x: true, y: false },
      },
      hooks: {
        // Without a cursor, the legend shows the last values.
        setCursor: [(plot) => plot.cursor.idx === null && showLast(plot)],
      },
    };
    const plot = new uPlot(options, data, holder);
    showLast(plot);
    return plot;
  };

  const onKey = (event, plot) => {
    const last = plot.data[0].length - 1;
    const place = plot.cursor.idx ?? last;
    const next = { ArrowLeft: place - 1, ArrowRight: place + 1, Home: 0, End: last }[event.key];
    if (next !== undefined) {
      const x = plot.data[0][Math.max(0, Math.min(last, next))];
      plot.setCursor({ left: plot.valToPos(x, "x"), top: plot.bbox.height / 2 / devicePixelRatio });
      event.preventDefault();
    } else if (event.key === "Escape") {
      plot.setScale("x", { min: plot.data[0][0], max: plot.data[0][last] });
    }
  };

  // Adds a chart to a parent. `lines` are { name, colour, x, y, low, high, weights, isThin }, with null for a gap.
  const add = (parent, chart) => {
    const figure = Page.element("figure", chart.isSmall ? "small" : "");
    if (!chart.isSmall) figure.append(Page.element("figcaption", "", chart.title));
    const holder = Page.element("div", "plot");
    holder.tabIndex = 0;
    holder.setAttribute("role", "img");
    holder.setAttribute("aria-label", summary(chart));
    figure.append(holder);
    parent.append(figure);
    const entry = { holder, plot: draw(holder, chart), redraw: null };
    entry.redraw = () => {
      entry.plot.destroy();
      entry.plot = draw(holder, chart);
    };
    holder.addEventListener("keydown", (event) => onKey(event, entry.plot));
    drawn.add(entry);
    resized.observe(holder);
    return figure;
  };

  const resized = new ResizeObserver((changes) => {
    for (const entry of drawn) {
      const change = changes.find((candidate) => candidate.target === entry.holder);
      const width = change && Math.floor(change.contentRect.width);
      if (width && width !== entry.plot.width) entry.plot.setSize({ width, height: entry.plot.height });
    }
  });

  const clear = (parent) => {
    for (const entry of [...drawn]) {
      if (!parent.contains(entry.holder)) continue;
      resized.unobserve(entry.holder);
      entry.plot.destroy();
      drawn.delete(entry);
    }
    parent.replaceChildren();
  };

  Page.onThemeChange.push(() => drawn.forEach((entry) => entry.redraw()));

  return { add, clear };
})();
