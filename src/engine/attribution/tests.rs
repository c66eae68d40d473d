use super::*;
use crate::identity::{DeviceKey, MigInstance};
use crate::quantity::Moment;
use crate::sample::QueryFailure;

mod cases;
mod owners;
mod properties;

const fn gib(n: u64) -> Bytes {
    Bytes::gib(n)
}

const fn mib(n: u64) -> Bytes {
    Bytes::mib(n)
}

/// A GPU of 141 GiB without a process.
fn gpu(name: &str, used: Bytes) -> DeviceSample {
    let (total, reserved) = (gib(141), mib(614));
    DeviceSample {
        device: DeviceKey::whole(name),
        index: 0,
        model: "NVIDIA H200".into(),
        memory: Reading::Value(DeviceMemory { total, used, free: total - used - reserved, reserved: Some(reserved) }),
        processes: Reading::Value(Vec::new()),
    }
}

fn slice(name: &str, gpu_instance: u32, model: &str, used: Bytes) -> DeviceSample {
    let total = gib(71);
    let mig = Some(MigInstance { gpu_instance });
    DeviceSample {
        device: DeviceKey { gpu: name.into(), mig },
        model: model.into(),
        memory: Reading::Value(DeviceMemory { total, used, free: total - used, reserved: Some(Bytes::ZERO) }),
        ..gpu(name, used)
    }
}

fn failed(failure: QueryFailure) -> DeviceSample {
    DeviceSample { memory: Reading::Failed(failure), ..unlisted(gpu("g0", gib(9)), failure) }
}

fn unlisted(device: DeviceSample, failure: QueryFailure) -> DeviceSample {
    DeviceSample { processes: Reading::Failed(failure), ..device }
}

impl DeviceSample {
    fn process(mut self, pid: u32, used: Bytes) -> Self {
        self.list(pid, Some(used));
        self
    }

    fn withheld(mut self, pid: u32) -> Self {
        self.list(pid, None);
        self
    }

    fn list(&mut self, pid: u32, used: Option<Bytes>) {
        let Reading::Value(processes) = &mut self.processes else { panic!("the device has no process list") };
        processes.push(ProcessMemory { pid: Pid(pid), used });
    }
}

fn container(pod: &str, name: &str) -> ContainerKey {
    ContainerKey { pod: pod.into(), container: name.into() }
}

/// Owners of processes by PID, as `pod/container`, or `host`.
fn owners(processes: &[(u32, &str)]) -> BTreeMap<Pid, Owner> {
    let owner = |place: &str| Owner {
        started: StartTime(7),
        container: place.split_once('/').map(|(pod, name)| container(pod, name)),
    };
    processes.iter().map(|(pid, place)| (Pid(*pid), owner(place))).collect()
}

fn usage(devices: &[DeviceSample], processes: &[(u32, &str)]) -> Usage {
    let owners = owners(processes);
    let sample = RawSample { at: Moment::from_secs(5), devices: devices.to_vec() };
    let usage = attribute(&sample, |pid| owners.get(&pid));
    assert_eq!(usage.at, sample.at);
    for device in &usage.devices {
        let unattributed = device.memory.map(|memory| memory.used - known(&device.containers));
        assert_eq!(device.unattributed, unattributed, "the parts make up the whole");
    }
    usage
}

fn device(sample: DeviceSample, processes: &[(u32, &str)]) -> DeviceUsage {
    usage(&[sample], processes).devices.swap_remove(0)
}

/// A device's containers in order, as `pod/container`.
fn shares(device: &DeviceUsage) -> Vec<(String, Option<Bytes>)> {
    let place = |key: &ContainerKey| format!("{}/{}", key.pod, key.container);
    device.containers.iter().map(|usage| (place(&usage.container), usage.used)).collect()
}

fn share(place: &str, used: Bytes) -> (String, Option<Bytes>) {
    (place.into(), Some(used))
}

fn unavailable(gap: AttributionGap) -> Attribution {
    Attribution::Unavailable(gap)
}
