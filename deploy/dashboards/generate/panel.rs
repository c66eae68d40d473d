//! The vocabulary boards are written in: a panel with its queries, and a board that lays panels out.
//!
//! Everything is Grafana's dashboard JSON, schema version 39, which Grafana 10.4 to 13 read.

use serde_json::{Map, Value, json};

/// Colours of the risk levels. They differ in brightness too, and a word always stands beside them.
pub const LOW: &str = "#56A64B";
/// See [`LOW`].
pub const ELEVATED: &str = "#D6A100";
/// See [`LOW`].
pub const HIGH: &str = "#FF780A";
/// See [`LOW`].
pub const CRITICAL: &str = "#E02F44";
/// For what is neither good nor bad.
pub const CALM: &str = "#5794F2";
/// For what was, or what stands for a whole.
pub const GREY: &str = "#8E8E8E";

/// Columns of Grafana's grid.
const COLUMNS: u32 = 24;

/// One panel.
#[derive(Clone, Debug)]
pub struct Panel {
    kind: &'static str,
    title: &'static str,
    description: &'static str,
    unit: &'static str,
    width: u32,
    height: u32,
    targets: Vec<Value>,
    options: Value,
    custom: Value,
    defaults: Map<String, Value>,
    overrides: Vec<Value>,
    transformations: Vec<Value>,
    interval: Option<&'static str>,
}

