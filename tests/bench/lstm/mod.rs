//! The learned sequence model that popular articles propose: one LSTM layer over a reading every H/60, and a probability
//! for each of three horizons.
//!
//! `train.rs` makes the weights from the training seeds; they are committed, so the benchmark runs the same model everywhere.
//! Level, change and age are all it sees, as shares of room and horizon: a model of MiB would not know another card.

pub mod train;

/// Cells of the layer.
pub const CELLS: usize = 24;
/// Numbers it sees at each reading.
pub const INPUTS: usize = 4;
/// Horizons it answers for: H/12, H/4 and H.
pub const OUTPUTS: usize = 3;

/// Inputs, former outputs of the cells, and one for the bias.
pub const WIDTH: usize = INPUTS + CELLS + 1;
const GATES: usize = 4 * CELLS;
pub const WEIGHTS: usize = GATES * WIDTH + OUTPUTS * (CELLS + 1);

/// One life of one series, as far as the layer remembers it.
#[derive(Clone, Debug)]
pub struct Memory {
    cell: [f32; CELLS],
    hidden: [f32; CELLS],
    before: Option<f64>,
    /// P within H/12, H/4 and H.
    pub within: [f64; OUTPUTS],
}

impl Default for Memory {
    fn default() -> Self {
        Self { cell: [0.0; CELLS], hidden: [0.0; CELLS], before: None, within: [0.0; OUTPUTS] }
    }
}

/// What one step leaves behind for the way back.
#[derive(Clone, Debug)]
pub struct Step {
    input: [f32; WIDTH],
    gates: [f32; GATES],
    former: [f32; CELLS],
    cell: [f32; CELLS],
    hidden: [f32; CELLS],
    said: [f32; OUTPUTS],
}

pub struct Model {
    pub weights: Vec<f32>,
}

fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

impl Model {
    /// The committed one.
    pub fn committed() -> Self {
        let weights: Vec<f32> = serde_json::from_str(include_str!("weights.json")).unwrap();
        assert_eq!(weights.len(), WEIGHTS, "weights of another layer: train again");
        Self { weights }
    }

    /// Takes a reading: `used` of `room`, in a life of `age` seconds.
    pub fn take(&self, memory: &mut Memory, used: f64, room: f64, age: f64, horizon: f64) -> Step {
        let share = used / room.max(1.0);
        let change = share - memory.before.unwrap_or(share);
        memory.before = Some(share);
        let step = self.step(
            memory,
            [share, (50.0 * change).clamp(-5.0, 5.0), (10.0 * change).clamp(-5.0, 5.0), (age / horizon).min(4.0) / 4.0],
        );
        memory.within = step.said.map(f64::from);
        // Longer horizons hold all that shorter ones do.
        memory.within[1] = memory.within[1].max(memory.within[0]);
        memory.within[2] = memory.within[2].max(memory.within[1]);
        step
    }

    fn step(&self, memory: &mut Memory, seen: [f64; INPUTS]) -> Step {
        let mut input = [1.0_f32; WIDTH];
        for (slot, value) in input.iter_mut().zip(seen) {
            *slot = value as f32;
        }
        input[INPUTS..INPUTS + CELLS].copy_from_slice(&memory.hidden);
        let mut gates = [0.0_f32; GATES];
        for (gate, row) in gates.iter_mut().zip(self.weights.chunks_exact(WIDTH)) {
            *gate = row.iter().zip(&input).map(|(weight, value)| weight * value).sum();
        }
        let former = memory.cell;
        for cell in 0..CELLS {
            // In, forget, candidate, out.
            for gate in [0, 1, 3] {
                gates[gate * CELLS + cell] = sigmoid(gates[gate * CELLS + cell]);
            }
            gates[2 * CELLS + cell] = gates[2 * CELLS + cell].tanh();
            memory.cell[cell] = gates[CELLS + cell] * former[cell] + gates[cell] * gates[2 * CELLS + cell];
            memory.hidden[cell] = gates[3 * CELLS + cell] * memory.cell[cell].tanh();
        }
        let mut said = [0.0; OUTPUTS];
        for (answer, row) in said.iter_mut().zip(self.weights[GATES * WIDTH..].chunks_exact(CELLS + 1)) {
            let sum: f32 = row.iter().zip(&memory.hidden).map(|(weight, value)| weight * value).sum();
            *answer = sigmoid(sum + row[CELLS]);
        }
        Step { input, gates, former, cell: memory.cell, hidden: memory.hidden, said }
    }
}
