"use strict";
// Draws the report from the page's data and keeps one selection: a candidate, a metric and a layer.
(() => {
  const page = JSON.parse(document.getElementById("page").textContent);
  const named = (values) =>
    Object.fromEntries(page.metricNames.map((name, index) => [name, values[index]]).filter(([, value]) => value !== null));
  for (const error of page.rows.flatMap((row) => (row.local ? [row, row.local] : [row]))) {
    error.metrics = named(error.metrics);
    error.budget = named(error.budget);
  }
  const byId = (id) => document.getElementById(id);
  const charts = {};
  const state = { candidate: "", metric: "", layer: "" };

  // --- figures ------------------------------------------------------------------------------------------------

  // JSON has no infinities, so the report writes them as words.
  const number = (value) => {
    if (typeof value !== "string") return value;
    return value === "inf" ? Infinity : value === "-inf" ? -Infinity : NaN;
  };
  // As Python writes it, so that a figure looks the same in every format.
  const scientific = (value, digits) =>
    value.toExponential(digits).replace(/e([+-])(\d)$/, (_, sign, exponent) => `e${sign}0${exponent}`);
  const text = (value) => {
    if (value === undefined || value === null) return "";
    const figure = number(value);
    if (!Number.isFinite(figure)) return String(value);
    if (Number.isInteger(figure) && Math.abs(figure) < 1e15) return figure.toLocaleString("en");
    const size = Math.abs(figure);
    return size < 1e-2 || size >= 1e4 ? scientific(figure, 2) : String(Number(figure.toPrecision(4)));
  };
  const drawable = (value) => {
    const figure = number(value);
    return Number.isFinite(figure) && figure > 0 ? figure : null; // a logarithmic axis has no zero
  };
  const isPaper = () => document.documentElement.classList.contains("paper");
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const escaped = (value) => echarts.format.encodeHTML(String(value));
  const short = (layer) => layer.replace(/^blocks\.(\d+)\./, "$1 · ").replace(/^present\.(\d+)\./, "$1 · present ");
  const rowsOf = (candidate) => page.rows.filter((row) => row.candidate === candidate);
  const inGroups = (size) => (size > 1 ? `, the largest of each ${size}` : "");
  const selectedRow = () => page.rows.find((row) => row.candidate === state.candidate && row.name === state.layer);

  // --- elements -----------------------------------------------------------------------------------------------

  const element = (tag, attributes = {}, ...children) => {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (value !== undefined && value !== false) made.setAttribute(name, value);
    }
    made.append(...children);
    return made;
  };
  const figureCell = (value, over, budget) =>
    value === undefined
      ? element("td")
      : element(
          "td",
          {
            class: `number${over ? " over" : ""}`,
            "data-value": String(value),
            title: budget === undefined ? String(value) : `${value}, budget ${budget}`,
          },
          text(value),
        );
  const verdictChip = (verdict) => element("span", { class: `verdict ${verdict}` }, verdict);
  const layerButton = (row) =>
    element("button", { type: "button", class: "link", "data-layer": row.name, "data-candidate": row.candidate }, row.name);
  const fill = (select, entries, chosen) => {
    select.replaceChildren(
      ...entries.map(([value, label]) => element("option", { value, selected: value === chosen ? "" : undefined }, label)),
    );
    select.value = chosen;
  };

  // --- charts -------------------------------------------------------------------------------------------------

  const chart = (id, renderer) => {
    if (charts[id] && charts[id].getZr().painter.getType() !== renderer) {
      charts[id].dispose();
      delete charts[id];
    }
    if (!charts[id]) charts[id] = echarts.init(byId(id), null, { renderer });
    return charts[id];
  };
  const empty = (id, message) => {
    charts[id]?.dispose();
    delete charts[id];
    byId(id).classList.add("empty");
    byId(id).textContent = message;
  };
  const draw = (id, option, renderer = "svg") => {
    const box = byId(id);
    if (box.classList.contains("empty")) {
      box.classList.remove("empty");
      box.textContent = "";
    }
    const drawn = chart(id, renderer);
    drawn.setOption(
      {
        animation: false,
        backgroundColor: "transparent",
        textStyle: { fontFamily: getComputedStyle(document.body).fontFamily, color: css("--ink") },
        aria: { enabled: false }, // the box has its own label, and every figure is in a table
        ...option,
      },
      true,
    );
    return drawn;
  };
  const axis = (more = {}) => ({
    axisLine: { lineStyle: { color: css("--line") } },
    axisTick: { show: false },
    axisLabel: { color: css("--soft"), fontSize: 11, ...more.axisLabel },
    splitLine: { show: more.split !== false, lineStyle: { color: css("--line") } },
    nameTextStyle: { color: css("--soft") },
    ...Object.fromEntries(Object.entries(more).filter(([key]) => !["axisLabel", "split"].includes(key))),
  });
  const logarithmic = ({ format = (value) => Number(value).toExponential(0).replace("+", ""), ...more } = {}) =>
    axis({ type: "log", logBase: 10, ...more, axisLabel: { formatter: format } });
  const tooltip = (more) => ({
    confine: true,
    backgroundColor: css("--card"),
    borderColor: css("--line"),
    textStyle: { color: css("--ink"), fontSize: 12 },
    ...more,
  });
  const legend = (more = {}) => ({ top: 0, left: 0, itemGap: 16, textStyle: { color: css("--soft") }, inactiveColor: css("--line"), ...more });
  const chosenByClick = (drawn, names, coordinate) => {
    drawn.getZr().off("click");
    drawn.getZr().on("click", (event) => {
      const point = [event.offsetX, event.offsetY];
      if (!drawn.containPixel("grid", point)) return;
      const index = Math.round(drawn.convertFromPixel({ gridIndex: 0 }, point)[coordinate]);
      if (names[index] !== undefined) select({ layer: names[index] });
    });
    drawn.getZr().setCursorStyle("pointer");
  };

  // Every second block is shaded, so that depth can be read without a label for every layer.
  const bands = (names) => {
    const areas = [];
    let start = null;
    const block = (name) => (/^(?:blocks|present)\.(\d+)\./.exec(name) || [])[1];
    names.forEach((name, index) => {
      if (block(name) === undefined) return;
      if (start === null || block(names[start]) !== block(name)) start = index;
      const last = index === names.length - 1 || block(names[index + 1]) !== block(name);
      if (last) {
        const shade = Number(block(name)) % 2 === 0 ? css("--band") : "transparent";
        areas.push([{ xAxis: start, itemStyle: { color: shade }, name: block(name) }, { xAxis: index }]);
      }
    });
    return areas;
  };

  const drawGrowth = () => {
    const rows = rowsOf(state.candidate);
    const names = rows.map((row) => row.name);
    const metric = state.metric;
    if (!rows.length) return empty("growth-chart", "This candidate has no measured layers.");
    const narrow = byId("growth-chart").clientWidth < 560;
    const point = (row, error) => {
      if (!error || !error.metrics) return null;
      const over = (error.failed || []).includes(metric);
      return {
        value: drawable(error.metrics[metric]),
        symbolSize: row.name === state.layer ? 13 : over ? 9 : narrow || names.length > 80 ? 4 : 6,
        itemStyle: over ? { color: css("--fail") } : undefined,
      };
    };
    const budget = (row, error) => drawable(error?.budget?.[metric]);
    const series = (name, color, more) => ({
      name,
      type: "line",
      connectNulls: true,
      showAllSymbol: true,
      lineStyle: { width: 2, color, ...more.lineStyle },
      itemStyle: { color },
      ...Object.fromEntries(Object.entries(more).filter(([key]) => key !== "lineStyle")),
    });
    const drawn = draw("growth-chart", {
      grid: { left: 58, right: 14, top: narrow ? 78 : 50, bottom: 26 },
      legend: legend({
        data: ["accumulated", "local", { name: "accumulated budget", icon: "path://M0,5h24v2h-24z" }, { name: "local budget", icon: "path://M0,5h3v2h-3zM7,5h3v2h-3zM14,5h3v2h-3zM21,5h3v2h-3z" }],
      }),
      tooltip: tooltip({
        trigger: "axis",
        formatter: (points) => {
          const row = rows[points[0].dataIndex];
          const line = (name, error) =>
            error?.metrics?.[metric] === undefined
              ? ""
              : `<br>${name} ${escaped(text(error.metrics[metric]))}` +
                (error.budget[metric] === undefined ? "" : `, budget ${escaped(text(error.budget[metric]))}`);
          return `<b>${escaped(row.name)}</b>${line("local", row.local)}${line("accumulated", row)}`;
        },
      }),
      xAxis: axis({ type: "category", data: names, split: false, axisLabel: { show: false } }),
      yAxis: logarithmic({ name: metric, nameLocation: "end", nameTextStyle: { color: css("--soft"), align: "left", padding: [0, 0, 0, -50] } }),
      series: [
        series("accumulated", css("--accumulated"), {
          data: rows.map((row) => point(row, row)),
          symbol: "circle",
          markArea: {
            silent: true,
            label: { position: "insideBottom", color: css("--soft"), fontSize: 11, formatter: (area) => `block ${area.name}`, show: names.length <= 80 },
            data: bands(names),
          },
        }),
        series("local", css("--local"), { data: rows.map((row) => point(row, row.local)), symbol: "diamond", lineStyle: { width: 1.5, type: [6, 4] } }),
        series("accumulated budget", css("--budget"), { data: rows.map((row) => budget(row, row)), symbol: "none", lineStyle: { width: 1.5 } }),
        series("local budget", css("--budget"), { data: rows.map((row) => budget(row, row.local)), symbol: "none", lineStyle: { width: 1.5, type: "dotted" } }),
      ],
    });
    chosenByClick(drawn, names, 0);
  };

  const drawPositions = () => {
    const rows = rowsOf(state.candidate).filter((row) => row.spread?.byPosition.length && drawable(row.budget.max_abs) !== null);
    if (!rows.length) return empty("positions-chart", "No layer of this candidate has an error by position.");
    const names = rows.map((row) => row.name);
    const groups = Math.max(...rows.map((row) => row.spread.byPosition.length));
    const perGroup = rows[0].spread.positionsPerGroup;
    const floor = -9; // no error at all, on the logarithmic scale of the colours
    const cells = rows.flatMap((row, y) =>
      row.spread.byPosition.map((error, x) => {
        const share = number(error) / number(row.budget.max_abs);
        return [x, y, share > 0 ? Math.max(floor, Math.log10(share)) : floor, error, share];
      }),
    );
    const height = Math.max(isPaper() ? 2 : 5, Math.min(16, (isPaper() ? 700 : 900) / rows.length));
    byId("positions-chart").style.height = `${Math.round(rows.length * height + 110)}px`;
    const narrow = byId("positions-chart").clientWidth < 560;
    const width = (byId("positions-chart").clientWidth - (narrow ? 106 : 142)) / groups; // of a cell
    const drawn = draw(
      "positions-chart",
      {
        grid: { left: narrow ? 96 : 132, right: 10, top: 8, bottom: 82 },
        tooltip: tooltip({
          formatter: ({ value: [x, y, , error, share] }) => {
            const row = rows[y];
            const from = x * row.spread.positionsPerGroup;
            const to = from + row.spread.positionsPerGroup - 1;
            const where = to > from ? `positions ${from} to ${to}` : `position ${from}`;
            return `<b>${escaped(row.name)}</b><br>${where} in ${escaped(row.spread.cases.join(", "))}<br>${to > from ? "largest error" : "error"} ${text(error)}, ${text(share)} of the budget`;
          },
        }),
        xAxis: axis({
          type: "category", data: Array.from({ length: groups }, (_, group) => group * perGroup), split: false,
          name: `token position${inGroups(perGroup)}`, nameLocation: "middle", nameGap: 24,
        }),
        yAxis: axis({
          type: "category", data: names, inverse: true, split: false,
          axisLabel: { formatter: short, fontSize: narrow ? 9 : 10, interval: rows.length > 60 ? "auto" : 0, width: narrow ? 90 : 126, overflow: "truncate" },
        }),
        visualMap: {
          type: "piecewise", dimension: 2, orient: "horizontal", left: "center", bottom: 2, itemGap: narrow ? 7 : 12, itemWidth: narrow ? 10 : 14, itemHeight: narrow ? 10 : 12,
          textStyle: { color: css("--soft"), fontSize: narrow ? 10 : 12 }, selectedMode: false,
          pieces: [
            { lte: -2, label: narrow ? "1 %" : "up to 1 %", color: css("--heat-0") },
            { gt: -2, lte: -1, label: narrow ? "10 %" : "to 10 %", color: css("--heat-1") },
            { gt: -1, lte: Math.log10(0.5), label: narrow ? "50 %" : "to half", color: css("--heat-2") },
            { gt: Math.log10(0.5), lte: 0, label: narrow ? "100 %" : "to all of the budget", color: css("--heat-3") },
            { gt: 0, lte: 1, label: narrow ? "10 ×" : "over, to 10 times", color: css("--heat-4") },
            { gt: 1, label: narrow ? "more" : "beyond 10 times", color: css("--heat-5") },
          ],
        },
        series: [{ type: "heatmap", data: cells, progressive: 0, itemStyle: { borderWidth: height > 8 && width > 5 ? 1 : 0, borderColor: css("--card") }, emphasis: { itemStyle: { borderColor: css("--ink") } } }],
      },
      // On a screen, tens of thousands of cells would be as many SVG elements; paper needs what is sharp at any size.
      isPaper() ? "svg" : "canvas",
    );
    drawn.resize();
    chosenByClick(drawn, names, 1);
  };

  const drawUlp = (row) => {
    const bins = row?.ulp;
    if (!bins) return empty("ulp-chart", "No distance in units in the last place was measured for this layer.");
    const labels = bins.map(([edge], index) => {
      const next = bins[index + 1]?.[0];
      const from = edge.toLocaleString("en");
      return next === undefined ? `≥ ${from}` : next - edge <= 1 ? from : `${from}–${(next - 1).toLocaleString("en")}`;
    });
    const compact = (_, index) => new Intl.NumberFormat("en", { notation: "compact" }).format(bins[index][0]);
    draw("ulp-chart", {
      grid: { left: 52, right: 8, top: 14, bottom: 44 },
      tooltip: tooltip({ trigger: "axis", formatter: ([bar]) => `${escaped(bar.name)} ULP: ${text(bins[bar.dataIndex][1])} values` }),
      xAxis: axis({ type: "category", data: labels, split: false, name: "at least so many ULP of the layer's type", nameLocation: "middle", nameGap: 28, axisLabel: { hideOverlap: true, formatter: compact } }),
      yAxis: logarithmic({ min: 0.5, format: (value) => (value < 1 ? "" : text(value)) }),
      series: [{ type: "bar", barCategoryGap: "12%", itemStyle: { color: css("--accumulated"), borderRadius: [3, 3, 0, 0] }, data: bins.map(([, count]) => (count > 0 ? count : null)) }],
    });
  };

  const drawChannels = (row) => {
    const spread = row?.spread;
    if (!spread?.byChannel.length) return empty("channel-chart", "This layer has no channels, or no error in them.");
    const per = spread.channelsPerGroup;
    const errors = spread.byChannel.map((share) => (share * number(spread.largestChannel)) / 1000);
    const worst = new Set(spread.worstChannels.map(([channel]) => Math.floor(channel / per)));
    draw("channel-chart", {
      grid: { left: 58, right: 8, top: 12, bottom: 40 },
      tooltip: tooltip({
        trigger: "axis",
        formatter: ([bar]) => `channel ${bar.dataIndex * per}${per > 1 ? ` to ${bar.dataIndex * per + per - 1}` : ""}: about ${text(errors[bar.dataIndex])}`,
      }),
      xAxis: axis({ type: "category", data: errors.map((_, group) => group * per), split: false, name: `channel${inGroups(per)}`, nameLocation: "middle", nameGap: 24 }),
      yAxis: axis({ type: "value", splitNumber: 3, axisLabel: { formatter: (value) => (value === 0 ? "0" : value.toExponential(0)) } }),
      series: [{
        type: "bar", barCategoryGap: "10%",
        data: errors.map((error, group) => ({ value: drawable(error), itemStyle: { color: worst.has(group) ? css("--local") : css("--accumulated") } })),
      }],
    });
  };

  const drawAgreement = () => {
    if (!byId("agreement-chart")) return;
    const rows = page.languageModel.filter((row) => row.candidate === state.candidate && row.metrics.top1_agreement !== undefined);
    if (!rows.length) return empty("agreement-chart", "The language model was not measured for this candidate.");
    const cases = rows.map((row) => row.case);
    const percent = (name) => rows.map((row) => (row.metrics[name] === undefined ? null : 100 * number(row.metrics[name])));
    const lowest = Math.min(...[...percent("top1_agreement"), ...percent("top5_overlap")].filter((value) => value !== null));
    const bottom = Math.max(0, Math.floor(lowest - (100 - lowest) * 0.25 - 0.5)); // the bars start near what they show
    const line = (name, metric, color, more = {}) => ({
      name, type: "line", xAxisIndex: 1, yAxisIndex: 1, symbol: "circle", symbolSize: 7, connectNulls: true,
      itemStyle: { color }, lineStyle: { color, width: 2, ...more }, data: rows.map((row) => drawable(row.metrics[metric])),
    });
    const bar = (name, metric, color) => ({
      name, type: "bar", itemStyle: { color, borderRadius: [3, 3, 0, 0] }, barMaxWidth: 26, data: percent(metric),
    });
    const narrow = byId("agreement-chart").clientWidth < 560;
    draw("agreement-chart", {
      grid: [{ left: 58, right: 14, top: narrow ? 84 : 44, height: narrow ? "22%" : "30%" }, { left: 58, right: 14, bottom: 60, height: narrow ? "26%" : "36%" }],
      legend: legend({ itemGap: 12 }),
      tooltip: tooltip({
        trigger: "axis",
        formatter: (points) => {
          const row = rows[points[0].dataIndex];
          const lines = Object.entries(row.metrics).map(([name, value]) => {
            const limit = row.budget[name];
            return `<br>${escaped(name)} ${escaped(text(value))}${limit === undefined ? "" : `, budget ${escaped(text(limit))}`}`;
          });
          return `<b>${escaped(row.case)}</b>${lines.join("")}`;
        },
      }),
      axisPointer: { link: [{ xAxisIndex: "all" }] },
      xAxis: [
        axis({ type: "category", data: cases, split: false, axisLabel: { show: false } }),
        axis({ type: "category", gridIndex: 1, data: cases, split: false, axisLabel: { interval: 0, rotate: narrow ? 38 : 0, fontSize: narrow ? 9 : 11, lineHeight: 13, ...(narrow ? {} : { overflow: "break", width: 84 }) } }),
      ],
      yAxis: [
        axis({ type: "value", min: bottom, max: 100, interval: (100 - bottom) / 2, axisLabel: { formatter: "{value} %" } }),
        logarithmic({ gridIndex: 1 }),
      ],
      series: [
        bar("top-1 agreement", "top1_agreement", css("--accumulated")),
        bar("top-5 overlap", "top5_overlap", css("--heat-2")),
        line("KL mean, nats", "kl_mean", css("--local")),
        line("KL p99, nats", "kl_p99", css("--local"), { type: "dashed" }),
        line("KL max, nats", "kl_max", css("--local"), { type: "dotted" }),
      ],
    });
  };

  // --- tables -------------------------------------------------------------------------------------------------

  const showLayer = () => {
    const row = selectedRow();
    const body = byId("layer-figures").tBodies[0];
    body.replaceChildren();
    byId("layer-title").textContent = row ? row.name : "One layer";
    byId("layer-title").dataset.layer = row ? row.name : "";
    byId("layer-worst").textContent = "";
    const note = byId("layer-note");
    note.replaceChildren();
    if (!row) {
      note.append("This candidate has no measured layers.");
    } else {
      const fails = row.local?.verdict === "pass" ? "out of budget by what it was given" : "out of budget; its own error was not measured";
      const says = row.problem || (row.atFault ? "at fault: its own error is out of budget" : row.verdict === "fail" ? fails : "within budget");
      note.append(verdictChip(row.verdict), ` ${says} · ${row.candidate}${row.dtype ? ` · ${row.dtype}` : ""}`);
      if (row.local?.reason) note.append(` · local: ${row.local.reason}`);
      const names = new Set([...Object.keys(row.metrics), ...Object.keys(row.local?.metrics ?? {})]);
      for (const name of names) {
        const local = row.local ?? { metrics: {}, budget: {} };
        const unit = page.metrics[name]?.meaning;
        body.append(
          element(
            "tr",
            { "data-metric": name },
            element("th", { scope: "row", title: unit }, name),
            figureCell(local.metrics[name], local.failed?.includes(name)),
            figureCell(local.budget[name]),
            figureCell(row.metrics[name], row.failed?.includes(name)),
            figureCell(row.budget[name]),
          ),
        );
      }
      const element_ = (label, worst) =>
        worst ? `${label} ${worst[0]} [${worst[1].join(", ")}]: reference ${text(worst[2])}, candidate ${text(worst[3])}. ` : "";
      byId("layer-worst").textContent = element_("Worst element, accumulated:", row.worst) + element_("Worst, local:", row.local?.worst);
    }
    drawUlp(row);
    drawChannels(row);
  };

  const showTable = () => {
    const table = byId("layers-table");
    const metrics = ["max_abs", "relative_l2"].filter((name) => page.rows.some((row) => row.metrics[name] !== undefined));
    if (state.metric && !metrics.includes(state.metric)) metrics.push(state.metric);
    const heads = ["Layer", "Verdict", "Type"];
    const figures = metrics.flatMap((name) => [`local ${name}`, `budget`, `accumulated ${name}`, `budget`]);
    table.tHead.replaceChildren(
      element(
        "tr",
        {},
        ...heads.map((head) => element("th", { scope: "col" }, head)),
        ...figures.map((head) => element("th", { scope: "col", class: "number" }, head)),
      ),
    );
    const only = byId("only-failing").checked;
    table.tBodies[0].replaceChildren(
      ...rowsOf(state.candidate)
        .filter((row) => !only || row.verdict === "fail")
        .map((row) =>
          element(
            "tr",
            { "data-row": row.name, "aria-current": row.name === state.layer ? "true" : undefined },
            element("th", { scope: "row" }, layerButton(row)),
            element("td", {}, verdictChip(row.verdict), row.problem ? ` ${row.problem}` : ""),
            element("td", {}, row.dtype),
            ...metrics.flatMap((name) => [
              figureCell(row.local?.metrics[name], row.local?.failed?.includes(name)),
              figureCell(row.local?.budget[name]),
              figureCell(row.metrics[name], row.failed?.includes(name)),
              figureCell(row.budget[name]),
            ]),
          ),
        ),
    );
  };

  const markCurrent = () => {
    for (const row of document.querySelectorAll("#layers-table tbody tr")) {
      if (row.dataset.row === state.layer) row.setAttribute("aria-current", "true");
      else row.removeAttribute("aria-current");
    }
  };

  // --- selection ----------------------------------------------------------------------------------------------

  const judgedMetrics = (candidate) => {
    const names = new Set(rowsOf(candidate).flatMap((row) => [...Object.keys(row.budget), ...Object.keys(row.local?.budget ?? {})]));
    for (const name of ["mean_abs", "max_ulp", "p999_ulp"]) {
      if (rowsOf(candidate).some((row) => row.metrics[name] !== undefined)) names.add(name);
    }
    return [...names];
  };

  function select({ candidate = state.candidate, metric = state.metric, layer = state.layer }) {
    const rows = rowsOf(candidate);
    const newCandidate = candidate !== state.candidate;
    const newMetric = metric !== state.metric;
    const known = rows.some((row) => row.name === layer);
    const worst = rows.find((row) => row.atFault) ?? rows.find((row) => row.verdict === "fail") ?? rows.at(-1);
    const metrics = judgedMetrics(candidate);
    state.candidate = candidate;
    state.layer = known ? layer : (worst?.name ?? "");
    state.metric = metrics.includes(metric) ? metric : (metrics[0] ?? "");
    byId("candidate").value = candidate;
    if (newCandidate) {
      fill(byId("metric"), metrics.map((name) => [name, name]), state.metric);
      fill(byId("layer-select"), rows.map((row) => [row.name, `${row.verdict === "fail" ? "✗ " : ""}${row.name}`]), state.layer);
      drawPositions();
      drawAgreement();
    }
    byId("metric").value = state.metric;
    byId("layer-select").value = state.layer;
    if (newCandidate || newMetric) showTable();
    else markCurrent();
    drawGrowth();
    showLayer();
  }

  const step = (by) => {
    const names = rowsOf(state.candidate).map((row) => row.name);
    const next = names[names.indexOf(state.layer) + by];
    if (next !== undefined) select({ layer: next });
  };

  const redraw = () => {
    const layer = state.layer;
    drawPositions();
    drawAgreement();
    drawGrowth();
    showLayer();
    state.layer = layer;
  };

  document.addEventListener("click", (event) => {
    const button = event.target.closest("button[data-layer]");
    if (!button) return;
    select({ candidate: button.dataset.candidate, layer: button.dataset.layer });
    byId("layer").scrollIntoView({ behavior: matchMedia("(prefers-reduced-motion: reduce)").matches ? "auto" : "smooth" });
  });
  byId("candidate").addEventListener("change", (event) => select({ candidate: event.target.value }));
  byId("metric").addEventListener("change", (event) => select({ metric: event.target.value }));
  byId("layer-select").addEventListener("change", (event) => select({ layer: event.target.value }));
  byId("previous-layer").addEventListener("click", () => step(-1));
  byId("next-layer").addEventListener("click", () => step(1));
  byId("only-failing").addEventListener("change", showTable);
  const resize = () => Object.values(charts).forEach((drawn) => drawn.resize());
  let resizing = 0;
  addEventListener("resize", () => {
    cancelAnimationFrame(resizing);
    resizing = requestAnimationFrame(resize);
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  // On paper the colours are the light ones and the width is the paper's. Charts are drawn before the page is laid out
  // for it, so the class says both.
  const onPaper = (paper) => () => {
    document.documentElement.classList.toggle("paper", paper);
    resize();
    redraw();
    for (const drawn of Object.values(charts)) drawn.getZr().flush(); // paper does not wait for the next frame
  };
  addEventListener("beforeprint", onPaper(true));
  addEventListener("afterprint", onPaper(false));

  const measured = page.candidates.filter((candidate) => rowsOf(candidate.name).length);
  const first = page.rows.find((row) => row.name === page.firstFailure && row.atFault) ?? page.rows.find((row) => row.name === page.firstFailure && row.verdict === "fail");
  const chosen = first?.candidate ?? measured[0]?.name ?? page.candidates[0]?.name ?? "";
  fill(byId("candidate"), page.candidates.map((candidate) => [candidate.name, `${candidate.name} (${candidate.verdict})`]), chosen);
  select({ candidate: chosen, layer: first?.name ?? "" });
  document.documentElement.dataset.ready = "yes";
})();
