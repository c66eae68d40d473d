use std::time::{Duration, Instant};

use super::*;
use crate::spec::parse_devices;