/// A line across the board that starts a group.
#[derive(Clone, Copy, Debug)]
pub struct Row(pub &'static str);

/// What a board is made of.
pub enum Part {
    /// Starts a group.
    Row(Row),
    /// Shows something.
    Panel(Box<Panel>),
}

/// One dashboard.
pub struct Board {
    /// Stable identity, used in links.
    pub uid: &'static str,
    /// Title.
    pub title: &'static str,
    /// One sentence on what it is for.
    pub description: &'static str,
    /// Start of the time range.
    pub from: &'static str,
    /// Its end.
    pub to: &'static str,
    /// Variables after `datasource` and `cluster`.
    pub variables: Vec<Value>,
    /// Queries that mark moments, as (name, colour, query, text).
    pub annotations: Vec<(&'static str, &'static str, String, &'static str)>,
    /// Rows and panels.
    pub parts: Vec<Part>,
}

// === impl Panel ===

impl Panel {
    fn new(kind: &'static str, title: &'static str, unit: &'static str, description: &'static str) -> Self {
        Self {
            kind,
            title,
            description,
            unit,
            width: 12,
            height: 8,
            targets: Vec::new(),
            options: json!({}),
            custom: json!({}),
            defaults: Map::new(),
            overrides: Vec::new(),
            transformations: Vec::new(),
            interval: None,
        }
    }

    /// Lines over time.
    pub fn lines(title: &'static str, unit: &'static str, description: &'static str) -> Self {
        Self {
            options: json!({
                "legend": {"displayMode": "list", "placement": "bottom", "showLegend": true, "calcs": []},
                "tooltip": {"mode": "multi", "sort": "desc"},
            }),
            custom: json!({
                "drawStyle": "line", "lineWidth": 2, "fillOpacity": 8, "showPoints": "never", "spanNulls": false,
                "axisSoftMin": 0, "stacking": {"mode": "none", "group": "A"},
            }),
            ..Self::new("timeseries", title, unit, description)
        }
    }

    /// Areas on top of each other.
    pub fn stacked(title: &'static str, unit: &'static str, description: &'static str) -> Self {
        Self::lines(title, unit, description)
            .custom("fillOpacity", json!(40))
            .custom("lineWidth", json!(1))
            .custom("stacking", json!({"mode": "normal", "group": "A"}))
    }

    /// Bars over time, on top of each other.
    pub fn bars(title: &'static str, unit: &'static str, description: &'static str) -> Self {
        Self::stacked(title, unit, description).custom("drawStyle", json!("bars")).custom("fillOpacity", json!(70))
    }

    /// One figure.
    pub fn figure(title: &'static str, unit: &'static str, description: &'static str) -> Self {
        Self {
            width: 4,
            height: 4,
            options: json!({
                "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": false},
                "colorMode": "value", "graphMode": "none", "textMode": "auto", "justifyMode": "auto", "orientation": "auto",
                "wideLayout": true, "showPercentChange": false, "percentChangeColorMode": "standard",
            }),
            ..Self::new("stat", title, unit, description)
        }
        .default("color", json!({"mode": "thresholds"}))
        .steps(&[(CALM, None)])
    }

    /// A bar for each series, longest first.
    pub fn gauge_bars(title: &'static str, unit: &'static str, description: &'static str) -> Self {
        Self {
            options: json!({
                "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": false},
                "displayMode": "basic", "orientation": "horizontal", "showUnfilled": true, "valueMode": "color",
                "namePlacement": "auto", "sizing": "auto", "minVizWidth": 8, "minVizHeight": 16, "maxVizHeight": 300,
                "legend": {"displayMode": "list", "placement": "bottom", "showLegend": false, "calcs": []},
            }),
            ..Self::new("bargauge", title, unit, description)
        }
        .default("color", json!({"mode": "thresholds"}))
    }

    /// Rows and columns: each query becomes a column, series with the same labels a row.
    pub fn table(title: &'static str, description: &'static str) -> Self {
        Self {
            width: COLUMNS,
            height: 9,
            options: json!({"showHeader": true, "cellHeight": "sm", "frameIndex": 0}),
            custom: json!({"align": "auto", "cellOptions": {"type": "auto"}, "inspect": false, "filterable": true}),
            transformations: vec![json!({"id": "merge", "options": {}})],
            ..Self::new("table", title, "short", description)
        }
        .empty("–")
    }

    /// Width in 24ths and height in rows.
    pub fn size(mut self, width: u32, height: u32) -> Self {
        self.width = width;
        self.height = height;
        self
    }

    /// The shortest step of the queries.
    pub fn every(mut self, interval: &'static str) -> Self {
        self.interval = Some(interval);
        self
    }

    /// A query over the time range.
    pub fn query(mut self, legend: &str, expr: impl Into<String>) -> Self {
        let target = self.target(expr.into(), legend, false);
        self.targets.push(target);
        self
    }

    /// A query of the end of the time range only.
    pub fn instant(mut self, legend: &str, expr: impl Into<String>) -> Self {
        let mut target = self.target(expr.into(), legend, true);
        if self.kind == "table" {
            target["format"] = json!("table");
        }
        self.targets.push(target);
        self
    }

    fn target(&self, expr: String, legend: &str, is_instant: bool) -> Value {
        let place = u8::try_from(self.targets.len()).unwrap_or(u8::MAX);
        let name = char::from(b'A'.saturating_add(place)).to_string();
        json!({
            "datasource": datasource(), "editorMode": "code", "expr": expr, "refId": name,
            "legendFormat": legend, "instant": is_instant, "range": !is_instant,
        })
    }

    /// Text in place of a value when there is none: say why that is so.
    pub fn empty(self, text: &'static str) -> Self {
        self.default("noValue", json!(text))
    }

    /// Colours from a value on; the first has no lower bound.
    pub fn steps(self, steps: &[(&str, Option<f64>)]) -> Self {
        let steps: Vec<_> = steps.iter().map(|(color, value)| json!({"color": color, "value": value})).collect();
        self.default("thresholds", json!({"mode": "absolute", "steps": steps}))
    }

    /// Shows the value's meaning instead of the value.
    pub fn words(self, words: &[(&str, &str, &str)]) -> Self {
        let mappings = mappings(words);
        self.default("mappings", mappings)
    }

    /// A field default.
    pub fn default(mut self, key: &str, value: Value) -> Self {
        self.defaults.insert(key.to_owned(), value);
        self
    }

    /// A default of the panel kind's own.
    pub fn custom(mut self, key: &str, value: Value) -> Self {
        self.custom[key] = value;
        self
    }

    /// An option of the panel kind's own.
    pub fn option(mut self, key: &str, value: Value) -> Self {
        self.options[key] = value;
        self
    }

    /// Properties of the field named so (a regular expression).
    pub fn field(mut self, name: &str, properties: &[(&str, Value)]) -> Self {
        let properties: Vec<_> = properties.iter().map(|(id, value)| json!({"id": id, "value": value})).collect();
        self.overrides
            .push(json!({"matcher": {"id": "byRegexp", "options": format!("^(?:{name})$")}, "properties": properties}));
        self
    }

    /// Names and orders a table's columns: labels by their names, queries as `Value #A`, `Value #B`, ….
    /// An empty name hides the column.
    pub fn columns(mut self, columns: &[(&str, &str)]) -> Self {
        let mut exclude = Map::from_iter([("Time".to_owned(), json!(true))]);
        let (mut order, mut rename) = (Map::new(), Map::new());
        for (place, (field, name)) in columns.iter().enumerate() {
            if name.is_empty() {
                exclude.insert((*field).to_owned(), json!(true));
            } else {
                order.insert((*field).to_owned(), json!(place));
                rename.insert((*field).to_owned(), json!(name));
            }
        }
        self.transformations
            .push(json!({"id": "organize", "options": {"excludeByName": exclude, "indexByName": order, "renameByName": rename}}));
        self
    }

    /// Sorts a table.
    pub fn sorted(self, column: &str, is_descending: bool) -> Self {
        self.option("sortBy", json!([{"displayName": column, "desc": is_descending}]))
    }

    fn json(&self, id: usize, x: u32, y: u32) -> Value {
        let mut defaults = self.defaults.clone();
        defaults.insert("unit".to_owned(), json!(self.unit));
        defaults.insert("custom".to_owned(), self.custom.clone());
        defaults.entry("color".to_owned()).or_insert_with(|| json!({"mode": "palette-classic"}));
        defaults.entry("mappings".to_owned()).or_insert_with(|| json!([]));
        defaults.entry("noValue".to_owned()).or_insert_with(|| json!("no data"));
        let mut panel = json!({
            "id": id, "type": self.kind, "title": self.title, "description": self.description, "datasource": datasource(),
            "gridPos": {"x": x, "y": y, "w": self.width, "h": self.height},
            "targets": self.targets, "options": self.options,
            "fieldConfig": {"defaults": defaults, "overrides": self.overrides},
        });
        if let Some(interval) = self.interval {
            panel["interval"] = json!(interval);
        }
        if !self.transformations.is_empty() {
            panel["transformations"] = json!(self.transformations);
        }
        panel
    }
}

