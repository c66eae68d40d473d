//! Recorded and reported data as feeds: our H200 recordings, field cases, and the GenTD26 trace where it is at hand.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;

use flate2::read::GzDecoder;

use crate::corpus::Kind;
use crate::feed::{Feed, Row};

pub fn read(path: &Path) -> std::io::Result<String> {
    let mut text = String::new();
    let file = std::fs::File::open(path)?;
    if path.extension().is_some_and(|extension| extension == "gz") {
        GzDecoder::new(file).read_to_string(&mut text)?;
    } else {
        std::io::BufReader::new(file).read_to_string(&mut text)?;
    }
    Ok(text)
}

/// Jobs that ran out, but not gradually, which is to say not after a rise of at least H/3: a random batch, three
/// evaluations, and two that died within 45 s of their first step.
const ABRUPT: &[&str] = &["varlen_oom", "eval_grow", "leak_loss", "kv_oom"];

/// One feed a job: each had a cap of its own, as if it had a smaller card.
pub fn h200(data: &Path, hooked: bool) -> Vec<Feed> {
    let mut feeds = Vec::new();
    for set in ["h200-a", "h200-b", "h200-d"] {
        let folder = data.join(set);
        let meta: serde_json::Value = serde_json::from_str(&read(&folder.join("meta.json")).unwrap()).unwrap();
        let text = read(&folder.join("trace.csv.gz")).unwrap();
        let mut jobs: BTreeMap<&str, Vec<Row>> = BTreeMap::new();
        for line in text.lines().skip(1) {
            let cells: Vec<&str> = line.split(',').collect();
            let number = |place: usize| cells[place].parse::<f64>().unwrap();
            let used = number(2);
            if used > 0.0 {
                let live = (hooked && number(3) > 0.0).then(|| (number(3), number(4)));
                let row = Row { at: number(0), tenant: 0, segment: 1, used, live };
                jobs.entry(cells[1]).or_default().push(row);
            }
        }
        for (job, rows) in jobs {
            let cap = meta[job]["cap_gib"].as_f64().unwrap() * 1024.0;
            // The cap does not count the context: the driver reads 758 MiB more.
            let capacity = if cap > 0.0 { cap + 758.0 } else { 20.0 * 1024.0 };
            let oom = meta[job]["oom"].as_bool().unwrap().then(|| meta[job]["end_s"].as_f64().unwrap());
            let kind = match oom {
                Some(_) if ABRUPT.contains(&job) => Kind::Abrupt,
                Some(_) => Kind::Gradual,
                None => Kind::None,
            };
            feeds.push(Feed {
                name: format!("{set}/{job}"),
                tenants: 1,
                end: rows.last().map_or(0.0, |row| row.at),
                rows,
                capacity: vec![(0.0, capacity)],
                orphaned: 0.0,
                ooms: oom.into_iter().collect(),
                kind,
                culprit: 0,
                declared: None,
            });
        }
    }
    feeds
}

/// Serving pods, one sample a minute. `capacity` in MiB: where a pod first crosses it, it is taken to have died.
pub fn serving(text: &str, capacity: f64) -> Vec<Feed> {
    let mut pods: BTreeMap<&str, Vec<(f64, f64)>> = BTreeMap::new();
    for line in text.lines().skip(1) {
        let cells: Vec<&str> = line.split(',').collect();
        if let (Ok(step), Ok(used)) = (cells[1].parse::<f64>(), cells[2].parse::<f64>()) {
            pods.entry(cells[0]).or_default().push((step * 60.0, used));
        }
    }
    pods.into_iter()
        .map(|(pod, points)| {
            let crossing = points.iter().find(|(_, used)| *used >= capacity).map(|(at, _)| *at);
            let rows: Vec<Row> = points
                .iter()
                .take_while(|(at, _)| crossing.is_none_or(|crossing| *at < crossing))
                .map(|&(at, used)| Row { at, tenant: 0, segment: 1, used, live: None })
                .collect();
            Feed {
                name: pod.to_owned(),
                tenants: 1,
                end: crossing.unwrap_or_else(|| rows.last().map_or(0.0, |row| row.at)),
                rows,
                capacity: vec![(0.0, capacity)],
                orphaned: 0.0,
                ooms: crossing.into_iter().collect(),
                kind: if crossing.is_some() { Kind::Abrupt } else { Kind::None },
                culprit: 0,
                declared: None,
            }
        })
        .collect()
}

