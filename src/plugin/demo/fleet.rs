//! The made-up fleet in virtual time. Flows in: the next second, and which pod is stopped. Flows out: a [`Tick`]: what every
//! container holds, and who began or ran out. Pure: no clock is read, and the same seed gives the same fleet.

use gpumem_engine::quantity::Bytes;

use super::cast::{self, Part};

/// Seconds from the end of a pod or of its process until the next one allocates.
const RESTART: i64 = 45;
/// So far ahead it is looked for the end of a run that nobody stops.
const FORESIGHT: i64 = 4 * 3600;

/// What one second brought.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tick {
    /// What each container that runs holds.
    pub samples: Vec<Sample>,
    /// Places of containers that began in this second.
    pub began: Vec<usize>,
    /// Places of containers that were refused memory in this second, and ended.
    pub ran_out: Vec<usize>,
}

/// What one container holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// Its place in the fleet.
    pub place: usize,
    /// Which of its runs this is.
    pub run: u64,
    /// Its memory on its device.
    pub used: Bytes,
}

/// Where one container stands.
#[derive(Clone, Copy, Debug)]
struct Life {
    pod: u64,
    run: u64,
    /// When it starts, or did.
    starts: i64,
    runs: bool,
}

/// The containers of a fleet.
#[derive(Clone, Debug)]
pub struct Fleet {
    seed: u64,
    parts: Vec<Part>,
    lives: Vec<Life>,
}

impl Fleet {
    /// The fleet of a seed, before anything of it runs.
    ///
    /// # Errors
    /// Those of [`cast::draw`].
    pub fn new(seed: u64) -> Result<Self, String> {
        let parts = cast::draw(seed)?;
        let lives = parts.iter().map(|part| Life { pod: 0, run: 0, starts: part.begins, runs: false }).collect();
        Ok(Self { seed, parts, lives })
    }

    /// Its containers.
    pub fn parts(&self) -> &[Part] {
        &self.parts
    }

    /// Lets one second pass; they come in order.
    pub fn tick(&mut self, at: i64) -> Tick {
        let mut tick = Tick::default();
        for (place, life) in self.lives.iter_mut().enumerate() {
            if !life.runs && life.starts <= at {
                life.runs = true;
                tick.began.push(place);
            }
        }
        for place in 0..self.parts.len() {
            if self.overflows(place, at) {
                tick.ran_out.push(place);
            }
        }
        for &place in &tick.ran_out {
            self.begin_again(place, at, false);
        }
        tick.samples = (0..self.parts.len())
            .filter_map(|place| Some(Sample { place, run: self.lives.get(place)?.run, used: self.used(place, at)? }))
            .collect();
        tick
    }

    /// Stops the pod at a place; its workload makes another.
    pub fn stop(&mut self, place: usize, at: i64) {
        self.begin_again(place, at, true);
    }

    /// Name of the pod at a place, which is its UID too.
    pub fn pod(&self, place: usize) -> String {
        let (Some(part), Some(life)) = (self.parts.get(place), self.lives.get(place)) else { return String::new() };
        let salt = place as u64 + 1;
        match part.kind {
            "StatefulSet" => format!("{}-0", part.workload),
            "Job" => format!("{}-{}", part.workload, cast::suffix(self.seed, salt * 1000 + life.pod, 5)),
            _ => {
                let of_template = cast::suffix(self.seed, salt, 6);
                format!("{}-{of_template}-{}", part.workload, cast::suffix(self.seed, salt * 1000 + life.pod, 5))
            }
        }
    }

    /// Seconds that the container at a place has run; `None` while it does not.
    pub fn age(&self, place: usize, at: i64) -> Option<i64> {
        self.lives.get(place).filter(|life| life.runs).map(|life| at - life.starts)
    }

    /// What the container at a place holds; `None` while it does not run.
    pub fn used(&self, place: usize, at: i64) -> Option<Bytes> {
        let age = self.age(place, at)?;
        self.parts.get(place).map(|part| Bytes(part.shape.bytes_at(age as f64)))
    }

    /// Places that share the device of a place, itself among them.
    pub fn beside(&self, place: usize) -> impl Iterator<Item = usize> + '_ {
        let uuid = self.parts.get(place).map(|part| part.device.uuid.as_str());
        let on_it = move |other: &usize| self.parts.get(*other).map(|part| part.device.uuid.as_str()) == uuid;
        (0..self.parts.len()).filter(on_it)
    }

    /// What all hold together on the device of a place.
    pub fn on_device(&self, place: usize, at: i64) -> Bytes {
        self.beside(place).filter_map(|other| self.used(other, at)).sum()
    }

    /// The second at which the container at a place is refused memory if nobody stops anything; `None` for hours to come.
    pub fn runs_out(&self, place: usize, from: i64) -> Option<i64> {
        (from..from + FORESIGHT).find(|at| self.overflows(place, *at))
    }

    /// Whether it is this container that is refused memory: its device is too full, and it is the one that grew.
    fn overflows(&self, place: usize, at: i64) -> bool {
        let Some(part) = self.parts.get(place) else { return false };
        let grew =
            |other: usize| self.used(other, at).unwrap_or_default() - self.used(other, at - 1).unwrap_or_default();
        let most = self.beside(place).max_by_key(|other| (grew(*other), self.used(*other, at)));
        most == Some(place) && self.on_device(place, at) > part.device.usable
    }

    fn begin_again(&mut self, place: usize, at: i64, is_new_pod: bool) {
        if let Some(life) = self.lives.get_mut(place) {
            let pod = life.pod + u64::from(is_new_pod);
            *life = Life { pod, run: life.run + 1, starts: at + RESTART, runs: false };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fleet() -> Fleet {
        Fleet::new(1).unwrap_or_else(|error| panic!("{error}"))
    }

    #[test]
    fn what_leaks_runs_out_once_its_device_is_full_and_begins_again_in_its_pod() {
        let mut fleet = fleet();
        let (mut ended, from) = (Vec::new(), fleet.parts()[1].begins);
        let foretold = (from..from + 10).map(|at| fleet.tick(at)).last().and_then(|_| fleet.runs_out(1, from + 9));
        let pod = fleet.pod(1);
        for at in from + 10..5400 {
            ended.extend(fleet.tick(at).ran_out.iter().map(|place| (*place, at)));
        }
        let of_leak: Vec<i64> = ended.iter().filter(|(place, _)| *place == 1).map(|(_, at)| *at).collect();
        assert_eq!(of_leak.first().copied(), foretold);
        assert!(ended.iter().all(|(place, _)| *place < 2), "nobody else runs out: {ended:?}");
        assert_eq!(fleet.pod(1), pod);
    }

    #[test]
    fn a_pod_that_is_stopped_comes_back_small_and_under_another_name() {
        let mut fleet = fleet();
        (-2520..600).for_each(|at| drop(fleet.tick(at)));
        let (pod, before) = (fleet.pod(0), fleet.used(0, 599));
        fleet.stop(0, 600);
        assert_eq!(fleet.tick(601).samples.iter().find(|sample| sample.place == 0), None);
        (602..700).for_each(|at| drop(fleet.tick(at)));
        assert!(fleet.pod(0) != pod && fleet.used(0, 699) < before);
    }
}