impl From<Panel> for Part {
    fn from(panel: Panel) -> Self {
        Self::Panel(Box::new(panel))
    }
}

impl From<Row> for Part {
    fn from(row: Row) -> Self {
        Self::Row(row)
    }
}

// === impl Board ===

impl Board {
    /// The JSON that Grafana reads.
    pub fn json(&self) -> Value {
        let mut variables = vec![
            json!({
                "name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus", "refresh": 1,
                "hide": 0, "includeAll": false, "multi": false, "regex": "", "options": [],
                "current": {"text": "default", "value": "default"},
            }),
            variable("cluster", "Cluster", "label_values(gpumem_device_info, cluster)"),
        ];
        variables.extend(self.variables.iter().cloned());
        let mut annotations = vec![json!({
            "builtIn": 1, "datasource": {"type": "grafana", "uid": "-- Grafana --"}, "enable": true, "hide": true,
            "iconColor": "rgba(0, 211, 255, 1)", "name": "Annotations & Alerts", "type": "dashboard",
        })];
        annotations.extend(self.annotations.iter().map(|(name, color, expr, text)| {
            json!({
                "name": name, "enable": true, "iconColor": color, "datasource": datasource(), "expr": expr,
                "step": "30s", "titleFormat": name, "textFormat": text, "useValueForTime": false,
            })
        }));
        json!({
            "uid": self.uid, "title": self.title, "description": self.description, "tags": ["gpu-memory"],
            "schemaVersion": 39, "version": 1, "editable": true, "graphTooltip": 1, "refresh": "30s", "timezone": "browser",
            "fiscalYearStartMonth": 0, "liveNow": false, "weekStart": "",
            "time": {"from": self.from, "to": self.to}, "timepicker": {},
            "links": [{
                "type": "dashboards", "title": "GPU memory", "tags": ["gpu-memory"], "asDropdown": true, "includeVars": true,
                "keepTime": true, "targetBlank": false, "icon": "external link", "tooltip": "", "url": "",
            }],
            "annotations": {"list": annotations}, "templating": {"list": variables}, "panels": self.panels(),
        })
    }

