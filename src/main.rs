//! Command line → configuration → telemetry → app.

use std::process::ExitCode;

use clap::Parser;
use drone_delivery::cli::Cli;

/// Many small allocations on many threads are most of what ingestion does besides waiting.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    // Huge pages make a heap of small things a quarter larger and no quicker. Where they cannot be turned off they stay.
    #[cfg(target_os = "linux")]
    let _ = rustix::thread::disable_transparent_huge_pages(true);
    Cli::parse().run()
}
