//! Image models. Flows in: a known network or its numbers, and a run. Flows out: an estimate.
//!
//! A convolutional step keeps the inputs of its layers, which grow with the number of pixels and images. Per network the
//! table has what one image keeps in fp32, counted on an H200 with torch 2.11 at the network's own image size.

use super::overhead::{context, workspace};
use super::run::{Checkpointing, Compute, Format, Optimizer, Run, Step, Task};
use super::states::optimizer_bytes;
use super::{Error, Estimate, Interval, Phase, Term, within, worst};

const MIB: f64 = 1_048_576.0;

/// An image network.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Net {
    /// As torchvision calls it.
    pub name: &'static str,
    /// Parameters.
    pub params: f64,
    /// Bytes of buffers such as batch norm's running statistics.
    pub buffers: f64,
    /// MiB that one image keeps in fp32.
    pub image_mib: f64,
    /// Side of that image in pixels.
    pub size: u64,
    /// The same under autocast, as a share: tensors of norms stay in fp32.
    pub half: f64,
    /// MiB that one image has alive at the widest layer of a forward pass in fp32, cuDNN's room included.
    pub widest_mib: f64,
}

const fn net(
    name: &'static str,
    params: f64,
    buffers: f64,
    image_mib: f64,
    size: u64,
    half: f64,
    widest_mib: f64,
) -> Net {
    Net { name, params, buffers, image_mib, size, half, widest_mib }
}

/// The table.
pub const NETS: &[Net] = &[
    net("resnet18", 11_689_512.0, 38_560.0, 20.6, 224, 0.56, 7.3),
    net("resnet50", 25_557_032.0, 212_904.0, 81.6, 224, 0.52, 10.5),
    net("resnet101", 44_549_160.0, 422_208.0, 120.6, 224, 0.52, 10.5),
    net("wide_resnet50_2", 68_883_240.0, 273_320.0, 106.6, 224, 0.53, 11.4),
    net("resnext50_32x4d", 25_028_904.0, 273_320.0, 106.6, 224, 0.52, 11.3),
    net("vgg16", 138_357_544.0, 0.0, 69.4, 224, 0.58, 49.6),
    net("alexnet", 61_100_840.0, 0.0, 3.0, 224, 0.65, 2.8),
    net("squeezenet1_1", 1_235_496.0, 0.0, 19.4, 224, 0.58, 5.8),
    net("mobilenet_v2", 3_504_872.0, 136_864.0, 74.3, 224, 0.505, 10.5),
    net("mnasnet1_0", 4_383_312.0, 152_096.0, 41.9, 224, 0.51, 6.0),
    net("shufflenet_v2_x1_0", 2_278_604.0, 65_168.0, 19.1, 224, 0.52, 2.9),
    net("efficientnet_b0", 5_288_548.0, 168_456.0, 83.8, 224, 0.505, 10.5),
    net("efficientnet_b4", 19_341_616.0, 501_568.0, 214.7, 224, 0.505, 15.6),
    net("regnet_y_8gf", 39_381_472.0, 346_560.0, 163.6, 224, 0.51, 31.6),
    net("densenet121", 7_978_856.0, 335_560.0, 124.2, 224, 0.51, 10.2),
    net("googlenet", 13_004_888.0, 60_760.0, 45.6, 224, 0.62, 7.3),
    net("inception_v3", 27_161_264.0, 145_664.0, 92.8, 299, 0.54, 16.9),
    net("xception", 22_855_952.0, 218_000.0, 140.0, 299, 0.52, 15.0),
    net("convnext_tiny", 28_589_128.0, 0.0, 103.9, 224, 0.56, 12.1),
    net("vit_b_16", 86_567_656.0, 0.0, 119.3, 224, 0.54, 8.1),
    net("swin_t", 28_288_354.0, 230_496.0, 101.4, 224, 0.65, 14.4),
];

