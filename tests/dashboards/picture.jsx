// Draws one dashboard with Grafana's own components. The page brings `window.BOARD`: the dashboard, the answers to its queries,
// the variables and the theme. Not a Grafana: no interaction, no panel kinds but those of our boards.
import React from "react";
import { createRoot } from "react-dom/client";
import { firstValueFrom } from "rxjs";
import {
  FieldConfigOptionsRegistry, FieldType, ThemeContext, applyFieldOverrides, createTheme, dateTime,
  displayNameOverrideProcessor, getFieldDisplayValues, identityOverrideProcessor,
  valueMappingsOverrideProcessor, numberOverrideProcessor, standardEditorsRegistry, standardTransformers, standardTransformersRegistry,
  stringOverrideProcessor, thresholdsOverrideProcessor, toDataFrame, transformDataFrame, unitOverrideProcessor,
} from "@grafana/data";
import { BarGauge, BigValue, PanelChrome, PanelContextProvider, Table, TimeSeries } from "@grafana/ui";
import "uplot/dist/uPlot.min.css";

const { board, answers, annotations, range, chosen, themeName } = window.BOARD;
const theme = createTheme({ colors: { mode: themeName } });
const COLUMN = 1600 / 24, ROW = 38, GAP = 8;
const problems = [];
window.onerror = (message) => { problems.push(String(message)); report(); };

// Grafana's core registers these, not its packages.
const standard = {
  unit: unitOverrideProcessor, min: numberOverrideProcessor, max: numberOverrideProcessor, decimals: numberOverrideProcessor,
  displayName: displayNameOverrideProcessor, noValue: stringOverrideProcessor, mappings: valueMappingsOverrideProcessor,
  thresholds: thresholdsOverrideProcessor, color: identityOverrideProcessor, links: identityOverrideProcessor,
};
const custom = ["drawStyle", "lineInterpolation", "fillOpacity", "lineWidth", "lineStyle", "fillBelowTo", "stacking", "showPoints", "spanNulls", "axisSoftMin", "axisSoftMax", "axisPlacement", "scaleDistribution", "barAlignment", "cellOptions", "width", "align"];
const item = (id, path, process, isCustom) => ({ id, path, name: id, description: "", isCustom, process, shouldApply: () => true, getItemsCount: () => 0, editor: () => null, override: () => null, settings: {} });
const registry = new FieldConfigOptionsRegistry(() => [
  ...Object.entries(standard).map(([id, process]) => item(id, id, process, false)),
  ...custom.map((name) => item(`custom.${name}`, name, identityOverrideProcessor, true)),
]);
standardEditorsRegistry.setInit(() => []);
standardTransformersRegistry.setInit(() => [standardTransformers.mergeTransformer, standardTransformers.organizeFieldsTransformer, standardTransformers.orderFieldsTransformer, standardTransformers.renameFieldsTransformer, standardTransformers.filterFieldsByNameTransformer, standardTransformers.filterFieldsTransformer].filter(Boolean).map((transformation) => ({ id: transformation.id, name: transformation.name, transformation: async () => transformation, editor: () => null })));

const replace = (text) => text.replace(/\$(\w+)/g, (whole, name) => (name in chosen ? String(chosen[name]) : whole));
const legend = (format, labels) => (format ? format.replace(/\{\{\s*(\w+)\s*\}\}/g, (_, name) => labels[name] ?? "").trim().replace(/  +/g, " ") : JSON.stringify(labels));

// A step without a value is a gap, as in Grafana.
function withGaps(values, step) {
  const known = new Map(values);
  const times = [];
  for (let at = values[0][0] - step * Math.floor((values[0][0] - range.from) / step); at <= range.to; at += step) times.push(at);
  return times.map((at) => [at, known.get(at) ?? null]);
}

