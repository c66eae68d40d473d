//! What is drawn by lot: when the leak starts, how fast it is, and in which order the pods come.

use std::fmt;
use std::time::Duration;

/// Namespace of the cast, where a test needs no other.
pub const NAMESPACE: &str = "demo";

/// One performance.
#[derive(Clone, Debug)]
pub struct Plan {
    /// What everything below is drawn from.
    pub seed: u64,
    /// Seconds from a trainer's start to its leak.
    pub leak_start: u64,
    /// Speed of the leak in MiB per second.
    pub leak_rate: u64,
    /// Growth after which the leak stops, in MiB; `None` leaks on.
    pub leak_stops_after: Option<u64>,
    /// The cast in the order of its creation.
    pub order: Vec<Role>,
    /// Namespace of the cast.
    pub namespace: String,
    /// The first of the GPUs the cast shares: two, or six with everybody on stage.
    pub first_gpu: u32,
    /// Image of agent, controller, driver and trainers.
    pub image: String,
    /// The story ends at the latest then.
    pub length: Duration,
}

/// The cast: one Deployment each, or one Job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// Leaks, under a policy in Enforce.
    Guarded,
    /// Leaks the same, under no policy.
    Unguarded,
    /// Loads, then stays flat.
    Plateau,
    /// Takes 90 % of its GPU at once.
    Pool,
    /// Leaks, under a policy that asks it to save before it is evicted.
    Saving,
    /// A Job that leaks, under a policy that suspends it.
    Job,
    /// Leaks, under a policy that limits its growth, on a shared GPU.
    Limited,
    /// Loads, then stays flat, on the same GPU.
    Neighbour,
    /// Declares a job that cannot fit; what `explain` advises is applied to it, and then it fits.
    Declared,
}

impl Role {
    /// The main story's.
    pub const MAIN: [Self; 4] = [Self::Guarded, Self::Unguarded, Self::Plateau, Self::Pool];
    /// Those that show the milder rungs.
    pub const MILDER: [Self; 5] = [Self::Saving, Self::Job, Self::Limited, Self::Neighbour, Self::Declared];

    /// Name of the Deployment or Job.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Guarded => "trainer-guarded",
            Self::Unguarded => "trainer-unguarded",
            Self::Plateau => "trainer-plateau",
            Self::Pool => "server-pool",
            Self::Saving => "trainer-saving",
            Self::Job => "job-leaking",
            Self::Limited => "trainer-limited",
            Self::Neighbour => "trainer-neighbour",
            Self::Declared => "trainer-declared",
        }
    }

    /// Which of the GPUs it runs on: each trainer of the main story that leaks has one steady neighbour.
    const fn place(self) -> u32 {
        match self {
            Self::Guarded | Self::Pool => 0,
            Self::Unguarded | Self::Plateau => 1,
            Self::Saving => 2,
            Self::Job => 3,
            Self::Limited | Self::Neighbour => 4,
            Self::Declared => 5,
        }
    }
}

impl Plan {
    /// Draws a performance.
    pub fn draw(seed: u64, image: &str) -> Self {
        let mut lot = Lot(seed);
        // No pod is stopped before it is three times as old as what is left to it: a trainer that lives for more than three minutes
        // leaves half of one for that, time enough where others are stopped at the same time and calls are seconds apart.
        let leak_start = 75 + lot.below(15);
        let leak_rate = 40 + lot.below(10);
        let mut order = Role::MAIN.to_vec();
        for last in (1..order.len()).rev() {
            order.swap(last, lot.below(last as u64 + 1) as usize);
        }
        Self {
            seed,
            leak_start,
            leak_rate,
            leak_stops_after: None,
            order,
            namespace: NAMESPACE.to_owned(),
            first_gpu: 0,
            image: image.to_owned(),
            length: Duration::from_mins(6),
        }
    }

    /// The same performance, but the leak stops in time: nobody may be evicted.
    pub fn stopping_in_time(mut self) -> Self {
        // Far enough to be seen as growth, and over before the risk has held as long as the policy asks.
        self.leak_stops_after = Some(700);
        self.length = Duration::from_secs(150);
        self
    }

    /// The same performance with everybody on stage.
    pub fn with_milder_rungs(mut self) -> Self {
        self.order.extend(Role::MILDER);
        self
    }

    /// The same performance with these alone on stage.
    pub fn only(mut self, roles: &[Role]) -> Self {
        roles.clone_into(&mut self.order);
        self
    }

    /// The same performance in another namespace and on other GPUs.
    pub fn beside(mut self, namespace: &str, first_gpu: u32) -> Self {
        namespace.clone_into(&mut self.namespace);
        self.first_gpu = first_gpu;
        self
    }

    /// The GPU a member of the cast runs on.
    pub fn gpu(&self, role: Role) -> u32 {
        self.first_gpu + role.place()
    }

    /// Shape of the leaking trainers, in the words of `gpumem sim workload --shape`.
    pub fn leak(&self) -> String {
        let stop = self.leak_stops_after.map(|mib| format!(",stop={}MiB", 1024 + mib)).unwrap_or_default();
        format!("leak:from=1GiB,rate={}MiB/s,start={}s{stop}", self.leak_rate, self.leak_start)
    }

    /// Shape of a member of the cast.
    pub fn shape(&self, role: Role) -> String {
        match role {
            Role::Guarded | Role::Unguarded => self.leak(),
            Role::Plateau => "load:to=71GiB,over=8s".to_owned(),
            Role::Pool => "pool:at=72GiB".to_owned(),
            // Slow enough that a save of twenty seconds still comes in time: it is asked for in the last fifth of the leak.
            Role::Saving => "leak:from=58GiB,rate=110MiB/s,start=25s".to_owned(),
            Role::Job => "leak:from=58GiB,rate=160MiB/s,start=20s".to_owned(),
            // Held long before its limit, and without one it would fill the device a minute after it.
            Role::Limited => "leak:from=8GiB,rate=150MiB/s,start=20s".to_owned(),
            Role::Neighbour => "plateau:at=45GiB".to_owned(),
            // The job needs far more than its GPU has.
            Role::Declared => "load:to=100GiB,over=20s".to_owned(),
        }
    }
}

/// The job that [`Role::Declared`] declares: with 16 samples at once it fits no GPU of 80 GiB.
pub const DECLARED: &str = "model=llama3.2-1b batch=16 seq=2048";

/// A job with a piece of advice applied, as its owner would write it; `None` for advice that this owner would not take.
pub fn advised(job: &str, advice: &str) -> Option<String> {
    let numbers: Vec<u64> = advice.split(|c: char| !c.is_ascii_digit()).filter_map(|text| text.parse().ok()).collect();
    if advice.starts_with("smaller micro-batch") {
        let [micro_batch, steps] = numbers.as_slice() else { return None };
        let rest: Vec<_> = job.split(' ').filter(|word| !word.starts_with("batch=")).collect();
        return Some(format!("{} batch={micro_batch} accumulation={steps}", rest.join(" ")));
    }
    advice.starts_with("gradient checkpointing").then(|| format!("{job} checkpointing=full"))
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let order: Vec<_> = self.order.iter().map(|role| role.name()).collect();
        write!(
            f,
            "seed {}: the leaks start {} s after the trainers and grow {} MiB/s{}; order {}",
            self.seed,
            self.leak_start,
            self.leak_rate,
            self.leak_stops_after.map(|mib| format!(", and stop after {mib} MiB")).unwrap_or_default(),
            order.join(", ")
        )
    }
}

/// SplitMix64 (Steele, Lea, Flood 2014): small, and the same everywhere.
struct Lot(u64);

impl Lot {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % bound
    }
}