    /// Lays the parts out from left to right, and below what is there when a line is full.
    fn panels(&self) -> Vec<Value> {
        let (mut x, mut y, mut tallest) = (0, 0, 0);
        let mut panels = Vec::new();
        for (place, part) in self.parts.iter().enumerate() {
            let id = place + 1;
            match part {
                Part::Row(Row(title)) => {
                    y += tallest;
                    panels.push(json!({
                        "id": id, "type": "row", "title": title, "collapsed": false, "panels": [],
                        "gridPos": {"x": 0, "y": y, "w": COLUMNS, "h": 1},
                    }));
                    (x, y, tallest) = (0, y + 1, 0);
                }
                Part::Panel(panel) => {
                    if x + panel.width > COLUMNS {
                        (x, y, tallest) = (0, y + tallest, 0);
                    }
                    panels.push(panel.json(id, x, y));
                    x += panel.width;
                    tallest = tallest.max(panel.height);
                }
            }
        }
        panels
    }
}

/// The data source that the user picks.
pub fn datasource() -> Value {
    json!({"type": "prometheus", "uid": "${datasource}"})
}

/// A variable filled by a query, with All as any value, or none.
pub fn variable(name: &str, label: &str, query: &str) -> Value {
    json!({
        "name": name, "label": label, "type": "query", "datasource": datasource(),
        "query": {"query": query, "refId": format!("{name}-values"), "qryType": 1},
        "includeAll": true, "multi": true, "allValue": ".*", "refresh": 2, "sort": 1, "hide": 0, "regex": "", "skipUrlSync": false,
        "options": [], "current": {"text": ["All"], "value": ["$__all"]},
    })
}

/// A variable with values to choose from, the first chosen.
pub fn choice(name: &str, label: &str, values: &[&str]) -> Value {
    let options: Vec<_> = values
        .iter()
        .enumerate()
        .map(|(place, value)| json!({"text": value, "value": value, "selected": place == 0}))
        .collect();
    json!({
        "name": name, "label": label, "type": "custom", "query": values.join(","), "includeAll": false, "multi": false,
        "hide": 0, "skipUrlSync": false, "options": options, "current": {"text": values.first(), "value": values.first(), "selected": true},
    })
}

/// A number that the user types.
pub fn number(name: &str, label: &str, value: &str) -> Value {
    let current = json!({"text": value, "value": value, "selected": true});
    json!({
        "name": name, "label": label, "type": "textbox", "query": value, "hide": 0, "skipUrlSync": false,
        "options": [current], "current": current,
    })
}

/// Words and colours for values.
pub fn mappings(words: &[(&str, &str, &str)]) -> Value {
    let options: Map<String, Value> = words
        .iter()
        .enumerate()
        .map(|(place, (value, text, color))| {
            ((*value).to_owned(), json!({"text": text, "color": color, "index": place}))
        })
        .collect();
    json!([{"type": "value", "options": options}])
}