function frames(panel) {
  return panel.targets.flatMap((target) => {
    const { resultType, result } = answers[panel.id][target.refId];
    if (target.format === "table") {
      const names = [...new Set(result.flatMap(({ metric }) => Object.keys(metric)))].filter((name) => name !== "__name__").sort();
      return toDataFrame({ refId: target.refId, fields: [
        { name: "Time", type: FieldType.time, values: result.map(({ value }) => value[0] * 1000) },
        ...names.map((name) => ({ name, type: FieldType.string, values: result.map(({ metric }) => metric[name] ?? "") })),
        { name: panel.targets.length > 1 ? `Value #${target.refId}` : "Value", type: FieldType.number, values: result.map(({ value }) => Number(value[1])) },
      ] });
    }
    return result.map(({ metric, value, values }) => {
      const points = resultType === "matrix" ? withGaps(values, answers[panel.id].step) : [value];
      return toDataFrame({ refId: target.refId, fields: [
        { name: "Time", type: FieldType.time, values: points.map(([at]) => at * 1000), config: { interval: answers[panel.id].step * 1000 } },
        { name: "Value", type: FieldType.number, values: points.map(([, v]) => (v === null ? null : Number(v))), labels: metric, config: { displayNameFromDS: legend(target.legendFormat, metric) } },
      ] });
    });
  });
}

const prepare = (panel, data) => applyFieldOverrides({ data, fieldConfig: panel.fieldConfig, replaceVariables: replace, theme, timeZone: "utc", fieldConfigRegistry: registry });

const marks = (builder) => {
  builder.addHook("draw", (plot) => {
    const { ctx, bbox } = plot;
    for (const { at, color } of annotations) {
      const x = Math.round(plot.valToPos(at * 1000, "x", true));
      if (x < bbox.left || x > bbox.left + bbox.width) continue;
      ctx.save();
      ctx.strokeStyle = color; ctx.fillStyle = color; ctx.lineWidth = 1; ctx.setLineDash([4, 4]);
      ctx.beginPath(); ctx.moveTo(x, bbox.top); ctx.lineTo(x, bbox.top + bbox.height); ctx.stroke();
      ctx.beginPath(); ctx.moveTo(x - 5, bbox.top + bbox.height + 6); ctx.lineTo(x + 5, bbox.top + bbox.height + 6); ctx.lineTo(x, bbox.top + bbox.height); ctx.fill();
      ctx.restore();
    }
  });
  return null;
};

function Empty({ panel }) {
  return <div style={{ display: "grid", placeItems: "center", height: "100%", color: theme.colors.text.secondary }}>{panel.fieldConfig.defaults.noValue}</div>;
}

function Body({ panel, data, width, height }) {
  if (panel.type === "timeseries") {
    if (!data.length) return <Empty panel={panel} />;
    const timeRange = { from: dateTime(range.from * 1000), to: dateTime(range.to * 1000), raw: board.time };
    return (
      <TimeSeries frames={data} structureRev={1} width={width} height={height} timeRange={timeRange} timeZone="utc" legend={panel.options.legend} options={panel.options}>
        {(builder) => marks(builder)}
      </TimeSeries>
    );
  }
  if (panel.type === "table") {
    const frame = data[0];
    if (!frame?.length) return <Empty panel={panel} />;
    return <Table data={frame} width={width} height={height} cellHeight="sm" initialSortBy={panel.options.sortBy} timeRange={undefined} fieldConfig={panel.fieldConfig} />;
  }
  const values = getFieldDisplayValues({ fieldConfig: panel.fieldConfig, reduceOptions: panel.options.reduceOptions, replaceVariables: replace, theme, data, timeZone: "utc", sparkline: false });
  if (panel.type === "stat") {
    const { display } = values[0] ?? { display: { text: panel.fieldConfig.defaults.noValue, numeric: NaN } };
    return <BigValue value={{ ...display, title: undefined }} width={width} height={height} theme={theme} colorMode={panel.options.colorMode} graphMode="none" textMode="value" justifyMode="center" />;
  }
  if (panel.type === "bargauge") {
    const each = Math.min(50, height / values.length);
    return values.map(({ display, field, view, colIndex }, place) => (
      <div key={place} style={{ height: each }}>
        <BarGauge value={display} field={field} display={view?.getFieldDisplayProcessor(colIndex)} width={width} height={each - 8} theme={theme} orientation="horizontal" displayMode={panel.options.displayMode} showUnfilled valueDisplayMode="color" />
      </div>
    ));
  }
  throw new Error(`cannot draw a panel of type ${panel.type}`);
}

