//! Command line → configuration → telemetry → app.

use std::process::ExitCode;

use clap::Parser;
use drone_delivery::cli::Cli;

/// Many small allocations on many threads are most of what ingestion does besides waiting.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    Cli::parse().run()
}