/// Cases that cannot be met as they are written: a first tooth that is a leak, one minute of notice, a flat culprit, and
/// one without a series for the culprit.
pub const EXCEPTIONS: &[&str] = &[
    "sawtooth-cache-3-12-3",
    "sglang-unbudgeted-prefill-h100",
    "lmcache-daemon-keeps-30pct",
    "openshift-t4-stale-inference-procs",
];

/// A field case: the feed, what is expected, and by name who is who.
pub struct Case {
    pub feed: Feed,
    pub verdict: String,
    pub names: Vec<String>,
    pub culprit: Option<String>,
    pub must_not_evict: Vec<String>,
    pub before: f64,
    pub not_before: f64,
}

pub fn cases(folder: &Path, interval: f64) -> Vec<Case> {
    let mut files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
        .iter()
        .filter(|file| file.extension().is_some_and(|extension| extension == "json"))
        .map(|file| case(&serde_json::from_str(&read(file).unwrap()).unwrap(), interval))
        .collect()
}

fn case(json: &serde_json::Value, interval: f64) -> Case {
    let points = |value: &serde_json::Value| -> Vec<(f64, f64)> {
        let list = value.as_array().map(Vec::as_slice).unwrap_or_default();
        list.iter().map(|pair| (pair[0].as_f64().unwrap(), pair[1].as_f64().unwrap())).collect()
    };
    let mut curves: Vec<(String, Vec<(f64, f64)>)> = Vec::new();
    if let Some(processes) = json["processes"].as_object() {
        curves.extend(processes.iter().map(|(name, process)| (name.clone(), points(&process["points"]))));
    } else {
        curves.push(("only".to_owned(), points(&json["points"])));
    }
    let linear = json["interp"] == "linear";
    let end = curves.iter().filter_map(|(_, points)| points.last()).fold(0.0_f64, |end, (at, _)| end.max(*at));
    let verdict = json["expect"]["verdict"].as_str().unwrap_or_default().to_owned();
    let oom = (verdict == "alarm").then(|| json["event"]["t"].as_f64()).flatten();
    let last = oom.unwrap_or(end);
    let mut rows = Vec::new();
    let mut at = 0.0;
    while at <= last {
        for (tenant, (_, points)) in curves.iter().enumerate() {
            if let Some(used) = value_at(points, at, linear).filter(|used| *used > 0.0) {
                rows.push(Row { at, tenant, segment: 1, used, live: None });
            }
        }
        at += interval;
    }
    let culprit = json["expect"]["culprit"].as_str().map(str::to_owned);
    let names: Vec<String> = curves.iter().map(|(name, _)| name.clone()).collect();
    let place = culprit.as_ref().and_then(|culprit| names.iter().position(|name| name == culprit)).unwrap_or(0);
    Case {
        feed: Feed {
            name: json["slug"].as_str().unwrap_or_default().to_owned(),
            tenants: curves.len(),
            rows,
            capacity: vec![(0.0, json["gpu"]["capacity_mib"].as_f64().unwrap())],
            orphaned: 0.0,
            ooms: oom.into_iter().collect(),
            kind: if oom.is_some() { Kind::Gradual } else { Kind::None },
            culprit: place,
            declared: None,
            end: last,
        },
        verdict,
        names,
        culprit,
        must_not_evict: json["expect"]["must_not_evict"]
            .as_array()
            .map(|list| list.iter().filter_map(|name| name.as_str().map(str::to_owned)).collect())
            .unwrap_or_default(),
        before: json["expect"]["before_t"].as_f64().unwrap_or(f64::INFINITY),
        not_before: json["expect"]["not_before_t"].as_f64().unwrap_or(0.0),
    }
}

fn value_at(points: &[(f64, f64)], at: f64, linear: bool) -> Option<f64> {
    let next = points.iter().position(|(moment, _)| *moment > at);
    match next {
        Some(0) => None,
        None => points.last().filter(|(moment, _)| at <= *moment).map(|(_, used)| *used),
        Some(next) => {
            let ((t0, v0), (t1, v1)) = (points[next - 1], points[next]);
            Some(if linear { v0 + (v1 - v0) * (at - t0) / (t1 - t0) } else { v0 })
        }
    }
}
