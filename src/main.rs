//! Command line → configuration → telemetry → app.

use std::process::ExitCode;

use clap::Parser;
use drone_delivery::cli::Cli;

/// Many small things are made on one thread and dropped on another: what a service writes is freed by the store's
/// worker. jemalloc is quicker at that than others, and keeps less memory for it.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    // Huge pages make a heap of small things a quarter larger and no quicker. Where they cannot be turned off they stay.
    #[cfg(target_os = "linux")]
    let _ = rustix::thread::disable_transparent_huge_pages(true);
    Cli::parse().run()
}