/// The network that people call `name`; case and punctuation do not matter.
pub fn find(name: &str) -> Option<&'static Net> {
    let plain = |name: &str| -> String {
        let name = name.split('.').next().unwrap_or_default().to_lowercase();
        name.chars().filter(char::is_ascii_alphanumeric).collect()
    };
    let wanted = plain(name);
    NETS.iter().find(|net| {
        let known = plain(net.name);
        known == wanted || (wanted.len() > 5 && known.starts_with(&wanted))
    })
}

/// The memory that `net` needs for images of `size` pixels a side under `run`, of which batch, precision, optimizer and
/// card count.
pub fn estimate(net: &Net, size: u64, run: &Run) -> Result<Estimate, Error> {
    run.check()?;
    within("image size", size as f64, 1.0, 1e5)?;
    let pixels = (size as f64 / net.size as f64).powi(2);
    let is_fp32 = run.compute == Compute::Fp32;
    let image = net.image_mib * MIB * pixels * if is_fp32 { 1.0 } else { net.half };
    let images = image * run.batch as f64;
    let width = if run.weights == Format::Fp32 { 4.0 } else { 2.0 };
    let weights = Interval::exact(net.params * width + net.buffers);
    let term = |name, bytes| Term { name, bytes };
    // cuDNN tries algorithms that need room of their own, most of it in the first steps (`cudnn.benchmark`).
    let cudnn = term("cuDNN workspaces", Interval::new(0.0, 120.0 * MIB, 1_500.0 * MIB));
    let fixed = [weights_term(weights), cudnn, workspace(run), context(run)];
    let widest = net.widest_mib * MIB * pixels * run.batch as f64 * if is_fp32 { 1.0 } else { 0.6 };
    if run.task != Task::Train {
        let passing = term("forward temporaries", Interval::spread(widest, 0.25, 0.5));
        let slack = term(super::overhead::SLACK, Interval::new(0.0, widest * 0.25, widest));
        let terms = fixed.into_iter().chain([passing, slack]).collect();
        let mut estimate = worst(vec![(Phase::Prefill, terms)], super::overhead::OUTSIDE);
        estimate.assumptions.push(format!("images of {size} pixels a side"));
        return Ok(estimate);
    }
    let gradients = net.params * width;
    let optimizer = net.params * optimizer_bytes(run.optimizer, run.compute, width, 512.0, 0.0);
    let kept = match run.checkpointing {
        Checkpointing::Off | Checkpointing::Selective => images,
        Checkpointing::Full => images * 0.3,
    };
    let copies = if run.compute == Compute::Autocast { net.params * 2.0 } else { 0.0 };
    // Foreach steps make a copy of all parameters for a moment; activations are gone by then.
    let step = if run.optimizer == Optimizer::Adam(Step::Foreach) { gradients } else { 0.0 };
    let phase = |gradients: f64, kept: f64, copies: f64, step: f64| {
        fixed
            .into_iter()
            .chain([
                term("gradients", Interval::exact(gradients)),
                term("optimizer", Interval::spread(optimizer, 0.0, 0.02)),
                term("activations", Interval::spread(kept, 0.04, 0.06)),
                term("optimizer temporaries", Interval::exact(step)),
                term("16-bit copies", Interval::spread(copies, 0.3, 0.1)),
                // cuDNN's room at the widest layer is freed and rarely fits anything else.
                term(
                    super::overhead::SLACK,
                    Interval::new(0.1 * widest, 0.07 * images + 0.8 * widest, 0.25 * images + 2.0 * widest),
                ),
            ])
            .collect::<Vec<_>>()
    };
    let phases =
        vec![(Phase::Loss, phase(0.0, kept * 1.02, copies, 0.0)), (Phase::Step, phase(gradients, 0.0, 0.0, step))];
    let mut estimate = worst(phases, super::overhead::OUTSIDE);
    estimate.assumptions.push(format!("{:.1} million parameters, images of {size} pixels a side", net.params / 1e6));
    estimate.unknowns.push("which algorithms cuDNN chooses: up to 1.5 GiB for a moment".to_owned());
    Ok(estimate)
}

fn weights_term(bytes: Interval) -> Term {
    Term { name: "weights", bytes }
}
