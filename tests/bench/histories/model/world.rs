//! The cluster of a history: what the API server holds, and what a call to it does.

use std::time::Duration;

use gpumem_engine::decision::{
    Act, Blast, CheckpointState, Hold, Levers, LimitState, PodRef, Standing, Step, Suspended, View, Workload,
};
use gpumem_engine::forecast::{Class, Forecast, Outlook, TimeToOom};
use gpumem_engine::identity::DeviceKey;
use gpumem_engine::pacing::{Group, Stamp, WorkloadUid};
use gpumem_engine::policy::Resume;
use gpumem_engine::quantity::Bytes;
use gpumem_engine::risk::Level;

use super::dice::Dice;

#[derive(Clone, Debug)]
pub struct Request {
    pub id: String,
    pub pod: String,
    pub deadline: Stamp,
    pub done: bool,
}

#[derive(Clone, Debug)]
pub struct Pod {
    pub uid: String,
    pub node: usize,
    pub device: usize,
    pub ready_at: Stamp,
    pub born: Stamp,
    pub level: Level,
    pub probability: f64,
    pub seconds: u64,
    pub sample_age: u64,
    pub gave_back: Bytes,
    pub request: Option<Request>,
    /// The call that moved it to host memory: its node's desired state keeps that.
    pub moved: Option<String>,
}

#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "one flag for each lever that it may lack")]
pub struct Owner {
    pub name: String,
    pub pods: Vec<Pod>,
    pub desired: usize,
    /// Evicting one pod stops all.
    pub gang: bool,
    pub can_suspend: bool,
    pub can_scale: bool,
    pub can_move: bool,
    pub suspended: Option<(Stamp, Resume, PodRef)>,
    pub opted_out: bool,
    pub rolling_out: bool,
}

#[derive(Clone, Debug)]
pub struct World {
    pub now: Stamp,
    pub owners: Vec<Owner>,
    born: u64,
}

impl World {
    pub fn new(dice: &mut Dice) -> Self {
        let mut world = Self { now: Stamp(1_000_000), owners: Vec::new(), born: 0 };
        for place in 0..=(dice.unit() * 4.0) as usize {
            let desired = 1 + (dice.unit() * 3.0) as usize;
            let mut owner = Owner {
                name: format!("w{place}"),
                pods: Vec::new(),
                desired,
                gang: dice.chance(0.3),
                can_suspend: dice.chance(0.5),
                can_scale: dice.chance(0.5),
                can_move: dice.chance(0.5),
                suspended: None,
                opted_out: dice.chance(0.05),
                rolling_out: false,
            };
            for _ in 0..desired {
                let mut pod = world.pod(dice, 0.0);
                // Most ran for hours before the history begins.
                pod.born = Stamp(world.now.0 - dice.log_between(30.0, 30_000.0) as i64);
                owner.pods.push(pod);
            }
            world.owners.push(owner);
        }
        world
    }

    /// A new pod that is Ready after some seconds.
    pub fn pod(&mut self, dice: &mut Dice, seconds: f64) -> Pod {
        self.born += 1;
        Pod {
            uid: format!("pod-{}", self.born),
            node: (dice.unit() * 3.0) as usize,
            device: (dice.unit() * 8.0) as usize,
            ready_at: Stamp(self.now.0 + seconds as i64),
            born: self.now,
            level: Level::Low,
            probability: 0.1,
            seconds: 3600,
            sample_age: 2,
            gave_back: Bytes::ZERO,
            request: None,
            moved: None,
        }
    }

    pub fn ready(&self, owner: &Owner) -> u32 {
        owner.pods.iter().filter(|pod| pod.ready_at <= self.now).count() as u32
    }

    pub fn whole(&self, owner: &Owner) -> bool {
        owner.suspended.is_none() && self.ready(owner) as usize >= owner.desired
    }

    pub fn owner(&self, uid: &WorkloadUid) -> &Owner {
        self.owners.iter().find(|owner| owner.name == uid.0).expect("owners never go")
    }

    fn place(&self, uid: &WorkloadUid) -> usize {
        self.owners.iter().position(|owner| owner.name == uid.0).expect("owners never go")
    }

    pub fn has(&self, act: &Act) -> bool {
        self.owner(&act.workload.uid).pods.iter().any(|pod| pod.uid == act.pod.uid.as_str())
    }

    /// Whether the API shows that a call was made, or would show the same.
    pub fn shows(&self, id: &str, act: &Act) -> bool {
        let owner = self.owner(&act.workload.uid);
        let request =
            || owner.pods.iter().find(|pod| pod.uid == act.pod.uid.as_str()).and_then(|pod| pod.request.as_ref());
        match act.step {
            Step::Evict => !self.has(act),
            Step::SuspendWorkload { .. } => owner.suspended.is_some(),
            Step::ResumeWorkload => owner.suspended.is_none(),
            Step::RequestCheckpoint { .. } => request().is_some_and(|request| request.id == id),
            Step::WithdrawCheckpoint { .. } => request().is_none(),
            Step::Scale { to, .. } => owner.desired >= to as usize,
            Step::SuspendToHost => {
                let pod = owner.pods.iter().find(|pod| pod.uid == act.pod.uid.as_str());
                pod.is_none_or(|pod| pod.moved.as_deref() == Some(id))
            }
        }
    }

