//! Rows of a recording from what Prometheus answers to a range query.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;

use super::Row;
use crate::quantity::Bytes;

/// The query that gives everything [`recording`] reads, in one answer.
pub const QUERY: &str = "{__name__=~\"gpumem_container_memory_used_bytes|gpumem_container_oom_events_total|\
    gpumem_device_memory_(total|reserved|unattributed)_bytes|DCGM_FI_DEV_FB_(USED|FREE)\"}";

/// Stands in the rows for memory of a device that no container owns.
pub const NOBODY: &str = "(no container)";

/// What was recorded.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Recording {
    /// As of a file; a container is `namespace/pod/container`, a device its UUID.
    pub rows: Vec<Row>,
    /// Moments, in the rows' seconds, at which a container was seen to have run out of memory.
    pub ooms: Vec<(f64, String)>,
    /// Unix seconds of the rows' zero.
    pub start: f64,
    /// The series are the DCGM exporter's: whole devices, each given to the pod that holds it.
    pub is_dcgm: bool,
}

/// Why an answer cannot be replayed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// No JSON, or not of Prometheus' shape.
    #[error("not an answer of Prometheus' /api/v1/query_range: {0}")]
    Shape(String),
    /// Prometheus says no.
    #[error("Prometheus refused the query: {0}")]
    Refused(String),
    /// One value each, not a history.
    #[error(
        "the answer has {0} where a range query gives a matrix; ask /api/v1/query_range, or query with a range: metric[6h]"
    )]
    NotAMatrix(String),
    /// Nothing that could be replayed.
    #[error(
        "no series of gpumem_container_memory_used_bytes (or of DCGM_FI_DEV_FB_USED with pods) in it; is the agent \
         scraped, and is the time range right?"
    )]
    NoSeries,
}

#[derive(Deserialize)]
struct Answer {
    status: String,
    #[serde(default)]
    error: String,
    data: Option<Data>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Data {
    result_type: String,
    #[serde(default)]
    result: serde_json::Value,
}

#[derive(Deserialize)]
struct Found {
    metric: BTreeMap<String, String>,
    #[serde(default)]
    values: Vec<(f64, String)>,
}

impl Found {
    /// A label; where a scrape without `honorLabels` renamed it, the renamed one is the workload's own.
    fn label(&self, name: &str) -> &str {
        let renamed = self.metric.get(&format!("exported_{name}"));
        renamed.or_else(|| self.metric.get(name)).map_or("", String::as_str)
    }

    fn gpu(&self) -> String {
        ["uuid", "UUID", "gpu"].iter().find_map(|name| self.metric.get(*name)).cloned().unwrap_or_default()
    }

    fn container(&self) -> Option<String> {
        let parts = [self.label("namespace"), self.label("pod"), self.label("container")];
        (!parts[1].is_empty()).then(|| parts.join("/"))
    }

    fn numbers(&self) -> impl Iterator<Item = (f64, f64)> + '_ {
        let numbers = self.values.iter().map(|(at, value)| (*at, value.parse::<f64>().unwrap_or(f64::NAN)));
        numbers.filter(|(at, value)| at.is_finite() && value.is_finite() && *value >= 0.0)
    }

    fn most(&self) -> f64 {
        self.numbers().map(|(_, value)| value).fold(0.0, f64::max)
    }
}

/// Reads one answer or several, one after the other, in their JSON.
pub fn recording(text: &str) -> Result<Recording, Error> {
    let mut by_name: BTreeMap<String, Vec<Found>> = BTreeMap::new();
    for answer in serde_json::Deserializer::from_str(text).into_iter::<Answer>() {
        let answer = answer.map_err(|error| Error::Shape(error.to_string()))?;
        let Some(data) = answer.data.filter(|_| answer.status == "success") else {
            let said = if answer.error.is_empty() { answer.status } else { answer.error };
            return Err(Error::Refused(said.chars().take(200).collect()));
        };
        if data.result_type != "matrix" {
            return Err(Error::NotAMatrix(data.result_type.chars().take(40).collect()));
        }
        let found: Vec<Found> = serde_json::from_value(data.result).map_err(|error| Error::Shape(error.to_string()))?;
        for one in found {
            let name = one.metric.get("__name__").cloned();
            // An expression has no name; what has pod and container and no other name is taken for used bytes.
            by_name.entry(name.unwrap_or_else(|| USED.to_owned())).or_default().push(one);
        }
    }
    let of = |name: &str| by_name.get(name).map_or(&[][..], Vec::as_slice);
    let mut recording = Recording { is_dcgm: of(USED).is_empty(), ..Recording::default() };
    let mib = if recording.is_dcgm { 1_048_576.0 } else { 1.0 };
    let used = if recording.is_dcgm { of("DCGM_FI_DEV_FB_USED") } else { of(USED) };
    let mut capacities: BTreeMap<String, f64> = BTreeMap::new();
    if recording.is_dcgm {
        capacities = whole_devices(used, of("DCGM_FI_DEV_FB_FREE"));
    } else {
        for one in of("gpumem_device_memory_total_bytes") {
            capacities.insert(one.gpu(), one.most());
        }
        for one in of("gpumem_device_memory_reserved_bytes") {
            capacities.entry(one.gpu()).and_modify(|total| *total = (*total - one.most()).max(0.0));
        }
    }
    let rows = &mut recording.rows;
    let mut push = |one: &Found, container: &str| {
        let gpu = one.gpu();
        let capacity = capacities.get(&gpu).map(|bytes| Bytes::from_f64(*bytes));
        rows.extend(one.numbers().map(|(at, value)| Row {
            t_s: at,
            gpu: gpu.clone(),
            container: container.to_owned(),
            used: Bytes::from_f64(value * mib),
            allocated: None,
            reserved: None,
            step_peak: None,
            capacity,
        }));
    };
    for one in used {
        if let Some(container) = one.container() {
            push(one, &container);
        }
    }
    if !recording.is_dcgm {
        for one in of("gpumem_device_memory_unattributed_bytes").iter().filter(|one| one.most() > 0.0) {
            push(one, NOBODY);
        }
    }
    if recording.rows.iter().all(|row| row.container == NOBODY) {
        return Err(Error::NoSeries);
    }
    recording.rows.sort_by(|one, other| one.t_s.total_cmp(&other.t_s));
    recording.start = recording.rows.first().map_or(0.0, |row| row.t_s);
    for row in &mut recording.rows {
        row.t_s -= recording.start;
    }
    recording.ooms = rises(of("gpumem_container_oom_events_total"), recording.start);
    Ok(recording)
}