function Panel({ panel, data }) {
  const { x, y, w, h } = panel.gridPos;
  const place = { position: "absolute", left: x * COLUMN, top: y * ROW, width: w * COLUMN - GAP, height: h * ROW - GAP };
  if (panel.type === "row") return <div style={{ ...place, height: ROW, fontSize: 16, fontWeight: 500, lineHeight: `${ROW}px`, color: theme.colors.text.primary }}>▾ {panel.title}</div>;
  return (
    <div style={place}>
      <PanelChrome title={replace(panel.title)} description={replace(panel.description)} width={place.width} height={place.height} padding="md">
        {(width, height) => <Catch><Body panel={panel} data={data} width={width} height={height} /></Catch>}
      </PanelChrome>
    </div>
  );
}

class Catch extends React.Component {
  state = {};
  static getDerivedStateFromError(error) { problems.push(String(error)); return { error }; }
  render() { return this.state.error ? <pre style={{ color: "red" }}>{String(this.state.error)}</pre> : this.props.children; }
}

function report() {
  document.title = problems.length ? `failed: ${problems.join("; ")}` : "drawn";
}

async function main() {
  const drawn = [];
  for (const panel of board.panels) {
    if (panel.type === "row") { drawn.push({ panel }); continue; }
    let data = frames(panel);
    if (panel.transformations) data = await firstValueFrom(transformDataFrame(panel.transformations, data));
    data = panel.type === "stat" || panel.type === "bargauge" ? data : prepare(panel, data);
    if (panel.type === "stat" || panel.type === "bargauge") data = prepare(panel, data);
    drawn.push({ panel, data });
  }
  const variables = Object.entries(chosen).map(([name, value]) => `${board.templating.list.find((variable) => variable.name === name).label}: ${value === ".*" ? "All" : value}`);
  document.body.style.cssText = `margin:0;background:${theme.colors.background.canvas};color:${theme.colors.text.primary};font-family:${theme.typography.fontFamily};font-size:14px`;
  const style = document.createElement("style");
  style.textContent = "*{box-sizing:border-box} table{border-collapse:collapse} p,h1,h2,h3,h4,h5,h6{margin:0;font-weight:500} button{background:none;border:0;color:inherit;font:inherit} a{color:inherit}";
  document.head.append(style);
  createRoot(document.getElementById("root")).render(
    <ThemeContext.Provider value={theme}>
      <PanelContextProvider value={{ eventsScope: "global", eventBus: { publish() {}, getStream: () => ({ subscribe: () => ({ unsubscribe() {} }), pipe() { return this; } }), subscribe: () => ({ unsubscribe() {} }), removeAllListeners() {}, newScopedBus() { return this; } }, onSeriesColorChange() {}, onToggleSeriesVisibility() {}, canAddAnnotations: () => false }}>
        <div style={{ padding: "10px 12px 4px" }}>
          <div style={{ fontSize: 20, fontWeight: 500 }}>{board.title}</div>
          <div style={{ color: theme.colors.text.secondary, margin: "2px 0 6px" }}>{board.description}</div>
          <div style={{ display: "flex", gap: 8, flexWrap: "wrap" }}>
            {variables.map((text) => <span key={text} style={{ border: `1px solid ${theme.colors.border.medium}`, borderRadius: 4, padding: "2px 8px", background: theme.colors.background.primary }}>{text}</span>)}
          </div>
        </div>
        <div style={{ position: "relative", margin: 12 }}>{drawn.map(({ panel, data }) => <Panel key={panel.id} panel={panel} data={data} />)}</div>
      </PanelContextProvider>
    </ThemeContext.Provider>,
  );
  setTimeout(report, 1500);
}
main().catch((error) => { problems.push(String(error?.stack ?? error)); report(); });
