//! What travels: the custom resources, the agent's `/v1/usage`, and every name that must be the same everywhere.

pub mod names;

pub mod usage;

pub mod view;

pub mod policy;

pub mod profile;

pub mod node;

pub mod convert;

pub mod crd;