const USED: &str = "gpumem_container_memory_used_bytes";

/// What a device of the DCGM exporter holds: the most that used and free were together.
fn whole_devices(used: &[Found], free: &[Found]) -> BTreeMap<String, f64> {
    let mut sums: BTreeMap<(String, u64), f64> = BTreeMap::new();
    for one in used.iter().chain(free) {
        for (at, value) in one.numbers() {
            *sums.entry((one.gpu(), at.to_bits())).or_default() += value * 1_048_576.0;
        }
    }
    let known: BTreeSet<String> = free.iter().map(Found::gpu).collect();
    let mut most: BTreeMap<String, f64> = BTreeMap::new();
    for ((gpu, _), sum) in sums.into_iter().filter(|((gpu, _), _)| known.contains(gpu)) {
        let highest = most.entry(gpu).or_default();
        *highest = highest.max(sum);
    }
    most
}

/// Moments at which a counter rose. Its first value says nothing about when.
fn rises(counters: &[Found], start: f64) -> Vec<(f64, String)> {
    let mut found = Vec::new();
    for one in counters {
        let (mut before, container) = (None, one.container().unwrap_or_default());
        for (at, value) in one.numbers() {
            if before.is_some_and(|before: f64| value > before) {
                found.push((at - start, container.clone()));
            }
            before = Some(value);
        }
    }
    found.sort_by(|one, other| one.0.total_cmp(&other.0));
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(result: &str) -> String {
        format!(r#"{{"status":"success","data":{{"resultType":"matrix","result":[{result}]}}}}"#)
    }

    const OURS: &str = r#"{"metric":{"__name__":"gpumem_container_memory_used_bytes","uuid":"G","namespace":"gpumem-system",
        "exported_namespace":"a","pod":"p","container":"c"},"values":[[100,"1073741824"],[115,"2147483648"],[130,"NaN"]]}"#;

    #[test]
    fn rows_begin_at_zero_and_carry_what_the_device_holds() {
        let total =
            r#"{"metric":{"__name__":"gpumem_device_memory_total_bytes","uuid":"G"},"values":[[100,"4294967296"]]}"#;
        let kept =
            r#"{"metric":{"__name__":"gpumem_device_memory_reserved_bytes","uuid":"G"},"values":[[100,"1073741824"]]}"#;
        let oom = r#"{"metric":{"__name__":"gpumem_container_oom_events_total","uuid":"G","namespace":"a","pod":"p",
            "container":"c"},"values":[[100,"0"],[115,"1"]]}"#;
        // Two answers one after the other, as two queries written into one file.
        let text = answer(&[OURS, total].join(",")) + "\n" + &answer(&[kept, oom].join(","));
        let found = recording(&text).expect("a recording");
        assert_eq!(found.rows.len(), 2);
        assert_eq!((found.rows[1].t_s, found.rows[1].container.as_str()), (15.0, "a/p/c"));
        assert_eq!((found.rows[1].used, found.rows[1].capacity), (Bytes::gib(2), Some(Bytes::gib(3))));
        assert_eq!(found.ooms, [(15.0, "a/p/c".to_owned())]);
    }

    #[test]
    fn devices_of_the_dcgm_exporter_stand_in_where_there_is_nothing_better() {
        let used = r#"{"metric":{"__name__":"DCGM_FI_DEV_FB_USED","UUID":"G","namespace":"a","pod":"p","container":"c"},"values":[[5,"1024"]]}"#;
        let free = r#"{"metric":{"__name__":"DCGM_FI_DEV_FB_FREE","UUID":"G","namespace":"a","pod":"p","container":"c"},"values":[[5,"3072"]]}"#;
        let found = recording(&answer(&[used, free].join(","))).expect("a recording");
        assert!(found.is_dcgm);
        assert_eq!((found.rows[0].used, found.rows[0].capacity), (Bytes::gib(1), Some(Bytes::gib(4))));
        let both = recording(&answer(&[OURS, used, free].join(","))).expect("a recording");
        assert!(!both.is_dcgm && both.rows.iter().all(|row| row.gpu == "G" && row.container == "a/p/c"));
    }

    #[test]
    fn what_is_no_history_is_refused_with_its_cure() {
        for (text, words) in [
            ("", "no series"),
            ("<html>", "not an answer"),
            (r#"{"status":"error","error":"query timed out"}"#, "refused the query: query timed out"),
            (r#"{"status":"success","data":{"resultType":"vector","result":[]}}"#, "query_range"),
            (
                r#"{"status":"success","data":{"resultType":"matrix","result":[{"metric":{"pod":"p"},"values":[[1]]}]}}"#,
                "not an answer",
            ),
            (&answer(r#"{"metric":{"__name__":"up"},"values":[[1,"1"]]}"#), "is the agent scraped"),
        ] {
            let error = recording(text).expect_err("no recording").to_string();
            assert!(error.contains(words), "{error}");
        }
    }
}
