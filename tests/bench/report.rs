//! Figures as they are collected: printed as closing lines, and as JSON where asked.

use crate::judge::Figure;

#[derive(Default)]
pub struct Report {
    figures: Vec<(String, Figure, &'static str)>,
}

impl Report {
    pub fn add(&mut self, name: &str, value: f64, unit: &'static str) {
        self.add_with(name, Figure { value, low: value, high: value }, unit);
    }

    pub fn add_with(&mut self, name: &str, figure: Figure, unit: &'static str) {
        self.figures.push((name.to_owned(), figure, unit));
    }

    pub fn print(&self) {
        println!();
        for (name, figure, unit) in self.figures.iter().filter(|(_, figure, _)| figure.low < figure.high) {
            println!("95 % of resampled runs: {name} {:.4} to {:.4} {unit}", figure.low, figure.high);
        }
        println!();
        for (name, figure, unit) in &self.figures {
            println!("figure {name} {:.4} {unit}", figure.value);
        }
    }

    pub fn json(&self) -> String {
        let all: Vec<_> = self
            .figures
            .iter()
            .map(|(name, Figure { value, low, high }, unit)| {
                serde_json::json!({"name": name, "value": value, "low": low, "high": high, "unit": unit})
            })
            .collect();
        serde_json::to_string_pretty(&all).unwrap()
    }
}