    /// What a call does.
    pub fn apply(&mut self, dice: &mut Dice, id: &str, act: &Act) {
        let (now, place) = (self.now, self.place(&act.workload.uid));
        let own = |pod: &Pod| pod.uid == act.pod.uid.as_str();
        match &act.step {
            Step::Evict => {
                let gang = self.owners[place].gang;
                let stops: Vec<usize> = (0..self.owners[place].pods.len())
                    .filter(|pod| gang || own(&self.owners[place].pods[*pod]))
                    .collect();
                for pod in stops {
                    let seconds = dice.log_between(20.0, 900.0);
                    let fresh = self.pod(dice, seconds);
                    self.owners[place].pods[pod] = fresh;
                }
            }
            Step::SuspendWorkload { resume } => {
                self.owners[place].suspended = Some((now, *resume, act.pod.clone()));
                self.owners[place].pods.clear();
            }
            Step::ResumeWorkload => {
                self.owners[place].suspended = None;
                for _ in 0..self.owners[place].desired {
                    let fresh = self.pod(dice, 60.0);
                    self.owners[place].pods.push(fresh);
                }
            }
            Step::Scale { to, .. } => {
                self.owners[place].desired = *to as usize;
                while self.owners[place].pods.len() < *to as usize {
                    let fresh = self.pod(dice, 120.0);
                    self.owners[place].pods.push(fresh);
                }
            }
            Step::SuspendToHost => {
                let pod = self.owners[place].pods.iter_mut().find(|pod| own(pod));
                if let Some(pod) = pod {
                    (pod.ready_at, pod.moved) = (now + Duration::from_mins(2), Some(id.to_owned()));
                }
            }
            Step::RequestCheckpoint { timeout } => {
                let request = Request {
                    id: id.to_owned(),
                    pod: act.pod.uid.as_str().to_owned(),
                    deadline: now + *timeout,
                    done: false,
                };
                let pod = self.owners[place].pods.iter_mut().find(|pod| own(pod));
                if let Some(pod) = pod {
                    pod.request = Some(request);
                }
            }
            Step::WithdrawCheckpoint { .. } => {
                let pod = self.owners[place].pods.iter_mut().find(|pod| own(pod));
                if let Some(pod) = pod {
                    pod.request = None;
                }
            }
        }
    }

    pub fn suspended(&self) -> Vec<Suspended> {
        let of = |owner: &Owner| {
            let (at, resume, pod) = owner.suspended.clone()?;
            let (workload, container) = (workload(owner), "main".to_owned());
            Some(Suspended { pod, workload, container, device: DeviceKey::whole("gone"), resume, at })
        };
        self.owners.iter().filter_map(of).collect()
    }

    pub fn views(&self) -> Vec<View> {
        self.owners.iter().flat_map(|owner| owner.pods.iter().map(move |pod| self.view(owner, pod))).collect()
    }

    fn view(&self, owner: &Owner, pod: &Pod) -> View {
        let secs = Duration::from_secs;
        let all = owner.pods.len() as u32;
        let no = |lever| Hold::NoLever { lever, kind: "Job".to_owned() };
        let group = Group {
            desired: owner.desired as u32,
            ready: self.ready(owner),
            rolling_out: owner.rolling_out,
            budgets: 1,
        };
        let levers = Levers {
            evict: Ok(Blast(if owner.gang { all } else { 1 })),
            suspend: if owner.can_suspend { Ok(Blast(all)) } else { Err(no("suspend")) },
            scale: if owner.can_scale { Ok(owner.desired as u32) } else { Err(no("scale")) },
            suspend_to_host: if owner.can_move { Ok(()) } else { Err(no("suspend to host")) },
        };
        let ready = pod.ready_at <= self.now;
        let standing = Standing { group, ready, levers, grace: secs(30) };
        let opted_out = || Hold::OptedOut { place: "the pod's annotation".to_owned() };
        let time = TimeToOom {
            q10: secs(pod.seconds / 2),
            q50: secs(pod.seconds),
            q90: Duration::from_secs_f64(1.2 * pod.seconds as f64),
        };
        View {
            pod: PodRef {
                namespace: "ml".into(),
                name: pod.uid.clone(),
                uid: pod.uid.as_str().into(),
                node: format!("n{}", pod.node),
            },
            workload: workload(owner),
            container: "main".into(),
            device: DeviceKey::whole(format!("g{}", pod.device).as_str()),
            used: Bytes::gib(70),
            level: pod.level,
            forecast: Forecast {
                class: Class::Leak,
                growth: None,
                outlook: Outlook::Known {
                    probability: pod.probability,
                    by_horizon: [(300, 0.0), (900, pod.probability), (3600, pod.probability)],
                    time_to_oom: Some(time),
                },
                gave_back: pod.gave_back,
                reason: String::new(),
            },
            sample_age: secs(pod.sample_age),
            standing: if owner.opted_out { Err(opted_out()) } else { Ok(standing) },
            checkpoint: match &pod.request {
                None => CheckpointState::NotRequested,
                Some(Request { id, pod, done: true, .. }) => {
                    CheckpointState::Done { id: id.clone(), pod: pod.as_str().into() }
                }
                Some(Request { id, pod, deadline, .. }) => {
                    CheckpointState::Requested { id: id.clone(), pod: pod.as_str().into(), deadline: *deadline }
                }
            },
            notified: None,
            age: Some(self.now.since(pod.born)),
            high_since: None,
            shared: true,
            room: None,
            limit: LimitState::NotSet,
        }
    }
}

pub fn workload(owner: &Owner) -> Workload {
    Workload {
        api_version: "batch/v1".into(),
        kind: "Job".into(),
        name: owner.name.clone(),
        uid: WorkloadUid(owner.name.clone()),
    }
}
