"use strict";
// Draws curves with uPlot: lines with intervals, a cursor that shows values, and zoom.

const Charts = (() => {
  const COLOURS = ["s0", "s1", "s2", "s3", "s4", "s5"];
  const DASHES = [[], [8, 4], [2, 4], [12, 4, 2, 4], [4, 4], [1, 3]];
  // The limits of intervals have no row in the legend.
  const HIDDEN = { class: "no-legend", points: { show: false } };
  // A line with more points shows no dots.
  const MOST_DOTS = 12;

  const drawn = new Set();

  const withAlpha = (colour, alpha) => colour.replace(/^rgb\((.*)\)$/, `rgba($1, ${alpha})`);

  // uPlot wants rising places. Two bins may lie in one step of the trainer.
  const rising = (places) => {
    let last = -Infinity;
    return places.map((place) => {
      last = place > last ? place : last + 1e-6;
      return last;
    });
  };

  const prepared = (chart) => {
    const tables = [];
    const series = [{ label: chart.xLabel, value: (_, value) => Page.number(value === null ? null : Math.round(value)) }];
    const bands = [];
    for (const { name, colour: number, x, y, low, high } of chart.lines) {
      const colour = Page.colour(COLOURS[number % COLOURS.length]);
      const table = [rising(x)];
      const add = (values, options) => {
        table.push(values);
        series.push(options);
      };
      add(high, { ...HIDDEN, stroke: "transparent" });
      add(low, { ...HIDDEN, stroke: "transparent" });
      const limits = series.length - 2;
      bands.push({ series: [limits, limits + 1], fill: withAlpha(colour, 0.18) });
      add(y, {
        label: name,
        stroke: colour,
        width: 2,
        dash: DASHES[number % DASHES.length],
        points: { show: y.length <= MOST_DOTS, size: 6, fill: colour },
        value: (plot, value, _, place) => {
          if (value === null || value === undefined) return "–";
          const text = chart.format(value);
          const [to, from] = place === null ? [null, null] : [plot.data[limits][place], plot.data[limits + 1][place]];
          return from === null || to === null ? text : `${text} (${chart.format(from)} to ${chart.format(to)})`;
        },
      });
      tables.push(table);
    }
    return { data: uPlot.join(tables), series, bands };
  };

  const axis = (chart, isX) => ({
    stroke: Page.colour("quiet"),
    grid: { stroke: Page.colour("grid"), width: 1, show: !isX },
    ticks: { show: false },
    font: "12px system-ui, sans-serif",
    labelFont: "12px system-ui, sans-serif",
    label: isX ? chart.xLabel : undefined,
    labelSize: 16,
    size: isX ? 26 : 52,
    space: isX ? 60 : 34,
    values: (_, ticks) => ticks.map((tick) => (isX ? Page.number(tick) : chart.formatAxis(tick))),
  });

  const range = (chart) => (_, low, high) => {
    if (low === null) return [0, 1];
    // Small shares, such as refusals, have a shorter axis.
    const top = chart.isShare && high > 0.5 ? Math.max(1, high) : Math.max(high * 1.15, chart.isShare ? 0.05 : 1);
    return [Math.min(0, low), top];
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

  const heightOf = (holder) => (holder.clientWidth < 380 ? 160 : 220);

  const draw = (holder, chart) => {
    const { data, series, bands } = prepared(chart);
    const last = data[0].length - 1;
    const showLast = (plot) => plot.setLegend({ idxs: series.map((_, number) => nearestPoint(plot, number, last)) }, false);
    const plot = new uPlot(
      {
        width: Math.max(120, holder.clientWidth),
        height: heightOf(holder),
        series,
        bands,
        legend: { live: true, markers: { width: 2 } },
        scales: { x: { time: false }, y: { range: range(chart) } },
        axes: [axis(chart, true), axis(chart, false)],
        cursor: { sync: { key: chart.xLabel, scales: ["x", null], setSeries: false }, dataIdx: nearestPoint, drag: { x: true, y: false } },
        // Without a cursor, the legend shows the last values.
        hooks: { setCursor: [(plot) => plot.cursor.idx === null && showLast(plot)] },
      },
      data,
      holder,
    );
    showLast(plot);
    return plot;
  };

  const summary = (chart) => {
    const ends = chart.lines.map(({ name, y }) => {
      const known = y.filter((value) => value !== null);
      return `${name} from ${chart.format(known[0])} to ${chart.format(known.at(-1))}`;
    });
    return `${chart.title}, by ${chart.xLabel}: ${ends.join("; ")}.`;
  };

  // Adds a chart to a parent. `lines` are { name, colour, x, y, low, high }, with null for a gap.
  const add = (parent, chart) => {
    const figure = Page.element("figure");
    const holder = Page.element("div", "plot");
    holder.setAttribute("role", "img");
    holder.setAttribute("aria-label", summary(chart));
    figure.append(Page.element("figcaption", "", chart.title), holder);
    parent.append(figure);
    const entry = { holder, chart, plot: draw(holder, chart) };
    drawn.add(entry);
    resized.observe(holder);
  };

  const resized = new ResizeObserver(() => {
    for (const entry of drawn) {
      const width = Math.floor(entry.holder.clientWidth);
      if (!entry.holder.isConnected) drawn.delete(entry);
      else if (width && width !== entry.plot.width) entry.plot.setSize({ width, height: heightOf(entry.holder) });
    }
  });

  Page.onThemeChange.push(() => {
    for (const entry of drawn) {
      entry.plot.destroy();
      entry.plot = draw(entry.holder, entry.chart);
    }
  });

  return { add };
})();
